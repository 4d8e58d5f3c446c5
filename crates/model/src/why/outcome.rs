//! Outcome of an operation: its requester, its end, the damage that it may have left, and the
//! request was refused.

use crate::refusal::RefusedRequest;
use crate::run::{Run, RunPhase, StepPhase, StepState};
use crate::time::{Timestamp, format_duration};
use std::time::Duration;

/// A refused request that is older than this explains nothing any more.
const MAX_REFUSED_AGE: Duration = Duration::from_secs(86_400);

/// Damage that a stopped run may have left: a destructive effect whose outcome is unknown.
pub fn possible_damage(run: &Run) -> Option<String> {
    if !matches!(run.phase(), RunPhase::Failed | RunPhase::Canceled) {
        return None;
    }
    let step = run.progress.steps.iter().find(|step| may_have_happened(run, step))?;
    let (target, name, id) = (&run.spec.target, run.step_name(step), &run.spec.id);
    Some(format!("{target} may be damaged: the outcome of step {name} of {id} is unknown"))
}

fn may_have_happened(run: &Run, step: &StepState) -> bool {
    let destructive = run.effect(step).is_some_and(|effect| effect.harmful_to_repeat());
    destructive && step.state == StepPhase::Failed && run.outcome_unknown(step)
}

/// Requester of a run, and the time of the request.
pub(super) fn requester_words(run: &Run, now: Timestamp) -> String {
    format!("{}, {} ago", run.spec.initiator, format_duration(now.since(run.spec.created_at)))
}

/// The operation, who requested it, and how and when it ended.
pub fn operation_words(run: &Run, now: Timestamp) -> String {
    let (kind, id, by) = (run.spec.run_type.as_str(), &run.spec.id, &run.spec.initiator);
    let ended = match run.progress.finished_at {
        Some(at) => format!("{} {} ago", run.phase().as_str(), format_duration(now.since(at))),
        None => run.phase().as_str().to_string(),
    };
    format!("{kind} {id}, requested by {by}: {ended}")
}

/// True if the plan of the run writes the disk of its machine.
pub fn writes_disk(run: &Run) -> bool {
    run.spec.steps.iter().any(|step| step.effect.facts().disk.is_some())
}

/// The last operation that was to write the disk, and how it ended.
pub(super) fn imaging_words(run: &Run, now: Timestamp) -> String {
    let failed = run.progress.failure.as_ref().map_or_else(String::new, |failure| {
        format!(" at step {}: {}", failure.step, failure.fault.message)
    });
    format!("the last operation on its disk: {}{failed}", operation_words(run, now))
}

/// The last refused request: who, what, why. Empty: none, or it is too old.
pub fn refused_words(refused: Option<&RefusedRequest>, now: Timestamp) -> String {
    let recent = refused.filter(|refused| now.since(refused.at) < MAX_REFUSED_AGE);
    recent.map_or_else(String::new, |refused| {
        let RefusedRequest { at, by, request, reason, message } = refused;
        let ago = format_duration(now.since(*at));
        format!("{request} of {by}, {ago} ago: {message} ({reason})")
    })
}
