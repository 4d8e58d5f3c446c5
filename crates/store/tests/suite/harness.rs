//! A new database for each test, on SQLite and on PostgreSQL.
//!
//! FARRIER_TEST_POSTGRES names the PostgreSQL server, `postgres://user@host:port`. Each test
//! creates its own database there and drops it at its end, even if the test fails.

use model::condition::{ConditionObservation, ConditionType};
use model::fault::{Fault, FaultCode};
use model::id::{MachineId, PlanId, RunId};
use model::machine::{Labels, Machine, MachineSpec};
use model::plan::{OnFailure, Params, RunStep, RunType};
use model::run::{ENGINE_VERSION, Failure, Run, RunSpec, Workflow};
use model::time::Timestamp;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use store::{
    Cause, ClaimOutcome, ClaimedObject, Cursor, Event, NewEvent, Options, Result, RunSettlement,
    SettledVersion, Store, Tx, TxFuture,
};
use tokio_postgres::NoTls;

const POSTGRES: &str = "FARRIER_TEST_POSTGRES";
/// The timeout of everything that a test waits for.
pub const TIMEOUT: Duration = Duration::from_secs(120);
const CONNECTIONS: usize = 10;

/// Runs each function as a test on both databases.
macro_rules! on_both {
    ($($name:ident),* $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                crate::harness::on_sqlite(super::$name).await;
            })*
        }
        on_postgres!($($name),*);
    };
}

/// Runs each function as a test on PostgreSQL only.
macro_rules! on_postgres {
    ($($name:ident),* $(,)?) => {
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                crate::harness::on_postgres(super::$name).await;
            })*
        }
    };
}

/// Reverts the schema migrations from 13 on.
pub const REVERT_SINCE_13: &str = "DROP TABLE step_durations; DROP TABLE refused_requests; \
     DROP TABLE node_names; ALTER TABLE identities DROP COLUMN version; \
     DROP TABLE oldest_writer; DROP TABLE set_aside; ALTER TABLE credentials DROP COLUMN policy; \
     ALTER TABLE credentials DROP COLUMN key_id; DROP TABLE seal_keys; DROP TABLE seal_masters; \
     DROP TABLE api_tokens; DROP TABLE roles; DROP TABLE role_bindings; DROP TABLE access_version; \
     DROP TABLE audit_entries; DROP TABLE audit_head; \
     DROP TABLE approval_policy; DROP TABLE approvals; \
     DROP TABLE notifiers; DROP TABLE dead_letters;";

/// Reverts the schema migrations of racks and of nodes, after those from 13 on.
pub const REVERT_RACKS: &str = "DROP INDEX machines_created; DROP INDEX machines_updated; \
     DROP TABLE inspections; DROP TABLE feeds; \
     ALTER TABLE replicas DROP COLUMN version; ALTER TABLE replicas DROP COLUMN heartbeat_at; \
     DROP TABLE nodes; DROP TABLE tasks; DROP TABLE site_answers; DROP INDEX machines_rack; ALTER TABLE machines DROP COLUMN rack_id; \
     DROP TABLE records; DROP TABLE firmware; DROP TABLE firmware_applied; DROP TABLE health; \
     CREATE TABLE runs_before (id TEXT NOT NULL PRIMARY KEY, \
     machine_id TEXT NOT NULL REFERENCES machines (id), request_id TEXT NOT NULL, \
     type TEXT NOT NULL, plan_id TEXT NOT NULL, spec TEXT NOT NULL, created_at BIGINT NOT NULL); \
     INSERT INTO runs_before SELECT id, machine_id, request_id, type, plan_id, spec, created_at \
     FROM runs; DROP TABLE runs; ALTER TABLE runs_before RENAME TO runs; \
     CREATE UNIQUE INDEX runs_request ON runs (machine_id, request_id); \
     CREATE INDEX runs_machine ON runs (machine_id, created_at, id);";

/// A transaction body; the variables in brackets are cloned into each attempt.
macro_rules! tx {
    ([$($captured:ident),*], |$tx:ident| $body:expr) => {{
        $(let $captured = $captured.clone();)*
        crate::harness::body(move |$tx| {
            $(let $captured = $captured.clone();)*
            Box::pin(async move { $body })
        })
    }};
}

/// The body of a transaction with its captured input.
pub type Body<T> = Box<dyn for<'a> Fn(&'a mut Tx) -> TxFuture<'a, T> + Send + Sync>;

pub fn body<T, F>(body: F) -> Body<T>
where
    F: for<'a> Fn(&'a mut Tx) -> TxFuture<'a, T> + Send + Sync + 'static,
{
    Box::new(body)
}

#[derive(Clone)]
pub struct Db {
    pub store: Store,
    pub options: Options,
}

pub async fn on_sqlite<F: Future<Output = ()> + Send + 'static>(body: fn(Db) -> F) {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let options = Options::Sqlite { path: folder.path().join("farrier.db") };
    let store = Store::open(&options).await.expect("a fresh database");
    body(Db { store, options }).await;
}

pub async fn on_postgres<F: Future<Output = ()> + Send + 'static>(body: fn(Db) -> F) {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let Ok(server) = std::env::var(POSTGRES) else {
        assert!(std::env::var_os("CI").is_none(), "this is CI, and {POSTGRES} is not set");
        println!("skipped: {POSTGRES} is not set; `cargo xtask test` sets it");
        return;
    };
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("farrier_test_{}_{number}", std::process::id());
    let server = server.trim_end_matches('/');
    execute_on_postgres(&format!("{server}/postgres"), &format!("CREATE DATABASE {name}")).await;
    let url = format!("{server}/{name}");
    // In its own task, so that the database is dropped even if the test fails.
    let ended = tokio::spawn(async move {
        let options = Options::Postgres { url, connections: CONNECTIONS, name: "test".into() };
        let store = Store::open(&options).await.expect("a fresh database");
        body(Db { store, options }).await;
    })
    .await;
    execute_on_postgres(
        &format!("{server}/postgres"),
        &format!("DROP DATABASE {name} WITH (FORCE)"),
    )
    .await;
    if let Err(error) = ended {
        std::panic::resume_unwind(error.into_panic());
    }
}

/// Executes a statement on a separate connection.
pub async fn execute_on_postgres(url: &str, statement: &str) {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("PostgreSQL");
    let pump = tokio::spawn(connection);
    client.batch_execute(statement).await.unwrap_or_else(|error| panic!("{statement}: {error}"));
    drop(client);
    pump.await.expect("no panic").expect("a clean end");
}

/// Waits for a future, with a timeout.
pub async fn within_timeout<T>(what: &str, wait: impl Future<Output = T>) -> T {
    match tokio::time::timeout(TIMEOUT, wait).await {
        Ok(value) => value,
        Err(_) => panic!("{what} did not come within {TIMEOUT:?}"),
    }
}

impl Db {
    pub fn is_sqlite(&self) -> bool {
        matches!(self.options, Options::Sqlite { .. })
    }

    /// Executes the statement of this database on a separate connection.
    pub async fn execute_sql(&self, on_sqlite: &str, on_postgres: &str) {
        match &self.options {
            Options::Sqlite { path } => {
                rusqlite::Connection::open(path).unwrap().execute_batch(on_sqlite).unwrap();
            }
            Options::Postgres { url, .. } => execute_on_postgres(url, on_postgres).await,
            Options::Memory => unreachable!("the suite is for databases that outlive a process"),
        }
    }

    pub fn write<T: Send + 'static>(&self, body: Body<T>) -> TxFuture<'static, T> {
        let store = self.store.clone();
        Box::pin(async move {
            within_timeout("a write", store.write("test", body, |body, tx| body(tx))).await
        })
    }

    pub fn dry_run<T: Send + 'static>(&self, body: Body<T>) -> TxFuture<'static, T> {
        Self { store: self.store.with_dry_run(true), ..self.clone() }.write(body)
    }

    pub fn read<T: Send + 'static>(&self, body: Body<T>) -> TxFuture<'static, T> {
        let store = self.store.clone();
        Box::pin(
            async move { within_timeout("a read", store.scan(body, |body, tx| body(tx))).await },
        )
    }

    /// Another store on the same database, as another replica has it.
    pub async fn open_another(&self) -> Self {
        let store = Store::open(&self.options).await.expect("the same database");
        Self { store, options: self.options.clone() }
    }

    /// Replaces the database by a dump of another schema version and opens it.
    pub async fn load_dump(&self, version: i64, on_sqlite: &str, on_postgres: &str) -> Self {
        let mut db = self.clone();
        if let Options::Sqlite { path } = &mut db.options {
            path.set_extension(format!("{version}.db"));
        }
        let empty = "DROP SCHEMA public CASCADE; CREATE SCHEMA public";
        db.execute_sql(on_sqlite, &format!("{empty}; {on_postgres}")).await;
        db.open_another().await
    }

    /// Reverts the database to the schema before racks and opens it again.
    pub async fn revert_racks(&self) -> Self {
        let on_sqlite = format!("{REVERT_SINCE_13} {REVERT_RACKS} PRAGMA user_version = 5");
        let on_postgres = format!(
            "{REVERT_SINCE_13} {REVERT_RACKS} DELETE FROM schema_version WHERE version > 5"
        );
        self.execute_sql(&on_sqlite, &on_postgres).await;
        self.open_another().await
    }

    pub async fn add_machine(&self, id: &str) -> Machine {
        let machine = machine(id);
        self.write(tx!([machine], |tx| tx.insert_machine(&machine, &event()))).await.unwrap();
        machine
    }

    pub async fn add_machines(&self, machines: Vec<Machine>) {
        let insert = tx!([machines], |tx| {
            for machine in &machines {
                tx.insert_machine(machine, &event())?;
            }
            Ok(())
        });
        self.write(insert).await.unwrap();
    }

    /// Adds a machine and an active run on it, due now.
    pub async fn add_run(&self, id: &str) -> Run {
        let machine = format!("m-{id}");
        self.add_machine(&machine).await;
        let run = run(id, &machine);
        self.insert_run(&run, None).await.unwrap();
        run
    }

    pub async fn insert_run(&self, run: &Run, owner: Option<&'static str>) -> Result<()> {
        let run = run.clone();
        self.write(tx!([run, owner], |tx| tx.insert_run(
            &run,
            owner.map_or(store::Enqueue::Now, store::Enqueue::Claimed),
            &event()
        )))
        .await
    }

    pub async fn run(&self, id: &RunId) -> Run {
        let found = self.read(tx!([id], |tx| tx.run(&id).await)).await.unwrap();
        found.unwrap_or_else(|| panic!("no {id}"))
    }

    pub async fn machine(&self, id: &MachineId) -> Machine {
        let found = self.read(tx!([id], |tx| tx.machine(&id).await)).await.unwrap();
        found.unwrap_or_else(|| panic!("no {id}"))
    }

    pub async fn claim(
        &self,
        owner: &'static str,
        now: Timestamp,
        limit: i64,
    ) -> Vec<ClaimedObject> {
        self.write(tx!([], |tx| tx.claim_due(owner, now, limit).await)).await.unwrap()
    }

    pub async fn settle(&self, settle: &RunSettlement) -> Result<SettledVersion> {
        self.write(tx!([settle], |tx| tx.settle(&settle))).await
    }

    /// Changes a run without a claim, as an operator does, with its event. Returns the new run.
    pub async fn update_unclaimed(&self, run: &Run, workflow: Workflow) -> Run {
        let mut run = run.clone();
        run.progress.workflow = workflow;
        let reported = tx!([run], |tx| {
            let version = tx.update_unclaimed(&run, at(50))?.version;
            let run = Run { version, ..run };
            tx.append_run_event(&run, &event())?;
            Ok(run)
        });
        self.write(reported).await.unwrap()
    }

    pub async fn events_after(&self, cursor: Cursor, limit: i64) -> Vec<Event> {
        self.read(tx!([], |tx| tx.events_after(cursor, limit).await)).await.unwrap()
    }

    /// The first `count` events. On PostgreSQL other tests on the same server may delay them,
    /// because an event is shown only when everything before it is final.
    pub async fn events(&self, count: usize) -> Vec<Event> {
        let mut all: Vec<Event> = Vec::new();
        let wait = async {
            while all.len() < count {
                let cursor = all.last().map(|event| event.cursor).unwrap_or_default();
                all.extend(self.events_after(cursor, 100).await);
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        within_timeout("the events", wait).await;
        assert_eq!(all.len(), count, "{all:#?}");
        all
    }
}

pub fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(1_700_000_000_000 + seconds * 1_000)
}

pub fn event() -> NewEvent {
    NewEvent {
        cause: Cause::Engine,
        actor: "test".into(),
        message: "because".into(),
        decided_by: "here".into(),
        at: at(1),
    }
}

pub fn machine(id: &str) -> Machine {
    Machine::new(MachineId::trusted(id), MachineSpec::default(), Labels::new(), at(0))
}

pub fn set_condition(machine: &mut Machine, condition: ConditionType, status: bool) {
    machine.learn(&[ConditionObservation::new(condition, status, "test")], at(2));
}

/// A run of two steps that has not started.
pub fn run(id: &str, machine: &str) -> Run {
    let step = |name: &str| RunStep {
        name: name.into(),
        timeout_seconds: 60,
        max_retries: 1,
        effect: model::effect::Effect::Ssh { command: "true".into(), destructive: false },
    };
    Run::new(RunSpec {
        id: RunId::trusted(id),
        target: model::target::TargetId::from_key(machine),
        parent_run: None,
        reports_to: None,
        held_targets: Vec::new(),
        request_id: format!("req-{id}"),
        run_type: RunType::Upgrade,
        plan_id: PlanId::trusted("plan-x"),
        steps: vec![step("one"), step("two")],
        params: Params::new(),
        initiator: "alice".into(),
        rerun_of: None,
        restart: None,
        on_failure: OnFailure::KeepPhase,
        engine_version: ENGINE_VERSION,
        created_at: at(0),
    })
}

/// The same run after its end.
pub fn ended(mut run: Run, workflow: Workflow) -> Run {
    run.progress.workflow = workflow;
    run.progress.finished_at = Some(at(40));
    if workflow.failed() {
        let fault = Fault::new(FaultCode::CommandFailed, "exit status 1");
        run.progress.failure = Some(Failure { fault, step: "one".into(), attempts: 1 });
    }
    run
}

pub fn settle_of(run: &Run, claimed: &ClaimedObject, hold: ClaimOutcome) -> RunSettlement {
    RunSettlement {
        run: run.clone(),
        epoch: claimed.epoch,
        wakes_handled: claimed.wakes_requested,
        claim: hold,
        now: at(20),
    }
}

/// A deterministic random source.
pub struct Dice(u64);

impl Dice {
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `sides`.
    pub fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % sides as u64) as usize
    }

    pub fn pick<'a, T>(&mut self, among: &'a [T]) -> &'a T {
        &among[self.roll(among.len())]
    }

    pub fn coin(&mut self) -> bool {
        self.roll(2) == 1
    }
}
