//! What the turn of each kind sees beside its record.

use crate::lifecycle::Sight;
use crate::{Settings, racks};
use model::host::Host;
use model::id::RunId;
use model::lifecycle::Around;
use model::power_shelf::PowerShelf;
use model::rack::maintenance::Limits;
use model::rack::{self, Rack};
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
    async fn see(&self, tx: &mut Tx, fresh: RunId, _now: Timestamp) -> Result<rack::Seen> {
        racks::look(tx, self, fresh, Limits::default()).await
    }

    fn under(seen: rack::Seen, settings: &Settings) -> rack::Seen {
        rack::Seen { limits: settings.racks, ..seen }
    }
}

impl Sight for Host {
    async fn see(&self, tx: &mut Tx, fresh: RunId, _now: Timestamp) -> Result<Around> {
        around(tx, self.run.as_ref(), fresh).await
    }
}
