//! The known power of devices, for an operator who continues an interrupted power sequence.

use model::device::power_known;
use model::effect::PowerTo;
use model::host::Host;
use model::id::MachineId;
use model::power_shelf::PowerShelf;
use model::rack::Powered;
use model::switch::Switch;
use model::target::{TargetId, TargetKind};
use store::{Result, StoreError, Tx};

/// The power of these devices; none where it is unknown.
pub(crate) async fn power_of(tx: &mut Tx, devices: &[TargetId]) -> Result<Vec<Powered>> {
    let mut known = Vec::new();
    for device in devices {
        let last = tx.latest_run(device).await?;
        let read = read_last(tx, device).await?;
        known.push(Powered { device: device.clone(), power: power_known(read, last.as_ref()) });
    }
    Ok(known)
}

/// The power that was last read from a device.
async fn read_last(tx: &mut Tx, device: &TargetId) -> Result<Option<PowerTo>> {
    let id = device.as_str();
    match device.kind {
        TargetKind::Machine => of_machine(tx, &MachineId::trusted(id)).await,
        TargetKind::Switch => told(tx.record::<Switch>(id).await, |one| one.facts.power),
        TargetKind::PowerShelf => told(tx.record::<PowerShelf>(id).await, |one| one.facts.power),
        // A rack has no power state.
        TargetKind::Rack => Ok(None),
    }
}

/// The power of a machine is stored in its host record.
pub(super) async fn of_machine(tx: &mut Tx, machine: &MachineId) -> Result<Option<PowerTo>> {
    told(tx.record::<Host>(machine.as_str()).await, |host| host.facts.power)
}

/// An unreadable record counts as unknown, so that the other devices are still reported.
fn told<R>(found: Result<Option<R>>, power: fn(&R) -> Option<PowerTo>) -> Result<Option<PowerTo>> {
    match found {
        Ok(record) => Ok(record.as_ref().and_then(power)),
        Err(StoreError::Corrupt(_)) => Ok(None),
        Err(error) => Err(error),
    }
}
