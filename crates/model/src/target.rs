//! The target of a run: a machine, a switch, a power shelf, or a rack.

use crate::id::{MachineId, PowerShelfId, RackId, RunId, SwitchId};
use crate::refusal::{Reason, Refusal};
use serde::{Deserialize, Serialize};
use std::fmt;

#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum TargetKind {
    #[default]
    Machine,
    Switch,
    PowerShelf,
    Rack,
}

impl TargetKind {
    pub const ALL: [Self; 4] = [Self::Machine, Self::Switch, Self::PowerShelf, Self::Rack];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Machine => "machine",
            Self::Switch => "switch",
            Self::PowerShelf => "power_shelf",
            Self::Rack => "rack",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }

    /// The command that lists all targets of this kind.
    pub const fn list_command(self) -> &'static str {
        match self {
            Self::Machine => "farrier list",
            Self::Switch => "farrier switch list",
            Self::PowerShelf => "farrier power-shelf list",
            Self::Rack => "farrier rack list",
        }
    }

    /// The name of the kind in messages.
    pub const fn noun(self) -> &'static str {
        match self {
            Self::Machine => "machine",
            Self::Switch => "switch",
            Self::PowerShelf => "power shelf",
            Self::Rack => "rack",
        }
    }
}

/// The id of a target with its kind. It is stored as one string, see [`TargetId::key`].
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", from = "String")]
pub struct TargetId {
    pub kind: TargetKind,
    pub id: String,
}

impl TargetId {
    pub fn new(kind: TargetKind, id: impl Into<String>) -> Self {
        Self { kind, id: id.into() }
    }

    /// Parses an id from user input; its prefix tells the kind.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        Self::parse_field(text, "id")
    }

    /// Like `parse`, for a request field with another name.
    pub fn parse_field(text: &str, field: &str) -> Result<Self, Refusal> {
        match text.split_once('-').map(|(kind, _)| kind) {
            Some("rack") => RackId::parse_field(text, field).map(|id| Self::from(&id)),
            Some("sw") => SwitchId::parse_field(text, field).map(|id| Self::from(&id)),
            Some("ps") => PowerShelfId::parse_field(text, field).map(|id| Self::from(&id)),
            Some(_) | None => MachineId::parse_field(text, field).map(|id| Self::from(&id)),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.id
    }

    /// The stored form: a machine's bare id, other kinds as `kind:id`. Ids contain no colon.
    pub fn key(&self) -> String {
        match self.kind {
            TargetKind::Machine => self.id.clone(),
            TargetKind::Switch | TargetKind::PowerShelf | TargetKind::Rack => {
                format!("{}:{}", self.kind.as_str(), self.id)
            }
        }
    }

    /// Reads the stored form that `key` writes.
    pub fn from_key(key: &str) -> Self {
        let kind = key.split_once(':').and_then(|(kind, id)| Some((TargetKind::parse(kind)?, id)));
        match kind {
            Some((kind, id)) => Self::new(kind, id),
            None => Self::new(TargetKind::Machine, key),
        }
    }

    pub fn machine(&self) -> Option<MachineId> {
        (self.kind == TargetKind::Machine).then(|| MachineId::trusted(&self.id))
    }

    pub fn rack(&self) -> Option<RackId> {
        (self.kind == TargetKind::Rack).then(|| RackId::trusted(&self.id))
    }

    /// The refusal for a request on a target that another operation holds.
    pub fn refuse_held(&self, holder: &RunId) -> Refusal {
        let message = format!("{self} is held by operation {holder}, until it ends or is canceled");
        let refusal = match self.kind {
            TargetKind::Machine => Refusal::new(Reason::MachineBusy, message),
            TargetKind::Switch | TargetKind::PowerShelf | TargetKind::Rack => {
                Refusal::new(Reason::DeviceBusy, message)
            }
        };
        refusal.next(format!("farrier why {holder}"))
    }

    /// The refusal for a change of fields by which the operation that holds the target finds it.
    pub fn refuse_change(&self, holder: &RunId, fields: &[&str]) -> Refusal {
        let fields = fields.join(", ");
        let message = format!(
            "{self} is held by operation {holder}, which depends on its {fields}: change it when the operation has ended"
        );
        let next = format!(
            "farrier operation mark-manual {holder} --reason …   # then change it, and: farrier operation resume {holder}"
        );
        Refusal { message, ..self.refuse_held(holder) }.next(next)
    }

    /// The command that shows the target.
    pub fn show_command(&self) -> String {
        match self.kind {
            TargetKind::Machine => format!("farrier get {}", self.id),
            TargetKind::Switch => format!("farrier switch get {}", self.id),
            TargetKind::PowerShelf => format!("farrier power-shelf get {}", self.id),
            TargetKind::Rack => format!("farrier rack get {}", self.id),
        }
    }
}

macro_rules! from_id {
    ($($id:ident => $kind:ident),*) => {$(
        impl From<&$id> for TargetId {
            fn from(id: &$id) -> Self {
                Self::new(TargetKind::$kind, id.as_str())
            }
        }
    )*};
}

from_id!(MachineId => Machine, SwitchId => Switch, PowerShelfId => PowerShelf, RackId => Rack);

impl From<TargetId> for String {
    fn from(target: TargetId) -> Self {
        target.key()
    }
}

impl From<String> for TargetId {
    fn from(key: String) -> Self {
        Self::from_key(&key)
    }
}

impl fmt::Display for TargetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.id)
    }
}

impl fmt::Debug for TargetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.id)
    }
}
