//! The transaction hook between a process and its database.
//!
//! Production has none. Tests install a fault injector here, which crashes or freezes a process or
//! drops an answer at any transaction, without test code in the process itself.

use crate::Result;
use futures_util::future::BoxFuture;

/// A point in a transaction at which the hook is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TransactionPoint {
    /// Before a read.
    Read,
    /// Before the transaction of this name is written.
    BeforeCommit(&'static str),
    /// After the commit, before the process gets the result.
    AfterCommit(&'static str),
}

pub trait TransactionHook: Send + Sync {
    /// Returns when the process may continue, which may be never. An error goes to the process;
    /// after a commit it means that the commit holds but its result was lost.
    fn intercept(&self, passing: TransactionPoint) -> BoxFuture<'_, Result<()>>;
}
