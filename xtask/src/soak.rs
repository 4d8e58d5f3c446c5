//! `cargo xtask soak`: tests that take too long for every change.
//!
//! Other threads keep every core busy while the whole suite runs once and the test programs that
//! wait for processes, peers or databases run several times: a test that depends on the speed of
//! the host fails here. Then come the attack of a page in a real browser, many idle connections and
//! watches, the fuzz targets, and the chaos scenarios for some minutes.

use crate::chaos;
use crate::fuzz;
use crate::peers::chromium;
use crate::shell::{self, Failure};
use crate::test::{self, Peers, stage};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const ROUNDS: u32 = 10;
/// Spinning threads for each core: the tests get about a third of the machine.
const SPINNERS_PER_CORE: usize = 2;

/// The test programs that depend on real time.
const REAL_TIME_TESTS: [&str; 6] = ["cli", "deploy", "engine", "node", "peers", "suite"];

/// The options of the command line.
pub struct SoakOptions {
    rounds: u32,
    chaos: chaos::ChaosOptions,
}

impl SoakOptions {
    pub fn parse(words: &[&str]) -> Result<Self, Failure> {
        let next = "`cargo xtask soak --rounds 10 --seed 7 --minutes 5`; each may be left out";
        let Some(at) = words.iter().position(|name| *name == "--rounds") else {
            return Ok(Self { rounds: ROUNDS, chaos: chaos::ChaosOptions::parse(words)? });
        };
        let rounds = words.get(at + 1).and_then(|value| value.parse().ok());
        let rounds = rounds.ok_or_else(|| Failure::new("--rounds needs a whole number", next))?;
        let others = [&words[..at], &words[at + 2..]].concat();
        Ok(Self { rounds, chaos: chaos::ChaosOptions::parse(&others)? })
    }
}

pub fn run(options: &SoakOptions) -> Result<(), Failure> {
    let peers = Peers::prepare()?;
    let programs = stage("build and lints", test::build)?;
    let mut failures = Vec::new();
    under_load(|| {
        let whole = "the whole suite";
        let ran = stage(whole, || test::run_programs(&programs, &peers, &[]));
        failures.extend(ran.err().map(|failure| format!("{whole}: {failure}")));
        for round in 1..=options.rounds {
            for program in programs.iter().filter(|one| REAL_TIME_TESTS.contains(&one.name())) {
                let name = format!("round {round} of {}: {}", options.rounds, program.name());
                // These run in simulated time: load cannot change them.
                let mut tests = program.command(&peers, &["--skip", "matrix", "--skip", "chaos"]);
                let ran = stage(&name, || test::run_tests(&mut tests));
                failures.extend(ran.err().map(|failure| format!("{name}: {failure}")));
            }
        }
    });
    let ran = stage("browser and load", || run_browser_and_load(&peers));
    failures.extend(ran.err().map(|failure| format!("browser and load: {failure}")));
    drop(peers);
    let ran = stage("fuzz", || fuzz::run(&fuzz::FuzzOptions::default()));
    failures.extend(ran.err().map(|failure| format!("fuzz: {failure}")));
    if !failures.is_empty() {
        return Err(Failure::new(
            failures.join("\n"),
            "mend the tests; loaded machines are normal",
        ));
    }
    stage("chaos", || chaos::run(&options.chaos))
}

/// The tests that the suite leaves out: they need a browser, or thousands of connections. They run
/// without other load, because they print figures.
fn run_browser_and_load(peers: &Peers) -> Result<(), Failure> {
    let browser = chromium::find_or_install()?;
    let mut tests = shell::cargo(["test", "--locked", "-p", "farrier", "--test", "soak"]);
    tests.args(["--", "--nocapture", "--test-threads=1"]);
    peers.set_variables(&mut tests);
    test::run_tests(tests.env(chromium::VARIABLE, browser))
}

/// Does the work while other threads keep every core busy.
fn under_load(work: impl FnOnce()) {
    let ended = AtomicBool::new(false);
    let cores = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..cores * SPINNERS_PER_CORE {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        // Dropped even when the work panics: the scope waits for the spinners.
        let _stop = StopOnDrop(&ended);
        work();
    });
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_taken_out_of_the_options_of_chaos() {
        assert_eq!(SoakOptions::parse(&[]).unwrap().rounds, ROUNDS);
        let options =
            SoakOptions::parse(&["--seed", "7", "--rounds", "2", "--minutes", "1"]).unwrap();
        assert_eq!(options.rounds, 2);
        for words in [&["--rounds"][..], &["--rounds", "x"], &["--hours", "1"]] {
            assert!(SoakOptions::parse(words).is_err(), "{words:?}");
        }
    }

    #[test]
    fn the_load_ends_with_the_work() {
        let mut done = false;
        under_load(|| done = true);
        assert!(done);
    }
}
