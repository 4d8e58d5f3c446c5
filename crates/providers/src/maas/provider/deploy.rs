//! Starts the installation of a node through MAAS; the next stage waits for it.
//!
//! The annotation on the machine tells our deployment from others. One of this run counts as
//! started; one from before the run is adopted; any other is left alone.

use super::annotations::{self, AnnotationOwner};
use super::checkpoint::{OrderCheckpoint, checkpoint_mismatch};
use super::executor::{
    MaasOwner, StageExecutor, describe_state, done, state_disagrees, upstream_state,
};
use crate::clock::now;
use crate::maas::{DeployRequest, Machine, Status};
use model::effect::{CallResult, CallVerb, ProviderAnswer};
use model::fault::{Fault, FaultCode, Result};
use model::node::{MaasState, NodeStage, NodeState, adoption_reason};

#[derive(Debug, Clone, PartialEq, Eq)]
enum DeployStep {
    /// This run started it.
    Begun,
    /// MAAS had it deployed before the run.
    Adopt(String),
    Install,
    Disagree(String),
}

/// `before` is the state when this run first read the machine, `owner` its present MAAS user.
fn next_step(
    upstream: MaasState,
    whose: &AnnotationOwner,
    before: MaasState,
    owner: &MaasOwner,
) -> DeployStep {
    let no = |why: &str| DeployStep::Disagree(why.to_owned());
    match (upstream, whose) {
        (MaasState::Ready, _) => DeployStep::Install,
        (
            MaasState::Deploying | MaasState::Deployed | MaasState::FailedDeployment,
            AnnotationOwner::ThisRun,
        ) => DeployStep::Begun,
        (
            MaasState::Allocated
            | MaasState::Deploying
            | MaasState::Deployed
            | MaasState::FailedDeployment,
            AnnotationOwner::OtherNode(node),
        ) => DeployStep::Disagree(format!("it is {node}'s: decommission that first")),
        (
            MaasState::Deploying | MaasState::Deployed,
            AnnotationOwner::ThisNode | AnnotationOwner::Unmarked,
        ) => match adoption_reason(NodeStage::DeployViaMaas, NodeState::Enrolling, before) {
            Some(_) => {
                DeployStep::Adopt(format!("MAAS has the machine as {upstream}, and had before"))
            }
            None => no("another client has deployed it since this operation began"),
        },
        (MaasState::FailedDeployment, AnnotationOwner::ThisNode | AnnotationOwner::Unmarked) => {
            no("`farrier operation restart-clean` releases it first")
        }
        (MaasState::Allocated, AnnotationOwner::ThisRun | AnnotationOwner::ThisNode) => {
            DeployStep::Install
        }
        (MaasState::Allocated, AnnotationOwner::Unmarked) => match owner {
            MaasOwner::Farrier if before != MaasState::Allocated => DeployStep::Install,
            MaasOwner::Farrier => {
                no("it was allocated before, and no mark says for what: release it in MAAS")
            }
            MaasOwner::Unowned => no("it has no owner: release it in MAAS"),
            MaasOwner::Other(owner) => {
                DeployStep::Disagree(format!("{owner} has allocated it: release it in MAAS"))
            }
        },
        (
            MaasState::New
            | MaasState::Commissioning
            | MaasState::FailedCommissioning
            | MaasState::Missing
            | MaasState::Reserved
            | MaasState::Retired
            | MaasState::Broken
            | MaasState::Releasing
            | MaasState::FailedReleasing
            | MaasState::DiskErasing
            | MaasState::FailedDiskErasing
            | MaasState::RescueMode
            | MaasState::EnteringRescueMode
            | MaasState::FailedEnteringRescueMode
            | MaasState::ExitingRescueMode
            | MaasState::FailedExitingRescueMode
            | MaasState::Testing
            | MaasState::FailedTesting
            | MaasState::Unknown
            | MaasState::Absent,
            _,
        ) => no("it is installed from Ready"),
    }
}

impl StageExecutor<'_> {
    pub async fn deploy(&self) -> CallResult {
        let notes = self.call.checkpoints();
        match self.call.verb() {
            CallVerb::Perform => {
                let machine = self.locate().await?;
                let before = self.call.first_observed().await?.unwrap_or(MaasState::Unknown);
                self.call.record_first_observed(before).await?;
                let checkpoint =
                    notes.begin(OrderCheckpoint::Deploy { requested_at: None }).await?;
                self.deploy_now(machine, checkpoint).await
            }
            CallVerb::Follow => match notes.recall().await? {
                None => Ok(ProviderAnswer::NeverStarted),
                Some(checkpoint) => self.deploy_now(self.locate().await?, checkpoint).await,
            },
            CallVerb::GetStatus => match notes.recall().await? {
                None => Ok(ProviderAnswer::NeverStarted),
                Some(_) => self.deploy_status().await,
            },
            CallVerb::Observe => {
                let machine = self.locate().await?;
                Ok(match adoption_reason(self.stage, self.node.state, upstream_state(&machine)) {
                    Some(why) => done(&machine, why),
                    None => ProviderAnswer::Differs(describe_state(&machine)),
                })
            }
            CallVerb::Stop => self.stop_deploying().await,
        }
    }

    /// The status of a recorded deployment: on the machine, or never started.
    async fn deploy_status(&self) -> CallResult {
        let machine = match self.locate().await {
            // The next follow reports that it is gone.
            Err(fault) if fault.code == FaultCode::MaasMachineGone => {
                return Ok(ProviderAnswer::UnderWay);
            }
            other => other?,
        };
        let begun = has_begun(&machine);
        Ok(match begun && self.annotation_owner(&machine) == AnnotationOwner::ThisRun {
            true => done(&machine, describe_state(&machine)),
            false => ProviderAnswer::NeverStarted,
        })
    }

    pub(super) fn annotation_owner(&self, machine: &Machine) -> AnnotationOwner {
        annotations::annotation_owner(machine, self.call.key().run(), Some(&self.node.id()))
    }

    async fn deploy_now(&self, machine: Machine, checkpoint: OrderCheckpoint) -> CallResult {
        let OrderCheckpoint::Deploy { .. } = checkpoint else { return Err(checkpoint_mismatch()) };
        let whose = self.call.annotation_owner(&machine, Some(&self.node.id())).await?;
        let before = self.call.first_observed().await?.unwrap_or(MaasState::Unknown);
        let owner = self.call.maas_owner(&machine).await?;
        match next_step(upstream_state(&machine), &whose, before, &owner) {
            DeployStep::Begun => Ok(done(&machine, describe_state(&machine))),
            DeployStep::Adopt(why) => Ok(done(&machine, why)),
            DeployStep::Disagree(why) => Err(state_disagrees(&machine, &why)),
            DeployStep::Install => {
                super::executor::check_unlocked(&machine)?;
                let deploy = self.deploy_request().await?;
                let requested = OrderCheckpoint::Deploy { requested_at: Some(now()) };
                self.call.checkpoints().compare_and_swap(&checkpoint, &requested).await?;
                let now = self.call.install(&machine, Some(&self.node.id()), &deploy).await?;
                match has_begun(&now) {
                    true => Ok(done(&now, describe_state(&now))),
                    false => Err(Fault::new(FaultCode::ReadBackDiffers, describe_state(&now))),
                }
            }
        }
    }

    /// The image and the cloud-init of the node.
    pub async fn deploy_request(&self) -> Result<DeployRequest> {
        Ok(DeployRequest {
            image: Some(self.site.spec.image.clone()),
            hwe_kernel: Some(self.site.spec.hwe_kernel.clone()).filter(|name| !name.is_empty()),
            user_data: Some(self.cloud_init().await?),
            enable_hw_sync: true,
            comment: Some(self.call.key().to_string()),
        })
    }

    /// Aborts an installation that this key started. A finished one stays.
    async fn stop_deploying(&self) -> CallResult {
        let notes = self.call.checkpoints();
        let Some(checkpoint) = notes.stop().await? else {
            return Ok(ProviderAnswer::Stopped);
        };
        let machine = self.try_locate().await?;
        if let (OrderCheckpoint::Deploy { requested_at: Some(_) }, Some(machine)) =
            (&checkpoint, &machine)
        {
            let young = self.call.is_in_flight(&checkpoint);
            let of_this_run = self.annotation_owner(machine) == AnnotationOwner::ThisRun;
            if of_this_run && machine.status == Status::Deployed {
                return Ok(done(machine, describe_state(machine)));
            }
            if of_this_run && machine.status == Status::Deploying {
                self.call.maas().abort(&machine.system_id, self.call.key().as_str()).await?;
            }
            // The request may still reach MAAS.
            if young && matches!(machine.status, Status::Ready | Status::Allocated) {
                return Ok(ProviderAnswer::UnderWay);
            }
        }
        notes.compare_and_swap(&checkpoint, &OrderCheckpoint::Stopped).await?;
        Ok(ProviderAnswer::Stopped)
    }

    pub async fn wait_for_deployed(&self) -> CallResult {
        let is = |machine: &Machine| machine.status == Status::Deployed;
        match self.call.verb() {
            CallVerb::Stop => return Ok(ProviderAnswer::Stopped),
            CallVerb::Observe => return self.wait_status(is).await,
            CallVerb::GetStatus => {
                let failed = |machine: &Machine| machine.status == Status::FailedDeployment;
                return self.wait_status(|machine| is(machine) || failed(machine)).await;
            }
            CallVerb::Perform | CallVerb::Follow => {}
        }
        let id = self.locate().await?.system_id;
        let ended =
            |machine: &Machine| install_result(machine).map(|end| end.map(|_| machine.clone()));
        let machine = self.call.wait_until(&id, ended).await?;
        if machine.status == Status::Deployed {
            self.first_sync(&machine).await?;
        }
        Ok(done(&machine, describe_state(&machine)))
    }
}

/// True if an installation has begun; it may have ended since.
pub(super) fn has_begun(machine: &Machine) -> bool {
    matches!(machine.status, Status::Deploying | Status::Deployed | Status::FailedDeployment)
}

/// The result of the wait for an installation: true when installed, `None` while it continues.
pub(super) fn install_result(machine: &Machine) -> Option<Result<bool>> {
    match machine.status {
        Status::Deploying => None,
        Status::Deployed => Some(Ok(true)),
        Status::FailedDeployment => Some(Ok(false)),
        Status::New
        | Status::Commissioning
        | Status::FailedCommissioning
        | Status::Missing
        | Status::Ready
        | Status::Reserved
        | Status::Retired
        | Status::Broken
        | Status::Allocated
        | Status::Releasing
        | Status::FailedReleasing
        | Status::DiskErasing
        | Status::FailedDiskErasing
        | Status::RescueMode
        | Status::EnteringRescueMode
        | Status::FailedEnteringRescueMode
        | Status::ExitingRescueMode
        | Status::FailedExitingRescueMode
        | Status::Testing
        | Status::FailedTesting
        | Status::Unknown(_) => {
            Some(Err(state_disagrees(machine, "nothing installs it: it was aborted")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::id::NodeId;

    #[test]
    fn every_state_has_a_step() {
        let other = AnnotationOwner::OtherNode(NodeId::trusted("node-2"));
        let row = |whose: &AnnotationOwner, before, owner: &MaasOwner| -> String {
            let letter = |upstream: &MaasState| match next_step(*upstream, whose, before, owner) {
                DeployStep::Begun => 'b',
                DeployStep::Adopt(_) => 'a',
                DeployStep::Install => 'i',
                DeployStep::Disagree(_) => '-',
            };
            MaasState::ALL.iter().map(letter).collect()
        };
        let (us, them) = (MaasOwner::Farrier, MaasOwner::Other("eve".into()));
        for (whose, before, owner, expected) in [
            (AnnotationOwner::ThisRun, MaasState::Ready, &us, "----i-b--bib-------------"),
            (AnnotationOwner::ThisNode, MaasState::Ready, &us, "----i-----i--------------"),
            (AnnotationOwner::ThisNode, MaasState::Deployed, &us, "----i-a--ai--------------"),
            (AnnotationOwner::Unmarked, MaasState::Deployed, &them, "----i-a--a---------------"),
            (AnnotationOwner::Unmarked, MaasState::Unknown, &them, "----i--------------------"),
            (AnnotationOwner::Unmarked, MaasState::Ready, &us, "----i-----i--------------"),
            (AnnotationOwner::Unmarked, MaasState::Allocated, &us, "----i--------------------"),
            (other, MaasState::Deployed, &us, "----i--------------------"),
        ] {
            assert_eq!(row(&whose, before, owner), expected, "{whose:?} {before} {owner:?}");
        }
    }
}
