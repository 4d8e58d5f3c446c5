//! `farrier machine reprovision`.

use super::*;

const REPROVISION_HELP: &str = "\
Examples:
  farrier machine reprovision machine-1 --dry-run     what differs, and what would be done
  farrier machine reprovision machine-1 --firmware fw-v2.1
  farrier machine reprovision machine-1 --cancel      give it up; what runs is stopped first

What fails is tried again by itself, three times at most, where that does no harm.";

#[derive(Debug, Args)]
#[command(after_help = REPROVISION_HELP)]
pub struct ReprovisionArgs {
    /// The machine, as `farrier list` names it
    pub machine_id: String,
    /// The record to apply, as `farrier firmware list` names it; the default of its rack's hardware type when not given
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true)]
    pub firmware: String,
    /// Names this request, so that repeating it starts nothing twice; made up and printed when not given
    #[arg(long, value_name = "ID")]
    pub request_id: Option<String>,
    /// Say what would be done, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Give up what was asked before
    #[arg(long, conflicts_with_all = ["firmware", "request_id"])]
    pub cancel: bool,
}
