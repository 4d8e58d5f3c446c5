//! Which stages have nothing to do: what MAAS has already is adopted, not done again.

use super::{NodeState, Stage, Upstream};

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
