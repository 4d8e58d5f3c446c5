//! The simulated fleet, called as the engine calls it. Every test holds in memory and on disk.

#![allow(
    clippy::expect_used,
    clippy::too_many_lines,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a test fails by panicking, and its tables are long"
)]

use model::condition::ConditionType::{
    self, BmcReachable, Drained, InCustomerCluster, Provisioned, Reachable, Rma,
};
use model::effect::{
    Answer, Effect, Expect, Key, NetbootMode, NodeLabels, Order, Outcome, PowerOffPolicy, PowerTo,
    RebootMode, RmaAction, Taint, TaintEffect, Verb,
};
use model::fault::{Code, Fault};
use model::id::{MachineId, RunId};
use model::machine::MachineSpec;
use model::time::Timestamp;
use providers::clock::tokio_clock;
use providers::sim::{Action, FaultRule, Memory, PROBE, Sim, Speed};
use providers::{Journal, Provider, Stream, Target};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

fn target(id: &str) -> Target {
    Target {
        id: model::target::TargetId::from(&MachineId::trusted(id)),
        spec: MachineSpec::default(),
    }
}

fn order(verb: Verb, step: &str, effect: Effect) -> Order {
    let key = Key::new(&RunId::trusted("op-1"), step, 1);
    Order { key, verb, effect, logged: 0 }
}

fn repave(image: &str) -> Effect {
    Effect::Repave { image: image.into() }
}

fn netboot(mode: NetbootMode) -> Effect {
    Effect::Netboot { mode }
}

fn join(cluster: &str) -> Effect {
    Effect::Join { cluster_ref: cluster.into(), labels: NodeLabels::new(), taints: Vec::new() }
}

fn drain() -> Effect {
    Effect::Drain { cluster_ref: "c1".into(), deadline_seconds: Some(60) }
}

fn uncordon(own: bool) -> Effect {
    Effect::Uncordon { cluster_ref: "c1".into(), own }
}

fn power(to: PowerTo) -> Effect {
    Effect::Power { to, power_off: PowerOffPolicy::CONFIGURED }
}

fn rma(action: RmaAction) -> Effect {
    Effect::Rma { action, power_off: PowerOffPolicy::CONFIGURED }
}

fn verify(expect: Expect, advisory: bool) -> Effect {
    Effect::Verify { cluster_ref: "c1".into(), expect, advisory }
}

fn ssh(command: &str) -> Effect {
    Effect::Ssh { command: command.into(), destructive: false }
}

const REBOOT: Effect =
    Effect::Reboot { mode: RebootMode::Bmc, power_off: PowerOffPolicy::CONFIGURED };

/// Calls the provider. Returns the answer and the log.
async fn ask(sim: &Sim, order: &Order) -> (Result<Answer, Fault>, String) {
    let (journal, mut lines) = Journal::new();
    let target = target("m-1");
    let reader = tokio::spawn(async move {
        let mut log = Vec::new();
        while let Some(line) = lines.recv().await {
            log.extend(line.data);
        }
        String::from_utf8(log).unwrap()
    });
    let answer = sim.ask(&target, order, &journal).await;
    drop(journal);
    (answer, reader.await.unwrap())
}

async fn answer(sim: &Sim, verb: Verb, step: &str, effect: Effect) -> Result<Answer, Fault> {
    ask(sim, &order(verb, step, effect)).await.0
}

async fn perform(sim: &Sim, step: &str, effect: Effect) -> Result<Outcome, Fault> {
    match answer(sim, Verb::Perform, step, effect).await? {
        Answer::Done(outcome) => Ok(outcome),
        other => panic!("{step}: {other:?}"),
    }
}

fn evidence(outcome: &Outcome) -> Vec<(ConditionType, bool, &str)> {
    outcome.evidence.iter().map(|one| (one.condition, one.status, one.reason.as_str())).collect()
}

/// Both kinds of memory; the directory exists as long as the first value.
fn memories() -> (tempfile::TempDir, Vec<Memory>) {
    let dir = tempfile::tempdir().unwrap();
    let on_disk = Memory::dir(dir.path().join("sim")).unwrap();
    (dir, vec![Memory::ram(), on_disk])
}

/// A clock that moves only when the test advances it.
#[derive(Clone)]
struct Hand(Arc<AtomicI64>);

impl Hand {
    fn new() -> Self {
        Self(Arc::new(AtomicI64::new(1_700_000_000_000)))
    }

    fn advance(&self, ms: i64) {
        self.0.fetch_add(ms, Ordering::SeqCst);
    }

    fn sim(&self, memory: &Memory) -> Sim {
        let hand = self.clone();
        let clock = Arc::new(move || Timestamp::from_millis(hand.0.load(Ordering::SeqCst)));
        Sim::new(memory.clone(), Speed::Human).with_clock(clock)
    }
}

/// Performs up to the first log line and then drops the future, as a crash would.
async fn begin_and_die(sim: &Sim, order: &Order) -> String {
    let (journal, mut lines) = Journal::new();
    let target = target("m-1");
    let asked = sim.ask(&target, order, &journal);
    tokio::pin!(asked);
    let mut log = Vec::new();
    loop {
        tokio::select! {
            biased;
            Some(line) = lines.recv() => log.extend(line.data),
            answer = &mut asked => panic!("it should be in progress: {answer:?}"),
            () = tokio::time::sleep(Duration::from_millis(20)), if !log.is_empty() => break,
        }
    }
    String::from_utf8(log).unwrap()
}

/// Evidence, as a test table writes it.
type Proof = Vec<(ConditionType, bool, &'static str)>;

/// Every effect, in an order in which each succeeds, with its evidence.
fn course() -> Vec<(&'static str, Effect, Proof)> {
    vec![
        ("pxe", netboot(NetbootMode::Pxe), vec![]),
        ("repave", repave("ubuntu-2204"), vec![(Provisioned, true, "Image:ubuntu-2204")]),
        ("reboot", REBOOT, vec![(Reachable, true, "Booted")]),
        ("lonely", verify(Expect::Drained, false), vec![(Drained, true, "NotInCluster")]),
        ("absent", verify(Expect::Ready, true), vec![(InCustomerCluster, false, "NotJoined")]),
        ("join", join("c1"), vec![(InCustomerCluster, true, "Joined:c1")]),
        ("ready", verify(Expect::Ready, false), vec![(InCustomerCluster, true, "Joined:c1")]),
        ("busy", verify(Expect::Drained, true), vec![(Drained, false, "NotDrained")]),
        ("drain", ssh("kubectl drain m-1"), vec![]),
        ("drained", verify(Expect::Drained, false), vec![(Drained, true, "Cordoned")]),
        ("uncordon", uncordon(false), vec![(Drained, false, "Schedulable")]),
        ("empty", drain(), vec![(Drained, true, "Evicted")]),
        (
            "leave",
            Effect::Leave { cluster_ref: "c1".into() },
            vec![(InCustomerCluster, false, "NotJoined")],
        ),
        ("net", Effect::Net { document: "mtu: 9000".into() }, vec![]),
        ("record", rma(RmaAction::Record), vec![]),
        ("off", rma(RmaAction::PowerOff), vec![(Reachable, false, "PoweredOff")]),
        ("mark", rma(RmaAction::Mark), vec![(Rma, true, "RmaRun")]),
        ("power-on", power(PowerTo::On), vec![(Reachable, true, "PoweredOn")]),
        ("power-off", power(PowerTo::Off), vec![(Reachable, false, "PoweredOff")]),
    ]
}

#[tokio::test]
async fn every_effect_by_every_verb() {
    let (_dir, memories) = memories();
    for memory in memories {
        let sim = Sim::new(memory, Speed::Zero);
        for (step, effect, proof) in course() {
            let before = answer(&sim, Verb::GetStatus, step, effect.clone()).await;
            assert_eq!(before, Ok(Answer::NeverStarted), "{step}");
            let before = answer(&sim, Verb::Follow, step, effect.clone()).await;
            assert_eq!(before, Ok(Answer::NeverStarted), "{step}");

            let (done, log) = ask(&sim, &order(Verb::Perform, step, effect.clone())).await;
            let Ok(Answer::Done(outcome)) = &done else { panic!("{step}: {done:?}") };
            assert_eq!(evidence(outcome), proof, "{step}");
            assert!(log.ends_with(&format!("{}\n", outcome.said)), "{step}: {log}");

            for verb in [Verb::GetStatus, Verb::Follow, Verb::Perform, Verb::Stop] {
                let again = answer(&sim, verb, step, effect.clone()).await;
                assert_eq!(again, done, "{step} {verb:?}");
            }
            let seen = answer(&sim, Verb::Observe, step, effect.clone()).await.unwrap();
            match (step, &seen) {
                ("reboot" | "drain" | "record", Answer::Differs(why)) => {
                    assert!(why.contains("cannot be observed"), "{why}");
                }
                ("absent" | "busy", Answer::Differs(_)) => {}
                (_, Answer::Done(again)) => assert_eq!(again.evidence, outcome.evidence),
                (_, other) => panic!("{step}: {other:?}"),
            }
        }
        let counts = sim.effects("op-1/").unwrap();
        assert_eq!(counts.len(), course().len());
        assert!(counts.iter().all(|one| one.asked == 2 && one.applied == 1), "{counts:?}");
        assert_eq!(sim.effects("op-1/repave").unwrap()[0].machine, "m-1");
        assert!(sim.effects("op-2").unwrap().is_empty());
    }
}

#[tokio::test]
async fn what_differs_is_said() {
    let sim = Sim::in_ram(Speed::Zero);
    for (effect, seen) in [
        (netboot(NetbootMode::Pxe), "Next boot from disk"),
        (repave("a"), "image factory is on disk"),
        (join("c1"), "The machine is in no cluster"),
        (verify(Expect::Ready, false), "The machine is in no cluster"),
        (Effect::Net { document: "x".into() }, "the network is configured otherwise"),
        (rma(RmaAction::PowerOff), "the machine is powered on"),
        (rma(RmaAction::Mark), "the machine is not marked"),
        (power(PowerTo::Off), "the machine is powered on"),
    ] {
        let answer = answer(&sim, Verb::Observe, "look", effect).await;
        assert_eq!(answer, Ok(Answer::Differs(seen.into())));
    }
    assert!(sim.effects("").unwrap().is_empty(), "observing counts as no effect");
}

#[tokio::test]
async fn the_order_of_steps_matters() {
    let sim = Sim::in_ram(Speed::Zero);
    let fault = perform(&sim, "early", repave("a")).await.unwrap_err();
    assert_eq!(fault, Fault::new(Code::EffectFailed, "machine booted from disk, not PXE"));
    assert_eq!(sim.effects("op-1/early").unwrap()[0].applied, 0);
    // `get_status` refers to the end, which reports the same fault.
    let inquired = answer(&sim, Verb::GetStatus, "early", repave("a")).await;
    assert_eq!(inquired, Ok(Answer::UnderWay));
    let followed = answer(&sim, Verb::Follow, "early", repave("a")).await;
    assert_eq!(followed, Err(fault));

    let fault = perform(&sim, "check", verify(Expect::Ready, false)).await.unwrap_err();
    assert_eq!(fault.code, Code::NotInCluster);
    perform(&sim, "off", rma(RmaAction::PowerOff)).await.unwrap();
    for (step, effect) in [("ssh", ssh("true")), ("join", join("c1"))] {
        let fault = perform(&sim, step, effect).await.unwrap_err();
        assert_eq!(fault.code, Code::HostUnreachable);
    }
    let probe = sim.probe(&target("m-1")).await.unwrap();
    let reasons: Vec<&str> = probe.iter().map(|one| one.reason.as_str()).collect();
    assert_eq!(reasons, ["PoweredOff", "RedfishOK", "NotJoined"]);
    perform(&sim, "on", REBOOT).await.unwrap();
    perform(&sim, "ssh-2", ssh("true")).await.unwrap();
}

#[tokio::test]
async fn power_that_is_so_already_is_a_success_and_says_so() {
    let sim = Sim::in_ram(Speed::Zero);
    for (step, to, said) in [
        ("on", PowerTo::On, "It was on already"),
        ("off", PowerTo::Off, "The machine is powered off"),
        ("off-2", PowerTo::Off, "It was off already"),
        ("on-2", PowerTo::On, "The machine is powered on"),
    ] {
        let outcome = perform(&sim, step, power(to)).await.unwrap();
        assert_eq!(outcome.said, said, "{step}");
        assert_eq!(outcome.facts.unwrap().power, Some(to), "{step}");
    }
}

#[tokio::test]
async fn a_node_has_what_its_join_gave_it() {
    let sim = Sim::in_ram(Speed::Zero);
    let taint = Taint { key: "gpu".into(), value: String::new(), effect: TaintEffect::NoSchedule };
    let dressed = Effect::Join {
        cluster_ref: "c1".into(),
        labels: NodeLabels::from([("zone".into(), "a".into())]),
        taints: vec![taint],
    };
    perform(&sim, "plain", join("c1")).await.unwrap();
    let seen = answer(&sim, Verb::Observe, "look", dressed.clone()).await;
    assert_eq!(seen, Ok(Answer::Differs("the node has other labels or taints".into())));
    perform(&sim, "dressed", dressed.clone()).await.unwrap();
    let seen = answer(&sim, Verb::Observe, "look", dressed).await;
    assert!(matches!(seen, Ok(Answer::Done(_))), "{seen:?}");
}

/// A drain begins with a cordon, continues without polls, and keeps its progress when it is
/// stopped.
#[tokio::test]
async fn a_drain_takes_its_time() {
    let (_dir, memories) = memories();
    for memory in memories {
        let hand = Hand::new();
        let instant = Sim::new(memory.clone(), Speed::Zero);
        perform(&instant, "join", join("c1")).await.unwrap();
        let sim = hand.sim(&memory);
        let observe = || async {
            match answer(&sim, Verb::Observe, "look", drain()).await.unwrap() {
                Answer::Differs(seen) => seen,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(observe().await, "the node still takes work");
        begin_and_die(&sim, &order(Verb::Perform, "drain", drain())).await;
        assert_eq!(observe().await, "the node is cordoned, and 4 pods are still on it");
        hand.advance(3_000);
        assert_eq!(answer(&sim, Verb::Stop, "drain", drain()).await, Ok(Answer::Stopped));
        hand.advance(60_000);
        assert_eq!(observe().await, "the node is cordoned, and 2 pods are still on it");
        perform(&instant, "again", drain()).await.unwrap();
        let seen = answer(&sim, Verb::Observe, "look", drain()).await;
        assert!(matches!(seen, Ok(Answer::Done(_))), "{seen:?}");
    }
}

/// A cancel undoes only what this run did.
#[tokio::test]
async fn a_cordon_of_another_is_not_taken_back() {
    let sim = Sim::in_ram(Speed::Zero);
    perform(&sim, "join", join("c1")).await.unwrap();
    perform(&sim, "owner", ssh("kubectl cordon m-1")).await.unwrap();
    perform(&sim, "drain", drain()).await.unwrap();
    let kept = perform(&sim, "undo-drain", uncordon(true)).await.unwrap();
    assert!(kept.said.contains("stays cordoned"), "{kept:?}");
    assert_eq!(evidence(&kept), [(Drained, true, "Cordoned")]);
    perform(&sim, "exit", uncordon(false)).await.unwrap();
    perform(&sim, "drain-2", drain()).await.unwrap();
    let released = perform(&sim, "undo-drain-2", uncordon(true)).await.unwrap();
    assert_eq!(evidence(&released), [(Drained, false, "Schedulable")]);
}

/// A budget that allows nothing is a fault rule like any other, and leaves the node cordoned.
#[tokio::test]
async fn a_budget_blocks_by_a_rule() {
    let sim = Sim::in_ram(Speed::Zero);
    perform(&sim, "join", join("c1")).await.unwrap();
    let rule = FaultRule {
        effect: "drain".into(),
        times: 1,
        message: "shop/db-0 (needs 2 healthy pods and has 2)".into(),
        ..FaultRule::new(Action::Fail)
    };
    sim.add_fault(rule).unwrap();
    let fault = perform(&sim, "drain", drain()).await.unwrap_err();
    assert_eq!(fault.code, Code::EvictionBlocked);
    assert!(fault.said.contains("`m-1`") && fault.said.contains("shop/db-0"), "{fault}");
    let seen = answer(&sim, Verb::Observe, "look", verify(Expect::Drained, false)).await;
    assert!(matches!(seen, Ok(Answer::Done(_))), "it is cordoned: {seen:?}");
    perform(&sim, "again", drain()).await.unwrap();
}

#[tokio::test]
async fn where_there_is_no_cluster_there_is_nothing_to_drain() {
    let sim = Sim::in_ram(Speed::Zero);
    let nowhere = Effect::Drain { cluster_ref: String::new(), deadline_seconds: Some(60) };
    for (step, effect) in [("any", nowhere), ("other", drain()), ("back", uncordon(false))] {
        let done = perform(&sim, step, effect).await.unwrap();
        assert!(done.said.contains("in no cluster"), "{done:?}");
        assert_eq!(evidence(&done), [(Drained, true, "NotInCluster")], "{step}");
    }
}

#[tokio::test]
async fn one_key_stands_for_one_effect() {
    let sim = Sim::in_ram(Speed::Zero);
    perform(&sim, "step", netboot(NetbootMode::Pxe)).await.unwrap();
    let fault = perform(&sim, "step", repave("a")).await.unwrap_err();
    assert_eq!(fault.code, Code::ProtocolBroken);
}

#[tokio::test]
async fn a_crash_in_the_middle_of_a_repave_loses_nothing() {
    let (_dir, memories) = memories();
    for memory in memories {
        // The undisturbed log.
        let calm = Sim::in_ram(Speed::Zero);
        perform(&calm, "pxe", netboot(NetbootMode::Pxe)).await.unwrap();
        let whole = ask(&calm, &order(Verb::Perform, "repave", repave("a"))).await.1;

        let hand = Hand::new();
        let instant = Sim::new(memory.clone(), Speed::Zero);
        perform(&instant, "pxe", netboot(NetbootMode::Pxe)).await.unwrap();
        let first = hand.sim(&memory);
        let heard = begin_and_die(&first, &order(Verb::Perform, "repave", repave("a"))).await;
        assert_eq!(heard, "Booting from PXE\n");
        drop(first);

        // The hardware continues while no controller runs.
        hand.advance(8_000);
        let second = hand.sim(&memory);
        let inquired = answer(&second, Verb::GetStatus, "repave", repave("a")).await;
        assert_eq!(inquired, Ok(Answer::UnderWay));
        let mut follow = order(Verb::Follow, "repave", repave("a"));
        follow.logged = heard.len() as u64;
        let more = begin_and_die(&second, &follow).await;
        assert!(more.contains("Progress: 40%"), "{more}");
        assert!(!more.contains("Progress: 70%"), "{more}");
        drop(second);

        hand.advance(60_000);
        let third = hand.sim(&memory);
        // From the middle of a line.
        follow.logged = (heard.len() + more.len() - 3) as u64;
        let (done, rest) = ask(&third, &follow).await;
        let Ok(Answer::Done(outcome)) = done else { panic!("{done:?}") };
        assert_eq!(evidence(&outcome), [(Provisioned, true, "Image:a")]);
        let repeated = &more[more.len() - 3..];
        assert_eq!(heard + &more + rest.strip_prefix(repeated).unwrap(), whole);
        let count = &third.effects("op-1/repave").unwrap()[0];
        assert_eq!((count.asked, count.applied), (1, 1));
    }
}

#[tokio::test]
async fn stopping() {
    let (_dir, memories) = memories();
    for memory in memories {
        let hand = Hand::new();
        let instant = Sim::new(memory.clone(), Speed::Zero);
        let sim = hand.sim(&memory);
        perform(&instant, "pxe", netboot(NetbootMode::Pxe)).await.unwrap();

        begin_and_die(&sim, &order(Verb::Perform, "repave", repave("a"))).await;
        hand.advance(3_000);
        let stop = |step| answer(&sim, Verb::Stop, step, repave("a"));
        assert_eq!(stop("repave").await, Ok(Answer::Stopped));
        assert_eq!(stop("repave").await, Ok(Answer::Stopped));
        hand.advance(60_000);
        let look = answer(&sim, Verb::Observe, "repave", repave("a")).await;
        assert_eq!(look, Ok(Answer::Differs("image partial is on disk".into())));
        let inquired = answer(&sim, Verb::GetStatus, "repave", repave("a")).await;
        assert_eq!(inquired, Ok(Answer::Unknown("repave was stopped after 3s".into())));
        let (followed, log) = ask(&sim, &order(Verb::Follow, "repave", repave("a"))).await;
        assert_eq!(followed.unwrap_err().code, Code::EffectFailed);
        assert!(log.ends_with("Progress: 10%\nStopped on request\n"), "{log}");

        // A key that was stopped before it began never begins.
        assert_eq!(stop("late").await, Ok(Answer::Stopped));
        let fault = perform(&instant, "late", repave("a")).await.unwrap_err();
        assert_eq!(fault.said, "stopped on request before it began");
        let counts = sim.effects("op-1/").unwrap();
        let applied: Vec<_> = counts.iter().map(|one| (one.key.as_str(), one.applied)).collect();
        assert_eq!(applied, [("op-1/late/1", 0), ("op-1/pxe/1", 1), ("op-1/repave/1", 0)]);

        // A new attempt finds PXE still set, and works.
        perform(&instant, "again", repave("a")).await.unwrap();
    }
}

#[tokio::test]
async fn a_stop_by_another_process_is_noticed() {
    let (_dir, memories) = memories();
    for memory in memories {
        let instant = Sim::new(memory.clone(), Speed::Zero);
        perform(&instant, "pxe", netboot(NetbootMode::Pxe)).await.unwrap();
        let slow = Sim::new(memory.clone(), Speed::Human);
        let working =
            tokio::spawn(async move { answer(&slow, Verb::Perform, "repave", repave("a")).await });
        while answer(&instant, Verb::GetStatus, "repave", repave("a")).await != Ok(Answer::UnderWay)
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let stopped = answer(&instant, Verb::Stop, "repave", repave("a")).await;
        assert_eq!(stopped, Ok(Answer::Stopped));
        let fault = working.await.unwrap().unwrap_err();
        assert!(fault.said.starts_with("stopped on request"), "{fault}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_controllers_race_for_one_key() {
    let (_dir, memories) = memories();
    for memory in memories {
        for round in 0..20 {
            let step = format!("race-{round}");
            let racers: Vec<_> = (0..8)
                .map(|_| {
                    let sim = Sim::new(memory.clone(), Speed::Zero);
                    let step = step.clone();
                    tokio::spawn(async move { perform(&sim, &step, REBOOT).await.unwrap() })
                })
                .collect();
            let mut said = Vec::new();
            for racer in racers {
                said.push(racer.await.unwrap().said);
            }
            assert!(said.iter().all(|one| *one == format!("Booted (boot {})", round + 2)));
        }
        let counts = Sim::new(memory, Speed::Zero).effects("").unwrap();
        assert_eq!(counts.len(), 20);
        assert!(counts.iter().all(|one| (one.asked, one.applied) == (8, 1)), "{counts:?}");
    }
}

/// A test that waits this long has failed.
const DEADLINE: Duration = Duration::from_secs(60);

fn rule(action: Action) -> FaultRule {
    let delay_ms = if action == Action::Slow { 50 } else { 0 };
    FaultRule { machine: "m-*".into(), times: 1, delay_ms, ..FaultRule::new(action) }
}

#[tokio::test]
async fn every_fault_action() {
    let (_dir, memories) = memories();
    for memory in memories {
        for action in Action::ALL {
            let sim = Sim::new(memory.clone(), Speed::Zero);
            // Two actions never answer in time; the others answer, however long that takes.
            let late = FaultRule { delay_ms: 600_000, ..rule(action) };
            let made = sim.add_fault(if action == Action::Slow { late } else { rule(action) });
            let (made, step) = (made.unwrap(), action.as_str());
            let waits = match action {
                Action::Hang | Action::Slow => Duration::from_millis(30),
                Action::Fail | Action::Drop | Action::Garbage | Action::Twice => DEADLINE,
            };
            let asked =
                tokio::time::timeout(waits, answer(&sim, Verb::Perform, step, REBOOT)).await;
            let happened = match (action, asked) {
                (Action::Fail, Ok(Err(fault))) => {
                    assert_eq!(fault.code, Code::EffectFailed);
                    false
                }
                (Action::Hang, Err(_timeout)) => false,
                (Action::Drop, Ok(Err(fault))) => {
                    assert_eq!(fault.code, Code::AnswerLost);
                    true
                }
                (Action::Garbage, Ok(Err(fault))) => {
                    assert_eq!(fault.code, Code::AnswerGarbled);
                    true
                }
                (Action::Slow, Err(_)) | (Action::Twice, Ok(Ok(Answer::Done(_)))) => true,
                (_, other) => panic!("{action:?}: {other:?}"),
            };
            assert_eq!(sim.list_faults().unwrap()[0].struck, 1);
            // Another controller reads what really happened.
            let other = Sim::new(memory.clone(), Speed::Zero);
            let inquired = answer(&other, Verb::GetStatus, step, REBOOT).await.unwrap();
            assert_eq!(matches!(inquired, Answer::Done(_)), happened, "{inquired:?}");
            let never = action == Action::Hang;
            assert_eq!(inquired == Answer::NeverStarted, never, "{inquired:?}");
            // The rule is used up, and so is a key that failed: it never acts.
            let again = perform(&other, step, REBOOT).await;
            assert_eq!(again.is_err(), action == Action::Fail, "{again:?}");
            let count = other.effects(&format!("op-1/{step}")).unwrap().remove(0);
            assert_eq!((count.asked, count.applied), (2, u32::from(again.is_ok())));
            assert_eq!(other.clear_faults(Some(&made.id)).unwrap(), 1);
        }
    }
}

#[tokio::test]
async fn slow_answers_come_in_the_end() {
    let sim = Sim::in_ram(Speed::Zero);
    sim.add_fault(rule(Action::Slow)).unwrap();
    let begun = std::time::Instant::now();
    perform(&sim, "slow", REBOOT).await.unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(50));
}

#[tokio::test]
async fn faults_by_verb_and_effect() {
    let sim = Sim::in_ram(Speed::Zero);
    perform(&sim, "done", REBOOT).await.unwrap();
    for (effect, verb, step, code) in [
        (ssh("false"), Verb::Perform, "ssh", Code::CommandFailed),
        (REBOOT, Verb::Perform, "reboot", Code::EffectFailed),
        (REBOOT, Verb::Follow, "reboot", Code::EffectFailed),
        // It was done before, and stays done.
        (REBOOT, Verb::Follow, "done", Code::AnswerLost),
        (REBOOT, Verb::GetStatus, "done", Code::BmcUnreachable),
        (REBOOT, Verb::Observe, "done", Code::BmcUnreachable),
        (REBOOT, Verb::Stop, "done", Code::BmcUnreachable),
    ] {
        let message = "smoke".to_string();
        let effect_word = effect.word().to_string();
        let rule = FaultRule { verb, effect: effect_word, message, ..rule(Action::Fail) };
        sim.add_fault(rule).unwrap();
        let fault = answer(&sim, verb, step, effect).await.unwrap_err();
        assert_eq!(fault, Fault::new(code, "smoke"), "{verb:?}");
    }
    // A rule for one effect or machine leaves the others alone.
    sim.clear_faults(None).unwrap();
    let elsewhere = FaultRule { machine: "x-*".into(), ..rule(Action::Fail) };
    sim.add_fault(elsewhere).unwrap();
    sim.add_fault(FaultRule { effect: "repave".into(), ..rule(Action::Fail) }).unwrap();
    perform(&sim, "free", REBOOT).await.unwrap();
    assert!(sim.list_faults().unwrap().iter().all(|rule| rule.struck == 0));
}

#[tokio::test]
async fn a_fault_while_following_ends_the_work() {
    let hand = Hand::new();
    let memory = Memory::ram();
    let instant = Sim::new(memory.clone(), Speed::Zero);
    perform(&instant, "pxe", netboot(NetbootMode::Pxe)).await.unwrap();
    let sim = hand.sim(&memory);
    begin_and_die(&sim, &order(Verb::Perform, "repave", repave("a"))).await;
    sim.add_fault(FaultRule { verb: Verb::Follow, ..rule(Action::Fail) }).unwrap();
    let fault = answer(&sim, Verb::Follow, "repave", repave("a")).await.unwrap_err();
    assert_eq!(fault.code, Code::EffectFailed);
    hand.advance(60_000);
    assert_eq!(sim.effects("op-1/repave").unwrap()[0].applied, 0);
    let look = answer(&sim, Verb::Observe, "repave", repave("a")).await;
    assert_eq!(look, Ok(Answer::Differs("image partial is on disk".into())));
}

#[tokio::test]
async fn probes() {
    let (_dir, memories) = memories();
    for memory in memories {
        let sim = Sim::new(memory, Speed::Zero);
        perform(&sim, "join", join("c1")).await.unwrap();
        // A rule for every effect does not apply to probes.
        sim.add_fault(FaultRule { times: 0, ..rule(Action::Fail) }).unwrap();
        let seen = sim.probe(&target("m-1")).await.unwrap();
        let seen = Outcome { evidence: seen, ..Outcome::default() };
        let expected = [
            (Reachable, true, "PingOK"),
            (BmcReachable, true, "RedfishOK"),
            (InCustomerCluster, true, "Joined:c1"),
        ];
        assert_eq!(evidence(&seen), expected);
        for (action, code) in [
            (Action::Fail, Code::BmcUnreachable),
            (Action::Drop, Code::AnswerLost),
            (Action::Garbage, Code::AnswerGarbled),
        ] {
            sim.add_fault(FaultRule { effect: PROBE.into(), ..rule(action) }).unwrap();
            assert_eq!(sim.probe(&target("m-1")).await.unwrap_err().code, code);
        }
        assert!(sim.probe(&target("m-1")).await.is_ok());
    }
}

#[tokio::test]
async fn bad_rules_are_refused() {
    let sim = Sim::in_ram(Speed::Zero);
    let refusal =
        sim.add_fault(FaultRule { effect: "boil".into(), ..rule(Action::Fail) }).unwrap_err();
    assert_eq!(refusal.field.as_deref(), Some("fault.effect"));
    assert!(refusal.said.contains("ssh, reboot, netboot"), "{refusal}");
    assert!(sim.list_faults().unwrap().is_empty());
}

#[tokio::test]
async fn logs_have_two_streams() {
    let sim = Sim::in_ram(Speed::Zero);
    let (journal, mut lines) = Journal::new();
    let order = order(Verb::Perform, "ssh", ssh("uptime"));
    sim.ask(&target("m-1"), &order, &journal).await.unwrap();
    drop(journal);
    let mut streams = Vec::new();
    while let Some(line) = lines.recv().await {
        streams.push((line.stream, String::from_utf8(line.data).unwrap()));
    }
    assert_eq!(streams[0], (Stream::Stdout, "$ uptime\n".into()));
    assert_eq!(streams.iter().filter(|(stream, _)| *stream == Stream::Stderr).count(), 1);
}

#[tokio::test]
async fn a_damaged_file_is_a_fault_and_harms_no_neighbour() {
    let dir = tempfile::tempdir().unwrap();
    let sim = Sim::in_dir(dir.path(), Speed::Zero).unwrap();
    std::fs::write(dir.path().join("machines/m-1.jsonl"), b"{\"power\":\xff").unwrap();
    let fault = perform(&sim, "reboot", REBOOT).await.unwrap_err();
    assert_eq!(fault.code, Code::AnswerGarbled);
    assert!(fault.said.contains("m-1.jsonl"), "{fault}");
    assert!(sim.probe(&target("m-1")).await.is_err());
    assert!(sim.probe(&target("m-2")).await.is_ok());

    std::fs::remove_dir_all(dir.path().join("machines")).unwrap();
    let fault = sim.probe(&target("m-2")).await.unwrap_err();
    assert_eq!(fault.code, Code::BmcUnreachable);
    // `follow` must not report that nothing happened.
    std::fs::remove_dir_all(dir.path().join("locks")).unwrap();
    let fault = answer(&sim, Verb::Follow, "reboot", REBOOT).await.unwrap_err();
    assert_eq!(fault.code, Code::AnswerLost);

    std::fs::write(dir.path().join("faults.json"), "[").unwrap();
    let refusal = sim.list_faults().unwrap_err();
    assert!(refusal.said.contains("faults.json"), "{refusal}");
}

#[tokio::test]
async fn a_torn_line_in_the_ledger_is_left_out() {
    use std::io::Write;
    let dir = tempfile::tempdir().unwrap();
    let sim = Sim::in_dir(dir.path(), Speed::Zero).unwrap();
    perform(&sim, "reboot", REBOOT).await.unwrap();
    let ledger = dir.path().join("effects.jsonl");
    let mut file = std::fs::OpenOptions::new().append(true).open(ledger).unwrap();
    file.write_all(b"{\"what\":\"applied\",\"key\":\"op").unwrap();
    assert_eq!(sim.effects("").unwrap()[0].applied, 1);
}

#[tokio::test]
async fn old_jobs_are_forgotten() {
    let hand = Hand::new();
    let memory = Memory::ram();
    let sim = hand.sim(&memory);
    for step in 0..70 {
        let _stopped = answer(&sim, Verb::Stop, &format!("s{step}"), REBOOT).await;
        hand.advance(1);
    }
    let known = |step| answer(&sim, Verb::Follow, step, REBOOT);
    assert_eq!(known("s0").await, Ok(Answer::NeverStarted));
    assert!(known("s69").await.is_err());
    assert!(known("s6").await.is_err());
}

#[tokio::test]
async fn fast_takes_a_moment_by_tokios_clock() {
    let clock = tokio_clock(Timestamp::from_millis(5));
    let sim = Sim::in_ram(Speed::Fast).with_clock(clock);
    let begun = std::time::Instant::now();
    let outcome = perform(&sim, "reboot", REBOOT).await.unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(90));
    assert_eq!(outcome.said, "Booted (boot 2)");
    assert_eq!(sim.name(), "sim");
    for (_, effect, _) in course() {
        assert!(sim.capabilities().contains(&effect.needs()));
    }
}
