//! The classification of errors of PostgreSQL.

use super::tls::advice;
use crate::StoreError;

/// The message of an error of a statement in an aborted transaction.
pub(super) const ABORTED: &str = "the transaction was aborted";
const RETRY_PREFIX: &str = "the transaction must be tried again";

pub(super) fn is_retryable(error: &StoreError) -> bool {
    matches!(error, StoreError::Unavailable(message) if message.starts_with(RETRY_PREFIX))
}

pub(super) fn store_error(error: &tokio_postgres::Error) -> StoreError {
    use tokio_postgres::error::SqlState as S;
    let Some(db) = error.as_db_error() else {
        // The error itself says only "error connecting to server"; its source has the cause.
        let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
        let message = format!("{error}{}", cause.unwrap_or_default());
        let advice = advice(&message).map(|advice| format!("; {advice}")).unwrap_or_default();
        return StoreError::Unavailable(format!("{message}{advice}"));
    };
    match db.code() {
        &S::UNIQUE_VIOLATION | &S::FOREIGN_KEY_VIOLATION | &S::EXCLUSION_VIOLATION => {
            StoreError::Conflict
        }
        &S::T_R_SERIALIZATION_FAILURE | &S::T_R_DEADLOCK_DETECTED => {
            StoreError::Unavailable(format!("{RETRY_PREFIX}: {}", db.message()))
        }
        // The fence of `BEGIN_WRITE` divides by zero; its answer may come before the body's.
        &S::IN_FAILED_SQL_TRANSACTION | &S::DIVISION_BY_ZERO => {
            StoreError::Unavailable(ABORTED.into())
        }
        _ => StoreError::Unavailable(db.message().to_string()),
    }
}

pub(super) fn no_connection(error: &deadpool_postgres::PoolError) -> StoreError {
    if let deadpool_postgres::PoolError::Backend(error) = error {
        return store_error(error);
    }
    StoreError::Unavailable(format!("PostgreSQL gives no connection: {error}"))
}
