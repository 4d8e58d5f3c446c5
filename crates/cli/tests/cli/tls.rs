//! TLS of the listeners, seen by clients that were not written here (openssl, curl) and by ours.

use crate::fleet::{NO_CONTEXTS, Server, Setup, TEST_TIMEOUT, TEST_TOKEN, free_port, skip};
use crate::pki::{Authority, Files, Usage, replace};
use proto::v1;
use proto::v1::run_service_client::RunServiceClient;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Identity};

/// A foreign program. None skips the test, or fails it on CI.
fn tool(name: &str) -> Option<&str> {
    let mut command = Command::new(name);
    let found = command.arg("--help").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !found {
        skip(&format!("{name} is not installed"));
    }
    found.then_some(name)
}

fn words(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(err))
}

/// Runs our own client; returns its exit code and what it said.
pub fn farrier(args: &[&str]) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farrier"));
    for name in ["SERVER", "SERVER_CA", "CLIENT_CERTIFICATE", "CLIENT_KEY"] {
        command.env_remove(format!("FARRIER_{name}"));
    }
    command.env("FARRIER_CONTEXTS", NO_CONTEXTS);
    let output = command.args(args).output().unwrap();
    (output.status.code().unwrap(), words(&output))
}

pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A server with certificates of an authority of its own.
pub struct SecureServer {
    pub server: Server,
    authority: Authority,
    pub ca: PathBuf,
    files: Files,
    pub dir: tempfile::TempDir,
}

impl SecureServer {
    /// `tls` is more of the section, with `DIR` for the directory of the files.
    pub fn start(tls: &str, config: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::new("servers");
        let ca = authority.write(&dir.path().join("ca.pem"));
        let names = (Usage::Server, ["127.0.0.1", "localhost"].as_slice(), 1);
        let files = authority.issue(dir.path(), "server", names);
        let mut setup = Setup::new(dir.path(), "zero");
        setup.config = format!(
            "[tls]\ncertificate = {:?}\nkey = {:?}\n{}\n{config}",
            files.certificate,
            files.key,
            tls.replace("DIR", text(dir.path()))
        );
        let server = Server::start(setup);
        Self { server, authority, ca, files, dir }
    }

    fn port(&self) -> u16 {
        self.server.setup.port
    }

    pub fn url(&self, path: &str) -> String {
        format!("https://127.0.0.1:{}{path}", self.port())
    }

    /// Runs our own client with these arguments.
    pub fn farrier(&self, args: &[&str]) -> (i32, String) {
        let url = self.url("");
        farrier(&[args, &["--server", &url, "--server-ca", text(&self.ca)]].concat())
    }

    /// The file of the administrator's token.
    pub fn token_file(&self) -> PathBuf {
        self.server.setup.dir.join("test.token")
    }

    /// Gives a role to a subject.
    pub fn bind(&self, role: &str, subject: &str) {
        let token = self.token_file();
        let bound = ["role", "bind", role, subject, "--token-file", text(&token)];
        let (code, said) = self.farrier(&bound);
        assert_eq!(code, 0, "{said}");
    }

    fn curl(&self, args: &[&str], path: &str) -> Output {
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--max-time", "60", "--cacert"]).arg(&self.ca);
        command.args(args).arg(self.url(path)).output().unwrap()
    }

    /// The output of `openssl s_client` with these arguments.
    fn handshake(&self, args: &[&str]) -> Output {
        let mut command = Command::new("openssl");
        command.args(["s_client", "-connect", &format!("127.0.0.1:{}", self.port()), "-CAfile"]);
        let command = command.arg(&self.ca).args(args).stdin(Stdio::null());
        command.output().unwrap()
    }

    /// The serial number of the certificate that the server shows.
    fn serial(&self) -> String {
        let shown = self.handshake(&[]);
        let mut reader = Command::new("openssl")
            .args(["x509", "-noout", "-serial"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        reader.stdin.take().unwrap().write_all(&shown.stdout).unwrap();
        let output = reader.wait_with_output().unwrap();
        String::from_utf8_lossy(&output.stdout).trim().replace("serial=", "")
    }

    /// Waits until the server shows this certificate.
    fn shows(&self, serial: &str) {
        let started = Instant::now();
        while self.serial() != serial {
            assert!(started.elapsed() < TEST_TIMEOUT, "it shows {}", self.serial());
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

fn curl_args(files: &Files) -> [&str; 4] {
    ["--cert", text(&files.certificate), "--key", text(&files.key)]
}

#[test]
fn old_protocols_and_plain_http_are_refused() {
    let (Some(_), Some(_)) = (tool("openssl"), tool("curl")) else { return };
    let env = SecureServer::start("", "");
    for version in ["-tls1_2", "-tls1_3"] {
        let output = env.handshake(&[version, "-alpn", "h2,http/1.1"]);
        let said = words(&output);
        assert!(output.status.success(), "{version}: {said}");
        assert!(said.contains("ALPN protocol: h2"), "{version}: {said}");
        assert!(said.contains("Verify return code: 0 (ok)"), "{version}: {said}");
    }
    for version in ["-tls1", "-tls1_1"] {
        // The client is willing: it is the server that refuses.
        let output = env.handshake(&[version, "-cipher", "ALL:@SECLEVEL=0"]);
        let said = words(&output);
        assert!(!output.status.success(), "{version}: {said}");
        assert!(said.contains("SSL alert number"), "{version}: {said}");
        assert!(said.contains("Cipher is (NONE)"), "{version}: {said}");
    }
    for (version, shown) in [("--http1.1", "1.1"), ("--http2", "2")] {
        let args = [version, "--write-out", " by %{http_version}"];
        let output = env.curl(&args, "/healthz");
        assert_eq!(words(&output), format!("ok\n by {shown}"), "{version}");
    }
    let plain = format!("http://127.0.0.1:{}/healthz", env.port());
    let output = Command::new("curl").args(["--silent", "--include", &plain]).output().unwrap();
    let said = words(&output);
    assert!(said.starts_with("HTTP/1.1 400"), "{said}");
    assert!(said.contains("write https://"), "{said}");
}

#[test]
fn a_client_certificate_is_verified_and_can_be_revoked() {
    let (Some(_), Some(_)) = (tool("openssl"), tool("curl")) else { return };
    let clients = Authority::new("clients");
    let (dir, foreign) = (tempfile::tempdir().unwrap(), Authority::new("clients"));
    let ca = clients.write(&dir.path().join("clients.pem"));
    let crl = clients.revoke(&dir.path().join("crl.pem"), &[]);
    let client = |authority: &Authority, name: &str, serial: u64| {
        authority.issue(dir.path(), name, (Usage::Client, &[], serial))
    };
    let (ada, bob) = (client(&clients, "ada", 7), client(&clients, "bob", 8));
    let stranger = client(&foreign, "stranger", 7);
    let tls = format!("client_ca = {ca:?}\ncrl = {crl:?}\nrequire_client_certificate = true\n");
    let env = SecureServer::start(&tls, "");
    for files in [&ada, &bob] {
        let output = env.curl(&curl_args(files), "/healthz");
        assert_eq!(words(&output), "ok\n");
    }
    let nobody = env.curl(&[], "/healthz");
    assert!(!nobody.status.success() && words(&nobody).contains("alert"), "{}", words(&nobody));
    let output = env.curl(&curl_args(&stranger), "/healthz");
    assert!(!output.status.success(), "a certificate of another authority: {}", words(&output));
    let server_as_client = env.curl(&curl_args(&env.files), "/healthz");
    assert!(!server_as_client.status.success(), "{}", words(&server_as_client));

    clients.revoke(&crl, &[8]);
    let started = Instant::now();
    loop {
        let output = env.curl(&curl_args(&bob), "/healthz");
        // A connection that was open when the list was read is cut off without a word.
        if !output.status.success() && words(&output).to_lowercase().contains("revoked") {
            break;
        }
        assert!(started.elapsed() < TEST_TIMEOUT, "{}", words(&output));
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(words(&env.curl(&curl_args(&ada), "/healthz")), "ok\n");
}

pub async fn channel(env: &SecureServer, files: &Files) -> Channel {
    let read = |path: &Path| std::fs::read(path).unwrap();
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(read(&env.ca)))
        .identity(Identity::from_pem(read(&files.certificate), read(&files.key)));
    let endpoint = Channel::from_shared(env.url("")).unwrap().tls_config(tls).unwrap();
    endpoint.connect().await.unwrap()
}

/// An open stream does not outlive the certificate that it was opened with.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_ends_when_its_certificate_is_revoked() {
    let clients = Authority::new("clients");
    let dir = tempfile::tempdir().unwrap();
    let ca = clients.write(&dir.path().join("clients.pem"));
    let crl = clients.revoke(&dir.path().join("crl.pem"), &[]);
    let client =
        |name: &str, serial: u64| clients.issue(dir.path(), name, (Usage::Client, &[], serial));
    let (ada, bob) = (client("ada", 7), client("bob", 8));
    let env = SecureServer::start(&format!("client_ca = {ca:?}\ncrl = {crl:?}\n"), "");
    env.bind("viewer", "user:ada");
    env.bind("viewer", "user:bob");
    let mut watches = Vec::new();
    for files in [&ada, &bob] {
        let mut runs = RunServiceClient::new(channel(&env, files).await);
        let request = v1::WatchRunsRequest { bookmark: true, ..Default::default() };
        let mut watch = runs.watch_runs(request).await.unwrap().into_inner();
        watch.message().await.unwrap().expect("the bookmark");
        watches.push((watch, runs));
    }
    clients.revoke(&crl, &[8]);
    let ended = tokio::time::timeout(TEST_TIMEOUT, watches[1].0.message()).await.unwrap();
    ended.expect_err("the watch of the revoked certificate goes on");
    // The other one goes on: its connection still answers.
    let (_, runs) = &mut watches[0];
    runs.list_runs(v1::ListRunsRequest::default()).await.unwrap();
    let still_open = tokio::time::timeout(Duration::from_millis(1), watches[0].0.message()).await;
    assert!(still_open.is_err(), "{still_open:?}");
}

#[test]
fn new_certificates_are_used_without_a_restart_and_bad_ones_are_not() {
    let Some(_) = tool("openssl") else { return };
    let env = SecureServer::start("", "");
    assert_eq!(env.serial(), "01");
    let names = ["127.0.0.1"].as_slice();
    env.authority.issue(env.dir.path(), "server", (Usage::Server, names, 0x2a));
    env.shows("2A");
    replace(&env.files.certificate, "this is no certificate\n");
    let started = Instant::now();
    while !env.server.log().contains("the old ones stay") {
        assert!(started.elapsed() < TEST_TIMEOUT, "{}", env.server.log());
        std::thread::sleep(Duration::from_millis(50));
    }
    let log = env.server.log();
    assert!(log.contains("tls.certificate") && log.contains("server.pem"), "{log}");
    assert_eq!(env.serial(), "2A");
    env.authority.issue(env.dir.path(), "server", (Usage::Server, names, 0x2b));
    env.shows("2B");
}

#[test]
fn a_handshake_that_stops_is_ended() {
    let env = SecureServer::start("", "[connections]\ntls_handshake_seconds = 1\n");
    let mut stream = TcpStream::connect(("127.0.0.1", env.port())).unwrap();
    stream.write_all(&[0x16, 0x03, 0x01]).unwrap();
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    // An alert may come first.
    let mut said = Vec::new();
    stream.read_to_end(&mut said).expect("the connection stays open");
}

#[test]
fn the_first_certificates_are_made_by_one_command() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("tls");
    let (code, said) = farrier(&["tls", "init", text(&place), "--name", "farrier.example"]);
    assert_eq!(code, 0, "{said}");
    for (file, mode) in [
        ("ca.pem", 0o644),
        ("ca.key", 0o600),
        ("server.pem", 0o644),
        ("server.key", 0o600),
        ("client.pem", 0o644),
        ("client.key", 0o600),
    ] {
        let found = std::fs::metadata(place.join(file)).unwrap().permissions().mode() & 0o777;
        assert_eq!(found, mode, "{file} has {found:o}");
    }
    let before = std::fs::read(place.join("ca.key")).unwrap();
    let (code, again) = farrier(&["tls", "init", text(&place)]);
    assert_eq!(code, 2, "{again}");
    assert!(again.contains("ca.key exists and is not overwritten"), "{again}");
    assert_eq!(std::fs::read(place.join("ca.key")).unwrap(), before);

    // The lines for the configuration are used as they are printed.
    let start = said.find("  [tls]").unwrap();
    let section: String = said[start..]
        .lines()
        .take_while(|line| !line.is_empty())
        .fold(String::new(), |section, line| section + line.trim() + "\n");
    let mut setup = Setup::new(dir.path(), "zero");
    setup.config = format!("{section}require_client_certificate = true\n");
    let server = Server::start(setup);
    let url = format!("https://localhost:{}", server.setup.port);
    let file = |name: &str| place.join(name).display().to_string();
    let (ca, certificate, key) = (file("ca.pem"), file("client.pem"), file("client.key"));
    let identity = [
        "--client-certificate",
        &certificate,
        "--client-key",
        &key,
        "--server-ca",
        &ca,
        "--server",
    ];
    let list = |args: &[&str]| farrier(&[args, &["list"]].concat());
    let (code, said) = list(&[identity.as_slice(), &[&url]].concat());
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("view, which admin does not have"), "{said}");
    let token = server.setup.dir.join("test.token");
    let bound = ["role", "bind", "viewer", "user:admin", "--token-file", text(&token)];
    let (code, said) = farrier(&[identity.as_slice(), &[&url], &bound].concat());
    assert_eq!(code, 0, "{said}");
    let (code, said) = list(&[identity.as_slice(), &[&url]].concat());
    assert_eq!(code, 0, "{said}");

    for (args, code, words) in [
        (vec!["--server", &url], 4, "pass --server-ca FILE"),
        (
            vec!["--server-ca", &ca, "--server", &url],
            4,
            "pass --client-certificate and --client-key",
        ),
        (vec!["--server-ca", &certificate, "--server", &url], 4, "pass --server-ca FILE"),
        (vec!["--server-ca", &key, "--server", &url], 4, "--server-ca"),
        (vec!["--server-ca", "/no/such/file", "--server", &url], 2, "--server-ca /no/such/file"),
        (vec!["--client-certificate", &certificate, "--server", &url], 2, "--client-key"),
    ] {
        let (found, said) = list(&args);
        assert_eq!(found, code, "{args:?}: {said}");
        assert!(said.contains(words), "{args:?}: {said}");
    }
    let plain = url.replace("https", "http");
    let (code, said) = list(&["--server", &plain]);
    assert_eq!(code, 4, "{said}");
    assert!(said.contains("write https://"), "{said}");
    let (code, said) = list(&["--server-ca", &ca, "--server", &plain]);
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("--server-ca is given") && said.contains("write https://"), "{said}");
}

/// Whoever can read the key can be the server.
#[test]
fn a_key_that_others_can_read_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let names = (Usage::Server, ["127.0.0.1"].as_slice(), 1);
    let files = Authority::new("servers").issue(dir.path(), "server", names);
    let mut setup = Setup::new(dir.path(), "zero");
    setup.config = format!("[tls]\ncertificate = {:?}\nkey = {:?}\n", files.certificate, files.key);
    let allow = |mode: u32| {
        std::fs::set_permissions(&files.key, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    for mode in [0o644, 0o604, 0o660] {
        allow(mode);
        let said = Server::refused_start(&setup);
        for words in [
            format!("tls.key {}", files.key.display()),
            format!("has the mode {mode:o}"),
            "type chmod 6".to_string(),
        ] {
            assert!(said.contains(&words), "{words}: {said}");
        }
    }
    allow(0o600);
    let server = Server::start(setup);
    // A new key is refused as well, and the old one stays.
    replace(&files.key, &std::fs::read_to_string(&files.key).unwrap());
    allow(0o644);
    let started = Instant::now();
    while !server.log().contains("the old ones stay") {
        assert!(started.elapsed() < TEST_TIMEOUT, "{}", server.log());
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(server.log().contains("has the mode 644"), "{}", server.log());
}

/// No other page and no other host may set or overwrite the cookie of a session.
#[test]
fn the_session_cookie_belongs_to_the_host() {
    let Some(_) = tool("curl") else { return };
    let env = SecureServer::start("", "");
    let origin = format!("Origin: {}", env.url(""));
    let form = format!("token={TEST_TOKEN}");
    let head = "--dump-header";
    let args = ["--data", &form, "--header", &origin, head, "-", "--output", "/dev/null"];
    let said = words(&env.curl(&args, "/sign-in")).to_ascii_lowercase();
    let cookie = said.lines().find_map(|line| line.strip_prefix("set-cookie: ")).expect(&said);
    assert!(cookie.starts_with("__host-farrier_session_"), "{cookie}");
    for attribute in ["; secure", "; path=/;", "; httponly", "; samesite=strict"] {
        assert!(cookie.contains(attribute), "{attribute}: {cookie}");
    }
    assert!(!cookie.contains("domain"), "{cookie}");
}

/// The authority stays: clients need no new file.
#[test]
fn certificates_are_renewed_by_one_command() {
    let Some(_) = tool("openssl") else { return };
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("tls");
    let (code, said) = farrier(&["tls", "renew", text(&place)]);
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("ca.key") && said.contains("farrier tls init"), "{said}");
    assert_eq!(farrier(&["tls", "init", text(&place)]).0, 0);
    let read = |name: &str| std::fs::read_to_string(place.join(name)).unwrap();
    let before = ["ca.pem", "ca.key", "server.pem", "client.key"].map(read);
    let (code, said) = farrier(&["tls", "renew", text(&place), "--name", "new.example"]);
    assert_eq!(code, 0, "{said}");
    let after = ["ca.pem", "ca.key", "server.pem", "client.key"].map(read);
    assert_eq!(before[..2], after[..2]);
    assert!(before[2] != after[2] && before[3] != after[3]);
    for (file, usage) in [("server.pem", "sslserver"), ("client.pem", "sslclient")] {
        let mut verify = Command::new("openssl");
        verify.args(["verify", "-purpose", usage, "-CAfile"]).arg(place.join("ca.pem"));
        let output = verify.arg(place.join(file)).output().unwrap();
        assert!(output.status.success(), "{file}: {}", words(&output));
    }
    let mode = std::fs::metadata(place.join("server.key")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

/// A client with `https://` says that the server has no TLS.
#[test]
fn a_server_without_tls_is_named_as_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(Setup::new(dir.path(), "zero"));
    let url = format!("https://127.0.0.1:{}", server.setup.port);
    let (code, said) = farrier(&["list", "--server", &url]);
    assert_eq!(code, 4, "{said}");
    assert!(said.contains("it speaks no TLS: write http://"), "{said}");
}

#[test]
fn an_agent_speaks_tls() {
    let agents = free_port();
    let env = SecureServer::start("", &format!("[nodes]\nlisten = \"127.0.0.1:{agents}\"\n"));
    let agent = |controller: &str, ca: &Path| {
        let state = env.dir.path().join("agent");
        let text = format!(
            "controllers = [\"{controller}\"]\nca_file = {ca:?}\ntoken = \"never-given-out\"\n\
             state_dir = {state:?}\n"
        );
        let file = env.dir.path().join("agent.toml");
        std::fs::write(&file, text).unwrap();
        farrier(&["agent", "enroll", "--config", self::text(&file)])
    };
    // The answer is Farrier's: the token is unknown.
    let (code, said) = agent(&format!("https://127.0.0.1:{agents}"), &env.ca);
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("token"), "{said}");
    let foreign = Authority::new("foreign").write(&env.dir.path().join("foreign.pem"));
    let (code, said) = agent(&format!("https://127.0.0.1:{agents}"), &foreign);
    assert_eq!(code, 4, "{said}");
    assert!(said.contains("UnknownIssuer"), "{said}");
    let (code, said) = agent(&format!("http://127.0.0.1:{agents}"), &env.ca);
    assert_eq!(code, 4, "{said}");
    assert!(said.contains("answered 400"), "{said}");
}

#[test]
fn without_tls_only_loopback_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let serve = |config: &str, args: &[&str]| {
        let file = dir.path().join("farrier.toml");
        std::fs::write(&file, format!("data_dir = {:?}\n{config}", dir.path())).unwrap();
        farrier(&[&["serve", "--config", text(&file)], args].concat())
    };
    for (config, args, words) in [
        ("", vec!["--listen", "192.0.2.1:7411"], "listen is 192.0.2.1:7411"),
        ("listen = \"0.0.0.0:7411\"", vec![], "listen is 0.0.0.0:7411"),
        ("[nodes]\nlisten = \"192.0.2.1:8481\"", vec![], "nodes.listen is 192.0.2.1:8481"),
    ] {
        let (code, said) = serve(config, &args);
        assert_eq!(code, 2, "{said}");
        assert!(said.contains(words), "{said}");
        for advice in ["tls.certificate", "farrier tls init DIR", "--insecure"] {
            assert!(said.contains(advice), "{advice}: {said}");
        }
    }
    // An address of documentation, which this host has not: it is refused later, by the system.
    for (config, args) in [
        ("insecure = true", vec!["--listen", "192.0.2.1:7411"]),
        ("", vec!["--listen", "192.0.2.1:7411", "--insecure"]),
    ] {
        let (code, said) = serve(config, &args);
        assert_eq!(code, 2, "{said}");
        assert!(said.contains("cannot listen on 192.0.2.1:7411"), "{said}");
    }
    let missing = "[tls]\ncertificate = \"/no/such/file\"\nkey = \"/no/such/key\"";
    let (code, said) = serve(missing, &[]);
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("tls.certificate /no/such/file"), "{said}");
}
