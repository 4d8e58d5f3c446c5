//! A tap: somebody who stands between a process and its database.
//!
//! In production nobody does. A test puts one there to let a process die, freeze or lose an answer
//! at any of its transactions, without the process having a word about it in its own code.

use crate::Result;
use futures_util::future::BoxFuture;

/// Where the tap is passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Passing {
    /// Something is about to be read.
    Read,
    /// The transaction of this name is about to be written.
    BeforeCommit(&'static str),
    /// It has been committed, and the process is about to hear of it.
    AfterCommit(&'static str),
}

pub trait Tap: Send + Sync {
    /// Lets the process pass, now or later or never. An error is what the process is told; after a
    /// commit that means: it held, and nobody here knows.
    fn pass(&self, passing: Passing) -> BoxFuture<'_, Result<()>>;
}
