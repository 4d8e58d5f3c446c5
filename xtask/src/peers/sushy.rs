//! sushy-tools, a Redfish emulator from OpenStack, in its own Python environment. The tests start
//! their own emulators; this module only finds or installs the program.

use crate::python::PythonEnvironment;
use crate::shell::{self, Failure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The variable that gives the tests the path.
pub const VARIABLE: &str = "FARRIER_TEST_SUSHY";

const EMULATOR: PythonEnvironment = PythonEnvironment {
    name: "sushy",
    // The emulator checks passwords with bcrypt, but its package does not depend on it.
    packages: &["sushy-tools==2.2.0", "bcrypt"],
    imports: "import sushy_tools, bcrypt",
};

const NEXT: &str =
    "install a C compiler and python3's headers (Debian: `apt-get install gcc python3-dev`)";

/// The emulator's path; none if it cannot be installed here.
pub fn find_or_install(target: &Path) -> Result<Option<PathBuf>, Failure> {
    Ok(EMULATOR.find_or_make(target)?.map(|folder| folder.join("bin/sushy-emulator")))
}

/// Like `find_or_install`, with libvirt's Python binding if libvirt is installed: libvirt machines
/// accept firmware, the fake ones do not. libvirt's test driver is enough, so no daemon is needed.
pub fn find_with_firmware(target: &Path) -> Result<Option<PathBuf>, Failure> {
    let Some(program) = find_or_install(target)? else { return Ok(None) };
    match shell::succeeds(Command::new("pkg-config").args(["--exists", "libvirt"])) {
        true => bind_libvirt(&program)?,
        false => {
            println!("   libvirt is missing (Debian: libvirt-dev), so no emulator takes firmware")
        }
    }
    Ok(Some(program))
}

/// Installs libvirt's Python binding, built for the installed libvirt.
pub fn bind_libvirt(program: &Path) -> Result<(), Failure> {
    let python = program.with_file_name("python");
    if shell::succeeds(Command::new(&python).args(["-c", "import libvirt"])) {
        return Ok(());
    }
    let mut version = Command::new("pkg-config");
    let version = shell::read_output(version.args(["--modversion", "libvirt"]), NEXT)?;
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    shell::run(pip.arg(format!("libvirt-python=={}", version.trim())), NEXT)
}
