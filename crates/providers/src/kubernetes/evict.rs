//! Drains a node, one pass at a time. A pass lists the pods of the node and requests the eviction
//! of each that is not terminating already; the caller repeats it until [`EvictionPass::is_done`],
//! or until its own deadline.
//!
//! Pods are evicted and never deleted, so that disruption budgets hold. Left alone are pods of a
//! DaemonSet and mirror pods, which come back at once, and finished ones.

use super::access::Right;
use super::client::ApiRequest;
use super::fault::{self, ApiCall};
use super::object::{PodObject, Status};
use super::{Cluster, ListResult, check_name};
use jiff::Timestamp;
use model::effect::DrainOptions;
use model::fault::{Fault, FaultCode, Result};
use serde_json::{Value, json};
use std::fmt;

const PODS: &str = "/api/v1/pods";
const PAGE_SIZE: u32 = 200;
/// A kubelet runs a few hundred pods at most.
const MAX_PAGES: usize = 20;
const MIRROR: &str = "kubernetes.io/config.mirror";
/// The most pods that a fault names.
const NAMED: usize = 5;
const BUDGET: &str = "DisruptionBudget";

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodName {
    pub namespace: String,
    pub name: String,
}

impl fmt::Display for PodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A pod that is shutting down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TerminatingPod {
    pub pod: PodName,
    /// Seconds since its grace period ended; zero before that.
    pub overdue_s: u64,
}

/// A pod that may not be evicted now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockedPod {
    pub pod: PodName,
    /// The reason from the API server, usually a disruption budget.
    pub message: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodEviction {
    Evicted(PodName),
    Waiting(TerminatingPod),
    Blocked(BlockedPod),
    Gone(PodName),
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EvictionPass {
    /// Pods that went away during this pass.
    pub gone: usize,
    pub waiting: Vec<TerminatingPod>,
    pub blocked: Vec<BlockedPod>,
    /// Pods that may stay.
    pub left_alone: usize,
    /// Pods that are evicted only when the options say so. Then this pass evicted none.
    pub refused: Vec<BlockedPod>,
}

impl EvictionPass {
    /// True if no pod is left that must go.
    pub fn is_done(&self) -> bool {
        self.waiting.is_empty() && self.blocked.is_empty() && self.refused.is_empty()
    }

    /// The reason why the node is not empty. `None` when it is.
    pub fn fault(&self, node: &str) -> Option<Fault> {
        if self.is_done() {
            return None;
        }
        if !self.refused.is_empty() {
            return Some(self.refused_fault(node));
        }
        let (blocked, waiting) = (self.blocked.len(), self.waiting.len());
        let blocks =
            self.blocked.iter().map(|blocked| format!("{} ({})", blocked.pod, blocked.message));
        let waits = self.waiting.iter().map(|waiting| match waiting.overdue_s {
            0 => format!("{} (shutting down)", waiting.pod),
            late => format!("{} (should have been gone {late} s ago)", waiting.pod),
        });
        let named: Vec<String> = blocks.chain(waits).take(NAMED).collect();
        let more = match (blocked + waiting).saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        let message = format!(
            "node `{node}` is not empty; pods that may not be evicted: {blocked}, pods still shutting down: {waiting}: {}{more}",
            named.join(", ")
        );
        Some(Fault::new(FaultCode::EvictionBlocked, message))
    }

    fn refused_fault(&self, node: &str) -> Fault {
        let named = self.refused.iter().map(|one| format!("{} ({})", one.pod, one.message));
        let named: Vec<String> = named.take(NAMED).collect();
        let more = match self.refused.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        let message = format!(
            "node `{node}` was not drained; pods that are evicted only when told to: {}: {}{more}",
            self.refused.len(),
            named.join(", ")
        );
        let stopped_by = |why: &str| {
            self.refused.iter().any(|one| one.message == why || one.message == UNMANAGED_EMPTYDIR)
        };
        let drain = DrainOptions {
            unmanaged_pods: stopped_by(UNMANAGED),
            emptydir: stopped_by(EMPTYDIR),
            ..DrainOptions::default()
        };
        Fault::new(FaultCode::EvictionBlocked, message).with(|facts| facts.drain = Some(drain))
    }

    fn record(&mut self, eviction: &PodEviction) {
        match eviction {
            PodEviction::Evicted(pod) => {
                self.waiting.push(TerminatingPod { pod: pod.clone(), overdue_s: 0 })
            }
            PodEviction::Waiting(waiting) => self.waiting.push(waiting.clone()),
            PodEviction::Blocked(blocked) => self.blocked.push(blocked.clone()),
            PodEviction::Gone(_) => self.gone += 1,
        }
    }
}

/// The treatment of a pod by a drain.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PodClass {
    LeftAlone,
    Terminating {
        overdue_s: u64,
    },
    /// The options do not allow it.
    Refused(&'static str),
    ToEvict,
}

const UNMANAGED: &str = "no controller replaces it; --drain-unmanaged-pods evicts it";
const EMPTYDIR: &str = "its emptyDir data would be lost; --drain-emptydir evicts it";
const UNMANAGED_EMPTYDIR: &str = "no controller replaces it, and its emptyDir data would be lost; \
     --drain-unmanaged-pods --drain-emptydir evicts it";

impl Cluster {
    /// One pass over the pods of a node. `progress` gets each pod as it is handled. A pod that the
    /// options do not allow to evict ends the pass before it begins, as in `kubectl drain`.
    pub async fn evict_all(
        &self,
        node: &str,
        options: &DrainOptions,
        mut progress: impl FnMut(&PodEviction) + Send,
    ) -> Result<EvictionPass> {
        check_name("node", node)?;
        let mut pass = EvictionPass::default();
        let pods = self.pods_of(node, &options.selector).await?;
        let now = Timestamp::now();
        let refused = |pod: &PodObject| match class_of(pod, options, now) {
            PodClass::Refused(why) => {
                Some(BlockedPod { pod: name_of(pod), message: why.to_owned() })
            }
            PodClass::LeftAlone | PodClass::Terminating { .. } | PodClass::ToEvict => None,
        };
        pass.refused = pods.iter().filter_map(refused).collect();
        if !pass.refused.is_empty() {
            return Ok(pass);
        }
        for pod in pods {
            let eviction = match class_of(&pod, options, Timestamp::now()) {
                PodClass::LeftAlone => {
                    pass.left_alone += 1;
                    continue;
                }
                PodClass::Terminating { overdue_s } => {
                    PodEviction::Waiting(TerminatingPod { pod: name_of(&pod), overdue_s })
                }
                PodClass::ToEvict | PodClass::Refused(_) => self.evict(&pod, options).await?,
            };
            progress(&eviction);
            pass.record(&eviction);
        }
        Ok(pass)
    }

    /// The pods that must go before the node is empty, without evicting any of them.
    pub async fn occupants(&self, node: &str, selector: &str) -> Result<Vec<TerminatingPod>> {
        check_name("node", node)?;
        let pods = self.pods_of(node, selector).await?;
        let all = &DrainOptions::ALL_PODS;
        let occupant = |pod: &PodObject| match class_of(pod, all, Timestamp::now()) {
            PodClass::LeftAlone => None,
            PodClass::Terminating { overdue_s } => {
                Some(TerminatingPod { pod: name_of(pod), overdue_s })
            }
            PodClass::ToEvict | PodClass::Refused(_) => {
                Some(TerminatingPod { pod: name_of(pod), overdue_s: 0 })
            }
        };
        Ok(pods.iter().filter_map(occupant).collect())
    }

    /// The pods of a node that a label selector matches; an empty one matches all.
    pub(super) async fn pods_of(&self, node: &str, selector: &str) -> Result<Vec<PodObject>> {
        let call = ApiCall::new("list", "pods of node", node);
        let on_node = format!("spec.nodeName={node}");
        let select = [("fieldSelector", on_node.as_str()), ("labelSelector", selector)];
        let select = if selector.is_empty() { &select[..1] } else { &select[..] };
        match self.list(&call, (PODS, select), (PAGE_SIZE, MAX_PAGES)).await? {
            ListResult::Complete(pods) => Ok(pods),
            ListResult::PageLimit(count) => {
                let message = format!(
                    "{} was asked to list the pods of node `{node}` and had no end of them after {count}",
                    self.address
                );
                Err(Fault::new(FaultCode::AnswerGarbled, message))
            }
        }
    }

    async fn evict(&self, pod: &PodObject, options: &DrainOptions) -> Result<PodEviction> {
        self.send_eviction(pod, delete_options(pod, options)).await
    }

    /// Asks the server for its answer to the eviction now, as a dry run: nothing is changed.
    pub(super) async fn try_evict(
        &self,
        pod: &PodObject,
        options: &DrainOptions,
    ) -> Result<PodEviction> {
        let mut delete_options = delete_options(pod, options);
        delete_options["dryRun"] = json!(["All"]);
        self.send_eviction(pod, delete_options).await
    }

    async fn send_eviction(&self, pod: &PodObject, options: Value) -> Result<PodEviction> {
        let of = name_of(pod);
        check_name("namespace", &of.namespace)?;
        check_name("pod", &of.name)?;
        let full_name = of.to_string();
        let call = ApiCall::new("create", "pods/eviction", &full_name);
        let path = format!("/api/v1/namespaces/{}/pods/{}/eviction", of.namespace, of.name);
        let request = ApiRequest::create(path, &eviction(&of, &options));
        let mut answer = self.send_once(&call, &request).await?;
        if matches!(&answer, Err(status) if status.is_access_refused()) {
            // A webhook that denies this eviction answers as an authorizer does.
            let right = Right { namespace: &of.namespace, ..EVICT };
            if !self.may(right).await? {
                answer = self.exchange(&call, &request).await?;
                if let Err(status) = answer.as_ref()
                    && status.is_access_refused()
                {
                    return Err(self.refused(&call, status.clone()));
                }
            }
        }
        match answer {
            Ok(text) if self.decode::<Status>(&call, &text)?.is_success() => {
                Ok(PodEviction::Evicted(of))
            }
            Ok(_) => Err(fault::garbled(&self.address, &call, "something else than success")),
            Err(status) => refusal(&of, &status).ok_or_else(|| self.refused(&call, status)),
        }
    }
}

const EVICT: Right<'static> =
    Right { verb: "create", group: "", resource: "pods/eviction", namespace: "", name: "" };

/// With the pod's uid as a precondition: a pod that replaced it under the same name is not evicted.
fn delete_options(pod: &PodObject, options: &DrainOptions) -> Value {
    let mut deletion = match &pod.metadata.uid {
        Some(uid) => json!({ "preconditions": { "uid": uid } }),
        None => json!({}),
    };
    if let Some(seconds) = options.grace_seconds {
        deletion["gracePeriodSeconds"] = json!(seconds);
    }
    deletion
}

fn eviction(pod: &PodName, options: &Value) -> Value {
    json!({
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": { "name": pod.name, "namespace": pod.namespace },
        "deleteOptions": options,
    })
}

/// The result for this pod. `None` when the refusal does not concern the pod.
fn refusal(pod: &PodName, status: &Status) -> Option<PodEviction> {
    match status.code {
        404 if status.is_not_found() => Some(PodEviction::Gone(pod.clone())),
        // A page of a proxy.
        404 | 405 => None,
        // Another pod has the name now, or another client changed it. The next pass reads it again.
        409 => Some(PodEviction::Waiting(TerminatingPod { pod: pod.clone(), overdue_s: 0 })),
        // A budget, an admission rule, a namespace that is being deleted. Two budgets for one pod,
        // and a webhook that cannot be called, are an internal error of the server; a budget that
        // is changed all the time is a timeout with a reason.
        400..=500 => Some(blocked(pod, status)),
        504 if status.reason == "Timeout" => Some(blocked(pod, status)),
        _ => None,
    }
}

/// The message of the API server, and of the disruption budget, if any.
fn blocked(pod: &PodName, status: &Status) -> PodEviction {
    let budget = status.causes().filter(|cause| cause.reason == BUDGET);
    let message: Vec<&str> = std::iter::once(status.message.as_str())
        .chain(budget.map(|cause| cause.message.as_str()))
        .collect();
    PodEviction::Blocked(BlockedPod { pod: pod.clone(), message: message.join(" ") })
}

pub(super) fn class_of(pod: &PodObject, options: &DrainOptions, now: Timestamp) -> PodClass {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let mirror =
        pod.metadata.annotations.iter().any(|annotations| annotations.contains_key(MIRROR));
    let mut owners = pod.metadata.owner_references.iter().flatten();
    let controller = owners.find(|owner| owner.controller == Some(true));
    let daemon = controller.is_some_and(|owner| owner.kind == "DaemonSet");
    if mirror || daemon || matches!(phase, Some("Succeeded" | "Failed")) {
        return PodClass::LeftAlone;
    }
    match &pod.metadata.deletion_timestamp {
        // The grace period is already included.
        Some(due) => {
            let overdue = now.as_second().saturating_sub(due.as_second());
            PodClass::Terminating { overdue_s: u64::try_from(overdue).unwrap_or_default() }
        }
        None => {
            let unmanaged = controller.is_none() && !options.unmanaged_pods;
            let emptydir = has_emptydir(pod) && !options.emptydir;
            match (unmanaged, emptydir) {
                (true, true) => PodClass::Refused(UNMANAGED_EMPTYDIR),
                (true, false) => PodClass::Refused(UNMANAGED),
                (false, true) => PodClass::Refused(EMPTYDIR),
                (false, false) => PodClass::ToEvict,
            }
        }
    }
}

fn has_emptydir(pod: &PodObject) -> bool {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.into_iter().any(|volume| volume.empty_dir.is_some())
}

pub(super) fn name_of(pod: &PodObject) -> PodName {
    PodName {
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        name: pod.metadata.name.clone().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(metadata: Value, phase: &str) -> PodObject {
        serde_json::from_value(json!({ "metadata": metadata, "status": { "phase": phase } }))
            .unwrap()
    }

    #[test]
    fn every_pod_is_classified() {
        let now: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        let owned = |kind: &str, controller: bool| json!({ "ownerReferences": [{ "apiVersion": "v1", "kind": kind, "name": "o", "uid": "u", "controller": controller }] });
        let mut emptydir = pod(owned("ReplicaSet", true), "Running");
        emptydir.spec =
            serde_json::from_value(json!({ "volumes": [{ "name": "v", "emptyDir": {} }] }))
                .unwrap();
        let table = [
            (pod(json!({}), "Running"), PodClass::Refused(UNMANAGED)),
            (pod(json!({}), "Pending"), PodClass::Refused(UNMANAGED)),
            (emptydir.clone(), PodClass::Refused(EMPTYDIR)),
            (pod(json!({}), "Succeeded"), PodClass::LeftAlone),
            (pod(json!({}), "Failed"), PodClass::LeftAlone),
            (pod(owned("DaemonSet", true), "Running"), PodClass::LeftAlone),
            (pod(owned("DaemonSet", false), "Running"), PodClass::Refused(UNMANAGED)),
            (pod(owned("ReplicaSet", true), "Running"), PodClass::ToEvict),
            (pod(json!({ "annotations": { MIRROR: "x" } }), "Running"), PodClass::LeftAlone),
            (
                pod(json!({ "deletionTimestamp": "2026-01-01T00:00:50Z" }), "Running"),
                PodClass::Terminating { overdue_s: 10 },
            ),
            (
                pod(json!({ "deletionTimestamp": "2026-01-01T00:01:50Z" }), "Running"),
                PodClass::Terminating { overdue_s: 0 },
            ),
        ];
        for (pod, desired) in table {
            assert_eq!(class_of(&pod, &DrainOptions::default(), now), desired, "{pod:?}");
        }
        for pod in [pod(json!({}), "Running"), emptydir] {
            assert_eq!(class_of(&pod, &DrainOptions::ALL_PODS, now), PodClass::ToEvict, "{pod:?}");
        }
    }

    /// The fault has the options with which the drain would evict the pods that stopped it.
    #[test]
    fn pods_that_stop_a_drain_name_its_options() {
        let pod = PodName { namespace: "shop".into(), name: "db-1".into() };
        for (refused, unmanaged_pods, emptydir) in [
            (&[UNMANAGED][..], true, false),
            (&[EMPTYDIR], false, true),
            (&[EMPTYDIR, UNMANAGED], true, true),
            (&[UNMANAGED_EMPTYDIR], true, true),
        ] {
            let refused = refused.iter();
            let refused =
                refused.map(|why| BlockedPod { pod: pod.clone(), message: (*why).into() });
            let pass = EvictionPass { refused: refused.collect(), ..EvictionPass::default() };
            let fault = pass.fault("n").unwrap();
            let options = DrainOptions { unmanaged_pods, emptydir, ..DrainOptions::default() };
            assert_eq!(fault.facts().drain, Some(options));
        }
    }

    #[test]
    fn a_node_that_is_not_empty_says_which_pods_and_why() {
        let pod = |n: usize| PodName { namespace: "shop".into(), name: format!("db-{n}") };
        let mut pass = EvictionPass::default();
        assert_eq!(pass.fault("n"), None);
        pass.record(&PodEviction::Gone(pod(0)));
        assert!(pass.is_done());
        pass.record(&PodEviction::Blocked(BlockedPod {
            pod: pod(1),
            message: "needs 2 healthy pods".into(),
        }));
        pass.record(&PodEviction::Waiting(TerminatingPod { pod: pod(2), overdue_s: 7 }));
        for n in 3..9 {
            pass.record(&PodEviction::Evicted(pod(n)));
        }
        let fault = pass.fault("n").unwrap();
        assert_eq!(fault.code, FaultCode::EvictionBlocked);
        for part in ["`n`", "shop/db-1 (needs 2 healthy pods)", "7 s ago", "and 3 more"] {
            assert!(fault.message.contains(part), "{part}: {fault}");
        }
    }

    /// An earlier pass may have evicted pods, so the fault of a refusal says nothing about that.
    #[test]
    fn a_refused_pass_speaks_for_itself_only() {
        let pod = PodName { namespace: "shop".into(), name: "db-0".into() };
        let refused = vec![BlockedPod { pod, message: UNMANAGED.into() }];
        let pass = EvictionPass { refused, ..EvictionPass::default() };
        let fault = pass.fault("n").unwrap();
        assert!(fault.message.contains("shop/db-0 (no controller replaces it"), "{fault}");
        assert!(!fault.message.contains("no pod was evicted"), "{fault}");
    }

    #[test]
    fn only_a_refusal_of_this_pod_is_taken_as_one() {
        let pod = PodName { namespace: "a".into(), name: "b".into() };
        let status =
            |code: u16, reason: &str| Status { code, reason: reason.into(), ..Status::default() };
        assert_eq!(refusal(&pod, &status(404, "NotFound")), Some(PodEviction::Gone(pod.clone())));
        assert!(matches!(refusal(&pod, &status(409, "Conflict")), Some(PodEviction::Waiting(_))));
        for (code, reason) in [
            (400, ""),
            (401, "Unauthorized"),
            (403, "Forbidden"),
            (422, "Invalid"),
            (429, "TooManyRequests"),
            (500, ""),
            (504, "Timeout"),
        ] {
            let refused = refusal(&pod, &status(code, reason));
            assert!(matches!(refused, Some(PodEviction::Blocked(_))), "{code}");
        }
        for code in [404, 405, 502, 503, 504] {
            assert_eq!(refusal(&pod, &status(code, "")), None, "{code}");
        }
    }
}
