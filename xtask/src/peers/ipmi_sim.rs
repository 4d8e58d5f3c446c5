//! OpenIPMI's `ipmi_sim`, a management controller in software, and `ipmitool`, which Farrier itself asks through. The
//! tests start a simulator each; here both are only found, or installed.

use crate::shell::{self, Failure};
use std::path::PathBuf;

/// How the tests are told where it is.
pub const VARIABLE: &str = "FARRIER_TEST_IPMI_SIM";

const INSTALL: &str = "\
set -e
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq || echo 'some package lists could not be fetched; trying with the others'
apt-get install -y -qq --no-install-recommends openipmi ipmitool
";

const NEXT: &str =
    "install OpenIPMI's simulator and ipmitool (Debian: `apt-get install openipmi ipmitool`)";

/// The simulator to test with, or nothing when this computer cannot have one.
pub fn find_or_install() -> Result<Option<PathBuf>, Failure> {
    match find().map_or_else(install, Ok) {
        Ok(path) => Ok(Some(path)),
        Err(failure) if std::env::var_os("CI").is_some() => Err(failure),
        Err(failure) => {
            println!("ipmi_sim: skipped\n  {failure}");
            Ok(None)
        }
    }
}

fn find() -> Option<PathBuf> {
    shell::find("ipmitool")?;
    shell::find("ipmi_sim")
}

fn install() -> Result<PathBuf, Failure> {
    println!("ipmi_sim or ipmitool is not installed; installing both from the system's packages");
    let absent = || Failure::new("ipmi_sim and ipmitool were not found", NEXT);
    shell::run(&mut shell::administrator(INSTALL).ok_or_else(absent)?, NEXT)?;
    find().ok_or_else(|| {
        Failure::new("OpenIPMI was installed but ipmi_sim or ipmitool was not found", NEXT)
    })
}
