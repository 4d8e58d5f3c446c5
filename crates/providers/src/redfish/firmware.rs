//! The firmware components of a device.
//!
//! The update service lists them. A component is found by its id, its name or its software id;
//! `BIOS` and `BMC` are also read from the System and its manager. A name that several components
//! with different versions share is refused.

use super::client::Skipped;
use super::decode::{JsonNode, Resource};
use super::inventory::name;
use super::quirks::Quirks;
use super::system::System;
use model::fault::{Fault, FaultCode, Result};

/// The most managers of one device whose version is read.
const MAX_MANAGERS: usize = 8;
/// The most components that a fault lists.
const MAX_NAMED: usize = 40;
pub const BIOS: &str = "BIOS";
pub const BMC: &str = "BMC";

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Firmware {
    pub id: String,
    pub name: Option<String>,
    pub version: String,
    pub updateable: Option<bool>,
    /// The software id, the same on every device of a model.
    pub software_id: Option<String>,
    /// The resource that an update names as its target.
    pub path: String,
}

/// The components that could be read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Components {
    pub list: Vec<Firmware>,
    /// The resources that could not be read, each with the reason.
    pub skipped: Vec<String>,
}

impl System {
    /// The version and path of the first manager that shows a version.
    pub(super) async fn manager(
        &self,
        part: JsonNode<'_>,
        skipped: &mut Skipped,
    ) -> Result<Option<(String, String)>> {
        let links = part.get("Links");
        for path in links.list("ManagedBy").filter_map(JsonNode::as_link).take(MAX_MANAGERS) {
            let manager = self.link.find_or_skip(&path, skipped).await?;
            if let Some(version) = manager.and_then(|doc| doc.root().text("FirmwareVersion")) {
                return Ok(Some((version, path)));
            }
        }
        Ok(None)
    }

    /// The components that the update service lists.
    pub async fn firmware(&self) -> Result<Vec<Firmware>> {
        self.list_firmware(&mut Skipped::new()).await
    }

    pub(super) async fn list_firmware(&self, skipped: &mut Skipped) -> Result<Vec<Firmware>> {
        let list = self.updates.list("FirmwareInventory", skipped).await?;
        Ok(list.iter().filter_map(|doc| firmware(doc, &self.quirks)).collect())
    }

    /// The installed components, and `BIOS` and `BMC` if the update service lists none.
    pub async fn components(&self) -> Result<Components> {
        let mut skipped = Skipped::new();
        let mut all = installed(self.list_firmware(&mut skipped).await?, &self.quirks);
        let doc = self.read().await?;
        let own = [(BIOS, "BiosVersion"), (BMC, "FirmwareVersion")];
        for (id, field) in own {
            let version = doc.root().text(field);
            all.extend(version.filter(|_| !is_there(&all, id)).map(|version| Firmware {
                id: id.into(),
                version,
                path: doc.path.clone(),
                ..Firmware::default()
            }));
        }
        if !is_there(&all, BMC)
            && let Some((version, path)) = self.manager(doc.root(), &mut skipped).await?
        {
            all.push(Firmware { id: BMC.into(), version, path, ..Firmware::default() });
        }
        Ok(Components { list: all, skipped })
    }
}

fn is_there(all: &[Firmware], component: &str) -> bool {
    all.iter().any(|one| has_name(one, component))
}

/// Without earlier versions and versions that are only available.
fn installed(all: Vec<Firmware>, quirks: &Quirks) -> Vec<Firmware> {
    all.into_iter().filter(|one| quirks.is_installed(&one.id)).collect()
}

fn has_name(one: &Firmware, component: &str) -> bool {
    let same = |text: &str| text.eq_ignore_ascii_case(component);
    same(&one.id)
        || one.name.as_deref().is_some_and(same)
        || one.software_id.as_deref().is_some_and(same)
}

impl Components {
    /// Finds a component by id, name or software id.
    pub fn find(&self, desired: &str) -> Result<&Firmware> {
        let by_id = self.list.iter().find(|one| one.id.eq_ignore_ascii_case(desired));
        if let Some(one) = by_id {
            return Ok(one);
        }
        let fitting: Vec<&Firmware> =
            self.list.iter().filter(|one| has_name(one, desired)).collect();
        match fitting.as_slice() {
            [one, others @ ..] if others.iter().all(|one_more| one_more.version == one.version) => {
                Ok(one)
            }
            [] => Err(self.not_found(desired)),
            [_, ..] => {
                let message = format!(
                    "{desired:?} is the name of several components with different versions; \
                     name one by its id: {}",
                    ids(fitting.into_iter())
                );
                Err(Fault::new(FaultCode::NotSupported, message))
            }
        }
    }

    /// If a resource was skipped, the component may exist, so the fault is not `NotSupported`.
    fn not_found(&self, desired: &str) -> Fault {
        let (code, why) = match (self.skipped.first(), self.list.is_empty()) {
            (Some(skipped), _) => {
                (FaultCode::EffectFailed, format!("not all could be read: {skipped}"))
            }
            (None, true) => (FaultCode::NotSupported, "it shows no firmware at all".into()),
            (None, false) => (FaultCode::NotSupported, format!("it has {}", ids(self.list.iter()))),
        };
        Fault::new(code, format!("the device has no firmware component {desired:?}; {why}"))
    }
}

fn ids<'a>(some: impl Iterator<Item = &'a Firmware>) -> String {
    some.take(MAX_NAMED).map(|one| one.id.as_str()).collect::<Vec<_>>().join(", ")
}

fn firmware(doc: &Resource, quirks: &Quirks) -> Option<Firmware> {
    let part = doc.root();
    let own = part.as_link().unwrap_or_else(|| doc.path.clone());
    let related = part.list("RelatedItem").find_map(JsonNode::as_link);
    Some(Firmware {
        id: name(doc),
        name: part.text("Name"),
        version: part.text("Version")?,
        updateable: part.flag("Updateable"),
        software_id: part.text("SoftwareId"),
        path: related.filter(|_| quirks.target_is_related()).unwrap_or(own),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn one(id: &str, name: &str, software: &str, version: &str) -> Firmware {
        Firmware {
            id: id.into(),
            name: Some(name.into()),
            version: version.into(),
            software_id: Some(software.into()),
            ..Firmware::default()
        }
    }

    #[test]
    fn a_component_without_version_is_not_installed() {
        let doc = |value| Resource { path: "/redfish/v1/F/BMC".into(), etag: None, value };
        let usual = Quirks::default();
        assert_eq!(firmware(&doc(json!({"Version": null})), &usual), None);
        let on = json!({"Version": "7", "RelatedItem": [{"@odata.id": "/redfish/v1/Managers/1"}]});
        for (maker, path) in
            [("Acme", "/redfish/v1/F/BMC"), ("Supermicro", "/redfish/v1/Managers/1")]
        {
            let quirks = Quirks::of(&[maker.to_owned()], "");
            let read = firmware(&doc(on.clone()), &quirks).unwrap();
            assert_eq!((read.id.as_str(), read.path.as_str()), ("BMC", path));
        }
    }

    #[test]
    fn a_component_is_found_by_id_name_or_software_id() {
        let list = vec![
            one("MGX_FW_BMC_0", "Software Inventory", "0x001B", "88.2"),
            one("MGX_FW_CPU_0", "Software Inventory", "0x0010", "88.3"),
            one("Current-159", "BIOS", "159", "1.8"),
            one("Installed-159", "BIOS", "159", "1.8"),
        ];
        let all = Components { list, ..Components::default() };
        for (desired, id) in [
            ("MGX_FW_BMC_0", "MGX_FW_BMC_0"),
            ("mgx_fw_cpu_0", "MGX_FW_CPU_0"),
            ("0x0010", "MGX_FW_CPU_0"),
            ("BIOS", "Current-159"),
        ] {
            assert_eq!(all.find(desired).unwrap().id, id, "{desired}");
        }
        let fault = all.find("Software Inventory").unwrap_err();
        assert!(fault.message.contains("MGX_FW_BMC_0, MGX_FW_CPU_0"), "{fault}");
        let fault = all.find("CPLD").unwrap_err();
        assert!(fault.message.contains("no firmware component \"CPLD\"; it has MGX"), "{fault}");
        let none = Components::default().find("BMC").unwrap_err();
        assert!(none.message.contains("no firmware at all"), "{none}");
        let skipped = vec!["F/2 is not there".into()];
        let fault = Components { skipped, ..all }.find("CPLD").unwrap_err();
        assert_eq!(fault.code, FaultCode::EffectFailed, "it may be the skipped one: {fault}");
    }

    #[test]
    fn a_previous_version_is_not_installed() {
        let quirks = Quirks::of(&["Dell Inc.".to_owned()], "PowerEdge");
        let all = vec![
            one("Previous-159", "BIOS", "159", "1.2"),
            one("Installed-159", "BIOS", "159", "1.8"),
        ];
        let list = installed(all, &quirks);
        let all = Components { list, ..Components::default() };
        assert_eq!(all.find("BIOS").unwrap().version, "1.8");
    }
}
