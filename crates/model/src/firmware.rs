//! Firmware: the catalogue of what racks run, and which record a maintenance uses.

use crate::effect::{DeviceWork, Effect};
use crate::id::FirmwareId;
use crate::lifecycle::run_step;
use crate::plan::RunStep;
use crate::target::TargetKind;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One file for one component of one kind of device.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Component {
    pub name: String,
    pub version: String,
    pub url: String,
    pub sha256: String,
}

/// A record of the catalogue. It never changes, but for its two flags.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Firmware {
    pub id: FirmwareId,
    pub hardware_type: String,
    #[serde(default)]
    pub description: String,
    pub components: BTreeMap<TargetKind, Vec<Component>>,
    /// The one that racks of its hardware type get when nobody names another.
    pub is_default: bool,
    pub available: bool,
    pub created_at: Timestamp,
}

/// How long one component may take, in seconds: a BMC restarts in between. And how often it is tried again.
const INSTALL: (u32, u32) = (3_600, 0);

impl Firmware {
    /// What a device of this kind does to have it, component by component in the order of the record.
    pub fn steps(&self, kind: TargetKind) -> Vec<RunStep> {
        let components = self.components.get(&kind).map(Vec::as_slice).unwrap_or_default();
        let step = |component: &Component| {
            let Component { name, version, url, sha256 } = component.clone();
            let step = format!("firmware-{}", name.to_lowercase());
            let work = DeviceWork::Firmware { component: name, version, url, sha256 };
            run_step(&step, INSTALL.0, INSTALL.1, Effect::Device { work })
        };
        components.iter().map(step).collect()
    }

    /// The versions that a device of this kind has once it has it.
    pub fn versions(&self, kind: TargetKind) -> BTreeMap<String, String> {
        let components = self.components.get(&kind).map(Vec::as_slice).unwrap_or_default();
        components.iter().map(|one| (one.name.clone(), one.version.clone())).collect()
    }
}

/// Which firmware a maintenance uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resolution {
    Use(Box<Firmware>),
    /// None is applied, and this is why.
    Skip(String),
    /// The record that was named is not there: an error, never a guess.
    Unknown(FirmwareId),
}

/// The documented table: a version that was named is looked up by id; otherwise the default of the hardware type holds.
pub fn resolve(
    named: Option<&FirmwareId>,
    found: Option<Firmware>,
    default: Option<Firmware>,
    hardware_type: &str,
) -> Resolution {
    match (named, found, default) {
        (Some(_), Some(found), _) if found.available => Resolution::Use(Box::new(found)),
        (Some(id), Some(_), _) => Resolution::Skip(format!("firmware {id} is not available")),
        (Some(id), None, _) => Resolution::Unknown(id.clone()),
        (None, _, Some(default)) if default.available => Resolution::Use(Box::new(default)),
        (None, _, Some(default)) => {
            Resolution::Skip(format!("the default firmware {} is not available", default.id))
        }
        (None, _, None) => Resolution::Skip(match hardware_type {
            "" => "the rack has no hardware type, so there is no default firmware for it".into(),
            kind => format!("there is no default firmware for hardware type {kind}"),
        }),
    }
}
