//! Which writes of credentials and identities are admitted: every write by what is stored.

use model::credential::{CredentialWrite, IdentityWrite, PinnedIdentity};

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
