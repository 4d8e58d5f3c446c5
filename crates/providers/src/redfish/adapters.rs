//! Network adapters listed at a chassis.
//!
//! Some servers, such as NVIDIA's GB200 trays, list no Ethernet interfaces on the System. Their
//! adapters are at a chassis, with a MAC address for each function. Reading them takes many
//! requests, so it is done only when the System lists no interface.

use super::client::{MAX_MEMBERS, Skipped};
use super::decode::{JsonNode, Resource};
use super::inventory::{Nic, name};
use super::system::System;
use model::fault::Result;

/// The most chassis that are read; a GB200 tray has about fifty.
const MAX_CHASSIS: usize = 128;

impl System {
    pub(super) async fn adapters(
        &self,
        system: JsonNode<'_>,
        skipped: &mut Skipped,
    ) -> Result<Vec<Nic>> {
        let mut nics: Vec<Nic> = Vec::new();
        for chassis in self.chassis(system, skipped).await? {
            for adapter in self.members_of(chassis.root(), "NetworkAdapters", skipped).await? {
                let functions = self.members_of(adapter.root(), "NetworkDeviceFunctions", skipped);
                let found = functions.await?;
                nics.extend(found.iter().filter_map(|function| self.function(&adapter, function)));
            }
        }
        nics.sort_by(|a, b| a.mac.cmp(&b.mac));
        nics.dedup_by(|a, b| a.mac == b.mac);
        Ok(nics)
    }

    /// Every chassis of the BMC if all belong to this System, otherwise those that it links.
    async fn chassis(&self, system: JsonNode<'_>, skipped: &mut Skipped) -> Result<Vec<Resource>> {
        if let Some(path) = &self.all_chassis {
            return self.link.members(path, MAX_CHASSIS, skipped).await;
        }
        let mut chassis = Vec::new();
        let links = system.get("Links");
        for path in links.list("Chassis").filter_map(JsonNode::as_link).take(MAX_MEMBERS) {
            chassis.extend(self.link.find_or_skip(&path, skipped).await?);
        }
        Ok(chassis)
    }

    fn function(&self, adapter: &Resource, function: &Resource) -> Option<Nic> {
        let ethernet = function.root().get("Ethernet");
        let fields = ["PermanentMACAddress", "MACAddress"];
        let mac = fields.iter().find_map(|field| self.quirks.mac(&ethernet.text(field)?))?;
        let id = format!("{}/{}", name(adapter), name(function));
        Some(Nic { id, mac, ..Nic::default() })
    }
}
