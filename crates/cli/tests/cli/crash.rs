//! Killed in the middle: nothing is lost, nothing is done twice.

use crate::fleet::{Clients, Server, Setup, steps};
use crate::stage::{farrier, finish};
use proto::v1;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn a_reimage_survives_kill_9_in_the_middle() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(Setup::new(dir.path(), "fast"));
    let mut clients = server.clients().await;
    clients.in_maintenance("m-1").await;
    clients.fault(slow_repave()).await;
    let follower = farrier(
        &server.url(),
        &["reimage", "m-1", "--image", "ubuntu-2204", "--request-id", "r-1", "--timeout", "60s"],
    );
    let run = loop {
        let machine = clients.machine("m-1").await;
        let active = machine.status.unwrap().active_run_id;
        if !active.is_empty() {
            break clients.at_step(&active, "repave-os").await;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    let setup = server.kill();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let server = Server::start(setup);
    let mut clients = server.clients().await;

    let ended = clients.finished(&run.run_id).await;
    assert_eq!(ended.phase(), v1::run::Phase::Succeeded, "{ended:#?}");
    assert!(steps(&ended).iter().all(|(_, state)| *state == "SUCCEEDED"), "{ended:#?}");
    let applied = clients.applied(&run.run_id).await;
    assert_eq!(applied.len(), 5, "{applied:?}");
    assert!(applied.values().all(|count| *count == 1), "{applied:?}");

    // The follower saw it through, over the restart.
    let (code, stdout, stderr) = finish(follower);
    assert_eq!(code, 0, "{stdout}{stderr}");
    assert!(stdout.contains("connection lost"), "{stdout}");
    assert!(stdout.contains("✓ SUCCEEDED"), "{stdout}");
    // The same request again is answered with the same run, although the gate is still open.
    let again = clients
        .machines
        .reimage_machine(v1::ReimageMachineRequest {
            machine_id: "m-1".into(),
            request_id: "r-1".into(),
            image_ref: "ubuntu-2204".into(),
        })
        .await
        .unwrap()
        .into_inner();
    assert_eq!(again.operation_id, run.run_id);
    // Its history has no gap.
    let history = history(&clients, &run.run_id).await;
    let versions: Vec<i64> = history.iter().map(|entry| entry.version).collect();
    assert_eq!(versions, (1..=versions.len() as i64).collect::<Vec<_>>());
    assert!(history.iter().any(|entry| entry.message.contains("took over")), "{history:#?}");
    assert!(history.iter().all(|entry| !entry.decided_by.is_empty()));
}

/// A repave that takes longer than the server lives.
fn slow_repave() -> v1::SimFault {
    v1::SimFault {
        effect: "repave".into(),
        action: "slow".into(),
        delay_ms: 1_500,
        times: 1,
        ..Default::default()
    }
}

async fn history(clients: &Clients, id: &str) -> Vec<v1::HistoryEntry> {
    let mut explain =
        v1::explain_service_client::ExplainServiceClient::new(clients.channel.clone());
    let request = v1::ListHistoryRequest { id: id.into(), page_size: 1_000, ..Default::default() };
    explain.list_history(request).await.unwrap().into_inner().entries
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_again_and_again_under_load_nothing_is_lost_and_nothing_happens_twice() {
    const MACHINES: usize = 24;
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(Setup::new(dir.path(), "fast"));
    let mut clients = server.clients().await;
    for index in 0..MACHINES {
        clients.in_maintenance(&format!("m-{index}")).await;
    }
    let mut runs = Vec::new();
    for index in 0..MACHINES {
        let run = clients.start(&format!("m-{index}"), "REPAVE", "reimage").await;
        runs.push(run.run_id);
    }
    for round in 0..6_u64 {
        tokio::time::sleep(Duration::from_millis(40 + 70 * (round % 4))).await;
        server = Server::start(server.kill());
    }
    let mut clients = server.clients().await;
    for id in &runs {
        let ended = clients.finished(id).await;
        assert_eq!(ended.phase(), v1::run::Phase::Succeeded, "{ended:#?}");
        let applied = clients.applied(id).await;
        // One key for each of the five steps, and each acted once: no retry hides a repetition.
        assert_eq!(applied.len(), 5, "{applied:?}");
        assert!(applied.values().all(|count| *count == 1), "{applied:?}");
    }
    for index in 0..MACHINES {
        let machine = clients.machine(&format!("m-{index}")).await;
        assert_eq!(machine.status.unwrap().active_run_id, "");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_cancels_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut setup = Setup::new(dir.path(), "fast");
    setup.config = "[engine]\ngrace_ms = 100".into();
    let server = Server::start(setup);
    let mut clients = server.clients().await;
    clients.in_maintenance("m-1").await;
    clients.fault(slow_repave()).await;
    let run = clients.start("m-1", "REPAVE", "r").await;
    clients.at_step(&run.run_id, "repave-os").await;
    let setup = server.terminate();
    let server = Server::start(setup);
    let mut clients = server.clients().await;
    let ended = clients.finished(&run.run_id).await;
    assert_eq!(ended.phase(), v1::run::Phase::Succeeded, "{ended:#?}");
    assert!(clients.applied(&run.run_id).await.values().all(|count| *count == 1));
}
