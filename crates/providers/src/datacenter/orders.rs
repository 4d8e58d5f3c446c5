//! Routes provider calls and stores their checkpoints.

use super::Datacenter;
use super::cluster::Joining;
use super::drain::Draining;
use super::firmware::Flash;
use super::power_sequence::PowerSequence;
use crate::governor::Priority;
use crate::host_probe::host_answers;
use crate::port::{Journal, Target};
use crate::power::{LOOK_EVERY, PowerGoal, PowerStage, PowerState};
use crate::state_store::Checkpoint;
use model::condition::{ConditionType, Evidence};
use model::effect::{
    Answer, Effect, Facts, Key, NetbootMode, Order, Outcome, PowerOffPolicy, PowerTo, RebootMode,
    RmaAction, Verb,
};
use model::fault::{Code, Fault};
use model::target::TargetKind;
use model::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The progress of one effect key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub(super) enum OrderCheckpoint {
    Power {
        goal: PowerGoal,
        stage: PowerStage,
        /// The host answered before, so it must answer again afterwards.
        #[serde(rename = "back", default, skip_serializing_if = "std::ops::Not::not")]
        back: bool,
        /// When the power state was last read.
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
    /// The public id of the join token.
    Join {
        token: String,
    },
    /// The progress of the power cycle into the image; the rest is in the deployment.
    Image {
        stage: PowerStage,
        /// It was observed off, and is being switched on.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        on: bool,
    },
    Drain {
        stage: Draining,
    },
    Uncordon,
    Firmware {
        stage: Flash,
        /// The replaced version, once one is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<String>,
    },
    Fabric {
        /// When the switch was told to switch the fabric off, or was last observed since.
        #[serde(rename = "told", default, skip_serializing_if = "Option::is_none")]
        told: Option<Timestamp>,
    },
}

/// An effect that is executed at the BMC.
enum Task {
    Power(PowerSequence),
    Netboot(NetbootMode),
    /// Sets a condition only; the machine is not called.
    Mark,
}

impl Datacenter {
    pub(super) async fn carry_out(
        &self,
        target: &Target,
        order: &Order,
        journal: &Journal,
    ) -> Result<Answer, Fault> {
        let task = match &order.effect {
            Effect::Ssh { command, .. } => {
                return self.command(target, order, command, journal).await;
            }
            Effect::Reboot { mode: RebootMode::InBand, .. } => {
                return self.reboot_from_within(target, order, journal).await;
            }
            Effect::Verify { cluster_ref, expect, advisory } => {
                return self.verify(target, order, cluster_ref, *expect, *advisory).await;
            }
            Effect::Join { cluster_ref, labels, taints } => {
                let joining = Joining { cluster: cluster_ref, labels, taints };
                return self.join(target, order, joining, journal).await;
            }
            Effect::Drain { cluster_ref, deadline_seconds } => {
                let deadline = *deadline_seconds;
                return self.drain(target, order, (cluster_ref, deadline), journal).await;
            }
            Effect::Uncordon { cluster_ref, own } => {
                return self.uncordon(target, order, cluster_ref, *own).await;
            }
            Effect::Rma { action: RmaAction::Record, .. } => {
                return self.record(target, order.verb, journal).await;
            }
            Effect::Leave { cluster_ref } => {
                return self.leave(target, order, cluster_ref, journal).await;
            }
            Effect::Net { document } => {
                return self.reconfigure_network(target, order, document, journal).await;
            }
            Effect::Reboot { mode: RebootMode::Bmc, power_off } => {
                course(PowerGoal::Cycle, *power_off)
            }
            Effect::Power { to: PowerTo::On, power_off } => course(PowerGoal::On, *power_off),
            Effect::Power { to: PowerTo::Off, power_off }
            | Effect::Rma { action: RmaAction::PowerOff, power_off } => {
                course(PowerGoal::Off, power_off_for(target.id.kind, *power_off))
            }
            Effect::Netboot { mode } => Task::Netboot(*mode),
            Effect::Rma { action: RmaAction::Mark, .. } => Task::Mark,
            Effect::Repave { image } => return self.repave(target, order, image, journal).await,
            Effect::Device { work } => return self.device(target, order, work, journal).await,
            Effect::Stage { .. } | Effect::Parts { .. } => return Err(not_asked(&order.effect)),
        };
        self.carry_out_task(target, order, task, journal).await
    }

    async fn carry_out_task(
        &self,
        target: &Target,
        order: &Order,
        task: Task,
        journal: &Journal,
    ) -> Result<Answer, Fault> {
        match (order.verb, task) {
            (Verb::Perform, Task::Power(course)) => {
                let back = course.goal == PowerGoal::Cycle && host_answers(target).await;
                let course = PowerSequence { back, ..course };
                match self.begin(&order.key, noted(course, PowerStage::Begun)).await? {
                    None => {
                        self.reboot_or_so(target, order, course, PowerStage::Begun, journal).await
                    }
                    Some(before) => self.go_on(target, order, before, journal).await,
                }
            }
            (Verb::Perform, Task::Netboot(mode)) => {
                match self.begin(&order.key, OrderCheckpoint::Netboot { mode }).await? {
                    None => self.set_netboot(target, mode, journal).await,
                    Some(before) => self.go_on(target, order, before, journal).await,
                }
            }
            (Verb::Follow, Task::Power(_) | Task::Netboot(_)) => {
                match self.recall(&order.key).await? {
                    None => Ok(Answer::NeverStarted),
                    Some(before) => self.go_on(target, order, before, journal).await,
                }
            }
            (Verb::GetStatus, Task::Power(_) | Task::Netboot(_)) => {
                Ok(match self.recall(&order.key).await? {
                    None | Some(Remembered::Barred) => Answer::NeverStarted,
                    Some(Remembered::Checkpoint(OrderCheckpoint::Power {
                        stage: PowerStage::Done,
                        goal,
                        back,
                        ..
                    })) if !back || host_answers(target).await => {
                        Answer::Done(reached(target, goal, "it was seen before"))
                    }
                    Some(Remembered::Checkpoint(OrderCheckpoint::Power {
                        stage, watched, ..
                    })) => self.unwatched(target, stage, watched).await?,
                    Some(Remembered::Checkpoint(_)) => Answer::UnderWay,
                })
            }
            (Verb::Stop, Task::Power(_) | Task::Netboot(_)) => {
                self.stop(target, order, journal).await
            }
            (Verb::Observe, Task::Power(course)) => self.observe_power(target, course.goal).await,
            (Verb::Observe, Task::Netboot(mode)) => self.observe_netboot(target, mode).await,
            (Verb::Perform | Verb::Follow | Verb::GetStatus | Verb::Observe, Task::Mark) => {
                let evidence = vec![Evidence::new(ConditionType::Rma, true, "RmaRun")];
                let said = "marked for return to the vendor".into();
                Ok(Answer::Done(Outcome { said, evidence, facts: None }))
            }
            (Verb::Stop, Task::Mark) => Ok(Answer::Stopped),
        }
    }

    /// Continues what a key has begun.
    async fn go_on(
        &self,
        target: &Target,
        order: &Order,
        before: Remembered,
        journal: &Journal,
    ) -> Result<Answer, Fault> {
        match before {
            Remembered::Barred => {
                let said = format!("{} was stopped before it began", order.key);
                Err(Fault::new(Code::EffectFailed, said))
            }
            Remembered::Checkpoint(OrderCheckpoint::Power { goal, stage, back, watched }) => {
                let power_off = power_off_for(target.id.kind, power_off_of(&order.effect));
                let course = PowerSequence { goal, power_off, back, watched };
                self.reboot_or_so(target, order, course, stage, journal).await
            }
            Remembered::Checkpoint(
                OrderCheckpoint::InBand { .. }
                | OrderCheckpoint::Join { .. }
                | OrderCheckpoint::Image { .. }
                | OrderCheckpoint::Drain { .. }
                | OrderCheckpoint::Uncordon
                | OrderCheckpoint::Firmware { .. }
                | OrderCheckpoint::Fabric { .. },
            ) => Err(two_effects()),
            Remembered::Checkpoint(OrderCheckpoint::Netboot { mode }) => {
                self.set_netboot(target, mode, journal).await
            }
        }
    }

    /// Follows the power sequence to its goal, and until the host answers again if it did before.
    async fn reboot_or_so(
        &self,
        target: &Target,
        order: &Order,
        course: PowerSequence,
        mut stage: PowerStage,
        journal: &Journal,
    ) -> Result<Answer, Fault> {
        let key = &order.key;
        let how = self.follow_course(target, key, course, &mut stage, noted, journal).await?;
        if course.back {
            journal.line("reboot: waiting for the host to answer again").await;
            while !host_answers(target).await {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        }
        Ok(Answer::Done(reached(target, course.goal, how)))
    }

    pub(super) async fn set_netboot(
        &self,
        target: &Target,
        mode: NetbootMode,
        journal: &Journal,
    ) -> Result<Answer, Fault> {
        let limit = self.settings.call;
        let set = async |bmc: &super::controller::Controller| bmc.boot_from(mode).await;
        let seen = self.bmcs.call(target, Priority::Operator, limit, set).await?;
        journal.line(format!("boot: the BMC shows {seen}")).await;
        Ok(Answer::Done(done(format!("the next boot is {seen}"))))
    }

    async fn observe_netboot(&self, target: &Target, mode: NetbootMode) -> Result<Answer, Fault> {
        let limit = self.settings.call;
        let look = async |bmc: &super::controller::Controller| bmc.boots_from(mode).await;
        let (holds, seen) = self.bmcs.call(target, Priority::Operator, limit, look).await?;
        let said = format!("the next boot is {seen}");
        Ok(if holds { Answer::Done(done(said)) } else { Answer::Differs(said) })
    }

    async fn observe_power(&self, target: &Target, goal: PowerGoal) -> Result<Answer, Fault> {
        let seen = self.read_power(target, Priority::Operator).await?;
        let said = format!("power is {}", seen.as_str());
        Ok(match (goal, seen) {
            (PowerGoal::On, PowerState::On) | (PowerGoal::Off, PowerState::Off) => {
                Answer::Done(Outcome { said, ..reached(target, goal, "") })
            }
            (PowerGoal::Cycle, _) => {
                Answer::Differs(format!("{said}; a reboot leaves nothing to see"))
            }
            (PowerGoal::On | PowerGoal::Off, _) => Answer::Differs(said),
        })
    }

    /// Before the first command nothing has happened. After it the sequence is finished.
    async fn stop(
        &self,
        target: &Target,
        order: &Order,
        journal: &Journal,
    ) -> Result<Answer, Fault> {
        match self.store.begin(&order.key, &Checkpoint::Barred).await? {
            None | Some(Checkpoint::Barred) => return Ok(Answer::Stopped),
            Some(Checkpoint::Begun(_)) => {}
        }
        match self.recall(&order.key).await? {
            Some(Remembered::Checkpoint(OrderCheckpoint::Power {
                goal,
                mut stage,
                back,
                watched,
            })) => {
                let power_off = power_off_for(target.id.kind, power_off_of(&order.effect));
                let course = PowerSequence { goal, power_off, back, watched };
                match stage {
                    PowerStage::Begun => {
                        let (before, after) =
                            (noted(course, stage), noted(course, PowerStage::Stopped));
                        self.compare_and_swap(&order.key, before, after).await?;
                        Ok(Answer::Stopped)
                    }
                    PowerStage::Stopped => Ok(Answer::Stopped),
                    // The reboot is done, but the host did not come back.
                    PowerStage::Done if back && !host_answers(target).await => Ok(Answer::Stopped),
                    PowerStage::Shutting(_)
                    | PowerStage::Cutting(_)
                    | PowerStage::Starting(_)
                    | PowerStage::Done => {
                        let key = &order.key;
                        let how = self
                            .follow_course(target, key, course, &mut stage, noted, journal)
                            .await?;
                        Ok(Answer::Done(reached(target, goal, how)))
                    }
                }
            }
            None | Some(_) => Ok(Answer::Stopped),
        }
    }

    pub(super) async fn begin(
        &self,
        key: &Key,
        memo: OrderCheckpoint,
    ) -> Result<Option<Remembered>, Fault> {
        let before = self.store.begin(key, &Checkpoint::Begun(value(key, memo)?)).await?;
        before.map(|note| remembered(key, note)).transpose()
    }

    pub(super) async fn recall(&self, key: &Key) -> Result<Option<Remembered>, Fault> {
        self.store.recall(key).await?.map(|note| remembered(key, note)).transpose()
    }

    /// Replaces a checkpoint. A worker that finds a different one has lost its claim and must stop.
    pub(super) async fn compare_and_swap(
        &self,
        key: &Key,
        before: OrderCheckpoint,
        after: OrderCheckpoint,
    ) -> Result<(), Fault> {
        match self.store.compare_and_swap(key, &value(key, before)?, &value(key, after)?).await? {
            true => Ok(()),
            false => {
                let said = format!("another worker has gone on with {key}, or stopped it");
                Err(Fault::new(Code::AnswerLost, said))
            }
        }
    }
}

/// The checkpoint of a power sequence that is a call of its own.
fn noted(course: PowerSequence, stage: PowerStage) -> OrderCheckpoint {
    let PowerSequence { goal, back, watched, .. } = course;
    OrderCheckpoint::Power { goal, stage, back, watched }
}

/// A decoded checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Remembered {
    Barred,
    Checkpoint(OrderCheckpoint),
}

pub(super) fn value(key: &Key, memo: OrderCheckpoint) -> Result<Value, Fault> {
    serde_json::to_value(memo)
        .map_err(|error| Fault::new(Code::ProtocolBroken, format!("the note of {key}: {error}")))
}

fn remembered(key: &Key, note: Checkpoint) -> Result<Remembered, Fault> {
    match note {
        Checkpoint::Barred => Ok(Remembered::Barred),
        Checkpoint::Begun(body) => {
            serde_json::from_value(body).map(Remembered::Checkpoint).map_err(|error| {
                Fault::new(Code::RecordUnreadable, format!("the note of {key}: {error}"))
            })
        }
    }
}

/// The outcome and its evidence. Power on does not prove that the host is reachable.
fn reached(target: &Target, goal: PowerGoal, how: &str) -> Outcome {
    let (said, power) = match goal {
        PowerGoal::On => (format!("power is on: {how}"), PowerTo::On),
        PowerGoal::Off => (format!("power is off: {how}"), PowerTo::Off),
        PowerGoal::Cycle => (format!("rebooted: {how}"), PowerTo::On),
    };
    let evidence = match (target.id.kind, power) {
        (TargetKind::Machine, PowerTo::Off) => {
            vec![Evidence::new(ConditionType::Reachable, false, "PoweredOff")]
        }
        (TargetKind::Machine, PowerTo::On)
        | (TargetKind::Switch | TargetKind::PowerShelf | TargetKind::Rack, _) => Vec::new(),
    };
    let facts = Facts { power: Some(power), ..Facts::default() };
    Outcome { said, evidence, facts: Some(facts) }
}

/// A shelf has no operating system, so a graceful period does not apply to it.
const fn power_off_for(kind: TargetKind, power_off: PowerOffPolicy) -> PowerOffPolicy {
    match kind {
        TargetKind::PowerShelf => PowerOffPolicy { graceful_seconds: Some(0), force: Some(true) },
        TargetKind::Machine | TargetKind::Switch | TargetKind::Rack => power_off,
    }
}

const fn course(goal: PowerGoal, power_off: PowerOffPolicy) -> Task {
    Task::Power(PowerSequence { goal, power_off, back: false, watched: None })
}

/// The power-off policy of an effect.
fn power_off_of(effect: &Effect) -> PowerOffPolicy {
    effect.power_off_policy().unwrap_or(PowerOffPolicy::CONFIGURED)
}

fn not_asked(effect: &Effect) -> Fault {
    Fault::new(Code::NotSupported, format!("no device is asked {} here", effect.word()))
}

pub(super) fn two_effects() -> Fault {
    Fault::new(Code::ProtocolBroken, "one key stands for two effects")
}

pub(super) fn done(said: String) -> Outcome {
    Outcome { said, ..Outcome::default() }
}
