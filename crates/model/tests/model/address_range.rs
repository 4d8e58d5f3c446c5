//! Ranges of addresses and the endpoints that they expand to.

use model::address_range::expand_endpoints;
use model::refusal::Refusal;

fn of(texts: &[&str]) -> Result<Vec<String>, Refusal> {
    let given: Vec<String> = texts.iter().map(ToString::to_string).collect();
    expand_endpoints("addresses", &given)
}

#[test]
fn what_is_written_is_what_is_meant() {
    for (text, meant) in [
        ("10.1.0.7", vec!["https://10.1.0.7"]),
        (" fe80::1 ", vec!["https://[fe80::1]"]),
        ("bmc-7.lan:8443", vec!["https://bmc-7.lan:8443"]),
        ("http://10.1.0.7:8000", vec!["http://10.1.0.7:8000"]),
        ("ipmi://10.1.0.7", vec!["ipmi://10.1.0.7"]),
        ("10.1.0.0/30", vec!["https://10.1.0.1", "https://10.1.0.2"]),
        ("10.1.0.9/31", vec!["https://10.1.0.8", "https://10.1.0.9"]),
        ("10.1.0.9/32", vec!["https://10.1.0.9"]),
        ("2001:db8::4/127", vec!["https://[2001:db8::4]", "https://[2001:db8::5]"]),
    ] {
        assert_eq!(of(&[text]).unwrap(), meant, "{text}");
    }
    let once = of(&["10.1.0.2", "10.1.0.0/30", "10.1.0.2"]).unwrap();
    assert_eq!(once, ["https://10.1.0.2", "https://10.1.0.1"]);
}

#[test]
fn the_largest_range_is_a_20() {
    assert_eq!(of(&["10.0.0.0/20"]).unwrap().len(), 4_094);
    assert_eq!(of(&["2001:db8::/116"]).unwrap().len(), 4_096);
    let refusal = of(&["10.3.7.1/16"]).unwrap_err();
    assert_eq!(refusal.field.as_deref(), Some("addresses[0]"));
    assert!(refusal.message.contains("10.3.0.0/20, then 10.3.16.0/20"), "{refusal}");
    let refusal = of(&["::1", "2001:db8::/64"]).unwrap_err();
    assert!(refusal.message.contains("2001:db8::/116, then 2001:db8::1000/116"), "{refusal}");
    for all in ["0.0.0.0/0", "::/0"] {
        assert!(of(&[all]).unwrap_err().message.contains("too large"), "{all}");
    }
    let many: Vec<String> = (0..5).map(|n| format!("10.{n}.0.0/20")).collect();
    let refusal = expand_endpoints("addresses", &many).unwrap_err();
    assert!(refusal.message.contains("addresses[4]"), "{refusal}");
}

#[test]
fn what_is_no_address_is_named() {
    for text in [
        "",
        "10.1.0.0/33",
        "10.1.0/24",
        "10.1.0.0/",
        "10.1.0.0/24/1",
        "ftp://h",
        "10.1.0.300",
        "a b",
        "h:0",
        "https://u:p@h",
        "::/129",
    ] {
        let refusal = of(&[text]).unwrap_err();
        assert_eq!(refusal.field.as_deref(), Some("addresses[0]"), "{text}");
    }
    assert_eq!(of(&[]).unwrap_err().reason.as_str(), "FIELD_MISSING");
    let refusal = of(&["https://root:calvin@10.0.0.5"]).unwrap_err();
    assert!(!refusal.message.contains("calvin"), "{refusal}");
}
