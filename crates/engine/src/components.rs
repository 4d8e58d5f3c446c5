//! Component firmware: one request upgrades several devices. Power shelves are upgraded directly,
//! all or none in one transaction; machines and switches by their rack.

mod by_rack;

use crate::Engine;
use crate::admission::{Admission, Created, Holds, event, reused};
use crate::claims::unknown;
use crate::firmware::no_firmware;
use crate::rack::Preview;
use model::component::{Course, Device, MAX_DEVICES, admit_shelf, all_or_none, course};
use model::effect::Facts;
use model::firmware::{FIRMWARE, Firmware, Resolution, resolve};
use model::here;
use model::host::Host;
use model::id::{FirmwareId, MachineId, RackId, RunId};
use model::lifecycle::{Head, NewRun, SubjectId, SubjectKind};
use model::plan::{Params, RunStep, RunType};
use model::power_shelf::PowerShelf;
use model::rack::Rack;
use model::rack::maintenance::{Asked, accepted, initiator, record, wanted_of};
use model::refusal::Refusal;
use model::switch::Switch;
use model::target::{TargetId, TargetKind};
use model::time::Timestamp;
use std::collections::BTreeMap;
use store::{Cause, Enqueue, Result, StoreError, Tx};

/// The most catalogue records shown for one hardware type.
const MAX_VERSIONS: i64 = 200;

/// A request to upgrade the firmware of several devices.
#[derive(Debug, Clone)]
pub struct Update {
    pub targets: Vec<TargetId>,
    /// None: the default of each device's rack.
    pub firmware: Option<FirmwareId>,
    pub request_id: String,
    pub by: String,
    /// The ticket that tracks it; may be empty.
    pub reference: String,
    /// The reason for taking down machines in service.
    pub force: Option<String>,
    pub dry_run: bool,
}

/// The result for one device.
#[derive(Debug, Clone)]
pub struct Updated {
    pub target: TargetId,
    pub rack: Option<RackId>,
    pub outcome: Outcome,
    /// Dry run only: the planned operation on the rack, and every refusal.
    pub preview: Option<Preview>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The operation that upgrades it.
    Started(RunId),
    /// Dry run only: the planned steps.
    Would(Vec<String>),
    Refused(Refusal),
}

/// Installed and desired firmware of a device.
#[derive(Debug, Clone)]
pub struct ComponentStatus {
    pub device: Device,
    /// One entry per component.
    pub differs: Vec<String>,
}

/// The catalogue records that fit a device.
#[derive(Debug, Clone)]
pub struct ComponentVersions {
    pub target: TargetId,
    pub hardware_type: String,
    pub facts: Facts,
    pub firmware: Vec<Firmware>,
}

/// Firmware upgrades of several devices.
#[derive(Clone)]
pub struct Components(pub(crate) Engine);

impl Components {
    pub async fn update(&self, update: Update) -> Result<Vec<Updated>> {
        let targets = checked(&update.targets)?;
        let update = Update { targets, ..update };
        if let Some(id) = &update.firmware {
            self.0.firmware().get(id).await?;
        }
        let shelf = |target: &&TargetId| target.kind == TargetKind::PowerShelf;
        let shelves: Vec<TargetId> = update.targets.iter().filter(shelf).cloned().collect();
        let others: Vec<TargetId> =
            update.targets.iter().filter(|target| !shelf(target)).cloned().collect();
        let mut done: BTreeMap<TargetId, Updated> = BTreeMap::new();
        for one in self.update_by_racks(&update, others).await? {
            done.insert(one.target.clone(), one);
        }
        for one in self.update_shelves(&update, shelves).await? {
            done.insert(one.target.clone(), one);
        }
        // In the order of the request.
        Ok(update.targets.iter().filter_map(|target| done.remove(target)).collect())
    }

    async fn update_shelves(
        &self,
        update: &Update,
        shelves: Vec<TargetId>,
    ) -> Result<Vec<Updated>> {
        if shelves.is_empty() {
            return Ok(Vec::new());
        }
        let start = UpdateShelves {
            update: Update { targets: shelves, ..update.clone() },
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
    pub async fn versions(&self, targets: &[TargetId]) -> Result<Vec<ComponentVersions>> {
        let targets = checked(targets)?;
        self.0.store().read(targets, |targets, tx| Box::pin(versions(tx, targets))).await
    }
}

/// Removes duplicates, keeping the order of the request.
fn checked(targets: &[TargetId]) -> Result<Vec<TargetId>> {
    let mut seen: Vec<TargetId> = Vec::new();
    for target in targets {
        if !seen.contains(target) {
            seen.push(target.clone());
        }
    }
    match seen.len() {
        0 => Err(Refusal::missing("compute_trays, switches or power_shelves").into()),
        count if count > MAX_DEVICES => {
            let problem = format!("name {count} devices");
            let instead = format!("name at most {MAX_DEVICES}");
            Err(Refusal::invalid("targets", problem, instead).into())
        }
        _ => Ok(seen),
    }
}

async fn find(tx: &mut Tx, target: &TargetId, ask: &Ask<'_>) -> Result<Device> {
    let missing = || StoreError::from(unknown(target));
    let id = target.as_str();
    let (rack, facts, active_run, gate) = match target.kind {
        TargetKind::Machine => {
            let machine = tx.machine(&MachineId::trusted(id)).await?.ok_or_else(missing)?;
            let host = tx.record::<Host>(id).await?;
            let facts = host.map(|host| host.facts).unwrap_or_default();
            (machine.spec.rack, facts, machine.active_run, Ok(()))
        }
        TargetKind::Switch => {
            let switch = tx.record::<Switch>(id).await?.ok_or_else(missing)?;
            let Head { rack, active_run, .. } = switch.head;
            (rack, switch.facts, active_run, Ok(()))
        }
        TargetKind::PowerShelf => {
            let found = match ask.lock {
                true => tx.record_locked::<PowerShelf>(id).await?,
                false => tx.record::<PowerShelf>(id).await?,
            };
            let shelf = found.ok_or_else(missing)?;
            let gate = admit_shelf(&shelf, ask.force);
            (shelf.head.rack, shelf.facts, shelf.head.active_run, gate)
        }
        TargetKind::Rack => return Err(missing()),
    };
    let wanted = wanted(tx, rack.as_ref(), ask.firmware).await?;
    let made = match ask.request_id {
        "" => None,
        request_id => made(tx, target, rack.as_ref(), (request_id, ask.firmware)).await?,
    };
    Ok(Device { target: target.clone(), rack, facts, active_run, wanted, gate, made })
}

/// The parameters of a request that apply to every device.
struct Ask<'a> {
    firmware: Option<&'a FirmwareId>,
    /// Empty: do not look for an earlier run.
    request_id: &'a str,
    force: Option<&'a str>,
    /// Whether to lock the rows of power shelves.
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
    let asked = [Asked::FirmwareUpgrade(firmware.cloned())];
    let of_this = run.filter(|run| {
        run.spec.claims.contains(target) && wanted_of(&run.spec.params).activities == asked
    });
    Ok(of_this.map(|run| run.spec.id))
}

/// The desired firmware: the named one, or the default of the rack's hardware type.
pub(crate) async fn wanted(
    tx: &mut Tx,
    rack: Option<&RackId>,
    named: Option<&FirmwareId>,
) -> Result<Resolution> {
    let hardware_type = hardware_type(tx, rack).await?;
    if let Some(id) = named {
        return Ok(resolve(named, tx.firmware(id).await?, None, &hardware_type));
    }
    if hardware_type.is_empty() {
        let said =
            "it stands in no rack with a hardware type, so there is no default firmware for it";
        return Ok(Resolution::Skip(said.into()));
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
    update: Update,
    random: u64,
    now: Timestamp,
}

impl UpdateShelves {
    async fn run(&self, tx: &mut Tx) -> Result<(Vec<Updated>, Created)> {
        let mut created = Created::default();
        let update = &self.update;
        let ask = Ask {
            firmware: update.firmware.as_ref(),
            request_id: &update.request_id,
            force: update.force.as_deref(),
            lock: true,
        };
        let mut racks = BTreeMap::new();
        let mut courses = Vec::new();
        let mut targets = update.targets.clone();
        // The same lock order everywhere, so no deadlock.
        targets.sort();
        for target in targets {
            let course = match find(tx, &target, &ask).await {
                Ok(device) => {
                    let course = course(&device);
                    racks.insert(target.clone(), device.rack);
                    course
                }
                Err(StoreError::Refused(refusal)) => Course::Refused(refusal),
                Err(error) => return Err(error),
            };
            courses.push((target, course));
        }
        let mut done = Vec::new();
        for (index, (target, course)) in all_or_none(courses).into_iter().enumerate() {
            let rack = racks.remove(&target).flatten();
            let outcome = match course {
                Course::Directly(firmware) => {
                    let run = self.new_run(&target, &firmware, index as u64);
                    self.start(tx, run, &firmware, &mut created).await?
                }
                Course::Made(run) => Outcome::Started(run),
                Course::Refused(refusal) => Outcome::Refused(refusal),
                Course::ByRack(rack) => Outcome::Refused(unknown(&TargetId::from(&rack))),
            };
            done.push(Updated { target, rack, outcome, preview: None });
        }
        Ok((done, created))
    }
}

impl UpdateShelves {
    async fn start(
        &self,
        tx: &mut Tx,
        new: NewRun,
        firmware: &Firmware,
        created: &mut Created,
    ) -> Result<Outcome> {
        let Update { by, force, dry_run, .. } = &self.update;
        let what = format!("FIRMWARE {}", firmware.id);
        let message = accepted(&what, &new.initiator, force.as_deref());
        let event = &event(Cause::Request, by, message, here!(), self.now);
        let (run, enqueue) = (new.run(self.now), Enqueue::Now);
        let holds = Holds::Targets { own: None };
        let run = created.add(tx, Admission { run, enqueue, holds, event }).await?;
        Ok(match dry_run {
            true => Outcome::Would(step_names(&run.spec.steps)),
            false => Outcome::Started(run.spec.id),
        })
    }

    fn new_run(&self, target: &TargetId, firmware: &Firmware, index: u64) -> NewRun {
        let Update { by, request_id, reference, force, .. } = &self.update;
        let id = RunId::new(self.now, self.random.wrapping_add(index << 32));
        let mut params = Params::from([(FIRMWARE.to_string(), firmware.id.to_string())]);
        record(&mut params, force.as_deref(), reference);
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

fn step_names(steps: &[RunStep]) -> Vec<String> {
    steps.iter().map(|step| step.name.clone()).collect()
}

async fn status(
    tx: &mut Tx,
    targets: &[TargetId],
    firmware: Option<&FirmwareId>,
) -> Result<Vec<ComponentStatus>> {
    let ask = Ask { firmware, request_id: "", force: None, lock: false };
    let mut all = Vec::new();
    for target in targets {
        let device = find(tx, target, &ask).await?;
        let differs = match &device.wanted {
            Resolution::Use(one) => one.missing_on(target.kind, &device.facts.firmware),
            Resolution::Skip(why) => vec![why.clone()],
            Resolution::Unknown(id) => vec![no_firmware(id).said],
        };
        all.push(ComponentStatus { device, differs });
    }
    Ok(all)
}

async fn versions(tx: &mut Tx, targets: &[TargetId]) -> Result<Vec<ComponentVersions>> {
    let ask = Ask { firmware: None, request_id: "", force: None, lock: false };
    let mut catalogue: BTreeMap<String, Vec<Firmware>> = BTreeMap::new();
    let mut all = Vec::new();
    for target in targets {
        let device = find(tx, target, &ask).await?;
        let hardware_type = hardware_type(tx, device.rack.as_ref()).await?;
        if !catalogue.contains_key(&hardware_type) {
            let of = Some(hardware_type.as_str());
            let found = tx.firmware_list(of, "", MAX_VERSIONS).await?;
            catalogue.insert(hardware_type.clone(), found);
        }
        let known = catalogue.get(&hardware_type).cloned().unwrap_or_default();
        let fits = |one: &Firmware| !one.versions(target.kind).is_empty();
        all.push(ComponentVersions {
            target: target.clone(),
            hardware_type,
            facts: device.facts,
            firmware: known.into_iter().filter(fits).collect(),
        });
    }
    Ok(all)
}
