//! Heartbeats: the node lives, is this well, and carries out that. And the looks at its health that they tell of.

use super::controller::Missed;
use super::identity::VERSION;
use super::journal::Contact;
use super::pace::scattered;
use super::{Life, health};
use crate::console::say;
use std::sync::PoisonError;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use wire::node::{HeartbeatReply, HeartbeatRequest};

/// No controller is asked more often, nor forgotten for longer, whatever it says.
const MAX_BEAT_SECONDS: u64 = 3_600;
/// The most problems that are told at once.
const MAX_PROBLEMS: usize = 16;

impl Life<'_> {
    /// Until it is over. For a thread of its own.
    pub fn run_heartbeats(&self) {
        let pace = self.service.pace;
        let mut pauses = pace.pauses();
        let mut every = beat(self.node.heartbeat_seconds);
        self.board.wait_for_health(pace.first_health);
        while !self.over() {
            let wait = match self.heartbeat() {
                Ok(beaten) => {
                    pauses.worked();
                    every = beat(beaten.heartbeat_seconds);
                    self.heard();
                    if beaten.waiting {
                        self.board.ring();
                    }
                    every
                }
                Err(Missed::Unknown(_, said)) => {
                    self.not_known(&said);
                    pace.rare
                }
                Err(Missed::Again(said)) => {
                    self.trouble(&said);
                    scattered(pauses.step()).min(every)
                }
                Err(missed @ (Missed::Over | Missed::Refused(_))) => {
                    self.trouble(&format!("a heartbeat was answered with {missed:?}"));
                    pace.rare
                }
            };
            self.board.pause(wait);
        }
    }

    fn heartbeat(&self) -> Result<HeartbeatReply, Missed> {
        let mut problems = self.board.problems();
        problems.truncate(MAX_PROBLEMS);
        let beat = HeartbeatRequest {
            boot_id: self.service.identity.boot_id.clone(),
            version: VERSION.into(),
            healthy: Some(problems.is_empty()),
            problems,
            tasks: self.board.held(),
        };
        self.service.controller.heartbeat(&self.session, &beat)
    }

    /// The controller answers: whoever rested because it did not may ask again.
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
            say("the controller answers again");
            self.board.ring();
        }
        self.write_down(news);
    }

    /// The same words from whoever finds out, so that they are said once.
    pub fn not_known(&self, said: &str) {
        self.trouble(&format!(
            "this node is not known any more: {said}; give it a new token to enroll again"
        ));
    }

    /// Says what stands in the way, once.
    fn trouble(&self, said: &str) {
        let news = self.board.change_contact(|contact| contact.trouble = said.to_owned());
        if news {
            say(said);
        }
        self.write_down(news);
    }

    /// Only for people, so that a disk that is full stops nothing here. One writes at a time, and writes what holds then.
    fn write_down(&self, news: bool) {
        if news {
            let _pen = self.pen.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = self.service.journal.keep_contact(&self.board.contact());
        }
    }

    /// Looks at the health until it is over. For a thread of its own.
    pub fn run_looks(&self) {
        let (service, mark) = (self.service, self.service.mark("health"));
        let mut told = Vec::new();
        while !self.over() {
            let problems = health::look(service.config, &mark, &self.halt);
            if self.over() {
                return;
            }
            if problems != told {
                problems.iter().for_each(|problem| say(&format!("not well: {problem}")));
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
