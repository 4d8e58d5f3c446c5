//! Hosts: the firmware reprovisioning of a machine. The record has the id of its machine.
//!
//! On an operator's request the host checks its firmware and upgrades it in a run on the machine.
//! On a rack's request it waits for the child run that the rack's operation starts on the machine.
//! A failed upgrade is retried after an interval, a limited number of times, if a retry does no
//! harm; after that the host waits for an operator. A new request always starts over.

mod firmware_check;
mod why;

pub use firmware_check::{FirmwareCheck, check_firmware};

use crate::effect::DeviceFacts;
use crate::fault::{FaultClass, FaultCode};
use crate::firmware::{FIRMWARE, FirmwareResolution};
use crate::id::{FirmwareId, MachineId, RunId};
use crate::lifecycle::AwaitedRunStatus::{Active, Failed, Succeeded};
use crate::lifecycle::{
    DeviceFailure, Lifecycle, LifecycleChange, LifecycleDecision, NewRun, RecordHeader,
    SubjectKind, awaited_run_status, awaited_status, head_in_field,
};
use crate::plan::{Params, RunStep, RunType};
use crate::refusal::{Reason, Refusal};
use crate::run::{HistoryNote, Run, RunPhase};
use crate::target::{TargetId, TargetKind};
use crate::time::{Timestamp, format_duration};
use crate::{here, note};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The maximum number of automatic retries of a failed upgrade.
pub const MAX_FIRMWARE_UPGRADE_RETRIES: u32 = 3;
/// The default interval before a failed upgrade is retried.
pub const RETRY_INTERVAL: Duration = Duration::from_secs(600);
/// The time for which a host waits until the rack's operation reaches its machine.
pub const RACK_TIMEOUT: Duration = Duration::from_secs(24 * 3_600);
/// The interval of checks of the machine's gate while it refuses an upgrade.
const GATE_PAUSE: Duration = Duration::from_secs(60);
/// The time for which the gate is checked; after that the upgrade fails.
const GATE_TIMEOUT: Duration = Duration::from_secs(24 * 3_600);
/// The normal maximum duration of an upgrade by the host itself.
const UPGRADE_NORMAL: Duration = Duration::from_secs(3_600);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum HostState {
    Ready,
    CheckingFirmwareV2 { retry_count: u32 },
    WaitingForRackFirmwareUpgrade,
    FailedFirmwareUpgrade { retry_count: u32, cause: DeviceFailure },
}

impl HostState {
    /// The name of the state after a failed upgrade.
    pub const FAILED: &'static str = "FailedFirmwareUpgrade";
    /// The names of the states in which a firmware request is being served.
    pub const UNDER_WAY: [&'static str; 3] =
        ["CheckingFirmwareV2", "WaitingForRackFirmwareUpgrade", Self::FAILED];

    pub const fn name(&self) -> &'static str {
        match self {
            Self::Ready => "Ready",
            Self::CheckingFirmwareV2 { .. } => "CheckingFirmwareV2",
            Self::WaitingForRackFirmwareUpgrade => "WaitingForRackFirmwareUpgrade",
            Self::FailedFirmwareUpgrade { .. } => Self::FAILED,
        }
    }
}

/// The party that requested a reprovisioning.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "owner", rename_all = "snake_case")]
pub enum ReprovisionOwner {
    /// An operation on the rack, which drives the upgrade itself.
    Rack {
        operation: RunId,
    },
    Operator {
        name: String,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReprovisionRequest {
    pub owner: ReprovisionOwner,
    pub firmware: Option<FirmwareId>,
    pub requested_at: Timestamp,
    /// None: the request is new and not started.
    pub started_at: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    pub head: RecordHeader,
    pub state: HostState,
    /// None: nothing is requested, or the request was withdrawn.
    #[serde(default)]
    pub request: Option<ReprovisionRequest>,
    /// The run that the state waits for.
    #[serde(default)]
    pub run: Option<RunId>,
    #[serde(default)]
    pub facts: DeviceFacts,
    /// The id of the last operator request: repeating it starts nothing.
    #[serde(default)]
    pub request_id: String,
}

/// The input of a turn besides the host itself.
#[derive(Debug, Clone)]
pub struct HostTurnInput {
    /// The id for a run that this turn may start.
    pub fresh: RunId,
    /// The run that the host waits for, or the failed one, which an operator may have resumed and
    /// completed.
    pub run: Option<Run>,
    /// The firmware that the request resolves to.
    pub firmware: FirmwareResolution,
    /// The decision of its machine's gate on an upgrade.
    pub gate: Result<(), Refusal>,
    /// The rack's operation, if it owns the request.
    pub operation: Option<Run>,
    /// The newest child run of that operation for this machine's firmware.
    pub child_run: Option<Run>,
    pub retry_interval: Duration,
}

type HostDecision = LifecycleDecision<Host>;

impl Host {
    pub fn new(machine: &MachineId, now: Timestamp) -> Self {
        Self {
            head: RecordHeader::new(machine.as_str(), crate::machine::Labels::new(), now),
            state: HostState::Ready,
            request: None,
            run: None,
            facts: DeviceFacts::default(),
            request_id: String::new(),
        }
    }

    pub fn machine(&self) -> MachineId {
        MachineId::trusted(&self.head.id)
    }

    pub fn is_ready(&self) -> bool {
        self.state == HostState::Ready
    }

    /// The run whose end moves the host on: the one that its state waits for, or the failed one.
    pub fn waits_for(&self) -> Option<&RunId> {
        match &self.state {
            HostState::FailedFirmwareUpgrade { cause, .. } => cause.run.as_ref(),
            HostState::Ready
            | HostState::CheckingFirmwareV2 { .. }
            | HostState::WaitingForRackFirmwareUpgrade => self.run.as_ref(),
        }
    }

    /// The rack's operation that owns the request.
    pub fn rack_operation(&self) -> Option<&RunId> {
        match self.request.as_ref().map(|request| &request.owner) {
            Some(ReprovisionOwner::Rack { operation }) => Some(operation),
            Some(ReprovisionOwner::Operator { .. }) | None => None,
        }
    }

    /// Checks whether an operator may request a reprovisioning now: in `Ready` or after a failure,
    /// and no unstarted request may be pending.
    pub fn admit(&self) -> Result<(), Refusal> {
        let fresh = self.request.as_ref().is_some_and(|request| request.started_at.is_none());
        let idle = match self.state {
            HostState::Ready | HostState::FailedFirmwareUpgrade { .. } => !fresh,
            HostState::CheckingFirmwareV2 { .. } | HostState::WaitingForRackFirmwareUpgrade => {
                false
            }
        };
        if idle {
            return Ok(());
        }
        let id = &self.head.id;
        let owner = self.request.as_ref().map(|request| request.owner.describe());
        let owner = owner.unwrap_or_else(|| "an operator who has withdrawn it".into());
        let message = format!("the firmware of {id} is being seen to for {owner}");
        Err(Refusal::new(Reason::ReprovisionUnderWay, message).next(format!("farrier why {id}")))
    }

    /// Checks whether the request may be withdrawn for this machine alone: not while the rack's
    /// `operation` is active.
    pub fn admit_withdrawal(&self, operation: Option<&Run>) -> Result<(), Refusal> {
        let going = operation.filter(|run| !run.ended());
        let Some(operation) = going.map(|run| &run.spec.id) else { return Ok(()) };
        let message = format!(
            "the firmware of {} is upgraded by {operation}, an operation of its rack",
            self.head.id
        );
        Err(Refusal::new(Reason::ReprovisionOfRack, message)
            .next(format!("farrier cancel {operation}   # stops it for the whole rack")))
    }

    fn become_(
        &self,
        state: HostState,
        message: impl Into<String>,
        line: &'static str,
    ) -> HostDecision {
        let record = Self { state, run: None, ..self.clone() };
        HostDecision::change(record, HistoryNote::new(message, line))
    }

    /// Back to `Ready`. A started request is removed; a new one that arrived since stays.
    fn settle(&self, message: impl Into<String>, line: &'static str) -> HostDecision {
        let request = self.request.clone().filter(|request| request.started_at.is_none());
        Self { request, ..self.clone() }.become_(HostState::Ready, message, line)
    }

    /// An upgrade that an operator has canceled has not failed. The device sees an update that has
    /// begun through to its end, so none is left half done.
    fn settle_canceled(&self, run: &Run) -> HostDecision {
        self.settle(format!("{} was canceled before it was done", run.spec.id), here!())
    }

    fn fail(&self, retry_count: u32, cause: DeviceFailure) -> HostDecision {
        let message = cause.message.clone();
        self.become_(HostState::FailedFirmwareUpgrade { retry_count, cause }, message, here!())
    }

    /// Starts a request: the rack drives the upgrade, or the host does.
    fn start_request(&self, request: &ReprovisionRequest, now: Timestamp) -> HostDecision {
        let request = ReprovisionRequest { started_at: Some(now), ..request.clone() };
        let (state, message) = match &request.owner {
            ReprovisionOwner::Rack { operation } => (
                HostState::WaitingForRackFirmwareUpgrade,
                format!("{operation} is to upgrade its firmware"),
            ),
            ReprovisionOwner::Operator { name } => (
                HostState::CheckingFirmwareV2 { retry_count: 0 },
                format!("checking its firmware for {name}"),
            ),
        };
        Self { request: Some(request), ..self.clone() }.become_(state, message, here!())
    }

    /// The request was withdrawn: an active run is canceled first.
    fn withdraw_request(&self, observed: &HostTurnInput) -> HostDecision {
        // Only the rack may cancel an operation on the rack: it includes other machines.
        let own = |run: &&Run| run.spec.target.kind == TargetKind::Machine;
        let active = |run: &&Run| awaited_run_status(run) == Active;
        match observed.run.as_ref().filter(own).filter(active) {
            Some(run) if run.progress.stop_request.is_none() => {
                let id = &run.spec.id;
                let record = Self { request: None, ..self.clone() };
                let note = note!("{id} is to stop");
                let cancel = vec![(id.clone(), "the request was withdrawn".into())];
                LifecycleChange { cancel, ..LifecycleChange::new(record, note) }.into()
            }
            Some(_) => HostDecision::idle("its operation is being stopped"),
            None => self.settle("the request for a firmware upgrade was withdrawn", here!()),
        }
    }

    fn checking(&self, retry_count: u32, observed: &HostTurnInput, now: Timestamp) -> HostDecision {
        if let Some(id) = &self.run {
            return match awaited_status(observed.run.as_ref()) {
                Active => HostDecision::idle(format!("{id} upgrades its firmware")),
                Succeeded => self.settle("its firmware is as wanted", here!()),
                Failed(cause) => match observed.run.as_ref().filter(|run| was_canceled(run)) {
                    Some(run) => self.settle_canceled(run),
                    None => self.fail(retry_count, cause),
                },
            };
        }
        match (check_firmware(&self.facts, &observed.firmware), &observed.gate) {
            (FirmwareCheck::Nothing(message), _) => self.settle(message, here!()),
            (FirmwareCheck::Unknown(message), _) => {
                self.fail(retry_count, DeviceFailure::plain(message))
            }
            (FirmwareCheck::Install { .. }, Err(refusal)) => {
                let message = format!("it may not be upgraded now: {}", refusal.message);
                let deadline = self.head.since + GATE_TIMEOUT;
                match now < deadline {
                    true => HostDecision::idle_until(deadline.min(now + GATE_PAUSE), message),
                    false => self.fail(retry_count, DeviceFailure::plain(message)),
                }
            }
            (FirmwareCheck::Install { firmware, steps, known }, Ok(())) => {
                self.upgrade(observed, &firmware, steps, &known)
            }
        }
    }

    fn upgrade(
        &self,
        observed: &HostTurnInput,
        firmware: &FirmwareId,
        steps: Vec<RunStep>,
        known: &[String],
    ) -> HostDecision {
        let fresh = &observed.fresh;
        let initiator = self.request.as_ref().map(|request| request.owner.describe());
        let run = NewRun {
            id: fresh.clone(),
            target: TargetId::from(&self.machine()),
            run_type: RunType::Firmware,
            steps,
            request_id: fresh.to_string(),
            initiator: initiator.unwrap_or_default(),
            part_of: None,
            reports_to: Some(self.subject()),
            claims: Vec::new(),
            params: Params::from([(FIRMWARE.to_string(), firmware.to_string())]),
        };
        let note = note!("{fresh} is to upgrade it: {}", known.join("; "));
        let record = Self { run: Some(fresh.clone()), ..self.clone() };
        LifecycleChange { start: vec![run], ..LifecycleChange::new(record, note) }.into()
    }

    /// The child run of the rack's operation on this machine decides. If there is none, the end of
    /// the operation does.
    fn waiting(&self, observed: &HostTurnInput, now: Timestamp) -> HostDecision {
        if let Some(part) = &observed.child_run {
            return match awaited_run_status(part) {
                Active => HostDecision::idle(format!("{} upgrades its firmware", part.spec.id)),
                Succeeded => self.settle("its rack has upgraded its firmware", here!()),
                Failed(_) if was_canceled(part) => self.settle_canceled(part),
                Failed(cause) => self.fail(0, cause),
            };
        }
        let Some(operation) = &observed.operation else {
            return self
                .fail(0, DeviceFailure::plain("the operation on its rack is not there any more"));
        };
        let id = &operation.spec.id;
        match (operation.phase(), awaited_run_status(operation)) {
            (RunPhase::Pending | RunPhase::Running, _) => {
                let until = self.head.since + RACK_TIMEOUT;
                if now >= until {
                    let timeout = format_duration(RACK_TIMEOUT);
                    let text = format!("{id} has not come to this machine within {timeout}");
                    return self.fail(0, DeviceFailure::plain(text));
                }
                let why = format!("{id} is to upgrade its firmware, and has not come to it");
                HostDecision::idle_until(until, why)
            }
            (RunPhase::Failed, Failed(cause)) => {
                let text = format!("{id} failed before it came to this machine: {}", cause.message);
                self.fail(0, DeviceFailure { message: text, ..cause })
            }
            (RunPhase::Failed, Active | Succeeded) => {
                let text = format!("{id} failed before it came to this machine");
                self.fail(0, DeviceFailure::plain(text))
            }
            (RunPhase::Canceled, _) => {
                self.settle(format!("{id} was canceled before it came to this machine"), here!())
            }
            (RunPhase::Succeeded, _) => {
                self.settle(format!("{id} had no firmware for this machine"), here!())
            }
        }
    }

    /// Retries a failed upgrade if that is safe. A later child run of the rack's operation takes
    /// precedence.
    fn failed(
        &self,
        retry_count: u32,
        cause: &DeviceFailure,
        observed: &HostTurnInput,
        now: Timestamp,
    ) -> HostDecision {
        let later =
            observed.child_run.as_ref().filter(|part| cause.run.as_ref() != Some(&part.spec.id));
        match later.map(awaited_run_status) {
            Some(Active) => {
                let state = HostState::WaitingForRackFirmwareUpgrade;
                return self.become_(state, "its rack tries again", here!());
            }
            Some(Succeeded) => {
                return self.settle("its rack has upgraded its firmware", here!());
            }
            Some(Failed(_)) | None => {}
        }
        match observed.run.as_ref().map(|run| (run, awaited_run_status(run))) {
            Some((run, Active)) => {
                let why = format!("operation {} goes on with what had failed", run.spec.id);
                return HostDecision::idle(why);
            }
            Some((_, Succeeded)) => {
                return self.settle("what had failed was brought to a good end", here!());
            }
            Some((_, Failed(_))) | None => {}
        }
        match self.next_attempt(observed.retry_interval) {
            None => HostDecision::idle(format!("{}; a person is waited for", cause.message)),
            Some(at) if now < at => {
                HostDecision::idle_until(at, format!("{}; it is tried again then", cause.message))
            }
            Some(_) => {
                let retry_count = retry_count + 1;
                let state = HostState::CheckingFirmwareV2 { retry_count };
                let message =
                    format!("attempt {retry_count} of {MAX_FIRMWARE_UPGRADE_RETRIES} again");
                self.become_(state, message, here!())
            }
        }
    }

    /// The time when a failed upgrade is retried automatically. None when an operator must decide
    /// first.
    pub fn next_attempt(&self, interval: Duration) -> Option<Timestamp> {
        let HostState::FailedFirmwareUpgrade { retry_count, cause } = &self.state else {
            return None;
        };
        let class = FaultCode::parse(&cause.code).map(FaultCode::class);
        let again =
            class == Some(FaultClass::Retryable) && *retry_count < MAX_FIRMWARE_UPGRADE_RETRIES;
        again.then(|| self.head.since + interval)
    }
}

/// True if the run was canceled and has no failure of its own.
fn was_canceled(run: &Run) -> bool {
    run.phase() == RunPhase::Canceled && run.progress.failure.is_none()
}

impl ReprovisionOwner {
    pub fn describe(&self) -> String {
        match self {
            Self::Rack { operation } => operation.to_string(),
            Self::Operator { name } => name.clone(),
        }
    }
}

impl Lifecycle for Host {
    const KIND: SubjectKind = SubjectKind::Host;
    const STATES: &'static [&'static str] =
        &["Ready", "CheckingFirmwareV2", "WaitingForRackFirmwareUpgrade", "FailedFirmwareUpgrade"];
    type TurnInput = HostTurnInput;

    head_in_field!();

    fn state_name(&self) -> &'static str {
        self.state.name()
    }

    fn merge_facts(&mut self, facts: &DeviceFacts) {
        self.facts.merge(facts);
    }

    fn next(&self, observed: &HostTurnInput, now: Timestamp) -> HostDecision {
        use HostState as S;
        let at_work = || observed.run.as_ref().is_some_and(|run| awaited_run_status(run) == Active);
        match (&self.state, &self.request) {
            (S::Ready, None) => HostDecision::idle("no request is pending"),
            (_, None) => self.withdraw_request(observed),
            // An active run is not interrupted: a new request waits for its end.
            (_, Some(request)) if request.started_at.is_none() && !at_work() => {
                self.start_request(request, now)
            }
            // Starting a request leaves `Ready`, and returning to `Ready` removes it; so a started
            // request is complete here.
            (S::Ready, Some(_)) => self.settle("its request was seen to", here!()),
            (S::CheckingFirmwareV2 { retry_count }, Some(_)) => {
                self.checking(*retry_count, observed, now)
            }
            (S::WaitingForRackFirmwareUpgrade, Some(_)) => self.waiting(observed, now),
            (S::FailedFirmwareUpgrade { retry_count, cause }, Some(_)) => {
                self.failed(*retry_count, cause, observed, now)
            }
        }
    }
}
