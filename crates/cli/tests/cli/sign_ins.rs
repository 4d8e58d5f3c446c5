//! Sign-ins of browsers: in the audit log, limited in number, and apart on one host.

use crate::access::sign_in;
use crate::api::{TestServer, on_both};
use crate::api_http::http_as;
use crate::fleet::{Clients, TEST_TIMEOUT, TEST_TOKEN};
use crate::unreadable::{damage, expect};
use proto::v1;
use proto::v1::access_service_client::AccessServiceClient;
use serde_json::Value;
use std::time::Instant;

/// SQL belongs to the store crate, even for a test that damages the database.
const LOSE: &str = include_str!("../../../store/tests/lose_audit.sql");
const FIND: &str = include_str!("../../../store/tests/find_audit.sql");

/// Sends the form of the sign-in page. Returns the head and the page of the answer.
pub fn submit(env: &TestServer, token: &str) -> (String, String) {
    let port = env.server.setup.port;
    let headers = [
        format!("Host: 127.0.0.1:{port}"),
        format!("Origin: http://127.0.0.1:{port}"),
        "Content-Type: application/x-www-form-urlencoded".into(),
    ];
    let headers = headers.each_ref().map(String::as_str);
    http_as(env, "POST /sign-in", &headers, format!("token={token}").as_bytes())
}

/// The sign-ins in the log, the newest first.
fn logged(env: &TestServer) -> Vec<Value> {
    let json = expect(&env.server.url(), "audit list -o json", 0, &[]);
    let all: Vec<Value> = serde_json::from_str(&json).unwrap();
    let is_sign_in = |entry: &Value| entry["call"].as_str().unwrap().starts_with("console/");
    all.into_iter().filter(is_sign_in).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sign_in_is_in_the_log() {
    on_both("zero", in_the_log).await;
}

async fn in_the_log(env: &TestServer, _: Clients) {
    sign_in(env, TEST_TOKEN);
    let mut api = AccessServiceClient::new(crate::fleet::channel(&env.server.url()).await);
    let link = api.create_sign_in_link(v1::CreateSignInLinkRequest::default()).await.unwrap();
    let open = || {
        let path = &link.get_ref().path;
        http_as(env, &format!("GET {path}"), &["Host: 127.0.0.1"], &[]).0
    };
    assert!(open().starts_with("http/1.1 303"));
    let entries = logged(env);
    assert_eq!(entries.len(), 2, "{entries:#?}");
    for (entry, call) in entries.iter().zip(["SignInWithLink", "SignInWithToken"]) {
        assert_eq!(entry["call"], format!("console/{call}"), "{entry:#}");
        assert_eq!(entry["user"], "admin", "{entry:#}");
        assert_eq!(entry["accepted"], true, "{entry:#}");
        assert_eq!(entry["peer"], "127.0.0.1", "{entry:#}");
        assert!(entry["token_id"].as_str().unwrap().starts_with("tok-"), "{entry:#}");
    }
    sign_out(env);
    // The second use of the link is refused, and counted.
    assert!(open().starts_with("http/1.1 401"));
    until(env, |entry| {
        entry["call"] == "console/SignInWithLink"
            && entry["refusal_reason"] == "UNAUTHENTICATED"
            && entry["user"] == ""
    });
    // A session that cannot be logged is not opened.
    damage(env, LOSE).await;
    let (head, _) = submit(env, TEST_TOKEN);
    assert!(head.starts_with("http/1.1 503") && !head.contains("set-cookie"), "{head}");
    damage(env, FIND).await;
    sign_in(env, TEST_TOKEN);
}

/// A sign-out is in the log once, and one of a session that has ended is no event.
fn sign_out(env: &TestServer) {
    let cookie = sign_in(env, TEST_TOKEN);
    let port = env.server.setup.port;
    let origin = format!("Origin: http://127.0.0.1:{port}");
    let host = format!("Host: 127.0.0.1:{port}");
    let form = "Content-Type: application/x-www-form-urlencoded";
    for status in ["303", "401"] {
        let (head, _) = http_as(env, "POST /sign-out", &[&host, &origin, form, &cookie], &[]);
        assert!(head.starts_with(&format!("http/1.1 {status}")), "{head}");
    }
    let outs = || logged(env).into_iter().filter(|entry| entry["call"] == "console/SignOut");
    let out = outs().next().expect("the sign-out is in the log");
    assert_eq!((&out["user"], &out["peer"]), (&"admin".into(), &"127.0.0.1".into()), "{out:#}");
    assert_eq!(out["accepted"], true, "{out:#}");
    assert_eq!(outs().count(), 1, "{:#?}", logged(env));
}

fn until(env: &TestServer, fits: impl Fn(&Value) -> bool) {
    let started = Instant::now();
    while !logged(env).iter().any(&fits) {
        assert!(started.elapsed() < TEST_TIMEOUT, "{:#?}", logged(env));
    }
}

/// Many guesses are few writes, and do not go on for long.
#[tokio::test(flavor = "multi_thread")]
async fn guesses_are_limited_and_counted() {
    let (env, _) = TestServer::open("zero").await;
    let mut answers = std::collections::BTreeMap::<String, usize>::new();
    for guess in 0..400 {
        let (head, page) = submit(&env, &format!("farrier_pat_guess_{guess}"));
        let status = head.split_whitespace().nth(1).unwrap().to_string();
        if status == "429" {
            assert!(head.contains("retry-after: "), "{head}");
            assert!(page.contains("Too many sign-ins from this address"), "{page}");
        }
        *answers.entry(status).or_default() += 1;
    }
    assert_eq!(answers.keys().collect::<Vec<_>>(), ["401", "429"], "{answers:?}");
    assert!(answers["429"] > 100, "{answers:?}");
    until(&env, |entry| entry["refusal_reason"] == "UNAUTHENTICATED");
    let entries = logged(&env);
    assert!(entries.len() <= 4, "{entries:#?}");
    assert!(entries.iter().all(|entry| entry["accepted"] == false), "{entries:#?}");
    let log = env.server.log();
    assert!(log.matches("requests denied").count() <= 3, "{log}");
    // Calls with a token, and the sign-in page, are answered as before.
    expect(&env.server.url(), "whoami", 0, &["admin"]);
    let (head, _) = http_as(&env, "GET /sign-in", &["Host: 127.0.0.1"], &[]);
    assert!(head.starts_with("http/1.1 200"), "{head}");
}

/// Browsers keep no cookies of ports apart: each server has a cookie of its own name.
#[tokio::test(flavor = "multi_thread")]
async fn two_servers_on_one_host_keep_both_sessions() {
    let (one, _) = TestServer::open("zero").await;
    let (other, _) = TestServer::open("zero").await;
    let (first, second) = (sign_in(&one, TEST_TOKEN), sign_in(&other, TEST_TOKEN));
    let name = |cookie: &str| cookie.split('=').next().unwrap().to_string();
    assert_ne!(name(&first), name(&second));
    // A browser sends both to both.
    let both = format!("{first}; {}", second.trim_start_matches("Cookie: "));
    for env in [&one, &other] {
        let (head, _) = http_as(env, "GET /", &["Host: 127.0.0.1", &both], &[]);
        assert!(head.starts_with("http/1.1 200"), "{head}");
    }
    let origin = format!("Origin: http://127.0.0.1:{}", one.server.setup.port);
    let host = format!("Host: 127.0.0.1:{}", one.server.setup.port);
    let form = "Content-Type: application/x-www-form-urlencoded";
    let (head, _) = http_as(&one, "POST /sign-out", &[&host, &origin, form, &both], &[]);
    assert!(head.starts_with("http/1.1 303") && !head.contains(&name(&second)), "{head}");
    let (head, _) = http_as(&other, "GET /", &["Host: 127.0.0.1", &both], &[]);
    assert!(head.starts_with("http/1.1 200"), "{head}");
}
