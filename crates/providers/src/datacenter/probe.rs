//! How a machine is: its BMC, its host, its node, and rarely its parts.

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

/// A look at the parts of a machine is many questions, so it may take this many times as long as one.
const PARTS_TIMES: u32 = 2;
/// How many parts are named that are not well.
const NAMED: usize = 3;

impl Datacenter {
    /// Looks at all sides at once. What is not configured is not spoken of, nor what could not be learned.
    pub(super) async fn look(&self, target: &Target) -> Vec<Evidence> {
        let limit = HOST_TIMEOUT.min(self.settings.poll);
        let (bmc, host, node) = tokio::join!(
            self.look_at_bmc(target),
            probe_host(&target.spec.ssh_endpoint, limit),
            self.look_at_node(target)
        );
        bmc.into_iter().chain(host).chain(node).collect()
    }

    /// What a device shows of its power. That its turn at the controller did not come is no news about it.
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

    /// What the BMC says about the parts of the machine. None: it has no BMC.
    pub(super) async fn look_at_parts(&self, target: &Target) -> Result<Option<Evidence>, Fault> {
        if target.spec.bmc_endpoint.is_empty() {
            return Ok(None);
        }
        let limit = self.settings.poll * PARTS_TIMES;
        let seen = self.bmcs.poll(target, limit, async |bmc| bmc.ailments().await).await?;
        seen.map(|ailments| Some(judged(&ailments))).ok_or_else(busy)
    }

    /// Whether the machine is a node of the cluster that it is meant for. One list of nodes serves all machines.
    async fn look_at_node(&self, target: &Target) -> Vec<Evidence> {
        if target.id.kind != TargetKind::Machine {
            return Vec::new();
        }
        let cluster = target.spec.target_cluster_ref.as_str();
        if cluster.is_empty() {
            let condition = ConditionType::InCustomerCluster;
            return vec![Evidence::new(condition, false, "NotJoined")];
        }
        // Half of the time, so that whoever waits for the list of somebody else still gets it.
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

/// What a look at a BMC says. Waiting in vain for a turn at it, or for our own database, says nothing about it.
fn answers(looked: Result<Option<()>, Fault>) -> Option<Evidence> {
    let condition = ConditionType::BmcReachable;
    match looked {
        Ok(Some(())) => Some(Evidence::new(condition, true, "Answers")),
        Ok(None) => None,
        Err(fault) if fault.code == Code::DatabaseUnreachable => None,
        Err(fault) => Some(Evidence::new(condition, false, fault.code.as_str())),
    }
}

/// A machine is degraded when something of it is not well, which is named.
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
