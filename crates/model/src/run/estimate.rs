//! Estimated duration of the steps of a run, for dry runs.

use super::RemainingStep;
use crate::effect::{ChildRunGroup, ChildRunSpec};
use crate::plan::RunStep;
use crate::time::format_duration;
use crate::why::UsualDuration;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// A step that would be executed, and the time that it usually takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreviewedStep {
    pub left: RemainingStep,
    /// None: too few durations are recorded.
    pub usual: Option<UsualDuration>,
}

impl PreviewedStep {
    /// A step whose outcome is asked for first is executed only after some of the answers.
    pub const fn is_certain(&self) -> bool {
        !self.left.asks_first
    }
}

/// The time that steps take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TimeEstimate {
    /// None: of some step, too few durations are recorded.
    pub usual: Option<UsualTime>,
    /// The sum of the deadlines, with all retries.
    pub limit: Duration,
}

/// The time that something usually takes: its median, and its 95th percentile. Of several steps:
/// the sums of theirs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UsualTime {
    pub median: Duration,
    pub p95: Duration,
}

impl From<&UsualDuration> for UsualTime {
    fn from(usual: &UsualDuration) -> Self {
        Self { median: usual.median, p95: usual.p95 }
    }
}

impl UsualTime {
    fn then(self, next: Self) -> Self {
        Self { median: self.median + next.median, p95: self.p95 + next.p95 }
    }

    fn beside(self, other: Self) -> Self {
        Self { median: self.median.max(other.median), p95: self.p95.max(other.p95) }
    }
}

impl TimeEstimate {
    /// The time of steps that are executed one after the other.
    pub fn of(steps: &[PreviewedStep]) -> Self {
        let certain: Vec<_> = steps.iter().filter(|step| step.is_certain()).collect();
        let usual: Option<Vec<UsualTime>> =
            certain.iter().map(|step| step.usual.as_ref().map(UsualTime::from)).collect();
        Self {
            usual: usual.and_then(|steps| steps.into_iter().reduce(UsualTime::then)),
            limit: steps.iter().map(|step| step.left.step.time_limit()).sum(),
        }
    }

    /// The time of operations that are executed at the same time; none if there is none.
    pub fn concurrent(all: impl IntoIterator<Item = Self>) -> Option<Self> {
        all.into_iter().reduce(|one, other| Self {
            usual: one.usual.zip(other.usual).map(|(one, other)| one.beside(other)),
            limit: one.limit.max(other.limit),
        })
    }

    /// Such as `usually 5m 0s, up to 7m 0s`. The deadlines say little about the time, so they are
    /// named only where nothing else is known.
    pub fn words(&self) -> String {
        let limit = format_duration(self.limit);
        match self.usual {
            Some(UsualTime { median, p95 }) => {
                format!("usually {}, up to {}", format_duration(median), format_duration(p95))
            }
            None => {
                format!("not enough such steps were timed yet; their deadlines add up to {limit}")
            }
        }
    }
}

/// The usual duration of a step that starts child runs: the steps of a child are executed one after
/// the other, and a child begins when fewer than `max_concurrent` others are at work. None if too
/// few durations of a child's step are recorded.
pub fn usual_of_group(
    group: &ChildRunGroup,
    usual: impl Fn(&ChildRunSpec, &RunStep) -> Option<UsualDuration>,
) -> Option<UsualDuration> {
    let steps_of =
        |child: &ChildRunSpec| child.steps.iter().map(|step| usual(child, step)).collect();
    let children: Option<Vec<Vec<UsualDuration>>> = group.child_runs.iter().map(steps_of).collect();
    let children = children?;
    let samples = children.iter().flatten().map(|one| one.samples).min()?;
    let total = |of: fn(&UsualDuration) -> Duration| {
        let durations = children.iter().map(|steps| steps.iter().map(of).sum());
        time_to_end(durations, group.max_concurrent)
    };
    let (median, p95) = (total(|one| one.median), total(|one| one.p95));
    Some(UsualDuration { median, p95, samples, model: String::new() })
}

/// The time until all have ended, if each begins in its turn as soon as fewer than `at_once` are at
/// work.
fn time_to_end(durations: impl Iterator<Item = Duration>, at_once: u32) -> Duration {
    let at_once = usize::try_from(at_once.max(1)).unwrap_or(usize::MAX);
    let mut ends = BinaryHeap::new();
    let mut last = Duration::ZERO;
    for duration in durations {
        let begins = match ends.len() < at_once {
            true => Duration::ZERO,
            false => ends.pop().map_or(Duration::ZERO, |Reverse(end)| end),
        };
        last = last.max(begins + duration);
        ends.push(Reverse(begins + duration));
    }
    last
}
