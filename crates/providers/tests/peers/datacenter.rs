//! The datacenter provider against a scripted BMC: its checkpoints, its requests, and a BMC that
//! becomes unreachable.

use crate::http::{Call, Peer, Said};
use crate::until;
use crate::world::{PASSWORD, RESET, SYSTEM, World, settings};
use model::effect::{Answer, Effect, Key, NetbootMode, Order, PowerOffPolicy, RebootMode, Verb};
use model::fault::{Code, Fault};
use model::id::{MachineId, RunId};
use model::machine::MachineSpec;
use providers::datacenter::{Datacenter, Settings};
use providers::power::PowerTimeouts;
use providers::redfish::Auth;
use providers::state_store::{Checkpoint, InMemoryStateStore, ProviderStateStore, Secret};
use providers::{Journal, Provider, Target};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::AsyncWriteExt;

const REBOOT: Effect =
    Effect::Reboot { mode: RebootMode::Bmc, power_off: PowerOffPolicy::CONFIGURED };
const PXE: Effect = Effect::Netboot { mode: NetbootMode::Pxe };

/// One replica. Its state is in the store, so another replica can continue.
fn replica(store: &Arc<InMemoryStateStore>) -> Datacenter {
    let power_timeouts = PowerTimeouts {
        graceful: Duration::ZERO,
        force: true,
        change: Duration::from_secs(20),
        again: Duration::from_secs(1),
    };
    let settings = Settings {
        bmc_credential: "bmc".into(),
        power_timeouts,
        call: Duration::from_secs(15),
        redfish: settings(Auth::Basic),
        ..Settings::default()
    };
    Datacenter::new(Arc::clone(store) as Arc<dyn ProviderStateStore>, settings)
}

fn store() -> Arc<InMemoryStateStore> {
    let store = Arc::new(InMemoryStateStore::default());
    set(&store, PASSWORD);
    store
}

fn set(store: &InMemoryStateStore, password: &str) {
    let password = password.to_string().into();
    store.set("bmc", Secret::Password { user: "root".into(), password });
}

fn key(step: &str) -> Key {
    Key::new(&RunId::trusted("op-1"), step, 1)
}

async fn ask(
    provider: &Datacenter,
    peer: &Peer,
    verb: Verb,
    effect: &Effect,
) -> Result<Answer, Fault> {
    let spec = MachineSpec { bmc_endpoint: peer.url(), ..MachineSpec::default() };
    let target = Target { id: model::target::TargetId::from(&MachineId::trusted("m-1")), spec };
    let order = Order { key: key(effect.word()), verb, effect: effect.clone(), logged: 0 };
    let (journal, mut lines) = Journal::new();
    let reader = tokio::spawn(async move { while lines.recv().await.is_some() {} });
    let answer = provider.ask(&target, &order, &journal).await;
    drop(journal);
    reader.await.unwrap();
    answer
}

fn resets(peer: &Peer) -> Vec<String> {
    let calls = peer.calls();
    let resets = calls.iter().filter(|call| call.is("POST", RESET));
    let word =
        |call: &Call| serde_json::from_str::<Value>(&call.body).unwrap()["ResetType"].clone();
    resets.map(|call| word(call).as_str().unwrap().to_string()).collect()
}

/// A BMC whose machine is on.
fn on() -> World {
    let world = World::new();
    world.set(SYSTEM, "/PowerState", json!("On"));
    world
}

#[tokio::test]
async fn a_reboot_is_seen_off_and_on_and_is_not_repeated_under_its_key() {
    let (store, peer) = (store(), on().serve().await);
    let one = replica(&store);
    assert_eq!(ask(&one, &peer, Verb::GetStatus, &REBOOT).await, Ok(Answer::NeverStarted));
    let done = ask(&one, &peer, Verb::Perform, &REBOOT).await.unwrap();
    let Answer::Done(outcome) = done else { panic!("{done:?}") };
    assert_eq!(outcome.said, "rebooted: it was seen off, and is on again");
    assert_eq!(resets(&peer), ["ForceOff", "On"]);
    // Another replica with the same key reports it as done.
    let other = replica(&store);
    for verb in [Verb::GetStatus, Verb::Follow, Verb::Perform] {
        let answer = ask(&other, &peer, verb, &REBOOT).await.unwrap();
        assert!(matches!(answer, Answer::Done(_)), "{verb:?}: {answer:?}");
    }
    assert_eq!(resets(&peer), ["ForceOff", "On"]);
}

#[tokio::test]
async fn a_bmc_that_goes_away_in_the_middle_leaves_a_doubt_and_another_goes_on() {
    let away = Arc::new(AtomicBool::new(false));
    let gone = Arc::clone(&away);
    let peer = on()
        .serve_but(move |call| {
            if call.is("POST", RESET) && call.body.contains("ForceOff") {
                // The BMC receives this and becomes unreachable.
                gone.store(true, Ordering::SeqCst);
                return None;
            }
            gone.load(Ordering::SeqCst).then(|| Said::status(503, "{}"))
        })
        .await;
    let store = store();
    let fault = ask(&replica(&store), &peer, Verb::Perform, &REBOOT).await.unwrap_err();
    assert_eq!(fault.code, Code::AnswerLost, "{fault}");
    let other = replica(&store);
    let fault = ask(&other, &peer, Verb::Follow, &REBOOT).await.unwrap_err();
    assert_eq!(fault.code, Code::AnswerLost, "{fault}");
    assert_eq!(ask(&other, &peer, Verb::GetStatus, &REBOOT).await, Ok(Answer::UnderWay));
    away.store(false, Ordering::SeqCst);
    let answer = ask(&other, &peer, Verb::Follow, &REBOOT).await.unwrap();
    assert!(matches!(answer, Answer::Done(_)), "{answer:?}");
    assert_eq!(resets(&peer), ["ForceOff", "On"]);
}

/// The checkpoint was written, and the process crashed before it sent the command.
#[tokio::test]
async fn a_command_that_was_noted_and_never_sent_is_sent_by_the_next() {
    let (store, peer) = (store(), on().serve().await);
    let long_ago = json!({"what": "power", "goal": "cycle", "stage": {"cutting": 1_000_000}});
    store.begin(&key("reboot"), &Checkpoint::Begun(long_ago.clone())).await.unwrap();
    let fault = ask(&replica(&store), &peer, Verb::Follow, &REBOOT).await.unwrap_err();
    // Its timeout passed long ago.
    assert_eq!(fault.code, Code::ReadBackDiffers, "{fault}");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let just_now = json!({"cutting": now.as_micros() as i64});
    let note = json!({"what": "power", "goal": "cycle", "stage": just_now});
    assert!(store.compare_and_swap(&key("reboot"), &long_ago, &note).await.unwrap());
    let answer = ask(&replica(&store), &peer, Verb::Follow, &REBOOT).await.unwrap();
    assert!(matches!(answer, Answer::Done(_)), "{answer:?}");
    assert_eq!(resets(&peer), ["ForceOff", "On"]);
}

#[tokio::test]
async fn what_was_stopped_before_it_began_never_begins() {
    let (store, peer) = (store(), on().serve().await);
    let one = replica(&store);
    for effect in [&REBOOT, &PXE] {
        assert_eq!(ask(&one, &peer, Verb::Stop, effect).await, Ok(Answer::Stopped));
        let late = ask(&one, &peer, Verb::Perform, effect).await.unwrap_err();
        assert!(late.said.contains("stopped before it began"), "{late}");
    }
    assert_eq!(resets(&peer), [""; 0]);
    assert_eq!(peer.count("PATCH", SYSTEM), 0);
}

/// A worker that paused after it began resumes after another replica stopped the key: it sends
/// nothing.
#[tokio::test]
async fn a_sleeper_that_wakes_after_a_stop_asks_for_nothing() {
    let store = store();
    let (asleep, woken) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
    let (sleeping, waking) = (Arc::clone(&asleep), Arc::clone(&woken));
    let peer = on()
        .serve_but(move |call| {
            // The first read of the power hangs until the key is stopped.
            if call.is("GET", SYSTEM) && sleeping.load(Ordering::SeqCst) {
                waking.store(true, Ordering::SeqCst);
                return Some(Said::status(503, "{}"));
            }
            None
        })
        .await;
    let fault = ask(&replica(&store), &peer, Verb::Perform, &REBOOT).await.unwrap_err();
    assert_eq!(fault.code, Code::BmcBusy, "nothing was sent yet: {fault}");
    assert!(woken.load(Ordering::SeqCst));
    // Another replica stops it; then the first one continues with its stale state.
    assert_eq!(ask(&replica(&store), &peer, Verb::Stop, &REBOOT).await, Ok(Answer::Stopped));
    asleep.store(false, Ordering::SeqCst);
    let begun = json!({"what": "power", "goal": "cycle", "stage": "begun"});
    let cutting = json!({"what": "power", "goal": "cycle", "stage": {"cutting": 1}});
    assert!(!store.compare_and_swap(&key("reboot"), &begun, &cutting).await.unwrap());
    let late = ask(&replica(&store), &peer, Verb::Perform, &REBOOT).await.unwrap_err();
    assert!(late.said.contains("stopped before it began"), "{late}");
    assert_eq!(resets(&peer), [""; 0]);
}

#[tokio::test]
async fn netboot_is_set_read_back_and_observed() {
    let (store, peer) = (store(), on().serve().await);
    let one = replica(&store);
    let before = ask(&one, &peer, Verb::Observe, &PXE).await.unwrap();
    assert!(matches!(before, Answer::Differs(_)), "{before:?}");
    let done = ask(&one, &peer, Verb::Perform, &PXE).await.unwrap();
    assert!(matches!(done, Answer::Done(_)), "{done:?}");
    let after = ask(&one, &peer, Verb::Observe, &PXE).await.unwrap();
    assert!(matches!(after, Answer::Done(_)), "{after:?}");
}

#[tokio::test]
async fn a_refused_login_is_not_tried_again_until_it_has_changed() {
    let peer = on()
        .serve_but(|call| {
            let said = call.header("authorization").unwrap_or_default().to_string();
            let right = said.ends_with("cm9vdDpzM2NyZXQtb2YtdGhlLWJtYw==");
            let open = call.path.trim_end_matches('/') == "/redfish/v1";
            (!right && !open).then(|| Said::status(401, "{}"))
        })
        .await;
    let store = Arc::new(InMemoryStateStore::default());
    set(&store, "wrong");
    let fault = ask(&replica(&store), &peer, Verb::Perform, &REBOOT).await.unwrap_err();
    assert_eq!(fault.code, Code::LoginRefused, "{fault}");
    let tried = peer.calls().len();
    // Another replica does not retry it either.
    for _ in 0..3 {
        let fault = ask(&replica(&store), &peer, Verb::Follow, &REBOOT).await.unwrap_err();
        assert_eq!(fault.code, Code::LoginRefused, "{fault}");
        assert!(fault.said.contains("was not asked"), "{fault}");
    }
    assert_eq!(peer.calls().len(), tried);
    set(&store, PASSWORD);
    let answer = ask(&replica(&store), &peer, Verb::Follow, &REBOOT).await.unwrap();
    assert!(matches!(answer, Answer::Done(_)), "{answer:?}");
}

#[tokio::test]
async fn without_a_credential_or_an_endpoint_nothing_is_tried() {
    let peer = on().serve().await;
    let nobody = Arc::new(InMemoryStateStore::default());
    let fault = ask(&replica(&nobody), &peer, Verb::Perform, &REBOOT).await.unwrap_err();
    assert_eq!(fault.code, Code::CredentialMissing, "{fault}");
    assert_eq!(peer.calls().len(), 0);
    let machine_id = MachineId::trusted("m-1");
    let target =
        Target { id: model::target::TargetId::from(&machine_id), spec: MachineSpec::default() };
    let order = Order { key: key("x"), verb: Verb::Perform, effect: REBOOT, logged: 0 };
    let fault = replica(&store()).ask(&target, &order, &Journal::new().0).await.unwrap_err();
    assert!(fault.said.contains("no bmc_endpoint"), "{fault}");
}

/// A host that speaks SSH while it is up.
async fn banner(up: Arc<AtomicBool>) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            if up.load(Ordering::SeqCst) {
                let _ = stream.write_all(b"SSH-2.0-test\r\n").await;
            }
        }
    });
    address
}

#[tokio::test]
async fn a_host_that_answered_before_a_reboot_has_to_answer_after_it() {
    let up = Arc::new(AtomicBool::new(true));
    let host = banner(Arc::clone(&up)).await;
    let went = Arc::clone(&up);
    let peer = on()
        .serve_but(move |call| {
            if call.is("POST", RESET) {
                went.store(false, Ordering::SeqCst);
            }
            None
        })
        .await;
    let store = store();
    let one = replica(&store);
    let spec =
        MachineSpec { bmc_endpoint: peer.url(), ssh_endpoint: host, ..MachineSpec::default() };
    let target = Target { id: model::target::TargetId::from(&MachineId::trusted("m-1")), spec };
    let order = |verb| Order { key: key("reboot"), verb, effect: REBOOT, logged: 0 };
    let (journal, _lines) = Journal::new();
    let perform = order(Verb::Perform);
    let switched_on = async {
        until("the machine is on again", async || resets(&peer) == ["ForceOff", "On"]).await;
        // A provider that does not wait for the host is done by then.
        tokio::time::sleep(Duration::from_secs(2)).await;
    };
    tokio::select! {
        answer = one.ask(&target, &perform, &journal) => {
            panic!("the host did not answer, and the result was {answer:?}");
        }
        () = switched_on => {}
    }
    let asked = one.ask(&target, &order(Verb::GetStatus), &journal).await;
    assert_eq!(asked, Ok(Answer::UnderWay));
    let stopped = one.ask(&target, &order(Verb::Stop), &journal).await;
    assert_eq!(stopped, Ok(Answer::Stopped), "the host did not come back in time");
    up.store(true, Ordering::SeqCst);
    for verb in [Verb::GetStatus, Verb::Follow, Verb::Stop] {
        let answer = one.ask(&target, &order(verb), &journal).await;
        assert!(matches!(answer, Ok(Answer::Done(_))), "{verb:?}: {answer:?}");
    }
    assert_eq!(resets(&peer), ["ForceOff", "On"]);
}

/// The machine was asked to power off and was not polled for an hour. It is on: either it never
/// went off, or it was switched on again.
#[tokio::test]
async fn what_nobody_watched_is_left_to_a_person() {
    let (store, peer) = (store(), on().serve().await);
    let now = || std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_micros() as i64;
    let hour = 3_600_000_000;
    for (watched, expected) in [(now() - hour, "nobody looked for 1h 0m"), (now(), "")] {
        let note = json!({
            "what": "power", "goal": "cycle", "stage": {"cutting": now() - hour}, "watched": watched});
        let step = format!("reboot-{watched}");
        store.begin(&key(&step), &Checkpoint::Begun(note)).await.unwrap();
        let spec = MachineSpec { bmc_endpoint: peer.url(), ..MachineSpec::default() };
        let target = Target { id: model::target::TargetId::from(&MachineId::trusted("m-1")), spec };
        let order = Order { key: key(&step), verb: Verb::GetStatus, effect: REBOOT, logged: 0 };
        let (journal, _lines) = Journal::new();
        match replica(&store).ask(&target, &order, &journal).await.unwrap() {
            Answer::Unknown(said) => {
                assert!(!expected.is_empty() && said.contains(expected), "{said}")
            }
            other => assert!(expected.is_empty() && other == Answer::UnderWay, "{other:?}"),
        }
    }
    assert!(resets(&peer).is_empty());
}
