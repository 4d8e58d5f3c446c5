//! The datacenter provider against a scripted BMC: its checkpoints, its requests, and a BMC that
//! becomes unreachable.

use crate::fake_bmc::{FakeBmc, PASSWORD, RESET, SYSTEM, settings};
use crate::http::{Call, Peer, Response};
use crate::until;
use model::effect::{
    CallResult, CallVerb, Effect, EffectKey, NetbootMode, PowerOffPolicy, ProviderAnswer,
    ProviderCall, RebootMode,
};
use model::fault::FaultCode;
use model::id::{MachineId, RunId};
use model::machine::MachineSpec;
use model::target::TargetId;
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
    Effect::Reboot { mode: RebootMode::Bmc, power_off: PowerOffPolicy::PROVIDER_DEFAULT };
const PXE: Effect = Effect::Netboot { mode: NetbootMode::Pxe };

/// One replica. Its state is in the store, so another replica can continue.
fn replica(store: &Arc<InMemoryStateStore>) -> Datacenter {
    let power_timeouts = PowerTimeouts {
        graceful: Duration::ZERO,
        force: true,
        change: Duration::from_secs(20),
        repeat_after: Duration::from_secs(1),
    };
    let settings = Settings {
        bmc_credential: "bmc".into(),
        power_timeouts,
        call_timeout: Duration::from_secs(15),
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
    store.set_credential("bmc", Secret::Password { user: "root".into(), password });
}

fn key(step: &str) -> EffectKey {
    EffectKey::new(&RunId::trusted("op-1"), step, 1)
}

async fn call_provider(
    provider: &Datacenter,
    peer: &Peer,
    verb: CallVerb,
    effect: &Effect,
) -> CallResult {
    let spec = MachineSpec { bmc_endpoint: peer.url(), ..MachineSpec::default() };
    let target = Target { id: TargetId::from(&MachineId::trusted("m-1")), spec };
    let call =
        ProviderCall { key: key(effect.name()), verb, effect: effect.clone(), log_offset_bytes: 0 };
    let (journal, mut lines) = Journal::new();
    let reader = tokio::spawn(async move { while lines.recv().await.is_some() {} });
    let answer = provider.call(&target, &call, &journal).await;
    drop(journal);
    reader.await.unwrap();
    answer
}

fn resets(peer: &Peer) -> Vec<String> {
    let calls = peer.calls();
    let resets = calls.iter().filter(|call| call.is("POST", RESET));
    let name =
        |call: &Call| serde_json::from_str::<Value>(&call.body).unwrap()["ResetType"].clone();
    resets.map(|call| name(call).as_str().unwrap().to_string()).collect()
}

/// A BMC whose machine is on.
fn powered_on_bmc() -> FakeBmc {
    let env = FakeBmc::new();
    env.set(SYSTEM, "/PowerState", json!("On"));
    env
}

#[tokio::test]
async fn a_reboot_is_read_back_and_not_repeated_under_its_key() {
    let (store, peer) = (store(), powered_on_bmc().serve().await);
    let one = replica(&store);
    assert_eq!(
        call_provider(&one, &peer, CallVerb::GetStatus, &REBOOT).await,
        Ok(ProviderAnswer::NeverStarted)
    );
    let done = call_provider(&one, &peer, CallVerb::Perform, &REBOOT).await.unwrap();
    let ProviderAnswer::Done(outcome) = done else { panic!("{done:?}") };
    assert_eq!(outcome.message, "rebooted: it was seen off, and is on again");
    assert_eq!(resets(&peer), ["ForceOff", "On"]);
    // Another replica with the same key reports it as done.
    let other = replica(&store);
    for verb in [CallVerb::GetStatus, CallVerb::Follow, CallVerb::Perform] {
        let answer = call_provider(&other, &peer, verb, &REBOOT).await.unwrap();
        assert!(matches!(answer, ProviderAnswer::Done(_)), "{verb:?}: {answer:?}");
    }
    assert_eq!(resets(&peer), ["ForceOff", "On"]);
}

#[tokio::test]
async fn another_replica_continues_after_the_bmc_was_unreachable() {
    let away = Arc::new(AtomicBool::new(false));
    let gone = Arc::clone(&away);
    let peer = powered_on_bmc()
        .serve_except(move |call| {
            if call.is("POST", RESET) && call.body.contains("ForceOff") {
                // The BMC receives this and becomes unreachable.
                gone.store(true, Ordering::SeqCst);
                return None;
            }
            gone.load(Ordering::SeqCst).then(|| Response::status(503, "{}"))
        })
        .await;
    let store = store();
    let fault =
        call_provider(&replica(&store), &peer, CallVerb::Perform, &REBOOT).await.unwrap_err();
    assert_eq!(fault.code, FaultCode::AnswerLost, "{fault}");
    let other = replica(&store);
    let fault = call_provider(&other, &peer, CallVerb::Follow, &REBOOT).await.unwrap_err();
    assert_eq!(fault.code, FaultCode::AnswerLost, "{fault}");
    assert_eq!(
        call_provider(&other, &peer, CallVerb::GetStatus, &REBOOT).await,
        Ok(ProviderAnswer::UnderWay)
    );
    away.store(false, Ordering::SeqCst);
    let answer = call_provider(&other, &peer, CallVerb::Follow, &REBOOT).await.unwrap();
    assert!(matches!(answer, ProviderAnswer::Done(_)), "{answer:?}");
    assert_eq!(resets(&peer), ["ForceOff", "On"]);
}

/// The checkpoint was written, and the process crashed before it sent the command.
#[tokio::test]
async fn a_command_that_was_never_sent_is_sent_by_the_next_replica() {
    let (store, peer) = (store(), powered_on_bmc().serve().await);
    let long_ago = json!({"what": "power", "goal": "cycle", "stage": {"cutting": 1_000_000}});
    store.begin(&key("reboot"), &Checkpoint::Begun(long_ago.clone())).await.unwrap();
    let fault =
        call_provider(&replica(&store), &peer, CallVerb::Follow, &REBOOT).await.unwrap_err();
    // Its timeout passed long ago.
    assert_eq!(fault.code, FaultCode::ReadBackDiffers, "{fault}");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let just_now = json!({"cutting": now.as_micros() as i64});
    let note = json!({"what": "power", "goal": "cycle", "stage": just_now});
    assert!(store.compare_and_swap(&key("reboot"), &long_ago, &note).await.unwrap());
    let answer = call_provider(&replica(&store), &peer, CallVerb::Follow, &REBOOT).await.unwrap();
    assert!(matches!(answer, ProviderAnswer::Done(_)), "{answer:?}");
    assert_eq!(resets(&peer), ["ForceOff", "On"]);
}

#[tokio::test]
async fn a_stopped_key_never_begins() {
    let (store, peer) = (store(), powered_on_bmc().serve().await);
    let one = replica(&store);
    for effect in [&REBOOT, &PXE] {
        assert_eq!(
            call_provider(&one, &peer, CallVerb::Stop, effect).await,
            Ok(ProviderAnswer::Stopped)
        );
        let late = call_provider(&one, &peer, CallVerb::Perform, effect).await.unwrap_err();
        assert!(late.message.contains("stopped before it began"), "{late}");
    }
    assert_eq!(resets(&peer), [""; 0]);
    assert_eq!(peer.count("PATCH", SYSTEM), 0);
}

/// A worker that paused after it began resumes after another replica stopped the key: it sends
/// nothing.
#[tokio::test]
async fn a_paused_worker_sends_nothing_after_a_stop() {
    let store = store();
    let (asleep, woken) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
    let (sleeping, waking) = (Arc::clone(&asleep), Arc::clone(&woken));
    let peer = powered_on_bmc()
        .serve_except(move |call| {
            // The first read of the power hangs until the key is stopped.
            if call.is("GET", SYSTEM) && sleeping.load(Ordering::SeqCst) {
                waking.store(true, Ordering::SeqCst);
                return Some(Response::status(503, "{}"));
            }
            None
        })
        .await;
    let fault =
        call_provider(&replica(&store), &peer, CallVerb::Perform, &REBOOT).await.unwrap_err();
    assert_eq!(fault.code, FaultCode::BmcBusy, "nothing was sent yet: {fault}");
    assert!(woken.load(Ordering::SeqCst));
    // Another replica stops it; then the first one continues with its stale state.
    assert_eq!(
        call_provider(&replica(&store), &peer, CallVerb::Stop, &REBOOT).await,
        Ok(ProviderAnswer::Stopped)
    );
    asleep.store(false, Ordering::SeqCst);
    let begun = json!({"what": "power", "goal": "cycle", "stage": "begun"});
    let cutting = json!({"what": "power", "goal": "cycle", "stage": {"cutting": 1}});
    assert!(!store.compare_and_swap(&key("reboot"), &begun, &cutting).await.unwrap());
    let late =
        call_provider(&replica(&store), &peer, CallVerb::Perform, &REBOOT).await.unwrap_err();
    assert!(late.message.contains("stopped before it began"), "{late}");
    assert_eq!(resets(&peer), [""; 0]);
}

#[tokio::test]
async fn netboot_is_set_read_back_and_observed() {
    let (store, peer) = (store(), powered_on_bmc().serve().await);
    let one = replica(&store);
    // A probe reads the source of the next boot too, for a record of a boot that was left armed.
    let spec = MachineSpec { bmc_endpoint: peer.url(), ..MachineSpec::default() };
    let machine = TargetId::from(&MachineId::trusted("m-1"));
    let target = Target { id: machine.clone(), spec };
    let before = call_provider(&one, &peer, CallVerb::Observe, &PXE).await.unwrap();
    assert!(matches!(before, ProviderAnswer::Differs(_)), "{before:?}");
    assert_eq!(one.boots_from_disk(&target).await, Ok(Some(true)));
    let done = call_provider(&one, &peer, CallVerb::Perform, &PXE).await.unwrap();
    assert!(matches!(done, ProviderAnswer::Done(_)), "{done:?}");
    let after = call_provider(&one, &peer, CallVerb::Observe, &PXE).await.unwrap();
    assert!(matches!(after, ProviderAnswer::Done(_)), "{after:?}");
    assert_eq!(one.boots_from_disk(&target).await, Ok(Some(false)));
    let without_bmc = Target { id: machine, spec: MachineSpec::default() };
    assert_eq!(one.boots_from_disk(&without_bmc).await, Ok(None));
}

#[tokio::test]
async fn a_refused_login_is_not_retried_until_it_changes() {
    let peer = powered_on_bmc()
        .serve_except(|call| {
            let message = call.header("authorization").unwrap_or_default().to_string();
            let right = message.ends_with("cm9vdDpzM2NyZXQtb2YtdGhlLWJtYw==");
            let open = call.path.trim_end_matches('/') == "/redfish/v1";
            (!right && !open).then(|| Response::status(401, "{}"))
        })
        .await;
    let store = Arc::new(InMemoryStateStore::default());
    set(&store, "wrong");
    let fault =
        call_provider(&replica(&store), &peer, CallVerb::Perform, &REBOOT).await.unwrap_err();
    assert_eq!(fault.code, FaultCode::LoginRefused, "{fault}");
    let tried = peer.calls().len();
    // Another replica does not retry it either.
    for _ in 0..3 {
        let fault =
            call_provider(&replica(&store), &peer, CallVerb::Follow, &REBOOT).await.unwrap_err();
        assert_eq!(fault.code, FaultCode::LoginRefused, "{fault}");
        assert!(fault.message.contains("was not asked"), "{fault}");
    }
    assert_eq!(peer.calls().len(), tried);
    set(&store, PASSWORD);
    let answer = call_provider(&replica(&store), &peer, CallVerb::Follow, &REBOOT).await.unwrap();
    assert!(matches!(answer, ProviderAnswer::Done(_)), "{answer:?}");
}

#[tokio::test]
async fn without_a_credential_or_an_endpoint_nothing_is_tried() {
    let peer = powered_on_bmc().serve().await;
    let nobody = Arc::new(InMemoryStateStore::default());
    let fault =
        call_provider(&replica(&nobody), &peer, CallVerb::Perform, &REBOOT).await.unwrap_err();
    assert_eq!(fault.code, FaultCode::CredentialMissing, "{fault}");
    assert_eq!(peer.calls().len(), 0);
    let machine_id = MachineId::trusted("m-1");
    let target =
        Target { id: model::target::TargetId::from(&machine_id), spec: MachineSpec::default() };
    let call = ProviderCall {
        key: key("x"),
        verb: CallVerb::Perform,
        effect: REBOOT,
        log_offset_bytes: 0,
    };
    let fault = replica(&store()).call(&target, &call, &Journal::new().0).await.unwrap_err();
    assert!(fault.message.contains("no bmc_endpoint"), "{fault}");
}

/// A host that speaks SSH while it is up.
async fn serve_ssh_banner(up: Arc<AtomicBool>) -> String {
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
    let host = serve_ssh_banner(Arc::clone(&up)).await;
    let went = Arc::clone(&up);
    let peer = powered_on_bmc()
        .serve_except(move |call| {
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
    let order =
        |verb| ProviderCall { key: key("reboot"), verb, effect: REBOOT, log_offset_bytes: 0 };
    let (journal, _lines) = Journal::new();
    let perform = order(CallVerb::Perform);
    let switched_on = async {
        until("the machine is on again", async || resets(&peer) == ["ForceOff", "On"]).await;
        // A provider that does not wait for the host is done by then.
        tokio::time::sleep(Duration::from_secs(2)).await;
    };
    tokio::select! {
        answer = one.call(&target, &perform, &journal) => {
            panic!("the host did not answer, and the result was {answer:?}");
        }
        () = switched_on => {}
    }
    let requested = one.call(&target, &order(CallVerb::GetStatus), &journal).await;
    assert_eq!(requested, Ok(ProviderAnswer::UnderWay));
    let stopped = one.call(&target, &order(CallVerb::Stop), &journal).await;
    assert_eq!(stopped, Ok(ProviderAnswer::Stopped), "the host did not come back in time");
    up.store(true, Ordering::SeqCst);
    for verb in [CallVerb::GetStatus, CallVerb::Follow, CallVerb::Stop] {
        let answer = one.call(&target, &order(verb), &journal).await;
        assert!(matches!(answer, Ok(ProviderAnswer::Done(_))), "{verb:?}: {answer:?}");
    }
    assert_eq!(resets(&peer), ["ForceOff", "On"]);
}

/// The machine was asked to power off and was not polled for an hour. It is on: either it never
/// went off, or it was switched on again.
#[tokio::test]
async fn an_unobserved_power_cycle_is_left_to_the_operator() {
    let (store, peer) = (store(), powered_on_bmc().serve().await);
    let now = || std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_micros() as i64;
    let hour = 3_600_000_000;
    for (watched, expected) in [(now() - hour, "it was not observed for 1h 0m"), (now(), "")] {
        let note = json!({
            "what": "power", "goal": "cycle", "stage": {"cutting": now() - hour}, "watched": watched});
        let step = format!("reboot-{watched}");
        store.begin(&key(&step), &Checkpoint::Begun(note)).await.unwrap();
        let spec = MachineSpec { bmc_endpoint: peer.url(), ..MachineSpec::default() };
        let target = Target { id: model::target::TargetId::from(&MachineId::trusted("m-1")), spec };
        let call = ProviderCall {
            key: key(&step),
            verb: CallVerb::GetStatus,
            effect: REBOOT,
            log_offset_bytes: 0,
        };
        let (journal, _lines) = Journal::new();
        match replica(&store).call(&target, &call, &journal).await.unwrap() {
            ProviderAnswer::Unknown(message) => {
                assert!(!expected.is_empty() && message.contains(expected), "{message}")
            }
            other => assert!(expected.is_empty() && other == ProviderAnswer::UnderWay, "{other:?}"),
        }
    }
    assert!(resets(&peer).is_empty());
}
