//! Hardware sync: an installed system that works reports its hardware to MAAS periodically.

use super::annotations;
use super::checkpoint::{CheckpointStore, OrderCheckpoint, checkpoint_mismatch};
use super::executor::{StageExecutor, describe_state, done, state_disagrees};
use super::failure::DEPLOYED_EVENT;
use crate::clock::now;
use crate::maas::{Machine, Status};
use model::effect::{CallResult, CallVerb, EffectKey, ProviderAnswer};
use model::fault::{Fault, FaultCode, Result};
use std::time::Duration;

/// The interval if MAAS reports none.
const USUAL_INTERVAL: Duration = Duration::from_secs(15 * 60);
/// The number of intervals without a report after which a machine is silent: one may be lost.
const MAX_MISSED_INTERVALS: u32 = 2;
/// The stage ends this long before its time limit, so that it can report what it read.
const REPORT_MARGIN: Duration = Duration::from_secs(60);
/// The first MAAS version with hardware sync.
const MIN_VERSION: (u32, u32) = (3, 2);

/// The usual cause: Deployed means only that the system fetched its data.
const UNCONFIGURED: &str = "the new system may not have set itself up: look at its console and at what its cloud-init wrote";

/// Only a stage that waits records when the machine was Deployed.
const NOT_KNOWN_YET: &str =
    "it is not known yet whether it has told MAAS of its hardware since it was Deployed";

/// True if this version has hardware sync. An unknown MAAS version is treated as the newest.
fn has_hardware_sync(version: &str) -> bool {
    let mut numbers = version.split('.').map(|part| part.parse::<u32>().ok());
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(major), Some(minor)) => (major, minor) >= MIN_VERSION,
        (Some(_), None) | (None, _) => true,
    }
}

/// The time that a machine may stay silent, within the stage's time limit.
fn sync_timeout(machine: &Machine, limit: Duration) -> Duration {
    let usual = machine.sync_interval.unwrap_or(USUAL_INTERVAL) * MAX_MISSED_INTERVALS;
    usual.min(limit.saturating_sub(REPORT_MARGIN))
}

/// Checks that the machine has reported since it was first read as Deployed. MAAS itself stamps the
/// end of a deployment, so the time that was read first proves nothing.
fn sync_health(machine: &Machine, first: Option<&str>) -> Result<String, String> {
    match machine.last_sync.as_deref() {
        None => Err("it has not told MAAS of its hardware yet".into()),
        Some(last) if Some(last) == first => {
            Err(format!("it has not told MAAS of its hardware since {last}, when it was Deployed"))
        }
        Some(last) => Ok(format!("it told MAAS of its hardware at {last}, as MAAS shows the time")),
    }
}

impl StageExecutor<'_> {
    pub async fn ensure_sync(&self) -> CallResult {
        self.run_read_only(async {
            let machine = self.locate().await?;
            if machine.status != Status::Deployed {
                let instead = "hardware sync is looked for once it is Deployed";
                return Err(state_disagrees(&machine, instead));
            }
            let version = self.call.maas().version().await?.version;
            let message = match (has_hardware_sync(&version), machine.enable_hw_sync) {
                (false, _) => format!("MAAS {version} has no hardware sync: nothing is waited for"),
                (true, true) => "hardware sync is set up".to_owned(),
                (true, false) => {
                    let message =
                        format!("{} was installed without hardware sync", machine.system_id);
                    return Err(Fault::new(FaultCode::HardwareSyncFailed, message));
                }
            };
            Ok(super::executor::outcome(&machine, message))
        })
        .await
    }

    pub async fn wait_for_sync(&self) -> CallResult {
        if self.call.verb() == CallVerb::Stop {
            return Ok(ProviderAnswer::Stopped);
        }
        let machine = self.locate().await?;
        let version = self.call.maas().version().await?.version;
        if !has_hardware_sync(&version) {
            return Ok(done(&machine, format!("MAAS {version} has no hardware sync")));
        }
        match self.call.verb() {
            CallVerb::Perform | CallVerb::Follow | CallVerb::Stop => {}
            CallVerb::GetStatus | CallVerb::Observe => {
                let health = match self.known_first_sync(&machine).await? {
                    Some(first) => sync_health(&machine, first.as_deref()),
                    None => Err(NOT_KNOWN_YET.to_owned()),
                };
                return Ok(match (health, self.call.verb()) {
                    (Ok(message), _) => done(&machine, message),
                    (Err(_), CallVerb::GetStatus) => ProviderAnswer::NeverStarted,
                    (Err(message), _) => ProviderAnswer::Differs(message),
                });
            }
        }
        let first = self.first_sync(&machine).await?;
        let began = now();
        let ended = |machine: &Machine| {
            if machine.status != Status::Deployed {
                return Some(Err(state_disagrees(machine, "it is not installed any more")));
            }
            let timeout = sync_timeout(machine, self.call.limit);
            match sync_health(machine, first.as_deref()) {
                Ok(message) => Some(Ok((machine.clone(), message))),
                Err(_) if now().since(began) < timeout => None,
                Err(message) => {
                    let message = format!("{}: {message}; {UNCONFIGURED}", describe_state(machine));
                    Some(Err(Fault::new(FaultCode::HardwareSyncFailed, message)))
                }
            }
        };
        match self.call.wait_until(&machine.system_id, ended).await {
            Ok((machine, message)) => Ok(done(&machine, message)),
            Err(fault) => {
                if fault.code == FaultCode::HardwareSyncFailed {
                    self.call.log_events(&machine.system_id, DEPLOYED_EVENT).await?;
                }
                Err(fault)
            }
        }
    }

    /// The time of the last hardware report when the present deployment was first read as Deployed.
    /// The first call records it.
    pub async fn first_sync(&self, machine: &Machine) -> Result<Option<String>> {
        let key = self.first_sync_key(machine);
        let notes = CheckpointStore { key: &key, ..self.call.checkpoints() };
        let last_sync = machine.last_sync.clone();
        recorded_sync(notes.begin(OrderCheckpoint::FirstSync { last_sync }).await?)
    }

    /// The same, for a call that must not write. `None`: it is not recorded yet.
    async fn known_first_sync(&self, machine: &Machine) -> Result<Option<Option<String>>> {
        let key = self.first_sync_key(machine);
        let notes = CheckpointStore { key: &key, ..self.call.checkpoints() };
        notes.recall().await?.map(recorded_sync).transpose()
    }

    fn first_sync_key(&self, machine: &Machine) -> EffectKey {
        let run = self.call.key().run();
        let deployment = annotations::annotated_key(machine);
        let deployment = deployment.as_ref().map_or("unmarked", |key| key.as_str());
        EffectKey::trusted(format!("{run}/first_sync/{deployment}"))
    }
}

fn recorded_sync(checkpoint: OrderCheckpoint) -> Result<Option<String>> {
    let OrderCheckpoint::FirstSync { last_sync } = checkpoint else {
        return Err(checkpoint_mismatch());
    };
    Ok(last_sync)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn versions_have_it_or_not() {
        for (version, has) in [
            ("2.9.2", false),
            ("3.1.0", false),
            ("3.2.0", true),
            ("3.4.4", true),
            ("4.0", true),
            ("", true),
            ("snapshot", true),
        ] {
            assert_eq!(has_hardware_sync(version), has, "{version}");
        }
    }

    #[test]
    fn the_timeout_ends_before_the_stage() {
        let hour = Duration::from_secs(3_600);
        for (interval, minutes) in [(json!(null), 30), (json!(600), 20), (json!(3_600), 59)] {
            let reported = json!({"system_id": "a", "status": 6, "sync_interval": interval});
            let machine: Machine = serde_json::from_value(reported).unwrap();
            assert_eq!(sync_timeout(&machine, hour), Duration::from_secs(minutes * 60));
        }
    }

    #[test]
    fn only_a_report_after_the_deployment_is_healthy() {
        let machine = |last: Option<&str>| -> Machine {
            serde_json::from_value(json!({"system_id": "a", "status": 6, "last_sync": last}))
                .unwrap()
        };
        let (one, two) = (Some("2026-11-16T10:00:00"), Some("2026-11-16T08:15:00"));
        for (last, first, expected) in [
            (None, None, Err("yet")),
            (None, one, Err("yet")),
            (one, one, Err("when it was Deployed")),
            // Only the change counts: the clock of MAAS may go anywhere.
            (two, one, Ok("08:15")),
            (one, None, Ok("10:00")),
        ] {
            match (sync_health(&machine(last), first), expected) {
                (Ok(message), Ok(words)) | (Err(message), Err(words)) => {
                    assert!(message.contains(words), "{message}");
                }
                (found, expected) => panic!("{found:?}, not {expected:?}"),
            }
        }
    }
}
