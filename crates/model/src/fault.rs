//! Faults: what went wrong while work was being done.
//!
//! Every fault has a code with a page under `docs/faults`, a class that decides whether the work is
//! retried, and a sentence from the component that noticed it. The code also says whether the
//! effect may have happened in spite of the fault; if it may have, the only legal follow-up is a
//! read-back.

mod facts;
pub mod repair;

pub use facts::FaultFacts;
pub use repair::{Incident, Repair};

use serde::{Deserialize, Serialize};
use std::fmt;

/// The permitted reaction to a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultClass {
    /// A retry may help.
    Retryable,
    /// An operator must decide before anything else happens.
    NeedsIntervention,
    /// The request itself is wrong; repeating it unchanged fails again.
    Rejected,
    /// Farrier or a provider broke its own rules.
    Bug,
}

impl FaultClass {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Retryable => "retryable",
            Self::NeedsIntervention => "needs-intervention",
            Self::Rejected => "rejected",
            Self::Bug => "bug",
        }
    }
}

macro_rules! codes {
    ($($variant:ident = $name:literal, $class:ident, $outcome:ident;)*) => {
        /// Every fault code.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum FaultCode { $($variant,)* }

        impl FaultCode {
            pub const ALL: &'static [FaultCode] = &[$(FaultCode::$variant,)*];

            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            pub const fn class(self) -> FaultClass {
                match self { $(Self::$variant => FaultClass::$class,)* }
            }

            /// Says if the effect was certainly not applied, or may have happened.
            pub const fn effect_outcome(self) -> EffectOutcome {
                match self { $(Self::$variant => EffectOutcome::$outcome,)* }
            }

            /// The page of the code: its meaning and the remedy, as Markdown.
            pub const fn page(self) -> &'static str {
                match self {
                    $(Self::$variant => include_str!(concat!("../../../docs/faults/", $name, ".md")),)*
                }
            }
        }
    };
}

codes! {
    BmcUnreachable = "bmc-unreachable", Retryable, NotApplied;
    BmcBusy = "bmc-busy", Retryable, NotApplied;
    BmcGarbled = "bmc-garbled", Retryable, NotApplied;
    HostUnreachable = "host-unreachable", Retryable, NotApplied;
    ClusterUnreachable = "cluster-unreachable", Retryable, NotApplied;
    DatabaseUnreachable = "database-unreachable", Retryable, NotApplied;
    LocalResources = "local-resources", Retryable, NotApplied;
    MaasUnreachable = "maas-unreachable", Retryable, NotApplied;
    MaasBusy = "maas-busy", Retryable, NotApplied;
    MaasFailed = "maas-failed", Retryable, NotApplied;
    EffectFailed = "effect-failed", Retryable, NotApplied;
    ReadBackDiffers = "read-back-differs", Retryable, NotApplied;
    CommandFailed = "command-failed", Retryable, NotApplied;
    NotInCluster = "not-in-cluster", Retryable, NotApplied;
    EvictionBlocked = "eviction-blocked", Retryable, NotApplied;
    AnswerLost = "answer-lost", Retryable, Unknown;
    AnswerGarbled = "answer-garbled", Retryable, Unknown;
    TaskLost = "task-lost", Retryable, Unknown;
    StepTimeout = "step-timeout", Retryable, Unknown;
    OutcomeUnknown = "outcome-unknown", NeedsIntervention, Unknown;
    NotAdoptable = "not-adoptable", NeedsIntervention, NotApplied;
    FrozenByOperator = "frozen-by-operator", NeedsIntervention, NotApplied;
    UndoFailed = "undo-failed", NeedsIntervention, NotApplied;
    PartFailed = "part-failed", NeedsIntervention, NotApplied;
    FirmwareUnknown = "firmware-unknown", Rejected, NotApplied;
    CapabilityMissing = "capability-missing", Rejected, NotApplied;
    NotSupported = "not-supported", Rejected, NotApplied;
    LoginRefused = "login-refused", NeedsIntervention, NotApplied;
    IdentityChanged = "identity-changed", NeedsIntervention, NotApplied;
    IdentityUntrusted = "identity-untrusted", NeedsIntervention, NotApplied;
    CredentialMissing = "credential-missing", NeedsIntervention, NotApplied;
    CredentialNotAllowed = "credential-not-allowed", NeedsIntervention, NotApplied;
    SystemAmbiguous = "system-ambiguous", NeedsIntervention, NotApplied;
    HostDiskFull = "host-disk-full", NeedsIntervention, NotApplied;
    ImageUnknown = "image-unknown", Rejected, NotApplied;
    NetbootSilent = "netboot-silent", Retryable, NotApplied;
    DeploySilent = "deploy-silent", Retryable, NotApplied;
    ChecksumWrong = "checksum-wrong", Retryable, NotApplied;
    DiskUnfit = "disk-unfit", NeedsIntervention, NotApplied;
    InstallFailed = "install-failed", NeedsIntervention, NotApplied;
    SystemNotBack = "system-not-back", NeedsIntervention, NotApplied;
    FirmwareUnfetched = "firmware-unfetched", Retryable, NotApplied;
    FirmwareFailed = "firmware-failed", Retryable, NotApplied;
    FirmwareDiffers = "firmware-differs", NeedsIntervention, NotApplied;
    FabricFailed = "fabric-failed", Retryable, NotApplied;
    CandidatesConflict = "candidates-conflict", NeedsIntervention, NotApplied;
    BootDiskMissing = "boot-disk-missing", NeedsIntervention, NotApplied;
    PxeInterfaceUnfixable = "pxe-interface-unfixable", NeedsIntervention, NotApplied;
    CommissioningFailed = "commissioning-failed", Retryable, NotApplied;
    DeployFailed = "deploy-failed", Retryable, NotApplied;
    DatasourceFailed = "datasource-failed", NeedsIntervention, NotApplied;
    HardwareSyncFailed = "hardware-sync-failed", NeedsIntervention, NotApplied;
    StateDisagrees = "state-disagrees", NeedsIntervention, NotApplied;
    SiteUnfit = "site-unfit", NeedsIntervention, NotApplied;
    AgentSilent = "agent-silent", Retryable, NotApplied;
    SeedFailed = "seed-failed", NeedsIntervention, NotApplied;
    TaskFailed = "task-failed", Retryable, NotApplied;
    NodeNotClean = "node-not-clean", NeedsIntervention, NotApplied;
    MaasRefused = "maas-refused", NeedsIntervention, NotApplied;
    MaasMachineGone = "maas-machine-gone", NeedsIntervention, NotApplied;
    MachineGone = "machine-gone", Rejected, NotApplied;
    ForeignEngine = "foreign-engine", NeedsIntervention, NotApplied;
    ProviderMissing = "provider-missing", NeedsIntervention, NotApplied;
    WorkerPanicked = "worker-panicked", Bug, Unknown;
    ProtocolBroken = "protocol-broken", Bug, Unknown;
    RecordUnreadable = "record-unreadable", Bug, NotApplied;
}

impl FaultCode {
    /// True if the peer could not be reached, did not accept the call or answered garbage. Such a
    /// fault says nothing about work in progress.
    pub const fn peer_unreachable(self) -> bool {
        matches!(
            self,
            Self::BmcUnreachable
                | Self::BmcBusy
                | Self::BmcGarbled
                | Self::HostUnreachable
                | Self::ClusterUnreachable
                | Self::DatabaseUnreachable
                | Self::LocalResources
                | Self::MaasUnreachable
                | Self::MaasBusy
        )
    }

    /// True if Farrier itself could not make the call. Such a fault says nothing about the peer: it
    /// is no condition of a device, and no failure of its BMC.
    pub const fn is_local(self) -> bool {
        matches!(self, Self::DatabaseUnreachable | Self::LocalResources)
    }

    /// True if the peer has refused the call because it is busy for minutes, such as a MAAS that
    /// syncs its images. A repetition is harmless.
    pub const fn peer_busy(self) -> bool {
        matches!(self, Self::MaasBusy)
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.as_str() == name)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EffectOutcome {
    NotApplied,
    Unknown,
}

/// A result whose error is a fault.
pub type Result<T, E = Fault> = std::result::Result<T, E>;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    pub code: FaultCode,
    /// One sentence, from the device or from Farrier.
    #[serde(rename = "said")]
    pub message: String,
    /// The arguments of its repair. A fault of an older version has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub facts: Option<Box<FaultFacts>>,
}

impl Fault {
    pub fn new(code: FaultCode, text: impl Into<String>) -> Self {
        Self { code, message: text.into(), facts: None }
    }

    /// The facts of the incident; all unknown if none were recorded.
    pub fn facts(&self) -> &FaultFacts {
        self.facts.as_deref().unwrap_or(FaultFacts::UNKNOWN)
    }

    /// Records facts of the incident.
    #[must_use]
    pub fn with(mut self, record: impl FnOnce(&mut FaultFacts)) -> Self {
        let mut facts = self.facts.take().unwrap_or_default();
        record(&mut facts);
        self.facts = Some(facts).filter(|facts| facts.as_ref() != FaultFacts::UNKNOWN);
        self
    }

    /// Records the credential and the peer, unless they are known.
    #[must_use]
    pub fn at_peer(self, peer: &str, credential: Option<&str>) -> Self {
        self.with(|facts| {
            facts.peer.get_or_insert_with(|| peer.into());
            if let Some(name) = credential {
                facts.credential.get_or_insert_with(|| name.into());
            }
        })
    }

    /// The same incident under another code and message.
    #[must_use]
    pub fn restated(self, code: FaultCode, text: impl Into<String>) -> Self {
        Self { code, message: text.into(), facts: self.facts }
    }

    pub const fn class(&self) -> FaultClass {
        self.code.class()
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.code.as_str())
    }
}

impl std::error::Error for Fault {}
