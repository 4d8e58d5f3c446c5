//! Admission of writes of credentials and identities: every write in every stored state.

use model::credential::{
    AllowedAddresses, BindingWrite, CredentialPolicy, CredentialWrite, IdentityWrite, Network,
    Peer, PeerBinding, PeerProtocol, PeerRefusal, PinnedIdentity,
};
use model::fault::{FaultClass, FaultCode};

#[test]
fn writes_of_credentials() {
    let update = |version, allow_missing| CredentialWrite::Update { version, allow_missing };
    for (write, stored, expected) in [
        (CredentialWrite::Create, None, Ok(())),
        (CredentialWrite::Create, Some(3), Err("CREDENTIAL_EXISTS")),
        (update(None, false), None, Err("NOT_FOUND")),
        (update(None, true), None, Ok(())),
        (update(Some(3), false), None, Err("NOT_FOUND")),
        // The credential that the change was made from is gone.
        (update(Some(3), true), None, Err("NOT_FOUND")),
        (update(None, false), Some(3), Ok(())),
        (update(None, true), Some(3), Ok(())),
        (update(Some(3), false), Some(3), Ok(())),
        (update(Some(2), false), Some(3), Err("VERSION_MOVED")),
        (update(Some(2), true), Some(3), Err("VERSION_MOVED")),
    ] {
        let admitted = write.admit("bmc", stored);
        let reason = admitted.clone().map_err(|refusal| refusal.reason.as_str());
        assert_eq!(reason, expected, "{write:?} {stored:?}");
        if let Err(refusal) = admitted {
            let next = refusal.next_command.unwrap_or_default();
            assert!(next.starts_with("farrier credential "), "{next}");
            assert!(refusal.message.contains("bmc"), "{}", refusal.message);
        }
    }
}

#[test]
fn writes_of_identities() {
    let update = |version, allow_missing| IdentityWrite::Update { version, allow_missing };
    for (write, pinned, expected) in [
        (IdentityWrite::Create, None, Ok(true)),
        (IdentityWrite::Create, Some("new"), Ok(false)),
        (IdentityWrite::Create, Some("old"), Err("IDENTITY_EXISTS")),
        (update(None, false), None, Err("NOT_FOUND")),
        (update(None, true), None, Ok(true)),
        (update(Some(3), true), None, Err("NOT_FOUND")),
        (update(None, false), Some("old"), Ok(true)),
        (update(None, true), Some("old"), Ok(true)),
        (update(None, false), Some("new"), Ok(false)),
        (update(Some(3), false), Some("old"), Ok(true)),
        (update(Some(2), false), Some("old"), Err("VERSION_MOVED")),
        (update(Some(2), false), Some("new"), Err("VERSION_MOVED")),
    ] {
        let pinned = pinned.map(|identity| PinnedIdentity { identity, version: 3 });
        let admitted = write.admit("https://10.0.0.5", "new", pinned);
        let reason = admitted.map_err(|refusal| {
            assert!(refusal.message.contains("https://10.0.0.5"), "{refusal}");
            refusal.reason.as_str()
        });
        assert_eq!(reason, expected, "{write:?} {pinned:?}");
    }
}

fn peer(protocol: PeerProtocol, host: &str, port: u16) -> Peer {
    Peer { protocol, host: host.into(), port }
}

fn policy(peers: &[&str], plain_http: bool) -> CredentialPolicy {
    let peers: Vec<String> = peers.iter().map(ToString::to_string).collect();
    CredentialPolicy::parse("peers", &peers, plain_http).unwrap()
}

/// Every kind of entry by every kind of peer.
#[test]
fn a_binding_allows_its_peers_and_no_other() {
    use PeerProtocol::{Https, Ipmi, Ssh};
    let within = |networks: &[&str]| {
        AllowedAddresses::Within(
            networks.iter().map(|text| Network::parse(text).unwrap()).collect(),
        )
    };
    let no = || Err(PeerRefusal::NotBound);
    let any = || Ok(AllowedAddresses::Any);
    for (bound, at, expected) in [
        (&[][..], ("10.1.0.7", 443), no()),
        (&["10.1.0.0/24"], ("10.1.0.7", 443), any()),
        (&["10.1.0.0/24"], ("10.1.1.7", 443), no()),
        (&["10.1.0.9/24"], ("10.1.0.7", 443), any()),
        (&["0.0.0.0/0"], ("192.0.2.1", 443), any()),
        (&["0.0.0.0/0"], ("2001:db8::1", 443), no()),
        (&["10.1.0.0/24"], ("::ffff:10.1.0.7", 443), any()),
        (&["10.1.0.7/32"], ("10.1.0.8", 443), no()),
        (&["fd00::/8"], ("fd12::1", 443), any()),
        (&["fe80::/10"], ("fe80::1%eth0", 22), any()),
        (&["fd00::/8"], ("fe80::1", 443), no()),
        // A name is resolved later, and its address must be in one of the networks.
        (&["10.1.0.0/24", "fd00::/8"], ("bmc-7", 443), Ok(within(&["10.1.0.0/24", "fd00::/8"]))),
        (&["10.1.0.0/24", "bmc-7"], ("BMC-7.", 443), any()),
        (&["10.1.0.7"], ("10.1.0.7", 8443), any()),
        (&["10.1.0.7:443"], ("10.1.0.7", 8443), no()),
        (&["10.1.0.7:443"], ("10.1.0.7", 443), any()),
        (&["[fd00::7]:443"], ("fd00:0::7", 443), any()),
        (&["fd00::7"], ("fd00::7", 22), any()),
        (&["bmc-7.lan"], ("bmc-7.lan", 443), any()),
        (&["bmc-7.lan"], ("bmc-7.lan.evil.example", 443), no()),
        (&["bmc-7.lan"], ("xbmc-7.lan", 443), no()),
        (&["bmc-7.lan"], ("10.1.0.7", 443), no()),
        (&["10.1.0.7"], ("bmc-7.lan", 443), no()),
        // A number that a resolver would take for an address is a name here.
        (&["10.1.0.7"], ("167837703", 443), no()),
        (&["site:site-1=maas.lan:5240"], ("maas.lan", 5240), any()),
        (&["site:site-1=maas.lan:5240"], ("maas.lan", 80), no()),
        (&["site:site-1=maas.lan:5240"], ("evil.example", 5240), no()),
        // Without an address a site allows nothing.
        (&["site:site-1"], ("maas.lan", 5240), no()),
    ] {
        for protocol in [Https, Ipmi, Ssh] {
            let given = policy(bound, false).allows(&peer(protocol, at.0, at.1));
            assert_eq!(given, expected, "{bound:?} {at:?}");
        }
    }
}

#[test]
fn plain_http_needs_a_permission_of_its_own() {
    let plain = peer(PeerProtocol::Http, "10.1.0.7", 80);
    assert_eq!(policy(&["10.1.0.7"], false).allows(&plain), Err(PeerRefusal::PlainHttp));
    assert_eq!(policy(&["10.1.0.7"], true).allows(&plain), Ok(AllowedAddresses::Any));
    assert_eq!(policy(&["10.1.0.8"], true).allows(&plain), Err(PeerRefusal::NotBound));
}

#[test]
fn a_resolved_address_is_checked() {
    let Ok(allowed) =
        policy(&["10.1.0.0/24", "fd00::/8"], false).allows(&peer(PeerProtocol::Https, "bmc", 443))
    else {
        panic!("a name may resolve into a network");
    };
    for (address, expected) in [
        ("10.1.0.7", true),
        ("::ffff:10.1.0.7", true),
        ("fd00::1", true),
        ("10.2.0.7", false),
        ("127.0.0.1", false),
        ("::1", false),
    ] {
        assert_eq!(allowed.contains(address.parse().unwrap()), expected, "{address}");
    }
    assert!(AllowedAddresses::Any.contains("::1".parse().unwrap()));
}

#[test]
fn a_binding_is_read_and_written_the_same() {
    for text in [
        "10.1.0.0/24",
        "fd00::/8",
        "10.1.0.7",
        "10.1.0.7:443",
        "fd00::7",
        "[fd00::7]:443",
        "bmc-7.lan",
        "bmc-7.lan:8443",
        "site:site-1",
        "site:site-1=maas.lan:5240",
        "site:site-1=[fd00::7]:5240",
    ] {
        let read = PeerBinding::parse("peers", text).unwrap();
        assert_eq!(read.to_string(), text);
        let stored = serde_json::to_string(&read).unwrap();
        assert_eq!(serde_json::from_str::<PeerBinding>(&stored).unwrap(), read);
    }
    for text in [
        "",
        "https://10.1.0.7",
        "10.1.0.0/33",
        "fd00::/129",
        "10.1.0.0/x",
        "a b",
        "-h",
        "h:0",
        "h:99999",
        "[::1",
        "[::1]x",
        "*.lan",
        "site:",
        "site:A b",
        "site:site-1=",
        "site:site-1=a b",
        "…",
    ] {
        let refusal = PeerBinding::parse("peers[0]", text).unwrap_err();
        assert_eq!(refusal.field.as_deref(), Some("peers[0]"), "{text}");
    }
    let refusal = PeerBinding::parse("peers", "root:calvin@10.1.0.7").unwrap_err();
    assert!(!refusal.message.contains("calvin"), "{refusal}");
    let many: Vec<String> = (0..300).map(|number| format!("host-{number}")).collect();
    let refusal = CredentialPolicy::parse("peers", &many, false).unwrap_err();
    assert!(refusal.message.contains("at most 256"), "{refusal}");
}

#[test]
fn a_write_keeps_or_replaces_the_binding() {
    let parse = |peers: &[&str], plain_http| {
        let peers: Vec<String> = peers.iter().map(ToString::to_string).collect();
        BindingWrite::parse(&peers, plain_http).unwrap()
    };
    let stored = || Some(policy(&["10.1.0.7"], false));
    for (write, before, required, expected) in [
        (parse(&["h"], false), None, true, Some(policy(&["h"], false))),
        (parse(&["h", "h"], true), stored(), true, Some(policy(&["h"], true))),
        (parse(&[], false), stored(), true, stored()),
        (parse(&[], true), stored(), true, Some(policy(&["10.1.0.7"], true))),
        (parse(&[], false), Some(policy(&["h"], true)), true, Some(policy(&["h"], true))),
        (parse(&[], false), None, true, None),
        (parse(&[], false), Some(CredentialPolicy::default()), true, None),
        (parse(&[], false), None, false, Some(CredentialPolicy::default())),
    ] {
        let applied = write.clone().apply("bmc", before, required);
        assert_eq!(applied.as_ref().ok(), expected.as_ref(), "{write:?}");
        if let Err(refusal) = applied {
            let message = &refusal.message;
            assert!(message.contains("farrier credential set bmc --for"), "{message}");
        }
    }
}

/// The options of the repair contain the stored peers, because they replace them.
#[test]
fn a_refused_peer_is_named_with_what_to_type() {
    let at = peer(PeerProtocol::Http, "10.9.0.1", 80);
    let bound = policy(&["10.1.0.0/24", "bmc-7.lan:443"], false);
    let refusal = bound.allows(&at).unwrap_err();
    let fault = bound.fault("bmc", &at, refusal);
    assert_eq!(fault.code, FaultCode::CredentialNotAllowed);
    assert_eq!(fault.class(), FaultClass::NeedsIntervention);
    assert!(fault.message.contains("http://10.9.0.1:80"), "{fault}");
    assert!(fault.message.contains("10.1.0.0/24, bmc-7.lan:443"), "{fault}");
    assert_eq!(
        fault.facts().binding.as_deref(),
        Some("--for 10.1.0.0/24 --for bmc-7.lan:443 --for 10.9.0.1 --allow-plain-http")
    );
    let plain = policy(&["10.9.0.1"], false);
    let fault = plain.fault("bmc", &at, plain.allows(&at).unwrap_err());
    assert_eq!(fault.facts().binding.as_deref(), Some("--for 10.9.0.1 --allow-plain-http"));
    // A long list cannot be repeated; the server refuses the sign in its place.
    let many: Vec<String> = (0..20).map(|number| format!("host-{number}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let many = policy(&many, false);
    let fault = many.fault("bmc", &at, many.allows(&at).unwrap_err());
    let options = fault.facts().binding.clone().unwrap();
    assert_eq!(options, "--for … --for 10.9.0.1 --allow-plain-http");
    assert!(fault.message.contains("12 more"), "{fault}");
}
