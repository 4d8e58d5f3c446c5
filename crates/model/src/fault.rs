//! Faults: what went wrong while work was being done.
//!
//! Every fault has a code with a page under `docs/faults`, a class that decides whether the work is
//! retried, and a sentence from the component that noticed it. The code also says whether the
//! effect may have happened in spite of the fault; if it may have, the only legal follow-up is a
//! read-back.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The permitted reaction to a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// A retry may help.
    Retryable,
    /// An operator must decide before anything else happens.
    NeedsIntervention,
    /// The request itself is wrong; repeating it unchanged fails again.
    Rejected,
    /// Farrier or a provider broke its own rules.
    Bug,
}

impl Class {
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
    ($($variant:ident = $name:literal, $class:ident, $happened:ident;)*) => {
        /// Every fault code.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum Code { $($variant,)* }

        impl Code {
            pub const ALL: &'static [Code] = &[$(Code::$variant,)*];

            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            pub const fn class(self) -> Class {
                match self { $(Self::$variant => Class::$class,)* }
            }

            /// True if the effect may have happened in spite of the fault.
            pub const fn happened(self) -> Happened {
                match self { $(Self::$variant => Happened::$happened,)* }
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
    BmcUnreachable = "bmc-unreachable", Retryable, No;
    BmcBusy = "bmc-busy", Retryable, No;
    BmcGarbled = "bmc-garbled", Retryable, No;
    HostUnreachable = "host-unreachable", Retryable, No;
    ClusterUnreachable = "cluster-unreachable", Retryable, No;
    DatabaseUnreachable = "database-unreachable", Retryable, No;
    MaasUnreachable = "maas-unreachable", Retryable, No;
    MaasBusy = "maas-busy", Retryable, No;
    EffectFailed = "effect-failed", Retryable, No;
    ReadBackDiffers = "read-back-differs", Retryable, No;
    CommandFailed = "command-failed", Retryable, No;
    NotInCluster = "not-in-cluster", Retryable, No;
    EvictionBlocked = "eviction-blocked", Retryable, No;
    AnswerLost = "answer-lost", Retryable, Maybe;
    AnswerGarbled = "answer-garbled", Retryable, Maybe;
    TaskLost = "task-lost", Retryable, Maybe;
    StepTimeout = "step-timeout", Retryable, Maybe;
    OutcomeUnknown = "outcome-unknown", NeedsIntervention, Maybe;
    NotAdoptable = "not-adoptable", NeedsIntervention, No;
    FrozenByOperator = "frozen-by-operator", NeedsIntervention, No;
    UndoFailed = "undo-failed", NeedsIntervention, No;
    PartFailed = "part-failed", NeedsIntervention, No;
    FirmwareUnknown = "firmware-unknown", Rejected, No;
    CapabilityMissing = "capability-missing", Rejected, No;
    NotSupported = "not-supported", Rejected, No;
    LoginRefused = "login-refused", NeedsIntervention, No;
    IdentityChanged = "identity-changed", NeedsIntervention, No;
    IdentityUntrusted = "identity-untrusted", NeedsIntervention, No;
    CredentialMissing = "credential-missing", NeedsIntervention, No;
    SystemAmbiguous = "system-ambiguous", NeedsIntervention, No;
    HostDiskFull = "host-disk-full", NeedsIntervention, No;
    ImageUnknown = "image-unknown", Rejected, No;
    NetbootSilent = "netboot-silent", Retryable, No;
    DeploySilent = "deploy-silent", Retryable, No;
    ChecksumWrong = "checksum-wrong", Retryable, No;
    DiskUnfit = "disk-unfit", NeedsIntervention, No;
    InstallFailed = "install-failed", NeedsIntervention, No;
    SystemNotBack = "system-not-back", NeedsIntervention, No;
    FirmwareUnfetched = "firmware-unfetched", Retryable, No;
    FirmwareFailed = "firmware-failed", Retryable, No;
    FirmwareDiffers = "firmware-differs", NeedsIntervention, No;
    FabricFailed = "fabric-failed", Retryable, No;
    CandidatesConflict = "candidates-conflict", NeedsIntervention, No;
    BootDiskMissing = "boot-disk-missing", NeedsIntervention, No;
    PxeInterfaceUnfixable = "pxe-interface-unfixable", NeedsIntervention, No;
    CommissioningFailed = "commissioning-failed", Retryable, No;
    DeployFailed = "deploy-failed", Retryable, No;
    DatasourceFailed = "datasource-failed", NeedsIntervention, No;
    HardwareSyncFailed = "hardware-sync-failed", NeedsIntervention, No;
    StateDisagrees = "state-disagrees", NeedsIntervention, No;
    SiteUnfit = "site-unfit", NeedsIntervention, No;
    AgentSilent = "agent-silent", Retryable, No;
    SeedFailed = "seed-failed", NeedsIntervention, No;
    TaskFailed = "task-failed", Retryable, No;
    NodeNotClean = "node-not-clean", NeedsIntervention, No;
    MaasRefused = "maas-refused", NeedsIntervention, No;
    MaasMachineGone = "maas-machine-gone", NeedsIntervention, No;
    MachineGone = "machine-gone", Rejected, No;
    ForeignEngine = "foreign-engine", NeedsIntervention, No;
    ProviderMissing = "provider-missing", NeedsIntervention, No;
    WorkerPanicked = "worker-panicked", Bug, Maybe;
    ProtocolBroken = "protocol-broken", Bug, Maybe;
    RecordUnreadable = "record-unreadable", Bug, No;
}

impl Code {
    /// True if the peer could not be reached, did not accept the call or answered garbage. Such a
    /// fault says nothing about work in progress.
    pub const fn unseen(self) -> bool {
        matches!(
            self,
            Self::BmcUnreachable
                | Self::BmcBusy
                | Self::BmcGarbled
                | Self::HostUnreachable
                | Self::ClusterUnreachable
                | Self::DatabaseUnreachable
                | Self::MaasUnreachable
                | Self::MaasBusy
        )
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.as_str() == name)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Happened {
    No,
    Maybe,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    pub code: Code,
    /// One sentence, from the device or from Farrier.
    pub said: String,
}

impl Fault {
    pub fn new(code: Code, said: impl Into<String>) -> Self {
        Self { code, said: said.into() }
    }

    pub const fn class(&self) -> Class {
        self.code.class()
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.said, self.code.as_str())
    }
}

impl std::error::Error for Fault {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_page_that_says_what_to_do() {
        for code in Code::ALL {
            let page = code.page();
            let title = format!("# {}", code.as_str());
            assert!(page.starts_with(&title), "{} must begin with {title:?}", code.as_str());
            assert!(page.contains("## What to do"), "{} says nothing to do", code.as_str());
            assert_eq!(Code::parse(code.as_str()), Some(*code));
        }
    }
}
