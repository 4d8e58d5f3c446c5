//! Looking at one machine for a person who asks: what it is made of, what its BMC has logged, whether it is on.
//!
//! Nothing here changes anything, and nothing of it is remembered: it is what the device says now. A provider that
//! can do it says so by [`model::effect::Capability::Inspect`] and by [`crate::Provider::inspector`].

use crate::port::Target;
use crate::power::PowerState;
use crate::redfish::{HealthReport, Inventory, LogEntry};
use async_trait::async_trait;
use model::fault::Fault;

/// A machine as its BMC describes it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Inspection {
    /// What could not be read of it is named in its `skipped`.
    pub inventory: Inventory,
    pub power: Option<PowerState>,
    /// What the next boot leads to, in the device's words.
    pub boot: Option<String>,
    pub health: Option<HealthReport>,
}

#[async_trait]
pub trait Inspector: Send + Sync {
    /// Describes the machine, as far as its BMC does. A BMC that cannot be spoken to at all is a fault.
    async fn inspect(&self, target: &Target) -> Result<Inspection, Fault>;

    /// The newest entries of the BMC's event log, newest first.
    async fn event_log(&self, target: &Target, count: usize) -> Result<Vec<LogEntry>, Fault>;

    async fn power_now(&self, target: &Target) -> Result<PowerState, Fault>;
}
