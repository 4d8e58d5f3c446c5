//! The preview of a drain: each pod of a node, and the disruption budgets beside them. The API
//! server is asked about each eviction as a dry run, so that budgets and admission rules are its
//! own.

use super::evict::{PodClass, class_of, name_of};
use super::fault::{self, ApiCall};
use super::object::BudgetObject;
use super::{Cluster, ListResult, PodEviction, PodName, check_name};
use jiff::Timestamp;
use model::effect::DrainOptions;
use model::fault::Result;

const BUDGETS: &str = "/apis/policy/v1/poddisruptionbudgets";
const PAGE_SIZE: u32 = 500;
/// More pages than any cluster needs.
const MAX_PAGES: usize = 40;

/// The action of a drain on a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodDecision {
    Evict,
    /// It comes back at once, or has finished.
    Stay,
    Terminating,
    /// Its eviction would be refused now; a drain waits.
    Blocked(String),
    /// It stops the drain, unless the options allow it.
    Refused(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodPreview {
    pub pod: PodName,
    pub decision: PodDecision,
}

/// A disruption budget, as the cluster shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DisruptionBudget {
    pub namespace: String,
    pub name: String,
    pub disruptions_allowed: i32,
    pub current_healthy: i32,
    pub desired_healthy: i32,
}

impl Cluster {
    /// The pods of a node in the order of their names, and what a drain would do with each.
    pub async fn preview_drain(
        &self,
        node: &str,
        options: &DrainOptions,
    ) -> Result<Vec<PodPreview>> {
        check_name("node", node)?;
        let mut previews = Vec::new();
        for pod in self.pods_of(node, &options.selector).await? {
            let decision = match class_of(&pod, options, Timestamp::now()) {
                PodClass::LeftAlone => PodDecision::Stay,
                PodClass::Terminating { .. } => PodDecision::Terminating,
                PodClass::Refused(why) => PodDecision::Refused(why.into()),
                PodClass::ToEvict => match self.try_evict(&pod, options).await? {
                    PodEviction::Evicted(_) | PodEviction::Waiting(_) => PodDecision::Evict,
                    PodEviction::Blocked(blocked) => PodDecision::Blocked(blocked.message),
                    PodEviction::Gone(_) => continue,
                },
            };
            previews.push(PodPreview { pod: name_of(&pod), decision });
        }
        previews.sort_by(|one, other| one.pod.cmp(&other.pod));
        Ok(previews)
    }

    /// All disruption budgets of the cluster.
    pub async fn budgets(&self) -> Result<Vec<DisruptionBudget>> {
        let call = ApiCall::new("list", "poddisruptionbudgets", "");
        let list = self.list(&call, (BUDGETS, &[]), (PAGE_SIZE, MAX_PAGES)).await?;
        match list {
            ListResult::Complete(budgets) => Ok(budgets.into_iter().map(read_budget).collect()),
            ListResult::PageLimit(_) => {
                Err(fault::garbled(self.address(), &call, "a list that had no end"))
            }
        }
    }
}

fn read_budget(budget: BudgetObject) -> DisruptionBudget {
    let status = budget.status.unwrap_or_default();
    DisruptionBudget {
        namespace: budget.metadata.namespace.unwrap_or_default(),
        name: budget.metadata.name.unwrap_or_default(),
        disruptions_allowed: status.disruptions_allowed,
        current_healthy: status.current_healthy,
        desired_healthy: status.desired_healthy,
    }
}
