//! The provider for datacenters without MAAS: a BMC for power and boot, SSH for the host.
//!
//! A BMC keeps no record of our calls. Each provider call therefore first stores a checkpoint under
//! its effect key in the [`ProviderStateStore`]: the state before, and the progress since. After a
//! crash the next worker reads the checkpoint, reads the device, and requests only what does not
//! hold yet.
//!
//! `bmcs` and `hosts` connect to BMCs and hosts, `session_cache` keeps logins for the next call,
//! `controller` is a BMC of either protocol, `power_sequence` follows a power sequence,
//! `provider_calls` routes calls and stores their checkpoints, `exec` runs commands on the host,
//! `net` configures its network, `imaging` installs its disk, `devices` handles switches and power
//! shelves, `firmware` installs firmware, `fabric` configures a switch, `cluster`, `cluster_check`,
//! `drain` and `node_state` handle the Kubernetes node, `record` is the RMA record, `probe`
//! observes a machine, `node_cache` shares the node list of a cluster, `inspect` reads a machine
//! for an operator, `bmc_discovery` and `bmc_test` read BMCs without a machine, and `ipmi_only` is
//! the same provider for BMCs without Redfish.

mod bmc_discovery;
mod bmc_test;
mod bmcs;
mod cluster;
mod cluster_check;
mod controller;
mod devices;
mod drain;
mod exec;
mod fabric;
mod firmware;
mod hosts;
mod imaging;
mod inspect;
mod ipmi_only;
mod net;
mod node_cache;
mod node_state;
mod power_sequence;
mod probe;
mod provider_calls;
mod record;
mod session_cache;

use crate::bmc_discovery::BmcDiscovery;
use crate::cluster_check::{ClusterInspector, DrainPreview};
use crate::fetch::Fetcher;
use crate::governor::{self, BmcStatus};
use crate::inspect::Inspector;
use crate::kubernetes;
use crate::peer_login::{PeerLogin, TrustPolicy};
use crate::port::{Journal, Provider, Target};
use crate::power::PowerTimeouts;
use crate::redfish;
use crate::state_store::ProviderStateStore;
use crate::{ipmi, ssh};
use async_trait::async_trait;
use bmcs::{Bmcs, peer_of_endpoint};
pub use fabric::FabricTimeouts;
pub use firmware::FirmwareTimeouts;
use hosts::Hosts;
pub use imaging::Imaging;
pub use ipmi_only::IpmiOnly;
use model::condition::ConditionObservation;
use model::effect::{CallResult, Capability, DeviceFacts, DrainOptions, ProviderCall};
use model::fault::Result;
use model::machine::MachineSpec;
use model::time::format_duration;
pub use net::Netplan;
use node_cache::NodeCaches;
use std::sync::Arc;
use std::time::Duration;

/// One provider call, its target, and its log.
#[derive(Clone, Copy)]
struct TargetCall<'a> {
    target: &'a Target,
    call: &'a ProviderCall,
    journal: &'a Journal,
}

#[derive(Debug, Clone)]
pub struct Settings {
    /// The credential for BMCs of machines that name none.
    pub bmc_credential: String,
    pub trust: TrustPolicy,
    pub power_timeouts: PowerTimeouts,
    /// The timeout of one call to a BMC, including the wait for its turn.
    pub call_timeout: Duration,
    /// The same for a probe.
    pub poll_timeout: Duration,
    /// The time limits of requests to the API servers of clusters.
    pub cluster: kubernetes::Settings,
    /// The maximum age of a cluster's node list that probes share.
    pub node_cache_max_age: Duration,
    pub governor: governor::Settings,
    pub redfish: redfish::Settings,
    pub ipmi: ipmi::Settings,
    /// The credential for hosts of machines that name none.
    pub ssh_credential: String,
    /// The jump hosts on the path to every host, in order.
    pub jump_hosts: Vec<String>,
    pub jump_credential: String,
    pub ssh: ssh::Settings,
    pub netplan: Netplan,
    /// The installer of images. None: the capability is absent.
    pub imaging: Option<Imaging>,
    pub firmware: FirmwareTimeouts,
    pub fabric: FabricTimeouts,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            bmc_credential: String::new(),
            trust: TrustPolicy::FirstUse,
            power_timeouts: PowerTimeouts::default(),
            call_timeout: Duration::from_secs(90),
            poll_timeout: Duration::from_secs(12),
            cluster: kubernetes::Settings::default(),
            node_cache_max_age: Duration::from_secs(50),
            governor: governor::Settings::default(),
            redfish: redfish::Settings::default(),
            ipmi: ipmi::Settings::default(),
            ssh_credential: String::new(),
            jump_hosts: Vec::new(),
            jump_credential: String::new(),
            ssh: ssh::Settings::default(),
            netplan: Netplan::default(),
            imaging: None,
            firmware: FirmwareTimeouts::default(),
            fabric: FabricTimeouts::default(),
        }
    }
}

pub struct Datacenter {
    bmcs: Bmcs,
    hosts: Hosts,
    node_caches: NodeCaches,
    fetcher: Fetcher,
    store: Arc<dyn ProviderStateStore>,
    settings: Settings,
}

impl Datacenter {
    pub const NAME: &'static str = "datacenter";

    pub fn new(store: Arc<dyn ProviderStateStore>, settings: Settings) -> Self {
        let logins = PeerLogin(Arc::clone(&store));
        let bmcs = Bmcs::new(logins.clone(), settings.clone());
        let hosts = Hosts::new(logins, settings.clone());
        let node_caches = NodeCaches::new(settings.node_cache_max_age);
        Self { bmcs, hosts, node_caches, fetcher: Fetcher::default(), store, settings }
    }
}

#[async_trait]
impl Provider for Datacenter {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn capabilities(&self) -> &'static [Capability] {
        const ALL: [Capability; 8] = [
            Capability::Inspect,
            Capability::PowerControl,
            Capability::Netboot,
            Capability::RemoteExec,
            Capability::ClusterJoin,
            Capability::Firmware,
            Capability::Fabric,
            Capability::Imaging,
        ];
        match self.settings.imaging {
            Some(_) => &ALL,
            // Imaging is the last capability: without a deploy server no machine can be imaged.
            None => ALL.split_last().map_or(&[], |(_, rest)| rest),
        }
    }

    fn requires_catalog(&self) -> bool {
        true
    }

    fn peers(&self, spec: &MachineSpec) -> Vec<String> {
        // An address that cannot be parsed was never connected to.
        let bmc = Some(&spec.bmc_endpoint).filter(|endpoint| !endpoint.is_empty());
        let bmc = bmc.and_then(|endpoint| peer_of_endpoint(endpoint).ok());
        bmc.into_iter().chain(hosts::peer_of_endpoint(&spec.ssh_endpoint)).collect()
    }

    async fn call(&self, target: &Target, call: &ProviderCall, journal: &Journal) -> CallResult {
        self.execute(TargetCall { target, call, journal }).await
    }

    async fn probe(&self, target: &Target) -> Result<Vec<ConditionObservation>> {
        Ok(self.probe_machine(target).await)
    }

    async fn boots_from_disk(&self, target: &Target) -> Result<Option<bool>> {
        self.poll_next_boot(target).await
    }

    async fn poll_device(&self, target: &Target) -> Result<DeviceFacts> {
        self.poll_power(target).await
    }

    async fn probe_hardware(&self, target: &Target) -> Result<Option<ConditionObservation>> {
        self.read_hardware_health(target).await
    }

    fn inspector(&self) -> Option<&dyn Inspector> {
        Some(self)
    }

    fn bmc_discovery(&self) -> Option<&dyn BmcDiscovery> {
        Some(self)
    }

    fn cluster_inspector(&self) -> Option<&dyn ClusterInspector> {
        Some(self)
    }

    async fn preview_drain(&self, target: &Target, options: &DrainOptions) -> Result<DrainPreview> {
        self.preview_node_drain(target, options).await
    }

    fn gauges(&self) -> Vec<(&'static str, usize)> {
        let (resting, under_way, at_most) = self.bmcs.governor.totals();
        vec![
            ("farrier_bmc_circuit_open", resting),
            ("farrier_bmc_calls", under_way),
            ("farrier_bmc_calls_limit", at_most),
        ]
    }

    fn degraded_reason(&self, target: &Target) -> Option<String> {
        let mut reported = Vec::new();
        if let Some(message) = self.node_caches.last_error(&target.spec.target_cluster_ref) {
            reported.push(format!("its cluster cannot be asked: {message}"));
        }
        let status = self.bmcs.governor_status(target).unwrap_or_default();
        let BmcStatus { waiting, failures, circuit_open_for, last_error } = status;
        if failures > 0 {
            reported.push(format!(
                "its BMC failed {} in a row: {last_error}",
                counted(failures, "time")
            ));
        }
        if let Some(open_for) = circuit_open_for {
            reported.push(format!("polling leaves it alone for {}", format_duration(open_for)));
        }
        if waiting > 0 {
            reported.push(format!("{waiting} waiting for their turn at it"));
        }
        (!reported.is_empty()).then(|| reported.join("; "))
    }
}

fn counted(count: u32, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        _ => format!("{count} {noun}s"),
    }
}
