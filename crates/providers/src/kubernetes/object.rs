//! The used parts of Kubernetes objects, read leniently: unknown fields are ignored and a missing
//! field is empty. Only the items of a page are required: without them the answer is not a list.

use jiff::Timestamp;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

const SUCCESS: &str = "Success";

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Metadata {
    pub name: Option<String>,
    pub namespace: Option<String>,
    pub uid: Option<String>,
    pub resource_version: Option<String>,
    pub labels: Option<BTreeMap<String, String>>,
    pub annotations: Option<BTreeMap<String, String>>,
    #[serde(deserialize_with = "timestamp")]
    pub deletion_timestamp: Option<Timestamp>,
    pub owner_references: Option<Vec<OwnerReference>>,
    pub managed_fields: Option<Vec<ManagedFields>>,
}

/// The fields that one client has set, as the API server records them.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ManagedFields {
    pub manager: String,
    #[serde(rename = "fieldsV1")]
    pub fields: Value,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct OwnerReference {
    pub kind: String,
    pub controller: Option<bool>,
}

/// Any object, of which only the metadata matters.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Object {
    pub metadata: Metadata,
}

/// One page of a list.
#[derive(Debug, Clone, Deserialize)]
#[serde(bound(deserialize = "T: Deserialize<'de>"))]
pub struct Page<T> {
    #[serde(default)]
    pub metadata: PageMetadata,
    #[serde(deserialize_with = "null_as_empty")]
    pub items: Vec<T>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct PageMetadata {
    #[serde(rename = "continue")]
    pub next: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct NodeObject {
    pub metadata: Metadata,
    pub spec: Option<NodeSpec>,
    pub status: Option<NodeStatus>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct NodeSpec {
    pub unschedulable: Option<bool>,
    pub taints: Option<Vec<TaintObject>>,
}

/// The API replaces the list of taints as a whole, so unknown fields are preserved.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TaintObject {
    pub key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    pub effect: String,
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeStatus {
    pub conditions: Option<Vec<NodeCondition>>,
    pub addresses: Option<Vec<NodeAddress>>,
    pub node_info: Option<NodeInfo>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct NodeCondition {
    #[serde(rename = "type")]
    pub kind: String,
    pub status: String,
    pub reason: Option<String>,
    pub message: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct NodeAddress {
    #[serde(rename = "type")]
    pub kind: String,
    pub address: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeInfo {
    pub kubelet_version: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct PodObject {
    pub metadata: Metadata,
    pub spec: Option<PodSpec>,
    pub status: Option<PodStatus>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct PodSpec {
    pub volumes: Option<Vec<Volume>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Volume {
    pub empty_dir: Option<Value>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct BudgetObject {
    pub metadata: Metadata,
    pub status: Option<BudgetStatus>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BudgetStatus {
    pub disruptions_allowed: i32,
    pub current_healthy: i32,
    pub desired_healthy: i32,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct PodStatus {
    pub phase: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ConfigMap {
    pub data: Option<BTreeMap<String, String>>,
}

/// The answer of the API server for every refusal and where there is no object.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct Status {
    pub status: Option<String>,
    /// As in the response line; 0 when the server left it out.
    pub code: u16,
    pub message: String,
    pub reason: String,
    pub details: Option<StatusDetails>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct StatusDetails {
    pub causes: Vec<StatusCause>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct StatusCause {
    pub reason: String,
    pub message: String,
}

impl Status {
    /// True if the API server itself reports that the object does not exist.
    pub fn is_not_found(&self) -> bool {
        self.code == 404 && self.reason == "NotFound"
    }

    pub fn is_already_exists(&self) -> bool {
        self.reason == "AlreadyExists"
    }

    /// True if the server refused our user, and not what the request was about: an authorizer
    /// names no cause. Admission rules without a cause look the same.
    pub fn is_access_refused(&self) -> bool {
        matches!(self.code, 401 | 403) && self.causes().next().is_none()
    }

    pub fn causes(&self) -> impl Iterator<Item = &StatusCause> {
        self.details.iter().flat_map(|details| details.causes.iter())
    }

    pub fn is_success(&self) -> bool {
        self.status.as_deref() == Some(SUCCESS)
    }
}

fn timestamp<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Timestamp>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    text.map(|text| text.parse().map_err(D::Error::custom)).transpose()
}

/// Because of `deserialize_with` a missing field is an error, and `null` is empty.
fn null_as_empty<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{from_value, json};

    #[test]
    fn a_page_must_have_a_list() {
        let page: Page<PodObject> = from_value(json!({ "items": null })).unwrap();
        assert!(page.items.is_empty() && page.metadata.next.is_none());
        for other in [json!({}), json!({ "kind": "PodList" }), json!([])] {
            assert!(from_value::<Page<PodObject>>(other.clone()).is_err(), "{other}");
        }
    }

    #[test]
    fn a_taint_is_written_back_as_it_was_read() {
        let taint =
            json!({ "key": "k", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z" });
        let read: TaintObject = from_value(taint.clone()).unwrap();
        assert_eq!(serde_json::to_value(read).unwrap(), taint);
    }

    #[test]
    fn a_time_is_read_or_refused() {
        let read = |time: &str| from_value::<Metadata>(json!({ "deletionTimestamp": time }));
        assert!(read("2026-01-01T00:00:00Z").unwrap().deletion_timestamp.is_some());
        assert!(read("soon").is_err());
    }
}
