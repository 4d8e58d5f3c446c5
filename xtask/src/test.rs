//! `cargo xtask test`: runs all checks and tests from a fresh clone. The stages run from the
//! cheapest to the most expensive and stop at the first failure. CI runs the same command.

use crate::shell::{self, Failure};
use crate::{mutants, peers, postgres, python, tidy};
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

pub const POSTGRES: &str = "FARRIER_TEST_POSTGRES";
const PYTHON: &str = "FARRIER_TEST_PYTHON";

pub fn run(filter: &[&str]) -> Result<(), Failure> {
    stage("format", format)?;
    stage("tidy", tidy::run)?;
    stage("clippy", clippy)?;
    stage("dependencies", dependencies)?;
    let python = stage("python client", || python::find_or_make(&target()))?;
    let ipmi_sim = stage("ipmi_sim", peers::ipmi_sim::find_or_install)?;
    let sushy = stage("sushy", || peers::sushy::find_with_firmware(&target()))?;
    let sshd = stage("sshd", peers::sshd::find_or_install)?;
    let (url, cluster) = stage("postgresql", database)?;
    let mut suite = shell::cargo(["test", "--workspace", "--locked", "--"]);
    suite.args(filter).env("RUST_BACKTRACE", "1").env(POSTGRES, url);
    suite.envs(sshd);
    match python {
        Some(interpreter) => suite.env(PYTHON, interpreter),
        None => suite.env_remove(PYTHON),
    };
    suite.envs(ipmi_sim.map(|path| (peers::ipmi_sim::VARIABLE, path)));
    suite.envs(sushy.map(|path| (peers::sushy::VARIABLE, path)));
    let passed = stage("tests", || {
        shell::run(&mut suite, "run one test again with `cargo xtask test -- NAME`")
    });
    drop(cluster);
    passed?;
    if filter.is_empty() {
        stage("mutants", mutants::run)?;
    }
    println!("\nxtask test: everything passed");
    Ok(())
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

fn clippy() -> Result<(), Failure> {
    let mut clippy = shell::cargo([
        "clippy",
        "--workspace",
        "--all-targets",
        "--locked",
        "--",
        "-D",
        "warnings",
    ]);
    let next = "fix what is shown above; a change of Cargo.toml needs its Cargo.lock committed";
    shell::run(&mut clippy, next)?;
    // `--all-targets` excludes targets with `test = false`.
    let mut left_out = shell::cargo(["clippy", "-p", "farrier", "--test", "vm", "--locked"]);
    shell::run(left_out.args(["--", "-D", "warnings"]), next)
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

/// The path in cargo's message about the program of this name. The file name of a test ends with a
/// hash.
pub fn executable(messages: &str, name: &str) -> Option<PathBuf> {
    const KEY: &str = "\"executable\":\"";
    messages.lines().find_map(|message| {
        let (_, rest) = message.split_once(KEY)?;
        let path = PathBuf::from(rest.split_once('"')?.0);
        let stem = path.file_stem()?.to_str()?;
        let plain = stem.rsplit_once('-').map_or(stem, |(plain, _)| plain);
        [stem, plain].contains(&name).then_some(path)
    })
}

pub fn target() -> PathBuf {
    let named = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    shell::root().join(named)
}

/// The URL of the caller's server, or of our own, which runs as long as the second value lives.
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
    fn a_stage_hands_on_what_it_made() {
        assert_eq!(stage("sample", || Ok(3)).unwrap(), 3);
        assert!(stage::<()>("sample", || Err(Failure::new("no", "yes"))).is_err());
    }
}
