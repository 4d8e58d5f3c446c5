//! Failed changes: what the record of a machine says after an operation that was to change it has
//! failed.
//!
//! A later success of any other operation clears `NeedsIntervention`, and the machine may go back
//! into service although the change that was asked for is missing or half done. So the failure
//! stays on the record until [`ChangeKind::is_repaired_by`] a success, until an observation
//! contradicts it, or until an operator clears it with `NeedsIntervention`.

use super::Machine;
use crate::condition::{ConditionType, Conditions, POWERED_OFF};
use crate::effect::{DesiredPower, Effect};
use crate::id::RunId;
use crate::machine::view::EffectiveState;
use crate::plan::RunType;
use crate::run::{Run, RunPhase};
use crate::time::Timestamp;
use crate::why::writes_disk;
use serde::{Deserialize, Serialize};

/// A kind of change of a machine. The order is the one in which failures are shown: the worst
/// first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    Imaging,
    Upgrade,
    Network,
    Firmware,
    Power,
}

impl ChangeKind {
    pub const ALL: [Self; 5] =
        [Self::Imaging, Self::Upgrade, Self::Network, Self::Firmware, Self::Power];

    /// The change that a run makes. None: what the run leaves behind is the phase, a flag or an
    /// observation of the machine, and is told by it.
    pub fn of(run: &Run) -> Option<Self> {
        if writes_disk(run) {
            return Some(Self::Imaging);
        }
        match run.spec.run_type {
            RunType::Upgrade => Some(Self::Upgrade),
            RunType::NetReconfig => Some(Self::Network),
            RunType::Firmware => Some(Self::Firmware),
            // A plan of this type may set the source of the next boot alone.
            RunType::Power => wanted_power(run).map(|_| Self::Power),
            RunType::Reboot
            | RunType::Reimage
            | RunType::EnterMaintenance
            | RunType::ExitMaintenance
            | RunType::Rma
            | RunType::ExitRma
            | RunType::Join
            | RunType::RackMaintenance
            | RunType::Fabric
            | RunType::Intake
            | RunType::Check
            | RunType::Onboard
            | RunType::Decommission
            | RunType::NodeDrain => None,
        }
    }

    /// Whether a success of the kind `done` repairs a failure of this kind. An image brings a new
    /// system and new network files.
    pub const fn is_repaired_by(self, done: Self) -> bool {
        match (self, done) {
            (Self::Imaging, Self::Imaging)
            | (Self::Upgrade, Self::Upgrade | Self::Imaging)
            | (Self::Network, Self::Network | Self::Imaging)
            | (Self::Firmware, Self::Firmware)
            | (Self::Power, Self::Power) => true,
            (Self::Imaging, Self::Upgrade | Self::Network | Self::Firmware | Self::Power)
            | (Self::Upgrade, Self::Network | Self::Firmware | Self::Power)
            | (Self::Network, Self::Upgrade | Self::Firmware | Self::Power)
            | (Self::Firmware, Self::Imaging | Self::Upgrade | Self::Network | Self::Power)
            | (Self::Power, Self::Imaging | Self::Upgrade | Self::Network | Self::Firmware) => {
                false
            }
        }
    }

    /// True if a failure may have left the machine half changed, which matters in maintenance too.
    /// The record of the disk tells that of an image.
    pub const fn is_damage(self) -> bool {
        match self {
            Self::Upgrade | Self::Network | Self::Firmware => true,
            Self::Imaging | Self::Power => false,
        }
    }

    pub const fn noun(self) -> &'static str {
        match self {
            Self::Imaging => "reimage",
            Self::Upgrade => "upgrade",
            Self::Network => "network change",
            Self::Firmware => "firmware update",
            Self::Power => "power change",
        }
    }

    /// A few words for a badge.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Imaging => "last reimage failed",
            Self::Upgrade => "last upgrade failed",
            Self::Network => "last network change failed",
            Self::Firmware => "last firmware update failed",
            Self::Power => "last power change failed",
        }
    }
}

/// The power state that a run leads to. None: it does not change it.
fn wanted_power(run: &Run) -> Option<DesiredPower> {
    let mut effects = run.spec.steps.iter().rev().map(|step| &step.effect);
    effects.find_map(|effect| match effect {
        Effect::Power { to, .. } => Some(*to),
        Effect::Reboot { .. } => Some(DesiredPower::On),
        Effect::Ssh { .. }
        | Effect::Netboot { .. }
        | Effect::Repave { .. }
        | Effect::Join { .. }
        | Effect::Leave { .. }
        | Effect::Verify { .. }
        | Effect::Net { .. }
        | Effect::Rma { .. }
        | Effect::Drain { .. }
        | Effect::Uncordon { .. }
        | Effect::Device { .. }
        | Effect::Stage { .. }
        | Effect::ChildRuns { .. } => None,
    })
}

/// A change that failed, and was not repaired since.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedChange {
    pub kind: ChangeKind,
    pub run: RunId,
    /// The end of that operation.
    pub since: Timestamp,
    /// The power state that it was to lead to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wanted_power: Option<DesiredPower>,
}

impl FailedChange {
    /// A sentence about the machine, which it calls "it".
    pub fn describe(&self) -> String {
        format!("its last {} {} failed", self.kind.noun(), self.run)
    }

    /// True if the machine must be in maintenance for the change to be repeated.
    pub fn needs_maintenance(&self) -> bool {
        match self.kind {
            ChangeKind::Imaging
            | ChangeKind::Upgrade
            | ChangeKind::Network
            | ChangeKind::Firmware => true,
            ChangeKind::Power => self.wanted_power == Some(DesiredPower::Off),
        }
    }

    /// True if the machine is observed in the state that the operation was to lead to.
    fn is_contradicted_by(&self, conditions: &Conditions) -> bool {
        let known = conditions.get(ConditionType::Reachable);
        match self.wanted_power {
            Some(DesiredPower::On) => known.is_some_and(|known| known.status),
            Some(DesiredPower::Off) => {
                known.is_some_and(|known| !known.status && known.reason == POWERED_OFF)
            }
            None => false,
        }
    }
}

/// The failed changes of a machine: the last one of each kind, the worst first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(from = "StoredFailedChanges")]
pub struct FailedChanges(Vec<FailedChange>);

#[derive(Deserialize)]
#[serde(untagged)]
enum StoredFailedChanges {
    Changes(Vec<FailedChange>),
    /// `failed_imaging` of an older version, which remembered a reimage alone.
    Imaging {
        run: RunId,
        since: Timestamp,
    },
}

impl From<StoredFailedChanges> for FailedChanges {
    fn from(stored: StoredFailedChanges) -> Self {
        match stored {
            StoredFailedChanges::Changes(changes) => Self(changes),
            StoredFailedChanges::Imaging { run, since } => Self(vec![FailedChange {
                kind: ChangeKind::Imaging,
                run,
                since,
                wanted_power: None,
            }]),
        }
    }
}

impl FailedChanges {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &FailedChange> {
        self.0.iter()
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Replaces the earlier failure of the same kind.
    pub fn insert(&mut self, failed: FailedChange) {
        self.0.retain(|known| known.kind != failed.kind);
        self.0.push(failed);
        self.0.sort_by_key(|known| known.kind);
    }

    /// Removes what the conditions contradict. True if something was removed.
    pub(super) fn forget_contradicted(&mut self, conditions: &Conditions) -> bool {
        let before = self.0.len();
        self.0.retain(|failed| !failed.is_contradicted_by(conditions));
        self.0.len() != before
    }
}

impl Machine {
    /// Records the end of a run that was to change the machine. A node tells the failures of its
    /// own runs.
    pub fn record_change(&mut self, run: &Run) {
        let Some(since) = run.progress.finished_at.filter(|_| run.ended()) else { return };
        let id = &run.spec.id;
        match (run.phase(), ChangeKind::of(run)) {
            (RunPhase::Failed, Some(kind)) if !run.works_on_node() => {
                let wanted_power = wanted_power(run).filter(|_| kind == ChangeKind::Power);
                let failed = FailedChange { kind, run: id.clone(), since, wanted_power };
                self.failed_changes.insert(failed);
                self.failed_changes.forget_contradicted(&self.conditions);
            }
            (RunPhase::Succeeded, Some(done)) => {
                self.failed_changes.0.retain(|failed| !failed.kind.is_repaired_by(done));
            }
            // It had failed, and an operator gave it up.
            (RunPhase::Canceled, _) => self.failed_changes.0.retain(|failed| failed.run != *id),
            (RunPhase::Failed | RunPhase::Succeeded | RunPhase::Pending | RunPhase::Running, _) => {
            }
        }
    }

    /// The failed change that a machine at rest is shown with. A machine in maintenance, and one
    /// that was never in service, may well be without its image or off.
    pub fn failed_change(&self) -> Option<&FailedChange> {
        match self.effective_state() {
            EffectiveState::Idle => self.failed_changes.iter().next(),
            EffectiveState::New | EffectiveState::Maintenance => {
                self.failed_changes.iter().find(|failed| failed.kind.is_damage())
            }
            EffectiveState::Busy | EffectiveState::Attention | EffectiveState::Blocked => None,
        }
    }
}
