//! Windows and freezes: when operations may start.
//!
//! Both are rules over a part of the fleet. A machine is open if no window selects it, or at least
//! one that selects it is open, and no freeze selects it. An operation that takes machines out of
//! service starts only while all of them are open. What was started finishes.

mod verdict;
mod weekly;
mod zone;

pub use verdict::StartCheck;
pub use weekly::{WeeklyWindows, WindowState};
pub use zone::{Zone, ZonedInstant};

use crate::budget::machines_by_lasting_fields;
use crate::filter::{Filter, FilterValues};
use crate::gate::Gate;
use crate::id::{FreezeId, WindowId};
use crate::refusal::{Reason, Refusal};
use crate::text::check_reason;
use crate::time::{Timestamp, format_duration};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// The number of windows and freezes that may exist. Admission matches machines against all.
pub const MAX_RULES: usize = 200;
/// The longest freeze.
const MAX_FREEZE: Duration = Duration::from_secs(400 * 86_400);

/// A window or a freeze.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StartRuleKind {
    Window,
    Freeze,
}

/// The kind and the name of a window or a freeze.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StartRuleId {
    pub kind: StartRuleKind,
    pub name: String,
}

/// The operations that a window or a freeze holds back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HoldsFor {
    /// Those that rollouts start.
    #[default]
    Rollouts,
    Everything,
}

/// What keeps operations from starting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StartTerms {
    /// They start while one of these is open.
    Open(WeeklyWindows),
    /// None starts until then.
    Frozen { until: Timestamp, reason: String },
}

/// A window or a freeze: when operations may start on a part of the fleet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartRule {
    pub id: StartRuleId,
    pub filter: String,
    pub holds_for: HoldsFor,
    pub terms: StartTerms,
    pub created_by: String,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub version: i64,
}

impl StartRuleKind {
    pub const ALL: [Self; 2] = [Self::Window, Self::Freeze];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Window => "window",
            Self::Freeze => "freeze",
        }
    }

    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == word)
    }

    /// The gate of such a rule.
    pub const fn gate(self) -> Gate {
        match self {
            Self::Window => Gate::Window,
            Self::Freeze => Gate::Freeze,
        }
    }
}

impl StartRuleId {
    pub fn trusted(kind: StartRuleKind, name: &str) -> Self {
        Self { kind, name: name.into() }
    }

    pub fn parse_field(kind: StartRuleKind, name: &str, field: &str) -> Result<Self, Refusal> {
        let name = match kind {
            StartRuleKind::Window => WindowId::parse_field(name, field)?.to_string(),
            StartRuleKind::Freeze => FreezeId::parse_field(name, field)?.to_string(),
        };
        Ok(Self { kind, name })
    }

    /// The name of its history: `window/night`.
    pub fn history(&self) -> String {
        format!("{}/{}", self.kind.as_str(), self.name)
    }

    /// The command that shows it.
    pub fn show(&self) -> String {
        match self.kind {
            StartRuleKind::Window => format!("farrier window get {}", self.name),
            StartRuleKind::Freeze => "farrier freeze list".into(),
        }
    }
}

/// The word of its gate: `window:night`.
impl fmt::Display for StartRuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind.as_str(), self.name)
    }
}

impl HoldsFor {
    pub const ALL: [Self; 2] = [Self::Rollouts, Self::Everything];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rollouts => "rollouts",
            Self::Everything => "everything",
        }
    }

    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.as_str() == word)
    }

    /// True if it holds an operation back that a rollout starts, or one that another caller starts.
    pub const fn binds(self, by_rollout: bool) -> bool {
        match self {
            Self::Rollouts => by_rollout,
            Self::Everything => true,
        }
    }

    /// Empty: `default`.
    pub fn parse_field(field: &str, word: &str, default: Self) -> Result<Self, Refusal> {
        if word.is_empty() {
            return Ok(default);
        }
        Self::parse(word).ok_or_else(|| {
            let shown: String = word.chars().take(40).collect();
            Refusal::invalid(field, format!("is {shown:?}"), "write rollouts or everything")
        })
    }
}

impl StartRule {
    /// The machines that it selects, by fields that do not change while they work.
    pub fn parse_filter(&self) -> Result<Filter, Refusal> {
        let field = format!("{}.filter", self.id.kind.as_str());
        machines_by_lasting_fields(&field, &self.filter)
    }

    /// Checks a rule that a client has sent, and gives its reason the form in which it is stored.
    pub fn checked(mut self, now: Timestamp) -> Result<Self, Refusal> {
        self.parse_filter()?;
        if let StartTerms::Frozen { until, reason } = &mut self.terms {
            const UNTIL: &str = "freeze.until";
            *reason = check_reason("freeze.reason", reason)?;
            if *until <= now {
                let problem = "is not in the future";
                return Err(Refusal::invalid(UNTIL, problem, "name a later time"));
            }
            if *until > now + MAX_FREEZE {
                let instead = format!("name a time within {}", format_duration(MAX_FREEZE));
                return Err(Refusal::invalid(UNTIL, "is too far away", instead));
            }
        }
        Ok(self)
    }

    /// True once it holds nothing back any more.
    pub fn has_ended(&self, now: Timestamp) -> bool {
        match &self.terms {
            StartTerms::Open(_) => false,
            StartTerms::Frozen { until, .. } => *until <= now,
        }
    }

    /// True if the other has the same settings.
    pub fn same_as(&self, other: &Self) -> bool {
        (&self.filter, self.holds_for, &self.terms)
            == (&other.filter, other.holds_for, &other.terms)
    }

    /// The settings in words, for the history.
    pub fn describe(&self) -> String {
        let of = if self.filter.is_empty() { "all machines" } else { &self.filter };
        let what = self.holds_for.as_str();
        match &self.terms {
            StartTerms::Open(windows) => format!("{windows}, for {what} on {of}"),
            StartTerms::Frozen { until, reason } => {
                format!("until {}, for {what} on {of}: {reason}", ZonedInstant::utc(*until))
            }
        }
    }

    pub fn exists_already(&self) -> Refusal {
        let (kind, name) = (self.id.kind.as_str(), &self.id.name);
        let message = format!("the {kind} {name} exists already, and is desired in another way");
        let next = match self.id.kind {
            StartRuleKind::Window => format!("farrier window update {name} …"),
            StartRuleKind::Freeze => format!("farrier freeze end {name}"),
        };
        Refusal::new(Reason::StartRuleExists, message)
            .next(format!("{}   # or: {next}", self.id.show()))
    }
}

impl FilterValues for StartRule {
    fn values_of(&self, field: &str) -> Vec<String> {
        match field {
            "name" => vec![self.id.name.clone()],
            "holds_for" => vec![self.holds_for.as_str().into()],
            _ => Vec::new(),
        }
    }
}
