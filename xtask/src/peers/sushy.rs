//! sushy-tools, a Redfish emulator from OpenStack, in a Python environment of its own. The tests start one each; here its
//! program is only found, or installed.

use crate::python::Environment;
use crate::shell::{self, Failure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// How the tests are told where it is.
pub const VARIABLE: &str = "FARRIER_TEST_SUSHY";

const EMULATOR: Environment = Environment {
    name: "sushy",
    // bcrypt is what it checks passwords with, and it does not ask for it by itself.
    packages: &["sushy-tools==2.2.0", "bcrypt"],
    imports: "import sushy_tools, bcrypt",
};

const NEXT: &str =
    "install a C compiler and python3's headers (Debian: `apt-get install gcc python3-dev`)";

/// The emulator to test with, or nothing when this computer cannot have one.
pub fn find_or_install(target: &Path) -> Result<Option<PathBuf>, Failure> {
    Ok(EMULATOR.find_or_make(target)?.map(|folder| folder.join("bin/sushy-emulator")))
}

/// The same with libvirt's binding where libvirt is: its machines take firmware, and the fake ones do not. libvirt's own test driver
/// is enough, so nothing has to run.
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

/// Gives the emulator libvirt's Python binding, built for the libvirt that is installed.
pub fn bind_libvirt(program: &Path) -> Result<(), Failure> {
    let python = program.with_file_name("python");
    if shell::succeeds(Command::new(&python).args(["-c", "import libvirt"])) {
        return Ok(());
    }
    let mut version = Command::new("pkg-config");
    let version = shell::answer(version.args(["--modversion", "libvirt"]), NEXT)?;
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    shell::run(pip.arg(format!("libvirt-python=={}", version.trim())), NEXT)
}
