//! The test environment: one database, one simulated fleet, processes that start and crash, and
//! simulated time. Nothing waits for a real clock, so hours take milliseconds, deterministically.

use crate::agent_scenarios::AgentExecutions;
use crate::fault_injector::{FaultInjector, InjectedProvider};
use crate::node_scenarios::check_nodes;
use crate::notices::{InjectedReceivers, Receivers};
use engine::{DescribedMachine, Engine, Settings};
use model::condition::ConditionType;
use model::effect::{CallVerb, EffectKey, ProviderCall};
use model::filter::Filter;
use model::id::{MachineId, RunId};
use model::machine::{Labels, Machine, MachineSpec};
use model::retry::Backoff;
use model::run::{Policy, Run};
use model::time::Timestamp;
use providers::Providers;
use providers::clock::tokio_clock;
use providers::sim::{Sim, Speed};
use std::num::NonZero;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::ScopedJoinHandle;
use std::time::Duration;
use store::{ClaimedRun, Event, Options, Result, Store, Tx};

/// A day in 2026.
const BEGINNING: Timestamp = Timestamp::from_millis(1_780_000_000_000);
/// Periodic probes are off: they would only add noise.
const NO_PROBES: Duration = Duration::from_secs(30 * 24 * 3_600);

/// Long, so that a test notices a worker that is not woken during a backoff.
pub const BACKOFF: Duration = Duration::from_secs(60);

#[derive(Clone)]
pub struct TestEnv {
    pub store: Store,
    pub sim: Sim,
    /// The receivers of notices.
    pub receivers: Arc<Receivers>,
    /// Violations that were found while the test ran.
    pub violations: Arc<Mutex<Vec<String>>>,
    /// Agent tasks that were executed, by effect key.
    pub agent_executions: Arc<Mutex<AgentExecutions>>,
    /// Check the nodes after every commit.
    checks_nodes: Arc<AtomicBool>,
    clock: engine::clock::Clock,
    random: engine::random::Random,
}

/// One Farrier process. Its clock can be shifted.
#[derive(Clone)]
pub struct Process {
    pub injector: Arc<FaultInjector>,
    pub engine: Engine,
    skew_ms: Arc<AtomicI64>,
}

impl Process {
    pub fn step_clock(&self, by_ms: i64) {
        self.skew_ms.fetch_add(by_ms, Ordering::Relaxed);
    }
}

/// Runs one future in simulated time, on this thread.
pub fn simulate<T>(driver: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_time().start_paused(true).build().expect("a runtime").block_on(driver)
}

/// Applies `each` to all items on all cores; the results keep the order of the items.
pub fn on_all_cores<'a, T: Sync, R: Send>(
    items: &'a [T],
    each: impl Fn(&'a T) -> R + Sync,
) -> Vec<R> {
    let taken = AtomicUsize::new(0);
    let take = || {
        let index = taken.fetch_add(1, Ordering::Relaxed);
        Some((index, items.get(index)?))
    };
    let work = || -> Vec<(usize, R)> {
        std::iter::from_fn(take).map(|(index, item)| (index, each(item))).collect()
    };
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let mut done: Vec<(usize, R)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        let joined = workers.into_iter().map(ScopedJoinHandle::join);
        joined.flat_map(|done| done.unwrap_or_else(|panic| resume_unwind(panic))).collect()
    });
    done.sort_unstable_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

impl TestEnv {
    pub async fn new(seed: u64) -> Self {
        let clock = tokio_clock(BEGINNING);
        let next = AtomicU64::new(seed);
        // Hashes of consecutive numbers: distinct enough for ids, and deterministic.
        let random = Arc::new(move || {
            let number = next.fetch_add(1, Ordering::Relaxed);
            model::retry::fnv1a(&number.to_string(), 0)
        });
        let sim = Sim::in_ram(Speed::Fast).with_clock(clock.clone());
        let store = Store::open(&Options::Memory).await.expect("a database");
        let (witnessed, worked, nodes) = Default::default();
        Self {
            store,
            sim,
            receivers: Arc::default(),
            violations: witnessed,
            agent_executions: worked,
            checks_nodes: nodes,
            clock,
            random,
        }
    }

    pub async fn boot(&self, name: &str) -> Process {
        self.boot_with(Settings { replica: name.into(), ..Settings::default() }).await
    }

    /// Overwrites the probe interval and the backoff of the settings.
    pub async fn boot_with(&self, settings: Settings) -> Process {
        let gate = FaultInjector::new(self.clone());
        let skew_ms = Arc::new(AtomicI64::new(0));
        let (clock, skew) = (self.clock.clone(), Arc::clone(&skew_ms));
        let own_clock = engine::clock::steady(move || {
            let skew = skew.load(Ordering::Relaxed) * 1_000;
            Timestamp::from_micros(clock().as_micros() + skew)
        });
        let gated = InjectedProvider { env: self.clone(), injector: Arc::clone(&gate) };
        let receivers =
            InjectedReceivers { receivers: self.receivers.clone(), injector: Arc::clone(&gate) };
        let backoff = Backoff { initial: BACKOFF, max: BACKOFF * 4 };
        let settings =
            Settings { probe_interval: NO_PROBES, policy: Policy { backoff }, ..settings };
        let engine = Engine::start_up(
            self.store.with_hook(Arc::clone(&gate) as Arc<dyn store::TransactionHook>),
            Providers::default().with(Arc::new(gated)).with_webhooks(Arc::new(receivers)),
            settings,
            own_clock,
            Arc::clone(&self.random),
        )
        .await
        .expect("an engine");
        Process { injector: gate, engine, skew_ms }
    }

    pub async fn register(&self, engine: &Engine, machine: &str) {
        let spec = MachineSpec {
            target_cluster_ref: "c".into(),
            provider: "sim".into(),
            ..MachineSpec::default()
        };
        let id = Some(MachineId::trusted(machine));
        let described = DescribedMachine { id, spec: Some(spec), labels: Labels::new() };
        engine.machines().register(described, "test".into()).await.expect("registered");
    }

    pub async fn machine(&self, id: &str) -> Machine {
        let machine = self.store.machine(&MachineId::trusted(id)).await;
        machine.expect("the in-memory database answers").expect("it was registered")
    }

    /// Reads everything stored about one machine, bypassing the fault injectors.
    pub async fn machine_data(&self, id: &str) -> MachineData {
        self.load_machine_data(MachineId::trusted(id)).await
    }

    /// From now on the states of nodes are checked after every commit.
    pub fn enable_node_checks(&self) {
        self.checks_nodes.store(true, Ordering::Relaxed);
    }

    pub async fn check_nodes_after_commit(&self) {
        if self.checks_nodes.load(Ordering::Relaxed) {
            let checked = self.store.read((), |(), tx| Box::pin(check_nodes(tx)));
            let wrong = checked.await.expect("the in-memory database answers");
            self.violations.lock().unwrap_or_else(PoisonError::into_inner).extend(wrong);
        }
    }

    pub fn clock(&self) -> engine::clock::Clock {
        self.clock.clone()
    }

    pub fn now(&self) -> Timestamp {
        (self.clock)()
    }

    /// True if the store holds an attempt at the step with this key.
    pub async fn has_intent(&self, key: &EffectKey) -> bool {
        let mut parts = key.as_str().split('/');
        let (Some(run), Some(step), Some(attempt)) = (parts.next(), parts.next(), parts.next())
        else {
            return false;
        };
        let recorded =
            self.store.read(RunId::trusted(run), |id, tx| Box::pin(tx.run_with_claim(id))).await;
        let recorded = recorded.expect("the in-memory database answers");
        let attempt: u32 = attempt.parse().expect("a key ends with a number");
        recorded.is_some_and(|ClaimedRun { run, .. }| {
            let mut steps = run.progress.steps.iter();
            steps.any(|state| run.step_name(state) == step && state.attempt >= attempt)
        })
    }

    /// The false statement of the record while the disk is written: the commit with the intent must
    /// have cleared Provisioned. A call that comes late, after the intent was settled, is not
    /// judged.
    pub async fn false_disk_claim(&self, call: &ProviderCall) -> Option<String> {
        call.effect.facts().disk.filter(|_| call.verb == CallVerb::Perform)?;
        let key = call.key.clone();
        let found = self.store.read(key, |key, tx| Box::pin(intended_and_recorded(tx, key)));
        let (intended, machine) = found.await.expect("the in-memory database answers");
        let machine = machine.filter(|_| intended)?;
        let open = machine.open_disk_write.as_ref().is_some_and(|write| write.key == call.key);
        let false_claim = machine.is(ConditionType::Provisioned) || !open;
        false_claim.then(|| format!("{} writes a disk that counts as provisioned", call.key))
    }

    async fn load_machine_data(&self, id: MachineId) -> MachineData {
        let about = self.store.read(id, |id, tx| Box::pin(read_machine_data(tx, id)));
        about.await.expect("the in-memory database answers")
    }
}

/// True if this call is the run's open one; also the machine of the run.
async fn intended_and_recorded(tx: &mut Tx, key: &EffectKey) -> Result<(bool, Option<Machine>)> {
    let Some(run) = tx.run(&RunId::trusted(key.run())).await? else { return Ok((false, None)) };
    let intended = run.open_call() == Some((key.clone(), CallVerb::Perform));
    let machine = match run.spec.target.machine() {
        Some(id) => tx.machine(&id).await?,
        None => None,
    };
    Ok((intended, machine))
}

pub struct MachineData {
    pub machine: Machine,
    pub history: Vec<Event>,
    /// In the order of acceptance.
    pub runs: Vec<StoredRun>,
}

/// A run as stored, its queue row and its history.
pub struct StoredRun {
    pub run: Run,
    pub queue_row: ClaimedRun,
    pub history: Vec<Event>,
}

async fn read_machine_data(tx: &mut Tx, id: &MachineId) -> Result<MachineData> {
    let machine = tx.machine(id).await?.expect("the machine was registered");
    let history = tx.history(id.as_str(), 0, 10_000).await?;
    let mut runs = Vec::new();
    let mut latest = tx.latest_runs(&model::target::TargetId::from(id), 1_000).await?;
    latest.reverse();
    for run in latest {
        let run_id: RunId = run.spec.id.clone();
        let claimed = tx.run_with_claim(&run_id).await?.expect("every run has a queue row");
        runs.push(StoredRun {
            run,
            queue_row: claimed,
            history: tx.history(run_id.as_str(), 0, 10_000).await?,
        });
    }
    Ok(MachineData { machine, history, runs })
}

pub fn runs_of(machine: &str) -> Filter {
    let text = format!("machine_id={machine}");
    Filter::parse(&text, model::filter::FilterSubject::Run).expect("a filter")
}
