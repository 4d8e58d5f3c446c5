//! The stages of an update, and the pure decision of the next step.

use crate::fetch::redact_url;
use crate::redfish::{TaskStatus, UpdateMethod};
use model::fault::{EffectOutcome, Fault, FaultCode, Result};
use model::time::{Timestamp, format_duration};
use serde::{Deserialize, Serialize};
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FirmwareTimeouts {
    /// The interval between two reads.
    pub poll_interval: Duration,
    /// The time that the new version has to appear after the task has ended or is gone.
    pub settle: Duration,
    /// The longest time that a device may be unreachable during the update: many restart.
    pub max_unreachable: Duration,
}

impl Default for FirmwareTimeouts {
    fn default() -> Self {
        Self {
            poll_interval: Duration::from_secs(5),
            settle: Duration::from_secs(180),
            max_unreachable: Duration::from_secs(1_200),
        }
    }
}

/// The stage of an update. It is stored before the step that it names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UpdateStage {
    /// Nothing was requested. An unfinished upload may be in progress; it has no effect.
    Begun,
    /// The request is being or was sent. `tasks_before`: the tasks before it, if known.
    #[serde(rename = "asked")]
    Requested {
        since: Timestamp,
        #[serde(rename = "before", default, skip_serializing_if = "Option::is_none")]
        tasks_before: Option<Vec<String>>,
    },
    /// The device executes the update as this task.
    Task {
        task: String,
    },
    /// Only the version decides now: the task has succeeded, or is gone, or there was none.
    #[serde(rename = "taken")]
    Verifying {
        since: Timestamp,
        ended: bool,
    },
    Done,
    /// Stopped before the request.
    Stopped,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpdateObservation {
    Task(TaskStatus),
    TaskGone,
    /// The present version, and the tasks that are new since the request.
    Version {
        version: String,
        new: Vec<String>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpdateStep {
    Wait,
    Become(UpdateStage),
    Done,
    Fail(Fault),
}

pub fn next_step(
    stage: &UpdateStage,
    observation: &UpdateObservation,
    desired: &str,
    now: Timestamp,
    settle: Duration,
) -> UpdateStep {
    match (stage, observation) {
        (UpdateStage::Done, _) => UpdateStep::Done,
        (UpdateStage::Begun | UpdateStage::Stopped, _) => {
            UpdateStep::Fail(Fault::new(FaultCode::EffectFailed, "nothing was asked"))
        }
        (UpdateStage::Task { .. }, UpdateObservation::Task(observed)) => after_task(observed, now),
        (UpdateStage::Task { .. }, UpdateObservation::TaskGone) => {
            UpdateStep::Become(UpdateStage::Verifying { since: now, ended: false })
        }
        (UpdateStage::Task { .. }, UpdateObservation::Version { .. }) => UpdateStep::Wait,
        (
            UpdateStage::Requested { .. } | UpdateStage::Verifying { .. },
            UpdateObservation::Version { version, .. },
        ) if version == desired => UpdateStep::Done,
        (UpdateStage::Requested { since, .. }, UpdateObservation::Version { version, new }) => {
            match new.as_slice() {
                [task] => UpdateStep::Become(UpdateStage::Task { task: task.clone() }),
                [] if now.since(*since) < settle => UpdateStep::Wait,
                [] => UpdateStep::Fail(unknown(format!(
                    "no task came of it, and the version is {version}"
                ))),
                several => {
                    let several = several.join(", ");
                    UpdateStep::Fail(unknown(format!("it may be any of the tasks {several}")))
                }
            }
        }
        (UpdateStage::Verifying { since, .. }, UpdateObservation::Version { .. })
            if now.since(*since) < settle =>
        {
            UpdateStep::Wait
        }
        (
            UpdateStage::Verifying { ended: true, .. },
            UpdateObservation::Version { version, .. },
        ) => {
            let message = format!(
                "the device says that {desired} was installed, and shows {version} after {}; \
                 some take effect only after a power cycle",
                format_duration(settle)
            );
            UpdateStep::Fail(Fault::new(FaultCode::FirmwareDiffers, message))
        }
        (
            UpdateStage::Verifying { ended: false, .. },
            UpdateObservation::Version { version, .. },
        ) => {
            let message = format!(
                "the device took {desired} on and no longer says what became of it; after {} it shows {version}",
                format_duration(settle)
            );
            UpdateStep::Fail(Fault::new(FaultCode::TaskLost, message))
        }
        (
            UpdateStage::Requested { .. } | UpdateStage::Verifying { .. },
            UpdateObservation::Task(_) | UpdateObservation::TaskGone,
        ) => UpdateStep::Wait,
    }
}

fn after_task(observed: &TaskStatus, now: Timestamp) -> UpdateStep {
    match observed.state.ended() {
        None => UpdateStep::Wait,
        Some(true) => UpdateStep::Become(UpdateStage::Verifying { since: now, ended: true }),
        Some(false) => {
            let state = observed.state.as_str();
            let message = match observed.messages.as_slice() {
                [] => format!("the device's task ended as {state}, without a word"),
                some => format!("the device's task ended as {state}: {}", some.join(" ")),
            };
            UpdateStep::Fail(Fault::new(FaultCode::FirmwareFailed, message))
        }
    }
}

fn unknown(why: String) -> Fault {
    Fault::new(FaultCode::AnswerLost, format!("the device was asked to update, and {why}"))
}

/// The transfer method. A file that Farrier cannot fetch must be fetched by the device.
pub fn choose_method(offered: &[UpdateMethod], url: &str) -> Result<UpdateMethod> {
    let fits = |way: &&UpdateMethod| match way {
        UpdateMethod::MultipartPush | UpdateMethod::HttpPush => is_http(url),
        UpdateMethod::SimpleUpdate => true,
    };
    offered.iter().find(fits).cloned().ok_or_else(|| {
        let message = match offered {
            [] => "the device takes no firmware over Redfish: it offers neither MultipartHttpPushUri nor SimpleUpdate \
                   nor HttpPushUri"
                .to_owned(),
            some => {
                let names: Vec<&str> = some.iter().map(UpdateMethod::as_str).collect();
                format!(
                    "{} cannot be sent by {}; serve the file over http or https",
                    redact_url(url),
                    names.join(" or ")
                )
            }
        };
        Fault::new(FaultCode::NotSupported, message)
    })
}

pub fn is_http(url: &str) -> bool {
    ["http://", "https://"].iter().any(|scheme| url.to_ascii_lowercase().starts_with(scheme))
}

/// A refusal means that nothing has happened; any other fault leaves the outcome unknown.
pub fn request_fault(fault: Fault) -> Fault {
    match fault.code == FaultCode::EffectFailed {
        true => Fault::new(
            FaultCode::FirmwareFailed,
            format!("the device refused it: {}", fault.message),
        ),
        false => fault,
    }
}

/// After the request, a fault that says nothing about the update leaves its outcome unknown.
pub fn fault_after_request(fault: Fault) -> Fault {
    match (fault.code.effect_outcome(), fault.code) {
        (EffectOutcome::Unknown, _)
        | (_, FaultCode::FirmwareFailed | FaultCode::FirmwareDiffers) => fault,
        (EffectOutcome::NotApplied, _) => {
            let message = format!("an update is under way, and cannot be seen: {}", fault.message);
            Fault::new(FaultCode::AnswerLost, message)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redfish::TaskState;

    const SETTLE: Duration = Duration::from_secs(100);

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(seconds * 1_000)
    }

    fn shows(version: &str, new: &[&str]) -> UpdateObservation {
        let new = new.iter().map(|task| (*task).to_owned()).collect();
        UpdateObservation::Version { version: version.into(), new }
    }

    fn task(state: TaskState, messages: &[&str]) -> UpdateObservation {
        let messages = messages.iter().map(|message| (*message).to_owned()).collect();
        UpdateObservation::Task(TaskStatus { state, percent: None, messages })
    }

    #[test]
    fn every_observation_has_its_step() {
        let requested = UpdateStage::Requested { since: at(0), tasks_before: None };
        let works = UpdateStage::Task { task: "/t/1".into() };
        let taken = |ended| UpdateStage::Verifying { since: at(0), ended };
        for (stage, observation, second, expected) in [
            (&requested, shows("2", &[]), 0, UpdateStep::Done),
            (&requested, shows("1", &[]), 99, UpdateStep::Wait),
            (&requested, shows("1", &["/t/1"]), 99, UpdateStep::Become(works.clone())),
            (&works, task(TaskState::Running, &[]), 9_999, UpdateStep::Wait),
            (&works, task(TaskState::Pending, &[]), 9_999, UpdateStep::Wait),
            (
                &works,
                task(TaskState::Completed, &[]),
                7,
                UpdateStep::Become(UpdateStage::Verifying { since: at(7), ended: true }),
            ),
            (
                &works,
                UpdateObservation::TaskGone,
                7,
                UpdateStep::Become(UpdateStage::Verifying { since: at(7), ended: false }),
            ),
            (&taken(true), shows("1", &[]), 99, UpdateStep::Wait),
            (&taken(true), shows("2", &[]), 0, UpdateStep::Done),
            (&taken(false), shows("2", &[]), 0, UpdateStep::Done),
            (&taken(false), shows("1", &[]), 99, UpdateStep::Wait),
            (&UpdateStage::Done, shows("1", &[]), 0, UpdateStep::Done),
        ] {
            let found = next_step(stage, &observation, "2", at(second), SETTLE);
            assert_eq!(found, expected, "{stage:?} {observation:?} at {second}");
        }
    }

    /// Only a failure that the device reported means that nothing happened; the rest is unknown.
    #[test]
    fn every_failure_has_its_code() {
        let requested = UpdateStage::Requested { since: at(0), tasks_before: None };
        let works = UpdateStage::Task { task: "/t/1".into() };
        let taken = |ended| UpdateStage::Verifying { since: at(0), ended };
        for (stage, observation, code, words) in [
            (&requested, shows("1", &[]), FaultCode::AnswerLost, "no task came of it"),
            (&requested, shows("1", &["/t/1", "/t/2"]), FaultCode::AnswerLost, "/t/1, /t/2"),
            (
                &works,
                task(TaskState::Exception, &["Bad signature."]),
                FaultCode::FirmwareFailed,
                "Exception: Bad signature.",
            ),
            (&works, task(TaskState::Killed, &[]), FaultCode::FirmwareFailed, "without a word"),
            (&taken(true), shows("1", &[]), FaultCode::FirmwareDiffers, "shows 1 after"),
            (&taken(false), shows("1", &[]), FaultCode::TaskLost, "shows 1"),
        ] {
            let UpdateStep::Fail(fault) = next_step(stage, &observation, "2", at(100), SETTLE)
            else {
                panic!("{stage:?} {observation:?}")
            };
            assert_eq!(fault.code, code, "{fault}");
            assert!(fault.message.contains(words), "{fault}");
        }
    }

    #[test]
    fn a_file_that_farrier_cannot_fetch_is_fetched_by_the_device() {
        let all = [UpdateMethod::MultipartPush, UpdateMethod::SimpleUpdate, UpdateMethod::HttpPush];
        for (offered, url, expected) in [
            (&all[..], "https://files/bmc.bin", Some(UpdateMethod::MultipartPush)),
            (&all[..], "tftp://files/bmc.bin", Some(UpdateMethod::SimpleUpdate)),
            (&all[1..], "HTTP://files/bmc.bin", Some(UpdateMethod::SimpleUpdate)),
            (&all[2..], "http://files/bmc.bin", Some(UpdateMethod::HttpPush)),
            (&all[2..], "tftp://files/bmc.bin", None),
            (&[], "http://files/bmc.bin", None),
        ] {
            assert_eq!(choose_method(offered, url).ok(), expected, "{offered:?} {url}");
        }
    }

    #[test]
    fn after_the_request_the_outcome_is_unknown() {
        for code in FaultCode::ALL {
            let fault = fault_after_request(Fault::new(*code, "why"));
            let reported =
                matches!(fault.code, FaultCode::FirmwareFailed | FaultCode::FirmwareDiffers);
            assert!(reported || fault.code.effect_outcome() == EffectOutcome::Unknown, "{code:?}");
        }
    }

    #[test]
    fn a_stage_survives_serialization() {
        for stage in [
            UpdateStage::Begun,
            UpdateStage::Requested { since: at(1), tasks_before: None },
            UpdateStage::Requested { since: at(1), tasks_before: Some(vec!["/t/1".into()]) },
            UpdateStage::Task { task: "/t/1".into() },
            UpdateStage::Verifying { since: at(1), ended: false },
            UpdateStage::Done,
            UpdateStage::Stopped,
        ] {
            let text = serde_json::to_string(&stage).unwrap();
            assert_eq!(serde_json::from_str::<UpdateStage>(&text).unwrap(), stage);
        }
    }
}
