//! Lists in another order than their usual one. Each order has an index, and the id is the
//! tie-breaker.

use crate::filter::{Select, compile_filter};
use crate::machine::{self, MachinePage};
use crate::record::{self, RecordPage};
use crate::run::{self, RunPage};
use crate::unreadable::{Listed, RowKind};
use crate::value::{Row, Value};
use crate::{Result, Tx};
use model::lifecycle::Lifecycle;
use model::order::{ListOrder, OrderField, Selection, TimePosition};

/// The rows of one query of records.
const BATCH: i64 = 500;

impl Tx {
    /// One page of machines in the order of the selection.
    pub async fn selected_machines(
        &mut self,
        selection: &Selection,
        after: Option<&str>,
        limit: i64,
    ) -> Result<MachinePage> {
        let Some(order) = selection.order else {
            return self.machines(&selection.filter, after, limit).await;
        };
        let column = match order.field {
            OrderField::Id => None,
            OrderField::CreatedAt => Some("machines.created_at"),
            OrderField::UpdatedAt | OrderField::FinishedAt => Some("machines.updated_at"),
        };
        let mut select = Select::new(self.dialect(), "machines.id");
        let by = continue_after(&mut select, order, (column, "machines.id"), after)?;
        compile_filter(&selection.filter, &mut select);
        let clause = select.clause();
        let count = select.bind(limit + 1);
        let columns = machine::COLUMNS;
        let sql = format!("SELECT {columns} FROM machines {clause} ORDER BY {by} LIMIT {count}");
        let rows = self.query(&sql, &select.values).await?;
        // The columns 6 and 7 are the times.
        let time = match order.field {
            OrderField::Id => None,
            OrderField::CreatedAt => Some(6),
            OrderField::UpdatedAt | OrderField::FinishedAt => Some(7),
        };
        machine::page(&rows, limit, |row| position(row, time, 0))
    }

    /// One page of runs in the order of the selection.
    pub async fn selected_runs(
        &mut self,
        selection: &Selection,
        after: Option<&str>,
        limit: i64,
    ) -> Result<RunPage> {
        let Some(order) = selection.order else {
            return self.runs(&selection.filter, after, limit).await;
        };
        let mut select = Select::new(self.dialect(), "r.machine_id");
        let column = match order.field {
            // Ids begin with the time of creation.
            OrderField::Id | OrderField::CreatedAt | OrderField::UpdatedAt => None,
            OrderField::FinishedAt => {
                select.require("s.ended_at IS NOT NULL");
                Some("s.ended_at")
            }
        };
        let by = continue_after(&mut select, order, (column, "s.id"), after)?;
        compile_filter(&selection.filter, &mut select);
        let join = match selection.filter.needs_machine() {
            true => "JOIN machines ON machines.id = r.machine_id",
            false => "",
        };
        let clause = select.clause();
        let count = select.bind(limit + 1);
        let sql = format!(
            "SELECT r.spec, s.state, s.version, s.id, s.ended_at FROM runs r \
             JOIN subjects s ON s.id = r.id {join} {clause} ORDER BY {by} LIMIT {count}"
        );
        let rows = self.query(&sql, &select.values).await?;
        run::page(&rows, limit, |row| position(row, column.map(|_| 4), 3))
    }

    /// One page of records in the order of the selection.
    pub async fn selected_records<R: Lifecycle>(
        &mut self,
        selection: &Selection,
        after: Option<&str>,
        limit: usize,
    ) -> Result<RecordPage<R>> {
        let Some(order) = selection.order else {
            return self.records(&selection.filter, after, limit).await;
        };
        let column = match order.field {
            OrderField::Id => None,
            OrderField::CreatedAt => Some("created_at"),
            OrderField::UpdatedAt | OrderField::FinishedAt => Some("updated_at"),
        };
        let mut after = after.map(String::from);
        let mut found = Listed::<R>::default();
        let mut next = None;
        loop {
            let mut select = Select::new(self.dialect(), "id");
            select.compare("kind", "=", Some(R::KIND.as_str()));
            select.compare("rack_id", "=", selection.filter.rack());
            let by = continue_after(&mut select, order, (column, "id"), after.as_deref())?;
            let clause = select.clause();
            let count = select.bind(BATCH);
            let sql = format!(
                "SELECT body, version, id, {} FROM records {clause} ORDER BY {by} LIMIT {count}",
                column.unwrap_or("created_at")
            );
            let rows = self.query(&sql, &select.values).await?;
            let seen = self.seen_labels::<R>(&selection.filter, &rows).await?;
            for row in &rows {
                let decoded = record::record::<R>(row);
                let here = position(row, column.map(|_| 3), 2)?;
                after = Some(here.clone());
                if !record::is_listed(&selection.filter, &seen, &decoded) {
                    continue;
                }
                if found.items.len() == limit {
                    return Ok(RecordPage::new(found, next));
                }
                found.push(RowKind::of_record(R::KIND), row.text(2)?, decoded)?;
                next = Some(here);
            }
            if (rows.len() as i64) < BATCH {
                return Ok(RecordPage::new(found, None));
            }
        }
    }
}

/// Adds the term that continues after a position, and returns the ORDER BY clause. Without a column
/// the order is that of the id.
fn continue_after(
    select: &mut Select,
    order: ListOrder,
    (column, id): (Option<&str>, &str),
    after: Option<&str>,
) -> Result<String> {
    let (sign, direction) = if order.descending { ("<", "DESC") } else { (">", "ASC") };
    let Some(column) = column else {
        select.compare(id, sign, after);
        return Ok(format!("{id} {direction}"));
    };
    if let Some(after) = after {
        let last = TimePosition::parse(after)?;
        let (time, last) = (select.bind(Value::Int(last.micros)), select.bind(last.id));
        select.require(&format!("({column}, {id}) {sign} ({time}, {last})"));
    }
    Ok(format!("{column} {direction}, {id} {direction}"))
}

/// The position of a row, from its columns with the time and the id.
fn position(row: &Row, time: Option<usize>, id: usize) -> Result<String> {
    let id = row.text(id)?.to_string();
    match time {
        None => Ok(id),
        Some(time) => Ok(TimePosition { micros: row.int(time)?, id }.to_text()),
    }
}
