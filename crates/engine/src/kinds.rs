//! What the turn of each kind sees beside its record.

use crate::lifecycle::Sight;
use model::host::Host;
use model::id::RunId;
use model::lifecycle::Around;
use model::power_shelf::PowerShelf;
use model::rack::Rack;
use model::switch::Switch;
use model::time::Timestamp;
use store::{Result, Tx};

async fn around(tx: &mut Tx, waits_for: Option<&RunId>, fresh: RunId) -> Result<Around> {
    let run = match waits_for {
        Some(id) => tx.run(id).await?,
        None => None,
    };
    Ok(Around { fresh, run })
}

impl Sight for PowerShelf {
    async fn see(&self, tx: &mut Tx, fresh: RunId, _now: Timestamp) -> Result<Around> {
        around(tx, self.run.as_ref(), fresh).await
    }
}

impl Sight for Switch {
    async fn see(&self, tx: &mut Tx, fresh: RunId, _now: Timestamp) -> Result<Around> {
        around(tx, self.run.as_ref(), fresh).await
    }
}

impl Sight for Rack {
    async fn see(&self, tx: &mut Tx, fresh: RunId, _now: Timestamp) -> Result<Around> {
        around(tx, None, fresh).await
    }
}

impl Sight for Host {
    async fn see(&self, tx: &mut Tx, fresh: RunId, _now: Timestamp) -> Result<Around> {
        around(tx, self.run.as_ref(), fresh).await
    }
}
