//! Hooks: the site's programs, which do the parts of a task that depend on the site. Each is
//! optional.

use super::deadline::Deadline;
use super::log::TaskLog;
use super::program::{self, ProgramError};
use super::task_execution::TaskError;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

const ANYBODY_RUNS: u32 = 0o111;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    Drain,
    Release,
    Scrub,
    Validate,
    CleanupStorage,
    Uninstall,
    Health,
}

impl Hook {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Drain => "drain",
            Self::Release => "release",
            Self::Scrub => "scrub",
            Self::Validate => "validate",
            Self::CleanupStorage => "cleanup_storage",
            Self::Uninstall => "uninstall",
            Self::Health => "health",
        }
    }

    /// Its path, if it exists.
    pub fn find(self, folder: &Path) -> Result<Option<PathBuf>, String> {
        let path = folder.join(self.as_str());
        match fs::metadata(&path) {
            Ok(found) if !found.is_file() => {
                Err(format!("the hook {} is no file; put a program there", path.display()))
            }
            Ok(found) if found.permissions().mode() & ANYBODY_RUNS == 0 => Err(format!(
                "the hook {} is not executable; type chmod 755 {}",
                path.display(),
                path.display()
            )),
            Ok(_) => Ok(Some(path)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(format!("the hook {}: {error}", path.display())),
        }
    }
}

/// A call of a hook.
pub struct HookCall<'a> {
    pub hook: Hook,
    pub path: &'a Path,
    pub variables: Vec<(String, String)>,
    pub mark: &'a str,
}

impl HookCall<'_> {
    pub fn run(self, deadline: Deadline, log: &Arc<TaskLog>) -> Result<(), TaskError> {
        let mut command = Command::new(self.path);
        command.current_dir("/").envs(self.variables);
        let name = self.hook.as_str();
        match program::run_program(command, self.mark, deadline, log) {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => {
                let last = log.last_line();
                Err(TaskError::Failed(format!("the hook {name} ended with {status}: {last}")))
            }
            Err(ProgramError::Interrupted(halt)) => Err(TaskError::Interrupted(halt)),
            Err(ProgramError::Lost(error)) => Err(TaskError::Failed(format!(
                "the hook {} does not run: {error}",
                self.path.display()
            ))),
        }
    }
}

/// The environment variable of a parameter: FARRIER_GRACE_SECONDS for `grace_seconds`.
pub fn variable_name(parameter: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    format!("FARRIER_{}", parameter.chars().map(plain).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_becomes_a_variable() {
        for (parameter, name) in [
            ("grace_seconds", "FARRIER_GRACE_SECONDS"),
            ("a.b-c", "FARRIER_A_B_C"),
            ("é=", "FARRIER___"),
        ] {
            assert_eq!(variable_name(parameter), name);
        }
    }

    #[test]
    fn hooks_are_found_or_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Hook::Drain.find(folder.path()), Ok(None));
        let path = folder.path().join("drain");
        fs::write(&path, "#!/bin/sh\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(Hook::Drain.find(folder.path()).unwrap_err().contains("chmod 755"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(Hook::Drain.find(folder.path()), Ok(Some(path)));
        fs::create_dir(folder.path().join("scrub")).unwrap();
        assert!(Hook::Scrub.find(folder.path()).unwrap_err().contains("no file"));
    }
}
