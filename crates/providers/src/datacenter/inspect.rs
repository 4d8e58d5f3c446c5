//! Reads a machine's BMC for an operator. Each section is a call of its own, so that runs are
//! admitted in between, and a section that fails is listed as skipped without failing the rest.

use super::Datacenter;
use super::controller::Controller;
use crate::governor::Priority;
use crate::inspect::{Inspection, Inspector};
use crate::ipmi;
use crate::port::Target;
use crate::power::PowerState;
use crate::redfish::{HealthReport, Inventory, LogEntry};
use async_trait::async_trait;
use model::fault::Result;
use model::time::Timestamp;

#[async_trait]
impl Inspector for Datacenter {
    async fn inspect(&self, target: &Target) -> Result<Inspection> {
        // The first call shows whether the BMC can be reached.
        let power = self.power_now(target).await?;
        let mut skipped = Vec::new();
        let boot =
            value_or_skip(self.call_bmc(target, Controller::describe_boot).await, &mut skipped);
        let inventory =
            value_or_skip(self.call_bmc(target, Controller::inventory).await, &mut skipped);
        let health = value_or_skip(self.call_bmc(target, Controller::health).await, &mut skipped);
        let mut inventory = inventory.unwrap_or_default();
        inventory.skipped.splice(0..0, skipped);
        Ok(Inspection { inventory, power: Some(power), boot, health: health.flatten() })
    }

    async fn event_log(&self, target: &Target, count: usize) -> Result<Vec<LogEntry>> {
        self.call_bmc(target, async |bmc: &Controller| bmc.event_log(count).await).await
    }

    async fn power_now(&self, target: &Target) -> Result<PowerState> {
        self.read_power(target, Priority::Operator).await
    }
}

impl Datacenter {
    /// One call for an operator, with the default timeout.
    pub(super) async fn call_bmc<T>(
        &self,
        target: &Target,
        probe: impl AsyncFnOnce(&Controller) -> Result<T>,
    ) -> Result<T> {
        self.bmcs.call(target, Priority::Operator, self.settings.call_timeout, probe).await
    }
}

fn value_or_skip<T>(read: Result<T>, skipped: &mut Vec<String>) -> Option<T> {
    read.map_err(|fault| skipped.push(fault.to_string())).ok()
}

impl Controller {
    pub(super) async fn inventory(&self) -> Result<Inventory> {
        match self {
            Self::Redfish(system) => system.inventory().await,
            Self::Shelf(shelf) => shelf.place().inventory().await,
            Self::Ipmi(bmc) => Ok(ipmi_inventory(bmc.identity().await?)),
        }
    }

    /// IPMI only has sensor numbers, which mean nothing without the vendor's tables.
    async fn health(&self) -> Result<Option<HealthReport>> {
        match self {
            Self::Redfish(system) => system.health().await.map(Some),
            Self::Shelf(shelf) => shelf.place().health().await.map(Some),
            Self::Ipmi(_) => Ok(None),
        }
    }

    pub(super) async fn event_log(&self, count: usize) -> Result<Vec<LogEntry>> {
        let system = match self {
            Self::Redfish(system) => system,
            Self::Shelf(shelf) => shelf.place(),
            Self::Ipmi(bmc) => {
                return Ok(bmc.events(count).await?.into_iter().map(log_entry).collect());
            }
        };
        let entries = system.log(count).await?;
        if entries.is_empty() {
            system.logs().await?;
        }
        Ok(entries)
    }
}

/// Everything that IPMI reports about a machine.
fn ipmi_inventory(identity: ipmi::Identity) -> Inventory {
    let ipmi::Identity { manufacturer, product, firmware, ipmi_version, guid } = identity;
    Inventory {
        vendor: Some(format!("manufacturer {manufacturer} (IANA)")),
        model: Some(format!("product {product}, IPMI {ipmi_version}")),
        uuid: guid,
        bmc_version: Some(firmware),
        skipped: vec!["IPMI does not tell of processors, memory, disks and network cards".into()],
        ..Inventory::default()
    }
}

fn log_entry(event: ipmi::Event) -> LogEntry {
    LogEntry {
        id: event.id.to_string(),
        log: "SEL".into(),
        at: event.at_s.map(|seconds| Timestamp::from_millis(i64::from(seconds) * 1_000)),
        severity: None,
        message: event.describe(),
    }
}
