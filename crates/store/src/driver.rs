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

/// How often [`Store::retry_write`] runs a transaction that others wrote before.
const MAX_CONFLICTS: u32 = 20;

/// Where the state is kept.
#[derive(Debug, Clone)]
pub enum Options {
    Sqlite {
        path: PathBuf,
    },
    Postgres {
        url: String,
        /// How many there may be, the one that listens to the other replicas included.
        connections: usize,
        /// What the connections are called in the database's own list.
        name: String,
    },
    /// Gone with the process.
    Memory,
}

#[derive(Clone)]
pub struct Store {
    driver: Driver,
    bus: Bus,
    tap: Option<Arc<dyn Tap>>,
    /// Rollback: this store is a [`Store::dry_run`].
    ending: Ending,
}

#[derive(Clone)]
enum Driver {
    Sqlite(Arc<sqlite::Sqlite>),
    Postgres(Arc<postgres::Postgres>),
    Memory(Arc<memory::Memory>),
}

impl Store {
    /// Opens the database, brings its schema up to date, and starts listening to other replicas.
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

    /// The same store behind a tap.
    #[must_use]
    pub fn tapped(&self, tap: Arc<dyn Tap>) -> Self {
        Self { tap: Some(tap), ..self.clone() }
    }

    /// The same store for a dry run: each write runs whole, with every check that the database
    /// makes, and is rolled back. Its result is what it would have been, and no signal is sent.
    #[must_use]
    pub fn dry_run(&self) -> Self {
        Self { ending: Ending::Rollback, ..self.clone() }
    }

    /// Whether writes are rolled back.
    pub fn is_dry_run(&self) -> bool {
        self.ending == Ending::Rollback
    }

    async fn pass(&self, passing: Passing) -> Result<()> {
        match &self.tap {
            Some(tap) => tap.pass(passing).await,
            None => Ok(()),
        }
    }

    /// Runs a body in one durable transaction: all of it, or nothing. A driver may run it several
    /// times before it is committed (a savepoint in a group, a deadlock), so the body takes its
    /// input by shared reference and touches nothing but the transaction. `name` is what the fault
    /// injector of the tests calls it.
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

    /// The same for a request: run again while other transactions write the same rows first, so
    /// that its gates are asked of what is stored now.
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

    /// Runs a short body that only reads, on one consistent view.
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

    /// The same for a body of one statement: that has one view without a transaction around it.
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

    /// [`Store::read`] for what may take milliseconds: it does not block other tasks.
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

    /// [`Store::read_one`] for what may take milliseconds.
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

    /// One machine. Where that is a round trip, concurrent lookups share it.
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
            // Nothing is committed, so no crash can come between a commit and its answer.
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

/// An open transaction. Its methods are spread over the files of this crate, by noun.
pub struct Tx {
    conn: Conn,
    signals: Vec<Signal>,
    /// What was put and has not been sent; see [`Tx::put`].
    pending: Vec<(Statement, Expect)>,
}

/// How many rows a statement must touch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expect {
    /// One; otherwise somebody else wrote first.
    One,
    Any,
}

enum Conn {
    Sqlite(rusqlite::Connection),
    Postgres(deadpool_postgres::Object),
}

/// What differs between the two, in words of SQL.
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

    /// Sent after the commit.
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

    /// Writes something of which nothing but its success matters. Where each statement costs a
    /// round trip it waits, until something is read or the transaction ends, and goes with its
    /// neighbours.
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

    /// Sends what was put, all in one round trip.
    pub(crate) async fn flush(&mut self) -> Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let pending = std::mem::take(&mut self.pending);
        let touched = match &self.conn {
            Conn::Postgres(conn) => postgres::execute_all(conn, &pending).await?,
            // Nothing waits here.
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

/// A statement with its parameters.
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
    /// Fills the words in braces that migrations and a few statements leave open.
    pub fn fill(self, sql: &str) -> String {
        let words: &[(&str, &str)] = match self {
            Self::Sqlite => sqlite::WORDS,
            Self::Postgres => postgres::WORDS,
        };
        let mut filled = String::with_capacity(sql.len() + 64);
        let mut rest = sql;
        // In one pass: every event that is written comes through here.
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

    /// The text of one key of a JSON object kept as text.
    pub fn json_text(self, column: &str, key: &str) -> String {
        match self {
            Self::Sqlite => format!("({column} ->> {key})"),
            Self::Postgres => format!("({column}::jsonb ->> {key})"),
        }
    }
}

/// The schema, step by step. A step never changes once it has been released.
const MIGRATIONS: [&str; 7] = [
    include_str!("../migrations/0001_init.sql"),
    include_str!("../migrations/0002_retention.sql"),
    include_str!("../migrations/0003_labels.sql"),
    include_str!("../migrations/0004_hardware.sql"),
    include_str!("../migrations/0005_images.sql"),
    include_str!("../migrations/0006_racks.sql"),
    include_str!("../migrations/0007_nodes.sql"),
];

/// The steps that a database at `version` still needs.
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
