//! Column values of both databases, and rows of them. A column of the wrong type is an error that
//! names the column, never a default.

use crate::{Result, StoreError};
use model::time::Timestamp;
use rusqlite::types::{ToSqlOutput, ValueRef};
use tokio_postgres::types::{IsNull, ToSql, Type, private::BytesMut, to_sql_checked};

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Null,
    Int(i64),
    Text(String),
    Bytes(Vec<u8>),
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl From<Timestamp> for Value {
    fn from(value: Timestamp) -> Self {
        Self::Int(value.as_micros())
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self::Text(value.to_string())
    }
}

impl From<String> for Value {
    fn from(value: String) -> Self {
        Self::Text(value)
    }
}

impl From<Vec<u8>> for Value {
    fn from(value: Vec<u8>) -> Self {
        Self::Bytes(value)
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

impl rusqlite::ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Null => ValueRef::Null,
            Self::Int(value) => ValueRef::Integer(*value),
            Self::Text(value) => ValueRef::Text(value.as_bytes()),
            Self::Bytes(value) => ValueRef::Blob(value),
        }))
    }
}

impl ToSql for Value {
    fn to_sql(
        &self,
        ty: &Type,
        out: &mut BytesMut,
    ) -> std::result::Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match self {
            Self::Null => Ok(IsNull::Yes),
            Self::Int(value) => value.to_sql(ty, out),
            Self::Text(value) => value.to_sql(ty, out),
            Self::Bytes(value) => value.to_sql(ty, out),
        }
    }

    fn accepts(ty: &Type) -> bool {
        matches!(*ty, Type::INT8 | Type::TEXT | Type::BYTEA)
    }

    to_sql_checked!();
}

/// Builds the parameters of a statement.
macro_rules! values {
    ($($value:expr),* $(,)?) => { &[$($crate::value::Value::from($value)),*][..] };
}
pub(crate) use values;

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row(pub Vec<Value>);

impl Row {
    fn at(&self, index: usize) -> Result<&Value> {
        self.0.get(index).ok_or_else(|| wrong(index, "is missing"))
    }

    pub fn cell(&self, index: usize) -> Result<Value> {
        self.at(index).cloned()
    }

    pub fn int(&self, index: usize) -> Result<i64> {
        match self.at(index)? {
            Value::Int(value) => Ok(*value),
            Value::Null | Value::Text(_) | Value::Bytes(_) => Err(wrong(index, "is no integer")),
        }
    }

    pub fn opt_int(&self, index: usize) -> Result<Option<i64>> {
        match self.at(index)? {
            Value::Null => Ok(None),
            Value::Int(_) | Value::Text(_) | Value::Bytes(_) => self.int(index).map(Some),
        }
    }

    pub fn time(&self, index: usize) -> Result<Timestamp> {
        self.int(index).map(Timestamp::from_micros)
    }

    pub fn opt_time(&self, index: usize) -> Result<Option<Timestamp>> {
        Ok(self.opt_int(index)?.map(Timestamp::from_micros))
    }

    pub fn text(&self, index: usize) -> Result<&str> {
        match self.at(index)? {
            Value::Text(value) => Ok(value),
            Value::Null | Value::Int(_) | Value::Bytes(_) => Err(wrong(index, "is no text")),
        }
    }

    pub fn opt_text(&self, index: usize) -> Result<Option<&str>> {
        match self.at(index)? {
            Value::Null => Ok(None),
            Value::Int(_) | Value::Text(_) | Value::Bytes(_) => self.text(index).map(Some),
        }
    }

    pub fn bytes(&self, index: usize) -> Result<Vec<u8>> {
        match self.at(index)? {
            Value::Bytes(value) => Ok(value.clone()),
            Value::Null | Value::Int(_) | Value::Text(_) => Err(wrong(index, "is no byte string")),
        }
    }

    pub fn json<T: serde::de::DeserializeOwned>(&self, index: usize) -> Result<T> {
        Ok(serde_json::from_str(self.text(index)?)?)
    }
}

fn wrong(index: usize, problem: &str) -> StoreError {
    StoreError::Corrupt(format!("column {index} {problem}"))
}
