//! Orders, each with its note.

use super::Datacenter;
use super::exec::out_of_sight;
use super::power::{self, Ask, Goal, LOOK_EVERY, Move, Patience, Power, Stage};
use crate::governor::Priority;
use crate::keeper::Note;
use crate::port::{Journal, Target};
use crate::sim::system_clock;
use model::condition::{ConditionType, Evidence};
use model::effect::{
    Answer, Effect, Key, NetbootMode, Order, Outcome, RebootMode, RmaAction, Verb,
};
use model::fault::{Code, Fault};
use model::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What is remembered of a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub(super) enum Memo {
    Power {
        goal: Goal,
        stage: Stage,
    },
    Netboot {
        mode: NetbootMode,
    },
    /// The boot id before.
    InBand {
        boot: String,
    },
    /// The public half of the token that was minted for it.
    Join {
        token: String,
    },
}

/// What an effect comes down to here.
enum Task {
    Power(Goal),
    Netboot(NetbootMode),
    /// The machine is looked at, and nothing is changed.
    Record,
    /// The mark is a condition; nothing is done at the machine.
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
            Effect::Reboot { mode: RebootMode::InBand } => {
                return self.reboot_from_within(target, order, journal).await;
            }
            Effect::Verify { cluster_ref, expect, advisory } => {
                return self.verify(target, order, cluster_ref, *expect, *advisory).await;
            }
            Effect::Join { cluster_ref } => {
                return self.join(target, order, cluster_ref, journal).await;
            }
            Effect::Leave { cluster_ref } => {
                return self.leave(target, order, cluster_ref, journal).await;
            }
            Effect::Net { document } => {
                return self.reconfigure_network(target, order, document, journal).await;
            }
            Effect::Reboot { mode: RebootMode::Bmc } => Task::Power(Goal::Cycle),
            Effect::Netboot { mode } => Task::Netboot(*mode),
            Effect::Rma { action: RmaAction::PowerOff } => Task::Power(Goal::Off),
            Effect::Rma { action: RmaAction::Record } => Task::Record,
            Effect::Rma { action: RmaAction::Mark } => Task::Mark,
            Effect::Repave { .. } => {
                let said = "the datacenter provider cannot install images yet";
                return Err(Fault::new(Code::CapabilityMissing, said));
            }
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
            (Verb::Perform, Task::Power(goal)) => {
                let memo = Memo::Power { goal, stage: Stage::Begun };
                match self.begin(&order.key, memo).await? {
                    None => {
                        self.change_power(target, &order.key, goal, Stage::Begun, journal).await
                    }
                    Some(before) => self.go_on(target, order, before, journal).await,
                }
            }
            (Verb::Perform, Task::Netboot(mode)) => {
                match self.begin(&order.key, Memo::Netboot { mode }).await? {
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
            (Verb::Inquire, Task::Power(_) | Task::Netboot(_)) => {
                Ok(match self.recall(&order.key).await? {
                    None | Some(Remembered::Barred) => Answer::NeverStarted,
                    Some(Remembered::Memo(Memo::Power { stage: Stage::Done, goal })) => {
                        Answer::Done(done(said_of(goal, "it was seen before")))
                    }
                    Some(Remembered::Memo(_)) => Answer::UnderWay,
                })
            }
            (Verb::Stop, Task::Power(_) | Task::Netboot(_)) => {
                self.stop(target, order, journal).await
            }
            (Verb::Observe, Task::Power(goal)) => self.observe_power(target, goal).await,
            (Verb::Observe, Task::Netboot(mode)) => self.observe_netboot(target, mode).await,
            (Verb::Perform | Verb::Follow | Verb::Inquire | Verb::Observe, Task::Record) => {
                let seen = self.read_power(target, Priority::Operator).await?;
                let said = format!("its BMC answers, and power is {}", word(seen));
                journal.line(&said).await;
                Ok(Answer::Done(done(said)))
            }
            (Verb::Perform | Verb::Follow | Verb::Inquire | Verb::Observe, Task::Mark) => {
                let evidence = vec![Evidence::new(ConditionType::Rma, true, "RmaRun")];
                let said = "marked for return to the vendor".into();
                Ok(Answer::Done(Outcome { said, evidence }))
            }
            (Verb::Stop, Task::Record | Task::Mark) => Ok(Answer::Stopped),
        }
    }

    /// Goes on with what a key has begun.
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
            Remembered::Memo(Memo::Power { goal, stage }) => {
                self.change_power(target, &order.key, goal, stage, journal).await
            }
            Remembered::Memo(Memo::InBand { .. } | Memo::Join { .. }) => {
                Err(Fault::new(Code::ProtocolBroken, "one key stands for two effects"))
            }
            Remembered::Memo(Memo::Netboot { mode }) => {
                self.set_netboot(target, mode, journal).await
            }
        }
    }

    /// Follows the course until its goal is seen. Once something was asked, a BMC that cannot be seen says nothing about it.
    async fn change_power(
        &self,
        target: &Target,
        key: &Key,
        goal: Goal,
        mut stage: Stage,
        journal: &Journal,
    ) -> Result<Answer, Fault> {
        let done = self.follow_course(target, key, goal, &mut stage, journal).await;
        done.map_err(|fault| match stage {
            Stage::Begun | Stage::Stopped => fault,
            Stage::Shutting(_) | Stage::Cutting(_) | Stage::Starting(_) | Stage::Done => {
                out_of_sight(fault)
            }
        })
    }

    async fn follow_course(
        &self,
        target: &Target,
        key: &Key,
        goal: Goal,
        stage: &mut Stage,
        journal: &Journal,
    ) -> Result<Answer, Fault> {
        let patience = self.patience(target).await?;
        loop {
            let seen = self.read_power(target, Priority::Operator).await?;
            match power::next(goal, *stage, seen, now(), &patience) {
                Move::Look => tokio::time::sleep(LOOK_EVERY).await,
                Move::Ask(ask, next) => {
                    // On disk before the BMC hears of it.
                    let at = |stage| Memo::Power { goal, stage };
                    self.amend(key, at(*stage), at(next)).await?;
                    journal.line(asking(ask, *stage, next)).await;
                    *stage = next;
                    let limit = self.settings.call;
                    self.bmcs
                        .call(target, Priority::Operator, limit, async |bmc| bmc.ask(ask).await)
                        .await?;
                }
                Move::Done(how) => {
                    let at = |stage| Memo::Power { goal, stage };
                    self.amend(key, at(*stage), at(Stage::Done)).await?;
                    journal.line(format!("power: {how}")).await;
                    return Ok(Answer::Done(done(said_of(goal, how))));
                }
                Move::Fail(fault) => return Err(fault),
            }
        }
    }

    /// A BMC that cannot ask for a shutdown is not waited for.
    async fn patience(&self, target: &Target) -> Result<Patience, Fault> {
        let patience = self.settings.patience.clone();
        if patience.graceful.is_zero() {
            return Ok(patience);
        }
        let limit = self.settings.call;
        let ask = async |bmc: &super::controller::Controller| bmc.can_shut_down().await;
        match self.bmcs.call(target, Priority::Operator, limit, ask).await? {
            true => Ok(patience),
            false => Ok(Patience { graceful: std::time::Duration::ZERO, ..patience }),
        }
    }

    pub(super) async fn read_power(
        &self,
        target: &Target,
        priority: Priority,
    ) -> Result<Power, Fault> {
        let limit = self.settings.call;
        self.bmcs.call(target, priority, limit, async |bmc| bmc.power().await).await
    }

    async fn set_netboot(
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

    async fn observe_power(&self, target: &Target, goal: Goal) -> Result<Answer, Fault> {
        let seen = self.read_power(target, Priority::Operator).await?;
        let said = format!("power is {}", word(seen));
        Ok(match (goal, seen) {
            (Goal::On, Power::On) | (Goal::Off, Power::Off) => Answer::Done(done(said)),
            (Goal::Cycle, _) => Answer::Differs(format!("{said}; a reboot leaves nothing to see")),
            (Goal::On | Goal::Off, _) => Answer::Differs(said),
        })
    }

    /// Before the first command nothing has happened. After it the machine is not left half off: the course is finished.
    async fn stop(
        &self,
        target: &Target,
        order: &Order,
        journal: &Journal,
    ) -> Result<Answer, Fault> {
        match self.keeper.begin(&order.key, &Note::Barred).await? {
            None | Some(Note::Barred) => return Ok(Answer::Stopped),
            Some(Note::Begun(_)) => {}
        }
        match self.recall(&order.key).await? {
            Some(Remembered::Memo(Memo::Power { goal, stage: Stage::Begun })) => {
                let at = |stage| Memo::Power { goal, stage };
                self.amend(&order.key, at(Stage::Begun), at(Stage::Stopped)).await?;
                Ok(Answer::Stopped)
            }
            Some(before @ Remembered::Memo(Memo::Power { stage, .. }))
                if stage != Stage::Stopped =>
            {
                self.go_on(target, order, before, journal).await
            }
            None | Some(_) => Ok(Answer::Stopped),
        }
    }

    pub(super) async fn begin(&self, key: &Key, memo: Memo) -> Result<Option<Remembered>, Fault> {
        let before = self.keeper.begin(key, &Note::Begun(value(key, memo)?)).await?;
        before.map(|note| remembered(key, note)).transpose()
    }

    pub(super) async fn recall(&self, key: &Key) -> Result<Option<Remembered>, Fault> {
        self.keeper.recall(key).await?.map(|note| remembered(key, note)).transpose()
    }

    /// Goes from one note to the next. Whoever finds another one than its own has slept, and must not act any more.
    pub(super) async fn amend(&self, key: &Key, before: Memo, after: Memo) -> Result<(), Fault> {
        match self.keeper.amend(key, &value(key, before)?, &value(key, after)?).await? {
            true => Ok(()),
            false => {
                let said = format!("another worker has gone on with {key}, or stopped it");
                Err(Fault::new(Code::AnswerLost, said))
            }
        }
    }
}

/// A note, read.
#[derive(Debug, Clone)]
pub(super) enum Remembered {
    Barred,
    Memo(Memo),
}

fn value(key: &Key, memo: Memo) -> Result<Value, Fault> {
    serde_json::to_value(memo)
        .map_err(|error| Fault::new(Code::ProtocolBroken, format!("the note of {key}: {error}")))
}

fn remembered(key: &Key, note: Note) -> Result<Remembered, Fault> {
    match note {
        Note::Barred => Ok(Remembered::Barred),
        Note::Begun(body) => serde_json::from_value(body).map(Remembered::Memo).map_err(|error| {
            Fault::new(Code::RecordUnreadable, format!("the note of {key}: {error}"))
        }),
    }
}

fn asking(ask: Ask, before: Stage, next: Stage) -> String {
    let what = match ask {
        Ask::Shutdown => "asking the operating system to shut down",
        Ask::Cut => "cutting it off",
        Ask::Start => "switching it on",
    };
    let again = if before == next { ", again" } else { "" };
    format!("power: {what}{again}")
}

fn said_of(goal: Goal, how: &str) -> String {
    match goal {
        Goal::On => format!("power is on: {how}"),
        Goal::Off => format!("power is off: {how}"),
        Goal::Cycle => format!("rebooted: {how}"),
    }
}

const fn word(power: Power) -> &'static str {
    match power {
        Power::On => "on",
        Power::Off => "off",
        Power::Changing => "changing",
    }
}

pub(super) fn done(said: String) -> Outcome {
    Outcome { said, evidence: Vec::new() }
}

fn now() -> Timestamp {
    (system_clock())()
}
