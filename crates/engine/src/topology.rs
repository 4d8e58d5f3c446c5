//! The slots of devices in racks. A rack's turn runs when a device was added, moved or taken out.

use model::id::{MachineId, RackId, RunId};
use model::lifecycle::{Lifecycle, RecordHeader};
use model::machine::{Machine, MachineSpec};
use model::power_shelf::PowerShelf;
use model::rack::{Rack, RackDevice};
use model::refusal::Refusal;
use model::switch::Switch;
use model::target::{TargetId, TargetKind};
use std::collections::BTreeSet;
use store::{NewEvent, Result, Tx};

/// The rack and slot of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DeviceLocation {
    rack: Option<RackId>,
    slot: Option<u32>,
}

impl DeviceLocation {
    /// The location of a device before it is created or after it is deleted.
    pub const NOWHERE: Self = Self { rack: None, slot: None };

    pub fn of(head: &RecordHeader) -> Self {
        Self { rack: head.rack.clone(), slot: head.slot }
    }

    pub const fn rack(&self) -> Option<&RackId> {
        self.rack.as_ref()
    }

    pub fn of_machine(spec: &MachineSpec) -> Self {
        Self { rack: spec.rack.clone(), slot: spec.slot }
    }
}

/// Marks the topology of the racks that a device was moved between as changed. A move within a rack
/// counts too: another slot may make another switch the primary.
pub(crate) async fn mark_racks_changed(
    tx: &mut Tx,
    from: &DeviceLocation,
    to: &DeviceLocation,
    event: &NewEvent,
) -> Result<()> {
    if from == to {
        return Ok(());
    }
    // Each rack once, always in the order of ids, so that no two transactions deadlock.
    let racks: BTreeSet<&RackId> = [&from.rack, &to.rack].into_iter().flatten().collect();
    for rack in racks {
        if let Some(mut rack) = tx.record_locked::<Rack>(rack.as_str()).await? {
            rack.topology_changed = true;
            tx.update_and_enqueue(&mut rack, event)?;
        }
    }
    Ok(())
}

/// Refuses to move a device to another rack while an operation holds it.
pub(crate) fn check_may_move(
    device: &TargetId,
    holder: Option<&RunId>,
    from: &DeviceLocation,
    to: &DeviceLocation,
) -> Result<()> {
    match holder {
        Some(holder) if from.rack != to.rack => Err(device.refuse_held(holder).into()),
        Some(_) | None => Ok(()),
    }
}

/// Takes devices out of their rack.
pub(crate) async fn take_out_devices(
    tx: &mut Tx,
    devices: &[RackDevice],
    event: &NewEvent,
) -> Result<()> {
    let event = &NewEvent { message: "taken out of its rack".into(), ..event.clone() };
    for device in devices {
        let id = device.target.as_str();
        match device.target.kind {
            TargetKind::Machine => {
                if let Some(mut machine) = tx.machine_locked(&MachineId::trusted(id)).await? {
                    (machine.spec.rack, machine.spec.slot) = (None, None);
                    tx.update_machine(&mut machine, event)?;
                }
            }
            TargetKind::Switch => take_out::<Switch>(tx, id, event).await?,
            TargetKind::PowerShelf => take_out::<PowerShelf>(tx, id, event).await?,
            TargetKind::Rack => {}
        }
    }
    Ok(())
}

async fn take_out<R: Lifecycle>(tx: &mut Tx, id: &str, event: &NewEvent) -> Result<()> {
    if let Some(mut record) = tx.record_locked::<R>(id).await? {
        let head = record.head_mut();
        (head.rack, head.slot) = (None, None);
        tx.update_and_enqueue(&mut record, event)?;
    }
    Ok(())
}

/// Refuses a machine whose rack is unknown or whose slot another machine occupies.
pub(crate) async fn check_machine_location(tx: &mut Tx, machine: &Machine) -> Result<()> {
    let Some(rack) = &machine.spec.rack else { return Ok(()) };
    // The rack stays locked until the machine is written: no other transaction deletes the rack or
    // gives the slot to another machine.
    let known = tx.record_locked::<Rack>(rack.as_str()).await?;
    if known.is_none_or(|rack| rack.head.deleted) {
        let instead =
            format!("make it with `farrier rack create {rack}`, or see `farrier rack list`");
        let problem = format!("is {rack}, which is not known");
        return Err(Refusal::invalid("machine.spec.rack_id", problem, instead).into());
    }
    let Some(slot) = machine.spec.slot else { return Ok(()) };
    // The slot of a machine whose record cannot be read is unknown.
    let neighbours = tx.machines_in_rack(rack).await?.into_iter();
    let mut neighbours = neighbours.filter_map(|(_, other)| other.ok());
    let taken = |other: &Machine| other.id != machine.id && other.spec.slot == Some(slot);
    match neighbours.find(taken) {
        None => Ok(()),
        Some(other) => {
            let problem = format!("is {slot}, where {} stands in {rack}", other.id);
            let instead = "choose another slot, or move that machine first";
            Err(Refusal::invalid("machine.spec.slot", problem, instead).into())
        }
    }
}
