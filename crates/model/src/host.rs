//! Hosts: the reprovisioning of a machine's firmware, whoever asked for it. The record has the id of its machine.

use crate::effect::Facts;
use crate::id::{FirmwareId, RunId};
use crate::lifecycle::{Around, Head, Lifecycle, Next, SubjectKind, Trouble, Why};
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum HostState {
    Ready,
    CheckingFirmwareV2 { retry_count: u32 },
    WaitingForRackFirmwareUpgrade,
    FailedFirmwareUpgrade { retry_count: u32, cause: Trouble },
}

/// Who owns a reprovisioning: a field, not a prefix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "owner", rename_all = "snake_case")]
pub enum Owner {
    /// The operation on a rack that drives the upgrade itself.
    Rack {
        operation: RunId,
    },
    Operator {
        name: String,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReprovisionRequest {
    pub owner: Owner,
    pub firmware: Option<FirmwareId>,
    pub requested_at: Timestamp,
    /// None: nobody has taken it up; a fresh request.
    pub started_at: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    pub head: Head,
    pub state: HostState,
    #[serde(default)]
    pub request: Option<ReprovisionRequest>,
    /// The run that the state waits for.
    #[serde(default)]
    pub run: Option<RunId>,
    #[serde(default)]
    pub facts: Facts,
}

impl Lifecycle for Host {
    const KIND: SubjectKind = SubjectKind::Host;
    type Seen = Around;

    fn head(&self) -> &Head {
        &self.head
    }

    fn head_mut(&mut self) -> &mut Head {
        &mut self.head
    }

    fn word(&self) -> &'static str {
        match self.state {
            HostState::Ready => "Ready",
            HostState::CheckingFirmwareV2 { .. } => "CheckingFirmwareV2",
            HostState::WaitingForRackFirmwareUpgrade => "WaitingForRackFirmwareUpgrade",
            HostState::FailedFirmwareUpgrade { .. } => "FailedFirmwareUpgrade",
        }
    }

    fn learn(&mut self, facts: &Facts) {
        self.facts.learn(facts);
    }

    fn next(&self, _seen: &Around, _now: Timestamp) -> Next<Self> {
        Next::Rest(Why::new("nothing is asked of it"))
    }
}
