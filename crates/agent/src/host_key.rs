//! The SSH host key of the new system. The agent generates it, so that Farrier knows the key before
//! the first connection.

use crate::random::random_bytes;
use ssh_key::private::{Ed25519Keypair, KeypairData};
use ssh_key::{LineEnding, PrivateKey};

pub struct HostKey {
    /// The private key file of sshd. The struct has no `Debug`, because this is a secret.
    pub private: String,
    /// `ssh-ed25519 AAAA…`
    pub public: String,
}

impl HostKey {
    pub fn generate() -> Result<Self, String> {
        let seed = random_bytes()?;
        let key = PrivateKey::new(KeypairData::from(Ed25519Keypair::from_seed(&seed)), "");
        let text = |key: &PrivateKey| {
            let private = key.to_openssh(LineEnding::LF)?.to_string();
            let public = key.public_key().to_openssh()?;
            Ok(Self { private, public: public.trim_end().to_owned() })
        };
        key.and_then(|key| text(&key)).map_err(|error: ssh_key::Error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    #[test]
    fn host_keys_are_unique() {
        let (one, other) = (HostKey::generate().unwrap(), HostKey::generate().unwrap());
        assert_ne!(one.public, other.public);
        assert!(one.public.starts_with("ssh-ed25519 AAAA"), "{}", one.public);
        let read = PrivateKey::from_openssh(&one.private).unwrap();
        assert_eq!(read.public_key().to_openssh().unwrap().trim_end(), one.public);
    }

    /// OpenSSH reads the file and derives the same public key.
    #[test]
    fn openssh_reads_host_keys() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let key = HostKey::generate().unwrap();
        fs::write(&path, &key.private).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let Ok(output) = Command::new("ssh-keygen").arg("-y").arg("-f").arg(&path).output() else {
            eprintln!("skipped: there is no ssh-keygen here");
            return;
        };
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim_end(), key.public);
    }
}
