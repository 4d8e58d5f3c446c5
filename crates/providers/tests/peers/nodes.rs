//! A machine's Kubernetes node, through the datacenter provider and the fake API server: drained as
//! budgets allow, uncordoned, and given its labels and taints when it joins.

use crate::kube_api::{Api, Budget, TOKEN, Trouble};
use crate::kube_pki::Pki;
use crate::maas_desk::Desk;
use crate::sshd::{Sshd, Wish};
use crate::until;
use axum::http::Method;
use model::condition::ConditionType::{Drained, InCustomerCluster};
use model::effect::{Answer, Effect, Key, NodeLabels, Order, Outcome, Taint, TaintEffect, Verb};
use model::fault::{Code, Fault};
use model::id::{MachineId, RunId};
use model::machine::MachineSpec;
use model::target::TargetId;
use providers::datacenter::{Datacenter, Settings};
use providers::sim::{Sim, Speed};
use providers::ssh::Proof;
use providers::state_store::{InMemoryStateStore, ProviderStateStore, Secret};
use providers::{Journal, Provider, Providers, Target};
use serde_json::{Value, json};
use std::sync::Arc;

const BUDGET: Budget = Budget { name: "db-budget", app: "db", allowed: 0 };

/// A cluster with one node, and the state store.
struct Site {
    api: Api,
    store: Arc<InMemoryStateStore>,
}

impl Site {
    async fn start() -> Self {
        let pki = Pki::new();
        let api = Api::start(&pki).await;
        let store = Arc::new(InMemoryStateStore::default());
        let text = pki.kubeconfig(api.address, &format!("token: {TOKEN}"));
        store.set("c1", Secret::Kubeconfig { text });
        let site = Self { api, store };
        site.api.world.lock().add_node(node(json!({})));
        site
    }

    /// One replica. Its state is in the store, so another replica can continue.
    fn replica(&self) -> Datacenter {
        Datacenter::new(Arc::clone(&self.store) as Arc<dyn ProviderStateStore>, Settings::default())
    }

    fn add_pods(&self) {
        let mut world = self.api.world.lock();
        world.add_pod("shop/web-0", json!({}));
        world.add_pod("shop/db-0", json!({ "metadata": { "labels": { "app": "db" } } }));
        let owner = json!([{ "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d", "controller": true }]);
        world.add_pod("kube-system/proxy-0", json!({ "metadata": { "ownerReferences": owner } }));
        let mirror = json!({ "kubernetes.io/config.mirror": "x" });
        world.add_pod("kube-system/etcd-0", json!({ "metadata": { "annotations": mirror } }));
    }

    fn evictions(&self) -> usize {
        let world = self.api.world.lock();
        world.requests.iter().filter(|one| one.contains("/eviction")).count()
    }

    fn pods(&self) -> Vec<String> {
        self.api.world.lock().pods.keys().cloned().collect()
    }

    fn node(&self) -> Value {
        self.api.world.lock().nodes["n1"].clone()
    }

    fn is_cordoned(&self) -> bool {
        self.node()["spec"]["unschedulable"] == json!(true)
    }

    fn cordoned_by(&self) -> Value {
        self.node()["metadata"]["annotations"]["farrier/cordoned-by"].clone()
    }

    fn allow(&self, allowed: usize) {
        self.api.world.lock().budgets = vec![Budget { allowed, ..BUDGET }];
    }
}

fn node(spec: Value) -> Value {
    json!({
        "kind": "Node", "apiVersion": "v1", "metadata": { "name": "n1", "uid": "u-1" }, "spec": spec,
        "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
    })
}

fn drain(deadline_seconds: u32) -> Effect {
    Effect::Drain { cluster_ref: "c1".into(), deadline_seconds: Some(deadline_seconds) }
}

fn uncordon(own: bool) -> Effect {
    Effect::Uncordon { cluster_ref: "c1".into(), own }
}

/// Calls the provider for node n1 in run op-1. Returns the answer and the log.
async fn ask(
    provider: &dyn Provider,
    verb: Verb,
    step: &str,
    effect: &Effect,
) -> (Result<Answer, Fault>, String) {
    ask_at(provider, verb, step, effect, machine("n1", MachineSpec::default())).await
}

fn machine(id: &str, spec: MachineSpec) -> Target {
    Target { id: TargetId::from(&MachineId::trusted(id)), spec }
}

async fn ask_at(
    provider: &dyn Provider,
    verb: Verb,
    step: &str,
    effect: &Effect,
    target: Target,
) -> (Result<Answer, Fault>, String) {
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

#[track_caller]
fn done(answer: Result<Answer, Fault>) -> Outcome {
    match answer {
        Ok(Answer::Done(outcome)) => outcome,
        other => panic!("{other:?}"),
    }
}

fn proof(outcome: &Outcome) -> Vec<(model::condition::ConditionType, bool, &str)> {
    outcome.evidence.iter().map(|one| (one.condition, one.status, one.reason.as_str())).collect()
}

#[tokio::test]
async fn a_node_is_cordoned_and_emptied_of_what_must_go() {
    let site = Site::start().await;
    site.add_pods();
    let one = site.replica();
    let (before, _) = ask(&one, Verb::Observe, "drain", &drain(30)).await;
    assert_eq!(before, Ok(Answer::Differs("its node in c1 takes work".into())));
    assert_eq!(ask(&one, Verb::GetStatus, "drain", &drain(30)).await.0, Ok(Answer::NeverStarted));
    assert_eq!(ask(&one, Verb::Follow, "drain", &drain(30)).await.0, Ok(Answer::NeverStarted));
    let (answer, log) = ask(&one, Verb::Perform, "drain", &drain(30)).await;
    let outcome = done(answer);
    let expected = [(InCustomerCluster, true, "Joined:c1"), (Drained, true, "Evicted")];
    assert_eq!(proof(&outcome), expected, "{outcome:?}");
    assert_eq!(site.pods(), ["kube-system/etcd-0", "kube-system/proxy-0"]);
    assert!(site.is_cordoned());
    assert_eq!(site.cordoned_by(), "op-1");
    for words in ["cordoning n1 in c1", "shop/web-0 is evicted", "shop/db-0 is evicted"] {
        assert_eq!(log.matches(words).count(), 1, "{words}: {log}");
    }
    // Another replica with the same key reports it as done and does not repeat it.
    let (other, evicted) = (site.replica(), site.evictions());
    for verb in [Verb::GetStatus, Verb::Follow, Verb::Perform, Verb::Stop, Verb::Observe] {
        let again = done(ask(&other, verb, "drain", &drain(30)).await.0);
        assert_eq!(proof(&again), expected, "{verb:?}");
    }
    assert_eq!(site.evictions(), evicted);
}

/// The node was installed by other means, and the machine's id is not its host name.
#[tokio::test]
async fn a_node_is_drained_and_let_go_by_the_name_of_its_host() {
    let site = Site::start().await;
    {
        let mut world = site.api.world.lock();
        let mut other = node(json!({}));
        other["metadata"] = json!({ "name": "gpu-07-a", "uid": "u-2" });
        world.add_node(other);
        world.add_pod("shop/web-0", json!({}));
        world.add_pod("shop/web-1", json!({ "spec": { "nodeName": "gpu-07-a" } }));
    }
    let one = site.replica();
    let ask = |verb, step, effect| {
        let target = machine("GPU_07.A", MachineSpec::default());
        let one = &one;
        async move { done(ask_at(one, verb, step, &effect, target).await.0) }
    };
    let unschedulable =
        || site.api.world.lock().nodes["gpu-07-a"]["spec"]["unschedulable"] == json!(true);
    let drained = ask(Verb::Perform, "drain", drain(30)).await;
    assert_eq!(proof(&drained)[0], (InCustomerCluster, true, "Joined:c1"), "{drained:?}");
    assert_eq!((unschedulable(), site.is_cordoned()), (true, false));
    assert_eq!(site.pods(), ["shop/web-0"]);
    ask(Verb::Perform, "uncordon", uncordon(false)).await;
    assert!(!unschedulable());
}

#[tokio::test]
async fn a_machine_behind_maas_is_drained_by_who_speaks_to_its_cluster() {
    let site = Site::start().await;
    site.add_pods();
    let maas = Providers::default().with(Arc::new(Desk::new().await.replica()));
    assert!(maas.speaks_to_clusters("maas").is_none());
    // Simulated machines drain nothing real.
    let simulated = maas.clone().with(Arc::new(Sim::in_ram(Speed::Zero)));
    assert!(simulated.speaks_to_clusters("maas").is_none());
    assert_eq!(simulated.speaks_to_clusters("sim").map(|one| one.name()), Some("sim"));
    let all = simulated.with(Arc::new(site.replica()));
    let speaks = all.speaks_to_clusters("maas").expect("the datacenter provider is there");
    done(ask(speaks.as_ref(), Verb::Perform, "drain", &drain(30)).await.0);
    assert!(site.is_cordoned());
    assert_eq!(site.pods(), ["kube-system/etcd-0", "kube-system/proxy-0"]);
}

#[tokio::test]
async fn a_budget_is_waited_for() {
    let site = Site::start().await;
    site.add_pods();
    site.allow(0);
    let one = site.replica();
    let drained = tokio::spawn(async move { ask(&one, Verb::Perform, "drain", &drain(60)).await });
    until("pods were evicted", async || site.evictions() >= 3).await;
    let seen = ask(&site.replica(), Verb::Observe, "drain", &drain(60)).await.0;
    let left = "pods on its node in c1 that must go: 1, such as shop/db-0";
    assert_eq!(seen, Ok(Answer::Differs(left.into())));
    site.allow(1);
    let (answer, log) = drained.await.unwrap();
    done(answer);
    // An unchanged obstacle is logged once.
    assert_eq!(log.matches("shop/db-0 may not go yet").count(), 1, "{log}");
    assert!(log.contains("db-budget needs 2 healthy pods"), "{log}");
}

#[tokio::test]
async fn a_budget_that_never_allows_it_is_named() {
    let site = Site::start().await;
    site.add_pods();
    site.allow(0);
    let (answer, _) = ask(&site.replica(), Verb::Perform, "drain", &drain(4)).await;
    let fault = answer.unwrap_err();
    assert_eq!(fault.code, Code::EvictionBlocked, "{fault}");
    for words in ["`n1`", "shop/db-0", "db-budget needs 2 healthy pods"] {
        assert!(fault.said.contains(words), "{words}: {fault}");
    }
    assert!(site.is_cordoned(), "no pod is scheduled to it meanwhile");
    assert!(site.pods().contains(&"shop/db-0".to_string()), "no pod is deleted by force");
}

/// The process crashes while it waits for a budget, and another continues from what the node shows.
#[tokio::test]
async fn whoever_comes_after_a_crash_goes_on() {
    let site = Site::start().await;
    site.add_pods();
    site.allow(0);
    let one = site.replica();
    let killed = tokio::spawn(async move { ask(&one, Verb::Perform, "drain", &drain(60)).await });
    until("pods were evicted", async || site.evictions() >= 2).await;
    killed.abort();
    let _ = killed.await;
    site.allow(1);
    let other = site.replica();
    assert_eq!(ask(&other, Verb::GetStatus, "drain", &drain(60)).await.0, Ok(Answer::UnderWay));
    let (answer, log) = ask(&other, Verb::Follow, "drain", &drain(60)).await;
    done(answer);
    assert!(!log.contains("web-0") && log.contains("db-0"), "only what was left: {log}");
}

#[tokio::test]
async fn a_stop_ends_the_evictions_and_leaves_the_cordon() {
    let site = Site::start().await;
    site.add_pods();
    site.allow(0);
    let one = site.replica();
    let drained = tokio::spawn(async move { ask(&one, Verb::Perform, "drain", &drain(60)).await });
    until("pods were evicted", async || site.evictions() >= 2).await;
    let other = site.replica();
    assert_eq!(ask(&other, Verb::Stop, "drain", &drain(60)).await.0, Ok(Answer::Stopped));
    site.allow(1);
    let fault = drained.await.unwrap().0.unwrap_err();
    assert!(fault.said.contains("was stopped"), "{fault}");
    let evicted = site.evictions();
    for verb in [Verb::Perform, Verb::Follow] {
        let fault = ask(&other, verb, "drain", &drain(60)).await.0.unwrap_err();
        assert_eq!(fault.code, Code::EffectFailed, "{verb:?}: {fault}");
    }
    let inquired = ask(&other, Verb::GetStatus, "drain", &drain(60)).await.0;
    assert!(matches!(inquired, Ok(Answer::Unknown(_))), "{inquired:?}");
    assert_eq!(ask(&other, Verb::Stop, "drain", &drain(60)).await.0, Ok(Answer::Stopped));
    assert_eq!(site.evictions(), evicted);
    assert!(site.is_cordoned());
    // A key that was stopped before it began never begins.
    assert_eq!(ask(&other, Verb::Stop, "late", &drain(60)).await.0, Ok(Answer::Stopped));
    let fault = ask(&other, Verb::Perform, "late", &drain(60)).await.0.unwrap_err();
    assert!(fault.said.contains("stopped before it began"), "{fault}");
    assert_eq!(ask(&other, Verb::GetStatus, "late", &drain(60)).await.0, Ok(Answer::NeverStarted));
}

#[tokio::test]
async fn an_undo_takes_back_what_the_run_did_and_no_more() {
    let site = Site::start().await;
    let one = site.replica();
    done(ask(&one, Verb::Perform, "drain", &drain(30)).await.0);
    let differs = ask(&one, Verb::Observe, "undo-drain", &uncordon(true)).await.0;
    assert_eq!(differs, Ok(Answer::Differs("its node in c1 is cordoned".into())));
    let released = done(ask(&one, Verb::Perform, "undo-drain", &uncordon(true)).await.0);
    let open = [(InCustomerCluster, true, "Joined:c1"), (Drained, false, "Schedulable")];
    assert_eq!(proof(&released), open);
    assert!(!site.is_cordoned() && site.cordoned_by().is_null(), "{}", site.node());

    // The owner has cordoned it: neither a drain nor its undo changes that.
    site.api.world.lock().add_node(node(json!({ "unschedulable": true })));
    done(ask(&one, Verb::Perform, "drain-2", &drain(30)).await.0);
    assert!(site.cordoned_by().is_null());
    let kept = done(ask(&one, Verb::Perform, "undo-drain-2", &uncordon(true)).await.0);
    assert!(kept.said.contains("it was so before this operation"), "{kept:?}");
    assert!(site.is_cordoned());
    // An explicit uncordon removes it.
    let (other, effect) = (site.replica(), uncordon(false));
    let released = done(ask(&other, Verb::Perform, "uncordon", &effect).await.0);
    assert_eq!(proof(&released), open);
    assert_eq!(ask(&other, Verb::GetStatus, "uncordon", &effect).await.0, Ok(Answer::UnderWay));
    done(ask(&other, Verb::Follow, "uncordon", &effect).await.0);
    assert_eq!(ask(&other, Verb::Stop, "barred", &effect).await.0, Ok(Answer::Stopped));
    let fault = ask(&other, Verb::Perform, "barred", &effect).await.0.unwrap_err();
    assert!(fault.said.contains("stopped before it began"), "{fault}");
}

#[tokio::test]
async fn where_there_is_no_node_there_is_nothing_to_do() {
    let site = Site::start().await;
    let one = site.replica();
    let nowhere = Effect::Drain { cluster_ref: String::new(), deadline_seconds: Some(9) };
    let alone = [(InCustomerCluster, false, "NotJoined"), (Drained, true, "NotInCluster")];
    let outcome = done(ask(&one, Verb::Perform, "nowhere", &nowhere).await.0);
    assert!(outcome.said.contains("belongs to no cluster"), "{outcome:?}");
    assert_eq!(proof(&outcome), alone);
    site.api.world.lock().nodes.clear();
    for (step, effect) in [("drain", drain(9)), ("uncordon", uncordon(false))] {
        for verb in [Verb::Observe, Verb::Perform] {
            let outcome = done(ask(&one, verb, step, &effect).await.0);
            assert!(outcome.said.contains("no node of c1"), "{step}: {outcome:?}");
            assert_eq!(proof(&outcome), alone, "{step}");
        }
    }
}

#[tokio::test]
async fn a_cluster_that_is_away_for_a_moment_is_asked_again() {
    let site = Site::start().await;
    site.add_pods();
    site.api.trouble(Method::GET, Trouble::Status(503), 2);
    let (answer, log) = ask(&site.replica(), Verb::Perform, "drain", &drain(60)).await;
    done(answer);
    assert_eq!(log.matches("asking again").count(), 2, "{log}");
    // A lasting outage is a fault of the cluster, and certainly nothing happened.
    site.api.trouble(Method::GET, Trouble::Status(503), 100);
    let fault = ask(&site.replica(), Verb::Perform, "again", &drain(3)).await.0.unwrap_err();
    assert_eq!(fault.code, Code::ClusterUnreachable, "{fault}");
}

/// A machine that returns to its vendor is often broken, and no kubelet confirms that a pod has
/// ended.
#[tokio::test]
async fn a_broken_node_is_not_waited_for_for_ever() {
    let site = Site::start().await;
    {
        let mut world = site.api.world.lock();
        let gone = json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } });
        world.add_pod("shop/lost-0", gone);
        world.stubborn.insert("shop/lost-0".into());
    }
    // While the node is ready, a pod that does not end blocks the drain.
    let one = site.replica();
    let fault = ask(&one, Verb::Perform, "ready", &drain(3)).await.0.unwrap_err();
    assert_eq!(fault.code, Code::EvictionBlocked, "{fault}");
    assert!(fault.said.contains("shop/lost-0 (should have been gone"), "{fault}");
    let mut broken = site.node();
    broken["status"]["conditions"][0]["status"] = json!("Unknown");
    site.api.world.lock().add_node(broken);
    let outcome = done(ask(&one, Verb::Perform, "broken", &drain(30)).await.0);
    assert!(outcome.said.contains("not ready"), "{outcome:?}");
    assert!(proof(&outcome).contains(&(Drained, true, "Evicted")), "{outcome:?}");
    done(ask(&one, Verb::Observe, "broken", &drain(30)).await.0);
    // A pod that was just evicted still gets its grace period.
    site.api
        .world
        .lock()
        .add_pod("shop/new-0", json!({ "spec": { "terminationGracePeriodSeconds": 600 } }));
    let fault = ask(&one, Verb::Perform, "new", &drain(3)).await.0.unwrap_err();
    assert!(fault.said.contains("shop/new-0") && !fault.said.contains("lost-0"), "{fault}");
}

/// A concurrent writer changes the node first, twice.
#[tokio::test]
async fn a_cordon_is_written_on_what_was_read() {
    let site = Site::start().await;
    site.api.trouble(Method::PATCH, Trouble::Race, 2);
    done(ask(&site.replica(), Verb::Perform, "drain", &drain(30)).await.0);
    assert_eq!(site.cordoned_by(), "op-1");
}

/// The host has a kubeadm that only reports success, and the node appears.
#[tokio::test]
async fn a_node_that_joins_is_given_its_labels_and_taints() {
    let wish = Wish { shims: vec![("kubeadm", "#!/bin/sh\nexit 0\n".into())], ..Wish::default() };
    let Some(sshd) = Sshd::with(&wish) else { return };
    let pki = Pki::new();
    let api = Api::start(&pki).await;
    let store = Arc::new(InMemoryStateStore::default());
    let user = format!("token: {TOKEN}");
    store.set("c1", Secret::Kubeconfig { text: pki.kubeconfig(api.address, &user) });
    let login = sshd.login(sshd.key());
    let Proof::Key { pem, passphrase } = login.proof else { panic!("a key") };
    store.set("host", Secret::Key { user: login.user, pem, passphrase });
    let settings =
        Settings { ssh_credential: "host".into(), ssh: sshd.settings(), ..Settings::default() };
    let provider = Datacenter::new(Arc::clone(&store) as Arc<dyn ProviderStateStore>, settings);
    {
        let mut world = api.world.lock();
        let theirs = json!({ "taints": [{ "key": "theirs", "effect": "NoExecute" }] });
        world.add_node(node(theirs));
        let info = crate::kubernetes::cluster_info(&pki, &format!("https://{}", api.address));
        world.config_maps.insert("cluster-info".into(), info);
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
    };
    let spec = || MachineSpec { ssh_endpoint: sshd.endpoint().to_string(), ..Default::default() };
    let step = format!("join-{}", std::process::id());
    let before = ask_at(&provider, Verb::Observe, &step, &join, machine("n1", spec())).await.0;
    let Ok(Answer::Differs(missing)) = before else { panic!("{before:?}") };
    for words in ["the label example.com/zone=a", "the taint gpu:NoSchedule", "team=ml:NoExecute"] {
        assert!(missing.contains(words), "{words}: {missing}");
    }
    let (answer, log) = ask_at(&provider, Verb::Perform, &step, &join, machine("n1", spec())).await;
    done(answer);
    assert!(log.contains("labelled example.com/zone=a"), "{log}");
    assert!(log.contains("tainted gpu:NoSchedule, team=ml:NoExecute"), "{log}");
    let seen = api.world.lock().nodes["n1"].clone();
    assert_eq!(seen["metadata"]["labels"]["example.com/zone"], "a");
    let keys: Vec<&str> = seen["spec"]["taints"]
        .as_array()
        .unwrap()
        .iter()
        .map(|taint| taint["key"].as_str().unwrap())
        .collect();
    assert_eq!(keys, ["theirs", "gpu", "team"]);
    done(ask_at(&provider, Verb::Observe, &step, &join, machine("n1", spec())).await.0);
}
