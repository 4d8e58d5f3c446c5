//! Pinned identities of devices: certificates and host keys.

use crate::driver::{ExpectedRows, Statement};
use crate::event::NewEvent;
use crate::keyset::KeysetQuery;
use crate::signal::Signal;
use crate::unreadable::{Listed, RowKind, named};
use crate::value::{Row, values};
use crate::{Result, Tx};
use model::filter::{Filter, FilterValues};
use model::time::Timestamp;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdentityRow {
    /// The address with its scheme: `https://10.0.0.5`, `ssh://10.0.0.7:22`.
    pub peer: String,
    pub identity: String,
    pub first_seen: Timestamp,
    /// Raised by every change.
    pub version: i64,
}

impl FilterValues for IdentityRow {
    fn values_of(&self, field: &str) -> Vec<String> {
        match field {
            "peer" => vec![self.peer.clone()],
            _ => Vec::new(),
        }
    }
}

/// The event object id of an identity.
fn object(peer: &str) -> String {
    format!("identity/{peer}")
}

pub(crate) const COLUMNS: &str = "peer, identity, first_seen, version";

impl Tx {
    pub async fn identity(&mut self, peer: &str) -> Result<Option<IdentityRow>> {
        let sql = format!("SELECT {COLUMNS} FROM identities WHERE peer = $1");
        let row = self.query_one(&sql, values![peer]).await?;
        named(RowKind::Identity, peer, row.as_ref().map(identity).transpose())
    }

    /// One page of the identities that match, ordered by address.
    pub async fn identities(
        &mut self,
        filter: &Filter,
        after: &str,
        limit: i64,
    ) -> Result<Listed<IdentityRow>> {
        let query = KeysetQuery {
            sql: format!("SELECT {COLUMNS} FROM identities WHERE peer > $1 ORDER BY peer LIMIT $2"),
            after: vec![after.into()],
            fixed: Vec::new(),
            key: &[0],
            kind: Some(RowKind::Identity),
            decode: identity,
        };
        self.filtered_items(query, filter, limit).await
    }

    /// Pins an identity, or replaces version `read_at` of it. A conflict means that another
    /// transaction wrote it first.
    pub fn put_identity(
        &mut self,
        row: &IdentityRow,
        read_at: Option<i64>,
        event: &NewEvent,
    ) -> Result<()> {
        let mut values =
            values![row.peer.as_str(), row.identity.as_str(), row.first_seen, row.version].to_vec();
        let sql = match read_at {
            None => {
                "INSERT INTO identities (peer, identity, first_seen, version) \
                 VALUES ($1, $2, $3, $4)"
            }
            Some(version) => {
                values.push(version.into());
                "UPDATE identities SET identity = $2, first_seen = $3, version = $4 \
                 WHERE peer = $1 AND version = $5"
            }
        };
        self.queue_write(Statement { sql: sql.into(), values }, ExpectedRows::One)?;
        self.append_identity_event(&row.peer, row.version, "SET", event)
    }

    /// Deletes a pin, so that the next identity is trusted. A conflict means that another
    /// transaction changed it first.
    pub fn delete_identity(&mut self, row: &IdentityRow, event: &NewEvent) -> Result<()> {
        let sql = "DELETE FROM identities WHERE peer = $1 AND version = $2";
        let values = values![row.peer.as_str(), row.version];
        self.queue_write(Statement::new(sql, values), ExpectedRows::One)?;
        self.append_identity_event(&row.peer, row.version + 1, "DELETED", event)
    }

    fn append_identity_event(
        &mut self,
        peer: &str,
        version: i64,
        label: &str,
        event: &NewEvent,
    ) -> Result<()> {
        let reported = self.object_event("identity", &object(peer), version, label, event);
        self.queue_write(reported, ExpectedRows::One)?;
        self.signal(Signal::Event);
        Ok(())
    }

    /// The version of the last change of this identity, even if it was deleted.
    pub async fn last_identity_version(&mut self, peer: &str) -> Result<i64> {
        self.last_version(&object(peer)).await
    }
}

pub(crate) fn identity(row: &Row) -> Result<IdentityRow> {
    Ok(IdentityRow {
        peer: row.text(0)?.to_string(),
        identity: row.text(1)?.to_string(),
        first_seen: row.time(2)?,
        version: row.int(3)?,
    })
}
