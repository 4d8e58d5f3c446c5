//! Reinstalls a machine. One round releases, allocates, installs and waits. Each phase is recorded
//! before it starts, so after a crash the round continues and no round runs twice.
//!
//! A node with a datasource failure gets `datasource_retries` rounds; another machine gets one.

use super::checkpoint::{Leg, OrderCheckpoint, Stopping, two_effects};
use super::failure::Cause;
use super::hand::{Hand, Owner, Work, disagrees, done, has};
use super::letting::{self, Letting};
use super::marks::{self, Whose};
use super::{deploy, release};
use crate::clock::now;
use crate::fault::possibly_happened;
use crate::maas::{Deploy, Machine, Status};
use model::effect::{Answer, Verb};
use model::fault::{Code, Fault};
use model::id::NodeId;

/// A round takes at most this many steps; each step advances it or waits for MAAS.
const MAX_MOVES: usize = 16;
pub(super) const FIRST: OrderCheckpoint =
    OrderCheckpoint::Reinstall { round: 1, leg: Leg::Letting(Letting::Begun) };

/// The machine to reinstall.
pub(super) struct Anew<'a> {
    pub system_id: &'a str,
    pub node: Option<&'a NodeId>,
    pub what: What<'a>,
}

/// How a round ended.
pub(super) struct Round {
    pub machine: Machine,
    /// The last checkpoint.
    pub leg: Leg,
    pub installed: bool,
}

/// What to install.
pub(super) enum What<'a> {
    /// The image of the node's site.
    Node(&'a Work<'a>),
    Image(&'a Deploy),
}

impl What<'_> {
    /// Prepares the machine and returns the deploy request.
    async fn prepare(&self, machine: &Machine) -> Result<Deploy, Fault> {
        match self {
            Self::Image(deploy) => Ok((*deploy).clone()),
            Self::Node(work) => {
                work.rewire_pxe(machine).await?;
                work.installation().await
            }
        }
    }
}

/// The next step of the installing phase.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Move {
    Install,
    Wait,
    Done,
    Failed,
    Disagree,
}

/// An unmarked allocation of our user counts as ours: its answer may have been lost.
fn next(status: Status, whose: &Whose, owner: &Owner) -> Move {
    let of_this_run = *whose == Whose::ThisRun;
    match status {
        Status::Ready => Move::Install,
        Status::Allocated if of_this_run => Move::Install,
        Status::Allocated if *whose == Whose::Nobody && *owner == Owner::Us => Move::Install,
        Status::Deploying if of_this_run => Move::Wait,
        Status::Deployed if of_this_run => Move::Done,
        Status::FailedDeployment if of_this_run => Move::Failed,
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
        | Status::Unknown(_) => Move::Disagree,
    }
}

impl Hand<'_> {
    /// Runs one round from its present phase.
    pub async fn round(
        &self,
        anew: &Anew<'_>,
        (round, mut leg): (u32, Leg),
    ) -> Result<Round, Fault> {
        let id = anew.system_id;
        let memo = |leg| OrderCheckpoint::Reinstall { round, leg };
        for _ in 0..MAX_MOVES {
            let machine = self.maas().machine(id).await?;
            match leg {
                Leg::Letting(letting) => {
                    let after = self.let_go_once(anew, &machine, letting).await?;
                    self.notes().compare_and_swap(&memo(leg), &memo(after)).await?;
                    if let Leg::Letting(_) = after {
                        self.ask_or_wait(&machine).await?;
                    }
                    leg = after;
                }
                Leg::Installing { asked } => {
                    let whose = self.whose(&machine, anew.node).await?;
                    let owner = self.owner(&machine).await?;
                    match next(machine.status, &whose, &owner) {
                        Move::Install => {
                            let deploy = anew.what.prepare(&machine).await?;
                            let after = Leg::Installing { asked: Some(now()) };
                            self.notes()
                                .compare_and_swap(&memo(Leg::Installing { asked }), &memo(after))
                                .await?;
                            leg = after;
                            self.install(&machine, anew.node, &deploy).await?;
                        }
                        Move::Wait => drop(self.wait(id, deploy::installed).await?),
                        Move::Done => return Ok(Round { machine, leg, installed: true }),
                        Move::Failed => return Ok(Round { machine, leg, installed: false }),
                        Move::Disagree => {
                            return Err(disagrees(&machine, "somebody has come in between"));
                        }
                    }
                }
            }
        }
        Err(Fault::new(
            Code::ReadBackDiffers,
            format!("{id} comes to no end: it changes all the time"),
        ))
    }

    /// The next phase of the release. The caller records it before the request.
    async fn let_go_once(
        &self,
        anew: &Anew<'_>,
        machine: &Machine,
        letting: Letting,
    ) -> Result<Leg, Fault> {
        if let Whose::Other(node) = self.whose(machine, anew.node).await? {
            return Err(disagrees(machine, &format!("it is {node}'s: decommission that first")));
        }
        match letting::next(machine, letting, marks::being_let_go(machine, self.key())) {
            letting::Move::Free if machine.status == Status::Ready => {
                Ok(Leg::Installing { asked: None })
            }
            letting::Move::Free => Err(disagrees(machine, "commission it in MAAS, then retry")),
            letting::Move::Wait => Ok(Leg::Letting(letting)),
            letting::Move::Ask => {
                // A machine that is not a node may be reinstalled under any MAAS owner.
                if let Some(node) = anew.node {
                    self.may_let_go(machine, node).await?;
                }
                let marked = self.mark_letting(machine).await?;
                Ok(Leg::Letting(Letting::Asked { marked, at: now() }))
            }
            letting::Move::Lost(said) => Err(Fault::new(Code::OutcomeUnknown, said)),
            letting::Move::Fail(fault) => Err(fault),
        }
    }

    async fn ask_or_wait(&self, machine: &Machine) -> Result<(), Fault> {
        if !matches!(machine.status, Status::Releasing | Status::DiskErasing) {
            self.ask_to_let_go(machine, false).await?;
        }
        self.wait(&machine.system_id, release::let_go).await.map(drop)
    }

    /// The status of a round after a takeover.
    pub fn left_at(
        &self,
        machine: &Machine,
        memo: &OrderCheckpoint,
        node: Option<&NodeId>,
    ) -> Answer {
        let OrderCheckpoint::Reinstall { leg, .. } = memo else { return Answer::UnderWay };
        let ours = marks::whose(machine, self.key().run(), node) == Whose::ThisRun;
        match leg {
            Leg::Installing { .. } if ours && machine.status == Status::Deployed => {
                done(machine, has(machine))
            }
            Leg::Installing { .. } => Answer::UnderWay,
            Leg::Letting(letting) => {
                let there = marks::being_let_go(machine, self.key());
                match letting::next(machine, *letting, there) {
                    letting::Move::Lost(said) => Answer::Unknown(said),
                    letting::Move::Free
                    | letting::Move::Wait
                    | letting::Move::Ask
                    | letting::Move::Fail(_) => Answer::UnderWay,
                }
            }
        }
    }

    /// Stops a round: an installation is aborted; a release cannot be.
    pub async fn stop_round(
        &self,
        machine: Option<Machine>,
        node: Option<&NodeId>,
    ) -> Result<Answer, Fault> {
        let memo = match self.notes().stop().await? {
            Stopping::Barred => return Ok(Answer::Stopped),
            Stopping::Begun(memo) => memo,
        };
        if let (OrderCheckpoint::Reinstall { leg, .. }, Some(machine)) = (&memo, &machine) {
            let ours = marks::whose(machine, self.key().run(), node) == Whose::ThisRun;
            let status = machine.status;
            match leg {
                Leg::Letting(_) if matches!(status, Status::Releasing | Status::DiskErasing) => {
                    return Ok(Answer::UnderWay);
                }
                // It is released, and nothing else was requested.
                Leg::Letting(_) if status == Status::Ready => {}
                Leg::Installing { .. } if ours && status == Status::Deployed => {
                    return Ok(done(machine, has(machine)));
                }
                Leg::Installing { .. } if ours && status == Status::Deploying => {
                    self.maas().abort(&machine.system_id, self.key().as_str()).await?;
                }
                Leg::Letting(_) | Leg::Installing { .. } => {
                    if self.in_flight(&memo) {
                        return Ok(Answer::UnderWay);
                    }
                }
            }
        }
        self.notes().compare_and_swap(&memo, &OrderCheckpoint::Stopped).await?;
        Ok(Answer::Stopped)
    }
}

impl Work<'_> {
    pub async fn recover(&self) -> Result<Answer, Fault> {
        let notes = self.hand.notes();
        match self.hand.verb() {
            Verb::Perform => match notes.recall().await? {
                Some(memo) => self.rounds(memo).await.map_err(possibly_happened),
                None => self.begin_rounds().await,
            },
            Verb::Follow => match notes.recall().await? {
                Some(memo) => self.rounds(memo).await.map_err(possibly_happened),
                None => Ok(Answer::NeverStarted),
            },
            Verb::GetStatus => match (notes.recall().await?, self.there().await?) {
                (None, _) => Ok(Answer::NeverStarted),
                (Some(_), None) => Ok(Answer::UnderWay),
                (Some(memo), Some(machine)) => {
                    Ok(self.hand.left_at(&machine, &memo, Some(&self.node.id())))
                }
            },
            Verb::Observe => {
                let machine = self.locate().await?;
                Ok(match machine.status == Status::Deployed {
                    true => done(&machine, has(&machine)),
                    false => Answer::Differs(has(&machine)),
                })
            }
            Verb::Stop => {
                let machine = self.there().await?;
                self.hand.stop_round(machine, Some(&self.node.id())).await
            }
        }
    }

    async fn begin_rounds(&self) -> Result<Answer, Fault> {
        let machine = self.locate().await?;
        if machine.status == Status::Deployed {
            return Ok(done(&machine, "it is installed: nothing to recover"));
        }
        if machine.status != Status::FailedDeployment {
            return Err(disagrees(&machine, "it is neither installed nor has that failed"));
        }
        match self.hand.whose(&machine, Some(&self.node.id())).await? {
            Whose::ThisRun | Whose::ThisNode => {}
            Whose::Other(_) | Whose::Nobody => {
                return Err(disagrees(
                    &machine,
                    "somebody else has installed it: release it in MAAS",
                ));
            }
        }
        if self.site.spec.datasource_retries == 0 {
            let said = format!("{}, and site.spec.datasource_retries is 0", has(&machine));
            return Err(Fault::new(Code::DatasourceFailed, said));
        }
        let memo = self.hand.notes().begin(FIRST).await?;
        self.rounds(memo).await.map_err(possibly_happened)
    }

    async fn rounds(&self, memo: OrderCheckpoint) -> Result<Answer, Fault> {
        let OrderCheckpoint::Reinstall { round, mut leg } = memo else { return Err(two_effects()) };
        let machine = self.locate().await?;
        let (id, node) = (machine.system_id, self.node.id());
        let anew = Anew { system_id: &id, node: Some(&node), what: What::Node(self) };
        let most = self.site.spec.datasource_retries.max(round);
        for round in round..=most {
            self.hand
                .journal
                .line(format!("maas: {id} is installed anew, {round} of {most}"))
                .await;
            let Round { machine, leg: ended, installed } =
                self.hand.round(&anew, (round, leg)).await?;
            if installed {
                return Ok(done(
                    &machine,
                    format!("{}, installed anew {round} of {most} times", has(&machine)),
                ));
            }
            let line = match self.why(&machine).await? {
                Cause::Datasource(line) => line,
                Cause::Other(line) => {
                    let said = format!("{}: {line}", has(&machine));
                    return Err(Fault::new(Code::DeployFailed, said));
                }
            };
            if round == most {
                let said = format!("{} after {most} more rounds: {line}", has(&machine));
                return Err(Fault::new(Code::DatasourceFailed, said));
            }
            let again = Leg::Letting(Letting::Begun);
            let before = OrderCheckpoint::Reinstall { round, leg: ended };
            let after = OrderCheckpoint::Reinstall { round: round + 1, leg: again };
            self.hand.notes().compare_and_swap(&before, &after).await?;
            leg = again;
        }
        Err(Fault::new(Code::DatasourceFailed, format!("{id} was not installed")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_ours_is_gone_on_with() {
        let row = |whose: &Whose, owner: &Owner| -> String {
            let letter = |status: &Status| match next(*status, whose, owner) {
                Move::Install => 'i',
                Move::Wait => 'w',
                Move::Done => 'd',
                Move::Failed => 'f',
                Move::Disagree => '-',
            };
            Status::ALL.iter().map(letter).collect()
        };
        let other = Owner::Other("eve".into());
        for (whose, owner, expected) in [
            (Whose::ThisRun, &Owner::Us, "----i-d--wif-----------"),
            (Whose::Nobody, &Owner::Us, "----i-----i------------"),
            (Whose::Nobody, &other, "----i------------------"),
            (Whose::ThisNode, &Owner::Us, "----i------------------"),
            (Whose::Other(NodeId::trusted("node-2")), &Owner::Us, "----i------------------"),
        ] {
            assert_eq!(row(&whose, owner), expected, "{whose:?} {owner:?}");
        }
    }
}
