//! Why an installation failed, as far as what was written about it says. A new system that does not get its data from MAAS when it
//! first boots is the one cause that goes away by trying again.

use super::hand::{Work, disagrees, done, has};
use crate::maas::{Machine, Status};
use model::effect::{Answer, Outcome};
use model::fault::{Code, Fault};

/// How many of the last lines of an installer's log are written down.
const LAST_LINES: usize = 60;
/// The longest line that is said.
const MAX_SAID: usize = 300;

/// In small letters: one of these in a line is enough.
const ALONE: [&str; 8] = [
    "datasourcenotfound",
    "no instance datasource found",
    "no datasource found",
    "did not find any data source",
    "datasourcenone",
    "giving up on md from",
    "failed to get metadata from maas",
    "could not find a datasource",
];

/// In small letters: all of a row in one line.
const TOGETHER: [&[&str]; 5] = [
    &["can not apply stage", "datasource"],
    &["cloud-init", "datasource"],
    &["'url' failed", "metadata"],
    &["calling 'http", "/maas/metadata", "failed"],
    &["url_helper", "metadata", "timed out"],
];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Cause {
    /// The line that says so.
    Datasource(String),
    /// The last thing that was said.
    Other(String),
}

/// The cause, from what MAAS noted and what the installer wrote, oldest first.
pub(super) fn cause(events: &[String], log: &str) -> Cause {
    let lines = || events.iter().map(String::as_str).chain(log.lines()).map(str::trim);
    if let Some(line) = lines().find(|line| is_datasource(line)) {
        return Cause::Datasource(shown(line));
    }
    let last = lines().rfind(|line| !line.is_empty());
    Cause::Other(last.map_or_else(|| "nothing was written about it".into(), shown))
}

fn is_datasource(line: &str) -> bool {
    let line = line.to_lowercase();
    ALONE.iter().any(|words| line.contains(words))
        || TOGETHER.iter().any(|row| row.iter().all(|words| line.contains(words)))
}

fn shown(line: &str) -> String {
    line.chars().take(MAX_SAID).collect()
}

impl Work<'_> {
    pub async fn classify(&self) -> Result<Answer, Fault> {
        self.only_look(async {
            let machine = self.locate().await?;
            match machine.status {
                Status::Deployed => self.classified(&machine, "nothing failed"),
                Status::FailedDeployment => match self.why(&machine).await? {
                    Cause::Datasource(line) => self.classified(
                        &machine,
                        &format!("the new system did not get its data: {line}"),
                    ),
                    Cause::Other(line) => {
                        let said = format!("{}: {line}", has(&machine));
                        Err(Fault::new(Code::DeployFailed, said))
                    }
                },
                _ => Err(disagrees(&machine, "it is neither installed nor has that failed")),
            }
        })
        .await
    }

    fn classified(&self, machine: &Machine, said: &str) -> Result<Outcome, Fault> {
        match done(machine, format!("{}; {said}", has(machine))) {
            Answer::Done(outcome) => Ok(outcome),
            other => Err(Fault::new(Code::ProtocolBroken, format!("{other:?}"))),
        }
    }

    /// Why the last installation failed. All that is known of it goes into the log.
    pub async fn why(&self, machine: &Machine) -> Result<Cause, Fault> {
        let id = &machine.system_id;
        let events = self.hand.tell_events(id).await?;
        let log = self.hand.maas().installation_log(id).await?.unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        for line in &lines[lines.len().saturating_sub(LAST_LINES)..] {
            self.hand.journal.line(format!("install: {line}")).await;
        }
        Ok(cause(&events, &log))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_datasource_is_recognised_by_its_words() {
        for line in [
            "cloud-init[1273]: Can not apply stage final, no datasource found! Likely bad things to come!",
            "2026-11-16 10:00:00,000 - main.py[ERROR]: No instance datasource found! Likely bad things to come!",
            "cloudinit.sources.DataSourceNotFoundException: Did not find any data source, searched classes: (DataSourceMAAS)",
            "url_helper.py[WARNING]: Calling 'http://10.0.0.1:5248/MAAS/metadata/' failed [50/120s]: request error",
            "DataSourceMAAS.py[CRITICAL]: Giving up on md from ['http://10.0.0.1/MAAS/metadata/2012-03-01/meta-data/instance-id']",
            "'url' failed: http://10.0.0.1:5240/MAAS/metadata/curtin timed out",
            "Node installation failure: 'cloudinit' searching for network datasources; cloud-init found no datasource",
            "url_helper.py: http://10.0.0.1/MAAS/metadata/ timed out",
        ] {
            let log = format!("curtin: Installation started.\n{line}\nrebooting");
            assert_eq!(cause(&[], &log), Cause::Datasource(line.into()));
            assert_eq!(cause(&[line.to_owned()], ""), Cause::Datasource(line.into()));
        }
    }

    #[test]
    fn of_anything_else_the_last_line_is_said() {
        for (events, log, last) in [
            (vec!["Node installation failure: curtin"], "", "Node installation failure: curtin"),
            (
                vec!["a"],
                "curtin: Installation failed with exception\nFailed to format sda\n\n",
                "Failed to format sda",
            ),
            (
                vec![],
                "cloud-init: finished at 10:00\nCommand 'grub-install' failed",
                "Command 'grub-install' failed",
            ),
            (vec![], "", "nothing was written about it"),
        ] {
            let events: Vec<String> = events.into_iter().map(str::to_owned).collect();
            assert_eq!(cause(&events, log), Cause::Other(last.into()));
        }
        let long = "x".repeat(1_000);
        assert_eq!(cause(&[], &long), Cause::Other("x".repeat(MAX_SAID)));
    }
}
