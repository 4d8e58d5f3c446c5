//! Devices other than machines: the common part of switches and power shelves, and the rules by
//! which observations of them are accepted.
//!
//! A probe tells whether a device answers and what it reports. Its power state is accepted at once,
//! because the device reports it itself. A missing answer is accepted only after several
//! consecutive probes, as for machines.

mod predict;
pub(crate) mod transitions;

pub use predict::{Prediction, predict_steps};

use crate::condition::hysteresis::{HysteresisLimits, PendingObservations, ProbeContext};
use crate::condition::{ConditionObservation, ConditionType, Conditions};
use crate::effect::{DesiredPower, DeviceFacts, Effect};
use crate::fault::{Fault, FaultCode};
use crate::id::RunId;
use crate::lifecycle::{DeviceFailure, DeviceSpec, Lifecycle, NewRun, RecordHeader};
use crate::plan::{Params, RunStep, RunType};
use crate::refusal::{Reason, Refusal};
use crate::run::{Run, RunPhase};
use crate::target::{TargetId, TargetKind};
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};

/// The reachability of a device, as accepted. Its power state is in its [`DeviceFacts`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceReachability {
    pub reachable: bool,
    /// The message of the last change.
    #[serde(rename = "said")]
    pub message: String,
    pub at: Timestamp,
}

/// A device with a lifecycle, an address and a place in a rack.
pub trait Device: Lifecycle {
    /// The states of its lifecycle.
    type State;

    const TARGET: TargetKind;
    /// The prefix of its field names in requests.
    const FIELD: &'static str;
    /// The subcommand of `farrier` for this kind.
    const COMMAND: &'static str;

    /// The states in which the device waits for something.
    const WAITING: &'static [&'static str];

    /// Makes an id for a device that was registered without one.
    fn name(now: Timestamp, random: u64) -> String;
    fn create(head: RecordHeader, spec: DeviceSpec) -> Self;
    fn spec(&self) -> &DeviceSpec;
    fn spec_mut(&mut self) -> &mut DeviceSpec;
    fn facts(&self) -> &DeviceFacts;
    fn observed(&self) -> Option<&DeviceReachability>;
    fn observed_mut(&mut self) -> &mut Option<DeviceReachability>;
    /// A copy in another state, which waits for this run or for none. A requested retry is cleared.
    fn in_state(&self, state: Self::State, run: Option<RunId>) -> Self;
    fn in_error(cause: DeviceFailure) -> Self::State;
    /// The run that its state waits for.
    fn run(&self) -> Option<&RunId>;
    /// The cause, in the error state.
    fn failure(&self) -> Option<&DeviceFailure>;
    /// Requests a retry of what failed.
    fn request_retry(&mut self);
    /// True if the device is polled in its current state: it waits for nothing there.
    fn is_polled(&self) -> bool {
        !Self::WAITING.contains(&self.state_name())
    }

    /// The power change in progress.
    fn power_change(&self) -> Option<DesiredPower> {
        None
    }

    /// The run whose end moves the device on: the one that its state waits for, or the failed one,
    /// which an operator may have resumed and completed.
    fn waits_for(&self) -> Option<&RunId> {
        match self.failure() {
            Some(cause) => cause.run.as_ref(),
            None => self.run(),
        }
    }

    fn target(&self) -> TargetId {
        TargetId::new(Self::TARGET, self.head().id.as_str())
    }
}

/// The methods of an `impl Device` that only access the fields that all devices have.
macro_rules! fields_of_device {
    ($state:ident) => {
        fn create(head: RecordHeader, spec: DeviceSpec) -> Self {
            Self::new(head, spec)
        }

        fn spec(&self) -> &DeviceSpec {
            &self.spec
        }

        fn spec_mut(&mut self) -> &mut DeviceSpec {
            &mut self.spec
        }

        fn facts(&self) -> &DeviceFacts {
            &self.facts
        }

        fn observed(&self) -> Option<&DeviceReachability> {
            self.observed.as_ref()
        }

        fn observed_mut(&mut self) -> &mut Option<DeviceReachability> {
            &mut self.observed
        }

        fn in_state(&self, state: $state, run: Option<RunId>) -> Self {
            Self { state, run, retry_requested: false, ..self.clone() }
        }

        fn in_error(cause: DeviceFailure) -> $state {
            $state::Error { cause }
        }

        fn run(&self) -> Option<&RunId> {
            self.run.as_ref()
        }

        fn failure(&self) -> Option<&DeviceFailure> {
            let $state::Error { cause } = &self.state else { return None };
            Some(cause)
        }

        fn request_retry(&mut self) {
            self.retry_requested = true;
        }
    };
}
pub(crate) use fields_of_device;

/// Requests a retry; refused unless the device is in the error state.
pub fn retry<D: Device>(device: &mut D) -> Result<(), Refusal> {
    let id = &device.head().id;
    if device.failure().is_none() {
        let message =
            format!("{id} is {}: only what is in Error can be tried again", device.state_name());
        return Err(Refusal::new(Reason::NotInError, message)
            .next(format!("farrier {} get {id}", D::COMMAND)));
    }
    device.request_retry();
    Ok(())
}

/// A run that the device's own lifecycle starts on it.
pub(crate) fn own_run<D: Device>(
    device: &D,
    id: RunId,
    step: (RunType, RunStep),
    initiator: String,
) -> NewRun {
    let (run_type, step) = step;
    NewRun {
        request_id: id.to_string(),
        id,
        target: device.target(),
        run_type,
        steps: vec![step],
        initiator,
        part_of: None,
        reports_to: Some(device.subject()),
        claims: Vec::new(),
        params: Params::new(),
    }
}

/// The known power state of a device: the last reading, or unknown when the last run was a power
/// change that did not succeed.
pub fn known_power(read: Option<DesiredPower>, last: Option<&Run>) -> Option<DesiredPower> {
    let in_doubt = |run: &Run| power_goal(run).is_some() && run.phase() != RunPhase::Succeeded;
    if last.is_some_and(in_doubt) { None } else { read }
}

/// The power state that a run leaves behind, if it switches power.
pub fn power_goal(run: &Run) -> Option<DesiredPower> {
    run.spec.steps.iter().rev().find_map(|step| {
        let Effect::Power { to, .. } = &step.effect else { return None };
        Some(*to)
    })
}

/// The reason of a device that answers.
const ANSWERS: &str = "it answers";

/// The poller's memory of one device.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DevicePollState {
    pending: PendingObservations,
    /// The row version that the poller last read or wrote. A different one means another component
    /// changed the device.
    version: Option<i64>,
}

/// The changes that a probe causes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceChange {
    pub observed: DeviceReachability,
    pub facts: DeviceFacts,
    /// The changes, for the history.
    pub message: String,
}

impl DevicePollState {
    /// Records a probe; returns what is new and accepted.
    pub fn record_probe<D: Device>(
        &mut self,
        device: &D,
        observation: Result<DeviceFacts, Fault>,
        steadiness: HysteresisLimits,
        now: Timestamp,
    ) -> Option<DeviceChange> {
        let time = match self.version.replace(device.head().version) {
            Some(version) if version != device.head().version => ProbeContext::AfterChange,
            Some(_) | None => ProbeContext::Routine,
        };
        let (evidence, facts) = match observation {
            Ok(facts) => {
                (ConditionObservation::new(ConditionType::BmcReachable, true, ANSWERS), Some(facts))
            }
            // The probe is not supported, or Farrier could not make it: nothing was observed.
            Err(fault) if tells_nothing(fault.code) => return None,
            Err(fault) => {
                (ConditionObservation::new(ConditionType::BmcReachable, false, fault.message), None)
            }
        };
        let known = conditions(device.observed());
        let believed =
            self.pending.accept_confirmed(&known, vec![evidence], time, steadiness).pop();
        let mut learned = device.facts().clone();
        if let Some(facts) = &facts {
            learned.merge(facts);
        }
        let mut message = Vec::new();
        let observed = match (believed, device.observed()) {
            (Some(one), _) => {
                message.push(one.reason.clone());
                DeviceReachability { reachable: one.status, message: one.reason, at: now }
            }
            (None, Some(known)) if learned != *device.facts() => known.clone(),
            (None, _) => return None,
        };
        message.extend(changes(device.facts(), &learned));
        Some(DeviceChange { observed, facts: learned, message: message.join(", ") })
    }

    /// The observation was stored, and the row now has this version.
    pub fn written(&mut self, version: i64) {
        self.version = Some(version);
    }
}

const fn tells_nothing(code: FaultCode) -> bool {
    code.is_local() || matches!(code, FaultCode::NotSupported | FaultCode::CapabilityMissing)
}

fn conditions(observed: Option<&DeviceReachability>) -> Conditions {
    let mut known = Conditions::default();
    if let Some(observed) = observed {
        let observation = ConditionObservation::new(
            ConditionType::BmcReachable,
            observed.reachable,
            observed.message.clone(),
        );
        known.observe(&observation, observed.at);
    }
    known
}

fn changes(before: &DeviceFacts, after: &DeviceFacts) -> Vec<String> {
    let mut message = Vec::new();
    if let (true, Some(power)) = (before.power != after.power, after.power) {
        message.push(format!("power is {}", power_word(power)));
    }
    if before.firmware != after.firmware {
        message.push("its firmware changed".into());
    }
    let named = |facts: &DeviceFacts| {
        (facts.manufacturer.clone(), facts.model.clone(), facts.serial.clone())
    };
    if named(before) != named(after) {
        message.push(format!("it is {} {}", after.model, after.serial));
    }
    message
}

pub const fn power_word(power: DesiredPower) -> &'static str {
    match power {
        DesiredPower::On => "on",
        DesiredPower::Off => "off",
    }
}
