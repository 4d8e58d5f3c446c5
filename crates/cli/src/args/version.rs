//! The version that an update or a deletion was made from.

use super::*;

#[derive(Debug, Clone, Copy, Default, Args)]
pub struct VersionArgs {
    /// Refuse unless this is the current version, as `get -o json` shows it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..))]
    pub expected_version: Option<i64>,
}

impl VersionArgs {
    /// The given version, or none: 0.
    pub fn or_any(self) -> i64 {
        self.expected_version.unwrap_or(0)
    }
}
