//! `farrier db`.

use super::*;

#[derive(Debug, Subcommand)]
pub enum DbCommand {
    /// Find rows that cannot be read, and show those that were set aside
    #[command(
        after_help = "Examples:\n  farrier db check\n  farrier db check --database /var/lib/farrier"
    )]
    Check(DatabaseArgs),
    /// Move a row that cannot be read out of its table; nothing is lost
    SetAside(RowArgs),
    /// Move a row back that was set aside
    PutBack(RowArgs),
}

#[derive(Debug, Args)]
pub struct DatabaseArgs {
    /// A database without its server: a data directory, or a postgres:// URL
    #[arg(long, value_name = "DIR|URL")]
    pub database: Option<String>,
}

#[derive(Debug, Args)]
pub struct RowArgs {
    /// Kind of the row, from `farrier db check`
    pub kind: String,
    /// Key of the row, from `farrier db check`
    pub id: String,
    /// Reason, for the record
    #[arg(long)]
    pub reason: String,
    /// Check everything and write nothing
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub database: DatabaseArgs,
}
