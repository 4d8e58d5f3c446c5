//! Replicas and their heartbeats. A claim names the incarnation of a replica; when that incarnation
//! expires, all its claims go back to the queue at once. So a lease costs one row per replica, not
//! one per run.

use crate::keyset::KeysetQuery;
use crate::signal::Signal;
use crate::value::{Row, values};
use crate::{Result, StoreError, Tx};
use model::filter::{Filter, FilterValues};
use model::time::Timestamp;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replica {
    pub name: String,
    /// One start of the replica. Claims name it.
    pub incarnation: String,
}

/// A replica, and the end of its lease by its own clock. Other replicas only compare it for
/// changes, because clocks differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaHeartbeat {
    pub replica: Replica,
    pub expires_at: Timestamp,
}

/// A replica for operators. All times are by the replica's own clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaStatus {
    pub replica: Replica,
    /// The version of its program; empty for a replica that does not report it.
    pub version: String,
    pub started_at: Timestamp,
    pub heartbeat_at: Option<Timestamp>,
    pub expires_at: Timestamp,
    /// The number of objects in the queue that it has claimed.
    pub claims: i64,
}

impl FilterValues for ReplicaStatus {
    fn values_of(&self, field: &str) -> Vec<String> {
        match field {
            "name" => vec![self.replica.name.clone()],
            "version" => vec![self.version.clone()],
            "incarnation" => vec![self.replica.incarnation.clone()],
            _ => Vec::new(),
        }
    }
}

impl Tx {
    /// Registers a starting replica and releases the claims of its earlier incarnation.
    pub async fn register_replica(
        &mut self,
        replica: &Replica,
        version: &str,
        now: Timestamp,
        expires: Timestamp,
    ) -> Result<u64> {
        let sql = "SELECT incarnation FROM replicas WHERE name = $1";
        let earlier = self.query_one(sql, values![replica.name.as_str()]).await?;
        let mut freed = 0;
        if let Some(row) = earlier {
            let incarnation = row.text(0)?.to_string();
            freed = self.release_claims(&incarnation, now).await?;
        }
        let sql = "INSERT INTO replicas (name, incarnation, expires_at, started_at, version, \
                   heartbeat_at) VALUES ($1, $2, $3, $4, $5, $4) ON CONFLICT (name) DO UPDATE SET \
                   incarnation = $2, expires_at = $3, started_at = $4, version = $5, \
                   heartbeat_at = $4";
        let (name, incarnation) = (replica.name.as_str(), replica.incarnation.as_str());
        self.execute(sql, values![name, incarnation, expires, now, version]).await?;
        Ok(freed)
    }

    /// Renews all claims of a replica at once. A conflict means that another process took its name,
    /// or that it was expired.
    pub async fn renew_lease(
        &mut self,
        replica: &Replica,
        now: Timestamp,
        expires: Timestamp,
    ) -> Result<()> {
        let sql = "UPDATE replicas SET expires_at = $3, heartbeat_at = $4 \
                   WHERE name = $1 AND incarnation = $2";
        let (name, incarnation) = (replica.name.as_str(), replica.incarnation.as_str());
        match self.execute(sql, values![name, incarnation, expires, now]).await? {
            1 => Ok(()),
            _ => Err(StoreError::Conflict),
        }
    }

    /// The heartbeat of every replica, by name.
    pub async fn replica_heartbeats(&mut self) -> Result<Vec<ReplicaHeartbeat>> {
        let sql = "SELECT name, incarnation, expires_at FROM replicas ORDER BY name";
        let rows = self.query(sql, &[]).await?;
        let heartbeat = |row: &Row| {
            let (name, incarnation) = (row.text(0)?.to_string(), row.text(1)?.to_string());
            Ok(ReplicaHeartbeat {
                replica: Replica { name, incarnation },
                expires_at: row.time(2)?,
            })
        };
        rows.iter().map(heartbeat).collect()
    }

    /// One page of the replicas that match, with their claims, ordered by name.
    pub async fn replicas(
        &mut self,
        filter: &Filter,
        after: &str,
        limit: i64,
    ) -> Result<Vec<ReplicaStatus>> {
        let sql = "SELECT r.name, r.incarnation, r.version, r.started_at, r.heartbeat_at, \
                   r.expires_at, (SELECT COUNT(*) FROM subjects s WHERE s.owner = r.incarnation) \
                   FROM replicas r WHERE r.name > $1 ORDER BY r.name LIMIT $2";
        let query = KeysetQuery {
            sql: sql.into(),
            after: vec![after.into()],
            fixed: Vec::new(),
            key: &[0],
            kind: None,
            decode: status,
        };
        self.filtered_items(query, filter, limit).await?.complete()
    }

    /// Expires a replica and releases its claims, unless it has sent a heartbeat since `observed`.
    /// True if it was expired.
    pub async fn expire_replica(
        &mut self,
        observed: &ReplicaHeartbeat,
        now: Timestamp,
    ) -> Result<bool> {
        let sql = "DELETE FROM replicas WHERE name = $1 AND incarnation = $2 AND expires_at = $3";
        let (name, incarnation) = (&observed.replica.name, &observed.replica.incarnation);
        let gone = self
            .execute(sql, values![name.as_str(), incarnation.as_str(), observed.expires_at])
            .await?;
        if gone == 1 {
            self.release_claims(incarnation, now).await?;
        }
        Ok(gone == 1)
    }

    /// Deregisters a stopping replica: all its claims go back to the queue.
    pub async fn deregister_replica(&mut self, replica: &Replica, now: Timestamp) -> Result<u64> {
        let freed = self.release_claims(&replica.incarnation, now).await?;
        let sql = "DELETE FROM replicas WHERE name = $1 AND incarnation = $2";
        let (name, incarnation) = (replica.name.as_str(), replica.incarnation.as_str());
        self.execute(sql, values![name, incarnation]).await?;
        Ok(freed)
    }

    async fn release_claims(&mut self, incarnation: &str, now: Timestamp) -> Result<u64> {
        let sql = "UPDATE subjects SET owner = NULL, due_at = $2 WHERE owner = $1";
        let freed = self.execute(sql, values![incarnation, now]).await?;
        if freed > 0 {
            self.signal(Signal::Work);
        }
        Ok(freed)
    }
}

fn status(row: &Row) -> Result<ReplicaStatus> {
    let (name, incarnation) = (row.text(0)?.to_string(), row.text(1)?.to_string());
    Ok(ReplicaStatus {
        replica: Replica { name, incarnation },
        version: row.text(2)?.to_string(),
        started_at: row.time(3)?,
        heartbeat_at: row.opt_time(4)?,
        expires_at: row.time(5)?,
        claims: row.int(6)?,
    })
}
