use providers::pin::*;

const KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJqgkV7jIFxbTO4sNRDlUbD2rPr7x7HOjvNPqOSHVsdU";

#[test]
fn identities_are_normalized() {
    let (digits, colons) = ("ab".repeat(32), ["AB"; 32].join(":"));
    let shown = format!("sha256:{digits}");
    for (peer, identity, expected) in [
        ("https://10.0.0.5", digits.as_str(), Ok(("https://10.0.0.5", shown.as_str()))),
        ("https://10.0.0.5/redfish/v1/Systems/2", &colons, Ok(("https://10.0.0.5", &shown))),
        ("https://10.0.0.5", "abcd", Err("identity")),
        ("http://10.0.0.5", &digits, Err("peer")),
        ("ipmi://10.0.0.5", &digits, Err("peer")),
        ("10.0.0.5", &digits, Err("peer")),
        ("ssh://10.0.0.7", KEY, Ok(("ssh://10.0.0.7:22", KEY))),
        ("ssh://u@10.0.0.7:2222", KEY, Ok(("ssh://10.0.0.7:2222", KEY))),
        ("ssh://10.0.0.7", &digits, Err("identity")),
        ("ssh://", KEY, Err("peer")),
    ] {
        match (Pin::parse(peer, identity), expected) {
            (Ok(pin), Ok((peer, identity))) => {
                assert_eq!((pin.peer.as_str(), pin.identity.as_str()), (peer, identity));
            }
            (Err(refusal), Err(field)) => assert_eq!(refusal.field.as_deref(), Some(field)),
            (found, expected) => panic!("{peer} {identity}: {found:?}, not {expected:?}"),
        }
    }
}
