//! Component firmware: what a request for several devices comes to, device by device, before anything is started.
//!
//! Machines and switches are upgraded by their rack, all of one rack in one operation. Power shelves are upgraded directly.

use crate::effect::Facts;
use crate::firmware::{Firmware, Resolution};
use crate::id::{RackId, RunId};
use crate::refusal::Refusal;
use crate::target::{TargetId, TargetKind};

/// The most devices that one request may name.
pub const MAX_DEVICES: usize = 768;

/// A device that a request names, as it is now.
#[derive(Debug, Clone)]
pub struct Device {
    pub target: TargetId,
    pub rack: Option<RackId>,
    pub facts: Facts,
    /// Who works on it now.
    pub active_run: Option<RunId>,
    /// What it is to have.
    pub wanted: Resolution,
    /// What this very request has made before, when it is repeated.
    pub made: Option<RunId>,
}

/// How a device gets its firmware.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Course {
    /// The request was made before, and this is what it made.
    Made(RunId),
    /// It has it, and is left alone.
    Already(String),
    Refused(Refusal),
    /// By an operation on its rack.
    ByRack(RackId),
    /// By an operation of its own.
    Directly(Box<Firmware>),
}

pub fn course(device: &Device) -> Course {
    if let Some(run) = &device.made {
        return Course::Made(run.clone());
    }
    let id = &device.target;
    let firmware = match &device.wanted {
        Resolution::Use(firmware) => firmware,
        Resolution::Skip(why) => return refused("FIRMWARE_UNAVAILABLE", format!("{id}: {why}")),
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
        return refused("FIRMWARE_EMPTY", said);
    }
    if firmware.missing_on(kind, &device.facts.firmware).is_empty() {
        return Course::Already(format!("{id} is already at firmware {}", firmware.id));
    }
    match (kind, &device.rack) {
        (TargetKind::PowerShelf, _) => Course::Directly(firmware.clone()),
        (TargetKind::Machine | TargetKind::Switch, Some(rack)) => Course::ByRack(rack.clone()),
        (TargetKind::Machine | TargetKind::Switch, None) => {
            let said = format!("{id} stands in no rack, and racks upgrade {}s", kind.noun());
            refused("NO_RACK", said)
        }
        (TargetKind::Rack, _) => refused("NO_DEVICE", format!("{id} is a rack, not a device")),
    }
}

fn refused(reason: &'static str, said: String) -> Course {
    Course::Refused(Refusal::precondition(reason, said))
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
            (device(Machine, rack, "2.0", all()), "already"),
            (device(Machine, None, "2.0", all()), "already"),
            (device(PowerShelf, rack, "2.0", all()), "already"),
            (device(Machine, rack, "1.0", firmware(&[Switch])), "FIRMWARE_EMPTY"),
            (device(Machine, rack, "1.0", skip), "FIRMWARE_UNAVAILABLE"),
            (device(Switch, rack, "1.0", unknown), "NOT_FOUND"),
            (device(Rack, rack, "1.0", firmware(&[Rack])), "NO_DEVICE"),
        ];
        for (device, expected) in table {
            let shown = match course(&device) {
                Course::Made(run) => run.to_string(),
                Course::Already(_) => "already".into(),
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
}
