//! Emptying a node, one pass at a time. A pass lists the pods of the node and asks for the eviction of each that is not
//! going already; whoever calls passes again until [`Pass::is_done`], or until its own deadline.
//!
//! Pods go through the eviction API and never by deletion, so that disruption budgets are honoured. Left alone is what
//! comes back at once or costs nothing: pods of a DaemonSet, mirrors of a kubelet's own files, and finished ones.

use super::fault::{self, Ask};
use super::{Cluster, FIELD_MANAGER, check_name};
use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::policy::v1::Eviction;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta, Preconditions};
use kube::api::{Api, ListParams, PostParams};
use kube::core::Status;
use model::fault::{Code, Fault};
use std::fmt;

const PAGE: u32 = 200;
/// A kubelet runs a few hundred pods at most.
const MAX_PAGES: usize = 20;
const MIRROR: &str = "kubernetes.io/config.mirror";
/// How many pods a fault names.
const NAMED: usize = 5;
const BUDGET: &str = "DisruptionBudget";

/// A pod, by its name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pod {
    pub namespace: String,
    pub name: String,
}

impl fmt::Display for Pod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A pod that is shutting down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    pub pod: Pod,
    /// For how long it should have been gone: its grace period is over and it is still there.
    pub overdue_s: u64,
}

/// A pod that may not be evicted now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocked {
    pub pod: Pod,
    /// Why, in the words of the API server: mostly those of a disruption budget.
    pub said: String,
}

/// What became of one pod in this pass, told while the pass goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    Evicted(Pod),
    Waiting(Waiting),
    Blocked(Blocked),
    Gone(Pod),
}

/// What one pass found and did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pass {
    /// Pods that went away during this pass.
    pub gone: usize,
    pub waiting: Vec<Waiting>,
    pub blocked: Vec<Blocked>,
    /// Pods that need not go.
    pub left_alone: usize,
}

impl Pass {
    /// Whether nothing is left that must go.
    pub fn is_done(&self) -> bool {
        self.waiting.is_empty() && self.blocked.is_empty()
    }

    /// Why the node is not empty, for whoever has waited long enough. Nothing when it is.
    pub fn fault(&self, node: &str) -> Option<Fault> {
        if self.is_done() {
            return None;
        }
        let (blocked, waiting) = (self.blocked.len(), self.waiting.len());
        let blocks =
            self.blocked.iter().map(|blocked| format!("{} ({})", blocked.pod, blocked.said));
        let waits = self.waiting.iter().map(|waiting| match waiting.overdue_s {
            0 => format!("{} (shutting down)", waiting.pod),
            late => format!("{} (should have been gone {late} s ago)", waiting.pod),
        });
        let named: Vec<String> = blocks.chain(waits).take(NAMED).collect();
        let more = match (blocked + waiting).saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        let said = format!(
            "node `{node}` is not empty; pods that may not be evicted: {blocked}, pods still shutting down: {waiting}: {}{more}",
            named.join(", ")
        );
        Some(Fault::new(Code::EvictionBlocked, said))
    }

    fn note(&mut self, step: &Step) {
        match step {
            Step::Evicted(pod) => self.waiting.push(Waiting { pod: pod.clone(), overdue_s: 0 }),
            Step::Waiting(waiting) => self.waiting.push(waiting.clone()),
            Step::Blocked(blocked) => self.blocked.push(blocked.clone()),
            Step::Gone(_) => self.gone += 1,
        }
    }
}

/// What a pod asks for by how it is.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    LeftAlone,
    Going { overdue_s: u64 },
    ToEvict,
}

impl Cluster {
    /// One pass over the pods of a node. `progress` hears of each pod as it is dealt with.
    pub async fn evict_all(
        &self,
        node: &str,
        mut progress: impl FnMut(&Step) + Send,
    ) -> Result<Pass, Fault> {
        check_name("node", node)?;
        let mut pass = Pass::default();
        for pod in self.pods_of(node).await? {
            let step = match fate(&pod, Timestamp::now()) {
                Fate::LeftAlone => {
                    pass.left_alone += 1;
                    continue;
                }
                Fate::Going { overdue_s } => {
                    Step::Waiting(Waiting { pod: name_of(&pod), overdue_s })
                }
                Fate::ToEvict => self.evict(&pod).await?,
            };
            progress(&step);
            pass.note(&step);
        }
        Ok(pass)
    }

    /// The pods that must go before the node is empty, without asking any of them to.
    pub async fn occupants(&self, node: &str) -> Result<Vec<Pod>, Fault> {
        check_name("node", node)?;
        let pods = self.pods_of(node).await?;
        let stays = |pod: &&core::Pod| fate(pod, Timestamp::now()) == Fate::LeftAlone;
        Ok(pods.iter().filter(|pod| !stays(pod)).map(name_of).collect())
    }

    async fn pods_of(&self, node: &str) -> Result<Vec<core::Pod>, Fault> {
        let pods: Api<core::Pod> = Api::all(self.client.clone());
        let ask = Ask::new("list", "pods of node", node);
        let mut params = ListParams::default().fields(&format!("spec.nodeName={node}")).limit(PAGE);
        let mut found = Vec::new();
        for _ in 0..MAX_PAGES {
            let page = self.call(&ask, pods.list(&params)).await?;
            found.extend(page.items);
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(found),
            }
        }
        let said = format!(
            "{} was asked to list the pods of node `{node}` and had no end of them after {}",
            self.address,
            found.len()
        );
        Err(Fault::new(Code::AnswerGarbled, said))
    }

    async fn evict(&self, pod: &core::Pod) -> Result<Step, Fault> {
        let of = name_of(pod);
        check_name("namespace", &of.namespace)?;
        check_name("pod", &of.name)?;
        let pods: Api<core::Pod> = Api::namespaced(self.client.clone(), &of.namespace);
        let params =
            PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..Default::default() };
        let body = eviction(&of, pod.metadata.uid.clone());
        let full_name = of.to_string();
        let ask = Ask::new("create", "pods/eviction", &full_name);
        let request = async {
            match pods.create_subresource::<_, Status>("eviction", &of.name, &params, &body).await {
                Ok(status) if status.is_success() => Ok(Some(Step::Evicted(of.clone()))),
                Ok(_) => Ok(None),
                Err(kube::Error::Api(status)) => match refusal(&of, &status) {
                    Some(step) => Ok(Some(step)),
                    None => Err(kube::Error::Api(status)),
                },
                Err(error) => Err(error),
            }
        };
        let step = self.call(&ask, request).await?;
        step.ok_or_else(|| fault::garbled(&self.address, &ask, "something else than success"))
    }
}

/// With the pod's own id: one that was replaced under the same name meanwhile is somebody else's.
fn eviction(pod: &Pod, uid: Option<String>) -> Eviction {
    let preconditions = uid.map(|uid| Preconditions { uid: Some(uid), ..Default::default() });
    Eviction {
        metadata: ObjectMeta {
            name: Some(pod.name.clone()),
            namespace: Some(pod.namespace.clone()),
            ..Default::default()
        },
        delete_options: Some(DeleteOptions { preconditions, ..Default::default() }),
    }
}

/// What a no means for this pod alone. Nothing, when it concerns us or the whole API server.
fn refusal(pod: &Pod, status: &Status) -> Option<Step> {
    match status.code {
        404 if status.reason == "NotFound" => Some(Step::Gone(pod.clone())),
        // Another pod has the name now, or somebody changed it this moment. The next pass will see.
        409 => Some(Step::Waiting(Waiting { pod: pod.clone(), overdue_s: 0 })),
        // Two budgets for one pod are answered as an internal error of the server.
        429 | 500 => Some(Step::Blocked(Blocked { pod: pod.clone(), said: words(status) })),
        _ => None,
    }
}

/// The budget's own words, where there are any.
fn words(status: &Status) -> String {
    let causes = status.details.iter().flat_map(|details| details.causes.iter());
    let budget = causes.filter(|cause| cause.reason == BUDGET).map(|cause| cause.message.clone());
    let said: Vec<String> = std::iter::once(status.message.clone()).chain(budget).collect();
    said.join(" ")
}

fn fate(pod: &core::Pod, now: Timestamp) -> Fate {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let mirror =
        pod.metadata.annotations.iter().any(|annotations| annotations.contains_key(MIRROR));
    let owners = pod.metadata.owner_references.iter().flatten();
    let mut controllers = owners.filter(|owner| owner.controller == Some(true));
    let daemon = controllers.any(|owner| owner.kind == "DaemonSet");
    if mirror || daemon || matches!(phase, Some("Succeeded" | "Failed")) {
        return Fate::LeftAlone;
    }
    match &pod.metadata.deletion_timestamp {
        // The time by which it should be gone: the grace period is already in it.
        Some(due) => {
            let overdue = now.as_second().saturating_sub(due.0.as_second());
            Fate::Going { overdue_s: u64::try_from(overdue).unwrap_or_default() }
        }
        None => Fate::ToEvict,
    }
}

fn name_of(pod: &core::Pod) -> Pod {
    Pod {
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        name: pod.metadata.name.clone().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(metadata: Value, phase: &str) -> core::Pod {
        serde_json::from_value(json!({ "metadata": metadata, "status": { "phase": phase } }))
            .unwrap()
    }

    #[test]
    fn every_pod_has_its_fate() {
        let now: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        let owned = |kind: &str, controller: bool| json!({ "ownerReferences": [{ "apiVersion": "v1", "kind": kind, "name": "o", "uid": "u", "controller": controller }] });
        let table = [
            (pod(json!({}), "Running"), Fate::ToEvict),
            (pod(json!({}), "Pending"), Fate::ToEvict),
            (pod(json!({}), "Succeeded"), Fate::LeftAlone),
            (pod(json!({}), "Failed"), Fate::LeftAlone),
            (pod(owned("DaemonSet", true), "Running"), Fate::LeftAlone),
            (pod(owned("DaemonSet", false), "Running"), Fate::ToEvict),
            (pod(owned("ReplicaSet", true), "Running"), Fate::ToEvict),
            (pod(json!({ "annotations": { MIRROR: "x" } }), "Running"), Fate::LeftAlone),
            (
                pod(json!({ "deletionTimestamp": "2026-01-01T00:00:50Z" }), "Running"),
                Fate::Going { overdue_s: 10 },
            ),
            (
                pod(json!({ "deletionTimestamp": "2026-01-01T00:01:50Z" }), "Running"),
                Fate::Going { overdue_s: 0 },
            ),
        ];
        for (pod, wanted) in table {
            assert_eq!(fate(&pod, now), wanted, "{pod:?}");
        }
    }

    #[test]
    fn a_node_that_is_not_empty_says_which_pods_and_why() {
        let pod = |n: usize| Pod { namespace: "shop".into(), name: format!("db-{n}") };
        let mut pass = Pass::default();
        assert_eq!(pass.fault("n"), None);
        pass.note(&Step::Gone(pod(0)));
        assert!(pass.is_done());
        pass.note(&Step::Blocked(Blocked { pod: pod(1), said: "needs 2 healthy pods".into() }));
        pass.note(&Step::Waiting(Waiting { pod: pod(2), overdue_s: 7 }));
        for n in 3..9 {
            pass.note(&Step::Evicted(pod(n)));
        }
        let fault = pass.fault("n").unwrap();
        assert_eq!(fault.code, Code::EvictionBlocked);
        for part in ["`n`", "shop/db-1 (needs 2 healthy pods)", "7 s ago", "and 3 more"] {
            assert!(fault.said.contains(part), "{part}: {fault}");
        }
    }

    #[test]
    fn only_a_no_to_this_pod_is_taken_as_one() {
        let pod = Pod { namespace: "a".into(), name: "b".into() };
        let status = |code: u16, reason: &str| Status::failure("m", reason).with_code(code);
        assert_eq!(refusal(&pod, &status(404, "NotFound")), Some(Step::Gone(pod.clone())));
        assert!(matches!(refusal(&pod, &status(409, "Conflict")), Some(Step::Waiting(_))));
        for code in [429, 500] {
            assert!(matches!(refusal(&pod, &status(code, "R")), Some(Step::Blocked(_))));
        }
        for code in [400, 401, 403, 404, 422, 503] {
            assert_eq!(refusal(&pod, &status(code, "R")), None, "{code}");
        }
    }
}
