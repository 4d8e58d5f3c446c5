//! The real `farrier serve` in its own process, with simulated hardware.

use crate::client::ClientPool;
use crate::{Bench, Outcome, Store};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tokio_rustls::rustls;
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};
use tonic::{Request, Status};

/// The administrator's token of every server in the benchmark.
pub const TOKEN: &str = "farrier_pat_of_the_benchmark_0123456789abcdef";

/// A connection with the administrator's token.
pub type Channel = InterceptedService<tonic::transport::Channel, BenchToken>;

/// Adds the token to every request.
#[derive(Clone, Copy)]
pub struct BenchToken;

impl Interceptor for BenchToken {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        let value = format!("Bearer {TOKEN}").parse();
        let value = value.map_err(|_| Status::internal("the token is no header"))?;
        request.metadata_mut().insert("authorization", value);
        Ok(request)
    }
}

/// The file of the server's certificate.
const CERTIFICATE: &str = "server.pem";
/// The maximum number of connections; more clients share them.
const MAX_CHANNELS: usize = 8;
/// So rare that none occurs during a measurement.
const SELDOM_MS: u64 = SELDOM_SECONDS * 1_000;
const SELDOM_SECONDS: u64 = 86_400;
/// All new machines have been probed when no probe was made for this long.
const SETTLE_INTERVAL: Duration = Duration::from_millis(400);
const SETTLE_TIMEOUT: Duration = Duration::from_secs(120);

/// The response of the simulated hardware.
#[derive(Clone, Copy, PartialEq)]
pub enum Hardware {
    /// At once.
    Prompt,
    /// Seconds for each provider call.
    Realistic,
    /// It starts the first step of ENTER_MAINTENANCE and delays the response for an hour: the run
    /// stays active.
    Holding,
}

/// The number of runs that the engine executes.
#[derive(Clone, Copy, PartialEq)]
pub enum RunSlots {
    Default,
    /// One, so that all other accepted runs wait in the queue.
    One,
}

/// The interval at which each machine is probed.
#[derive(Clone, Copy)]
pub enum Probes {
    Seldom,
    Default,
    EveryMs(u64),
}

#[derive(Clone)]
pub struct Setup {
    pub store: Store,
    pub machines: usize,
    pub hardware: Hardware,
    pub run_slots: RunSlots,
    pub probes: Probes,
    /// The number of past runs in the database.
    pub past_runs: u64,
    /// True if the listener has TLS.
    pub tls: bool,
}

impl Setup {
    pub fn new(store: Store) -> Self {
        let (hardware, run_slots, probes) = (Hardware::Prompt, RunSlots::Default, Probes::Seldom);
        Self { store, machines: 0, hardware, run_slots, probes, past_runs: 0, tls: false }
    }

    pub fn machines(self, machines: usize) -> Self {
        Self { machines, ..self }
    }

    pub fn hardware(self, hardware: Hardware) -> Self {
        Self { hardware, ..self }
    }

    pub fn run_slots(self, run_slots: RunSlots) -> Self {
        Self { run_slots, ..self }
    }

    pub fn probes(self, probes: Probes) -> Self {
        Self { probes, ..self }
    }

    pub fn past_runs(self, past_runs: u64) -> Self {
        Self { past_runs, ..self }
    }

    pub fn tls(self, tls: bool) -> Self {
        Self { tls, ..self }
    }

    fn config(&self, dir: &Path, database: &str) -> String {
        let interval = match self.probes {
            Probes::Seldom => format!("interval_ms = {SELDOM_MS}"),
            Probes::Default => String::new(),
            Probes::EveryMs(every) => format!("interval_ms = {every}"),
        };
        let hardware = match self.hardware {
            Hardware::Prompt => "speed = \"zero\"",
            Hardware::Realistic => "speed = \"human\"",
            Hardware::Holding => {
                "speed = \"zero\"\n\
                 faults = [{ effect = \"verify\", action = \"slow\", delay_ms = 3600000 }]"
            }
        };
        let engine = match self.run_slots {
            RunSlots::Default => "",
            RunSlots::One => "max_in_flight = 1\neager_in_flight = 0",
        };
        let machines = self.machines;
        let token = dir.with_file_name("bench.token");
        let tls = match self.tls {
            true => {
                let (certificate, key) =
                    (dir.with_file_name(CERTIFICATE), dir.with_file_name("server.key"));
                format!("[tls]\ncertificate = {certificate:?}\nkey = {key:?}\n")
            }
            false => String::new(),
        };
        format!(
            "listen = \"127.0.0.1:0\"\ndata_dir = {dir:?}\ndatabase_url = {database:?}\n\
             replica_name = \"bench\"\nadmin_token_file = {token:?}\n{tls}[log]\nlevel = \"warn\"\n[engine]\n{engine}\n\
             [probes]\n{interval}\n[sim]\nenabled = true\nmachines = {machines}\nimages = [\"ubuntu-2204\"]\n{hardware}\n\
             [nodes]\nsilence_seconds = {SELDOM_SECONDS}\nreconcile_seconds = {SELDOM_SECONDS}\n"
        )
    }
}

pub struct Fleet {
    pub setup: Setup,
    url: String,
    child: Child,
    database: String,
    dir: PathBuf,
}

impl Fleet {
    pub async fn start(bench: &Bench, setup: Setup) -> Outcome<Self> {
        let database = match setup.store {
            Store::Sqlite => String::new(),
            Store::Postgres => new_database(bench.postgres()?).await?,
        };
        let dir = tempfile::tempdir_in(bench.root.path())?.keep();
        if setup.past_runs > 0 {
            add_past_runs(bench, &setup, &dir, &database)?;
        }
        let (child, url) = launch(&setup, &dir, &database)?;
        let fleet = Self { setup, url, child, database, dir };
        fleet.settle().await?;
        Ok(fleet)
    }

    /// Waits until new machines have been probed, which is not part of any figure.
    async fn settle(&self) -> Outcome<()> {
        if !matches!(self.setup.probes, Probes::Seldom) || self.setup.machines == 0 {
            return Ok(());
        }
        let begun = Instant::now();
        let mut before = -1.0;
        loop {
            let probes = self.metric("farrier_probes_total")?;
            if probes == before {
                return Ok(());
            }
            if begun.elapsed() > SETTLE_TIMEOUT {
                return Err("the new machines were not looked at in two minutes".into());
            }
            before = probes;
            tokio::time::sleep(SETTLE_INTERVAL).await;
        }
    }

    /// `kill -9`, and a new server on the same data.
    pub fn crash(&mut self) -> Outcome<()> {
        self.child.kill()?;
        self.child.wait()?;
        (self.child, self.url) = launch(&self.setup, &self.dir, &self.database)?;
        Ok(())
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub async fn channel(&self) -> Outcome<Channel> {
        connect(&self.url, self.certificate()?).await
    }

    /// This many clients, on a few connections.
    pub async fn client_pool(&self, clients: usize) -> Outcome<ClientPool> {
        let certificate = self.certificate()?;
        ClientPool::gather(channels(&self.url, clients, certificate).await?, clients).await
    }

    /// Reads a counter or gauge from the metrics endpoint.
    pub fn metric(&self, name: &str) -> Outcome<f64> {
        let address = self.url.split("://").nth(1).unwrap_or_default();
        let mut stream = std::net::TcpStream::connect(address)?;
        let page = match self.certificate()? {
            None => read_metrics(&mut stream, address)?,
            Some(certificate) => {
                let session = tls_session(&certificate)?;
                read_metrics(&mut rustls::StreamOwned::new(session, stream), address)?
            }
        };
        let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        Ok(value.ok_or_else(|| format!("no metric {name}"))?.trim().parse()?)
    }

    /// The server's own certificate, if it has TLS.
    fn certificate(&self) -> Outcome<Option<String>> {
        match self.setup.tls {
            true => Ok(Some(std::fs::read_to_string(self.dir.join(CERTIFICATE))?)),
            false => Ok(None),
        }
    }

    /// The server's log of warnings and errors; empty if all is well.
    pub fn complaints(&self) -> String {
        std::fs::read_to_string(self.dir.join("server.log")).unwrap_or_default()
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // The largest file; the others stay until the end.
        let _ = std::fs::remove_file(database_file(&self.dir));
    }
}

fn database_file(dir: &Path) -> PathBuf {
    dir.join("data").join("farrier.db")
}

/// The name of a machine that the server registered at its start, counted from zero.
pub fn machine(index: usize) -> String {
    format!("sim-{:05}", index + 1)
}

pub async fn channels(
    url: &str,
    clients: usize,
    certificate: Option<String>,
) -> Outcome<Vec<Channel>> {
    let mut channels = Vec::new();
    for _ in 0..clients.clamp(1, MAX_CHANNELS) {
        channels.push(connect(url, certificate.clone()).await?);
    }
    Ok(channels)
}

/// Connects, with TLS if the server has a certificate.
async fn connect(url: &str, certificate: Option<String>) -> Outcome<Channel> {
    let mut endpoint = Endpoint::from_shared(url.to_string())?.tcp_nodelay(true);
    if let Some(certificate) = certificate {
        let trusted = Certificate::from_pem(certificate);
        endpoint = endpoint.tls_config(ClientTlsConfig::new().ca_certificate(trusted))?;
    }
    Ok(InterceptedService::new(endpoint.connect().await?, BenchToken))
}

fn read_metrics(stream: &mut (impl Read + Write), address: &str) -> Outcome<String> {
    write!(
        stream,
        "GET /metrics HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n\r\n"
    )?;
    let mut page = Vec::new();
    // A server that closes the connection without an end of TLS has sent the page all the same.
    if let Err(error) = stream.read_to_end(&mut page)
        && error.kind() != std::io::ErrorKind::UnexpectedEof
    {
        return Err(error.into());
    }
    Ok(String::from_utf8(page)?)
}

fn tls_session(certificate: &str) -> Outcome<rustls::ClientConnection> {
    use rustls::pki_types::pem::PemObject;
    let certificate = rustls::pki_types::CertificateDer::from_pem_slice(certificate.as_bytes())?;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate)?;
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = rustls::pki_types::ServerName::try_from("127.0.0.1")?;
    Ok(rustls::ClientConnection::new(std::sync::Arc::new(config), name)?)
}

/// Writes a certificate for loopback and its key.
fn write_certificate(dir: &Path) -> Outcome<()> {
    let key = rcgen::KeyPair::generate()?;
    let certificate = rcgen::CertificateParams::new(["127.0.0.1".to_string()])?;
    std::fs::write(dir.join(CERTIFICATE), certificate.self_signed(&key)?.pem())?;
    let mut options = std::fs::File::options();
    let mut file =
        options.write(true).create(true).truncate(true).mode(0o600).open(dir.join("server.key"))?;
    Ok(file.write_all(key.serialize_pem().as_bytes())?)
}

/// Fills a database with past runs before the server opens it.
fn add_past_runs(bench: &Bench, setup: &Setup, dir: &Path, database: &str) -> Outcome<()> {
    let fill = bench.fill.as_ref().ok_or("start it with `cargo xtask bench`")?;
    std::fs::create_dir_all(dir.join("data"))?;
    let database = match setup.store {
        Store::Sqlite => database_file(dir).into_os_string(),
        Store::Postgres => database.into(),
    };
    let mut command = Command::new(fill);
    // Too recent for retention to delete them during the measurement.
    command.arg(database).arg(setup.past_runs.to_string()).args(["1000", "20"]);
    let done = command.output()?;
    match done.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&done.stderr).into_owned().into()),
    }
}

/// Starts a server and waits until it answers.
fn launch(setup: &Setup, dir: &Path, database: &str) -> Outcome<(Child, String)> {
    let file = dir.join("farrier.toml");
    std::fs::write(&file, setup.config(&dir.join("data"), database))?;
    std::fs::write(dir.join("bench.token"), TOKEN)?;
    if setup.tls {
        write_certificate(dir)?;
    }
    let log = std::fs::File::options().create(true).append(true).open(dir.join("server.log"))?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_farrier"));
    command.args(["serve", "--config"]).arg(&file).stderr(log);
    command.env("FARRIER_CONTEXTS", dir.join("contexts.toml"));
    let launched = first_line(command)?;
    launched.ok_or_else(|| {
        let message = std::fs::read_to_string(dir.join("server.log")).unwrap_or_default();
        format!("the server did not start: {message}").into()
    })
}

/// Starts a program whose first output line contains its URL; none if it does not.
pub fn first_line(mut command: Command) -> Outcome<Option<(Child, String)>> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line)?;
    }
    let url = line.split_whitespace().find(|name| name.starts_with("http") && name.contains("://"));
    let Some(url) = url.map(|url| url.trim_end_matches(',').to_string()) else {
        let _ = child.kill();
        child.wait()?;
        return Ok(None);
    };
    Ok(Some((child, url)))
}

/// Creates an empty database on the cluster. It replaces the previous one, because only one server
/// runs at a time and an unused database would leave cleanup work that slows down the next figure.
async fn new_database(cluster: &str) -> Outcome<String> {
    let address = format!("{cluster}/postgres");
    let (client, connection) = tokio_postgres::connect(&address, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    let name = format!("farrier_bench_{}", std::process::id());
    client.batch_execute(&format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await?;
    client.batch_execute(&format!("CREATE DATABASE {name}")).await?;
    Ok(format!("{cluster}/{name}"))
}
