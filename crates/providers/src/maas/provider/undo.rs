//! Undoes an onboarding in MAAS for a cancel or a clean restart: record, commissioning,
//! installation. What existed before the run or belongs to others stays.

use super::annotations::{self, AnnotationOwner};
use super::checkpoint::OrderCheckpoint;
use super::executor::{MaasOwner, StageExecutor, describe_state, done, upstream_state};
use super::release_decision::{ReleaseProgress, ReleaseStep, next_release_step};
use crate::clock::now;
use crate::maas::{Machine, Status};
use crate::port::Target;
use model::effect::{CallResult, CallVerb, ProviderAnswer};
use model::fault::{Fault, FaultCode, Result};
use model::node::MaasState;

enum UndoTarget {
    Nothing(ProviderAnswer),
    Machine(Box<Machine>),
}

impl StageExecutor<'_> {
    /// Runs an undo: all are idempotent and read first. `left` reads what there is to undo.
    async fn run_undo<F>(
        &self,
        left: impl Future<Output = Result<UndoTarget>>,
        act: impl FnOnce(Machine, OrderCheckpoint) -> F,
    ) -> CallResult
    where
        F: Future<Output = CallResult>,
    {
        let (notes, verb) = (self.call.checkpoints(), self.call.verb());
        match verb {
            CallVerb::Stop => return self.call.stop_idempotent().await,
            CallVerb::GetStatus if notes.recall().await?.is_none() => {
                return Ok(ProviderAnswer::NeverStarted);
            }
            CallVerb::Perform | CallVerb::Follow | CallVerb::GetStatus | CallVerb::Observe => {}
        }
        match (left.await?, verb) {
            (UndoTarget::Nothing(answer), _) => Ok(answer),
            (UndoTarget::Machine(machine), CallVerb::Observe) => {
                Ok(ProviderAnswer::Differs(describe_state(&machine)))
            }
            (UndoTarget::Machine(_), CallVerb::GetStatus | CallVerb::Stop) => {
                Ok(ProviderAnswer::UnderWay)
            }
            (UndoTarget::Machine(machine), CallVerb::Perform | CallVerb::Follow) => {
                act(*machine, notes.begin(OrderCheckpoint::Begun).await?).await
            }
        }
    }

    /// Deletes the record that this run made; one from before stays.
    pub async fn undo_create(&self, target: &Target) -> CallResult {
        let left = async {
            let Some(machine) = self.find_created_record(target).await? else {
                return Ok(self.no_record());
            };
            Ok(match self.is_created_by_farrier(&machine).await? {
                true => UndoTarget::Machine(Box::new(machine)),
                false => {
                    UndoTarget::Nothing(done(&machine, "its record was in MAAS before, and stays"))
                }
            })
        };
        self.run_undo(left, async |machine, checkpoint| {
            self.delete_record(&machine, &checkpoint).await
        })
        .await
    }

    /// The record that may have to be deleted. One whose id was never stored is recognised by its
    /// description. On a conflict nothing was made.
    async fn find_created_record(&self, target: &Target) -> Result<Option<Machine>> {
        if let Some(machine) = self.try_locate().await? {
            return Ok(Some(machine));
        }
        match self.search(target).await {
            Ok(Some(machine)) if self.is_created_by_farrier(&machine).await? => Ok(Some(machine)),
            Ok(_) => Ok(None),
            Err(fault) if fault.code == FaultCode::CandidatesConflict => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    /// A run without a first read undoes its predecessor's record, others only their own.
    async fn is_created_by_farrier(&self, machine: &Machine) -> Result<bool> {
        let Some((node, run)) = annotations::parse_record_description(&machine.description) else {
            return Ok(false);
        };
        if node != self.node.id() {
            return Ok(false);
        }
        Ok(run == self.call.key().run() || self.call.first_observed().await?.is_none())
    }

    /// Aborts the commissioning that this run or its predecessor started. A finished one stays,
    /// since it takes nothing from anyone.
    pub async fn undo_commission(&self) -> CallResult {
        let left = async {
            let Some(machine) = self.try_locate().await? else { return Ok(self.no_record()) };
            let before = self.call.first_observed().await?;
            let others = matches!(before, Some(MaasState::Commissioning | MaasState::Testing));
            Ok(match !others && self.is_being_commissioned(&machine).await? {
                true => UndoTarget::Machine(Box::new(machine)),
                false => {
                    let message = format!("{}: nothing to break off", describe_state(&machine));
                    UndoTarget::Nothing(done(&machine, message))
                }
            })
        };
        self.run_undo(left, |machine, checkpoint| self.abort_commissioning(machine, checkpoint))
            .await
    }

    async fn abort_commissioning(
        &self,
        machine: Machine,
        checkpoint: OrderCheckpoint,
    ) -> CallResult {
        self.call
            .checkpoints()
            .compare_and_swap(&checkpoint, &OrderCheckpoint::Requested { at: now() })
            .await?;
        let id = &machine.system_id;
        self.call
            .journal
            .write_line(format!("maas: the commissioning of {id} is broken off"))
            .await;
        let machine = self.call.maas().abort(id, self.call.key().as_str()).await?;
        match matches!(machine.status, Status::Commissioning | Status::Testing) {
            true => Err(Fault::new(FaultCode::ReadBackDiffers, describe_state(&machine))),
            false => Ok(done(
                &machine,
                format!("{}: commissioning is broken off", describe_state(&machine)),
            )),
        }
    }

    /// Releases what this run installed or was about to. Other installations stay.
    pub async fn undo_deploy(&self) -> CallResult {
        let left = async {
            let Some(machine) = self.try_locate().await? else { return Ok(self.no_record()) };
            let letting = matches!(machine.status, Status::Releasing | Status::DiskErasing);
            Ok(match letting || self.is_installed_by_farrier(&machine).await? {
                true => UndoTarget::Machine(Box::new(machine)),
                false => {
                    let message = format!(
                        "{}, and nothing of this operation is on it",
                        describe_state(&machine)
                    );
                    UndoTarget::Nothing(done(&machine, message))
                }
            })
        };
        self.run_undo(left, |machine, checkpoint| self.release_installation(machine, checkpoint))
            .await
    }

    async fn release_installation(
        &self,
        machine: Machine,
        checkpoint: OrderCheckpoint,
    ) -> CallResult {
        match next_release_step(&machine, ReleaseProgress::Begun, false) {
            ReleaseStep::Request => {
                self.call
                    .checkpoints()
                    .compare_and_swap(&checkpoint, &OrderCheckpoint::Requested { at: now() })
                    .await?;
                self.call.request_release(&machine, None).await?;
            }
            ReleaseStep::Released | ReleaseStep::Wait | ReleaseStep::Unknown(_) => {}
            ReleaseStep::Fail(fault) => return Err(fault),
        }
        let machine =
            self.call.wait_until(&machine.system_id, super::release::release_result).await?;
        Ok(done(
            &machine,
            format!("{}: what was installed is taken back", describe_state(&machine)),
        ))
    }

    /// A run without a first read undoes the installation of another run of the node, others only
    /// their own. The annotation stays until the release. An allocation without one is ours if
    /// there was none before.
    async fn is_installed_by_farrier(&self, machine: &Machine) -> Result<bool> {
        let taken = !matches!(
            machine.status,
            Status::New | Status::Commissioning | Status::FailedCommissioning | Status::Ready
        );
        let allocated = matches!(
            machine.status,
            Status::Allocated | Status::FailedReleasing | Status::FailedDiskErasing
        );
        let first = self.call.first_observed().await?;
        Ok(match (taken, self.annotation_owner(machine), first) {
            (false, _, _) => false,
            (true, AnnotationOwner::ThisRun, _) | (true, AnnotationOwner::ThisNode, None) => true,
            (true, AnnotationOwner::Unmarked, Some(before)) => {
                allocated
                    && before != MaasState::Allocated
                    && before != upstream_state(machine)
                    && self.call.maas_owner(machine).await? == MaasOwner::Farrier
            }
            (true, AnnotationOwner::ThisNode, Some(_))
            | (true, AnnotationOwner::Unmarked, None)
            | (true, AnnotationOwner::OtherNode(_), _) => false,
        })
    }

    fn no_record(&self) -> UndoTarget {
        UndoTarget::Nothing(self.record_gone("MAAS has no record of it"))
    }
}
