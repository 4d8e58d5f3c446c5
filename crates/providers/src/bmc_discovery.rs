//! Discovers and tests BMCs that may belong to no registered machine.
//!
//! Nothing is changed on the BMC. A refused login is recorded as a lockout and not repeated.

use crate::http_client::Trust;
use crate::power::PowerState;
use crate::redfish::SystemSelector;
use async_trait::async_trait;
use model::fault::{Fault, Result};
use model::machine::matcher::DiscoveredMachine;

/// The address of a BMC, and the credential and trust for it.
#[derive(Debug, Clone, Default)]
pub struct BmcAccess {
    pub endpoint: String,
    /// The name of the credential. Empty: the configured one.
    pub credential: String,
    /// The proof of identity that the BMC must give. None: as configured.
    pub trust: Option<Trust>,
    /// Selects one of the systems behind the BMC.
    pub selector: SystemSelector,
}

macro_rules! steps {
    ($($variant:ident = $word:literal, $ability:expr;)*) => {
        /// The checks of a BMC, in this order.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum BmcCheck { $($variant,)* }

        impl BmcCheck {
            pub const ALL: &'static [BmcCheck] = &[$(BmcCheck::$variant,)*];

            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }

            /// The ability of Farrier that a successful check shows; None for a prerequisite.
            pub const fn ability(self) -> Option<&'static str> {
                match self { $(Self::$variant => $ability,)* }
            }
        }
    };
}

steps! {
    Address = "address", None;
    Name = "name", None;
    Port = "port", None;
    Tls = "TLS", None;
    Root = "service", None;
    Login = "login", None;
    Systems = "systems", None;
    Power = "power", Some("see whether it is on");
    Resets = "resets", Some("switch it on and off");
    Boot = "boot", Some("boot it from the network");
    Media = "virtual media", Some("put an image into its virtual drive");
    Bios = "BIOS settings", Some("read and set its BIOS");
    Update = "firmware updates", Some("update its firmware");
    Tasks = "tasks", Some("follow its BMC's tasks");
    Log = "event log", Some("read its event log");
    Sensors = "sensors", Some("see its health");
    Quirks = "quirks", None;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckOutcome {
    Ok,
    Cannot,
    NotTried,
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckResult {
    pub check: BmcCheck,
    pub outcome: CheckOutcome,
    pub message: String,
}

/// The results of all checks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BmcTestReport {
    pub findings: Vec<CheckResult>,
    /// The system that a machine with this address would use.
    pub chosen: Option<DiscoveredMachine>,
    /// The fault that ended the test early.
    pub ended_by: Option<Fault>,
}

impl BmcTestReport {
    pub fn record(&mut self, step: BmcCheck, reported: Result<String>) {
        let (classification, text) = match reported {
            Ok(text) => (CheckOutcome::Ok, text),
            Err(fault) => (CheckOutcome::Cannot, fault.to_string()),
        };
        self.findings.push(CheckResult { check: step, outcome: classification, message: text });
    }

    /// Records why a check was not made.
    pub fn skip(&mut self, step: BmcCheck, text: &str) {
        self.findings.push(CheckResult {
            check: step,
            outcome: CheckOutcome::NotTried,
            message: text.into(),
        });
    }

    /// Records a check that the later ones depend on. False: the test ends here.
    pub fn require(&mut self, step: BmcCheck, reported: Result<String>) -> bool {
        match reported {
            Ok(message) => self.record(step, Ok(message)),
            Err(fault) => self.end(step, fault),
        }
        self.ended_by.is_none()
    }

    /// Records the check that ends the test.
    pub fn end(&mut self, step: BmcCheck, fault: Fault) {
        self.ended_by = Some(fault.clone());
        self.record(step, Err(fault));
    }

    /// Adds the checks that were not made, with the reason, in the order of `BmcCheck::ALL`.
    pub fn add_missing_checks(&mut self) {
        let text = match self.findings.iter().rev().find(|one| one.outcome == CheckOutcome::Cannot)
        {
            Some(last) if self.ended_by.is_some() => format!("{} comes first", last.check.as_str()),
            Some(_) | None => "there is no such thing here".into(),
        };
        for step in BmcCheck::ALL {
            if !self.findings.iter().any(|one| one.check == *step) {
                let text = text.clone();
                self.findings.push(CheckResult {
                    check: *step,
                    outcome: CheckOutcome::NotTried,
                    message: text,
                });
            }
        }
        let position = |one: &CheckResult| BmcCheck::ALL.iter().position(|step| *step == one.check);
        self.findings.sort_by_key(position);
    }

    fn has(&self, step: BmcCheck, classification: CheckOutcome) -> bool {
        self.findings.iter().any(|one| one.check == step && one.outcome == classification)
    }

    /// True if Farrier can manage a machine through this BMC.
    pub fn usable(&self) -> bool {
        self.ended_by.is_none()
            && self.chosen.is_some()
            && self.has(BmcCheck::Power, CheckOutcome::Ok)
    }

    /// One sentence about what Farrier can do with the BMC.
    pub fn summary(&self) -> String {
        if let Some(fault) = &self.ended_by {
            return format!("Farrier cannot work with this BMC: {fault}");
        }
        let abilities = |classification| {
            let of = |step: &&BmcCheck| self.has(**step, classification);
            BmcCheck::ALL.iter().filter(of).filter_map(|step| step.ability()).collect::<Vec<_>>()
        };
        let reported = |words: Vec<&str>| words.join(", ");
        match (abilities(CheckOutcome::Ok), abilities(CheckOutcome::Cannot)) {
            (can, _) if can.is_empty() => "Farrier can do nothing with this BMC".into(),
            (can, cannot) if cannot.is_empty() => format!("Farrier can {}", reported(can)),
            (can, cannot) => {
                format!("Farrier can {}; it cannot {}", reported(can), reported(cannot))
            }
        }
    }
}

/// A discovered system and its power state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscoveredSystem {
    pub system: DiscoveredMachine,
    pub power: Option<PowerState>,
}

/// The result of probing one address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BmcProbeResult {
    /// Nothing answers at the address.
    NoAnswer(String),
    Found(Vec<DiscoveredSystem>),
    Failed(Fault),
}

#[async_trait]
pub trait BmcDiscovery: Send + Sync {
    /// The name of the BMC in pins and lockouts: protocol and address.
    fn peer(&self, endpoint: &str) -> Result<String>;

    /// The name of the credential for a BMC: this one, or the configured one if it is empty.
    async fn credential(&self, name: &str) -> Result<String>;

    /// Tests what a BMC supports. Changes nothing on it and pins no identity.
    async fn test_bmc(&self, approach: &BmcAccess) -> BmcTestReport;

    /// Lists the systems at an address.
    async fn discover(&self, endpoint: &str, credential: &str) -> BmcProbeResult;
}
