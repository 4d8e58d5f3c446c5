//! The keys that seal secrets and derive tokens. They are encrypted by the caller with a master
//! key; the store cannot decrypt them.

use crate::credential::{COLUMNS, CredentialRow, credential};
use crate::driver::{ExpectedRows, Statement};
use crate::event::NewEvent;
use crate::signal::Signal;
use crate::value::{Row, values};
use crate::{Result, StoreError, Tx};
use model::time::Timestamp;

/// The event object id of all keys.
const OBJECT: &str = "seal-keys";

/// The purpose of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeyPurpose {
    /// Seals credentials.
    Seal,
    DeploymentTokens,
    EnrollmentTokens,
}

impl KeyPurpose {
    pub const ALL: [Self; 3] = [Self::Seal, Self::DeploymentTokens, Self::EnrollmentTokens];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Seal => "seal",
            Self::DeploymentTokens => "deployment-tokens",
            Self::EnrollmentTokens => "enrollment-tokens",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealKeyRow {
    pub id: String,
    pub purpose: KeyPurpose,
    /// The id of the master key that it is encrypted with.
    pub master: String,
    pub wrapped: Vec<u8>,
    /// True if new values are sealed with it.
    pub current: bool,
    pub created_at: Timestamp,
}

impl Tx {
    /// All keys. They stay locked until the transaction ends, so that no key is removed while a
    /// value is sealed with it.
    pub async fn seal_keys_locked(&mut self) -> Result<Vec<SealKeyRow>> {
        self.find_seal_keys("{lock}").await
    }

    pub async fn seal_keys(&mut self) -> Result<Vec<SealKeyRow>> {
        self.find_seal_keys("").await
    }

    async fn find_seal_keys(&mut self, lock: &str) -> Result<Vec<SealKeyRow>> {
        let sql = format!(
            "SELECT id, purpose, master, wrapped, is_current, created_at FROM seal_keys \
             ORDER BY id {lock}"
        );
        let sql = self.dialect().fill_placeholders(&sql);
        self.query(&sql, &[]).await?.iter().map(seal_key).collect()
    }

    pub fn insert_seal_key(&mut self, row: &SealKeyRow) -> Result<()> {
        let sql = "INSERT INTO seal_keys (id, purpose, master, wrapped, is_current, created_at) \
                   VALUES ($1, $2, $3, $4, $5, $6)";
        let values = values![
            row.id.as_str(),
            row.purpose.as_str(),
            row.master.as_str(),
            row.wrapped.clone(),
            i64::from(row.current),
            row.created_at,
        ];
        self.queue_write(Statement::new(sql, values), ExpectedRows::One)
    }

    /// Seals nothing more with this key.
    pub fn retire_seal_key(&mut self, id: &str) -> Result<()> {
        let sql = "UPDATE seal_keys SET is_current = 0 WHERE id = $1 AND is_current = 1";
        self.queue_write(Statement::new(sql, values![id]), ExpectedRows::One)
    }

    /// Replaces the encrypted form of a key, for another master key.
    pub fn rewrap_seal_key(&mut self, row: &SealKeyRow) -> Result<()> {
        let sql = "UPDATE seal_keys SET master = $2, wrapped = $3 WHERE id = $1";
        let values = values![row.id.as_str(), row.master.as_str(), row.wrapped.clone()];
        self.queue_write(Statement::new(sql, values), ExpectedRows::One)
    }

    pub fn delete_seal_key(&mut self, id: &str) -> Result<()> {
        let sql = "DELETE FROM seal_keys WHERE id = $1";
        self.queue_write(Statement::new(sql, values![id]), ExpectedRows::One)
    }

    /// Records a change of the keys in the history.
    pub async fn append_seal_key_event(&mut self, label: &str, event: &NewEvent) -> Result<()> {
        let version = self.last_version(OBJECT).await? + 1;
        let reported = self.object_event("seal-keys", OBJECT, version, label, event);
        self.queue_write(reported, ExpectedRows::One)?;
        self.signal(Signal::Event);
        Ok(())
    }

    /// Credentials that are sealed with another key than this one, ordered by name.
    pub async fn credentials_sealed_otherwise(
        &mut self,
        key: &str,
        limit: i64,
    ) -> Result<Vec<CredentialRow>> {
        let sql = format!(
            "SELECT {COLUMNS} FROM credentials WHERE key_id IS NULL OR key_id <> $1 \
             ORDER BY name LIMIT $2"
        );
        self.query(&sql, values![key, limit]).await?.iter().map(credential).collect()
    }

    pub async fn count_sealed_otherwise(&mut self, key: &str) -> Result<i64> {
        let sql = "SELECT COUNT(*) FROM credentials WHERE key_id IS NULL OR key_id <> $1";
        let row = self.query_one(sql, values![key]).await?;
        row.map_or(Ok(0), |row| row.int(0))
    }

    /// Replaces the sealed form of a credential. Its secret and its version stay.
    pub fn reseal_credential(&mut self, row: &CredentialRow) -> Result<()> {
        let sql =
            "UPDATE credentials SET sealed = $2, key_id = $3 WHERE name = $1 AND version = $4";
        let key = row.key_id.clone();
        let values = values![row.name.as_str(), row.sealed.clone(), key, row.version];
        self.queue_write(Statement::new(sql, values), ExpectedRows::One)
    }

    /// The number of values that only a master key can open: keys, and secrets of an older farrier.
    pub async fn count_sealed_values(&mut self) -> Result<i64> {
        let sql = "SELECT (SELECT COUNT(*) FROM seal_keys) + (SELECT COUNT(*) FROM credentials)";
        let row = self.query_one(sql, &[]).await?;
        row.map_or(Ok(0), |row| row.int(0))
    }

    /// The number of sealed rows that were set aside. They need the keys of their time.
    pub async fn count_sealed_set_aside(&mut self) -> Result<i64> {
        let sql = "SELECT COUNT(*) FROM set_aside WHERE kind = $1";
        let row = self.query_one(sql, values![crate::RowKind::Credential.as_str()]).await?;
        row.map_or(Ok(0), |row| row.int(0))
    }

    /// Records the master keys of a replica.
    pub async fn record_masters(&mut self, replica: &str, masters: &[String]) -> Result<()> {
        self.execute("DELETE FROM seal_masters WHERE replica = $1", values![replica]).await?;
        for master in masters {
            let sql = "INSERT INTO seal_masters (replica, master) VALUES ($1, $2)";
            self.execute(sql, values![replica, master.as_str()]).await?;
        }
        Ok(())
    }

    /// The replicas that do not have this master key.
    pub async fn replicas_without_master(&mut self, master: &str) -> Result<Vec<String>> {
        let sql = "SELECT r.name FROM replicas r WHERE NOT EXISTS (SELECT 1 FROM seal_masters m \
                   WHERE m.replica = r.name AND m.master = $1) ORDER BY r.name";
        let rows = self.query(sql, values![master]).await?;
        rows.iter().map(|row| Ok(row.text(0)?.to_string())).collect()
    }
}

fn seal_key(row: &Row) -> Result<SealKeyRow> {
    let purpose = row.text(1)?;
    let known = KeyPurpose::ALL.into_iter().find(|one| one.as_str() == purpose);
    Ok(SealKeyRow {
        id: row.text(0)?.to_string(),
        purpose: known.ok_or_else(|| {
            StoreError::Corrupt(format!("a key has the unknown purpose {purpose:?}"))
        })?,
        master: row.text(2)?.to_string(),
        wrapped: row.bytes(3)?,
        current: row.int(4)? == 1,
        created_at: row.time(5)?,
    })
}
