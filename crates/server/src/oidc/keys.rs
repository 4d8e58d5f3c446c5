//! The public keys of the identity provider (JWKS, RFC 7517).

use super::OidcError;
use super::jws::JwsAlgorithm;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents,
    UnparsedPublicKey,
};
use serde::Deserialize;

/// More keys than any provider has.
const MAX_KEYS: usize = 100;
/// The size of a coordinate of P-256, and of a key of Ed25519.
const COORDINATE_BYTES: usize = 32;
/// The first byte of a point of P-256 that is written with both coordinates.
const UNCOMPRESSED: u8 = 4;

#[derive(Deserialize)]
struct KeyDocument {
    keys: Vec<serde_json::Value>,
}

/// A key as it is written. Fields that are not read here may be anything.
#[derive(Deserialize)]
struct WrittenKey {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    purpose: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum PublicKey {
    Rsa {
        modulus: Vec<u8>,
        exponent: Vec<u8>,
    },
    /// A point of P-256.
    Ec(Vec<u8>),
    Ed25519(Vec<u8>),
}

impl PublicKey {
    /// The only algorithm that this key verifies. So a token cannot choose another one for it.
    const fn algorithm(&self) -> JwsAlgorithm {
        match self {
            Self::Rsa { .. } => JwsAlgorithm::Rs256,
            Self::Ec(_) => JwsAlgorithm::Es256,
            Self::Ed25519(_) => JwsAlgorithm::EdDsa,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct VerificationKey {
    id: Option<String>,
    key: PublicKey,
}

impl VerificationKey {
    /// None: the key is for another purpose or algorithm.
    fn read(written: WrittenKey) -> Option<Self> {
        let bytes = |text: &Option<String>| URL_SAFE_NO_PAD.decode(text.as_deref()?).ok();
        let coordinate =
            |text: &Option<String>| bytes(text).filter(|found| found.len() == COORDINATE_BYTES);
        if written.purpose.as_deref().is_some_and(|purpose| purpose != "sig") {
            return None;
        }
        let key = match (written.kty.as_str(), written.crv.as_deref()) {
            ("RSA", _) => {
                PublicKey::Rsa { modulus: bytes(&written.n)?, exponent: bytes(&written.e)? }
            }
            ("EC", Some("P-256")) => {
                let (x, y) = (coordinate(&written.x)?, coordinate(&written.y)?);
                PublicKey::Ec([&[UNCOMPRESSED], x.as_slice(), &y].concat())
            }
            ("OKP", Some("Ed25519")) => PublicKey::Ed25519(coordinate(&written.x)?),
            _ => return None,
        };
        let named = written.alg.is_none_or(|name| name == key.algorithm().as_str());
        named.then_some(Self { id: written.kid, key })
    }

    pub fn verify(
        &self,
        algorithm: JwsAlgorithm,
        signed: &[u8],
        signature: &[u8],
    ) -> Result<(), OidcError> {
        if algorithm != self.key.algorithm() {
            return Err(OidcError::Algorithm);
        }
        let verified = match &self.key {
            PublicKey::Rsa { modulus, exponent } => {
                let key = RsaPublicKeyComponents { n: modulus, e: exponent };
                key.verify(&RSA_PKCS1_2048_8192_SHA256, signed, signature)
            }
            PublicKey::Ec(point) => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(signed, signature)
            }
            PublicKey::Ed25519(key) => {
                UnparsedPublicKey::new(&ED25519, key).verify(signed, signature)
            }
        };
        verified.map_err(|_| OidcError::Signature)
    }
}

/// The keys of the provider that verify signatures.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct KeySet(Vec<VerificationKey>);

impl KeySet {
    /// Reads a document. Keys for other purposes are left out; a document without any key for us is
    /// refused, because it would lock every user out.
    pub fn parse(document: &[u8]) -> Result<Self, String> {
        let document: KeyDocument = serde_json::from_slice(document)
            .map_err(|error| format!("the key set is no JSON of keys: {error}"))?;
        if document.keys.len() > MAX_KEYS {
            return Err(format!("the key set has more than {MAX_KEYS} keys"));
        }
        let written = document.keys.into_iter().filter_map(|key| serde_json::from_value(key).ok());
        let keys: Vec<VerificationKey> = written.filter_map(VerificationKey::read).collect();
        if keys.is_empty() {
            return Err("the key set has no RSA, P-256 or Ed25519 key for signatures".into());
        }
        Ok(Self(keys))
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The key with this id. Without an id the only key for the algorithm, if there is only one.
    pub fn find(&self, id: Option<&str>, algorithm: JwsAlgorithm) -> Option<&VerificationKey> {
        let mut fitting = self.0.iter().filter(|key| match id {
            Some(id) => key.id.as_deref() == Some(id),
            None => key.key.algorithm() == algorithm,
        });
        match (fitting.next(), fitting.next()) {
            (Some(key), None) => Some(key),
            (Some(_), Some(_)) | (None, _) => None,
        }
    }
}
