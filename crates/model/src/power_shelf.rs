//! Power shelves: what feeds a rack. The states and moves are those of the document; what each of them does is a run on the shelf.

use crate::effect::{DeviceWork, Effect, Facts, Manner, PowerTo};
use crate::here;
use crate::id::{PowerShelfId, RunId};
use crate::lifecycle::{
    Around, Change, DeviceSpec, Head, Lifecycle, NewRun, Next, SubjectKind, Trouble, Waited, Why,
    run_step,
};
use crate::plan::{Params, RunStep, RunType};
use crate::run::Note;
use crate::target::{TargetId, TargetKind};
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum PowerShelfState {
    Initializing,
    FetchingData,
    Configuring,
    Ready,
    Maintenance { operation: PowerTo },
    Error { cause: Trouble },
    Deleting,
}

/// What was asked of a shelf, and by whom.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MaintenanceRequest {
    pub requested_at: Timestamp,
    pub initiator: String,
    pub operation: PowerTo,
    /// Why it was let through although machines in service go dark.
    #[serde(default)]
    pub forced: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PowerShelf {
    pub head: Head,
    pub spec: DeviceSpec,
    #[serde(default)]
    pub facts: Facts,
    pub state: PowerShelfState,
    /// The run that the state waits for.
    #[serde(default)]
    pub run: Option<RunId>,
    #[serde(default)]
    pub maintenance_requested: Option<MaintenanceRequest>,
    /// Somebody wants what failed tried again.
    #[serde(default)]
    pub retry_requested: bool,
}

/// How long each step of a shelf's own may take, in seconds, and how often it is tried again.
const READ: (u32, u32) = (120, 3);
const CONFIGURE: (u32, u32) = (120, 3);
const POWER: (u32, u32) = (300, 1);

impl PowerShelf {
    pub fn new(head: Head, spec: DeviceSpec) -> Self {
        Self {
            head,
            spec,
            facts: Facts::default(),
            state: PowerShelfState::Initializing,
            run: None,
            maintenance_requested: None,
            retry_requested: false,
        }
    }

    pub fn id(&self) -> PowerShelfId {
        PowerShelfId::trusted(&self.head.id)
    }

    /// The same in another state, which waits for nothing.
    fn become_(&self, state: PowerShelfState, note: Note) -> Next<Self> {
        let record = Self { state, run: None, retry_requested: false, ..self.clone() };
        Next::Become(Box::new(Change::new(record, note)))
    }

    /// The same in a state that waits for a run on the shelf.
    fn work(
        &self,
        state: PowerShelfState,
        seen: &Around,
        step: (RunType, RunStep),
        note: Note,
    ) -> Next<Self> {
        let (run_type, step) = step;
        let fresh = seen.fresh.clone();
        let head = Head { active_run: Some(fresh.clone()), ..self.head.clone() };
        let initiator = match &self.maintenance_requested {
            Some(request) => request.initiator.clone(),
            None => "engine".into(),
        };
        let run = NewRun {
            id: fresh.clone(),
            target: TargetId::new(TargetKind::PowerShelf, self.head.id.as_str()),
            run_type,
            steps: vec![step],
            request_id: fresh.to_string(),
            initiator,
            part_of: None,
            reports_to: Some(self.subject()),
            claims: Vec::new(),
            params: Params::new(),
        };
        let record = Self { head, state, run: Some(fresh), retry_requested: false, ..self.clone() };
        let change = Change { start: vec![run], ..Change::new(record, note) };
        Next::Become(Box::new(change))
    }

    fn fetch(&self, seen: &Around, note: Note) -> Next<Self> {
        let read = run_step("read", READ.0, READ.1, Effect::Device { work: DeviceWork::Read });
        self.work(PowerShelfState::FetchingData, seen, (RunType::Intake, read), note)
    }

    fn configure(&self, seen: &Around, note: Note) -> Next<Self> {
        let effect = Effect::Device { work: DeviceWork::Configure };
        let step = run_step("configure", CONFIGURE.0, CONFIGURE.1, effect);
        self.work(PowerShelfState::Configuring, seen, (RunType::Intake, step), note)
    }

    fn maintain(&self, seen: &Around, request: &MaintenanceRequest) -> Next<Self> {
        let (operation, name) = match request.operation {
            PowerTo::On => (PowerTo::On, "power-on"),
            PowerTo::Off => (PowerTo::Off, "power-off"),
        };
        let effect = Effect::Power { to: operation, manner: Manner::CONFIGURED };
        let step = (RunType::Power, run_step(name, POWER.0, POWER.1, effect));
        let note = Note::new(format!("{name} for {}", request.initiator), here!());
        self.work(PowerShelfState::Maintenance { operation }, seen, step, note)
    }

    /// A failure clears the request in the very commit that makes it an error: nothing is tried again on hope.
    fn fail(&self, cause: Trouble) -> Next<Self> {
        let note = Note::new(cause.said.clone(), here!());
        let failed = Self { maintenance_requested: None, ..self.clone() };
        failed.become_(PowerShelfState::Error { cause }, note)
    }
}

impl Lifecycle for PowerShelf {
    const KIND: SubjectKind = SubjectKind::PowerShelf;
    type Seen = Around;

    fn head(&self) -> &Head {
        &self.head
    }

    fn head_mut(&mut self) -> &mut Head {
        &mut self.head
    }

    fn word(&self) -> &'static str {
        match self.state {
            PowerShelfState::Initializing => "Initializing",
            PowerShelfState::FetchingData => "FetchingData",
            PowerShelfState::Configuring => "Configuring",
            PowerShelfState::Ready => "Ready",
            PowerShelfState::Maintenance { .. } => "Maintenance",
            PowerShelfState::Error { .. } => "Error",
            PowerShelfState::Deleting => "Deleting",
        }
    }

    fn learn(&mut self, facts: &Facts) {
        self.facts.learn(facts);
    }

    fn next(&self, seen: &Around, _now: Timestamp) -> Next<Self> {
        use PowerShelfState as S;
        match (&self.state, self.head.deleted, &self.maintenance_requested) {
            (S::Initializing, _, _) => self.fetch(seen, Note::new("reading it", here!())),
            (S::FetchingData, _, _) => match seen.waited() {
                Waited::Going => Next::Rest(Why::new("it is being read")),
                Waited::Done => self.configure(seen, Note::new("it was read", here!())),
                Waited::Failed(cause) => self.fail(cause),
            },
            (S::Configuring, _, _) => match seen.waited() {
                Waited::Going => Next::Rest(Why::new("it is being configured")),
                Waited::Done => self.become_(S::Ready, Note::new("it is configured", here!())),
                Waited::Failed(cause) => self.fail(cause),
            },
            (S::Ready | S::Error { .. }, true, _) => {
                self.become_(S::Deleting, Note::new("marked for deletion", here!()))
            }
            (S::Ready | S::Error { .. }, false, Some(request)) => match &self.head.active_run {
                Some(holder) => Next::Rest(Why::new(format!("it is held by {holder}"))),
                None => self.maintain(seen, request),
            },
            (S::Error { .. }, false, None) if self.retry_requested => {
                self.fetch(seen, Note::new("trying again", here!()))
            }
            (S::Ready, false, None) => Next::Rest(Why::new("nothing is asked of it")),
            (S::Error { cause }, false, None) => Next::Rest(Why::new(cause.said.clone())),
            (S::Maintenance { operation }, _, _) => match seen.waited() {
                Waited::Going => Next::Rest(Why::new("its power is being switched")),
                Waited::Done => {
                    let said = match operation {
                        PowerTo::On => "its power is on",
                        PowerTo::Off => "its power is off",
                    };
                    let done = Self { maintenance_requested: None, ..self.clone() };
                    done.become_(S::Ready, Note::new(said, here!()))
                }
                Waited::Failed(cause) => self.fail(cause),
            },
            (S::Deleting, _, _) => match &self.head.active_run {
                Some(holder) => Next::Rest(Why::new(format!("it is held by {holder}"))),
                None => Next::Remove(Note::new("removed", here!())),
            },
        }
    }
}
