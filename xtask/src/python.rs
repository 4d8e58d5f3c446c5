//! A Python that can speak gRPC, for the test that talks to us as a stranger would: with nothing of ours but what
//! server reflection tells. It lives in the target folder, is made once, and is made again when the packages change.

use crate::shell::{self, Failure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const PACKAGES: [&str; 3] = ["grpcio", "grpcio-reflection", "protobuf"];

const INSTALL: &str = "\
set -e
export DEBIAN_FRONTEND=noninteractive
apt-get update || echo 'some package lists could not be fetched; trying with the others'
apt-get install -y --no-install-recommends python3 python3-venv
";

/// The interpreter to test with, or nothing when this machine cannot have one. On CI that is a failure: a test that
/// silently stops being run there would be noticed by nobody.
pub fn find_or_make(target: &Path) -> Result<Option<PathBuf>, Failure> {
    let folder = target.join("pyvenv");
    let made = if is_ready(&folder) { Ok(()) } else { make(&folder) };
    match made {
        Ok(()) => Ok(Some(folder.join("bin/python"))),
        Err(failure) if std::env::var_os("CI").is_some() => Err(failure),
        Err(failure) => {
            println!("python client: skipped\n  {failure}");
            Ok(None)
        }
    }
}

fn make(folder: &Path) -> Result<(), Failure> {
    let next = "install python3 with its venv module (Debian: `apt-get install python3-venv`)";
    if create(folder, next).is_err() {
        println!("python3 with venv is not installed; installing it from the system's packages");
        let absent = || Failure::new("python3 with its venv module was not found", next);
        shell::run(&mut shell::administrator(INSTALL).ok_or_else(absent)?, next)?;
        create(folder, next)?;
    }
    let mut pip = Command::new(folder.join("bin/python"));
    // Built packages only: compiling gRPC's C++ core would take longer than everything else together.
    pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--only-binary",
        ":all:",
    ]);
    shell::run(pip.args(PACKAGES), "check that pip reaches its package index")?;
    let written = fs::write(mark(folder), PACKAGES.join("\n"));
    written.map_err(|error| {
        Failure::new(format!("{}: {error}", mark(folder).display()), "check the target folder")
    })
}

fn create(folder: &Path, next: &str) -> Result<(), Failure> {
    shell::run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(folder), next)
}

/// Whether the folder was finished with today's packages and its interpreter still starts: a target folder outlives
/// the Python it was made with.
fn is_ready(folder: &Path) -> bool {
    fs::read_to_string(mark(folder)).is_ok_and(|packages| packages == PACKAGES.join("\n"))
        && shell::succeeds(
            Command::new(folder.join("bin/python")).args(["-c", "import grpc, grpc_reflection"]),
        )
}

fn mark(folder: &Path) -> PathBuf {
    folder.join("farrier-packages.txt")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_its_mark_is_not_ready() {
        assert!(!is_ready(Path::new("no/such/folder")));
    }
}
