//! One interface to both databases.

mod memory;
pub(crate) mod postgres;
mod schema;
pub(crate) mod sqlite;
mod transaction;

use schema::{SchemaPolicy, StoredSchema};
use transaction::{AuditedJob, Job, ReadConsistency, Transaction, TransactionEnd};
pub use transaction::{TxBody, TxFuture, TxInput, TxOutput};

use crate::audit::AuditDraft;
use crate::budget::ServiceChanges;
use crate::hook::{TransactionHook, TransactionPoint};
use crate::signal::{Signal, SignalBus};
use crate::unreadable::UnreadableRows;
use crate::value::{Row, Value};
use crate::{Result, StoreError};
use model::id::MachineId;
use model::machine::Machine;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// The number of conflicts after which [`Store::retry_write`] gives up.
const MAX_CONFLICTS: u32 = 20;

/// Selects and configures the database. Has no `Debug`: a URL may have a password in it.
#[derive(Clone)]
pub enum Options {
    Sqlite {
        path: PathBuf,
    },
    Postgres {
        url: String,
        /// The maximum number of connections, including the one that listens for notifications.
        connections: usize,
        /// The `application_name` of the connections.
        name: String,
    },
    /// Lost when the process ends.
    Memory,
}

#[derive(Clone)]
pub struct Store {
    driver: Driver,
    bus: SignalBus,
    hook: Option<Arc<dyn TransactionHook>>,
    /// `Rollback` for a [`Store::dry_run`].
    ending: TransactionEnd,
    unreadable: UnreadableRows,
    /// The entry of the audit log that the next commit writes.
    audit: Option<Arc<AuditDraft>>,
    /// Set once a write has failed because this farrier is too old for the schema.
    outdated: Arc<OnceLock<String>>,
}

#[derive(Clone)]
enum Driver {
    Sqlite(Arc<sqlite::Sqlite>),
    Postgres(Arc<postgres::Postgres>),
    Memory(Arc<memory::Memory>),
}

impl Store {
    /// Opens the database, migrates its schema, and starts to listen for other replicas.
    pub async fn open(options: &Options) -> Result<Self> {
        Self::open_at(options, SchemaPolicy::Migrate).await
    }

    /// Opens a database that exists and has the schema of this version. Changes nothing.
    pub async fn open_unmigrated(options: &Options) -> Result<Self> {
        Self::open_at(options, SchemaPolicy::Require).await
    }

    async fn open_at(options: &Options, schema: SchemaPolicy) -> Result<Self> {
        let bus = SignalBus::default();
        let driver = match options {
            Options::Sqlite { path } => {
                Driver::Sqlite(sqlite::Sqlite::open(path, schema, bus.clone())?)
            }
            Options::Postgres { url, connections, name } => {
                let size = postgres::PoolSize { connections: *connections, name };
                let opened = postgres::Postgres::open(url, size, schema, bus.clone());
                Driver::Postgres(opened.await?)
            }
            Options::Memory => Driver::Memory(memory::Memory::open(bus.clone())?),
        };
        let unreadable = UnreadableRows::default();
        let ending = TransactionEnd::Commit;
        let (hook, audit, outdated) = (None, None, Arc::default());
        Ok(Self { driver, bus, hook, ending, unreadable, audit, outdated })
    }

    /// Returns the same store with a transaction hook.
    #[must_use]
    pub fn with_hook(&self, tap: Arc<dyn TransactionHook>) -> Self {
        Self { hook: Some(tap), ..self.clone() }
    }

    /// Returns the same store for a request that may be a dry run. In a dry run a write is executed
    /// with every check that the database makes, returns its result and is rolled back. It sends no
    /// signals. A store for dry runs stays one, whatever `dry_run` is.
    #[must_use]
    pub fn with_dry_run(&self, dry_run: bool) -> Self {
        let ending = if dry_run { TransactionEnd::Rollback } else { self.ending };
        Self { ending, ..self.clone() }
    }

    /// Returns the same store for a request whose first commit writes this entry of the audit log.
    /// None: for work that no request has asked for.
    #[must_use]
    pub fn with_audit(&self, audit: Option<Arc<AuditDraft>>) -> Self {
        Self { audit, ..self.clone() }
    }

    /// The entry of the audit log of the request that this store works for.
    pub fn audit(&self) -> Option<&Arc<AuditDraft>> {
        self.audit.as_ref()
    }

    pub fn is_dry_run(&self) -> bool {
        self.ending == TransactionEnd::Rollback
    }

    async fn call_hook(&self, passing: TransactionPoint) -> Result<()> {
        match &self.hook {
            Some(tap) => tap.intercept(passing).await,
            None => Ok(()),
        }
    }

    /// Runs a body in one durable, atomic transaction. A driver may run the body several times
    /// before the commit (a savepoint in a group, a deadlock), so it takes its input by shared
    /// reference and has no effect outside the transaction. `name` identifies the transaction to
    /// the fault injector of the tests.
    pub async fn write<I: TxInput, T: TxOutput>(
        &self,
        name: &'static str,
        input: I,
        body: impl TxBody<I, T>,
    ) -> Result<T> {
        let job = Transaction::new(input, body);
        self.commit(name, job.clone()).await?;
        job.result()
    }

    /// Like [`Store::write`], and runs the body again after a conflict, so that its gates are
    /// checked against the rows that are stored now.
    pub async fn retry_write<I: TxInput, T: TxOutput>(
        &self,
        name: &'static str,
        input: I,
        body: impl TxBody<I, T>,
    ) -> Result<T> {
        let job = Transaction::new(input, body);
        self.commit_retrying(name, job.clone()).await?;
        job.result()
    }

    /// Runs a short read-only body on one consistent snapshot.
    pub async fn read<I, T>(&self, input: I, body: impl TxBody<I, T>) -> Result<T>
    where
        I: TxInput,
        T: TxOutput,
    {
        let job = Transaction::new(input, body);
        self.run_read(&*job, ReadConsistency::Snapshot).await?;
        job.result()
    }

    /// Like [`Store::read`] for a body of one statement, which is consistent by itself.
    pub async fn read_one<I, T>(&self, input: I, body: impl TxBody<I, T>) -> Result<T>
    where
        I: TxInput,
        T: TxOutput,
    {
        let job = Transaction::new(input, body);
        self.run_read(&*job, ReadConsistency::Statement).await?;
        job.result()
    }

    /// Like [`Store::read`] for a read that may take milliseconds: it does not block other tasks.
    pub async fn scan<I, T>(&self, input: I, body: impl TxBody<I, T>) -> Result<T>
    where
        I: TxInput,
        T: TxOutput,
    {
        let job = Transaction::new(input, body);
        self.run_scan(job.clone(), ReadConsistency::Snapshot).await?;
        job.result()
    }

    /// Like [`Store::read_one`] for a read that may take milliseconds.
    pub async fn scan_one<I, T>(&self, input: I, body: impl TxBody<I, T>) -> Result<T>
    where
        I: TxInput,
        T: TxOutput,
    {
        let job = Transaction::new(input, body);
        self.run_scan(job.clone(), ReadConsistency::Statement).await?;
        job.result()
    }

    /// Reads one machine. On PostgreSQL, concurrent lookups share one statement.
    pub async fn machine(&self, id: &MachineId) -> Result<Option<Machine>> {
        match &self.driver {
            Driver::Postgres(db) => {
                self.call_hook(TransactionPoint::Read).await?;
                db.machine(id).await
            }
            Driver::Sqlite(_) | Driver::Memory(_) => {
                self.read_one(id.clone(), |id, tx| Box::pin(tx.machine(id))).await
            }
        }
    }

    async fn commit_retrying(&self, name: &'static str, job: Arc<dyn Job>) -> Result<()> {
        for _ in 0..MAX_CONFLICTS {
            match self.commit(name, Arc::clone(&job)).await {
                Err(StoreError::Conflict) => {}
                other => return other,
            }
        }
        Err(StoreError::Unavailable("too many requests raced for one object; try again".into()))
    }

    async fn commit(&self, name: &'static str, job: Arc<dyn Job>) -> Result<()> {
        match self.ending {
            // Without a commit there is no crash point between a commit and its answer.
            TransactionEnd::Rollback => {
                self.call_hook(TransactionPoint::Read).await?;
                self.run_write(job).await
            }
            TransactionEnd::Commit => {
                self.call_hook(TransactionPoint::BeforeCommit(name)).await?;
                match self.audit.as_ref().filter(|draft| !draft.is_written()) {
                    Some(draft) => {
                        let audited = AuditedJob { job, draft: Arc::clone(draft) };
                        self.run_write(Arc::new(audited)).await?;
                        draft.mark_written();
                    }
                    None => self.run_write(job).await?,
                }
                self.call_hook(TransactionPoint::AfterCommit(name)).await
            }
        }
    }

    async fn run_write(&self, job: Arc<dyn Job>) -> Result<()> {
        let written = match &self.driver {
            Driver::Sqlite(db) => db.write(job, self.ending).await,
            Driver::Postgres(db) => db.write(&*job, self.ending).await,
            Driver::Memory(db) => db.run(&*job, self.ending),
        };
        if let Some(message) = written.as_ref().err().and_then(schema::outdated_message)
            && self.outdated.set(message.to_string()).is_ok()
        {
            tracing::error!("{message}; this replica only reads from now on");
        }
        written
    }

    /// The reason, if a newer farrier has migrated the database and this one must not write any
    /// more. Every write transaction checks it; the heartbeat is one.
    pub fn outdated(&self) -> Option<&str> {
        self.outdated.get().map(String::as_str)
    }

    async fn run_read(&self, job: &dyn Job, view: ReadConsistency) -> Result<()> {
        self.call_hook(TransactionPoint::Read).await?;
        match &self.driver {
            Driver::Sqlite(db) => db.read(job, view),
            Driver::Postgres(db) => db.read(job, view).await,
            Driver::Memory(db) => db.run(job, TransactionEnd::Commit),
        }
    }

    async fn run_scan(&self, job: Arc<dyn Job>, view: ReadConsistency) -> Result<()> {
        match &self.driver {
            Driver::Sqlite(db) => {
                self.call_hook(TransactionPoint::Read).await?;
                db.scan(job, view).await
            }
            Driver::Postgres(_) | Driver::Memory(_) => self.run_read(&*job, view).await,
        }
    }

    pub fn bus(&self) -> &SignalBus {
        &self.bus
    }

    /// The unreadable rows that this process has found.
    pub fn unreadable(&self) -> &UnreadableRows {
        &self.unreadable
    }
}

/// An open transaction. Its methods are defined in the module of the table that they access.
pub struct Tx {
    conn: Conn,
    signals: Vec<Signal>,
    /// Statements of [`Tx::queue_write`] that were not sent yet.
    pending: Vec<(Statement, ExpectedRows)>,
    /// The first run that the transaction has created, for the audit log.
    pub(crate) created_run: Option<String>,
    /// What the transaction has changed about whether machines serve.
    pub(crate) service: ServiceChanges,
}

/// The number of rows that a statement must change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExpectedRows {
    /// One; anything else is a [`StoreError::Conflict`].
    One,
    Any,
}

enum Conn {
    Sqlite(rusqlite::Connection),
    Postgres(deadpool_postgres::Object),
}

/// The SQL dialect of the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    Sqlite,
    Postgres,
}

impl Tx {
    fn new(conn: Conn) -> Self {
        Self {
            conn,
            signals: Vec::new(),
            pending: Vec::new(),
            created_run: None,
            service: ServiceChanges::default(),
        }
    }

    pub(crate) fn dialect(&self) -> Dialect {
        match &self.conn {
            Conn::Sqlite(_) => Dialect::Sqlite,
            Conn::Postgres(_) => Dialect::Postgres,
        }
    }

    /// Queues a signal that is sent after the commit.
    pub(crate) fn signal(&mut self, signal: Signal) {
        if !self.signals.contains(&signal) {
            self.signals.push(signal);
        }
    }

    pub(crate) async fn query(&mut self, sql: &str, values: &[Value]) -> Result<Vec<Row>> {
        self.flush().await?;
        match &mut self.conn {
            Conn::Sqlite(conn) => sqlite::query(conn, sql, values),
            Conn::Postgres(conn) => postgres::query(conn, sql, values).await,
        }
    }

    pub(crate) async fn query_one(&mut self, sql: &str, values: &[Value]) -> Result<Option<Row>> {
        Ok(self.query(sql, values).await?.into_iter().next())
    }

    pub(crate) async fn execute(&mut self, sql: &str, values: &[Value]) -> Result<u64> {
        self.flush().await?;
        match &mut self.conn {
            Conn::Sqlite(conn) => sqlite::execute(conn, sql, values),
            Conn::Postgres(conn) => postgres::execute(conn, sql, values).await,
        }
    }

    /// Queues a write whose only result is success or failure. On PostgreSQL it is sent in one
    /// round trip with the other queued writes, before the next read or the commit.
    pub(crate) fn queue_write(&mut self, statement: Statement, expect: ExpectedRows) -> Result<()> {
        match &self.conn {
            Conn::Sqlite(conn) => {
                let touched = sqlite::execute(conn, &statement.sql, &statement.values)?;
                expect.check(touched)
            }
            Conn::Postgres(_) => {
                self.pending.push((statement, expect));
                Ok(())
            }
        }
    }

    /// Sends all queued writes in one round trip.
    pub(crate) async fn flush(&mut self) -> Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let pending = std::mem::take(&mut self.pending);
        let touched = match &self.conn {
            Conn::Postgres(conn) => postgres::execute_all(conn, &pending).await?,
            // SQLite queues nothing.
            Conn::Sqlite(_) => Vec::new(),
        };
        pending.iter().zip(touched).try_for_each(|((_, expect), touched)| expect.check(touched))
    }
}

impl ExpectedRows {
    fn check(self, touched: u64) -> Result<()> {
        match self {
            Self::One if touched != 1 => Err(StoreError::Conflict),
            Self::One | Self::Any => Ok(()),
        }
    }
}

pub(crate) struct Statement {
    pub sql: String,
    pub values: Vec<Value>,
}

impl Statement {
    pub fn new(sql: impl Into<String>, values: &[Value]) -> Self {
        Self { sql: sql.into(), values: values.to_vec() }
    }
}

impl Dialect {
    /// Replaces the placeholders in braces by the SQL of this dialect.
    pub fn fill_placeholders(self, sql: &str) -> String {
        let words: &[(&str, &str)] = match self {
            Self::Sqlite => sqlite::PLACEHOLDERS,
            Self::Postgres => postgres::PLACEHOLDERS,
        };
        let mut filled = String::with_capacity(sql.len() + 64);
        let mut rest = sql;
        // In one pass, because every event insert is filled here.
        while let Some(brace) = rest.find('{') {
            let (before, label) = rest.split_at(brace);
            filled.push_str(before);
            let known = words.iter().find(|(known, _)| label.starts_with(known));
            let (name, meaning) = known.copied().unwrap_or(("{", "{"));
            filled.push_str(meaning);
            rest = &label[name.len()..];
        }
        filled.push_str(rest);
        filled
    }

    /// The SQL for the text value of a key in a JSON object that is stored as text. Null if the
    /// text is no JSON: one damaged row must not fail a list.
    pub fn json_text(self, column: &str, key: &str) -> String {
        match self {
            Self::Sqlite => format!("(CASE WHEN json_valid({column}) THEN {column} ->> {key} END)"),
            Self::Postgres => format!("farrier_json_text({column}, {key})"),
        }
    }
}
