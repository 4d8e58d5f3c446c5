//! Decides the next command to a BMC from the stage of a power sequence and the observed power
//! state.
//!
//! A power cycle is an observed Off and then an observed On. That is slower than a reset, but it
//! proves the restart without the BMC's clock, and after a crash the stage says how far it came. A
//! graceful shutdown is tried first, then the power is forced off where that is allowed. Requesting
//! a state that already holds does no harm, so a sequence can be resumed at any point.

use model::effect::PowerOffPolicy;
use model::fault::{Code, Fault};
use model::time::{Timestamp, spoken};
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
    Shutting(Timestamp),
    /// The power was forced off at this time.
    #[serde(rename = "cutting")]
    Cutting(Timestamp),
    /// A start was requested at this time, after the machine was observed off.
    Starting(Timestamp),
    Done,
    /// Stopped before the first command.
    Stopped,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PowerCommand {
    Shutdown,
    Cut,
    Start,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PowerMove {
    /// Store the stage, then send the command.
    Command(PowerCommand, PowerStage),
    /// Read the power state again later.
    Look,
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
    pub again: Duration,
}

impl Default for PowerTimeouts {
    fn default() -> Self {
        Self {
            graceful: Duration::from_secs(60),
            force: true,
            change: Duration::from_secs(180),
            again: Duration::from_secs(30),
        }
    }
}

impl PowerTimeouts {
    /// The policy of the step; what it leaves open is taken from the configuration.
    fn with_policy(&self, power_off: PowerOffPolicy) -> Self {
        let said = power_off.graceful_seconds.map(|seconds| Duration::from_secs(seconds.into()));
        let graceful = said.unwrap_or(self.graceful);
        // A graceful period of zero means that the power is forced off.
        let cuts = said.is_some_and(|said| said.is_zero());
        let force = power_off.force.unwrap_or(self.force || cuts);
        // A step that forbids force overrides a configuration without a graceful period.
        let insists = power_off.force == Some(false) && graceful.is_zero();
        let graceful = if insists { Self::default().graceful } else { graceful };
        Self { graceful, force, ..self.clone() }
    }
}

/// The timeouts of one sequence at one BMC. Without support for graceful shutdown the power is
/// forced off at once, where that is allowed.
pub fn patience(
    configured: &PowerTimeouts,
    power_off: PowerOffPolicy,
    can_shut_down: bool,
) -> Result<PowerTimeouts, Fault> {
    let wanted = configured.with_policy(power_off);
    match (can_shut_down || wanted.graceful.is_zero(), wanted.force) {
        (true, _) => Ok(wanted),
        (false, true) => Ok(PowerTimeouts { graceful: Duration::ZERO, ..wanted }),
        (false, false) => {
            let said = "the BMC cannot ask the operating system to shut down, and force is not allowed; allow it in the \
                        step or in the configuration";
            Err(Fault::new(Code::NotSupported, said))
        }
    }
}

/// Whether the next decision depends on the timeouts: the machine is on and is to be switched off.
pub const fn needs_patience(goal: PowerGoal, stage: PowerStage, seen: PowerState) -> bool {
    match (goal, stage, seen) {
        (PowerGoal::On, _, _) | (_, _, PowerState::Off) => false,
        (
            PowerGoal::Off | PowerGoal::Cycle,
            PowerStage::Begun | PowerStage::Shutting(_) | PowerStage::Cutting(_),
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
pub fn refused(
    fault: Fault,
    ask: PowerCommand,
    patience: &PowerTimeouts,
) -> Result<PowerTimeouts, Fault> {
    match (ask, fault.code, patience.force) {
        (PowerCommand::Shutdown, Code::EffectFailed | Code::NotSupported, true) => {
            Ok(PowerTimeouts { graceful: Duration::ZERO, ..patience.clone() })
        }
        (PowerCommand::Shutdown, Code::EffectFailed | Code::NotSupported, false) => {
            let said = format!("{}; force is not allowed, so its power stays as it is", fault.said);
            Err(Fault::new(fault.code, said))
        }
        (PowerCommand::Shutdown | PowerCommand::Cut | PowerCommand::Start, _, _) => Err(fault),
    }
}

/// The next decision of a power sequence.
pub fn next(
    goal: PowerGoal,
    stage: PowerStage,
    seen: PowerState,
    now: Timestamp,
    patience: &PowerTimeouts,
) -> PowerMove {
    match (stage, seen) {
        (PowerStage::Done, _) => PowerMove::Done("it was done before"),
        (PowerStage::Stopped, _) => {
            PowerMove::Fail(Fault::new(Code::EffectFailed, "it was stopped before it began"))
        }
        (PowerStage::Begun, PowerState::Changing) => PowerMove::Look,
        (PowerStage::Begun, PowerState::On) if goal == PowerGoal::On => {
            PowerMove::Done("it was on already")
        }
        (PowerStage::Begun, PowerState::Off) if goal == PowerGoal::Off => {
            PowerMove::Done("it was off already")
        }
        (PowerStage::Begun, PowerState::Off) => start(now),
        (PowerStage::Begun, PowerState::On) if patience.graceful.is_zero() => cut(now),
        (PowerStage::Begun, PowerState::On) => {
            PowerMove::Command(PowerCommand::Shutdown, PowerStage::Shutting(now))
        }
        (PowerStage::Shutting(_) | PowerStage::Cutting(_), PowerState::Off) => match goal {
            PowerGoal::Off => PowerMove::Done("it is off"),
            PowerGoal::On | PowerGoal::Cycle => start(now),
        },
        (PowerStage::Shutting(since), PowerState::On | PowerState::Changing) => {
            shutting(since, now, patience)
        }
        (PowerStage::Cutting(since), PowerState::On | PowerState::Changing) => {
            insist(since, now, patience, PowerCommand::Cut, stage)
        }
        (PowerStage::Starting(_), PowerState::On) => PowerMove::Done(match goal {
            PowerGoal::On => "it is on",
            PowerGoal::Off | PowerGoal::Cycle => "it was seen off, and is on again",
        }),
        (PowerStage::Starting(since), PowerState::Off) => {
            insist(since, now, patience, PowerCommand::Start, stage)
        }
        (PowerStage::Starting(since), PowerState::Changing) => wait(since, now, patience, "start"),
    }
}

fn start(now: Timestamp) -> PowerMove {
    PowerMove::Command(PowerCommand::Start, PowerStage::Starting(now))
}

fn cut(now: Timestamp) -> PowerMove {
    PowerMove::Command(PowerCommand::Cut, PowerStage::Cutting(now))
}

fn shutting(since: Timestamp, now: Timestamp, patience: &PowerTimeouts) -> PowerMove {
    if now.since(since) < patience.graceful {
        return PowerMove::Look;
    }
    if patience.force {
        return cut(now);
    }
    let waited = spoken(patience.graceful);
    let said = format!("it did not shut down within {waited}, and the step does not allow force");
    PowerMove::Fail(Fault::new(Code::ReadBackDiffers, said))
}

/// Repeats a command that had no effect, until the timeout.
fn insist(
    since: Timestamp,
    now: Timestamp,
    patience: &PowerTimeouts,
    ask: PowerCommand,
    stage: PowerStage,
) -> PowerMove {
    let word = match ask {
        PowerCommand::Start => "start",
        PowerCommand::Shutdown | PowerCommand::Cut => "switch off",
    };
    match wait(since, now, patience, word) {
        // The stage stays the same: the timeout counts from the first command.
        PowerMove::Look if again(since, now, patience) => PowerMove::Command(ask, stage),
        other => other,
    }
}

/// True once per `repeat_after`, for one or two reads.
fn again(since: Timestamp, now: Timestamp, patience: &PowerTimeouts) -> bool {
    let span = patience.again.as_millis().max(1);
    let waited = now.since(since).as_millis();
    waited >= span && waited % span < LOOK_EVERY.as_millis()
}

fn wait(since: Timestamp, now: Timestamp, patience: &PowerTimeouts, word: &str) -> PowerMove {
    if now.since(since) < patience.change {
        return PowerMove::Look;
    }
    let said = format!("it was told to {word} and did not within {}", spoken(patience.change));
    PowerMove::Fail(Fault::new(Code::ReadBackDiffers, said))
}

/// Between two reads of the power state.
pub const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often a worker records that it watches the power state.
pub(crate) const WATCH_EVERY: Duration = Duration::from_secs(10);
/// The longest gap between two recorded reads. No person switches a machine off and on within it.
pub(crate) const MAX_UNWATCHED: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;
    use PowerGoal::{Cycle, Off, On};
    use PowerStage::{Begun, Cutting, Shutting, Starting};

    const PATIENCE: PowerTimeouts = PowerTimeouts {
        graceful: Duration::from_secs(60),
        force: true,
        change: Duration::from_secs(100),
        again: Duration::from_secs(30),
    };

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(seconds * 1_000)
    }

    #[test]
    fn every_stage_has_its_move() {
        use PowerState as P;
        let ask = PowerMove::Command;
        let table = [
            (On, Begun, P::On, 0, PowerMove::Done("it was on already")),
            (On, Begun, P::Off, 0, ask(PowerCommand::Start, Starting(at(0)))),
            (Off, Begun, P::Off, 0, PowerMove::Done("it was off already")),
            (Off, Begun, P::On, 0, ask(PowerCommand::Shutdown, Shutting(at(0)))),
            (Cycle, Begun, P::Changing, 0, PowerMove::Look),
            (Cycle, Begun, P::Off, 5, ask(PowerCommand::Start, Starting(at(5)))),
            (Cycle, Begun, P::On, 5, ask(PowerCommand::Shutdown, Shutting(at(5)))),
            (Cycle, Shutting(at(0)), P::On, 59, PowerMove::Look),
            (Cycle, Shutting(at(0)), P::Changing, 60, ask(PowerCommand::Cut, Cutting(at(60)))),
            (Cycle, Shutting(at(0)), P::Off, 20, ask(PowerCommand::Start, Starting(at(20)))),
            (Off, Shutting(at(0)), P::Off, 20, PowerMove::Done("it is off")),
            (Cycle, Cutting(at(0)), P::On, 5, PowerMove::Look),
            (Cycle, Cutting(at(0)), P::On, 30, ask(PowerCommand::Cut, Cutting(at(0)))),
            (Cycle, Cutting(at(0)), P::On, 32, PowerMove::Look),
            (Off, Cutting(at(0)), P::Off, 5, PowerMove::Done("it is off")),
            (Cycle, Starting(at(0)), P::Off, 5, PowerMove::Look),
            (Cycle, Starting(at(0)), P::Off, 60, ask(PowerCommand::Start, Starting(at(0)))),
            (Cycle, Starting(at(0)), P::Changing, 99, PowerMove::Look),
            (Cycle, Starting(at(0)), P::On, 5, PowerMove::Done("it was seen off, and is on again")),
            (On, Starting(at(0)), P::On, 5, PowerMove::Done("it is on")),
            (Cycle, PowerStage::Done, P::Off, 5, PowerMove::Done("it was done before")),
        ];
        for (goal, stage, seen, now, expected) in table {
            let found = next(goal, stage, seen, at(now), &PATIENCE);
            assert_eq!(found, expected, "{goal:?} {stage:?} {seen:?} at {now}");
        }
    }

    #[test]
    fn patience_ends_with_what_was_seen() {
        let stubborn = PowerTimeouts { force: false, ..PATIENCE };
        for (stage, seen, patience, words) in [
            (Shutting(at(0)), PowerState::On, &stubborn, "does not allow force"),
            (Cutting(at(0)), PowerState::On, &PATIENCE, "told to switch off and did not within"),
            (Starting(at(0)), PowerState::Off, &PATIENCE, "told to start and did not within"),
            (Starting(at(0)), PowerState::Changing, &PATIENCE, "told to start"),
            (PowerStage::Stopped, PowerState::On, &PATIENCE, "stopped before it began"),
        ] {
            match next(Cycle, stage, seen, at(100), patience) {
                PowerMove::Fail(fault) => assert!(fault.said.contains(words), "{fault}"),
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
    fn a_step_has_its_say() {
        let configured = |seconds, force| PowerTimeouts {
            graceful: Duration::from_secs(seconds),
            force,
            ..PATIENCE
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
            let found = patience(&configured, power_off, can);
            let found = found.map(|found| (found.graceful.as_secs(), found.force)).ok();
            assert_eq!(found, expected, "{configured:?} {power_off:?} can shut down: {can}");
        }
    }

    #[test]
    fn a_refused_shutdown_leads_to_force_or_to_a_fault() {
        let no = |code| Fault::new(code, "the BMC said no");
        let polite = PowerTimeouts { force: false, ..PATIENCE };
        for code in [Code::EffectFailed, Code::NotSupported] {
            let left = refused(no(code), PowerCommand::Shutdown, &PATIENCE).unwrap();
            let cut = next(Cycle, Shutting(at(5)), PowerState::On, at(5), &left);
            assert_eq!(cut, PowerMove::Command(PowerCommand::Cut, Cutting(at(5))));
            let fault = refused(no(code), PowerCommand::Shutdown, &polite).unwrap_err();
            assert!(fault.code == code && fault.said.contains("said no; force"), "{fault}");
        }
        for (code, ask) in [
            (Code::BmcBusy, PowerCommand::Shutdown),
            (Code::AnswerLost, PowerCommand::Shutdown),
            (Code::EffectFailed, PowerCommand::Cut),
            (Code::NotSupported, PowerCommand::Start),
        ] {
            assert_eq!(refused(no(code), ask, &PATIENCE), Err(no(code)), "{code:?} {ask:?}");
        }
    }

    /// Without force no sequence forces the power off, whatever the machine does.
    #[test]
    fn what_is_forbidden_is_not_asked() {
        let polite = PowerTimeouts { force: false, ..PATIENCE };
        for goal in [Off, Cycle] {
            let mut stage = Begun;
            let mut fault = None;
            for second in 0..1_000 {
                match next(goal, stage, PowerState::On, at(second), &polite) {
                    PowerMove::Command(PowerCommand::Shutdown, next) => stage = next,
                    PowerMove::Look => {}
                    PowerMove::Fail(found) => {
                        fault = Some(found);
                        break;
                    }
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(fault.map(|fault| fault.code), Some(Code::ReadBackDiffers));
        }
    }

    /// Every sequence ends, whatever the machine does.
    #[test]
    fn a_course_always_ends() {
        for goal in [On, Off, Cycle] {
            for seen in [PowerState::On, PowerState::Off] {
                let mut stage = Begun;
                let ended = (0..1_000).any(|second| {
                    match next(goal, stage, seen, at(second), &PATIENCE) {
                        PowerMove::Command(_, next) => stage = next,
                        PowerMove::Look => {}
                        PowerMove::Done(_) | PowerMove::Fail(_) => return true,
                    }
                    false
                });
                assert!(ended, "{goal:?} with power always {seen:?}");
            }
        }
    }
}
