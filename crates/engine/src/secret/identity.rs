//! The pinned identities of peers, as clients read and write them.

use super::{SecretStore, request_event};
use model::credential::{IdentityWrite, PinnedIdentity, check_identity_version, no_identity};
use model::filter::Filter;
use model::here;
use model::run::actions::Requester;
use model::time::Timestamp;
use providers::pin::Pin;
use store::{Cause, IdentityRow, Listed, NewEvent, Result, Tx};

/// The actor of events that a connection to a device causes.
const CONNECTION: &str = "connection";

impl SecretStore {
    pub async fn identities(
        &self,
        filter: Filter,
        after: &str,
        limit: i64,
    ) -> Result<Listed<IdentityRow>> {
        let input = (filter, after.to_string(), limit);
        let rows = self.store.scan(input, |(filter, after, limit), tx| {
            Box::pin(tx.identities(filter, after, *limit))
        });
        let page = rows.await?;
        self.store.unreadable().record(&page.unreadable);
        Ok(page)
    }

    pub async fn get_identity(&self, peer: &str) -> Result<IdentityRow> {
        let found = self.store.read(peer.to_string(), |peer, tx| Box::pin(tx.identity(peer)));
        Ok(found.await?.ok_or_else(|| no_identity(peer))?)
    }

    /// Pins the identity of a peer. First use never replaces it.
    pub async fn write_identity(
        &self,
        (peer, identity): (&str, &str),
        write: IdentityWrite,
        who: Requester,
    ) -> Result<IdentityRow> {
        let Pin { peer, identity } = Pin::parse(peer, identity)?;
        let row = IdentityRow { peer, identity, first_seen: (self.clock)(), version: 0 };
        self.store
            .retry_write("write_identity", (row, write, who), |(row, write, who), tx| {
                Box::pin(write_identity(tx, row, *write, who))
            })
            .await
    }

    /// Removes the pin of a peer, at this version if one is named: the next connection is trusted
    /// on first use.
    pub async fn delete_identity(
        &self,
        peer: &str,
        version: Option<i64>,
        who: Requester,
    ) -> Result<IdentityRow> {
        let input = (peer.to_string(), version, who, (self.clock)());
        self.store
            .retry_write("delete_identity", input, |(peer, version, who, now), tx| {
                Box::pin(delete_identity(tx, peer, *version, who, *now))
            })
            .await
    }
}

async fn write_identity(
    tx: &mut Tx,
    row: &IdentityRow,
    write: IdentityWrite,
    who: &Requester,
) -> Result<IdentityRow> {
    let known = tx.identity(&row.peer).await?;
    let pinned = known
        .as_ref()
        .map(|known| PinnedIdentity { identity: &known.identity, version: known.version });
    let writes = write.admit(&row.peer, &row.identity, pinned)?;
    match known {
        Some(known) if !writes => Ok(known),
        known => {
            let message = format!("pinned to {}", row.identity);
            let event = request_event(who, message, here!(), row.first_seen);
            put_identity(tx, row, known.as_ref(), &event).await
        }
    }
}

/// Writes an identity with the next version.
async fn put_identity(
    tx: &mut Tx,
    row: &IdentityRow,
    known: Option<&IdentityRow>,
    event: &NewEvent,
) -> Result<IdentityRow> {
    let read_at = known.map(|known| known.version);
    let last = tx.last_identity_version(&row.peer).await?;
    let row = IdentityRow { version: last.max(read_at.unwrap_or(0)) + 1, ..row.clone() };
    tx.put_identity(&row, read_at, event)?;
    Ok(row)
}

async fn delete_identity(
    tx: &mut Tx,
    peer: &str,
    version: Option<i64>,
    who: &Requester,
    now: Timestamp,
) -> Result<IdentityRow> {
    let known = tx.identity(peer).await?.ok_or_else(|| no_identity(peer))?;
    check_identity_version(peer, known.version, version)?;
    tx.delete_identity(&known, &request_event(who, "deleted".into(), here!(), now))?;
    Ok(known)
}

/// Pins the identity of a device at its first connection, unless one is pinned. Returns the pinned
/// one.
pub(super) async fn trust_on_first_use(tx: &mut Tx, met: &IdentityRow) -> Result<String> {
    if let Some(known) = tx.identity(&met.peer).await? {
        return Ok(known.identity);
    }
    let message = format!("trusted on first use: {}", met.identity);
    let event = connection_event(message, here!(), met.first_seen);
    Ok(put_identity(tx, met, None, &event).await?.identity)
}

/// Replaces the identity of a peer after its device was exchanged or reinstalled.
pub(super) async fn replace_identity(
    tx: &mut Tx,
    peer: &str,
    identity: Option<&str>,
    now: Timestamp,
) -> Result<()> {
    tx.delete_lockout(peer).await?;
    let known = tx.identity(peer).await?;
    match (known, identity) {
        (Some(known), Some(identity)) if known.identity == identity => Ok(()),
        (known, Some(identity)) => {
            let (peer, identity) = (peer.to_string(), identity.to_string());
            let message = format!("pinned to {identity} of the new system");
            let row = IdentityRow { peer, identity, first_seen: now, version: 0 };
            let event = connection_event(message, here!(), now);
            put_identity(tx, &row, known.as_ref(), &event).await.map(drop)
        }
        (Some(known), None) => {
            let message = "deleted: the system is installed again".to_string();
            tx.delete_identity(&known, &connection_event(message, here!(), now))
        }
        (None, None) => Ok(()),
    }
}

fn connection_event(message: String, line: &str, at: Timestamp) -> NewEvent {
    let (cause, decided_by) = (Cause::Engine, line.into());
    NewEvent { cause, actor: CONNECTION.into(), message, decided_by, at }
}
