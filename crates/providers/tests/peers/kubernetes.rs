//! The Kubernetes client against the fake API server: what it reads, what it sends, and every
//! failure.

mod evictions;

use crate::DEADLINE;
use crate::kube_access::Admission;
use crate::kube_api::{Api, Budget, SharedState, TOKEN, Trouble};
use crate::kube_pki::{Pki, Validity};
use axum::http::{Method, Request, StatusCode};
use model::effect::DrainOptions;
use model::fault::{Fault, FaultCode};
use providers::kubernetes::{
    Cluster, JoinMaterial, NodeTaintEffect, PodDecision, PodEviction, Settings, Taint,
};
use secrecy::ExposeSecret;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use tower::ServiceExt;

/// A server with one node, and a client of it.
async fn start() -> (Api, Cluster) {
    let pki = Pki::new();
    let api = Api::start(&pki).await;
    api.state.lock().add_node(node("n1"));
    let cluster = connect(&pki, &api, &format!("token: {TOKEN}"));
    (api, cluster)
}

fn connect(pki: &Pki, api: &Api, user: &str) -> Cluster {
    let settings = Settings {
        deadline: Duration::from_secs(10),
        refusal_grace: Duration::ZERO,
        token_folder: None,
    };
    Cluster::from_kubeconfig(&pki.kubeconfig(api.address, user), settings).unwrap()
}

async fn mint(cluster: &Cluster, ttl: Duration) -> Result<JoinMaterial, Fault> {
    cluster.join_material(&cluster.draw_token()?, ttl).await
}

pub fn node(name: &str) -> Value {
    json!({
        "kind": "Node", "apiVersion": "v1",
        "metadata": { "name": name, "uid": "u-1", "labels": { "zone": "a", "old": "x" } },
        "spec": { "taints": [{ "key": "theirs", "effect": "NoExecute" }] },
        "status": {
            "addresses": [
                { "type": "Hostname", "address": name },
                { "type": "InternalIP", "address": "10.0.0.7" },
            ],
            "conditions": [
                { "type": "Ready", "status": "True" },
                { "type": "DiskPressure", "status": "True", "reason": "Full", "message": "disk is full" },
                { "type": "PIDPressure", "status": "False" },
            ],
            "nodeInfo": {
                "architecture": "amd64", "bootID": "", "containerRuntimeVersion": "", "kernelVersion": "",
                "kubeProxyVersion": "", "kubeletVersion": "v1.33.1", "machineID": "", "operatingSystem": "linux",
                "osImage": "", "systemUUID": "",
            },
        },
    })
}

pub fn cluster_info(pki: &Pki, server: &str) -> Value {
    let authority = pki.authority_data();
    let kubeconfig = format!(
        "apiVersion: v1\nkind: Config\nclusters:\n- name: ''\n  cluster:\n    server: {server}\n    certificate-authority-data: {authority}\n"
    );
    json!({ "kind": "ConfigMap", "apiVersion": "v1", "metadata": { "name": "cluster-info" }, "data": { "kubeconfig": kubeconfig } })
}

/// The code of the fault, after checking that its message names the server and these words.
fn code_of(fault: &Fault, words: &[&str]) -> FaultCode {
    for name in words {
        assert!(fault.message.contains(name), "{name}: {fault}");
    }
    assert!(
        fault.message.contains("https://127.0.0.1:") && !fault.message.contains(TOKEN),
        "{fault}"
    );
    fault.code
}

#[tokio::test]
async fn a_node_is_read_as_the_cluster_shows_it() {
    let (_api, cluster) = start().await;
    let node = cluster.node("n1").await.unwrap().unwrap();
    assert!(node.ready && node.schedulable);
    assert_eq!((node.uid.as_str(), node.kubelet_version.as_str()), ("u-1", "v1.33.1"));
    assert_eq!(node.internal_addresses, ["10.0.0.7"]);
    assert_eq!(node.labels["zone"], "a");
    assert_eq!(
        node.taints,
        [Taint { key: "theirs".into(), value: None, effect: NodeTaintEffect::NoExecute }]
    );
    assert_eq!(
        node.bad_conditions.iter().map(|bad| bad.message.as_str()).collect::<Vec<_>>(),
        ["disk is full"]
    );
    assert_eq!(cluster.node("n2").await.unwrap(), None);
}

#[tokio::test]
async fn a_node_is_cordoned_labelled_and_uncordoned() {
    let (api, cluster) = start().await;
    for by in ["op-1", "op-2"] {
        let node = cluster.cordon("n1", by).await.unwrap();
        // A second cordon finds it done, and by which run.
        assert_eq!((node.schedulable, node.cordoned_by.as_deref()), (false, Some("op-1")));
    }
    let stored = cluster.uncordon("n1", Some("op-2")).await.unwrap().unwrap();
    assert!(!stored.schedulable && stored.is_left_alone(Some("op-2")));
    for owner in [Some("op-1"), None] {
        let node = cluster.uncordon("n1", owner).await.unwrap().unwrap();
        assert_eq!((node.schedulable, node.cordoned_by), (true, None));
    }
    let labels = BTreeMap::from([
        ("farrier/run".to_owned(), Some("r1".to_owned())),
        ("old".to_owned(), None),
    ]);
    let node = cluster.label("n1", &labels).await.unwrap();
    let desired = BTreeMap::from([("farrier/run", "r1"), ("zone", "a")]);
    assert_eq!(
        node.labels.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect::<BTreeMap<_, _>>(),
        desired
    );
    let patches: Vec<String> = api
        .state
        .lock()
        .requests
        .iter()
        .filter(|request| request.starts_with("PATCH"))
        .cloned()
        .collect();
    assert!(patches.iter().all(|request| request.contains("fieldManager=farrier")), "{patches:?}");

    cluster.remove_node("n1").await.unwrap();
    assert_eq!(cluster.node("n1").await.unwrap(), None);
    cluster.remove_node("n1").await.unwrap();
    let fault = cluster.cordon("n1", "op-1").await.unwrap_err();
    assert_eq!(code_of(&fault, &["no node `n1`"]), FaultCode::NotInCluster);
    assert_eq!(cluster.uncordon("n1", None).await.unwrap(), None);
}

#[tokio::test]
async fn taints_are_set_beside_those_of_others() {
    let (api, cluster) = start().await;
    let ours = Taint {
        key: "farrier".into(),
        value: Some("repair".into()),
        effect: NodeTaintEffect::NoSchedule,
    };
    // A concurrent writer is faster twice.
    api.trouble(Method::PATCH, Trouble::Race, 2);
    let node = cluster.taint("n1", std::slice::from_ref(&ours), &[]).await.unwrap();
    assert_eq!(node.taints.len(), 2);
    assert_eq!(node.taints[1], ours);
    let patches =
        |api: &Api| api.state.lock().requests.iter().filter(|r| r.starts_with("PATCH")).count();
    assert_eq!(patches(&api), 3);
    let again = cluster.taint("n1", std::slice::from_ref(&ours), &[]).await.unwrap();
    assert_eq!((again.taints.len(), patches(&api)), (2, 3), "nothing to do");
    let node = cluster.taint("n1", &[], std::slice::from_ref(&ours)).await.unwrap();
    assert_eq!(node.taints.len(), 1);
    api.trouble(Method::PATCH, Trouble::Race, 10);
    let fault = cluster.taint("n1", std::slice::from_ref(&ours), &[]).await.unwrap_err();
    assert_eq!(code_of(&fault, &["`n1`"]), FaultCode::EffectFailed);
    let fault = cluster.taint("n9", &[ours], &[]).await.unwrap_err();
    assert_eq!(code_of(&fault, &["`n9`"]), FaultCode::NotInCluster);
}

#[tokio::test]
async fn a_token_is_created_and_deleted() {
    let pki = Pki::new();
    let api = Api::start(&pki).await;
    api.state
        .lock()
        .config_maps
        .insert("cluster-info".into(), cluster_info(&pki, "https://10.0.0.1:6443"));
    let cluster = connect(&pki, &api, &format!("token: {TOKEN}"));
    let first = mint(&cluster, Duration::from_secs(600)).await.unwrap();
    let second = mint(&cluster, Duration::from_secs(600)).await.unwrap();
    assert_ne!(first.token_id, second.token_id);
    assert_ne!(first.token.expose_secret(), second.token.expose_secret());
    assert_eq!(first.server, "10.0.0.1:6443");
    let digest = ring::digest::digest(&ring::digest::SHA256, &pki.authority_key);
    let hash: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(first.ca_hashes, [format!("sha256:{hash}")]);
    let name = format!("bootstrap-token-{}", first.token_id);
    let secret = api.state.lock().secrets[&name].clone();
    assert_eq!(secret["type"], "bootstrap.kubernetes.io/token");
    let data = &secret["stringData"];
    let complete = format!(
        "{}.{}",
        data["token-id"].as_str().unwrap(),
        data["token-secret"].as_str().unwrap()
    );
    assert_eq!(complete, first.token.expose_secret());
    assert_eq!(data["expiration"].as_str().unwrap(), first.expires_at.to_string());
    let left = first.expires_at.as_second() - jiff::Timestamp::now().as_second();
    assert!((590..=600).contains(&left), "{left}");
    for usage in ["usage-bootstrap-authentication", "usage-bootstrap-signing"] {
        assert_eq!(data[usage], "true");
    }
    assert_eq!(data["auth-extra-groups"], "system:bootstrappers:kubeadm:default-node-token");

    cluster.delete_token(&first.token_id).await.unwrap();
    cluster.delete_token(&first.token_id).await.unwrap();
    let left: Vec<String> = api.state.lock().secrets.keys().cloned().collect();
    assert_eq!(left, [format!("bootstrap-token-{}", second.token_id)]);
}

#[tokio::test]
async fn a_failed_join_leaves_no_token() {
    let (api, cluster) = start().await;
    let ttl = Duration::from_secs(600);
    let fault = mint(&cluster, ttl).await.unwrap_err();
    assert_eq!(code_of(&fault, &["cluster-info", "kubeadm"]), FaultCode::NotSupported);
    let odd = json!({ "kind": "ConfigMap", "apiVersion": "v1", "metadata": {}, "data": { "kubeconfig": "clusters: []" } });
    api.state.lock().config_maps.insert("cluster-info".into(), odd);
    let fault = mint(&cluster, ttl).await.unwrap_err();
    assert_eq!(code_of(&fault, &["names no cluster"]), FaultCode::NotSupported);
    for ttl in [Duration::ZERO, Duration::from_secs(25 * 60 * 60)] {
        assert_eq!(mint(&cluster, ttl).await.unwrap_err().code, FaultCode::NotSupported);
    }
    assert!(api.state.lock().secrets.is_empty());
}

#[tokio::test]
async fn a_lost_change_is_distinguished_from_a_refused_one() {
    let (api, cluster) = start().await;
    for failure in [Trouble::Status(500), Trouble::Status(504), Trouble::Cut] {
        api.trouble(Method::GET, failure, 1);
        let fault = cluster.node("n1").await.unwrap_err();
        assert_eq!(
            code_of(&fault, &["get nodes `n1`"]),
            FaultCode::ClusterUnreachable,
            "{failure:?}"
        );
        api.trouble(Method::PATCH, failure, 1);
        let fault = cluster.cordon("n1", "op-1").await.unwrap_err();
        assert_eq!(code_of(&fault, &["patch nodes `n1`"]), FaultCode::AnswerLost, "{failure:?}");
    }
    assert!(
        !cluster.node("n1").await.unwrap().unwrap().schedulable,
        "the line was cut after it had happened"
    );
    api.trouble(Method::PATCH, Trouble::Status(503), 1);
    assert_eq!(cluster.uncordon("n1", None).await.unwrap_err().code, FaultCode::ClusterUnreachable);
    cluster.uncordon("n1", None).await.unwrap();
}

#[tokio::test]
async fn a_proxy_answer_is_no_answer() {
    let (api, cluster) = start().await;
    api.trouble(Method::DELETE, Trouble::Proxy(404), 1);
    assert_eq!(cluster.remove_node("n1").await.unwrap_err().code, FaultCode::AnswerGarbled);
    assert!(cluster.node("n1").await.unwrap().is_some(), "the node does not count as deleted");
    api.trouble(Method::GET, Trouble::Proxy(404), 1);
    assert_eq!(cluster.node("n1").await.unwrap_err().code, FaultCode::AnswerGarbled);
    api.trouble(Method::GET, Trouble::Proxy(502), 1);
    assert_eq!(cluster.node("n1").await.unwrap_err().code, FaultCode::ClusterUnreachable);
}

#[tokio::test]
async fn a_success_with_a_wrong_body_is_garbled() {
    let pki = Pki::new();
    let api = Api::start(&pki).await;
    {
        let mut env = api.state.lock();
        env.add_node(node("n1"));
        env.add_pod("shop/web", json!({}));
        env.config_maps.insert("cluster-info".into(), cluster_info(&pki, "https://10.0.0.1:6443"));
    }
    let cluster = connect(&pki, &api, &format!("token: {TOKEN}"));
    for words in ["<html>welcome</html>", "{}", r#"{"metadata":{"name":"other"}}"#, "", "[]"] {
        let failure = Trouble::RawBody(words);
        api.trouble(Method::GET, failure, 1);
        assert_eq!(cluster.node("n1").await.unwrap_err().code, FaultCode::AnswerGarbled, "{words}");
        api.trouble(Method::PATCH, failure, 1);
        assert_eq!(
            cluster.cordon("n1", "op-1").await.unwrap_err().code,
            FaultCode::AnswerGarbled,
            "{words}"
        );
        api.trouble(Method::DELETE, failure, 1);
        assert_eq!(
            cluster.remove_node("n1").await.unwrap_err().code,
            FaultCode::AnswerGarbled,
            "{words}"
        );
        api.trouble(Method::POST, failure, 1);
        let fault = mint(&cluster, Duration::from_secs(60)).await.unwrap_err();
        assert_eq!(fault.code, FaultCode::AnswerGarbled, "{words}");
        api.trouble(Method::POST, failure, 1);
        let fault = cluster.evict_all("n1", &DrainOptions::default(), |_| {}).await.unwrap_err();
        assert_eq!(fault.code, FaultCode::AnswerGarbled, "{words}");
    }
    assert!(cluster.node("n1").await.unwrap().unwrap().schedulable);
    assert!(api.state.lock().secrets.is_empty());
}

#[tokio::test]
async fn a_server_that_hangs_is_left_at_the_deadline() {
    let pki = Pki::new();
    let api = Api::start(&pki).await;
    let settings = Settings {
        deadline: Duration::from_secs(2),
        refusal_grace: Duration::ZERO,
        token_folder: None,
    };
    let config = pki.kubeconfig(api.address, &format!("token: {TOKEN}"));
    let cluster = Cluster::from_kubeconfig(&config, settings).unwrap();
    api.trouble(Method::GET, Trouble::Hang, 1);
    api.trouble(Method::DELETE, Trouble::Hang, 1);
    let fault = cluster.node("n1").await.unwrap_err();
    assert_eq!(code_of(&fault, &["2s"]), FaultCode::ClusterUnreachable);
    assert_eq!(cluster.remove_node("n1").await.unwrap_err().code, FaultCode::AnswerLost);
}

#[tokio::test]
async fn a_closed_port_is_unreachable_even_for_a_change() {
    let (api, cluster) = start().await;
    let pki = Pki::new();
    // Nothing listens on port 1; a port that was free a moment ago may belong to another test by
    // now.
    let config = pki.kubeconfig(std::net::SocketAddr::from(([127, 0, 0, 1], 1)), "token: t");
    let lonely = Cluster::from_kubeconfig(&config, Settings::default()).unwrap();
    let fault = lonely.remove_node("n1").await.unwrap_err();
    assert_eq!(code_of(&fault, &["could not be reached"]), FaultCode::ClusterUnreachable);
    drop(api);
    drop(cluster);
}

#[tokio::test]
async fn a_missing_permission_is_named() {
    let (api, cluster) = start().await;
    api.state.lock().forbidden =
        vec![("patch", "nodes"), ("create", "pods/eviction"), ("create", "secrets")];
    let fault = cluster.cordon("n1", "op-1").await.unwrap_err();
    assert_eq!(
        code_of(&fault, &["patch nodes `n1`", "403", "cannot patch"]),
        FaultCode::LoginRefused
    );
    api.state.lock().add_pod("shop/web", json!({}));
    let fault = cluster.evict_all("n1", &DrainOptions::default(), |_| {}).await.unwrap_err();
    assert_eq!(code_of(&fault, &["create pods/eviction `shop/web`"]), FaultCode::LoginRefused);

    let pki = Pki::new();
    let api = Api::start(&pki).await;
    let stranger = connect(&pki, &api, "token: wrong");
    let fault = stranger.node("n1").await.unwrap_err();
    assert_eq!(code_of(&fault, &["get nodes `n1`", "401"]), FaultCode::LoginRefused);
}

#[tokio::test]
async fn a_server_of_another_authority_is_not_trusted() {
    let (pki, other) = (Pki::new(), Pki::new());
    let api = Api::start(&pki).await;
    let cluster = connect(&other, &api, &format!("token: {TOKEN}"));
    for fault in
        [cluster.node("n1").await.unwrap_err(), cluster.remove_node("n1").await.unwrap_err()]
    {
        assert_eq!(code_of(&fault, &["did not prove"]), FaultCode::IdentityUntrusted);
    }
    assert!(api.state.lock().requests.is_empty(), "the token was not shown to it");
    let old = Api::start_with_expired_certificate(&pki).await;
    let fault = connect(&pki, &old, &format!("token: {TOKEN}")).node("n1").await.unwrap_err();
    assert_eq!(code_of(&fault, &["expired"]), FaultCode::IdentityUntrusted);
}

#[tokio::test]
async fn a_client_certificate_is_taken_while_it_holds() {
    let pki = Pki::new();
    let api = Api::start_with_client_certificates(&pki).await;
    api.state.lock().add_node(node("n1"));
    let good = connect(&pki, &api, &pki.user(Validity::Holds));
    assert!(good.node("n1").await.unwrap().is_some());
    let users =
        [pki.user(Validity::RanOut), Pki::new().user(Validity::Holds), "token: none".to_owned()];
    for user in users {
        let fault = connect(&pki, &api, &user).remove_node("n1").await.unwrap_err();
        assert_eq!(code_of(&fault, &["client certificate"]), FaultCode::LoginRefused, "{fault}");
    }
    assert!(good.node("n1").await.unwrap().is_some());
}

const ACCESS_REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

/// A server that has just started refuses everyone until its caches are filled. That is no answer.
#[tokio::test]
async fn a_refusal_counts_once_the_server_is_ready_and_repeats_it() {
    let pki = Pki::new();
    let api = Api::start(&pki).await;
    api.state.lock().add_node(node("n1"));
    api.state.lock().starting = true;
    let hasty = connect(&pki, &api, &format!("token: {TOKEN}"));
    for fault in
        [hasty.node("n1").await.unwrap_err(), hasty.cordon("n1", "op-1").await.unwrap_err()]
    {
        let words = ["403", "/readyz and an access review answered 403 too", "does not count yet"];
        assert_eq!(code_of(&fault, &words), FaultCode::ClusterUnreachable, "{fault}");
    }
    api.state.lock().starting = false;
    api.state.lock().unready = true;
    api.trouble(Method::GET, Trouble::Forbidden, 1);
    let fault = hasty.node("n1").await.unwrap_err();
    assert_eq!(code_of(&fault, &["/readyz answered 500"]), FaultCode::ClusterUnreachable);
    api.state.lock().unready = false;
    // Of several servers behind one address, another one has just started.
    let config = pki.kubeconfig(api.address, &format!("token: {TOKEN}"));
    let patient = Settings { refusal_grace: DEADLINE, ..Settings::default() };
    let patient = Cluster::from_kubeconfig(&config, patient).unwrap();
    api.trouble(Method::GET, Trouble::Forbidden, 1);
    assert!(patient.node("n1").await.unwrap().is_some());
    api.trouble(Method::PATCH, Trouble::Forbidden, 1);
    assert!(!patient.cordon("n1", "op-1").await.unwrap().schedulable);
    // A server that is ready and goes on refusing means it.
    for forbidden in [vec![("get", "nodes")], vec![("get", "nodes"), ("get", "/readyz")]] {
        api.state.lock().forbidden = forbidden;
        let fault = hasty.node("n1").await.unwrap_err();
        assert_eq!(code_of(&fault, &["cannot get resource"]), FaultCode::LoginRefused);
    }
}

/// The server must be able to refuse, or the tests above prove nothing about the requests.
#[tokio::test]
async fn the_server_is_strict() {
    let shared = SharedState::new(false);
    shared.lock().add_node(node("n1"));
    shared.lock().add_pod("shop/web", json!({}));
    let eviction = "/api/v1/namespaces/shop/pods/web/eviction";
    let (json_type, patch_type) = ("application/json", "application/strategic-merge-patch+json");
    let review = r#"{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview","spec":{"resourceAttributes":{"verb":"get"}}}"#;
    let good = r#"{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"web","namespace":"shop"}}"#;
    let cases = [
        ("POST", eviction, "text/plain", good, 415),
        ("POST", eviction, json_type, r#"{"metadata":{"name":"web","namespace":"shop"}}"#, 400),
        ("POST", eviction, json_type, &good.replace("}}", "},\"delete_options\":{}}"), 400),
        ("POST", eviction, json_type, &good.replace("policy/v1", "v1"), 400),
        ("POST", eviction, json_type, &good.replace("\"web\"", "\"db\""), 400),
        ("POST", eviction, json_type, "{", 400),
        ("PATCH", "/api/v1/nodes/n1", json_type, "{}", 415),
        ("PATCH", "/api/v1/nodes/n1", "application/json-patch+json", "[]", 415),
        ("PATCH", "/api/v1/nodes/n1", patch_type, r#"{"spec":{"unscheduleable":true}}"#, 400),
        ("PATCH", "/api/v1/nodes/n1", patch_type, r#"{"metadata":{"resourceVersion":"0"}}"#, 409),
        ("PATCH", "/api/v1/nodes/n2", patch_type, "{}", 404),
        ("GET", "/api/v1/pods?fieldSelector=spec.node%3Dn1", "", "", 400),
        ("GET", "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1&continue=x", "", "", 400),
        ("GET", "/api/v1/pods?fieldselector=spec.nodeName%3Dn1", "", "", 400),
        ("DELETE", "/api/v1/nodes/n1", json_type, r#"{"gracePeriod":1}"#, 400),
        ("GET", "/api/v1/node/n1", "", "", 404),
        ("GET", "/readyz", "", "", 200),
        ("POST", ACCESS_REVIEWS, json_type, r#"{"spec":{}}"#, 400),
        ("POST", ACCESS_REVIEWS, json_type, &review.replace("verb", "word"), 400),
        ("POST", ACCESS_REVIEWS, json_type, review, 201),
        ("POST", eviction, json_type, good, 201),
    ];
    for (method, uri, content_type, body, desired) in cases {
        let request = Request::builder()
            .method(method)
            .uri(uri)
            .header("content-type", content_type)
            .body(axum::body::Body::from(body.to_owned()))
            .unwrap();
        let answer = shared.router().oneshot(request).await.unwrap();
        assert_eq!(
            answer.status(),
            StatusCode::from_u16(desired).unwrap(),
            "{method} {uri} {body}"
        );
    }
}
