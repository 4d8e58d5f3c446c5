//! The machine as a Kubernetes node: cordon, pods and membership.
//!
//! Only the node's side of the cluster is simulated. A node that joins gets some pods; a drain
//! evicts them one by one, and they return when the node is uncordoned.

use super::hardware::{Hardware, Power, outcome};
use super::job::Job;
use crate::cluster_check::DrainPreview;
use crate::kubernetes::{PodDecision, PodName, PodPreview};
use model::condition::{ConditionObservation, ConditionType, NOT_IN_CLUSTER, NOT_JOINED};
use model::effect::{CallOutcome, ClusterExpectation, Effect, EffectKey, NodeLabels, Taint};
use model::id::RunId;
use model::plan::UNDO_PREFIX;
use model::time::Timestamp;
use serde::{Deserialize, Serialize};

/// The number of evictable pods on a schedulable node.
const PODS: u64 = 4;

/// The cluster's record of the node.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Node {
    pub labels: NodeLabels,
    pub taints: Vec<Taint>,
    /// The run that cordoned it; None if the node's owner did.
    pub cordoned_by: Option<String>,
    /// The number of pods that a drain has to evict.
    pub pods: u64,
}

impl Hardware {
    pub(super) fn join(&mut self, cluster: &str, labels: &NodeLabels, taints: &[Taint]) {
        self.cluster = Some(cluster.to_string());
        self.cordoned = false;
        self.node = Node { labels: labels.clone(), taints: taints.to_vec(), ..Node::default() };
        self.node.pods = PODS;
    }

    pub(super) fn leave(&mut self) {
        self.cluster = None;
        self.node = Node::default();
    }

    /// Cordons for a run when a drain starts. A node that was cordoned before keeps its owner.
    pub(super) fn cordon_for(&mut self, key: &EffectKey) {
        if !self.cordoned {
            self.cordoned = true;
            self.node.cordoned_by = Some(key.run().to_string());
        }
    }

    pub(super) fn uncordon(&mut self) {
        self.cordoned = false;
        self.node.cordoned_by = None;
        self.node.pods = PODS;
    }

    /// True if this run cordoned the node, so that an undo has to uncordon it.
    fn cordoned_by(&self, key: &EffectKey) -> bool {
        self.node.cordoned_by.as_deref() == Some(key.run())
    }

    pub(super) fn uncordon_for(&mut self, key: &EffectKey, cluster_ref: &str, own: bool) {
        if self.member_of(cluster_ref) && (!own || self.cordoned_by(key)) {
            self.uncordon();
        }
    }

    /// Removes the pods that an interrupted drain has evicted so far.
    pub(super) fn apply_partial_drain(&mut self, job: &Job, now: Timestamp) {
        let gone = PODS * job.elapsed_ms(now).min(job.takes_ms) / job.takes_ms.max(1);
        self.node.pods = self.node.pods.min(PODS - gone);
    }

    /// The preview of a drain: it evicts every pod, and no budget is in its way.
    pub(super) fn preview_drain(&self, cluster_ref: &str, node: String) -> DrainPreview {
        let Some(cluster) = self.cluster.clone().filter(|_| self.member_of(cluster_ref)) else {
            return DrainPreview { cluster: cluster_ref.into(), ..DrainPreview::default() };
        };
        let pod = |number: u64| PodPreview {
            pod: PodName { namespace: "simulated".into(), name: format!("pod-{number}") },
            decision: PodDecision::Evict,
        };
        let pods = (1..=self.node.pods).map(pod).collect();
        DrainPreview { cluster, node, pods, budgets: Vec::new() }
    }

    /// True if the join that this key undoes found the machine as a member: it is left as it is.
    pub(super) fn joined_nothing(&self, undo: &EffectKey, original: Option<&RunId>) -> bool {
        let Some(step) = undo.step().strip_prefix(UNDO_PREFIX) else { return false };
        let joins = |run: &str| {
            let of_step = |key: &&EffectKey| key.run() == run && key.step() == step;
            let keys = self.jobs.keys().filter(of_step);
            keys.filter_map(|key| self.jobs.get(key)).map(|job| job.already).collect::<Vec<_>>()
        };
        let own = joins(undo.run());
        let found = match original {
            Some(original) if own.is_empty() => joins(original.as_str()),
            Some(_) | None => own,
        };
        !found.is_empty() && found.into_iter().all(|already| already)
    }

    /// An empty reference means any cluster.
    pub(super) fn member_of(&self, cluster_ref: &str) -> bool {
        self.cluster.as_ref().is_some_and(|own| cluster_ref.is_empty() || own == cluster_ref)
    }

    pub(super) fn observe_joined(&self, effect: &Effect) -> Result<CallOutcome, String> {
        let Effect::Join { cluster_ref, labels, taints, .. } = effect else {
            return Err("it is not about joining".into());
        };
        if !self.member_of(cluster_ref) {
            return Err(self.membership().message);
        }
        let has = |(key, value): (&String, &String)| self.node.labels.get(key) == Some(value);
        if !labels.iter().all(has) || !taints.iter().all(|taint| self.node.taints.contains(taint)) {
            return Err("the node has other labels or taints".into());
        }
        Ok(self.membership())
    }

    /// Checks that no pods are left for a drain.
    pub(super) fn observe_drained_pods(&self, cluster_ref: &str) -> Result<CallOutcome, String> {
        if !self.member_of(cluster_ref) {
            return Ok(self.observe_drained(cluster_ref).1);
        }
        match (self.cordoned, self.node.pods) {
            (false, _) => Err("the node still takes work".into()),
            (true, 0) => {
                let observed = ConditionObservation::new(ConditionType::Drained, true, "Evicted");
                Ok(outcome("The node is cordoned and empty", Some(observed)))
            }
            (true, pods) => Err(format!("the node is cordoned, and {pods} pods are still on it")),
        }
    }

    pub(super) fn observe_uncordoned(
        &self,
        key: &EffectKey,
        cluster_ref: &str,
        own: bool,
    ) -> Result<CallOutcome, String> {
        let (_, observed) = self.observe_drained(cluster_ref);
        if !self.member_of(cluster_ref) {
            return Ok(observed);
        }
        if !self.cordoned {
            let observed = ConditionObservation::new(ConditionType::Drained, false, "Schedulable");
            return Ok(outcome("The node takes work again", Some(observed)));
        }
        if own && !self.cordoned_by(key) {
            let text = "The node stays cordoned: it was so before this operation".into();
            return Ok(CallOutcome { message: text, ..observed });
        }
        Err("the node is cordoned".into())
    }

    pub(super) fn observe_in_cluster(
        &self,
        cluster_ref: &str,
        expect: ClusterExpectation,
    ) -> (bool, CallOutcome) {
        match expect {
            ClusterExpectation::Ready => self.observe_ready(cluster_ref),
            ClusterExpectation::Drained => self.observe_drained(cluster_ref),
        }
    }

    fn observe_ready(&self, cluster_ref: &str) -> (bool, CallOutcome) {
        if !self.member_of(cluster_ref) {
            let mut observed = self.membership();
            // The node may be a member of another cluster.
            observed.evidence = vec![not_joined()];
            return (false, observed);
        }
        match self.power {
            Power::On => {
                let mut observed = self.membership();
                observed.evidence.extend(self.observe_drained(cluster_ref).1.evidence);
                (true, observed)
            }
            Power::Off => {
                let observed =
                    ConditionObservation::new(ConditionType::InCustomerCluster, false, "NotReady");
                let message = "the node is known to the cluster but not Ready: it is powered off";
                (false, outcome(message, Some(observed)))
            }
        }
    }

    fn observe_drained(&self, cluster_ref: &str) -> (bool, CallOutcome) {
        let (holds, reason, message) = if !self.member_of(cluster_ref) {
            (true, NOT_IN_CLUSTER, "the machine is in no cluster, so nothing is left to drain")
        } else if self.cordoned && self.node.pods == 0 {
            (true, "Evicted", "the node is cordoned and drained")
        } else if self.cordoned {
            let message = "the node is cordoned, and pods are still on it; draining is its owner's to do: \
                 `kubectl drain <node>`";
            (false, "PodsLeft", message)
        } else {
            let message =
                "the node still takes work; draining is its owner's to do: `kubectl drain <node>`";
            (false, "NotDrained", message)
        };
        let observed = ConditionObservation::new(ConditionType::Drained, holds, reason);
        (holds, outcome(message, Some(observed)))
    }

    pub(super) fn membership(&self) -> CallOutcome {
        match &self.cluster {
            Some(cluster) => {
                let reason = format!("Joined:{cluster}");
                let observed =
                    ConditionObservation::new(ConditionType::InCustomerCluster, true, reason);
                outcome(format!("The machine is in cluster {cluster}"), Some(observed))
            }
            None => outcome("The machine is in no cluster", Some(not_joined())),
        }
    }
}

fn not_joined() -> ConditionObservation {
    ConditionObservation::new(ConditionType::InCustomerCluster, false, NOT_JOINED)
}
