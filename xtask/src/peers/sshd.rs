//! OpenSSH's server, and busybox for minimal hosts. Only the programs are needed: the tests start
//! their own servers on loopback, with their own keys. The service of the Debian package is not
//! started.

use crate::shell::{self, Failure};
use std::path::PathBuf;

pub const SSHD: &str = "FARRIER_TEST_SSHD";
pub const BUSYBOX: &str = "FARRIER_TEST_BUSYBOX";

/// Directories of system programs that may not be in PATH.
const FOLDERS: [&str; 5] = ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/sbin", "/bin"];

/// Installs a policy-rc.d only if there is none, and only while packages are being unpacked.
const INSTALL: &str = "\
set -e
export DEBIAN_FRONTEND=noninteractive
policy=/usr/sbin/policy-rc.d
if [ ! -e \"$policy\" ]; then
    trap 'rm -f \"$policy\"' EXIT
    printf '#!/bin/sh\\nexit 101\\n' > \"$policy\"
    chmod 755 \"$policy\"
fi
apt-get update || echo 'some package lists could not be fetched; trying with the others'
apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends openssh-server openssh-client busybox-static
";

/// The programs, by the variables that name them; empty if they cannot be installed. On CI that is
/// a failure.
pub fn find_or_install() -> Result<Vec<(&'static str, PathBuf)>, Failure> {
    let found = find().map_or_else(install, Ok);
    match found {
        Ok(peers) => Ok(peers),
        Err(failure) if std::env::var_os("CI").is_some() => Err(failure),
        Err(failure) => {
            println!("sshd: skipped\n  {failure}");
            Ok(Vec::new())
        }
    }
}

fn install() -> Result<Vec<(&'static str, PathBuf)>, Failure> {
    let next = "install OpenSSH's server and busybox (Debian: `apt-get install openssh-server busybox-static`)";
    let absent = || Failure::new("sshd, ssh-keygen or busybox was not found", next);
    println!("sshd or busybox is not installed; installing them from the system's packages");
    shell::run(&mut shell::administrator_command(INSTALL).ok_or_else(absent)?, next)?;
    find().ok_or_else(absent)
}

/// Both programs, and ssh-keygen, which the tests need as well; none if one is missing.
fn find() -> Option<Vec<(&'static str, PathBuf)>> {
    program("ssh-keygen")?;
    Some(vec![(SSHD, program("sshd")?), (BUSYBOX, program("busybox")?)])
}

fn program(name: &str) -> Option<PathBuf> {
    let usual = || FOLDERS.iter().map(|folder| PathBuf::from(folder).join(name));
    shell::find(name).or_else(|| usual().find(|file| file.is_file()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_off_the_path_too() {
        assert!(program("sh").is_some_and(|path| path.is_absolute()));
        assert_eq!(program("farrier-no-such-program"), None);
    }
}
