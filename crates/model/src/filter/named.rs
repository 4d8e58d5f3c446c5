//! The fields of lists that are filtered after their items were read: firmware, images, credentials
//! and others. An item gives the values of a field by the field's name.

use super::FilterSubject;
use crate::effect::CallVerb;
use crate::image::IMAGE_KINDS;
use crate::lifecycle::SubjectKind;
use crate::notify::{NoticeEvent, Severity};
use crate::target::TargetKind;

/// A field, and the values that it can have. Without values: any text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamedField {
    pub name: &'static str,
    pub values: &'static [&'static str],
}

/// An item of a list that is filtered by named fields.
pub trait FilterValues {
    /// The values of a field; several where the field is a list. Empty: the item has none.
    fn values_of(&self, field: &str) -> Vec<String>;

    /// The value of a label, where the items have labels.
    fn label(&self, _key: &str) -> Option<&String> {
        None
    }
}

const BOOL: &[&str] = &["true", "false"];
const TARGETS: &[&str] = &[
    TargetKind::Machine.as_str(),
    TargetKind::Switch.as_str(),
    TargetKind::PowerShelf.as_str(),
    TargetKind::Rack.as_str(),
];
const DEVICES: &[&str] =
    &[TargetKind::Machine.as_str(), TargetKind::Switch.as_str(), TargetKind::PowerShelf.as_str()];
const VERBS: &[&str] = &[
    CallVerb::Perform.as_str(),
    CallVerb::Follow.as_str(),
    CallVerb::GetStatus.as_str(),
    CallVerb::Observe.as_str(),
    CallVerb::Stop.as_str(),
];
/// The kinds of credentials.
const CREDENTIALS: &[&str] = &["password", "ssh-key", "kubeconfig", "maas-key"];
/// The causes of a change in a history.
const CAUSES: &[&str] = &["request", "engine", "probe", "admin"];
const NOTICE_TYPES: &[&str] = &[
    NoticeEvent::OperationFailed.as_str(),
    NoticeEvent::PersonNeeded.as_str(),
    NoticeEvent::PersonNoLongerNeeded.as_str(),
];
const SEVERITIES: &[&str] = &[
    Severity::Critical.as_str(),
    Severity::Error.as_str(),
    Severity::Warning.as_str(),
    Severity::Info.as_str(),
];
/// The kinds of objects that a notice can be about.
const NOTICE_KINDS: &[&str] = &[
    "operation",
    TargetKind::Machine.as_str(),
    SubjectKind::Rack.as_str(),
    SubjectKind::Switch.as_str(),
    SubjectKind::PowerShelf.as_str(),
    SubjectKind::Node.as_str(),
    SubjectKind::Site.as_str(),
];
/// The actions of a fault rule of the simulator.
const ACTIONS: &[&str] = &["fail", "hang", "drop", "garbage", "slow", "twice"];

const fn text(name: &'static str) -> NamedField {
    NamedField { name, values: &[] }
}

const fn one_of(name: &'static str, values: &'static [&'static str]) -> NamedField {
    NamedField { name, values }
}

const HEALTH: &[NamedField] = &[
    text("id"),
    one_of("kind", TARGETS),
    text("source"),
    text("classification"),
    text("alert"),
    text("target"),
];
const FIRMWARE: &[NamedField] = &[
    text("firmware_id"),
    text("hardware_type"),
    one_of("is_default", BOOL),
    one_of("available", BOOL),
];
const FIRMWARE_HISTORY: &[NamedField] = &[
    text("device_id"),
    one_of("device_type", DEVICES),
    text("component"),
    text("version"),
    one_of("changed", BOOL),
    text("operation_id"),
];
const IMAGES: &[NamedField] = &[text("name"), one_of("kind", IMAGE_KINDS)];
const CREDENTIAL: &[NamedField] = &[text("name"), one_of("kind", CREDENTIALS), text("user")];
const IDENTITIES: &[NamedField] = &[text("peer")];
const HISTORY: &[NamedField] = &[one_of("cause", CAUSES), text("actor"), text("state")];
const REPLICAS: &[NamedField] = &[text("name"), text("version"), text("incarnation")];
const SIM_FAULTS: &[NamedField] = &[
    text("fault_id"),
    text("machine"),
    text("effect"),
    one_of("verb", VERBS),
    one_of("action", ACTIONS),
];
const SIM_EFFECTS: &[NamedField] =
    &[text("key"), text("run_id"), text("step"), text("machine"), text("effect")];
const COMPONENT_FIRMWARE: &[NamedField] =
    &[text("device_id"), one_of("device_type", DEVICES), text("hardware_type")];
const NOTICES: &[NamedField] = &[
    one_of("type", NOTICE_TYPES),
    one_of("severity", SEVERITIES),
    one_of("kind", NOTICE_KINDS),
    text("id"),
    text("target_id"),
    text("rack_id"),
    text("fault"),
];

impl FilterSubject {
    /// The named fields of the list. Empty for a list whose fields are in [`super::FilterField`].
    pub const fn named_fields(self) -> &'static [NamedField] {
        match self {
            Self::Health => HEALTH,
            Self::Firmware => FIRMWARE,
            Self::FirmwareHistory => FIRMWARE_HISTORY,
            Self::Image => IMAGES,
            Self::Credential => CREDENTIAL,
            Self::Identity => IDENTITIES,
            Self::History => HISTORY,
            Self::Replica => REPLICAS,
            Self::SimFault => SIM_FAULTS,
            Self::SimEffect => SIM_EFFECTS,
            Self::ComponentFirmware => COMPONENT_FIRMWARE,
            Self::Notice => NOTICES,
            Self::Machine
            | Self::Run
            | Self::Plan
            | Self::Rack
            | Self::Switch
            | Self::PowerShelf
            | Self::Node
            | Self::Site
            | Self::Selector => &[],
        }
    }
}
