//! How many targets of a rollout are in which state.

use super::target::TargetState;
use serde::{Deserialize, Serialize};

/// The number of targets by state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TargetCounts {
    pub pending: u32,
    pub waiting: u32,
    pub active: u32,
    pub done: u32,
    pub passed_over: u32,
    pub failed: u32,
    pub skipped: u32,
    pub gone: u32,
}

impl TargetCounts {
    pub const fn of(&self, state: TargetState) -> u32 {
        match state {
            TargetState::Pending => self.pending,
            TargetState::Waiting => self.waiting,
            TargetState::Active => self.active,
            TargetState::Done => self.done,
            TargetState::PassedOver => self.passed_over,
            TargetState::Failed => self.failed,
            TargetState::Skipped => self.skipped,
            TargetState::Gone => self.gone,
        }
    }

    fn of_mut(&mut self, state: TargetState) -> &mut u32 {
        match state {
            TargetState::Pending => &mut self.pending,
            TargetState::Waiting => &mut self.waiting,
            TargetState::Active => &mut self.active,
            TargetState::Done => &mut self.done,
            TargetState::PassedOver => &mut self.passed_over,
            TargetState::Failed => &mut self.failed,
            TargetState::Skipped => &mut self.skipped,
            TargetState::Gone => &mut self.gone,
        }
    }

    /// Counts targets that go from one state to another.
    pub fn shift(&mut self, from: TargetState, to: TargetState, count: u32) {
        let before = self.of_mut(from);
        *before = before.saturating_sub(count);
        let after = self.of_mut(to);
        *after = after.saturating_add(count);
    }

    /// The number of targets that the rollout has left behind.
    pub const fn settled(&self) -> u32 {
        self.done + self.passed_over + self.failed + self.skipped + self.gone
    }
}
