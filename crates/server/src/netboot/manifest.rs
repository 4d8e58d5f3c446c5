//! Signs what machines are told to become. The deploy environment verifies it with the public key,
//! so neither the assignment nor the checksum of the image can be altered on the way.
//!
//! The key is a file of its own, so that no other key has to stay because of the environments that
//! were built with this one.

use crate::private_files::create_whole;
use ring::rand::{SecureRandom, SystemRandom};
use ring::signature::{Ed25519KeyPair, KeyPair};
use sha2::{Digest, Sha256};
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use wire::deploy::{Assignment, ClaimReply, Image, MANIFEST_CONTEXT, Manifest, SignedManifest};

const SEED_BYTES: usize = 32;

pub struct ManifestKey(Ed25519KeyPair);

impl ManifestKey {
    /// Reads the key, and makes it at the first start. The public half is written beside it.
    pub fn open(path: &Path) -> Result<Self, String> {
        let wrong = |error: &dyn std::fmt::Display| {
            format!("the key of the boot manifests {}: {error}", path.display())
        };
        let io = |error: io::Error| wrong(&error);
        if !path.try_exists().map_err(io)? {
            create(path).map_err(io)?;
        }
        let mode = fs::metadata(path).map_err(io)?.permissions().mode();
        if mode & 0o077 != 0 {
            let message = format!("others can read it; chmod 600 {}", path.display());
            return Err(wrong(&message));
        }
        let text = fs::read_to_string(path).map_err(io)?;
        let seed = unhex(text.trim()).filter(|seed| seed.len() == SEED_BYTES);
        let seed = seed.ok_or_else(|| wrong(&"64 hexadecimal digits are wanted"))?;
        let key = Ed25519KeyPair::from_seed_unchecked(&seed).map_err(|error| wrong(&error))?;
        let key = Self(key);
        fs::write(path.with_extension("pub"), key.public() + "\n").map_err(io)?;
        Ok(key)
    }

    /// The public half, in hexadecimal.
    pub fn public(&self) -> String {
        hex(self.0.public_key().as_ref())
    }

    /// The reply to the claim of a session.
    pub fn sign(
        &self,
        assignment: Assignment<Option<Image>>,
        session: &str,
        macs: &[String],
    ) -> Result<ClaimReply<Option<Image>>, serde_json::Error> {
        let session = hex(&Sha256::digest(session.as_bytes()));
        let manifest = Manifest { assignment, session, macs: macs.to_vec() };
        let text = serde_json::to_string(&manifest)?;
        let signature = self.0.sign(&[MANIFEST_CONTEXT.as_bytes(), text.as_bytes()].concat());
        let signed = SignedManifest { manifest: text, signature: hex(signature.as_ref()) };
        Ok(ClaimReply { assignment: manifest.assignment, signed })
    }
}

/// Makes the file complete or not at all. Another replica may do the same at this moment: the first
/// one wins.
fn create(path: &Path) -> io::Result<()> {
    let mut seed = [0; SEED_BYTES];
    SystemRandom::new().fill(&mut seed).map_err(|_| io::Error::other("no random numbers"))?;
    match create_whole(path, format!("{}\n", hex(&seed)).as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        written => written,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.is_ascii() || !text.len().is_multiple_of(2) {
        return None;
    }
    let pairs = (0..text.len()).step_by(2);
    pairs.map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring::signature::{ED25519, UnparsedPublicKey};

    #[test]
    fn the_key_is_made_once_and_stays_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("manifest.key");
        let first = ManifestKey::open(&path).unwrap().public();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(ManifestKey::open(&path).unwrap().public(), first);
        let public = fs::read_to_string(dir.path().join("manifest.pub")).unwrap();
        assert_eq!(public.trim(), first);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(ManifestKey::open(&path).err().unwrap().contains("chmod 600"));
        fs::write(&path, "short").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(ManifestKey::open(&path).err().unwrap().contains("64 hexadecimal digits"));
    }

    /// The agent's tests verify the same signature with another implementation.
    #[test]
    fn a_manifest_is_signed_for_one_claim() {
        let key = ManifestKey(Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap());
        let assignment = Assignment {
            run: "op-1".into(),
            machine: "m-1".into(),
            hostname: "node-1".into(),
            user: "root".into(),
            authorized_keys: Vec::new(),
            root_disk: String::new(),
            image: None,
            stamp: "tiny 1".into(),
        };
        let macs = ["52:54:00:00:00:01".to_string()];
        let reply = key.sign(assignment.clone(), "a session", &macs).unwrap();
        assert_eq!(reply.assignment, assignment);
        let SignedManifest { manifest, signature } = reply.signed;
        let message = [MANIFEST_CONTEXT.as_bytes(), manifest.as_bytes()].concat();
        let public = UnparsedPublicKey::new(&ED25519, unhex(&key.public()).unwrap());
        public.verify(&message, &unhex(&signature).unwrap()).unwrap();
        let read: Manifest<Option<Image>> = serde_json::from_str(&manifest).unwrap();
        assert_eq!((read.assignment, read.macs.as_slice()), (assignment, &macs[..]));
        assert_eq!(read.session, hex(&Sha256::digest(b"a session")));
        assert_eq!(
            key.public(),
            "ea4a6c63e29c520abef5507b132ec5f9954776aebebe7b92421eea691446d22c"
        );
    }
}
