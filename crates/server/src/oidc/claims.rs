//! The check of the claims of a token, and the user that they name.

use super::OidcError;
use super::jws::UniqueObject;
use engine::access::ForeignIdentity;
use model::access::{AuthMethod, Principal, check_foreign_name};
use model::time::Timestamp;
use serde_json::Value;
use std::time::Duration;

/// The most groups of a user that are read.
const MAX_GROUPS: usize = 500;

/// The rules for tokens of the provider, and for the names of its users on this server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ClaimRules {
    pub issuer: String,
    pub user_claim: String,
    pub groups_claim: String,
    /// In front of every name, so that no user of the provider is taken for a user of this server.
    pub prefix: String,
    pub clock_skew: Duration,
}

/// The expected purpose of one token.
#[derive(Debug, Clone, Copy)]
pub(super) struct Expected<'a> {
    pub audience: &'a str,
    /// The nonce of the sign-in; None: the token is no answer to a sign-in.
    pub nonce: Option<&'a str>,
}

impl ClaimRules {
    /// Checks the claims of a token whose signature was verified.
    pub fn check(
        &self,
        claims: &UniqueObject,
        expected: Expected<'_>,
        now: Timestamp,
    ) -> Result<ForeignIdentity, OidcError> {
        if text(claims, "iss")? != self.issuer {
            return Err(OidcError::Issuer);
        }
        check_audience(claims, expected.audience)?;
        let valid_until = self.check_times(claims, now)?;
        if let Some(nonce) = expected.nonce {
            check_sign_in(claims, expected.audience, nonce)?;
        }
        let principal = Principal {
            user: self.user(claims)?,
            groups: self.groups(claims)?,
            method: AuthMethod::Oidc,
            token_id: None,
        };
        Ok(ForeignIdentity { principal, valid_until })
    }

    /// The end of the token, with the tolerance for clocks.
    fn check_times(&self, claims: &UniqueObject, now: Timestamp) -> Result<Timestamp, OidcError> {
        let end = time(claims, "exp")?.ok_or(OidcError::Claim("exp"))? + self.clock_skew;
        if end <= now {
            return Err(OidcError::Expired);
        }
        for name in ["nbf", "iat"] {
            if time(claims, name)?.is_some_and(|begin| begin > now + self.clock_skew) {
                return Err(OidcError::NotYetValid);
            }
        }
        Ok(end)
    }

    fn user(&self, claims: &UniqueObject) -> Result<String, OidcError> {
        let name = text(claims, &self.user_claim)?;
        // A user can put another user's address into a profile until the provider has checked it.
        let unchecked =
            claims.get("email_verified").is_some_and(|value| *value != Value::Bool(true));
        if self.user_claim == "email" && unchecked {
            return Err(OidcError::Claim("email_verified"));
        }
        self.name(name).ok_or(OidcError::Claim("the user"))
    }

    fn groups(&self, claims: &UniqueObject) -> Result<Vec<String>, OidcError> {
        let wrong = OidcError::Claim("the groups");
        let names: Vec<&str> = match claims.get(&self.groups_claim) {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::String(name)) => vec![name],
            Some(Value::Array(names)) => {
                let texts: Option<Vec<&str>> = names.iter().map(Value::as_str).collect();
                texts.ok_or(wrong)?
            }
            Some(Value::Bool(_) | Value::Number(_) | Value::Object(_)) => return Err(wrong),
        };
        if names.len() > MAX_GROUPS {
            return Err(wrong);
        }
        names.into_iter().map(|name| self.name(name).ok_or(wrong)).collect()
    }

    fn name(&self, name: &str) -> Option<String> {
        let full = format!("{}{name}", self.prefix);
        (check_foreign_name(name).is_ok() && check_foreign_name(&full).is_ok()).then_some(full)
    }
}

fn text<'a>(claims: &'a UniqueObject, name: &str) -> Result<&'a str, OidcError> {
    claims.get(name).and_then(Value::as_str).ok_or(OidcError::Claim("a text"))
}

/// Seconds since 1970, which may have a fraction.
fn time(claims: &UniqueObject, name: &'static str) -> Result<Option<Timestamp>, OidcError> {
    let Some(value) = claims.get(name) else { return Ok(None) };
    let seconds = value.as_f64().filter(|seconds| (0.0..=MAX_SECONDS).contains(seconds));
    let seconds = seconds.ok_or(OidcError::Claim(name))?;
    Ok(Some(Timestamp::from_millis((seconds * 1_000.0) as i64)))
}

/// The year 9999.
const MAX_SECONDS: f64 = 253_402_300_799.0;

/// The token of a sign-in was issued to this client, for the sign-in that has this nonce.
fn check_sign_in(claims: &UniqueObject, client_id: &str, nonce: &str) -> Result<(), OidcError> {
    if claims.get("azp").is_some_and(|party| party != client_id) {
        return Err(OidcError::Audience);
    }
    match super::equal_secrets(text(claims, "nonce")?, nonce) {
        true => Ok(()),
        false => Err(OidcError::Nonce),
    }
}

/// A token is for one party or for a list of them.
fn check_audience(claims: &UniqueObject, audience: &str) -> Result<(), OidcError> {
    let named = match claims.get("aud") {
        Some(Value::String(one)) => one == audience,
        Some(Value::Array(all)) => {
            all.iter().all(Value::is_string) && all.iter().any(|one| one == audience)
        }
        Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_)) | None => false,
    };
    if named { Ok(()) } else { Err(OidcError::Audience) }
}
