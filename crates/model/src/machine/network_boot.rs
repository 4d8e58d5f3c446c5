//! Network boot: what the record of a machine says about the source of its next boot.
//!
//! A reimage arms a boot from the network for the next boot of the machine. A cancel disarms it; a
//! failed operation leaves it armed, because a retry of the failed step needs it. The commit that
//! ends an operation records what it has left, so that the machine does not go back into service
//! unnoticed.

use super::{MAAS, Machine};
use crate::effect::{Effect, NetbootMode};
use crate::id::{MachineId, RunId};
use crate::plan::boot_from_disk_plan;
use crate::run::{Run, StepPhase};
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};

/// A boot from the network that is armed, as far as is known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkBoot {
    pub armed_by: RunId,
    /// The end of that operation.
    pub since: Timestamp,
}

impl NetworkBoot {
    /// A sentence about the machine, which it calls "it".
    pub fn describe(&self) -> String {
        let run = &self.armed_by;
        format!("its next boot may be from the network: {run} armed it, and nothing disarmed it")
    }

    /// The command that disarms it.
    pub fn disarm_command(machine: &MachineId) -> String {
        let plan = boot_from_disk_plan().id;
        format!("farrier operation start {machine} --type POWER --plan {plan}")
    }
}

impl Machine {
    /// Records the observation that the next boot is from disk: the boot from the network that this
    /// run armed has happened, or was disarmed elsewhere. True if the record has changed.
    pub fn forget_network_boot(&mut self, armed_by: &RunId) -> bool {
        self.network_boot.take_if(|boot| boot.armed_by == *armed_by).is_some()
    }

    /// Records what an ended run has left as the source of the next boot.
    pub fn record_network_boot(&mut self, run: &Run) {
        let Some(since) = run.progress.finished_at.filter(|_| run.ended()) else { return };
        // A MAAS chooses the source of each boot itself.
        match leaves_armed(run) {
            Some(true) if self.spec.provider != MAAS => {
                self.network_boot = Some(NetworkBoot { armed_by: run.spec.id.clone(), since });
            }
            Some(_) => self.network_boot = None,
            None => {}
        }
    }
}

/// True if the run has left a boot from the network armed. None: it did nothing about it.
fn leaves_armed(run: &Run) -> Option<bool> {
    run.progress.steps.iter().fold(None, |armed, step| {
        let done = step.state == StepPhase::Succeeded;
        let executed = step.attempt > 0;
        match run.effect(step) {
            // An attempt whose outcome is unknown may have reached the BMC.
            Some(Effect::Netboot { mode: NetbootMode::Pxe })
                if (done && executed) || run.outcome_unknown(step) =>
            {
                Some(true)
            }
            Some(Effect::Netboot { mode: NetbootMode::Disk } | Effect::Repave { .. }) if done => {
                Some(false)
            }
            // The setting holds for one boot.
            Some(Effect::Reboot { .. }) if done && executed => Some(false),
            Some(
                Effect::Netboot { .. }
                | Effect::Repave { .. }
                | Effect::Reboot { .. }
                | Effect::Ssh { .. }
                | Effect::Join { .. }
                | Effect::Leave { .. }
                | Effect::Verify { .. }
                | Effect::Net { .. }
                | Effect::Rma { .. }
                | Effect::Drain { .. }
                | Effect::Uncordon { .. }
                | Effect::Power { .. }
                | Effect::Device { .. }
                | Effect::Stage { .. }
                | Effect::ChildRuns { .. },
            )
            | None => armed,
        }
    })
}
