//! The changes that a run makes to its machine: conditions, phase, and the hold.

use super::{Run, RunPhase, StopKind};
use crate::condition::{ConditionObservation, ConditionType, IN_SERVICE, NOT_IN_CLUSTER};
use crate::id::RunId;
use crate::machine::{Machine, Phase};
use crate::plan::{OnFailure, RunType};
use crate::time::Timestamp;

/// Applies a commit of this run to its machine. Called in the same transaction, with the evidence
/// of the answer that led to the commit.
pub fn apply_to_machine(
    machine: &mut Machine,
    run: &Run,
    evidence: &[ConditionObservation],
    now: Timestamp,
) {
    machine.learn(evidence, now);
    if run.ended() {
        if machine.active_run.as_ref() == Some(&run.spec.id) {
            machine.active_run = None;
        }
        machine.learn(&final_conditions(machine, run, evidence), now);
        if let Some(phase) = new_phase(run) {
            let new = machine.phase == Phase::FactoryReady || machine.never_served;
            machine.never_served = new && phase != Phase::Ready;
            machine.phase = phase;
        }
    } else {
        // A child run works under its parent's hold.
        if run.spec.parent_run.is_none() {
            machine.active_run = Some(run.spec.id.clone());
        }
        if machine.is(ConditionType::OperationCanceled) {
            let reason = format!("Started:{}", run.spec.id);
            machine.learn(
                &[ConditionObservation::new(ConditionType::OperationCanceled, false, reason)],
                now,
            );
        }
    }
}

/// The conditions that follow from the end of a run.
fn final_conditions(
    machine: &Machine,
    run: &Run,
    evidence: &[ConditionObservation],
) -> Vec<ConditionObservation> {
    use ConditionType::{Drained, NeedsIntervention, OperationCanceled, Rma};
    let id = &run.spec.id;
    let mut message = Vec::new();
    match run.phase() {
        RunPhase::Succeeded => {
            if machine.is(NeedsIntervention) {
                message.push(ConditionObservation::new(
                    NeedsIntervention,
                    false,
                    format!("Succeeded:{id}"),
                ));
            }
            // A node that was just observed as cordoned and empty has no work yet.
            let empty = |one: &ConditionObservation| {
                one.condition == Drained && one.status && one.reason != NOT_IN_CLUSTER
            };
            if run.spec.run_type == RunType::ExitMaintenance && !evidence.iter().any(empty) {
                message.push(ConditionObservation::new(Drained, false, IN_SERVICE));
            }
            if run.spec.run_type == RunType::Onboard {
                message.extend(machine.outdated_by_service());
            }
            if run.spec.run_type == RunType::ExitRma {
                message.push(ConditionObservation::new(Rma, false, format!("Returned:{id}")));
            }
        }
        RunPhase::Failed => {
            message.push(ConditionObservation::new(NeedsIntervention, true, describe_failure(run)))
        }
        RunPhase::Canceled => {
            message.push(ConditionObservation::new(
                OperationCanceled,
                true,
                format!("Canceled:{id}"),
            ));
            if run.progress.failure.is_some() {
                message.push(ConditionObservation::new(
                    NeedsIntervention,
                    true,
                    describe_failure(run),
                ));
            } else if machine.needs_intervention_after(id) {
                // It had failed and was then canceled, so no intervention is needed any more.
                message.push(ConditionObservation::new(
                    NeedsIntervention,
                    false,
                    format!("Canceled:{id}"),
                ));
            }
        }
        RunPhase::Pending | RunPhase::Running => {}
    }
    message
}

impl Machine {
    /// True if it needs intervention because of how this run ended.
    pub fn needs_intervention_after(&self, run: &RunId) -> bool {
        let owed = self.conditions.get(ConditionType::NeedsIntervention);
        owed.is_some_and(|known| known.status && known.reason.ends_with(&format!(":{run}")))
    }
}

/// The fault code and the run, short enough for a table.
fn describe_failure(run: &Run) -> String {
    let code =
        run.progress.failure.as_ref().map_or("failed", |failure| failure.fault.code.as_str());
    format!("{code}:{}", run.spec.id)
}

fn new_phase(run: &Run) -> Option<Phase> {
    let frozen =
        run.progress.stop_request.as_ref().is_some_and(|halt| halt.kind == StopKind::Freeze);
    match (run.phase(), run.spec.run_type) {
        // A machine that returns from the vendor is checked in maintenance before it serves again.
        (RunPhase::Succeeded, RunType::EnterMaintenance | RunType::ExitRma) => {
            Some(Phase::Maintenance)
        }
        (RunPhase::Succeeded, RunType::ExitMaintenance) => Some(Phase::Ready),
        (RunPhase::Failed | RunPhase::Canceled, _) if !frozen => match run.spec.on_failure {
            OnFailure::EnterMaintenance => Some(Phase::Maintenance),
            OnFailure::KeepPhase => None,
        },
        (
            RunPhase::Succeeded
            | RunPhase::Failed
            | RunPhase::Canceled
            | RunPhase::Pending
            | RunPhase::Running,
            _,
        ) => None,
    }
}
