//! BMCs without a registered machine: testing one, and discovering what is at an address.

use crate::certs::Authority;
use crate::fake_bmc::PASSWORD;
use crate::http::{Call, Peer, Response};
use crate::inspection::{OTHER, bmc_with_inventory, bmc_with_two_systems, datacenter, store};
use crate::ipmi_sim::{PASSWORD as IPMI_PASSWORD, Sim};
use model::fault::FaultCode;
use providers::bmc_discovery::{
    BmcAccess, BmcCheck, BmcDiscovery, BmcProbeResult, BmcTestReport, CheckOutcome,
};
use providers::datacenter::Datacenter;
use providers::http_client::Trust;
use providers::power::PowerState;
use providers::redfish::SystemSelector;
use providers::state_store::{InMemoryStateStore, ProviderStateStore, Secret};
use serde_json::json;
use std::sync::Arc;

fn to(endpoint: &str) -> BmcAccess {
    BmcAccess { endpoint: endpoint.into(), ..BmcAccess::default() }
}

fn finding_of(report: &BmcTestReport, step: BmcCheck) -> (CheckOutcome, &str) {
    let finding = report.findings.iter().find(|one| one.check == step).unwrap();
    (finding.outcome, finding.message.as_str())
}

#[track_caller]
fn assert_finding(
    report: &BmcTestReport,
    step: BmcCheck,
    classification: CheckOutcome,
    words: &str,
) {
    let (observed, message) = finding_of(report, step);
    assert_eq!(observed, classification, "{step:?}: {message}");
    assert!(message.contains(words), "{step:?}: {words:?} is not in {message:?}");
}

/// Refuses every login but the right one.
fn guarded(call: &Call) -> Option<Response> {
    let message = call.header("authorization").unwrap_or_default().to_string();
    let right = message.ends_with("cm9vdDpzM2NyZXQtb2YtdGhlLWJtYw==");
    let open = call.path.trim_end_matches('/') == "/redfish/v1";
    (!right && !open).then(|| Response::status(401, "{}"))
}

#[tokio::test]
async fn a_bmc_is_tried_out_step_by_step_and_nothing_is_changed_on_it() {
    let authority = Authority::new();
    let env = bmc_with_inventory();
    let answers = Arc::new(move |call: &Call| guarded(call).unwrap_or_else(|| env.answer(call)));
    let identity = authority.issue("127.0.0.1", 2099);
    let peer = Peer::serve(Some(identity.acceptor()), answers).await;
    let store = store("root", PASSWORD);
    let report = datacenter(&store).test_bmc(&to(&peer.url())).await;
    assert_finding(&report, BmcCheck::Name, CheckOutcome::Ok, "an IP address");
    assert_finding(&report, BmcCheck::Port, CheckOutcome::Ok, "takes connections");
    assert_finding(&report, BmcCheck::Tls, CheckOutcome::Ok, "would be trusted on first use");
    assert_finding(&report, BmcCheck::Tls, CheckOutcome::Ok, "until 2099-12-31");
    assert_finding(&report, BmcCheck::Root, CheckOutcome::Ok, "Redfish 1.6.0, Acme");
    assert_finding(&report, BmcCheck::Login, CheckOutcome::Ok, "right");
    assert_finding(
        &report,
        BmcCheck::Systems,
        CheckOutcome::Ok,
        "1 (serial S1, 02:00:00:00:00:0a); 1 would be chosen",
    );
    assert_finding(&report, BmcCheck::Power, CheckOutcome::Ok, "On");
    assert_finding(
        &report,
        BmcCheck::Resets,
        CheckOutcome::Ok,
        "On, ForceOff; it cannot ask the system to shut down",
    );
    assert_finding(
        &report,
        BmcCheck::Boot,
        CheckOutcome::Ok,
        "None, Pxe, Hdd; now its own boot order",
    );
    assert_finding(&report, BmcCheck::Media, CheckOutcome::Ok, "Cd (empty)");
    assert_finding(&report, BmcCheck::Bios, CheckOutcome::Ok, "1 settings");
    assert_finding(&report, BmcCheck::Update, CheckOutcome::Cannot, "no update service");
    assert_finding(&report, BmcCheck::Tasks, CheckOutcome::Cannot, "no task service");
    assert_finding(&report, BmcCheck::Log, CheckOutcome::Ok, "newest in SEL: Day 3");
    assert_finding(&report, BmcCheck::Sensors, CheckOutcome::Ok, "Fan 1 is Critical");
    assert!(report.usable());
    assert!(report.summary().contains("it cannot update its firmware"), "{}", report.summary());
    assert_eq!(report.chosen.unwrap().macs, ["02:00:00:00:00:0a"]);
    assert!(peer.calls().iter().all(|call| call.method == "GET"));
    assert_eq!(store.identity(&peer.url()).await, Ok(None), "a test pins no identity");

    // With our authority, and with another one.
    let trusting = |authority: &Authority| BmcAccess {
        trust: Some(Trust::ca_from_pem(authority.pem().as_bytes()).unwrap()),
        ..to(&peer.url())
    };
    let report = datacenter(&store).test_bmc(&trusting(&authority)).await;
    assert_finding(
        &report,
        BmcCheck::Tls,
        CheckOutcome::Ok,
        "signed by an authority that is trusted",
    );
    let report = datacenter(&store).test_bmc(&trusting(&Authority::new())).await;
    assert_finding(&report, BmcCheck::Tls, CheckOutcome::Cannot, "until 2099-12-31");
    assert_finding(&report, BmcCheck::Login, CheckOutcome::NotTried, "TLS comes first");
    assert!(!report.usable());

    // Another identity was pinned there before.
    store.trust_on_first_use(&peer.url(), &format!("sha256:{}", "0a".repeat(32))).await.unwrap();
    let report = datacenter(&store).test_bmc(&to(&peer.url())).await;
    assert_finding(&report, BmcCheck::Tls, CheckOutcome::Cannot, "was trusted before");
}

#[tokio::test]
async fn a_test_reports_the_last_step_reached() {
    let store = store("root", PASSWORD);
    let datacenter = datacenter(&store);
    for (endpoint, step, words) in [
        ("https://u:p@h", BmcCheck::Address, "credential"),
        ("ftp://h", BmcCheck::Address, "https://"),
        ("https://no-such-name.invalid", BmcCheck::Name, "has no address"),
        ("http://127.0.0.1:1", BmcCheck::Port, "refused"),
    ] {
        let report = datacenter.test_bmc(&to(endpoint)).await;
        assert_finding(&report, step, CheckOutcome::Cannot, words);
        assert_finding(&report, BmcCheck::Login, CheckOutcome::NotTried, "comes first");
        assert!(!report.usable() && report.findings.len() == BmcCheck::ALL.len());
    }
    let web = Peer::start(|_| Response::status(404, "<html>")).await;
    let report = datacenter.test_bmc(&to(&web.url())).await;
    assert_finding(&report, BmcCheck::Tls, CheckOutcome::NotTried, "can read the password");
    assert_finding(&report, BmcCheck::Root, CheckOutcome::Cannot, "404");
    let peer = bmc_with_inventory().serve().await;
    let nameless = BmcAccess { credential: "nobody".into(), ..to(&peer.url()) };
    assert_finding(
        &datacenter.test_bmc(&nameless).await,
        BmcCheck::Login,
        CheckOutcome::Cannot,
        "no credential \"nobody\"",
    );
    // A silent BMC times out, and the results of the earlier steps stay.
    let silent = bmc_with_inventory()
        .serve_except(|call| call.path.contains("Systems").then_some(Response::Hang))
        .await;
    let report = datacenter.test_bmc(&to(&silent.url())).await;
    assert_finding(&report, BmcCheck::Root, CheckOutcome::Ok, "Acme");
    assert_finding(&report, BmcCheck::Login, CheckOutcome::Cannot, "no answer came");
}

#[tokio::test]
async fn a_refused_login_counts_and_is_not_retried() {
    let peer = bmc_with_inventory().serve_except(guarded).await;
    let store = Arc::new(InMemoryStateStore::default());
    let set = |password: &str| {
        let password = password.to_string().into();
        store.set_credential("bmc", Secret::Password { user: "root".into(), password });
    };
    set("wrong");
    let datacenter = datacenter(&store);
    let report = datacenter.test_bmc(&to(&peer.url())).await;
    assert_finding(&report, BmcCheck::Login, CheckOutcome::Cannot, "401");
    assert_eq!(login_attempts(&peer), 1);
    let report = datacenter.test_bmc(&to(&peer.url())).await;
    assert_finding(&report, BmcCheck::Login, CheckOutcome::Cannot, "was not asked: it refused");
    let BmcProbeResult::Failed(fault) = datacenter.discover(&peer.url(), "bmc").await else {
        panic!()
    };
    assert_eq!(fault.code, FaultCode::LoginRefused);
    assert_eq!(login_attempts(&peer), 1);
    set(PASSWORD);
    assert!(datacenter.test_bmc(&to(&peer.url())).await.usable());
}

/// The number of times that a password was sent.
fn login_attempts(peer: &Peer) -> usize {
    peer.calls().iter().filter(|call| call.header("authorization").is_some()).count()
}

#[tokio::test]
async fn several_systems_are_named_and_one_is_chosen_by_what_is_known() {
    let peer = bmc_with_two_systems().serve().await;
    let datacenter = datacenter(&store("root", PASSWORD));
    let report = datacenter.test_bmc(&to(&peer.url())).await;
    assert_finding(
        &report,
        BmcCheck::Systems,
        CheckOutcome::Cannot,
        "2 (serial S2222, no MAC address)",
    );
    assert_finding(&report, BmcCheck::Systems, CheckOutcome::Cannot, "--serial");
    let selector = SystemSelector { serial: Some("S2222".into()), ..SystemSelector::default() };
    let report = datacenter.test_bmc(&BmcAccess { selector, ..to(&peer.url()) }).await;
    assert_finding(&report, BmcCheck::Systems, CheckOutcome::Ok, "2 would be chosen");
    assert_eq!(report.chosen.unwrap().endpoint, format!("{}{OTHER}", peer.url()));
}

async fn found(
    datacenter: &Datacenter,
    endpoint: &str,
) -> Vec<(String, String, Option<PowerState>)> {
    match datacenter.discover(endpoint, "bmc").await {
        BmcProbeResult::Found(found) => found
            .into_iter()
            .map(|one| (one.system.endpoint, one.system.serial, one.power))
            .collect(),
        other @ (BmcProbeResult::NoAnswer(_) | BmcProbeResult::Failed(_)) => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn every_system_behind_an_address_is_found() {
    let store = store("root", PASSWORD);
    let datacenter = datacenter(&store);
    let peer = bmc_with_two_systems().serve().await;
    let url = peer.url();
    let one = (format!("{url}/redfish/v1/Systems/1"), "S1".to_string(), Some(PowerState::On));
    let other = (format!("{url}{OTHER}"), "S2222".to_string(), Some(PowerState::Off));
    assert_eq!(found(&datacenter, &url).await, [one, other.clone()]);
    assert_eq!(found(&datacenter, &other.0).await, [other]);
    let alone = bmc_with_inventory().serve().await;
    let expected = (alone.url(), "S1".to_string(), Some(PowerState::On));
    assert_eq!(found(&datacenter, &alone.url()).await, [expected]);
    assert!(matches!(
        datacenter.discover("http://127.0.0.1:1", "bmc").await,
        BmcProbeResult::NoAnswer(_)
    ));
    let web = Peer::start(|_| Response::status(404, "<html>")).await;
    assert!(matches!(datacenter.discover(&web.url(), "bmc").await, BmcProbeResult::Failed(_)));
    assert_eq!(login_attempts(&web), 0, "a password is only sent to what says that it is a BMC");
    // A session is opened once and closed.
    let env = bmc_with_inventory();
    env.set("/redfish/v1", "/Links", json!({"Sessions": {"@odata.id": "/redfish/v1/S"}}));
    let peer = env
        .serve_except(|call| match (call.method.as_str(), call.path.as_str()) {
            ("POST", "/redfish/v1/S") => Some(
                Response::status(201, "{}")
                    .with("x-auth-token", "t")
                    .with("location", "/redfish/v1/S/7"),
            ),
            ("DELETE", "/redfish/v1/S/7") => Some(Response::status(204, "")),
            _ => None,
        })
        .await;
    found(&datacenter, &peer.url()).await;
    assert_eq!(
        (peer.count("POST", "/redfish/v1/S"), peer.count("DELETE", "/redfish/v1/S/7")),
        (1, 1)
    );
}

#[tokio::test]
async fn ipmi_is_tried_out_and_found_too() {
    let Some(sim) = Sim::start_with("").await else { return };
    let store = store("admin", IPMI_PASSWORD);
    let datacenter = datacenter(&store);
    let report = datacenter.test_bmc(&to(&sim.url())).await;
    assert_finding(&report, BmcCheck::Login, CheckOutcome::Ok, "right");
    assert_finding(&report, BmcCheck::Power, CheckOutcome::Ok, "Off");
    assert_finding(&report, BmcCheck::Log, CheckOutcome::Ok, "empty");
    assert_finding(&report, BmcCheck::Bios, CheckOutcome::Cannot, "Redfish only");
    assert!(report.usable(), "{report:?}");
    assert_eq!(
        found(&datacenter, &sim.url()).await,
        [(sim.url(), String::new(), Some(PowerState::Off))]
    );
    let password = "wrong".to_string().into();
    store.set_credential("bmc", Secret::Password { user: "admin".into(), password });
    let report = datacenter.test_bmc(&to(&sim.url())).await;
    assert_finding(&report, BmcCheck::Login, CheckOutcome::Cannot, "refused the login");
    let BmcProbeResult::Failed(fault) = datacenter.discover(&sim.url(), "bmc").await else {
        panic!()
    };
    assert!(fault.message.contains("was not asked"), "{fault}");
}
