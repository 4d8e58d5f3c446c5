//! Which stages have nothing to do: what MAAS has already is adopted, not done again, and an agent is asked for nothing that it cannot do.

use super::follow::mode;
use super::{Mode, NodeState, Stage, Upstream, WITHOUT_AGENT};
use crate::effect::Effect;
use crate::run::Run;

/// Why a stage has nothing to do on a node in this state whose machine MAAS has so; none when it has.
pub fn adopts(stage: Stage, state: NodeState, upstream: Upstream) -> Option<String> {
    let installed = matches!(upstream, Upstream::Deploying | Upstream::Deployed);
    let known = installed || matches!(upstream, Upstream::Ready | Upstream::Allocated);
    let emptied = matches!(state, NodeState::Retired | NodeState::Removing);
    let has = match stage {
        Stage::CreateOrFindInMaas => !matches!(upstream, Upstream::Absent | Upstream::Unknown),
        Stage::CommissionNode => known || upstream == Upstream::Commissioning,
        Stage::WaitForReady => known,
        // What is installed keeps the layout that it was installed with.
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

/// What is known of a node when its agent would be asked for something.
#[derive(Debug, Clone, Copy)]
pub struct AgentAsked<'a> {
    pub run: &'a Run,
    pub state: NodeState,
    pub has_agent: bool,
    /// The run has given its disk back to MAAS by then.
    pub released: bool,
}

impl AgentAsked<'_> {
    /// Why there is nothing for the agent to do in a stage; none when it is asked. What MAAS was last seen to say is no reason: an
    /// agent that is there is asked.
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
        // Whoever stops the work of a cluster behind its back only has it placed anew.
        if stage == Stage::ForceReleaseAllocations && drained_by_cluster(self.run) {
            return Some("its cluster moves its work away".into());
        }
        // Its session is revoked when its disk is given back; before it enrolls there is none.
        let missed = self.has_agent || is_missed(stage, self.run);
        (!missed).then(|| format!("no agent is enrolled: {kind} has nothing to do"))
    }
}

fn drained_by_cluster(run: &Run) -> bool {
    run.spec.steps.iter().any(|step| matches!(step.effect, Effect::Drain { .. }))
}

/// Whether nobody but the agent can make sure of what this stage is there for: what stays installed serves again, and must be clean.
fn is_missed(stage: Stage, run: &Run) -> bool {
    let cleaning =
        matches!(stage, Stage::CleanupStorage | Stage::ScrubGpu | Stage::ValidateCleanNode);
    cleaning && mode(run).is_some_and(Mode::keeps_system)
}
