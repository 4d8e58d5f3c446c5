//! Development tasks as a program instead of shell scripts, so that they are typed, tested and the
//! same on every machine. It uses only the standard library: it must build in seconds, before
//! anything else is known to work.

mod bench;
mod book;
mod buf;
mod chaos;
mod conformance;
mod debian;
mod deploy_env;
mod fuzz;
mod json;
mod mutants;
mod peers;
mod postgres;
mod python;
mod reference;
mod sbom;
mod shell;
mod soak;
mod states;
mod test;
mod tidy;
mod transcripts;
mod tree;
mod vm;

use std::process::ExitCode;

const HELP: &str = "\
Development tasks of this repository.

Usage: cargo xtask COMMAND

Commands:
  test [-- FILTER…]  Check format, architecture, lints and dependencies, then run the whole suite.
                     What is missing (PostgreSQL, a Python environment, sshd) is installed or started first.
                     FILTER… goes to the test binaries, e.g. `cargo xtask test -- crash --nocapture`.
  test --quick       The checks before a commit: format, architecture, lints, the tests of the model, and of the
                     engine without the crash matrix.
  tidy               Only check the architecture and style rules.
  states             Generate docs/states from the lifecycles.
  reference          Generate docs/reference: the API, the command line, the configuration, the metrics and the
                     faults, from the code that defines them.
  transcripts        Write the golden transcripts of the command line: the help of every command, and the output of
                     the main commands.
  baseline           Accept the proto files as they are: later changes are checked against them.
  book               Build the book from docs/ into the folder `book` of the target directory, with a pinned mdBook.
                     The first time it installs mdBook into the target directory, which takes some minutes.
  mutants            Break the engine on purpose, in a copy, and check that the crash matrix fails. Part of `test`.
  chaos [--seed N] [--minutes M]
                     Run random crash scenarios, one after the other. A failure prints the command that repeats it.
                     Without options: any seed, 5 minutes; `--minutes 0` runs one scenario.
  soak [--rounds N] [--seed N] [--minutes M]
                     Tests that take too long for every change: the test programs that depend on real time, N times
                     (10) with every core busy; the attack of a page in a real browser; 2,000 idle
                     connections and 500 watches; the fuzz targets; then chaos.
  fuzz [--minutes M] [TARGET…]
                     Fuzz what parses untrusted input, M minutes (1) for each target. `fuzz/corpus` has the inputs
                     to begin with; the suite replays them.
  conformance --trees DIR
                     Read recorded BMCs with the Redfish client: each folder in DIR is one, with its resources
                     as redfish/v1/…/index.json below it. A line for each, and a failure for what cannot be read.
  sbom [--out FILE]  Write the bill of materials of both programs, as CycloneDX JSON: every package that is built
                     into them, with its license and checksum.
  bench [OPTION…]    Measure Farrier beside the limits of the disk and of an empty server. Narrow it with e.g.
                     `--only provision --store sqlite --clients 32 --seconds 3`; `--help` lists the figures.
  deploy-env --out DIR [--kernel cloud|generic] [--agent FILE] [--overlay DIR] [--manifest-key FILE]
                     Build the system that a machine boots to write an image to its disk: DIR/vmlinuz and DIR/initrd,
                     from Debian's packages and our agent. See docs/deploy-environment.md.
  test-vm [--agent FILE] [--run PROGRAM ARGUMENT… | -- FILTER…]
                     Register, netboot, reimage and reach virtual machines behind Redfish emulators, in a network
                     namespace. As root. `--run` starts a program there instead of the tests, e.g. `--run bash`.

Environment:
  FARRIER_TEST_POSTGRES  A PostgreSQL server to test against and to measure, instead of a private one for this run.
";

/// Exit codes: 0 success, 1 a finding or a failure, 2 an invalid command line.
fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        [] | ["help" | "--help" | "-h"] => {
            print!("{HELP}");
            Ok(())
        }
        ["test"] => test::run(&[]),
        ["test", "--quick"] => test::run_quick(),
        ["test", "--", filter @ ..] => test::run(filter),
        ["tidy"] => tidy::run(),
        ["states"] => states::run(),
        ["reference"] => reference::run(),
        ["transcripts"] => transcripts::run(),
        ["baseline"] => buf::write_baseline(),
        ["book"] => book::run(),
        ["mutants"] => mutants::run(),
        ["chaos", options @ ..] => match chaos::ChaosOptions::parse(options) {
            Ok(requested) => chaos::run(&requested),
            Err(refusal) => {
                eprintln!("xtask: {refusal}");
                return ExitCode::from(2);
            }
        },
        ["soak", options @ ..] => match soak::SoakOptions::parse(options) {
            Ok(options) => soak::run(&options),
            Err(refusal) => {
                eprintln!("xtask: {refusal}");
                return ExitCode::from(2);
            }
        },
        ["fuzz", options @ ..] => match fuzz::FuzzOptions::parse(options) {
            Ok(options) => fuzz::run(&options),
            Err(refusal) => {
                eprintln!("xtask: {refusal}");
                return ExitCode::from(2);
            }
        },
        ["conformance", "--trees", trees] => conformance::run(trees),
        ["bench", options @ ..] => bench::run(options),
        ["sbom"] => sbom::run(None),
        ["sbom", "--out", file] => sbom::run(Some(file)),
        ["test-vm", options @ ..] => match vm::VmTestOptions::parse(options) {
            Ok(requested) => vm::run(&requested),
            Err(refusal) => {
                eprintln!("xtask: {refusal}");
                return ExitCode::from(2);
            }
        },
        ["deploy-env", options @ ..] => match deploy_env::DeployEnvOptions::parse(options) {
            Ok(requested) => deploy_env::run(&requested),
            Err(refusal) => {
                eprintln!("xtask: {refusal}");
                return ExitCode::from(2);
            }
        },
        unknown => {
            eprintln!("xtask: `{}` is not a command\n\n{HELP}", unknown.join(" "));
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("\nxtask: {failure}");
            ExitCode::FAILURE
        }
    }
}
