//! The service for racks. Each change is one transaction with its event; `maintain` starts
//! operations, `status` reports them.

mod maintain;
mod power;
mod status;

pub use maintain::{MaintenanceStart, MaintenanceStarted, Preview};
pub use status::{LegStatus, MaintenanceStatus, PartStatus};

pub(crate) use maintain::{begun, reopen};
pub(crate) use power::power_of;

use crate::Engine;
use crate::admission::event;
use crate::claims::unknown;
use crate::explain::Explained;
use crate::fan_out::{failed_part, has_parts_at_work};
use crate::topology::clear_out;
use model::firmware::{Resolution, resolve};
use model::here;
use model::id::{RackId, RunId};
use model::lifecycle::{Head, Lifecycle};
use model::machine::Labels;
use model::machine::Machine;
use model::rack::maintenance::{Limits, may_go_on};
use model::rack::{Device, During, Operation, Rack, RackSpec, RackState, Seen, explain};
use model::refusal::{Refusal, RefusalKind};
use model::target::{TargetId, TargetKind};
use model::time::Timestamp;
use store::{Cause, RecordFilter, RecordPage, Result, Tx};

/// A rack as the operator describes it.
#[derive(Debug, Clone)]
pub struct DescribedRack {
    pub id: RackId,
    pub labels: Labels,
    pub spec: RackSpec,
}

/// A rack with its devices and active operations.
#[derive(Debug, Clone)]
pub struct RackView {
    pub rack: Rack,
    /// Ordered by kind and id.
    pub devices: Vec<Device>,
    pub operations: Vec<Operation>,
    pub waits_for: String,
}

/// The filter of a list.
#[derive(Debug, Clone, Default)]
pub struct RackFilter {
    pub records: RecordFilter,
    /// Any of these; empty: all.
    pub hardware_types: Vec<String>,
}

/// Racks: their inventory and their operations.
#[derive(Clone)]
pub struct Racks(pub(crate) Engine);

impl Racks {
    /// Creates a rack. Idempotent: the same description returns the existing rack.
    pub async fn create(&self, described: DescribedRack, by: String) -> Result<Rack> {
        let input = (described, by, self.0.now());
        self.0
            .store()
            .retry_write("create_rack", input, |(described, by, now), tx| {
                Box::pin(create(tx, described, by, *now))
            })
            .await
    }

    pub async fn get(&self, id: &RackId) -> Result<RackView> {
        let input = (id.clone(), self.0.settings().racks, self.0.now());
        self.0
            .store()
            .read(input, |(id, limits, now), tx| Box::pin(view_of(tx, id, *limits, *now)))
            .await
    }

    /// Why a rack is as it is.
    pub(crate) async fn explain(&self, id: &RackId) -> Result<Explained> {
        let view = self.get(id).await?;
        let told = explain(&view.rack, &view.waits_for, self.0.now());
        let run_id = view.rack.active.first().cloned();
        Ok(Explained { told, machine_id: None, run_id, held_by: None, hindrance: None })
    }

    /// A page of racks in the order of their ids, after the id `after`.
    pub async fn list(
        &self,
        filter: RackFilter,
        after: Option<String>,
        limit: usize,
    ) -> Result<RecordPage<Rack>> {
        let input = (filter, after, limit);
        self.0
            .store()
            .read(input, |(filter, after, limit), tx| {
                Box::pin(list(tx, filter, after.clone(), *limit))
            })
            .await
    }

    /// Replaces labels, hardware type and expected counts, if `version` is the current one or none.
    pub async fn update(
        &self,
        described: DescribedRack,
        version: Option<i64>,
        by: String,
    ) -> Result<Rack> {
        let input = (described, version, by, self.0.now());
        self.0
            .store()
            .retry_write("update_rack", input, |(described, version, by, now), tx| {
                Box::pin(update(tx, described, *version, by, *now))
            })
            .await
    }

    /// Marks a rack for deletion. Devices in it make this fail, or `force` takes them out; the
    /// answer lists them.
    pub async fn delete(&self, id: RackId, force: bool, by: String) -> Result<RackView> {
        let delete = Delete { id, force, by, limits: self.0.settings().racks, now: self.0.now() };
        self.0
            .store()
            .retry_write("delete_rack", delete, |delete, tx| Box::pin(delete.run(tx)))
            .await
    }
}

pub(crate) fn no_rack(id: &RackId) -> Refusal {
    unknown(&TargetId::from(id))
}

/// The devices of a rack. A device whose record cannot be read is listed as unreadable.
pub(crate) async fn devices_of(tx: &mut Tx, rack: &RackId) -> Result<Vec<Device>> {
    let mut devices = Vec::new();
    let serving = tx.serving_in_rack(rack).await?;
    for (id, machine) in tx.machines_in_rack(rack).await? {
        let seen = |machine: &Machine| Device::of_machine(machine, serving.get(&id));
        devices.push(shown(TargetId::from(&id), machine, seen));
    }
    for (id, switch) in tx.records_in_rack(rack).await? {
        devices.push(shown(TargetId::new(TargetKind::Switch, id), switch, Device::of_switch));
    }
    for (id, shelf) in tx.records_in_rack(rack).await? {
        devices.push(shown(TargetId::new(TargetKind::PowerShelf, id), shelf, Device::of_shelf));
    }
    Ok(devices)
}

fn shown<T>(id: TargetId, found: Result<T>, seen: impl Fn(&T) -> Device) -> Device {
    match found {
        Ok(one) => seen(&one),
        Err(error) => Device::unreadable(id, &error.to_string()),
    }
}

/// Loads the input of a rack's turn. Its devices are only read when the turn decides about them.
pub(crate) async fn look(tx: &mut Tx, rack: &Rack, fresh: RunId, limits: Limits) -> Result<Seen> {
    let discovers = matches!(rack.state, RackState::Discovering);
    let pending = rack.reprovision_requested.is_some() || !rack.maintenance_requested.is_empty();
    let devices = match discovers || pending {
        true => devices_of(tx, &rack.id()).await?,
        false => Vec::new(),
    };
    let firmware = match discovers {
        true => resolution(tx, rack, None).await?,
        false => Resolution::Skip(String::new()),
    };
    let operations = operations(tx, rack, &devices).await?;
    Ok(Seen { fresh, devices, operations, firmware, limits })
}

async fn operations(tx: &mut Tx, rack: &Rack, devices: &[Device]) -> Result<Vec<Operation>> {
    let waiting = rack.maintenance_requested.iter().chain(&rack.reprovision_requested);
    let mut operations = Vec::new();
    for id in rack.active.iter().chain(waiting) {
        let Some(run) = tx.run(id).await? else { continue };
        let at_work = run.ended() && has_parts_at_work(tx, &run).await?;
        let failed = failed_part(tx, &run).await?;
        let mut operation = Operation::of(&run, at_work, failed.as_ref());
        if operation.stopped_switching() {
            operation.tell_power(&power_of(tx, &run.spec.claims).await?);
        }
        if !rack.active.contains(id) {
            operation.against = may_go_on(&run, devices).err().map(|refusal| refusal.said);
        }
        operations.push(operation);
    }
    Ok(operations)
}

/// The firmware that a maintenance of the rack uses.
pub(crate) async fn resolution(
    tx: &mut Tx,
    rack: &Rack,
    named: Option<&model::id::FirmwareId>,
) -> Result<Resolution> {
    let kind = rack.spec.hardware_type.as_str();
    let found = match named {
        Some(id) => tx.firmware(id).await?,
        None => None,
    };
    let default = tx.default_firmware(kind).await?;
    Ok(resolve(named, found, default, kind))
}

async fn create(tx: &mut Tx, described: &DescribedRack, by: &str, now: Timestamp) -> Result<Rack> {
    let DescribedRack { id, labels, spec } = described.clone();
    if let Some(known) = tx.record::<Rack>(id.as_str()).await? {
        if known.spec == spec && known.head.labels == labels && !known.head.deleted {
            return Ok(known);
        }
        let said = format!("{id} exists already, and is described in another way");
        return Err(Refusal::new(RefusalKind::Exists, "RACK_EXISTS", said)
            .next(format!("farrier rack get {id}   # or: farrier rack update {id} …"))
            .into());
    }
    let mut rack = Rack::new(Head::new(id.as_str(), labels, now), spec);
    let event = event(Cause::Request, by, "created".into(), here!(), now);
    tx.insert_record(&mut rack, &event).await?;
    Ok(rack)
}

async fn view_of(tx: &mut Tx, id: &RackId, limits: Limits, now: Timestamp) -> Result<RackView> {
    let found = tx.record::<Rack>(id.as_str()).await?;
    let rack = found.ok_or_else(|| no_rack(id))?;
    view(tx, rack, limits, now).await
}

async fn view(tx: &mut Tx, rack: Rack, limits: Limits, now: Timestamp) -> Result<RackView> {
    let fresh = RunId::new(now, 0);
    let firmware = resolution(tx, &rack, None).await?;
    let mut devices = devices_of(tx, &rack.id()).await?;
    for device in &mut devices {
        if let Some(machine) = device.target.machine() {
            device.power = power::of_machine(tx, &machine).await?;
        }
    }
    let operations = operations(tx, &rack, &devices).await?;
    let seen = Seen { fresh, devices, operations, firmware, limits };
    let waits_for = rack.waits_for(&seen, now);
    let Seen { devices, operations, .. } = seen;
    Ok(RackView { rack, devices, operations, waits_for })
}

async fn list(
    tx: &mut Tx,
    filter: &RackFilter,
    mut after: Option<String>,
    limit: usize,
) -> Result<RecordPage<Rack>> {
    let wanted = |rack: &Rack| {
        let types = &filter.hardware_types;
        types.is_empty() || types.contains(&rack.spec.hardware_type)
    };
    let mut records: Vec<Rack> = Vec::new();
    // The hardware type is filtered here, so pages are read until the result is full.
    loop {
        let page = tx.records::<Rack>(&filter.records, after.as_deref(), limit).await?;
        let more = page.next.is_some();
        for rack in page.records {
            after = Some(rack.head.id.clone());
            if !wanted(&rack) {
                continue;
            }
            if records.len() == limit {
                let next = records.last().map(|last| last.head.id.clone());
                return Ok(RecordPage { records, next });
            }
            records.push(rack);
        }
        if !more {
            return Ok(RecordPage { records, next: None });
        }
    }
}

async fn update(
    tx: &mut Tx,
    described: &DescribedRack,
    expected: Option<i64>,
    by: &str,
    now: Timestamp,
) -> Result<Rack> {
    let DescribedRack { id, labels, spec } = described.clone();
    let found = tx.record_locked::<Rack>(id.as_str()).await?;
    let mut rack = found.ok_or_else(|| no_rack(&id))?;
    if let Some(version) = expected.filter(|version| *version != rack.head.version) {
        let said = format!(
            "{id} is at version {} by now, and this change was made from version {version}",
            rack.head.version
        );
        let refusal = Refusal::precondition("VERSION_MOVED", said);
        return Err(refusal.next(format!("farrier rack get {id}")).into());
    }
    if rack.head.labels == labels && rack.spec == spec {
        return Ok(rack);
    }
    // A rack that lacked devices may now have all that the new counts expect.
    let lacked = match &rack.state {
        RackState::Error { cause } => cause.during == During::Discovery,
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
    let message = "labels, hardware type or expected counts changed".into();
    let event = event(Cause::Request, by, message, here!(), now);
    tx.update_and_enqueue(&mut rack, &event)?;
    Ok(rack)
}

struct Delete {
    id: RackId,
    force: bool,
    by: String,
    limits: Limits,
    now: Timestamp,
}

impl Delete {
    async fn run(&self, tx: &mut Tx) -> Result<RackView> {
        let found = tx.record_locked::<Rack>(self.id.as_str()).await?;
        let mut rack = found.ok_or_else(|| no_rack(&self.id))?;
        let devices = devices_of(tx, &self.id).await?;
        if !devices.is_empty() && !self.force {
            let said = format!(
                "{} devices stand in {}: take them out first, or have them taken out by force",
                devices.len(),
                self.id
            );
            let refusal = Refusal::precondition("RACK_NOT_EMPTY", said);
            return Err(refusal.next(format!("farrier rack delete {} --force", self.id)).into());
        }
        let before = view(tx, rack.clone(), self.limits, self.now).await?;
        let event = event(Cause::Request, &self.by, "to be deleted".into(), here!(), self.now);
        clear_out(tx, &devices, &event).await?;
        if !rack.head().deleted {
            rack.head_mut().deleted = true;
            tx.update_and_enqueue(&mut rack, &event)?;
        }
        let after = view(tx, rack, self.limits, self.now).await?;
        Ok(RackView { devices: before.devices, ..after })
    }
}
