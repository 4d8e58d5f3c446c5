//! npm's oidc-provider, an OpenID Connect provider, in a folder of the target directory. The tests
//! start their own providers with `node`; this module only finds or installs the package.

use crate::shell::{self, Failure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The variable that gives the tests the path of the package's module.
pub const VARIABLE: &str = "FARRIER_TEST_OIDC_PROVIDER";

const PACKAGE: &str = "oidc-provider@9.13.3";
const FOLDER: &str = "oidc-provider";
const MODULE: &str = "node_modules/oidc-provider/lib/index.js";

const INSTALL: &str = "\
set -e
export DEBIAN_FRONTEND=noninteractive
apt-get update || echo 'some package lists could not be fetched; trying with the others'
apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends nodejs npm
";

const NEXT: &str = "install Node.js 20 or newer with npm (Debian: `apt-get install nodejs npm`)";

/// The module's path; none if it cannot be installed here. On CI that is a failure.
pub fn find_or_install(target: &Path) -> Result<Option<PathBuf>, Failure> {
    let folder = target.join(FOLDER);
    let made = if is_ready(&folder) { Ok(()) } else { install(&folder) };
    match made {
        Ok(()) => Ok(Some(folder.join(MODULE))),
        Err(failure) if std::env::var_os("CI").is_some() => Err(failure),
        Err(failure) => {
            println!("oidc-provider: skipped\n  {failure}");
            Ok(None)
        }
    }
}

/// True if this version was installed completely, and there is a program that runs it.
fn is_ready(folder: &Path) -> bool {
    let same = fs::read_to_string(mark(folder)).is_ok_and(|package| package == PACKAGE);
    same && folder.join(MODULE).is_file() && shell::find("node").is_some()
}

fn install(folder: &Path) -> Result<(), Failure> {
    if shell::find("node").is_none() || shell::find("npm").is_none() {
        println!("node or npm is not installed; installing them from the system's packages");
        let absent = || Failure::new("node and npm were not found", NEXT);
        shell::run(&mut shell::administrator_command(INSTALL).ok_or_else(absent)?, NEXT)?;
    }
    let unwritable = |error: std::io::Error| {
        Failure::new(format!("{}: {error}", folder.display()), "check the target folder")
    };
    fs::create_dir_all(folder).map_err(unwritable)?;
    let mut npm = Command::new("npm");
    npm.args(["install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix"]);
    npm.arg(folder).arg(PACKAGE);
    shell::run(&mut npm, "check that npm reaches its registry")?;
    fs::write(mark(folder), PACKAGE).map_err(unwritable)
}

fn mark(folder: &Path) -> PathBuf {
    folder.join("farrier-package.txt")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_its_mark_is_not_ready() {
        assert!(!is_ready(Path::new("no/such/folder")));
    }
}
