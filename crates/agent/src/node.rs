//! The agent of a node in service: it enrolls once, says that it lives, takes tasks, carries them out and reports.
//!
//! It may be killed at any point, and so may Farrier: what it must remember is in its state folder before anything follows from it
//! (`journal`), and every request may be repeated (`controller`). There is no orderly shutdown, because there is none that is certain.
//!
//! `enroll` makes it a node, `beat` is its pulse, `tasks` what it does and `work` how; `leave` is its end. `hook`, `gpu` and
//! `scratch` are its hands, `program` holds whatever they start, and `board` is between the threads.

mod beat;
mod board;
pub mod config;
mod controller;
mod enroll;
mod gpu;
mod health;
mod hook;
mod identity;
mod journal;
mod leave;
mod log;
pub mod pace;
mod patience;
mod program;
mod scratch;
mod status;
mod tasks;
mod work;

use crate::console::{say, warn};
use board::Board;
pub use config::Config;
use controller::Controller;
use enroll::{Known, Outside};
use identity::Identity;
use journal::{Contact, Journal, Node};
pub use pace::Pace;
use pace::scattered;
use patience::Patience;
use secrecy::SecretString;
pub use status::{Stage, Status, TaskStatus, status};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use tasks::Served;

/// The unit that runs the agent.
pub const UNIT: &str = include_str!("../../../deploy/farrier-agent.service");
/// The line of it that says what is run.
const RUN: &str = "ExecStart=";

/// The same for this small agent, which is at this path.
pub fn unit(program: &str) -> String {
    let line = |line: &str| match line.starts_with(RUN) {
        true => format!("{RUN}{program} node run --config {}\n", config::DEFAULT_PATH),
        false => format!("{line}\n"),
    };
    UNIT.lines().map(line).collect()
}

/// How often `enroll` asks a controller that does not answer.
const ENROLL_TRIES: u32 = 3;

/// How the agent ends when nobody kills it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It has uninstalled itself.
    Left,
    /// The brake was set.
    Stopped,
}

/// Why there is no node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotEnrolled {
    /// No controller answered in time; it may be tried again.
    Unreachable(String),
    /// Somebody has to do something first.
    Refused(String),
}

/// Serves as the agent of this node until it has left it, or the brake is set. An error means that its state cannot be kept.
pub fn run(config: &Config, pace: &Pace, brake: &Arc<AtomicBool>) -> Result<End, String> {
    let service = Service::open(config, pace, brake)?;
    // What the agent before this one had started is nobody's now.
    ["task", "health"].iter().for_each(|what| program::kill_marked(&service.mark(what)));
    // A turn is a whole enrollment.
    loop {
        if let Some(leaving) = service.journal.leaving()? {
            service.leave(&leaving)?;
            return Ok(End::Left);
        }
        let Some(known) = service.enroll() else { return Ok(End::Stopped) };
        match service.serve(known)? {
            Served::Stopped => return Ok(End::Stopped),
            Served::Leave | Served::Enroll => {}
        }
    }
}

/// Enrolls, and answers the node's name. One that is enrolled stays what it is.
pub fn enroll(config: &Config, pace: &Pace) -> Result<String, NotEnrolled> {
    let brake = Arc::new(AtomicBool::new(false));
    let service = Service::open(config, pace, &brake).map_err(NotEnrolled::Refused)?;
    let mut pauses = pace.pauses();
    let mut tries = 1;
    loop {
        match service.enroll_once() {
            Ok(Known { node, refused }) if refused.is_empty() => return Ok(node.node),
            Ok(Known { node, refused }) => {
                let said = format!("{refused}; this is still {}", node.node);
                return Err(NotEnrolled::Refused(said));
            }
            Err(Outside::Refused(said)) => return Err(NotEnrolled::Refused(said)),
            Err(Outside::Again(said)) if tries == ENROLL_TRIES => {
                return Err(NotEnrolled::Unreachable(said));
            }
            Err(Outside::Again(_)) => thread::sleep(scattered(pauses.step())),
        }
        tries += 1;
    }
}

/// Everything that does not change while the agent runs.
struct Service<'a> {
    config: &'a Config,
    pace: &'a Pace,
    brake: &'a Arc<AtomicBool>,
    identity: Identity,
    journal: Journal,
    controller: Controller,
}

/// The same, once it is known which node this is.
struct Life<'a> {
    service: &'a Service<'a>,
    node: &'a Node,
    session: SecretString,
    board: Board,
    /// Set when it is over, so that no look at the health holds that up.
    halt: AtomicBool,
    /// Held by whoever writes down the contact.
    pen: Mutex<()>,
}

impl<'a> Service<'a> {
    fn open(
        config: &'a Config,
        pace: &'a Pace,
        brake: &'a Arc<AtomicBool>,
    ) -> Result<Self, String> {
        if let Some(said) = config.exposed() {
            warn(&said);
        }
        Ok(Self {
            config,
            pace,
            brake,
            identity: Identity::read(Path::new("/")),
            journal: Journal::open(&config.state_dir)?,
            controller: Controller::new(config.controllers.clone(), pace, brake),
        })
    }

    /// What marks the programs of this agent, which is not the only one where it is tested.
    fn mark(&self, what: &str) -> String {
        format!("{}#{what}", self.config.state_dir.display())
    }

    /// Asks until it is known which node this is. None: the brake was set.
    fn enroll(&self) -> Option<Known> {
        let mut pauses = self.pace.pauses();
        let mut told = String::new();
        loop {
            let (said, wait) = match self.enroll_once() {
                Ok(known) => {
                    say(&format!("this is {}", known.node.node));
                    self.note_refused(&known.refused);
                    return Some(known);
                }
                Err(Outside::Again(said)) => (said, scattered(pauses.step())),
                Err(Outside::Refused(said)) => (said, self.pace.rare),
            };
            if said != told {
                say(&format!("not enrolled: {said}"));
                let trouble = format!("not enrolled: {said}");
                let _ = self.journal.keep_contact(&Contact { trouble, ..Contact::default() });
                told = said;
            }
            if Patience::new(Duration::MAX, self.brake).sleep(wait).is_err() {
                return None;
            }
        }
    }

    /// Says once that the token which is there is of no use, and keeps it for whoever looks.
    fn note_refused(&self, refused: &str) {
        let contact = self.journal.contact().ok().flatten().unwrap_or_default();
        if contact.refused == refused {
            return;
        }
        if !refused.is_empty() {
            say(&format!("{refused}; {}", status::SERVED));
        }
        let refused = refused.to_owned();
        let _ = self.journal.keep_contact(&Contact { refused, ..contact });
    }

    fn serve(&self, known: Known) -> Result<Served, String> {
        let Known { node, refused } = known;
        let session = SecretString::from(node.session.as_str());
        let life = Life {
            service: self,
            node: &node,
            session,
            board: Board::new(refused),
            halt: AtomicBool::new(false),
            pen: Mutex::default(),
        };
        thread::scope(|scope| {
            scope.spawn(|| life.run_heartbeats());
            scope.spawn(|| life.run_looks());
            let served = life.run_tasks();
            life.halt.store(true, Ordering::Relaxed);
            life.board.end();
            served
        })
    }
}

impl Life<'_> {
    fn over(&self) -> bool {
        self.board.over() || self.service.brake.load(Ordering::Relaxed)
    }
}
