//! The turn of a run: advances one claimed run until it is idle.
//!
//! Each cycle decides, commits the intent, calls the provider, and keeps the answer until it is
//! committed. A commit conflicts when an action has changed the run: the turn reloads the run and
//! decides again with the same answer. It also conflicts when the claim is lost: the turn then ends
//! without a write.

mod commit;

use crate::Engine;
use crate::fan_out::{Parent, no_provider};
use crate::journal::{LogBook, logged};
use crate::node::stage::StageWork;
use commit::Commit;
use futures_util::FutureExt;
use model::effect::{Answer, Executor, Order, Verb};
use model::fault::{Code, Fault};
use model::firmware::applied;
use model::id::{MachineId, NodeId};
use model::machine::MachineSpec;
use model::node::Stage;
use model::power_shelf::PowerShelf;
use model::run::{Decision, Given, Run, Then, decide};
use model::switch::Switch;
use model::target::{TargetId, TargetKind};
use model::time::Timestamp;
use providers::{Journal, Provider, Providers, Target};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use store::{ClaimedRun, Hold, Result, StoreError, Tx};
use tokio::sync::Notify;
use tokio::time::{Instant, interval_at, timeout};

/// How often the log of a call in progress is written.
const FLUSH: Duration = Duration::from_millis(200);
/// The wait before a retry when the database is unavailable. A commit doubles it each time.
const DATABASE_RETRY: Duration = Duration::from_millis(250);
/// How many conflicts in a row, with an unchanged stored run, end the turn.
const MAX_REFUSALS: u32 = 5;
const DATABASE_RETRY_MOST: Duration = Duration::from_secs(5);

/// Why a turn ended before the run was idle.
enum Ended {
    /// Another worker has claimed the run.
    Lost,
    /// The process is stopping; the claim is released.
    HandedBack,
    /// The decision cannot be written although the stored run is unchanged. The run is retried
    /// after a backoff.
    Poisoned,
}

/// One claimed run.
pub(crate) struct Turn {
    engine: Engine,
    held: ClaimedRun,
    woken: Arc<Notify>,
    book: LogBook,
    target: Option<Target>,
}

impl Turn {
    pub fn new(engine: Engine, held: ClaimedRun, woken: Arc<Notify>) -> Self {
        // The log of a run on a rack already holds the notes of its admission.
        let fresh = held.run.version == 1 && held.run.spec.target.kind != TargetKind::Rack;
        let book = LogBook::new(held.run.spec.id.clone(), held.epoch, fresh);
        Self { engine, held, woken, book, target: None }
    }

    /// Works until the run is idle, the claim is lost, or the process stops.
    pub async fn run(mut self) {
        let id = self.held.run.spec.id.clone();
        match self.work().await {
            Ok(()) => {}
            Err(Ended::Poisoned) => {
                tracing::error!(run = %id, "the run's state cannot be written; it is retried after a backoff");
                self.engine.scheduler().put_back(id.object(), self.held.epoch).await;
            }
            Err(Ended::Lost) => tracing::info!(run = %id, "another worker has taken the run over"),
            Err(Ended::HandedBack) => {
                self.book.flush(self.engine.store()).await;
                tracing::info!(run = %id, "released the run because the process stops");
            }
        }
    }

    async fn work(&mut self) -> std::result::Result<(), Ended> {
        let mut given: Option<Given> = None;
        let mut order_in_hand = None;
        loop {
            let now = self.engine.now();
            let policy = self.engine.policy();
            let decision = decide(&self.held.run, self.held.epoch, given.as_ref(), policy, now);
            if !self.commit(&decision, now).await? {
                // The stored run has changed: decide again with the same answer. If its open call
                // differs, this turn's commit took effect although it was reported lost, and the
                // answer must not be applied to the next call.
                if self.held.run.open_order() != order_in_hand {
                    given = None;
                }
                continue;
            }
            match decision.then {
                Then::Ask(order, limit) => {
                    self.sure_of_the_lease().await?;
                    order_in_hand = Some((order.key.clone(), order.verb));
                    given = Some(self.ask(order, limit).await?);
                }
                Then::Until(_) | Then::Rest => return Ok(()),
            }
        }
    }

    /// Renews a lease that may have expired while the turn waited for the database, and reloads the
    /// run: another worker may have claimed it. No call is made under a stale lease.
    async fn sure_of_the_lease(&mut self) -> std::result::Result<(), Ended> {
        while !self.engine.scheduler().lease_is_fresh() {
            if let Err(error) = self.engine.scheduler().renew().await {
                tracing::warn!(%error, "lease renewal failed; the provider call waits");
                self.pause(DATABASE_RETRY).await?;
                continue;
            }
            self.reload().await?;
        }
        Ok(())
    }

    /// Writes a decision. False when the stored run had changed; it has then been reloaded.
    async fn commit(
        &mut self,
        decision: &Decision,
        now: Timestamp,
    ) -> std::result::Result<bool, Ended> {
        let hold = match decision.then {
            Then::Ask(..) => Hold::Keep,
            Then::Until(at) => Hold::Release(Some(at)),
            Then::Rest => Hold::Release(None),
        };
        let mut wait = DATABASE_RETRY;
        let mut refused = 0;
        loop {
            match self.try_commit(decision, hold, now).await {
                Ok(version) => {
                    self.count(&decision.run);
                    self.held.run = Run { version, ..decision.run.clone() };
                    return Ok(true);
                }
                Err(StoreError::Conflict) => {
                    let before = self.held.run.version;
                    self.reload().await?;
                    if self.held.run.version != before {
                        return Ok(false);
                    }
                    // The stored run is unchanged: an immediate retry would conflict again.
                    refused += 1;
                    if refused == MAX_REFUSALS {
                        return Err(Ended::Poisoned);
                    }
                    self.pause(wait).await?;
                }
                Err(error) => {
                    tracing::warn!(run = %self.held.run.spec.id, %error, "commit failed; retrying");
                    self.pause(wait).await?;
                    wait = (wait * 2).min(DATABASE_RETRY_MOST);
                }
            }
        }
    }

    async fn try_commit(&mut self, decision: &Decision, hold: Hold, now: Timestamp) -> Result<i64> {
        let (run, epoch, wakes) = (&decision.run, self.held.epoch, self.held.wakes);
        if decision.notes.is_empty() && run.progress == self.held.run.progress {
            let due = match hold {
                Hold::Release(due) => due,
                Hold::Keep => Some(now),
            };
            let input = (run.spec.id.object(), epoch, wakes, due, now);
            let released =
                self.engine.store().write("release", input, |(id, epoch, wakes, due, now), tx| {
                    Box::pin(async move { tx.release(id, *epoch, *wakes, *due, *now) })
                });
            return released.await.map(|()| run.version);
        }
        // These facts belong to the step that was current before the decision.
        let facts = decision.facts.as_ref();
        let applied = facts.and_then(|facts| applied(&self.held.run, facts, now));
        let commit = |lines| {
            let (decision, applied) = (decision.clone(), applied.clone());
            let commit = Commit { decision, applied, epoch, wakes, hold, lines, now };
            self.engine.store().write("commit", commit, |commit, tx| Box::pin(commit.run(tx)))
        };
        let lines = self.book.waiting().to_vec();
        let count = lines.len();
        match commit(lines).await {
            Ok(version) => {
                self.book.written(count);
                Ok(version)
            }
            // Log lines that cannot be written must not block the run.
            Err(_) if count > 0 => commit(Vec::new()).await,
            Err(error) => Err(error),
        }
    }

    /// Reads the stored run. Fails when the claim is lost.
    async fn reload(&mut self) -> std::result::Result<(), Ended> {
        let id = self.held.run.spec.id.clone();
        loop {
            let stored =
                self.engine.store().read_one(id.clone(), |id, tx| Box::pin(tx.claimed_run(id)));
            match stored.await {
                Ok(Some(held)) if held.epoch == self.held.epoch && held.owner.is_some() => {
                    self.held = held;
                    return Ok(());
                }
                Ok(_) => return Err(Ended::Lost),
                Err(error) => {
                    tracing::warn!(run = %id, %error, "reading the run failed; retrying");
                    self.pause(DATABASE_RETRY).await?;
                }
            }
        }
    }

    /// Waits for the database, unless the process stops.
    async fn pause(&self, wait: Duration) -> std::result::Result<(), Ended> {
        tokio::select! {
            () = tokio::time::sleep(wait) => Ok(()),
            () = self.engine.stopped() => Err(Ended::HandedBack),
        }
    }

    /// Makes a provider call whose intent is committed, and waits for the answer.
    async fn ask(&mut self, order: Order, limit: Duration) -> std::result::Result<Given, Ended> {
        let given = self.carry_out(order.clone(), limit).await?;
        if let Given::Answered(Verb::GetStatus, Ok(Answer::Done(_))) = &given {
            // The effect ended while no worker followed it. Following fetches the rest of its log;
            // it starts nothing, and its answer is ignored.
            self.carry_out(Order { verb: Verb::Follow, ..order }, limit).await?;
        }
        Ok(given)
    }

    async fn carry_out(
        &mut self,
        mut order: Order,
        limit: Duration,
    ) -> std::result::Result<Given, Ended> {
        let verb = order.verb;
        let executor = match self.executor(&order, limit).await? {
            Ok(executor) => executor,
            Err(fault) => return Ok(Given::Answered(verb, Err(fault))),
        };
        let (step, attempt) = self.step();
        self.prepare_log(&mut order, &step, attempt).await?;

        let (journal, mut lines) = Journal::new();
        let started = Instant::now();
        let asked = AssertUnwindSafe(executor.ask(&order, &journal)).catch_unwind();
        let mut asked = std::pin::pin!(timeout(limit, asked));
        let mut flush = interval_at(started + FLUSH, FLUSH);
        let mut stop_at: Option<Instant> = None;
        let answered = loop {
            tokio::select! {
                biased;
                result = &mut asked => break result,
                Some(line) = lines.recv() => {
                    self.book.add(&step, attempt, &line, self.engine.now());
                    if self.book.is_full() {
                        self.book.flush(self.engine.store()).await;
                    }
                }
                _ = flush.tick() => self.book.flush(self.engine.store()).await,
                () = self.woken.notified() => {
                    self.reload().await?;
                    if self.held.run.progress.halting() && interruptible(verb) {
                        return Ok(Given::Interrupted);
                    }
                    executor.notify();
                }
                () = self.engine.stopped(), if stop_at.is_none() => {
                    stop_at = Some(Instant::now() + self.engine.grace());
                }
                () = sleep_until(stop_at), if stop_at.is_some() => return Err(Ended::HandedBack),
            }
        };
        while let Ok(line) = lines.try_recv() {
            self.book.add(&step, attempt, &line, self.engine.now());
        }
        metrics::histogram!(
            "farrier_order_seconds", "verb" => verb.as_str(), "effect" => order.effect.word()
        )
        .record(started.elapsed().as_secs_f64());
        let result = match answered {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(Fault::new(
                Code::WorkerPanicked,
                format!("the provider panicked at step {step}"),
            )),
            Err(_) => {
                let said = format!("no answer within {}", model::time::spoken(limit));
                Err(Fault::new(Code::StepTimeout, said))
            }
        };
        Ok(Given::Answered(verb, result))
    }

    /// The name and the attempt number of the current step.
    fn step(&self) -> (String, u32) {
        let run = &self.held.run;
        let state = run.progress.current();
        state.map_or((String::new(), 0), |state| (run.step_name(state), state.attempt))
    }

    async fn prepare_log(
        &mut self,
        order: &mut Order,
        step: &str,
        attempt: u32,
    ) -> std::result::Result<(), Ended> {
        let store = self.engine.store().clone();
        while let Err(error) = self.book.find_end(&store).await {
            tracing::warn!(%error, "reading the end of the log failed; retrying");
            self.pause(DATABASE_RETRY).await?;
        }
        if order.verb == Verb::Follow {
            self.book.flush(&store).await;
            let id = self.held.run.spec.id.clone();
            // Without the position some lines are logged twice; the call itself is not affected.
            order.logged = logged(&store, &id, step, attempt).await.unwrap_or_default();
        }
        Ok(())
    }

    /// The executor of a call: a provider, or the engine itself.
    async fn executor(
        &mut self,
        order: &Order,
        limit: Duration,
    ) -> std::result::Result<std::result::Result<CallExecutor, Fault>, Ended> {
        match order.effect.facts().executor {
            Executor::ChildRuns(group) => {
                let (run, epoch, group) = (self.held.run.clone(), self.held.epoch, group.clone());
                let parent = Parent { run, epoch, group, woken_up: Notify::new() };
                Ok(Ok(CallExecutor::Engine(self.engine.clone(), Arc::new(parent))))
            }
            Executor::NodeRecord { stage, node } => Ok(Ok(self.stage_executor(stage, node, limit))),
            Executor::NodeAgent { stage, node, site_provider } => {
                match self.engine.providers().is_simulated(site_provider) {
                    false => Ok(Ok(self.stage_executor(stage, node, limit))),
                    true => self.provider_executor(Some(site_provider), Providers::get).await,
                }
            }
            Executor::SiteProvider(name) => {
                self.provider_executor(Some(name), Providers::get).await
            }
            Executor::ClusterProvider => {
                self.provider_executor(None, Providers::speaks_to_clusters).await
            }
            Executor::TargetProvider => self.provider_executor(None, Providers::get).await,
        }
    }

    fn stage_executor(&self, stage: Stage, node: &NodeId, limit: Duration) -> CallExecutor {
        let (run, node) = (self.held.run.clone(), node.clone());
        let work = StageWork { run, stage, node, limit, woken_up: Notify::new() };
        CallExecutor::Stage(self.engine.clone(), Arc::new(work))
    }

    /// The provider that `find` returns for this name, or for the target's own provider.
    async fn provider_executor(
        &mut self,
        name: Option<&str>,
        find: for<'a> fn(&'a Providers, &str) -> Option<&'a Arc<dyn Provider>>,
    ) -> std::result::Result<std::result::Result<CallExecutor, Fault>, Ended> {
        let target = match self.target().await? {
            Ok(target) => target,
            Err(fault) => return Ok(Err(fault)),
        };
        let name = name.unwrap_or(&target.spec.provider);
        Ok(match find(self.engine.providers(), name).cloned() {
            Some(provider) => Ok(CallExecutor::Provider(provider, Box::new(target))),
            None => Err(no_provider(name)),
        })
    }

    /// The target of the run, read once per turn.
    async fn target(&mut self) -> std::result::Result<std::result::Result<Target, Fault>, Ended> {
        if let Some(target) = &self.target {
            return Ok(Ok(target.clone()));
        }
        let id = self.held.run.spec.target.clone();
        loop {
            match self.engine.target_of(&id).await {
                Ok(target) => {
                    self.target = Some(target.clone());
                    return Ok(Ok(target));
                }
                Err(fault) if fault.code == Code::DatabaseUnreachable => {
                    tracing::warn!(target = %id, %fault, "reading the target failed; retrying");
                    self.pause(DATABASE_RETRY).await?;
                }
                Err(fault) => return Ok(Err(fault)),
            }
        }
    }

    fn count(&self, after: &Run) {
        if after.ended() && !self.held.run.ended() {
            metrics::counter!(
                "farrier_runs_finished_total",
                "type" => after.spec.run_type.as_str(),
                "phase" => after.phase().as_str()
            )
            .increment(1);
        }
        let first = self.held.run.progress.started_at.is_none();
        if let (true, Some(started)) = (first, after.progress.started_at) {
            metrics::histogram!("farrier_reaction_seconds")
                .record(started.since(after.spec.created_at).as_secs_f64());
        }
    }
}

/// The component that executes a call.
enum CallExecutor {
    Provider(Arc<dyn Provider>, Box<Target>),
    Engine(Engine, Arc<Parent>),
    Stage(Engine, Arc<StageWork>),
}

impl CallExecutor {
    async fn ask(&self, order: &Order, journal: &Journal) -> std::result::Result<Answer, Fault> {
        match self {
            Self::Provider(provider, target) => provider.ask(target, order, journal).await,
            Self::Engine(engine, parent) => engine.fan_out().execute(parent, order, journal).await,
            Self::Stage(engine, work) => engine.nodes().execute_stage(work, order, journal).await,
        }
    }

    /// Reports that the run was woken during the call.
    fn notify(&self) {
        match self {
            Self::Provider(..) => {}
            Self::Engine(_, parent) => parent.woken_up.notify_one(),
            Self::Stage(_, work) => work.woken_up.notify_one(),
        }
    }
}

impl Engine {
    /// The target as it is passed to a provider.
    pub(crate) async fn target_of(&self, id: &TargetId) -> std::result::Result<Target, Fault> {
        let found = match id.kind {
            TargetKind::Machine => {
                let machine = self.store().machine(&MachineId::trusted(&id.id)).await;
                machine.map(|found| found.map(|machine| machine.spec))
            }
            TargetKind::Switch | TargetKind::PowerShelf | TargetKind::Rack => {
                self.store().read(id.clone(), |id, tx| Box::pin(spec_of_device(tx, id))).await
            }
        };
        match found {
            Ok(Some(spec)) => Ok(Target { id: id.clone(), spec }),
            Ok(None) => {
                let said = format!("{} {id} is not there any more", id.kind.noun());
                Err(Fault::new(Code::MachineGone, said))
            }
            Err(error) => {
                Err(Fault::new(Code::DatabaseUnreachable, format!("Farrier's own: {error}")))
            }
        }
    }
}

/// The connection data of a device that is not a machine.
async fn spec_of_device(tx: &mut Tx, target: &TargetId) -> Result<Option<MachineSpec>> {
    let id = target.id.as_str();
    Ok(match target.kind {
        TargetKind::Switch => tx.record::<Switch>(id).await?.map(|one| one.spec.into()),
        TargetKind::PowerShelf => tx.record::<PowerShelf>(id).await?.map(|one| one.spec.into()),
        // A rack is no device: its operations only have child runs.
        TargetKind::Machine | TargetKind::Rack => None,
    })
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Whether a cancel interrupts the call. Calls that only read are short and run to their end.
const fn interruptible(verb: Verb) -> bool {
    match verb {
        Verb::Perform | Verb::Follow => true,
        Verb::GetStatus | Verb::Observe | Verb::Stop => false,
    }
}
