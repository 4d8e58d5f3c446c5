//! Work on several devices as one step of a run on their rack.
//!
//! Each part becomes a child run with its own attempts, deadline, log and operator actions. The
//! step starts the child runs, a few at a time, and follows them. After a failure no further child
//! run starts.

use crate::plan::{RunStep, RunType};
use crate::target::TargetId;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Group {
    pub parts: Vec<Part>,
    /// The maximum number of concurrent child runs.
    pub at_once: u32,
    /// Checks: if all of them hold already, the group is done and nothing starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unless: Vec<Part>,
}

/// The work on one device.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Part {
    pub target: TargetId,
    pub run_type: RunType,
    pub steps: Vec<RunStep>,
}

impl Group {
    /// True if a child run switches power.
    pub fn switches_power(&self) -> bool {
        self.parts.iter().any(|part| part.run_type == RunType::Power)
    }
}
