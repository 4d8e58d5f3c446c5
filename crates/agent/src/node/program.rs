//! Runs a program on the node: with a deadline, with its output in the log, and without leftovers.
//!
//! A program leads its own process group, and every process that it starts inherits a mark in its
//! environment. When it ends or must end, the group is killed, and so is every process outside the
//! group with the mark. A restarted agent finds leftovers of its predecessor in the same way.
//! Daemons must be started by systemd, not by a hook.

use super::deadline::{Deadline, Interrupt};
use super::log::TaskLog;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid,
};
use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The environment variable that marks the agent's processes.
const MARK: &str = "FARRIER_AGENT_MARK";
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(3);
/// The time for a killed process to disappear.
const LAST_WAIT: Duration = Duration::from_secs(5);
/// A longer line is logged in parts.
const MAX_LINE_BYTES: u64 = 8 * 1024;
/// The limit of attempts against a program that starts processes faster than they are killed.
const MAX_ROUNDS: usize = 50;
const MAX_ENVIRONMENT_BYTES: u64 = 4 * 1024 * 1024;

#[derive(Debug)]
pub enum ProgramError {
    Interrupted(Interrupt),
    /// It could not be started, or its state is lost.
    Lost(io::Error),
}

/// Runs a program to its end, with its output in the log.
pub fn run_program(
    mut command: Command,
    mark: &str,
    deadline: Deadline,
    log: &Arc<TaskLog>,
) -> Result<ExitStatus, ProgramError> {
    let (reader, writer) = io::pipe().map_err(ProgramError::Lost)?;
    let second = writer.try_clone().map_err(ProgramError::Lost)?;
    command.stdin(Stdio::null()).stdout(writer).stderr(second).process_group(0).env(MARK, mark);
    let mut child = command.spawn().map_err(ProgramError::Lost)?;
    // It holds the write end of the pipe, which only the program may have.
    drop(command);
    let log = log.clone();
    let listener = thread::spawn(move || log_output(reader, &log));
    let ended = wait_for_exit(&child, deadline);
    if ended.is_err() {
        signal_group(&child, Signal::TERM);
        let stop = AtomicBool::new(false);
        let _ = wait_for_exit(&child, Deadline::new(GRACE, &stop));
    }
    // The leader has not been reaped yet, so its process id cannot have been reused.
    signal_group(&child, Signal::KILL);
    kill_marked(mark);
    let status = reap(&mut child);
    join_reader(listener);
    ended?;
    status
}

fn wait_for_exit(child: &Child, deadline: Deadline) -> Result<(), ProgramError> {
    let pid = Pid::from_child(child);
    let probe = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    loop {
        match waitid(WaitId::Pid(pid), probe) {
            Ok(Some(_)) => return Ok(()),
            Ok(None) => deadline.sleep(POLL_INTERVAL).map_err(ProgramError::Interrupted)?,
            Err(error) => return Err(ProgramError::Lost(error.into())),
        }
    }
}

/// Reaps a program that has ended or was killed. One that hangs in the kernel is given up.
fn reap(child: &mut Child) -> Result<ExitStatus, ProgramError> {
    let since = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) if since.elapsed() > LAST_WAIT => {
                return Err(ProgramError::Lost(io::Error::other("it cannot be killed")));
            }
            Ok(None) => thread::sleep(POLL_INTERVAL),
            Err(error) => return Err(ProgramError::Lost(error)),
        }
    }
}

fn signal_group(child: &Child, signal: Signal) {
    // An empty group is fine.
    let _ = kill_process_group(Pid::from_child(child), signal);
}

/// Logs the output line by line, until all writers are gone.
fn log_output(reader: impl Read, log: &TaskLog) {
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    while let Ok(1..) = Read::take(&mut reader, MAX_LINE_BYTES).read_until(b'\n', &mut line) {
        log.add(&String::from_utf8_lossy(&line));
        line.clear();
    }
}

fn join_reader(listener: JoinHandle<()>) {
    let since = Instant::now();
    while !listener.is_finished() && since.elapsed() < LAST_WAIT {
        thread::sleep(POLL_INTERVAL);
    }
    if listener.is_finished() {
        let _ = listener.join();
    }
}

/// Kills all processes with this mark.
pub fn kill_marked(mark: &str) {
    let entry = format!("{MARK}={mark}").into_bytes();
    for _ in 0..MAX_ROUNDS {
        let found: Vec<Pid> =
            processes().filter(|pid| has_environment_entry(*pid, &entry)).collect();
        if found.is_empty() {
            return;
        }
        for pid in found {
            let _ = kill_process(pid, Signal::KILL);
        }
        thread::sleep(POLL_INTERVAL);
    }
}

fn processes() -> impl Iterator<Item = Pid> {
    let own = rustix::process::getpid();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(Pid::from_raw)
        .filter(move |pid| *pid != own)
}

/// A zombie has no environment.
fn has_environment_entry(pid: Pid, entry: &[u8]) -> bool {
    let Ok(file) = fs::File::open(format!("/proc/{}/environ", pid.as_raw_nonzero())) else {
        return false;
    };
    let mut environment = Vec::new();
    let _ = file.take(MAX_ENVIRONMENT_BYTES).read_to_end(&mut environment);
    environment.split(|byte| *byte == 0).any(|found| found == entry)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    /// A unique mark.
    fn mark() -> String {
        crate::random::new_uuid().unwrap()
    }

    fn marked(mark: &str) -> usize {
        let entry = format!("{MARK}={mark}").into_bytes();
        processes().filter(|pid| has_environment_entry(*pid, &entry)).count()
    }

    #[test]
    fn output_is_logged_and_the_status_returned() {
        let (stop, log) = (AtomicBool::new(false), Arc::new(TaskLog::default()));
        let deadline = Deadline::new(Duration::MAX, &stop);
        let script = "echo one; echo two >&2; printf three; exit 7";
        let status = run_program(shell(script), &mark(), deadline, &log).unwrap();
        assert_eq!(status.code(), Some(7));
        assert_eq!(log.text(), "one\ntwo\nthree");
        let missing = run_program(Command::new("/nowhere"), &mark(), deadline, &log);
        assert!(matches!(missing, Err(ProgramError::Lost(_))));
    }

    #[test]
    fn child_processes_do_not_outlive_a_program() {
        let (stop, log, mark) = (AtomicBool::new(false), Arc::new(TaskLog::default()), mark());
        let deadline = Deadline::new(Duration::MAX, &stop);
        let script = "sleep 3600 & setsid sleep 3600 & exit 0";
        assert!(run_program(shell(script), &mark, deadline, &log).unwrap().success());
        assert_eq!(marked(&mark), 0);
    }

    #[test]
    fn interrupted_programs_are_killed_with_their_children() {
        let stop = AtomicBool::new(false);
        let script = "trap '' TERM; sleep 3600 & setsid sleep 3600 & echo ready; wait";
        let (log, own) = (Arc::new(TaskLog::default()), mark());
        let late = Deadline::new(Duration::from_millis(200), &stop);
        assert!(matches!(
            run_program(shell(script), &own, late, &log),
            Err(ProgramError::Interrupted(Interrupt::DeadlineExceeded))
        ));
        assert_eq!(marked(&own), 0);

        let (log, own) = (Arc::new(TaskLog::default()), mark());
        let deadline = Deadline::new(Duration::MAX, &stop);
        thread::scope(|scope| {
            let running = scope.spawn(|| run_program(shell(script), &own, deadline, &log));
            while !log.text().contains("ready") {
                thread::sleep(POLL_INTERVAL);
            }
            stop.store(true, Ordering::Relaxed);
            assert!(matches!(
                running.join().unwrap(),
                Err(ProgramError::Interrupted(Interrupt::Stopped))
            ));
        });
        assert_eq!(marked(&own), 0);
    }

    #[test]
    fn marks_are_matched_completely() {
        let mark = mark();
        let mut child = shell("sleep 3600").env(MARK, &mark).spawn().unwrap();
        // The process has no environment until the kernel has set it up.
        while marked(&mark) == 0 {
            thread::sleep(POLL_INTERVAL);
        }
        kill_marked(&mark[..mark.len() - 1]);
        assert!(child.try_wait().unwrap().is_none());
        kill_marked(&mark);
        assert!(!child.wait().unwrap().success());
    }
}
