//! The actions of an operator on a run. One transaction writes the run, its targets when it holds
//! them again, and its node.

use crate::access::Caller;
use crate::admission::{
    admit_again_now, admit_taken_by, event, lock_machine, may_continue_alone, no_run, overrides_of,
    take_unasked,
};
use crate::holds::{hold_devices, is_held_by_parent};
use crate::node;
use crate::rack::reopen_operation;
use model::gate::{Gate, Overrides};
use model::id::{ObjectId, RunId};
use model::lifecycle::SubjectKind;
use model::node::Node;
use model::node::requests::admit_resume;
use model::plan::RunType;
use model::refusal::{Reason, Refusal};
use model::run::actions::{Action, ActionResult, Requester, apply_action};
use model::run::{HistoryNote, Run, RunPhase, apply_to_machine};
use model::target::TargetKind;
use model::time::Timestamp;
use store::{Cause, NewEvent, Result, Tx};

/// The most recent runs of a target among which the last one that changed it is searched.
const MAX_RECENT_RUNS: i64 = 32;

pub(super) struct ActionTransaction {
    pub id: RunId,
    pub action: Action,
    pub who: Requester,
    pub caller: Caller,
    pub now: Timestamp,
}

impl ActionTransaction {
    pub async fn run(&self, tx: &mut Tx) -> Result<Run> {
        let claimed = tx.run_with_claim(&self.id).await?.ok_or_else(|| no_run(&self.id))?;
        let mut run = claimed.run;
        self.check_permissions(tx, &run).await?;
        let node = node::run_update::lock(tx, &run).await?.map(|node| *node);
        match apply_action(&run, self.action, &self.who, self.now)? {
            ActionResult::Unchanged => {
                // A pending run of a rack is started by the rack's turn, so that is woken.
                match &run.spec.reports_to {
                    Some(rack) if run.phase() == RunPhase::Pending => {
                        tx.wake(&ObjectId::trusted(rack.key()), self.now)?;
                    }
                    // A run that was never claimed is due already, or waits for its permission to
                    // start.
                    Some(_) | None if run.ended() || claimed.epoch == 0 => {}
                    Some(_) | None => tx.wake(&self.id.object(), self.now)?,
                }
                Ok(run)
            }
            ActionResult::Recorded(progress, note) | ActionResult::Changed(progress, note) => {
                run.progress = progress;
                self.write(tx, run, node, note).await
            }
            ActionResult::Reopened(progress, note) => {
                // A cancel compensates by the recorded progress of the run, whatever other runs did
                // since.
                if self.action != Action::Cancel {
                    self.check_not_superseded(tx, &run).await?;
                }
                run.progress = progress;
                if let Some(node) = &node {
                    admit_resume(node, &run)?;
                }
                let event =
                    event(Cause::Request, &self.who.by, String::new(), note.code_line, self.now);
                let mut passed = self.reacquire_hold(tx, &run, &event).await?;
                passed.push_str(&self.take_machines(tx, &run).await?);
                let note = HistoryNote { message: format!("{}{passed}", note.message), ..note };
                if let Some(record) = &run.spec.reports_to {
                    tx.wake(&ObjectId::trusted(record.key()), self.now)?;
                }
                self.write(tx, run, node, note).await
            }
        }
    }
}

impl ActionTransaction {
    /// An action that continues a run needs what the run needs. One that ends it needs a part of
    /// that: whoever may start a part of a run may also stop it.
    async fn check_permissions(&self, tx: &mut Tx, run: &Run) -> Result<()> {
        let (needed, what) = (run.spec.permissions(), self.action.as_str());
        let granted = self.caller.to_act_on(tx, &run.spec).await?;
        let checked = match self.action {
            Action::Cancel | Action::MarkManual if granted.intersects(needed) => Ok(()),
            Action::RetryStep
            | Action::Resume
            | Action::Adopt
            | Action::Cancel
            | Action::MarkManual => self.caller.require_all(granted, needed, what),
        };
        Ok(checked?)
    }

    /// Holds the targets of a continued run again; their gates are checked again. A child run
    /// continues under the hold of its parent, or with its own once the parent has ended. The
    /// override of the run still holds; returns the note about it for the history.
    async fn reacquire_hold(&self, tx: &mut Tx, run: &Run, event: &NewEvent) -> Result<String> {
        if is_held_by_parent(tx, run).await? {
            return Ok(String::new());
        }
        let by = format!("{} as in {}", self.who.by, run.spec.id);
        // A run that a rack started needs the rack's permission to continue.
        let by_rack = run.spec.reports_to.as_ref().is_some_and(|one| one.kind == SubjectKind::Rack);
        if let (Some(rack), true) = (run.spec.target.rack(), by_rack) {
            return reopen_operation(tx, &rack, run, (&by, event)).await;
        }
        let on_machine = run.spec.target.machine().filter(|_| run.spec.parent_run.is_none());
        let Some(id) = on_machine else {
            let refusing = may_continue_alone(tx, run, self.now).await?;
            hold_devices(tx, run, None, event).await?;
            return Ok(overrides_of(tx, run).await?.history_note(&by, &refusing));
        };
        let mut machine = lock_machine(tx, &id, self.now).await?;
        let note = match (&machine.active_run, self.action) {
            (Some(holder), Action::Cancel) => {
                return Err(run.spec.target.refuse_held(holder).into());
            }
            // A cancel is allowed in any state of the machine.
            (None, Action::Cancel) => String::new(),
            (_, Action::RetryStep | Action::Resume | Action::Adopt | Action::MarkManual) => {
                let mut refusing = admit_again_now(tx, &machine, run).await?;
                // A named agent or MAAS is always left out of a run on a node.
                refusing.extend([Gate::Agent, Gate::Maas]);
                Overrides::of_params(&run.spec.params).history_note(&by, &refusing)
            }
        };
        machine.active_run = Some(run.spec.id.clone());
        apply_to_machine(&mut machine, run, &[], self.now);
        let message = format!("held by {} again{note}", run.spec.id);
        tx.update_machine(&mut machine, &NewEvent { message, ..event.clone() })?;
        Ok(note)
    }

    /// A run that continues takes its machines again: it gave them back when it ended. Returns the
    /// note about the budgets that its override names, for the history.
    async fn take_machines(&self, tx: &mut Tx, run: &Run) -> Result<String> {
        if is_held_by_parent(tx, run).await? {
            return Ok(String::new());
        }
        if self.action == Action::Cancel {
            take_unasked(tx, run).await?;
            return Ok(String::new());
        }
        let overrides = overrides_of(tx, run).await?;
        let note = admit_taken_by(tx, run, &overrides, &self.caller, None).await?;
        Ok(if note.is_empty() { note } else { format!("; {note}") })
    }

    async fn write(
        &self,
        tx: &mut Tx,
        mut run: Run,
        node: Option<Node>,
        note: HistoryNote,
    ) -> Result<Run> {
        run.version = tx.update_unclaimed(&run, self.now)?.version;
        let event = event(Cause::Request, &self.who.by, note.message, note.code_line, self.now);
        tx.append_run_event(&run, &event)?;
        if let Some(node) = node {
            node::run_update::write(tx, node, &run, None, &event)?;
        }
        Ok(run)
    }

    async fn check_not_superseded(&self, tx: &mut Tx, run: &Run) -> Result<()> {
        match superseding_run(tx, run).await? {
            Some(latest) => Err(superseded(run, &latest).into()),
            None => Ok(()),
        }
    }
}

/// The run that has changed a target of this run since. For a run on a rack only its held devices
/// count: other runs may act on the rack's other devices.
pub(crate) async fn superseding_run(tx: &mut Tx, run: &Run) -> Result<Option<Run>> {
    let targets = match run.spec.target.kind {
        TargetKind::Rack => run.spec.held_targets.as_slice(),
        TargetKind::Machine | TargetKind::Switch | TargetKind::PowerShelf => {
            std::slice::from_ref(&run.spec.target)
        }
    };
    for target in targets {
        let latest = tx.latest_runs(target, MAX_RECENT_RUNS).await?;
        // Runs that only read the device do not invalidate the steps of this run.
        let latest =
            latest.into_iter().find(|one| one.spec.id == run.spec.id || changes_device(one));
        if let Some(latest) = latest.filter(|latest| is_later_run(latest, run)) {
            return Ok(Some(latest));
        }
    }
    Ok(None)
}

/// True if a run may leave its device in another state than it found it in.
fn changes_device(run: &Run) -> bool {
    !matches!(run.spec.run_type, RunType::Intake | RunType::Check)
}

/// True if `latest` acted on the device after `run`, and is not one of its child runs.
fn is_later_run(latest: &Run, run: &Run) -> bool {
    let own =
        latest.spec.id == run.spec.id || latest.spec.parent_run.as_ref() == Some(&run.spec.id);
    let before =
        run.spec.target.kind == TargetKind::Rack && latest.spec.created_at < run.spec.created_at;
    !own && !before
}

fn superseded(run: &Run, latest: &Run) -> Refusal {
    let message = format!(
        "{} has been followed by {} on {}: its steps may no longer fit",
        run.spec.id, latest.spec.id, latest.spec.target
    );
    let next = match run.spec.target.kind {
        _ if run.works_on_node() => format!("farrier why {}", latest.spec.id),
        TargetKind::Machine | TargetKind::Rack => run.command("rerun"),
        TargetKind::Switch | TargetKind::PowerShelf => run.spec.target.show_command(),
    };
    Refusal::new(Reason::RunSuperseded, message).next(next)
}
