//! OpenIPMI's `ipmi_sim`, a simulated management controller, and `ipmitool`, which Farrier itself
//! uses. The tests start their own simulators; this module only finds or installs both programs.

use crate::shell::{self, Failure};
use std::path::PathBuf;

/// The variable that gives the tests the path.
pub const VARIABLE: &str = "FARRIER_TEST_IPMI_SIM";

const INSTALL: &str = "\
set -e
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq || echo 'some package lists could not be fetched; trying with the others'
apt-get install -y -qq --no-install-recommends openipmi ipmitool
";

const NEXT: &str =
    "install OpenIPMI's simulator and ipmitool (Debian: `apt-get install openipmi ipmitool`)";

/// The simulator's path; none if it cannot be installed here.
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
    shell::run(&mut shell::administrator_command(INSTALL).ok_or_else(absent)?, NEXT)?;
    find().ok_or_else(|| {
        Failure::new("OpenIPMI was installed but ipmi_sim or ipmitool was not found", NEXT)
    })
}
