//! Claiming and leases: which replica works on what, and what happens when one dies.
//!
//! A replica claims under its incarnation and renews that one row. Work starts by a signal; polling is
//! the safety net. Claims of a replica that stopped renewing go back to the queue.

mod claim;

use crate::admission::FIRST_EPOCH;
use crate::clock::Clock;
use crate::failure_detector::FailureDetector;
use crate::nodes::watch::NodeWatch;
use crate::observe::Observer;
use crate::random::Random;
use crate::settings::Settings;
use crate::turn::Turn;
use crate::watch::Hub;
use claim::claim;
use model::id::{MachineId, ObjectId, RunId};
use model::lifecycle::SubjectKind;
use model::plan::Defaults;
use model::run::Policy;
use model::time::Timestamp;
use providers::Providers;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use store::{Claimed, ClaimedRun, Replica, Result, Signal, Store, StoreError};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// How often a release is tried before the search for strays is left to find the claim.
const RELEASE_TRIES: u32 = 5;
/// How many runs one claim takes at most.
const MAX_CLAIM: usize = 128;
/// How long a run whose record cannot be read, or whose turn panicked, is left alone.
const POISON_REST: Duration = Duration::from_secs(30);

/// What the database says that we hold, and under which claim.
type Stray = (ObjectId, i64);

#[derive(Clone)]
pub struct Engine(Arc<Inner>, Store);

struct Inner {
    providers: Providers,
    settings: Settings,
    clock: Clock,
    random: Random,
    replica: Replica,
    /// The runs in hand, and how to wake each.
    in_hand: Mutex<BTreeMap<ObjectId, Arc<Notify>>>,
    /// How many of them only wait for others.
    waiting: AtomicUsize,
    work: Notify,
    stopping: watch::Sender<bool>,
    /// When the last renewal that held was begun.
    renewed: Mutex<Instant>,
    hub: Hub,
    observer: Observer,
    nodes: NodeWatch,
}

impl Engine {
    /// Announces this replica and starts working. Returns when it is ready for requests.
    pub async fn start_up(
        store: Store,
        providers: Providers,
        settings: Settings,
        clock: Clock,
        random: Random,
    ) -> Result<Self> {
        let incarnation = format!("{}#{:016x}", settings.replica, random());
        let replica = Replica { name: settings.replica.clone(), incarnation };
        let inner = Arc::new(Inner {
            hub: Hub::new(store.clone()),
            providers,
            settings,
            clock,
            random,
            replica,
            in_hand: Mutex::default(),
            waiting: AtomicUsize::new(0),
            work: Notify::new(),
            stopping: watch::Sender::new(false),
            renewed: Mutex::new(Instant::now()),
            observer: Observer::default(),
            nodes: NodeWatch::default(),
        });
        let engine = Self(inner, store);
        let freed = engine.enlist().await?;
        if freed > 0 {
            tracing::info!(runs = freed, "took back the runs of the last start");
        }
        tokio::spawn(engine.clone().run_dispatcher());
        tokio::spawn(engine.clone().run_claims());
        tokio::spawn(engine.clone().run_lease());
        tokio::spawn(engine.clone().run_probes());
        tokio::spawn(engine.clone().run_surveys());
        tokio::spawn(engine.clone().run_nodes());
        tokio::spawn(engine.clone().run_tail());
        tokio::spawn(engine.clone().run_retention());
        Ok(engine)
    }

    /// The same engine for a request that may be a dry run: its transaction is rolled back at the
    /// end. Only for requests of one transaction.
    #[must_use]
    pub fn with_dry_run(&self, dry_run: bool) -> Self {
        let store = if dry_run { self.1.dry_run() } else { self.1.clone() };
        Self(Arc::clone(&self.0), store)
    }

    pub fn store(&self) -> &Store {
        &self.1
    }

    pub fn providers(&self) -> &Providers {
        &self.0.providers
    }

    pub fn settings(&self) -> &Settings {
        &self.0.settings
    }

    pub fn hub(&self) -> &Hub {
        &self.0.hub
    }

    pub(crate) fn node_watch(&self) -> &NodeWatch {
        &self.0.nodes
    }

    pub(crate) fn observer(&self) -> &Observer {
        &self.0.observer
    }

    pub fn now(&self) -> Timestamp {
        (self.0.clock)()
    }

    pub(crate) fn random(&self) -> u64 {
        (self.0.random)()
    }

    pub(crate) fn defaults(&self) -> &Defaults {
        &self.0.settings.defaults
    }

    pub(crate) fn policy(&self) -> Policy {
        self.0.settings.policy
    }

    pub(crate) fn grace(&self) -> Duration {
        self.0.settings.grace
    }

    pub(crate) fn look_at(&self, id: &MachineId) {
        self.0.observer.poke(id);
    }

    /// How many runs are in hand.
    pub fn in_flight(&self) -> usize {
        self.hands().len()
    }

    /// How many claimed runs are not parents that wait for their children. Parents do not count
    /// against the limit: a worker full of parents would have no slot left for their children.
    fn at_work(&self) -> usize {
        self.in_flight().saturating_sub(self.0.waiting.load(Ordering::Relaxed))
    }

    /// Says that the run in hand waits for others, until that is dropped.
    pub(crate) fn waits_for_others(&self) -> Waits {
        self.0.waiting.fetch_add(1, Ordering::Relaxed);
        self.0.work.notify_one();
        Waits(self.clone())
    }

    fn hands(&self) -> std::sync::MutexGuard<'_, BTreeMap<ObjectId, Arc<Notify>>> {
        self.0.in_hand.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resolves when the process is to stop.
    pub(crate) async fn stopped(&self) {
        let mut stopping = self.0.stopping.subscribe();
        // The sender lives as long as the engine; should it be gone, that is a stop too.
        let _ = stopping.wait_for(|stop| *stop).await;
    }

    pub(crate) fn is_stopping(&self) -> bool {
        *self.0.stopping.borrow()
    }

    /// Whether nobody can have given us up for dead yet, by our own steady clock.
    pub(crate) fn lease_is_fresh(&self) -> bool {
        let renewed = *self.0.renewed.lock().unwrap_or_else(PoisonError::into_inner);
        renewed.elapsed() < self.0.settings.lease
    }

    /// Under which name a new run is born in our hands; none when they are full.
    pub(crate) fn eager_owner(&self) -> Option<String> {
        let room = self.at_work() < self.0.settings.eager_in_flight;
        (room && !self.is_stopping()).then(|| self.0.replica.incarnation.clone())
    }

    /// Works on a claimed run in the background.
    pub(crate) fn spawn_turn(&self, held: ClaimedRun) {
        let id = held.run.spec.id.object();
        let epoch = held.epoch;
        let woken = Arc::new(Notify::new());
        self.hands().insert(id.clone(), Arc::clone(&woken));
        let turn = tokio::spawn(Turn::new(self.clone(), held, Arc::clone(&woken)).run());
        let engine = self.clone();
        tokio::spawn(async move {
            let ended = turn.await;
            engine.release_turn(&id, &woken);
            if let Err(error) = ended
                && error.is_panic()
            {
                tracing::error!(run = %id, "the worker of a run panicked; it rests and is tried again");
                metrics::counter!("farrier_turn_panics_total").increment(1);
                engine.put_back(id, epoch).await;
            }
        });
    }

    /// Moves a claimed record on in the background.
    fn spawn_record_turn(&self, claimed: Claimed, kind: SubjectKind) {
        let woken = Arc::new(Notify::new());
        self.hands().insert(claimed.id.clone(), Arc::clone(&woken));
        let engine = self.clone();
        let id = claimed.id.clone();
        let epoch = claimed.epoch;
        let turn = tokio::spawn(async move { engine.advance(&claimed, kind).await });
        let engine = self.clone();
        tokio::spawn(async move {
            let ended = turn.await;
            engine.release_turn(&id, &woken);
            if ended.is_err_and(|error| error.is_panic()) {
                tracing::error!(%id, "the turn of a record panicked; it rests and is tried again");
                metrics::counter!("farrier_turn_panics_total").increment(1);
                engine.put_back(id, epoch).await;
            }
        });
    }

    /// Puts back a run that a transaction may have claimed although its answer was lost.
    pub(crate) async fn release_unknown(self, id: RunId) {
        for _ in 0..RELEASE_TRIES {
            if self.write_back(id.object(), FIRST_EPOCH, self.now()).await.is_ok() {
                return;
            }
            tokio::time::sleep(self.0.settings.renew).await;
        }
    }

    /// Forgets a turn that ended; a later one on the same run, under a new claim, stays.
    fn release_turn(&self, id: &ObjectId, woken: &Arc<Notify>) {
        let mut hands = self.hands();
        if hands.get(id).is_some_and(|current| Arc::ptr_eq(current, woken)) {
            hands.remove(id);
            // There is room for another one.
            self.0.work.notify_one();
        }
    }

    pub(crate) async fn put_back(&self, id: ObjectId, epoch: i64) {
        let due = self.now() + POISON_REST;
        if let Err(error) = self.write_back(id.clone(), epoch, due).await {
            tracing::error!(run = %id, %error, "cannot put a run back; it will be found as a stray");
        }
    }

    async fn write_back(&self, id: ObjectId, epoch: i64, due: Timestamp) -> Result<()> {
        let input = (id, epoch, due);
        let body = self.store().write("put_back", input, |(id, epoch, due), tx| {
            Box::pin(async move { tx.put_back(id, *epoch, *due) })
        });
        body.await
    }

    async fn enlist(&self) -> Result<u64> {
        let now = self.now();
        let input = (self.0.replica.clone(), now, now + self.0.settings.lease);
        let enlisted =
            self.store().write("register_replica", input, |(replica, now, expires), tx| {
                Box::pin(tx.register_replica(replica, *now, *expires))
            });
        enlisted.await
    }

    /// Turns signals into wake-ups.
    async fn run_dispatcher(self) {
        let mut signals = self.store().bus().listen();
        loop {
            match signals.recv().await {
                Ok(Signal::Work) => self.0.work.notify_one(),
                Ok(Signal::Wake(id)) => self.wake_in_hand(&id),
                Ok(Signal::Event) => self.hub().events_came(),
                Ok(Signal::Log(id)) => self.hub().log_came(&id),
                Err(RecvError::Lagged(_)) => {
                    self.0.work.notify_one();
                    self.hub().all_came();
                    self.hands().values().for_each(|woken| woken.notify_one());
                }
                Err(RecvError::Closed) => return,
            }
        }
    }

    fn wake_in_hand(&self, id: &ObjectId) {
        if let Some(woken) = self.hands().get(id) {
            woken.notify_one();
        }
    }

    /// Claims what is due, as long as there is room.
    async fn run_claims(self) {
        loop {
            let wait = self.claim_round().await;
            tokio::select! {
                biased;
                () = self.stopped() => return,
                () = self.0.work.notified() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Claims until nothing is due; how long to wait for what falls due next.
    async fn claim_round(&self) -> Duration {
        let poll = self.0.settings.poll;
        loop {
            let room = self.0.settings.max_in_flight.saturating_sub(self.at_work());
            let limit = room.min(MAX_CLAIM);
            if limit == 0 || self.is_stopping() {
                return poll;
            }
            let input = (self.0.replica.incarnation.clone(), self.now(), limit as i64);
            let claimed = self.store().write("claim", input, |(owner, now, limit), tx| {
                Box::pin(claim(tx, owner, *now, *limit))
            });
            match claimed.await {
                Ok(claimed) => {
                    let count = claimed.len();
                    for (one, held) in claimed {
                        self.start_claimed(one, held).await;
                    }
                    if count < limit {
                        break;
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot claim work");
                    return poll;
                }
            }
        }
        match self.store().read((), |(), tx| Box::pin(tx.next_due())).await {
            Ok(Some(due)) => due.since(self.now()).min(poll),
            Ok(None) | Err(_) => poll,
        }
    }

    async fn start_claimed(&self, claimed: Claimed, held: Result<ClaimedRun>) {
        match (claimed.kind, held) {
            (Some(kind), _) => self.spawn_record_turn(claimed, kind),
            (None, Ok(held)) => self.spawn_turn(held),
            (None, Err(error)) => {
                // One bad row must not take the worker or its neighbours with it.
                tracing::error!(run = %claimed.id, %error, "a claimed run cannot be read; it rests");
                metrics::counter!("farrier_unreadable_records_total").increment(1);
                self.put_back(claimed.id, claimed.epoch).await;
            }
        }
    }

    /// Renews the lease, frees what the dead held, and finds what signals missed.
    async fn run_lease(self) {
        let mut strays: BTreeSet<Stray> = BTreeSet::new();
        let mut detector = FailureDetector::default();
        loop {
            tokio::select! {
                biased;
                () = self.stopped() => return,
                () = tokio::time::sleep(self.0.settings.renew) => {}
            }
            if let Err(error) = self.renew().await {
                tracing::warn!(%error, "cannot renew the lease");
                continue;
            }
            self.bury_the_dead(&mut detector).await;
            let owner = self.0.replica.incarnation.clone();
            let woken = self.store().read(owner, |owner, tx| Box::pin(tx.woken(owner)));
            if let Ok(woken) = woken.await {
                woken.iter().for_each(|id| self.wake_in_hand(id));
            }
            strays = self.put_back_strays(strays).await;
        }
    }

    /// Gives up for dead whoever has been silent for the length of a lease.
    async fn bury_the_dead(&self, detector: &mut FailureDetector) {
        let pulses = match self.store().read((), |(), tx| Box::pin(tx.replica_heartbeats())).await {
            Ok(pulses) => pulses,
            Err(error) => return tracing::warn!(%error, "cannot look for dead replicas"),
        };
        let others = pulses.into_iter().filter(|pulse| pulse.replica != self.0.replica).collect();
        for pulse in detector.silent(others, Instant::now(), self.0.settings.lease) {
            let replica = pulse.replica.name.clone();
            let input = (pulse, self.now());
            let buried = self.store().write("expire_replica", input, |(pulse, now), tx| {
                Box::pin(tx.expire_replica(pulse, *now))
            });
            match buried.await {
                Ok(true) => tracing::warn!(%replica, "gave up for dead; its runs go on here"),
                // It lives after all, or another was quicker.
                Ok(false) => {}
                Err(error) => tracing::warn!(%replica, %error, "cannot give it up for dead"),
            }
        }
    }

    pub(crate) async fn renew(&self) -> Result<()> {
        let begun = Instant::now();
        let expires = self.now() + self.0.settings.lease;
        let input = (self.0.replica.clone(), expires);
        let renewed = self.store().write("renew_lease", input, |(replica, expires), tx| {
            Box::pin(tx.renew(replica, *expires))
        });
        match renewed.await {
            Err(StoreError::Conflict) => {
                tracing::error!(
                    replica = %self.0.replica.name,
                    "this replica was given up for dead, or another one uses its name; starting afresh"
                );
                self.enlist().await?;
                // What was in hand is in other hands by now: nobody waits for hardware in vain.
                self.hands().values().for_each(|woken| woken.notify_one());
            }
            other => other?,
        }
        *self.0.renewed.lock().unwrap_or_else(PoisonError::into_inner) = begun;
        Ok(())
    }

    /// Puts back claims that the database lists and this process does not know: their commit was
    /// reported lost, but held. A stray is seen twice, under the same claim, before it is put back.
    async fn put_back_strays(&self, seen_before: BTreeSet<Stray>) -> BTreeSet<Stray> {
        let owner = self.0.replica.incarnation.clone();
        let held = self.store().read(owner, |owner, tx| Box::pin(tx.claimed_by(owner)));
        let Ok(held) = held.await else {
            return seen_before;
        };
        let strays: BTreeSet<Stray> = {
            let hands = self.hands();
            held.into_iter().filter(|(id, _)| !hands.contains_key(id)).collect()
        };
        for (id, epoch) in strays.intersection(&seen_before) {
            tracing::warn!(run = %id, "a claim was found that nobody works on");
            if let Err(error) = self.write_back(id.clone(), *epoch, self.now()).await {
                tracing::warn!(run = %id, %error, "cannot put it back");
            }
        }
        strays
    }

    /// Stops claiming, lets short effects finish, hands the rest back.
    pub async fn shut_down(&self) {
        self.0.stopping.send_replace(true);
        let patience = self.0.settings.grace * 2;
        let drained = async {
            while self.in_flight() > 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        if tokio::time::timeout(patience, drained).await.is_err() {
            tracing::warn!(runs = self.in_flight(), "not every run could be let go of in time");
        }
        let input = (self.0.replica.clone(), self.now());
        let resigned = self.store().write("deregister_replica", input, |(replica, now), tx| {
            Box::pin(tx.deregister_replica(replica, *now))
        });
        match resigned.await {
            Ok(handed_back) => tracing::info!(runs = handed_back, "handed back"),
            Err(error) => tracing::warn!(%error, "cannot hand back; the lease will run out"),
        }
    }
}

/// A run in hand that waits for others.
pub(crate) struct Waits(Engine);

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}
