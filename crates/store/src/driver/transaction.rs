//! A transaction as a value: an input and a body that a driver may run several times.
//!
//! The drivers see it as a [`Job`], without its types, so that they are compiled once and not for
//! each transaction.

use super::Tx;
use crate::audit::AuditDraft;
use crate::budget::ServiceChanges;
use crate::{Result, StoreError};
use futures_util::future::BoxFuture;
use model::audit::AuditEntry;
use std::sync::{Arc, Mutex, PoisonError};

/// The future of a transaction's body. Boxed, because the future of a closure cannot be bounded
/// `Send` by name.
pub type TxFuture<'a, T> = BoxFuture<'a, Result<T>>;

/// The input of a transaction: a driver may pass it to another thread.
pub trait TxInput: Send + Sync + 'static {}
impl<I: Send + Sync + 'static> TxInput for I {}

/// The result of a transaction.
pub trait TxOutput: Send + 'static {}
impl<T: Send + 'static> TxOutput for T {}

/// The body of a transaction.
pub trait TxBody<I, T>:
    for<'a> Fn(&'a I, &'a mut Tx) -> TxFuture<'a, T> + Send + Sync + 'static
{
}
impl<I, T, F> TxBody<I, T> for F where
    F: for<'a> Fn(&'a I, &'a mut Tx) -> TxFuture<'a, T> + Send + Sync + 'static
{
}

/// The end of a transaction whose body succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TransactionEnd {
    Commit,
    /// Only its result is used.
    Rollback,
}

/// The consistency that a read needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadConsistency {
    /// The body is one statement, which is consistent by itself.
    Statement,
    Snapshot,
}

pub(crate) trait Job: Send + Sync {
    /// Runs the body once and stores its result.
    fn run<'a>(&'a self, tx: &'a mut Tx) -> TxFuture<'a, ()>;
}

/// A job that also writes an entry of the audit log, in the same transaction.
pub(crate) struct AuditedJob {
    pub job: Arc<dyn Job>,
    pub draft: Arc<AuditDraft>,
}

impl Job for AuditedJob {
    fn run<'a>(&'a self, tx: &'a mut Tx) -> TxFuture<'a, ()> {
        Box::pin(async move {
            tx.created_run = None;
            self.job.run(tx).await?;
            let operation_id = tx.created_run.take().unwrap_or_default();
            tx.insert_audit_entry(&AuditEntry { operation_id, ..self.draft.entry() })
        })
    }
}

pub(crate) struct Transaction<I, T, F> {
    input: I,
    body: F,
    result: Mutex<Option<T>>,
}

impl<I, T, F: TxBody<I, T>> Transaction<I, T, F> {
    pub fn new(input: I, body: F) -> Arc<Self> {
        Arc::new(Self { input, body, result: Mutex::new(None) })
    }

    /// The result of the last run.
    pub fn result(&self) -> Result<T> {
        let mut result = self.result.lock().unwrap_or_else(PoisonError::into_inner);
        result.take().ok_or_else(|| StoreError::Corrupt("a transaction has no result".into()))
    }
}

impl<I: TxInput, T: TxOutput, F: TxBody<I, T>> Job for Transaction<I, T, F> {
    fn run<'a>(&'a self, tx: &'a mut Tx) -> TxFuture<'a, ()> {
        Box::pin(async move {
            tx.service = ServiceChanges::default();
            let result = (self.body)(&self.input, tx).await?;
            tx.keep_budget_members().await?;
            *self.result.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
            Ok(())
        })
    }
}
