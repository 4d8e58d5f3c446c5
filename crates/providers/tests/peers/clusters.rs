//! `farrier cluster check` and the credentials of clusters, through the datacenter provider and the
//! fake API server.

use crate::kube_api::{Api, TOKEN, Trouble};
use crate::kube_pki::{Pki, Validity};
use axum::http::Method;
use model::fault::FaultCode;
use providers::bmc_discovery::CheckOutcome;
use providers::cluster_check::{ClusterInspector, ClusterReport};
use providers::datacenter::{Datacenter, Settings};
use providers::kubernetes::{self, Cluster, RIGHTS};
use providers::state_store::{InMemoryStateStore, ProviderStateStore, Secret};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

fn provider(text: secrecy::SecretString) -> Datacenter {
    let store = Arc::new(InMemoryStateStore::default());
    store.set_credential("c1", Secret::Kubeconfig { text });
    let cluster = kubernetes::Settings { refusal_grace: Duration::ZERO, ..Default::default() };
    let settings = Settings { cluster, ..Settings::default() };
    Datacenter::new(store as Arc<dyn ProviderStateStore>, settings)
}

fn outcome_of(report: &ClusterReport, check: &str) -> (CheckOutcome, String) {
    let found = report.findings.iter().find(|one| one.check == check);
    let found = found.unwrap_or_else(|| panic!("{check}: {report:?}"));
    (found.outcome, found.message.clone())
}

#[tokio::test]
async fn a_cluster_is_checked_right_by_right() {
    let pki = Pki::new();
    let api = Api::start(&pki).await;
    let one = provider(pki.kubeconfig(api.address, &format!("token: {TOKEN}")));
    let report = one.check_cluster("c1").await;
    assert!(report.usable(), "{report:?}");
    assert_eq!((report.user.as_str(), report.version.as_str()), ("farrier", "v1.35.0"));
    let rights: usize = RIGHTS.iter().map(|rule| rule.verbs.len()).sum();
    assert_eq!(report.findings.len(), rights + 4, "{report:?}");
    let reviewed = api.state.lock().requests.clone();
    let reviews = reviewed.iter().filter(|one| one.contains("selfsubjectaccessreviews"));
    assert_eq!(reviews.count(), rights, "{reviewed:?}");

    api.state.lock().forbidden = vec![("create", "pods/eviction"), ("delete", "secrets")];
    let report = one.check_cluster("c1").await;
    assert!(!report.usable());
    for check in ["create pods/eviction", "delete secrets in kube-system"] {
        let (outcome, message) = outcome_of(&report, check);
        assert_eq!(outcome, CheckOutcome::Cannot, "{check}");
        assert!(message.contains("not allowed"), "{message}");
    }
    assert_eq!(outcome_of(&report, "create secrets in kube-system").0, CheckOutcome::Ok);
    assert_eq!(outcome_of(&report, "get configmaps in kube-public").0, CheckOutcome::Ok);
}

#[tokio::test]
async fn a_cluster_that_cannot_be_used_says_why() {
    let pki = Pki::new();
    let api = Api::start(&pki).await;
    let user = format!("token: {TOKEN}");
    let report = provider(pki.kubeconfig(api.address, &user)).check_cluster("other").await;
    let (outcome, message) = outcome_of(&report, "kubeconfig");
    assert!(outcome == CheckOutcome::Cannot && message.contains("no credential"), "{message}");
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
    let report = provider(pki.kubeconfig(nowhere, &user)).check_cluster("c1").await;
    let (outcome, message) = outcome_of(&report, "reachable");
    assert!(
        outcome == CheckOutcome::Cannot && message.contains("could not be reached"),
        "{message}"
    );
    assert_eq!(outcome_of(&report, "get nodes").0, CheckOutcome::NotTried);
    let expired = pki.user(Validity::RanOut);
    let report = provider(pki.kubeconfig(api.address, &expired)).check_cluster("c1").await;
    let (outcome, message) = outcome_of(&report, "kubeconfig");
    assert!(outcome == CheckOutcome::Cannot && message.contains("expired"), "{message}");
    api.state.lock().clock_ahead_s = 600;
    let report = provider(pki.kubeconfig(api.address, &user)).check_cluster("c1").await;
    let (outcome, message) = outcome_of(&report, "clock");
    assert!(outcome == CheckOutcome::Cannot && message.contains("ahead of ours"), "{message}");
}

/// A 401 is an answer: the cluster is reachable, and refuses the login. A 403 for one path is not
/// about the login.
#[tokio::test]
async fn a_refused_login_is_not_an_unreachable_cluster() {
    let pki = Pki::new();
    let api = Api::start(&pki).await;
    let report = provider(pki.kubeconfig(api.address, "token: wrong")).check_cluster("c1").await;
    let (outcome, message) = outcome_of(&report, "reachable");
    assert!(outcome == CheckOutcome::Ok && message.ends_with(" answers"), "{message}");
    let (outcome, message) = outcome_of(&report, "user");
    assert_eq!(outcome, CheckOutcome::Cannot);
    assert!(message.starts_with("the cluster answers and refuses the login"), "{message}");
    assert!(message.contains("answered 401"), "{message}");
    assert_eq!(outcome_of(&report, "get nodes").0, CheckOutcome::NotTried);
    // The owner of the cluster may have taken the right to read the version from everyone.
    let one = provider(pki.kubeconfig(api.address, &format!("token: {TOKEN}")));
    api.state.lock().forbidden = vec![("get", "/version")];
    let report = one.check_cluster("c1").await;
    assert_eq!(outcome_of(&report, "reachable").0, CheckOutcome::Ok);
    assert_eq!(outcome_of(&report, "user"), (CheckOutcome::Ok, "farrier".into()));
    assert!(report.usable(), "{report:?}");
}

/// A user that the cluster knows lacks a right: that is checked, and the login is not replaced.
#[tokio::test]
async fn a_missing_right_is_told_from_a_refused_login() {
    let pki = Pki::new();
    let api = Api::start(&pki).await;
    let cluster = |user: &str| {
        let settings = kubernetes::Settings { refusal_grace: Duration::ZERO, ..Default::default() };
        Cluster::from_credential("c1", &pki.kubeconfig(api.address, user), settings).unwrap()
    };
    api.state.lock().add_node(crate::kubernetes::node("n1"));
    api.state.lock().forbidden = vec![("patch", "nodes")];
    let fault = cluster(&format!("token: {TOKEN}")).cordon("n1", "op-1").await.unwrap_err();
    assert_eq!(fault.code, FaultCode::LoginRefused, "{fault}");
    assert_eq!(fault.facts().missing_right.as_deref(), Some("patch nodes"));
    let fault = cluster("token: wrong").cordon("n1", "op-1").await.unwrap_err();
    assert_eq!(fault.code, FaultCode::LoginRefused, "{fault}");
    assert_eq!(fault.facts().missing_right, None);
}

/// A proxy may quote what it was sent.
#[tokio::test]
async fn a_token_in_an_answer_is_not_passed_on() {
    let pki = Pki::new();
    let api = Api::start(&pki).await;
    let config = pki.kubeconfig(api.address, &format!("token: {TOKEN}"));
    let cluster = Cluster::from_credential("c1", &config, kubernetes::Settings::default()).unwrap();
    api.trouble(Method::GET, Trouble::QuotingProxy(502), 1);
    let fault = cluster.nodes().await.unwrap_err();
    assert!(fault.message.contains("Bearer ***"), "{fault}");
    assert!(!fault.message.contains(TOKEN), "{fault}");
}

/// Another program renews the token in its file; the client that was made before uses the new one.
#[tokio::test]
async fn a_token_file_is_read_for_every_request() {
    let pki = Pki::new();
    let api = Api::start(&pki).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "outdated").unwrap();
    let config = pki.kubeconfig(api.address, &format!("tokenFile: '{}'", file.display()));
    let settings = kubernetes::Settings {
        refusal_grace: Duration::ZERO,
        token_folder: Some(folder.path().into()),
        ..Default::default()
    };
    let cluster = Cluster::from_credential("c1", &config, settings).unwrap();
    let fault = cluster.nodes().await.unwrap_err();
    assert_eq!(fault.code, FaultCode::LoginRefused, "{fault}");
    assert_eq!(fault.facts().credential.as_deref(), Some("c1"), "the fault names the credential");
    std::fs::write(&file, format!("{TOKEN}\n")).unwrap();
    assert_eq!(cluster.nodes().await.unwrap(), []);
    std::fs::remove_file(&file).unwrap();
    let fault = cluster.nodes().await.unwrap_err();
    assert_eq!(fault.code, FaultCode::CredentialMissing, "{fault}");
}
