//! Hosts: what a machine is told before the firmware of its rack is upgraded.

use model::id::{FirmwareId, MachineId, RunId};
use store::{NewEvent, Result, Tx};

/// Tells machines that an operation on their rack is about to upgrade their firmware.
pub(crate) async fn request_for_rack(
    _tx: &mut Tx,
    _machines: &[MachineId],
    _operation: &RunId,
    _firmware: Option<&FirmwareId>,
    _event: &NewEvent,
) -> Result<()> {
    Ok(())
}
