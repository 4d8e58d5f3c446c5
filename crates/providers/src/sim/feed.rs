//! The power that the shelves give: a device whose shelves are all off does not answer.

use super::Sim;
use super::hardware::Power;
use crate::port::Target;
use model::condition::{ConditionObservation, ConditionType};
use model::fault::{Fault, FaultCode, Result};
use model::id::{MachineId, PowerShelfId};

impl Sim {
    /// False if every power shelf that is known to feed the device is off. Remembers the shelves,
    /// for those who see the device only through MAAS.
    pub(super) fn is_fed(&self, target: &Target) -> Result<bool> {
        let feeds = &target.spec.feeds;
        if feeds.is_empty() {
            return Ok(true);
        }
        self.with_hardware(&target.machine_id(), |hardware, _| hardware.feeds.clone_from(feeds))?;
        self.is_one_on(feeds)
    }

    /// The same for a machine of which nothing else is known.
    pub(super) fn has_feed(&self, machine: &MachineId) -> Result<bool> {
        let feeds = self.with_hardware(machine, |hardware, _| hardware.feeds.clone())?;
        self.is_one_on(&feeds)
    }

    fn is_one_on(&self, feeds: &[PowerShelfId]) -> Result<bool> {
        for shelf in feeds {
            let shelf = MachineId::trusted(shelf.as_str());
            if self.with_hardware(&shelf, |shelf, _| shelf.power == Power::On)? {
                return Ok(true);
            }
        }
        Ok(feeds.is_empty())
    }

    /// Without power, no BMC answers.
    pub(super) fn check_fed(&self, target: &Target) -> Result<()> {
        if self.is_fed(target)? {
            return Ok(());
        }
        let id = &target.id;
        let message = format!("the BMC of {id} has no power: its power shelves are off");
        Err(Fault::new(FaultCode::BmcUnreachable, message))
    }
}

/// The observations of a probe of a machine that no power shelf feeds: neither its system nor its
/// BMC answers.
pub fn probe_unfed() -> Vec<ConditionObservation> {
    let lost =
        |condition, code: FaultCode| ConditionObservation::new(condition, false, code.as_str());
    vec![
        lost(ConditionType::Reachable, FaultCode::HostUnreachable),
        lost(ConditionType::BmcReachable, FaultCode::BmcUnreachable),
    ]
}
