//! `cargo xtask states`: rewrites docs/states. A test of the model generates the pages, because
//! this crate has no dependencies; without `REWRITE` the same test compares them.

use crate::shell::{self, Failure};

/// The variable that makes the test write.
const REWRITE: &str = "FARRIER_REWRITE_STATES";

pub fn run() -> Result<(), Failure> {
    let mut test = shell::cargo(["test", "--quiet", "--locked", "-p", "farrier-model"]);
    test.args(["--test", "model", "states::"]).env(REWRITE, "1");
    shell::run(&mut test, "the lines above say which lifecycle cannot be drawn, and why")
}
