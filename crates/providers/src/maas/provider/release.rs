//! The end of a node at MAAS: released, its disks erased if the site says so, and powered off.

use super::checkpoint::{OrderCheckpoint, Stopping, two_effects};
use super::hand::{Work, disagrees, done, has, unlocked};
use super::letting::{self, Letting};
use super::marks;
use super::power::Switch;
use crate::clock::now;
use crate::maas::{Machine, Status};
use crate::power::PowerGoal;
use model::effect::{Answer, PowerOffPolicy, Verb};
use model::fault::{Code, Fault};
use std::time::Duration;

/// The longest time between the start of an attempt and its request.
const LATE: Duration = Duration::from_secs(60);

/// The result of the wait for a release; `None` while it continues.
pub(super) fn let_go(machine: &Machine) -> Option<Result<Machine, Fault>> {
    match machine.status {
        Status::Ready | Status::New => Some(Ok(machine.clone())),
        Status::Releasing | Status::DiskErasing => None,
        Status::FailedReleasing | Status::FailedDiskErasing => {
            Some(Err(Fault::new(Code::EffectFailed, has(machine))))
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
            Some(Err(disagrees(machine, "it was asked to be let go, and is not on its way")))
        }
    }
}

impl Work<'_> {
    pub async fn release(&self) -> Result<Answer, Fault> {
        let notes = self.hand.notes();
        let gone = || self.gone("MAAS has no record of it: nothing to release");
        match self.hand.verb() {
            Verb::Perform => {
                let Some(machine) = self.there().await? else { return Ok(gone()) };
                let first = OrderCheckpoint::Release { letting: Letting::Begun };
                let memo = notes.begin(first).await?;
                self.release_now(machine, memo).await
            }
            Verb::Follow => match (notes.recall().await?, self.there().await?) {
                (None, _) => Ok(Answer::NeverStarted),
                (Some(_), None) => Ok(gone()),
                (Some(memo), Some(machine)) => self.release_now(machine, memo).await,
            },
            Verb::GetStatus => match (notes.recall().await?, self.there().await?) {
                (None, _) => Ok(Answer::NeverStarted),
                (Some(_), None) => Ok(gone()),
                (Some(memo), Some(machine)) => Ok(self.released(&machine, &memo)),
            },
            Verb::Observe => Ok(match self.there().await? {
                None => gone(),
                Some(machine) => match letting::next(&machine, Letting::Begun, false) {
                    letting::Move::Free => done(&machine, has(&machine)),
                    letting::Move::Wait
                    | letting::Move::Ask
                    | letting::Move::Lost(_)
                    | letting::Move::Fail(_) => Answer::Differs(has(&machine)),
                },
            }),
            Verb::Stop => self.stop_releasing().await,
        }
    }

    fn decided(&self, machine: &Machine, memo: &OrderCheckpoint) -> letting::Move {
        let OrderCheckpoint::Release { letting } = memo else {
            return letting::Move::Fail(two_effects());
        };
        letting::next(machine, *letting, marks::being_let_go(machine, self.hand.key()))
    }

    fn released(&self, machine: &Machine, memo: &OrderCheckpoint) -> Answer {
        match self.decided(machine, memo) {
            letting::Move::Free => done(machine, has(machine)),
            letting::Move::Lost(said) => Answer::Unknown(said),
            letting::Move::Wait | letting::Move::Ask | letting::Move::Fail(_) => Answer::UnderWay,
        }
    }

    async fn release_now(&self, machine: Machine, memo: OrderCheckpoint) -> Result<Answer, Fault> {
        match self.decided(&machine, &memo) {
            letting::Move::Free => return Ok(done(&machine, has(&machine))),
            letting::Move::Fail(fault) => return Err(fault),
            letting::Move::Lost(said) => return Err(Fault::new(Code::OutcomeUnknown, said)),
            letting::Move::Wait => {}
            letting::Move::Ask => {
                self.hand.may_let_go(&machine, &self.node.id()).await?;
                let marked = self.hand.mark_letting(&machine).await?;
                let asked =
                    OrderCheckpoint::Release { letting: Letting::Asked { marked, at: now() } };
                self.hand.notes().compare_and_swap(&memo, &asked).await?;
                self.hand.ask_to_let_go(&machine, self.site.spec.erase_on_release).await?;
            }
        }
        let machine = self.hand.wait(&machine.system_id, let_go).await?;
        Ok(done(&machine, has(&machine)))
    }

    /// Before the request the stop is final. A running release cannot be recalled; at its deadline
    /// the attempt ends and the next one continues to wait.
    async fn stop_releasing(&self) -> Result<Answer, Fault> {
        let notes = self.hand.notes();
        let memo = match notes.stop().await? {
            Stopping::Barred => return Ok(Answer::Stopped),
            Stopping::Begun(memo) => memo,
        };
        if memo != (OrderCheckpoint::Release { letting: Letting::Begun }) {
            match self.there().await? {
                None => return Ok(self.gone("MAAS has no record of it")),
                Some(machine) => match self.decided(&machine, &memo) {
                    letting::Move::Free => return Ok(done(&machine, has(&machine))),
                    letting::Move::Wait if self.is_late(&memo) => {}
                    letting::Move::Wait => return Ok(Answer::UnderWay),
                    letting::Move::Ask | letting::Move::Lost(_) | letting::Move::Fail(_) => {
                        if self.hand.in_flight(&memo) {
                            return Ok(Answer::UnderWay);
                        }
                    }
                },
            }
        }
        notes.compare_and_swap(&memo, &OrderCheckpoint::Stopped).await?;
        Ok(Answer::Stopped)
    }

    /// Whether the attempt's time limit has passed.
    fn is_late(&self, memo: &OrderCheckpoint) -> bool {
        memo.asked().is_some_and(|at| now().since(at) + LATE >= self.hand.limit)
    }

    pub async fn power_off(&self) -> Result<Answer, Fault> {
        let Some(machine) = self.there().await? else {
            return Ok(match self.hand.verb() {
                Verb::Stop => Answer::Stopped,
                Verb::Perform | Verb::Follow | Verb::GetStatus | Verb::Observe => {
                    self.gone("MAAS has no record of it: its power is nobody's")
                }
            });
        };
        let free = match self.hand.may_switch_off(&machine, &self.node.id()).await {
            Err(fault) if fault.code != Code::StateDisagrees => return Err(fault),
            looked => looked,
        };
        match self.hand.verb() {
            Verb::Perform => {
                free?;
                unlocked(&machine)?;
            }
            Verb::Follow => free?,
            // A machine that others use by now is left as it is.
            Verb::Stop if free.is_err() => return self.hand.stop_begun().await,
            Verb::Stop | Verb::GetStatus | Verb::Observe => {}
        }
        // A released machine has no operating system to shut down.
        let power_off = PowerOffPolicy { graceful_seconds: Some(0), force: Some(true) };
        let switch = Switch { hand: &self.hand, system_id: &machine.system_id, power_off };
        switch.lead(PowerGoal::Off, &machine).await
    }
}
