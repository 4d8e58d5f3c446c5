//! The fault injector between a process and its database and hardware.
//!
//! A process passes it before and after each commit and each provider call. A test can stop the
//! process there and then let it continue, report a lost connection, freeze it for a while, or
//! crash it, which means that it never continues.

use crate::board::Board;
use crate::world::World;
use async_trait::async_trait;
use futures_util::future::BoxFuture;
use model::condition::Evidence;
use model::effect::{Answer, Capability, Order, Verb};
use model::fault::Fault;
use model::id::{MachineId, NodeId};
use model::node::UpstreamSeen;
use model::site::Site;
use providers::{Journal, Provider, Sighting, Target};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use store::{Passing, Result, StoreError, Tap};

/// Background writes, independent of the runs: a crash there adds nothing to the other points.
const BACKGROUND: [&str; 5] =
    ["renew_lease", "learn_machine", "learn_device", "record_heartbeats", "report_site"];

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
    Effect(When, Verb, String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Vital {
    Alive,
    Frozen,
    Dead,
}

/// What stops at the crash point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// All tasks of the process.
    Process,
    /// Only the task that reached the point.
    Task,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    GoOn,
    LineCut,
}

pub struct Gate {
    world: World,
    vital: Board<Vital>,
    passed: Mutex<Vec<CrashPoint>>,
    /// The index of the point at which to stop, counted since `arm`.
    hold: Mutex<Option<(usize, Scope)>>,
    held: Board<Option<CrashPoint>>,
    verdict: Board<Option<Verdict>>,
}

impl Gate {
    pub fn before(world: World) -> Arc<Self> {
        Arc::new(Self {
            world,
            vital: Board::new(Vital::Alive),
            passed: Mutex::default(),
            hold: Mutex::default(),
            held: Board::new(None),
            verdict: Board::new(None),
        })
    }

    /// Forgets the passed points, and stops at the point with this index.
    pub fn arm(&self, hold: Option<(usize, Scope)>) {
        self.passed.lock().unwrap_or_else(PoisonError::into_inner).clear();
        *self.hold.lock().unwrap_or_else(PoisonError::into_inner) = hold;
    }

    /// All points passed since `arm`.
    pub fn passed(&self) -> Vec<CrashPoint> {
        self.passed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Resolves when the process has stopped at a point.
    pub async fn held(&self) -> CrashPoint {
        let held = self.held.wait_for(Option::is_some).await;
        held.expect("a point")
    }

    /// Crashes the process: nothing of it ever continues.
    pub fn kill(&self) {
        self.vital.set(Vital::Dead);
    }

    pub fn freeze(&self) {
        self.turn(Vital::Alive, Vital::Frozen);
    }

    /// Continues a frozen process as if no time had passed.
    pub fn thaw(&self) {
        self.turn(Vital::Frozen, Vital::Alive);
        self.go_on();
    }

    fn turn(&self, from: Vital, to: Vital) {
        if self.vital.get() == from {
            self.vital.set(to);
        }
    }

    pub fn go_on(&self) {
        self.verdict.set(Some(Verdict::GoOn));
    }

    pub fn cut_the_line(&self) {
        self.verdict.set(Some(Verdict::LineCut));
    }

    pub fn is_dead(&self) -> bool {
        self.vital.get() == Vital::Dead
    }

    async fn alive(&self) {
        self.vital.wait_for(|vital| *vital == Vital::Alive).await;
    }

    async fn come_to(&self, point: CrashPoint) -> Result<()> {
        self.alive().await;
        let Some(scope) = self.count(&point) else { return Ok(()) };
        if scope == Scope::Process {
            self.freeze();
        }
        self.held.set(Some(point));
        let told = self.verdict.wait_for(Option::is_some).await;
        self.alive().await;
        match told {
            Some(Verdict::LineCut) => Err(StoreError::Unavailable("the connection was cut".into())),
            Some(Verdict::GoOn) | None => Ok(()),
        }
    }

    /// Records the point. Returns the scope if the process must stop here.
    fn count(&self, point: &CrashPoint) -> Option<Scope> {
        let mut passed = self.passed.lock().unwrap_or_else(PoisonError::into_inner);
        passed.push(point.clone());
        let mut hold = self.hold.lock().unwrap_or_else(PoisonError::into_inner);
        let scope = hold.filter(|(index, _)| index + 1 == passed.len()).map(|(_, scope)| scope);
        if scope.is_some() {
            *hold = None;
        }
        scope
    }
}

impl Tap for Gate {
    fn pass(&self, passing: Passing) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let point = match passing {
                Passing::BeforeCommit(name) => CrashPoint::Commit(When::Before, name),
                Passing::AfterCommit(name) => CrashPoint::Commit(When::After, name),
                Passing::Read => {
                    self.alive().await;
                    return Ok(());
                }
            };
            if matches!(point, CrashPoint::Commit(When::After, _)) {
                self.world.witness_nodes().await;
            }
            match &point {
                CrashPoint::Commit(_, name) if BACKGROUND.contains(name) => {
                    self.alive().await;
                    Ok(())
                }
                CrashPoint::Commit(..) | CrashPoint::Effect(..) => self.come_to(point).await,
            }
        })
    }
}

/// The simulated hardware behind the fault injector.
pub struct Gated {
    pub world: World,
    pub gate: Arc<Gate>,
}

impl Gated {
    async fn at(&self, when: When, order: &Order) {
        let step = order.key.as_str().split('/').nth(1).unwrap_or_default().to_string();
        // Only database connections are cut here; hardware faults are rules of the simulator.
        let _ = self.gate.come_to(CrashPoint::Effect(when, order.verb, step)).await;
    }

    /// Checks that the intent is committed before the call: a crash in between would leave an
    /// effect without a record.
    async fn see_the_intent(&self, order: &Order) {
        if order.verb == Verb::Perform && !self.world.intended(&order.key).await {
            let mut witnessed = self.world.witnessed.lock().unwrap_or_else(PoisonError::into_inner);
            witnessed.push(format!("{} was asked for before it was intended", order.key));
        }
    }
}

#[async_trait]
impl Provider for Gated {
    fn name(&self) -> &'static str {
        self.world.sim.name()
    }

    fn is_simulated(&self) -> bool {
        self.world.sim.is_simulated()
    }

    fn capabilities(&self) -> &'static [Capability] {
        self.world.sim.capabilities()
    }

    async fn ask(
        &self,
        target: &Target,
        order: &Order,
        journal: &Journal,
    ) -> std::result::Result<Answer, Fault> {
        self.see_the_intent(order).await;
        self.at(When::Before, order).await;
        let mut asked = self.world.sim.ask(target, order, journal);
        let answered = match std::future::poll_fn(|cx| Poll::Ready(asked.as_mut().poll(cx))).await {
            Poll::Ready(answered) => answered,
            Poll::Pending => {
                self.at(When::During, order).await;
                asked.await
            }
        };
        self.at(When::After, order).await;
        answered
    }

    async fn observe_site(
        &self,
        site: &Site,
        nodes: &[(NodeId, MachineId)],
    ) -> std::result::Result<Vec<Sighting>, Fault> {
        self.gate.alive().await;
        self.world.sim.observe_site(site, nodes).await
    }

    async fn find_at_site(
        &self,
        site: &Site,
        target: &Target,
    ) -> std::result::Result<Option<UpstreamSeen>, Fault> {
        self.gate.alive().await;
        self.world.sim.find_at_site(site, target).await
    }

    async fn probe(&self, target: &Target) -> std::result::Result<Vec<Evidence>, Fault> {
        self.gate.alive().await;
        self.world.sim.probe(target).await
    }
}
