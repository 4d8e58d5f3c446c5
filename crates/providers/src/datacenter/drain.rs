//! Drains and uncordons the Kubernetes node of a machine.
//!
//! A drain cordons the node and evicts its pods in passes until none is left that must go, or until
//! the deadline. The node itself shows the progress, so another worker can continue after a crash.
//! The cordon carries the id of the run: a cancelled run removes its own cordon only, never one
//! that existed before.

use super::exec::stopped_before_start;
use super::node_state::{find_node, is_waited_for, node_outcome, not_in_cluster, observe_node};
use super::provider_calls::{CallCheckpoint, StoredCheckpoint, key_conflict};
use super::{Datacenter, TargetCall};
use crate::kubernetes::{Cluster, Node, NodeEvent, PodEviction, PodName};
use crate::port::{Journal, Target};
use crate::state_store::Checkpoint;
use model::effect::{
    CallOutcome, CallResult, CallVerb, DrainOptions, EffectKey, ProviderAnswer, ProviderCall,
};
use model::fault::{EffectOutcome, Fault, FaultCode, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// The interval between two passes over the pods.
const PASS_INTERVAL: Duration = Duration::from_secs(2);
/// For a call without a deadline; the calls of runs have one.
const DEFAULT_DEADLINE: Duration = Duration::from_secs(600);

/// The progress of a drain that the node itself does not show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum DrainStage {
    Begun,
    Done,
    /// No more pods are evicted under this key. The node stays cordoned.
    Stopped,
}

struct Drain<'a> {
    api: &'a Cluster,
    target: &'a Target,
    cluster: &'a str,
    options: &'a DrainOptions,
    key: &'a EffectKey,
    until: Instant,
}

/// The parameters of a drain.
#[derive(Clone, Copy)]
pub(super) struct DrainRequest<'a> {
    pub cluster: &'a str,
    pub deadline_seconds: Option<u32>,
    pub options: &'a DrainOptions,
}

impl Datacenter {
    pub(super) async fn drain(
        &self,
        request: TargetCall<'_>,
        draining: DrainRequest<'_>,
    ) -> CallResult {
        let DrainRequest { cluster, deadline_seconds, options } = draining;
        let TargetCall { target, call, journal } = request;
        if cluster.is_empty() {
            return Ok(nothing_to_do(call.verb));
        }
        if call.verb == CallVerb::Stop {
            return self.stop_drain(target, call, cluster).await;
        }
        let before = match call.verb {
            CallVerb::Perform => {
                self.begin(&call.key, CallCheckpoint::Drain { stage: DrainStage::Begun }).await?
            }
            CallVerb::Follow | CallVerb::GetStatus | CallVerb::Observe | CallVerb::Stop => {
                self.checkpoint(&call.key).await?
            }
        };
        let stage = match (call.verb, before) {
            (CallVerb::Observe, _) => return self.observe_drain(target, draining).await,
            (CallVerb::Perform, None) => DrainStage::Begun,
            (CallVerb::Perform, Some(StoredCheckpoint::StoppedBeforeStart)) => {
                return Err(stopped_before_start(&call.key));
            }
            (
                CallVerb::Follow | CallVerb::GetStatus | CallVerb::Stop,
                None | Some(StoredCheckpoint::StoppedBeforeStart),
            ) => {
                return Ok(ProviderAnswer::NeverStarted);
            }
            (_, Some(StoredCheckpoint::Checkpoint(CallCheckpoint::Drain { stage }))) => stage,
            (_, Some(StoredCheckpoint::Checkpoint(_))) => return Err(key_conflict()),
        };
        match (call.verb, stage) {
            (CallVerb::GetStatus, DrainStage::Begun) => Ok(ProviderAnswer::UnderWay),
            (CallVerb::GetStatus, DrainStage::Stopped) => {
                Ok(ProviderAnswer::Unknown(STOPPED.into()))
            }
            (_, DrainStage::Stopped) => Err(Fault::new(FaultCode::EffectFailed, STOPPED)),
            (_, DrainStage::Done) => self.completed_drain(target, cluster).await,
            (_, DrainStage::Begun) => {
                let desired =
                    deadline_seconds.map_or(DEFAULT_DEADLINE, |s| Duration::from_secs(s.into()));
                let api = &self.cluster(cluster).await?;
                let until = Instant::now() + desired;
                let drain = Drain { api, target, cluster, options, key: &call.key, until };
                self.evict_until_empty(&drain, journal).await
            }
        }
    }

    /// Evicts pods until the node is empty. Only the deadline, a stop or a permanent fault ends it;
    /// an unreachable cluster is called again. Draining twice does no harm, so being unreachable
    /// until the deadline is a plain fault, not an unknown outcome.
    async fn evict_until_empty(&self, drain: &Drain<'_>, journal: &Journal) -> CallResult {
        let mut message = BTreeMap::new();
        let mut outage = String::new();
        loop {
            if self.checkpoint(drain.key).await?
                != Some(StoredCheckpoint::Checkpoint(drain_checkpoint(DrainStage::Begun)))
            {
                return Err(Fault::new(FaultCode::EffectFailed, STOPPED));
            }
            let fault = match drain.pass(&mut message, journal).await {
                Ok(PassResult::Empty(outcome)) => {
                    self.compare_and_swap(
                        drain.key,
                        drain_checkpoint(DrainStage::Begun),
                        drain_checkpoint(DrainStage::Done),
                    )
                    .await?;
                    journal.write_line(format!("drain: {}", outcome.message)).await;
                    drain.record_event(NodeEvent::Drained, &outcome.message).await;
                    return Ok(ProviderAnswer::Done(outcome));
                }
                Ok(PassResult::Refused(fault)) => {
                    drain.record_event(NodeEvent::DrainFailed, &fault.message).await;
                    return Err(fault);
                }
                Ok(PassResult::Occupied(fault)) => {
                    outage.clear();
                    fault
                }
                Err(fault) if fault.code.peer_unreachable() => {
                    if outage != fault.message {
                        let line = format!("drain: {}; asking again", fault.message);
                        journal.write_line(line).await;
                        outage.clone_from(&fault.message);
                    }
                    fault
                }
                Err(fault) => {
                    // A change whose answer was lost is followed up, so the drain has not failed.
                    if fault.code.effect_outcome() == EffectOutcome::NotApplied {
                        drain.record_event(NodeEvent::DrainFailed, &fault.message).await;
                    }
                    return Err(fault);
                }
            };
            if Instant::now() + PASS_INTERVAL >= drain.until {
                drain.record_event(NodeEvent::DrainFailed, &fault.message).await;
                return Err(fault);
            }
            tokio::time::sleep(PASS_INTERVAL).await;
        }
    }

    /// The present state of a completed drain.
    async fn completed_drain(&self, target: &Target, cluster: &str) -> CallResult {
        let api = self.cluster(cluster).await?;
        let (_, node) = find_node(&api, target).await?;
        Ok(ProviderAnswer::Done(observe_node(&api, cluster, node.as_ref()).await?))
    }

    async fn observe_drain(&self, target: &Target, draining: DrainRequest<'_>) -> CallResult {
        let DrainRequest { cluster, options, .. } = draining;
        let api = self.cluster(cluster).await?;
        let (name, node) = find_node(&api, target).await?;
        let Some(node) = node else {
            return Ok(ProviderAnswer::Done(node_outcome(cluster, None, None)));
        };
        if node.schedulable {
            return Ok(ProviderAnswer::Differs(format!("its node in {cluster} takes work")));
        }
        let mut left = api.occupants(&name, &options.selector).await?;
        left.retain(|waiting| is_waited_for(&node, waiting));
        Ok(match left.first() {
            None if options.selector.is_empty() => {
                ProviderAnswer::Done(node_outcome(cluster, Some(&node), Some(0)))
            }
            // Pods that the selector does not match may be left.
            None => ProviderAnswer::Done(observe_node(&api, cluster, Some(&node)).await?),
            Some(first) => {
                let count = left.len();
                let message = format!("pods on its node in {cluster} that must go: {count}");
                ProviderAnswer::Differs(format!("{message}, such as {}", first.pod))
            }
        })
    }

    /// Evicts no more pods. The node stays cordoned; a cancelled run uncordons it in a later step.
    async fn stop_drain(&self, target: &Target, call: &ProviderCall, cluster: &str) -> CallResult {
        match self.bar(&call.key).await? {
            Some(CallCheckpoint::Drain { stage: DrainStage::Begun }) => {
                let stopped = drain_checkpoint(DrainStage::Stopped);
                let begun = drain_checkpoint(DrainStage::Begun);
                self.compare_and_swap(&call.key, begun, stopped).await?;
                Ok(ProviderAnswer::Stopped)
            }
            Some(CallCheckpoint::Drain { stage: DrainStage::Done }) => {
                self.completed_drain(target, cluster).await
            }
            None | Some(_) => Ok(ProviderAnswer::Stopped),
        }
    }

    /// Uncordons the node; with `own` only if this run has cordoned it.
    pub(super) async fn uncordon(
        &self,
        target: &Target,
        call: &ProviderCall,
        cluster: &str,
        own: bool,
    ) -> CallResult {
        if cluster.is_empty() {
            return Ok(nothing_to_do(call.verb));
        }
        let owner = own.then(|| call.key.run());
        match call.verb {
            CallVerb::Perform => {
                if let Some(StoredCheckpoint::StoppedBeforeStart) =
                    self.begin(&call.key, CallCheckpoint::Uncordon).await?
                {
                    return Err(stopped_before_start(&call.key));
                }
            }
            CallVerb::Follow | CallVerb::GetStatus => match self.checkpoint(&call.key).await? {
                None | Some(StoredCheckpoint::StoppedBeforeStart) => {
                    return Ok(ProviderAnswer::NeverStarted);
                }
                Some(StoredCheckpoint::Checkpoint(_)) if call.verb == CallVerb::GetStatus => {
                    return Ok(ProviderAnswer::UnderWay);
                }
                Some(StoredCheckpoint::Checkpoint(_)) => {}
            },
            CallVerb::Stop => {
                // It is a single request: it was sent before, or never will be.
                self.store.begin(&call.key, &Checkpoint::StoppedBeforeStart).await?;
                return Ok(ProviderAnswer::Stopped);
            }
            CallVerb::Observe => {
                let api = self.cluster(cluster).await?;
                let (_, node) = find_node(&api, target).await?;
                return match node {
                    Some(node) if !node.schedulable && !node.is_left_alone(owner) => {
                        let message = format!("its node in {cluster} is cordoned");
                        Ok(ProviderAnswer::Differs(message))
                    }
                    Some(_) | None => uncordon_outcome(&api, cluster, node.as_ref()).await,
                };
            }
        }
        let api = self.cluster(cluster).await?;
        let (name, _) = find_node(&api, target).await?;
        let node = api.uncordon(&name, owner).await?;
        if let Some(node) = node.as_ref().filter(|node| node.schedulable) {
            let message = "Farrier uncordoned the node";
            api.record_event(node, NodeEvent::Uncordoned, call.key.run(), message).await;
        }
        uncordon_outcome(&api, cluster, node.as_ref()).await
    }
}

const STOPPED: &str = "the drain was stopped; its node is cordoned, and may be half empty";

enum PassResult {
    Empty(CallOutcome),
    /// The reason why it is not empty yet.
    Occupied(Fault),
    /// It has pods that the options do not allow to evict. This pass evicted none.
    Refused(Fault),
}

impl Drain<'_> {
    /// Writes an event on the node, if there is one.
    async fn record_event(&self, event: NodeEvent, message: &str) {
        if let Ok((_, Some(node))) = find_node(self.api, self.target).await {
            self.api.record_event(&node, event, self.key.run(), message).await;
        }
    }

    /// Cordons the node if necessary and evicts its pods. Logs the state of a pod when it changes.
    async fn pass(
        &self,
        message: &mut BTreeMap<PodName, String>,
        journal: &Journal,
    ) -> Result<PassResult> {
        let (name, node) = find_node(self.api, self.target).await?;
        let Some(node) = node else {
            return Ok(PassResult::Empty(node_outcome(self.cluster, None, None)));
        };
        if node.schedulable {
            journal.write_line(format!("drain: cordoning {name} in {}", self.cluster)).await;
            let node = self.api.cordon(&name, self.key.run()).await?;
            let message = "Farrier cordoned the node to drain it";
            self.api.record_event(&node, NodeEvent::Cordoned, self.key.run(), message).await;
        }
        let mut evictions = Vec::new();
        let pass = self.api.evict_all(&name, self.options, |one| evictions.push(one.clone())).await;
        for eviction in evictions {
            let (pod, words) = describe_eviction(eviction);
            if message.get(&pod) != Some(&words) {
                journal.write_line(format!("drain: {pod} {words}")).await;
                message.insert(pod, words);
            }
        }
        let mut pass = pass?;
        pass.waiting.retain(|waiting| is_waited_for(&node, waiting));
        let refused = !pass.refused.is_empty();
        if let Some(fault) = pass.fault(&name) {
            return Ok(if refused {
                PassResult::Refused(fault)
            } else {
                PassResult::Occupied(fault)
            });
        }
        // An operator may have uncordoned the node meanwhile.
        match self.api.node(&name).await? {
            Some(node) if node.schedulable => {
                let message = format!("an operator uncordoned node `{name}` while it was drained");
                Ok(PassResult::Occupied(Fault::new(FaultCode::EvictionBlocked, message)))
            }
            // With a selector, pods that it does not match may be left.
            Some(node) if !self.options.selector.is_empty() => {
                Ok(PassResult::Empty(observe_node(self.api, self.cluster, Some(&node)).await?))
            }
            Some(node) => Ok(PassResult::Empty(node_outcome(self.cluster, Some(&node), Some(0)))),
            None => Ok(PassResult::Empty(node_outcome(self.cluster, None, None))),
        }
    }
}

const fn drain_checkpoint(stage: DrainStage) -> CallCheckpoint {
    CallCheckpoint::Drain { stage }
}

fn describe_eviction(eviction: PodEviction) -> (PodName, String) {
    match eviction {
        PodEviction::Evicted(pod) => (pod, "is evicted".into()),
        PodEviction::Waiting(waiting) if waiting.overdue_s > 0 => {
            (waiting.pod, "should be gone by now, and is not".into())
        }
        PodEviction::Waiting(waiting) => (waiting.pod, "is shutting down".into()),
        PodEviction::Blocked(blocked) => {
            (blocked.pod, format!("may not go yet: {}", blocked.message))
        }
        PodEviction::Gone(pod) => (pod, "is gone".into()),
    }
}

fn nothing_to_do(verb: CallVerb) -> ProviderAnswer {
    match verb {
        CallVerb::Stop => ProviderAnswer::Stopped,
        CallVerb::Perform | CallVerb::Follow | CallVerb::GetStatus | CallVerb::Observe => {
            ProviderAnswer::Done(not_in_cluster(
                "the machine belongs to no cluster, so there is nothing to do",
            ))
        }
    }
}

async fn uncordon_outcome(api: &Cluster, cluster: &str, node: Option<&Node>) -> CallResult {
    let observed = observe_node(api, cluster, node).await?;
    Ok(ProviderAnswer::Done(match node {
        Some(node) if !node.schedulable => CallOutcome {
            message: format!("{}: it was so before this operation", observed.message),
            ..observed
        },
        Some(_) | None => observed,
    }))
}
