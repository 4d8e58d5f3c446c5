//! The signed manifest: what becomes of this machine, as Farrier has signed it.
//!
//! The public key is a file of the deploy environment, or comes with the kernel command line. The
//! command line is as trustworthy as the boot script, so a key in the environment takes precedence.

use crate::console::print_line;
use ed25519_dalek::{Signature, VerifyingKey};
use sha2::{Digest, Sha256};
use std::fs;
use std::path::Path;
use wire::deploy::{Assignment, MANIFEST_CONTEXT, Manifest, SignedManifest};

/// The key in the deploy environment.
pub const KEY_FILE: &str = "etc/farrier/manifest.pub";
const KEY_BYTES: usize = 32;
const SIGNATURE_BYTES: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestKey(VerifyingKey);

impl ManifestKey {
    /// Reads a key of 64 hexadecimal digits.
    pub fn parse(text: &str) -> Result<Self, String> {
        let bytes: [u8; KEY_BYTES] = unhex(text.trim())
            .and_then(|bytes| bytes.try_into().ok())
            .ok_or_else(|| format!("{} hexadecimal digits are wanted", 2 * KEY_BYTES))?;
        VerifyingKey::from_bytes(&bytes).map(Self).map_err(|error| error.to_string())
    }

    /// The key of the environment, or the one of the command line.
    pub fn find(root: &Path, boot: Option<&Self>) -> Result<Self, String> {
        let path = root.join(KEY_FILE);
        match fs::read_to_string(&path) {
            Ok(text) => {
                let key = Self::parse(&text).map_err(|error| format!("{KEY_FILE}: {error}"))?;
                if boot.is_some_and(|boot| *boot != key) {
                    print_line("the key of the command line is another one than the environment's");
                }
                Ok(key)
            }
            Err(_) => boot.cloned().ok_or_else(|| {
                format!("there is no key: neither {KEY_FILE} nor farrier.key= on the command line")
            }),
        }
    }

    /// The assignment in a manifest, if it was signed for this claim of this machine.
    pub fn verify(
        &self,
        signed: &SignedManifest,
        session: &str,
        macs: &[String],
    ) -> Result<Assignment, String> {
        if signed.signature.is_empty() {
            return Err("Farrier sent no signed manifest; upgrade the server first".into());
        }
        let bytes: Option<[u8; SIGNATURE_BYTES]> =
            unhex(&signed.signature).and_then(|bytes| bytes.try_into().ok());
        let signature = Signature::from_bytes(&bytes.ok_or("the signature cannot be read")?);
        let message = [MANIFEST_CONTEXT.as_bytes(), signed.manifest.as_bytes()].concat();
        self.0
            .verify_strict(&message, &signature)
            .map_err(|_| "the manifest was not signed with the key of this environment")?;
        let manifest: Manifest = serde_json::from_str(&signed.manifest)
            .map_err(|error| format!("the manifest cannot be read: {error}"))?;
        if !manifest.session.eq_ignore_ascii_case(&hash(session)) {
            return Err("the manifest was signed for another claim".into());
        }
        let own = |mac: &String| macs.iter().any(|one| one.eq_ignore_ascii_case(mac));
        if !manifest.macs.iter().any(own) {
            return Err("the manifest was signed for another machine".into());
        }
        Ok(manifest.assignment)
    }
}

fn hash(text: &str) -> String {
    crate::image::hex(&Sha256::digest(text.as_bytes()))
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.is_ascii() || !text.len().is_multiple_of(2) {
        return None;
    }
    let pairs = (0..text.len()).step_by(2);
    pairs.map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}
