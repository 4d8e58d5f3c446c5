//! Parent runs and their child runs, records and their devices, beyond the crash matrix.

use crate::audit::RepeatedCalls;
use crate::clients::{Client, operator};
use crate::device_records::{
    InServiceDevice, ShelfRequest, StartParentRun, WriteShelfRequest, device, event, group,
    parent_run,
};
use crate::fault_injector::{CrashPoint, When};
use crate::test_env::{BACKOFF, Process, TestEnv, simulate};
use engine::Settings;
use model::condition::{ConditionObservation, ConditionType};
use model::effect::{DesiredPower, DeviceWork, Effect, PowerOffPolicy};
use model::id::{MachineId, RunId};
use model::lifecycle::{DeviceFailure, SubjectId, SubjectKind};
use model::plan::RunStep;
use model::power_shelf::{PowerShelf, PowerShelfState};
use model::run::actions::Action;
use model::run::{Run, RunPhase, Workflow};
use providers::sim::{self, FaultRule};
use std::time::Duration;
use store::{Enqueue, Result, StoreError, Tx};
use tokio::time::sleep;

const THREE: [&str; 3] = ["m-1", "m-2", "ps-1"];

/// An environment with these devices in service, and a process.
async fn env_with(devices: &[&str], settings: Settings) -> (TestEnv, Process, Client) {
    let env = TestEnv::new(1).await;
    for id in devices {
        add_device(&env, id).await;
    }
    let one = env.boot_with(settings).await;
    let client = Client::new(&one.engine);
    (env, one, client)
}

async fn add_device(env: &TestEnv, id: &str) {
    let (target, now) = (device(id), env.now());
    InServiceDevice { target, rack: None, now }.write(&env.store).await;
}

fn flash(devices: &[&str], at_once: u32) -> Vec<RunStep> {
    let work = DeviceWork::Firmware {
        component: "BIOS".into(),
        version: "2.0".into(),
        url: String::new(),
        sha256: String::new(),
    };
    vec![group("flash", &Effect::Device { work }, devices, at_once)]
}

async fn start_named(
    env: &TestEnv,
    name: &str,
    steps: Vec<RunStep>,
    enqueue: Enqueue<'static>,
) -> RunId {
    let id = RunId::new(env.now(), name.len() as u64);
    let run = parent_run(id, name, steps, env.now());
    start(env, StartParentRun { run, enqueue }).await
}

fn broken(machine: &str, action: sim::Action, times: u32) -> FaultRule {
    FaultRule {
        machine: machine.into(),
        effect: "firmware".into(),
        times,
        ..FaultRule::new(action)
    }
}

/// The child runs of a parent, in the order of their start.
async fn child_runs_of(env: &TestEnv, id: &RunId) -> Vec<Run> {
    let all = env.stored_state().await.runs.into_iter().map(|stored| stored.run);
    all.filter(|run| run.spec.parent_run.as_ref() == Some(id)).collect()
}

async fn holder(env: &TestEnv, id: &str) -> Option<RunId> {
    let all = env.stored_state().await;
    let machine = all.machines.iter().find(|one| one.id.as_str() == id);
    let shelf = all.records.shelves.iter().find(|one| one.head.id == id);
    match (machine, shelf) {
        (Some(machine), _) => machine.active_run.clone(),
        (None, Some(shelf)) => shelf.head.active_run.clone(),
        (None, None) => panic!("no {id}"),
    }
}

fn refused(answer: Result<Run>) -> String {
    match answer {
        Err(StoreError::Refused(refusal)) => format!("{}: {}", refusal.reason, refusal.message),
        other => panic!("{other:?}"),
    }
}

fn one_worker() -> Settings {
    Settings { max_in_flight: 1, eager_in_flight: 1, ..Settings::default() }
}

/// Parent runs only wait: they do not use up the workers that their child runs need.
#[test]
fn parent_runs_leave_workers_for_their_child_runs() {
    simulate(async {
        let (env, _one, client) = env_with(&THREE, one_worker()).await;
        let first = start_named(&env, "first", flash(&THREE[..1], 1), Enqueue::Now).await;
        let second = start_named(&env, "second ", flash(&THREE[1..], 2), Enqueue::Now).await;
        for id in [first, second] {
            assert_eq!(client.wait_until_ended(&id).await.phase(), RunPhase::Succeeded);
        }
        assert_eq!(env.audit(RepeatedCalls::Forbidden).await, Vec::<String>::new());
    });
}

/// Once an operation is reported as canceled its devices are free.
#[test]
fn a_canceled_parent_ends_after_its_child_runs() {
    simulate(async {
        let (env, one, client) = env_with(&THREE, Settings::default()).await;
        // The child run notices the cancel only after a while.
        let late = FaultRule { delay_ms: 10_000, ..broken("m-1", sim::Action::Slow, 1) };
        let late = FaultRule { verb: model::effect::CallVerb::Stop, ..late };
        env.sim.add_fault(late).expect("a rule");
        let id = start_named(&env, "whole", flash(&THREE, 3), Enqueue::Now).await;
        sleep(Duration::from_millis(50)).await;
        one.engine.runs().act(id.clone(), Action::Cancel, operator()).await.expect("accepted");
        let ended = client.wait_until_ended(&id).await;
        assert_eq!(ended.progress.workflow, Workflow::Cancelled);
        let parts = child_runs_of(&env, &id).await;
        assert_eq!(parts.len(), 3);
        assert!(parts.iter().all(Run::ended), "{parts:#?}");
        sleep(BACKOFF).await;
        assert_eq!(env.audit(RepeatedCalls::Forbidden).await, Vec::<String>::new());
    });
}

/// A freeze undoes nothing, in children and parent; both continue from there.
#[test]
fn a_frozen_parent_freezes_its_child_runs_and_resumes_them() {
    simulate(async {
        let (env, one, client) = env_with(&THREE, Settings::default()).await;
        let id = start_named(&env, "whole", flash(&THREE, 2), Enqueue::Now).await;
        sleep(Duration::from_millis(50)).await;
        one.engine.runs().act(id.clone(), Action::MarkManual, operator()).await.expect("accepted");
        assert_eq!(client.wait_until_ended(&id).await.phase(), RunPhase::Failed);
        let frozen = child_runs_of(&env, &id).await;
        let ends: Vec<_> = frozen.iter().map(|part| part.progress.workflow).collect();
        assert_eq!(ends, [Workflow::FailedManualIntervention; 2]);
        for device in THREE {
            assert_eq!(holder(&env, device).await, None);
        }
        one.engine.runs().act(id.clone(), Action::Resume, operator()).await.expect("resumed");
        assert_eq!(client.wait_until_ended(&id).await.phase(), RunPhase::Succeeded);
        sleep(BACKOFF).await;
        assert_eq!(env.audit(RepeatedCalls::Forbidden).await, Vec::<String>::new());
    });
}

/// Another run holds a claimed device: the step fails at once and names that run.
#[test]
fn a_device_held_by_another_run_fails_the_step() {
    simulate(async {
        let (env, _one, client) = env_with(&THREE, Settings::default()).await;
        let mut other = parent_run(RunId::trusted("op-other"), "other", Vec::new(), env.now());
        other.spec.target = device("m-2");
        other.spec.steps = vec![group("never", &flash(&[], 1)[0].effect, &[], 1)];
        let other = Run::new(other.spec);
        let enqueue = Enqueue::WhenWoken;
        start(&env, StartParentRun { run: other, enqueue }).await;
        let id = start_named(&env, "whole", flash(&["m-2"], 1), Enqueue::Now).await;
        let failure = client.wait_until_ended(&id).await.progress.failure.expect("it failed");
        assert!(failure.fault.message.contains("m-2 is held by operation op-other"), "{failure:?}");
    });
}

/// A child run that is retried after its parent has ended holds its device itself.
#[test]
fn a_child_run_retried_alone_holds_its_device() {
    simulate(async {
        let (env, one, client) = env_with(&THREE, Settings::default()).await;
        env.sim.add_fault(broken("ps-1", sim::Action::Fail, 0)).expect("a rule");
        env.sim.add_fault(broken("m-1", sim::Action::Fail, 0)).expect("a rule");
        let id = start_named(&env, "whole", flash(&THREE, 3), Enqueue::Now).await;
        assert_eq!(client.wait_until_ended(&id).await.phase(), RunPhase::Failed);
        env.sim.clear_faults(None).expect("cleared");
        let failed = child_runs_of(&env, &id).await.into_iter().map(|part| part.spec);
        for spec in failed.filter(|spec| spec.target.id != "m-2") {
            one.engine
                .runs()
                .act(spec.id.clone(), Action::RetryStep, operator())
                .await
                .expect("accepted");
            assert_eq!(holder(&env, &spec.target.id).await, Some(spec.id.clone()));
            let busy = one.engine.runs().act(id.clone(), Action::RetryStep, operator()).await;
            assert!(refused(busy).contains(spec.id.as_str()));
            assert_eq!(client.wait_until_ended(&spec.id).await.phase(), RunPhase::Succeeded);
            assert_eq!(holder(&env, &spec.target.id).await, None);
        }
        // Nothing is left to do, and nothing is repeated.
        one.engine.runs().act(id.clone(), Action::RetryStep, operator()).await.expect("accepted");
        assert_eq!(client.wait_until_ended(&id).await.phase(), RunPhase::Succeeded);
        assert_eq!(child_runs_of(&env, &id).await.len(), 3);
    });
}

/// A parent cannot resume after later runs on its devices. Runs on other devices do not matter.
#[test]
fn a_parent_resumes_only_without_later_runs_on_its_devices() {
    simulate(async {
        let (env, one, client) = env_with(&["m-1", "m-2", "m-3"], Settings::default()).await;
        env.sim.add_fault(broken("m-2", sim::Action::Fail, 2)).expect("a rule");
        let failed = start_named(&env, "failed", flash(&["m-1", "m-2"], 2), Enqueue::Now).await;
        assert_eq!(client.wait_until_ended(&failed).await.phase(), RunPhase::Failed);
        let beside = start_named(&env, "beside it", flash(&["m-3"], 1), Enqueue::Now).await;
        assert_eq!(client.wait_until_ended(&beside).await.phase(), RunPhase::Succeeded);
        let begun = child_runs_of(&env, &failed).await.len();
        let after = start_named(&env, "after", flash(&["m-1"], 1), Enqueue::Now).await;
        assert_eq!(client.wait_until_ended(&after).await.phase(), RunPhase::Succeeded);
        let reported = one.engine.runs().act(failed.clone(), Action::RetryStep, operator()).await;
        assert!(refused(reported).starts_with("RUN_SUPERSEDED"));
        assert_eq!(child_runs_of(&env, &failed).await.len(), begun);
        // No later run was on its own device, although one was on the same rack.
        env.sim.add_fault(broken("m-3", sim::Action::Fail, 2)).expect("a rule");
        let third = start_named(&env, "third time", flash(&["m-3"], 1), Enqueue::Now).await;
        assert_eq!(client.wait_until_ended(&third).await.phase(), RunPhase::Failed);
        let fourth = start_named(&env, "fourth time", flash(&["m-2"], 1), Enqueue::Now).await;
        client.wait_until_ended(&fourth).await;
        one.engine.runs().act(third.clone(), Action::RetryStep, operator()).await.expect("resumed");
        assert_eq!(client.wait_until_ended(&third).await.phase(), RunPhase::Succeeded);
    });
}

/// A retry does not start a run that was accepted and may not start yet.
#[test]
fn a_retry_does_not_start_a_pending_run() {
    simulate(async {
        let (env, one, client) = env_with(&THREE, Settings::default()).await;
        let id = start_named(&env, "whole", flash(&THREE, 3), Enqueue::WhenWoken).await;
        for action in [Action::RetryStep, Action::Resume] {
            let refused = one.engine.runs().act(id.clone(), action, operator()).await;
            let Err(StoreError::Refused(refusal)) = refused else { panic!("{refused:?}") };
            assert_eq!(refusal.reason.as_str(), "RUN_ACTIVE");
        }
        sleep(BACKOFF).await;
        let all = env.stored_state().await.runs;
        assert!(all.iter().all(|stored| stored.run.progress.workflow == Workflow::Pending));
        // It can be canceled, and releases its claims.
        one.engine.runs().act(id.clone(), Action::Cancel, operator()).await.expect("accepted");
        assert_eq!(client.wait_until_ended(&id).await.phase(), RunPhase::Canceled);
        sleep(BACKOFF).await;
        assert_eq!(env.audit(RepeatedCalls::Forbidden).await, Vec::<String>::new());
    });
}

/// A new claim clears the condition `OperationCanceled`.
#[test]
fn a_new_claim_clears_the_canceled_condition() {
    simulate(async {
        let (env, one, client) = env_with(&["m-1"], Settings::default()).await;
        env.sim.add_fault(broken("m-1", sim::Action::Fail, 2)).expect("a rule");
        let id = start_named(&env, "whole", flash(&["m-1"], 1), Enqueue::Now).await;
        assert_eq!(client.wait_until_ended(&id).await.phase(), RunPhase::Failed);
        let marked =
            env.store.write("mark", env.now(), |now, tx| Box::pin(mark_canceled(tx, *now)));
        marked.await.expect("marked");
        one.engine.runs().act(id.clone(), Action::RetryStep, operator()).await.expect("resumed");
        assert_eq!(client.wait_until_ended(&id).await.phase(), RunPhase::Succeeded);
        let machine = env.machine("m-1").await;
        assert!(!machine.is(ConditionType::OperationCanceled));
    });
}

async fn start(env: &TestEnv, start: StartParentRun) -> RunId {
    let started = env.store.write("start_parent", start, |start, tx| Box::pin(start.run(tx)));
    started.await.expect("accepted")
}

async fn mark_canceled(tx: &mut Tx, now: model::time::Timestamp) -> Result<()> {
    let found = tx.machine_locked(&MachineId::trusted("m-1")).await?;
    let mut machine = found.expect("the device exists");
    let observed =
        ConditionObservation::new(ConditionType::OperationCanceled, true, "Canceled:op-before");
    machine.learn(&[observed], now);
    tx.update_machine(&mut machine, &event(now, "canceled"))
}

/// A record in error is retried only after the operation that claims its device has ended.
#[test]
fn a_lifecycle_waits_for_the_run_that_holds_its_device() {
    simulate(async {
        let (env, _one, client) = env_with(&["ps-1"], Settings::default()).await;
        let slow = FaultRule { delay_ms: 30_000, ..broken("ps-1", sim::Action::Slow, 1) };
        env.sim.add_fault(slow).expect("a rule");
        let fails = env.store.write("fail", env.now(), |now, tx| Box::pin(put_in_error(tx, *now)));
        fails.await.expect("in error");
        let id = start_named(&env, "whole", flash(&["ps-1"], 1), Enqueue::Now).await;
        sleep(Duration::from_secs(1)).await;
        let (requested, name) = (ShelfRequest::Retry, "again".to_string());
        let want = WriteShelfRequest { request: requested, name, now: env.now() };
        let desired = env.store.write("request_shelf", want, |want, tx| Box::pin(want.run(tx)));
        desired.await.expect("requested");
        sleep(Duration::from_secs(10)).await;
        assert_eq!(holder(&env, "ps-1").await, Some(id.clone()));
        let all = env.stored_state().await;
        assert!(matches!(all.records.shelves[0].state, PowerShelfState::Error { .. }));
        assert_eq!(client.wait_until_ended(&id).await.phase(), RunPhase::Succeeded);
        sleep(Duration::from_secs(10)).await;
        let all = env.stored_state().await;
        assert_eq!(
            all.records.shelves[0].state,
            PowerShelfState::Ready,
            "a release wakes the record"
        );
        assert_eq!(env.audit(RepeatedCalls::Forbidden).await, Vec::<String>::new());
    });
}

async fn put_in_error(tx: &mut Tx, now: model::time::Timestamp) -> Result<()> {
    let mut shelf = tx.record_locked::<PowerShelf>("ps-1").await?.expect("the device exists");
    let cause = DeviceFailure { message: "it was dark".into(), run: None, code: String::new() };
    shelf.state = PowerShelfState::Error { cause };
    tx.update_and_enqueue(&mut shelf, &event(now, "dark"))
}

/// A record is woken when its run is resumed, not only when it ends.
#[test]
fn a_record_is_woken_when_its_run_resumes() {
    simulate(async {
        let (env, one, client) = env_with(&["ps-1"], Settings::default()).await;
        env.sim.add_fault(broken("ps-1", sim::Action::Fail, 2)).expect("a rule");
        let mut run = parent_run(RunId::trusted("op-1"), "one", flash(&["ps-1"], 1), env.now());
        run.spec.reports_to = Some(SubjectId::new(SubjectKind::PowerShelf, "ps-1"));
        run.spec.held_targets.clear();
        let run = Run::new(run.spec);
        let id = start(&env, StartParentRun { run, enqueue: Enqueue::Now }).await;
        assert_eq!(client.wait_until_ended(&id).await.phase(), RunPhase::Failed);
        sleep(BACKOFF).await;
        one.injector.arm(None);
        let slow = FaultRule { delay_ms: 30_000, ..broken("ps-1", sim::Action::Slow, 1) };
        env.sim.add_fault(slow).expect("a rule");
        one.engine.runs().act(id.clone(), Action::RetryStep, operator()).await.expect("resumed");
        sleep(Duration::from_secs(1)).await;
        let looked = CrashPoint::Commit(When::After, "advance");
        assert!(one.injector.passed().contains(&looked), "{:?}", one.injector.passed());
        client.wait_until_ended(&id).await;
    });
}

/// At the deadline of a step its child runs are stopped first, and then the step ends.
#[test]
fn a_late_step_stops_its_child_runs_and_ends_after_them() {
    simulate(async {
        let (env, _one, client) = env_with(&THREE, Settings::default()).await;
        env.sim.add_fault(broken("m-1", sim::Action::Hang, 0)).expect("a rule");
        let mut steps = flash(&THREE, 1);
        steps[0].timeout_seconds = 30;
        let id = start_named(&env, "whole", steps, Enqueue::Now).await;
        let ended = client.wait_until_ended(&id).await;
        assert_eq!(ended.phase(), RunPhase::Failed);
        let parts = child_runs_of(&env, &id).await;
        assert_eq!(parts.len(), 1, "no other child run was started");
        assert!(parts[0].progress.finished_at <= ended.progress.finished_at, "{parts:#?}");
        sleep(BACKOFF).await;
        assert_eq!(env.audit(RepeatedCalls::Allowed).await, Vec::<String>::new());
    });
}

/// The same with power as the effect.
#[test]
fn a_group_is_powered_off_once() {
    simulate(async {
        let (env, _one, client) = env_with(&THREE, Settings::default()).await;
        let off =
            Effect::Power { to: DesiredPower::Off, power_off: PowerOffPolicy::PROVIDER_DEFAULT };
        let id =
            start_named(&env, "whole", vec![group("dark", &off, &THREE, 2)], Enqueue::Now).await;
        assert_eq!(client.wait_until_ended(&id).await.phase(), RunPhase::Succeeded);
        for part in child_runs_of(&env, &id).await {
            let counts = env.sim.effects(part.spec.id.as_str()).expect("the effect counts");
            assert_eq!(counts.iter().map(|one| one.applied).sum::<u32>(), 1);
        }
    });
}
