//! Probes a machine: its BMC, its host, its node, and less often its hardware.

use super::Datacenter;
use super::cluster::sight;
use super::devices::power_to;
use super::node_cache::Nodes;
use crate::host_probe::{HOST_TIMEOUT, probe_host};
use crate::port::Target;
use model::condition::{ConditionType, Evidence};
use model::effect::Facts;
use model::fault::{Code, Fault};
use model::target::TargetKind;
use std::time::Duration;

/// Reading the hardware takes several requests; its timeout is this multiple of a probe's.
const PARTS_TIMES: u32 = 2;
/// How many unhealthy components are named.
const NAMED: usize = 3;

impl Datacenter {
    /// Probes everything concurrently. What is not configured or readable gives no evidence.
    pub(super) async fn look(&self, target: &Target) -> Vec<Evidence> {
        let limit = HOST_TIMEOUT.min(self.settings.poll);
        let (bmc, host, node) = tokio::join!(
            self.look_at_bmc(target),
            probe_host(&target.spec.ssh_endpoint, limit),
            self.look_at_node(target)
        );
        bmc.into_iter().chain(host).chain(node).collect()
    }

    /// The power state of a device. A probe that was not admitted is a fault, not a state.
    pub(super) async fn look_at_power(&self, target: &Target) -> Result<Facts, Fault> {
        let limit = self.settings.poll;
        let power = self.bmcs.poll(target, limit, async |bmc| bmc.power().await).await?;
        let power = power.ok_or_else(busy)?;
        Ok(Facts { power: power_to(power), ..Facts::default() })
    }

    async fn look_at_bmc(&self, target: &Target) -> Option<Evidence> {
        if target.spec.bmc_endpoint.is_empty() {
            return None;
        }
        let limit = self.settings.poll;
        let power = self.bmcs.poll(target, limit, async |bmc| bmc.power().await).await;
        answers(power.map(|turn| turn.map(drop)))
    }

    /// The health that the BMC reports for the hardware. None: the machine has no BMC.
    pub(super) async fn look_at_parts(&self, target: &Target) -> Result<Option<Evidence>, Fault> {
        if target.spec.bmc_endpoint.is_empty() {
            return Ok(None);
        }
        let limit = self.settings.poll * PARTS_TIMES;
        let seen = self.bmcs.poll(target, limit, async |bmc| bmc.ailments().await).await?;
        seen.map(|ailments| Some(judged(&ailments))).ok_or_else(busy)
    }

    /// Whether the machine is a node of its target cluster.
    async fn look_at_node(&self, target: &Target) -> Vec<Evidence> {
        if target.id.kind != TargetKind::Machine {
            return Vec::new();
        }
        let cluster = target.spec.target_cluster_ref.as_str();
        if cluster.is_empty() {
            let condition = ConditionType::InCustomerCluster;
            return vec![Evidence::new(condition, false, "NotJoined")];
        }
        // Half of the time, so that callers that wait for another caller's list still get it.
        let limit = self.settings.poll / 2;
        let list = self.list_nodes(cluster, limit);
        match self.node_caches.nodes(cluster, limit, list).await {
            Ok(nodes) => sight(cluster, nodes.get(target.id.as_str())),
            Err(_) => Vec::new(),
        }
    }

    async fn list_nodes(&self, cluster: &str, limit: Duration) -> Result<Nodes, Fault> {
        let nodes = self.cluster_within(cluster, limit).await?.nodes().await?;
        Ok(nodes.into_iter().map(|node| (node.name.clone(), node)).collect())
    }
}

fn busy() -> Fault {
    Fault::new(Code::BmcBusy, "its BMC was busy with other calls")
}

/// The evidence of a probe. Not being admitted, or a database fault, says nothing about the BMC.
fn answers(looked: Result<Option<()>, Fault>) -> Option<Evidence> {
    let condition = ConditionType::BmcReachable;
    match looked {
        Ok(Some(())) => Some(Evidence::new(condition, true, "Answers")),
        Ok(None) => None,
        Err(fault) if fault.code == Code::DatabaseUnreachable => None,
        Err(fault) => Some(Evidence::new(condition, false, fault.code.as_str())),
    }
}

/// A machine is degraded when any component is unhealthy; the reason names some.
fn judged(ailments: &[String]) -> Evidence {
    if ailments.is_empty() {
        return Evidence::new(ConditionType::Degraded, false, "Healthy");
    }
    let named = ailments[..ailments.len().min(NAMED)].join(", ");
    let reason = match ailments.len().saturating_sub(NAMED) {
        0 => named,
        more => format!("{named} and {more} more"),
    };
    Evidence::new(ConditionType::Degraded, true, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_that_was_not_made_says_nothing() {
        let failed = |code| Err(Fault::new(code, "why"));
        for (looked, expected) in [
            (Ok(Some(())), Some((true, "Answers"))),
            (Ok(None), None),
            (failed(Code::DatabaseUnreachable), None),
            (failed(Code::BmcUnreachable), Some((false, "bmc-unreachable"))),
            (failed(Code::LoginRefused), Some((false, "login-refused"))),
        ] {
            let told = answers(looked.clone());
            let told = told.as_ref().map(|one| (one.status, one.reason.as_str()));
            assert_eq!(told, expected, "{looked:?}");
        }
    }

    #[test]
    fn what_is_not_well_is_named_up_to_a_few() {
        for (count, expected) in [
            (0, (false, "Healthy")),
            (1, (true, "part 1")),
            (3, (true, "part 1, part 2, part 3")),
            (5, (true, "part 1, part 2, part 3 and 2 more")),
        ] {
            let ailments: Vec<String> = (1..=count).map(|n| format!("part {n}")).collect();
            let told = judged(&ailments);
            assert_eq!((told.status, told.reason.as_str()), expected);
        }
    }
}
