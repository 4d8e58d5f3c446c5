//! Reads one machine for an operator: inventory, event log and power state.
//!
//! Nothing is changed or stored. A provider that implements it has
//! [`model::effect::Capability::Inspect`] and returns [`crate::Provider::inspector`].

use crate::port::Target;
use crate::power::PowerState;
use crate::redfish::{HealthReport, Inventory, LogEntry};
use async_trait::async_trait;
use model::fault::Result;

/// A machine as its BMC describes it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Inspection {
    /// Its `skipped` names the sections that could not be read.
    pub inventory: Inventory,
    pub power: Option<PowerState>,
    /// The boot target of the next boot, in the device's words.
    pub boot: Option<String>,
    pub health: Option<HealthReport>,
}

#[async_trait]
pub trait Inspector: Send + Sync {
    /// Reads as much as the BMC reports. A BMC that cannot be reached at all is a fault.
    async fn inspect(&self, target: &Target) -> Result<Inspection>;

    /// The newest entries of the BMC's event log, newest first.
    async fn event_log(&self, target: &Target, count: usize) -> Result<Vec<LogEntry>>;

    async fn power_now(&self, target: &Target) -> Result<PowerState>;
}
