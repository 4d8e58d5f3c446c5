//! Power as a step requests it: gracefully, by force, or unchanged. Against a scripted BMC that
//! obeys, ignores or refuses, and against a third-party emulator.

use crate::http::{Call, Peer, Said};
use crate::sushy::Emulator;
use crate::world::{PASSWORD, RESET, SYSTEM, World, settings};
use model::condition::ConditionType::Reachable;
use model::effect::{
    Answer, Effect, Key, Order, Outcome, PowerOffPolicy, PowerTo, RebootMode, RmaAction, Verb,
};
use model::fault::{Code, Fault};
use model::id::{MachineId, RunId};
use model::machine::MachineSpec;
use providers::datacenter::{Datacenter, Settings};
use providers::peer_login::TrustPolicy;
use providers::power::PowerTimeouts;
use providers::redfish::Auth;
use providers::state_store::{InMemoryStateStore, ProviderStateStore, Secret};
use providers::{Journal, Provider, Target};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

const RESETS: &str = "/Actions/#ComputerSystem.Reset/ResetType@Redfish.AllowableValues";

/// The configured policy: one minute for the shutdown, then force.
fn provider(settings: Settings) -> Datacenter {
    let store = InMemoryStateStore::default();
    let password = PASSWORD.to_string().into();
    store.set("bmc", Secret::Password { user: "root".into(), password });
    let settings = Settings { bmc_credential: "bmc".into(), ..settings };
    Datacenter::new(Arc::new(store) as Arc<dyn ProviderStateStore>, settings)
}

fn scripted() -> Datacenter {
    provider(Settings {
        power_timeouts: PowerTimeouts { again: Duration::from_secs(5), ..PowerTimeouts::default() },
        call: Duration::from_secs(15),
        redfish: settings(Auth::Basic),
        ..Settings::default()
    })
}

/// A BMC whose machine is on, and that supports a graceful shutdown.
fn on() -> World {
    let world = World::new();
    world.set(SYSTEM, "/PowerState", json!("On"));
    world.set(SYSTEM, RESETS, json!(["On", "ForceOff", "GracefulShutdown"]));
    world
}

fn is_polite(call: &Call) -> bool {
    call.is("POST", RESET) && call.body.contains("GracefulShutdown")
}

async fn ask(
    provider: &Datacenter,
    bmc_endpoint: String,
    verb: Verb,
    effect: &Effect,
) -> (Result<Answer, Fault>, String) {
    let spec = MachineSpec { bmc_endpoint, ..MachineSpec::default() };
    ask_at(provider, spec, verb, (effect.word(), effect)).await
}

async fn ask_at(
    provider: &Datacenter,
    spec: MachineSpec,
    verb: Verb,
    (step, effect): (&str, &Effect),
) -> (Result<Answer, Fault>, String) {
    let target = Target { id: model::target::TargetId::from(&MachineId::trusted("m-1")), spec };
    let key = Key::new(&RunId::trusted("op-1"), step, 1);
    let order = Order { key, verb, effect: effect.clone(), logged: 0 };
    let (journal, mut lines) = Journal::new();
    let reader = tokio::spawn(async move {
        let mut log = Vec::new();
        while let Some(line) = lines.recv().await {
            log.extend(line.data);
        }
        String::from_utf8(log).unwrap()
    });
    let answer = provider.ask(&target, &order, &journal).await;
    drop(journal);
    (answer, reader.await.unwrap())
}

/// Performs it under its own key.
async fn perform(provider: &Datacenter, peer: &Peer, effect: Effect) -> Result<Outcome, Fault> {
    let spec = MachineSpec { bmc_endpoint: peer.url(), ..MachineSpec::default() };
    let step = format!("step-{}", peer.calls().len());
    match ask_at(provider, spec, Verb::Perform, (&step, &effect)).await.0? {
        Answer::Done(outcome) => Ok(outcome),
        other => panic!("{other:?}"),
    }
}

fn resets(peer: &Peer) -> Vec<String> {
    let calls = peer.calls();
    let resets = calls.iter().filter(|call| call.is("POST", RESET));
    let word =
        |call: &Call| serde_json::from_str::<Value>(&call.body).unwrap()["ResetType"].clone();
    resets.map(|call| word(call).as_str().unwrap().to_string()).collect()
}

fn power_off(graceful_seconds: Option<u32>, force: Option<bool>) -> PowerOffPolicy {
    PowerOffPolicy { graceful_seconds, force }
}

fn off(graceful_seconds: Option<u32>, force: Option<bool>) -> Effect {
    Effect::Power { to: PowerTo::Off, power_off: power_off(graceful_seconds, force) }
}

const ON: Effect = Effect::Power { to: PowerTo::On, power_off: PowerOffPolicy::CONFIGURED };

#[tokio::test]
async fn a_machine_that_listens_shuts_down_and_is_not_cut() {
    let peer = on().serve().await;
    let done = perform(&scripted(), &peer, off(Some(5), None)).await.unwrap();
    assert_eq!(done.said, "power is off: it is off");
    let proof: Vec<_> = done.evidence.iter().map(|one| (one.condition, one.status)).collect();
    assert_eq!(proof, [(Reachable, false)]);
    assert_eq!(done.facts.unwrap().power, Some(PowerTo::Off));
    assert_eq!(resets(&peer), ["GracefulShutdown"]);
}

#[tokio::test]
async fn what_is_so_already_is_a_success_and_says_so() {
    let world = on();
    let peer = world.serve().await;
    let provider = scripted();
    let done = perform(&provider, &peer, ON).await.unwrap();
    assert_eq!(done.said, "power is on: it was on already");
    assert_eq!(done.facts.unwrap().power, Some(PowerTo::On));
    world.set(SYSTEM, "/PowerState", json!("Off"));
    // The same without force, and where no graceful shutdown is supported.
    world.set(SYSTEM, RESETS, json!(["On", "ForceOff"]));
    let done = perform(&provider, &peer, off(None, Some(false))).await.unwrap();
    assert_eq!(done.said, "power is off: it was off already");
    assert_eq!(resets(&peer), [""; 0]);
    for (effect, holds) in [(ON, false), (off(None, None), true)] {
        let seen = ask(&provider, peer.url(), Verb::Observe, &effect).await.0.unwrap();
        assert_eq!(matches!(seen, Answer::Done(_)), holds, "{effect:?}: {seen:?}");
    }
}

#[tokio::test]
async fn one_that_does_not_listen_is_cut_where_that_is_allowed() {
    let deaf = |call: &Call| is_polite(call).then(|| Said::status(204, ""));
    for effect in [
        off(Some(1), Some(true)),
        Effect::Rma { action: RmaAction::PowerOff, power_off: power_off(Some(1), None) },
    ] {
        let peer = on().serve_but(deaf).await;
        perform(&scripted(), &peer, effect).await.unwrap();
        assert_eq!(resets(&peer), ["GracefulShutdown", "ForceOff"]);
    }
    let peer = on().serve_but(deaf).await;
    let cycle = Effect::Reboot { mode: RebootMode::Bmc, power_off: power_off(Some(1), Some(true)) };
    perform(&scripted(), &peer, cycle).await.unwrap();
    assert_eq!(resets(&peer), ["GracefulShutdown", "ForceOff", "On"]);
}

#[tokio::test]
async fn one_that_does_not_listen_stays_on_where_force_is_forbidden() {
    let deaf = |call: &Call| is_polite(call).then(|| Said::status(204, ""));
    for effect in [
        off(Some(1), Some(false)),
        Effect::Rma { action: RmaAction::PowerOff, power_off: power_off(Some(1), Some(false)) },
        Effect::Reboot { mode: RebootMode::Bmc, power_off: power_off(Some(1), Some(false)) },
    ] {
        let world = on();
        let peer = world.serve_but(deaf).await;
        let fault = perform(&scripted(), &peer, effect).await.unwrap_err();
        assert_eq!(fault.code, Code::ReadBackDiffers, "{fault}");
        assert!(fault.said.contains("does not allow force"), "{fault}");
        assert_eq!(resets(&peer), ["GracefulShutdown"]);
        assert_eq!(world.get(SYSTEM)["PowerState"], "On");
    }
}

#[tokio::test]
async fn a_refused_shutdown_is_not_waited_for() {
    let refuses = |call: &Call| is_polite(call).then(|| Said::status(400, "{}"));
    let peer = on().serve_but(refuses).await;
    let (answer, log) =
        ask(&scripted(), peer.url(), Verb::Perform, &off(Some(600), Some(true))).await;
    assert!(matches!(answer, Ok(Answer::Done(_))), "{answer:?}");
    assert_eq!(resets(&peer), ["GracefulShutdown", "ForceOff"]);
    assert!(log.contains("that was refused") && log.contains("cutting it off"), "{log}");

    let world = on();
    let peer = world.serve_but(refuses).await;
    let fault = perform(&scripted(), &peer, off(Some(600), Some(false))).await.unwrap_err();
    assert_eq!(fault.code, Code::EffectFailed, "{fault}");
    assert!(fault.said.contains("400") && fault.said.contains("force is not allowed"), "{fault}");
    assert_eq!(resets(&peer), ["GracefulShutdown"]);
    assert_eq!(world.get(SYSTEM)["PowerState"], "On");
}

#[tokio::test]
async fn no_time_means_a_cut_at_once() {
    let peer = on().serve().await;
    perform(&scripted(), &peer, off(Some(0), None)).await.unwrap();
    assert_eq!(resets(&peer), ["ForceOff"]);
}

#[tokio::test]
async fn a_bmc_that_cannot_ask_for_a_shutdown_is_told_to_cut_or_left_alone() {
    let world = on();
    world.set(SYSTEM, RESETS, json!(["On", "ForceOff"]));
    let peer = world.serve().await;
    let fault = perform(&scripted(), &peer, off(None, Some(false))).await.unwrap_err();
    assert_eq!(fault.code, Code::NotSupported, "{fault}");
    assert!(fault.said.contains("force is not allowed"), "{fault}");
    assert_eq!(resets(&peer), [""; 0]);
    perform(&scripted(), &peer, off(None, None)).await.unwrap();
    assert_eq!(resets(&peer), ["ForceOff"]);
}

#[tokio::test]
async fn a_record_has_what_tells_one_machine_from_another() {
    let world = on();
    world.set(SYSTEM, "/Manufacturer", json!("Acme"));
    world.set(SYSTEM, "/Model", json!("A1"));
    world.set(SYSTEM, "/BiosVersion", json!("2.1"));
    let storage = "/redfish/v1/Systems/1/Storage";
    world.set(SYSTEM, "/Storage", json!({ "@odata.id": storage }));
    world.put_list(storage, &["/redfish/v1/Systems/1/Storage/1"]);
    let drive = "/redfish/v1/Systems/1/Storage/1/Drives/0";
    world.put(
        "/redfish/v1/Systems/1/Storage/1",
        json!({ "Id": "1", "Drives": [{ "@odata.id": drive }] }),
    );
    world.put(
        drive,
        json!({ "Id": "0", "Model": "NV", "SerialNumber": "D1", "CapacityBytes": 960_197_124_096_u64 }),
    );
    let services = "/redfish/v1/Systems/1/LogServices";
    world.set(SYSTEM, "/LogServices", json!({ "@odata.id": services }));
    world.put_list(services, &["/redfish/v1/Systems/1/LogServices/Sel"]);
    let entries = "/redfish/v1/Systems/1/LogServices/Sel/Entries";
    world.put(
        "/redfish/v1/Systems/1/LogServices/Sel",
        json!({ "@odata.id": "/redfish/v1/Systems/1/LogServices/Sel", "Id": "Sel", "Entries": { "@odata.id": entries } }),
    );
    let entry = |id: &str, at: &str, message: &str| json!({ "@odata.id": format!("{entries}/{id}"), "Id": id, "Created": at, "Severity": "Critical", "Message": message });
    let members = [
        entry("1", "2026-01-01T00:00:00Z", "fan lost"),
        entry("2", "2026-01-02T00:00:00Z", "fire"),
    ];
    world.put(entries, json!({ "@odata.id": entries, "Members": members }));
    let peer = world.serve().await;
    let record = Effect::Rma { action: RmaAction::Record, power_off: PowerOffPolicy::CONFIGURED };
    let provider = scripted();
    let (answer, log) = ask(&provider, peer.url(), Verb::Perform, &record).await;
    let Ok(Answer::Done(outcome)) = answer else { panic!("{answer:?}\n{log}") };
    assert_eq!(outcome.said, "vendor Acme, model A1, serial S1, power is on");
    for line in [
        "record: vendor Acme, model A1, serial S1",
        "record: BIOS 2.1",
        "record: disk 0: NV, serial D1, 960 GB",
        "record: log: 2026-01-01T00:00:00Z Critical fan lost\nrecord: log: 2026-01-02T00:00:00Z Critical fire",
    ] {
        assert!(log.contains(line), "{line}:\n{log}");
    }
    // It changes nothing, so it is repeated when its outcome is unknown.
    let inquired = ask(&provider, peer.url(), Verb::GetStatus, &record).await.0;
    assert_eq!(inquired, Ok(Answer::NeverStarted));
    assert_eq!(ask(&provider, peer.url(), Verb::Stop, &record).await.0, Ok(Answer::Stopped));
    assert_eq!(resets(&peer), [""; 0]);
}

#[tokio::test]
async fn an_emulated_machine_is_switched_as_the_step_says() {
    let Some(emulator) = Emulator::or_skip().await else { return };
    let provider =
        provider(Settings { trust: TrustPolicy::Ca(emulator.trust()), ..Settings::default() });
    let spec = || MachineSpec {
        bmc_endpoint: emulator.url(),
        mac_addresses: vec![emulator.mac()],
        ..MachineSpec::default()
    };
    for (step, effect, words) in [
        ("on", ON, "switching it on"),
        ("off", off(Some(60), Some(false)), "asking the operating system to shut down"),
        ("on-again", ON, "switching it on"),
        (
            "cycle",
            Effect::Reboot { mode: RebootMode::Bmc, power_off: power_off(Some(0), None) },
            "cutting it off",
        ),
        ("cut", off(Some(0), None), "cutting it off"),
        ("cut-again", off(Some(0), None), "it was off already"),
    ] {
        let (answer, log) = ask_at(&provider, spec(), Verb::Perform, (step, &effect)).await;
        assert!(matches!(answer, Ok(Answer::Done(_))), "{step}: {answer:?}\n{log}");
        assert!(log.contains(words), "{step}: {log}");
    }
}
