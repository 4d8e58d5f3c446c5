//! Random tests: several replicas and machines, clients with random requests, and random crashes,
//! freezes, cut connections, clock steps and hardware faults.
//!
//! A seed determines everything, including the moments of the crashes. Run longer with
//! `cargo xtask chaos --seed N --minutes M`; a failure prints the seed to replay.

use crate::audit::{RepeatedCalls, audit_watch};
use crate::clients::{Client, WatchEntry, Watcher};
use crate::fault_injector::StopScope;
use crate::test_env::{Process, TestEnv, simulate};
use model::effect::{CallVerb, Effect};
use model::id::RunId;
use model::plan::RunType;
use model::run::actions::{Action, RestartMode};
use providers::sim::{self, FaultRule};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;
use store::StoreError;
use tokio::time::{Instant, sleep, timeout};

const REPLICAS: [&str; 3] = ["one", "two", "three"];
const MACHINES: [&str; 4] = ["m-1", "m-2", "m-3", "m-4"];
/// The length of a scenario, in simulated time.
const SCENARIO_DURATION: Duration = Duration::from_secs(300);
/// The limit for all clients to finish after that.
const FINISH_TIMEOUT: Duration = Duration::from_secs(4 * 3_600);

/// A seeded random source.
struct RandomSource(SmallRng);

impl RandomSource {
    fn new(seed: u64) -> Self {
        Self(SmallRng::seed_from_u64(seed))
    }

    fn below(&mut self, limit: usize) -> usize {
        self.0.random_range(0..limit)
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    fn millis(&mut self, limit: u64) -> Duration {
        Duration::from_millis(self.0.random_range(0..limit))
    }

    fn is_true_with_percent(&mut self, percent: u32) -> bool {
        self.0.random_range(0..100) < percent
    }
}

/// A random fault.
#[derive(Debug, Clone, Copy)]
enum ChaosFault {
    Kill,
    Freeze,
    CutConnection,
    StepClock,
    BreakHardware,
    RepairHardware,
}

const CHAOS_FAULTS: [ChaosFault; 6] = [
    ChaosFault::Kill,
    ChaosFault::Freeze,
    ChaosFault::CutConnection,
    ChaosFault::StepClock,
    ChaosFault::BreakHardware,
    ChaosFault::RepairHardware,
];

/// Runs one random scenario. Returns the problems and a fingerprint of the histories.
async fn run_scenario(seed: u64) -> (Vec<String>, u64) {
    let env = TestEnv::new(seed).await;
    let mut processes = Vec::new();
    for name in REPLICAS {
        processes.push(env.boot(name).await);
    }
    let api_client = Client::new(&processes[0].engine);
    let mut watchers = Vec::new();
    for machine in MACHINES {
        env.register(&processes[0].engine, machine).await;
        watchers.push((machine, Watcher::spawn(&api_client, machine)));
    }
    sleep(Duration::from_secs(5)).await;
    let clients = MACHINES.iter().enumerate().map(|(index, machine)| {
        let random = RandomSource::new(seed.wrapping_mul(31).wrapping_add(index as u64));
        tokio::spawn(client(api_client.clone(), (*machine).to_string(), random))
    });
    let clients: Vec<_> = clients.collect();
    inject_faults(&env, &api_client, &mut processes, RandomSource::new(seed)).await;

    let mut wrong = Vec::new();
    for client in clients {
        match timeout(FINISH_TIMEOUT, client).await {
            Ok(Ok(())) => {}
            Ok(Err(panic)) => wrong.push(format!("a client failed: {panic}")),
            Err(_) => wrong.push("a client did not finish".into()),
        }
    }
    // Leases expire, strays are found, and watchers receive the last events.
    sleep(Duration::from_secs(30)).await;
    let mut mark = DefaultHasher::new();
    let all = env.stored_state_after_hardware().await;
    wrong.extend(env.audit_state(&all, RepeatedCalls::Allowed));
    let observed: Vec<WatchEntry> =
        watchers.iter().flat_map(|(_, watcher)| watcher.entries()).collect();
    all.runs.iter().for_each(|stored| audit_watch(stored, &observed, &mut wrong));
    for (machine, watcher) in watchers {
        watcher.entries().hash(&mut mark);
        for event in env.machine_data(machine).await.history {
            (event.ts.as_micros(), event.message).hash(&mut mark);
        }
    }
    (wrong, mark.finish())
}

/// Sends one request after the other, and sometimes cancels.
async fn client(api_client: Client, machine: String, mut random: RandomSource) {
    const MOST: [RunType; 6] = [
        RunType::EnterMaintenance,
        RunType::EnterMaintenance,
        RunType::Reimage,
        RunType::Reimage,
        RunType::Reboot,
        RunType::NetReconfig,
    ];
    let until = Instant::now() + SCENARIO_DURATION;
    let mut number = 0;
    let mut failed: Option<RunId> = None;
    while Instant::now() < until {
        number += 1;
        let request_id = format!("r-{number}");
        let again = failed.take().filter(|_| random.is_true_with_percent(60));
        let started = match again {
            None => {
                let run_type = random.pick(&MOST);
                api_client.start(&machine, run_type, request_id).await
            }
            Some(id) => handle_failed_run(&api_client, id, request_id, &mut random).await,
        };
        let Ok(id) = started else {
            sleep(random.millis(3_000)).await;
            continue;
        };
        if random.is_true_with_percent(25) {
            sleep(random.millis(2_000)).await;
            api_client.act(&id, Action::Cancel).await;
        }
        let run = api_client.wait_until_ended(&id).await;
        failed = run.progress.workflow.failed().then_some(id);
        sleep(random.millis(2_000)).await;
    }
}

/// Handles a failed run as an operator would.
async fn handle_failed_run(
    client: &Client,
    id: RunId,
    request_id: String,
    random: &mut RandomSource,
) -> Result<RunId, StoreError> {
    let how = match random.below(4) {
        0 => RestartMode::Rerun,
        1 => RestartMode::RestartClean,
        2 => {
            client.act(&id, Action::RetryStep).await;
            return Ok(id);
        }
        _ => {
            client.act(&id, Action::Adopt).await;
            return Ok(id);
        }
    };
    client.restart(&id, how, &request_id).await
}

/// Injects faults until the scenario is over, then repairs everything.
async fn inject_faults(
    env: &TestEnv,
    client: &Client,
    processes: &mut [Process],
    mut random: RandomSource,
) {
    let until = Instant::now() + SCENARIO_DURATION;
    while Instant::now() < until {
        sleep(random.millis(6_000)).await;
        let index = random.below(processes.len());
        match random.pick(&CHAOS_FAULTS) {
            ChaosFault::Kill => {
                processes[index].injector.kill();
                sleep(random.millis(12_000)).await;
                processes[index] = env.boot(REPLICAS[index]).await;
            }
            ChaosFault::Freeze => {
                processes[index].injector.freeze();
                client.switch_to(&processes[(index + 1) % processes.len()].engine);
                sleep(random.millis(20_000)).await;
                processes[index].injector.thaw();
            }
            ChaosFault::CutConnection => {
                let gate = &processes[index].injector;
                gate.arm(Some((random.below(6), StopScope::Task)));
                // The point sees a lost connection, whether it was reached already or not.
                gate.cut_connection();
            }
            ChaosFault::StepClock => {
                let by_ms = random.pick(&[-3_600_000, -5_000, 5_000, 60_000]);
                processes[index].step_clock(by_ms);
            }
            ChaosFault::BreakHardware => {
                use sim::Action::{Drop, Fail, Garbage, Twice};
                let actions = [Fail, Drop, Garbage, Twice];
                let verbs =
                    [CallVerb::Perform, CallVerb::Perform, CallVerb::Follow, CallVerb::GetStatus];
                // Child runs call no hardware.
                let called: Vec<&str> =
                    Effect::NAMES.into_iter().filter(|name| *name != "parts").collect();
                let rule = FaultRule {
                    effect: random.pick(&called).into(),
                    verb: random.pick(&verbs),
                    times: 1 + random.below(2) as u32,
                    ..FaultRule::new(random.pick(&actions))
                };
                env.sim.add_fault(rule).expect("a rule");
            }
            ChaosFault::RepairHardware => drop(env.sim.clear_faults(None)),
        }
        client.switch_to(&processes[random.below(processes.len())].engine);
    }
    env.sim.clear_faults(None).expect("cleared");
}

#[test]
fn a_seed_is_deterministic() {
    let (_, first) = simulate(run_scenario(7));
    let (_, second) = simulate(run_scenario(7));
    let (_, other) = simulate(run_scenario(8));
    assert_eq!(first, second, "the same seed");
    assert_ne!(first, other, "another seed");
}

/// `FARRIER_CHAOS_SEED` and `FARRIER_CHAOS_SECONDS` set the first seed and the duration.
#[test]
fn whatever_happens_nothing_is_lost_and_nothing_happens_twice() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = number("FARRIER_CHAOS_SEED").unwrap_or(1);
    let least = number("FARRIER_CHAOS_SECONDS").map(Duration::from_secs);
    let begun = std::time::Instant::now();
    let mut stories = 0;
    for seed in first.. {
        if least.is_some() {
            // Printed first, so that the seed is known if the scenario panics.
            println!("story --seed {seed}");
        }
        let (wrong, _) = simulate(run_scenario(seed));
        assert!(wrong.is_empty(), "--seed {seed}:\n{}", wrong.join("\n"));
        stories += 1;
        if least.map_or(stories == 20, |least| begun.elapsed() >= least) {
            break;
        }
    }
    println!("{stories} stories, seeds {first} to {}", first + stories - 1);
}
