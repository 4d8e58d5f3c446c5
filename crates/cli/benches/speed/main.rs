//! The speed of Farrier: the real, durable binary with hardware that takes no time, compared with
//! the limits of the disk and of an empty server on the same cores in the same run. `cargo xtask
//! bench` builds it, measures the limits and starts this program.
//!
//! This is a program, not a test: a missed target is only printed. It fails only on a wrong result,
//! such as a run that did not succeed or an event that arrived twice.

#![allow(
    clippy::expect_used,
    clippy::too_many_lines,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a bench or an example stops by panicking"
)]

mod age;
mod bmcs;
mod client;
mod crash;
mod empty;
mod fanout;
mod fleet;
mod get;
mod growth;
mod idle;
mod limits;
mod list;
mod memory;
mod nodes;
mod peer;
mod process;
mod provision;
mod racks;
mod reaction;
mod rollout;
mod secured;
mod start;
mod table;
mod tally;
mod wire;

use clap::{Parser, ValueEnum};
use limits::Limits;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use table::Report;
use tempfile::TempDir;

pub type Wrong = Box<dyn std::error::Error + Send + Sync>;
pub type Outcome<T> = Result<T, Wrong>;

/// The fleet size for reads, memory and idle cost.
const MACHINES: usize = 20_000;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Store {
    Sqlite,
    Postgres,
}

impl Store {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgres",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Figure {
    /// Provisions per second: register, enter maintenance, reimage, exit maintenance
    Provision,
    /// Accepted StartRun requests per second
    Start,
    /// Time from acceptance to the start of the first step
    Reaction,
    /// GetMachine in a fleet of 20,000
    Get,
    /// ListMachines: the whole fleet in pages, and a filtered page
    List,
    /// Watch fan-out: every event to 200 watchers
    Fanout,
    /// Resident memory with 20,000 machines and 1,000 active runs
    Memory,
    /// CPU time of an idle fleet
    Idle,
    /// Recovery after a kill with 5,000 active runs
    Crash,
    /// Time per operation at 1,000, 10,000 and 100,000 machines
    Growth,
    /// Provisions on a database with many past runs
    Age,
    /// CPU time of polling 20,000 BMCs that answer at once
    Bmcs,
    /// Maintenance of 100 racks at once
    Racks,
    /// Onboarding of 2,000 nodes at once, and a reconcile pass over 10,000
    Nodes,
    /// The plan of a rollout over 20,000 machines
    Rollout,
    /// GetMachine and StartRun with TLS beside those without, and the cost of a token
    Secured,
}

impl Figure {
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().into())
    }
}

/// Measure how fast Farrier is, compared with the limits of the disk and of an empty server
#[derive(Parser)]
#[command(name = "cargo xtask bench")]
struct Args {
    /// Only these figures
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Figure>,
    /// Only these databases
    #[arg(long, value_enum, value_delimiter = ',')]
    store: Vec<Store>,
    /// Number of concurrent clients, for figures that vary it
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 32, 128])]
    clients: Vec<usize>,
    /// Duration of each load, in seconds
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Number of past runs in an aged database
    #[arg(long, default_value_t = 20_000)]
    past_runs: u64,
    /// Program that fills a database with past runs
    #[arg(long, hide = true)]
    fill: Option<PathBuf>,
    /// Results of the store's benchmark
    #[arg(long, hide = true)]
    limits: Option<PathBuf>,
    /// File for the rows as JSON
    #[arg(long, hide = true)]
    json: Option<PathBuf>,
    #[arg(long, hide = true)]
    serve_empty: bool,
    #[arg(long, hide = true)]
    serve_bmcs: Option<peer::Scheme>,
    /// Certificate of the BMCs; its key is in the same directory
    #[arg(long, hide = true)]
    certificate: Option<PathBuf>,
    /// Passed by cargo to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

/// The settings that every figure uses.
pub struct Bench {
    clients: Vec<usize>,
    span: Duration,
    limits: Limits,
    postgres: Option<String>,
    past_runs: u64,
    fill: Option<PathBuf>,
    /// The parent of all fleets' directories, kept until the end: a file system that has just
    /// deleted very many files is slow to create new ones.
    root: TempDir,
}

impl Bench {
    fn postgres(&self) -> Outcome<&str> {
        let missing = || Wrong::from("FARRIER_TEST_POSTGRES is not set; use `cargo xtask bench`");
        self.postgres.as_deref().ok_or_else(missing)
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let done = match (args.serve_empty, args.serve_bmcs) {
        (true, _) => empty::serve().await.map(|()| true),
        (false, Some(scheme)) => peer::serve(scheme, args.certificate).await.map(|()| true),
        (false, None) => run(args).await,
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: Args) -> Outcome<bool> {
    let mut report = Report::begin();
    let path = args.limits.ok_or("start it with `cargo xtask bench`")?;
    let limits = Limits::measure(&path, &args.clients, &mut report).await?;
    let postgres = std::env::var("FARRIER_TEST_POSTGRES").ok();
    let span = Duration::try_from_secs_f64(args.seconds)?;
    let (past_runs, fill) = (args.past_runs, args.fill);
    let root = tempfile::tempdir()?;
    let bench = Bench { clients: args.clients, span, limits, postgres, past_runs, fill, root };
    for figure in named_or_all(args.only) {
        for store in named_or_all(args.store.clone()) {
            if let Err(error) = measure(figure, &bench, store, &mut report).await {
                report.wrong(format!("{}, {}: {error}", figure.name(), store.as_str()));
            }
        }
    }
    report.finish(args.json.as_deref())
}

/// The named values, or all.
fn named_or_all<T: ValueEnum + Clone>(named: Vec<T>) -> Vec<T> {
    if named.is_empty() { T::value_variants().to_vec() } else { named }
}

async fn measure(figure: Figure, bench: &Bench, store: Store, report: &mut Report) -> Outcome<()> {
    match figure {
        Figure::Provision => provision::measure(bench, store, report).await,
        Figure::Start => start::measure(bench, store, report).await,
        Figure::Reaction => reaction::measure(bench, store, report).await,
        Figure::Get => get::measure(bench, store, report).await,
        Figure::List => list::measure(bench, store, report).await,
        Figure::Fanout => fanout::measure(bench, store, report).await,
        Figure::Memory => memory::measure(bench, store, report).await,
        Figure::Idle => idle::measure(bench, store, report).await,
        Figure::Crash => crash::measure(bench, store, report).await,
        Figure::Growth => growth::measure(bench, store, report).await,
        Figure::Age => age::measure(bench, store, report).await,
        Figure::Bmcs => bmcs::measure(bench, store, report).await,
        Figure::Racks => racks::measure(bench, store, report).await,
        Figure::Nodes => nodes::measure(bench, store, report).await,
        Figure::Rollout => rollout::measure(bench, store, report).await,
        Figure::Secured => secured::measure(bench, store, report).await,
    }
}
