//! Follows a power sequence: read, decide, store, send, and read again until the goal is observed.

use super::controller::Controller;
use super::provider_calls::CallCheckpoint;
use super::{Datacenter, TargetCall};
use crate::clock::now;
use crate::fault::possibly_happened;
use crate::governor::Priority;
use crate::port::Target;
use crate::power::{
    self, MAX_WATCH_GAP, POLL_INTERVAL, PowerCommand, PowerDecision, PowerGoal, PowerStage,
    PowerState, PowerTimeouts, WATCH_INTERVAL,
};
use model::effect::{CallResult, PowerOffPolicy, ProviderAnswer, ProviderCall};
use model::fault::{EffectOutcome, Fault, FaultCode, Result};
use model::time::{Timestamp, format_duration};

/// The goal of a power sequence and its options.
#[derive(Debug, Clone, Copy)]
pub(super) struct PowerSequence {
    pub goal: PowerGoal,
    pub power_off: PowerOffPolicy,
    /// The host must answer at the end.
    pub await_host: bool,
    /// The time when the power state was last read.
    pub watched: Option<Timestamp>,
}

impl Datacenter {
    /// Follows the sequence until its goal is observed; `note` builds the caller's checkpoint.
    /// After the first command an unreachable BMC means an unknown outcome. Returns the evidence.
    pub(super) async fn follow_power_sequence(
        &self,
        request: TargetCall<'_>,
        plan: PowerSequence,
        stage: &mut PowerStage,
        note: fn(PowerSequence, PowerStage) -> CallCheckpoint,
    ) -> Result<&'static str> {
        let ended = self.run_power_sequence(request, plan, stage, note).await;
        ended.map_err(|fault| match stage {
            PowerStage::Begun | PowerStage::Stopped => fault,
            PowerStage::ShuttingDown(_)
            | PowerStage::ForcingOff(_)
            | PowerStage::Starting(_)
            | PowerStage::Done => possibly_happened(fault),
        })
    }

    async fn run_power_sequence(
        &self,
        request: TargetCall<'_>,
        plan: PowerSequence,
        stage: &mut PowerStage,
        note: fn(PowerSequence, PowerStage) -> CallCheckpoint,
    ) -> Result<&'static str> {
        let TargetCall { target, call: ProviderCall { key, .. }, journal } = request;
        let mut plan = plan;
        let PowerSequence { goal, power_off, .. } = plan;
        let begun = |stage: &PowerStage, fault| match stage {
            PowerStage::Begun => fault_before_command(fault),
            PowerStage::ShuttingDown(_)
            | PowerStage::ForcingOff(_)
            | PowerStage::Starting(_)
            | PowerStage::Done
            | PowerStage::Stopped => fault,
        };
        let mut known = None;
        loop {
            let observed = self.read_power(target, Priority::Operator).await;
            let observed = observed.map_err(|fault| begun(stage, fault))?;
            if known.is_none() && power::needs_timeouts(goal, *stage, observed) {
                let timeout = self.power_timeouts(target, power_off).await;
                known = Some(timeout.map_err(|fault| begun(stage, fault))?);
            }
            let timeout = known.as_ref().unwrap_or(&self.settings.power_timeouts);
            match power::next_decision(goal, *stage, observed, now(), timeout) {
                PowerDecision::Wait => {
                    if plan.watched.is_none_or(|at| now().since(at) >= WATCH_INTERVAL) {
                        let observed = PowerSequence { watched: Some(now()), ..plan };
                        let (before, after) = (note(plan, *stage), note(observed, *stage));
                        if before != after {
                            self.compare_and_swap(key, before, after).await?;
                        }
                        plan = observed;
                    }
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
                PowerDecision::Command(command, next) => {
                    // Stored before the BMC is called.
                    let observed = PowerSequence { watched: Some(now()), ..plan };
                    self.compare_and_swap(key, note(plan, *stage), note(observed, next)).await?;
                    plan = observed;
                    journal.write_line(describe_command(command, *stage, next)).await;
                    *stage = next;
                    if let Err(fault) = self.send_power_command(target, command).await {
                        let no = format!("power: that was refused: {}", fault.message);
                        known = Some(power::after_refusal(fault, command, timeout)?);
                        journal.write_line(no).await;
                    }
                }
                PowerDecision::Done(how) => {
                    self.compare_and_swap(key, note(plan, *stage), note(plan, PowerStage::Done))
                        .await?;
                    *stage = PowerStage::Done;
                    journal.write_line(format!("power: {how}")).await;
                    return Ok(how);
                }
                PowerDecision::Fail(fault) => return Err(fault),
            }
        }
    }

    /// The status of a sequence that another worker has left. A machine that was to go off and is
    /// on may have been off in between and switched on by an operator. After a gap in watching, the
    /// outcome is therefore unknown, and it is not switched off again.
    pub(super) async fn abandoned_sequence_status(
        &self,
        target: &Target,
        stage: PowerStage,
        watched: Option<Timestamp>,
    ) -> CallResult {
        let (PowerStage::ShuttingDown(since) | PowerStage::ForcingOff(since)) = stage else {
            return Ok(ProviderAnswer::UnderWay);
        };
        let away = now().since(watched.unwrap_or(since).max(since));
        if away <= MAX_WATCH_GAP
            || self.read_power(target, Priority::Operator).await? != PowerState::On
        {
            return Ok(ProviderAnswer::UnderWay);
        }
        Ok(ProviderAnswer::Unknown(format!(
            "it was asked to go off, it was not observed for {}, and it is on: it may have been off in between",
            format_duration(away)
        )))
    }

    async fn send_power_command(&self, target: &Target, request: PowerCommand) -> Result<()> {
        let send = async |bmc: &Controller| bmc.send_power_command(request).await;
        self.call_bmc(target, send).await
    }

    /// The timeouts of the step at this BMC.
    async fn power_timeouts(
        &self,
        target: &Target,
        power_off: PowerOffPolicy,
    ) -> Result<PowerTimeouts> {
        let probe = async |bmc: &Controller| bmc.can_shut_down().await;
        let can_shut_down = self.call_bmc(target, probe).await?;
        power::timeouts_for(&self.settings.power_timeouts, power_off, can_shut_down)
    }

    pub(super) async fn read_power(
        &self,
        target: &Target,
        priority: Priority,
    ) -> Result<PowerState> {
        let limit = self.settings.call_timeout;
        self.bmcs.call(target, priority, limit, async |bmc| bmc.power().await).await
    }
}

/// Before the first command the BMC was only read, so nothing has happened.
fn fault_before_command(fault: Fault) -> Fault {
    match (fault.code.effect_outcome(), fault.code) {
        (EffectOutcome::NotApplied, _) => fault,
        (EffectOutcome::Unknown, FaultCode::AnswerGarbled) => {
            Fault::new(FaultCode::BmcGarbled, fault.message)
        }
        (EffectOutcome::Unknown, _) => Fault::new(FaultCode::BmcUnreachable, fault.message),
    }
}

fn describe_command(request: PowerCommand, before: PowerStage, next: PowerStage) -> String {
    let what = match request {
        PowerCommand::Shutdown => "asking the operating system to shut down",
        PowerCommand::ForceOff => "cutting it off",
        PowerCommand::Start => "switching it on",
    };
    let again = if before == next { ", again" } else { "" };
    format!("power: {what}{again}")
}
