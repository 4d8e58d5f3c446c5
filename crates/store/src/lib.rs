//! Persistence. The only crate with SQL.
//!
//! A transaction is an input and a body, passed to [`Store::write`] or [`Store::read`] by the
//! caller. One set of statements serves both databases; the differences are in `driver/sqlite.rs`
//! and `driver/postgres.rs`. The store decides nothing: it writes all of a transaction or nothing.

mod access;
mod approval;
mod audit;
mod checkpoint;
mod credential;
mod deployment;
mod driver;
mod error;
mod event;
mod feed;
mod filter;
mod firmware;
mod health;
mod hook;
mod identity;
mod image;
mod inspection;
mod keyset;
mod lockout;
mod log;
mod machine;
mod node;
mod node_name;
mod notifier;
mod order;
mod plan;
mod record;
mod replica;
mod retention;
mod run;
mod seal_key;
mod set_aside;
mod side_facts;
mod signal;
mod subject;
mod symptom;
mod unreadable;
mod value;

pub use access::{AccessState, StoredToken};
pub use audit::{AuditDraft, AuditQuery};
pub use checkpoint::CheckpointRow;
pub use credential::CredentialRow;
pub use deployment::{DeploymentLookup, DeploymentRow};
pub use driver::sqlite::SQLITE_PRAGMAS;
pub use driver::{Options, Store, Tx, TxBody, TxFuture, TxInput, TxOutput};
pub use error::StoreError;
pub use event::{
    Cause, Cursor, Event, EventObject, HistoryQuery, NewEvent, ObjectBefore, REMOVED, WatchedKind,
};
pub use firmware::{AppliedPosition, AppliedQuery};
pub use health::ObjectReports;
pub use hook::{TransactionHook, TransactionPoint};
pub use identity::IdentityRow;
pub use lockout::LockoutRow;
pub use log::{LogLine, NewLog};
pub use machine::MachinePage;
pub use node::{NodeHeartbeat, TaskRow};
pub use notifier::{DeadLetterQuery, NotifierClaim, StoredNotifier, notifier_key, notifier_of};
pub use record::{RecordClaim, RecordPage};
pub use replica::{Replica, ReplicaHeartbeat, ReplicaStatus};
pub use retention::{
    AgedEvent, EndedRun, EndedRunPosition, EventPosition, MAX_ROWS_PER_BATCH, MAX_RUNS_PER_BATCH,
    RemovedRows,
};
pub use run::{ClaimedRun, RunPage};
pub use seal_key::{KeyPurpose, SealKeyRow};
pub use set_aside::SetAsideRow;
pub use side_facts::StepDuration;
pub use signal::{Signal, SignalBus};
pub use subject::{
    ClaimOutcome, ClaimedKind, ClaimedObject, Enqueue, RunSettlement, SettledVersion,
};
pub use symptom::{MachineSymptom, RecordSymptom};
pub use unreadable::{CheckedRows, Listed, RowKind, UnreadableRow, UnreadableRows};

pub type Result<T> = std::result::Result<T, StoreError>;
