//! Write-only secrets stay in: whoever may edit an address makes Farrier log in there, and must not
//! read a secret by it. A listening sink takes the place of each kind of peer.

use crate::api::{plan, ssh, step};
use crate::fleet::{Clients, Server, Setup, TEST_TIMEOUT};
use crate::sink::Sink;
use crate::stage::{farrier, finish};
use proto::v1;
use std::path::Path;
use std::time::{Duration, Instant};

const PASSWORD: &str = "Pl4ntedPassw0rd";
const MAAS_SECRET: &str = "Pl4ntedMaasKey";
const TOKEN: &str = "Pl4ntedClusterToken";
const SECRETS: [&str; 3] = [PASSWORD, MAAS_SECRET, TOKEN];
const CONFIG: &str = "[datacenter]\ngraceful_seconds = 0\n[probes]\ninterval_ms = 200";
/// Documentation addresses: nothing is ever sent there.
const ELSEWHERE: &str = "192.0.2.0/24";
const REFUSED: &str = "was not sent to";
const NOT_ALLOWED: &str = "credential-not-allowed";

struct Operator<'a> {
    url: String,
    dir: &'a Path,
}

impl Operator<'_> {
    /// Runs a command and returns its exit code and both output streams.
    fn run(&self, line: &str) -> (i32, String) {
        let args: Vec<&str> = line.split(' ').collect();
        let (code, stdout, stderr) = finish(farrier(&self.url, &args));
        (code, stdout + &stderr)
    }

    fn done(&self, line: &str) -> String {
        let (code, output) = self.run(line);
        assert_eq!(code, 0, "{line}\n{output}");
        output
    }

    /// A file with this text.
    fn file(&self, name: &str, text: &str) -> String {
        let path = self.dir.join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    fn set_password(&self, name: &str, binding: &str) {
        let file = self.file("password", PASSWORD);
        self.done(&format!("credential set {name} --user root --password-file {file} {binding}"));
    }

    fn set_maas_key(&self, binding: &str) {
        let file = self.file("maas.key", &format!("consumer:token:{MAAS_SECRET}"));
        self.done(&format!("credential set maas --maas-key {file} {binding}"));
    }

    fn set_kubeconfig(&self, port: u16) {
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             contexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
             clusters: [{{name: k, cluster: {{server: 'https://127.0.0.1:{port}', \
             certificate-authority-data: {}}}}}]\nusers: [{{name: u, user: {{token: {TOKEN}}}}}]\n",
            authority(self.dir)
        );
        let file = self.file("kubeconfig", &text);
        self.done(&format!("credential set cluster-a --kubeconfig {file}"));
    }
}

/// A self-signed certificate as a kubeconfig has it.
fn authority(dir: &Path) -> String {
    use base64::Engine;
    let file = dir.join("ca.pem");
    let mut openssl = std::process::Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "ed25519", "-nodes", "-days", "1", "-subj", "/CN=ca"]);
    openssl.arg("-keyout").arg(dir.join("ca.key")).arg("-out").arg(&file);
    assert!(openssl.output().unwrap().status.success());
    base64::prelude::BASE64_STANDARD.encode(std::fs::read(file).unwrap())
}

fn start(dir: &Path) -> Server {
    let config = CONFIG.into();
    Server::start(Setup { config, simulates: false, ..Setup::new(dir, "zero") })
}

fn saw_none(sink: &Sink, path: &str) {
    for secret in SECRETS {
        assert!(!sink.saw("root", secret), "{path} sent {secret}");
    }
}

/// Every command that logs in to a BMC, at an address of the caller's choice.
#[test]
fn a_bmc_of_the_callers_choice_gets_no_secret() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let person = Operator { url: server.url(), dir: dir.path() };
    person.set_kubeconfig(1);
    person.set_maas_key("--for 127.0.0.1 --allow-plain-http");
    for binding in [
        format!("--for {ELSEWHERE} --allow-plain-http"),
        "--for elsewhere.invalid --allow-plain-http".into(),
        // Bound to this computer, but not over plain HTTP.
        "--for 127.0.0.1".into(),
    ] {
        person.set_password("bmc", &binding);
        let sink = Sink::start();
        let at = format!("http://127.0.0.1:{}", sink.port);
        for line in
            [format!("bmc test {at} --credential bmc"), format!("discover {at} --credential bmc")]
        {
            let (_, output) = person.run(&line);
            assert!(output.contains(REFUSED), "{binding}: {line}\n{output}");
            assert!(output.contains("credential set bmc --for") || line.starts_with("discover"));
        }
        // A name that resolves to an address outside of the binding.
        let named = format!("bmc test http://localhost:{} --credential bmc", sink.port);
        let (_, output) = person.run(&named);
        assert!(output.contains("sent to http://localhost"), "{binding}: {output}");
        // Credentials of another kind do not go to a BMC at all.
        for name in ["cluster-a", "maas"] {
            person.run(&format!("bmc test {at} --credential {name}"));
        }
        saw_none(&sink, &binding);
    }
    // Control: at a peer of the binding the secret arrives, so the sink would have seen it.
    person.set_password("bmc", "--for 127.0.0.1 --allow-plain-http");
    let sink = Sink::start();
    person.run(&format!("bmc test http://127.0.0.1:{} --credential bmc", sink.port));
    assert!(sink.saw("root", PASSWORD), "the login of the control did not arrive");
    person.set_password("bmc", "--for 127.0.0.0/8 --allow-plain-http");
    let sink = Sink::start();
    person.run(&format!("bmc test http://localhost:{} --credential bmc", sink.port));
    assert!(sink.saw("root", PASSWORD), "a name that resolves into the network was refused");
}

#[test]
fn an_ipmi_bmc_of_the_callers_choice_gets_not_one_packet() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let person = Operator { url: server.url(), dir: dir.path() };
    for host in ["127.0.0.1", "localhost"] {
        person.set_password("bmc", &format!("--for {ELSEWHERE}"));
        let sink = Sink::start();
        for command in ["bmc test", "discover"] {
            let line = format!("{command} ipmi://{host}:{} --credential bmc", sink.port);
            let (_, output) = person.run(&line);
            assert!(output.contains("sent to ipmi://"), "{line}\n{output}");
        }
        assert_eq!(sink.contacts(), (0, 0), "{host}");
        if which("ipmitool") {
            person.set_password("bmc", "--for 127.0.0.0/8");
            person.run(&format!("bmc test ipmi://{host}:{} --credential bmc", sink.port));
            assert!(sink.contacts().1 > 0, "the control sent no packet");
        }
    }
}

fn which(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|folder| folder.join(program).is_file())
}

/// A machine whose addresses are changed: its probes, its commands and its operations.
#[tokio::test(flavor = "multi_thread")]
async fn a_machine_at_another_address_gets_no_secret() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let person = Operator { url: server.url(), dir: dir.path() };
    person.set_password("bmc", &format!("--for {ELSEWHERE} --allow-plain-http"));
    person.set_password("host", &format!("--for {ELSEWHERE}"));
    let (bmc, host) = (Sink::start(), Sink::start());
    person.done(&format!(
        "machine register m-1 --provider datacenter --bmc-endpoint http://127.0.0.1:{} \
         --bmc-credential bmc --ssh-endpoint 127.0.0.1:{} --ssh-credential host",
        bmc.port, host.port
    ));
    for line in ["machine power m-1", "machine inspect m-1", "machine console-log m-1"] {
        let (code, output) = person.run(line);
        assert!(code != 0 && output.contains(REFUSED), "{line}\n{output}");
    }
    let mut api = server.clients().await;
    // The probes of both have been made, and say why.
    api.machine_until("m-1", |machine| refused(machine, "BMCReachable")).await;
    api.done("m-1", "ENTER_MAINTENANCE", "enter").await;
    let run = ssh_run(&mut api, "refused").await;
    assert_eq!(run, (NOT_ALLOWED.into(), true));
    let reboot = api.start("m-1", "REBOOT", "r").await.run_id;
    api.finished(&reboot).await;
    let why = api.why(&reboot).await;
    assert_eq!(why.fault, NOT_ALLOWED, "{why:#?}");
    let binding = format!("farrier credential set bmc --for {ELSEWHERE} --for 127.0.0.1");
    assert!(why.next_commands[0].starts_with(&binding), "{why:#?}");
    saw_none(&bmc, "a changed bmc_endpoint");
    assert_eq!(bmc.contacts(), (0, 0), "the BMC was contacted");
    // A probe looks whether the port is open, and says nothing there.
    assert!(!host.saw_bytes(b"SSH-"), "the host was spoken to");
    // Control: the same machine with a binding that includes it.
    person.set_password("bmc", "--for 127.0.0.1 --allow-plain-http");
    person.set_password("host", &format!("--for 127.0.0.1:{}", host.port));
    person.run("machine power m-1");
    assert!(bmc.saw("root", PASSWORD), "the login of the control did not arrive");
    api.try_plan(plan("allowed", vec![step("run", ssh("true"))])).await.unwrap();
    api.start_plan("m-1", "allowed", "allowed").await;
    until("the host is spoken to", || host.saw_bytes(b"SSH-2.0-"));
}

fn refused(machine: &v1::Machine, condition: &str) -> bool {
    let mut known = machine.status.iter().flat_map(|status| &status.conditions);
    known.any(|one| one.r#type == condition && one.reason == NOT_ALLOWED)
}

/// The fault of a command over SSH, and whether it failed.
async fn ssh_run(api: &mut Clients, name: &str) -> (String, bool) {
    api.try_plan(plan(name, vec![step("run", ssh("true"))])).await.unwrap();
    let run = api.start_plan("m-1", name, name).await.run_id;
    let ended = api.finished(&run).await;
    (api.why(&run).await.fault, ended.phase() == v1::run::Phase::Failed)
}

fn until(what: &str, so: impl Fn() -> bool) {
    let started = Instant::now();
    while !so() {
        assert!(started.elapsed() < TEST_TIMEOUT, "it never came to pass that {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A site whose address is changed, and a credential that is bound to the site.
#[test]
fn a_site_at_another_address_gets_no_key() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let person = Operator { url: server.url(), dir: dir.path() };
    let (own, other) = (Sink::start(), Sink::start());
    person.set_maas_key(&format!("--for {ELSEWHERE} --allow-plain-http"));
    person.set_kubeconfig(1);
    let at = |sink: &Sink| format!("http://127.0.0.1:{}/MAAS", sink.port);
    person.done(&format!("site create site-a --maas-url {} --credential maas", at(&own)));
    let (code, output) = person.run("site check site-a");
    assert!(code != 0 && output.contains(REFUSED), "{output}");
    assert_eq!(own.contacts(), (0, 0));
    // Control: bound to the site, at the address that it has now.
    person.set_maas_key("--for site:site-a --allow-plain-http");
    let shown = person.done("credential get maas");
    assert!(shown.contains(&format!("site:site-a=127.0.0.1:{}", own.port)), "{shown}");
    person.run("site check site-a");
    assert!(own.saw("", MAAS_SECRET), "the key of the control did not arrive");
    // A site that moves does not take the secret along.
    person.done(&format!("site update site-a --maas-url {}", at(&other)));
    let (code, output) = person.run("site check site-a");
    assert!(code != 0 && output.contains(REFUSED), "{output}");
    person.done("site update site-a --credential cluster-a");
    person.run("site check site-a");
    saw_none(&other, "a changed maas_url");
    let file = person.file("password", PASSWORD);
    let unknown = format!("credential set x --user u --password-file {file} --for site:site-none");
    let (code, output) = person.run(&unknown);
    assert!(code == 2 && output.contains("farrier site list"), "{output}");
}

/// A peer of the binding that redirects to another one.
#[test]
fn a_redirect_takes_no_secret_along() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let person = Operator { url: server.url(), dir: dir.path() };
    let target = Sink::start();
    let redirecting = Sink::redirecting(&format!("http://127.0.0.1:{}", target.port));
    let binding = "--for 127.0.0.1 --allow-plain-http";
    person.set_password("bmc", binding);
    person.set_maas_key(binding);
    let port = redirecting.port;
    person.run(&format!("bmc test http://127.0.0.1:{port} --credential bmc"));
    person.done(&format!(
        "site create site-a --maas-url http://127.0.0.1:{port}/MAAS --credential maas"
    ));
    person.run("site check site-a");
    for secret in [PASSWORD, MAAS_SECRET] {
        assert!(redirecting.saw("root", secret), "{secret} did not reach the peer of the binding");
        assert!(!target.saw("root", secret), "{secret} followed a redirect");
    }
    assert_eq!(target.contacts(), (0, 0), "the redirect was followed");
}

/// Outside of a simulation every credential names its peers; the refusal says what to type.
#[test]
fn a_credential_names_its_peers() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let person = Operator { url: server.url(), dir: dir.path() };
    let file = person.file("password", PASSWORD);
    let set = format!("credential set bmc --user root --password-file {file}");
    let (code, output) = person.run(&set);
    assert_eq!(code, 2, "{output}");
    assert!(output.contains("farrier credential set bmc --for 10.1.0.0/24"), "{output}");
    for wrong in ["https://10.1.0.7", "10.1.0.0/33", "a b"] {
        let (code, output) = person.run_args(&set, &["--for", wrong]);
        assert!(code == 2 && output.contains("peers[0]"), "{wrong}: {output}");
    }
    person.done(&format!("{set} --for 10.1.0.7 --for 10.2.0.0/16 --for bmc-7.lan:8443"));
    let bound = "10.1.0.7, 10.2.0.0/16, bmc-7.lan:8443";
    assert!(person.done("credential get bmc").contains(bound));
    // A new password keeps the binding; a new binding replaces it.
    person.done(&set);
    assert!(person.done("credential get bmc").contains(bound));
    person.done(&format!("{set} --allow-plain-http"));
    let shown = person.done("credential get bmc");
    assert!(shown.contains(bound) && shown.contains("plain http://"), "{shown}");
    person.done(&format!("{set} --for bmc-8.lan"));
    let shown = person.done("credential list");
    assert!(shown.contains("bmc-8.lan") && !shown.contains("10.1.0.7"), "{shown}");
    assert!(!person.done("credential get bmc").contains("plain http://"));
    // A kubeconfig is bound to the server in it.
    person.set_kubeconfig(6443);
    assert!(person.done("credential get cluster-a").contains("127.0.0.1:6443"));
}

/// The credentials of a farrier that knew no bindings, as an upgrade finds them.
#[test]
fn an_upgrade_binds_each_credential_to_the_peers_that_records_name() {
    let dir = tempfile::tempdir().unwrap();
    let config = "[datacenter]\nbmc_credential = \"usual\"\njump_hosts = [\"bastion:2222\"]\n\
                  jump_credential = \"jump\"";
    let setup = Setup { config: config.into(), simulates: false, ..Setup::new(dir.path(), "zero") };
    let server = Server::start(setup);
    let person = Operator { url: server.url(), dir: dir.path() };
    for name in ["bmc", "usual", "host", "jump", "unused"] {
        person.set_password(name, "--for 203.0.113.1");
    }
    person.set_maas_key("--for 203.0.113.1");
    person.set_kubeconfig(6443);
    for line in [
        "machine register m-1 --provider datacenter --bmc-endpoint http://192.0.2.7 \
         --bmc-credential bmc --ssh-endpoint 192.0.2.8:2200 --ssh-credential host",
        "machine register m-2 --provider datacenter --bmc-endpoint ipmi://bmc-2.invalid",
        "switch register sw-1 --provider datacenter --bmc-endpoint https://192.0.2.9 \
         --bmc-credential bmc",
        "site create site-a --maas-url http://192.0.2.10:5240/MAAS --credential maas",
    ] {
        let line: Vec<&str> = line.split_whitespace().collect();
        person.done(&line.join(" "));
    }
    let setup = server.terminate();
    let mut python = std::process::Command::new("python3");
    python.args(["-c", RUN_SCRIPT]).arg(setup.dir.join("farrier.db")).arg(FORGET_BINDINGS);
    assert!(python.status().unwrap().success());

    let server = Server::start(setup);
    let person = Operator { url: server.url(), dir: dir.path() };
    for (name, bound, plain) in [
        ("bmc", "192.0.2.7:80, 192.0.2.9:443", true),
        ("usual", "bmc-2.invalid:623", false),
        ("host", "192.0.2.8:2200", false),
        ("jump", "bastion:2222", false),
        ("maas", "site:site-a=192.0.2.10:5240", true),
        ("cluster-a", "127.0.0.1:6443", false),
        ("unused", "no peer", false),
    ] {
        let shown = person.done(&format!("credential get {name}"));
        let mut sorted: Vec<&str> = bound.split(", ").collect();
        sorted.retain(|peer| !shown.contains(peer));
        assert!(sorted.is_empty() && !shown.contains("203.0.113"), "{name}: {shown}");
        assert_eq!(shown.contains("plain http://"), plain, "{name}: {shown}");
        let lines = server.log();
        let line = lines.lines().find(|line| line.contains(&format!("{name:?}")));
        assert!(line.is_some_and(|line| line.contains("had no binding")), "{name}: {lines}");
    }
    let history = person.done("history credential/bmc");
    assert!(history.contains("bound to 2 peers that records name"), "{history}");
    // The next start has nothing to bind.
    let before = server.log();
    let server = Server::start(server.terminate());
    assert_eq!(
        server.log().matches("had no binding").count(),
        before.matches("had no binding").count()
    );
}

const FORGET_BINDINGS: &str = include_str!("../../../store/tests/forget_bindings.sql");
const RUN_SCRIPT: &str = "import sqlite3, sys\n\
    sqlite3.connect(sys.argv[1]).executescript(sys.argv[2])";

impl Operator<'_> {
    fn run_args(&self, line: &str, more: &[&str]) -> (i32, String) {
        let args: Vec<&str> = line.split(' ').chain(more.iter().copied()).collect();
        let (code, stdout, stderr) = finish(farrier(&self.url, &args));
        (code, stdout + &stderr)
    }
}

/// A server that is killed while it seals secrets again continues at its next start.
#[test]
fn a_rotation_goes_on_after_kill_9() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let person = Operator { url: server.url(), dir: dir.path() };
    for index in 0..60 {
        person.set_password(&format!("c-{index}"), "--for 127.0.0.1");
    }
    let before = sealed_with(&server.setup.dir);
    assert_eq!(before.len(), 1);
    let client = farrier(&server.url(), &["secret", "rotate"]);
    // Killed as soon as the first credential has another key, which is in the middle or at the end.
    until("the rotation begins", || sealed_with(&server.setup.dir) != before);
    let setup = server.kill();
    finish(client);
    let server = Server::start(setup);
    let after = sealed_with(&server.setup.dir);
    assert!(after.len() == 1 && after != before, "{before:?} {after:?}");
    let person = Operator { url: server.url(), dir: dir.path() };
    for index in [0, 30, 59] {
        let line = format!("bmc test http://127.0.0.1:1 --credential c-{index}");
        let (_, output) = person.run(&line);
        assert!(!output.contains("sealed with another key"), "{output}");
    }
}

/// The keys in the database and those that credentials are sealed with; the same, when all is done.
fn sealed_with(data: &Path) -> std::collections::BTreeSet<String> {
    let mut python = std::process::Command::new("python3");
    python.args(["-c", PRINT_ROWS]).arg(data.join("farrier.db")).arg(LIST_KEYS);
    let output = python.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(String::from).collect()
}

const LIST_KEYS: &str = include_str!("../../../store/tests/list_seal_keys.sql");
const PRINT_ROWS: &str = "import sqlite3, sys\n\
    db = sqlite3.connect(sys.argv[1], timeout=30)\n\
    print(*(key for key, in db.execute(sys.argv[2])), sep='\\n')";
