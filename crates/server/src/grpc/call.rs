//! One call: the services on behalf of its caller.
//!
//! A handler gets at the engine only through [`GrpcServices::call`], which needs the [`Caller`]
//! that the authentication has put into the request. A handler that forgets it does not compile.
//! The objects that the request names go into its entry of the audit log, which the first commit
//! writes.

use super::status::OrStatus;
use crate::audit_end::RecordedEnd;
use crate::audit_stream::AuditStreams;
use crate::auth::ObjectRule;
use crate::netboot::artifacts::Artifacts;
use engine::Engine;
use engine::access::{AccessControl, Caller};
use engine::audit::AuditLog;
use engine::node::Agents;
use engine::secret::SecretStore;
use model::audit::MAX_OBJECTS;
use model::text::MAX_SHORT;
use proto::{Name, json_form};
use providers::sim::Sim;
use serde_json::Value;
use std::path::PathBuf;
use std::sync::Arc;
use store::AuditDraft;
use tonic::{Request, Status};

/// Everything that a call may use.
#[derive(Clone)]
pub(crate) struct Call {
    pub engine: Engine,
    pub access: AccessControl,
    pub audit: AuditLog,
    pub audit_end: RecordedEnd,
    pub audit_streams: AuditStreams,
    /// The simulated hardware; None: this server has none.
    pub sim: Option<Sim>,
    pub secrets: SecretStore,
    pub artifacts: Artifacts,
    /// The base URL under which machines reach the netboot service; none: it is off.
    pub netboot_url: Option<String>,
    pub agents: Agents,
    /// The URLs under which agents reach this server, separated by commas; empty: they cannot.
    pub agents_url: String,
    /// The folder of tokens that kubeconfigs may name; None: they may name no file.
    pub token_folder: Option<PathBuf>,
    /// True if a credential must name the peers that it may be sent to.
    pub binding_required: bool,
}

impl Call {
    /// The same services for a request that may be a dry run; see [`Engine::with_dry_run`].
    pub fn with_dry_run(&self, dry_run: bool) -> Self {
        Self {
            engine: self.engine.with_dry_run(dry_run),
            secrets: self.secrets.with_dry_run(dry_run),
            agents: self.agents.with_dry_run(dry_run),
            ..self.clone()
        }
    }

    pub fn caller(&self) -> &Caller {
        self.engine.caller()
    }
}

/// The implementation of every service. Its state is private to this file.
#[derive(Clone)]
pub(crate) struct GrpcServices(Call);

impl GrpcServices {
    pub fn new(services: Call) -> Self {
        Self(services)
    }

    /// True if this server has simulated hardware.
    pub(super) fn simulates(&self) -> bool {
        self.0.sim.is_some()
    }

    /// The services on behalf of the caller of this request. Checks the rights of a caller that
    /// are limited by labels on the object that the request names.
    pub(super) async fn call<T: Name>(&self, request: &Request<T>) -> Result<Call, Status> {
        let draft = request.extensions().get::<Arc<AuditDraft>>();
        let call = self.call_stream(request)?;
        let limited = !call.caller().grants().limited.is_empty();
        if draft.is_none() && !limited {
            return Ok(call);
        }
        let described = json_form::to_json(request.get_ref());
        if let Some(draft) = draft {
            describe(draft, &described);
        }
        let rule = request.extensions().get::<ObjectRule>().copied();
        if limited {
            let rule = rule.ok_or_else(|| Status::permission_denied("the request has no rule"))?;
            rule.check(&call, &described).await.or_status()?;
        }
        // A login to a peer has no commit of its own, so its entry is written before it.
        if let Some(draft) = draft.filter(|_| rule.is_some_and(ObjectRule::uses_credential)) {
            call.audit.record(draft).await.or_status()?;
        }
        Ok(call)
    }

    /// Like `call`, for a request that is a stream.
    pub(super) fn call_stream<T>(&self, request: &Request<T>) -> Result<Call, Status> {
        let caller = request.extensions().get::<Caller>();
        let caller = caller.ok_or_else(|| Status::unauthenticated("the request has no caller"))?;
        let audit = request.extensions().get::<Arc<AuditDraft>>().cloned();
        let Call { engine, access, secrets, agents, .. } = &self.0;
        Ok(Call {
            engine: engine.for_caller(caller).with_audit(audit.clone()),
            access: access.with_audit(audit.clone()),
            secrets: secrets.with_audit(audit.clone()),
            agents: agents.with_audit(audit),
            ..self.0.clone()
        })
    }
}

/// Adds the objects of a request to its entry. A dry run has none.
pub(super) fn describe(draft: &AuditDraft, request: &Value) {
    if request.get("dry_run").and_then(Value::as_bool) == Some(true) {
        draft.leave_out();
        return;
    }
    let mut objects = Vec::new();
    collect_objects(request, &mut objects);
    objects.truncate(MAX_OBJECTS);
    let given =
        ["reference", "reason", "comment"].into_iter().find_map(|name| text(request.get(name)?));
    let overridden = || text(request.get("gate_override")?.get("reason")?);
    draft.describe(objects, given.or_else(overridden).unwrap_or_default());
}

/// A text as the log keeps it: short, on one line.
fn text(value: &Value) -> Option<String> {
    let text = value.as_str().filter(|text| !text.is_empty())?;
    Some(text.chars().map(|one| if one.is_control() { ' ' } else { one }).take(MAX_SHORT).collect())
}

/// The fields that name an object.
const NAMES: [&str; 8] = ["name", "names", "peer", "subject", "user", "id", "ids", "endpoint"];
/// The fields that say what is done with it. An entry has them as `field=value`.
const DETAILS: [&str; 15] = [
    "role",
    "roles",
    "permissions",
    "credential",
    "image_ref",
    "gates",
    "max_unavailable",
    "per",
    "open",
    "holds_for",
    "until",
    "addresses",
    "selector",
    "type",
    "mode",
];

/// The fields that name an object or say what is done, in the message and in the messages in it.
/// A secret has neither.
fn collect_objects(message: &Value, objects: &mut Vec<String>) {
    let Value::Object(fields) = message else { return };
    for (field, value) in fields.iter().filter(|(field, _)| *field != "secret") {
        let named =
            NAMES.contains(&field.as_str()) || field.ends_with("_id") || field.ends_with("_ids");
        let detail = DETAILS.contains(&field.as_str());
        let detailed = |value: &Value| text(value).map(|text| format!("{field}={text}"));
        match value {
            Value::String(_) if detail => objects.extend(detailed(value)),
            Value::Array(values) if detail => objects.extend(values.iter().filter_map(detailed)),
            Value::String(_) if named && field != "request_id" => objects.extend(text(value)),
            Value::Array(values) if named => objects.extend(values.iter().filter_map(text)),
            Value::Array(values) => {
                values.iter().for_each(|value| collect_objects(value, objects));
            }
            Value::Object(_) => collect_objects(value, objects),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::audit::AuditEntry;
    use model::time::Timestamp;
    use serde_json::json;

    #[test]
    fn an_entry_names_the_objects_of_its_request() {
        for (request, objects, reference) in [
            (json!({"machine_id": "m-1", "request_id": "r"}), vec!["m-1"], ""),
            (
                json!({"machine": {"machine_id": "m-1", "spec": {"rack_id": "r"}}}),
                vec!["m-1", "r"],
                "",
            ),
            (json!({"power_shelf_ids": ["a", "b"], "reference": "T-1"}), vec!["a", "b"], "T-1"),
            (json!({"machines": [{"machine_id": "x"}], "reason": "why"}), vec!["x"], "why"),
            (json!({"name": "bmc", "secret": {"password": "p"}}), vec!["bmc"], ""),
            (json!({"run_id": "op-1", "gate_override": {"reason": "now"}}), vec!["op-1"], "now"),
            (
                json!({"subject": "user:eve", "role": "admin", "request_id": "r"}),
                vec!["role=admin", "user:eve"],
                "",
            ),
            (
                json!({"machine_id": "a\nb", "image_ref": "rhel-9"}),
                vec!["image_ref=rhel-9", "a b"],
                "",
            ),
            (json!({"name": "bmc", "secret": {"user": "root"}}), vec!["bmc"], ""),
            (
                json!({"budget": {"budget_id": "gpu", "max_unavailable": "5%", "per": "rack"}}),
                vec!["gpu", "max_unavailable=5%", "per=rack"],
                "",
            ),
            (
                json!({"window": {"window_id": "night", "open": "daily 02:00-05:00 UTC"}}),
                vec!["open=daily 02:00-05:00 UTC", "night"],
                "",
            ),
        ] {
            let entry = AuditEntry::of(None, "call", Timestamp::from_micros(0));
            let draft = AuditDraft::new(entry);
            describe(&draft, &request);
            let entry = draft.entry();
            assert_eq!(
                (entry.objects, entry.reference.as_str()),
                (objects.into_iter().map(String::from).collect(), reference),
                "{request}"
            );
            assert!(!draft.is_written());
            describe(&draft, &json!({"dry_run": true}));
            assert!(draft.is_written());
        }
    }
}
