//! `farrier secret`.

use super::*;

const ROTATE_HELP: &str = "\
All servers go on working meanwhile. Deployment and enrollment tokens stay valid. After a crash, the
next start continues.

To replace the master key too, put the new key on the first line of seal.key and keep the old one on
the second, on every replica; start the replicas again; rotate; then remove the second line.";

#[derive(Debug, Subcommand)]
pub enum SecretCommand {
    /// Make a new key and seal every stored secret with it
    #[command(after_help = ROTATE_HELP)]
    Rotate,
}
