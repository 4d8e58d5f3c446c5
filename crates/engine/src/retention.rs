//! Deletes expired runs, logs and events: those over an age limit, or over a size limit.
//!
//! The alive replica with the first name does it; two at once do no harm. It finds rows in reads
//! and deletes them in short writes. After each write it pauses at least as long as the write took,
//! so that the other writers get most of the time. A size limit is turned into a time: rows older
//! than the newest that fit are deleted.

use crate::Engine;
use crate::approval::KEPT_AFTER_END;
use crate::run::Runs;
use model::id::RunId;
use model::refusal::{Reason, Refusal};
use model::time::Timestamp;
use std::time::Duration;
use store::{
    Cursor, EndedRun, EndedRunPosition, EventPosition, MAX_ROWS_PER_BATCH, MAX_RUNS_PER_BATCH,
    RemovedRows, Result, Tx, WatchedKind,
};
use tokio::time::{Instant, sleep};

/// The most candidates in one read.
const PAGE: i64 = 500;
/// The shortest pause after a write.
const MIN_PAUSE: Duration = Duration::from_millis(20);
/// The pause after a round is at least this many times the round's duration.
const PAUSE_FACTOR: u32 = 10;
/// The limit of the pause that follows from the duration of a round.
const MAX_PAUSE: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);

/// Age and size limits. None: no limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retention {
    /// The time after its end at which a run is deleted, with its history and its log.
    pub runs: Option<Duration>,
    /// The time after the end of a run at which its log is deleted.
    pub logs: Option<Duration>,
    /// The age at which events of objects other than runs are deleted.
    pub events: Option<Duration>,
    pub max_runs: Option<u64>,
    /// The log bytes of all ended runs together.
    pub max_log_bytes: Option<u64>,
    /// The number of events of objects other than runs.
    pub max_events: Option<u64>,
    pub interval: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            runs: Some(90 * DAY),
            logs: Some(30 * DAY),
            events: Some(30 * DAY),
            max_runs: None,
            max_log_bytes: None,
            max_events: None,
            interval: Duration::from_secs(60),
        }
    }
}

impl Runs {
    /// Deletes expired rows in rounds, until the process stops.
    pub(crate) async fn run_retention(self) {
        let mut sweeper = RetentionWorker {
            engine: self.0.clone(),
            logs_deleted_to: EndedRunPosition::default(),
        };
        let mut wait = self.0.settings().retention.interval;
        loop {
            tokio::select! {
                biased;
                () = self.0.stopped() => return,
                () = sleep(wait) => {}
            }
            let begun = Instant::now();
            tokio::select! {
                biased;
                () = self.0.stopped() => return,
                swept = sweeper.round() => match swept {
                    Ok(removed) if removed.is_empty() => {}
                    Ok(RemovedRows { runs, events, logs }) => {
                        tracing::info!(runs, events, logs, "deleted expired rows");
                    }
                    Err(error) => tracing::warn!(%error, "deleting expired rows failed; retrying in the next round"),
                }
            }
            let long = (begun.elapsed() * PAUSE_FACTOR).min(MAX_PAUSE);
            wait = self.0.settings().retention.interval.max(long);
        }
    }

    async fn is_retention_owner(&self) -> Result<bool> {
        let alive = self.0.scheduler().alive_replicas().await?;
        Ok(alive.first() == Some(&self.0.settings().replica))
    }
}

/// Refuses a cursor after which events of this kind have been deleted: a watch from there would
/// skip them silently.
pub(crate) async fn check_not_deleted(
    tx: &mut Tx,
    position: Cursor,
    kind: WatchedKind,
) -> Result<()> {
    if position >= tx.newest_removed_event(&[kind]).await? {
        return Ok(());
    }
    let what = format!("events after the cursor {position} have been cleared away since");
    Err(cursor_gone(what, kind).into())
}

/// The refusal of a cursor that is ahead of this database, which was restored from a backup.
pub(crate) fn cursor_ahead(position: Cursor, kind: WatchedKind) -> Refusal {
    let what = format!(
        "the cursor {position} is ahead of this database, which an older copy of it was put back into"
    );
    cursor_gone(what, kind)
}

/// The refusal of a cursor with a later event that an older version wrote without a snapshot.
pub(crate) fn no_snapshot(position: Cursor, kind: WatchedKind) -> Refusal {
    let what = format!(
        "an event after the cursor {position} was written by an older version and cannot be shown"
    );
    cursor_gone(what, kind)
}

fn cursor_gone(what: String, kind: WatchedKind) -> Refusal {
    let message =
        format!("{what}; watch again without a cursor, which begins with everything as it is now");
    let next = match kind {
        WatchedKind::Run => "farrier watch --all",
        WatchedKind::Machine => "farrier machine watch",
        WatchedKind::Rack => "farrier rack watch",
        WatchedKind::Node => "farrier node watch",
        WatchedKind::Rollout => "farrier rollout watch <rollout>",
    };
    Refusal::new(Reason::CursorGone, message).next(next)
}

struct RetentionWorker {
    engine: Engine,
    /// Runs that ended up to here have no log any more. Computed again after a restart.
    logs_deleted_to: EndedRunPosition,
}

impl RetentionWorker {
    async fn round(&mut self) -> Result<RemovedRows> {
        let mut sum = RemovedRows::default();
        if !self.engine.runs().is_retention_owner().await? {
            return Ok(sum);
        }
        let rule = self.engine.settings().retention.clone();
        let behind = self.size_cutoff(rule.max_runs, CountedRows::Runs).await?;
        if let Some(before) = self.age_cutoff(rule.runs).max(behind) {
            self.delete_runs(before, &mut sum).await?;
        }
        let behind = self.log_size_cutoff(rule.max_log_bytes).await?;
        if let Some(before) = self.age_cutoff(rule.logs).max(behind) {
            self.delete_logs(before, &mut sum).await?;
        }
        let behind = self.size_cutoff(rule.max_events, CountedRows::Events).await?;
        if let Some(before) = self.age_cutoff(rule.events).max(behind) {
            self.delete_events(before, &mut sum).await?;
        }
        self.delete_approvals().await?;
        Ok(sum)
    }

    /// Deletes the approvals that ended long ago, one batch in each round.
    async fn delete_approvals(&self) -> Result<()> {
        let before = self.engine.now() - KEPT_AFTER_END;
        let old = self
            .engine
            .store()
            .read_one(before, |before, tx| Box::pin(tx.has_removable_approvals(*before)));
        if !old.await? {
            return Ok(());
        }
        let gone = self.engine.store().write("delete_approvals", before, |before, tx| {
            Box::pin(tx.remove_approvals(*before, PAGE))
        });
        gone.await.map(drop)
    }

    /// Rows from before this time exceed the age limit.
    fn age_cutoff(&self, age: Option<Duration>) -> Option<Timestamp> {
        age.map(|age| self.engine.now() - age)
    }

    /// Rows from before this time exceed the size limit.
    async fn size_cutoff(&self, most: Option<u64>, of: CountedRows) -> Result<Option<Timestamp>> {
        let Some(most) = most else { return Ok(None) };
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let newest = self
            .engine
            .store()
            .scan((of, most), |(of, most), tx| Box::pin(newest_beyond(tx, *of, *most)));
        Ok(newest.await?.map(|at| at + Timestamp::TICK))
    }

    /// The same for log bytes, which are added up from the newest run on.
    async fn log_size_cutoff(&self, most: Option<u64>) -> Result<Option<Timestamp>> {
        let Some(mut left) = most else { return Ok(None) };
        let mut before =
            EndedRunPosition { at: Timestamp::from_micros(i64::MAX), id: String::new() };
        while before > self.logs_deleted_to {
            let sizes = self
                .engine
                .store()
                .scan(before.clone(), |before, tx| Box::pin(tx.log_sizes(before, PAGE)));
            let sizes = sizes.await?;
            let Some((last, _)) = sizes.last().cloned() else { break };
            for (position, bytes) in sizes {
                match left.checked_sub(bytes.unsigned_abs()) {
                    Some(rest) => left = rest,
                    None => return Ok(Some(position.at + Timestamp::TICK)),
                }
            }
            before = last;
        }
        Ok(None)
    }

    async fn delete_runs(&self, before: Timestamp, sum: &mut RemovedRows) -> Result<()> {
        let mut after = EndedRunPosition::default();
        loop {
            let page = self.ended_runs(before, after).await?;
            let Some(last) = page.last() else { return Ok(()) };
            after = last.position();
            let runs = page.into_iter().filter(|run| run.superseded).map(|run| run.id);
            for some in chunks(runs.collect()) {
                self.delete_in_batches(ExpiredRows::Runs(some), sum).await?;
            }
        }
    }

    async fn delete_logs(&mut self, before: Timestamp, sum: &mut RemovedRows) -> Result<()> {
        loop {
            let page = self.ended_runs(before, self.logs_deleted_to.clone()).await?;
            let Some(last) = page.last() else { return Ok(()) };
            let last = last.position();
            let runs = page.into_iter().filter(|run| run.logged).map(|run| run.id);
            for some in chunks(runs.collect()) {
                self.delete_in_batches(ExpiredRows::Logs(some), sum).await?;
            }
            self.logs_deleted_to = last;
        }
    }

    async fn ended_runs(&self, until: Timestamp, after: EndedRunPosition) -> Result<Vec<EndedRun>> {
        let store = self.engine.store();
        store
            .scan((until, after), |(until, after), tx| Box::pin(tx.ended_runs(*until, after, PAGE)))
            .await
    }

    async fn delete_events(&self, before: Timestamp, sum: &mut RemovedRows) -> Result<()> {
        let mut after = EventPosition::default();
        loop {
            let page = self.engine.store().scan((before, after), |(before, after), tx| {
                Box::pin(tx.aged_events(*before, *after, PAGE))
            });
            let page = page.await?;
            let Some(last) = page.last() else { return Ok(()) };
            let upto = last.position;
            if page.iter().any(|event| event.removable) {
                self.delete_in_batches(ExpiredRows::Events { after, upto }, sum).await?;
            }
            after = upto;
        }
    }

    /// Deletes in short writes, with a pause after each, until nothing is left.
    async fn delete_in_batches(&self, expired: ExpiredRows, sum: &mut RemovedRows) -> Result<()> {
        loop {
            let begun = Instant::now();
            let gone =
                self.engine.store().write("delete_expired", expired.clone(), |expired, tx| {
                    Box::pin(expired.delete(tx))
                });
            let gone = gone.await?;
            sleep(begun.elapsed().max(MIN_PAUSE)).await;
            count_deleted(gone);
            sum.runs += gone.runs;
            sum.events += gone.events;
            sum.logs += gone.logs;
            // A write below the batch limit was the last.
            if gone.events + gone.logs < MAX_ROWS_PER_BATCH as u64 {
                return Ok(());
            }
        }
    }
}

fn count_deleted(gone: RemovedRows) {
    for (what, rows) in [("runs", gone.runs), ("events", gone.events), ("logs", gone.logs)] {
        metrics::counter!("farrier_retention_removed_total", "what" => what).increment(rows);
    }
}

fn chunks(runs: Vec<RunId>) -> Vec<Vec<RunId>> {
    runs.chunks(MAX_RUNS_PER_BATCH).map(<[RunId]>::to_vec).collect()
}

#[derive(Clone, Copy)]
enum CountedRows {
    Runs,
    Events,
}

/// The time of the newest row that is older than the `newer` newest rows.
async fn newest_beyond(tx: &mut Tx, of: CountedRows, newer: i64) -> Result<Option<Timestamp>> {
    match of {
        CountedRows::Runs => tx.nth_newest_run_end(newer).await,
        CountedRows::Events => tx.nth_newest_event_time(newer).await,
    }
}

/// Expired rows, which are deleted in several short writes.
#[derive(Clone)]
enum ExpiredRows {
    Runs(Vec<RunId>),
    Logs(Vec<RunId>),
    Events { after: EventPosition, upto: EventPosition },
}

impl ExpiredRows {
    async fn delete(&self, tx: &mut Tx) -> Result<RemovedRows> {
        match self {
            Self::Runs(runs) => tx.remove_runs(runs).await,
            Self::Logs(runs) => tx.remove_logs(runs).await,
            Self::Events { after, upto } => tx.remove_events(*after, *upto).await,
        }
    }
}
