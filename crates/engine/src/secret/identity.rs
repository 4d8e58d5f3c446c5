//! The pinned identities of peers, as clients read and write them.

use super::SecretStore;
use model::credential::{IdentityWrite, no_identity};
use model::filter::Filter;
use providers::pin::Pin;
use store::{IdentityRow, Listed, Result, StoreError, Tx};

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
        peer: &str,
        identity: &str,
        write: IdentityWrite,
    ) -> Result<IdentityRow> {
        let Pin { peer, identity } = Pin::parse(peer, identity)?;
        let row = IdentityRow { peer, identity, first_seen: (self.clock)() };
        self.store
            .retry_write("write_identity", (row, write), |(row, write), tx| {
                Box::pin(write_identity(tx, row, *write))
            })
            .await
    }

    /// Removes the pin of a peer: the next connection is trusted on first use.
    pub async fn delete_identity(&self, peer: &str) -> Result<IdentityRow> {
        let input = peer.to_string();
        self.store
            .retry_write("delete_identity", input, |peer, tx| Box::pin(delete_identity(tx, peer)))
            .await
    }
}

async fn write_identity(
    tx: &mut Tx,
    row: &IdentityRow,
    write: IdentityWrite,
) -> Result<IdentityRow> {
    let known = tx.identity(&row.peer).await?;
    let pinned = known.as_ref().map(|known| known.identity.as_str());
    write.admit(&row.peer, &row.identity, pinned)?;
    // Another transaction that pins or removes the identity meanwhile makes this one start again.
    let written = match (write, known) {
        (IdentityWrite::Create, Some(known)) => return Ok(known),
        (IdentityWrite::Update { .. }, Some(_)) => tx.update_identity(row).await?,
        (IdentityWrite::Create | IdentityWrite::Update { .. }, None) => {
            tx.pin_identity(row).await? == row.identity
        }
    };
    if written { Ok(row.clone()) } else { Err(StoreError::Conflict) }
}

async fn delete_identity(tx: &mut Tx, peer: &str) -> Result<IdentityRow> {
    let known = tx.identity(peer).await?.ok_or_else(|| no_identity(peer))?;
    match tx.delete_identity(peer).await? {
        true => Ok(known),
        false => Err(no_identity(peer).into()),
    }
}
