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
    /// For a graceful shutdown. Zero: it is not tried.
    pub graceful: Duration,
    /// Whether the power is forced off when the shutdown takes too long.
    pub force: bool,
    /// For the power state to follow a forced off or a start.
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

/// Whether the next decision depends on the timeouts: the machine is on and is to be switched off.
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
    match wait(since, now, timeout, name) {
        // The stage stays the same: the timeout counts from the first command.
        PowerDecision::Wait if is_repeat_due(since, now, timeout) => {
            PowerDecision::Command(request, stage)
        }
        other => other,
    }
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

/// Between two reads of the power state.
pub const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How often a worker records that it watches the power state.
pub(crate) const WATCH_INTERVAL: Duration = Duration::from_secs(10);
/// The longest gap between two recorded reads. No person switches a machine off and on within it.
pub(crate) const MAX_WATCH_GAP: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;
    use PowerGoal::{Cycle, Off, On};
    use PowerStage::{Begun, ForcingOff, ShuttingDown, Starting};

    const TIMEOUTS: PowerTimeouts = PowerTimeouts {
        graceful: Duration::from_secs(60),
        force: true,
        change: Duration::from_secs(100),
        repeat_after: Duration::from_secs(30),
    };

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(seconds * 1_000)
    }

    #[test]
    fn every_stage_has_its_decision() {
        use PowerState as P;
        let request = PowerDecision::Command;
        let table = [
            (On, Begun, P::On, 0, PowerDecision::Done("it was on already")),
            (On, Begun, P::Off, 0, request(PowerCommand::Start, Starting(at(0)))),
            (Off, Begun, P::Off, 0, PowerDecision::Done("it was off already")),
            (Off, Begun, P::On, 0, request(PowerCommand::Shutdown, ShuttingDown(at(0)))),
            (Cycle, Begun, P::Changing, 0, PowerDecision::Wait),
            (Cycle, Begun, P::Off, 5, request(PowerCommand::Start, Starting(at(5)))),
            (Cycle, Begun, P::On, 5, request(PowerCommand::Shutdown, ShuttingDown(at(5)))),
            (Cycle, ShuttingDown(at(0)), P::On, 59, PowerDecision::Wait),
            (
                Cycle,
                ShuttingDown(at(0)),
                P::Changing,
                60,
                request(PowerCommand::ForceOff, ForcingOff(at(60))),
            ),
            (
                Cycle,
                ShuttingDown(at(0)),
                P::Off,
                20,
                request(PowerCommand::Start, Starting(at(20))),
            ),
            (Off, ShuttingDown(at(0)), P::Off, 20, PowerDecision::Done("it is off")),
            (Cycle, ForcingOff(at(0)), P::On, 5, PowerDecision::Wait),
            (
                Cycle,
                ForcingOff(at(0)),
                P::On,
                30,
                request(PowerCommand::ForceOff, ForcingOff(at(0))),
            ),
            (Cycle, ForcingOff(at(0)), P::On, 32, PowerDecision::Wait),
            (Off, ForcingOff(at(0)), P::Off, 5, PowerDecision::Done("it is off")),
            (Cycle, Starting(at(0)), P::Off, 5, PowerDecision::Wait),
            (Cycle, Starting(at(0)), P::Off, 60, request(PowerCommand::Start, Starting(at(0)))),
            (Cycle, Starting(at(0)), P::Changing, 99, PowerDecision::Wait),
            (
                Cycle,
                Starting(at(0)),
                P::On,
                5,
                PowerDecision::Done("it was seen off, and is on again"),
            ),
            (On, Starting(at(0)), P::On, 5, PowerDecision::Done("it is on")),
            (Cycle, PowerStage::Done, P::Off, 5, PowerDecision::Done("it was done before")),
        ];
        for (goal, stage, observed, now, expected) in table {
            let found = next_decision(goal, stage, observed, at(now), &TIMEOUTS);
            assert_eq!(found, expected, "{goal:?} {stage:?} {observed:?} at {now}");
        }
    }

    #[test]
    fn a_timeout_fails_with_the_observed_state() {
        let stubborn = PowerTimeouts { force: false, ..TIMEOUTS };
        for (stage, observed, timeout, words) in [
            (ShuttingDown(at(0)), PowerState::On, &stubborn, "does not allow force"),
            (ForcingOff(at(0)), PowerState::On, &TIMEOUTS, "told to switch off and did not within"),
            (Starting(at(0)), PowerState::Off, &TIMEOUTS, "told to start and did not within"),
            (Starting(at(0)), PowerState::Changing, &TIMEOUTS, "told to start"),
            (PowerStage::Stopped, PowerState::On, &TIMEOUTS, "stopped before it began"),
        ] {
            match next_decision(Cycle, stage, observed, at(100), timeout) {
                PowerDecision::Fail(fault) => assert!(fault.message.contains(words), "{fault}"),
                other => panic!("{stage:?}: {other:?}"),
            }
        }
    }

    fn power_off(graceful_seconds: Option<u32>, force: Option<bool>) -> PowerOffPolicy {
        PowerOffPolicy { graceful_seconds, force }
    }

    /// Rows: configuration, policy of the step, whether the BMC supports a graceful shutdown.
    /// Expected: the graceful period in seconds, and whether force is allowed.
    #[test]
    fn a_step_overrides_the_configured_policy() {
        let configured = |seconds, force| PowerTimeouts {
            graceful: Duration::from_secs(seconds),
            force,
            ..TIMEOUTS
        };
        let table = [
            (configured(60, true), power_off(None, None), true, Some((60, true))),
            (configured(60, true), power_off(None, None), false, Some((0, true))),
            (configured(60, true), power_off(Some(5), None), true, Some((5, true))),
            (configured(60, true), power_off(Some(0), None), true, Some((0, true))),
            (configured(60, true), power_off(None, Some(false)), true, Some((60, false))),
            (configured(60, true), power_off(None, Some(false)), false, None),
            (configured(60, false), power_off(None, None), true, Some((60, false))),
            (configured(60, false), power_off(None, None), false, None),
            (configured(60, false), power_off(Some(0), None), false, Some((0, true))),
            (configured(60, false), power_off(Some(5), Some(true)), false, Some((0, true))),
            (configured(0, true), power_off(None, None), true, Some((0, true))),
            (configured(0, true), power_off(None, Some(false)), true, Some((60, false))),
            (configured(0, true), power_off(Some(9), Some(false)), true, Some((9, false))),
        ];
        for (configured, power_off, can, expected) in table {
            let found = timeouts_for(&configured, power_off, can);
            let found = found.map(|found| (found.graceful.as_secs(), found.force)).ok();
            assert_eq!(found, expected, "{configured:?} {power_off:?} can shut down: {can}");
        }
    }

    #[test]
    fn a_refused_shutdown_leads_to_force_or_to_a_fault() {
        let no = |code| Fault::new(code, "the BMC said no");
        let polite = PowerTimeouts { force: false, ..TIMEOUTS };
        for code in [FaultCode::EffectFailed, FaultCode::NotSupported] {
            let left = after_refusal(no(code), PowerCommand::Shutdown, &TIMEOUTS).unwrap();
            let cut = next_decision(Cycle, ShuttingDown(at(5)), PowerState::On, at(5), &left);
            assert_eq!(cut, PowerDecision::Command(PowerCommand::ForceOff, ForcingOff(at(5))));
            let fault = after_refusal(no(code), PowerCommand::Shutdown, &polite).unwrap_err();
            assert!(fault.code == code && fault.message.contains("said no; force"), "{fault}");
        }
        for (code, request) in [
            (FaultCode::BmcBusy, PowerCommand::Shutdown),
            (FaultCode::AnswerLost, PowerCommand::Shutdown),
            (FaultCode::EffectFailed, PowerCommand::ForceOff),
            (FaultCode::NotSupported, PowerCommand::Start),
        ] {
            assert_eq!(
                after_refusal(no(code), request, &TIMEOUTS),
                Err(no(code)),
                "{code:?} {request:?}"
            );
        }
    }

    /// Without force no sequence forces the power off, whatever the machine does.
    #[test]
    fn without_force_the_power_is_never_cut() {
        let polite = PowerTimeouts { force: false, ..TIMEOUTS };
        for goal in [Off, Cycle] {
            let mut stage = Begun;
            let mut fault = None;
            for second in 0..1_000 {
                match next_decision(goal, stage, PowerState::On, at(second), &polite) {
                    PowerDecision::Command(PowerCommand::Shutdown, next) => stage = next,
                    PowerDecision::Wait => {}
                    PowerDecision::Fail(found) => {
                        fault = Some(found);
                        break;
                    }
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(fault.map(|fault| fault.code), Some(FaultCode::ReadBackDiffers));
        }
    }

    /// Every sequence ends, whatever the machine does.
    #[test]
    fn a_power_sequence_always_ends() {
        for goal in [On, Off, Cycle] {
            for observed in [PowerState::On, PowerState::Off] {
                let mut stage = Begun;
                let ended = (0..1_000).any(|second| {
                    match next_decision(goal, stage, observed, at(second), &TIMEOUTS) {
                        PowerDecision::Command(_, next) => stage = next,
                        PowerDecision::Wait => {}
                        PowerDecision::Done(_) | PowerDecision::Fail(_) => return true,
                    }
                    false
                });
                assert!(ended, "{goal:?} with power always {observed:?}");
            }
        }
    }
}
