//! A real `farrier serve` in a child process, which can be killed and restarted on the same data.

use proto::v1;
use proto::v1::admin_service_client::AdminServiceClient;
use proto::v1::explain_service_client::ExplainServiceClient;
use proto::v1::health_service_client::HealthServiceClient;
use proto::v1::machine_service_client::MachineServiceClient;
use proto::v1::node_service_client::NodeServiceClient;
use proto::v1::operation_service_client::OperationServiceClient;
use proto::v1::plan_service_client::PlanServiceClient;
use proto::v1::rack_service_client::RackServiceClient;
use proto::v1::run_service_client::RunServiceClient;
use proto::v1::simulator_service_client::SimulatorServiceClient;
use proto::v1::site_service_client::SiteServiceClient;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Endpoint;
use tonic::{Request, Status};

/// The administrator's token of every server in the tests.
pub const TEST_TOKEN: &str = "farrier_pat_of_the_tests_0123456789abcdef";

/// A connection with the administrator's token.
pub type Channel = InterceptedService<tonic::transport::Channel, TestToken>;

/// Adds a token to every request.
#[derive(Clone)]
pub struct TestToken(pub String);

impl Interceptor for TestToken {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        let value = format!("Bearer {}", self.0).parse().unwrap();
        request.metadata_mut().insert("authorization", value);
        Ok(request)
    }
}

/// Connects to a server with the administrator's token.
pub async fn channel(url: &str) -> Channel {
    channel_with(url, TEST_TOKEN).await
}

/// Connects to a server with another token.
pub async fn channel_with(url: &str, token: &str) -> Channel {
    let connected = Endpoint::from_shared(url.to_string()).unwrap().connect().await.unwrap();
    InterceptedService::new(connected, TestToken(token.into()))
}

/// A file of contexts that does not exist and cannot be made.
pub const NO_CONTEXTS: &str = "/proc/farrier/contexts.toml";

/// Environment variables of a test's commands: the token, and no contexts of the user.
pub fn as_administrator(command: &mut Command) -> &mut Command {
    command.env("FARRIER_TOKEN", TEST_TOKEN).env("FARRIER_CONTEXTS", NO_CONTEXTS)
}

/// Time limit of every wait; a test that reaches it has failed.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(120);

/// A short lease, so that replicas detect a dead one within a test. A live replica on a busy host
/// must still renew it in time.
pub const SHORT_LEASE: &str = "[engine]\nlease_ms = 4000\nrenew_ms = 500";

/// The images of simulated machines.
pub const IMAGES: [&str; 2] = ["ubuntu-2204", "rhel-9"];

/// The database of a server.
#[derive(Debug, Clone)]
pub enum DatabaseKind {
    Sqlite,
    Postgres(String),
}

/// The settings of a server.
#[derive(Debug, Clone)]
pub struct Setup {
    pub home: DatabaseKind,
    pub dir: PathBuf,
    pub sim_dir: PathBuf,
    pub speed: &'static str,
    /// True if the server has the provider `sim`.
    pub simulates: bool,
    pub demo: bool,
    pub log_level: &'static str,
    pub name: String,
    pub port: u16,
    /// More lines for the configuration file: `top` before its sections, `config` after them.
    pub top: String,
    pub config: String,
    /// The limit of open files of the server; None: that of the test.
    pub descriptors: Option<u32>,
}

impl Setup {
    pub fn new(dir: &Path, speed: &'static str) -> Self {
        Self {
            home: DatabaseKind::Sqlite,
            dir: dir.join("data"),
            sim_dir: dir.join("sim"),
            speed,
            simulates: true,
            demo: false,
            log_level: "warn",
            name: "one".into(),
            port: free_port(),
            top: String::new(),
            config: String::new(),
            descriptors: None,
        }
    }

    /// The settings of another replica, on the same database and the same simulated hardware, with
    /// the same key.
    pub fn replica(&self, name: &str) -> Self {
        Self {
            name: name.into(),
            dir: self.dir.with_file_name(format!("data-{name}")),
            port: free_port(),
            top: format!("{}\n{}", self.top, seal_key(&self.dir.with_file_name("seal.key"))),
            ..self.clone()
        }
    }
}

/// The line of the configuration for a key that servers on one database share.
pub fn seal_key(path: &Path) -> String {
    format!("seal_key_file = {path:?}\n")
}

/// A port on loopback for a server that starts later and may be restarted. It is outside the
/// ephemeral ports (32768 and above on Linux), and each call returns another one.
pub fn free_port() -> u16 {
    const FIRST: u32 = 10_000;
    const COUNT: u32 = 22_000;
    static GIVEN_OUT: AtomicU32 = AtomicU32::new(0);
    let free = |port: &u16| {
        let address = ("127.0.0.1", *port);
        TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok()
    };
    // Concurrent test programs start at different ports.
    let begin = std::process::id().wrapping_mul(613);
    let next = || {
        let offset = begin.wrapping_add(GIVEN_OUT.fetch_add(1, Ordering::Relaxed)) % COUNT;
        u16::try_from(FIRST + offset).unwrap()
    };
    (0..COUNT).map(|_| next()).find(free).expect("a free port on loopback")
}

/// Skips a test because a program is missing on this host. On CI that is a failure.
pub fn skip(missing: &str) {
    assert!(std::env::var_os("CI").is_none(), "this is CI, and {missing}");
    eprintln!("skipped: {missing}");
}

/// A peer's program or server, which `cargo xtask test` names in a variable. None skips the test.
pub fn provided(variable: &str) -> Option<String> {
    let value = std::env::var(variable).ok();
    if value.is_none() {
        skip(&format!("{variable} is not set; `cargo xtask test` sets it"));
    }
    value
}

/// The binary, with a limit of open files that it cannot raise.
fn program(descriptors: Option<u32>) -> Command {
    let binary = env!("CARGO_BIN_EXE_farrier");
    let Some(limit) = descriptors else { return Command::new(binary) };
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -n \"$0\" && exec \"$@\"", &limit.to_string(), binary]);
    shell
}

pub struct Server {
    pub setup: Setup,
    child: Child,
}

impl Server {
    pub fn start(setup: Setup) -> Self {
        let mut child = Self::spawn(&setup);
        let stdout = child.stdout.take().unwrap();
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        let server = Self { setup, child };
        assert!(line.contains("serves gRPC"), "{line}\n{}", server.log());
        server
    }

    /// Starts a server that refuses to run. Returns its messages.
    pub fn refused_start(setup: &Setup) -> String {
        let before = std::fs::read_to_string(setup.dir.join("server.log")).unwrap_or_default();
        let status = Self::spawn(setup).wait().unwrap();
        let log = std::fs::read_to_string(setup.dir.join("server.log")).unwrap();
        let log = log[before.len()..].to_string();
        assert_eq!(status.code(), Some(2), "{log}");
        log
    }

    fn spawn(setup: &Setup) -> Child {
        let Setup { home, dir, sim_dir, speed, simulates, demo, log_level, .. } = setup;
        let Setup { name, port, top, config, .. } = setup;
        std::fs::create_dir_all(dir).unwrap();
        let database = match home {
            DatabaseKind::Sqlite => String::new(),
            DatabaseKind::Postgres(url) => url.clone(),
        };
        let file = dir.join("farrier.toml");
        let token = dir.join("test.token");
        std::fs::write(&token, TEST_TOKEN).unwrap();
        let text = format!(
            "listen = \"127.0.0.1:{port}\"\ndata_dir = {dir:?}\ndatabase_url = {database:?}\n\
             replica_name = {name:?}\nadmin_token_file = {token:?}\n{top}\n[log]\n\
             level = {log_level:?}\n[sim]\n\
             enabled = {simulates}\nspeed = {speed:?}\ndir = {sim_dir:?}\n\
             images = {IMAGES:?}\n{config}\n"
        );
        std::fs::write(&file, text).unwrap();
        let mut options = std::fs::File::options();
        let messages = options.create(true).append(true).open(dir.join("server.log")).unwrap();
        program(setup.descriptors)
            .args(["serve", "--config"])
            .arg(&file)
            .args(demo.then_some("--demo"))
            .env("FARRIER_CONTEXTS", dir.join("contexts.toml"))
            .stdout(Stdio::piped())
            .stderr(messages)
            .spawn()
            .unwrap()
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.setup.port)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.setup.dir.join("server.log")).unwrap_or_default()
    }

    /// SIGKILL, without a clean shutdown.
    pub fn kill(mut self) -> Setup {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.setup.clone()
    }

    /// SIGTERM; waits for a clean exit.
    pub fn terminate(mut self) -> Setup {
        signal(self.pid(), "TERM");
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}\n{}", self.log());
        self.setup.clone()
    }

    /// SIGSTOP. Replicas share the simulated hardware through file locks, which real hardware does
    /// not have, so the process is stopped only while it holds none of them.
    pub fn freeze(&self) {
        loop {
            signal(self.pid(), "STOP");
            while !self.is_stopped() {
                std::thread::sleep(Duration::from_millis(1));
            }
            if !self.holds_hardware() {
                return;
            }
            self.resume();
            std::thread::sleep(Duration::from_millis(3));
        }
    }

    fn is_stopped(&self) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
        status.rsplit_once(')').unwrap().1.trim_start().starts_with('T')
    }

    fn holds_hardware(&self) -> bool {
        let locks = std::fs::read_dir(self.setup.sim_dir.join("locks")).unwrap();
        let claimed = |path: PathBuf| std::fs::File::open(path).unwrap().try_lock().is_err();
        locks.flatten().any(|lock| claimed(lock.path()))
    }

    /// SIGCONT: the process continues without noticing the pause.
    pub fn resume(&self) {
        signal(self.pid(), "CONT");
    }

    pub async fn clients(&self) -> Clients {
        Clients::connect(&self.url()).await
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("server log:\n{}", self.log());
        }
    }
}

pub fn signal(pid: u32, name: &str) {
    let status = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status();
    assert!(status.unwrap().success());
}

#[derive(Clone)]
pub struct Clients {
    pub machines: MachineServiceClient<Channel>,
    pub operations: OperationServiceClient<Channel>,
    pub runs: RunServiceClient<Channel>,
    pub sim: SimulatorServiceClient<Channel>,
    pub plans: PlanServiceClient<Channel>,
    pub admin: AdminServiceClient<Channel>,
    pub explain: ExplainServiceClient<Channel>,
    pub health: HealthServiceClient<Channel>,
    pub racks: RackServiceClient<Channel>,
    pub nodes: NodeServiceClient<Channel>,
    pub sites: SiteServiceClient<Channel>,
}

impl Clients {
    pub async fn connect(url: &str) -> Self {
        Self::on(channel(url).await)
    }

    /// Connects on first use, and reconnects whenever the connection has broken.
    pub fn lazy(url: &str) -> Self {
        let lazy = Endpoint::from_shared(url.to_string()).unwrap().connect_lazy();
        Self::on(InterceptedService::new(lazy, TestToken(TEST_TOKEN.into())))
    }

    pub fn on(channel: Channel) -> Self {
        Self {
            machines: MachineServiceClient::new(channel.clone()),
            operations: OperationServiceClient::new(channel.clone()),
            runs: RunServiceClient::new(channel.clone()),
            sim: SimulatorServiceClient::new(channel.clone()),
            plans: PlanServiceClient::new(channel.clone()),
            admin: AdminServiceClient::new(channel.clone()),
            explain: ExplainServiceClient::new(channel.clone()),
            health: HealthServiceClient::new(channel.clone()),
            racks: RackServiceClient::new(channel.clone()),
            nodes: NodeServiceClient::new(channel.clone()),
            sites: SiteServiceClient::new(channel),
        }
    }

    pub async fn register(&mut self, id: &str) -> v1::Machine {
        let spec = v1::MachineSpec {
            target_cluster_ref: "cluster-a".into(),
            provider: "sim".into(),
            ..Default::default()
        };
        let machine = v1::Machine { machine_id: id.into(), spec: Some(spec), ..Default::default() };
        let request = v1::RegisterMachineRequest { machine: Some(machine), ..Default::default() };
        self.machines.register_machine(request).await.unwrap().into_inner()
    }

    /// Starts a run of this type with this request ID.
    pub async fn start(&mut self, id: &str, kind: &str, request: &str) -> v1::Run {
        self.try_start(id, kind, request).await.unwrap()
    }

    pub async fn try_start(
        &mut self,
        id: &str,
        kind: &str,
        request: &str,
    ) -> Result<v1::Run, tonic::Status> {
        let request = v1::StartRunRequest {
            machine_id: id.into(),
            r#type: kind.into(),
            request_id: request.into(),
            ..Default::default()
        };
        self.runs.start_run(request).await.map(tonic::Response::into_inner)
    }

    pub async fn run(&mut self, id: &str) -> v1::Run {
        self.runs.get_run(v1::GetRunRequest { run_id: id.into() }).await.unwrap().into_inner()
    }

    pub async fn machine(&mut self, id: &str) -> v1::Machine {
        let request = v1::GetMachineRequest { machine_id: id.into(), ..Default::default() };
        self.machines.get_machine(request).await.unwrap().into_inner()
    }

    /// Registers a machine and brings it into maintenance.
    pub async fn in_maintenance(&mut self, id: &str) {
        self.register(id).await;
        let run = self.start(id, "ENTER_MAINTENANCE", "enter").await;
        self.finished(&run.run_id).await;
    }

    /// Waits until the run has ended.
    pub async fn finished(&mut self, id: &str) -> v1::Run {
        self.until(id, |run| run.finished_at.is_some()).await
    }

    /// Waits until a step with this name is running.
    pub async fn at_step(&mut self, id: &str, step: &str) -> v1::Run {
        let running = v1::step_status::State::Running;
        let there = |one: &v1::StepStatus| one.name == step && one.state() == running;
        self.until(id, |run| run.steps.iter().any(there)).await
    }

    pub async fn until(&mut self, id: &str, reached: impl Fn(&v1::Run) -> bool) -> v1::Run {
        let started = Instant::now();
        loop {
            let run = self.run(id).await;
            if reached(&run) {
                return run;
            }
            assert!(started.elapsed() < TEST_TIMEOUT, "{run:#?} did not get there");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub async fn fault(&mut self, fault: v1::SimFault) {
        self.sim.create_fault(v1::CreateFaultRequest { fault: Some(fault) }).await.unwrap();
    }

    /// For each effect key of a run, the number of times that the hardware applied it.
    pub async fn applied(&mut self, prefix: &str) -> BTreeMap<String, i32> {
        let (run, step) = prefix.split_once('/').unwrap_or((prefix, ""));
        let step = if step.is_empty() { String::new() } else { format!(" AND step={step}") };
        let filter = format!("run_id={run}{step}");
        let request = v1::ListEffectsRequest { filter, page_size: 1_000, ..Default::default() };
        let effects = self.sim.list_effects(request).await.unwrap().into_inner().effects;
        effects.into_iter().map(|effect| (effect.key, effect.applied)).collect()
    }
}

/// The steps of a run with their states.
pub fn steps(run: &v1::Run) -> Vec<(String, &'static str)> {
    let state = |step: &v1::StepStatus| step.state().as_str_name();
    run.steps.iter().map(|step| (step.name.clone(), state(step))).collect()
}

/// The test cluster that `cargo xtask test` starts.
pub fn postgres() -> Option<String> {
    provided("FARRIER_TEST_POSTGRES")
}

/// Waits until every transaction that is open now has ended. On PostgreSQL a watch shows nothing
/// newer than the oldest open transaction of the whole cluster, which the tests share. A watch that
/// is opened after this starts with everything that was committed before.
pub async fn transactions_settled(home: &DatabaseKind) {
    let DatabaseKind::Postgres(url) = home else { return };
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let snapshot = async || {
        let row = client.query_one(SNAPSHOT, &[]).await.unwrap();
        row.get::<_, i64>(0)..row.get::<_, i64>(1)
    };
    let (now, started) = (snapshot().await, Instant::now());
    while snapshot().await.start < now.end {
        assert!(started.elapsed() < TEST_TIMEOUT, "some transaction stays open");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// SQL belongs to the store crate, even for a test that reads the database directly.
const SNAPSHOT: &str = include_str!("../../../store/tests/snapshot.sql");

/// Starts replicas on one new database and one simulated fleet. None without PostgreSQL.
pub async fn replicas(dir: &Path, names: &[&str], config: &str) -> Option<Vec<Server>> {
    let cluster = postgres()?;
    let mut setup = Setup::new(dir, "fast");
    setup.home = DatabaseKind::Postgres(new_database(&cluster).await);
    setup.config = config.into();
    Some(names.iter().map(|name| Server::start(setup.replica(name))).collect())
}

/// Creates a new database on the test cluster.
pub async fn new_database(cluster: &str) -> String {
    let (client, connection) =
        tokio_postgres::connect(&format!("{cluster}/postgres"), tokio_postgres::NoTls)
            .await
            .unwrap();
    tokio::spawn(connection);
    let name = format!("farrier_{:016x}", rand::random::<u64>());
    client.batch_execute(&format!("CREATE DATABASE {name}")).await.unwrap();
    format!("{cluster}/{name}")
}
