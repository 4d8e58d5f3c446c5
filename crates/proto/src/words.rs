//! The words for the values of Farrier's own enums: the names of the documents, which people read
//! and filters take, such as `active` for `NODE_STATE_ACTIVE`.
//!
//! A value's number is the position of its word, counted from 1; 0 is always unspecified. So a new
//! value is appended. A test compares this table with the proto files.

use crate::v1;

/// An enum whose values have words.
pub trait WireEnum: Copy + Into<i32> {
    /// The full name of the enum.
    const NAME: &'static str;
    const WORDS: &'static [&'static str];

    /// Its word; empty for unspecified.
    fn word(self) -> &'static str {
        word_in(Self::WORDS, self.into())
    }
}

/// The number of a word; 0, which is unspecified, for any other text.
pub fn value<E: WireEnum>(word: &str) -> i32 {
    let at = E::WORDS.iter().position(|known| *known == word);
    at.and_then(|at| i32::try_from(at + 1).ok()).unwrap_or_default()
}

/// The word of a number; empty for 0 and for a number that this version does not know.
pub fn word<E: WireEnum>(value: i32) -> &'static str {
    word_in(E::WORDS, value)
}

/// The words of the enum with this full name. None: its values are named by their proto names.
pub fn words_of(name: &str) -> Option<&'static [&'static str]> {
    TABLE.iter().find(|(known, _)| *known == name).map(|(_, words)| *words)
}

/// The word of a number in a list of words.
pub fn word_in(words: &'static [&'static str], value: i32) -> &'static str {
    let at = usize::try_from(value).ok().and_then(|value| value.checked_sub(1));
    at.and_then(|at| words.get(at)).copied().unwrap_or_default()
}

macro_rules! words {
    ($($name:ident: $($word:literal)+;)*) => {
        $(impl WireEnum for v1::$name {
            const NAME: &'static str = concat!("farrier.v1.", stringify!($name));
            const WORDS: &'static [&'static str] = &[$($word),+];
        })*

        /// Every enum with words.
        pub const TABLE: &[(&str, &[&str])] = &[
            $((<v1::$name as WireEnum>::NAME, <v1::$name as WireEnum>::WORDS),)*
        ];
    };
}

words! {
    ApprovalState: "pending" "approved" "denied" "used" "expired" "break-glass" "reviewed";
    AuthMethod: "token" "session" "certificate" "oidc";
    ClusterExpectation: "READY" "DRAINED";
    CredentialKind: "password" "ssh-key" "kubeconfig" "maas-key";
    DecommissionMode: "soft_reset" "reimage" "full_decommission" "storage_cleanup";
    DesiredPower: "ON" "OFF";
    DeviceState: "Created" "Initializing" "FetchingData" "Configuring" "Validating" "Ready"
        "ReProvisioning" "Maintenance" "Error" "Deleting";
    DeviceWork: "firmware" "read" "configure" "check" "fabric";
    FaultClass: "retryable" "needs-intervention" "rejected" "bug";
    HardwareHealth: "OK" "Warning" "Critical" "Unknown";
    AttentionUrgency: "may_be_damaged" "stopped" "out_of_service" "overdue" "degraded";
    HistoryCause: "request" "engine" "probe" "admin";
    HostState: "Ready" "CheckingFirmwareV2" "WaitingForRackFirmwareUpgrade" "FailedFirmwareUpgrade";
    ImageKind: "raw" "qcow2" "tar" "kernel" "iso";
    NodeState: "bootstrap_issued" "enrolling" "active" "offline" "quarantined" "draining" "retired"
        "removing" "deleted";
    NodeTransitionOwner: "admin" "onboarding" "decommission" "heartbeat" "reconciler" "operator";
    NodeWorkflow: "onboarding" "soft_reset" "reimage" "full_decommission" "storage_cleanup" "drain"
        "retire" "reactivate";
    NoticeKind: "operation-failed" "needs-person";
    NotifyFormat: "cloudevents" "slack" "pagerduty";
    ObjectKind: "machine" "operation" "rack" "switch" "power_shelf" "node" "site" "row"
        "credential" "approval" "audit_log" "notifier";
    Permission: "view" "operate" "inventory" "destroy" "power" "firmware" "execute" "trust"
        "credential-use" "credential-write" "simulate" "admin";
    PodDecision: "evict" "stay" "terminating" "blocked" "refused";
    PowerSequence: "on" "off" "reset";
    PowerState: "ON" "OFF" "CHANGING";
    ProviderVerb: "perform" "follow" "get_status" "observe" "stop";
    QuarantineCause: "drift" "onboarding" "cleanup" "operator";
    RackActivity: "FirmwareUpgrade" "ConfigureNmxCluster" "PowerSequence" "Validation";
    RackChildRunState: "WAITING" "PENDING" "RUNNING" "SUCCEEDED" "FAILED" "CANCELED";
    RackErrorPhase: "Discovery" "FirmwareUpgrade" "ConfigureNmxCluster" "PowerSequence"
        "Validation";
    RackMaintenanceStage: "FirmwareUpgrade" "ConfigureNmxCluster" "PowerSequence" "Completed";
    RackState: "Created" "Discovering" "Maintenance" "Validating" "Ready" "Error" "Deleting";
    ResumedTask: "fresh" "live" "requeued" "none";
    RmaActionKind: "RECORD" "POWER_OFF" "MARK";
    RowKind: "machine" "run" "plan" "rack" "switch" "power_shelf" "host" "node" "site"
        "credential" "identity" "image" "firmware" "health_report" "deployment" "task"
        "inspection";
    SimAction: "fail" "hang" "drop" "garbage" "slow" "twice";
    SiteState: "New" "Connected" "Unreachable" "CutOff";
    TargetKind: "machine" "switch" "power_shelf" "rack";
    TokenState: "valid" "expired" "revoked";
    WorkflowState: "pending" "running" "completed" "failed_retryable" "failed_manual_intervention"
        "cancelled" "compensating" "reconciled";
    WatchChange: "snapshot" "changed" "no_longer_matches" "deleted" "bookmark";
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;
    use prost_types::FileDescriptorSet;
    use prost_types::field_descriptor_proto::Type;

    /// `FetchingData` and `ssh-key` as `FETCHING_DATA` and `SSH_KEY`.
    fn upper_snake(word: &str) -> String {
        let mut name = String::new();
        let mut after_lower = false;
        for c in word.chars() {
            if c.is_ascii_uppercase() && after_lower {
                name.push('_');
            }
            after_lower = c.is_ascii_lowercase() || c.is_ascii_digit();
            name.push(if c == '-' { '_' } else { c.to_ascii_uppercase() });
        }
        name
    }

    #[test]
    fn the_words_are_the_values_of_the_proto_files() {
        let set = FileDescriptorSet::decode(crate::DESCRIPTORS).unwrap();
        let enums = set.file.iter().filter(|file| file.package() == "farrier.v1");
        let enums: Vec<_> = enums.flat_map(|file| &file.enum_type).collect();
        for (name, words) in TABLE {
            let short = name.trim_start_matches("farrier.v1.");
            let found = enums.iter().find(|found| found.name() == short).unwrap();
            let prefix = upper_snake(short);
            let expected = words.iter().enumerate().map(|(at, word)| {
                (format!("{prefix}_{}", upper_snake(word)), i32::try_from(at + 1).unwrap())
            });
            let expected: Vec<_> =
                std::iter::once((format!("{prefix}_UNSPECIFIED"), 0)).chain(expected).collect();
            let values = found.value.iter().map(|value| (value.name().to_string(), value.number()));
            assert_eq!(values.collect::<Vec<_>>(), expected, "{name}");
        }
    }

    /// Fields with the name of a state or a kind that are texts, each with the reason.
    const TEXTS: &[(&str, &str)] = &[
        ("Condition.type", "provisioning-api.md: string type"),
        ("Condition.reason", "provisioning-api.md: string reason"),
        ("Run.type", "provisioning-api.md: string type"),
        ("StartRunRequest.type", "provisioning-api.md: string type"),
        ("Reboot.mode", "provisioning-api.md: its plans write \"mode\": \"bmc\""),
        ("SetNetboot.mode", "provisioning-api.md: its plans write \"mode\": \"PXE\""),
        ("StepStatus.kind", "a field of Step, or a stage of maas-node-states.md"),
        ("Rack.hardware_type", "rack-maintenance.md: chosen by the operator"),
        ("Firmware.hardware_type", "rack-maintenance.md: chosen by the operator"),
        ("ComponentFirmwareVersions.hardware_type", "rack-maintenance.md: chosen by the operator"),
        ("ObservedMachine.state", "maas-node-states.md: MAAS owns it and may add others"),
        ("MemoryModule.kind", "Redfish names it"),
        ("HistoryEntry.state", "a state of any kind of object"),
        ("RackMaintenanceGate.reason", "the code of google.rpc.ErrorInfo, which is a string"),
        ("Approval.reason", "written by a person"),
        ("DeadLetter.type", "the type of a CloudEvent, which is a string"),
        ("AuditEntry.refusal_reason", "the code of google.rpc.ErrorInfo, which is a string"),
        ("Node.reason", "a sentence"),
        ("Explanation.degraded_reason", "a sentence"),
        ("GateOverride.reason", "written by a person"),
        ("RowSetAside.reason", "written by a person"),
    ];

    /// A closed set of ours is an enum. A reason in a request is written by a person.
    #[test]
    fn no_state_or_kind_is_a_text() {
        let set = FileDescriptorSet::decode(crate::DESCRIPTORS).unwrap();
        let files = set.file.iter().filter(|file| file.package() == "farrier.v1");
        let mut found = Vec::new();
        for message in files.flat_map(|file| &file.message_type) {
            for field in message.field.iter().filter(|one| one.r#type() == Type::String) {
                let last = field.name().rsplit('_').next().unwrap_or_default();
                let words = ["state", "mode", "status", "kind", "type", "reason"];
                let by_person = last == "reason" && message.name().ends_with("Request");
                if words.contains(&last) && !by_person {
                    found.push(format!("{}.{}", message.name(), field.name()));
                }
            }
        }
        let mut listed: Vec<String> = TEXTS.iter().map(|(name, _)| (*name).into()).collect();
        found.sort();
        listed.sort();
        assert_eq!(found, listed, "make it an enum, or list it with the document that says so");
    }

    #[test]
    fn a_word_and_its_number_belong_together() {
        assert_eq!(value::<v1::NodeState>("active"), v1::NodeState::Active as i32);
        assert_eq!(v1::NodeState::Active.word(), "active");
        assert_eq!(v1::NodeState::Unspecified.word(), "");
        assert_eq!(word::<v1::NodeState>(v1::NodeState::Active as i32), "active");
        assert_eq!(value::<v1::NodeState>("Active"), 0);
        for unknown in [0, -1, 99] {
            assert_eq!(word::<v1::NodeState>(unknown), "");
        }
        assert_eq!(words_of("farrier.v1.TargetKind").map(<[_]>::len), Some(4));
        assert_eq!(words_of("farrier.v1.OperationType"), None);
    }
}
