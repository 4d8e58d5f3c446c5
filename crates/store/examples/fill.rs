//! Fills a database with ended runs, so that a benchmark can compare an empty one with a full one:
//!
//! ```sh
//! cargo run --release -p farrier-store --example fill -- farrier-data/farrier.db 1000000
//! cargo run --release -p farrier-store --example fill -- postgres://user@host/name 1000000 1000 60
//! ```
//!
//! The arguments are the database, the number of runs, of machines (1,000), and the maximum age of
//! the runs in days (60). SQL makes the rows from one reimage of the model, without the engine and
//! without durability: after a crash, start over with an empty database. Stop the server first.

#![allow(
    clippy::expect_used,
    clippy::too_many_lines,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a bench or an example stops by panicking"
)]

use model::id::{MachineId, RunId};
use model::machine::{Labels, Machine, MachineSpec};
use model::plan::{Defaults, Params, RunType, default_plan};
use model::run::{ENGINE_VERSION, Progress, Run, RunSpec, StepPhase, Workflow};
use model::time::Timestamp;
use std::error::Error;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use store::{Cause, NewEvent, Options, Store, Tx};
use tokio_postgres::NoTls;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// The number of runs in one transaction.
const CHUNK: u64 = 5_000;
/// Placeholders in the template.
const RUN: &str = "op-@";
const MACHINE: &str = "@machine";
const REQUEST: &str = "@request";
const CREATED: Timestamp = Timestamp::from_micros(4_040_404_040_404_040);
/// The events of a run without its first and last.
const STEPS: u64 = 5;
const LOG_LINES: u64 = 5;
const DAY: Duration = Duration::from_secs(86_400);

struct FillOptions {
    database: String,
    runs: u64,
    machines: u64,
    days: u64,
}

impl FillOptions {
    fn read() -> Outcome<Self> {
        let mut words = std::env::args().skip(1);
        let usage = "usage: fill DATABASE RUNS [MACHINES] [DAYS]";
        let database = words.next().ok_or(usage)?;
        let runs = words.next().ok_or(usage)?.parse()?;
        let machines = words.next().map_or(Ok(1_000), |name| name.parse())?;
        let days = words.next().map_or(Ok(60), |name| name.parse())?;
        Ok(Self { database, runs, machines, days })
    }

    fn is_postgres(&self) -> bool {
        self.database.starts_with("postgres://")
    }

    fn options(&self) -> Options {
        if self.is_postgres() {
            let (url, name) = (self.database.clone(), "farrier/fill".into());
            Options::Postgres { url, connections: 4, name }
        } else {
            Options::Sqlite { path: PathBuf::from(&self.database) }
        }
    }
}

#[tokio::main]
async fn main() -> Outcome<()> {
    let requested = FillOptions::read()?;
    let started = Instant::now();
    let store = Store::open(&requested.options()).await?;
    let now =
        Timestamp::from_micros(SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros() as i64);
    let from = now - DAY * requested.days as u32;
    for first in (0..requested.machines).step_by(500) {
        let upto = requested.machines.min(first + 500);
        store
            .write("register", (first, upto, from), |(first, upto, from), tx| {
                Box::pin(register(tx, *first, *upto, *from))
            })
            .await?;
    }
    let writer = Writer::open(&requested).await?;
    let fill = Fill::new(&requested, from, now)?;
    for first in (0..requested.runs).step_by(CHUNK as usize) {
        let upto = requested.runs.min(first + CHUNK);
        writer.run(&fill.chunk(first, upto)).await?;
        if first % (CHUNK * 20) == 0 {
            println!("{upto} of {} runs after {:.0?}", requested.runs, started.elapsed());
        }
    }
    for statement in fill.finish() {
        writer.run(statement).await?;
    }
    writer.sync(&requested).await?;
    println!(
        "{} runs on {} machines in {:.0?}",
        requested.runs,
        requested.machines,
        started.elapsed()
    );
    Ok(())
}

fn machine_name(n: u64) -> String {
    format!("fill-{n:06}")
}

async fn register(tx: &mut Tx, first: u64, upto: u64, from: Timestamp) -> store::Result<()> {
    for n in first..upto {
        let machine = machine(&machine_name(n), from);
        let event = NewEvent {
            cause: Cause::Request,
            actor: "fill".into(),
            message: "registered".into(),
            decided_by: "fill".into(),
            at: from,
        };
        tx.insert_machine(&machine, &event)?;
    }
    Ok(())
}

fn machine(name: &str, at: Timestamp) -> Machine {
    let spec = MachineSpec { target_cluster_ref: "cluster-a".into(), ..MachineSpec::default() };
    Machine::new(MachineId::trusted(name), spec, Labels::new(), at)
}

/// The reimage that all runs are copies of, at its start and at its end.
fn template() -> Outcome<(Run, Progress)> {
    let plan = default_plan(RunType::Reimage).unwrap();
    let params = Params::from([("image_ref".to_string(), "ubuntu-2204".to_string())]);
    let steps = plan.resolve(&machine(MACHINE, CREATED), &params, &Defaults::default())?;
    let run = Run::new(RunSpec {
        id: RunId::trusted(RUN),
        target: model::target::TargetId::from_key(MACHINE),
        parent_run: None,
        reports_to: None,
        held_targets: Vec::new(),
        request_id: REQUEST.into(),
        run_type: RunType::Reimage,
        plan_id: plan.id,
        steps,
        params,
        initiator: "fill".into(),
        rerun_of: None,
        restart: None,
        on_failure: plan.on_failure,
        engine_version: ENGINE_VERSION,
        created_at: CREATED,
    });
    let mut done = run.progress.clone();
    done.workflow = Workflow::Completed;
    (done.started_at, done.finished_at) = (Some(CREATED), Some(CREATED));
    for step in &mut done.steps {
        (step.state, step.attempt) = (StepPhase::Succeeded, 1);
        (step.started_at, step.finished_at) = (Some(CREATED), Some(CREATED));
        step.message = "The machine is in cluster cluster-a".into();
    }
    Ok((run, done))
}

/// The statements, with all values filled in that are the same for all runs.
struct Fill {
    postgres: bool,
    machines: u64,
    from: i64,
    /// Microseconds between two runs.
    step: i64,
    spec: String,
    states: Vec<(&'static str, String)>,
}

impl Fill {
    fn new(requested: &FillOptions, from: Timestamp, now: Timestamp) -> Outcome<Self> {
        let (run, done) = template()?;
        let running = Progress { workflow: Workflow::Running, ..done.clone() };
        let mut states = vec![("pending", quoted(&serde_json::to_string(&run.progress)?))];
        for _ in 0..STEPS {
            states.push(("running", quoted(&serde_json::to_string(&running)?)));
        }
        states.push(("completed", quoted(&serde_json::to_string(&done)?)));
        Ok(Self {
            postgres: requested.is_postgres(),
            machines: requested.machines,
            from: from.as_micros(),
            step: (now.as_micros() - from.as_micros()) / requested.runs.max(1) as i64,
            spec: quoted(&serde_json::to_string(&run.spec)?),
            states,
        })
    }

    fn padded(&self, number: &str, width: usize) -> String {
        if self.postgres {
            format!("lpad(({number})::text, {width}, '0')")
        } else {
            format!("printf('%0{width}d', {number})")
        }
    }

    /// The ids and the time of run `n`, as columns.
    fn numbers(&self, first: u64, upto: u64) -> String {
        let (machines, from, step) = (self.machines, self.from, self.step);
        // Sorts before every id that contains a real time.
        let id = format!("'op-00' || {}", self.padded("n", 18));
        let machine = format!("'fill-' || {}", self.padded(&format!("n % {machines}"), 6));
        let last = upto - 1;
        let source = if self.postgres {
            format!("generate_series({first}::bigint, {last}::bigint) AS s(n)")
        } else {
            format!(
                "(WITH RECURSIVE s(n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM s \
                 WHERE n < {last}) SELECT n FROM s) s"
            )
        };
        format!(
            "(SELECT n, {id} AS id, {machine} AS machine, {from} + n * {step} AS at FROM {source}) t"
        )
    }

    fn chunk(&self, first: u64, upto: u64) -> String {
        let numbers = self.numbers(first, upto);
        let made = |template: &str| {
            format!(
                "replace(replace(replace(replace({template}, '{RUN}', t.id), '{MACHINE}', t.machine), \
                 '{REQUEST}', 'fill-' || t.n), '{}', CAST(t.at AS TEXT))",
                CREATED.as_micros()
            )
        };
        let (spec, done) = (made(&self.spec), made(&self.states[self.states.len() - 1].1));
        let states: Vec<String> = (self.states.iter().zip(1..))
            .map(|((name, body), version)| format!("({version}, '{name}', {body})"))
            .collect();
        let (states, body, last) = (states.join(", "), made("v.column3"), self.states.len());
        let lines: Vec<String> = (0..LOG_LINES).map(|line| format!("({})", line * 40)).collect();
        let data = if self.postgres { "convert_to(%, 'UTF8')" } else { "CAST(% AS BLOB)" };
        let data = data.replace('%', &format!("'{}'", "x".repeat(40)));
        let (lines, machines) = (lines.join(", "), self.machines);
        format!(
            "BEGIN;
             INSERT INTO runs (id, machine_id, request_id, type, plan_id, spec, created_at)
             SELECT t.id, t.machine, 'fill-' || t.n, 'REIMAGE', 'default-reimage', {spec}, t.at FROM {numbers};
             INSERT INTO subjects (id, kind, version, epoch, wakes_asked, wakes_handled, phase, workflow, state,
                 updated_at, ended_at)
             SELECT t.id, 'run', {last}, 1, 1, 1, 'SUCCEEDED', 'completed', {done}, t.at + 1000, t.at + 1000
             FROM {numbers};
             INSERT INTO events (ts, kind, object_id, version, word, cause, actor, message, decided_by, body)
             SELECT t.at + v.column1, 'run', t.id, v.column1, v.column2, 'engine', 'fill',
                 'step verify succeeded', 'crates/model/src/run/next.rs:100', {body}
             FROM {numbers} CROSS JOIN (VALUES {states}) v ORDER BY t.n, v.column1;
             INSERT INTO events (ts, kind, object_id, version, word, cause, actor, message, decided_by, body)
             SELECT t.at + v.column1, 'machine', t.machine, t.n / {machines} * 2 + v.column1, 'READY', 'engine', 'fill',
                 'held by ' || t.id, 'crates/engine/src/turn.rs:100', ''
             FROM {numbers} CROSS JOIN (VALUES (2), (3)) v ORDER BY t.n, v.column1;
             INSERT INTO logs (run_id, start, ts, step, attempt, stream, data)
             SELECT t.id, v.column1, t.at, 'verify', 1, 'stdout', {data}
             FROM {numbers} CROSS JOIN (VALUES {lines}) v;
             COMMIT;"
        )
    }

    /// Analyzes or checkpoints the database, then sets the versions of the machines.
    fn finish(&self) -> [&'static str; 2] {
        let analyze =
            if self.postgres { "VACUUM ANALYZE" } else { "PRAGMA wal_checkpoint(TRUNCATE)" };
        let versions = "UPDATE machines SET version = (SELECT e.version FROM events e \
                        WHERE e.object_id = machines.id ORDER BY e.version DESC LIMIT 1) \
                        WHERE id LIKE 'fill-%'";
        [analyze, versions]
    }
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// A connection without the store.
enum Writer {
    Sqlite(rusqlite::Connection),
    Postgres(tokio_postgres::Client),
}

impl Writer {
    async fn open(requested: &FillOptions) -> Outcome<Self> {
        if requested.is_postgres() {
            let (client, connection) = tokio_postgres::connect(&requested.database, NoTls).await?;
            tokio::spawn(connection);
            client.batch_execute("SET synchronous_commit = off").await?;
            return Ok(Self::Postgres(client));
        }
        let conn = rusqlite::Connection::open(&requested.database)?;
        conn.execute_batch("PRAGMA synchronous = OFF; PRAGMA cache_size = -400000;")?;
        Ok(Self::Sqlite(conn))
    }

    /// Syncs to the disk now, so that it does not disturb a measurement.
    async fn sync(&self, requested: &FillOptions) -> Outcome<()> {
        match self {
            Self::Sqlite(_) => std::fs::File::open(&requested.database)?.sync_all()?,
            Self::Postgres(client) => client.batch_execute("CHECKPOINT").await?,
        }
        Ok(())
    }

    async fn run(&self, sql: &str) -> Outcome<()> {
        match self {
            Self::Sqlite(conn) => conn.execute_batch(sql)?,
            Self::Postgres(client) => client.batch_execute(sql).await?,
        }
        Ok(())
    }
}
