//! Checkpoints: what providers remember about their calls, by effect key.

use crate::value::{Row, values};
use crate::{Result, Tx};
use model::effect::EffectKey;
use model::time::Timestamp;

/// The checkpoint of one effect key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointRow {
    /// The key was stopped before it began and can never begin.
    pub stopped_before_start: bool,
    /// JSON, defined by the provider.
    pub body: String,
}

impl Tx {
    pub async fn checkpoint(&mut self, key: &EffectKey) -> Result<Option<CheckpointRow>> {
        let sql = "SELECT barred, body FROM notes WHERE key = $1";
        let row = self.query_one(sql, values![key.as_str()]).await?;
        row.as_ref().map(checkpoint).transpose()
    }

    /// Inserts the first checkpoint of a key. If one exists, returns that one unchanged.
    pub async fn begin_checkpoint(
        &mut self,
        key: &EffectKey,
        first: &CheckpointRow,
        now: Timestamp,
    ) -> Result<Option<CheckpointRow>> {
        let sql = "INSERT INTO notes (key, run_id, barred, body, updated_at) \
                   VALUES ($1, $2, $3, $4, $5) ON CONFLICT (key) DO NOTHING";
        let stopped = i64::from(first.stopped_before_start);
        let values = values![key.as_str(), key.run(), stopped, first.body.as_str(), now];
        match self.execute(sql, values).await? {
            0 => self.checkpoint(key).await,
            _ => Ok(None),
        }
    }

    /// Compare-and-swap of a begun checkpoint. False if the stored body is not the expected one.
    pub async fn swap_checkpoint(
        &mut self,
        key: &EffectKey,
        before: &str,
        after: &str,
        now: Timestamp,
    ) -> Result<bool> {
        let sql = "UPDATE notes SET body = $3, updated_at = $4 \
                   WHERE key = $1 AND body = $2 AND barred = 0";
        Ok(self.execute(sql, values![key.as_str(), before, after, now]).await? == 1)
    }
}

fn checkpoint(row: &Row) -> Result<CheckpointRow> {
    Ok(CheckpointRow { stopped_before_start: row.int(0)? != 0, body: row.text(1)?.to_string() })
}
