//! Switches of a rack's scale-up fabric. A new switch is read, configured and validated, each by a
//! run on it. While an operation on its rack holds it, it is in `ReProvisioning`; afterwards it is
//! validated again.

use crate::device::moves::{
    CONFIGURE, READ, SOON, become_, configuring, engine_run, fail, held_by, patience_of, reading,
    work,
};
use crate::device::{Device, Observed};
use crate::effect::{DeviceWork, Effect, Facts, PowerTo};
use crate::here;
use crate::id::{RunId, SwitchId};
use crate::lifecycle::{
    DeviceContext, DeviceSpec, Head, Lifecycle, Next, SubjectKind, Trouble, Waited, Why, run_step,
    waited,
};
use crate::plan::RunType;
use crate::run::Note;
use crate::target::TargetKind;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum SwitchState {
    Created,
    Initializing,
    Configuring,
    Validating,
    Ready,
    ReProvisioning,
    Error { cause: Trouble },
    Deleting,
}

/// The slot in the rack (`head.slot`) is the tray index: the lowest is the primary.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Switch {
    pub head: Head,
    pub spec: DeviceSpec,
    #[serde(default)]
    pub facts: Facts,
    #[serde(default)]
    pub observed: Option<Observed>,
    pub state: SwitchState,
    /// The run that the state waits for.
    #[serde(default)]
    pub run: Option<RunId>,
    /// An operator requested a retry of what failed.
    #[serde(default)]
    pub retry_requested: bool,
}

/// Timeout in seconds and number of retries of the validation: a switch may still be booting after
/// an operation.
const CHECK: (u32, u32) = (120, 5);
/// The normal time for which an operation on a rack holds a switch.
const HELD: Duration = Duration::from_secs(3 * 3_600);

impl Switch {
    pub fn new(head: Head, spec: DeviceSpec) -> Self {
        Self {
            head,
            spec,
            facts: Facts::default(),
            observed: None,
            state: SwitchState::Created,
            run: None,
            retry_requested: false,
        }
    }

    pub fn id(&self) -> SwitchId {
        SwitchId::trusted(&self.head.id)
    }

    fn read(&self, seen: &DeviceContext, note: Note) -> Next<Self> {
        work(self, SwitchState::Initializing, engine_run(self, seen, reading()), note)
    }

    fn configure(&self, seen: &DeviceContext, note: Note) -> Next<Self> {
        work(self, SwitchState::Configuring, engine_run(self, seen, configuring()), note)
    }

    /// Checks that the switch answers and has this power state.
    fn validate(&self, power: PowerTo, seen: &DeviceContext, note: Note) -> Next<Self> {
        let check = DeviceWork::Check { firmware: BTreeMap::new(), power: Some(power) };
        let step = run_step("validate", CHECK.0, CHECK.1, Effect::Device { work: check });
        let run = engine_run(self, seen, (RunType::Check, step));
        work(self, SwitchState::Validating, run, note)
    }

    /// In the error state and not held: idle, unless a retry is requested or the failed run was
    /// resumed and completed.
    fn rest_in_error(&self, cause: &Trouble, seen: &DeviceContext) -> Next<Self> {
        if self.retry_requested {
            return self.read(seen, Note::new("trying again", here!()));
        }
        match seen.run.as_ref().map(|run| (run, waited(run))) {
            Some((run, Waited::Done)) => {
                let note = Note::new(format!("{} succeeded after all", run.spec.id), here!());
                self.read(seen, note)
            }
            Some((_, Waited::Going | Waited::Failed(_))) | None => {
                Next::Rest(Why::new(cause.said.clone()))
            }
        }
    }

    /// In the error state and held by an operation on its rack, or by the failed run, which was
    /// resumed.
    fn held_in_error(&self, holder: &RunId, seen: &DeviceContext) -> Next<Self> {
        match seen.run.as_ref().is_some_and(|run| run.spec.id == *holder) {
            true => {
                Next::Rest(Why::new(format!("operation {holder} goes on with what had failed")))
            }
            false => self.reprovision(holder),
        }
    }

    fn reprovision(&self, holder: &RunId) -> Next<Self> {
        let note = Note::new(format!("operation {holder} works on it"), here!());
        become_(self, SwitchState::ReProvisioning, note)
    }
}

impl Device for Switch {
    type State = SwitchState;

    const TARGET: TargetKind = TargetKind::Switch;
    const FIELD: &'static str = "switch";
    const COMMAND: &'static str = "switch";
    const WAITING: &'static [&'static str] =
        &["Created", "Initializing", "Configuring", "Validating", "ReProvisioning", "Deleting"];

    fn name(now: Timestamp, chance: u64) -> String {
        SwitchId::new(now, chance).to_string()
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

    fn in_state(&self, state: SwitchState, run: Option<RunId>) -> Self {
        Self { state, run, retry_requested: false, ..self.clone() }
    }

    fn in_error(cause: Trouble) -> SwitchState {
        SwitchState::Error { cause }
    }

    fn run(&self) -> Option<&RunId> {
        self.run.as_ref()
    }

    fn trouble(&self) -> Option<&Trouble> {
        match &self.state {
            SwitchState::Error { cause } => Some(cause),
            SwitchState::Created
            | SwitchState::Initializing
            | SwitchState::Configuring
            | SwitchState::Validating
            | SwitchState::Ready
            | SwitchState::ReProvisioning
            | SwitchState::Deleting => None,
        }
    }

    fn want_retry(&mut self) {
        self.retry_requested = true;
    }

    fn is_watched(&self) -> bool {
        match self.state {
            SwitchState::Ready | SwitchState::Error { .. } => true,
            SwitchState::Created
            | SwitchState::Initializing
            | SwitchState::Configuring
            | SwitchState::Validating
            | SwitchState::ReProvisioning
            | SwitchState::Deleting => false,
        }
    }
}

impl Lifecycle for Switch {
    const KIND: SubjectKind = SubjectKind::Switch;
    const STATES: &'static [&'static str] = &[
        "Created",
        "Initializing",
        "Configuring",
        "Validating",
        "Ready",
        "ReProvisioning",
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
            SwitchState::Created => "Created",
            SwitchState::Initializing => "Initializing",
            SwitchState::Configuring => "Configuring",
            SwitchState::Validating => "Validating",
            SwitchState::Ready => "Ready",
            SwitchState::ReProvisioning => "ReProvisioning",
            SwitchState::Error { .. } => "Error",
            SwitchState::Deleting => "Deleting",
        }
    }

    fn learn(&mut self, facts: &Facts) {
        self.facts.learn(facts);
    }

    fn patience(&self) -> Option<Duration> {
        match self.state {
            SwitchState::Created => Some(SOON),
            SwitchState::Initializing => patience_of(READ),
            SwitchState::Configuring => patience_of(CONFIGURE),
            SwitchState::Validating => patience_of(CHECK),
            SwitchState::ReProvisioning | SwitchState::Deleting => Some(HELD),
            SwitchState::Ready | SwitchState::Error { .. } => None,
        }
    }

    fn next(&self, seen: &DeviceContext, _now: Timestamp) -> Next<Self> {
        use SwitchState as S;
        match (&self.state, self.head.deleted, &self.head.active_run) {
            (S::Created | S::Ready | S::Error { .. }, true, _)
            | (S::ReProvisioning, true, None) => {
                become_(self, S::Deleting, Note::new("marked for deletion", here!()))
            }
            (S::Created, false, _) => self.read(seen, Note::new("reading it", here!())),
            (S::Initializing, _, _) => match seen.waited() {
                Waited::Going => Next::Rest(Why::new("it is being read")),
                Waited::Done => self.configure(seen, Note::new("it was read", here!())),
                Waited::Failed(cause) => fail(self, cause),
            },
            (S::Configuring, _, _) => match seen.waited() {
                Waited::Going => Next::Rest(Why::new("it is being configured")),
                Waited::Done => {
                    self.validate(PowerTo::On, seen, Note::new("it is configured", here!()))
                }
                Waited::Failed(cause) => fail(self, cause),
            },
            (S::Validating, _, _) => match seen.waited() {
                Waited::Going => Next::Rest(Why::new("it is being validated")),
                Waited::Done => {
                    become_(self, S::Ready, Note::new("it is as it should be", here!()))
                }
                Waited::Failed(cause) => fail(self, cause),
            },
            (S::Ready, false, Some(holder)) => self.reprovision(holder),
            (S::Ready, false, None) => Next::Rest(Why::new("nothing is asked of it")),
            (S::ReProvisioning, _, Some(holder)) => Next::Rest(held_by(holder)),
            (S::ReProvisioning, false, None) => {
                // After its rack was powered off, a switch is off, and that is correct.
                let left = self.facts.power.unwrap_or(PowerTo::On);
                self.validate(left, seen, Note::new("it was let go", here!()))
            }
            (S::Error { .. }, false, Some(holder)) => self.held_in_error(holder, seen),
            (S::Error { cause }, false, None) => self.rest_in_error(cause, seen),
            (S::Deleting, _, Some(holder)) => Next::Rest(held_by(holder)),
            (S::Deleting, _, None) => Next::Remove(Note::new("removed", here!())),
        }
    }
}
