//! `why` after a failed or canceled operation: an armed network boot, a disk with an unknown
//! outcome, devices that are off. `why` offers no command that would be refused, and its first
//! command repairs.

use crate::clients::Client;
use crate::rack_fixture::{RACK, RackFixture, event, power, requester};
use crate::test_env::{Process, TestEnv, simulate};
use crate::workers::{self, TEST_TIMEOUT};
use engine::admission::StartRequest;
use engine::machine::FlagRequest;
use engine::{Engine, Settings};
use model::condition::{ConditionObservation, ConditionType};
use model::effect::{CallVerb, DesiredPower, DeviceFacts};
use model::fault::FaultCode;
use model::gate::Overrides;
use model::id::{FirmwareId, MachineId, PlanId, PowerShelfId, RackId, RunId};
use model::machine::{Machine, MachineProblem, Phase};
use model::plan::{Maintenance, Params, PowerChange, RunType};
use model::power_shelf::PowerShelf;
use model::power_shelf::maintenance::PowerChangeRequest;
use model::rack::maintenance::{
    MaintenanceScope, PowerSequence, RackLimits, RackMaintenanceRequest, RequestedActivity,
};
use model::rack::{Counts, RackPowerOn, RackState};
use model::run::actions::{Action, Requester, RestartMode};
use model::run::{Run, RunPhase};
use model::why::{Explanation, ListedObject, Urgency};
use providers::sim::{self, FaultRule, Sim, Speed};
use std::sync::Arc;
use std::time::{Duration, Instant};
use store::Store;

const MACHINE: &str = "m-1";
const DISARM: &str = "farrier operation start m-1 --type POWER --plan plan-boot-from-disk-v1";

async fn in_maintenance() -> (TestEnv, Process, Client) {
    let env = TestEnv::new(1).await;
    let process = env.boot("one").await;
    env.register(&process.engine, MACHINE).await;
    let client = Client::new(&process.engine);
    run(&client, RunType::EnterMaintenance, None, RunPhase::Succeeded).await;
    (env, process, client)
}

/// Starts an operation, and waits for its end.
async fn run(client: &Client, run_type: RunType, plan: Option<&str>, end: RunPhase) -> RunId {
    let plan = plan.map(PlanId::trusted);
    let request = format!("{} {plan:?}", run_type.as_str());
    let run = client.start_with_plan(MACHINE, run_type, plan, request).await.expect("accepted");
    assert_eq!(client.wait_until_ended(&run).await.phase(), end, "{run_type:?}");
    run
}

async fn why(engine: &Engine, id: &str) -> Explanation {
    engine.explain(id).await.expect("explained").explanation
}

fn fails(effect: &str) -> FaultRule {
    FaultRule { effect: effect.into(), times: 0, ..FaultRule::new(sim::Action::Fail) }
}

fn offers(told: &Explanation, command: &str) -> bool {
    told.next_commands.iter().any(|one| one == command)
}

#[test]
fn a_network_boot_that_a_failed_reimage_left_is_told_until_it_is_disarmed() {
    simulate(async {
        let (env, process, client) = in_maintenance().await;
        env.sim.add_fault(fails("repave")).expect("a rule");
        let failed = run(&client, RunType::Reimage, None, RunPhase::Failed).await;
        let machine = env.machine(MACHINE).await;
        assert_eq!(machine.phase, Phase::Maintenance, "a failure does not change the phase");
        assert_eq!(machine.network_boot.map(|boot| boot.armed_by), Some(failed.clone()));
        let told = why(&process.engine, MACHINE).await;
        let words = format!("its next boot may be from the network: {failed} armed it");
        assert!(told.notes.iter().any(|note| note.starts_with(&words)), "{told:#?}");
        // The failed operation comes first: after another one it could not be resumed.
        assert!(!offers(&told, DISARM), "{told:#?}");

        // The dry run of the exit says so.
        let leave = StartRequest {
            machine_id: MachineId::trusted(MACHINE),
            request_id: "dry".into(),
            run_type: RunType::ExitMaintenance,
            plan_id: None,
            params: Params::new(),
            overrides: Overrides::default(),
            initiator: "ada".into(),
        };
        let dry = process.engine.with_dry_run(true);
        let leaving = dry.runs().start(leave).await.expect("accepted").run;
        let preview = dry.runs().preview(&leaving).await.expect("a preview");
        let note = preview.notes.iter().find(|note| note.starts_with(&words));
        assert!(note.is_some_and(|note| note.ends_with(DISARM)), "{:?}", preview.notes);
        run(&client, RunType::ExitMaintenance, None, RunPhase::Succeeded).await;
        let machine = env.machine(MACHINE).await;
        assert!(!machine.is(ConditionType::NeedsIntervention));
        assert!(matches!(machine.problem(), Some(MachineProblem::NetworkBoot(_))), "{machine:?}");
        let told = why(&process.engine, MACHINE).await;
        assert!(told.headline.contains(&words), "{}", told.headline);
        assert!(told.headline.contains(&format!("REIMAGE {failed} failed")), "{}", told.headline);
        assert_eq!(told.next_commands[0], DISARM);
        let listed = process.engine.attention(9, None).await.expect("the list");
        let item = listed.items.first().expect("the machine");
        assert_eq!((item.id.as_str(), item.urgency), (MACHINE, Urgency::Degraded));
        assert_eq!(item.explained.explanation.next_command(), Some(DISARM));

        // The printed command, in service.
        run(&client, RunType::Power, Some("plan-boot-from-disk-v1"), RunPhase::Succeeded).await;
        assert_eq!(env.machine(MACHINE).await.network_boot, None);
        let told = why(&process.engine, MACHINE).await;
        assert!(!format!("{told:?}").contains("its next boot"), "{told:#?}");
        // The failed reimage is told until another operation on the disk succeeds.
        let cause = format!("REIMAGE {failed} failed");
        assert!(told.headline.contains(&cause), "{}", told.headline);
        // The list of what needs a person has the same cause, and the same first command.
        let listed = process.engine.attention(9, None).await.expect("the list");
        let item = listed.items.first().expect("the machine");
        assert_eq!((item.id.as_str(), item.urgency), (MACHINE, Urgency::Degraded));
        assert_eq!(item.explained.explanation.headline, told.headline);
        assert_eq!(item.explained.explanation.next_command(), told.next_command());
        assert_eq!(told.next_command(), Some("farrier enter-maintenance m-1"), "{told:#?}");

        // An operator who has decided otherwise clears it; so does an installation that succeeds.
        let clear = FlagRequest {
            id: MachineId::trusted(MACHINE),
            condition: ConditionType::NeedsIntervention,
            status: false,
            overrides: Overrides::default(),
        };
        let who = Requester { by: "ada".into(), reason: "the old system stays".into() };
        process.engine.machines().flag(clear.clone(), who.clone()).await.expect("cleared");
        let told = why(&process.engine, MACHINE).await;
        assert!(told.headline.ends_with("nothing wrong"), "{}", told.headline);
        assert!(process.engine.attention(9, None).await.expect("the list").items.is_empty());
        let again = process.engine.machines().flag(clear, who).await;
        assert!(again.is_err(), "there is nothing to clear any more: {again:?}");
    });
}

/// Waits until every machine was probed again.
async fn wait_for_probes(sim: &Sim) {
    let count =
        || sim.list_faults().expect("the rules").iter().map(|rule| rule.applied_count).sum();
    let (before, started): (u32, _) = (count(), Instant::now());
    while count() < before + 2 {
        assert!(started.elapsed() < TEST_TIMEOUT, "no probe");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The boot from the network holds for one boot: after the machine was switched off and on, a probe
/// observes that the next boot is from disk, and the record says so. In real time, with probes.
#[tokio::test(flavor = "multi_thread")]
async fn a_power_cycle_uses_the_network_boot_up() {
    let dir = tempfile::tempdir().unwrap();
    let store = workers::open(&dir).await;
    let sim = Sim::in_ram(Speed::Zero);
    let probe_interval = Duration::from_millis(20);
    let settings = Settings { probe_interval, ..workers::settings("a") };
    let engine = workers::engine(&store, Arc::new(sim.clone()), settings).await;
    workers::in_maintenance(&engine, MACHINE).await;
    sim.add_fault(fails("repave")).expect("a rule");
    let failed = workers::start(&engine, MACHINE, RunType::Reimage).await.spec.id;
    workers::wait_for_run(&engine, &failed, Run::ended).await;
    sim.clear_faults(None).expect("cleared");
    // It changes nothing, and counts the probes.
    let counted = FaultRule { effect: "probe".into(), ..FaultRule::new(sim::Action::Twice) };
    sim.add_fault(counted).expect("a rule");
    let id = MachineId::trusted(MACHINE);
    let armed = async || {
        let machine = engine.machines().get(&id).await.expect("the machine");
        machine.network_boot.map(|boot| boot.armed_by)
    };
    let switch = async |plan: PowerChange| {
        let start = StartRequest {
            machine_id: id.clone(),
            request_id: format!("{plan:?}"),
            run_type: RunType::Power,
            plan_id: Some(plan.plan_id()),
            params: Params::new(),
            overrides: Overrides::default(),
            initiator: "ada".into(),
        };
        let run = engine.runs().start(start).await.expect("accepted").run.spec.id;
        workers::wait_for_run(&engine, &run, Run::ended).await;
        wait_for_probes(&sim).await;
    };
    wait_for_probes(&sim).await;
    assert_eq!(armed().await, Some(failed.clone()), "the probes see that it is armed");
    switch(PowerChange::Off).await;
    assert_eq!(armed().await, Some(failed.clone()), "it has not booted");
    switch(PowerChange::On).await;
    let started = Instant::now();
    while armed().await.is_some() {
        assert!(started.elapsed() < TEST_TIMEOUT, "the record stays");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let history = engine.history(MACHINE, 0, 1_000).await.expect("a history");
    let words = format!("the boot from the network that {failed} armed is over");
    assert!(history.iter().any(|one| one.message.contains(&words)), "{history:?}");
}

/// A later success of another operation does not hide a failed change of the network, neither in
/// maintenance nor in service; the printed commands repair it.
#[test]
fn a_failed_network_change_is_told_until_it_is_repeated() {
    simulate(async {
        let (env, process, client) = in_maintenance().await;
        env.sim.add_fault(fails("net")).expect("a rule");
        let start = StartRequest {
            machine_id: MachineId::trusted(MACHINE),
            request_id: "net".into(),
            run_type: RunType::NetReconfig,
            plan_id: None,
            params: Params::from([("network".to_string(), "network: {}".to_string())]),
            overrides: Overrides::default(),
            initiator: "ada".into(),
        };
        let failed = process.engine.runs().start(start).await.expect("accepted").run.spec.id;
        assert_eq!(client.wait_until_ended(&failed).await.phase(), RunPhase::Failed);
        run(&client, RunType::Reboot, None, RunPhase::Succeeded).await;
        assert!(!env.machine(MACHINE).await.is(ConditionType::NeedsIntervention));
        let cause = format!("NET_RECONFIG {failed} failed at step net-reconfig");
        let (rerun, enter) =
            (format!("farrier operation rerun {failed}"), "farrier enter-maintenance m-1");
        let told = why(&process.engine, MACHINE).await;
        assert!(told.headline.contains(&cause), "{}", told.headline);
        assert_eq!(told.next_command(), Some(&*rerun), "{told:#?}");
        // The step of an operation that another has followed cannot be retried.
        assert!(!offers(&told, &format!("farrier operation retry-step {failed}")), "{told:#?}");

        run(&client, RunType::ExitMaintenance, None, RunPhase::Succeeded).await;
        let told = why(&process.engine, MACHINE).await;
        assert!(told.headline.contains(&cause), "{}", told.headline);
        assert_eq!(told.next_commands[..2], [enter.to_string(), rerun.clone()], "{told:#?}");
        let listed = process.engine.attention(9, None).await.expect("the list");
        let item = listed.items.first().expect("the machine");
        assert_eq!((item.id.as_str(), item.urgency), (MACHINE, Urgency::Degraded));
        assert_eq!(item.explained.explanation.headline, told.headline);
        assert_eq!(item.explained.explanation.next_command(), Some(enter));

        // The printed commands.
        env.sim.clear_faults(None).expect("cleared");
        let again = RunType::EnterMaintenance;
        let again = client.start_with_plan(MACHINE, again, None, "again".into()).await;
        client.wait_until_ended(&again.expect("accepted")).await;
        let who = Requester { by: "ada".into(), reason: String::new() };
        let mode = RestartMode::Rerun;
        let runs = process.engine.runs();
        let rerun = runs.restart(failed, mode, "rerun".into(), who).await.expect("accepted").run;
        assert_eq!(client.wait_until_ended(&rerun.spec.id).await.phase(), RunPhase::Succeeded);
        assert_eq!(env.machine(MACHINE).await.problem(), None);
        assert!(process.engine.attention(9, None).await.expect("the list").items.is_empty());
    });
}

/// The disk was written before the reboot failed: the record says which image is on it, and `why`
/// says that the reimage did not succeed, also after the machine has left maintenance.
#[test]
fn a_reimage_that_fails_after_its_write_is_told() {
    simulate(async {
        let (env, process, client) = in_maintenance().await;
        env.sim.add_fault(fails("reboot")).expect("a rule");
        let failed = run(&client, RunType::Reimage, None, RunPhase::Failed).await;
        let machine = env.machine(MACHINE).await;
        let known = machine.conditions.get(ConditionType::Provisioned).expect("it is known");
        assert_eq!((known.status, known.reason.as_str()), (true, "Image:ubuntu-2204"));
        assert_eq!((machine.open_disk_write, machine.network_boot), (None, None));
        run(&client, RunType::ExitMaintenance, None, RunPhase::Succeeded).await;
        let told = why(&process.engine, MACHINE).await;
        let words = format!("but REIMAGE {failed} failed at step reboot");
        assert!(told.headline.contains(&words), "{}", told.headline);
        assert!(offers(&told, &format!("farrier why {failed}")), "{told:#?}");
    });
}

#[test]
fn a_write_whose_status_cannot_be_read_is_told_as_unknown() {
    simulate(async {
        let (env, process, client) = in_maintenance().await;
        let effect = String::from("repave");
        let dropped = FaultRule { effect, times: 0, ..FaultRule::new(sim::Action::Drop) };
        env.sim.add_fault(dropped).expect("a rule");
        let unread = FaultRule { verb: CallVerb::GetStatus, ..fails("repave") };
        env.sim.add_fault(unread).expect("a rule");
        let failed = run(&client, RunType::Reimage, None, RunPhase::Failed).await;
        let write = env.machine(MACHINE).await.open_disk_write.expect("the write is open");
        assert!(write.outcome_unknown, "{write:?}");
        let told = why(&process.engine, MACHINE).await;
        let words = format!(
            "its disk may be half written: whether {failed} finished writing ubuntu-2204 is not known"
        );
        assert!(told.headline.contains(&words), "{}", told.headline);
        assert!(told.may_be_damaged && !told.headline.contains("it stopped"), "{}", told.headline);
    });
}

/// Changes the stored record of a machine, as if it had been observed.
async fn change(store: &Store, id: &str, now: model::time::Timestamp, to: fn(&mut Machine)) {
    let input = (MachineId::trusted(id), event(now), to);
    let written = store.write("change", input, |(id, event, to), tx| {
        Box::pin(async move {
            let mut machine = tx.machine_locked(id).await?.expect("it was registered");
            to(&mut machine);
            tx.update_machine(&mut machine, event)
        })
    });
    written.await.expect("written");
}

/// After a canceled power sequence the rerun is refused while a machine is in service, so it is
/// not offered; the command that switches on is, and makes the rack Ready.
#[test]
fn a_canceled_power_sequence_is_repaired_by_the_first_command() {
    simulate(async {
        let fixture = RackFixture::ready().await;
        let hang = FaultRule {
            machine: "m-1".into(),
            effect: "power".into(),
            ..FaultRule::new(sim::Action::Hang)
        };
        fixture.env.sim.add_fault(hang).expect("a rule");
        let reset = power(MaintenanceScope::default(), PowerSequence::Reset);
        let id = fixture.start_accepted(reset).await;
        fixture.wait_for_state("Maintenance").await;
        // Simulated time: m-2 is off by then.
        tokio::time::sleep(Duration::from_secs(30)).await;
        fixture.engine().runs().act(id.clone(), Action::Cancel, requester()).await.expect("ok");
        fixture.wait_until_ended(&id).await;
        let rack = fixture.wait_for_state("Error").await;
        assert!(matches!(rack.state, RackState::Error { .. }));
        fixture.wait_until_released().await;
        let rerun = format!("farrier operation rerun {id}");
        let on = RackPowerOn::of_rack(RackId::trusted(RACK));
        for in_service in [false, true] {
            if in_service {
                let store = &fixture.env.store;
                change(store, "m-2", fixture.env.now(), |one| one.phase = Phase::Ready).await;
            }
            for object in [RACK, id.as_str()] {
                let told = why(fixture.engine(), object).await;
                let words = format!("{id} was canceled");
                assert!(told.headline.contains(&words), "{}", told.headline);
                assert_eq!(told.next_commands[0], on.to_string(), "{told:#?}");
                assert_eq!(offers(&told, &rerun), !in_service, "{told:#?}");
            }
        }
        fixture.env.sim.clear_faults(None).expect("cleared");
        let healed = fixture.start_accepted(on.request()).await;
        assert_eq!(fixture.wait_until_ended(&healed).await.phase(), RunPhase::Succeeded);
        fixture.wait_for_state("Ready").await;
        let told = why(fixture.engine(), RACK).await;
        assert!(!offers(&told, &on.to_string()), "{told:#?}");
    });
}

/// Commands are tried as dry runs before they are offered: one that a gate refuses is left out.
#[test]
fn a_command_that_would_be_refused_is_not_offered() {
    simulate(async {
        let fixture = RackFixture::ready().await;
        let store = &fixture.env.store;
        let off = |machine: &mut Machine| {
            let reason = model::condition::POWERED_OFF;
            let off = ConditionObservation::new(ConditionType::Reachable, false, reason);
            machine.learn(&[off], machine.updated_at);
        };
        let on = "farrier machine power m-1 on";
        change(store, "m-1", fixture.env.now(), off).await;
        let told = why(fixture.engine(), "m-1").await;
        assert_eq!(told.next_commands[0], on, "{told:#?}");
        // Reimaging follows the command that leads into maintenance.
        let enter = "farrier enter-maintenance m-1";
        assert!(offers(&told, enter) && offers(&told, "farrier reimage m-1"), "{told:#?}");
        // An alert that prevents changes refuses all of them.
        change(store, "m-1", fixture.env.now(), |machine| {
            let alert = model::health::BlockingAlert {
                source: "dc".into(),
                alert: "leak".into(),
                message: "water".into(),
            };
            machine.health.state_changes = Some(alert);
        })
        .await;
        let told = why(fixture.engine(), "m-1").await;
        for command in [on, enter, "farrier reimage m-1"] {
            assert!(!offers(&told, command), "{command}: {told:#?}");
        }
        // The rack's command is refused with its device.
        let mut rack = fixture.view().await.rack;
        assert!(matches!(rack.state, RackState::Ready));
        let failure = model::lifecycle::DeviceFailure {
            message: "op-9 was canceled".into(),
            run: Some(RunId::trusted("op-9")),
            code: String::new(),
        };
        let cause = model::rack::RackFailure {
            phase: model::rack::RackFailurePhase::PowerSequence,
            device: None,
            failure,
            next_command: "farrier rack get rack-1".into(),
            canceled: true,
        };
        rack.state = RackState::Error { cause };
        let input = (rack, event(fixture.env.now()));
        let written = store.write("change", input, |(rack, event), tx| {
            let mut rack = rack.clone();
            Box::pin(async move { tx.update_and_enqueue(&mut rack, event) })
        });
        written.await.expect("written");
        let on = RackPowerOn::of_rack(RackId::trusted(RACK)).to_string();
        let told = why(fixture.engine(), RACK).await;
        assert!(!offers(&told, &on), "{told:#?}");
        change(store, "m-1", fixture.env.now(), |one| one.health.state_changes = None).await;
        let told = why(fixture.engine(), RACK).await;
        assert_eq!(told.next_commands[0], on, "{told:#?}");
    });
}

/// An adoption is offered only where the goal of the step may hold: its dry run asks the device.
#[test]
fn an_adoption_that_would_fail_is_not_offered() {
    simulate(async {
        let (env, process, client) = in_maintenance().await;
        let differs = FaultRule { code: Some(FaultCode::FirmwareDiffers), ..fails("power") };
        env.sim.add_fault(differs).expect("a rule");
        // The machine is on.
        for (change, holds) in [(PowerChange::Off, false), (PowerChange::On, true)] {
            let plan = change.plan_id();
            let id = run(&client, RunType::Power, Some(plan.as_str()), RunPhase::Failed).await;
            let told = why(&process.engine, MACHINE).await;
            let adopt = format!("farrier operation adopt {id}");
            assert_eq!(offers(&told, &adopt), holds, "{change:?}: {told:#?}");
            let retry = format!("farrier operation retry-step {id}");
            assert!(offers(&told, &retry), "{change:?}: {told:#?}");
        }
    });
}

/// A rack in Error whose machines are in service: what moves their work away comes first, then the
/// repetition with an override. Both are accepted, and the machines are named.
#[test]
fn a_rack_in_error_under_machines_in_service_has_a_way_out() {
    simulate(async {
        let fixture = RackFixture::ready().await;
        fixture.fail("m-1", "power");
        let scope = MaintenanceScope {
            machines: ["m-1", "m-2"].map(MachineId::trusted).to_vec(),
            ..MaintenanceScope::default()
        };
        let id = fixture.start_accepted(power(scope, PowerSequence::Off)).await;
        assert_eq!(fixture.wait_until_ended(&id).await.phase(), RunPhase::Failed);
        fixture.wait_for_state("Error").await;
        fixture.wait_until_released().await;
        let plain = |word: &str| format!("farrier operation {word} {id}");
        let overriding = format!("{} --override in-service --reason …", plain("rerun"));
        let told = why(fixture.engine(), RACK).await;
        assert!(!offers(&told, &overriding), "nothing is in service: {told:#?}");
        let store = &fixture.env.store;
        for machine in ["m-1", "m-2"] {
            change(store, machine, fixture.env.now(), |one| one.phase = Phase::Ready).await;
        }
        let drain = |machine: &str| format!("farrier enter-maintenance {machine} --drain");
        let told = why(fixture.engine(), RACK).await;
        let first: Vec<&String> = told.next_commands.iter().take(3).collect();
        assert_eq!(first, [&drain("m-1"), &drain("m-2"), &overriding], "{told:#?}");
        let affects = "machines that are needed, which a repetition would affect: m-1, m-2";
        assert!(told.headline.ends_with(affects), "{}", told.headline);
        assert!(!offers(&told, &plain("retry-step")), "it is refused: {told:#?}");
        let note = "m-2 is in service and not drained".to_string();
        assert!(told.notes.contains(&note), "{told:#?}");
        let listed = fixture.engine().attention(9, None).await.expect("the list");
        let item = listed.items.iter().find(|item| item.id == RACK).expect("the rack");
        assert_eq!(item.explained.explanation.next_command(), Some(&*drain("m-1")));
        assert!(item.explained.explanation.headline.ends_with(affects), "{item:?}");
        // What is printed leads on: with both in maintenance, nothing needs an override.
        let client = Client::new(fixture.engine());
        for machine in ["m-1", "m-2"] {
            let plan = Some(Maintenance::EnterDraining.plan_id());
            let enter = RunType::EnterMaintenance;
            let run = client.start_with_plan(machine, enter, plan, "in".into()).await.expect("ok");
            assert_eq!(client.wait_until_ended(&run).await.phase(), RunPhase::Succeeded);
        }
        let told = why(fixture.engine(), RACK).await;
        assert!(!offers(&told, &overriding), "{told:#?}");
        assert!(!told.headline.contains("machines that are needed"), "{}", told.headline);
    });
}

/// A rack and a device in Error name the repair of the fault before the repetition of what failed,
/// and the operation that came after a failed one is named by that.
#[test]
fn an_error_names_the_repairs_of_its_fault() {
    simulate(async {
        let fixture = RackFixture::ready().await;
        let store = &fixture.env.store;
        let unknown = RackMaintenanceRequest {
            scope: MaintenanceScope::default(),
            activities: vec![RequestedActivity::FirmwareUpgrade(Some(FirmwareId::trusted("no")))],
        };
        let id = fixture.start_accepted(unknown).await;
        fixture.wait_for_state("Error").await;
        let plain = format!("farrier rack maintenance start {RACK}");
        for object in [RACK, id.as_str()] {
            let told = why(fixture.engine(), object).await;
            assert_eq!(told.next_commands[..2], ["farrier firmware list", &plain], "{told:#?}");
            assert!(!told.waiting_for.contains("waits for"), "{told:#?}");
        }
        // The gate refuses the maintenance, so `why` offers the commands that satisfy or pass it.
        change(store, "m-1", fixture.env.now(), |one| one.phase = Phase::Ready).await;
        for object in [RACK, id.as_str()] {
            let told = why(fixture.engine(), object).await;
            let [list, drain, again, ..] = told.next_commands.as_slice() else {
                panic!("{told:#?}")
            };
            assert_eq!(list, "farrier firmware list");
            assert_eq!(drain, "farrier enter-maintenance m-1 --drain");
            assert_eq!(*again, format!("{plain} --override in-service --reason …"));
            assert!(!offers(&told, &plain), "it is refused: {told:#?}");
        }
        change(store, "m-1", fixture.env.now(), |one| one.phase = Phase::Maintenance).await;
        let whole = fixture.start_accepted(RackMaintenanceRequest::default()).await;
        assert_eq!(fixture.wait_until_ended(&whole).await.phase(), RunPhase::Succeeded);
        let told = why(fixture.engine(), id.as_str()).await;
        assert!(told.headline.ends_with(&format!("; {whole} came after it")), "{told:#?}");
        assert_eq!(told.next_commands[0], format!("farrier why {RACK}"));
        fixture.wait_until_released().await;
        // The login of a power shelf is refused.
        let refused = FaultRule {
            machine: "ps-1".into(),
            code: Some(FaultCode::LoginRefused),
            ..fails("power")
        };
        fixture.env.sim.add_fault(refused).expect("a rule");
        let off = PowerChangeRequest {
            ids: vec![PowerShelfId::trusted("ps-1")],
            operation: DesiredPower::Off,
            initiator: "ada".into(),
            overrides: Overrides::default(),
            request_id: None,
        };
        fixture.engine().power_shelves().maintain(off).await.expect("accepted");
        let told = loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let told = why(fixture.engine(), "ps-1").await;
            if told.fault.is_some() {
                break told;
            }
        };
        let commands = ["farrier credential list", "farrier power-shelf retry ps-1"];
        assert_eq!(told.next_commands[..2], commands, "{told:#?}");
    });
}

/// The upgrade of a rack stops at one machine, before it comes to the other: the rack is the one
/// row of the list, and the printed command makes all of them well.
#[test]
fn an_upgrade_of_a_rack_that_stops_is_one_row() {
    simulate(async {
        let rack_limits = RackLimits { at_once: 1, ..RackLimits::default() };
        let settings = Settings { replica: "a".into(), rack_limits, ..Settings::default() };
        let expected = Counts { machines: 2, switches: 2, power_shelves: 1 };
        let fixture = RackFixture::with_settings(settings, expected).await;
        fixture.add_devices().await;
        fixture.wait_for_state("Ready").await;
        fixture.wait_until_released().await;
        let broken = FaultRule {
            machine: "m-1".into(),
            code: Some(FaultCode::FirmwareFailed),
            ..fails("firmware")
        };
        fixture.env.sim.add_fault(broken).expect("a rule");
        let upgrade = RackMaintenanceRequest {
            scope: MaintenanceScope::default(),
            activities: vec![RequestedActivity::FirmwareUpgrade(None)],
        };
        let id = fixture.start_accepted(upgrade).await;
        assert_eq!(fixture.wait_until_ended(&id).await.phase(), RunPhase::Failed);
        fixture.wait_for_state("Error").await;
        fixture.wait_until_released().await;
        // Simulated time: the records of the firmware have moved by then.
        tokio::time::sleep(Duration::from_secs(30)).await;
        let listed = fixture.engine().attention(9, None).await.expect("the list").items;
        let [rack] = listed.as_slice() else { panic!("one cause is one row: {listed:#?}") };
        assert_eq!(rack.id, RACK);
        let machines = ["m-1", "m-2"].map(|id| ListedObject::new("machine", id));
        assert_eq!(rack.explains, machines);
        let told = why(fixture.engine(), RACK).await;
        let retry = format!("farrier operation retry-step {id}");
        let commands = ["farrier machine console-log m-1", &retry];
        assert_eq!(told.next_commands[..2], commands, "{told:#?}");
        // The retry is refused once another operation has followed on one of its machines.
        let client = Client::new(fixture.engine());
        let enter = client.start("m-2", RunType::EnterMaintenance, "in".into()).await.expect("ok");
        client.wait_until_ended(&enter).await;
        let told = why(fixture.engine(), RACK).await;
        let rerun = format!("farrier operation rerun {id}");
        assert_eq!(
            told.next_commands[..2],
            ["farrier machine console-log m-1", &rerun],
            "{told:#?}"
        );
        fixture.env.sim.clear_faults(None).expect("cleared");
        let runs = fixture.engine().runs();
        let again = runs.restart(id, RestartMode::Rerun, "again".into(), requester());
        let again = again.await.expect("accepted").run.spec.id;
        assert_eq!(fixture.wait_until_ended(&again).await.phase(), RunPhase::Succeeded);
        fixture.wait_for_state("Ready").await;
        tokio::time::sleep(Duration::from_secs(30)).await;
        let listed = fixture.engine().attention(9, None).await.expect("the list");
        assert!(listed.items.is_empty(), "{listed:#?}");
    });
}

/// The check at the end of an upgrade does not find a machine that never joined: the printed
/// commands join it, and then the upgrade succeeds.
#[test]
fn an_upgrade_of_a_machine_that_never_joined_is_repaired_by_a_join() {
    simulate(async {
        let (env, process, client) = in_maintenance().await;
        change(&env.store, MACHINE, env.now(), |one| {
            let outside = ConditionType::InCustomerCluster;
            one.learn(&[ConditionObservation::new(outside, false, "NotJoined")], one.updated_at);
        })
        .await;
        let upgrade = run(&client, RunType::Upgrade, None, RunPhase::Failed).await;
        let told = why(&process.engine, MACHINE).await;
        assert_eq!(told.next_commands[0], "farrier operation start m-1 --type JOIN", "{told:#?}");
        run(&client, RunType::Join, None, RunPhase::Succeeded).await;
        let told = why(&process.engine, MACHINE).await;
        let rerun = format!("farrier operation rerun {upgrade}");
        assert_eq!(told.next_commands[0], rerun, "{told:#?}");
        let runs = process.engine.runs();
        let again = runs.restart(upgrade, RestartMode::Rerun, "again".into(), requester());
        let again = again.await.expect("accepted").run.spec.id;
        assert_eq!(client.wait_until_ended(&again).await.phase(), RunPhase::Succeeded);
    });
}

/// The only power shelf of a rack is off: the machine that does not answer names it as the cause.
#[test]
fn a_machine_without_power_names_its_power_shelf() {
    simulate(async {
        let fixture = RackFixture::ready().await;
        let store = &fixture.env.store;
        change(store, "m-1", fixture.env.now(), |machine| {
            machine.phase = Phase::Ready;
            let reason = "host-unreachable";
            let lost = ConditionObservation::new(ConditionType::Reachable, false, reason);
            machine.learn(&[lost], machine.updated_at);
        })
        .await;
        let cause = "no power shelf that feeds m-1 is on: ps-1 is off";
        let told = why(fixture.engine(), "m-1").await;
        assert!(!told.headline.contains(cause), "{}", told.headline);
        let input = event(fixture.env.now());
        let written = store.write("change", input, |event, tx| {
            Box::pin(async move {
                let shelf = tx.record_locked::<PowerShelf>("ps-1").await?.expect("a shelf");
                let power = Some(DesiredPower::Off);
                let facts = DeviceFacts { power, ..shelf.facts.clone() };
                let mut shelf = PowerShelf { facts, ..shelf };
                tx.update_and_enqueue(&mut shelf, event)
            })
        });
        written.await.expect("written");
        let told = why(fixture.engine(), "m-1").await;
        assert!(told.headline.ends_with(cause), "{}", told.headline);
        let on = "farrier power-shelf maintenance power-on --id ps-1";
        assert_eq!(told.next_commands[0], on, "{told:#?}");
        let listed = fixture.engine().attention(9, None).await.expect("the list");
        // The list has one row for the cause, which names what it explains.
        let ids: Vec<&str> = listed.items.iter().map(|item| item.id.as_str()).collect();
        assert_eq!(ids, ["ps-1"], "{listed:#?}");
        let item = &listed.items[0];
        assert_eq!((item.kind, item.urgency), ("power_shelf", Urgency::OutOfService));
        assert_eq!(item.explains, [ListedObject::new("machine", "m-1")]);
        assert!(item.explained.explanation.headline.starts_with("ps-1 is off"), "{item:?}");
        assert_eq!(item.explained.explanation.next_command(), Some(on));
    });
}
