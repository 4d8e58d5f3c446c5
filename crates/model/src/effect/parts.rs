//! Work on several devices at once, as one step of a run on their rack. Each part is a run of its own, with attempts, a
//! deadline, a log and the operator's actions; the step starts them, a few at a time, and sees them through. After a failure
//! no further part begins.

use crate::plan::{RunStep, RunType};
use crate::target::TargetId;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Group {
    pub parts: Vec<Part>,
    /// How many may be at work at once.
    pub at_once: u32,
    /// Where all of this holds already, nothing is begun: the group is done.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unless: Vec<Part>,
}

/// What one device is to do.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Part {
    pub target: TargetId,
    pub run_type: RunType,
    pub steps: Vec<RunStep>,
}

impl Group {
    /// Whether its parts switch power.
    pub fn switches_power(&self) -> bool {
        self.parts.iter().any(|part| part.run_type == RunType::Power)
    }
}
