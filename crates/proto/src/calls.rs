//! The calls that act, and those of them that have a dry run. The descriptors say both: a call that
//! only reads has the option `idempotency_level = NO_SIDE_EFFECTS`, and the request of a call
//! with a dry run has the field `dry_run`.

use crate::DESCRIPTORS;
use prost::Message;
use prost_types::field_descriptor_proto::Type;
use prost_types::method_options::IdempotencyLevel;
use prost_types::{DescriptorProto, FileDescriptorProto, FileDescriptorSet, MethodDescriptorProto};
use std::collections::{BTreeMap, BTreeSet};

const FIELD: &str = "dry_run";

/// The calls that act and have no dry run, each with the reason.
pub const WITHOUT_DRY_RUN: [(&str, &str); 9] = [
    ("farrier.v1.ClusterService/CheckCluster", "it only reads the cluster"),
    ("farrier.v1.HardwareService/Discover", "without --import it registers nothing"),
    ("farrier.v1.HardwareService/InspectMachine", "it only reads the BMC and records the result"),
    ("farrier.v1.HardwareService/TestBmc", "it only reads the BMC"),
    ("farrier.v1.ImageService/UploadArtifact", "an upload is checked while it is received"),
    ("farrier.v1.NotifierService/TestNotifier", "it sends a test notice"),
    ("farrier.v1.SimulatorService/CreateFault", "it changes only the simulator"),
    ("farrier.v1.SimulatorService/DeleteFaults", "it changes only the simulator"),
    ("farrier.v1.SiteService/CheckSite", "it only reads MAAS and records the result"),
];

/// The calls of a set of proto files, as `package.Service/Method`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Calls {
    pub all: BTreeSet<String>,
    /// The calls that may change something.
    pub acting: BTreeSet<String>,
    /// The calls whose request has a dry run.
    pub with_dry_run: BTreeSet<String>,
    /// The calls that answer with a stream.
    pub streaming: BTreeSet<String>,
    /// The fields of the request of each call.
    pub request_fields: BTreeMap<String, Vec<RequestField>>,
}

/// A field of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestField {
    pub name: String,
    pub number: i32,
    pub is_text: bool,
}

/// Fields with the suffix of an id that name no object of the fleet.
const NO_OBJECTS: [&str; 4] = ["request_id", "plan_id", "firmware_id", "alert_ids"];

impl RequestField {
    /// True if the field names an object of the fleet, or several.
    pub fn names_an_object(&self) -> bool {
        let name = self.name.as_str();
        let id = name == "id" || name.ends_with("_id") || name.ends_with("_ids");
        self.is_text && id && !NO_OBJECTS.contains(&name)
    }
}

impl Calls {
    /// The calls of this version.
    pub fn own() -> Self {
        let set = FileDescriptorSet::decode(DESCRIPTORS).unwrap_or_default();
        Self::of_files(&set.file)
    }

    pub fn of_files(files: &[FileDescriptorProto]) -> Self {
        let mut calls = Self::default();
        let requests: BTreeSet<String> = files.iter().flat_map(requests_with_dry_run).collect();
        let fields: BTreeMap<String, Vec<RequestField>> = files.iter().flat_map(fields).collect();
        for (name, method) in files.iter().flat_map(methods) {
            if requests.contains(method.input_type().trim_start_matches('.')) {
                calls.with_dry_run.insert(name.clone());
            }
            if !only_reads(method) {
                calls.acting.insert(name.clone());
            }
            if method.server_streaming() {
                calls.streaming.insert(name.clone());
            }
            let request = fields.get(method.input_type().trim_start_matches('.'));
            calls.request_fields.insert(name.clone(), request.cloned().unwrap_or_default());
            calls.all.insert(name);
        }
        calls
    }
}

fn only_reads(method: &MethodDescriptorProto) -> bool {
    let level = method.options.as_ref().map(|options| options.idempotency_level());
    level == Some(IdempotencyLevel::NoSideEffects)
}

fn methods(file: &FileDescriptorProto) -> impl Iterator<Item = (String, &MethodDescriptorProto)> {
    file.service.iter().flat_map(move |service| {
        let service_name = format!("{}.{}", file.package(), service.name());
        service.method.iter().map(move |one| (format!("{service_name}/{}", one.name()), one))
    })
}

/// The fields of each message, by its full name.
fn fields(file: &FileDescriptorProto) -> impl Iterator<Item = (String, Vec<RequestField>)> {
    file.message_type.iter().map(|message| {
        let fields = message.field.iter().map(|field| RequestField {
            name: field.name().to_string(),
            number: field.number(),
            is_text: field.r#type() == Type::String,
        });
        (format!("{}.{}", file.package(), message.name()), fields.collect())
    })
}

/// The full names of the messages that have the field.
fn requests_with_dry_run(file: &FileDescriptorProto) -> impl Iterator<Item = String> {
    let has_field =
        |message: &&DescriptorProto| message.field.iter().any(|field| field.name() == FIELD);
    let named = |message: &DescriptorProto| format!("{}.{}", file.package(), message.name());
    file.message_type.iter().filter(has_field).map(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A new call that acts needs a dry run, or a reason in the list.
    #[test]
    fn every_call_that_acts_has_a_dry_run_or_a_reason() {
        let calls = Calls::own();
        assert!(calls.acting.len() > 60, "{}", calls.acting.len());
        let without: BTreeSet<&str> = WITHOUT_DRY_RUN.iter().map(|(name, _)| *name).collect();
        for name in &calls.acting {
            let has_field = calls.with_dry_run.contains(name);
            assert!(
                has_field != without.contains(name.as_str()),
                "{name}: give its request the field dry_run, or WITHOUT_DRY_RUN a reason",
            );
        }
        for name in without {
            assert!(calls.acting.contains(name), "{name} is not a call that acts");
        }
    }

    #[test]
    fn what_reads_has_a_verb_that_says_so() {
        let set = FileDescriptorSet::decode(DESCRIPTORS).unwrap();
        let verbs = ["Get", "List", "Watch", "Stream", "Explain", "Preview"];
        for (name, method) in set.file.iter().flat_map(methods) {
            let verb = verbs.iter().any(|verb| method.name().starts_with(verb));
            let verb = verb || method.name() == "CheckDatabase";
            assert_eq!(only_reads(method), verb, "{name}");
        }
    }
}
