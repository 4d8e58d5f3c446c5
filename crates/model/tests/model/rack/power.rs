//! The power of the devices of a rack, in words.

use model::effect::DesiredPower;
use model::rack::{DevicePower, describe_left_off, format_power};
use model::target::{TargetId, TargetKind};

#[test]
fn every_device_is_named_once_by_its_power() {
    let device = |id: &str, power| {
        let device = TargetId::new(TargetKind::Machine, id);
        DevicePower { device, power }
    };
    let (on, off) = (Some(DesiredPower::On), Some(DesiredPower::Off));
    for (devices, message, left) in [
        (vec![], "", None),
        (vec![device("m-1", on)], "on: m-1", None),
        (vec![device("m-1", off), device("m-2", off)], "off: m-1, m-2", Some("m-1, m-2")),
        (
            vec![device("m-1", off), device("m-2", None), device("m-3", on)],
            "on: m-3; off: m-1; not known: m-2",
            Some("m-1"),
        ),
    ] {
        assert_eq!(format_power(&devices), message);
        let left = left.map(|names| format!("off now, and would stay off: {names}"));
        assert_eq!(describe_left_off(&devices), left);
    }
    let many: Vec<DevicePower> = (0..70).map(|n| device(&format!("m-{n}"), on)).collect();
    assert!(format_power(&many).ends_with("m-63, and 6 more"), "{}", format_power(&many));
}
