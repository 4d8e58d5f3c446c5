//! The settings of the engine and their defaults.

use crate::retention::Retention;
use model::condition::watched::Rhythm;
use model::node::silence;
use model::plan::Defaults;
use model::power_shelf::maintenance::DEFAULT_MAX_IDS;
use model::rack::maintenance::Limits;
use model::run::Policy;
use std::time::Duration;

#[derive(Debug, Clone)]
pub struct Settings {
    /// The name of this replica, stable across restarts.
    pub replica: String,
    /// The most objects that this replica works on at once.
    pub max_in_flight: usize,
    /// Below this number, the replica that accepts a run creates it as claimed by itself.
    pub eager_in_flight: usize,
    pub lease: Duration,
    pub renew: Duration,
    /// The polling interval, in case a signal is lost.
    pub poll: Duration,
    /// How long provider calls may continue after a request to stop the process.
    pub grace: Duration,
    pub policy: Policy,
    pub defaults: Defaults,
    pub probe_interval: Duration,
    pub probe_timeout: Duration,
    pub probes_at_once: usize,
    /// The hysteresis of probes, and the intervals at which machine components are read.
    pub rhythm: Rhythm,
    pub retention: Retention,
    /// The most objects that one request may name.
    pub max_find_by_ids: usize,
    /// The wait before a failed host firmware upgrade is retried automatically.
    pub host_firmware_upgrade_retry_interval: Duration,
    /// The time limits of the steps of a rack maintenance.
    pub racks: Limits,
    pub nodes: NodeSettings,
}

/// How heartbeats and sites are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeSettings {
    pub silence: silence::Limits,
    /// How often silent nodes are searched.
    pub sweep_interval: Duration,
    pub reconcile_interval: Duration,
}

impl Default for NodeSettings {
    fn default() -> Self {
        Self {
            silence: silence::Limits::default(),
            sweep_interval: Duration::from_secs(5),
            reconcile_interval: Duration::from_secs(30),
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            replica: "farrier".into(),
            max_in_flight: 8_192,
            eager_in_flight: 512,
            lease: Duration::from_secs(6),
            renew: Duration::from_secs(2),
            poll: Duration::from_secs(2),
            grace: Duration::from_secs(3),
            policy: Policy::default(),
            defaults: Defaults::default(),
            probe_interval: Duration::from_secs(60),
            probe_timeout: Duration::from_secs(15),
            probes_at_once: 512,
            rhythm: Rhythm::default(),
            retention: Retention::default(),
            max_find_by_ids: DEFAULT_MAX_IDS,
            host_firmware_upgrade_retry_interval: model::host::RETRY_INTERVAL,
            racks: Limits::default(),
            nodes: NodeSettings::default(),
        }
    }
}
