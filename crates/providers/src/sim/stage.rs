//! The machine in MAAS and its agent: what the stages of onboarding and decommission change.
//!
//! Only the machine's side of MAAS is simulated. The agent exists once the machine is enrolled, and
//! sends heartbeats while it is powered on.

use super::hardware::{Hardware, Power, outcome};
use model::effect::{Effect, Facts, MaasFacts, Outcome};
use model::fault::{Code, Fault};
use model::id::{MachineId, NodeId};
use model::node::{Stage, Upstream, UpstreamSeen};
use model::time::Timestamp;
use serde::{Deserialize, Serialize};

/// The image that MAAS deploys.
const DEPLOYED_IMAGE: &str = "maas";

/// The records of MAAS and of the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Managed {
    pub state: Upstream,
    /// The node for which the MAAS record was created, and the one for which it was deployed.
    pub created_for: Option<NodeId>,
    pub deployed_for: Option<NodeId>,
    pub configured: bool,
    pub hardware_sync: bool,
    pub enrolled: bool,
    /// Whether data of its users is on it.
    pub used: bool,
}

impl Default for Managed {
    fn default() -> Self {
        Self {
            state: Upstream::Absent,
            created_for: None,
            deployed_for: None,
            configured: false,
            hardware_sync: false,
            enrolled: false,
            used: false,
        }
    }
}

impl Managed {
    const fn installed(&self) -> bool {
        matches!(self.state, Upstream::Deploying | Upstream::Deployed)
    }

    /// Whether it is commissioned.
    const fn known(&self) -> bool {
        matches!(self.state, Upstream::Ready | Upstream::Allocated) || self.installed()
    }

    fn let_go(&mut self) {
        *self = Self {
            state: Upstream::Ready,
            created_for: self.created_for.take(),
            ..Self::default()
        };
    }
}

/// The MAAS system id of a simulated machine.
pub fn system_id(machine: &MachineId) -> String {
    format!("sim-{machine}")
}

impl Hardware {
    /// Why a stage cannot start in the current state.
    pub(super) fn refuses_stage(&self, stage: Stage, undo: bool) -> Option<Fault> {
        let state = self.managed.state;
        let fits = match stage {
            _ if undo => true,
            Stage::CommissionNode | Stage::WaitForReady => state != Upstream::Absent,
            Stage::ConfigureStorage
            | Stage::ApplyRocePhase2
            | Stage::EnsurePxeInterfaceAuto
            | Stage::DeployViaMaas => self.managed.known(),
            Stage::WaitForDeployed
            | Stage::EnsureHardwareSyncConfigured
            | Stage::WaitForHardwareSyncHealthy => self.managed.installed(),
            Stage::LoadSiteConfig
            | Stage::ResolvePowerCredentials
            | Stage::CreateOrFindInMaas
            | Stage::RenderCloudInit
            | Stage::ClassifyDeployFailure
            | Stage::RecoverForDatasourceRetry
            | Stage::WaitForAgentEnrollment
            | Stage::DisableNode
            | Stage::ForceReleaseAllocations
            | Stage::DrainNode
            | Stage::CleanupStorage
            | Stage::ScrubGpu
            | Stage::ValidateCleanNode
            | Stage::ReleaseMaasNode
            | Stage::PowerOffMaasNode
            | Stage::RetireGpuaasNode
            | Stage::RemoveGpuaasNodeRecord
            | Stage::CleanupSecrets
            | Stage::RemoveMaasRecord => true,
        };
        (!fits).then(|| {
            Fault::new(
                Code::StateDisagrees,
                format!("{stage} cannot begin: MAAS has it as {state}"),
            )
        })
    }

    pub(super) fn act_on_stage(&mut self, node: &NodeId, stage: Stage, undo: bool, at: Timestamp) {
        let node = Some(node.clone());
        if undo {
            return self.undo_stage(&node, stage);
        }
        let managed = &mut self.managed;
        match stage {
            Stage::CreateOrFindInMaas if managed.state == Upstream::Absent => {
                managed.state = Upstream::New;
                managed.created_for = node;
            }
            Stage::CommissionNode if !managed.known() => {
                managed.state = Upstream::Commissioning;
            }
            Stage::WaitForReady if !managed.known() => managed.state = Upstream::Ready,
            Stage::ConfigureStorage | Stage::ApplyRocePhase2 => managed.configured = true,
            Stage::DeployViaMaas if !managed.installed() => {
                managed.state = Upstream::Deploying;
                managed.deployed_for = node;
                managed.hardware_sync = true;
            }
            Stage::WaitForDeployed if managed.state == Upstream::Deploying => {
                managed.state = Upstream::Deployed;
                self.image = DEPLOYED_IMAGE.into();
                self.boot(at);
            }
            Stage::WaitForAgentEnrollment => {
                managed.enrolled = true;
                managed.used = true;
            }
            Stage::ForceReleaseAllocations | Stage::DrainNode => self.node.pods = 0,
            Stage::CleanupStorage | Stage::ScrubGpu => managed.used = false,
            Stage::ReleaseMaasNode if managed.state != Upstream::Absent => managed.let_go(),
            Stage::PowerOffMaasNode => self.power = Power::Off,
            Stage::RemoveGpuaasNodeRecord => managed.enrolled = false,
            Stage::RemoveMaasRecord => *managed = Managed::default(),
            // The goal holds already, or the stage does not change the machine.
            Stage::LoadSiteConfig
            | Stage::ResolvePowerCredentials
            | Stage::CreateOrFindInMaas
            | Stage::CommissionNode
            | Stage::WaitForReady
            | Stage::EnsurePxeInterfaceAuto
            | Stage::RenderCloudInit
            | Stage::DeployViaMaas
            | Stage::WaitForDeployed
            | Stage::ClassifyDeployFailure
            | Stage::RecoverForDatasourceRetry
            | Stage::EnsureHardwareSyncConfigured
            | Stage::WaitForHardwareSyncHealthy
            | Stage::DisableNode
            | Stage::ValidateCleanNode
            | Stage::ReleaseMaasNode
            | Stage::RetireGpuaasNode
            | Stage::CleanupSecrets => {}
        }
    }

    /// Undoes the changes that a stage made for this node.
    fn undo_stage(&mut self, node: &Option<NodeId>, stage: Stage) {
        let managed = &mut self.managed;
        if stage == Stage::CreateOrFindInMaas && managed.created_for == *node {
            *managed = Managed::default();
        } else if stage == Stage::CommissionNode && managed.state == Upstream::Commissioning {
            managed.state = Upstream::New;
        } else if stage == Stage::DeployViaMaas && managed.deployed_for == *node {
            managed.let_go();
        }
    }

    /// Whether the goal of a stage holds now; otherwise what is observed.
    pub(super) fn look_at_stage(
        &self,
        node: &NodeId,
        stage: Stage,
        undo: bool,
    ) -> Result<Outcome, String> {
        let managed = &self.managed;
        let state = managed.state;
        let node = Some(node.clone());
        let holds = match (stage, undo) {
            (Stage::CreateOrFindInMaas, true) => managed.created_for != node,
            (Stage::CommissionNode, true) => state != Upstream::Commissioning,
            (Stage::DeployViaMaas, true) => managed.deployed_for != node,
            (_, true) => true,
            (Stage::CreateOrFindInMaas, false) => state != Upstream::Absent,
            (Stage::CommissionNode, false) => managed.known() || state == Upstream::Commissioning,
            (Stage::WaitForReady, false) => managed.known(),
            (Stage::ConfigureStorage | Stage::ApplyRocePhase2, false) => {
                managed.configured || managed.installed()
            }
            (Stage::DeployViaMaas, false) => managed.installed(),
            (Stage::WaitForDeployed, false) => state == Upstream::Deployed,
            (Stage::EnsureHardwareSyncConfigured | Stage::WaitForHardwareSyncHealthy, false) => {
                managed.hardware_sync && state == Upstream::Deployed
            }
            (Stage::WaitForAgentEnrollment, false) => managed.enrolled,
            (Stage::ForceReleaseAllocations | Stage::DrainNode, false) => self.node.pods == 0,
            (Stage::CleanupStorage | Stage::ScrubGpu | Stage::ValidateCleanNode, false) => {
                !managed.used
            }
            (Stage::ReleaseMaasNode, false) => !managed.installed(),
            (Stage::PowerOffMaasNode, false) => self.power == Power::Off,
            (Stage::RemoveGpuaasNodeRecord, false) => !managed.enrolled,
            (Stage::RemoveMaasRecord, false) => state == Upstream::Absent,
            (
                Stage::LoadSiteConfig
                | Stage::ResolvePowerCredentials
                | Stage::EnsurePxeInterfaceAuto
                | Stage::RenderCloudInit
                | Stage::ClassifyDeployFailure
                | Stage::RecoverForDatasourceRetry
                | Stage::DisableNode
                | Stage::RetireGpuaasNode
                | Stage::CleanupSecrets,
                false,
            ) => true,
        };
        let said = match stage {
            Stage::ValidateCleanNode if !holds => "something of its users is still there".into(),
            stage => format!("{stage}: MAAS has the machine as {state}"),
        };
        if holds { Ok(outcome(said, None)) } else { Err(said) }
    }

    /// Reads back the result of a stage.
    pub(super) fn read_back_stage(
        &self,
        machine: &MachineId,
        effect: &Effect,
        at: Timestamp,
    ) -> Result<Outcome, Fault> {
        let Effect::Stage { stage, node, undo, .. } = effect else {
            return Err(Fault::new(Code::ProtocolBroken, "it is no stage"));
        };
        let code = match *stage == Stage::ValidateCleanNode {
            true => Code::NodeNotClean,
            false => Code::ReadBackDiffers,
        };
        let seen =
            self.look_at_stage(node, *stage, *undo).map_err(|said| Fault::new(code, said))?;
        let system_id = match self.managed.state == Upstream::Absent {
            true => String::new(),
            false => system_id(machine),
        };
        let maas = Some(Box::new(MaasFacts { system_id, upstream: self.upstream(at) }));
        Ok(Outcome { facts: Some(Facts { maas, ..Facts::default() }), ..seen })
    }

    /// The upstream state of the machine.
    pub(super) fn upstream(&self, at: Timestamp) -> UpstreamSeen {
        let on = Some(self.power == Power::On);
        UpstreamSeen { state: self.managed.state, said: String::new(), on, at }
    }

    /// Whether its agent sends heartbeats.
    pub(super) fn is_heard(&self) -> bool {
        self.managed.enrolled && self.power == Power::On
    }
}
