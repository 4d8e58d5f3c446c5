//! Ids: one generic type, one line for each kind.
//!
//! An id that Farrier makes is `<prefix>-<10 characters of time><10 random characters>`, so ids
//! sort by creation time. [`Naming`] says for each kind whether its owner may choose the id
//! instead.

use crate::refusal::Refusal;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::marker::PhantomData;

/// A kind of object that has ids.
pub trait Kind {
    /// The name of the kind in messages.
    const NOUN: &'static str;
    /// The name of the request field that carries the id.
    const FIELD: &'static str;
    const PREFIX: &'static str;
    const NAMING: Naming;
}

/// The party that chooses the ids of a kind, and their form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Naming {
    /// Farrier makes every id; the prefix is required.
    Farrier,
    /// The owner chooses freely, except the prefixes in `RESERVED`. Farrier makes an id when the
    /// owner gives none.
    Owner,
    /// The owner chooses the part after the prefix; the prefix is required.
    Prefixed,
    /// An id of any kind, for requests that accept several kinds.
    Any,
}

macro_rules! kinds {
    ($($marker:ident, $alias:ident, $noun:literal, $field:literal, $prefix:literal, $naming:ident;)*) => {$(
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $marker;
        impl Kind for $marker {
            const NOUN: &'static str = $noun;
            const FIELD: &'static str = $field;
            const PREFIX: &'static str = $prefix;
            const NAMING: Naming = Naming::$naming;
        }
        pub type $alias = Id<$marker>;
    )*};
}

kinds! {
    MachineKind, MachineId, "machine", "machine_id", "m", Owner;
    RunKind, RunId, "run", "run_id", "op", Farrier;
    PlanKind, PlanId, "plan", "plan_id", "plan", Owner;
    RackKind, RackId, "rack", "rack_id", "rack", Prefixed;
    SwitchKind, SwitchId, "switch", "switch_id", "sw", Prefixed;
    PowerShelfKind, PowerShelfId, "power shelf", "power_shelf_id", "ps", Prefixed;
    NodeKind, NodeId, "node", "node_id", "node", Farrier;
    SiteKind, SiteId, "site", "site_id", "site", Prefixed;
    RolloutKind, RolloutId, "rollout", "rollout_id", "ro", Farrier;
    FirmwareKind, FirmwareId, "firmware", "firmware_id", "fw", Owner;
    TokenIdKind, TokenId, "token", "token_id", "tok", Farrier;
    BindingKind, BindingId, "role binding", "role_binding_id", "rb", Farrier;
    ApprovalKind, ApprovalId, "approval", "approval_id", "apr", Farrier;
    BudgetKind, BudgetId, "budget", "budget_id", "budget", Owner;
    WindowKind, WindowId, "window", "window_id", "window", Owner;
    FreezeKind, FreezeId, "freeze", "freeze_id", "freeze", Owner;
    ObjectKind, ObjectId, "object", "id", "", Any;
}

/// Prefixes that an id of `Naming::Owner` may not begin with: the prefix of an id must show its
/// kind.
const RESERVED: [(&str, &str); 7] = [
    ("op-", "operations"),
    ("rack-", "racks"),
    ("sw-", "switches"),
    ("ps-", "power shelves"),
    ("node-", "nodes"),
    ("site-", "sites"),
    ("ro-", "rollouts"),
];
/// The length limit of an id, in bytes.
pub const MAX_ID_LEN: usize = 63;
const TIME_LEN: usize = 10;
const RANDOM_LEN: usize = 10;
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Id<K> {
    text: String,
    #[serde(skip)]
    kind: PhantomData<fn() -> K>,
}

impl<K: Kind> Id<K> {
    /// Makes a new id. The caller supplies the number `random`: the model has no random
    /// source.
    pub fn new(now: Timestamp, random: u64) -> Self {
        let mut text = String::with_capacity(K::PREFIX.len() + 1 + TIME_LEN + RANDOM_LEN);
        text.push_str(K::PREFIX);
        text.push('-');
        push_base32(&mut text, now.as_millis().max(0) as u64, TIME_LEN);
        push_base32(&mut text, random, RANDOM_LEN);
        Self::trusted(text)
    }

    /// Parses an id from user input.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        Self::parse_field(text, K::FIELD)
    }

    /// Like `parse`, for a request field with another name, such as `operation_id` for a run.
    pub fn parse_field(text: &str, field: &str) -> Result<Self, Refusal> {
        if text.is_empty() {
            return Err(Refusal::missing(field));
        }
        match find_id_problem::<K>(text) {
            None => Ok(Self::trusted(text.to_string())),
            Some(problem) => Err(Refusal::invalid(field, problem, Self::example())),
        }
    }

    /// Wraps an id that Farrier stored earlier, without checking it.
    pub fn trusted(text: impl Into<String>) -> Self {
        Self { text: text.into(), kind: PhantomData }
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The same id without its kind.
    pub fn object(&self) -> ObjectId {
        Id::trusted(self.as_str())
    }

    fn example() -> String {
        match K::NAMING {
            Naming::Owner | Naming::Any => format!(
                "use 1 to {MAX_ID_LEN} letters, digits, '.', '_' or '-', beginning with a letter or digit"
            ),
            Naming::Prefixed => {
                format!("write {}-… with letters, digits, '.', '_' or '-' behind it", K::PREFIX)
            }
            Naming::Farrier => {
                let list = match K::PREFIX {
                    NodeKind::PREFIX => "farrier node list",
                    RolloutKind::PREFIX => "farrier rollout list",
                    _ => "farrier operation list",
                };
                format!("{}s are named {}-… ; list them with `{list}`", K::NOUN, K::PREFIX)
            }
        }
    }
}

fn find_id_problem<K: Kind>(text: &str) -> Option<String> {
    if text.len() > MAX_ID_LEN {
        return Some(format!("is {} bytes long", text.len()));
    }
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if let Some(bad) = text.chars().find(|&c| !legal(c)) {
        return Some(format!("contains {bad:?}"));
    }
    if !text.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return Some("does not begin with a letter or digit".into());
    }
    let reserved = || RESERVED.into_iter().find(|(prefix, _)| text.starts_with(prefix));
    match K::NAMING {
        Naming::Owner => reserved()
            .map(|(prefix, named)| format!("begins with {prefix}, which is how {named} are named")),
        Naming::Farrier | Naming::Prefixed => {
            let rest = text.strip_prefix(K::PREFIX).and_then(|rest| rest.strip_prefix('-'));
            let missing = rest.is_none_or(str::is_empty);
            missing.then(|| format!("{text:?} is not a {} id", K::NOUN))
        }
        Naming::Any => None,
    }
}

fn push_base32(text: &mut String, value: u64, digits: usize) {
    for position in (0..digits).rev() {
        let digit = (value >> (5 * position)) & 31;
        text.push(ALPHABET[digit as usize] as char);
    }
}

impl<K> fmt::Display for Id<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl<K> fmt::Debug for Id<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
