//! Drains and uncordons the Kubernetes node of a machine.
//!
//! A drain cordons the node and evicts its pods in passes until none is left that must go, or until
//! the deadline. The node itself shows the progress, so another worker can continue after a crash.
//! The cordon carries the id of the run: a cancelled run removes its own cordon only, never one
//! that existed before.

use super::Datacenter;
use super::cluster::{nowhere, told};
use super::exec::barred;
use super::orders::{OrderCheckpoint, Remembered, two_effects};
use crate::kubernetes::{Cluster, Node, PodEviction, PodName, TerminatingPod};
use crate::port::{Journal, Target, hostname};
use crate::state_store::Checkpoint;
use model::condition::{ConditionType, Evidence};
use model::effect::{Answer, Key, Order, Outcome, Verb};
use model::fault::{Code, Fault};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// Between two passes over the pods.
const PASS_EVERY: Duration = Duration::from_secs(2);
/// After this many seconds past its deadline a pod on a node that is not ready counts as gone.
const LOST_AFTER_S: u64 = 30;
/// For a call without a deadline; the calls of runs have one.
const DEADLINE: Duration = Duration::from_secs(600);

/// The progress of a drain that the node itself does not show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Draining {
    Begun,
    Done,
    /// No more pods are evicted under this key. The node stays cordoned.
    Stopped,
}

struct Drain<'a> {
    api: &'a Cluster,
    node: &'a str,
    cluster: &'a str,
    key: &'a Key,
    until: Instant,
}

impl Datacenter {
    pub(super) async fn drain(
        &self,
        target: &Target,
        order: &Order,
        (cluster, deadline_seconds): (&str, Option<u32>),
        journal: &Journal,
    ) -> Result<Answer, Fault> {
        if cluster.is_empty() {
            return Ok(nothing_to_do(order.verb));
        }
        if order.verb == Verb::Stop {
            return self.stop_drain(target, order, cluster).await;
        }
        let before = match order.verb {
            Verb::Perform => {
                self.begin(&order.key, OrderCheckpoint::Drain { stage: Draining::Begun }).await?
            }
            Verb::Follow | Verb::GetStatus | Verb::Observe | Verb::Stop => {
                self.recall(&order.key).await?
            }
        };
        let stage = match (order.verb, before) {
            (Verb::Observe, _) => return self.observe_drain(target, cluster).await,
            (Verb::Perform, None) => Draining::Begun,
            (Verb::Perform, Some(Remembered::Barred)) => return Err(barred(&order.key)),
            (Verb::Follow | Verb::GetStatus | Verb::Stop, None | Some(Remembered::Barred)) => {
                return Ok(Answer::NeverStarted);
            }
            (_, Some(Remembered::Checkpoint(OrderCheckpoint::Drain { stage }))) => stage,
            (_, Some(Remembered::Checkpoint(_))) => return Err(two_effects()),
        };
        match (order.verb, stage) {
            (Verb::GetStatus, Draining::Begun) => Ok(Answer::UnderWay),
            (Verb::GetStatus, Draining::Stopped) => Ok(Answer::Unknown(STOPPED.into())),
            (_, Draining::Stopped) => Err(Fault::new(Code::EffectFailed, STOPPED)),
            (_, Draining::Done) => self.drained(target, cluster).await,
            (_, Draining::Begun) => {
                let wanted = deadline_seconds.map_or(DEADLINE, |s| Duration::from_secs(s.into()));
                let api = &self.cluster(cluster).await?;
                let drain = Drain {
                    api,
                    node: &named(api, target).await?,
                    cluster,
                    key: &order.key,
                    until: Instant::now() + wanted,
                };
                self.empty(&drain, journal).await
            }
        }
    }

    /// Evicts pods until the node is empty. Only the deadline, a stop or a permanent fault ends it;
    /// an unreachable cluster is called again. Draining twice does no harm, so being unreachable
    /// until the deadline is a plain fault, not an unknown outcome.
    async fn empty(&self, drain: &Drain<'_>, journal: &Journal) -> Result<Answer, Fault> {
        let mut said = BTreeMap::new();
        loop {
            if self.recall(drain.key).await? != Some(Remembered::Checkpoint(at(Draining::Begun))) {
                return Err(Fault::new(Code::EffectFailed, STOPPED));
            }
            let fault = match drain.pass(&mut said, journal).await {
                Ok(Passed::Empty(outcome)) => {
                    self.compare_and_swap(drain.key, at(Draining::Begun), at(Draining::Done))
                        .await?;
                    journal.line(format!("drain: {}", outcome.said)).await;
                    return Ok(Answer::Done(outcome));
                }
                Ok(Passed::Occupied(fault)) => fault,
                Err(fault) if fault.code.unseen() => {
                    journal.line(format!("drain: {}; asking again", fault.said)).await;
                    fault
                }
                Err(fault) => return Err(fault),
            };
            if Instant::now() + PASS_EVERY >= drain.until {
                return Err(fault);
            }
            tokio::time::sleep(PASS_EVERY).await;
        }
    }

    /// The present state of a completed drain.
    async fn drained(&self, target: &Target, cluster: &str) -> Result<Answer, Fault> {
        let api = self.cluster(cluster).await?;
        let node = api.node(&named(&api, target).await?).await?;
        Ok(Answer::Done(match node {
            Some(node) => emptied(cluster, &node),
            None => told(cluster, None),
        }))
    }

    async fn observe_drain(&self, target: &Target, cluster: &str) -> Result<Answer, Fault> {
        let api = self.cluster(cluster).await?;
        let name = named(&api, target).await?;
        let Some(node) = api.node(&name).await? else {
            return Ok(Answer::Done(told(cluster, None)));
        };
        if node.schedulable {
            return Ok(Answer::Differs(format!("its node in {cluster} takes work")));
        }
        let mut left = api.occupants(&name).await?;
        left.retain(|waiting| is_waited_for(&node, waiting));
        Ok(match left.first() {
            None => Answer::Done(emptied(cluster, &node)),
            Some(first) => {
                let count = left.len();
                let said = format!("pods on its node in {cluster} that must go: {count}");
                Answer::Differs(format!("{said}, such as {}", first.pod))
            }
        })
    }

    /// Evicts no more pods. The node stays cordoned; a cancelled run uncordons it in a later step.
    async fn stop_drain(
        &self,
        target: &Target,
        order: &Order,
        cluster: &str,
    ) -> Result<Answer, Fault> {
        match self.store.begin(&order.key, &Checkpoint::Barred).await? {
            None | Some(Checkpoint::Barred) => return Ok(Answer::Stopped),
            Some(Checkpoint::Begun(_)) => {}
        }
        match self.recall(&order.key).await? {
            Some(Remembered::Checkpoint(OrderCheckpoint::Drain { stage: Draining::Begun })) => {
                self.compare_and_swap(&order.key, at(Draining::Begun), at(Draining::Stopped))
                    .await?;
                Ok(Answer::Stopped)
            }
            Some(Remembered::Checkpoint(OrderCheckpoint::Drain { stage: Draining::Done })) => {
                self.drained(target, cluster).await
            }
            None | Some(_) => Ok(Answer::Stopped),
        }
    }

    /// Uncordons the node; with `own` only if this run has cordoned it.
    pub(super) async fn uncordon(
        &self,
        target: &Target,
        order: &Order,
        cluster: &str,
        own: bool,
    ) -> Result<Answer, Fault> {
        if cluster.is_empty() {
            return Ok(nothing_to_do(order.verb));
        }
        let whose = own.then(|| order.key.run());
        match order.verb {
            Verb::Perform => {
                if let Some(Remembered::Barred) =
                    self.begin(&order.key, OrderCheckpoint::Uncordon).await?
                {
                    return Err(barred(&order.key));
                }
            }
            Verb::Follow | Verb::GetStatus => match self.recall(&order.key).await? {
                None | Some(Remembered::Barred) => return Ok(Answer::NeverStarted),
                Some(Remembered::Checkpoint(_)) if order.verb == Verb::GetStatus => {
                    return Ok(Answer::UnderWay);
                }
                Some(Remembered::Checkpoint(_)) => {}
            },
            Verb::Stop => {
                // It is a single request: it was sent before, or never will be.
                self.store.begin(&order.key, &Checkpoint::Barred).await?;
                return Ok(Answer::Stopped);
            }
            Verb::Observe => {
                let api = self.cluster(cluster).await?;
                let node = api.node(&named(&api, target).await?).await?;
                return Ok(match node {
                    Some(node) if !node.schedulable && !node.is_left_alone(whose) => {
                        Answer::Differs(format!("its node in {cluster} is cordoned"))
                    }
                    Some(_) | None => Answer::Done(released(cluster, node.as_ref())),
                });
            }
        }
        let api = self.cluster(cluster).await?;
        let node = api.uncordon(&named(&api, target).await?, whose).await?;
        Ok(Answer::Done(released(cluster, node.as_ref())))
    }
}

/// The node name of a machine: its id, under which Farrier joins it, or its host name, if it was
/// installed otherwise and its id is not a valid host name.
async fn named(api: &Cluster, target: &Target) -> Result<String, Fault> {
    let id = target.id.as_str();
    let host = hostname(id);
    let by_host = host != id && api.node(&host).await?.is_some();
    Ok(if by_host { host } else { id.into() })
}

const STOPPED: &str = "the drain was stopped; its node is cordoned, and may be half empty";

enum Passed {
    Empty(Outcome),
    /// The reason why it is not empty yet.
    Occupied(Fault),
}

impl Drain<'_> {
    /// Cordons the node if necessary and evicts its pods. Logs the state of a pod when it changes.
    async fn pass(
        &self,
        said: &mut BTreeMap<PodName, String>,
        journal: &Journal,
    ) -> Result<Passed, Fault> {
        let Some(node) = self.api.node(self.node).await? else {
            return Ok(Passed::Empty(told(self.cluster, None)));
        };
        if node.schedulable {
            journal.line(format!("drain: cordoning {} in {}", self.node, self.cluster)).await;
            self.api.cordon(self.node, self.key.run()).await?;
        }
        let mut evictions = Vec::new();
        let pass = self.api.evict_all(self.node, |one| evictions.push(one.clone())).await;
        for eviction in evictions {
            let (pod, words) = words(eviction);
            if said.get(&pod) != Some(&words) {
                journal.line(format!("drain: {pod} {words}")).await;
                said.insert(pod, words);
            }
        }
        let mut pass = pass?;
        pass.waiting.retain(|waiting| is_waited_for(&node, waiting));
        if let Some(fault) = pass.fault(self.node) {
            return Ok(Passed::Occupied(fault));
        }
        // An operator may have uncordoned the node meanwhile.
        match self.api.node(self.node).await? {
            Some(node) if node.schedulable => {
                let said = format!("somebody uncordoned node `{}` while it was drained", self.node);
                Ok(Passed::Occupied(Fault::new(Code::EvictionBlocked, said)))
            }
            Some(node) => Ok(Passed::Empty(emptied(self.cluster, &node))),
            None => Ok(Passed::Empty(told(self.cluster, None))),
        }
    }
}

const fn at(stage: Draining) -> OrderCheckpoint {
    OrderCheckpoint::Drain { stage }
}

/// A node that is not ready never confirms that a pod has ended: an overdue pod counts as gone.
fn is_waited_for(node: &Node, waiting: &TerminatingPod) -> bool {
    node.ready || waiting.overdue_s < LOST_AFTER_S
}

fn words(eviction: PodEviction) -> (PodName, String) {
    match eviction {
        PodEviction::Evicted(pod) => (pod, "is evicted".into()),
        PodEviction::Waiting(waiting) if waiting.overdue_s > 0 => {
            (waiting.pod, "should be gone by now, and is not".into())
        }
        PodEviction::Waiting(waiting) => (waiting.pod, "is shutting down".into()),
        PodEviction::Blocked(blocked) => (blocked.pod, format!("may not go yet: {}", blocked.said)),
        PodEviction::Gone(pod) => (pod, "is gone".into()),
    }
}

fn nothing_to_do(verb: Verb) -> Answer {
    match verb {
        Verb::Stop => Answer::Stopped,
        Verb::Perform | Verb::Follow | Verb::GetStatus | Verb::Observe => {
            Answer::Done(nowhere("the machine belongs to no cluster, so there is nothing to do"))
        }
    }
}

/// The node is cordoned, and only pods that may stay are left.
fn emptied(cluster: &str, node: &Node) -> Outcome {
    let mut seen = told(cluster, Some(node));
    seen.evidence.retain(|one| one.condition != ConditionType::Drained);
    seen.evidence.push(Evidence::new(ConditionType::Drained, true, "Evicted"));
    Outcome { said: format!("{}, and empty of what must go", seen.said), ..seen }
}

fn released(cluster: &str, node: Option<&Node>) -> Outcome {
    let seen = told(cluster, node);
    match node {
        Some(node) if !node.schedulable => {
            Outcome { said: format!("{}: it was so before this operation", seen.said), ..seen }
        }
        Some(_) | None => seen,
    }
}
