//! Watches: events in order, and logs as they are written.
//!
//! One reader per process follows the events and keeps the latest in a ring buffer. Each watcher
//! has its own cursor: near the end it reads the ring, further back it reads the database. So a
//! slow watcher delays no other and misses nothing.

use crate::Engine;
use crate::retention::{check_not_deleted, cursor_ahead};
use crate::run::Runs;
pub use crate::watch_position::WatchPosition;
use model::filter::{Filter, FilterItem};
use model::id::{MachineId, RunId};
use model::machine::Machine;
use model::run::Run;
use model::time::Timestamp;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use store::{Cursor, Event, LogLine, Result, RunPage, Store, StoreError, Tx};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// The capacity of the ring, in events.
const RING: usize = 4_096;
/// The most events in one read.
const BATCH: i64 = 500;
/// The polling interval, in case a signal is lost.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Events that arrive within this time after a read are read together.
const GATHER_DELAY: Duration = Duration::from_millis(1);
/// How long a new watch waits for transactions that are open when it starts.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a stream survives an unavailable database.
const OUTAGE_TIMEOUT: Duration = Duration::from_secs(10);
const SNAPSHOT_PAGE: i64 = 200;
const LOG_PAGE: i64 = 256;

/// The state that all watchers of a process share.
pub struct WatchHub {
    store: Store,
    ring: Mutex<Ring>,
    /// The cursor of the newest event in the ring.
    newest: watch::Sender<Cursor>,
    watchers: AtomicUsize,
    events_signal: Notify,
    logs: Mutex<HashMap<RunId, Weak<Notify>>>,
}

#[derive(Default)]
struct Ring {
    /// The ring holds all events after this cursor.
    base: Option<Cursor>,
    events: VecDeque<Arc<Event>>,
}

impl WatchHub {
    pub(crate) fn new(store: Store) -> Self {
        Self {
            store,
            ring: Mutex::default(),
            newest: watch::Sender::new(Cursor::default()),
            watchers: AtomicUsize::new(0),
            events_signal: Notify::new(),
            logs: Mutex::default(),
        }
    }

    pub fn watchers(&self) -> usize {
        self.watchers.load(Ordering::Relaxed)
    }

    pub(crate) fn notify_events(&self) {
        self.events_signal.notify_one();
    }

    pub(crate) fn notify_log(&self, id: &RunId) {
        let mut logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
        match logs.get(id).and_then(Weak::upgrade) {
            Some(came) => came.notify_waiters(),
            None => drop(logs.remove(id)),
        }
    }

    /// Wakes all watchers because signals were lost.
    pub(crate) fn notify_all(&self) {
        self.events_signal.notify_one();
        let logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
        logs.values().filter_map(Weak::upgrade).for_each(|came| came.notify_waiters());
    }

    /// The notification that streams of this log wait for.
    fn log_signal(&self, id: &RunId) -> Arc<Notify> {
        let mut logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bell) = logs.get(id).and_then(Weak::upgrade) {
            return bell;
        }
        let bell = Arc::new(Notify::new());
        logs.insert(id.clone(), Arc::downgrade(&bell));
        bell
    }

    /// Removes the notification of a log that no stream follows any more.
    fn remove_log_signal(&self, id: &RunId) {
        let mut logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
        if logs.get(id).is_some_and(|bell| bell.strong_count() == 0) {
            logs.remove(id);
        }
    }

    fn ring(&self) -> std::sync::MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends new events to the ring, or empties it when there are no watchers.
    async fn fill_ring(&self) -> Result<()> {
        if self.watchers() == 0 {
            *self.ring() = Ring::default();
            return Ok(());
        }
        let base = self.ring().base;
        let mut at = match base {
            Some(_) => *self.newest.borrow(),
            None => {
                let horizon = self.store.read_one((), |(), tx| Box::pin(tx.horizon())).await?;
                *self.ring() = Ring { base: Some(horizon), events: VecDeque::new() };
                self.newest.send_replace(horizon);
                horizon
            }
        };
        loop {
            let events = match events_after(&self.store, at).await {
                Err(error @ StoreError::Refused(_)) => {
                    // The next events have been deleted. The ring starts afresh; each watcher gets
                    // the same refusal when it reads.
                    *self.ring() = Ring::default();
                    return Err(error);
                }
                other => other?,
            };
            let Some(last) = events.last() else { return Ok(()) };
            at = last.cursor;
            let full = events.len() as i64 == BATCH;
            let mut ring = self.ring();
            ring.events.extend(events.into_iter().map(Arc::new));
            while ring.events.len() > RING {
                ring.base = ring.events.pop_front().map(|event| event.cursor);
            }
            drop(ring);
            self.newest.send_replace(at);
            if !full {
                return Ok(());
            }
        }
    }

    /// The events after a cursor; none when the ring does not reach back that far.
    fn read_ring(&self, cursor: Cursor) -> Option<Vec<Arc<Event>>> {
        let ring = self.ring();
        if ring.base.is_none_or(|base| cursor < base) {
            return None;
        }
        let first = ring.events.partition_point(|event| event.cursor <= cursor);
        Some(ring.events.range(first..).take(BATCH as usize).cloned().collect())
    }
}

impl Runs {
    /// Follows the events for all watchers.
    pub(crate) async fn run_event_reader(self) {
        loop {
            tokio::select! {
                biased;
                () = self.0.stopped() => return,
                () = self.0.hub().events_signal.notified() => {}
                () = tokio::time::sleep(POLL_INTERVAL) => {}
            }
            if let Err(error) = self.0.hub().fill_ring().await {
                tracing::warn!(%error, "reading events failed; retrying");
                tokio::time::sleep(OUTAGE_TIMEOUT / 50).await;
            }
            tokio::time::sleep(GATHER_DELAY).await;
        }
    }

    /// Opens a watch that starts with a snapshot of the matching runs, or after a cursor.
    pub async fn watch(&self, filter: Filter, place: Option<WatchPosition>) -> Result<Watch> {
        let place = match place {
            Some(place) => {
                let cursor = place.cursor();
                self.0
                    .store()
                    .read(cursor, |cursor, tx| Box::pin(check_cursor(tx, *cursor)))
                    .await?;
                place
            }
            None => WatchPosition::Snapshot { at: self.settled_cursor().await?, before: None },
        };
        self.0.hub().watchers.fetch_add(1, Ordering::Relaxed);
        self.0.hub().notify_events();
        Ok(Watch {
            engine: self.0.clone(),
            snapshot_filter: filter.clone(),
            filter,
            position: place,
        })
    }

    /// A cursor at or after every event that the caller may have seen already. The wait is bounded:
    /// a transaction that stays open must not prevent a watch from opening.
    async fn settled_cursor(&self) -> Result<Cursor> {
        let latest = self.0.store().read_one((), |(), tx| Box::pin(tx.latest_cursor())).await?;
        let deadline = Instant::now() + SETTLE_TIMEOUT;
        let mut wait = SETTLE_TIMEOUT / 1_000;
        loop {
            let horizon = self.0.store().read_one((), |(), tx| Box::pin(tx.horizon())).await?;
            if horizon >= latest || Instant::now() >= deadline {
                return Ok(horizon);
            }
            tokio::time::sleep(wait).await;
            wait *= 2;
        }
    }

    /// Follows the log of a run from an offset.
    pub async fn follow_log(&self, id: &RunId, offset: i64, follow: bool) -> Result<LogStream> {
        self.get(id).await?;
        let bell = self.0.hub().log_signal(id);
        Ok(LogStream { engine: self.0.clone(), id: id.clone(), offset, follow, signal: Some(bell) })
    }
}

/// One update that a watch delivers.
#[derive(Debug, Clone)]
pub struct WatchUpdate {
    pub ts: Timestamp,
    /// Shared by all watchers.
    pub run: Arc<Run>,
    pub message: String,
    /// The position to resume after this update.
    pub position: WatchPosition,
    pub initial: bool,
}

pub struct Watch {
    engine: Engine,
    filter: Filter,
    /// The filter of the snapshot.
    snapshot_filter: Filter,
    position: WatchPosition,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.engine.hub().watchers.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Watch {
    /// Leaves ended runs out of the snapshot.
    pub fn without_ended(mut self) -> Self {
        self.snapshot_filter = self.snapshot_filter.clone().and(Filter::in_flight());
        self
    }

    /// The current position. A watch that resumes here misses nothing.
    pub fn position(&self) -> &WatchPosition {
        &self.position
    }

    /// Waits for the next updates, in order. Empty when the process stops.
    pub async fn next(&mut self) -> Result<Vec<WatchUpdate>> {
        let mut failure = OutageRetry::default();
        loop {
            let observed = match self.position.clone() {
                WatchPosition::Snapshot { at, before } => self.snapshot(at, before).await,
                WatchPosition::After(cursor) => self.after(cursor).await,
            };
            match observed {
                Ok(observed) if observed.is_empty() && !self.engine.is_stopping() => {
                    failure = OutageRetry::default();
                }
                Ok(observed) => return Ok(observed),
                Err(error) => failure.wait_or_fail(error).await?,
            }
        }
    }

    async fn snapshot(&mut self, at: Cursor, before: Option<RunId>) -> Result<Vec<WatchUpdate>> {
        let input = (self.snapshot_filter.clone(), before.map(|run| run.to_string()), at);
        let page = self.engine.store().scan(input, |(filter, before, at), tx| {
            Box::pin(runs_as_of(tx, filter, before.as_deref(), *at))
        });
        let page = page.await?;
        let mut observed = Vec::with_capacity(page.runs.len());
        for run in page.runs {
            let id = run.spec.id.clone();
            if self.matches(&self.snapshot_filter, &run).await? {
                observed.push(WatchUpdate {
                    ts: run.progress.finished_at.unwrap_or(run.spec.created_at),
                    message: String::new(),
                    position: WatchPosition::Snapshot { at, before: Some(id) },
                    run: Arc::new(run),
                    initial: true,
                });
            }
        }
        self.position = match page.next {
            Some(next) => WatchPosition::Snapshot { at, before: Some(RunId::trusted(next)) },
            None => WatchPosition::After(at),
        };
        if let (WatchPosition::After(_), Some(last)) = (&self.position, observed.last_mut()) {
            last.position = self.position.clone();
        }
        Ok(observed)
    }

    async fn after(&mut self, cursor: Cursor) -> Result<Vec<WatchUpdate>> {
        let mut newest = self.engine.hub().newest.subscribe();
        let events = match self.engine.hub().read_ring(cursor) {
            Some(events) => events,
            None => {
                let events = events_after(self.engine.store(), cursor).await?;
                events.into_iter().map(Arc::new).collect()
            }
        };
        let Some(last) = events.last() else {
            tokio::select! {
                biased;
                changed = newest.changed() => drop(changed),
                () = tokio::time::sleep(POLL_INTERVAL) => {}
                () = self.engine.stopped() => {}
            }
            return Ok(Vec::new());
        };
        let after = WatchPosition::After(last.cursor);
        let mut observed = Vec::new();
        for event in &events {
            let Some(run) = &event.run else { continue };
            if self.matches(&self.filter, run).await? {
                observed.push(WatchUpdate {
                    ts: event.ts,
                    run: Arc::clone(run),
                    message: event.message.clone(),
                    position: WatchPosition::After(event.cursor),
                    initial: false,
                });
            }
        }
        // Set last: after an error in `matches` the same events are read again.
        self.position = after;
        Ok(observed)
    }

    async fn matches(&self, filter: &Filter, run: &Run) -> Result<bool> {
        if !filter.needs_machine() {
            return Ok(filter.matches(FilterItem::Run(run, None)));
        }
        let machine: Option<Machine> = match run.spec.target.machine() {
            Some(id) => self.machine(&id).await?,
            None => None,
        };
        Ok(filter.matches(FilterItem::Run(run, machine.as_ref())))
    }

    async fn machine(&self, id: &MachineId) -> Result<Option<Machine>> {
        match self.engine.machines().get(id).await {
            Ok(machine) => Ok(Some(machine)),
            Err(StoreError::Refused(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

pub struct LogStream {
    engine: Engine,
    id: RunId,
    offset: i64,
    follow: bool,
    /// Some until the stream is dropped.
    signal: Option<Arc<Notify>>,
}

impl Drop for LogStream {
    fn drop(&mut self) {
        self.signal = None;
        self.engine.hub().remove_log_signal(&self.id);
    }
}

impl LogStream {
    /// True unless the stream ended only because the process stops.
    pub fn is_complete(&self) -> bool {
        !self.engine.is_stopping() || !self.follow
    }

    /// The next chunks of the log; empty when it has ended or the process stops.
    pub async fn next(&mut self) -> Result<Vec<LogLine>> {
        let mut failure = OutageRetry::default();
        loop {
            let bell = self.signal.clone().unwrap_or_default();
            let rung = bell.notified();
            let page = self.engine.runs().log_page(&self.id, self.offset, LOG_PAGE).await;
            let (run, lines) = match page {
                Ok(page) => page,
                Err(error) => {
                    failure.wait_or_fail(error).await?;
                    continue;
                }
            };
            if let Some(last) = lines.last() {
                self.offset = last.start + last.data.len() as i64;
                return Ok(lines);
            }
            if run.ended() || !self.follow || self.engine.is_stopping() {
                return Ok(lines);
            }
            tokio::select! {
                biased;
                () = rung => {}
                () = tokio::time::sleep(POLL_INTERVAL) => {}
                () = self.engine.stopped() => {}
            }
        }
    }
}

/// Retries while the database is unavailable, and fails the stream after `OUTAGE_TIMEOUT`.
#[derive(Default)]
struct OutageRetry {
    since: Option<Instant>,
}

impl OutageRetry {
    async fn wait_or_fail(&mut self, error: StoreError) -> Result<()> {
        let since = *self.since.get_or_insert_with(Instant::now);
        if !matches!(error, StoreError::Unavailable(_)) || since.elapsed() >= OUTAGE_TIMEOUT {
            return Err(error);
        }
        tokio::time::sleep(OUTAGE_TIMEOUT / 50).await;
        Ok(())
    }
}

async fn check_cursor(tx: &mut Tx, cursor: Cursor) -> Result<()> {
    if cursor > tx.horizon().await? {
        return Err(cursor_ahead(cursor).into());
    }
    check_not_deleted(tx, cursor).await
}

/// The next events in order, at most a batch.
async fn events_after(store: &Store, cursor: Cursor) -> Result<Vec<Event>> {
    let events = store.scan(cursor, |cursor, tx| {
        Box::pin(async move {
            check_not_deleted(tx, *cursor).await?;
            tx.events_after(*cursor, BATCH).await
        })
    });
    events.await
}

async fn runs_as_of(
    tx: &mut Tx,
    filter: &Filter,
    before: Option<&str>,
    at: Cursor,
) -> Result<RunPage> {
    check_not_deleted(tx, at).await?;
    tx.runs_as_of(filter, before, SNAPSHOT_PAGE, at).await
}
