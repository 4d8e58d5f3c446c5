//! Changes of stored objects.

use model::refusal::Refusal;
use std::sync::Arc;

/// Makes the desired object `D` from the stored one, in the transaction that writes it: no other
/// change is lost. It may run several times.
pub type Change<S, D> = Arc<dyn Fn(&S) -> Result<D, Refusal> + Send + Sync>;

/// The expectation of a write about the stored object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expected {
    /// The object may be new.
    Any,
    /// The object exists, at this version if one is given.
    Known { version: Option<i64> },
}
