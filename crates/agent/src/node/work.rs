//! What each kind of task does, in order. First the site's hook, then what the agent can see to itself, and a look at the end: a task is
//! done when the node says so. All of it may be done again from the beginning.

use super::config::Config;
use super::gpu::{Gpus, Seen, named};
use super::hook::{Call, Hook, variable};
use super::log::{Log, beginning};
use super::patience::{Halt, Patience};
use super::scratch;
use std::sync::Arc;
use std::time::Duration;
use wire::node::{MAX_SAID_BYTES, Task, TaskKind};

/// Between asking a process to end and making it, unless the task says otherwise.
const DEFAULT_GRACE_SECONDS: u64 = 10;
/// The parameter that says otherwise.
const GRACE: &str = "grace_seconds";
const MAX_PARAMETERS: usize = 64;

/// What is said of GPUs that are not there, or that nobody can ask.
const UNSEEN: &str = "no GPUs were seen";

/// Whether there is a hook, and it has been run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ran {
    Yes,
    No,
}

/// Why a task did not come to its end.
#[derive(Debug, PartialEq, Eq)]
pub enum Fail {
    Halt(Halt),
    Said(String),
}

/// How a task ended, in words for whoever asked for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    pub ok: bool,
    pub said: String,
}

impl Outcome {
    fn new(ok: bool, said: &str) -> Self {
        Self { ok, said: beginning(said, MAX_SAID_BYTES).to_owned() }
    }
}

pub struct Work<'a> {
    pub config: &'a Config,
    pub task: &'a Task,
    pub mark: &'a str,
    pub patience: Patience<'a>,
    pub log: &'a Arc<Log>,
    /// Between two looks at what runs on the GPUs.
    pub look: Duration,
}

impl Work<'_> {
    pub fn carry_out(&self) -> Outcome {
        let Some(kind) = TaskKind::parse(&self.task.kind) else {
            let said = format!(
                "this agent ({}) does not know tasks of kind {:?}; update it",
                env!("CARGO_PKG_VERSION"),
                beginning(&self.task.kind, MAX_SAID_BYTES / 2)
            );
            return Outcome::new(false, &said);
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
            Ok(said) => Outcome::new(true, &said),
            Err(Fail::Said(said)) => Outcome::new(false, &said),
            Err(Fail::Halt(Halt::Stopped)) => Outcome::new(false, "told to stop"),
            Err(Fail::Halt(Halt::Lapsed)) => Outcome::new(false, "the lease was not renewed"),
            Err(Fail::Halt(Halt::Late)) => {
                let seconds = self.task.deadline_seconds;
                Outcome::new(false, &format!("not done within {seconds} s"))
            }
        }
    }

    fn drain(&self) -> Result<String, Fail> {
        self.hook(Hook::Drain)?;
        match self.gpus().seen(self.log) {
            Seen::Some => self.gpus().wait(self.patience, self.log)?,
            // Nobody computes on them without a driver, and whoever cleans the node after this looks closer.
            Seen::None | Seen::Hidden(_) => return Ok(UNSEEN.into()),
        }
        Ok("nothing runs on the GPUs".into())
    }

    fn release(&self) -> Result<String, Fail> {
        let grace = self.grace()?;
        self.hook(Hook::Release)?;
        match self.gpus().seen(self.log) {
            Seen::Some => self.gpus().release(grace, self.patience, self.log)?,
            Seen::None | Seen::Hidden(_) => return Ok(UNSEEN.into()),
        }
        Ok("nothing runs on the GPUs any more".into())
    }

    fn scrub(&self) -> Result<String, Fail> {
        self.hook(Hook::Scrub)?;
        match self.gpus().seen(self.log) {
            Seen::Some => {}
            Seen::None => return Ok("there are no GPUs to reset".into()),
            Seen::Hidden(said) => return Err(Fail::Said(said)),
        }
        self.check_idle()?;
        self.gpus().reset(self.patience, self.log)?;
        // They answer again, and nobody came meanwhile.
        self.check_idle()?;
        Ok("the GPUs are reset".into())
    }

    fn cleanup_storage(&self) -> Result<String, Fail> {
        let hook = self.hook(Hook::CleanupStorage)?;
        let Some(dirs) = &self.config.scratch_dirs else {
            return match hook {
                Ran::Yes => Ok("the hook has cleaned up".into()),
                Ran::No => Err(Fail::Said(self.unsaid())),
            };
        };
        scratch::empty(dirs, self.patience, self.log)?;
        Ok(match (dirs.len(), hook) {
            (0, Ran::No) => "scratch_dirs says that nothing is stored here".into(),
            (0, Ran::Yes) => "the hook has cleaned up".into(),
            (count, _) => format!("scratch folders emptied: {count}"),
        })
    }

    /// Nobody has said what is to be cleaned, so nothing has been.
    fn unsaid(&self) -> String {
        let hooks = self.config.hooks_dir.display();
        format!(
            "nothing says what is to be cleaned: write scratch_dirs = [\"/scratch\"] with the folders that users write to into agent.toml \
             (scratch_dirs = [] if nothing is stored here), or put a program at {hooks}/cleanup_storage; then type systemctl restart {}",
            self.config.unit
        )
    }

    fn has_cleanup(&self) -> Result<(), Fail> {
        let hook = Hook::CleanupStorage.find(&self.config.hooks_dir).map_err(Fail::Said)?;
        match (&self.config.scratch_dirs, hook) {
            (None, None) => Err(Fail::Said(self.unsaid())),
            (Some(_), _) | (None, Some(_)) => Ok(()),
        }
    }

    /// Everything is looked at, so that every problem is known at once.
    fn validate(&self) -> Result<String, Fail> {
        let mut problems = Vec::new();
        collect(&mut problems, self.hook(Hook::Validate).map(drop))?;
        match self.gpus().seen(self.log) {
            Seen::Some => collect(&mut problems, self.check_idle())?,
            Seen::None => {}
            Seen::Hidden(said) => problems.push(said),
        }
        collect(&mut problems, self.has_cleanup())?;
        let dirs = self.config.scratch_dirs.as_deref().unwrap_or_default();
        problems.extend(scratch::leftovers(dirs));
        problems.iter().for_each(|problem| self.log.line(problem));
        match problems.is_empty() {
            true => Ok("the node is clean".into()),
            false => Err(Fail::Said(problems.join("; "))),
        }
    }

    /// The rest follows once this has been reported, because nobody would be left to report it.
    fn uninstall(&self) -> Result<String, Fail> {
        self.hook(Hook::Uninstall)?;
        Ok("the agent leaves the node".into())
    }

    fn check_idle(&self) -> Result<(), Fail> {
        let left = self.gpus().processes(self.patience)?;
        match left.is_empty() {
            true => Ok(()),
            false => Err(Fail::Said(format!("there is still {}", named(&left)))),
        }
    }

    fn gpus(&self) -> Gpus<'_> {
        let Config { nvidia_smi, pci_devices, .. } = self.config;
        Gpus { program: nvidia_smi, pci_devices, mark: self.mark, look: self.look }
    }

    fn grace(&self) -> Result<Duration, Fail> {
        let written = self.task.params.get(GRACE).map(|text| text.parse());
        match written.unwrap_or(Ok(DEFAULT_GRACE_SECONDS)) {
            Ok(seconds) => Ok(Duration::from_secs(seconds)),
            Err(_) => Err(Fail::Said(format!(
                "the parameter {GRACE} is no number of seconds; write it like \"10\""
            ))),
        }
    }

    fn hook(&self, hook: Hook) -> Result<Ran, Fail> {
        let Some(path) = hook.find(&self.config.hooks_dir).map_err(Fail::Said)? else {
            self.log.line(&format!("no hook {}", hook.as_str()));
            return Ok(Ran::No);
        };
        if self.task.params.len() > MAX_PARAMETERS {
            return Err(Fail::Said(format!("more than {MAX_PARAMETERS} parameters")));
        }
        self.log.line(&format!("hook {}", path.display()));
        let parameters = self.task.params.iter();
        let mut variables: Vec<(String, String)> =
            parameters.map(|(name, value)| (variable(name), value.clone())).collect();
        // Last, so that no parameter takes their place.
        variables.push(("FARRIER_TASK_ID".into(), self.task.id.clone()));
        variables.push(("FARRIER_TASK_KIND".into(), self.task.kind.clone()));
        Call { hook, path: &path, variables, mark: self.mark }.run(self.patience, self.log)?;
        Ok(Ran::Yes)
    }
}

/// Keeps what is only a problem; an order to stop is not one.
fn collect(problems: &mut Vec<String>, done: Result<(), Fail>) -> Result<(), Fail> {
    match done {
        Ok(()) => Ok(()),
        Err(Fail::Said(said)) => {
            problems.push(said);
            Ok(())
        }
        Err(Fail::Halt(halt)) => Err(Fail::Halt(halt)),
    }
}
