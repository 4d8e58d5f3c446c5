//! Brings the fabric of one switch to its goal: observe, send one command, observe again.
//!
//! Commands are idempotent and only sent for state that does not hold, so another worker can simply
//! continue after a crash. The switch's own description of its state is in the log, and in the
//! fault at a timeout.

use super::exec::stopped_before_start;
use super::provider_calls::{CallCheckpoint, StoredCheckpoint, done, key_conflict};
use super::{Datacenter, TargetCall};
use crate::clock::now;
use crate::fabric::{
    FabricCommand, FabricManager, FabricObservation, FabricStep, FabricTarget, Nvos, next_step,
};
use crate::port::{Journal, Target};
use crate::power::{MAX_WATCH_GAP, WATCH_INTERVAL};
use crate::state_store::Checkpoint;
use model::effect::{CallOutcome, CallResult, CallVerb, ProviderAnswer, ProviderCall};
use model::fault::{EffectOutcome, Fault, FaultCode, Result};
use model::time::{Timestamp, format_duration};
use std::time::Duration;
use tokio::time::Instant;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FabricTimeouts {
    /// The interval between two observations.
    pub poll_interval: Duration,
    /// A command without effect is repeated after this time.
    pub repeat_after: Duration,
    /// The time that a switch has to reach the goal.
    pub limit: Duration,
}

impl Default for FabricTimeouts {
    fn default() -> Self {
        Self {
            poll_interval: Duration::from_secs(5),
            repeat_after: Duration::from_secs(60),
            limit: Duration::from_secs(900),
        }
    }
}

impl Datacenter {
    pub(super) async fn fabric(&self, request: TargetCall<'_>, goal: FabricTarget) -> CallResult {
        let TargetCall { target, call, journal } = request;
        let work = FabricWork { datacenter: self, target, call, goal, journal };
        let noted = match call.verb {
            CallVerb::Perform | CallVerb::Follow | CallVerb::GetStatus => {
                self.begin_or_recall(call, CallCheckpoint::Fabric { watched: None }).await?
            }
            CallVerb::Observe => return work.observe().await,
            // Earlier commands are not reverted: the next call continues from this state.
            CallVerb::Stop => {
                self.store.begin(&call.key, &Checkpoint::StoppedBeforeStart).await?;
                return Ok(ProviderAnswer::Stopped);
            }
        };
        match (call.verb, noted) {
            (CallVerb::Perform, Some(StoredCheckpoint::StoppedBeforeStart)) => {
                Err(stopped_before_start(&call.key))
            }
            (_, None | Some(StoredCheckpoint::StoppedBeforeStart)) => {
                Ok(ProviderAnswer::NeverStarted)
            }
            (
                CallVerb::GetStatus,
                Some(StoredCheckpoint::Checkpoint(CallCheckpoint::Fabric { watched: reported })),
            ) => work.get_status(reported).await,
            (
                _,
                Some(StoredCheckpoint::Checkpoint(CallCheckpoint::Fabric { watched: reported })),
            ) => work.run_to_goal(reported).await,
            (_, Some(StoredCheckpoint::Checkpoint(_))) => Err(key_conflict()),
        }
    }
}

/// One provider call about a switch's part of the fabric.
struct FabricWork<'a> {
    datacenter: &'a Datacenter,
    target: &'a Target,
    call: &'a ProviderCall,
    goal: FabricTarget,
    journal: &'a Journal,
}

type Connection = Option<Box<dyn FabricManager>>;

impl FabricWork<'_> {
    async fn observe(&self) -> CallResult {
        let observed = self.read_switch(&mut None).await?;
        Ok(match next_step(self.goal, &observed) {
            FabricStep::Done => ProviderAnswer::Done(goal_outcome(self.goal, &observed, true)),
            FabricStep::Send(_) | FabricStep::Wait => ProviderAnswer::Differs(observed.summary),
        })
    }

    /// A fabric that was switched off and is on may have been off in between and switched on by an
    /// operator. After a gap in watching, the outcome is unknown, and it is not switched off again.
    async fn get_status(&self, reported: Option<Timestamp>) -> CallResult {
        let Some(reported) = reported else { return Ok(ProviderAnswer::UnderWay) };
        let away = now().since(reported);
        if away <= MAX_WATCH_GAP {
            return Ok(ProviderAnswer::UnderWay);
        }
        let observed = self.read_switch(&mut None).await?;
        Ok(match next_step(self.goal, &observed) {
            FabricStep::Done => ProviderAnswer::Done(goal_outcome(self.goal, &observed, false)),
            FabricStep::Send(_) | FabricStep::Wait => ProviderAnswer::Unknown(format!(
                "the switch was told to switch the fabric off, it was not observed for {}, and it is on: it may have been off in between",
                format_duration(away)
            )),
        })
    }

    async fn run_to_goal(&self, mut noted: Option<Timestamp>) -> CallResult {
        let timeout = self.datacenter.settings.fabric;
        let began = Instant::now();
        let mut line = None;
        let mut reported: Vec<(FabricCommand, Instant)> = Vec::new();
        let mut last = String::new();
        loop {
            let observed = match self.read_switch(&mut line).await {
                Ok(observed) => observed,
                // Applying a change may interrupt the switch's connections.
                Err(fault) if !reported.is_empty() && is_transient(&fault, began, timeout) => {
                    tokio::time::sleep(timeout.poll_interval).await;
                    continue;
                }
                Err(fault) => return Err(fault),
            };
            if observed.summary != last {
                self.journal.write_line(format!("fabric: {}", observed.summary)).await;
                last.clone_from(&observed.summary);
            }
            match next_step(self.goal, &observed) {
                FabricStep::Done => {
                    let left_alone = reported.is_empty() && noted.is_none();
                    return Ok(ProviderAnswer::Done(goal_outcome(
                        self.goal, &observed, left_alone,
                    )));
                }
                FabricStep::Send(what) if is_due(&reported, what, timeout.repeat_after) => {
                    noted = self.record_watch(noted, what == FabricCommand::Disable).await?;
                    reported.push((what, Instant::now()));
                    self.send_command(&line, what).await?;
                }
                FabricStep::Send(_) | FabricStep::Wait => {
                    let stale = noted.is_some_and(|at| now().since(at) >= WATCH_INTERVAL);
                    noted = self.record_watch(noted, stale).await?;
                }
            }
            if began.elapsed() > timeout.limit {
                let waited = format_duration(timeout.limit);
                let message =
                    format!("{} within {waited}: {}", timeout_message(self.goal), observed.summary);
                return Err(Fault::new(FaultCode::FabricFailed, message));
            }
            tokio::time::sleep(timeout.poll_interval).await;
        }
    }

    /// If `matters`, stores now as the time when the switch was told to go off, or was observed.
    async fn record_watch(
        &self,
        before: Option<Timestamp>,
        matters: bool,
    ) -> Result<Option<Timestamp>> {
        if !matters {
            return Ok(before);
        }
        let after = Some(now());
        let (before, next) =
            (CallCheckpoint::Fabric { watched: before }, CallCheckpoint::Fabric { watched: after });
        self.datacenter.compare_and_swap(&self.call.key, before, next).await?;
        Ok(after)
    }

    async fn send_command(&self, line: &Connection, what: FabricCommand) -> Result<()> {
        self.journal.write_line(format!("fabric: {}", what.as_str())).await;
        match line {
            Some(switch) => ignore_unknown_outcome(switch.send_command(what).await),
            None => Ok(()),
        }
    }

    /// Reads the switch over the present connection, or over a new one.
    async fn read_switch(&self, line: &mut Connection) -> Result<FabricObservation> {
        let switch = match line.take() {
            Some(switch) => switch,
            None => Box::new(Nvos::new(self.datacenter.hosts.connect(self.target).await?)),
        };
        let observed = switch.observe().await?;
        *line = Some(switch);
        Ok(observed)
    }
}

fn is_due(reported: &[(FabricCommand, Instant)], what: FabricCommand, again: Duration) -> bool {
    let last = reported.iter().rev().find(|(before, _)| *before == what);
    last.is_none_or(|(_, at)| at.elapsed() >= again)
}

/// A command with an unknown outcome is followed by an observation. A refused one was not executed.
fn ignore_unknown_outcome(reported: Result<()>) -> Result<()> {
    match reported {
        Err(fault) if fault.code.effect_outcome() == EffectOutcome::Unknown => Ok(()),
        other => other,
    }
}

fn is_transient(fault: &Fault, began: Instant, timeout: FabricTimeouts) -> bool {
    fault.code.peer_unreachable() && began.elapsed() <= timeout.limit
}

const fn timeout_message(goal: FabricTarget) -> &'static str {
    match goal {
        FabricTarget::Off => "the switch did not switch the fabric off",
        FabricTarget::Manager => "the fabric manager did not come up",
        FabricTarget::Configured => "the switch did not report the fabric as configured",
    }
}

fn goal_outcome(goal: FabricTarget, observed: &FabricObservation, left_alone: bool) -> CallOutcome {
    let how = if left_alone { ", as it was already" } else { "" };
    let message = match goal {
        FabricTarget::Off => "the fabric is off",
        FabricTarget::Manager => "the fabric manager runs here",
        FabricTarget::Configured => "the switch reports the fabric as configured",
    };
    done(format!("{message}{how}: {}", observed.summary))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_command_is_repeated_only_after_a_while() {
        let again = Duration::from_secs(60);
        let reported = vec![
            (FabricCommand::Enable, Instant::now()),
            (FabricCommand::StartManager, Instant::now()),
        ];
        assert!(
            is_due(&[], FabricCommand::Enable, again)
                && is_due(&reported, FabricCommand::OpenManager, again)
        );
        assert!(!is_due(&reported, FabricCommand::Enable, again));
        tokio::time::advance(again).await;
        assert!(is_due(&reported, FabricCommand::Enable, again));
    }

    #[test]
    fn only_a_definite_failure_ends_the_work() {
        for (code, ends) in [
            (FaultCode::AnswerLost, false),
            (FaultCode::StepTimeout, false),
            (FaultCode::FabricFailed, true),
            (FaultCode::NotSupported, true),
        ] {
            assert_eq!(
                ignore_unknown_outcome(Err(Fault::new(code, "why"))).is_err(),
                ends,
                "{code:?}"
            );
        }
    }
}
