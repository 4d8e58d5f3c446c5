//! Labels and taints that a node gets when it joins a cluster. Their Kubernetes syntax is checked
//! when the plan is created, not after the machine has joined.

use crate::refusal::Refusal;
use crate::text::MAX_LABELS;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

pub type NodeLabels = BTreeMap<String, String>;

/// The number of taints that one step may set.
pub const MAX_TAINTS: usize = 16;
/// Kubernetes' limit for the name in a key and for a value.
const MAX_PART: usize = 63;
/// Kubernetes' limit for the prefix in a key, before the slash.
const MAX_PREFIX: usize = 253;

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Taint {
    pub key: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub value: String,
    pub effect: TaintEffect,
}

/// The effect of a taint on pods that do not tolerate it, as named by Kubernetes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum TaintEffect {
    NoSchedule,
    PreferNoSchedule,
    NoExecute,
}

impl TaintEffect {
    pub const ALL: [Self; 3] = [Self::NoSchedule, Self::PreferNoSchedule, Self::NoExecute];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoSchedule => "NoSchedule",
            Self::PreferNoSchedule => "PreferNoSchedule",
            Self::NoExecute => "NoExecute",
        }
    }
}

impl fmt::Display for Taint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, value, effect } = self;
        match value.as_str() {
            "" => write!(f, "{key}:{}", effect.as_str()),
            value => write!(f, "{key}={value}:{}", effect.as_str()),
        }
    }
}

pub fn check_node_labels(field: &str, labels: &NodeLabels) -> Result<(), Refusal> {
    if labels.len() > MAX_LABELS {
        let problem = format!("has {} entries", labels.len());
        return Err(Refusal::invalid(field, problem, format!("use at most {MAX_LABELS}")));
    }
    for (key, value) in labels {
        check_key(field, key)?;
        check_value(&format!("{field}[{key}]"), value)?;
    }
    Ok(())
}

pub fn check_taints(field: &str, taints: &[Taint]) -> Result<(), Refusal> {
    if taints.len() > MAX_TAINTS {
        let problem = format!("has {} entries", taints.len());
        return Err(Refusal::invalid(field, problem, format!("use at most {MAX_TAINTS}")));
    }
    for (index, taint) in taints.iter().enumerate() {
        let at = format!("{field}[{index}]");
        check_key(&format!("{at}.key"), &taint.key)?;
        check_value(&format!("{at}.value"), &taint.value)?;
        let same = |one: &Taint| one.key == taint.key && one.effect == taint.effect;
        if let Some(first) = taints[..index].iter().position(same) {
            let problem =
                format!("{:?} has the effect {} already", taint.key, taint.effect.as_str());
            let instead = format!("remove it, or change {field}[{first}]");
            return Err(Refusal::invalid(&format!("{at}.key"), problem, instead));
        }
    }
    Ok(())
}

/// Accepts `name`, or `prefix/name` where the prefix is a DNS name.
fn check_key(field: &str, key: &str) -> Result<(), Refusal> {
    let sound = match key.split_once('/') {
        Some((prefix, name)) => is_prefix(prefix) && is_part(name),
        None => is_part(key),
    };
    if sound {
        return Ok(());
    }
    let shown: String = key.chars().take(MAX_PREFIX).collect();
    let instead = "write name or prefix/name: a name is 1 to 63 letters, digits, '-', '_' or '.', with a letter or digit \
                   first and last; a prefix is a DNS name in small letters";
    Err(Refusal::invalid(field, format!("has the key {shown:?}"), instead))
}

fn check_value(field: &str, value: &str) -> Result<(), Refusal> {
    if value.is_empty() || is_part(value) {
        return Ok(());
    }
    let shown: String = value.chars().take(MAX_PART).collect();
    let instead = "use nothing, or 1 to 63 letters, digits, '-', '_' or '.', with a letter or digit first and last";
    Err(Refusal::invalid(field, format!("is {shown:?}"), instead))
}

fn is_part(text: &str) -> bool {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let edge = |c: char| c.is_ascii_alphanumeric();
    text.len() <= MAX_PART
        && text.chars().all(legal)
        && text.starts_with(edge)
        && text.ends_with(edge)
}

fn is_prefix(text: &str) -> bool {
    let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let piece = |piece: &str| {
        piece.chars().all(|c| edge(c) || c == '-')
            && piece.starts_with(edge)
            && piece.ends_with(edge)
    };
    text.len() <= MAX_PREFIX && text.split('.').all(piece)
}
