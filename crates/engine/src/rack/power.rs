//! The known power of devices, for an operator who continues an interrupted power sequence.

use model::device::known_power;
use model::effect::DesiredPower;
use model::host::Host;
use model::id::MachineId;
use model::power_shelf::PowerShelf;
use model::rack::DevicePower;
use model::switch::Switch;
use model::target::{TargetId, TargetKind};
use store::{Result, StoreError, Tx};

/// The power of these devices; none where it is unknown.
pub(crate) async fn load_device_power(
    tx: &mut Tx,
    devices: &[TargetId],
) -> Result<Vec<DevicePower>> {
    let mut known = Vec::new();
    for device in devices {
        let last = tx.latest_run(device).await?;
        let read = load_last_power(tx, device).await?;
        known.push(DevicePower { device: device.clone(), power: known_power(read, last.as_ref()) });
    }
    Ok(known)
}

/// The power that was last read from a device.
async fn load_last_power(tx: &mut Tx, device: &TargetId) -> Result<Option<DesiredPower>> {
    let id = device.as_str();
    match device.kind {
        TargetKind::Machine => load_machine_power(tx, &MachineId::trusted(id)).await,
        TargetKind::Switch => {
            power_if_readable(tx.record::<Switch>(id).await, |one| one.facts.power)
        }
        TargetKind::PowerShelf => {
            power_if_readable(tx.record::<PowerShelf>(id).await, |one| one.facts.power)
        }
        // A rack has no power state.
        TargetKind::Rack => Ok(None),
    }
}

/// The power of a machine is stored in its host record.
pub(super) async fn load_machine_power(
    tx: &mut Tx,
    machine: &MachineId,
) -> Result<Option<DesiredPower>> {
    power_if_readable(tx.record::<Host>(machine.as_str()).await, |host| host.facts.power)
}

/// An unreadable record counts as unknown, so that the other devices are still reported.
fn power_if_readable<R>(
    found: Result<Option<R>>,
    power: fn(&R) -> Option<DesiredPower>,
) -> Result<Option<DesiredPower>> {
    match found {
        Ok(record) => Ok(record.as_ref().and_then(power)),
        Err(StoreError::Corrupt(_)) => Ok(None),
        Err(error) => Err(error),
    }
}
