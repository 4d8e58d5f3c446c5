//! `cargo xtask transcripts`: rewrites the golden transcripts of the command line. A test of the
//! `farrier` package types the commands; without `REWRITE` the same test compares their output.

use crate::shell::{self, Failure};

/// The variable that makes the test write.
const REWRITE: &str = "FARRIER_REWRITE_TRANSCRIPTS";

pub fn run() -> Result<(), Failure> {
    let mut test = shell::cargo(["test", "--quiet", "--locked", "-p", "farrier"]);
    test.args(["--test", "cli", "transcripts::"]).env(REWRITE, "1");
    shell::run(&mut test, "the lines above say which command failed")
}
