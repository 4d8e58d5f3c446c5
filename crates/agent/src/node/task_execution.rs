//! Executes the kinds of tasks: first the site's hook, then the agent's own part, then a
//! verification. A task is done when the node's state confirms it. Every task can be repeated from
//! its beginning.

use super::config::Config;
use super::deadline::{Deadline, Interrupt};
use super::gpu::{GpuPresence, Gpus, describe_processes};
use super::hook::{Hook, HookCall, variable_name};
use super::log::{TaskLog, beginning};
use super::scratch;
use std::sync::Arc;
use std::time::Duration;
use wire::node::{MAX_MESSAGE_BYTES, Task, TaskKind};

/// The default time between SIGTERM and SIGKILL.
const DEFAULT_GRACE_SECONDS: u64 = 10;
/// The parameter that overrides it.
const GRACE: &str = "grace_seconds";
const MAX_PARAMETERS: usize = 64;

/// The result for GPUs that are absent or cannot be queried.
const UNSEEN: &str = "no GPUs were seen";

/// `Yes` if a hook exists and was run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HookRun {
    Yes,
    No,
}

/// The reason why a task did not finish.
#[derive(Debug, PartialEq, Eq)]
pub enum TaskError {
    Interrupted(Interrupt),
    Failed(String),
}

/// The result of a task, with a sentence for the operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskOutcome {
    pub ok: bool,
    pub message: String,
}

impl TaskOutcome {
    fn new(ok: bool, text: &str) -> Self {
        Self { ok, message: beginning(text, MAX_MESSAGE_BYTES).to_owned() }
    }
}

pub struct TaskExecution<'a> {
    pub config: &'a Config,
    pub task: &'a Task,
    pub mark: &'a str,
    pub deadline: Deadline<'a>,
    pub log: &'a Arc<TaskLog>,
    /// The interval of checks for processes on the GPUs.
    pub poll_interval: Duration,
}

impl TaskExecution<'_> {
    pub fn execute(&self) -> TaskOutcome {
        let Some(kind) = TaskKind::parse(&self.task.kind) else {
            let message = format!(
                "this agent ({}) does not know tasks of kind {:?}; update it",
                env!("CARGO_PKG_VERSION"),
                beginning(&self.task.kind, MAX_MESSAGE_BYTES / 2)
            );
            return TaskOutcome::new(false, &message);
        };
        let done = match kind {
            TaskKind::Drain => self.drain(),
            TaskKind::Release => self.release(),
            TaskKind::Scrub => self.scrub(),
            TaskKind::Validate => self.validate(),
            TaskKind::CleanupStorage => self.cleanup_storage(),
            TaskKind::Uninstall => self.uninstall(),
        };
        match done {
            Ok(message) => TaskOutcome::new(true, &message),
            Err(TaskError::Failed(message)) => TaskOutcome::new(false, &message),
            Err(TaskError::Interrupted(Interrupt::Stopped)) => {
                TaskOutcome::new(false, "told to stop")
            }
            Err(TaskError::Interrupted(Interrupt::LeaseLost)) => {
                TaskOutcome::new(false, "the lease was not renewed")
            }
            Err(TaskError::Interrupted(Interrupt::DeadlineExceeded)) => {
                let seconds = self.task.deadline_seconds;
                TaskOutcome::new(false, &format!("not done within {seconds} s"))
            }
        }
    }

    fn drain(&self) -> Result<String, TaskError> {
        self.hook(Hook::Drain)?;
        match self.gpus().detect(self.log) {
            GpuPresence::Present => self.gpus().wait(self.deadline, self.log)?,
            // Without a driver nothing can run on the GPUs, and the tasks that clean the node check
            // them more strictly.
            GpuPresence::Absent | GpuPresence::Unqueryable(_) => return Ok(UNSEEN.into()),
        }
        Ok("nothing runs on the GPUs".into())
    }

    fn release(&self) -> Result<String, TaskError> {
        let grace = self.grace()?;
        self.hook(Hook::Release)?;
        match self.gpus().detect(self.log) {
            GpuPresence::Present => self.gpus().release(grace, self.deadline, self.log)?,
            GpuPresence::Absent | GpuPresence::Unqueryable(_) => return Ok(UNSEEN.into()),
        }
        Ok("nothing runs on the GPUs any more".into())
    }

    fn scrub(&self) -> Result<String, TaskError> {
        self.hook(Hook::Scrub)?;
        match self.gpus().detect(self.log) {
            GpuPresence::Present => {}
            GpuPresence::Absent => return Ok("there are no GPUs to reset".into()),
            GpuPresence::Unqueryable(message) => return Err(TaskError::Failed(message)),
        }
        self.check_idle()?;
        self.gpus().reset(self.deadline, self.log)?;
        // The GPUs answer again, and no process has started meanwhile.
        self.check_idle()?;
        Ok("the GPUs are reset".into())
    }

    fn cleanup_storage(&self) -> Result<String, TaskError> {
        let hook = self.hook(Hook::CleanupStorage)?;
        let Some(dirs) = &self.config.scratch_dirs else {
            return match hook {
                HookRun::Yes => Ok("the hook has cleaned up".into()),
                HookRun::No => Err(TaskError::Failed(self.no_cleanup_message())),
            };
        };
        scratch::empty_dirs(dirs, self.deadline, self.log)?;
        Ok(match (dirs.len(), hook) {
            (0, HookRun::No) => "scratch_dirs says that nothing is stored here".into(),
            (0, HookRun::Yes) => "the hook has cleaned up".into(),
            (count, HookRun::Yes | HookRun::No) => format!("scratch folders emptied: {count}"),
        })
    }

    /// Neither a hook nor `scratch_dirs` says what to clean, so nothing was cleaned.
    fn no_cleanup_message(&self) -> String {
        let hooks = self.config.hooks_dir.display();
        format!(
            "nothing says what is to be cleaned: write scratch_dirs = [\"/scratch\"] with the folders that users write to into agent.toml \
             (scratch_dirs = [] if nothing is stored here), or put a program at {hooks}/cleanup_storage; then type systemctl restart {}",
            self.config.unit
        )
    }

    fn check_cleanup_configured(&self) -> Result<(), TaskError> {
        let hook = Hook::CleanupStorage.find(&self.config.hooks_dir).map_err(TaskError::Failed)?;
        match (&self.config.scratch_dirs, hook) {
            (None, None) => Err(TaskError::Failed(self.no_cleanup_message())),
            (Some(_), _) | (None, Some(_)) => Ok(()),
        }
    }

    /// Runs all checks, so that every problem is reported at once.
    fn validate(&self) -> Result<String, TaskError> {
        let mut problems = Vec::new();
        collect_problem(&mut problems, self.hook(Hook::Validate).map(drop))?;
        match self.gpus().detect(self.log) {
            GpuPresence::Present => collect_problem(&mut problems, self.check_idle())?,
            GpuPresence::Absent => {}
            GpuPresence::Unqueryable(message) => problems.push(message),
        }
        collect_problem(&mut problems, self.check_cleanup_configured())?;
        let dirs = self.config.scratch_dirs.as_deref().unwrap_or_default();
        problems.extend(scratch::find_leftovers(dirs));
        problems.iter().for_each(|problem| self.log.line(problem));
        match problems.is_empty() {
            true => Ok("the node is clean".into()),
            false => Err(TaskError::Failed(problems.join("; "))),
        }
    }

    /// The rest follows after the report, because the agent could not send it afterwards.
    fn uninstall(&self) -> Result<String, TaskError> {
        self.hook(Hook::Uninstall)?;
        Ok("the agent leaves the node".into())
    }

    fn check_idle(&self) -> Result<(), TaskError> {
        let left = self.gpus().processes(self.deadline)?;
        match left.is_empty() {
            true => Ok(()),
            false => {
                Err(TaskError::Failed(format!("there is still {}", describe_processes(&left))))
            }
        }
    }

    fn gpus(&self) -> Gpus<'_> {
        let Config { nvidia_smi, pci_devices, .. } = self.config;
        Gpus {
            program: nvidia_smi,
            pci_devices,
            mark: self.mark,
            poll_interval: self.poll_interval,
        }
    }

    fn grace(&self) -> Result<Duration, TaskError> {
        let written = self.task.params.get(GRACE).map(|text| text.parse());
        match written.unwrap_or(Ok(DEFAULT_GRACE_SECONDS)) {
            Ok(seconds) => Ok(Duration::from_secs(seconds)),
            Err(_) => Err(TaskError::Failed(format!(
                "the parameter {GRACE} is no number of seconds; write it like \"10\""
            ))),
        }
    }

    fn hook(&self, hook: Hook) -> Result<HookRun, TaskError> {
        let Some(path) = hook.find(&self.config.hooks_dir).map_err(TaskError::Failed)? else {
            self.log.line(&format!("no hook {}", hook.as_str()));
            return Ok(HookRun::No);
        };
        if self.task.params.len() > MAX_PARAMETERS {
            return Err(TaskError::Failed(format!("more than {MAX_PARAMETERS} parameters")));
        }
        self.log.line(&format!("hook {}", path.display()));
        let parameters = self.task.params.iter();
        let mut variables: Vec<(String, String)> =
            parameters.map(|(name, value)| (variable_name(name), value.clone())).collect();
        // Pushed last, so that no parameter overrides them.
        variables.push(("FARRIER_TASK_ID".into(), self.task.id.clone()));
        variables.push(("FARRIER_TASK_KIND".into(), self.task.kind.clone()));
        HookCall { hook, path: &path, variables, mark: self.mark }.run(self.deadline, self.log)?;
        Ok(HookRun::Yes)
    }
}

/// Collects a problem; a halt is not a problem and is passed on.
fn collect_problem(
    problems: &mut Vec<String>,
    done: Result<(), TaskError>,
) -> Result<(), TaskError> {
    match done {
        Ok(()) => Ok(()),
        Err(TaskError::Failed(message)) => {
            problems.push(message);
            Ok(())
        }
        Err(TaskError::Interrupted(halt)) => Err(TaskError::Interrupted(halt)),
    }
}
