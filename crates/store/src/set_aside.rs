//! Rows that were set aside: moved unchanged out of their tables, because they cannot be decoded.
//! They can be put back.

use crate::driver::{Dialect, ExpectedRows, Statement};
use crate::event::NewEvent;
use crate::unreadable::{RowKind, UnreadableRow};
use crate::value::{Row, Value, values};
use crate::{Result, StoreError, Tx};
use model::id::RunId;
use model::machine::NodeName;
use model::target::TargetId;
use model::time::Timestamp;
use serde::{Deserialize, Serialize};

/// An object whose rows were set aside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetAsideRow {
    pub kind: RowKind,
    pub id: String,
    /// The message of the decoder.
    pub problem: String,
    pub actor: String,
    pub reason: String,
    pub at: Timestamp,
}

/// One row with all its columns.
#[derive(Serialize, Deserialize)]
struct StoredRow {
    table: String,
    columns: Vec<(String, StoredCell)>,
}

#[derive(Serialize, Deserialize)]
enum StoredCell {
    Null,
    Int(i64),
    Text(String),
    Bytes(Vec<u8>),
}

impl From<Value> for StoredCell {
    fn from(value: Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Int(value) => Self::Int(value),
            Value::Text(text) => Self::Text(text),
            Value::Bytes(bytes) => Self::Bytes(bytes),
        }
    }
}

impl From<StoredCell> for Value {
    fn from(cell: StoredCell) -> Self {
        match cell {
            StoredCell::Null => Self::Null,
            StoredCell::Int(value) => Self::Int(value),
            StoredCell::Text(text) => Self::Text(text),
            StoredCell::Bytes(bytes) => Self::Bytes(bytes),
        }
    }
}

/// The event object id of a row that was set aside. It is not the id of the object, whose versions
/// must continue when it is put back.
fn object(kind: RowKind, id: &str) -> String {
    format!("set-aside/{kind}/{id}")
}

const COLUMNS: &str = "kind, id, problem, actor, reason, set_aside_at";

impl Tx {
    /// Moves all rows of an object that cannot be decoded into the side table.
    pub async fn set_aside(
        &mut self,
        row: &UnreadableRow,
        reason: &str,
        event: &NewEvent,
    ) -> Result<SetAsideRow> {
        let UnreadableRow { kind, id, problem } = row;
        let mut stored = Vec::new();
        for (table, key) in kind.layout().tables {
            stored.extend(self.stored_rows(table, key, id).await?);
        }
        // A row that refers to another one is deleted before it.
        for (table, key) in kind.layout().tables.iter().rev() {
            let sql = format!("DELETE FROM {table} WHERE {key} = $1");
            self.queue_write(Statement::new(sql, values![id.as_str()]), ExpectedRows::Any)?;
        }
        let sql = "INSERT INTO set_aside (kind, id, problem, actor, reason, set_aside_at, stored) \
                   VALUES ($1, $2, $3, $4, $5, $6, $7)";
        let values = values![
            kind.as_str(),
            id.as_str(),
            problem.as_str(),
            event.actor.as_str(),
            reason,
            event.at,
            serde_json::to_string(&stored)?,
        ];
        self.queue_write(Statement::new(sql, values), ExpectedRows::One)?;
        self.change_membership_of_row(*kind, id);
        self.set_aside_event(*kind, id, "set aside", event).await?;
        Ok(SetAsideRow {
            kind: *kind,
            id: id.clone(),
            problem: problem.clone(),
            actor: event.actor.clone(),
            reason: reason.to_string(),
            at: event.at,
        })
    }

    /// Moves the rows of an object back. A conflict means that another row has its place.
    pub async fn put_back(&mut self, row: &SetAsideRow, event: &NewEvent) -> Result<()> {
        let (kind, id) = (row.kind, row.id.as_str());
        let stored = self.rows_of_set_aside(kind, id).await?.ok_or(StoreError::Conflict)?;
        for StoredRow { table, columns } in stored {
            // The name is a part of the statement, so it must be one of ours.
            let table = kind.layout().tables.iter().find(|(name, _)| *name == table);
            let (table, _) = table.ok_or_else(|| StoreError::Corrupt(object(kind, id)))?;
            let (names, values): (Vec<String>, Vec<Value>) =
                columns.into_iter().map(|(name, cell)| (name, cell.into())).unzip();
            let known = self.columns_of(table).await?;
            if let Some(name) = names.iter().find(|name| !known.contains(name)) {
                let message = format!("{table} has no column {name} any more");
                return Err(StoreError::Corrupt(message));
            }
            let places: Vec<String> = (1..=names.len()).map(|n| format!("${n}")).collect();
            let sql = format!(
                "INSERT INTO {table} ({}) VALUES ({})",
                names.join(", "),
                places.join(", ")
            );
            self.queue_write(Statement { sql, values }, ExpectedRows::One)?;
        }
        let sql = "DELETE FROM set_aside WHERE kind = $1 AND id = $2";
        self.queue_write(Statement::new(sql, values![kind.as_str(), id]), ExpectedRows::One)?;
        self.change_membership_of_row(kind, id);
        self.set_aside_event(kind, id, "put back", event).await
    }

    /// The name in its cluster that a machine had when it was set aside.
    pub async fn node_name_set_aside(&mut self, machine: &str) -> Result<Option<NodeName>> {
        let stored = self.rows_of_set_aside(RowKind::Machine, machine).await?.unwrap_or_default();
        let text = |column: &str| text_of(&stored, "node_names", column);
        Ok(text("cluster").zip(text("name")).map(|(cluster, name)| NodeName { cluster, name }))
    }

    /// The target that a run held when it was set aside.
    pub async fn hold_set_aside(&mut self, run: &RunId) -> Result<Option<TargetId>> {
        let stored = self.rows_of_set_aside(RowKind::Run, run.as_str()).await?.unwrap_or_default();
        let held = text_of(&stored, "subjects", "holds_machine");
        let target = held.and_then(|_| text_of(&stored, "runs", "machine_id"));
        Ok(target.map(|key| TargetId::from_key(&key)))
    }

    async fn rows_of_set_aside(
        &mut self,
        kind: RowKind,
        id: &str,
    ) -> Result<Option<Vec<StoredRow>>> {
        let sql = "SELECT stored FROM set_aside WHERE kind = $1 AND id = $2";
        let found = self.query_one(sql, values![kind.as_str(), id]).await?;
        found.map(|row| row.json(0)).transpose()
    }

    /// All rows that were set aside, by kind and id.
    pub async fn rows_set_aside(&mut self) -> Result<Vec<SetAsideRow>> {
        let sql = format!("SELECT {COLUMNS} FROM set_aside ORDER BY kind, id");
        self.query(&sql, &[]).await?.iter().map(set_aside).collect()
    }

    /// The object of this id that was set aside, of the named kind or of any.
    pub async fn row_set_aside(
        &mut self,
        kind: Option<RowKind>,
        id: &str,
    ) -> Result<Option<SetAsideRow>> {
        let sql = format!(
            "SELECT {COLUMNS} FROM set_aside WHERE id = $1 \
             AND (CAST($2 AS TEXT) IS NULL OR kind = $2) ORDER BY kind LIMIT 1"
        );
        let row = self.query_one(&sql, values![id, kind.map(RowKind::as_str)]).await?;
        row.as_ref().map(set_aside).transpose()
    }

    async fn stored_rows(&mut self, table: &str, key: &str, id: &str) -> Result<Vec<StoredRow>> {
        let names = self.columns_of(table).await?;
        let sql = format!("SELECT {} FROM {table} WHERE {key} = $1", names.join(", "));
        let rows = self.query(&sql, values![id]).await?;
        let stored = |Row(cells): Row| StoredRow {
            table: table.to_string(),
            columns: names.iter().cloned().zip(cells.into_iter().map(StoredCell::from)).collect(),
        };
        Ok(rows.into_iter().map(stored).collect())
    }

    /// The columns of a table, so that a column of a later migration is not lost.
    async fn columns_of(&mut self, table: &str) -> Result<Vec<String>> {
        let sql = match self.dialect() {
            Dialect::Sqlite => "SELECT name FROM pragma_table_info($1)",
            Dialect::Postgres => {
                "SELECT column_name::text FROM information_schema.columns \
                 WHERE table_schema = current_schema() AND table_name = CAST($1 AS TEXT) \
                 ORDER BY ordinal_position"
            }
        };
        let rows = self.query(sql, values![table]).await?;
        rows.iter().map(|row| Ok(row.text(0)?.to_string())).collect()
    }

    async fn set_aside_event(
        &mut self,
        kind: RowKind,
        id: &str,
        state: &str,
        event: &NewEvent,
    ) -> Result<()> {
        let object = object(kind, id);
        let version = self.last_version(&object).await? + 1;
        let event = self.object_event("set-aside", &object, version, state, event);
        self.queue_write(event, ExpectedRows::One)
    }
}

/// The text in a column of the first stored row of a table.
fn text_of(stored: &[StoredRow], table: &str, column: &str) -> Option<String> {
    let row = stored.iter().find(|row| row.table == table)?;
    row.columns.iter().find_map(|(name, cell)| match cell {
        StoredCell::Text(text) if name == column => Some(text.clone()),
        StoredCell::Text(_) | StoredCell::Null | StoredCell::Int(_) | StoredCell::Bytes(_) => None,
    })
}

fn set_aside(row: &Row) -> Result<SetAsideRow> {
    let kind = row.text(0)?;
    let unknown = || StoreError::Corrupt(format!("a row of kind {kind:?} was set aside"));
    Ok(SetAsideRow {
        kind: RowKind::parse(kind).ok_or_else(unknown)?,
        id: row.text(1)?.to_string(),
        problem: row.text(2)?.to_string(),
        actor: row.text(3)?.to_string(),
        reason: row.text(4)?.to_string(),
        at: row.time(5)?,
    })
}
