//! Partial updates: the fields of a stored message that a request changes.

use crate::FieldMask;
use crate::json_form::descriptor;
use prost::Name;
use prost_reflect::{DynamicMessage, FieldDescriptor, MapKey, ReflectMessage, Value};
use std::collections::{BTreeSet, HashMap};

/// A path of the mask that names no field that a client may change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownPath {
    pub path: String,
    /// The paths that can be used in its place.
    pub known: Vec<String>,
}

/// The stored message after an update. `writable` names the fields of the message that clients may
/// change.
///
/// With a mask, each named field becomes what the request has, also if that is nothing; `*` names
/// all writable fields, and `labels.KEY` one label. Without a mask, what the request has is
/// written and nothing is cleared, so a client that does not know a field does not erase it; only
/// maps (labels) are replaced.
pub fn updated<M: Name + Clone + Default>(
    stored: &M,
    requested: &M,
    mask: Option<&FieldMask>,
    writable: &[&str],
) -> Result<M, UnknownPath> {
    let (Some(mut message), Some(requested)) = (to_dynamic(stored), to_dynamic(requested)) else {
        return Ok(stored.clone());
    };
    let paths = mask.map(|mask| mask.paths.as_slice()).unwrap_or_default();
    if paths.is_empty() {
        for field in fields_named(&message, writable) {
            overlay(&mut message, &requested, &field);
        }
    }
    for path in paths {
        if path == "*" {
            fields_named(&message, writable)
                .iter()
                .for_each(|field| copy(&mut message, &requested, field));
            continue;
        }
        let root = path.split('.').next().unwrap_or_default();
        if !writable.contains(&root) {
            let known = writable.iter().map(ToString::to_string).collect();
            return Err(UnknownPath { path: path.clone(), known });
        }
        replace(&mut message, &requested, path)
            .map_err(|known| UnknownPath { path: path.clone(), known })?;
    }
    // Both messages have the type `M`, so this decodes.
    Ok(message.transcode_to::<M>().unwrap_or_else(|_| stored.clone()))
}

/// A field in which two messages differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldDifference {
    pub path: String,
    /// The values as text; empty: it is not set.
    pub before: String,
    pub after: String,
}

/// The mask of the writable fields in which two messages differ, for a client that has read a
/// message and changed it. It names only fields that the client knows.
pub fn changed<M: Name>(before: &M, after: &M, writable: &[&str]) -> FieldMask {
    let differ = differences(before, after, writable);
    FieldMask { paths: differ.into_iter().map(|one| one.path).collect() }
}

/// The writable fields in which two messages differ.
pub fn differences<M: Name>(before: &M, after: &M, writable: &[&str]) -> Vec<FieldDifference> {
    let mut differ = Vec::new();
    if let (Some(before), Some(after)) = (to_dynamic(before), to_dynamic(after)) {
        for field in fields_named(&before, writable) {
            add_differences(&mut differ, "", (&before, &after), &field);
        }
    }
    differ
}

fn add_differences(
    differ: &mut Vec<FieldDifference>,
    prefix: &str,
    (before, after): (&DynamicMessage, &DynamicMessage),
    field: &FieldDescriptor,
) {
    let path = format!("{prefix}{}", field.name());
    let (old, new) = (before.get_field(field), after.get_field(field));
    if let (Some(old), Some(new)) = (old.as_map(), new.as_map()) {
        let keys: BTreeSet<_> = old.keys().chain(new.keys()).filter_map(MapKey::as_str).collect();
        let value = |map: &HashMap<_, _>, key: &str| map.get(&MapKey::String(key.into())).cloned();
        let changed = keys.into_iter().filter(|key| value(old, key) != value(new, key));
        let text = |map: &HashMap<_, _>, key: &str| {
            value(map, key).as_ref().map_or_else(String::new, text_of)
        };
        differ.extend(changed.map(|key| FieldDifference {
            path: format!("{path}.{key}"),
            before: text(old, key),
            after: text(new, key),
        }));
    } else if let (Some(old), Some(new)) = (old.as_message(), new.as_message()) {
        for field in new.descriptor().fields() {
            add_differences(differ, &format!("{path}."), (old, new), &field);
        }
    } else if old != new || before.has_field(field) != after.has_field(field) {
        let text = |message: &DynamicMessage, value: &Value| match message.has_field(field) {
            true => text_of(value),
            false => String::new(),
        };
        let (before, after) = (text(before, &old), text(after, &new));
        differ.push(FieldDifference { path, before, after });
    }
}

/// A value as people read it.
fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::List(values) => values.iter().map(text_of).collect::<Vec<_>>().join(", "),
        Value::Bool(value) => value.to_string(),
        Value::I32(value) | Value::EnumNumber(value) => value.to_string(),
        Value::I64(value) => value.to_string(),
        Value::U32(value) => value.to_string(),
        Value::U64(value) => value.to_string(),
        Value::F32(value) => value.to_string(),
        Value::F64(value) => value.to_string(),
        Value::Bytes(value) => format!("{} bytes", value.len()),
        Value::Message(_) | Value::Map(_) => "…".into(),
    }
}

fn to_dynamic<M: Name>(message: &M) -> Option<DynamicMessage> {
    DynamicMessage::decode(descriptor::<M>()?, message.encode_to_vec().as_slice()).ok()
}

fn fields_named(message: &DynamicMessage, names: &[&str]) -> Vec<FieldDescriptor> {
    let known = message.descriptor();
    names.iter().filter_map(|name| known.get_field_by_name(name)).collect()
}

/// Writes what is set in the request, field by field in messages.
fn overlay(message: &mut DynamicMessage, requested: &DynamicMessage, field: &FieldDescriptor) {
    if field.is_map() {
        return copy(message, requested, field);
    }
    if !requested.has_field(field) {
        return;
    }
    let value = requested.get_field(field);
    match (value.as_message(), message.get_field_mut(field).as_message_mut()) {
        (Some(inner), Some(stored)) => {
            inner.descriptor().fields().for_each(|field| overlay(stored, inner, &field));
        }
        (None, _) | (_, None) => copy(message, requested, field),
    }
}

/// The field becomes what the request has. A message that the request does not have becomes empty:
/// an absent spec would mean that it stays.
fn copy(message: &mut DynamicMessage, requested: &DynamicMessage, field: &FieldDescriptor) {
    let is_message = field.kind().as_message().is_some() && !field.is_list() && !field.is_map();
    match requested.has_field(field) || is_message {
        true => message.set_field(field, requested.get_field(field).into_owned()),
        false => message.clear_field(field),
    }
}

/// Copies the field at the path. The error has the paths that are possible where it is wrong.
fn replace(
    message: &mut DynamicMessage,
    requested: &DynamicMessage,
    path: &str,
) -> Result<(), Vec<String>> {
    let (name, rest) = path.split_once('.').map_or((path, None), |(a, b)| (a, Some(b)));
    let known = message.descriptor();
    let names = || known.fields().map(|field| field.name().to_string()).collect::<Vec<_>>();
    let field = known.get_field_by_name(name).ok_or_else(names)?;
    let below = |known: Vec<String>| known.iter().map(|one| format!("{name}.{one}")).collect();
    match (rest, requested.get_field(&field).as_ref()) {
        (None, _) => copy(message, requested, &field),
        (Some(key), Value::Map(given)) => {
            let key = MapKey::String(key.to_string());
            let Some(stored) = message.get_field_mut(&field).as_map_mut() else { return Ok(()) };
            match given.get(&key) {
                Some(value) => stored.insert(key, value.clone()),
                None => stored.remove(&key),
            };
        }
        (Some(rest), Value::Message(inner)) => {
            let stored = message.get_field_mut(&field).as_message_mut();
            return stored.map_or(Ok(()), |stored| replace(stored, inner, rest)).map_err(below);
        }
        (Some(_), _) => return Err(vec![name.to_string()]),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1::{Machine, MachineSpec, MachineStatus, Site, SiteNetwork, SiteSpec};

    const WRITABLE: [&str; 2] = ["labels", "spec"];

    fn machine(labels: &[(&str, &str)], ssh: &str, macs: &[&str], slot: Option<i32>) -> Machine {
        let label = |(key, value): &(&str, &str)| (key.to_string(), value.to_string());
        Machine {
            machine_id: "m-1".into(),
            labels: labels.iter().map(label).collect(),
            spec: Some(MachineSpec {
                ssh_endpoint: ssh.into(),
                mac_addresses: macs.iter().map(ToString::to_string).collect(),
                slot,
                ..Default::default()
            }),
            status: None,
        }
    }

    fn mask(paths: &[&str]) -> FieldMask {
        FieldMask { paths: paths.iter().map(ToString::to_string).collect() }
    }

    #[test]
    fn without_a_mask_nothing_is_cleared_but_labels() {
        let stored = machine(&[("a", "1")], "10.0.0.1", &["aa"], Some(3));
        let empty = Machine::default();
        for (requested, expected) in [
            (machine(&[], "", &[], None), machine(&[], "10.0.0.1", &["aa"], Some(3))),
            (empty, machine(&[], "10.0.0.1", &["aa"], Some(3))),
            (
                machine(&[("b", "2")], "10.0.0.2", &["bb"], None),
                machine(&[("b", "2")], "10.0.0.2", &["bb"], Some(3)),
            ),
        ] {
            for mask in [None, Some(&mask(&[]))] {
                assert_eq!(updated(&stored, &requested, mask, &WRITABLE).unwrap(), expected);
            }
        }
    }

    #[test]
    fn a_mask_changes_and_clears_what_it_names() {
        let stored = machine(&[("a", "1"), ("x.y/z", "0")], "10.0.0.1", &["aa"], Some(3));
        let requested = machine(&[("b", "2")], "10.0.0.2", &[], None);
        let both = [("a", "1"), ("x.y/z", "0")];
        let all = [("a", "1"), ("b", "2"), ("x.y/z", "0")];
        for (paths, expected) in [
            (vec!["spec.ssh_endpoint"], machine(&both, "10.0.0.2", &["aa"], Some(3))),
            (vec!["spec.slot"], machine(&both, "10.0.0.1", &["aa"], None)),
            (
                vec!["spec.mac_addresses", "labels.x.y/z"],
                machine(&[("a", "1")], "10.0.0.1", &[], Some(3)),
            ),
            (vec!["labels.b"], machine(&all, "10.0.0.1", &["aa"], Some(3))),
            (vec!["labels"], machine(&[("b", "2")], "10.0.0.1", &["aa"], Some(3))),
            (vec!["spec"], machine(&both, "10.0.0.2", &[], None)),
            (vec!["*"], requested.clone()),
        ] {
            let done = updated(&stored, &requested, Some(&mask(&paths)), &WRITABLE);
            assert_eq!(done.unwrap(), expected, "{paths:?}");
        }
    }

    #[test]
    fn a_named_message_that_is_absent_becomes_empty() {
        let stored = machine(&[], "10.0.0.1", &["aa"], Some(3));
        let absent = Machine { machine_id: "m-1".into(), ..Default::default() };
        for paths in [["spec"], ["*"]] {
            let done = updated(&stored, &absent, Some(&mask(&paths)), &WRITABLE).unwrap();
            assert_eq!(done, machine(&[], "", &[], None), "{paths:?}");
        }
    }

    #[test]
    fn read_only_fields_stay() {
        let status = |version| Some(MachineStatus { version, ..Default::default() });
        let stored = Machine { status: status(7), ..machine(&[], "", &[], None) };
        let requested = Machine { status: status(9), ..stored.clone() };
        for mask in [None, Some(&mask(&["*"]))] {
            assert_eq!(updated(&stored, &requested, mask, &WRITABLE).unwrap(), stored);
        }
    }

    #[test]
    fn a_message_within_a_message_is_updated_by_its_fields() {
        let site = |interfaces: &str, mtu| Site {
            spec: Some(SiteSpec {
                network: Some(SiteNetwork {
                    roce_interfaces: interfaces.into(),
                    roce_mtu: mtu,
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        };
        let (stored, requested) = (site("ens", 9_000), site("", 1_500));
        let merged = updated(&stored, &requested, None, &WRITABLE).unwrap();
        assert_eq!(merged, site("ens", 1_500));
        let mtu = mask(&["spec.network.roce_interfaces"]);
        assert_eq!(updated(&stored, &requested, Some(&mtu), &WRITABLE).unwrap(), site("", 9_000));
    }

    #[test]
    fn a_client_names_only_what_it_changed() {
        let before = machine(&[("a", "1"), ("b", "2")], "10.0.0.1", &["aa"], Some(3));
        let after = machine(&[("b", "3"), ("c.d", "4")], "10.0.0.2", &["aa"], None);
        let changes = changed(&before, &after, &WRITABLE);
        let expected = ["labels.a", "labels.b", "labels.c.d", "spec.slot", "spec.ssh_endpoint"];
        let mut paths: Vec<_> = changes.paths.iter().map(String::as_str).collect();
        paths.sort_unstable();
        assert_eq!(paths, expected);
        assert_eq!(updated(&before, &after, Some(&changes), &WRITABLE).unwrap(), after);
        assert_eq!(changed(&before, &before, &WRITABLE).paths, Vec::<String>::new());
        // A field that is set to its default differs from one that is not set.
        let zero = machine(&[], "", &[], Some(0));
        let unset = machine(&[], "", &[], None);
        assert_eq!(changed(&zero, &unset, &WRITABLE).paths, ["spec.slot"]);
    }

    #[test]
    fn an_unknown_path_says_what_can_be_named() {
        let stored = machine(&[], "", &[], None);
        for (path, first_known) in [
            ("status", "labels"),
            ("status.phase", "labels"),
            ("machine_id", "labels"),
            ("", "labels"),
            ("spec.nothing", "spec.ssh_endpoint"),
            ("spec.slot.deep", "spec.slot"),
        ] {
            let refused = updated(&stored, &stored, Some(&mask(&[path])), &WRITABLE).unwrap_err();
            assert_eq!((refused.path.as_str(), refused.known[0].as_str()), (path, first_known));
        }
    }
}
