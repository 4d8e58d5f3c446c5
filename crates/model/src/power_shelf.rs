//! Power shelves: the power supply of a rack. The states and transitions are those of the document;
//! the work in each state is a run on the shelf.

pub mod maintenance;
pub mod topology;

use crate::device::transitions::{
    CONFIGURE, READ, SOON, configuring, engine_run, fail, held_by, normal_duration, reading,
    start_run, transition_to,
};
use crate::device::{Device, DeviceReachability, fields_of_device, own_run, power_word};
use crate::effect::{DesiredPower, DeviceFacts, Effect, PowerOffPolicy};
use crate::gate::Overrides;
use crate::id::{PowerShelfId, RunId};
use crate::lifecycle::AwaitedRunStatus::{Active, Failed, Succeeded};
use crate::lifecycle::{
    DeviceContext, DeviceFailure, DeviceSpec, Lifecycle, LifecycleDecision, NewRun, RecordHeader,
    SubjectKind, awaited_run_status, head_in_field, run_step,
};
use crate::plan::RunStep;
use crate::plan::{Params, RunType};
use crate::run::{HistoryNote, Run};
use crate::target::TargetKind;
use crate::time::Timestamp;
use crate::{here, note};
use serde::{Deserialize, Serialize};
use std::time::Duration;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum PowerShelfState {
    Initializing,
    FetchingData,
    Configuring,
    Ready,
    Maintenance { operation: DesiredPower },
    Error { cause: DeviceFailure },
    Deleting,
}

/// A requested power change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShelfPowerRequest {
    pub requested_at: Timestamp,
    pub initiator: String,
    pub operation: DesiredPower,
    /// Older versions stored it as `forced`.
    #[serde(default, alias = "forced")]
    pub overrides: Overrides,
    /// The client's id of the request: repeating it is not refused as a second request.
    #[serde(default)]
    pub request_id: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PowerShelf {
    pub head: RecordHeader,
    pub spec: DeviceSpec,
    #[serde(default)]
    pub facts: DeviceFacts,
    #[serde(default)]
    pub observed: Option<DeviceReachability>,
    pub state: PowerShelfState,
    /// The run that the state waits for.
    #[serde(default)]
    pub run: Option<RunId>,
    #[serde(default)]
    pub maintenance_requested: Option<ShelfPowerRequest>,
    /// An operator requested a retry of what failed.
    #[serde(default)]
    pub retry_requested: bool,
    /// Reading or configuring failed. It must be repeated before the shelf is Ready, whatever else
    /// is requested meanwhile.
    #[serde(default)]
    #[serde(rename = "intake_owed")]
    pub intake_incomplete: bool,
}

/// Timeout in seconds and number of retries of a power change.
const POWER: (u32, u32) = (300, 1);

/// The step that switches a shelf.
pub fn power_step(operation: DesiredPower) -> RunStep {
    let effect = Effect::Power { to: operation, power_off: PowerOffPolicy::PROVIDER_DEFAULT };
    run_step(maintenance::step_name(operation), POWER.0, POWER.1, effect)
}
/// The normal time for which another operation holds a shelf that is being deleted.
const HELD: Duration = Duration::from_secs(3_600);

type ShelfDecision = LifecycleDecision<PowerShelf>;

impl PowerShelf {
    pub fn new(head: RecordHeader, spec: DeviceSpec) -> Self {
        Self {
            head,
            spec,
            facts: DeviceFacts::default(),
            observed: None,
            state: PowerShelfState::Initializing,
            run: None,
            maintenance_requested: None,
            retry_requested: false,
            intake_incomplete: false,
        }
    }

    pub fn id(&self) -> PowerShelfId {
        PowerShelfId::trusted(&self.head.id)
    }

    fn fetch(&self, observed: &DeviceContext, note: HistoryNote) -> ShelfDecision {
        start_run(self, PowerShelfState::FetchingData, engine_run(self, observed, reading()), note)
    }

    fn configure(&self, observed: &DeviceContext, note: HistoryNote) -> ShelfDecision {
        start_run(
            self,
            PowerShelfState::Configuring,
            engine_run(self, observed, configuring()),
            note,
        )
    }

    fn maintain(&self, observed: &DeviceContext, request: &ShelfPowerRequest) -> ShelfDecision {
        let operation = request.operation;
        let name = maintenance::step_name(operation);
        if let Some(against) = &observed.against {
            // While the request waited for another operation, machines came into service.
            let note = note!("{name} does not begin: {against}");
            return transition_to(&self.answered(), self.state.clone(), note);
        }
        let step = (RunType::Power, power_step(operation));
        let note = note!("{name} for {}", request.initiator);
        let run = own_run(self, observed.fresh.clone(), step, request.initiator.clone());
        let request_id = request.request_id.clone().unwrap_or(run.request_id.clone());
        let mut params = Params::new();
        request.overrides.store_in(&mut params);
        let run = NewRun { request_id, params, ..run };
        start_run(self, PowerShelfState::Maintenance { operation }, run, note)
    }

    /// Enters the error state; reading and configuring remain to be done.
    fn fail_intake(&self, cause: DeviceFailure) -> ShelfDecision {
        fail(&Self { intake_incomplete: true, ..self.clone() }, cause)
    }

    /// The power change succeeded. The document says Ready follows, for a shelf that was Ready
    /// before; a shelf that was not read and configured yet is read first.
    fn switched(&self, observed: &DeviceContext, note: HistoryNote) -> ShelfDecision {
        match self.intake_incomplete {
            true => self.fetch(observed, note),
            false => transition_to(self, PowerShelfState::Ready, note),
        }
    }

    /// The request has ended, with or without success. It is cleared in the commit that leaves the
    /// state, so nothing is retried without an operator.
    fn answered(&self) -> Self {
        Self { maintenance_requested: None, ..self.clone() }
    }

    /// In the error state without a request: idle, unless a retry is requested or the failed run
    /// was resumed and completed.
    fn rest_in_error(&self, cause: &DeviceFailure, observed: &DeviceContext) -> ShelfDecision {
        if self.retry_requested {
            return self.fetch(observed, note!("trying again"));
        }
        match observed.run.as_ref().map(|run| (run, awaited_run_status(run))) {
            Some((run, Active)) => ShelfDecision::idle(format!(
                "operation {} goes on with what had failed",
                run.spec.id
            )),
            Some((run, Succeeded)) => self.mended(run, observed),
            Some((_, Failed(_))) | None => ShelfDecision::idle(cause.message.clone()),
        }
    }

    fn mended(&self, run: &Run, observed: &DeviceContext) -> ShelfDecision {
        let note = note!("{} succeeded after all", run.spec.id);
        if run.spec.run_type == RunType::Power {
            return self.switched(observed, note);
        }
        self.fetch(observed, note)
    }
}

impl Device for PowerShelf {
    type State = PowerShelfState;

    const TARGET: TargetKind = TargetKind::PowerShelf;
    const FIELD: &'static str = "power_shelf";
    const COMMAND: &'static str = "power-shelf";
    const WAITING: &'static [&'static str] =
        &["Initializing", "FetchingData", "Configuring", "Maintenance", "Deleting"];

    fn name(now: Timestamp, random: u64) -> String {
        PowerShelfId::new(now, random).to_string()
    }

    fields_of_device!(PowerShelfState);

    fn power_change(&self) -> Option<DesiredPower> {
        match &self.state {
            PowerShelfState::Maintenance { operation } => Some(*operation),
            PowerShelfState::Initializing
            | PowerShelfState::FetchingData
            | PowerShelfState::Configuring
            | PowerShelfState::Ready
            | PowerShelfState::Error { .. }
            | PowerShelfState::Deleting => None,
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
    type TurnInput = DeviceContext;

    head_in_field!();

    fn state_name(&self) -> &'static str {
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

    fn merge_facts(&mut self, facts: &DeviceFacts) {
        self.facts.merge(facts);
    }

    /// A shelf takes the machines that it feeds from the request to switch it off until it reports
    /// its power as on again.
    fn releases_machines(&self) -> bool {
        let asked = self
            .maintenance_requested
            .as_ref()
            .is_some_and(|one| one.operation == DesiredPower::Off);
        let under_way =
            matches!(self.state, PowerShelfState::Maintenance { operation: DesiredPower::Off });
        !asked && !under_way && self.facts.power != Some(DesiredPower::Off)
    }

    fn normal_duration(&self) -> Option<Duration> {
        match self.state {
            PowerShelfState::Initializing => Some(SOON),
            PowerShelfState::FetchingData => normal_duration(READ),
            PowerShelfState::Configuring => normal_duration(CONFIGURE),
            PowerShelfState::Maintenance { .. } => normal_duration(POWER),
            PowerShelfState::Deleting => Some(HELD),
            PowerShelfState::Ready | PowerShelfState::Error { .. } => None,
        }
    }

    fn next(&self, observed: &DeviceContext, _now: Timestamp) -> ShelfDecision {
        use PowerShelfState as S;
        match (&self.state, self.head.deleted, &self.maintenance_requested) {
            (S::Initializing, _, _) => self.fetch(observed, note!("reading it")),
            (S::FetchingData, _, _) => match observed.waited() {
                Active => ShelfDecision::idle("it is being read"),
                Succeeded => self.configure(observed, note!("it was read")),
                Failed(cause) => self.fail_intake(cause),
            },
            (S::Configuring, _, _) => match observed.waited() {
                Active => ShelfDecision::idle("it is being configured"),
                Succeeded => {
                    let taken_in = Self { intake_incomplete: false, ..self.clone() };
                    transition_to(&taken_in, S::Ready, note!("it is configured"))
                }
                Failed(cause) => self.fail_intake(cause),
            },
            (S::Ready | S::Error { .. }, true, _) => {
                let note = note!("marked for deletion");
                transition_to(&self.answered(), S::Deleting, note)
            }
            (S::Ready | S::Error { .. }, false, Some(request)) => self.maintain(observed, request),
            (S::Ready, false, None) => ShelfDecision::idle("no request is pending"),
            (S::Error { cause }, false, None) => self.rest_in_error(cause, observed),
            (S::Maintenance { operation }, _, _) => match observed.waited() {
                Active => ShelfDecision::idle("its power is being switched"),
                Succeeded => {
                    let message = format!("its power is {}", power_word(*operation));
                    self.answered().switched(observed, HistoryNote::new(message, here!()))
                }
                Failed(cause) => fail(&self.answered(), cause),
            },
            (S::Deleting, _, _) => match &self.head.active_run {
                Some(holder) => ShelfDecision::Idle(held_by(holder)),
                None => ShelfDecision::Remove(note!("removed")),
            },
        }
    }
}
