//! One case of the crash matrix: the processes, the injection at the crash point, and the checks
//! while the rest of the scenario runs.

use crate::clients::{Door, operator};
use crate::device_fixture::at_work;
use crate::injection::Injection;
use crate::machine_scenarios::MACHINE;
use crate::scenario::Fixture;
use crate::world::{BACKOFF, Process, World};
use model::condition::ConditionType;
use model::id::RunId;
use model::machine::Phase;
use model::run::Workflow;
use model::run::act::Action;
use model::time::Timestamp;
use std::collections::{HashMap, HashSet};
use std::time::Duration;
use store::{Claimed, Result, Tx};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

/// In simulated time.
pub const SCRIPT_TIMEOUT: Duration = Duration::from_secs(3_600);
pub const NEVER_ENDED: &str = "the client never got to the end of it";
/// Long enough for a lease to expire and for another replica to notice.
const GIVEN_UP: Duration = Duration::from_secs(10);
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
    pub async fn audit(&self, world: &World) -> Vec<String> {
        let Some(phase) = self.phase else { return Vec::new() };
        let about = world.about(MACHINE).await;
        let last = about.runs.last().filter(|kept| kept.run.spec.id == self.run);
        let Some(kept) = last.filter(|kept| kept.run.progress.workflow == Workflow::Cancelled)
        else {
            return Vec::new();
        };
        let (id, machine) = (&kept.run.spec.id, &about.machine);
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
pub struct Environment<'a> {
    fixture: &'a Fixture,
    world: &'a World,
    door: &'a Door,
    one: &'a Process,
    other: Option<Process>,
    alive: Vec<Process>,
    pub problems: Vec<String>,
}

impl<'a> Environment<'a> {
    pub fn new(
        fixture: &'a Fixture,
        world: &'a World,
        door: &'a Door,
        one: &'a Process,
        other: Option<Process>,
    ) -> Self {
        let alive = std::iter::once(one.clone()).chain(other.clone()).collect();
        Self { fixture, world, door, one, other, alive, problems: Vec::new() }
    }

    /// Returns the cancel, if the injection made one and it was accepted.
    pub async fn inject(&mut self, injection: Injection) -> Option<Canceled> {
        match injection {
            Injection::Restart => {
                self.restart().await;
                None
            }
            Injection::TakeOver => {
                self.one.gate.kill();
                self.lead_to_the_other();
                self.expect_takeover().await;
                None
            }
            Injection::FreezeUntilTaken => {
                self.lead_to_the_other();
                sleep(GIVEN_UP - Duration::from_secs(2)).await;
                self.one.gate.thaw();
                None
            }
            Injection::FreezeUntilDone => {
                self.lead_to_the_other();
                None
            }
            Injection::CutConnection => {
                self.one.gate.cut_the_line();
                None
            }
            Injection::Cancel => {
                let canceled = self.cancel(self.one).await;
                self.one.gate.go_on();
                canceled
            }
            Injection::CancelAndRestart => {
                let canceled = self.cancel(self.one).await;
                self.restart().await;
                canceled
            }
            Injection::CancelAndFreeze => {
                self.lead_to_the_other();
                self.cancel(self.the_other()).await
            }
            Injection::StealClaims => {
                self.steal_claims().await;
                None
            }
        }
    }

    async fn restart(&mut self) {
        self.one.gate.kill();
        sleep(Duration::from_millis(300)).await;
        let again = self.world.boot("one").await;
        self.door.lead_to(&again.engine);
        self.alive = vec![again];
    }

    fn lead_to_the_other(&self) {
        self.door.lead_to(&self.the_other().engine);
    }

    fn the_other(&self) -> &Process {
        self.other.as_ref().expect("another replica")
    }

    async fn cancel(&self, by: &Process) -> Option<Canceled> {
        let run = at_work(self.world).await?;
        let phase = match self.fixture {
            Fixture::Machine(_) => Some(self.world.machine(MACHINE).await.phase),
            Fixture::Devices(_) => None,
        };
        let id = run.spec.id;
        let told = by.engine.runs().act(id.clone(), Action::Cancel, operator()).await;
        told.ok().map(|_| Canceled { run: id, phase, at: Instant::now() })
    }

    /// A process that wakes without its claims writes nothing, starts no child run and moves no
    /// record.
    async fn steal_claims(&mut self) {
        let now = self.world.now();
        let stolen = self.world.store.write("steal", now, |now, tx| Box::pin(steal(tx, *now)));
        let stolen = stolen.await.expect("claimed");
        let ids: HashSet<String> = stolen.iter().map(|one| one.id.to_string()).collect();
        let before = self.written(&ids).await;
        self.one.gate.thaw();
        sleep(GIVEN_UP).await;
        let after = self.written(&ids).await;
        for (what, times) in after.iter().filter(|(what, times)| before.get(*what) != Some(times)) {
            let had = before.get(what).copied().unwrap_or_default();
            self.problems.push(format!("{what} under a claim that had been lost: {had} → {times}"));
        }
        for Claimed { id, epoch, .. } in stolen {
            let due = self.world.now();
            let released =
                self.world.store.write("give_back", (id, epoch, due), |(id, epoch, due), tx| {
                    Box::pin(async move { tx.put_back(id, *epoch, *due) })
                });
            released.await.expect("released");
        }
    }

    /// For these objects: engine writes, epochs, and child runs. Clients may write meanwhile; the
    /// engine may not.
    async fn written(&self, ids: &HashSet<String>) -> HashMap<String, i64> {
        let all = self.world.everything().await;
        let mut written: HashMap<String, i64> = HashMap::new();
        for kept in &all.runs {
            let id = kept.run.spec.id.to_string();
            if let Some(whole) = &kept.run.spec.part_of
                && ids.contains(whole.as_str())
            {
                *written.entry(format!("a part of {whole} was begun")).or_default() += 1;
            }
            if ids.contains(&id) {
                let by_engine = kept.history.iter().filter(|one| one.cause == "engine").count();
                written.insert(format!("{id} was written to"), by_engine as i64);
                written.insert(format!("{id} was claimed"), kept.held.epoch);
                written.insert(
                    format!("{id} was claimed by an owner"),
                    kept.held.owner.is_some().into(),
                );
            }
        }
        for shelf in all.records.shelves.iter().filter(|shelf| ids.contains(&shelf.head.id)) {
            let moved =
                all.histories[&shelf.head.id].iter().filter(|one| one.word == "Maintenance");
            written.insert(format!("{} was moved", shelf.head.id), moved.count() as i64);
        }
        written
    }

    /// Checks that the dead process holds no claims any more.
    async fn expect_takeover(&mut self) {
        sleep(TAKEN_OVER_WITHIN).await;
        for kept in self.world.everything().await.runs {
            if kept.held.owner.is_some_and(|owner| owner.starts_with("one#")) {
                let id = kept.run.spec.id;
                self.problems.push(format!("{id} is still in the hands of the dead"));
            }
        }
    }

    pub async fn await_client(&mut self, client: JoinHandle<()>) {
        match timeout(SCRIPT_TIMEOUT, client).await {
            Ok(Ok(())) => {}
            Ok(Err(panic)) => self.problems.push(format!("the client failed: {panic}")),
            Err(_) => self.problems.push(NEVER_ENDED.into()),
        }
    }

    /// After the script: waits for records to be idle, and wakes a frozen process.
    pub async fn await_rest(&mut self, injection: Injection, canceled: Option<&Canceled>) {
        match self.fixture {
            Fixture::Machine(_) => self.check_cancel(canceled),
            Fixture::Devices(_) => self.world.records_at_rest().await,
        }
        if injection.wakes_at_the_end() {
            self.thaw_too_late().await;
        }
    }

    fn check_cancel(&mut self, canceled: Option<&Canceled>) {
        if let Some(Canceled { at, .. }) = canceled
            && at.elapsed() > CANCELED_WITHIN + GIVEN_UP
        {
            self.problems.push(format!("a cancel took {:?} to be heard", at.elapsed()));
        }
    }

    /// A process that wakes after the end must change nothing.
    async fn thaw_too_late(&mut self) {
        let before = self.world.outcome().await;
        self.one.gate.thaw();
        sleep(GIVEN_UP).await;
        let after = self.world.outcome().await;
        if before != after {
            self.problems.push(format!("it acted when all was over: {before:?} became {after:?}"));
        }
    }

    /// Checks that no process is still working.
    pub async fn settle(&mut self) {
        sleep(GIVEN_UP).await;
        let alive = self.alive.iter().filter(|process| !process.gate.is_dead());
        let busy = alive.filter(|process| process.engine.scheduler().in_flight() > 0);
        let said =
            |process: &Process| format!("{} is still busy", process.engine.settings().replica);
        self.problems.extend(busy.map(said));
    }
}

/// Expires every replica and claims their objects.
async fn steal(tx: &mut Tx, now: Timestamp) -> Result<Vec<Claimed>> {
    for heartbeat in tx.replica_heartbeats().await? {
        tx.expire_replica(&heartbeat, now).await?;
    }
    tx.claim_due("a thief", now, 100).await
}
