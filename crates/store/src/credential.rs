//! Credentials by name. Their secrets are encrypted by the caller; the store cannot decrypt them.

use crate::driver::{ExpectedRows, Statement};
use crate::event::NewEvent;
use crate::keyset::KeysetQuery;
use crate::signal::Signal;
use crate::unreadable::{Listed, RowKind, named};
use crate::value::{Row, values};
use crate::{Result, Tx};
use model::credential::CredentialPolicy;
use model::filter::{Filter, FilterValues};
use model::time::Timestamp;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CredentialRow {
    pub name: String,
    pub kind: String,
    /// The login name, shown to operators.
    pub login: String,
    pub sealed: Vec<u8>,
    /// Raised by every change.
    pub version: i64,
    pub updated_at: Timestamp,
    /// The key that the secret is sealed with. None: a master key itself, by an older farrier.
    pub key_id: Option<String>,
    /// The peers that the secret may be sent to. None: an older farrier wrote it.
    pub policy: Option<CredentialPolicy>,
}

impl FilterValues for CredentialRow {
    fn values_of(&self, field: &str) -> Vec<String> {
        match field {
            "name" => vec![self.name.clone()],
            "kind" => vec![self.kind.clone()],
            "user" => vec![self.login.clone()],
            _ => Vec::new(),
        }
    }
}

/// The event object id of a credential.
fn object(name: &str) -> String {
    format!("credential/{name}")
}

pub(crate) const COLUMNS: &str = "name, kind, login, sealed, version, updated_at, policy, key_id";

impl Tx {
    pub async fn credential(&mut self, name: &str) -> Result<Option<CredentialRow>> {
        let sql = format!("SELECT {COLUMNS} FROM credentials WHERE name = $1");
        let row = self.query_one(&sql, values![name]).await?;
        named(RowKind::Credential, name, row.as_ref().map(credential).transpose())
    }

    /// One page of the credentials that match, ordered by name.
    pub async fn credentials(
        &mut self,
        filter: &Filter,
        after: &str,
        limit: i64,
    ) -> Result<Listed<CredentialRow>> {
        let query = KeysetQuery {
            sql: format!(
                "SELECT {COLUMNS} FROM credentials WHERE name > $1 ORDER BY name LIMIT $2"
            ),
            after: vec![after.into()],
            fixed: Vec::new(),
            key: &[0],
            kind: Some(RowKind::Credential),
            decode: credential,
        };
        self.filtered_items(query, filter, limit).await
    }

    /// Inserts a credential, or replaces version `read_at` of it. A conflict means
    /// that another transaction wrote it first.
    pub async fn put_credential(
        &mut self,
        row: &CredentialRow,
        read_at: Option<i64>,
        event: &NewEvent,
    ) -> Result<()> {
        let mut values = values![
            row.name.as_str(),
            row.kind.as_str(),
            row.login.as_str(),
            row.sealed.clone(),
            row.version,
            row.updated_at,
            row.policy.as_ref().map(serde_json::to_string).transpose()?,
            row.key_id.clone(),
        ]
        .to_vec();
        let sql = match read_at {
            None => {
                "INSERT INTO credentials (name, kind, login, sealed, version, updated_at, policy, \
                 key_id) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)"
            }
            Some(version) => {
                values.push(version.into());
                "UPDATE credentials SET kind = $2, login = $3, sealed = $4, version = $5, \
                 updated_at = $6, policy = $7, key_id = $8 WHERE name = $1 AND version = $9"
            }
        };
        self.queue_write(Statement { sql: sql.into(), values }, ExpectedRows::One)?;
        self.append_credential_event(&row.name, row.version, "SET", event)
    }

    pub async fn delete_credential(
        &mut self,
        name: &str,
        version: i64,
        event: &NewEvent,
    ) -> Result<()> {
        let sql = "DELETE FROM credentials WHERE name = $1 AND version = $2";
        self.queue_write(Statement::new(sql, values![name, version]), ExpectedRows::One)?;
        self.append_credential_event(name, version + 1, "DELETED", event)
    }

    fn append_credential_event(
        &mut self,
        name: &str,
        version: i64,
        label: &str,
        event: &NewEvent,
    ) -> Result<()> {
        let reported = self.object_event("credential", &object(name), version, label, event);
        self.queue_write(reported, ExpectedRows::One)?;
        self.signal(Signal::Event);
        Ok(())
    }

    /// The version of the last change of this credential, even if it was deleted.
    pub async fn last_credential_version(&mut self, name: &str) -> Result<i64> {
        self.last_version(&object(name)).await
    }
}

pub(crate) fn credential(row: &Row) -> Result<CredentialRow> {
    Ok(CredentialRow {
        name: row.text(0)?.to_string(),
        kind: row.text(1)?.to_string(),
        login: row.text(2)?.to_string(),
        sealed: row.bytes(3)?,
        version: row.int(4)?,
        updated_at: row.time(5)?,
        policy: row.opt_text(6)?.map(serde_json::from_str).transpose()?,
        key_id: row.opt_text(7)?.map(str::to_string),
    })
}
