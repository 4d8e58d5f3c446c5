//! The environment of a run: a network namespace with a bridge, and a temporary directory. A
//! cleanup process in its own process group waits on a pipe for the end of this process and then
//! removes both, so an interrupted or killed run leaves nothing behind.

use crate::shell::{self, Failure};
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Farrier's address. The namespace is private, so addresses can be fixed.
pub const ADDRESS: &str = "10.77.0.1";
pub const NETWORK: &str = "10.77.0";
pub const BRIDGE: &str = "br0";

const PREFIX: &str = "farrier-vm-";
const CLEANUP: &str = include_str!("cleanup.sh");
const POLL: Duration = Duration::from_millis(100);
/// A wait that takes longer prints what it waits for.
const NOTICE_AFTER: Duration = Duration::from_secs(2);
const LOG_LINES_SHOWN: usize = 30;

pub struct VmEnvironment {
    name: String,
    home: PathBuf,
    cleanup: Option<Child>,
}

impl VmEnvironment {
    pub fn open() -> Result<Self, Failure> {
        clean_up_stale();
        let name = format!("{PREFIX}{}", std::process::id());
        let home = std::env::temp_dir().join(&name);
        fs::create_dir_all(&home).map_err(|error| crate::tree::io_failure(&home, &error))?;
        let cleanup = cleanup_command(&name, &home).stdin(Stdio::piped()).process_group(0).spawn();
        let cleanup = cleanup.map_err(|error| Failure::new(format!("sh: {error}"), "see it"))?;
        let environment = Self { name, home, cleanup: Some(cleanup) };
        environment.build()?;
        Ok(environment)
    }

    fn build(&self) -> Result<(), Failure> {
        let next = "the kernel must allow network namespaces and bridges; in a container, run it privileged";
        shell::run(Command::new("ip").args(["netns", "add", &self.name]), next)?;
        let address = format!("{ADDRESS}/24");
        let script: [&[&str]; 5] = [
            &["link", "set", "lo", "up"],
            &["link", "add", BRIDGE, "type", "bridge", "forward_delay", "0"],
            &["addr", "add", &address, "dev", BRIDGE],
            &["link", "set", BRIDGE, "up"],
            &["-brief", "addr"],
        ];
        script.iter().try_for_each(|words| shell::run(self.command("ip").args(*words), next))
    }

    /// A command that runs in the namespace.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }

    /// A path in the directory of this run.
    pub fn file(&self, name: &str) -> PathBuf {
        self.home.join(name)
    }

    /// The directory of the VMs' console logs, by VM name.
    pub fn consoles(&self) -> PathBuf {
        self.file("consoles")
    }

    pub fn write(&self, name: &str, text: &str) -> Result<PathBuf, Failure> {
        let path = self.file(name);
        let folder = path.parent().unwrap_or(&self.home);
        fs::create_dir_all(folder)
            .and_then(|()| fs::write(&path, text))
            .map_err(|error| crate::tree::io_failure(&path, &error))?;
        Ok(path)
    }

    /// Starts a program that runs until the cleanup, and waits until it is ready.
    pub fn start_service(
        &self,
        name: &str,
        mut command: Command,
        timeout: Duration,
        is_ready: impl Fn() -> bool,
    ) -> Result<(), Failure> {
        let log = self.file(&format!("{name}.log"));
        let io_failure = |error| crate::tree::io_failure(&log, &error);
        let output = File::create(&log).map_err(io_failure)?;
        let errors = output.try_clone().map_err(io_failure)?;
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        let mut child = command.spawn().map_err(io_failure)?;
        let mut is_gone = || !matches!(child.try_wait(), Ok(None));
        match wait_for(name, timeout, || is_ready() || is_gone()) {
            Ok(()) if is_ready() => Ok(()),
            _ => {
                print_log_tail(&log, LOG_LINES_SHOWN);
                Err(Failure::new(format!("{name} did not start"), "read its last lines above"))
            }
        }
    }

    /// True if a process in the namespace listens on a port.
    pub fn listens(&self, port: u16) -> bool {
        let mut ss = self.command("ss");
        ss.args(["-Htln", &format!("sport = :{port}")]).stderr(Stdio::null());
        ss.output().is_ok_and(|output| !output.stdout.is_empty())
    }

    /// Cleans up, and fails if a process could not be ended.
    pub fn close(mut self) -> Result<(), Failure> {
        let name = self.name.clone();
        match self.clean_up() {
            true => Ok(()),
            false => Err(Failure::new(
                format!("not everything in the namespace {name} could be ended"),
                format!("see `ip netns pids {name}`"),
            )),
        }
    }

    /// Closes the pipe to the cleanup process, which is its signal, and waits for it.
    fn clean_up(&mut self) -> bool {
        self.cleanup.take().is_none_or(|mut cleanup| {
            drop(cleanup.stdin.take());
            cleanup.wait().is_ok_and(|status| status.success())
        })
    }
}

impl Drop for VmEnvironment {
    fn drop(&mut self) {
        self.clean_up();
    }
}

fn cleanup_command(name: &str, home: &Path) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", CLEANUP, "cleanup", name]).arg(home);
    command
}

/// Cleans up after a run whose cleanup process was killed too.
fn clean_up_stale() {
    let mut list = Command::new("ip");
    let reported = list.args(["netns", "list"]).output().map(|output| output.stdout);
    let reported = String::from_utf8_lossy(&reported.unwrap_or_default()).into_owned();
    for name in stale(&reported, |pid| Path::new(&format!("/proc/{pid}")).exists()) {
        println!("sweeping {name}, which nobody owns any more");
        let home = std::env::temp_dir().join(name);
        shell::succeeds(cleanup_command(name, &home).stdin(Stdio::null()));
    }
}

/// Our namespaces whose process has ended.
fn stale(list: &str, lives: impl Fn(u32) -> bool) -> Vec<&str> {
    let names = list.lines().filter_map(|line| line.split_whitespace().next());
    let owner = |name: &str| name.strip_prefix(PREFIX)?.parse::<u32>().ok();
    names.filter(|name| owner(name).is_some_and(|pid| !lives(pid))).collect()
}

/// Polls until the condition holds.
pub fn wait_for(
    what: &str,
    timeout: Duration,
    mut is_so: impl FnMut() -> bool,
) -> Result<(), Failure> {
    let started = Instant::now();
    let mut has_said = false;
    while !is_so() {
        let passed = started.elapsed();
        if passed > timeout {
            let message = format!("{what}: waited {} s in vain", timeout.as_secs());
            return Err(Failure::new(message, "read what it wrote"));
        }
        if passed > NOTICE_AFTER && !has_said {
            has_said = true;
            println!("waiting for {what}, at most {} s", timeout.as_secs());
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}

pub fn print_log_tail(log: &Path, count: usize) {
    let bytes = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    eprintln!("the end of {}:", log.display());
    lines.iter().skip(lines.len().saturating_sub(count)).for_each(|line| eprintln!("  {line}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_namespaces_without_a_process_are_stale() {
        let list = "farrier-vm-7 (id: 1)\nfarrier-vm-8\nother\nfarrier-vm-x\n";
        assert_eq!(stale(list, |pid| pid == 8), ["farrier-vm-7"]);
        assert!(stale("", |_| false).is_empty());
    }

    #[test]
    fn a_wait_ends_on_success_and_on_timeout() {
        let mut probes = 0;
        let third = || {
            probes += 1;
            probes == 3
        };
        wait_for("the third look", Duration::from_secs(60), third).unwrap();
        let failure = wait_for("ever", Duration::ZERO, || false).unwrap_err().to_string();
        assert!(failure.contains("ever: waited 0 s in vain"), "{failure}");
    }
}
