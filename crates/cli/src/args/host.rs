//! `farrier machine reprovision`.

use super::*;

const REPROVISION_HELP: &str = "\
Examples:
  farrier machine reprovision machine-1 --dry-run     what differs, and what would be done
  farrier machine reprovision machine-1 --firmware fw-v2.1
  farrier machine reprovision machine-1 --cancel      stop the operation and cancel the request

The machine must be FACTORY_READY or in MAINTENANCE. A failed operation is retried automatically,
at most three times, where that is safe.";

#[derive(Debug, Args)]
#[command(after_help = REPROVISION_HELP)]
pub struct ReprovisionArgs {
    /// ID of the machine, from `farrier list`
    pub machine_id: String,
    /// ID of the firmware record (default: that of its rack's hardware type)
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true)]
    pub firmware: String,
    /// Idempotency key: a repeated request starts nothing twice (default: generated)
    #[arg(long, value_name = "ID")]
    pub request_id: Option<String>,
    /// Cancel the previous request
    #[arg(long, conflicts_with_all = ["firmware", "request_id"])]
    pub cancel: bool,
}
