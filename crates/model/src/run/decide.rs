//! One whole turn of a run: from the stored run and the provider's answer to the next commit. All
//! moves that need no provider call are folded into one decision, so the end of one step and the
//! intent of the next are one commit.

use super::next::Asking;
use super::{Next, Note, Policy, Run, interrupt, judge, next};
use crate::condition::Evidence;
use crate::effect::{Answer, Facts, Order, Verb};
use crate::fault::Fault;
use crate::time::Timestamp;
use std::time::Duration;

/// The result of the provider call that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Given {
    Answered(Verb, Result<Answer, Fault>),
    /// The call was abandoned because the run has to stop.
    Interrupted,
}

/// The next commit, and the action after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// The run to write; it still has the version at which it was read.
    pub run: Run,
    pub notes: Vec<Note>,
    pub evidence: Vec<Evidence>,
    /// The facts that the step that just ended read from its device.
    pub facts: Option<Facts>,
    pub then: Then,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Then {
    Ask(Order, Duration),
    Until(Timestamp),
    Rest,
}

/// The limit of moves without a provider call; more would be a loop in the rules.
const MAX_MOVES: usize = 1_000;

pub fn decide(
    stored: &Run,
    epoch: i64,
    given: Option<&Given>,
    policy: Policy,
    now: Timestamp,
) -> Decision {
    let mut run = stored.clone();
    let mut notes = Vec::new();
    let mut evidence = Vec::new();
    let mut facts = None;
    if let Some(given) = given {
        let verdict = match given {
            Given::Answered(verb, result) => judge(&run, *verb, result.clone(), policy, now),
            Given::Interrupted => interrupt(&run),
        };
        run.progress = verdict.progress;
        notes.push(verdict.note);
        evidence = verdict.evidence;
        facts = verdict.facts;
    }
    for _ in 0..MAX_MOVES {
        match next(&run, epoch, now) {
            Next::Become(step) => {
                run.progress = step.progress;
                notes.push(step.note);
            }
            Next::Do(asking) => {
                let Asking { order, progress, timeout, note } = *asking;
                run.progress = progress;
                notes.push(note);
                return Decision { run, notes, evidence, facts, then: Then::Ask(order, timeout) };
            }
            Next::Until(at) => {
                return Decision { run, notes, evidence, facts, then: Then::Until(at) };
            }
            Next::Rest => return Decision { run, notes, evidence, facts, then: Then::Rest },
        }
    }
    Decision { run, notes, evidence, facts, then: Then::Rest }
}
