//! Brings the fabric of one switch to its goal: observe, send one command, observe again.
//!
//! Commands are idempotent and only sent for state that does not hold, so another worker can simply
//! continue after a crash. The switch's own description of its state is in the log, and in the
//! fault at a timeout.

use super::Datacenter;
use super::exec::barred;
use super::orders::{OrderCheckpoint, Remembered, done, two_effects};
use crate::clock::now;
use crate::fabric::{FabricManager, Goal, Nvos, Seen, Step, Tell, next};
use crate::port::{Journal, Target};
use crate::power::{MAX_UNWATCHED, WATCH_EVERY};
use crate::state_store::Checkpoint;
use model::effect::{Answer, Order, Outcome, Verb};
use model::fault::{Code, Fault, Happened};
use model::time::{Timestamp, spoken};
use std::time::Duration;
use tokio::time::Instant;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// Between two observations.
    pub look_every: Duration,
    /// A command without effect is repeated after this time.
    pub again: Duration,
    /// How long a switch may take to reach the goal.
    pub within: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            look_every: Duration::from_secs(5),
            again: Duration::from_secs(60),
            within: Duration::from_secs(900),
        }
    }
}

impl Datacenter {
    pub(super) async fn fabric(
        &self,
        target: &Target,
        order: &Order,
        goal: Goal,
        journal: &Journal,
    ) -> Result<Answer, Fault> {
        let work = Work { at: self, target, order, goal, journal };
        let noted = match order.verb {
            Verb::Perform => {
                let before = self.begin(&order.key, OrderCheckpoint::Fabric { told: None }).await?;
                Some(
                    before
                        .unwrap_or(Remembered::Checkpoint(OrderCheckpoint::Fabric { told: None })),
                )
            }
            Verb::Follow | Verb::GetStatus => self.recall(&order.key).await?,
            Verb::Observe => return work.observe().await,
            // Earlier commands are not reverted: the next call continues from this state.
            Verb::Stop => {
                self.store.begin(&order.key, &Checkpoint::Barred).await?;
                return Ok(Answer::Stopped);
            }
        };
        match (order.verb, noted) {
            (Verb::Perform, Some(Remembered::Barred)) => Err(barred(&order.key)),
            (_, None | Some(Remembered::Barred)) => Ok(Answer::NeverStarted),
            (Verb::GetStatus, Some(Remembered::Checkpoint(OrderCheckpoint::Fabric { told }))) => {
                work.inquire(told).await
            }
            (_, Some(Remembered::Checkpoint(OrderCheckpoint::Fabric { told }))) => {
                work.lead(told).await
            }
            (_, Some(Remembered::Checkpoint(_))) => Err(two_effects()),
        }
    }
}

/// One provider call about a switch's part of the fabric.
struct Work<'a> {
    at: &'a Datacenter,
    target: &'a Target,
    order: &'a Order,
    goal: Goal,
    journal: &'a Journal,
}

type Line = Option<Box<dyn FabricManager>>;

impl Work<'_> {
    async fn observe(&self) -> Result<Answer, Fault> {
        let seen = self.sight(&mut None).await?;
        Ok(match next(self.goal, &seen) {
            Step::Done => Answer::Done(reached(self.goal, &seen, true)),
            Step::Tell(_) | Step::Look => Answer::Differs(seen.said),
        })
    }

    /// A fabric that was switched off and is on may have been off in between and switched on by an
    /// operator. After a gap in watching, the outcome is unknown, and it is not switched off again.
    async fn inquire(&self, told: Option<Timestamp>) -> Result<Answer, Fault> {
        let Some(told) = told else { return Ok(Answer::UnderWay) };
        let away = now().since(told);
        if away <= MAX_UNWATCHED {
            return Ok(Answer::UnderWay);
        }
        let seen = self.sight(&mut None).await?;
        Ok(match next(self.goal, &seen) {
            Step::Done => Answer::Done(reached(self.goal, &seen, false)),
            Step::Tell(_) | Step::Look => Answer::Unknown(format!(
                "the switch was told to switch the fabric off, nobody looked for {}, and it is on: it may have been off in between",
                spoken(away)
            )),
        })
    }

    async fn lead(&self, mut noted: Option<Timestamp>) -> Result<Answer, Fault> {
        let patience = self.at.settings.fabric;
        let began = Instant::now();
        let mut line = None;
        let mut told: Vec<(Tell, Instant)> = Vec::new();
        let mut last = String::new();
        loop {
            let seen = match self.sight(&mut line).await {
                Ok(seen) => seen,
                // Applying a change may interrupt the switch's connections.
                Err(fault) if !told.is_empty() && may_pass(&fault, began, patience) => {
                    tokio::time::sleep(patience.look_every).await;
                    continue;
                }
                Err(fault) => return Err(fault),
            };
            if seen.said != last {
                self.journal.line(format!("fabric: {}", seen.said)).await;
                last.clone_from(&seen.said);
            }
            match next(self.goal, &seen) {
                Step::Done => {
                    let left_alone = told.is_empty() && noted.is_none();
                    return Ok(Answer::Done(reached(self.goal, &seen, left_alone)));
                }
                Step::Tell(what) if is_due(&told, what, patience.again) => {
                    noted = self.note(noted, what == Tell::Disable).await?;
                    told.push((what, Instant::now()));
                    self.tell(&line, what).await?;
                }
                Step::Tell(_) | Step::Look => {
                    let stale = noted.is_some_and(|at| now().since(at) >= WATCH_EVERY);
                    noted = self.note(noted, stale).await?;
                }
            }
            if began.elapsed() > patience.within {
                let waited = spoken(patience.within);
                let said = format!("{} within {waited}: {}", missed(self.goal), seen.said);
                return Err(Fault::new(Code::FabricFailed, said));
            }
            tokio::time::sleep(patience.look_every).await;
        }
    }

    /// If `matters`, stores that the switch is told to go off, or is observed, now.
    async fn note(
        &self,
        before: Option<Timestamp>,
        matters: bool,
    ) -> Result<Option<Timestamp>, Fault> {
        if !matters {
            return Ok(before);
        }
        let after = Some(now());
        let (before, next) =
            (OrderCheckpoint::Fabric { told: before }, OrderCheckpoint::Fabric { told: after });
        self.at.compare_and_swap(&self.order.key, before, next).await?;
        Ok(after)
    }

    async fn tell(&self, line: &Line, what: Tell) -> Result<(), Fault> {
        self.journal.line(format!("fabric: {}", what.as_str())).await;
        match line {
            Some(switch) => heard(switch.tell(what).await),
            None => Ok(()),
        }
    }

    /// Reads the switch over the present connection, or over a new one.
    async fn sight(&self, line: &mut Line) -> Result<Seen, Fault> {
        let switch = match line.take() {
            Some(switch) => switch,
            None => Box::new(Nvos::new(self.at.hosts.connect(self.target).await?)),
        };
        let seen = switch.look().await?;
        *line = Some(switch);
        Ok(seen)
    }
}

fn is_due(told: &[(Tell, Instant)], what: Tell, again: Duration) -> bool {
    let last = told.iter().rev().find(|(before, _)| *before == what);
    last.is_none_or(|(_, at)| at.elapsed() >= again)
}

/// A command with an unknown outcome is followed by an observation. A refused one was not executed.
fn heard(told: Result<(), Fault>) -> Result<(), Fault> {
    match told {
        Err(fault) if fault.code.happened() == Happened::Maybe => Ok(()),
        other => other,
    }
}

fn may_pass(fault: &Fault, began: Instant, patience: Patience) -> bool {
    fault.code.unseen() && began.elapsed() <= patience.within
}

const fn missed(goal: Goal) -> &'static str {
    match goal {
        Goal::Off => "the switch did not switch the fabric off",
        Goal::Manager => "the fabric manager did not come up",
        Goal::Configured => "the switch did not report the fabric as configured",
    }
}

fn reached(goal: Goal, seen: &Seen, left_alone: bool) -> Outcome {
    let how = if left_alone { ", as it was already" } else { "" };
    let said = match goal {
        Goal::Off => "the fabric is off",
        Goal::Manager => "the fabric manager runs here",
        Goal::Configured => "the switch reports the fabric as configured",
    };
    done(format!("{said}{how}: {}", seen.said))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_switch_is_told_again_only_after_a_while() {
        let again = Duration::from_secs(60);
        let told = vec![(Tell::Enable, Instant::now()), (Tell::Start, Instant::now())];
        assert!(is_due(&[], Tell::Enable, again) && is_due(&told, Tell::Open, again));
        assert!(!is_due(&told, Tell::Enable, again));
        tokio::time::advance(again).await;
        assert!(is_due(&told, Tell::Enable, again));
    }

    #[test]
    fn what_was_refused_ends_it_and_what_is_in_doubt_is_looked_at() {
        for (code, ends) in [
            (Code::AnswerLost, false),
            (Code::StepTimeout, false),
            (Code::FabricFailed, true),
            (Code::NotSupported, true),
        ] {
            assert_eq!(heard(Err(Fault::new(code, "why"))).is_err(), ends, "{code:?}");
        }
    }
}
