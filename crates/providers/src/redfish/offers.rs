//! What a BMC offers, read and not tried: for whoever wants to know what can be done with it before anything is.

use super::power::Power;
use super::system::System;
use super::{Bmc, Nic};
use model::fault::Fault;

/// A System at a glance: enough to recognise the machine by.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Glance {
    pub id: String,
    pub path: String,
    pub vendor: Option<String>,
    pub model: Option<String>,
    /// The serial number, or the service tag where the vendor's machines are known by that.
    pub serial: Option<String>,
    pub power: Option<Power>,
    pub nics: Vec<Nic>,
}

impl System {
    /// Reads what the machine is recognised by, and no more: the whole inventory takes minutes on some devices.
    pub async fn glance(&self) -> Result<Glance, Fault> {
        let doc = self.read().await?;
        let part = doc.root();
        let power = part.text("PowerState").and_then(|word| Power::parse(&word));
        Ok(Glance {
            id: self.id().to_owned(),
            path: self.path().to_owned(),
            vendor: part.text("Manufacturer"),
            model: part.text("Model"),
            serial: part.text("SerialNumber").or_else(|| part.text("SKU")),
            power,
            nics: self.nics(part, &mut Vec::new()).await?,
        })
    }

    /// What a boot override may lead to, in the device's words. Empty: it does not say.
    pub async fn boot_sources(&self) -> Result<Vec<String>, Fault> {
        let doc = self.read().await?;
        let boot = doc.root().get("Boot");
        if !boot.0.is_object() {
            return Err(self.lacks("boot override"));
        }
        Ok(boot.texts("BootSourceOverrideTarget@Redfish.AllowableValues"))
    }

    /// How its vendor differs from others, in sentences.
    pub fn quirks(&self) -> Vec<&'static str> {
        self.quirks.reasons()
    }
}

impl Bmc {
    /// How many tasks the BMC knows of.
    pub async fn tasks(&self) -> Result<usize, Fault> {
        Ok(self.updates().tasks().await?.len())
    }
}
