//! Pinned identities of devices: certificates and host keys.

use crate::keyset::KeysetQuery;
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
}

impl FilterValues for IdentityRow {
    fn values_of(&self, field: &str) -> Vec<String> {
        match field {
            "peer" => vec![self.peer.clone()],
            _ => Vec::new(),
        }
    }
}

pub(crate) const COLUMNS: &str = "peer, identity, first_seen";

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

    /// Trust on first use: pins an identity unless one is pinned. Returns the pinned one.
    pub async fn pin_identity(&mut self, met: &IdentityRow) -> Result<String> {
        let sql = "INSERT INTO identities (peer, identity, first_seen) VALUES ($1, $2, $3) \
                   ON CONFLICT (peer) DO NOTHING";
        let (peer, identity) = (met.peer.as_str(), met.identity.as_str());
        self.execute(sql, values![peer, identity, met.first_seen]).await?;
        let known = self.identity(peer).await?;
        Ok(known.map_or_else(|| met.identity.clone(), |known| known.identity))
    }

    /// Replaces the pinned identity. False if there is none.
    pub async fn update_identity(&mut self, known: &IdentityRow) -> Result<bool> {
        let sql = "UPDATE identities SET identity = $2, first_seen = $3 WHERE peer = $1";
        let IdentityRow { peer, identity, first_seen } = known;
        let values = values![peer.as_str(), identity.as_str(), *first_seen];
        Ok(self.execute(sql, values).await? == 1)
    }

    /// Deletes a pin, so that the next identity is trusted. False if there was none.
    pub async fn delete_identity(&mut self, peer: &str) -> Result<bool> {
        let sql = "DELETE FROM identities WHERE peer = $1";
        Ok(self.execute(sql, values![peer]).await? == 1)
    }
}

pub(crate) fn identity(row: &Row) -> Result<IdentityRow> {
    Ok(IdentityRow {
        peer: row.text(0)?.to_string(),
        identity: row.text(1)?.to_string(),
        first_seen: row.time(2)?,
    })
}
