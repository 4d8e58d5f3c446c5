//! `farrier audit`.

use super::access::parse_lifetime;
use super::*;

#[derive(Debug, Args)]
pub struct AuditArgs {
    #[command(subcommand)]
    pub command: Option<AuditCommand>,
    /// Without a subcommand the log is listed.
    #[command(flatten)]
    pub list: AuditListArgs,
}

#[derive(Debug, Subcommand)]
pub enum AuditCommand {
    /// List who asked for what, the newest first
    #[command(after_help = "Examples:\n  farrier audit list --since 24h --user ada\n  \
                      farrier audit list --object machine-1 -o jsonl\n  \
                      farrier audit list --follow")]
    List(AuditListArgs),
    /// Check that no entry was changed or removed
    #[command(
        after_help = "Keep the printed checkpoint elsewhere. A later check finds a log that was made again:\n  \
                      farrier audit verify --checkpoint 1042:9f3c…"
    )]
    Verify(AuditVerifyArgs),
    /// Show the end of the log, and whether its streams keep up
    Status,
}

#[derive(Debug, Args)]
pub struct AuditListArgs {
    /// Only entries of the last 30m, 24h or 7d
    #[arg(long, value_name = "DURATION", value_parser = parse_lifetime)]
    pub since: Option<Duration>,
    /// Only entries of this user
    #[arg(long, visible_alias = "who", default_value = "", hide_default_value = true)]
    pub user: String,
    /// Only entries that name this object, or started this operation
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true)]
    pub object: String,
    /// Maximum number of results (default: 100)
    #[arg(long, value_name = "N", default_value = "100", hide_default_value = true,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
    /// Print the entries in the order of the log, and then new ones as they are sealed
    #[arg(long, short)]
    pub follow: bool,
}

#[derive(Debug, Args)]
pub struct AuditVerifyArgs {
    /// Checkpoint of an earlier check, as POSITION:SEAL
    #[arg(long, value_name = "POSITION:SEAL", value_parser = parse_checkpoint)]
    pub checkpoint: Option<(i64, String)>,
}

fn parse_checkpoint(text: &str) -> Result<(i64, String), String> {
    let parsed = text.split_once(':').and_then(|(position, seal)| {
        let position = position.parse::<i64>().ok().filter(|position| *position > 0)?;
        Some((position, seal.to_string())).filter(|(_, seal)| !seal.is_empty())
    });
    parsed.ok_or_else(|| format!("{text:?} is no checkpoint; write POSITION:SEAL"))
}
