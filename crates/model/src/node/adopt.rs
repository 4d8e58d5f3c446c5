//! Which stages have nothing to do: what MAAS has done already is adopted, and an agent gets no
//! task that it cannot do.

use super::follow::mode;
use super::{Mode, NodeState, Stage, Upstream, WITHOUT_AGENT};
use crate::effect::Effect;
use crate::run::Run;

/// Why a stage has nothing to do, given the state of the node and the MAAS state of its machine;
/// none when it has work.
pub fn adopts(stage: Stage, state: NodeState, upstream: Upstream) -> Option<String> {
    let installed = matches!(upstream, Upstream::Deploying | Upstream::Deployed);
    let known = installed || matches!(upstream, Upstream::Ready | Upstream::Allocated);
    let emptied = matches!(state, NodeState::Retired | NodeState::Removing);
    let has = match stage {
        Stage::CreateOrFindInMaas => !matches!(upstream, Upstream::Absent | Upstream::Unknown),
        Stage::CommissionNode => known || upstream == Upstream::Commissioning,
        Stage::WaitForReady => known,
        // An installed system keeps the layout it was installed with.
        Stage::ConfigureStorage
        | Stage::ApplyRocePhase2
        | Stage::EnsurePxeInterfaceAuto
        | Stage::DeployViaMaas => installed,
        Stage::WaitForDeployed => upstream == Upstream::Deployed,
        Stage::DisableNode | Stage::DrainNode => {
            return emptied.then(|| format!("the node is {state}"));
        }
        Stage::ReleaseMaasNode => {
            matches!(upstream, Upstream::New | Upstream::Ready | Upstream::Absent)
        }
        Stage::RemoveMaasRecord | Stage::PowerOffMaasNode => upstream == Upstream::Absent,
        Stage::LoadSiteConfig
        | Stage::ResolvePowerCredentials
        | Stage::RenderCloudInit
        | Stage::ClassifyDeployFailure
        | Stage::RecoverForDatasourceRetry
        | Stage::EnsureHardwareSyncConfigured
        | Stage::WaitForHardwareSyncHealthy
        | Stage::WaitForAgentEnrollment
        | Stage::ForceReleaseAllocations
        | Stage::CleanupStorage
        | Stage::ScrubGpu
        | Stage::ValidateCleanNode
        | Stage::RetireGpuaasNode
        | Stage::RemoveGpuaasNodeRecord
        | Stage::CleanupSecrets => false,
    };
    has.then(|| format!("MAAS has the machine as {upstream}"))
}

/// The facts about a node that decide whether its agent gets a task.
#[derive(Debug, Clone, Copy)]
pub struct AgentAsked<'a> {
    pub run: &'a Run,
    pub state: NodeState,
    pub has_agent: bool,
    /// The run has already released the machine to MAAS.
    pub released: bool,
}

impl AgentAsked<'_> {
    /// Why the agent has nothing to do in a stage; none when it gets the task. The last observed
    /// MAAS state is no reason: an enrolled agent gets its task.
    pub fn needless(&self, stage: Stage) -> Option<String> {
        let kind = stage.task()?.as_str();
        if let Some(why) = self.run.spec.params.get(WITHOUT_AGENT) {
            return Some(format!("{kind} is left out, as its agent is not waited for: {why}"));
        }
        if self.released {
            return Some(format!("it is given back to MAAS: {kind} has nothing to do"));
        }
        let emptying = matches!(stage, Stage::ForceReleaseAllocations | Stage::DrainNode);
        if emptying && self.state == NodeState::Retired {
            return Some("the node is retired, and empty".into());
        }
        // Stopping a cluster's pods behind its back only makes it reschedule them.
        if stage == Stage::ForceReleaseAllocations && drained_by_cluster(self.run) {
            return Some("its cluster moves its work away".into());
        }
        // The agent's session is revoked when its machine is released, and does not exist before it
        // enrolls.
        let missed = self.has_agent || is_missed(stage, self.run);
        (!missed).then(|| format!("no agent is enrolled: {kind} has nothing to do"))
    }
}

fn drained_by_cluster(run: &Run) -> bool {
    run.spec.steps.iter().any(|step| matches!(step.effect, Effect::Drain { .. }))
}

/// True if only the agent can do this stage: a system that stays installed serves again, so it must
/// be clean.
fn is_missed(stage: Stage, run: &Run) -> bool {
    let cleaning =
        matches!(stage, Stage::CleanupStorage | Stage::ScrubGpu | Stage::ValidateCleanNode);
    cleaning && mode(run).is_some_and(Mode::keeps_system)
}
