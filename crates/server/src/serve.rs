//! Starts a server from a configuration, and shuts it down without losing work.

use crate::config::Config;
use crate::grpc::{self, GrpcServices};
use crate::netboot::{self, artifacts::Artifacts};
use crate::request_guard::{self, ListenerApi};
use crate::{agents, console, demo, http, telemetry};
use axum::serve::ListenerExt;
use engine::node::Agents;
use engine::secret::{Cipher, SecretStore};
use engine::{Engine, clock, random};
use futures_util::future::BoxFuture;
use proto::json_form::FromJson;
use providers::datacenter::{Datacenter, IpmiOnly, Settings};
use providers::maas::provider::{MaasProvider, Settings as MaasSettings};
use providers::sim::Sim;
use providers::{Provider, Providers};
use std::fmt;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use store::{Options, Store, StoreError};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// Why a server could not start or continue. The text says what to do.
#[derive(Debug)]
pub enum ServeError {
    /// The configuration or the environment is wrong.
    Refused(String),
    /// The database does not answer.
    Unavailable(String),
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(message) | Self::Unavailable(message) => f.write_str(message),
        }
    }
}

impl From<StoreError> for ServeError {
    fn from(error: StoreError) -> Self {
        Self::Unavailable(error.to_string())
    }
}

/// The time for connections to close after the engine has released its claims.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);

/// Serves until SIGTERM or Ctrl-C. `ready` is called once requests are answered.
///
/// The future is boxed so that its code is generated in this crate, not in the binary.
pub fn serve<'a>(
    config: Config,
    demo: bool,
    ready: &'a (dyn Fn(&Config) + Sync),
) -> BoxFuture<'a, Result<(), ServeError>> {
    Box::pin(run_server(config, demo, ready))
}

async fn run_server(
    config: Config,
    demo: bool,
    ready: &(dyn Fn(&Config) + Sync),
) -> Result<(), ServeError> {
    config.check().map_err(ServeError::Refused)?;
    telemetry::start_logging(&config.log).map_err(ServeError::Refused)?;
    let metrics = telemetry::start_metrics();
    let _lock = prepare_data_dir(&config)?;
    let listener = TcpListener::bind(config.listen).await.map_err(|error| {
        let message =
            format!("cannot listen on {}: {error}; choose another --listen", config.listen);
        ServeError::Refused(message)
    })?;
    let listening = listener.local_addr().unwrap_or(config.listen);
    let config = Config { listen: listening, ..config };
    if !listening.ip().is_loopback() {
        tracing::warn!(%listening, "no authentication: every client that can reach this port has full access");
    }

    let sim = open_sim(&config)?;
    let store = Store::open(&options(&config)).await?;
    let secrets = open_secrets(&config, &store)?;
    let datacenter = config.datacenter().map_err(ServeError::Refused)?;
    let datacenter = Settings { imaging: config.netboot.imaging(), ..datacenter };
    let maas = MaasProvider::new(Arc::new(secrets.clone()), maas_settings(&config, &datacenter));
    let datacenter = Arc::new(Datacenter::new(Arc::new(secrets.clone()), datacenter));
    let maas = maas.with_hosts(Arc::clone(&datacenter) as Arc<dyn Provider>);
    let mut providers = Providers::default()
        .with(Arc::clone(&datacenter) as Arc<dyn Provider>)
        .with(Arc::new(IpmiOnly(datacenter)))
        .with(Arc::new(maas));
    if let Some(sim) = &sim {
        providers = providers.with(Arc::new(sim.clone()));
    }
    let engine =
        Engine::start_up(store, providers, config.settings(), clock::system(), random::system())
            .await?;
    load_plans(&engine, &config).await?;
    let artifacts = open_artifacts(&config)?;
    let images = demo::images(&config.sim, demo);
    demo::create_images(&engine, &artifacts, &images).await?;
    if demo {
        demo::register_demo(&engine).await?;
        demo::spawn_onboarding(engine.clone());
    }
    demo::register_fleet(&engine, config.sim.machines).await?;

    let services = GrpcServices {
        artifacts,
        agents: Agents::new(engine.clone(), secrets.clone()),
        engine: engine.clone(),
        sim,
        secrets,
        netboot_url: config.netboot.listen.map(|_| config.netboot.url()),
        agents_url: config.nodes.urls(),
        token_folder: config.datacenter.token_folder(),
    };
    let others = [
        listen_for_machines(&config, services.secrets.clone(), services.artifacts.clone()).await?,
        listen_for_agents(&config, services.agents.clone()).await?,
    ];
    let console = console::router(engine.clone(), Some(services.secrets.clone()));
    let grpc = grpc::routes(services)
        .await
        .map_err(|error| ServeError::Refused(format!("the API cannot be described: {error}")))?;
    let router = http::router(engine.clone(), grpc, metrics, console, &config.host_names());
    ready(&config);
    tracing::info!(%listening, replica = %engine.settings().replica, "serving");
    let ended = run(listener, router, engine).await;
    for other in others.into_iter().flatten() {
        other.abort();
    }
    ended
}

/// Serves the agents of nodes, on a separate port.
async fn listen_for_agents(
    config: &Config,
    agents: Agents,
) -> Result<Option<JoinHandle<()>>, ServeError> {
    let Some(address) = config.nodes.listen else { return Ok(None) };
    let listener = TcpListener::bind(address).await.map_err(|error| {
        let message = format!("cannot listen on {address}: {error}; choose another nodes.listen");
        ServeError::Refused(message)
    })?;
    if !address.ip().is_loopback() {
        tracing::warn!(%address, "agents are served over plain HTTP without TLS, so their sessions can be read in transit; keep this address in a private network or a tunnel");
    }
    let router = agents::router(agents, &config.nodes);
    let router = request_guard::guarded(router, ListenerApi::Json, &config.host_names());
    tracing::info!(%address, url = config.nodes.urls(), "serving agents");
    Ok(Some(tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            tracing::error!(%error, "the agent listener ended");
        }
    })))
}

/// MAAS is verified by the same trust policy as BMCs, and gets the same BMC credential.
fn maas_settings(config: &Config, datacenter: &Settings) -> MaasSettings {
    MaasSettings {
        bmc_credential: datacenter.bmc_credential.clone(),
        agent_binary: config.nodes.agent_binary.clone(),
        ..MaasSettings::new(config.nodes.urls(), datacenter.trust.clone())
    }
}

/// Serves machines that boot over the network, on a separate port.
async fn listen_for_machines(
    config: &Config,
    secrets: SecretStore,
    artifacts: Artifacts,
) -> Result<Option<JoinHandle<()>>, ServeError> {
    let Some(address) = config.netboot.listen else { return Ok(None) };
    let listener = TcpListener::bind(address).await.map_err(|error| {
        let message = format!("cannot listen on {address}: {error}; choose another netboot.listen");
        ServeError::Refused(message)
    })?;
    let router = netboot::router(secrets, artifacts, config.netboot.clone());
    let router = request_guard::guarded(router, ListenerApi::Json, &config.host_names());
    tracing::info!(%address, url = config.netboot.url(), "serving netboot");
    Ok(Some(tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            tracing::error!(%error, "the netboot listener ended");
        }
    })))
}

fn open_artifacts(config: &Config) -> Result<Artifacts, ServeError> {
    let dir = config.netboot.images_dir(&config.data_dir);
    Artifacts::open(dir.clone()).map_err(|error| {
        ServeError::Refused(format!("the images folder {}: {error}", dir.display()))
    })
}

/// Serves until a stop signal; then the engine releases its claims and the connections close.
async fn run(
    listener: TcpListener,
    router: axum::Router,
    engine: Engine,
) -> Result<(), ServeError> {
    let stopping = Arc::new(tokio::sync::Notify::new());
    let stopped = Arc::clone(&stopping);
    let listener = listener.tap_io(|stream| {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "cannot set TCP_NODELAY on a connection");
        }
    });
    let serving = tokio::spawn(async move {
        let graceful = async move { stopped.notified().await };
        axum::serve(listener, router).with_graceful_shutdown(graceful).await
    });
    wait_for_stop_signal().await;
    tracing::info!("stopping; active runs continue after the next start or on another replica");
    stopping.notify_one();
    engine.shut_down().await;
    match tokio::time::timeout(CLOSE_TIMEOUT, serving).await {
        Ok(Ok(Err(error))) => tracing::warn!(%error, "the API listener ended with an error"),
        Ok(_) => {}
        Err(_) => tracing::debug!("some connections did not close in time"),
    }
    Ok(())
}

/// Waits for SIGTERM or Ctrl-C.
async fn wait_for_stop_signal() {
    let interrupted = tokio::signal::ctrl_c();
    match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
        Ok(mut terminated) => tokio::select! {
            _ = interrupted => {}
            _ = terminated.recv() => {}
        },
        Err(error) => {
            tracing::warn!(%error, "cannot listen for SIGTERM");
            let _ = interrupted.await;
        }
    }
}

/// The database in the data directory.
pub(crate) const DATABASE_FILE: &str = "farrier.db";

fn options(config: &Config) -> Options {
    if config.database_url.is_empty() {
        Options::Sqlite { path: config.data_dir.join(DATABASE_FILE) }
    } else {
        let url = config.database_url.clone();
        let name = format!("farrier/{}", config.replica());
        Options::Postgres { url, connections: config.database_connections, name }
    }
}

/// Creates the data directory and, for SQLite, locks it against other servers.
fn prepare_data_dir(config: &Config) -> Result<Option<File>, ServeError> {
    let dir = &config.data_dir;
    let refused = |what: &str, error: std::io::Error| {
        ServeError::Refused(format!("{what} {}: {error}; choose another --data-dir", dir.display()))
    };
    std::fs::create_dir_all(dir).map_err(|error| refused("cannot make", error))?;
    if !config.database_url.is_empty() {
        return Ok(None);
    }
    lock(dir).map(Some).map_err(|error| match error {
        LockError::AlreadyLocked(holder) => ServeError::Refused(format!(
            "another farrier serve{holder} uses {}; stop it, or choose another --data-dir",
            dir.display()
        )),
        LockError::Io(error) => refused("cannot write to", error),
    })
}

enum LockError {
    AlreadyLocked(String),
    Io(std::io::Error),
}

fn lock(dir: &Path) -> Result<File, LockError> {
    let path = dir.join("lock");
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false);
    let mut file = options.open(&path).map_err(LockError::Io)?;
    match file.try_lock() {
        Ok(()) => {
            // The pid helps an operator who finds the lock; a failed write does no harm.
            let _ = file.set_len(0).and_then(|()| write!(file, "{}", std::process::id()));
            Ok(file)
        }
        Err(std::fs::TryLockError::WouldBlock) => {
            let pid = std::fs::read_to_string(&path).unwrap_or_default();
            let pid = pid.trim();
            Err(LockError::AlreadyLocked(if pid.is_empty() {
                String::new()
            } else {
                format!(" (pid {pid})")
            }))
        }
        Err(std::fs::TryLockError::Error(error)) => Err(LockError::Io(error)),
    }
}

fn open_secrets(config: &Config, store: &Store) -> Result<SecretStore, ServeError> {
    let cipher = Cipher::from_file(&config.seal_key()).map_err(ServeError::Refused)?;
    Ok(SecretStore::new(store.clone(), cipher, clock::system()))
}

/// The simulated hardware; None: this server has none.
fn open_sim(config: &Config) -> Result<Option<Sim>, ServeError> {
    if !config.simulates() {
        return match config.sim.faults.is_empty() {
            true => Ok(None),
            false => Err(ServeError::Refused(
                "sim.faults needs simulated hardware; set sim.enabled = true".into(),
            )),
        };
    }
    let dir = config.sim_dir();
    let sim = Sim::in_dir(&dir, config.sim.speed).map_err(|error| {
        ServeError::Refused(format!("the simulated fleet cannot use {}: {error}", dir.display()))
    })?;
    for (index, rule) in config.sim.faults.iter().enumerate() {
        let mut rule = rule.clone();
        if rule.id.is_empty() {
            // A fixed id prevents a restart from adding the same rule again.
            rule.id = format!("config-{index}");
        }
        sim.add_fault(rule)
            .map_err(|refusal| ServeError::Refused(format!("sim.faults[{index}]: {refusal}")))?;
    }
    Ok(Some(sim))
}

/// Loads plans from files. A plan that already exists must be identical: plans are immutable.
async fn load_plans(engine: &Engine, config: &Config) -> Result<(), ServeError> {
    for path in &config.plan_files {
        let wrong = |message: String| {
            ServeError::Refused(format!("the plan file {} is wrong: {message}", path.display()))
        };
        let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        let toml = path.extension().is_some_and(|extension| extension == "toml");
        let FromJson(plan) = if toml {
            toml::from_str(&text).map_err(|error| wrong(error.to_string()))?
        } else {
            serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?
        };
        let plan = grpc::plan_from(plan).map_err(|refusal| wrong(refusal.message))?;
        match engine.plans().create(plan).await {
            Ok(_) => {}
            Err(StoreError::Refused(refusal)) => return Err(wrong(refusal.message)),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
