//! The schema migrations, and the fence that stops a farrier which is too old for the schema.

use super::Dialect;
use crate::{Result, StoreError};

/// A schema migration. The SQL of a released migration never changes.
struct Migration {
    sql: &'static str,
    /// The oldest schema version whose farrier may still write after this migration. It is lower
    /// than the migration's own number if the migration only expands the schema.
    oldest_writer: i64,
}

macro_rules! migrations {
    ($($file:literal: $oldest_writer:literal,)*) => {
        &[$(Migration {
            sql: include_str!(concat!("../../migrations/", $file, ".sql")),
            oldest_writer: $oldest_writer,
        },)*]
    };
}

const MIGRATIONS: &[Migration] = migrations![
    "0001_init": 1,
    "0002_retention": 2,
    "0003_labels": 2,
    "0004_hardware": 4,
    "0005_images": 5,
    "0006_racks": 6,
    "0007_nodes": 7,
    "0008_replicas": 7,
    "0009_feeds": 9,
    "0010_inspections": 9,
    "0011_firmware_version": 11,
    "0012_list_orders": 11,
    "0013_set_aside": 11,
    "0014_oldest_writer": 11,
    "0015_identity_version": 11,
    "0016_node_names": 16,
    "0017_side_facts": 16,
    "0018_json_text": 16,
    // An older replica would evict pods that a drain must leave, and cannot read run type JOIN.
    "0019_host_names": 19,
    "0020_credential_policy": 19,
    // An older replica cannot open the secrets that a newer one seals.
    "0021_seal_keys": 21,
    // An older replica answers every client, with or without a token.
    "0022_access": 22,
    "0023_audit": 22,
    // An older replica would take a binding with a selector for one without.
    "0024_selectors": 24,
    // An older replica would start operations without their approval.
    "0025_approvals": 25,
    "0026_session_groups": 25,
    "0027_notifiers": 25,
];

/// The schema version of this farrier.
pub(super) const VERSION: i64 = MIGRATIONS.len() as i64;
/// The first schema version that has the table `oldest_writer`.
const FENCED_SINCE: i64 = 14;
pub(super) const READ_OLDEST_WRITER: &str = "SELECT version FROM oldest_writer";

/// The treatment of a database of an older schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SchemaPolicy {
    Migrate,
    /// Refuse it.
    Require,
}

/// The schema of a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StoredSchema {
    pub version: i64,
    /// Zero if the schema is older than the fence.
    pub oldest_writer: i64,
}

impl StoredSchema {
    /// True if the database has the table `oldest_writer`.
    pub const fn is_fenced(version: i64) -> bool {
        version >= FENCED_SINCE
    }

    /// The migrations that the database still needs, by their numbers. A newer schema needs none,
    /// and is refused unless this farrier may still write.
    pub fn migrations(self, dialect: Dialect, policy: SchemaPolicy) -> Result<Vec<(i64, String)>> {
        let Self { version, oldest_writer } = self;
        if version < VERSION && policy == SchemaPolicy::Require {
            return Err(StoreError::Unavailable(format!(
                "the database has schema version {version}, this farrier needs {VERSION}; \
                 use the farrier of its server, or start the server of this one first"
            )));
        }
        if version > VERSION && oldest_writer > VERSION {
            return Err(StoreError::Unavailable(format!(
                "the database has schema version {version}, this farrier knows up to {VERSION}; \
                 start the newer farrier that made it"
            )));
        }
        let steps = (1..).zip(MIGRATIONS).filter(|(step, _)| *step > version);
        Ok(steps.map(|(step, one)| (step, one.filled(step, dialect))).collect())
    }
}

impl Migration {
    /// The SQL of the migration, which also raises the oldest writer.
    fn filled(&self, step: i64, dialect: Dialect) -> String {
        let sql = dialect.fill_placeholders(self.sql);
        if !StoredSchema::is_fenced(step) {
            return sql;
        }
        let oldest = self.oldest_writer;
        format!("{sql}\nUPDATE oldest_writer SET version = {oldest} WHERE version < {oldest};")
    }
}

const OUTDATED: &str = "this farrier is too old to write";

/// Refuses a write if the database was migrated by a newer farrier that excludes this one.
pub(super) fn check_writer(oldest_writer: i64) -> Result<()> {
    if oldest_writer <= VERSION {
        return Ok(());
    }
    Err(StoreError::Unavailable(format!(
        "{OUTDATED}: its schema version is {VERSION}, the database needs at least \
         {oldest_writer}; start the newer farrier here too"
    )))
}

/// The message, if a write failed because this farrier is too old.
pub(super) fn outdated_message(error: &StoreError) -> Option<&str> {
    match error {
        StoreError::Unavailable(message) if message.starts_with(OUTDATED) => Some(message),
        StoreError::Unavailable(_)
        | StoreError::Conflict
        | StoreError::Refused(_)
        | StoreError::Corrupt(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_writer_never_goes_back_and_is_never_newer_than_its_migration() {
        let mut before = 0;
        for (step, one) in (1..).zip(MIGRATIONS) {
            assert!((before..=step).contains(&one.oldest_writer), "migration {step}");
            before = one.oldest_writer;
        }
    }

    #[test]
    fn a_newer_schema_is_used_while_it_admits_this_writer() {
        let (newer, policy) = (VERSION + 1, SchemaPolicy::Migrate);
        for (version, oldest_writer, opens) in
            [(newer, VERSION, true), (newer, newer, false), (VERSION, VERSION, true), (0, 0, true)]
        {
            let stored = StoredSchema { version, oldest_writer };
            let steps = stored.migrations(Dialect::Sqlite, policy);
            assert_eq!(steps.is_ok(), opens, "{stored:?}");
            let expected = usize::try_from(VERSION - version).unwrap_or_default();
            assert_eq!(steps.map_or(expected, |steps| steps.len()), expected, "{stored:?}");
            assert_eq!(check_writer(oldest_writer).is_ok(), opens, "{stored:?}");
        }
    }
}
