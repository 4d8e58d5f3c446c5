//! Machines: the permanent records of the hardware.
//!
//! A machine has the owner's description (spec, labels), the operator's intent (phase), and
//! observations (conditions). Everything else is derived from these in `view`. Whether an operation
//! may start is decided in `admit`, whether it may be deleted in `delete`.

pub mod admit;
pub mod delete;
pub mod disk_write;
pub mod failed_change;
pub mod hardware;
pub mod matcher;
pub mod network_boot;
mod problem;
pub mod view;

pub use disk_write::{DiskReport, DiskWrite};
pub use failed_change::{ChangeKind, FailedChange, FailedChanges};
pub use network_boot::NetworkBoot;
pub use problem::MachineProblem;

use crate::condition::{
    ConditionObservation, ConditionType, Conditions, IN_SERVICE, NOT_IN_CLUSTER, NOT_JOINED,
};
use crate::health::HealthSummary;
use crate::id::{MachineId, PowerShelfId, RackId, RunId};
use crate::refusal::Refusal;
use crate::target::TargetId;
use crate::text;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub type Labels = BTreeMap<String, String>;

/// The operator's intent. It changes when maintenance is entered or left, on return from RMA, and
/// when a run fails whose plan says `OnFailure::EnterMaintenance`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Phase {
    FactoryReady,
    Ready,
    Maintenance,
}

impl Phase {
    pub const ALL: [Phase; 3] = [Self::FactoryReady, Self::Ready, Self::Maintenance];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::FactoryReady => "FACTORY_READY",
            Self::Ready => "READY",
            Self::Maintenance => "MAINTENANCE",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|phase| phase.as_str() == name)
    }
}

/// The owner's description of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MachineSpec {
    pub ssh_endpoint: String,
    pub bmc_endpoint: String,
    pub target_cluster_ref: String,
    pub mac_addresses: Vec<String>,
    pub provider: String,
    pub serial: String,
    pub customer_id: String,
    /// The names of the credentials for its BMC and its host. Empty means the provider's default.
    pub bmc_credential: String,
    pub ssh_credential: String,
    /// The rack that holds the machine, and the slot in it, counted from the bottom.
    pub rack: Option<RackId>,
    pub slot: Option<u32>,
    /// The disk that images are written to: `serial:…`, `wwn:…` or `path:…`. Empty means the only
    /// disk.
    pub root_disk: String,
    /// Its name in its Kubernetes cluster. Empty means its id, or its host name if its id cannot
    /// be the name of a node.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node_name: String,
    /// Its height in rack units; None means unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub height_u: Option<u32>,
    /// The power shelves that feed it, sorted. Empty means unknown: any shelf of its rack may.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub feeds: Vec<PowerShelfId>,
}

/// The name of a machine in its Kubernetes cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeName {
    pub cluster: String,
    pub name: String,
}

/// The highest slot number.
pub const MAX_SLOT: u32 = 64;
/// The number of MAC addresses that one machine may have.
pub const MAX_MACS: usize = 64;

/// The provider of simulated hardware.
pub const SIMULATED: &str = "sim";
/// The provider that leaves power, network boot and imaging to a MAAS.
pub const MAAS: &str = "maas";

impl MachineSpec {
    pub fn is_simulated(&self) -> bool {
        self.provider == SIMULATED
    }

    /// The name in its cluster of the machine with this id.
    pub fn node_name_of(&self, id: &str) -> String {
        match self.node_name.as_str() {
            "" if text::check_node_name("id", id).is_ok() => id.into(),
            "" => text::hostname(id),
            name => name.into(),
        }
    }

    /// Checks every field and normalizes the MAC addresses.
    pub fn checked(mut self) -> Result<Self, Refusal> {
        text::check_endpoint("machine.spec.ssh_endpoint", &self.ssh_endpoint)?;
        text::check_endpoint("machine.spec.bmc_endpoint", &self.bmc_endpoint)?;
        text::check_short("machine.spec.target_cluster_ref", &self.target_cluster_ref)?;
        text::check_short("machine.spec.provider", &self.provider)?;
        text::check_short("machine.spec.serial", &self.serial)?;
        text::check_short("machine.spec.customer_id", &self.customer_id)?;
        text::check_optional_name("machine.spec.bmc_credential", &self.bmc_credential)?;
        text::check_optional_name("machine.spec.ssh_credential", &self.ssh_credential)?;
        text::check_node_name("machine.spec.node_name", &self.node_name)?;
        check_root_disk(&self.root_disk)?;
        if self.mac_addresses.len() > MAX_MACS {
            return Err(Refusal::invalid(
                "machine.spec.mac_addresses",
                format!("has {} entries", self.mac_addresses.len()),
                format!("give at most {MAX_MACS}"),
            ));
        }
        for (index, mac) in self.mac_addresses.iter_mut().enumerate() {
            *mac = text::normalize_mac(&format!("machine.spec.mac_addresses[{index}]"), mac)?;
        }
        Ok(self)
    }

    /// Refuses a change of the address or identity by which the operation that holds the machine or
    /// device finds it: an operation must not ask one device and act on another.
    pub fn check_change(
        &self,
        after: &Self,
        target: &TargetId,
        holder: Option<&RunId>,
    ) -> Result<(), Refusal> {
        let fields = [
            ("provider", self.provider != after.provider),
            ("bmc_endpoint", self.bmc_endpoint != after.bmc_endpoint),
            ("ssh_endpoint", self.ssh_endpoint != after.ssh_endpoint),
            ("mac_addresses", self.mac_addresses != after.mac_addresses),
            ("serial", self.serial != after.serial),
            ("root_disk", self.root_disk != after.root_disk),
            ("target_cluster_ref", self.target_cluster_ref != after.target_cluster_ref),
            ("node_name", self.node_name != after.node_name),
        ];
        let changed = fields.iter().filter(|(_, changed)| *changed).map(|(name, _)| *name);
        let changed: Vec<&str> = changed.collect();
        match holder {
            Some(run) if !changed.is_empty() => Err(target.refuse_change(run, &changed)),
            Some(_) | None => Ok(()),
        }
    }
}

fn check_root_disk(value: &str) -> Result<(), Refusal> {
    const FIELD: &str = "machine.spec.root_disk";
    text::check_short(FIELD, value)?;
    let named = ["serial:", "wwn:", "path:/dev/"].iter();
    let sound = named.filter_map(|how| value.strip_prefix(how)).any(|rest| !rest.is_empty());
    match value.is_empty() || sound {
        true => Ok(()),
        false => Err(Refusal::invalid(
            FIELD,
            format!("{value:?} names no disk"),
            "write serial:S1234, wwn:0x5000c500a1b2c3d4 or path:/dev/nvme0n1",
        )),
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    pub id: MachineId,
    pub labels: Labels,
    pub spec: MachineSpec,
    pub phase: Phase,
    pub conditions: Conditions,
    /// The summary of its health reports.
    #[serde(default, skip_serializing_if = "HealthSummary::is_clear")]
    pub health: HealthSummary,
    pub active_run: Option<RunId>,
    /// The last disk write, until its end is observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_disk_write: Option<DiskWrite>,
    /// A boot from the network that an operation armed, and that was not disarmed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_boot: Option<NetworkBoot>,
    /// The operations that were to change it, failed, and were not repaired since.
    #[serde(default, alias = "failed_imaging", skip_serializing_if = "FailedChanges::is_empty")]
    pub failed_changes: FailedChanges,
    /// It left phase FACTORY_READY, and neither it nor a node on it has served yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub never_served: bool,
    pub version: i64,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

impl Machine {
    /// Its name in its cluster; none outside of clusters.
    pub fn node_name(&self) -> Option<NodeName> {
        let cluster = self.spec.target_cluster_ref.clone();
        let name = self.spec.node_name_of(self.id.as_str());
        (!cluster.is_empty()).then_some(NodeName { cluster, name })
    }

    /// Refuses a name that another machine has in the same cluster.
    pub fn check_node_name(&self, taken_by: Option<&MachineId>) -> Result<(), Refusal> {
        let (Some(NodeName { cluster, name }), Some(other)) = (self.node_name(), taken_by) else {
            return Ok(());
        };
        if *other == self.id {
            return Ok(());
        }
        let problem = format!("is {name:?}, the name of {other} in the cluster {cluster}");
        let instead = format!(
            "choose another, or rename {other}: farrier machine update {other} --node-name …"
        );
        Err(Refusal::invalid("machine.spec.node_name", problem, instead))
    }

    pub fn new(id: MachineId, spec: MachineSpec, labels: Labels, now: Timestamp) -> Self {
        Self {
            id,
            labels,
            spec,
            phase: Phase::FactoryReady,
            conditions: Conditions::default(),
            health: HealthSummary::default(),
            active_run: None,
            open_disk_write: None,
            network_boot: None,
            failed_changes: FailedChanges::default(),
            never_served: false,
            version: 1,
            created_at: now,
            updated_at: now,
        }
    }

    pub fn is(&self, condition: ConditionType) -> bool {
        self.conditions.is_true(condition)
    }

    /// Merges observations; returns whether anything changed.
    pub fn learn(&mut self, observed: &[ConditionObservation], now: Timestamp) -> bool {
        // No short-circuit: every observation must be merged.
        let changed = observed.iter().fold(false, |changed, one| {
            let implied = self.implied_by(one);
            let implied = implied.is_some_and(|other| self.conditions.observe(&other, now));
            self.conditions.observe(one, now) | implied | changed
        });
        self.failed_changes.forget_contradicted(&self.conditions) | changed
    }

    /// The condition that an observation outdates: a machine is not in a cluster and drained for
    /// being in none.
    fn implied_by(&self, observed: &ConditionObservation) -> Option<ConditionObservation> {
        use ConditionType::{Drained, InCustomerCluster};
        if observed.condition == InCustomerCluster && observed.status && self.is_empty_in_none() {
            return Some(ConditionObservation::new(Drained, false, "Joined"));
        }
        let left = observed.condition == Drained
            && observed.status
            && observed.reason == NOT_IN_CLUSTER
            && self.is(InCustomerCluster);
        left.then(|| ConditionObservation::new(InCustomerCluster, false, NOT_JOINED))
    }

    /// The condition that a node in service outdates: it has work, also where no cluster has
    /// given it any.
    pub fn outdated_by_service(&self) -> Option<ConditionObservation> {
        let serves = || ConditionObservation::new(ConditionType::Drained, false, IN_SERVICE);
        self.is_empty_in_none().then(serves)
    }

    /// True if the machine counts as drained because it is in no cluster.
    fn is_empty_in_none(&self) -> bool {
        let drained = self.conditions.get(ConditionType::Drained);
        drained.is_some_and(|known| known.status && known.reason == NOT_IN_CLUSTER)
    }
}
