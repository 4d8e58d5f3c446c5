//! Requests for a maintenance: its scope, its order, and the machines that it may not take down.

use super::*;

/// The steps of a plan: names, and the number of devices of each.
fn step_sizes(planned: &PlannedMaintenance) -> Vec<(String, usize)> {
    let count = |effect: &Effect| match effect {
        Effect::ChildRuns { group } => group.child_runs.len(),
        other => panic!("{other:?}"),
    };
    planned.steps.iter().map(|step| (step.name.clone(), count(&step.effect))).collect()
}

#[test]
fn power_goes_up_from_the_shelves_and_down_from_the_machines() {
    let only = |sequence| RackMaintenanceRequest {
        scope: MaintenanceScope::default(),
        activities: vec![RequestedActivity::PowerSequence(sequence)],
    };
    let names = |sequence| {
        let rack_steps = step_sizes(&planned(only(sequence)));
        rack_steps.into_iter().map(|(name, _)| name).collect::<Vec<_>>().join(" ")
    };
    let on = "power-on-shelves power-on-switches power-on-machines";
    let off = "power-off-machines power-off-switches power-off-shelves";
    assert_eq!(names(PowerSequence::On), format!("{on} validate"));
    assert_eq!(names(PowerSequence::Off), format!("{off} validate"));
    assert_eq!(names(PowerSequence::Reset), format!("{off} {on} validate"));
    // Devices without power cannot be validated.
    let rack_steps = step_sizes(&planned(only(PowerSequence::Off)));
    assert_eq!(rack_steps.last(), Some(&("validate".to_string(), 1)));
}

#[test]
fn a_scope_takes_no_more_than_it_names() {
    let scope = MaintenanceScope {
        machines: vec![MachineId::trusted("m-1")],
        ..MaintenanceScope::default()
    };
    let plan = planned(RackMaintenanceRequest { scope, activities: Vec::new() });
    let expected = [("firmware-machines", 1), ("power-on-machines", 1), ("validate", 1)];
    assert_eq!(step_sizes(&plan), expected.map(|(name, count)| (name.to_string(), count)));
    assert!(
        plan.notes.iter().any(|note| note.contains("sw-2 is not in scope")),
        "{:?}",
        plan.notes
    );
    assert_eq!(plan.claims().len(), 1);
    let all = planned(RackMaintenanceRequest::default());
    assert_eq!(all.claims().len(), 4);
    let manager = all.steps.iter().find(|step| step.name == "fabric-manager").expect("a rack step");
    let Effect::ChildRuns { group } = &manager.effect else { panic!("{manager:?}") };
    assert_eq!(
        group.child_runs[0].target.as_str(),
        "sw-2",
        "the lowest place, not the lowest name"
    );
}

#[test]
fn machines_in_service_are_taken_down_only_with_an_override() {
    let serving = |mut all: Vec<RackDevice>| {
        let machine = MachineId::trusted("m-1");
        all[0].affected =
            Some(AffectedMachine { machine, objection: Some(ImpactObjection::InService) });
        all
    };
    let shelves = MaintenanceScope {
        power_shelves: vec![model::id::PowerShelfId::trusted("ps-1")],
        ..MaintenanceScope::default()
    };
    let switches = MaintenanceScope {
        switches: vec![SwitchId::trusted("sw-1")],
        ..MaintenanceScope::default()
    };
    let off = || vec![RequestedActivity::PowerSequence(PowerSequence::Off)];
    let on = || vec![RequestedActivity::PowerSequence(PowerSequence::On)];
    let flash = || vec![RequestedActivity::FirmwareUpgrade(None)];
    let (affected, restarted) =
        (Some("sequence would take power from"), Some("upgrade would restart"));
    let table = [
        (MaintenanceScope::default(), off(), affected),
        (MaintenanceScope::default(), on(), None),
        (MaintenanceScope::default(), flash(), restarted),
        (MaintenanceScope::default(), [flash(), off()].concat(), affected),
        // The machine is out of scope, but this shelf feeds it.
        (shelves.clone(), off(), affected),
        (shelves.clone(), flash(), None),
        (switches, off(), Some("maintenance would take the fabric from")),
    ];
    for (scope, activities, message) in table {
        let desired = RackMaintenanceRequest { scope, activities };
        let given = (FirmwareResolution::Use(Box::new(firmware())), &RackLimits::default());
        let rack = rack(RackState::Ready);
        let devices = serving(devices());
        let planned =
            plan(&rack, &devices, desired.clone(), MaintenanceTrigger::OnDemand, given).unwrap();
        let against = gates(&rack, &planned, &Overrides::default());
        let refusal = against.iter().find(|one| one.reason.as_str() == "MACHINES_IN_SERVICE");
        assert_eq!(refusal.is_some(), message.is_some(), "{desired:?}");
        let reported = refusal.map(|refusal| refusal.message.as_str()).unwrap_or_default();
        assert!(reported.contains(message.unwrap_or_default()), "{reported}");
        let named = Overrides::of(&[Gate::InService], "a fire");
        assert!(gates(&rack, &planned, &named).is_empty(), "{desired:?}");
        let other = Overrides::of(&[Gate::Health], "a fire");
        assert_eq!(gates(&rack, &planned, &other).len(), against.len(), "{desired:?}");
        assert_eq!(request_from_params(&planned.params()), desired, "it reads back as it was");
    }
}

/// A machine with feeds loses power with the last of them, in a plan and in what is left of it.
#[test]
fn feeds_decide_which_machines_a_power_sequence_takes_down() {
    let ps = |name: &str| model::id::PowerShelfId::trusted(name);
    let shelves = MaintenanceScope { power_shelves: vec![ps("ps-1")], ..Default::default() };
    for (feeds, on, expected) in [
        (vec![], true, &["m-1"][..]),
        (vec![ps("ps-1")], true, &["m-1"]),
        (vec![ps("ps-1"), ps("ps-2")], true, &[]),
        (vec![ps("ps-1"), ps("ps-2")], false, &["m-1"]),
        (vec![ps("ps-2")], false, &[]),
        // A shelf outside the rack is not known to stay on.
        (vec![ps("ps-1"), ps("ps-9")], true, &["m-1"]),
        (vec![ps("ps-9")], true, &["m-1"]),
    ] {
        let mut all = devices();
        all.push(RackDevice { stays_on: on, ..device(TargetKind::PowerShelf, "ps-2", 2) });
        for switch in all.iter_mut().filter(|one| one.target.kind == TargetKind::Switch) {
            switch.feeds = vec![ps("ps-2")];
        }
        all[0].feeds.clone_from(&feeds);
        all[0].affected.as_mut().expect("a machine").objection = Some(ImpactObjection::InService);
        let activities = vec![RequestedActivity::PowerSequence(PowerSequence::Off)];
        let desired = RackMaintenanceRequest { scope: shelves.clone(), activities };
        let given = (FirmwareResolution::Skip(String::new()), &RackLimits::default());
        let rack = rack(RackState::Ready);
        let planned = plan(&rack, &all, desired, MaintenanceTrigger::OnDemand, given).unwrap();
        let named: Vec<&str> = planned.affected.iter().map(|one| one.machine.as_str()).collect();
        assert_eq!(named, expected, "{feeds:?} {on}");
        let new = planned.new_run(&rack, &id("op-1"), "ada".into());
        let run = new.into_run(now());
        assert_eq!(admit_resume(&run, &all).is_ok(), expected.is_empty(), "{feeds:?} {on}");
    }
}

/// Rows: the alert is on the rack, or on a device in its scope.
#[test]
fn a_health_report_prevents_a_maintenance_unless_overridden() {
    let bar = BlockingAlert { source: "leak".into(), alert: "water".into(), message: "wet".into() };
    let ill = HealthSummary { alerts: 1, allocations_blocked_by: None, state_changes: Some(bar) };
    let mut on_rack = rack(RackState::Ready);
    on_rack.head.health = ill.clone();
    let mut on_device = planned(RackMaintenanceRequest::default());
    on_device.devices[0].health = ill.clone();
    let well = (rack(RackState::Ready), planned(RackMaintenanceRequest::default()));
    let none = Overrides::default();
    assert!(gates(&well.0, &well.1, &none).is_empty());
    for (rack, planned) in [(&on_rack, &well.1), (&well.0, &on_device)] {
        let refusals = gates(rack, planned, &none);
        let reasons: Vec<&str> = refusals.iter().map(|refusal| refusal.reason.as_str()).collect();
        assert_eq!(reasons, ["HEALTH_PREVENTS"]);
        assert!(refusals[0].message.contains("leak reports water: wet"), "{}", refusals[0]);
        let reason = "it is dry again";
        assert!(gates(rack, planned, &Overrides::of(&[Gate::Health], reason)).is_empty());
        assert_eq!(gates(rack, planned, &Overrides::of(&[Gate::InService], reason)).len(), 1);
    }
    // An ingestion has no override: it waits for the rack, and leaves out the device.
    let discovering = Rack { state: RackState::Discovering, ..on_rack };
    assert!(matches!(
        discovering.next(&context(devices(), vec![]), now()),
        LifecycleDecision::IdleUntil(..)
    ));
    let mut all = devices();
    all[0].health = ill;
    let planned = model::rack::maintenance::ingestion(&context(all.clone(), vec![]));
    assert_eq!(planned.claims().len(), all.len() - 1);
    assert!(planned.notes.iter().any(|note| note.contains("leak reports water: wet")));
}

#[test]
fn a_maintenance_is_asked_for_in_ready_or_error() {
    let pending = Rack { maintenance_requested: vec![id("op-1")], ..rack(RackState::Ready) };
    let requested = Rack { reprovision_requested: Some(id("op-1")), ..rack(RackState::Ready) };
    let changed = Rack { topology_changed: true, ..rack(RackState::Ready) };
    let table = [
        (rack(RackState::Ready), Ok(())),
        (rack(error(RackFailurePhase::Validation)), Ok(())),
        (rack(RackState::Created), Err("RACK_NOT_READY")),
        (rack(RackState::Discovering), Err("RACK_NOT_READY")),
        (rack(stage(MaintenanceStage::PowerSequence)), Err("RACK_NOT_READY")),
        (rack(RackState::Validating), Err("RACK_NOT_READY")),
        (rack(RackState::Deleting), Err("RACK_NOT_READY")),
        (pending, Err("MAINTENANCE_PENDING")),
        (requested, Err("MAINTENANCE_PENDING")),
        (changed, Err("RACK_NOT_READY")),
    ];
    for (rack, expected) in table {
        let admitted = admit(&rack, MaintenanceTrigger::OnDemand);
        let admitted = admitted.map_err(|refusal| refusal.reason.as_str());
        assert_eq!(admitted, expected, "{:?}", rack.state);
    }
}

#[test]
fn an_ingestion_leaves_machines_in_service_and_their_fabric_alone() {
    let mut all = devices();
    let machine = MachineId::trusted("m-1");
    all[0].affected =
        Some(AffectedMachine { machine, objection: Some(ImpactObjection::InService) });
    let LifecycleDecision::Transition(change) =
        rack(RackState::Discovering).next(&context(all, Vec::new()), now())
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
        FirmwareResolution::Use(Box::new(Firmware { components, ..firmware() }))
    };
    let all_kinds = [TargetKind::Machine, TargetKind::Switch, TargetKind::PowerShelf];
    let rack_steps = |serves: bool, kinds: &[TargetKind]| {
        let mut all = devices();
        all.push(device(TargetKind::Machine, "m-2", 11));
        if serves {
            let machine = MachineId::trusted("m-1");
            all[0].affected =
                Some(AffectedMachine { machine, objection: Some(ImpactObjection::InService) });
        }
        let observed = RackTurnInput { firmware: everything(kinds), ..context(all, Vec::new()) };
        let planned = model::rack::maintenance::ingestion(&observed);
        let flashed = planned.steps.iter().filter(|step| step.name.starts_with("firmware-"));
        let flashed: Vec<String> = flashed.map(|step| step.name.clone()).collect();
        let checked = planned.steps.iter().find(|step| step.name == "validate").unwrap();
        let expected = checked.effect.group().unwrap().child_runs.iter().filter(|part| {
            let Effect::Device { work: DeviceWork::Check { firmware, .. } } = &part.steps[0].effect
            else {
                panic!("{part:?}")
            };
            !firmware.is_empty()
        });
        let expected = expected.map(|part| part.target.to_string()).collect::<Vec<_>>().join(" ");
        let message = planned.notes.iter().any(|note| note.contains("are not flashed under"));
        (flashed.join(" "), expected, message, planned.firmware.is_some())
    };
    let row = |flashed: &str, expected: &str, message, used| {
        (flashed.to_string(), expected.to_string(), message, used)
    };
    let every = "firmware-machines firmware-switches firmware-power-shelves";
    let table = [
        (false, &all_kinds[..], row(every, "m-1 m-2 sw-2 sw-1 ps-1", false, true)),
        (true, &all_kinds[..], row("firmware-machines", "m-2", true, true)),
        (true, &all_kinds[..1], row("firmware-machines", "m-2", false, true)),
        (true, &all_kinds[1..], row("", "", true, false)),
    ];
    for (serves, kinds, expected) in table {
        assert_eq!(rack_steps(serves, kinds), expected, "{serves} {kinds:?}");
    }
}
