//! sushy-tools, a Redfish emulator from OpenStack, in a Python environment of its own. The tests start one each; here its
//! program is only found, or installed.

use crate::python::Environment;
use crate::shell::Failure;
use std::path::{Path, PathBuf};

/// How the tests are told where it is.
pub const VARIABLE: &str = "FARRIER_TEST_SUSHY";

const EMULATOR: Environment = Environment {
    name: "sushy",
    // bcrypt is what it checks passwords with, and it does not ask for it by itself.
    packages: &["sushy-tools==2.2.0", "bcrypt"],
    imports: "import sushy_tools, bcrypt",
};

/// The emulator to test with, or nothing when this computer cannot have one.
pub fn find_or_install(target: &Path) -> Result<Option<PathBuf>, Failure> {
    Ok(EMULATOR.find_or_make(target)?.map(|folder| folder.join("bin/sushy-emulator")))
}
