//! Runs `ipmitool`: one process for each session, with a deadline, bounded output, and the password
//! in its environment, which other users cannot read. Dropping the future kills the process.

use super::{Login, Privilege};
use crate::fault::LocalShortage;
use secrecy::ExposeSecret;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

/// The number of times that a read is sent before it counts as unanswered.
pub const READ_ATTEMPTS: u8 = 2;
/// The wait for the response to one packet, in seconds; longer with each repetition.
const ANSWER_WITHIN_S: &str = "1";
/// More than the longest batch of event log entries, in hexadecimal with verbose output.
const MAX_OUTPUT_BYTES: u64 = 256 * 1024;

pub struct Tool<'a> {
    pub program: &'a Path,
    pub host: &'a str,
    pub port: u16,
    pub login: &'a Login,
    pub privilege: Privilege,
    pub suite: u8,
    pub attempts: u8,
    pub deadline: Duration,
}

#[derive(Debug)]
pub enum ToolResult {
    Exited {
        ok: bool,
        out: String,
        err: String,
    },
    /// The deadline passed and the process was killed; how far it got is unknown.
    TimedOut,
    /// The process did not start, or its output could not be read.
    NotRun(String),
    /// This host lacks what it needs to start a process.
    NoResources(LocalShortage),
}

impl Tool<'_> {
    pub async fn run(&self, command: &[String], script: Option<&str>) -> ToolResult {
        let started = self.command(command).spawn();
        let mut child = match started {
            Ok(child) => child,
            Err(error) => {
                let shortage = LocalShortage::of(&error).map(ToolResult::NoResources);
                return shortage.unwrap_or_else(|| ToolResult::NotRun(error.to_string()));
            }
        };
        match tokio::time::timeout(self.deadline, communicate(&mut child, script)).await {
            Ok(Ok(ending)) => ending,
            Ok(Err(error)) => ToolResult::NotRun(error.to_string()),
            Err(_) => {
                // Dropping the child would leave a zombie until the next process starts.
                let _ = child.kill().await;
                ToolResult::TimedOut
            }
        }
    }

    fn command(&self, command: &[String]) -> Command {
        let mut tool = Command::new(self.program);
        tool.args(["-I", "lanplus", "-E", "-v", "-N", ANSWER_WITHIN_S])
            .args(["-R", &self.attempts.to_string()])
            .args(["-C", &self.suite.to_string()])
            .args(["-L", self.privilege.as_str()])
            .args(["-H", self.host, "-p", &self.port.to_string()])
            .args(["-U", &self.login.user])
            .args(command)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("LC_ALL", "C")
            .env("IPMI_PASSWORD", self.login.password.expose_secret())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        tool
    }
}

async fn communicate(child: &mut Child, script: Option<&str>) -> std::io::Result<ToolResult> {
    let (input, out, err) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let write = async {
        if let (Some(mut input), Some(script)) = (input, script) {
            // A program that gave up stops reading; its output tells why.
            let _ = input.write_all(script.as_bytes()).await;
        }
    };
    let (_, out, err) = tokio::join!(write, bounded(out), bounded(err));
    let (out, err) = (out?, err?);
    let status = child.wait().await?;
    Ok(ToolResult::Exited { ok: status.success(), out, err })
}

async fn bounded(stream: Option<impl AsyncRead + Unpin>) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    if let Some(stream) = stream {
        stream.take(MAX_OUTPUT_BYTES).read_to_end(&mut bytes).await?;
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::credential::AllowedAddresses;
    use std::time::Instant;

    fn tool<'a>(program: &'a Path, login: &'a Login, deadline: Duration) -> Tool<'a> {
        Tool {
            program,
            host: "h",
            port: 623,
            login,
            privilege: Privilege::Operator,
            suite: 3,
            attempts: 1,
            deadline,
        }
    }

    /// Runs a shell script in place of `ipmitool`, to see its arguments and its end.
    async fn run(body: &str, deadline: Duration, script: Option<&str>) -> ToolResult {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("tool");
        std::fs::write(&program, format!("#!/bin/sh\n{body}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let allowed = AllowedAddresses::Any;
        let login = Login { user: "u".into(), password: "hush".into(), allowed };
        // A fork in another thread may still have the file open for writing.
        for _ in 0..50 {
            let ending = tool(&program, &login, deadline).run(&["raw".into()], script).await;
            if !matches!(&ending, ToolResult::NotRun(message) if message.contains("busy")) {
                return ending;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the stand-in stayed busy");
    }

    const SOON: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn the_password_is_in_the_environment_and_not_on_the_command_line() {
        let ending = run("echo \"$@\"; echo \"$IPMI_PASSWORD\" >&2; exit 3", SOON, None).await;
        let ToolResult::Exited { ok, out, err } = ending else { panic!("{ending:?}") };
        assert!(!ok);
        assert_eq!(out.trim(), "-I lanplus -E -v -N 1 -R 1 -C 3 -L OPERATOR -H h -p 623 -U u raw");
        assert_eq!(err, "hush\n");
    }

    #[tokio::test]
    async fn a_script_reaches_the_program() {
        let ending = run("cat", SOON, Some("one\ntwo\n")).await;
        assert!(matches!(ending, ToolResult::Exited { ok: true, out, .. } if out == "one\ntwo\n"));
    }

    #[tokio::test]
    async fn output_without_end_is_cut_off() {
        let ending = run("yes", SOON, None).await;
        let ToolResult::Exited { out, .. } = ending else { panic!("{ending:?}") };
        assert_eq!(out.len() as u64, MAX_OUTPUT_BYTES);
    }

    #[tokio::test]
    async fn a_program_that_hangs_is_ended_at_its_deadline() {
        let folder = tempfile::tempdir().unwrap();
        let pid_file = folder.path().join("pid");
        let body = format!("echo $$ > {}; exec sleep 60", pid_file.display());
        let started = Instant::now();
        let ending = run(&body, Duration::from_millis(500), None).await;
        assert!(matches!(ending, ToolResult::TimedOut), "{ending:?}");
        assert!(started.elapsed() < Duration::from_secs(30));
        let pid = std::fs::read_to_string(&pid_file).unwrap();
        assert!(!Path::new(&format!("/proc/{}/status", pid.trim())).exists(), "still running");
    }

    #[tokio::test]
    async fn a_program_that_is_not_there_is_named() {
        let allowed = AllowedAddresses::Any;
        let login = Login { user: "u".into(), password: "p".into(), allowed };
        let ending = tool(Path::new("farrier-no-such-tool"), &login, SOON).run(&[], None).await;
        assert!(matches!(ending, ToolResult::NotRun(_)), "{ending:?}");
    }
}
