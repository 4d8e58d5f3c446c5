//! `buf` checks the proto files: its lint, and that no change breaks a client that was generated
//! from the committed baseline. npm's package ships the program; it is installed into the target
//! directory once.

use crate::shell::{self, Failure};
use crate::test::target;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The package with its version: a newer lint may know new rules.
const PACKAGE: &str = "@bufbuild/buf@1.74.0";
const MODULE: &str = "crates/proto";
/// The compiled proto files that clients may rely on.
const BASELINE: &str = "crates/proto/baseline.binpb";
const INSTALL_NEXT: &str = "install npm (Debian: `apt-get install npm`)";
const LINT_NEXT: &str = "mend the proto files; crates/proto/buf.yaml has the rules";
const BREAKING_NEXT: &str = "take new field numbers and reserve the old ones. While nothing is released, \
                             `cargo xtask baseline` accepts the change";

/// Lints the proto files and compares them with the baseline. Where npm is missing, only CI fails.
pub fn check() -> Result<(), Failure> {
    let buf = match find_or_install(&target()) {
        Ok(buf) => buf,
        Err(failure) if std::env::var_os("CI").is_some() => return Err(failure),
        Err(failure) => {
            println!("buf: skipped\n  {failure}");
            return Ok(());
        }
    };
    shell::run(in_root(&buf).args(["lint", MODULE]), LINT_NEXT)?;
    let against = ["breaking", MODULE, "--against", BASELINE];
    shell::run(in_root(&buf).args(against), BREAKING_NEXT)
}

/// Makes the proto files as they are the baseline.
pub fn write_baseline() -> Result<(), Failure> {
    let buf = find_or_install(&target())?;
    // Comments are no part of what a client relies on.
    let build = ["build", MODULE, "--exclude-source-info", "--output", BASELINE];
    shell::run(in_root(&buf).args(build), LINT_NEXT)
}

fn in_root(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(shell::root());
    command
}

fn find_or_install(target: &Path) -> Result<PathBuf, Failure> {
    let home = target.join("buf").join(PACKAGE.replace(['@', '/'], "_"));
    let program = home.join("node_modules/.bin/buf");
    if !program.is_file() {
        let folder = home.display().to_string();
        let mut npm = in_root(Path::new("npm"));
        npm.args(["install", "--no-audit", "--no-fund", "--silent", "--prefix", &folder, PACKAGE]);
        shell::run(&mut npm, INSTALL_NEXT)?;
    }
    Ok(program)
}
