//! Firmware: the catalogue, which record a maintenance uses, and what was applied to which device.

use crate::effect::{DeviceFacts, DeviceWork, Effect};
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
    let mut observed = BTreeSet::new();
    for (index, component) in components.iter().enumerate() {
        let field = |name: &str| format!("{list}[{index}].{name}");
        check_name(&field("name"), &component.name)?;
        // The name becomes part of a step name, in lower case.
        if !observed.insert(component.name.to_lowercase()) {
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

/// Which firmware a maintenance uses.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn component(name: &str) -> FirmwareComponent {
        FirmwareComponent {
            name: name.into(),
            version: "2.1".into(),
            url: "https://files.example/bmc.bin".into(),
            sha256: "a".repeat(64),
        }
    }

    fn firmware(id: &str, available: bool) -> Firmware {
        Firmware {
            id: FirmwareId::trusted(id),
            hardware_type: "nvl72".into(),
            description: String::new(),
            components: BTreeMap::from([(TargetKind::Machine, vec![component("BMC")])]),
            is_default: false,
            available,
            created_at: Timestamp::default(),
        }
    }

    /// The table of the document, and the rules below it.
    #[test]
    fn which_firmware_is_used() {
        let named = FirmwareId::trusted("fw-v2.1");
        let one = |id: &str, available| Some(firmware(id, available));
        let uses = |id: &str| format!("use {id}");
        let table = [
            // Ingestion, reprovision and on demand without a version: the default.
            (None, None, one("default", true), "nvl72", uses("default")),
            (None, None, one("default", false), "nvl72", "skip: default firmware default".into()),
            (None, None, None, "nvl72", "skip: no default firmware for hardware type nvl72".into()),
            (None, None, None, "", "skip: no hardware type".into()),
            // On demand with a version: looked up by id, whatever the default is.
            (Some(&named), one("fw-v2.1", true), None, "nvl72", uses("fw-v2.1")),
            (Some(&named), one("fw-v2.1", true), one("default", true), "nvl72", uses("fw-v2.1")),
            (Some(&named), one("fw-v2.1", true), one("default", true), "", uses("fw-v2.1")),
            (Some(&named), one("fw-v2.1", false), one("default", true), "nvl72", {
                "skip: firmware fw-v2.1 is not available".into()
            }),
            // Firmware for other hardware is not installed.
            (Some(&named), one("fw-v2.1", true), one("default", true), "nvl36", {
                "skip: firmware fw-v2.1 is for hardware type nvl72, not for nvl36".into()
            }),
            (Some(&named), None, one("default", true), "nvl72", "unknown fw-v2.1".into()),
            (Some(&named), None, None, "nvl72", "unknown fw-v2.1".into()),
        ];
        for (named, found, default, hardware_type, expected) in table {
            let shown = match resolve(named, found, default, hardware_type) {
                FirmwareResolution::Use(one) => format!("use {}", one.id),
                FirmwareResolution::Unknown(id) => format!("unknown {id}"),
                FirmwareResolution::Skip(why) => format!("skip: {why}"),
            };
            let (how, words) = expected.split_once(": ").unwrap_or((&expected, ""));
            assert!(shown.starts_with(how) && shown.contains(words), "{shown:?}, not {expected:?}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let sound = || firmware("f", true);
        let with = |components: Vec<FirmwareComponent>| Firmware {
            components: BTreeMap::from([(TargetKind::Switch, components)]),
            ..sound()
        };
        let field = |name: &str| format!("firmware.components[switch][0].{name}");
        let many = (0..=MAX_COMPONENTS).map(|n| component(&n.to_string())).collect();
        let table = [
            (sound(), None),
            (with(vec![component("BMC"), component("EROT_0")]), None),
            (
                Firmware { hardware_type: String::new(), ..sound() },
                Some("firmware.hardware_type".into()),
            ),
            (
                Firmware { description: "a\nb".into(), ..sound() },
                Some("firmware.description".into()),
            ),
            (
                Firmware { components: BTreeMap::new(), ..sound() },
                Some("firmware.components".into()),
            ),
            (with(Vec::new()), Some("firmware.components".into())),
            (with(many), Some("firmware.components[switch]".into())),
            (with(vec![component("")]), Some(field("name"))),
            (with(vec![component("a/b")]), Some(field("name"))),
            (
                with(vec![component("BMC"), component("bmc")]),
                Some("firmware.components[switch][1].name".into()),
            ),
            (
                with(vec![FirmwareComponent { version: " ".into(), ..component("BMC") }]),
                Some(field("version")),
            ),
            (
                with(vec![FirmwareComponent { url: String::new(), ..component("BMC") }]),
                Some(field("url")),
            ),
            (
                with(vec![FirmwareComponent { url: "ftp://h/x".into(), ..component("BMC") }]),
                Some(field("url")),
            ),
            (
                with(vec![FirmwareComponent { url: "https://u:p@h/x".into(), ..component("BMC") }]),
                Some(field("url")),
            ),
            (
                with(vec![FirmwareComponent { url: "http:///x".into(), ..component("BMC") }]),
                Some(field("url")),
            ),
            (
                with(vec![FirmwareComponent { sha256: "AB".repeat(32), ..component("BMC") }]),
                Some(field("sha256")),
            ),
            (
                Firmware {
                    components: BTreeMap::from([(TargetKind::Rack, vec![component("BMC")])]),
                    ..sound()
                },
                Some("firmware.components[rack]".into()),
            ),
        ];
        for (firmware, wrong) in table {
            let shown = format!("{firmware:?}");
            let field = firmware.checked().err().and_then(|refusal| refusal.field);
            assert_eq!(field, wrong, "{shown}");
        }
    }

    #[test]
    fn a_record_is_in_use_while_one_of_its_files_is_installed() {
        use crate::effect::{ChildRunGroup, ChildRunSpec};
        use crate::plan::RunType;
        let one = firmware("f", true);
        let steps = one.steps(TargetKind::Machine);
        assert_eq!(steps[0].name, "firmware-bmc");
        let part = ChildRunSpec {
            target: TargetId::from_key("m-1"),
            run_type: RunType::Firmware,
            steps: steps.clone(),
        };
        let group = Effect::ChildRuns {
            group: ChildRunGroup {
                child_runs: vec![part],
                max_concurrent: 1,
                skip_if_all_hold: Vec::new(),
            },
        };
        assert!(one.installed_by(&steps));
        assert!(one.installed_by(&[run_step("all", 1, 0, group)]));
        let other = FirmwareComponent { version: "3.0".into(), ..component("BMC") };
        let other = Firmware {
            components: BTreeMap::from([(TargetKind::Machine, vec![other])]),
            ..one.clone()
        };
        assert!(!other.installed_by(&steps));
        assert!(one.steps(TargetKind::Switch).is_empty());
    }

    #[test]
    fn what_a_device_has_already_is_not_missing() {
        let one = firmware("f", true);
        let has = |version: &str| BTreeMap::from([("BMC".to_string(), version.to_string())]);
        let machine = TargetKind::Machine;
        assert!(one.missing_on(machine, &has("2.1")).is_empty());
        assert_eq!(one.missing_on(machine, &has("1.0")), ["BMC is at 1.0, not 2.1"]);
        assert_eq!(one.missing_on(machine, &BTreeMap::new()), ["BMC is not known to be at 2.1"]);
        assert!(one.missing_on(TargetKind::Switch, &BTreeMap::new()).is_empty());
    }
}
