//! The crash matrix: every life, struck at every point, in every way; and the same end each time.
//!
//! A life is first lived undisturbed, and the points are counted that its process passes: before and
//! after each commit, before, during and after each order to the hardware. Then it is lived once for
//! each of them, with the blow falling there. `FARRIER_MATRIX="plan-repave-v1/Restart/17"` lives one case.

use crate::audit::Outcome;
use crate::clients::{Door, Watcher, follow_script, operator};
use crate::gate::{Point, Scope, When};
use crate::lives::{self, Life, MACHINE};
use crate::world::{BACKOFF, Process, World, simulate};
use model::effect::Verb;
use model::plan::default_plan;
use model::run::Workflow;
use model::run::act::Action;
use std::collections::HashSet;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// How long anything may take, in simulated time.
const PATIENCE: Duration = Duration::from_secs(3_600);
/// Long enough for a lease to run out and for somebody to notice.
const GIVEN_UP: Duration = Duration::from_secs(10);
/// A cancel is handled at once, not when a backoff happens to end.
const CANCELED_WITHIN: Duration = BACKOFF.checked_div(4).unwrap();

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Blow {
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
}

impl Blow {
    const fn scope(self) -> Scope {
        match self {
            Self::Restart | Self::TakeOver | Self::FreezeUntilTaken | Self::FreezeUntilDone => {
                Scope::Process
            }
            Self::CutLine | Self::Cancel | Self::CancelAndRestart => Scope::Task,
        }
    }

    const fn needs_another(self) -> bool {
        match self {
            Self::TakeOver | Self::FreezeUntilTaken | Self::FreezeUntilDone => true,
            Self::Restart | Self::CutLine | Self::Cancel | Self::CancelAndRestart => false,
        }
    }

    /// A line can only be cut where there is one.
    const fn falls_at(self, point: &Point) -> bool {
        match (self, point) {
            (Self::CutLine, Point::Effect(..)) => false,
            (Self::CutLine, Point::Commit(..))
            | (
                Self::Restart
                | Self::TakeOver
                | Self::FreezeUntilTaken
                | Self::FreezeUntilDone
                | Self::Cancel
                | Self::CancelAndRestart,
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
    let script = follow_script(door.clone(), world.sim.clone(), life.script.clone());
    let mut client = tokio::spawn(script);
    let mut scene = Scene {
        world: &world,
        door: &door,
        one: &one,
        other: other.as_ref(),
        alive: vec![one.clone()],
    };
    scene.alive.extend(other.clone());
    let mut wrong = Vec::new();
    let mut canceled_at = None;
    let struck = tokio::select! {
        biased;
        point = one.gate.held() => Some(point),
        _ = &mut client => None,
    };
    let points = one.gate.passed();
    if struck.is_some() {
        canceled_at = scene.strike(blow).await;
        if timeout(PATIENCE, client).await.is_err() {
            wrong.push("the client never got to the end of it".into());
        }
    }
    if let Some(canceled_at) = canceled_at
        && Instant::now() > canceled_at + CANCELED_WITHIN + GIVEN_UP
    {
        wrong.push(format!("a cancel took {:?} to be heard", canceled_at.elapsed()));
    }
    if blow == Blow::FreezeUntilDone {
        one.gate.thaw();
    }
    wrong.extend(scene.settle().await);
    wrong.extend(world.audit(MACHINE, &watcher.seen()).await);
    let outcome = world.outcome(MACHINE).await;
    Story { points, struck, canceled: canceled_at.is_some(), outcome, wrong }
}

/// Where the blow falls.
struct Scene<'a> {
    world: &'a World,
    door: &'a Door,
    one: &'a Process,
    other: Option<&'a Process>,
    alive: Vec<Process>,
}

impl Scene<'_> {
    /// Says when a cancel was accepted.
    async fn strike(&mut self, blow: Blow) -> Option<Instant> {
        match blow {
            Blow::Restart => {
                self.restart().await;
                None
            }
            Blow::TakeOver => {
                self.one.gate.kill();
                self.lead_to_the_other();
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
                let canceled = self.cancel().await;
                self.one.gate.go_on();
                canceled
            }
            Blow::CancelAndRestart => {
                let canceled = self.cancel().await;
                self.restart().await;
                canceled
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
        self.door.lead_to(&self.other.expect("another replica").engine);
    }

    async fn cancel(&self) -> Option<Instant> {
        let id = self.world.machine(MACHINE).await.active_run?;
        let told = self.one.engine.act(id, Action::Cancel, operator()).await;
        told.is_ok().then(Instant::now)
    }

    /// Waits until nobody has anything in hand. Says what does not come to rest.
    async fn settle(&self) -> Vec<String> {
        sleep(GIVEN_UP).await;
        let alive = self.alive.iter().filter(|process| !process.gate.is_dead());
        let busy = alive.filter(|process| process.engine.in_flight() > 0);
        busy.map(|process| format!("{} is still busy", process.engine.settings().replica)).collect()
    }
}

/// What a story must come to.
fn expect(story: &Story, undisturbed: &Outcome) -> Vec<String> {
    let mut wrong = story.wrong.clone();
    let outcome = &story.outcome;
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
fn only() -> Option<String> {
    std::env::var("FARRIER_MATRIX").ok()
}

/// Lives every life once for each of its points.
fn strike_everywhere(blow: Blow) {
    let mut wrong = Vec::new();
    let mut cases = 0;
    for life in lives::all() {
        let undisturbed = simulate(live(&life, blow, None));
        assert!(undisturbed.wrong.is_empty(), "{} undisturbed: {:?}", life.name, undisturbed.wrong);
        let mut struck = HashSet::new();
        let mut known = HashSet::new();
        let mut settled = 0;
        for (index, point) in undisturbed.points.iter().enumerate() {
            let case = format!("{}/{blow:?}/{index}", life.name);
            settled += usize::from(matches!(point, Point::Commit(When::After, "Commit")));
            // Somebody who looks whether there is work, over and over, is struck once between two commits.
            let news = known.insert((settled, point));
            if !news
                || !blow.falls_at(point)
                || !only().is_none_or(|only| format!("{case}/").starts_with(&format!("{only}/")))
            {
                continue;
            }
            let story = simulate(live(&life, blow, Some(index)));
            cases += 1;
            struck.extend(story.struck.clone());
            let found = expect(&story, &undisturbed.outcome);
            if !found.is_empty() {
                wrong.push(format!("{case}, at {point:?}:\n    {}", found.join("\n    ")));
            }
            assert_eq!(story.struck.as_ref(), Some(point), "{case} came to another point");
        }
        if only().is_none() {
            assert_coverage(&life, blow, &struck);
        }
    }
    println!("{blow:?}: {cases} cases");
    assert!(wrong.is_empty(), "{} of {cases} cases went wrong\n{}", wrong.len(), wrong.join("\n"));
}

/// A matrix that strikes nothing proves nothing: each step must have been struck on either side of its
/// intent and of its effect.
fn assert_coverage(life: &Life, blow: Blow, struck: &HashSet<Point>) {
    for step in default_plan(life.run_type).steps {
        for when in [When::Before, When::During, When::After] {
            let point = Point::Effect(when, Verb::Perform, step.name.clone());
            let covered = struck.contains(&point) || !blow.falls_at(&point);
            assert!(covered, "{}: {blow:?} never fell at {point:?}", life.name);
        }
    }
    for name in ["StartRun", "Commit"] {
        for when in [When::Before, When::After] {
            let point = Point::Commit(when, name);
            assert!(struck.contains(&point), "{}: {blow:?} never fell at {point:?}", life.name);
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
