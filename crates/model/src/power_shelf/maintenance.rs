//! Requested power changes of power shelves: their impact, and the gates that refuse them. Both are
//! computed before anything is written, so a dry run and the request use the same function.
//!
//! The affected machines are found in `topology`.

use super::topology::PowerTopology;
use super::{PowerShelf, PowerShelfState, ShelfPowerRequest};
use crate::blast_radius::{AffectedMachine, Impact, check_impact};
use crate::device::power_goal;
use crate::effect::DesiredPower;
use crate::gate::{Overrides, answer, name_all};
use crate::health::HealthImpact;
use crate::id::PowerShelfId;
use crate::list_format::join_limited;
use crate::refusal::{Reason, Refusal};
use crate::run::Run;
use crate::target::TargetId;
use crate::time::Timestamp;

pub const DEFAULT_MAX_IDS: usize = 100;

/// The name of the step, also used in messages.
pub const fn step_name(operation: DesiredPower) -> &'static str {
    match operation {
        DesiredPower::On => "power-on",
        DesiredPower::Off => "power-off",
    }
}

/// The recorded initiator. The table is that of the document.
pub fn initiator(user: Option<&str>, reference: Option<&str>) -> String {
    let given =
        |text: Option<&str>| text.map(str::trim).filter(|text| !text.is_empty()).map(String::from);
    match (given(user), given(reference)) {
        (Some(user), Some(reference)) => format!("{user} ({reference})"),
        (Some(user), None) => user,
        (None, Some(reference)) => reference,
        (None, None) => "admin-cli".into(),
    }
}

/// A power request for one or more shelves, all or none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PowerChangeRequest {
    /// Sorted, without duplicates.
    pub ids: Vec<PowerShelfId>,
    pub operation: DesiredPower,
    pub initiator: String,
    pub overrides: Overrides,
    pub request_id: Option<String>,
}

impl PowerChangeRequest {
    /// Removes duplicates. `most` is the number of shelves that may be named.
    pub fn checked(mut self, most: usize) -> Result<Self, Refusal> {
        const FIELD: &str = "power_shelf_ids";
        if self.ids.is_empty() {
            return Err(Refusal::invalid(FIELD, "is empty", format!("name 1 to {most} shelves")));
        }
        if self.ids.len() > most {
            let problem = format!("names {} shelves", self.ids.len());
            return Err(Refusal::invalid(FIELD, problem, format!("name 1 to {most}")));
        }
        self.ids.sort();
        self.ids.dedup();
        Ok(self)
    }

    pub fn request(&self, now: Timestamp) -> ShelfPowerRequest {
        ShelfPowerRequest {
            requested_at: now,
            initiator: self.initiator.clone(),
            operation: self.operation,
            overrides: self.overrides.clone(),
            request_id: self.request_id.clone(),
        }
    }
}

/// A named shelf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedShelf {
    pub id: PowerShelfId,
    pub shelf: Option<PowerShelf>,
    /// The run that an earlier delivery of the same request created.
    pub existing_run: Option<Run>,
}

/// The consequences of a request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PowerChangePreview {
    /// The shelves that would get the request, without those that have it from an earlier delivery.
    pub accepted: Vec<PowerShelfId>,
    /// All refusals, in order of precedence.
    pub refusals: Vec<Refusal>,
    /// The machines that lose power.
    pub affected: Vec<AffectedMachine>,
    /// The machines that keep their power and lose the fabric.
    pub fabric_loss: Vec<AffectedMachine>,
    pub warnings: Vec<String>,
    /// The rules that determined the affected machines, and the devices that each was used for.
    pub rules: Vec<String>,
}

impl PowerChangePreview {
    pub fn permitted(&self) -> Result<(), Refusal> {
        answer(&self.refusals).map_or(Ok(()), Err)
    }
}

/// Computes what a request would do, whether it is admitted or not.
pub fn preview_power_change(
    requested: &PowerChangeRequest,
    named: &[NamedShelf],
    topology: &PowerTopology,
) -> PowerChangePreview {
    let mut observed = PowerChangePreview::default();
    for one in named {
        match request_status(requested, one) {
            Ok(ShelfRequestStatus::Free) => observed.accepted.push(one.id.clone()),
            Ok(ShelfRequestStatus::AlreadyRequested) => {}
            Err(refusal) => observed.refusals.push(refusal),
        }
    }
    if requested.operation == DesiredPower::Off {
        let loss = topology.power_loss(&requested.ids);
        observed.affected = loss.machines;
        observed.fabric_loss = loss.fabric;
        observed.rules = loss.rules;
        observed.warnings =
            loss.controllers.iter().map(|shelves| own_controller(shelves)).collect();
    }
    // A request that has nothing left to do affects no machine.
    let what = format!("{} of {}", step_name(requested.operation), listed(&requested.ids));
    let overrides = &requested.overrides;
    if !observed.accepted.is_empty() {
        let refusals = impact_refusals(&what, &observed.affected, &observed.fabric_loss, overrides);
        observed.refusals.extend(refusals);
    }
    name_all(&mut observed.refusals, overrides);
    observed
}

enum ShelfRequestStatus {
    Free,
    /// An earlier delivery of the same request reached it.
    AlreadyRequested,
}

fn request_status(
    requested: &PowerChangeRequest,
    named: &NamedShelf,
) -> Result<ShelfRequestStatus, Refusal> {
    let Some(shelf) = &named.shelf else {
        return Err(Refusal::not_found("power shelf", &named.id, "farrier power-shelf list"));
    };
    if requested.request_id.is_some() && replayed(requested, shelf, named.existing_run.as_ref())? {
        return Ok(ShelfRequestStatus::AlreadyRequested);
    }
    let id = &named.id;
    let target = TargetId::from(id);
    let probe = format!("farrier power-shelf get {id}");
    if shelf.head.deleted {
        let message = format!("{id} is marked for deletion");
        return Err(Refusal::new(Reason::MarkedForDeletion, message).next(probe));
    }
    if let Some(request) = &shelf.maintenance_requested {
        let (name, by) = (step_name(request.operation), &request.initiator);
        let begun = matches!(shelf.state, PowerShelfState::Maintenance { .. });
        let how = match shelf.run.as_ref().filter(|_| begun) {
            Some(run) => format!("is under way as {run}"),
            None => "has not begun yet".into(),
        };
        let message = format!("{id} is asked for a {name} already, by {by}, which {how}");
        return Err(Refusal::new(Reason::MaintenanceRequested, message).next(probe));
    }
    match &shelf.head.active_run {
        Some(holder) if shelf.run.as_ref() != Some(holder) => Err(target.refuse_held(holder)),
        Some(_) | None => {
            let (what, overrides) = (step_name(requested.operation), &requested.overrides);
            shelf.head.health.check_permitted(&target, what, HealthImpact::Change, overrides)?;
            Ok(ShelfRequestStatus::Free)
        }
    }
}

/// True if the same request was delivered before. A different request with the same id is refused.
fn replayed(
    requested: &PowerChangeRequest,
    shelf: &PowerShelf,
    made: Option<&Run>,
) -> Result<bool, Refusal> {
    let pending =
        shelf.maintenance_requested.as_ref().filter(|one| one.request_id == requested.request_id);
    let before = match (pending, made) {
        (Some(pending), _) => Some(pending.operation),
        (None, Some(run)) => power_goal(run),
        (None, None) => return Ok(false),
    };
    if before == Some(requested.operation) {
        return Ok(true);
    }
    let request_id = requested.request_id.clone().unwrap_or_default();
    let id = &shelf.head.id;
    let message = format!("request_id {request_id:?} was used on {id} for something else");
    Err(Refusal::new(Reason::RequestIdReused, message).next("repeat it with a new --request-id"))
}

/// The refusals for machines that lose power or the fabric.
fn impact_refusals(
    what: &str,
    affected: &[AffectedMachine],
    fabric_loss: &[AffectedMachine],
    overrides: &Overrides,
) -> Vec<Refusal> {
    let power = check_impact(what, Impact::PowerLoss, affected, overrides).err();
    let fabric = check_impact(what, Impact::FabricLoss, fabric_loss, overrides).err();
    power.into_iter().chain(fabric).collect()
}

/// Checks whether one shelf may be switched off now. It may have been requested long ago.
pub fn admit_power_off(
    shelf: &PowerShelf,
    topology: &PowerTopology,
    overrides: &Overrides,
) -> Result<(), Refusal> {
    let loss = topology.power_loss(std::slice::from_ref(&shelf.id()));
    let what = format!("PowerOff of {}", shelf.head.id);
    let refusals = impact_refusals(&what, &loss.machines, &loss.fabric, overrides);
    refusals.into_iter().next().map_or(Ok(()), Err)
}

fn own_controller(shelves: &[String]) -> String {
    format!(
        "the controller of {} may lose its own power with this: then only a person at the rack can switch it on again",
        shelves.join(", ")
    )
}

/// The number of shelves that a message names; the rest is counted.
const MAX_NAMED: usize = 4;

fn listed(ids: &[PowerShelfId]) -> String {
    let ids: Vec<&str> = ids.iter().map(PowerShelfId::as_str).collect();
    join_limited(&ids, ", ", MAX_NAMED)
}
