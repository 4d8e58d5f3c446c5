//! Machines in a datacenter of one's own: a BMC for power and boot, SSH for the host.
//!
//! A BMC remembers nothing of ours. So each order first leaves a note under its key with the [`Keeper`], which says what
//! was there before and how far it came; whoever comes after a crash reads the note, looks at the device, and goes on. What
//! is asked twice by that does no harm twice: the note says what was seen, and only what does not hold yet is asked.
//!
//! `admittance` is being let in, `bmcs` and `hosts` the ways to a BMC and to a host, `kept` the logins that are kept, `controller` what
//! one says to a BMC, `power` the decisions about power and `course` following them, `orders` what is asked and its notes, `exec` commands on the host, `net` its
//! network, `imaging` its disk, `devices` what switches and power shelves are asked, `firmware` what is installed on anything, `fabric` what a switch runs, `cluster` the node, `drain` what runs on it, `record` what is written down before it goes; `probe` is how a machine is,
//! and `roster` the nodes of a cluster as probes see them; `inspect` looks for a person, `scout` and `trial` at BMCs without a machine; `ipmi_only` is the
//! same for less.

mod bmcs;
mod cluster;
mod controller;
mod course;
mod devices;
mod drain;
mod exec;
mod fabric;
mod firmware;
mod hosts;
mod imaging;
mod inspect;
mod ipmi_only;
mod kept;
mod net;
mod orders;
mod probe;
mod record;
mod roster;
mod scout;
mod trial;

use crate::fetch::Fetcher;
use crate::governor::{self, Standing};
use crate::inspect::Inspector;
use crate::peer_login::{PeerLogin, TrustPolicy};
use crate::port::{Journal, Provider, Target};
use crate::power::PowerTimeouts;
use crate::redfish;
use crate::scout::Scout;
use crate::state_store::Keeper;
use crate::{ipmi, ssh};
use async_trait::async_trait;
use bmcs::Bmcs;
pub use fabric::Patience as FabricPatience;
pub use firmware::Patience as FirmwarePatience;
use hosts::Hosts;
pub use imaging::Imaging;
pub use ipmi_only::IpmiOnly;
use model::condition::Evidence;
use model::effect::{Answer, Capability, Facts, Order};
use model::fault::Fault;
use model::time::spoken;
pub use net::Netplan;
use roster::Rosters;
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug, Clone)]
pub struct Settings {
    /// The credential for BMCs of machines that name none.
    pub bmc_credential: String,
    pub trust: TrustPolicy,
    pub power_timeouts: PowerTimeouts,
    /// How long one call to a BMC may take, its waiting included.
    pub call: Duration,
    /// The same for a look that polling makes.
    pub poll: Duration,
    /// How old the list of a cluster's nodes may be that probes share.
    pub roster: Duration,
    pub governor: governor::Settings,
    pub redfish: redfish::Settings,
    pub ipmi: ipmi::Settings,
    /// The credential for hosts of machines that name none.
    pub ssh_credential: String,
    /// On the way to every host, in order.
    pub jump_hosts: Vec<String>,
    pub jump_credential: String,
    pub ssh: ssh::Settings,
    pub netplan: Netplan,
    /// How images are put on machines; None: they are not.
    pub imaging: Option<Imaging>,
    pub firmware: FirmwarePatience,
    pub fabric: FabricPatience,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            bmc_credential: String::new(),
            trust: TrustPolicy::FirstUse,
            power_timeouts: PowerTimeouts::default(),
            call: Duration::from_secs(90),
            poll: Duration::from_secs(12),
            roster: Duration::from_secs(50),
            governor: governor::Settings::default(),
            redfish: redfish::Settings::default(),
            ipmi: ipmi::Settings::default(),
            ssh_credential: String::new(),
            jump_hosts: Vec::new(),
            jump_credential: String::new(),
            ssh: ssh::Settings::default(),
            netplan: Netplan::default(),
            imaging: None,
            firmware: FirmwarePatience::default(),
            fabric: FabricPatience::default(),
        }
    }
}

pub struct Datacenter {
    bmcs: Bmcs,
    hosts: Hosts,
    rosters: Rosters,
    fetcher: Fetcher,
    keeper: Arc<dyn Keeper>,
    settings: Settings,
}

impl Datacenter {
    pub const NAME: &'static str = "datacenter";

    pub fn new(keeper: Arc<dyn Keeper>, settings: Settings) -> Self {
        let logins = PeerLogin(Arc::clone(&keeper));
        let bmcs = Bmcs::new(logins.clone(), settings.clone());
        let hosts = Hosts::new(logins, settings.clone());
        let rosters = Rosters::new(settings.roster);
        Self { bmcs, hosts, rosters, fetcher: Fetcher::default(), keeper, settings }
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
            // Without a place to serve from there is nothing to boot.
            None => ALL.split_last().map_or(&[], |(_, rest)| rest),
        }
    }

    fn catalogued(&self) -> bool {
        true
    }

    async fn ask(
        &self,
        target: &Target,
        order: &Order,
        journal: &Journal,
    ) -> Result<Answer, Fault> {
        self.carry_out(target, order, journal).await
    }

    async fn probe(&self, target: &Target) -> Result<Vec<Evidence>, Fault> {
        Ok(self.look(target).await)
    }

    async fn survey(&self, target: &Target) -> Result<Facts, Fault> {
        self.look_at_power(target).await
    }

    async fn examine(&self, target: &Target) -> Result<Option<Evidence>, Fault> {
        self.look_at_parts(target).await
    }

    fn inspector(&self) -> Option<&dyn Inspector> {
        Some(self)
    }

    fn scout(&self) -> Option<&dyn Scout> {
        Some(self)
    }

    fn gauges(&self) -> Vec<(&'static str, usize)> {
        let (resting, under_way, at_most) = self.bmcs.governor.totals();
        vec![
            ("farrier_bmcs_resting", resting),
            ("farrier_bmc_calls", under_way),
            ("farrier_bmc_calls_limit", at_most),
        ]
    }

    fn hindrance(&self, target: &Target) -> Option<String> {
        let mut told = Vec::new();
        if let Some(said) = self.rosters.hindrance(&target.spec.target_cluster_ref) {
            told.push(format!("its cluster cannot be asked: {said}"));
        }
        let standing = self.bmcs.standing(target).unwrap_or_default();
        let Standing { waiting, failures, rests, said } = standing;
        if failures > 0 {
            told.push(format!("its BMC failed {} in a row: {said}", counted(failures, "time")));
        }
        if let Some(rests) = rests {
            told.push(format!("polling leaves it alone for {}", spoken(rests)));
        }
        if waiting > 0 {
            told.push(format!("{waiting} waiting for their turn at it"));
        }
        (!told.is_empty()).then(|| told.join("; "))
    }
}

fn counted(count: u32, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        _ => format!("{count} {noun}s"),
    }
}
