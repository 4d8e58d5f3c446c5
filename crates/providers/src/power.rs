//! Decides the next command to a BMC from the stage of a power sequence and the observed power
//! state.
//!
//! A power cycle is an observed Off and then an observed On. That is slower than a reset, but it
//! proves the restart without the BMC's clock, and after a crash the stage says how far it came. A
//! graceful shutdown is tried first, then the power is forced off where that is allowed. Requesting
//! a state that already holds does no harm, so a sequence can be resumed at any point.

use model::effect::PowerOffPolicy;
use model::fault::{Fault, FaultCode, Result};
use model::time::{Timestamp, format_duration};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The power state that a BMC reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PowerState {
    On,
    Off,
    /// Between on and off.
    Changing,
}

impl PowerState {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Off => "off",
            Self::Changing => "changing",
        }
    }
}

/// The goal of a power sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PowerGoal {
    On,
    Off,
    Cycle,
}

/// The progress of a power sequence. It is stored before the command that it names is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PowerStage {
    Begun,
    /// A graceful shutdown was requested at this time.
    #[serde(rename = "shutting")]
    ShuttingDown(Timestamp),
    /// The power was forced off at this time.
    #[serde(rename = "cutting")]
    ForcingOff(Timestamp),
    /// A start was requested at this time, after the machine was observed off.
    Starting(Timestamp),
    Done,
    /// Stopped before the first command.
    Stopped,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PowerCommand {
    Shutdown,
    ForceOff,
    Start,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PowerDecision {
    /// Store the stage, then send the command.
    Command(PowerCommand, PowerStage),
    /// Read the power state again later.
    Wait,
    /// The goal holds; the text is the evidence.
    Done(&'static str),
    Fail(Fault),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PowerTimeouts {
    /// The time for a graceful shutdown. Zero: it is not tried.
    pub graceful: Duration,
    /// True if the power is forced off when the shutdown takes too long.
    pub force: bool,
    /// The time in which the power state must follow a forced off or a start.
    pub change: Duration,
    /// A command without effect is repeated after this time: it may never have been sent.
    pub repeat_after: Duration,
}

impl Default for PowerTimeouts {
    fn default() -> Self {
        Self {
            graceful: Duration::from_secs(60),
            force: true,
            change: Duration::from_secs(180),
            repeat_after: Duration::from_secs(30),
        }
    }
}

impl PowerTimeouts {
    /// The policy of the step; what it leaves open is taken from the configuration.
    fn with_policy(&self, power_off: PowerOffPolicy) -> Self {
        let message = power_off.graceful_seconds.map(|seconds| Duration::from_secs(seconds.into()));
        let graceful = message.unwrap_or(self.graceful);
        // A graceful period of zero means that the power is forced off.
        let cuts = message.is_some_and(|message| message.is_zero());
        let force = power_off.force.unwrap_or(self.force || cuts);
        // A step that forbids force overrides a configuration without a graceful period.
        let insists = power_off.force == Some(false) && graceful.is_zero();
        let graceful = if insists { Self::default().graceful } else { graceful };
        Self { graceful, force, ..self.clone() }
    }
}

/// The timeouts of one sequence at one BMC. Without support for graceful shutdown the power is
/// forced off at once, where that is allowed.
pub fn timeouts_for(
    configured: &PowerTimeouts,
    power_off: PowerOffPolicy,
    can_shut_down: bool,
) -> Result<PowerTimeouts> {
    let desired = configured.with_policy(power_off);
    match (can_shut_down || desired.graceful.is_zero(), desired.force) {
        (true, _) => Ok(desired),
        (false, true) => Ok(PowerTimeouts { graceful: Duration::ZERO, ..desired }),
        (false, false) => {
            let message = "the BMC cannot ask the operating system to shut down, and force is not allowed; allow it in the \
                        step or in the configuration";
            Err(Fault::new(FaultCode::NotSupported, message))
        }
    }
}

/// True if the next decision depends on the timeouts: the machine is on and is to be switched off.
pub const fn needs_timeouts(goal: PowerGoal, stage: PowerStage, observed: PowerState) -> bool {
    match (goal, stage, observed) {
        (PowerGoal::On, _, _) | (_, _, PowerState::Off) => false,
        (
            PowerGoal::Off | PowerGoal::Cycle,
            PowerStage::Begun | PowerStage::ShuttingDown(_) | PowerStage::ForcingOff(_),
            PowerState::On | PowerState::Changing,
        ) => true,
        (
            PowerGoal::Off | PowerGoal::Cycle,
            PowerStage::Starting(_) | PowerStage::Done | PowerStage::Stopped,
            PowerState::On | PowerState::Changing,
        ) => false,
    }
}

/// The BMC refused a graceful shutdown, so nothing has happened. Returns the timeouts to continue
/// with, or the fault that ends the sequence.
pub fn after_refusal(
    fault: Fault,
    request: PowerCommand,
    timeout: &PowerTimeouts,
) -> Result<PowerTimeouts> {
    match (request, fault.code, timeout.force) {
        (PowerCommand::Shutdown, FaultCode::EffectFailed | FaultCode::NotSupported, true) => {
            Ok(PowerTimeouts { graceful: Duration::ZERO, ..timeout.clone() })
        }
        (PowerCommand::Shutdown, FaultCode::EffectFailed | FaultCode::NotSupported, false) => {
            let message =
                format!("{}; force is not allowed, so its power stays as it is", fault.message);
            Err(Fault::new(fault.code, message))
        }
        (PowerCommand::Shutdown | PowerCommand::ForceOff | PowerCommand::Start, _, _) => Err(fault),
    }
}

/// The next decision of a power sequence.
pub fn next_decision(
    goal: PowerGoal,
    stage: PowerStage,
    observed: PowerState,
    now: Timestamp,
    timeout: &PowerTimeouts,
) -> PowerDecision {
    match (stage, observed) {
        (PowerStage::Done, _) => PowerDecision::Done("it was done before"),
        (PowerStage::Stopped, _) => PowerDecision::Fail(Fault::new(
            FaultCode::EffectFailed,
            "it was stopped before it began",
        )),
        (PowerStage::Begun, PowerState::Changing) => PowerDecision::Wait,
        (PowerStage::Begun, PowerState::On) if goal == PowerGoal::On => {
            PowerDecision::Done("it was on already")
        }
        (PowerStage::Begun, PowerState::Off) if goal == PowerGoal::Off => {
            PowerDecision::Done("it was off already")
        }
        (PowerStage::Begun, PowerState::Off) => start(now),
        (PowerStage::Begun, PowerState::On) if timeout.graceful.is_zero() => force_off(now),
        (PowerStage::Begun, PowerState::On) => {
            PowerDecision::Command(PowerCommand::Shutdown, PowerStage::ShuttingDown(now))
        }
        (PowerStage::ShuttingDown(_) | PowerStage::ForcingOff(_), PowerState::Off) => match goal {
            PowerGoal::Off => PowerDecision::Done("it is off"),
            PowerGoal::On | PowerGoal::Cycle => start(now),
        },
        (PowerStage::ShuttingDown(since), PowerState::On | PowerState::Changing) => {
            while_shutting_down(since, now, timeout)
        }
        (PowerStage::ForcingOff(since), PowerState::On | PowerState::Changing) => {
            repeat_command(since, now, timeout, PowerCommand::ForceOff, stage)
        }
        (PowerStage::Starting(_), PowerState::On) => PowerDecision::Done(match goal {
            PowerGoal::On => "it is on",
            PowerGoal::Off | PowerGoal::Cycle => "it was seen off, and is on again",
        }),
        (PowerStage::Starting(since), PowerState::Off) => {
            repeat_command(since, now, timeout, PowerCommand::Start, stage)
        }
        (PowerStage::Starting(since), PowerState::Changing) => wait(since, now, timeout, "start"),
    }
}

fn start(now: Timestamp) -> PowerDecision {
    PowerDecision::Command(PowerCommand::Start, PowerStage::Starting(now))
}

fn force_off(now: Timestamp) -> PowerDecision {
    PowerDecision::Command(PowerCommand::ForceOff, PowerStage::ForcingOff(now))
}

fn while_shutting_down(since: Timestamp, now: Timestamp, timeout: &PowerTimeouts) -> PowerDecision {
    if now.since(since) < timeout.graceful {
        return PowerDecision::Wait;
    }
    if timeout.force {
        return force_off(now);
    }
    let waited = format_duration(timeout.graceful);
    let message =
        format!("it did not shut down within {waited}, and the step does not allow force");
    PowerDecision::Fail(Fault::new(FaultCode::ReadBackDiffers, message))
}

/// Repeats a command that had no effect, until the timeout.
fn repeat_command(
    since: Timestamp,
    now: Timestamp,
    timeout: &PowerTimeouts,
    request: PowerCommand,
    stage: PowerStage,
) -> PowerDecision {
    let name = match request {
        PowerCommand::Start => "start",
        PowerCommand::Shutdown | PowerCommand::ForceOff => "switch off",
    };
    let decision = wait(since, now, timeout, name);
    // The stage stays the same: the timeout counts from the first command.
    let repeat = decision == PowerDecision::Wait && is_repeat_due(since, now, timeout);
    if repeat { PowerDecision::Command(request, stage) } else { decision }
}

/// True once per `repeat_after`, for one or two reads.
fn is_repeat_due(since: Timestamp, now: Timestamp, timeout: &PowerTimeouts) -> bool {
    let span = timeout.repeat_after.as_millis().max(1);
    let waited = now.since(since).as_millis();
    waited >= span && waited % span < POLL_INTERVAL.as_millis()
}

fn wait(since: Timestamp, now: Timestamp, timeout: &PowerTimeouts, name: &str) -> PowerDecision {
    if now.since(since) < timeout.change {
        return PowerDecision::Wait;
    }
    let message =
        format!("it was told to {name} and did not within {}", format_duration(timeout.change));
    PowerDecision::Fail(Fault::new(FaultCode::ReadBackDiffers, message))
}

/// The interval between two reads of the power state.
pub const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The interval at which a worker records that it watches the power state.
pub(crate) const WATCH_INTERVAL: Duration = Duration::from_secs(10);
/// The longest gap between two recorded reads. No person switches a machine off and on within it.
pub(crate) const MAX_WATCH_GAP: Duration = Duration::from_secs(30);
