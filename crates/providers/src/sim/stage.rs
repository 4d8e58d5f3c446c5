//! The machine in MAAS and its agent: what the stages of onboarding and decommission change.
//!
//! Only the machine's side of MAAS is simulated. The agent exists once the machine is enrolled, and
//! sends heartbeats while it is powered on.

use super::hardware::{Hardware, Power, outcome};
use model::condition::imaged;
use model::effect::{CallOutcome, DeviceFacts, Effect, MaasFacts};
use model::fault::{Fault, FaultCode, Result};
use model::id::{MachineId, NodeId};
use model::node::{MaasObservation, MaasState, NodeStage, StageExecutor, TaskKind};
use model::time::Timestamp;
use serde::{Deserialize, Serialize};

/// The image that MAAS deploys.
const DEPLOYED_IMAGE: &str = "ubuntu/jammy";

/// The records of MAAS and of the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SimulatedMaas {
    pub state: MaasState,
    /// The node for which the MAAS record was created, and the one for which it was deployed.
    pub created_for: Option<NodeId>,
    pub deployed_for: Option<NodeId>,
    pub configured: bool,
    pub hardware_sync: bool,
    pub enrolled: bool,
    /// True if data of its users is on it.
    pub used: bool,
}

impl Default for SimulatedMaas {
    fn default() -> Self {
        Self {
            state: MaasState::Absent,
            created_for: None,
            deployed_for: None,
            configured: false,
            hardware_sync: false,
            enrolled: false,
            used: false,
        }
    }
}

impl SimulatedMaas {
    const fn installed(&self) -> bool {
        matches!(self.state, MaasState::Deploying | MaasState::Deployed)
    }

    /// True if it is commissioned.
    const fn known(&self) -> bool {
        matches!(self.state, MaasState::Ready | MaasState::Allocated) || self.installed()
    }

    fn release(&mut self) {
        *self = Self {
            state: MaasState::Ready,
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
    /// The reason why a stage cannot start in the current state.
    pub(super) fn stage_refusal(&self, stage: NodeStage, undo: bool) -> Option<Fault> {
        let state = self.managed.state;
        let fits = match stage {
            _ if undo => true,
            NodeStage::CommissionNode | NodeStage::WaitForReady => state != MaasState::Absent,
            NodeStage::ConfigureStorage
            | NodeStage::ApplyRocePhase2
            | NodeStage::EnsurePxeInterfaceAuto
            | NodeStage::DeployViaMaas => self.managed.known(),
            NodeStage::WaitForDeployed
            | NodeStage::EnsureHardwareSyncConfigured
            | NodeStage::WaitForHardwareSyncHealthy => self.managed.installed(),
            NodeStage::LoadSiteConfig
            | NodeStage::ResolvePowerCredentials
            | NodeStage::CreateOrFindInMaas
            | NodeStage::RenderCloudInit
            | NodeStage::ClassifyDeployFailure
            | NodeStage::RecoverForDatasourceRetry
            | NodeStage::WaitForAgentEnrollment
            | NodeStage::DisableNode
            | NodeStage::ForceReleaseAllocations
            | NodeStage::DrainNode
            | NodeStage::CleanupStorage
            | NodeStage::ScrubGpu
            | NodeStage::ValidateCleanNode
            | NodeStage::ReleaseMaasNode
            | NodeStage::PowerOffMaasNode
            | NodeStage::RetireGpuaasNode
            | NodeStage::RemoveGpuaasNodeRecord
            | NodeStage::CleanupSecrets
            | NodeStage::RemoveMaasRecord => true,
        };
        let message = || format!("{stage} cannot begin: MAAS has it as {state}");
        (!fits).then(|| Fault::new(FaultCode::StateDisagrees, message()))
    }

    pub(super) fn apply_stage(
        &mut self,
        node: &NodeId,
        stage: NodeStage,
        undo: bool,
        at: Timestamp,
    ) {
        let node = Some(node.clone());
        if undo {
            return self.undo_stage(&node, stage);
        }
        let managed = &mut self.managed;
        match stage {
            NodeStage::CreateOrFindInMaas if managed.state == MaasState::Absent => {
                managed.state = MaasState::New;
                managed.created_for = node;
            }
            NodeStage::CommissionNode if !managed.known() => {
                managed.state = MaasState::Commissioning;
            }
            NodeStage::WaitForReady if !managed.known() => managed.state = MaasState::Ready,
            NodeStage::ConfigureStorage | NodeStage::ApplyRocePhase2 => managed.configured = true,
            NodeStage::DeployViaMaas if !managed.installed() => {
                managed.state = MaasState::Deploying;
                managed.deployed_for = node;
                managed.hardware_sync = true;
            }
            NodeStage::WaitForDeployed if managed.state == MaasState::Deploying => {
                managed.state = MaasState::Deployed;
                self.image = DEPLOYED_IMAGE.into();
                self.boot(at);
            }
            NodeStage::WaitForAgentEnrollment => {
                managed.enrolled = true;
                managed.used = true;
            }
            NodeStage::ForceReleaseAllocations | NodeStage::DrainNode => self.node.pods = 0,
            NodeStage::CleanupStorage | NodeStage::ScrubGpu => managed.used = false,
            NodeStage::ReleaseMaasNode if managed.state != MaasState::Absent => managed.release(),
            NodeStage::PowerOffMaasNode => self.power = Power::Off,
            NodeStage::RemoveGpuaasNodeRecord => managed.enrolled = false,
            NodeStage::RemoveMaasRecord => *managed = SimulatedMaas::default(),
            // The goal holds already, or the stage does not change the machine.
            NodeStage::LoadSiteConfig
            | NodeStage::ResolvePowerCredentials
            | NodeStage::CreateOrFindInMaas
            | NodeStage::CommissionNode
            | NodeStage::WaitForReady
            | NodeStage::EnsurePxeInterfaceAuto
            | NodeStage::RenderCloudInit
            | NodeStage::DeployViaMaas
            | NodeStage::WaitForDeployed
            | NodeStage::ClassifyDeployFailure
            | NodeStage::RecoverForDatasourceRetry
            | NodeStage::EnsureHardwareSyncConfigured
            | NodeStage::WaitForHardwareSyncHealthy
            | NodeStage::DisableNode
            | NodeStage::ValidateCleanNode
            | NodeStage::ReleaseMaasNode
            | NodeStage::RetireGpuaasNode
            | NodeStage::CleanupSecrets => {}
        }
    }

    /// Undoes the changes that a stage made for this node.
    fn undo_stage(&mut self, node: &Option<NodeId>, stage: NodeStage) {
        let managed = &mut self.managed;
        if stage == NodeStage::CreateOrFindInMaas && managed.created_for == *node {
            *managed = SimulatedMaas::default();
        } else if stage == NodeStage::CommissionNode && managed.state == MaasState::Commissioning {
            managed.state = MaasState::New;
        } else if stage == NodeStage::DeployViaMaas && managed.deployed_for == *node {
            managed.release();
        }
    }

    /// Checks that the goal of a stage holds now; the error says what is observed.
    pub(super) fn observe_stage(
        &self,
        node: &NodeId,
        stage: NodeStage,
        undo: bool,
    ) -> Result<CallOutcome, String> {
        let managed = &self.managed;
        let state = managed.state;
        let node = Some(node.clone());
        let holds = match (stage, undo) {
            (NodeStage::CreateOrFindInMaas, true) => managed.created_for != node,
            (NodeStage::CommissionNode, true) => state != MaasState::Commissioning,
            (NodeStage::DeployViaMaas, true) => managed.deployed_for != node,
            (_, true) => true,
            (NodeStage::CreateOrFindInMaas, false) => state != MaasState::Absent,
            (NodeStage::CommissionNode, false) => {
                managed.known() || state == MaasState::Commissioning
            }
            (NodeStage::WaitForReady, false) => managed.known(),
            (NodeStage::ConfigureStorage | NodeStage::ApplyRocePhase2, false) => {
                managed.configured || managed.installed()
            }
            (NodeStage::DeployViaMaas, false) => managed.installed(),
            (NodeStage::WaitForDeployed, false) => state == MaasState::Deployed,
            (
                NodeStage::EnsureHardwareSyncConfigured | NodeStage::WaitForHardwareSyncHealthy,
                false,
            ) => managed.hardware_sync && state == MaasState::Deployed,
            (NodeStage::WaitForAgentEnrollment, false) => managed.enrolled,
            (NodeStage::ForceReleaseAllocations | NodeStage::DrainNode, false) => {
                self.node.pods == 0
            }
            (
                NodeStage::CleanupStorage | NodeStage::ScrubGpu | NodeStage::ValidateCleanNode,
                false,
            ) => !managed.used,
            (NodeStage::ReleaseMaasNode, false) => !managed.installed(),
            (NodeStage::PowerOffMaasNode, false) => self.power == Power::Off,
            (NodeStage::RemoveGpuaasNodeRecord, false) => !managed.enrolled,
            (NodeStage::RemoveMaasRecord, false) => state == MaasState::Absent,
            (
                NodeStage::LoadSiteConfig
                | NodeStage::ResolvePowerCredentials
                | NodeStage::EnsurePxeInterfaceAuto
                | NodeStage::RenderCloudInit
                | NodeStage::ClassifyDeployFailure
                | NodeStage::RecoverForDatasourceRetry
                | NodeStage::DisableNode
                | NodeStage::RetireGpuaasNode
                | NodeStage::CleanupSecrets,
                false,
            ) => true,
        };
        let message = match (stage.executor(), holds) {
            (StageExecutor::Task(TaskKind::Validate), false) => {
                "something of its users is still there".into()
            }
            (StageExecutor::Maas, _) => format!("{stage}: MAAS has the machine as {state}"),
            (StageExecutor::Enrollment, true) => "its agent has enrolled".into(),
            (StageExecutor::Enrollment, false) => "its agent has not enrolled".into(),
            (StageExecutor::Task(task), true) => format!("its agent has done {}", task.as_str()),
            (StageExecutor::Task(task), false) => format!("{} is not done", task.as_str()),
            (StageExecutor::Record(_), _) => format!("{stage} is in Farrier's record"),
        };
        if holds { Ok(outcome(message, None)) } else { Err(message) }
    }

    /// Reads back the result of a stage.
    pub(super) fn read_back_stage(
        &self,
        machine: &MachineId,
        effect: &Effect,
        at: Timestamp,
    ) -> Result<CallOutcome> {
        let Effect::Stage { stage, node, undo, .. } = effect else {
            return Err(Fault::new(FaultCode::ProtocolBroken, "it is no stage"));
        };
        let code = match *stage == NodeStage::ValidateCleanNode {
            true => FaultCode::NodeNotClean,
            false => FaultCode::ReadBackDiffers,
        };
        let observed =
            self.observe_stage(node, *stage, *undo).map_err(|message| Fault::new(code, message))?;
        let system_id = match self.managed.state == MaasState::Absent {
            true => String::new(),
            false => system_id(machine),
        };
        let maas = Some(Box::new(MaasFacts { system_id, upstream: self.upstream(at) }));
        let disk = match self.managed.state == MaasState::Deployed {
            true => Some(imaged(&self.image)),
            false => stage.released(*undo, self.managed.state),
        };
        Ok(CallOutcome {
            evidence: disk.into_iter().collect(),
            facts: Some(DeviceFacts { maas, ..DeviceFacts::default() }),
            ..observed
        })
    }

    /// The upstream state of the machine.
    pub(super) fn upstream(&self, at: Timestamp) -> MaasObservation {
        let state = self.managed.state;
        // MAAS knows the power only of machines that it has.
        let powered_on = (state != MaasState::Absent).then_some(self.power == Power::On);
        MaasObservation { state, message: String::new(), powered_on, at }
    }

    /// True if its agent sends heartbeats.
    pub(super) fn has_heartbeat(&self) -> bool {
        self.managed.enrolled && self.power == Power::On
    }
}
