//! The match of a discovered machine with a registered one.

use model::id::MachineId;
use model::machine::matcher::{
    DiscoveredMachine, MachineMatch, MachineMatcher, MatchAttribute, id_for, register_command,
    spec_for,
};
use model::machine::{Labels, Machine, MachineSpec};
use model::time::Timestamp;

fn machine(id: &str, serial: &str, macs: &[&str], endpoint: &str) -> Machine {
    let spec = MachineSpec {
        serial: serial.into(),
        mac_addresses: macs.iter().map(ToString::to_string).collect(),
        bmc_endpoint: endpoint.into(),
        ..MachineSpec::default()
    };
    Machine::new(MachineId::trusted(id), spec, Labels::new(), Timestamp::default())
}

fn discovered_machine(serial: &str, macs: &[&str], endpoint: &str) -> DiscoveredMachine {
    DiscoveredMachine {
        serial: serial.into(),
        macs: macs.iter().map(ToString::to_string).collect(),
        endpoint: endpoint.into(),
        ..DiscoveredMachine::default()
    }
}

fn sample_matcher() -> MachineMatcher {
    let mut matcher = MachineMatcher::default();
    for machine in [
        machine("a", "SN-0001", &["02:00:00:00:00:0a"], "10.0.0.1"),
        machine("b", "SN-0002", &["02:00:00:00:00:0b"], "https://10.0.0.2"),
        machine("c", "", &[], "10.0.0.3:443"),
        machine("d", "Default string", &[], "http://10.0.0.4:8000/"),
        machine("SN-0009", "", &[], ""),
    ] {
        matcher.add(&machine);
    }
    matcher
}

#[test]
fn a_machine_is_recognised_or_doubted_or_new() {
    let (mac_a, mac_b, mac_x) = ("02:00:00:00:00:0a", "02:00:00:00:00:0b", "02:00:00:00:00:ff");
    for (discovered, expected) in [
        (discovered_machine("sn-0001", &[], "https://10.9.9.9"), "a by serial number"),
        (discovered_machine("SN-0001", &[mac_x], "https://10.0.0.1"), "a by serial number"),
        (discovered_machine("SN-0001", &[mac_x], "https://10.9.9.9"), "a?"),
        (discovered_machine("SN-0001", &[mac_b], "https://10.0.0.1"), "a?"),
        (discovered_machine("", &[mac_x, mac_a], "https://10.9.9.9"), "a by MAC address"),
        (discovered_machine("SN-0007", &[mac_a], "https://10.0.0.1"), "a?"),
        (discovered_machine("0", &[mac_a], "https://10.9.9.9"), "a by MAC address"),
        (discovered_machine("SN-0007", &[mac_x], "https://10.0.0.1"), "a?"),
        (discovered_machine("", &[], "https://10.0.0.2"), "b by BMC endpoint"),
        (discovered_machine("SN-0007", &[mac_x], "https://10.0.0.3"), "c by BMC endpoint"),
        (discovered_machine("", &[], "http://10.0.0.4:8000"), "d by BMC endpoint"),
        (discovered_machine("Default string", &[], "https://10.9.9.9"), "new"),
        (discovered_machine("SN-0007", &[], "https://10.0.0.1/redfish/v1/Systems/2"), "new"),
        (discovered_machine("SN-0009", &[], "https://10.9.9.9"), "SN-0009?"),
        (discovered_machine("", &[], "ipmi://10.0.0.1"), "new"),
    ] {
        let reported = match sample_matcher().find_match(&discovered) {
            MachineMatch::New => "new".to_string(),
            MachineMatch::Known(id, mark) => format!("{id} by {}", mark.as_str()),
            MachineMatch::Doubtful(id, message) => {
                assert!(message.contains(id.as_str()), "{message}");
                format!("{id}?")
            }
        };
        assert_eq!(reported, expected, "{discovered:?}");
    }
}

#[test]
fn what_marks_two_machines_marks_neither() {
    let mut matcher = sample_matcher();
    let shared = "be:3a:f2:00:00:01";
    matcher.add(&machine("e", "SN-0005", &[shared], "10.0.0.5"));
    matcher.add(&machine("f", "SN-0006", &[shared], "10.0.0.6"));
    assert_eq!(
        matcher.find_match(&discovered_machine("SN-0007", &[shared], "https://10.0.0.7")),
        MachineMatch::New
    );
    let known = MachineMatch::Known(MachineId::trusted("f"), MatchAttribute::Serial);
    assert_eq!(
        matcher.find_match(&discovered_machine("SN-0006", &[shared], "https://10.0.0.7")),
        known
    );
}

#[test]
fn what_was_registered_is_known_the_next_time() {
    for (discovered, name) in [
        (discovered_machine("CN7-X1.2", &["02:00:00:00:00:01"], "https://10.0.0.7"), "CN7-X1-2"),
        (discovered_machine(" op-1234 ", &[], "https://10.0.0.7"), "m-op-1234"),
        (
            discovered_machine("To be filled by O.E.M.", &["02:00:00:00:00:01"], "https://h"),
            "mac-020000000001",
        ),
        (
            discovered_machine("0000", &[], "https://[fe80::1]:8443/redfish/v1/Systems/2"),
            "bmc-fe80-1-8443-systems-2",
        ),
        (
            discovered_machine(&"x1".repeat(80), &[], "https://10.0.0.7"),
            &format!("m-{}x", "x1".repeat(30)),
        ),
    ] {
        let (mut matcher, id) = (sample_matcher(), id_for(&discovered));
        assert_eq!(id.as_str(), name);
        assert!(MachineId::parse(name).is_ok(), "{name}");
        assert_eq!(matcher.find_match(&discovered), MachineMatch::New);
        let spec = spec_for(&discovered, "datacenter", "bmc").checked().unwrap();
        matcher.add(&Machine::new(id.clone(), spec, Labels::new(), Timestamp::default()));
        match matcher.find_match(&discovered) {
            MachineMatch::Known(known, _) => assert_eq!(known, id),
            other @ (MachineMatch::New | MachineMatch::Doubtful(..)) => panic!("{other:?}"),
        }
    }
}

#[test]
fn the_command_can_be_typed() {
    let discovered = discovered_machine("S 1/2'3", &["02:00:00:00:00:01"], "https://10.0.0.7");
    let labels = Labels::from([("rack".to_string(), "r 1".to_string())]);
    let spec = spec_for(&discovered, "datacenter", "bmc");
    assert_eq!(
        register_command(&discovered, &spec, &labels),
        "farrier machine register S-1-2-3 --provider datacenter --bmc-endpoint https://10.0.0.7 \
         --bmc-credential bmc --serial 'S 1/2'\\''3' --mac 02:00:00:00:00:01 --label 'rack=r 1'"
    );
}

#[test]
fn a_machine_whose_row_cannot_be_read_is_doubted_and_named() {
    let spec = |serial: &str, mac: &str| MachineSpec {
        serial: serial.into(),
        mac_addresses: vec![mac.into()],
        ..MachineSpec::default()
    };
    let mut matcher = sample_matcher();
    let mac = "02:00:00:00:00:0e";
    matcher.add_unreadable(&MachineId::trusted("e"), &spec("SN-0005", mac));
    let doubt = |matcher: &MachineMatcher, serial: &str, macs: &[&str]| {
        matcher.find_match(&discovered_machine(serial, macs, "https://10.9.9.9"))
    };
    let found = doubt(&matcher, "SN-0005", &[mac]);
    let MachineMatch::Doubtful(id, message) = found else { panic!("{found:?}") };
    assert_eq!(id.as_str(), "e");
    assert_eq!(
        message,
        "its serial number is that of e, whose row cannot be read: farrier db check"
    );
    // Its attributes are known, so another machine is new.
    assert_eq!(doubt(&matcher, "SN-0006", &[]), MachineMatch::New);
    // Without attributes it may be any machine, but not one that is known otherwise.
    matcher.add_unreadable(&MachineId::trusted("f"), &MachineSpec::default());
    let found = doubt(&matcher, "SN-0006", &[]);
    let MachineMatch::Doubtful(id, message) = found else { panic!("{found:?}") };
    assert_eq!(id.as_str(), "f");
    assert_eq!(message, "it may be f, whose row cannot be read: farrier db check");
    let known = matcher.find_match(&discovered_machine("SN-0001", &[], "https://10.0.0.1"));
    assert_eq!(known, MachineMatch::Known(MachineId::trusted("a"), MatchAttribute::Serial));
}
