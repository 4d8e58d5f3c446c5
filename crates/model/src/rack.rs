//! Racks: what stands together, is fed together, and is maintained together.

use crate::id::{FirmwareId, RackId, RunId};
use crate::lifecycle::{Around, Head, Lifecycle, Next, SubjectKind, Trouble, Why};
use crate::target::TargetId;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};

/// How many devices are to stand in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Counts {
    pub machines: u32,
    pub switches: u32,
    pub power_shelves: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RackSpec {
    pub hardware_type: String,
    pub expected: Counts,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activity {
    FirmwareUpgrade,
    ConfigureNmxCluster,
    PowerSequence,
}

/// Where a maintenance is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    FirmwareUpgrade,
    ConfigureNmxCluster,
    PowerSequence,
    Completed,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum RackState {
    Created,
    Discovering,
    Maintenance { stage: Stage },
    Validating,
    Ready,
    Error { cause: RackTrouble },
    Deleting,
}

/// Which device, in which activity, what was said, and what to type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RackTrouble {
    pub activity: Option<Activity>,
    pub device: Option<TargetId>,
    pub trouble: Trouble,
    pub next: String,
}

/// Who asked for something, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requested {
    pub by: String,
    pub at: Timestamp,
    #[serde(default)]
    pub firmware: Option<FirmwareId>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rack {
    pub head: Head,
    pub spec: RackSpec,
    pub state: RackState,
    /// A device was added, moved or removed.
    #[serde(default)]
    pub topology_changed: bool,
    #[serde(default)]
    pub reprovision_requested: Option<Requested>,
    /// Operations that were accepted and have not begun.
    #[serde(default)]
    pub maintenance_requested: Vec<RunId>,
    /// Operations that have begun and not ended.
    #[serde(default)]
    pub active: Vec<RunId>,
}

impl Rack {
    pub fn new(head: Head, spec: RackSpec) -> Self {
        Self {
            head,
            spec,
            state: RackState::Created,
            topology_changed: false,
            reprovision_requested: None,
            maintenance_requested: Vec::new(),
            active: Vec::new(),
        }
    }

    pub fn id(&self) -> RackId {
        RackId::trusted(&self.head.id)
    }
}

impl Lifecycle for Rack {
    const KIND: SubjectKind = SubjectKind::Rack;
    type Seen = Around;

    fn head(&self) -> &Head {
        &self.head
    }

    fn head_mut(&mut self) -> &mut Head {
        &mut self.head
    }

    fn word(&self) -> &'static str {
        match self.state {
            RackState::Created => "Created",
            RackState::Discovering => "Discovering",
            RackState::Maintenance { .. } => "Maintenance",
            RackState::Validating => "Validating",
            RackState::Ready => "Ready",
            RackState::Error { .. } => "Error",
            RackState::Deleting => "Deleting",
        }
    }

    fn next(&self, _seen: &Around, _now: Timestamp) -> Next<Self> {
        Next::Rest(Why::new("nothing is asked of it"))
    }
}
