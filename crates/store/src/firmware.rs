//! The catalogue of firmware, and what was applied where.

use crate::driver::{Expect, Statement};
use crate::event::NewEvent;
use crate::signal::Signal;
use crate::value::{Row, values};
use crate::{Result, Tx};
use model::firmware::Firmware;
use model::id::FirmwareId;

/// The object that the history of a record is about.
fn object(id: &FirmwareId) -> String {
    format!("firmware/{id}")
}

const COLUMNS: &str = "body, is_default, available";

impl Tx {
    pub async fn firmware(&mut self, id: &FirmwareId) -> Result<Option<Firmware>> {
        let sql = format!("SELECT {COLUMNS} FROM firmware WHERE id = $1");
        let row = self.query_one(&sql, values![id.as_str()]).await?;
        row.as_ref().map(firmware).transpose()
    }

    pub async fn default_firmware(&mut self, hardware_type: &str) -> Result<Option<Firmware>> {
        let sql =
            format!("SELECT {COLUMNS} FROM firmware WHERE hardware_type = $1 AND is_default = 1");
        let row = self.query_one(&sql, values![hardware_type]).await?;
        row.as_ref().map(firmware).transpose()
    }

    /// Records by id, after one.
    pub async fn firmware_list(&mut self, after: &str, limit: i64) -> Result<Vec<Firmware>> {
        let sql = format!("SELECT {COLUMNS} FROM firmware WHERE id > $1 ORDER BY id LIMIT $2");
        let rows = self.query(&sql, values![after, limit]).await?;
        rows.iter().map(firmware).collect()
    }

    /// Writes a new record. A conflict means that the id is taken, or that another is the default.
    pub async fn insert_firmware(&mut self, one: &Firmware, event: &NewEvent) -> Result<()> {
        let sql = "INSERT INTO firmware (id, hardware_type, is_default, available, body, created_at) \
                   VALUES ($1, $2, $3, $4, $5, $6)";
        let values = values![
            one.id.as_str(),
            one.hardware_type.as_str(),
            i64::from(one.is_default),
            i64::from(one.available),
            serde_json::to_string(one)?,
            one.created_at,
        ];
        self.put(Statement::new(sql, values), Expect::One)?;
        self.firmware_event(&one.id, "added", event).await
    }

    /// Writes the two flags that may change.
    pub async fn update_firmware(&mut self, one: &Firmware, event: &NewEvent) -> Result<()> {
        let sql = "UPDATE firmware SET is_default = $2, available = $3 WHERE id = $1";
        let values = values![one.id.as_str(), i64::from(one.is_default), i64::from(one.available)];
        self.put(Statement::new(sql, values), Expect::One)?;
        self.firmware_event(&one.id, "changed", event).await
    }

    pub async fn delete_firmware(&mut self, id: &FirmwareId, event: &NewEvent) -> Result<()> {
        let sql = "DELETE FROM firmware WHERE id = $1";
        self.put(Statement::new(sql, values![id.as_str()]), Expect::One)?;
        self.firmware_event(id, "removed", event).await
    }

    async fn firmware_event(
        &mut self,
        id: &FirmwareId,
        word: &str,
        event: &NewEvent,
    ) -> Result<()> {
        let object = object(id);
        let version = self.last_version(&object).await? + 1;
        let event = self.plain_event("firmware", &object, version, word, event);
        self.put(event, Expect::One)?;
        self.signal(Signal::Event);
        Ok(())
    }
}

fn firmware(row: &Row) -> Result<Firmware> {
    let stored: Firmware = row.json(0)?;
    Ok(Firmware { is_default: row.int(1)? == 1, available: row.int(2)? == 1, ..stored })
}
