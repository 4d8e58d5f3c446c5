//! Heartbeats with the node's health and its current task; and the health checks behind them.

use super::controller::RequestError;
use super::identity::VERSION;
use super::journal::Contact;
use super::timing::scattered;
use super::wire::Heartbeat;
use super::{Life, health};
use crate::console::print_line;
use std::sync::PoisonError;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The limit of the heartbeat interval, whatever the controller says.
const MAX_BEAT_SECONDS: u64 = 3_600;
/// The limit of problems in one heartbeat.
const MAX_PROBLEMS: usize = 16;

impl Life<'_> {
    /// Runs until the end, in a separate thread.
    pub fn run_heartbeats(&self) {
        let pace = self.service.pace;
        let mut backoff = pace.backoff();
        let mut every = beat(self.node.heartbeat_seconds);
        self.board.wait_for_health(pace.first_health);
        while !self.over() {
            let wait = match self.heartbeat() {
                Ok(beaten) => {
                    backoff.reset();
                    every = beat(beaten.heartbeat_seconds);
                    self.heard();
                    if beaten.waiting {
                        self.board.ring();
                    }
                    every
                }
                Err(RequestError::Unknown(_, said)) => {
                    self.not_known(&said);
                    pace.rare
                }
                Err(RequestError::Retryable(said)) => {
                    self.trouble(&said);
                    scattered(backoff.next_delay()).min(every)
                }
                Err(missed @ (RequestError::Over | RequestError::Refused(_))) => {
                    self.trouble(&format!("a heartbeat was answered with {missed:?}"));
                    pace.rare
                }
            };
            self.board.pause(wait);
        }
    }

    fn heartbeat(&self) -> Result<super::wire::Beaten, RequestError> {
        let mut problems = self.board.problems();
        problems.truncate(MAX_PROBLEMS);
        let tasks = self.board.held();
        let beat = Heartbeat {
            boot_id: &self.service.identity.boot_id,
            version: VERSION,
            healthy: problems.is_empty(),
            problems: &problems,
            tasks: &tasks,
        };
        self.service.controller.heartbeat(&self.session, &beat)
    }

    /// The controller answered: wakes threads that paused because it did not.
    fn heard(&self) {
        let problems = self.board.problems();
        let mut back = false;
        let news = self.board.change_contact(|contact| {
            back = !contact.trouble.is_empty();
            let heard_unix_seconds = Some(now());
            let refused = std::mem::take(&mut contact.refused);
            *contact = Contact { heard_unix_seconds, trouble: String::new(), problems, refused };
        });
        if back {
            print_line("the controller answers again");
            self.board.ring();
        }
        self.write_down(news);
    }

    /// The same text from every caller, so that it is printed once.
    pub fn not_known(&self, said: &str) {
        self.trouble(&format!(
            "this node is not known any more: {said}; give it a new token to enroll again"
        ));
    }

    /// Prints and stores what is wrong, once.
    fn trouble(&self, said: &str) {
        let news = self.board.change_contact(|contact| contact.trouble = said.to_owned());
        if news {
            print_line(said);
        }
        self.write_down(news);
    }

    /// Only for operators, so a full disk stops nothing here. The lock makes writers take turns,
    /// each with the current contact.
    fn write_down(&self, news: bool) {
        if news {
            let _pen = self.pen.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = self.service.journal.keep_contact(&self.board.contact());
        }
    }

    /// Runs health checks until the end, in a separate thread.
    pub fn run_looks(&self) {
        let (service, mark) = (self.service, self.service.mark("health"));
        let mut told = Vec::new();
        while !self.over() {
            let problems = health::look(service.config, &mark, &self.halt);
            if self.over() {
                return;
            }
            if problems != told {
                problems.iter().for_each(|problem| print_line(&format!("not well: {problem}")));
                told.clone_from(&problems);
            }
            self.board.looked(problems);
            self.board.pause(service.pace.health);
        }
    }
}

fn beat(seconds: u64) -> Duration {
    Duration::from_secs(seconds.clamp(1, MAX_BEAT_SECONDS))
}

pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
