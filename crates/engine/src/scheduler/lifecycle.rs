//! The turn of a lifecycle: advances one claimed record until it is idle, in one transaction.
//!
//! A lifecycle calls no provider, so it records no intent: the record, its history, its event, the
//! runs that it starts and its queue row are written together, or not at all.

use super::Scheduler;
use crate::admission::{Admission, Created, Holds, find_start_refusal, take_unasked};
use crate::holds::halt_run;
use crate::rollout::TurnResources;
use crate::topology::{self, DeviceLocation};
use crate::{Settings, rack};
use model::host::Host;
use model::id::{ObjectId, RunId};
use model::lifecycle::{Lifecycle, LifecycleChange, LifecycleDecision, SubjectId, SubjectKind};
use model::node::Node;
use model::plan::RunType;
use model::power_shelf::PowerShelf;
use model::rack::Rack;
use model::refusal::Refusal;
use model::rollout::Rollout;
use model::run::HistoryNote;
use model::run::actions::Action;
use model::site::Site;
use model::switch::Switch;
use model::time::Timestamp;
use std::time::Duration;
use store::{Cause, ClaimedObject, Enqueue, NewEvent, RecordClaim, Result, StoreError, Tx};

/// More transitions than this in one turn mean a loop in the lifecycle.
const MAX_TRANSITIONS: u64 = 64;
/// The wait before a retry when the database is unavailable.
const DATABASE_RETRY: Duration = Duration::from_millis(250);
/// The maximum number of retries of a turn after a write conflict.
const MAX_CONFLICTS: u32 = 20;

/// The wait before a lifecycle asks again whether windows, freezes and budgets allow its operation.
const START_RETRY: Duration = Duration::from_secs(15);

/// Loads the context that a turn needs beside its record.
pub(crate) trait LoadContext: Lifecycle {
    /// `fresh` is an id for a run that the turn may start.
    fn load_context(
        &self,
        tx: &mut Tx,
        fresh: RunId,
        now: Timestamp,
    ) -> impl Future<Output = Result<Self::TurnInput>> + Send;

    /// Adds the server's settings to the context.
    fn with_settings(observed: Self::TurnInput, _settings: &Settings) -> Self::TurnInput {
        observed
    }

    /// Works on the rows that belong to the record, before its decision: returns the record that
    /// counts them, with the note. None: there was nothing to do, or no count has changed.
    fn work_on_rows(
        &self,
        _tx: &mut Tx,
        _resources: &TurnResources,
        _created: &mut Created,
    ) -> impl Future<Output = Result<Option<(Self, HistoryNote)>>> + Send {
        async { Ok(None) }
    }

    /// Further writes in the transaction of a transition.
    fn follow_up(
        &self,
        _before: &Self,
        _tx: &mut Tx,
        _event: &NewEvent,
    ) -> impl Future<Output = Result<()>> + Send {
        async { Ok(()) }
    }
}

impl Scheduler {
    /// Advances a claimed record. A record that cannot be advanced is retried after a backoff.
    pub(crate) async fn advance_record(&self, claimed: &ClaimedObject, kind: SubjectKind) {
        for _ in 0..MAX_CONFLICTS {
            let moved = match kind {
                SubjectKind::Rack => self.advance_one::<Rack>(claimed).await,
                SubjectKind::Switch => self.advance_one::<Switch>(claimed).await,
                SubjectKind::PowerShelf => self.advance_one::<PowerShelf>(claimed).await,
                SubjectKind::Host => self.advance_one::<Host>(claimed).await,
                SubjectKind::Node => self.advance_one::<Node>(claimed).await,
                SubjectKind::Site => self.advance_one::<Site>(claimed).await,
                SubjectKind::Rollout => self.advance_one::<Rollout>(claimed).await,
            };
            match moved {
                Ok(()) => return,
                // Another transaction wrote first, or another replica has claimed the record.
                Err(StoreError::Conflict) if self.is_still_claimed(claimed).await => {}
                Err(StoreError::Conflict) => return,
                // The database does not accept writes at the moment.
                Err(StoreError::Unavailable(_)) if !self.0.is_stopping() => {
                    tokio::time::sleep(DATABASE_RETRY).await;
                }
                Err(error) => {
                    metrics::counter!("farrier_record_turn_failures_total", "kind" => kind.as_str())
                        .increment(1);
                    tracing::error!(id = %claimed.id, %error, "the record cannot be advanced; it is retried after a backoff");
                    break;
                }
            }
        }
        self.requeue_with_backoff(claimed.id.clone(), claimed.epoch).await;
    }

    /// True if the claim still stands, or if the database cannot be read: the next attempt finds
    /// out.
    async fn is_still_claimed(&self, claimed: &ClaimedObject) -> bool {
        let ClaimedObject { id, epoch, .. } = claimed.clone();
        let claim = self
            .0
            .store()
            .read_one((id, epoch), |(id, epoch), tx| Box::pin(tx.is_claimed(id, *epoch)));
        claim.await.unwrap_or(true)
    }

    async fn advance_one<R: LoadContext>(&self, claimed: &ClaimedObject) -> Result<()> {
        let advance = RecordTurn {
            key: claimed.id.clone(),
            claim: RecordClaim { epoch: claimed.epoch, wakes_handled: claimed.wakes_requested },
            resources: TurnResources::new(&self.0),
            settings: self.0.settings().clone(),
        };
        let created =
            self.0.store().write("advance", advance, |advance, tx| Box::pin(advance.run::<R>(tx)));
        let TurnOutcome { created, held_back } = created.await?;
        self.0.after_commit(created);
        if let Some((id, refusal)) = held_back {
            self.0.note_refusal(&id, ("engine", "start of an operation"), &refusal);
        }
        Ok(())
    }
}

struct RecordTurn {
    key: ObjectId,
    claim: RecordClaim,
    resources: TurnResources,
    settings: Settings,
}

#[derive(Default)]
struct TurnOutcome {
    created: Created,
    /// The record, if a window, a freeze or a budget keeps it from starting an operation now.
    held_back: Option<(String, Refusal)>,
}

impl RecordTurn {
    async fn run<R: LoadContext>(&self, tx: &mut Tx) -> Result<TurnOutcome> {
        let mut outcome = TurnOutcome::default();
        let id = SubjectId::from_key(R::KIND, self.key.as_str()).id;
        let Some(mut record) = tx.record_locked::<R>(&id).await? else {
            // The record and its queue row were removed since the claim.
            return Ok(outcome);
        };
        let now = self.resources.now;
        let worked = record.work_on_rows(tx, &self.resources, &mut outcome.created).await?;
        if let Some((after, note)) = worked {
            let change = LifecycleChange::new(after, note);
            record = self.apply_change(tx, &record, change, &mut outcome.created).await?;
        }
        for turn in 0..MAX_TRANSITIONS {
            let fresh = self.resources.run_id(turn);
            let observed =
                R::with_settings(record.load_context(tx, fresh, now).await?, &self.settings);
            match record.next(&observed, now) {
                LifecycleDecision::Idle(_) => {
                    tx.settle_record(&record, self.claim, None, now)?;
                    return Ok(outcome);
                }
                LifecycleDecision::IdleUntil(at, _) => {
                    tx.settle_record(&record, self.claim, Some(at), now)?;
                    return Ok(outcome);
                }
                LifecycleDecision::Remove(note) => {
                    let event = self.event(&note);
                    tx.remove_record(&record, &event)?;
                    let message = format!("{id} was removed");
                    let event = NewEvent { message, ..event };
                    let from = DeviceLocation::of(record.head());
                    topology::mark_racks_changed(tx, &from, &DeviceLocation::NOWHERE, &event)
                        .await?;
                    return Ok(outcome);
                }
                // The run that holds the device wakes the record when it releases it.
                LifecycleDecision::Transition(change)
                    if takes_held_device(&record, &change.record) =>
                {
                    tx.settle_record(&record, self.claim, None, now)?;
                    return Ok(outcome);
                }
                LifecycleDecision::Transition(change) => {
                    if let Some(refusal) = self.find_start_refusal(tx, &change).await? {
                        let again = Some(now + START_RETRY);
                        tx.settle_record(&record, self.claim, again, now)?;
                        outcome.held_back = Some((id, refusal));
                        return Ok(outcome);
                    }
                    record = self.apply_change(tx, &record, *change, &mut outcome.created).await?;
                }
            }
        }
        Err(StoreError::Corrupt(format!("{} moves in a circle", self.key)))
    }
}

/// A lifecycle never takes its device from another run: that run releases it when it ends.
fn takes_held_device<R: Lifecycle>(before: &R, after: &R) -> bool {
    let holder = &before.head().active_run;
    holder.is_some() && *holder != after.head().active_run
}

impl RecordTurn {
    /// The refusal by a window, a freeze or a budget, if the transition starts a run that they do
    /// not allow now. What a request has taken before counts already.
    async fn find_start_refusal<R: LoadContext>(
        &self,
        tx: &mut Tx,
        change: &LifecycleChange<R>,
    ) -> Result<Option<Refusal>> {
        for new in &change.start {
            let run = new.clone().into_run(self.resources.now);
            if let Some(refusal) = find_start_refusal(tx, &run, self.resources.now).await? {
                return Ok(Some(refusal));
            }
        }
        Ok(None)
    }

    async fn apply_change<R: LoadContext>(
        &self,
        tx: &mut Tx,
        before: &R,
        change: LifecycleChange<R>,
        created: &mut Created,
    ) -> Result<R> {
        let LifecycleChange { mut record, note, start, begin, cancel } = change;
        let event = self.event(&note);
        if record.state_name() != before.state_name() {
            record.head_mut().since = self.resources.now;
            // A rack may wait for the state of its devices.
            if let Some(rack) = &record.head().rack {
                tx.wake(&rack.object(), self.resources.now)?;
            }
        }
        tx.update_record(&mut record, &event)?;
        record.follow_up(before, tx, &event).await?;
        let own = record.subject();
        for new in start {
            let (run, holds) =
                (new.into_run(self.resources.now), Holds::Targets { own: Some(&own) });
            let admission = Admission { run, enqueue: Enqueue::Now, holds, event: &event };
            let run = created.add(tx, admission).await?;
            take_unasked(tx, &run).await?;
            if run.spec.run_type == RunType::RackMaintenance {
                rack::start_operation(tx, &run.spec.id, true, &event).await?;
            }
        }
        for id in begin {
            rack::start_operation(tx, &id, false, &event).await?;
        }
        for (id, reason) in cancel {
            halt_run(tx, &id, Action::Cancel, &reason, &event).await?;
        }
        Ok(record)
    }

    fn event(&self, note: &HistoryNote) -> NewEvent {
        NewEvent {
            cause: Cause::Engine,
            actor: "engine".into(),
            message: note.message.clone(),
            decided_by: note.code_line.into(),
            at: self.resources.now,
        }
    }
}
