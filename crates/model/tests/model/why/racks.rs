//! Racks and power shelves: the slowest device, what is switched off, and what cannot be read.

use crate::support::at;
use model::device::Device;
use model::effect::{DesiredPower, DeviceFacts};
use model::fault::FaultCode;
use model::lifecycle::{DeviceSpec, IdleReason, Lifecycle, LifecycleDecision, RecordHeader};
use model::machine::Labels;
use model::power_shelf::{PowerShelf, PowerShelfState};
use model::rack::{MaintenanceStage, Rack, RackContext, RackDevice, RackSpec, RackState, explain};
use model::why::{Explanation, explain_device};

fn rack(state: RackState) -> Rack {
    let head = RecordHeader::new("rack-1", Labels::new(), at(0));
    Rack { state, ..Rack::new(head, RackSpec::default()) }
}

fn shelf(power: Option<DesiredPower>) -> PowerShelf {
    let head = RecordHeader::new("ps-1", Labels::new(), at(0));
    let shelf = PowerShelf::new(head, DeviceSpec::default());
    let facts = DeviceFacts { power, ..DeviceFacts::default() };
    PowerShelf { facts, ..shelf.in_state(PowerShelfState::Ready, None) }
}

/// The wait of a rack in maintenance is that of its operation, which names the slowest device.
#[test]
fn a_rack_in_maintenance_names_its_slowest_device() {
    let operation = Explanation {
        waiting_for: "sw-1 to finish flash (op-7, for 1m 20s), the slowest of 2 at work".into(),
        last_word: "5s ago: 40 %".into(),
        since: Some(at(7)),
        normal: "up to 30m".into(),
        requested_by: "ada, 2m ago".into(),
        next_commands: vec!["farrier why op-7".into(), "farrier logs -f op-1".into()],
        ..Explanation::default()
    };
    let waits_for = "op-1 is at step firmware";
    for state in [
        RackState::Maintenance { stage: MaintenanceStage::FirmwareUpgrade },
        RackState::Validating,
        RackState::Ready,
    ] {
        let context =
            RackContext { waits_for, operation: Some(&operation), ..RackContext::default() };
        let told = explain(&rack(state.clone()), context, at(9));
        if state == RackState::Ready {
            assert_eq!(told.waiting_for, "");
            continue;
        }
        assert_eq!(told.waiting_for, operation.waiting_for);
        assert_eq!((told.since, &told.last_word), (Some(at(7)), &operation.last_word));
        assert_eq!(told.requested_by, operation.requested_by);
        assert_eq!(told.next_commands[0], "farrier why op-7");
        super::check_commands(&told, "a rack at work");
        let alone = RackContext { operation: None, ..context };
        assert_eq!(explain(&rack(state), alone, at(9)).waiting_for, waits_for);
    }
}

/// A shelf that is off says so, and so does its rack.
#[test]
fn a_shelf_that_is_off_is_told_as_off() {
    let on = "farrier power-shelf maintenance power-on --id ps-1".to_string();
    for (power, is_off) in
        [(Some(DesiredPower::Off), true), (Some(DesiredPower::On), false), (None, false)]
    {
        let shelf = shelf(power);
        let next = LifecycleDecision::Idle(IdleReason("no request is pending".into()));
        let told = explain_device(&shelf, &next, at(9));
        assert_eq!(told.headline.contains("switched off"), is_off, "{}", told.headline);
        assert_eq!(told.next_commands.first() == Some(&on), is_off, "{told:?}");
        super::check_commands(&told, "a shelf");
        let devices = [RackDevice::of_shelf(&shelf)];
        let context = RackContext { devices: &devices, ..RackContext::default() };
        let told = explain(&rack(RackState::Ready), context, at(9));
        let note = "switched off: ps-1".to_string();
        assert_eq!(told.notes.contains(&note), is_off, "{told:?}");
        assert_eq!(told.next_commands.contains(&"farrier why ps-1".to_string()), is_off);
    }
    assert_eq!(shelf(None).state_name(), "Ready");
}

#[test]
fn a_rack_with_an_unreadable_operation_names_the_row() {
    let rows = ["run op-1: EOF".to_string()];
    let context = RackContext { unreadable: &rows, ..RackContext::default() };
    let told = explain(&rack(RackState::Validating), context, at(9));
    assert_eq!((told.failed.as_str(), told.fault), (&*rows[0], Some(FaultCode::RecordUnreadable)));
    assert_eq!(told.next_commands[0], "farrier db check");
}

/// The release of a device lets a rack go on that waits for it, and no other.
#[test]
fn a_rack_that_waits_for_a_device_is_woken_by_its_release() {
    for (state, waits) in [
        (RackState::Created, false),
        (RackState::Discovering, true),
        (RackState::Maintenance { stage: MaintenanceStage::PowerSequence }, false),
        (RackState::Validating, false),
        (RackState::Ready, false),
        (RackState::Deleting, false),
    ] {
        let rack = rack(state);
        assert_eq!(rack.waits_for_release(), waits, "{}", rack.state_name());
        let id = Some(model::id::RunId::trusted("op-1"));
        assert!(Rack { reprovision_requested: id, ..rack.clone() }.waits_for_release());
        assert!(Rack { topology_changed: true, ..rack }.waits_for_release());
    }
}
