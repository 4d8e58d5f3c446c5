//! Routes provider calls and stores their checkpoints.

use super::cluster::JoinRequest;
use super::controller::Controller;
use super::drain::{DrainRequest, DrainStage};
use super::exec::stopped_before_start;
use super::firmware::UpdateStage;
use super::power_sequence::PowerSequence;
use super::{Datacenter, TargetCall};
use crate::governor::Priority;
use crate::host_probe::host_answers;
use crate::port::{Journal, Target};
use crate::power::{POLL_INTERVAL, PowerGoal, PowerStage, PowerState};
use crate::state_store::Checkpoint;
use model::condition::{ConditionObservation, ConditionType, POWERED_OFF};
use model::effect::{
    CallOutcome, CallResult, CallVerb, DesiredPower, DeviceFacts, Effect, EffectKey, NetbootMode,
    PowerOffPolicy, ProviderAnswer, ProviderCall, RebootMode, RmaAction,
};
use model::fault::{Fault, FaultCode, Result};
use model::target::TargetKind;
use model::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The progress of one effect key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub(super) enum CallCheckpoint {
    Power {
        goal: PowerGoal,
        stage: PowerStage,
        /// The host answered before, so it must answer again afterwards.
        #[serde(rename = "back", default, skip_serializing_if = "std::ops::Not::not")]
        await_host: bool,
        /// The time when the power state was last read.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        watched: Option<Timestamp>,
    },
    Netboot {
        mode: NetbootMode,
    },
    /// The boot id before the reboot.
    InBand {
        boot: String,
    },
    Join {
        /// The public id of the join token. None: this key has not changed the host so far.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token: Option<String>,
    },
    /// The progress of the power cycle into the image; the rest is in the deployment.
    Image {
        stage: PowerStage,
        /// It was observed off, and is being switched on.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        on: bool,
    },
    Drain {
        stage: DrainStage,
    },
    Uncordon,
    Firmware {
        stage: UpdateStage,
        /// The replaced version, once one is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<String>,
    },
    Fabric {
        /// The time when the switch was told to switch the fabric off, or was last observed since.
        #[serde(rename = "told", default, skip_serializing_if = "Option::is_none")]
        watched: Option<Timestamp>,
    },
}

/// An effect that is executed at the BMC.
enum BmcTask {
    Power(PowerSequence),
    Netboot(NetbootMode),
    /// Sets a condition only; the machine is not called.
    MarkRma,
}

impl Datacenter {
    pub(super) async fn execute(&self, request: TargetCall<'_>) -> CallResult {
        let TargetCall { target, call, journal } = request;
        let task = match &call.effect {
            Effect::Ssh { command, .. } => {
                return self.command(request, command).await;
            }
            Effect::Reboot { mode: RebootMode::InBand, .. } => {
                return self.reboot_from_within(request).await;
            }
            Effect::Verify { cluster_ref, expect, advisory } => {
                return self.verify(request, cluster_ref, *expect, *advisory).await;
            }
            Effect::Join { cluster_ref, labels, taints, kubeadm } => {
                let joining = JoinRequest { cluster: cluster_ref, labels, taints, kubeadm };
                return self.join(request, joining).await;
            }
            Effect::Drain { cluster_ref, deadline_seconds, options } => {
                let deadline_seconds = *deadline_seconds;
                let draining = DrainRequest { cluster: cluster_ref, deadline_seconds, options };
                return self.drain(request, draining).await;
            }
            Effect::Uncordon { cluster_ref, own } => {
                return self.uncordon(target, call, cluster_ref, *own).await;
            }
            Effect::Rma { action: RmaAction::Record, .. } => {
                return self.record(target, call.verb, journal).await;
            }
            Effect::Leave { cluster_ref, .. } => {
                return self.leave(request, cluster_ref).await;
            }
            Effect::Net { document } => {
                return self.reconfigure_network(request, document).await;
            }
            Effect::Reboot { mode: RebootMode::Bmc, power_off } => {
                power_task(PowerGoal::Cycle, *power_off)
            }
            Effect::Power { to: DesiredPower::On, power_off } => {
                power_task(PowerGoal::On, *power_off)
            }
            Effect::Power { to: DesiredPower::Off, power_off }
            | Effect::Rma { action: RmaAction::PowerOff, power_off } => {
                power_task(PowerGoal::Off, power_off_for(target.id.kind, *power_off))
            }
            Effect::Netboot { mode } => BmcTask::Netboot(*mode),
            Effect::Rma { action: RmaAction::Mark, .. } => BmcTask::MarkRma,
            Effect::Repave { image } => return self.repave(request, image).await,
            Effect::Device { work } => return self.device(request, work).await,
            Effect::Stage { .. } | Effect::ChildRuns { .. } => {
                return Err(unsupported_effect(&call.effect));
            }
        };
        self.execute_bmc_task(request, task).await
    }

    async fn execute_bmc_task(&self, request: TargetCall<'_>, task: BmcTask) -> CallResult {
        let TargetCall { target, call, journal } = request;
        match (call.verb, task) {
            (CallVerb::Perform, BmcTask::Power(plan)) => {
                let back = plan.goal == PowerGoal::Cycle && host_answers(target).await;
                let plan = PowerSequence { await_host: back, ..plan };
                match self.begin(&call.key, power_checkpoint(plan, PowerStage::Begun)).await? {
                    None => self.execute_power_sequence(request, plan, PowerStage::Begun).await,
                    Some(before) => self.resume(request, before).await,
                }
            }
            (CallVerb::Perform, BmcTask::Netboot(mode)) => {
                match self.begin(&call.key, CallCheckpoint::Netboot { mode }).await? {
                    None => self.set_netboot(target, mode, journal).await,
                    Some(before) => self.resume(request, before).await,
                }
            }
            (CallVerb::Follow, BmcTask::Power(_) | BmcTask::Netboot(_)) => {
                match self.checkpoint(&call.key).await? {
                    None => Ok(ProviderAnswer::NeverStarted),
                    Some(before) => self.resume(request, before).await,
                }
            }
            (CallVerb::GetStatus, BmcTask::Power(_) | BmcTask::Netboot(_)) => {
                Ok(match self.checkpoint(&call.key).await? {
                    None | Some(StoredCheckpoint::StoppedBeforeStart) => {
                        ProviderAnswer::NeverStarted
                    }
                    Some(StoredCheckpoint::Checkpoint(CallCheckpoint::Power {
                        stage: PowerStage::Done,
                        goal,
                        await_host: back,
                        ..
                    })) if !back || host_answers(target).await => {
                        ProviderAnswer::Done(power_outcome(target, goal, "it was seen before"))
                    }
                    Some(StoredCheckpoint::Checkpoint(CallCheckpoint::Power {
                        stage,
                        watched,
                        ..
                    })) => self.abandoned_sequence_status(target, stage, watched).await?,
                    Some(StoredCheckpoint::Checkpoint(_)) => ProviderAnswer::UnderWay,
                })
            }
            (CallVerb::Stop, BmcTask::Power(_) | BmcTask::Netboot(_)) => self.stop(request).await,
            (CallVerb::Observe, BmcTask::Power(plan)) => {
                self.observe_power(target, plan.goal).await
            }
            (CallVerb::Observe, BmcTask::Netboot(mode)) => self.observe_netboot(target, mode).await,
            (
                CallVerb::Perform | CallVerb::Follow | CallVerb::GetStatus | CallVerb::Observe,
                BmcTask::MarkRma,
            ) => {
                let evidence = vec![ConditionObservation::new(ConditionType::Rma, true, "RmaRun")];
                let text = "marked for return to the vendor".into();
                Ok(ProviderAnswer::Done(CallOutcome { message: text, evidence, facts: None }))
            }
            (CallVerb::Stop, BmcTask::MarkRma) => Ok(ProviderAnswer::Stopped),
        }
    }

    /// Continues what a key has begun.
    async fn resume(&self, request: TargetCall<'_>, before: StoredCheckpoint) -> CallResult {
        let TargetCall { target, call, journal } = request;
        match before {
            StoredCheckpoint::StoppedBeforeStart => Err(stopped_before_start(&call.key)),
            StoredCheckpoint::Checkpoint(CallCheckpoint::Power {
                goal,
                stage,
                await_host: back,
                watched,
            }) => {
                let power_off = power_off_for(target.id.kind, power_off_of(&call.effect));
                let plan = PowerSequence { goal, power_off, await_host: back, watched };
                self.execute_power_sequence(request, plan, stage).await
            }
            StoredCheckpoint::Checkpoint(CallCheckpoint::Netboot { mode }) => {
                self.set_netboot(target, mode, journal).await
            }
            StoredCheckpoint::Checkpoint(_) => Err(key_conflict()),
        }
    }

    /// Follows the power sequence to its goal, and until the host answers again if it did before.
    async fn execute_power_sequence(
        &self,
        request: TargetCall<'_>,
        plan: PowerSequence,
        mut stage: PowerStage,
    ) -> CallResult {
        let TargetCall { target, journal, .. } = request;
        let how = self.follow_power_sequence(request, plan, &mut stage, power_checkpoint).await?;
        if plan.await_host {
            journal.write_line("reboot: waiting for the host to answer again").await;
            while !host_answers(target).await {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        }
        Ok(ProviderAnswer::Done(power_outcome(target, plan.goal, how)))
    }

    pub(super) async fn set_netboot(
        &self,
        target: &Target,
        mode: NetbootMode,
        journal: &Journal,
    ) -> CallResult {
        let set = async |bmc: &Controller| bmc.boot_from(mode).await;
        let observed = self.call_bmc(target, set).await?;
        journal.write_line(format!("boot: the BMC shows {observed}")).await;
        Ok(ProviderAnswer::Done(done(format!("the next boot is {observed}"))))
    }

    async fn observe_netboot(&self, target: &Target, mode: NetbootMode) -> CallResult {
        let probe = async |bmc: &Controller| bmc.boots_from(mode).await;
        let (holds, observed) = self.call_bmc(target, probe).await?;
        let message = format!("the next boot is {observed}");
        Ok(match holds {
            true => ProviderAnswer::Done(done(message)),
            false => ProviderAnswer::Differs(message),
        })
    }

    async fn observe_power(&self, target: &Target, goal: PowerGoal) -> CallResult {
        let observed = self.read_power(target, Priority::Operator).await?;
        let text = format!("power is {}", observed.as_str());
        Ok(match (goal, observed) {
            (PowerGoal::On, PowerState::On) | (PowerGoal::Off, PowerState::Off) => {
                ProviderAnswer::Done(CallOutcome {
                    message: text,
                    ..power_outcome(target, goal, "")
                })
            }
            (PowerGoal::Cycle, _) => {
                ProviderAnswer::Differs(format!("{text}; a reboot leaves nothing to see"))
            }
            (PowerGoal::On | PowerGoal::Off, _) => ProviderAnswer::Differs(text),
        })
    }

    /// Before the first command nothing has happened. After it the sequence is finished.
    async fn stop(&self, request: TargetCall<'_>) -> CallResult {
        let TargetCall { target, call, .. } = request;
        let Some(CallCheckpoint::Power { goal, mut stage, await_host, watched }) =
            self.bar(&call.key).await?
        else {
            return Ok(ProviderAnswer::Stopped);
        };
        let power_off = power_off_for(target.id.kind, power_off_of(&call.effect));
        let plan = PowerSequence { goal, power_off, await_host, watched };
        match stage {
            PowerStage::Begun => {
                let stopped = power_checkpoint(plan, PowerStage::Stopped);
                self.compare_and_swap(&call.key, power_checkpoint(plan, stage), stopped).await?;
                Ok(ProviderAnswer::Stopped)
            }
            PowerStage::Stopped => Ok(ProviderAnswer::Stopped),
            // The reboot is done, but the host did not come back.
            PowerStage::Done if await_host && !host_answers(target).await => {
                Ok(ProviderAnswer::Stopped)
            }
            PowerStage::ShuttingDown(_)
            | PowerStage::ForcingOff(_)
            | PowerStage::Starting(_)
            | PowerStage::Done => {
                let note = power_checkpoint;
                let how = self.follow_power_sequence(request, plan, &mut stage, note).await?;
                Ok(ProviderAnswer::Done(power_outcome(target, goal, how)))
            }
        }
    }

    pub(super) async fn begin(
        &self,
        key: &EffectKey,
        checkpoint: CallCheckpoint,
    ) -> Result<Option<StoredCheckpoint>> {
        let before =
            self.store.begin(key, &Checkpoint::Begun(encode_checkpoint(key, checkpoint)?)).await?;
        before.map(|note| decode_checkpoint(key, note)).transpose()
    }

    /// The checkpoint to continue from: `Perform` stores the first one, other verbs only read.
    pub(super) async fn begin_or_recall(
        &self,
        call: &ProviderCall,
        first: CallCheckpoint,
    ) -> Result<Option<StoredCheckpoint>> {
        if call.verb != CallVerb::Perform {
            return self.checkpoint(&call.key).await;
        }
        let before = self.begin(&call.key, first.clone()).await?;
        Ok(Some(before.unwrap_or(StoredCheckpoint::Checkpoint(first))))
    }

    /// Bars a key that has not begun. Returns the checkpoint of one that has.
    pub(super) async fn bar(&self, key: &EffectKey) -> Result<Option<CallCheckpoint>> {
        if let None | Some(Checkpoint::StoppedBeforeStart) =
            self.store.begin(key, &Checkpoint::StoppedBeforeStart).await?
        {
            return Ok(None);
        }
        Ok(match self.checkpoint(key).await? {
            Some(StoredCheckpoint::Checkpoint(checkpoint)) => Some(checkpoint),
            Some(StoredCheckpoint::StoppedBeforeStart) | None => None,
        })
    }

    pub(super) async fn checkpoint(&self, key: &EffectKey) -> Result<Option<StoredCheckpoint>> {
        self.store.checkpoint(key).await?.map(|note| decode_checkpoint(key, note)).transpose()
    }

    /// Replaces a checkpoint. A worker that finds a different one has lost its claim and must stop.
    pub(super) async fn compare_and_swap(
        &self,
        key: &EffectKey,
        before: CallCheckpoint,
        after: CallCheckpoint,
    ) -> Result<()> {
        let (old, new) = (encode_checkpoint(key, before)?, encode_checkpoint(key, after)?);
        match self.store.compare_and_swap(key, &old, &new).await? {
            true => Ok(()),
            false => {
                let message = format!("another worker has gone on with {key}, or stopped it");
                Err(Fault::new(FaultCode::AnswerLost, message))
            }
        }
    }
}

/// The checkpoint of a power sequence that is a call of its own.
fn power_checkpoint(plan: PowerSequence, stage: PowerStage) -> CallCheckpoint {
    let PowerSequence { goal, await_host: back, watched, .. } = plan;
    CallCheckpoint::Power { goal, stage, await_host: back, watched }
}

/// A decoded checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum StoredCheckpoint {
    StoppedBeforeStart,
    Checkpoint(CallCheckpoint),
}

pub(super) fn encode_checkpoint(key: &EffectKey, checkpoint: CallCheckpoint) -> Result<Value> {
    serde_json::to_value(checkpoint).map_err(|error| {
        Fault::new(FaultCode::ProtocolBroken, format!("the note of {key}: {error}"))
    })
}

fn decode_checkpoint(key: &EffectKey, note: Checkpoint) -> Result<StoredCheckpoint> {
    match note {
        Checkpoint::StoppedBeforeStart => Ok(StoredCheckpoint::StoppedBeforeStart),
        Checkpoint::Begun(body) => {
            serde_json::from_value(body).map(StoredCheckpoint::Checkpoint).map_err(|error| {
                Fault::new(FaultCode::RecordUnreadable, format!("the note of {key}: {error}"))
            })
        }
    }
}

/// The outcome and its evidence. Power on does not prove that the host is reachable.
fn power_outcome(target: &Target, goal: PowerGoal, how: &str) -> CallOutcome {
    let (text, power) = match goal {
        PowerGoal::On => (format!("power is on: {how}"), DesiredPower::On),
        PowerGoal::Off => (format!("power is off: {how}"), DesiredPower::Off),
        PowerGoal::Cycle => (format!("rebooted: {how}"), DesiredPower::On),
    };
    let evidence = match (target.id.kind, power) {
        (TargetKind::Machine, DesiredPower::Off) => {
            vec![ConditionObservation::new(ConditionType::Reachable, false, POWERED_OFF)]
        }
        (TargetKind::Machine, DesiredPower::On)
        | (TargetKind::Switch | TargetKind::PowerShelf | TargetKind::Rack, _) => Vec::new(),
    };
    let facts = DeviceFacts { power: Some(power), ..DeviceFacts::default() };
    CallOutcome { message: text, evidence, facts: Some(facts) }
}

/// A shelf has no operating system, so a graceful period does not apply to it.
const fn power_off_for(kind: TargetKind, power_off: PowerOffPolicy) -> PowerOffPolicy {
    match kind {
        TargetKind::PowerShelf => PowerOffPolicy { graceful_seconds: Some(0), force: Some(true) },
        TargetKind::Machine | TargetKind::Switch | TargetKind::Rack => power_off,
    }
}

const fn power_task(goal: PowerGoal, power_off: PowerOffPolicy) -> BmcTask {
    BmcTask::Power(PowerSequence { goal, power_off, await_host: false, watched: None })
}

/// The power-off policy of an effect.
fn power_off_of(effect: &Effect) -> PowerOffPolicy {
    effect.power_off_policy().unwrap_or(PowerOffPolicy::PROVIDER_DEFAULT)
}

fn unsupported_effect(effect: &Effect) -> Fault {
    Fault::new(FaultCode::NotSupported, format!("no device is asked {} here", effect.name()))
}

pub(super) fn key_conflict() -> Fault {
    Fault::new(FaultCode::ProtocolBroken, "one key stands for two effects")
}

pub(super) fn done(text: String) -> CallOutcome {
    CallOutcome { message: text, ..CallOutcome::default() }
}
