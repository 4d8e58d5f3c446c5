//! The simulated fleet, called as the engine calls it: every test holds in memory and on disk. The
//! modules test other adapters through their public API, without a peer.

#![allow(
    clippy::expect_used,
    clippy::too_many_lines,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a test fails by panicking, and its tables are long"
)]

mod bmc_discovery;
mod fabric;
mod faults;
mod governor;
mod http_client_trust;
mod maas_hardware;
mod maas_history;
mod maas_machine;
mod maas_status;
mod maas_storage;
mod nodes;
mod pin;
mod power;
mod redfish_address;
mod redfish_boot;
mod ssh;
mod ssh_address;

use model::condition::ConditionType::{
    self, BmcReachable, Drained, InCustomerCluster, Provisioned, Reachable, Rma,
};
use model::effect::{
    CallOutcome, CallResult, CallVerb, ClusterExpectation, DesiredPower, Effect, EffectKey,
    NetbootMode, NodeLabels, PowerOffPolicy, ProviderAnswer, ProviderCall, RebootMode, RmaAction,
    Taint, TaintEffect,
};
use model::fault::{Fault, FaultCode};
use model::id::{MachineId, PowerShelfId, RunId};
use model::machine::MachineSpec;
use model::time::Timestamp;
use providers::clock::tokio_clock;
use providers::sim::{Action, FaultRule, PROBE, Sim, SimStore, Speed};
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

/// A machine whose every feed is off has no power: neither its system nor its BMC answers.
#[tokio::test]
async fn a_machine_needs_a_power_shelf_that_is_on() {
    let sim = Sim::in_ram(Speed::Zero);
    let mut fed = target("m-1");
    fed.spec.feeds = ["ps-1", "ps-2"].map(PowerShelfId::trusted).to_vec();
    let off = |key| {
        let power_off = PowerOffPolicy::PROVIDER_DEFAULT;
        order(CallVerb::Perform, key, Effect::Power { to: DesiredPower::Off, power_off })
    };
    for (shelf, answers) in [("ps-1", true), ("ps-2", false)] {
        let (journal, _lines) = Journal::new();
        sim.call(&target(shelf), &off(shelf), &journal).await.unwrap();
        let probe = sim.probe(&fed).await.unwrap();
        assert!(probe.iter().take(2).all(|one| one.status == answers), "{shelf}: {probe:?}");
    }
    let (journal, _lines) = Journal::new();
    let fault = sim.call(&fed, &off("last"), &journal).await.unwrap_err();
    assert_eq!(fault.code, FaultCode::BmcUnreachable);
    // If the feeds are not known, nothing follows.
    assert!(sim.probe(&target("m-1")).await.unwrap()[0].status);
}

fn order(verb: CallVerb, step: &str, effect: Effect) -> ProviderCall {
    let key = EffectKey::new(&RunId::trusted("op-1"), step, 1);
    ProviderCall { key, verb, effect, log_offset_bytes: 0 }
}

fn repave(image: &str) -> Effect {
    Effect::Repave { image: image.into() }
}

fn netboot(mode: NetbootMode) -> Effect {
    Effect::Netboot { mode }
}

fn join(cluster: &str) -> Effect {
    Effect::Join {
        cluster_ref: cluster.into(),
        labels: NodeLabels::new(),
        taints: Vec::new(),
        kubeadm: Default::default(),
    }
}

fn drain() -> Effect {
    Effect::Drain {
        cluster_ref: "c1".into(),
        deadline_seconds: Some(60),
        options: Default::default(),
    }
}

fn uncordon(own: bool) -> Effect {
    Effect::Uncordon { cluster_ref: "c1".into(), own }
}

fn power(to: DesiredPower) -> Effect {
    Effect::Power { to, power_off: PowerOffPolicy::PROVIDER_DEFAULT }
}

fn rma(action: RmaAction) -> Effect {
    Effect::Rma { action, power_off: PowerOffPolicy::PROVIDER_DEFAULT }
}

fn verify(expect: ClusterExpectation, advisory: bool) -> Effect {
    Effect::Verify { cluster_ref: "c1".into(), expect, advisory }
}

fn ssh(command: &str) -> Effect {
    Effect::Ssh { command: command.into(), destructive: false }
}

const REBOOT: Effect =
    Effect::Reboot { mode: RebootMode::Bmc, power_off: PowerOffPolicy::PROVIDER_DEFAULT };

/// Calls the provider. Returns the answer and the log.
async fn call_provider(sim: &Sim, call: &ProviderCall) -> (CallResult, String) {
    let (journal, mut lines) = Journal::new();
    let target = target("m-1");
    let reader = tokio::spawn(async move {
        let mut log = Vec::new();
        while let Some(line) = lines.recv().await {
            log.extend(line.data);
        }
        String::from_utf8(log).unwrap()
    });
    let answer = sim.call(&target, call, &journal).await;
    drop(journal);
    (answer, reader.await.unwrap())
}

async fn answer(sim: &Sim, verb: CallVerb, step: &str, effect: Effect) -> CallResult {
    call_provider(sim, &order(verb, step, effect)).await.0
}

async fn perform(sim: &Sim, step: &str, effect: Effect) -> Result<CallOutcome, Fault> {
    match answer(sim, CallVerb::Perform, step, effect).await? {
        ProviderAnswer::Done(outcome) => Ok(outcome),
        other => panic!("{step}: {other:?}"),
    }
}

fn evidence(outcome: &CallOutcome) -> Vec<(ConditionType, bool, &str)> {
    outcome.evidence.iter().map(|one| (one.condition, one.status, one.reason.as_str())).collect()
}

/// Both kinds of memory; the directory exists as long as the first value.
fn memories() -> (tempfile::TempDir, Vec<SimStore>) {
    let dir = tempfile::tempdir().unwrap();
    let on_disk = SimStore::dir(dir.path().join("sim")).unwrap();
    (dir, vec![SimStore::ram(), on_disk])
}

/// A clock that moves only when the test advances it.
#[derive(Clone)]
struct ManualClock(Arc<AtomicI64>);

impl ManualClock {
    fn new() -> Self {
        Self(Arc::new(AtomicI64::new(1_700_000_000_000)))
    }

    fn advance(&self, ms: i64) {
        self.0.fetch_add(ms, Ordering::SeqCst);
    }

    fn sim(&self, memory: &SimStore) -> Sim {
        let call = self.clone();
        let clock = Arc::new(move || Timestamp::from_millis(call.0.load(Ordering::SeqCst)));
        Sim::new(memory.clone(), Speed::Human).with_clock(clock)
    }
}

/// Performs up to the first log line and then drops the future, as a crash would.
async fn begin_and_crash(sim: &Sim, call: &ProviderCall) -> String {
    let (journal, mut lines) = Journal::new();
    let target = target("m-1");
    let requested = sim.call(&target, call, &journal);
    tokio::pin!(requested);
    let mut log = Vec::new();
    loop {
        tokio::select! {
            biased;
            Some(line) = lines.recv() => log.extend(line.data),
            answer = &mut requested => panic!("it should be in progress: {answer:?}"),
            () = tokio::time::sleep(Duration::from_millis(20)), if !log.is_empty() => break,
        }
    }
    String::from_utf8(log).unwrap()
}

/// Evidence, as a test table writes it.
type Proof = Vec<(ConditionType, bool, &'static str)>;

/// Every effect, in an order in which each succeeds, with its evidence.
fn effects_in_order() -> Vec<(&'static str, Effect, Proof)> {
    vec![
        ("pxe", netboot(NetbootMode::Pxe), vec![]),
        ("repave", repave("ubuntu-2204"), vec![(Provisioned, true, "Image:ubuntu-2204")]),
        ("reboot", REBOOT, vec![(Reachable, true, "Booted")]),
        (
            "lonely",
            verify(ClusterExpectation::Drained, false),
            vec![(Drained, true, "NotInCluster")],
        ),
        (
            "absent",
            verify(ClusterExpectation::Ready, true),
            vec![(InCustomerCluster, false, "NotJoined")],
        ),
        ("join", join("c1"), vec![(InCustomerCluster, true, "Joined:c1")]),
        (
            "ready",
            verify(ClusterExpectation::Ready, false),
            vec![(InCustomerCluster, true, "Joined:c1"), (Drained, false, "NotDrained")],
        ),
        ("busy", verify(ClusterExpectation::Drained, true), vec![(Drained, false, "NotDrained")]),
        ("drain", ssh("kubectl drain m-1"), vec![]),
        ("drained", verify(ClusterExpectation::Drained, false), vec![(Drained, true, "Evicted")]),
        ("uncordon", uncordon(false), vec![(Drained, false, "Schedulable")]),
        ("empty", drain(), vec![(Drained, true, "Evicted")]),
        (
            "leave",
            Effect::Leave { cluster_ref: "c1".into(), joined_by: None },
            vec![(InCustomerCluster, false, "NotJoined")],
        ),
        ("net", Effect::Net { document: "mtu: 9000".into() }, vec![]),
        ("record", rma(RmaAction::Record), vec![]),
        ("off", rma(RmaAction::PowerOff), vec![(Reachable, false, "PoweredOff")]),
        ("mark", rma(RmaAction::Mark), vec![(Rma, true, "RmaRun")]),
        ("power-on", power(DesiredPower::On), vec![(Reachable, true, "PoweredOn")]),
        ("power-off", power(DesiredPower::Off), vec![(Reachable, false, "PoweredOff")]),
    ]
}

#[tokio::test]
async fn every_effect_by_every_verb() {
    let (_dir, memories) = memories();
    for memory in memories {
        let sim = Sim::new(memory, Speed::Zero);
        for (step, effect, proof) in effects_in_order() {
            let before = answer(&sim, CallVerb::GetStatus, step, effect.clone()).await;
            assert_eq!(before, Ok(ProviderAnswer::NeverStarted), "{step}");
            let before = answer(&sim, CallVerb::Follow, step, effect.clone()).await;
            assert_eq!(before, Ok(ProviderAnswer::NeverStarted), "{step}");

            let (done, log) =
                call_provider(&sim, &order(CallVerb::Perform, step, effect.clone())).await;
            let Ok(ProviderAnswer::Done(outcome)) = &done else { panic!("{step}: {done:?}") };
            assert_eq!(evidence(outcome), proof, "{step}");
            assert!(log.ends_with(&format!("{}\n", outcome.message)), "{step}: {log}");

            for verb in [CallVerb::GetStatus, CallVerb::Follow, CallVerb::Perform, CallVerb::Stop] {
                let again = answer(&sim, verb, step, effect.clone()).await;
                assert_eq!(again, done, "{step} {verb:?}");
            }
            let observed = answer(&sim, CallVerb::Observe, step, effect.clone()).await.unwrap();
            match (step, &observed) {
                ("reboot" | "drain" | "record", ProviderAnswer::Differs(why)) => {
                    assert!(why.contains("cannot be observed"), "{why}");
                }
                ("absent" | "busy", ProviderAnswer::Differs(_)) => {}
                (_, ProviderAnswer::Done(again)) => assert_eq!(again.evidence, outcome.evidence),
                (_, other) => panic!("{step}: {other:?}"),
            }
        }
        let counts = sim.effects("op-1/").unwrap();
        assert_eq!(counts.len(), effects_in_order().len());
        assert!(counts.iter().all(|one| one.requested == 2 && one.applied == 1), "{counts:?}");
        assert_eq!(sim.effects("op-1/repave").unwrap()[0].machine, "m-1");
        assert!(sim.effects("op-2").unwrap().is_empty());
    }
}

#[tokio::test]
async fn differences_are_reported() {
    let sim = Sim::in_ram(Speed::Zero);
    for (effect, observed) in [
        (netboot(NetbootMode::Pxe), "Next boot from disk"),
        (repave("a"), "image factory is on disk"),
        (join("c1"), "The machine is in no cluster"),
        (verify(ClusterExpectation::Ready, false), "The machine is in no cluster"),
        (Effect::Net { document: "x".into() }, "the network is configured otherwise"),
        (rma(RmaAction::PowerOff), "the power is on"),
        (rma(RmaAction::Mark), "the machine is not marked"),
        (power(DesiredPower::Off), "the power is on"),
    ] {
        let answer = answer(&sim, CallVerb::Observe, "look", effect).await;
        assert_eq!(answer, Ok(ProviderAnswer::Differs(observed.into())));
    }
    assert!(sim.effects("").unwrap().is_empty(), "observing counts as no effect");
}

#[tokio::test]
async fn the_order_of_steps_matters() {
    let sim = Sim::in_ram(Speed::Zero);
    let fault = perform(&sim, "early", repave("a")).await.unwrap_err();
    assert_eq!(fault, Fault::new(FaultCode::EffectFailed, "machine booted from disk, not PXE"));
    assert_eq!(sim.effects("op-1/early").unwrap()[0].applied, 0);
    // `get_status` refers to the end, which reports the same fault.
    let status = answer(&sim, CallVerb::GetStatus, "early", repave("a")).await;
    assert_eq!(status, Ok(ProviderAnswer::UnderWay));
    let followed = answer(&sim, CallVerb::Follow, "early", repave("a")).await;
    assert_eq!(followed, Err(fault));

    let fault = perform(&sim, "check", verify(ClusterExpectation::Ready, false)).await.unwrap_err();
    assert_eq!(fault.code, FaultCode::NotInCluster);
    perform(&sim, "off", rma(RmaAction::PowerOff)).await.unwrap();
    for (step, effect) in [("ssh", ssh("true")), ("join", join("c1"))] {
        let fault = perform(&sim, step, effect).await.unwrap_err();
        assert_eq!(fault.code, FaultCode::HostUnreachable);
    }
    let probe = sim.probe(&target("m-1")).await.unwrap();
    let reasons: Vec<&str> = probe.iter().map(|one| one.reason.as_str()).collect();
    assert_eq!(reasons, ["PoweredOff", "RedfishOK", "NotJoined"]);
    perform(&sim, "on", REBOOT).await.unwrap();
    perform(&sim, "ssh-2", ssh("true")).await.unwrap();
}

#[tokio::test]
async fn an_unchanged_power_state_is_a_success() {
    let sim = Sim::in_ram(Speed::Zero);
    for (step, to, message) in [
        ("on", DesiredPower::On, "It was on already"),
        ("off", DesiredPower::Off, "The power is off"),
        ("off-2", DesiredPower::Off, "It was off already"),
        ("on-2", DesiredPower::On, "The power is on"),
    ] {
        let outcome = perform(&sim, step, power(to)).await.unwrap();
        assert_eq!(outcome.message, message, "{step}");
        assert_eq!(outcome.facts.unwrap().power, Some(to), "{step}");
    }
}

#[tokio::test]
async fn one_key_stands_for_one_effect() {
    let sim = Sim::in_ram(Speed::Zero);
    perform(&sim, "step", netboot(NetbootMode::Pxe)).await.unwrap();
    let fault = perform(&sim, "step", repave("a")).await.unwrap_err();
    assert_eq!(fault.code, FaultCode::ProtocolBroken);
}

#[tokio::test]
async fn a_crash_in_the_middle_of_a_repave_loses_nothing() {
    let (_dir, memories) = memories();
    for memory in memories {
        // The undisturbed log.
        let calm = Sim::in_ram(Speed::Zero);
        perform(&calm, "pxe", netboot(NetbootMode::Pxe)).await.unwrap();
        let complete =
            call_provider(&calm, &order(CallVerb::Perform, "repave", repave("a"))).await.1;

        let call = ManualClock::new();
        let instant = Sim::new(memory.clone(), Speed::Zero);
        perform(&instant, "pxe", netboot(NetbootMode::Pxe)).await.unwrap();
        let first = call.sim(&memory);
        let heartbeat =
            begin_and_crash(&first, &order(CallVerb::Perform, "repave", repave("a"))).await;
        assert_eq!(heartbeat, "Booting from PXE\n");
        drop(first);

        // The hardware continues while no controller runs.
        call.advance(8_000);
        let second = call.sim(&memory);
        let status = answer(&second, CallVerb::GetStatus, "repave", repave("a")).await;
        assert_eq!(status, Ok(ProviderAnswer::UnderWay));
        let mut follow = order(CallVerb::Follow, "repave", repave("a"));
        follow.log_offset_bytes = heartbeat.len() as u64;
        let more = begin_and_crash(&second, &follow).await;
        assert!(more.contains("Progress: 40%"), "{more}");
        assert!(!more.contains("Progress: 70%"), "{more}");
        drop(second);

        call.advance(60_000);
        let third = call.sim(&memory);
        // From the middle of a line.
        follow.log_offset_bytes = (heartbeat.len() + more.len() - 3) as u64;
        let (done, rest) = call_provider(&third, &follow).await;
        let Ok(ProviderAnswer::Done(outcome)) = done else { panic!("{done:?}") };
        assert_eq!(evidence(&outcome), [(Provisioned, true, "Image:a")]);
        let repeated = &more[more.len() - 3..];
        assert_eq!(heartbeat + &more + rest.strip_prefix(repeated).unwrap(), complete);
        let count = &third.effects("op-1/repave").unwrap()[0];
        assert_eq!((count.requested, count.applied), (1, 1));
    }
}

#[tokio::test]
async fn stopping() {
    let (_dir, memories) = memories();
    for memory in memories {
        let call = ManualClock::new();
        let instant = Sim::new(memory.clone(), Speed::Zero);
        let sim = call.sim(&memory);
        perform(&instant, "pxe", netboot(NetbootMode::Pxe)).await.unwrap();

        begin_and_crash(&sim, &order(CallVerb::Perform, "repave", repave("a"))).await;
        call.advance(3_000);
        let stop = |step| answer(&sim, CallVerb::Stop, step, repave("a"));
        assert_eq!(stop("repave").await, Ok(ProviderAnswer::Stopped));
        assert_eq!(stop("repave").await, Ok(ProviderAnswer::Stopped));
        call.advance(60_000);
        let probe = answer(&sim, CallVerb::Observe, "repave", repave("a")).await;
        assert_eq!(probe, Ok(ProviderAnswer::Differs("image partial is on disk".into())));
        let status = answer(&sim, CallVerb::GetStatus, "repave", repave("a")).await;
        assert_eq!(status, Ok(ProviderAnswer::Unknown("repave was stopped after 3s".into())));
        let (followed, log) =
            call_provider(&sim, &order(CallVerb::Follow, "repave", repave("a"))).await;
        assert_eq!(followed.unwrap_err().code, FaultCode::EffectFailed);
        assert!(log.ends_with("Progress: 10%\nStopped on request\n"), "{log}");

        // A key that was stopped before it began never begins.
        assert_eq!(stop("late").await, Ok(ProviderAnswer::Stopped));
        let fault = perform(&instant, "late", repave("a")).await.unwrap_err();
        assert_eq!(fault.message, "stopped on request before it began");
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
            tokio::spawn(
                async move { answer(&slow, CallVerb::Perform, "repave", repave("a")).await },
            );
        while answer(&instant, CallVerb::GetStatus, "repave", repave("a")).await
            != Ok(ProviderAnswer::UnderWay)
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let stopped = answer(&instant, CallVerb::Stop, "repave", repave("a")).await;
        assert_eq!(stopped, Ok(ProviderAnswer::Stopped));
        let fault = working.await.unwrap().unwrap_err();
        assert!(fault.message.starts_with("stopped on request"), "{fault}");
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
            let mut message = Vec::new();
            for racer in racers {
                message.push(racer.await.unwrap().message);
            }
            assert!(message.iter().all(|one| *one == format!("Booted (boot {})", round + 2)));
        }
        let counts = Sim::new(memory, Speed::Zero).effects("").unwrap();
        assert_eq!(counts.len(), 20);
        assert!(counts.iter().all(|one| (one.requested, one.applied) == (8, 1)), "{counts:?}");
    }
}

/// A test that waits this long has failed.
const DEADLINE: Duration = Duration::from_secs(60);

fn rule(action: Action) -> FaultRule {
    let delay_ms = if action == Action::Slow { 50 } else { 0 };
    FaultRule { machine: "m-*".into(), times: 1, delay_ms, ..FaultRule::new(action) }
}

#[tokio::test]
async fn logs_have_two_streams() {
    let sim = Sim::in_ram(Speed::Zero);
    let (journal, mut lines) = Journal::new();
    let call = order(CallVerb::Perform, "ssh", ssh("uptime"));
    sim.call(&target("m-1"), &call, &journal).await.unwrap();
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
    assert_eq!(fault.code, FaultCode::AnswerGarbled);
    assert!(fault.message.contains("m-1.jsonl"), "{fault}");
    assert!(sim.probe(&target("m-1")).await.is_err());
    assert!(sim.probe(&target("m-2")).await.is_ok());

    std::fs::remove_dir_all(dir.path().join("machines")).unwrap();
    let fault = sim.probe(&target("m-2")).await.unwrap_err();
    assert_eq!(fault.code, FaultCode::BmcUnreachable);
    // `follow` must not report that nothing happened.
    std::fs::remove_dir_all(dir.path().join("locks")).unwrap();
    let fault = answer(&sim, CallVerb::Follow, "reboot", REBOOT).await.unwrap_err();
    assert_eq!(fault.code, FaultCode::AnswerLost);

    std::fs::write(dir.path().join("faults.json"), "[").unwrap();
    let refusal = sim.list_faults().unwrap_err();
    assert!(refusal.message.contains("faults.json"), "{refusal}");
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
    let call = ManualClock::new();
    let memory = SimStore::ram();
    let sim = call.sim(&memory);
    for step in 0..70 {
        let _stopped = answer(&sim, CallVerb::Stop, &format!("s{step}"), REBOOT).await;
        call.advance(1);
    }
    let known = |step| answer(&sim, CallVerb::Follow, step, REBOOT);
    assert_eq!(known("s0").await, Ok(ProviderAnswer::NeverStarted));
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
    assert_eq!(outcome.message, "Booted (boot 2)");
    assert_eq!(sim.name(), "sim");
    for (_, effect, _) in effects_in_order() {
        assert!(sim.capabilities().contains(&effect.required_capability()));
    }
}
