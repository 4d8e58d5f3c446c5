//! What the turn of each kind sees beside its record.

use crate::lifecycle::Sight;
use crate::{Settings, hosts};
use model::host::{self, Host};
use model::id::RunId;
use model::lifecycle::Around;
use model::power_shelf::PowerShelf;
use model::rack::Rack;
use model::switch::Switch;
use model::time::Timestamp;
use store::{NewEvent, Result, Tx};

async fn around(tx: &mut Tx, waits_for: Option<&RunId>, fresh: RunId) -> Result<Around> {
    let run = match waits_for {
        Some(id) => tx.run(id).await?,
        None => None,
    };
    Ok(Around { fresh, run })
}

impl Sight for PowerShelf {
    async fn see(&self, tx: &mut Tx, fresh: RunId, _now: Timestamp) -> Result<Around> {
        around(tx, self.waits_for(), fresh).await
    }
}

impl Sight for Switch {
    async fn see(&self, tx: &mut Tx, fresh: RunId, _now: Timestamp) -> Result<Around> {
        around(tx, self.waits_for(), fresh).await
    }
}

impl Sight for Rack {
    async fn see(&self, tx: &mut Tx, fresh: RunId, _now: Timestamp) -> Result<Around> {
        around(tx, None, fresh).await
    }
}

impl Sight for Host {
    async fn see(&self, tx: &mut Tx, fresh: RunId, _now: Timestamp) -> Result<host::Seen> {
        // Held until the turn ends, so that its gate is still open when a run begins.
        let machine = tx.machine_locked(&self.machine()).await?;
        hosts::look(tx, self, fresh, machine.as_ref()).await
    }

    fn under(seen: host::Seen, settings: &Settings) -> host::Seen {
        let retry_interval = settings.host_firmware_upgrade_retry_interval;
        host::Seen { retry_interval, ..seen }
    }

    async fn follow_up(&self, before: &Self, tx: &mut Tx, event: &NewEvent) -> Result<()> {
        hosts::alert(tx, before, self, event).await
    }
}
