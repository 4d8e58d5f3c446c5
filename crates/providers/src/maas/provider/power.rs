//! Power through MAAS: read, decide, checkpoint, request, and read until the goal is reached. The
//! decisions are those of every other machine. MAAS may deploy a machine on a power-on request, so
//! none is sent to an Allocated machine.

use super::checkpoint::{OrderCheckpoint, Stopping, two_effects};
use super::hand::{Hand, disagrees, has, outcome};
use crate::clock::now;
use crate::fault::possibly_happened;
use crate::maas::{MaasPowerState, Machine, Status, StopMode};
use crate::power::{
    self, MAX_UNWATCHED, PowerCommand, PowerGoal, PowerMove, PowerStage, PowerState, WATCH_EVERY,
};
use model::condition::{ConditionType, Evidence};
use model::effect::{Answer, Facts, Outcome, PowerOffPolicy, PowerTo, Verb};
use model::fault::{Code, Fault};
use model::time::{Timestamp, spoken};

const MANUAL: &str = "manual";

/// Controls the power of one machine through MAAS.
pub(super) struct Switch<'a> {
    pub hand: &'a Hand<'a>,
    pub system_id: &'a str,
    pub power_off: PowerOffPolicy,
}

/// The progress of a power sequence.
#[derive(Clone, Copy)]
struct Course {
    goal: PowerGoal,
    stage: PowerStage,
    watched: Option<Timestamp>,
}

impl Course {
    fn memo(self) -> OrderCheckpoint {
        OrderCheckpoint::Power { goal: self.goal, stage: self.stage, watched: self.watched }
    }

    fn of(memo: &OrderCheckpoint) -> Result<Self, Fault> {
        match memo {
            OrderCheckpoint::Power { goal, stage, watched } => {
                Ok(Self { goal: *goal, stage: *stage, watched: *watched })
            }
            OrderCheckpoint::Begun
            | OrderCheckpoint::Asked { .. }
            | OrderCheckpoint::Commission { .. }
            | OrderCheckpoint::Deploy { .. }
            | OrderCheckpoint::Release { .. }
            | OrderCheckpoint::Reinstall { .. }
            | OrderCheckpoint::Stopped
            | OrderCheckpoint::FirstSeen { .. } => Err(two_effects()),
        }
    }
}

impl Switch<'_> {
    pub async fn lead(&self, goal: PowerGoal, machine: &Machine) -> Result<Answer, Fault> {
        let notes = self.hand.notes();
        if machine.power_type.is_empty() || machine.power_type == MANUAL {
            return self.by_hand(goal, machine).await;
        }
        match self.hand.verb() {
            Verb::Perform => {
                let first = Course { goal, stage: PowerStage::Begun, watched: None };
                let memo = notes.begin(first.memo()).await?;
                self.follow(Course::of(&memo)?, machine).await
            }
            Verb::Follow => match notes.recall().await? {
                None => Ok(Answer::NeverStarted),
                Some(memo) => self.follow(Course::of(&memo)?, machine).await,
            },
            Verb::GetStatus => match notes.recall().await? {
                None => Ok(Answer::NeverStarted),
                Some(memo) => self.became(Course::of(&memo)?, machine).await,
            },
            Verb::Observe => {
                let seen = self.read().await?;
                Ok(match (goal, seen) {
                    (PowerGoal::On, PowerState::On) | (PowerGoal::Off, PowerState::Off) => {
                        Answer::Done(reached(machine, goal, "it was seen now"))
                    }
                    (PowerGoal::Cycle, _) => {
                        Answer::Differs("a reboot leaves nothing to see".into())
                    }
                    (PowerGoal::On | PowerGoal::Off, _) => {
                        Answer::Differs(format!("power is {}", seen.as_str()))
                    }
                })
            }
            Verb::Stop => self.stop(machine).await,
        }
    }

    /// MAAS does not control the power and mostly cannot read it: a person switches it, and the
    /// operator adopts the result.
    async fn by_hand(&self, goal: PowerGoal, machine: &Machine) -> Result<Answer, Fault> {
        match (self.hand.verb(), goal) {
            (Verb::Stop, _) => Ok(Answer::Stopped),
            (Verb::GetStatus, PowerGoal::Off) => Ok(Answer::NeverStarted),
            (Verb::Perform | Verb::Follow, PowerGoal::Off) => match self.glimpse().await? {
                MaasPowerState::Off => Ok(Answer::Done(reached(machine, goal, "MAAS says so"))),
                MaasPowerState::On | MaasPowerState::Unknown | MaasPowerState::Error => {
                    Err(disagrees(
                        machine,
                        &format!(
                            "it does not control its power (power type manual): switch it off by hand, then `farrier workflow adopt {}`",
                            self.hand.key().run()
                        ),
                    ))
                }
            },
            (Verb::Observe, PowerGoal::Off) => Ok(match self.glimpse().await? {
                MaasPowerState::Off => Answer::Done(reached(machine, goal, "MAAS says so")),
                MaasPowerState::On => {
                    Answer::Differs(format!("power is {}", PowerState::On.as_str()))
                }
                MaasPowerState::Unknown | MaasPowerState::Error => {
                    let said = "nobody can see its power (power type manual): it is taken for switched off by hand";
                    Answer::Done(outcome(machine, said))
                }
            }),
            (
                Verb::Perform | Verb::Follow | Verb::GetStatus | Verb::Observe,
                PowerGoal::On | PowerGoal::Cycle,
            ) => {
                let said = format!(
                    "MAAS does not control the power of {} (power type manual); set its power type there",
                    self.system_id
                );
                Err(Fault::new(Code::NotSupported, said))
            }
        }
    }

    /// The power state of a machine that MAAS does not control; mostly unknown.
    async fn glimpse(&self) -> Result<MaasPowerState, Fault> {
        match self.hand.maas().query_power_state(self.system_id).await {
            // MAAS refuses to query what it does not control.
            Err(fault) if matches!(fault.code, Code::EffectFailed | Code::NotSupported) => {
                Ok(MaasPowerState::Unknown)
            }
            other => other,
        }
    }

    /// The power state from the BMC, through MAAS.
    async fn read(&self) -> Result<PowerState, Fault> {
        match self.hand.maas().query_power_state(self.system_id).await? {
            MaasPowerState::On => Ok(PowerState::On),
            MaasPowerState::Off => Ok(PowerState::Off),
            MaasPowerState::Unknown | MaasPowerState::Error => {
                let said = format!(
                    "MAAS cannot tell whether {} is on: its BMC does not answer",
                    self.system_id
                );
                Err(Fault::new(Code::BmcUnreachable, said))
            }
        }
    }

    async fn follow(&self, mut course: Course, machine: &Machine) -> Result<Answer, Fault> {
        self.walk(&mut course, machine).await.map_err(|fault| match course.stage {
            PowerStage::Begun | PowerStage::Stopped => fault,
            // A command was sent: a failed read does not show that nothing happened.
            PowerStage::Shutting(_)
            | PowerStage::Cutting(_)
            | PowerStage::Starting(_)
            | PowerStage::Done => possibly_happened(fault),
        })
    }

    async fn walk(&self, course: &mut Course, machine: &Machine) -> Result<Answer, Fault> {
        let settings = &self.hand.at.settings;
        let mut patience = power::patience(&settings.power_timeouts, self.power_off, true)?;
        loop {
            let seen = self.read().await?;
            match power::next(course.goal, course.stage, seen, now(), &patience) {
                PowerMove::Look => {
                    if course.watched.is_none_or(|at| now().since(at) >= WATCH_EVERY) {
                        self.note(course, course.stage).await?;
                    }
                    tokio::time::sleep(settings.look_every.min(power::LOOK_EVERY)).await;
                }
                PowerMove::Command(PowerCommand::Start, _)
                    if machine.status == Status::Allocated =>
                {
                    let instead = "switching it on would install it: release it, or install it";
                    return Err(disagrees(machine, instead));
                }
                PowerMove::Command(ask, stage) => {
                    self.note(course, stage).await?;
                    self.hand.journal.line(format!("power: {}", asking(ask))).await;
                    if let Err(fault) = self.tell(ask).await {
                        patience = power::refused(fault, ask, &patience)?;
                    }
                }
                PowerMove::Done(how) => {
                    self.note(course, PowerStage::Done).await?;
                    let machine = self.hand.maas().machine(self.system_id).await?;
                    return Ok(Answer::Done(reached(&machine, course.goal, how)));
                }
                PowerMove::Fail(fault) => return Err(fault),
            }
        }
    }

    /// The checkpoint is stored before the request is sent.
    async fn note(&self, course: &mut Course, stage: PowerStage) -> Result<(), Fault> {
        let after = Course { stage, watched: Some(now()), ..*course };
        self.hand.notes().compare_and_swap(&course.memo(), &after.memo()).await?;
        *course = after;
        Ok(())
    }

    async fn tell(&self, ask: PowerCommand) -> Result<(), Fault> {
        let maas = self.hand.maas();
        match ask {
            PowerCommand::Shutdown => maas.power_off(self.system_id, StopMode::Soft).await,
            PowerCommand::Cut => maas.power_off(self.system_id, StopMode::Hard).await,
            PowerCommand::Start => maas.power_on(self.system_id).await.map(drop),
        }
    }

    /// The status after a takeover. A machine that is on may have been off unobserved.
    async fn became(&self, course: Course, machine: &Machine) -> Result<Answer, Fault> {
        let since = match course.stage {
            PowerStage::Done => {
                let how = "it was seen before";
                return Ok(Answer::Done(reached(machine, course.goal, how)));
            }
            PowerStage::Stopped => return Ok(Answer::NeverStarted),
            PowerStage::Begun | PowerStage::Starting(_) => return Ok(Answer::UnderWay),
            PowerStage::Shutting(since) | PowerStage::Cutting(since) => since,
        };
        let away = now().since(course.watched.unwrap_or(since).max(since));
        if away <= MAX_UNWATCHED || self.read().await? != PowerState::On {
            return Ok(Answer::UnderWay);
        }
        let said = format!(
            "{}: it was asked to go off, nobody looked for {}, and it is on: it may have been off in between",
            has(machine),
            spoken(away)
        );
        Ok(Answer::Unknown(said))
    }

    /// Before the first command nothing has happened; after it the sequence is completed.
    async fn stop(&self, machine: &Machine) -> Result<Answer, Fault> {
        let notes = self.hand.notes();
        let Stopping::Begun(memo) = notes.stop().await? else { return Ok(Answer::Stopped) };
        let course = Course::of(&memo)?;
        match course.stage {
            PowerStage::Begun | PowerStage::Stopped => {
                notes.compare_and_swap(&memo, &OrderCheckpoint::Stopped).await?;
                Ok(Answer::Stopped)
            }
            PowerStage::Shutting(_)
            | PowerStage::Cutting(_)
            | PowerStage::Starting(_)
            | PowerStage::Done => self.follow(course, machine).await,
        }
    }
}

const fn asking(ask: PowerCommand) -> &'static str {
    match ask {
        PowerCommand::Shutdown => "MAAS asks the operating system to shut down",
        PowerCommand::Cut => "MAAS cuts it off",
        PowerCommand::Start => "MAAS switches it on",
    }
}

/// The outcome of a reached goal, with its evidence.
fn reached(machine: &Machine, goal: PowerGoal, how: &str) -> Outcome {
    let (said, power) = match goal {
        PowerGoal::On => (format!("power is on: {how}"), PowerTo::On),
        PowerGoal::Off => (format!("power is off: {how}"), PowerTo::Off),
        PowerGoal::Cycle => (format!("rebooted: {how}"), PowerTo::On),
    };
    let evidence = match power {
        PowerTo::Off => vec![Evidence::new(ConditionType::Reachable, false, "PoweredOff")],
        PowerTo::On => Vec::new(),
    };
    let seen = outcome(machine, said);
    let facts = seen.facts.map(|facts| Facts { power: Some(power), ..facts });
    Outcome { evidence, facts, ..seen }
}
