//! Planted secrets are searched for in everything that was written: outputs, logs, pages, metrics,
//! the files of the database with its journal, the files of the simulator, and a dump.

use crate::fleet::{DatabaseKind, Server, Setup, TEST_TOKEN, new_database, postgres};
use crate::restore::postgres_programs;
use crate::sink::Sink;
use crate::stage::{farrier, finish};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

const PASSWORD: &str = "Pl4ntedPassw0rdOfTheBmc";
const PASSPHRASE: &str = "Pl4ntedPassphrase0fTheKey";
const MAAS_SECRET: &str = "Pl4ntedKeyOfMaas";
const TOKEN: &str = "Pl4ntedTokenOfTheCluster";
const PRIVATE_KEY: &str = "Pl4ntedPrivateKeyMaterial";
const ACCESS: &str = "Pl4ntedCodeOfASignInLink";
const SECRETS: [&str; 6] = [PASSWORD, PASSPHRASE, MAAS_SECRET, TOKEN, PRIVATE_KEY, ACCESS];
/// Everything is logged, and probes are frequent.
const CONFIG: &str = "[probes]\ninterval_ms = 200";

/// An operator who keeps every output.
struct Operator<'a> {
    url: String,
    dir: &'a Path,
    outputs: RefCell<Vec<u8>>,
}

impl Operator<'_> {
    fn run(&self, line: &str) -> String {
        let args: Vec<&str> = line.split_whitespace().collect();
        let (_, stdout, stderr) = finish(farrier(&self.url, &args));
        let output = stdout + &stderr;
        self.outputs.borrow_mut().extend(output.as_bytes());
        output
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.dir.join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    fn get(&self, path: &str) -> Vec<u8> {
        let address = self.url.trim_start_matches("http://");
        let mut stream = TcpStream::connect(address).unwrap();
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\
                     Authorization: Bearer {TEST_TOKEN}\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 200"), "{path}");
        answer
    }

    /// Shows a secret as a browser does, at this server's name and at another one.
    fn knock(&self) {
        let address = self.url.trim_start_matches("http://");
        let here = format!("Host: {address}");
        for (path, lines) in [
            (format!("/sign-in?code={ACCESS}"), here.clone()),
            (format!("/sign-in?code={ACCESS}"), "Host: other.example".into()),
            (format!("/sign-in?code={ACCESS}"), format!("{here}\r\nOrigin: http://other.example")),
            ("/".into(), format!("{here}\r\nAuthorization: Bearer {ACCESS}")),
            ("/".into(), format!("{here}\r\nCookie: farrier_session={ACCESS}")),
        ] {
            let mut stream = TcpStream::connect(address).unwrap();
            let request = format!("GET {path} HTTP/1.1\r\n{lines}\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert!(answer.starts_with("HTTP/1.1 4"), "{lines}: {answer}");
        }
    }
}

/// The forms in which a secret may be written.
fn forms(secret: &str) -> Vec<Vec<u8>> {
    let hex: String = secret.bytes().map(|byte| format!("{byte:02x}")).collect();
    let mut forms = vec![secret.as_bytes().to_vec(), hex.into_bytes()];
    // Base64 has three alignments; the characters at both ends depend on the neighbours.
    for pad in 0..3 {
        let text = BASE64_STANDARD.encode(format!("{}{secret}", "x".repeat(pad)));
        forms.push(text.as_bytes()[4..text.len() - 4].to_vec());
    }
    forms
}

fn assert_clean(what: &str, bytes: &[u8]) {
    for secret in SECRETS {
        for form in forms(secret) {
            let found = bytes.windows(form.len()).any(|part| part == form);
            assert!(!found, "{what} has {secret}");
        }
    }
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        match entry.file_type().unwrap().is_dir() {
            true => found.extend(files(&entry.path())),
            false => found.push(entry.path()),
        }
    }
    found
}

/// Uses every secret, well and badly.
fn plant(person: &Operator, sink: &Sink) {
    let password = person.file("password", PASSWORD);
    let passphrase = person.file("passphrase", PASSPHRASE);
    let key = format!("-----BEGIN OPENSSH PRIVATE KEY-----\n{PRIVATE_KEY}\n");
    let key = person.file("key", &key);
    let maas = person.file("maas", &format!("consumer:token:{MAAS_SECRET}"));
    let bad_maas = person.file("bad-maas", &format!("token:{MAAS_SECRET}"));
    let bad_kubeconfig = person.file("bad-kubeconfig", &format!("users: [{{token: {TOKEN}}}]"));
    let kubeconfig = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
         contexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
         clusters: [{{name: k, cluster: {{server: 'https://127.0.0.1:{}'}}}}]\n\
         users: [{{name: u, user: {{token: {TOKEN}}}}}]\n",
        sink.port
    );
    let kubeconfig = person.file("kubeconfig", &kubeconfig);
    let (port, own) = (sink.port, "--for 127.0.0.1 --allow-plain-http");
    for line in [
        format!("credential create bmc --user root --password-file {password} {own}"),
        format!("credential set bmc --user root --password-file {password} {own}"),
        format!(
            "credential set host --user root --ssh-key {key} --passphrase-file {passphrase} {own}"
        ),
        format!("credential set maas --maas-key {maas} {own}"),
        format!("credential set bad --maas-key {bad_maas} {own}"),
        format!("credential set bad --kubeconfig {bad_kubeconfig}"),
        format!("credential set cluster-a --kubeconfig {kubeconfig}"),
        format!("credential update none --user root --password-file {password} -o json"),
        format!("bmc test http://127.0.0.1:{port} --credential bmc"),
        format!("bmc test http://127.0.0.1:{port} --credential host"),
        "bmc test http://192.0.2.1 --credential bmc".into(),
        format!("discover http://127.0.0.1:{port} --credential bmc -o json"),
        format!("bmc unlock http://127.0.0.1:{port}"),
        format!(
            "machine register m-1 --provider datacenter --bmc-endpoint http://127.0.0.1:{port} \
             --bmc-credential bmc --ssh-endpoint 127.0.0.1:{port} --ssh-credential host \
             --cluster cluster-a"
        ),
        "machine register m-2 --provider sim".into(),
        "machine power m-1".into(),
        "machine inspect m-1".into(),
        "enter-maintenance m-2".into(),
        "reboot m-2".into(),
        format!("site create site-a --maas-url http://127.0.0.1:{port}/MAAS --credential maas"),
        "site check site-a".into(),
        "cluster check cluster-a".into(),
        "secret rotate".into(),
        "credential list -o yaml".into(),
        "credential get bmc -o json".into(),
        "history credential/bmc -o json".into(),
        "why -o json".into(),
        "why m-1".into(),
        "get m-1 -o json".into(),
        "operation list -o json".into(),
        "db check".into(),
        "credential delete host".into(),
    ] {
        person.run(&line);
    }
    person.knock();
}

fn search(server: &Server, person: &Operator) {
    assert_clean("an output", &person.outputs.borrow());
    assert_clean("the log", server.log().as_bytes());
    for page in ["/", "/machines/m-1", "/operations", "/racks", "/nodes", "/metrics"] {
        assert_clean(page, &person.get(page));
    }
    let Setup { dir, sim_dir, .. } = &server.setup;
    let written: Vec<PathBuf> = files(dir).into_iter().chain(files(sim_dir)).collect();
    assert!(written.len() > 3, "{written:?}");
    for file in &written {
        assert_clean(&file.display().to_string(), &std::fs::read(file).unwrap());
    }
}

/// Files that other users cannot read, and no core dumps.
fn assert_private(server: &Server) {
    let dir = &server.setup.dir;
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(dir), 0o700);
    for file in files(dir) {
        let of_harness = ["server.log", "farrier.toml", "test.token"];
        if !of_harness.iter().any(|name| file.ends_with(name)) {
            assert_eq!(mode(&file) & 0o077, 0, "{}", file.display());
        }
    }
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.pid())).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    let values: Vec<&str> = core.split_whitespace().skip(4).take(2).collect();
    assert_eq!(values, ["0", "0"], "{core}");
}

#[test]
fn planted_secrets_are_found_nowhere() {
    let dir = tempfile::tempdir().unwrap();
    let setup =
        Setup { config: CONFIG.into(), log_level: "trace", ..Setup::new(dir.path(), "zero") };
    let server = Server::start(setup);
    let outputs = RefCell::default();
    let person = Operator { url: server.url(), dir: dir.path(), outputs };
    let sink = Sink::start();
    plant(&person, &sink);
    // The search would find what was sent.
    assert!(sink.saw("root", PASSWORD) && sink.saw("", MAAS_SECRET), "no secret was used");
    assert!(std::panic::catch_unwind(|| assert_clean("a trial", TOKEN.as_bytes())).is_err());
    search(&server, &person);
    assert_private(&server);
    // Also with the journal of a process that was killed, and after the next start.
    let setup = server.kill();
    for file in files(&setup.dir) {
        assert_clean(&file.display().to_string(), &std::fs::read(&file).unwrap());
    }
    let server = Server::start(setup);
    search(&server, &Operator { url: server.url(), ..person });
}

#[tokio::test(flavor = "multi_thread")]
async fn planted_secrets_are_not_in_a_dump_of_postgresql() {
    let Some(cluster) = postgres() else { return };
    let home = DatabaseKind::Postgres(new_database(&cluster).await);
    let DatabaseKind::Postgres(url) = home.clone() else { return };
    let dir = tempfile::tempdir().unwrap();
    let setup =
        Setup { home, config: CONFIG.into(), log_level: "trace", ..Setup::new(dir.path(), "zero") };
    let server = Server::start(setup);
    let person = Operator { url: server.url(), dir: dir.path(), outputs: RefCell::default() };
    let sink = Sink::start();
    tokio::task::block_in_place(|| {
        plant(&person, &sink);
        search(&server, &person);
        if let Some(programs) = postgres_programs() {
            let dump = std::process::Command::new(programs.join("pg_dump")).arg(&url).output();
            let dump = dump.unwrap().stdout;
            assert!(dump.windows(6).any(|part| part == b"sealed"), "the dump is empty");
            assert_clean("the dump", &dump);
        }
    });
}
