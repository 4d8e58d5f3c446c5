//! The hardware that the last inspection of each machine found. A row is not a part of the machine:
//! writing it changes no version and has no event.

use crate::driver::{ExpectedRows, Statement};
use crate::value::{Row, values};
use crate::{Result, Tx};
use model::id::MachineId;
use model::machine::hardware::RecordedHardware;
use std::collections::BTreeMap;

pub(crate) const COLUMNS: &str = "machine_id, inspected_at, body";

impl Tx {
    /// Records an inspection, unless a later one is recorded.
    pub fn record_hardware(&mut self, id: &MachineId, recorded: &RecordedHardware) -> Result<()> {
        let sql = "INSERT INTO inspections (machine_id, inspected_at, body) VALUES ($1, $2, $3) \
                   ON CONFLICT (machine_id) DO UPDATE SET inspected_at = excluded.inspected_at, \
                   body = excluded.body WHERE inspections.inspected_at <= excluded.inspected_at";
        let body = serde_json::to_string(&recorded.summary)?;
        let values = values![id.as_str(), recorded.inspected_at, body];
        self.queue_write(Statement::new(sql, values), ExpectedRows::Any)
    }

    /// The recorded hardware of these machines. A machine without a readable record is left out.
    pub async fn hardware_of(
        &mut self,
        ids: &[&str],
    ) -> Result<BTreeMap<MachineId, RecordedHardware>> {
        let sql = format!("SELECT {COLUMNS} FROM inspections WHERE machine_id {{among $1}}");
        let sql = self.dialect().fill_placeholders(&sql);
        let rows = self.query(&sql, values![serde_json::to_string(ids)?]).await?;
        let mut found = BTreeMap::new();
        for row in &rows {
            if let Ok(recorded) = hardware(row) {
                found.insert(MachineId::trusted(row.text(0)?), recorded);
            }
        }
        Ok(found)
    }
}

pub(crate) fn hardware(row: &Row) -> Result<RecordedHardware> {
    Ok(RecordedHardware { summary: row.json(2)?, inspected_at: row.time(1)? })
}
