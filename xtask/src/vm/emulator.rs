//! The BMCs: one sushy-tools emulator per virtual machine, which shows only that machine. It
//! controls libvirt through its Python binding, which is built for the installed libvirt.

use super::environment::VmEnvironment;
use super::libvirt::{self, Vm};
use crate::peers::sushy;
use crate::shell::Failure;
use std::path::{Path, PathBuf};
use std::time::Duration;

const START_TIMEOUT: Duration = Duration::from_secs(60);

/// The password of every BMC, of the user root.
pub const PASSWORD: &str = "farrier";
/// The same password, hashed by bcrypt with minimal cost.
const LOGIN: &str = "root:$2y$04$uRlkTVk73DV3D5sLsvno0uIhjQQ7dunS2FDqXFMQ4Fc8zkxEeaEUO\n";

/// The emulator's program, in an environment with libvirt's binding.
pub fn find_or_make(target: &Path) -> Result<PathBuf, Failure> {
    let program = sushy::find_or_install(target)?
        .ok_or_else(|| Failure::new("there is no Redfish emulator", "read the lines above"))?;
    sushy::bind_libvirt(&program)?;
    Ok(program)
}

pub fn start(environment: &VmEnvironment, program: &Path, vm: &Vm) -> Result<(), Failure> {
    let name = format!("bmc-{}", vm.name);
    let login = environment.write("bmc-login", LOGIN)?;
    let state = environment.write(&format!("{name}/README"), "What this BMC remembers.\n")?;
    let text =
        configuration(vm, &libvirt::uri(environment), &login, state.parent().unwrap_or(&state));
    let file = environment.write(&format!("{name}.conf"), &text)?;
    let mut emulator = environment.command(program);
    emulator.arg("--config").arg(file);
    environment.start_service(&name, emulator, START_TIMEOUT, || environment.listens(vm.bmc_port))
}

fn configuration(vm: &Vm, uri: &str, login: &Path, state: &Path) -> String {
    format!(
        "SUSHY_EMULATOR_LISTEN_IP = '127.0.0.1'\nSUSHY_EMULATOR_LISTEN_PORT = {}\n\
         SUSHY_EMULATOR_LIBVIRT_URI = '{uri}'\nSUSHY_EMULATOR_ALLOWED_INSTANCES = ['{}']\n\
         SUSHY_EMULATOR_AUTH_FILE = '{}'\nSUSHY_EMULATOR_STATE_DIR = '{}'\n\
         SUSHY_EMULATOR_FEATURE_SET = 'full'\n",
        vm.bmc_port,
        vm.uuid,
        login.display(),
        state.display(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bmc_shows_one_machine() {
        let vm = Vm::numbered(2);
        let text = configuration(&vm, "qemu:///system", Path::new("login"), Path::new("state"));
        assert!(text.contains(&format!("ALLOWED_INSTANCES = ['{}']", vm.uuid)), "{text}");
        assert!(text.contains("LISTEN_PORT = 8002\n"), "{text}");
    }
}
