//! The crash matrix: every life, struck at every point, in every way; and the same end each time.
//!
//! A life is first lived undisturbed, and the points are counted that its process passes: before and
//! after each commit, before, during and after each order to the hardware. Then it is lived once for
//! each of them, with the blow falling there. `FARRIER_MATRIX="plan-repave-v1/Restart/17"` lives one case.

use crate::audit::{Asking, Outcome};
use crate::clients::{Door, Watcher, follow_script, nudge, operator};
use crate::gate::{Point, Scope, When};
use crate::lives::{self, Life, MACHINE};
use crate::world::{About, BACKOFF, Process, World, on_all_cores, simulate};
use model::condition::ConditionType;
use model::effect::Verb;
use model::id::{ObjectId, RunId};
use model::machine::Phase;
use model::run::Workflow;
use model::run::act::Action;
use model::time::Timestamp;
use std::collections::{HashMap, HashSet};
use std::time::Duration;
use store::{Claimed, Result, Store, Tx};
use tokio::time::{Instant, sleep, timeout};

/// How long anything may take, in simulated time.
pub const PATIENCE: Duration = Duration::from_secs(3_600);
/// Long enough for a lease to run out and for somebody to notice.
pub const GIVEN_UP: Duration = Duration::from_secs(10);
/// What a dead replica held is in other hands after this long.
pub const TAKEN_OVER_WITHIN: Duration = Duration::from_secs(10);
/// A cancel is handled at once, not when a backoff happens to end.
const CANCELED_WITHIN: Duration = BACKOFF.checked_div(4).unwrap();

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blow {
    /// It dies, and is started again under its name.
    Restart,
    /// It dies, and a replica that was there all along takes over.
    TakeOver,
    /// It freezes past its lease, and wakes while another works on the run.
    FreezeUntilTaken,
    /// It freezes, and wakes when another has ended the run.
    FreezeUntilDone,
    /// The line to the database is cut: before a commit nothing was written, after it nobody heard.
    CutLine,
    /// Somebody cancels at this point.
    Cancel,
    /// Somebody cancels, and it dies.
    CancelAndRestart,
    /// Somebody cancels as it freezes, and it wakes when another has ended the run.
    CancelAndFreeze,
    /// What it holds is taken away by somebody who does nothing with it, and gives it back later.
    Rob,
}

impl Blow {
    pub const fn scope(self) -> Scope {
        match self {
            Self::Restart
            | Self::TakeOver
            | Self::FreezeUntilTaken
            | Self::FreezeUntilDone
            | Self::CancelAndFreeze
            | Self::Rob => Scope::Process,
            Self::CutLine | Self::Cancel | Self::CancelAndRestart => Scope::Task,
        }
    }

    pub const fn needs_another(self) -> bool {
        match self {
            Self::TakeOver
            | Self::FreezeUntilTaken
            | Self::FreezeUntilDone
            | Self::CancelAndFreeze => true,
            Self::Restart | Self::CutLine | Self::Cancel | Self::CancelAndRestart | Self::Rob => {
                false
            }
        }
    }

    /// It wakes when everything is over.
    pub const fn ends_with_a_thaw(self) -> bool {
        match self {
            Self::FreezeUntilDone | Self::CancelAndFreeze => true,
            Self::Restart
            | Self::TakeOver
            | Self::FreezeUntilTaken
            | Self::CutLine
            | Self::Cancel
            | Self::CancelAndRestart
            | Self::Rob => false,
        }
    }

    /// Who wakes after another has taken over may give the order that he was about to give.
    pub const fn asking(self) -> Asking {
        match self {
            Self::FreezeUntilTaken | Self::FreezeUntilDone | Self::CancelAndFreeze => {
                Asking::RestartMode
            }
            Self::Restart
            | Self::TakeOver
            | Self::CutLine
            | Self::Cancel
            | Self::CancelAndRestart
            | Self::Rob => Asking::Once,
        }
    }

    pub const fn cancels(self) -> bool {
        match self {
            Self::Cancel | Self::CancelAndRestart | Self::CancelAndFreeze => true,
            Self::Restart
            | Self::TakeOver
            | Self::FreezeUntilTaken
            | Self::FreezeUntilDone
            | Self::CutLine
            | Self::Rob => false,
        }
    }

    /// A line can only be cut where there is one.
    pub const fn falls_at(self, point: &Point) -> bool {
        match (self, point) {
            (Self::CutLine, Point::Effect(..)) => false,
            (Self::CutLine, Point::Commit(..))
            | (
                Self::Restart
                | Self::TakeOver
                | Self::FreezeUntilTaken
                | Self::FreezeUntilDone
                | Self::Cancel
                | Self::CancelAndRestart
                | Self::CancelAndFreeze
                | Self::Rob,
                _,
            ) => true,
        }
    }
}

/// How a life went.
struct Story {
    points: Vec<Point>,
    struck: Option<Point>,
    /// Somebody canceled, and that was accepted.
    canceled: bool,
    outcome: Outcome,
    wrong: Vec<String>,
}

/// Lives a life, struck at one of its points or not at all.
async fn live(life: &Life, blow: Blow, at: Option<usize>) -> Story {
    let world = World::new(1).await;
    let one = world.boot("one").await;
    let other = if blow.needs_another() { Some(world.boot("two").await) } else { None };
    life.prepare(&world, &one).await;
    let door = Door::to(&one.engine);
    let watcher = Watcher::spawn(&door, MACHINE);
    sleep(Duration::from_secs(5)).await;

    one.gate.arm(at.map(|index| (index, blow.scope())));
    let mut client = tokio::spawn(clients(life.clone(), door.clone(), world.clone()));
    let mut scene = Scene {
        world: &world,
        door: &door,
        one: &one,
        other: other.as_ref(),
        alive: vec![one.clone()],
        wrong: Vec::new(),
    };
    scene.alive.extend(other.clone());
    let mut canceled = None;
    let struck = tokio::select! {
        biased;
        point = one.gate.held() => Some(point),
        lived = &mut client => {
            lived.expect("a client that is told nothing strange");
            None
        }
    };
    let points = one.gate.passed();
    if struck.is_some() {
        canceled = scene.strike(blow).await;
        match timeout(PATIENCE, client).await {
            Ok(Ok(())) => {}
            Ok(Err(panic)) => scene.wrong.push(format!("the client was told nonsense: {panic}")),
            Err(_) => scene.wrong.push("the client never got to the end of it".into()),
        }
    }
    if let Some(Canceled { at, .. }) = canceled
        && Instant::now() > at + CANCELED_WITHIN + GIVEN_UP
    {
        scene.wrong.push(format!("a cancel took {:?} to be heard", at.elapsed()));
    }
    if struck.is_some() && blow.ends_with_a_thaw() {
        scene.thaw_too_late().await;
    }
    scene.settle().await;
    let mut wrong = scene.wrong;
    // Hardware that hangs never began, and is asked again when it has said so.
    let asking = if life.hangs() { Asking::RestartMode } else { blow.asking() };
    wrong.extend(world.audit(MACHINE, &watcher.seen(), asking).await);
    if let Some(canceled) = &canceled {
        wrong.extend(canceled.audit(&world).await);
    }
    let outcome = world.outcome(MACHINE).await;
    Story { points, struck, canceled: canceled.is_some(), outcome, wrong }
}

/// Everybody who asks for something in this life.
async fn clients(life: Life, door: Door, world: World) {
    // What came before has taken the numbers before.
    let script = follow_script(door.clone(), world.sim.clone(), life.script, life.before.len());
    let nudge = async {
        if life.nudged {
            nudge(door, world).await;
        }
        std::future::pending().await
    };
    tokio::select! {
        biased;
        _ = script => {}
        () = nudge => {}
    }
}

/// A cancel that was accepted.
struct Canceled {
    run: RunId,
    /// The machine's, when it was accepted.
    phase: Phase,
    at: Instant,
}

impl Canceled {
    /// The documented end of a cancel: the phase is as it was, nobody holds the machine, and it says that something was
    /// canceled. Unless another run came after it.
    async fn audit(&self, world: &World) -> Vec<String> {
        let about = world.about(MACHINE).await;
        let last = about.runs.last().filter(|kept| kept.run.spec.id == self.run);
        let Some(kept) = last.filter(|kept| kept.run.progress.workflow == Workflow::Cancelled)
        else {
            return Vec::new();
        };
        let (id, machine) = (&kept.run.spec.id, &about.machine);
        let mut wrong = Vec::new();
        if machine.phase != self.phase {
            wrong.push(format!("the cancel of {id} made {:?} of {:?}", machine.phase, self.phase));
        }
        if !machine.is(ConditionType::OperationCanceled) {
            wrong.push(format!("nothing says that {id} was canceled"));
        }
        wrong
    }
}

/// Where the blow falls.
struct Scene<'a> {
    world: &'a World,
    door: &'a Door,
    one: &'a Process,
    other: Option<&'a Process>,
    alive: Vec<Process>,
    wrong: Vec<String>,
}

impl Scene<'_> {
    /// Says what was canceled, where that was accepted.
    async fn strike(&mut self, blow: Blow) -> Option<Canceled> {
        match blow {
            Blow::Restart => {
                self.restart().await;
                None
            }
            Blow::TakeOver => {
                self.one.gate.kill();
                self.lead_to_the_other();
                self.expect_heir().await;
                None
            }
            Blow::FreezeUntilTaken => {
                self.lead_to_the_other();
                sleep(GIVEN_UP - Duration::from_secs(2)).await;
                self.one.gate.thaw();
                None
            }
            Blow::FreezeUntilDone => {
                self.lead_to_the_other();
                None
            }
            Blow::CutLine => {
                self.one.gate.cut_the_line();
                None
            }
            Blow::Cancel => {
                let canceled = self.cancel(self.one).await;
                self.one.gate.go_on();
                canceled
            }
            Blow::CancelAndRestart => {
                let canceled = self.cancel(self.one).await;
                self.restart().await;
                canceled
            }
            Blow::CancelAndFreeze => {
                self.lead_to_the_other();
                self.cancel(self.the_other()).await
            }
            Blow::Rob => {
                self.rob().await;
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
        self.other.expect("another replica")
    }

    /// A claim that is lost is lost: whoever wakes without it writes nothing.
    async fn rob(&mut self) {
        let now = self.world.now();
        let stolen = self.world.store.write("steal", now, |now, tx| Box::pin(steal(tx, *now)));
        let stolen = stolen.await.expect("stolen");
        let before = self.world.about(MACHINE).await;
        self.one.gate.thaw();
        sleep(GIVEN_UP).await;
        let after = self.world.about(MACHINE).await;
        for Claimed { id, epoch, .. } in stolen {
            // A person may tell it something meanwhile; the engine may not.
            let state = |about: &About| {
                let kept = about.runs.iter().find(|kept| kept.run.spec.id.object() == id)?;
                let by_engine = kept.history.iter().filter(|event| event.cause == "engine");
                Some((by_engine.count(), kept.held.epoch, kept.held.owner.clone()))
            };
            if state(&before) != state(&after) {
                self.wrong.push(format!("{id} was written to under a claim that had been lost"));
            }
            let due = self.world.now();
            give_back(&self.world.store, id, epoch, due).await;
        }
    }

    /// The run is over, and so is whatever the sleeper had in mind to do.
    async fn thaw_too_late(&mut self) {
        let before = self.world.outcome(MACHINE).await;
        self.one.gate.thaw();
        sleep(GIVEN_UP).await;
        let after = self.world.outcome(MACHINE).await;
        if before.acted != after.acted {
            let (before, after) = (before.acted, after.acted);
            self.wrong.push(format!("it acted when all was over: {before:?} became {after:?}"));
        }
    }

    async fn cancel(&self, by: &Process) -> Option<Canceled> {
        let machine = self.world.machine(MACHINE).await;
        let (run, phase) = (machine.active_run?, machine.phase);
        let told = by.engine.act(run.clone(), Action::Cancel, operator()).await;
        told.ok().map(|_| Canceled { run, phase, at: Instant::now() })
    }

    /// Ten seconds after a death nothing is in the hands of the dead any more.
    async fn expect_heir(&mut self) {
        sleep(TAKEN_OVER_WITHIN).await;
        for kept in self.world.about(MACHINE).await.runs {
            if kept.held.owner.is_some_and(|owner| owner.starts_with("one#")) {
                self.wrong.push(format!("{} is still in the hands of the dead", kept.run.spec.id));
            }
        }
    }

    /// Waits until nobody has anything in hand, and sees what does not come to rest.
    async fn settle(&mut self) {
        sleep(GIVEN_UP).await;
        let alive = self.alive.iter().filter(|process| !process.gate.is_dead());
        let busy = alive.filter(|process| process.engine.in_flight() > 0);
        let said =
            |process: &Process| format!("{} is still busy", process.engine.settings().replica);
        self.wrong.extend(busy.map(said));
    }
}

/// Gives everybody up for dead, and takes what they held.
pub async fn steal(tx: &mut Tx, now: Timestamp) -> Result<Vec<Claimed>> {
    for pulse in tx.replica_heartbeats().await? {
        tx.expire_replica(&pulse, now).await?;
    }
    tx.claim_due("a thief", now, 100).await
}

pub async fn give_back(store: &Store, id: ObjectId, epoch: i64, due: Timestamp) {
    let put_back = store.write("give_back", (id, epoch, due), |(id, epoch, due), tx| {
        Box::pin(async move { tx.put_back(id, *epoch, *due) })
    });
    put_back.await.expect("given back");
}

/// What a story must come to.
fn expect(story: &Story, undisturbed: &Outcome, blow: Blow) -> Vec<String> {
    let mut wrong = story.wrong.clone();
    let outcome = &story.outcome;
    // While something is being done there is a run, and it can be canceled.
    let at_work = matches!(story.struck, Some(Point::Effect(_, Verb::Perform, _)));
    if blow.cancels() && at_work && !story.canceled {
        wrong.push("a cancel was refused while something was being done".into());
    }
    if !story.canceled {
        if outcome != undisturbed {
            wrong.push(format!("it came to {outcome:?}\n    instead of {undisturbed:?}"));
        }
        return wrong;
    }
    if !outcome.workflows.contains(&Workflow::Cancelled) {
        wrong.push(format!("a cancel was accepted and ignored: {outcome:?}"));
    }
    wrong
}

/// The case, or the life, that was asked for alone.
pub fn only() -> Option<String> {
    std::env::var("FARRIER_MATRIX").ok()
}

/// A life that is struck at one of its points.
struct Case<'a> {
    life: &'a Life,
    undisturbed: &'a Story,
    index: usize,
}

impl Case<'_> {
    fn name(&self, blow: Blow) -> String {
        format!("{}/{blow:?}/{}", self.life.name, self.index)
    }

    fn is_asked_for(&self, blow: Blow) -> bool {
        only().is_none_or(|only| format!("{}/", self.name(blow)).starts_with(&format!("{only}/")))
    }

    /// What went wrong, in one piece.
    fn strike(&self, blow: Blow) -> Option<String> {
        let story = simulate(live(self.life, blow, Some(self.index)));
        let mut found = expect(&story, &self.undisturbed.outcome, blow);
        let point = &self.undisturbed.points[self.index];
        if story.struck.as_ref() != Some(point) {
            found.push(format!("it came to another point: {:?}", story.struck));
        }
        let said = || format!("{}, at {point:?}:\n    {}", self.name(blow), found.join("\n    "));
        (!found.is_empty()).then(said)
    }
}

/// Lives every life once for each of its points.
fn strike_everywhere(blow: Blow) {
    let lives = lives::all();
    let undisturbed = on_all_cores(&lives, |life| is_wanted(life).then(|| undisturbed(life, blow)));
    let lived = lives.iter().zip(&undisturbed);
    let lived = lived.filter_map(|(life, story)| Some((life, story.as_ref()?)));
    let cases: Vec<Case> =
        lived.clone().flat_map(|(life, story)| cases(life, story, blow)).collect();
    let wrong: Vec<String> =
        on_all_cores(&cases, |case| case.strike(blow)).into_iter().flatten().collect();
    if only().is_none() {
        for (life, story) in lived {
            let mut struck: HashMap<Point, usize> = HashMap::new();
            for case in cases.iter().filter(|case| case.life.name == life.name) {
                *struck.entry(story.points[case.index].clone()).or_default() += 1;
            }
            assert_coverage(life, blow, &struck);
        }
    }
    let cases = cases.len();
    println!("{blow:?}: {cases} cases");
    assert!(wrong.is_empty(), "{} of {cases} cases went wrong\n{}", wrong.len(), wrong.join("\n"));
}

/// Whether any of its cases was asked for.
fn is_wanted(life: &Life) -> bool {
    only().is_none_or(|only| format!("{only}/").starts_with(&format!("{}/", life.name)))
}

fn undisturbed(life: &Life, blow: Blow) -> Story {
    let story = simulate(live(life, blow, None));
    assert!(story.wrong.is_empty(), "{} undisturbed: {:?}", life.name, story.wrong);
    story
}

fn cases<'a>(life: &'a Life, undisturbed: &'a Story, blow: Blow) -> Vec<Case<'a>> {
    let worth_it = worth_striking(&undisturbed.points);
    let all = (0..undisturbed.points.len()).map(|index| Case { life, undisturbed, index });
    all.filter(|case| {
        let point = &undisturbed.points[case.index];
        worth_it.contains(&case.index) && blow.falls_at(point) && case.is_asked_for(blow)
    })
    .collect()
}

/// Somebody who looks whether there is work, over and over, is struck twice between two commits: when
/// there is none, and the last time, when there is some.
fn worth_striking(points: &[Point]) -> HashSet<usize> {
    let mut settled = 0;
    let mut first = HashMap::new();
    let mut last = HashMap::new();
    for (index, point) in points.iter().enumerate() {
        settled += usize::from(matches!(point, Point::Commit(When::After, "commit")));
        first.entry((settled, point)).or_insert(index);
        last.insert((settled, point), index);
    }
    first.into_values().chain(last.into_values()).collect()
}

/// A matrix that strikes nothing proves nothing: each step must have been struck before, in and after its effect, and
/// every commit on either side: one for each step and one more.
fn assert_coverage(life: &Life, blow: Blow, struck: &HashMap<Point, usize>) {
    let steps = life.plan.steps.clone();
    let commits = steps.len() + 1;
    for step in steps {
        for when in [When::Before, When::During, When::After] {
            let point = Point::Effect(when, Verb::Perform, step.name.clone());
            let covered = struck.contains_key(&point) || !blow.falls_at(&point);
            assert!(covered, "{}: {blow:?} never fell at {point:?}", life.name);
        }
    }
    for (name, at_least) in [("start_run", 1), ("commit", commits)] {
        for when in [When::Before, When::After] {
            let point = Point::Commit(when, name);
            let times = struck.get(&point).copied().unwrap_or_default();
            let name = &life.name;
            assert!(times >= at_least, "{name}: {blow:?} fell {times} times at {point:?}");
        }
    }
}

#[test]
fn a_process_may_die_anywhere_and_be_started_again() {
    strike_everywhere(Blow::Restart);
}

#[test]
fn a_process_may_die_anywhere_and_another_takes_over() {
    strike_everywhere(Blow::TakeOver);
}

#[test]
fn a_process_may_freeze_past_its_lease_and_wake_beside_its_successor() {
    strike_everywhere(Blow::FreezeUntilTaken);
}

#[test]
fn a_process_may_freeze_past_its_lease_and_wake_when_all_is_done() {
    strike_everywhere(Blow::FreezeUntilDone);
}

#[test]
fn the_line_to_the_database_may_be_cut_at_any_commit() {
    strike_everywhere(Blow::CutLine);
}

#[test]
fn a_run_may_be_canceled_anywhere() {
    strike_everywhere(Blow::Cancel);
}

#[test]
fn a_run_may_be_canceled_anywhere_and_its_process_die_there() {
    strike_everywhere(Blow::CancelAndRestart);
}

#[test]
fn a_run_may_be_canceled_anywhere_and_its_process_wake_when_all_is_done() {
    strike_everywhere(Blow::CancelAndFreeze);
}

#[test]
fn a_process_may_be_robbed_of_its_claims_anywhere() {
    strike_everywhere(Blow::Rob);
}
