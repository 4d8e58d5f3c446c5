//! Whether the node is well, looked at now and then, in a thread of its own: a look may take a minute, and a heartbeat must not wait.

use super::config::Config;
use super::gpu::{Gpus, Seen};
use super::hook::{Call, Hook};
use super::log::Log;
use super::log::beginning;
use super::patience::Patience;
use super::work::Fail;
use rustix::fs::statvfs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// A hook that takes longer is itself a problem.
const HOOK_LIMIT: Duration = Duration::from_secs(60);
/// With less, the next task could not be written down.
const LEAST_FREE_BYTES: u64 = 16 * 1024 * 1024;
const MAX_PROBLEM_BYTES: usize = 1024;

/// Looks at everything, and says what is wrong.
pub fn look(config: &Config, mark: &str, brake: &AtomicBool) -> Vec<String> {
    let patience = Patience::new(HOOK_LIMIT, brake);
    let problems = [
        disk(&config.state_dir),
        gpus(config, mark, patience),
        hook(config, mark, Patience::new(HOOK_LIMIT, brake)),
    ];
    let said = problems.into_iter().filter_map(Result::err);
    said.map(|said| beginning(&said, MAX_PROBLEM_BYTES).to_owned()).collect()
}

fn disk(folder: &Path) -> Result<(), String> {
    let found = statvfs(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    match found.f_bavail.saturating_mul(found.f_frsize) {
        free if free >= LEAST_FREE_BYTES => Ok(()),
        free => Err(format!(
            "the disk of {} is full: {} left",
            folder.display(),
            crate::console::spoken_size(free)
        )),
    }
}

fn gpus(config: &Config, mark: &str, patience: Patience) -> Result<(), String> {
    let (program, pci_devices) = (&config.nvidia_smi, &config.pci_devices);
    let gpus = Gpus { program, pci_devices, mark, look: Duration::ZERO };
    match gpus.seen(&Log::default()) {
        Seen::Some => {}
        // Whether a node serves before its driver is there is for its hook to say.
        Seen::None | Seen::Hidden(_) => return Ok(()),
    }
    match gpus.processes(patience) {
        Ok(_) => Ok(()),
        Err(Fail::Said(said)) => Err(said),
        Err(Fail::Halt(_)) => Err(format!(
            "{} did not answer within {} s; is the driver well?",
            program.display(),
            HOOK_LIMIT.as_secs()
        )),
    }
}

fn hook(config: &Config, mark: &str, patience: Patience) -> Result<(), String> {
    let Some(path) = Hook::Health.find(&config.hooks_dir)? else { return Ok(()) };
    let call = Call { hook: Hook::Health, path: &path, variables: Vec::new(), mark };
    match call.run(patience, &Arc::new(Log::default())) {
        Ok(()) => Ok(()),
        Err(Fail::Said(said)) => Err(said),
        Err(Fail::Halt(_)) => {
            Err(format!("the hook health did not end within {} s", HOOK_LIMIT.as_secs()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::process::Command;

    /// Written by another process: what is open for writing here, or in a child just forked, cannot be started.
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
        let (brake, mark) = (AtomicBool::new(false), crate::random::uuid().unwrap());
        assert_eq!(look(&config, &mark, &brake), Vec::<String>::new());
        script(&folder.path().join("smi"), "exit 0");
        script(&folder.path().join("health"), "exit 0");
        assert_eq!(look(&config, &mark, &brake), Vec::<String>::new());
        script(&folder.path().join("smi"), "echo GPU is lost; exit 9");
        script(&folder.path().join("health"), "echo fan 3 stands still >&2; exit 1");
        let problems = look(&config, &mark, &brake);
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(problems[0].contains("GPU is lost") && problems[1].contains("fan 3 stands still"));
        fs::remove_file(folder.path().join("smi")).unwrap();
        fs::remove_file(folder.path().join("health")).unwrap();
        let gone = Config { state_dir: folder.path().join("gone"), ..config };
        assert!(look(&gone, &mark, &brake)[0].contains("gone"));
    }
}
