//! A test environment: a directory as the node, scripts as its programs, and the agent, which is
//! killed at the end of the test.

use crate::server::{Server, TEST_TIMEOUT, TOKEN};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

pub struct TestNode {
    folder: tempfile::TempDir,
    pub server: Server,
}

impl TestNode {
    /// A node without GPUs and hooks.
    pub fn new() -> Self {
        let node_env = Self { folder: tempfile::tempdir().unwrap(), server: Server::start() };
        for name in ["hooks", "scratch"] {
            fs::create_dir(node_env.path(name)).unwrap();
        }
        let at = node_env.at();
        let text = format!(
            "controllers = [\"http://{}\"]\ntoken_file = \"{at}/token\"\nstate_dir = \"{at}/state\"\n\
             hooks_dir = \"{at}/hooks\"\nscratch_dirs = [\"{at}/scratch\"]\n\
             nvidia_smi = \"{at}/nvidia-smi\"\npci_devices = \"{at}/pci\"\nsystemctl = \"{at}/systemctl\"\n",
            node_env.server.address
        );
        node_env.write("agent.toml", &text);
        node_env.write("token", TOKEN);
        fs::set_permissions(node_env.path("token"), fs::Permissions::from_mode(0o600)).unwrap();
        node_env
    }

    /// The path without links, as scratch directories require.
    pub fn at(&self) -> String {
        fs::canonicalize(self.folder.path()).unwrap().display().to_string()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        Path::new(&self.at()).join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// Writes a program, through another process: a process that was forked here meanwhile would
    /// hold the file open, and then it could not be executed.
    pub fn script(&self, name: &str, text: &str) {
        let writer = "cat > \"$0.new\" && chmod 755 \"$0.new\" && mv \"$0.new\" \"$0\"";
        let mut child = Command::new("sh")
            .args(["-c", writer])
            .arg(self.path(name))
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let text = format!("#!/bin/sh\n{}\n", text.replace("DIR", &self.at()));
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success());
    }

    /// GPUs that list the live processes of the file `pids`.
    pub fn gpus(&self) {
        self.script(
            "nvidia-smi",
            "echo \"$*\" >> DIR/asked
case $1 in
--query-compute-apps=pid)
  for pid in $(cat DIR/pids 2>/dev/null); do
    grep -qs ') [^ZX]' /proc/$pid/stat && echo $pid
  done
  exit 0 ;;
--gpu-reset) [ ! -e DIR/stuck ] || { echo GPU is stuck; exit 3; } ;;
*) exit 9 ;;
esac",
        );
    }

    pub fn agent(&self, verb: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_farrier-agent"));
        command.args(["node", verb, "--config"]).arg(self.path("agent.toml"));
        command
    }

    pub fn run_command(&self, verb: &str) -> (i32, String) {
        let Output { status, stdout, stderr } = self.agent(verb).output().unwrap();
        let message = [stdout, stderr].concat();
        (status.code().unwrap_or(-1), String::from_utf8_lossy(&message).into_owned())
    }

    /// Starts the agent, and tells the server which process to kill.
    pub fn run(&self) -> Agent {
        // Locked, so that no request is answered before the process id is known.
        let mut state = self.server.state();
        let child = self.agent("run").stdout(Stdio::null()).spawn().unwrap();
        state.pid = Some(Pid::from_child(&child));
        Agent(child)
    }
}

/// A killed agent leaves its hooks to the next one; the last one's are killed here.
impl Drop for TestNode {
    fn drop(&mut self) {
        let mark = format!("FARRIER_AGENT_MARK={}/state#", self.at());
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
            let marked = environment
                .split(|byte| *byte == 0)
                .any(|found| found.starts_with(mark.as_bytes()));
            let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
            if let (true, Some(pid)) = (marked, number.and_then(Pid::from_raw)) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}

pub struct Agent(Child);

impl Agent {
    pub fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Waits for its end.
    pub fn ended(&mut self) -> ExitStatus {
        let since = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status;
            }
            assert!(since.elapsed() < TEST_TIMEOUT, "the agent does not end");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A process that runs until it is killed.
pub struct Job(pub Child);

impl Job {
    pub fn start(script: &str) -> Self {
        Self(Command::new("sh").args(["-c", script]).spawn().unwrap())
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn is_alive(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// Skips a test for what this computer lacks. On CI that is a failure: a test that is silently
/// never run there proves nothing.
pub fn skip(missing: &str) {
    assert!(std::env::var_os("CI").is_none(), "this is CI, and {missing}");
    eprintln!("skipped: {missing}");
}

/// Waits for a condition.
#[track_caller]
pub fn wait_until(what: &str, so: impl Fn() -> bool) {
    let since = Instant::now();
    while !so() {
        assert!(since.elapsed() < TEST_TIMEOUT, "never: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}
