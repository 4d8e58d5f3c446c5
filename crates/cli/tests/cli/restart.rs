//! PostgreSQL is restarted during the work, both hard and gracefully.

use crate::audit::{FailoverClient, RunWatcher, audit, in_maintenance, names};
use crate::cluster::Cluster;
use crate::fleet::{DatabaseKind, SHORT_LEASE, Server, Setup, new_database};
use proto::v1;
use std::time::{Duration, Instant};
use tonic::Code;

fn all() -> v1::ListRunsRequest {
    v1::ListRunsRequest::default()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_postgres_costs_refusals_and_nothing_else() {
    const MACHINES: usize = 16;
    let Some(mut cluster) = Cluster::start() else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut setup = Setup::new(dir.path(), "fast");
    setup.home = DatabaseKind::Postgres(new_database(&cluster.url()).await);
    setup.config = SHORT_LEASE.into();
    let servers = [Server::start(setup.replica("one")), Server::start(setup.replica("two"))];
    let machines = names(MACHINES);
    in_maintenance(&servers[0].clients().await, &machines).await;
    let through = FailoverClient::of(&servers);
    let watcher = RunWatcher::start(through.clone()).await;
    let work = machines.into_iter().map(|machine| {
        let mut through = through.clone();
        tokio::spawn(async move {
            let mut runs = Vec::new();
            for (kind, request) in [("REPAVE", "a"), ("REBOOT", "b"), ("REPAVE", "c")] {
                let run = through.start(&machine, kind, request).await;
                through.finished(&run).await;
                runs.push(run);
            }
            (runs, through.refusals)
        })
    });
    let work: Vec<_> = work.collect();
    for (with, away) in [("QUIT", 300), ("INT", 0), ("QUIT", 1_800)] {
        tokio::time::sleep(Duration::from_millis(250)).await;
        let away = Duration::from_millis(away);
        // On the test's own thread: the kernel ends PostgreSQL with the thread that started it.
        tokio::task::block_in_place(|| cluster.restart(with, away));
        let back = Instant::now();
        through.clone().call(|mut api| async move { api.runs.list_runs(all()).await }).await;
        println!("{with}: answered again {:?} after PostgreSQL was back", back.elapsed());
    }
    let back = Instant::now();
    let (mut runs, mut refusals) = (Vec::new(), Vec::new());
    for one in work {
        let (started, refused) = one.await.unwrap();
        runs.extend(started);
        refusals.extend(refused);
    }
    println!("{} refusals meanwhile; all ended {:?} later", refusals.len(), back.elapsed());
    assert!(!refusals.is_empty(), "nobody noticed");
    // The Farrier servers kept running, so every refusal is their own UNAVAILABLE.
    for status in &refusals {
        assert_eq!(status.code(), Code::Unavailable, "{status:?}");
        assert!(status.message().contains("database"), "{status:?}");
    }
    watcher.expect_all_events(&runs).await;
    audit(&servers[1].clients().await, &runs).await;
}
