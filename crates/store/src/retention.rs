//! Retention: expired rows are deleted in small batches, so that no writer waits long.
//!
//! Candidates are read page by page. A short write then deletes some of them, after it has checked
//! the rules again. A run is deleted in steps: its log, its events, and its rows last, so an
//! interrupted deletion continues where it stopped.
//!
//! Never deleted: an active run, the latest run of each existing machine, a child run whose parent
//! exists, a run whose end the record that waits for it has not handled, the newest event of each
//! existing object, and an event that is not final.

use crate::event::{Cursor, WatchedKind};
use crate::subject::record_kinds;
use crate::value::{Row, Value, values};
use crate::{Result, Tx};
use model::id::RunId;
use model::time::Timestamp;
use std::sync::LazyLock;

/// The maximum number of log and event rows that one transaction deletes.
pub const MAX_ROWS_PER_BATCH: i64 = 500;
/// The maximum number of runs that one transaction deletes.
pub const MAX_RUNS_PER_BATCH: usize = 32;

/// A position in the order in which runs ended. The default is before all runs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct EndedRunPosition {
    pub at: Timestamp,
    pub id: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedRun {
    pub id: RunId,
    pub at: Timestamp,
    /// A newer run exists on its machine, or the machine was deleted; and neither a parent run nor
    /// a record waits for this one. So no gate reads it and no action reopens it.
    pub superseded: bool,
    /// It has log rows.
    pub logged: bool,
}

impl EndedRun {
    pub fn position(&self) -> EndedRunPosition {
        EndedRunPosition { at: self.at, id: self.id.to_string() }
    }
}

/// A position in the order of age of the events that belong to no run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct EventPosition {
    pub at: Timestamp,
    pub seq: i64,
}

/// An old event that belongs to no run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgedEvent {
    pub position: EventPosition,
    /// It may be deleted: its object has a newer event, or was deleted.
    pub removable: bool,
}

/// The numbers of deleted rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RemovedRows {
    pub runs: u64,
    pub events: u64,
    pub logs: u64,
}

impl RemovedRows {
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }
}

/// True for a run `r` with a newer run on its machine, or on a machine that was deleted, if neither
/// its parent run nor the record that it reports to needs it any more. Only the key of a machine
/// has no colon.
const SUPERSEDED: &str = "((EXISTS (SELECT 1 FROM runs n WHERE n.machine_id = r.machine_id \
     AND (n.created_at, n.id) > (r.created_at, r.id)) \
     OR (r.machine_id NOT LIKE '%:%' \
     AND NOT EXISTS (SELECT 1 FROM machines m WHERE m.id = r.machine_id))) \
     AND NOT EXISTS (SELECT 1 FROM runs w WHERE w.id = r.part_of) \
     AND NOT EXISTS (SELECT 1 FROM subjects q WHERE q.id = r.reports_to \
     AND (q.owner IS NOT NULL OR q.wakes_asked > q.wakes_handled)))";

/// True for an event `e` that is not the newest event of an existing object.
static REMOVABLE: LazyLock<String> = LazyLock::new(|| {
    format!(
        "(EXISTS (SELECT 1 FROM events n WHERE n.object_id = e.object_id \
         AND n.version > e.version) OR (e.kind = 'machine' \
         AND NOT EXISTS (SELECT 1 FROM machines m WHERE m.id = e.object_id)) \
         OR (e.kind IN ({}) \
         AND NOT EXISTS (SELECT 1 FROM records k WHERE k.id = e.object_id)))",
        record_kinds()
    )
});

impl Tx {
    /// One page of runs that ended before `before`, oldest first.
    pub async fn ended_runs(
        &mut self,
        before: Timestamp,
        after: &EndedRunPosition,
        limit: i64,
    ) -> Result<Vec<EndedRun>> {
        let (superseded, logged) =
            (flag(SUPERSEDED), flag("EXISTS (SELECT 1 FROM logs l WHERE l.run_id = s.id)"));
        let sql = format!(
            "SELECT s.ended_at, s.id, {superseded}, {logged} \
             FROM subjects s JOIN runs r ON r.id = s.id \
             WHERE s.ended_at IS NOT NULL AND s.ended_at < $1 AND (s.ended_at, s.id) > ($2, $3) \
             ORDER BY s.ended_at, s.id LIMIT $4"
        );
        let rows = self.query(&sql, values![before, after.at, after.id.as_str(), limit]).await?;
        rows.iter().map(ended).collect()
    }

    /// The end of the run after which `newer` runs ended.
    pub async fn nth_newest_run_end(&mut self, newer: i64) -> Result<Option<Timestamp>> {
        let sql = "SELECT ended_at FROM subjects WHERE ended_at IS NOT NULL \
                   ORDER BY ended_at DESC, id DESC LIMIT 1 OFFSET $1";
        self.query_one(sql, values![newer]).await?.map(|row| row.time(0)).transpose()
    }

    /// Deletes one batch of these runs, as far as the rules permit. The caller repeats it until
    /// nothing is deleted.
    pub async fn remove_runs(&mut self, runs: &[RunId]) -> Result<RemovedRows> {
        let sql = format!(
            "SELECT s.id FROM subjects s JOIN runs r ON r.id = s.id WHERE s.id IN ({}) \
             AND s.ended_at IS NOT NULL AND s.owner IS NULL AND {SUPERSEDED}",
            placeholders(1, runs.len())
        );
        let rows = self.query(&sql, &ids(runs)).await?;
        let runs = rows.iter().map(|row| Ok(RunId::trusted(row.text(0)?)));
        let runs = runs.collect::<Result<Vec<_>>>()?;
        if runs.is_empty() {
            return Ok(RemovedRows::default());
        }
        let logs = self.delete_run_logs(&runs, MAX_ROWS_PER_BATCH).await?;
        let events = self.delete_run_events(&runs, MAX_ROWS_PER_BATCH - logs as i64).await?;
        let runs = self.delete_run_rows(&runs).await?;
        Ok(RemovedRows { runs, events, logs })
    }

    /// Deletes one batch of the logs of these runs, if they have ended. The caller repeats it until
    /// nothing is deleted.
    pub async fn remove_logs(&mut self, runs: &[RunId]) -> Result<RemovedRows> {
        let sql = format!(
            "SELECT id FROM subjects WHERE id IN ({}) AND ended_at IS NOT NULL AND owner IS NULL",
            placeholders(1, runs.len())
        );
        let rows = self.query(&sql, &ids(runs)).await?;
        let runs = rows.iter().map(|row| Ok(RunId::trusted(row.text(0)?)));
        let runs = runs.collect::<Result<Vec<_>>>()?;
        let logs = self.delete_run_logs(&runs, MAX_ROWS_PER_BATCH).await?;
        Ok(RemovedRows { logs, ..RemovedRows::default() })
    }

    /// The log sizes of ended runs in bytes, newest first, before a position.
    pub async fn log_sizes(
        &mut self,
        before: &EndedRunPosition,
        limit: i64,
    ) -> Result<Vec<(EndedRunPosition, i64)>> {
        // Offsets count bytes, so the size of a log is the end of its last chunk.
        let sql = "SELECT s.ended_at, s.id, CAST(COALESCE((SELECT l.start + LENGTH(l.data) \
                   FROM logs l WHERE l.run_id = s.id ORDER BY l.start DESC LIMIT 1), 0) AS BIGINT) \
                   FROM subjects s WHERE s.ended_at IS NOT NULL AND (s.ended_at, s.id) < ($1, $2) \
                   ORDER BY s.ended_at DESC, s.id DESC LIMIT $3";
        let rows = self.query(sql, values![before.at, before.id.as_str(), limit]).await?;
        let size = |row: &Row| {
            Ok((EndedRunPosition { at: row.time(0)?, id: row.text(1)?.to_string() }, row.int(2)?))
        };
        rows.iter().map(size).collect()
    }

    /// One page of events older than `before` that belong to no run, oldest first.
    pub async fn aged_events(
        &mut self,
        before: Timestamp,
        after: EventPosition,
        limit: i64,
    ) -> Result<Vec<AgedEvent>> {
        let sql = format!(
            "SELECT e.ts, e.seq, {} FROM events e WHERE e.kind <> 'run' AND e.ts < $1 \
             AND (e.ts, e.seq) > ($2, $3) ORDER BY e.ts, e.seq LIMIT $4",
            flag(&REMOVABLE)
        );
        let rows = self.query(&sql, values![before, after.at, after.seq, limit]).await?;
        let aged = |row: &Row| {
            let place = EventPosition { at: row.time(0)?, seq: row.int(1)? };
            Ok(AgedEvent { position: place, removable: row.int(2)? == 1 })
        };
        rows.iter().map(aged).collect()
    }

    /// The time of the event that belongs to no run and has `newer` newer ones.
    pub async fn nth_newest_event_time(&mut self, newer: i64) -> Result<Option<Timestamp>> {
        let sql = "SELECT e.ts FROM events e WHERE e.kind <> 'run' \
                   ORDER BY e.ts DESC, e.seq DESC LIMIT 1 OFFSET $1";
        self.query_one(sql, values![newer]).await?.map(|row| row.time(0)).transpose()
    }

    /// Deletes up to one batch of removable events of no run in a range of positions.
    pub async fn remove_events(
        &mut self,
        after: EventPosition,
        upto: EventPosition,
    ) -> Result<RemovedRows> {
        let sql = self.dialect().fill_placeholders(&format!(
            "DELETE FROM events WHERE seq IN (SELECT e.seq FROM events e WHERE e.kind <> 'run' \
             AND (e.ts, e.seq) > ($1, $2) AND (e.ts, e.seq) <= ($3, $4) AND {{is_final}} \
             AND {} ORDER BY e.ts, e.seq LIMIT $5) RETURNING kind, tx, seq",
            *REMOVABLE
        ));
        let range = values![after.at, after.seq, upto.at, upto.seq, MAX_ROWS_PER_BATCH];
        let events = self.delete_and_mark_events(&sql, range).await?;
        Ok(RemovedRows { events, ..RemovedRows::default() })
    }

    /// The newest deleted event of these kinds. A watch at an older cursor has missed events.
    pub async fn newest_removed_event(&mut self, kinds: &[WatchedKind]) -> Result<Cursor> {
        let kinds: Vec<&str> = kinds.iter().map(|kind| kind.as_str()).collect();
        self.newest_removed_of(&kinds).await
    }

    pub(crate) async fn newest_removed_of(&mut self, kinds: &[&str]) -> Result<Cursor> {
        let sql = self.dialect().fill_placeholders(
            "SELECT tx, seq FROM removed WHERE kind {among $1} ORDER BY tx DESC, seq DESC LIMIT 1",
        );
        match self.query_one(&sql, values![serde_json::to_string(&kinds)?]).await? {
            Some(row) => Ok(Cursor { tx: row.int(0)?, seq: row.int(1)? }),
            None => Ok(Cursor::default()),
        }
    }

    pub(crate) async fn delete_run_logs(&mut self, runs: &[RunId], most: i64) -> Result<u64> {
        if runs.is_empty() {
            return Ok(0);
        }
        let sql = format!(
            "DELETE FROM logs WHERE (run_id, start) IN (SELECT l.run_id, l.start FROM logs l \
             WHERE l.run_id IN ({}) ORDER BY l.run_id, l.start LIMIT $1)",
            placeholders(2, runs.len())
        );
        self.execute(&sql, &[vec![Value::from(most)], ids(runs)].concat()).await
    }

    /// Deletes the oldest events first, so that the remaining history has no gaps.
    pub(crate) async fn delete_run_events(&mut self, runs: &[RunId], most: i64) -> Result<u64> {
        let sql = self.dialect().fill_placeholders(&format!(
            "DELETE FROM events WHERE seq IN (SELECT e.seq FROM events e \
             WHERE e.object_id IN ({}) AND {{is_final}} ORDER BY e.object_id, e.version LIMIT $1) \
             RETURNING kind, tx, seq",
            placeholders(2, runs.len())
        ));
        self.delete_and_mark_events(&sql, &[vec![Value::from(most)], ids(runs)].concat()).await
    }

    /// Deletes the rows of the runs that have no logs and events left.
    pub(crate) async fn delete_run_rows(&mut self, runs: &[RunId]) -> Result<u64> {
        let sql = format!(
            "DELETE FROM subjects WHERE id IN ({}) \
             AND NOT EXISTS (SELECT 1 FROM logs l WHERE l.run_id = subjects.id) \
             AND NOT EXISTS (SELECT 1 FROM events e WHERE e.object_id = subjects.id) RETURNING id",
            placeholders(1, runs.len())
        );
        let rows = self.query(&sql, &ids(runs)).await?;
        if rows.is_empty() {
            return Ok(0);
        }
        let gone = rows.iter().map(|row| Ok(Value::from(row.text(0)?)));
        let gone = gone.collect::<Result<Vec<_>>>()?;
        let places = placeholders(1, gone.len());
        let macs = format!(
            "DELETE FROM deployment_macs WHERE key IN \
             (SELECT d.key FROM deployments d WHERE d.run_id IN ({places}))"
        );
        self.execute(&macs, &gone).await?;
        for table in ["deployments", "notes", "tasks"] {
            let sql = format!("DELETE FROM {table} WHERE run_id IN ({places})");
            self.execute(&sql, &gone).await?;
        }
        self.execute(&format!("DELETE FROM runs WHERE id IN ({places})"), &gone).await
    }

    /// Deletes events and records the newest deleted one of each kind in the same transaction, so
    /// that a returning watch can detect that it missed events.
    async fn delete_and_mark_events(&mut self, sql: &str, values: &[Value]) -> Result<u64> {
        let rows = self.query(sql, values).await?;
        let mut newest: Vec<(&str, Cursor)> = Vec::new();
        for row in &rows {
            let (kind, cursor) = (row.text(0)?, Cursor { tx: row.int(1)?, seq: row.int(2)? });
            match newest.iter_mut().find(|(known, _)| *known == kind) {
                Some((_, known)) => *known = cursor.max(*known),
                None => newest.push((kind, cursor)),
            }
        }
        let sql = "INSERT INTO removed (kind, tx, seq) VALUES ($1, $2, $3) \
                   ON CONFLICT (kind) DO UPDATE SET tx = excluded.tx, seq = excluded.seq \
                   WHERE (excluded.tx, excluded.seq) > (removed.tx, removed.seq)";
        for (kind, cursor) in newest {
            self.execute(sql, values![kind, cursor.tx, cursor.seq]).await?;
        }
        Ok(rows.len() as u64)
    }
}

fn ended(row: &Row) -> Result<EndedRun> {
    Ok(EndedRun {
        at: row.time(0)?,
        id: RunId::trusted(row.text(1)?),
        superseded: row.int(2)? == 1,
        logged: row.int(3)? == 1,
    })
}

/// A condition as 0 or 1, which both databases return as an integer.
fn flag(condition: &str) -> String {
    format!("CAST(CASE WHEN {condition} THEN 1 ELSE 0 END AS BIGINT)")
}

/// `count` placeholders, starting with `$first`.
fn placeholders(first: usize, count: usize) -> String {
    let places: Vec<String> = (first..first + count).map(|n| format!("${n}")).collect();
    places.join(", ")
}

fn ids(runs: &[RunId]) -> Vec<Value> {
    runs.iter().map(|run| Value::from(run.as_str())).collect()
}
