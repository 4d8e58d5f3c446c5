//! Probes of machines: what a BMC, a host and a cluster show, with few requests.

use crate::fake_bmc::{FakeBmc, PASSWORD, RESET, SYSTEM, settings as redfish_settings};
use crate::http::{Peer, Response};
use crate::kube_api::{Api, TOKEN, Trouble};
use crate::kube_pki::Pki;
use crate::kubernetes::node;
use crate::until;
use axum::http::Method;
use model::condition::{ConditionObservation, ConditionType};
use model::effect::{CallVerb, Effect, EffectKey, PowerOffPolicy, ProviderCall, RebootMode};
use model::id::{MachineId, RunId};
use model::machine::MachineSpec;
use providers::datacenter::{Datacenter, Settings};
use providers::power::PowerTimeouts;
use providers::redfish::Auth;
use providers::state_store::{InMemoryStateStore, ProviderStateStore, Secret};
use providers::{Journal, Provider, Target};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;

const CHASSIS: &str = "/redfish/v1/Chassis/1";

fn store() -> Arc<InMemoryStateStore> {
    let store = Arc::new(InMemoryStateStore::default());
    set(&store, PASSWORD);
    store
}

fn set(store: &InMemoryStateStore, password: &str) {
    let password = password.to_string().into();
    store.set_credential("bmc", Secret::Password { user: "root".into(), password });
}

fn provider(store: &Arc<InMemoryStateStore>) -> Datacenter {
    let settings = Settings {
        bmc_credential: "bmc".into(),
        poll_timeout: Duration::from_secs(5),
        power_timeouts: PowerTimeouts { graceful: Duration::ZERO, ..PowerTimeouts::default() },
        redfish: redfish_settings(Auth::Basic),
        ..Settings::default()
    };
    Datacenter::new(Arc::clone(store) as Arc<dyn ProviderStateStore>, settings)
}

fn target(id: &str, spec: MachineSpec) -> Target {
    Target { id: model::target::TargetId::from(&MachineId::trusted(id)), spec }
}

fn spec_behind(peer: &Peer) -> MachineSpec {
    MachineSpec { bmc_endpoint: peer.url(), ..MachineSpec::default() }
}

fn condition_of(
    observed: &[ConditionObservation],
    condition: ConditionType,
) -> Option<(bool, &str)> {
    let one = observed.iter().find(|one| one.condition == condition)?;
    Some((one.status, one.reason.as_str()))
}

#[tokio::test]
async fn a_known_bmc_is_probed_with_one_request() {
    let peer = FakeBmc::new().serve().await;
    let provider = provider(&store());
    let target = target("m-1", spec_behind(&peer));
    let observed = provider.probe(&target).await.unwrap();
    assert_eq!(condition_of(&observed, ConditionType::BmcReachable), Some((true, "Answers")));
    let off = Some((false, "PoweredOff"));
    assert_eq!(condition_of(&observed, ConditionType::Reachable), off, "as this peer was recorded");
    let first = peer.calls().len();
    for probe in 1..=3 {
        provider.probe(&target).await.unwrap();
        assert_eq!(peer.calls().len(), first + probe);
    }
}

/// A silent host is told apart from one that is switched off.
#[tokio::test]
async fn a_machine_is_off_if_its_bmc_says_so_and_its_host_is_silent() {
    let env = FakeBmc::new();
    let peer = env.clone().serve().await;
    let provider = provider(&store());
    let silent = MachineSpec { ssh_endpoint: "127.0.0.1:1".into(), ..spec_behind(&peer) };
    for (power, spec, expected) in [
        ("On", spec_behind(&peer), (true, "PoweredOn")),
        ("Off", spec_behind(&peer), (false, "PoweredOff")),
        ("On", silent.clone(), (false, "connection refused")),
        ("Off", silent, (false, "PoweredOff")),
    ] {
        env.set(SYSTEM, "/PowerState", json!(power));
        let observed = provider.probe(&target("m-1", spec)).await.unwrap();
        assert_eq!(condition_of(&observed, ConditionType::Reachable), Some(expected), "{power}");
    }
}

#[tokio::test]
async fn a_bmc_failure_is_the_reason() {
    let (store, peer) = (store(), FakeBmc::new().serve().await);
    set(&store, "wrong");
    let shut = Peer::start(|call| match call.path.trim_end_matches('/') {
        "/redfish/v1" => Response::json("{}"),
        _ => Response::status(401, "{}"),
    })
    .await;
    let provider = provider(&store);
    let observed = provider.probe(&target("m-1", spec_behind(&shut))).await.unwrap();
    assert_eq!(
        condition_of(&observed, ConditionType::BmcReachable),
        Some((false, "login-refused"))
    );
    let (gone, address) = (spec_behind(&peer), peer.url().replace("http://", ""));
    drop(peer);
    until("the port is closed", async || TcpStream::connect(&address).await.is_err()).await;
    let observed = provider.probe(&target("m-2", gone)).await.unwrap();
    assert_eq!(
        condition_of(&observed, ConditionType::BmcReachable),
        Some((false, "bmc-unreachable"))
    );
}

#[tokio::test]
async fn unhealthy_components_are_named() {
    let env = FakeBmc::new();
    env.set(SYSTEM, "/Links", json!({"Chassis": [{"@odata.id": CHASSIS}]}));
    env.set(SYSTEM, "/Status", json!({"Health": "OK", "HealthRollup": "Critical"}));
    let thermal = format!("{CHASSIS}/Thermal");
    env.put(CHASSIS, json!({"@odata.id": CHASSIS, "Thermal": {"@odata.id": thermal}}));
    let fan = |n: u32, health: &str| json!({"Name": format!("Fan {n}"), "Reading": 0, "Status": {"Health": health}});
    let fans = [fan(1, "OK"), fan(2, "Warning"), fan(3, "Critical")];
    env.put(&thermal, json!({"@odata.id": thermal, "Fans": fans}));
    let peer = env.serve().await;
    let (provider, target) = (provider(&store()), target("m-1", spec_behind(&peer)));
    let ill = provider.probe_hardware(&target).await.unwrap().unwrap();
    assert_eq!((ill.status, ill.reason.as_str()), (true, "Fan 3 Critical, Fan 2 Warning"));
    // Without a named component, the health of the System is the reason.
    env.put(&thermal, json!({"@odata.id": thermal, "Fans": [fan(1, "OK")]}));
    let ill = provider.probe_hardware(&target).await.unwrap().unwrap();
    assert_eq!((ill.status, ill.reason.as_str()), (true, "system Critical"));
    env.set(SYSTEM, "/Status", json!({"Health": "OK"}));
    let well = provider.probe_hardware(&target).await.unwrap().unwrap();
    assert_eq!((well.status, well.reason.as_str()), (false, "Healthy"));
}

/// Two machines behind one BMC, known by their serial numbers: each probe reads its own System,
/// whichever was read before.
#[tokio::test]
async fn neighbours_behind_one_bmc_are_not_confused() {
    const OTHER: &str = "/redfish/v1/Systems/2";
    let env = FakeBmc::new();
    let mut neighbour = env.get(SYSTEM);
    neighbour["@odata.id"] = json!(OTHER);
    neighbour["Id"] = json!("2");
    neighbour["SerialNumber"] = json!("S2");
    env.put(OTHER, neighbour);
    env.put_list("/redfish/v1/Systems", &[SYSTEM, OTHER]);
    let peer = env.serve().await;
    let (store, spec) =
        (store(), |serial: &str| MachineSpec { serial: serial.into(), ..spec_behind(&peer) });
    let provider = provider(&store);
    for serial in ["S2", "S1"] {
        let observed = provider.probe(&target(serial, spec(serial))).await.unwrap();
        assert_eq!(
            condition_of(&observed, ConditionType::BmcReachable),
            Some((true, "Answers")),
            "{serial}"
        );
    }
    let key = EffectKey::new(&RunId::trusted("op-1"), "reboot", 1);
    let effect =
        Effect::Reboot { mode: RebootMode::Bmc, power_off: PowerOffPolicy::PROVIDER_DEFAULT };
    let order = ProviderCall { key, verb: CallVerb::Perform, effect, log_offset_bytes: 0 };
    let (journal, mut lines) = Journal::new();
    let reader = tokio::spawn(async move { while lines.recv().await.is_some() {} });
    provider.call(&target("m-1", spec("S1")), &order, &journal).await.unwrap();
    drop(journal);
    reader.await.unwrap();
    let resets = peer.calls().into_iter().filter(|call| call.method == "POST");
    assert!(resets.clone().count() > 0 && resets.clone().all(|call| call.is("POST", RESET)));
}

/// A password that was changed on both sides is used by the next run at once, and the old one
/// causes no lockout.
#[tokio::test]
async fn a_cached_session_ends_with_its_credential() {
    let store = store();
    let strict = Arc::new(std::sync::Mutex::new(String::from("cm9vdDpzM2NyZXQtb2YtdGhlLWJtYw==")));
    let desired = Arc::clone(&strict);
    let env = FakeBmc::new();
    let peer = env
        .serve_except(move |call| {
            let message = call.header("authorization").unwrap_or_default().to_string();
            let right = message.ends_with(desired.lock().unwrap().as_str());
            let open = call.path.trim_end_matches('/') == "/redfish/v1";
            (!right && !open).then(|| Response::status(401, "{}"))
        })
        .await;
    let (provider, target) = (provider(&store), target("m-1", spec_behind(&peer)));
    let observed = provider.probe(&target).await.unwrap();
    assert_eq!(condition_of(&observed, ConditionType::BmcReachable), Some((true, "Answers")));
    *strict.lock().unwrap() = "cm9vdDpuZXc=".into();
    set(&store, "new");
    // The next probe still uses the old session, is refused, and drops it; the one after uses the
    // new password.
    let observed = provider.probe(&target).await.unwrap();
    assert_eq!(
        condition_of(&observed, ConditionType::BmcReachable),
        Some((false, "login-refused"))
    );
    let observed = provider.probe(&target).await.unwrap();
    assert_eq!(condition_of(&observed, ConditionType::BmcReachable), Some((true, "Answers")));
}

#[tokio::test]
async fn one_list_of_nodes_serves_all_machines_of_a_cluster() {
    let pki = Pki::new();
    let api = Api::start(&pki).await;
    let store = store();
    let text = pki.kubeconfig(api.address, &format!("token: {TOKEN}"));
    store.set_credential("cluster-a", Secret::Kubeconfig { text });
    {
        let mut env = api.state.lock();
        for n in 0..1_200 {
            env.add_node(node(&format!("m-{n}")));
        }
        let mut cordoned = node("m-7");
        cordoned["spec"]["unschedulable"] = json!(true);
        env.add_node(cordoned);
        let mut busy = node("m-9");
        busy["spec"]["unschedulable"] = json!(true);
        env.add_node(busy);
        env.add_pod("shop/web-0", json!({ "spec": { "nodeName": "m-9" } }));
        let mut silent = node("m-10");
        silent["status"]["conditions"] = json!([]);
        env.add_node(silent);
        let mut ill = node("m-8");
        ill["status"]["conditions"] =
            json!([{"type": "Ready", "status": "False", "reason": "KubeletNotReady"}]);
        env.add_node(ill);
    }
    let provider = Arc::new(provider(&store));
    let spec = MachineSpec { target_cluster_ref: "cluster-a".into(), ..MachineSpec::default() };
    let mut probes = Vec::new();
    for n in 0..100 {
        let (provider, target) = (Arc::clone(&provider), target(&format!("m-{n}"), spec.clone()));
        probes.push(tokio::spawn(async move { provider.probe(&target).await.unwrap() }));
    }
    let mut observed = Vec::new();
    for probe in probes {
        observed.push(probe.await.unwrap());
    }
    use ConditionType::{Drained, InCustomerCluster};
    assert_eq!(condition_of(&observed[0], InCustomerCluster), Some((true, "Joined:cluster-a")));
    assert_eq!(condition_of(&observed[0], Drained), Some((false, "Schedulable")));
    assert_eq!(condition_of(&observed[7], Drained), Some((true, "Evicted")));
    assert_eq!(condition_of(&observed[9], Drained), Some((false, "PodsLeft")));
    assert_eq!(
        condition_of(&observed[10], InCustomerCluster),
        Some((false, "NotReady:NoReadyCondition"))
    );
    assert_eq!(
        condition_of(&observed[8], InCustomerCluster),
        Some((false, "NotReady:KubeletNotReady"))
    );
    let stranger = provider.probe(&target("m-x", spec.clone())).await.unwrap();
    assert_eq!(condition_of(&stranger, InCustomerCluster), Some((false, "NotJoined")));
    assert_eq!(condition_of(&stranger, Drained), Some((true, "NotInCluster")));
    let named = MachineSpec { node_name: "m-7".into(), ..spec.clone() };
    let renamed = provider.probe(&target("m-x", named)).await.unwrap();
    assert_eq!(condition_of(&renamed, Drained), Some((true, "Evicted")));
    let requests = api.state.lock().requests.clone();
    let count = |part: &str| requests.iter().filter(|request| request.contains(part)).count();
    assert_eq!(count("/nodes?"), 3, "three pages for 101 machines: {requests:?}");
    assert_eq!(count("/pods?"), 3, "one list of pods for each probe of a cordoned node");
    assert_eq!(count("/nodes/m-"), 4, "cordoned nodes, and one that is not there, are read");
    // A machine without a cluster causes no request.
    let loose = provider.probe(&target("m-0", MachineSpec::default())).await.unwrap();
    assert_eq!(condition_of(&loose, InCustomerCluster), Some((false, "NotJoined")));
}

/// A node that has joined, or was uncordoned, since the list was read is not drained.
#[tokio::test]
async fn an_old_list_of_nodes_does_not_say_drained() {
    use ConditionType::{Drained, InCustomerCluster};
    let pki = Pki::new();
    let api = Api::start(&pki).await;
    let store = store();
    let text = pki.kubeconfig(api.address, &format!("token: {TOKEN}"));
    store.set_credential("cluster-a", Secret::Kubeconfig { text });
    api.state.lock().add_node(node("m-2"));
    api.state.lock().kubectl_cordon("m-2", true);
    let provider = provider(&store);
    let spec = MachineSpec { target_cluster_ref: "cluster-a".into(), ..MachineSpec::default() };
    let (new, returned) = (target("m-1", spec.clone()), target("m-2", spec));
    let before = provider.probe(&new).await.unwrap();
    assert_eq!(condition_of(&before, Drained), Some((true, "NotInCluster")));
    let before = provider.probe(&returned).await.unwrap();
    assert_eq!(condition_of(&before, Drained), Some((true, "Evicted")));
    api.state.lock().add_node(node("m-1"));
    api.state.lock().kubectl_cordon("m-2", false);
    for machine in [&new, &returned] {
        let after = provider.probe(machine).await.unwrap();
        assert_eq!(condition_of(&after, Drained), Some((false, "Schedulable")), "{after:?}");
        assert_eq!(condition_of(&after, InCustomerCluster), Some((true, "Joined:cluster-a")));
    }
    let lists = api.state.lock().requests.iter().filter(|one| one.contains("/nodes?")).count();
    assert_eq!(lists, 1, "the list was the old one");
}

#[tokio::test]
async fn an_unreachable_cluster_changes_no_condition() {
    let pki = Pki::new();
    let api = Api::start(&pki).await;
    let store = store();
    let text = pki.kubeconfig(api.address, &format!("token: {TOKEN}"));
    store.set_credential("cluster-a", Secret::Kubeconfig { text });
    api.trouble(Method::GET, Trouble::Status(500), 1);
    let provider = provider(&store);
    for (cluster, words) in
        [("cluster-a", "was asked to list nodes"), ("cluster-b", "no credential")]
    {
        let spec = MachineSpec { target_cluster_ref: cluster.into(), ..MachineSpec::default() };
        let target = target("m-1", spec);
        assert_eq!(provider.probe(&target).await.unwrap(), [], "{cluster}");
        let why = provider.degraded_reason(&target).unwrap();
        assert!(why.contains("its cluster cannot be asked") && why.contains(words), "{why}");
    }
}
