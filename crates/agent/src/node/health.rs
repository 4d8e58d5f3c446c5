//! Checks the node's health at an interval, in a separate thread: a check may take a minute, and
//! heartbeats must not wait for it.

use super::config::Config;
use super::deadline::Deadline;
use super::gpu::{GpuPresence, Gpus};
use super::hook::{Hook, HookCall};
use super::log::{TaskLog, beginning};
use super::task_execution::TaskError;
use rustix::fs::statvfs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// A hook that takes longer is itself a problem.
const HOOK_LIMIT: Duration = Duration::from_secs(60);
/// With less free space, the next task could not be recorded.
const LEAST_FREE_BYTES: u64 = 16 * 1024 * 1024;
const MAX_PROBLEM_BYTES: usize = 1024;

/// Runs all checks and returns the problems.
pub fn check_health(config: &Config, mark: &str, stop_flag: &AtomicBool) -> Vec<String> {
    let deadline = Deadline::new(HOOK_LIMIT, stop_flag);
    let problems = [
        check_disk(&config.state_dir),
        check_gpus(config, mark, deadline),
        run_health_hook(config, mark, Deadline::new(HOOK_LIMIT, stop_flag)),
    ];
    let message = problems.into_iter().filter_map(Result::err);
    message.map(|message| beginning(&message, MAX_PROBLEM_BYTES).to_owned()).collect()
}

fn check_disk(folder: &Path) -> Result<(), String> {
    let found = statvfs(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    match found.f_bavail.saturating_mul(found.f_frsize) {
        free if free >= LEAST_FREE_BYTES => Ok(()),
        free => Err(format!(
            "the disk of {} is full: {} left",
            folder.display(),
            crate::console::format_size(free)
        )),
    }
}

fn check_gpus(config: &Config, mark: &str, deadline: Deadline) -> Result<(), String> {
    let (program, pci_devices) = (&config.nvidia_smi, &config.pci_devices);
    let gpus = Gpus { program, pci_devices, mark, poll_interval: Duration::ZERO };
    match gpus.detect(&TaskLog::default()) {
        GpuPresence::Present => {}
        // The health hook decides if a node may serve without its GPU driver.
        GpuPresence::Absent | GpuPresence::Unqueryable(_) => return Ok(()),
    }
    match gpus.processes(deadline) {
        Ok(_) => Ok(()),
        Err(TaskError::Failed(message)) => Err(message),
        Err(TaskError::Interrupted(_)) => Err(format!(
            "{} did not answer within {} s; is the driver well?",
            program.display(),
            HOOK_LIMIT.as_secs()
        )),
    }
}

fn run_health_hook(config: &Config, mark: &str, deadline: Deadline) -> Result<(), String> {
    let Some(path) = Hook::Health.find(&config.hooks_dir)? else { return Ok(()) };
    let call = HookCall { hook: Hook::Health, path: &path, variables: Vec::new(), mark };
    match call.run(deadline, &Arc::new(TaskLog::default())) {
        Ok(()) => Ok(()),
        Err(TaskError::Failed(message)) => Err(message),
        Err(TaskError::Interrupted(_)) => {
            Err(format!("the hook health did not end within {} s", HOOK_LIMIT.as_secs()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::process::Command;

    /// Another process writes it: a file that is open for writing here, or in a forked child,
    /// cannot be executed.
    fn script(path: &Path, text: &str) {
        let writer = "printf '#!/bin/sh\\n%s\\n' \"$1\" > \"$0\" && chmod 755 \"$0\"";
        let mut command = Command::new("sh");
        command.args(["-c", writer]).arg(path).arg(text);
        assert!(command.status().unwrap().success());
    }

    #[test]
    fn each_problem_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().display();
        let config = Config::parse(&format!(
            "controllers = [\"http://10.0.0.1\"]\nstate_dir = \"{at}\"\nhooks_dir = \"{at}\"\nnvidia_smi = \"{at}/smi\""
        ))
        .unwrap();
        let (stop_flag, mark) = (AtomicBool::new(false), crate::random::new_uuid().unwrap());
        assert_eq!(check_health(&config, &mark, &stop_flag), Vec::<String>::new());
        script(&folder.path().join("smi"), "exit 0");
        script(&folder.path().join("health"), "exit 0");
        assert_eq!(check_health(&config, &mark, &stop_flag), Vec::<String>::new());
        script(&folder.path().join("smi"), "echo GPU is lost; exit 9");
        script(&folder.path().join("health"), "echo fan 3 stands still >&2; exit 1");
        let problems = check_health(&config, &mark, &stop_flag);
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(problems[0].contains("GPU is lost") && problems[1].contains("fan 3 stands still"));
        fs::remove_file(folder.path().join("smi")).unwrap();
        fs::remove_file(folder.path().join("health")).unwrap();
        let gone = Config { state_dir: folder.path().join("gone"), ..config };
        assert!(check_health(&gone, &mark, &stop_flag)[0].contains("gone"));
    }
}
