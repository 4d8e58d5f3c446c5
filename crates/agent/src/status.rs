//! Where the work stands and what Farrier has said to it: the one thing that the work and the reports share.
//!
//! The work says how far it is and never waits for anybody. The thread that reports takes from here what is to be sent, and leaves here
//! what was answered. A change of stage is kept until it has been sent, so that none is skipped however fast they follow.

use crate::console::say;
use crate::failure::{Failure, Halt};
use crate::pace::Pace;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use wire::deploy::{Report, Stage, Then};

/// How often progress is shown on the console, in hundredths of the whole.
const SHOW_EVERY_PERCENT: u64 = 5;

/// How it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Reboot,
    PowerOff,
}

pub struct Status {
    inner: Mutex<Inner>,
    moved: Condvar,
    brake: Arc<AtomicBool>,
}

struct Inner {
    /// As it is now. Nothing is reported before the first stage begins.
    now: Option<Report>,
    /// Changes of stage that have not been sent, oldest first. There are as many as stages at most: none comes twice.
    unsent: VecDeque<Report>,
    end: Option<End>,
    shown_percent: u64,
}

impl Default for Status {
    fn default() -> Self {
        let inner = Inner { now: None, unsent: VecDeque::new(), end: None, shown_percent: 0 };
        Self { inner: Mutex::new(inner), moved: Condvar::new(), brake: Arc::default() }
    }
}

impl Status {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Set once the work has to stop.
    pub fn brake(&self) -> Arc<AtomicBool> {
        self.brake.clone()
    }

    pub fn check(&self) -> Result<(), Halt> {
        if self.brake.load(Ordering::Relaxed) { Err(Halt::Stopped) } else { Ok(()) }
    }

    pub fn begin(&self, total: u64, said: String) {
        self.change(|report| *report = blank(Stage::Writing, total, said));
    }

    pub fn installing(&self, said: String) {
        self.change(|report| *report = Report { stage: Stage::Installing, said, ..report.clone() });
    }

    pub fn installed(&self, said: String, host_keys: Vec<String>) {
        self.change(|report| {
            *report = Report { stage: Stage::Installed, said, host_keys, ..report.clone() };
        });
    }

    pub fn failed(&self, failure: Failure) {
        self.change(|report| {
            let (code, said) = (Some(failure.code), failure.said);
            *report = Report { stage: Stage::Failed, said, code, ..report.clone() };
        });
    }

    fn change(&self, to: impl FnOnce(&mut Report)) {
        let mut inner = self.inner();
        let mut report =
            inner.now.clone().unwrap_or_else(|| blank(Stage::Writing, 0, String::new()));
        to(&mut report);
        say(&report.said);
        inner.unsent.push_back(report.clone());
        inner.now = Some(report);
        self.moved.notify_all();
    }

    /// So many bytes of the image have been dealt with.
    pub fn progress(&self, done: u64) {
        let mut inner = self.inner();
        let Some(report) = &mut inner.now else { return };
        report.done = done;
        let percent = percent(done, report.total);
        if percent >= inner.shown_percent + SHOW_EVERY_PERCENT {
            inner.shown_percent = percent;
            say(&format!("{percent} %"));
        }
    }

    /// The next report: at once when a stage has changed, otherwise when one is due. None: it is over.
    pub fn next_report(&self, pace: &Pace) -> Option<Report> {
        let mut inner = self.inner();
        // The first stage may be some time away; after that, a turn of this loop is one wait.
        loop {
            if inner.end.is_some() {
                return None;
            }
            if let Some(report) = inner.unsent.pop_front() {
                return Some(report);
            }
            let every = inner.now.as_ref().map_or(pace.report, |now| pace.between(now.stage));
            let (after, wait) = self
                .moved
                .wait_timeout_while(inner, every, |inner| {
                    inner.unsent.is_empty() && inner.end.is_none()
                })
                .unwrap_or_else(PoisonError::into_inner);
            inner = after;
            if wait.timed_out() && inner.now.is_some() && inner.end.is_none() {
                return inner.now.clone();
            }
        }
    }

    /// Takes what Farrier answered to a report of a stage. A reboot in the middle of the work would leave half a system.
    pub fn told(&self, stage: Stage, then: Then) {
        match (then, stage) {
            (Then::GoOn, _) => {}
            (Then::Stop, _) => self.end(End::PowerOff),
            (Then::Reboot, Stage::Installed | Stage::Failed) => self.end(End::Reboot),
            (Then::Reboot, Stage::Writing | Stage::Installing) => {
                say("told to reboot before the work is done: going on");
            }
        }
    }

    pub fn end(&self, end: End) {
        let mut inner = self.inner();
        inner.end.get_or_insert(end);
        if end == End::PowerOff {
            self.brake.store(true, Ordering::Relaxed);
        }
        self.moved.notify_all();
    }

    pub fn over(&self) -> bool {
        self.inner().end.is_some()
    }

    /// Waits until Farrier has said how it ends. That may be never, if it never says so: Farrier has the deadline.
    pub fn wait_for_end(&self) -> End {
        let mut inner = self.inner();
        loop {
            if let Some(end) = inner.end {
                return end;
            }
            inner = self.moved.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits so long, or until it is over.
    pub fn pause(&self, time: Duration) {
        let inner = self.inner();
        let _ = self.moved.wait_timeout_while(inner, time, |inner| inner.end.is_none());
    }
}

fn blank(stage: Stage, total: u64, said: String) -> Report {
    Report { stage, done: 0, total, said, code: None, host_keys: Vec::new() }
}

fn percent(done: u64, total: u64) -> u64 {
    done.saturating_mul(100).checked_div(total).unwrap_or(100)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::deploy::FailureCode;

    #[test]
    fn no_change_of_stage_is_skipped_and_then_the_newest_is_repeated() {
        let status = Status::default();
        let pace = Pace::for_tests();
        status.begin(10, "writing".into());
        status.progress(10);
        status.installing("installing".into());
        status.installed("installed".into(), vec!["key".into()]);
        let sent: Vec<(Stage, u64)> = (0..5)
            .filter_map(|_| status.next_report(&pace))
            .map(|report| (report.stage, report.done))
            .collect();
        let expected = [
            (Stage::Writing, 0),
            (Stage::Installing, 10),
            (Stage::Installed, 10),
            (Stage::Installed, 10),
            (Stage::Installed, 10),
        ];
        assert_eq!(sent, expected);
    }

    #[test]
    fn what_is_told_counts_by_stage() {
        use {Stage::*, Then::*};
        for (stage, then, end, braked) in [
            (Writing, GoOn, None, false),
            (Writing, Reboot, None, false),
            (Writing, Stop, Some(End::PowerOff), true),
            (Installing, Reboot, None, false),
            (Installing, Stop, Some(End::PowerOff), true),
            (Installed, GoOn, None, false),
            (Installed, Reboot, Some(End::Reboot), false),
            (Installed, Stop, Some(End::PowerOff), true),
            (Failed, GoOn, None, false),
            (Failed, Reboot, Some(End::Reboot), false),
            (Failed, Stop, Some(End::PowerOff), true),
        ] {
            let status = Status::default();
            status.told(stage, then);
            assert_eq!(status.inner().end, end, "{stage:?} {then:?}");
            assert_eq!(status.check().is_err(), braked, "{stage:?} {then:?}");
        }
    }

    #[test]
    fn once_it_is_over_nothing_is_reported_and_nobody_waits() {
        let status = Status::default();
        status.failed(Failure::new(FailureCode::DiskMissing, "none"));
        status.end(End::Reboot);
        status.end(End::PowerOff);
        assert_eq!(status.wait_for_end(), End::Reboot);
        assert_eq!(status.next_report(&Pace::for_tests()), None);
        status.pause(Duration::from_secs(3_600));
    }

    #[test]
    fn hundredths_of_anything() {
        for (done, total, expected) in
            [(0, 0, 100), (0, 5, 0), (1, 3, 33), (5, 5, 100), (u64::MAX, 1, u64::MAX)]
        {
            assert_eq!(percent(done, total), expected);
        }
    }
}
