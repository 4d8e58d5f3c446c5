//! The real server against real peers: a third-party Redfish emulator as BMC and OpenSSH as host.
//! The server is killed in the middle.

use crate::api::{plan, ssh, step};
use crate::fleet::{Clients, Server, Setup, TEST_TIMEOUT, free_port, provided};
use proto::v1;
use proto::v1::credential_secret::Kind as Secret;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub const SUSHY: &str = "FARRIER_TEST_SUSHY";
pub const SSHD: &str = "FARRIER_TEST_SSHD";
pub const PASSWORD: &str = "s3cret-of-the-bmc";
/// The same password, hashed by bcrypt with minimal cost.
const HTPASSWD: &str = "root:$2y$04$g1kJ9kcG.7ROVx4dfHP3q.2bFHUKoKB8aGBjgBl1RNSZswkYBCR7W\n";
pub const MAC: &str = "52:54:00:00:00:01";
/// No graceful shutdown, and probes every two seconds.
const HASTY: &str = "[datacenter]\ngraceful_seconds = 0\nbmc_credential = \"bmc\"\n\
                     ssh_credential = \"host\"\n[probes]\ninterval_ms = 2000";

/// The path of a peer's program.
pub fn peer(variable: &str) -> Option<PathBuf> {
    provided(variable).map(PathBuf::from)
}

/// A peer process that runs as long as this value lives.
pub struct Peer {
    child: Child,
    pub port: u16,
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Peer {
    fn start(mut command: Command, port: u16) -> Self {
        let child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let peer = Self { child: child.unwrap(), port };
        let started = Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(started.elapsed() < TEST_TIMEOUT, "a peer did not start");
            std::thread::sleep(Duration::from_millis(50));
        }
        peer
    }
}

pub fn emulator(program: &Path, dir: &Path) -> Peer {
    let port = free_port();
    let file = |name: &str| dir.join(name).display().to_string();
    std::fs::write(file("htpasswd"), HTPASSWD).unwrap();
    std::fs::create_dir(file("state")).unwrap();
    let config = format!(
        "SUSHY_EMULATOR_LISTEN_IP = '127.0.0.1'\nSUSHY_EMULATOR_LISTEN_PORT = {port}\n\
         SUSHY_EMULATOR_AUTH_FILE = '{}'\nSUSHY_EMULATOR_STATE_DIR = '{}'\n\
         SUSHY_EMULATOR_FAKE_DRIVER = True\nSUSHY_EMULATOR_FEATURE_SET = 'full'\n\
         SUSHY_EMULATOR_FAKE_SYSTEMS = [{{'uuid': 'a1b2c3d4-0000-0000-0000-000000000001', \
         'name': 'node1', 'power_state': 'On', 'external_notifier': False, \
         'nics': [{{'mac': '{MAC}', 'ip': '10.0.0.1'}}]}}]\n",
        file("htpasswd"),
        file("state"),
    );
    std::fs::write(file("fake.conf"), config).unwrap();
    let mut command = Command::new(program);
    command.args(["--config", &file("fake.conf")]);
    Peer::start(command, port)
}

/// Starts an sshd as host. `more` is added to its configuration.
pub fn host(program: &Path, dir: &Path, more: &str) -> Peer {
    let port = free_port();
    let file = |name: &str| dir.join(name).display().to_string();
    for name in ["host_key", "user_key"] {
        let mut keygen = Command::new("ssh-keygen");
        keygen.args(["-q", "-t", "ed25519", "-N", "", "-C", "test", "-f"]).arg(file(name));
        assert!(keygen.status().unwrap().success());
    }
    std::fs::copy(file("user_key.pub"), file("authorized_keys")).unwrap();
    let config = format!(
        "Port {port}\nListenAddress 127.0.0.1\nHostKey {}\nPidFile none\nUsePAM no\nStrictModes no\n\
         AuthorizedKeysFile {}\nPasswordAuthentication no\n{more}\n",
        file("host_key"),
        file("authorized_keys"),
    );
    std::fs::write(file("sshd_config"), config).unwrap();
    // As root, sshd needs a directory that only root can write to.
    let _ = std::fs::create_dir_all("/run/sshd");
    let mut command = Command::new(program);
    command.args(["-D", "-f", &file("sshd_config")]);
    Peer::start(command, port)
}

pub async fn set(server: &Server, name: &str, secret: Secret) {
    let channel = crate::fleet::channel(&server.url()).await;
    let mut api = v1::credential_service_client::CredentialServiceClient::new(channel);
    // The peers of the tests are on this computer.
    let peers = ["127.0.0.0/8", "::1/128"].map(String::from).to_vec();
    let request = v1::UpdateCredentialRequest {
        name: name.into(),
        peers,
        allow_plain_http: true,
        secret: Some(v1::CredentialSecret { kind: Some(secret) }),
        expected_version: 0,
        allow_missing: true,
        ..Default::default()
    };
    let set = api.update_credential(request).await.unwrap().into_inner();
    assert_eq!(set.name, name);
}

pub fn password(password: &str) -> Secret {
    Secret::Password(v1::Password { user: "root".into(), password: password.into() })
}

/// The credential that the host accepts: the current user with a new key.
pub fn user_key(dir: &Path) -> Secret {
    let user = Command::new("id").arg("-un").output().unwrap().stdout;
    let user = String::from_utf8(user).unwrap().trim().to_string();
    let private_key = std::fs::read_to_string(dir.join("user_key")).unwrap();
    Secret::SshKey(v1::SshKey { user, private_key, ..Default::default() })
}

pub async fn register(api: &mut Clients, spec: v1::MachineSpec) {
    register_as(api, "m-1", spec).await;
}

pub async fn register_as(api: &mut Clients, id: &str, spec: v1::MachineSpec) {
    let spec = v1::MachineSpec { provider: "datacenter".into(), ..spec };
    let machine = v1::Machine { machine_id: id.into(), spec: Some(spec), ..Default::default() };
    api.put(machine).await;
}

pub async fn log_of(api: &mut Clients, id: &str) -> String {
    let request =
        v1::StreamRunLogsRequest { run_id: id.into(), no_follow: true, ..Default::default() };
    let mut stream = api.runs.stream_run_logs(request).await.unwrap().into_inner();
    let mut log = Vec::new();
    while let Some(chunk) = stream.message().await.unwrap() {
        log.extend(chunk.data);
    }
    String::from_utf8(log).unwrap()
}

pub async fn log_says(api: &mut Clients, id: &str, words: &str) {
    let started = Instant::now();
    while !log_of(api, id).await.contains(words) {
        assert!(started.elapsed() < TEST_TIMEOUT, "{:?}", api.run(id).await);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_is_rebooted_through_its_bmc_although_we_are_killed() {
    let Some(program) = peer(SUSHY) else { return };
    let dir = tempfile::tempdir().unwrap();
    let bmc = emulator(&program, dir.path());
    let server = Server::start(Setup { config: HASTY.into(), ..Setup::new(dir.path(), "zero") });
    set(&server, "bmc", password("wrong")).await;
    let mut api = server.clients().await;
    let spec = v1::MachineSpec {
        bmc_endpoint: format!("http://127.0.0.1:{}", bmc.port),
        mac_addresses: vec![MAC.into()],
        ..Default::default()
    };
    register(&mut api, spec).await;
    api.done("m-1", "ENTER_MAINTENANCE", "enter").await;

    // The wrong password is tried once and not again.
    let run = api.start("m-1", "REBOOT", "r").await.run_id;
    let refused = api.finished(&run).await;
    assert_eq!(refused.phase(), v1::run::Phase::Failed, "{refused:#?}");
    let why = api.why(&run).await;
    assert_eq!(why.fault, "login-refused", "{why:#?}");
    assert!(why.next_commands.iter().any(|next| next.contains("credential")), "{why:#?}");

    // With the right password the run continues; the server is killed in the middle of the reboot.
    set(&server, "bmc", password(PASSWORD)).await;
    let retry = v1::RetryStepRequest { run_id: run.clone(), ..Default::default() };
    api.runs.retry_step(retry).await.unwrap();
    log_says(&mut api, &run, "cutting it off").await;
    let server = Server::start(server.kill());
    let mut api = server.clients().await;
    let done = api.finished(&run).await;
    assert_eq!(done.phase(), v1::run::Phase::Succeeded, "{done:#?}\n{}", server.log());
    assert!(done.steps[0].message.contains("seen off, and is on again"), "{done:#?}");
    let log = log_of(&mut api, &run).await;
    assert_eq!(log.matches("cutting it off").count(), 1, "{log}");
    assert_eq!(log.matches("switching it on").count(), 1, "{log}");
    let history = api.history(&run).await;
    assert!(history.iter().any(|entry| entry.message.contains("took over")), "{history:#?}");
    let machine = api.machine_until("m-1", |machine| crate::api::is(machine, "BMCReachable")).await;
    assert!(!format!("{machine:?}{}", server.log()).contains(PASSWORD), "a secret was shown");

    // An unsupported operation is refused before anything happens.
    let status = api.try_start("m-1", "REPAVE", "image").await.unwrap_err();
    assert!(status.message().contains("repave-os needs Imaging"), "{status:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_on_a_host_outlives_us_and_its_log_is_whole() {
    let Some(program) = peer(SSHD) else { return };
    let dir = tempfile::tempdir().unwrap();
    let ssh_server = host(&program, dir.path(), "");
    let server = Server::start(Setup { config: HASTY.into(), ..Setup::new(dir.path(), "zero") });
    set(&server, "host", user_key(dir.path())).await;
    let mut api = server.clients().await;
    let ssh_endpoint = format!("127.0.0.1:{}", ssh_server.port);
    register(&mut api, v1::MachineSpec { ssh_endpoint, ..Default::default() }).await;
    let mark = dir.path().join("mark");
    let count = "i=0; while [ $i -lt 30 ]; do i=$((i+1)); echo line-$i-; sleep 0.2; done";
    let command = format!("echo begun >> {}; {count}", mark.display());
    api.try_plan(plan("count", vec![step("count", ssh(&command)), step("fail", ssh("exit 7"))]))
        .await
        .unwrap();
    api.done("m-1", "ENTER_MAINTENANCE", "enter").await;
    let run = api.start_plan("m-1", "count", "r").await.run_id;
    log_says(&mut api, &run, "line-5-").await;
    let server = Server::start(server.kill());
    let mut api = server.clients().await;
    let ended = api.finished(&run).await;
    let log = log_of(&mut api, &run).await;
    for line in 1..=30 {
        assert_eq!(log.matches(&format!("line-{line}-")).count(), 1, "line {line} of\n{log}");
    }
    assert_eq!(std::fs::read_to_string(mark).unwrap(), "begun\n", "it began once");
    // A command that fails ends the run with its exit code.
    let error = ended.error.as_ref().map(|error| error.message.clone()).unwrap_or_default();
    assert!(error.contains("code 7"), "{ended:#?}");
    let machine = api.machine_until("m-1", |machine| crate::api::is(machine, "Reachable")).await;
    assert_eq!(machine.machine_id, "m-1");
}
