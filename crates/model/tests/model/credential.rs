//! Which writes of credentials and identities are admitted: every write by what is stored.

use model::credential::{CredentialWrite, IdentityWrite};

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
    let update = |allow_missing| IdentityWrite::Update { allow_missing };
    for (write, pinned, expected) in [
        (IdentityWrite::Create, None, Ok(())),
        (IdentityWrite::Create, Some("new"), Ok(())),
        (IdentityWrite::Create, Some("old"), Err("IDENTITY_EXISTS")),
        (update(false), None, Err("NOT_FOUND")),
        (update(true), None, Ok(())),
        (update(false), Some("old"), Ok(())),
        (update(true), Some("old"), Ok(())),
        (update(false), Some("new"), Ok(())),
    ] {
        let admitted = write.admit("https://10.0.0.5", "new", pinned);
        let reason = admitted.map_err(|refusal| {
            assert!(refusal.message.contains("https://10.0.0.5"), "{refusal}");
            refusal.reason.as_str()
        });
        assert_eq!(reason, expected, "{write:?} {pinned:?}");
    }
}
