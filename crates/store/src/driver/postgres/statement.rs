//! Statements on a connection, and the rows that they return.

use super::error::store_error;
use crate::driver::{ExpectedRows, Statement};
use crate::value::{Row, Value};
use crate::{Result, StoreError};
use deadpool_postgres::Object;
use futures_util::future::try_join_all;
use tokio_postgres::types::{ToSql, Type};

pub(in crate::driver) async fn query(
    conn: &Object,
    sql: &str,
    values: &[Value],
) -> Result<Vec<Row>> {
    let statement = conn.prepare_cached(sql).await.map_err(|error| store_error(&error))?;
    let rows =
        conn.query(&statement, &borrowed(values)).await.map_err(|error| store_error(&error))?;
    rows.iter().map(row).collect()
}

pub(in crate::driver) async fn execute(conn: &Object, sql: &str, values: &[Value]) -> Result<u64> {
    let statement = conn.prepare_cached(sql).await.map_err(|error| store_error(&error))?;
    conn.execute(&statement, &borrowed(values)).await.map_err(|error| store_error(&error))
}

/// Pipelined: sends all statements before it reads the first answer.
pub(in crate::driver) async fn execute_all(
    conn: &Object,
    batch: &[(Statement, ExpectedRows)],
) -> Result<Vec<u64>> {
    let mut prepared = Vec::with_capacity(batch.len());
    for (one, _) in batch {
        let statement = conn.prepare_cached(&one.sql).await.map_err(|error| store_error(&error))?;
        prepared.push((statement, borrowed(&one.values)));
    }
    let sent = prepared.iter().map(|(statement, values)| conn.execute(statement, values));
    try_join_all(sent).await.map_err(|error| store_error(&error))
}

fn borrowed(values: &[Value]) -> Vec<&(dyn ToSql + Sync)> {
    values.iter().map(|value| value as &(dyn ToSql + Sync)).collect()
}

fn row(row: &tokio_postgres::Row) -> Result<Row> {
    let cells = row.columns().iter().enumerate().map(|(index, column)| {
        let wrong = |error: tokio_postgres::Error| StoreError::Corrupt(error.to_string());
        Ok(match *column.type_() {
            Type::INT8 => {
                row.try_get::<_, Option<i64>>(index).map_err(wrong)?.map_or(Value::Null, Value::Int)
            }
            Type::TEXT => row
                .try_get::<_, Option<String>>(index)
                .map_err(wrong)?
                .map_or(Value::Null, Value::Text),
            Type::BYTEA => row
                .try_get::<_, Option<Vec<u8>>>(index)
                .map_err(wrong)?
                .map_or(Value::Null, Value::Bytes),
            _ => {
                let message = format!("column {} has type {}", column.name(), column.type_());
                return Err(StoreError::Corrupt(message));
            }
        })
    });
    cells.collect::<Result<Vec<_>>>().map(Row)
}
