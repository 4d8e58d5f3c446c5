//! Access control: tokens, roles, sessions, and the default-deny layer in front of every call.

use crate::api::TestServer;
use crate::api_http::http_as;
use crate::fleet::{
    Channel, Clients, NO_CONTEXTS, Server, Setup, TEST_TIMEOUT, TEST_TOKEN, channel_with,
};
use crate::sign_ins::submit;
use crate::stage::finish;
use model::access::BUILT_IN_ROLES;
use proto::calls::Calls;
use proto::v1::access_service_client::AccessServiceClient;
use proto::v1::{self, machine_service_client::MachineServiceClient};
use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tonic::Code;

async fn access(env: &TestServer) -> AccessServiceClient<Channel> {
    AccessServiceClient::new(crate::fleet::channel(&env.server.url()).await)
}

/// Creates a token with these roles. Returns its id and its secret.
pub async fn token(env: &TestServer, user: &str, roles: &[&str]) -> (String, String) {
    let request = v1::CreateTokenRequest {
        user: user.into(),
        roles: roles.iter().map(|role| role.to_string()).collect(),
        ..Default::default()
    };
    let made = access(env).await.create_token(request).await.unwrap().into_inner();
    (made.token.unwrap().token_id, made.secret)
}

/// Calls a method by its name with an empty request. Returns the gRPC code.
async fn call_by_name(channel: &Channel, call: &str) -> Code {
    let mut client = tonic::client::Grpc::new(channel.clone());
    client.ready().await.unwrap();
    let path = format!("/{call}").parse().unwrap();
    let codec = tonic_prost::ProstCodec::<(), ()>::default();
    let request = tonic::Request::new(());
    let answer = match Calls::own().streaming.contains(call) {
        true => client.server_streaming(request, path, codec).await.map(drop),
        false => client.unary(request, path, codec).await.map(drop),
    };
    answer.err().map_or(Code::Ok, |status| status.code())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_call_is_answered_without_a_valid_token() {
    let (env, _) = TestServer::open("zero").await;
    let bare = channel_with(&env.server.url(), "farrier_pat_wrong").await;
    for call in Calls::own().all {
        assert_eq!(call_by_name(&bare, &call).await, Code::Unauthenticated, "{call}");
    }
    let host = "Host: 127.0.0.1";
    for path in ["/", "/metrics", "/machines/m-1", "/stream", "/operations", "/nowhere"] {
        for more in ["Accept: */*", "Authorization: Bearer x", "Cookie: farrier_session=x"] {
            let (head, _) = http_as(&env, &format!("GET {path}"), &[host, more], &[]);
            assert!(head.starts_with("http/1.1 401"), "{path} {more}: {head}");
        }
    }
    for path in ["/healthz", "/sign-in", "/console.css", "/favicon.svg"] {
        let (head, _) = http_as(&env, &format!("GET {path}"), &[host], &[]);
        assert!(head.starts_with("http/1.1 200"), "{path}: {head}");
    }
    // A browser is led to the sign-in and back.
    let html = [host, "Accept: text/html"];
    let (head, _) = http_as(&env, "GET /racks?x=1", &html, &[]);
    assert!(head.starts_with("http/1.1 303"), "{head}");
    assert!(head.contains("location: /sign-in?next=%2fracks%3fx%3d1"), "{head}");
}

/// The calls that each role may make. Rows: a call, and the roles that the layer lets through.
/// Written by hand: a new call without a row fails.
const ALLOWED: &str = include_str!("access_calls.txt");

#[tokio::test(flavor = "multi_thread")]
async fn every_role_may_make_exactly_its_calls() {
    let (env, _) = TestServer::open("zero").await;
    let mut expected: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for line in ALLOWED.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let mut words = line.split_whitespace();
        let call = words.next().unwrap();
        assert!(expected.insert(call, words.collect()).is_none(), "{call} has two rows");
    }
    let own = Calls::own().all;
    let rows: Vec<String> = expected.keys().map(|call| format!("farrier.v1.{call}")).collect();
    assert_eq!(rows, own.into_iter().collect::<Vec<_>>(), "access_calls.txt has other calls");
    for role in BUILT_IN_ROLES {
        let (_, secret) = token(&env, &format!("a-{}", role.name), &[role.name]).await;
        let channel = channel_with(&env.server.url(), &secret).await;
        for (call, roles) in &expected {
            let code = call_by_name(&channel, &format!("farrier.v1.{call}")).await;
            let denied = code == Code::PermissionDenied;
            let allowed = roles.contains(&role.name);
            assert_eq!(denied, !allowed, "{call} as {}: {code:?}", role.name);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_steps_of_a_run_decide_what_it_needs() {
    let (env, mut admin) = TestServer::open("zero").await;
    admin.in_maintenance("m-1").await;
    let as_role = async |role: &str| {
        let (_, secret) = token(&env, role, &[role]).await;
        Clients::on(channel_with(&env.server.url(), &secret).await)
    };
    let mut operator = as_role("operator").await;
    let mut rack_operator = as_role("rack-operator").await;
    for (kind, operator_may) in [("UPGRADE", false), ("REBOOT", true), ("REPAVE", true)] {
        let refused = rack_operator.try_start("m-1", kind, "r").await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied, "{kind}: {refused:?}");
        let started = operator.try_start("m-1", kind, &format!("r-{kind}")).await;
        match (started, operator_may) {
            (Ok(run), true) => drop(operator.finished(&run.run_id).await),
            (Err(status), false) => {
                assert_eq!(status.code(), Code::PermissionDenied, "{kind}: {status:?}");
                assert!(status.message().contains("execute"), "{status:?}");
            }
            (other, _) => panic!("{kind}: {other:?}"),
        }
    }
    // The history has the user of the token, not the name that the client claims.
    let mut request = tonic::Request::new(v1::StartRunRequest {
        machine_id: "m-1".into(),
        r#type: "REBOOT".into(),
        request_id: "named".into(),
        ..Default::default()
    });
    request.metadata_mut().insert("farrier-initiator", "root".parse().unwrap());
    let run = operator.runs.start_run(request).await.unwrap().into_inner();
    assert_eq!(run.initiator, "operator");
    // A viewer cannot cancel it, nor may another role that could not have started it.
    for role in ["viewer", "rack-operator"] {
        let mut other = as_role(role).await;
        let cancel = v1::CancelRunRequest { run_id: run.run_id.clone(), ..Default::default() };
        let refused = other.runs.cancel_run(cancel).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied, "{role}: {refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_token_ends_its_streams_and_sessions() {
    let (env, mut admin) = TestServer::open("zero").await;
    admin.register("m-1").await;
    let (id, secret) = token(&env, "ada", &["viewer"]).await;
    let channel = channel_with(&env.server.url(), &secret).await;
    let mut machines = MachineServiceClient::new(channel.clone());
    let request = v1::WatchMachinesRequest::default();
    let mut watch = machines.watch_machines(request).await.unwrap().into_inner();
    assert!(watch.message().await.unwrap().is_some(), "the snapshot");
    let cookie = sign_in(&env, &secret);
    let page = |cookie: &str| http_as(&env, "GET /", &["Host: 127.0.0.1", cookie], &[]).0;
    assert!(page(&cookie).starts_with("http/1.1 200"), "{}", page(&cookie));

    let revoke = v1::RevokeTokenRequest { token_id: id.clone(), ..Default::default() };
    access(&env).await.revoke_token(revoke.clone()).await.unwrap();
    let ended = tokio::time::timeout(TEST_TIMEOUT, async {
        loop {
            match watch.message().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("the stream ended without a status"),
                Err(status) => return status,
            }
        }
    });
    assert_eq!(ended.await.unwrap().code(), Code::Unauthenticated);
    let refused = machines.get_machine(v1::GetMachineRequest::default()).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated);
    assert!(refused.message().contains("not known"), "{refused:?}");
    assert!(page(&cookie).starts_with("http/1.1 401"), "{}", page(&cookie));
    let again = access(&env).await.revoke_token(revoke).await.unwrap_err();
    assert_eq!(again.code(), Code::FailedPrecondition);
}

/// Signs a browser in with a token. Returns its cookie header.
pub fn sign_in(env: &TestServer, secret: &str) -> String {
    let (head, _) = submit(env, secret);
    assert!(head.starts_with("http/1.1 303"), "{head}");
    let cookie = head.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap();
    assert!(cookie.contains("httponly") && cookie.contains("samesite=strict"), "{cookie}");
    format!("Cookie: {}", cookie.split(';').next().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sign_in_link_works_once() {
    let (env, _) = TestServer::open("zero").await;
    let mut api = access(&env).await;
    let link = api.create_sign_in_link(v1::CreateSignInLinkRequest::default()).await.unwrap();
    let path = link.into_inner().path;
    let open = || http_as(&env, &format!("GET {path}"), &["Host: 127.0.0.1"], &[]);
    let (head, _) = open();
    assert!(head.starts_with("http/1.1 303") && head.contains("set-cookie: "), "{head}");
    let (head, page) = open();
    assert!(head.starts_with("http/1.1 401"), "{head}");
    assert!(page.contains("revoked") || page.contains("not known"), "{page}");
    // The code of a link is no token of the API, and a session is none either.
    let code = path.split("code=").last().unwrap();
    let channel = channel_with(&env.server.url(), code).await;
    let call = "farrier.v1.MachineService/ListMachines";
    assert_eq!(call_by_name(&channel, call).await, Code::Unauthenticated);
    let cookie = sign_in(&env, TEST_TOKEN);
    let session = cookie.split('=').nth(1).unwrap();
    let channel = channel_with(&env.server.url(), session).await;
    assert_eq!(call_by_name(&channel, call).await, Code::Unauthenticated);
    // Sign-out ends the session.
    let origin = format!("Origin: http://127.0.0.1:{}", env.server.setup.port);
    let host = format!("Host: 127.0.0.1:{}", env.server.setup.port);
    let form = "Content-Type: application/x-www-form-urlencoded";
    let headers = [host.as_str(), &origin, form, &cookie];
    let (head, _) = http_as(&env, "POST /sign-out", &headers, &[]);
    assert!(head.starts_with("http/1.1 303"), "{head}");
    let (head, _) = http_as(&env, "GET /", &["Host: 127.0.0.1", &cookie], &[]);
    assert!(head.starts_with("http/1.1 401"), "{head}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_administrator_stays() {
    let (env, _) = TestServer::open("zero").await;
    let mut api = access(&env).await;
    let caller = api.get_caller(v1::GetCallerRequest {}).await.unwrap().into_inner();
    assert_eq!(caller.user, "admin");
    let own = v1::RevokeTokenRequest { token_id: caller.token_id, ..Default::default() };
    let refused = api.revoke_token(own.clone()).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
    let bindings = api.list_role_bindings(v1::ListRoleBindingsRequest {}).await.unwrap();
    let binding = bindings.into_inner().role_bindings.remove(0);
    let unbind = v1::DeleteRoleBindingRequest {
        role_binding_id: binding.role_binding_id,
        ..Default::default()
    };
    let refused = api.delete_role_binding(unbind).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
    // With another administrator it may go.
    let bound = v1::CreateRoleBindingRequest {
        subject: "user:ada".into(),
        role: "admin".into(),
        ..Default::default()
    };
    api.create_role_binding(bound).await.unwrap();
    token(&env, "ada", &[]).await;
    api.revoke_token(own).await.unwrap();
}

/// Runs a command with these variables and no other access.
pub fn farrier(args: &[&str], variables: &[(&str, &str)]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farrier"));
    for name in ["FARRIER_SERVER", "FARRIER_TOKEN", "FARRIER_TOKEN_FILE", "FARRIER_CONTEXT"] {
        command.env_remove(name);
    }
    command.args(args).envs(variables.iter().copied());
    finish(
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap(),
    )
}

#[test]
fn a_started_server_is_found_by_the_next_command() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(Setup::new(dir.path(), "zero"));
    let contexts = server.setup.dir.join("contexts.toml");
    let known = [("FARRIER_CONTEXTS", contexts.to_str().unwrap())];
    let (code, out, err) = farrier(&["whoami"], &known);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert!(out.starts_with("admin at token tok-"), "{out}");
    let (code, out, _) = farrier(&["context", "list"], &known);
    assert_eq!(code, 0);
    assert!(out.contains("local") && !out.contains(TEST_TOKEN), "{out}");
    // The token of a context is never sent to another server.
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", other.local_addr().unwrap());
    let sink = std::thread::spawn(move || {
        let (mut stream, _) = other.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        let mut seen = Vec::new();
        let _ = std::io::Read::read_to_end(&mut stream, &mut seen);
        seen
    });
    let mut command = Command::new(env!("CARGO_BIN_EXE_farrier"));
    command.env_remove("FARRIER_TOKEN").env("FARRIER_CONTEXTS", &contexts);
    command.args(["--context", "local", "--server", &address, "whoami"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let seen = sink.join().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!seen.is_empty(), "nothing arrived, so nothing was shown");
    assert!(!String::from_utf8_lossy(&seen).contains(TEST_TOKEN));
    // Without a token the refusal says what to do.
    let nothing = [("FARRIER_CONTEXTS", NO_CONTEXTS)];
    let (code, _, err) = farrier(&["--server", &server.url(), "list"], &nothing);
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("farrier login"), "{err}");
}

#[test]
fn the_first_token_survives_a_crash_and_a_lost_one_is_recovered() {
    let dir = tempfile::tempdir().unwrap();
    let mut setup = Setup::new(dir.path(), "zero");
    setup.top = String::new();
    let server = Server::start(setup);
    let setup = server.kill();
    // The same token works after a restart.
    let server = Server::start(setup);
    let url = server.url();
    let given = [("FARRIER_TOKEN", TEST_TOKEN), ("FARRIER_CONTEXTS", NO_CONTEXTS)];
    assert_eq!(farrier(&["--server", &url, "whoami"], &given).0, 0);
    // Recovery on the host, while the server runs.
    let data = server.setup.dir.to_str().unwrap().to_string();
    let file = dir.path().join("new.token");
    let out = file.to_str().unwrap();
    let (code, said, err) = farrier(&["token", "recover", "--database", &data, "--out", out], &[]);
    assert_eq!(code, 0, "{said}{err}");
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&file).unwrap()) & 0o777;
    assert_eq!(mode, 0o600);
    let started = Instant::now();
    let recovered = [("FARRIER_TOKEN_FILE", out), ("FARRIER_CONTEXTS", NO_CONTEXTS)];
    while farrier(&["--server", &url, "token", "list"], &recovered).0 != 0 {
        assert!(started.elapsed() < TEST_TIMEOUT, "the server does not learn of the token");
    }
    let (code, log, err) = farrier(&["--server", &url, "audit", "list"], &recovered);
    assert_eq!(code, 0, "{err}");
    assert!(log.contains("farrier token recover"), "{log}");
}
