//! The rest of a run, for dry runs: the steps that it would execute, and the effect of a requested
//! stop on the call in progress.

use super::next::undo_steps;
use super::{Run, StepPhase, StepState, StopKind};
use crate::effect::{CallVerb, DesiredPower, DeviceWork, DiskContent, Effect, Executor};
use crate::machine::DiskReport;
use crate::plan::RunStep;

/// A step that a run would still execute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemainingStep {
    /// The step with the effect that is executed: that of the plan, or its undo.
    pub step: RunStep,
    pub undo: bool,
    /// True if the outcome of an earlier attempt is unknown: its status is read first.
    pub asks_first: bool,
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
    Some(RemainingStep { step, undo: state.undo, asks_first: asks_first(state) })
}

/// The attempt is open, and the next call asks what became of it.
fn asks_first(state: &StepState) -> bool {
    state.attempt_open && state.next_verb == CallVerb::GetStatus
}

/// Describes the status call with which a continued run begins, and the step after each answer;
/// none if the outcome of its last attempt is known.
pub fn describe_inquiry(run: &Run) -> Option<String> {
    let active = !run.ended() && !run.progress.halting();
    let step = run.progress.current().filter(|step| active && asks_first(step))?;
    let (name, target, attempt) = (run.step_name(step), &run.spec.target, step.attempt);
    let effect = run.effect(step)?;
    let peer = match effect.facts().executor {
        Executor::TargetProvider => target.to_string(),
        Executor::ClusterProvider => format!("the cluster of {target}"),
        Executor::SiteProvider(_) => format!("the MAAS of {target}"),
        Executor::NodeAgent { node, .. } => format!("the agent of {node}"),
        Executor::NodeRecord { node, .. } => format!("the record of {node}"),
        Executor::ChildRuns(_) => format!("each device of {target}"),
    };
    let unknown = match effect.harmful_to_repeat() {
        true => "if that is not known, the operation stops for an operator",
        false => "if that is not known, it is executed again",
    };
    Some(format!(
        "{peer} would be asked what became of {name} (attempt {attempt}) before anything is executed: if it is done, the operation goes on; if it is under way, it is followed to its end or its deadline; if it did not happen, it is executed again; {unknown}"
    ))
}

/// Describes how a stop ends the effect that the run has in progress, and the state that it leaves
/// behind; none if no effect is in progress. `report` is the provider's word on a disk that the
/// effect writes.
pub fn describe_stop(run: &Run, report: Option<DiskReport>) -> Option<String> {
    let step = run.progress.current().filter(|step| step.attempt_open && !run.ended())?;
    let (name, target) = (run.step_name(step), &run.spec.target);
    let effect = run.effect(step)?;
    let left = match (effect.facts().disk, &effect) {
        (Some(DiskContent::Nothing), _) => format!(
            "{name} would be stopped while the machine is released: the disks of {target} may be half erased"
        ),
        (Some(content), _) => {
            let (how_far, holds) = match report {
                Some(DiskReport::Written(percent)) if percent > 0 => {
                    (format!(" at {percent} %"), "would hold")
                }
                Some(DiskReport::Written(_) | DiskReport::Untouched) | None => {
                    (String::new(), "may hold")
                }
            };
            format!(
                "{name} would be stopped{how_far}: the disk of {target} {holds} a part of {content}, and {target} would not boot or leave maintenance until an image is installed"
            )
        }
        (None, Effect::Device { work: DeviceWork::Firmware { .. } }) => format!(
            "{name} would not be stopped: the firmware update of {target} is seen through to its end, so that the device is not left half written"
        ),
        (None, Effect::ChildRuns { .. }) => {
            format!("{name} would begin on no further device")
        }
        (None, Effect::Power { to: DesiredPower::Off, .. }) => {
            format!("{name} would be stopped: {target} may be off, and would stay so")
        }
        (None, Effect::Power { to: DesiredPower::On, .. }) => {
            format!("{name} would be stopped: {target} may still be off, and would stay so")
        }
        (None, _) => {
            format!("{name} would be stopped; what it has done to {target} until then stays")
        }
    };
    Some(left)
}
