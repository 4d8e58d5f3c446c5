//! The service for racks. Each change is one transaction with its event; `maintain` starts
//! operations, `status` reports them.

mod maintain;
mod power;
mod status;

pub use maintain::{MaintenancePreview, MaintenanceStart, MaintenanceStartResult};
pub use status::{ChildRunStatus, MaintenanceStatus, RackStepStatus};

pub(crate) use maintain::{
    MaintenanceAdmission, load_refusing_gates, reopen_operation, start_operation,
};
pub(crate) use power::load_device_power;

use crate::admission::event;
use crate::explain::{Explained, peer_contacts};
use crate::fan_out::{failed_child, has_active_children};
use crate::holds::unknown;
use crate::topology::take_out_devices;
use crate::{Change, Engine};
use model::firmware::{FirmwareResolution, resolve};
use model::gate::{Overrides, gate_of};
use model::here;
use model::id::{RackId, RunId};
use model::lifecycle::{Lifecycle, RecordHeader};
use model::machine::Labels;
use model::machine::Machine;
use model::order::Selection;
use model::rack::maintenance::{RackLimits, admit_resume, check_empty};
use model::rack::{
    Counts, NotIngested, Rack, RackContext, RackDevice, RackFailurePhase, RackOperation, RackSpec,
    RackState, RackTurnInput, explain,
};
use model::refusal::{Reason, Refusal};
use model::target::{TargetId, TargetKind};
use model::time::Timestamp;
use model::version::check_version;
use model::why::{Explanation, RunContext, explain_run};
use std::time::Duration;
use store::{Cause, RecordPage, Result, StoreError, Tx};

/// A rack as the operator describes it.
#[derive(Debug, Clone)]
pub struct RackDescription {
    pub id: RackId,
    pub labels: Labels,
    pub spec: RackSpec,
}

/// A rack with its devices and active operations.
#[derive(Debug, Clone)]
pub struct RackView {
    pub rack: Rack,
    /// Ordered by kind and id.
    pub devices: Vec<RackDevice>,
    pub operations: Vec<RackOperation>,
    pub waits_for: String,
    /// The machines that its ingestion left out because they were in service.
    pub not_ingested: Vec<NotIngested>,
    /// The rows of its operations that cannot be read.
    pub unreadable: Vec<String>,
}

/// Racks: their inventory and their operations.
#[derive(Clone)]
pub struct Racks(pub(crate) Engine);

impl Racks {
    /// Creates a rack. Idempotent: the same description returns the existing rack.
    pub async fn create(&self, desired: RackDescription, by: String) -> Result<Rack> {
        let input = (desired, by, self.0.now());
        let written = self.0.store().retry_write("create_rack", input, |(desired, by, now), tx| {
            Box::pin(create(tx, desired, by, *now))
        });
        written.await
    }

    pub async fn get(&self, id: &RackId) -> Result<RackView> {
        let input = (id.clone(), self.0.settings().rack_limits, self.0.now());
        self.0
            .store()
            .read(input, |(id, limits, now), tx| Box::pin(load_view(tx, id, *limits, *now)))
            .await
    }

    /// The reason why a rack is as it is.
    pub(crate) async fn explain(&self, id: &RackId) -> Result<Explained> {
        let view = self.get(id).await?;
        let now = self.0.now();
        let input = (view.rack.active.clone(), now);
        let operation = self
            .0
            .store()
            .read(input, |(active, now), tx| Box::pin(slowest_operation(tx, active, *now)))
            .await?;
        let context = RackContext {
            waits_for: &view.waits_for,
            left_out: &view.not_ingested,
            devices: &view.devices,
            operation: operation.as_ref().map(|(_, explanation)| explanation),
            unreadable: &view.unreadable,
        };
        let explanation = explain(&view.rack, context, now);
        let slowest = operation.map(|(run, _)| run);
        let run_id = slowest.or_else(|| view.rack.active.first().cloned());
        Ok(Explained { explanation, run_id, ..Explained::default() })
    }

    /// A page of racks in the order of their ids, after the id `after`.
    pub async fn list(
        &self,
        selection: impl Into<Selection>,
        after: Option<String>,
        limit: usize,
    ) -> Result<RecordPage<Rack>> {
        let input = (self.0.caller().visible(selection), after, limit);
        let found = self.0.store().scan(input, |(selection, after, limit), tx| {
            Box::pin(tx.selected_records(selection, after.as_deref(), *limit))
        });
        let page = found.await?;
        self.0.store().unreadable().record(&page.unreadable);
        Ok(page)
    }

    /// Replaces labels, hardware type, expected counts and location, if `version` is the current
    /// one or none.
    pub async fn update(
        &self,
        id: RackId,
        change: Change<Rack, RackDescription>,
        version: Option<i64>,
        by: String,
    ) -> Result<Rack> {
        let (rack, actor) = (id.clone(), by.clone());
        let update = UpdateRack { id, change, version, by, now: self.0.now() };
        let done = self
            .0
            .store()
            .retry_write("update_rack", update, |update, tx| Box::pin(update.run(tx)));
        self.0.trace_refusal(rack.as_str(), (&actor, "update"), done.await)
    }

    /// Marks a rack for deletion, at this version if one is named. Devices in it make this fail,
    /// unless the gate is overridden: then they are taken out. The answer lists them.
    pub async fn delete(
        &self,
        id: RackId,
        version: Option<i64>,
        overrides: Overrides,
        by: String,
    ) -> Result<RackView> {
        let (limits, now) = (self.0.settings().rack_limits, self.0.now());
        let (rack, actor) = (id.clone(), by.clone());
        let delete = DeleteRack { id, version, overrides, by, limits, now };
        let done = self
            .0
            .store()
            .retry_write("delete_rack", delete, |delete, tx| Box::pin(delete.run(tx)));
        self.0.trace_refusal(rack.as_str(), (&actor, "delete"), done.await)
    }
}

impl Racks {
    /// Describes the reaction of a rack to a change of its record, for a dry run.
    pub async fn predict_rediscovery(&self, rack: &Rack) -> Result<String> {
        let loaded =
            self.0.store().read(rack.id(), |id, tx| Box::pin(load_devices(tx, id))).await?;
        let there = Counts::of(loaded.iter().map(|device| &device.target));
        Ok(rack.predict_rediscovery(there, &loaded))
    }
}

pub(crate) fn no_rack(id: &RackId) -> Refusal {
    unknown(&TargetId::from(id))
}

/// The devices of a rack. A device whose record cannot be read is listed as unreadable.
pub(crate) async fn load_devices(tx: &mut Tx, rack: &RackId) -> Result<Vec<RackDevice>> {
    let mut devices = Vec::new();
    let serving = tx.nodes_in_service(rack).await?;
    for (id, machine) in tx.machines_in_rack(rack).await? {
        let observed = |machine: &Machine| RackDevice::of_machine(machine, serving.get(&id));
        devices.push(device_or_unreadable(TargetId::from(&id), machine, observed));
    }
    for (id, switch) in tx.records_in_rack(rack).await? {
        devices.push(device_or_unreadable(
            TargetId::new(TargetKind::Switch, id),
            switch,
            RackDevice::of_switch,
        ));
    }
    for (id, shelf) in tx.records_in_rack(rack).await? {
        devices.push(device_or_unreadable(
            TargetId::new(TargetKind::PowerShelf, id),
            shelf,
            RackDevice::of_shelf,
        ));
    }
    Ok(devices)
}

fn device_or_unreadable<T>(
    id: TargetId,
    found: Result<T>,
    observed: impl Fn(&T) -> RackDevice,
) -> RackDevice {
    match found {
        Ok(one) => observed(&one),
        Err(error) => RackDevice::unreadable(id, &error.to_string()),
    }
}

/// Loads the input of a rack's turn. Its devices are only read when the turn decides about them.
pub(crate) async fn load_turn_input(
    tx: &mut Tx,
    rack: &Rack,
    fresh: RunId,
    limits: RackLimits,
) -> Result<RackTurnInput> {
    let discovers = matches!(rack.state, RackState::Discovering);
    let pending = rack.reprovision_requested.is_some() || !rack.maintenance_requested.is_empty();
    let devices = match discovers || pending {
        true => load_devices(tx, &rack.id()).await?,
        false => Vec::new(),
    };
    let firmware = match discovers {
        true => resolve_firmware(tx, rack, None).await?,
        false => FirmwareResolution::Skip(String::new()),
    };
    let operations = load_operations(tx, rack, &devices).await?;
    Ok(RackTurnInput { fresh, devices, operations, firmware, limits })
}

async fn load_operations(
    tx: &mut Tx,
    rack: &Rack,
    devices: &[RackDevice],
) -> Result<Vec<RackOperation>> {
    let waiting = rack.maintenance_requested.iter().chain(&rack.reprovision_requested);
    let mut operations = Vec::new();
    for id in rack.active.iter().chain(waiting) {
        operations.extend(load_operation(tx, rack, id, devices).await?);
    }
    Ok(operations)
}

async fn load_operation(
    tx: &mut Tx,
    rack: &Rack,
    id: &RunId,
    devices: &[RackDevice],
) -> Result<Option<RackOperation>> {
    let Some(run) = tx.run(id).await? else { return Ok(None) };
    let at_work = run.ended() && has_active_children(tx, &run).await?;
    let failed = failed_child(tx, &run).await?;
    let mut operation = RackOperation::of(&run, at_work, failed.as_ref());
    if operation.stopped_switching() {
        operation.set_power(&load_device_power(tx, &run.spec.held_targets).await?);
    }
    if !rack.active.contains(id) {
        operation.against = admit_resume(&run, devices).err().map(|refusal| refusal.message);
    }
    Ok(Some(operation))
}

/// The active operation that waits longest, and its explanation. One that cannot be read is left
/// out.
async fn slowest_operation(
    tx: &mut Tx,
    active: &[RunId],
    now: Timestamp,
) -> Result<Option<(RunId, Explanation)>> {
    let mut found = Vec::new();
    for id in active {
        match explain_operation(tx, id, now).await {
            Err(StoreError::Corrupt(_)) => {}
            explained => found.extend(explained?.map(|explanation| (id.clone(), explanation))),
        }
    }
    Ok(found.into_iter().min_by_key(|(_, explanation)| explanation.since))
}

async fn explain_operation(tx: &mut Tx, id: &RunId, now: Timestamp) -> Result<Option<Explanation>> {
    let Some(run) = tx.run(id).await?.filter(|run| !run.ended()) else { return Ok(None) };
    // The agents of nodes take no part in the operations of a rack.
    let contacts = peer_contacts(tx, Some(&run), None, Duration::ZERO).await?;
    let context = RunContext { contacts: Some(&contacts), ..RunContext::default() };
    Ok(Some(explain_run(&run, context, now)))
}

/// The firmware that a maintenance of the rack uses.
pub(crate) async fn resolve_firmware(
    tx: &mut Tx,
    rack: &Rack,
    named: Option<&model::id::FirmwareId>,
) -> Result<FirmwareResolution> {
    let kind = rack.spec.hardware_type.as_str();
    let found = match named {
        Some(id) => tx.firmware(id).await?,
        None => None,
    };
    let default = tx.default_firmware(kind).await?;
    Ok(resolve(named, found, default, kind))
}

async fn create(tx: &mut Tx, desired: &RackDescription, by: &str, now: Timestamp) -> Result<Rack> {
    let RackDescription { id, labels, spec } = desired.clone();
    if let Some(known) = tx.record::<Rack>(id.as_str()).await? {
        if known.spec == spec && known.head.labels == labels && !known.head.deleted {
            return Ok(known);
        }
        let message = format!("{id} exists already, and is desired in another way");
        return Err(Refusal::new(Reason::RackExists, message)
            .next(format!("farrier rack get {id}   # or: farrier rack update {id} …"))
            .into());
    }
    let mut rack = Rack::new(RecordHeader::new(id.as_str(), labels, now), spec);
    let event = event(Cause::Request, by, "created".into(), here!(), now);
    tx.insert_record(&mut rack, &event).await?;
    Ok(rack)
}

async fn load_view(
    tx: &mut Tx,
    id: &RackId,
    limits: RackLimits,
    now: Timestamp,
) -> Result<RackView> {
    let found = tx.record::<Rack>(id.as_str()).await?;
    let rack = found.ok_or_else(|| no_rack(id))?;
    build_view(tx, rack, limits, now).await
}

async fn build_view(
    tx: &mut Tx,
    rack: Rack,
    limits: RackLimits,
    now: Timestamp,
) -> Result<RackView> {
    let fresh = RunId::new(now, 0);
    let firmware = resolve_firmware(tx, &rack, None).await?;
    let mut devices = load_devices(tx, &rack.id()).await?;
    for device in &mut devices {
        if let Some(machine) = device.target.machine() {
            device.power = power::load_machine_power(tx, &machine).await?;
        }
    }
    let (mut operations, mut unreadable) = (Vec::new(), Vec::new());
    let waiting = rack.maintenance_requested.iter().chain(&rack.reprovision_requested);
    for id in rack.active.iter().chain(waiting) {
        match load_operation(tx, &rack, id, &devices).await {
            Err(StoreError::Corrupt(row)) => unreadable.push(row.to_string()),
            found => operations.extend(found?),
        }
    }
    let observed = RackTurnInput { fresh, devices, operations, firmware, limits };
    let waits_for = match unreadable.as_slice() {
        [] => rack.waits_for(&observed, now),
        // Its lifecycle does not move before they can be read.
        rows => format!("a person: an operation cannot be read ({})", rows.join("; ")),
    };
    let RackTurnInput { devices, operations, .. } = observed;
    let not_ingested = rack.list_not_ingested(&devices);
    Ok(RackView { rack, devices, operations, waits_for, not_ingested, unreadable })
}

fn check_rack_version(rack: &Rack, expected: Option<i64>) -> Result<()> {
    let next = TargetId::from(&rack.id()).show_command();
    Ok(check_version(&rack.head.id, rack.head.version, expected, next)?)
}

struct UpdateRack {
    id: RackId,
    change: Change<Rack, RackDescription>,
    version: Option<i64>,
    by: String,
    now: Timestamp,
}

impl UpdateRack {
    async fn run(&self, tx: &mut Tx) -> Result<Rack> {
        let found = tx.record_locked::<Rack>(self.id.as_str()).await?;
        let mut rack = found.ok_or_else(|| no_rack(&self.id))?;
        check_rack_version(&rack, self.version)?;
        let RackDescription { labels, spec, .. } = (self.change)(&rack)?;
        if rack.head.labels == labels && rack.spec == spec {
            return Ok(rack);
        }
        // A rack that lacked devices may now have all that the new counts expect.
        let lacked = match &rack.state {
            RackState::Error { cause } => cause.phase == RackFailurePhase::Discovery,
            RackState::Created
            | RackState::Discovering
            | RackState::Maintenance { .. }
            | RackState::Validating
            | RackState::Ready
            | RackState::Deleting => false,
        };
        rack.topology_changed |= lacked && rack.spec.expected != spec.expected;
        rack.head.labels = labels;
        rack.spec = spec;
        let message = "labels, hardware type, expected counts or location changed".into();
        let event = event(Cause::Request, &self.by, message, here!(), self.now);
        tx.update_and_enqueue(&mut rack, &event)?;
        Ok(rack)
    }
}

struct DeleteRack {
    id: RackId,
    version: Option<i64>,
    overrides: Overrides,
    by: String,
    limits: RackLimits,
    now: Timestamp,
}

impl DeleteRack {
    async fn run(&self, tx: &mut Tx) -> Result<RackView> {
        let found = tx.record_locked::<Rack>(self.id.as_str()).await?;
        let mut rack = found.ok_or_else(|| no_rack(&self.id))?;
        check_rack_version(&rack, self.version)?;
        let devices = load_devices(tx, &self.id).await?;
        check_empty(&self.id, devices.len(), &self.overrides)?;
        let refusing = gate_of(&check_empty(&self.id, devices.len(), &Overrides::default()));
        let note = self.overrides.history_note(&self.by, refusing.as_slice());
        let message = format!("to be deleted{note}");
        let before = build_view(tx, rack.clone(), self.limits, self.now).await?;
        let event = event(Cause::Request, &self.by, message, here!(), self.now);
        take_out_devices(tx, &devices, &event).await?;
        if !rack.head().deleted {
            rack.head_mut().deleted = true;
            tx.update_and_enqueue(&mut rack, &event)?;
        }
        let after = build_view(tx, rack, self.limits, self.now).await?;
        Ok(RackView { devices: before.devices, ..after })
    }
}
