//! Replicas: who is alive. A claim names the incarnation of a replica; when that incarnation expires,
//! all it held goes back to the queue at once. So a lease costs one row per replica, not one per run.

use crate::signal::Signal;
use crate::value::values;
use crate::{Result, StoreError, Tx};
use model::time::Timestamp;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replica {
    pub name: String,
    /// This start of it; what claims are made under.
    pub incarnation: String,
}

impl Tx {
    /// Announces a starting replica and takes back what its earlier incarnation held.
    pub async fn enlist(
        &mut self,
        replica: &Replica,
        now: Timestamp,
        expires: Timestamp,
    ) -> Result<u64> {
        let sql = "SELECT incarnation FROM replicas WHERE name = $1";
        let earlier = self.query_one(sql, values![replica.name.as_str()]).await?;
        let mut freed = 0;
        if let Some(row) = earlier {
            let incarnation = row.text(0)?.to_string();
            freed = self.free(&incarnation, now).await?;
        }
        let sql = "INSERT INTO replicas (name, incarnation, expires_at, started_at) \
                   VALUES ($1, $2, $3, $4) ON CONFLICT (name) DO UPDATE SET \
                   incarnation = $2, expires_at = $3, started_at = $4";
        let (name, incarnation) = (replica.name.as_str(), replica.incarnation.as_str());
        self.execute(sql, values![name, incarnation, expires, now]).await?;
        Ok(freed)
    }

    /// Renews all claims of a replica at once. A conflict means that another process took its name,
    /// or that it was given up for dead.
    pub async fn renew(&mut self, replica: &Replica, expires: Timestamp) -> Result<()> {
        let sql = "UPDATE replicas SET expires_at = $3 WHERE name = $1 AND incarnation = $2";
        let (name, incarnation) = (replica.name.as_str(), replica.incarnation.as_str());
        match self.execute(sql, values![name, incarnation, expires]).await? {
            1 => Ok(()),
            _ => Err(StoreError::Conflict),
        }
    }

    /// Gives up for dead whoever has not renewed, and frees what they held. Returns their names.
    pub async fn reap(&mut self, now: Timestamp) -> Result<Vec<String>> {
        let sql = self
            .dialect()
            .fill("SELECT name, incarnation FROM replicas WHERE expires_at < $1 {skip_locked}");
        let rows = self.query(&sql, values![now]).await?;
        let mut names = Vec::new();
        for row in &rows {
            let (name, incarnation) = (row.text(0)?.to_string(), row.text(1)?.to_string());
            self.free(&incarnation, now).await?;
            let sql = "DELETE FROM replicas WHERE name = $1 AND incarnation = $2";
            self.execute(sql, values![name.as_str(), incarnation]).await?;
            names.push(name);
        }
        Ok(names)
    }

    /// Leaves in good order: everything held goes back to the queue.
    pub async fn resign(&mut self, replica: &Replica, now: Timestamp) -> Result<u64> {
        let freed = self.free(&replica.incarnation, now).await?;
        let sql = "DELETE FROM replicas WHERE name = $1 AND incarnation = $2";
        let (name, incarnation) = (replica.name.as_str(), replica.incarnation.as_str());
        self.execute(sql, values![name, incarnation]).await?;
        Ok(freed)
    }

    async fn free(&mut self, incarnation: &str, now: Timestamp) -> Result<u64> {
        let sql = "UPDATE subjects SET owner = NULL, due_at = $2 WHERE owner = $1";
        let freed = self.execute(sql, values![incarnation, now]).await?;
        if freed > 0 {
            self.signal(Signal::Work);
        }
        Ok(freed)
    }

    /// The replicas that are alive, for sharing out the probes.
    pub async fn replicas(&mut self, now: Timestamp) -> Result<Vec<String>> {
        let sql = "SELECT name FROM replicas WHERE expires_at >= $1 ORDER BY name";
        let rows = self.query(sql, values![now]).await?;
        rows.iter().map(|row| Ok(row.text(0)?.to_string())).collect()
    }
}
