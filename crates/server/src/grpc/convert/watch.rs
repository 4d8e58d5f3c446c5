//! Events of watches.

use super::{machine, operation, run, time};
use engine::watch::{WatchChange, WatchUpdate};
use model::machine::Machine;
use model::run::Run;
use proto::v1;
use std::sync::Arc;

/// An event of a watch.
pub(in crate::grpc) trait WatchEvent: Send + 'static {
    /// An event that has only a cursor.
    fn bookmark(cursor: String) -> Self;
}

macro_rules! watch_events {
    ($($event:ident)*) => {
        $(impl WatchEvent for v1::$event {
            fn bookmark(cursor: String) -> Self {
                let change = v1::WatchChange::Bookmark.into();
                Self { cursor, change, ..Default::default() }
            }
        })*
    };
}

watch_events!(MachineEvent NodeEvent OperationEvent RackEvent RolloutEvent RunEvent);

pub(in crate::grpc) const fn watch_change(change: WatchChange) -> v1::WatchChange {
    match change {
        WatchChange::Snapshot => v1::WatchChange::Snapshot,
        WatchChange::Changed => v1::WatchChange::Changed,
        WatchChange::NoLongerMatches => v1::WatchChange::NoLongerMatches,
        WatchChange::Deleted => v1::WatchChange::Deleted,
    }
}

pub(in crate::grpc) fn operation_event(observed: WatchUpdate<Run>) -> v1::OperationEvent {
    v1::OperationEvent {
        ts: Some(time(observed.ts)),
        snapshot: Some(operation(&observed.object)),
        message: observed.message,
        cursor: observed.position.to_cursor_text(),
        initial: observed.change == WatchChange::Snapshot,
        change: watch_change(observed.change).into(),
    }
}

pub(in crate::grpc) fn run_event(observed: WatchUpdate<Run>) -> v1::RunEvent {
    v1::RunEvent {
        ts: Some(time(observed.ts)),
        snapshot: Some(run(&observed.object)),
        message: observed.message,
        cursor: observed.position.to_cursor_text(),
        initial: observed.change == WatchChange::Snapshot,
        change: watch_change(observed.change).into(),
    }
}

pub(in crate::grpc) fn machine_event(observed: WatchUpdate<Machine>) -> v1::MachineEvent {
    v1::MachineEvent {
        ts: Some(time(observed.ts)),
        snapshot: Some(machine(Arc::unwrap_or_clone(observed.object))),
        message: observed.message,
        cursor: observed.position.to_cursor_text(),
        initial: observed.change == WatchChange::Snapshot,
        deleted: observed.change == WatchChange::Deleted,
        change: watch_change(observed.change).into(),
    }
}
