//! Tasks: work for the agent on a node, under a lease.
//!
//! A task has the effect key of the attempt that requested it, so it exists once. An agent that
//! falls silent loses its lease and gets the task again. An expired lease leaves nothing behind but
//! a queued task.

use super::TaskKind;
use crate::effect::EffectKey;
use crate::id::{NodeId, RunId};
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;
pub use wire::node::TaskInstruction;

/// The time for which an agent holds a task without a message.
pub const LEASE: Duration = Duration::from_secs(60);
/// The length limit of a task's log, in bytes.
pub const MAX_LOG: usize = 256 * 1_024;
/// The bytes of the log that are reserved for its last message, with the result of the task.
const TAIL: usize = 64 * 1_024;
/// Marks the gap in a shortened log.
const CUT: &str = "\n[it says too much: the rest is left out up to its end]\n";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    Queued,
    Dispatched,
    Done,
    Failed,
    /// The task is no longer requested.
    Stopped,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    pub key: EffectKey,
    pub node: NodeId,
    pub run: RunId,
    pub kind: TaskKind,
    #[serde(default)]
    pub params: BTreeMap<String, String>,
    pub state: TaskState,
    /// The end of the agent's lease.
    #[serde(default)]
    pub lease_until: Option<Timestamp>,
    /// The number of times the task was dispatched.
    #[serde(default)]
    pub dispatched: u32,
    pub deadline: Timestamp,
    /// The final message.
    #[serde(default)]
    #[serde(rename = "said")]
    pub message: String,
    #[serde(default)]
    pub log: String,
    pub created_at: Timestamp,
}

/// The status of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskStatus {
    /// Queued for its agent.
    Fresh,
    /// An agent holds its lease.
    Live,
    /// The lease of its agent has expired.
    Stale,
    Over,
}

/// The result of a request to resume a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResumeResult {
    /// It is queued already.
    Fresh,
    /// Its agent works on it.
    Live,
    /// It was queued again.
    Requeued,
    /// The task has ended.
    None,
}

impl Task {
    pub fn status(&self, now: Timestamp) -> TaskStatus {
        match (self.state, self.lease_until) {
            (TaskState::Queued, _) => TaskStatus::Fresh,
            (TaskState::Dispatched, Some(until)) if now < until => TaskStatus::Live,
            (TaskState::Dispatched, _) => TaskStatus::Stale,
            (TaskState::Done | TaskState::Failed | TaskState::Stopped, _) => TaskStatus::Over,
        }
    }

    /// Dispatches the task to its agent, or renews its lease.
    pub fn dispatch(&self, now: Timestamp) -> Option<Self> {
        match self.status(now) {
            TaskStatus::Over => None,
            TaskStatus::Fresh | TaskStatus::Stale => Some(Self {
                state: TaskState::Dispatched,
                lease_until: Some(now + LEASE),
                dispatched: self.dispatched + 1,
                ..self.clone()
            }),
            // A node has only one agent: it asks again because it lost its state.
            TaskStatus::Live => Some(Self { lease_until: Some(now + LEASE), ..self.clone() }),
        }
    }

    /// Its agent is still at work and sends this log.
    pub fn renew_lease(&self, message: &str, now: Timestamp) -> (Self, TaskInstruction) {
        match self.status(now) {
            // The agent stops working on the task when it gets this answer, so the lease ends.
            TaskStatus::Over => (Self { lease_until: None, ..self.clone() }, TaskInstruction::Stop),
            TaskStatus::Fresh | TaskStatus::Live | TaskStatus::Stale => {
                let claimed = Self {
                    state: TaskState::Dispatched,
                    lease_until: Some(now + LEASE),
                    log: append_log(&self.log, message),
                    ..self.clone()
                };
                (claimed, TaskInstruction::Continue)
            }
        }
    }

    /// Its agent has finished. None if the result is no longer expected.
    pub fn complete(&self, ok: bool, message: &str, log: &str) -> Option<Self> {
        let state = if ok { TaskState::Done } else { TaskState::Failed };
        match self.state {
            TaskState::Queued | TaskState::Dispatched => Some(Self {
                state,
                lease_until: None,
                message: message.into(),
                log: append_final_log(&self.log, log),
                ..self.clone()
            }),
            // A repeated report.
            TaskState::Done | TaskState::Failed if self.state == state => Some(self.clone()),
            TaskState::Done | TaskState::Failed | TaskState::Stopped => None,
        }
    }

    /// Stops the task; an ended task stays as it is. The lease stays until the agent has learned of
    /// it or the lease expires.
    pub fn stop(&self) -> Self {
        match self.state {
            TaskState::Queued | TaskState::Dispatched => {
                Self { state: TaskState::Stopped, ..self.clone() }
            }
            TaskState::Done | TaskState::Failed | TaskState::Stopped => self.clone(),
        }
    }

    /// True if a stopped task may still be running on its agent.
    pub fn may_still_run(&self, now: Timestamp) -> bool {
        self.state == TaskState::Stopped && self.lease_until.is_some_and(|until| now < until)
    }

    /// The rule of a resume: a fresh or live task stays as it is, a stale one is queued again.
    pub fn resumed(&self, now: Timestamp) -> (Self, ResumeResult) {
        match self.status(now) {
            TaskStatus::Fresh => (self.clone(), ResumeResult::Fresh),
            TaskStatus::Live => (self.clone(), ResumeResult::Live),
            TaskStatus::Stale => {
                let again = Self { state: TaskState::Queued, lease_until: None, ..self.clone() };
                (again, ResumeResult::Requeued)
            }
            TaskStatus::Over => (self.clone(), ResumeResult::None),
        }
    }
}

/// Appends to the log, up to the part that is reserved for the last message.
fn append_log(before: &str, message: &str) -> String {
    let most = MAX_LOG - TAIL - CUT.len();
    let room = most.saturating_sub(before.len());
    if message.len() <= room {
        return format!("{before}{message}");
    }
    if before.ends_with(CUT) {
        return before.into();
    }
    let parent = (0..=room).rev().find(|at| message.is_char_boundary(*at));
    format!("{before}{}{CUT}", &message[..parent.unwrap_or_default()])
}

/// Appends the last message; if it is too long, its end is kept.
fn append_final_log(before: &str, message: &str) -> String {
    let over = (before.len() + message.len()).saturating_sub(MAX_LOG);
    let parent = (over..message.len()).find(|at| message.is_char_boundary(*at));
    format!("{before}{}", &message[parent.unwrap_or(message.len())..])
}
