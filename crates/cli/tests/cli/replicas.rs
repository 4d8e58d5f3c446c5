//! Several replicas on one PostgreSQL: they share the work, see each other's events, and take over.

use crate::api::{plan, slow, ssh, step};
use crate::audit::{FailoverClient, RunWatcher, audit, in_maintenance, is_broken, log_of, names};
use crate::fleet::{Clients, Server, TEST_TIMEOUT, replicas};
use proto::v1;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tonic::{Code, Response};

/// The runs by the replica that has claimed them.
async fn holders(api: &mut Clients, runs: &[String]) -> BTreeMap<String, Vec<String>> {
    let mut holders: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for id in runs {
        holders.entry(api.why(id).await.held_by).or_default().push(id.clone());
    }
    holders
}

/// Uses the default lease, as in production.
#[tokio::test(flavor = "multi_thread")]
async fn replicas_share_the_work_and_take_over_from_the_dead() {
    const MACHINES: usize = 18;
    let dir = tempfile::tempdir().unwrap();
    let room = "[engine]\neager_in_flight = 3\nmax_in_flight = 10";
    let Some(mut servers) = replicas(dir.path(), &["one", "two", "three"], room).await else {
        return;
    };
    let mut first = servers[0].clients().await;
    let machines = names(MACHINES);
    in_maintenance(&first, &machines).await;
    let watcher = RunWatcher::start(FailoverClient::of(&servers[1..])).await;
    // Longer than the detection of a dead replica takes.
    first.fault(slow("*", "repave", 9_000)).await;
    let mut runs = Vec::new();
    for machine in &machines {
        runs.push(first.start(machine, "REPAVE", "r").await.run_id);
    }
    for id in &runs {
        first.at_step(id, "repave-os").await;
    }
    let shared = holders(&mut first, &runs).await;
    let counts: Vec<_> = shared.iter().map(|(name, runs)| (name, runs.len())).collect();
    println!("accepted by one, worked on by {counts:?}");
    assert!(shared.len() > 1 && !shared.contains_key(""), "{counts:?}");

    // The replica that accepted all runs is killed while it has claimed some.
    let lost = &shared["one"];
    drop(servers.remove(0).kill());
    let died = Instant::now();
    let mut second = servers[0].clients().await;
    for id in lost {
        let reported = |entry: &v1::HistoryEntry| entry.message.contains("took over");
        while !second.history(id).await.iter().any(reported) {
            assert!(died.elapsed() < TEST_TIMEOUT, "nobody took {id} over");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    println!("{} runs of the dead were taken over after {:?}", lost.len(), died.elapsed());
    watcher.expect_all_events(&runs).await;
    audit(&servers[1].clients().await, &runs).await;
}

/// Starts one run after the other on a machine until the time is over.
async fn busy(
    mut through: FailoverClient,
    machine: String,
    stop: Instant,
) -> (Vec<String>, FailoverClient) {
    let mut runs = Vec::new();
    while Instant::now() < stop {
        let kind = ["REBOOT", "REPAVE"][runs.len() % 2];
        let run = through.start(&machine, kind, &format!("r-{}", runs.len())).await;
        through.finished(&run).await;
        runs.push(run);
        through.use_next_replica();
    }
    (runs, through)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_restart_under_load_is_not_noticed_but_for_retries() {
    const MACHINES: usize = 12;
    let dir = tempfile::tempdir().unwrap();
    let Some(mut servers) = replicas(dir.path(), &["one", "two", "three"], "").await else {
        return;
    };
    let machines = names(MACHINES);
    in_maintenance(&servers[0].clients().await, &machines).await;
    let through = FailoverClient::of(&servers);
    let watcher = RunWatcher::start(through.clone()).await;
    let stop = Instant::now() + Duration::from_secs(6);
    let load =
        machines.into_iter().map(|machine| tokio::spawn(busy(through.clone(), machine, stop)));
    let load: Vec<_> = load.collect();
    for _ in 0..servers.len() {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let server = servers.remove(0);
        let setup = tokio::task::spawn_blocking(move || server.terminate()).await.unwrap();
        servers.push(Server::start(setup));
    }
    let (mut runs, mut refusals) = (Vec::new(), Vec::new());
    for one in load {
        let (started, through) = one.await.unwrap();
        runs.extend(started);
        refusals.extend(through.refusals);
    }
    // A connection that is opened or used just when the server closes it breaks, and the client
    // library reports UNKNOWN or CANCELLED. A status from the server itself must be UNAVAILABLE.
    let (broken, message): (Vec<_>, Vec<_>) = refusals.iter().partition(|status| is_broken(status));
    let reset = broken.iter().filter(|status| status.code() != Code::Unavailable);
    let (away, reset) = (refusals.len() - reset.clone().count(), reset.count());
    println!("{} runs; asked again {away} times, and {reset} times after a reset", runs.len());
    assert!(message.iter().all(|status| status.code() == Code::Unavailable), "{message:?}");
    watcher.expect_all_events(&runs).await;
    audit(&servers[0].clients().await, &runs).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_can_be_followed_through_a_replica_that_does_not_do_the_work() {
    let dir = tempfile::tempdir().unwrap();
    let Some(servers) = replicas(dir.path(), &["one", "two"], "").await else { return };
    let (mut first, mut second) = (servers[0].clients().await, servers[1].clients().await);
    let steps = ["a", "b", "c"].map(|name| step(name, ssh(&format!("echo {name}"))));
    first.try_plan(plan("talk", steps.to_vec())).await.unwrap();
    first.in_maintenance("m-1").await;
    first.fault(slow("m-1", "ssh", 1_000)).await;
    let watcher = RunWatcher::start(FailoverClient::of(&servers[1..])).await;
    let run = first.start_plan("m-1", "talk", "r").await.run_id;
    // Log lines arrive while the run is executed by the other replica.
    let request = v1::StreamRunLogsRequest { run_id: run.clone(), ..Default::default() };
    let mut live = second.runs.stream_run_logs(request).await.map(Response::into_inner).unwrap();
    let mut followed = live.message().await.unwrap().unwrap().data;
    let now = second.why(&run).await;
    assert_eq!(now.held_by, "one", "{now:#?}");
    while let Some(chunk) = live.message().await.unwrap() {
        followed.extend(chunk.data);
    }
    let followed = String::from_utf8(followed).unwrap();
    assert_eq!(followed, log_of(&mut first, &run, true).await);
    for name in ["a", "b", "c"] {
        assert_eq!(followed.matches(&format!("$ echo {name}\n")).count(), 1, "{followed}");
    }
    let runs = [run];
    watcher.expect_all_events(&runs).await;
    audit(&second, &runs).await;
}
