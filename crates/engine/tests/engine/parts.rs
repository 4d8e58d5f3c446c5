//! Parent runs and their child runs, records and their devices, beyond the crash matrix.

use crate::audit::RepeatedCalls;
use crate::clients::{Door, operator};
use crate::gate::{CrashPoint, When};
use crate::rack_world::{Stand, StartWhole, Want, Wish, device, event, group, whole};
use crate::world::{BACKOFF, Process, World, simulate};
use engine::Settings;
use model::condition::{ConditionType, Evidence};
use model::effect::{DeviceWork, Effect, PowerOffPolicy, PowerTo};
use model::id::{MachineId, RunId};
use model::lifecycle::{SubjectId, SubjectKind, Trouble};
use model::plan::RunStep;
use model::power_shelf::{PowerShelf, PowerShelfState};
use model::run::act::Action;
use model::run::{Run, RunPhase, Workflow};
use providers::sim::{self, FaultRule};
use std::time::Duration;
use store::{Enqueue, Result, StoreError, Tx};
use tokio::time::sleep;

const THREE: [&str; 3] = ["m-1", "m-2", "ps-1"];

/// An environment with these devices in service, and a process.
async fn world_with(devices: &[&str], settings: Settings) -> (World, Process, Door) {
    let world = World::new(1).await;
    for id in devices {
        stand(&world, id).await;
    }
    let one = world.boot_with(settings).await;
    let door = Door::to(&one.engine);
    (world, one, door)
}

async fn stand(world: &World, id: &str) {
    let (target, now) = (device(id), world.now());
    Stand { target, rack: None, now }.write(&world.store).await;
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

async fn begin(world: &World, name: &str, steps: Vec<RunStep>, enqueue: Enqueue<'static>) -> RunId {
    let id = RunId::new(world.now(), name.len() as u64);
    let run = whole(id, name, steps, world.now());
    start(world, StartWhole { run, enqueue }).await
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
async fn parts_of(world: &World, id: &RunId) -> Vec<Run> {
    let all = world.everything().await.runs.into_iter().map(|kept| kept.run);
    all.filter(|run| run.spec.part_of.as_ref() == Some(id)).collect()
}

async fn holder(world: &World, id: &str) -> Option<RunId> {
    let all = world.everything().await;
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
        Err(StoreError::Refused(refusal)) => format!("{}: {}", refusal.reason, refusal.said),
        other => panic!("{other:?}"),
    }
}

fn small_hands() -> Settings {
    Settings { max_in_flight: 1, eager_in_flight: 1, ..Settings::default() }
}

/// Parent runs only wait: they do not use up the workers that their child runs need.
#[test]
fn hands_full_of_wholes_leave_room_for_their_parts() {
    simulate(async {
        let (world, _one, door) = world_with(&THREE, small_hands()).await;
        let first = begin(&world, "first", flash(&THREE[..1], 1), Enqueue::Now).await;
        let second = begin(&world, "second ", flash(&THREE[1..], 2), Enqueue::Now).await;
        for id in [first, second] {
            assert_eq!(door.ended(&id).await.phase(), RunPhase::Succeeded);
        }
        assert_eq!(world.audit(RepeatedCalls::Forbidden).await, Vec::<String>::new());
    });
}

/// Once an operation is reported as canceled its devices are free.
#[test]
fn a_canceled_whole_ends_after_its_parts() {
    simulate(async {
        let (world, one, door) = world_with(&THREE, Settings::default()).await;
        // The child run notices the cancel only after a while.
        let late = FaultRule { delay_ms: 10_000, ..broken("m-1", sim::Action::Slow, 1) };
        let late = FaultRule { verb: model::effect::Verb::Stop, ..late };
        world.sim.add_fault(late).expect("a rule");
        let id = begin(&world, "whole", flash(&THREE, 3), Enqueue::Now).await;
        sleep(Duration::from_millis(50)).await;
        one.engine.runs().act(id.clone(), Action::Cancel, operator()).await.expect("accepted");
        let ended = door.ended(&id).await;
        assert_eq!(ended.progress.workflow, Workflow::Cancelled);
        let parts = parts_of(&world, &id).await;
        assert_eq!(parts.len(), 3);
        assert!(parts.iter().all(Run::ended), "{parts:#?}");
        sleep(BACKOFF).await;
        assert_eq!(world.audit(RepeatedCalls::Forbidden).await, Vec::<String>::new());
    });
}

/// A freeze undoes nothing, in children and parent; both continue from there.
#[test]
fn a_frozen_whole_freezes_its_parts_and_goes_on_with_them() {
    simulate(async {
        let (world, one, door) = world_with(&THREE, Settings::default()).await;
        let id = begin(&world, "whole", flash(&THREE, 2), Enqueue::Now).await;
        sleep(Duration::from_millis(50)).await;
        one.engine.runs().act(id.clone(), Action::MarkManual, operator()).await.expect("accepted");
        assert_eq!(door.ended(&id).await.phase(), RunPhase::Failed);
        let frozen = parts_of(&world, &id).await;
        let ends: Vec<_> = frozen.iter().map(|part| part.progress.workflow).collect();
        assert_eq!(ends, [Workflow::FailedManualIntervention; 2]);
        for device in THREE {
            assert_eq!(holder(&world, device).await, None);
        }
        one.engine.runs().act(id.clone(), Action::Resume, operator()).await.expect("resumed");
        assert_eq!(door.ended(&id).await.phase(), RunPhase::Succeeded);
        sleep(BACKOFF).await;
        assert_eq!(world.audit(RepeatedCalls::Forbidden).await, Vec::<String>::new());
    });
}

/// Another run holds a claimed device: the step fails at once and names that run.
#[test]
fn a_device_in_other_hands_fails_the_step_and_is_named() {
    simulate(async {
        let (world, _one, door) = world_with(&THREE, Settings::default()).await;
        let mut other = whole(RunId::trusted("op-other"), "other", Vec::new(), world.now());
        other.spec.target = device("m-2");
        other.spec.steps = vec![group("never", &flash(&[], 1)[0].effect, &[], 1)];
        let other = Run::new(other.spec);
        let enqueue = Enqueue::WhenWoken;
        start(&world, StartWhole { run: other, enqueue }).await;
        let id = begin(&world, "whole", flash(&["m-2"], 1), Enqueue::Now).await;
        let failure = door.ended(&id).await.progress.failure.expect("it failed");
        assert!(failure.fault.said.contains("m-2 is held by operation op-other"), "{failure:?}");
    });
}

/// A child run that is retried after its parent has ended holds its device itself.
#[test]
fn a_part_that_goes_on_alone_holds_its_device() {
    simulate(async {
        let (world, one, door) = world_with(&THREE, Settings::default()).await;
        world.sim.add_fault(broken("ps-1", sim::Action::Fail, 0)).expect("a rule");
        world.sim.add_fault(broken("m-1", sim::Action::Fail, 0)).expect("a rule");
        let id = begin(&world, "whole", flash(&THREE, 3), Enqueue::Now).await;
        assert_eq!(door.ended(&id).await.phase(), RunPhase::Failed);
        world.sim.clear_faults(None).expect("cleared");
        let failed = parts_of(&world, &id).await.into_iter().map(|part| part.spec);
        for spec in failed.filter(|spec| spec.target.id != "m-2") {
            one.engine
                .runs()
                .act(spec.id.clone(), Action::RetryStep, operator())
                .await
                .expect("accepted");
            assert_eq!(holder(&world, &spec.target.id).await, Some(spec.id.clone()));
            let busy = one.engine.runs().act(id.clone(), Action::RetryStep, operator()).await;
            assert!(refused(busy).contains(spec.id.as_str()));
            assert_eq!(door.ended(&spec.id).await.phase(), RunPhase::Succeeded);
            assert_eq!(holder(&world, &spec.target.id).await, None);
        }
        // Nothing is left to do, and nothing is repeated.
        one.engine.runs().act(id.clone(), Action::RetryStep, operator()).await.expect("accepted");
        assert_eq!(door.ended(&id).await.phase(), RunPhase::Succeeded);
        assert_eq!(parts_of(&world, &id).await.len(), 3);
    });
}

/// A parent cannot resume after later runs on its devices. Runs on other devices do not matter.
#[test]
fn a_whole_goes_on_only_where_nobody_has_been_since() {
    simulate(async {
        let (world, one, door) = world_with(&["m-1", "m-2", "m-3"], Settings::default()).await;
        world.sim.add_fault(broken("m-2", sim::Action::Fail, 2)).expect("a rule");
        let failed = begin(&world, "failed", flash(&["m-1", "m-2"], 2), Enqueue::Now).await;
        assert_eq!(door.ended(&failed).await.phase(), RunPhase::Failed);
        let beside = begin(&world, "beside it", flash(&["m-3"], 1), Enqueue::Now).await;
        assert_eq!(door.ended(&beside).await.phase(), RunPhase::Succeeded);
        let begun = parts_of(&world, &failed).await.len();
        let after = begin(&world, "after", flash(&["m-1"], 1), Enqueue::Now).await;
        assert_eq!(door.ended(&after).await.phase(), RunPhase::Succeeded);
        let told = one.engine.runs().act(failed.clone(), Action::RetryStep, operator()).await;
        assert!(refused(told).starts_with("RUN_SUPERSEDED"));
        assert_eq!(parts_of(&world, &failed).await.len(), begun);
        // No later run was on its own device, although one was on the same rack.
        world.sim.add_fault(broken("m-3", sim::Action::Fail, 2)).expect("a rule");
        let third = begin(&world, "third time", flash(&["m-3"], 1), Enqueue::Now).await;
        assert_eq!(door.ended(&third).await.phase(), RunPhase::Failed);
        let fourth = begin(&world, "fourth time", flash(&["m-2"], 1), Enqueue::Now).await;
        door.ended(&fourth).await;
        one.engine.runs().act(third.clone(), Action::RetryStep, operator()).await.expect("resumed");
        assert_eq!(door.ended(&third).await.phase(), RunPhase::Succeeded);
    });
}

/// A retry does not start a run that was accepted and may not start yet.
#[test]
fn a_run_that_waits_for_leave_is_not_begun_by_impatience() {
    simulate(async {
        let (world, one, door) = world_with(&THREE, Settings::default()).await;
        let id = begin(&world, "whole", flash(&THREE, 3), Enqueue::WhenWoken).await;
        for action in [Action::RetryStep, Action::Resume] {
            one.engine.runs().act(id.clone(), action, operator()).await.expect("accepted");
        }
        sleep(BACKOFF).await;
        let all = world.everything().await.runs;
        assert!(all.iter().all(|kept| kept.run.progress.workflow == Workflow::Pending));
        // It can be canceled, and releases its claims.
        one.engine.runs().act(id.clone(), Action::Cancel, operator()).await.expect("accepted");
        assert_eq!(door.ended(&id).await.phase(), RunPhase::Canceled);
        sleep(BACKOFF).await;
        assert_eq!(world.audit(RepeatedCalls::Forbidden).await, Vec::<String>::new());
    });
}

/// A new claim clears the condition `OperationCanceled`.
#[test]
fn who_claims_a_machine_takes_the_mark_of_a_cancel_off_it() {
    simulate(async {
        let (world, one, door) = world_with(&["m-1"], Settings::default()).await;
        world.sim.add_fault(broken("m-1", sim::Action::Fail, 2)).expect("a rule");
        let id = begin(&world, "whole", flash(&["m-1"], 1), Enqueue::Now).await;
        assert_eq!(door.ended(&id).await.phase(), RunPhase::Failed);
        let marked = world.store.write("mark", world.now(), |now, tx| Box::pin(mark(tx, *now)));
        marked.await.expect("marked");
        one.engine.runs().act(id.clone(), Action::RetryStep, operator()).await.expect("resumed");
        assert_eq!(door.ended(&id).await.phase(), RunPhase::Succeeded);
        let machine = world.machine("m-1").await;
        assert!(!machine.is(ConditionType::OperationCanceled));
    });
}

async fn start(world: &World, start: StartWhole) -> RunId {
    let started = world.store.write("start_parent", start, |start, tx| Box::pin(start.run(tx)));
    started.await.expect("accepted")
}

async fn mark(tx: &mut Tx, now: model::time::Timestamp) -> Result<()> {
    let found = tx.machine_locked(&MachineId::trusted("m-1")).await?;
    let mut machine = found.expect("the device exists");
    let seen = Evidence::new(ConditionType::OperationCanceled, true, "Canceled:op-before");
    machine.learn(&[seen], now);
    tx.update_machine(&mut machine, &event(now, "canceled"))
}

/// A record in error is retried only after the operation that claims its device has ended.
#[test]
fn a_lifecycle_takes_its_device_from_nobody() {
    simulate(async {
        let (world, _one, door) = world_with(&["ps-1"], Settings::default()).await;
        let slow = FaultRule { delay_ms: 30_000, ..broken("ps-1", sim::Action::Slow, 1) };
        world.sim.add_fault(slow).expect("a rule");
        let fails = world.store.write("fail", world.now(), |now, tx| Box::pin(fail(tx, *now)));
        fails.await.expect("in error");
        let id = begin(&world, "whole", flash(&["ps-1"], 1), Enqueue::Now).await;
        sleep(Duration::from_secs(1)).await;
        let (wish, name) = (Wish::Retry, "again".to_string());
        let want = Want { wish, name, now: world.now() };
        let wanted = world.store.write("request_shelf", want, |want, tx| Box::pin(want.run(tx)));
        wanted.await.expect("requested");
        sleep(Duration::from_secs(10)).await;
        assert_eq!(holder(&world, "ps-1").await, Some(id.clone()));
        let all = world.everything().await;
        assert!(matches!(all.records.shelves[0].state, PowerShelfState::Error { .. }));
        assert_eq!(door.ended(&id).await.phase(), RunPhase::Succeeded);
        sleep(Duration::from_secs(10)).await;
        let all = world.everything().await;
        assert_eq!(
            all.records.shelves[0].state,
            PowerShelfState::Ready,
            "a release wakes the record"
        );
        assert_eq!(world.audit(RepeatedCalls::Forbidden).await, Vec::<String>::new());
    });
}

async fn fail(tx: &mut Tx, now: model::time::Timestamp) -> Result<()> {
    let mut shelf = tx.record_locked::<PowerShelf>("ps-1").await?.expect("the device exists");
    let cause = Trouble { said: "it was dark".into(), run: None, code: String::new() };
    shelf.state = PowerShelfState::Error { cause };
    tx.update_and_enqueue(&mut shelf, &event(now, "dark"))
}

/// A record is woken when its run is resumed, not only when it ends.
#[test]
fn a_record_hears_of_its_run_going_on() {
    simulate(async {
        let (world, one, door) = world_with(&["ps-1"], Settings::default()).await;
        world.sim.add_fault(broken("ps-1", sim::Action::Fail, 2)).expect("a rule");
        let mut run = whole(RunId::trusted("op-1"), "one", flash(&["ps-1"], 1), world.now());
        run.spec.reports_to = Some(SubjectId::new(SubjectKind::PowerShelf, "ps-1"));
        run.spec.claims.clear();
        let run = Run::new(run.spec);
        let id = start(&world, StartWhole { run, enqueue: Enqueue::Now }).await;
        assert_eq!(door.ended(&id).await.phase(), RunPhase::Failed);
        sleep(BACKOFF).await;
        one.gate.arm(None);
        let slow = FaultRule { delay_ms: 30_000, ..broken("ps-1", sim::Action::Slow, 1) };
        world.sim.add_fault(slow).expect("a rule");
        one.engine.runs().act(id.clone(), Action::RetryStep, operator()).await.expect("resumed");
        sleep(Duration::from_secs(1)).await;
        let looked = CrashPoint::Commit(When::After, "advance");
        assert!(one.gate.passed().contains(&looked), "{:?}", one.gate.passed());
        door.ended(&id).await;
    });
}

/// At the deadline of a step its child runs are stopped first, and then the step ends.
#[test]
fn a_step_that_is_late_stops_its_parts_and_ends_after_them() {
    simulate(async {
        let (world, _one, door) = world_with(&THREE, Settings::default()).await;
        world.sim.add_fault(broken("m-1", sim::Action::Hang, 0)).expect("a rule");
        let mut steps = flash(&THREE, 1);
        steps[0].timeout_seconds = 30;
        let id = begin(&world, "whole", steps, Enqueue::Now).await;
        let ended = door.ended(&id).await;
        assert_eq!(ended.phase(), RunPhase::Failed);
        let parts = parts_of(&world, &id).await;
        assert_eq!(parts.len(), 1, "no other child run was started");
        assert!(parts[0].progress.finished_at <= ended.progress.finished_at, "{parts:#?}");
        sleep(BACKOFF).await;
        assert_eq!(world.audit(RepeatedCalls::Allowed).await, Vec::<String>::new());
    });
}

/// The same with power as the effect.
#[test]
fn what_goes_dark_together_goes_dark_once() {
    simulate(async {
        let (world, _one, door) = world_with(&THREE, Settings::default()).await;
        let off = Effect::Power { to: PowerTo::Off, power_off: PowerOffPolicy::CONFIGURED };
        let id = begin(&world, "whole", vec![group("dark", &off, &THREE, 2)], Enqueue::Now).await;
        assert_eq!(door.ended(&id).await.phase(), RunPhase::Succeeded);
        for part in parts_of(&world, &id).await {
            let counts = world.sim.effects(part.spec.id.as_str()).expect("the effect counts");
            assert_eq!(counts.iter().map(|one| one.applied).sum::<u32>(), 1);
        }
    });
}
