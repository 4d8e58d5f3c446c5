//! Claims, leases and turns: which replica works on what, and what happens when one dies.
//!
//! A replica claims under its incarnation and renews that one row. Work starts by a signal; polling
//! is the safety net. Claims of a replica that stopped renewing go back to the queue, and so do
//! those of an earlier incarnation of a starting replica.

mod claim;
mod context;
mod failure_detector;
pub(crate) mod lifecycle;

use crate::Engine;
use crate::admission::FIRST_EPOCH;
use crate::notify::NotifierTurn;
use crate::turn::Turn;
use claim::claim;
use failure_detector::FailureDetector;
use model::filter::Filter;
use model::id::{ObjectId, RunId};
use model::lifecycle::SubjectKind;
use model::time::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use store::{
    ClaimedKind, ClaimedObject, ClaimedRun, Replica, ReplicaStatus, Result, Signal, StoreError,
};
use tokio::sync::Notify;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;

/// The number of attempts to release a claim before the claim is left to `requeue_stray_claims`.
const RELEASE_TRIES: u32 = 5;
/// The version of this program, which a replica registers.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The most objects that one transaction claims.
const MAX_CLAIM: usize = 128;
/// The backoff of an object whose record cannot be read, or whose turn panicked.
const POISON_BACKOFF: Duration = Duration::from_secs(30);

/// An object that the database lists as claimed by this replica, and the epoch of the claim.
type StrayClaim = (ObjectId, i64);

/// Claims what is due, renews the lease, and runs the turns.
#[derive(Clone)]
pub struct Scheduler(pub(crate) Engine);

/// The in-memory state of the scheduler.
pub(crate) struct SchedulerState {
    replica: Replica,
    /// The claimed objects of this replica, and how to wake the turn of each.
    claimed: Mutex<BTreeMap<ObjectId, Arc<Notify>>>,
    /// The number of them that are parents and only wait for their children.
    waiting: AtomicUsize,
    work_signal: Notify,
    /// The time when the last successful renewal began.
    renewed_at: Mutex<Instant>,
}

impl SchedulerState {
    pub fn new(replica: Replica) -> Self {
        Self {
            replica,
            claimed: Mutex::default(),
            waiting: AtomicUsize::new(0),
            work_signal: Notify::new(),
            renewed_at: Mutex::new(Instant::now()),
        }
    }
}

impl Scheduler {
    fn state(&self) -> &SchedulerState {
        self.0.scheduler_state()
    }

    /// Registers this replica and starts the background loops.
    pub(crate) async fn start_up(&self) -> Result<()> {
        let released = self.register_replica().await?;
        if released > 0 {
            tracing::info!(runs = released, "released the claims of the previous incarnation");
        }
        tokio::spawn(self.clone().run_dispatcher());
        tokio::spawn(self.clone().run_claims());
        tokio::spawn(self.clone().run_lease());
        Ok(())
    }

    /// The number of claimed runs and records.
    pub fn in_flight(&self) -> usize {
        self.claimed().len()
    }

    /// The number of claimed objects that are not parents waiting for their children. Parents do
    /// not count against the limit: a worker full of parents would have no slot left for their
    /// children.
    fn active_count(&self) -> usize {
        self.in_flight().saturating_sub(self.state().waiting.load(Ordering::Relaxed))
    }

    /// Marks a claimed run as waiting for its children, until the guard is dropped.
    pub(crate) fn mark_waiting(&self) -> WaitingGuard {
        self.state().waiting.fetch_add(1, Ordering::Relaxed);
        self.state().work_signal.notify_one();
        WaitingGuard(self.clone())
    }

    fn claimed(&self) -> std::sync::MutexGuard<'_, BTreeMap<ObjectId, Arc<Notify>>> {
        self.state().claimed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if no replica can have expired this one yet, by this process's monotonic clock.
    pub(crate) fn lease_is_fresh(&self) -> bool {
        let renewed = *self.state().renewed_at.lock().unwrap_or_else(PoisonError::into_inner);
        renewed.elapsed() < self.0.settings().lease
    }

    /// The owner of a run that is claimed as it is created; none when all slots are taken.
    pub(crate) fn eager_owner(&self) -> Option<String> {
        let room = self.active_count() < self.0.settings().eager_in_flight;
        (room && !self.0.is_stopping()).then(|| self.state().replica.incarnation.clone())
    }

    /// Runs the turn of a claimed run in the background.
    pub(crate) fn spawn_turn(&self, claimed: ClaimedRun) {
        let id = claimed.run.spec.id.object();
        let epoch = claimed.epoch;
        let woken = Arc::new(Notify::new());
        self.claimed().insert(id.clone(), Arc::clone(&woken));
        let turn = tokio::spawn(Turn::new(self.0.clone(), claimed, Arc::clone(&woken)).run());
        let scheduler = self.clone();
        tokio::spawn(async move {
            let ended = turn.await;
            scheduler.remove_turn(&id, &woken);
            if let Err(error) = ended
                && error.is_panic()
            {
                tracing::error!(run = %id, "the turn of a run panicked; it is retried after a backoff");
                metrics::counter!("farrier_turn_panics_total").increment(1);
                scheduler.requeue_with_backoff(id, epoch).await;
            }
        });
    }

    /// Runs the turn of a claimed record in the background.
    fn spawn_record_turn(&self, claimed: ClaimedObject, kind: SubjectKind) {
        let scheduler = self.clone();
        let (id, epoch) = (claimed.id.clone(), claimed.epoch);
        let turn = async move { scheduler.advance_record(&claimed, kind).await };
        self.spawn_claimed(id, epoch, Arc::new(Notify::new()), turn);
    }

    /// Sends the notices of a claimed notifier in the background, for as long as this replica has
    /// the claim. It waits most of the time, so it takes no slot.
    fn spawn_notifier_turn(&self, claimed: ClaimedObject) {
        let woken = Arc::new(Notify::new());
        let (id, epoch) = (claimed.id.clone(), claimed.epoch);
        let waiting = self.mark_waiting();
        let turn = NotifierTurn::new(self.0.clone(), claimed, Arc::clone(&woken));
        self.spawn_claimed(id, epoch, woken, async move {
            turn.run().await;
            drop(waiting);
        });
    }

    fn spawn_claimed(
        &self,
        id: ObjectId,
        epoch: i64,
        woken: Arc<Notify>,
        turn: impl Future<Output = ()> + Send + 'static,
    ) {
        self.claimed().insert(id.clone(), Arc::clone(&woken));
        let turn = tokio::spawn(turn);
        let scheduler = self.clone();
        tokio::spawn(async move {
            let ended = turn.await;
            scheduler.remove_turn(&id, &woken);
            if ended.is_err_and(|error| error.is_panic()) {
                tracing::error!(%id, "the turn of a record panicked; it is retried after a backoff");
                metrics::counter!("farrier_turn_panics_total").increment(1);
                scheduler.requeue_with_backoff(id, epoch).await;
            }
        });
    }

    /// Puts back a run that may have been created and claimed although its commit failed.
    pub(crate) async fn release_uncertain_claim(self, id: RunId) {
        for _ in 0..RELEASE_TRIES {
            if self.requeue(id.object(), FIRST_EPOCH, self.0.now()).await.is_ok() {
                return;
            }
            tokio::time::sleep(self.0.settings().renew_interval).await;
        }
    }

    /// Forgets a turn that ended, but not a later turn on the same object under a new claim.
    fn remove_turn(&self, id: &ObjectId, woken: &Arc<Notify>) {
        let mut claimed = self.claimed();
        if claimed.get(id).is_some_and(|current| Arc::ptr_eq(current, woken)) {
            claimed.remove(id);
            // A slot is free.
            self.state().work_signal.notify_one();
        }
    }

    pub(crate) async fn requeue_with_backoff(&self, id: ObjectId, epoch: i64) {
        let due = self.0.now() + POISON_BACKOFF;
        if let Err(error) = self.requeue(id.clone(), epoch, due).await {
            tracing::error!(run = %id, %error, "cannot return the run to the queue; the check for stray claims will");
        }
    }

    async fn requeue(&self, id: ObjectId, epoch: i64, due: Timestamp) -> Result<()> {
        let input = (id, epoch, due);
        let body = self.0.store().write("put_back", input, |(id, epoch, due), tx| {
            Box::pin(async move { tx.release_unhandled(id, *epoch, *due) })
        });
        body.await
    }

    pub(crate) async fn register_replica(&self) -> Result<u64> {
        let now = self.0.now();
        let input = (self.state().replica.clone(), now, now + self.0.settings().lease);
        let registered =
            self.0.store().write("register_replica", input, |(replica, now, expires), tx| {
                Box::pin(tx.register_replica(replica, VERSION, *now, *expires))
            });
        registered.await
    }

    /// Turns signals into wake-ups.
    async fn run_dispatcher(self) {
        let mut signals = self.0.store().bus().listen();
        loop {
            match signals.recv().await {
                Ok(Signal::Work) => self.state().work_signal.notify_one(),
                Ok(Signal::Wake(id)) => self.wake_claimed(&id),
                Ok(Signal::Event) => self.0.hub().notify_events(),
                Ok(Signal::Log(id)) => self.0.hub().notify_log(&id),
                // The access control has a receiver of its own.
                Ok(Signal::Access) => {}
                Err(RecvError::Lagged(_)) => {
                    self.state().work_signal.notify_one();
                    self.0.hub().notify_all();
                    self.claimed().values().for_each(|woken| woken.notify_one());
                }
                Err(RecvError::Closed) => return,
            }
        }
    }

    fn wake_claimed(&self, id: &ObjectId) {
        if let Some(woken) = self.claimed().get(id) {
            woken.notify_one();
        }
    }

    /// Claims due objects while slots are free.
    async fn run_claims(self) {
        loop {
            let wait = self.claim_round().await;
            tokio::select! {
                biased;
                () = self.0.stopped() => return,
                () = self.state().work_signal.notified() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Claims until nothing is due or no slot is free. Returns the wait until the next round.
    async fn claim_round(&self) -> Duration {
        let poll = self.0.settings().poll_interval;
        loop {
            let room = self.0.settings().max_in_flight.saturating_sub(self.active_count());
            let limit = room.min(MAX_CLAIM);
            if limit == 0 || self.0.is_stopping() {
                return poll;
            }
            let input = (self.state().replica.incarnation.clone(), self.0.now(), limit as i64);
            let claimed = self.0.store().write("claim", input, |(owner, now, limit), tx| {
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
                    tracing::warn!(%error, "claiming due work failed");
                    return poll;
                }
            }
        }
        match self.0.store().read((), |(), tx| Box::pin(tx.next_due())).await {
            Ok(Some(due)) => due.since(self.0.now()).min(poll),
            Ok(None) | Err(_) => poll,
        }
    }

    async fn start_claimed(&self, claimed: ClaimedObject, claim: Result<ClaimedRun>) {
        match (claimed.kind, claim) {
            (ClaimedKind::Record(kind), _) => self.spawn_record_turn(claimed, kind),
            (ClaimedKind::Notifier, _) => self.spawn_notifier_turn(claimed),
            (ClaimedKind::Run, Ok(claim)) => self.spawn_turn(claim),
            (ClaimedKind::Run, Err(error)) => {
                // An unreadable row must not stop the worker or the other claims.
                tracing::error!(run = %claimed.id, %error, "a claimed run cannot be read; it is retried later");
                metrics::counter!("farrier_unreadable_records_total").increment(1);
                self.requeue_with_backoff(claimed.id, claimed.epoch).await;
            }
        }
    }

    /// Renews the lease, expires dead replicas, and finds wake-ups and claims that signals missed.
    async fn run_lease(self) {
        let mut strays: BTreeSet<StrayClaim> = BTreeSet::new();
        let mut detector = FailureDetector::default();
        loop {
            tokio::select! {
                biased;
                () = self.0.stopped() => return,
                () = tokio::time::sleep(self.0.settings().renew_interval) => {}
            }
            if let Err(error) = self.renew_lease().await {
                tracing::warn!(%error, "lease renewal failed; the claims expire unless a retry succeeds");
                continue;
            }
            self.expire_replicas(&mut detector).await;
            let owner = self.state().replica.incarnation.clone();
            let woken = self.0.store().read(owner, |owner, tx| Box::pin(tx.unhandled_wakes(owner)));
            if let Ok(woken) = woken.await {
                woken.iter().for_each(|id| self.wake_claimed(id));
            }
            strays = self.requeue_stray_claims(strays).await;
        }
    }

    /// Expires each replica whose heartbeat has not changed for the length of a lease.
    async fn expire_replicas(&self, detector: &mut FailureDetector) {
        let heartbeats =
            match self.0.store().read((), |(), tx| Box::pin(tx.replica_heartbeats())).await {
                Ok(heartbeats) => heartbeats,
                Err(error) => {
                    return tracing::warn!(%error, "cannot read the heartbeats of the replicas");
                }
            };
        let others =
            heartbeats.into_iter().filter(|one| one.replica != self.state().replica).collect();
        for observed in detector.detect_silent(others, Instant::now(), self.0.settings().lease) {
            let replica = observed.replica.name.clone();
            let input = (observed, self.0.now());
            let expired = self.0.store().write("expire_replica", input, |(observed, now), tx| {
                Box::pin(tx.expire_replica(observed, *now))
            });
            match expired.await {
                Ok(true) => {
                    tracing::warn!(%replica, "gave up for dead; its claims are back in the queue")
                }
                // It has sent a heartbeat since, or another replica expired it first.
                Ok(false) => {}
                Err(error) => tracing::warn!(%replica, %error, "cannot expire the replica"),
            }
        }
    }

    pub(crate) async fn renew_lease(&self) -> Result<()> {
        let begun = Instant::now();
        let now = self.0.now();
        let input = (self.state().replica.clone(), now, now + self.0.settings().lease);
        let renewed = self.0.store().write("renew_lease", input, |(replica, now, expires), tx| {
            Box::pin(tx.renew_lease(replica, *now, *expires))
        });
        match renewed.await {
            Err(StoreError::Conflict) => {
                tracing::error!(
                    replica = %self.state().replica.name,
                    "this replica was given up for dead, or another one uses its name; starting afresh"
                );
                self.register_replica().await?;
                // Other replicas own the claims by now. Waking the turns makes them notice it,
                // instead of waiting for hardware first.
                self.claimed().values().for_each(|woken| woken.notify_one());
            }
            other => other?,
        }
        *self.state().renewed_at.lock().unwrap_or_else(PoisonError::into_inner) = begun;
        Ok(())
    }

    /// Puts back claims that the database lists and this process does not know: their commit was
    /// reported lost, but took effect. A stray is put back when two checks in a row find it under
    /// the same epoch: a record is claimed for a moment, over and over.
    async fn requeue_stray_claims(
        &self,
        seen_before: BTreeSet<StrayClaim>,
    ) -> BTreeSet<StrayClaim> {
        let owner = self.state().replica.incarnation.clone();
        let claim = self.0.store().read(owner, |owner, tx| Box::pin(tx.claimed_by(owner)));
        let Ok(claim) = claim.await else {
            return seen_before;
        };
        let strays: BTreeSet<StrayClaim> = {
            let claimed = self.claimed();
            claim.into_iter().filter(|(id, _)| !claimed.contains_key(id)).collect()
        };
        for (id, epoch) in strays.intersection(&seen_before) {
            tracing::warn!(run = %id, "releasing a claim that has no turn in this process");
            if let Err(error) = self.requeue(id.clone(), *epoch, self.0.now()).await {
                tracing::warn!(run = %id, %error, "releasing the claim failed");
            }
        }
        strays
    }

    /// Stops claiming, waits at most twice the grace period for turns, and releases the rest.
    pub(crate) async fn shut_down(&self) {
        self.0.stop();
        let timeouts = self.0.settings().grace_period * 2;
        let drained = async {
            while self.in_flight() > 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        if tokio::time::timeout(timeouts, drained).await.is_err() {
            tracing::warn!(
                runs = self.in_flight(),
                "turns were still active after the grace period"
            );
        }
        let input = (self.state().replica.clone(), self.0.now());
        let deregistered =
            self.0.store().write("deregister_replica", input, |(replica, now), tx| {
                Box::pin(tx.deregister_replica(replica, *now))
            });
        match deregistered.await {
            Ok(handed_back) => tracing::info!(runs = handed_back, "released the remaining claims"),
            Err(error) => tracing::warn!(%error, "deregistering failed; the claims will expire"),
        }
    }

    /// The shard of the fleet that this replica polls: its index and the number of shards.
    pub(crate) async fn shard(&self) -> (u64, u64) {
        let names = self.alive_replicas().await.unwrap_or_default();
        let position = names.iter().position(|name| *name == self.0.settings().replica);
        match position {
            Some(position) => (position as u64, names.len() as u64),
            None => (0, 1),
        }
    }

    /// The replicas that match, with their claims, ordered by name.
    pub async fn replicas(
        &self,
        filter: Filter,
        after: &str,
        limit: i64,
    ) -> Result<Vec<ReplicaStatus>> {
        let input = (filter, after.to_string(), limit);
        let found = self
            .0
            .store()
            .scan(input, |(filter, after, limit), tx| Box::pin(tx.replicas(filter, after, *limit)));
        found.await
    }

    /// The names of the replicas that are alive.
    pub(crate) async fn alive_replicas(&self) -> Result<Vec<String>> {
        let pulses = self.0.store().read((), |(), tx| Box::pin(tx.replica_heartbeats())).await?;
        Ok(pulses.into_iter().map(|heartbeat| heartbeat.replica.name).collect())
    }
}

/// Guard of a claimed run that waits for its children.
pub(crate) struct WaitingGuard(Scheduler);

impl Drop for WaitingGuard {
    fn drop(&mut self) {
        self.0.state().waiting.fetch_sub(1, Ordering::Relaxed);
    }
}
