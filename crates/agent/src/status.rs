//! The state that the work and the reports share.
//!
//! The work records its progress here and never blocks on the network. The reporting thread takes
//! the reports to send from here, and stores Farrier's answers here. Every change of stage is
//! queued until it has been sent, so none is skipped.

use crate::console::print_line;
use crate::failure::{DeployError, Failure};
use crate::timing::Timing;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use wire::deploy::{DeploymentInstruction, Report, Stage};

/// The interval of progress lines on the console, in percent of the image.
const SHOW_EVERY_PERCENT: u64 = 5;

/// The end of the deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinalAction {
    Reboot,
    PowerOff,
}

pub struct DeployStatus {
    inner: Mutex<Inner>,
    changed: Condvar,
    stop_flag: Arc<AtomicBool>,
}

struct Inner {
    /// The current report. None before the first stage begins.
    now: Option<Report>,
    /// Changes of stage that have not been sent, oldest first. At most one per stage, because no
    /// stage repeats.
    unsent: VecDeque<Report>,
    end: Option<FinalAction>,
    shown_percent: u64,
}

impl Default for DeployStatus {
    fn default() -> Self {
        let inner = Inner { now: None, unsent: VecDeque::new(), end: None, shown_percent: 0 };
        Self { inner: Mutex::new(inner), changed: Condvar::new(), stop_flag: Arc::default() }
    }
}

impl DeployStatus {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Set once the work must stop.
    pub fn stop_flag(&self) -> Arc<AtomicBool> {
        self.stop_flag.clone()
    }

    pub fn check(&self) -> Result<(), DeployError> {
        if self.stop_flag.load(Ordering::Relaxed) { Err(DeployError::Stopped) } else { Ok(()) }
    }

    pub fn start_writing(&self, total: u64, message: String) {
        self.change(|report| *report = new_report(Stage::Writing, total, message));
    }

    pub fn start_installing(&self, text: String) {
        self.change(|report| {
            *report = Report { stage: Stage::Installing, message: text, ..report.clone() }
        });
    }

    pub fn set_installed(&self, text: String, host_keys: Vec<String>) {
        self.change(|report| {
            *report =
                Report { stage: Stage::Installed, message: text, host_keys, ..report.clone() };
        });
    }

    pub fn set_failed(&self, failure: Failure) {
        self.change(|report| {
            let (code, text) = (Some(failure.code), failure.message);
            *report = Report { stage: Stage::Failed, message: text, code, ..report.clone() };
        });
    }

    fn change(&self, to: impl FnOnce(&mut Report)) {
        let mut inner = self.inner();
        let mut report =
            inner.now.clone().unwrap_or_else(|| new_report(Stage::Writing, 0, String::new()));
        to(&mut report);
        print_line(&report.message);
        inner.unsent.push_back(report.clone());
        inner.now = Some(report);
        self.changed.notify_all();
    }

    /// Records how many bytes of the image have been processed.
    pub fn progress(&self, done: u64) {
        let mut inner = self.inner();
        let Some(report) = &mut inner.now else { return };
        report.done = done;
        let percent = percent(done, report.total);
        if percent >= inner.shown_percent + SHOW_EVERY_PERCENT {
            inner.shown_percent = percent;
            print_line(&format!("{percent} %"));
        }
    }

    /// Blocks until the next report: at once after a change of stage, otherwise at the interval of
    /// the stage. None: the deployment has ended.
    pub fn next_report(&self, timing: &Timing) -> Option<Report> {
        let mut inner = self.inner();
        // Before the first stage the loop may wait several times; afterwards each iteration waits
        // once.
        loop {
            if inner.end.is_some() {
                return None;
            }
            if let Some(report) = inner.unsent.pop_front() {
                return Some(report);
            }
            let every = inner.now.as_ref().map_or(timing.report, |now| timing.between(now.stage));
            let (after, wait) = self
                .changed
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

    /// Applies Farrier's answer to a report. A reboot during the work is ignored, because it would
    /// leave half a system.
    pub fn apply_answer(&self, stage: Stage, then: DeploymentInstruction) {
        match (then, stage) {
            (DeploymentInstruction::Continue, _) => {}
            (DeploymentInstruction::Stop, _) => self.finish_with(FinalAction::PowerOff),
            (DeploymentInstruction::Reboot, Stage::Installed | Stage::Failed) => {
                self.finish_with(FinalAction::Reboot)
            }
            (DeploymentInstruction::Reboot, Stage::Writing | Stage::Installing) => {
                print_line("told to reboot before the work is done: going on");
            }
        }
    }

    pub fn finish_with(&self, end: FinalAction) {
        let mut inner = self.inner();
        inner.end.get_or_insert(end);
        if end == FinalAction::PowerOff {
            self.stop_flag.store(true, Ordering::Relaxed);
        }
        self.changed.notify_all();
    }

    pub fn has_ended(&self) -> bool {
        self.inner().end.is_some()
    }

    /// Waits for Farrier's decision how to end. There is no timeout here: Farrier has the deadline.
    pub fn wait_for_final_action(&self) -> FinalAction {
        let mut inner = self.inner();
        loop {
            if let Some(end) = inner.end {
                return end;
            }
            inner = self.changed.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for this time, or until the deployment has ended.
    pub fn pause(&self, time: Duration) {
        let inner = self.inner();
        let _ = self.changed.wait_timeout_while(inner, time, |inner| inner.end.is_none());
    }
}

fn new_report(stage: Stage, total: u64, text: String) -> Report {
    Report { stage, done: 0, total, message: text, code: None, host_keys: Vec::new() }
}

fn percent(done: u64, total: u64) -> u64 {
    done.saturating_mul(100).checked_div(total).unwrap_or(100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_depend_on_the_stage() {
        use {DeploymentInstruction::*, Stage::*};
        for (stage, then, end, braked) in [
            (Writing, Continue, None, false),
            (Writing, Reboot, None, false),
            (Writing, Stop, Some(FinalAction::PowerOff), true),
            (Installing, Reboot, None, false),
            (Installing, Stop, Some(FinalAction::PowerOff), true),
            (Installed, Continue, None, false),
            (Installed, Reboot, Some(FinalAction::Reboot), false),
            (Installed, Stop, Some(FinalAction::PowerOff), true),
            (Failed, Continue, None, false),
            (Failed, Reboot, Some(FinalAction::Reboot), false),
            (Failed, Stop, Some(FinalAction::PowerOff), true),
        ] {
            let status = DeployStatus::default();
            status.apply_answer(stage, then);
            assert_eq!(status.inner().end, end, "{stage:?} {then:?}");
            assert_eq!(status.check().is_err(), braked, "{stage:?} {then:?}");
        }
    }

    #[test]
    fn percentages_are_rounded_down() {
        for (done, total, expected) in
            [(0, 0, 100), (0, 5, 0), (1, 3, 33), (5, 5, 100), (u64::MAX, 1, u64::MAX)]
        {
            assert_eq!(percent(done, total), expected);
        }
    }
}
