//! Attacks on the access control, each of which has worked once.

use crate::access::token;
use crate::api::{TestServer, on_both};
use crate::api_http::http_as;
use crate::fleet::{Clients, TEST_TIMEOUT, TEST_TOKEN, channel, channel_with};
use crate::stage::farrier;
use crate::unreadable::{damage, expect};
use proto::v1;
use proto::v1::hardware_service_client::HardwareServiceClient;
use proto::v1::site_service_client::SiteServiceClient;
use std::time::Instant;
use tokio::net::TcpListener;
use tokio::time::timeout;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;

/// SQL belongs to the store crate, even for a test that attacks the database.
const UNREADABLE: &str = include_str!("../../../store/tests/damage_access.sql");

#[tokio::test(flavor = "multi_thread")]
async fn a_sign_out_with_an_api_token_revokes_nothing() {
    let (env, _) = TestServer::open("zero").await;
    let port = env.server.setup.port;
    let headers = [
        format!("Host: 127.0.0.1:{port}"),
        format!("Origin: http://127.0.0.1:{port}"),
        "Content-Type: application/x-www-form-urlencoded".into(),
        format!("Authorization: Bearer {TEST_TOKEN}"),
    ];
    let headers = headers.each_ref().map(String::as_str);
    http_as(&env, "POST /sign-out", &headers, &[]);
    expect(&env.server.url(), "whoami", 0, &["admin at token"]);
}

/// A template of a site runs as root on its machines, and RMA takes a machine out of the fleet.
#[tokio::test(flavor = "multi_thread")]
async fn an_operator_gets_no_root_by_a_site_and_no_rma() {
    let (env, mut admin) = TestServer::open("zero").await;
    admin.in_maintenance("m-1").await;
    let (_, secret) = token(&env, "eve", &["operator"]).await;
    let eve = channel_with(&env.server.url(), &secret).await;
    let mut sites = SiteServiceClient::new(eve.clone());
    let site = |cloud_init: &str| {
        let spec = v1::SiteSpec {
            provider: "sim".into(),
            cloud_init: cloud_init.into(),
            ..Default::default()
        };
        v1::Site { site_id: "site-a".into(), spec: Some(spec), ..Default::default() }
    };
    let create = |site| v1::CreateSiteRequest { site: Some(site), ..Default::default() };
    let evil = "#cloud-config\nruncmd: [id]\n{{enrollment_token}}";
    let refused = sites.create_site(create(site(evil))).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused:?}");
    assert!(refused.message().contains("execute"), "{refused:?}");
    sites.create_site(create(site(""))).await.unwrap();
    let update = || v1::UpdateSiteRequest { site: Some(site(evil)), ..Default::default() };
    let refused = sites.update_site(update()).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused:?}");
    let mut own = SiteServiceClient::new(channel(&env.server.url()).await);
    own.update_site(update()).await.unwrap();

    let mut eve = Clients::on(eve);
    let refused = eve.try_start("m-1", "RMA", "rma").await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused:?}");
    assert!(refused.message().contains("admin"), "{refused:?}");
}

/// The login to a peer is in the log, although the client hangs up before its end.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_hangs_up_stays_in_the_log() {
    let (env, _) = TestServer::open("zero").await;
    let url = env.server.url();
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let peer = format!("http://{}", silent.local_addr().unwrap());
    let mut client = farrier(&url, &["bmc", "test", &peer]);
    let accepted = tokio::time::timeout(TEST_TIMEOUT, silent.accept()).await;
    let _connection = accepted.unwrap().unwrap();
    client.kill().unwrap();
    client.wait().unwrap();
    let found = expect(&url, &format!("audit list --object {peer}"), 0, &["TestBmc", "accepted"]);
    assert_eq!(found.matches("TestBmc").count(), 1, "{found}");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_authority_for_a_test_needs_trust() {
    let (env, _) = TestServer::open("zero").await;
    let (_, secret) = token(&env, "eve", &["operator"]).await;
    let mut api = HardwareServiceClient::new(channel_with(&env.server.url(), &secret).await);
    let endpoint = "https://127.0.0.1:9".to_string();
    let request = v1::TestBmcRequest { endpoint, ca_pem: "x".into(), ..Default::default() };
    let refused = api.test_bmc(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused:?}");
}

/// A binding that cannot be read grants nothing, and does not stop revocations.
#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_binding_stops_no_revocation() {
    on_both("zero", revoked_beside_a_bad_row).await;
}

async fn revoked_beside_a_bad_row(env: &TestServer, _: Clients) {
    let url = env.server.url();
    let (id, secret) = token(env, "eve", &["viewer"]).await;
    let mut eve = Clients::on(channel_with(&url, &secret).await);
    damage(env, UNREADABLE).await;
    expect(&url, &format!("token revoke {id}"), 0, &[]);
    let started = Instant::now();
    let request = v1::ListMachinesRequest::default;
    while eve.machines.list_machines(request()).await.is_ok() {
        assert!(started.elapsed() < TEST_TIMEOUT, "the revoked token still works");
    }
    assert!(env.server.log().contains("was left out"), "{}", env.server.log());
}

/// A token that ends in a minute would leave nobody: not the token, not its role, not its binding.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_ends_soon_is_not_the_last_way_in() {
    let (env, _) = TestServer::open("zero").await;
    let url = env.server.url();
    let said = expect(&url, "whoami", 0, &["admin at token tok-"]);
    let own = said.split_whitespace().nth(3).unwrap();
    let own = own.to_string();
    expect(&url, "token create --user eve --role admin --expires-in 1m", 0, &["created"]);
    let words = ["no administrator would remain whose token is valid for another 24 hours"];
    expect(&url, &format!("token revoke {own}"), 2, &words);
    expect(&url, &format!("token revoke {own} --dry-run"), 2, &words);
    let bindings = expect(&url, "role bindings -o json", 0, &[]);
    let bindings: Vec<serde_json::Value> = serde_json::from_str(&bindings).unwrap();
    let subject = format!("token:{own}");
    let binding = bindings.iter().find(|one| one["subject"] == subject.as_str()).unwrap();
    let unbind = format!("role unbind {}", binding["role_binding_id"].as_str().unwrap());
    expect(&url, &unbind, 2, &words);
    // A lasting one is enough.
    expect(&url, "token create --user ada --role admin --expires-in 25h", 0, &["created"]);
    expect(&url, &format!("token revoke {own}"), 0, &["revoked"]);
}

/// Streams without a caller could take the place of other clients.
#[tokio::test(flavor = "multi_thread")]
async fn a_health_stream_needs_a_caller_and_a_check_does_not() {
    let (env, _) = TestServer::open("zero").await;
    let bare = tonic::transport::Endpoint::from_shared(env.server.url()).unwrap();
    let bare = bare.connect().await.unwrap();
    let mut health = HealthClient::new(bare);
    health.check(HealthCheckRequest::default()).await.unwrap();
    let refused = health.watch(HealthCheckRequest::default()).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated, "{refused:?}");
    let mut known = HealthClient::new(channel(&env.server.url()).await);
    let mut watch = known.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    assert!(watch.message().await.unwrap().is_some());
}

/// A token without a role is one of a caller too, and a stream must not outlive its token.
#[tokio::test(flavor = "multi_thread")]
async fn reflection_needs_view_and_ends_with_its_token() {
    let (env, _) = TestServer::open("zero").await;
    let url = env.server.url();
    let (_, secret) = token(&env, "eve", &[]).await;
    let mut reflection = ServerReflectionClient::new(channel_with(&url, &secret).await);
    let refused = reflection.server_reflection_info(tokio_stream::pending()).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused:?}");
    let (id, secret) = token(&env, "ada", &["viewer"]).await;
    let mut reflection = ServerReflectionClient::new(channel_with(&url, &secret).await);
    let open = reflection.server_reflection_info(tokio_stream::pending()).await.unwrap();
    expect(&url, &format!("token revoke {id}"), 0, &[]);
    let mut open = open.into_inner();
    let ended = timeout(TEST_TIMEOUT, open.message()).await.expect("it stays open");
    assert_eq!(ended.unwrap_err().code(), Code::Unauthenticated);
}

/// Names in histories are those of users, and a second binding would survive the first one's end.
#[tokio::test(flavor = "multi_thread")]
async fn reserved_names_and_second_bindings_are_refused() {
    let (env, _) = TestServer::open("zero").await;
    let url = env.server.url();
    for name in ["engine", "anonymous"] {
        expect(&url, &format!("role bind viewer user:{name}"), 2, &["Farrier itself"]);
    }
    let first = expect(&url, "role bind viewer user:ada", 0, &[]);
    assert_eq!(expect(&url, "role bind viewer user:ada", 0, &[]), first);
}
