//! The slots of devices in racks. A rack's turn runs when a device was added, moved or taken out.

use crate::rack::load_devices;
use model::device::Device;
use model::id::{MachineId, PowerShelfId, RackId, RunId};
use model::lifecycle::{Lifecycle, RecordHeader};
use model::machine::{Machine, MachineSpec};
use model::placement::{DevicePlacement, ShelfLocation, check_feeds, check_overlap};
use model::power_shelf::PowerShelf;
use model::rack::{Counts, Rack, RackDevice};
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
    for rack in racks_of_move(from, to) {
        if let Some(mut rack) = tx.record_locked::<Rack>(rack.as_str()).await? {
            rack.topology_changed = true;
            tx.update_and_enqueue(&mut rack, event)?;
        }
    }
    Ok(())
}

/// The racks that a move concerns: each once, always in the order of ids, so that no two
/// transactions deadlock.
fn racks_of_move<'a>(from: &'a DeviceLocation, to: &'a DeviceLocation) -> BTreeSet<&'a RackId> {
    let racks = [&from.rack, &to.rack].into_iter().flatten();
    racks.filter(|_| from != to).collect()
}

/// A device that is registered, moved or deleted.
#[derive(Debug, Clone)]
pub(crate) struct DeviceMove {
    pub device: TargetId,
    pub from: DeviceLocation,
    pub to: DeviceLocation,
}

/// Describes the reaction of the racks when devices are moved between them, for a dry run.
pub(crate) async fn predict_racks(tx: &mut Tx, moves: &[DeviceMove]) -> Result<Vec<String>> {
    let racks: BTreeSet<&RackId> =
        moves.iter().flat_map(|one| racks_of_move(&one.from, &one.to)).collect();
    let mut follows = Vec::new();
    for id in racks {
        let Some(rack) = tx.record::<Rack>(id.as_str()).await? else { continue };
        let stored = load_devices(tx, id).await?;
        let mut devices: BTreeSet<TargetId> = stored.iter().map(|one| one.target.clone()).collect();
        for DeviceMove { device, from: _, to } in moves {
            match to.rack() == Some(id) {
                true => drop(devices.insert(device.clone())),
                false => drop(devices.remove(device)),
            }
        }
        let stay: Vec<RackDevice> =
            stored.into_iter().filter(|one| devices.contains(&one.target)).collect();
        follows.push(rack.predict_rediscovery(Counts::of(&devices), &stay));
    }
    Ok(follows)
}

/// Refuses to move a device to another rack while an operation holds it.
pub(crate) fn check_may_move(
    device: &TargetId,
    holder: Option<&RunId>,
    from: &DeviceLocation,
    to: &DeviceLocation,
) -> Result<()> {
    match from.rack != to.rack {
        true => check_not_held(device, holder),
        false => Ok(()),
    }
}

fn check_not_held(device: &TargetId, holder: Option<&RunId>) -> Result<()> {
    holder.map_or(Ok(()), |holder| Err(device.refuse_held(holder).into()))
}

/// Takes devices out of their rack. Refused while an operation holds one of them.
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
                    check_not_held(&device.target, machine.active_run.as_ref())?;
                    (machine.spec.rack, machine.spec.slot) = (None, None);
                    tx.update_machine(&mut machine, event)?;
                }
            }
            TargetKind::Switch => take_out::<Switch>(tx, &device.target, event).await?,
            TargetKind::PowerShelf => take_out::<PowerShelf>(tx, &device.target, event).await?,
            TargetKind::Rack => {}
        }
    }
    Ok(())
}

async fn take_out<R: Lifecycle>(tx: &mut Tx, device: &TargetId, event: &NewEvent) -> Result<()> {
    if let Some(mut record) = tx.record_locked::<R>(device.as_str()).await? {
        check_not_held(device, record.head().active_run.as_ref())?;
        let head = record.head_mut();
        (head.rack, head.slot) = (None, None);
        tx.update_and_enqueue(&mut record, event)?;
    }
    Ok(())
}

/// Refuses a machine whose rack is unknown, or whose slots another device occupies.
pub(crate) async fn check_machine_location(tx: &mut Tx, machine: &Machine) -> Result<()> {
    let Some(rack) = &machine.spec.rack else { return Ok(()) };
    // The rack stays locked until the machine is written: no other transaction deletes the rack or
    // gives the slot to another device.
    let known = tx.record_locked::<Rack>(rack.as_str()).await?;
    if known.is_none_or(|rack| rack.head.deleted) {
        let instead =
            format!("make it with `farrier rack create {rack}`, or see `farrier rack list`");
        let problem = format!("is {rack}, which is not known");
        return Err(Refusal::invalid("machine.spec.rack_id", problem, instead).into());
    }
    check_slots(tx, "machine.spec", &machine_placement(machine), rack).await
}

/// Refuses slots that another device of the rack occupies. The caller has locked the rack.
pub(crate) async fn check_slots(
    tx: &mut Tx,
    field: &str,
    placed: &DevicePlacement,
    rack: &RackId,
) -> Result<()> {
    if placed.slot.is_none() {
        return Ok(());
    }
    // The slot of a device whose record cannot be read is unknown.
    let machines = tx.machines_in_rack(rack).await?.into_iter();
    let machines = machines.filter_map(|(_, one)| one.ok());
    let mut there: Vec<DevicePlacement> = machines.map(|one| machine_placement(&one)).collect();
    there.extend(device_placements::<Switch>(tx, rack).await?);
    there.extend(device_placements::<PowerShelf>(tx, rack).await?);
    Ok(check_overlap(field, placed, rack, &there)?)
}

fn machine_placement(machine: &Machine) -> DevicePlacement {
    let spec = &machine.spec;
    let target = TargetId::from(&machine.id);
    DevicePlacement { target, slot: spec.slot, height_u: spec.height_u }
}

async fn device_placements<D: Device>(tx: &mut Tx, rack: &RackId) -> Result<Vec<DevicePlacement>> {
    let there = tx.records_in_rack::<D>(rack).await?.into_iter().filter_map(|(_, one)| one.ok());
    let placement = |one: D| DevicePlacement {
        target: one.target(),
        slot: one.head().slot,
        height_u: one.spec().height_u,
    };
    Ok(there.map(placement).collect())
}

/// Refuses power shelves that are unknown or in another rack than the device that they feed.
pub(crate) async fn check_feeding_shelves(
    tx: &mut Tx,
    field: &str,
    rack: Option<&RackId>,
    feeds: &[PowerShelfId],
) -> Result<()> {
    let mut shelves = Vec::with_capacity(feeds.len());
    for id in feeds {
        let found = tx.record::<PowerShelf>(id.as_str()).await?;
        let location = match found.filter(|shelf| !shelf.head.deleted) {
            None => ShelfLocation::Unknown,
            Some(shelf) => shelf.head.rack.map_or(ShelfLocation::NoRack, ShelfLocation::InRack),
        };
        shelves.push((id.clone(), location));
    }
    Ok(check_feeds(field, rack, &shelves)?)
}
