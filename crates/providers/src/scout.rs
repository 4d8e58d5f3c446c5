//! Discovers and tests BMCs that may belong to no registered machine.
//!
//! Nothing is changed on the BMC. A refused login is recorded as a lockout and not repeated.

use crate::http_client::Trust;
use crate::power::PowerState;
use crate::redfish::Wanted;
use async_trait::async_trait;
use model::fault::Fault;
use model::machine::roster::Sighting;

/// How to reach a BMC.
#[derive(Debug, Clone, Default)]
pub struct Approach {
    pub endpoint: String,
    /// The name of the credential. Empty: the configured one.
    pub credential: String,
    /// How the BMC must prove its identity. None: as configured.
    pub trust: Option<Trust>,
    /// Selects one of the systems behind the BMC.
    pub wanted: Wanted,
}

macro_rules! steps {
    ($($variant:ident = $word:literal, $ability:expr;)*) => {
        /// The checks of a BMC, in this order.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Step { $($variant,)* }

        impl Step {
            pub const ALL: &'static [Step] = &[$(Step::$variant,)*];

            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }

            /// What Farrier can do when the check succeeds; None for a prerequisite.
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
pub enum Verdict {
    Ok,
    Cannot,
    NotTried,
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub step: Step,
    pub verdict: Verdict,
    pub said: String,
}

/// The results of all checks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    pub findings: Vec<Finding>,
    /// The system that a machine with this address would use.
    pub chosen: Option<Sighting>,
    /// The fault that ended the test early.
    pub ended_by: Option<Fault>,
}

impl Report {
    pub fn note(&mut self, step: Step, told: Result<String, Fault>) {
        let (verdict, said) = match told {
            Ok(said) => (Verdict::Ok, said),
            Err(fault) => (Verdict::Cannot, fault.to_string()),
        };
        self.findings.push(Finding { step, verdict, said });
    }

    /// Records why a check was not made.
    pub fn skip(&mut self, step: Step, said: &str) {
        self.findings.push(Finding { step, verdict: Verdict::NotTried, said: said.into() });
    }

    /// Records a check that the later ones depend on. False: the test ends here.
    pub fn needs(&mut self, step: Step, told: Result<String, Fault>) -> bool {
        match told {
            Ok(said) => self.note(step, Ok(said)),
            Err(fault) => self.end(step, fault),
        }
        self.ended_by.is_none()
    }

    /// Records the check that ends the test.
    pub fn end(&mut self, step: Step, fault: Fault) {
        self.ended_by = Some(fault.clone());
        self.note(step, Err(fault));
    }

    /// Adds the checks that were not made, with the reason, in the order of `BmcCheck::ALL`.
    pub fn close(&mut self) {
        let said = match self.findings.iter().rev().find(|one| one.verdict == Verdict::Cannot) {
            Some(last) if self.ended_by.is_some() => format!("{} comes first", last.step.as_str()),
            Some(_) | None => "there is no such thing here".into(),
        };
        for step in Step::ALL {
            if !self.findings.iter().any(|one| one.step == *step) {
                let said = said.clone();
                self.findings.push(Finding { step: *step, verdict: Verdict::NotTried, said });
            }
        }
        let place = |one: &Finding| Step::ALL.iter().position(|step| *step == one.step);
        self.findings.sort_by_key(place);
    }

    fn is(&self, step: Step, verdict: Verdict) -> bool {
        self.findings.iter().any(|one| one.step == step && one.verdict == verdict)
    }

    /// Whether Farrier can manage a machine through this BMC.
    pub fn usable(&self) -> bool {
        self.ended_by.is_none() && self.chosen.is_some() && self.is(Step::Power, Verdict::Ok)
    }

    /// One sentence about what Farrier can do with the BMC.
    pub fn summary(&self) -> String {
        if let Some(fault) = &self.ended_by {
            return format!("Farrier cannot work with this BMC: {fault}");
        }
        let abilities = |verdict| {
            let of = |step: &&Step| self.is(**step, verdict);
            Step::ALL.iter().filter(of).filter_map(|step| step.ability()).collect::<Vec<_>>()
        };
        let told = |words: Vec<&str>| words.join(", ");
        match (abilities(Verdict::Ok), abilities(Verdict::Cannot)) {
            (can, _) if can.is_empty() => "Farrier can do nothing with this BMC".into(),
            (can, cannot) if cannot.is_empty() => format!("Farrier can {}", told(can)),
            (can, cannot) => format!("Farrier can {}; it cannot {}", told(can), told(cannot)),
        }
    }
}

/// A discovered system and its power state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub sighting: Sighting,
    pub power: Option<PowerState>,
}

/// The result of probing one address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Survey {
    /// Nothing answers at the address.
    Nobody(String),
    Found(Vec<Found>),
    Failed(Fault),
}

#[async_trait]
pub trait Scout: Send + Sync {
    /// The name of the BMC in pins and lockouts: protocol and address.
    fn peer(&self, endpoint: &str) -> Result<String, Fault>;

    /// The name of the credential for a BMC: this one, or the configured one if it is empty.
    async fn credential(&self, name: &str) -> Result<String, Fault>;

    /// Tests what a BMC supports. Changes nothing on it and pins no identity.
    async fn test(&self, approach: &Approach) -> Report;

    /// Lists the systems at an address.
    async fn survey(&self, endpoint: &str, credential: &str) -> Survey;
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::fault::Code;

    fn fault() -> Fault {
        Fault::new(Code::NotSupported, "no")
    }

    #[test]
    fn what_was_not_tried_is_said() {
        let mut report = Report::default();
        assert!(report.needs(Step::Name, Ok("h".into())));
        assert!(!report.needs(Step::Port, Err(Fault::new(Code::BmcUnreachable, "closed"))));
        report.close();
        assert_eq!(report.findings.len(), Step::ALL.len());
        let login = &report.findings[5];
        assert_eq!((login.step, login.verdict), (Step::Login, Verdict::NotTried));
        assert_eq!(login.said, "port comes first");
        assert!(!report.usable());
        let said = "Farrier cannot work with this BMC: closed (bmc-unreachable)";
        assert_eq!(report.summary(), said);
    }

    #[test]
    fn the_end_says_what_can_be_done() {
        let mut report = Report { chosen: Some(Sighting::default()), ..Report::default() };
        assert!(!report.usable());
        assert_eq!(report.summary(), "Farrier can do nothing with this BMC");
        report.note(Step::Power, Ok("On".into()));
        assert!(report.usable());
        assert_eq!(report.summary(), "Farrier can see whether it is on");
        report.note(Step::Bios, Err(fault()));
        report.close();
        let said = "Farrier can see whether it is on; it cannot read and set its BIOS";
        assert_eq!(report.summary(), said);
        assert_eq!(report.findings[0].said, "there is no such thing here");
    }
}
