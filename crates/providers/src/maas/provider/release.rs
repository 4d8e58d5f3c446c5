//! The end of a node at MAAS: released, its disks erased if the site says so, and powered off.

use super::annotations;
use super::checkpoint::{OrderCheckpoint, checkpoint_mismatch};
use super::executor::{StageExecutor, check_unlocked, describe_state, done, state_disagrees};
use super::power::PowerExecutor;
use super::release_decision::{ReleaseProgress, ReleaseStep, next_release_step};
use crate::clock::now;
use crate::maas::{Machine, Status};
use crate::power::PowerGoal;
use model::effect::{CallResult, CallVerb, PowerOffPolicy, ProviderAnswer};
use model::fault::{Fault, FaultCode, Result};
use std::time::Duration;

/// The longest time between the start of an attempt and its request.
const MAX_REQUEST_DELAY: Duration = Duration::from_secs(60);

/// The result of the wait for a release; `None` while it continues.
pub(super) fn release_result(machine: &Machine) -> Option<Result<Machine>> {
    match machine.status {
        Status::Ready | Status::New => Some(Ok(machine.clone())),
        Status::Releasing | Status::DiskErasing => None,
        Status::FailedReleasing | Status::FailedDiskErasing => {
            Some(Err(Fault::new(FaultCode::EffectFailed, describe_state(machine))))
        }
        Status::Commissioning
        | Status::FailedCommissioning
        | Status::Missing
        | Status::Reserved
        | Status::Deployed
        | Status::Retired
        | Status::Broken
        | Status::Deploying
        | Status::Allocated
        | Status::FailedDeployment
        | Status::RescueMode
        | Status::EnteringRescueMode
        | Status::FailedEnteringRescueMode
        | Status::ExitingRescueMode
        | Status::FailedExitingRescueMode
        | Status::Testing
        | Status::FailedTesting
        | Status::Unknown(_) => {
            Some(Err(state_disagrees(machine, "it was asked to be let go, and is not on its way")))
        }
    }
}

impl StageExecutor<'_> {
    pub async fn release(&self) -> CallResult {
        let notes = self.call.checkpoints();
        let gone = || self.record_gone("MAAS has no record of it: nothing to release");
        match self.call.verb() {
            CallVerb::Perform => {
                let Some(machine) = self.try_locate().await? else { return Ok(gone()) };
                let first = OrderCheckpoint::Release { progress: ReleaseProgress::Begun };
                let checkpoint = notes.begin(first).await?;
                self.release_now(machine, checkpoint).await
            }
            verb @ (CallVerb::Follow | CallVerb::GetStatus) => {
                match (notes.recall().await?, self.try_locate().await?) {
                    (None, _) => Ok(ProviderAnswer::NeverStarted),
                    (Some(_), None) => Ok(gone()),
                    (Some(checkpoint), Some(machine)) if verb == CallVerb::Follow => {
                        self.release_now(machine, checkpoint).await
                    }
                    (Some(before), Some(machine)) => Ok(self.release_status(&machine, &before)),
                }
            }
            CallVerb::Observe => Ok(match self.try_locate().await? {
                None => gone(),
                Some(machine) => match next_release_step(&machine, ReleaseProgress::Begun, false) {
                    ReleaseStep::Released => done(&machine, describe_state(&machine)),
                    ReleaseStep::Wait
                    | ReleaseStep::Request
                    | ReleaseStep::Unknown(_)
                    | ReleaseStep::Fail(_) => ProviderAnswer::Differs(describe_state(&machine)),
                },
            }),
            CallVerb::Stop => self.stop_releasing().await,
        }
    }

    fn release_step(&self, machine: &Machine, checkpoint: &OrderCheckpoint) -> ReleaseStep {
        let OrderCheckpoint::Release { progress: letting } = checkpoint else {
            return ReleaseStep::Fail(checkpoint_mismatch());
        };
        next_release_step(
            machine,
            *letting,
            annotations::is_marked_for_release(machine, self.call.key()),
        )
    }

    fn release_status(&self, machine: &Machine, checkpoint: &OrderCheckpoint) -> ProviderAnswer {
        match self.release_step(machine, checkpoint) {
            ReleaseStep::Released => done(machine, describe_state(machine)),
            ReleaseStep::Unknown(message) => ProviderAnswer::Unknown(message),
            ReleaseStep::Wait | ReleaseStep::Request | ReleaseStep::Fail(_) => {
                ProviderAnswer::UnderWay
            }
        }
    }

    async fn release_now(&self, machine: Machine, checkpoint: OrderCheckpoint) -> CallResult {
        match self.release_step(&machine, &checkpoint) {
            ReleaseStep::Released => {
                return Ok(done(&machine, describe_state(&machine)));
            }
            ReleaseStep::Fail(fault) => return Err(fault),
            ReleaseStep::Unknown(message) => {
                return Err(Fault::new(FaultCode::OutcomeUnknown, message));
            }
            ReleaseStep::Wait => {}
            ReleaseStep::Request => {
                self.call.check_may_release(&machine, &self.node.id()).await?;
                let marked = self.call.mark_for_release(&machine).await?;
                let requested = OrderCheckpoint::Release {
                    progress: ReleaseProgress::Requested { marked, at: now() },
                };
                self.call.checkpoints().compare_and_swap(&checkpoint, &requested).await?;
                let spec = &self.site.spec;
                let erase = spec.erase_on_release.then_some(spec.erase_method);
                self.call.request_release(&machine, erase).await?;
            }
        }
        let machine = self.call.wait_until(&machine.system_id, release_result).await?;
        Ok(done(&machine, describe_state(&machine)))
    }

    /// Before the request the stop is final. A running release cannot be recalled; at its deadline
    /// the attempt ends and the next one continues to wait.
    async fn stop_releasing(&self) -> CallResult {
        let notes = self.call.checkpoints();
        let Some(checkpoint) = notes.stop().await? else {
            return Ok(ProviderAnswer::Stopped);
        };
        if checkpoint != (OrderCheckpoint::Release { progress: ReleaseProgress::Begun }) {
            match self.try_locate().await? {
                None => return Ok(self.record_gone("MAAS has no record of it")),
                Some(machine) => match self.release_step(&machine, &checkpoint) {
                    ReleaseStep::Released => {
                        return Ok(done(&machine, describe_state(&machine)));
                    }
                    ReleaseStep::Wait if self.is_past_deadline(&checkpoint) => {}
                    ReleaseStep::Wait => return Ok(ProviderAnswer::UnderWay),
                    ReleaseStep::Request | ReleaseStep::Unknown(_) | ReleaseStep::Fail(_) => {
                        if self.call.is_in_flight(&checkpoint) {
                            return Ok(ProviderAnswer::UnderWay);
                        }
                    }
                },
            }
        }
        notes.compare_and_swap(&checkpoint, &OrderCheckpoint::Stopped).await?;
        Ok(ProviderAnswer::Stopped)
    }

    /// True if the attempt's time limit has passed.
    fn is_past_deadline(&self, checkpoint: &OrderCheckpoint) -> bool {
        checkpoint
            .requested_at()
            .is_some_and(|at| now().since(at) + MAX_REQUEST_DELAY >= self.call.limit)
    }

    pub async fn power_off(&self) -> CallResult {
        let Some(machine) = self.try_locate().await? else {
            return Ok(match self.call.verb() {
                CallVerb::Stop => ProviderAnswer::Stopped,
                CallVerb::Perform | CallVerb::Follow | CallVerb::GetStatus | CallVerb::Observe => {
                    self.record_gone("MAAS has no record of it, so it cannot change its power")
                }
            });
        };
        let free = match self.call.check_may_power_off(&machine, &self.node.id()).await {
            Err(fault) if fault.code != FaultCode::StateDisagrees => return Err(fault),
            looked => looked,
        };
        match self.call.verb() {
            CallVerb::Perform => {
                free?;
                check_unlocked(&machine)?;
            }
            CallVerb::Follow => free?,
            // A machine that others use by now is left as it is.
            CallVerb::Stop if free.is_err() => return self.call.stop_idempotent().await,
            CallVerb::Stop | CallVerb::GetStatus | CallVerb::Observe => {}
        }
        // A released machine has no operating system to shut down.
        let power_off = PowerOffPolicy { graceful_seconds: Some(0), force: Some(true) };
        let switch = PowerExecutor { call: &self.call, system_id: &machine.system_id, power_off };
        switch.execute(PowerGoal::Off, &machine).await
    }
}
