//! Effects: everything Farrier may ask of the world, as one closed set.
//!
//! An [`Effect`] says what is wanted of a machine. An [`Order`] says how it is asked: perform it
//! under a key, follow what a key started, inquire what became of a key, observe whether the goal
//! already holds, stop it, or probe the machine. A provider answers orders and nothing else, so a
//! simulator, a recorder and a fault injector are one small type each.

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

/// What is wanted of a machine.
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
        /// What the node is given once it shows itself.
        #[serde(default, skip_serializing_if = "NodeLabels::is_empty")]
        labels: NodeLabels,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        taints: Vec<Taint>,
    },
    /// Leaves the cluster again; only ever an undo.
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
    /// Lets nothing new onto the node, and evicts what is on it.
    Drain {
        /// Empty: the machine is in no cluster, and nothing is there to drain.
        cluster_ref: String,
        /// How long evictions are tried. Always there in a run; a plan may leave it to the step's time limit.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline_seconds: Option<u32>,
    },
    /// Lets the node take work again.
    Uncordon {
        cluster_ref: String,
        /// As an undo: only if this very run has cordoned the node. What its owner did stays.
        own: bool,
    },
    Power {
        to: PowerTo,
        #[serde(default, rename = "manner", skip_serializing_if = "PowerOffPolicy::is_configured")]
        power_off: PowerOffPolicy,
    },
    /// What devices are asked in the course of their own and their rack's lifecycle. No plan has it.
    Device {
        work: DeviceWork,
    },
    /// A stage of bringing a node into service or out of it.
    Stage {
        stage: Stage,
        node: NodeId,
        /// None: no MAAS manages the node.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        site: Option<SiteId>,
        /// The provider that the site is reached through.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        by: String,
        /// It takes the stage back.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        undo: bool,
    },
    /// The same work on several devices: a run for each of them, a few at a time. Only runs on racks have it.
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

/// A thing that a provider can do at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Capability {
    Inspect,
    PowerControl,
    Netboot,
    Imaging,
    RemoteExec,
    ClusterJoin,
    /// Firmware of devices.
    Firmware,
    /// The fabric between the switches of a rack.
    Fabric,
    /// The stages of bringing nodes into service and out of it.
    Nodes,
}

impl Effect {
    /// The word for it in plans, logs and fault rules.
    pub const fn word(&self) -> &'static str {
        self.facts().word
    }

    /// Every word there is beside those of the stages of nodes, for those who select effects by name.
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

    /// True when doing it a second time does harm, so that a lost answer must stop for a person.
    pub const fn destructive(&self) -> bool {
        self.facts().destructive
    }

    /// The devices that it starts child runs on, where it does.
    pub const fn group(&self) -> Option<&Group> {
        let Self::Parts { group } = self else { return None };
        Some(group)
    }

    /// How it switches the machine off through its BMC, where it does.
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

    /// What takes it back, where anything does.
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

/// The name of one attempt at one step of one run. The world remembers effects by it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Key(String);

impl Key {
    pub fn new(run: &crate::id::RunId, step: &str, attempt: u32) -> Self {
        Self(format!("{run}/{step}/{attempt}"))
    }

    /// A key as it was written down earlier.
    pub fn trusted(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// This attempt and those before it, newest first.
    pub fn attempts(&self) -> Vec<Self> {
        let last =
            self.0.rsplit_once('/').and_then(|(step, n)| Some((step, n.parse::<u32>().ok()?)));
        match last {
            Some((step, last)) => (1..=last).rev().map(|n| Self(format!("{step}/{n}"))).collect(),
            None => vec![self.clone()],
        }
    }

    /// The run it belongs to.
    pub fn run(&self) -> &str {
        self.0.split_once('/').map_or(&self.0, |(run, _)| run)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How an effect is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verb {
    /// Start it under the key and see it through. Answers `Done`.
    Perform,
    /// See through what the key started; never start it. Answers `Done`.
    Follow,
    /// Say what became of the key. Answers `Done`, `UnderWay`, `NeverStarted` or `Unknown`.
    Inquire,
    /// Look whether the goal holds, changing nothing. Answers `Done` or `Differs`.
    Observe,
    /// Stop what the key started. Answers `Stopped`, `Done` when it was too late, or `UnderWay` when it cannot be called
    /// back and has not ended yet. A key that was stopped never begins: a `Perform` that arrives afterwards is refused.
    Stop,
}

impl Verb {
    pub const ALL: [Verb; 5] =
        [Self::Perform, Self::Follow, Self::Inquire, Self::Observe, Self::Stop];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Perform => "perform",
            Self::Follow => "follow",
            Self::Inquire => "inquire",
            Self::Observe => "observe",
            Self::Stop => "stop",
        }
    }
}

/// One order to a provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    pub key: Key,
    pub verb: Verb,
    pub effect: Effect,
    /// How many bytes of this attempt's log are stored already; `Follow` goes on from there.
    pub logged: u64,
}

/// What a provider answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The goal holds: the device said so when it was read back.
    Done(Outcome),
    UnderWay,
    NeverStarted,
    /// It cannot be found out. The text says what was seen.
    Unknown(String),
    /// The goal does not hold. The text says what was seen instead.
    Differs(String),
    Stopped,
}

/// A goal reached.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Outcome {
    /// One sentence for the step's message.
    pub said: String,
    /// What this proves about the machine.
    pub evidence: Vec<Evidence>,
    /// What was read of a device, where it was.
    pub facts: Option<Facts>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One of each, from the very words: a variant without a word, or a word without one, fails here.
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
