//! Persistence. The only crate with SQL.
//!
//! A transaction is an input and a body, passed to [`Store::write`] or [`Store::read`] by the
//! caller. One set of statements serves both databases; the differences are in `driver/sqlite.rs`
//! and `driver/postgres.rs`. The store decides nothing: it writes all of a transaction or nothing.

#![allow(clippy::wildcard_enum_match_arm, reason = "this crate does not keep to it yet")]

mod credential;
mod deployment;
mod driver;
mod error;
mod event;
mod filter;
mod firmware;
mod health;
mod identity;
mod image;
mod lockout;
mod log;
mod machine;
mod node;
mod note;
mod plan;
mod record;
mod replica;
mod retention;
mod run;
mod signal;
mod subject;
mod tap;
mod value;

pub use credential::CredentialRow;
pub use deployment::{DeploymentRow, Shown};
pub use driver::sqlite::SQLITE_PRAGMAS;
pub use driver::{Options, Store, Tx, TxFuture};
pub use error::StoreError;
pub use event::{Cause, Cursor, Event, NewEvent};
pub use firmware::AppliedPlace;
pub use health::Reported;
pub use identity::IdentityRow;
pub use lockout::LockoutRow;
pub use log::{LogLine, NewLog};
pub use machine::MachinePage;
pub use node::{NodeHeartbeat, TaskRow};
pub use note::NoteRow;
pub use record::{RecordClaim, RecordFilter, RecordPage};
pub use replica::{Replica, ReplicaHeartbeat};
pub use retention::{Aged, Ended, EventPlace, MAX_REMOVED, RUNS_AT_ONCE, Removed, RunPlace};
pub use run::{ClaimedRun, RunPage};
pub use signal::{Bus, Signal};
pub use subject::{Claimed, Enqueue, Hold, Settle, Settled};
pub use tap::{Passing, Tap};

pub type Result<T> = std::result::Result<T, StoreError>;
