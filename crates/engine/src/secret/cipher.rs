//! The keys of this process, and encryption with XChaCha20-Poly1305.
//!
//! A *master key* is given to every replica and is never in the database. It encrypts ("wraps") the
//! keys in the database: one that seals credentials, and one for each kind of token. A sealed value
//! names its key, so several keys can be in use while secrets are sealed again. A value without a
//! key id was sealed by an older farrier with a master key itself.

use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use model::fault::{Fault, FaultCode};
use model::time::Timestamp;
use providers::state_store::Secret;
use rand::Rng;
use ring::{digest, hmac};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use store::{KeyPurpose, SealKeyRow, StoreError};
use zeroize::{Zeroize, Zeroizing};

pub const KEY_BYTES: usize = 32;
const NONCE_BYTES: usize = 24;
/// The start of a sealed value that names its key. The random nonce of an older value is not this.
const MAGIC: &[u8] = b"farrier1";
/// `k-` and 16 hexadecimal digits.
const ID_BYTES: usize = 18;

/// A key of 32 bytes, cleared when it is dropped.
pub type KeyBytes = Zeroizing<[u8; KEY_BYTES]>;

/// The keys of this process. Clones share what is loaded.
#[derive(Clone)]
pub struct Cipher {
    masters: Arc<[MasterKey]>,
    loaded: Arc<RwLock<LoadedKeys>>,
}

struct MasterKey {
    id: String,
    bytes: KeyBytes,
}

/// The keys of the database, unwrapped.
struct LoadedKeys {
    seal: BTreeMap<String, XChaCha20Poly1305>,
    /// The id of the key that seals new values.
    current: Option<String>,
    deployment_tokens: hmac::Key,
    enrollment_tokens: hmac::Key,
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

impl Drop for PlainSecret {
    fn drop(&mut self) {
        match self {
            Self::Password { user: _, password } => password.zeroize(),
            Self::Key { user: _, pem, passphrase } => {
                pem.zeroize();
                passphrase.zeroize();
            }
            Self::Kubeconfig { text } => text.zeroize(),
            Self::MaasKey { key } => key.zeroize(),
        }
    }
}

impl MasterKey {
    fn new(bytes: KeyBytes) -> Self {
        let id = digest_id(bytes.as_slice());
        Self { id, bytes }
    }

    fn cipher(&self) -> XChaCha20Poly1305 {
        XChaCha20Poly1305::new(self.bytes.as_slice().into())
    }

    /// The key of tokens that an older farrier derived from its only key.
    fn derived_token_key(&self) -> KeyBytes {
        let key = hmac::Key::new(hmac::HMAC_SHA256, self.bytes.as_slice());
        let mut derived = Zeroizing::new([0; KEY_BYTES]);
        derived.copy_from_slice(hmac::sign(&key, b"deployment tokens").as_ref());
        derived
    }
}

/// The id of a key: a part of a keyed hash, which tells nothing about the key.
fn digest_id(key: &[u8]) -> String {
    let id = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), b"key id");
    format!("k-{}", &hex(id.as_ref())[..16])
}

pub fn random_key() -> KeyBytes {
    let mut key = Zeroizing::new([0; KEY_BYTES]);
    rand::rng().fill_bytes(key.as_mut_slice());
    key
}

impl Cipher {
    /// With one master key.
    pub fn new(key: &[u8; KEY_BYTES]) -> Self {
        Self::with_masters(Zeroizing::new(*key), Vec::new())
    }

    /// With the master key that wraps new keys, and others that only unwrap.
    pub fn with_masters(first: KeyBytes, others: Vec<KeyBytes>) -> Self {
        let first = MasterKey::new(first);
        let others: Vec<MasterKey> = others.into_iter().map(MasterKey::new).collect();
        // Until the keys of the database are loaded, tokens are those of an older farrier. Its only
        // key is the oldest.
        let oldest = others.last().unwrap_or(&first).derived_token_key();
        let tokens = || hmac::Key::new(hmac::HMAC_SHA256, oldest.as_slice());
        let loaded = LoadedKeys {
            seal: BTreeMap::new(),
            current: None,
            deployment_tokens: tokens(),
            enrollment_tokens: tokens(),
        };
        let masters = std::iter::once(first).chain(others).collect();
        Self { masters, loaded: Arc::new(RwLock::new(loaded)) }
    }

    /// The id of the master key that wraps new keys.
    pub fn master_id(&self) -> &str {
        self.masters.first().map_or("", |master| &master.id)
    }

    pub fn master_ids(&self) -> Vec<String> {
        self.masters.iter().map(|master| master.id.clone()).collect()
    }

    fn loaded(&self) -> RwLockReadGuard<'_, LoadedKeys> {
        self.loaded.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn deployment_token(&self, purpose: &str) -> String {
        hex(hmac::sign(&self.loaded().deployment_tokens, purpose.as_bytes()).as_ref())
    }

    pub fn enrollment_token(&self, purpose: &str) -> String {
        hex(hmac::sign(&self.loaded().enrollment_tokens, purpose.as_bytes()).as_ref())
    }

    /// True if the key of a sealed value is loaded. A value without a key id needs none.
    pub fn has_key(&self, id: Option<&str>) -> bool {
        id.is_none_or(|id| self.loaded().seal.contains_key(id))
    }

    /// A new key, wrapped with the first master key.
    pub fn new_key(&self, purpose: KeyPurpose, now: Timestamp) -> Result<SealKeyRow, StoreError> {
        self.wrap(&random_key(), purpose, now)
    }

    /// The key of tokens that an older farrier used, so that its tokens stay valid.
    pub fn old_token_key(
        &self,
        purpose: KeyPurpose,
        now: Timestamp,
    ) -> Result<SealKeyRow, StoreError> {
        let derived = self.masters.last().map(MasterKey::derived_token_key);
        let derived =
            derived.ok_or_else(|| StoreError::Corrupt("there is no master key".into()))?;
        self.wrap(&derived, purpose, now)
    }

    fn wrap(
        &self,
        key: &KeyBytes,
        purpose: KeyPurpose,
        created_at: Timestamp,
    ) -> Result<SealKeyRow, StoreError> {
        let master = self.masters.first();
        let master = master.ok_or_else(|| StoreError::Corrupt("there is no master key".into()))?;
        // The keys of both kinds of tokens may be the same, and an id is unique.
        let id = match purpose {
            KeyPurpose::Seal => digest_id(key.as_slice()),
            KeyPurpose::DeploymentTokens | KeyPurpose::EnrollmentTokens => purpose.as_str().into(),
        };
        let wrapped = encrypt(&master.cipher(), &wrap_context(purpose, &id), key.as_slice())?;
        let master = master.id.clone();
        Ok(SealKeyRow { id, purpose, master, wrapped, current: true, created_at })
    }

    /// The same key, wrapped with the first master key. None: it is so already.
    pub fn rewrapped(&self, row: &SealKeyRow) -> Result<Option<SealKeyRow>, StoreError> {
        if row.master == self.master_id() {
            return Ok(None);
        }
        let key = self.unwrap(row).map_err(StoreError::Unavailable)?;
        let new = self.wrap(&key, row.purpose, row.created_at)?;
        Ok(Some(SealKeyRow { id: row.id.clone(), current: row.current, ..new }))
    }

    /// The error says which master key is missing.
    fn unwrap(&self, row: &SealKeyRow) -> Result<KeyBytes, String> {
        let id = &row.master;
        let master = self.masters.iter().find(|one| one.id == *id).ok_or_else(|| {
            let known = self.master_ids().join(", ");
            format!(
                "the secrets are sealed under the master key {id}, and this server has {known}; \
                 give it the seal key of the other replicas, or restore seal.key from its backup"
            )
        })?;
        let context = wrap_context(row.purpose, &row.id);
        let plain = decrypt(&master.cipher(), &context, &row.wrapped);
        let plain = Zeroizing::new(plain.ok_or_else(|| format!("the key {} is damaged", row.id))?);
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        if plain.len() != KEY_BYTES {
            return Err(format!("the key {} has a wrong length", row.id));
        }
        key.copy_from_slice(&plain);
        Ok(key)
    }

    /// Loads the keys of the database. The error says what to do.
    pub fn load(&self, rows: &[SealKeyRow]) -> Result<(), String> {
        let mut seal = BTreeMap::new();
        let mut current = None;
        let mut tokens = BTreeMap::new();
        for row in rows {
            let key = self.unwrap(row)?;
            match row.purpose {
                KeyPurpose::Seal => {
                    seal.insert(row.id.clone(), XChaCha20Poly1305::new(key.as_slice().into()));
                    if row.current {
                        current = Some(row.id.clone());
                    }
                }
                KeyPurpose::DeploymentTokens | KeyPurpose::EnrollmentTokens => {
                    tokens.insert(row.purpose, hmac::Key::new(hmac::HMAC_SHA256, key.as_slice()));
                }
            }
        }
        let mut loaded = self.loaded.write().unwrap_or_else(PoisonError::into_inner);
        loaded.seal = seal;
        loaded.current = current;
        if let Some(key) = tokens.remove(&KeyPurpose::DeploymentTokens) {
            loaded.deployment_tokens = key;
        }
        if let Some(key) = tokens.remove(&KeyPurpose::EnrollmentTokens) {
            loaded.enrollment_tokens = key;
        }
        Ok(())
    }

    /// Encrypts a secret with the current key and authenticates its name. Returns the key's id too.
    pub fn seal(&self, name: &str, secret: &Secret) -> Result<(String, Vec<u8>), StoreError> {
        let loaded = self.loaded();
        let current = loaded.current.as_ref();
        let found = current.and_then(|id| Some((id.clone(), loaded.seal.get(id)?)));
        let (id, cipher) =
            found.ok_or_else(|| StoreError::Corrupt("there is no key to seal with".into()))?;
        let plain = Zeroizing::new(serde_json::to_vec(&plain(secret))?);
        let mut sealed = [MAGIC, id.as_bytes()].concat();
        sealed.extend(encrypt(cipher, &seal_context(&id, name), &plain)?);
        Ok((id, sealed))
    }

    /// Decrypts a secret that was encrypted under this name.
    pub fn open(&self, name: &str, sealed: &[u8]) -> Result<Secret, Fault> {
        let wrong = |message: &str| {
            let message = format!("the credential {name:?} {message}");
            Fault::new(FaultCode::CredentialMissing, message)
                .with(|facts| facts.credential = Some(name.into()))
        };
        let plain = match split_key_id(sealed) {
            Some((id, body)) => {
                let loaded = self.loaded();
                let key = loaded.seal.get(id);
                key.and_then(|key| decrypt(key, &seal_context(id, name), body))
            }
            // Any master key may be the one of the older farrier.
            None => self
                .masters
                .iter()
                .find_map(|master| decrypt(&master.cipher(), name.as_bytes(), sealed)),
        };
        let plain = Zeroizing::new(plain.ok_or_else(|| {
            wrong(
                "was sealed with another key; give all replicas the same seal_key_file, \
                 or set it again with `farrier credential set`",
            )
        })?);
        let plain: PlainSecret = serde_json::from_slice(&plain)
            .map_err(|_| wrong("was written by a newer farrier; start that one"))?;
        Ok(secret(&plain))
    }
}

fn plain(secret: &Secret) -> PlainSecret {
    let shown = |secret: &SecretString| secret.expose_secret().to_string();
    match secret {
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
    }
}

fn secret(plain: &PlainSecret) -> Secret {
    match plain {
        PlainSecret::Password { user, password } => {
            Secret::Password { user: user.clone(), password: password.as_str().into() }
        }
        PlainSecret::Key { user, pem, passphrase } => Secret::Key {
            user: user.clone(),
            pem: pem.as_str().into(),
            passphrase: passphrase.as_deref().map(SecretString::from),
        },
        PlainSecret::Kubeconfig { text } => Secret::Kubeconfig { text: text.as_str().into() },
        PlainSecret::MaasKey { key } => Secret::MaasKey { key: key.as_str().into() },
    }
}

/// The id of the key and the encrypted rest. None: the value names no key.
fn split_key_id(sealed: &[u8]) -> Option<(&str, &[u8])> {
    let (id, body) = sealed.strip_prefix(MAGIC)?.split_at_checked(ID_BYTES)?;
    Some((std::str::from_utf8(id).ok()?, body))
}

fn seal_context(id: &str, name: &str) -> Vec<u8> {
    format!("{id}/{name}").into_bytes()
}

fn wrap_context(purpose: KeyPurpose, id: &str) -> Vec<u8> {
    format!("seal-key/{}/{id}", purpose.as_str()).into_bytes()
}

/// A random nonce, and the encrypted text. `context` is authenticated with it.
fn encrypt(
    cipher: &XChaCha20Poly1305,
    context: &[u8],
    plain: &[u8],
) -> Result<Vec<u8>, StoreError> {
    let mut sealed = [0; NONCE_BYTES].to_vec();
    rand::rng().fill_bytes(&mut sealed);
    let payload = Payload { msg: plain, aad: context };
    let text = cipher.encrypt(&nonce(&sealed), payload);
    sealed.extend(text.map_err(|_| StoreError::Corrupt("a secret cannot be sealed".into()))?);
    Ok(sealed)
}

/// None: another key or context, or a changed value.
fn decrypt(cipher: &XChaCha20Poly1305, context: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
    let (start, text) = sealed.split_at_checked(NONCE_BYTES)?;
    cipher.decrypt(&nonce(start), Payload { msg: text, aad: context }).ok()
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

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(0);

    fn password() -> Secret {
        Secret::Password { user: "root".into(), password: "s3cret".into() }
    }

    fn with_key(master: [u8; KEY_BYTES]) -> (Cipher, Vec<SealKeyRow>) {
        let cipher = Cipher::new(&master);
        let rows = vec![cipher.new_key(KeyPurpose::Seal, NOW).unwrap()];
        cipher.load(&rows).unwrap();
        (cipher, rows)
    }

    fn opened(cipher: &Cipher, name: &str, sealed: &[u8]) -> String {
        let secret = cipher.open(name, sealed).unwrap();
        let Secret::Password { password, .. } = secret else { panic!("{secret:?}") };
        password.expose_secret().to_string()
    }

    #[test]
    fn only_the_same_key_and_name_open_it() {
        let (cipher, _) = with_key([7; KEY_BYTES]);
        let (id, sealed) = cipher.seal("bmc", &password()).unwrap();
        assert!(sealed.windows(id.len()).any(|part| part == id.as_bytes()));
        assert!(!sealed.windows(6).any(|part| part == b"s3cret"));
        assert_eq!(opened(&cipher, "bmc", &sealed), "s3cret");
        let mut broken = sealed.clone();
        *broken.last_mut().unwrap() ^= 1;
        let mut renamed = sealed.clone();
        renamed[MAGIC.len() + 3] ^= 1;
        for (cipher, name, bytes) in [
            (&cipher, "other", sealed.as_slice()),
            (&with_key([7; KEY_BYTES]).0, "bmc", &sealed),
            (&cipher, "bmc", &broken),
            (&cipher, "bmc", &renamed),
            (&cipher, "bmc", &sealed[..5]),
            (&cipher, "bmc", &sealed[..MAGIC.len() + ID_BYTES + 3]),
        ] {
            let fault = cipher.open(name, bytes).unwrap_err();
            assert_eq!(fault.code, FaultCode::CredentialMissing);
            assert!(fault.message.contains("seal_key_file"), "{fault}");
        }
        let again = cipher.seal("bmc", &password()).unwrap().1;
        assert_ne!(sealed, again, "every encryption uses a new nonce");
    }

    #[test]
    fn a_value_of_an_older_farrier_opens_with_any_of_the_master_keys() {
        let plain = serde_json::to_vec(&plain(&password())).unwrap();
        let old = XChaCha20Poly1305::new(&[7; KEY_BYTES].into());
        let sealed = encrypt(&old, b"bmc", &plain).unwrap();
        let key = |byte: u8| Zeroizing::new([byte; KEY_BYTES]);
        for cipher in [Cipher::new(&[7; KEY_BYTES]), Cipher::with_masters(key(9), vec![key(7)])] {
            assert_eq!(opened(&cipher, "bmc", &sealed), "s3cret");
        }
        assert!(Cipher::new(&[9; KEY_BYTES]).open("bmc", &sealed).is_err());
    }

    /// The keys survive a change of the master key, and so do the tokens.
    #[test]
    fn keys_are_wrapped_with_another_master_key() {
        let (old, mut rows) = with_key([7; KEY_BYTES]);
        for purpose in [KeyPurpose::DeploymentTokens, KeyPurpose::EnrollmentTokens] {
            rows.push(old.old_token_key(purpose, NOW).unwrap());
        }
        old.load(&rows).unwrap();
        let sealed = old.seal("bmc", &password()).unwrap().1;
        let tokens = |cipher: &Cipher| (cipher.deployment_token("a"), cipher.enrollment_token("a"));
        assert_eq!(tokens(&old), tokens(&Cipher::new(&[7; KEY_BYTES])), "as before the upgrade");
        let key = |byte: u8| Zeroizing::new([byte; KEY_BYTES]);
        let both = Cipher::with_masters(key(9), vec![key(7)]);
        let rewrapped: Vec<SealKeyRow> =
            rows.iter().map(|row| both.rewrapped(row).unwrap().unwrap()).collect();
        assert_eq!(both.rewrapped(&rewrapped[0]), Ok(None));
        let new = Cipher::new(&[9; KEY_BYTES]);
        let problem = new.load(&rows).unwrap_err();
        assert!(problem.contains("restore seal.key"), "{problem}");
        new.load(&rewrapped).unwrap();
        assert_eq!(opened(&new, "bmc", &sealed), "s3cret");
        assert_eq!(tokens(&new), tokens(&old));
        // A key is not taken for another one.
        let mut moved = rewrapped[1].clone();
        moved.purpose = KeyPurpose::Seal;
        assert!(new.load(&[moved]).is_err());
    }

    #[test]
    fn no_secret_is_shown() {
        let key = Secret::MaasKey { key: "consumer:token:s3cret".into() };
        for secret in [password(), key] {
            assert!(!format!("{secret:?}").contains("s3cret"));
        }
    }

    #[test]
    fn every_kind_round_trips() {
        let (cipher, _) = with_key([7; KEY_BYTES]);
        let passphrase = Some("hush".into());
        for secret in [
            password(),
            Secret::Key { user: "u".into(), pem: "PEM".into(), passphrase },
            Secret::Kubeconfig { text: "text".into() },
            Secret::MaasKey { key: "consumer:token:s3cret".into() },
        ] {
            let sealed = cipher.seal("x", &secret).unwrap().1;
            let read = cipher.open("x", &sealed).unwrap();
            let text = |secret: &Secret| serde_json::to_string(&plain(secret)).unwrap();
            assert_eq!(text(&read), text(&secret));
        }
    }
}
