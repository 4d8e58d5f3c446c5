//! The fields of the kinds that the fake API server knows, from the Kubernetes API reference. The
//! client's own types are not used: a field that the client misspells must be found here.

use serde_json::Value;

/// The type of a value.
pub enum Schema {
    Any,
    Bool,
    Number,
    Text,
    /// A map of strings.
    Texts,
    List(&'static Schema),
    Object(&'static [(&'static str, Schema)]),
}

use Schema::{Any, Bool, List, Number, Object, Text, Texts};

const METADATA: Schema = Object(&[
    ("annotations", Texts),
    ("creationTimestamp", Text),
    ("deletionGracePeriodSeconds", Number),
    ("deletionTimestamp", Text),
    ("finalizers", List(&Text)),
    ("generateName", Text),
    ("generation", Number),
    ("labels", Texts),
    ("managedFields", Any),
    ("name", Text),
    ("namespace", Text),
    ("ownerReferences", Any),
    ("resourceVersion", Text),
    ("selfLink", Text),
    ("uid", Text),
]);

const TAINT: Schema =
    Object(&[("effect", Text), ("key", Text), ("timeAdded", Text), ("value", Text)]);

pub const NODE: Schema = Object(&[
    ("apiVersion", Text),
    ("kind", Text),
    ("metadata", METADATA),
    (
        "spec",
        Object(&[
            ("configSource", Any),
            ("externalID", Text),
            ("podCIDR", Text),
            ("podCIDRs", List(&Text)),
            ("providerID", Text),
            ("taints", List(&TAINT)),
            ("unschedulable", Bool),
        ]),
    ),
    ("status", Any),
]);

pub const SECRET: Schema = Object(&[
    ("apiVersion", Text),
    ("data", Texts),
    ("immutable", Bool),
    ("kind", Text),
    ("metadata", METADATA),
    ("stringData", Texts),
    ("type", Text),
]);

pub const DELETE_OPTIONS: Schema = Object(&[
    ("apiVersion", Text),
    ("dryRun", List(&Text)),
    ("gracePeriodSeconds", Number),
    ("ignoreStoreReadErrorWithClusterBreakingPotential", Bool),
    ("kind", Text),
    ("orphanDependents", Bool),
    ("preconditions", Object(&[("resourceVersion", Text), ("uid", Text)])),
    ("propagationPolicy", Text),
]);

pub const EVICTION: Schema = Object(&[
    ("apiVersion", Text),
    ("deleteOptions", DELETE_OPTIONS),
    ("kind", Text),
    ("metadata", METADATA),
]);

pub const EVENT: Schema = Object(&[
    ("action", Text),
    ("apiVersion", Text),
    ("count", Number),
    ("eventTime", Text),
    ("firstTimestamp", Text),
    (
        "involvedObject",
        Object(&[
            ("apiVersion", Text),
            ("fieldPath", Text),
            ("kind", Text),
            ("name", Text),
            ("namespace", Text),
            ("resourceVersion", Text),
            ("uid", Text),
        ]),
    ),
    ("kind", Text),
    ("lastTimestamp", Text),
    ("message", Text),
    ("metadata", METADATA),
    ("reason", Text),
    ("related", Any),
    ("reportingComponent", Text),
    ("reportingInstance", Text),
    ("series", Any),
    ("source", Object(&[("component", Text), ("host", Text)])),
    ("type", Text),
]);

pub const SELF_REVIEW: Schema =
    Object(&[("apiVersion", Text), ("kind", Text), ("metadata", METADATA)]);

pub const ACCESS_REVIEW: Schema = Object(&[
    ("apiVersion", Text),
    ("kind", Text),
    ("metadata", METADATA),
    (
        "spec",
        Object(&[(
            "resourceAttributes",
            Object(&[
                ("group", Text),
                ("name", Text),
                ("namespace", Text),
                ("resource", Text),
                ("subresource", Text),
                ("verb", Text),
                ("version", Text),
            ]),
        )]),
    ),
]);

/// The path of the first field that is unknown or of another type. A null is no field.
pub fn mismatch(schema: &Schema, value: &Value, position: &str) -> Option<String> {
    if value.is_null() {
        return None;
    }
    let fits = |fits: bool| (!fits).then(|| position.to_owned());
    match schema {
        Any => None,
        Bool => fits(value.is_boolean()),
        Number => fits(value.is_i64()),
        Text => fits(value.is_string()),
        Texts => fits(value.as_object().is_some_and(|map| map.values().all(Value::is_string))),
        List(schema) => match value.as_array() {
            None => fits(false),
            Some(items) => items.iter().find_map(|item| mismatch(schema, item, position)),
        },
        Object(known) => match value.as_object() {
            None => fits(false),
            Some(fields) => fields.iter().find_map(|(name, value)| {
                let position = format!("{position}.{name}");
                match known.iter().find(|(known, _)| known == name) {
                    Some((_, schema)) => mismatch(schema, value, &position),
                    None => Some(position),
                }
            }),
        },
    }
}
