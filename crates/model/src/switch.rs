//! Switches of a rack's scale-up fabric. A new switch is read, configured and validated, each by a
//! run on it. While an operation on its rack holds it, it is in `ReProvisioning`; afterwards it is
//! validated again.

use crate::device::transitions::{
    CONFIGURE, READ, SOON, configuring, engine_run, fail, held_by, normal_duration, reading,
    start_run, transition_to,
};
use crate::device::{Device, DeviceReachability, fields_of_device};
use crate::effect::{DesiredPower, DeviceFacts, DeviceWork, Effect};
use crate::id::{RunId, SwitchId};
use crate::lifecycle::AwaitedRunStatus::{Active, Failed, Succeeded};
use crate::lifecycle::{
    DeviceContext, DeviceFailure, DeviceSpec, Lifecycle, LifecycleDecision, RecordHeader,
    SubjectKind, awaited_run_status, head_in_field, run_step,
};
use crate::note;
use crate::plan::RunType;
use crate::run::HistoryNote;
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
    Error { cause: DeviceFailure },
    Deleting,
}

/// The slot in the rack (`head.slot`) is the tray index: the lowest is the primary.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Switch {
    pub head: RecordHeader,
    pub spec: DeviceSpec,
    #[serde(default)]
    pub facts: DeviceFacts,
    #[serde(default)]
    pub observed: Option<DeviceReachability>,
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

type SwitchDecision = LifecycleDecision<Switch>;

impl Switch {
    pub fn new(head: RecordHeader, spec: DeviceSpec) -> Self {
        Self {
            head,
            spec,
            facts: DeviceFacts::default(),
            observed: None,
            state: SwitchState::Created,
            run: None,
            retry_requested: false,
        }
    }

    pub fn id(&self) -> SwitchId {
        SwitchId::trusted(&self.head.id)
    }

    fn read(&self, observed: &DeviceContext, note: HistoryNote) -> SwitchDecision {
        start_run(self, SwitchState::Initializing, engine_run(self, observed, reading()), note)
    }

    fn configure(&self, observed: &DeviceContext, note: HistoryNote) -> SwitchDecision {
        start_run(self, SwitchState::Configuring, engine_run(self, observed, configuring()), note)
    }

    /// Checks that the switch answers and has this power state.
    fn validate(
        &self,
        power: DesiredPower,
        observed: &DeviceContext,
        note: HistoryNote,
    ) -> SwitchDecision {
        let check = DeviceWork::Check { firmware: BTreeMap::new(), power: Some(power) };
        let step = run_step("validate", CHECK.0, CHECK.1, Effect::Device { work: check });
        let run = engine_run(self, observed, (RunType::Check, step));
        start_run(self, SwitchState::Validating, run, note)
    }

    /// In the error state and not held: idle, unless a retry is requested or the failed run was
    /// resumed and completed.
    fn rest_in_error(&self, cause: &DeviceFailure, observed: &DeviceContext) -> SwitchDecision {
        if self.retry_requested {
            return self.read(observed, note!("trying again"));
        }
        match observed.run.as_ref().map(|run| (run, awaited_run_status(run))) {
            Some((run, Succeeded)) => {
                let note = note!("{} succeeded after all", run.spec.id);
                self.read(observed, note)
            }
            Some((_, Active | Failed(_))) | None => SwitchDecision::idle(cause.message.clone()),
        }
    }

    /// In the error state and held by an operation on its rack, or by the failed run, which was
    /// resumed.
    fn held_in_error(&self, holder: &RunId, observed: &DeviceContext) -> SwitchDecision {
        match observed.run.as_ref().is_some_and(|run| run.spec.id == *holder) {
            true => {
                SwitchDecision::idle(format!("operation {holder} goes on with what had failed"))
            }
            false => self.reprovision(holder),
        }
    }

    fn reprovision(&self, holder: &RunId) -> SwitchDecision {
        let note = note!("operation {holder} works on it");
        transition_to(self, SwitchState::ReProvisioning, note)
    }
}

impl Device for Switch {
    type State = SwitchState;

    const TARGET: TargetKind = TargetKind::Switch;
    const FIELD: &'static str = "switch";
    const COMMAND: &'static str = "switch";
    const WAITING: &'static [&'static str] =
        &["Created", "Initializing", "Configuring", "Validating", "ReProvisioning", "Deleting"];

    fn name(now: Timestamp, random: u64) -> String {
        SwitchId::new(now, random).to_string()
    }

    fields_of_device!(SwitchState);
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
    type TurnInput = DeviceContext;

    head_in_field!();

    fn state_name(&self) -> &'static str {
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

    fn merge_facts(&mut self, facts: &DeviceFacts) {
        self.facts.merge(facts);
    }

    fn normal_duration(&self) -> Option<Duration> {
        match self.state {
            SwitchState::Created => Some(SOON),
            SwitchState::Initializing => normal_duration(READ),
            SwitchState::Configuring => normal_duration(CONFIGURE),
            SwitchState::Validating => normal_duration(CHECK),
            SwitchState::ReProvisioning | SwitchState::Deleting => Some(HELD),
            SwitchState::Ready | SwitchState::Error { .. } => None,
        }
    }

    fn next(&self, observed: &DeviceContext, _now: Timestamp) -> SwitchDecision {
        use SwitchState as S;
        match (&self.state, self.head.deleted, &self.head.active_run) {
            (S::Created | S::Ready | S::Error { .. }, true, _)
            | (S::ReProvisioning, true, None) => {
                transition_to(self, S::Deleting, note!("marked for deletion"))
            }
            (S::Created, false, _) => self.read(observed, note!("reading it")),
            (S::Initializing, _, _) => match observed.waited() {
                Active => SwitchDecision::idle("it is being read"),
                Succeeded => self.configure(observed, note!("it was read")),
                Failed(cause) => fail(self, cause),
            },
            (S::Configuring, _, _) => match observed.waited() {
                Active => SwitchDecision::idle("it is being configured"),
                Succeeded => self.validate(DesiredPower::On, observed, note!("it is configured")),
                Failed(cause) => fail(self, cause),
            },
            (S::Validating, _, _) => match observed.waited() {
                Active => SwitchDecision::idle("it is being validated"),
                Succeeded => transition_to(self, S::Ready, note!("it is as it should be")),
                Failed(cause) => fail(self, cause),
            },
            (S::Ready, false, Some(holder)) => self.reprovision(holder),
            (S::Ready, false, None) => SwitchDecision::idle("no request is pending"),
            (S::ReProvisioning, _, Some(holder)) => SwitchDecision::Idle(held_by(holder)),
            (S::ReProvisioning, false, None) => {
                // After its rack was powered off, a switch is off, and that is correct.
                let left = self.facts.power.unwrap_or(DesiredPower::On);
                self.validate(left, observed, note!("it was released"))
            }
            (S::Error { .. }, false, Some(holder)) => self.held_in_error(holder, observed),
            (S::Error { cause }, false, None) => self.rest_in_error(cause, observed),
            (S::Deleting, _, Some(holder)) => SwitchDecision::Idle(held_by(holder)),
            (S::Deleting, _, None) => SwitchDecision::Remove(note!("removed")),
        }
    }
}
