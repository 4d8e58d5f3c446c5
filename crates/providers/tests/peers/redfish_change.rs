//! Changes: what is sent, what is read back, and what is not sent at all.

use crate::DEADLINE;
use crate::fake_bmc::{FakeBmc, RESET, SYSTEM, system};
use crate::http::{Call, Peer, Response};
use model::fault::FaultCode;
use providers::redfish::{Attribute, BootSource, BootSpan, Power, Reset, TaskState};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

fn sent(peer: &Peer, method: &str, path: &str) -> Vec<Value> {
    let calls = peer.calls();
    let of_these = calls.iter().filter(|call| call.is(method, path));
    of_these.map(|call| serde_json::from_str(&call.body).unwrap()).collect()
}

#[tokio::test]
async fn power_is_changed_and_read_back() {
    let peer = FakeBmc::new().serve().await;
    let system = system(&peer).await;
    assert_eq!(system.power().await, Ok(Power::Off));
    assert_eq!(system.last_reset().await, Ok(None), "1970 is not a valid reset time");
    system.reset(Reset::On).await.unwrap();
    system.wait_for_power(Power::On, DEADLINE).await.unwrap();
    assert_eq!(sent(&peer, "POST", RESET), [json!({"ResetType": "On"})]);
}

#[tokio::test]
async fn a_reset_that_is_not_offered_is_not_sent() {
    let peer = FakeBmc::new().serve().await;
    let system = system(&peer).await;
    assert_eq!(system.resets().await, Ok(vec![Reset::On, Reset::ForceOff]));
    let fault = system.reset(Reset::GracefulShutdown).await.unwrap_err();
    assert_eq!(fault.code, FaultCode::NotSupported, "{fault}");
    assert!(
        fault.message.contains("GracefulShutdown") && fault.message.contains("ForceOff"),
        "{fault}"
    );
    assert_eq!(peer.count("POST", RESET), 0);
}

#[tokio::test]
async fn a_boot_override_is_read_back() {
    let env = FakeBmc::new();
    let peer = env.serve().await;
    let system = system(&peer).await;
    let observed = system.set_boot(BootSource::Pxe, BootSpan::Once).await.unwrap();
    assert_eq!((observed.source, observed.span), (Some(BootSource::Pxe), Some(BootSpan::Once)));
    let none = system.set_boot(BootSource::None, BootSpan::Once).await.unwrap();
    assert_eq!(none.span, Some(BootSpan::Disabled));
    let fault = system.set_boot(BootSource::Cd, BootSpan::Once).await.unwrap_err();
    assert_eq!(fault.code, FaultCode::NotSupported, "{fault}");
    assert_eq!(peer.count("PATCH", SYSTEM), 2);
    // Some devices have no value for none; then the override is only disabled.
    env.set(SYSTEM, "/Boot/BootSourceOverrideTarget@Redfish.AllowableValues", json!(["Pxe"]));
    let off = system.set_boot(BootSource::None, BootSpan::Once).await.unwrap();
    assert!(off.boots_from(BootSource::None));
    let body = json!({"Boot": {"BootSourceOverrideEnabled": "Disabled"}});
    assert_eq!(sent(&peer, "PATCH", SYSTEM).last(), Some(&body));
}

#[tokio::test]
async fn a_lost_override_is_detected() {
    let ignores = |call: &Call| call.is("PATCH", SYSTEM).then(|| Response::status(204, ""));
    let peer = FakeBmc::new().serve_except(ignores).await;
    let system = system(&peer).await;
    let fault = system.set_boot(BootSource::Pxe, BootSpan::Once).await.unwrap_err();
    assert_eq!(fault.code, FaultCode::ReadBackDiffers, "{fault}");
    assert!(fault.message.contains("Pxe") && fault.message.contains("Disabled"), "{fault}");
}

/// Refuses everything with this status after the first change.
async fn serve_until_a_change(env: FakeBmc, status: u16) -> Peer {
    let changed = AtomicBool::new(false);
    let inner = env.clone();
    env.serve_except(move |call| {
        if changed.load(Ordering::Relaxed) {
            return Some(Response::status(status, "{}"));
        }
        changed.store(call.method != "GET", Ordering::Relaxed);
        Some(match call.method.as_str() {
            "POST" => Response::status(204, ""),
            _ => inner.answer(call),
        })
    })
    .await
}

#[tokio::test]
async fn a_change_without_read_back_may_have_happened() {
    for status in [401, 404, 500, 503] {
        let peer = serve_until_a_change(FakeBmc::new(), status).await;
        let boot = system(&peer).await.set_boot(BootSource::Pxe, BootSpan::Once).await;
        let peer = serve_until_a_change(with_bios(), status).await;
        let requested = attributes(&[("Cores", Attribute::Number(8))]);
        let bios = system(&peer).await.set_bios(&requested).await;
        let peer = serve_until_a_change(with_media(), status).await;
        let media = system(&peer).await.insert_media("http://10.0.0.1/a.iso").await;
        for fault in [boot.unwrap_err(), bios.unwrap_err(), media.unwrap_err()] {
            assert_eq!(fault.code, FaultCode::AnswerLost, "{fault}");
            assert!(fault.message.contains(&status.to_string()), "{fault}");
        }
    }
}

#[tokio::test]
async fn quirks_change_what_is_sent() {
    let env = FakeBmc::new();
    env.set(SYSTEM, "/Manufacturer", json!("Supermicro"));
    env.set(SYSTEM, "/Boot/BootSourceOverrideMode", json!("UEFI"));
    let words = "/Boot/BootSourceOverrideTarget@Redfish.AllowableValues";
    env.set(SYSTEM, words, json!(["None", "Pxe", "Cd", "UsbCd"]));
    let peer = env.serve().await;
    let observed = system(&peer).await.set_boot(BootSource::Cd, BootSpan::Once).await.unwrap();
    assert_eq!((observed.source, observed.target.as_str()), (Some(BootSource::Cd), "UsbCd"));
    let boot = json!({"BootSourceOverrideTarget": "UsbCd", "BootSourceOverrideEnabled": "Once",
        "BootSourceOverrideMode": "UEFI"});
    assert_eq!(sent(&peer, "PATCH", SYSTEM), [json!({ "Boot": boot })]);
}

/// A BMC that requires its current ETag, and issues a new one with every change.
fn require_etag(call: &Call, changes: &AtomicUsize, env: &FakeBmc) -> Option<Response> {
    let tag = format!("\"{}\"", changes.load(Ordering::Relaxed));
    if call.is("GET", SYSTEM) {
        return Some(Response::json(env.get(SYSTEM)).with("etag", tag));
    }
    if !call.is("PATCH", SYSTEM) {
        return None;
    }
    let fits = call.header("if-match") == Some(&tag);
    // Another client changes it after the first read.
    changes.fetch_add(1, Ordering::Relaxed);
    let first = changes.load(Ordering::Relaxed) == 1;
    if first || !fits {
        return Some(Response::status(412, "{}"));
    }
    Some(env.answer(call))
}

#[tokio::test]
async fn a_resource_that_changed_meanwhile_is_read_again() {
    let (env, changes) = (FakeBmc::new(), AtomicUsize::new(0));
    let inner = env.clone();
    let peer = env.serve_except(move |call| require_etag(call, &changes, &inner)).await;
    let observed = system(&peer).await.set_boot(BootSource::Pxe, BootSpan::Once).await.unwrap();
    assert_eq!(observed.source, Some(BootSource::Pxe));
    let calls = peer.calls();
    let tags = calls.iter().filter(|call| call.is("PATCH", SYSTEM)).map(|c| c.header("if-match"));
    assert_eq!(tags.collect::<Vec<_>>(), [Some("\"0\""), Some("\"1\"")]);
}

#[tokio::test]
async fn a_resource_that_always_changed_meanwhile_is_given_up() {
    let env = FakeBmc::new();
    env.set(SYSTEM, "/@odata.etag", json!("W/\"1\""));
    let refuses = |call: &Call| call.is("PATCH", SYSTEM).then(|| Response::status(412, "{}"));
    let peer = env.serve_except(refuses).await;
    let fault = system(&peer).await.set_boot(BootSource::Pxe, BootSpan::Once).await.unwrap_err();
    assert_eq!(fault.code, FaultCode::EffectFailed, "{fault}");
    let calls = peer.calls();
    let tags = calls.iter().filter(|call| call.is("PATCH", SYSTEM)).map(|c| c.header("if-match"));
    let strong_at_last = [Some("W/\"1\""), Some("W/\"1\""), Some("\"1\"")];
    assert_eq!(tags.collect::<Vec<_>>(), strong_at_last);
}

fn with_bios() -> FakeBmc {
    let (bios, settings) = ("/redfish/v1/Systems/1/Bios", "/redfish/v1/Systems/1/Bios/SD");
    let env = FakeBmc::new();
    env.set(SYSTEM, "/Manufacturer", json!("Dell Inc."));
    env.set(SYSTEM, "/Bios", json!({"@odata.id": bios}));
    env.put(
        bios,
        json!({"Attributes": {"BootMode": "Bios", "Cores": 4, "Turbo": true},
        "@Redfish.Settings": {"SettingsObject": {"@odata.id": settings}}}),
    );
    env.put(settings, json!({"Attributes": {}}));
    env
}

fn attributes(pairs: &[(&str, Attribute)]) -> BTreeMap<String, Attribute> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
}

#[tokio::test]
async fn bios_settings_wait_for_a_reset() {
    let peer = with_bios().serve().await;
    let system = system(&peer).await;
    let uefi = Attribute::Text("Uefi".into());
    let requested = attributes(&[("BootMode", uefi.clone()), ("Cores", Attribute::Number(4))]);
    let observed = system.set_bios(&requested).await.unwrap();
    assert_eq!(observed.current["BootMode"], Attribute::Text("Bios".into()));
    assert_eq!(observed.pending, attributes(&[("BootMode", uefi)]));
    let path = "/redfish/v1/Systems/1/Bios/SD";
    let body = json!({"Attributes": {"BootMode": "Uefi"},
        "@Redfish.SettingsApplyTime": {"ApplyTime": "OnReset"}});
    assert_eq!(sent(&peer, "PATCH", path), [body]);
    system.set_bios(&requested).await.unwrap();
    assert_eq!(peer.count("PATCH", path), 1, "what is pending is not sent again");
    let fault = system.set_bios(&attributes(&[("Gone", Attribute::Flag(true))])).await.unwrap_err();
    assert_eq!(fault.code, FaultCode::NotSupported, "{fault}");
}

const DRIVES: &str = "/redfish/v1/Managers/1/VirtualMedia";
const DRIVE: &str = "/redfish/v1/Managers/1/VirtualMedia/Cd";

fn with_media() -> FakeBmc {
    let env = FakeBmc::new();
    env.set(SYSTEM, "/Links", json!({"ManagedBy": [{"@odata.id": "/redfish/v1/Managers/1"}]}));
    env.put("/redfish/v1/Managers/1", json!({"VirtualMedia": {"@odata.id": DRIVES}}));
    env.put_list(DRIVES, &["/redfish/v1/Managers/1/VirtualMedia/Usb", DRIVE]);
    env.put("/redfish/v1/Managers/1/VirtualMedia/Usb", json!({"MediaTypes": ["USBStick"]}));
    env.put(
        DRIVE,
        json!({"Id": "Cd", "MediaTypes": ["CD"], "Inserted": false, "Image": null,
        "Actions": {"#VirtualMedia.InsertMedia": {"target": format!("{DRIVE}/Insert")},
            "#VirtualMedia.EjectMedia": {"target": format!("{DRIVE}/Eject")}}}),
    );
    env
}

#[tokio::test]
async fn an_image_goes_in_and_out() {
    let env = with_media();
    let inner = env.clone();
    let peer = env
        .serve_except(move |call| {
            let insert = call.is("POST", &format!("{DRIVE}/Insert"));
            if !insert && !call.is("POST", &format!("{DRIVE}/Eject")) {
                return None;
            }
            let body: Value = serde_json::from_str(&call.body).unwrap();
            inner.set(DRIVE, "/Inserted", json!(insert));
            inner.set(DRIVE, "/Image", body["Image"].clone());
            Some(Response::status(204, ""))
        })
        .await;
    let system = system(&peer).await;
    let url = "http://10.0.0.1/token/agent.iso";
    let media = system.insert_media(url).await.unwrap();
    assert_eq!((media.id.as_str(), media.image.as_deref()), ("Cd", Some(url)));
    system.insert_media(url).await.unwrap();
    assert_eq!(peer.count("POST", &format!("{DRIVE}/Insert")), 1, "it was inserted already");
    let full = system.insert_media("http://10.0.0.1/other.iso").await.unwrap_err();
    assert_eq!(full.code, FaultCode::EffectFailed, "{full}");
    assert!(!system.eject_media(DRIVE).await.unwrap().inserted);
    system.eject_media(DRIVE).await.unwrap();
    assert_eq!(peer.count("POST", &format!("{DRIVE}/Eject")), 1, "it was ejected already");
}

#[tokio::test]
async fn an_empty_drive_is_detected() {
    let quiet = |call: &Call| (call.method == "POST").then(|| Response::status(204, ""));
    let peer = with_media().serve_except(quiet).await;
    let fault = system(&peer).await.insert_media("http://10.0.0.1/a.iso").await.unwrap_err();
    assert_eq!(fault.code, FaultCode::ReadBackDiffers, "{fault}");
}

#[tokio::test]
async fn an_update_names_its_task() {
    let (service, action) = ("/redfish/v1/UpdateService", "/redfish/v1/UpdateService/Simple");
    let task = "/redfish/v1/TaskService/Tasks/9";
    let env = FakeBmc::new();
    env.set("/redfish/v1", "/UpdateService", json!({"@odata.id": service}));
    env.put(
        service,
        json!({"Actions": {"#UpdateService.SimpleUpdate": {
        "target": action, "TransferProtocol@Redfish.AllowableValues": ["HTTP"]}}}),
    );
    env.put(task, json!({"TaskState": "Completed"}));
    let peer = env
        .serve_except(move |call| {
            let taken = Response::status(202, json!({"@odata.id": task, "TaskState": "New"}));
            call.is("POST", action).then(|| taken.with("location", "/monitor/9"))
        })
        .await;
    let system = system(&peer).await;
    let named = system
        .simple_update("http://10.0.0.1/bios.bin", &[SYSTEM.to_owned()])
        .await
        .unwrap()
        .unwrap();
    assert_eq!(named.to_string(), task);
    assert_eq!(system.task(&named).await.unwrap().state, TaskState::Completed);
    let body = json!({"ImageURI": "http://10.0.0.1/bios.bin", "TransferProtocol": "HTTP",
        "Targets": [SYSTEM]});
    assert_eq!(sent(&peer, "POST", action), [body]);
    let fault = system.simple_update("ftp://10.0.0.1/bios.bin", &[]).await.unwrap_err();
    assert_eq!(fault.code, FaultCode::NotSupported, "{fault}");
}
