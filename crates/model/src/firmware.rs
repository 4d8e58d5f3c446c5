//! Firmware: the catalogue, which record a maintenance uses, and what was applied to which device.

pub mod update;

use crate::effect::{DeviceFacts, DeviceWork, Effect};
use crate::filter::FilterValues;
use crate::id::{FirmwareId, RunId};
use crate::image::sha256;
use crate::lifecycle::run_step;
use crate::plan::RunStep;
use crate::refusal::Refusal;
use crate::run::Run;
use crate::target::{TargetId, TargetKind};
use crate::text;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The file for one component of one kind of device.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FirmwareComponent {
    pub name: String,
    pub version: String,
    pub url: String,
    pub sha256: String,
}

/// A record of the catalogue. Only its two flags can change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Firmware {
    pub id: FirmwareId,
    pub hardware_type: String,
    #[serde(default)]
    pub description: String,
    pub components: BTreeMap<TargetKind, Vec<FirmwareComponent>>,
    /// Racks of its hardware type get this record when a request names none.
    pub is_default: bool,
    pub available: bool,
    pub created_at: Timestamp,
    /// Increases with every change.
    #[serde(default)]
    pub version: i64,
}

/// The parameter of a run that names the record it applies.
pub const FIRMWARE: &str = "firmware";
/// The kinds of devices that have components.
pub const DEVICES: [TargetKind; 3] =
    [TargetKind::Machine, TargetKind::Switch, TargetKind::PowerShelf];
/// The number of components of one kind of device in a record.
pub const MAX_COMPONENTS: usize = 32;
/// The number of applied entries kept per device; older ones are deleted.
pub const MAX_APPLIED: i64 = 256;

/// Timeout in seconds and number of retries of one component. A BMC restarts meanwhile.
const INSTALL: (u32, u32) = (3_600, 0);

impl Firmware {
    /// The steps that install it on a device of this kind, in the order of the record.
    pub fn steps(&self, kind: TargetKind) -> Vec<RunStep> {
        let components = self.components.get(&kind).map(Vec::as_slice).unwrap_or_default();
        let step = |component: &FirmwareComponent| {
            let FirmwareComponent { name, version, url, sha256 } = component.clone();
            let step = format!("firmware-{}", name.to_lowercase());
            let work = DeviceWork::Firmware { component: name, version, url, sha256 };
            run_step(&step, INSTALL.0, INSTALL.1, Effect::Device { work })
        };
        components.iter().map(step).collect()
    }

    /// The versions of a device of this kind that has it installed.
    pub fn versions(&self, kind: TargetKind) -> BTreeMap<String, String> {
        let components = self.components.get(&kind).map(Vec::as_slice).unwrap_or_default();
        components.iter().map(|one| (one.name.clone(), one.version.clone())).collect()
    }
}

impl FilterValues for Firmware {
    fn values_of(&self, field: &str) -> Vec<String> {
        match field {
            "firmware_id" => vec![self.id.to_string()],
            "hardware_type" => vec![self.hardware_type.clone()],
            "is_default" => vec![self.is_default.to_string()],
            "available" => vec![self.available.to_string()],
            _ => Vec::new(),
        }
    }
}

impl FilterValues for AppliedFirmware {
    fn values_of(&self, field: &str) -> Vec<String> {
        match field {
            "device_id" => vec![self.device.id.clone()],
            "device_type" => vec![self.device.kind.as_str().into()],
            "component" => vec![self.component.clone()],
            "version" => vec![self.version.clone()],
            "changed" => vec![self.changed.to_string()],
            "operation_id" => vec![self.run.to_string()],
            _ => Vec::new(),
        }
    }
}

impl Firmware {
    pub fn checked(self) -> Result<Self, Refusal> {
        const HARDWARE: &str = "firmware.hardware_type";
        if self.hardware_type.is_empty() {
            return Err(Refusal::missing(HARDWARE));
        }
        text::check_short(HARDWARE, &self.hardware_type)?;
        text::check_short("firmware.description", &self.description)?;
        if self.components.values().all(Vec::is_empty) {
            let instead = "name at least one, --component machine:BMC=2.1,url=…,sha256=…";
            return Err(Refusal::invalid("firmware.components", "is empty", instead));
        }
        for (kind, components) in &self.components {
            check_components(*kind, components)?;
        }
        Ok(self)
    }

    /// True if both records have the same content, apart from id, flags and age.
    pub fn same_as(&self, other: &Self) -> bool {
        let message = |one: &Self| {
            (one.hardware_type.clone(), one.description.clone(), one.components.clone())
        };
        message(self) == message(other)
    }

    /// True if these steps install a file of this record, directly or in a group.
    pub fn installed_by(&self, steps: &[RunStep]) -> bool {
        steps.iter().any(|step| {
            if let Some(group) = step.effect.group() {
                return group.child_runs.iter().any(|part| self.installed_by(&part.steps));
            }
            let Effect::Device { work: DeviceWork::Firmware { component, version, sha256, .. } } =
                &step.effect
            else {
                return false;
            };
            self.components
                .values()
                .flatten()
                .any(|one| (&one.name, &one.version, &one.sha256) == (component, version, sha256))
        })
    }

    /// The components that differ on the device or whose version is unknown; empty when it is up to
    /// date.
    pub fn missing_on(&self, kind: TargetKind, has: &BTreeMap<String, String>) -> Vec<String> {
        let differs = |(name, desired): (String, String)| match has.get(&name) {
            Some(version) if *version == desired => None,
            Some(version) => Some(format!("{name} is at {version}, not {desired}")),
            None => Some(format!("{name} is not known to be at {desired}")),
        };
        self.versions(kind).into_iter().filter_map(differs).collect()
    }
}

fn check_components(kind: TargetKind, components: &[FirmwareComponent]) -> Result<(), Refusal> {
    let list = format!("firmware.components[{}]", kind.as_str());
    if !DEVICES.contains(&kind) {
        let words: Vec<_> = DEVICES.iter().map(|kind| kind.as_str()).collect();
        let instead = format!("use {}", words.join(", "));
        return Err(Refusal::invalid(&list, "is no kind of device", instead));
    }
    if components.len() > MAX_COMPONENTS {
        let problem = format!("has {} entries", components.len());
        return Err(Refusal::invalid(&list, problem, format!("use at most {MAX_COMPONENTS}")));
    }
    let mut unique = BTreeSet::new();
    for (index, component) in components.iter().enumerate() {
        let field = |name: &str| format!("{list}[{index}].{name}");
        check_name(&field("name"), &component.name)?;
        // The name becomes part of a step name, in lower case.
        if !unique.insert(component.name.to_lowercase()) {
            let problem = format!("{:?} is there twice", component.name);
            return Err(Refusal::invalid(&field("name"), problem, "name each component once"));
        }
        if component.version.trim().is_empty() {
            return Err(Refusal::missing(&field("version")));
        }
        text::check_short(&field("version"), &component.version)?;
        text::check_web_url(&field("url"), &component.url)?;
        sha256(&field("sha256"), &component.sha256)?;
    }
    Ok(())
}

/// Checks a component's name, which becomes part of a step name.
fn check_name(field: &str, name: &str) -> Result<(), Refusal> {
    if name.is_empty() {
        return Err(Refusal::missing(field));
    }
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if name.len() > text::MAX_NAME || !name.chars().all(legal) {
        let shown: String = name.chars().take(text::MAX_NAME).collect();
        let instead = format!("use 1 to {} letters, digits, '.', '_' or '-'", text::MAX_NAME);
        return Err(Refusal::invalid(field, format!("is {shown:?}"), instead));
    }
    Ok(())
}

/// The result of one firmware step on one component.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppliedFirmware {
    pub run: RunId,
    pub step: String,
    pub device: TargetId,
    pub component: String,
    /// The version before; empty if the device did not report it.
    pub previous: String,
    pub version: String,
    /// False: the component had this version already.
    pub changed: bool,
    pub at: Timestamp,
}

impl AppliedFirmware {
    /// The history text about a changed version; None if the component had it already.
    pub fn describe_change(&self) -> Option<String> {
        let Self { run, component, previous, version, changed, .. } = self;
        let from = if previous.is_empty() { "an unknown version" } else { previous };
        changed
            .then(|| format!("{run} changed the firmware of {component} from {from} to {version}"))
    }
}

/// The firmware that the current step applied, once it has ended with these facts. None if it is no
/// firmware step.
pub fn applied_by_step(run: &Run, facts: &DeviceFacts, at: Timestamp) -> Option<AppliedFirmware> {
    let state = run.progress.current()?;
    let Effect::Device { work: DeviceWork::Firmware { component, version, .. } } =
        run.effect(state)?
    else {
        return None;
    };
    let changed = facts.replaced.is_some();
    let previous = facts.replaced.clone().unwrap_or_else(|| version.clone());
    Some(AppliedFirmware {
        run: run.spec.id.clone(),
        step: run.step_name(state),
        device: run.spec.target.clone(),
        component,
        previous,
        version,
        changed,
        at,
    })
}

/// The firmware that a maintenance applies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FirmwareResolution {
    Use(Box<Firmware>),
    /// No firmware is applied, and why.
    Skip(String),
    /// The named record does not exist, which is an error.
    Unknown(FirmwareId),
}

/// The documented table: a named record is looked up by id; otherwise the default of the hardware
/// type applies.
pub fn resolve(
    named: Option<&FirmwareId>,
    found: Option<Firmware>,
    default: Option<Firmware>,
    hardware_type: &str,
) -> FirmwareResolution {
    let fits = |found: &Firmware| hardware_type.is_empty() || found.hardware_type == hardware_type;
    match (named, found, default) {
        (Some(id), Some(found), _) if !fits(&found) => FirmwareResolution::Skip(format!(
            "firmware {id} is for hardware type {}, not for {hardware_type}",
            found.hardware_type
        )),
        (Some(_), Some(found), _) if found.available => FirmwareResolution::Use(Box::new(found)),
        (Some(id), Some(_), _) => {
            FirmwareResolution::Skip(format!("firmware {id} is not available"))
        }
        (Some(id), None, _) => FirmwareResolution::Unknown(id.clone()),
        (None, _, Some(default)) if default.available => FirmwareResolution::Use(Box::new(default)),
        (None, _, Some(default)) => FirmwareResolution::Skip(format!(
            "the default firmware {} is not available",
            default.id
        )),
        (None, _, None) => FirmwareResolution::Skip(match hardware_type {
            "" => "the rack has no hardware type, so there is no default firmware for it".into(),
            kind => format!("there is no default firmware for hardware type {kind}"),
        }),
    }
}
