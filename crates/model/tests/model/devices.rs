//! The lifecycles of power shelves and switches as tables: every state with every request, holder
//! and run status matches exactly one row.

use crate::support::{at, note, spec};
use model::blast::Dark;
use model::condition::ConditionType;
use model::device::{Device, power_known};
use model::effect::{Effect, PowerOffPolicy, PowerTo};
use model::fault::{Code, Fault};
use model::health::{Bar, Standing};
use model::id::{MachineId, PowerShelfId, RackId, RunId};
use model::lifecycle::{DeviceContext, DeviceSpec, Head, Lifecycle, Next, Trouble};
use model::machine::{Labels, Machine, MachineSpec, Phase};
use model::plan::{RunStep, RunType};
use model::power_shelf::maintenance::{Asked, Fed, Named, foresee, initiator};
use model::power_shelf::{MaintenanceRequest, PowerShelf, PowerShelfState};
use model::run::{Failure, Run, Workflow};
use model::switch::{Switch, SwitchState};

/// The inputs of a turn, one word each: deleted, requested, retry, held, run.
const DELETED: [&str; 2] = ["no", "deleted"];
const ASKED: [&str; 3] = ["no", "on", "off"];
const RETRY: [&str; 2] = ["no", "retry"];
const HELD: [&str; 2] = ["free", "held"];
const RUN: [&str; 4] = ["none", "going", "done", "failed"];

const OTHER: &str = "op-other";
const OWN: &str = "op-own";
const FRESH: &str = "op-fresh";

fn run_of(word: &str, run_type: RunType) -> Option<Run> {
    let mut run =
        Run::new(model::run::RunSpec { id: RunId::trusted(OWN), run_type, ..spec(vec![note(0)]) });
    run.progress.workflow = match word {
        "none" => return None,
        "going" => Workflow::Running,
        "done" => Workflow::Completed,
        "failed" => Workflow::FailedRetryable,
        other => panic!("{other}"),
    };
    if word == "failed" {
        let fault = Fault::new(Code::BmcUnreachable, "no answer");
        run.progress.failure = Some(Failure { step: "read".into(), fault, attempts: 1 });
    }
    Some(run)
}

fn trouble() -> Trouble {
    Trouble { said: "it broke".into(), run: Some(RunId::trusted(OWN)), code: String::new() }
}

fn request(operation: PowerTo) -> MaintenanceRequest {
    MaintenanceRequest {
        requested_at: at(0),
        initiator: "ada (T-1)".into(),
        operation,
        forced: None,
        request_id: None,
    }
}

/// The result of a turn in one line.
fn told<D: Device>(next: Next<D>, asked: impl Fn(&D) -> bool) -> String {
    let change = match next {
        Next::Rest(_) => return "rest".into(),
        Next::Until(..) => return "until".into(),
        Next::Remove(_) => return "remove".into(),
        Next::Become(change) => *change,
    };
    assert!(change.begin.is_empty() && change.cancel.is_empty());
    let mut words = vec![change.record.word().to_string()];
    for run in &change.start {
        assert_eq!(run.id.as_str(), FRESH);
        assert_eq!(run.target, change.record.target());
        assert_eq!(run.reports_to, Some(change.record.subject()));
        assert_eq!(change.record.head().active_run, Some(RunId::trusted(FRESH)));
        let step = &run.steps[0];
        assert!(step.timeout_seconds > 0, "everything ends");
        words.push(format!("{}/{}", run.run_type.as_str(), step.name));
    }
    if asked(&change.record) {
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
            .all(|(word, is)| *word == "*" || word.split('|').any(|one| one == *is))
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

fn shelf_in(word: &str) -> PowerShelf {
    let mut shelf = PowerShelf::new(Head::new("ps-1", Labels::new(), at(0)), DeviceSpec::default());
    shelf.run = Some(RunId::trusted(OWN));
    shelf.state = match word {
        "Initializing" => PowerShelfState::Initializing,
        "FetchingData" => PowerShelfState::FetchingData,
        "Configuring" => PowerShelfState::Configuring,
        "Ready" => PowerShelfState::Ready,
        "PowerOn" => PowerShelfState::Maintenance { operation: PowerTo::On },
        "PowerOff" => PowerShelfState::Maintenance { operation: PowerTo::Off },
        "Error" => PowerShelfState::Error { cause: trouble() },
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
        for (deleted, asked) in DELETED.iter().flat_map(|one| ASKED.map(|two| (*one, two))) {
            for (retry, held) in RETRY.iter().flat_map(|one| HELD.map(|two| (*one, two))) {
                for run in RUN {
                    let mut shelf = shelf_in(state);
                    shelf.head.deleted = deleted == "deleted";
                    shelf.maintenance_requested = match asked {
                        "on" => Some(request(PowerTo::On)),
                        "off" => Some(request(PowerTo::Off)),
                        _ => None,
                    };
                    shelf.retry_requested = retry == "retry";
                    shelf.head.active_run = (held == "held").then(|| RunId::trusted(OTHER));
                    let seen = DeviceContext {
                        fresh: RunId::trusted(FRESH),
                        run: run_of(run, RunType::Power),
                        against: None,
                    };
                    let case = [state, deleted, asked, retry, held, run];
                    let next = shelf.next(&seen, at(1));
                    let cleared = clears(state, &shelf, &next);
                    let still = |one: &PowerShelf| one.maintenance_requested.is_some() && !cleared;
                    let told = told(next, |one| {
                        assert_eq!(one.maintenance_requested.is_some(), still(&shelf), "{case:?}");
                        false
                    });
                    assert_eq!(told, row(SHELF, &case), "{case:?}");
                    cases += 1;
                }
            }
        }
    }
    assert_eq!(cases, 8 * 2 * 3 * 2 * 2 * 4);
}

/// A request is cleared when its maintenance ends, with or without success, and when the shelf is
/// deleted.
fn clears(state: &str, shelf: &PowerShelf, next: &Next<PowerShelf>) -> bool {
    let left = matches!(next, Next::Become(_));
    let answered = matches!(state, "PowerOn" | "PowerOff");
    let going = matches!(state, "Ready" | "Error") && shelf.head.deleted;
    left && (answered || going)
}

#[test]
fn a_shelf_in_error_is_read_anew_when_its_reading_succeeded_after_all() {
    let shelf = shelf_in("Error");
    let seen = DeviceContext {
        fresh: RunId::trusted(FRESH),
        run: run_of("done", RunType::Intake),
        against: None,
    };
    assert_eq!(told(shelf.next(&seen, at(1)), |_| false), "FetchingData INTAKE/read");
}

/// A power change does not make a shelf Ready that was never read and configured. A shelf that was
/// Ready before is Ready again, as documented.
#[test]
fn a_shelf_that_was_never_taken_in_is_read_after_its_power_was_switched() {
    let after = |shelf: &PowerShelf, run: &str, kind: RunType| {
        let seen =
            DeviceContext { fresh: RunId::trusted(FRESH), run: run_of(run, kind), against: None };
        let Next::Become(change) = shelf.next(&seen, at(1)) else { panic!("{shelf:?} rests") };
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
            shelf.maintenance_requested = Some(request(PowerTo::On));
            let going = after(&shelf, "none", RunType::Power);
            assert_eq!(going.word(), "Maintenance", "{state} {failing}");
            let ended = after(&going, power, RunType::Power);
            let expected = if power == "done" { switched } else { "Error" };
            assert_eq!(ended.word(), expected, "{state} {failing}");
            assert_eq!(ended.maintenance_requested, None);
            if power == "failed" {
                // The power change is resumed and completed: reading is still required.
                assert_eq!(after(&ended, "done", RunType::Power).word(), switched);
            } else if switched == "FetchingData" {
                let configuring = after(&ended, "done", RunType::Intake);
                let ready = after(&configuring, "done", RunType::Intake);
                assert_eq!((ready.word(), ready.intake_owed), ("Ready", false));
            }
        }
    }
}

#[test]
fn the_run_of_a_maintenance_carries_who_asked_and_what_they_called_it() {
    let mut shelf = shelf_in("Ready");
    let mut asked = request(PowerTo::Off);
    asked.request_id = Some("req-7".into());
    shelf.maintenance_requested = Some(asked);
    let seen = DeviceContext { fresh: RunId::trusted(FRESH), run: None, against: None };
    let Next::Become(change) = shelf.next(&seen, at(1)) else { panic!("it begins") };
    let run = &change.start[0];
    assert_eq!((run.initiator.as_str(), run.request_id.as_str()), ("ada (T-1)", "req-7"));
    let to = PowerTo::Off;
    assert_eq!(run.steps[0].effect, Effect::Power { to, power_off: PowerOffPolicy::CONFIGURED });
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

fn switch_in(word: &str) -> Switch {
    let mut switch = Switch::new(Head::new("sw-1", Labels::new(), at(0)), DeviceSpec::default());
    switch.run = Some(RunId::trusted(OWN));
    switch.state = match word {
        "Created" => SwitchState::Created,
        "Initializing" => SwitchState::Initializing,
        "Configuring" => SwitchState::Configuring,
        "Validating" => SwitchState::Validating,
        "Ready" => SwitchState::Ready,
        "ReProvisioning" => SwitchState::ReProvisioning,
        "Error" => SwitchState::Error { cause: trouble() },
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
            for (held, run) in HELD.iter().flat_map(|one| RUN.map(|two| (*one, two))) {
                let mut switch = switch_in(state);
                switch.head.deleted = deleted == "deleted";
                switch.retry_requested = retry == "retry";
                switch.head.active_run = (held == "held").then(|| RunId::trusted(OTHER));
                let seen = DeviceContext {
                    fresh: RunId::trusted(FRESH),
                    run: run_of(run, RunType::Intake),
                    against: None,
                };
                let case = [state, deleted, retry, held, run];
                let told = told(switch.next(&seen, at(1)), |_| false);
                assert_eq!(told, row(SWITCH, &case), "{case:?}");
            }
        }
    }
}

#[test]
fn a_failed_run_that_goes_on_is_not_taken_for_a_maintenance_of_the_rack() {
    let mut switch = switch_in("Error");
    switch.head.active_run = Some(RunId::trusted(OWN));
    let seen = DeviceContext {
        fresh: RunId::trusted(FRESH),
        run: run_of("going", RunType::Intake),
        against: None,
    };
    assert_eq!(told(switch.next(&seen, at(1)), |_| false), "rest");
}

#[test]
fn a_wait_has_its_patience_and_a_rest_has_none() {
    for (word, waits) in [
        ("Initializing", true),
        ("FetchingData", true),
        ("Configuring", true),
        ("Ready", false),
        ("PowerOff", true),
        ("Error", false),
        ("Deleting", true),
    ] {
        let shelf = shelf_in(word);
        assert_eq!(shelf.patience().is_some(), waits, "{word}");
        assert_eq!(PowerShelf::WAITING.contains(&shelf.word()), waits, "{word}");
        assert!(PowerShelf::STATES.contains(&shelf.word()), "{word}");
    }
    for (word, waits) in [
        ("Created", true),
        ("Initializing", true),
        ("Configuring", true),
        ("Validating", true),
        ("ReProvisioning", true),
        ("Ready", false),
        ("Error", false),
        ("Deleting", true),
    ] {
        let switch = switch_in(word);
        assert_eq!(switch.patience().is_some(), waits, "{word}");
        assert_eq!(Switch::WAITING.contains(&switch.word()), waits, "{word}");
        assert!(Switch::STATES.contains(&switch.word()), "{word}");
    }
}

#[test]
fn power_is_in_doubt_after_a_switching_that_did_not_succeed() {
    let effect = Effect::Power { to: PowerTo::Off, power_off: PowerOffPolicy::CONFIGURED };
    let power = RunStep { name: "power".into(), timeout_seconds: 1, max_retries: 0, effect };
    let run = |step: &RunStep, workflow| {
        let mut run = Run::new(spec(vec![step.clone()]));
        run.progress.workflow = workflow;
        run
    };
    let on = Some(PowerTo::On);
    for (last, known) in [
        (None, on),
        (Some(run(&power, Workflow::Completed)), on),
        (Some(run(&power, Workflow::FailedRetryable)), None),
        (Some(run(&power, Workflow::Cancelled)), None),
        (Some(run(&power, Workflow::Running)), None),
        (Some(run(&note(0), Workflow::FailedRetryable)), on),
    ] {
        assert_eq!(power_known(on, last.as_ref()), known, "{last:?}");
        assert_eq!(power_known(None, last.as_ref()), None, "{last:?}");
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

fn ask(ids: &[&str], operation: PowerTo) -> Asked {
    let ids = ids.iter().map(|id| PowerShelfId::trusted(*id)).collect();
    let initiator = "ada".into();
    Asked { ids, operation, initiator, forced: None, request_id: None }
}

#[test]
fn a_request_names_one_to_as_many_as_are_allowed() {
    for (ids, fine) in
        [(&[][..], false), (&["ps-1"], true), (&["ps-1", "ps-2"], true), (&["ps-1"; 3], false)]
    {
        assert_eq!(ask(ids, PowerTo::On).checked(2).is_ok(), fine, "{ids:?}");
    }
    let twice = ask(&["ps-2", "ps-1", "ps-2"], PowerTo::On).checked(3).unwrap();
    assert_eq!(twice.ids, ask(&["ps-1", "ps-2"], PowerTo::On).ids);
}

fn standing(id: &str, power: Option<PowerTo>) -> PowerShelf {
    let mut shelf = PowerShelf::new(Head::new(id, Labels::new(), at(0)), DeviceSpec::default());
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

fn named(shelf: &PowerShelf) -> Named {
    Named { id: shelf.id(), shelf: Some(shelf.clone()), made: None }
}

/// The reasons for which a request is refused.
fn reasons(asked: &Asked, named: &[Named], fed: &[Fed]) -> Vec<&'static str> {
    foresee(asked, named, fed).refusals.iter().map(|refusal| refusal.reason).collect()
}

#[test]
fn a_shelf_takes_one_request_at_a_time_in_any_state_but_deleted() {
    let free = standing("ps-1", Some(PowerTo::On));
    let deleted = PowerShelf { head: Head { deleted: true, ..free.head.clone() }, ..free.clone() };
    let asked = PowerShelf { maintenance_requested: Some(request(PowerTo::On)), ..free.clone() };
    let working = PowerShelf {
        state: PowerShelfState::Maintenance { operation: PowerTo::On },
        run: Some(RunId::trusted(OWN)),
        ..asked.clone()
    };
    let other = Some(RunId::trusted(OTHER));
    let held = PowerShelf { head: Head { active_run: other, ..free.head.clone() }, ..free.clone() };
    let own = Some(RunId::trusted(OWN));
    let reading = PowerShelf {
        head: Head { active_run: own.clone(), ..free.head.clone() },
        state: PowerShelfState::FetchingData,
        run: own,
        ..free.clone()
    };
    let failed = PowerShelf { state: PowerShelfState::Error { cause: trouble() }, ..free.clone() };
    for (shelf, expected) in [
        (Some(&free), None),
        (Some(&failed), None),
        (Some(&reading), None),
        (None, Some("NOT_FOUND")),
        (Some(&deleted), Some("MARKED_FOR_DELETION")),
        (Some(&asked), Some("MAINTENANCE_REQUESTED")),
        (Some(&working), Some("MAINTENANCE_REQUESTED")),
        (Some(&held), Some("DEVICE_BUSY")),
    ] {
        let asked = ask(&["ps-1"], PowerTo::On);
        let one = Named { id: asked.ids[0].clone(), shelf: shelf.cloned(), made: None };
        assert_eq!(reasons(&asked, &[one], &[]), Vec::from_iter(expected), "{shelf:?}");
    }
    let said =
        foresee(&ask(&["ps-1"], PowerTo::On), &[named(&working)], &[]).refusals[0].said.clone();
    assert!(said.contains("power-on") && said.contains(OWN) && said.contains("ada"), "{said}");
}

#[test]
fn what_is_reported_prevents_a_request_unless_by_force() {
    let bar = Bar { source: "leak".into(), alert: "water".into(), message: "wet".into() };
    let mut shelf = standing("ps-1", Some(PowerTo::On));
    shelf.head.health = Standing { alerts: 1, allocations: None, state_changes: Some(bar) };
    let asked = ask(&["ps-1"], PowerTo::On);
    assert_eq!(reasons(&asked, &[named(&shelf)], &[]), ["HEALTH_PREVENTS"]);
    let forced = Asked { forced: Some("it is dry again".into()), ..asked };
    assert!(reasons(&forced, &[named(&shelf)], &[]).is_empty());
}

#[test]
fn machines_go_dark_when_no_other_shelf_of_their_rack_is_known_to_stay_on() {
    use PowerTo::{Off, On};
    let machines = [machine("m-1", Phase::Ready), machine("m-2", Phase::Maintenance)];
    let first = standing("ps-1", Some(On));
    let pending =
        PowerShelf { maintenance_requested: Some(request(Off)), ..standing("ps-2", Some(On)) };
    for (other, operation, dark) in [
        (Some(standing("ps-2", Some(On))), Off, false),
        (Some(standing("ps-2", Some(Off))), Off, true),
        (Some(standing("ps-2", None)), Off, true),
        (Some(pending), Off, true),
        (None, Off, true),
        (None, On, false),
    ] {
        let shelves: Vec<PowerShelf> = [first.clone()].into_iter().chain(other.clone()).collect();
        let machines = machines.iter().map(|one| Dark::of(one, None)).collect();
        let fed = Fed { rack: RackId::trusted("rack-1"), shelves, machines };
        let seen = foresee(&ask(&["ps-1"], operation), &[named(&first)], &[fed]);
        let names: Vec<String> = seen.dark.iter().map(|one| one.machine.to_string()).collect();
        let expected: &[&str] = if dark { &["m-1", "m-2"] } else { &[] };
        assert_eq!(names, expected, "{other:?}");
        assert_eq!(seen.permitted().is_err(), dark, "{other:?}");
        assert_eq!(!seen.warnings.is_empty(), dark, "its own controller goes with it: {other:?}");
    }
}

/// Its use is unknown, so its power is not removed without force.
#[test]
fn a_machine_that_cannot_be_read_speaks_against_taking_its_power() {
    let shelf = standing("ps-1", Some(PowerTo::On));
    let machines = vec![Dark::unreadable(MachineId::trusted("m-1"))];
    let rack = RackId::trusted("rack-1");
    let fed = [Fed { rack, shelves: vec![shelf.clone()], machines }];
    let asked = ask(&["ps-1"], PowerTo::Off);
    assert_eq!(reasons(&asked, &[named(&shelf)], &fed), ["MACHINES_IN_SERVICE"]);
    let forced = Asked { forced: Some("it is empty".into()), ..asked };
    assert!(reasons(&forced, &[named(&shelf)], &fed).is_empty());
}

#[test]
fn both_shelves_at_once_are_judged_together_and_force_needs_a_reason() {
    use PowerTo::{Off, On};
    let (one, two) = (standing("ps-1", Some(On)), standing("ps-2", Some(On)));
    let fed = |machines: Vec<Machine>| {
        let rack = RackId::trusted("rack-1");
        let machines = machines.iter().map(|one| Dark::of(one, None)).collect();
        [Fed { rack, shelves: vec![one.clone(), two.clone()], machines }]
    };
    let both = [named(&one), named(&two)];
    let ready = vec![machine("m-1", Phase::Ready)];
    let asked = ask(&["ps-1", "ps-2"], Off);
    assert_eq!(reasons(&asked, &both, &fed(ready.clone())), ["MACHINES_IN_SERVICE"]);
    let mut drained = machine("m-1", Phase::Ready);
    let seen = model::condition::Evidence::new(ConditionType::Drained, true, "Cordoned");
    drained.learn(&[seen], at(1));
    assert!(reasons(&asked, &both, &fed(vec![drained])).is_empty(), "nobody misses it");
    for (reason, fine) in [("", false), ("the rack burns", true)] {
        let forced = Asked { forced: Some(reason.into()), ..asked.clone() };
        assert_eq!(reasons(&forced, &both, &fed(ready.clone())).is_empty(), fine);
    }
}

#[test]
fn the_same_request_again_is_told_to_nobody_and_another_under_its_name_is_refused() {
    let asked = |operation| Asked { request_id: Some("r-1".into()), ..ask(&["ps-1"], operation) };
    let mut shelf = standing("ps-1", Some(PowerTo::On));
    shelf.maintenance_requested =
        Some(MaintenanceRequest { request_id: Some("r-1".into()), ..request(PowerTo::Off) });
    let again = foresee(&asked(PowerTo::Off), &[named(&shelf)], &[]);
    assert_eq!((again.told, again.refusals), (vec![], vec![]));
    assert_eq!(reasons(&asked(PowerTo::On), &[named(&shelf)], &[]), ["REQUEST_ID_REUSED"]);
    // The request of a completed power change is known from its run.
    shelf.maintenance_requested = None;
    let effect = Effect::Power { to: PowerTo::Off, power_off: PowerOffPolicy::CONFIGURED };
    let step = RunStep { name: "power-off".into(), timeout_seconds: 1, max_retries: 0, effect };
    let made = Named { made: Some(Run::new(spec(vec![step]))), ..named(&shelf) };
    let again = foresee(&asked(PowerTo::Off), std::slice::from_ref(&made), &[]);
    assert_eq!((again.told, again.refusals), (vec![], vec![]));
    assert_eq!(reasons(&asked(PowerTo::On), &[made], &[]), ["REQUEST_ID_REUSED"]);
}
