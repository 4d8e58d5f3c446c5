//! Client certificates as identities: a SPIFFE ID or the subject, and nothing else.

use crate::fleet::{NO_CONTEXTS, TEST_TIMEOUT};
use crate::pki::{Authority, Files, Usage};
use crate::tls::{SecureServer, channel, text};
use proto::v1;
use proto::v1::run_service_client::RunServiceClient;
use rcgen::{CertificateParams, DistinguishedName, DnType, SanType, date_time_ymd};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tonic::Code;

const SPIFFE: &str = "spiffe://example.org/ns/ops/sa/farrier";

fn names(uris: &[&str], subject: &[(DnType, &str)]) -> CertificateParams {
    let mut params = CertificateParams::default();
    let uris = uris.iter().map(|uri| SanType::URI((*uri).try_into().unwrap()));
    params.subject_alt_names = uris.collect();
    params.distinguished_name = DistinguishedName::new();
    for (kind, name) in subject {
        params.distinguished_name.push(kind.clone(), *name);
    }
    params
}

/// An authority of clients, and a server that accepts its certificates.
fn server(dir: &Path) -> (Authority, SecureServer) {
    let clients = Authority::new("clients");
    let ca = clients.write(&dir.join("clients.pem"));
    let env = SecureServer::start(&format!("client_ca = {ca:?}\n"), "");
    (clients, env)
}

fn with<'a>(files: &'a Files, args: &[&'a str]) -> Vec<&'a str> {
    let own = ["--client-certificate", text(&files.certificate), "--client-key", text(&files.key)];
    [args, &own].concat()
}

#[test]
fn a_certificate_is_exactly_one_user() {
    let dir = tempfile::tempdir().unwrap();
    let (clients, env) = server(dir.path());
    let issue = |stem: &str, params| clients.sign(dir.path(), stem, Usage::Client, params);
    let subject = [(DnType::OrganizationName, "ops"), (DnType::CommonName, "Ada Löv")];
    let ada = issue("ada", names(&[], &subject));
    let workload = issue("workload", names(&[SPIFFE], &subject));
    env.bind("viewer", "user:Ada Löv");
    env.bind("rack-operator", "group:ops");
    env.bind("operator", &format!("user:{SPIFFE}"));
    let operator = "view, operate, inventory, destroy, credential-use";
    for (files, expected) in [
        (&ada, "Ada Löv at certificate\nGroups:      ops\nPermissions: view, power, firmware\n"),
        // The subject beside a SPIFFE ID gives nothing.
        (&workload, &format!("{SPIFFE} at certificate\nPermissions: {operator}\n")),
    ] {
        assert_eq!(env.farrier(&with(files, &["whoami"])), (0, expected.to_string()));
    }
    // The name is in the history and in the audit log.
    let register = ["machine", "register", "m-1", "--provider", "sim", "--cluster", "c"];
    let (code, said) = env.farrier(&with(&workload, &register));
    assert_eq!(code, 0, "{said}");
    let token = env.token_file();
    let (_, log) = env.farrier(&[
        "audit",
        "list",
        "--user",
        SPIFFE,
        "-o",
        "json",
        "--token-file",
        text(&token),
    ]);
    assert!(log.contains("RegisterMachine") && log.contains("certificate"), "{log}");

    // A token that a client sends on purpose goes before its certificate, also when it is wrong.
    let (code, said) = env.farrier(&with(&ada, &["whoami", "--token-file", text(&token)]));
    assert!(code == 0 && said.starts_with("admin at token"), "{said}");
    let wrong = dir.path().join("wrong.token");
    std::fs::write(&wrong, "farrier_pat_wrong").unwrap();
    let (code, said) = env.farrier(&with(&ada, &["whoami", "--token-file", text(&wrong)]));
    assert!(code == 2 && said.contains("the token is not known here"), "{said}");

    for (stem, params, words) in [
        ("two", names(&[SPIFFE, "spiffe://example.org/b"], &subject), "has 2 URIs"),
        ("none", names(&[], &subject[..1]), "has neither a SPIFFE ID nor a common name"),
        ("url", names(&["https://example.org/a"], &subject), "has a URI that is no SPIFFE ID"),
        ("oidc", names(&[], &[(DnType::CommonName, "oidc:ada")]), "has a colon"),
    ] {
        let (code, said) = env.farrier(&with(&issue(stem, params), &["whoami"]));
        assert!(code == 2 && said.contains(words), "{stem}: {said}");
    }
    let (code, said) = env.farrier(&["whoami"]);
    assert!(code == 2 && said.contains("no API token and no certificate"), "{said}");
    // A link stands for a token, which would outlive the certificate.
    let (code, said) = env.farrier(&with(&ada, &["console"]));
    assert!(code == 2 && said.contains("no API token"), "{said}");
}

/// A context without a token: the certificate is enough.
#[test]
fn a_login_remembers_a_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let (clients, env) = server(dir.path());
    let params = names(&[], &[(DnType::CommonName, "ada")]);
    let ada = clients.sign(dir.path(), "ada", Usage::Client, params);
    let contexts = dir.path().join("contexts.toml");
    let run = |args: &[&str], contexts: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_farrier"));
        let output = command.args(args).env("FARRIER_CONTEXTS", contexts).output().unwrap();
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    let url = env.url("");
    let login = ["login", &url, "--name", "own", "--server-ca", text(&env.ca)];
    let said = run(&login, NO_CONTEXTS);
    assert!(said.contains("--client-certificate and --client-key"), "{said}");
    let said = run(&with(&ada, &login), text(&contexts));
    assert!(said.starts_with("own: ada at https://"), "{said}");
    assert_eq!(run(&["whoami"], text(&contexts)), "ada at certificate\nPermissions: none\n");
}

/// The connection lives on, and its certificate is worth nothing any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_ends_when_its_certificate_expires() {
    let dir = tempfile::tempdir().unwrap();
    let (clients, env) = server(dir.path());
    env.bind("viewer", "user:ada");
    let mut params = names(&[], &[(DnType::CommonName, "ada")]);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    // Whole seconds: a certificate has no fractions.
    let life = Duration::from_secs(now.as_secs() + 8);
    params.not_after = date_time_ymd(1970, 1, 1) + life;
    let ada = clients.sign(dir.path(), "ada", Usage::Client, params);
    let mut runs = RunServiceClient::new(channel(&env, &ada).await);
    let request = v1::WatchRunsRequest { bookmark: true, ..Default::default() };
    let mut watch = runs.watch_runs(request).await.unwrap().into_inner();
    watch.message().await.unwrap().expect("the bookmark");
    let ended = tokio::time::timeout(TEST_TIMEOUT, watch.message()).await.unwrap();
    assert_eq!(ended.unwrap_err().code(), Code::Unauthenticated);
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    assert!(since >= life, "it ended before its certificate");
    let refused = runs.list_runs(v1::ListRunsRequest::default()).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated, "{refused:?}");
    assert!(refused.message().contains("expired"), "{refused:?}");
}
