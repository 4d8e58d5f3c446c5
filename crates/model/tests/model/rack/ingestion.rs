//! Machines that an ingestion leaves out: remembered, shown, and forgotten when they are covered.

use crate::racks::{context, devices, error, now, operation, rack};
use model::blast_radius::{AffectedMachine, ImpactObjection};
use model::id::{MachineId, NodeId, RunId};
use model::lifecycle::{Lifecycle, LifecycleDecision};
use model::machine::view::EffectiveState;
use model::rack::maintenance::RackStep;
use model::rack::{
    Counts, MaintenanceStage, Rack, RackContext, RackDevice, RackDeviceState, RackFailurePhase,
    RackOperation, RackState, RackTurnInput, explain,
};
use model::run::RunPhase;

/// The devices of the rack, with this objection to taking m-1 down.
fn devices_with(objection: Option<ImpactObjection>) -> Vec<RackDevice> {
    let mut all = devices();
    let machine = MachineId::trusted("m-1");
    all[0].affected = Some(AffectedMachine { machine, objection });
    all
}

fn step(rack: &Rack, observed: &RackTurnInput) -> Rack {
    match rack.next(observed, now()) {
        LifecycleDecision::Transition(change) => change.record,
        other => panic!("no transition: {other:?}"),
    }
}

/// An ingested rack that has left out m-1.
fn ingested() -> Rack {
    let serving = devices_with(Some(ImpactObjection::InService));
    let rack = step(&rack(RackState::Discovering), &context(serving, Vec::new()));
    assert_eq!(rack.not_ingested, [MachineId::trusted("m-1")]);
    rack
}

#[test]
fn what_was_left_out_is_stored_with_the_rack() {
    let stored = serde_json::to_value(ingested()).unwrap();
    let read: Rack = serde_json::from_value(stored.clone()).unwrap();
    assert_eq!(read, ingested());
    // A record of an older version has left nothing out.
    let mut old = stored;
    old.as_object_mut().unwrap().remove("not_ingested");
    let read: Rack = serde_json::from_value(old).unwrap();
    assert!(read.not_ingested.is_empty());
    // Without a machine in service, nothing is left out.
    let all = step(&rack(RackState::Discovering), &context(devices(), Vec::new()));
    assert!(all.not_ingested.is_empty());
}

/// Another operation would clear what an operator has to decide.
#[test]
fn a_machine_that_waits_for_an_operator_is_left_out() {
    let mut waiting = devices();
    waiting[0].state = RackDeviceState::Machine(EffectiveState::Attention);
    let observed = context(waiting.clone(), Vec::new());
    let LifecycleDecision::Transition(change) = rack(RackState::Discovering).next(&observed, now())
    else {
        panic!("no transition");
    };
    let m_1 = &waiting[0].target;
    assert!(change.start.iter().all(|run| !run.claims.contains(m_1)), "{change:?}");
    assert_eq!(change.record.not_ingested, [MachineId::trusted("m-1")]);
    let left_out = change.record.list_not_ingested(&waiting);
    let start = "farrier rack maintenance start rack-1 --machine m-1";
    assert_eq!(left_out[0].next_command, format!("farrier why m-1   # then: {start}"));
}

/// Rows: the operation that ended, and whether m-1 is still left out after it.
#[test]
fn a_maintenance_that_covers_a_machine_ingests_it() {
    let done = |brings_into_service| RackOperation {
        brings_into_service,
        ..operation("op-fresh", RunPhase::Succeeded, Some(RackStep::Validate))
    };
    let elsewhere = RackOperation { claims: vec![devices().remove(1).target], ..done(true) };
    let failed = operation("op-fresh", RunPhase::Failed, Some(RackStep::Validate));
    for (name, ended, left) in [
        ("firmware on m-1", done(true), false),
        ("only power", done(false), true),
        ("another device", elsewhere, true),
        ("a failure", failed, true),
    ] {
        let stage = MaintenanceStage::Completed;
        let mut rack = Rack { state: RackState::Maintenance { stage }, ..ingested() };
        let observed = context(Vec::new(), vec![ended]);
        while matches!(rack.state, RackState::Maintenance { .. } | RackState::Validating) {
            rack = step(&rack, &observed);
        }
        assert_eq!(!rack.not_ingested.is_empty(), left, "{name}");
    }
}

#[test]
fn a_rediscovery_keeps_what_is_left_out_until_it_is_covered() {
    // It is drained by now: the next ingestion has it in scope, and its end forgets it.
    let rack = Rack { state: RackState::Discovering, ..ingested() };
    let rack = step(&rack, &context(devices(), Vec::new()));
    assert_eq!(rack.not_ingested, [MachineId::trusted("m-1")]);
    // It has left the rack.
    let gone: Vec<RackDevice> = devices().into_iter().skip(1).collect();
    let mut smaller = Rack { state: RackState::Discovering, ..ingested() };
    smaller.spec.expected.machines = 0;
    assert!(step(&smaller, &context(gone, Vec::new())).not_ingested.is_empty());
}

/// Each objection, and the command that leads to the ingestion of the machine.
#[test]
fn why_names_the_command_that_ingests() {
    let start = "farrier rack maintenance start rack-1 --machine m-1";
    for (objection, first) in [
        (Some(ImpactObjection::InService), "farrier enter-maintenance m-1 --drain"),
        (Some(ImpactObjection::Serves(NodeId::trusted("node-1"))), "farrier node drain node-1"),
        (Some(ImpactObjection::HeldBy(RunId::trusted("op-7"))), "farrier why op-7"),
        (None, ""),
    ] {
        let rack = Rack { state: RackState::Ready, ..ingested() };
        let left_out = rack.list_not_ingested(&devices_with(objection));
        let expected = match first {
            "" => start.to_string(),
            first => format!("{first}   # then: {start}"),
        };
        assert_eq!(left_out[0].next_command, expected);
        let told =
            explain(&rack, RackContext { left_out: &left_out, ..RackContext::default() }, now());
        assert!(told.next_commands.contains(&expected), "{:?}", told.next_commands);
        assert!(told.notes.iter().any(|note| note.ends_with("left out: m-1")), "{:?}", told.notes);
    }
}

/// Texts of a dry run about a rack in every state.
#[test]
fn a_dry_run_names_the_rediscovery() {
    let stage = MaintenanceStage::PowerSequence;
    let one = Counts { machines: 1, ..Counts::default() };
    for (state, words) in [
        (RackState::Created, "goes on to look for its devices; when all are there, a maintenance"),
        (RackState::Discovering, "goes on to look for its devices"),
        (RackState::Maintenance { stage }, "again after its maintenance"),
        (RackState::Validating, "again after its maintenance"),
        (RackState::Ready, "looks for all its devices again; when all are there, a maintenance"),
        (error(RackFailurePhase::Discovery), "leaves Error and looks for all its devices again"),
        (error(RackFailurePhase::PowerSequence), "stays in Error until an operator resolves it"),
        (RackState::Deleting, "does not look for devices"),
    ] {
        let said = rack(state).predict_rediscovery(one, &[]);
        assert!(said.starts_with("rack-1 ") && said.contains(words), "{said}");
    }
    // It waits for what is missing after the change.
    let expects = Counts { machines: 2, switches: 1, power_shelves: 0 };
    for (there, waits) in [
        (expects, None),
        (
            Counts { machines: 1, ..expects },
            Some("; until then it waits: 1 of 2 machines stand in it"),
        ),
        (Counts::default(), Some("0 of 2 machines stand in it, 0 of 1 switches stand in it")),
    ] {
        let mut rack = rack(RackState::Ready);
        rack.spec.expected = expects;
        let said = rack.predict_rediscovery(there, &[]);
        assert_eq!(said.contains("until then it waits"), waits.is_some(), "{said}");
        assert!(said.ends_with(waits.unwrap_or("are left out")), "{said}");
    }
    // The same as the rack itself: one without devices waits, and so does one with a device that
    // has not come into service.
    let mut bare = rack(RackState::Ready);
    bare.spec.expected = Counts::default();
    let said = bare.predict_rediscovery(Counts::default(), &[]);
    assert!(said.ends_with("until then it waits: no device stands in it"), "{said}");
    let mut known = devices();
    let there = Counts::of(known.iter().map(|device| &device.target));
    known[0].ready = false;
    let said = bare.predict_rediscovery(there, &known);
    let waits = format!("it waits: {} is {}", known[0].target, known[0].state.as_str());
    assert!(said.ends_with(&waits), "{said}");
    let pending = vec![RunId::trusted("op-7")];
    let rack = Rack { maintenance_requested: pending, ..rack(RackState::Ready) };
    assert!(rack.predict_rediscovery(one, &[]).contains("cancels op-7"));
}
