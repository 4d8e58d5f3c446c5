//! Undoes an onboarding in MAAS for a cancel or a clean restart: record, commissioning,
//! installation. What existed before the run or belongs to others stays.

use super::checkpoint::OrderCheckpoint;
use super::hand::{Owner, Work, done, has, state};
use super::letting::{self, Letting};
use super::marks::{self, Whose};
use crate::clock::now;
use crate::maas::{Machine, Status};
use crate::port::Target;
use model::effect::{Answer, Verb};
use model::fault::{Code, Fault};
use model::node::Upstream;

enum Left {
    Nothing(Answer),
    Of(Box<Machine>),
}

impl Work<'_> {
    /// Runs an undo: all are idempotent and read first. `left` reads what there is to undo.
    async fn undo<F>(
        &self,
        left: impl Future<Output = Result<Left, Fault>>,
        act: impl FnOnce(Machine, OrderCheckpoint) -> F,
    ) -> Result<Answer, Fault>
    where
        F: Future<Output = Result<Answer, Fault>>,
    {
        let (notes, verb) = (self.hand.notes(), self.hand.verb());
        match verb {
            Verb::Stop => return self.hand.stop_begun().await,
            Verb::GetStatus if notes.recall().await?.is_none() => return Ok(Answer::NeverStarted),
            Verb::Perform | Verb::Follow | Verb::GetStatus | Verb::Observe => {}
        }
        match (left.await?, verb) {
            (Left::Nothing(answer), _) => Ok(answer),
            (Left::Of(machine), Verb::Observe) => Ok(Answer::Differs(has(&machine))),
            (Left::Of(_), Verb::GetStatus | Verb::Stop) => Ok(Answer::UnderWay),
            (Left::Of(machine), Verb::Perform | Verb::Follow) => {
                act(*machine, notes.begin(OrderCheckpoint::Begun).await?).await
            }
        }
    }

    /// Deletes the record that this run made; one from before stays.
    pub async fn unmake(&self, target: &Target) -> Result<Answer, Fault> {
        let left = async {
            let Some(machine) = self.perhaps_made(target).await? else { return Ok(self.none()) };
            Ok(match self.made_here(&machine).await? {
                true => Left::Of(Box::new(machine)),
                false => Left::Nothing(done(&machine, "its record was in MAAS before, and stays")),
            })
        };
        self.undo(left, async |machine, memo| self.forget(&machine, &memo).await).await
    }

    /// The record that may have to be deleted. One whose id was never stored is recognised by its
    /// description. On a conflict nothing was made.
    async fn perhaps_made(&self, target: &Target) -> Result<Option<Machine>, Fault> {
        if let Some(machine) = self.there().await? {
            return Ok(Some(machine));
        }
        match self.search(target).await {
            Ok(Some(machine)) if self.made_here(&machine).await? => Ok(Some(machine)),
            Ok(_) => Ok(None),
            Err(fault) if fault.code == Code::CandidatesConflict => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    /// A run without a first read undoes its predecessor's record, others only their own.
    async fn made_here(&self, machine: &Machine) -> Result<bool, Fault> {
        let Some((node, run)) = marks::maker(&machine.description) else { return Ok(false) };
        if node != self.node.id() {
            return Ok(false);
        }
        Ok(run == self.hand.key().run() || self.hand.first_seen().await?.is_none())
    }

    /// Aborts the commissioning that this run or its predecessor started. A finished one stays,
    /// since it takes nothing from anyone.
    pub async fn uncommission(&self) -> Result<Answer, Fault> {
        let left = async {
            let Some(machine) = self.there().await? else { return Ok(self.none()) };
            let before = self.hand.first_seen().await?;
            let others = matches!(before, Some(Upstream::Commissioning | Upstream::Testing));
            Ok(match !others && self.is_being_commissioned(&machine).await? {
                true => Left::Of(Box::new(machine)),
                false => {
                    let said = format!("{}: nothing to break off", has(&machine));
                    Left::Nothing(done(&machine, said))
                }
            })
        };
        self.undo(left, |machine, memo| self.break_off_now(machine, memo)).await
    }

    async fn break_off_now(
        &self,
        machine: Machine,
        memo: OrderCheckpoint,
    ) -> Result<Answer, Fault> {
        self.hand.notes().compare_and_swap(&memo, &OrderCheckpoint::Asked { at: now() }).await?;
        let id = &machine.system_id;
        self.hand.journal.line(format!("maas: the commissioning of {id} is broken off")).await;
        let machine = self.hand.maas().abort(id, self.hand.key().as_str()).await?;
        match matches!(machine.status, Status::Commissioning | Status::Testing) {
            true => Err(Fault::new(Code::ReadBackDiffers, has(&machine))),
            false => Ok(done(&machine, format!("{}: commissioning is broken off", has(&machine)))),
        }
    }

    /// Releases what this run installed or was about to. Other installations stay.
    pub async fn take_back(&self) -> Result<Answer, Fault> {
        let left = async {
            let Some(machine) = self.there().await? else { return Ok(self.none()) };
            let letting = matches!(machine.status, Status::Releasing | Status::DiskErasing);
            Ok(match letting || self.installed_here(&machine).await? {
                true => Left::Of(Box::new(machine)),
                false => {
                    let said = format!("{}, and nothing of this operation is on it", has(&machine));
                    Left::Nothing(done(&machine, said))
                }
            })
        };
        self.undo(left, |machine, memo| self.take_back_now(machine, memo)).await
    }

    async fn take_back_now(
        &self,
        machine: Machine,
        memo: OrderCheckpoint,
    ) -> Result<Answer, Fault> {
        match letting::next(&machine, Letting::Begun, false) {
            letting::Move::Ask => {
                self.hand
                    .notes()
                    .compare_and_swap(&memo, &OrderCheckpoint::Asked { at: now() })
                    .await?;
                self.hand.ask_to_let_go(&machine, false).await?;
            }
            letting::Move::Free | letting::Move::Wait | letting::Move::Lost(_) => {}
            letting::Move::Fail(fault) => return Err(fault),
        }
        let machine = self.hand.wait(&machine.system_id, super::release::let_go).await?;
        Ok(done(&machine, format!("{}: what was installed is taken back", has(&machine))))
    }

    /// A run without a first read undoes the installation of another run of the node, others only
    /// their own. The annotation stays until the release. An allocation without one is ours if
    /// there was none before.
    async fn installed_here(&self, machine: &Machine) -> Result<bool, Fault> {
        let taken = !matches!(
            machine.status,
            Status::New | Status::Commissioning | Status::FailedCommissioning | Status::Ready
        );
        let allocated = matches!(
            machine.status,
            Status::Allocated | Status::FailedReleasing | Status::FailedDiskErasing
        );
        let first = self.hand.first_seen().await?;
        Ok(match (taken, self.mark(machine), first) {
            (false, _, _) => false,
            (true, Whose::ThisRun, _) | (true, Whose::ThisNode, None) => true,
            (true, Whose::Nobody, Some(before)) => {
                allocated
                    && before != Upstream::Allocated
                    && before != state(machine)
                    && self.hand.owner(machine).await? == Owner::Us
            }
            (true, Whose::ThisNode, Some(_))
            | (true, Whose::Nobody, None)
            | (true, Whose::Other(_), _) => false,
        })
    }

    fn none(&self) -> Left {
        Left::Nothing(self.gone("MAAS has no record of it"))
    }
}
