//! Events on a Node object, so that the owner of the cluster sees with `kubectl describe node` what
//! Farrier did to it. An event never fails what it reports.

use super::client::ApiRequest;
use super::fault::ApiCall;
use super::{Cluster, Node};
use jiff::Timestamp;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Events about objects without a namespace are in this one.
const EVENTS: &str = "/api/v1/namespaces/default/events";
const COMPONENT: &str = "farrier";
/// The API server's limit, in bytes.
const MAX_MESSAGE: usize = 1_000;
const MAX_NODE_CHARS: usize = 180;

/// A change to a node that Farrier reports as a Kubernetes event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeEvent {
    Cordoned,
    Drained,
    DrainFailed,
    Uncordoned,
    Joined,
}

impl NodeEvent {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Cordoned => "Cordoned",
            Self::Drained => "Drained",
            Self::DrainFailed => "DrainFailed",
            Self::Uncordoned => "Uncordoned",
            Self::Joined => "Joined",
        }
    }

    const fn level(self) -> &'static str {
        match self {
            Self::DrainFailed => "Warning",
            Self::Cordoned | Self::Drained | Self::Uncordoned | Self::Joined => "Normal",
        }
    }
}

impl Cluster {
    /// Writes an event of a run about a node. The same event of the same run is one object, which
    /// is renewed. Failures are ignored: the right to write events may be missing.
    pub async fn record_event(&self, node: &Node, event: NodeEvent, run: &str, message: &str) {
        let now = format!("{:.0}", Timestamp::now());
        let (name, body) = event_object(node, event, run, message, &now);
        let call = ApiCall::new("create", "events in default", &name);
        let created = self.send_once(&call, &ApiRequest::create(EVENTS, &body)).await;
        if matches!(&created, Ok(Err(status)) if status.is_already_exists()) {
            let call = ApiCall::new("patch", "events in default", &name);
            let patch = json!({ "lastTimestamp": now, "message": body["message"] });
            let path = format!("{EVENTS}/{name}");
            // The first event is there; a renewal that fails changes nothing.
            let _ = self.send_once(&call, &ApiRequest::patch(path, &patch)).await;
        }
    }
}

fn event_object(
    node: &Node,
    event: NodeEvent,
    run: &str,
    message: &str,
    now: &str,
) -> (String, Value) {
    let digest = Sha256::digest(format!("{run}/{}", event.as_str()));
    let suffix: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let short: String = node.name.chars().take(MAX_NODE_CHARS).collect();
    let name = format!("{}.{suffix}", short.trim_end_matches(['-', '.']));
    let message: String = format!("{message} ({run})").chars().take(MAX_MESSAGE).collect();
    let body = json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": { "name": name, "namespace": "default" },
        "involvedObject": {
            "apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid,
        },
        "reason": event.as_str(),
        "message": message,
        "type": event.level(),
        "source": { "component": COMPONENT },
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
        "reportingComponent": COMPONENT,
        "reportingInstance": "",
    });
    (name, body)
}
