//! Commissioning: MAAS boots the machine to read its hardware and optionally tests it.

use super::checkpoint::{OrderCheckpoint, Stopping, two_effects};
use super::hand::{Owner, Work, disagrees, done, has, inquired, state, unlocked};
use super::letting::TESTS_FAILED;
use crate::clock::now;
use crate::maas::{Machine, Status};
use model::effect::{Answer, Verb};
use model::fault::{Code, Fault};
use model::node::{Upstream, adopts};

/// The next step for a status.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Move {
    /// In progress, or done before.
    Done,
    Commission,
    Disagree(&'static str),
}

/// `before` is the state when the call started, if it has.
fn next(machine: &Machine, before: Option<Upstream>) -> Move {
    let begun = before.is_some_and(|before| before != state(machine));
    match machine.status {
        Status::Commissioning
        | Status::Testing
        | Status::Ready
        | Status::Allocated
        | Status::Deploying
        | Status::Deployed => Move::Done,
        // It ran and failed at once; the stage that waits reports it.
        Status::FailedCommissioning if begun => Move::Done,
        Status::FailedTesting if begun && machine.osystem.is_empty() => Move::Done,
        Status::New | Status::FailedCommissioning => Move::Commission,
        // MAAS refuses to commission it, and it may be in service.
        Status::FailedTesting => Move::Disagree(TESTS_FAILED),
        Status::Broken => {
            Move::Disagree("somebody marked it broken: mend it, and mark it fixed in MAAS")
        }
        Status::FailedDeployment => {
            Move::Disagree("`farrier workflow restart-clean` releases it first")
        }
        Status::Missing
        | Status::Reserved
        | Status::Retired
        | Status::Releasing
        | Status::FailedReleasing
        | Status::DiskErasing
        | Status::FailedDiskErasing
        | Status::RescueMode
        | Status::EnteringRescueMode
        | Status::FailedEnteringRescueMode
        | Status::ExitingRescueMode
        | Status::FailedExitingRescueMode
        | Status::Unknown(_) => {
            Move::Disagree("finish in MAAS what was begun there, or take it back")
        }
    }
}

impl Work<'_> {
    pub async fn commission(&self) -> Result<Answer, Fault> {
        let notes = self.hand.notes();
        match self.hand.verb() {
            Verb::Perform => {
                let machine = self.locate().await?;
                let before = state(&machine);
                if let Some(why) = adopts(self.stage, self.node.state, before) {
                    return Ok(done(&machine, why));
                }
                let memo = notes.begin(OrderCheckpoint::Commission { before, asked: None }).await?;
                self.commission_now(machine, &memo).await
            }
            Verb::Follow => match notes.recall().await? {
                None => Ok(Answer::NeverStarted),
                Some(memo) => self.commission_now(self.locate().await?, &memo).await,
            },
            Verb::GetStatus => match notes.recall().await? {
                None => Ok(Answer::NeverStarted),
                Some(memo) => inquired(self.commissioned(found(&memo)).await),
            },
            Verb::Observe => self.commissioned(None).await,
            Verb::Stop => self.break_off().await,
        }
    }

    async fn commissioned(&self, before: Option<Upstream>) -> Result<Answer, Fault> {
        let machine = self.locate().await?;
        Ok(match next(&machine, before) {
            Move::Done => done(&machine, has(&machine)),
            Move::Commission | Move::Disagree(_) => Answer::Differs(has(&machine)),
        })
    }

    async fn commission_now(
        &self,
        machine: Machine,
        memo: &OrderCheckpoint,
    ) -> Result<Answer, Fault> {
        unlocked(&machine)?;
        match next(&machine, found(memo)) {
            Move::Done => Ok(done(&machine, has(&machine))),
            Move::Disagree(instead) => Err(disagrees(&machine, instead)),
            Move::Commission => {
                let id = &machine.system_id;
                let OrderCheckpoint::Commission { before, .. } = memo else {
                    return Err(two_effects());
                };
                let asked = OrderCheckpoint::Commission { before: *before, asked: Some(now()) };
                self.hand.notes().compare_and_swap(memo, &asked).await?;
                self.hand.journal.line(format!("maas: {id} is commissioned")).await;
                let machine = self.hand.maas().commission(id).await?;
                match next(&machine, found(memo)) {
                    Move::Done => Ok(done(&machine, has(&machine))),
                    Move::Commission | Move::Disagree(_) => {
                        Err(Fault::new(Code::ReadBackDiffers, has(&machine)))
                    }
                }
            }
        }
    }

    /// Aborts what this key started. The stop is recorded last, so a crash repeats the abort.
    async fn break_off(&self) -> Result<Answer, Fault> {
        let notes = self.hand.notes();
        let Stopping::Begun(memo) = notes.stop().await? else { return Ok(Answer::Stopped) };
        if let (Some(machine), Some(_)) = (self.there().await?, memo.asked()) {
            if next(&machine, found(&memo)) == Move::Commission && self.hand.in_flight(&memo) {
                return Ok(Answer::UnderWay);
            }
            if self.is_being_commissioned(&machine).await? {
                self.hand.maas().abort(&machine.system_id, self.hand.key().as_str()).await?;
            }
        }
        notes.compare_and_swap(&memo, &OrderCheckpoint::Stopped).await?;
        Ok(Answer::Stopped)
    }

    /// Whether MAAS commissions it for us. Tests of an installed machine are not ours.
    pub(super) async fn is_being_commissioned(&self, machine: &Machine) -> Result<bool, Fault> {
        Ok(matches!(machine.status, Status::Commissioning | Status::Testing)
            && machine.osystem.is_empty()
            && self.hand.owner(machine).await? == Owner::Us)
    }

    pub async fn wait_for_ready(&self) -> Result<Answer, Fault> {
        match self.hand.verb() {
            Verb::Perform | Verb::Follow => {}
            Verb::Stop => return Ok(Answer::Stopped),
            Verb::GetStatus | Verb::Observe => {
                return self.waited(|machine| matches!(is_ready(machine), Some(Ok(())))).await;
            }
        }
        let id = self.locate().await?.system_id;
        let ended = |machine: &Machine| is_ready(machine).map(|end| end.map(|()| machine.clone()));
        match self.hand.wait(&id, ended).await {
            Ok(machine) => Ok(done(&machine, has(&machine))),
            Err(fault) => {
                if fault.code == Code::CommissioningFailed {
                    self.hand.tell_events(&id).await?;
                }
                Err(fault)
            }
        }
    }
}

/// The state before the call, from its checkpoint.
fn found(memo: &OrderCheckpoint) -> Option<Upstream> {
    match memo {
        OrderCheckpoint::Commission { before, .. } => Some(*before),
        OrderCheckpoint::Begun
        | OrderCheckpoint::Asked { .. }
        | OrderCheckpoint::Deploy { .. }
        | OrderCheckpoint::Release { .. }
        | OrderCheckpoint::Reinstall { .. }
        | OrderCheckpoint::Power { .. }
        | OrderCheckpoint::Stopped
        | OrderCheckpoint::FirstSeen { .. } => None,
    }
}

/// The result of the wait for Ready; `None` while it continues.
fn is_ready(machine: &Machine) -> Option<Result<(), Fault>> {
    match machine.status {
        Status::Ready | Status::Allocated | Status::Deploying | Status::Deployed => Some(Ok(())),
        Status::Commissioning | Status::Testing | Status::Releasing | Status::DiskErasing => None,
        Status::FailedCommissioning => {
            Some(Err(Fault::new(Code::CommissioningFailed, has(machine))))
        }
        Status::FailedTesting if !machine.osystem.is_empty() => {
            Some(Err(disagrees(machine, TESTS_FAILED)))
        }
        Status::FailedTesting => {
            let said = format!("{}; {TESTS_FAILED}", has(machine));
            Some(Err(Fault::new(Code::CommissioningFailed, said)))
        }
        Status::New => {
            let said = format!(
                "{}: nothing commissions it, or somebody broke that off; commission it in MAAS, then retry",
                has(machine)
            );
            Some(Err(Fault::new(Code::CommissioningFailed, said)))
        }
        Status::Missing
        | Status::Reserved
        | Status::Retired
        | Status::Broken
        | Status::FailedDeployment
        | Status::FailedReleasing
        | Status::FailedDiskErasing
        | Status::RescueMode
        | Status::EnteringRescueMode
        | Status::FailedEnteringRescueMode
        | Status::ExitingRescueMode
        | Status::FailedExitingRescueMode
        | Status::Unknown(_) => {
            Some(Err(disagrees(machine, "it will not be Ready by itself: see to it in MAAS")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn told(status: Status, osystem: &str) -> Machine {
        let told = json!({"system_id": "a", "status": status.number(), "osystem": osystem});
        serde_json::from_value(told).unwrap()
    }

    #[test]
    fn every_status_has_its_move() {
        let row = |before: Option<Upstream>| -> String {
            let letter = |status: &Status| match next(&told(*status, ""), before) {
                Move::Done => 'd',
                Move::Commission => 'c',
                Move::Disagree(_) => '-',
            };
            Status::ALL.iter().map(letter).collect()
        };
        assert_eq!(row(None), "cdc-d-d--dd----------d-");
        assert_eq!(row(Some(Upstream::New)), "cdd-d-d--dd----------dd");
        assert_eq!(row(Some(Upstream::FailedTesting)), "cdd-d-d--dd----------d-");
        let in_service = told(Status::FailedTesting, "ubuntu");
        assert_eq!(next(&in_service, Some(Upstream::New)), Move::Disagree(TESTS_FAILED));
        let fault = is_ready(&in_service).unwrap().unwrap_err();
        assert_eq!(fault.code, Code::StateDisagrees);
    }

    #[test]
    fn every_status_ends_the_wait_or_not() {
        let letter = |status: &Status| match is_ready(&told(*status, "")) {
            None => 'w',
            Some(Ok(())) => 'r',
            Some(Err(fault)) if fault.code == Code::CommissioningFailed => 'f',
            Some(Err(_)) => '-',
        };
        let row: String = Status::ALL.iter().map(letter).collect();
        assert_eq!(row, "fwf-r-r--rr-w-w------wf");
    }
}
