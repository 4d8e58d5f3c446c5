//! The server is killed in the middle: nothing is lost and nothing is executed twice.

use crate::audit::{FailoverClient, RunWatcher, SeededRandom, audit, in_maintenance, names};
use crate::fleet::{SHORT_LEASE, Server, Setup, replicas, steps};
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
    let active = |machine: &v1::Machine| machine.status.clone().unwrap().active_run_id;
    let machine = clients.machine_until("m-1", |machine| !active(machine).is_empty()).await;
    let run = clients.at_step(&active(&machine), "repave-os").await;
    let setup = server.kill();
    let server = Server::start(setup);
    let mut clients = server.clients().await;

    let ended = clients.finished(&run.run_id).await;
    assert!(steps(&ended).iter().all(|(_, state)| *state == "SUCCEEDED"), "{ended:#?}");
    audit(&clients, std::slice::from_ref(&run.run_id)).await;

    // The client followed the run to its end across the restart.
    let (code, stdout, stderr) = finish(follower);
    assert_eq!(code, 0, "{stdout}{stderr}");
    assert!(stdout.contains("connection lost"), "{stdout}");
    assert!(stdout.contains("connected again"), "{stdout}");
    assert!(stdout.contains("✓ SUCCEEDED"), "{stdout}");
    // The same request returns the same run, although the gate is still open.
    let again = clients
        .machines
        .reimage_machine(v1::ReimageMachineRequest {
            machine_id: "m-1".into(),
            request_id: "r-1".into(),
            image_ref: "ubuntu-2204".into(),
            ..Default::default()
        })
        .await
        .unwrap()
        .into_inner();
    assert_eq!(again.operation_id, run.run_id);
    let history = clients.history(&run.run_id).await;
    assert!(history.iter().any(|entry| entry.message.contains("took over")), "{history:#?}");
}

/// A repave that takes longer than the server runs.
fn slow_repave() -> v1::SimFault {
    v1::SimFault {
        effect: "repave".into(),
        action: v1::SimAction::Slow.into(),
        delay_ms: 3_000,
        times: 1,
        ..Default::default()
    }
}

/// Reimages and then reboots every machine while servers are killed at random moments, from the
/// seed, and restarted. Audits the result.
async fn killed_at_random(mut servers: Vec<Server>, seed: u64) {
    const MACHINES: usize = 24;
    const KILLS: usize = 8;
    let mut dice = SeededRandom::seeded(seed);
    let machines = names(MACHINES);
    let mut clients = servers[0].clients().await;
    in_maintenance(&clients, &machines).await;
    // On a busy computer too, work is in somebody's hands when the kills strike.
    clients.fault(v1::SimFault { times: 24, ..slow_repave() }).await;
    let through = FailoverClient::of(&servers);
    let watcher = RunWatcher::start(through.clone()).await;
    let work = machines.into_iter().enumerate().map(|(index, machine)| {
        let mut through = through.clone();
        (0..index).for_each(|_| through.use_next_replica());
        tokio::spawn(async move {
            let reimage = through.start(&machine, "REPAVE", "reimage").await;
            through.finished(&reimage).await;
            let reboot = through.start(&machine, "REBOOT", "reboot").await;
            // A repeated request, as of a client that lost the response, returns the same run.
            assert_eq!(through.start(&machine, "REBOOT", "reboot").await, reboot);
            [reimage, reboot]
        })
    });
    let work: Vec<_> = work.collect();
    for _ in 0..KILLS {
        tokio::time::sleep(Duration::from_millis(20 + dice.below(250))).await;
        let victim = dice.below(servers.len() as u64) as usize;
        let setup = servers.remove(victim).kill();
        servers.insert(victim, Server::start(setup));
    }
    let mut runs = Vec::new();
    for one in work {
        runs.extend(one.await.unwrap());
    }
    watcher.expect_all_events(&runs).await;
    let mut api = servers[0].clients().await;
    let mut struck = 0;
    for id in &runs {
        struck +=
            usize::from(api.history(id).await.iter().any(|one| one.message.contains("took over")));
    }
    println!("{struck} of {} runs were in the hands of somebody who died", runs.len());
    assert!(struck > 0, "no kill struck any work");
    audit(&api, &runs).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_random_moments_nothing_is_lost_and_nothing_happens_twice() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(Setup::new(dir.path(), "fast"));
    killed_at_random(vec![server], 0xfa_44_1e_40).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_killed_at_random_moments_lose_nothing_and_repeat_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let names = ["one", "two", "three"];
    let Some(servers) = replicas(dir.path(), &names, SHORT_LEASE).await else { return };
    killed_at_random(servers, 0xfa_44_1e_41).await;
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
    let clients = server.clients().await;
    audit(&clients, &[run.run_id]).await;
}
