//! Rollouts: requests, and the turn that starts and follows the runs of the targets.
//!
//! The model decides about the waves and about each target. `turn` carries its decisions out: each
//! row of a target is written in the transaction that starts its run. `create` fixes the targets.

mod create;
mod turn;

pub use create::{CreatedRollout, NewRollout};
pub(crate) use turn::{TurnResources, work_on_targets};

use crate::access::Caller;
use crate::admission::event;
use crate::{Change, Engine};
use model::here;
use model::id::{MachineId, RolloutId};
use model::lifecycle::Lifecycle;
use model::order::Selection;
use model::refusal::Refusal;
use model::rollout::{
    Pace, Rollout, RolloutEditor, RolloutRequest, RolloutTarget, TargetState,
    apply_rollout_request, check_skip, explain_rollout,
};
use model::run::HistoryNote;
use model::run::actions::Requester;
use model::time::Timestamp;
use model::version::check_version;
use model::why::Explanation;
use store::{Cause, NewEvent, RecordPage, Result, StoreError, Tx};

/// How many waiting targets an explanation names.
const MAX_EXPLAINED: i64 = 10;

/// The service for rollouts.
#[derive(Clone)]
pub struct Rollouts(pub(crate) Engine);

impl Rollouts {
    pub async fn get(&self, id: &RolloutId) -> Result<Rollout> {
        let read = self.0.store().read(id.clone(), |id, tx| Box::pin(known_rollout(tx, id)));
        read.await
    }

    pub async fn list(
        &self,
        selection: impl Into<Selection>,
        after: Option<String>,
        limit: usize,
    ) -> Result<RecordPage<Rollout>> {
        let input = (self.0.caller().visible(selection), after, limit);
        let found = self.0.store().scan(input, |(selection, after, limit), tx| {
            Box::pin(tx.selected_records(selection, after.as_deref(), *limit))
        });
        let page = found.await?;
        self.0.store().unreadable().record(&page.unreadable);
        Ok(page)
    }

    /// The targets after a position; of one state, if one is named.
    pub async fn targets(
        &self,
        id: &RolloutId,
        state: Option<TargetState>,
        after: Option<u32>,
        limit: i64,
    ) -> Result<Vec<RolloutTarget>> {
        let input = (id.clone(), state, after, limit);
        let read = self.0.store().scan(input, |(id, state, after, limit), tx| {
            Box::pin(async move {
                known_rollout(tx, id).await?;
                tx.rollout_targets(id, *state, *after, *limit).await
            })
        });
        read.await
    }

    /// Carries out a request of an operator.
    pub async fn request(
        &self,
        id: &RolloutId,
        request: RolloutRequest,
        who: Requester,
    ) -> Result<Rollout> {
        let (by, verb) = (who.by.clone(), request.verb());
        let write = self.change(id, who);
        let done = self.0.store().retry_write(
            "change_rollout",
            (write, request),
            |(write, request), tx| Box::pin(write.request(tx, request)),
        );
        self.0.trace_refusal(id.as_str(), (&by, verb), done.await)
    }

    /// Changes the pace, at this version of the rollout if one is named.
    pub async fn update(
        &self,
        id: &RolloutId,
        change: Change<Rollout, Pace>,
        version: Option<i64>,
        who: Requester,
    ) -> Result<Rollout> {
        let by = who.by.clone();
        let write = self.change(id, who);
        let done = self.0.store().retry_write(
            "update_rollout",
            (write, change, version),
            |(write, change, version), tx| {
                Box::pin(async move {
                    let stored = known_rollout(tx, &write.id).await?;
                    let next = format!("farrier rollout get {}", write.id);
                    check_version(&write.id, stored.head.version, *version, next)?;
                    let pace = change(&stored)?;
                    pace.check("rollout.pace")?;
                    write.request(tx, &RolloutRequest::Update(Box::new(pace))).await
                })
            },
        );
        self.0.trace_refusal(id.as_str(), (&by, "update"), done.await)
    }

    /// Leaves one target out that is not at work.
    pub async fn skip(
        &self,
        id: &RolloutId,
        machine: &MachineId,
        who: Requester,
    ) -> Result<Rollout> {
        let by = who.by.clone();
        let write = self.change(id, who);
        let done = self.0.store().retry_write(
            "skip_rollout_target",
            (write, machine.clone()),
            |(write, machine), tx| Box::pin(write.skip(tx, machine)),
        );
        self.0.trace_refusal(id.as_str(), (&by, "skip"), done.await)
    }

    fn change(&self, id: &RolloutId, who: Requester) -> ChangeRollout {
        let (caller, now) = (self.0.caller().clone(), self.0.now());
        ChangeRollout { id: id.clone(), who, caller, now }
    }

    pub async fn explain(&self, id: &RolloutId) -> Result<Explanation> {
        let input = (id.clone(), self.0.now());
        let read = self.0.store().scan(input, |(id, now), tx| {
            Box::pin(async move {
                let rollout = known_rollout(tx, id).await?;
                let failures = tx.rollout_failures(id).await?;
                let mut held = Vec::new();
                for state in [TargetState::Waiting, TargetState::Active] {
                    let some = tx.rollout_targets(id, Some(state), None, MAX_EXPLAINED).await?;
                    held.extend(some.into_iter().filter(|one| !one.reason.is_empty()));
                }
                Ok(explain_rollout(&rollout, &failures, &held, *now))
            })
        });
        read.await
    }
}

/// The input that the requests to one rollout share.
struct ChangeRollout {
    id: RolloutId,
    who: Requester,
    caller: Caller,
    now: Timestamp,
}

impl ChangeRollout {
    async fn request(&self, tx: &mut Tx, request: &RolloutRequest) -> Result<Rollout> {
        let rollout = locked_rollout(tx, &self.id).await?;
        let changed = apply_rollout_request(&rollout, request, &self.who.by, self.now)?;
        let Some((mut after, note)) = changed else { return Ok(rollout) };
        if request.makes_editor() {
            require_operation(&self.caller, &after)?;
            after.editor = RolloutEditor::new(self.caller.principal());
        }
        match request {
            RolloutRequest::Abort { cancel_running, .. } => {
                let reason = "the rollout was aborted";
                let skipped = tx.skip_unbegun_targets(&self.id, reason, self.now).await?;
                check_count(&self.id, rollout.counts.pending + rollout.counts.waiting, skipped)?;
                if *cancel_running {
                    tx.look_at_active_targets(&self.id, self.now).await?;
                }
            }
            RolloutRequest::RetryFailed => {
                let retried = tx.retry_failed_targets(&self.id, self.now).await?;
                check_count(&self.id, rollout.counts.failed, retried)?;
            }
            RolloutRequest::Pause { .. }
            | RolloutRequest::Resume
            | RolloutRequest::Promote
            | RolloutRequest::Update(_) => {}
        }
        self.write(tx, &rollout, after, &note)
    }

    async fn skip(&self, tx: &mut Tx, machine: &MachineId) -> Result<Rollout> {
        let rollout = locked_rollout(tx, &self.id).await?;
        let found = tx.rollout_target(&self.id, machine).await?;
        let target = found.ok_or_else(|| no_target(&self.id, machine))?;
        check_skip(&rollout, &target)?;
        let mut after = rollout.clone();
        after.counts.shift(target.state, TargetState::Skipped, 1);
        let reason = match self.who.reason.as_str() {
            "" => format!("skipped by {}", self.who.by),
            reason => format!("skipped by {}: {reason}", self.who.by),
        };
        let note = HistoryNote::new(format!("{machine} {reason}"), here!());
        let target = target.ended(TargetState::Skipped, &reason, self.now);
        tx.update_rollout_target(&self.id, &target)?;
        self.write(tx, &rollout, after, &note)
    }

    fn write(
        &self,
        tx: &mut Tx,
        before: &Rollout,
        mut after: Rollout,
        note: &HistoryNote,
    ) -> Result<Rollout> {
        if after.state_name() != before.state_name() {
            after.head.since = self.now;
        }
        tx.update_and_enqueue(&mut after, &self.event(note))?;
        Ok(after)
    }

    fn event(&self, note: &HistoryNote) -> NewEvent {
        event(Cause::Request, &self.who.by, note.message.clone(), note.code_line, self.now)
    }
}

/// The rollout acts with the rights of this caller from now on, so it must have them.
fn require_operation(caller: &Caller, rollout: &Rollout) -> Result<()> {
    let (needed, granted) = (rollout.needed_permissions(), caller.grants().everywhere);
    Ok(caller.require_all(granted, needed, &rollout.spec.operation.words())?)
}

/// The record counts its targets: both move in one transaction.
fn check_count(id: &RolloutId, expected: u32, found: u64) -> Result<()> {
    if u64::from(expected) == found {
        return Ok(());
    }
    let message = format!("rollout {id}: {found} targets where {expected} are counted");
    Err(StoreError::Corrupt(message))
}

async fn known_rollout(tx: &mut Tx, id: &RolloutId) -> Result<Rollout> {
    Ok(tx.record::<Rollout>(id.as_str()).await?.ok_or_else(|| no_rollout(id))?)
}

async fn locked_rollout(tx: &mut Tx, id: &RolloutId) -> Result<Rollout> {
    Ok(tx.record_locked::<Rollout>(id.as_str()).await?.ok_or_else(|| no_rollout(id))?)
}

pub(crate) fn no_rollout(id: &RolloutId) -> Refusal {
    Refusal::not_found("rollout", id, "farrier rollout list")
}

fn no_target(id: &RolloutId, machine: &MachineId) -> Refusal {
    let next = format!("farrier rollout targets {id}");
    Refusal::not_found(&format!("target of {id} named"), machine, &next)
}
