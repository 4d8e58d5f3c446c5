//! Releases the devices of an active run whose row cannot be read and is set aside. The last
//! effect of the run is unknown, so each of its devices needs intervention, unless a child run is
//! still active.

use super::wake_waiting_racks;
use model::condition::{ConditionObservation, ConditionType};
use model::device::Device;
use model::fault::FaultCode;
use model::id::{ObjectId, RackId, RunId};
use model::lifecycle::{DeviceFailure, SubjectId, SubjectKind};
use model::machine::Machine;
use model::power_shelf::PowerShelf;
use model::refusal::{Reason, Refusal};
use model::switch::Switch;
use model::target::{TargetId, TargetKind};
use std::collections::{BTreeMap, BTreeSet};
use store::{NewEvent, Result, Tx};

/// Fails if a device of the run cannot be read either: the error names its row.
pub(crate) async fn release_lost_run(tx: &mut Tx, run: &RunId, event: &NewEvent) -> Result<()> {
    let Some(target) = tx.target_of_active_run(run).await? else { return Ok(()) };
    check_holder(tx, &target, run).await?;
    let mut machines = tx.machines_of_active_run(run).await?;
    // The parent of a child run may have released the machine.
    if let (true, Some(id)) = (machines.is_empty(), target.machine()) {
        machines.extend(tx.machine(&id).await?);
    }
    let switches = held_devices::<Switch>(tx, &target, run).await?;
    let shelves = held_devices::<PowerShelf>(tx, &target, run).await?;
    let targets = machines.iter().map(|machine| TargetId::from(&machine.id));
    let targets = targets.chain(switches.iter().map(Device::target));
    let targets: Vec<TargetId> = targets.chain(shelves.iter().map(Device::target)).collect();
    let mut children = tx.active_runs_on(&targets).await?;
    children.retain(|_, child| child != run);
    let racks: BTreeSet<RackId> = machines
        .iter()
        .filter_map(|machine| machine.spec.rack.clone())
        .chain(switches.iter().filter_map(|switch| switch.head.rack.clone()))
        .chain(shelves.iter().filter_map(|shelf| shelf.head.rack.clone()))
        .collect();
    wake_waiting_racks(tx, racks, event.at).await?;
    let mut release = LostRun { tx, run, children, event };
    for machine in machines {
        release.machine(machine)?;
    }
    for switch in switches {
        release.device(switch)?;
    }
    for shelf in shelves {
        release.device(shelf)?;
    }
    // The rack finds that its operation is missing, and goes to Error.
    match target.rack() {
        Some(rack) => release.wake(&SubjectId::new(SubjectKind::Rack, rack.as_str())),
        None => Ok(()),
    }
}

/// Refuses while a parent holds the device: it would see that the child is missing, and repeat an
/// effect whose outcome is not known.
async fn check_holder(tx: &mut Tx, target: &TargetId, run: &RunId) -> Result<()> {
    let holder = match target.kind {
        TargetKind::Rack => None,
        TargetKind::Machine => match target.machine() {
            Some(id) => tx.machine(&id).await?.and_then(|machine| machine.active_run),
            None => None,
        },
        TargetKind::Switch => holder_of::<Switch>(tx, target).await?,
        TargetKind::PowerShelf => holder_of::<PowerShelf>(tx, target).await?,
    };
    let Some(holder) = holder.filter(|holder| holder != run) else { return Ok(()) };
    let message =
        format!("{run} works for {holder}, which holds {target} and would start it again");
    let next = format!("farrier operation mark-manual {holder} --reason …");
    Err(Refusal::new(Reason::DeviceBusy, message).next(next).into())
}

async fn holder_of<D: Device>(tx: &mut Tx, target: &TargetId) -> Result<Option<RunId>> {
    Ok(tx.record::<D>(target.as_str()).await?.and_then(|device| device.head().active_run.clone()))
}

/// The switches or power shelves that a run on this target holds, or held for its parent.
async fn held_devices<D: Device>(tx: &mut Tx, target: &TargetId, run: &RunId) -> Result<Vec<D>> {
    if let Some(rack) = target.rack() {
        let devices = tx.records_in_rack::<D>(&rack).await?;
        let devices = devices.into_iter().map(|(_, device)| device).collect::<Result<Vec<D>>>()?;
        let is_held = |one: &D| one.head().active_run.as_ref() == Some(run);
        return Ok(devices.into_iter().filter(is_held).collect());
    }
    match target.kind == D::TARGET {
        true => Ok(tx.record::<D>(target.as_str()).await?.into_iter().collect()),
        false => Ok(Vec::new()),
    }
}

struct LostRun<'a> {
    tx: &'a mut Tx,
    run: &'a RunId,
    /// The active child runs, by the key of their device. Each holds its device from now on.
    children: BTreeMap<String, RunId>,
    event: &'a NewEvent,
}

impl LostRun<'_> {
    fn message(&self) -> String {
        format!("{} cannot be read and was set aside: what it did last is not known", self.run)
    }

    fn machine(&mut self, mut machine: Machine) -> Result<()> {
        machine.active_run = self.children.remove(&TargetId::from(&machine.id).key());
        if machine.active_run.is_none() {
            // The code makes it one that may be damaged.
            let reason = format!("{}: {}", FaultCode::OutcomeUnknown.as_str(), self.message());
            let lost = ConditionObservation::new(ConditionType::NeedsIntervention, true, reason);
            machine.learn(&[lost], self.event.at);
        }
        let host = SubjectId::new(SubjectKind::Host, machine.id.as_str());
        self.tx.update_machine(&mut machine, self.event)?;
        self.wake(&host)
    }

    fn device<D: Device>(&mut self, device: D) -> Result<()> {
        let child = self.children.remove(&device.target().key());
        let mut released = match child {
            Some(_) => device,
            None => {
                let failure = D::in_error(DeviceFailure::plain(self.message()));
                let mut failed = device.in_state(failure, None);
                failed.head_mut().since = self.event.at;
                failed
            }
        };
        released.head_mut().active_run = child;
        self.tx.update_and_enqueue(&mut released, self.event)
    }

    fn wake(&mut self, subject: &SubjectId) -> Result<()> {
        self.tx.wake(&ObjectId::trusted(subject.key()), self.event.at)
    }
}
