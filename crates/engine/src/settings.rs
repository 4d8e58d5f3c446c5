//! What can be set, and what it is when nobody sets it.

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
    /// What this replica is called, over restarts.
    pub replica: String,
    /// How many runs it works on at once.
    pub max_in_flight: usize,
    /// Up to this many, an accepted run is born in the hands of the replica that accepted it.
    pub eager_in_flight: usize,
    pub lease: Duration,
    pub renew: Duration,
    /// How long to trust that a signal would have come.
    pub poll: Duration,
    /// How long work under way may go on after a request to stop the process.
    pub grace: Duration,
    pub policy: Policy,
    pub defaults: Defaults,
    pub probe_interval: Duration,
    pub probe_timeout: Duration,
    pub probes_at_once: usize,
    /// What is believed of what probes see, and when the parts of a machine are looked at.
    pub rhythm: Rhythm,
    pub retention: Retention,
    /// How many objects one request may name.
    pub max_find_by_ids: usize,
    /// How long a failed upgrade of a host's firmware rests before it is tried again by itself.
    pub host_firmware_upgrade_retry_interval: Duration,
    /// How long the legs of a rack's maintenance may take.
    pub racks: Limits,
    pub nodes: NodeSettings,
}

/// How nodes are watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeSettings {
    pub silence: silence::Limits,
    /// How often it is looked who is silent, and how often each site is asked.
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
