//! The crash matrix of records and of operations with parts: every life of [`rack_lives`], struck at every point, in every way, and
//! audited: the same end, nothing lost, no destructive effect repeated, no claim left behind, every part ended with its whole.
//! `FARRIER_MATRIX="a shelf is registered/Restart/17"` lives one case.

use crate::clients::{Door, operator};
use crate::gate::{Point, When};
use crate::matrix::{Blow, GIVEN_UP, PATIENCE, TAKEN_OVER_WITHIN, give_back, only, steal};
use crate::rack_lives::{self, DONE, RackLife, at_work, follow};
use crate::rack_world::RackOutcome;
use crate::world::{Process, World, simulate};
use model::id::RunId;
use model::run::Workflow;
use model::run::act::Action;
use std::collections::{HashMap, HashSet};
use std::time::Duration;
use tokio::time::{sleep, timeout};

struct Story {
    points: Vec<Point>,
    struck: Option<Point>,
    canceled: Option<RunId>,
    /// Something ended canceled, be it what a device does by itself.
    canceled_any: bool,
    outcome: RackOutcome,
    wrong: Vec<String>,
}

async fn live(life: &RackLife, blow: Blow, at: Option<usize>) -> Story {
    let world = World::new(1).await;
    let one = world.boot("one").await;
    let other = if blow.needs_another() { Some(world.boot("two").await) } else { None };
    let door = Door::to(&one.engine);
    life.prepare(&world, &door).await;
    sleep(Duration::from_secs(5)).await;

    one.gate.arm(at.map(|index| (index, blow.scope())));
    let script = follow(door.clone(), world.clone(), life.script.clone(), "asked");
    let mut client = tokio::spawn(script);
    let struck = tokio::select! {
        biased;
        point = one.gate.held() => Some(point),
        lived = timeout(PATIENCE, &mut client) => {
            lived.expect("it never came to rest").expect("a client that is told nothing strange");
            None
        }
    };
    let points = one.gate.passed();
    let mut scene = Scene { world: &world, door: &door, one: &one, other, wrong: Vec::new() };
    let mut canceled = None;
    if struck.is_some() {
        canceled = scene.strike(blow).await;
        match timeout(PATIENCE, client).await {
            Ok(Ok(())) => {}
            Ok(Err(panic)) => scene.wrong.push(format!("the client was told nonsense: {panic}")),
            Err(_) => scene.wrong.push("it never came to rest".into()),
        }
        world.records_at_rest().await;
        if blow.ends_with_a_thaw() {
            scene.thaw_too_late().await;
        }
    }
    sleep(GIVEN_UP).await;
    let mut wrong = scene.wrong;
    wrong.extend(world.audit_racks(blow.asking()).await);
    let outcome = world.rack_outcome().await;
    let runs = world.everything().await.runs;
    let canceled_any = runs.iter().any(|kept| kept.run.progress.workflow == Workflow::Cancelled);
    Story { points, struck, canceled, canceled_any, outcome, wrong }
}

/// Where the blow falls.
struct Scene<'a> {
    world: &'a World,
    door: &'a Door,
    one: &'a Process,
    other: Option<Process>,
    wrong: Vec<String>,
}

impl Scene<'_> {
    /// Says what was canceled, where that was accepted.
    async fn strike(&mut self, blow: Blow) -> Option<RunId> {
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
                self.cancel(self.other.as_ref().expect("another replica")).await
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
    }

    fn lead_to_the_other(&self) {
        self.door.lead_to(&self.other.as_ref().expect("another replica").engine);
    }

    async fn cancel(&self, by: &Process) -> Option<RunId> {
        let run = at_work(self.world).await?.spec.id;
        by.engine.act(run.clone(), Action::Cancel, operator()).await.ok().map(|_| run)
    }

    /// Everything that was held is taken away by somebody who does nothing with it: whoever wakes without it writes nothing, begins
    /// no part, and moves no record.
    async fn rob(&mut self) {
        let now = self.world.now();
        let stolen = self.world.store.write("steal", now, |now, tx| Box::pin(steal(tx, *now)));
        let stolen = stolen.await.expect("stolen");
        let ids: HashSet<String> = stolen.iter().map(|one| one.id.to_string()).collect();
        let before = self.written(&ids).await;
        self.one.gate.thaw();
        sleep(GIVEN_UP).await;
        let after = self.written(&ids).await;
        for (what, times) in after.iter().filter(|(what, times)| before.get(*what) != Some(times)) {
            let had = before.get(what).copied().unwrap_or_default();
            self.wrong.push(format!("{what} under a claim that had been lost: {had} → {times}"));
        }
        for one in stolen {
            let (id, epoch, due) = (one.id, one.epoch, self.world.now());
            give_back(&self.world.store, id, epoch, due).await;
        }
    }

    /// What the engine wrote about these objects, and how many parts each has.
    async fn written(&self, ids: &HashSet<String>) -> HashMap<String, usize> {
        let all = self.world.everything().await;
        let mut written = HashMap::new();
        for kept in &all.runs {
            let id = kept.run.spec.id.to_string();
            if let Some(whole) = &kept.run.spec.part_of
                && ids.contains(whole.as_str())
            {
                *written.entry(format!("a part of {whole} was begun")).or_default() += 1;
            }
            if ids.contains(&id) {
                let by_engine = kept.history.iter().filter(|one| one.cause == "engine").count();
                written.insert(format!("{id} was written to"), by_engine);
            }
        }
        for shelf in all.shelves.iter().filter(|shelf| ids.contains(&shelf.head.id)) {
            let moved =
                all.histories[&shelf.head.id].iter().filter(|one| one.word == "Maintenance");
            written.insert(format!("{} was moved", shelf.head.id), moved.count());
        }
        written
    }

    /// All is over, and so is whatever the sleeper had in mind to do.
    async fn thaw_too_late(&mut self) {
        let before = self.world.rack_outcome().await;
        self.one.gate.thaw();
        sleep(GIVEN_UP).await;
        let after = self.world.rack_outcome().await;
        if before != after {
            self.wrong.push(format!("it acted when all was over: {before:?} became {after:?}"));
        }
    }

    /// Ten seconds after a death nothing is in the hands of the dead any more.
    async fn expect_heir(&mut self) {
        sleep(TAKEN_OVER_WITHIN).await;
        for kept in self.world.everything().await.runs {
            if kept.held.owner.is_some_and(|owner| owner.starts_with("one#")) {
                self.wrong.push(format!("{} is still in the hands of the dead", kept.run.spec.id));
            }
        }
    }
}

/// What a story must come to.
fn expect(story: &Story, undisturbed: &RackOutcome, blow: Blow) -> Vec<String> {
    let mut wrong = story.wrong.clone();
    let at_work = matches!(&story.struck, Some(Point::Effect(_, verb, _)) if *verb == DONE);
    match &story.canceled {
        None if blow.cancels() && at_work => {
            wrong.push("a cancel was refused while something was being done".into());
        }
        None if story.outcome != *undisturbed => {
            wrong.push(format!("it came to {:?}\n    instead of {undisturbed:?}", story.outcome));
        }
        None => {}
        Some(run) if !story.canceled_any => {
            wrong.push(format!("the cancel of {run} was accepted and ignored"));
        }
        Some(_) => {}
    }
    wrong
}

fn strike_everywhere(blow: Blow) {
    let (mut wrong, mut cases) = (Vec::new(), 0);
    for life in rack_lives::all() {
        let asked_for = |case: &str| {
            only().is_none_or(|only| format!("{case}/").starts_with(&format!("{only}/")))
        };
        if !only().is_none_or(|only| only.starts_with(life.name)) {
            continue;
        }
        let undisturbed = simulate(live(&life, blow, None));
        assert!(undisturbed.wrong.is_empty(), "{} undisturbed: {:?}", life.name, undisturbed.wrong);
        assert_ends_well(&life, &undisturbed.outcome);
        let mut struck: HashMap<Point, usize> = HashMap::new();
        for index in worth_striking(&undisturbed.points, &life) {
            let point = &undisturbed.points[index];
            let case = format!("{}/{blow:?}/{index}", life.name);
            if !blow.falls_at(point) || !asked_for(&case) {
                continue;
            }
            let story = simulate(live(&life, blow, Some(index)));
            cases += 1;
            *struck.entry(point.clone()).or_default() += 1;
            let mut found = expect(&story, &undisturbed.outcome, blow);
            if story.struck.as_ref() != Some(point) {
                found.push(format!("it came to another point: {:?}", story.struck));
            }
            if !found.is_empty() {
                wrong.push(format!("{case}, at {point:?}:\n    {}", found.join("\n    ")));
            }
        }
        // A life that is asked for as a whole is struck as a whole.
        if only().is_none_or(|only| only == life.name) {
            assert_coverage(&life, blow, &struck);
        }
    }
    println!("{blow:?}: {cases} cases");
    assert!(wrong.is_empty(), "{} of {cases} cases went wrong\n{}", wrong.len(), wrong.join("\n"));
}

/// Left alone, every life ends well: the last that was done on each device was done, and what was registered is ready, or gone.
fn assert_ends_well(life: &RackLife, outcome: &RackOutcome) {
    let last = outcome.runs.values().filter_map(|runs| runs.last());
    let mut ends = last.map(|(workflow, _)| *workflow);
    assert!(ends.all(|end| end == Workflow::Completed), "{}: {outcome:?}", life.name);
    let of_node = |id: &String| id.starts_with("node ");
    let mut devices = outcome.records.iter().filter(|(id, _)| !of_node(id));
    assert!(devices.all(|(_, word)| *word == "Ready"), "{outcome:?}");
    let newest = outcome.records.iter().rev().find(|(id, _)| of_node(id));
    assert_eq!(newest.map(|(_, word)| *word), life.node, "{outcome:?}");
}

/// Looking for work finds none most of the time: between two commits that change something it is struck once. A long life does the
/// same thing over and over: it is struck at the first two and at the last. One of a node has stages that another life is struck at.
fn worth_striking(points: &[Point], life: &RackLife) -> Vec<usize> {
    let mut settled = 0;
    let mut seen = HashSet::new();
    let mut worth_it = Vec::new();
    let mut alike: HashMap<&Point, Vec<usize>> = HashMap::new();
    for (index, point) in points.iter().enumerate() {
        let looking = matches!(point, Point::Commit(_, "claim"));
        settled += usize::from(matches!(point, Point::Commit(When::After, _)) && !looking);
        if !looking || seen.insert((settled, point.clone())) {
            worth_it.push(index);
            alike.entry(point).or_default().push(index);
        }
    }
    if life.long {
        let elsewhere = |point: &Point| match point {
            Point::Effect(_, _, step) => {
                life.node.is_some() && !life.steps.contains(&step.as_str())
            }
            Point::Commit(..) => false,
        };
        worth_it.retain(|index| !elsewhere(&points[*index]));
        worth_it.retain(|index| {
            let same = &alike[&points[*index]];
            same.iter().take(2).chain(same.last()).any(|one| one == index)
        });
    }
    worth_it
}

/// A matrix that strikes nothing proves nothing. Where two share the work, the one that is struck does not come to everything: to the
/// first step it does, and to every kind of commit.
fn assert_coverage(life: &RackLife, blow: Blow, struck: &HashMap<Point, usize>) {
    let shared = blow.needs_another();
    let steps = if shared { life.steps.len().min(1) } else { life.steps.len() };
    for step in &life.steps[..steps] {
        for when in [When::Before, When::During, When::After] {
            let point = Point::Effect(when, DONE, (*step).to_string());
            let covered = struck.contains_key(&point) || !blow.falls_at(&point);
            assert!(covered, "{}: {blow:?} never fell at {point:?}", life.name);
        }
    }
    for (name, all) in life.commits {
        let at_least = if shared { &1 } else { all };
        for when in [When::Before, When::After] {
            let point = Point::Commit(when, name);
            let times = struck.get(&point).copied().unwrap_or_default();
            assert!(times >= *at_least, "{}: {blow:?} fell {times} times at {point:?}", life.name);
        }
    }
}

#[test]
fn its_process_may_die_anywhere_and_be_started_again() {
    strike_everywhere(Blow::Restart);
}

#[test]
fn its_process_may_die_anywhere_and_another_takes_over() {
    strike_everywhere(Blow::TakeOver);
}

#[test]
fn its_process_may_freeze_past_its_lease_and_wake_beside_its_successor() {
    strike_everywhere(Blow::FreezeUntilTaken);
}

#[test]
fn its_process_may_freeze_past_its_lease_and_wake_when_all_is_done() {
    strike_everywhere(Blow::FreezeUntilDone);
}

#[test]
fn the_line_to_its_database_may_be_cut_at_any_commit() {
    strike_everywhere(Blow::CutLine);
}

#[test]
fn what_is_at_work_may_be_canceled_anywhere() {
    strike_everywhere(Blow::Cancel);
}

#[test]
fn what_is_at_work_may_be_canceled_anywhere_and_its_process_die_there() {
    strike_everywhere(Blow::CancelAndRestart);
}

#[test]
fn what_is_at_work_may_be_canceled_anywhere_and_its_process_wake_when_all_is_done() {
    strike_everywhere(Blow::CancelAndFreeze);
}

#[test]
fn its_process_may_be_robbed_of_its_claims_anywhere() {
    strike_everywhere(Blow::Rob);
}
