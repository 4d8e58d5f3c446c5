//! The rights of users at the fake API server, and its refusals: the attributes of a request as
//! RBAC sees them, refusals of authorization and admission, access reviews, and `/readyz`.
//!
//! Each behaviour names the version of Kubernetes that it was seen in. "Run" is a kube-apiserver
//! that was run by hand, "read" is its source.

use crate::kube_api::{ApiError, ClusterState, api_error, json_response};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// The name of every user of the server.
pub const USER: &str = "farrier";

/// A request as an authorizer sees it.
pub struct Attributes<'a> {
    pub verb: &'static str,
    pub group: &'a str,
    pub namespace: &'a str,
    /// `pods`, or `pods/eviction` with its subresource.
    pub resource: String,
    pub name: &'a str,
}

impl<'a> Attributes<'a> {
    /// `None` for a path that is no resource.
    pub fn of(method: &Method, path: &[&'a str]) -> Option<Self> {
        let (group, rest) = match path {
            ["api", "v1", rest @ ..] => ("", rest),
            ["apis", group, _version, rest @ ..] => (*group, rest),
            _ => return None,
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
            rest => ("", rest),
        };
        let (resource, name, sub) = match rest {
            [resource] => (*resource, "", ""),
            [resource, name] => (*resource, *name, ""),
            [resource, name, sub] => (*resource, *name, *sub),
            _ => return None,
        };
        let verb = match (method.as_str(), name) {
            ("GET", "") => "list",
            ("GET", _) => "get",
            ("POST", _) => "create",
            ("PATCH", _) => "patch",
            ("DELETE", _) => "delete",
            _ => return None,
        };
        let resource = match sub {
            "" => resource.to_owned(),
            sub => format!("{resource}/{sub}"),
        };
        Some(Self { verb, group, namespace, resource, name })
    }

    /// The refusal of an authorizer. It has no cause. Read in 1.35, and run.
    pub fn forbidden(&self) -> ApiError {
        let Self { verb, group, namespace, resource, name } = self;
        let kind = resource.split('/').next().unwrap();
        let object = match *name {
            "" => kind.to_owned(),
            name => format!("{kind} {name:?}"),
        };
        let scope = match *namespace {
            "" => "at the cluster scope".to_owned(),
            namespace => format!("in the namespace {namespace:?}"),
        };
        let message = format!(
            "{object} is forbidden: User {USER:?} cannot {verb} resource {resource:?} in API group {group:?} {scope}"
        );
        let mut refusal = api_error(403, "Forbidden", message);
        refusal.1["details"] = json!({ "name": name, "kind": kind });
        refusal
    }
}

/// The admission rule that denies the eviction of the pods of one application.
#[derive(Debug, Clone, Copy)]
pub enum Admission {
    /// A ValidatingAdmissionPolicy: 422 unless its validation has a reason. Read in 1.35, and run.
    Policy,
    /// The same with `reason: Forbidden`. Read in 1.35, and run.
    ForbiddingPolicy,
    /// A webhook, with the code of its own answer; the API server adds no cause. Read in 1.35.
    Webhook(u16),
}

impl Admission {
    fn refusal(self, pod: &str) -> ApiError {
        let policy = "ValidatingAdmissionPolicy 'keep' with binding 'keep' denied request: the job must end first";
        let (code, reason, message, cause) = match self {
            Self::Policy => {
                (422, "Invalid", format!("pods {pod:?} is forbidden: {policy}"), Some(policy))
            }
            Self::ForbiddingPolicy => {
                (403, "Forbidden", format!("pods {pod:?} is forbidden: {policy}"), Some(policy))
            }
            Self::Webhook(code) => {
                let message =
                    "admission webhook \"keep.example\" denied the request: the job must end first";
                let reason = if code == 403 { "Forbidden" } else { "" };
                (code, reason, message.to_owned(), None)
            }
        };
        let mut refusal = api_error(code, reason, message);
        refusal.1["details"] = json!({ "name": pod, "kind": "pods" });
        if let Some(cause) = cause {
            refusal.1["details"]["causes"] = json!([{ "message": cause }]);
        }
        refusal
    }
}

impl ClusterState {
    /// A server that has just started answers 403 to every user whose rights come from RBAC, until
    /// its caches are filled. Run with 1.35.
    pub fn authorize(&self, attributes: &Attributes<'_>) -> Result<(), ApiError> {
        let denied = self.forbidden.iter().any(|(verb, resource)| {
            *verb == attributes.verb && *resource == attributes.resource.as_str()
        });
        if self.starting || denied { Err(attributes.forbidden()) } else { Ok(()) }
    }

    /// RBAC grants `/readyz` to everyone, so a server that has just started refuses that as well.
    /// Then it is 500 until the hooks of the start have ended, while other requests are answered.
    /// Run with 1.35.8.
    pub fn readyz(&self) -> Response {
        let hidden = self.forbidden.contains(&("get", "/readyz"));
        match (self.starting || hidden, self.unready) {
            (true, _) => {
                let message = format!("forbidden: User {USER:?} cannot get path \"/readyz\"");
                api_error(403, "Forbidden", message).into_response()
            }
            (false, true) => {
                let text = "[+]ping ok\n[-]poststarthook/rbac/bootstrap-roles failed: reason withheld\n\
                            readyz check failed\n";
                (StatusCode::INTERNAL_SERVER_ERROR, text).into_response()
            }
            (false, false) => (StatusCode::OK, "ok").into_response(),
        }
    }

    /// Everyone may read the version, once RBAC works. Read in 1.35. The owner of a cluster can
    /// take that right away.
    pub fn version(&self) -> Result<Response, ApiError> {
        if self.starting || self.forbidden.contains(&("get", "/version")) {
            let message = format!("forbidden: User {USER:?} cannot get path \"/version\"");
            return Err(api_error(403, "Forbidden", message));
        }
        let info = json!({ "major": "1", "minor": "35", "gitVersion": "v1.35.0" });
        Ok(json_response(StatusCode::OK, &info))
    }

    /// The `Date` header of every answer.
    pub fn date(&self) -> HeaderValue {
        let now = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(self.clock_ahead_s);
        HeaderValue::try_from(now.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()).unwrap()
    }

    /// Answers with the user's name and groups. Read in 1.35; it exists since 1.28.
    pub fn review_user(&self, mut review: Value) -> Response {
        review["status"] =
            json!({ "userInfo": { "username": USER, "groups": ["system:authenticated"] } });
        json_response(StatusCode::CREATED, &review)
    }

    /// Answers a `SelfSubjectAccessReview`: 201 with the status, also when the request is not
    /// allowed. Read in 1.35.
    pub fn review_access(&self, mut review: Value) -> Response {
        let asked = review["spec"]["resourceAttributes"].clone();
        let text = |field: &str| asked[field].as_str().unwrap_or_default().to_owned();
        let resource = match text("subresource").as_str() {
            "" => text("resource"),
            sub => format!("{}/{sub}", text("resource")),
        };
        let denied =
            self.forbidden.iter().any(|(verb, named)| *verb == text("verb") && *named == resource);
        review["status"] = match denied {
            false => {
                json!({ "allowed": true, "reason": "RBAC: allowed by ClusterRoleBinding \"farrier\"" })
            }
            true => json!({ "allowed": false }),
        };
        json_response(StatusCode::CREATED, &review)
    }

    /// Refuses an eviction in a namespace that is being deleted, or that an admission rule denies.
    pub fn admit_eviction(&self, namespace: &str, name: &str, pod: &Value) -> Result<(), ApiError> {
        // Run with 1.35.
        if self.terminating.contains(namespace) {
            let message = format!(
                "pods {name:?} is forbidden: unable to create new content in namespace {namespace} because it is being terminated"
            );
            let mut refusal = api_error(403, "Forbidden", message);
            let cause = format!("namespace {namespace} is being terminated");
            refusal.1["details"] = json!({
                "name": name, "kind": "pods",
                "causes": [{ "reason": "NamespaceTerminating", "message": cause, "field": "metadata.namespace" }],
            });
            return Err(refusal);
        }
        let app = &pod["metadata"]["labels"]["app"];
        match self.admission.iter().find(|(denied, _)| app == denied) {
            Some((_, by)) => Err(by.refusal(name)),
            None => Ok(()),
        }
    }
}

/// Records who set `spec.unschedulable`, as the server does in `managedFields`: the field belongs
/// to the client that changed its value last, and to none once it is removed. Read in 1.35.
pub fn record_field_manager(before: &Value, after: &mut Value, manager: &str) {
    let is_set = |node: &Value| node["spec"]["unschedulable"] == json!(true);
    if is_set(before) == is_set(after) {
        return;
    }
    let cordoned = is_set(after);
    let fields = &mut after["metadata"]["managedFields"];
    let mut entries = fields.as_array().cloned().unwrap_or_default();
    entries.retain(|entry| entry["fieldsV1"]["f:spec"].get("f:unschedulable").is_none());
    if cordoned {
        entries.push(json!({
            "manager": manager, "operation": "Update", "apiVersion": "v1",
            "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1",
            "fieldsV1": { "f:spec": { "f:unschedulable": {} } },
        }));
    }
    *fields = json!(entries);
}
