//! A watch of one kind of object: a snapshot of what exists at a cursor, then every later event.

use super::{OutageRetry, RingEvent, Watched, events_after};
use crate::Engine;
use crate::retention::{check_not_deleted, no_snapshot};
use crate::watch::watched::{SnapshotPage, SnapshotQuery};
use crate::watch_position::WatchPosition;
use model::filter::Filter;
use model::id::ObjectId;
use model::run::Run;
use model::time::Timestamp;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use store::{Cursor, ObjectBefore, Result, Tx};

/// The kind of change that an update reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchChange {
    /// It matches when the watch begins.
    Snapshot,
    /// It was created or changed, and matches.
    Changed,
    /// It matched before the change, or may have, and does not match any more.
    NoLongerMatches,
    Deleted,
}

/// One update that a watch delivers.
#[derive(Debug, Clone)]
pub struct WatchUpdate<T> {
    pub ts: Timestamp,
    /// The object after the change, or as it was before its deletion. Shared by all watchers.
    pub object: Arc<T>,
    pub message: String,
    /// The position to resume after this update.
    pub position: WatchPosition,
    pub change: WatchChange,
}

pub struct Watch<T> {
    engine: Engine,
    filter: Filter,
    /// The objects that the caller may see.
    scope: Filter,
    /// The terms of the filter on fields that never change.
    fixed: Filter,
    /// The filter of the snapshot.
    snapshot_filter: Filter,
    position: WatchPosition,
    kind: PhantomData<fn() -> T>,
}

impl<T> Drop for Watch<T> {
    fn drop(&mut self) {
        self.engine.hub().watchers.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Watch<Run> {
    /// Leaves ended runs out of the snapshot.
    pub fn without_ended(mut self) -> Self {
        self.snapshot_filter = self.snapshot_filter.clone().and(Filter::in_flight());
        self
    }
}

impl<T: Watched> Watch<T> {
    /// The caller has counted the watcher.
    pub(super) fn new(engine: Engine, filter: Filter, position: WatchPosition) -> Self {
        let (scope, fixed) = (filter.only_scope(), filter.fixed_terms());
        let snapshot_filter = filter.clone();
        Self { engine, filter, scope, fixed, snapshot_filter, position, kind: PhantomData }
    }

    /// The current position. A watch that resumes here misses nothing.
    pub fn position(&self) -> &WatchPosition {
        &self.position
    }

    /// Waits for the next updates, in order. Empty when the process stops.
    pub async fn next(&mut self) -> Result<Vec<WatchUpdate<T>>> {
        let mut failure = OutageRetry::default();
        loop {
            let observed = match self.position.clone() {
                WatchPosition::Snapshot { at, last } => self.snapshot(at, last).await,
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

    async fn snapshot(
        &mut self,
        at: Cursor,
        last: Option<ObjectId>,
    ) -> Result<Vec<WatchUpdate<T>>> {
        let last = last.map(|id| id.to_string());
        let query = SnapshotQuery { filter: self.snapshot_filter.clone(), last, at };
        let page = self
            .engine
            .store()
            .scan(query, |query, tx| Box::pin(snapshot_page::<T>(tx, query)))
            .await?;
        let mut observed = Vec::with_capacity(page.objects.len());
        for object in page.objects {
            let id = ObjectId::trusted(object.id());
            if object.matches(&self.snapshot_filter, &self.engine).await? {
                observed.push(WatchUpdate {
                    ts: object.snapshot_time(),
                    message: String::new(),
                    position: WatchPosition::Snapshot { at, last: Some(id) },
                    object: Arc::new(object),
                    change: WatchChange::Snapshot,
                });
            }
        }
        self.position = match page.next {
            Some(next) => WatchPosition::Snapshot { at, last: Some(ObjectId::trusted(next)) },
            None => WatchPosition::After(at),
        };
        if let (WatchPosition::After(_), Some(last)) = (&self.position, observed.last_mut()) {
            last.position = self.position.clone();
        }
        Ok(observed)
    }

    async fn after(&mut self, cursor: Cursor) -> Result<Vec<WatchUpdate<T>>> {
        let mut newest = self.engine.hub().newest.subscribe();
        let events = match self.engine.hub().read_ring(cursor) {
            Some(events) => events,
            None => {
                let events = events_after(self.engine.store(), cursor, T::KIND).await?;
                events.into_iter().map(RingEvent::new).collect()
            }
        };
        let Some(last) = events.last() else {
            tokio::select! {
                biased;
                changed = newest.changed() => drop(changed),
                () = tokio::time::sleep(self.engine.settings().poll_interval) => {}
                () = self.engine.stopped() => {}
            }
            return Ok(Vec::new());
        };
        let after = WatchPosition::After(last.event.cursor);
        let mut observed = Vec::new();
        for one in events.iter().filter(|one| one.event.kind == Some(T::KIND)) {
            let event = &one.event;
            let Some(object) = event.object.as_ref().and_then(T::of_event) else {
                return Err(no_snapshot(cursor, T::KIND).into());
            };
            if !object.matches(&self.scope, &self.engine).await? {
                observed.extend(self.left_scope(one).await?);
                continue;
            }
            let matches = object.matches(&self.filter, &self.engine).await?;
            if !matches && !self.may_have_matched(one, object).await? {
                continue;
            }
            observed.push(WatchUpdate {
                ts: event.ts,
                object: Arc::clone(object),
                message: event.message.clone(),
                position: WatchPosition::After(event.cursor),
                change: match event.is_deletion() || object.is_deleted() {
                    true => WatchChange::Deleted,
                    false if matches => WatchChange::Changed,
                    false => WatchChange::NoLongerMatches,
                },
            });
        }
        // Set last: after an error in `matches` the same events are read again.
        self.position = after;
        Ok(observed)
    }

    /// The update about an object that the change took out of the caller's scope: as the caller
    /// has seen it before. Nothing is sent when it is unknown what the caller has seen.
    async fn left_scope(&self, event: &RingEvent) -> Result<Option<WatchUpdate<T>>> {
        let ObjectBefore::Known(object) = event.before(self.engine.store()).await? else {
            return Ok(None);
        };
        let Some(before) = T::of_event(object) else { return Ok(None) };
        if !before.matches(&self.filter, &self.engine).await? {
            return Ok(None);
        }
        Ok(Some(WatchUpdate {
            ts: event.event.ts,
            object: Arc::clone(before),
            message: String::new(),
            position: WatchPosition::After(event.event.cursor),
            change: WatchChange::NoLongerMatches,
        }))
    }

    /// True if the object of an event, which does not match, matched before the change. True if
    /// that is unknown: an update too many is harmless, a missing one is not.
    async fn may_have_matched(&self, event: &RingEvent, now: &T) -> Result<bool> {
        // Most objects never match: no read for them.
        if !now.matches(&self.fixed, &self.engine).await? {
            return Ok(false);
        }
        match event.before(self.engine.store()).await? {
            ObjectBefore::Absent => Ok(false),
            ObjectBefore::Unknown | ObjectBefore::State(_) => Ok(true),
            ObjectBefore::Known(object) => match T::of_event(object) {
                Some(before) => before.matches(&T::filter_before(&self.filter), &self.engine).await,
                None => Ok(true),
            },
        }
    }
}

async fn snapshot_page<T: Watched>(tx: &mut Tx, query: &SnapshotQuery) -> Result<SnapshotPage<T>> {
    check_not_deleted(tx, query.at, T::KIND).await?;
    T::page(tx, query).await
}
