//! A machine's Kubernetes node, through the datacenter provider and the fake API server: drained as
//! budgets allow, uncordoned, and given its labels and taints when it joins.

mod interrupted;

use crate::kube_api::{Api, Budget, TOKEN, Trouble};
use crate::kube_pki::Pki;
use crate::maas_fixture::MaasFixture;
use crate::sshd::{Sshd, SshdOptions};
use crate::until;
use axum::http::Method;
use model::condition::ConditionType::{Drained, InCustomerCluster};
use model::effect::{
    CallOutcome, CallResult, CallVerb, ClusterExpectation, DrainOptions, Effect, EffectKey,
    KubeadmOptions, NodeLabels, ProviderAnswer, ProviderCall, Taint, TaintEffect,
};
use model::fault::FaultCode;
use model::id::{MachineId, RunId};
use model::machine::MachineSpec;
use model::target::TargetId;
use providers::datacenter::{Datacenter, Settings};
use providers::kubernetes;
use providers::sim::{Sim, Speed};
use providers::ssh::LoginSecret;
use providers::state_store::{InMemoryStateStore, ProviderStateStore, Secret};
use providers::{Journal, Provider, Providers, Target};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

const BUDGET: Budget = Budget { name: "db-budget", app: "db", allowed: 0 };

/// A cluster with one node, and the state store.
struct NodeFixture {
    api: Api,
    store: Arc<InMemoryStateStore>,
}

impl NodeFixture {
    async fn start() -> Self {
        let pki = Pki::new();
        let api = Api::start(&pki).await;
        let store = Arc::new(InMemoryStateStore::default());
        let text = pki.kubeconfig(api.address, &format!("token: {TOKEN}"));
        store.set_credential("c1", Secret::Kubeconfig { text });
        let site = Self { api, store };
        site.api.state.lock().add_node(node(json!({})));
        site
    }

    /// One replica. Its state is in the store, so another replica can continue.
    fn replica(&self) -> Datacenter {
        Datacenter::new(Arc::clone(&self.store) as Arc<dyn ProviderStateStore>, Settings::default())
    }

    fn add_pods(&self) {
        let mut env = self.api.state.lock();
        env.add_pod("shop/web-0", json!({}));
        env.add_pod("shop/db-0", json!({ "metadata": { "labels": { "app": "db" } } }));
        let owner = json!([{ "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d", "controller": true }]);
        env.add_pod("kube-system/proxy-0", json!({ "metadata": { "ownerReferences": owner } }));
        let mirror = json!({ "kubernetes.io/config.mirror": "x" });
        env.add_pod("kube-system/etcd-0", json!({ "metadata": { "annotations": mirror } }));
    }

    fn evictions(&self) -> usize {
        let env = self.api.state.lock();
        env.requests.iter().filter(|one| one.contains("/eviction")).count()
    }

    fn pods(&self) -> Vec<String> {
        self.api.state.lock().pods.keys().cloned().collect()
    }

    fn node(&self) -> Value {
        self.api.state.lock().nodes["n1"].clone()
    }

    fn is_cordoned(&self) -> bool {
        self.node()["spec"]["unschedulable"] == json!(true)
    }

    fn cordoned_by(&self) -> Value {
        self.node()["metadata"]["annotations"]["farrier/cordoned-by"].clone()
    }

    fn allow(&self, allowed: usize) {
        self.api.state.lock().budgets = vec![Budget { allowed, ..BUDGET }];
    }
}

fn node(spec: Value) -> Value {
    json!({
        "kind": "Node", "apiVersion": "v1", "metadata": { "name": "n1", "uid": "u-1" }, "spec": spec,
        "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
    })
}

fn drain(deadline_seconds: u32) -> Effect {
    let options = DrainOptions::default();
    Effect::Drain { cluster_ref: "c1".into(), deadline_seconds: Some(deadline_seconds), options }
}

fn uncordon(own: bool) -> Effect {
    Effect::Uncordon { cluster_ref: "c1".into(), own }
}

/// Calls the provider for node n1 in run op-1. Returns the answer and the log.
async fn call_provider(
    provider: &dyn Provider,
    verb: CallVerb,
    step: &str,
    effect: &Effect,
) -> (CallResult, String) {
    call_provider_for(provider, verb, step, effect, machine("n1", MachineSpec::default())).await
}

fn machine(id: &str, spec: MachineSpec) -> Target {
    Target { id: TargetId::from(&MachineId::trusted(id)), spec }
}

async fn call_provider_for(
    provider: &dyn Provider,
    verb: CallVerb,
    step: &str,
    effect: &Effect,
    target: Target,
) -> (CallResult, String) {
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

#[track_caller]
fn done(answer: CallResult) -> CallOutcome {
    match answer {
        Ok(ProviderAnswer::Done(outcome)) => outcome,
        other => panic!("{other:?}"),
    }
}

fn evidence(outcome: &CallOutcome) -> Vec<(model::condition::ConditionType, bool, &str)> {
    outcome.evidence.iter().map(|one| (one.condition, one.status, one.reason.as_str())).collect()
}

#[tokio::test]
async fn a_node_is_cordoned_and_emptied_of_what_must_go() {
    let site = NodeFixture::start().await;
    site.add_pods();
    let one = site.replica();
    let (before, _) = call_provider(&one, CallVerb::Observe, "drain", &drain(30)).await;
    assert_eq!(before, Ok(ProviderAnswer::Differs("its node in c1 takes work".into())));
    assert_eq!(
        call_provider(&one, CallVerb::GetStatus, "drain", &drain(30)).await.0,
        Ok(ProviderAnswer::NeverStarted)
    );
    assert_eq!(
        call_provider(&one, CallVerb::Follow, "drain", &drain(30)).await.0,
        Ok(ProviderAnswer::NeverStarted)
    );
    let (answer, log) = call_provider(&one, CallVerb::Perform, "drain", &drain(30)).await;
    let outcome = done(answer);
    let expected = [(InCustomerCluster, true, "Joined:c1"), (Drained, true, "Evicted")];
    assert_eq!(evidence(&outcome), expected, "{outcome:?}");
    assert_eq!(site.pods(), ["kube-system/etcd-0", "kube-system/proxy-0"]);
    assert!(site.is_cordoned());
    assert_eq!(site.cordoned_by(), "op-1");
    for words in ["cordoning n1 in c1", "shop/web-0 is evicted", "shop/db-0 is evicted"] {
        assert_eq!(log.matches(words).count(), 1, "{words}: {log}");
    }
    // Another replica with the same key reports it as done and does not repeat it.
    let (other, evicted) = (site.replica(), site.evictions());
    for verb in [
        CallVerb::GetStatus,
        CallVerb::Follow,
        CallVerb::Perform,
        CallVerb::Stop,
        CallVerb::Observe,
    ] {
        let again = done(call_provider(&other, verb, "drain", &drain(30)).await.0);
        assert_eq!(evidence(&again), expected, "{verb:?}");
    }
    assert_eq!(site.evictions(), evicted);
}

/// The pods that the selector does not match stay, so the node is not drained.
#[tokio::test]
async fn a_drain_with_a_selector_is_not_observed_as_a_drained_node() {
    let site = NodeFixture::start().await;
    site.add_pods();
    let one = site.replica();
    let options = DrainOptions { selector: "app=db".into(), ..DrainOptions::default() };
    let drain = Effect::Drain { cluster_ref: "c1".into(), deadline_seconds: Some(30), options };
    for verb in [CallVerb::Perform, CallVerb::Observe] {
        let outcome = done(call_provider(&one, verb, "drain", &drain).await.0);
        assert!(evidence(&outcome).contains(&(Drained, false, "PodsLeft")), "{outcome:?}");
    }
    assert!(site.pods().contains(&"shop/web-0".to_string()), "{:?}", site.pods());
}

/// The ids of machines, and the names of their nodes: every call on the cluster uses the same.
#[tokio::test]
async fn every_call_finds_the_node_of_a_machine_by_one_name() {
    let named = |name: &str| MachineSpec { node_name: name.into(), ..MachineSpec::default() };
    for (id, spec, node_name) in [
        ("GPU_07.A", named(""), "gpu-07-a"),
        ("GPU_07", named(""), "gpu-07"),
        ("n7.example", named(""), "n7.example"),
        // Installed by other means: host names have no dots.
        ("n8.example", named(""), "n8-example"),
        // The ids of machines do not begin so, and most names of nodes do.
        ("tray-1", named("node-1"), "node-1"),
        ("GPU_08", named("gpu-9"), "gpu-9"),
    ] {
        let site = NodeFixture::start().await;
        {
            let mut env = site.api.state.lock();
            let mut other = node(json!({}));
            other["metadata"] = json!({ "name": node_name, "uid": "u-2" });
            env.add_node(other);
            env.add_pod("shop/web-0", json!({}));
            env.add_pod("shop/web-1", json!({ "spec": { "nodeName": node_name } }));
        }
        let one = site.replica();
        let spec = MachineSpec { target_cluster_ref: "c1".into(), ..spec };
        let ask = async |verb, step, effect: &Effect| {
            let target = machine(id, spec.clone());
            done(call_provider_for(&one, verb, step, effect, target).await.0)
        };
        let unschedulable =
            || site.api.state.lock().nodes[node_name]["spec"]["unschedulable"] == json!(true);
        let joined = (InCustomerCluster, true, "Joined:c1");
        let ready = ask(CallVerb::Perform, "ready", &verify(ClusterExpectation::Ready)).await;
        assert_eq!(evidence(&ready)[0], joined, "{id}: {ready:?}");
        let drained = ask(CallVerb::Perform, "drain", &drain(30)).await;
        assert_eq!(evidence(&drained)[0], joined, "{id}: {drained:?}");
        assert_eq!((unschedulable(), site.is_cordoned()), (true, false), "{id}");
        assert_eq!(site.pods(), ["shop/web-0"], "{id}");
        ask(CallVerb::Perform, "drained", &verify(ClusterExpectation::Drained)).await;
        let probed = one.probe(&machine(id, spec.clone())).await.unwrap();
        let probed = CallOutcome { evidence: probed, ..CallOutcome::default() };
        assert_eq!(evidence(&probed), [joined, (Drained, true, "Evicted")], "{id}");
        let nothing = Effect::Join {
            cluster_ref: "c1".into(),
            labels: NodeLabels::new(),
            taints: Vec::new(),
            kubeadm: KubeadmOptions::default(),
        };
        ask(CallVerb::Observe, "join", &nothing).await;
        ask(CallVerb::Perform, "uncordon", &uncordon(false)).await;
        assert!(!unschedulable(), "{id}");
        let leave = Effect::Leave { cluster_ref: "c1".into(), joined_by: None };
        let target = machine(id, spec.clone());
        let stays = call_provider_for(&one, CallVerb::Observe, "leave", &leave, target).await.0;
        assert!(matches!(stays, Ok(ProviderAnswer::Differs(_))), "{id}: {stays:?}");
    }
}

fn verify(expect: ClusterExpectation) -> Effect {
    Effect::Verify { cluster_ref: "c1".into(), expect, advisory: false }
}

/// A cordoned node with pods is not drained, whoever cordoned it.
#[tokio::test]
async fn a_cordoned_node_with_pods_is_not_drained() {
    let site = NodeFixture::start().await;
    site.add_pods();
    site.allow(0);
    site.api.state.lock().kubectl_cordon("n1", true);
    let one = site.replica();
    let check = verify(ClusterExpectation::Drained);
    let fault = call_provider(&one, CallVerb::Perform, "check", &check).await.0.unwrap_err();
    assert_eq!(fault.code, FaultCode::NotInCluster, "{fault}");
    assert!(fault.message.contains("cordoned, with pods that must go: 2"), "{fault}");
    let advisory = Effect::Verify {
        cluster_ref: "c1".into(),
        expect: ClusterExpectation::Drained,
        advisory: true,
    };
    let outcome = done(call_provider(&one, CallVerb::Perform, "look", &advisory).await.0);
    assert!(evidence(&outcome).contains(&(Drained, false, "PodsLeft")), "{outcome:?}");
    // A drain that fails leaves pods behind, and the next probe says so.
    let (answer, _) = call_provider(&one, CallVerb::Perform, "drain", &drain(3)).await;
    assert_eq!(answer.unwrap_err().code, FaultCode::EvictionBlocked);
    let spec = MachineSpec { target_cluster_ref: "c1".into(), ..MachineSpec::default() };
    let probed = one.probe(&machine("n1", spec)).await.unwrap();
    let probed = CallOutcome { evidence: probed, ..CallOutcome::default() };
    assert!(evidence(&probed).contains(&(Drained, false, "PodsLeft")), "{probed:?}");
}

/// The owner sees on the node what was done to it. Without the right to write events all goes on.
#[tokio::test]
async fn what_is_done_to_a_node_is_an_event_on_it() {
    let site = NodeFixture::start().await;
    site.add_pods();
    let one = site.replica();
    done(call_provider(&one, CallVerb::Perform, "drain", &drain(30)).await.0);
    done(call_provider(&one, CallVerb::Perform, "uncordon", &uncordon(false)).await.0);
    let events = site.api.state.lock().events.clone();
    let reasons: Vec<&str> =
        events.values().map(|event| event["reason"].as_str().unwrap()).collect();
    for reason in ["Cordoned", "Drained", "Uncordoned"] {
        assert!(reasons.contains(&reason), "{reason}: {reasons:?}");
    }
    for event in events.values() {
        assert_eq!(event["involvedObject"]["uid"], "u-1", "{event}");
        assert!(event["message"].as_str().unwrap().contains("op-1"), "{event}");
    }
    // A second drain of the same run renews its events.
    done(call_provider(&one, CallVerb::Perform, "drain-2", &drain(30)).await.0);
    assert_eq!(site.api.state.lock().events.len(), events.len());
    site.api.state.lock().events.clear();
    site.api.state.lock().forbidden = vec![("create", "events"), ("patch", "events")];
    done(call_provider(&one, CallVerb::Perform, "uncordon-2", &uncordon(false)).await.0);
    assert!(site.api.state.lock().events.is_empty());
}

/// A drain that a missing right ends is an event too.
#[tokio::test]
async fn a_forbidden_drain_is_an_event_on_the_node() {
    let site = NodeFixture::start().await;
    site.add_pods();
    site.api.state.lock().forbidden = vec![("create", "pods/eviction")];
    let cluster = kubernetes::Settings { refusal_grace: Duration::ZERO, ..Default::default() };
    let settings = Settings { cluster, ..Settings::default() };
    let store = Arc::clone(&site.store) as Arc<dyn ProviderStateStore>;
    let one = Datacenter::new(store, settings);
    let (answer, _) = call_provider(&one, CallVerb::Perform, "drain", &drain(30)).await;
    assert_eq!(answer.unwrap_err().code, FaultCode::LoginRefused);
    let events = site.api.state.lock().events.clone();
    let failed = events.values().find(|event| event["reason"] == "DrainFailed");
    let failed = failed.unwrap_or_else(|| panic!("{events:?}"));
    assert!(failed["message"].as_str().unwrap().contains("pods/eviction"), "{failed}");
}

/// A pod without a controller fails the step at once: waiting does not help.
#[tokio::test]
async fn a_drain_that_would_lose_a_pod_stops_before_it_begins() {
    let site = NodeFixture::start().await;
    site.add_pods();
    let lonely = json!({ "metadata": { "ownerReferences": null } });
    site.api.state.lock().add_pod("shop/lonely-0", lonely);
    let one = site.replica();
    let (answer, _) = call_provider(&one, CallVerb::Perform, "drain", &drain(600)).await;
    let fault = answer.unwrap_err();
    assert_eq!(fault.code, FaultCode::EvictionBlocked, "{fault}");
    assert!(fault.message.contains("--drain-unmanaged-pods"), "{fault}");
    assert_eq!(site.evictions(), 0);
    let all = Effect::Drain {
        cluster_ref: "c1".into(),
        deadline_seconds: Some(30),
        options: DrainOptions::ALL_PODS,
    };
    done(call_provider(&one, CallVerb::Perform, "drain-all", &all).await.0);
    assert_eq!(site.pods(), ["kube-system/etcd-0", "kube-system/proxy-0"]);
}

/// Leaving maintenance without `--uncordon` changes nothing on the node, and says so.
#[tokio::test]
async fn a_check_says_that_a_node_stays_cordoned() {
    let site = NodeFixture::start().await;
    site.api.state.lock().kubectl_cordon("n1", true);
    let check = Effect::Verify {
        cluster_ref: "c1".into(),
        expect: ClusterExpectation::Ready,
        advisory: true,
    };
    let (answer, log) =
        call_provider(&site.replica(), CallVerb::Perform, "check-ready", &check).await;
    done(answer);
    for words in ["stays cordoned", "kubectl uncordon n1", "exit-maintenance n1 --uncordon"] {
        assert!(log.contains(words), "{words}: {log}");
    }
    assert!(site.is_cordoned());
}

#[tokio::test]
async fn a_machine_behind_maas_is_drained_by_the_datacenter_provider() {
    let site = NodeFixture::start().await;
    site.add_pods();
    let maas = Providers::default().with(Arc::new(MaasFixture::new().await.replica()));
    assert!(maas.cluster_provider("maas").is_none());
    // Simulated machines drain nothing real.
    let simulated = maas.clone().with(Arc::new(Sim::in_ram(Speed::Zero)));
    assert!(simulated.cluster_provider("maas").is_none());
    assert_eq!(simulated.cluster_provider("sim").map(|one| one.name()), Some("sim"));
    let all = simulated.with(Arc::new(site.replica()));
    let speaks = all.cluster_provider("maas").expect("the datacenter provider is there");
    done(call_provider(speaks.as_ref(), CallVerb::Perform, "drain", &drain(30)).await.0);
    assert!(site.is_cordoned());
    assert_eq!(site.pods(), ["kube-system/etcd-0", "kube-system/proxy-0"]);
}

#[tokio::test]
async fn a_machine_without_a_node_needs_no_drain() {
    let site = NodeFixture::start().await;
    let one = site.replica();
    let nowhere = Effect::Drain {
        cluster_ref: String::new(),
        deadline_seconds: Some(9),
        options: DrainOptions::default(),
    };
    let alone = [(InCustomerCluster, false, "NotJoined"), (Drained, true, "NotInCluster")];
    let outcome = done(call_provider(&one, CallVerb::Perform, "nowhere", &nowhere).await.0);
    assert!(outcome.message.contains("belongs to no cluster"), "{outcome:?}");
    assert_eq!(evidence(&outcome), alone);
    site.api.state.lock().nodes.clear();
    for (step, effect) in [("drain", drain(9)), ("uncordon", uncordon(false))] {
        for verb in [CallVerb::Observe, CallVerb::Perform] {
            let outcome = done(call_provider(&one, verb, step, &effect).await.0);
            assert!(outcome.message.contains("no node of c1"), "{step}: {outcome:?}");
            assert_eq!(evidence(&outcome), alone, "{step}");
        }
    }
}

/// A concurrent writer changes the node first, twice.
#[tokio::test]
async fn a_cordon_is_written_on_what_was_read() {
    let site = NodeFixture::start().await;
    site.api.trouble(Method::PATCH, Trouble::Race, 2);
    done(call_provider(&site.replica(), CallVerb::Perform, "drain", &drain(30)).await.0);
    assert_eq!(site.cordoned_by(), "op-1");
}

/// The host has a kubeadm that only reports success, and the node appears.
#[tokio::test]
async fn a_node_that_joins_is_given_its_labels_and_taints() {
    let requested = SshdOptions {
        shims: vec![("kubeadm", "#!/bin/sh\nexit 0\n".into())],
        ..SshdOptions::default()
    };
    let Some(sshd) = Sshd::with(&requested) else { return };
    let pki = Pki::new();
    let api = Api::start(&pki).await;
    let store = Arc::new(InMemoryStateStore::default());
    let user = format!("token: {TOKEN}");
    store.set_credential("c1", Secret::Kubeconfig { text: pki.kubeconfig(api.address, &user) });
    let login = sshd.login(sshd.key());
    let LoginSecret::Key { pem, passphrase } = login.proof else { panic!("a key") };
    store.set_credential("host", Secret::Key { user: login.user, pem, passphrase });
    let settings =
        Settings { ssh_credential: "host".into(), ssh: sshd.settings(), ..Settings::default() };
    let provider = Datacenter::new(Arc::clone(&store) as Arc<dyn ProviderStateStore>, settings);
    {
        let mut env = api.state.lock();
        let theirs = json!({ "taints": [{ "key": "theirs", "effect": "NoExecute" }] });
        env.add_node(node(theirs));
        let info = crate::kubernetes::cluster_info(&pki, &format!("https://{}", api.address));
        env.config_maps.insert("cluster-info".into(), info);
    }
    let taint =
        |key: &str, value: &str, effect| Taint { key: key.into(), value: value.into(), effect };
    let join = Effect::Join {
        cluster_ref: "c1".into(),
        labels: NodeLabels::from([("example.com/zone".into(), "a".into())]),
        taints: vec![
            taint("gpu", "", TaintEffect::NoSchedule),
            taint("team", "ml", TaintEffect::NoExecute),
        ],
        kubeadm: KubeadmOptions::default(),
    };
    let spec = || MachineSpec { ssh_endpoint: sshd.endpoint().to_string(), ..Default::default() };
    let step = format!("join-{}", std::process::id());
    let before =
        call_provider_for(&provider, CallVerb::Observe, &step, &join, machine("n1", spec()))
            .await
            .0;
    let Ok(ProviderAnswer::Differs(missing)) = before else { panic!("{before:?}") };
    for words in ["the label example.com/zone=a", "the taint gpu:NoSchedule", "team=ml:NoExecute"] {
        assert!(missing.contains(words), "{words}: {missing}");
    }
    let (answer, log) =
        call_provider_for(&provider, CallVerb::Perform, &step, &join, machine("n1", spec())).await;
    done(answer);
    assert!(log.contains("labelled example.com/zone=a"), "{log}");
    assert!(log.contains("tainted gpu:NoSchedule, team=ml:NoExecute"), "{log}");
    let observed = api.state.lock().nodes["n1"].clone();
    assert_eq!(observed["metadata"]["labels"]["example.com/zone"], "a");
    let keys: Vec<&str> = observed["spec"]["taints"]
        .as_array()
        .unwrap()
        .iter()
        .map(|taint| taint["key"].as_str().unwrap())
        .collect();
    assert_eq!(keys, ["theirs", "gpu", "team"]);
    done(
        call_provider_for(&provider, CallVerb::Observe, &step, &join, machine("n1", spec()))
            .await
            .0,
    );
}

/// Every step on the cluster uses the name of the spec, and not the id of the machine.
#[tokio::test]
async fn a_machine_with_a_node_name_is_that_node() {
    let env = NodeFixture::start().await;
    let provider = env.replica();
    let spec = MachineSpec { node_name: "n1".into(), ..MachineSpec::default() };
    for (step, effect, cordoned) in [
        ("ready", verify(ClusterExpectation::Ready), false),
        ("drain", drain(5), true),
        ("drained", verify(ClusterExpectation::Drained), true),
        ("uncordon", uncordon(true), false),
    ] {
        let target = machine("tray-1", spec.clone());
        let answer = call_provider_for(&provider, CallVerb::Perform, step, &effect, target).await;
        let outcome = done(answer.0);
        assert!(outcome.message.contains("its node in c1 is ready"), "{step}: {outcome:?}");
        assert_eq!(env.is_cordoned(), cordoned, "{step}");
    }
    let ready = verify(ClusterExpectation::Ready);
    let unnamed = machine("tray-1", MachineSpec::default());
    let answer = call_provider_for(&provider, CallVerb::Perform, "other", &ready, unnamed).await.0;
    assert_eq!(answer.unwrap_err().code, FaultCode::NotInCluster);
}
