//! `cargo xtask test`: all lints and tests, from a fresh clone. CI runs the same command.
//!
//! Lints and tests share one build: cargo starts clippy in place of rustc for our crates, so each
//! crate is compiled once. All test programs run even when one fails, and every failed test is
//! listed at the end.

use crate::shell::{self, Failure};
use crate::{buf, mutants, peers, postgres, python, tidy};
use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader};
use std::iter;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

pub const POSTGRES: &str = "FARRIER_TEST_POSTGRES";
const PYTHON: &str = "FARRIER_TEST_PYTHON";
const RERUN_HINT: &str = "run one test again with `cargo xtask test -- NAME`";

/// The whole suite. `filter` goes to the test programs; with one, the mutants are left out.
pub fn run(filter: &[&str]) -> Result<(), Failure> {
    stage("format", format)?;
    stage("tidy", tidy::run)?;
    stage("dependencies", dependencies)?;
    stage("proto files", buf::check)?;
    let programs = stage("build and lints", build)?;
    let peers = Peers::prepare()?;
    let passed = stage("tests", || run_programs(&programs, &peers, filter));
    drop(peers);
    let caught = match filter.is_empty() {
        true => stage("mutants", mutants::run),
        false => Ok(()),
    };
    passed.and(caught)?;
    println!("\nxtask test: everything passed");
    Ok(())
}

/// The checks before a commit: format, lints, and the tests of the model and of the engine, without
/// the crash matrix.
pub fn run_quick() -> Result<(), Failure> {
    stage("format", format)?;
    stage("tidy", tidy::run)?;
    stage("lints", clippy)?;
    stage("tests", || {
        let mut suite = shell::cargo(["test", "--locked", "--no-fail-fast"]);
        suite.args(["-p", "farrier-model", "-p", "farrier-engine", "--", "--skip", "matrix"]);
        run_tests(&mut suite)
    })?;
    println!("\nxtask test --quick: passed; `cargo xtask test` runs the rest");
    Ok(())
}

/// The programs that tests run against: installed or started, and named to the tests by variables.
pub struct Peers {
    variables: Vec<(&'static str, PathBuf)>,
    postgres: String,
    /// The private server, stopped when this value is dropped.
    _cluster: Option<postgres::Cluster>,
}

impl Peers {
    pub fn prepare() -> Result<Self, Failure> {
        let python = stage("python client", || python::find_or_make(&target()))?;
        stage("packages", peers::packages::find_or_install)?;
        let ipmi_sim = stage("ipmi_sim", peers::ipmi_sim::find_or_install)?;
        let sushy = stage("sushy", || peers::sushy::find_with_firmware(&target()))?;
        let oidc_provider =
            stage("oidc-provider", || peers::oidc_provider::find_or_install(&target()))?;
        let sshd = stage("sshd", peers::sshd::find_or_install)?;
        let (postgres, _cluster) = stage("postgresql", database)?;
        let named = [
            (PYTHON, python),
            (peers::ipmi_sim::VARIABLE, ipmi_sim),
            (peers::sushy::VARIABLE, sushy),
            (peers::oidc_provider::VARIABLE, oidc_provider),
        ];
        let found = named.into_iter().filter_map(|(name, path)| Some((name, path?)));
        Ok(Self { variables: found.chain(sshd).collect(), postgres, _cluster })
    }

    /// Passes the paths of the peers to the tests that this command runs.
    pub fn set_variables(&self, command: &mut Command) {
        // A variable of the caller may name a peer that does not exist.
        command.env_remove(PYTHON).env("RUST_BACKTRACE", "1").env(POSTGRES, &self.postgres);
        command.envs(self.variables.iter().map(|(name, path)| (*name, path)));
    }
}

/// A compiled test program, and the folder of its package: cargo would run it there.
#[derive(Debug, PartialEq, Eq)]
pub struct TestProgram {
    path: PathBuf,
    package: PathBuf,
}

impl TestProgram {
    /// The program of one of cargo's messages, if the message is about a test program.
    fn parse(message: &str) -> Option<Self> {
        // The target has a field of this name too: whether it has tests.
        let profile = message.split_once("\"profile\":{")?.1.split_once('}')?.0;
        let is_test = profile.contains("\"test\":true");
        let path = PathBuf::from(text_after(message, "\"executable\":\"").filter(|_| is_test)?);
        let manifest = PathBuf::from(text_after(message, "\"manifest_path\":\"")?);
        Some(Self { path, package: manifest.parent()?.to_path_buf() })
    }

    /// The name of the test target.
    pub fn name(&self) -> &str {
        file_stem(&self.path).unwrap_or_default()
    }

    fn is_simulated(&self) -> bool {
        self.name() == SIMULATED
    }

    /// The message of a failure with the name of the program.
    fn blame(&self, failure: &Failure) -> String {
        format!("{}: {}", self.name(), failure.message)
    }

    pub fn command(&self, peers: &Peers, filter: &[&str]) -> Command {
        let mut command = match self.is_simulated() {
            true => Command::new("nice"),
            false => Command::new(&self.path),
        };
        if self.is_simulated() {
            command.args(["-n", "10"]).arg(&self.path);
        }
        command.args(filter).current_dir(&self.package).env("CARGO_MANIFEST_DIR", &self.package);
        peers.set_variables(&mut command);
        command
    }
}

/// The program of the crash matrix. It computes for minutes in simulated time.
const SIMULATED: &str = "engine";

/// Runs the programs in two lanes, because most of them wait more than they compute. The second
/// lane begins with the crash matrix, which never waits and therefore has the lower priority, and
/// then takes programs from the end of the list. Its output follows that of the first lane.
pub fn run_programs(
    programs: &[TestProgram],
    peers: &Peers,
    filter: &[&str],
) -> Result<(), Failure> {
    let (simulated, others): (Vec<_>, Vec<_>) =
        programs.iter().partition(|program| program.is_simulated());
    let queue = Mutex::new(VecDeque::from(others));
    let take = |end: fn(&mut VecDeque<_>) -> Option<_>| {
        end(&mut queue.lock().unwrap_or_else(PoisonError::into_inner))
    };
    thread::scope(|scope| {
        let second = scope.spawn(|| {
            let rest = iter::from_fn(|| take(VecDeque::pop_back));
            let lane = simulated.into_iter().chain(rest);
            lane.map(|one: &TestProgram| (one, one.command(peers, filter).output())).collect()
        });
        let first = iter::from_fn(|| take(VecDeque::pop_front)).filter_map(|one| {
            println!("\n     Running {}", one.path.display());
            run_tests(&mut one.command(peers, filter)).err().map(|failure| one.blame(&failure))
        });
        let mut failures: Vec<String> = first.collect();
        let second: Vec<(&TestProgram, io::Result<Output>)> = match second.join() {
            Ok(outputs) => outputs,
            Err(_) => return Err(Failure::new("a lane panicked", RERUN_HINT)),
        };
        for (program, output) in second {
            println!("\n     Running {}", program.path.display());
            let output = output.map_err(|error| Failure::new(error.to_string(), RERUN_HINT))?;
            let text = String::from_utf8_lossy(&output.stdout);
            let ran = report_tests(text.lines().map(str::to_owned), || Ok(output.status));
            failures.extend(ran.err().map(|one| program.blame(&one)));
        }
        match failures.is_empty() {
            true => Ok(()),
            false => Err(Failure::new(failures.join("\n"), RERUN_HINT)),
        }
    })
}

/// Runs a test program or cargo, passes its output on, and names every test that failed.
pub fn run_tests(suite: &mut Command) -> Result<(), Failure> {
    let started = suite.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let mut child = started.map_err(|error| Failure::new(error.to_string(), RERUN_HINT))?;
    let output = child.stdout.take().into_iter().flat_map(|out| BufReader::new(out).lines());
    report_tests(output.map_while(Result::ok), || child.wait())
}

/// Prints the lines of test programs. `end` returns the exit status after the last line.
fn report_tests(
    lines: impl Iterator<Item = String>,
    end: impl FnOnce() -> io::Result<ExitStatus>,
) -> Result<(), Failure> {
    let mut failed = Vec::new();
    for line in lines {
        println!("{line}");
        failed.extend(failed_test(&line).map(str::to_owned));
    }
    let status = end().map_err(|error| Failure::new(error.to_string(), RERUN_HINT))?;
    if status.success() {
        return Ok(());
    }
    let count = failed.len();
    Err(Failure::new(format!("{count} tests failed ({status}): {}", failed.join(", ")), RERUN_HINT))
}

/// The name in a line of the test runner that reports a failed test.
fn failed_test(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?.strip_suffix(" ... FAILED")
}

/// Runs a stage, and prints its name and duration.
pub fn stage<T>(name: &str, work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    println!("\n== {name}");
    let started = Instant::now();
    let result = work();
    let outcome = if result.is_ok() { "done" } else { "FAILED" };
    println!("-- {name}: {outcome} in {:.1} s", started.elapsed().as_secs_f64());
    result
}

fn format() -> Result<(), Failure> {
    if !shell::succeeds(&mut shell::cargo(["fmt", "--version"]))
        || !shell::succeeds(&mut shell::cargo(["clippy", "--version"]))
    {
        let next =
            "install rustfmt and clippy for this toolchain (`rustup component add rustfmt clippy`)";
        shell::run(Command::new("rustup").args(["component", "add", "rustfmt", "clippy"]), next)?;
    }
    shell::run(&mut shell::cargo(["fmt", "--all", "--check"]), "run `cargo fmt --all`")
}

const LINTS: &str =
    "fix what is shown above; a change of Cargo.toml needs its Cargo.lock committed";

/// A cargo command that compiles our crates with clippy in place of rustc.
fn linted<const N: usize>(arguments: [&str; N]) -> Command {
    let mut command = shell::cargo(arguments);
    // `cargo clippy -- -D warnings` hands its lint levels to the compiler in this way.
    command.env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver");
    command.env("CLIPPY_ARGS", "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__");
    command
}

/// Builds every test program, the benchmarks and the examples. Returns the programs to run.
pub fn build() -> Result<Vec<TestProgram>, Failure> {
    let mut tests = linted(["test", "--workspace", "--locked", "--no-run"]);
    let messages =
        shell::read_output(tests.arg("--message-format=json-render-diagnostics"), LINTS)?;
    // `cargo test` builds only what it would run.
    let mut others = linted(["test", "--workspace", "--locked", "--no-run"]);
    shell::run(others.args(["--benches", "--test", "vm", "--test", "soak"]), LINTS)?;
    Ok(messages.lines().filter_map(TestProgram::parse).collect())
}

/// Lints without code generation, for the quick checks.
fn clippy() -> Result<(), Failure> {
    let mut clippy = shell::cargo(["clippy", "--workspace", "--all-targets", "--locked"]);
    shell::run(clippy.args(["--", "-D", "warnings"]), LINTS)
}

/// The advisories need a database from the network. If it cannot be fetched, only the other checks
/// run.
fn dependencies() -> Result<(), Failure> {
    if shell::find("cargo-deny").is_none() {
        println!("cargo deny: not installed, skipped (cargo install --locked cargo-deny)");
        return Ok(());
    }
    let next = "replace the dependency, or change deny.toml and say why there";
    if shell::succeeds(&mut shell::cargo(["deny", "fetch", "db"])) {
        return shell::run(&mut shell::cargo(["deny", "check"]), next);
    }
    println!("cargo deny: advisories skipped, their database could not be fetched");
    shell::run(&mut shell::cargo(["deny", "check", "licenses", "bans", "sources"]), next)
}

/// The path in cargo's message about the program of this name.
pub fn executable(messages: &str, name: &str) -> Option<PathBuf> {
    messages.lines().find_map(|message| {
        let path = PathBuf::from(text_after(message, "\"executable\":\"")?);
        (path.file_stem()? == name || file_stem(&path)? == name).then_some(path)
    })
}

/// The text between a key of a JSON message and the next quote.
fn text_after<'a>(message: &'a str, key: &str) -> Option<&'a str> {
    Some(message.split_once(key)?.1.split_once('"')?.0)
}

/// The name of a test program without the hash that cargo appends.
fn file_stem(path: &Path) -> Option<&str> {
    path.file_stem()?.to_str()?.rsplit_once('-').map(|(name, _)| name)
}

pub fn target() -> PathBuf {
    let named = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    shell::root().join(named)
}

/// The URL of the caller's server, or of a private one, which stops when the second value is
/// dropped.
pub fn database() -> Result<(String, Option<postgres::Cluster>), Failure> {
    if let Ok(url) = std::env::var(POSTGRES) {
        println!("using the server named by {POSTGRES}");
        return Ok((url, None));
    }
    let tools = postgres::Tools::find_or_install()?;
    let cluster = postgres::Cluster::start(&tools)?;
    println!("{POSTGRES}={}", cluster.url());
    Ok((cluster.url(), Some(cluster)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_binary_is_where_cargo_says() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","target":{"kind":["lib"],"name":"model"},"executable":null}"#,
            "\n",
            r#"{"reason":"compiler-artifact","target":{"kind":["bin"],"name":"other"},"executable":"/t/debug/other"}"#,
            "\n",
            r#"{"reason":"compiler-artifact","target":{"kind":["bin"],"name":"farrier"},"executable":"/t/debug/farrier"}"#,
            "\n",
            r#"{"reason":"build-finished","success":true}"#,
        );
        assert_eq!(executable(messages, "farrier"), Some(PathBuf::from("/t/debug/farrier")));
        assert_eq!(executable(r#"{"reason":"build-finished","success":true}"#, "farrier"), None);
    }

    #[test]
    fn test_programs_are_found_in_messages() {
        let message = |profile: &str, path: &str| {
            format!(
                r#"{{"manifest_path":"/w/engine/Cargo.toml","profile":{{{profile}}},"executable":{path}}}"#
            )
        };
        let found = TestProgram::parse(&message(r#""test":true"#, r#""/t/deps/engine-1f""#));
        let found = found.expect("a test program");
        assert_eq!(found.package, PathBuf::from("/w/engine"));
        assert!(found.is_simulated());
        assert_eq!(TestProgram::parse(&message(r#""test":false"#, r#""/t/farrier""#)), None);
        assert_eq!(TestProgram::parse(&message(r#""test":true"#, "null")), None);
    }

    #[test]
    fn a_failed_test_is_named() {
        assert_eq!(failed_test("test crash::kill_nine ... FAILED"), Some("crash::kill_nine"));
        assert_eq!(failed_test("test crash::kill_nine ... ok"), None);
        assert_eq!(failed_test("test result: FAILED. 1 passed; 1 failed"), None);
    }

    #[test]
    fn a_stage_hands_on_what_it_made() {
        assert_eq!(stage("sample", || Ok(3)).unwrap(), 3);
        assert!(stage::<()>("sample", || Err(Failure::new("no", "yes"))).is_err());
    }
}
