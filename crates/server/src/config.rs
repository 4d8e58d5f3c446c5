//! The configuration: one TOML file, every field documented here, unknown keys refused.
//!
//! The command line overrides the file. `farrier serve --print-config` shows what came of both.

mod audit;
mod connections;
mod database_url;
mod datacenter;
mod exposure;
mod netboot;
mod nodes;
mod oidc;
mod racks;
mod tls;

use crate::listener::ListenerName;
use crate::listener::limits::{DescriptorPlan, ListenerLimits};
pub use audit::Audit;
pub use connections::Connections;
pub use database_url::{DatabaseUrl, PASSWORD_VARIABLE};
pub use datacenter::Datacenter;
use engine::{Retention, Settings};
use model::condition::hysteresis::HysteresisLimits;
use model::condition::poll_state::PollIntervals;
use model::password_mask::mask_passwords;
use model::plan::Defaults;
use model::retry::Backoff;
use model::run::Policy;
pub use netboot::Netboot;
pub use nodes::Nodes;
pub(crate) use oidc::CALLBACK;
pub use oidc::Oidc;
use providers::sim::FaultRule;
pub use providers::sim::Speed;
pub use racks::Racks;
use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
pub use tls::Tls;

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The address that serves gRPC and HTTP.
    pub listen: SocketAddr,
    /// The names under which clients and browsers reach this server, beside its IP addresses,
    /// `localhost` and the name of its host. Requests for other names are refused.
    pub allowed_hosts: Vec<String>,
    /// Whether listeners without TLS may be reached from other hosts. Every client on the way can
    /// then read and change what is sent.
    pub insecure: bool,
    /// Where SQLite and the simulated fleet keep their files.
    pub data_dir: PathBuf,
    /// A PostgreSQL URL, `postgres://user@host:5432/name`. Empty: SQLite in `data_dir`.
    pub database_url: DatabaseUrl,
    /// The file whose first line is the password of the database. Empty: the password is in the
    /// variable FARRIER_DATABASE_PASSWORD or in the URL, or there is none.
    pub database_password_file: PathBuf,
    /// How many PostgreSQL connections this replica may open, at least 3: one listens for
    /// notifications, the others run transactions.
    pub database_connections: usize,
    /// The name of this replica, stable over restarts. Empty: the host's name and the port, or
    /// `farrier` on SQLite.
    pub replica_name: String,
    /// The file with the master key that protects secrets; created when it is missing beside an
    /// empty database. Empty: `seal.key` in `data_dir`. All replicas must have the same key.
    pub seal_key_file: PathBuf,
    /// A file with the administrator's first API token, at least 32 characters. Empty: a token is
    /// made at the first start, into `admin.token` in `data_dir`.
    pub admin_token_file: PathBuf,
    /// The program and its arguments that print the master key, in place of the file. The variable
    /// FARRIER_SEAL_KEY comes before both.
    pub seal_key_command: Vec<String>,
    /// Files with plans to load at start, as JSON or TOML.
    pub plan_files: Vec<PathBuf>,
    pub tls: Tls,
    pub agent_tls: Tls,
    pub oidc: Oidc,
    pub connections: Connections,
    pub audit: Audit,
    pub log: Log,
    pub engine: EngineConfig,
    pub defaults: StepDefaults,
    pub probes: Probes,
    pub retention: RetentionConfig,
    pub datacenter: Datacenter,
    pub netboot: Netboot,
    pub racks: Racks,
    pub nodes: Nodes,
    pub sim: Sim,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// `text` or `json`.
    pub format: LogFormat,
    /// What is logged: `info`, or directives such as `info,engine=debug`.
    pub level: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    Text,
    Json,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EngineConfig {
    /// How many runs this replica executes concurrently.
    pub max_in_flight: usize,
    /// Below this number the replica that accepts a run also claims it, in the same transaction.
    pub eager_in_flight: usize,
    /// A replica without a heartbeat for this long is dead, and other replicas claim its work.
    pub lease_ms: u64,
    /// The interval of a replica's heartbeats.
    pub renew_ms: u64,
    /// How often to look for due work and new events when no signal arrives.
    pub poll_ms: u64,
    /// How long running work may go on after SIGTERM before it is released.
    pub grace_ms: u64,
    /// The wait before the second attempt of a step; doubles with every attempt.
    pub backoff_first_ms: u64,
    /// The longest wait between two attempts.
    pub backoff_most_ms: u64,
    /// How many objects one request may name.
    pub max_find_by_ids: usize,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StepDefaults {
    /// For steps that set no timeout_seconds.
    pub timeout_seconds: u32,
    /// For steps that set no max_retries.
    pub max_retries: u32,
    /// The image of a reimage that names none.
    pub image_ref: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Probes {
    /// Every machine is probed once in this time.
    pub interval_ms: u64,
    /// The timeout of one probe.
    pub timeout_ms: u64,
    /// How many probes may run concurrently.
    pub at_once: usize,
    /// A condition turns bad after `down_after` failed probes in a row, and good after `up_after`
    /// successful ones.
    pub down_after: u32,
    pub up_after: u32,
    /// The health of a machine's components is read once in this time.
    pub health_interval_ms: u64,
    /// For this long after a run an unreachable machine is not degraded: it may be booting.
    pub settling_ms: u64,
}

/// Retention limits. Zero: no limit.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RetentionConfig {
    /// A run is deleted this long after its end, with its history, its log and its request id.
    pub runs_days: u32,
    /// The log of a run is deleted this long after its end, at the latest with the run.
    pub logs_days: u32,
    /// Events of all other objects are deleted at this age.
    pub events_days: u32,
    /// The newest ended runs are kept up to this number.
    pub max_runs: u64,
    /// The newest logs of ended runs are kept up to this number of bytes.
    pub max_log_bytes: u64,
    /// The newest events of other objects are kept up to this number.
    pub max_events: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sim {
    /// Whether this server has the provider `sim`. `--demo`, `--simulate` and `machines` turn it
    /// on too.
    pub enabled: bool,
    /// How many simulated machines to register at start.
    pub machines: usize,
    /// `zero`, `fast` or `human`.
    pub speed: Speed,
    /// The directory with the state of the simulated hardware. Empty: `sim` in `data_dir`. Replicas
    /// that share a simulated fleet use the same directory.
    pub dir: PathBuf,
    /// Images that the catalogue has from the start, for simulated machines; each is a small file.
    /// Empty: four well-known ones with `--demo` or simulated machines, none without.
    pub images: Vec<String>,
    /// Fault rules of the simulated hardware.
    pub faults: Vec<FaultRule>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 7411)),
            allowed_hosts: Vec::new(),
            insecure: false,
            data_dir: "farrier-data".into(),
            database_url: DatabaseUrl::default(),
            database_password_file: PathBuf::new(),
            database_connections: 16,
            replica_name: String::new(),
            seal_key_file: PathBuf::new(),
            admin_token_file: PathBuf::new(),
            seal_key_command: Vec::new(),
            plan_files: Vec::new(),
            tls: Tls::default(),
            agent_tls: Tls::default(),
            oidc: Oidc::default(),
            connections: Connections::default(),
            audit: Audit::default(),
            log: Log::default(),
            engine: EngineConfig::default(),
            defaults: StepDefaults::default(),
            probes: Probes::default(),
            retention: RetentionConfig::default(),
            datacenter: Datacenter::default(),
            netboot: Netboot::default(),
            racks: Racks::default(),
            nodes: Nodes::default(),
            sim: Sim::default(),
        }
    }
}

impl Default for Log {
    fn default() -> Self {
        Self { format: LogFormat::Text, level: "info".into() }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Default for EngineConfig {
    fn default() -> Self {
        let settings = Settings::default();
        Self {
            max_in_flight: settings.max_in_flight,
            eager_in_flight: settings.eager_in_flight,
            lease_ms: millis(settings.lease),
            renew_ms: millis(settings.renew_interval),
            poll_ms: millis(settings.poll_interval),
            grace_ms: millis(settings.grace_period),
            backoff_first_ms: millis(settings.policy.backoff.initial),
            backoff_most_ms: millis(settings.policy.backoff.max),
            max_find_by_ids: settings.max_find_by_ids,
        }
    }
}

impl Default for StepDefaults {
    fn default() -> Self {
        let Defaults { timeout_seconds, max_retries, image_ref } = Defaults::default();
        Self { timeout_seconds, max_retries, image_ref }
    }
}

impl Probes {
    fn rhythm(&self) -> PollIntervals {
        PollIntervals {
            steadiness: HysteresisLimits { bad_after: self.down_after, good_after: self.up_after },
            health_every: Duration::from_millis(self.health_interval_ms),
            settling: Duration::from_millis(self.settling_ms),
        }
    }
}

impl Default for Probes {
    fn default() -> Self {
        let settings = Settings::default();
        Self {
            interval_ms: millis(settings.probe_interval),
            timeout_ms: millis(settings.probe_timeout),
            at_once: settings.max_concurrent_probes,
            down_after: settings.machine_polling.steadiness.bad_after,
            up_after: settings.machine_polling.steadiness.good_after,
            health_interval_ms: millis(settings.machine_polling.health_every),
            settling_ms: millis(settings.machine_polling.settling),
        }
    }
}

/// A century: a larger value is a typing error.
const MOST_DAYS: u32 = 36_500;
const DAY: Duration = Duration::from_secs(86_400);
/// With fewer PostgreSQL connections a replica could not renew its lease under load.
const LEAST_CONNECTIONS: usize = 3;
/// Open files beside the connections: the database, logs, the runtime, images that are sent.
const OTHER_DESCRIPTORS: usize = 64;
/// A smaller limit would not hold the log of one run.
const LEAST_LOG_BYTES: u64 = 1_048_576;

fn days(duration: Option<Duration>) -> u32 {
    let days = duration.map_or(0, |duration| duration.as_secs() / DAY.as_secs());
    u32::try_from(days).unwrap_or(MOST_DAYS)
}

impl Default for RetentionConfig {
    fn default() -> Self {
        let stored = Retention::default();
        Self {
            runs_days: days(stored.runs),
            logs_days: days(stored.logs),
            events_days: days(stored.events),
            max_runs: stored.max_runs.unwrap_or_default(),
            max_log_bytes: stored.max_log_bytes.unwrap_or_default(),
            max_events: stored.max_events.unwrap_or_default(),
        }
    }
}

impl RetentionConfig {
    fn check(&self) -> Result<(), String> {
        let ages = [
            ("runs_days", self.runs_days),
            ("logs_days", self.logs_days),
            ("events_days", self.events_days),
        ];
        if let Some((field, days)) = ages.iter().find(|(_, days)| *days > MOST_DAYS) {
            return Err(format!(
                "retention.{field} is {days}; use at most {MOST_DAYS}, or 0 to keep them for ever"
            ));
        }
        if (1..LEAST_LOG_BYTES).contains(&self.max_log_bytes) {
            return Err(format!(
                "retention.max_log_bytes is {}; use at least {LEAST_LOG_BYTES}, or 0 for no limit",
                self.max_log_bytes
            ));
        }
        Ok(())
    }

    fn settings(&self) -> Retention {
        let age = |days: u32| (days > 0).then(|| DAY * days);
        let most = |count: u64| (count > 0).then_some(count);
        Retention {
            runs: age(self.runs_days),
            logs: age(self.logs_days),
            events: age(self.events_days),
            max_runs: most(self.max_runs),
            max_log_bytes: most(self.max_log_bytes),
            max_events: most(self.max_events),
            ..Retention::default()
        }
    }
}

impl Default for Sim {
    fn default() -> Self {
        Self {
            enabled: false,
            machines: 0,
            speed: Speed::Human,
            dir: PathBuf::new(),
            images: Vec::new(),
            faults: Vec::new(),
        }
    }
}

pub(crate) fn host_name() -> Option<String> {
    let name = std::fs::read_to_string("/etc/hostname").ok()?;
    Some(name.trim().to_string()).filter(|name| !name.is_empty())
}

impl Config {
    /// Reads a file. The error names the file, the line and the known keys.
    pub fn load(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            format!("cannot read the configuration {}: {error}", path.display())
        })?;
        let config: Self = toml::from_str(&text)
            // The error quotes the line.
            .map_err(|error| mask_passwords(&error.to_string()))
            .map_err(|error| format!("the configuration {} is wrong: {error}", path.display()))?;
        config.check()?;
        Ok(config)
    }

    /// Refuses values with which the engine could not work.
    pub fn check(&self) -> Result<(), String> {
        let engine = &self.engine;
        let positive = [
            ("engine.max_in_flight", engine.max_in_flight as u64),
            ("engine.max_find_by_ids", engine.max_find_by_ids as u64),
            ("engine.lease_ms", engine.lease_ms),
            ("engine.renew_ms", engine.renew_ms),
            ("engine.poll_ms", engine.poll_ms),
            ("defaults.timeout_seconds", u64::from(self.defaults.timeout_seconds)),
            ("probes.interval_ms", self.probes.interval_ms),
            ("probes.timeout_ms", self.probes.timeout_ms),
            ("probes.at_once", self.probes.at_once as u64),
            ("probes.down_after", u64::from(self.probes.down_after)),
            ("probes.up_after", u64::from(self.probes.up_after)),
            ("probes.health_interval_ms", self.probes.health_interval_ms),
        ];
        if let Some((field, _)) = positive.iter().find(|(_, value)| *value == 0) {
            return Err(format!("{field} is 0; use at least 1"));
        }
        if engine.renew_ms.saturating_mul(2) > engine.lease_ms {
            return Err(format!(
                "engine.renew_ms is {} and engine.lease_ms is {}; a lease must outlast two renewals",
                engine.renew_ms, engine.lease_ms
            ));
        }
        if self.database_connections < LEAST_CONNECTIONS {
            return Err(format!(
                "database_connections is {}; use at least {LEAST_CONNECTIONS}: one listens to the \
                 other replicas, and one must be left for the lease while another one works",
                self.database_connections
            ));
        }
        let is_name = |host: &&String| !host.is_empty() && !host.contains([':', '/', ' ']);
        if let Some(host) = self.allowed_hosts.iter().find(|host| !is_name(host)) {
            return Err(format!(
                "allowed_hosts has {host:?}; write the name alone, as in \"farrier.example.com\""
            ));
        }
        self.datacenter.check()?;
        self.netboot.check()?;
        self.racks.check()?;
        self.tls.check("tls")?;
        self.agent_tls.check_own_key("agent_tls")?;
        self.agent_tls().check("agent_tls")?;
        self.oidc.check()?;
        self.connections.check()?;
        self.audit.check()?;
        self.nodes.check(self.agent_tls().is_on())?;
        self.retention.check()
    }

    /// A copy without the password of the database URL.
    #[must_use]
    pub fn redacted(&self) -> Self {
        Self { database_url: self.database_url.masked().into(), ..self.clone() }
    }

    /// The URL of the database with its password.
    pub(crate) fn database_url_with_password(&self) -> Result<SecretString, String> {
        let variable = std::env::var(PASSWORD_VARIABLE).ok();
        self.database_url.with_password(variable, &self.database_password_file)
    }

    pub(crate) fn settings(&self) -> Settings {
        let ms = Duration::from_millis;
        Settings {
            replica: self.replica(),
            max_in_flight: self.engine.max_in_flight,
            eager_in_flight: self.engine.eager_in_flight,
            lease: ms(self.engine.lease_ms),
            renew_interval: ms(self.engine.renew_ms),
            poll_interval: ms(self.engine.poll_ms),
            grace_period: ms(self.engine.grace_ms),
            policy: Policy {
                backoff: Backoff {
                    initial: ms(self.engine.backoff_first_ms),
                    max: ms(self.engine.backoff_most_ms),
                },
            },
            defaults: Defaults {
                timeout_seconds: self.defaults.timeout_seconds,
                max_retries: self.defaults.max_retries,
                image_ref: self.defaults.image_ref.clone(),
            },
            probe_interval: ms(self.probes.interval_ms),
            probe_timeout: ms(self.probes.timeout_ms),
            max_concurrent_probes: self.probes.at_once,
            machine_polling: self.probes.rhythm(),
            retention: self.retention.settings(),
            max_find_by_ids: self.engine.max_find_by_ids,
            rack_limits: self.racks.limits(),
            host_firmware_upgrade_retry_interval: self.racks.host_retry_interval(),
            nodes: self.nodes.settings(),
            serves_netboot: self.netboot.listen.is_some(),
        }
    }

    /// Settings of the provider of real machines. Its calls must time out before the prober does,
    /// or it would not notice that a BMC hangs; its cached list of cluster nodes must expire
    /// once per probe round.
    pub(crate) fn datacenter(&self) -> Result<providers::datacenter::Settings, String> {
        let most = |ms: u64| Duration::from_millis(ms) * 4 / 5;
        Ok(providers::datacenter::Settings {
            poll_timeout: most(self.probes.timeout_ms),
            node_cache_max_age: most(self.probes.interval_ms),
            ..self.datacenter.settings()?
        })
    }

    pub(crate) fn replica(&self) -> String {
        if !self.replica_name.is_empty() {
            return self.replica_name.clone();
        }
        if self.database_url.is_empty() {
            // Only one process can use this SQLite file: all claims in it are ours, whatever the
            // port is now.
            return "farrier".into();
        }
        let host = host_name().unwrap_or_else(|| "farrier".into());
        format!("{host}:{}", self.listen.port())
    }

    /// The URL of the address that serves gRPC and HTTP.
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_on() { "https" } else { "http" };
        format!("{scheme}://{}", self.listen)
    }

    /// The names in requests that this server answers, beside addresses and `localhost`.
    pub(crate) fn host_names(&self) -> Vec<String> {
        self.allowed_hosts.iter().cloned().chain(host_name()).collect()
    }

    /// The operator's own file with the administrator's first token.
    pub(crate) fn admin_token(&self) -> Option<&Path> {
        Some(self.admin_token_file.as_path()).filter(|path| !path.as_os_str().is_empty())
    }

    /// The certificates of the listener for agents.
    pub(crate) fn agent_tls(&self) -> Tls {
        self.agent_tls.or_certificate_of(&self.tls)
    }

    /// The URLs under which agents reach this server, separated by commas.
    pub(crate) fn agents_url(&self) -> String {
        self.nodes.urls(self.agent_tls().is_on())
    }

    /// The addresses of the listeners that are on.
    pub(crate) fn listeners(&self) -> Vec<(ListenerName, SocketAddr)> {
        let others = [
            (ListenerName::Agents, self.nodes.listen),
            (ListenerName::Netboot, self.netboot.listen),
        ];
        let others = others.into_iter().filter_map(|(name, address)| Some((name, address?)));
        std::iter::once((ListenerName::Api, self.listen)).chain(others).collect()
    }

    /// Divides the descriptors of this process among the listeners that are on.
    pub(crate) fn descriptor_plan(&self, limit: u64) -> Result<DescriptorPlan, String> {
        let wanted: Vec<_> = self
            .listeners()
            .into_iter()
            .map(|(name, _)| (name, self.connections.wanted(name)))
            .collect();
        DescriptorPlan::new(limit, self.reserved_descriptors(), &wanted)
    }

    pub(crate) fn limits(&self, name: ListenerName, plan: &DescriptorPlan) -> ListenerLimits {
        self.connections.limits(name, plan)
    }

    /// Descriptors for the database, concurrent calls to devices and files.
    fn reserved_descriptors(&self) -> usize {
        match self.connections.reserved_descriptors {
            0 => {
                let calls = self.datacenter.calls_at_once.saturating_add(self.probes.at_once);
                calls.saturating_add(self.database_connections).saturating_add(OTHER_DESCRIPTORS)
            }
            reserved => reserved,
        }
    }

    pub(crate) fn seal_key(&self) -> PathBuf {
        if self.seal_key_file.as_os_str().is_empty() {
            self.data_dir.join("seal.key")
        } else {
            self.seal_key_file.clone()
        }
    }

    /// True if simulated hardware exists beside the real one.
    pub(crate) fn simulates(&self) -> bool {
        self.sim.enabled || self.sim.machines > 0
    }

    pub(crate) fn sim_dir(&self) -> PathBuf {
        if self.sim.dir.as_os_str().is_empty() {
            self.data_dir.join("sim")
        } else {
            self.sim.dir.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = include_str!("../../../docs/farrier.example.toml");

    #[test]
    fn the_example_names_every_field_and_gives_the_defaults() {
        let read: Config = toml::from_str(EXAMPLE).unwrap();
        let default = toml::to_string(&Config::default()).unwrap();
        assert_eq!(toml::to_string(&read).unwrap(), default);
        let fields = default.lines().filter_map(|line| line.split_once(" = "));
        for (field, _) in fields {
            assert!(EXAMPLE.contains(&format!("{field} = ")), "{field} is not in the example");
        }
    }

    #[test]
    fn a_password_is_not_shown() {
        let shown = |url: &str| {
            let config = Config { database_url: url.into(), ..Config::default() };
            assert!(!format!("{config:?}").contains("s3"), "{url}");
            config.redacted().database_url.to_string()
        };
        assert_eq!(shown("postgres://ada:s3:c@ret@db/x"), "postgres://ada:***@db/x");
        assert_eq!(shown("postgres://ada@db/x"), "postgres://ada@db/x");
        assert_eq!(shown(""), "");
        assert_eq!(shown("host=db password='s3 cret' user=ada"), "host=db password=*** user=ada");
    }

    #[test]
    fn unknown_keys_and_bad_values_are_refused_with_their_name() {
        let wrong = toml::from_str::<Config>("lisen = \"127.0.0.1:1\"").unwrap_err().to_string();
        assert!(wrong.contains("lisen") && wrong.contains("listen"), "{wrong}");
        let wrong = toml::from_str::<Config>("[engine]\nlease = 1").unwrap_err().to_string();
        assert!(wrong.contains("lease"), "{wrong}");
        let config = Config {
            engine: EngineConfig { renew_ms: 5_000, ..EngineConfig::default() },
            ..Config::default()
        };
        assert!(config.check().unwrap_err().contains("renew_ms"));
        let config = Config { database_connections: 2, ..Config::default() };
        let wrong = config.check().unwrap_err();
        assert!(wrong.contains("database_connections is 2; use at least 3"), "{wrong}");
    }

    #[test]
    fn retention_is_checked_and_zero_means_forever() {
        let read = |text: &str| toml::from_str::<Config>(&format!("[retention]\n{text}"));
        for (text, words) in [
            ("runs = 90", "runs_days"),
            ("runs_days = \"90d\"", "expected u32"),
            ("logs_days = -1", "-1"),
        ] {
            let wrong = read(text).unwrap_err().to_string();
            assert!(wrong.contains(words), "{wrong}");
        }
        for (text, words) in [
            ("events_days = 36501", "retention.events_days is 36501; use at most 36500, or 0"),
            ("max_log_bytes = 5", "use at least 1048576, or 0 for no limit"),
        ] {
            let wrong = read(text).unwrap().check().unwrap_err();
            assert!(wrong.contains(words), "{wrong}");
        }
        let stored = read("runs_days = 0\nmax_runs = 5").unwrap();
        stored.check().unwrap();
        let stored = stored.settings().retention;
        assert_eq!((stored.runs, stored.logs), (None, Some(DAY * 30)));
        assert_eq!(
            (stored.max_runs, stored.max_log_bytes, stored.max_events),
            (Some(5), None, None)
        );
    }
}
