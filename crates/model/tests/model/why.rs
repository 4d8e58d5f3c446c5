//! Explanations: every state has one, with what is normal and what to type.

mod groups;
mod left_behind;
mod nodes;
mod racks;
mod repairs;

use crate::support::{at, netboot, spec, wipe};
use crate::walk::states;
use model::condition::{ConditionObservation, ConditionType};
use model::device::Device;
use model::effect::DrainOptions;
use model::fault::{Fault, FaultCode, Incident, Repair};
use model::health::{BlockingAlert, HealthSummary};
use model::id::{MachineId, RunId};
use model::lifecycle::{DeviceFailure, DeviceSpec, IdleReason, LifecycleDecision, RecordHeader};
use model::machine::view::EffectiveState;
use model::machine::{Labels, Machine, MachineSpec, Phase};
use model::power_shelf::PowerShelf;
use model::rack::{
    MaintenanceStage, Rack, RackContext, RackFailure, RackFailurePhase, RackSpec, RackState,
    explain,
};
use model::run::{Failure, Run, RunPhase, Workflow};
use model::switch::Switch;
use model::why::{
    Explanation, RunContext, explain_device, explain_machine, explain_run, next_command, overdue,
};
use std::time::Duration;

fn check_commands(reported: &Explanation, case: &str) {
    for command in &reported.next_commands {
        assert!(command.starts_with("farrier "), "{command:?} in {case}");
    }
    let mut commands = reported.next_commands.clone();
    commands.sort();
    commands.dedup();
    assert_eq!(
        commands.len(),
        reported.next_commands.len(),
        "{:?} in {case}",
        reported.next_commands
    );
}

/// A line of commands is typed as it is printed: a comment is no part of it.
#[test]
fn a_command_is_one_command_and_nothing_else() {
    let next_commands = [
        "farrier operation retry-step op-1   # or, all of it anew: farrier operation rerun op-1",
        "farrier cancel op-1",
        "farrier cancel op-1   # stops it for the whole rack",
    ];
    let next_commands = next_commands.map(String::from).to_vec();
    let plain = Explanation { next_commands, ..Explanation::default() }.with_plain_commands();
    let expected = [
        "farrier operation retry-step op-1",
        "farrier operation rerun op-1",
        "farrier cancel op-1",
    ];
    assert_eq!(plain.next_commands, expected);
}

#[test]
fn every_reachable_state_of_a_run_has_an_answer() {
    let states = states(vec![netboot(0)]);
    assert!(states.len() > 10_000, "{}", states.len());
    for (run, now) in &states {
        let reported = explain_run(run, RunContext::default(), *now);
        let case = || format!("{reported:#?}\n{:#?}", run.progress);
        assert!(reported.headline.contains("op-1"), "{}", case());
        assert!(reported.since.is_some_and(|since| since >= at(0)), "{}", case());
        assert!(!reported.headline.ends_with("step "), "{}", case());
        check_commands(&reported, "a run");
        assert!(!reported.next_commands.is_empty(), "{}", case());
        if run.ended() {
            assert!(reported.waiting_for.is_empty() && !reported.overdue, "{}", case());
        } else {
            assert!(!reported.waiting_for.is_empty(), "{}", case());
            assert!(reported.normal.starts_with("up to "), "{}", case());
            // Every wait is shown as overdue eventually.
            let later = *now + Duration::from_secs(24 * 3_600);
            assert!(overdue(run, None, later), "{}", case());
            // An active run is not resumed.
            let resume = "farrier operation resume op-1".to_string();
            let offered = explain_run(run, RunContext::default(), later).next_commands;
            assert!(!offered.contains(&resume), "{}", case());
        }
        if run.phase() == RunPhase::Failed {
            assert!(!reported.failed.is_empty() && reported.fault.is_some(), "{}", case());
            let next = next_command(run).unwrap_or_default();
            assert!(next.starts_with("farrier "), "{}", case());
        }
    }
    for workflow in Workflow::ALL {
        assert!(states.iter().any(|(run, _)| run.progress.workflow == workflow), "{workflow:?}");
    }
}

/// A run that failed with this fault at its only step.
fn failed(fault: Fault) -> Run {
    let mut run = Run::new(spec(vec![wipe(0)]));
    let failure = Failure { fault, step: "wipe".into(), attempts: 1 };
    run.progress.workflow = failure.workflow();
    run.progress.failure = Some(failure);
    run.progress.finished_at = Some(at(4));
    run
}

/// A fault with every fact.
fn incident(code: FaultCode) -> Fault {
    Fault::new(code, "the device said no").with(|facts| {
        facts.credential = Some("rack-bmc".into());
        facts.peer = Some("https://10.1.0.7".into());
        facts.identity = Some("sha256:aa".into());
        facts.image = Some("rhel-9".into());
        facts.firmware = Some("fw-7".into());
        facts.operation = Some(RunId::trusted("op-7"));
        facts.drain = Some(DrainOptions { emptydir: true, ..DrainOptions::default() });
    })
}

#[test]
fn every_fault_has_a_command_of_its_own() {
    for code in FaultCode::ALL {
        let run = failed(incident(*code));
        let node = crate::nodes::node(model::node::NodeState::Enrolling);
        let mut machine = machine(Phase::Maintenance, false, &[]);
        let off = ConditionObservation::new(ConditionType::Reachable, false, "PoweredOff");
        machine.learn(&[off], at(1));
        let context =
            RunContext { machine: Some(&machine), node: Some(&node), ..RunContext::default() };
        let reported = explain_run(&run, context, at(5));
        assert_eq!((reported.fault, reported.failed.as_str()), (Some(*code), "the device said no"));
        assert_eq!(reported.since, Some(at(4)), "{code:?}");
        // The operation waits for the operator to decide, or a retry is safe.
        let by_person = run.progress.workflow == Workflow::FailedManualIntervention;
        let whom = if by_person { "waits for a person" } else { "trying again is safe" };
        assert!(reported.headline.contains(whom), "{}", reported.headline);
        assert!(reported.headline.contains("step wipe"), "{}", reported.headline);
        check_commands(&reported, code.as_str());
        let next = next_command(&run).expect("a command");
        // A reader of the run alone does not know that the machine is off.
        let off = reported.next_commands.contains(&"farrier machine power m-1 on".to_string());
        assert!(off || reported.next_commands.contains(&next), "{code:?}: {next}");
        // The repair of the cause comes before the actions that any failed run has.
        let known = Incident {
            fault: &incident(*code),
            run: Some(&run),
            machine: Some(&machine),
            node: Some(&node),
        };
        let order: Vec<bool> = known
            .repairs()
            .filter(|(repair, _)| !repair.reads())
            .map(|(repair, _)| matches!(repair, Repair::Act(_) | Repair::Restart(_)))
            .collect();
        let removal = |one: &&String| one.contains("--mode full_decommission");
        let last = usize::from(reported.next_commands.iter().any(|one| removal(&one)));
        assert!(order[..order.len() - last].is_sorted(), "{code:?}: {order:?}");
        for (repair, command) in known.repairs() {
            assert!(command.starts_with(repair.words()) || repair == Repair::ShowTarget);
        }
    }
}

/// The page of a code names its repairs, and the action that continues the run.
#[test]
fn the_page_of_a_fault_names_its_repairs() {
    for code in FaultCode::ALL {
        let repairs = code.repairs().iter();
        let own = repairs.clone().filter(|repair| !repair.is_generic());
        let first = repairs.clone().find(|one| matches!(one, Repair::Act(_) | Repair::Restart(_)));
        for repair in own.chain(first) {
            let words = repair.words();
            assert!(code.page().contains(words), "the page {} lacks {words}", code.as_str());
        }
        assert!(first.is_some(), "{code:?} does not continue the run");
    }
}

/// Every argument comes from the incident; without the fact the command shows the candidates.
#[test]
fn a_repair_is_filled_in_from_the_incident() {
    let first = |fault: Fault| {
        let reported = explain_run(&failed(fault), RunContext::default(), at(5));
        reported.next_commands[0].clone()
    };
    use FaultCode::*;
    for (code, known, unknown) in [
        (LoginRefused, "farrier credential set rack-bmc", "farrier credential list"),
        (CredentialMissing, "farrier credential set rack-bmc", "farrier credential list"),
        (
            CredentialNotAllowed,
            "farrier credential set rack-bmc --for …",
            "farrier credential list",
        ),
        (IdentityChanged, "farrier trust delete https://10.1.0.7", "farrier trust list"),
        (IdentityUntrusted, "farrier trust set https://10.1.0.7 sha256:aa", "farrier trust list"),
        (ChecksumWrong, "farrier image get rhel-9", "farrier image get ubuntu-2204"),
        (FirmwareDiffers, "farrier firmware get fw-7", "farrier firmware list"),
        (PartFailed, "farrier why op-7", "farrier operation retry-step op-1"),
        (
            BmcUnreachable,
            "farrier bmc test https://10.1.0.7 --credential rack-bmc",
            "farrier operation retry-step op-1",
        ),
    ] {
        assert_eq!(first(incident(code)), known);
        assert_eq!(first(Fault::new(code, "an old row")), unknown);
    }
}

/// The netboot service of Farrier serves machines with a BMC; a command about it is no repair of
/// others.
#[test]
fn the_netboot_configuration_is_offered_where_it_is_used() {
    let run = failed(Fault::new(FaultCode::NetbootSilent, "no request came"));
    for (bmc_endpoint, offered) in [("https://10.1.0.7", true), ("", false)] {
        let spec = MachineSpec { bmc_endpoint: bmc_endpoint.into(), ..MachineSpec::default() };
        let machine = Machine::new(MachineId::trusted("m-1"), spec, Labels::new(), at(0));
        let context = RunContext { machine: Some(&machine), ..RunContext::default() };
        let reported = explain_run(&run, context, at(5));
        let found = reported.next_commands.iter().any(|one| one == "farrier netboot config");
        assert_eq!(found, offered, "{reported:?}");
    }
}

/// A fault that an older version stored has no facts, and one without facts is stored as before.
#[test]
fn an_old_fault_is_readable() {
    let stored = r#"{"code":"login-refused","said":"no"}"#;
    let fault: Fault = serde_json::from_str(stored).unwrap();
    assert_eq!(fault, Fault::new(FaultCode::LoginRefused, "no"));
    assert_eq!(serde_json::to_string(&fault).unwrap(), stored);
    let fault = incident(FaultCode::LoginRefused);
    let text = serde_json::to_string(&fault).unwrap();
    assert_eq!(serde_json::from_str::<Fault>(&text).unwrap(), fault);
}

fn machine(phase: Phase, active: bool, set: &[ConditionType]) -> Machine {
    let mut machine =
        Machine::new(MachineId::trusted("m-1"), MachineSpec::default(), Labels::new(), at(0));
    machine.phase = phase;
    machine.active_run = active.then(|| RunId::trusted("op-1"));
    for condition in set {
        machine.learn(&[ConditionObservation::new(*condition, true, "why-not")], at(1));
    }
    machine
}

#[test]
fn every_state_of_a_machine_has_an_answer() {
    use ConditionType::{NeedsIntervention, Retired, Rma};
    let mut observed = Vec::new();
    for phase in Phase::ALL {
        for active in [false, true] {
            for set in [&[][..], &[NeedsIntervention], &[Rma], &[Retired], &[Rma, Retired]] {
                for run in [None, Some(Run::new(spec(vec![wipe(0)])))] {
                    let machine = machine(phase, active, set);
                    let reported =
                        explain_machine(&machine, run.as_ref(), RunContext::default(), at(2));
                    let case = format!("{machine:?} with {run:?}: {reported:?}");
                    assert!(reported.headline.starts_with("m-1 "), "{case}");
                    check_commands(&reported, &case);
                    observed.push(machine.effective_state());
                    let lost = machine.effective_state() == EffectiveState::Busy && run.is_none();
                    assert_eq!(reported.next_commands.is_empty(), lost, "{case}");
                }
            }
        }
    }
    for state in EffectiveState::ALL {
        assert!(observed.contains(&state), "{state:?}");
    }
}

/// The explanation of a machine in service points to its node, and never suggests a command that
/// would harm the node.
#[test]
fn a_machine_that_is_a_node_leads_to_it() {
    for phase in Phase::ALL {
        for set in [&[][..], &[ConditionType::OperationCanceled]] {
            let machine = machine(phase, false, set);
            let mut run = Run::new(spec(vec![wipe(0)]));
            run.spec.run_type = model::plan::RunType::Decommission;
            run.progress.workflow = Workflow::Cancelled;
            let node = crate::nodes::node(model::node::NodeState::Active);
            let context = RunContext { node: Some(&node), ..RunContext::default() };
            let reported = explain_machine(&machine, Some(&run), context, at(2));
            let case = format!("{machine:?}: {reported:?}");
            assert!(reported.headline.contains("it is node-1, which is active"), "{case}");
            assert_eq!(reported.next_commands[0], "farrier why node-1", "{case}");
            let harms = |one: &String| one.contains(" reimage ") || one.contains(" rerun ");
            assert!(!reported.next_commands.iter().any(harms), "{case}");
            check_commands(&reported, &case);
        }
    }
}

/// The explanation of an older operation points to the newer one.
#[test]
fn an_operation_that_another_has_followed_leads_to_that() {
    let mut run = Run::new(spec(vec![wipe(0)]));
    run.spec.run_type = model::plan::RunType::Onboard;
    run.progress.workflow = Workflow::FailedRetryable;
    let mut node = crate::nodes::node(model::node::NodeState::Enrolling);
    let own = node.explain_run(&run, RunContext::default(), at(2));
    assert!(own.next_commands.iter().any(|one| one.starts_with("farrier operation ")), "{own:?}");
    node.workflow = Some(RunId::trusted("op-2"));
    let reported = node.explain_run(&run, RunContext::default(), at(2));
    assert!(reported.headline.ends_with("; op-2 came after it"), "{reported:?}");
    assert_eq!(reported.next_commands, ["farrier why op-2", "farrier why node-1"]);
}

#[test]
fn a_machine_that_cannot_be_reached_says_so() {
    let mut machine = machine(Phase::Ready, false, &[]);
    machine
        .learn(&[ConditionObservation::new(ConditionType::BmcReachable, false, "Timeout")], at(3));
    let reported = explain_machine(&machine, None, RunContext::default(), at(9));
    assert!(reported.headline.contains("BMCReachable is false: Timeout"), "{}", reported.headline);
    assert_eq!((reported.since, reported.failed.as_str()), (Some(at(3)), "Timeout"));
}

/// Rows: the conditions of a READY machine. Then the words of the headline and the first command.
#[test]
fn a_ready_machine_that_is_off_or_silent_is_not_well() {
    use ConditionType::{BmcReachable, Reachable};
    use model::condition::POWERED_OFF;
    let on = "farrier machine power m-1 on";
    for (conditions, words, first, reboots) in [
        (&[(Reachable, POWERED_OFF)][..], "it is switched off", on, false),
        (&[(Reachable, "ssh-unreachable")], "it does not answer", on, true),
        // Without its BMC the machine cannot be switched on.
        (
            &[(Reachable, "ssh-unreachable"), (BmcReachable, "bmc-unreachable")],
            "it does not answer",
            "farrier machine inspect m-1",
            false,
        ),
        (
            &[(BmcReachable, "Timeout")],
            "BMCReachable is false",
            "farrier machine inspect m-1",
            false,
        ),
    ] {
        let mut machine = machine(Phase::Ready, false, &[]);
        for (condition, reason) in conditions {
            machine.learn(&[ConditionObservation::new(*condition, false, *reason)], at(3));
        }
        assert_eq!(machine.effective_state(), EffectiveState::Idle, "as documented");
        let reported = explain_machine(&machine, None, RunContext::default(), at(9));
        assert!(reported.headline.contains(words), "{reported:?}");
        assert!(!reported.headline.contains("ready for work"), "{reported:?}");
        assert_eq!(reported.next_commands[0], first, "{reported:?}");
        let offers = |reported: &Explanation| {
            reported.next_commands.iter().any(|one| one == "farrier reboot m-1")
        };
        assert_eq!(offers(&reported), reboots, "{reported:?}");
        check_commands(&reported, words);
        // The gate in-service would refuse a reboot under an active node.
        let node = crate::nodes::node(model::node::NodeState::Active);
        let reported = explain_machine(
            &machine,
            None,
            RunContext { node: Some(&node), ..RunContext::default() },
            at(9),
        );
        assert!(!offers(&reported) && reported.headline.contains(words), "{reported:?}");
    }
}

/// A canceled operation and a node do not hide what is wrong with the machine.
#[test]
fn a_problem_is_in_the_headline_whatever_else_is_told() {
    use ConditionType::{BmcReachable, OperationCanceled, Provisioned, Reachable};
    let node = crate::nodes::node(model::node::NodeState::Active);
    for lost in [Reachable, BmcReachable] {
        for phase in [Phase::Ready, Phase::FactoryReady] {
            for canceled in [&[][..], &[OperationCanceled]] {
                for node in [None, Some(&node)] {
                    let mut machine = machine(phase, false, canceled);
                    machine
                        .learn(&[ConditionObservation::new(Provisioned, true, "Image:a")], at(2));
                    machine.learn(&[ConditionObservation::new(lost, false, "Timeout")], at(3));
                    let mut run = Run::new(spec(vec![wipe(0)]));
                    run.spec.run_type = model::plan::RunType::Decommission;
                    run.progress.workflow = Workflow::Cancelled;
                    let context = RunContext { node, ..RunContext::default() };
                    let reported = explain_machine(&machine, Some(&run), context, at(9));
                    let words = machine.problem().expect("a problem").describe();
                    assert!(reported.headline.contains(&words), "{words}: {reported:?}");
                    assert_eq!(reported.since, Some(at(3)), "{reported:?}");
                }
            }
        }
    }
}

#[test]
fn a_machine_in_maintenance_whose_bmc_refuses_us_says_so() {
    let spec = MachineSpec { bmc_endpoint: "https://10.1.0.7".into(), ..MachineSpec::default() };
    let mut machine = Machine::new(MachineId::trusted("m-1"), spec, Labels::new(), at(0));
    machine.phase = Phase::Maintenance;
    assert!(
        explain_machine(&machine, None, RunContext::default(), at(1))
            .headline
            .ends_with("nothing is waiting")
    );
    let observed = ConditionObservation::new(
        ConditionType::BmcReachable,
        false,
        FaultCode::LoginRefused.as_str(),
    );
    machine.learn(&[observed], at(2));
    let reported = explain_machine(&machine, None, RunContext::default(), at(3));
    assert!(reported.headline.contains("BMCReachable is false: login-refused"), "{reported:#?}");
    assert_eq!(reported.fault, Some(FaultCode::LoginRefused));
    let spec = MachineSpec { bmc_credential: "rack-bmc".into(), ..machine.spec.clone() };
    let named = explain_machine(&Machine { spec, ..machine }, None, RunContext::default(), at(3));
    assert_eq!(named.next_commands[0], "farrier credential set rack-bmc");
    assert_eq!(reported.next_commands[1], "farrier bmc unlock https://10.1.0.7");
    check_commands(&reported, "a refused login");
}

/// An alert that prevents operations, and another one that prevents nothing.
fn unhealthy() -> HealthSummary {
    let bar =
        BlockingAlert { source: "dcim".into(), alert: "leak".into(), message: "it is wet".into() };
    HealthSummary { alerts: 2, state_changes: Some(bar), ..HealthSummary::default() }
}

/// `well` is the explanation of the same object without reports.
fn check_health(reported: &Explanation, well: &Explanation, id: &str) {
    let message =
        ["no operation starts on it: dcim reports leak: it is wet", "2 alerts are reported"];
    assert_eq!(reported.health, message, "{id}");
    assert!(well.health.is_empty(), "{id}");
    // No command that changes the object is accepted before the alert is resolved.
    let next = [&[format!("farrier health get {id}")], &well.next_commands[..]].concat();
    assert!(reported.headline.contains(message[0]), "{id}: {}", reported.headline);
    assert_eq!(reported.next_commands, next, "{id}");
    check_commands(reported, id);
}

#[test]
fn what_is_reported_of_a_rack_is_told_in_every_state() {
    let during = RackFailurePhase::Validation;
    let error = DeviceFailure { message: "no power".into(), run: None, code: String::new() };
    let cause = RackFailure {
        phase: during,
        device: None,
        failure: error,
        next_command: "farrier operation list".into(),
        canceled: false,
    };
    for state in [
        RackState::Created,
        RackState::Discovering,
        RackState::Maintenance { stage: MaintenanceStage::PowerSequence },
        RackState::Validating,
        RackState::Ready,
        RackState::Error { cause },
        RackState::Deleting,
    ] {
        let head = RecordHeader::new("rack-1", Labels::new(), at(0));
        let well = Rack { state, ..Rack::new(head, RackSpec::default()) };
        let mut rack = well.clone();
        rack.head.health = unhealthy();
        let context = RackContext { waits_for: "its devices", ..RackContext::default() };
        let reported = |rack: &Rack| explain(rack, context, at(5));
        check_health(&reported(&rack), &reported(&well), "rack-1");
    }
}

#[test]
fn what_is_reported_of_a_device_is_told_of_it() {
    fn check<D: Device>(well: D) {
        let mut device = well.clone();
        device.head_mut().health = unhealthy();
        let next = LifecycleDecision::Idle(IdleReason::new("it rests"));
        let reported = |device: &D| explain_device(device, &next, at(5));
        check_health(&reported(&device), &reported(&well), &well.head().id);
    }
    let head = |id: &str| RecordHeader::new(id, Labels::new(), at(0));
    check(Switch::new(head("sw-1"), DeviceSpec::default()));
    check(PowerShelf::new(head("ps-1"), DeviceSpec::default()));
}
