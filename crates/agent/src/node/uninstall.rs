//! Uninstalls the agent, after its last report: first its secrets are removed, then its unit is
//! disabled, then the marker file is removed.
//!
//! Killed at any point in between, it continues because of the marker file. The unit is disabled
//! and not stopped: stopping it would kill the agent before the marker is removed. Instead the
//! agent exits with 0, after which the unit does not restart it.

use super::Service;
use super::deadline::Deadline;
use super::journal::UninstallMarker;
use super::log::TaskLog;
use super::program;
use crate::console::print_line;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// There is no one left to report to, so the number of attempts is limited.
const TRIES: u32 = 3;
const LIMIT: Duration = Duration::from_secs(60);

impl Service<'_> {
    pub fn uninstall(&self, leaving: &UninstallMarker) -> Result<(), String> {
        print_line(&format!("{}: leaving this node", leaving.task));
        self.journal.remove_all_but_uninstall_marker()?;
        self.disable_unit();
        // Files of others in the directory stay.
        self.journal.remove().or_else(|message| {
            print_line(&message);
            Ok(())
        })
    }

    fn disable_unit(&self) {
        let (program, unit) = (&self.config.systemctl, &self.config.unit);
        if !program.exists() {
            return print_line(&format!("there is no {}: nothing to disable", program.display()));
        }
        for turn in 0..TRIES {
            if turn > 0 {
                thread::sleep(self.timing.pause);
            }
            match self.disable_unit_once() {
                Ok(()) => return print_line(&format!("{unit} is disabled")),
                Err(message) => print_line(&format!("{unit} cannot be disabled: {message}")),
            }
        }
        print_line(&format!("disable it by hand: {} disable {unit}", program.display()));
    }

    fn disable_unit_once(&self) -> Result<(), String> {
        let never = std::sync::atomic::AtomicBool::new(false);
        let mut command = Command::new(&self.config.systemctl);
        command.args(["disable", &self.config.unit]);
        let log = Arc::new(TaskLog::default());
        match program::run_program(command, &self.mark("leave"), Deadline::new(LIMIT, &never), &log)
        {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("{status}: {}", log.last_line())),
            Err(stray) => Err(format!("{stray:?}")),
        }
    }
}
