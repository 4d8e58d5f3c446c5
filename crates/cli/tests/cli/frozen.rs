//! A replica that is stopped for longer than its lease, and then continues.

use crate::api::slow;
use crate::audit::{audit, in_maintenance, names};
use crate::fleet::{Clients, SHORT_LEASE, Server, TEST_TIMEOUT, replicas};
use proto::v1;
use std::time::{Duration, Instant};

/// Waits until a replica has logged these words.
async fn wait_for_log(server: &Server, words: &str) {
    let started = Instant::now();
    while !server.log().contains(words) {
        assert!(started.elapsed() < TEST_TIMEOUT, "{words:?} was not said:\n{}", server.log());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn histories(api: &mut Clients, runs: &[String]) -> Vec<Vec<v1::HistoryEntry>> {
    let mut histories = Vec::new();
    for id in runs {
        histories.push(api.history(id).await);
    }
    histories
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_frozen_past_its_lease_writes_nothing_when_it_wakes() {
    const MACHINES: usize = 12;
    let dir = tempfile::tempdir().unwrap();
    let names_of_two = ["one", "two"];
    let Some(servers) = replicas(dir.path(), &names_of_two, SHORT_LEASE).await else { return };
    let [one, two] = &servers[..] else { panic!("two were asked for") };
    let (mut first, mut second) = (one.clients().await, two.clients().await);
    let machines = names(MACHINES);
    in_maintenance(&first, &machines).await;
    // Some runs wait for hardware when the replica is stopped; the others are at random points.
    first.fault(slow("m-1*", "repave", 5_000)).await;
    let mut runs = Vec::new();
    for machine in &machines {
        runs.push(first.start(machine, "REPAVE", "r").await.run_id);
    }
    first.at_step(&runs[1], "repave-os").await;
    assert_eq!(first.why(&runs[1]).await.held_by, "one");
    one.freeze();
    for id in &runs {
        second.finished(id).await;
    }
    audit(&second, &runs).await;
    let history = second.history(&runs[1]).await;
    assert!(history.iter().any(|entry| entry.message.contains("took over")), "{history:#?}");
    let before = histories(&mut second, &runs).await;

    one.resume();
    wait_for_log(one, "given up for dead").await;
    // The replica processes new requests again.
    let reboot = first.start("m-0", "REBOOT", "afterwards").await.run_id;
    audit(&first, &[reboot]).await;
    // For its lost claims it has written nothing and repeated no effect.
    assert_eq!(histories(&mut first, &runs).await, before);
    audit(&first, &runs).await;
    assert!(two.log().contains("gave up for dead"), "{}", two.log());
}
