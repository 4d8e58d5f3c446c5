//! A transaction as a value: an input and a body that may run as often as a driver must run it.
//!
//! The drivers see it as a [`Job`], without its types, so that they are compiled once and not for
//! each transaction.

use super::Tx;
use crate::{Result, StoreError};
use futures_util::future::BoxFuture;
use std::sync::{Arc, Mutex, PoisonError};

/// What the body of a transaction returns. Boxed, as the future of a closure cannot be bounded
/// `Send` by name.
pub type TxFuture<'a, T> = BoxFuture<'a, Result<T>>;

/// How a transaction that succeeded ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Commit,
    /// What it wrote is taken back: only its result is wanted.
    Rollback,
}

/// What a read needs to see one state of the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum View {
    /// It is one statement, which is a transaction of its own.
    Statement,
    Snapshot,
}

pub(crate) trait Job: Send + Sync {
    /// Runs the body once. The result of the last run is kept.
    fn run<'a>(&'a self, tx: &'a mut Tx) -> TxFuture<'a, ()>;
}

pub(crate) struct Transaction<I, T, F> {
    input: I,
    body: F,
    result: Mutex<Option<T>>,
}

impl<I, T, F> Transaction<I, T, F>
where
    F: for<'a> Fn(&'a I, &'a mut Tx) -> TxFuture<'a, T>,
{
    pub fn new(input: I, body: F) -> Arc<Self> {
        Arc::new(Self { input, body, result: Mutex::new(None) })
    }

    /// What the last run returned.
    pub fn result(&self) -> Result<T> {
        let mut result = self.result.lock().unwrap_or_else(PoisonError::into_inner);
        result.take().ok_or_else(|| StoreError::Corrupt("a transaction has no result".into()))
    }
}

impl<I, T, F> Job for Transaction<I, T, F>
where
    I: Send + Sync,
    T: Send,
    F: for<'a> Fn(&'a I, &'a mut Tx) -> TxFuture<'a, T> + Send + Sync,
{
    fn run<'a>(&'a self, tx: &'a mut Tx) -> TxFuture<'a, ()> {
        Box::pin(async move {
            let result = (self.body)(&self.input, tx).await?;
            *self.result.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
            Ok(())
        })
    }
}
