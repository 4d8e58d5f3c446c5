//! Power, decided: what to ask of a BMC next, given what was asked before and what it shows now.
//!
//! A reboot is an observed Off and then an observed On. That is slower than a reset, and it is proof: no clock of the BMC has to
//! be believed, and whoever finds the course after a crash knows how far it came. A shutdown is asked for politely
//! first; what does not listen is cut off, where that is allowed. Asking for what already holds does no harm, so a course may
//! be taken up again at any point.

use model::effect::Manner;
use model::fault::{Code, Fault};
use model::time::{Timestamp, spoken};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What a BMC shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Power {
    On,
    Off,
    /// On its way to one or the other.
    Changing,
}

/// Where a course leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    On,
    Off,
    /// Off, and then on.
    Cycle,
}

/// How far a course has come. It is written down before what it names is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    Begun,
    /// Asked to shut down.
    Shutting(Timestamp),
    /// Cut off.
    Cutting(Timestamp),
    /// Asked to start, after it was seen off.
    Starting(Timestamp),
    Done,
    /// Given up before anything was asked.
    Stopped,
}

/// What is asked of the BMC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    Shutdown,
    Cut,
    Start,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Move {
    /// Write the stage down, then ask.
    Ask(Ask, Stage),
    /// Look again in a while.
    Look,
    /// The goal holds. The text says how that was seen.
    Done(&'static str),
    Fail(Fault),
}

/// How long is waited for what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Patience {
    /// For a polite shutdown. Zero: it is not tried.
    pub graceful: Duration,
    /// Whether what does not shut down is cut off.
    pub force: bool,
    /// For power to follow a command that cannot be ignored.
    pub change: Duration,
    /// After this long without effect a command is given again: the one before may never have been sent.
    pub again: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            graceful: Duration::from_secs(60),
            force: true,
            change: Duration::from_secs(180),
            again: Duration::from_secs(30),
        }
    }
}

impl Patience {
    /// As a step wants it; where it is silent, as configured.
    fn in_manner(&self, manner: Manner) -> Self {
        let said = manner.graceful_seconds.map(|seconds| Duration::from_secs(seconds.into()));
        let graceful = said.unwrap_or(self.graceful);
        // Whoever says that the machine gets no time says that it is cut off.
        let cuts = said.is_some_and(|said| said.is_zero());
        let force = manner.force.unwrap_or(self.force || cuts);
        // A step that forbids a cut overrules a configuration that asks for nothing else.
        let insists = manner.force == Some(false) && graceful.is_zero();
        let graceful = if insists { Self::default().graceful } else { graceful };
        Self { graceful, force, ..self.clone() }
    }
}

/// The patience for one course at one BMC. One that cannot ask for a shutdown is not waited for, but cut off, where that
/// is allowed.
pub fn patience(
    configured: &Patience,
    manner: Manner,
    can_shut_down: bool,
) -> Result<Patience, Fault> {
    let wanted = configured.in_manner(manner);
    match (can_shut_down || wanted.graceful.is_zero(), wanted.force) {
        (true, _) => Ok(wanted),
        (false, true) => Ok(Patience { graceful: Duration::ZERO, ..wanted }),
        (false, false) => {
            let said = "the BMC cannot ask the operating system to shut down, and force is not allowed; allow it in the \
                        step or in the configuration";
            Err(Fault::new(Code::NotSupported, said))
        }
    }
}

/// Whether the patience matters for the next move: something is on that is to be switched off.
pub const fn needs_patience(goal: Goal, stage: Stage, seen: Power) -> bool {
    match (goal, stage, seen) {
        (Goal::On, _, _) | (_, _, Power::Off) => false,
        (
            Goal::Off | Goal::Cycle,
            Stage::Begun | Stage::Shutting(_) | Stage::Cutting(_),
            Power::On | Power::Changing,
        ) => true,
        (
            Goal::Off | Goal::Cycle,
            Stage::Starting(_) | Stage::Done | Stage::Stopped,
            Power::On | Power::Changing,
        ) => false,
    }
}

/// A shutdown was asked for and the BMC said no: nothing has happened. What is left of the patience, or why it ends here.
pub fn refused(fault: Fault, ask: Ask, patience: &Patience) -> Result<Patience, Fault> {
    match (ask, fault.code, patience.force) {
        (Ask::Shutdown, Code::EffectFailed | Code::NotSupported, true) => {
            Ok(Patience { graceful: Duration::ZERO, ..patience.clone() })
        }
        (Ask::Shutdown, Code::EffectFailed | Code::NotSupported, false) => {
            let said = format!("{}; force is not allowed, so its power stays as it is", fault.said);
            Err(Fault::new(fault.code, said))
        }
        (Ask::Shutdown | Ask::Cut | Ask::Start, _, _) => Err(fault),
    }
}

/// The next move of a course.
pub fn next(goal: Goal, stage: Stage, seen: Power, now: Timestamp, patience: &Patience) -> Move {
    match (stage, seen) {
        (Stage::Done, _) => Move::Done("it was done before"),
        (Stage::Stopped, _) => {
            Move::Fail(Fault::new(Code::EffectFailed, "it was stopped before it began"))
        }
        (Stage::Begun, Power::Changing) => Move::Look,
        (Stage::Begun, Power::On) if goal == Goal::On => Move::Done("it was on already"),
        (Stage::Begun, Power::Off) if goal == Goal::Off => Move::Done("it was off already"),
        (Stage::Begun, Power::Off) => start(now),
        (Stage::Begun, Power::On) if patience.graceful.is_zero() => cut(now),
        (Stage::Begun, Power::On) => Move::Ask(Ask::Shutdown, Stage::Shutting(now)),
        (Stage::Shutting(_) | Stage::Cutting(_), Power::Off) => match goal {
            Goal::Off => Move::Done("it is off"),
            Goal::On | Goal::Cycle => start(now),
        },
        (Stage::Shutting(since), Power::On | Power::Changing) => shutting(since, now, patience),
        (Stage::Cutting(since), Power::On | Power::Changing) => {
            insist(since, now, patience, Ask::Cut, stage)
        }
        (Stage::Starting(_), Power::On) => Move::Done(match goal {
            Goal::On => "it is on",
            Goal::Off | Goal::Cycle => "it was seen off, and is on again",
        }),
        (Stage::Starting(since), Power::Off) => insist(since, now, patience, Ask::Start, stage),
        (Stage::Starting(since), Power::Changing) => wait(since, now, patience, "start"),
    }
}

fn start(now: Timestamp) -> Move {
    Move::Ask(Ask::Start, Stage::Starting(now))
}

fn cut(now: Timestamp) -> Move {
    Move::Ask(Ask::Cut, Stage::Cutting(now))
}

fn shutting(since: Timestamp, now: Timestamp, patience: &Patience) -> Move {
    if now.since(since) < patience.graceful {
        return Move::Look;
    }
    if patience.force {
        return cut(now);
    }
    let waited = spoken(patience.graceful);
    let said = format!("it did not shut down within {waited}, and the step does not allow force");
    Move::Fail(Fault::new(Code::ReadBackDiffers, said))
}

/// Gives a command again that has had no effect, until patience ends.
fn insist(since: Timestamp, now: Timestamp, patience: &Patience, ask: Ask, stage: Stage) -> Move {
    let word = match ask {
        Ask::Start => "start",
        Ask::Shutdown | Ask::Cut => "switch off",
    };
    match wait(since, now, patience, word) {
        // The stage stays as it is: patience counts from the first time.
        Move::Look if again(since, now, patience) => Move::Ask(ask, stage),
        other => other,
    }
}

/// True once in each span of patience, within a look or two.
fn again(since: Timestamp, now: Timestamp, patience: &Patience) -> bool {
    let span = patience.again.as_millis().max(1);
    let waited = now.since(since).as_millis();
    waited >= span && waited % span < LOOK_EVERY.as_millis()
}

fn wait(since: Timestamp, now: Timestamp, patience: &Patience, word: &str) -> Move {
    if now.since(since) < patience.change {
        return Move::Look;
    }
    let said = format!("it was told to {word} and did not within {}", spoken(patience.change));
    Move::Fail(Fault::new(Code::ReadBackDiffers, said))
}

/// How long between two looks.
pub const LOOK_EVERY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use Goal::{Cycle, Off, On};
    use Stage::{Begun, Cutting, Shutting, Starting};

    const PATIENCE: Patience = Patience {
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
        use Power as P;
        let ask = Move::Ask;
        let table = [
            (On, Begun, P::On, 0, Move::Done("it was on already")),
            (On, Begun, P::Off, 0, ask(Ask::Start, Starting(at(0)))),
            (Off, Begun, P::Off, 0, Move::Done("it was off already")),
            (Off, Begun, P::On, 0, ask(Ask::Shutdown, Shutting(at(0)))),
            (Cycle, Begun, P::Changing, 0, Move::Look),
            (Cycle, Begun, P::Off, 5, ask(Ask::Start, Starting(at(5)))),
            (Cycle, Begun, P::On, 5, ask(Ask::Shutdown, Shutting(at(5)))),
            (Cycle, Shutting(at(0)), P::On, 59, Move::Look),
            (Cycle, Shutting(at(0)), P::Changing, 60, ask(Ask::Cut, Cutting(at(60)))),
            (Cycle, Shutting(at(0)), P::Off, 20, ask(Ask::Start, Starting(at(20)))),
            (Off, Shutting(at(0)), P::Off, 20, Move::Done("it is off")),
            (Cycle, Cutting(at(0)), P::On, 5, Move::Look),
            (Cycle, Cutting(at(0)), P::On, 30, ask(Ask::Cut, Cutting(at(0)))),
            (Cycle, Cutting(at(0)), P::On, 32, Move::Look),
            (Off, Cutting(at(0)), P::Off, 5, Move::Done("it is off")),
            (Cycle, Starting(at(0)), P::Off, 5, Move::Look),
            (Cycle, Starting(at(0)), P::Off, 60, ask(Ask::Start, Starting(at(0)))),
            (Cycle, Starting(at(0)), P::Changing, 99, Move::Look),
            (Cycle, Starting(at(0)), P::On, 5, Move::Done("it was seen off, and is on again")),
            (On, Starting(at(0)), P::On, 5, Move::Done("it is on")),
            (Cycle, Stage::Done, P::Off, 5, Move::Done("it was done before")),
        ];
        for (goal, stage, seen, now, expected) in table {
            let found = next(goal, stage, seen, at(now), &PATIENCE);
            assert_eq!(found, expected, "{goal:?} {stage:?} {seen:?} at {now}");
        }
    }

    #[test]
    fn patience_ends_with_what_was_seen() {
        let stubborn = Patience { force: false, ..PATIENCE };
        for (stage, seen, patience, words) in [
            (Shutting(at(0)), Power::On, &stubborn, "does not allow force"),
            (Cutting(at(0)), Power::On, &PATIENCE, "told to switch off and did not within"),
            (Starting(at(0)), Power::Off, &PATIENCE, "told to start and did not within"),
            (Starting(at(0)), Power::Changing, &PATIENCE, "told to start"),
            (Stage::Stopped, Power::On, &PATIENCE, "stopped before it began"),
        ] {
            match next(Cycle, stage, seen, at(100), patience) {
                Move::Fail(fault) => assert!(fault.said.contains(words), "{fault}"),
                other => panic!("{stage:?}: {other:?}"),
            }
        }
    }

    fn manner(graceful_seconds: Option<u32>, force: Option<bool>) -> Manner {
        Manner { graceful_seconds, force }
    }

    /// Rows: what is configured, what the step says, what the BMC can. Columns: how long politely, and whether by force.
    #[test]
    fn a_step_has_its_say() {
        let configured =
            |seconds, force| Patience { graceful: Duration::from_secs(seconds), force, ..PATIENCE };
        let table = [
            (configured(60, true), manner(None, None), true, Some((60, true))),
            (configured(60, true), manner(None, None), false, Some((0, true))),
            (configured(60, true), manner(Some(5), None), true, Some((5, true))),
            (configured(60, true), manner(Some(0), None), true, Some((0, true))),
            (configured(60, true), manner(None, Some(false)), true, Some((60, false))),
            (configured(60, true), manner(None, Some(false)), false, None),
            (configured(60, false), manner(None, None), true, Some((60, false))),
            (configured(60, false), manner(None, None), false, None),
            (configured(60, false), manner(Some(0), None), false, Some((0, true))),
            (configured(60, false), manner(Some(5), Some(true)), false, Some((0, true))),
            (configured(0, true), manner(None, None), true, Some((0, true))),
            (configured(0, true), manner(None, Some(false)), true, Some((60, false))),
            (configured(0, true), manner(Some(9), Some(false)), true, Some((9, false))),
        ];
        for (configured, manner, can, expected) in table {
            let found = patience(&configured, manner, can);
            let found = found.map(|found| (found.graceful.as_secs(), found.force)).ok();
            assert_eq!(found, expected, "{configured:?} {manner:?} can shut down: {can}");
        }
    }

    #[test]
    fn a_refused_shutdown_leads_to_force_or_to_a_fault() {
        let no = |code| Fault::new(code, "the BMC said no");
        let polite = Patience { force: false, ..PATIENCE };
        for code in [Code::EffectFailed, Code::NotSupported] {
            let left = refused(no(code), Ask::Shutdown, &PATIENCE).unwrap();
            let cut = next(Cycle, Shutting(at(5)), Power::On, at(5), &left);
            assert_eq!(cut, Move::Ask(Ask::Cut, Cutting(at(5))));
            let fault = refused(no(code), Ask::Shutdown, &polite).unwrap_err();
            assert!(fault.code == code && fault.said.contains("said no; force"), "{fault}");
        }
        for (code, ask) in [
            (Code::BmcBusy, Ask::Shutdown),
            (Code::AnswerLost, Ask::Shutdown),
            (Code::EffectFailed, Ask::Cut),
            (Code::NotSupported, Ask::Start),
        ] {
            assert_eq!(refused(no(code), ask, &PATIENCE), Err(no(code)), "{code:?} {ask:?}");
        }
    }

    /// Without force no course ever cuts, whatever the machine does.
    #[test]
    fn what_is_forbidden_is_not_asked() {
        let polite = Patience { force: false, ..PATIENCE };
        for goal in [Off, Cycle] {
            let mut stage = Begun;
            let mut fault = None;
            for second in 0..1_000 {
                match next(goal, stage, Power::On, at(second), &polite) {
                    Move::Ask(Ask::Shutdown, next) => stage = next,
                    Move::Look => {}
                    Move::Fail(found) => {
                        fault = Some(found);
                        break;
                    }
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(fault.map(|fault| fault.code), Some(Code::ReadBackDiffers));
        }
    }

    /// Whatever a machine does, a course ends.
    #[test]
    fn a_course_always_ends() {
        for goal in [On, Off, Cycle] {
            for seen in [Power::On, Power::Off] {
                let mut stage = Begun;
                let ended = (0..1_000).any(|second| {
                    match next(goal, stage, seen, at(second), &PATIENCE) {
                        Move::Ask(_, next) => stage = next,
                        Move::Look => {}
                        Move::Done(_) | Move::Fail(_) => return true,
                    }
                    false
                });
                assert!(ended, "{goal:?} with power always {seen:?}");
            }
        }
    }
}
