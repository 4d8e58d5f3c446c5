//! Racks: devices that share a place and power feeds, and are maintained together.
//!
//! The lifecycle only decides: when all devices are present, which operations may begin, and what
//! their results mean. The operations do the work, each as a run on the rack (see `maintenance`).

mod ingestion;
mod input;
pub mod maintenance;
mod power;
mod spec;
mod state;
mod why;

pub use ingestion::NotIngested;
pub use input::{RackDevice, RackDeviceState, RackOperation, RackTurnInput};
pub use power::{DevicePower, RackPowerOn, describe_left_off, format_power};
pub use spec::{Counts, MAX_EXPECTED, RackLocation, RackSpec};
pub use state::{MaintenanceActivity, MaintenanceStage, RackFailure, RackFailurePhase, RackState};
pub use why::{RackContext, explain};

use crate::filter::FilterField;
use crate::id::{MachineId, RackId, RunId};
use crate::lifecycle::{
    IdleReason, Lifecycle, LifecycleChange, LifecycleDecision, RecordHeader, SubjectKind,
    head_in_field,
};
use crate::list_format::join_limited;
use crate::run::HistoryNote;
use crate::target::{TargetId, TargetKind};
use crate::time::Timestamp;
use crate::{here, note};
use maintenance::RackStep;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The interval of checks whether a device was released, in case no wake-up arrives.
const RECHECK: Duration = Duration::from_secs(15);
/// The normal time for which a new rack waits for its first turn.
const TURN_NORMAL: Duration = Duration::from_secs(30);
/// The normal time for which a rack waits for its devices, or for their release.
const DISCOVERY_NORMAL: Duration = Duration::from_secs(3_600);
/// The number of items that a message names; the rest is counted.
const MAX_NAMED: usize = 6;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rack {
    pub head: RecordHeader,
    pub spec: RackSpec,
    pub state: RackState,
    /// A device was added, moved or removed.
    #[serde(default)]
    pub topology_changed: bool,
    /// The operation of a reprovision request. It has not begun and holds nothing yet.
    #[serde(default)]
    pub reprovision_requested: Option<RunId>,
    /// Accepted operations that hold their devices and have not begun.
    #[serde(default)]
    pub maintenance_requested: Vec<RunId>,
    /// Operations that have begun, kept until the results of all of them are known.
    #[serde(default)]
    pub active: Vec<RunId>,
    /// A failure on a device that no active operation touches: Error follows when they end.
    #[serde(default)]
    #[serde(rename = "unmended")]
    pub unresolved_failure: Option<RackFailure>,
    /// The machines that were in service when the rack was ingested, so that it left them out. A
    /// maintenance that covers one of them removes it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_ingested: Vec<MachineId>,
}

type RackDecision = LifecycleDecision<Rack>;

impl Rack {
    pub fn new(head: RecordHeader, spec: RackSpec) -> Self {
        Self {
            head,
            spec,
            state: RackState::Created,
            topology_changed: false,
            reprovision_requested: None,
            maintenance_requested: Vec::new(),
            active: Vec::new(),
            unresolved_failure: None,
            not_ingested: Vec::new(),
        }
    }

    pub fn id(&self) -> RackId {
        RackId::trusted(&self.head.id)
    }

    pub fn target(&self) -> TargetId {
        TargetId::new(TargetKind::Rack, self.head.id.as_str())
    }

    /// The cause of its state Error.
    pub const fn failure(&self) -> Option<&RackFailure> {
        match &self.state {
            RackState::Error { cause } => Some(cause),
            RackState::Created
            | RackState::Discovering
            | RackState::Maintenance { .. }
            | RackState::Validating
            | RackState::Ready
            | RackState::Deleting => None,
        }
    }

    /// The state with its stage, for display.
    pub fn state_words(&self) -> String {
        let RackState::Maintenance { stage } = &self.state else { return self.state_name().into() };
        format!("Maintenance ({})", stage.as_str())
    }

    /// True if the release of a device may let it go on. A rack whose devices have changed is about
    /// to look for them.
    pub fn waits_for_release(&self) -> bool {
        matches!(self.state, RackState::Discovering)
            || self.topology_changed
            || self.reprovision_requested.is_some()
    }

    /// Describes what its lifecycle waits for now.
    pub fn waits_for(&self, observed: &RackTurnInput, now: Timestamp) -> String {
        match self.next(observed, now) {
            RackDecision::Idle(IdleReason(message))
            | RackDecision::IdleUntil(_, IdleReason(message)) => message,
            RackDecision::Transition(change) => change.note.message,
            RackDecision::Remove(note) => note.message,
        }
    }

    /// The states that have a normal duration.
    pub const WAITING: &'static [&'static str] = &["Created", "Discovering"];

    fn become_(&self, state: RackState, note: HistoryNote) -> RackDecision {
        let record = Self { state, ..self.clone() };
        RackDecision::change(record, note)
    }

    /// Ready and Error: begins what may begin, in the documented order.
    fn idle(&self, observed: &RackTurnInput, now: Timestamp, stays: String) -> RackDecision {
        if self.head.deleted {
            return self.delete();
        }
        if !self.active.is_empty() {
            let note = note!("an operation goes on");
            let unmended = self.unresolved_by(&self.active, observed);
            let state = RackState::Maintenance { stage: MaintenanceStage::FirmwareUpgrade };
            return Self { unresolved_failure: unmended, ..self.clone() }.become_(state, note);
        }
        if self.topology_changed && self.looks_for_devices() {
            let note = note!("its devices have changed");
            return self.cancel_pending(RackState::Discovering, "its devices have changed", note);
        }
        if let Some(id) = &self.reprovision_requested {
            return self.reprovision(id, observed, now);
        }
        self.next_pending(observed).unwrap_or_else(|| RackDecision::idle(stays))
    }

    /// Begins the accepted operations, unless they were canceled or a gate refuses them now.
    fn next_pending(&self, observed: &RackTurnInput) -> Option<RackDecision> {
        let pending = &self.maintenance_requested;
        let ended: Vec<RunId> = pending.iter().filter(|id| observed.is_over(id)).cloned().collect();
        if !ended.is_empty() {
            let mut left = self.clone();
            left.maintenance_requested.retain(|id| !ended.contains(id));
            let note = note!("{} was withdrawn", named(&ended));
            return Some(RackDecision::change(left, note));
        }
        if let Some((id, against)) = pending.iter().find_map(|id| Some((id, observed.against(id)?)))
        {
            return Some(self.refuse(id, against));
        }
        match pending.is_empty() {
            true => None,
            false => Some(self.begin(pending.clone(), "maintenance", observed)),
        }
    }

    /// A gate refuses an accepted operation now: it is canceled with the reason.
    fn refuse(&self, id: &RunId, against: &str) -> RackDecision {
        let mut left = self.clone();
        left.maintenance_requested.retain(|one| one != id);
        left.reprovision_requested = left.reprovision_requested.filter(|one| one != id);
        let note = note!("{id} does not begin: {against}");
        let cancel = vec![(id.clone(), against.to_string())];
        LifecycleChange { cancel, ..LifecycleChange::new(left, note) }.into()
    }

    /// True if a changed topology restarts discovery; after a failed maintenance it does not.
    fn looks_for_devices(&self) -> bool {
        let RackState::Error { cause } = &self.state else { return true };
        cause.phase == RackFailurePhase::Discovery
    }

    /// A reprovision takes precedence over pending maintenance, and needs all its devices released.
    fn reprovision(&self, id: &RunId, observed: &RackTurnInput, now: Timestamp) -> RackDecision {
        if observed.is_over(id) {
            let left = Self { reprovision_requested: None, ..self.clone() };
            let note = note!("{id} was withdrawn");
            return RackDecision::change(left, note);
        }
        if !self.maintenance_requested.is_empty() {
            let message = format!("{} is to be reprovisioned", self.head.id);
            let note = note!("the reprovision comes first");
            return self.cancel_pending(self.state.clone(), &message, note);
        }
        let claims = observed.operation(id).map(|one| one.claims.as_slice()).unwrap_or_default();
        let claimed =
            held(observed.devices.iter().filter(|device| claims.contains(&device.target)));
        // The holder may be an operation that is being canceled for this one: wait for it first.
        match (claimed.is_empty(), observed.against(id)) {
            (true, Some(against)) => self.refuse(id, against),
            (true, None) => self.begin(vec![id.clone()], "reprovision", observed),
            (false, _) => {
                let message =
                    format!("{id} waits until its devices are released: {}", some_of(&claimed));
                RackDecision::idle_until(now + RECHECK, message)
            }
        }
    }

    fn begin(&self, ids: Vec<RunId>, what: &str, observed: &RackTurnInput) -> RackDecision {
        let note = note!("{what} {} begins", named(&ids));
        let mut record = self.clone();
        record.unresolved_failure = self.unresolved_by(&ids, observed);
        record.active.extend(ids.iter().cloned());
        record.maintenance_requested.retain(|id| !ids.contains(id));
        record.reprovision_requested = record.reprovision_requested.filter(|id| !ids.contains(id));
        if matches!(record.state, RackState::Ready | RackState::Error { .. }) {
            record.state = RackState::Maintenance { stage: MaintenanceStage::FirmwareUpgrade };
        }
        LifecycleChange { begin: ids, ..LifecycleChange::new(record, note) }.into()
    }

    /// The earlier failure, if the new operations do not touch its device and so cannot resolve it.
    fn unresolved_by(&self, ids: &[RunId], observed: &RackTurnInput) -> Option<RackFailure> {
        let current = if let RackState::Error { cause } = &self.state { Some(cause) } else { None };
        let failed = current.or(self.unresolved_failure.as_ref());
        failed.filter(|cause| !observed.touches(ids, cause)).cloned()
    }

    /// Cancels the accepted operations that have not begun, with the reason.
    fn cancel_pending(&self, state: RackState, reason: &str, note: HistoryNote) -> RackDecision {
        let mut record = Self { state, ..self.clone() };
        let pending = std::mem::take(&mut record.maintenance_requested);
        if matches!(record.state, RackState::Discovering) {
            record.topology_changed = false;
        }
        let cancel = pending.into_iter().map(|id| (id, reason.to_string())).collect();
        LifecycleChange { cancel, ..LifecycleChange::new(record, note) }.into()
    }

    fn delete(&self) -> RackDecision {
        let mut record = Self { state: RackState::Deleting, ..self.clone() };
        let mut pending = std::mem::take(&mut record.maintenance_requested);
        pending.extend(record.reprovision_requested.take());
        // Canceled operations are waited for like active ones.
        record.active.extend(pending.iter().cloned());
        let reason = format!("{} is being deleted", self.head.id);
        let cancel = pending.into_iter().map(|id| (id, reason.clone())).collect();
        let note = note!("marked for deletion");
        LifecycleChange { cancel, ..LifecycleChange::new(record, note) }.into()
    }

    /// Maintenance and Validating: follows the active operations and takes over their result.
    fn follow(&self, observed: &RackTurnInput) -> RackDecision {
        if let Some(next) = self.next_pending(observed) {
            return next;
        }
        if let Some(next) = self.record_ingested(observed) {
            return next;
        }
        if let Some(next) = self.drop_finished(observed) {
            return next;
        }
        let desired = self.followed_state(observed);
        if desired != self.state {
            let message = match &desired {
                RackState::Maintenance { stage } => format!("at {}", stage.as_str()),
                RackState::Validating => "looking whether all is as it should be".into(),
                RackState::Ready => "all is as it should be".into(),
                RackState::Created
                | RackState::Discovering
                | RackState::Error { .. }
                | RackState::Deleting => String::new(),
            };
            let over = !observed.any_going(&self.active);
            return match (observed.trouble(&self.active), &self.unresolved_failure) {
                (Some(cause), _) if over => self.fail(cause),
                (None, Some(cause)) if over && desired == RackState::Ready => {
                    self.fail(cause.clone())
                }
                (Some(_) | None, _) => self.settle(desired, HistoryNote::new(message, here!())),
            };
        }
        let going = observed.going(&self.active).map(RackOperation::describe).collect::<Vec<_>>();
        RackDecision::idle(some_of(&going))
    }

    /// While others are active: drops operations that succeeded or that a rerun replaces.
    fn drop_finished(&self, observed: &RackTurnInput) -> Option<RackDecision> {
        if !observed.any_going(&self.active) {
            return None;
        }
        let restarted = |id: &RunId| self.active.iter().any(|one| observed.is_anew(one, id));
        let done = |id: &&RunId| observed.is_over(id) && (observed.went_well(id) || restarted(id));
        let over: Vec<RunId> = self.active.iter().filter(done).cloned().collect();
        if over.is_empty() {
            return None;
        }
        let mut left = self.clone();
        left.active.retain(|id| !over.contains(id));
        let note = note!("{} is over, and others go on", named(&over));
        Some(RackDecision::change(left, note))
    }

    fn settle(&self, state: RackState, note: HistoryNote) -> RackDecision {
        let over = state == RackState::Ready;
        let active = if over { Vec::new() } else { self.active.clone() };
        let record = Self { state, active, ..self.clone() };
        RackDecision::change(record, note)
    }

    /// The next state towards the stage of its operations. No intermediate state is skipped.
    fn followed_state(&self, observed: &RackTurnInput) -> RackState {
        let rack_steps = observed.going(&self.active).map(|one| one.step);
        let stage = match rack_steps.map(stage_of).min() {
            Some(MaintenanceStage::Completed) | None => MaintenanceStage::Completed,
            Some(stage) => return RackState::Maintenance { stage },
        };
        match &self.state {
            RackState::Maintenance { stage: MaintenanceStage::Completed } => RackState::Validating,
            RackState::Validating if observed.any_going(&self.active) => RackState::Validating,
            RackState::Validating => RackState::Ready,
            RackState::Created
            | RackState::Discovering
            | RackState::Maintenance { .. }
            | RackState::Ready
            | RackState::Error { .. }
            | RackState::Deleting => RackState::Maintenance { stage },
        }
    }

    /// Enters Error. The same commit clears pending requests: only an operator retries.
    fn fail(&self, cause: RackFailure) -> RackDecision {
        let device = cause.device.as_ref().map(|device| format!("{device}: ")).unwrap_or_default();
        let message = format!("{}: {device}{}", cause.phase.as_str(), cause.failure.message);
        let mut record = Self { state: RackState::Error { cause }, ..self.clone() };
        record.active.clear();
        record.unresolved_failure = None;
        record.maintenance_requested.clear();
        RackDecision::change(record, HistoryNote::new(message, here!()))
    }
}

/// As documented: before its first step an operation counts as the firmware upgrade.
fn stage_of(rack_step: Option<RackStep>) -> MaintenanceStage {
    match rack_step.map(RackStep::activity) {
        None | Some(Some(MaintenanceActivity::FirmwareUpgrade)) => {
            MaintenanceStage::FirmwareUpgrade
        }
        Some(Some(MaintenanceActivity::ConfigureNmxCluster)) => {
            MaintenanceStage::ConfigureNmxCluster
        }
        Some(Some(MaintenanceActivity::PowerSequence)) => MaintenanceStage::PowerSequence,
        Some(None) => MaintenanceStage::Completed,
    }
}

fn held<'a>(devices: impl Iterator<Item = &'a RackDevice>) -> Vec<String> {
    let holder = |device: &RackDevice| {
        device.active_run.as_ref().map(|run| format!("{} is held by {run}", device.target))
    };
    devices.filter_map(holder).collect()
}

fn named(ids: &[RunId]) -> String {
    ids.iter().map(RunId::as_str).collect::<Vec<_>>().join(", ")
}

pub(crate) fn some_of(all: &[String]) -> String {
    join_limited(all, ", ", MAX_NAMED)
}

impl Lifecycle for Rack {
    const KIND: SubjectKind = SubjectKind::Rack;
    const STATES: &'static [&'static str] =
        &["Created", "Discovering", "Maintenance", "Validating", "Ready", "Error", "Deleting"];
    type TurnInput = RackTurnInput;

    head_in_field!();

    fn filter_value(&self, field: &FilterField) -> Option<String> {
        let own = *field == FilterField::HardwareType;
        own.then(|| self.spec.hardware_type.clone()).or_else(|| field.of_record(self))
    }

    fn state_name(&self) -> &'static str {
        match self.state {
            RackState::Created => "Created",
            RackState::Discovering => "Discovering",
            RackState::Maintenance { .. } => "Maintenance",
            RackState::Validating => "Validating",
            RackState::Ready => "Ready",
            RackState::Error { .. } => "Error",
            RackState::Deleting => "Deleting",
        }
    }

    fn normal_duration(&self) -> Option<Duration> {
        match self.state {
            RackState::Created => Some(TURN_NORMAL),
            RackState::Discovering => Some(DISCOVERY_NORMAL),
            // Their operations have deadlines of their own.
            RackState::Maintenance { .. } | RackState::Validating | RackState::Deleting => None,
            RackState::Ready | RackState::Error { .. } => None,
        }
    }

    fn next(&self, observed: &RackTurnInput, now: Timestamp) -> RackDecision {
        match &self.state {
            RackState::Created => {
                self.become_(RackState::Discovering, note!("looking for its devices"))
            }
            RackState::Discovering => self.discover(observed, now),
            RackState::Maintenance { .. } | RackState::Validating => self.follow(observed),
            RackState::Ready => self.idle(observed, now, "no request is pending".into()),
            RackState::Error { cause } => {
                self.idle(observed, now, format!("a person: {}", cause.failure.message))
            }
            RackState::Deleting => {
                let going =
                    observed.going(&self.active).map(RackOperation::describe).collect::<Vec<_>>();
                match going.is_empty() {
                    true => RackDecision::Remove(note!("removed")),
                    false => RackDecision::idle(some_of(&going)),
                }
            }
        }
    }
}
