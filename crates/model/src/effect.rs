//! Effects: everything Farrier can do to a device, as one closed set.
//!
//! An [`Effect`] names the goal. An [`Order`] is one call to a provider about an effect: perform it
//! under a key, follow what a key started, get the status of a key, observe whether the goal
//! already holds, or stop it. Every provider implements this one interface, so a simulator, a
//! recorder and a fault injector are one small type each.

mod device;
mod facts;
mod node;
mod parts;
mod power_off;

pub use device::{DeviceWork, FabricTo, Facts, MAX_FACT, MaasFacts};
pub use facts::{EffectFacts, Executor};
pub use node::{MAX_TAINTS, NodeLabels, Taint, TaintEffect, check_node_labels, check_taints};
pub use parts::{Group, Part};
pub use power_off::{MAX_GRACEFUL_SECONDS, PowerOffPolicy};

use crate::condition::Evidence;
use crate::id::{NodeId, SiteId};
use crate::node::Stage;
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
        #[serde(default, rename = "manner", skip_serializing_if = "PowerOffPolicy::is_configured")]
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
    },
    /// Leaves the cluster; used only as the undo of `Join`.
    Leave {
        cluster_ref: String,
    },
    Verify {
        cluster_ref: String,
        expect: Expect,
        advisory: bool,
    },
    Net {
        document: String,
    },
    Rma {
        action: RmaAction,
        #[serde(default, rename = "manner", skip_serializing_if = "PowerOffPolicy::is_configured")]
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
    },
    /// Makes the node schedulable again.
    Uncordon {
        cluster_ref: String,
        /// Used as an undo: uncordon only if this same run cordoned the node. A cordon by its owner
        /// stays.
        own: bool,
    },
    Power {
        to: PowerTo,
        #[serde(default, rename = "manner", skip_serializing_if = "PowerOffPolicy::is_configured")]
        power_off: PowerOffPolicy,
    },
    /// Device work that only the lifecycles of devices and racks use. Plans do not contain it.
    Device {
        work: DeviceWork,
    },
    /// A stage of onboarding or decommissioning a node.
    Stage {
        stage: Stage,
        node: NodeId,
        /// None when no MAAS manages the node.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        site: Option<SiteId>,
        /// The provider that reaches the site.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        by: String,
        /// Reverts the stage.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        undo: bool,
    },
    /// The same work on several devices: one child run per device, a few at a time. Only runs on
    /// racks contain it.
    Parts {
        group: Group,
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
pub enum Expect {
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
pub enum PowerTo {
    On,
    Off,
}

impl PowerTo {
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
    pub const fn word(&self) -> &'static str {
        self.facts().word
    }

    /// All names except those of node stages, for selecting effects by name.
    pub const WORDS: [&'static str; 18] = [
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

    pub const fn needs(&self) -> Capability {
        self.facts().capability
    }

    /// True if a repetition does harm. If so, a lost answer needs an operator's decision.
    pub const fn destructive(&self) -> bool {
        self.facts().destructive
    }

    /// The devices that it starts child runs on, where it does.
    pub const fn group(&self) -> Option<&Group> {
        let Self::Parts { group } = self else { return None };
        Some(group)
    }

    /// The power-off policy, if the effect switches the machine off through its BMC.
    pub const fn power_off_policy(&self) -> Option<PowerOffPolicy> {
        if let Self::Reboot { mode: RebootMode::Bmc, power_off }
        | Self::Rma { action: RmaAction::PowerOff, power_off }
        | Self::Power { to: PowerTo::Off, power_off } = self
        {
            return Some(*power_off);
        }
        None
    }

    /// The same, to be changed.
    pub const fn power_off_policy_mut(&mut self) -> Option<&mut PowerOffPolicy> {
        if let Self::Reboot { mode: RebootMode::Bmc, power_off }
        | Self::Rma { action: RmaAction::PowerOff, power_off }
        | Self::Power { to: PowerTo::Off, power_off } = self
        {
            return Some(power_off);
        }
        None
    }

    /// The effect that reverts this one, if there is one.
    pub fn undo(&self) -> Option<Self> {
        match self {
            Self::Netboot { mode: NetbootMode::Pxe } => {
                Some(Self::Netboot { mode: NetbootMode::Disk })
            }
            Self::Join { cluster_ref, .. } => {
                Some(Self::Leave { cluster_ref: cluster_ref.clone() })
            }
            Self::Drain { cluster_ref, .. } => {
                Some(Self::Uncordon { cluster_ref: cluster_ref.clone(), own: true })
            }
            Self::Stage { stage, node, site, by, undo: false } if stage.undoable() => {
                let (node, site, by) = (node.clone(), site.clone(), by.clone());
                Some(Self::Stage { stage: *stage, node, site, by, undo: true })
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
            | Self::Parts { .. } => None,
        }
    }
}

/// The effect key (idempotency key): names one attempt of one step of one run. Providers and
/// devices remember effects by it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Key(String);

impl Key {
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
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The verb of a provider call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verb {
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

impl Verb {
    pub const ALL: [Verb; 5] =
        [Self::Perform, Self::Follow, Self::GetStatus, Self::Observe, Self::Stop];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Perform => "perform",
            Self::Follow => "follow",
            Self::GetStatus => "inquire",
            Self::Observe => "observe",
            Self::Stop => "stop",
        }
    }
}

/// One call to a provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    pub key: Key,
    pub verb: Verb,
    pub effect: Effect,
    /// The bytes of this attempt's log that are stored already; `Follow` continues from there.
    pub logged: u64,
}

/// The answer of a provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The goal holds: the device confirmed it when it was read back.
    Done(Outcome),
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
pub struct Outcome {
    /// One sentence for the step's message.
    pub said: String,
    /// The conditions of the machine that the result proves.
    pub evidence: Vec<Evidence>,
    /// The facts read from the device, if it was read.
    pub facts: Option<Facts>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One effect of each kind: fails when a variant is missing in `WORDS`, or the reverse.
    #[test]
    fn every_effect_has_its_word() {
        let cluster_ref = String::new;
        let all = [
            Effect::Ssh { command: "true".into(), destructive: false },
            Effect::Reboot { mode: RebootMode::Bmc, power_off: PowerOffPolicy::CONFIGURED },
            Effect::Netboot { mode: NetbootMode::Pxe },
            Effect::Repave { image: "i".into() },
            Effect::Join {
                cluster_ref: cluster_ref(),
                labels: NodeLabels::new(),
                taints: Vec::new(),
            },
            Effect::Leave { cluster_ref: cluster_ref() },
            Effect::Verify { cluster_ref: cluster_ref(), expect: Expect::Ready, advisory: false },
            Effect::Net { document: "n".into() },
            Effect::Rma { action: RmaAction::Record, power_off: PowerOffPolicy::CONFIGURED },
            Effect::Drain { cluster_ref: cluster_ref(), deadline_seconds: None },
            Effect::Uncordon { cluster_ref: cluster_ref(), own: false },
            Effect::Power { to: PowerTo::Off, power_off: PowerOffPolicy::CONFIGURED },
        ];
        let works = DeviceWork::one_of_each().into_iter().map(|work| Effect::Device { work });
        let group = Group { parts: Vec::new(), at_once: 1, unless: Vec::new() };
        let all: Vec<_> = all.into_iter().chain(works).chain([Effect::Parts { group }]).collect();
        let words: Vec<_> = all.iter().map(Effect::word).collect();
        assert_eq!(words, Effect::WORDS);
        for effect in all {
            if let Some(undo) = effect.undo() {
                assert_eq!(undo.undo(), None, "{effect:?} is undone once");
                assert!(!undo.destructive(), "{undo:?} may be asked again");
            }
        }
    }
}
