//! Firmware upgrades of single devices.

use model::component::{
    UpgradeCandidate, UpgradePath, admit_shelf, choose_upgrade_path, refuse_all_if_any_refused,
};
use model::effect::DeviceFacts;
use model::firmware::{Firmware, FirmwareComponent, FirmwareResolution};
use model::gate::Overrides;
use model::id::{FirmwareId, RackId, RunId};
use model::power_shelf::{PowerShelf, PowerShelfState};
use model::target::{TargetId, TargetKind};
use model::time::Timestamp;
use std::collections::BTreeMap;

fn firmware(kinds: &[TargetKind]) -> FirmwareResolution {
    let component = FirmwareComponent {
        name: "BMC".into(),
        version: "2.0".into(),
        url: "http://h/x".into(),
        sha256: "a".repeat(64),
    };
    FirmwareResolution::Use(Box::new(Firmware {
        id: FirmwareId::trusted("fw-2"),
        hardware_type: "x".into(),
        description: String::new(),
        components: kinds.iter().map(|kind| (*kind, vec![component.clone()])).collect(),
        is_default: false,
        available: true,
        created_at: Timestamp::default(),
        version: 1,
    }))
}

fn device(
    kind: TargetKind,
    rack: Option<&str>,
    has: &str,
    requested: FirmwareResolution,
) -> UpgradeCandidate {
    let versions = BTreeMap::from([("BMC".to_string(), has.to_string())]);
    UpgradeCandidate {
        target: TargetId::new(kind, "d"),
        rack: rack.map(RackId::trusted),
        facts: DeviceFacts { firmware: versions, ..DeviceFacts::default() },
        active_run: None,
        desired: requested,
        gate: Ok(()),
        refusing: None,
        existing_run: None,
    }
}

#[test]
fn each_device_takes_its_course() {
    use TargetKind::{Machine, PowerShelf, Rack, Switch};
    let all = || firmware(&[Machine, Switch, PowerShelf]);
    let rack = Some("rack-1");
    let skip = FirmwareResolution::Skip("not available".into());
    let unknown = FirmwareResolution::Unknown(FirmwareId::trusted("nope"));
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
        let shown = match choose_upgrade_path(&device) {
            UpgradePath::AlreadyStarted(run) => run.to_string(),
            UpgradePath::Refused(refusal) => refusal.reason.as_str().into(),
            UpgradePath::ByRack(rack) => format!("by {rack}"),
            UpgradePath::Direct(_) => "directly".into(),
        };
        assert_eq!(shown, expected, "{device:?}");
        let made = Some(RunId::trusted("op-1"));
        let again = UpgradeCandidate { existing_run: made.clone(), ..device };
        assert_eq!(
            choose_upgrade_path(&again),
            UpgradePath::AlreadyStarted(RunId::trusted("op-1"))
        );
    }
}

#[test]
fn a_shelf_is_upgraded_where_nothing_else_is_done_to_it() {
    use model::lifecycle::{DeviceFailure, DeviceSpec, RecordHeader};
    use model::machine::Labels;
    let failure = DeviceFailure { message: String::new(), run: None, code: String::new() };
    let table = [
        (PowerShelfState::Initializing, false),
        (PowerShelfState::FetchingData, false),
        (PowerShelfState::Configuring, false),
        (PowerShelfState::Ready, true),
        (PowerShelfState::Maintenance { operation: model::effect::DesiredPower::On }, false),
        (PowerShelfState::Error { cause: failure }, true),
        (PowerShelfState::Deleting, false),
    ];
    for (state, admitted) in table {
        let head = RecordHeader::new("ps-1", Labels::new(), Timestamp::default());
        let mut shelf = PowerShelf::new(head, DeviceSpec::default());
        shelf.state = state;
        assert_eq!(
            admit_shelf(&shelf, &Overrides::default()).is_ok(),
            admitted,
            "{:?}",
            shelf.state
        );
        shelf.head.active_run = Some(RunId::trusted("op-1"));
        assert_eq!(
            admit_shelf(&shelf, &Overrides::default()).unwrap_err().reason.as_str(),
            "DEVICE_BUSY"
        );
        shelf.head.active_run = None;
        shelf.head.deleted = true;
        assert!(admit_shelf(&shelf, &Overrides::default()).is_err());
    }
}

#[test]
fn one_that_is_refused_holds_the_others_back() {
    let FirmwareResolution::Use(firmware) = firmware(&[TargetKind::PowerShelf]) else { panic!() };
    let named = |id: &str, plan| (TargetId::new(TargetKind::PowerShelf, id), plan);
    let direct = || named("ps-1", UpgradePath::Direct(firmware.clone()));
    let made = || named("ps-2", UpgradePath::AlreadyStarted(RunId::trusted("op-1")));
    let busy = || {
        let target = TargetId::new(TargetKind::PowerShelf, "ps-3");
        let refusal = target.refuse_held(&RunId::trusted("op-9"));
        (target, UpgradePath::Refused(refusal))
    };
    assert_eq!(refuse_all_if_any_refused(vec![direct(), made()]), [direct(), made()]);
    let all = refuse_all_if_any_refused(vec![direct(), made(), busy()]);
    let UpgradePath::Refused(refusal) = &all[0].1 else { panic!("{all:?}") };
    assert!(refusal.message.contains("ps-3 is held by operation op-9"), "{refusal}");
    assert_eq!(all[1..], [made(), busy()]);
}
