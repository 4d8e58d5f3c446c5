//! One case of the crash matrix: the processes, the injection at the crash point, and the checks
//! while the rest of the scenario runs.

use crate::clients::{Client, operator};
use crate::device_fixture::run_to_cancel;
use crate::injection::Injection;
use crate::machine_scenarios::MACHINE;
use crate::scenario::Fixture;
use crate::test_env::{BACKOFF, Process, TestEnv};
use model::condition::ConditionType;
use model::id::RunId;
use model::machine::Phase;
use model::run::Workflow;
use model::run::actions::Action;
use model::time::Timestamp;
use std::collections::{HashMap, HashSet};
use std::time::Duration;
use store::{ClaimedObject, Result, Tx};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

/// In simulated time.
pub const SCRIPT_TIMEOUT: Duration = Duration::from_secs(3_600);
pub const SCRIPT_TIMED_OUT: &str = "the client never got to the end of it";
/// Long enough for a lease to expire and for another replica to notice.
const LEASE_EXPIRES_WITHIN: Duration = Duration::from_secs(10);
/// Within this time another replica claims the objects of a dead one.
const TAKEN_OVER_WITHIN: Duration = Duration::from_secs(10);
/// A cancel takes effect at once, not at the end of a backoff.
const CANCELED_WITHIN: Duration = BACKOFF.checked_div(4).unwrap();

/// A cancel that was accepted.
pub struct Canceled {
    run: RunId,
    /// The phase of the machine when the cancel was accepted; none for other targets.
    phase: Option<Phase>,
    at: Instant,
}

impl Canceled {
    /// After a cancel the phase is unchanged, no run holds the machine, and a condition reports the
    /// cancel, unless a later run exists.
    pub async fn audit(&self, env: &TestEnv) -> Vec<String> {
        let Some(phase) = self.phase else { return Vec::new() };
        let about = env.machine_data(MACHINE).await;
        let last = about.runs.last().filter(|stored| stored.run.spec.id == self.run);
        let Some(stored) =
            last.filter(|stored| stored.run.progress.workflow == Workflow::Cancelled)
        else {
            return Vec::new();
        };
        let (id, machine) = (&stored.run.spec.id, &about.machine);
        let mut problems = Vec::new();
        if machine.phase != phase {
            problems.push(format!(
                "the cancel of {id} changed the phase to {:?} from {phase:?}",
                machine.phase
            ));
        }
        if !machine.is(ConditionType::OperationCanceled) {
            problems.push(format!("no condition reports the cancel of {id}"));
        }
        problems
    }
}

/// The processes of one case, and the problems found.
pub struct CaseExecution<'a> {
    fixture: &'a Fixture,
    env: &'a TestEnv,
    client: &'a Client,
    process: &'a Process,
    replica: Option<Process>,
    alive: Vec<Process>,
    pub problems: Vec<String>,
}

impl<'a> CaseExecution<'a> {
    pub fn new(
        fixture: &'a Fixture,
        env: &'a TestEnv,
        client: &'a Client,
        process: &'a Process,
        replica: Option<Process>,
    ) -> Self {
        let alive = std::iter::once(process.clone()).chain(replica.clone()).collect();
        Self { fixture, env, client, process, replica, alive, problems: Vec::new() }
    }

    /// Returns the cancel, if the injection made one and it was accepted.
    pub async fn inject(&mut self, injection: Injection) -> Option<Canceled> {
        match injection {
            Injection::Restart => {
                self.restart().await;
                None
            }
            Injection::TakeOver => {
                self.process.injector.kill();
                self.switch_client_to_replica();
                self.expect_takeover().await;
                None
            }
            Injection::FreezeUntilTaken => {
                self.switch_client_to_replica();
                sleep(LEASE_EXPIRES_WITHIN - Duration::from_secs(2)).await;
                self.process.injector.thaw();
                None
            }
            Injection::FreezeUntilDone => {
                self.switch_client_to_replica();
                None
            }
            Injection::CutConnection => {
                self.process.injector.cut_connection();
                None
            }
            Injection::Cancel => {
                let canceled = self.cancel(self.process).await;
                self.process.injector.resume();
                canceled
            }
            Injection::CancelAndRestart => {
                let canceled = self.cancel(self.process).await;
                self.restart().await;
                canceled
            }
            Injection::CancelAndFreeze => {
                self.switch_client_to_replica();
                self.cancel(self.replica()).await
            }
            Injection::StealClaims => {
                self.steal_claims().await;
                None
            }
        }
    }

    async fn restart(&mut self) {
        self.process.injector.kill();
        sleep(Duration::from_millis(300)).await;
        let again = self.env.boot("one").await;
        self.client.switch_to(&again.engine);
        self.alive = vec![again];
    }

    fn switch_client_to_replica(&self) {
        self.client.switch_to(&self.replica().engine);
    }

    fn replica(&self) -> &Process {
        self.replica.as_ref().expect("another replica")
    }

    async fn cancel(&self, by: &Process) -> Option<Canceled> {
        let run = run_to_cancel(self.env).await?;
        let phase = match self.fixture {
            Fixture::Machine(_) => Some(self.env.machine(MACHINE).await.phase),
            Fixture::Devices(_) => None,
        };
        let id = run.spec.id;
        let reported = by.engine.runs().act(id.clone(), Action::Cancel, operator()).await;
        reported.ok().map(|_| Canceled { run: id, phase, at: Instant::now() })
    }

    /// A process that wakes without its claims writes nothing, starts no child run and moves no
    /// record.
    async fn steal_claims(&mut self) {
        let now = self.env.now();
        let stolen =
            self.env.store.write("steal", now, |now, tx| Box::pin(steal_all_claims(tx, *now)));
        let stolen = stolen.await.expect("claimed");
        let ids: HashSet<String> = stolen.iter().map(|one| one.id.to_string()).collect();
        let before = self.count_writes(&ids).await;
        self.process.injector.thaw();
        sleep(LEASE_EXPIRES_WITHIN).await;
        let after = self.count_writes(&ids).await;
        for (what, times) in after.iter().filter(|(what, times)| before.get(*what) != Some(times)) {
            let had = before.get(what).copied().unwrap_or_default();
            self.problems.push(format!("{what} under a claim that had been lost: {had} → {times}"));
        }
        for ClaimedObject { id, epoch, .. } in stolen {
            let due = self.env.now();
            let released =
                self.env.store.write("give_back", (id, epoch, due), |(id, epoch, due), tx| {
                    Box::pin(async move { tx.release_unhandled(id, *epoch, *due) })
                });
            released.await.expect("released");
        }
    }

    /// For these objects: engine writes, epochs, and child runs. Clients may write meanwhile; the
    /// engine may not.
    async fn count_writes(&self, ids: &HashSet<String>) -> HashMap<String, i64> {
        let all = self.env.stored_state().await;
        let mut written: HashMap<String, i64> = HashMap::new();
        for stored in &all.runs {
            let id = stored.run.spec.id.to_string();
            if let Some(parent) = &stored.run.spec.parent_run
                && ids.contains(parent.as_str())
            {
                *written.entry(format!("a part of {parent} was begun")).or_default() += 1;
            }
            if ids.contains(&id) {
                let by_engine = stored.history.iter().filter(|one| one.cause == "engine").count();
                written.insert(format!("{id} was written to"), by_engine as i64);
                written.insert(format!("{id} was claimed"), stored.queue_row.epoch);
                written.insert(
                    format!("{id} was claimed by an owner"),
                    stored.queue_row.owner.is_some().into(),
                );
            }
        }
        for shelf in all.records.shelves.iter().filter(|shelf| ids.contains(&shelf.head.id)) {
            let moved =
                all.histories[&shelf.head.id].iter().filter(|one| one.state == "Maintenance");
            written.insert(format!("{} was moved", shelf.head.id), moved.count() as i64);
        }
        written
    }

    /// Checks that the dead process holds no claims any more.
    async fn expect_takeover(&mut self) {
        sleep(TAKEN_OVER_WITHIN).await;
        for stored in self.env.stored_state().await.runs {
            if stored.queue_row.owner.is_some_and(|owner| owner.starts_with("one#")) {
                let id = stored.run.spec.id;
                self.problems.push(format!("{id} is still claimed by a dead replica"));
            }
        }
    }

    pub async fn await_client(&mut self, client: JoinHandle<()>) {
        match timeout(SCRIPT_TIMEOUT, client).await {
            Ok(Ok(())) => {}
            Ok(Err(panic)) => self.problems.push(format!("the client failed: {panic}")),
            Err(_) => self.problems.push(SCRIPT_TIMED_OUT.into()),
        }
    }

    /// After the script: waits for records to be idle, and wakes a frozen process.
    pub async fn finish_case(&mut self, injection: Injection, canceled: Option<&Canceled>) {
        match self.fixture {
            Fixture::Machine(_) => self.check_cancel_latency(canceled),
            Fixture::Devices(_) => self.env.wait_until_records_idle().await,
        }
        if injection.wakes_at_the_end() {
            self.thaw_after_end().await;
        }
    }

    fn check_cancel_latency(&mut self, canceled: Option<&Canceled>) {
        if let Some(Canceled { at, .. }) = canceled
            && at.elapsed() > CANCELED_WITHIN + LEASE_EXPIRES_WITHIN
        {
            self.problems.push(format!("a cancel took {:?} to be heard", at.elapsed()));
        }
    }

    /// A process that wakes after the end must change nothing.
    async fn thaw_after_end(&mut self) {
        let before = self.env.outcome().await;
        self.process.injector.thaw();
        sleep(LEASE_EXPIRES_WITHIN).await;
        let after = self.env.outcome().await;
        if before != after {
            self.problems.push(format!("it acted when all was over: {before:?} became {after:?}"));
        }
    }

    /// Checks that no process is still working.
    pub async fn settle(&mut self) {
        sleep(LEASE_EXPIRES_WITHIN).await;
        let alive = self.alive.iter().filter(|process| !process.injector.is_dead());
        let busy = alive.filter(|process| process.engine.scheduler().in_flight() > 0);
        let message =
            |process: &Process| format!("{} is still busy", process.engine.settings().replica);
        self.problems.extend(busy.map(message));
    }
}

/// Expires every replica and claims their objects.
async fn steal_all_claims(tx: &mut Tx, now: Timestamp) -> Result<Vec<ClaimedObject>> {
    for heartbeat in tx.replica_heartbeats().await? {
        tx.expire_replica(&heartbeat, now).await?;
    }
    tx.claim_due("another replica", now, 100).await
}
