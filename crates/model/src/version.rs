//! Optimistic concurrency: an update or a deletion may name the version that it was made from.

use crate::refusal::{Reason, Refusal};
use std::fmt;

/// Refuses a request that was made from another version than the current one. `None`: no check.
/// `next` is the command that reads the object.
pub fn check_version(
    object: impl fmt::Display,
    current: i64,
    expected: Option<i64>,
    next: impl Into<String>,
) -> Result<(), Refusal> {
    match expected {
        Some(version) if version != current => {
            let message = format!(
                "{object} is at version {current} by now, and this change was made from version \
                 {version}"
            );
            Err(Refusal::new(Reason::VersionMoved, message).next(next))
        }
        Some(_) | None => Ok(()),
    }
}
