//! Lockouts: logins that a device refused and that are not tried again.

use crate::value::{Row, values};
use crate::{Result, Tx};
use model::time::Timestamp;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockoutRow {
    pub peer: String,
    pub credential: String,
    /// The refused version of the credential. A newer version may be tried.
    pub version: i64,
    pub message: String,
    pub since: Timestamp,
}

impl Tx {
    pub async fn lockout(&mut self, peer: &str) -> Result<Option<LockoutRow>> {
        let sql = "SELECT peer, credential, version, said, since FROM lockouts WHERE peer = $1";
        self.query_one(sql, values![peer]).await?.as_ref().map(lockout).transpose()
    }

    /// Inserts or replaces the lockout of a device.
    pub async fn record_lockout(&mut self, row: &LockoutRow) -> Result<()> {
        let sql = "INSERT INTO lockouts (peer, credential, version, said, since) \
                   VALUES ($1, $2, $3, $4, $5) ON CONFLICT (peer) DO UPDATE SET \
                   credential = $2, version = $3, said = $4, since = $5";
        let (peer, credential) = (row.peer.as_str(), row.credential.as_str());
        let values = values![peer, credential, row.version, row.message.as_str(), row.since];
        self.execute(sql, values).await.map(drop)
    }

    /// Allows the login again. False if there was no lockout.
    pub async fn delete_lockout(&mut self, peer: &str) -> Result<bool> {
        let sql = "DELETE FROM lockouts WHERE peer = $1";
        Ok(self.execute(sql, values![peer]).await? == 1)
    }
}

fn lockout(row: &Row) -> Result<LockoutRow> {
    Ok(LockoutRow {
        peer: row.text(0)?.to_string(),
        credential: row.text(1)?.to_string(),
        version: row.int(2)?,
        message: row.text(3)?.to_string(),
        since: row.time(4)?,
    })
}
