//! Component firmware: decides for each device of a request how it is upgraded, before anything is
//! started.
//!
//! Machines and switches are upgraded by their rack, all devices of one rack in one operation.
//! Power shelves are upgraded directly.

use crate::effect::Facts;
use crate::firmware::{Firmware, Resolution};
use crate::health::Wish;
use crate::id::{RackId, RunId};
use crate::lifecycle::Lifecycle;
use crate::power_shelf::{PowerShelf, PowerShelfState};
use crate::refusal::Refusal;
use crate::target::{TargetId, TargetKind};

/// The number of devices that one request may name.
pub const MAX_DEVICES: usize = 768;

/// The current state of a device that a request names.
#[derive(Debug, Clone)]
pub struct Device {
    pub target: TargetId,
    pub rack: Option<RackId>,
    pub facts: Facts,
    /// The run that holds the device now.
    pub active_run: Option<RunId>,
    /// The firmware that the request resolves to for this device.
    pub wanted: Resolution,
    /// The gate's decision on an upgrade of the device. Used for power shelves only: for machines
    /// and switches the rack decides.
    pub gate: Result<(), Refusal>,
    /// The run that an earlier delivery of the same request created.
    pub made: Option<RunId>,
}

/// The way in which a device gets its firmware.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Course {
    /// An earlier delivery of the same request created this run.
    Made(RunId),
    Refused(Refusal),
    /// By an operation on its rack.
    ByRack(RackId),
    /// By an operation on the device itself.
    Directly(Box<Firmware>),
}

/// Decides how a device is upgraded. The recorded versions do not matter, because they may be
/// outdated: the operation reads the device's versions itself and skips a device that is up to
/// date.
pub fn course(device: &Device) -> Course {
    if let Some(run) = &device.made {
        return Course::Made(run.clone());
    }
    let id = &device.target;
    let firmware = match &device.wanted {
        Resolution::Use(firmware) => firmware,
        Resolution::Skip(why) => {
            let said = format!("{id}: {why}");
            return Course::Refused(Refusal::precondition("FIRMWARE_UNAVAILABLE", said));
        }
        Resolution::Unknown(firmware) => {
            return Course::Refused(Refusal::not_found(
                "firmware",
                firmware,
                "farrier firmware list",
            ));
        }
    };
    let kind = id.kind;
    if firmware.versions(kind).is_empty() {
        let said = format!("firmware {} has nothing for {id}, a {}", firmware.id, kind.noun());
        return Course::Refused(Refusal::precondition("FIRMWARE_EMPTY", said));
    }
    match (kind, &device.rack) {
        (TargetKind::PowerShelf, _) => match &device.gate {
            Ok(()) => Course::Directly(firmware.clone()),
            Err(refusal) => Course::Refused(refusal.clone()),
        },
        (TargetKind::Machine | TargetKind::Switch, Some(rack)) => Course::ByRack(rack.clone()),
        (TargetKind::Machine | TargetKind::Switch, None) => {
            let said = format!("{id} stands in no rack, and racks upgrade {}s", kind.noun());
            Course::Refused(Refusal::precondition("NO_RACK", said))
        }
        (TargetKind::Rack, _) => {
            let said = format!("{id} is a rack, not a device");
            Course::Refused(Refusal::precondition("NO_DEVICE", said))
        }
    }
}

/// Checks whether a power shelf admits a firmware upgrade now: no run holds it, it is `Ready` or in
/// `Error`, and its health permits the change.
pub fn admit_shelf(shelf: &PowerShelf, force: Option<&str>) -> Result<(), Refusal> {
    let id = &shelf.head.id;
    let target = TargetId::new(TargetKind::PowerShelf, id.as_str());
    if let Some(run) = &shelf.head.active_run {
        return Err(target.held_by(run));
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
        let said = format!("{id} is {}: its firmware must wait until it is Ready", shelf.word());
        return Err(Refusal::precondition("NOT_READY", said).next(format!("farrier why {id}")));
    }
    shelf.head.health.permit(&target, "a firmware upgrade", Wish::Change, force)
}

/// Power shelves are upgraded all or none: if any device of the list is refused, no direct upgrade
/// starts.
pub fn all_or_none(courses: Vec<(TargetId, Course)>) -> Vec<(TargetId, Course)> {
    let refused = courses.iter().find_map(|(_, course)| match course {
        Course::Refused(refusal) => Some(refusal.clone()),
        Course::Made(_) | Course::ByRack(_) | Course::Directly(_) => None,
    });
    let Some(refusal) = refused else { return courses };
    let held_back = |(target, course): (TargetId, Course)| match course {
        Course::Directly(_) => {
            let said = format!("{target} was left alone, all or none: {}", refusal.said);
            (target, Course::Refused(Refusal { said, ..refusal.clone() }))
        }
        Course::Made(_) | Course::ByRack(_) | Course::Refused(_) => (target, course),
    };
    courses.into_iter().map(held_back).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::firmware::Component;
    use crate::id::FirmwareId;
    use crate::time::Timestamp;
    use std::collections::BTreeMap;

    fn firmware(kinds: &[TargetKind]) -> Resolution {
        let component = Component {
            name: "BMC".into(),
            version: "2.0".into(),
            url: "http://h/x".into(),
            sha256: "a".repeat(64),
        };
        Resolution::Use(Box::new(Firmware {
            id: FirmwareId::trusted("fw-2"),
            hardware_type: "x".into(),
            description: String::new(),
            components: kinds.iter().map(|kind| (*kind, vec![component.clone()])).collect(),
            is_default: false,
            available: true,
            created_at: Timestamp::default(),
        }))
    }

    fn device(kind: TargetKind, rack: Option<&str>, has: &str, wanted: Resolution) -> Device {
        let versions = BTreeMap::from([("BMC".to_string(), has.to_string())]);
        Device {
            target: TargetId::new(kind, "d"),
            rack: rack.map(RackId::trusted),
            facts: Facts { firmware: versions, ..Facts::default() },
            active_run: None,
            wanted,
            gate: Ok(()),
            made: None,
        }
    }

    #[test]
    fn each_device_takes_its_course() {
        use TargetKind::{Machine, PowerShelf, Rack, Switch};
        let all = || firmware(&[Machine, Switch, PowerShelf]);
        let rack = Some("rack-1");
        let skip = Resolution::Skip("not available".into());
        let unknown = Resolution::Unknown(FirmwareId::trusted("nope"));
        let table = [
            (device(Machine, rack, "1.0", all()), "by rack-1"),
            (device(Switch, rack, "1.0", all()), "by rack-1"),
            (device(PowerShelf, rack, "1.0", all()), "directly"),
            (device(PowerShelf, None, "1.0", all()), "directly"),
            (device(Machine, None, "1.0", all()), "NO_RACK"),
            (device(Switch, None, "1.0", all()), "NO_RACK"),
            // The recorded version does not matter: it may be outdated.
            (device(Machine, rack, "2.0", all()), "by rack-1"),
            (device(Machine, None, "2.0", all()), "NO_RACK"),
            (device(PowerShelf, rack, "2.0", all()), "directly"),
            (device(Machine, rack, "1.0", firmware(&[Switch])), "FIRMWARE_EMPTY"),
            (device(Machine, rack, "1.0", skip), "FIRMWARE_UNAVAILABLE"),
            (device(Switch, rack, "1.0", unknown), "NOT_FOUND"),
            (device(Rack, rack, "1.0", firmware(&[Rack])), "NO_DEVICE"),
        ];
        for (device, expected) in table {
            let shown = match course(&device) {
                Course::Made(run) => run.to_string(),
                Course::Refused(refusal) => refusal.reason.into(),
                Course::ByRack(rack) => format!("by {rack}"),
                Course::Directly(_) => "directly".into(),
            };
            assert_eq!(shown, expected, "{device:?}");
            let made = Some(RunId::trusted("op-1"));
            let again = Device { made: made.clone(), ..device };
            assert_eq!(course(&again), Course::Made(RunId::trusted("op-1")));
        }
    }

    #[test]
    fn a_shelf_is_upgraded_where_nothing_else_is_done_to_it() {
        use crate::lifecycle::{DeviceSpec, Head, Trouble};
        use crate::machine::Labels;
        let trouble = Trouble { said: String::new(), run: None, code: String::new() };
        let table = [
            (PowerShelfState::Initializing, false),
            (PowerShelfState::FetchingData, false),
            (PowerShelfState::Configuring, false),
            (PowerShelfState::Ready, true),
            (PowerShelfState::Maintenance { operation: crate::effect::PowerTo::On }, false),
            (PowerShelfState::Error { cause: trouble }, true),
            (PowerShelfState::Deleting, false),
        ];
        for (state, admitted) in table {
            let head = Head::new("ps-1", Labels::new(), Timestamp::default());
            let mut shelf = PowerShelf::new(head, DeviceSpec::default());
            shelf.state = state;
            assert_eq!(admit_shelf(&shelf, None).is_ok(), admitted, "{:?}", shelf.state);
            shelf.head.active_run = Some(RunId::trusted("op-1"));
            assert_eq!(admit_shelf(&shelf, None).unwrap_err().reason, "DEVICE_BUSY");
            shelf.head.active_run = None;
            shelf.head.deleted = true;
            assert!(admit_shelf(&shelf, None).is_err());
        }
    }

    #[test]
    fn one_that_is_refused_holds_the_others_back() {
        let Resolution::Use(firmware) = firmware(&[TargetKind::PowerShelf]) else { panic!() };
        let named = |id: &str, course| (TargetId::new(TargetKind::PowerShelf, id), course);
        let direct = || named("ps-1", Course::Directly(firmware.clone()));
        let made = || named("ps-2", Course::Made(RunId::trusted("op-1")));
        let busy = || {
            let target = TargetId::new(TargetKind::PowerShelf, "ps-3");
            let refusal = target.held_by(&RunId::trusted("op-9"));
            (target, Course::Refused(refusal))
        };
        assert_eq!(all_or_none(vec![direct(), made()]), [direct(), made()]);
        let all = all_or_none(vec![direct(), made(), busy()]);
        let Course::Refused(refusal) = &all[0].1 else { panic!("{all:?}") };
        assert!(refusal.said.contains("ps-3 is held by operation op-9"), "{refusal}");
        assert_eq!(all[1..], [made(), busy()]);
    }
}
