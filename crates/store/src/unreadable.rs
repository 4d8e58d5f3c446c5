//! Rows that cannot be decoded: written by a newer version, changed by hand, or damaged. A list
//! leaves such a row out and names it, so that one bad row does not hide the others. A decision
//! that needs the row fails instead, with the row's name in the error.

use crate::driver::Tx;
use crate::value::{Row, values};
use crate::{Result, StoreError, credential, deployment, firmware, identity, image};
use crate::{inspection, machine, node, plan, record, run};
use model::health::HealthReport;
use model::host::Host;
use model::lifecycle::SubjectKind;
use model::node::Node;
use model::power_shelf::PowerShelf;
use model::rack::Rack;
use model::rollout::Rollout;
use model::site::Site;
use model::switch::Switch;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// The number of rows that one query of a check reads.
const BATCH: i64 = 500;

/// The kinds of rows that are decoded. Events, logs and checkpoints are not among them: an event
/// without a readable object is shown without it, and the others are stored as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RowKind {
    Machine,
    Run,
    Plan,
    Rack,
    Switch,
    PowerShelf,
    Host,
    Node,
    Site,
    Rollout,
    Credential,
    Identity,
    Image,
    Firmware,
    HealthReport,
    Deployment,
    Task,
    Inspection,
}

impl RowKind {
    pub const ALL: [Self; 18] = [
        Self::Machine,
        Self::Run,
        Self::Plan,
        Self::Rack,
        Self::Switch,
        Self::PowerShelf,
        Self::Host,
        Self::Node,
        Self::Site,
        Self::Rollout,
        Self::Credential,
        Self::Identity,
        Self::Image,
        Self::Firmware,
        Self::HealthReport,
        Self::Deployment,
        Self::Task,
        Self::Inspection,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Machine => "machine",
            Self::Run => "run",
            Self::Plan => "plan",
            Self::Rack => SubjectKind::Rack.as_str(),
            Self::Switch => SubjectKind::Switch.as_str(),
            Self::PowerShelf => SubjectKind::PowerShelf.as_str(),
            Self::Host => SubjectKind::Host.as_str(),
            Self::Node => SubjectKind::Node.as_str(),
            Self::Site => SubjectKind::Site.as_str(),
            Self::Rollout => SubjectKind::Rollout.as_str(),
            Self::Credential => "credential",
            Self::Identity => "identity",
            Self::Image => "image",
            Self::Firmware => "firmware",
            Self::HealthReport => "health_report",
            Self::Deployment => "deployment",
            Self::Task => "task",
            Self::Inspection => "inspection",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }

    pub(crate) const fn of_record(kind: SubjectKind) -> Self {
        match kind {
            SubjectKind::Rack => Self::Rack,
            SubjectKind::Switch => Self::Switch,
            SubjectKind::PowerShelf => Self::PowerShelf,
            SubjectKind::Host => Self::Host,
            SubjectKind::Node => Self::Node,
            SubjectKind::Site => Self::Site,
            SubjectKind::Rollout => Self::Rollout,
        }
    }

    /// The tables and columns from which rows of this kind are read and moved.
    #[expect(clippy::too_many_lines, reason = "a table: one row per kind")]
    pub(crate) const fn layout(self) -> RowLayout {
        match self {
            Self::Machine => RowLayout {
                from: "machines",
                key: "id",
                columns: machine::COLUMNS,
                decode: |row| machine::machine(row).map(drop),
                tables: &[
                    ("machines", "id"),
                    ("inspections", "machine_id"),
                    ("node_names", "machine_id"),
                ],
            },
            Self::Run => RowLayout {
                from: "runs r JOIN subjects s ON s.id = r.id",
                key: "r.id",
                columns: "r.spec, s.state, s.version",
                decode: |row| run::run(row).map(drop),
                tables: &[("runs", "id"), ("subjects", "id")],
            },
            Self::Plan => RowLayout::single("plans", "id", "body", &[("plans", "id")], |row| {
                plan::plan(row).map(drop)
            }),
            Self::Rack => RowLayout::record(|row| record::record::<Rack>(row).map(drop)),
            Self::Switch => RowLayout::record(|row| record::record::<Switch>(row).map(drop)),
            Self::PowerShelf => {
                RowLayout::record(|row| record::record::<PowerShelf>(row).map(drop))
            }
            Self::Host => RowLayout::record(|row| record::record::<Host>(row).map(drop)),
            Self::Site => RowLayout::record(|row| record::record::<Site>(row).map(drop)),
            Self::Rollout => RowLayout::record(|row| record::record::<Rollout>(row).map(drop)),
            Self::Node => RowLayout {
                tables: &[("records", "id"), ("subjects", "id"), ("nodes", "id")],
                ..RowLayout::record(|row| record::record::<Node>(row).map(drop))
            },
            Self::Credential => RowLayout::single(
                "credentials",
                "name",
                credential::COLUMNS,
                &[("credentials", "name")],
                |row| credential::credential(row).map(drop),
            ),
            Self::Identity => RowLayout::single(
                "identities",
                "peer",
                identity::COLUMNS,
                &[("identities", "peer")],
                |row| identity::identity(row).map(drop),
            ),
            Self::Image => {
                RowLayout::single("images", "name", "body", &[("images", "name")], |row| {
                    image::image(row).map(drop)
                })
            }
            Self::Firmware => RowLayout::single(
                "firmware",
                "id",
                firmware::COLUMNS,
                &[("firmware", "id")],
                |row| firmware::firmware(row).map(drop),
            ),
            Self::HealthReport => {
                RowLayout::single("health", HEALTH_KEY, "body", &[("health", HEALTH_KEY)], |row| {
                    row.json::<HealthReport>(0).map(drop)
                })
            }
            Self::Deployment => RowLayout::single(
                "deployments",
                "key",
                "body, version",
                &[("deployments", "key"), ("deployment_macs", "key")],
                |row| deployment::deployment(row).map(drop),
            ),
            Self::Task => {
                RowLayout::single("tasks", "key", "body, version", &[("tasks", "key")], |row| {
                    node::task(row).map(drop)
                })
            }
            Self::Inspection => RowLayout::single(
                "inspections",
                "machine_id",
                inspection::COLUMNS,
                &[("inspections", "machine_id")],
                |row| inspection::hardware(row).map(drop),
            ),
        }
    }

    /// The condition that selects this kind in a table of several kinds.
    fn condition(self) -> String {
        match self {
            Self::Rack
            | Self::Switch
            | Self::PowerShelf
            | Self::Host
            | Self::Node
            | Self::Site
            | Self::Rollout => format!("kind = '{}'", self.as_str()),
            Self::Machine
            | Self::Run
            | Self::Plan
            | Self::Credential
            | Self::Identity
            | Self::Image
            | Self::Firmware
            | Self::HealthReport
            | Self::Deployment
            | Self::Task
            | Self::Inspection => "1 = 1".into(),
        }
    }
}

impl fmt::Display for RowKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A health report has two key columns.
const HEALTH_KEY: &str = "object_id || '/' || source";

/// The tables and columns from which the rows of one kind are read and moved.
pub(crate) struct RowLayout {
    from: &'static str,
    /// The SQL of the key.
    key: &'static str,
    columns: &'static str,
    decode: fn(&Row) -> Result<()>,
    /// All tables with rows of the object, each with the SQL of the object's key. A row that
    /// refers to another one comes after it.
    pub tables: &'static [(&'static str, &'static str)],
}

impl RowLayout {
    const fn single(
        from: &'static str,
        key: &'static str,
        columns: &'static str,
        tables: &'static [(&'static str, &'static str)],
        decode: fn(&Row) -> Result<()>,
    ) -> Self {
        Self { from, key, columns, decode, tables }
    }

    const fn record(decode: fn(&Row) -> Result<()>) -> Self {
        Self {
            from: "records",
            key: "id",
            columns: "body, version",
            decode,
            tables: &[("records", "id"), ("subjects", "id")],
        }
    }
}

/// A row that cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadableRow {
    pub kind: RowKind,
    pub id: String,
    /// The message of the decoder.
    pub problem: String,
}

impl fmt::Display for UnreadableRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.kind, self.id, self.problem)
    }
}

impl From<UnreadableRow> for StoreError {
    fn from(row: UnreadableRow) -> Self {
        Self::Corrupt(row.to_string())
    }
}

/// Names the row in the error of its decoder.
pub(crate) fn named<T>(kind: RowKind, id: &str, decoded: Result<T>) -> Result<T> {
    decoded.map_err(|error| match error {
        StoreError::Corrupt(problem) => UnreadableRow { kind, id: id.into(), problem }.into(),
        StoreError::Unavailable(_) | StoreError::Conflict | StoreError::Refused(_) => error,
    })
}

/// The items of a page, and the rows that were left out because they cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed<T> {
    pub items: Vec<T>,
    pub unreadable: Vec<UnreadableRow>,
}

impl<T> Default for Listed<T> {
    fn default() -> Self {
        Self { items: Vec::new(), unreadable: Vec::new() }
    }
}

impl<T> Listed<T> {
    /// Adds a decoded row, or its name if it cannot be decoded.
    pub(crate) fn push(&mut self, kind: RowKind, id: &str, decoded: Result<T>) -> Result<()> {
        match decoded {
            Ok(item) => self.items.push(item),
            Err(StoreError::Corrupt(problem)) => {
                self.unreadable.push(UnreadableRow { kind, id: id.into(), problem });
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// All items, for a decision: fails if a row was left out.
    pub fn complete(self) -> Result<Vec<T>> {
        match self.unreadable.into_iter().next() {
            Some(row) => Err(row.into()),
            None => Ok(self.items),
        }
    }

    pub fn map<U>(self, change: impl FnMut(T) -> U) -> Listed<U> {
        let items = self.items.into_iter().map(change).collect();
        Listed { items, unreadable: self.unreadable }
    }
}

/// The unreadable rows that this process has found. All clones of a store share it.
#[derive(Debug, Clone, Default)]
pub struct UnreadableRows(Arc<Mutex<BTreeMap<(RowKind, String), String>>>);

impl UnreadableRows {
    /// Remembers rows, and logs each one once.
    pub fn record(&self, rows: &[UnreadableRow]) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for UnreadableRow { kind, id, problem } in rows {
            let before = known.insert((*kind, id.clone()), problem.clone());
            if before.as_ref() != Some(problem) {
                tracing::error!(
                    %kind, id, problem,
                    "a stored row cannot be read and is left out; farrier db check explains it"
                );
            }
        }
    }

    /// Replaces everything by the result of a check.
    pub fn replace(&self, rows: &[UnreadableRow]) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|(kind, id), _| rows.iter().any(|row| row.kind == *kind && row.id == *id));
        drop(known);
        self.record(rows);
    }

    /// The known rows, at most `limit`.
    pub fn rows(&self, limit: usize) -> Vec<UnreadableRow> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let row = |((kind, id), problem): (&(RowKind, String), &String)| UnreadableRow {
            kind: *kind,
            id: id.clone(),
            problem: problem.clone(),
        };
        known.iter().take(limit).map(row).collect()
    }

    /// The row can be read again, or is gone.
    pub fn forget(&self, kind: RowKind, id: &str) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.remove(&(kind, id.to_string()));
    }

    /// The number of known rows by kind.
    pub fn counts(&self) -> BTreeMap<RowKind, usize> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut counts = BTreeMap::new();
        for (kind, _) in known.keys() {
            *counts.entry(*kind).or_default() += 1;
        }
        counts
    }
}

/// The result of checking one batch of rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedRows {
    pub checked: u64,
    pub unreadable: Vec<UnreadableRow>,
    /// The key after which the next batch starts, if there is one.
    pub next: Option<String>,
}

impl Tx {
    /// Decodes one batch of rows of a kind.
    pub async fn check_rows(&mut self, kind: RowKind, after: &str) -> Result<CheckedRows> {
        let RowLayout { from, key, columns, .. } = kind.layout();
        let sql = format!(
            "SELECT {columns}, {key} FROM {from} WHERE {} AND {key} > $1 ORDER BY {key} LIMIT $2",
            kind.condition()
        );
        let rows = self.query(&sql, values![after, BATCH]).await?;
        let mut found = CheckedRows { checked: rows.len() as u64, unreadable: vec![], next: None };
        for row in &rows {
            let id = last_text(row)?;
            found.unreadable.extend(unreadable(kind, id, row));
        }
        if rows.len() as i64 == BATCH {
            found.next = rows.last().map(|row| last_text(row).map(String::from)).transpose()?;
        }
        Ok(found)
    }

    /// The row of this kind and id, if it cannot be decoded.
    pub async fn unreadable_row(
        &mut self,
        kind: RowKind,
        id: &str,
    ) -> Result<Option<UnreadableRow>> {
        let RowLayout { from, key, columns, .. } = kind.layout();
        let condition = kind.condition();
        let sql = format!("SELECT {columns}, {key} FROM {from} WHERE {condition} AND {key} = $1");
        let row = self.query_one(&sql, values![id]).await?;
        Ok(row.and_then(|row| unreadable(kind, id, &row)))
    }
}

fn unreadable(kind: RowKind, id: &str, row: &Row) -> Option<UnreadableRow> {
    let error = (kind.layout().decode)(row).err()?;
    let problem = match error {
        StoreError::Corrupt(problem) => problem,
        StoreError::Unavailable(_) | StoreError::Conflict | StoreError::Refused(_) => {
            error.to_string()
        }
    };
    Some(UnreadableRow { kind, id: id.into(), problem })
}

fn last_text(row: &Row) -> Result<&str> {
    row.text(row.0.len().saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_kind_is_checked() {
        for kind in SubjectKind::ALL {
            assert_eq!(RowKind::parse(kind.as_str()), Some(RowKind::of_record(kind)));
        }
        for kind in RowKind::ALL {
            assert_eq!(RowKind::parse(kind.as_str()), Some(kind));
        }
    }
}
