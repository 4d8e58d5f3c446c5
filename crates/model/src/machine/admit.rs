//! Gates: whether an operation may start on a machine now.
//!
//! The same function guards every entry: StartRun, the customer's requests, and reopening a failed
//! run. It is called in the transaction that writes the run, so two requests cannot both pass.
//! [`RunCase::refusals`] has all of them.

use super::{Machine, Phase};
use crate::blast_radius::{
    AffectedMachine, Impact, ImpactObjection, ServingNode, check_impact, objection_of_service,
};
use crate::condition::ConditionType;
use crate::effect::Effect;
use crate::gate::{Gate, OR_REPEAT, Overrides, answer, gate_of, name_all};
use crate::health::HealthImpact;
use crate::node::NodeState;
use crate::plan::{RunStep, RunType};
use crate::refusal::{Reason, Refusal};
use crate::run::{Run, RunSpec};
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
        | RunType::Join
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
        | RunType::Join
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

/// Impact of a run on its target, the most severe first; none if it has none. Only a run
/// of type REBOOT reboots as documented: a reboot in any other run is a restart.
pub fn impact_of(run_type: RunType, steps: &[RunStep]) -> Option<Impact> {
    let taken = steps.iter().filter_map(|step| step.effect.facts().takes);
    let worst = taken.map(|impact| match impact == Impact::Reboot && run_type != RunType::Reboot {
        true => Impact::Restart,
        false => impact,
    });
    // A drain with a selector leaves the other pods on the node. One without a cluster moves no
    // work away.
    let empties = |effect: &Effect| {
        matches!(effect, Effect::Drain { cluster_ref, options, .. }
            if options.selector.is_empty() && !cluster_ref.is_empty())
    };
    let drains = steps.iter().any(|step| empties(&step.effect));
    let enters = run_type == RunType::EnterMaintenance && !drains;
    worst.max().or(enters.then_some(Impact::Maintenance))
}

/// A run as the gates see it.
#[derive(Debug, Clone, Copy)]
pub struct RunCase<'a> {
    pub machine: &'a Machine,
    /// The node that uses the machine.
    pub node: Option<&'a ServingNode>,
    pub run_type: RunType,
    pub steps: &'a [RunStep],
}

impl RunCase<'_> {
    /// All refusals. One that cannot be overridden stands alone. The objection of a node comes
    /// before the phase: entering maintenance would not help.
    pub fn refusals(&self, overrides: &Overrides) -> Vec<Refusal> {
        if let Err(refusal) = self.check_flags_and_hold() {
            return vec![refusal];
        }
        let (by_node, service) = self.check_service(overrides);
        match (self.check_phase(overrides), service) {
            // An override of this request would not pass the phase.
            (Err(phase), Err(refusal)) if by_node && phase.gate.is_none() => {
                vec![self.offer_maintenance(refusal.without_override())]
            }
            (Err(_), Err(refusal)) if by_node => vec![refusal],
            (Err(refusal), _) => vec![refusal],
            (Ok(()), service) => {
                let (disk, health) = (self.check_disk(overrides), self.check_health(overrides));
                let mut all: Vec<Refusal> =
                    [service, disk, health].into_iter().filter_map(Result::err).collect();
                name_all(&mut all, overrides);
                all
            }
        }
    }

    /// Adds the command that leads into phase MAINTENANCE past the node. There the override of the
    /// request is enough.
    fn offer_maintenance(&self, refusal: Refusal) -> Refusal {
        if self.machine.phase == Phase::Maintenance {
            return refusal;
        }
        let enter = format!("farrier enter-maintenance {}", self.machine.id);
        let enter = match objection_of_service(self.machine, self.node, Impact::Maintenance) {
            Some(_) => format!("{enter} {}", Overrides::default().flags_with(Gate::InService)),
            None => enter,
        };
        let drain = refusal.next_command.clone().unwrap_or_default();
        refusal.next(format!("{drain}   # or: {enter}"))
    }

    /// Checks whether the run may start.
    pub fn admit(&self, overrides: &Overrides) -> Result<(), Refusal> {
        answer(&self.refusals(overrides)).map_or(Ok(()), Err)
    }

    fn check_flags_and_hold(&self) -> Result<(), Refusal> {
        let (machine, what) = (self.machine, self.run_type.as_str());
        let id = &machine.id;
        let back = self.run_type == RunType::ExitRma;
        for (flag, undo, own_undo) in [
            (ConditionType::Retired, "clear-retired", false),
            (ConditionType::Rma, "clear-rma", back),
        ] {
            if machine.is(flag) && !own_undo {
                let message = format!("{id} is flagged {}: {what} is blocked", flag.as_str());
                return Err(Refusal::new(Reason::MachineBlocked, message)
                    .next(format!("farrier admin {undo} {id} --reason …")));
            }
        }
        if back {
            admit_rma_return(machine, self.steps)?;
        }
        let Some(run) = &machine.active_run else { return Ok(()) };
        let message = format!(
            "{id} is held by operation {run}: {what} must wait until it ends or is canceled"
        );
        Err(Refusal::new(Reason::MachineBusy, message).next(format!("farrier why {run}")))
    }

    /// The phase in which power may be switched protects a machine whose use is not known, as the
    /// gate `in-service` does. The same override passes both.
    fn check_phase(&self, overrides: &Overrides) -> Result<(), Refusal> {
        let Self { machine, node, run_type, steps } = self;
        // An active node objects to entering maintenance too.
        let active = node.filter(|node| node.state == NodeState::Active);
        let guided = |refusal: Refusal| match active {
            Some(node) => refusal.next(command_to_drain(machine, node, Impact::Maintenance)),
            None => refusal,
        };
        in_phase(machine, run_type.as_str(), phases_for_run_type(*run_type)).map_err(guided)?;
        for step in *steps {
            let what = format!("step {} of this plan", step.name);
            let checked = in_phase(machine, &what, phases_for_effect(&step.effect));
            let switches =
                *run_type == RunType::Power && step.effect.facts().gate == RunType::Reboot;
            match checked.map_err(guided) {
                Err(_) if switches && overrides.passes(Gate::InService) => {}
                Err(refusal) if switches => {
                    let enter = refusal.next_command.clone().unwrap_or_default();
                    let flags = overrides.flags_with(Gate::InService);
                    let next = format!("{enter}{OR_REPEAT}{flags}");
                    return Err(refusal.at_gate(Gate::InService).next(next));
                }
                checked => checked?,
            }
        }
        Ok(())
    }

    fn check_health(&self, overrides: &Overrides) -> Result<(), Refusal> {
        let (target, what) = (TargetId::from(&self.machine.id), self.run_type.as_str());
        let impact = health_impact(self.run_type, self.steps);
        self.machine.health.check_permitted(&target, what, impact, overrides)
    }

    /// The gate `in-service`, and whether a node objects. The runs of nodes take nothing in this
    /// sense: the state of the node admits them.
    fn check_service(&self, overrides: &Overrides) -> (bool, Result<(), Refusal>) {
        let Some(impact) = impact_of(self.run_type, self.steps) else { return (false, Ok(())) };
        let objection = objection_of_service(self.machine, self.node, impact);
        let by_node = matches!(objection, Some(ImpactObjection::Serves(_)));
        let what = self.run_type.as_str();
        (by_node, check_service(what, impact, (self.machine, self.node), overrides))
    }

    /// The gate `unfinished-disk`: it guards the way back into service.
    fn check_disk(&self, overrides: &Overrides) -> Result<(), Refusal> {
        match self.run_type == RunType::ExitMaintenance {
            true => self.machine.check_system(self.run_type.as_str(), overrides),
            false => Ok(()),
        }
    }
}

/// The gate `in-service` of one machine: `what` would have this impact on it.
fn check_service(
    what: &str,
    impact: Impact,
    (machine, node): (&Machine, Option<&ServingNode>),
    overrides: &Overrides,
) -> Result<(), Refusal> {
    let id = &machine.id;
    let objection = objection_of_service(machine, node, impact);
    let drain = match node.filter(|_| matches!(objection, Some(ImpactObjection::Serves(_)))) {
        Some(node) => command_to_drain(machine, node, impact),
        None => format!("farrier enter-maintenance {id} --drain"),
    };
    let affected = AffectedMachine { machine: id.clone(), objection };
    check_impact(what, impact, &[affected], overrides).map_err(|refusal| {
        let flags = overrides.flags_with(Gate::InService);
        refusal.next(format!("{drain}{OR_REPEAT}{flags}"))
    })
}

/// The command that moves the work of the node away. To enter maintenance, a drain in the cluster
/// of the machine is enough.
fn command_to_drain(machine: &Machine, node: &ServingNode, impact: Impact) -> String {
    let in_cluster = !machine.spec.target_cluster_ref.is_empty();
    match node.state {
        // Its drain has not ended well: otherwise the operation would hold the machine.
        NodeState::Draining => format!("farrier node resume {}", node.id),
        _ if impact == Impact::Maintenance && in_cluster => {
            format!("farrier enter-maintenance {} --drain", machine.id)
        }
        NodeState::BootstrapIssued
        | NodeState::Enrolling
        | NodeState::Active
        | NodeState::Offline
        | NodeState::Quarantined
        | NodeState::Retired
        | NodeState::Removing
        | NodeState::Deleted => format!("farrier node drain {}", node.id),
    }
}

/// Checks whether an administrator may flag the machine as RMA or Retired now, which blocks every
/// operation on it. Returns the gates that would refuse without the override.
pub fn admit_flag(
    machine: &Machine,
    node: Option<&ServingNode>,
    flag: ConditionType,
    overrides: &Overrides,
) -> Result<Vec<Gate>, Refusal> {
    if let Some(run) = &machine.active_run {
        return Err(TargetId::from(&machine.id).refuse_held(run));
    }
    let what = format!("flagging {} as {}", machine.id, flag.as_str());
    let check = |overrides: &Overrides| {
        check_service(&what, Impact::OperationsBlocked, (machine, node), overrides)
    };
    check(overrides)?;
    Ok(gate_of(&check(&Overrides::default())).into_iter().collect())
}

/// Checks whether a run that exists may start or continue: its override holds, and it takes no
/// other one.
pub fn admit_again(
    machine: &Machine,
    node: Option<&ServingNode>,
    run: &Run,
) -> Result<(), Refusal> {
    let RunSpec { run_type, steps, params, .. } = &run.spec;
    let (run_type, overrides) = (*run_type, Overrides::of_params(params));
    let case = RunCase { machine, node, run_type, steps };
    case.admit(&overrides).map_err(|refusal| {
        let next = refusal.next_command.clone().unwrap_or_default();
        let Some((first, flags)) = next.split_once(OR_REPEAT) else { return refusal };
        let id = &machine.id;
        let instead = match RunType::NODES.contains(&run_type) {
            true => format!("farrier health delete {id} --source …"),
            false => {
                let (kind, plan) = (run_type.as_str(), &run.spec.plan_id);
                format!("farrier operation start {id} --type {kind} --plan {plan} {flags}")
            }
        };
        refusal.next(format!("{first}   # or: {instead}"))
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
