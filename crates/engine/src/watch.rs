//! Watches: events in order, and logs as they are written.
//!
//! One reader per process follows the events and keeps the latest in a ring buffer. Each watcher
//! has its own cursor: near the end it reads the ring, further back it reads the database. So a
//! slow watcher delays no other and misses nothing.
//!
//! A watch is about one kind of object: runs, machines, racks or nodes. `watched` has what differs
//! between the kinds.

mod log_stream;
mod object_watch;
mod watched;

pub use crate::watch_position::WatchPosition;
pub use log_stream::LogStream;
pub use object_watch::{Watch, WatchChange, WatchUpdate};
pub use watched::Watched;

use crate::Engine;
use crate::retention::{check_not_deleted, cursor_ahead};
use crate::run::Runs;
use model::filter::Filter;
use model::id::RunId;
use model::run::Run;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use store::{Cursor, Event, ObjectBefore, Result, Store, StoreError, Tx, WatchedKind};
use tokio::sync::{Notify, OnceCell, watch};
use tokio::time::Instant;

/// The capacity of the ring, in events.
const RING: usize = 4_096;
/// The most events in one read.
const BATCH: i64 = 500;
/// The first wait for an older open transaction that holds back committed events. Nothing signals
/// its end, so the reader asks again, with doubled waits up to the second value. A reader that
/// nothing holds back waits for a signal.
const HELD_BACK_WAIT: Duration = Duration::from_millis(1);
const MAX_HELD_BACK_WAIT: Duration = Duration::from_millis(64);
/// Events that arrive within this time after a read are read together.
const GATHER_DELAY: Duration = Duration::from_millis(1);
/// The longest time that a new watch waits for transactions that are open when it starts.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(1);
/// The longest time that a stream survives an unavailable database.
const OUTAGE_TIMEOUT: Duration = Duration::from_secs(10);

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
    events: VecDeque<Arc<RingEvent>>,
}

/// An event in the ring. The object before the change is read once, for the first watcher that
/// needs it.
pub(crate) struct RingEvent {
    pub event: Event,
    before: OnceCell<ObjectBefore>,
}

impl RingEvent {
    fn new(event: Event) -> Arc<Self> {
        Arc::new(Self { event, before: OnceCell::new() })
    }

    /// The object before the change.
    pub async fn before(&self, store: &Store) -> Result<&ObjectBefore> {
        let read = || {
            let input = (self.event.object_id.clone(), self.event.version);
            store.scan(input, |(id, version), tx| Box::pin(tx.object_before(id, *version)))
        };
        self.before.get_or_try_init(read).await
    }
}

/// The result of one read of the event reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct RingFill {
    /// New events were read.
    advanced: bool,
    /// An older open transaction holds back committed events.
    held_back: bool,
}

impl RingFill {
    /// The wait until the reader asks again without a signal; `None` if a signal will come.
    fn next_wait(self, last: Option<Duration>) -> Option<Duration> {
        let longer = |last: Duration| (last * 2).min(MAX_HELD_BACK_WAIT);
        match self {
            Self { held_back: false, .. } => None,
            Self { held_back: true, advanced: true } => Some(HELD_BACK_WAIT),
            Self { held_back: true, advanced: false } => Some(last.map_or(HELD_BACK_WAIT, longer)),
        }
    }
}

/// The next events in order, at most `BATCH`.
struct EventBatch {
    events: Vec<Event>,
    /// Later events are committed, but an older open transaction may still add events before them.
    held_back: bool,
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
    async fn fill_ring(&self) -> Result<RingFill> {
        let mut fill = RingFill::default();
        if self.watchers() == 0 {
            *self.ring() = Ring::default();
            return Ok(fill);
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
            let Some(batch) = all_events_after(&self.store, at).await? else {
                // Some of the next events have been deleted. The ring starts afresh; each watcher
                // reads the database, and is refused if events of its kind were deleted.
                *self.ring() = Ring::default();
                return Ok(fill);
            };
            let EventBatch { events, held_back } = batch;
            fill.held_back = held_back;
            let Some(last) = events.last() else { return Ok(fill) };
            fill.advanced = true;
            at = last.cursor;
            let full = events.len() as i64 == BATCH;
            let mut ring = self.ring();
            ring.events.extend(events.into_iter().map(RingEvent::new));
            while ring.events.len() > RING {
                ring.base = ring.events.pop_front().map(|one| one.event.cursor);
            }
            drop(ring);
            self.newest.send_replace(at);
            if !full {
                return Ok(fill);
            }
        }
    }

    /// Counts a watcher until the guard is dropped. Without watchers the ring is empty.
    pub(crate) fn add_watcher(self: &Arc<Self>) -> WatcherGuard {
        self.watchers.fetch_add(1, Ordering::Relaxed);
        self.notify_events();
        WatcherGuard(Arc::clone(self))
    }

    /// Changes when the ring has new events.
    pub(crate) fn newest(&self) -> watch::Receiver<Cursor> {
        self.newest.subscribe()
    }

    /// The next events of objects after a cursor; none if retention has deleted some of them.
    pub(crate) async fn object_events_after(
        &self,
        cursor: Cursor,
        limit: i64,
    ) -> Result<Option<Vec<Arc<RingEvent>>>> {
        if let Some(events) = self.read_ring(cursor) {
            return Ok(Some(events));
        }
        let events = self.store.scan((cursor, limit), |(cursor, limit), tx| {
            Box::pin(async move {
                if *cursor < tx.newest_removed_object_event().await? {
                    return Ok(None);
                }
                tx.events_after(*cursor, *limit).await.map(Some)
            })
        });
        let events = events.await?;
        Ok(events.map(|events| events.into_iter().map(RingEvent::new).collect()))
    }

    /// The events after a cursor; none when the ring does not reach back that far.
    fn read_ring(&self, cursor: Cursor) -> Option<Vec<Arc<RingEvent>>> {
        let ring = self.ring();
        if ring.base.is_none_or(|base| cursor < base) {
            return None;
        }
        let first = ring.events.partition_point(|one| one.event.cursor <= cursor);
        Some(ring.events.range(first..).take(BATCH as usize).cloned().collect())
    }
}

/// A watcher that is no stream of a client.
pub(crate) struct WatcherGuard(Arc<WatchHub>);

impl Drop for WatcherGuard {
    fn drop(&mut self) {
        self.0.watchers.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Runs {
    /// Follows the events for all watchers.
    pub(crate) async fn run_event_reader(self) {
        let poll_interval = self.0.settings().poll_interval;
        let mut held_back_wait = None;
        loop {
            tokio::select! {
                biased;
                () = self.0.stopped() => return,
                () = self.0.hub().events_signal.notified() => {}
                () = tokio::time::sleep(held_back_wait.unwrap_or(poll_interval)) => {}
            }
            match self.0.hub().fill_ring().await {
                Ok(fill) => held_back_wait = fill.next_wait(held_back_wait),
                Err(error) => {
                    tracing::warn!(%error, "reading events failed; retrying");
                    tokio::time::sleep(OUTAGE_TIMEOUT / 50).await;
                }
            }
            tokio::time::sleep(GATHER_DELAY).await;
        }
    }

    /// Opens a watch of runs.
    pub async fn watch(&self, filter: Filter, place: Option<WatchPosition>) -> Result<Watch<Run>> {
        self.0.watch(filter, place).await
    }

    /// Follows the log of a run from an offset.
    pub async fn follow_log(&self, id: &RunId, offset: i64, follow: bool) -> Result<LogStream> {
        self.get(id).await?;
        Ok(LogStream::open(self.0.clone(), id.clone(), offset, follow))
    }
}

impl Engine {
    /// Opens a watch that starts with a snapshot of the matching objects, or after a cursor.
    pub async fn watch<T: Watched>(
        &self,
        filter: Filter,
        place: Option<WatchPosition>,
    ) -> Result<Watch<T>> {
        let place = match place {
            Some(place) => {
                place.check_id(T::is_id)?;
                let cursor = place.cursor();
                self.store()
                    .read(cursor, |cursor, tx| Box::pin(check_cursor(tx, *cursor, T::KIND)))
                    .await?;
                place
            }
            None => WatchPosition::Snapshot { at: self.settled_cursor().await?, last: None },
        };
        self.hub().watchers.fetch_add(1, Ordering::Relaxed);
        self.hub().notify_events();
        let visible = self.caller().visible(filter).filter;
        Ok(Watch::new(self.clone(), visible, place))
    }

    /// A cursor at or after every event that the caller may have seen already. The wait is bounded:
    /// a transaction that stays open must not prevent a watch from opening.
    async fn settled_cursor(&self) -> Result<Cursor> {
        let latest = self.store().read_one((), |(), tx| Box::pin(tx.latest_cursor())).await?;
        let deadline = Instant::now() + SETTLE_TIMEOUT;
        let mut wait = SETTLE_TIMEOUT / 1_000;
        loop {
            let horizon = self.store().read_one((), |(), tx| Box::pin(tx.horizon())).await?;
            if horizon >= latest || Instant::now() >= deadline {
                return Ok(horizon);
            }
            tokio::time::sleep(wait).await;
            wait *= 2;
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

async fn check_cursor(tx: &mut Tx, cursor: Cursor, kind: WatchedKind) -> Result<()> {
    if cursor > tx.horizon().await? {
        return Err(cursor_ahead(cursor, kind).into());
    }
    check_not_deleted(tx, cursor, kind).await
}

/// The next events in order, at most a batch. Refused if a later event of this kind was deleted.
async fn events_after(store: &Store, cursor: Cursor, kind: WatchedKind) -> Result<Vec<Event>> {
    let events = store.scan((cursor, kind), |(cursor, kind), tx| {
        Box::pin(async move {
            check_not_deleted(tx, *cursor, *kind).await?;
            tx.events_after(*cursor, BATCH).await
        })
    });
    events.await
}

/// The next events of all kinds; `None` if a later event of any kind was deleted.
async fn all_events_after(store: &Store, cursor: Cursor) -> Result<Option<EventBatch>> {
    let events = store.scan(cursor, |cursor, tx| {
        Box::pin(async move {
            if *cursor < tx.newest_removed_event(&WatchedKind::ALL).await? {
                return Ok(None);
            }
            let events = tx.events_after(*cursor, BATCH).await?;
            // A full batch is followed by another read.
            let full = events.len() as i64 == BATCH;
            let held_back = !full && tx.has_held_back_events().await?;
            Ok(Some(EventBatch { events, held_back }))
        })
    });
    events.await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_back_reader_asks_again_with_doubled_waits() {
        let held_back = RingFill { advanced: false, held_back: true };
        let mut wait = None;
        let waits: Vec<u128> = (0..9)
            .map(|_| {
                wait = held_back.next_wait(wait);
                wait.unwrap_or_default().as_millis()
            })
            .collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 64, 64]);
        for (fill, expected) in [
            (RingFill { advanced: false, held_back: false }, None),
            (RingFill { advanced: true, held_back: false }, None),
            (RingFill { advanced: true, held_back: true }, Some(HELD_BACK_WAIT)),
        ] {
            assert_eq!(fill.next_wait(wait), expected, "{fill:?}");
        }
    }
}
