//! Places in a rack: heights, overlaps and feeds.

use model::id::{PowerShelfId, RackId};
use model::placement::{
    DevicePlacement, ShelfLocation, check_feeds, check_height, check_overlap, parse_feeds,
};
use model::target::{TargetId, TargetKind};

fn placed(kind: TargetKind, id: &str, slot: u32, height_u: Option<u32>) -> DevicePlacement {
    DevicePlacement { target: TargetId::new(kind, id), slot: Some(slot), height_u }
}

#[test]
fn a_height_is_1_to_60_and_ends_below_the_top_of_the_rack() {
    for (height, slot, expected) in [
        (None, Some(64), Ok(None)),
        (Some(1), None, Ok(Some(1))),
        (Some(60), None, Ok(Some(60))),
        (Some(60), Some(5), Ok(Some(60))),
        (Some(1), Some(64), Ok(Some(1))),
        (Some(0), None, Err("is 0")),
        (Some(-1), None, Err("is -1")),
        (Some(61), None, Err("is 61")),
        (Some(2), Some(64), Err("would end in slot 65")),
    ] {
        match (check_height("switch.spec", height, slot), expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{height:?} {slot:?}"),
            (Err(refusal), Err(part)) => {
                assert_eq!(refusal.field.as_deref(), Some("switch.spec.height_u"));
                assert!(refusal.message.contains(part), "{}", refusal.message);
            }
            other => panic!("{height:?} {slot:?}: {other:?}"),
        }
    }
}

/// One of two devices must have a height for their slots to be compared across kinds.
#[test]
fn devices_overlap_where_their_slots_do() {
    use TargetKind::{Machine, PowerShelf, Switch};
    let machine = |slot, height| placed(Machine, "m-1", slot, height);
    for (device, other, expected) in [
        (machine(3, None), placed(Machine, "m-2", 3, None), Some(("slot", "m-2 stands"))),
        (machine(3, None), placed(Machine, "m-2", 4, None), None),
        (machine(3, None), placed(Switch, "sw-1", 3, None), None),
        (machine(3, Some(1)), placed(Switch, "sw-1", 3, None), Some(("slot", "sw-1 stands"))),
        (machine(3, None), placed(Switch, "sw-1", 3, Some(1)), Some(("slot", "sw-1 stands"))),
        (machine(3, Some(2)), placed(Switch, "sw-1", 4, None), Some(("height_u", "slot 4 of"))),
        (machine(3, Some(2)), placed(Switch, "sw-1", 5, None), None),
        (machine(3, None), placed(PowerShelf, "ps-1", 1, Some(3)), Some(("slot", "ps-1 stands"))),
        (machine(4, None), placed(PowerShelf, "ps-1", 1, Some(3)), None),
        (machine(1, Some(9)), placed(Machine, "m-2", 5, Some(2)), Some(("height_u", "at most 4"))),
        // Itself, before the change.
        (machine(3, Some(2)), machine(3, None), None),
        (machine(3, Some(2)), DevicePlacement { slot: None, ..machine(1, Some(9)) }, None),
    ] {
        let rack = RackId::trusted("rack-1");
        let found = check_overlap("machine.spec", &device, &rack, std::slice::from_ref(&other));
        match (found, expected) {
            (Ok(()), None) => {}
            (Err(refusal), Some((field, part))) => {
                assert_eq!(refusal.field, Some(format!("machine.spec.{field}")), "{device:?}");
                assert!(refusal.message.contains(part), "{}", refusal.message);
                assert!(refusal.message.contains(other.target.as_str()), "{}", refusal.message);
            }
            (found, _) => panic!("{device:?} and {other:?}: {found:?}"),
        }
    }
}

#[test]
fn feeds_are_sorted_and_a_power_shelf_has_none() {
    let parse = |kind, ids: &[&str]| {
        let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
        parse_feeds("f", kind, &ids)
    };
    let feeds = parse(TargetKind::Machine, &["ps-2", "ps-1", "ps-2"]).unwrap();
    assert_eq!(feeds, ["ps-1", "ps-2"].map(PowerShelfId::trusted));
    assert_eq!(parse(TargetKind::PowerShelf, &[]), Ok(vec![]));
    let many: Vec<String> = (0..17).map(|n| format!("ps-{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    for (kind, ids, field) in [
        (TargetKind::Switch, &["ps-1", "sw-1"][..], "f.feeds[1]"),
        (TargetKind::Machine, &[""][..], "f.feeds[0]"),
        (TargetKind::PowerShelf, &["ps-1"][..], "f.feeds"),
        (TargetKind::Machine, &many[..], "f.feeds"),
    ] {
        assert_eq!(parse(kind, ids).unwrap_err().field.as_deref(), Some(field), "{ids:?}");
    }
}

#[test]
fn a_feeding_shelf_exists_and_is_in_the_same_rack_or_in_none() {
    use ShelfLocation::{InRack, NoRack, Unknown};
    let rack = RackId::trusted;
    for (device, shelf, expected) in [
        (Some("rack-1"), InRack(rack("rack-1")), None),
        (Some("rack-1"), NoRack, None),
        (None, NoRack, None),
        (Some("rack-1"), Unknown, Some("no such power shelf is known")),
        (Some("rack-1"), InRack(rack("rack-2")), Some("ps-1, which stands in rack-2")),
        (None, InRack(rack("rack-2")), Some("the device is in no rack")),
    ] {
        let shelves = [(PowerShelfId::trusted("ps-1"), shelf)];
        match (check_feeds("f", device.map(rack).as_ref(), &shelves), expected) {
            (Ok(()), None) => {}
            (Err(refusal), Some(part)) => {
                assert_eq!(refusal.field.as_deref(), Some("f.feeds"));
                assert!(refusal.message.contains(part), "{}", refusal.message);
            }
            (found, _) => panic!("{device:?} {shelves:?}: {found:?}"),
        }
    }
}
