//! What is known of the power of devices, for who must go on where a sequence stopped.

use model::device::power_known;
use model::effect::PowerTo;
use model::host::Host;
use model::id::MachineId;
use model::power_shelf::PowerShelf;
use model::rack::Powered;
use model::switch::Switch;
use model::target::{TargetId, TargetKind};
use store::{Result, StoreError, Tx};

/// The power of these devices, as far as it is known.
pub(crate) async fn power_of(tx: &mut Tx, devices: &[TargetId]) -> Result<Vec<Powered>> {
    let mut known = Vec::new();
    for device in devices {
        let last = tx.latest_run(device).await?;
        let read = read_last(tx, device).await?;
        known.push(Powered { device: device.clone(), power: power_known(read, last.as_ref()) });
    }
    Ok(known)
}

/// The power that was read of a device last.
async fn read_last(tx: &mut Tx, device: &TargetId) -> Result<Option<PowerTo>> {
    let id = device.as_str();
    match device.kind {
        TargetKind::Machine => of_machine(tx, &MachineId::trusted(id)).await,
        TargetKind::Switch => told(tx.record::<Switch>(id).await, |one| one.facts.power),
        TargetKind::PowerShelf => told(tx.record::<PowerShelf>(id).await, |one| one.facts.power),
        // It has no power of its own.
        TargetKind::Rack => Ok(None),
    }
}

/// What is read of a machine is kept on its host.
pub(super) async fn of_machine(tx: &mut Tx, machine: &MachineId) -> Result<Option<PowerTo>> {
    told(tx.record::<Host>(machine.as_str()).await, |host| host.facts.power)
}

/// A record that cannot be read tells nothing, and keeps nobody from hearing of the others.
fn told<R>(found: Result<Option<R>>, power: fn(&R) -> Option<PowerTo>) -> Result<Option<PowerTo>> {
    match found {
        Ok(record) => Ok(record.as_ref().and_then(power)),
        Err(StoreError::Corrupt(_)) => Ok(None),
        Err(error) => Err(error),
    }
}
