//! Work on several devices as one step of a run on their rack.
//!
//! Each part becomes a child run with its own attempts, deadline, log and operator actions. The
//! step starts the child runs, a few at a time, and follows them. After a failure no further child
//! run starts.

use crate::plan::{RunStep, RunType};
use crate::target::TargetId;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ChildRunGroup {
    #[serde(rename = "parts")]
    pub child_runs: Vec<ChildRunSpec>,
    /// The maximum number of concurrent child runs.
    #[serde(rename = "at_once")]
    pub max_concurrent: u32,
    /// Checks: if all of them hold already, the group is done and nothing starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[serde(rename = "unless")]
    pub skip_if_all_hold: Vec<ChildRunSpec>,
}

/// The work on one device.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ChildRunSpec {
    pub target: TargetId,
    pub run_type: RunType,
    pub steps: Vec<RunStep>,
}

impl ChildRunGroup {
    /// True if a child run switches power.
    pub fn switches_power(&self) -> bool {
        self.child_runs.iter().any(|part| part.run_type == RunType::Power)
    }
}
