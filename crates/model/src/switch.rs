//! Switches of a rack's scale-up fabric.

use crate::effect::Facts;
use crate::id::{RunId, SwitchId};
use crate::lifecycle::{Around, DeviceSpec, Head, Lifecycle, Next, SubjectKind, Trouble, Why};
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum SwitchState {
    Created,
    Initializing,
    Configuring,
    Validating,
    Ready,
    ReProvisioning,
    Error { cause: Trouble },
    Deleting,
}

/// The place in the rack (`head.slot`) is its tray index: the lowest is the primary.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Switch {
    pub head: Head,
    pub spec: DeviceSpec,
    #[serde(default)]
    pub facts: Facts,
    pub state: SwitchState,
    /// The run that the state waits for.
    #[serde(default)]
    pub run: Option<RunId>,
    /// Somebody wants what failed tried again.
    #[serde(default)]
    pub retry_requested: bool,
}

impl Switch {
    pub fn new(head: Head, spec: DeviceSpec) -> Self {
        Self {
            head,
            spec,
            facts: Facts::default(),
            state: SwitchState::Created,
            run: None,
            retry_requested: false,
        }
    }

    pub fn id(&self) -> SwitchId {
        SwitchId::trusted(&self.head.id)
    }
}

impl Lifecycle for Switch {
    const KIND: SubjectKind = SubjectKind::Switch;
    type Seen = Around;

    fn head(&self) -> &Head {
        &self.head
    }

    fn head_mut(&mut self) -> &mut Head {
        &mut self.head
    }

    fn word(&self) -> &'static str {
        match self.state {
            SwitchState::Created => "Created",
            SwitchState::Initializing => "Initializing",
            SwitchState::Configuring => "Configuring",
            SwitchState::Validating => "Validating",
            SwitchState::Ready => "Ready",
            SwitchState::ReProvisioning => "ReProvisioning",
            SwitchState::Error { .. } => "Error",
            SwitchState::Deleting => "Deleting",
        }
    }

    fn learn(&mut self, facts: &Facts) {
        self.facts.learn(facts);
    }

    fn next(&self, _seen: &Around, _now: Timestamp) -> Next<Self> {
        Next::Rest(Why::new("nothing is asked of it"))
    }
}
