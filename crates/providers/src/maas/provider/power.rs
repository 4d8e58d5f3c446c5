//! Power through MAAS, followed: look, decide, write down, ask, and look again until its goal is seen. What to do next is decided where it
//! is for every other machine; only who is asked differs. MAAS may take a power-on for more than that, so it is not asked of a machine
//! that it would install.

use super::hand::{Hand, disagrees, has, now, outcome};
use super::notes::{Memo, Stopping, two_effects};
use crate::datacenter::course::{MAX_UNWATCHED, WATCH_EVERY};
use crate::datacenter::exec::out_of_sight;
use crate::datacenter::orders::word;
use crate::datacenter::power::{self, Ask, Goal, Move, Power, Stage};
use crate::maas::{Machine, PowerState, Status, StopMode};
use model::condition::{ConditionType, Evidence};
use model::effect::{Answer, Facts, Manner, Outcome, PowerTo, Verb};
use model::fault::{Code, Fault};
use model::time::{Timestamp, spoken};

const MANUAL: &str = "manual";

/// A machine's switch in MAAS.
pub(super) struct Switch<'a> {
    pub hand: &'a Hand<'a>,
    pub system_id: &'a str,
    pub manner: Manner,
}

/// How far a course is.
#[derive(Clone, Copy)]
struct Course {
    goal: Goal,
    stage: Stage,
    watched: Option<Timestamp>,
}

impl Course {
    fn memo(self) -> Memo {
        Memo::Power { goal: self.goal, stage: self.stage, watched: self.watched }
    }

    fn of(memo: &Memo) -> Result<Self, Fault> {
        match memo {
            Memo::Power { goal, stage, watched } => {
                Ok(Self { goal: *goal, stage: *stage, watched: *watched })
            }
            Memo::Begun
            | Memo::Asked { .. }
            | Memo::Commission { .. }
            | Memo::Deploy { .. }
            | Memo::Release { .. }
            | Memo::Reinstall { .. }
            | Memo::Stopped
            | Memo::FirstSeen { .. } => Err(two_effects()),
        }
    }
}

impl Switch<'_> {
    pub async fn lead(&self, goal: Goal, machine: &Machine) -> Result<Answer, Fault> {
        let notes = self.hand.notes();
        if machine.power_type.is_empty() || machine.power_type == MANUAL {
            return self.by_hand(goal, machine).await;
        }
        match self.hand.verb() {
            Verb::Perform => {
                let first = Course { goal, stage: Stage::Begun, watched: None };
                let memo = notes.begin(first.memo()).await?;
                self.follow(Course::of(&memo)?, machine).await
            }
            Verb::Follow => match notes.recall().await? {
                None => Ok(Answer::NeverStarted),
                Some(memo) => self.follow(Course::of(&memo)?, machine).await,
            },
            Verb::Inquire => match notes.recall().await? {
                None => Ok(Answer::NeverStarted),
                Some(memo) => self.became(Course::of(&memo)?, machine).await,
            },
            Verb::Observe => {
                let seen = self.read().await?;
                Ok(match (goal, seen) {
                    (Goal::On, Power::On) | (Goal::Off, Power::Off) => {
                        Answer::Done(reached(machine, goal, "it was seen now"))
                    }
                    (Goal::Cycle, _) => Answer::Differs("a reboot leaves nothing to see".into()),
                    (Goal::On | Goal::Off, _) => {
                        Answer::Differs(format!("power is {}", word(seen)))
                    }
                })
            }
            Verb::Stop => self.stop(machine).await,
        }
    }

    /// MAAS does not switch it: a person does, and mostly nobody can see whether it was done. Then only a person's word counts, who
    /// adopts what is there.
    async fn by_hand(&self, goal: Goal, machine: &Machine) -> Result<Answer, Fault> {
        match (self.hand.verb(), goal) {
            (Verb::Stop, _) => Ok(Answer::Stopped),
            (Verb::Inquire, Goal::Off) => Ok(Answer::NeverStarted),
            (Verb::Perform | Verb::Follow, Goal::Off) => match self.glimpse().await? {
                PowerState::Off => Ok(Answer::Done(reached(machine, goal, "MAAS says so"))),
                PowerState::On | PowerState::Unknown | PowerState::Error => Err(disagrees(
                    machine,
                    &format!(
                        "it does not control its power (power type manual): switch it off by hand, then `farrier workflow adopt {}`",
                        self.hand.key().run()
                    ),
                )),
            },
            (Verb::Observe, Goal::Off) => Ok(match self.glimpse().await? {
                PowerState::Off => Answer::Done(reached(machine, goal, "MAAS says so")),
                PowerState::On => Answer::Differs(format!("power is {}", word(Power::On))),
                PowerState::Unknown | PowerState::Error => {
                    let said = "nobody can see its power (power type manual): it is taken for switched off by hand";
                    Answer::Done(outcome(machine, said))
                }
            }),
            (
                Verb::Perform | Verb::Follow | Verb::Inquire | Verb::Observe,
                Goal::On | Goal::Cycle,
            ) => {
                let said = format!(
                    "MAAS does not control the power of {} (power type manual); set its power type there",
                    self.system_id
                );
                Err(Fault::new(Code::NotSupported, said))
            }
        }
    }

    /// What MAAS knows of a power that it does not control; mostly nothing.
    async fn glimpse(&self) -> Result<PowerState, Fault> {
        match self.hand.maas().query_power_state(self.system_id).await {
            // It does not ask about what it cannot switch.
            Err(fault) if matches!(fault.code, Code::EffectFailed | Code::NotSupported) => {
                Ok(PowerState::Unknown)
            }
            other => other,
        }
    }

    /// What the machine's controller says, through MAAS.
    async fn read(&self) -> Result<Power, Fault> {
        match self.hand.maas().query_power_state(self.system_id).await? {
            PowerState::On => Ok(Power::On),
            PowerState::Off => Ok(Power::Off),
            PowerState::Unknown | PowerState::Error => {
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
            Stage::Begun | Stage::Stopped => fault,
            // Something was asked: not seeing it says nothing about it.
            Stage::Shutting(_) | Stage::Cutting(_) | Stage::Starting(_) | Stage::Done => {
                out_of_sight(fault)
            }
        })
    }

    async fn walk(&self, course: &mut Course, machine: &Machine) -> Result<Answer, Fault> {
        let settings = &self.hand.at.settings;
        let mut patience = power::patience(&settings.patience, self.manner, true)?;
        loop {
            let seen = self.read().await?;
            match power::next(course.goal, course.stage, seen, now(), &patience) {
                Move::Look => {
                    if course.watched.is_none_or(|at| now().since(at) >= WATCH_EVERY) {
                        self.note(course, course.stage).await?;
                    }
                    tokio::time::sleep(settings.look_every.min(power::LOOK_EVERY)).await;
                }
                Move::Ask(Ask::Start, _) if machine.status == Status::Allocated => {
                    let instead = "switching it on would install it: release it, or install it";
                    return Err(disagrees(machine, instead));
                }
                Move::Ask(ask, stage) => {
                    self.note(course, stage).await?;
                    self.hand.journal.line(format!("power: {}", asking(ask))).await;
                    if let Err(fault) = self.tell(ask).await {
                        patience = power::refused(fault, ask, &patience)?;
                    }
                }
                Move::Done(how) => {
                    self.note(course, Stage::Done).await?;
                    let machine = self.hand.maas().machine(self.system_id).await?;
                    return Ok(Answer::Done(reached(&machine, course.goal, how)));
                }
                Move::Fail(fault) => return Err(fault),
            }
        }
    }

    /// On disk before MAAS hears of it.
    async fn note(&self, course: &mut Course, stage: Stage) -> Result<(), Fault> {
        let after = Course { stage, watched: Some(now()), ..*course };
        self.hand.notes().amend(&course.memo(), &after.memo()).await?;
        *course = after;
        Ok(())
    }

    async fn tell(&self, ask: Ask) -> Result<(), Fault> {
        let maas = self.hand.maas();
        match ask {
            Ask::Shutdown => maas.power_off(self.system_id, StopMode::Soft).await,
            Ask::Cut => maas.power_off(self.system_id, StopMode::Hard).await,
            Ask::Start => maas.power_on(self.system_id).await.map(drop),
        }
    }

    /// What became of a course that somebody else has left. A machine that was asked to go off, and is on, may have been off in between.
    async fn became(&self, course: Course, machine: &Machine) -> Result<Answer, Fault> {
        let since = match course.stage {
            Stage::Done => {
                let how = "it was seen before";
                return Ok(Answer::Done(reached(machine, course.goal, how)));
            }
            Stage::Stopped => return Ok(Answer::NeverStarted),
            Stage::Begun | Stage::Starting(_) => return Ok(Answer::UnderWay),
            Stage::Shutting(since) | Stage::Cutting(since) => since,
        };
        let away = now().since(course.watched.unwrap_or(since).max(since));
        if away <= MAX_UNWATCHED || self.read().await? != Power::On {
            return Ok(Answer::UnderWay);
        }
        let said = format!(
            "{}: it was asked to go off, nobody looked for {}, and it is on: it may have been off in between",
            has(machine),
            spoken(away)
        );
        Ok(Answer::Unknown(said))
    }

    /// Before the first command nothing has happened. After it the machine is not left half off: the course is finished.
    async fn stop(&self, machine: &Machine) -> Result<Answer, Fault> {
        let notes = self.hand.notes();
        let Stopping::Begun(memo) = notes.stop().await? else { return Ok(Answer::Stopped) };
        let course = Course::of(&memo)?;
        match course.stage {
            Stage::Begun | Stage::Stopped => {
                notes.amend(&memo, &Memo::Stopped).await?;
                Ok(Answer::Stopped)
            }
            Stage::Shutting(_) | Stage::Cutting(_) | Stage::Starting(_) | Stage::Done => {
                self.follow(course, machine).await
            }
        }
    }
}

const fn asking(ask: Ask) -> &'static str {
    match ask {
        Ask::Shutdown => "MAAS asks the operating system to shut down",
        Ask::Cut => "MAAS cuts it off",
        Ask::Start => "MAAS switches it on",
    }
}

/// What was seen, and what it proves.
fn reached(machine: &Machine, goal: Goal, how: &str) -> Outcome {
    let (said, power) = match goal {
        Goal::On => (format!("power is on: {how}"), PowerTo::On),
        Goal::Off => (format!("power is off: {how}"), PowerTo::Off),
        Goal::Cycle => (format!("rebooted: {how}"), PowerTo::On),
    };
    let evidence = match power {
        PowerTo::Off => vec![Evidence::new(ConditionType::Reachable, false, "PoweredOff")],
        PowerTo::On => Vec::new(),
    };
    let seen = outcome(machine, said);
    let facts = seen.facts.map(|facts| Facts { power: Some(power), ..facts });
    Outcome { evidence, facts, ..seen }
}
