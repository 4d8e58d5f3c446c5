//! The record of a disk that is written: true after a crash, a failure and a cancel, and what may
//! be done with the machine afterwards.

use crate::audit::RepeatedCalls;
use crate::clients::Client;
use crate::test_env::{Process, TestEnv, simulate};
use engine::admission::StartRequest;
use model::condition::ConditionType;
use model::gate::{Gate, Overrides};
use model::id::{MachineId, RunId};
use model::machine::Phase;
use model::plan::{Params, RunType};
use model::refusal::Refusal;
use model::run::RunPhase;
use model::run::actions::{Action, Requester, RestartMode};
use providers::sim::{self, FaultRule};
use std::time::Duration;
use store::StoreError;

const MACHINE: &str = "m-1";

/// A machine in maintenance with an image.
async fn imaged_machine() -> (TestEnv, Process, Client) {
    let env = TestEnv::new(1).await;
    let process = env.boot("one").await;
    env.register(&process.engine, MACHINE).await;
    let client = Client::new(&process.engine);
    for (run_type, request) in
        [(RunType::EnterMaintenance, "enter"), (RunType::Reimage, "first image")]
    {
        let run = client.start(MACHINE, run_type, request.into()).await.expect("accepted");
        assert_eq!(client.wait_until_ended(&run).await.phase(), RunPhase::Succeeded);
    }
    assert_eq!(provisioned(&env).await, (true, "Image:ubuntu-2204".to_string()));
    (env, process, client)
}

async fn provisioned(env: &TestEnv) -> (bool, String) {
    let machine = env.machine(MACHINE).await;
    let known = machine.conditions.get(ConditionType::Provisioned).expect("it is known");
    (known.status, known.reason.clone())
}

/// Waits until the hardware writes the disk for this run.
async fn wait_until_writing(env: &TestEnv, run: &RunId) {
    let key = format!("{run}/repave-os/1");
    while env.sim.effects(&key).expect("the effect counts").is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn leave(process: &Process, overrides: Overrides) -> Result<RunId, Refusal> {
    let start = StartRequest {
        machine_id: MachineId::trusted(MACHINE),
        request_id: format!("leave {}", overrides.reason()),
        run_type: RunType::ExitMaintenance,
        plan_id: None,
        params: Params::new(),
        overrides,
        initiator: "ada".into(),
    };
    match process.engine.runs().start(start).await {
        Ok(started) => Ok(started.run.spec.id),
        Err(StoreError::Refused(refusal)) => Err(refusal),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_crash_in_the_middle_of_a_write_leaves_a_true_record() {
    simulate(async {
        let (env, process, client) = imaged_machine().await;
        let run = client.start(MACHINE, RunType::Reimage, "second".into()).await.expect("accepted");
        wait_until_writing(&env, &run).await;
        process.injector.kill();
        assert_eq!(provisioned(&env).await, (false, format!("Writing:ubuntu-2204:{run}")));
        // One commit has the intent of the run and the change of the machine.
        let data = env.machine_data(MACHINE).await;
        let cleared = data.history.last().expect("an event");
        assert!(cleared.message.contains("step repave-os started"), "{cleared:?}");
        let of_run = data.runs.iter().find(|stored| stored.run.spec.id == run).expect("the run");
        let intended = of_run.history.last().expect("an event");
        assert_eq!((&intended.message, intended.cursor.tx), (&cleared.message, cleared.cursor.tx));

        let other = env.boot("two").await;
        client.switch_to(&other.engine);
        assert_eq!(client.wait_until_ended(&run).await.phase(), RunPhase::Succeeded);
        assert_eq!(provisioned(&env).await, (true, "Image:ubuntu-2204".to_string()));
        assert_eq!(env.machine(MACHINE).await.open_disk_write, None);
        assert_eq!(env.audit(RepeatedCalls::Forbidden).await, Vec::<String>::new());
    });
}

#[test]
fn a_half_written_disk_needs_an_override_to_go_into_service() {
    simulate(async {
        let (env, process, client) = imaged_machine().await;
        let run = client.start(MACHINE, RunType::Reimage, "second".into()).await.expect("accepted");
        wait_until_writing(&env, &run).await;
        // Some time on the simulated clock, so that the write has made progress.
        tokio::time::sleep(Duration::from_millis(150)).await;
        client.act(&run, Action::Cancel).await;
        assert_eq!(client.wait_until_ended(&run).await.phase(), RunPhase::Canceled);
        let machine = env.machine(MACHINE).await;
        let write = machine.open_disk_write.clone().expect("the write did not finish");
        let percent = write.percent.expect("the simulator reports it");
        assert!((10..100).contains(&percent), "{percent}");
        let reason = format!("Unfinished:ubuntu-2204:{percent}%:{run}");
        assert_eq!(provisioned(&env).await, (false, reason));

        let refusal = leave(&process, Overrides::default()).await.expect_err("refused");
        assert_eq!(refusal.reason.as_str(), "UNFINISHED_DISK");
        assert!(refusal.message.contains(&format!("it stopped at {percent} %")), "{refusal}");
        let only_health = Overrides::of(&[Gate::Health], "a test rig");
        let refusal = leave(&process, only_health).await.expect_err("refused");
        assert_eq!(refusal.gate, Some(Gate::UnfinishedDisk));

        let rig = Overrides::of(&[Gate::UnfinishedDisk], "it boots from the network");
        let left = leave(&process, rig).await.expect("accepted");
        assert_eq!(client.wait_until_ended(&left).await.phase(), RunPhase::Succeeded);
        let machine = env.machine(MACHINE).await;
        assert_eq!((machine.phase, machine.open_disk_write), (Phase::Ready, Some(write)));
        let note = "; gate unfinished-disk overridden by ada: it boots from the network";
        for id in [MACHINE, left.as_str()] {
            let history = process.engine.history(id, 0, 100).await.expect("the history");
            assert!(history.iter().any(|event| event.message.ends_with(note)), "{id}: {history:?}");
        }
        assert_eq!(env.audit(RepeatedCalls::Forbidden).await, Vec::<String>::new());
    });
}

/// The hardware refuses the write before it begins: the image that was there is still there.
#[test]
fn a_write_that_never_began_leaves_the_image_that_was_there() {
    simulate(async {
        let (env, process, client) = imaged_machine().await;
        let rule =
            FaultRule { effect: "repave".into(), times: 0, ..FaultRule::new(sim::Action::Fail) };
        env.sim.add_fault(rule).expect("a rule");
        let run = client.start(MACHINE, RunType::Reimage, "second".into()).await.expect("accepted");
        assert_eq!(client.wait_until_ended(&run).await.phase(), RunPhase::Failed);
        assert_eq!(provisioned(&env).await, (true, "Image:ubuntu-2204".to_string()));
        assert_eq!(env.machine(MACHINE).await.open_disk_write, None);
        let why = process.engine.explain(MACHINE).await.expect("explained").explanation;
        assert!(!format!("{why:?}").contains("half written"), "{why:?}");
        leave(&process, Overrides::default()).await.expect("accepted");
    });
}

#[test]
fn a_failed_write_is_open_until_another_one_ends() {
    simulate(async {
        let (env, process, client) = imaged_machine().await;
        let run = client.start(MACHINE, RunType::Reimage, "second".into()).await.expect("accepted");
        wait_until_writing(&env, &run).await;
        client.act(&run, Action::Cancel).await;
        assert_eq!(client.wait_until_ended(&run).await.phase(), RunPhase::Canceled);
        assert!(!provisioned(&env).await.0);
        leave(&process, Overrides::default()).await.expect_err("refused");
        env.sim.clear_faults(None).expect("cleared");
        let run = client.start(MACHINE, RunType::Reimage, "third".into()).await.expect("accepted");
        assert_eq!(client.wait_until_ended(&run).await.phase(), RunPhase::Succeeded);
        assert_eq!(provisioned(&env).await, (true, "Image:ubuntu-2204".to_string()));
        leave(&process, Overrides::default()).await.expect("accepted");
    });
}

/// A machine that was never imaged here has the system that it came with.
#[test]
fn a_machine_that_was_never_imaged_may_leave() {
    simulate(async {
        let env = TestEnv::new(1).await;
        let process = env.boot("one").await;
        env.register(&process.engine, MACHINE).await;
        let client = Client::new(&process.engine);
        let enter = client.start(MACHINE, RunType::EnterMaintenance, "enter".into()).await;
        client.wait_until_ended(&enter.expect("accepted")).await;
        let left = leave(&process, Overrides::default()).await.expect("accepted");
        assert_eq!(client.wait_until_ended(&left).await.phase(), RunPhase::Succeeded);
        let explained = process.engine.explain(MACHINE).await.expect("explained");
        let note = "no image was installed on it here: it has the system that it came with";
        assert_eq!(explained.explanation.notes, [note]);
    });
}

/// The simulator lets a write fail on its way: the record and the explanation say where it stopped,
/// and the printed command repairs it.
#[test]
fn a_write_that_fails_on_its_way_says_where_it_stopped() {
    simulate(async {
        let (env, process, client) = imaged_machine().await;
        let rule = FaultRule {
            effect: "repave".into(),
            at_percent: 44,
            ..FaultRule::new(sim::Action::Fail)
        };
        env.sim.add_fault(rule).expect("a rule");
        let run = client.start(MACHINE, RunType::Reimage, "halfway".into()).await.unwrap();
        assert_eq!(client.wait_until_ended(&run).await.phase(), RunPhase::Failed);
        assert_eq!(provisioned(&env).await, (false, format!("Unfinished:ubuntu-2204:44%:{run}")));
        let told = process.engine.explain(MACHINE).await.expect("explained").explanation;
        let words = format!("its disk is half written: {run} did not finish writing ubuntu-2204");
        assert!(told.headline.contains(&words), "{}", told.headline);
        assert!(told.headline.contains("it stopped at 44 %"), "{}", told.headline);
        // Nothing was applied, and the key stays used up.
        for effect in env.sim.effects(&format!("{run}/repave-os")).expect("the counts") {
            assert_eq!(effect.applied, 0, "{effect:?}");
        }
        env.sim.clear_faults(None).expect("cleared");
        let (runs, who) =
            (process.engine.runs(), Requester { by: "ada".into(), reason: String::new() });
        let again = runs.restart(run, RestartMode::Rerun, "again".into(), who).await;
        let again = again.expect("accepted").run.spec.id;
        assert_eq!(client.wait_until_ended(&again).await.phase(), RunPhase::Succeeded);
        assert_eq!(provisioned(&env).await, (true, "Image:ubuntu-2204".to_string()));
    });
}
