//! Requests to switch power shelves on or off: all named shelves or none, in one transaction. The
//! model decides; this module locks the records that the decision depends on.

use crate::Engine;
use crate::admission::event;
use crate::admission::forced_by;
use model::blast::Dark;
use model::device::switches_power;
use model::effect::PowerTo;
use model::here;
use model::id::{MachineId, RackId};
use model::machine::Machine;
use model::power_shelf::maintenance::{
    Asked, Fed, Foreseen, Named, foresee, may_go_off, step_name,
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
    pub foreseen: Foreseen,
    pub shelves: Vec<Named>,
}

/// The service that switches the power of shelves.
#[derive(Clone)]
pub struct PowerShelves(pub(crate) Engine);

impl PowerShelves {
    /// Requests the power change of every named shelf, or of none. Returns the prediction.
    pub async fn maintain(&self, asked: Asked) -> Result<Foreseen> {
        let asked = asked.checked(self.0.settings().max_find_by_ids)?;
        let maintain = Maintain { asked, now: self.0.now() };
        self.0
            .store()
            .retry_write("maintain_shelves", maintain, |maintain, tx| Box::pin(maintain.run(tx)))
            .await
    }

    /// The predicted result of the same request. Nothing is written.
    pub async fn preview(&self, asked: Asked) -> Result<ShelfPreview> {
        let asked = asked.checked(self.0.settings().max_find_by_ids)?;
        self.0.store().read(asked, |asked, tx| Box::pin(preview(tx, asked))).await
    }
}

async fn preview(tx: &mut Tx, asked: &Asked) -> Result<ShelfPreview> {
    let shelves = named(tx, asked, Lock::Free).await?;
    let fed = fed(tx, &racks_of(&shelves)).await?;
    Ok(ShelfPreview { foreseen: foresee(asked, &shelves, &fed), shelves })
}

struct Maintain {
    asked: Asked,
    now: Timestamp,
}

impl Maintain {
    async fn run(&self, tx: &mut Tx) -> Result<Foreseen> {
        // The racks are locked first: two concurrent requests that each rely on the other's shelf
        // staying on must not both pass.
        let racks = racks_of(&named(tx, &self.asked, Lock::Free).await?);
        for rack in &racks {
            tx.record_locked::<Rack>(rack.as_str()).await?;
        }
        let shelves = named(tx, &self.asked, Lock::Held).await?;
        if racks_of(&shelves) != racks {
            return Err(StoreError::Conflict);
        }
        let fed = fed(tx, &racks).await?;
        let foreseen = foresee(&self.asked, &shelves, &fed);
        foreseen.permitted()?;
        for one in shelves {
            if let (true, Some(shelf)) = (foreseen.told.contains(&one.id), one.shelf) {
                self.tell(tx, shelf)?;
            }
        }
        Ok(foreseen)
    }
}

impl Maintain {
    fn tell(&self, tx: &mut Tx, mut shelf: PowerShelf) -> Result<()> {
        let name = step_name(self.asked.operation);
        let message = match &self.asked.forced {
            Some(reason) => format!("{name} requested, by force: {reason}"),
            None => format!("{name} requested"),
        };
        shelf.maintenance_requested = Some(self.asked.request(self.now));
        let event = event(Cause::Request, &self.asked.initiator, message, here!(), self.now);
        tx.update_and_enqueue(&mut shelf, &event)
    }
}

/// Why a requested power change of a shelf must not start now.
pub(crate) async fn against(tx: &mut Tx, shelf: &PowerShelf) -> Result<Option<Refusal>> {
    let begins = matches!(shelf.state, PowerShelfState::Ready | PowerShelfState::Error { .. });
    match &shelf.maintenance_requested {
        Some(request) if begins && request.operation == PowerTo::Off => {
            interlock(tx, shelf, request.forced.as_deref()).await
        }
        Some(_) | None => Ok(None),
    }
}

/// Checks the interlock again when a run that switches a shelf off continues after a failure:
/// machines may have come into service since.
pub(crate) async fn may_go_on(tx: &mut Tx, run: &Run) -> Result<()> {
    if run.spec.target.kind != TargetKind::PowerShelf || switches_power(run) != Some(PowerTo::Off) {
        return Ok(());
    }
    let Some(shelf) = tx.record::<PowerShelf>(run.spec.target.as_str()).await? else {
        return Ok(());
    };
    let forced = forced_by(tx, run).await?;
    let Some(refusal) = interlock(tx, &shelf, forced.as_deref()).await? else { return Ok(()) };
    let anew = format!("farrier power-shelf maintenance power-off --id {}", shelf.head.id);
    let next = format!("{anew} --force --reason …   # or move their work away first");
    Err(refusal.next(next).into())
}

async fn interlock(
    tx: &mut Tx,
    shelf: &PowerShelf,
    forced: Option<&str>,
) -> Result<Option<Refusal>> {
    let rack = shelf.head.rack.iter().cloned().collect();
    let fed = fed(tx, &rack).await?;
    Ok(fed.first().and_then(|fed| may_go_off(shelf, fed, forced).err()))
}

/// Whether rows are locked against other writers.
#[derive(Clone, Copy)]
enum Lock {
    Free,
    Held,
}

async fn named(tx: &mut Tx, asked: &Asked, lock: Lock) -> Result<Vec<Named>> {
    let mut found = Vec::new();
    for id in &asked.ids {
        let shelf = match lock {
            Lock::Free => tx.record::<PowerShelf>(id.as_str()).await?,
            Lock::Held => tx.record_locked::<PowerShelf>(id.as_str()).await?,
        };
        let made = match &asked.request_id {
            Some(request_id) => tx.run_of_request(&TargetId::from(id), request_id).await?,
            None => None,
        };
        found.push(Named { id: id.clone(), shelf, made });
    }
    Ok(found)
}

fn racks_of(shelves: &[Named]) -> BTreeSet<RackId> {
    let known = shelves.iter().filter_map(|one| one.shelf.as_ref());
    known.filter_map(|shelf| shelf.head.rack.clone()).collect()
}

async fn fed(tx: &mut Tx, racks: &BTreeSet<RackId>) -> Result<Vec<Fed>> {
    let mut found = Vec::new();
    for rack in racks {
        // A shelf that cannot be read is not counted as a source of power.
        let shelves = tx.records_in_rack::<PowerShelf>(rack).await?.into_iter();
        let shelves = shelves.filter_map(|(_, shelf)| shelf.ok()).collect();
        let serving = tx.serving_in_rack(rack).await?;
        let machines = tx.machines_in_rack(rack).await?.into_iter();
        let dark = |(id, machine): (MachineId, Result<Machine>)| match machine {
            Ok(machine) => Dark::of(&machine, serving.get(&id)),
            Err(_) => Dark::unreadable(id),
        };
        let machines = machines.map(dark).collect();
        found.push(Fed { rack: rack.clone(), shelves, machines });
    }
    Ok(found)
}
