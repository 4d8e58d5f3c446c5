//! The questions of operators about a cluster: does Farrier reach it and have its rights there, and
//! what would a drain do to a machine's node.

use crate::bmc_discovery::CheckOutcome;
use crate::kubernetes::{DisruptionBudget, PodPreview};
use async_trait::async_trait;
use model::time::Timestamp;

/// One check of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterFinding {
    /// The subject of the check, such as `reachable` or `create pods/eviction`.
    pub check: String,
    pub outcome: CheckOutcome,
    pub message: String,
}

/// The checks of one cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClusterReport {
    pub address: String,
    pub version: String,
    /// The name of our user there.
    pub user: String,
    /// The time when the credential expires, where it says so.
    pub expires_at: Option<Timestamp>,
    pub findings: Vec<ClusterFinding>,
}

impl ClusterReport {
    /// True if everything that Farrier does with a cluster works there.
    pub fn usable(&self) -> bool {
        !self.findings.iter().any(|one| one.outcome == CheckOutcome::Cannot)
    }

    pub(crate) fn add(
        &mut self,
        check: impl Into<String>,
        outcome: CheckOutcome,
        message: impl Into<String>,
    ) {
        self.findings.push(ClusterFinding {
            check: check.into(),
            outcome,
            message: message.into(),
        });
    }
}

/// The pods that a drain of a machine's node would evict, and the disruption budgets.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DrainPreview {
    /// Empty: there is no cluster to drain from.
    pub cluster: String,
    /// Empty: the cluster has no node of the machine.
    pub node: String,
    pub pods: Vec<PodPreview>,
    /// The budgets in the namespaces of the pods that would go.
    pub budgets: Vec<DisruptionBudget>,
}

#[async_trait]
pub trait ClusterInspector: Send + Sync {
    /// Checks the cluster whose kubeconfig is the credential of this name. Changes nothing there.
    async fn check_cluster(&self, name: &str) -> ClusterReport;
}
