//! Checked texts: endpoints, MAC addresses, labels, reasons.

use model::machine::{Labels, MachineSpec};
use model::text::{
    check_endpoint, check_labels, check_node_name, check_reason, check_request_id, normalize_mac,
};

#[test]
fn node_names_are_dns_names_in_lower_case() {
    for good in ["", "n", "node-7", "ip-10-0-0-1.ec2.internal", "10.0.0.1"] {
        assert!(check_node_name("f", good).is_ok(), "{good}");
    }
    let long = format!("{}a", "a.".repeat(127));
    for bad in ["Node", "-a", "a-", "a..b", ".a", "a.", "a b", "a;id", "ä", "a_b", long.as_str()] {
        assert_eq!(check_node_name("f", bad).unwrap_err().field.as_deref(), Some("f"), "{bad}");
    }
}

#[test]
fn a_machine_has_one_name_in_its_cluster() {
    let named = |name: &str| MachineSpec { node_name: name.into(), ..MachineSpec::default() };
    for (id, spec, name) in [
        ("gpu-07", named(""), "gpu-07"),
        ("n1.example", named(""), "n1.example"),
        ("GPU_07", named(""), "gpu-07"),
        ("GPU_07.A", named(""), "gpu-07-a"),
        ("tray-1", named("node-1"), "node-1"),
        ("GPU_07", named("worker-7"), "worker-7"),
    ] {
        assert_eq!(spec.node_name_of(id), name, "{id}");
    }
}

#[test]
fn endpoints() {
    for good in [
        "",
        "10.20.30.40:22",
        "10.20.30.41",
        "bmc-7.example.net",
        "[fd00::1]:22",
        "[fd00::1]",
        "https://10.0.0.1/redfish/v1",
        "sim://rack-1",
    ] {
        assert!(check_endpoint("f", good).is_ok(), "{good}");
    }
    let long = "h".repeat(256);
    for bad in [
        "host:",
        "host:0",
        "host:65536",
        "host:ssh",
        ":22",
        "a b",
        "fd00::1",
        "[fd00::1",
        "[::1]x",
        "user:secret@host",
        "://host",
        "[zzz]:22",
        "...",
        "-",
        "10.20.30.999",
        "https://h/ x",
        "http://",
        "h\u{0}st",
        long.as_str(),
    ] {
        let refusal = check_endpoint("machine.spec.ssh_endpoint", bad).unwrap_err();
        assert_eq!(refusal.field.as_deref(), Some("machine.spec.ssh_endpoint"), "{bad}");
    }
}

#[test]
fn macs_take_one_form() {
    for good in ["AA:BB:CC:DD:EE:FF", "aa-bb-cc-dd-ee-ff", "aabbccddeeff"] {
        assert_eq!(normalize_mac("f", good).unwrap(), "aa:bb:cc:dd:ee:ff");
    }
    for bad in [
        "",
        "aa:bb:cc:dd:ee",
        "aa:bb:cc:dd:ee:fg",
        "aabb:ccdd:eeff",
        "::::::::::::",
        "aabbccddeeff:::::",
        "a-a-b-b-c-cddeeff",
        "aa:bb-cc:dd-ee:ff",
    ] {
        assert!(normalize_mac("f", bad).is_err(), "{bad}");
    }
}

#[test]
fn labels_have_bounds() {
    let one = |key: &str, value: &str| Labels::from([(key.to_string(), value.to_string())]);
    assert!(check_labels("labels", &one("env", "prod")).is_ok());
    assert!(check_labels("labels", &one("", "x")).is_err());
    assert!(check_labels("labels", &one("a b", "x")).is_err());
    assert!(check_labels("labels", &one("env", "a\nb")).is_err());
    assert!(check_labels("labels", &one("env", &"x".repeat(256))).is_err());
    let many: Labels = (0..65).map(|i| (format!("k{i}"), String::new())).collect();
    assert!(check_labels("labels", &many).is_err());
}

#[test]
fn reasons_are_required_and_printable() {
    assert_eq!(check_reason("reason", " disk \n").unwrap(), "disk");
    assert!(check_reason("reason", "  ").is_err());
    assert!(check_reason("reason", "a\u{1b}[2Jb").is_err());
    assert!(check_reason("reason", "a\u{202e}b").is_err());
    assert!(check_request_id("").is_err());
    assert!(check_request_id(" x").is_err());
}

#[test]
fn a_history_is_that_of_an_object_or_of_a_named_thing() {
    use model::text::check_history_id;
    for right in [
        "m-1",
        "op-1",
        "identity/https://10.0.0.5",
        "credential/bmc",
        "firmware/fw-1",
        "budget/b",
        "window/w",
    ] {
        assert_eq!(check_history_id("id", right).unwrap(), right);
    }
    for wrong in [
        "",
        "a b",
        "identity/",
        "shoe/a",
        "identity/a\u{7}",
        &format!("image/{}", "x".repeat(1_024)),
    ] {
        assert_eq!(
            check_history_id("id", wrong).unwrap_err().field.as_deref(),
            Some("id"),
            "{wrong}"
        );
    }
}

/// Values in printed commands are one word each, also where a drain's selector has apostrophes.
#[test]
fn a_printed_value_is_one_word_of_a_shell() {
    for (value, word) in [
        ("app=web", "app=web"),
        ("https://10.0.0.5:443/a_b,c@d", "https://10.0.0.5:443/a_b,c@d"),
        ("", "''"),
        ("app in (a, b)", "'app in (a, b)'"),
        ("$HOME", "'$HOME'"),
        ("it's", r"'it'\''s'"),
    ] {
        assert_eq!(model::text::shell_word(value), word);
        let options = model::effect::DrainOptions { selector: value.into(), ..Default::default() };
        let flag =
            if value.is_empty() { String::new() } else { format!(" --drain-selector {word}") };
        assert_eq!(options.flags(), flag);
    }
}
