//! Why a rollout is in its state, for `farrier why`.

use super::sequence::RolloutTarget;
use super::{Rollout, RolloutStage};
use crate::lifecycle::Lifecycle;
use crate::time::{Timestamp, format_duration};
use crate::why::Explanation;

/// The failed targets with one fault code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailureGroup {
    /// Empty: without a fault code, such as a canceled operation.
    pub fault: String,
    pub count: u32,
    /// One of the machines, and how it failed.
    pub example: String,
    pub reason: String,
}

impl FailureGroup {
    fn words(&self) -> String {
        let fault = if self.fault.is_empty() { "without a fault code" } else { &self.fault };
        format!("{} × {fault}, such as {}: {}", self.count, self.example, self.reason)
    }
}

/// `waiting`: some of the targets that cannot be started or wait at the gate, with their reasons.
pub fn explain_rollout(
    rollout: &Rollout,
    failures: &[FailureGroup],
    waiting: &[RolloutTarget],
    now: Timestamp,
) -> Explanation {
    let (id, outcome) = (&rollout.head.id, rollout.outcome());
    let headline = format!("{id} is {}: {outcome}", rollout.state_name());
    let failed: Vec<String> = failures.iter().map(FailureGroup::words).collect();
    let held = waiting.iter().map(|one| format!("{}: {}", one.machine, one.reason));
    Explanation {
        headline,
        waiting_for: waiting_for(rollout, now),
        since: Some(rollout.pause.as_ref().map_or(rollout.head.since, |pause| pause.since)),
        failed: failed.join("; "),
        next_commands: next_commands(rollout),
        notes: held.collect(),
        ..Explanation::default()
    }
}

fn waiting_for(rollout: &Rollout, now: Timestamp) -> String {
    let counts = &rollout.counts;
    match (rollout.stage, &rollout.pause) {
        (RolloutStage::Done | RolloutStage::Aborted, _) => String::new(),
        (RolloutStage::Aborting, _) => format!("the end of {} active targets", counts.active),
        (_, Some(pause)) => format!("a person: {} paused it: {}", pause.by, pause.reason),
        (RolloutStage::Waiting, None) => "its start time".into(),
        (RolloutStage::Running, None) => {
            let wave = rollout.wave;
            let of = format!("{} active and {} waiting targets", counts.active, counts.waiting);
            match rollout.closed_window(now) {
                Some(state) => format!("its window, which is {state}; wave {wave}: {of}"),
                None => format!("wave {wave}: {of}"),
            }
        }
        (RolloutStage::Soaking { until }, None) => {
            let left = format_duration(until.since(now));
            format!("the end of the soak after wave {}, in {left}", rollout.wave)
        }
        (RolloutStage::AwaitingApproval, None) => {
            format!("a person, who lets the wave after wave {} begin", rollout.wave)
        }
    }
}

fn next_commands(rollout: &Rollout) -> Vec<String> {
    let id = &rollout.head.id;
    let failed = rollout.counts.failed > 0;
    let retry = failed.then(|| format!("farrier rollout retry-failed {id}"));
    let listed = failed.then(|| format!("farrier rollout targets {id} --state failed"));
    let own = match (rollout.stage, &rollout.pause) {
        (RolloutStage::Done | RolloutStage::Aborted, _) => None,
        (RolloutStage::Aborting, _) => Some(format!("farrier rollout watch {id}")),
        (_, Some(_)) => Some(format!("farrier rollout resume {id}")),
        (RolloutStage::Running, None) => Some(format!("farrier rollout watch {id}")),
        (
            RolloutStage::Waiting | RolloutStage::Soaking { .. } | RolloutStage::AwaitingApproval,
            None,
        ) => Some(format!("farrier rollout promote {id}")),
    };
    let retry = retry.filter(|_| rollout.stage != RolloutStage::Aborted);
    let listed_all = Some(format!("farrier rollout targets {id}")).filter(|_| listed.is_none());
    [own, listed, retry, listed_all].into_iter().flatten().collect()
}
