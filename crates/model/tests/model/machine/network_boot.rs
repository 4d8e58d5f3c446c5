//! The next boot in the record, after an operation that armed a boot from the network.

use crate::support::{RunDriver, at, done, fault, netboot, note, spec, wipe};
use model::condition::{ConditionObservation, ConditionType};
use model::effect::{Effect, PowerOffPolicy, ProviderAnswer, RebootMode};
use model::fault::FaultCode;
use model::id::MachineId;
use model::machine::{Labels, Machine, MachineProblem, MachineSpec, NetworkBoot, Phase};
use model::plan::{RunStep, RunType, boot_from_disk_plan, built_in};
use model::run::actions::Action;
use model::run::{Run, RunSpec};
use model::why::{RunContext, explain_machine};

const DISARM: &str = "farrier operation start m-1 --type POWER --plan plan-boot-from-disk-v1";

fn machine(provider: &str, phase: Phase) -> Machine {
    let spec = MachineSpec { provider: provider.into(), ..MachineSpec::default() };
    let machine = Machine::new(MachineId::trusted("m-1"), spec, Labels::new(), at(0));
    Machine { phase, ..machine }
}

fn reboot() -> RunStep {
    let power_off = PowerOffPolicy::PROVIDER_DEFAULT;
    let effect = Effect::Reboot { mode: RebootMode::Bmc, power_off };
    RunStep { name: "reboot".into(), effect, ..note(0) }
}

/// A run that failed at its last step.
fn failed_after(steps: Vec<RunStep>) -> Run {
    let mut driver = RunDriver::of(steps.clone());
    for _ in 1..steps.len() {
        driver.answer(done());
    }
    driver.answer(fault(FaultCode::EffectFailed));
    assert!(driver.run.ended());
    driver.run
}

fn armed_by(provider: &str, run: &Run) -> bool {
    let mut machine = machine(provider, Phase::Maintenance);
    machine.record_network_boot(run);
    machine.network_boot.is_some()
}

/// Rows: the steps of a run that failed at its last one, and whether the next boot may be from the
/// network.
#[test]
fn a_failed_run_leaves_what_its_finished_steps_have_set() {
    for (steps, armed) in [
        (vec![netboot(0), wipe(0)], true),
        (vec![netboot(0), note(0)], true),
        // The image was installed, and the machine has booted from its disk.
        (vec![netboot(0), wipe(0), note(0)], false),
        (vec![netboot(0), reboot(), note(0)], false),
        (vec![netboot(0), reboot()], true),
        // The BMC has refused the setting.
        (vec![netboot(0)], false),
        (vec![note(0)], false),
    ] {
        let run = failed_after(steps);
        let names: Vec<&str> = run.spec.steps.iter().map(|step| step.name.as_str()).collect();
        assert_eq!(armed_by("sim", &run), armed, "{names:?}");
        assert!(!armed_by("maas", &run), "a MAAS chooses the source of each boot");
    }
    // The step ended without an answer of the BMC: it may have set it.
    let mut silent = failed_after(vec![netboot(0)]);
    silent.progress.failure.as_mut().unwrap().fault.code = FaultCode::StepTimeout;
    assert!(armed_by("sim", &silent));
}

#[test]
fn a_cancel_and_the_plan_disarm_it() {
    let mut canceled = RunDriver::of(vec![netboot(0), wipe(0)]);
    canceled.answer(done()).act(Action::Cancel).interrupt();
    canceled.answer(Ok(ProviderAnswer::Stopped)).answer(done());
    assert!(canceled.run.ended());
    assert!(!armed_by("sim", &canceled.run));

    let mut machine = machine("sim", Phase::Ready);
    machine.record_network_boot(&failed_after(vec![netboot(0), wipe(0)]));
    assert_eq!(machine.network_boot.as_ref().unwrap().armed_by.as_str(), "op-1");
    assert_eq!(NetworkBoot::disarm_command(&machine.id), DISARM);
    // An operation that does nothing about the next boot leaves it armed.
    machine.record_network_boot(&failed_after(vec![note(0)]));
    assert!(machine.network_boot.is_some());
    let plan = boot_from_disk_plan();
    assert!(built_in().contains(&plan));
    let effect = plan.steps[0].effect.clone();
    let step = RunStep { name: plan.steps[0].name.clone(), effect, ..note(0) };
    let spec = RunSpec { run_type: RunType::Power, ..spec(vec![step]) };
    // It takes nothing from a machine in service.
    super::admit::admit(&machine, RunType::Power, &spec.steps).unwrap();
    let mut disarmed = RunDriver::begin(Run::new(spec));
    disarmed.answer(done());
    machine.record_network_boot(&disarmed.run);
    assert_eq!(machine.network_boot, None);
}

/// Every state at rest tells of it with the command; in service it is the first one.
#[test]
fn why_tells_of_it_in_every_state() {
    let run = failed_after(vec![netboot(0), wipe(0)]);
    let words = "its next boot may be from the network: op-1 armed it, and nothing disarmed it";
    let needs = ConditionObservation::new(ConditionType::NeedsIntervention, true, "failed:op-1");
    for phase in Phase::ALL {
        for attention in [false, true] {
            let mut machine = machine("sim", phase);
            machine.record_network_boot(&run);
            machine.record_change(&run);
            if attention {
                machine.learn(std::slice::from_ref(&needs), at(1));
            }
            let context = RunContext { imaging: Some(&run), ..RunContext::default() };
            let told = explain_machine(&machine, Some(&run), context, at(9));
            let case = format!("{phase:?}, attention {attention}: {told:#?}");
            let in_service = phase == Phase::Ready && !attention;
            assert_eq!(told.headline.contains(words), in_service, "{case}");
            assert_eq!(told.notes.iter().any(|note| note == words), !in_service, "{case}");
            // After it, a failed operation could no longer be resumed.
            assert_eq!(told.next_commands.iter().any(|one| one == DISARM), !attention, "{case}");
            assert_eq!(told.next_commands[0] == DISARM, in_service, "{case}");
            let is_problem = matches!(machine.problem(), Some(MachineProblem::NetworkBoot(_)));
            assert_eq!(is_problem, !attention, "{case}");
            // The failed operation on the disk is still told.
            assert!(told.headline.contains("REIMAGE op-1") || phase != Phase::Ready, "{case}");
            machine.active_run = Some(run.spec.id.clone());
            let busy = explain_machine(&machine, Some(&run), context, at(9));
            assert!(!busy.next_commands.iter().any(|one| one == DISARM), "{busy:#?}");
        }
    }
    // Without a failed operation to tell of, it is not "nothing wrong".
    let mut machine = machine("sim", Phase::Ready);
    machine.record_network_boot(&run);
    let told = explain_machine(&machine, None, RunContext::default(), at(9));
    assert!(!told.headline.contains("nothing wrong"), "{}", told.headline);
    assert!(told.headline.contains(words), "{}", told.headline);
}
