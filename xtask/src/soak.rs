//! `cargo xtask soak`: tests that take too long for every change.
//!
//! First the test programs that wait for processes, peers or databases run several times while
//! other threads keep every core busy: a test that depends on the speed of the host fails here.
//! Then the chaos scenarios run for some minutes.

use crate::chaos;
use crate::shell::Failure;
use crate::test::{self, Peers, stage};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const ROUNDS: u32 = 10;
/// Spinning threads for each core: the tests get about a third of the machine.
const SPINNERS_PER_CORE: usize = 2;

/// The test programs that depend on real time: package and test target.
const REAL_TIME_TESTS: [(&str, &str); 6] = [
    ("farrier", "cli"),
    ("farrier-agent", "deploy"),
    ("farrier-agent", "node"),
    ("farrier-engine", "engine"),
    ("farrier-providers", "peers"),
    ("farrier-store", "suite"),
];

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
    let mut failures = Vec::new();
    under_load(|| {
        for round in 1..=options.rounds {
            for (package, program) in REAL_TIME_TESTS {
                let name = format!("round {round} of {}: {program} of {package}", options.rounds);
                let mut suite = test::linted(["test", "--locked", "--no-fail-fast"]);
                peers.set_variables(suite.args(["-p", package, "--test", program]));
                // The crash matrix runs in simulated time: load cannot change it.
                suite.args(["--", "--skip", "matrix"]);
                let ran = stage(&name, || test::run_tests(&mut suite));
                failures.extend(ran.err().map(|failure| format!("{name}: {failure}")));
            }
        }
    });
    drop(peers);
    if !failures.is_empty() {
        return Err(Failure::new(
            failures.join("\n"),
            "mend the tests; loaded machines are normal",
        ));
    }
    stage("chaos", || chaos::run(&options.chaos))
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
