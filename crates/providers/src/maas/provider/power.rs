//! Power through MAAS: read, decide, checkpoint, request, and read until the goal is reached. The
//! decisions are those of every other machine. MAAS may deploy a machine on a power-on request, so
//! none is sent to an Allocated machine.

use super::checkpoint::{OrderCheckpoint, checkpoint_mismatch};
use super::executor::{CallContext, describe_state, outcome, state_disagrees};
use crate::clock::now;
use crate::fault::possibly_happened;
use crate::maas::{MaasPowerState, Machine, Status, StopMode};
use crate::power::{
    self, MAX_WATCH_GAP, PowerCommand, PowerDecision, PowerGoal, PowerStage, PowerState,
    WATCH_INTERVAL,
};
use model::condition::{ConditionObservation, ConditionType, POWERED_OFF};
use model::effect::{
    CallOutcome, CallResult, CallVerb, DesiredPower, DeviceFacts, PowerOffPolicy, ProviderAnswer,
};
use model::fault::{Fault, FaultCode, Result};
use model::time::{Timestamp, format_duration};

const MANUAL: &str = "manual";

/// Controls the power of one machine through MAAS.
pub(super) struct PowerExecutor<'a> {
    pub call: &'a CallContext<'a>,
    pub system_id: &'a str,
    pub power_off: PowerOffPolicy,
}

/// The progress of a power sequence.
#[derive(Clone, Copy)]
struct PowerProgress {
    goal: PowerGoal,
    stage: PowerStage,
    last_read_at: Option<Timestamp>,
}

impl PowerProgress {
    fn to_checkpoint(self) -> OrderCheckpoint {
        OrderCheckpoint::Power {
            goal: self.goal,
            stage: self.stage,
            last_read_at: self.last_read_at,
        }
    }

    fn from_checkpoint(checkpoint: &OrderCheckpoint) -> Result<Self> {
        match checkpoint {
            OrderCheckpoint::Power { goal, stage, last_read_at: watched } => {
                Ok(Self { goal: *goal, stage: *stage, last_read_at: *watched })
            }
            OrderCheckpoint::Begun
            | OrderCheckpoint::Requested { .. }
            | OrderCheckpoint::Commission { .. }
            | OrderCheckpoint::Deploy { .. }
            | OrderCheckpoint::Release { .. }
            | OrderCheckpoint::Reinstall { .. }
            | OrderCheckpoint::Stopped
            | OrderCheckpoint::FirstObserved { .. }
            | OrderCheckpoint::FirstSync { .. } => Err(checkpoint_mismatch()),
        }
    }
}

impl PowerExecutor<'_> {
    pub async fn execute(&self, goal: PowerGoal, machine: &Machine) -> CallResult {
        let notes = self.call.checkpoints();
        if machine.power_type.is_empty() || machine.power_type == MANUAL {
            return self.execute_manual(goal, machine).await;
        }
        match self.call.verb() {
            CallVerb::Perform => {
                check_may_start(goal, machine)?;
                let first = PowerProgress { goal, stage: PowerStage::Begun, last_read_at: None };
                let checkpoint = notes.begin(first.to_checkpoint()).await?;
                self.follow(PowerProgress::from_checkpoint(&checkpoint)?, machine).await
            }
            CallVerb::Follow => match notes.recall().await? {
                None => Ok(ProviderAnswer::NeverStarted),
                Some(checkpoint) => {
                    self.follow(PowerProgress::from_checkpoint(&checkpoint)?, machine).await
                }
            },
            CallVerb::GetStatus => match notes.recall().await? {
                None => Ok(ProviderAnswer::NeverStarted),
                Some(checkpoint) => {
                    self.takeover_status(PowerProgress::from_checkpoint(&checkpoint)?, machine)
                        .await
                }
            },
            CallVerb::Observe => {
                let observed = self.read_power().await?;
                Ok(match (goal, observed) {
                    (PowerGoal::On, PowerState::On) | (PowerGoal::Off, PowerState::Off) => {
                        ProviderAnswer::Done(goal_outcome(machine, goal, "it was seen now"))
                    }
                    (PowerGoal::Cycle, _) => {
                        ProviderAnswer::Differs("a reboot leaves nothing to see".into())
                    }
                    (PowerGoal::On | PowerGoal::Off, _) => {
                        ProviderAnswer::Differs(format!("power is {}", observed.as_str()))
                    }
                })
            }
            CallVerb::Stop => self.stop(machine).await,
        }
    }

    /// MAAS does not control the power and mostly cannot read it: a person switches it, and the
    /// operator adopts the result.
    async fn execute_manual(&self, goal: PowerGoal, machine: &Machine) -> CallResult {
        match (self.call.verb(), goal) {
            (CallVerb::Stop, _) => Ok(ProviderAnswer::Stopped),
            (CallVerb::GetStatus, PowerGoal::Off) => Ok(ProviderAnswer::NeverStarted),
            (CallVerb::Perform | CallVerb::Follow, PowerGoal::Off) => {
                match self.read_uncontrolled_power().await? {
                    MaasPowerState::Off => {
                        Ok(ProviderAnswer::Done(goal_outcome(machine, goal, "MAAS says so")))
                    }
                    MaasPowerState::On | MaasPowerState::Unknown | MaasPowerState::Error => {
                        Err(state_disagrees(
                            machine,
                            &format!(
                                "it does not control its power (power type manual): switch it off by hand, then `farrier operation adopt {}`",
                                self.call.key().run()
                            ),
                        ))
                    }
                }
            }
            (CallVerb::Observe, PowerGoal::Off) => {
                Ok(match self.read_uncontrolled_power().await? {
                    MaasPowerState::Off => {
                        ProviderAnswer::Done(goal_outcome(machine, goal, "MAAS says so"))
                    }
                    MaasPowerState::On => {
                        ProviderAnswer::Differs(format!("power is {}", PowerState::On.as_str()))
                    }
                    MaasPowerState::Unknown | MaasPowerState::Error => {
                        let message = "its power cannot be read (power type manual): it is taken for switched off by hand";
                        ProviderAnswer::Done(outcome(machine, message))
                    }
                })
            }
            (
                CallVerb::Perform | CallVerb::Follow | CallVerb::GetStatus | CallVerb::Observe,
                PowerGoal::On | PowerGoal::Cycle,
            ) => {
                let message = format!(
                    "MAAS does not control the power of {} (power type manual); set its power type there",
                    self.system_id
                );
                Err(Fault::new(FaultCode::NotSupported, message))
            }
        }
    }

    /// The power state of a machine that MAAS does not control; mostly unknown.
    async fn read_uncontrolled_power(&self) -> Result<MaasPowerState> {
        match self.call.maas().query_power_state(self.system_id).await {
            // MAAS refuses to query what it does not control.
            Err(fault)
                if matches!(fault.code, FaultCode::EffectFailed | FaultCode::NotSupported) =>
            {
                Ok(MaasPowerState::Unknown)
            }
            other => other,
        }
    }

    /// The power state from the BMC, through MAAS.
    async fn read_power(&self) -> Result<PowerState> {
        match self.call.maas().query_power_state(self.system_id).await? {
            MaasPowerState::On => Ok(PowerState::On),
            MaasPowerState::Off => Ok(PowerState::Off),
            MaasPowerState::Unknown | MaasPowerState::Error => {
                let message = format!(
                    "MAAS cannot tell whether {} is on: its BMC does not answer",
                    self.system_id
                );
                Err(Fault::new(FaultCode::BmcUnreachable, message))
            }
        }
    }

    async fn follow(&self, mut plan: PowerProgress, machine: &Machine) -> CallResult {
        self.run_to_goal(&mut plan, machine).await.map_err(|fault| match plan.stage {
            PowerStage::Begun | PowerStage::Stopped => fault,
            // A command was sent: a failed read does not show that nothing happened.
            PowerStage::ShuttingDown(_)
            | PowerStage::ForcingOff(_)
            | PowerStage::Starting(_)
            | PowerStage::Done => possibly_happened(fault),
        })
    }

    async fn run_to_goal(&self, plan: &mut PowerProgress, machine: &Machine) -> CallResult {
        let settings = &self.call.provider.settings;
        let mut timeout = power::timeouts_for(&settings.power_timeouts, self.power_off, true)?;
        loop {
            let observed = self.read_power().await?;
            match power::next_decision(plan.goal, plan.stage, observed, now(), &timeout) {
                PowerDecision::Wait => {
                    if plan.last_read_at.is_none_or(|at| now().since(at) >= WATCH_INTERVAL) {
                        self.note(plan, plan.stage).await?;
                    }
                    tokio::time::sleep(settings.poll_interval.min(power::POLL_INTERVAL)).await;
                }
                PowerDecision::Command(request, stage) => {
                    if request == PowerCommand::Start {
                        check_may_start(plan.goal, machine)?;
                    }
                    self.note(plan, stage).await?;
                    self.call.journal.write_line(format!("power: {}", asking(request))).await;
                    if let Err(fault) = self.send_command(request).await {
                        timeout = power::after_refusal(fault, request, &timeout)?;
                    }
                }
                PowerDecision::Done(how) => {
                    self.note(plan, PowerStage::Done).await?;
                    let machine = self.call.maas().machine(self.system_id).await?;
                    return Ok(ProviderAnswer::Done(goal_outcome(&machine, plan.goal, how)));
                }
                PowerDecision::Fail(fault) => return Err(fault),
            }
        }
    }

    /// The checkpoint is stored before the request is sent.
    async fn note(&self, plan: &mut PowerProgress, stage: PowerStage) -> Result<()> {
        let after = PowerProgress { stage, last_read_at: Some(now()), ..*plan };
        self.call
            .checkpoints()
            .compare_and_swap(&plan.to_checkpoint(), &after.to_checkpoint())
            .await?;
        *plan = after;
        Ok(())
    }

    async fn send_command(&self, request: PowerCommand) -> Result<()> {
        let maas = self.call.maas();
        match request {
            PowerCommand::Shutdown => maas.power_off(self.system_id, StopMode::Soft).await,
            PowerCommand::ForceOff => maas.power_off(self.system_id, StopMode::Hard).await,
            PowerCommand::Start => maas.power_on(self.system_id).await.map(drop),
        }
    }

    /// The status after a takeover. A machine that is on may have been off unobserved.
    async fn takeover_status(&self, plan: PowerProgress, machine: &Machine) -> CallResult {
        let since = match plan.stage {
            PowerStage::Done => {
                let how = "it was seen before";
                return Ok(ProviderAnswer::Done(goal_outcome(machine, plan.goal, how)));
            }
            PowerStage::Stopped => return Ok(ProviderAnswer::NeverStarted),
            PowerStage::Begun | PowerStage::Starting(_) => return Ok(ProviderAnswer::UnderWay),
            PowerStage::ShuttingDown(since) | PowerStage::ForcingOff(since) => since,
        };
        let away = now().since(plan.last_read_at.unwrap_or(since).max(since));
        if away <= MAX_WATCH_GAP || self.read_power().await? != PowerState::On {
            return Ok(ProviderAnswer::UnderWay);
        }
        let message = format!(
            "{}: it was asked to go off, it was not observed for {}, and it is on: it may have been off in between",
            describe_state(machine),
            format_duration(away)
        );
        Ok(ProviderAnswer::Unknown(message))
    }

    /// Before the first command nothing has happened; after it the sequence is completed.
    async fn stop(&self, machine: &Machine) -> CallResult {
        let notes = self.call.checkpoints();
        let Some(checkpoint) = notes.stop().await? else {
            return Ok(ProviderAnswer::Stopped);
        };
        let plan = PowerProgress::from_checkpoint(&checkpoint)?;
        match plan.stage {
            PowerStage::Begun | PowerStage::Stopped => {
                notes.compare_and_swap(&checkpoint, &OrderCheckpoint::Stopped).await?;
                Ok(ProviderAnswer::Stopped)
            }
            PowerStage::ShuttingDown(_)
            | PowerStage::ForcingOff(_)
            | PowerStage::Starting(_)
            | PowerStage::Done => self.follow(plan, machine).await,
        }
    }
}

/// MAAS switches on only a machine that has an owner, and installs one that is Allocated. Refused
/// before the first request, so that a reboot does not leave the machine off.
fn check_may_start(goal: PowerGoal, machine: &Machine) -> Result<()> {
    let owned = machine.owner.as_deref().is_some_and(|owner| !owner.is_empty());
    let instead = match (goal, machine.status, owned) {
        (PowerGoal::Off, _, _) => return Ok(()),
        (PowerGoal::On | PowerGoal::Cycle, Status::Allocated, _) => {
            "switching it on would install it: release it, or install it"
        }
        (PowerGoal::On | PowerGoal::Cycle, _, true) => return Ok(()),
        (PowerGoal::On | PowerGoal::Cycle, _, false) => {
            "MAAS switches on no machine that is allocated to no user: install it, or switch it on at its BMC"
        }
    };
    Err(state_disagrees(machine, instead))
}

const fn asking(request: PowerCommand) -> &'static str {
    match request {
        PowerCommand::Shutdown => "MAAS asks the operating system to shut down",
        PowerCommand::ForceOff => "MAAS cuts it off",
        PowerCommand::Start => "MAAS switches it on",
    }
}

/// The outcome of a reached goal, with its evidence.
fn goal_outcome(machine: &Machine, goal: PowerGoal, how: &str) -> CallOutcome {
    let (message, power) = match goal {
        PowerGoal::On => (format!("power is on: {how}"), DesiredPower::On),
        PowerGoal::Off => (format!("power is off: {how}"), DesiredPower::Off),
        PowerGoal::Cycle => (format!("rebooted: {how}"), DesiredPower::On),
    };
    let evidence = match power {
        DesiredPower::Off => {
            vec![ConditionObservation::new(ConditionType::Reachable, false, POWERED_OFF)]
        }
        DesiredPower::On => Vec::new(),
    };
    let observed = outcome(machine, message);
    let facts = observed.facts.map(|facts| DeviceFacts { power: Some(power), ..facts });
    CallOutcome { evidence, facts, ..observed }
}
