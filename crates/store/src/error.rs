//! Errors of the store.

use model::refusal::Refusal;
use std::fmt;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreError {
    /// The database cannot be read or written now. It is not known that anything was written.
    Unavailable(String),
    /// A version or an epoch has moved: another transaction wrote first. Nothing was written.
    Conflict,
    /// The transaction's body refused the request. Nothing was written.
    Refused(Refusal),
    /// A row cannot be decoded.
    Corrupt(String),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable(message) => write!(f, "the database is unavailable: {message}"),
            Self::Conflict => f.write_str("another transaction wrote first"),
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Corrupt(message) => write!(f, "a stored record cannot be read: {message}"),
        }
    }
}

impl std::error::Error for StoreError {}

impl From<Refusal> for StoreError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<serde_json::Error> for StoreError {
    fn from(error: serde_json::Error) -> Self {
        Self::Corrupt(error.to_string())
    }
}
