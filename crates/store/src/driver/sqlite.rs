//! SQLite: one writer thread that groups the commits of concurrent requests, and a few readers.
//!
//! `synchronous=FULL` makes every commit durable; grouping makes that affordable: the writer takes
//! all waiting transactions, runs each in its own savepoint, commits once, and then answers them
//! all.

mod query_plans;

use super::{
    Conn, Dialect, Job, ReadConsistency, SchemaPolicy, StoredSchema, TransactionEnd, Tx, schema,
};
use crate::signal::SignalBus;
use crate::value::{Row, Value};
use crate::{Result, StoreError};
use rusqlite::Connection;
use rusqlite::config::DbConfig;
use rusqlite::types::ValueRef;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use tokio::sync::{Semaphore, oneshot};

/// The SQL of the placeholders in braces.
pub(super) const PLACEHOLDERS: &[(&str, &str)] = &[
    ("{id}", "TEXT"),
    ("{serial}", "INTEGER PRIMARY KEY AUTOINCREMENT"),
    ("{txid}", "BIGINT NOT NULL DEFAULT 0"),
    ("{event_tx}", "0"),
    ("{bytes}", "BLOB"),
    ("{events_order}", ""),
    ("{ids_by_bytes}", ""),
    // With a single writer, commits are in order of `seq`, and rows need no locks.
    ("{after_cursor}", "e.seq > $2 AND e.tx >= $1"),
    ("{is_final}", "1 = 1"),
    ("{not_final}", "e.seq < 0"),
    // `$1` is a JSON array of ids.
    ("{among $1}", "IN (SELECT value FROM json_each($1))"),
    ("{keyed}", " WITHOUT ROWID"),
    ("{labels_of m}", "json_each(m.labels)"),
    // A body that is no JSON has no name: a migration does not fail on it.
    (
        "{cluster_of machines}",
        "(CASE WHEN json_valid(machines.body) \
         THEN json_extract(machines.body, '$.spec.target_cluster_ref') END)",
    ),
    (
        "{node_name_of machines}",
        "(CASE WHEN json_valid(machines.body) \
         THEN json_extract(machines.body, '$.spec.node_name') END)",
    ),
    (
        "{keep_labels}",
        "CREATE TRIGGER machines_labels_new AFTER INSERT ON machines BEGIN \
         INSERT INTO machine_labels SELECT key, value, NEW.id FROM json_each(NEW.labels); END; \
         CREATE TRIGGER machines_labels_changed AFTER UPDATE OF labels ON machines \
         WHEN OLD.labels <> NEW.labels BEGIN \
         DELETE FROM machine_labels WHERE machine_id = OLD.id; \
         INSERT INTO machine_labels SELECT key, value, NEW.id FROM json_each(NEW.labels); END; \
         CREATE TRIGGER machines_labels_gone AFTER DELETE ON machines BEGIN \
         DELETE FROM machine_labels WHERE machine_id = OLD.id; END;",
    ),
    ("{json_text}", ""),
    ("{lock}", ""),
    ("{skip_locked}", ""),
    // The last sequence number used, even if retention has deleted its event.
    ("{horizon}", "SELECT 0, COALESCE((SELECT seq FROM sqlite_sequence WHERE name = 'events'), 0)"),
    ("{latest}", "SELECT 0, 0"),
];

/// The settings of every connection. The benchmark of raw SQLite uses the same ones.
pub const SQLITE_PRAGMAS: [(&str, &str); 6] = [
    ("journal_mode", "WAL"),
    ("synchronous", "FULL"),
    ("foreign_keys", "ON"),
    ("temp_store", "MEMORY"),
    ("wal_autocheckpoint", "4000"),
    ("journal_size_limit", "67108864"),
];

/// The maximum number of transactions in one commit.
const MAX_GROUP: usize = 256;
const STATEMENTS_CACHED: usize = 128;
/// The maximum number of concurrent scans, and of idle read connections, each of which has its own
/// page cache.
const READERS: usize = 8;
/// The writer always needs the upper pages of every index. The default of 2 MB is too small for a
/// large database, which would read them from the file each time.
const WRITER_CACHE_KB: i64 = 32_768;
const BUSY_MS: u64 = 5_000;

/// A transaction in the queue of the writer.
struct PendingTransaction {
    job: Arc<dyn Job>,
    ending: TransactionEnd,
    result: Option<Result<()>>,
    answer: oneshot::Sender<Result<()>>,
}

impl PendingTransaction {
    fn run(&mut self, tx: &mut Tx) {
        self.result = Some(in_savepoint(tx, &*self.job, self.ending));
    }

    /// Answers the caller after the commit.
    fn finish(self, committed: Result<()>) {
        let unrun = || Err(StoreError::Unavailable("the work was not begun".into()));
        // Fails only if the caller was dropped; the commit holds.
        let _ = self.answer.send(committed.and_then(|()| self.result.unwrap_or_else(unrun)));
    }
}

pub(crate) struct Sqlite {
    writer: Sender<PendingTransaction>,
    readers: Mutex<Vec<Connection>>,
    scans: Arc<Semaphore>,
    path: std::path::PathBuf,
}

impl Sqlite {
    pub fn open(path: &Path, policy: SchemaPolicy, bus: SignalBus) -> Result<Arc<Self>> {
        if policy == SchemaPolicy::Require && !path.is_file() {
            let message = format!("there is no database {}", path.display());
            return Err(StoreError::Unavailable(message));
        }
        let mut conn = connect(path)?;
        migrate(&mut conn, policy)?;
        conn.pragma_update(None, "cache_size", -WRITER_CACHE_KB).map_err(store_error)?;
        let (writer, jobs) = channel();
        std::thread::Builder::new()
            .name("sqlite-writer".into())
            .spawn(move || run_writer(conn, &jobs, &bus))
            .map_err(|error| StoreError::Unavailable(format!("no writer thread: {error}")))?;
        Ok(Arc::new(Self {
            writer,
            readers: Mutex::default(),
            scans: Arc::new(Semaphore::new(READERS)),
            path: path.to_path_buf(),
        }))
    }

    pub async fn write(&self, job: Arc<dyn Job>, ending: TransactionEnd) -> Result<()> {
        let (answer, answered) = oneshot::channel();
        let pending = PendingTransaction { job, ending, result: None, answer };
        let gone = || StoreError::Unavailable("the database writer has stopped".into());
        self.writer.send(pending).map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?
    }

    pub fn read(&self, job: &dyn Job, view: ReadConsistency) -> Result<()> {
        let conn = match self.readers.lock().unwrap_or_else(PoisonError::into_inner).pop() {
            Some(conn) => conn,
            None => connect(&self.path)?,
        };
        let mut tx = Tx::new(Conn::Sqlite(conn));
        let (result, ended) = match view {
            ReadConsistency::Statement => (poll_once(job.run(&mut tx)), Ok(())),
            ReadConsistency::Snapshot => {
                let result =
                    execute_control(&tx, "BEGIN").and_then(|()| poll_once(job.run(&mut tx)));
                (result, execute_control(&tx, "COMMIT"))
            }
        };
        if let (Conn::Sqlite(conn), Ok(())) = (tx.conn, ended) {
            let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
            if readers.len() < READERS {
                readers.push(conn);
            }
        }
        result
    }

    pub async fn scan(self: &Arc<Self>, job: Arc<dyn Job>, view: ReadConsistency) -> Result<()> {
        let this = Arc::clone(self);
        // Fails only if the semaphore is closed, which never happens.
        let _turn = self.scans.acquire().await;
        tokio::task::spawn_blocking(move || this.read(&*job, view))
            .await
            .map_err(|error| StoreError::Corrupt(format!("a reader panicked: {error}")))?
    }
}

/// Commits waiting transactions in groups and answers them. Ends when all senders are dropped.
fn run_writer(conn: Connection, jobs: &Receiver<PendingTransaction>, bus: &SignalBus) {
    let mut tx = Tx::new(Conn::Sqlite(conn));
    while let Ok(first) = jobs.recv() {
        let mut group = vec![first];
        let committed = commit_group(&mut tx, &mut group, jobs);
        let signals = std::mem::take(&mut tx.signals);
        match &committed {
            Ok(()) => bus.publish(signals),
            Err(error) => {
                tracing::error!(%error, requests = group.len(), "the commit of a group failed");
                // A failed COMMIT may leave the transaction open.
                let _ = execute_control(&tx, "ROLLBACK");
            }
        }
        for job in group {
            job.finish(committed.clone());
        }
    }
}

/// Runs the first job, and those that arrive meanwhile, in one transaction.
fn commit_group(
    tx: &mut Tx,
    group: &mut Vec<PendingTransaction>,
    jobs: &Receiver<PendingTransaction>,
) -> Result<()> {
    execute_control(tx, "BEGIN IMMEDIATE")?;
    check_fence(tx)?;
    let mut done = 0;
    while let Some(job) = group.get_mut(done) {
        job.run(tx);
        done += 1;
        if is_rolled_back(tx) {
            let message = "SQLite gave the transaction up, nothing was written; is the disk full?";
            return Err(StoreError::Unavailable(message.into()));
        }
        if done < MAX_GROUP {
            group.extend(jobs.try_recv());
        }
    }
    execute_control(tx, "COMMIT")
}

/// Checks, in the open transaction, that this farrier may write to the schema of the database.
fn check_fence(tx: &Tx) -> Result<()> {
    match &tx.conn {
        Conn::Sqlite(conn) => schema::check_writer(oldest_writer(conn)?),
        Conn::Postgres(_) => Err(StoreError::Corrupt("not a SQLite connection".into())),
    }
}

fn oldest_writer(conn: &Connection) -> Result<i64> {
    let rows = query(conn, schema::READ_OLDEST_WRITER, &[])?;
    rows.first().map_or(Ok(0), |row| row.int(0))
}

/// True if SQLite has rolled back the whole transaction by itself, as it does when the disk is full
/// or fails. The rest of the group must not run then: each statement would commit by itself.
fn is_rolled_back(tx: &Tx) -> bool {
    match &tx.conn {
        Conn::Sqlite(conn) => conn.is_autocommit(),
        Conn::Postgres(_) => true,
    }
}

/// Runs one transaction of a group; its failure does not affect the others.
pub(super) fn in_savepoint(tx: &mut Tx, job: &dyn Job, ending: TransactionEnd) -> Result<()> {
    let signals_before = tx.signals.len();
    let result = execute_control(tx, "SAVEPOINT work").and_then(|()| {
        let run = std::panic::AssertUnwindSafe(|| poll_once(job.run(tx)));
        std::panic::catch_unwind(run)
            .unwrap_or_else(|_| Err(StoreError::Corrupt("a transaction panicked".into())))
    });
    match (result, ending) {
        (Ok(()), TransactionEnd::Commit) => execute_control(tx, "RELEASE work"),
        (Ok(()), TransactionEnd::Rollback) => roll_back_savepoint(tx, signals_before),
        (Err(error), _) => Err(roll_back_savepoint(tx, signals_before).err().unwrap_or(error)),
    }
}

/// Reverts the writes and the signals of one transaction of a group.
fn roll_back_savepoint(tx: &mut Tx, signals_before: usize) -> Result<()> {
    tx.signals.truncate(signals_before);
    execute_control(tx, "ROLLBACK TO work").and_then(|()| execute_control(tx, "RELEASE work"))
}

pub(super) fn execute_control(tx: &Tx, statement: &str) -> Result<()> {
    match &tx.conn {
        Conn::Sqlite(conn) => {
            let mut statement = conn.prepare_cached(statement).map_err(store_error)?;
            statement.execute([]).map(drop).map_err(store_error)
        }
        Conn::Postgres(_) => Err(StoreError::Corrupt("not a SQLite connection".into())),
    }
}

/// SQLite calls are synchronous, so a future over them is ready at its first poll.
fn poll_once<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    let mut future = std::pin::pin!(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => Err(StoreError::Corrupt("a transaction waited for something else".into())),
    }
}

pub(super) fn connect(path: &Path) -> Result<Connection> {
    let conn = Connection::open(path).map_err(store_error)?;
    conn.busy_timeout(std::time::Duration::from_millis(BUSY_MS)).map_err(store_error)?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS_CACHED);
    // Makes query plans depend on the schema alone. Otherwise SQLite prepares a statement again
    // whenever other values are bound to it, such as the limit of a page.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map_err(store_error)?;
    for (name, value) in SQLITE_PRAGMAS {
        conn.pragma_update(None, name, value).map_err(store_error)?;
    }
    Ok(conn)
}

pub(super) fn migrate(conn: &mut Connection, policy: SchemaPolicy) -> Result<()> {
    let version =
        conn.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(store_error)?;
    let oldest_writer = if StoredSchema::is_fenced(version) { oldest_writer(conn)? } else { 0 };
    let stored = StoredSchema { version, oldest_writer };
    for (step, sql) in stored.migrations(Dialect::Sqlite, policy)? {
        let tx = conn.transaction().map_err(store_error)?;
        tx.execute_batch(&sql).map_err(store_error)?;
        tx.pragma_update(None, "user_version", step).map_err(store_error)?;
        tx.commit().map_err(store_error)?;
    }
    Ok(())
}

/// Turns `$1`, which is a named parameter in SQLite, into the numbered parameter `?1`.
fn number_parameters(sql: &str) -> String {
    sql.replace('$', "?")
}

pub(super) fn query(conn: &Connection, sql: &str, values: &[Value]) -> Result<Vec<Row>> {
    let mut statement = conn.prepare_cached(&number_parameters(sql)).map_err(store_error)?;
    let width = statement.column_count();
    let mut rows = statement.query(rusqlite::params_from_iter(values)).map_err(store_error)?;
    let mut found = Vec::new();
    while let Some(row) = rows.next().map_err(store_error)? {
        let cells = (0..width).map(|index| row.get_ref(index).map_err(store_error).map(value));
        found.push(Row(cells.collect::<Result<_>>()?));
    }
    Ok(found)
}

pub(super) fn execute(conn: &Connection, sql: &str, values: &[Value]) -> Result<u64> {
    let mut statement = conn.prepare_cached(&number_parameters(sql)).map_err(store_error)?;
    let touched = statement.execute(rusqlite::params_from_iter(values)).map_err(store_error)?;
    Ok(touched as u64)
}

fn value(cell: ValueRef<'_>) -> Value {
    match cell {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(value) => Value::Int(value),
        // Farrier writes neither text that is not UTF-8 nor numbers with a fraction. They become
        // values of another type, so that only their own row cannot be decoded.
        ValueRef::Text(text) => match std::str::from_utf8(text) {
            Ok(text) => Value::Text(text.to_string()),
            Err(_) => Value::Bytes(text.to_vec()),
        },
        ValueRef::Blob(bytes) => Value::Bytes(bytes.to_vec()),
        ValueRef::Real(number) => Value::Text(number.to_string()),
    }
}

fn store_error(error: rusqlite::Error) -> StoreError {
    use rusqlite::ErrorCode::{ConstraintViolation, DiskFull, ReadOnly};
    match error.sqlite_error_code() {
        Some(ConstraintViolation) => StoreError::Conflict,
        Some(DiskFull) => StoreError::Unavailable("the disk is full; free some space".into()),
        Some(ReadOnly) => {
            StoreError::Unavailable("the database is read-only; make its directory writable".into())
        }
        Some(_) | None => StoreError::Unavailable(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::Transaction;
    use model::id::PlanId;
    use model::plan::{Plan, RunType, default_plan};
    use model::time::Timestamp;
    use rusqlite::StatementStatus;

    fn add_plan(id: &str, bytes: usize) -> Arc<dyn Job> {
        let (id, display_name) = (PlanId::trusted(id), "x".repeat(bytes));
        let plan = Plan { id, display_name, ..default_plan(RunType::Reboot).unwrap() };
        Transaction::new(plan, |plan, tx| Box::pin(tx.insert_plan(plan, Timestamp::default())))
    }

    async fn count_plans(db: Arc<Sqlite>) -> Result<usize> {
        let job = Transaction::new((), |(), tx| {
            std::thread::sleep(std::time::Duration::from_millis(2));
            Box::pin(tx.plans("", 10))
        });
        db.scan(job.clone(), ReadConsistency::Snapshot).await?;
        Ok(job.result()?.0.items.len())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_burst_of_scans_keeps_few_connections() {
        let dir = tempfile::tempdir().unwrap();
        let db =
            Sqlite::open(&dir.path().join("burst.db"), SchemaPolicy::Migrate, SignalBus::default())
                .unwrap();
        db.write(add_plan("p-1", 10), TransactionEnd::Commit).await.unwrap();
        let burst = (0..100).map(|_| tokio::spawn(count_plans(Arc::clone(&db))));
        for one in burst.collect::<Vec<_>>() {
            assert_eq!(one.await.unwrap(), Ok(1));
        }
        assert!((1..=READERS).contains(&db.readers.lock().unwrap().len()));
    }

    #[test]
    fn a_statement_is_prepared_once_for_all_values() {
        let mut conn = connect(Path::new(":memory:")).unwrap();
        migrate(&mut conn, SchemaPolicy::Migrate).unwrap();
        let page = "SELECT id FROM plans WHERE id > ?1 ORDER BY id LIMIT ?2";
        let mut statement = conn.prepare(page).unwrap();
        for limit in 1..4 {
            assert!(statement.query(("a", limit)).unwrap().next().unwrap().is_none());
        }
        assert_eq!(statement.get_status(StatementStatus::RePrepare), 0);
    }

    /// SQLite rolls back the whole transaction when the disk is full: the group fails, and the next
    /// transaction commits by itself.
    #[test]
    fn a_full_disk_rolls_back_the_group() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("farrier.db");
        let mut conn = connect(&path).unwrap();
        migrate(&mut conn, SchemaPolicy::Migrate).unwrap();
        let pages: i64 = conn.pragma_query_value(None, "page_count", |row| row.get(0)).unwrap();
        conn.pragma_update(None, "max_page_count", pages + 16).unwrap();
        let (sender, jobs) = channel();
        let mut answers = Vec::new();
        for job in [add_plan("a", 10), add_plan("b", 1_000_000), add_plan("c", 10)] {
            let (answer, answered) = oneshot::channel();
            let ending = TransactionEnd::Commit;
            sender.send(PendingTransaction { job, ending, result: None, answer }).unwrap();
            answers.push(answered);
        }
        drop(sender);
        run_writer(conn, &jobs, &SignalBus::default());
        let reported: Vec<_> =
            answers.iter_mut().map(|answer| answer.try_recv().unwrap()).collect();
        let gone = |reported: &Result<()>| matches!(reported, Err(StoreError::Unavailable(_)));
        assert!(gone(&reported[0]) && gone(&reported[1]) && reported[2].is_ok(), "{reported:?}");
        let all = "SELECT group_concat(id) FROM plans";
        let left: String = connect(&path).unwrap().query_one(all, [], |row| row.get(0)).unwrap();
        assert_eq!(left, "c");
    }
}
