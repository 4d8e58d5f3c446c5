//! Notices of notifiers: order, retries, dead letters, receivers that hang, and crashes at every
//! commit of a delivery.

use crate::fault_injector::{CrashPoint, FaultInjector, StopScope};
use crate::test_env::{Process, TestEnv, on_all_cores, simulate};
use async_trait::async_trait;
use engine::{NotifierStatus, Retention, Settings};
use model::condition::{ConditionObservation, ConditionType};
use model::id::MachineId;
use model::notify::{Notice, NoticeKind, NotifierSpec, NotifyFormat, SendFailure};
use model::run::actions::Requester;
use model::time::Timestamp;
use providers::webhook::WebhookSender;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use store::{Cause, DeadLetterQuery, NewEvent, Result, Tx};
use tokio::time::{sleep, timeout};

const HOOK: &str = "https://hook.example/in";
const OTHER: &str = "https://other.example/in";
/// A receiver that never answers.
const HANGS: &str = "https://hangs.example/in";
/// Long enough for every retry of a test, and for a replica to take over.
const ENOUGH: Duration = Duration::from_secs(300);
const STEPS: Duration = Duration::from_millis(200);

/// Receivers of notices. They remember what arrived, also what they refused.
#[derive(Default)]
pub struct Receivers(Mutex<ReceiverState>);

#[derive(Default)]
struct ReceiverState {
    /// URL, id and time of the accepted notices.
    accepted: Vec<(String, String, Timestamp)>,
    refused: Vec<(String, Timestamp)>,
    /// How often a notice is still to be refused, by its id.
    refusals: BTreeMap<String, u32>,
    retry_after: Option<Duration>,
}

impl Receivers {
    fn state(&self) -> std::sync::MutexGuard<'_, ReceiverState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refuse(&self, id: &str, times: u32) {
        self.state().refusals.insert(id.into(), times);
    }

    fn accept_all(&self) {
        self.state().refusals.clear();
    }

    /// The ids that arrived at a URL, without repeats, in the order of their first arrival.
    fn ids(&self, url: &str) -> Vec<String> {
        let mut seen = BTreeSet::new();
        let state = self.state();
        let here = state.accepted.iter().filter(|(at, _, _)| at == url);
        here.filter(|(_, id, _)| seen.insert(id.clone())).map(|(_, id, _)| id.clone()).collect()
    }

    /// The number of arrivals at a URL, with repeats.
    fn arrivals(&self, url: &str) -> usize {
        self.state().accepted.iter().filter(|(at, _, _)| at == url).count()
    }

    fn receive(&self, url: &str, id: &str, now: Timestamp) -> std::result::Result<(), SendFailure> {
        let mut state = self.state();
        match state.refusals.get_mut(id).filter(|left| **left > 0) {
            Some(left) => {
                *left -= 1;
                state.refused.push((id.into(), now));
                let message = format!("{url} answered 500");
                let retry_after = state.retry_after;
                Err(SendFailure { message, repair: None, retry_after })
            }
            None => {
                state.accepted.push((url.into(), id.into(), now));
                Ok(())
            }
        }
    }
}

/// The receivers behind the fault injector of a process.
pub struct InjectedReceivers {
    pub receivers: Arc<Receivers>,
    pub injector: Arc<FaultInjector>,
}

#[async_trait]
impl WebhookSender for InjectedReceivers {
    async fn send(
        &self,
        spec: &NotifierSpec,
        notice: &Notice,
        now: Timestamp,
    ) -> std::result::Result<(), SendFailure> {
        self.injector.wait_until_alive().await;
        if spec.url == HANGS {
            std::future::pending::<()>().await;
        }
        // A request takes a while, so that a crash can come before and after its arrival.
        sleep(Duration::from_millis(20)).await;
        self.injector.wait_until_alive().await;
        let received = self.receivers.receive(&spec.url, &notice.id, now);
        sleep(Duration::from_millis(20)).await;
        self.injector.wait_until_alive().await;
        received
    }
}

fn spec(url: &str) -> NotifierSpec {
    NotifierSpec {
        url: url.into(),
        credential: "hook".into(),
        format: NotifyFormat::CloudEvents,
        kinds: BTreeSet::from(NoticeKind::ALL),
        filter: String::new(),
        source: String::new(),
        max_attempts: 3,
    }
}

fn who() -> Requester {
    Requester { by: "ada".into(), reason: String::new() }
}

async fn add(process: &Process, name: &str, spec: NotifierSpec) {
    process.engine.notifiers().create(name, spec, who()).await.expect("created");
}

async fn get(process: &Process, name: &str) -> NotifierStatus {
    process.engine.notifiers().get(name).await.expect("it is there")
}

/// Sets or clears the need of a machine for a person, as a probe does.
async fn set_need(env: &TestEnv, machine: &'static str, needs: bool) {
    let now = env.now();
    let write =
        env.store.retry_write("need", (machine, needs, now), |(machine, needs, now), tx| {
            Box::pin(write_need(tx, machine, *needs, *now))
        });
    write.await.expect("written");
}

async fn write_need(tx: &mut Tx, machine: &str, needs: bool, now: Timestamp) -> Result<()> {
    let id = MachineId::trusted(machine);
    let mut machine = tx.machine_locked(&id).await?.expect("it was registered");
    let observed =
        ConditionObservation::new(ConditionType::NeedsIntervention, needs, "outcome-unknown: test");
    machine.learn(&[observed], now);
    let event = NewEvent {
        cause: Cause::Probe,
        actor: "test".into(),
        message: "test".into(),
        decided_by: "test".into(),
        at: now,
    };
    tx.update_machine(&mut machine, &event)
}

/// The ids of the notices of `change_needs`, in order.
const EXPECTED: [&str; 6] = [
    "m-1:3:person-needed",
    "m-2:3:person-needed",
    "m-1:4:person-no-longer-needed",
    "m-1:5:person-needed",
    "m-2:4:person-no-longer-needed",
    "m-1:6:person-no-longer-needed",
];

async fn change_needs(env: &TestEnv) {
    for (machine, needs) in [
        ("m-1", true),
        ("m-2", true),
        ("m-1", false),
        ("m-1", true),
        ("m-2", false),
        ("m-1", false),
    ] {
        set_need(env, machine, needs).await;
        sleep(STEPS).await;
    }
}

async fn env_with_machines() -> (TestEnv, Process) {
    let env = TestEnv::new(1).await;
    let one = env.boot("one").await;
    for machine in ["m-1", "m-2"] {
        env.register(&one.engine, machine).await;
    }
    sleep(Duration::from_secs(1)).await;
    (env, one)
}

#[test]
fn a_notifier_gets_the_notices_that_it_asks_for_in_order() {
    simulate(async {
        let (env, one) = env_with_machines().await;
        add(&one, "all", spec(HOOK)).await;
        let only = NotifierSpec { filter: "id=m-2".into(), ..spec(OTHER) };
        add(&one, "one", only).await;
        change_needs(&env).await;
        sleep(Duration::from_secs(2)).await;
        assert_eq!(env.receivers.ids(HOOK), EXPECTED);
        assert_eq!(env.receivers.arrivals(HOOK), EXPECTED.len(), "none was sent twice");
        assert_eq!(env.receivers.ids(OTHER), [EXPECTED[1], EXPECTED[4]]);
        let status = get(&one, "all").await;
        assert_eq!((status.notifier.delivery.delivered, status.dead_letters), (6, 0));
        // Nothing that happened before it was created is sent.
        add(&one, "late", spec("https://late.example/in")).await;
        sleep(Duration::from_secs(2)).await;
        assert_eq!(env.receivers.arrivals("https://late.example/in"), 0);
    });
}

#[test]
fn a_receiver_that_hangs_delays_no_other_and_ends_in_dead_letters() {
    simulate(async {
        let (env, one) = env_with_machines().await;
        add(&one, "hangs", spec(HANGS)).await;
        add(&one, "works", spec(HOOK)).await;
        set_need(&env, "m-1", true).await;
        sleep(Duration::from_secs(1)).await;
        assert_eq!(env.receivers.ids(HOOK), [EXPECTED[0]]);
        sleep(ENOUGH).await;
        let status = get(&one, "hangs").await;
        let delivery = &status.notifier.delivery;
        assert!(delivery.problem.contains("no answer came within"), "{delivery:?}");
        assert!(delivery.failing_since.is_some());
        assert_eq!(status.dead_letters, 1);
        // The engine stops although a request hangs.
        set_need(&env, "m-1", false).await;
        sleep(Duration::from_secs(1)).await;
        timeout(Duration::from_secs(5), one.engine.shut_down()).await.expect("it stops");
    });
}

#[test]
fn a_refused_notice_is_retried_with_growing_waits_before_the_next_is_sent() {
    simulate(async {
        let (env, one) = env_with_machines().await;
        add(&one, "all", NotifierSpec { max_attempts: 5, ..spec(HOOK) }).await;
        env.receivers.refuse(EXPECTED[0], 4);
        change_needs(&env).await;
        sleep(ENOUGH).await;
        assert_eq!(env.receivers.ids(HOOK), EXPECTED);
        let refused: Vec<Timestamp> =
            env.receivers.state().refused.iter().map(|(_, at)| *at).collect();
        assert_eq!(refused.len(), 4);
        let waits: Vec<Duration> = refused.windows(2).map(|two| two[1].since(two[0])).collect();
        assert!(waits.windows(2).all(|two| two[1] > two[0]), "{waits:?}");
        let delivery = get(&one, "all").await.notifier.delivery;
        assert_eq!((delivery.failures, delivery.problem.as_str()), (0, ""));

        // A receiver may ask for a longer wait.
        env.receivers.state().retry_after = Some(Duration::from_secs(120));
        env.receivers.refuse("m-2:5:person-needed", 1);
        let begun = env.now();
        set_need(&env, "m-2", true).await;
        sleep(ENOUGH).await;
        let last = env.receivers.state().accepted.last().expect("it arrived").clone();
        assert_eq!(last.1, "m-2:5:person-needed");
        assert!(last.2.since(begun) >= Duration::from_secs(120), "{:?}", last.2.since(begun));
    });
}

#[test]
fn a_dead_letter_is_replayed_or_discarded() {
    simulate(async {
        let (env, one) = env_with_machines().await;
        add(&one, "all", spec(HOOK)).await;
        env.receivers.refuse(EXPECTED[0], u32::MAX);
        env.receivers.refuse(EXPECTED[3], u32::MAX);
        change_needs(&env).await;
        sleep(ENOUGH).await;
        let rest = [EXPECTED[1], EXPECTED[2], EXPECTED[4], EXPECTED[5]];
        assert_eq!(env.receivers.ids(HOOK), rest);
        let notifiers = one.engine.notifiers();
        let letters = notifiers.dead_letters("all", 0, 9).await.expect("read");
        let ids: Vec<&str> = letters.iter().map(|one| one.notice.id.as_str()).collect();
        assert_eq!(ids, [EXPECTED[0], EXPECTED[3]]);
        assert!(letters.iter().all(|one| one.attempts == 3 && !one.replaying), "{letters:?}");

        // A replay that fails is a dead letter again.
        let all = DeadLetterQuery { notifier: "all".into(), ids: Vec::new() };
        assert_eq!(notifiers.replay(all.clone()).await, Ok(2));
        sleep(ENOUGH).await;
        let again = notifiers.dead_letters("all", 0, 9).await.expect("read");
        assert!(again.iter().all(|one| one.attempts == 3 && !one.replaying), "{again:?}");
        env.receivers.accept_all();
        let first = DeadLetterQuery { ids: vec![letters[0].id], ..all.clone() };
        assert_eq!(notifiers.replay(first).await, Ok(1));
        sleep(ENOUGH).await;
        assert_eq!(env.receivers.ids(HOOK).last().map(String::as_str), Some(EXPECTED[0]));
        let unknown = DeadLetterQuery { ids: vec![letters[0].id], ..all.clone() };
        assert!(notifiers.replay(unknown).await.is_err(), "it is delivered");
        assert_eq!(notifiers.discard(all).await, Ok(1));
        assert_eq!(get(&one, "all").await.dead_letters, 0);
    });
}

#[test]
fn a_paused_notifier_goes_on_where_it_stopped() {
    simulate(async {
        let (env, one) = env_with_machines().await;
        add(&one, "all", spec(HOOK)).await;
        sleep(Duration::from_secs(1)).await;
        let notifiers = one.engine.notifiers();
        notifiers.set_paused("all", true, who()).await.expect("paused");
        change_needs(&env).await;
        sleep(Duration::from_secs(60)).await;
        assert_eq!(env.receivers.arrivals(HOOK), 0);
        assert_eq!(one.engine.scheduler().in_flight(), 0, "it holds no claim");
        notifiers.set_paused("all", false, who()).await.expect("resumed");
        sleep(Duration::from_secs(5)).await;
        assert_eq!(env.receivers.ids(HOOK), EXPECTED);
        notifiers.delete("all", None, who()).await.expect("deleted");
        set_need(&env, "m-1", true).await;
        sleep(Duration::from_secs(60)).await;
        assert_eq!(env.receivers.ids(HOOK), EXPECTED);
        assert_eq!(one.engine.scheduler().in_flight(), 0);
    });
}

/// Events that retention deletes while a notifier is paused cannot be sent: it says so.
#[test]
fn a_notifier_says_that_it_has_missed_events() {
    simulate(async {
        let env = TestEnv::new(1).await;
        let retention = Retention { events: Some(Duration::from_secs(60)), ..Retention::default() };
        let one = env
            .boot_with(Settings { replica: "one".into(), retention, ..Settings::default() })
            .await;
        for machine in ["m-1", "m-2"] {
            env.register(&one.engine, machine).await;
        }
        sleep(Duration::from_secs(1)).await;
        add(&one, "all", spec(HOOK)).await;
        sleep(Duration::from_secs(1)).await;
        let notifiers = one.engine.notifiers();
        notifiers.set_paused("all", true, who()).await.expect("paused");
        change_needs(&env).await;
        sleep(Duration::from_secs(600)).await;
        notifiers.set_paused("all", false, who()).await.expect("resumed");
        sleep(Duration::from_secs(5)).await;
        let delivery = get(&one, "all").await.notifier.delivery;
        assert!(delivery.missed_at.is_some(), "{delivery:?}");
        set_need(&env, "m-2", true).await;
        sleep(Duration::from_secs(5)).await;
        let last = env.receivers.ids(HOOK).last().cloned();
        assert_eq!(last.as_deref(), Some("m-2:5:person-needed"));
    });
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Disturbance {
    Restart,
    TakeOver,
    FreezeUntilTaken,
    CutConnection,
}

/// The refusals of a case: none, some attempts, or more than the notifier makes.
#[derive(Debug, Clone, Copy)]
enum Refusals {
    Retried,
    Dead,
}

/// Runs the changes with a disturbance at a point; returns the points and the problems.
async fn run_case(
    refusals: Refusals,
    disturbance: Disturbance,
    at: Option<usize>,
) -> (Vec<CrashPoint>, Vec<String>) {
    let (env, one) = env_with_machines().await;
    add(&one, "all", spec(HOOK)).await;
    sleep(Duration::from_secs(1)).await;
    match refusals {
        Refusals::Retried => env.receivers.refuse(EXPECTED[2], 2),
        Refusals::Dead => env.receivers.refuse(EXPECTED[2], u32::MAX),
    }
    let scope = match disturbance {
        Disturbance::CutConnection => StopScope::Task,
        Disturbance::Restart | Disturbance::TakeOver | Disturbance::FreezeUntilTaken => {
            StopScope::Process
        }
    };
    let mut last = one.clone();
    let other = match disturbance {
        Disturbance::TakeOver | Disturbance::FreezeUntilTaken => Some(env.boot("two").await),
        Disturbance::Restart | Disturbance::CutConnection => None,
    };
    one.injector.arm(at.map(|index| (index, scope)));
    let script = tokio::spawn({
        let env = env.clone();
        async move { change_needs(&env).await }
    });
    if timeout(ENOUGH, one.injector.wait_until_stopped()).await.is_ok() {
        match disturbance {
            Disturbance::Restart => {
                one.injector.kill();
                sleep(Duration::from_millis(300)).await;
                last = env.boot("one").await;
            }
            Disturbance::TakeOver => one.injector.kill(),
            Disturbance::FreezeUntilTaken => {
                sleep(Duration::from_secs(8)).await;
                one.injector.thaw();
            }
            Disturbance::CutConnection => one.injector.cut_connection(),
        }
    }
    let points = one.injector.passed();
    last = other.unwrap_or(last);
    script.await.expect("the script ends");
    sleep(ENOUGH).await;
    let mut problems = Vec::new();
    if matches!(refusals, Refusals::Dead) {
        let letters = last.engine.notifiers().dead_letters("all", 0, 9).await.expect("read");
        let ids: Vec<&str> = letters.iter().map(|one| one.notice.id.as_str()).collect();
        // A replica that wakes late may have sent the same notice once more.
        if ids.is_empty() || ids.iter().any(|id| *id != EXPECTED[2]) {
            problems.push(format!("the dead letters are {ids:?}"));
        }
        env.receivers.accept_all();
        let all = DeadLetterQuery { notifier: "all".into(), ids: Vec::new() };
        last.engine.notifiers().replay(all).await.expect("replayed");
        sleep(ENOUGH).await;
    }
    let expected: Vec<&str> = match refusals {
        Refusals::Retried => EXPECTED.to_vec(),
        Refusals::Dead => {
            let others = EXPECTED.iter().filter(|id| **id != EXPECTED[2]);
            others.chain([&EXPECTED[2]]).copied().collect()
        }
    };
    let arrived = env.receivers.ids(HOOK);
    if arrived != expected {
        problems.push(format!("{arrived:?} arrived"));
    }
    let status = get(&last, "all").await;
    if status.dead_letters != 0 || !status.notifier.delivery.problem.is_empty() {
        problems.push(format!("it does not end well: {status:?}"));
    }
    (points, problems)
}

/// Nothing is lost and the order of first arrivals is kept, wherever the process is disturbed.
#[test]
fn a_process_may_die_at_every_commit_of_a_delivery() {
    let mut cases = Vec::new();
    for refusals in [Refusals::Retried, Refusals::Dead] {
        for disturbance in [
            Disturbance::Restart,
            Disturbance::TakeOver,
            Disturbance::FreezeUntilTaken,
            Disturbance::CutConnection,
        ] {
            let (points, problems) = simulate(run_case(refusals, disturbance, None));
            assert!(problems.is_empty(), "{refusals:?} undisturbed: {problems:?}");
            let of_deliveries = (0..points.len()).filter(|at| {
                matches!(points[*at], CrashPoint::Commit(_, "settle_notice" | "wake_notifier"))
            });
            let of_deliveries: Vec<usize> = of_deliveries.collect();
            // Before and after the commit of each notice at least.
            assert!(of_deliveries.len() >= 2 * EXPECTED.len(), "{points:?}");
            cases.extend(of_deliveries.into_iter().map(|at| (refusals, disturbance, at)));
        }
    }
    let wrong = on_all_cores(&cases, |(refusals, disturbance, at)| {
        let (points, problems) = simulate(run_case(*refusals, *disturbance, Some(*at)));
        let point = points.get(*at);
        (!problems.is_empty() || point.is_none())
            .then(|| format!("{refusals:?}/{disturbance:?}/{at} at {point:?}: {problems:?}"))
    });
    let wrong: Vec<String> = wrong.into_iter().flatten().collect();
    println!("{} cases", cases.len());
    assert!(wrong.is_empty(), "{} of {} failed:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}
