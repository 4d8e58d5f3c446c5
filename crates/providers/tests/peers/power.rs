//! Power as a step requests it: gracefully, by force, or unchanged. Against a scripted BMC that
//! obeys, ignores or refuses, and against a third-party emulator.

use crate::fake_bmc::{FakeBmc, PASSWORD, RESET, SYSTEM, settings};
use crate::http::{Call, Peer, Response};
use crate::sushy::Emulator;
use model::condition::ConditionType::Reachable;
use model::effect::{
    CallOutcome, CallResult, CallVerb, DesiredPower, Effect, EffectKey, PowerOffPolicy,
    ProviderAnswer, ProviderCall, RebootMode, RmaAction,
};
use model::fault::{Fault, FaultCode};
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
    store.set_credential("bmc", Secret::Password { user: "root".into(), password });
    let settings = Settings { bmc_credential: "bmc".into(), ..settings };
    Datacenter::new(Arc::new(store) as Arc<dyn ProviderStateStore>, settings)
}

fn scripted() -> Datacenter {
    provider(Settings {
        power_timeouts: PowerTimeouts {
            repeat_after: Duration::from_secs(5),
            ..PowerTimeouts::default()
        },
        call_timeout: Duration::from_secs(15),
        redfish: settings(Auth::Basic),
        ..Settings::default()
    })
}

/// A BMC whose machine is on, and that supports a graceful shutdown.
fn powered_on_bmc() -> FakeBmc {
    let env = FakeBmc::new();
    env.set(SYSTEM, "/PowerState", json!("On"));
    env.set(SYSTEM, RESETS, json!(["On", "ForceOff", "GracefulShutdown"]));
    env
}

fn is_graceful_shutdown(call: &Call) -> bool {
    call.is("POST", RESET) && call.body.contains("GracefulShutdown")
}

async fn call_provider(
    provider: &Datacenter,
    bmc_endpoint: String,
    verb: CallVerb,
    effect: &Effect,
) -> (CallResult, String) {
    let spec = MachineSpec { bmc_endpoint, ..MachineSpec::default() };
    call_provider_for(provider, spec, verb, (effect.name(), effect)).await
}

async fn call_provider_for(
    provider: &Datacenter,
    spec: MachineSpec,
    verb: CallVerb,
    (step, effect): (&str, &Effect),
) -> (CallResult, String) {
    let target = Target { id: model::target::TargetId::from(&MachineId::trusted("m-1")), spec };
    let key = EffectKey::new(&RunId::trusted("op-1"), step, 1);
    let call = ProviderCall { key, verb, effect: effect.clone(), log_offset_bytes: 0 };
    let (journal, mut lines) = Journal::new();
    let reader = tokio::spawn(async move {
        let mut log = Vec::new();
        while let Some(line) = lines.recv().await {
            log.extend(line.data);
        }
        String::from_utf8(log).unwrap()
    });
    let answer = provider.call(&target, &call, &journal).await;
    drop(journal);
    (answer, reader.await.unwrap())
}

/// Performs it under its own key.
async fn perform(provider: &Datacenter, peer: &Peer, effect: Effect) -> Result<CallOutcome, Fault> {
    let spec = MachineSpec { bmc_endpoint: peer.url(), ..MachineSpec::default() };
    let step = format!("step-{}", peer.calls().len());
    match call_provider_for(provider, spec, CallVerb::Perform, (&step, &effect)).await.0? {
        ProviderAnswer::Done(outcome) => Ok(outcome),
        other => panic!("{other:?}"),
    }
}

fn resets(peer: &Peer) -> Vec<String> {
    let calls = peer.calls();
    let resets = calls.iter().filter(|call| call.is("POST", RESET));
    let name =
        |call: &Call| serde_json::from_str::<Value>(&call.body).unwrap()["ResetType"].clone();
    resets.map(|call| name(call).as_str().unwrap().to_string()).collect()
}

fn power_off(graceful_seconds: Option<u32>, force: Option<bool>) -> PowerOffPolicy {
    PowerOffPolicy { graceful_seconds, force }
}

fn off(graceful_seconds: Option<u32>, force: Option<bool>) -> Effect {
    Effect::Power { to: DesiredPower::Off, power_off: power_off(graceful_seconds, force) }
}

const ON: Effect =
    Effect::Power { to: DesiredPower::On, power_off: PowerOffPolicy::PROVIDER_DEFAULT };

#[tokio::test]
async fn a_graceful_shutdown_needs_no_force() {
    let peer = powered_on_bmc().serve().await;
    let done = perform(&scripted(), &peer, off(Some(5), None)).await.unwrap();
    assert_eq!(done.message, "power is off: it is off");
    let proof: Vec<_> = done.evidence.iter().map(|one| (one.condition, one.status)).collect();
    assert_eq!(proof, [(Reachable, false)]);
    assert_eq!(done.facts.unwrap().power, Some(DesiredPower::Off));
    assert_eq!(resets(&peer), ["GracefulShutdown"]);
}

#[tokio::test]
async fn an_unchanged_power_state_is_a_success() {
    let env = powered_on_bmc();
    let peer = env.serve().await;
    let provider = scripted();
    let done = perform(&provider, &peer, ON).await.unwrap();
    assert_eq!(done.message, "power is on: it was on already");
    assert_eq!(done.facts.unwrap().power, Some(DesiredPower::On));
    env.set(SYSTEM, "/PowerState", json!("Off"));
    // The same without force, and where no graceful shutdown is supported.
    env.set(SYSTEM, RESETS, json!(["On", "ForceOff"]));
    let done = perform(&provider, &peer, off(None, Some(false))).await.unwrap();
    assert_eq!(done.message, "power is off: it was off already");
    assert_eq!(resets(&peer), [""; 0]);
    for (effect, holds) in [(ON, false), (off(None, None), true)] {
        let observed =
            call_provider(&provider, peer.url(), CallVerb::Observe, &effect).await.0.unwrap();
        assert_eq!(matches!(observed, ProviderAnswer::Done(_)), holds, "{effect:?}: {observed:?}");
    }
}

#[tokio::test]
async fn an_ignored_shutdown_is_forced_where_allowed() {
    let deaf = |call: &Call| is_graceful_shutdown(call).then(|| Response::status(204, ""));
    for effect in [
        off(Some(1), Some(true)),
        Effect::Rma { action: RmaAction::PowerOff, power_off: power_off(Some(1), None) },
    ] {
        let peer = powered_on_bmc().serve_except(deaf).await;
        perform(&scripted(), &peer, effect).await.unwrap();
        assert_eq!(resets(&peer), ["GracefulShutdown", "ForceOff"]);
    }
    let peer = powered_on_bmc().serve_except(deaf).await;
    let cycle = Effect::Reboot { mode: RebootMode::Bmc, power_off: power_off(Some(1), Some(true)) };
    perform(&scripted(), &peer, cycle).await.unwrap();
    assert_eq!(resets(&peer), ["GracefulShutdown", "ForceOff", "On"]);
}

#[tokio::test]
async fn an_ignored_shutdown_stays_on_without_force() {
    let deaf = |call: &Call| is_graceful_shutdown(call).then(|| Response::status(204, ""));
    for effect in [
        off(Some(1), Some(false)),
        Effect::Rma { action: RmaAction::PowerOff, power_off: power_off(Some(1), Some(false)) },
        Effect::Reboot { mode: RebootMode::Bmc, power_off: power_off(Some(1), Some(false)) },
    ] {
        let env = powered_on_bmc();
        let peer = env.serve_except(deaf).await;
        let fault = perform(&scripted(), &peer, effect).await.unwrap_err();
        assert_eq!(fault.code, FaultCode::ReadBackDiffers, "{fault}");
        assert!(fault.message.contains("does not allow force"), "{fault}");
        assert_eq!(resets(&peer), ["GracefulShutdown"]);
        assert_eq!(env.get(SYSTEM)["PowerState"], "On");
    }
}

#[tokio::test]
async fn a_refused_shutdown_is_not_waited_for() {
    let refuses = |call: &Call| is_graceful_shutdown(call).then(|| Response::status(400, "{}"));
    let peer = powered_on_bmc().serve_except(refuses).await;
    let (answer, log) =
        call_provider(&scripted(), peer.url(), CallVerb::Perform, &off(Some(600), Some(true)))
            .await;
    assert!(matches!(answer, Ok(ProviderAnswer::Done(_))), "{answer:?}");
    assert_eq!(resets(&peer), ["GracefulShutdown", "ForceOff"]);
    assert!(log.contains("that was refused") && log.contains("cutting it off"), "{log}");

    let env = powered_on_bmc();
    let peer = env.serve_except(refuses).await;
    let fault = perform(&scripted(), &peer, off(Some(600), Some(false))).await.unwrap_err();
    assert_eq!(fault.code, FaultCode::EffectFailed, "{fault}");
    assert!(
        fault.message.contains("400") && fault.message.contains("force is not allowed"),
        "{fault}"
    );
    assert_eq!(resets(&peer), ["GracefulShutdown"]);
    assert_eq!(env.get(SYSTEM)["PowerState"], "On");
}

#[tokio::test]
async fn zero_grace_means_force_at_once() {
    let peer = powered_on_bmc().serve().await;
    perform(&scripted(), &peer, off(Some(0), None)).await.unwrap();
    assert_eq!(resets(&peer), ["ForceOff"]);
}

#[tokio::test]
async fn a_bmc_without_graceful_shutdown_is_forced_or_left_alone() {
    let env = powered_on_bmc();
    env.set(SYSTEM, RESETS, json!(["On", "ForceOff"]));
    let peer = env.serve().await;
    let fault = perform(&scripted(), &peer, off(None, Some(false))).await.unwrap_err();
    assert_eq!(fault.code, FaultCode::NotSupported, "{fault}");
    assert!(fault.message.contains("force is not allowed"), "{fault}");
    assert_eq!(resets(&peer), [""; 0]);
    perform(&scripted(), &peer, off(None, None)).await.unwrap();
    assert_eq!(resets(&peer), ["ForceOff"]);
}

#[tokio::test]
async fn a_record_identifies_the_machine() {
    let env = powered_on_bmc();
    env.set(SYSTEM, "/Manufacturer", json!("Acme"));
    env.set(SYSTEM, "/Model", json!("A1"));
    env.set(SYSTEM, "/BiosVersion", json!("2.1"));
    let storage = "/redfish/v1/Systems/1/Storage";
    env.set(SYSTEM, "/Storage", json!({ "@odata.id": storage }));
    env.put_list(storage, &["/redfish/v1/Systems/1/Storage/1"]);
    let drive = "/redfish/v1/Systems/1/Storage/1/Drives/0";
    env.put(
        "/redfish/v1/Systems/1/Storage/1",
        json!({ "Id": "1", "Drives": [{ "@odata.id": drive }] }),
    );
    env.put(
        drive,
        json!({ "Id": "0", "Model": "NV", "SerialNumber": "D1", "CapacityBytes": 960_197_124_096_u64 }),
    );
    let services = "/redfish/v1/Systems/1/LogServices";
    env.set(SYSTEM, "/LogServices", json!({ "@odata.id": services }));
    env.put_list(services, &["/redfish/v1/Systems/1/LogServices/Sel"]);
    let entries = "/redfish/v1/Systems/1/LogServices/Sel/Entries";
    env.put(
        "/redfish/v1/Systems/1/LogServices/Sel",
        json!({ "@odata.id": "/redfish/v1/Systems/1/LogServices/Sel", "Id": "Sel", "Entries": { "@odata.id": entries } }),
    );
    let entry = |id: &str, at: &str, message: &str| json!({ "@odata.id": format!("{entries}/{id}"), "Id": id, "Created": at, "Severity": "Critical", "Message": message });
    let members = [
        entry("1", "2026-01-01T00:00:00Z", "fan lost"),
        entry("2", "2026-01-02T00:00:00Z", "fire"),
    ];
    env.put(entries, json!({ "@odata.id": entries, "Members": members }));
    let peer = env.serve().await;
    let record =
        Effect::Rma { action: RmaAction::Record, power_off: PowerOffPolicy::PROVIDER_DEFAULT };
    let provider = scripted();
    let (answer, log) = call_provider(&provider, peer.url(), CallVerb::Perform, &record).await;
    let Ok(ProviderAnswer::Done(outcome)) = answer else { panic!("{answer:?}\n{log}") };
    assert_eq!(outcome.message, "vendor Acme, model A1, serial S1, power is on");
    for line in [
        "record: vendor Acme, model A1, serial S1",
        "record: BIOS 2.1",
        "record: disk 0: NV, serial D1, 960 GB",
        "record: log: 2026-01-01T00:00:00Z Critical fan lost\nrecord: log: 2026-01-02T00:00:00Z Critical fire",
    ] {
        assert!(log.contains(line), "{line}:\n{log}");
    }
    // It changes nothing, so it is repeated when its outcome is unknown.
    let status = call_provider(&provider, peer.url(), CallVerb::GetStatus, &record).await.0;
    assert_eq!(status, Ok(ProviderAnswer::NeverStarted));
    assert_eq!(
        call_provider(&provider, peer.url(), CallVerb::Stop, &record).await.0,
        Ok(ProviderAnswer::Stopped)
    );
    assert_eq!(resets(&peer), [""; 0]);
}

#[tokio::test]
async fn an_emulated_machine_follows_the_power_policy() {
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
        let (answer, log) =
            call_provider_for(&provider, spec(), CallVerb::Perform, (step, &effect)).await;
        assert!(matches!(answer, Ok(ProviderAnswer::Done(_))), "{step}: {answer:?}\n{log}");
        assert!(log.contains(words), "{step}: {log}");
    }
}
