//! Effects: everything Farrier can do to a device, as one closed set.
//!
//! An [`Effect`] names the goal. A [`ProviderCall`] is one call about an effect: perform it
//! under a key, follow what a key started, get the status of a key, observe whether the goal
//! already holds, or stop it. Every provider implements this one interface, so a simulator, a
//! recorder and a fault injector are one small type each.

mod child_runs;
mod device;
mod drain;
mod facts;
mod kubeadm;
mod node;
mod power_off;

pub use child_runs::{ChildRunGroup, ChildRunSpec};
pub use device::{DeviceFacts, DeviceWork, FabricGoal, MAX_FACT, MaasFacts};
pub use drain::DrainOptions;
pub use facts::{DiskContent, EffectFacts, Executor};
pub use kubeadm::KubeadmOptions;
pub use node::{MAX_TAINTS, NodeLabels, Taint, TaintEffect, check_node_labels, check_taints};
pub use power_off::{MAX_GRACEFUL_SECONDS, PowerOffPolicy};

use crate::condition::ConditionObservation;
use crate::fault::Fault;
use crate::id::{NodeId, RunId, SiteId};
use crate::node::NodeStage;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The goal of a step: what a provider must bring about on the target.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Effect {
    Ssh {
        command: String,
        destructive: bool,
    },
    Reboot {
        mode: RebootMode,
        #[serde(
            default,
            rename = "manner",
            skip_serializing_if = "PowerOffPolicy::is_provider_default"
        )]
        power_off: PowerOffPolicy,
    },
    Netboot {
        mode: NetbootMode,
    },
    Repave {
        image: String,
    },
    Join {
        cluster_ref: String,
        /// Labels that the node gets once it has registered with the cluster.
        #[serde(default, skip_serializing_if = "NodeLabels::is_empty")]
        labels: NodeLabels,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        taints: Vec<Taint>,
        #[serde(default, skip_serializing_if = "KubeadmOptions::is_default")]
        kubeadm: KubeadmOptions,
    },
    /// Leaves the cluster; used only as the undo of `Join`.
    Leave {
        cluster_ref: String,
        /// The run whose join is undone, if it is not the run that undoes it: a clean restart
        /// undoes the work of another.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        joined_by: Option<RunId>,
    },
    Verify {
        cluster_ref: String,
        expect: ClusterExpectation,
        advisory: bool,
    },
    Net {
        document: String,
    },
    Rma {
        action: RmaAction,
        #[serde(
            default,
            rename = "manner",
            skip_serializing_if = "PowerOffPolicy::is_provider_default"
        )]
        power_off: PowerOffPolicy,
    },
    /// Cordons the node and evicts its pods.
    Drain {
        /// Empty when the machine is in no cluster; then there is nothing to drain.
        cluster_ref: String,
        /// The time for which evictions are retried. A run always has a value; a plan may omit it
        /// and use the step's timeout.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline_seconds: Option<u32>,
        /// Always stored: an effect from before there were options evicts all pods.
        #[serde(default = "DrainOptions::all_pods")]
        options: DrainOptions,
    },
    /// Makes the node schedulable again.
    Uncordon {
        cluster_ref: String,
        /// Used as an undo: uncordon only if this same run cordoned the node. A cordon by its owner
        /// stays.
        own: bool,
    },
    Power {
        to: DesiredPower,
        #[serde(
            default,
            rename = "manner",
            skip_serializing_if = "PowerOffPolicy::is_provider_default"
        )]
        power_off: PowerOffPolicy,
    },
    /// Device work that only the lifecycles of devices and racks use. Plans do not contain it.
    Device {
        work: DeviceWork,
    },
    /// A stage of onboarding or decommissioning a node.
    Stage {
        stage: NodeStage,
        node: NodeId,
        /// None when no MAAS manages the node.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        site: Option<SiteId>,
        /// The provider that reaches the site.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        #[serde(rename = "by")]
        provider: String,
        /// Reverts the stage.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        undo: bool,
    },
    /// The same work on several devices: one child run per device, a few at a time. Only runs on
    /// racks contain it.
    #[serde(rename = "parts")]
    ChildRuns {
        group: ChildRunGroup,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RebootMode {
    Bmc,
    InBand,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum NetbootMode {
    Pxe,
    Disk,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ClusterExpectation {
    Ready,
    Drained,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum RmaAction {
    Record,
    PowerOff,
    Mark,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum DesiredPower {
    On,
    Off,
}

impl DesiredPower {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::On => "ON",
            Self::Off => "OFF",
        }
    }
}

/// A capability of a provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Capability {
    Inspect,
    PowerControl,
    Netboot,
    Imaging,
    RemoteExec,
    ClusterJoin,
    /// Device firmware.
    Firmware,
    /// The fabric between the switches of a rack.
    Fabric,
    /// The stages of node onboarding and decommissioning.
    Nodes,
}

impl Effect {
    /// Its name in plans, logs and fault rules.
    pub const fn name(&self) -> &'static str {
        self.facts().name
    }

    /// All names except those of node stages, for selecting effects by name.
    pub const NAMES: [&'static str; 18] = [
        "ssh",
        "reboot",
        "netboot",
        "repave",
        "join",
        "leave",
        "verify",
        "net",
        "rma",
        "drain",
        "uncordon",
        "power",
        "firmware",
        "read",
        "configure",
        "check",
        "fabric",
        "parts",
    ];

    pub const fn required_capability(&self) -> Capability {
        self.facts().capability
    }

    /// True if a repetition does harm. If so, a lost answer needs an operator's decision.
    pub const fn harmful_to_repeat(&self) -> bool {
        self.facts().harmful_to_repeat
    }

    /// True if it erases or overwrites data, a system or firmware: its own effect, or one of its
    /// child runs.
    pub fn erases(&self) -> bool {
        let children = self.group().into_iter().flat_map(|group| &group.child_runs);
        let steps = children.flat_map(|child| &child.steps);
        self.facts().erases || steps.into_iter().any(|step| step.effect.erases())
    }

    /// The devices that it starts child runs on, where it does.
    pub const fn group(&self) -> Option<&ChildRunGroup> {
        let Self::ChildRuns { group } = self else { return None };
        Some(group)
    }

    /// The power-off policy, if the effect switches the machine off through its BMC.
    pub const fn power_off_policy(&self) -> Option<PowerOffPolicy> {
        if let Self::Reboot { mode: RebootMode::Bmc, power_off }
        | Self::Rma { action: RmaAction::PowerOff, power_off }
        | Self::Power { to: DesiredPower::Off, power_off } = self
        {
            return Some(*power_off);
        }
        None
    }

    /// The same, to be changed.
    pub const fn power_off_policy_mut(&mut self) -> Option<&mut PowerOffPolicy> {
        if let Self::Reboot { mode: RebootMode::Bmc, power_off }
        | Self::Rma { action: RmaAction::PowerOff, power_off }
        | Self::Power { to: DesiredPower::Off, power_off } = self
        {
            return Some(power_off);
        }
        None
    }

    /// The cluster that it concerns; none if it concerns no cluster.
    pub fn cluster(&self) -> Option<&str> {
        match self {
            Self::Join { cluster_ref, .. }
            | Self::Leave { cluster_ref, .. }
            | Self::Verify { cluster_ref, .. }
            | Self::Drain { cluster_ref, .. }
            | Self::Uncordon { cluster_ref, .. } => {
                Some(cluster_ref).filter(|name| !name.is_empty()).map(String::as_str)
            }
            Self::Ssh { .. }
            | Self::Reboot { .. }
            | Self::Netboot { .. }
            | Self::Repave { .. }
            | Self::Net { .. }
            | Self::Rma { .. }
            | Self::Power { .. }
            | Self::Device { .. }
            | Self::Stage { .. }
            | Self::ChildRuns { .. } => None,
        }
    }

    /// The image that it installs, if it names one.
    pub fn image(&self) -> Option<&str> {
        match self {
            Self::Repave { image } => Some(image.as_str()).filter(|image| !image.is_empty()),
            Self::Ssh { .. }
            | Self::Reboot { .. }
            | Self::Netboot { .. }
            | Self::Join { .. }
            | Self::Leave { .. }
            | Self::Verify { .. }
            | Self::Net { .. }
            | Self::Rma { .. }
            | Self::Drain { .. }
            | Self::Uncordon { .. }
            | Self::Power { .. }
            | Self::Device { .. }
            | Self::Stage { .. }
            | Self::ChildRuns { .. } => None,
        }
    }

    /// The effect that reverts this one, if there is one.
    pub fn undo(&self) -> Option<Self> {
        match self {
            Self::Netboot { mode: NetbootMode::Pxe } => {
                Some(Self::Netboot { mode: NetbootMode::Disk })
            }
            Self::Join { cluster_ref, .. } => {
                Some(Self::Leave { cluster_ref: cluster_ref.clone(), joined_by: None })
            }
            Self::Drain { cluster_ref, .. } => {
                Some(Self::Uncordon { cluster_ref: cluster_ref.clone(), own: true })
            }
            Self::Stage { stage, node, site, provider: by, undo: false } if stage.undoable() => {
                let (node, site, by) = (node.clone(), site.clone(), by.clone());
                Some(Self::Stage { stage: *stage, node, site, provider: by, undo: true })
            }
            Self::Stage { .. }
            | Self::Netboot { mode: NetbootMode::Disk }
            | Self::Ssh { .. }
            | Self::Reboot { .. }
            | Self::Repave { .. }
            | Self::Leave { .. }
            | Self::Verify { .. }
            | Self::Net { .. }
            | Self::Rma { .. }
            | Self::Uncordon { .. }
            | Self::Power { .. }
            | Self::Device { .. }
            | Self::ChildRuns { .. } => None,
        }
    }
}

/// The effect key (idempotency key): names one attempt of one step of one run. Providers and
/// devices remember effects by it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EffectKey(String);

impl EffectKey {
    pub fn new(run: &crate::id::RunId, step: &str, attempt: u32) -> Self {
        Self(format!("{run}/{step}/{attempt}"))
    }

    /// Wraps a key that was stored earlier.
    pub fn trusted(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The keys of this attempt and of all earlier ones, newest first.
    pub fn attempts(&self) -> Vec<Self> {
        let last =
            self.0.rsplit_once('/').and_then(|(step, n)| Some((step, n.parse::<u32>().ok()?)));
        match last {
            Some((step, last)) => (1..=last).rev().map(|n| Self(format!("{step}/{n}"))).collect(),
            None => vec![self.clone()],
        }
    }

    /// The id of the run.
    pub fn run(&self) -> &str {
        self.0.split_once('/').map_or(&self.0, |(run, _)| run)
    }

    /// The name of the step.
    pub fn step(&self) -> &str {
        let rest = self.0.split_once('/').map_or("", |(_, rest)| rest);
        rest.rsplit_once('/').map_or(rest, |(step, _)| step)
    }
}

impl fmt::Display for EffectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The verb of a provider call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallVerb {
    /// Start the effect under the key and wait for its end. Answers `Done`.
    Perform,
    /// Wait for the end of what the key started; never start it. Answers `Done`.
    Follow,
    /// Get the status of the key. Answers `Done`, `UnderWay`, `NeverStarted` or `Unknown`.
    #[serde(rename = "inquire")]
    GetStatus,
    /// Read whether the goal holds, without changing anything. Answers `Done` or `Differs`.
    Observe,
    /// Stop what the key started. Answers `Stopped`, `Done` when it had already ended, or
    /// `UnderWay` when it cannot be stopped and has not ended yet. A stopped key never starts: a
    /// later `Perform` is refused.
    Stop,
}

impl CallVerb {
    pub const ALL: [CallVerb; 5] =
        [Self::Perform, Self::Follow, Self::GetStatus, Self::Observe, Self::Stop];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Perform => "perform",
            Self::Follow => "follow",
            Self::GetStatus => "get_status",
            Self::Observe => "observe",
            Self::Stop => "stop",
        }
    }
}

/// One call to a provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderCall {
    pub key: EffectKey,
    pub verb: CallVerb,
    pub effect: Effect,
    /// The bytes of this attempt's log that are stored already; `Follow` continues from there.
    pub log_offset_bytes: u64,
}

/// The result of one call to a provider.
pub type CallResult = Result<ProviderAnswer, Fault>;

/// The answer of a provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProviderAnswer {
    /// The goal holds: the device confirmed it when it was read back.
    Done(CallOutcome),
    UnderWay,
    NeverStarted,
    /// The status cannot be determined. The text says what was observed.
    Unknown(String),
    /// The goal does not hold. The text says what was observed instead.
    Differs(String),
    Stopped,
}

/// The result of an effect whose goal holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CallOutcome {
    /// One sentence for the step's message.
    pub message: String,
    /// The conditions of the machine that the result proves.
    pub evidence: Vec<ConditionObservation>,
    /// The facts read from the device, if it was read.
    pub facts: Option<DeviceFacts>,
}
