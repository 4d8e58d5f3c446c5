//! Runs a program on the node: with a deadline, with its output in the log, and without leftovers.
//!
//! A program leads its own process group, and every process that it starts inherits a mark in its
//! environment. When it ends or must end, the group is killed, and so is every process outside the
//! group with the mark. A restarted agent finds leftovers of its predecessor in the same way.
//! Daemons must be started by systemd, not by a hook.

use super::deadline::{Halt, Patience};
use super::log::Log;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid,
};
use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The environment variable that marks the agent's processes.
const MARK: &str = "FARRIER_AGENT_MARK";
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// The time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(3);
/// How long to wait for a killed process to disappear.
const LAST_WAIT: Duration = Duration::from_secs(5);
/// A longer line is logged in parts.
const MAX_LINE_BYTES: u64 = 8 * 1024;
/// The limit of attempts against a program that starts processes faster than they are killed.
const MAX_ROUNDS: usize = 50;
const MAX_ENVIRONMENT_BYTES: u64 = 4 * 1024 * 1024;

#[derive(Debug)]
pub enum Stray {
    Halt(Halt),
    /// It could not be started, or its state is lost.
    Lost(io::Error),
}

/// Runs a program to its end, with its output in the log.
pub fn run(
    mut command: Command,
    mark: &str,
    patience: Patience,
    log: &Arc<Log>,
) -> Result<ExitStatus, Stray> {
    let (reader, writer) = io::pipe().map_err(Stray::Lost)?;
    let second = writer.try_clone().map_err(Stray::Lost)?;
    command.stdin(Stdio::null()).stdout(writer).stderr(second).process_group(0).env(MARK, mark);
    let mut child = command.spawn().map_err(Stray::Lost)?;
    // It holds the write end of the pipe, which only the program may have.
    drop(command);
    let log = log.clone();
    let listener = thread::spawn(move || listen(reader, &log));
    let ended = wait(&child, patience);
    if ended.is_err() {
        signal_group(&child, Signal::TERM);
        let stop = AtomicBool::new(false);
        let _ = wait(&child, Patience::new(GRACE, &stop));
    }
    // The leader has not been reaped yet, so its process id cannot have been reused.
    signal_group(&child, Signal::KILL);
    kill_marked(mark);
    let status = reap(&mut child);
    finish_listening(listener);
    ended?;
    status
}

fn wait(child: &Child, patience: Patience) -> Result<(), Stray> {
    let pid = Pid::from_child(child);
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    loop {
        match waitid(WaitId::Pid(pid), look) {
            Ok(Some(_)) => return Ok(()),
            Ok(None) => patience.sleep(LOOK_EVERY).map_err(Stray::Halt)?,
            Err(error) => return Err(Stray::Lost(error.into())),
        }
    }
}

/// Reaps a program that has ended or was killed. One that hangs in the kernel is given up.
fn reap(child: &mut Child) -> Result<ExitStatus, Stray> {
    let since = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) if since.elapsed() > LAST_WAIT => {
                return Err(Stray::Lost(io::Error::other("it cannot be killed")));
            }
            Ok(None) => thread::sleep(LOOK_EVERY),
            Err(error) => return Err(Stray::Lost(error)),
        }
    }
}

fn signal_group(child: &Child, signal: Signal) {
    // An empty group is fine.
    let _ = kill_process_group(Pid::from_child(child), signal);
}

/// Logs the output line by line, until all writers are gone.
fn listen(reader: impl Read, log: &Log) {
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    while let Ok(1..) = Read::take(&mut reader, MAX_LINE_BYTES).read_until(b'\n', &mut line) {
        log.add(&String::from_utf8_lossy(&line));
        line.clear();
    }
}

fn finish_listening(listener: JoinHandle<()>) {
    let since = Instant::now();
    while !listener.is_finished() && since.elapsed() < LAST_WAIT {
        thread::sleep(LOOK_EVERY);
    }
    if listener.is_finished() {
        let _ = listener.join();
    }
}

/// Kills all processes with this mark.
pub fn kill_marked(mark: &str) {
    let entry = format!("{MARK}={mark}").into_bytes();
    for _ in 0..MAX_ROUNDS {
        let found: Vec<Pid> = processes().filter(|pid| has_entry(*pid, &entry)).collect();
        if found.is_empty() {
            return;
        }
        for pid in found {
            let _ = kill_process(pid, Signal::KILL);
        }
        thread::sleep(LOOK_EVERY);
    }
}

fn processes() -> impl Iterator<Item = Pid> {
    let own = rustix::process::getpid();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(Pid::from_raw)
        .filter(move |pid| *pid != own)
}

/// A zombie has no environment.
fn has_entry(pid: Pid, entry: &[u8]) -> bool {
    let Ok(file) = fs::File::open(format!("/proc/{}/environ", pid.as_raw_nonzero())) else {
        return false;
    };
    let mut environment = Vec::new();
    let _ = file.take(MAX_ENVIRONMENT_BYTES).read_to_end(&mut environment);
    environment.split(|byte| *byte == 0).any(|found| found == entry)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    /// A unique mark.
    fn mark() -> String {
        crate::random::new_uuid().unwrap()
    }

    fn marked(mark: &str) -> usize {
        let entry = format!("{MARK}={mark}").into_bytes();
        processes().filter(|pid| has_entry(*pid, &entry)).count()
    }

    #[test]
    fn both_outputs_are_heard_and_the_status_is_its_own() {
        let (stop, log) = (AtomicBool::new(false), Arc::new(Log::default()));
        let patience = Patience::new(Duration::MAX, &stop);
        let script = "echo one; echo two >&2; printf three; exit 7";
        let status = run(shell(script), &mark(), patience, &log).unwrap();
        assert_eq!(status.code(), Some(7));
        assert_eq!(log.text(), "one\ntwo\nthree");
        let missing = run(Command::new("/nowhere"), &mark(), patience, &log);
        assert!(matches!(missing, Err(Stray::Lost(_))));
    }

    #[test]
    fn nobody_outlives_a_program_that_ends() {
        let (stop, log, mark) = (AtomicBool::new(false), Arc::new(Log::default()), mark());
        let patience = Patience::new(Duration::MAX, &stop);
        let script = "sleep 3600 & setsid sleep 3600 & exit 0";
        assert!(run(shell(script), &mark, patience, &log).unwrap().success());
        assert_eq!(marked(&mark), 0);
    }

    #[test]
    fn a_program_that_is_late_or_not_wanted_goes_with_its_children() {
        let stop = AtomicBool::new(false);
        let script = "trap '' TERM; sleep 3600 & setsid sleep 3600 & echo ready; wait";
        let (log, own) = (Arc::new(Log::default()), mark());
        let late = Patience::new(Duration::from_millis(200), &stop);
        assert!(matches!(run(shell(script), &own, late, &log), Err(Stray::Halt(Halt::Late))));
        assert_eq!(marked(&own), 0);

        let (log, own) = (Arc::new(Log::default()), mark());
        let patience = Patience::new(Duration::MAX, &stop);
        thread::scope(|scope| {
            let running = scope.spawn(|| run(shell(script), &own, patience, &log));
            while !log.text().contains("ready") {
                thread::sleep(LOOK_EVERY);
            }
            stop.store(true, Ordering::Relaxed);
            assert!(matches!(running.join().unwrap(), Err(Stray::Halt(Halt::Stopped))));
        });
        assert_eq!(marked(&own), 0);
    }

    #[test]
    fn a_mark_is_found_whole() {
        let mark = mark();
        let mut child = shell("sleep 3600").env(MARK, &mark).spawn().unwrap();
        // The process has no environment until the kernel has set it up.
        while marked(&mark) == 0 {
            thread::sleep(LOOK_EVERY);
        }
        kill_marked(&mark[..mark.len() - 1]);
        assert!(child.try_wait().unwrap().is_none());
        kill_marked(&mark);
        assert!(!child.wait().unwrap().success());
    }
}
