//! Finds the cause of a failed installation in events and logs. Only one cause is worth a retry:
//! the new system could not get its data from MAAS at first boot (datasource failure).

use super::executor::{StageExecutor, describe_state, outcome, state_disagrees};
use super::masking::masked;
use crate::maas::{Event, Machine, Status};
use crate::secret_mask::SecretMask;
use model::effect::CallResult;
use model::fault::{Fault, FaultCode, Result};

/// The number of the last lines of an installer's log that are copied.
const LAST_LINES: usize = 60;
/// The longest quoted line.
const MAX_LINE_CHARS: usize = 300;
/// The types of the events that MAAS writes at the INFO level when a machine becomes Deploying,
/// Deployed or Commissioning. The requests of users are DEBUG events, so a query for INFO does not
/// show them.
pub(super) const DEPLOYING_EVENT: &str = "Deploying";
pub(super) const DEPLOYED_EVENT: &str = "Deployed";
pub(super) const COMMISSIONING_EVENT: &str = "Commissioning";

/// In lower case: any one of these in a line.
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

/// In lower case: all of a row in one line.
const TOGETHER: [&[&str]; 3] = [
    &["can not apply stage", "datasource"],
    &["calling 'http", "/maas/metadata", "failed"],
    &["url_helper", "metadata", "timed out"],
];

/// In lower case: such a line shows the installer's configuration, which always names datasources.
const CONFIGURATION: [&str; 2] = ["debconf_selections", "cloud-init/"];

/// In lower case: curtin's messages for success and failure.
const FINISHED: &str = "installation finished";
const FAILED: &str = "installation failed";
/// In lower case: MAAS's event when the machine did not report back in time.
const TIMED_OUT: &str = "operation 'deploying' timed out";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FailureCause {
    /// The line that shows it.
    Datasource(String),
    /// The last line of events and log.
    Other(String),
}

/// The cause, from the events and the installer's log, oldest first. The quoted line is masked
/// before it is cut.
pub(super) fn cause(events: &[String], log: &str, mask: &SecretMask) -> FailureCause {
    let shown =
        |line: &str| -> String { masked(&mask.text(line)).chars().take(MAX_LINE_CHARS).collect() };
    let lines = || events.iter().map(String::as_str).chain(log.lines()).map(str::trim);
    if let Some(line) = lines().find(|line| is_datasource(line)) {
        return FailureCause::Datasource(shown(line));
    }
    if let (true, Some(line)) =
        (is_installer_finished(log), events.iter().find(|line| is_deploy_timeout(line)))
    {
        return FailureCause::Datasource(shown(line));
    }
    let last = lines().rfind(|line| !line.is_empty());
    FailureCause::Other(last.map_or_else(|| "nothing was written about it".into(), shown))
}

fn is_datasource(line: &str) -> bool {
    let line = line.to_lowercase();
    let has = |words: &&str| line.contains(words);
    !CONFIGURATION.iter().any(has)
        && (ALONE.iter().any(has) || TOGETHER.iter().any(|row| row.iter().all(has)))
}

/// True if the installer succeeded, so that the failure came later.
fn is_installer_finished(log: &str) -> bool {
    let log = log.to_lowercase();
    log.contains(FINISHED) && !log.contains(FAILED)
}

fn is_deploy_timeout(event: &str) -> bool {
    event.to_lowercase().contains(TIMED_OUT)
}

impl StageExecutor<'_> {
    pub async fn classify(&self) -> CallResult {
        self.run_read_only(async {
            let machine = self.locate().await?;
            let state = describe_state(&machine);
            if machine.status == Status::Deployed {
                return Ok(outcome(&machine, format!("{state}; nothing failed")));
            }
            if machine.status != Status::FailedDeployment {
                let instead = "it is neither installed nor has that failed";
                return Err(state_disagrees(&machine, instead));
            }
            match self.failure_cause(&machine).await? {
                FailureCause::Datasource(line) => {
                    let message = format!("{state}; the new system did not get its data: {line}");
                    Ok(outcome(&machine, message))
                }
                FailureCause::Other(line) => {
                    Err(Fault::new(FaultCode::DeployFailed, format!("{state}: {line}")))
                }
            }
        })
        .await
    }

    /// The cause of the last failed installation. Copies events and log to the run's log.
    pub async fn failure_cause(&self, machine: &Machine) -> Result<FailureCause> {
        let id = &machine.system_id;
        let noted = self.call.log_events(id, DEPLOYING_EVENT).await?;
        let log = self.call.maas().installation_log(id).await?.unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        for line in &lines[lines.len().saturating_sub(LAST_LINES)..] {
            self.call.journal.write_line(format!("install: {}", masked(line))).await;
        }
        // An event without a description only names a new status.
        let told = noted.iter().filter(|event| !event.description.is_empty());
        let message = |event: &Event| format!("{}: {}", event.kind, event.description);
        let events: Vec<String> = told.map(message).collect();
        Ok(cause(&events, &log, self.call.journal.mask()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_masked_before_the_line_is_cut() {
        let mask = SecretMask::of(&["calvin-the-secret".into()]);
        let start = "x".repeat(MAX_LINE_CHARS - 7);
        for (line, end) in [
            (format!("{start} calvin-the-secret"), " ***"),
            (format!("{start} token_key=abcdefgh"), " token_"),
            (format!("{} token_secret=s3cret", "x".repeat(MAX_LINE_CHARS - 18)), "secret=***"),
        ] {
            let FailureCause::Other(shown) = cause(&[], &line, &mask) else { panic!() };
            assert!(shown.ends_with(end), "{shown}");
            assert!(!shown.contains("calvin") && !shown.contains("s3c"), "{shown}");
        }
    }

    #[test]
    fn a_datasource_failure_is_recognised_by_its_messages() {
        for line in [
            "cloud-init[1273]: Can not apply stage final, no datasource found! Likely bad things to come!",
            "2026-11-16 10:00:00,000 - main.py[ERROR]: No instance datasource found! Likely bad things to come!",
            "cloudinit.sources.DataSourceNotFoundException: Did not find any data source, searched classes: (DataSourceMAAS)",
            "url_helper.py[WARNING]: Calling 'http://10.0.0.1:5248/MAAS/metadata/' failed [50/120s]: request error",
            "DataSourceMAAS.py[CRITICAL]: Giving up on md from ['http://10.0.0.1/MAAS/metadata/2012-03-01/meta-data/instance-id']",
            "url_helper.py: http://10.0.0.1/MAAS/metadata/ timed out",
        ] {
            let log = format!("curtin: Installation started.\n{line}\nrebooting");
            assert_eq!(
                cause(&[], &log, &SecretMask::default()),
                FailureCause::Datasource(line.into())
            );
            assert_eq!(
                cause(&[line.to_owned()], "", &SecretMask::default()),
                FailureCause::Datasource(line.into())
            );
        }
    }

    #[test]
    fn a_timeout_after_the_installer_is_a_datasource_failure() {
        let late = "Marking node failed: Machine operation 'Deploying' timed out after 30 minutes.";
        let log = "Installing for Ubuntu\ncurtin: Installation finished.\n";
        assert_eq!(
            cause(&[late.to_owned()], log, &SecretMask::default()),
            FailureCause::Datasource(late.into())
        );
    }

    #[test]
    fn other_causes_quote_the_last_line() {
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
            // Configuration and normal progress name datasources too.
            (
                vec![
                    "Node status event: 'cloudinit' searching for network data from DataSourceMAAS",
                ],
                "curthooks handling apt to target /tmp/x with config {'debconf_selections': {'maas': 'cloud-init   cloud-init/datasources  multiselect MAAS'}}\n\
                 request to http://10.0.0.1:5248/MAAS/metadata/status/abc failed. sleeping 1.: HTTP Error 503\n\
                 curtin: Installation failed with exception: Command 'grub-install' failed",
                "curtin: Installation failed with exception: Command 'grub-install' failed",
            ),
            // It timed out before the installer finished.
            (
                vec![
                    "Marking node failed: Machine operation 'Deploying' timed out after 30 minutes.",
                ],
                "writing the image",
                "writing the image",
            ),
            (vec![], "", "nothing was written about it"),
        ] {
            let events: Vec<String> = events.into_iter().map(str::to_owned).collect();
            assert_eq!(
                cause(&events, log, &SecretMask::default()),
                FailureCause::Other(last.into())
            );
        }
        let long = "x".repeat(1_000);
        assert_eq!(
            cause(&[], &long, &SecretMask::default()),
            FailureCause::Other("x".repeat(MAX_LINE_CHARS))
        );
    }
}
