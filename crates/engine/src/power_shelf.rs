//! Requests to switch power shelves on or off: all named shelves or none, in one transaction. The
//! model decides; this module locks the records that the decision depends on.

use crate::Engine;
use crate::admission::event;
use crate::admission::forced_by;
use model::blast_radius::AffectedMachine;
use model::device::power_goal;
use model::effect::DesiredPower;
use model::here;
use model::id::{MachineId, RackId};
use model::machine::Machine;
use model::power_shelf::maintenance::{
    FedRack, NamedShelf, PowerChangePreview, PowerChangeRequest, admit_power_off,
    preview_power_change, step_name,
};
use model::power_shelf::{PowerShelf, PowerShelfState};
use model::rack::Rack;
use model::refusal::Refusal;
use model::run::Run;
use model::target::{TargetId, TargetKind};
use model::time::Timestamp;
use std::collections::BTreeSet;
use store::{Cause, Result, StoreError, Tx};

/// The predicted result of a request, and the named shelves as they are now.
#[derive(Debug, Clone)]
pub struct ShelfPreview {
    pub preview: PowerChangePreview,
    pub shelves: Vec<NamedShelf>,
}

/// The service that switches the power of shelves.
#[derive(Clone)]
pub struct PowerShelves(pub(crate) Engine);

impl PowerShelves {
    /// Requests the power change of every named shelf, or of none. Returns the prediction.
    pub async fn maintain(&self, requested: PowerChangeRequest) -> Result<PowerChangePreview> {
        let requested = requested.checked(self.0.settings().max_find_by_ids)?;
        let maintain = ShelfMaintenance { request: requested, now: self.0.now() };
        self.0
            .store()
            .retry_write("maintain_shelves", maintain, |maintain, tx| Box::pin(maintain.run(tx)))
            .await
    }

    /// The predicted result of the same request. Nothing is written.
    pub async fn preview(&self, requested: PowerChangeRequest) -> Result<ShelfPreview> {
        let requested = requested.checked(self.0.settings().max_find_by_ids)?;
        self.0.store().read(requested, |requested, tx| Box::pin(preview(tx, requested))).await
    }
}

async fn preview(tx: &mut Tx, requested: &PowerChangeRequest) -> Result<ShelfPreview> {
    let shelves = load_named_shelves(tx, requested, RowLock::Unlocked).await?;
    let fed = load_fed_racks(tx, &racks_of(&shelves)).await?;
    Ok(ShelfPreview { preview: preview_power_change(requested, &shelves, &fed), shelves })
}

struct ShelfMaintenance {
    request: PowerChangeRequest,
    now: Timestamp,
}

impl ShelfMaintenance {
    async fn run(&self, tx: &mut Tx) -> Result<PowerChangePreview> {
        // The racks are locked first: two concurrent requests that each rely on the other's shelf
        // staying on must not both pass.
        let racks = racks_of(&load_named_shelves(tx, &self.request, RowLock::Unlocked).await?);
        for rack in &racks {
            tx.record_locked::<Rack>(rack.as_str()).await?;
        }
        let shelves = load_named_shelves(tx, &self.request, RowLock::Locked).await?;
        if racks_of(&shelves) != racks {
            return Err(StoreError::Conflict);
        }
        let fed = load_fed_racks(tx, &racks).await?;
        let foreseen = preview_power_change(&self.request, &shelves, &fed);
        foreseen.permitted()?;
        for one in shelves {
            if let (true, Some(shelf)) = (foreseen.accepted.contains(&one.id), one.shelf) {
                self.request_power_change(tx, shelf)?;
            }
        }
        Ok(foreseen)
    }
}

impl ShelfMaintenance {
    fn request_power_change(&self, tx: &mut Tx, mut shelf: PowerShelf) -> Result<()> {
        let name = step_name(self.request.operation);
        let message = match &self.request.forced {
            Some(reason) => format!("{name} requested, by force: {reason}"),
            None => format!("{name} requested"),
        };
        shelf.maintenance_requested = Some(self.request.request(self.now));
        let event = event(Cause::Request, &self.request.initiator, message, here!(), self.now);
        tx.update_and_enqueue(&mut shelf, &event)
    }
}

/// Why a requested power change of a shelf must not start now.
pub(crate) async fn find_refusal(tx: &mut Tx, shelf: &PowerShelf) -> Result<Option<Refusal>> {
    let begins = matches!(shelf.state, PowerShelfState::Ready | PowerShelfState::Error { .. });
    match &shelf.maintenance_requested {
        Some(request) if begins && request.operation == DesiredPower::Off => {
            check_power_off(tx, shelf, request.forced.as_deref()).await
        }
        Some(_) | None => Ok(None),
    }
}

/// Checks the power-off again when a run that switches a shelf off continues after a failure:
/// machines may have come into service since.
pub(crate) async fn recheck_power_off(tx: &mut Tx, run: &Run) -> Result<()> {
    if run.spec.target.kind != TargetKind::PowerShelf || power_goal(run) != Some(DesiredPower::Off)
    {
        return Ok(());
    }
    let Some(shelf) = tx.record::<PowerShelf>(run.spec.target.as_str()).await? else {
        return Ok(());
    };
    let forced = forced_by(tx, run).await?;
    let Some(refusal) = check_power_off(tx, &shelf, forced.as_deref()).await? else {
        return Ok(());
    };
    let restarted = format!("farrier power-shelf maintenance power-off --id {}", shelf.head.id);
    let next = format!("{restarted} --force --reason …   # or move their work away first");
    Err(refusal.next(next).into())
}

async fn check_power_off(
    tx: &mut Tx,
    shelf: &PowerShelf,
    forced: Option<&str>,
) -> Result<Option<Refusal>> {
    let rack = shelf.head.rack.iter().cloned().collect();
    let fed = load_fed_racks(tx, &rack).await?;
    Ok(fed.first().and_then(|fed| admit_power_off(shelf, fed, forced).err()))
}

/// Whether rows are locked against other writers.
#[derive(Clone, Copy)]
enum RowLock {
    Unlocked,
    Locked,
}

async fn load_named_shelves(
    tx: &mut Tx,
    requested: &PowerChangeRequest,
    lock: RowLock,
) -> Result<Vec<NamedShelf>> {
    let mut found = Vec::new();
    for id in &requested.ids {
        let shelf = match lock {
            RowLock::Unlocked => tx.record::<PowerShelf>(id.as_str()).await?,
            RowLock::Locked => tx.record_locked::<PowerShelf>(id.as_str()).await?,
        };
        let made = match &requested.request_id {
            Some(request_id) => tx.run_of_request(&TargetId::from(id), request_id).await?,
            None => None,
        };
        found.push(NamedShelf { id: id.clone(), shelf, existing_run: made });
    }
    Ok(found)
}

fn racks_of(shelves: &[NamedShelf]) -> BTreeSet<RackId> {
    let known = shelves.iter().filter_map(|one| one.shelf.as_ref());
    known.filter_map(|shelf| shelf.head.rack.clone()).collect()
}

async fn load_fed_racks(tx: &mut Tx, racks: &BTreeSet<RackId>) -> Result<Vec<FedRack>> {
    let mut found = Vec::new();
    for rack in racks {
        // A shelf that cannot be read is not counted as a source of power.
        let shelves = tx.records_in_rack::<PowerShelf>(rack).await?.into_iter();
        let shelves = shelves.filter_map(|(_, shelf)| shelf.ok()).collect();
        let serving = tx.nodes_in_service(rack).await?;
        let machines = tx.machines_in_rack(rack).await?.into_iter();
        let affected = |(id, machine): (MachineId, Result<Machine>)| match machine {
            Ok(machine) => AffectedMachine::of(&machine, serving.get(&id)),
            Err(_) => AffectedMachine::unreadable(id),
        };
        let machines = machines.map(affected).collect();
        found.push(FedRack { rack: rack.clone(), shelves, machines });
    }
    Ok(found)
}
