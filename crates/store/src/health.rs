//! Health reports by object and source. Their summary is stored in the object itself: a change of a
//! report raises the object's version and is in the object's history.

use crate::driver::{ExpectedRows, Statement};
use crate::event::NewEvent;
use crate::unreadable::{Listed, RowKind, UnreadableRow};
use crate::value::{Row, values};
use crate::{Result, StoreError, Tx};
use model::filter::Filter;
use model::health::{
    AlertCounts, Alerts, HealthReport, HealthSummary, ReportChange, Reports, apply,
    has_matching_alert,
};
use model::id::MachineId;
use model::lifecycle::{Lifecycle, SubjectId, SubjectKind};
use model::power_shelf::PowerShelf;
use model::rack::Rack;
use model::refusal::Refusal;
use model::switch::Switch;
use model::target::{TargetId, TargetKind};
use std::collections::{BTreeMap, BTreeSet};

/// The rows of one query. One object never has this many.
const BATCH: i64 = 500;

pub type ObjectReports = (TargetId, Reports);

impl Tx {
    pub async fn target_exists(&mut self, object: &TargetId) -> Result<bool> {
        let (table, kind) = match object.kind {
            TargetKind::Machine => ("machines", None),
            TargetKind::Switch => ("records", Some(SubjectKind::Switch)),
            TargetKind::PowerShelf => ("records", Some(SubjectKind::PowerShelf)),
            TargetKind::Rack => ("records", Some(SubjectKind::Rack)),
        };
        let key =
            kind.map_or(object.id.clone(), |kind| SubjectId::new(kind, object.as_str()).key());
        let sql = format!("SELECT id FROM {table} WHERE id = $1");
        Ok(self.query_one(&sql, values![key]).await?.is_some())
    }

    /// The reports of all sources on an object.
    pub async fn health(&mut self, object: &TargetId) -> Result<Reports> {
        let sql = "SELECT object_id, source, body FROM health WHERE object_id = $1";
        let rows = self.query(sql, values![object.key()]).await?;
        Ok(group_by_object(&rows)?.into_values().next().unwrap_or_default())
    }

    /// The reports on several objects. Objects without reports are omitted.
    pub async fn health_of_objects(
        &mut self,
        objects: &[TargetId],
    ) -> Result<BTreeMap<TargetId, Reports>> {
        let keys: Vec<String> = objects.iter().map(TargetId::key).collect();
        let sql = "SELECT object_id, source, body FROM health WHERE object_id {among $1}";
        let sql = self.dialect().fill_placeholders(sql);
        let rows = self.query(&sql, values![serde_json::to_string(&keys)?]).await?;
        let found = group_readable(&rows, &mut Vec::new())?.into_iter();
        Ok(found.map(|(key, reports)| (TargetId::from_key(&key), reports)).collect())
    }

    /// One page of objects with alerts, ordered by key.
    pub async fn health_list(
        &mut self,
        filter: &Filter,
        after: &str,
        limit: usize,
    ) -> Result<Listed<ObjectReports>> {
        let sql = "SELECT object_id, source, body FROM health WHERE object_id > $1 \
                   ORDER BY object_id, source LIMIT $2";
        let mut after = after.to_string();
        let mut found = Listed::default();
        loop {
            let rows = self.query(sql, values![after.as_str(), BATCH]).await?;
            let more = rows.len() as i64 == BATCH;
            let mut objects = group_readable(&rows, &mut found.unreadable)?;
            if more {
                // The last object may have more rows than were read.
                objects.pop_last();
            }
            for (key, reports) in objects {
                after.clone_from(&key);
                let object = TargetId::from_key(&key);
                if found.items.len() < limit && has_matching_alert(filter, &object, &reports) {
                    found.items.push((object, reports));
                }
            }
            if !more || found.items.len() == limit {
                return Ok(found);
            }
        }
    }

    /// The number of alerts by kind of object, for the metrics.
    pub async fn health_tally(&mut self) -> Result<Vec<(TargetKind, AlertCounts)>> {
        let sql = "SELECT kind, CAST(SUM(allocations) AS BIGINT), CAST(SUM(changes) AS BIGINT), \
                   CAST(SUM(other) AS BIGINT), CAST(SUM(suppressed) AS BIGINT) \
                   FROM health GROUP BY kind";
        let tally = |row: &Row| {
            let kind = row.text(0)?;
            let kind = TargetKind::parse(kind)
                .ok_or_else(|| StoreError::Corrupt(format!("kind {kind:?}")))?;
            let tally = AlertCounts {
                prevent_allocations: row.int(1)?,
                prevent_state_changes: row.int(2)?,
                other: row.int(3)?,
                suppressed: row.int(4)?,
            };
            Ok((kind, tally))
        };
        self.query(sql, &[]).await?.iter().map(tally).collect()
    }

    /// Adds alerts to the report of a source; an alert with the same id is replaced.
    pub async fn merge_health(
        &mut self,
        object: &TargetId,
        source: &str,
        alerts: &Alerts,
        event: &NewEvent,
    ) -> Result<Reports> {
        self.change_health(object, source, &ReportChange::Merge(alerts.clone()), event).await
    }

    /// Replaces the report of a source.
    pub async fn replace_health(
        &mut self,
        object: &TargetId,
        source: &str,
        alerts: &Alerts,
        event: &NewEvent,
    ) -> Result<Reports> {
        self.change_health(object, source, &ReportChange::Replace(alerts.clone()), event).await
    }

    /// Deletes the report of a source.
    pub async fn remove_health(
        &mut self,
        object: &TargetId,
        source: &str,
        event: &NewEvent,
    ) -> Result<Reports> {
        self.change_health(object, source, &ReportChange::Remove(BTreeSet::new()), event).await
    }

    /// Changes a report, the summary in the object, and the object's history. No event is written
    /// if nothing changes. A caller that has read the object in this transaction must read it
    /// again.
    pub async fn change_health(
        &mut self,
        object: &TargetId,
        source: &str,
        change: &ReportChange,
        event: &NewEvent,
    ) -> Result<Reports> {
        match object.kind {
            TargetKind::Machine => {
                let id = MachineId::trusted(object.as_str());
                let found = self.machine_locked(&id).await?;
                let mut machine = found.ok_or_else(|| unknown(object))?;
                let (known, after) = self.write_report(object, source, change, event).await?;
                if known != after {
                    machine.health = HealthSummary::of(&after);
                    self.update_machine(&mut machine, event)?;
                }
                Ok(after)
            }
            TargetKind::Switch => {
                self.change_record_health::<Switch>(object, source, change, event).await
            }
            TargetKind::PowerShelf => {
                self.change_record_health::<PowerShelf>(object, source, change, event).await
            }
            TargetKind::Rack => {
                self.change_record_health::<Rack>(object, source, change, event).await
            }
        }
    }

    async fn change_record_health<R: Lifecycle>(
        &mut self,
        object: &TargetId,
        source: &str,
        change: &ReportChange,
        event: &NewEvent,
    ) -> Result<Reports> {
        let found = self.record_locked::<R>(object.as_str()).await?;
        let mut record = found.ok_or_else(|| unknown(object))?;
        let (known, after) = self.write_report(object, source, change, event).await?;
        if known != after {
            record.head_mut().health = HealthSummary::of(&after);
            self.update_record(&mut record, event)?;
        }
        Ok(after)
    }

    /// Writes one report. The caller has locked the object.
    async fn write_report(
        &mut self,
        object: &TargetId,
        source: &str,
        change: &ReportChange,
        event: &NewEvent,
    ) -> Result<(Reports, Reports)> {
        let known = self.health(object).await?;
        let after = apply(&known, source, change, event.at)?;
        let statement = match after.get(source) {
            _ if known == after => return Ok((known, after)),
            None => {
                let sql = "DELETE FROM health WHERE object_id = $1 AND source = $2";
                Statement::new(sql, values![object.key(), source])
            }
            Some(report) => upsert_report(object, source, report)?,
        };
        self.queue_write(statement, ExpectedRows::One)?;
        Ok((known, after))
    }

    /// Deletes the reports on a deleted object.
    pub(crate) fn delete_health(&mut self, subject: &SubjectId) -> Result<()> {
        let kind = match subject.kind {
            SubjectKind::Rack => TargetKind::Rack,
            SubjectKind::Switch => TargetKind::Switch,
            SubjectKind::PowerShelf => TargetKind::PowerShelf,
            // Reports on a host are on its machine; nodes and sites have none.
            SubjectKind::Host | SubjectKind::Node | SubjectKind::Site | SubjectKind::Rollout => {
                return Ok(());
            }
        };
        self.delete_reports(&TargetId::new(kind, subject.id.as_str()))
    }

    /// Deletes the reports of all sources on an object.
    pub(crate) fn delete_reports(&mut self, object: &TargetId) -> Result<()> {
        let sql = "DELETE FROM health WHERE object_id = $1";
        self.queue_write(Statement::new(sql, values![object.key()]), ExpectedRows::Any)
    }
}

fn upsert_report(object: &TargetId, source: &str, report: &HealthReport) -> Result<Statement> {
    let sql = "INSERT INTO health (object_id, source, kind, allocations, changes, other, suppressed, body, \
               updated_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) \
               ON CONFLICT (object_id, source) DO UPDATE SET allocations = excluded.allocations, \
               changes = excluded.changes, other = excluded.other, suppressed = excluded.suppressed, \
               body = excluded.body, updated_at = excluded.updated_at";
    let tally = report.tally();
    let values = values![
        object.key(),
        source,
        object.kind.as_str(),
        tally.prevent_allocations,
        tally.prevent_state_changes,
        tally.other,
        tally.suppressed,
        serde_json::to_string(report)?,
        report.updated_at,
    ];
    Ok(Statement::new(sql, values))
}

fn unknown(object: &TargetId) -> Refusal {
    Refusal::not_found(object.kind.noun(), object, object.kind.list_command())
}

/// Groups rows of object, source and report by object, for a decision.
fn group_by_object(rows: &[Row]) -> Result<BTreeMap<String, Reports>> {
    let mut unreadable = Vec::new();
    let objects = group_readable(rows, &mut unreadable)?;
    unreadable.into_iter().next().map_or(Ok(objects), |row| Err(row.into()))
}

/// Groups rows by object, without those that cannot be decoded.
fn group_readable(
    rows: &[Row],
    unreadable: &mut Vec<UnreadableRow>,
) -> Result<BTreeMap<String, Reports>> {
    let mut objects: BTreeMap<String, Reports> = BTreeMap::new();
    for row in rows {
        let (object, source) = (row.text(0)?, row.text(1)?);
        let reports = objects.entry(object.to_string()).or_default();
        match row.json(2) {
            Ok(report) => drop(reports.insert(source.to_string(), report)),
            Err(StoreError::Corrupt(problem)) => {
                let (kind, id) = (RowKind::HealthReport, format!("{object}/{source}"));
                unreadable.push(UnreadableRow { kind, id, problem });
            }
            Err(error) => return Err(error),
        }
    }
    Ok(objects)
}
