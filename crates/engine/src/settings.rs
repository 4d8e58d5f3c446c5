//! The settings of the engine and their defaults.

use crate::retention::Retention;
use model::condition::poll_state::PollIntervals;
use model::node::heartbeat;
use model::plan::Defaults;
use model::power_shelf::maintenance::DEFAULT_MAX_IDS;
use model::rack::maintenance::RackLimits;
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
    pub renew_interval: Duration,
    /// The polling interval, in case a signal is lost.
    pub poll_interval: Duration,
    /// The time that provider calls may continue after a request to stop the process.
    pub grace_period: Duration,
    pub policy: Policy,
    pub defaults: Defaults,
    pub probe_interval: Duration,
    pub probe_timeout: Duration,
    pub max_concurrent_probes: usize,
    /// The hysteresis of probes, and the intervals at which machine components are read.
    pub machine_polling: PollIntervals,
    pub retention: Retention,
    /// The most objects that one request may name.
    pub max_find_by_ids: usize,
    /// The wait before a failed host firmware upgrade is retried automatically.
    pub host_firmware_upgrade_retry_interval: Duration,
    /// The time limits of the steps of a rack maintenance.
    pub rack_limits: RackLimits,
    pub nodes: NodeSettings,
    /// This server has a netboot service, so that `farrier netboot config` has an answer.
    pub serves_netboot: bool,
}

/// The settings of the checks of heartbeats and sites.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeSettings {
    pub heartbeat_limits: heartbeat::HeartbeatLimits,
    /// The interval of the search for silent nodes.
    pub silence_check_interval: Duration,
    pub reconcile_interval: Duration,
}

impl Default for NodeSettings {
    fn default() -> Self {
        Self {
            heartbeat_limits: heartbeat::HeartbeatLimits::default(),
            silence_check_interval: Duration::from_secs(5),
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
            renew_interval: Duration::from_secs(2),
            poll_interval: Duration::from_secs(2),
            grace_period: Duration::from_secs(3),
            policy: Policy::default(),
            defaults: Defaults::default(),
            probe_interval: Duration::from_secs(60),
            probe_timeout: Duration::from_secs(15),
            max_concurrent_probes: 512,
            machine_polling: PollIntervals::default(),
            retention: Retention::default(),
            max_find_by_ids: DEFAULT_MAX_IDS,
            host_firmware_upgrade_retry_interval: model::host::RETRY_INTERVAL,
            rack_limits: RackLimits::default(),
            nodes: NodeSettings::default(),
            serves_netboot: false,
        }
    }
}
