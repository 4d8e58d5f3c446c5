//! Names that people have for objects.

use crate::support::at;
use model::id::MachineId;
use model::known_as::{ambiguous, is_device, is_machine, is_record};
use model::lifecycle::{DeviceSpec, RecordHeader};
use model::machine::{Labels, Machine, MachineSpec};
use model::refusal::RefusalKind;

fn labels() -> Labels {
    Labels::from([("name".into(), "Gpu-Left".into())])
}

#[test]
fn a_machine_is_known_by_everything_a_person_has() {
    let spec = MachineSpec {
        serial: "SN-77x".into(),
        bmc_endpoint: "https://10.1.0.7:8443/redfish".into(),
        ssh_endpoint: "root@Host-7.lan:22".into(),
        node_name: "worker-7".into(),
        mac_addresses: vec!["aa:bb:cc:00:11:22".into()],
        ..MachineSpec::default()
    };
    let machine = Machine::new(MachineId::trusted("m-7"), spec, labels(), at(0));
    for text in [
        "m-7",
        "M-7",
        "sn-77X",
        "10.1.0.7",
        "https://10.1.0.7:8443/redfish",
        "host-7.LAN",
        "WORKER-7",
        "AA:BB:CC:00:11:22",
        "aabbcc001122",
        "aa-bb-cc-00-11-22",
        "gpu-left",
    ] {
        assert!(is_machine(&machine, text), "{text}");
    }
    for text in ["", "m", "10.1.0", "10.1.0.70", "aa:bb:cc:00:11:23", "root", "8443", "sn-77"] {
        assert!(!is_machine(&machine, text), "{text}");
    }
    let unnamed = Machine::new(
        MachineId::trusted("m-8"),
        MachineSpec { bmc_endpoint: "[fd00::7]:443".into(), ..MachineSpec::default() },
        Labels::new(),
        at(0),
    );
    assert!(is_machine(&unnamed, "FD00::7") && !is_machine(&unnamed, ""));
}

#[test]
fn devices_and_records_are_known_too() {
    let head = RecordHeader::new("sw-1", labels(), at(0));
    let spec = DeviceSpec { serial: "S1".into(), ..DeviceSpec::default() };
    for text in ["SW-1", "s1", "GPU-LEFT"] {
        assert!(is_device(&head, &spec, text), "{text}");
    }
    assert!(is_record(&head, "gpu-left") && !is_record(&head, "s1"));
    assert!(!is_device(&head, &spec, ""));
}

#[test]
fn a_name_of_several_objects_lists_them() {
    let refusal = ambiguous("gpu-left", &["m-1".into(), "sw-1".into()]);
    assert_eq!(refusal.kind(), RefusalKind::Invalid);
    assert_eq!(refusal.message, "\"gpu-left\" fits 2 objects: m-1, sw-1");
    assert_eq!(refusal.next_command.as_deref(), Some("farrier why m-1"));
}
