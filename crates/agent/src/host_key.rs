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
