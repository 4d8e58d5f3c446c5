//! The lifecycle of a rack as tables: every state with every input, as in the document; and the
//! plans of maintenances.

use crate::support::spec;
use model::blast::{Against, Dark};
use model::effect::{DeviceWork, Effect};
use model::firmware::{Component, Firmware, Resolution};
use model::health::{Bar, Standing};
use model::id::{FirmwareId, MachineId, RunId, SwitchId};
use model::lifecycle::{Change, Head, Lifecycle, Next, Trouble};
use model::machine::Labels;
use model::rack::maintenance::{
    Asked, FORCED, Leg, Limits, Planned, PowerSequence, Scope, Trigger, Wanted, admit, gates,
    may_go_on, plan, wanted_of,
};
use model::rack::{
    Counts, Device, During, Operation, Rack, RackSpec, RackState, RackTrouble, Seen, Stage,
};
use model::run::{Run, RunPhase, RunSpec};
use model::target::{TargetId, TargetKind};
use model::time::Timestamp;
use std::collections::BTreeMap;
use std::time::Duration;

const BEGUN: Timestamp = Timestamp::from_millis(1_000_000);

fn now() -> Timestamp {
    BEGUN + Duration::from_secs(60)
}

fn id(text: &str) -> RunId {
    RunId::trusted(text)
}

fn rack(state: RackState) -> Rack {
    let head = Head::new("rack-1", Labels::new(), BEGUN);
    let expected = Counts { machines: 1, switches: 2, power_shelves: 1 };
    let spec = RackSpec { hardware_type: "gb200".into(), expected };
    Rack { state, ..Rack::new(head, spec) }
}

fn error(during: During) -> RackState {
    let trouble = Trouble { said: "it broke".into(), run: None, code: String::new() };
    RackState::Error { cause: RackTrouble { during, device: None, trouble, next: String::new() } }
}

fn stage(stage: Stage) -> RackState {
    RackState::Maintenance { stage }
}

fn device(kind: TargetKind, name: &str, slot: u32) -> Device {
    let dark = Dark { machine: MachineId::trusted(name), against: None };
    Device {
        target: TargetId::new(kind, name),
        slot: Some(slot),
        state: "Ready".into(),
        ready: true,
        active_run: None,
        power: None,
        dark: (kind == TargetKind::Machine).then_some(dark),
        blocked: None,
        health: Standing::default(),
    }
}

fn devices() -> Vec<Device> {
    vec![
        device(TargetKind::Machine, "m-1", 10),
        device(TargetKind::Switch, "sw-2", 3),
        device(TargetKind::Switch, "sw-1", 4),
        device(TargetKind::PowerShelf, "ps-1", 1),
    ]
}

fn operation(name: &str, phase: RunPhase, leg: Option<Leg>) -> Operation {
    let trouble = matches!(phase, RunPhase::Failed | RunPhase::Canceled).then(|| RackTrouble {
        during: leg.map_or(During::FirmwareUpgrade, |_| During::PowerSequence),
        device: Some(TargetId::new(TargetKind::Machine, "m-1")),
        trouble: Trouble { said: "no".into(), run: Some(id(name)), code: String::new() },
        next: format!("farrier run retry-step {name}"),
    });
    let claims = devices().into_iter().map(|device| device.target).collect();
    let (parts_at_work, parent, against) = (false, None, None);
    Operation { id: id(name), phase, leg, parts_at_work, claims, trouble, parent, against }
}

fn seen(devices: Vec<Device>, operations: Vec<Operation>) -> Seen {
    Seen {
        fresh: id("op-fresh"),
        devices,
        operations,
        firmware: Resolution::Use(Box::new(firmware())),
        limits: Limits::default(),
    }
}

fn firmware() -> Firmware {
    let component = Component {
        name: "BMC".into(),
        version: "2".into(),
        url: "http://f".into(),
        sha256: "0".into(),
    };
    Firmware {
        id: FirmwareId::trusted("fw-1"),
        hardware_type: "gb200".into(),
        description: String::new(),
        components: BTreeMap::from([(TargetKind::Machine, vec![component])]),
        is_default: true,
        available: true,
        created_at: BEGUN,
    }
}

/// The result of a turn in one line.
fn told(next: Next<Rack>) -> String {
    match next {
        Next::Rest(_) => "rests".into(),
        Next::Until(..) => "waits".into(),
        Next::Remove(_) => "is gone".into(),
        Next::Become(change) => {
            let Change { record, start, begin, cancel, .. } = *change;
            let state = match &record.state {
                RackState::Maintenance { stage } => format!("Maintenance/{}", stage.as_str()),
                RackState::Error { cause } => format!("Error/{}", cause.during.as_str()),
                _ => record.word().into(),
            };
            let mut said = state;
            said.extend(start.iter().map(|run| format!(" start {}", run.id)));
            said.extend(begin.iter().map(|id| format!(" begin {id}")));
            said.extend(cancel.iter().map(|(id, _)| format!(" cancel {id}")));
            if record.topology_changed {
                said.push_str(" changed");
            }
            said.extend(record.maintenance_requested.iter().map(|id| format!(" pending {id}")));
            said.extend(record.active.iter().map(|id| format!(" active {id}")));
            said
        }
    }
}

#[test]
fn discovering() {
    let short = || devices().into_iter().skip(1).collect::<Vec<_>>();
    let unready = || {
        let mut all = devices();
        all[1].ready = false;
        all
    };
    let held = || {
        let mut all = devices();
        all[0].active_run = Some(id("op-9"));
        all
    };
    let late = BEGUN + Duration::from_secs(24 * 3_600);
    let changed = Rack { topology_changed: true, ..rack(RackState::Discovering) };
    let mut deleted = rack(RackState::Discovering);
    deleted.head.deleted = true;
    let here = || rack(RackState::Discovering);
    let table = [
        (rack(RackState::Created), Vec::new(), now(), "Discovering"),
        (here(), short(), now(), "waits"),
        (here(), unready(), now(), "waits"),
        (here(), held(), now(), "waits"),
        (here(), held(), late, "Error/Discovery"),
        (here(), short(), late, "Error/Discovery"),
        (here(), unready(), late, "Error/Discovery"),
        (here(), devices(), now(), "Maintenance/FirmwareUpgrade start op-fresh active op-fresh"),
        (changed, devices(), now(), "Discovering"),
        (deleted, devices(), now(), "Deleting"),
    ];
    for (rack, devices, at, expected) in table {
        let seen = seen(devices, Vec::new());
        assert_eq!(told(rack.next(&seen, at)), expected, "{:?} {:?}", rack.state, seen.devices);
    }
}

/// The three flags in the documented order, in both states in which they count.
#[test]
fn what_begins_first() {
    use RunPhase::Pending;
    let flags = |state: RackState, topology: bool, reprovision: bool, maintenance: bool| {
        let mut rack = rack(state);
        rack.topology_changed = topology;
        rack.reprovision_requested = reprovision.then(|| id("op-r"));
        rack.maintenance_requested.extend(maintenance.then(|| id("op-m")));
        rack
    };
    let begins = "Maintenance/FirmwareUpgrade begin op-m active op-m";
    let reprovisions = "Maintenance/FirmwareUpgrade begin op-r active op-r";
    let failed = || error(During::PowerSequence);
    let lacking = || error(During::Discovery);
    let table = [
        (RackState::Ready, [false, false, false], "rests"),
        (RackState::Ready, [false, false, true], begins),
        (RackState::Ready, [false, true, false], reprovisions),
        (RackState::Ready, [false, true, true], "Ready cancel op-m"),
        (RackState::Ready, [true, false, false], "Discovering"),
        (RackState::Ready, [true, false, true], "Discovering cancel op-m"),
        (RackState::Ready, [true, true, false], "Discovering"),
        (RackState::Ready, [true, true, true], "Discovering cancel op-m"),
        (failed(), [false, false, false], "rests"),
        (failed(), [false, false, true], begins),
        (failed(), [false, true, false], reprovisions),
        (failed(), [true, false, false], "rests"),
        (failed(), [true, false, true], &format!("{begins} ").replace("active", "changed active")),
        (lacking(), [false, false, false], "rests"),
        (lacking(), [false, false, true], begins),
        (lacking(), [true, false, false], "Discovering"),
    ];
    for (state, [topology, reprovision, maintenance], expected) in table {
        let rack = flags(state, topology, reprovision, maintenance);
        let operations = vec![operation("op-r", Pending, None), operation("op-m", Pending, None)];
        let seen = seen(devices(), operations);
        let flags = [topology, reprovision, maintenance];
        assert_eq!(told(rack.next(&seen, now())), expected.trim(), "{:?} {flags:?}", rack.state);
        let mut deleted = rack.clone();
        deleted.head.deleted = true;
        assert!(told(deleted.next(&seen, now())).starts_with("Deleting"), "{flags:?}");
    }
}

#[test]
fn what_was_withdrawn_does_not_begin_and_a_reprovision_waits_for_its_devices() {
    let mut pending = rack(RackState::Ready);
    pending.maintenance_requested = vec![id("op-m")];
    let over = operation("op-m", RunPhase::Canceled, None);
    assert_eq!(told(pending.next(&seen(devices(), vec![over]), now())), "Ready");
    let mut asked = rack(RackState::Ready);
    asked.reprovision_requested = Some(id("op-r"));
    let over = operation("op-r", RunPhase::Canceled, None);
    assert_eq!(told(asked.next(&seen(devices(), vec![over]), now())), "Ready");
    let mut held = devices();
    held[2].active_run = Some(id("op-9"));
    let waiting = operation("op-r", RunPhase::Pending, None);
    let barred = Operation { against: Some("m-1 is held by op-9".into()), ..waiting.clone() };
    assert_eq!(told(asked.next(&seen(held.clone(), vec![waiting]), now())), "waits");
    // The gate is asked again only after all devices are released: the holder may have given way.
    assert_eq!(told(asked.next(&seen(held, vec![barred.clone()]), now())), "waits");
    assert_eq!(told(asked.next(&seen(devices(), vec![barred]), now())), "Ready cancel op-r");
}

#[test]
fn a_maintenance_is_followed_to_its_end() {
    use RunPhase::{Canceled, Failed, Pending, Running, Succeeded};
    let at = |phase, leg| Some(operation("op-1", phase, leg));
    let firmware = Some(Leg::Firmware(TargetKind::Machine));
    let power = Some(Leg::PowerOff(TargetKind::Machine));
    let check = Some(Leg::Validate);
    let fw = || stage(Stage::FirmwareUpgrade);
    let table = [
        (fw(), at(Pending, None), "rests"),
        (fw(), at(Running, firmware), "rests"),
        (fw(), at(Running, Some(Leg::FabricOff)), "Maintenance/ConfigureNmxCluster active op-1"),
        (fw(), at(Running, power), "Maintenance/PowerSequence active op-1"),
        (fw(), at(Running, check), "Maintenance/Completed active op-1"),
        (fw(), at(Succeeded, check), "Maintenance/Completed active op-1"),
        (fw(), at(Failed, None), "Error/FirmwareUpgrade"),
        (fw(), at(Failed, power), "Error/PowerSequence"),
        (fw(), at(Canceled, power), "Error/PowerSequence"),
        (fw(), None, "Error/Validation"),
        (stage(Stage::PowerSequence), at(Running, power), "rests"),
        (stage(Stage::PowerSequence), at(Failed, power), "Error/PowerSequence"),
        (stage(Stage::Completed), at(Running, check), "Validating active op-1"),
        (stage(Stage::Completed), at(Succeeded, check), "Validating active op-1"),
        (stage(Stage::Completed), at(Failed, check), "Error/PowerSequence"),
        (RackState::Validating, at(Running, check), "rests"),
        (RackState::Validating, at(Succeeded, check), "Ready"),
        (RackState::Validating, at(Failed, check), "Error/PowerSequence"),
        (RackState::Ready, at(Running, power), "Maintenance/FirmwareUpgrade active op-1"),
        (error(During::Validation), at(Running, power), "Maintenance/FirmwareUpgrade active op-1"),
        (RackState::Deleting, at(Running, power), "rests"),
        (RackState::Deleting, at(Failed, power), "is gone"),
        (RackState::Deleting, None, "is gone"),
    ];
    for (state, operation, expected) in table {
        let mut rack = rack(state);
        rack.active = vec![id("op-1")];
        let said = format!("{:?} {operation:?}", rack.state);
        let seen = seen(Vec::new(), operation.into_iter().collect());
        assert_eq!(told(rack.next(&seen, now())), expected, "{said}");
    }
}

#[test]
fn several_at_once_are_one_maintenance_until_the_last_has_ended() {
    use RunPhase::{Canceled, Failed, Running};
    let power = Some(Leg::PowerOn(TargetKind::Machine));
    let mut rack = rack(stage(Stage::PowerSequence));
    rack.active = vec![id("op-1"), id("op-2")];
    let both = |first, second| seen(Vec::new(), vec![first, second]);
    let going = operation("op-2", Running, power);
    let failed = operation("op-1", Failed, power);
    assert_eq!(told(rack.next(&both(failed.clone(), going.clone()), now())), "rests");
    let over = operation("op-2", RunPhase::Succeeded, Some(Leg::Validate));
    assert_eq!(told(rack.next(&both(failed, over), now())), "Error/PowerSequence");
    let stopped = Operation { parts_at_work: true, ..operation("op-1", Canceled, power) };
    let over = operation("op-2", RunPhase::Succeeded, Some(Leg::Validate));
    let left = "Maintenance/PowerSequence active op-1";
    assert_eq!(told(rack.next(&both(stopped, over), now())), left);
    let anew = Operation { parent: Some(id("op-1")), ..going.clone() };
    let failed = operation("op-1", Failed, power);
    let left = "Maintenance/PowerSequence active op-2";
    assert_eq!(told(rack.next(&both(failed, anew), now())), left);
    rack.active = vec![id("op-2")];
    rack.maintenance_requested = vec![id("op-1")];
    let pending = operation("op-1", RunPhase::Pending, None);
    let expected = "Maintenance/PowerSequence begin op-1 active op-2 active op-1";
    assert_eq!(told(rack.next(&both(pending.clone(), going.clone()), now())), expected);
    let withdrawn = operation("op-1", Canceled, None);
    let left = "Maintenance/PowerSequence active op-2";
    assert_eq!(told(rack.next(&both(withdrawn, going.clone()), now())), left);
    let barred = Operation { against: Some("m-1 is READY and in service".into()), ..pending };
    let canceled = "Maintenance/PowerSequence cancel op-1 active op-2";
    assert_eq!(told(rack.next(&both(barred, going), now())), canceled);
}

/// Work on healthy devices does not resolve a failure on another one.
#[test]
fn what_failed_is_not_forgotten_by_work_on_others() {
    let mut failed = rack(error(During::FirmwareUpgrade));
    let RackState::Error { cause } = &mut failed.state else { panic!("{failed:?}") };
    cause.device = Some(TargetId::new(TargetKind::Machine, "m-1"));
    failed.maintenance_requested = vec![id("op-2")];
    let ends_in = |claims: &[&str]| {
        let operation = |phase, leg| {
            let one = operation("op-2", phase, leg);
            let claims = one.claims.into_iter().filter(|one| claims.contains(&one.as_str()));
            seen(Vec::new(), vec![Operation { claims: claims.collect(), ..one }])
        };
        let mut rack = failed.clone();
        let mut seen = operation(RunPhase::Pending, None);
        for _ in 0..10 {
            match rack.next(&seen, now()) {
                Next::Become(change) => rack = change.record,
                Next::Rest(_) | Next::Until(..) | Next::Remove(_) => break,
            }
            seen = operation(RunPhase::Succeeded, Some(Leg::Validate));
        }
        (rack.word(), rack.unmended)
    };
    assert_eq!(ends_in(&["sw-1"]), ("Error", None));
    assert_eq!(ends_in(&["m-1"]), ("Ready", None));
    assert_eq!(ends_in(&["m-1", "sw-1"]), ("Ready", None));
}

/// An operation that was accepted or failed long ago passes the gate again, for its remaining
/// steps.
#[test]
fn what_is_left_of_an_operation_needs_leave_again() {
    let run_of = |sequence, at| {
        let asked = vec![Asked::PowerSequence(sequence)];
        let planned = planned(Wanted { scope: Scope::default(), activities: asked });
        let new = planned.new_run(&rack(RackState::Ready), &id("op-1"), "ada".into());
        let mut run = Run::new(RunSpec {
            id: new.id,
            target: new.target,
            steps: new.steps,
            claims: new.claims,
            params: new.params,
            ..spec(Vec::new())
        });
        run.progress.at = at;
        run
    };
    let serving = |run: Option<&str>| {
        let mut all = devices();
        let machine = all.iter_mut().find(|one| one.dark.is_some()).expect("a machine");
        let against = match run {
            None => Against::InService,
            Some(run) => Against::HeldBy(id(run)),
        };
        machine.dark.as_mut().expect("dark").against = Some(against);
        all
    };
    let refused = |run: &Run, devices: &[Device]| may_go_on(run, devices).err().map(|it| it.reason);
    let off = run_of(PowerSequence::Off, 0);
    assert_eq!(refused(&off, &devices()), None);
    assert_eq!(refused(&off, &serving(None)), Some("MACHINES_IN_SERVICE"));
    assert_eq!(refused(&off, &serving(Some("op-2"))), Some("MACHINES_IN_SERVICE"));
    assert_eq!(refused(&off, &serving(Some("op-1"))), None, "it holds them itself");
    assert_eq!(refused(&run_of(PowerSequence::On, 0), &serving(None)), None);
    // Only the last step remains, and it only reads.
    let last = off.progress.steps.len() - 1;
    assert_eq!(refused(&run_of(PowerSequence::Off, last), &serving(None)), None);
    let mut forced = off.clone();
    forced.spec.params.insert(FORCED.into(), "fire".into());
    assert_eq!(refused(&forced, &serving(None)), None);
    assert_eq!(refused(&off, &devices()[1..]), Some("DEVICE_MOVED"));
}

/// Reconfiguring the fabric interrupts distributed workloads, whatever else is in scope.
#[test]
fn whoever_is_in_service_keeps_the_fabric() {
    let serving = |against: Option<Against>| {
        let mut all = devices();
        let machine = MachineId::trusted("m-1");
        all[0].dark = Some(Dark { machine, against });
        all
    };
    let node = || Against::Serves(model::id::NodeId::trusted("node-1"));
    let fabric = || vec![Asked::ConfigureNmxCluster];
    let power = || vec![Asked::PowerSequence(PowerSequence::On)];
    for (against, asked, refused) in [
        (Some(node()), fabric(), Some("this maintenance would take the fabric from")),
        (Some(Against::InService), fabric(), Some("m-1 is READY and in service")),
        (None, fabric(), None),
        (Some(node()), power(), None),
    ] {
        let wanted = Wanted { scope: Scope::default(), activities: asked };
        let given = (Resolution::Skip("none".into()), &Limits::default());
        let (rack, all) = (rack(RackState::Ready), serving(against));
        let planned = plan(&rack, &all, wanted, Trigger::OnDemand, given).expect("a plan");
        let said =
            model::rack::maintenance::interlock(&planned, None).err().map(|refusal| refusal.said);
        match (&said, refused) {
            (Some(said), Some(words)) => assert!(said.contains(words), "{said}"),
            (said, refused) => assert_eq!(said.as_deref(), refused),
        }
        assert_eq!(model::rack::maintenance::interlock(&planned, Some("fire")), Ok(()));
        let new = planned.new_run(&rack, &id("op-1"), "ada".into());
        let run = Run::new(RunSpec { steps: new.steps, claims: new.claims, ..spec(Vec::new()) });
        assert_eq!(may_go_on(&run, &all).is_err(), refused.is_some());
    }
}

/// The steps of a plan: names, and the number of devices of each.
fn legs(planned: &Planned) -> Vec<(String, usize)> {
    let count = |effect: &Effect| match effect {
        Effect::Parts { group } => group.parts.len(),
        other => panic!("{other:?}"),
    };
    planned.steps.iter().map(|step| (step.name.clone(), count(&step.effect))).collect()
}

fn planned(wanted: Wanted) -> Planned {
    let given = (Resolution::Use(Box::new(firmware())), &Limits::default());
    plan(&rack(RackState::Ready), &devices(), wanted, Trigger::OnDemand, given).expect("a plan")
}

#[test]
fn power_goes_up_from_the_shelves_and_down_from_the_machines() {
    let only = |sequence| Wanted {
        scope: Scope::default(),
        activities: vec![Asked::PowerSequence(sequence)],
    };
    let names = |sequence| {
        let legs = legs(&planned(only(sequence)));
        legs.into_iter().map(|(name, _)| name).collect::<Vec<_>>().join(" ")
    };
    let on = "power-on-shelves power-on-switches power-on-machines";
    let off = "power-off-machines power-off-switches power-off-shelves";
    assert_eq!(names(PowerSequence::On), format!("{on} validate"));
    assert_eq!(names(PowerSequence::Off), format!("{off} validate"));
    assert_eq!(names(PowerSequence::Reset), format!("{off} {on} validate"));
    // Devices without power cannot be validated.
    let legs = legs(&planned(only(PowerSequence::Off)));
    assert_eq!(legs.last(), Some(&("validate".to_string(), 1)));
}

#[test]
fn a_scope_takes_no_more_than_it_names() {
    let scope = Scope { machines: vec![MachineId::trusted("m-1")], ..Scope::default() };
    let plan = planned(Wanted { scope, activities: Vec::new() });
    let expected = [("firmware-machines", 1), ("power-on-machines", 1), ("validate", 1)];
    assert_eq!(legs(&plan), expected.map(|(name, count)| (name.to_string(), count)));
    assert!(
        plan.notes.iter().any(|note| note.contains("sw-2 is not in scope")),
        "{:?}",
        plan.notes
    );
    assert_eq!(plan.claims().len(), 1);
    let all = planned(Wanted::default());
    assert_eq!(all.claims().len(), 4);
    let manager = all.steps.iter().find(|step| step.name == "fabric-manager").expect("a leg");
    let Effect::Parts { group } = &manager.effect else { panic!("{manager:?}") };
    assert_eq!(group.parts[0].target.as_str(), "sw-2", "the lowest place, not the lowest name");
}

#[test]
fn machines_in_service_are_taken_down_by_force_only() {
    let serving = |mut all: Vec<Device>| {
        let machine = MachineId::trusted("m-1");
        all[0].dark = Some(Dark { machine, against: Some(Against::InService) });
        all
    };
    let shelves =
        Scope { power_shelves: vec![model::id::PowerShelfId::trusted("ps-1")], ..Scope::default() };
    let switches = Scope { switches: vec![SwitchId::trusted("sw-1")], ..Scope::default() };
    let off = || vec![Asked::PowerSequence(PowerSequence::Off)];
    let on = || vec![Asked::PowerSequence(PowerSequence::On)];
    let flash = || vec![Asked::FirmwareUpgrade(None)];
    let (dark, restarted) = (Some("sequence would take power from"), Some("upgrade would restart"));
    let table = [
        (Scope::default(), off(), dark),
        (Scope::default(), on(), None),
        (Scope::default(), flash(), restarted),
        (Scope::default(), [flash(), off()].concat(), dark),
        // The machine is out of scope, but this shelf feeds it.
        (shelves.clone(), off(), dark),
        (shelves.clone(), flash(), None),
        (switches, off(), Some("maintenance would take the fabric from")),
    ];
    for (scope, activities, said) in table {
        let wanted = Wanted { scope, activities };
        let given = (Resolution::Use(Box::new(firmware())), &Limits::default());
        let rack = rack(RackState::Ready);
        let devices = serving(devices());
        let planned = plan(&rack, &devices, wanted.clone(), Trigger::OnDemand, given).unwrap();
        let against = gates(&rack, &planned, None);
        let refusal = against.iter().find(|one| one.reason == "MACHINES_IN_SERVICE");
        assert_eq!(refusal.is_some(), said.is_some(), "{wanted:?}");
        let told = refusal.map(|refusal| refusal.said.as_str()).unwrap_or_default();
        assert!(told.contains(said.unwrap_or_default()), "{told}");
        assert!(gates(&rack, &planned, Some("a fire")).is_empty(), "{wanted:?}");
        assert_eq!(gates(&rack, &planned, Some(" ")).len(), 1, "a reason is wanted");
        assert_eq!(wanted_of(&planned.params()), wanted, "it reads back as it was");
    }
}

/// Rows: the alert is on the rack, or on a device in its scope.
#[test]
fn what_is_reported_prevents_a_maintenance_unless_by_force() {
    let bar = Bar { source: "leak".into(), alert: "water".into(), message: "wet".into() };
    let ill = Standing { alerts: 1, allocations: None, state_changes: Some(bar) };
    let mut on_rack = rack(RackState::Ready);
    on_rack.head.health = ill.clone();
    let mut on_device = planned(Wanted::default());
    on_device.devices[0].health = ill.clone();
    let well = (rack(RackState::Ready), planned(Wanted::default()));
    assert!(gates(&well.0, &well.1, None).is_empty());
    for (rack, planned) in [(&on_rack, &well.1), (&well.0, &on_device)] {
        let refusals = gates(rack, planned, None);
        let reasons: Vec<&str> = refusals.iter().map(|refusal| refusal.reason).collect();
        assert_eq!(reasons, ["HEALTH_PREVENTS"]);
        assert!(refusals[0].said.contains("leak reports water: wet"), "{}", refusals[0]);
        assert!(gates(rack, planned, Some("it is dry again")).is_empty());
    }
    // An ingestion has no override: it waits for the rack, and leaves out the device.
    let discovering = Rack { state: RackState::Discovering, ..on_rack };
    assert!(matches!(discovering.next(&seen(devices(), vec![]), now()), Next::Until(..)));
    let mut all = devices();
    all[0].health = ill;
    let planned = model::rack::maintenance::ingestion(&seen(all.clone(), vec![]));
    assert_eq!(planned.claims().len(), all.len() - 1);
    assert!(planned.notes.iter().any(|note| note.contains("leak reports water: wet")));
}

#[test]
fn a_maintenance_is_asked_for_in_ready_or_error() {
    let pending = Rack { maintenance_requested: vec![id("op-1")], ..rack(RackState::Ready) };
    let asked = Rack { reprovision_requested: Some(id("op-1")), ..rack(RackState::Ready) };
    let changed = Rack { topology_changed: true, ..rack(RackState::Ready) };
    let table = [
        (rack(RackState::Ready), Ok(()), Ok(())),
        (rack(error(During::Validation)), Ok(()), Ok(())),
        (rack(RackState::Created), Err("RACK_NOT_READY"), Err("RACK_NOT_READY")),
        (rack(RackState::Discovering), Err("RACK_NOT_READY"), Err("RACK_NOT_READY")),
        (rack(stage(Stage::PowerSequence)), Err("RACK_NOT_READY"), Ok(())),
        (rack(RackState::Validating), Err("RACK_NOT_READY"), Ok(())),
        (rack(RackState::Deleting), Err("RACK_NOT_READY"), Err("RACK_NOT_READY")),
        (pending, Err("MAINTENANCE_PENDING"), Ok(())),
        (asked, Err("MAINTENANCE_PENDING"), Err("MAINTENANCE_PENDING")),
        (changed, Err("RACK_NOT_READY"), Err("RACK_NOT_READY")),
    ];
    for (rack, full, partial) in table {
        let ask = |full| admit(&rack, full, Trigger::OnDemand).map_err(|refusal| refusal.reason);
        assert_eq!((ask(true), ask(false)), (full, partial), "{:?}", rack.state);
    }
}

#[test]
fn an_ingestion_leaves_machines_in_service_and_their_fabric_alone() {
    let mut all = devices();
    let machine = MachineId::trusted("m-1");
    all[0].dark = Some(Dark { machine, against: Some(Against::InService) });
    let Next::Become(change) = rack(RackState::Discovering).next(&seen(all, Vec::new()), now())
    else {
        panic!("it begins")
    };
    let run = &change.start[0];
    assert_eq!(run.claims.len(), 3);
    assert!(run.steps.iter().all(|step| !step.name.starts_with("fabric")));
    assert!(run.steps.iter().all(|step| !step.name.ends_with("machines")));
    assert!(run.params["notes"].contains("m-1"), "{:?}", run.params);
}

/// The users of these machines cannot be asked, so nothing that they use is flashed. Machines that
/// are not in service are upgraded.
#[test]
fn an_ingestion_flashes_nothing_that_machines_in_service_use() {
    let everything = |kinds: &[TargetKind]| {
        let parts = firmware().components.remove(&TargetKind::Machine).unwrap();
        let components = kinds.iter().map(|kind| (*kind, parts.clone())).collect();
        Resolution::Use(Box::new(Firmware { components, ..firmware() }))
    };
    let all_kinds = [TargetKind::Machine, TargetKind::Switch, TargetKind::PowerShelf];
    let legs = |serves: bool, kinds: &[TargetKind]| {
        let mut all = devices();
        all.push(device(TargetKind::Machine, "m-2", 11));
        if serves {
            let machine = MachineId::trusted("m-1");
            all[0].dark = Some(Dark { machine, against: Some(Against::InService) });
        }
        let seen = Seen { firmware: everything(kinds), ..seen(all, Vec::new()) };
        let planned = model::rack::maintenance::ingestion(&seen);
        let flashed = planned.steps.iter().filter(|step| step.name.starts_with("firmware-"));
        let flashed: Vec<String> = flashed.map(|step| step.name.clone()).collect();
        let checked = planned.steps.iter().find(|step| step.name == "validate").unwrap();
        let expected = checked.effect.group().unwrap().parts.iter().filter(|part| {
            let Effect::Device { work: DeviceWork::Check { firmware, .. } } = &part.steps[0].effect
            else {
                panic!("{part:?}")
            };
            !firmware.is_empty()
        });
        let expected = expected.map(|part| part.target.to_string()).collect::<Vec<_>>().join(" ");
        let said = planned.notes.iter().any(|note| note.contains("are not flashed under"));
        (flashed.join(" "), expected, said, planned.firmware.is_some())
    };
    let row = |flashed: &str, expected: &str, said, used| {
        (flashed.to_string(), expected.to_string(), said, used)
    };
    let every = "firmware-machines firmware-switches firmware-power-shelves";
    let table = [
        (false, &all_kinds[..], row(every, "m-1 m-2 sw-2 sw-1 ps-1", false, true)),
        (true, &all_kinds[..], row("firmware-machines", "m-2", true, true)),
        (true, &all_kinds[..1], row("firmware-machines", "m-2", false, true)),
        (true, &all_kinds[1..], row("", "", true, false)),
    ];
    for (serves, kinds, expected) in table {
        assert_eq!(legs(serves, kinds), expected, "{serves} {kinds:?}");
    }
}
