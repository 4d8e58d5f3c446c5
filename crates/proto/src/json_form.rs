//! The JSON form that people and scripts read and write: enum values by their words, as filters
//! take them, and 64-bit numbers as numbers. The canonical JSON of protobuf has neither.
//!
//! Both directions follow the descriptors, so no code is generated for any message.

mod read;

use crate::words;
use prost::Name;
use prost_reflect::{
    DescriptorPool, DynamicMessage, EnumDescriptor, Kind, MapKey, MessageDescriptor,
    ReflectMessage, Value as Field,
};
use serde_json::{Map, Value};
use std::sync::LazyLock;

pub use read::FromJson;

const TIMESTAMP: &str = "google.protobuf.Timestamp";
const RUN: &str = "farrier.v1.Run";

// The descriptors are compiled in; a test reads them.
static POOL: LazyLock<DescriptorPool> =
    LazyLock::new(|| DescriptorPool::decode(crate::DESCRIPTORS).unwrap_or_default());

/// The message of this type as the generic messages of the descriptors have it. None: the
/// descriptors have no such message.
pub fn descriptor<M: Name>() -> Option<MessageDescriptor> {
    POOL.get_message_by_name(&M::full_name())
}

/// The JSON form of a message. A field that can be absent is left out when it is; all others are
/// there, also with their default.
pub fn to_json<M: Name>(message: &M) -> Value {
    let bytes = message.encode_to_vec();
    let read = descriptor::<M>().map(|known| DynamicMessage::decode(known, bytes.as_slice()));
    read.and_then(Result::ok).map_or(Value::Null, |message| message_value(&message))
}

fn message_value(message: &DynamicMessage) -> Value {
    let descriptor = message.descriptor();
    if descriptor.full_name() == TIMESTAMP {
        let time = message.transcode_to::<prost_types::Timestamp>().unwrap_or_default();
        return time.to_string().into();
    }
    let fields = descriptor.fields();
    let given = fields.filter(|field| !field.supports_presence() || message.has_field(field));
    let value = |field: &_| field_value(&message.get_field(field), &field.kind());
    let mut form: Map<_, _> =
        given.map(|field| (field.name().to_string(), value(&field))).collect();
    // A run and an operation are one record. Its one form has the fields of a run, and the id and
    // the type of the operation.
    if let Some(id) = form.remove("run_id") {
        form.insert("operation_id".into(), id);
    }
    if descriptor.full_name() == RUN && form.get("type").is_some_and(|name| name == "REPAVE") {
        form.insert("type".into(), "REIMAGE".into());
    }
    Value::Object(form)
}

fn field_value(field: &Field, kind: &Kind) -> Value {
    match field {
        Field::Bool(value) => (*value).into(),
        Field::I32(value) => (*value).into(),
        Field::I64(value) => (*value).into(),
        Field::U32(value) => (*value).into(),
        Field::U64(value) => (*value).into(),
        Field::F32(value) => (*value).into(),
        Field::F64(value) => (*value).into(),
        Field::String(value) => value.as_str().into(),
        // Bytes are the output of programs; what is not UTF-8 in it is replaced.
        Field::Bytes(value) => String::from_utf8_lossy(value).into(),
        Field::EnumNumber(number) => enum_value(*number, kind),
        Field::Message(message) => message_value(message),
        Field::List(items) => items.iter().map(|item| field_value(item, kind)).collect(),
        Field::Map(entries) => {
            let entry = kind.as_message().map(|entry| entry.map_entry_value_field().kind());
            let value = |one| field_value(one, entry.as_ref().unwrap_or(kind));
            Value::Object(entries.iter().map(|(key, one)| (key_text(key), value(one))).collect())
        }
    }
}

/// The word of an enum value. A value that is newer than this program is printed as its number.
fn enum_value(number: i32, kind: &Kind) -> Value {
    let word = kind.as_enum().and_then(|of| words_in(of).find(|(known, _)| *known == number));
    word.map_or_else(|| number.into(), |(_, word)| word.into())
}

/// The numbers of an enum with their words: those of the documents, or the names without their
/// common prefix. Unspecified is empty.
fn words_in(of: &EnumDescriptor) -> impl Iterator<Item = (i32, String)> + '_ {
    let known = words::words_of(of.full_name()).unwrap_or_default();
    let zero = of.get_value(0).map(|zero| zero.name().to_string());
    let prefix = zero.as_deref().and_then(|zero| zero.strip_suffix("UNSPECIFIED"));
    let prefix = prefix.unwrap_or_default().to_string();
    of.values().map(move |value| {
        let name = value.name();
        let word = match words::word_in(known, value.number()) {
            "" if value.number() == 0 => "",
            "" => name.strip_prefix(&prefix).unwrap_or(name),
            word => word,
        };
        (value.number(), word.to_string())
    })
}

fn key_text(key: &MapKey) -> String {
    match key {
        MapKey::Bool(key) => key.to_string(),
        MapKey::I32(key) => key.to_string(),
        MapKey::I64(key) => key.to_string(),
        MapKey::U32(key) => key.to_string(),
        MapKey::U64(key) => key.to_string(),
        MapKey::String(key) => key.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1;
    use serde_json::json;

    fn detail() -> v1::NodeDetail {
        v1::NodeDetail {
            node: Some(v1::Node {
                state: v1::NodeState::BootstrapIssued.into(),
                version: 7,
                ..Default::default()
            }),
            workflow: Some(v1::Run {
                phase: v1::run::Phase::Running.into(),
                workflow_state: v1::WorkflowState::FailedRetryable.into(),
                created_at: Some(prost_types::Timestamp { seconds: 1_767_225_600, nanos: 1_000 }),
                ..Default::default()
            }),
            failure: "NODE_STATE_ACTIVE".into(),
            ..Default::default()
        }
    }

    #[test]
    fn values_are_words_and_numbers_are_numbers() {
        let value = to_json(&detail());
        assert_eq!(value["node"]["state"], "bootstrap_issued");
        assert_eq!(value["node"]["version"], 7);
        assert_eq!(value["workflow"]["phase"], "RUNNING");
        assert_eq!(value["workflow"]["workflow_state"], "failed_retryable");
        assert_eq!(value["workflow"]["created_at"], "2026-01-01T00:00:00.000001Z");
        assert_eq!(value["failure"], "NODE_STATE_ACTIVE", "a text is left alone");
    }

    #[test]
    fn a_run_has_the_form_of_an_operation() {
        let run = v1::Run { run_id: "op-1".into(), r#type: "REPAVE".into(), ..Default::default() };
        let event = to_json(&v1::RunEvent { snapshot: Some(run.clone()), ..Default::default() });
        for form in [&to_json(&run), &event["snapshot"]] {
            assert_eq!((&form["operation_id"], &form["type"]), (&json!("op-1"), &json!("REIMAGE")));
            assert_eq!((form.get("run_id"), &form["plan_id"]), (None, &json!("")));
        }
    }

    #[test]
    fn a_log_is_text() {
        let chunk = v1::LogChunk { offset: 7, data: b"ok\xff\n".to_vec(), ..Default::default() };
        let form = to_json(&chunk);
        assert_eq!((&form["data"], &form["offset"]), (&json!("ok\u{fffd}\n"), &json!(7)));
    }

    #[test]
    fn absent_messages_are_left_out_and_defaults_are_there() {
        let value = to_json(&v1::Machine {
            labels: [("state".to_string(), "NODE_STATE_ACTIVE".to_string())].into(),
            spec: Some(v1::MachineSpec::default()),
            ..Default::default()
        });
        assert_eq!(value["machine_id"], "");
        assert_eq!(value["labels"], json!({ "state": "NODE_STATE_ACTIVE" }));
        assert_eq!(value["spec"]["mac_addresses"], json!([]));
        assert_eq!(value.get("status"), None);
    }

    #[test]
    fn unspecified_is_empty_and_a_newer_value_is_its_number() {
        for (number, printed) in [(0, json!("")), (9_999, json!(9_999))] {
            let node = v1::Node { state: number, ..Default::default() };
            assert_eq!(to_json(&node)["state"], printed);
        }
    }
}
