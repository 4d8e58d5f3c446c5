//! The door for agents: they enroll with a token, are heard, take what is to be done on their
//! nodes, and report.
//!
//! A token is made of its node and this installation's secret, so every replica can give it out
//! again and nobody finds it in the database. An agent that asks for work is kept waiting until
//! there is some: who puts a task into the queue here pokes it at once, and one that was put there
//! by another replica is found a little later.

use super::tasks::{Report, has_task, renew_task, report_task, take_task};
use super::{NodeWork, create_run, no_node, taken, whose};
use crate::Engine;
use crate::admission::{Created, event, no_machine};
use crate::node::Nodes;
use crate::secret::{SecretStore, checksum};
use model::here;
use model::id::{MachineId, NodeId, RunId};
use model::machine::admit::admit;
use model::node::enroll::{Applicant, Denied, MAX_TOKEN_LIFE, Ticket};
use model::node::task::{Task, Then};
use model::node::{Agent, Node, NodeState, Stage};
use model::plan::{Params, RunType};
use model::refusal::Refusal;
use model::run::act::Who;
use model::time::Timestamp;
use providers::Providers;
use secrecy::{ExposeSecret, SecretString};
use std::time::Duration;
use store::{Cause, Result, Tx};
use tokio::time::Instant;

/// The longest that an agent waits for work in one question.
pub const MAX_WAIT: Duration = Duration::from_secs(60);
/// How often it is looked for what another replica has put into the queue.
const LOOK: Duration = Duration::from_secs(5);

impl Nodes {
    /// There may be something to do for the agent of a node.
    pub(crate) fn poke_agent(&self, node: &NodeId) {
        self.waiting_agents().poke(node);
    }
}

/// What a person installs by hand to make a machine a node.
#[derive(Debug, Clone)]
pub struct Bundle {
    pub node: Node,
    pub token: SecretString,
    pub expires_at: Timestamp,
}

/// What becomes of the agent that is enrolled when another token is issued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Session {
    Ended,
    Kept,
}

/// What an agent is told when it is heard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beat {
    pub node: NodeId,
    /// Something is to be done.
    pub waiting: bool,
}

/// A task in the hands of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    pub task: Task,
    pub lease: Duration,
    /// How long it may take from now on.
    pub left: Duration,
}

type Heard<T> = Result<std::result::Result<T, Denied>>;

/// The door. It needs the secrets beside the engine: tokens are made there.
#[derive(Clone)]
pub struct Agents {
    engine: Engine,
    secrets: SecretStore,
}

impl Agents {
    pub fn new(engine: Engine, secrets: SecretStore) -> Self {
        Self { engine, secrets }
    }

    /// Makes a node that somebody brings into service by hand, with the token for it.
    pub async fn bootstrap(&self, machine: MachineId, life: Duration, who: Who) -> Result<Bundle> {
        check_life(life)?;
        let engine = &self.engine;
        let make = MakeNode {
            machine,
            node: NodeId::new(engine.now(), engine.random()),
            secrets: self.secrets.clone(),
            life,
            who,
            now: engine.now(),
        };
        let made = engine.store().retry_write("make_node", make, |make, tx| Box::pin(make.run(tx)));
        let (node, ticket) = made.await?;
        Ok(self.bundle(node, &ticket))
    }

    fn bundle(&self, node: Node, ticket: &Ticket) -> Bundle {
        let token = self.secrets.token_of_ticket(ticket);
        Bundle { node, token, expires_at: ticket.expires_at }
    }

    /// Issues another token for a node, in place of the one before. Who speaks for the node until
    /// now does so no longer, unless that is to be kept until the token is used.
    pub async fn issue(
        &self,
        node: &NodeId,
        life: Duration,
        kept: Session,
        who: Who,
    ) -> Result<Bundle> {
        check_life(life)?;
        let engine = &self.engine;
        let (node, secrets, now) = (node.clone(), self.secrets.clone(), engine.now());
        let issue = Issue { node, secrets, life, kept, who, now };
        let issued =
            engine.store().retry_write("issue_token", issue, |issue, tx| Box::pin(issue.run(tx)));
        let (node, ticket) = issued.await?;
        Ok(self.bundle(node, &ticket))
    }

    /// Lets an agent in.
    pub async fn enroll(&self, token: &str, applicant: Applicant) -> Heard<NodeId> {
        let engine = &self.engine;
        let who = Applicant { session: checksum(&applicant.session), ..applicant };
        let enroll = Enroll {
            token: checksum(token),
            who,
            providers: engine.providers().clone(),
            run: RunId::new(engine.now(), engine.random()),
            now: engine.now(),
        };
        engine.admit("enroll", None, enroll, |enroll, tx| Box::pin(enroll.run(tx))).await
    }

    /// An agent is heard, with what it complains of.
    pub async fn heartbeat(&self, session: &str, problems: String) -> Heard<Beat> {
        let engine = &self.engine;
        let input = (checksum(session), problems, engine.now());
        let heard = engine.store().retry_write(
            "record_heartbeat",
            input,
            |(session, problems, now), tx| Box::pin(hear(tx, session, problems, *now)),
        );
        let heard = heard.await?;
        if heard.is_ok() {
            metrics::counter!("farrier_heartbeats_total").increment(1);
        }
        Ok(heard)
    }

    /// What an agent is to do, waiting for it for a while.
    pub async fn take(&self, session: &str, wait: Duration) -> Heard<Option<Taken>> {
        let engine = &self.engine;
        let session = checksum(session);
        let until = Instant::now() + wait.min(MAX_WAIT);
        let speaks =
            engine.store().read(session.clone(), |session, tx| Box::pin(speaker(tx, session)));
        let node = match speaks.await? {
            Ok(node) => node,
            Err(denied) => return Ok(Err(denied)),
        };
        let poked = engine.nodes().waiting_agents().of(&node);
        let taken = loop {
            // Most of the time there is nothing: looking for it costs the writer nothing.
            let found =
                engine.store().read(session.clone(), |session, tx| Box::pin(has_task(tx, session)));
            let taken = match found.await? {
                Ok(true) => {
                    let input = (session.clone(), engine.now());
                    let taken =
                        engine.store().retry_write("take_task", input, |(session, now), tx| {
                            Box::pin(take_task(tx, session, *now))
                        });
                    taken.await?
                }
                Ok(false) => Ok(None),
                Err(denied) => Err(denied),
            };
            let over = Instant::now() >= until || engine.is_stopping();
            match taken {
                Ok(None) if !over => {
                    let next = until.min(Instant::now() + LOOK);
                    tokio::select! {
                        () = poked.notified() => {}
                        () = tokio::time::sleep_until(next) => {}
                        () = engine.stopped() => {}
                    }
                }
                other => break other,
            }
        };
        engine.nodes().waiting_agents().leave(&node, &poked);
        Ok(taken)
    }

    /// An agent is still at work, and says this.
    pub async fn renew(&self, session: &str, key: &str, log: String) -> Heard<Then> {
        let engine = &self.engine;
        let input = (checksum(session), key.to_string(), log, engine.now());
        engine
            .store()
            .retry_write("renew_task", input, |(session, key, log, now), tx| {
                Box::pin(renew_task(tx, session, key, log, *now))
            })
            .await
    }

    /// An agent has come to an end with its task.
    pub async fn report(&self, session: &str, report: Report) -> Heard<()> {
        let engine = &self.engine;
        let end = if report.ok { "done" } else { "failed" };
        let input = (checksum(session), report, engine.now());
        let heard =
            engine.store().retry_write("report_task", input, |(session, report, now), tx| {
                Box::pin(report_task(tx, session, report, *now))
            });
        let heard = heard.await?;
        if let Ok(Some(kind)) = heard {
            metrics::counter!("farrier_node_tasks_total", "kind" => kind.as_str(), "end" => end)
                .increment(1);
        }
        Ok(heard.map(drop))
    }
}

fn check_life(life: Duration) -> Result<()> {
    if life.is_zero() || life > MAX_TOKEN_LIFE {
        let most = model::time::spoken(MAX_TOKEN_LIFE);
        let problem = format!("is {}", model::time::spoken(life));
        let instead = format!("use 1s to {most}");
        return Err(Refusal::invalid("expires_in_seconds", problem, instead).into());
    }
    Ok(())
}

struct MakeNode {
    machine: MachineId,
    node: NodeId,
    secrets: SecretStore,
    life: Duration,
    who: Who,
    now: Timestamp,
}

impl MakeNode {
    async fn run(&self, tx: &mut Tx) -> Result<(Node, Ticket)> {
        let id = &self.machine;
        let machine = tx.machine_locked(id).await?.ok_or_else(|| no_machine(id))?;
        if let Some(node) = tx.node_on(id).await? {
            return Err(taken(id, &node).into());
        }
        // Whoever enrolls later must find the gate open: better said now, to who can open it.
        admit(&machine, RunType::Onboard, &[])?;
        let mut node = Node::new(&self.node, id, NodeState::BootstrapIssued, self.now);
        node.head.labels = super::labels(&node);
        let message = format!("a bundle is issued for {id}");
        let event = event(Cause::Request, &self.who.by, message, here!(), self.now);
        tx.place_node(&self.node, id, None)?;
        tx.insert_record(&mut node, &event).await?;
        let ticket = issue(tx, &self.secrets, &self.node, self.now, self.life)?;
        Ok((node, ticket))
    }
}

/// Issues a token for a node. The time tells it from any before.
pub(crate) fn issue(
    tx: &mut Tx,
    secrets: &SecretStore,
    node: &NodeId,
    now: Timestamp,
    life: Duration,
) -> Result<Ticket> {
    let (node, expires_at) = (node.clone(), now + life);
    let ticket = Ticket { node, issued_at: now, expires_at, used_by: None };
    tx.issue(&ticket, &checksum(secrets.token_of_ticket(&ticket).expose_secret()))?;
    Ok(ticket)
}

struct Issue {
    node: NodeId,
    secrets: SecretStore,
    life: Duration,
    kept: Session,
    who: Who,
    now: Timestamp,
}

impl Issue {
    async fn run(&self, tx: &mut Tx) -> Result<(Node, Ticket)> {
        let found = tx.record_locked::<Node>(self.node.as_str()).await?;
        let mut node = found.ok_or_else(|| no_node(&self.node))?;
        if node.state == NodeState::Deleted {
            let said = format!("{} is deleted, and never comes back", self.node);
            return Err(Refusal::precondition("NODE_DELETED", said).into());
        }
        let message = match self.kept {
            // Who asks for another token may do so because the session is in the wrong hands.
            Session::Ended => {
                tx.forget_agent(&self.node)?;
                "a token is issued, in place of any before; who has enrolled must enroll again"
            }
            Session::Kept => "a token is issued, in place of any before; who has enrolled is kept",
        };
        let ticket = issue(tx, &self.secrets, &self.node, self.now, self.life)?;
        let message = message.to_string();
        let event = event(Cause::Request, &self.who.by, message, here!(), self.now);
        tx.update_record(&mut node, &event)?;
        Ok((node, ticket))
    }
}

struct Enroll {
    token: String,
    who: Applicant,
    providers: Providers,
    /// The run that sees a node through that is brought into service by hand.
    run: RunId,
    now: Timestamp,
}

impl Enroll {
    async fn run(&self, tx: &mut Tx) -> Result<(std::result::Result<NodeId, Denied>, Created)> {
        let mut created = Created::default();
        let enrolled = self.enroll(tx, &mut created).await?;
        Ok((enrolled, created))
    }

    async fn enroll(&self, tx: &mut Tx, created: &mut Created) -> Heard<NodeId> {
        let Some(ticket) = tx.ticket(&self.token).await? else {
            return Ok(Err(Denied::TokenUnknown));
        };
        let id = ticket.node.clone();
        // The node before what is beside it, as everywhere; and then the ticket once more, as it is
        // now.
        let found = tx.record_locked::<Node>(id.as_str()).await?;
        let Some(ticket) = tx.ticket(&self.token).await? else {
            return Ok(Err(Denied::TokenUnknown));
        };
        let Some(mut node) = found.filter(|node| node.state != NodeState::Deleted) else {
            return Ok(Err(Denied::NodeDeleted));
        };
        let Some(machine) = tx.machine_locked(&node.machine).await? else {
            return Ok(Err(Denied::NodeDeleted));
        };
        let used = match ticket.admit(&self.who, &machine.spec, self.now) {
            Ok(used) => used,
            Err(denied) => return Ok(Err(denied)),
        };
        if used == ticket {
            return Ok(Ok(id));
        }
        let Applicant { session, hostname, serial, version, .. } = &self.who;
        tx.enroll(&used, session)?;
        node.agent = Some(Agent {
            hostname: hostname.clone(),
            version: version.clone(),
            serial: serial.clone(),
            enrolled_at: self.now,
        });
        let message = format!("the agent on {hostname:?} has enrolled");
        let event = event(Cause::Request, &id.to_string(), message, here!(), self.now);
        // What was brought into service by hand is seen through from here on.
        if node.state == NodeState::BootstrapIssued {
            let whose = whose(tx, &node, &machine, &self.providers).await?;
            let work = NodeWork {
                id: self.run.clone(),
                run_type: RunType::Onboard,
                stages: vec![Stage::WaitForAgentEnrollment],
                uncordons: false,
                params: Params::new(),
                request_id: self.run.to_string(),
                by: id.to_string(),
            };
            let run = work.run(&node, &whose, self.now);
            let run = create_run(tx, created, &machine, run, (None, &event)).await?;
            node.workflow = Some(run.spec.id);
            let why = "an agent has enrolled";
            let owner = model::node::Owner::Admin;
            let (version, since) = (node.head.version, self.now);
            node = node.become_(NodeState::Enrolling, owner, why)?;
            node.head.version = version;
            node.head.since = since;
        }
        tx.update_and_enqueue(&mut node, &event)?;
        wake_workflow(tx, &node, self.now)?;
        Ok(Ok(id))
    }
}

/// Whoever waits for the agent of a node hears of it.
fn wake_workflow(tx: &mut Tx, node: &Node, now: Timestamp) -> Result<()> {
    match &node.workflow {
        Some(run) => tx.wake(&run.object(), now),
        None => Ok(()),
    }
}

/// The node whose agent shows this session, while it lives.
pub(super) async fn speaker(
    tx: &mut Tx,
    session: &str,
) -> Result<std::result::Result<NodeId, Denied>> {
    Ok(tx.node_of_session(session).await?.ok_or(Denied::SessionUnknown))
}

async fn hear(tx: &mut Tx, session: &str, problems: &str, now: Timestamp) -> Heard<Beat> {
    let node = match speaker(tx, session).await? {
        Ok(node) => node,
        Err(denied) => return Ok(Err(denied)),
    };
    let first = tx.last_heartbeat(&node).await?.at.is_none();
    tx.record_heartbeat(&node, now, problems).await?;
    if first && let Some(known) = tx.record::<Node>(node.as_str()).await? {
        wake_workflow(tx, &known, now)?;
    }
    let waiting = tx.open_task(&node).await?.is_some();
    Ok(Ok(Beat { node, waiting }))
}
