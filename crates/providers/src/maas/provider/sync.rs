//! Hardware sync: an installed system that works reports its hardware to MAAS periodically.

use super::checkpoint::{Notes, OrderCheckpoint};
use super::hand::{Work, disagrees, done, has};
use super::marks;
use crate::clock::now;
use crate::maas::{Machine, Status};
use model::effect::{Answer, Verb};
use model::fault::{Code, Fault};
use model::time::{Timestamp, spoken};
use std::time::Duration;

/// The interval if MAAS reports none.
const USUAL_INTERVAL: Duration = Duration::from_secs(15 * 60);
/// One report may be lost.
const INTERVALS: u32 = 2;
/// The stage ends this long before its time limit, so that it can report what it read.
const SPARE: Duration = Duration::from_secs(60);
/// The first MAAS version with hardware sync.
const SINCE: (u32, u32) = (3, 2);

/// The usual cause: Deployed means only that the system fetched its data.
const UNCONFIGURED: &str = "the new system may not have set itself up: look at its console and at what its cloud-init wrote";

/// Whether this version has hardware sync. An unknown MAAS version is treated as the newest.
fn known_by(version: &str) -> bool {
    let mut numbers = version.split('.').map(|part| part.parse::<u32>().ok());
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(major), Some(minor)) => (major, minor) >= SINCE,
        (Some(_), None) | (None, _) => true,
    }
}

/// How long a machine may stay silent, within the stage's time limit.
fn patience(machine: &Machine, limit: Duration) -> Duration {
    let usual = machine.sync_interval.unwrap_or(USUAL_INTERVAL) * INTERVALS;
    usual.min(limit.saturating_sub(SPARE))
}

/// Whether the machine has reported lately and since its installation; or what is missing.
fn healthy(
    machine: &Machine,
    installed: Option<Timestamp>,
    now: Timestamp,
) -> Result<String, String> {
    let most = machine.sync_interval.unwrap_or(USUAL_INTERVAL) * INTERVALS;
    match machine.last_sync {
        None => Err("it has not told MAAS of its hardware yet".into()),
        Some(at) if installed.is_some_and(|installed| at < installed) => {
            Err("it has not told MAAS of its hardware since it was installed".into())
        }
        Some(at) if now.since(at) > most => Err(format!(
            "it told MAAS of its hardware {} ago, and should every {}",
            spoken(now.since(at)),
            spoken(most / INTERVALS)
        )),
        Some(at) => Ok(format!("it told MAAS of its hardware {} ago", spoken(now.since(at)))),
    }
}

impl Work<'_> {
    pub async fn ensure_sync(&self) -> Result<Answer, Fault> {
        self.only_look(async {
            let machine = self.locate().await?;
            if machine.status != Status::Deployed {
                return Err(disagrees(&machine, "hardware sync is looked for once it is Deployed"));
            }
            let version = self.hand.maas().version().await?.version;
            let said = match (known_by(&version), machine.enable_hw_sync) {
                (false, _) => format!("MAAS {version} has no hardware sync: nothing is waited for"),
                (true, true) => "hardware sync is set up".to_owned(),
                (true, false) => {
                    let said = format!("{} was installed without hardware sync", machine.system_id);
                    return Err(Fault::new(Code::HardwareSyncFailed, said));
                }
            };
            Ok(super::hand::outcome(&machine, said))
        })
        .await
    }

    pub async fn wait_for_sync(&self) -> Result<Answer, Fault> {
        if self.hand.verb() == Verb::Stop {
            return Ok(Answer::Stopped);
        }
        let machine = self.locate().await?;
        let version = self.hand.maas().version().await?.version;
        if !known_by(&version) {
            return Ok(done(&machine, format!("MAAS {version} has no hardware sync")));
        }
        let installed = self.installed_at(&machine).await?;
        match self.hand.verb() {
            Verb::Perform | Verb::Follow | Verb::Stop => {}
            Verb::GetStatus | Verb::Observe => {
                return Ok(match (healthy(&machine, installed, now()), self.hand.verb()) {
                    (Ok(said), _) => done(&machine, said),
                    (Err(_), Verb::GetStatus) => Answer::NeverStarted,
                    (Err(said), _) => Answer::Differs(said),
                });
            }
        }
        let began = now();
        let ended = |machine: &Machine| {
            if machine.status != Status::Deployed {
                return Some(Err(disagrees(machine, "it is not installed any more")));
            }
            let patience = patience(machine, self.hand.limit);
            match healthy(machine, installed, now()) {
                Ok(said) => Some(Ok((machine.clone(), said))),
                Err(_) if now().since(began) < patience => None,
                Err(said) => {
                    let said = format!("{}: {said}; {UNCONFIGURED}", has(machine));
                    Some(Err(Fault::new(Code::HardwareSyncFailed, said)))
                }
            }
        };
        match self.hand.wait(&machine.system_id, ended).await {
            Ok((machine, said)) => Ok(done(&machine, said)),
            Err(fault) => {
                if fault.code == Code::HardwareSyncFailed {
                    self.hand.tell_events(&machine.system_id).await?;
                }
                Err(fault)
            }
        }
    }

    /// When MAAS was requested to install the present system, if Farrier did it.
    async fn installed_at(&self, machine: &Machine) -> Result<Option<Timestamp>, Fault> {
        let Some(key) = marks::key_of(machine) else { return Ok(None) };
        let notes = Notes { key: &key, ..self.hand.notes() };
        Ok(match notes.recall().await? {
            Some(OrderCheckpoint::Deploy { asked }) => asked,
            Some(_) | None => None,
        })
    }
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
            assert_eq!(known_by(version), has, "{version}");
        }
    }

    #[test]
    fn patience_ends_before_the_stage_does() {
        let hour = Duration::from_secs(3_600);
        for (interval, minutes) in [(json!(null), 30), (json!(600), 20), (json!(3_600), 59)] {
            let told = json!({"system_id": "a", "status": 6, "sync_interval": interval});
            let machine: Machine = serde_json::from_value(told).unwrap();
            assert_eq!(patience(&machine, hour), Duration::from_secs(minutes * 60));
        }
    }

    #[test]
    fn a_machine_is_healthy_that_has_told_lately() {
        let machine = |last: Option<&str>| -> Machine {
            serde_json::from_value(json!({
                "system_id": "a", "status": 6, "last_sync": last, "sync_interval": 600
            }))
            .unwrap()
        };
        let at = |second: i64| Timestamp::from_millis(1_763_287_200_000 + second * 1_000);
        let told = Some("2025-11-16T10:00:00");
        for (last, installed, now, expected) in [
            (told, None, 60, Ok("1m 0s ago")),
            (told, Some(-5), 1_200, Ok("20m 0s ago")),
            (told, Some(5), 60, Err("since it was installed")),
            (told, None, 1_201, Err("and should every 10m")),
            (None, None, 60, Err("yet")),
        ] {
            match (healthy(&machine(last), installed.map(at), at(now)), expected) {
                (Ok(said), Ok(words)) | (Err(said), Err(words)) => {
                    assert!(said.contains(words), "{said}");
                }
                (found, expected) => panic!("{found:?}, not {expected:?}"),
            }
        }
    }
}
