//! The API for agents: enroll with a token, send heartbeats, take tasks, and report.
//!
//! A token is derived from its node and this installation's secret, so every replica can issue it
//! again and the database does not contain it. An agent long-polls for tasks: a task enqueued on
//! this replica wakes it at once, one enqueued on another replica is found by polling.

use super::tasks::{TaskReport, has_task, renew_task, report_task, take_task};
use super::{NewNodeRun, create_run, load_stage_target, no_node, taken};
use crate::Engine;
use crate::admission::{Created, event, lock_machine};
use crate::node::Nodes;
use crate::secret::{SecretStore, checksum};
use model::gate::Overrides;
use model::here;
use model::id::{MachineId, NodeId, RunId};
use model::machine::admit::RunCase;
use model::node::enroll::{EnrollingAgent, EnrollmentRefusal, EnrollmentToken, MAX_TOKEN_LIFE};
use model::node::task::{Task, TaskInstruction};
use model::node::{Agent, Node, NodeStage, NodeState};
use model::plan::{Params, RunType};
use model::refusal::{Reason, Refusal};
use model::run::actions::Requester;
use model::time::Timestamp;
use providers::Providers;
use secrecy::{ExposeSecret, SecretString};
use std::sync::Arc;
use std::time::Duration;
use store::{AuditDraft, Cause, Result, Tx};
use tokio::time::Instant;

/// The limit of one long poll for a task.
pub const MAX_WAIT: Duration = Duration::from_secs(60);
/// The interval at which tasks enqueued by other replicas are found.
const TASK_POLL_INTERVAL: Duration = Duration::from_secs(5);

impl Nodes {
    /// Wakes the long poll of a node's agent.
    pub(crate) fn poke_agent(&self, node: &NodeId) {
        self.waiting_agents().poke(node);
    }
}

/// A node and the token with which an operator installs its agent by hand.
#[derive(Debug, Clone)]
pub struct Bundle {
    pub node: Node,
    pub token: SecretString,
    pub expires_at: Timestamp,
}

/// The effect of another enrollment token on the session of the enrolled agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionPolicy {
    End,
    Keep,
}

/// The answer to a heartbeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeartbeatAck {
    pub node: NodeId,
    /// A task is open.
    pub waiting: bool,
}

/// A task dispatched to an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DispatchedTask {
    pub task: Task,
    pub lease: Duration,
    /// The time until its deadline.
    pub left: Duration,
}

pub(super) type AgentResult<T> = Result<std::result::Result<T, EnrollmentRefusal>>;

/// The API for agents. Tokens are derived in the secret store.
#[derive(Clone)]
pub struct Agents {
    engine: Engine,
    secrets: SecretStore,
}

impl Agents {
    pub fn new(engine: Engine, secrets: SecretStore) -> Self {
        Self { engine, secrets }
    }

    /// The same API for a request that may be a dry run.
    #[must_use]
    pub fn with_dry_run(&self, dry_run: bool) -> Self {
        let (engine, secrets) = (&self.engine, &self.secrets);
        Self { engine: engine.with_dry_run(dry_run), secrets: secrets.with_dry_run(dry_run) }
    }

    /// The same service for a request whose first commit writes this entry of the audit log.
    #[must_use]
    pub fn with_audit(&self, audit: Option<Arc<AuditDraft>>) -> Self {
        let (engine, secrets) = (&self.engine, &self.secrets);
        Self { engine: engine.with_audit(audit.clone()), secrets: secrets.with_audit(audit) }
    }

    /// Creates a node that an operator brings into service by hand, with its token.
    pub async fn bootstrap(
        &self,
        machine: MachineId,
        scenario: Duration,
        who: Requester,
    ) -> Result<Bundle> {
        check_token_lifetime(scenario)?;
        let engine = &self.engine;
        let make = MakeNode {
            machine,
            node: NodeId::new(engine.now(), engine.random()),
            secrets: self.secrets.clone(),
            token_lifetime: scenario,
            who,
            now: engine.now(),
        };
        let made = engine.store().retry_write("make_node", make, |make, tx| Box::pin(make.run(tx)));
        let (node, ticket) = made.await?;
        Ok(self.bundle(node, &ticket))
    }

    fn bundle(&self, node: Node, ticket: &EnrollmentToken) -> Bundle {
        let token = self.secrets.enrollment_secret(ticket);
        Bundle { node, token, expires_at: ticket.expires_at }
    }

    /// Issues another token for a node, which replaces the one before. [`SessionPolicy`] decides
    /// whether the enrolled agent's session ends now or when the token is used.
    pub async fn issue(
        &self,
        node: &NodeId,
        scenario: Duration,
        stored: SessionPolicy,
        who: Requester,
    ) -> Result<Bundle> {
        check_token_lifetime(scenario)?;
        let engine = &self.engine;
        let (node, secrets, now) = (node.clone(), self.secrets.clone(), engine.now());
        let issue =
            Issue { node, secrets, token_lifetime: scenario, session_policy: stored, who, now };
        let issued =
            engine.store().retry_write("issue_token", issue, |issue, tx| Box::pin(issue.run(tx)));
        let (node, ticket) = issued.await?;
        Ok(self.bundle(node, &ticket))
    }

    pub async fn enroll(&self, token: &str, applicant: EnrollingAgent) -> AgentResult<NodeId> {
        let engine = &self.engine;
        let who = EnrollingAgent { session: checksum(&applicant.session), ..applicant };
        let token = checksum(token);
        let known = engine
            .store()
            .read_one(token.clone(), |token, tx| Box::pin(tx.enrollment_token(token)));
        if known.await?.is_none() {
            return Ok(Err(EnrollmentRefusal::TokenUnknown));
        }
        let enroll = Enroll {
            token,
            who,
            providers: engine.providers().clone(),
            run: RunId::new(engine.now(), engine.random()),
            now: engine.now(),
        };
        engine.admit("enroll", None, enroll, |enroll, tx| Box::pin(enroll.run(tx))).await
    }

    /// The checksum of a session, if it is known. This is a read: a request with an unknown
    /// session must not take part in a write.
    async fn known_session(&self, session: &str) -> AgentResult<String> {
        let session = checksum(session);
        let known = self
            .engine
            .store()
            .read_one(session.clone(), |session, tx| Box::pin(node_of_session(tx, session)));
        Ok(known.await?.map(|_| session))
    }

    /// Records a heartbeat with the problems that the agent reports.
    pub async fn heartbeat(&self, session: &str, problems: String) -> AgentResult<HeartbeatAck> {
        let engine = &self.engine;
        let session = match self.known_session(session).await? {
            Ok(session) => session,
            Err(denied) => return Ok(Err(denied)),
        };
        let input = (session, problems, engine.now());
        let received = engine.store().retry_write(
            "record_heartbeat",
            input,
            |(session, problems, now), tx| Box::pin(record_heartbeat(tx, session, problems, *now)),
        );
        let received = received.await?;
        if received.is_ok() {
            metrics::counter!("farrier_heartbeats_total").increment(1);
        }
        Ok(received)
    }

    /// Takes the next task of an agent; waits for one up to `wait`.
    pub async fn take(&self, session: &str, wait: Duration) -> AgentResult<Option<DispatchedTask>> {
        let engine = &self.engine;
        let session = checksum(session);
        let until = Instant::now() + wait.min(MAX_WAIT);
        let speaks = engine
            .store()
            .read(session.clone(), |session, tx| Box::pin(node_of_session(tx, session)));
        let node = match speaks.await? {
            Ok(node) => node,
            Err(denied) => return Ok(Err(denied)),
        };
        let poked = engine.nodes().waiting_agents().of(&node);
        let taken = loop {
            // Usually there is no task, and a read costs no write lock.
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
                    let next = until.min(Instant::now() + TASK_POLL_INTERVAL);
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

    /// Renews the lease of a task and appends to its log.
    pub async fn renew(
        &self,
        session: &str,
        key: &str,
        log: String,
    ) -> AgentResult<TaskInstruction> {
        let engine = &self.engine;
        let session = match self.known_session(session).await? {
            Ok(session) => session,
            Err(denied) => return Ok(Err(denied)),
        };
        let input = (session, key.to_string(), log, engine.now());
        engine
            .store()
            .retry_write("renew_task", input, |(session, key, log, now), tx| {
                Box::pin(renew_task(tx, session, key, log, *now))
            })
            .await
    }

    /// Records the end of a task.
    pub async fn report(&self, session: &str, report: TaskReport) -> AgentResult<()> {
        let engine = &self.engine;
        let end = if report.ok { "done" } else { "failed" };
        let session = match self.known_session(session).await? {
            Ok(session) => session,
            Err(denied) => return Ok(Err(denied)),
        };
        let input = (session, report, engine.now());
        let heartbeat =
            engine.store().retry_write("report_task", input, |(session, report, now), tx| {
                Box::pin(report_task(tx, session, report, *now))
            });
        let heartbeat = heartbeat.await?;
        if let Ok(Some(kind)) = heartbeat {
            metrics::counter!("farrier_node_tasks_total", "kind" => kind.as_str(), "end" => end)
                .increment(1);
        }
        Ok(heartbeat.map(drop))
    }
}

fn check_token_lifetime(scenario: Duration) -> Result<()> {
    if scenario.is_zero() || scenario > MAX_TOKEN_LIFE {
        let most = model::time::format_duration(MAX_TOKEN_LIFE);
        let problem = format!("is {}", model::time::format_duration(scenario));
        let instead = format!("use 1s to {most}");
        return Err(Refusal::invalid("expires_in_seconds", problem, instead).into());
    }
    Ok(())
}

struct MakeNode {
    machine: MachineId,
    node: NodeId,
    secrets: SecretStore,
    token_lifetime: Duration,
    who: Requester,
    now: Timestamp,
}

impl MakeNode {
    async fn run(&self, tx: &mut Tx) -> Result<(Node, EnrollmentToken)> {
        let id = &self.machine;
        let machine = lock_machine(tx, id, self.now).await?;
        if let Some(node) = tx.live_node_of_machine(id).await? {
            return Err(taken(id, &node).into());
        }
        // Check the gate now, while the operator can act on a refusal, not when the agent enrolls.
        let run_type = RunType::Onboard;
        RunCase { machine: &machine, node: None, run_type, steps: &[] }
            .admit(&Overrides::default())?;
        let mut node = Node::new(&self.node, id, NodeState::BootstrapIssued, self.now);
        node.head.labels = super::labels(&node);
        let message = format!("a bundle is issued for {id}");
        let event = event(Cause::Request, &self.who.by, message, here!(), self.now);
        tx.attach_node(&self.node, id, None)?;
        tx.insert_record(&mut node, &event).await?;
        let ticket = issue(tx, &self.secrets, &self.node, self.now, self.token_lifetime)?;
        Ok((node, ticket))
    }
}

/// Issues a token for a node. The issue time makes it different from earlier tokens.
pub(crate) fn issue(
    tx: &mut Tx,
    secrets: &SecretStore,
    node: &NodeId,
    now: Timestamp,
    scenario: Duration,
) -> Result<EnrollmentToken> {
    let (node, expires_at) = (node.clone(), now + scenario);
    let ticket = EnrollmentToken { node, issued_at: now, expires_at, used_by: None };
    tx.issue_enrollment_token(
        &ticket,
        &checksum(secrets.enrollment_secret(&ticket).expose_secret()),
    )?;
    Ok(ticket)
}

struct Issue {
    node: NodeId,
    secrets: SecretStore,
    token_lifetime: Duration,
    session_policy: SessionPolicy,
    who: Requester,
    now: Timestamp,
}

impl Issue {
    async fn run(&self, tx: &mut Tx) -> Result<(Node, EnrollmentToken)> {
        let found = tx.record_locked::<Node>(self.node.as_str()).await?;
        let mut node = found.ok_or_else(|| no_node(&self.node))?;
        if node.state == NodeState::Deleted {
            let text = format!("{} is deleted, and never comes back", self.node);
            return Err(Refusal::new(Reason::NodeDeleted, text).into());
        }
        let message = match self.session_policy {
            // The session may be compromised: that may be why another token is requested.
            SessionPolicy::End => {
                tx.revoke_agent(&self.node)?;
                node.revoke_session(self.now);
                "a token is issued, in place of any before; who has enrolled must enroll again"
            }
            SessionPolicy::Keep => {
                "a token is issued, in place of any before; who has enrolled is kept"
            }
        };
        let ticket = issue(tx, &self.secrets, &self.node, self.now, self.token_lifetime)?;
        let message = message.to_string();
        let event = event(Cause::Request, &self.who.by, message, here!(), self.now);
        tx.update_record(&mut node, &event)?;
        Ok((node, ticket))
    }
}

struct Enroll {
    token: String,
    who: EnrollingAgent,
    providers: Providers,
    /// The onboarding run of a node that is brought into service by hand.
    run: RunId,
    now: Timestamp,
}

impl Enroll {
    async fn run(
        &self,
        tx: &mut Tx,
    ) -> Result<(std::result::Result<NodeId, EnrollmentRefusal>, Created)> {
        let mut created = Created::default();
        let enrolled = self.enroll(tx, &mut created).await?;
        Ok((enrolled, created))
    }

    async fn enroll(&self, tx: &mut Tx, created: &mut Created) -> AgentResult<NodeId> {
        let Some(ticket) = tx.enrollment_token(&self.token).await? else {
            return Ok(Err(EnrollmentRefusal::TokenUnknown));
        };
        let id = ticket.node.clone();
        // Lock the node before its other rows, as everywhere, then read the enrollment token again.
        let found = tx.record_locked::<Node>(id.as_str()).await?;
        let Some(ticket) = tx.enrollment_token(&self.token).await? else {
            return Ok(Err(EnrollmentRefusal::TokenUnknown));
        };
        let Some(mut node) = found.filter(|node| node.state != NodeState::Deleted) else {
            return Ok(Err(EnrollmentRefusal::NodeDeleted));
        };
        let Some(machine) = tx.machine_locked(&node.machine).await? else {
            return Ok(Err(EnrollmentRefusal::NodeDeleted));
        };
        let used = match ticket.admit(&self.who, &machine.spec, self.now) {
            Ok(used) => used,
            Err(denied) => return Ok(Err(denied)),
        };
        if used == ticket {
            return Ok(Ok(id));
        }
        let EnrollingAgent { session, hostname, serial, version, .. } = &self.who;
        tx.enroll(&used, session)?;
        node.agent = Some(Agent {
            hostname: hostname.clone(),
            version: version.clone(),
            serial: serial.clone(),
            enrolled_at: self.now,
            session_revoked_at: None,
        });
        let message = format!("the agent on {hostname:?} has enrolled");
        let event = event(Cause::Request, &id.to_string(), message, here!(), self.now);
        // A node that was brought into service by hand gets its onboarding run now.
        if node.state == NodeState::BootstrapIssued {
            let whose = load_stage_target(tx, &node, &machine, &self.providers).await?;
            let work = NewNodeRun {
                id: self.run.clone(),
                run_type: RunType::Onboard,
                stages: vec![NodeStage::WaitForAgentEnrollment],
                uncordons: false,
                params: Params::new(),
                request_id: self.run.to_string(),
                by: id.to_string(),
            };
            let run = work.run(&node, &whose, self.now);
            let run = create_run(tx, created, &machine, run, (None, &event)).await?;
            node.workflow = Some(run.spec.id);
            let why = "an agent has enrolled";
            let owner = model::node::TransitionOwner::Admin;
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

/// Wakes the run that waits for the agent of a node.
fn wake_workflow(tx: &mut Tx, node: &Node, now: Timestamp) -> Result<()> {
    match &node.workflow {
        Some(run) => tx.wake(&run.object(), now),
        None => Ok(()),
    }
}

/// The node of an agent's session, while the session is valid.
pub(super) async fn node_of_session(tx: &mut Tx, session: &str) -> AgentResult<NodeId> {
    Ok(tx.node_of_session(session).await?.ok_or(EnrollmentRefusal::SessionUnknown))
}

async fn record_heartbeat(
    tx: &mut Tx,
    session: &str,
    problems: &str,
    now: Timestamp,
) -> AgentResult<HeartbeatAck> {
    let node = match node_of_session(tx, session).await? {
        Ok(node) => node,
        Err(denied) => return Ok(Err(denied)),
    };
    let first = tx.last_heartbeat(&node).await?.at.is_none();
    tx.record_heartbeat(&node, now, problems).await?;
    if first && let Some(known) = tx.record::<Node>(node.as_str()).await? {
        wake_workflow(tx, &known, now)?;
    }
    let waiting = tx.open_task(&node).await?.is_some();
    Ok(Ok(HeartbeatAck { node, waiting }))
}
