//! BMCs without a registered machine: testing one, and discovering what is at an address.

use crate::certs::Authority;
use crate::http::{Call, Peer, Said};
use crate::ipmi_sim::{PASSWORD as IPMI_PASSWORD, Sim};
use crate::looks::{OTHER, datacenter, rich, store, two};
use crate::world::PASSWORD;
use model::fault::Code;
use providers::datacenter::Datacenter;
use providers::http_client::Trust;
use providers::power::PowerState;
use providers::redfish::Wanted;
use providers::scout::{Approach, Report, Scout, Step, Survey, Verdict};
use providers::state_store::{InMemoryStateStore, ProviderStateStore, Secret};
use serde_json::json;
use std::sync::Arc;

fn to(endpoint: &str) -> Approach {
    Approach { endpoint: endpoint.into(), ..Approach::default() }
}

fn told(report: &Report, step: Step) -> (Verdict, &str) {
    let finding = report.findings.iter().find(|one| one.step == step).unwrap();
    (finding.verdict, finding.said.as_str())
}

#[track_caller]
fn says(report: &Report, step: Step, verdict: Verdict, words: &str) {
    let (seen, said) = told(report, step);
    assert_eq!(seen, verdict, "{step:?}: {said}");
    assert!(said.contains(words), "{step:?}: {words:?} is not in {said:?}");
}

/// Refuses every login but the right one.
fn guarded(call: &Call) -> Option<Said> {
    let said = call.header("authorization").unwrap_or_default().to_string();
    let right = said.ends_with("cm9vdDpzM2NyZXQtb2YtdGhlLWJtYw==");
    let open = call.path.trim_end_matches('/') == "/redfish/v1";
    (!right && !open).then(|| Said::status(401, "{}"))
}

#[tokio::test]
async fn a_bmc_is_tried_out_step_by_step_and_nothing_is_changed_on_it() {
    let authority = Authority::new();
    let world = rich();
    let answers = Arc::new(move |call: &Call| guarded(call).unwrap_or_else(|| world.answer(call)));
    let identity = authority.issue("127.0.0.1", 2099);
    let peer = Peer::serve(Some(identity.acceptor()), answers).await;
    let store = store("root", PASSWORD);
    let report = datacenter(&store).test(&to(&peer.url())).await;
    says(&report, Step::Name, Verdict::Ok, "an address");
    says(&report, Step::Port, Verdict::Ok, "takes connections");
    says(&report, Step::Tls, Verdict::Ok, "would be trusted on first use");
    says(&report, Step::Tls, Verdict::Ok, "until 2099-12-31");
    says(&report, Step::Root, Verdict::Ok, "Redfish 1.6.0, Acme");
    says(&report, Step::Login, Verdict::Ok, "right");
    says(
        &report,
        Step::Systems,
        Verdict::Ok,
        "1 (serial S1, 02:00:00:00:00:0a); 1 would be chosen",
    );
    says(&report, Step::Power, Verdict::Ok, "On");
    says(&report, Step::Resets, Verdict::Ok, "On, ForceOff; it cannot ask the system to shut down");
    says(&report, Step::Boot, Verdict::Ok, "None, Pxe, Hdd; now its own boot order");
    says(&report, Step::Media, Verdict::Ok, "Cd (empty)");
    says(&report, Step::Bios, Verdict::Ok, "1 settings");
    says(&report, Step::Update, Verdict::Cannot, "no update service");
    says(&report, Step::Tasks, Verdict::Cannot, "no task service");
    says(&report, Step::Log, Verdict::Ok, "newest in SEL: Day 3");
    says(&report, Step::Sensors, Verdict::Ok, "Fan 1 is Critical");
    assert!(report.usable());
    assert!(report.summary().contains("it cannot update its firmware"), "{}", report.summary());
    assert_eq!(report.chosen.unwrap().macs, ["02:00:00:00:00:0a"]);
    assert!(peer.calls().iter().all(|call| call.method == "GET"));
    assert_eq!(store.identity(&peer.url()).await, Ok(None), "a test pins no identity");

    // With our authority, and with another one.
    let trusting = |authority: &Authority| Approach {
        trust: Some(Trust::ca_from_pem(authority.pem().as_bytes()).unwrap()),
        ..to(&peer.url())
    };
    let report = datacenter(&store).test(&trusting(&authority)).await;
    says(&report, Step::Tls, Verdict::Ok, "signed by an authority that is trusted");
    let report = datacenter(&store).test(&trusting(&Authority::new())).await;
    says(&report, Step::Tls, Verdict::Cannot, "until 2099-12-31");
    says(&report, Step::Login, Verdict::NotTried, "TLS comes first");
    assert!(!report.usable());

    // Another identity was pinned there before.
    store.trust_on_first_use(&peer.url(), &format!("sha256:{}", "0a".repeat(32))).await.unwrap();
    let report = datacenter(&store).test(&to(&peer.url())).await;
    says(&report, Step::Tls, Verdict::Cannot, "was trusted before");
}

#[tokio::test]
async fn how_far_one_gets_is_said() {
    let store = store("root", PASSWORD);
    let datacenter = datacenter(&store);
    for (endpoint, step, words) in [
        ("https://u:p@h", Step::Address, "credential"),
        ("ftp://h", Step::Address, "https://"),
        ("https://no-such-name.invalid", Step::Name, "has no address"),
        ("http://127.0.0.1:1", Step::Port, "refused"),
    ] {
        let report = datacenter.test(&to(endpoint)).await;
        says(&report, step, Verdict::Cannot, words);
        says(&report, Step::Login, Verdict::NotTried, "comes first");
        assert!(!report.usable() && report.findings.len() == Step::ALL.len());
    }
    let web = Peer::start(|_| Said::status(404, "<html>")).await;
    let report = datacenter.test(&to(&web.url())).await;
    says(&report, Step::Tls, Verdict::NotTried, "the password too");
    says(&report, Step::Root, Verdict::Cannot, "404");
    let peer = rich().serve().await;
    let nameless = Approach { credential: "nobody".into(), ..to(&peer.url()) };
    says(
        &datacenter.test(&nameless).await,
        Step::Login,
        Verdict::Cannot,
        "no credential \"nobody\"",
    );
    // A silent BMC times out, and the results of the earlier steps stay.
    let silent = rich().serve_but(|call| call.path.contains("Systems").then_some(Said::Hang)).await;
    let report = datacenter.test(&to(&silent.url())).await;
    says(&report, Step::Root, Verdict::Ok, "Acme");
    says(&report, Step::Login, Verdict::Cannot, "no answer came");
}

#[tokio::test]
async fn a_refused_login_counts_and_is_not_tried_again() {
    let peer = rich().serve_but(guarded).await;
    let store = Arc::new(InMemoryStateStore::default());
    let set = |password: &str| {
        let password = password.to_string().into();
        store.set("bmc", Secret::Password { user: "root".into(), password });
    };
    set("wrong");
    let datacenter = datacenter(&store);
    let report = datacenter.test(&to(&peer.url())).await;
    says(&report, Step::Login, Verdict::Cannot, "401");
    assert_eq!(tries(&peer), 1);
    let report = datacenter.test(&to(&peer.url())).await;
    says(&report, Step::Login, Verdict::Cannot, "was not asked: it refused");
    let Survey::Failed(fault) = datacenter.survey(&peer.url(), "bmc").await else { panic!() };
    assert_eq!(fault.code, Code::LoginRefused);
    assert_eq!(tries(&peer), 1);
    set(PASSWORD);
    assert!(datacenter.test(&to(&peer.url())).await.usable());
}

/// How often a password was sent.
fn tries(peer: &Peer) -> usize {
    peer.calls().iter().filter(|call| call.header("authorization").is_some()).count()
}

#[tokio::test]
async fn several_systems_are_named_and_one_is_chosen_by_what_is_known() {
    let peer = two().serve().await;
    let datacenter = datacenter(&store("root", PASSWORD));
    let report = datacenter.test(&to(&peer.url())).await;
    says(&report, Step::Systems, Verdict::Cannot, "2 (serial S2222, no MAC address)");
    says(&report, Step::Systems, Verdict::Cannot, "--serial");
    let wanted = Wanted { serial: Some("S2222".into()), ..Wanted::default() };
    let report = datacenter.test(&Approach { wanted, ..to(&peer.url()) }).await;
    says(&report, Step::Systems, Verdict::Ok, "2 would be chosen");
    assert_eq!(report.chosen.unwrap().endpoint, format!("{}{OTHER}", peer.url()));
}

async fn found(
    datacenter: &Datacenter,
    endpoint: &str,
) -> Vec<(String, String, Option<PowerState>)> {
    match datacenter.survey(endpoint, "bmc").await {
        Survey::Found(found) => found
            .into_iter()
            .map(|one| (one.sighting.endpoint, one.sighting.serial, one.power))
            .collect(),
        other @ (Survey::Nobody(_) | Survey::Failed(_)) => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn every_system_behind_an_address_is_found() {
    let store = store("root", PASSWORD);
    let datacenter = datacenter(&store);
    let peer = two().serve().await;
    let url = peer.url();
    let one = (format!("{url}/redfish/v1/Systems/1"), "S1".to_string(), Some(PowerState::On));
    let other = (format!("{url}{OTHER}"), "S2222".to_string(), Some(PowerState::Off));
    assert_eq!(found(&datacenter, &url).await, [one, other.clone()]);
    assert_eq!(found(&datacenter, &other.0).await, [other]);
    let alone = rich().serve().await;
    let expected = (alone.url(), "S1".to_string(), Some(PowerState::On));
    assert_eq!(found(&datacenter, &alone.url()).await, [expected]);
    assert!(matches!(datacenter.survey("http://127.0.0.1:1", "bmc").await, Survey::Nobody(_)));
    let web = Peer::start(|_| Said::status(404, "<html>")).await;
    assert!(matches!(datacenter.survey(&web.url(), "bmc").await, Survey::Failed(_)));
    assert_eq!(tries(&web), 0, "a password is only sent to what says that it is a BMC");
    // A session is opened once and closed.
    let world = rich();
    world.set("/redfish/v1", "/Links", json!({"Sessions": {"@odata.id": "/redfish/v1/S"}}));
    let peer = world
        .serve_but(|call| match (call.method.as_str(), call.path.as_str()) {
            ("POST", "/redfish/v1/S") => Some(
                Said::status(201, "{}")
                    .with("x-auth-token", "t")
                    .with("location", "/redfish/v1/S/7"),
            ),
            ("DELETE", "/redfish/v1/S/7") => Some(Said::status(204, "")),
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
    let report = datacenter.test(&to(&sim.url())).await;
    says(&report, Step::Login, Verdict::Ok, "right");
    says(&report, Step::Power, Verdict::Ok, "Off");
    says(&report, Step::Log, Verdict::Ok, "empty");
    says(&report, Step::Bios, Verdict::Cannot, "Redfish only");
    assert!(report.usable(), "{report:?}");
    assert_eq!(
        found(&datacenter, &sim.url()).await,
        [(sim.url(), String::new(), Some(PowerState::Off))]
    );
    let password = "wrong".to_string().into();
    store.set("bmc", Secret::Password { user: "admin".into(), password });
    let report = datacenter.test(&to(&sim.url())).await;
    says(&report, Step::Login, Verdict::Cannot, "refused the login");
    let Survey::Failed(fault) = datacenter.survey(&sim.url(), "bmc").await else { panic!() };
    assert!(fault.said.contains("was not asked"), "{fault}");
}
