//! The steps that a run would still execute, for dry runs.

use super::next::undo_steps;
use super::{Run, StepPhase, StepState, StopKind};
use crate::plan::RunStep;
use std::time::Duration;

/// A step that a run would still execute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemainingStep {
    /// The step with the effect that is executed: that of the plan, or its undo.
    pub step: RunStep,
    pub undo: bool,
}

impl RemainingStep {
    /// The longest time that the step may take: every attempt up to its timeout.
    fn limit(&self) -> Duration {
        self.step.timeout().saturating_mul(1 + self.step.max_retries)
    }
}

/// The steps that are left, in their order. A canceled run has only its undo steps left, a frozen
/// one none. A rerun may adopt steps of the list whose goal holds already.
pub fn remaining_steps(run: &Run) -> Vec<RemainingStep> {
    let progress = &run.progress;
    let stop = progress.stop_request.as_ref().map(|stop| (stop.kind, stop.undoing));
    let left: Vec<StepState> = match stop {
        _ if run.ended() => Vec::new(),
        Some((StopKind::Freeze, _)) => Vec::new(),
        Some((StopKind::Cancel, false)) => undo_steps(run, progress),
        Some((StopKind::Cancel, true)) | None => {
            let waits = |step: &&StepState| match step.state {
                StepPhase::Waiting | StepPhase::Running => true,
                StepPhase::Succeeded | StepPhase::Failed => false,
            };
            progress.steps.iter().filter(waits).cloned().collect()
        }
    };
    left.iter().filter_map(|state| remaining(run, state)).collect()
}

fn remaining(run: &Run, state: &StepState) -> Option<RemainingStep> {
    let planned = run.plan_step(state)?;
    let step = RunStep {
        name: run.step_name(state),
        timeout_seconds: planned.timeout_seconds,
        max_retries: state.max_attempt.saturating_sub(state.attempt.max(1)),
        effect: run.effect(state)?,
    };
    Some(RemainingStep { step, undo: state.undo })
}

/// The longest time that these steps may take.
pub fn time_limit(steps: &[RemainingStep]) -> Duration {
    steps.iter().map(RemainingStep::limit).sum()
}
