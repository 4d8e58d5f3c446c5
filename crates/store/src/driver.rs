//! One interface to both databases.

mod memory;
pub(crate) mod postgres;
pub(crate) mod sqlite;
mod transaction;

pub use transaction::TxFuture;
use transaction::{Ending, Job, Transaction, View};

use crate::signal::{Bus, Signal};
use crate::tap::{Passing, Tap};
use crate::value::{Row, Value};
use crate::{Result, StoreError};
use model::id::MachineId;
use model::machine::Machine;
use std::path::PathBuf;
use std::sync::Arc;

/// The number of conflicts after which [`Store::retry_write`] gives up.
const MAX_CONFLICTS: u32 = 20;

/// Selects and configures the database.
#[derive(Debug, Clone)]
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
    bus: Bus,
    tap: Option<Arc<dyn Tap>>,
    /// `Rollback` for a [`Store::dry_run`].
    ending: Ending,
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
        let bus = Bus::default();
        let driver = match options {
            Options::Sqlite { path } => Driver::Sqlite(sqlite::Sqlite::open(path, bus.clone())?),
            Options::Postgres { url, connections, name } => {
                let bus = bus.clone();
                Driver::Postgres(postgres::Postgres::open(url, *connections, name, bus).await?)
            }
            Options::Memory => Driver::Memory(memory::Memory::open(bus.clone())?),
        };
        Ok(Self { driver, bus, tap: None, ending: Ending::Commit })
    }

    /// Returns the same store with a transaction hook.
    #[must_use]
    pub fn tapped(&self, tap: Arc<dyn Tap>) -> Self {
        Self { tap: Some(tap), ..self.clone() }
    }

    /// Returns the same store for dry runs: a write runs with every check that the database makes,
    /// returns its result and is rolled back. It sends no signals.
    #[must_use]
    pub fn dry_run(&self) -> Self {
        Self { ending: Ending::Rollback, ..self.clone() }
    }

    pub fn is_dry_run(&self) -> bool {
        self.ending == Ending::Rollback
    }

    async fn pass(&self, passing: Passing) -> Result<()> {
        match &self.tap {
            Some(tap) => tap.pass(passing).await,
            None => Ok(()),
        }
    }

    /// Runs a body in one durable, atomic transaction. A driver may run the body several times
    /// before the commit (a savepoint in a group, a deadlock), so it takes its input by shared
    /// reference and has no effect outside the transaction. `name` identifies the transaction to
    /// the fault injector of the tests.
    pub async fn write<I, T>(
        &self,
        name: &'static str,
        input: I,
        body: impl for<'a> Fn(&'a I, &'a mut Tx) -> TxFuture<'a, T> + Send + Sync + 'static,
    ) -> Result<T>
    where
        I: Send + Sync + 'static,
        T: Send + 'static,
    {
        let job = Transaction::new(input, body);
        self.commit(name, job.clone()).await?;
        job.result()
    }

    /// Like [`Store::write`], and runs the body again after a conflict, so that its gates are
    /// checked against the rows that are stored now.
    pub async fn retry_write<I, T>(
        &self,
        name: &'static str,
        input: I,
        body: impl for<'a> Fn(&'a I, &'a mut Tx) -> TxFuture<'a, T> + Send + Sync + 'static,
    ) -> Result<T>
    where
        I: Send + Sync + 'static,
        T: Send + 'static,
    {
        let job = Transaction::new(input, body);
        self.commit_retrying(name, job.clone()).await?;
        job.result()
    }

    /// Runs a short read-only body on one consistent snapshot.
    pub async fn read<I, T>(
        &self,
        input: I,
        body: impl for<'a> Fn(&'a I, &'a mut Tx) -> TxFuture<'a, T> + Send + Sync + 'static,
    ) -> Result<T>
    where
        I: Send + Sync + 'static,
        T: Send + 'static,
    {
        let job = Transaction::new(input, body);
        self.view(&*job, View::Snapshot).await?;
        job.result()
    }

    /// Like [`Store::read`] for a body of one statement, which is consistent by itself.
    pub async fn read_one<I, T>(
        &self,
        input: I,
        body: impl for<'a> Fn(&'a I, &'a mut Tx) -> TxFuture<'a, T> + Send + Sync + 'static,
    ) -> Result<T>
    where
        I: Send + Sync + 'static,
        T: Send + 'static,
    {
        let job = Transaction::new(input, body);
        self.view(&*job, View::Statement).await?;
        job.result()
    }

    /// Like [`Store::read`] for a read that may take milliseconds: it does not block other tasks.
    pub async fn scan<I, T>(
        &self,
        input: I,
        body: impl for<'a> Fn(&'a I, &'a mut Tx) -> TxFuture<'a, T> + Send + Sync + 'static,
    ) -> Result<T>
    where
        I: Send + Sync + 'static,
        T: Send + 'static,
    {
        let job = Transaction::new(input, body);
        self.view_aside(job.clone(), View::Snapshot).await?;
        job.result()
    }

    /// Like [`Store::read_one`] for a read that may take milliseconds.
    pub async fn scan_one<I, T>(
        &self,
        input: I,
        body: impl for<'a> Fn(&'a I, &'a mut Tx) -> TxFuture<'a, T> + Send + Sync + 'static,
    ) -> Result<T>
    where
        I: Send + Sync + 'static,
        T: Send + 'static,
    {
        let job = Transaction::new(input, body);
        self.view_aside(job.clone(), View::Statement).await?;
        job.result()
    }

    /// Reads one machine. On PostgreSQL, concurrent lookups share one statement.
    pub async fn machine(&self, id: &MachineId) -> Result<Option<Machine>> {
        match &self.driver {
            Driver::Postgres(db) => {
                self.pass(Passing::Read).await?;
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
            Ending::Rollback => {
                self.pass(Passing::Read).await?;
                self.transact(job).await
            }
            Ending::Commit => {
                self.pass(Passing::BeforeCommit(name)).await?;
                self.transact(job).await?;
                self.pass(Passing::AfterCommit(name)).await
            }
        }
    }

    async fn transact(&self, job: Arc<dyn Job>) -> Result<()> {
        match &self.driver {
            Driver::Sqlite(db) => db.write(job, self.ending).await,
            Driver::Postgres(db) => db.write(&*job, self.ending).await,
            Driver::Memory(db) => db.run(&*job, self.ending),
        }
    }

    async fn view(&self, job: &dyn Job, view: View) -> Result<()> {
        self.pass(Passing::Read).await?;
        match &self.driver {
            Driver::Sqlite(db) => db.read(job, view),
            Driver::Postgres(db) => db.read(job, view).await,
            Driver::Memory(db) => db.run(job, Ending::Commit),
        }
    }

    async fn view_aside(&self, job: Arc<dyn Job>, view: View) -> Result<()> {
        match &self.driver {
            Driver::Sqlite(db) => {
                self.pass(Passing::Read).await?;
                db.scan(job, view).await
            }
            Driver::Postgres(_) | Driver::Memory(_) => self.view(&*job, view).await,
        }
    }

    pub fn bus(&self) -> &Bus {
        &self.bus
    }
}

/// An open transaction. Its methods are defined in the module of the table that they access.
pub struct Tx {
    conn: Conn,
    signals: Vec<Signal>,
    /// Statements of [`Tx::put`] that were not sent yet.
    pending: Vec<(Statement, Expect)>,
}

/// The number of rows that a statement must change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expect {
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
        Self { conn, signals: Vec::new(), pending: Vec::new() }
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
    pub(crate) fn put(&mut self, statement: Statement, expect: Expect) -> Result<()> {
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

impl Expect {
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
    pub fn fill(self, sql: &str) -> String {
        let words: &[(&str, &str)] = match self {
            Self::Sqlite => sqlite::WORDS,
            Self::Postgres => postgres::WORDS,
        };
        let mut filled = String::with_capacity(sql.len() + 64);
        let mut rest = sql;
        // In one pass, because every event insert is filled here.
        while let Some(brace) = rest.find('{') {
            let (before, word) = rest.split_at(brace);
            filled.push_str(before);
            let known = words.iter().find(|(known, _)| word.starts_with(known));
            let (name, meaning) = known.copied().unwrap_or(("{", "{"));
            filled.push_str(meaning);
            rest = &word[name.len()..];
        }
        filled.push_str(rest);
        filled
    }

    /// The SQL for the text value of a key in a JSON object that is stored as text.
    pub fn json_text(self, column: &str, key: &str) -> String {
        match self {
            Self::Sqlite => format!("({column} ->> {key})"),
            Self::Postgres => format!("({column}::jsonb ->> {key})"),
        }
    }
}

/// The schema migrations. The SQL of a released migration never changes.
const MIGRATIONS: [&str; 7] = [
    include_str!("../migrations/0001_init.sql"),
    include_str!("../migrations/0002_retention.sql"),
    include_str!("../migrations/0003_labels.sql"),
    include_str!("../migrations/0004_hardware.sql"),
    include_str!("../migrations/0005_images.sql"),
    include_str!("../migrations/0006_racks.sql"),
    include_str!("../migrations/0007_nodes.sql"),
];

/// The migrations that a database at schema `version` still needs.
fn migrations(version: i64, dialect: Dialect) -> Result<Vec<(i64, String)>> {
    let known = MIGRATIONS.len() as i64;
    if version > known {
        return Err(StoreError::Unavailable(format!(
            "the database has schema version {version}, this farrier knows up to {known}; \
             start the newer farrier that made it"
        )));
    }
    let steps = MIGRATIONS.iter().enumerate().map(|(index, sql)| (index as i64 + 1, *sql));
    Ok(steps.filter(|(step, _)| *step > version).map(|(n, sql)| (n, dialect.fill(sql))).collect())
}
