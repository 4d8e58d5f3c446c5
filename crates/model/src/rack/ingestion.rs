//! The ingestion of a rack: it finds its devices and brings them into service.
//!
//! Nothing takes a machine in service down unasked, so the ingestion leaves it out, and so it does
//! with one that waits for an operator. The rack remembers these machines until a maintenance has
//! covered them.

use super::{
    Counts, MaintenanceStage, RECHECK, Rack, RackDecision, RackDevice, RackFailure,
    RackFailurePhase, RackState, RackTurnInput, held, maintenance, some_of,
};
use crate::blast_radius::ImpactObjection;
use crate::gate::Overrides;
use crate::id::{MachineId, RackId};
use crate::lifecycle::{DeviceFailure, LifecycleChange};
use crate::note;
use crate::time::Timestamp;

/// A machine that a rack has left out of its ingestion, and the command that has it ingested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotIngested {
    pub machine: MachineId,
    pub next_command: String,
}

/// A machine that is in use must be drained first.
fn command_to_ingest(rack: &RackId, device: &RackDevice) -> String {
    let machine = &device.target;
    let start = format!("farrier rack maintenance start {rack} --machine {machine}");
    let objection = device.affected.as_ref().and_then(|affected| affected.objection.as_ref());
    let first = match objection {
        Some(ImpactObjection::InService) => format!("farrier enter-maintenance {machine} --drain"),
        Some(ImpactObjection::Serves(node)) => format!("farrier node drain {node}"),
        Some(ImpactObjection::HeldBy(run)) => format!("farrier why {run}"),
        Some(ImpactObjection::Unreadable) => "farrier db check".into(),
        None if device.needs_operator() => format!("farrier why {machine}"),
        None => return start,
    };
    format!("{first}   # then: {start}")
}

impl Rack {
    /// Waits for its devices, then brings them into service with the default firmware.
    pub(super) fn discover(&self, observed: &RackTurnInput, now: Timestamp) -> RackDecision {
        if self.head.deleted {
            return self.delete();
        }
        if self.topology_changed {
            let looked = Self { topology_changed: false, ..self.clone() };
            let note = note!("its devices have changed");
            return RackDecision::change(looked, note);
        }
        let missing = observed.missing(self.spec.expected);
        let deadline = self.head.since + observed.limits.discovery();
        match (missing.is_empty(), now >= deadline) {
            (true, _) => self.ingest(observed, now),
            (false, false) => {
                let message = format!("it waits for its devices: {}", some_of(&missing));
                RackDecision::idle_until(deadline, message)
            }
            (false, true) => {
                self.not_found(format!("its devices are not all there: {}", some_of(&missing)))
            }
        }
    }

    /// The time limit of discovery has passed.
    fn not_found(&self, text: String) -> RackDecision {
        self.fail(RackFailure {
            phase: RackFailurePhase::Discovery,
            device: None,
            failure: DeviceFailure::plain(text),
            next_command: format!(
                "farrier rack get {0}   # a device that arrives is noticed; or farrier rack update {0} --expect-machines …",
                self.head.id
            ),
            canceled: false,
        })
    }

    fn ingest(&self, observed: &RackTurnInput, now: Timestamp) -> RackDecision {
        let planned = maintenance::ingestion(observed);
        let held_devices = held(planned.devices.iter());
        let waits_for =
            match maintenance::health_refusals(self, &planned.devices, &Overrides::default())
                .first()
            {
                Some(refusal) => Some(refusal.message.clone()),
                None if held_devices.is_empty() => None,
                None => Some(format!(
                    "it waits until its devices are released: {}",
                    some_of(&held_devices)
                )),
            };
        if let Some(message) = waits_for {
            let deadline = self.head.since + observed.limits.discovery();
            return match now < deadline {
                true => RackDecision::idle_until(deadline.min(now + RECHECK), message),
                false => self.not_found(message),
            };
        }
        let run = planned.new_run(self, &observed.fresh, "engine".into());
        let record = Self {
            state: RackState::Maintenance { stage: MaintenanceStage::FirmwareUpgrade },
            active: vec![observed.fresh.clone()],
            not_ingested: self.left_out(observed),
            ..self.clone()
        };
        let note = note!("all its devices are there");
        LifecycleChange { start: vec![run], ..LifecycleChange::new(record, note) }.into()
    }

    /// The machines that this ingestion leaves out, for being in service or for waiting for an
    /// operator, and those that an earlier one left out.
    fn left_out(&self, observed: &RackTurnInput) -> Vec<MachineId> {
        let listed = |id: &MachineId| self.not_ingested.contains(id);
        let devices = observed.devices.iter();
        let left_out = devices.filter_map(|device| {
            let left = device.in_service() || device.needs_operator();
            device.target.machine().filter(|id| left || listed(id))
        });
        left_out.collect()
    }

    /// The machines of the rack that no ingestion and no maintenance has covered yet.
    pub fn list_not_ingested(&self, devices: &[RackDevice]) -> Vec<NotIngested> {
        let listed = |device: &&RackDevice| {
            device.target.machine().is_some_and(|id| self.not_ingested.contains(&id))
        };
        let entry = |device: &RackDevice| NotIngested {
            machine: MachineId::trusted(device.target.as_str()),
            next_command: command_to_ingest(&self.id(), device),
        };
        devices.iter().filter(listed).map(entry).collect()
    }

    /// Removes the machines that a successful maintenance has covered from those that were left
    /// out.
    pub(super) fn record_ingested(&self, observed: &RackTurnInput) -> Option<RackDecision> {
        let over = observed.operations.iter().filter(|one| self.active.contains(&one.id));
        let over = over.filter(|one| observed.went_well(&one.id) && one.brings_into_service);
        let covered: Vec<MachineId> =
            over.flat_map(|one| one.claims.iter().filter_map(|target| target.machine())).collect();
        let (done, left): (Vec<_>, Vec<_>) =
            self.not_ingested.iter().cloned().partition(|id| covered.contains(id));
        if done.is_empty() {
            return None;
        }
        let done: Vec<String> = done.iter().map(ToString::to_string).collect();
        let note = note!("ingested: {}", some_of(&done));
        Some(RackDecision::change(Self { not_ingested: left, ..self.clone() }, note))
    }

    /// Describes the reaction to a device that is added to the rack, moved or removed. `there`: the
    /// devices that stand in it then.
    pub fn predict_rediscovery(&self, there: Counts) -> String {
        let id = &self.head.id;
        let waits = match self.spec.expected.missing_from(there) {
            missing if missing.is_empty() => String::new(),
            missing => format!("; until then it waits: {}", some_of(&missing)),
        };
        let then = format!(
            "when all are there, a maintenance installs their firmware, configures the fabric and switches them on; machines in service are left out{waits}"
        );
        match &self.state {
            RackState::Created | RackState::Discovering => {
                format!("{id} goes on to look for its devices; {then}")
            }
            RackState::Ready if self.maintenance_requested.is_empty() => {
                format!("{id} looks for all its devices again; {then}")
            }
            RackState::Ready => {
                let pending = super::named(&self.maintenance_requested);
                format!("{id} cancels {pending}, then looks for all its devices again; {then}")
            }
            RackState::Maintenance { .. } | RackState::Validating => {
                format!("{id} looks for all its devices again after its maintenance; {then}")
            }
            RackState::Error { .. } if self.looks_for_devices() => {
                format!("{id} leaves Error and looks for all its devices again; {then}")
            }
            RackState::Error { .. } => {
                format!(
                    "{id} stays in Error until an operator resolves it; then it looks for all its devices again, and {then}"
                )
            }
            RackState::Deleting => format!("{id} is being deleted, and does not look for devices"),
        }
    }
}
