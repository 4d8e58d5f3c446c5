//! Nodes: their state, and what Farrier sets on them. Labels are patched one by one. The API
//! replaces the list of taints as a whole, and a cordon has an owner, so both are read, changed and
//! written under the version that was read.

use super::client::{ApiRequest, FIELD_MANAGER};
use super::fault::{self, ApiCall};
use super::object::{Metadata, NodeCondition, NodeObject, TaintObject};
use super::{Cluster, ListResult, check_name};
use model::fault::{Fault, FaultCode, Result};
use serde_json::{Value, json};
use std::collections::BTreeMap;

const NODES: &str = "/api/v1/nodes";
const PAGE_SIZE: u32 = 500;
/// More pages than any cluster needs.
const MAX_PAGES: usize = 40;
/// The number of times that a node is read again after a version conflict.
const MAX_RACES: usize = 4;
/// The annotation with the run that cordoned the node.
const CORDONED_BY: &str = "farrier/cordoned-by";

/// A machine as its cluster sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub name: String,
    pub uid: String,
    pub ready: bool,
    pub schedulable: bool,
    /// The run that cordoned it, where it was one of ours and the cordon is still the one it set.
    pub cordoned_by: Option<String>,
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    pub internal_addresses: Vec<String>,
    /// The conditions that are not as they should be.
    pub bad_conditions: Vec<Condition>,
    pub kubelet_version: String,
}

/// A condition of a node, as the cluster reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    pub kind: String,
    pub status: String,
    pub reason: String,
    pub message: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taint {
    pub key: String,
    pub value: Option<String>,
    pub effect: NodeTaintEffect,
}

/// The effect of a taint on pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeTaintEffect {
    NoSchedule,
    PreferNoSchedule,
    NoExecute,
    /// An effect that is unknown to Farrier.
    Other(String),
}

impl NodeTaintEffect {
    fn as_str(&self) -> &str {
        match self {
            Self::NoSchedule => "NoSchedule",
            Self::PreferNoSchedule => "PreferNoSchedule",
            Self::NoExecute => "NoExecute",
            Self::Other(name) => name,
        }
    }

    fn parse(name: &str) -> Self {
        match name {
            "NoSchedule" => Self::NoSchedule,
            "PreferNoSchedule" => Self::PreferNoSchedule,
            "NoExecute" => Self::NoExecute,
            other => Self::Other(other.to_owned()),
        }
    }
}

impl Node {
    /// True if an uncordon for `whose` must leave the cordon, because another owner set it.
    pub fn is_left_alone(&self, owner: Option<&str>) -> bool {
        owner.is_some() && self.cordoned_by.as_deref() != owner
    }
}

impl Cluster {
    /// `None` when the cluster does not know the node.
    pub async fn node(&self, name: &str) -> Result<Option<Node>> {
        Ok(self.raw_node(name).await?.map(read))
    }

    pub async fn nodes(&self) -> Result<Vec<Node>> {
        let call = ApiCall::new("list", "nodes", "");
        match self.list(&call, (NODES, &[]), (PAGE_SIZE, MAX_PAGES)).await? {
            ListResult::Complete(nodes) => Ok(nodes.into_iter().map(read).collect()),
            ListResult::PageLimit(_) => {
                Err(fault::garbled(&self.address, &call, "a list that had no end"))
            }
        }
    }

    /// Cordons the node and annotates it with `by`. An existing cordon stays: it has another owner.
    pub async fn cordon(&self, name: &str, by: &str) -> Result<Node> {
        let node = self.change_node(name, |node| {
            let open = !node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false);
            open.then(|| {
                json!({
                    "metadata": { "annotations": { CORDONED_BY: by } },
                    "spec": { "unschedulable": true },
                })
            })
        });
        let node = node.await?.ok_or_else(|| self.not_a_node(name))?;
        self.check_read_back(&node, !node.schedulable, "unschedulable", "true")?;
        Ok(node)
    }

    /// Uncordons the node; with `whose` only if that run cordoned it. `None` when the cluster does
    /// not know the node.
    pub async fn uncordon(&self, name: &str, owner: Option<&str>) -> Result<Option<Node>> {
        let node = self.change_node(name, |node| {
            let observed = read(node.clone());
            (!observed.schedulable && !observed.is_left_alone(owner)).then(|| {
                json!({
                    "metadata": { "annotations": { CORDONED_BY: null } },
                    "spec": { "unschedulable": false },
                })
            })
        });
        let node = node.await?;
        if let Some(node) = &node {
            let as_asked = node.schedulable || node.is_left_alone(owner);
            self.check_read_back(node, as_asked, "unschedulable", "false")?;
        }
        Ok(node)
    }

    /// Sets labels, and removes those without a value.
    pub async fn label(
        &self,
        name: &str,
        labels: &BTreeMap<String, Option<String>>,
    ) -> Result<Node> {
        let node = self.patch_node(name, json!({ "metadata": { "labels": labels } })).await?;
        let as_asked = labels.iter().all(|(key, value)| node.labels.get(key) == value.as_ref());
        self.check_read_back(&node, as_asked, "the labels", &format!("{labels:?}"))?;
        Ok(node)
    }

    /// Sets taints and removes others. Key and effect identify a taint.
    pub async fn taint(&self, name: &str, set: &[Taint], remove: &[Taint]) -> Result<Node> {
        let node = self.change_node(name, |node| {
            let had = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
            let desired = retaint(&had, set, remove);
            (desired != had).then(|| json!({ "spec": { "taints": desired } }))
        });
        node.await?.ok_or_else(|| self.not_a_node(name))
    }

    /// Reads the node and writes what `change` returns, if anything. On a version conflict the node
    /// is read again. `None` when the cluster does not know the node.
    async fn change_node(
        &self,
        name: &str,
        change: impl Fn(&NodeObject) -> Option<Value>,
    ) -> Result<Option<Node>> {
        let call = ApiCall::new("patch", "nodes", name);
        for _ in 0..MAX_RACES {
            let Some(node) = self.raw_node(name).await? else { return Ok(None) };
            let Some(mut patch) = change(&node) else { return Ok(Some(read(node))) };
            patch["metadata"]["resourceVersion"] = json!(node.metadata.resource_version);
            match self.exchange(&call, &node_patch(name, &patch)).await? {
                Ok(text) => {
                    let node = self.decode(&call, &text)?;
                    return self.check_node_name(&call, node).map(read).map(Some);
                }
                Err(status) if status.code == 409 => tokio::task::yield_now().await,
                Err(status) => return Err(self.refused(&call, status)),
            }
        }
        let message = format!(
            "{} was asked to patch node `{name}`, and another client changed the node {MAX_RACES} times meanwhile",
            self.address
        );
        Err(Fault::new(FaultCode::EffectFailed, message))
    }

    /// Requests the deletion of the node; an absent one counts as deleted. A finalizer may delay
    /// it, so the caller reads the node to see whether it is gone.
    pub async fn remove_node(&self, name: &str) -> Result<()> {
        check_name("node", name)?;
        self.delete(NODES, &ApiCall::new("delete", "nodes", name)).await
    }

    async fn raw_node(&self, name: &str) -> Result<Option<NodeObject>> {
        check_name("node", name)?;
        let call = ApiCall::new("get", "nodes", name);
        let request = ApiRequest::get(format!("{NODES}/{name}"));
        let found = self.send_opt(&call, &request).await?;
        found.map(|node| self.check_node_name(&call, node)).transpose()
    }

    async fn patch_node(&self, name: &str, patch: Value) -> Result<Node> {
        check_name("node", name)?;
        let call = ApiCall::new("patch", "nodes", name);
        let node = self.send(&call, &node_patch(name, &patch)).await?;
        self.check_node_name(&call, node).map(read)
    }

    /// Almost any JSON decodes as a node, so the name must match.
    fn check_node_name(&self, call: &ApiCall<'_>, node: NodeObject) -> Result<NodeObject> {
        if node.metadata.name.as_deref() == Some(call.name) {
            return Ok(node);
        }
        Err(fault::garbled(&self.address, call, "something else than that node"))
    }

    /// Checks that the answer to a patch shows the requested change.
    fn check_read_back(&self, node: &Node, holds: bool, what: &str, desired: &str) -> Result<()> {
        if holds {
            return Ok(());
        }
        let message = format!(
            "{} took a patch of node `{}` for {what} = {desired}, and then showed it without",
            self.address, node.name
        );
        Err(Fault::new(FaultCode::ReadBackDiffers, message))
    }

    fn not_a_node(&self, name: &str) -> Fault {
        Fault::new(FaultCode::NotInCluster, format!("{} has no node `{name}`", self.address))
    }
}

fn node_patch(name: &str, patch: &Value) -> ApiRequest {
    ApiRequest::patch(format!("{NODES}/{name}"), patch)
}

/// The run in our annotation. An annotation outlives an uncordon by `kubectl`, so it counts only
/// while the API server records that the field of the cordon was last set by us.
fn cordon_owner(metadata: &Metadata) -> Option<String> {
    let mut managers = metadata.managed_fields.iter().flatten();
    let ours = managers.any(|entry| {
        entry.manager == FIELD_MANAGER && entry.fields.pointer("/f:spec/f:unschedulable").is_some()
    });
    metadata.annotations.as_ref().filter(|_| ours)?.get(CORDONED_BY).cloned()
}

fn retaint(had: &[TaintObject], set: &[Taint], remove: &[Taint]) -> Vec<TaintObject> {
    let is =
        |had: &TaintObject, ours: &Taint| had.key == ours.key && had.effect == ours.effect.as_str();
    let mut taints: Vec<TaintObject> =
        had.iter().filter(|had| !remove.iter().any(|gone| is(had, gone))).cloned().collect();
    for desired in set {
        match taints.iter_mut().find(|had| is(had, desired)) {
            Some(had) => had.value = desired.value.clone(),
            None => taints.push(TaintObject {
                key: desired.key.clone(),
                value: desired.value.clone(),
                effect: desired.effect.as_str().to_owned(),
                other: BTreeMap::new(),
            }),
        }
    }
    taints
}

fn read(node: NodeObject) -> Node {
    let (spec, status) = (node.spec.unwrap_or_default(), node.status.unwrap_or_default());
    let conditions: Vec<Condition> =
        status.conditions.unwrap_or_default().into_iter().map(condition).collect();
    let taints = spec.taints.unwrap_or_default();
    let addresses = status.addresses.unwrap_or_default();
    let cordoned_by = cordon_owner(&node.metadata);
    Node {
        name: node.metadata.name.unwrap_or_default(),
        uid: node.metadata.uid.unwrap_or_default(),
        ready: conditions
            .iter()
            .any(|condition| condition.kind == "Ready" && condition.status == "True"),
        schedulable: !spec.unschedulable.unwrap_or(false),
        cordoned_by,
        labels: node.metadata.labels.unwrap_or_default(),
        taints: taints
            .into_iter()
            .map(|taint| Taint {
                key: taint.key,
                value: taint.value,
                effect: NodeTaintEffect::parse(&taint.effect),
            })
            .collect(),
        internal_addresses: addresses
            .into_iter()
            .filter(|address| address.kind == "InternalIP")
            .map(|address| address.address)
            .collect(),
        bad_conditions: conditions.into_iter().filter(is_bad).collect(),
        kubelet_version: status.node_info.map(|info| info.kubelet_version).unwrap_or_default(),
    }
}

fn condition(condition: NodeCondition) -> Condition {
    Condition {
        kind: condition.kind,
        status: condition.status,
        reason: condition.reason.unwrap_or_default(),
        message: condition.message.unwrap_or_default(),
    }
}

/// `Ready` should be true; every other node condition names a problem and should be false.
fn is_bad(condition: &Condition) -> bool {
    let desired = if condition.kind == "Ready" { "True" } else { "False" };
    condition.status != desired
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taint(key: &str, value: &str, effect: NodeTaintEffect) -> Taint {
        Taint { key: key.into(), value: Some(value.into()), effect }
    }

    #[test]
    fn taints_of_others_are_kept() {
        let had = retaint(&[], &[taint("theirs", "1", NodeTaintEffect::NoExecute)], &[]);
        let ours = taint("ours", "a", NodeTaintEffect::NoSchedule);
        let both = retaint(&had, std::slice::from_ref(&ours), &[]);
        assert_eq!(both.len(), 2);
        assert_eq!(retaint(&both, std::slice::from_ref(&ours), &[]), both, "set twice");
        let changed = retaint(&both, &[taint("ours", "b", NodeTaintEffect::NoSchedule)], &[]);
        assert_eq!(changed[1].value.as_deref(), Some("b"));
        assert_eq!(retaint(&both, &[], &[ours]), had);
        assert_eq!(retaint(&both, &[], &[taint("ours", "a", NodeTaintEffect::NoExecute)]), both);
    }

    #[test]
    fn every_taint_effect_round_trips() {
        for name in ["NoSchedule", "PreferNoSchedule", "NoExecute", "NoNetwork"] {
            assert_eq!(NodeTaintEffect::parse(name).as_str(), name);
        }
    }

    #[test]
    fn a_node_that_says_nothing_is_not_ready() {
        let node = read(NodeObject::default());
        assert!(!node.ready && node.schedulable && node.bad_conditions.is_empty());
    }

    #[test]
    fn what_is_bad_depends_on_the_condition() {
        let table = [
            ("Ready", "True", false),
            ("Ready", "False", true),
            ("Ready", "Unknown", true),
            ("DiskPressure", "False", false),
            ("DiskPressure", "True", true),
            ("KernelDeadlock", "Unknown", true),
        ];
        for (kind, status, bad) in table {
            let text = String::new;
            let condition = Condition {
                kind: kind.into(),
                status: status.into(),
                reason: text(),
                message: text(),
            };
            assert_eq!(is_bad(&condition), bad, "{kind} {status}");
        }
    }
}
