//! What the record of a machine says of a change that failed, after other operations.

use crate::support::{RunDriver, at, done, fault, note, power_off, spec, wipe};
use model::condition::{ConditionObservation, ConditionType, POWERED_OFF};
use model::effect::{DesiredPower, Effect, PowerOffPolicy, RebootMode};
use model::fault::FaultCode;
use model::id::{MachineId, RunId};
use model::machine::{
    ChangeKind, FailedChange, FailedChanges, Labels, Machine, MachineProblem, MachineSpec, Phase,
};
use model::plan::{RunStep, RunType, boot_from_disk_plan};
use model::run::{Run, RunPhase, RunSpec, Workflow};
use model::why::{RunContext, Urgency, explain_machine, rank_machine};

fn machine(phase: Phase) -> Machine {
    let id = MachineId::trusted("m-1");
    Machine { phase, ..Machine::new(id, MachineSpec::default(), Labels::new(), at(0)) }
}

fn power_on() -> RunStep {
    let effect =
        Effect::Power { to: DesiredPower::On, power_off: PowerOffPolicy::PROVIDER_DEFAULT };
    RunStep { name: "power-on".into(), effect, ..note(0) }
}

fn run_of(id: &str, run_type: RunType, step: RunStep) -> RunDriver {
    RunDriver::begin(Run::new(RunSpec { id: RunId::trusted(id), run_type, ..spec(vec![step]) }))
}

fn failed(id: &str, run_type: RunType, step: RunStep) -> Run {
    let mut driver = run_of(id, run_type, step);
    driver.now = at(70);
    driver.answer(fault(FaultCode::EffectFailed));
    assert_eq!(driver.run.phase(), RunPhase::Failed);
    driver.run
}

fn succeeded(id: &str, run_type: RunType, step: RunStep) -> Run {
    let mut driver = run_of(id, run_type, step);
    driver.answer(done());
    assert_eq!(driver.run.phase(), RunPhase::Succeeded);
    driver.run
}

/// A run type and a step that make a change of this kind.
fn change(kind: ChangeKind) -> (RunType, RunStep) {
    match kind {
        ChangeKind::Imaging => (RunType::Reimage, wipe(0)),
        ChangeKind::Upgrade => (RunType::Upgrade, note(0)),
        ChangeKind::Network => (RunType::NetReconfig, note(0)),
        ChangeKind::Firmware => (RunType::Firmware, note(0)),
        ChangeKind::Power => (RunType::Power, power_off(0)),
    }
}

fn failed_change(id: &str, kind: ChangeKind) -> Run {
    let (run_type, step) = change(kind);
    failed(id, run_type, step)
}

fn kinds(machine: &Machine) -> Vec<ChangeKind> {
    machine.failed_changes.iter().map(|failed| failed.kind).collect()
}

/// Every kind of failure against every kind of success: what is repaired.
#[test]
fn a_success_repairs_its_own_kind_and_an_image_two_more() {
    use ChangeKind::{Firmware, Imaging, Network, Power, Upgrade};
    for (success, left) in [
        (Imaging, vec![Firmware, Power]),
        (Upgrade, vec![Imaging, Network, Firmware, Power]),
        (Network, vec![Imaging, Upgrade, Firmware, Power]),
        (Firmware, vec![Imaging, Upgrade, Network, Power]),
        (Power, vec![Imaging, Upgrade, Network, Firmware]),
    ] {
        let mut machine = machine(Phase::Ready);
        for (number, kind) in ChangeKind::ALL.into_iter().enumerate() {
            machine.record_change(&failed_change(&format!("op-{number}"), kind));
        }
        assert_eq!(kinds(&machine), ChangeKind::ALL, "all are remembered, the worst first");
        let (run_type, step) = change(success);
        machine.record_change(&succeeded("op-9", run_type, step));
        assert_eq!(kinds(&machine), left, "{success:?}");
    }
}

/// Other successes hide nothing, and each kind is remembered once.
#[test]
fn only_a_repair_and_a_cancel_end_it() {
    let mut machine = machine(Phase::Maintenance);
    machine.record_change(&failed_change("op-1", ChangeKind::Network));
    for run_type in [RunType::Reboot, RunType::ExitMaintenance, RunType::Check, RunType::Join] {
        machine.record_change(&succeeded("op-2", run_type, note(0)));
    }
    // A plan of the type POWER that changes the next boot alone switches nothing.
    let step = &boot_from_disk_plan().steps[0];
    let step = RunStep { name: step.name.clone(), effect: step.effect.clone(), ..note(0) };
    machine.record_change(&failed("op-3", RunType::Power, step));
    assert_eq!(kinds(&machine), [ChangeKind::Network]);
    machine.record_change(&failed_change("op-4", ChangeKind::Network));
    let known: Vec<&str> = machine.failed_changes.iter().map(|one| one.run.as_str()).collect();
    assert_eq!(known, ["op-4"], "the last one of a kind");
    for (id, left) in [("op-1", 1), ("op-4", 0)] {
        let mut canceled = failed_change(id, ChangeKind::Network);
        canceled.progress.workflow = Workflow::Cancelled;
        machine.record_change(&canceled);
        assert_eq!(machine.failed_changes.iter().count(), left, "{id}");
    }
    // A node tells the failures of its own runs.
    machine.record_change(&failed("op-5", RunType::Onboard, wipe(0)));
    assert!(machine.failed_changes.is_empty());
}

/// Rows: the step that failed, what is then observed of `Reachable`, and whether that contradicts
/// the failure.
#[test]
fn an_observation_repairs_a_power_change() {
    let cycle = || RunStep {
        name: "cycle".into(),
        effect: Effect::Reboot {
            mode: RebootMode::Bmc,
            power_off: PowerOffPolicy::PROVIDER_DEFAULT,
        },
        ..note(0)
    };
    for (step, status, reason, repaired) in [
        (power_on(), true, "Ssh", true),
        (power_on(), false, POWERED_OFF, false),
        (power_on(), false, "host-unreachable", false),
        (cycle(), true, "Ssh", true),
        (power_off(0), false, POWERED_OFF, true),
        (power_off(0), false, "host-unreachable", false),
        (power_off(0), true, "Ssh", false),
    ] {
        let name = step.name.clone();
        let mut machine = machine(Phase::Ready);
        machine.record_change(&failed("op-1", RunType::Power, step.clone()));
        let network = failed_change("op-2", ChangeKind::Network);
        machine.record_change(&network);
        assert_eq!(kinds(&machine), [ChangeKind::Network, ChangeKind::Power]);
        let observed = ConditionObservation::new(ConditionType::Reachable, status, reason);
        assert!(machine.learn(std::slice::from_ref(&observed), at(80)));
        let left = kinds(&machine);
        assert_eq!(!left.contains(&ChangeKind::Power), repaired, "{name}, {reason}");
        assert!(left.contains(&ChangeKind::Network), "an observation says nothing of it");
        // A failure that is contradicted when it happens is not remembered.
        machine.record_change(&failed("op-3", RunType::Power, step));
        assert_eq!(!kinds(&machine).contains(&ChangeKind::Power), repaired, "{name}, {reason}");
    }
}

/// In service every kind is a problem; in maintenance and before service, those that mean damage.
#[test]
fn it_is_a_problem_where_it_means_damage() {
    for kind in ChangeKind::ALL {
        for phase in Phase::ALL {
            let mut machine = machine(phase);
            machine.record_change(&failed_change("op-1", kind));
            let shown = phase == Phase::Ready || kind.is_damage();
            let problem = machine.problem();
            let is_it = matches!(problem, Some(MachineProblem::FailedChange(_)));
            assert_eq!(is_it, shown, "{kind:?} {phase:?}");
            if let Some(problem) = problem {
                let words = format!("its last {} op-1 failed", kind.noun());
                assert_eq!(problem.describe(), words);
                assert_eq!(problem.label(), format!("last {} failed", kind.noun()));
                assert_eq!(machine.problem_since(problem), at(70));
                let rank = rank_machine(&machine).expect("it needs a person");
                assert_eq!((rank.urgency, rank.since), (Urgency::Degraded, at(70)));
            }
            // The operation that failed calls for a person by itself.
            let needs = ConditionObservation::new(ConditionType::NeedsIntervention, true, "why");
            machine.learn(&[needs], at(71));
            assert_eq!(machine.problem(), None);
        }
    }
}

/// The cause, since when, and the repair of the operation that failed, in every phase.
#[test]
fn why_names_the_operation_and_its_repair() {
    let later = succeeded("op-2", RunType::Reboot, note(0));
    for kind in [ChangeKind::Upgrade, ChangeKind::Network, ChangeKind::Firmware] {
        for phase in Phase::ALL {
            let run = failed_change("op-1", kind);
            let mut machine = machine(phase);
            machine.record_change(&run);
            let context = RunContext { failed_change: Some(&run), ..RunContext::default() };
            let told = explain_machine(&machine, Some(&later), context, at(99));
            let words = format!("{} op-1 failed at step note", run.spec.run_type.as_str());
            assert!(told.headline.contains(&words), "{phase:?}: {}", told.headline);
            assert!(!told.headline.contains("nothing is waiting"), "{}", told.headline);
            assert_eq!(told.since, Some(at(70)), "{phase:?}");
            let place = |command: &str| told.next_commands.iter().position(|one| one == command);
            let rerun = place("farrier operation rerun op-1").expect("the repair");
            assert!(place("farrier why op-1").is_some(), "{told:#?}");
            let enter = place("farrier enter-maintenance m-1");
            match phase {
                Phase::Maintenance => assert_eq!(enter, None, "{told:#?}"),
                Phase::FactoryReady | Phase::Ready => {
                    assert!(enter.is_some_and(|enter| enter < rerun), "{told:#?}");
                }
            }
            // Without its operation, which retention has deleted, the failure is still told.
            let told = explain_machine(&machine, Some(&later), RunContext::default(), at(99));
            let words = format!("its last {} op-1 failed", kind.noun());
            assert!(told.headline.contains(&words), "{}", told.headline);
        }
    }
}

/// The change that a machine at rest is shown with, every kind of which stands beside another
/// problem in the headline; the others are notes.
#[test]
fn a_failure_is_told_beside_another_problem() {
    use ConditionType::{BmcReachable, Reachable};
    for kind in ChangeKind::ALL {
        for (condition, reason) in [(Reachable, "timeout"), (BmcReachable, "bmc-unreachable")] {
            let mut machine = machine(Phase::Ready);
            let run = failed_change("op-1", kind);
            machine.record_change(&run);
            let observed = ConditionObservation::new(condition, false, reason);
            machine.learn(&[observed], at(80));
            let lost = machine.problem().expect("a problem").describe();
            let context = RunContext { failed_change: Some(&run), ..RunContext::default() };
            let told = explain_machine(&machine, None, context, at(99));
            let cause = format!("{} op-1 failed at step", run.spec.run_type.as_str());
            for words in [&lost, &cause] {
                assert!(told.headline.contains(words), "{words}: {}", told.headline);
            }
            // Its BMC is needed for the repair.
            let first = &told.next_commands[0];
            let looks = ["farrier machine power m-1 on", "farrier machine inspect m-1"];
            assert!(looks.contains(&first.as_str()), "{told:#?}");
            assert!(told.next_commands.contains(&"farrier why op-1".to_string()), "{told:#?}");
        }
    }
    let mut machine = machine(Phase::Ready);
    let network = failed_change("op-1", ChangeKind::Network);
    machine.record_change(&network);
    machine.record_change(&failed_change("op-3", ChangeKind::Firmware));
    let context = RunContext { failed_change: Some(&network), ..RunContext::default() };
    let told = explain_machine(&machine, None, context, at(99));
    assert_eq!(told.notes.last().unwrap(), "its last firmware update op-3 failed");
}

/// An older version remembered a reimage alone, under another name.
#[test]
fn the_record_of_an_older_version_is_read() {
    let new = machine(Phase::Ready);
    let stored = serde_json::to_value(&new).unwrap();
    assert!(stored.get("failed_changes").is_none(), "what is empty is not stored: {stored}");
    let mut older = stored.clone();
    older["failed_imaging"] = serde_json::json!({"run": "op-1", "since": at(70)});
    let read: Machine = serde_json::from_value(older).unwrap();
    let run = RunId::trusted("op-1");
    let known = FailedChange { kind: ChangeKind::Imaging, run, since: at(70), wanted_power: None };
    let mut expected = FailedChanges::default();
    expected.insert(known);
    assert_eq!(read.failed_changes, expected);
    let again: Machine = serde_json::from_value(serde_json::to_value(&read).unwrap()).unwrap();
    assert_eq!(again, read);
}
