//! Finds the Kubernetes node of a machine, and derives the machine's conditions from its state.

use crate::kubernetes::{Cluster, Node, TerminatingPod};
use crate::port::Target;
use model::condition::{ConditionObservation, ConditionType, NOT_IN_CLUSTER, NOT_JOINED};
use model::effect::CallOutcome;
use model::fault::Result;

/// After this many seconds past its deadline a pod on a node that is not ready counts as gone.
const LOST_AFTER_S: u64 = 30;

/// The name of the machine's node, and the node if the cluster knows it.
pub async fn find_node(api: &Cluster, target: &Target) -> Result<(String, Option<Node>)> {
    let names = target.node_names();
    for name in &names {
        if let Some(node) = api.node(name).await? {
            return Ok((name.clone(), Some(node)));
        }
    }
    Ok((target.node_name(), None))
}

/// The outcome of reading a node. The pods of a cordoned node are counted: it is drained once none
/// is left that must go.
pub async fn observe_node(
    api: &Cluster,
    cluster: &str,
    node: Option<&Node>,
) -> Result<CallOutcome> {
    let pods_left = match node {
        Some(node) if !node.schedulable => Some(count_occupants(api, node).await?),
        Some(_) | None => None,
    };
    Ok(node_outcome(cluster, node, pods_left))
}

/// The number of pods that must go before the node is drained.
pub async fn count_occupants(api: &Cluster, node: &Node) -> Result<usize> {
    let pods = api.occupants(&node.name, "").await?;
    Ok(pods.iter().filter(|pod| is_waited_for(node, pod)).count())
}

/// A node that is not ready never confirms that a pod has ended: an overdue pod counts as gone.
pub fn is_waited_for(node: &Node, waiting: &TerminatingPod) -> bool {
    node.ready || waiting.overdue_s < LOST_AFTER_S
}

/// The outcome and evidence of reading a node. `pods_left` is unknown where they were not counted;
/// then a cordoned node proves nothing about `Drained`.
pub fn node_outcome(cluster: &str, node: Option<&Node>, pods_left: Option<usize>) -> CallOutcome {
    let Some(node) = node else {
        return not_in_cluster(&format!("it is no node of {cluster}"));
    };
    let bad: Vec<String> =
        node.bad_conditions.iter().map(|one| format!("{} {}", one.kind, one.reason)).collect();
    let health = match (node.ready, bad.is_empty()) {
        (true, true) => "ready".to_string(),
        (true, false) => format!("ready, with {}", bad.join(", ")),
        (false, true) => "not ready".to_string(),
        (false, false) => format!("not ready: {}", bad.join(", ")),
    };
    let (cordoned, drained) = match (node.schedulable, pods_left) {
        (true, _) => (String::new(), Some((false, "Schedulable"))),
        (false, None) => (", cordoned".into(), None),
        (false, Some(0)) => {
            (", cordoned, and empty of what must go".into(), Some((true, "Evicted")))
        }
        (false, Some(count)) => {
            (format!(", cordoned, with pods that must go: {count}"), Some((false, "PodsLeft")))
        }
    };
    let joined = match node.bad_conditions.iter().find(|bad| bad.kind == "Ready") {
        Some(bad) => format!("NotReady:{}", bad.reason),
        None if node.ready => format!("Joined:{cluster}"),
        None => "NotReady:NoReadyCondition".into(),
    };
    let joined = ConditionObservation::new(ConditionType::InCustomerCluster, node.ready, joined);
    let drained = drained
        .map(|(holds, reason)| ConditionObservation::new(ConditionType::Drained, holds, reason));
    CallOutcome {
        message: format!("its node in {cluster} is {health}{cordoned}"),
        evidence: [joined].into_iter().chain(drained).collect(),
        facts: None,
    }
}

/// Without a node there is nothing to drain.
pub fn not_in_cluster(text: &str) -> CallOutcome {
    let evidence = vec![
        ConditionObservation::new(ConditionType::InCustomerCluster, false, NOT_JOINED),
        ConditionObservation::new(ConditionType::Drained, true, NOT_IN_CLUSTER),
    ];
    CallOutcome { message: text.into(), evidence, facts: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::Condition;

    fn node(ready: bool, schedulable: bool) -> Node {
        Node {
            name: "n1".into(),
            uid: String::new(),
            ready,
            schedulable,
            cordoned_by: None,
            labels: Default::default(),
            taints: Vec::new(),
            internal_addresses: Vec::new(),
            bad_conditions: Vec::new(),
            kubelet_version: String::new(),
        }
    }

    fn observed(
        node: &Node,
        pods: Option<usize>,
        condition: ConditionType,
    ) -> Option<(bool, String)> {
        let outcome = node_outcome("c1", Some(node), pods);
        let found = outcome.evidence.into_iter().find(|one| one.condition == condition)?;
        Some((found.status, found.reason))
    }

    #[test]
    fn only_a_cordoned_node_without_pods_is_drained() {
        let table = [
            (true, None, Some((false, "Schedulable"))),
            (true, Some(0), Some((false, "Schedulable"))),
            (false, None, None),
            (false, Some(0), Some((true, "Evicted"))),
            (false, Some(3), Some((false, "PodsLeft"))),
        ];
        for (schedulable, pods, desired) in table {
            let drained = observed(&node(true, schedulable), pods, ConditionType::Drained);
            let desired = desired.map(|(holds, reason)| (holds, reason.to_owned()));
            assert_eq!(drained, desired, "{schedulable} {pods:?}");
        }
        let outcome = node_outcome("c1", Some(&node(true, false)), Some(3));
        assert!(outcome.message.contains("pods that must go: 3"), "{outcome:?}");
    }

    #[test]
    fn a_node_that_is_not_ready_says_why_it_has_not_joined() {
        let joined = |node: &Node| observed(node, None, ConditionType::InCustomerCluster);
        assert_eq!(joined(&node(true, true)), Some((true, "Joined:c1".into())));
        let silent = Some((false, "NotReady:NoReadyCondition".into()));
        assert_eq!(joined(&node(false, true)), silent, "a node without a Ready condition");
        let mut ill = node(false, true);
        ill.bad_conditions.push(Condition {
            kind: "Ready".into(),
            status: "False".into(),
            reason: "KubeletNotReady".into(),
            message: String::new(),
        });
        assert_eq!(joined(&ill), Some((false, "NotReady:KubeletNotReady".into())));
    }
}
