//! Component firmware: one request upgrades several devices. Power shelves are upgraded directly,
//! all or none in one transaction; machines and switches by their rack.

mod by_rack;

use crate::Engine;
use crate::admission::{Admission, Created, Holds, event, reused};
use crate::firmware::no_firmware;
use crate::holds::unknown;
use crate::rack::MaintenancePreview;
use crate::run::previewed_steps;
use model::component::{
    MAX_DEVICES, UpgradeCandidate, UpgradePath, admit_shelf, choose_upgrade_path,
    refuse_all_if_any_refused,
};
use model::effect::DeviceFacts;
use model::filter::{Filter, FilterValues};
use model::firmware::{FIRMWARE, Firmware, FirmwareResolution, resolve};
use model::gate::{Gate, Overrides, gate_of};
use model::here;
use model::host::Host;
use model::id::{FirmwareId, MachineId, RackId, RunId};
use model::lifecycle::{NewRun, RecordHeader, SubjectId, SubjectKind};
use model::plan::{Params, RunType};
use model::power_shelf::PowerShelf;
use model::rack::Rack;
use model::rack::maintenance::{
    RequestedActivity, add_request_metadata, initiator, request_from_params,
};
use model::refusal::Refusal;
use model::run::PreviewedStep;
use model::switch::Switch;
use model::target::{TargetId, TargetKind};
use model::time::Timestamp;
use std::collections::BTreeMap;
use store::{Cause, Enqueue, Result, StoreError, Tx};

/// The most catalogue records shown for one hardware type.
const MAX_VERSIONS: i64 = 200;

/// A request to upgrade the firmware of several devices.
#[derive(Debug, Clone)]
pub struct FirmwareUpdate {
    pub targets: Vec<TargetId>,
    /// None: the default of each device's rack.
    pub firmware: Option<FirmwareId>,
    pub request_id: String,
    pub by: String,
    /// The ticket that tracks it; may be empty.
    pub reference: String,
    pub overrides: Overrides,
    pub dry_run: bool,
}

/// The result for one device.
#[derive(Debug, Clone)]
pub struct FirmwareUpdateResult {
    pub target: TargetId,
    pub rack: Option<RackId>,
    pub outcome: UpdateOutcome,
    /// Dry run only: the planned operation on the rack, and every refusal.
    pub preview: Option<MaintenancePreview>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpdateOutcome {
    /// The operation that upgrades it.
    Started(RunId),
    /// Dry run only: the planned steps, with their time.
    Planned(Vec<PreviewedStep>),
    Refused(Refusal),
}

/// Installed and desired firmware of a device.
#[derive(Debug, Clone)]
pub struct ComponentStatus {
    pub device: UpgradeCandidate,
    /// One entry per component.
    pub differs: Vec<String>,
}

/// The catalogue records that fit a device.
#[derive(Debug, Clone)]
pub struct ComponentVersions {
    pub target: TargetId,
    pub hardware_type: String,
    pub facts: DeviceFacts,
    pub firmware: Vec<Firmware>,
}

impl FilterValues for ComponentVersions {
    fn values_of(&self, field: &str) -> Vec<String> {
        match field {
            "device_id" => vec![self.target.id.clone()],
            "device_type" => vec![self.target.kind.as_str().into()],
            "hardware_type" => vec![self.hardware_type.clone()],
            _ => Vec::new(),
        }
    }
}

/// A page of the devices of a request, in the order of the request.
#[derive(Debug, Clone)]
pub struct ComponentQuery {
    pub targets: Vec<TargetId>,
    pub filter: Filter,
    /// The key of the last device of the page before.
    pub after: Option<String>,
    pub limit: usize,
}

/// Firmware upgrades of several devices.
#[derive(Clone)]
pub struct Components(pub(crate) Engine);

impl Components {
    pub async fn update(&self, update: FirmwareUpdate) -> Result<Vec<FirmwareUpdateResult>> {
        let targets = checked(&update.targets)?;
        let update = FirmwareUpdate { targets, ..update };
        if let Some(id) = &update.firmware {
            self.0.firmware().get(id).await?;
        }
        let shelf = |target: &&TargetId| target.kind == TargetKind::PowerShelf;
        let shelves: Vec<TargetId> = update.targets.iter().filter(shelf).cloned().collect();
        let others: Vec<TargetId> =
            update.targets.iter().filter(|target| !shelf(target)).cloned().collect();
        let mut done: BTreeMap<TargetId, FirmwareUpdateResult> = BTreeMap::new();
        for one in self.update_by_racks(&update, others).await? {
            done.insert(one.target.clone(), one);
        }
        for one in self.update_shelves(&update, shelves).await? {
            done.insert(one.target.clone(), one);
        }
        let engine = self.0.with_dry_run(update.dry_run);
        for one in done.values() {
            if let UpdateOutcome::Refused(refusal) = &one.outcome {
                engine.note_refusal(one.target.as_str(), (&update.by, FIRMWARE), refusal);
            }
        }
        // In the order of the request.
        Ok(update.targets.iter().filter_map(|target| done.remove(target)).collect())
    }

    async fn update_shelves(
        &self,
        update: &FirmwareUpdate,
        shelves: Vec<TargetId>,
    ) -> Result<Vec<FirmwareUpdateResult>> {
        if shelves.is_empty() {
            return Ok(Vec::new());
        }
        let start = UpdateShelves {
            update: FirmwareUpdate { targets: shelves, ..update.clone() },
            random: self.0.random(),
            now: self.0.now(),
        };
        let engine = self.0.with_dry_run(update.dry_run);
        engine.admit("update_shelves", None, start, |start, tx| Box::pin(start.run(tx))).await
    }

    /// Installed and desired firmware of each device.
    pub async fn status(
        &self,
        targets: &[TargetId],
        firmware: Option<FirmwareId>,
    ) -> Result<Vec<ComponentStatus>> {
        let targets = checked(targets)?;
        let input = (targets, firmware);
        self.0
            .store()
            .read(input, |(targets, firmware), tx| Box::pin(status(tx, targets, firmware.as_ref())))
            .await
    }

    /// The catalogue records that fit each device.
    pub async fn versions(&self, query: ComponentQuery) -> Result<Vec<ComponentVersions>> {
        let query = ComponentQuery { targets: checked(&query.targets)?, ..query };
        self.0.store().read(query, |query, tx| Box::pin(versions(tx, query))).await
    }
}

/// Removes duplicates, keeping the order of the request.
fn checked(targets: &[TargetId]) -> Result<Vec<TargetId>> {
    let mut unique: Vec<TargetId> = Vec::new();
    for target in targets {
        if !unique.contains(target) {
            unique.push(target.clone());
        }
    }
    match unique.len() {
        0 => Err(Refusal::missing("compute_trays, switches or power_shelves").into()),
        count if count > MAX_DEVICES => {
            let problem = format!("name {count} devices");
            let instead = format!("name at most {MAX_DEVICES}");
            Err(Refusal::invalid("targets", problem, instead).into())
        }
        _ => Ok(unique),
    }
}

async fn find(tx: &mut Tx, target: &TargetId, query: &DeviceQuery<'_>) -> Result<UpgradeCandidate> {
    let missing = || StoreError::from(unknown(target));
    let id = target.as_str();
    let mut refusing = None;
    let (rack, facts, active_run, gate) = match target.kind {
        TargetKind::Machine => {
            let machine = tx.machine(&MachineId::trusted(id)).await?.ok_or_else(missing)?;
            let host = tx.record::<Host>(id).await?;
            let facts = host.map(|host| host.facts).unwrap_or_default();
            (machine.spec.rack, facts, machine.active_run, Ok(()))
        }
        TargetKind::Switch => {
            let switch = tx.record::<Switch>(id).await?.ok_or_else(missing)?;
            let RecordHeader { rack, active_run, .. } = switch.head;
            (rack, switch.facts, active_run, Ok(()))
        }
        TargetKind::PowerShelf => {
            let found = match query.lock {
                true => tx.record_locked::<PowerShelf>(id).await?,
                false => tx.record::<PowerShelf>(id).await?,
            };
            let shelf = found.ok_or_else(missing)?;
            let gate = admit_shelf(&shelf, query.overrides);
            refusing = gate_of(&admit_shelf(&shelf, &Overrides::default()));
            (shelf.head.rack, shelf.facts, shelf.head.active_run, gate)
        }
        TargetKind::Rack => return Err(missing()),
    };
    let requested = desired_firmware(tx, rack.as_ref(), query.firmware).await?;
    let made = match query.request_id {
        "" => None,
        request_id => made(tx, target, rack.as_ref(), (request_id, query.firmware)).await?,
    };
    Ok(UpgradeCandidate {
        target: target.clone(),
        rack,
        facts,
        active_run,
        desired: requested,
        gate,
        refusing,
        existing_run: made,
    })
}

/// The parameters of a request that apply to every device.
struct DeviceQuery<'a> {
    firmware: Option<&'a FirmwareId>,
    /// Empty: do not look for an earlier run.
    request_id: &'a str,
    overrides: &'a Overrides,
    /// True if the rows of power shelves are locked.
    lock: bool,
}

/// The run that this request has started before, on the device or on its rack. A different request
/// with the same id is refused: here, or by the rack.
async fn made(
    tx: &mut Tx,
    target: &TargetId,
    rack: Option<&RackId>,
    (request_id, firmware): (&str, Option<&FirmwareId>),
) -> Result<Option<RunId>> {
    if let Some(run) = tx.run_of_request(target, request_id).await? {
        return match run.spec.run_type == RunType::Firmware {
            true => Ok(Some(run.spec.id)),
            false => Err(reused(&run).into()),
        };
    }
    let Some(rack) = rack else { return Ok(None) };
    let run = tx.run_of_request(&TargetId::from(rack), request_id).await?;
    let requested = [RequestedActivity::FirmwareUpgrade(firmware.cloned())];
    let of_this = run.filter(|run| {
        run.spec.held_targets.contains(target)
            && request_from_params(&run.spec.params).activities == requested
    });
    Ok(of_this.map(|run| run.spec.id))
}

/// The desired firmware: the named one, or the default of the rack's hardware type.
pub(crate) async fn desired_firmware(
    tx: &mut Tx,
    rack: Option<&RackId>,
    named: Option<&FirmwareId>,
) -> Result<FirmwareResolution> {
    let hardware_type = hardware_type(tx, rack).await?;
    if let Some(id) = named {
        return Ok(resolve(named, tx.firmware(id).await?, None, &hardware_type));
    }
    if hardware_type.is_empty() {
        let message =
            "it stands in no rack with a hardware type, so there is no default firmware for it";
        return Ok(FirmwareResolution::Skip(message.into()));
    }
    let default = tx.default_firmware(&hardware_type).await?;
    Ok(resolve(None, None, default, &hardware_type))
}

async fn hardware_type(tx: &mut Tx, rack: Option<&RackId>) -> Result<String> {
    let rack = match rack {
        Some(id) => tx.record::<Rack>(id.as_str()).await?,
        None => None,
    };
    Ok(rack.map(|rack| rack.spec.hardware_type).unwrap_or_default())
}

struct UpdateShelves {
    update: FirmwareUpdate,
    random: u64,
    now: Timestamp,
}

impl UpdateShelves {
    async fn run(&self, tx: &mut Tx) -> Result<(Vec<FirmwareUpdateResult>, Created)> {
        let mut created = Created::default();
        let update = &self.update;
        let request = DeviceQuery {
            firmware: update.firmware.as_ref(),
            request_id: &update.request_id,
            overrides: &update.overrides,
            lock: true,
        };
        let mut racks = BTreeMap::new();
        let mut courses = Vec::new();
        let mut targets = update.targets.clone();
        // The same lock order everywhere, so no deadlock.
        targets.sort();
        for target in targets {
            let plan = match find(tx, &target, &request).await {
                Ok(device) => {
                    let plan = choose_upgrade_path(&device);
                    racks.insert(target.clone(), (device.rack, device.refusing));
                    plan
                }
                Err(StoreError::Refused(refusal)) => UpgradePath::Refused(refusal),
                Err(error) => return Err(error),
            };
            courses.push((target, plan));
        }
        let mut done = Vec::new();
        for (index, (target, plan)) in refuse_all_if_any_refused(courses).into_iter().enumerate() {
            let (rack, refusing) = racks.remove(&target).unwrap_or_default();
            let outcome = match plan {
                UpgradePath::Direct(firmware) => {
                    let run = self.new_run(&target, &firmware, index as u64);
                    self.start(tx, run, (&firmware, refusing), &mut created).await?
                }
                UpgradePath::AlreadyStarted(run) => UpdateOutcome::Started(run),
                UpgradePath::Refused(refusal) => UpdateOutcome::Refused(refusal),
                UpgradePath::ByRack(rack) => {
                    UpdateOutcome::Refused(unknown(&TargetId::from(&rack)))
                }
            };
            done.push(FirmwareUpdateResult { target, rack, outcome, preview: None });
        }
        Ok((done, created))
    }
}

impl UpdateShelves {
    async fn start(
        &self,
        tx: &mut Tx,
        new: NewRun,
        (firmware, refusing): (&Firmware, Option<Gate>),
        created: &mut Created,
    ) -> Result<UpdateOutcome> {
        let FirmwareUpdate { by, overrides, dry_run, .. } = &self.update;
        let note = overrides.history_note(by, refusing.as_slice());
        let message = format!("FIRMWARE {} accepted for {}{note}", firmware.id, new.initiator);
        let event = &event(Cause::Request, by, message, here!(), self.now);
        let (run, enqueue) = (new.into_run(self.now), Enqueue::Now);
        let holds = Holds::Targets { own: None };
        let run = created.add(tx, Admission { run, enqueue, holds, event }).await?;
        Ok(match dry_run {
            true => UpdateOutcome::Planned(previewed_steps(tx, &run).await?),
            false => UpdateOutcome::Started(run.spec.id),
        })
    }

    fn new_run(&self, target: &TargetId, firmware: &Firmware, index: u64) -> NewRun {
        let FirmwareUpdate { by, request_id, reference, overrides, .. } = &self.update;
        let id = RunId::new(self.now, self.random.wrapping_add(index << 32));
        let mut params = Params::from([(FIRMWARE.to_string(), firmware.id.to_string())]);
        add_request_metadata(&mut params, overrides, reference);
        NewRun {
            id: id.clone(),
            target: target.clone(),
            run_type: RunType::Firmware,
            steps: firmware.steps(target.kind),
            request_id: if request_id.is_empty() { id.to_string() } else { request_id.clone() },
            initiator: initiator(by, reference),
            part_of: None,
            reports_to: Some(SubjectId::new(SubjectKind::PowerShelf, target.as_str())),
            claims: Vec::new(),
            params,
        }
    }
}

async fn status(
    tx: &mut Tx,
    targets: &[TargetId],
    firmware: Option<&FirmwareId>,
) -> Result<Vec<ComponentStatus>> {
    let overrides = &Overrides::default();
    let request = DeviceQuery { firmware, request_id: "", overrides, lock: false };
    let mut all = Vec::new();
    for target in targets {
        let device = find(tx, target, &request).await?;
        let differs = match &device.desired {
            FirmwareResolution::Use(one) => one.missing_on(target.kind, &device.facts.firmware),
            FirmwareResolution::Skip(why) => vec![why.clone()],
            FirmwareResolution::Unknown(id) => vec![no_firmware(id).message],
        };
        all.push(ComponentStatus { device, differs });
    }
    Ok(all)
}

async fn versions(tx: &mut Tx, query: &ComponentQuery) -> Result<Vec<ComponentVersions>> {
    let after = query.after.as_ref();
    let last = after.and_then(|key| query.targets.iter().position(|one| one.key() == *key));
    let overrides = &Overrides::default();
    let request = DeviceQuery { firmware: None, request_id: "", overrides, lock: false };
    let mut catalogue: BTreeMap<String, Vec<Firmware>> = BTreeMap::new();
    let mut all = Vec::new();
    for target in query.targets.iter().skip(last.map_or(0, |last| last + 1)) {
        let device = find(tx, target, &request).await?;
        let hardware_type = hardware_type(tx, device.rack.as_ref()).await?;
        if !catalogue.contains_key(&hardware_type) {
            let filter = Filter::named("hardware_type", &hardware_type);
            let found = tx.firmware_list(&filter, "", MAX_VERSIONS).await?;
            catalogue.insert(hardware_type.clone(), found.items);
        }
        let known = catalogue.get(&hardware_type).cloned().unwrap_or_default();
        let fits = |one: &Firmware| !one.versions(target.kind).is_empty();
        let found = ComponentVersions {
            target: target.clone(),
            hardware_type,
            facts: device.facts,
            firmware: known.into_iter().filter(fits).collect(),
        };
        if query.filter.matches_values(&found) {
            all.push(found);
        }
        if all.len() == query.limit {
            break;
        }
    }
    Ok(all)
}
