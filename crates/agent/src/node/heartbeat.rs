//! Heartbeats with the node's health and its current task; and the health checks behind them.

use super::controller::RequestError;
use super::identity::VERSION;
use super::journal::Contact;
use super::timing::with_jitter;
use super::{EnrolledService, health};
use crate::console::print_line;
use std::sync::PoisonError;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use wire::node::{HeartbeatReply, HeartbeatRequest};

/// The limit of the heartbeat interval, whatever the controller says.
const MAX_BEAT_SECONDS: u64 = 3_600;
/// The limit of problems in one heartbeat.
const MAX_PROBLEMS: usize = 16;

impl EnrolledService<'_> {
    /// Runs until the end, in a separate thread.
    pub fn run_heartbeats(&self) {
        let timing = self.service.timing;
        let mut backoff = timing.backoff();
        let mut every = heartbeat_interval(self.node.heartbeat_seconds);
        self.shared.wait_for_health(timing.first_health);
        while !self.has_ended() {
            let wait = match self.heartbeat() {
                Ok(beaten) => {
                    backoff.reset();
                    every = heartbeat_interval(beaten.heartbeat_seconds);
                    self.record_answer();
                    if beaten.waiting {
                        self.shared.wake_tasks();
                    }
                    every
                }
                Err(RequestError::SessionUnknown(_, message)) => {
                    self.report_unknown_session(&message);
                    timing.rare
                }
                Err(RequestError::Retryable(message)) => {
                    self.report_trouble(&message);
                    with_jitter(backoff.next_delay()).min(every)
                }
                Err(missed @ (RequestError::TaskOver | RequestError::TokenRefused(_))) => {
                    self.report_trouble(&format!("a heartbeat was answered with {missed:?}"));
                    timing.rare
                }
            };
            self.shared.pause(wait);
        }
    }

    fn heartbeat(&self) -> Result<HeartbeatReply, RequestError> {
        let mut problems = self.shared.problems();
        problems.truncate(MAX_PROBLEMS);
        let beat = HeartbeatRequest {
            boot_id: self.service.identity.boot_id.clone(),
            version: VERSION.into(),
            healthy: Some(problems.is_empty()),
            problems,
            tasks: self.shared.task_ids(),
        };
        self.service.controller.heartbeat(&self.session, &beat)
    }

    /// The controller answered: wakes threads that paused because it did not.
    fn record_answer(&self) {
        let problems = self.shared.problems();
        let mut back = false;
        let change = self.shared.change_contact(|contact| {
            back = !contact.trouble.is_empty();
            let heard_unix_seconds = Some(unix_seconds());
            let refused = std::mem::take(&mut contact.refused);
            *contact = Contact { heard_unix_seconds, trouble: String::new(), problems, refused };
        });
        if back {
            print_line("the controller answers again");
            self.shared.wake_tasks();
        }
        self.store_contact_if_new(change);
    }

    /// The same text from every caller, so that it is printed once.
    pub fn report_unknown_session(&self, message: &str) {
        self.report_trouble(&format!(
            "this node is not known any more: {message}; give it a new token to enroll again"
        ));
    }

    /// Prints and stores what is wrong, once.
    fn report_trouble(&self, message: &str) {
        let change = self.shared.change_contact(|contact| contact.trouble = message.to_owned());
        if change {
            print_line(message);
        }
        self.store_contact_if_new(change);
    }

    /// Only for operators, so a full disk stops nothing here. The lock makes writers take turns,
    /// each with the current contact.
    fn store_contact_if_new(&self, change: bool) {
        if change {
            let _pen = self.contact_lock.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = self.service.journal.store_contact(&self.shared.contact());
        }
    }

    /// Runs health checks until the end, in a separate thread.
    pub fn run_health_checks(&self) {
        let (service, mark) = (self.service, self.service.mark("health"));
        let mut reported = Vec::new();
        while !self.has_ended() {
            let problems = health::check_health(service.config, &mark, &self.health_stop);
            if self.has_ended() {
                return;
            }
            if problems != reported {
                problems.iter().for_each(|problem| print_line(&format!("problem: {problem}")));
                reported.clone_from(&problems);
            }
            self.shared.set_health(problems);
            self.shared.pause(service.timing.health);
        }
    }
}

fn heartbeat_interval(seconds: u64) -> Duration {
    Duration::from_secs(seconds.clamp(1, MAX_BEAT_SECONDS))
}

pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
