//! Clients of Farrier: one sends requests and retries them until they are answered, one watches and
//! resumes after its cursor.

use crate::machine_scenarios::{MACHINE, params};
use crate::shared_value::SharedValue;
use crate::test_env::{TestEnv, runs_of};
use engine::Engine;
use engine::admission::StartRequest;
use engine::watch::{WatchChange, WatchPosition};
use model::id::{MachineId, PlanId, RunId};
use model::plan::RunType;
use model::run::Run;
use model::run::actions::{Action, Requester, RestartMode};
use providers::sim::Sim;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use store::{Result, StoreError};
use tokio::task::JoinHandle;

const PAUSE: Duration = Duration::from_secs(1);
/// Waiting for a run reads it after so many pauses even if no commit was signalled.
const READ_AFTER_PAUSES: u32 = 60;

/// One action of a client. All but the first are done only if the previous run has failed.
#[derive(Debug, Clone)]
pub enum ClientAction {
    Start(RunType),
    /// With another plan than the default.
    StartPlan(RunType, PlanId),
    /// Clears the faults of the hardware.
    ClearFaults,
    Act(Action),
    Restart(RestartMode),
}

/// A client of one Farrier process; a test can switch it to another process.
#[derive(Clone)]
pub struct Client(Arc<SharedValue<Engine>>);

impl Client {
    pub fn new(engine: &Engine) -> Self {
        Self(Arc::new(SharedValue::new(engine.clone())))
    }

    pub fn switch_to(&self, engine: &Engine) {
        self.0.set(engine.clone());
    }

    /// Calls until there is an answer, from whichever process is current.
    pub async fn call<T, F>(&self, call: impl Fn(Engine) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        loop {
            let engine = self.0.get();
            tokio::select! {
                biased;
                answer = call(engine) => match answer {
                    Err(StoreError::Unavailable(_)) => tokio::time::sleep(PAUSE).await,
                    answer => return answer,
                },
                () = self.0.changed() => {}
            }
        }
    }

    pub async fn start(
        &self,
        machine: &str,
        run_type: RunType,
        request_id: String,
    ) -> Result<RunId> {
        self.start_with_plan(machine, run_type, None, request_id).await
    }

    pub async fn start_with_plan(
        &self,
        machine: &str,
        run_type: RunType,
        plan_id: Option<PlanId>,
        request_id: String,
    ) -> Result<RunId> {
        let start = StartRequest {
            machine_id: MachineId::trusted(machine),
            request_id,
            run_type,
            plan_id,
            params: params(run_type),
            overrides: model::gate::Overrides::default(),
            initiator: "client".into(),
        };
        let begin = |engine: Engine| {
            let start = start.clone();
            async move { engine.runs().start(start).await }
        };
        Ok(self.call(begin).await?.run.spec.id)
    }

    pub async fn restart(
        &self,
        parent: &RunId,
        how: RestartMode,
        request_id: &str,
    ) -> Result<RunId> {
        let begin = |engine: Engine| {
            let (parent, request_id) = (parent.clone(), request_id.to_string());
            async move { engine.runs().restart(parent, how, request_id, operator()).await }
        };
        Ok(self.call(begin).await?.run.spec.id)
    }

    /// Retries until there is an answer. A refusal counts: the action may have been accepted by an
    /// earlier call, and the run continued since.
    pub async fn act(&self, id: &RunId, action: Action) {
        let reported = self
            .call(|engine| {
                let id = id.clone();
                async move { engine.runs().act(id, action, operator()).await }
            })
            .await;
        assert!(matches!(reported, Ok(_) | Err(StoreError::Refused(_))), "{reported:?}");
    }

    /// Polls until the run has ended. Reads only after a commit, since nothing changes in between.
    pub async fn wait_until_ended(&self, id: &RunId) -> Run {
        let mut committed = self.0.get().store().bus().listen();
        loop {
            let run = self.call(|engine| async move { engine.runs().get(id).await }).await;
            let run = run.expect("an accepted run can be found");
            if run.ended() {
                return run;
            }
            for _ in 0..READ_AFTER_PAUSES {
                tokio::time::sleep(PAUSE).await;
                if !committed.is_empty() {
                    break;
                }
            }
            committed = committed.resubscribe();
        }
    }
}

pub fn operator() -> Requester {
    Requester { by: "operator".into(), reason: "to see what happens".into() }
}

/// Executes the actions in order; request ids are numbered from `first`. Returns the last run.
pub async fn run_client_script(
    client: Client,
    sim: Sim,
    script: Vec<ClientAction>,
    first: usize,
) -> Option<Run> {
    let mut last: Option<Run> = None;
    for (index, request) in (first..).zip(script) {
        if last.as_ref().is_some_and(|run| !run.progress.workflow.failed()) {
            return last;
        }
        let request_id = format!("{request:?} {index}");
        let id = match request {
            ClientAction::Start(run_type) => {
                client.start(MACHINE, run_type, request_id).await.expect("accepted")
            }
            ClientAction::StartPlan(run_type, plan) => {
                let started = client.start_with_plan(MACHINE, run_type, Some(plan), request_id);
                started.await.expect("accepted")
            }
            ClientAction::ClearFaults => {
                sim.clear_faults(None).expect("cleared");
                continue;
            }
            ClientAction::Act(action) => {
                let id = last.expect("a run to act on").spec.id;
                client.act(&id, action).await;
                id
            }
            ClientAction::Restart(how) => {
                let parent = last.expect("a run to restart").spec.id;
                client.restart(&parent, how, &request_id).await.expect("accepted")
            }
        };
        last = Some(client.wait_until_ended(&id).await);
    }
    last
}

/// Waits until the run is in backoff, and wakes it, as the end of a child run does. The woken run
/// has nothing to do.
pub async fn wake_during_backoff(env: TestEnv) {
    let id = loop {
        let mut runs = env.machine_data(MACHINE).await.runs;
        let waiting = |run: &Run| {
            let step = run.progress.current();
            !run.ended() && step.is_some_and(|step| step.not_before.is_some())
        };
        match runs.pop() {
            Some(stored) if waiting(&stored.run) => break stored.run.spec.id,
            Some(_) | None => tokio::time::sleep(PAUSE).await,
        }
    };
    let input = (id.object(), env.now());
    let woken = env.store.write("wake", input, |(id, now), tx| {
        let done = tx.wake(id, *now);
        Box::pin(async move { done })
    });
    woken.await.expect("woken");
}

/// One entry that a watcher received.
#[derive(Debug, Clone, Hash)]
pub struct WatchEntry {
    pub run: RunId,
    pub version: i64,
    /// Part of the snapshot.
    pub initial: bool,
}

/// Collects the entries of a watch, in order.
pub struct Watcher {
    entries: Arc<Mutex<Vec<WatchEntry>>>,
    task: JoinHandle<()>,
}

impl Watcher {
    /// Watches the runs of a machine, and resumes when the client is switched to another process.
    pub fn spawn(client: &Client, machine: &str) -> Self {
        let entries = Arc::new(Mutex::default());
        let task = tokio::spawn(watch(client.clone(), machine.to_string(), Arc::clone(&entries)));
        Self { entries, task }
    }

    pub fn entries(&self) -> Vec<WatchEntry> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn watch(client: Client, machine: String, observed: Arc<Mutex<Vec<WatchEntry>>>) {
    let mut position: Option<WatchPosition> = None;
    loop {
        let engine = client.0.get();
        let watching = async {
            let Ok(mut watch) = engine.runs().watch(runs_of(&machine), position.clone()).await
            else {
                return;
            };
            while let Ok(shown) = watch.next().await {
                let mut observed = observed.lock().unwrap_or_else(PoisonError::into_inner);
                for one in shown {
                    position = Some(one.position);
                    let (run, version) = (one.object.spec.id.clone(), one.object.version);
                    observed.push(WatchEntry {
                        run,
                        version,
                        initial: one.change == WatchChange::Snapshot,
                    });
                }
            }
        };
        tokio::select! {
            biased;
            () = watching => tokio::time::sleep(PAUSE).await,
            () = client.0.changed() => {}
        }
    }
}
