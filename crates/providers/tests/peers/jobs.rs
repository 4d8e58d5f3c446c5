//! Jobs on a host behind OpenSSH: what they survive, how they end, and that each starts once.

use crate::sshd::{Sshd, SshdOptions, Userland, needs_root, send};
use model::fault::{EffectOutcome, FaultCode};
use providers::port::{Journal, Stream};
use providers::ssh::{
    Host, JobExit, JobStatus, LostReason, Route, Settings, StartResult, StopResult,
};
use std::fs;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

pub const LIMIT: Duration = crate::DEADLINE;
const GRACE: Duration = Duration::from_secs(1);

/// The output of a job from a byte on, until its end: stdout, stderr and the length.
pub async fn read_output(host: &Host, key: &str, from: u64) -> (String, String, u64) {
    let (journal, mut lines) = Journal::new();
    let listener = tokio::spawn(async move {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        while let Some(line) = lines.recv().await {
            match line.stream {
                Stream::Stdout => out.extend(line.data),
                Stream::Stderr => err.extend(line.data),
            }
        }
        (String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
    });
    let length = host.follow_output(key, from, &journal).await.unwrap();
    drop(journal);
    let (out, err) = listener.await.unwrap();
    (out, err, length)
}

async fn settled(host: &Host, key: &str) -> JobStatus {
    let started = Instant::now();
    loop {
        let status = host.status(key).await.unwrap();
        if !matches!(status, JobStatus::Running { .. }) {
            return status;
        }
        assert!(started.elapsed() < LIMIT, "{key} still runs");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The output of a shell command in the home of the jobs, without the last newline.
pub async fn run_command(host: &Host, command: &str) -> String {
    let output = host.run(&format!("cd; {command}"), b"", LIMIT).await.unwrap();
    String::from_utf8(output.stdout).unwrap().trim_end().to_string()
}

/// Starts, repeats, stops and removes jobs, on the given userland.
async fn exercise_jobs(userland: Userland) {
    let Some(sshd) = Sshd::with(&SshdOptions { userland, ..SshdOptions::default() }) else {
        return;
    };
    let host = sshd.host().await;
    let odd = "op-1/it's \"odd\" $HOME\n/1";
    assert_eq!(host.status(odd).await.unwrap(), JobStatus::NeverStarted);
    let command = "echo \"$0\" >/dev/null\nprintf 'a\\n'; echo b >&2\ncat\nEND_OF_FILE=1; exit 3";
    assert_eq!(host.start(odd, command).await.unwrap(), StartResult::Started, "{userland:?}");
    assert_eq!(read_output(&host, odd, 0).await, ("a\n".into(), "b\n".into(), 4), "{userland:?}");
    assert_eq!(host.status(odd).await.unwrap(), JobStatus::Ended(JobExit::Code(3)), "{userland:?}");
    assert_eq!(
        host.start(odd, command).await.unwrap(),
        StartResult::AlreadyStarted,
        "{userland:?}"
    );
    assert_eq!(
        host.stop(odd, GRACE).await.unwrap(),
        StopResult::AlreadyEnded(JobExit::Code(3)),
        "{userland:?}"
    );
    host.forget(odd).await.unwrap();
    assert_eq!(host.status(odd).await.unwrap(), JobStatus::NeverStarted, "{userland:?}");

    host.start("signal", "kill -TERM $$; sleep 60").await.unwrap();
    assert_eq!(
        settled(&host, "signal").await,
        JobStatus::Ended(JobExit::Signal(15)),
        "{userland:?}"
    );

    host.start("polite", "echo up; sleep 600 & wait").await.unwrap();
    assert!(
        matches!(host.status("polite").await.unwrap(), JobStatus::Running { .. }),
        "{userland:?}"
    );
    let fault = host.forget("polite").await.unwrap_err();
    assert_eq!(fault.code, FaultCode::EffectFailed, "{fault}");
    assert_eq!(
        host.stop("polite", GRACE * 20).await.unwrap(),
        StopResult::Terminated(JobExit::Signal(15)),
        "{userland:?}"
    );

    let stubborn = "trap '' TERM; echo $$ >leader; (trap '' TERM; echo up; sleep 600; sleep 600) & \
                    echo $! >child; sleep 601; sleep 601; sleep 601";
    host.start("stubborn", stubborn).await.unwrap();
    until(&host, "test -s leader && test -s child").await;
    let pids = run_command(&host, "cat leader child").await;
    assert_eq!(
        host.stop("stubborn", GRACE).await.unwrap(),
        StopResult::Killed(JobExit::Signal(9)),
        "{userland:?}"
    );
    assert_eq!(
        host.status("stubborn").await.unwrap(),
        JobStatus::Ended(JobExit::Signal(9)),
        "{userland:?}"
    );
    for pid in pids.lines() {
        assert!(!is_alive(pid), "{userland:?}: process {pid} is alive");
    }
    assert_eq!(read_output(&host, "stubborn", 0).await.0, "up\n", "{userland:?}");
}

fn is_alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_work_on_the_shell_of_this_computer() {
    exercise_jobs(Userland::Own).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_work_on_busybox() {
    exercise_jobs(Userland::Busybox).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_work_on_bash() {
    exercise_jobs(Userland::Bash).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_work_without_setsid() {
    exercise_jobs(Userland::WithoutSetsid).await;
}

/// Waits until a command on the host succeeds.
async fn until(host: &Host, command: &str) {
    let started = Instant::now();
    let command = format!("cd; {command}");
    while host.run(&command, b"", LIMIT).await.unwrap().status != Some(0) {
        assert!(started.elapsed() < LIMIT, "`{command}` never succeeded");
    }
}

/// Kills every connection to the host, and waits until they are gone.
async fn kill_connections(sshd: &Sshd) {
    let started = Instant::now();
    while !sshd.sessions().is_empty() {
        assert!(started.elapsed() < LIMIT, "a session cannot be killed");
        sshd.signal_sessions("KILL");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_outlives_the_connection_and_is_read_on_from_the_same_byte() {
    let Some(sshd) = Sshd::start() else { return };
    let host = sshd.host().await;
    // It pauses half-way until the test continues it, however slow the computer is.
    let command = "i=0; while [ $i -lt 40 ]; do i=$((i+1)); echo out $i; echo err $i >&2; sleep 0.05; \
                   while [ $i -eq 20 ] && [ ! -e go ]; do sleep 0.1; done; done; exit 5";
    assert_eq!(host.start("long", command).await.unwrap(), StartResult::Started);
    let (journal, mut lines) = Journal::new();
    let reader = tokio::spawn(async move { host.follow_output("long", 0, &journal).await });
    let mut first = Vec::new();
    for _ in 0..4 {
        first.push(lines.recv().await.unwrap());
    }
    kill_connections(&sshd).await;
    let fault = reader.await.unwrap().unwrap_err();
    assert_eq!(fault.code, FaultCode::HostUnreachable, "{fault}");
    while let Some(line) = lines.recv().await {
        first.push(line);
    }
    let stored: u64 = first.iter().map(|line| line.data.len() as u64).sum();
    let part = |desired: Stream| {
        let lines = first.iter().filter(|line| line.stream == desired);
        String::from_utf8(lines.flat_map(|line| line.data.clone()).collect()).unwrap()
    };

    let host = sshd.host().await;
    assert!(matches!(host.status("long").await.unwrap(), JobStatus::Running { .. }));
    run_command(&host, "touch go").await;
    let (out, err, length) = read_output(&host, "long", stored).await;
    let complete = |name: &str| (1..=40).map(|i| format!("{name} {i}\n")).collect::<String>();
    assert_eq!(part(Stream::Stdout) + &out, complete("out"));
    assert_eq!(part(Stream::Stderr) + &err, complete("err"));
    assert!(stored > 0 && !out.is_empty(), "it was cut in the middle: {stored} of {length}");
    assert_eq!(host.status("long").await.unwrap(), JobStatus::Ended(JobExit::Code(5)));

    // The same bytes every time, from any offset.
    let all = read_log(&host, "long", 0).await;
    assert_eq!(all.len() as u64, length);
    for from in [0, 1, stored, length - 1, length, length + 10] {
        let rest = all.get(usize::try_from(from).unwrap()..).unwrap_or_default();
        assert_eq!(read_log(&host, "long", from).await, rest, "from {from}");
    }
}

/// The log as one text, in the order of its arrival.
async fn read_log(host: &Host, key: &str, from: u64) -> String {
    let (journal, mut lines) = Journal::new();
    let listener = tokio::spawn(async move {
        let mut text = Vec::new();
        while let Some(line) = lines.recv().await {
            text.extend(line.data);
        }
        String::from_utf8(text).unwrap()
    });
    host.follow_output(key, from, &journal).await.unwrap();
    drop(journal);
    listener.await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_stopped_before_its_start_never_starts() {
    let Some(sshd) = Sshd::start() else { return };
    let host = sshd.host().await;
    assert_eq!(host.stop("late", GRACE).await.unwrap(), StopResult::StoppedBeforeStart);
    assert_eq!(host.stop("late", GRACE).await.unwrap(), StopResult::StoppedBeforeStart);
    assert_eq!(host.start("late", "touch began").await.unwrap(), StartResult::StoppedBeforeStart);
    assert_eq!(host.status("late").await.unwrap(), JobStatus::StoppedBeforeStart);
    assert_eq!(read_output(&host, "late", 3).await, (String::new(), String::new(), 3));
    assert_ne!(host.run("cd; test -e began", b"", LIMIT).await.unwrap().status, Some(0));
    host.forget("late").await.unwrap();
    assert_eq!(host.start("late", "touch began").await.unwrap(), StartResult::Started);
    assert_eq!(settled(&host, "late").await, JobStatus::Ended(JobExit::Code(0)));
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_starts_and_stops_begin_a_job_at_most_once() {
    let Some(sshd) = Sshd::start() else { return };
    let mut hosts = Vec::new();
    for _ in 0..20 {
        hosts.push(sshd.host().await);
    }
    for round in 0..5 {
        let key = format!("race-{round}");
        let mut starts = JoinSet::new();
        let mut back = Vec::new();
        for (at, host) in hosts.into_iter().enumerate() {
            let key = key.clone();
            starts.spawn(async move {
                // In every second round some callers stop it.
                let stops = round % 2 == 1 && at % 5 == 0;
                let started = match stops {
                    true => Err(host.stop(&key, GRACE).await.unwrap()),
                    false => Ok(host
                        .start(&key, &format!("echo began >>{key}; sleep 0.1"))
                        .await
                        .unwrap()),
                };
                (host, started)
            });
        }
        let mut begun = 0;
        let mut stopped = 0;
        while let Some(done) = starts.join_next().await {
            let (host, started) = done.unwrap();
            back.push(host);
            match started {
                Ok(StartResult::Started) => begun += 1,
                Ok(StartResult::AlreadyStarted) => {}
                Ok(StartResult::StoppedBeforeStart) | Err(StopResult::StoppedBeforeStart) => {
                    stopped += 1
                }
                Err(
                    StopResult::AlreadyEnded(_) | StopResult::Terminated(_) | StopResult::Killed(_),
                ) => {}
                Err(StopResult::Lost(lost)) => panic!("round {round}: {lost:?}"),
            }
        }
        hosts = back;
        assert!(
            begun == 1 && stopped == 0 || begun == 0 && stopped == 20,
            "round {round}: {begun} begun, {stopped} stopped"
        );
        if begun == 1 {
            let status = settled(&hosts[0], &key).await;
            assert!(matches!(status, JobStatus::Ended(_)), "round {round}: {status:?}");
        }
        let times = run_command(&hosts[0], &format!("cat {key} 2>/dev/null")).await.lines().count();
        // A stop may come before the first output.
        assert!(
            times == begun || round % 2 == 1 && times <= begun,
            "round {round}: {times} of {begun}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_megabytes_cost_neither_our_memory_nor_the_hosts_disk() {
    const KEPT: u64 = 4 << 20;
    let Some(sshd) = Sshd::start() else { return };
    let settings = Settings { max_output: KEPT, ..sshd.settings() };
    let host = Host::connect(Route::direct(sshd.hop()), settings).await.unwrap();
    host.start("loud", "yes | head -c 200000000; echo done >ready; echo quiet >&2").await.unwrap();
    let before = memory_kib();
    let (out, err, length) = read_output(&host, "loud", 0).await;
    assert!(memory_kib() < before + 48 * 1024, "{before} KiB became {} KiB", memory_kib());
    assert_eq!(out.len() as u64, KEPT);
    assert!(out.as_bytes().chunks(2).all(|line| line == b"y\n"));
    let words = format!(
        "quiet\nfarrier: standard output was cut after {KEPT} bytes, the rest was not kept\n"
    );
    assert_eq!(err, words);
    assert_eq!(length, KEPT + words.len() as u64);
    assert_eq!(read_log(&host, "loud", length - 9).await, "not kept\n");
    // The command itself ran to its end.
    assert_eq!(host.status("loud").await.unwrap(), JobStatus::Ended(JobExit::Code(0)));
    assert_eq!(run_command(&host, "cat ready").await, "done");
    let folder = sshd.settings().folder.unwrap();
    let used: u64 = run_command(&host, &format!("du -sk {}", folder.as_str()))
        .await
        .split_whitespace()
        .next()
        .unwrap()
        .parse()
        .unwrap();
    assert!(used * 1024 < KEPT + (1 << 20), "{used} KiB");
    host.forget("loud").await.unwrap();
    assert_eq!(run_command(&host, &format!("ls -A {}", folder.as_str())).await, "");
}

/// The peak memory of this process.
fn memory_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_full_disk_nothing_begins() {
    if !needs_root() {
        return;
    }
    for userland in [Userland::Own, Userland::Busybox] {
        let Some(sshd) =
            Sshd::with(&SshdOptions { userland, disk_kib: Some(512), ..SshdOptions::default() })
        else {
            return;
        };
        let host = sshd.host().await;
        let disk = sshd.home.path().join("disk").display().to_string();
        assert_eq!(host.start("early", "echo hi").await.unwrap(), StartResult::Started);
        assert_eq!(settled(&host, "early").await, JobStatus::Ended(JobExit::Code(0)));
        run_command(&host, &format!("cat /dev/zero >{disk}/fill 2>/dev/null")).await;
        let fault = host.start("full", "touch began").await.unwrap_err();
        assert_eq!(fault.code, FaultCode::HostDiskFull, "{userland:?}: {fault}");
        assert_eq!(fault.code.effect_outcome(), EffectOutcome::NotApplied);
        assert_eq!(host.status("full").await.unwrap(), JobStatus::NeverStarted, "{userland:?}");
        assert_eq!(
            run_command(&host, &format!("ls -A {disk}/jobs")).await,
            "early",
            "{userland:?}: nothing is left behind"
        );
        run_command(&host, &format!("rm {disk}/fill")).await;
        assert_eq!(
            host.start("full", "echo hi").await.unwrap(),
            StartResult::Started,
            "{userland:?}"
        );

        // A job that fills the disk itself still has a status, and a log that reports the
        // truncation.
        let stored = format!("while ! test -s {disk}/jobs/greedy/job/out; do sleep 0.1; done");
        let fill = format!("cat /dev/zero >{disk}/fill; seq 1 100000; exit 9");
        let greedy = format!("echo first; {stored}; {fill}");
        host.start("greedy", &greedy).await.unwrap();
        let (out, err, _) = read_output(&host, "greedy", 0).await;
        assert!(out.starts_with("first\n"), "{userland:?}: {out}");
        assert!(err.contains("standard output was cut"), "{userland:?}: {err}");
        assert_eq!(
            host.status("greedy").await.unwrap(),
            JobStatus::Ended(JobExit::Code(9)),
            "{userland:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_whose_answer_is_lost_may_have_happened_and_did() {
    // The host is slow to sync its disk in the middle of a start.
    let slow = ("sync", "#!/bin/sh\ntouch syncing; sleep 2\n".to_string());
    let Some(sshd) = Sshd::with(&SshdOptions { shims: vec![slow], ..SshdOptions::default() })
    else {
        return;
    };
    let (host, other) = (sshd.host().await, sshd.host().await);
    let start = tokio::spawn(async move { host.start("lost", "echo once >>count").await });
    let folder = sshd.settings().folder.unwrap();
    until(&other, &format!("test -e {}/lost/job/syncing", folder.as_str())).await;
    kill_connections(&sshd).await;
    let fault = start.await.unwrap().unwrap_err();
    assert_eq!(
        (fault.code, fault.code.effect_outcome()),
        (FaultCode::AnswerLost, EffectOutcome::Unknown),
        "{fault}"
    );
    let host = sshd.host().await;
    assert!(matches!(host.status("lost").await.unwrap(), JobStatus::Running { .. }));
    assert_eq!(host.start("lost", "echo once >>count").await.unwrap(), StartResult::AlreadyStarted);
    assert_eq!(settled(&host, "lost").await, JobStatus::Ended(JobExit::Code(0)));
    assert_eq!(run_command(&host, "cat count").await, "once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_during_a_start_takes_effect() {
    for userland in [Userland::Own, Userland::WithoutSetsid] {
        let slow = ("sync", "#!/bin/sh\ntouch syncing; sleep 2\n".to_string());
        let Some(sshd) =
            Sshd::with(&SshdOptions { userland, shims: vec![slow], ..SshdOptions::default() })
        else {
            return;
        };
        let (host, other) = (sshd.host().await, sshd.host().await);
        let start = tokio::spawn(async move { host.start("slow", "touch began; sleep 60").await });
        let folder = sshd.settings().folder.unwrap();
        until(&other, &format!("test -e {}/slow/job/syncing", folder.as_str())).await;
        let stopped = other.stop("slow", GRACE).await.unwrap();
        assert!(
            matches!(
                stopped,
                StopResult::Terminated(JobExit::Signal(15))
                    | StopResult::Killed(JobExit::Signal(9))
            ),
            "{userland:?}: {stopped:?}"
        );
        assert_ne!(
            other.run("cd; test -e began", b"", LIMIT).await.unwrap().status,
            Some(0),
            "{userland:?}"
        );
        // If the process group is shared, the starter is stopped with it and cannot answer.
        drop(start.await.unwrap());
        let status = other.status("slow").await.unwrap();
        assert!(matches!(status, JobStatus::Ended(JobExit::Signal(_))), "{userland:?}: {status:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_is_cut_off_or_too_slow_may_have_happened() {
    let Some(sshd) = Sshd::start() else { return };
    let host = sshd.host().await;
    let fault = host.run("sleep 60", b"", Duration::from_secs(3)).await.unwrap_err();
    assert_eq!(
        (fault.code, fault.code.effect_outcome()),
        (FaultCode::StepTimeout, EffectOutcome::Unknown),
        "{fault}"
    );
    let fault = host.run("yes", b"", LIMIT).await.unwrap_err();
    assert_eq!(fault.code, FaultCode::AnswerGarbled, "{fault}");
    // Neither closed the connection.
    assert_eq!(run_command(&host, "echo still here").await, "still here");
    let other = sshd.host().await;
    let lost =
        tokio::spawn(async move { host.run("cd; touch running; sleep 60", b"", LIMIT).await });
    until(&other, "test -e running").await;
    kill_connections(&sshd).await;
    let fault = lost.await.unwrap().unwrap_err();
    assert_eq!(
        (fault.code, fault.code.effect_outcome()),
        (FaultCode::AnswerLost, EffectOutcome::Unknown),
        "{fault}"
    );
    // A lost read has done nothing; neither has a start that was never sent.
    assert_eq!(other.status("any").await.unwrap_err().code, FaultCode::HostUnreachable);
    assert_eq!(other.start("any", "true").await.unwrap_err().code, FaultCode::HostUnreachable);
    assert!(!other.is_open());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_host_times_out() {
    let Some(sshd) = Sshd::start() else { return };
    let settings = Settings {
        call_timeout: Duration::from_secs(10),
        keepalive_interval: Duration::from_secs(1),
        ..sshd.settings()
    };
    let host = Host::connect(Route::direct(sshd.hop()), settings).await.unwrap();
    // After its first answer every process exists that serves the connection.
    assert_eq!(run_command(&host, "echo awake").await, "awake");
    sshd.signal_sessions("STOP");
    let started = Instant::now();
    let fault = host.status("quiet").await.unwrap_err();
    assert_eq!(fault.code, FaultCode::HostUnreachable, "{fault}");
    while host.is_open() {
        assert!(started.elapsed() < LIMIT, "the silent host was not detected");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    sshd.signal_sessions("CONT");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_without_a_status_is_lost() {
    let Some(sshd) = Sshd::start() else { return };
    let host = sshd.host().await;
    let folder = sshd.settings().folder.unwrap();
    let job = |key: &str| format!("{}/{key}/job", folder.as_str());
    for key in ["rebooted", "gone", "torn"] {
        host.start(key, "echo said; sleep 600").await.unwrap();
        until(&host, &format!("test -s {}/samples", job(key))).await;
    }
    // As after a reboot of the host: its jobs belong to another boot.
    run_command(
        &host,
        &format!("echo 00000000-0000-0000-0000-000000000000 >{}/boot", job("rebooted")),
    )
    .await;
    assert_eq!(host.status("rebooted").await.unwrap(), JobStatus::Lost(LostReason::Rebooted));
    assert_eq!(read_output(&host, "rebooted", 0).await.0, "said\n");
    assert_eq!(host.stop("rebooted", GRACE).await.unwrap(), StopResult::Lost(LostReason::Rebooted));
    // The runner was killed; the job that it watched can still be stopped.
    let runner = run_command(&host, &format!("cat {}/runner", job("gone"))).await;
    send("KILL", runner.split(' ').next().unwrap().parse().unwrap());
    until(&host, &format!("test -n \"$(cat {}/runner)\"", job("gone"))).await;
    assert_eq!(settled(&host, "gone").await, JobStatus::Lost(LostReason::Gone));
    assert_eq!(host.start("gone", "echo again").await.unwrap(), StartResult::AlreadyStarted);
    let leader = run_command(&host, &format!("cat {}/leader", job("gone"))).await;
    let leader = leader.split(' ').next().unwrap().to_string();
    assert!(is_alive(&leader));
    assert_eq!(host.stop("gone", GRACE).await.unwrap(), StopResult::Lost(LostReason::Gone));
    assert!(!is_alive(&leader));
    assert_eq!(read_output(&host, "gone", 0).await.0, "said\n");
    // An incomplete status counts as none.
    run_command(&host, &format!("printf '0 5 0' >{}/status", job("torn"))).await;
    assert!(matches!(host.status("torn").await.unwrap(), JobStatus::Running { .. }));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_of_another_user_is_not_trusted() {
    let Some(sshd) = Sshd::start() else { return };
    let host = sshd.host().await;
    let disk = sshd.home.path().join("disk");
    run_command(&host, &format!("mkdir {0}/elsewhere && ln -s elsewhere {0}/jobs", disk.display()))
        .await;
    let refused = async |why: &str| {
        let fault = host.start("any", "true").await.unwrap_err();
        assert_eq!(fault.code, FaultCode::EffectFailed, "{why}: {fault}");
        assert!(fault.message.contains("is a link, belongs to another user"), "{why}: {fault}");
        assert_eq!(host.status("any").await.unwrap_err().code, FaultCode::EffectFailed, "{why}");
    };
    refused("a link").await;
    // A status that says that the job has ended well, in a folder of the right user.
    for mode in [777, 770, 702] {
        let there = format!("{}/jobs", disk.display());
        let plant = format!(
            "rm -rf {there} && mkdir -p {there}/any/job && echo '0 0 0 0 0 .' >{there}/any/job/status"
        );
        run_command(&host, &format!("{plant} && chmod {mode} {there}")).await;
        refused(&format!("others can write: {mode}")).await;
    }
    run_command(&host, &format!("chmod 755 {}/jobs", disk.display())).await;
    assert!(matches!(host.status("any").await.unwrap(), JobStatus::Ended(JobExit::Code(0))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_background_process_does_not_delay_the_end() {
    let Some(sshd) = Sshd::start() else { return };
    let host = sshd.host().await;
    host.start("daemon", "umask >mask; sleep 600 & echo $! >daemon; echo up").await.unwrap();
    let heartbeat =
        tokio::time::timeout(LIMIT, read_output(&host, "daemon", 0)).await.expect("an end");
    assert_eq!(heartbeat.0, "up\n");
    assert_eq!(host.status("daemon").await.unwrap(), JobStatus::Ended(JobExit::Code(0)));
    assert!(is_alive(&run_command(&host, "cat daemon").await));
    assert_eq!(run_command(&host, "cat mask").await, run_command(&host, "umask").await);
}
