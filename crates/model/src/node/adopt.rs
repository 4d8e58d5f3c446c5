//! The stages that have nothing to do: work that MAAS has already done is adopted, and an agent
//! gets no task that it cannot do.

use super::follow::mode;
use super::{DecommissionMode, MaasState, NodeStage, NodeState};
use crate::effect::Effect;
use crate::gate::{Gate, Overrides};
use crate::run::Run;

/// The reason why a stage has nothing to do, given the state of the node and the MAAS state of its
/// machine; none when it has work.
pub fn adoption_reason(stage: NodeStage, state: NodeState, upstream: MaasState) -> Option<String> {
    let installed = matches!(upstream, MaasState::Deploying | MaasState::Deployed);
    let known = installed || matches!(upstream, MaasState::Ready | MaasState::Allocated);
    let emptied = matches!(state, NodeState::Retired | NodeState::Removing);
    let has = match stage {
        NodeStage::CreateOrFindInMaas => {
            !matches!(upstream, MaasState::Absent | MaasState::Unknown)
        }
        NodeStage::CommissionNode => known || upstream == MaasState::Commissioning,
        NodeStage::WaitForReady => known,
        // An installed system keeps the layout it was installed with.
        NodeStage::ConfigureStorage
        | NodeStage::ApplyRocePhase2
        | NodeStage::EnsurePxeInterfaceAuto
        | NodeStage::DeployViaMaas => installed,
        NodeStage::WaitForDeployed => upstream == MaasState::Deployed,
        NodeStage::DisableNode | NodeStage::DrainNode => {
            return emptied.then(|| format!("the node is {state}"));
        }
        NodeStage::ReleaseMaasNode => {
            matches!(upstream, MaasState::New | MaasState::Ready | MaasState::Absent)
        }
        NodeStage::RemoveMaasRecord | NodeStage::PowerOffMaasNode => upstream == MaasState::Absent,
        NodeStage::LoadSiteConfig
        | NodeStage::ResolvePowerCredentials
        | NodeStage::RenderCloudInit
        | NodeStage::ClassifyDeployFailure
        | NodeStage::RecoverForDatasourceRetry
        | NodeStage::EnsureHardwareSyncConfigured
        | NodeStage::WaitForHardwareSyncHealthy
        | NodeStage::WaitForAgentEnrollment
        | NodeStage::ForceReleaseAllocations
        | NodeStage::CleanupStorage
        | NodeStage::ScrubGpu
        | NodeStage::ValidateCleanNode
        | NodeStage::RetireGpuaasNode
        | NodeStage::RemoveGpuaasNodeRecord
        | NodeStage::CleanupSecrets => false,
    };
    has.then(|| format!("MAAS has the machine as {upstream}"))
}

/// The facts about a node that decide whether its agent gets a task.
#[derive(Debug, Clone, Copy)]
pub struct AgentTaskContext<'a> {
    pub run: &'a Run,
    pub state: NodeState,
    pub has_agent: bool,
    /// Its agent has sent a heartbeat lately.
    pub agent_answers: bool,
    /// The run has already released the machine to MAAS.
    pub released: bool,
}

impl AgentTaskContext<'_> {
    /// The reason why the agent has nothing to do in a stage; none when it gets the task. The last
    /// observed MAAS state is no reason: an enrolled agent gets its task.
    pub fn skip_reason(&self, stage: NodeStage) -> Option<String> {
        let kind = stage.task()?.as_str();
        let overrides = Overrides::of_params(&self.run.spec.params);
        if overrides.passes(Gate::Agent) {
            let why = overrides.reason();
            return Some(format!("{kind} is left out, as its agent is not waited for: {why}"));
        }
        if self.released {
            return Some(format!("it is given back to MAAS: {kind} has nothing to do"));
        }
        // The release erases the installation; an agent that is gone need not uninstall itself.
        let uninstalls = stage == NodeStage::RemoveGpuaasNodeRecord;
        if uninstalls && self.has_agent && !self.agent_answers && releases_machine(self.run) {
            return Some(format!("its agent is silent: {kind} is left out before the release"));
        }
        let emptying = matches!(stage, NodeStage::ForceReleaseAllocations | NodeStage::DrainNode);
        if emptying && self.state == NodeState::Retired {
            return Some("the node is retired, and empty".into());
        }
        // A cluster would only reschedule the pods that the agent stops without it.
        if stage == NodeStage::ForceReleaseAllocations && drained_by_cluster(self.run) {
            return Some("its cluster moves its work away".into());
        }
        // The agent's session is revoked when its machine is released, and does not exist before it
        // enrolls.
        let missed = self.has_agent || requires_agent(stage, self.run);
        (!missed).then(|| format!("no agent is enrolled: {kind} has nothing to do"))
    }
}

fn releases_machine(run: &Run) -> bool {
    run.spec.steps.iter().any(|step| step.name == NodeStage::ReleaseMaasNode.as_str())
}

fn drained_by_cluster(run: &Run) -> bool {
    run.spec.steps.iter().any(|step| matches!(step.effect, Effect::Drain { .. }))
}

/// True if only the agent can do this stage: a system that stays installed serves again, so it must
/// be clean.
fn requires_agent(stage: NodeStage, run: &Run) -> bool {
    let cleaning = matches!(
        stage,
        NodeStage::CleanupStorage | NodeStage::ScrubGpu | NodeStage::ValidateCleanNode
    );
    cleaning && mode(run).is_some_and(DecommissionMode::keeps_system)
}
