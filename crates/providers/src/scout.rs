//! Finding out about a BMC that no machine may be registered for: what it can do, and what is behind it.
//!
//! Nothing is changed on it. A login that it refuses counts like any other: it is written down and not tried again.

use crate::http_client::Trust;
use crate::power::PowerState;
use crate::redfish::Wanted;
use async_trait::async_trait;
use model::fault::Fault;
use model::machine::roster::Sighting;

/// How to come to a BMC.
#[derive(Debug, Clone, Default)]
pub struct Approach {
    pub endpoint: String,
    /// The credential's name. Empty: the configured one.
    pub credential: String,
    /// Whom to believe that it is the BMC. None: as configured.
    pub trust: Option<Trust>,
    /// What is known of the machine that is meant.
    pub wanted: Wanted,
}

macro_rules! steps {
    ($($variant:ident = $word:literal, $ability:expr;)*) => {
        /// What is tried of a BMC, in this order.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Step { $($variant,)* }

        impl Step {
            pub const ALL: &'static [Step] = &[$(Step::$variant,)*];

            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }

            /// What Farrier can do where this holds; none for a step on the way.
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

/// What came of one step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub step: Step,
    pub verdict: Verdict,
    pub said: String,
}

/// What came of all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    pub findings: Vec<Finding>,
    /// The computer that would be chosen.
    pub chosen: Option<Sighting>,
    /// The fault that ended it early.
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

    /// Says why a step is not tried.
    pub fn skip(&mut self, step: Step, said: &str) {
        self.findings.push(Finding { step, verdict: Verdict::NotTried, said: said.into() });
    }

    /// Notes a step without which the others cannot be tried. False: it ends here.
    pub fn needs(&mut self, step: Step, told: Result<String, Fault>) -> bool {
        match told {
            Ok(said) => self.note(step, Ok(said)),
            Err(fault) => self.end(step, fault),
        }
        self.ended_by.is_none()
    }

    /// Notes the step that ends it.
    pub fn end(&mut self, step: Step, fault: Fault) {
        self.ended_by = Some(fault.clone());
        self.note(step, Err(fault));
    }

    /// Names what was not tried, so that nobody takes it for tried.
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

    /// Whether a machine can be worked with through this BMC.
    pub fn usable(&self) -> bool {
        self.ended_by.is_none() && self.chosen.is_some() && self.is(Step::Power, Verdict::Ok)
    }

    /// What Farrier can do with it, in a sentence.
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

/// A computer that was found, and its power.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub sighting: Sighting,
    pub power: Option<PowerState>,
}

/// What there is at an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Survey {
    /// Nobody answers there.
    Nobody(String),
    Found(Vec<Found>),
    Failed(Fault),
}

#[async_trait]
pub trait Scout: Send + Sync {
    /// What the BMC is called in trust and lockouts: how it is spoken to, and where.
    fn peer(&self, endpoint: &str) -> Result<String, Fault>;

    /// The credential that a BMC is logged in at with: this one, or the configured one.
    async fn credential(&self, name: &str) -> Result<String, Fault>;

    /// Tries out what a BMC can do, changing nothing on it and trusting nobody for the future.
    async fn test(&self, approach: &Approach) -> Report;

    /// Looks what is at an address.
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
