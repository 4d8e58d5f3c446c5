//! The work that the upgrade of a host to a firmware needs.

use crate::effect::DeviceFacts;
use crate::firmware::{Firmware, FirmwareResolution};
use crate::id::FirmwareId;
use crate::plan::RunStep;
use crate::target::TargetKind;

/// The work of an upgrade by the host itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FirmwareCheck {
    /// Nothing to do, and why.
    Nothing(String),
    /// The named firmware does not exist.
    Unknown(String),
    /// The run reads the host's versions and installs what differs.
    Install {
        firmware: FirmwareId,
        steps: Vec<RunStep>,
        /// The recorded versions, component by component. For information only: a board may have
        /// been replaced since they were read.
        known: Vec<String>,
    },
}

/// Decides what to do for a host to have a firmware. The run reads whether the host has it already.
pub fn check_firmware(facts: &DeviceFacts, firmware: &FirmwareResolution) -> FirmwareCheck {
    let kind = TargetKind::Machine;
    match firmware {
        FirmwareResolution::Skip(why) => {
            FirmwareCheck::Nothing(format!("no firmware was applied: {why}"))
        }
        FirmwareResolution::Unknown(id) => {
            FirmwareCheck::Unknown(format!("no firmware {id} is in the catalogue"))
        }
        FirmwareResolution::Use(one) => {
            let steps = one.steps(kind);
            if steps.is_empty() {
                let message = format!("firmware {} has nothing for machines", one.id);
                return FirmwareCheck::Nothing(message);
            }
            let differs = one.missing_on(kind, &facts.firmware);
            let known = if differs.is_empty() { vec![last_seen(one)] } else { differs };
            FirmwareCheck::Install { firmware: one.id.clone(), steps, known }
        }
    }
}

fn last_seen(firmware: &Firmware) -> String {
    let versions = firmware.versions(TargetKind::Machine).into_iter();
    let versions: Vec<String> = versions.map(|(name, at)| format!("{name} {at}")).collect();
    format!("it was last seen at {}, and is asked all the same", versions.join(", "))
}
