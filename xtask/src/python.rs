//! Python environments of the tests' own: for the client that talks to us as a stranger would, with nothing of ours but
//! what server reflection tells, and for peers that are written in Python. They live in the target folder, are made once,
//! and are made again when their packages change.

use crate::shell::{self, Failure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Speaks gRPC.
const CLIENT: Environment = Environment {
    name: "pyvenv",
    packages: &["grpcio", "grpcio-reflection", "protobuf"],
    imports: "import grpc, grpc_reflection",
};

const INSTALL: &str = "\
set -e
export DEBIAN_FRONTEND=noninteractive
apt-get update || echo 'some package lists could not be fetched; trying with the others'
apt-get install -y --no-install-recommends python3 python3-venv
";

/// Packages in a folder of their own.
pub struct Environment {
    pub name: &'static str,
    pub packages: &'static [&'static str],
    /// What must work in it.
    pub imports: &'static str,
}

/// The interpreter to test with, or nothing when this machine cannot have one.
pub fn find_or_make(target: &Path) -> Result<Option<PathBuf>, Failure> {
    Ok(CLIENT.find_or_make(target)?.map(|folder| folder.join("bin/python")))
}

impl Environment {
    /// The environment's folder, or nothing when this machine cannot have one. On CI that is a failure: a test that
    /// silently stops being run there would be noticed by nobody.
    pub fn find_or_make(&self, target: &Path) -> Result<Option<PathBuf>, Failure> {
        let folder = target.join(self.name);
        let made = if self.is_ready(&folder) { Ok(()) } else { self.make(&folder) };
        match made {
            Ok(()) => Ok(Some(folder)),
            Err(failure) if std::env::var_os("CI").is_some() => Err(failure),
            Err(failure) => {
                println!("{}: skipped\n  {failure}", self.name);
                Ok(None)
            }
        }
    }

    fn make(&self, folder: &Path) -> Result<(), Failure> {
        let next = "install python3 with its venv module (Debian: `apt-get install python3-venv`)";
        if create(folder, next).is_err() {
            println!(
                "python3 with venv is not installed; installing it from the system's packages"
            );
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
        shell::run(pip.args(self.packages), "check that pip reaches its package index")?;
        let written = fs::write(mark(folder), self.packages.join("\n"));
        written.map_err(|error| {
            Failure::new(format!("{}: {error}", mark(folder).display()), "check the target folder")
        })
    }

    /// Whether the folder was finished with today's packages and its interpreter still starts: a target folder outlives
    /// the Python it was made with.
    fn is_ready(&self, folder: &Path) -> bool {
        fs::read_to_string(mark(folder)).is_ok_and(|packages| packages == self.packages.join("\n"))
            && shell::succeeds(Command::new(folder.join("bin/python")).args(["-c", self.imports]))
    }
}

fn create(folder: &Path, next: &str) -> Result<(), Failure> {
    shell::run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(folder), next)
}

fn mark(folder: &Path) -> PathBuf {
    folder.join("farrier-packages.txt")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_its_mark_is_not_ready() {
        assert!(!CLIENT.is_ready(Path::new("no/such/folder")));
    }
}
