//! The lifecycles of power shelves and switches as tables: every state with every request, holder
//! and run status matches exactly one row.

use crate::support::{at, note, spec};
use model::blast_radius::{AffectedMachine, PoweredDevice};
use model::condition::ConditionType;
use model::device::{Device, known_power};
use model::effect::{DesiredPower, Effect, PowerOffPolicy};
use model::fault::{Fault, FaultCode};
use model::gate::{Gate, Overrides};
use model::health::{BlockingAlert, HealthSummary};
use model::id::{MachineId, PowerShelfId, RackId, RunId};
use model::lifecycle::{
    DeviceContext, DeviceFailure, DeviceSpec, Lifecycle, LifecycleDecision, RecordHeader,
};
use model::machine::{Labels, Machine, MachineSpec, Phase};
use model::plan::{RunStep, RunType};
use model::power_shelf::maintenance::{
    NamedShelf, PowerChangeRequest, initiator, preview_power_change,
};
use model::power_shelf::topology::PowerTopology;
use model::power_shelf::{PowerShelf, PowerShelfState, ShelfPowerRequest};
use model::run::{Failure, Run, Workflow};
use model::switch::{Switch, SwitchState};
use model::target::TargetId;

/// The inputs of a turn, one word each: deleted, requested, retry, held, run.
const DELETED: [&str; 2] = ["no", "deleted"];
const REQUESTS: [&str; 3] = ["no", "on", "off"];
const RETRY: [&str; 2] = ["no", "retry"];
const HOLDERS: [&str; 2] = ["free", "held"];
const RUN: [&str; 4] = ["none", "going", "done", "failed"];

const OTHER: &str = "op-other";
const OWN: &str = "op-own";
const FRESH: &str = "op-fresh";

fn run_of(name: &str, run_type: RunType) -> Option<Run> {
    let mut run =
        Run::new(model::run::RunSpec { id: RunId::trusted(OWN), run_type, ..spec(vec![note(0)]) });
    run.progress.workflow = match name {
        "none" => return None,
        "going" => Workflow::Running,
        "done" => Workflow::Completed,
        "failed" => Workflow::FailedRetryable,
        other => panic!("{other}"),
    };
    if name == "failed" {
        let fault = Fault::new(FaultCode::BmcUnreachable, "no answer");
        run.progress.failure = Some(Failure { step: "read".into(), fault, attempts: 1 });
    }
    Some(run)
}

fn failure() -> DeviceFailure {
    DeviceFailure {
        message: "it broke".into(),
        run: Some(RunId::trusted(OWN)),
        code: String::new(),
    }
}

fn request(operation: DesiredPower) -> ShelfPowerRequest {
    ShelfPowerRequest {
        requested_at: at(0),
        initiator: "ada (T-1)".into(),
        operation,
        overrides: Overrides::default(),
        request_id: None,
    }
}

/// The result of a turn in one line.
fn describe_next<D: Device>(next: LifecycleDecision<D>, requested: impl Fn(&D) -> bool) -> String {
    let change = match next {
        LifecycleDecision::Idle(_) => return "rest".into(),
        LifecycleDecision::IdleUntil(..) => return "until".into(),
        LifecycleDecision::Remove(_) => return "remove".into(),
        LifecycleDecision::Transition(change) => *change,
    };
    assert!(change.begin.is_empty() && change.cancel.is_empty());
    let mut words = vec![change.record.state_name().to_string()];
    for run in &change.start {
        assert_eq!(run.id.as_str(), FRESH);
        assert_eq!(run.target, change.record.target());
        assert_eq!(run.reports_to, Some(change.record.subject()));
        assert_eq!(change.record.head().active_run, Some(RunId::trusted(FRESH)));
        let step = &run.steps[0];
        assert!(step.timeout_seconds > 0, "everything ends");
        words.push(format!("{}/{}", run.run_type.as_str(), step.name));
    }
    if requested(&change.record) {
        words.push("asked".into());
    }
    words.join(" ")
}

/// The one row of the table that matches this case.
#[track_caller]
fn row<'a>(table: &'a str, case: &[&str]) -> &'a str {
    let fits = |line: &&str| {
        let (when, _) = line.split_once("=>").expect("a row");
        let words: Vec<&str> = when.split_whitespace().collect();
        assert_eq!(words.len(), case.len(), "{line}");
        words
            .iter()
            .zip(case)
            .all(|(name, is)| *name == "*" || name.split('|').any(|one| one == *is))
    };
    let rows: Vec<&str> =
        table.lines().filter(|line| !line.trim().is_empty()).filter(fits).collect();
    assert_eq!(rows.len(), 1, "{case:?}: {rows:#?}");
    rows[0].split_once("=>").expect("a row").1.trim()
}

/// The document's transitions, with rules 12 and 13: a failure clears the request, and Error can be
/// left.
const SHELF: &str = "
Initializing      *       *      *     free *        => FetchingData INTAKE/read
Initializing      *       *      *     held *        => rest
FetchingData      *       *      *     *    going    => rest
FetchingData      *       *      *     free done     => Configuring INTAKE/configure
FetchingData      *       *      *     held done     => rest
FetchingData      *       *      *     *    failed|none => Error
Configuring       *       *      *     *    going    => rest
Configuring       *       *      *     *    done     => Ready
Configuring       *       *      *     *    failed|none => Error
Ready             deleted *      *     *    *        => Deleting
Ready             no      no     *     *    *        => rest
Ready             no      on     *     free *        => Maintenance POWER/power-on
Ready             no      off    *     free *        => Maintenance POWER/power-off
Ready             no      on|off *     held *        => rest
PowerOn|PowerOff  *       *      *     *    going    => rest
PowerOn|PowerOff  *       *      *     *    done     => Ready
PowerOn|PowerOff  *       *      *     *    failed|none => Error
Error             deleted *      *     *    *        => Deleting
Error             no      on     *     free *        => Maintenance POWER/power-on
Error             no      off    *     free *        => Maintenance POWER/power-off
Error             no      on|off *     held *        => rest
Error             no      no     retry free *        => FetchingData INTAKE/read
Error             no      no     retry held *        => rest
Error             no      no     no    *    none|going|failed => rest
Error             no      no     no    *    done     => Ready
Deleting          *       *      *     free *        => remove
Deleting          *       *      *     held *        => rest
";

fn shelf_in(name: &str) -> PowerShelf {
    let mut shelf =
        PowerShelf::new(RecordHeader::new("ps-1", Labels::new(), at(0)), DeviceSpec::default());
    shelf.run = Some(RunId::trusted(OWN));
    shelf.state = match name {
        "Initializing" => PowerShelfState::Initializing,
        "FetchingData" => PowerShelfState::FetchingData,
        "Configuring" => PowerShelfState::Configuring,
        "Ready" => PowerShelfState::Ready,
        "PowerOn" => PowerShelfState::Maintenance { operation: DesiredPower::On },
        "PowerOff" => PowerShelfState::Maintenance { operation: DesiredPower::Off },
        "Error" => PowerShelfState::Error { cause: failure() },
        "Deleting" => PowerShelfState::Deleting,
        other => panic!("{other}"),
    };
    shelf
}

#[test]
fn a_power_shelf_does_what_its_table_says() {
    let states = [
        "Initializing",
        "FetchingData",
        "Configuring",
        "Ready",
        "PowerOn",
        "PowerOff",
        "Error",
        "Deleting",
    ];
    let mut cases = 0;
    for state in states {
        for (deleted, requested) in DELETED.iter().flat_map(|one| REQUESTS.map(|two| (*one, two))) {
            for (retry, claimed) in RETRY.iter().flat_map(|one| HOLDERS.map(|two| (*one, two))) {
                for run in RUN {
                    let mut shelf = shelf_in(state);
                    shelf.head.deleted = deleted == "deleted";
                    shelf.maintenance_requested = match requested {
                        "on" => Some(request(DesiredPower::On)),
                        "off" => Some(request(DesiredPower::Off)),
                        _ => None,
                    };
                    shelf.retry_requested = retry == "retry";
                    shelf.head.active_run = (claimed == "held").then(|| RunId::trusted(OTHER));
                    let observed = DeviceContext {
                        fresh: RunId::trusted(FRESH),
                        run: run_of(run, RunType::Power),
                        against: None,
                    };
                    let case = [state, deleted, requested, retry, claimed, run];
                    let next = shelf.next(&observed, at(1));
                    let cleared = clears(state, &shelf, &next);
                    let still = |one: &PowerShelf| one.maintenance_requested.is_some() && !cleared;
                    let reported = describe_next(next, |one| {
                        assert_eq!(one.maintenance_requested.is_some(), still(&shelf), "{case:?}");
                        false
                    });
                    assert_eq!(reported, row(SHELF, &case), "{case:?}");
                    cases += 1;
                }
            }
        }
    }
    assert_eq!(cases, 8 * 2 * 3 * 2 * 2 * 4);
}

/// A request is cleared when its maintenance ends, with or without success, and when the shelf is
/// deleted.
fn clears(state: &str, shelf: &PowerShelf, next: &LifecycleDecision<PowerShelf>) -> bool {
    let left = matches!(next, LifecycleDecision::Transition(_));
    let answered = matches!(state, "PowerOn" | "PowerOff");
    let going = matches!(state, "Ready" | "Error") && shelf.head.deleted;
    left && (answered || going)
}

#[test]
fn a_shelf_in_error_is_read_anew_when_its_reading_succeeded_after_all() {
    let shelf = shelf_in("Error");
    let observed = DeviceContext {
        fresh: RunId::trusted(FRESH),
        run: run_of("done", RunType::Intake),
        against: None,
    };
    assert_eq!(describe_next(shelf.next(&observed, at(1)), |_| false), "FetchingData INTAKE/read");
}

/// A power change does not make a shelf Ready that was never read and configured. A shelf that was
/// Ready before is Ready again, as documented.
#[test]
fn a_shelf_that_was_never_taken_in_is_read_after_its_power_was_switched() {
    let after = |shelf: &PowerShelf, run: &str, kind: RunType| {
        let observed =
            DeviceContext { fresh: RunId::trusted(FRESH), run: run_of(run, kind), against: None };
        let LifecycleDecision::Transition(change) = shelf.next(&observed, at(1)) else {
            panic!("{shelf:?} rests")
        };
        let mut record = change.record;
        // Its run has ended and released it.
        record.head.active_run = None;
        record
    };
    for (state, failing, switched) in [
        ("FetchingData", "failed", "FetchingData"),
        ("Configuring", "failed", "FetchingData"),
        ("Configuring", "done", "Ready"),
    ] {
        let mut shelf = after(&shelf_in(state), failing, RunType::Intake);
        for power in ["done", "failed"] {
            shelf.maintenance_requested = Some(request(DesiredPower::On));
            let going = after(&shelf, "none", RunType::Power);
            assert_eq!(going.state_name(), "Maintenance", "{state} {failing}");
            let ended = after(&going, power, RunType::Power);
            let expected = if power == "done" { switched } else { "Error" };
            assert_eq!(ended.state_name(), expected, "{state} {failing}");
            assert_eq!(ended.maintenance_requested, None);
            if power == "failed" {
                // The power change is resumed and completed: reading is still required.
                assert_eq!(after(&ended, "done", RunType::Power).state_name(), switched);
            } else if switched == "FetchingData" {
                let configuring = after(&ended, "done", RunType::Intake);
                let ready = after(&configuring, "done", RunType::Intake);
                assert_eq!((ready.state_name(), ready.intake_incomplete), ("Ready", false));
            }
        }
    }
}

#[test]
fn the_run_of_a_maintenance_carries_who_asked_and_what_they_called_it() {
    let mut shelf = shelf_in("Ready");
    let mut requested = request(DesiredPower::Off);
    requested.request_id = Some("req-7".into());
    shelf.maintenance_requested = Some(requested);
    let observed = DeviceContext { fresh: RunId::trusted(FRESH), run: None, against: None };
    let LifecycleDecision::Transition(change) = shelf.next(&observed, at(1)) else {
        panic!("it begins")
    };
    let run = &change.start[0];
    assert_eq!((run.initiator.as_str(), run.request_id.as_str()), ("ada (T-1)", "req-7"));
    let to = DesiredPower::Off;
    assert_eq!(
        run.steps[0].effect,
        Effect::Power { to, power_off: PowerOffPolicy::PROVIDER_DEFAULT }
    );
}

const SWITCH: &str = "
Created         deleted *     *    *        => Deleting
Created         no      *     free *        => Initializing INTAKE/read
Created         no      *     held *        => rest
Initializing    *       *     *    going    => rest
Initializing    *       *     free done     => Configuring INTAKE/configure
Initializing    *       *     held done     => rest
Initializing    *       *     *    failed|none => Error
Configuring     *       *     *    going    => rest
Configuring     *       *     free done     => Validating CHECK/validate
Configuring     *       *     held done     => rest
Configuring     *       *     *    failed|none => Error
Validating      *       *     *    going    => rest
Validating      *       *     *    done     => Ready
Validating      *       *     *    failed|none => Error
Ready           deleted *     *    *        => Deleting
Ready           no      *     held *        => ReProvisioning
Ready           no      *     free *        => rest
ReProvisioning  deleted *     free *        => Deleting
ReProvisioning  *       *     held *        => rest
ReProvisioning  no      *     free *        => Validating CHECK/validate
Error           deleted *     *    *        => Deleting
Error           no      *     held *        => ReProvisioning
Error           no      retry free *        => Initializing INTAKE/read
Error           no      no    free none|going|failed => rest
Error           no      no    free done     => Initializing INTAKE/read
Deleting        *       *     held *        => rest
Deleting        *       *     free *        => remove
";

fn switch_in(name: &str) -> Switch {
    let mut switch =
        Switch::new(RecordHeader::new("sw-1", Labels::new(), at(0)), DeviceSpec::default());
    switch.run = Some(RunId::trusted(OWN));
    switch.state = match name {
        "Created" => SwitchState::Created,
        "Initializing" => SwitchState::Initializing,
        "Configuring" => SwitchState::Configuring,
        "Validating" => SwitchState::Validating,
        "Ready" => SwitchState::Ready,
        "ReProvisioning" => SwitchState::ReProvisioning,
        "Error" => SwitchState::Error { cause: failure() },
        "Deleting" => SwitchState::Deleting,
        other => panic!("{other}"),
    };
    switch
}

#[test]
fn a_switch_does_what_its_table_says() {
    let states = [
        "Created",
        "Initializing",
        "Configuring",
        "Validating",
        "Ready",
        "ReProvisioning",
        "Error",
        "Deleting",
    ];
    for state in states {
        for (deleted, retry) in DELETED.iter().flat_map(|one| RETRY.map(|two| (*one, two))) {
            for (claimed, run) in HOLDERS.iter().flat_map(|one| RUN.map(|two| (*one, two))) {
                let mut switch = switch_in(state);
                switch.head.deleted = deleted == "deleted";
                switch.retry_requested = retry == "retry";
                switch.head.active_run = (claimed == "held").then(|| RunId::trusted(OTHER));
                let observed = DeviceContext {
                    fresh: RunId::trusted(FRESH),
                    run: run_of(run, RunType::Intake),
                    against: None,
                };
                let case = [state, deleted, retry, claimed, run];
                let reported = describe_next(switch.next(&observed, at(1)), |_| false);
                assert_eq!(reported, row(SWITCH, &case), "{case:?}");
            }
        }
    }
}

#[test]
fn a_failed_run_that_goes_on_is_not_taken_for_a_maintenance_of_the_rack() {
    let mut switch = switch_in("Error");
    switch.head.active_run = Some(RunId::trusted(OWN));
    let observed = DeviceContext {
        fresh: RunId::trusted(FRESH),
        run: run_of("going", RunType::Intake),
        against: None,
    };
    assert_eq!(describe_next(switch.next(&observed, at(1)), |_| false), "rest");
}

#[test]
fn a_wait_has_a_limit_and_an_idle_state_has_none() {
    for (name, waits) in [
        ("Initializing", true),
        ("FetchingData", true),
        ("Configuring", true),
        ("Ready", false),
        ("PowerOff", true),
        ("Error", false),
        ("Deleting", true),
    ] {
        let shelf = shelf_in(name);
        assert_eq!(shelf.normal_duration().is_some(), waits, "{name}");
        assert_eq!(PowerShelf::WAITING.contains(&shelf.state_name()), waits, "{name}");
        assert!(PowerShelf::STATES.contains(&shelf.state_name()), "{name}");
    }
    for (name, waits) in [
        ("Created", true),
        ("Initializing", true),
        ("Configuring", true),
        ("Validating", true),
        ("ReProvisioning", true),
        ("Ready", false),
        ("Error", false),
        ("Deleting", true),
    ] {
        let switch = switch_in(name);
        assert_eq!(switch.normal_duration().is_some(), waits, "{name}");
        assert_eq!(Switch::WAITING.contains(&switch.state_name()), waits, "{name}");
        assert!(Switch::STATES.contains(&switch.state_name()), "{name}");
    }
}

#[test]
fn power_is_in_doubt_after_a_switching_that_did_not_succeed() {
    let effect =
        Effect::Power { to: DesiredPower::Off, power_off: PowerOffPolicy::PROVIDER_DEFAULT };
    let power = RunStep { name: "power".into(), timeout_seconds: 1, max_retries: 0, effect };
    let run = |step: &RunStep, workflow| {
        let mut run = Run::new(spec(vec![step.clone()]));
        run.progress.workflow = workflow;
        run
    };
    let on = Some(DesiredPower::On);
    for (last, known) in [
        (None, on),
        (Some(run(&power, Workflow::Completed)), on),
        (Some(run(&power, Workflow::FailedRetryable)), None),
        (Some(run(&power, Workflow::Cancelled)), None),
        (Some(run(&power, Workflow::Running)), None),
        (Some(run(&note(0), Workflow::FailedRetryable)), on),
    ] {
        assert_eq!(known_power(on, last.as_ref()), known, "{last:?}");
        assert_eq!(known_power(None, last.as_ref()), None, "{last:?}");
    }
}

#[test]
fn the_initiator_is_that_of_the_document() {
    for (user, reference, expected) in [
        (Some("ada"), Some("https://tracker/M-1"), "ada (https://tracker/M-1)"),
        (Some("ada"), None, "ada"),
        (None, Some("https://tracker/M-1"), "https://tracker/M-1"),
        (None, None, "admin-cli"),
        (Some(" "), Some(""), "admin-cli"),
    ] {
        assert_eq!(initiator(user, reference), expected);
    }
}

fn power_request(ids: &[&str], operation: DesiredPower) -> PowerChangeRequest {
    let ids = ids.iter().map(|id| PowerShelfId::trusted(*id)).collect();
    let initiator = "ada".into();
    PowerChangeRequest {
        ids,
        operation,
        initiator,
        overrides: Overrides::default(),
        request_id: None,
    }
}

#[test]
fn a_request_names_one_to_as_many_as_are_allowed() {
    for (ids, fine) in
        [(&[][..], false), (&["ps-1"], true), (&["ps-1", "ps-2"], true), (&["ps-1"; 3], false)]
    {
        assert_eq!(power_request(ids, DesiredPower::On).checked(2).is_ok(), fine, "{ids:?}");
    }
    let twice = power_request(&["ps-2", "ps-1", "ps-2"], DesiredPower::On).checked(3).unwrap();
    assert_eq!(twice.ids, power_request(&["ps-1", "ps-2"], DesiredPower::On).ids);
}

fn shelf_with_power(id: &str, power: Option<DesiredPower>) -> PowerShelf {
    let mut shelf =
        PowerShelf::new(RecordHeader::new(id, Labels::new(), at(0)), DeviceSpec::default());
    shelf.state = PowerShelfState::Ready;
    shelf.facts.power = power;
    shelf.head.rack = Some(RackId::trusted("rack-1"));
    shelf
}

fn machine(id: &str, phase: Phase) -> Machine {
    let id = MachineId::trusted(id);
    let mut machine = Machine::new(id, MachineSpec::default(), Labels::new(), at(0));
    machine.phase = phase;
    machine
}

fn named(shelf: &PowerShelf) -> NamedShelf {
    NamedShelf { id: shelf.id(), shelf: Some(shelf.clone()), existing_run: None }
}

/// Shelves and machines of one rack; no feeds are known.
fn in_rack_1(shelves: Vec<PowerShelf>, machines: Vec<AffectedMachine>) -> PowerTopology {
    let device = |machine: AffectedMachine| PoweredDevice {
        target: TargetId::from(&machine.machine),
        rack: Some(RackId::trusted("rack-1")),
        feeds: Vec::new(),
        affected: Some(machine),
    };
    PowerTopology { shelves, devices: machines.into_iter().map(device).collect() }
}

/// The reasons for which a request is refused.
fn reasons(
    requested: &PowerChangeRequest,
    named: &[NamedShelf],
    topology: &PowerTopology,
) -> Vec<&'static str> {
    preview_power_change(requested, named, topology)
        .refusals
        .iter()
        .map(|refusal| refusal.reason.as_str())
        .collect()
}

#[test]
fn a_shelf_takes_one_request_at_a_time_in_any_state_but_deleted() {
    let free = shelf_with_power("ps-1", Some(DesiredPower::On));
    let deleted =
        PowerShelf { head: RecordHeader { deleted: true, ..free.head.clone() }, ..free.clone() };
    let requested =
        PowerShelf { maintenance_requested: Some(request(DesiredPower::On)), ..free.clone() };
    let working = PowerShelf {
        state: PowerShelfState::Maintenance { operation: DesiredPower::On },
        run: Some(RunId::trusted(OWN)),
        ..requested.clone()
    };
    let other = Some(RunId::trusted(OTHER));
    let claimed = PowerShelf {
        head: RecordHeader { active_run: other, ..free.head.clone() },
        ..free.clone()
    };
    let own = Some(RunId::trusted(OWN));
    let reading = PowerShelf {
        head: RecordHeader { active_run: own.clone(), ..free.head.clone() },
        state: PowerShelfState::FetchingData,
        run: own,
        ..free.clone()
    };
    let failed = PowerShelf { state: PowerShelfState::Error { cause: failure() }, ..free.clone() };
    for (shelf, expected) in [
        (Some(&free), None),
        (Some(&failed), None),
        (Some(&reading), None),
        (None, Some("NOT_FOUND")),
        (Some(&deleted), Some("MARKED_FOR_DELETION")),
        (Some(&requested), Some("MAINTENANCE_REQUESTED")),
        (Some(&working), Some("MAINTENANCE_REQUESTED")),
        (Some(&claimed), Some("DEVICE_BUSY")),
    ] {
        let requested = power_request(&["ps-1"], DesiredPower::On);
        let one =
            NamedShelf { id: requested.ids[0].clone(), shelf: shelf.cloned(), existing_run: None };
        assert_eq!(
            reasons(&requested, &[one], &PowerTopology::default()),
            Vec::from_iter(expected),
            "{shelf:?}"
        );
    }
    let message = preview_power_change(
        &power_request(&["ps-1"], DesiredPower::On),
        &[named(&working)],
        &PowerTopology::default(),
    )
    .refusals[0]
        .message
        .clone();
    assert!(
        message.contains("power-on") && message.contains(OWN) && message.contains("ada"),
        "{message}"
    );
}

#[test]
fn a_health_report_prevents_a_request_unless_overridden() {
    let bar = BlockingAlert { source: "leak".into(), alert: "water".into(), message: "wet".into() };
    let mut shelf = shelf_with_power("ps-1", Some(DesiredPower::On));
    shelf.head.health =
        HealthSummary { alerts: 1, allocations_blocked_by: None, state_changes: Some(bar) };
    let requested = power_request(&["ps-1"], DesiredPower::On);
    assert_eq!(
        reasons(&requested, &[named(&shelf)], &PowerTopology::default()),
        ["HEALTH_PREVENTS"]
    );
    for (gate, passed) in [(Gate::Health, true), (Gate::InService, false)] {
        let overrides = Overrides::of(&[gate], "it is dry again");
        let request = PowerChangeRequest { overrides, ..requested.clone() };
        let refused = reasons(&request, &[named(&shelf)], &PowerTopology::default());
        assert_eq!(refused.is_empty(), passed, "{gate}");
    }
}

#[test]
fn machines_go_dark_when_no_other_shelf_of_their_rack_is_known_to_stay_on() {
    use DesiredPower::{Off, On};
    let machines = [machine("m-1", Phase::Ready), machine("m-2", Phase::Maintenance)];
    let first = shelf_with_power("ps-1", Some(On));
    let pending = PowerShelf {
        maintenance_requested: Some(request(Off)),
        ..shelf_with_power("ps-2", Some(On))
    };
    for (other, operation, affected) in [
        (Some(shelf_with_power("ps-2", Some(On))), Off, false),
        (Some(shelf_with_power("ps-2", Some(Off))), Off, true),
        (Some(shelf_with_power("ps-2", None)), Off, true),
        (Some(pending), Off, true),
        (None, Off, true),
        (None, On, false),
    ] {
        let shelves: Vec<PowerShelf> = [first.clone()].into_iter().chain(other.clone()).collect();
        let machines = machines.iter().map(|one| AffectedMachine::of(one, None)).collect();
        let topology = in_rack_1(shelves, machines);
        let request = power_request(&["ps-1"], operation);
        let observed = preview_power_change(&request, &[named(&first)], &topology);
        let names: Vec<String> =
            observed.affected.iter().map(|one| one.machine.to_string()).collect();
        let expected: &[&str] = if affected { &["m-1", "m-2"] } else { &[] };
        assert_eq!(names, expected, "{other:?}");
        assert_eq!(observed.permitted().is_err(), affected, "{other:?}");
        assert_eq!(
            !observed.warnings.is_empty(),
            affected,
            "its own controller goes with it: {other:?}"
        );
    }
}

/// Its use is unknown, so its power is not removed without an override.
#[test]
fn a_machine_that_cannot_be_read_speaks_against_taking_its_power() {
    let shelf = shelf_with_power("ps-1", Some(DesiredPower::On));
    let machines = vec![AffectedMachine::unreadable(MachineId::trusted("m-1"))];
    let fed = in_rack_1(vec![shelf.clone()], machines);
    let requested = power_request(&["ps-1"], DesiredPower::Off);
    assert_eq!(reasons(&requested, &[named(&shelf)], &fed), ["MACHINES_IN_SERVICE"]);
    let overrides = Overrides::of(&[Gate::InService], "it is empty");
    let named_gate = PowerChangeRequest { overrides, ..requested };
    assert!(reasons(&named_gate, &[named(&shelf)], &fed).is_empty());
}

#[test]
fn both_shelves_at_once_are_judged_together() {
    use DesiredPower::{Off, On};
    let (one, two) = (shelf_with_power("ps-1", Some(On)), shelf_with_power("ps-2", Some(On)));
    let fed = |machines: Vec<Machine>| {
        let machines = machines.iter().map(|one| AffectedMachine::of(one, None)).collect();
        in_rack_1(vec![one.clone(), two.clone()], machines)
    };
    let both = [named(&one), named(&two)];
    let ready = vec![machine("m-1", Phase::Ready)];
    let requested = power_request(&["ps-1", "ps-2"], Off);
    assert_eq!(reasons(&requested, &both, &fed(ready.clone())), ["MACHINES_IN_SERVICE"]);
    let mut drained = machine("m-1", Phase::Ready);
    let observed =
        model::condition::ConditionObservation::new(ConditionType::Drained, true, "Cordoned");
    drained.learn(&[observed], at(1));
    assert!(reasons(&requested, &both, &fed(vec![drained])).is_empty(), "nobody misses it");
    for (gate, fine) in [(Gate::Health, false), (Gate::InService, true)] {
        let overrides = Overrides::of(&[gate], "the rack burns");
        let request = PowerChangeRequest { overrides, ..requested.clone() };
        assert_eq!(reasons(&request, &both, &fed(ready.clone())).is_empty(), fine, "{gate}");
    }
}

#[test]
fn the_same_request_again_is_told_to_nobody_and_another_under_its_name_is_refused() {
    let requested = |operation| PowerChangeRequest {
        request_id: Some("r-1".into()),
        ..power_request(&["ps-1"], operation)
    };
    let mut shelf = shelf_with_power("ps-1", Some(DesiredPower::On));
    shelf.maintenance_requested =
        Some(ShelfPowerRequest { request_id: Some("r-1".into()), ..request(DesiredPower::Off) });
    let again = preview_power_change(
        &requested(DesiredPower::Off),
        &[named(&shelf)],
        &PowerTopology::default(),
    );
    assert_eq!((again.accepted, again.refusals), (vec![], vec![]));
    assert_eq!(
        reasons(&requested(DesiredPower::On), &[named(&shelf)], &PowerTopology::default()),
        ["REQUEST_ID_REUSED"]
    );
    // The request of a completed power change is known from its run.
    shelf.maintenance_requested = None;
    let effect =
        Effect::Power { to: DesiredPower::Off, power_off: PowerOffPolicy::PROVIDER_DEFAULT };
    let step = RunStep { name: "power-off".into(), timeout_seconds: 1, max_retries: 0, effect };
    let made = NamedShelf { existing_run: Some(Run::new(spec(vec![step]))), ..named(&shelf) };
    let again = preview_power_change(
        &requested(DesiredPower::Off),
        std::slice::from_ref(&made),
        &PowerTopology::default(),
    );
    assert_eq!((again.accepted, again.refusals), (vec![], vec![]));
    assert_eq!(
        reasons(&requested(DesiredPower::On), &[made], &PowerTopology::default()),
        ["REQUEST_ID_REUSED"]
    );
}
