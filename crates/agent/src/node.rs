//! The agent of a node in service: it enrolls once, sends heartbeats, takes tasks, executes them
//! and reports their results.
//!
//! The agent and Farrier may be killed at any point. So the agent writes everything that it must
//! remember to its state directory before it acts on it (`journal`), and every request can be
//! repeated (`controller`). There is no orderly shutdown, because none could be relied on.
//!
//! `enroll` obtains the node's identity, `heartbeat` sends heartbeats, `tasks` takes and reports
//! tasks and `task_execution` executes them; `uninstall` removes the agent. `hook`, `gpu` and
//! `scratch` do the work on the node, `program` runs programs, `deadline` limits every wait, and
//! `shared_state` is the state that the threads share.

pub mod config;
mod controller;
mod deadline;
mod enroll;
mod gpu;
mod health;
mod heartbeat;
mod hook;
mod identity;
mod journal;
mod log;
mod program;
mod scratch;
mod shared_state;
mod status;
mod task_execution;
mod tasks;
pub mod timing;
mod uninstall;

use crate::console::{print_line, print_warning};
use crate::http::TlsFiles;
pub use config::Config;
use controller::Controller;
use deadline::Deadline;
use enroll::{EnrollFailure, EnrolledNode};
use identity::Identity;
use journal::{Contact, Journal, NodeIdentity};
use secrecy::SecretString;
use shared_state::SharedState;
pub use status::{Status, TaskStage, TaskStatus, status};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use tasks::ServiceEnd;
pub use timing::Timing;
use timing::with_jitter;

/// The systemd unit of the agent.
pub const UNIT: &str = include_str!("../../../deploy/farrier-agent.service");
/// The unit's line with the program to run.
const RUN: &str = "ExecStart=";

/// The unit for this standalone agent, which is at this path.
pub fn unit(program: &str) -> String {
    let line = |line: &str| match line.starts_with(RUN) {
        true => format!("{RUN}{program} node run --config {}\n", config::DEFAULT_PATH),
        false => format!("{line}\n"),
    };
    UNIT.lines().map(line).collect()
}

/// Attempts of `enroll` when no controller answers.
const ENROLL_TRIES: u32 = 3;

/// The end of `run`, apart from a kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentEnd {
    /// The agent has uninstalled itself.
    Uninstalled,
    /// The stop flag was set.
    Stopped,
}

/// The reason why the agent is not enrolled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotEnrolled {
    /// No controller answered in time; a retry may succeed.
    Unreachable(String),
    /// An operator must act first.
    Refused(String),
}

/// Runs the agent until it has uninstalled itself or the stop flag is set. An error means that its
/// state cannot be stored.
pub fn run(config: &Config, timing: &Timing, stop: &Arc<AtomicBool>) -> Result<AgentEnd, String> {
    let service = Service::open(config, timing, stop)?;
    // Programs that a previous process of this agent started have no owner now.
    ["task", "health"].iter().for_each(|what| program::kill_marked(&service.mark(what)));
    // Each iteration is one enrollment.
    loop {
        if let Some(leaving) = service.journal.uninstall_marker()? {
            service.uninstall(&leaving)?;
            return Ok(AgentEnd::Uninstalled);
        }
        let Some(known) = service.enroll() else { return Ok(AgentEnd::Stopped) };
        match service.serve(known)? {
            ServiceEnd::Stopped => return Ok(AgentEnd::Stopped),
            ServiceEnd::Uninstall | ServiceEnd::Reenroll => {}
        }
    }
}

/// Enrolls, and returns the node's name. An enrolled node stays as it is.
pub fn enroll(config: &Config, timing: &Timing) -> Result<String, NotEnrolled> {
    let stop_flag = Arc::new(AtomicBool::new(false));
    let service = Service::open(config, timing, &stop_flag).map_err(NotEnrolled::Refused)?;
    let mut backoff = timing.backoff();
    let mut tries = 1;
    loop {
        match service.enroll_once() {
            Ok(EnrolledNode { node, refused }) if refused.is_empty() => return Ok(node.node),
            Ok(EnrolledNode { node, refused }) => {
                let message = format!("{refused}; this is still {}", node.node);
                return Err(NotEnrolled::Refused(message));
            }
            Err(EnrollFailure::Refused(message)) => return Err(NotEnrolled::Refused(message)),
            Err(EnrollFailure::Retryable(message)) if tries == ENROLL_TRIES => {
                return Err(NotEnrolled::Unreachable(message));
            }
            Err(EnrollFailure::Retryable(_)) => thread::sleep(with_jitter(backoff.next_delay())),
        }
        tries += 1;
    }
}

/// The constants of a running agent.
struct Service<'a> {
    config: &'a Config,
    timing: &'a Timing,
    stop_flag: &'a Arc<AtomicBool>,
    identity: Identity,
    journal: Journal,
    controller: Controller,
}

/// The service of one enrollment.
struct EnrolledService<'a> {
    service: &'a Service<'a>,
    node: &'a NodeIdentity,
    session: SecretString,
    shared: SharedState,
    /// Set at the end, so that no health check delays it.
    health_stop: AtomicBool,
    /// Held while the contact file is written.
    contact_lock: Mutex<()>,
}

impl<'a> Service<'a> {
    fn open(
        config: &'a Config,
        timing: &'a Timing,
        stop_flag: &'a Arc<AtomicBool>,
    ) -> Result<Self, String> {
        if let Some(message) = config.exposed_token_warning() {
            print_warning(&message);
        }
        let tls = config.tls.as_ref().map(TlsFiles::load).transpose()?;
        Ok(Self {
            config,
            timing,
            stop_flag,
            identity: Identity::read(Path::new("/")),
            journal: Journal::open(&config.state_dir)?,
            controller: Controller::new(config.controllers.clone(), tls, timing, stop_flag),
        })
    }

    /// The mark of this agent's programs. Tests run several agents on one computer.
    fn mark(&self, what: &str) -> String {
        format!("{}#{what}", self.config.state_dir.display())
    }

    /// Retries until the agent is enrolled. None: the stop flag was set.
    fn enroll(&self) -> Option<EnrolledNode> {
        let mut backoff = self.timing.backoff();
        let mut reported = String::new();
        loop {
            let (message, wait) = match self.enroll_once() {
                Ok(known) => {
                    print_line(&format!("this is {}", known.node.node));
                    self.store_refused_token(&known.refused);
                    return Some(known);
                }
                Err(EnrollFailure::Retryable(message)) => {
                    (message, with_jitter(backoff.next_delay()))
                }
                Err(EnrollFailure::Refused(message)) => (message, self.timing.rare),
            };
            if message != reported {
                print_line(&format!("not enrolled: {message}"));
                let failure = format!("not enrolled: {message}");
                let _ =
                    self.journal.store_contact(&Contact { trouble: failure, ..Contact::default() });
                reported = message;
            }
            if Deadline::new(Duration::MAX, self.stop_flag).sleep(wait).is_err() {
                return None;
            }
        }
    }

    /// Prints once that the current token is refused, and stores the reason for `status`.
    fn store_refused_token(&self, refused: &str) {
        let contact = self.journal.contact().ok().flatten().unwrap_or_default();
        if contact.refused == refused {
            return;
        }
        if !refused.is_empty() {
            print_line(&format!("{refused}; {}", status::SERVED));
        }
        let refused = refused.to_owned();
        let _ = self.journal.store_contact(&Contact { refused, ..contact });
    }

    fn serve(&self, known: EnrolledNode) -> Result<ServiceEnd, String> {
        let EnrolledNode { node, refused } = known;
        let session = SecretString::from(node.session.as_str());
        let enrolled_service = EnrolledService {
            service: self,
            node: &node,
            session,
            shared: SharedState::new(refused),
            health_stop: AtomicBool::new(false),
            contact_lock: Mutex::default(),
        };
        thread::scope(|scope| {
            scope.spawn(|| enrolled_service.run_heartbeats());
            scope.spawn(|| enrolled_service.run_health_checks());
            let served = enrolled_service.run_tasks();
            enrolled_service.health_stop.store(true, Ordering::Relaxed);
            enrolled_service.shared.finish();
            served
        })
    }
}

impl EnrolledService<'_> {
    fn has_ended(&self) -> bool {
        self.shared.has_ended() || self.service.stop_flag.load(Ordering::Relaxed)
    }
}
