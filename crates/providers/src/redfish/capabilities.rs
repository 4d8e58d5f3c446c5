//! The capabilities of a BMC, read without trying them.

use super::power::Power;
use super::system::System;
use super::{Bmc, Nic};
use model::fault::Result;

/// The identity of a System: enough to recognise the machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SystemIdentity {
    pub id: String,
    pub path: String,
    pub vendor: Option<String>,
    pub model: Option<String>,
    /// The serial number, or the service tag if the vendor uses that.
    pub serial: Option<String>,
    pub power: Option<Power>,
    pub nics: Vec<Nic>,
}

impl System {
    /// Reads the identity only: the full inventory takes minutes on some devices.
    pub async fn identity(&self) -> Result<SystemIdentity> {
        let doc = self.read().await?;
        let part = doc.root();
        let power = part.text("PowerState").and_then(|name| Power::parse(&name));
        Ok(SystemIdentity {
            id: self.id().to_owned(),
            path: self.path().to_owned(),
            vendor: part.text("Manufacturer"),
            model: part.text("Model"),
            serial: part.text("SerialNumber").or_else(|| part.text("SKU")),
            power,
            nics: self.nics(part, &mut Vec::new()).await?,
        })
    }

    /// The boot override targets that the device lists. Empty: it lists none.
    pub async fn boot_sources(&self) -> Result<Vec<String>> {
        let doc = self.read().await?;
        let boot = doc.root().get("Boot");
        if !boot.0.is_object() {
            return Err(self.lacks("boot override"));
        }
        Ok(boot.texts("BootSourceOverrideTarget@Redfish.AllowableValues"))
    }

    /// The reasons of the vendor's quirks, as sentences.
    pub fn quirks(&self) -> Vec<&'static str> {
        self.quirks.reasons()
    }
}

impl Bmc {
    /// The number of tasks at the BMC.
    pub async fn tasks(&self) -> Result<usize> {
        Ok(self.updates().tasks().await?.len())
    }
}
