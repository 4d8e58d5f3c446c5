//! Admission: the only code that creates runs.
//!
//! Requests, lifecycles and parent runs all create their runs here: a repeated request is
//! recognised, the devices are held, the creation time is set, and the run is inserted with its
//! event and its queue row. After the commit every new run is counted once, and a run that this
//! replica has claimed gets its turn. The gates are pure functions of the model; the transaction
//! makes them hold under concurrency. The gates `window`, `freeze`, `budget` and `approval` are
//! asked last, for all runs of a request.

mod approval;
mod budget;
mod images;
mod proposal;
mod restart;
mod start;
mod window;

pub use restart::RestartRequest;
pub use start::{StartRequest, StartedRun};

pub(crate) use approval::{ApprovalGate, approval_sentence};
pub(crate) use budget::{
    MachinesTaken, admit_taken_by, find_start_refusal, foresee_budgets, foresee_taken, take_unasked,
};
pub(crate) use proposal::{override_lines, sealed, step_lines};
pub(crate) use restart::{current_run, may_continue_alone, overrides_of};
pub(crate) use start::{RecordStart, StartRun, admit_again_now};
pub(crate) use window::OperationStart;

use crate::Engine;
use crate::access::Caller;
use crate::holds::hold_devices;
use model::approval::Proposal;
use model::gate::Overrides;
use model::id::{MachineId, RunId};
use model::lifecycle::SubjectId;
use model::machine::Machine;
use model::refusal::{Reason, Refusal};
use model::rollout::TargetState;
use model::run::{Run, RunSpec, apply_to_machine};
use model::target::TargetId;
use model::time::{Timestamp, format_duration};
use store::{
    Cause, ClaimedRun, Enqueue, NewEvent, REMOVED, Result, StoreError, Tx, TxBody, TxInput,
    TxOutput,
};

/// The epoch of a run that is claimed by the transaction that creates it.
pub(crate) const FIRST_EPOCH: i64 = 1;

/// The devices that a new run holds.
pub(crate) enum Holds<'a> {
    /// The caller has locked this machine. `note` is appended to the message in its history.
    Machine { machine: &'a mut Machine, note: &'a str },
    /// The target and the claims of the run, all or none. `own` is the record that creates the run;
    /// it names the run itself.
    Targets { own: Option<&'a SubjectId> },
    /// None yet: the parent run holds the target, or the run takes its devices when it begins.
    Nothing,
}

pub(crate) struct Admission<'a> {
    pub run: Run,
    pub enqueue: Enqueue<'a>,
    pub holds: Holds<'a>,
    pub event: &'a NewEvent,
}

/// The runs that a transaction has created, and the targets of rollouts that it has settled; passed
/// to [`Engine::after_commit`].
#[derive(Default)]
#[must_use]
pub(crate) struct Created(Vec<(Run, Option<ClaimedRun>)>, Vec<TargetState>);

impl Created {
    /// Inserts a run: creation time, holds, row with event, and queue row.
    pub async fn add(&mut self, tx: &mut Tx, admission: Admission<'_>) -> Result<Run> {
        let Admission { mut run, enqueue, holds, event } = admission;
        let at = match &holds {
            Holds::Machine { machine, .. } => not_before(event.at, machine.updated_at),
            Holds::Targets { own } => {
                // Lock first, so that no other run is created on the target meanwhile.
                hold_devices(tx, &run, *own, event).await?;
                time_after_runs(tx, event.at, std::slice::from_ref(&run.spec.target)).await?
            }
            Holds::Nothing => event.at,
        };
        run.spec.created_at = at;
        let event = &NewEvent { at, ..event.clone() };
        tx.insert_run(&run, enqueue, event)?;
        if let Holds::Machine { machine, note } = holds {
            apply_to_machine(machine, &run, &[], at);
            let message = format!("held by {}{note}", run.spec.id);
            tx.update_machine(machine, &NewEvent { message, ..event.clone() })?;
        }
        let claimed = match enqueue {
            Enqueue::Claimed(owner) => {
                let (run, owner) = (run.clone(), Some(owner.to_string()));
                Some(ClaimedRun { run, epoch: FIRST_EPOCH, wakes_requested: 1, owner })
            }
            Enqueue::Now | Enqueue::WhenWoken => None,
        };
        self.0.push((run.clone(), claimed));
        Ok(run)
    }

    /// Counts a target that a rollout leaves in this state.
    pub fn settle_target(&mut self, state: TargetState) {
        self.1.push(state);
    }

    /// Refuses the transaction if its caller lacks a permission that the steps of a run need.
    async fn check_permissions(&self, tx: &mut Tx, caller: &Caller) -> Result<()> {
        for (run, _) in &self.0 {
            let granted = caller.on_targets(tx, &run.spec).await?;
            caller.require_all(granted, run.spec.permissions(), run.spec.run_type.as_str())?;
        }
        Ok(())
    }

    /// Refuses the transaction if its runs start outside of the windows of their machines, or take
    /// more machines than the budgets allow. A run that is created as failed takes nothing, and of
    /// a child run its parent does.
    async fn take_machines(&self, tx: &mut Tx, caller: &Caller, now: Timestamp) -> Result<()> {
        for (run, _) in &self.0 {
            if run.ended() || run.spec.parent_run.is_some() {
                continue;
            }
            let overrides = Overrides::of_params(&run.spec.params);
            let note = admit_taken_by(tx, run, &overrides, caller, Some(now)).await?;
            if !note.is_empty() {
                tx.annotate_new_run(run, &note)?;
            }
        }
        Ok(())
    }

    /// The actions of the request, for its approval; none if it creates no run.
    fn proposal(&self) -> Option<Proposal> {
        let runs: Vec<&Run> = self.0.iter().map(|(run, _)| run).collect();
        proposal::of_runs(&runs)
    }

    /// Adds the result of the gate `approval` to the history of every run.
    fn record_approval(&self, tx: &mut Tx, note: &str) -> Result<()> {
        let mut runs = self.0.iter().filter(|_| !note.is_empty());
        runs.try_for_each(|(run, _)| tx.annotate_new_run(run, note))
    }
}

/// A time after `last_change`, even if the replica that made the change has a faster clock. The
/// latest run on a target is found by its creation time, and only that run may continue.
pub(crate) fn not_before(now: Timestamp, last_change: Timestamp) -> Timestamp {
    now.max(last_change + Timestamp::TICK)
}

/// [`not_before`] for every run on these targets.
pub(crate) async fn time_after_runs(
    tx: &mut Tx,
    now: Timestamp,
    targets: &[TargetId],
) -> Result<Timestamp> {
    Ok(not_before(now, tx.newest_run_at(targets).await?))
}

/// Returns the run of a repeated request. A different request with the same id is refused.
pub(crate) fn replay(run: Run, same: bool) -> Result<Run> {
    if same { Ok(run) } else { Err(reused(&run).into()) }
}

/// The request id was used before, with other parameters.
pub(crate) fn reused(run: &Run) -> Refusal {
    let RunSpec { request_id, target, run_type, id, .. } = &run.spec;
    let kind = run_type.as_str();
    let message = format!(
        "request_id {request_id:?} was used on {target} for {kind} {id}, with other parameters"
    );
    Refusal::new(Reason::RequestIdReused, message)
        .next(format!("farrier operation get {id}   # or repeat with a new --request-id"))
}

impl Engine {
    /// Commits a request that may create runs. `claimed` is the run that this replica claims
    /// as it creates it.
    pub(crate) async fn admit<I: TxInput, T: TxOutput>(
        &self,
        name: &'static str,
        claimed: Option<RunId>,
        input: I,
        body: impl TxBody<I, (T, Created)>,
    ) -> Result<T> {
        let engine = self.clone();
        let gate = ApprovalGate::new(self);
        let checked = (input, body, gate.clone(), self.clock());
        let written = async move {
            let written = engine.store().retry_write(name, checked, |checked, tx| {
                let (input, body, gate, clock) = checked;
                Box::pin(async move {
                    let (value, created) = body(input, tx).await?;
                    created.check_permissions(tx, gate.caller()).await?;
                    created.take_machines(tx, gate.caller(), clock()).await?;
                    let note = gate.check(tx, created.proposal()).await?;
                    created.record_approval(tx, &note)?;
                    Ok((value, created))
                })
            });
            let (value, created) = match gate.settle(&engine, written.await).await {
                Err(StoreError::Refused(refusal)) if !engine.store().is_dry_run() => {
                    let reason = refusal.reason.as_str();
                    tracing::info!(request = name, reason, %refusal, "operation refused");
                    return Err(StoreError::Refused(refusal));
                }
                written => written?,
            };
            engine.after_commit(created);
            Ok(value)
        };
        let Some(id) = claimed else { return written.await };
        let engine = self.clone();
        // In its own task: a disconnected client must not leave a claimed run without its turn.
        let task = tokio::spawn(async move {
            let written = written.await;
            if let Err(StoreError::Unavailable(_)) = &written {
                // The commit may have succeeded, and then this replica has claimed the run.
                tokio::spawn(engine.scheduler().release_uncertain_claim(id));
            }
            written
        });
        task.await.unwrap_or_else(|_| Err(StoreError::Corrupt("the request panicked".into())))
    }

    /// Counts the runs of a committed transaction and starts the turns of the claimed ones. A dry
    /// run has created none.
    pub(crate) fn after_commit(&self, created: Created) {
        if self.store().is_dry_run() {
            return;
        }
        for state in created.1 {
            let state = state.as_str();
            metrics::counter!("farrier_rollout_targets_total", "state" => state).increment(1);
        }
        for (Run { spec, .. }, claimed) in created.0 {
            let kind = spec.run_type.as_str();
            // A child run reports through its parent; a routine one only when it fails.
            if spec.parent_run.is_none() && !spec.run_type.is_routine() {
                let RunSpec { id, target, initiator: by, request_id, .. } = &spec;
                tracing::info!(run = %id, %target, kind, by, request_id, "operation accepted");
            }
            metrics::counter!("farrier_runs_started_total", "type" => kind).increment(1);
            if let Some(claimed) = claimed {
                self.scheduler().spawn_turn(claimed);
            }
        }
    }
}

pub(crate) fn no_machine(id: &MachineId) -> Refusal {
    Refusal::not_found("machine", id, "farrier list")
}

/// Reads a machine and locks it. One that does not exist is refused.
pub(crate) async fn lock_machine(tx: &mut Tx, id: &MachineId, now: Timestamp) -> Result<Machine> {
    match tx.machine_locked(id).await? {
        Some(machine) => Ok(machine),
        None => Err(missing_machine(tx, id, now).await?.into()),
    }
}

/// The refusal for a machine that does not exist: it was deleted, or never registered.
pub(crate) async fn missing_machine(
    tx: &mut Tx,
    id: &MachineId,
    now: Timestamp,
) -> Result<Refusal> {
    Ok(find_deletion(tx, id.as_str(), now).await?.unwrap_or_else(|| no_machine(id)))
}

/// The refusal for a machine that was deleted; none if it was never registered, or if its history
/// has expired.
pub(crate) async fn find_deletion(
    tx: &mut Tx,
    id: &str,
    now: Timestamp,
) -> Result<Option<Refusal>> {
    let last = tx.last_event(id).await?.filter(|last| last.state == REMOVED);
    Ok(last.map(|last| {
        let ago = format_duration(now.since(last.ts));
        let message = format!("{id} was deleted {ago} ago by {}", last.actor);
        Refusal::new(Reason::NotFound, message).next(format!("farrier history {id}"))
    }))
}

pub(crate) fn no_run(id: &RunId) -> Refusal {
    Refusal::not_found("operation", id, "farrier operation list")
}

pub(crate) fn event(cause: Cause, by: &str, text: String, line: &str, at: Timestamp) -> NewEvent {
    NewEvent { cause, actor: by.into(), message: text, decided_by: line.into(), at }
}
