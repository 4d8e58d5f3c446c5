//! Requests to switch power shelves on or off: all named shelves or none, in one transaction. The
//! model decides; this module locks the records that the decision depends on.

use crate::Engine;
use crate::admission::{
    ApprovalGate, MachinesTaken, OperationStart, approval_sentence, event, foresee_taken,
    override_lines, overrides_of, sealed,
};
use crate::clock::Clock;
use crate::run::RecordedDurations;
use model::access::Permission;
use model::approval::Proposal;
use model::blast_radius::{AffectedMachine, PoweredDevice, ServingNode};
use model::device::power_goal;
use model::effect::DesiredPower;
use model::gate::{Gate, Overrides, gates_of};
use model::here;
use model::id::{MachineId, PowerShelfId, RackId};
use model::lifecycle::{SubjectId, SubjectKind, lifecycle_plan_id};
use model::list_format::join_limited;
use model::machine::Machine;
use model::plan::RunType;
use model::power_shelf::maintenance::{
    NamedShelf, PowerChangePreview, PowerChangeRequest, admit_power_off, preview_power_change,
    step_name,
};
use model::power_shelf::topology::{PowerLoss, PowerTopology};
use model::power_shelf::{PowerShelf, PowerShelfState, power_step};
use model::rack::Rack;
use model::refusal::Refusal;
use model::run::{Run, TimeEstimate, UsualTime};
use model::switch::Switch;
use model::target::{TargetId, TargetKind};
use model::time::Timestamp;
use std::collections::BTreeSet;
use store::{Cause, Result, StoreError, Tx};

/// The number of shelves that a refusal names; the rest is counted.
const MAX_NAMED: usize = 4;

/// The predicted result of a request, and the named shelves as they are now.
#[derive(Debug, Clone)]
pub struct ShelfPreview {
    pub preview: PowerChangePreview,
    pub shelves: Vec<NamedShelf>,
    /// The time until all shelves are switched. None: none would be switched.
    pub time: Option<TimeEstimate>,
}

/// The service that switches the power of shelves.
#[derive(Clone)]
pub struct PowerShelves(pub(crate) Engine);

impl PowerShelves {
    /// Requests the power change of every named shelf, or of none. Returns the prediction.
    pub async fn maintain(&self, requested: PowerChangeRequest) -> Result<PowerChangePreview> {
        let requested = requested.checked(self.0.settings().max_find_by_ids)?;
        let (ids, by) = (requested.ids.clone(), requested.initiator.clone());
        let request = step_name(requested.operation);
        let gate = ApprovalGate::new(&self.0);
        let (gates, clock, now) = (gate.clone(), self.0.clock(), self.0.now());
        let maintain = ShelfMaintenance { request: requested, gate: gates, clock, now };
        let done = self
            .0
            .store()
            .retry_write("maintain_shelves", maintain, |maintain, tx| Box::pin(maintain.run(tx)))
            .await;
        let done = gate.settle(&self.0, done).await;
        if let Err(StoreError::Refused(refusal)) = &done {
            for id in &ids {
                self.0.note_refusal(id.as_str(), (&by, request), refusal);
            }
        }
        done
    }

    /// The predicted result of the same request. Nothing is written.
    pub async fn preview(&self, requested: PowerChangeRequest) -> Result<ShelfPreview> {
        let requested = requested.checked(self.0.settings().max_find_by_ids)?;
        let input = (requested, OperationStart::requested(self.0.now()));
        self.0
            .store()
            .read(input, |(requested, at), tx| Box::pin(preview(tx, requested, *at)))
            .await
    }
}

async fn preview(
    tx: &mut Tx,
    requested: &PowerChangeRequest,
    start: OperationStart,
) -> Result<ShelfPreview> {
    let shelves = load_named_shelves(tx, requested).await?;
    let topology = load_topology(tx, &known_shelves(&shelves)).await?;
    let mut preview = preview_power_change(requested, &shelves, &topology);
    let refusing = refusing_gates(requested, &shelves, &topology);
    preview.warnings.extend(requested.overrides.describe(&refusing));
    let (machines, overrides) = (taken(requested, &preview), &requested.overrides);
    let (said, refusals) = foresee_taken(tx, &what(requested), &machines, overrides, start).await?;
    preview.warnings.extend(said);
    preview.refusals.extend(refusals);
    if !preview.accepted.is_empty() {
        let needed = Permission::Power.into();
        preview.warnings.extend(approval_sentence(tx, needed, &requested.overrides).await?);
    }
    let time = estimate(tx, &preview.accepted, requested.operation).await?;
    Ok(ShelfPreview { preview, shelves, time })
}

/// The gates that refuse a request without its override.
fn refusing_gates(
    requested: &PowerChangeRequest,
    shelves: &[NamedShelf],
    topology: &PowerTopology,
) -> Vec<Gate> {
    let plain = PowerChangeRequest { overrides: Overrides::default(), ..requested.clone() };
    gates_of(&preview_power_change(&plain, shelves, topology).refusals)
}

/// The time in which all of these shelves are switched; each has an operation of its own.
async fn estimate(
    tx: &mut Tx,
    shelves: &[PowerShelfId],
    operation: DesiredPower,
) -> Result<Option<TimeEstimate>> {
    let (plan, step) = (lifecycle_plan_id(RunType::Power), power_step(operation));
    let targets: Vec<TargetId> = shelves.iter().map(TargetId::from).collect();
    let steps = targets.iter().map(|target| (target, plan.clone(), step.name.as_str()));
    let recorded = RecordedDurations::load(tx, steps).await?;
    let time = |target: &TargetId| TimeEstimate {
        usual: recorded.usual(target, &plan, &step.name).as_ref().map(UsualTime::from),
        limit: step.time_limit(),
    };
    Ok(TimeEstimate::concurrent(targets.iter().map(time)))
}

struct ShelfMaintenance {
    request: PowerChangeRequest,
    gate: ApprovalGate,
    clock: Clock,
    now: Timestamp,
}

impl ShelfMaintenance {
    async fn run(&self, tx: &mut Tx) -> Result<PowerChangePreview> {
        // The racks and shelves are locked first: two concurrent requests that each rely on the
        // other's shelf staying on must not both pass.
        let before = load_named_shelves(tx, &self.request).await?;
        let relied_on = reliance(&load_topology(tx, &known_shelves(&before)).await?);
        for rack in &relied_on.0 {
            tx.record_locked::<Rack>(rack.as_str()).await?;
        }
        for shelf in &relied_on.1 {
            tx.record_locked::<PowerShelf>(shelf.as_str()).await?;
        }
        let shelves = load_named_shelves(tx, &self.request).await?;
        let topology = load_topology(tx, &known_shelves(&shelves)).await?;
        if reliance(&topology) != relied_on {
            return Err(StoreError::Conflict);
        }
        let foreseen = preview_power_change(&self.request, &shelves, &topology);
        foreseen.permitted()?;
        let refusing = refusing_gates(&self.request, &shelves, &topology);
        let note = self.request.overrides.history_note(&self.request.initiator, &refusing);
        let budgets = self.take_machines(tx, &foreseen).await?;
        let approval = self.gate.check(tx, proposal(&self.request, &foreseen)).await?;
        let more = [budgets, approval].into_iter().filter(|more| !more.is_empty());
        let note = more.fold(note, |note, more| format!("{note}; {more}"));
        for one in shelves {
            if let (true, Some(shelf)) = (foreseen.accepted.contains(&one.id), one.shelf) {
                self.request_power_change(tx, shelf, &note)?;
            }
        }
        Ok(foreseen)
    }
}

impl ShelfMaintenance {
    /// Each shelf takes all machines that the request leaves without power: they come back with the
    /// last of its shelves.
    async fn take_machines(&self, tx: &mut Tx, foreseen: &PowerChangePreview) -> Result<String> {
        let mut note = String::new();
        for id in &foreseen.accepted {
            let taken = MachinesTaken {
                taker: &SubjectId::new(SubjectKind::PowerShelf, id.as_str()).key(),
                what: &what(&self.request),
                by: &self.request.initiator,
                machines: taken(&self.request, foreseen),
                overrides: &self.request.overrides,
                caller: self.gate.caller(),
                start: Some(OperationStart::requested((self.clock)())),
            };
            let said = taken.admit(tx).await?;
            // The first takes the machines; for the others they are unavailable already.
            if note.is_empty() {
                note = said;
            }
        }
        Ok(note)
    }

    fn request_power_change(&self, tx: &mut Tx, mut shelf: PowerShelf, note: &str) -> Result<()> {
        let name = step_name(self.request.operation);
        let message = format!("{name} requested{note}");
        shelf.maintenance_requested = Some(self.request.request(self.now));
        let event = event(Cause::Request, &self.request.initiator, message, here!(), self.now);
        tx.update_and_enqueue(&mut shelf, &event)
    }
}

/// The machines that a request takes out of service.
fn taken(request: &PowerChangeRequest, foreseen: &PowerChangePreview) -> BTreeSet<MachineId> {
    if request.operation == DesiredPower::On || foreseen.accepted.is_empty() {
        return BTreeSet::new();
    }
    let affected = foreseen.affected.iter().chain(&foreseen.fabric_loss);
    affected.map(|one| one.machine.clone()).collect()
}

fn what(request: &PowerChangeRequest) -> String {
    let ids: Vec<&str> = request.ids.iter().map(PowerShelfId::as_str).collect();
    format!("{} of {}", step_name(request.operation), join_limited(&ids, ", ", MAX_NAMED))
}

/// The actions of a request, for its approval; none if nothing is left to do.
fn proposal(request: &PowerChangeRequest, foreseen: &PowerChangePreview) -> Option<Proposal> {
    if foreseen.accepted.is_empty() {
        return None;
    }
    let loses =
        |what: &'static str| move |one: &AffectedMachine| format!("{} loses {what}", one.machine);
    let power = foreseen.affected.iter().map(loses("power"));
    let fabric = foreseen.fabric_loss.iter().map(loses("the fabric"));
    let plan = power.chain(fabric).chain(override_lines(&request.overrides)).collect();
    Some(sealed(Proposal {
        request: step_name(request.operation).into(),
        request_id: request.request_id.clone().unwrap_or_default(),
        targets: foreseen.accepted.iter().map(PowerShelfId::to_string).collect(),
        permissions: Permission::Power.into(),
        plan,
        digest: String::new(),
        overrides: request.overrides.clone(),
        operations: Vec::new(),
    }))
}

/// The reason why a requested power change of a shelf must not start now.
pub(crate) async fn find_refusal(tx: &mut Tx, shelf: &PowerShelf) -> Result<Option<Refusal>> {
    let begins = matches!(shelf.state, PowerShelfState::Ready | PowerShelfState::Error { .. });
    match &shelf.maintenance_requested {
        Some(request) if begins && request.operation == DesiredPower::Off => {
            check_power_off(tx, shelf, &request.overrides).await
        }
        Some(_) | None => Ok(None),
    }
}

/// Checks the power-off again when a run that switches a shelf off continues after a failure:
/// machines may have come into service since. Returns the gate that would refuse without the
/// override of the run.
pub(crate) async fn recheck_power_off(tx: &mut Tx, run: &Run) -> Result<Option<Gate>> {
    if run.spec.target.kind != TargetKind::PowerShelf || power_goal(run) != Some(DesiredPower::Off)
    {
        return Ok(None);
    }
    let Some(shelf) = tx.record::<PowerShelf>(run.spec.target.as_str()).await? else {
        return Ok(None);
    };
    let overrides = overrides_of(tx, run).await?;
    let Some(refusal) = check_power_off(tx, &shelf, &overrides).await? else {
        let refused = check_power_off(tx, &shelf, &Overrides::default()).await?;
        return Ok(refused.and_then(|refusal| refusal.gate));
    };
    let restarted = format!("farrier power-shelf maintenance power-off --id {}", shelf.head.id);
    let flags = overrides.flags_with(Gate::InService);
    let next = format!("{restarted} {flags}   # or move their work away first");
    Err(refusal.next(next).into())
}

async fn check_power_off(
    tx: &mut Tx,
    shelf: &PowerShelf,
    overrides: &Overrides,
) -> Result<Option<Refusal>> {
    let topology = load_topology(tx, std::slice::from_ref(shelf)).await?;
    Ok(admit_power_off(shelf, &topology, overrides).err())
}

/// The machines that lose power when a shelf is switched off.
pub(crate) async fn machines_fed_by(tx: &mut Tx, shelf: &TargetId) -> Result<Vec<MachineId>> {
    let loss = load_power_loss(tx, &[PowerShelfId::trusted(shelf.as_str())]).await?;
    Ok(loss.machines.into_iter().map(|affected| affected.machine).collect())
}

/// What is lost when these shelves are switched off. Shelves that do not exist feed nothing.
pub(crate) async fn load_power_loss(tx: &mut Tx, off: &[PowerShelfId]) -> Result<PowerLoss> {
    let mut shelves = Vec::with_capacity(off.len());
    for id in off {
        shelves.extend(tx.record::<PowerShelf>(id.as_str()).await?);
    }
    if shelves.is_empty() {
        return Ok(PowerLoss::default());
    }
    Ok(load_topology(tx, &shelves).await?.power_loss(off))
}

async fn load_named_shelves(
    tx: &mut Tx,
    requested: &PowerChangeRequest,
) -> Result<Vec<NamedShelf>> {
    let mut found = Vec::new();
    for id in &requested.ids {
        let shelf = tx.record::<PowerShelf>(id.as_str()).await?;
        let made = match &requested.request_id {
            Some(request_id) => tx.run_of_request(&TargetId::from(id), request_id).await?,
            None => None,
        };
        found.push(NamedShelf { id: id.clone(), shelf, existing_run: made });
    }
    Ok(found)
}

fn known_shelves(named: &[NamedShelf]) -> Vec<PowerShelf> {
    named.iter().filter_map(|one| one.shelf.clone()).collect()
}

/// The racks and shelves that a decision relies on, in the order in which they are locked.
fn reliance(topology: &PowerTopology) -> (BTreeSet<RackId>, BTreeSet<PowerShelfId>) {
    let racks = topology.shelves.iter().filter_map(|shelf| shelf.head.rack.as_ref());
    let racks = racks.chain(topology.devices.iter().filter_map(|device| device.rack.as_ref()));
    (racks.cloned().collect(), topology.shelves.iter().map(PowerShelf::id).collect())
}

/// Loads the racks of these shelves and of the devices that they feed, and every shelf that feeds
/// one of these devices.
async fn load_topology(tx: &mut Tx, named: &[PowerShelf]) -> Result<PowerTopology> {
    let mut racks: BTreeSet<RackId> =
        named.iter().filter_map(|one| one.head.rack.clone()).collect();
    let ids: Vec<PowerShelfId> = named.iter().map(PowerShelf::id).collect();
    let mut topology = PowerTopology::default();
    for device in load_fed_devices(tx, &ids).await? {
        if let Some(rack) = device.rack.clone() {
            racks.insert(rack);
        } else {
            topology.devices.push(device);
        }
    }
    for rack in &racks {
        // A shelf that cannot be read is not counted as a source of power.
        let shelves = tx.records_in_rack::<PowerShelf>(rack).await?.into_iter();
        topology.shelves.extend(shelves.filter_map(|(_, shelf)| shelf.ok()));
        load_rack_devices(tx, rack, &mut topology.devices).await?;
    }
    let feeds = topology.devices.iter().flat_map(|device| &device.feeds);
    let mut elsewhere: BTreeSet<PowerShelfId> = feeds.chain(&ids).cloned().collect();
    for shelf in &topology.shelves {
        elsewhere.remove(&shelf.id());
    }
    for id in &elsewhere {
        match tx.record::<PowerShelf>(id.as_str()).await {
            Ok(shelf) => topology.shelves.extend(shelf),
            Err(StoreError::Corrupt(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(topology)
}

/// The devices that name one of these shelves as a feed, wherever they are.
async fn load_fed_devices(tx: &mut Tx, shelves: &[PowerShelfId]) -> Result<Vec<PoweredDevice>> {
    let mut found = Vec::new();
    for target in tx.devices_fed_by(shelves).await? {
        match target.machine() {
            Some(id) => {
                let Some(machine) = readable(tx.machine(&id).await)? else { continue };
                let serving = tx.node_in_service(&id).await?;
                found.push(powered_machine(&machine, serving.as_ref()));
            }
            None => {
                let switch = readable(tx.record::<Switch>(target.as_str()).await)?;
                found.extend(switch.as_ref().map(powered_switch));
            }
        }
    }
    // The index may be older than the spec.
    found.retain(|device| device.feeds.iter().any(|id| shelves.contains(id)));
    Ok(found)
}

/// Treats a record that cannot be read as absent. In a rack it is found as unreadable.
fn readable<T>(found: Result<Option<T>>) -> Result<Option<T>> {
    match found {
        Err(StoreError::Corrupt(_)) => Ok(None),
        other => other,
    }
}

async fn load_rack_devices(
    tx: &mut Tx,
    rack: &RackId,
    devices: &mut Vec<PoweredDevice>,
) -> Result<()> {
    let serving = tx.nodes_in_service(rack).await?;
    let machines = tx.machines_in_rack(rack).await?.into_iter();
    devices.extend(machines.map(|(id, machine)| match machine {
        Ok(machine) => powered_machine(&machine, serving.get(&id)),
        Err(_) => unreadable_machine(id, rack),
    }));
    let switches = tx.records_in_rack::<Switch>(rack).await?.into_iter();
    devices.extend(switches.filter_map(|(_, one)| one.ok()).map(|one| powered_switch(&one)));
    Ok(())
}

fn powered_machine(machine: &Machine, node: Option<&ServingNode>) -> PoweredDevice {
    PoweredDevice {
        target: TargetId::from(&machine.id),
        rack: machine.spec.rack.clone(),
        feeds: machine.spec.feeds.clone(),
        affected: Some(AffectedMachine::of(machine, node)),
    }
}

/// Its feeds are unknown.
fn unreadable_machine(id: MachineId, rack: &RackId) -> PoweredDevice {
    PoweredDevice {
        target: TargetId::from(&id),
        rack: Some(rack.clone()),
        feeds: Vec::new(),
        affected: Some(AffectedMachine::unreadable(id)),
    }
}

fn powered_switch(switch: &Switch) -> PoweredDevice {
    PoweredDevice {
        target: TargetId::new(TargetKind::Switch, switch.head.id.as_str()),
        rack: switch.head.rack.clone(),
        feeds: switch.spec.feeds.clone(),
        affected: None,
    }
}
