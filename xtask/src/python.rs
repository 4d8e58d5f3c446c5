//! Python environments for the tests: for a client that learns the API only from server reflection,
//! and for peers that are written in Python. They are in the target directory, are created once,
//! and are recreated when their packages change.

use crate::shell::{self, Failure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The gRPC client.
const CLIENT: PythonEnvironment = PythonEnvironment {
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

/// Packages in their own directory.
pub struct PythonEnvironment {
    pub name: &'static str,
    pub packages: &'static [&'static str],
    /// The imports that must succeed.
    pub imports: &'static str,
}

/// The interpreter's path; none if it cannot be installed here.
pub fn find_or_make(target: &Path) -> Result<Option<PathBuf>, Failure> {
    Ok(CLIENT.find_or_make(target)?.map(|folder| folder.join("bin/python")))
}

impl PythonEnvironment {
    /// The environment's directory; none if it cannot be created here. On CI that is a failure,
    /// because otherwise a test could silently stop running there.
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
            shell::run(&mut shell::administrator_command(INSTALL).ok_or_else(absent)?, next)?;
            create(folder, next)?;
        }
        let mut pip = Command::new(folder.join("bin/python"));
        // Prebuilt packages only: compiling gRPC's C++ core would take longer than all tests.
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
        let written = fs::write(packages_mark(folder), self.packages.join("\n"));
        written.map_err(|error| {
            Failure::new(
                format!("{}: {error}", packages_mark(folder).display()),
                "check the target folder",
            )
        })
    }

    /// True if the environment was completed with the current packages and its interpreter still
    /// starts: the target directory may outlive the Python that created it.
    fn is_ready(&self, folder: &Path) -> bool {
        fs::read_to_string(packages_mark(folder))
            .is_ok_and(|packages| packages == self.packages.join("\n"))
            && shell::succeeds(Command::new(folder.join("bin/python")).args(["-c", self.imports]))
    }
}

fn create(folder: &Path, next: &str) -> Result<(), Failure> {
    shell::run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(folder), next)
}

fn packages_mark(folder: &Path) -> PathBuf {
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
