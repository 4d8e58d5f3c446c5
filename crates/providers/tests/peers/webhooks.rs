//! Webhooks over real connections: receivers that accept, refuse, redirect, hang up, answer too
//! much, or are not who they should be.

use crate::certs::Authority;
use crate::http::{Call, Peer, Response};
use model::credential::{CredentialPolicy, Peer as BoundPeer, PeerBinding, PeerProtocol};
use model::notify::{Notice, NoticeKind, NotifierSpec, NotifyFormat, SendFailure};
use model::time::Timestamp;
use providers::state_store::{InMemoryStateStore, ProviderStateStore, Secret};
use providers::webhook::{HttpWebhooks, WebhookSender, check_url};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

const SECRET: &str = "T0/B0/s3cret";

fn spec(url: String, format: NotifyFormat) -> NotifierSpec {
    NotifierSpec {
        url,
        credential: "hook".into(),
        format,
        kinds: BTreeSet::from(NoticeKind::ALL),
        filter: String::new(),
        source: "/farrier".into(),
        max_attempts: 3,
    }
}

fn password() -> Secret {
    Secret::Password { user: "farrier".into(), password: SECRET.to_string().into() }
}

fn store() -> Arc<InMemoryStateStore> {
    let store = Arc::new(InMemoryStateStore::default());
    store.set_credential("hook", password());
    store
}

async fn send(store: &Arc<InMemoryStateStore>, spec: &NotifierSpec) -> Result<(), SendFailure> {
    let now = Timestamp::from_millis(1_780_000_000_000);
    let sender = HttpWebhooks::new(Arc::clone(store) as Arc<dyn ProviderStateStore>);
    let sent = sender.send(spec, &Notice::test("ops", "1", now), now).await;
    if let Err(failure) = &sent {
        assert!(!format!("{failure:?}").contains("s3cret"), "{failure:?}");
    }
    sent
}

#[tokio::test]
async fn a_receiver_gets_a_signed_event_and_the_secret_in_no_other_place() {
    let peer = Peer::start(|_| Response::status(202, "")).await;
    let store = store();
    send(&store, &spec(format!("{}/in?x=1", peer.url()), NotifyFormat::CloudEvents)).await.unwrap();
    let calls = peer.calls();
    let [call] = &calls[..] else { panic!("{calls:?}") };
    assert!(call.is("POST", "/in?x=1"));
    assert_eq!(call.header("webhook-id"), Some("1:test"));
    assert!(call.header("webhook-signature").unwrap().starts_with("v1,"));
    assert_eq!(call.header("content-type"), Some("application/cloudevents+json; charset=UTF-8"));
    assert!(!format!("{call:?}").contains("s3cret"));

    let url = format!("{}/services/{{secret}}", peer.url());
    send(&store, &spec(url, NotifyFormat::Slack)).await.unwrap();
    assert_eq!(peer.count("POST", "/services/T0/B0/s3cret"), 1);
    send(&store, &spec(format!("{}/enqueue", peer.url()), NotifyFormat::PagerDuty)).await.unwrap();
    assert!(peer.calls().last().unwrap().body.contains(r#""routing_key":"T0/B0/s3cret""#));
}

#[tokio::test]
async fn anything_but_success_is_a_failure_that_says_why() {
    let other = Peer::start(|_| Response::json("{}")).await;
    let elsewhere = other.url();
    let peer = Peer::start(move |call| match call.path.as_str() {
        "/500" => Response::status(500, "out of\norder"),
        "/429" => Response::status(429, "").with("Retry-After", 7),
        "/503" => Response::status(503, "").with("Retry-After", "Wed, 21 Oct 2026 07:28:00 GMT"),
        "/400" => Response::status(400, "").with("Retry-After", 7),
        "/302" => Response::status(302, "").with("Location", &elsewhere),
        "/308" => Response::status(308, "").with("Location", &elsewhere),
        "/gone" => Response::HangUp,
        "/long" => Response::status(500, "x".repeat(1_000_000)),
        path => panic!("{path}"),
    })
    .await;
    let store = store();
    for (path, words, retry_after) in [
        ("500", "answered 500 Internal Server Error: out of order", None),
        ("429", "answered 429", Some(7)),
        ("503", "answered 503", None),
        ("400", "answered 400", None),
        ("302", "redirects are not followed", None),
        ("308", "redirects are not followed", None),
        ("gone", "did not answer", None),
        ("long", "answered 500", None),
    ] {
        let spec = spec(format!("{}/{path}", peer.url()), NotifyFormat::CloudEvents);
        let failure = send(&store, &spec).await.unwrap_err();
        assert!(failure.message.contains(words), "{path}: {}", failure.message);
        assert!(failure.message.len() < 300, "{path}: {}", failure.message.len());
        assert_eq!(failure.retry_after, retry_after.map(Duration::from_secs), "{path}");
        assert_eq!(failure.repair, None, "{path}");
    }
    assert!(other.calls().is_empty(), "nothing was sent to where a redirect leads");
    let down = spec("http://127.0.0.1:1/in".into(), NotifyFormat::CloudEvents);
    assert!(send(&store, &down).await.unwrap_err().message.contains("could not be connected to"));
}

#[tokio::test]
async fn a_secret_goes_only_where_its_credential_allows() {
    let peer = Peer::start(|_| Response::json("{}")).await;
    let url = || peer.url();
    let bound = |host: &str, plain_http| {
        let port = peer.url().rsplit(':').next().unwrap().parse().unwrap();
        let protocol = PeerProtocol::Https;
        let peers = PeerBinding::of(&BoundPeer { protocol, host: host.into(), port });
        let store = Arc::new(InMemoryStateStore::default());
        let policy = CredentialPolicy { peers: peers.into_iter().collect(), plain_http };
        store.bind_credential("hook", password(), policy);
        store
    };
    for (store, words, repair) in [
        (bound("127.0.0.1", false), "use https://", Some("--allow-plain-http")),
        (bound("10.0.0.1", true), "may only be sent to 10.0.0.1", Some("--for 127.0.0.1")),
        (Arc::default(), "there is no credential \"hook\"", Some("farrier credential set hook")),
    ] {
        let failure = send(&store, &spec(url(), NotifyFormat::CloudEvents)).await.unwrap_err();
        assert!(failure.message.contains(words), "{}", failure.message);
        let given = failure.repair.unwrap_or_default();
        assert!(given.contains(repair.unwrap_or_default()), "{given}");
    }
    let key = Arc::new(InMemoryStateStore::default());
    key.set_credential("hook", Secret::MaasKey { key: "a:b:c".to_string().into() });
    let failure = send(&key, &spec(url(), NotifyFormat::CloudEvents)).await.unwrap_err();
    assert!(failure.message.contains("is not a password"), "{}", failure.message);
    assert!(peer.calls().is_empty(), "nothing was sent");
    send(&bound("127.0.0.1", true), &spec(url(), NotifyFormat::CloudEvents)).await.unwrap();
}

/// An authority of the host has not signed it: it is believed once its identity is pinned.
#[tokio::test]
async fn a_receiver_proves_who_it_is() {
    let identity = Authority::new().issue("127.0.0.1", 2099);
    let peer =
        Peer::serve(Some(identity.acceptor()), Arc::new(|_: &Call| Response::json("{}"))).await;
    let store = store();
    let spec = spec(peer.url(), NotifyFormat::CloudEvents);
    let failure = send(&store, &spec).await.unwrap_err();
    let repair = failure.repair.expect("a repair");
    let (command, shown) = repair.rsplit_once(' ').expect("the identity that it showed");
    assert_eq!(command, format!("farrier trust set {}", peer.url()));
    assert!(peer.calls().is_empty(), "nothing was sent");
    store.pin(&peer.url(), Some(shown)).await.unwrap();
    send(&store, &spec).await.unwrap();
    store.pin(&peer.url(), Some(&format!("sha256:{}", "ab".repeat(32)))).await.unwrap();
    assert!(send(&store, &spec).await.is_err());
    assert_eq!(peer.calls().len(), 1);
}

#[test]
fn the_host_of_a_url_is_checked() {
    for sound in ["https://h/in", "http://h:80/in", "https://[::1]:8000/{secret}"] {
        check_url(sound).unwrap();
    }
    for wrong in ["https://", "https://h:99999/in", "https://{secret}/in", "https://u@h/in"] {
        assert!(check_url(wrong).is_err(), "{wrong}");
    }
}
