//! The table of effects: what the rest of Farrier must know of each. A new effect gets its row
//! here, and the compiler asks for it.

use super::{
    Capability, ChildRunGroup, DesiredPower, DeviceWork, Effect, FabricGoal, NetbootMode,
    RebootMode, RmaAction,
};
use crate::access::Permission;
use crate::blast_radius::Impact;
use crate::id::{NodeId, SiteId};
use crate::node::{NodeStage, StageExecutor};
use crate::plan::RunType;
use std::fmt;

/// One row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EffectFacts<'a> {
    /// The word for it in plans, logs and fault rules.
    pub name: &'static str,
    /// The capability that a provider needs for it.
    pub capability: Capability,
    /// Doing it a second time does harm, so a lost answer must stop for a person. A reboot is; a
    /// scrub is not, although it erases.
    pub harmful_to_repeat: bool,
    /// It erases or overwrites data, a system or firmware. Previews mark it DESTRUCTIVE.
    pub erases: bool,
    /// It is allowed in the phases in which a run of this type may start, whatever the run is
    /// called.
    pub gate: RunType,
    /// The run that takes a machine back from RMA may have it: it changes nothing on the machine.
    pub allowed_in_exit_rma: bool,
    /// It has new work placed on the machine.
    pub places_work: bool,
    /// The loss of the machine that the gate `in-service` guards; none if it takes nothing.
    pub takes: Option<Impact>,
    /// It writes the disk: from its intent on, the system that was installed before is gone.
    pub disk: Option<DiskContent<'a>>,
    pub executor: Executor<'a>,
    /// The permission that a caller needs for a run with it.
    pub permission: Permission,
}

/// The content that an effect writes to the disk of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskContent<'a> {
    /// The image of this name.
    Image(&'a str),
    /// The image of the site, by its MAAS.
    SiteImage(Option<&'a SiteId>),
    /// No system: the MAAS that releases the machine may erase its disks.
    Nothing,
}

impl fmt::Display for DiskContent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Image(name) => f.write_str(name),
            Self::SiteImage(Some(site)) => write!(f, "the image of {site}"),
            Self::SiteImage(None) => f.write_str("the image of its site"),
            Self::Nothing => f.write_str("the release"),
        }
    }
}

/// The component that executes an effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Executor<'a> {
    /// The provider of the machine or device.
    TargetProvider,
    /// A provider that reaches the machine's cluster: its own, or another one that can.
    ClusterProvider,
    /// The provider of the node's site, by its name.
    SiteProvider(&'a str),
    /// The agent on the node, through the engine. A simulated node has no agent: its site's
    /// provider carries the stage out.
    NodeAgent { stage: NodeStage, node: &'a NodeId, site_provider: &'a str },
    /// The engine: the stage only concerns Farrier's own record of the node.
    NodeRecord { stage: NodeStage, node: &'a NodeId },
    /// The engine, with a child run for each device of the group.
    ChildRuns(&'a ChildRunGroup),
}

/// A row without the marks that few effects have.
const fn row<'a>(
    name: &'static str,
    capability: Capability,
    harmful_to_repeat: bool,
    gate: RunType,
    executor: Executor<'a>,
) -> EffectFacts<'a> {
    EffectFacts {
        name,
        capability,
        harmful_to_repeat,
        erases: false,
        gate,
        allowed_in_exit_rma: false,
        places_work: false,
        takes: None,
        disk: None,
        executor,
        permission: Permission::Operate,
    }
}

impl Effect {
    #[expect(clippy::too_many_lines, reason = "a table: one row per effect")]
    pub const fn facts(&self) -> EffectFacts<'_> {
        use Capability as Can;
        use Executor::{ClusterProvider as Cluster, TargetProvider as Target};
        // The least strict gate: the run that has the effect decides.
        const ANY: RunType = RunType::EnterMaintenance;
        const REBOOT: RunType = RunType::Reboot;
        const REIMAGE: RunType = RunType::Reimage;
        match self {
            Self::Ssh { destructive: true, .. } => {
                row("ssh", Can::RemoteExec, true, REIMAGE, Target)
                    .erasing(true)
                    .taking(Impact::SystemChange)
                    .needing(Permission::Execute)
            }
            Self::Ssh { destructive: false, .. } => row("ssh", Can::RemoteExec, false, ANY, Target)
                .in_exit_rma()
                .needing(Permission::Execute),
            Self::Reboot { mode: RebootMode::Bmc, .. } => {
                row("reboot", Can::PowerControl, true, REBOOT, Target).taking(Impact::Reboot)
            }
            Self::Reboot { mode: RebootMode::InBand, .. } => {
                row("reboot", Can::RemoteExec, true, REBOOT, Target).taking(Impact::Reboot)
            }
            Self::Netboot { mode: NetbootMode::Pxe } => {
                row("netboot", Can::Netboot, false, REIMAGE, Target)
                    .taking(Impact::SystemChange)
                    .needing(Permission::Destroy)
            }
            // The disk is what a machine boots from unless it is told otherwise.
            Self::Netboot { mode: NetbootMode::Disk } => {
                row("netboot", Can::Netboot, false, ANY, Target)
            }
            Self::Repave { image } => row("repave", Can::Imaging, true, REIMAGE, Target)
                .taking(Impact::DiskLoss)
                .writing(Some(DiskContent::Image(image.as_str())))
                .erasing(true)
                .needing(Permission::Destroy),
            Self::Join { .. } => row("join", Can::ClusterJoin, false, REIMAGE, Target)
                .taking(Impact::SystemChange)
                .placing_work(),
            Self::Leave { .. } => {
                row("leave", Can::ClusterJoin, false, REIMAGE, Target).taking(Impact::SystemChange)
            }
            // It only records what it sees: a provider that can inspect a machine can do it.
            Self::Verify { advisory: true, .. } => {
                row("verify", Can::Inspect, false, ANY, Target).in_exit_rma()
            }
            Self::Verify { advisory: false, .. } => {
                row("verify", Can::ClusterJoin, false, ANY, Target).in_exit_rma()
            }
            // The document is written as root.
            Self::Net { .. } => row("net", Can::RemoteExec, true, REIMAGE, Target)
                .taking(Impact::NetworkLoss)
                .needing(Permission::Execute),
            // A record only reads.
            Self::Rma { action: RmaAction::Record, .. } => {
                row("rma", Can::Inspect, false, ANY, Target).in_exit_rma()
            }
            Self::Rma { action: RmaAction::PowerOff, .. } => {
                row("rma", Can::PowerControl, true, REIMAGE, Target)
                    .taking(Impact::PowerLoss)
                    .needing(Permission::Admin)
            }
            Self::Rma { action: RmaAction::Mark, .. } => {
                row("rma", Can::PowerControl, false, REIMAGE, Target).needing(Permission::Admin)
            }
            Self::Drain { .. } => row("drain", Can::ClusterJoin, false, ANY, Cluster),
            Self::Uncordon { .. } => {
                row("uncordon", Can::ClusterJoin, false, ANY, Cluster).placing_work()
            }
            Self::Power { to: DesiredPower::On, .. } => {
                row("power", Can::PowerControl, false, ANY, Target).in_exit_rma()
            }
            // A person may have switched it on again since.
            Self::Power { to: DesiredPower::Off, .. } => {
                row("power", Can::PowerControl, true, REBOOT, Target).taking(Impact::PowerLoss)
            }
            Self::Device { work } => {
                let (name, capability, harmful) = work.facts();
                EffectFacts {
                    takes: work.takes(),
                    permission: work.permission(),
                    ..row(name, capability, harmful, ANY, Target)
                }
                .erasing(matches!(work, DeviceWork::Firmware { .. }))
            }
            // The stages take power and disks. They need no objection of the machine: the state of
            // the node admits its runs, and a decommission drains the node first.
            Self::Stage { stage, node, site, provider: by, undo } => {
                let executor = stage_executor(*stage, node, by.as_str());
                let harmful = !*undo && stage.harmful_to_repeat();
                // Undoing an installation releases the machine.
                let erases = if *undo { stage.installs() } else { stage.erases() };
                let disk = if *undo { None } else { stage_disk(*stage, site.as_ref()) };
                let facts = row(stage.as_str(), Can::Nodes, harmful, ANY, executor)
                    .writing(disk)
                    .erasing(erases);
                match disk {
                    Some(_) => facts.needing(Permission::Destroy),
                    None => facts,
                }
            }
            // Each child run has its own effects, and what it has done is never lost.
            Self::ChildRuns { group } => {
                row("parts", Can::Inspect, false, ANY, Executor::ChildRuns(group))
                    .needing(Permission::Power)
            }
        }
    }
}

impl<'a> EffectFacts<'a> {
    const fn writing(self, disk: Option<DiskContent<'a>>) -> Self {
        Self { disk, ..self }
    }

    const fn erasing(self, erases: bool) -> Self {
        Self { erases, ..self }
    }

    const fn in_exit_rma(self) -> Self {
        Self { allowed_in_exit_rma: true, ..self }
    }

    const fn placing_work(self) -> Self {
        Self { places_work: true, ..self }
    }

    const fn taking(self, impact: Impact) -> Self {
        Self { takes: Some(impact), ..self }
    }

    const fn needing(self, permission: Permission) -> Self {
        Self { permission, ..self }
    }
}

/// Content that a stage writes to the disk. Undoing an installation releases the machine; its
/// intent has cleared the record already.
const fn stage_disk(stage: NodeStage, site: Option<&SiteId>) -> Option<DiskContent<'_>> {
    match (stage.installs(), stage.releases()) {
        (true, _) => Some(DiskContent::SiteImage(site)),
        (false, true) => Some(DiskContent::Nothing),
        (false, false) => None,
    }
}

const fn stage_executor<'a>(stage: NodeStage, node: &'a NodeId, by: &'a str) -> Executor<'a> {
    match stage.executor() {
        StageExecutor::Maas => Executor::SiteProvider(by),
        StageExecutor::Enrollment | StageExecutor::Task(_) => {
            Executor::NodeAgent { stage, node, site_provider: by }
        }
        StageExecutor::Record(_) => Executor::NodeRecord { stage, node },
    }
}

impl DeviceWork {
    /// Its word, what a provider must be able to do for it, and whether a second time does harm:
    /// flashing twice may ruin a device, and disabling a fabric takes it from its new users.
    const fn facts(&self) -> (&'static str, Capability, bool) {
        match self {
            Self::Firmware { .. } => ("firmware", Capability::Firmware, true),
            Self::Read => ("read", Capability::Inspect, false),
            Self::Configure => ("configure", Capability::Inspect, false),
            Self::Check { .. } => ("check", Capability::Inspect, false),
            Self::Fabric { to: FabricGoal::Off } => ("fabric", Capability::Fabric, true),
            Self::Fabric { to: FabricGoal::Manager | FabricGoal::Configured } => {
                ("fabric", Capability::Fabric, false)
            }
        }
    }

    /// New firmware restarts its device. The fabric is taken from every machine of the rack.
    const fn takes(&self) -> Option<Impact> {
        match self {
            Self::Firmware { .. } => Some(Impact::Restart),
            Self::Fabric { to: FabricGoal::Off } => Some(Impact::FabricLoss),
            Self::Fabric { to: FabricGoal::Manager | FabricGoal::Configured }
            | Self::Read
            | Self::Configure
            | Self::Check { .. } => None,
        }
    }

    const fn permission(&self) -> Permission {
        match self {
            Self::Firmware { .. } => Permission::Firmware,
            Self::Fabric { .. } => Permission::Power,
            Self::Read | Self::Configure | Self::Check { .. } => Permission::Operate,
        }
    }

    pub const fn word(&self) -> &'static str {
        self.facts().0
    }
}
