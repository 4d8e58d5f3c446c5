//! A browser, for the attack of a foreign page. It is large, so only `cargo xtask soak` installs
//! it.

use crate::shell::{self, Failure};
use std::path::PathBuf;

pub const VARIABLE: &str = "FARRIER_TEST_CHROMIUM";

const NAMES: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];
const NEXT: &str = "install Chromium (Debian: `apt-get install chromium`)";
const INSTALL: &str = "\
set -e
export DEBIAN_FRONTEND=noninteractive
apt-get update || echo 'some package lists could not be fetched; trying with the others'
apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends chromium";

/// The browser of this host, installed if it is missing.
pub fn find_or_install() -> Result<PathBuf, Failure> {
    let find = || NAMES.iter().find_map(|name| shell::find(name));
    if let Some(found) = find() {
        return Ok(found);
    }
    let absent = || Failure::new("Chromium was not found", NEXT);
    println!("Chromium is not installed; installing it from the system's packages");
    shell::run(&mut shell::administrator_command(INSTALL).ok_or_else(absent)?, NEXT)?;
    find().ok_or_else(absent)
}
