//! `cargo xtask chaos`: random crash tests for any length of time. A scenario depends only on its
//! seed, so a failure after an hour is repeated in a second by the printed command.

use crate::shell::{self, Failure};
use crate::test::executable;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const TEST: &str = "chaos::whatever_happens_nothing_is_lost_and_nothing_happens_twice";
const MINUTES: u64 = 5;
/// The range of generated seeds, short enough to be read aloud.
const SEED_RANGE: u128 = 1_000_000_000;

/// The options of the command line.
#[derive(Debug, PartialEq, Eq)]
pub struct ChaosOptions {
    seed: Option<u64>,
    /// With zero, one scenario is run.
    minutes: u64,
}

impl ChaosOptions {
    pub fn parse(options: &[&str]) -> Result<Self, Failure> {
        let mut parsed = Self { seed: None, minutes: MINUTES };
        for pair in options.chunks(2) {
            match pair {
                ["--seed", value] => parsed.seed = Some(parse_number("--seed", value)?),
                ["--minutes", value] => parsed.minutes = parse_number("--minutes", value)?,
                [name @ ("--seed" | "--minutes")] => {
                    return Err(refusal(format!("{name} needs a number behind it")));
                }
                [other, ..] => return Err(refusal(format!("`{other}` is no option of chaos"))),
                [] => {}
            }
        }
        match parsed.minutes.checked_mul(60) {
            Some(_) => Ok(parsed),
            None => {
                Err(refusal(format!("{} minutes is longer than anybody lives", parsed.minutes)))
            }
        }
    }
}

fn parse_number(name: &str, value: &str) -> Result<u64, Failure> {
    let refused = |_| refusal(format!("{name} wants a whole number from 0, not `{value}`"));
    value.parse().map_err(refused)
}

fn refusal(message: String) -> Failure {
    Failure::new(message, "`cargo xtask chaos --seed 7 --minutes 5`; both may be left out")
}

/// Runs scenarios one after the other, and prints the command that repeats the failed one.
pub fn run(options: &ChaosOptions) -> Result<(), Failure> {
    let seed = options.seed.unwrap_or_else(random_seed);
    println!("chaos: --seed {seed} --minutes {}", options.minutes);
    // Not in release: the test profile optimizes the slow crates and still detects overflows.
    let mut build = shell::cargo(["test", "--workspace", "--locked", "--quiet", "--no-run"]);
    build.args(["--test", "engine", "--message-format=json-render-diagnostics"]);
    let messages = shell::read_output(&mut build, "fix the errors shown above")?;
    let tests = executable(&messages, "engine").ok_or_else(|| {
        let next = "see that crates/engine has a test target named engine";
        Failure::new("cargo named no executable for the tests of the engine", next)
    })?;
    let mut tests = Command::new(tests);
    tests.args([TEST, "--exact", "--nocapture"]).current_dir(shell::root().join("crates/engine"));
    tests.env("FARRIER_CHAOS_SEED", seed.to_string());
    tests.env("FARRIER_CHAOS_SECONDS", (options.minutes * 60).to_string());
    run_scenarios(tests, seed)
}

fn run_scenarios(mut tests: Command, first: u64) -> Result<(), Failure> {
    let failed = |error| Failure::new(format!("the scenarios: {error}"), "see the error above");
    let mut child = tests.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(failed)?;
    let mut last = first;
    if let Some(message) = child.stdout.take() {
        for line in BufReader::new(message).lines().map_while(Result::ok) {
            match parse_scenario_seed(&line) {
                Some(seed) => last = seed,
                None => println!("{line}"),
            }
        }
    }
    match child.wait().map_err(failed)?.success() {
        true => Ok(()),
        false => Err(Failure::new(
            format!("the scenario of seed {last} failed, as shown above"),
            format!("live it again: `cargo xtask chaos --seed {last} --minutes 0`"),
        )),
    }
}

/// The seed of a scenario that starts, if the line announces one.
fn parse_scenario_seed(line: &str) -> Option<u64> {
    // The name of the test precedes the first announcement on its line.
    line.rsplit_once("story --seed ")?.1.parse().ok()
}

fn random_seed() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_micros() % SEED_RANGE).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_options_may_be_left_out() {
        assert_eq!(ChaosOptions::parse(&[]).unwrap(), ChaosOptions { seed: None, minutes: 5 });
        let options = ChaosOptions::parse(&["--minutes", "0", "--seed", "7"]).unwrap();
        assert_eq!(options, ChaosOptions { seed: Some(7), minutes: 0 });
    }

    #[test]
    fn invalid_options_are_refused_with_a_reason() {
        let huge = u64::MAX.to_string();
        for (options, words) in [
            (vec!["--seed"], "--seed needs a number"),
            (vec!["--seed", "x"], "not `x`"),
            (vec!["--minutes", "-1"], "not `-1`"),
            (vec!["--minutes", &huge], "longer than"),
            (vec!["--hours", "1"], "`--hours` is no option"),
            (vec!["--seed", "1", "2"], "`2` is no option"),
        ] {
            let message = ChaosOptions::parse(&options).unwrap_err().to_string();
            assert!(message.contains(words) && message.contains("cargo xtask chaos"), "{message}");
        }
    }

    #[test]
    fn the_seed_of_a_scenario_is_parsed() {
        assert_eq!(parse_scenario_seed("story --seed 12"), Some(12));
        assert_eq!(parse_scenario_seed(&format!("test {TEST} ... story --seed 3")), Some(3));
        assert_eq!(parse_scenario_seed("--seed 12:"), None);
    }
}
