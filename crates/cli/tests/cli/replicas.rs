//! Several servers on one PostgreSQL: they share the work, see each other's events, and take over.

use crate::fleet::{Home, Server, Setup, new_database, postgres};
use futures_util::StreamExt;
use proto::v1;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn replicas_share_the_work_and_take_over_from_the_dead() {
    const MACHINES: usize = 18;
    let Some(cluster) = postgres() else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut setup = Setup::new(dir.path(), "fast");
    setup.home = Home::Postgres(new_database(&cluster).await);
    setup.config = "[engine]\nlease_ms = 1500\nrenew_ms = 300".into();
    let one = Server::start(setup.clone());
    let two = Server::start(setup.replica("two"));
    let three = Server::start(setup.replica("three"));

    let mut first = one.clients().await;
    let mut second = two.clients().await;
    let request = v1::WatchRunsRequest { filter: "type=REPAVE".into(), ..Default::default() };
    let mut watch = second.runs.watch_runs(request).await.unwrap().into_inner();
    for index in 0..MACHINES {
        first.in_maintenance(&format!("m-{index}")).await;
    }
    let mut ids = Vec::new();
    for index in 0..MACHINES {
        ids.push(first.start(&format!("m-{index}"), "REPAVE", "reimage").await.run_id);
    }
    // The one that accepted them all dies with them in its hands.
    drop(first);
    drop(one.kill());
    let mut left: std::collections::BTreeSet<&str> = ids.iter().map(String::as_str).collect();
    let mut versions = std::collections::BTreeMap::new();
    while !left.is_empty() {
        let event = tokio::time::timeout(Duration::from_secs(30), watch.next());
        let run = event.await.expect("an event in time").unwrap().unwrap().snapshot.unwrap();
        let last = versions.insert(run.run_id.clone(), run.version).unwrap_or(0);
        assert_eq!(run.version, last + 1, "no event of {} is missing or doubled", run.run_id);
        if run.finished_at.is_some() {
            assert_eq!(run.phase(), v1::run::Phase::Succeeded, "{run:#?}");
            left.remove(run.run_id.as_str());
        }
    }
    let mut third = three.clients().await;
    for id in &ids {
        let applied = third.applied(id).await;
        assert!(applied.len() == 5 && applied.values().all(|count| *count == 1), "{applied:?}");
    }
}
