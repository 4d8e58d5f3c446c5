//! Tasks: what the agent on a node is asked to do, under a lease.
//!
//! A task has the name of the attempt that wants it, so it is wanted once. An agent that falls silent loses its lease and the task is
//! there for it again: a lease that has run out leaves nothing behind but a task in the queue.

use super::TaskKind;
use crate::effect::Key;
use crate::id::{NodeId, RunId};
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// How long an agent holds a task without a word.
pub const LEASE: Duration = Duration::from_secs(60);
/// The most that is kept of what a task has said.
pub const MAX_LOG: usize = 256 * 1_024;
/// How much of that is for its last word, which says how it ended.
const TAIL: usize = 64 * 1_024;
/// What stands where something is missing between its beginning and its end.
const CUT: &str = "\n[it says too much: the rest is left out up to its end]\n";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    Queued,
    Dispatched,
    Done,
    Failed,
    /// Nobody wants it any more.
    Stopped,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    pub key: Key,
    pub node: NodeId,
    pub run: RunId,
    pub kind: TaskKind,
    #[serde(default)]
    pub params: BTreeMap<String, String>,
    pub state: TaskState,
    /// Until when its agent holds it.
    #[serde(default)]
    pub lease_until: Option<Timestamp>,
    /// How often it was given out.
    #[serde(default)]
    pub dispatched: u32,
    pub deadline: Timestamp,
    /// How it ended.
    #[serde(default)]
    pub said: String,
    #[serde(default)]
    pub log: String,
    pub created_at: Timestamp,
}

/// How a task stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// In the queue, for its agent to take.
    Fresh,
    /// An agent holds it.
    Live,
    /// An agent held it, and has not been heard of since.
    Stale,
    Over,
}

/// What came of asking for a task to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resumed {
    /// A fresh one is in the queue already.
    Fresh,
    /// Its agent is at work on it.
    Live,
    /// It is in the queue again.
    Requeued,
    /// There is none that could go on.
    None,
}

/// What an agent is told when it says how a task goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    GoOn,
    Stop,
}

impl Task {
    pub fn standing(&self, now: Timestamp) -> Standing {
        match (self.state, self.lease_until) {
            (TaskState::Queued, _) => Standing::Fresh,
            (TaskState::Dispatched, Some(until)) if now < until => Standing::Live,
            (TaskState::Dispatched, _) => Standing::Stale,
            (TaskState::Done | TaskState::Failed | TaskState::Stopped, _) => Standing::Over,
        }
    }

    /// Its agent takes it, or takes it up again.
    pub fn taken(&self, now: Timestamp) -> Option<Self> {
        match self.standing(now) {
            Standing::Over => None,
            Standing::Fresh | Standing::Stale => Some(Self {
                state: TaskState::Dispatched,
                lease_until: Some(now + LEASE),
                dispatched: self.dispatched + 1,
                ..self.clone()
            }),
            // There is one agent on a node: who asks again has forgotten that it was given.
            Standing::Live => Some(Self { lease_until: Some(now + LEASE), ..self.clone() }),
        }
    }

    /// Its agent is still at work on it, and says this.
    pub fn renewed(&self, said: &str, now: Timestamp) -> (Self, Then) {
        match self.standing(now) {
            // Who hears it here has let go of it.
            Standing::Over => (Self { lease_until: None, ..self.clone() }, Then::Stop),
            Standing::Fresh | Standing::Live | Standing::Stale => {
                let held = Self {
                    state: TaskState::Dispatched,
                    lease_until: Some(now + LEASE),
                    log: begun(&self.log, said),
                    ..self.clone()
                };
                (held, Then::GoOn)
            }
        }
    }

    /// Its agent has come to an end with it. None: nobody waits for that any more.
    pub fn reported(&self, ok: bool, said: &str, log: &str) -> Option<Self> {
        let state = if ok { TaskState::Done } else { TaskState::Failed };
        match self.state {
            TaskState::Queued | TaskState::Dispatched => Some(Self {
                state,
                lease_until: None,
                said: said.into(),
                log: ended(&self.log, log),
                ..self.clone()
            }),
            // The same, said twice.
            TaskState::Done | TaskState::Failed if self.state == state => Some(self.clone()),
            TaskState::Done | TaskState::Failed | TaskState::Stopped => None,
        }
    }

    /// Nobody wants it any more; what has ended stays as it ended. Its agent holds it until it has heard of that, or its lease runs out.
    pub fn stopped(&self) -> Self {
        match self.state {
            TaskState::Queued | TaskState::Dispatched => {
                Self { state: TaskState::Stopped, ..self.clone() }
            }
            TaskState::Done | TaskState::Failed | TaskState::Stopped => self.clone(),
        }
    }

    /// It was stopped, and its agent may still be at it.
    pub fn lingers(&self, now: Timestamp) -> bool {
        self.state == TaskState::Stopped && self.lease_until.is_some_and(|until| now < until)
    }

    /// The document's rule: what is fresh or live is left alone, what is stale is queued again.
    pub fn resumed(&self, now: Timestamp) -> (Self, Resumed) {
        match self.standing(now) {
            Standing::Fresh => (self.clone(), Resumed::Fresh),
            Standing::Live => (self.clone(), Resumed::Live),
            Standing::Stale => {
                let again = Self { state: TaskState::Queued, lease_until: None, ..self.clone() };
                (again, Resumed::Requeued)
            }
            Standing::Over => (self.clone(), Resumed::None),
        }
    }
}

/// What was said before and what is said now, as far as there is room before the end.
fn begun(before: &str, said: &str) -> String {
    let most = MAX_LOG - TAIL - CUT.len();
    let room = most.saturating_sub(before.len());
    if said.len() <= room {
        return format!("{before}{said}");
    }
    if before.ends_with(CUT) {
        return before.into();
    }
    let whole = (0..=room).rev().find(|at| said.is_char_boundary(*at));
    format!("{before}{}{CUT}", &said[..whole.unwrap_or_default()])
}

/// The same with the last word; of one that is too long the end is kept.
fn ended(before: &str, said: &str) -> String {
    let over = (before.len() + said.len()).saturating_sub(MAX_LOG);
    let whole = (over..said.len()).find(|at| said.is_char_boundary(*at));
    format!("{before}{}", &said[whole.unwrap_or(said.len())..])
}
