//! Reinstalls a machine. One round releases, allocates, installs and waits. Each phase is recorded
//! before it starts, so after a crash the round continues and no round runs twice.
//!
//! A node with a datasource failure gets `datasource_retries` rounds; another machine gets one.

use super::annotations::{self, AnnotationOwner};
use super::checkpoint::{OrderCheckpoint, ReinstallPhase, checkpoint_mismatch};
use super::executor::{
    CallContext, MaasOwner, StageExecutor, describe_state, done, state_disagrees,
};
use super::failure::FailureCause;
use super::release_decision::{ReleaseProgress, ReleaseStep, next_release_step};
use super::{deploy, release};
use crate::clock::now;
use crate::fault::possibly_happened;
use crate::maas::{DeployRequest, Machine, Status};
use model::effect::{CallResult, CallVerb, ProviderAnswer};
use model::fault::{Fault, FaultCode, Result};
use model::id::NodeId;

/// A round takes at most this many steps; each step advances it or waits for MAAS.
const MAX_ROUND_STEPS: usize = 16;
pub(super) const FIRST_CHECKPOINT: OrderCheckpoint = OrderCheckpoint::Reinstall {
    round: 1,
    phase: ReinstallPhase::Releasing(ReleaseProgress::Begun),
};

/// The machine to reinstall.
pub(super) struct ReinstallRequest<'a> {
    pub system_id: &'a str,
    pub node: Option<&'a NodeId>,
    pub source: InstallSource<'a>,
}

/// The result of a round.
pub(super) struct RoundResult {
    pub machine: Machine,
    /// The last checkpoint.
    pub phase: ReinstallPhase,
    pub installed: bool,
}

/// The image to install.
pub(super) enum InstallSource<'a> {
    /// The image of the node's site.
    Node(&'a StageExecutor<'a>),
    Image(&'a DeployRequest),
}

impl InstallSource<'_> {
    /// Prepares the machine and returns the deploy request.
    async fn prepare(&self, machine: &Machine) -> Result<DeployRequest> {
        match self {
            Self::Image(deploy) => Ok((*deploy).clone()),
            Self::Node(work) => {
                work.fix_boot_interface(machine).await?;
                work.deploy_request().await
            }
        }
    }
}

/// The next step of the installing phase.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ReinstallStep {
    Install,
    Wait,
    Done,
    Failed,
    Disagree,
}

/// An unmarked allocation of our user counts as ours: its answer may have been lost.
fn next_step(status: Status, whose: &AnnotationOwner, owner: &MaasOwner) -> ReinstallStep {
    let of_this_run = *whose == AnnotationOwner::ThisRun;
    match status {
        Status::Ready => ReinstallStep::Install,
        Status::Allocated if of_this_run => ReinstallStep::Install,
        Status::Allocated
            if *whose == AnnotationOwner::Unmarked && *owner == MaasOwner::Farrier =>
        {
            ReinstallStep::Install
        }
        Status::Deploying if of_this_run => ReinstallStep::Wait,
        Status::Deployed if of_this_run => ReinstallStep::Done,
        Status::FailedDeployment if of_this_run => ReinstallStep::Failed,
        Status::Allocated
        | Status::Deploying
        | Status::Deployed
        | Status::FailedDeployment
        | Status::New
        | Status::Commissioning
        | Status::FailedCommissioning
        | Status::Missing
        | Status::Reserved
        | Status::Retired
        | Status::Broken
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
        | Status::Unknown(_) => ReinstallStep::Disagree,
    }
}

impl CallContext<'_> {
    /// Runs one round from its present phase.
    pub async fn run_round(
        &self,
        restarted: &ReinstallRequest<'_>,
        (round, mut phase): (u32, ReinstallPhase),
    ) -> Result<RoundResult> {
        let id = restarted.system_id;
        let checkpoint = |phase| OrderCheckpoint::Reinstall { round, phase };
        for _ in 0..MAX_ROUND_STEPS {
            let machine = self.maas().machine(id).await?;
            match phase {
                ReinstallPhase::Releasing(letting) => {
                    let after = self.next_release_phase(restarted, &machine, letting).await?;
                    let (old, new) = (checkpoint(phase), checkpoint(after));
                    self.checkpoints().compare_and_swap(&old, &new).await?;
                    if let ReinstallPhase::Releasing(_) = after {
                        self.release_and_wait(&machine).await?;
                    }
                    phase = after;
                }
                ReinstallPhase::Installing { .. } => {
                    let whose = self.annotation_owner(&machine, restarted.node).await?;
                    let owner = self.maas_owner(&machine).await?;
                    match next_step(machine.status, &whose, &owner) {
                        ReinstallStep::Install => {
                            let deploy = restarted.source.prepare(&machine).await?;
                            let after = ReinstallPhase::Installing { requested_at: Some(now()) };
                            let (old, new) = (checkpoint(phase), checkpoint(after));
                            self.checkpoints().compare_and_swap(&old, &new).await?;
                            phase = after;
                            self.install(&machine, restarted.node, &deploy).await?;
                        }
                        ReinstallStep::Wait => {
                            self.wait_until(id, deploy::install_result).await?;
                        }
                        ReinstallStep::Done => {
                            return Ok(RoundResult { machine, phase, installed: true });
                        }
                        ReinstallStep::Failed => {
                            return Ok(RoundResult { machine, phase, installed: false });
                        }
                        ReinstallStep::Disagree => {
                            return Err(state_disagrees(
                                &machine,
                                "another client changed it meanwhile",
                            ));
                        }
                    }
                }
            }
        }
        let message = format!("{id} comes to no end: it changes all the time");
        Err(Fault::new(FaultCode::ReadBackDiffers, message))
    }

    /// The next phase of the release. The caller records it before the request.
    async fn next_release_phase(
        &self,
        restarted: &ReinstallRequest<'_>,
        machine: &Machine,
        letting: ReleaseProgress,
    ) -> Result<ReinstallPhase> {
        if let AnnotationOwner::OtherNode(node) =
            self.annotation_owner(machine, restarted.node).await?
        {
            let instead = format!("it is {node}'s: decommission that first");
            return Err(state_disagrees(machine, &instead));
        }
        match next_release_step(
            machine,
            letting,
            annotations::is_marked_for_release(machine, self.key()),
        ) {
            ReleaseStep::Released if machine.status == Status::Ready => {
                Ok(ReinstallPhase::Installing { requested_at: None })
            }
            ReleaseStep::Released => {
                Err(state_disagrees(machine, "commission it in MAAS, then retry"))
            }
            ReleaseStep::Wait => Ok(ReinstallPhase::Releasing(letting)),
            ReleaseStep::Request => {
                // A machine that is not a node may be reinstalled under any MAAS owner.
                if let Some(node) = restarted.node {
                    self.check_may_release(machine, node).await?;
                }
                let marked = self.mark_for_release(machine).await?;
                Ok(ReinstallPhase::Releasing(ReleaseProgress::Requested { marked, at: now() }))
            }
            ReleaseStep::Unknown(message) => Err(Fault::new(FaultCode::OutcomeUnknown, message)),
            ReleaseStep::Fail(fault) => Err(fault),
        }
    }

    async fn release_and_wait(&self, machine: &Machine) -> Result<()> {
        if !matches!(machine.status, Status::Releasing | Status::DiskErasing) {
            self.request_release(machine, None).await?;
        }
        self.wait_until(&machine.system_id, release::release_result).await.map(drop)
    }

    /// The status of a round after a takeover.
    pub fn round_status(
        &self,
        machine: &Machine,
        checkpoint: &OrderCheckpoint,
        node: Option<&NodeId>,
    ) -> ProviderAnswer {
        let OrderCheckpoint::Reinstall { phase, .. } = checkpoint else {
            return ProviderAnswer::UnderWay;
        };
        let ours = annotations::annotation_owner(machine, self.key().run(), node)
            == AnnotationOwner::ThisRun;
        match phase {
            ReinstallPhase::Installing { .. } if ours && machine.status == Status::Deployed => {
                done(machine, describe_state(machine))
            }
            ReinstallPhase::Installing { .. } => ProviderAnswer::UnderWay,
            ReinstallPhase::Releasing(letting) => {
                let there = annotations::is_marked_for_release(machine, self.key());
                match next_release_step(machine, *letting, there) {
                    ReleaseStep::Unknown(message) => ProviderAnswer::Unknown(message),
                    ReleaseStep::Released
                    | ReleaseStep::Wait
                    | ReleaseStep::Request
                    | ReleaseStep::Fail(_) => ProviderAnswer::UnderWay,
                }
            }
        }
    }

    /// Stops a round: an installation is aborted; a release cannot be.
    pub async fn stop_round(&self, machine: Option<Machine>, node: Option<&NodeId>) -> CallResult {
        let Some(checkpoint) = self.checkpoints().stop().await? else {
            return Ok(ProviderAnswer::Stopped);
        };
        if let (OrderCheckpoint::Reinstall { phase, .. }, Some(machine)) = (&checkpoint, &machine) {
            let ours = annotations::annotation_owner(machine, self.key().run(), node)
                == AnnotationOwner::ThisRun;
            let status = machine.status;
            match phase {
                ReinstallPhase::Releasing(_)
                    if matches!(status, Status::Releasing | Status::DiskErasing) =>
                {
                    return Ok(ProviderAnswer::UnderWay);
                }
                // It is released, and nothing else was requested.
                ReinstallPhase::Releasing(_) if status == Status::Ready => {}
                ReinstallPhase::Installing { .. } if ours && status == Status::Deployed => {
                    return Ok(done(machine, describe_state(machine)));
                }
                ReinstallPhase::Installing { .. } if ours && status == Status::Deploying => {
                    self.maas().abort(&machine.system_id, self.key().as_str()).await?;
                }
                ReinstallPhase::Releasing(_) | ReinstallPhase::Installing { .. } => {
                    if self.is_in_flight(&checkpoint) {
                        return Ok(ProviderAnswer::UnderWay);
                    }
                }
            }
        }
        self.checkpoints().compare_and_swap(&checkpoint, &OrderCheckpoint::Stopped).await?;
        Ok(ProviderAnswer::Stopped)
    }
}

impl StageExecutor<'_> {
    pub async fn recover(&self) -> CallResult {
        let notes = self.call.checkpoints();
        match self.call.verb() {
            CallVerb::Perform => match notes.recall().await? {
                Some(checkpoint) => self.run_rounds(checkpoint).await.map_err(possibly_happened),
                None => self.begin_rounds().await,
            },
            CallVerb::Follow => match notes.recall().await? {
                Some(checkpoint) => self.run_rounds(checkpoint).await.map_err(possibly_happened),
                None => Ok(ProviderAnswer::NeverStarted),
            },
            CallVerb::GetStatus => match (notes.recall().await?, self.try_locate().await?) {
                (None, _) => Ok(ProviderAnswer::NeverStarted),
                (Some(_), None) => Ok(ProviderAnswer::UnderWay),
                (Some(checkpoint), Some(machine)) => {
                    Ok(self.call.round_status(&machine, &checkpoint, Some(&self.node.id())))
                }
            },
            CallVerb::Observe => {
                let machine = self.locate().await?;
                Ok(match machine.status == Status::Deployed {
                    true => done(&machine, describe_state(&machine)),
                    false => ProviderAnswer::Differs(describe_state(&machine)),
                })
            }
            CallVerb::Stop => {
                let machine = self.try_locate().await?;
                self.call.stop_round(machine, Some(&self.node.id())).await
            }
        }
    }

    async fn begin_rounds(&self) -> CallResult {
        let machine = self.locate().await?;
        if machine.status == Status::Deployed {
            return Ok(done(&machine, "it is installed: nothing to recover"));
        }
        if machine.status != Status::FailedDeployment {
            return Err(state_disagrees(&machine, "it is neither installed nor has that failed"));
        }
        match self.call.annotation_owner(&machine, Some(&self.node.id())).await? {
            AnnotationOwner::ThisRun | AnnotationOwner::ThisNode => {}
            AnnotationOwner::OtherNode(_) | AnnotationOwner::Unmarked => {
                let instead = "another client has installed it: release it in MAAS";
                return Err(state_disagrees(&machine, instead));
            }
        }
        if self.site.spec.datasource_retries == 0 {
            let message =
                format!("{}, and site.spec.datasource_retries is 0", describe_state(&machine));
            return Err(Fault::new(FaultCode::DatasourceFailed, message));
        }
        let checkpoint = self.call.checkpoints().begin(FIRST_CHECKPOINT).await?;
        self.run_rounds(checkpoint).await.map_err(possibly_happened)
    }

    async fn run_rounds(&self, checkpoint: OrderCheckpoint) -> CallResult {
        let OrderCheckpoint::Reinstall { round, mut phase } = checkpoint else {
            return Err(checkpoint_mismatch());
        };
        let machine = self.locate().await?;
        let (id, node) = (machine.system_id, self.node.id());
        let restarted = ReinstallRequest {
            system_id: &id,
            node: Some(&node),
            source: InstallSource::Node(self),
        };
        let most = self.site.spec.datasource_retries.max(round);
        for round in round..=most {
            self.call
                .journal
                .write_line(format!("maas: {id} is installed anew, {round} of {most}"))
                .await;
            let RoundResult { machine, phase: ended, installed } =
                self.call.run_round(&restarted, (round, phase)).await?;
            if installed {
                self.first_sync(&machine).await?;
                return Ok(done(
                    &machine,
                    format!("{}, installed anew {round} of {most} times", describe_state(&machine)),
                ));
            }
            let line = match self.failure_cause(&machine).await? {
                FailureCause::Datasource(line) => line,
                FailureCause::Other(line) => {
                    let message = format!("{}: {line}", describe_state(&machine));
                    return Err(Fault::new(FaultCode::DeployFailed, message));
                }
            };
            if round == most {
                let message =
                    format!("{} after {most} more rounds: {line}", describe_state(&machine));
                return Err(Fault::new(FaultCode::DatasourceFailed, message));
            }
            let again = ReinstallPhase::Releasing(ReleaseProgress::Begun);
            let before = OrderCheckpoint::Reinstall { round, phase: ended };
            let after = OrderCheckpoint::Reinstall { round: round + 1, phase: again };
            self.call.checkpoints().compare_and_swap(&before, &after).await?;
            phase = again;
        }
        Err(Fault::new(FaultCode::DatasourceFailed, format!("{id} was not installed")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_installation_is_continued() {
        let row = |whose: &AnnotationOwner, owner: &MaasOwner| -> String {
            let letter = |status: &Status| match next_step(*status, whose, owner) {
                ReinstallStep::Install => 'i',
                ReinstallStep::Wait => 'w',
                ReinstallStep::Done => 'd',
                ReinstallStep::Failed => 'f',
                ReinstallStep::Disagree => '-',
            };
            Status::ALL.iter().map(letter).collect()
        };
        let other = MaasOwner::Other("eve".into());
        for (whose, owner, expected) in [
            (AnnotationOwner::ThisRun, &MaasOwner::Farrier, "----i-d--wif-----------"),
            (AnnotationOwner::Unmarked, &MaasOwner::Farrier, "----i-----i------------"),
            (AnnotationOwner::Unmarked, &other, "----i------------------"),
            (AnnotationOwner::ThisNode, &MaasOwner::Farrier, "----i------------------"),
            (
                AnnotationOwner::OtherNode(NodeId::trusted("node-2")),
                &MaasOwner::Farrier,
                "----i------------------",
            ),
        ] {
            assert_eq!(row(&whose, owner), expected, "{whose:?} {owner:?}");
        }
    }
}
