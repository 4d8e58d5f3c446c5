//! Updates of a catalogue record: its two flags can change, and nothing else.

use super::{Firmware, FirmwareComponent};
use crate::refusal::Refusal;
use crate::target::TargetKind;
use std::collections::BTreeMap;

/// A record as a request for an update describes it. An empty field is not given.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FirmwareUpdate {
    pub is_default: bool,
    pub available: Option<bool>,
    pub hardware_type: String,
    pub description: String,
    pub components: BTreeMap<TargetKind, Vec<FirmwareComponent>>,
    /// The names of the fields to change. Empty: the flags that are given.
    pub mask: Vec<String>,
}

/// Longest part of an unknown name that a refusal quotes, in characters.
const MAX_SHOWN: usize = 63;

impl FirmwareUpdate {
    /// Refuses a mask with a field that cannot change, and a request that changes nothing.
    pub fn checked(self) -> Result<Self, Refusal> {
        for name in &self.mask {
            match (name.as_str(), self.is_default, self.available) {
                ("is_default", true, _) | ("available", _, Some(_)) => {}
                ("is_default", false, _) => {
                    let instead = "make another record the default instead: \
                                   `farrier firmware set-default ANOTHER`";
                    return Err(Refusal::invalid("firmware.is_default", "is false", instead));
                }
                ("available", _, None) => return Err(Refusal::missing("firmware.available")),
                (name, _, _) => {
                    let shown: String = name.chars().take(MAX_SHOWN).collect();
                    return Err(immutable("update_mask", format!("names {shown:?}")));
                }
            }
        }
        if self.mask.is_empty() && !self.is_default && self.available.is_none() {
            let instead = "set firmware.is_default to true, or firmware.available";
            return Err(Refusal::invalid("firmware", "changes nothing", instead));
        }
        Ok(self)
    }

    /// The record after the update. Without a mask, a field that cannot change must be given as it
    /// is stored, or not at all.
    pub fn apply(&self, stored: &Firmware) -> Result<Firmware, Refusal> {
        if self.mask.is_empty() {
            for (field, differs) in [
                ("hardware_type", differs(&self.hardware_type, &stored.hardware_type)),
                ("description", differs(&self.description, &stored.description)),
                ("components", !self.components.is_empty() && self.components != stored.components),
            ] {
                if differs {
                    let problem = format!("differs from that of {}", stored.id);
                    return Err(immutable(&format!("firmware.{field}"), problem));
                }
            }
        }
        let named =
            |field: &str| self.mask.is_empty() || self.mask.iter().any(|name| name == field);
        let available = self.available.filter(|_| named("available"));
        Ok(Firmware {
            is_default: stored.is_default || (self.is_default && named("is_default")),
            available: available.unwrap_or(stored.available),
            ..stored.clone()
        })
    }
}

fn differs(given: &str, stored: &str) -> bool {
    !given.is_empty() && given != stored
}

fn immutable(field: &str, problem: String) -> Refusal {
    let instead = "a record is immutable apart from is_default and available: create another one, \
                   `farrier firmware create NEW_ID …`";
    Refusal::invalid(field, problem, instead)
}
