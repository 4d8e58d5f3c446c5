//! The context that each kind's turn loads beside its record.

use crate::admission::{Created, current_run};
use crate::rollout::{TurnResources, work_on_targets};
use crate::scheduler::lifecycle::LoadContext;
use crate::{Settings, host as hosts, power_shelf as shelves, rack as racks};
use model::device::Device;
use model::host::{self, Host};
use model::id::RunId;
use model::lifecycle::DeviceContext;
use model::node::{self, Node};
use model::power_shelf::PowerShelf;
use model::rack::maintenance::RackLimits;
use model::rack::{self, Rack};
use model::rollout::{Rollout, RolloutTurnInput};
use model::run::HistoryNote;
use model::site::Site;
use model::switch::Switch;
use model::time::Timestamp;
use store::{NewEvent, Result, Tx};

async fn device_context<D: Device>(
    tx: &mut Tx,
    device: &D,
    waits_for: Option<&RunId>,
    fresh: RunId,
) -> Result<DeviceContext> {
    let run = match waits_for {
        Some(id) => current_run(tx, &device.target(), id).await?,
        None => None,
    };
    Ok(DeviceContext { fresh, run, against: None })
}

impl LoadContext for PowerShelf {
    async fn load_context(&self, tx: &mut Tx, fresh: RunId, _: Timestamp) -> Result<DeviceContext> {
        let against = shelves::find_refusal(tx, self).await?.map(|refusal| refusal.message);
        Ok(DeviceContext { against, ..device_context(tx, self, self.waits_for(), fresh).await? })
    }
}

impl LoadContext for Switch {
    async fn load_context(&self, tx: &mut Tx, fresh: RunId, _: Timestamp) -> Result<DeviceContext> {
        device_context(tx, self, self.waits_for(), fresh).await
    }
}

impl LoadContext for Rack {
    async fn load_context(
        &self,
        tx: &mut Tx,
        fresh: RunId,
        _: Timestamp,
    ) -> Result<rack::RackTurnInput> {
        racks::load_turn_input(tx, self, fresh, RackLimits::default()).await
    }

    fn with_settings(observed: rack::RackTurnInput, settings: &Settings) -> rack::RackTurnInput {
        rack::RackTurnInput { limits: settings.rack_limits, ..observed }
    }
}

impl LoadContext for Node {
    async fn load_context(
        &self,
        tx: &mut Tx,
        _: RunId,
        _: Timestamp,
    ) -> Result<node::NodeTurnInput> {
        let run = match &self.workflow {
            Some(id) => tx.run(id).await?,
            None => None,
        };
        Ok(node::NodeTurnInput { run })
    }
}

impl LoadContext for Site {
    async fn load_context(&self, _tx: &mut Tx, _fresh: RunId, _now: Timestamp) -> Result<()> {
        Ok(())
    }
}

impl LoadContext for Rollout {
    async fn load_context(
        &self,
        tx: &mut Tx,
        _: RunId,
        now: Timestamp,
    ) -> Result<RolloutTurnInput> {
        tx.rollout_work(self, now).await
    }

    async fn work_on_rows(
        &self,
        tx: &mut Tx,
        resources: &TurnResources,
        created: &mut Created,
    ) -> Result<Option<(Self, HistoryNote)>> {
        work_on_targets(self, tx, resources, created).await
    }
}

impl LoadContext for Host {
    async fn load_context(
        &self,
        tx: &mut Tx,
        fresh: RunId,
        _: Timestamp,
    ) -> Result<host::HostTurnInput> {
        // The machine is locked until the turn ends, so that its gate is still open when a run
        // starts.
        let machine = tx.machine_locked(&self.machine()).await?;
        hosts::load_context(tx, self, fresh, machine.as_ref()).await
    }

    fn with_settings(observed: host::HostTurnInput, settings: &Settings) -> host::HostTurnInput {
        let retry_interval = settings.host_firmware_upgrade_retry_interval;
        host::HostTurnInput { retry_interval, ..observed }
    }

    async fn follow_up(&self, before: &Self, tx: &mut Tx, event: &NewEvent) -> Result<()> {
        hosts::alert(tx, before, self, event).await
    }
}
