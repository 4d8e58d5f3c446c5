//! `cargo xtask states`: writes docs/states anew. The pages are drawn by a test of the model, because this crate has no
//! dependencies; the same test compares them when it is not told to write.

use crate::shell::{self, Failure};

/// Read by the test.
const REWRITE: &str = "FARRIER_REWRITE_STATES";

pub fn run() -> Result<(), Failure> {
    let mut test = shell::cargo(["test", "--quiet", "--locked", "-p", "farrier-model"]);
    test.args(["--test", "model", "states::"]).env(REWRITE, "1");
    shell::run(&mut test, "the lines above say which lifecycle cannot be drawn, and why")
}
