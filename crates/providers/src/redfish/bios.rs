//! BIOS settings: the current ones and those that apply after the next reset.
//!
//! New settings are written to a settings resource and stay pending until a reset, so a write is
//! confirmed by reading what is pending. A setting that already has its value is not sent: some
//! devices start a job of an hour for a write that changes nothing.

use super::classification::unconfirmed;
use super::decode::{JsonNode, Resource};
use super::system::System;
use model::fault::{Fault, FaultCode, Result};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attribute {
    Text(String),
    Number(i64),
    Flag(bool),
    /// The device lists the setting without its value, as it does for passwords.
    Hidden,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bios {
    pub current: BTreeMap<String, Attribute>,
    /// Values that apply after the next reset and differ from the current ones.
    pub pending: BTreeMap<String, Attribute>,
}

impl Attribute {
    fn of(value: &Value) -> Option<Self> {
        match value {
            Value::String(text) => Some(Self::Text(text.clone())),
            Value::Number(number) => number.as_i64().map(Self::Number),
            Value::Bool(flag) => Some(Self::Flag(*flag)),
            Value::Null => Some(Self::Hidden),
            Value::Array(_) | Value::Object(_) => None,
        }
    }

    fn sent(&self) -> Value {
        match self {
            Self::Text(text) => json!(text),
            Self::Number(number) => json!(number),
            Self::Flag(flag) => json!(flag),
            Self::Hidden => Value::Null,
        }
    }
}

/// The two resources from which settings are read.
struct BiosResources {
    current: Resource,
    /// The resource to which new settings are written; `current` on devices without a settings
    /// resource.
    pending: Resource,
}

impl System {
    pub async fn bios(&self) -> Result<Bios> {
        let sheets = self.read_bios_resources().await?;
        let current = attributes(sheets.current.root());
        let mut pending = attributes(sheets.pending.root());
        pending.retain(|name, value| current.get(name) != Some(value));
        Ok(Bios { current, pending })
    }

    /// Sets the values that differ, for the next reset, and reads back that they are pending.
    pub async fn set_bios(&self, desired: &BTreeMap<String, Attribute>) -> Result<Bios> {
        let sheets = self.read_bios_resources().await?;
        let current = attributes(sheets.current.root());
        let unknown = desired.keys().find(|name| !current.contains_key(*name));
        if let Some(name) = unknown {
            return Err(self.lacks(&format!("BIOS setting {name:?}")));
        }
        let pending = attributes(sheets.pending.root());
        let lies_ahead = |name: &str| pending.get(name).or_else(|| current.get(name));
        let missing: Map<String, Value> = desired
            .iter()
            .filter(|(name, value)| lies_ahead(name.as_str()) != Some(*value))
            .map(|(name, value)| (name.clone(), value.sent()))
            .collect();
        let changes = !missing.is_empty();
        if changes {
            let mut body = json!({ "Attributes": missing });
            if let Some(when) = self.quirks.apply_time() {
                body["@Redfish.SettingsApplyTime"] = json!({ "ApplyTime": when });
            }
            self.link.patch(&sheets.pending, &body).await?;
        }
        let observed = self.bios().await;
        let observed =
            observed.map_err(|fault| if changes { unconfirmed(fault) } else { fault })?;
        let lost = desired.iter().find(|(name, value)| {
            observed.pending.get(*name).or_else(|| observed.current.get(*name)) != Some(*value)
        });
        match lost {
            None => Ok(observed),
            Some((name, _)) => {
                let message = format!(
                    "{} took the BIOS setting {name:?} and does not show it",
                    self.link.endpoint()
                );
                Err(Fault::new(FaultCode::ReadBackDiffers, message))
            }
        }
    }

    async fn read_bios_resources(&self) -> Result<BiosResources> {
        let system = self.read().await?;
        let path = system.root().link("Bios").ok_or_else(|| self.lacks("BIOS settings"))?;
        let current = self.link.get(&path).await?;
        let settings = current.root().get("@Redfish.Settings").link("SettingsObject");
        let pending = match settings.filter(|settings| *settings != path) {
            Some(settings) => self.link.get(&settings).await?,
            None => current.clone(),
        };
        Ok(BiosResources { current, pending })
    }
}

fn attributes(part: JsonNode<'_>) -> BTreeMap<String, Attribute> {
    let fields = part.get("Attributes").0.as_object();
    fields
        .into_iter()
        .flatten()
        .filter(|(name, _)| !name.contains('@'))
        .filter_map(|(name, value)| Some((name.clone(), Attribute::of(value)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_by_name() {
        let doc = json!({"Attributes": {
            "BootMode": "Uefi", "Cores": 4, "Turbo": true, "Password": null,
            "Password@odata.type": "x", "Odd": [1]}});
        let read = attributes(JsonNode(&doc));
        assert_eq!(read.len(), 4);
        assert_eq!(read["BootMode"], Attribute::Text("Uefi".into()));
        assert_eq!(read["Cores"], Attribute::Number(4));
        for value in read.values() {
            assert_eq!(Attribute::of(&value.sent()).as_ref(), Some(value));
        }
        assert!(attributes(JsonNode(&json!({"Attributes": null}))).is_empty());
    }
}
