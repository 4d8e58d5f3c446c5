//! A scenario of the crash matrix: a fixture, a script of requests, and the crash points that the
//! matrix must cover.

use crate::clients::{Client, Watcher, run_client_script, wake_during_backoff};
use crate::device_fixture::{self, DeviceFixture};
use crate::device_scenarios;
use crate::fault_injector::{CrashPoint, When};
use crate::injection::Injection;
use crate::machine_scenarios::{self, MACHINE, MachineFixture};
use crate::test_env::{Process, TestEnv};
use model::effect::CallVerb;
use std::collections::{HashMap, HashSet};

pub struct Scenario {
    pub name: String,
    pub fixture: Fixture,
    pub coverage: Coverage,
    pub sampling: Sampling,
}

/// Built-in plans are included automatically; a new lifecycle, or a new path through one, is added
/// to one of the two lists.
pub fn all() -> Vec<Scenario> {
    machine_scenarios::all().into_iter().chain(device_scenarios::all()).collect()
}

/// The initial state of a scenario, and its script.
#[derive(Clone)]
pub enum Fixture {
    /// One machine and its operations.
    Machine(MachineFixture),
    /// Racks, switches, power shelves, hosts and nodes, and operations on several of them.
    Devices(DeviceFixture),
}

impl Fixture {
    /// Creates the initial state of the scenario.
    pub async fn prepare(&self, env: &TestEnv, process: &Process, client: &Client) {
        match self {
            Self::Machine(fixture) => fixture.prepare(env, process).await,
            Self::Devices(fixture) => fixture.prepare(env, client).await,
        }
    }

    pub fn watcher(&self, client: &Client) -> Option<Watcher> {
        match self {
            Self::Machine(_) => Some(Watcher::spawn(client, MACHINE)),
            Self::Devices(_) => None,
        }
    }

    /// Follows the script to its end.
    pub async fn run_script(self, client: Client, env: TestEnv) {
        let fixture = match self {
            Self::Machine(fixture) => fixture,
            Self::Devices(fixture) => {
                return device_fixture::run_device_script(client, env, fixture.script, "asked")
                    .await;
            }
        };
        // The requests of `before` have used the lower numbers.
        let first = fixture.before.len();
        let script = run_client_script(client, env.sim.clone(), fixture.script, first);
        let wake = async {
            if fixture.woken_in_backoff {
                wake_during_backoff(env).await;
            }
            std::future::pending().await
        };
        tokio::select! {
            biased;
            _ = script => {}
            () = wake => {}
        }
    }
}

/// The minimum of crash points; a matrix that crashes nothing proves nothing.
pub struct Coverage {
    /// Steps whose effect must be crashed before, during and after.
    pub steps: Vec<String>,
    /// Commits that must be crashed before and after, and the minimum number of each.
    pub commits: Vec<(&'static str, usize)>,
    /// Two replicas share the work, so the crashed one passes only the first step and every kind of
    /// commit.
    pub shared: bool,
}

impl Coverage {
    /// `made` counts the injections at each point.
    pub fn assert(&self, scenario: &str, injection: Injection, made: &HashMap<CrashPoint, usize>) {
        let shared = self.shared && injection.needs_replica();
        let steps = if shared { self.steps.len().min(1) } else { self.steps.len() };
        for step in &self.steps[..steps] {
            for when in [When::Before, When::During, When::After] {
                let point = CrashPoint::Effect(when, CallVerb::Perform, step.clone());
                let covered = made.contains_key(&point) || !injection.applies_at(&point);
                assert!(covered, "{scenario}: no {injection:?} at {point:?}");
            }
        }
        for (name, all) in &self.commits {
            let at_least = if shared { 1 } else { *all };
            for when in [When::Before, When::After] {
                let point = CrashPoint::Commit(when, name);
                let times = made.get(&point).copied().unwrap_or_default();
                assert!(times >= at_least, "{scenario}: {times} times {injection:?} at {point:?}");
            }
        }
    }
}

/// Selects the crash points of a scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sampling {
    /// The first and the last of each kind between two settled steps: a worker polls for work many
    /// times and finds some only the last time.
    FirstAndLast,
    /// All, except that polling for work counts once between two commits.
    Every,
    /// As `Every`, but the first two and the last of each kind: long scenarios repeat themselves.
    FirstTwoAndLast,
    /// As `FirstTwoAndLast`, without the effects of steps that other scenarios cover.
    OwnSteps,
}

impl Sampling {
    /// The indexes of the crash points, in ascending order.
    pub fn choose(self, points: &[CrashPoint], coverage: &Coverage) -> Vec<usize> {
        let own = |index: &usize| match &points[*index] {
            CrashPoint::Effect(_, _, step) => coverage.steps.contains(step),
            CrashPoint::Commit(..) => true,
        };
        match self {
            Self::FirstAndLast => first_and_last(points),
            Self::Every => every(points),
            Self::FirstTwoAndLast => first_two_and_last(points),
            Self::OwnSteps => first_two_and_last(points).into_iter().filter(own).collect(),
        }
    }
}

fn first_and_last(points: &[CrashPoint]) -> Vec<usize> {
    let mut settled = 0;
    let mut first = HashMap::new();
    let mut last = HashMap::new();
    for (index, point) in points.iter().enumerate() {
        settled += usize::from(matches!(point, CrashPoint::Commit(When::After, "commit")));
        first.entry((settled, point)).or_insert(index);
        last.insert((settled, point), index);
    }
    let chosen: HashSet<usize> = first.into_values().chain(last.into_values()).collect();
    let mut chosen: Vec<usize> = chosen.into_iter().collect();
    chosen.sort_unstable();
    chosen
}

fn every(points: &[CrashPoint]) -> Vec<usize> {
    let mut settled = 0;
    let mut polled = HashSet::new();
    let mut chosen = Vec::new();
    for (index, point) in points.iter().enumerate() {
        let polls = matches!(point, CrashPoint::Commit(_, "claim"));
        settled += usize::from(matches!(point, CrashPoint::Commit(When::After, _)) && !polls);
        if !polls || polled.insert((settled, point.clone())) {
            chosen.push(index);
        }
    }
    chosen
}

fn first_two_and_last(points: &[CrashPoint]) -> Vec<usize> {
    let mut chosen = every(points);
    let mut alike: HashMap<&CrashPoint, Vec<usize>> = HashMap::new();
    for index in &chosen {
        alike.entry(&points[*index]).or_default().push(*index);
    }
    chosen.retain(|index| {
        let same = &alike[&points[*index]];
        same.iter().take(2).chain(same.last()).any(|one| one == index)
    });
    chosen
}
