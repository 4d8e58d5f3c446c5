//! The stages of a node that the engine executes: in its own record, or by the agent on the node.
//!
//! A record stage is written by the commit that ends it. A task has the effect key of its attempt
//! as its id, so it is created once. The worker enqueues it, waits for it, and enqueues it again
//! when the agent becomes silent.

use crate::FaultResult;
use crate::node::Nodes;
use model::condition::{ConditionObservation, ConditionType};
use model::effect::{CallOutcome, CallVerb, Effect, EffectKey, ProviderAnswer, ProviderCall};
use model::fault::{Fault, FaultCode};
use model::id::NodeId;
use model::node::follow::has_done;
use model::node::task::{ResumeResult, Task, TaskState, TaskStatus};
use model::node::{
    AgentTaskContext, Node, NodeStage, NodeState, RecordStage, StageExecutor, TaskKind,
};
use model::run::Run;
use model::time::Timestamp;
use providers::Journal;
use std::time::Duration;
use store::{NodeHeartbeat, Result, StoreError, TaskRow, Tx};
use tokio::sync::Notify;

/// The wait for a wake-up signal before the state is read again.
const POLL: Duration = Duration::from_secs(2);
/// The delay after a conflict or a database failure.
const RETRY: Duration = Duration::from_millis(100);
/// A task ends this long before the step's deadline, so that the worker can report why.
const MARGIN: Duration = Duration::from_secs(5);

/// The stage that a worker executes.
pub(crate) struct StageContext {
    pub run: Run,
    pub stage: NodeStage,
    pub node: NodeId,
    pub limit: Duration,
    /// Signaled when the run is woken: its task has ended, or its agent has enrolled.
    pub woken_up: Notify,
}

type StageResult = FaultResult<ProviderAnswer>;

impl Nodes {
    /// Executes one provider call for a stage.
    pub(crate) async fn execute_stage(
        &self,
        work: &StageContext,
        call: &ProviderCall,
        journal: &Journal,
    ) -> StageResult {
        match work.stage.executor() {
            StageExecutor::Enrollment => self.enrollment(work, call, journal).await,
            StageExecutor::Task(kind) => self.task(work, kind, call, journal).await,
            StageExecutor::Record(stage) => self.record(stage, &work.node, call.verb).await,
            StageExecutor::Maas => Err(Fault::new(
                FaultCode::ProtocolBroken,
                format!("{} is a stage of MAAS, not of the engine", work.stage),
            )),
        }
    }

    async fn node_now(&self, id: &NodeId) -> FaultResult<Node> {
        let found =
            self.0.store().read(id.clone(), |id, tx| Box::pin(tx.record::<Node>(id.as_str())));
        let found = found.await.map_err(unread)?;
        found.ok_or_else(|| {
            Fault::new(FaultCode::MachineGone, format!("node {id} is not there any more"))
        })
    }

    /// A record stage: the commit that ends the stage writes it, so there is nothing to perform.
    async fn record(&self, stage: RecordStage, id: &NodeId, verb: CallVerb) -> StageResult {
        if verb == CallVerb::Stop {
            return Ok(ProviderAnswer::Stopped);
        }
        match stage {
            RecordStage::Disable => Ok(disable_answer(&self.node_now(id).await?, verb)),
            RecordStage::Retire => retire_answer(&self.node_now(id).await?, verb),
            RecordStage::CleanupSecrets => {
                let enrolled = self.has_agent(id).await.map_err(unread)?;
                Ok(cleanup_secrets_answer(id, enrolled, verb))
            }
        }
    }

    /// Waits until the agent has enrolled and has sent a heartbeat without problems since this run
    /// began.
    async fn enrollment(
        &self,
        work: &StageContext,
        call: &ProviderCall,
        journal: &Journal,
    ) -> StageResult {
        let since = work.run.spec.created_at;
        let enrolled = |message| enrolled(&call.effect, message);
        let probe = || async {
            let observed = self
                .0
                .store()
                .read(work.node.clone(), |id, tx| Box::pin(load_agent_observation(tx, id)));
            Ok::<_, Fault>(observed.await.map_err(unread)?.judged(since))
        };
        match call.verb {
            CallVerb::Observe => Ok(probe().await?.map_or_else(ProviderAnswer::Differs, enrolled)),
            CallVerb::GetStatus => {
                Ok(probe().await?.map_or(ProviderAnswer::NeverStarted, enrolled))
            }
            CallVerb::Stop => Ok(ProviderAnswer::Stopped),
            CallVerb::Perform | CallVerb::Follow => {
                let _waits = self.0.scheduler().mark_waiting();
                let until = tokio::time::Instant::now() + work.limit.saturating_sub(MARGIN);
                let mut reported = String::new();
                loop {
                    match probe().await {
                        Ok(Ok(message)) => return Ok(enrolled(message)),
                        Ok(Err(message)) if reported != message => {
                            journal.write_line(&message).await;
                            reported = message;
                        }
                        Ok(Err(_)) | Err(_) => {}
                    }
                    if tokio::time::Instant::now() >= until {
                        return Err(Fault::new(silence(&work.run), reported));
                    }
                    let _ = tokio::time::timeout(POLL, work.woken_up.notified()).await;
                }
            }
        }
    }

    /// Executes the stage as a task of the agent.
    async fn task(
        &self,
        work: &StageContext,
        kind: TaskKind,
        call: &ProviderCall,
        journal: &Journal,
    ) -> StageResult {
        match call.verb {
            CallVerb::Perform => {
                if let Some(why) = self.needless(work, &call.key).await? {
                    journal.write_line(&why).await;
                    return Ok(done(why));
                }
                let task = self.new_task(work, kind, &call.key);
                let there = self.enqueue_task(task).await?;
                if there.state == TaskState::Stopped {
                    let message = format!("{} was stopped before it began", call.key);
                    return Err(Fault::new(FaultCode::EffectFailed, message));
                }
                self.poke_agent(&work.node);
                self.wait_for_task(work, call, journal).await
            }
            CallVerb::Follow => self.wait_for_task(work, call, journal).await,
            CallVerb::GetStatus => Ok(match self.task_now(&call.key).await? {
                None => ProviderAnswer::NeverStarted,
                Some(task) => match task.state {
                    // Following it returns its end, and for a failure the reason.
                    TaskState::Queued | TaskState::Dispatched | TaskState::Failed => {
                        ProviderAnswer::UnderWay
                    }
                    TaskState::Done => done(task.message),
                    TaskState::Stopped => ProviderAnswer::NeverStarted,
                },
            }),
            CallVerb::Observe => {
                let message = format!("only the agent of {} can say, by doing it", work.node);
                Ok(ProviderAnswer::Differs(message))
            }
            CallVerb::Stop => {
                let task =
                    Task { state: TaskState::Stopped, ..self.new_task(work, kind, &call.key) };
                let task = self.bar(task).await?;
                self.poke_agent(&work.node);
                Ok(match task.state {
                    TaskState::Done => done(task.message),
                    TaskState::Stopped if task.may_still_run(self.0.now()) => {
                        ProviderAnswer::UnderWay
                    }
                    TaskState::Queued
                    | TaskState::Dispatched
                    | TaskState::Failed
                    | TaskState::Stopped => ProviderAnswer::Stopped,
                })
            }
        }
    }

    /// The reason why the stage needs no task. A task that exists already is waited for.
    async fn needless(&self, work: &StageContext, key: &EffectKey) -> FaultResult<Option<String>> {
        if self.task_now(key).await?.is_some() {
            return Ok(None);
        }
        let id = &work.node;
        let requested = AgentTaskContext {
            run: &work.run,
            state: self.node_now(id).await?.state,
            has_agent: self.has_agent(id).await.map_err(unread)?,
            agent_answers: self.agent_answers(id).await.map_err(unread)?,
            released: has_done(&work.run, NodeStage::ReleaseMaasNode),
        };
        Ok(requested.skip_reason(work.stage))
    }

    /// Enqueues a task. While the database does not confirm, it repeats with the same key: another
    /// key could run the task twice. The deadline of the step ends it.
    async fn enqueue_task(&self, task: Task) -> FaultResult<Task> {
        loop {
            let desired = self.0.store().retry_write("insert_task", task.clone(), |task, tx| {
                Box::pin(insert_task(tx, task))
            });
            match desired.await {
                Err(StoreError::Unavailable(_)) => tokio::time::sleep(RETRY).await,
                done => return done.map_err(unread),
            }
        }
    }

    /// Stops a task, or bars its key if it was never enqueued.
    async fn bar(&self, task: Task) -> FaultResult<Task> {
        let stopped =
            self.0.store().retry_write("stop_task", task, |task, tx| Box::pin(stop_task(tx, task)));
        stopped.await.map_err(unread)
    }

    pub(super) async fn has_agent(&self, id: &NodeId) -> Result<bool> {
        self.0.store().read(id.clone(), |id, tx| Box::pin(tx.has_agent(id))).await
    }

    /// True if the agent has sent a heartbeat within the limit of silence.
    pub(super) async fn agent_answers(&self, id: &NodeId) -> Result<bool> {
        let last = self.0.store().read(id.clone(), |id, tx| Box::pin(tx.last_heartbeat(id)));
        let (last, now) = (last.await?.at, self.0.now());
        let silence = self.0.settings().nodes.heartbeat_limits.silence;
        Ok(last.is_some_and(|at| now.since(at) <= silence))
    }

    fn new_task(&self, work: &StageContext, kind: TaskKind, key: &EffectKey) -> Task {
        let now = self.0.now();
        Task {
            key: key.clone(),
            node: work.node.clone(),
            run: work.run.spec.id.clone(),
            kind,
            params: [("node".to_string(), work.node.to_string())].into(),
            state: TaskState::Queued,
            lease_until: None,
            dispatched: 0,
            deadline: now + work.limit.saturating_sub(MARGIN),
            message: String::new(),
            log: String::new(),
            created_at: now,
        }
    }

    async fn task_now(&self, key: &EffectKey) -> FaultResult<Option<Task>> {
        let found = self.0.store().read(key.clone(), |key, tx| Box::pin(tx.task(key)));
        Ok(found.await.map_err(unread)?.map(|row| row.task))
    }

    async fn wait_for_task(
        &self,
        work: &StageContext,
        call: &ProviderCall,
        journal: &Journal,
    ) -> StageResult {
        // A turn that waits must not use up a slot that other work needs.
        let _waits = self.0.scheduler().mark_waiting();
        let mut reported = usize::try_from(call.log_offset_bytes).unwrap_or(usize::MAX);
        loop {
            let Ok(found) = self.task_now(&call.key).await else {
                tokio::time::sleep(RETRY).await;
                continue;
            };
            let Some(task) = found else { return Ok(ProviderAnswer::NeverStarted) };
            reported = forward_log(&task.log, reported, journal).await;
            let now = self.0.now();
            match (task.state, task.status(now)) {
                (TaskState::Done, _) => return Ok(done(task.message)),
                (TaskState::Failed, _) => return Err(failed(&task)),
                (TaskState::Stopped, _) => {
                    return Err(Fault::new(FaultCode::EffectFailed, "it was stopped"));
                }
                (TaskState::Queued | TaskState::Dispatched, _) if now >= task.deadline => {
                    return self.too_late(work, &task).await;
                }
                (TaskState::Dispatched, TaskStatus::Stale) => {
                    let input = (call.key.clone(), now);
                    let again =
                        self.0.store().retry_write("requeue_task", input, |(key, now), tx| {
                            Box::pin(requeue_task(tx, key, *now))
                        });
                    if again.await.is_ok() {
                        journal
                            .write_line(
                                "its agent has fallen silent; the task is in the queue again",
                            )
                            .await;
                        self.poke_agent(&work.node);
                    }
                }
                (TaskState::Queued | TaskState::Dispatched, _) => {}
            }
            let _ = tokio::time::timeout(POLL, work.woken_up.notified()).await;
        }
    }

    /// The deadline has passed: stops the task and returns its result or a fault.
    async fn too_late(&self, work: &StageContext, task: &Task) -> StageResult {
        let ended = self.bar(task.stop()).await?;
        let (id, kind) = (&work.node, task.kind.as_str());
        if ended.state == TaskState::Done {
            return Ok(done(ended.message));
        }
        Err(match ended.dispatched {
            0 => {
                let message = format!("the agent of {id} did not take {kind}");
                Fault::new(FaultCode::AgentSilent, message)
            }
            _ => {
                let message = format!("{kind} did not end in its time on {id}");
                Fault::new(FaultCode::TaskFailed, message)
            }
        })
    }
}

/// The fault code when no agent appears: retryable at first; on the last attempt after an
/// installation, the system was not seeded.
fn silence(run: &Run) -> FaultCode {
    let tried_all = run.progress.current().is_some_and(|step| step.attempt >= step.max_attempt);
    let installed = has_done(run, NodeStage::WaitForDeployed);
    if tried_all && installed { FaultCode::SeedFailed } else { FaultCode::AgentSilent }
}

fn failed(task: &Task) -> Fault {
    let code = match task.kind {
        TaskKind::Validate => FaultCode::NodeNotClean,
        TaskKind::Drain
        | TaskKind::Release
        | TaskKind::Scrub
        | TaskKind::CleanupStorage
        | TaskKind::Uninstall => FaultCode::TaskFailed,
    };
    Fault::new(code, task.message.clone())
}

fn done(text: impl Into<String>) -> ProviderAnswer {
    ProviderAnswer::Done(CallOutcome { message: text.into(), ..CallOutcome::default() })
}

/// The agent has enrolled. Where no MAAS installs the system, the agent proves that there is one.
fn enrolled(effect: &Effect, message: String) -> ProviderAnswer {
    let mut outcome = CallOutcome { message, ..CallOutcome::default() };
    if let Effect::Stage { site: None, .. } = effect {
        let runs = ConditionObservation::new(ConditionType::Provisioned, true, "AgentEnrolled");
        outcome.evidence.push(runs);
    }
    ProviderAnswer::Done(outcome)
}

/// Only an observation reads the state: the commit that ends the stage disables the node.
fn disable_answer(node: &Node, verb: CallVerb) -> ProviderAnswer {
    let (id, state) = (node.id(), node.state);
    match (state, verb) {
        (NodeState::Draining | NodeState::Retired | NodeState::Removing, CallVerb::Observe) => {
            done(format!("{id} takes no work"))
        }
        (
            NodeState::BootstrapIssued
            | NodeState::Enrolling
            | NodeState::Active
            | NodeState::Offline
            | NodeState::Quarantined
            | NodeState::Deleted,
            CallVerb::Observe,
        ) => ProviderAnswer::Differs(format!("{id} is {state}")),
        (_, CallVerb::Perform | CallVerb::Follow | CallVerb::GetStatus | CallVerb::Stop) => {
            done(format!("{id} takes no more work"))
        }
    }
}

/// The lifecycle retires a node before this stage. In any other state the record is wrong.
fn retire_answer(node: &Node, verb: CallVerb) -> StageResult {
    let (id, state) = (node.id(), node.state);
    match (state, verb) {
        (NodeState::Retired | NodeState::Removing, _) => Ok(done(format!("{id} is retired"))),
        (_, CallVerb::Observe) => Ok(ProviderAnswer::Differs(format!("{id} is {state}"))),
        (_, CallVerb::Perform | CallVerb::Follow | CallVerb::GetStatus | CallVerb::Stop) => {
            let message = format!("{id} is {state}, not retired");
            Err(Fault::new(FaultCode::StateDisagrees, message))
        }
    }
}

fn cleanup_secrets_answer(id: &NodeId, enrolled: bool, verb: CallVerb) -> ProviderAnswer {
    match verb {
        CallVerb::Observe | CallVerb::GetStatus if !enrolled => {
            done(format!("no agent is enrolled for {id}"))
        }
        CallVerb::Observe => {
            ProviderAnswer::Differs(format!("an agent is still enrolled for {id}"))
        }
        CallVerb::GetStatus => ProviderAnswer::NeverStarted,
        CallVerb::Perform | CallVerb::Follow | CallVerb::Stop => {
            done(format!("the tokens and sessions of {id} are revoked"))
        }
    }
}

fn unread(error: StoreError) -> Fault {
    Fault::new(FaultCode::DatabaseUnreachable, format!("Farrier's database: {error}"))
}

/// Forwards the log after the first `reported` bytes. Returns the number of bytes forwarded.
async fn forward_log(log: &str, reported: usize, journal: &Journal) -> usize {
    let new = log.get(reported..).unwrap_or_default();
    if !new.is_empty() {
        journal.write(providers::Stream::Stdout, new.as_bytes().to_vec()).await;
    }
    reported.max(log.len())
}

pub(super) struct AgentObservation {
    enrolled: bool,
    heartbeat: NodeHeartbeat,
}

impl AgentObservation {
    /// Ok if the agent is enrolled and sends heartbeats without problems; otherwise what is
    /// missing.
    fn judged(&self, since: Timestamp) -> std::result::Result<String, String> {
        match (self.enrolled, self.heartbeat.at) {
            (false, _) => Err("waiting for an agent to enroll".into()),
            (true, None) => Err("an agent has enrolled, but has sent no heartbeat yet".into()),
            (true, Some(at)) if at < since => {
                Err("its agent has sent no heartbeat since this operation began".into())
            }
            (true, Some(_)) if !self.heartbeat.problems.is_empty() => {
                Err(format!("its agent reports problems: {}", self.heartbeat.problems))
            }
            (true, Some(_)) => {
                Ok("its agent is enrolled and sends heartbeats without problems".into())
            }
        }
    }
}

async fn load_agent_observation(tx: &mut Tx, id: &NodeId) -> Result<AgentObservation> {
    Ok(AgentObservation {
        enrolled: tx.has_agent(id).await?,
        heartbeat: tx.last_heartbeat(id).await?,
    })
}

async fn insert_task(tx: &mut Tx, task: &Task) -> Result<Task> {
    tx.insert_task(task).await?;
    Ok(tx.task(&task.key).await?.map_or_else(|| task.clone(), |row| row.task))
}

async fn stop_task(tx: &mut Tx, task: &Task) -> Result<Task> {
    match tx.task(&task.key).await? {
        // Another worker enqueues it concurrently: retry, and stop that task.
        None if !tx.insert_task(task).await? => Err(StoreError::Conflict),
        None => Ok(task.clone()),
        Some(row) => {
            let row = TaskRow { task: row.task.stop(), version: row.version };
            tx.update_task(&row)?;
            Ok(row.task)
        }
    }
}

async fn requeue_task(tx: &mut Tx, key: &EffectKey, now: Timestamp) -> Result<bool> {
    let Some(row) = tx.task(key).await? else { return Ok(false) };
    let (task, resumed) = row.task.resumed(now);
    if resumed == ResumeResult::Requeued {
        tx.update_task(&TaskRow { task, version: row.version })?;
    }
    Ok(resumed == ResumeResult::Requeued)
}
