//! The stages of a node that the engine executes: in its own record, or by the agent on the node.
//!
//! A record stage is written by the commit that ends it. A task has the effect key of its attempt
//! as its id, so it is created once. The worker enqueues it, waits for it, and enqueues it again
//! when the agent becomes silent.

use crate::node::Nodes;
use model::effect::{Answer, Key, Order, Outcome, Verb};
use model::fault::{Code, Fault};
use model::id::NodeId;
use model::node::follow::has_done;
use model::node::task::{Resumed, Standing, Task, TaskState};
use model::node::{AgentAsked, Node, NodeState, Stage, TaskKind};
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
pub(crate) struct StageWork {
    pub run: Run,
    pub stage: Stage,
    pub node: NodeId,
    pub limit: Duration,
    /// Signaled when the run is woken: its task has ended, or its agent has enrolled.
    pub woken_up: Notify,
}

type Asked = std::result::Result<Answer, Fault>;

impl Nodes {
    /// Executes one provider call for a stage.
    pub(crate) async fn execute_stage(
        &self,
        work: &StageWork,
        order: &Order,
        journal: &Journal,
    ) -> Asked {
        match (work.stage, work.stage.task()) {
            (Stage::WaitForAgentEnrollment, _) => self.enrollment(work, order, journal).await,
            (_, Some(kind)) => self.task(work, kind, order, journal).await,
            (_, None) => self.record(work, order).await,
        }
    }

    async fn node_now(&self, id: &NodeId) -> std::result::Result<Node, Fault> {
        let found =
            self.0.store().read(id.clone(), |id, tx| Box::pin(tx.record::<Node>(id.as_str())));
        let found = found.await.map_err(unread)?;
        found.ok_or_else(|| {
            Fault::new(Code::MachineGone, format!("node {id} is not there any more"))
        })
    }

    /// A record stage: the commit that ends the stage writes it.
    async fn record(&self, work: &StageWork, order: &Order) -> Asked {
        let node = self.node_now(&work.node).await?;
        let id = &work.node;
        match (work.stage, order.verb) {
            (_, Verb::Stop) => Ok(Answer::Stopped),
            (Stage::DisableNode, Verb::Observe) => Ok(match node.state {
                NodeState::Draining | NodeState::Retired | NodeState::Removing => {
                    done(format!("{id} takes no work"))
                }
                NodeState::BootstrapIssued
                | NodeState::Enrolling
                | NodeState::Active
                | NodeState::Offline
                | NodeState::Quarantined
                | NodeState::Deleted => Answer::Differs(format!("{id} is {}", node.state)),
            }),
            (Stage::DisableNode, _) => Ok(done(format!("{id} takes no more work"))),
            (Stage::RetireGpuaasNode, _) => match node.state {
                NodeState::Retired | NodeState::Removing => Ok(done(format!("{id} is retired"))),
                state if order.verb == Verb::Observe => {
                    Ok(Answer::Differs(format!("{id} is {state}")))
                }
                state => {
                    Err(Fault::new(Code::StateDisagrees, format!("{id} is {state}, not retired")))
                }
            },
            (Stage::CleanupSecrets, Verb::Observe | Verb::GetStatus) => {
                let has = self.has_agent(id).await.map_err(unread)?;
                Ok(match (has, order.verb) {
                    (false, _) => done(format!("nobody speaks for {id}")),
                    (true, Verb::GetStatus) => Answer::NeverStarted,
                    (true, _) => Answer::Differs(format!("an agent may still speak for {id}")),
                })
            }
            (Stage::CleanupSecrets, _) => {
                Ok(done(format!("the tokens and sessions of {id} are revoked")))
            }
            (stage, _) => {
                Err(Fault::new(Code::ProtocolBroken, format!("{stage} is not done in the record")))
            }
        }
    }

    /// Waits until the agent has enrolled and has sent a heartbeat without problems since this run
    /// began.
    async fn enrollment(&self, work: &StageWork, order: &Order, journal: &Journal) -> Asked {
        let since = work.run.spec.created_at;
        let look = || async {
            let seen =
                self.0.store().read(work.node.clone(), |id, tx| Box::pin(agent_seen(tx, id)));
            Ok::<_, Fault>(seen.await.map_err(unread)?.judged(since))
        };
        match order.verb {
            Verb::Observe => Ok(look().await?.map_or_else(Answer::Differs, done)),
            Verb::GetStatus => Ok(look().await?.map_or(Answer::NeverStarted, done)),
            Verb::Stop => Ok(Answer::Stopped),
            Verb::Perform | Verb::Follow => {
                let _waits = self.0.scheduler().waits_for_others();
                let until = tokio::time::Instant::now() + work.limit.saturating_sub(MARGIN);
                let mut told = String::new();
                loop {
                    match look().await {
                        Ok(Ok(said)) => return Ok(done(said)),
                        Ok(Err(said)) if told != said => {
                            journal.line(&said).await;
                            told = said;
                        }
                        Ok(Err(_)) | Err(_) => {}
                    }
                    if tokio::time::Instant::now() >= until {
                        return Err(Fault::new(silence(&work.run), told));
                    }
                    let _ = tokio::time::timeout(POLL, work.woken_up.notified()).await;
                }
            }
        }
    }

    /// Executes the stage as a task of the agent.
    async fn task(
        &self,
        work: &StageWork,
        kind: TaskKind,
        order: &Order,
        journal: &Journal,
    ) -> Asked {
        match order.verb {
            Verb::Perform => {
                if let Some(why) = self.needless(work, &order.key).await? {
                    journal.line(&why).await;
                    return Ok(done(why));
                }
                let task = self.new_task(work, kind, &order.key);
                let there = self.wanted(task).await?;
                if there.state == TaskState::Stopped {
                    let said = format!("{} was stopped before it began", order.key);
                    return Err(Fault::new(Code::EffectFailed, said));
                }
                self.poke_agent(&work.node);
                self.wait_for_task(work, order, journal).await
            }
            Verb::Follow => self.wait_for_task(work, order, journal).await,
            Verb::GetStatus => Ok(match self.task_now(&order.key).await? {
                None => Answer::NeverStarted,
                Some(task) => match task.state {
                    // Following it returns its end, and for a failure the reason.
                    TaskState::Queued | TaskState::Dispatched | TaskState::Failed => {
                        Answer::UnderWay
                    }
                    TaskState::Done => done(task.said),
                    TaskState::Stopped => Answer::NeverStarted,
                },
            }),
            Verb::Observe => {
                let said = format!("only the agent of {} can say, by doing it", work.node);
                Ok(Answer::Differs(said))
            }
            Verb::Stop => {
                let task =
                    Task { state: TaskState::Stopped, ..self.new_task(work, kind, &order.key) };
                let task = self.bar(task).await?;
                self.poke_agent(&work.node);
                Ok(match task.state {
                    TaskState::Done => done(task.said),
                    TaskState::Stopped if task.lingers(self.0.now()) => Answer::UnderWay,
                    TaskState::Queued
                    | TaskState::Dispatched
                    | TaskState::Failed
                    | TaskState::Stopped => Answer::Stopped,
                })
            }
        }
    }

    /// Why the stage needs no task. A task that exists already is waited for.
    async fn needless(
        &self,
        work: &StageWork,
        key: &Key,
    ) -> std::result::Result<Option<String>, Fault> {
        if self.task_now(key).await?.is_some() {
            return Ok(None);
        }
        let id = &work.node;
        let asked = AgentAsked {
            run: &work.run,
            state: self.node_now(id).await?.state,
            has_agent: self.has_agent(id).await.map_err(unread)?,
            released: has_done(&work.run, Stage::ReleaseMaasNode),
        };
        Ok(asked.needless(work.stage))
    }

    /// Enqueues a task. While the database does not confirm, it repeats with the same key: another
    /// key could run the task twice. The deadline of the step ends it.
    async fn wanted(&self, task: Task) -> std::result::Result<Task, Fault> {
        loop {
            let wanted = self
                .0
                .store()
                .retry_write("want_task", task.clone(), |task, tx| Box::pin(want_task(tx, task)));
            match wanted.await {
                Err(StoreError::Unavailable(_)) => tokio::time::sleep(RETRY).await,
                done => return done.map_err(unread),
            }
        }
    }

    /// Stops a task, or bars its key if it was never enqueued.
    async fn bar(&self, task: Task) -> std::result::Result<Task, Fault> {
        let barred =
            self.0.store().retry_write("bar_task", task, |task, tx| Box::pin(bar_task(tx, task)));
        barred.await.map_err(unread)
    }

    pub(super) async fn has_agent(&self, id: &NodeId) -> Result<bool> {
        self.0.store().read(id.clone(), |id, tx| Box::pin(tx.has_agent(id))).await
    }

    fn new_task(&self, work: &StageWork, kind: TaskKind, key: &Key) -> Task {
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
            said: String::new(),
            log: String::new(),
            created_at: now,
        }
    }

    async fn task_now(&self, key: &Key) -> std::result::Result<Option<Task>, Fault> {
        let found = self.0.store().read(key.clone(), |key, tx| Box::pin(tx.task(key)));
        Ok(found.await.map_err(unread)?.map(|row| row.task))
    }

    async fn wait_for_task(&self, work: &StageWork, order: &Order, journal: &Journal) -> Asked {
        // A turn that waits must not use up a slot that other work needs.
        let _waits = self.0.scheduler().waits_for_others();
        let mut told = usize::try_from(order.logged).unwrap_or(usize::MAX);
        loop {
            let Ok(found) = self.task_now(&order.key).await else {
                tokio::time::sleep(RETRY).await;
                continue;
            };
            let Some(task) = found else { return Ok(Answer::NeverStarted) };
            told = tell(&task.log, told, journal).await;
            let now = self.0.now();
            match (task.state, task.standing(now)) {
                (TaskState::Done, _) => return Ok(done(task.said)),
                (TaskState::Failed, _) => return Err(failed(&task)),
                (TaskState::Stopped, _) => {
                    return Err(Fault::new(Code::EffectFailed, "it was stopped"));
                }
                (TaskState::Queued | TaskState::Dispatched, _) if now >= task.deadline => {
                    return self.too_late(work, &task).await;
                }
                (TaskState::Dispatched, Standing::Stale) => {
                    let input = (order.key.clone(), now);
                    let again =
                        self.0.store().retry_write("requeue_task", input, |(key, now), tx| {
                            Box::pin(requeue_task(tx, key, *now))
                        });
                    if again.await.is_ok() {
                        journal
                            .line("its agent has fallen silent; the task is in the queue again")
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
    async fn too_late(&self, work: &StageWork, task: &Task) -> Asked {
        let ended = self.bar(task.stopped()).await?;
        let (id, kind) = (&work.node, task.kind.as_str());
        match (ended.state, ended.dispatched) {
            (TaskState::Done, _) => Ok(done(ended.said)),
            (_, 0) => {
                Err(Fault::new(Code::AgentSilent, format!("the agent of {id} did not take {kind}")))
            }
            _ => {
                Err(Fault::new(Code::TaskFailed, format!("{kind} did not end in its time on {id}")))
            }
        }
    }
}

/// The fault code when no agent appears: retryable at first; on the last attempt after an
/// installation, the system was not seeded.
fn silence(run: &Run) -> Code {
    let tried_all = run.progress.current().is_some_and(|step| step.attempt >= step.budget);
    let installed = has_done(run, Stage::WaitForDeployed);
    if tried_all && installed { Code::SeedFailed } else { Code::AgentSilent }
}

fn failed(task: &Task) -> Fault {
    let code = match task.kind {
        TaskKind::Validate => Code::NodeNotClean,
        TaskKind::Drain
        | TaskKind::Release
        | TaskKind::Scrub
        | TaskKind::CleanupStorage
        | TaskKind::Uninstall => Code::TaskFailed,
    };
    Fault::new(code, task.said.clone())
}

fn done(said: impl Into<String>) -> Answer {
    Answer::Done(Outcome { said: said.into(), ..Outcome::default() })
}

fn unread(error: StoreError) -> Fault {
    Fault::new(Code::DatabaseUnreachable, format!("Farrier's own: {error}"))
}

/// Forwards the log after the first `told` bytes. Returns the number of bytes forwarded.
async fn tell(log: &str, told: usize, journal: &Journal) -> usize {
    let new = log.get(told..).unwrap_or_default();
    if !new.is_empty() {
        journal.write(providers::Stream::Stdout, new.as_bytes().to_vec()).await;
    }
    told.max(log.len())
}

pub(super) struct AgentSeen {
    enrolled: bool,
    word: NodeHeartbeat,
}

impl AgentSeen {
    /// Ok if the agent is enrolled and sends heartbeats without problems; otherwise what is
    /// missing.
    fn judged(&self, since: Timestamp) -> std::result::Result<String, String> {
        match (self.enrolled, self.word.at) {
            (false, _) => Err("waiting for an agent to enroll".into()),
            (true, None) => Err("an agent has enrolled, and was not heard yet".into()),
            (true, Some(at)) if at < since => {
                Err("its agent was not heard since this operation began".into())
            }
            (true, Some(_)) if !self.word.problems.is_empty() => {
                Err(format!("its agent is not well: {}", self.word.problems))
            }
            (true, Some(_)) => Ok("its agent is enrolled, heard and well".into()),
        }
    }
}

async fn agent_seen(tx: &mut Tx, id: &NodeId) -> Result<AgentSeen> {
    Ok(AgentSeen { enrolled: tx.has_agent(id).await?, word: tx.last_heartbeat(id).await? })
}

async fn want_task(tx: &mut Tx, task: &Task) -> Result<Task> {
    tx.want_task(task).await?;
    Ok(tx.task(&task.key).await?.map_or_else(|| task.clone(), |row| row.task))
}

async fn bar_task(tx: &mut Tx, task: &Task) -> Result<Task> {
    match tx.task(&task.key).await? {
        // Another worker enqueues it concurrently: retry, and stop that task.
        None if !tx.want_task(task).await? => Err(StoreError::Conflict),
        None => Ok(task.clone()),
        Some(row) => {
            let row = TaskRow { task: row.task.stopped(), version: row.version };
            tx.update_task(&row)?;
            Ok(row.task)
        }
    }
}

async fn requeue_task(tx: &mut Tx, key: &Key, now: Timestamp) -> Result<bool> {
    let Some(row) = tx.task(key).await? else { return Ok(false) };
    let (task, resumed) = row.task.resumed(now);
    if resumed == Resumed::Requeued {
        tx.update_task(&TaskRow { task, version: row.version })?;
    }
    Ok(resumed == Resumed::Requeued)
}
