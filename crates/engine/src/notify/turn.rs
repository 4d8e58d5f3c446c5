//! The turn of a notifier: follows the events and sends its notices, one after the other.
//!
//! A notice counts as sent when the receiver has accepted it and the commit that says so names the
//! epoch of the claim. A crash between the two sends it again, with the same id: at least once, in
//! order. A receiver that fails delays its own notices only.

use super::reader::notices_of;
use super::settlement::{LetterWrite, Loaded, Settlement, load};
use crate::Engine;
use crate::watch::WatcherGuard;
use futures_util::FutureExt;
use model::filter::Filter;
use model::id::ObjectId;
use model::notify::{
    AfterFailure, DeadLetter, Delivery, Notice, NoticeKind, NoticeOutcome, Notifier, NotifierSpec,
    SendFailure, after_failure,
};
use std::sync::Arc;
use std::time::Duration;
use store::{
    ClaimedObject, Cursor, NotifierClaim, Result, StoreError, StoredNotifier, notifier_of,
};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// The most events that one read of the database returns.
const BATCH: i64 = 100;
/// The longest time for which the position of a notifier without notices is not written.
const POSITION_INTERVAL: Duration = Duration::from_secs(60);
/// The wait before a retry when the database does not answer.
const DATABASE_RETRY: Duration = Duration::from_millis(500);
/// The longest attempt, whatever the sender does.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);

/// What the turn does after one step.
enum Step {
    Continue,
    /// Waits for events, or this long.
    AwaitEvents(Duration),
    /// Waits this long, whatever happens to other objects.
    Sleep(Duration),
    /// Releases the claim until the notifier is changed.
    Release,
}

/// What was sent or not, and what follows.
enum Sent {
    Accepted,
    Failed(SendFailure),
    /// The process stops.
    Interrupted,
}

/// One claimed notifier.
pub(crate) struct NotifierTurn {
    engine: Engine,
    key: ObjectId,
    name: String,
    epoch: i64,
    woken: Arc<Notify>,
    newest: watch::Receiver<Cursor>,
    state: Option<LoadedNotifier>,
    _watcher: WatcherGuard,
}

/// A notifier as it was loaded, with what this turn has done since.
struct LoadedNotifier {
    notifier: Notifier,
    filter: Filter,
    /// The last event that is done. The stored one may be older.
    position: Cursor,
    /// The first dead letter to be sent again.
    replay: Option<DeadLetter>,
    wakes: i64,
    stale: bool,
    /// The time of the last write, if the position has moved since.
    unsaved_since: Option<Instant>,
}

impl NotifierTurn {
    pub fn new(engine: Engine, claimed: ClaimedObject, woken: Arc<Notify>) -> Self {
        let name = notifier_of(&claimed.id).to_string();
        let (watcher, newest) = (engine.hub().add_watcher(), engine.hub().newest());
        let (key, epoch) = (claimed.id, claimed.epoch);
        Self { engine, key, name, epoch, woken, newest, state: None, _watcher: watcher }
    }

    /// Sends until the claim is lost, the notifier is paused or deleted, or the process stops.
    pub async fn run(mut self) {
        loop {
            let step = match self.advance().await {
                Ok(step) => step,
                Err(StoreError::Conflict) => {
                    tracing::info!(notifier = self.name, "another replica sends its notices now");
                    return;
                }
                Err(error) => {
                    tracing::warn!(notifier = self.name, %error, "its notices wait for the database");
                    Step::Sleep(DATABASE_RETRY)
                }
            };
            if self.engine.is_stopping() || matches!(step, Step::Release) {
                return self.release().await;
            }
            self.wait(&step).await;
        }
    }

    async fn wait(&mut self, step: &Step) {
        let (limit, follows) = match step {
            Step::Release => return,
            Step::Continue => (Duration::ZERO, false),
            Step::AwaitEvents(limit) => (*limit, true),
            Step::Sleep(limit) => (*limit, false),
        };
        tokio::select! {
            biased;
            () = self.engine.stopped() => {}
            () = self.woken.notified() => {
                if let Some(state) = &mut self.state {
                    state.set_stale();
                }
            }
            changed = self.newest.changed(), if follows => drop(changed),
            () = tokio::time::sleep(limit) => {}
        }
    }

    async fn advance(&mut self) -> Result<Step> {
        let Some(mut state) = self.current().await? else { return Ok(Step::Release) };
        let step = self.advance_loaded(&mut state).await;
        // After an error the stored state decides: the commit may have taken effect.
        self.state = step.is_ok().then_some(state);
        step
    }

    async fn advance_loaded(&self, state: &mut LoadedNotifier) -> Result<Step> {
        if state.notifier.paused {
            self.save_position(state).await?;
            return Ok(Step::Release);
        }
        let now = self.engine.now();
        if let Some(at) = state.notifier.delivery.not_before.filter(|at| *at > now) {
            return Ok(Step::Sleep(at.since(now)));
        }
        if let Some(letter) = state.replay.clone() {
            return self.replay(state, letter).await;
        }
        self.follow(state).await
    }

    /// Sends a dead letter again.
    async fn replay(&self, state: &mut LoadedNotifier, letter: DeadLetter) -> Result<Step> {
        let failure = match self.send(&state.notifier.spec, &letter.notice).await {
            Sent::Interrupted => return Ok(Step::Release),
            Sent::Accepted => {
                let delivery = state.notifier.delivery.succeeded(self.engine.now());
                let write = LetterWrite::Delete(letter.id);
                self.settle(state, state.position, delivery, Some(write)).await?;
                return self.load_replay(state).await;
            }
            Sent::Failed(failure) => failure,
        };
        let now = self.engine.now();
        let attempts = letter.attempts + 1;
        // It has its place among the dead letters already.
        let after = after_failure(attempts, state.notifier.spec.max_attempts, 0);
        let letter = DeadLetter {
            attempts,
            problem: failure.message.clone(),
            failed_at: now,
            replaying: after == AfterFailure::Retry,
            ..letter
        };
        let delivery = state.notifier.delivery.failed(&failure, &self.name, now);
        let write = LetterWrite::Update(letter);
        self.settle(state, state.position, delivery, Some(write)).await?;
        self.load_replay(state).await
    }

    async fn load_replay(&self, state: &mut LoadedNotifier) -> Result<Step> {
        let name = self.name.clone();
        let next = self.engine.store().read_one(name, |name, tx| Box::pin(tx.next_replay(name)));
        state.replay = next.await?;
        Ok(Step::Continue)
    }

    /// Sends the notices of the next events, up to the first one that fails.
    async fn follow(&self, state: &mut LoadedNotifier) -> Result<Step> {
        let found = self.engine.hub().object_events_after(state.position, BATCH).await?;
        let Some(events) = found else { return self.skip_deleted(state).await };
        if events.is_empty() {
            let poll = self.engine.settings().poll_interval;
            if state.unsaved_since.is_some_and(|since| since.elapsed() >= POSITION_INTERVAL) {
                self.save_position(state).await?;
            }
            return Ok(Step::AwaitEvents(poll));
        }
        for one in events.iter().take(BATCH as usize) {
            if self.woken.notified().now_or_never().is_some() {
                // It may be paused now, or send to another receiver.
                state.set_stale();
                return Ok(Step::Continue);
            }
            let found = notices_of(self.engine.store(), one).await?;
            let due: Vec<(usize, &Notice)> = state.due_notices(&found);
            let last = due.last().map(|(index, _)| *index);
            for (index, notice) in due {
                let end = (Some(index) == last).then_some(one.event.cursor);
                let step = self.attempt(state, notice, index, end).await?;
                if !matches!(step, Step::Continue) {
                    return Ok(step);
                }
            }
            state.pass(one.event.cursor);
        }
        Ok(Step::Continue)
    }

    /// Sends one notice. `end`: the position after it, if it is the last of its event.
    async fn attempt(
        &self,
        state: &mut LoadedNotifier,
        notice: &Notice,
        index: usize,
        end: Option<Cursor>,
    ) -> Result<Step> {
        let (position, done) = match end {
            Some(cursor) => (cursor, 0),
            None => (state.position, index + 1),
        };
        let failure = match self.send(&state.notifier.spec, notice).await {
            Sent::Interrupted => return Ok(Step::Release),
            Sent::Accepted => {
                let delivery = state.notifier.delivery.succeeded(self.engine.now());
                self.settle(state, position, Delivery { done, ..delivery }, None).await?;
                return Ok(Step::Continue);
            }
            Sent::Failed(failure) => failure,
        };
        let now = self.engine.now();
        let delivery = state.notifier.delivery.failed(&failure, &self.name, now);
        let attempts = delivery.attempts + 1;
        let name = self.name.clone();
        let letters =
            self.engine.store().read_one(name, |name, tx| Box::pin(tx.count_dead_letters(name)));
        match after_failure(attempts, state.notifier.spec.max_attempts, letters.await?) {
            AfterFailure::Retry => {
                let delivery = Delivery { attempts, ..delivery };
                self.settle(state, state.position, delivery, None).await?;
                // The next round waits until it is due, and reads the event again.
                Ok(Step::Sleep(Duration::ZERO))
            }
            AfterFailure::GiveUp => {
                let problem = failure.message.clone();
                let notifier = self.name.as_str();
                tracing::warn!(notifier, id = notice.id, problem, "a notice is a dead letter now");
                count(NoticeOutcome::Dead);
                let letter = DeadLetter {
                    id: 0,
                    notice: notice.clone(),
                    attempts,
                    problem,
                    failed_at: now,
                    replaying: false,
                };
                let delivery = Delivery { attempts: 0, done, ..delivery };
                let write = LetterWrite::Insert(letter);
                self.settle(state, position, delivery, Some(write)).await?;
                Ok(Step::Sleep(Duration::ZERO))
            }
        }
    }

    async fn send(&self, spec: &NotifierSpec, notice: &Notice) -> Sent {
        let Some(sender) = self.engine.providers().webhooks() else {
            return Sent::Failed(no_sender());
        };
        let sending = sender.send(spec, notice, self.engine.now());
        let sent = tokio::select! {
            biased;
            () = self.engine.stopped() => return Sent::Interrupted,
            sent = tokio::time::timeout(SEND_TIMEOUT, sending) => sent,
        };
        let late = || {
            let message = format!("no answer came within {} s", SEND_TIMEOUT.as_secs());
            Err(SendFailure { message, ..SendFailure::default() })
        };
        match sent.unwrap_or_else(|_| late()) {
            Ok(()) => {
                count(NoticeOutcome::Delivered);
                Sent::Accepted
            }
            Err(failure) => {
                count(NoticeOutcome::Failed);
                Sent::Failed(failure)
            }
        }
    }

    /// Goes on behind events that retention has deleted before they were read.
    async fn skip_deleted(&self, state: &mut LoadedNotifier) -> Result<Step> {
        let removed = self
            .engine
            .store()
            .read_one((), |(), tx| Box::pin(tx.newest_removed_object_event()))
            .await?;
        self.skip_to(state, removed).await?;
        Ok(Step::Continue)
    }

    async fn skip_to(&self, state: &mut LoadedNotifier, position: Cursor) -> Result<()> {
        tracing::warn!(
            notifier = self.name,
            from = %state.position,
            to = %position,
            "events were deleted before their notices were sent"
        );
        let missed_at = Some(self.engine.now());
        let delivery =
            Delivery { done: 0, attempts: 0, missed_at, ..state.notifier.delivery.clone() };
        self.settle(state, position, delivery, None).await
    }

    /// The notifier of this turn. None: it was deleted.
    async fn current(&mut self) -> Result<Option<LoadedNotifier>> {
        if let Some(state) = self.state.take_if(|state| !state.stale) {
            return Ok(Some(state));
        }
        let known = self.state.take();
        let input = (self.name.clone(), self.epoch);
        let loaded = self
            .engine
            .store()
            .read_one(input, |(name, epoch), tx| Box::pin(load(tx, name, *epoch)));
        let Some(loaded) = loaded.await? else { return Ok(None) };
        self.handle_wakes(loaded.wakes).await?;
        let Loaded { stored: StoredNotifier { notifier, position }, replay, wakes, horizon } =
            loaded;
        let filter = NotifierSpec::parse_filter(&notifier.spec.filter)?;
        let (stale, unsaved_since) = (false, None);
        let mut state =
            LoadedNotifier { notifier, filter, position, replay, wakes, stale, unsaved_since };
        match known {
            // Its owner has changed it: the next attempt need not wait.
            Some(known) => state.take_over(known),
            // Another copy of the database was put back into this one.
            None if position > horizon => self.skip_to(&mut state, horizon).await?,
            None => {}
        }
        Ok(Some(state))
    }

    async fn handle_wakes(&self, wakes: i64) -> Result<()> {
        let input = (self.claim(), wakes);
        let handled = self.engine.store().write("wake_notifier", input, |(claim, wakes), tx| {
            Box::pin(async move { tx.handle_notifier_wakes(claim, *wakes) })
        });
        handled.await
    }

    async fn save_position(&self, state: &mut LoadedNotifier) -> Result<()> {
        if state.unsaved_since.is_none() {
            return Ok(());
        }
        let delivery = state.notifier.delivery.clone();
        self.settle(state, state.position, delivery, None).await
    }

    async fn settle(
        &self,
        state: &mut LoadedNotifier,
        position: Cursor,
        delivery: Delivery,
        letter: Option<LetterWrite>,
    ) -> Result<()> {
        let claim = self.claim();
        let settlement = Settlement { claim, position, delivery: delivery.clone(), letter };
        let settled = self
            .engine
            .store()
            .write("settle_notice", settlement, |one, tx| Box::pin(async move { one.write(tx) }));
        settled.await?;
        state.position = position;
        state.notifier.delivery = delivery;
        state.unsaved_since = None;
        Ok(())
    }

    fn claim(&self) -> NotifierClaim {
        NotifierClaim { name: self.name.clone(), epoch: self.epoch, now: self.engine.now() }
    }

    /// Gives the claim back. Another replica goes on, or this one when the notifier is changed.
    async fn release(mut self) {
        let (wakes, due) = match self.state.take() {
            Some(mut state) => {
                if let Err(error) = self.save_position(&mut state).await {
                    tracing::warn!(notifier = self.name, %error, "its position is not saved");
                }
                (Some(state.wakes), (!state.notifier.paused).then(|| self.engine.now()))
            }
            None => (None, None),
        };
        let input = (self.key.clone(), self.epoch, wakes, due, self.engine.now());
        let released = self.engine.store().write(
            "release_notifier",
            input,
            |(key, epoch, wakes, due, now), tx| {
                Box::pin(async move {
                    match wakes {
                        Some(wakes) => tx.release(key, *epoch, *wakes, *due, *now),
                        // It was not read: it is due at once.
                        None => tx.release_unhandled(key, *epoch, *now),
                    }
                })
            },
        );
        if let Err(error) = released.await {
            tracing::warn!(notifier = self.name, %error, "its claim is released when it expires");
        }
    }
}

impl LoadedNotifier {
    /// Its owner has changed it: it is read again before the next step.
    fn set_stale(&mut self) {
        self.stale = true;
    }

    /// Takes over what this turn has done and not written. Only this turn moves the position.
    fn take_over(&mut self, known: Self) {
        self.position = known.position;
        self.unsaved_since = known.unsaved_since;
        self.notifier.delivery = known.notifier.delivery.retried_now();
    }

    /// The notices of the next event that this notifier gets and has not sent, each with its place
    /// among all notices of the event.
    fn due_notices<'a>(&self, found: &'a [(NoticeKind, Notice)]) -> Vec<(usize, &'a Notice)> {
        let spec = &self.notifier.spec;
        let wanted = |notice: &(NoticeKind, Notice)| {
            spec.kinds.contains(&notice.0) && self.filter.matches_values(&notice.1)
        };
        let due = found.iter().enumerate().skip(self.notifier.delivery.done);
        due.filter(|(_, notice)| wanted(notice)).map(|(at, (_, notice))| (at, notice)).collect()
    }

    /// Moves behind an event whose notices are all done.
    fn pass(&mut self, cursor: Cursor) {
        self.notifier.delivery.done = 0;
        if self.position != cursor {
            self.position = cursor;
            self.unsaved_since.get_or_insert_with(Instant::now);
        }
    }
}

pub(super) fn no_sender() -> SendFailure {
    let message = "this server has no sender of webhooks".to_string();
    SendFailure { message, ..SendFailure::default() }
}

fn count(outcome: NoticeOutcome) {
    metrics::counter!("farrier_notices_total", "outcome" => outcome.as_str()).increment(1);
}
