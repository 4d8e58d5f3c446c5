//! Follows a power sequence: read, decide, store, send, and read again until the goal is observed.

use super::Datacenter;
use super::orders::OrderCheckpoint;
use crate::clock::now;
use crate::fault::possibly_happened;
use crate::governor::Priority;
use crate::port::{Journal, Target};
use crate::power::{
    self, LOOK_EVERY, MAX_UNWATCHED, PowerCommand, PowerGoal, PowerMove, PowerStage, PowerState,
    PowerTimeouts, WATCH_EVERY,
};
use model::effect::{Answer, Key, PowerOffPolicy};
use model::fault::{Code, Fault, Happened};
use model::time::{Timestamp, spoken};

/// The goal of a power sequence and its options.
#[derive(Debug, Clone, Copy)]
pub(super) struct PowerSequence {
    pub goal: PowerGoal,
    pub power_off: PowerOffPolicy,
    /// The host must answer at the end.
    pub back: bool,
    /// When the power state was last read.
    pub watched: Option<Timestamp>,
}

impl Datacenter {
    /// Follows the sequence until its goal is observed; `note` builds the caller's checkpoint.
    /// After the first command an unreachable BMC means an unknown outcome. Returns the evidence.
    pub(super) async fn follow_course(
        &self,
        target: &Target,
        key: &Key,
        course: PowerSequence,
        stage: &mut PowerStage,
        note: fn(PowerSequence, PowerStage) -> OrderCheckpoint,
        journal: &Journal,
    ) -> Result<&'static str, Fault> {
        let ended = self.walk_course(target, key, course, stage, note, journal).await;
        ended.map_err(|fault| match stage {
            PowerStage::Begun | PowerStage::Stopped => fault,
            PowerStage::Shutting(_)
            | PowerStage::Cutting(_)
            | PowerStage::Starting(_)
            | PowerStage::Done => possibly_happened(fault),
        })
    }

    async fn walk_course(
        &self,
        target: &Target,
        key: &Key,
        course: PowerSequence,
        stage: &mut PowerStage,
        note: fn(PowerSequence, PowerStage) -> OrderCheckpoint,
        journal: &Journal,
    ) -> Result<&'static str, Fault> {
        let mut course = course;
        let PowerSequence { goal, power_off, .. } = course;
        let begun = |stage: &PowerStage, fault| match stage {
            PowerStage::Begun => nothing_yet(fault),
            PowerStage::Shutting(_)
            | PowerStage::Cutting(_)
            | PowerStage::Starting(_)
            | PowerStage::Done
            | PowerStage::Stopped => fault,
        };
        let mut known = None;
        loop {
            let seen = self.read_power(target, Priority::Operator).await;
            let seen = seen.map_err(|fault| begun(stage, fault))?;
            if known.is_none() && power::needs_patience(goal, *stage, seen) {
                let patience = self.patience(target, power_off).await;
                known = Some(patience.map_err(|fault| begun(stage, fault))?);
            }
            let patience = known.as_ref().unwrap_or(&self.settings.power_timeouts);
            match power::next(goal, *stage, seen, now(), patience) {
                PowerMove::Look => {
                    if course.watched.is_none_or(|at| now().since(at) >= WATCH_EVERY) {
                        let seen = PowerSequence { watched: Some(now()), ..course };
                        let (before, after) = (note(course, *stage), note(seen, *stage));
                        if before != after {
                            self.compare_and_swap(key, before, after).await?;
                        }
                        course = seen;
                    }
                    tokio::time::sleep(LOOK_EVERY).await;
                }
                PowerMove::Command(ask, next) => {
                    // Stored before the BMC is called.
                    let seen = PowerSequence { watched: Some(now()), ..course };
                    self.compare_and_swap(key, note(course, *stage), note(seen, next)).await?;
                    course = seen;
                    journal.line(asking(ask, *stage, next)).await;
                    *stage = next;
                    if let Err(fault) = self.tell(target, ask).await {
                        let no = format!("power: that was refused: {}", fault.said);
                        known = Some(power::refused(fault, ask, patience)?);
                        journal.line(no).await;
                    }
                }
                PowerMove::Done(how) => {
                    self.compare_and_swap(
                        key,
                        note(course, *stage),
                        note(course, PowerStage::Done),
                    )
                    .await?;
                    *stage = PowerStage::Done;
                    journal.line(format!("power: {how}")).await;
                    return Ok(how);
                }
                PowerMove::Fail(fault) => return Err(fault),
            }
        }
    }

    /// The status of a sequence that another worker has left. A machine that was to go off and is
    /// on may have been off in between and switched on by an operator. After a gap in watching, the
    /// outcome is therefore unknown, and it is not switched off again.
    pub(super) async fn unwatched(
        &self,
        target: &Target,
        stage: PowerStage,
        watched: Option<Timestamp>,
    ) -> Result<Answer, Fault> {
        let (PowerStage::Shutting(since) | PowerStage::Cutting(since)) = stage else {
            return Ok(Answer::UnderWay);
        };
        let away = now().since(watched.unwrap_or(since).max(since));
        if away <= MAX_UNWATCHED
            || self.read_power(target, Priority::Operator).await? != PowerState::On
        {
            return Ok(Answer::UnderWay);
        }
        Ok(Answer::Unknown(format!(
            "it was asked to go off, nobody looked for {}, and it is on: it may have been off in between",
            spoken(away)
        )))
    }

    async fn tell(&self, target: &Target, ask: PowerCommand) -> Result<(), Fault> {
        let limit = self.settings.call;
        self.bmcs.call(target, Priority::Operator, limit, async |bmc| bmc.ask(ask).await).await
    }

    /// The timeouts of the step at this BMC.
    async fn patience(
        &self,
        target: &Target,
        power_off: PowerOffPolicy,
    ) -> Result<PowerTimeouts, Fault> {
        let limit = self.settings.call;
        let ask = async |bmc: &super::controller::Controller| bmc.can_shut_down().await;
        let can_shut_down = self.bmcs.call(target, Priority::Operator, limit, ask).await?;
        power::patience(&self.settings.power_timeouts, power_off, can_shut_down)
    }

    pub(super) async fn read_power(
        &self,
        target: &Target,
        priority: Priority,
    ) -> Result<PowerState, Fault> {
        let limit = self.settings.call;
        self.bmcs.call(target, priority, limit, async |bmc| bmc.power().await).await
    }
}

/// Before the first command the BMC was only read, so nothing has happened.
fn nothing_yet(fault: Fault) -> Fault {
    match (fault.code.happened(), fault.code) {
        (Happened::No, _) => fault,
        (Happened::Maybe, Code::AnswerGarbled) => Fault::new(Code::BmcGarbled, fault.said),
        (Happened::Maybe, _) => Fault::new(Code::BmcUnreachable, fault.said),
    }
}

fn asking(ask: PowerCommand, before: PowerStage, next: PowerStage) -> String {
    let what = match ask {
        PowerCommand::Shutdown => "asking the operating system to shut down",
        PowerCommand::Cut => "cutting it off",
        PowerCommand::Start => "switching it on",
    };
    let again = if before == next { ", again" } else { "" };
    format!("power: {what}{again}")
}
