//! Starts a server from a configuration, and shuts it down without losing work.

use crate::audit_end::RecordedEnd;
use crate::audit_stream::AuditStreams;
use crate::auth::{self, AdminToken, Cookies, SignIn};
use crate::config::{Config, Tls};
use crate::grpc::{self, Call, GrpcServices};
use crate::http::ConsolePages;
use crate::listener::limits::{self, DescriptorPlan};
use crate::listener::tls::{ServerTls, authority_file};
use crate::listener::{Listener, ListenerName, StopSignal};
use crate::netboot::{self, ManifestKey, artifacts::Artifacts};
use crate::oidc::OidcProvider;
use crate::request_guard::{self, ListenerApi};
use crate::{agents, console, data_dir, demo, http, seal_key, telemetry};
use engine::access::AccessControl;
use engine::audit::AuditLog;
use engine::node::Agents;
use engine::secret::{BoundCredential, DefaultCredentials, SecretStore, has_sealed_values};
use engine::{Engine, clock, random};
use futures_util::future::BoxFuture;
use model::access::TokenKind;
use proto::json_form::FromJson;
use providers::datacenter::{Datacenter, IpmiOnly, Settings};
use providers::maas::provider::{MaasProvider, Settings as MaasSettings};
use providers::sim::Sim;
use providers::webhook::HttpWebhooks;
use providers::{Provider, Providers};
use secrecy::ExposeSecret;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use store::{Options, Store, StoreError};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;

/// The reason why a server could not start or continue. The text says what to do.
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

/// A server that answers requests.
pub struct Listening {
    pub config: Config,
    /// The file of the administrator's token; None: another replica has made it.
    pub admin_token: Option<PathBuf>,
    /// The path and query that sign a browser in once.
    pub sign_in: Option<String>,
}

impl Listening {
    /// The file with the authority of the server's certificate, if it is on this host.
    pub fn server_ca(&self) -> Option<PathBuf> {
        authority_file(&self.config.tls).filter(|_| self.config.tls.is_on())
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
    ready: &'a (dyn Fn(&Listening) + Sync),
) -> BoxFuture<'a, Result<(), ServeError>> {
    Box::pin(run_server(config, demo, ready))
}

async fn run_server(
    config: Config,
    demo: bool,
    ready: &(dyn Fn(&Listening) + Sync),
) -> Result<(), ServeError> {
    config.check().and_then(|()| config.check_exposure()).map_err(ServeError::Refused)?;
    telemetry::start_logging(&config.log).map_err(ServeError::Refused)?;
    let metrics = telemetry::start_metrics();
    let _lock = data_dir::prepare(&config)?;
    let listeners = Listeners::open(&config)?;
    let listener = listeners.bind(ListenerName::Api, config.listen, "--listen").await?;
    let listening = listener.local_address().unwrap_or(config.listen);
    let config = Config { listen: listening, ..config };
    for warning in config.exposure_warnings() {
        tracing::warn!("{warning}");
    }

    let sim = open_sim(&config)?;
    let store = Store::open(&options(&config)?).await?;
    let access = AccessControl::open(store.clone(), clock::system(), random::system()).await?;
    tokio::spawn(access.clone().run_refresh());
    let admin = auth::ensure_administrator(&access, &config.data_dir, config.admin_token()).await?;
    let secrets = open_secrets(&config, &store).await?;
    let cookies = Cookies::new(&secrets.cookie_suffix(), config.tls.is_on());
    let audit = AuditLog::new(store.clone(), clock::system(), &secrets.audit_key());
    // Before anything is sealed: a log that was cut is not continued.
    let audit_end = RecordedEnd::open(&config.data_dir, &audit).await?;
    tokio::spawn(audit.clone().run_sealing());
    let oidc = open_oidc(&config)?;
    let audit_streams = AuditStreams::start(&config.audit, &config.data_dir, &audit);
    let providers = open_providers(&config, &secrets, sim.as_ref())?;
    let engine =
        Engine::start_up(store, providers, config.settings(), clock::system(), random::system())
            .await?;
    load_plans(&engine, &config).await?;
    let artifacts = open_artifacts(&config)?;
    register_simulated(&engine, &config, &artifacts, demo).await?;

    let services = Call {
        access: access.clone(),
        audit: audit.clone(),
        audit_end: audit_end.clone(),
        audit_streams,
        artifacts,
        agents: Agents::new(engine.clone(), secrets.clone()),
        engine: engine.clone(),
        sim,
        secrets,
        netboot_url: config.netboot.listen.map(|_| config.netboot.url()),
        agents_url: config.agents_url(),
        token_folder: config.datacenter.token_folder(),
        binding_required: !config.simulates(),
    };
    let others = [
        listeners
            .serve_machines(&config, services.secrets.clone(), services.artifacts.clone())
            .await?,
        listeners.serve_agents(&config, services.agents.clone()).await?,
    ];
    let console = console::router(engine.clone(), Some(services.secrets.clone()), Some(audit_end));
    let grpc = grpc::routes(GrpcServices::new(services), engine.clone())
        .await
        .map_err(|error| ServeError::Refused(format!("the API cannot be described: {error}")))?;
    let sign_in = SignIn { access: access.clone(), audit, oidc, cookies };
    let pages = ConsolePages { console, sign_in };
    let router = http::router(engine.clone(), grpc, metrics, pages, &config.host_names());
    // Before the server reports that it is ready: a signal from then on is a request to stop.
    let signals = StopRequests::listen();
    ready(&describe_start(config.clone(), &access, admin).await?);
    tracing::info!(%listening, replica = %engine.settings().replica, "serving");
    let ended = run(listener, router, engine, signals).await;
    for other in others.into_iter().flatten() {
        other.abort();
    }
    ended
}

/// Registers the images and machines of simulated hardware.
async fn register_simulated(
    engine: &Engine,
    config: &Config,
    artifacts: &Artifacts,
    demo: bool,
) -> Result<(), ServeError> {
    let images = demo::images(&config.sim, demo);
    demo::create_images(engine, artifacts, &images).await?;
    if demo {
        demo::register_demo(engine).await?;
        demo::spawn_onboarding(engine.clone());
    }
    demo::register_fleet(engine, config.sim.machines).await?;
    Ok(())
}

/// The identity provider. Its keys are read in the background: a start does not wait for it.
fn open_oidc(config: &Config) -> Result<Option<Arc<OidcProvider>>, ServeError> {
    let provider = OidcProvider::open(&config.oidc)?;
    if let Some(provider) = &provider {
        tokio::spawn(Arc::clone(provider).run_refresh());
    }
    Ok(provider)
}

fn open_providers(
    config: &Config,
    secrets: &SecretStore,
    sim: Option<&Sim>,
) -> Result<Providers, ServeError> {
    let datacenter = config.datacenter().map_err(ServeError::Refused)?;
    let datacenter = Settings { imaging: config.netboot.imaging(), ..datacenter };
    let maas = MaasProvider::new(Arc::new(secrets.clone()), maas_settings(config, &datacenter));
    let datacenter = Arc::new(Datacenter::new(Arc::new(secrets.clone()), datacenter));
    let maas = maas.with_hosts(Arc::clone(&datacenter) as Arc<dyn Provider>);
    let providers = Providers::default()
        .with(Arc::clone(&datacenter) as Arc<dyn Provider>)
        .with(Arc::new(IpmiOnly(datacenter)))
        .with(Arc::new(maas))
        .with_webhooks(Arc::new(HttpWebhooks::new(Arc::new(secrets.clone()))));
    Ok(match sim {
        Some(sim) => providers.with(Arc::new(sim.clone())),
        None => providers,
    })
}

/// A restart makes another sign-in link: the one before may have been used.
async fn describe_start(
    config: Config,
    access: &AccessControl,
    admin: Option<AdminToken>,
) -> Result<Listening, ServeError> {
    let Some(AdminToken { path, secret }) = admin else {
        return Ok(Listening { config, admin_token: None, sign_in: None });
    };
    let caller = match access.authenticate(secret.expose_secret(), TokenKind::Api).await {
        Ok(caller) => caller,
        Err(refusal) => {
            let problem = refusal.message;
            tracing::warn!(path = %path.display(), problem, "the administrator's token is refused");
            return Ok(Listening { config, admin_token: None, sign_in: None });
        }
    };
    let code = access.create_sign_in_code(&caller).await?;
    let sign_in = Some(auth::sign_in_path(&code));
    Ok(Listening { config, admin_token: Some(path), sign_in })
}

/// The limits and certificates of the listeners.
struct Listeners {
    plan: DescriptorPlan,
    config: Config,
    tls: Option<ServerTls>,
    agent_tls: Option<ServerTls>,
}

impl Listeners {
    /// Reads the certificates, and divides the descriptors of this process.
    fn open(config: &Config) -> Result<Self, ServeError> {
        let limit = limits::raise_descriptor_limit();
        let plan = config.descriptor_plan(limit).map_err(ServeError::Refused)?;
        let connections: Vec<String> = config
            .listeners()
            .into_iter()
            .map(|(name, _)| format!("{} {}", name.as_str(), plan.connections(name)))
            .collect();
        let (reserve, connections) = (plan.reserve, connections.join(", "));
        tracing::debug!(limit, reserve, connections, "descriptors divided");
        let open = |section: &'static str, files: Tls| match files.is_on() {
            true => ServerTls::open(section, files).map(Some).map_err(ServeError::Refused),
            false => Ok(None),
        };
        let tls = open("tls", config.tls.clone())?;
        let agent_tls = match config.nodes.listen {
            Some(_) => open("agent_tls", config.agent_tls())?,
            None => None,
        };
        Ok(Self { plan, config: config.clone(), tls, agent_tls })
    }

    /// `field` is where the address comes from.
    async fn bind(
        &self,
        name: ListenerName,
        address: SocketAddr,
        field: &str,
    ) -> Result<Listener, ServeError> {
        let tls = match name {
            ListenerName::Api => self.tls.clone(),
            ListenerName::Agents => self.agent_tls.clone(),
            ListenerName::Netboot => None,
        };
        let limits = self.config.limits(name, &self.plan);
        Listener::bind(name, address, limits, tls).await.map_err(|error| {
            let message = format!("cannot listen on {address}: {error}; choose another {field}");
            ServeError::Refused(message)
        })
    }

    /// Serves the agents of nodes, on a separate port.
    async fn serve_agents(
        &self,
        config: &Config,
        agents: Agents,
    ) -> Result<Option<JoinHandle<()>>, ServeError> {
        let Some(address) = config.nodes.listen else { return Ok(None) };
        let listener = self.bind(ListenerName::Agents, address, "nodes.listen").await?;
        let router = agents::router(agents, &config.nodes);
        let router = request_guard::guarded(router, ListenerApi::Json, &config.host_names());
        tracing::info!(%address, url = config.agents_url(), "serving agents");
        Ok(Some(spawn_listener(listener, router)))
    }

    /// Serves machines that boot over the network, on a separate port.
    async fn serve_machines(
        &self,
        config: &Config,
        secrets: SecretStore,
        artifacts: Artifacts,
    ) -> Result<Option<JoinHandle<()>>, ServeError> {
        let Some(address) = config.netboot.listen else { return Ok(None) };
        let listener = self.bind(ListenerName::Netboot, address, "netboot.listen").await?;
        let path = config.netboot.manifest_key(&config.data_dir);
        let key = ManifestKey::open(&path).map_err(ServeError::Refused)?;
        tracing::info!(key = key.public(), "boot manifests are signed");
        let router = netboot::router(secrets, artifacts, config.netboot.clone(), key);
        let router = request_guard::guarded(router, ListenerApi::Json, &config.host_names());
        tracing::info!(%address, url = config.netboot.url(), "serving netboot");
        Ok(Some(spawn_listener(listener, router)))
    }
}

/// Serves until the task is aborted.
fn spawn_listener(listener: Listener, router: axum::Router) -> JoinHandle<()> {
    tokio::spawn(async move { listener.serve(router, &StopSignal::new()).await })
}

/// MAAS is verified by the same trust policy as BMCs, and gets the same BMC credential.
fn maas_settings(config: &Config, datacenter: &Settings) -> MaasSettings {
    MaasSettings {
        bmc_credential: datacenter.bmc_credential.clone(),
        agent_binary: config.nodes.agent_binary.clone(),
        ..MaasSettings::new(config.agents_url(), datacenter.trust.clone())
    }
}

fn open_artifacts(config: &Config) -> Result<Artifacts, ServeError> {
    let dir = config.netboot.images_dir(&config.data_dir);
    Artifacts::open(dir.clone(), config.netboot.space_limits()).map_err(|error| {
        ServeError::Refused(format!("the images folder {}: {error}", dir.display()))
    })
}

/// Serves until a stop signal; then the engine releases its claims and the connections close.
async fn run(
    listener: Listener,
    router: axum::Router,
    engine: Engine,
    signals: StopRequests,
) -> Result<(), ServeError> {
    let stop = StopSignal::new();
    let stopping = stop.clone();
    let serving = tokio::spawn(async move { listener.serve(router, &stopping).await });
    signals.wait().await;
    tracing::info!("stopping; active runs continue after the next start or on another replica");
    stop.stop();
    engine.shut_down().await;
    if tokio::time::timeout(CLOSE_TIMEOUT, serving).await.is_err() {
        tracing::debug!("some connections did not close in time");
    }
    Ok(())
}

/// SIGTERM and Ctrl-C, which end the process only while no task listens for them.
struct StopRequests {
    terminated: Option<Signal>,
    interrupted: Option<Signal>,
}

impl StopRequests {
    fn listen() -> Self {
        let listen = |kind: SignalKind| {
            let listening = signal(kind);
            listening.inspect_err(|error| tracing::warn!(%error, "cannot listen for signals")).ok()
        };
        Self {
            terminated: listen(SignalKind::terminate()),
            interrupted: listen(SignalKind::interrupt()),
        }
    }

    async fn wait(mut self) {
        tokio::select! {
            () = received(self.terminated.as_mut()) => {}
            () = received(self.interrupted.as_mut()) => {}
        }
    }
}

async fn received(signal: Option<&mut Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

fn options(config: &Config) -> Result<Options, ServeError> {
    if config.database_url.is_empty() {
        return Ok(Options::Sqlite { path: config.data_dir.join(data_dir::DATABASE_FILE) });
    }
    let url = config.database_url_with_password().map_err(ServeError::Refused)?;
    let url = url.expose_secret().to_string();
    let name = format!("farrier/{}", config.replica());
    Ok(Options::Postgres { url, connections: config.database_connections, name })
}

async fn open_secrets(config: &Config, store: &Store) -> Result<SecretStore, ServeError> {
    let sealed = has_sealed_values(store).await?;
    let (cipher, tokens) = seal_key::load(config, sealed)?;
    let secrets = SecretStore::new(store.clone(), cipher, clock::system());
    secrets.open_keys(&config.replica(), tokens).await.map_err(|error| match error {
        // A wrong master key: another start does not help.
        StoreError::Corrupt(message) => ServeError::Refused(message),
        other @ (StoreError::Unavailable(_) | StoreError::Conflict | StoreError::Refused(_)) => {
            other.into()
        }
    })?;
    if let Some(rotation) = secrets.resume_rotation().await? {
        tracing::info!(
            key = rotation.key_id,
            resealed = rotation.resealed,
            "a rotation of the seal key was continued"
        );
    }
    bind_credentials(config, &secrets).await?;
    Ok(secrets)
}

/// Binds the credentials of an older farrier to the peers that records name, and lists them.
async fn bind_credentials(config: &Config, secrets: &SecretStore) -> Result<(), ServeError> {
    let datacenter = &config.datacenter;
    let defaults = DefaultCredentials {
        bmc: datacenter.bmc_credential.clone(),
        ssh: datacenter.ssh_credential.clone(),
        jump: datacenter.jump_credential.clone(),
        jump_hosts: datacenter.jump_hosts.clone(),
    };
    for BoundCredential { name, policy } in secrets.bind_unbound(&defaults).await? {
        let peers: Vec<String> = policy.peers.iter().map(ToString::to_string).collect();
        let (peers, plain_http) = (peers.join(" "), policy.plain_http);
        tracing::warn!(
            credential = name,
            peers,
            plain_http,
            "the credential had no binding; it may now be sent to the peers that records name and to no other; change that with farrier credential set --for"
        );
    }
    Ok(())
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
