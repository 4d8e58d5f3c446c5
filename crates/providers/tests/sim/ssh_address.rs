use providers::ssh::*;

#[test]
fn an_address_is_read_however_it_is_written() {
    for (text, user, shown) in [
        ("10.0.0.5", None, "10.0.0.5:22"),
        ("10.0.0.5:2222", None, "10.0.0.5:2222"),
        ("[::1]:2200", None, "[::1]:2200"),
        ("[fe80::1%eth0]", None, "[fe80::1%eth0]:22"),
        ("fe80::2", None, "[fe80::2]:22"),
        ("admin@node7.example", Some("admin"), "node7.example:22"),
        ("ssh://admin@node7:23/", Some("admin"), "node7:23"),
    ] {
        let endpoint = Endpoint::parse("f", text).unwrap();
        assert_eq!((endpoint.user.as_deref(), endpoint.to_string()), (user, shown.to_string()));
    }
}

#[test]
fn an_invalid_address_is_refused_with_its_field() {
    for text in [
        "", "@", "a@", "@a", ":22", "a:", "a:0", "a:70000", "a:x", "[::1", "[::1]x", "-a", "a b",
        "a/b", "a;b", "u'v@h",
    ] {
        let refusal = Endpoint::parse("machine.spec.ssh_endpoint", text).unwrap_err();
        assert_eq!(refusal.field.as_deref(), Some("machine.spec.ssh_endpoint"), "{text:?}");
    }
}
