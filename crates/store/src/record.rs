//! Records with a lifecycle: racks, switches, power shelves, hosts, nodes, sites and rollouts. All
//! are in one table, and each has one row in the queue.
//!
//! A record is changed by the turn that has claimed it ([`Tx::settle_record`]) or by a request
//! ([`Tx::update_and_enqueue`]). Both name the version that was read and write an event in the same
//! transaction.

use crate::driver::{ExpectedRows, Statement};
use crate::event::{Cursor, NewEvent, ObjectAsOf, REMOVED, readable_body};
use crate::signal::Signal;
use crate::unreadable::{Listed, RowKind, UnreadableRow, named};
use crate::value::{Row, values};
use crate::{Result, Tx};
use model::access::Scope;
use model::filter::Filter;
use model::id::{ObjectId, RackId};
use model::lifecycle::{Lifecycle, SubjectId};
use model::machine::Labels;
use model::time::Timestamp;
use std::collections::{BTreeMap, BTreeSet};

/// The claim under which a turn works on a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordClaim {
    pub epoch: i64,
    /// The number of wake-ups that the turn has handled.
    pub wakes_handled: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordPage<R> {
    pub records: Vec<R>,
    /// The id after which the next page starts, if there is one.
    pub next: Option<String>,
    /// Rows that were left out.
    pub unreadable: Vec<UnreadableRow>,
}

impl<R> RecordPage<R> {
    pub(crate) fn new(found: Listed<R>, next: Option<String>) -> Self {
        Self { records: found.items, next, unreadable: found.unreadable }
    }

    /// The same page for a decision: fails if a row was left out.
    pub fn complete(self) -> Result<Self> {
        match self.unreadable.into_iter().next() {
            Some(row) => Err(row.into()),
            None => Ok(Self { unreadable: Vec::new(), ..self }),
        }
    }
}

/// The rows of one query.
const BATCH: i64 = 500;

impl Tx {
    pub async fn record<R: Lifecycle>(&mut self, id: &str) -> Result<Option<R>> {
        self.find_record(id, "").await
    }

    /// Reads a record and locks it until the transaction ends.
    pub async fn record_locked<R: Lifecycle>(&mut self, id: &str) -> Result<Option<R>> {
        self.find_record(id, "{lock}").await
    }

    async fn find_record<R: Lifecycle>(&mut self, id: &str, lock: &str) -> Result<Option<R>> {
        let sql = format!("SELECT body, version FROM records WHERE id = $1 AND kind = $2 {lock}");
        let sql = self.dialect().fill_placeholders(&sql);
        let key = SubjectId::new(R::KIND, id).key();
        let row = self.query_one(&sql, values![key, R::KIND.as_str()]).await?;
        named(RowKind::of_record(R::KIND), id, row.as_ref().map(record).transpose())
    }

    /// Inserts a record, its queue row, due now, and its first event. [`StoreError::Conflict`]
    /// means that the id exists.
    pub async fn insert_record<R: Lifecycle>(
        &mut self,
        record: &mut R,
        event: &NewEvent,
    ) -> Result<()> {
        let key = record.subject().key();
        // A deleted record of the same id has a history that continues.
        record.head_mut().version = self.last_version(&key).await? + 1;
        let head = record.head();
        let sql = "INSERT INTO records (id, kind, rack_id, state, version, body, created_at, updated_at) \
                   VALUES ($1, $2, $3, $4, $5, $6, $7, $7)";
        let values = values![
            key.as_str(),
            R::KIND.as_str(),
            head.rack.as_ref().map(RackId::as_str),
            record.state_name(),
            head.version,
            serde_json::to_string(record)?,
            head.created_at,
        ];
        self.queue_write(Statement::new(sql, values), ExpectedRows::One)?;
        let sql = "INSERT INTO subjects (id, kind, holds_machine, version, epoch, owner, due_at, \
                   wakes_asked, wakes_handled, phase, workflow, state, updated_at, ended_at) \
                   VALUES ($1, $2, NULL, $3, 0, NULL, $4, 1, 0, $5, $5, '', $4, NULL)";
        let values = values![
            key.as_str(),
            R::KIND.as_str(),
            head.version,
            head.created_at,
            record.state_name()
        ];
        self.queue_write(Statement::new(sql, values), ExpectedRows::One)?;
        self.service.change_record(record);
        self.record_event(record, event)?;
        self.signal(Signal::Work);
        Ok(())
    }

    /// Writes a changed record and its event. `head.version` is the version that was read.
    pub fn update_record<R: Lifecycle>(&mut self, record: &mut R, event: &NewEvent) -> Result<()> {
        let read_at = record.head().version;
        let head = record.head_mut();
        head.version += 1;
        // The clocks of replicas differ; the times in a history never go back.
        head.updated_at = event.at.max(head.updated_at);
        let event = &NewEvent { at: head.updated_at, ..event.clone() };
        let key = record.subject().key();
        let head = record.head();
        let sql = "UPDATE records SET rack_id = $3, state = $4, version = $5, body = $6, updated_at = $7 \
                   WHERE id = $1 AND version = $2";
        let values = values![
            key,
            read_at,
            head.rack.as_ref().map(RackId::as_str),
            record.state_name(),
            head.version,
            serde_json::to_string(record)?,
            head.updated_at,
        ];
        // If transitions have owners, the stored state must be one that this owner may leave.
        let statement = match record.legal_source_states() {
            None => Statement::new(sql, values),
            Some(sources) => {
                // State names are constants, so inlining them makes one statement for each set.
                let words: Vec<String> = sources.iter().map(|name| format!("'{name}'")).collect();
                Statement::new(format!("{sql} AND state IN ({})", words.join(", ")), values)
            }
        };
        self.queue_write(statement, ExpectedRows::One)?;
        self.service.change_record(record);
        self.record_event(record, event)
    }

    /// Like [`Tx::update_record`], and makes the record due now.
    pub fn update_and_enqueue<R: Lifecycle>(
        &mut self,
        record: &mut R,
        event: &NewEvent,
    ) -> Result<()> {
        self.update_record(record, event)?;
        self.wake(&ObjectId::trusted(record.subject().key()), event.at)
    }

    /// Ends a turn: releases the record, due at `due`. A conflict if the claim was lost.
    pub fn settle_record<R: Lifecycle>(
        &mut self,
        record: &R,
        claim: RecordClaim,
        due: Option<Timestamp>,
        now: Timestamp,
    ) -> Result<()> {
        let sql = "UPDATE subjects SET version = $3, phase = $4, workflow = $4, updated_at = $5, \
                   wakes_handled = $6, owner = NULL, due_at = CASE WHEN wakes_asked > $6 \
                   THEN CAST($5 AS BIGINT) ELSE CAST($7 AS BIGINT) END \
                   WHERE id = $1 AND epoch = $2 AND owner IS NOT NULL";
        let values = values![
            record.subject().key(),
            claim.epoch,
            record.head().version,
            record.state_name(),
            now,
            claim.wakes_handled,
            due,
        ];
        self.queue_write(Statement::new(sql, values), ExpectedRows::One)?;
        self.signal(Signal::Work);
        Ok(())
    }

    /// Deletes a record and its queue row. Its history stays.
    pub fn remove_record<R: Lifecycle>(&mut self, record: &R, event: &NewEvent) -> Result<()> {
        let key = record.subject().key();
        let version = record.head().version;
        let sql = "DELETE FROM records WHERE id = $1 AND version = $2";
        self.queue_write(Statement::new(sql, values![key.as_str(), version]), ExpectedRows::One)?;
        let sql = "DELETE FROM subjects WHERE id = $1";
        self.queue_write(Statement::new(sql, values![key.as_str()]), ExpectedRows::One)?;
        self.delete_health(&record.subject())?;
        self.delete_feeds(&record.subject())?;
        self.service.remove_record(record);
        self.delete_rollout_rows(&record.subject())?;
        let last = self.lifecycle_event(record, version + 1, REMOVED, event)?;
        self.queue_write(last, ExpectedRows::One)?;
        self.signal(Signal::Event);
        Ok(())
    }

    /// The records of a kind in a rack, ordered by id. One that cannot be decoded does not hide the
    /// others.
    pub async fn records_in_rack<R: Lifecycle>(
        &mut self,
        rack: &RackId,
    ) -> Result<Vec<(String, Result<R>)>> {
        let sql =
            "SELECT body, version, id FROM records WHERE rack_id = $1 AND kind = $2 ORDER BY id";
        let rows = self.query(sql, values![rack.as_str(), R::KIND.as_str()]).await?;
        rows.iter().map(record_by_id).collect()
    }

    /// One page of the records of a kind. One that cannot be decoded does not hide the others.
    pub async fn records_of_kind<R: Lifecycle>(
        &mut self,
        after: &str,
        limit: usize,
    ) -> Result<Vec<(String, Result<R>)>> {
        let sql = "SELECT body, version, id FROM records WHERE kind = $1 AND id > $2 \
                   ORDER BY id LIMIT $3";
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let rows = self.query(sql, values![R::KIND.as_str(), after, limit]).await?;
        rows.iter().map(record_by_id).collect()
    }

    /// One page of the records that match a filter, ordered by id.
    pub async fn records<R: Lifecycle>(
        &mut self,
        filter: &Filter,
        after: Option<&str>,
        limit: usize,
    ) -> Result<RecordPage<R>> {
        let mut after = after.unwrap_or_default().to_string();
        let mut found = Listed::<R>::default();
        let mut next = None;
        let sql = match filter.rack() {
            Some(_) => {
                "SELECT body, version, id FROM records WHERE rack_id = $1 AND kind = $2 AND id > $3 \
                 ORDER BY id LIMIT $4"
            }
            None => {
                "SELECT body, version, id FROM records WHERE kind = $2 AND id > $3 \
                 AND CAST($1 AS TEXT) IS NULL ORDER BY id LIMIT $4"
            }
        };
        loop {
            let rack = filter.rack();
            let values = values![rack, R::KIND.as_str(), after.as_str(), BATCH];
            let rows = self.query(sql, values).await?;
            let seen = self.seen_labels::<R>(filter, &rows).await?;
            for row in &rows {
                after = row.text(2)?.to_string();
                let decoded = record::<R>(row);
                if !is_listed(filter, &seen, &decoded) {
                    continue;
                }
                if found.items.len() == limit {
                    return Ok(RecordPage::new(found, next));
                }
                found.push(RowKind::of_record(R::KIND), &after, decoded)?;
                next = Some(after.clone());
            }
            if (rows.len() as i64) < BATCH {
                return Ok(RecordPage::new(found, None));
            }
        }
    }

    /// The labels of the machines by which these records are seen, by the machine's id. Empty if
    /// everything is in the scope.
    pub(crate) async fn seen_labels<R: Lifecycle>(
        &mut self,
        filter: &Filter,
        rows: &[Row],
    ) -> Result<BTreeMap<String, Labels>> {
        if filter.scope == Scope::Everything {
            return Ok(BTreeMap::new());
        }
        let records = rows.iter().filter_map(|row| record::<R>(row).ok());
        let machines: BTreeSet<String> =
            records.filter_map(|one| one.seen_by_machine().map(ToString::to_string)).collect();
        let sql = "SELECT id, labels FROM machines WHERE id {among $1}";
        let sql = self.dialect().fill_placeholders(sql);
        let rows = self.query(&sql, values![serde_json::to_string(&machines)?]).await?;
        rows.iter().map(|row| Ok((row.text(0)?.to_string(), row.json(1)?))).collect()
    }

    /// Like [`Tx::records`], as of a cursor: later changes are undone, and records that did not
    /// exist then are omitted. Only for kinds that can be watched.
    pub async fn records_as_of<R: Lifecycle>(
        &mut self,
        filter: &Filter,
        after: Option<&str>,
        limit: usize,
        at: Cursor,
    ) -> Result<RecordPage<R>> {
        let page: RecordPage<R> = self.records(filter, after, limit).await?;
        let mut records = Vec::with_capacity(page.records.len());
        for record in page.records {
            let (key, version) = (record.subject().key(), record.head().version);
            match self.object_as_of(&key, version, at).await? {
                ObjectAsOf::Unchanged => records.push(record),
                ObjectAsOf::Earlier(version, body) => {
                    if let Some(mut then) = readable_body::<R>(&key, &body) {
                        then.head_mut().version = version;
                        records.push(then);
                    }
                }
                ObjectAsOf::Later => {}
            }
        }
        Ok(RecordPage { records, ..page })
    }

    /// The number of records by kind and state, for the metrics.
    pub async fn record_counts(&mut self) -> Result<Vec<(String, String, i64)>> {
        let sql = "SELECT kind, state, COUNT(*) FROM records GROUP BY kind, state";
        let rows = self.query(sql, &[]).await?;
        let count =
            |row: &Row| Ok((row.text(0)?.to_string(), row.text(1)?.to_string(), row.int(2)?));
        rows.iter().map(count).collect()
    }

    fn record_event<R: Lifecycle>(&mut self, record: &R, event: &NewEvent) -> Result<()> {
        let (version, state) = (record.head().version, record.state_name());
        let event = self.lifecycle_event(record, version, state, event)?;
        self.queue_write(event, ExpectedRows::One)?;
        self.signal(Signal::Event);
        Ok(())
    }
}

/// True if a list has this row. A row that cannot be decoded has no labels, so it is in no limited
/// scope.
pub(crate) fn is_listed<R: Lifecycle>(
    filter: &Filter,
    seen: &BTreeMap<String, Labels>,
    decoded: &Result<R>,
) -> bool {
    let Ok(record) = decoded else { return filter.scope == Scope::Everything };
    let labels = match record.seen_by_machine() {
        None => Some(&record.head().labels),
        Some(machine) => seen.get(machine.as_str()),
    };
    filter.matches_record_seen_by(record, labels)
}

/// A record with the id in column 2.
fn record_by_id<R: Lifecycle>(row: &Row) -> Result<(String, Result<R>)> {
    let id = row.text(2)?;
    Ok((id.to_string(), named(RowKind::of_record(R::KIND), id, record(row))))
}

/// Decodes a record from the columns 0 (body) and 1 (version).
pub(crate) fn record<R: Lifecycle>(row: &Row) -> Result<R> {
    let mut record: R = row.json(0)?;
    record.head_mut().version = row.int(1)?;
    Ok(record)
}
