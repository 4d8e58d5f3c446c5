//! The audit log: entries in the commits of their requests, and the chain that is sealed later.

use crate::driver::{ExpectedRows, Statement};
use crate::value::{Row, Value, values};
use crate::{Result, StoreError, Tx};
use model::audit::{AuditEntry, AuditOutcome, AuditSeal, StoredAuditEntry};
use model::time::Timestamp;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// The entry of a request that is being carried out. The first commit of the request writes it.
#[derive(Debug)]
pub struct AuditDraft {
    entry: Mutex<AuditEntry>,
    written: AtomicBool,
}

impl AuditDraft {
    pub fn new(entry: AuditEntry) -> Self {
        Self { entry: Mutex::new(entry), written: AtomicBool::new(false) }
    }

    pub fn entry(&self) -> AuditEntry {
        self.entry.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Adds what the request names.
    pub fn describe(&self, objects: Vec<String>, reference: String) {
        let mut entry = self.entry.lock().unwrap_or_else(PoisonError::into_inner);
        (entry.objects, entry.reference) = (objects, reference);
    }

    /// Adds an object that the request acts with.
    pub fn add_object(&self, id: &str) {
        let mut entry = self.entry.lock().unwrap_or_else(PoisonError::into_inner);
        if !entry.objects.iter().any(|known| known == id) {
            entry.objects.push(id.to_string());
        }
    }

    /// The request changes nothing, so it has no entry.
    pub fn leave_out(&self) {
        self.mark_written();
    }

    pub fn is_written(&self) -> bool {
        self.written.load(Ordering::Acquire)
    }

    /// The entry is in the log.
    pub fn mark_written(&self) {
        self.written.store(true, Ordering::Release);
    }
}

/// A search of the log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditQuery {
    pub since: Option<Timestamp>,
    /// Exact; empty: every user.
    pub user: String,
    /// An object that the entry names; empty: all.
    pub object: String,
}

const COLUMNS: &str = "seq, at, user_name, method, token_id, peer, call_name, objects, reference, \
                       remark, reason, occurrences, operation_id, position, seal";

/// The condition of a search: its values are $2 to $7.
const MATCHES: &str = "at >= $2 AND ($3 = '' OR user_name = $3) \
                       AND ($4 = '' OR objects = $4 OR operation_id = $4 \
                            OR objects LIKE $5 ESCAPE '!' OR objects LIKE $6 ESCAPE '!' \
                            OR objects LIKE $7 ESCAPE '!')";

/// The values of a search. `from` is $1 and `limit` is $8.
fn search_values(query: &AuditQuery, from: i64, limit: i64) -> Vec<Value> {
    let object = query.object.replace('!', "!!").replace('%', "!%").replace('_', "!_");
    values![
        from,
        query.since.map_or(i64::MIN, Timestamp::as_micros),
        query.user.as_str(),
        query.object.as_str(),
        format!("{object}\n%"),
        format!("%\n{object}"),
        format!("%\n{object}\n%"),
        limit,
    ]
    .to_vec()
}

impl Tx {
    pub fn insert_audit_entry(&mut self, entry: &AuditEntry) -> Result<()> {
        let (reason, count) = match &entry.outcome {
            AuditOutcome::Accepted => (String::new(), 1),
            AuditOutcome::Refused { reason, count } => (reason.clone(), *count),
        };
        let sql = "INSERT INTO audit_entries (at, user_name, method, token_id, peer, call_name, \
                   objects, reference, remark, reason, occurrences, operation_id) \
                   VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)";
        let values = values![
            entry.at,
            entry.user.as_str(),
            entry.method.as_str(),
            entry.token_id.as_str(),
            entry.peer.as_str(),
            entry.call.as_str(),
            entry.objects.join("\n"),
            entry.reference.as_str(),
            entry.remark.as_str(),
            reason,
            i64::try_from(count).unwrap_or(i64::MAX),
            entry.operation_id.as_str(),
        ];
        self.queue_write(Statement::new(sql, values), ExpectedRows::One)
    }

    /// Entries before a sequence number, the newest first.
    pub async fn audit_entries(
        &mut self,
        query: &AuditQuery,
        before: Option<i64>,
        limit: i64,
    ) -> Result<Vec<StoredAuditEntry>> {
        let sql = format!(
            "SELECT {COLUMNS} FROM audit_entries WHERE seq < $1 AND {MATCHES} \
             ORDER BY seq DESC LIMIT $8"
        );
        let values = search_values(query, before.unwrap_or(i64::MAX), limit);
        self.query(&sql, &values).await?.iter().map(stored).collect()
    }

    /// Sealed entries after a position, in the order of the chain.
    pub async fn sealed_audit_entries(
        &mut self,
        query: &AuditQuery,
        after: i64,
        limit: i64,
    ) -> Result<Vec<StoredAuditEntry>> {
        let sql = format!(
            "SELECT {COLUMNS} FROM audit_entries WHERE position > $1 AND {MATCHES} \
             ORDER BY position LIMIT $8"
        );
        let values = search_values(query, after, limit);
        self.query(&sql, &values).await?.iter().map(stored).collect()
    }

    /// The seal at a position of the chain.
    pub async fn audit_seal_at(&mut self, position: i64) -> Result<Option<String>> {
        let sql = "SELECT seal FROM audit_entries WHERE position = $1";
        let row = self.query_one(sql, values![position]).await?;
        row.map(|row| row.text(0).map(String::from)).transpose()
    }

    /// The number of sealed entries up to a position. Positions have no gaps, so a smaller number
    /// means that entries were removed.
    pub async fn count_sealed_audit(&mut self, up_to: i64) -> Result<i64> {
        let sql = "SELECT COUNT(*) FROM audit_entries WHERE position <= $1";
        self.query_one(sql, values![up_to]).await?.map_or(Ok(0), |row| row.int(0))
    }

    pub async fn has_unsealed_audit(&mut self) -> Result<bool> {
        let sql = "SELECT seq FROM audit_entries WHERE position IS NULL LIMIT 1";
        Ok(self.query_one(sql, values![]).await?.is_some())
    }

    pub async fn count_unsealed_audit(&mut self) -> Result<i64> {
        let sql = "SELECT COUNT(*) FROM audit_entries WHERE position IS NULL";
        self.query_one(sql, values![]).await?.map_or(Ok(0), |row| row.int(0))
    }

    /// The recorded end of the chain. Locked: one replica seals at a time.
    pub async fn lock_audit_head(&mut self) -> Result<AuditSeal> {
        self.execute("UPDATE audit_head SET position = position", values![]).await?;
        self.audit_head().await
    }

    pub async fn audit_head(&mut self) -> Result<AuditSeal> {
        let row = self.query_one("SELECT position, seal FROM audit_head", values![]).await?;
        let row = row.ok_or_else(|| StoreError::Corrupt("audit_head has no row".into()))?;
        Ok(AuditSeal { position: row.int(0)?, seal: row.text(1)?.to_string() })
    }

    /// The oldest entries that are not sealed.
    pub async fn unsealed_audit(&mut self, limit: i64) -> Result<Vec<StoredAuditEntry>> {
        let sql = format!(
            "SELECT {COLUMNS} FROM audit_entries WHERE position IS NULL ORDER BY seq LIMIT $1"
        );
        self.query(&sql, values![limit]).await?.iter().map(stored).collect()
    }

    /// Appends an entry to the chain.
    pub fn seal_audit_entry(&mut self, seq: i64, seal: &AuditSeal) -> Result<()> {
        let sql = "UPDATE audit_entries SET position = $2, seal = $3 \
                   WHERE seq = $1 AND position IS NULL";
        let values = values![seq, seal.position, seal.seal.as_str()];
        self.queue_write(Statement::new(sql, values), ExpectedRows::One)
    }

    pub fn set_audit_head(&mut self, seal: &AuditSeal) -> Result<()> {
        let sql = "UPDATE audit_head SET position = $1, seal = $2";
        let values = values![seal.position, seal.seal.as_str()];
        self.queue_write(Statement::new(sql, values), ExpectedRows::One)
    }

    /// The next entries of the chain after a position.
    pub async fn audit_chain(&mut self, after: i64, limit: i64) -> Result<Vec<StoredAuditEntry>> {
        let sql = format!(
            "SELECT {COLUMNS} FROM audit_entries WHERE position > $1 ORDER BY position LIMIT $2"
        );
        self.query(&sql, values![after, limit]).await?.iter().map(stored).collect()
    }
}

fn stored(row: &Row) -> Result<StoredAuditEntry> {
    let text = |column: usize| row.text(column).map(String::from);
    let reason = text(10)?;
    let count = u64::try_from(row.int(11)?).unwrap_or_default();
    let outcome = match reason.is_empty() {
        true => AuditOutcome::Accepted,
        false => AuditOutcome::Refused { reason, count },
    };
    let entry = AuditEntry {
        at: row.time(1)?,
        user: text(2)?,
        method: text(3)?,
        token_id: text(4)?,
        peer: text(5)?,
        call: text(6)?,
        objects: row.text(7)?.lines().map(String::from).collect(),
        reference: text(8)?,
        remark: text(9)?,
        outcome,
        operation_id: text(12)?,
    };
    let sealed = match (row.opt_int(13)?, row.opt_text(14)?) {
        (Some(position), Some(seal)) => Some(AuditSeal { position, seal: seal.to_string() }),
        (Some(_) | None, _) => None,
    };
    Ok(StoredAuditEntry { seq: row.int(0)?, entry, sealed })
}
