//! The agent's own end. Its last word has been reported; now its secrets go, its unit is disabled, and then the note that says so.
//!
//! Killed at any point in between, it goes on from that note. The unit is disabled and not stopped: stopping it would kill the
//! agent before the note is gone. It ends with 0 instead, and the unit says that after that it is not started again.

use super::Service;
use super::journal::Leaving;
use super::log::Log;
use super::patience::Patience;
use super::program;
use crate::console::say;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Nobody is left to be told, so it is not tried for ever.
const TRIES: u32 = 3;
const LIMIT: Duration = Duration::from_secs(60);

impl Service<'_> {
    pub fn leave(&self, leaving: &Leaving) -> Result<(), String> {
        say(&format!("{}: leaving this node", leaving.task));
        self.journal.forget_all_but_leaving()?;
        self.disable();
        // What somebody else has put into the folder is theirs.
        self.journal.remove().or_else(|said| {
            say(&said);
            Ok(())
        })
    }

    fn disable(&self) {
        let (program, unit) = (&self.config.systemctl, &self.config.unit);
        if !program.exists() {
            return say(&format!("there is no {}: nothing to disable", program.display()));
        }
        for turn in 0..TRIES {
            if turn > 0 {
                thread::sleep(self.pace.pause);
            }
            match self.disable_once() {
                Ok(()) => return say(&format!("{unit} is disabled")),
                Err(said) => say(&format!("{unit} cannot be disabled: {said}")),
            }
        }
        say(&format!("disable it by hand: {} disable {unit}", program.display()));
    }

    fn disable_once(&self) -> Result<(), String> {
        let never = std::sync::atomic::AtomicBool::new(false);
        let mut command = Command::new(&self.config.systemctl);
        command.args(["disable", &self.config.unit]);
        let log = Arc::new(Log::default());
        match program::run(command, &self.mark("leave"), Patience::new(LIMIT, &never), &log) {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("{status}: {}", log.last())),
            Err(stray) => Err(format!("{stray:?}")),
        }
    }
}
