//! Racks: devices that share a place and power feeds, and are maintained together.
//!
//! The lifecycle only decides: when all devices are present, which operations may begin, and what
//! their results mean. The operations do the work, each as a run on the rack (see `maintenance`).

pub mod maintenance;
mod power;
mod seen;
mod state;
mod why;

pub use power::{Powered, power_said};
pub use seen::{Device, Operation, Seen};
pub use state::{Activity, During, RackState, RackTrouble, Stage};
pub use why::explain;

use crate::here;
use crate::id::{RackId, RunId};
use crate::lifecycle::{Change, Head, Lifecycle, Next, SubjectKind, Trouble, Why};
use crate::refusal::Refusal;
use crate::run::Note;
use crate::say::few;
use crate::target::{TargetId, TargetKind};
use crate::text;
use crate::time::Timestamp;
use maintenance::Leg;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The limit of expected devices of one kind.
pub const MAX_EXPECTED: u32 = 256;
/// The interval of checks whether a device was released, in case no wake-up arrives.
const RECHECK: Duration = Duration::from_secs(15);
/// The number of items that a message names; the rest is counted.
const MAX_NAMED: usize = 6;

/// The numbers of devices that the rack is expected to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Counts {
    pub machines: u32,
    pub switches: u32,
    pub power_shelves: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RackSpec {
    pub hardware_type: String,
    pub expected: Counts,
}

impl RackSpec {
    pub fn checked(self) -> Result<Self, Refusal> {
        text::short("rack.hardware_type", &self.hardware_type)?;
        let Counts { machines, switches, power_shelves } = self.expected;
        let counts =
            [("machines", machines), ("switches", switches), ("power_shelves", power_shelves)];
        match counts.into_iter().find(|(_, count)| *count > MAX_EXPECTED) {
            None => Ok(self),
            Some((name, count)) => Err(Refusal::invalid(
                &format!("rack.expected.{name}"),
                format!("is {count}"),
                format!("use 0 to {MAX_EXPECTED}"),
            )),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rack {
    pub head: Head,
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
    pub unmended: Option<RackTrouble>,
}

impl Rack {
    pub fn new(head: Head, spec: RackSpec) -> Self {
        Self {
            head,
            spec,
            state: RackState::Created,
            topology_changed: false,
            reprovision_requested: None,
            maintenance_requested: Vec::new(),
            active: Vec::new(),
            unmended: None,
        }
    }

    pub fn id(&self) -> RackId {
        RackId::trusted(&self.head.id)
    }

    pub fn target(&self) -> TargetId {
        TargetId::new(TargetKind::Rack, self.head.id.as_str())
    }

    /// The state with its stage, for display.
    pub fn state_words(&self) -> String {
        match &self.state {
            RackState::Maintenance { stage } => format!("Maintenance ({})", stage.as_str()),
            RackState::Created
            | RackState::Discovering
            | RackState::Validating
            | RackState::Ready
            | RackState::Error { .. }
            | RackState::Deleting => self.word().into(),
        }
    }

    /// Describes what its lifecycle waits for now.
    pub fn waits_for(&self, seen: &Seen, now: Timestamp) -> String {
        match self.next(seen, now) {
            Next::Rest(Why(said)) | Next::Until(_, Why(said)) => said,
            Next::Become(change) => change.note.said,
            Next::Remove(note) => note.said,
        }
    }

    fn become_(&self, state: RackState, note: Note) -> Next<Self> {
        let record = Self { state, ..self.clone() };
        Next::Become(Box::new(Change::new(record, note)))
    }

    /// Waits for its devices, then brings them into service with the default firmware.
    fn discover(&self, seen: &Seen, now: Timestamp) -> Next<Self> {
        if self.head.deleted {
            return self.delete();
        }
        if self.topology_changed {
            let looked = Self { topology_changed: false, ..self.clone() };
            let note = Note::new("its devices have changed", here!());
            return Next::Become(Box::new(Change::new(looked, note)));
        }
        let missing = seen.missing(self.spec.expected);
        let deadline = self.head.since + seen.limits.discovery();
        match (missing.is_empty(), now >= deadline) {
            (true, _) => self.ingest(seen, now),
            (false, false) => {
                let said = format!("it waits for its devices: {}", some_of(&missing));
                Next::Until(deadline, Why::new(said))
            }
            (false, true) => {
                self.not_found(format!("its devices are not all there: {}", some_of(&missing)))
            }
        }
    }

    /// The time limit of discovery has passed.
    fn not_found(&self, said: String) -> Next<Self> {
        self.fail(RackTrouble {
            during: During::Discovery,
            device: None,
            trouble: Trouble { said, run: None, code: String::new() },
            next: format!(
                "farrier rack get {0}   # a device that arrives is noticed; or farrier rack update {0} --expect-machines …",
                self.head.id
            ),
        })
    }

    fn ingest(&self, seen: &Seen, now: Timestamp) -> Next<Self> {
        let planned = maintenance::ingestion(seen);
        let held = held(planned.devices.iter());
        let waits_for = match maintenance::ill(self, &planned.devices, None).first() {
            Some(refusal) => Some(refusal.said.clone()),
            None if held.is_empty() => None,
            None => Some(format!("it waits until its devices are let go: {}", some_of(&held))),
        };
        if let Some(said) = waits_for {
            let deadline = self.head.since + seen.limits.discovery();
            return match now < deadline {
                true => Next::Until(deadline.min(now + RECHECK), Why::new(said)),
                false => self.not_found(said),
            };
        }
        let run = planned.new_run(self, &seen.fresh, "engine".into());
        let record = Self {
            state: RackState::Maintenance { stage: Stage::FirmwareUpgrade },
            active: vec![seen.fresh.clone()],
            ..self.clone()
        };
        let note = Note::new("all its devices are there", here!());
        Next::Become(Box::new(Change { start: vec![run], ..Change::new(record, note) }))
    }

    /// Ready and Error: begins what may begin, in the documented order.
    fn idle(&self, seen: &Seen, now: Timestamp, stays: String) -> Next<Self> {
        if self.head.deleted {
            return self.delete();
        }
        if !self.active.is_empty() {
            let note = Note::new("an operation goes on", here!());
            let unmended = self.left_alone(&self.active, seen);
            let state = RackState::Maintenance { stage: Stage::FirmwareUpgrade };
            return Self { unmended, ..self.clone() }.become_(state, note);
        }
        if self.topology_changed && self.looks_for_devices() {
            let note = Note::new("its devices have changed", here!());
            return self.drop_pending(RackState::Discovering, "its devices have changed", note);
        }
        if let Some(id) = &self.reprovision_requested {
            return self.reprovision(id, seen, now);
        }
        self.next_pending(seen).unwrap_or_else(|| Next::Rest(Why::new(stays)))
    }

    /// Begins the accepted operations, unless they were canceled or a gate refuses them now.
    fn next_pending(&self, seen: &Seen) -> Option<Next<Self>> {
        let pending = &self.maintenance_requested;
        let ended: Vec<RunId> = pending.iter().filter(|id| seen.is_over(id)).cloned().collect();
        if !ended.is_empty() {
            let mut left = self.clone();
            left.maintenance_requested.retain(|id| !ended.contains(id));
            let note = Note::new(format!("{} was withdrawn", named(&ended)), here!());
            return Some(Next::Become(Box::new(Change::new(left, note))));
        }
        if let Some((id, against)) = pending.iter().find_map(|id| Some((id, seen.against(id)?))) {
            return Some(self.refuse(id, against));
        }
        match pending.is_empty() {
            true => None,
            false => Some(self.begin(pending.clone(), "maintenance", seen)),
        }
    }

    /// A gate refuses an accepted operation now: it is canceled with the reason.
    fn refuse(&self, id: &RunId, against: &str) -> Next<Self> {
        let mut left = self.clone();
        left.maintenance_requested.retain(|one| one != id);
        left.reprovision_requested = left.reprovision_requested.filter(|one| one != id);
        let note = Note::new(format!("{id} does not begin: {against}"), here!());
        let cancel = vec![(id.clone(), against.to_string())];
        Next::Become(Box::new(Change { cancel, ..Change::new(left, note) }))
    }

    /// True if a changed topology restarts discovery; after a failed maintenance it does not.
    fn looks_for_devices(&self) -> bool {
        match &self.state {
            RackState::Error { cause } => cause.during == During::Discovery,
            RackState::Created
            | RackState::Discovering
            | RackState::Maintenance { .. }
            | RackState::Validating
            | RackState::Ready
            | RackState::Deleting => true,
        }
    }

    /// A reprovision takes precedence over pending maintenance, and needs all its devices released.
    fn reprovision(&self, id: &RunId, seen: &Seen, now: Timestamp) -> Next<Self> {
        if seen.is_over(id) {
            let left = Self { reprovision_requested: None, ..self.clone() };
            let note = Note::new(format!("{id} was withdrawn"), here!());
            return Next::Become(Box::new(Change::new(left, note)));
        }
        if !self.maintenance_requested.is_empty() {
            let said = format!("{} is to be reprovisioned", self.head.id);
            let note = Note::new("the reprovision comes first", here!());
            return self.drop_pending(self.state.clone(), &said, note);
        }
        let claims = seen.operation(id).map(|one| one.claims.as_slice()).unwrap_or_default();
        let held = held(seen.devices.iter().filter(|device| claims.contains(&device.target)));
        // The holder may be an operation that is being canceled for this one: wait for it first.
        match (held.is_empty(), seen.against(id)) {
            (true, Some(against)) => self.refuse(id, against),
            (true, None) => self.begin(vec![id.clone()], "reprovision", seen),
            (false, _) => {
                let said = format!("{id} waits until its devices are let go: {}", some_of(&held));
                Next::Until(now + RECHECK, Why::new(said))
            }
        }
    }

    fn begin(&self, ids: Vec<RunId>, what: &str, seen: &Seen) -> Next<Self> {
        let note = Note::new(format!("{what} {} begins", named(&ids)), here!());
        let mut record = self.clone();
        record.unmended = self.left_alone(&ids, seen);
        record.active.extend(ids.iter().cloned());
        record.maintenance_requested.retain(|id| !ids.contains(id));
        record.reprovision_requested = record.reprovision_requested.filter(|id| !ids.contains(id));
        if matches!(record.state, RackState::Ready | RackState::Error { .. }) {
            record.state = RackState::Maintenance { stage: Stage::FirmwareUpgrade };
        }
        Next::Become(Box::new(Change { begin: ids, ..Change::new(record, note) }))
    }

    /// The earlier failure, if the new operations do not touch its device and so cannot resolve it.
    fn left_alone(&self, ids: &[RunId], seen: &Seen) -> Option<RackTrouble> {
        let failed = match &self.state {
            RackState::Error { cause } => Some(cause),
            RackState::Created
            | RackState::Discovering
            | RackState::Maintenance { .. }
            | RackState::Validating
            | RackState::Ready
            | RackState::Deleting => self.unmended.as_ref(),
        };
        failed.filter(|cause| !seen.touches(ids, cause)).cloned()
    }

    /// Cancels the accepted operations that have not begun, with the reason.
    fn drop_pending(&self, state: RackState, reason: &str, note: Note) -> Next<Self> {
        let mut record = Self { state, ..self.clone() };
        let pending = std::mem::take(&mut record.maintenance_requested);
        if matches!(record.state, RackState::Discovering) {
            record.topology_changed = false;
        }
        let cancel = pending.into_iter().map(|id| (id, reason.to_string())).collect();
        Next::Become(Box::new(Change { cancel, ..Change::new(record, note) }))
    }

    fn delete(&self) -> Next<Self> {
        let mut record = Self { state: RackState::Deleting, ..self.clone() };
        let mut pending = std::mem::take(&mut record.maintenance_requested);
        pending.extend(record.reprovision_requested.take());
        // Canceled operations are waited for like active ones.
        record.active.extend(pending.iter().cloned());
        let reason = format!("{} is being deleted", self.head.id);
        let cancel = pending.into_iter().map(|id| (id, reason.clone())).collect();
        let note = Note::new("marked for deletion", here!());
        Next::Become(Box::new(Change { cancel, ..Change::new(record, note) }))
    }

    /// Maintenance and Validating: follows the active operations and takes over their result.
    fn follow(&self, seen: &Seen) -> Next<Self> {
        if let Some(next) = self.next_pending(seen) {
            return next;
        }
        if let Some(next) = self.let_go(seen) {
            return next;
        }
        let wanted = self.at_work(seen);
        if wanted != self.state {
            let said = match &wanted {
                RackState::Maintenance { stage } => format!("at {}", stage.as_str()),
                RackState::Validating => "looking whether all is as it should be".into(),
                RackState::Ready => "all is as it should be".into(),
                RackState::Created
                | RackState::Discovering
                | RackState::Error { .. }
                | RackState::Deleting => String::new(),
            };
            let over = !seen.any_going(&self.active);
            return match (seen.trouble(&self.active), &self.unmended) {
                (Some(cause), _) if over => self.fail(cause),
                (None, Some(cause)) if over && wanted == RackState::Ready => {
                    self.fail(cause.clone())
                }
                (Some(_) | None, _) => self.settle(wanted, Note::new(said, here!())),
            };
        }
        let going = seen.going(&self.active).map(Operation::words).collect::<Vec<_>>();
        Next::Rest(Why::new(some_of(&going)))
    }

    /// While others are active: drops operations that succeeded or that a rerun replaces.
    fn let_go(&self, seen: &Seen) -> Option<Next<Self>> {
        if !seen.any_going(&self.active) {
            return None;
        }
        let anew = |id: &RunId| self.active.iter().any(|one| seen.is_anew(one, id));
        let done = |id: &&RunId| seen.is_over(id) && (seen.went_well(id) || anew(id));
        let over: Vec<RunId> = self.active.iter().filter(done).cloned().collect();
        if over.is_empty() {
            return None;
        }
        let mut left = self.clone();
        left.active.retain(|id| !over.contains(id));
        let note = Note::new(format!("{} is over, and others go on", named(&over)), here!());
        Some(Next::Become(Box::new(Change::new(left, note))))
    }

    fn settle(&self, state: RackState, note: Note) -> Next<Self> {
        let over = state == RackState::Ready;
        let active = if over { Vec::new() } else { self.active.clone() };
        let record = Self { state, active, ..self.clone() };
        Next::Become(Box::new(Change::new(record, note)))
    }

    /// The next state towards the stage of its operations. No intermediate state is skipped.
    fn at_work(&self, seen: &Seen) -> RackState {
        let legs = seen.going(&self.active).map(|one| one.leg);
        let stage = match legs.map(stage_of).min() {
            Some(Stage::Completed) | None => Stage::Completed,
            Some(stage) => return RackState::Maintenance { stage },
        };
        match &self.state {
            RackState::Maintenance { stage: Stage::Completed } => RackState::Validating,
            RackState::Validating if seen.any_going(&self.active) => RackState::Validating,
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
    fn fail(&self, cause: RackTrouble) -> Next<Self> {
        let device = cause.device.as_ref().map(|device| format!("{device}: ")).unwrap_or_default();
        let said = format!("{}: {device}{}", cause.during.as_str(), cause.trouble.said);
        let mut record = Self { state: RackState::Error { cause }, ..self.clone() };
        record.active.clear();
        record.unmended = None;
        record.maintenance_requested.clear();
        Next::Become(Box::new(Change::new(record, Note::new(said, here!()))))
    }
}

/// As documented: before its first step an operation counts as the firmware upgrade.
fn stage_of(leg: Option<Leg>) -> Stage {
    match leg.map(Leg::activity) {
        None | Some(Some(Activity::FirmwareUpgrade)) => Stage::FirmwareUpgrade,
        Some(Some(Activity::ConfigureNmxCluster)) => Stage::ConfigureNmxCluster,
        Some(Some(Activity::PowerSequence)) => Stage::PowerSequence,
        Some(None) => Stage::Completed,
    }
}

fn held<'a>(devices: impl Iterator<Item = &'a Device>) -> Vec<String> {
    let holder = |device: &Device| {
        device.active_run.as_ref().map(|run| format!("{} is held by {run}", device.target))
    };
    devices.filter_map(holder).collect()
}

fn named(ids: &[RunId]) -> String {
    ids.iter().map(RunId::as_str).collect::<Vec<_>>().join(", ")
}

pub(crate) fn some_of(all: &[String]) -> String {
    few(all, ", ", MAX_NAMED)
}

impl Lifecycle for Rack {
    const KIND: SubjectKind = SubjectKind::Rack;
    const STATES: &'static [&'static str] =
        &["Created", "Discovering", "Maintenance", "Validating", "Ready", "Error", "Deleting"];
    type Seen = Seen;

    fn head(&self) -> &Head {
        &self.head
    }

    fn head_mut(&mut self) -> &mut Head {
        &mut self.head
    }

    fn word(&self) -> &'static str {
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

    fn next(&self, seen: &Seen, now: Timestamp) -> Next<Self> {
        match &self.state {
            RackState::Created => {
                self.become_(RackState::Discovering, Note::new("looking for its devices", here!()))
            }
            RackState::Discovering => self.discover(seen, now),
            RackState::Maintenance { .. } | RackState::Validating => self.follow(seen),
            RackState::Ready => self.idle(seen, now, "nothing is asked of it".into()),
            RackState::Error { cause } => {
                self.idle(seen, now, format!("it waits for a person: {}", cause.trouble.said))
            }
            RackState::Deleting => {
                let going = seen.going(&self.active).map(Operation::words).collect::<Vec<_>>();
                match going.is_empty() {
                    true => Next::Remove(Note::new("removed", here!())),
                    false => Next::Rest(Why::new(some_of(&going))),
                }
            }
        }
    }
}
