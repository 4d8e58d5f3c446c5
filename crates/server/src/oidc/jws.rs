//! The compact form of a signed JSON Web Token (RFC 7515, RFC 7519): parsed, and its signature
//! verified, before anything in it is believed.

use super::OidcError;
use super::keys::{KeySet, VerificationKey};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;

/// The longest token that is read. Longer than any header of a request may be.
pub(super) const MAX_TOKEN_BYTES: usize = 16 * 1024;
/// The types of tokens that carry an identity. Others, such as `logout+jwt`, do not.
const TYPES: [&str; 3] = ["jwt", "at+jwt", "application/at+jwt"];

/// The signature algorithms that can be allowed. There is none without a key pair: a shared secret
/// (HS256) or no signature (`none`) cannot be allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JwsAlgorithm {
    Rs256,
    Es256,
    EdDsa,
}

impl JwsAlgorithm {
    pub const ALL: [Self; 3] = [Self::Rs256, Self::Es256, Self::EdDsa];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rs256 => "RS256",
            Self::Es256 => "ES256",
            Self::EdDsa => "EdDSA",
        }
    }

    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.as_str() == word)
    }
}

/// A JSON object in which no name occurs twice: two readers must not see two values.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct UniqueObject(pub BTreeMap<String, Value>);

impl UniqueObject {
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    fn text(&self, name: &str) -> Result<Option<&str>, OidcError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(OidcError::Malformed("a name in its header is no text")),
        }
    }
}

impl<'de> Deserialize<'de> for UniqueObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;

        impl<'de> Visitor<'de> for Object {
            type Value = UniqueObject;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<UniqueObject, M::Error> {
                let mut fields = BTreeMap::new();
                while let Some((name, value)) = map.next_entry::<String, Value>()? {
                    if fields.insert(name, value).is_some() {
                        return Err(de::Error::custom("a name occurs twice"));
                    }
                }
                Ok(UniqueObject(fields))
            }
        }

        deserializer.deserialize_map(Object)
    }
}

/// A token that was parsed. Nothing in it is verified.
pub(super) struct ParsedToken<'a> {
    algorithm: JwsAlgorithm,
    pub key_id: Option<String>,
    /// Header and payload as they were signed.
    signed: &'a str,
    payload: &'a str,
    signature: Vec<u8>,
}

impl<'a> ParsedToken<'a> {
    pub fn parse(token: &'a str, allowed: &[JwsAlgorithm]) -> Result<Self, OidcError> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(OidcError::Malformed("it is too long"));
        }
        let parts: Vec<&str> = token.split('.').collect();
        let [header, payload, signature] = parts[..] else {
            return Err(OidcError::Malformed("it does not have three parts"));
        };
        let header_fields = object(header)?;
        if header_fields.get("crit").is_some() {
            return Err(OidcError::Malformed("its header has critical extensions"));
        }
        let named = header_fields.text("alg")?.unwrap_or_default();
        let algorithm = JwsAlgorithm::parse(named).filter(|one| allowed.contains(one));
        let algorithm = algorithm.ok_or(OidcError::Algorithm)?;
        let kind = header_fields.text("typ")?;
        if kind.is_some_and(|kind| !TYPES.contains(&kind.to_ascii_lowercase().as_str())) {
            return Err(OidcError::Malformed("its type is not that of an identity"));
        }
        let key_id = header_fields.text("kid")?.map(str::to_string);
        let signed = &token[..header.len() + 1 + payload.len()];
        Ok(Self { algorithm, key_id, signed, payload, signature: decode(signature)? })
    }

    /// The key that must have signed it. Without a key id, the only one for its algorithm.
    pub fn key<'k>(&self, keys: &'k KeySet) -> Result<&'k VerificationKey, OidcError> {
        keys.find(self.key_id.as_deref(), self.algorithm).ok_or(OidcError::UnknownKey)
    }

    /// The claims, after the signature was verified.
    pub fn verify(&self, key: &VerificationKey) -> Result<UniqueObject, OidcError> {
        key.verify(self.algorithm, self.signed.as_bytes(), &self.signature)?;
        object(self.payload)
    }
}

fn decode(part: &str) -> Result<Vec<u8>, OidcError> {
    URL_SAFE_NO_PAD.decode(part).map_err(|_| OidcError::Malformed("a part of it is no base64url"))
}

pub(super) fn object(part: &str) -> Result<UniqueObject, OidcError> {
    let wrong = OidcError::Malformed("a part of it is no JSON object with unique names");
    serde_json::from_slice(&decode(part)?).map_err(|_| wrong)
}
