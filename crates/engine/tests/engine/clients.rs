//! Clients of Farrier: one sends requests and retries them until they are answered, one watches and
//! resumes after its cursor.

use crate::board::Board;
use crate::machine_scenarios::{MACHINE, params};
use crate::world::{World, runs_of};
use engine::Engine;
use engine::admission::Start;
use engine::watch::Place;
use model::id::{MachineId, PlanId, RunId};
use model::plan::RunType;
use model::run::Run;
use model::run::act::{Action, RestartMode, Who};
use providers::sim::Sim;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use store::{Result, StoreError};
use tokio::task::JoinHandle;

const PAUSE: Duration = Duration::from_secs(1);
/// Waiting for a run reads it after so many pauses even if no commit was signalled.
const LOOK_ANYWAY: u32 = 60;

/// One action of a client. All but the first are done only if the previous run has failed.
#[derive(Debug, Clone)]
pub enum Ask {
    Start(RunType),
    /// With another plan than the default.
    StartPlan(RunType, PlanId),
    /// Clears the faults of the hardware.
    Mend,
    Act(Action),
    RestartMode(RestartMode),
}

/// A client of one Farrier process; a test can switch it to another process.
#[derive(Clone)]
pub struct Door(Arc<Board<Engine>>);

impl Door {
    pub fn to(engine: &Engine) -> Self {
        Self(Arc::new(Board::new(engine.clone())))
    }

    pub fn lead_to(&self, engine: &Engine) {
        self.0.set(engine.clone());
    }

    /// Calls until there is an answer, from whichever process is current.
    pub async fn ask<T, F>(&self, call: impl Fn(Engine) -> F) -> Result<T>
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
        self.start_by(machine, run_type, None, request_id).await
    }

    pub async fn start_by(
        &self,
        machine: &str,
        run_type: RunType,
        plan_id: Option<PlanId>,
        request_id: String,
    ) -> Result<RunId> {
        let start = Start {
            machine_id: MachineId::trusted(machine),
            request_id,
            run_type,
            plan_id,
            params: params(run_type),
            initiator: "client".into(),
        };
        let begin = |engine: Engine| {
            let start = start.clone();
            async move { engine.runs().start(start).await }
        };
        Ok(self.ask(begin).await?.run.spec.id)
    }

    pub async fn again(&self, parent: &RunId, how: RestartMode, request_id: &str) -> Result<RunId> {
        let begin = |engine: Engine| {
            let (parent, request_id) = (parent.clone(), request_id.to_string());
            async move { engine.runs().restart(parent, how, request_id, operator()).await }
        };
        Ok(self.ask(begin).await?.run.spec.id)
    }

    /// Retries until there is an answer. A refusal counts: the action may have been accepted by an
    /// earlier call, and the run continued since.
    pub async fn tell(&self, id: &RunId, action: Action) {
        let told = self
            .ask(|engine| {
                let id = id.clone();
                async move { engine.runs().act(id, action, operator()).await }
            })
            .await;
        assert!(matches!(told, Ok(_) | Err(StoreError::Refused(_))), "{told:?}");
    }

    /// Polls until the run has ended. Reads only after a commit, since nothing changes in between.
    pub async fn ended(&self, id: &RunId) -> Run {
        let mut committed = self.0.get().store().bus().listen();
        loop {
            let run = self.ask(|engine| async move { engine.runs().get(id).await }).await;
            let run = run.expect("an accepted run can be found");
            if run.ended() {
                return run;
            }
            for _ in 0..LOOK_ANYWAY {
                tokio::time::sleep(PAUSE).await;
                if !committed.is_empty() {
                    break;
                }
            }
            committed = committed.resubscribe();
        }
    }
}

pub fn operator() -> Who {
    Who { by: "operator".into(), reason: "to see what happens".into() }
}

/// Executes the actions in order; request ids are numbered from `first`. Returns the last run.
pub async fn follow_script(door: Door, sim: Sim, script: Vec<Ask>, first: usize) -> Option<Run> {
    let mut last: Option<Run> = None;
    for (index, ask) in (first..).zip(script) {
        if last.as_ref().is_some_and(|run| !run.progress.workflow.failed()) {
            return last;
        }
        let request_id = format!("{ask:?} {index}");
        let id = match ask {
            Ask::Start(run_type) => {
                door.start(MACHINE, run_type, request_id).await.expect("accepted")
            }
            Ask::StartPlan(run_type, plan) => {
                let started = door.start_by(MACHINE, run_type, Some(plan), request_id);
                started.await.expect("accepted")
            }
            Ask::Mend => {
                sim.clear_faults(None).expect("cleared");
                continue;
            }
            Ask::Act(action) => {
                let id = last.expect("a run to act on").spec.id;
                door.tell(&id, action).await;
                id
            }
            Ask::RestartMode(how) => {
                let parent = last.expect("a run to restart").spec.id;
                door.again(&parent, how, &request_id).await.expect("accepted")
            }
        };
        last = Some(door.ended(&id).await);
    }
    last
}

/// Waits until the run is in backoff, and requests the attempt now. The woken run has nothing else
/// to do.
pub async fn nudge(door: Door, world: World) {
    let id = loop {
        let mut runs = world.about(MACHINE).await.runs;
        let waiting = |run: &Run| {
            let step = run.progress.current();
            !run.ended() && step.is_some_and(|step| step.not_before.is_some())
        };
        match runs.pop() {
            Some(kept) if waiting(&kept.run) => break kept.run.spec.id,
            Some(_) | None => tokio::time::sleep(PAUSE).await,
        }
    };
    door.tell(&id, Action::RetryStep).await;
}

/// One entry that a watcher received.
#[derive(Debug, Clone, Hash)]
pub struct Sight {
    pub run: RunId,
    pub version: i64,
    /// Part of the snapshot.
    pub initial: bool,
}

/// Collects the entries of a watch, in order.
pub struct Watcher {
    seen: Arc<Mutex<Vec<Sight>>>,
    task: JoinHandle<()>,
}

impl Watcher {
    /// Watches the runs of a machine, and resumes when the client is switched to another process.
    pub fn spawn(door: &Door, machine: &str) -> Self {
        let seen = Arc::new(Mutex::default());
        let task = tokio::spawn(watch(door.clone(), machine.to_string(), Arc::clone(&seen)));
        Self { seen, task }
    }

    pub fn seen(&self) -> Vec<Sight> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn watch(door: Door, machine: String, seen: Arc<Mutex<Vec<Sight>>>) {
    let mut place: Option<Place> = None;
    loop {
        let engine = door.0.get();
        let watching = async {
            let Ok(mut watch) = engine.runs().watch(runs_of(&machine), place.clone()).await else {
                return;
            };
            while let Ok(shown) = watch.next().await {
                let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                for one in shown {
                    place = Some(one.place);
                    let (run, version) = (one.run.spec.id.clone(), one.run.version);
                    seen.push(Sight { run, version, initial: one.initial });
                }
            }
        };
        tokio::select! {
            biased;
            () = watching => tokio::time::sleep(PAUSE).await,
            () = door.0.changed() => {}
        }
    }
}
