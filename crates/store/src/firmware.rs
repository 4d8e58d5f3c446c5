//! The firmware catalogue, and the history of applied firmware.

use crate::driver::{ExpectedRows, Statement};
use crate::event::NewEvent;
use crate::keyset::KeysetQuery;
use crate::signal::Signal;
use crate::unreadable::{Listed, RowKind, named};
use crate::value::{Row, Value, values};
use crate::{Result, Tx};
use model::filter::Filter;
use model::firmware::{AppliedFirmware, Firmware, MAX_APPLIED};
use model::id::{FirmwareId, RunId};
use model::target::TargetId;

/// The event object id of a firmware record.
fn object(id: &FirmwareId) -> String {
    format!("firmware/{id}")
}

pub(crate) const COLUMNS: &str = "body, is_default, available, version, id";

impl Tx {
    pub async fn firmware(&mut self, id: &FirmwareId) -> Result<Option<Firmware>> {
        let sql = format!("SELECT {COLUMNS} FROM firmware WHERE id = $1");
        let row = self.query_one(&sql, values![id.as_str()]).await?;
        named(RowKind::Firmware, id.as_str(), row.as_ref().map(firmware).transpose())
    }

    pub async fn default_firmware(&mut self, hardware_type: &str) -> Result<Option<Firmware>> {
        let sql =
            format!("SELECT {COLUMNS} FROM firmware WHERE hardware_type = $1 AND is_default = 1");
        let row = self.query_one(&sql, values![hardware_type]).await?;
        let Some(row) = row else { return Ok(None) };
        named(RowKind::Firmware, row.text(4)?, firmware(&row)).map(Some)
    }

    /// One page of the records that match, ordered by id.
    pub async fn firmware_list(
        &mut self,
        filter: &Filter,
        after: &str,
        limit: i64,
    ) -> Result<Listed<Firmware>> {
        let query = KeysetQuery {
            sql: format!(
                "SELECT {COLUMNS} FROM firmware WHERE id > $1 \
                 AND (CAST($2 AS TEXT) IS NULL OR hardware_type = $2) ORDER BY id LIMIT $3"
            ),
            after: vec![after.into()],
            fixed: vec![filter.named_value("hardware_type").into()],
            key: &[4],
            kind: Some(RowKind::Firmware),
            decode: firmware,
        };
        self.filtered_items(query, filter, limit).await
    }

    /// Inserts a record and sets its version. A conflict means that the id exists, or that the
    /// hardware type has a default.
    pub async fn insert_firmware(&mut self, one: &mut Firmware, event: &NewEvent) -> Result<()> {
        // A deleted record of the same id has a history that continues.
        one.version = self.last_version(&object(&one.id)).await? + 1;
        let sql = "INSERT INTO firmware (id, hardware_type, is_default, available, body, created_at, \
                   version) VALUES ($1, $2, $3, $4, $5, $6, $7)";
        let values = values![
            one.id.as_str(),
            one.hardware_type.as_str(),
            i64::from(one.is_default),
            i64::from(one.available),
            serde_json::to_string(one)?,
            one.created_at,
            one.version,
        ];
        self.queue_write(Statement::new(sql, values), ExpectedRows::One)?;
        self.append_firmware_event(&one.id, one.version, "added", event)
    }

    /// Writes the two flags, the only fields that may change, and raises the version. A conflict
    /// means that another transaction wrote the record first.
    pub fn update_firmware(&mut self, one: &mut Firmware, event: &NewEvent) -> Result<()> {
        let read_at = one.version;
        one.version += 1;
        let sql = "UPDATE firmware SET is_default = $2, available = $3, version = $4 \
                   WHERE id = $1 AND version = $5";
        let values = values![
            one.id.as_str(),
            i64::from(one.is_default),
            i64::from(one.available),
            one.version,
            read_at,
        ];
        self.queue_write(Statement::new(sql, values), ExpectedRows::One)?;
        self.append_firmware_event(&one.id, one.version, "changed", event)
    }

    /// Deletes a record at its version. A conflict means that another transaction wrote it first.
    pub fn delete_firmware(&mut self, one: &Firmware, event: &NewEvent) -> Result<()> {
        let sql = "DELETE FROM firmware WHERE id = $1 AND version = $2";
        let values = values![one.id.as_str(), one.version];
        self.queue_write(Statement::new(sql, values), ExpectedRows::One)?;
        self.append_firmware_event(&one.id, one.version + 1, "removed", event)
    }

    /// Records applied firmware and deletes entries of that device beyond [`MAX_APPLIED`].
    pub fn insert_applied(&mut self, one: &AppliedFirmware) -> Result<()> {
        let sql = "INSERT INTO firmware_applied (run_id, step, device, component, previous, version, \
                   changed, at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT DO NOTHING";
        let device = one.device.key();
        let values = values![
            one.run.as_str(),
            one.step.as_str(),
            device.as_str(),
            one.component.as_str(),
            one.previous.as_str(),
            one.version.as_str(),
            i64::from(one.changed),
            one.at,
        ];
        self.queue_write(Statement::new(sql, values), ExpectedRows::Any)?;
        let sql = "DELETE FROM firmware_applied WHERE device = $1 AND (at, run_id, step) < (\
                   SELECT at, run_id, step FROM firmware_applied WHERE device = $1 \
                   ORDER BY at DESC, run_id DESC, step DESC LIMIT 1 OFFSET $2)";
        self.queue_write(Statement::new(sql, values![device, MAX_APPLIED - 1]), ExpectedRows::Any)
    }

    /// One page of the applied firmware that matches.
    pub async fn applied(
        &mut self,
        query: &AppliedQuery,
        limit: i64,
    ) -> Result<Vec<AppliedFirmware>> {
        let (sign, direction, at) = match query.oldest_first {
            true => (">", "ASC", i64::MIN),
            false => ("<", "DESC", i64::MAX),
        };
        let first = AppliedPosition { at, run: String::new(), step: String::new() };
        let after = query.after.as_ref().unwrap_or(&first);
        let only = if query.device.is_some() { "device = $4" } else { "CAST($4 AS TEXT) IS NULL" };
        let sql = format!(
            "SELECT run_id, step, device, component, previous, version, changed, at \
             FROM firmware_applied WHERE {only} AND (at, run_id, step) {sign} ($1, $2, $3) \
             ORDER BY at {direction}, run_id {direction}, step {direction} LIMIT $5"
        );
        let rows = KeysetQuery {
            sql,
            after: after.values(),
            fixed: vec![query.device.as_ref().map(TargetId::key).into()],
            key: &[7, 0, 1],
            kind: None,
            decode: applied,
        };
        self.filtered_items(rows, &query.filter, limit).await?.complete()
    }

    fn append_firmware_event(
        &mut self,
        id: &FirmwareId,
        version: i64,
        name: &str,
        event: &NewEvent,
    ) -> Result<()> {
        let event = self.object_event("firmware", &object(id), version, name, event);
        self.queue_write(event, ExpectedRows::One)?;
        self.signal(Signal::Event);
        Ok(())
    }
}

/// Selects applied firmware.
#[derive(Debug, Clone, Default)]
pub struct AppliedQuery {
    /// Only this device.
    pub device: Option<TargetId>,
    pub filter: Filter,
    pub oldest_first: bool,
    /// The last entry of the page before.
    pub after: Option<AppliedPosition>,
}

/// A position in the history of applied firmware.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppliedPosition {
    pub at: i64,
    pub run: String,
    pub step: String,
}

impl AppliedPosition {
    pub fn of(one: &AppliedFirmware) -> Self {
        Self { at: one.at.as_micros(), run: one.run.to_string(), step: one.step.clone() }
    }

    fn values(&self) -> Vec<Value> {
        vec![self.at.into(), self.run.as_str().into(), self.step.as_str().into()]
    }
}

fn applied(row: &Row) -> Result<AppliedFirmware> {
    Ok(AppliedFirmware {
        run: RunId::trusted(row.text(0)?),
        step: row.text(1)?.to_string(),
        device: TargetId::from_key(row.text(2)?),
        component: row.text(3)?.to_string(),
        previous: row.text(4)?.to_string(),
        version: row.text(5)?.to_string(),
        changed: row.int(6)? == 1,
        at: row.time(7)?,
    })
}

pub(crate) fn firmware(row: &Row) -> Result<Firmware> {
    let stored: Firmware = row.json(0)?;
    Ok(Firmware {
        is_default: row.int(1)? == 1,
        available: row.int(2)? == 1,
        version: row.int(3)?,
        ..stored
    })
}
