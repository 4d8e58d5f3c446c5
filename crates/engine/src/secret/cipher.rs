//! Encryption with XChaCha20-Poly1305 under a key of 32 random bytes, which is stored beside the
//! data or at `seal_key_file`.

use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use model::fault::{Fault, FaultCode};
use providers::state_store::Secret;
use rand::Rng;
use ring::{digest, hmac};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use store::StoreError;

const KEY_BYTES: usize = 32;
const NONCE_BYTES: usize = 24;

#[derive(Clone)]
pub struct Cipher {
    seal: XChaCha20Poly1305,
    tokens: hmac::Key,
}

/// The plaintext of a secret, as it is encrypted.
#[derive(Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
enum PlainSecret {
    Password { user: String, password: String },
    Key { user: String, pem: String, passphrase: Option<String> },
    Kubeconfig { text: String },
    MaasKey { key: String },
}

impl Cipher {
    pub fn new(key: &[u8; KEY_BYTES]) -> Self {
        // The keys for encryption and for tokens are different.
        let tokens = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), b"deployment tokens");
        let tokens = hmac::Key::new(hmac::HMAC_SHA256, tokens.as_ref());
        Self { seal: XChaCha20Poly1305::new(key.into()), tokens }
    }

    /// The token for a purpose: always the same, and not guessable without the key.
    pub fn token(&self, purpose: &str) -> String {
        hex(hmac::sign(&self.tokens, purpose.as_bytes()).as_ref())
    }

    /// Reads the key file, or creates it when it is missing. The error names the remedy.
    pub fn from_file(path: &Path) -> Result<Self, String> {
        let wrong = |message: String| format!("the key file {}: {message}", path.display());
        let bytes = match fs::read(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                make_key(path).map_err(|error| {
                    wrong(format!("cannot be made: {error}; choose another seal_key_file"))
                })?
            }
            other => other.map_err(|error| wrong(format!("cannot be read: {error}")))?,
        };
        let length = bytes.len();
        let key: [u8; KEY_BYTES] = bytes.try_into().map_err(|_| {
            wrong(format!("has {length} bytes and not {KEY_BYTES}; put the right file back"))
        })?;
        Ok(Self::new(&key))
    }

    /// Encrypts a secret and authenticates its name.
    pub fn seal(&self, name: &str, secret: &Secret) -> Result<Vec<u8>, StoreError> {
        let shown = |secret: &SecretString| secret.expose_secret().to_string();
        let plain = match secret {
            Secret::Password { user, password } => {
                PlainSecret::Password { user: user.clone(), password: shown(password) }
            }
            Secret::Key { user, pem, passphrase } => PlainSecret::Key {
                user: user.clone(),
                pem: shown(pem),
                passphrase: passphrase.as_ref().map(shown),
            },
            Secret::Kubeconfig { text } => PlainSecret::Kubeconfig { text: shown(text) },
            Secret::MaasKey { key } => PlainSecret::MaasKey { key: shown(key) },
        };
        let plain = serde_json::to_vec(&plain)?;
        let mut sealed = [0; NONCE_BYTES].to_vec();
        rand::rng().fill_bytes(&mut sealed);
        let payload = Payload { msg: &plain, aad: name.as_bytes() };
        let text = self.seal.encrypt(&nonce(&sealed), payload);
        let text = text.map_err(|_| StoreError::Corrupt("a secret cannot be sealed".into()))?;
        sealed.extend(text);
        Ok(sealed)
    }

    /// Decrypts a secret that was encrypted under this name.
    pub fn open(&self, name: &str, sealed: &[u8]) -> Result<Secret, Fault> {
        let wrong = |message: &str| {
            let message = format!("the credential {name:?} {message}");
            Fault::new(FaultCode::CredentialMissing, message)
                .with(|facts| facts.credential = Some(name.into()))
        };
        let other_key = || {
            wrong(
                "was sealed with another key; give all replicas the same seal_key_file, \
                 or set it again with `farrier credential set`",
            )
        };
        let (start, text) = sealed.split_at_checked(NONCE_BYTES).ok_or_else(other_key)?;
        let payload = Payload { msg: text, aad: name.as_bytes() };
        let plain = self.seal.decrypt(&nonce(start), payload).map_err(|_| other_key())?;
        let plain = serde_json::from_slice(&plain)
            .map_err(|_| wrong("was written by a newer farrier; start that one"))?;
        Ok(match plain {
            PlainSecret::Password { user, password } => {
                Secret::Password { user, password: password.into() }
            }
            PlainSecret::Key { user, pem, passphrase } => Secret::Key {
                user,
                pem: pem.into(),
                passphrase: passphrase.map(SecretString::from),
            },
            PlainSecret::Kubeconfig { text } => Secret::Kubeconfig { text: text.into() },
            PlainSecret::MaasKey { key } => Secret::MaasKey { key: key.into() },
        })
    }
}

/// The SHA-256 of a token or session; the database stores only this.
pub fn checksum(secret: &str) -> String {
    hex(digest::digest(&digest::SHA256, secret.as_bytes()).as_ref())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn nonce(bytes: &[u8]) -> XNonce {
    let mut nonce = XNonce::default();
    nonce.copy_from_slice(&bytes[..NONCE_BYTES]);
    nonce
}

/// Creates a key file that only this user can read. The loser of a race reads the winner's key.
fn make_key(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut key = vec![0; KEY_BYTES];
    rand::rng().fill_bytes(&mut key);
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(mut file) => {
            file.write_all(&key)?;
            file.sync_all()?;
            Ok(key)
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => fs::read(path),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn password() -> Secret {
        Secret::Password { user: "root".into(), password: "s3cret".to_string().into() }
    }

    #[test]
    fn only_the_same_key_and_name_open_it() {
        let cipher = Cipher::new(&[7; KEY_BYTES]);
        let sealed = cipher.seal("bmc", &password()).unwrap();
        assert!(!sealed.windows(6).any(|part| part == b"s3cret"));
        let opened = cipher.open("bmc", &sealed).unwrap();
        let Secret::Password { user, password: opened } = opened else { panic!("{opened:?}") };
        assert_eq!((user.as_str(), opened.expose_secret()), ("root", "s3cret"));
        let mut broken = sealed.clone();
        broken[NONCE_BYTES + 1] ^= 1;
        for (cipher, name, bytes) in [
            (&cipher, "other", sealed.as_slice()),
            (&Cipher::new(&[8; KEY_BYTES]), "bmc", &sealed),
            (&cipher, "bmc", &broken),
            (&cipher, "bmc", &sealed[..5]),
        ] {
            let fault = cipher.open(name, bytes).unwrap_err();
            assert_eq!(fault.code, FaultCode::CredentialMissing);
            assert!(fault.message.contains("seal_key_file"), "{fault}");
        }
        assert_ne!(
            sealed,
            cipher.seal("bmc", &password()).unwrap(),
            "every encryption uses a new nonce"
        );
    }

    #[test]
    fn no_secret_is_shown() {
        let key = Secret::MaasKey { key: "consumer:token:s3cret".to_string().into() };
        for secret in [password(), key] {
            assert!(!format!("{secret:?}").contains("s3cret"));
        }
    }

    #[test]
    fn a_maas_key_round_trips() {
        let cipher = Cipher::new(&[7; KEY_BYTES]);
        let key = Secret::MaasKey { key: "consumer:token:s3cret".to_string().into() };
        let sealed = cipher.seal("maas", &key).unwrap();
        let opened = cipher.open("maas", &sealed).unwrap();
        let Secret::MaasKey { key } = opened else { panic!("{opened:?}") };
        assert_eq!(key.expose_secret(), "consumer:token:s3cret");
    }

    #[test]
    fn the_key_file_is_created_once_and_private() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("seal.key");
        let sealed = Cipher::from_file(&path).unwrap().seal("a", &password()).unwrap();
        Cipher::from_file(&path).unwrap().open("a", &sealed).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::write(&path, "short").unwrap();
        let message = Cipher::from_file(&path).map(drop).unwrap_err();
        assert!(message.contains("has 5 bytes and not 32"), "{message}");
    }
}
