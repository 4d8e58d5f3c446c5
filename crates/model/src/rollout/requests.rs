//! The requests of operators to a rollout.

use super::pace::Pace;
use super::sequence::{RolloutTarget, TargetState};
use super::{Rollout, RolloutStage};
use crate::lifecycle::LifecycleDecision;
use crate::note;
use crate::refusal::{Reason, Refusal};
use crate::run::HistoryNote;
use crate::time::Timestamp;

/// A request that changes a rollout as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RolloutRequest {
    Pause {
        reason: String,
    },
    Resume,
    Abort {
        cancel_running: bool,
        reason: String,
    },
    /// Ends the wait for the start time, for the end of the soak, or for the approval.
    Promote,
    RetryFailed,
    Update(Box<Pace>),
}

impl RolloutRequest {
    pub const fn verb(&self) -> &'static str {
        match self {
            Self::Pause { .. } => "pause",
            Self::Resume => "resume",
            Self::Abort { .. } => "abort",
            Self::Promote => "promote",
            Self::RetryFailed => "retry-failed",
            Self::Update(_) => "update",
        }
    }

    /// True if the rollout acts with the rights of this user from now on.
    pub const fn makes_editor(&self) -> bool {
        match self {
            Self::Resume | Self::RetryFailed | Self::Update(_) => true,
            Self::Pause { .. } | Self::Abort { .. } | Self::Promote => false,
        }
    }
}

/// The rollout after a request, with the note for its history. None: nothing changes.
pub fn apply_rollout_request(
    rollout: &Rollout,
    request: &RolloutRequest,
    by: &str,
    now: Timestamp,
) -> Result<Option<(Rollout, HistoryNote)>, Refusal> {
    if rollout.stage.has_ended() && *request != RolloutRequest::RetryFailed {
        return Err(refuse(rollout, request));
    }
    let done = match request {
        RolloutRequest::Pause { .. } | RolloutRequest::Update(_)
            if rollout.stage == RolloutStage::Aborting =>
        {
            return Err(refuse(rollout, request));
        }
        RolloutRequest::Pause { .. } if rollout.pause.is_some() => return Ok(None),
        RolloutRequest::Pause { reason } => {
            let note = note!("paused: {reason}; what runs finishes");
            (rollout.paused(reason, by, now), note)
        }
        RolloutRequest::Resume => {
            let Some(pause) = &rollout.pause else { return Err(refuse(rollout, request)) };
            let accepted_failures = rollout.counts.failed;
            let after = Rollout { pause: None, accepted_failures, ..rollout.clone() };
            (after, note!("resumed; it was paused: {}", pause.reason))
        }
        RolloutRequest::Abort { cancel_running, .. }
            if rollout.stage == RolloutStage::Aborting
                && (rollout.cancel_running || !cancel_running) =>
        {
            return Ok(None);
        }
        RolloutRequest::Abort { cancel_running, reason } => {
            (aborting(rollout, *cancel_running), abort_note(*cancel_running, reason))
        }
        RolloutRequest::Promote => return promoted(rollout).map(Some),
        RolloutRequest::RetryFailed => {
            let failed = rollout.counts.failed;
            let aborts = matches!(rollout.stage, RolloutStage::Aborting | RolloutStage::Aborted);
            if failed == 0 || aborts {
                return Err(refuse(rollout, request));
            }
            let mut after = rollout.at_stage(RolloutStage::Running);
            after.counts.shift(TargetState::Failed, TargetState::Pending, failed);
            after.accepted_failures = 0;
            (after, note!("{failed} failed targets are tried again"))
        }
        RolloutRequest::Update(pace) => {
            let changed = rollout.spec.pace.differences(pace);
            if changed.is_empty() {
                return Ok(None);
            }
            let mut after = rollout.clone();
            after.spec.pace = Pace { canary: rollout.spec.pace.canary, ..(**pace).clone() };
            (after, note!("pace changed: {}", changed.join(", ")))
        }
    };
    Ok(Some(done))
}

fn aborting(rollout: &Rollout, cancel_running: bool) -> Rollout {
    let mut after = rollout.at_stage(RolloutStage::Aborting);
    after.pause = None;
    after.cancel_running = cancel_running;
    for state in [TargetState::Pending, TargetState::Waiting] {
        let left = after.counts.of(state);
        after.counts.shift(state, TargetState::Skipped, left);
    }
    after
}

fn abort_note(cancel_running: bool, reason: &str) -> HistoryNote {
    match cancel_running {
        true => note!("aborted: {reason}; its active operations are canceled"),
        false => note!("aborted: {reason}; what runs finishes"),
    }
}

fn promoted(rollout: &Rollout) -> Result<(Rollout, HistoryNote), Refusal> {
    let waits = matches!(
        rollout.stage,
        RolloutStage::Waiting | RolloutStage::Soaking { .. } | RolloutStage::AwaitingApproval
    );
    match rollout.next_wave() {
        LifecycleDecision::Transition(change) if waits && rollout.pause.is_none() => {
            let note = note!("promoted: {}", change.note.message);
            Ok((change.record, note))
        }
        LifecycleDecision::Transition(_)
        | LifecycleDecision::Idle(_)
        | LifecycleDecision::IdleUntil(..)
        | LifecycleDecision::Remove(_) => Err(refuse(rollout, &RolloutRequest::Promote)),
    }
}

fn refuse(rollout: &Rollout, request: &RolloutRequest) -> Refusal {
    use crate::lifecycle::Lifecycle;
    let (id, state, verb) = (&rollout.head.id, rollout.state_name(), request.verb());
    let message = format!("{id} is {state}, with {}: {verb} has no use", rollout.outcome());
    Refusal::new(Reason::RolloutState, message).next(format!("farrier rollout get {id}"))
}

/// Checks whether an operator may skip a target now.
pub fn check_skip(rollout: &Rollout, target: &RolloutTarget) -> Result<(), Refusal> {
    let (id, machine) = (&rollout.head.id, &target.machine);
    let idle = match target.state {
        TargetState::Pending | TargetState::Waiting => true,
        TargetState::Active => target.run.is_none(),
        TargetState::Done
        | TargetState::PassedOver
        | TargetState::Failed
        | TargetState::Skipped
        | TargetState::Gone => false,
    };
    if idle {
        return Ok(());
    }
    let state = target.state.as_str();
    let refusal = Refusal::new(
        Reason::RolloutState,
        format!("{machine} is {state} in {id}: it cannot be skipped"),
    );
    Err(match &target.run {
        Some(run) if target.state == TargetState::Active => {
            refusal.next(format!("farrier operation cancel {run} --reason …"))
        }
        Some(_) | None => refusal.next(format!("farrier rollout targets {id}")),
    })
}
