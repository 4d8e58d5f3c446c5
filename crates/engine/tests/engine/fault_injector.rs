//! The fault injector between a process and its database and hardware.
//!
//! A process passes it before and after each commit and each provider call. A test can stop the
//! process there and then let it continue, report a lost connection, freeze it for a while, or
//! crash it, which means that it never continues.

use crate::shared_value::SharedValue;
use crate::test_env::TestEnv;
use async_trait::async_trait;
use futures_util::future::BoxFuture;
use model::condition::ConditionObservation;
use model::effect::{CallVerb, Capability, ProviderAnswer, ProviderCall};
use model::fault::Fault;
use model::node::MaasObservation;
use model::site::Site;
use providers::{Journal, Provider, SiteNode, SiteObservation, Target};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;
use store::{Result, StoreError, TransactionHook, TransactionPoint};

/// Background writes, independent of the runs: a crash there adds nothing to the other points.
const BACKGROUND: [&str; 6] = [
    "renew_lease",
    "learn_machine",
    "learn_device",
    "record_heartbeats",
    "record_side_facts",
    "report_site",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum When {
    Before,
    /// The provider is executing the effect.
    During,
    After,
}

/// A point at which a process can be crashed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum CrashPoint {
    Commit(When, &'static str),
    Effect(When, CallVerb, String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProcessState {
    Alive,
    Frozen,
    Dead,
}

/// The tasks that stop at the crash point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopScope {
    /// All tasks of the process.
    Process,
    /// Only the task that reached the point.
    Task,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StopDecision {
    Continue,
    ConnectionLost,
}

pub struct FaultInjector {
    env: TestEnv,
    state: SharedValue<ProcessState>,
    passed: Mutex<Vec<CrashPoint>>,
    /// The index of the point at which to stop, counted since `arm`.
    stop_at: Mutex<Option<(usize, StopScope)>>,
    stopped_at: SharedValue<Option<CrashPoint>>,
    decision: SharedValue<Option<StopDecision>>,
    site_reads: SiteReads,
}

/// The delay of the MAAS of a site, and the number of reads.
#[derive(Default)]
pub struct SiteReads {
    pub delay_seconds: AtomicU64,
    pub count: AtomicU64,
}

impl FaultInjector {
    pub fn new(world: TestEnv) -> Arc<Self> {
        Arc::new(Self {
            env: world,
            state: SharedValue::new(ProcessState::Alive),
            passed: Mutex::default(),
            stop_at: Mutex::default(),
            stopped_at: SharedValue::new(None),
            decision: SharedValue::new(None),
            site_reads: SiteReads::default(),
        })
    }

    pub fn site_reads(&self) -> &SiteReads {
        &self.site_reads
    }

    /// Forgets the passed points, and stops at the point with this index.
    pub fn arm(&self, hold: Option<(usize, StopScope)>) {
        self.passed.lock().unwrap_or_else(PoisonError::into_inner).clear();
        *self.stop_at.lock().unwrap_or_else(PoisonError::into_inner) = hold;
    }

    /// All points passed since `arm`.
    pub fn passed(&self) -> Vec<CrashPoint> {
        self.passed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Resolves when the process has stopped at a point.
    pub async fn wait_until_stopped(&self) -> CrashPoint {
        let claimed = self.stopped_at.wait_for(Option::is_some).await;
        claimed.expect("a point")
    }

    /// Crashes the process: nothing of it ever continues.
    pub fn kill(&self) {
        self.state.set(ProcessState::Dead);
    }

    pub fn freeze(&self) {
        self.change_state(ProcessState::Alive, ProcessState::Frozen);
    }

    /// Continues a frozen process as if no time had passed.
    pub fn thaw(&self) {
        self.change_state(ProcessState::Frozen, ProcessState::Alive);
        self.resume();
    }

    fn change_state(&self, from: ProcessState, to: ProcessState) {
        if self.state.get() == from {
            self.state.set(to);
        }
    }

    pub fn resume(&self) {
        self.decision.set(Some(StopDecision::Continue));
    }

    pub fn cut_connection(&self) {
        self.decision.set(Some(StopDecision::ConnectionLost));
    }

    pub fn is_dead(&self) -> bool {
        self.state.get() == ProcessState::Dead
    }

    pub async fn wait_until_alive(&self) {
        self.state.wait_for(|vital| *vital == ProcessState::Alive).await;
    }

    async fn pass_point(&self, point: CrashPoint) -> Result<()> {
        self.wait_until_alive().await;
        let Some(scope) = self.record_point(&point) else { return Ok(()) };
        if scope == StopScope::Process {
            self.freeze();
        }
        self.stopped_at.set(Some(point));
        let reported = self.decision.wait_for(Option::is_some).await;
        self.wait_until_alive().await;
        match reported {
            Some(StopDecision::ConnectionLost) => {
                Err(StoreError::Unavailable("the connection was cut".into()))
            }
            Some(StopDecision::Continue) | None => Ok(()),
        }
    }

    /// Records the point. Returns the scope if the process must stop here.
    fn record_point(&self, point: &CrashPoint) -> Option<StopScope> {
        let mut passed = self.passed.lock().unwrap_or_else(PoisonError::into_inner);
        passed.push(point.clone());
        let mut hold = self.stop_at.lock().unwrap_or_else(PoisonError::into_inner);
        let scope = hold.filter(|(index, _)| index + 1 == passed.len()).map(|(_, scope)| scope);
        if scope.is_some() {
            *hold = None;
        }
        scope
    }
}

impl TransactionHook for FaultInjector {
    fn intercept(&self, passing: TransactionPoint) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let point = match passing {
                TransactionPoint::BeforeCommit(name) => CrashPoint::Commit(When::Before, name),
                TransactionPoint::AfterCommit(name) => CrashPoint::Commit(When::After, name),
                TransactionPoint::Read => {
                    self.wait_until_alive().await;
                    return Ok(());
                }
            };
            if matches!(point, CrashPoint::Commit(When::After, _)) {
                self.env.check_nodes_after_commit().await;
            }
            match &point {
                CrashPoint::Commit(_, name) if BACKGROUND.contains(name) => {
                    self.wait_until_alive().await;
                    Ok(())
                }
                CrashPoint::Commit(..) | CrashPoint::Effect(..) => self.pass_point(point).await,
            }
        })
    }
}

/// The simulated hardware behind the fault injector.
pub struct InjectedProvider {
    pub env: TestEnv,
    pub injector: Arc<FaultInjector>,
}

impl InjectedProvider {
    async fn pass_effect_point(&self, when: When, call: &ProviderCall) {
        let step = call.key.as_str().split('/').nth(1).unwrap_or_default().to_string();
        // Only database connections are cut here; hardware faults are rules of the simulator.
        let _ = self.injector.pass_point(CrashPoint::Effect(when, call.verb, step)).await;
    }

    /// Checks that the intent is committed before the call: a crash in between would leave an
    /// effect without a record.
    async fn check_intent(&self, call: &ProviderCall) {
        if call.verb == CallVerb::Perform && !self.env.has_intent(&call.key).await {
            let mut witnessed = self.env.violations.lock().unwrap_or_else(PoisonError::into_inner);
            witnessed.push(format!("{} was asked for before it was intended", call.key));
        }
        if let Some(claim) = self.env.false_disk_claim(call).await {
            self.env.violations.lock().unwrap_or_else(PoisonError::into_inner).push(claim);
        }
    }
}

#[async_trait]
impl Provider for InjectedProvider {
    fn name(&self) -> &'static str {
        self.env.sim.name()
    }

    fn is_simulated(&self) -> bool {
        self.env.sim.is_simulated()
    }

    fn capabilities(&self) -> &'static [Capability] {
        self.env.sim.capabilities()
    }

    async fn call(
        &self,
        target: &Target,
        order: &ProviderCall,
        journal: &Journal,
    ) -> std::result::Result<ProviderAnswer, Fault> {
        self.check_intent(order).await;
        self.pass_effect_point(When::Before, order).await;
        let mut requested = self.env.sim.call(target, order, journal);
        let answered =
            match std::future::poll_fn(|cx| Poll::Ready(requested.as_mut().poll(cx))).await {
                Poll::Ready(answered) => answered,
                Poll::Pending => {
                    self.pass_effect_point(When::During, order).await;
                    requested.await
                }
            };
        self.pass_effect_point(When::After, order).await;
        answered
    }

    async fn observe_site(
        &self,
        site: &Site,
        nodes: &[SiteNode],
    ) -> std::result::Result<SiteObservation, Fault> {
        self.injector.wait_until_alive().await;
        let SiteReads { delay_seconds, count } = self.injector.site_reads();
        count.fetch_add(1, Ordering::Relaxed);
        let delay = Duration::from_secs(delay_seconds.load(Ordering::Relaxed));
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        self.env.sim.observe_site(site, nodes).await
    }

    async fn find_at_site(
        &self,
        site: &Site,
        target: &Target,
    ) -> std::result::Result<Option<MaasObservation>, Fault> {
        self.injector.wait_until_alive().await;
        self.env.sim.find_at_site(site, target).await
    }

    async fn probe(
        &self,
        target: &Target,
    ) -> std::result::Result<Vec<ConditionObservation>, Fault> {
        self.injector.wait_until_alive().await;
        self.env.sim.probe(target).await
    }

    async fn boots_from_disk(&self, target: &Target) -> std::result::Result<Option<bool>, Fault> {
        self.injector.wait_until_alive().await;
        self.env.sim.boots_from_disk(target).await
    }
}
