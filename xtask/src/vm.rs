//! `cargo xtask test-vm`: tests with everything real except the hardware. Virtual machines with
//! empty disks on a bridge, each with a Redfish emulator as its BMC; the deploy environment; a
//! bootable image; and tests from the registration of a machine to a command on its new system. The
//! tests start Farrier, and a DHCP server with the configuration that Farrier prints.
//!
//! All of it runs in one network namespace, so it cannot conflict with the host. However the run
//! ends, everything in the namespace is removed with it (see `environment`).

mod emulator;
mod environment;
mod image;
mod install;
mod libvirt;

use crate::debian::{DebianArchive, Kernel};
use crate::deploy_env;
use crate::shell::{self, Failure};
use crate::test::{executable, stage, target};
use environment::VmEnvironment;
use image::Images;
use libvirt::Vm;
use std::path::{Path, PathBuf};

/// Each VM has 512 MiB, and its processor is emulated on one of the host's.
const VMS: u8 = 2;
const CONSOLE_LINES_SHOWN: usize = 40;

const USAGE: &str = "say `test-vm [--agent FILE] [--run PROGRAM ARGUMENT… | -- FILTER…]`";

/// The options of the command line.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct VmTestOptions {
    agent: Option<PathBuf>,
    action: VmTestAction,
}

/// The action once the environment is up.
#[derive(Debug, PartialEq, Eq)]
enum VmTestAction {
    Tests(Vec<String>),
    Program(Vec<String>),
}

impl Default for VmTestAction {
    fn default() -> Self {
        Self::Tests(Vec::new())
    }
}

impl VmTestOptions {
    pub fn parse(words: &[&str]) -> Result<Self, String> {
        let owned = |words: &[&str]| words.iter().map(|name| (*name).to_owned()).collect();
        match words {
            [] => Ok(Self::default()),
            ["--agent", file, rest @ ..] => {
                Ok(Self { agent: Some(PathBuf::from(file)), ..Self::parse(rest)? })
            }
            ["--run", program @ ..] if !program.is_empty() => {
                Ok(Self { agent: None, action: VmTestAction::Program(owned(program)) })
            }
            ["--", filter @ ..] => {
                Ok(Self { agent: None, action: VmTestAction::Tests(owned(filter)) })
            }
            [other, ..] => Err(format!("{other:?} is not understood; {USAGE}")),
        }
    }
}

pub fn run(options: &VmTestOptions) -> Result<(), Failure> {
    if !shell::is_root() {
        let next = "run it as root: it makes a network namespace, a bridge and loop devices";
        return Err(Failure::new("test-vm needs the rights of root", next));
    }
    stage("programs", install::find_or_install)?;
    let emulator = stage("redfish emulator", || emulator::find_or_make(&target()))?;
    let debian = stage("package lists", || DebianArchive::open(&deploy_env::cache()))?;
    let deploy_env = stage("deploy environment", || build_deploy_env(&debian, options))?;
    let images = stage("image", || image::build(&debian, &target().join("vm")))?;
    let command = match &options.action {
        VmTestAction::Tests(filter) => {
            let tests = stage("tests' program", build_tests)?;
            let mut words = vec![tests.display().to_string()];
            words.extend(["--test-threads=1".to_owned(), "--nocapture".to_owned()]);
            words.extend(filter.iter().cloned());
            words
        }
        VmTestAction::Program(words) => words.clone(),
    };
    let environment = stage("namespace", VmEnvironment::open)?;
    let vms = stage("virtual machines", || start_vms(&environment, &emulator))?;
    let done = stage("tests", || {
        run_in_environment(&environment, &command, &test_variables(&deploy_env, &images, &vms))
    });
    if done.is_err() {
        vms.iter().for_each(|vm| {
            environment::print_log_tail(&vm.console(&environment), CONSOLE_LINES_SHOWN)
        });
    }
    stage("sweep", || environment.close())?;
    done
}

fn build_deploy_env(debian: &DebianArchive, options: &VmTestOptions) -> Result<PathBuf, Failure> {
    let out = target().join("vm/deploy");
    let agent = options.agent.clone();
    let kernel = Kernel::Cloud;
    deploy_env::build(
        debian,
        &deploy_env::DeployEnvOptions {
            out: out.clone(),
            kernel,
            agent,
            overlay: None,
            manifest_key: None,
        },
    )?;
    Ok(out)
}

/// The tests are built outside the namespace, where cargo has network access.
fn build_tests() -> Result<PathBuf, Failure> {
    let mut build = shell::cargo(["test", "--locked", "--no-run", "-p", "farrier", "--test", "vm"]);
    build.arg("--message-format=json-render-diagnostics");
    let messages = shell::read_output(&mut build, "fix the errors shown above")?;
    executable(&messages, "vm").ok_or_else(|| {
        Failure::new("cargo named no program for the tests", "see that crates/cli has a test `vm`")
    })
}

fn start_vms(environment: &VmEnvironment, emulator: &Path) -> Result<Vec<Vm>, Failure> {
    let vms: Vec<Vm> = (1..=VMS).map(Vm::numbered).collect();
    libvirt::start(environment, &target().join("vm/libvirt-cache"))?;
    for vm in &vms {
        libvirt::define(environment, vm)?;
        emulator::start(environment, emulator, vm)?;
    }
    Ok(vms)
}

/// The environment variables of the tests. Lists are separated by spaces and are in the order of
/// the VMs.
fn test_variables(deploy_env: &Path, images: &Images, vms: &[Vm]) -> Vec<(&'static str, String)> {
    let shown = |path: &Path| path.display().to_string();
    let each = |of: &dyn Fn(&Vm) -> String| vms.iter().map(of).collect::<Vec<_>>().join(" ");
    vec![
        ("FARRIER_VM_ADDRESS", environment::ADDRESS.to_owned()),
        ("FARRIER_VM_BRIDGE", environment::BRIDGE.to_owned()),
        ("FARRIER_VM_DEPLOY", shown(deploy_env)),
        ("FARRIER_VM_RAW", shown(&images.raw)),
        ("FARRIER_VM_QCOW2", shown(&images.qcow2)),
        ("FARRIER_VM_TAR", shown(&images.tar)),
        ("FARRIER_VM_BMCS", each(&|vm| vm.bmc())),
        ("FARRIER_VM_MACS", each(&|vm| vm.mac.clone())),
        ("FARRIER_VM_HOSTS", each(&|vm| vm.address.clone())),
        ("FARRIER_VM_SERIALS", each(&|vm| vm.serial.clone())),
        ("FARRIER_VM_PASSWORD", emulator::PASSWORD.to_owned()),
    ]
}

fn run_in_environment(
    environment: &VmEnvironment,
    words: &[String],
    variables: &[(&str, String)],
) -> Result<(), Failure> {
    let Some((program, arguments)) = words.split_first() else {
        return Err(Failure::new("there is nothing to run", USAGE));
    };
    let mut command = environment.command(program);
    command.args(arguments).envs(variables.iter().map(|(name, value)| (name, value)));
    command.env("FARRIER_VM_CONSOLES", environment.consoles()).env("RUST_BACKTRACE", "1");
    let next =
        "the lines above say what went wrong, and the ends of the VMs' consoles what they did";
    // The standard input is inherited, so that the program can be a shell.
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Failure::new(format!("`{program}` failed ({status})"), next)),
        Err(error) => Err(Failure::new(format!("`{program}` did not start: {error}"), next)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_for_tests_or_for_a_program() {
        let parse = |line: &str| VmTestOptions::parse(&line.split_whitespace().collect::<Vec<_>>());
        assert_eq!(parse("").unwrap(), VmTestOptions::default());
        let filter = parse("--agent a -- raw --exact").unwrap();
        assert_eq!(filter.agent, Some(PathBuf::from("a")));
        assert_eq!(filter.action, VmTestAction::Tests(vec!["raw".into(), "--exact".into()]));
        assert_eq!(
            parse("--run sh -l").unwrap().action,
            VmTestAction::Program(vec!["sh".into(), "-l".into()])
        );
        for bad in ["--run", "--agent", "raw"] {
            assert!(parse(bad).unwrap_err().contains("test-vm ["), "{bad}");
        }
    }

    #[test]
    fn the_variables_list_the_vms_in_one_order() {
        let vms = [Vm::numbered(1), Vm::numbered(2)];
        let images = Images { raw: "r".into(), qcow2: "q".into(), tar: "t".into() };
        let reported = test_variables(Path::new("d"), &images, &vms);
        let value = |name| reported.iter().find(|(one, _)| *one == name).unwrap().1.as_str();
        assert_eq!(value("FARRIER_VM_HOSTS"), "10.77.0.11 10.77.0.12");
        assert_eq!(value("FARRIER_VM_BMCS"), "http://127.0.0.1:8001 http://127.0.0.1:8002");
        assert_eq!(value("FARRIER_VM_RAW"), "r");
    }
}
