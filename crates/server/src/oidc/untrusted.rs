//! Reads arbitrary bytes as a token and as the keys of an identity provider, for the fuzz target
//! and the replay of its corpus.

use super::OidcError;
use super::claims::{ClaimRules, Expected};
use super::jws::{JwsAlgorithm, ParsedToken, object};
use super::keys::KeySet;
use engine::access::ForeignIdentity;
use model::time::Timestamp;
use std::sync::LazyLock;
use std::time::Duration;

/// The public keys of the tokens in the corpus. Nobody has the private ones.
static KEYS: LazyLock<KeySet> =
    LazyLock::new(|| KeySet::parse(include_bytes!("untrusted_keys.json")).unwrap_or_default());
const PREFIX: &str = "oidc:";
/// 2026-01-01.
const NOW: Timestamp = Timestamp::from_millis(1_767_225_600_000);
const FOR_FARRIER: Expected<'_> = Expected { audience: "farrier", nonce: None };

fn rules() -> ClaimRules {
    ClaimRules {
        issuer: "https://id.example.com".into(),
        user_claim: "sub".into(),
        groups_claim: "groups".into(),
        prefix: PREFIX.into(),
        clock_skew: Duration::from_secs(60),
    }
}

/// The user of a token, as the server decides it.
pub(super) fn read_token(token: &str) -> Result<ForeignIdentity, OidcError> {
    let parsed = ParsedToken::parse(token, &JwsAlgorithm::ALL)?;
    let claims = parsed.verify(parsed.key(&KEYS)?)?;
    rules().check(&claims, FOR_FARRIER, NOW)
}

pub(crate) fn read_web_token(bytes: &[u8]) {
    let token = String::from_utf8_lossy(bytes);
    if let Ok(identity) = read_token(&token) {
        check_identity(&identity);
    }
    // A signature is never guessed, so the claims are also read without one.
    let sign_in = Expected { nonce: Some("nonce"), ..FOR_FARRIER };
    for part in token.split('.') {
        let Ok(claims) = object(part) else { continue };
        for expected in [FOR_FARRIER, sign_in] {
            if let Ok(identity) = rules().check(&claims, expected, NOW) {
                check_identity(&identity);
            }
        }
    }
    if let Ok(keys) = KeySet::parse(bytes) {
        assert!(keys.len() > 0, "a key set that would lock every user out");
    }
}

fn check_identity(ForeignIdentity { principal, valid_until }: &ForeignIdentity) {
    assert!(*valid_until > NOW, "an expired token was accepted");
    for name in principal.groups.iter().chain([&principal.user]) {
        let own = name.starts_with(PREFIX) && name.len() > PREFIX.len();
        assert!(own && !name.chars().any(char::is_control), "{name:?}");
    }
}
