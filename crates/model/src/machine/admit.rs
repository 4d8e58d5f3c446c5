//! Gates: whether an operation may start on a machine now.
//!
//! The same function guards every entry: StartRun, the customer's requests, and reopening a failed
//! run. It is called in the transaction that writes the run, so two requests cannot both pass.

use super::{Machine, Phase};
use crate::condition::ConditionType;
use crate::effect::Effect;
use crate::gate::{self, Gate, Overrides};
use crate::health::HealthImpact;
use crate::plan::{RunStep, RunType};
use crate::refusal::{Reason, Refusal};
use crate::run::Run;
use crate::target::TargetId;

/// The phases in which a run of this type may start.
pub const fn phases_for_run_type(run_type: RunType) -> &'static [Phase] {
    use Phase::{FactoryReady, Maintenance, Ready};
    match run_type {
        // The steps of a POWER run are checked one by one; powering on is harmless.
        RunType::EnterMaintenance
        | RunType::Power
        | RunType::ExitRma
        | RunType::Intake
        | RunType::Check
        // The state of the node is the gate.
        | RunType::Decommission
        | RunType::NodeDrain => &[FactoryReady, Ready, Maintenance],
        // A machine in service is not touched, unless the rack's own gate has admitted it.
        RunType::RackMaintenance | RunType::Firmware | RunType::Fabric | RunType::Onboard => {
            &[FactoryReady, Maintenance]
        }
        RunType::Reboot => &[Ready, Maintenance],
        RunType::ExitMaintenance
        | RunType::Reimage
        | RunType::Upgrade
        | RunType::NetReconfig
        | RunType::Rma => &[Maintenance],
    }
}

/// The phases that allow an effect, whatever the type of its run.
pub const fn phases_for_effect(effect: &Effect) -> &'static [Phase] {
    phases_for_run_type(effect.facts().gate)
}

/// The impact for the health gate: the run changes the machine, or also places workloads on it.
fn health_impact(run_type: RunType, steps: &[RunStep]) -> HealthImpact {
    match run_type {
        RunType::ExitMaintenance | RunType::Onboard => HealthImpact::PlaceWorkloads,
        // A machine may always be drained and decommissioned, even when its health forbids new
        // workloads.
        RunType::Decommission | RunType::NodeDrain => HealthImpact::Change,
        RunType::Reboot
        | RunType::Reimage
        | RunType::EnterMaintenance
        | RunType::Upgrade
        | RunType::NetReconfig
        | RunType::Rma
        | RunType::ExitRma
        | RunType::Power
        | RunType::RackMaintenance
        | RunType::Firmware
        | RunType::Fabric
        | RunType::Intake
        | RunType::Check => match steps.iter().any(|step| step.effect.facts().places_work) {
            true => HealthImpact::PlaceWorkloads,
            false => HealthImpact::Change,
        },
    }
}

/// Checks whether a run of this type with these steps may start.
pub fn admit(machine: &Machine, run_type: RunType, steps: &[RunStep]) -> Result<(), Refusal> {
    admit_with_override(machine, run_type, steps, &Overrides::default())
}

/// Like `admit`, with an override.
pub fn admit_with_override(
    machine: &Machine,
    run_type: RunType,
    steps: &[RunStep],
    overrides: &Overrides,
) -> Result<(), Refusal> {
    let id = &machine.id;
    let what = run_type.as_str();
    let back = run_type == RunType::ExitRma;
    for (flag, undo, own_undo) in
        [(ConditionType::Retired, "clear-retired", false), (ConditionType::Rma, "clear-rma", back)]
    {
        if machine.is(flag) && !own_undo {
            let message = format!("{id} is flagged {}: {what} is blocked", flag.as_str());
            return Err(Refusal::new(Reason::MachineBlocked, message)
                .next(format!("farrier admin {undo} {id} --reason …")));
        }
    }
    if back {
        admit_rma_return(machine, steps)?;
    }
    if let Some(run) = &machine.active_run {
        let message = format!(
            "{id} is held by operation {run}: {what} must wait until it ends or is canceled"
        );
        return Err(Refusal::new(Reason::MachineBusy, message).next(format!("farrier why {run}")));
    }
    in_phase(machine, what, phases_for_run_type(run_type))?;
    for step in steps {
        let what = format!("step {} of this plan", step.name);
        in_phase(machine, &what, phases_for_effect(&step.effect))?;
    }
    gate::answer(&gate_refusals(machine, run_type, steps, overrides)).map_or(Ok(()), Err)
}

/// The refusals of the gates that can be overridden.
pub fn gate_refusals(
    machine: &Machine,
    run_type: RunType,
    steps: &[RunStep],
    overrides: &Overrides,
) -> Vec<Refusal> {
    let (target, what) = (TargetId::from(&machine.id), run_type.as_str());
    let impact = health_impact(run_type, steps);
    let disk = match run_type == RunType::ExitMaintenance {
        true => machine.check_disk(what, overrides),
        false => Ok(()),
    };
    let health = machine.health.check_permitted(&target, what, impact, overrides);
    let mut refusals: Vec<Refusal> = [disk, health].into_iter().filter_map(Result::err).collect();
    gate::name_all(&mut refusals, overrides);
    refusals
}

/// Like `admit`, for a run that exists: its override holds, and it takes no other one.
pub fn admit_again(machine: &Machine, run: &Run) -> Result<(), Refusal> {
    let (run_type, overrides) = (run.spec.run_type, Overrides::of_params(&run.spec.params));
    let admitted = admit_with_override(machine, run_type, &run.spec.steps, &overrides);
    admitted.map_err(|refusal| {
        let Some(gate) = refusal.gate else { return refusal };
        let (id, what, flags) = (&machine.id, run_type.as_str(), overrides.flags_with(gate));
        let instead = match RunType::NODES.contains(&run_type) {
            true => format!("farrier health delete {id} --source …"),
            false => format!("farrier operation start {id} --type {what} {flags}"),
        };
        let look = match gate == Gate::Health {
            true => format!("farrier health get {id}"),
            false => format!("farrier why {id}"),
        };
        refusal.next(format!("{look}   # or: {instead}"))
    })
}

/// Only the run that returns the machine may start on a machine flagged RMA.
fn admit_rma_return(machine: &Machine, steps: &[RunStep]) -> Result<(), Refusal> {
    let id = &machine.id;
    if !machine.is(ConditionType::Rma) {
        let message = format!("{id} is not flagged RMA: there is nothing to come back from");
        return Err(Refusal::new(Reason::NotFlagged, message).next(format!("farrier get {id}")));
    }
    match steps.iter().find(|step| !step.effect.facts().allowed_in_exit_rma) {
        None => Ok(()),
        Some(step) => {
            let message = format!(
                "{id} is flagged RMA: step {} of this plan must wait until it is back",
                step.name
            );
            Err(Refusal::new(Reason::MachineBlocked, message)
                .next(format!("farrier machine exit-rma {id}")))
        }
    }
}

/// Every phase gate can be satisfied by entering maintenance.
pub(super) fn in_phase(machine: &Machine, what: &str, phases: &[Phase]) -> Result<(), Refusal> {
    if phases.contains(&machine.phase) {
        return Ok(());
    }
    let (id, phase) = (&machine.id, machine.phase.as_str());
    let words: Vec<_> = phases.iter().map(|phase| phase.as_str()).collect();
    let message =
        format!("{what} needs phase {}, and {id} is in phase {phase}", words.join(" or "));
    Err(Refusal::new(Reason::WrongPhase, message).next(format!("farrier enter-maintenance {id}")))
}
