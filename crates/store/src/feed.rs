//! The index of devices by the power shelves that feed them. The feeds are a part of the device's
//! spec; the index finds the devices of a shelf in every rack.

use crate::driver::{ExpectedRows, Statement};
use crate::value::values;
use crate::{Result, Tx};
use model::id::PowerShelfId;
use model::lifecycle::{SubjectId, SubjectKind};
use model::target::{TargetId, TargetKind};
use std::collections::BTreeSet;

impl Tx {
    /// Replaces the shelves that feed a device. It is written with the device's spec.
    pub fn write_feeds(&mut self, device: &TargetId, feeds: &[PowerShelfId]) -> Result<()> {
        let key = device.key();
        self.delete_feeds_of(&key)?;
        for shelf in feeds {
            let sql = "INSERT INTO feeds (shelf_id, device) VALUES ($1, $2)";
            let values = values![shelf.as_str(), key.as_str()];
            self.queue_write(Statement::new(sql, values), ExpectedRows::One)?;
        }
        Ok(())
    }

    /// The devices that name one of these shelves as a feed. A device may have been deleted since.
    pub async fn devices_fed_by(&mut self, shelves: &[PowerShelfId]) -> Result<BTreeSet<TargetId>> {
        let ids: Vec<&str> = shelves.iter().map(PowerShelfId::as_str).collect();
        let sql = "SELECT DISTINCT device FROM feeds WHERE shelf_id {among $1}";
        let sql = self.dialect().fill_placeholders(sql);
        let rows = self.query(&sql, values![serde_json::to_string(&ids)?]).await?;
        rows.iter().map(|row| Ok(TargetId::from_key(row.text(0)?))).collect()
    }

    /// Deletes the rows of a deleted device.
    pub(crate) fn delete_feeds(&mut self, subject: &SubjectId) -> Result<()> {
        match subject.kind {
            SubjectKind::Switch => {
                self.delete_feeds_of(&TargetId::new(TargetKind::Switch, &subject.id).key())
            }
            // Nothing feeds these, or, for the parts of a machine, the machine has the feeds.
            SubjectKind::Rack
            | SubjectKind::PowerShelf
            | SubjectKind::Host
            | SubjectKind::Node
            | SubjectKind::Site
            | SubjectKind::Rollout => Ok(()),
        }
    }

    pub(crate) fn delete_feeds_of(&mut self, device: &str) -> Result<()> {
        let sql = "DELETE FROM feeds WHERE device = $1";
        self.queue_write(Statement::new(sql, values![device]), ExpectedRows::Any)
    }
}
