use providers::maas::*;
use serde_json::{Value, json};
use std::time::Duration;

fn read(value: Value) -> Result<Machine, String> {
    serde_json::from_value(value).map_err(|error| error.to_string())
}

#[test]
fn what_is_missing_or_null_is_the_default() {
    let bare = read(json!({"system_id": "abc", "status": 4})).unwrap();
    let null = read(json!({
        "system_id": "abc", "status": 4, "hostname": null, "owner": null, "interface_set": null, "pool": null,
        "power_state": null, "boot_disk": null, "hardware_info": null, "last_sync": null, "sync_interval": null,
        "workload_annotations": null, "something_new": {"a": [1]},
    }))
    .unwrap();
    assert_eq!(bare, null);
    assert_eq!((bare.status, bare.power_state), (Status::Ready, MaasPowerState::Unknown));
    assert_eq!((bare.owner, bare.last_sync, bare.sync_interval), (None, None, None));
    for missing in [json!({"status": 4}), json!({"system_id": "abc"}), json!([])] {
        assert!(read(missing).is_err());
    }
}

#[test]
fn a_full_machine_is_read() {
    let machine = read(json!({
        "system_id": "abc", "status": 6, "status_name": "Deployed", "power_state": "on", "owner": "admin",
        "pool": {"id": 3, "name": "gpu"}, "zone": {"id": 1, "name": "east"}, "tag_names": ["h100"],
        "enable_hw_sync": true, "last_sync": "2026-11-16T10:00:00.500", "sync_interval": 900,
        "hardware_info": {"system_serial": " J7 ", "cpu_model": "x"},
        "interface_set": [{"id": 1, "mac_address": "AA:BB:cc:00:00:01"}],
        "blockdevice_set": [{"id": 5, "name": "sda", "size": 480_000_000_000_u64, "model": "DELLBOSS VD"}],
        "workload_annotations": {"farrier": "op-1"},
    }))
    .unwrap();
    assert_eq!((machine.pool.name.as_str(), machine.zone.name.as_str()), ("gpu", "east"));
    assert_eq!(machine.serial(), Some("J7"));
    assert_eq!(machine.sync_interval, Some(Duration::from_secs(900)));
    assert_eq!(machine.last_sync.as_deref(), Some("2026-11-16T10:00:00.500"));
    assert_eq!((machine.disks[0].id, machine.disks[0].size_bytes), (5, 480_000_000_000));
    assert!(machine.has_mac("aabb.cc00.0001") && !machine.has_mac("aa:bb:cc:00:00:02"));
    assert_eq!(machine.workload_annotations["farrier"], "op-1");
}

/// An error here would make the list of the whole region unreadable.
#[test]
fn unknown_values_do_not_fail_the_list() {
    let strange = read(json!({
        "system_id": "abc", "status": 99, "power_state": "glowing",
        "interface_set": [{"id": 1, "links": [{"id": 2, "mode": "teleport"}]}],
    }));
    let Machine { status, power_state, interfaces, .. } = strange.unwrap();
    assert_eq!((status, power_state), (Status::Unknown(99), MaasPowerState::Unknown));
    assert_eq!(interfaces[0].links[0].mode, None);
}

#[test]
fn a_placeholder_serial_counts_as_none() {
    for serial in ["", " ", "Unknown"] {
        let info = json!({"system_serial": serial});
        let machine = read(json!({"system_id": "a", "status": 0, "hardware_info": info}));
        assert_eq!(machine.unwrap().serial(), None, "{serial:?}");
    }
}

#[test]
fn power_is_read_by_its_word() {
    for (name, state) in [
        ("on", MaasPowerState::On),
        ("off", MaasPowerState::Off),
        ("error", MaasPowerState::Error),
        ("unknown", MaasPowerState::Unknown),
        ("", MaasPowerState::Unknown),
    ] {
        assert_eq!(MaasPowerState::parse(name), state);
    }
}
