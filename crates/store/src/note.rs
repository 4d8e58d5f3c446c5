//! Checkpoints: what providers remember about their calls, by effect key.

use crate::value::{Row, values};
use crate::{Result, Tx};
use model::effect::Key;
use model::time::Timestamp;

/// The checkpoint of one effect key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoteRow {
    /// The key was stopped before it began and can never begin.
    pub barred: bool,
    /// JSON, defined by the provider.
    pub body: String,
}

impl Tx {
    pub async fn note(&mut self, key: &Key) -> Result<Option<NoteRow>> {
        let sql = "SELECT barred, body FROM notes WHERE key = $1";
        let row = self.query_one(sql, values![key.as_str()]).await?;
        row.as_ref().map(note).transpose()
    }

    /// Inserts the first checkpoint of a key. If one exists, returns that one unchanged.
    pub async fn begin_note(
        &mut self,
        key: &Key,
        first: &NoteRow,
        now: Timestamp,
    ) -> Result<Option<NoteRow>> {
        let sql = "INSERT INTO notes (key, run_id, barred, body, updated_at) \
                   VALUES ($1, $2, $3, $4, $5) ON CONFLICT (key) DO NOTHING";
        let barred = i64::from(first.barred);
        let values = values![key.as_str(), key.run(), barred, first.body.as_str(), now];
        match self.execute(sql, values).await? {
            0 => self.note(key).await,
            _ => Ok(None),
        }
    }

    /// Compare-and-swap of a begun checkpoint. False if the stored body is not the expected one.
    pub async fn amend_note(
        &mut self,
        key: &Key,
        before: &str,
        after: &str,
        now: Timestamp,
    ) -> Result<bool> {
        let sql = "UPDATE notes SET body = $3, updated_at = $4 \
                   WHERE key = $1 AND body = $2 AND barred = 0";
        Ok(self.execute(sql, values![key.as_str(), before, after, now]).await? == 1)
    }
}

fn note(row: &Row) -> Result<NoteRow> {
    Ok(NoteRow { barred: row.int(0)? != 0, body: row.text(1)?.to_string() })
}
