//! Reads messages from files, in the form that [`super::to_json`] prints.
//!
//! The fields are set while the file is parsed, so the parser adds the position to each error.

use super::{TIMESTAMP, descriptor, words_in};
use prost::{Message, Name};
use prost_reflect::{
    DynamicMessage, EnumDescriptor, FieldDescriptor, Kind, MapKey, MessageDescriptor, Value,
};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, de};
use std::collections::HashMap;
use std::fmt;

/// A message that serde parsers can read.
#[derive(Debug, Default)]
pub struct FromJson<M>(pub M);

impl<'de, M: Name + Default> Deserialize<'de> for FromJson<M> {
    fn deserialize<D: Deserializer<'de>>(parser: D) -> Result<Self, D::Error> {
        let known = descriptor::<M>();
        let known = known.ok_or_else(|| D::Error::custom("the message has no descriptor"))?;
        let bytes = OfMessage(known).deserialize(parser)?.encode_to_vec();
        M::decode(bytes.as_slice()).map(Self).map_err(D::Error::custom)
    }
}

struct OfMessage(MessageDescriptor);

impl<'de> DeserializeSeed<'de> for OfMessage {
    type Value = DynamicMessage;

    fn deserialize<D: Deserializer<'de>>(self, parser: D) -> Result<DynamicMessage, D::Error> {
        match self.0.full_name() {
            TIMESTAMP => parser.deserialize_str(self),
            _ => parser.deserialize_map(self),
        }
    }
}

impl<'de> Visitor<'de> for OfMessage {
    type Value = DynamicMessage;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.full_name() {
            TIMESTAMP => f.write_str("a time such as 2026-01-31T12:00:00Z"),
            name => write!(f, "the fields of a {}", name.rsplit('.').next().unwrap_or(name)),
        }
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<DynamicMessage, E> {
        let time = text.parse::<prost_types::Timestamp>();
        let time = time.map_err(|_| E::invalid_value(de::Unexpected::Str(text), &self))?;
        let bytes = time.encode_to_vec();
        DynamicMessage::decode(self.0, bytes.as_slice()).map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<DynamicMessage, A::Error> {
        let mut message = DynamicMessage::new(self.0.clone());
        while let Some(name) = entries.next_key::<String>()? {
            let field = field_named(&self.0, &name).map_err(A::Error::custom)?;
            if let Some(value) = entries.next_value_seed(OrNull(OfField(field.clone())))? {
                check_unset(&message, &field).map_err(A::Error::custom)?;
                message.set_field(&field, value);
            }
        }
        Ok(message)
    }
}

/// Finds a field by its name, or by its name in canonical JSON.
fn field_named(message: &MessageDescriptor, name: &str) -> Result<FieldDescriptor, String> {
    let by_name = message.get_field_by_name(name);
    by_name.or_else(|| message.get_field_by_json_name(name)).ok_or_else(|| {
        let known: Vec<_> = message.fields().map(|field| format!("`{}`", field.name())).collect();
        format!("unknown field `{name}`, expected one of {}", known.join(", "))
    })
}

/// Refuses a field that is given twice, and a second field of a choice.
fn check_unset(message: &DynamicMessage, field: &FieldDescriptor) -> Result<(), String> {
    let choice = field.containing_oneof();
    let other = choice.and_then(|one| one.fields().find(|other| message.has_field(other)));
    match other {
        Some(other) if other != *field => {
            Err(format!("`{}` and `{}` are given; give one of them", other.name(), field.name()))
        }
        Some(_) => Err(format!("`{}` is given twice", field.name())),
        None if message.has_field(field) => Err(format!("`{}` is given twice", field.name())),
        None => Ok(()),
    }
}

/// A value, or null for a field that is not set.
struct OrNull<S>(S);

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for OrNull<S> {
    type Value = Option<S::Value>;

    fn deserialize<D: Deserializer<'de>>(self, parser: D) -> Result<Self::Value, D::Error> {
        parser.deserialize_option(self)
    }
}

impl<'de, S: DeserializeSeed<'de>> Visitor<'de> for OrNull<S> {
    type Value = Option<S::Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_none<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, parser: D) -> Result<Self::Value, D::Error> {
        self.0.deserialize(parser).map(Some)
    }
}

/// All values of a field: one, a list, or a map.
struct OfField(FieldDescriptor);

impl<'de> DeserializeSeed<'de> for OfField {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, parser: D) -> Result<Value, D::Error> {
        match () {
            () if self.0.is_map() => {
                let texts = HashMap::<String, String>::deserialize(parser)?;
                let entry = |(key, text)| (MapKey::String(key), Value::String(text));
                Ok(Value::Map(texts.into_iter().map(entry).collect()))
            }
            () if self.0.is_list() => parser.deserialize_seq(self),
            () => OfKind(self.0.kind()).deserialize(parser),
        }
    }
}

impl<'de> Visitor<'de> for OfField {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list for `{}`", self.0.name())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(OfKind(self.0.kind()))? {
            list.push(item);
        }
        Ok(Value::List(list))
    }
}

/// One value of a field.
struct OfKind(Kind);

impl<'de> DeserializeSeed<'de> for OfKind {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, parser: D) -> Result<Value, D::Error> {
        match self.0 {
            Kind::Bool => bool::deserialize(parser).map(Value::Bool),
            Kind::String => String::deserialize(parser).map(Value::String),
            Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => i32::deserialize(parser).map(Value::I32),
            Kind::Uint32 | Kind::Fixed32 => u32::deserialize(parser).map(Value::U32),
            Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => i64::deserialize(parser).map(Value::I64),
            Kind::Uint64 | Kind::Fixed64 => u64::deserialize(parser).map(Value::U64),
            Kind::Float => f32::deserialize(parser).map(Value::F32),
            Kind::Double => f64::deserialize(parser).map(Value::F64),
            Kind::Bytes => Err(D::Error::custom("bytes cannot be given in a file")),
            Kind::Message(message) => OfMessage(message).deserialize(parser).map(Value::Message),
            Kind::Enum(of) => {
                let text = String::deserialize(parser)?;
                number_of(&of, &text).map(Value::EnumNumber).map_err(D::Error::custom)
            }
        }
    }
}

/// The number of an enum value by its word, in any case, or by its name.
fn number_of(of: &EnumDescriptor, text: &str) -> Result<i32, String> {
    let by_word = words_in(of).find(|(_, word)| word.eq_ignore_ascii_case(text));
    let number = by_word.map(|(number, _)| number);
    number.or_else(|| of.get_value_by_name(text).map(|value| value.number())).ok_or_else(|| {
        let known = words_in(of).filter(|(_, word)| !word.is_empty());
        let known: Vec<_> = known.map(|(_, word)| format!("`{word}`")).collect();
        format!("unknown value `{text}`, expected one of {}", known.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json_form::to_json;
    use crate::v1;

    fn read<M: Name + Default>(text: &str) -> Result<M, String> {
        let read = serde_json::from_str::<FromJson<M>>(text);
        read.map(|read| read.0).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_printed_can_be_read() {
        let plan = v1::Plan {
            plan_id: "p".into(),
            on_failure: v1::OnFailure::EnterMaintenance.into(),
            steps: vec![v1::Step {
                name: "s".into(),
                timeout_seconds: Some(9),
                kind: Some(v1::step::Kind::Reboot(v1::Reboot::default())),
                ..Default::default()
            }],
            ..Default::default()
        };
        assert_eq!(read::<v1::Plan>(&to_json(&plan).to_string()), Ok(plan));
        let condition = v1::Condition {
            r#type: "Provisioned".into(),
            last_transition: Some(prost_types::Timestamp { seconds: 9, nanos: 5_000 }),
            ..Default::default()
        };
        assert_eq!(read::<v1::Condition>(&to_json(&condition).to_string()), Ok(condition));
    }

    #[test]
    fn a_file_may_use_words_in_any_case_names_and_null() {
        for written in ["enter_maintenance", "ENTER_MAINTENANCE", "ON_FAILURE_ENTER_MAINTENANCE"] {
            let plan = read::<v1::Plan>(&format!("{{\"on_failure\": \"{written}\"}}")).unwrap();
            assert_eq!(plan.on_failure(), v1::OnFailure::EnterMaintenance);
        }
        let plan = read::<v1::Plan>("{\"planId\": \"p\", \"on_failure\": null}").unwrap();
        assert_eq!((plan.plan_id.as_str(), plan.on_failure), ("p", 0));
    }

    #[test]
    fn errors_name_the_mistake_what_can_be_typed_and_the_position() {
        for (text, parts) in [
            ("{\"on_failure\": \"no\"}", ["unknown value `no`", "`ENTER_MAINTENANCE`"]),
            ("{\n\"plan\": 1}", ["unknown field `plan`, expected one of `plan_id`", "line 2"]),
            ("{\"plan_id\": 7}", ["invalid type: integer `7`", "line 1"]),
            ("{\"plan_id\": \"a\", \"planId\": \"b\"}", ["`plan_id` is given twice", "line 1"]),
            ("{\"steps\": 7}", ["a list for `steps`", "line 1"]),
            ("{\"steps\": [{\"reboot\": {}, \"power\": {}}]}", ["`reboot` and", "one of them"]),
        ] {
            let error = read::<v1::Plan>(text).unwrap_err();
            for part in parts {
                assert!(error.contains(part), "{part:?} is not in {error:?}");
            }
        }
        let error = read::<v1::Condition>("{\"last_transition\": \"noon\"}").unwrap_err();
        assert!(error.contains("a time such as 2026-01-31T12:00:00Z"), "{error}");
    }
}
