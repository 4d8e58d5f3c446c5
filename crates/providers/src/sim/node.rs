//! The machine as a Kubernetes node: cordon, pods and membership.
//!
//! Only the node's side of the cluster is simulated. A node that joins gets some pods; a drain
//! evicts them one by one, and they return when the node is uncordoned.

use super::hardware::{Hardware, Power, outcome};
use super::job::Job;
use model::condition::{ConditionType, Evidence};
use model::effect::{Effect, Expect, Key, NodeLabels, Outcome, Taint};
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
    pub(super) fn cordon_for(&mut self, key: &Key) {
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

    /// Whether this run cordoned the node, so that an undo has to uncordon it.
    fn cordoned_by(&self, key: &Key) -> bool {
        self.node.cordoned_by.as_deref() == Some(key.run())
    }

    pub(super) fn uncordon_for(&mut self, key: &Key, cluster_ref: &str, own: bool) {
        if self.member_of(cluster_ref) && (!own || self.cordoned_by(key)) {
            self.uncordon();
        }
    }

    /// Removes the pods that an interrupted drain has evicted so far.
    pub(super) fn half_drain(&mut self, job: &Job, now: Timestamp) {
        let gone = PODS * job.elapsed_ms(now).min(job.takes_ms) / job.takes_ms.max(1);
        self.node.pods = self.node.pods.min(PODS - gone);
    }

    /// An empty reference means any cluster.
    pub(super) fn member_of(&self, cluster_ref: &str) -> bool {
        self.cluster.as_ref().is_some_and(|own| cluster_ref.is_empty() || own == cluster_ref)
    }

    pub(super) fn look_joined(&self, effect: &Effect) -> Result<Outcome, String> {
        let Effect::Join { cluster_ref, labels, taints } = effect else {
            return Err("it is not about joining".into());
        };
        if !self.member_of(cluster_ref) {
            return Err(self.membership().said);
        }
        let has = |(key, value): (&String, &String)| self.node.labels.get(key) == Some(value);
        if !labels.iter().all(has) || !taints.iter().all(|taint| self.node.taints.contains(taint)) {
            return Err("the node has other labels or taints".into());
        }
        Ok(self.membership())
    }

    /// Whether no pods are left for a drain.
    pub(super) fn look_emptied(&self, cluster_ref: &str) -> Result<Outcome, String> {
        if !self.member_of(cluster_ref) {
            return Ok(self.look_drained(cluster_ref).1);
        }
        match (self.cordoned, self.node.pods) {
            (false, _) => Err("the node still takes work".into()),
            (true, 0) => {
                let seen = Evidence::new(ConditionType::Drained, true, "Evicted");
                Ok(outcome("The node is cordoned and empty", Some(seen)))
            }
            (true, pods) => Err(format!("the node is cordoned, and {pods} pods are still on it")),
        }
    }

    pub(super) fn look_uncordoned(
        &self,
        key: &Key,
        cluster_ref: &str,
        own: bool,
    ) -> Result<Outcome, String> {
        let (drained, seen) = self.look_drained(cluster_ref);
        if !self.member_of(cluster_ref) {
            return Ok(seen);
        }
        if !drained {
            let seen = Evidence::new(ConditionType::Drained, false, "Schedulable");
            return Ok(outcome("The node takes work again", Some(seen)));
        }
        if own && !self.cordoned_by(key) {
            let said = "The node stays cordoned: it was so before this operation".into();
            return Ok(Outcome { said, ..seen });
        }
        Err("the node is cordoned".into())
    }

    pub(super) fn look_in_cluster(&self, cluster_ref: &str, expect: Expect) -> (bool, Outcome) {
        match expect {
            Expect::Ready => self.look_ready(cluster_ref),
            Expect::Drained => self.look_drained(cluster_ref),
        }
    }

    fn look_ready(&self, cluster_ref: &str) -> (bool, Outcome) {
        if !self.member_of(cluster_ref) {
            let mut seen = self.membership();
            // The node may be a member of another cluster.
            seen.evidence = vec![not_joined()];
            return (false, seen);
        }
        match self.power {
            Power::On => (true, self.membership()),
            Power::Off => {
                let seen = Evidence::new(ConditionType::InCustomerCluster, false, "NotReady");
                let said = "the node is known to the cluster but not Ready: it is powered off";
                (false, outcome(said, Some(seen)))
            }
        }
    }

    fn look_drained(&self, cluster_ref: &str) -> (bool, Outcome) {
        let (holds, reason, said) = if !self.member_of(cluster_ref) {
            (true, "NotInCluster", "the machine is in no cluster, so nothing is left to drain")
        } else if self.cordoned {
            (true, "Cordoned", "the node is cordoned and drained")
        } else {
            let said =
                "the node still takes work; draining is its owner's to do: `kubectl drain <node>`";
            (false, "NotDrained", said)
        };
        let seen = Evidence::new(ConditionType::Drained, holds, reason);
        (holds, outcome(said, Some(seen)))
    }

    pub(super) fn membership(&self) -> Outcome {
        match &self.cluster {
            Some(cluster) => {
                let reason = format!("Joined:{cluster}");
                let seen = Evidence::new(ConditionType::InCustomerCluster, true, reason);
                outcome(format!("The machine is in cluster {cluster}"), Some(seen))
            }
            None => outcome("The machine is in no cluster", Some(not_joined())),
        }
    }
}

fn not_joined() -> Evidence {
    Evidence::new(ConditionType::InCustomerCluster, false, "NotJoined")
}
