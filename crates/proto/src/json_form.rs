//! The JSON form that people and scripts read: enum values by their words, as filters take them,
//! and 64-bit numbers as numbers. The canonical JSON of protobuf has neither.
//!
//! [`to_words`] changes a message that was serialized canonically; [`to_names`] is its inverse, for
//! files. Both follow the descriptors, so a text of a user that looks like an enum value is left
//! alone.

use crate::words;
use prost::Message;
use prost_types::field_descriptor_proto::Type;
use prost_types::{DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorSet};
use serde_json::Value;
use std::collections::HashMap;
use std::sync::LazyLock;

static INDEX: LazyLock<Index> = LazyLock::new(Index::new);

/// The fields that need a change, by message, and the values of enums, by enum. All names are full.
#[derive(Default)]
struct Index {
    messages: HashMap<String, HashMap<String, Field>>,
    enums: HashMap<String, Vec<EnumValue>>,
}

/// The type of a field. All maps are of texts, so they are left alone.
enum Field {
    Enum(String),
    Message(String),
    Number,
}

struct EnumValue {
    name: String,
    word: String,
}

/// Replaces the names of enum values by their words, and 64-bit numbers in texts by numbers.
pub fn to_words(message: &str, value: &mut Value) {
    INDEX.convert(message, value, Direction::ToWords);
}

/// Replaces the words of enum values by their names. A word that is not known stays as it is.
pub fn to_names(message: &str, value: &mut Value) {
    INDEX.convert(message, value, Direction::ToNames);
}

#[derive(Clone, Copy)]
enum Direction {
    ToWords,
    ToNames,
}

impl Index {
    fn new() -> Self {
        let mut index = Self::default();
        // The descriptors are compiled in; a test reads them.
        let set = FileDescriptorSet::decode(crate::DESCRIPTORS).unwrap_or_default();
        for file in &set.file {
            let package = file.package();
            file.enum_type.iter().for_each(|one| index.add_enum(package, one));
            file.message_type.iter().for_each(|one| index.add_message(package, one));
        }
        index
    }

    fn add_enum(&mut self, scope: &str, described: &EnumDescriptorProto) {
        let full = format!("{scope}.{}", described.name());
        let zero = described.value.iter().find(|value| value.number() == 0);
        let prefix = zero.and_then(|zero| zero.name().strip_suffix("UNSPECIFIED"));
        let prefix = prefix.unwrap_or_default().to_string();
        let known = words::words_of(&full).unwrap_or_default();
        let values = described.value.iter().map(|value| {
            let name = value.name();
            let word = match words::word_in(known, value.number()) {
                "" if value.number() == 0 => "",
                "" => name.strip_prefix(&prefix).unwrap_or(name),
                word => word,
            };
            EnumValue { name: name.into(), word: word.into() }
        });
        self.enums.insert(full, values.collect());
    }

    fn add_message(&mut self, scope: &str, described: &DescriptorProto) {
        let full = format!("{scope}.{}", described.name());
        described.enum_type.iter().for_each(|one| self.add_enum(&full, one));
        described.nested_type.iter().for_each(|one| self.add_message(&full, one));
        let fields = described.field.iter();
        let fields = fields.filter_map(|field| Some((field.name().into(), field_kind(field)?)));
        self.messages.insert(full, fields.collect());
    }

    fn convert(&self, message: &str, value: &mut Value, direction: Direction) {
        let (Some(fields), Some(object)) = (self.messages.get(message), value.as_object_mut())
        else {
            return;
        };
        for (name, field) in fields {
            let values = match object.get_mut(name) {
                Some(Value::Array(items)) => items.iter_mut().collect(),
                Some(value) => vec![value],
                None => continue,
            };
            for value in values {
                match field {
                    Field::Enum(inner) => self.convert_enum(inner, value, direction),
                    Field::Message(inner) => self.convert(inner, value, direction),
                    Field::Number => number(value),
                }
            }
        }
    }

    fn convert_enum(&self, full: &str, value: &mut Value, direction: Direction) {
        let Value::String(text) = value else { return };
        let values = self.enums.get(full).map(Vec::as_slice).unwrap_or_default();
        let found = match direction {
            Direction::ToWords => values.iter().find(|one| one.name == *text).map(|one| &one.word),
            Direction::ToNames => {
                let word = values.iter().find(|one| one.word.eq_ignore_ascii_case(text));
                word.filter(|_| !values.iter().any(|one| one.name == *text)).map(|one| &one.name)
            }
        };
        if let Some(found) = found {
            text.clone_from(found);
        }
    }
}

fn field_kind(field: &FieldDescriptorProto) -> Option<Field> {
    let full = || field.type_name().trim_start_matches('.').to_string();
    match field.r#type() {
        Type::Enum => Some(Field::Enum(full())),
        Type::Message => Some(Field::Message(full())),
        Type::Int64 | Type::Uint64 | Type::Sint64 | Type::Fixed64 | Type::Sfixed64 => {
            Some(Field::Number)
        }
        Type::Double
        | Type::Float
        | Type::Int32
        | Type::Fixed32
        | Type::Bool
        | Type::String
        | Type::Group
        | Type::Bytes
        | Type::Uint32
        | Type::Sfixed32
        | Type::Sint32 => None,
    }
}

/// A 64-bit number, which canonical JSON writes as a text.
fn number(value: &mut Value) {
    if let Some(number) = value.as_str().and_then(|text| text.parse::<i64>().ok()) {
        *value = number.into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_become_words_and_return() {
        let canonical = json!({
            "node": { "state": "NODE_STATE_BOOTSTRAP_ISSUED", "version": "7",
                      "labels": { "state": "NODE_STATE_ACTIVE", "version": "7" } },
            "workflow": { "phase": "RUNNING", "workflow_state": "WORKFLOW_STATE_FAILED_RETRYABLE",
                          "steps": [{ "state": "WAITING" }], "created_at": "2026-01-01T00:00:00Z" },
            "failure": "NODE_STATE_ACTIVE", "unknown": { "state": "NODE_STATE_ACTIVE" },
        });
        let expected = json!({
            "node": { "state": "bootstrap_issued", "version": 7,
                      "labels": { "state": "NODE_STATE_ACTIVE", "version": "7" } },
            "workflow": { "phase": "RUNNING", "workflow_state": "FAILED_RETRYABLE",
                          "steps": [{ "state": "WAITING" }], "created_at": "2026-01-01T00:00:00Z" },
            "failure": "NODE_STATE_ACTIVE", "unknown": { "state": "NODE_STATE_ACTIVE" },
        });
        let mut value = canonical.clone();
        to_words("farrier.v1.NodeDetail", &mut value);
        assert_eq!(value, expected);
        to_names("farrier.v1.NodeDetail", &mut value);
        value["node"]["version"] = "7".into();
        assert_eq!(value, canonical);
        to_words("farrier.v1.Nothing", &mut value);
        assert_eq!(value, canonical);
    }

    #[test]
    fn a_file_may_use_words_in_any_case_and_names() {
        for (written, name) in [
            ("enter_maintenance", "ON_FAILURE_ENTER_MAINTENANCE"),
            ("ENTER_MAINTENANCE", "ON_FAILURE_ENTER_MAINTENANCE"),
            ("ON_FAILURE_ENTER_MAINTENANCE", "ON_FAILURE_ENTER_MAINTENANCE"),
            ("sideways", "sideways"),
        ] {
            let mut value = json!({ "on_failure": written });
            to_names("farrier.v1.Plan", &mut value);
            assert_eq!(value["on_failure"], name);
        }
    }
}
