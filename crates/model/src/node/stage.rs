//! The stages of onboarding and decommissioning, named as in the documents, and the stages of each
//! mode.
//!
//! A stage is a step of a run. It is executed by the MAAS of the node's site, by the agent on the
//! node, or in Farrier's own record.

use super::{MaasState, NodeState, TaskKind};
use crate::condition::{ConditionObservation, ConditionType};
use crate::effect::{DrainOptions, Effect};
use crate::id::{NodeId, SiteId};
use crate::plan::RunStep;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

macro_rules! stages {
    ($($variant:ident = $word:literal, $executor:expr, $timeout:expr, $retries:expr;)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum NodeStage { $($variant,)* }

        impl NodeStage {
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];
            pub const NAMES: &'static [&'static str] = &[$($word,)*];

            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }

            /// The executor of the stage.
            pub const fn executor(self) -> StageExecutor {
                match self { $(Self::$variant => $executor,)* }
            }

            /// Timeout of an attempt in seconds, and number of retries.
            const fn limits(self) -> (u32, u32) {
                match self { $(Self::$variant => ($timeout, $retries),)* }
            }
        }
    };
}

const MINUTE: u32 = 60;

use StageExecutor::{Enrollment, Maas, Record, Task};

stages! {
    LoadSiteConfig = "load_site_config", Maas, 2 * MINUTE, 3;
    ResolvePowerCredentials = "resolve_power_credentials", Maas, 2 * MINUTE, 2;
    CreateOrFindInMaas = "create_or_find_in_maas", Maas, 5 * MINUTE, 3;
    CommissionNode = "commission_node", Maas, 10 * MINUTE, 2;
    WaitForReady = "wait_for_ready", Maas, 60 * MINUTE, 1;
    ConfigureStorage = "configure_storage", Maas, 5 * MINUTE, 2;
    ApplyRocePhase2 = "apply_roce_phase2", Maas, 5 * MINUTE, 2;
    EnsurePxeInterfaceAuto = "ensure_pxe_interface_auto", Maas, 5 * MINUTE, 2;
    RenderCloudInit = "render_cloud_init", Maas, MINUTE, 1;
    DeployViaMaas = "deploy_via_maas", Maas, 10 * MINUTE, 2;
    WaitForDeployed = "wait_for_deployed", Maas, 60 * MINUTE, 0;
    ClassifyDeployFailure = "classify_deploy_failure", Maas, 5 * MINUTE, 2;
    RecoverForDatasourceRetry = "recover_for_datasource_retry", Maas, 240 * MINUTE, 0;
    EnsureHardwareSyncConfigured = "ensure_hardware_sync_configured", Maas, 5 * MINUTE, 2;
    WaitForHardwareSyncHealthy = "wait_for_hardware_sync_healthy", Maas, 60 * MINUTE, 1;
    WaitForAgentEnrollment = "wait_for_agent_enrollment", Enrollment, 30 * MINUTE, 1;
    DisableNode = "disable_node", Record(RecordStage::Disable), MINUTE, 2;
    ForceReleaseAllocations = "force_release_allocations", Task(TaskKind::Release), 15 * MINUTE, 1;
    DrainNode = "drain_node", Task(TaskKind::Drain), 60 * MINUTE, 1;
    CleanupStorage = "cleanup_storage", Task(TaskKind::CleanupStorage), 60 * MINUTE, 1;
    ScrubGpu = "scrub_gpu", Task(TaskKind::Scrub), 30 * MINUTE, 1;
    ValidateCleanNode = "validate_clean_node", Task(TaskKind::Validate), 15 * MINUTE, 1;
    ReleaseMaasNode = "release_maas_node", Maas, 120 * MINUTE, 1;
    PowerOffMaasNode = "power_off_maas_node", Maas, 10 * MINUTE, 2;
    RetireGpuaasNode = "retire_gpuaas_node", Record(RecordStage::Retire), MINUTE, 2;
    RemoveGpuaasNodeRecord = "remove_gpuaas_node_record", Task(TaskKind::Uninstall), 15 * MINUTE, 1;
    CleanupSecrets = "cleanup_secrets", Record(RecordStage::CleanupSecrets), MINUTE, 2;
    RemoveMaasRecord = "remove_maas_record", Maas, 5 * MINUTE, 3;
}

/// The executor of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StageExecutor {
    /// The MAAS of the site.
    Maas,
    /// The agent on the node, which enrolls by itself.
    Enrollment,
    /// The agent on the node, with this task.
    Task(TaskKind),
    /// Farrier's own record.
    Record(RecordStage),
}

/// A stage that the commit which ends it writes into the node's record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordStage {
    Disable,
    Retire,
    /// Revokes the tokens and sessions of the agent.
    CleanupSecrets,
}

impl NodeStage {
    pub const ONBOARDING: [Self; 16] = [
        Self::LoadSiteConfig,
        Self::ResolvePowerCredentials,
        Self::CreateOrFindInMaas,
        Self::CommissionNode,
        Self::WaitForReady,
        Self::ConfigureStorage,
        Self::ApplyRocePhase2,
        Self::EnsurePxeInterfaceAuto,
        Self::RenderCloudInit,
        Self::DeployViaMaas,
        Self::WaitForDeployed,
        Self::ClassifyDeployFailure,
        Self::RecoverForDatasourceRetry,
        Self::EnsureHardwareSyncConfigured,
        Self::WaitForHardwareSyncHealthy,
        Self::WaitForAgentEnrollment,
    ];

    pub const DECOMMISSION: [Self; 13] = [
        Self::DisableNode,
        Self::ForceReleaseAllocations,
        Self::DrainNode,
        Self::CleanupStorage,
        Self::ScrubGpu,
        Self::ValidateCleanNode,
        Self::LoadSiteConfig,
        Self::ReleaseMaasNode,
        Self::PowerOffMaasNode,
        Self::RetireGpuaasNode,
        Self::RemoveGpuaasNodeRecord,
        Self::CleanupSecrets,
        Self::RemoveMaasRecord,
    ];

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|stage| stage.as_str() == name)
    }

    /// True if Farrier executes it in its own record, without a call to anything else.
    pub const fn is_record(self) -> bool {
        matches!(self.executor(), StageExecutor::Record(_))
    }

    /// The timeout of an attempt.
    pub const fn attempt_timeout(self) -> Duration {
        Duration::from_secs(self.limits().0 as u64)
    }

    /// True if a repetition does harm: a disk is written, or taken from a new user.
    pub const fn harmful_to_repeat(self) -> bool {
        self.installs()
            || self.releases()
            || matches!(self, Self::PowerOffMaasNode | Self::RemoveMaasRecord)
    }

    /// True if it erases or overwrites what is stored on the node. The agent may clean twice.
    pub const fn erases(self) -> bool {
        self.installs() || self.releases() || matches!(self, Self::CleanupStorage | Self::ScrubGpu)
    }

    /// True if MAAS installs the image of the site.
    pub const fn installs(self) -> bool {
        matches!(self, Self::DeployViaMaas | Self::RecoverForDatasourceRetry)
    }

    /// True if MAAS takes the installed system away.
    pub const fn releases(self) -> bool {
        matches!(self, Self::ReleaseMaasNode)
    }

    /// The observation that MAAS has taken the installed system away, at the end of the stage or of
    /// its undo in this state. None for other stages, and while MAAS is still at work.
    pub fn released(self, undo: bool, state: MaasState) -> Option<ConditionObservation> {
        let releases = if undo { self.installs() } else { self.releases() };
        let gone = matches!(state, MaasState::Ready | MaasState::New | MaasState::Absent);
        let released = ConditionObservation::new(ConditionType::Provisioned, false, "Released");
        (releases && gone).then_some(released)
    }

    /// True if a cancel has something to undo: what this run created, commissioned or installed in
    /// MAAS.
    pub const fn undoable(self) -> bool {
        matches!(self, Self::CreateOrFindInMaas | Self::CommissionNode | Self::DeployViaMaas)
    }

    /// The agent's task for this stage.
    pub const fn task(self) -> Option<TaskKind> {
        match self.executor() {
            StageExecutor::Task(kind) => Some(kind),
            StageExecutor::Maas | StageExecutor::Enrollment | StageExecutor::Record(_) => None,
        }
    }
}

impl fmt::Display for NodeStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A way to take a node out of service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecommissionMode {
    /// Drained and cleaned; the installed system stays, and the same identity serves again.
    SoftReset,
    /// Like `SoftReset`, but the system is installed again.
    Reimage,
    /// Removed: its identity is deleted, and its machine released from MAAS.
    FullDecommission,
    /// Only the data that its users stored is removed.
    StorageCleanup,
    /// Drained and kept out of scheduling.
    Drain,
    /// Like `Drain`, but without waiting for the workloads.
    Retire,
    /// Returned to scheduling: its cluster uncordons it.
    Reactivate,
}

impl DecommissionMode {
    pub const ALL: [Self; 7] = [
        Self::SoftReset,
        Self::Reimage,
        Self::FullDecommission,
        Self::StorageCleanup,
        Self::Drain,
        Self::Retire,
        Self::Reactivate,
    ];

    /// The modes that the documents name.
    pub const DECOMMISSION: [Self; 4] =
        [Self::SoftReset, Self::Reimage, Self::FullDecommission, Self::StorageCleanup];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SoftReset => "soft_reset",
            Self::Reimage => "reimage",
            Self::FullDecommission => "full_decommission",
            Self::StorageCleanup => "storage_cleanup",
            Self::Drain => "drain",
            Self::Retire => "retire",
            Self::Reactivate => "reactivate",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.as_str() == name)
    }

    /// The stages in the order of the document, but with the agent's part before the release. A
    /// node that no MAAS manages has no MAAS stages.
    pub fn stages(self, managed: bool) -> Vec<NodeStage> {
        let mut all = NodeStage::DECOMMISSION.to_vec();
        all.retain(|stage| self.has(*stage));
        // The agent can uninstall itself only while its machine is not released.
        let of_agent = [NodeStage::RetireGpuaasNode, NodeStage::RemoveGpuaasNodeRecord];
        if let Some(at) = all.iter().position(|stage| *stage == NodeStage::LoadSiteConfig)
            && of_agent.iter().all(|stage| all.contains(stage))
        {
            all.retain(|stage| !of_agent.contains(stage));
            all.splice(at..at, of_agent);
        }
        if self == Self::Reimage {
            // The released machine is installed again by the stages of onboarding.
            let deploy =
                NodeStage::ONBOARDING.into_iter().skip_while(|one| *one != NodeStage::WaitForReady);
            all.extend(deploy);
        }
        all.retain(|stage| managed || stage.executor() != StageExecutor::Maas);
        all
    }

    const fn has(self, stage: NodeStage) -> bool {
        use NodeStage::{
            CleanupSecrets, CleanupStorage, DisableNode, DrainNode, ForceReleaseAllocations,
            LoadSiteConfig, PowerOffMaasNode, ReleaseMaasNode, RemoveGpuaasNodeRecord,
            RemoveMaasRecord, RetireGpuaasNode, ScrubGpu, ValidateCleanNode,
        };
        match stage {
            DisableNode | DrainNode => !matches!(self, Self::Reactivate),
            ForceReleaseAllocations => !matches!(self, Self::Drain | Self::Reactivate),
            CleanupStorage | ValidateCleanNode => {
                !matches!(self, Self::Drain | Self::Retire | Self::Reactivate)
            }
            ScrubGpu => {
                matches!(self, Self::SoftReset | Self::Reimage | Self::FullDecommission)
            }
            LoadSiteConfig | ReleaseMaasNode => {
                matches!(self, Self::Reimage | Self::FullDecommission)
            }
            RetireGpuaasNode => {
                matches!(self, Self::FullDecommission | Self::Drain | Self::Retire)
            }
            // The previous installation must no longer be able to act for the node.
            CleanupSecrets => matches!(self, Self::Reimage | Self::FullDecommission),
            PowerOffMaasNode | RemoveGpuaasNodeRecord | RemoveMaasRecord => {
                matches!(self, Self::FullDecommission)
            }
            NodeStage::ResolvePowerCredentials
            | NodeStage::CreateOrFindInMaas
            | NodeStage::CommissionNode
            | NodeStage::WaitForReady
            | NodeStage::ConfigureStorage
            | NodeStage::ApplyRocePhase2
            | NodeStage::EnsurePxeInterfaceAuto
            | NodeStage::RenderCloudInit
            | NodeStage::DeployViaMaas
            | NodeStage::WaitForDeployed
            | NodeStage::ClassifyDeployFailure
            | NodeStage::RecoverForDatasourceRetry
            | NodeStage::EnsureHardwareSyncConfigured
            | NodeStage::WaitForHardwareSyncHealthy
            | NodeStage::WaitForAgentEnrollment => false,
        }
    }

    /// The installed system stays and serves again, so only the agent can clean it.
    pub const fn keeps_system(self) -> bool {
        matches!(self, Self::SoftReset | Self::StorageCleanup)
    }

    /// The state of the node after a complete run.
    pub const fn ends_in(self) -> NodeState {
        match self {
            Self::FullDecommission => NodeState::Deleted,
            Self::Drain | Self::Retire => NodeState::Retired,
            Self::SoftReset | Self::Reimage | Self::StorageCleanup | Self::Reactivate => {
                NodeState::Offline
            }
        }
    }
}

impl fmt::Display for DecommissionMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The node that stages work on, and how it is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageTarget {
    pub node: NodeId,
    /// None: no MAAS manages it.
    pub site: Option<SiteId>,
    /// The provider that reaches the site's MAAS; empty without a site.
    pub provider: String,
    /// The cluster that schedules its workloads; empty: the agent drains the node.
    pub cluster: String,
}

/// Timeout in seconds and number of retries of an uncordon.
const UNCORDON: (u32, u32) = (2 * MINUTE, 3);

/// Makes a node schedulable in its cluster again, whoever cordoned it.
pub fn uncordon(cluster: &str) -> RunStep {
    let (timeout_seconds, max_retries) = UNCORDON;
    let effect = Effect::Uncordon { cluster_ref: cluster.into(), own: false };
    RunStep { name: "uncordon_node".into(), timeout_seconds, max_retries, effect }
}

/// The stages as steps of a run.
pub fn steps(stages: &[NodeStage], owner: &StageTarget) -> Vec<RunStep> {
    stages.iter().map(|stage| step(*stage, owner)).collect()
}

fn step(stage: NodeStage, owner: &StageTarget) -> RunStep {
    let (timeout_seconds, max_retries) = stage.limits();
    // The cluster that schedules the workloads also drains them.
    let drained_by_cluster = stage == NodeStage::DrainNode && !owner.cluster.is_empty();
    let effect = match drained_by_cluster {
        true => Effect::Drain {
            cluster_ref: owner.cluster.clone(),
            deadline_seconds: Some(timeout_seconds - MINUTE),
            options: DrainOptions::ALL_PODS,
        },
        false => Effect::Stage {
            stage,
            node: owner.node.clone(),
            site: owner.site.clone(),
            provider: owner.provider.clone(),
            undo: false,
        },
    };
    RunStep { name: stage.as_str().into(), timeout_seconds, max_retries, effect }
}
