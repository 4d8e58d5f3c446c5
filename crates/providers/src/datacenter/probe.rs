//! Probes a machine: its BMC, its host, its node, and less often its hardware.

use super::Datacenter;
use super::controller::Controller;
use super::devices::power_to;
use super::node_cache::Nodes;
use super::node_state::{count_occupants, find_node, node_outcome};
use crate::host_probe::{HOST_TIMEOUT, host_evidence, probe_host};
use crate::port::Target;
use model::condition::{ConditionObservation, ConditionType, NOT_JOINED};
use model::effect::{DesiredPower, DeviceFacts, NetbootMode};
use model::fault::{Fault, FaultCode, Result};
use model::target::TargetKind;
use std::time::Duration;

/// Reading the hardware takes several requests; its timeout is this multiple of a probe's.
const HARDWARE_TIMEOUT_FACTOR: u32 = 2;
/// The most unhealthy components that are named.
const MAX_NAMED: usize = 3;

impl Datacenter {
    /// Probes everything concurrently. What is not configured or readable gives no evidence.
    pub(super) async fn probe_machine(&self, target: &Target) -> Vec<ConditionObservation> {
        let limit = HOST_TIMEOUT.min(self.settings.poll_timeout);
        let (bmc, host, node) = tokio::join!(
            self.probe_bmc(target),
            probe_host(&target.spec.ssh_endpoint, limit),
            self.probe_node(target)
        );
        let power = bmc.as_ref().and_then(|answer| answer.as_ref().ok().copied().flatten());
        let host = host_evidence(target, host, power);
        bmc.and_then(bmc_evidence).into_iter().chain(host).chain(node).collect()
    }

    /// The power state of a device. A probe that was not admitted is a fault, not a state.
    pub(super) async fn poll_power(&self, target: &Target) -> Result<DeviceFacts> {
        let limit = self.settings.poll_timeout;
        let power = self.bmcs.poll(target, limit, async |bmc| bmc.power().await).await?;
        let power = power.ok_or_else(busy)?;
        Ok(DeviceFacts { power: power_to(power), ..DeviceFacts::default() })
    }

    /// True if the next boot is from disk. None: the machine has no BMC, or the probe was not
    /// admitted.
    pub(super) async fn poll_next_boot(&self, target: &Target) -> Result<Option<bool>> {
        if target.spec.bmc_endpoint.is_empty() {
            return Ok(None);
        }
        let limit = self.settings.poll_timeout;
        let read = async |bmc: &Controller| bmc.boots_from(NetbootMode::Disk).await;
        let observed = self.bmcs.poll(target, limit, read).await?;
        Ok(observed.map(|(from_disk, _)| from_disk))
    }

    /// The power state that the BMC reports. None: the machine has no BMC, or the probe was not
    /// admitted.
    async fn probe_bmc(&self, target: &Target) -> Option<Result<Option<DesiredPower>>> {
        if target.spec.bmc_endpoint.is_empty() {
            return None;
        }
        let limit = self.settings.poll_timeout;
        let power = self.bmcs.poll(target, limit, async |bmc| bmc.power().await).await;
        power.transpose().map(|answer| answer.map(power_to))
    }

    /// The health that the BMC reports for the hardware. None: the machine has no BMC.
    pub(super) async fn read_hardware_health(
        &self,
        target: &Target,
    ) -> Result<Option<ConditionObservation>> {
        if target.spec.bmc_endpoint.is_empty() {
            return Ok(None);
        }
        let limit = self.settings.poll_timeout * HARDWARE_TIMEOUT_FACTOR;
        let observed =
            self.bmcs.poll(target, limit, async |bmc| bmc.unhealthy_components().await).await?;
        observed.map(|ailments| Some(degraded_evidence(&ailments))).ok_or_else(busy)
    }

    /// Reads the conditions of the machine's node in its target cluster.
    async fn probe_node(&self, target: &Target) -> Vec<ConditionObservation> {
        if target.id.kind != TargetKind::Machine {
            return Vec::new();
        }
        let cluster = target.spec.target_cluster_ref.as_str();
        if cluster.is_empty() {
            let condition = ConditionType::InCustomerCluster;
            return vec![ConditionObservation::new(condition, false, NOT_JOINED)];
        }
        // Half of the time, so that callers that wait for another caller's list still get it.
        let limit = self.settings.poll_timeout / 2;
        let list = self.list_nodes(cluster, limit);
        let Ok(nodes) = self.node_caches.nodes(cluster, limit, list).await else {
            return Vec::new();
        };
        let listed = target.node_names().iter().find_map(|name| nodes.get(name));
        if let Some(node) = listed.filter(|node| node.schedulable) {
            return node_outcome(cluster, Some(node), None).evidence;
        }
        let read = tokio::time::timeout(limit, self.read_node(target, limit)).await;
        read.ok().and_then(Result::ok).unwrap_or_default()
    }

    /// Reads a node that the list has as cordoned or not at all, and counts its pods. The list may
    /// be as old as a poll round, and it must not say `Drained` of a node that has joined or was
    /// uncordoned since. Few nodes are in this state at a time.
    async fn read_node(
        &self,
        target: &Target,
        limit: Duration,
    ) -> Result<Vec<ConditionObservation>> {
        let cluster = target.spec.target_cluster_ref.as_str();
        let api = self.cluster_within(cluster, limit).await?;
        let (_, node) = find_node(&api, target).await?;
        let pods_left = match &node {
            Some(node) if !node.schedulable => count_occupants(&api, node).await.ok(),
            Some(_) | None => None,
        };
        Ok(node_outcome(cluster, node.as_ref(), pods_left).evidence)
    }

    async fn list_nodes(&self, cluster: &str, limit: Duration) -> Result<Nodes> {
        let nodes = self.cluster_within(cluster, limit).await?.nodes().await?;
        Ok(nodes.into_iter().map(|node| (node.name.clone(), node)).collect())
    }
}

fn busy() -> Fault {
    Fault::new(FaultCode::BmcBusy, "its BMC was busy with other calls")
}

/// The evidence of a probe. Not being admitted, or a fault of Farrier, says nothing about the BMC.
fn bmc_evidence(looked: Result<Option<DesiredPower>>) -> Option<ConditionObservation> {
    let condition = ConditionType::BmcReachable;
    match looked {
        Ok(_) => Some(ConditionObservation::new(condition, true, "Answers")),
        Err(fault) if fault.code.is_local() => None,
        Err(fault) => Some(ConditionObservation::new(condition, false, fault.code.as_str())),
    }
}

/// A machine is degraded when any component is unhealthy; the reason names some.
fn degraded_evidence(ailments: &[String]) -> ConditionObservation {
    if ailments.is_empty() {
        return ConditionObservation::new(ConditionType::Degraded, false, "Healthy");
    }
    let named = ailments[..ailments.len().min(MAX_NAMED)].join(", ");
    let reason = match ailments.len().saturating_sub(MAX_NAMED) {
        0 => named,
        more => format!("{named} and {more} more"),
    };
    ConditionObservation::new(ConditionType::Degraded, true, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_that_was_not_made_gives_no_evidence() {
        let failed = |code| Err(Fault::new(code, "why"));
        for (looked, expected) in [
            (Ok(Some(DesiredPower::Off)), Some((true, "Answers"))),
            // It is being switched.
            (Ok(None), Some((true, "Answers"))),
            (failed(FaultCode::DatabaseUnreachable), None),
            (failed(FaultCode::LocalResources), None),
            (failed(FaultCode::BmcUnreachable), Some((false, "bmc-unreachable"))),
            (failed(FaultCode::LoginRefused), Some((false, "login-refused"))),
        ] {
            let reported = bmc_evidence(looked.clone());
            let reported = reported.as_ref().map(|one| (one.status, one.reason.as_str()));
            assert_eq!(reported, expected, "{looked:?}");
        }
    }

    #[test]
    fn a_few_unhealthy_components_are_named() {
        for (count, expected) in [
            (0, (false, "Healthy")),
            (1, (true, "part 1")),
            (3, (true, "part 1, part 2, part 3")),
            (5, (true, "part 1, part 2, part 3 and 2 more")),
        ] {
            let ailments: Vec<String> = (1..=count).map(|n| format!("part {n}")).collect();
            let reported = degraded_evidence(&ailments);
            assert_eq!((reported.status, reported.reason.as_str()), expected);
        }
    }
}
