//! The GPUs of the node, through nvidia-smi: lists the processes on them, ends these, and resets
//! the GPUs.
//!
//! nvidia-smi hangs when the driver does, so it has a timeout. Without nvidia-smi and without
//! NVIDIA devices on the PCI bus the node has no GPUs, which the log notes. GPUs on the bus that
//! cannot be queried never count as clean.

use super::deadline::{Deadline, Interrupt};
use super::log::TaskLog;
use super::program::{self, ProgramError};
use super::task_execution::TaskError;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

const QUERY: [&str; 2] = ["--query-compute-apps=pid", "--format=csv,noheader"];
/// NVIDIA's PCI vendor id, and the prefix of the PCI class of displays and 3D controllers.
const NVIDIA: &str = "0x10de";
const DISPLAY: &str = "0x03";
const RESET: [&str; 1] = ["--gpu-reset"];
const QUERY_LIMIT: Duration = Duration::from_secs(60);
const RESET_LIMIT: Duration = Duration::from_secs(300);
/// Some versions print this for an empty list.
const EMPTY_LIST: &str = "no running processes found";
/// The maximum of processes in a message.
const MAX_NAMED: usize = 8;
/// The init process is never a job.
const INIT: i32 = 1;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GpuPresence {
    Absent,
    Present,
    /// They are on the bus and cannot be queried, for this reason.
    Unqueryable(String),
}

pub struct Gpus<'a> {
    pub program: &'a Path,
    pub pci_devices: &'a Path,
    pub mark: &'a str,
    /// The interval of checks.
    pub poll_interval: Duration,
}

impl Gpus<'_> {
    pub fn detect(&self, log: &TaskLog) -> GpuPresence {
        if self.program.exists() {
            return GpuPresence::Present;
        }
        let name = self.program.display();
        match count_pci_gpus(self.pci_devices) {
            0 => {
                log.line(&format!("no GPUs: there is no {name}, and no NVIDIA device on the bus"));
                GpuPresence::Absent
            }
            count => {
                let message = format!(
                    "{count} NVIDIA devices are on the PCI bus, and there is no {name} to ask them: install the driver, or write where it is to nvidia_smi in agent.toml"
                );
                log.line(&message);
                GpuPresence::Unqueryable(message)
            }
        }
    }

    /// The processes that run on the GPUs.
    pub fn processes(&self, deadline: Deadline) -> Result<Vec<Pid>, TaskError> {
        let message = self.run_nvidia_smi(&QUERY, QUERY_LIMIT, deadline)?;
        parse_processes(&message)
    }

    pub fn reset(&self, deadline: Deadline, log: &TaskLog) -> Result<(), TaskError> {
        let message = self.run_nvidia_smi(&RESET, RESET_LIMIT, deadline)?;
        log.add(&message);
        Ok(())
    }

    /// Waits until no process runs on the GPUs.
    pub fn wait(&self, deadline: Deadline, log: &TaskLog) -> Result<(), TaskError> {
        let mut reported = String::new();
        loop {
            let left = self.processes(deadline)?;
            if left.is_empty() {
                return Ok(());
            }
            log_once(&mut reported, format!("waiting for {}", describe_processes(&left)), log);
            deadline.sleep(self.poll_interval).map_err(|halt| deadline_failure(halt, &left))?;
        }
    }

    /// Ends the processes on the GPUs: SIGTERM first, SIGKILL after the grace period.
    pub fn release(
        &self,
        grace: Duration,
        deadline: Deadline,
        log: &TaskLog,
    ) -> Result<(), TaskError> {
        let mut requested: BTreeMap<i32, Instant> = BTreeMap::new();
        loop {
            let left = self.processes(deadline)?;
            if left.is_empty() {
                return Ok(());
            }
            // The process id of a process that ended may be reused.
            requested.retain(|number, _| left.iter().any(|pid| raw_pid(*pid) == *number));
            for pid in &left {
                let since = requested.get(&raw_pid(*pid)).map(Instant::elapsed);
                if let Some(signal) = due_signal(since, grace) {
                    log.line(&format!("{} to process {}", signal_name(signal), raw_pid(*pid)));
                    // The process may have ended meanwhile; the next check shows that.
                    let _ = kill_process(*pid, signal);
                }
                requested.entry(raw_pid(*pid)).or_insert_with(Instant::now);
            }
            deadline.sleep(self.poll_interval).map_err(|halt| deadline_failure(halt, &left))?;
        }
    }

    fn run_nvidia_smi(
        &self,
        arguments: &[&str],
        limit: Duration,
        deadline: Deadline,
    ) -> Result<String, TaskError> {
        let mut command = Command::new(self.program);
        command.args(arguments);
        let name = self.program.display();
        let message = Arc::new(TaskLog::default());
        match program::run_program(command, self.mark, deadline.at_most(limit), &message) {
            Ok(status) if status.success() => Ok(message.text()),
            Ok(status) => {
                let arguments = arguments.join(" ");
                Err(TaskError::Failed(format!(
                    "{name} {arguments} ended with {status}: {}",
                    message.last_line()
                )))
            }
            Err(ProgramError::Interrupted(Interrupt::DeadlineExceeded))
                if deadline.check().is_ok() =>
            {
                Err(TaskError::Failed(format!(
                    "{name} did not answer within {} s; is the driver well?",
                    limit.as_secs()
                )))
            }
            Err(ProgramError::Interrupted(halt)) => Err(TaskError::Interrupted(halt)),
            Err(ProgramError::Lost(error)) => {
                Err(TaskError::Failed(format!("{name} does not run: {error}")))
            }
        }
    }
}

/// The number of NVIDIA displays and 3D controllers on the PCI bus.
fn count_pci_gpus(devices: &Path) -> usize {
    let is = |device: &Path, file: &str, value: &str| {
        fs::read_to_string(device.join(file)).is_ok_and(|text| text.trim().starts_with(value))
    };
    let listed = fs::read_dir(devices).into_iter().flatten().flatten().map(|entry| entry.path());
    listed.filter(|one| is(one, "vendor", NVIDIA) && is(one, "class", DISPLAY)).count()
}

fn raw_pid(pid: Pid) -> i32 {
    pid.as_raw_nonzero().get()
}

fn parse_processes(message: &str) -> Result<Vec<Pid>, TaskError> {
    let lines = message.lines().map(str::trim);
    let mut found = Vec::new();
    for line in lines.filter(|line| !line.is_empty() && !line.eq_ignore_ascii_case(EMPTY_LIST)) {
        match line.parse().ok().filter(|number| *number > INIT).and_then(Pid::from_raw) {
            Some(pid) => found.push(pid),
            None => {
                return Err(TaskError::Failed(format!(
                    "nvidia-smi lists {line:?}, which is no process"
                )));
            }
        }
    }
    found.sort_by_key(|pid| raw_pid(*pid));
    found.dedup();
    Ok(found)
}

/// The signal that is due, by the time since SIGTERM.
fn due_signal(requested: Option<Duration>, grace: Duration) -> Option<Signal> {
    match requested {
        None => Some(Signal::TERM),
        Some(since) if since >= grace => Some(Signal::KILL),
        Some(_) => None,
    }
}

fn signal_name(signal: Signal) -> &'static str {
    if signal == Signal::KILL { "SIGKILL" } else { "SIGTERM" }
}

/// The failure when the deadline passes while processes remain.
fn deadline_failure(halt: Interrupt, left: &[Pid]) -> TaskError {
    match halt {
        Interrupt::Stopped | Interrupt::LeaseLost => TaskError::Interrupted(halt),
        Interrupt::DeadlineExceeded => TaskError::Failed(format!(
            "the time is over, and there is still {}",
            describe_processes(left)
        )),
    }
}

pub fn describe_processes(pids: &[Pid]) -> String {
    let some: Vec<String> =
        pids.iter().take(MAX_NAMED).map(|pid| raw_pid(*pid).to_string()).collect();
    let more = match pids.len().saturating_sub(MAX_NAMED) {
        0 => String::new(),
        count => format!(" and {count} more"),
    };
    format!("work on the GPUs: process {}{more}", some.join(", "))
}

/// Logs a line unless it was the last one logged.
fn log_once(reported: &mut String, line: String, log: &TaskLog) {
    if *reported != line {
        log.line(&line);
        *reported = line;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_lists_are_parsed_completely_or_refused() {
        let numbers = |message: &str| {
            parse_processes(message)
                .map(|pids| pids.into_iter().map(raw_pid).collect::<Vec<_>>())
                .ok()
        };
        for (message, found) in [
            ("", Some(vec![])),
            ("\n", Some(vec![])),
            ("No running processes found\n", Some(vec![])),
            ("12\n7\n12\n", Some(vec![7, 12])),
            ("12\n[N/A]\n", None),
            ("0", None),
            ("1", None),
            ("-5", None),
        ] {
            assert_eq!(numbers(message), found, "{message:?}");
        }
    }

    #[test]
    fn gpus_without_a_driver_are_detected() {
        let folder = tempfile::tempdir().unwrap();
        let (program, bus) = (folder.path().join("smi"), folder.path().join("devices"));
        let gpus =
            Gpus { program: &program, pci_devices: &bus, mark: "", poll_interval: Duration::ZERO };
        let log = TaskLog::default();
        assert_eq!(gpus.detect(&log), GpuPresence::Absent);
        for (slot, vendor, class) in [
            ("0000:01:00.0", "0x15b3", "0x020000"),
            ("0000:02:00.0", "0x1a03", "0x030000"),
            ("0000:03:00.1", "0x10de", "0x040300"),
        ] {
            put(&bus, slot, vendor, class);
        }
        assert_eq!(gpus.detect(&log), GpuPresence::Absent, "other cards, and the sound of one");
        put(&bus, "0000:03:00.0", "0x10de", "0x030000");
        put(&bus, "0000:04:00.0", "0x10de", "0x030200");
        let GpuPresence::Unqueryable(message) = gpus.detect(&log) else {
            panic!("the GPUs were read")
        };
        assert!(
            message.starts_with("2 NVIDIA devices") && message.contains("nvidia_smi"),
            "{message}"
        );
        fs::write(&program, "").unwrap();
        assert_eq!(gpus.detect(&log), GpuPresence::Present);
    }

    fn put(bus: &Path, slot: &str, vendor: &str, class: &str) {
        let device = bus.join(slot);
        fs::create_dir_all(&device).unwrap();
        fs::write(device.join("vendor"), format!("{vendor}\n")).unwrap();
        fs::write(device.join("class"), format!("{class}\n")).unwrap();
    }

    #[test]
    fn sigterm_comes_before_sigkill() {
        let grace = Duration::from_secs(10);
        for (requested, signal) in
            [(None, Some(Signal::TERM)), (Some(9), None), (Some(10), Some(Signal::KILL))]
        {
            assert_eq!(due_signal(requested.map(Duration::from_secs), grace), signal);
        }
        assert_eq!(due_signal(Some(Duration::ZERO), Duration::ZERO), Some(Signal::KILL));
    }

    #[test]
    fn long_process_lists_are_abbreviated() {
        let pids: Vec<Pid> = (2..12).filter_map(Pid::from_raw).collect();
        assert_eq!(
            describe_processes(&pids),
            "work on the GPUs: process 2, 3, 4, 5, 6, 7, 8, 9 and 2 more"
        );
    }
}
