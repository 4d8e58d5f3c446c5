//! Power shelves: the power supply of a rack. The states and transitions are those of the document;
//! the work in each state is a run on the shelf.

pub mod maintenance;

use crate::device::moves::{
    CONFIGURE, READ, SOON, become_, configuring, engine_run, fail, held_by, patience_of, reading,
    work,
};
use crate::device::{Device, Observed, own_run, power_word};
use crate::effect::{Effect, Facts, PowerOffPolicy, PowerTo};
use crate::here;
use crate::id::{PowerShelfId, RunId};
use crate::lifecycle::{
    DeviceContext, DeviceSpec, Head, Lifecycle, NewRun, Next, SubjectKind, Trouble, Waited, Why,
    run_step, waited,
};
use crate::plan::RunType;
use crate::rack::maintenance::FORCED;
use crate::run::{Note, Run};
use crate::target::TargetKind;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::time::Duration;

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

/// A requested power change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MaintenanceRequest {
    pub requested_at: Timestamp,
    pub initiator: String,
    pub operation: PowerTo,
    /// The reason for which machines in service may lose power.
    #[serde(default)]
    pub forced: Option<String>,
    /// The client's id of the request: repeating it is not refused as a second request.
    #[serde(default)]
    pub request_id: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PowerShelf {
    pub head: Head,
    pub spec: DeviceSpec,
    #[serde(default)]
    pub facts: Facts,
    #[serde(default)]
    pub observed: Option<Observed>,
    pub state: PowerShelfState,
    /// The run that the state waits for.
    #[serde(default)]
    pub run: Option<RunId>,
    #[serde(default)]
    pub maintenance_requested: Option<MaintenanceRequest>,
    /// An operator requested a retry of what failed.
    #[serde(default)]
    pub retry_requested: bool,
    /// Reading or configuring failed. It must be repeated before the shelf is Ready, whatever else
    /// is requested meanwhile.
    #[serde(default)]
    pub intake_owed: bool,
}

/// Timeout in seconds and number of retries of a power change.
const POWER: (u32, u32) = (300, 1);
/// The normal time for which another operation holds a shelf that is being deleted.
const HELD: Duration = Duration::from_secs(3_600);

impl PowerShelf {
    pub fn new(head: Head, spec: DeviceSpec) -> Self {
        Self {
            head,
            spec,
            facts: Facts::default(),
            observed: None,
            state: PowerShelfState::Initializing,
            run: None,
            maintenance_requested: None,
            retry_requested: false,
            intake_owed: false,
        }
    }

    pub fn id(&self) -> PowerShelfId {
        PowerShelfId::trusted(&self.head.id)
    }

    fn fetch(&self, seen: &DeviceContext, note: Note) -> Next<Self> {
        work(self, PowerShelfState::FetchingData, engine_run(self, seen, reading()), note)
    }

    fn configure(&self, seen: &DeviceContext, note: Note) -> Next<Self> {
        work(self, PowerShelfState::Configuring, engine_run(self, seen, configuring()), note)
    }

    fn maintain(&self, seen: &DeviceContext, request: &MaintenanceRequest) -> Next<Self> {
        let operation = request.operation;
        let name = maintenance::step_name(operation);
        if let Some(against) = &seen.against {
            // While the request waited for another operation, machines came into service.
            let note = Note::new(format!("{name} does not begin: {against}"), here!());
            return become_(&self.answered(), self.state.clone(), note);
        }
        let effect = Effect::Power { to: operation, power_off: PowerOffPolicy::CONFIGURED };
        let step = (RunType::Power, run_step(name, POWER.0, POWER.1, effect));
        let note = Note::new(format!("{name} for {}", request.initiator), here!());
        let run = own_run(self, seen.fresh.clone(), step, request.initiator.clone());
        let request_id = request.request_id.clone().unwrap_or(run.request_id.clone());
        let forced = request.forced.iter().map(|why| (FORCED.to_string(), why.clone()));
        let run = NewRun { request_id, params: forced.collect(), ..run };
        work(self, PowerShelfState::Maintenance { operation }, run, note)
    }

    /// Enters the error state; reading and configuring remain to be done.
    fn fail_intake(&self, cause: Trouble) -> Next<Self> {
        fail(&Self { intake_owed: true, ..self.clone() }, cause)
    }

    /// The power change succeeded. The document says Ready follows, for a shelf that was Ready
    /// before; a shelf that was not read and configured yet is read first.
    fn switched(&self, seen: &DeviceContext, note: Note) -> Next<Self> {
        match self.intake_owed {
            true => self.fetch(seen, note),
            false => become_(self, PowerShelfState::Ready, note),
        }
    }

    /// The request has ended, with or without success. It is cleared in the commit that leaves the
    /// state, so nothing is retried without an operator.
    fn answered(&self) -> Self {
        Self { maintenance_requested: None, ..self.clone() }
    }

    /// In the error state without a request: idle, unless a retry is requested or the failed run
    /// was resumed and completed.
    fn rest_in_error(&self, cause: &Trouble, seen: &DeviceContext) -> Next<Self> {
        if self.retry_requested {
            return self.fetch(seen, Note::new("trying again", here!()));
        }
        match seen.run.as_ref().map(|run| (run, waited(run))) {
            Some((run, Waited::Going)) => Next::Rest(Why::new(format!(
                "operation {} goes on with what had failed",
                run.spec.id
            ))),
            Some((run, Waited::Done)) => self.mended(run, seen),
            Some((_, Waited::Failed(_))) | None => Next::Rest(Why::new(cause.said.clone())),
        }
    }

    fn mended(&self, run: &Run, seen: &DeviceContext) -> Next<Self> {
        let note = Note::new(format!("{} succeeded after all", run.spec.id), here!());
        if run.spec.run_type == RunType::Power {
            return self.switched(seen, note);
        }
        self.fetch(seen, note)
    }
}

impl Device for PowerShelf {
    type State = PowerShelfState;

    const TARGET: TargetKind = TargetKind::PowerShelf;
    const FIELD: &'static str = "power_shelf";
    const COMMAND: &'static str = "power-shelf";
    const WAITING: &'static [&'static str] =
        &["Initializing", "FetchingData", "Configuring", "Maintenance", "Deleting"];

    fn name(now: Timestamp, chance: u64) -> String {
        PowerShelfId::new(now, chance).to_string()
    }

    fn create(head: Head, spec: DeviceSpec) -> Self {
        Self::new(head, spec)
    }

    fn spec(&self) -> &DeviceSpec {
        &self.spec
    }

    fn spec_mut(&mut self) -> &mut DeviceSpec {
        &mut self.spec
    }

    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn observed(&self) -> Option<&Observed> {
        self.observed.as_ref()
    }

    fn observed_mut(&mut self) -> &mut Option<Observed> {
        &mut self.observed
    }

    fn in_state(&self, state: PowerShelfState, run: Option<RunId>) -> Self {
        Self { state, run, retry_requested: false, ..self.clone() }
    }

    fn in_error(cause: Trouble) -> PowerShelfState {
        PowerShelfState::Error { cause }
    }

    fn run(&self) -> Option<&RunId> {
        self.run.as_ref()
    }

    fn trouble(&self) -> Option<&Trouble> {
        match &self.state {
            PowerShelfState::Error { cause } => Some(cause),
            PowerShelfState::Initializing
            | PowerShelfState::FetchingData
            | PowerShelfState::Configuring
            | PowerShelfState::Ready
            | PowerShelfState::Maintenance { .. }
            | PowerShelfState::Deleting => None,
        }
    }

    fn want_retry(&mut self) {
        self.retry_requested = true;
    }

    fn is_watched(&self) -> bool {
        match self.state {
            PowerShelfState::Ready | PowerShelfState::Error { .. } => true,
            PowerShelfState::Initializing
            | PowerShelfState::FetchingData
            | PowerShelfState::Configuring
            | PowerShelfState::Maintenance { .. }
            | PowerShelfState::Deleting => false,
        }
    }

    fn detail(&self) -> String {
        match &self.state {
            PowerShelfState::Maintenance { operation: PowerTo::On } => "PowerOn".into(),
            PowerShelfState::Maintenance { operation: PowerTo::Off } => "PowerOff".into(),
            PowerShelfState::Initializing
            | PowerShelfState::FetchingData
            | PowerShelfState::Configuring
            | PowerShelfState::Ready
            | PowerShelfState::Error { .. }
            | PowerShelfState::Deleting => String::new(),
        }
    }
}

impl Lifecycle for PowerShelf {
    const KIND: SubjectKind = SubjectKind::PowerShelf;
    const STATES: &'static [&'static str] = &[
        "Initializing",
        "FetchingData",
        "Configuring",
        "Ready",
        "Maintenance",
        "Error",
        "Deleting",
    ];
    type Seen = DeviceContext;

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

    fn patience(&self) -> Option<Duration> {
        match self.state {
            PowerShelfState::Initializing => Some(SOON),
            PowerShelfState::FetchingData => patience_of(READ),
            PowerShelfState::Configuring => patience_of(CONFIGURE),
            PowerShelfState::Maintenance { .. } => patience_of(POWER),
            PowerShelfState::Deleting => Some(HELD),
            PowerShelfState::Ready | PowerShelfState::Error { .. } => None,
        }
    }

    fn next(&self, seen: &DeviceContext, _now: Timestamp) -> Next<Self> {
        use PowerShelfState as S;
        match (&self.state, self.head.deleted, &self.maintenance_requested) {
            (S::Initializing, _, _) => self.fetch(seen, Note::new("reading it", here!())),
            (S::FetchingData, _, _) => match seen.waited() {
                Waited::Going => Next::Rest(Why::new("it is being read")),
                Waited::Done => self.configure(seen, Note::new("it was read", here!())),
                Waited::Failed(cause) => self.fail_intake(cause),
            },
            (S::Configuring, _, _) => match seen.waited() {
                Waited::Going => Next::Rest(Why::new("it is being configured")),
                Waited::Done => {
                    let taken_in = Self { intake_owed: false, ..self.clone() };
                    become_(&taken_in, S::Ready, Note::new("it is configured", here!()))
                }
                Waited::Failed(cause) => self.fail_intake(cause),
            },
            (S::Ready | S::Error { .. }, true, _) => {
                let note = Note::new("marked for deletion", here!());
                become_(&self.answered(), S::Deleting, note)
            }
            (S::Ready | S::Error { .. }, false, Some(request)) => self.maintain(seen, request),
            (S::Ready, false, None) => Next::Rest(Why::new("nothing is asked of it")),
            (S::Error { cause }, false, None) => self.rest_in_error(cause, seen),
            (S::Maintenance { operation }, _, _) => match seen.waited() {
                Waited::Going => Next::Rest(Why::new("its power is being switched")),
                Waited::Done => {
                    let said = format!("its power is {}", power_word(*operation));
                    self.answered().switched(seen, Note::new(said, here!()))
                }
                Waited::Failed(cause) => fail(&self.answered(), cause),
            },
            (S::Deleting, _, _) => match &self.head.active_run {
                Some(holder) => Next::Rest(held_by(holder)),
                None => Next::Remove(Note::new("removed", here!())),
            },
        }
    }
}
