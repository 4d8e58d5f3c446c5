//! Component firmware: decides for each device of a request how it is upgraded, before anything is
//! started.
//!
//! Machines and switches are upgraded by their rack, all devices of one rack in one operation.
//! Power shelves are upgraded directly.

use crate::effect::DeviceFacts;
use crate::firmware::{Firmware, FirmwareResolution};
use crate::gate::{Gate, Overrides};
use crate::health::HealthImpact;
use crate::id::{RackId, RunId};
use crate::lifecycle::Lifecycle;
use crate::power_shelf::{PowerShelf, PowerShelfState};
use crate::refusal::{Reason, Refusal};
use crate::target::{TargetId, TargetKind};

/// The number of devices that one request may name.
pub const MAX_DEVICES: usize = 768;

/// The current state of a device that a request names.
#[derive(Debug, Clone)]
pub struct UpgradeCandidate {
    pub target: TargetId,
    pub rack: Option<RackId>,
    pub facts: DeviceFacts,
    /// The run that holds the device now.
    pub active_run: Option<RunId>,
    /// The firmware that the request resolves to for this device.
    pub desired: FirmwareResolution,
    /// The gate's decision on an upgrade of the device. Used for power shelves only: for machines
    /// and switches the rack decides.
    pub gate: Result<(), Refusal>,
    /// The gate that refuses without the override of the request.
    pub refusing: Option<Gate>,
    /// The run that an earlier delivery of the same request created.
    pub existing_run: Option<RunId>,
}

/// The way in which a device gets its firmware.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpgradePath {
    /// An earlier delivery of the same request created this run.
    AlreadyStarted(RunId),
    Refused(Refusal),
    /// By an operation on its rack.
    ByRack(RackId),
    /// By an operation on the device itself.
    Direct(Box<Firmware>),
}

/// Decides how a device is upgraded. The recorded versions do not matter, because they may be
/// outdated: the operation reads the device's versions itself and skips a device that is up to
/// date.
pub fn choose_upgrade_path(device: &UpgradeCandidate) -> UpgradePath {
    if let Some(run) = &device.existing_run {
        return UpgradePath::AlreadyStarted(run.clone());
    }
    let id = &device.target;
    let firmware = match &device.desired {
        FirmwareResolution::Use(firmware) => firmware,
        FirmwareResolution::Skip(why) => {
            let message = format!("{id}: {why}");
            return UpgradePath::Refused(Refusal::new(Reason::FirmwareUnavailable, message));
        }
        FirmwareResolution::Unknown(firmware) => {
            return UpgradePath::Refused(Refusal::not_found(
                "firmware",
                firmware,
                "farrier firmware list",
            ));
        }
    };
    let kind = id.kind;
    if firmware.versions(kind).is_empty() {
        let message = format!("firmware {} has nothing for {id}, a {}", firmware.id, kind.noun());
        return UpgradePath::Refused(Refusal::new(Reason::FirmwareEmpty, message));
    }
    match (kind, &device.rack) {
        (TargetKind::PowerShelf, _) => match &device.gate {
            Ok(()) => UpgradePath::Direct(firmware.clone()),
            Err(refusal) => UpgradePath::Refused(refusal.clone()),
        },
        (TargetKind::Machine | TargetKind::Switch, Some(rack)) => UpgradePath::ByRack(rack.clone()),
        (TargetKind::Machine | TargetKind::Switch, None) => {
            let message = format!("{id} stands in no rack, and racks upgrade {}s", kind.noun());
            UpgradePath::Refused(Refusal::new(Reason::NoRack, message))
        }
        (TargetKind::Rack, _) => {
            let message = format!("{id} is a rack, not a device");
            UpgradePath::Refused(Refusal::new(Reason::NoDevice, message))
        }
    }
}

/// Checks whether a power shelf admits a firmware upgrade now: no run holds it, it is `Ready` or in
/// `Error`, and its health permits the change.
pub fn admit_shelf(shelf: &PowerShelf, overrides: &Overrides) -> Result<(), Refusal> {
    let id = &shelf.head.id;
    let target = TargetId::new(TargetKind::PowerShelf, id.as_str());
    if let Some(run) = &shelf.head.active_run {
        return Err(target.refuse_held(run));
    }
    let settled = match shelf.state {
        PowerShelfState::Ready | PowerShelfState::Error { .. } => !shelf.head.deleted,
        PowerShelfState::Initializing
        | PowerShelfState::FetchingData
        | PowerShelfState::Configuring
        | PowerShelfState::Maintenance { .. }
        | PowerShelfState::Deleting => false,
    };
    if !settled {
        let message =
            format!("{id} is {}: its firmware must wait until it is Ready", shelf.state_name());
        return Err(Refusal::new(Reason::NotReady, message).next(format!("farrier why {id}")));
    }
    shelf.head.health.check_permitted(
        &target,
        "a firmware upgrade",
        HealthImpact::Change,
        overrides,
    )
}

/// Power shelves are upgraded all or none: if any device of the list is refused, no direct upgrade
/// starts.
pub fn refuse_all_if_any_refused(
    courses: Vec<(TargetId, UpgradePath)>,
) -> Vec<(TargetId, UpgradePath)> {
    let refused = courses.iter().find_map(|(_, plan)| match plan {
        UpgradePath::Refused(refusal) => Some(refusal.clone()),
        UpgradePath::AlreadyStarted(_) | UpgradePath::ByRack(_) | UpgradePath::Direct(_) => None,
    });
    let Some(refusal) = refused else { return courses };
    let held_back = |(target, plan): (TargetId, UpgradePath)| match plan {
        UpgradePath::Direct(_) => {
            let text = format!("{target} was left alone, all or none: {}", refusal.message);
            (target, UpgradePath::Refused(Refusal { message: text, ..refusal.clone() }))
        }
        UpgradePath::AlreadyStarted(_) | UpgradePath::ByRack(_) | UpgradePath::Refused(_) => {
            (target, plan)
        }
    };
    courses.into_iter().map(held_back).collect()
}
