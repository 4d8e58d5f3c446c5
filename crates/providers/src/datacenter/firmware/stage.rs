//! The stages of an update, and the pure decision of the next step.

use crate::fetch::shown;
use crate::redfish::{TaskSeen, Way};
use model::fault::{Code, Fault, Happened};
use model::time::{Timestamp, spoken};
use serde::{Deserialize, Serialize};
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// Between two reads.
    pub look_every: Duration,
    /// How long the new version may take to appear after the task has ended or is gone.
    pub settle: Duration,
    /// How long a device may be unreachable during the update: many restart.
    pub away: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            look_every: Duration::from_secs(5),
            settle: Duration::from_secs(180),
            away: Duration::from_secs(1_200),
        }
    }
}

/// The stage of an update. It is stored before the step that it names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Flash {
    /// Nothing was requested. An unfinished upload may be in progress; it has no effect.
    Begun,
    /// The request is being or was sent. `tasks_before`: the tasks before it, if known.
    #[serde(rename = "asked")]
    Asked {
        since: Timestamp,
        #[serde(rename = "before", default, skip_serializing_if = "Option::is_none")]
        before: Option<Vec<String>>,
    },
    /// The device executes the update as this task.
    Task {
        task: String,
    },
    /// Only the version decides now: the task has succeeded, or is gone, or there was none.
    #[serde(rename = "taken")]
    Taken {
        since: Timestamp,
        ended: bool,
    },
    Done,
    /// Stopped before the request.
    Stopped,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sight {
    Task(TaskSeen),
    TaskGone,
    /// The present version, and the tasks that are new since the request.
    Version {
        version: String,
        new: Vec<String>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Turn {
    Look,
    Become(Flash),
    Done,
    Fail(Fault),
}

pub fn next(stage: &Flash, sight: &Sight, wanted: &str, now: Timestamp, settle: Duration) -> Turn {
    match (stage, sight) {
        (Flash::Done, _) => Turn::Done,
        (Flash::Begun | Flash::Stopped, _) => {
            Turn::Fail(Fault::new(Code::EffectFailed, "nothing was asked"))
        }
        (Flash::Task { .. }, Sight::Task(seen)) => after_task(seen, now),
        (Flash::Task { .. }, Sight::TaskGone) => {
            Turn::Become(Flash::Taken { since: now, ended: false })
        }
        (Flash::Task { .. }, Sight::Version { .. }) => Turn::Look,
        (Flash::Asked { .. } | Flash::Taken { .. }, Sight::Version { version, .. })
            if version == wanted =>
        {
            Turn::Done
        }
        (Flash::Asked { since, .. }, Sight::Version { version, new }) => match new.as_slice() {
            [task] => Turn::Become(Flash::Task { task: task.clone() }),
            [] if now.since(*since) < settle => Turn::Look,
            [] => Turn::Fail(unknown(format!("no task came of it, and the version is {version}"))),
            several => {
                let several = several.join(", ");
                Turn::Fail(unknown(format!("it may be any of the tasks {several}")))
            }
        },
        (Flash::Taken { since, .. }, Sight::Version { .. }) if now.since(*since) < settle => {
            Turn::Look
        }
        (Flash::Taken { ended: true, .. }, Sight::Version { version, .. }) => {
            let said = format!(
                "the device says that {wanted} was installed, and shows {version} after {}; \
                 some take effect only after a power cycle",
                spoken(settle)
            );
            Turn::Fail(Fault::new(Code::FirmwareDiffers, said))
        }
        (Flash::Taken { ended: false, .. }, Sight::Version { version, .. }) => {
            let said = format!(
                "the device took {wanted} on and no longer says what became of it; after {} it shows {version}",
                spoken(settle)
            );
            Turn::Fail(Fault::new(Code::TaskLost, said))
        }
        (Flash::Asked { .. } | Flash::Taken { .. }, Sight::Task(_) | Sight::TaskGone) => Turn::Look,
    }
}

fn after_task(seen: &TaskSeen, now: Timestamp) -> Turn {
    match seen.state.ended() {
        None => Turn::Look,
        Some(true) => Turn::Become(Flash::Taken { since: now, ended: true }),
        Some(false) => {
            let state = seen.state.as_str();
            let said = match seen.messages.as_slice() {
                [] => format!("the device's task ended as {state}, without a word"),
                some => format!("the device's task ended as {state}: {}", some.join(" ")),
            };
            Turn::Fail(Fault::new(Code::FirmwareFailed, said))
        }
    }
}

fn unknown(why: String) -> Fault {
    Fault::new(Code::AnswerLost, format!("the device was asked to update, and {why}"))
}

/// The transfer method. A file that Farrier cannot fetch must be fetched by the device.
pub fn way(offered: &[Way], url: &str) -> Result<Way, Fault> {
    let fits = |way: &&Way| match way {
        Way::Form | Way::Plain => is_http(url),
        Way::Fetch => true,
    };
    offered.iter().find(fits).cloned().ok_or_else(|| {
        let said = match offered {
            [] => "the device takes no firmware over Redfish: it offers neither MultipartHttpPushUri nor SimpleUpdate \
                   nor HttpPushUri"
                .to_owned(),
            some => {
                let names: Vec<&str> = some.iter().map(Way::as_str).collect();
                format!(
                    "{} cannot be sent by {}; serve the file over http or https",
                    shown(url),
                    names.join(" or ")
                )
            }
        };
        Fault::new(Code::NotSupported, said)
    })
}

pub fn is_http(url: &str) -> bool {
    ["http://", "https://"].iter().any(|scheme| url.to_ascii_lowercase().starts_with(scheme))
}

/// A refusal means that nothing has happened; any other fault leaves the outcome unknown.
pub fn asked_before(fault: Fault) -> Fault {
    match fault.code == Code::EffectFailed {
        true => Fault::new(Code::FirmwareFailed, format!("the device refused it: {}", fault.said)),
        false => fault,
    }
}

/// After the request, a fault that says nothing about the update leaves its outcome unknown.
pub fn after_asked(fault: Fault) -> Fault {
    match (fault.code.happened(), fault.code) {
        (Happened::Maybe, _) | (_, Code::FirmwareFailed | Code::FirmwareDiffers) => fault,
        (Happened::No, _) => {
            let said = format!("an update is under way, and cannot be seen: {}", fault.said);
            Fault::new(Code::AnswerLost, said)
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

    fn shows(version: &str, new: &[&str]) -> Sight {
        let new = new.iter().map(|task| (*task).to_owned()).collect();
        Sight::Version { version: version.into(), new }
    }

    fn task(state: TaskState, messages: &[&str]) -> Sight {
        let messages = messages.iter().map(|said| (*said).to_owned()).collect();
        Sight::Task(TaskSeen { state, percent: None, messages })
    }

    #[test]
    fn every_sight_has_its_turn() {
        let asked = Flash::Asked { since: at(0), before: None };
        let works = Flash::Task { task: "/t/1".into() };
        let taken = |ended| Flash::Taken { since: at(0), ended };
        for (stage, sight, second, expected) in [
            (&asked, shows("2", &[]), 0, Turn::Done),
            (&asked, shows("1", &[]), 99, Turn::Look),
            (&asked, shows("1", &["/t/1"]), 99, Turn::Become(works.clone())),
            (&works, task(TaskState::Running, &[]), 9_999, Turn::Look),
            (&works, task(TaskState::Pending, &[]), 9_999, Turn::Look),
            (
                &works,
                task(TaskState::Completed, &[]),
                7,
                Turn::Become(Flash::Taken { since: at(7), ended: true }),
            ),
            (&works, Sight::TaskGone, 7, Turn::Become(Flash::Taken { since: at(7), ended: false })),
            (&taken(true), shows("1", &[]), 99, Turn::Look),
            (&taken(true), shows("2", &[]), 0, Turn::Done),
            (&taken(false), shows("2", &[]), 0, Turn::Done),
            (&taken(false), shows("1", &[]), 99, Turn::Look),
            (&Flash::Done, shows("1", &[]), 0, Turn::Done),
        ] {
            let found = next(stage, &sight, "2", at(second), SETTLE);
            assert_eq!(found, expected, "{stage:?} {sight:?} at {second}");
        }
    }

    /// Only a failure that the device reported means that nothing happened; the rest is unknown.
    #[test]
    fn every_end_has_its_code() {
        let asked = Flash::Asked { since: at(0), before: None };
        let works = Flash::Task { task: "/t/1".into() };
        let taken = |ended| Flash::Taken { since: at(0), ended };
        for (stage, sight, code, words) in [
            (&asked, shows("1", &[]), Code::AnswerLost, "no task came of it"),
            (&asked, shows("1", &["/t/1", "/t/2"]), Code::AnswerLost, "/t/1, /t/2"),
            (
                &works,
                task(TaskState::Exception, &["Bad signature."]),
                Code::FirmwareFailed,
                "Exception: Bad signature.",
            ),
            (&works, task(TaskState::Killed, &[]), Code::FirmwareFailed, "without a word"),
            (&taken(true), shows("1", &[]), Code::FirmwareDiffers, "shows 1 after"),
            (&taken(false), shows("1", &[]), Code::TaskLost, "shows 1"),
        ] {
            match next(stage, &sight, "2", at(100), SETTLE) {
                Turn::Fail(fault) => {
                    assert_eq!(fault.code, code, "{fault}");
                    assert!(fault.said.contains(words), "{fault}");
                }
                other => panic!("{stage:?} {sight:?}: {other:?}"),
            }
        }
    }

    #[test]
    fn what_we_cannot_fetch_the_device_must() {
        let all = [Way::Form, Way::Fetch, Way::Plain];
        for (offered, url, expected) in [
            (&all[..], "https://files/bmc.bin", Some(Way::Form)),
            (&all[..], "tftp://files/bmc.bin", Some(Way::Fetch)),
            (&all[1..], "HTTP://files/bmc.bin", Some(Way::Fetch)),
            (&all[2..], "http://files/bmc.bin", Some(Way::Plain)),
            (&all[2..], "tftp://files/bmc.bin", None),
            (&[], "http://files/bmc.bin", None),
        ] {
            assert_eq!(way(offered, url).ok(), expected, "{offered:?} {url}");
        }
    }

    #[test]
    fn after_it_was_asked_no_fault_says_that_nothing_happened() {
        for code in Code::ALL {
            let fault = after_asked(Fault::new(*code, "why"));
            let told = matches!(fault.code, Code::FirmwareFailed | Code::FirmwareDiffers);
            assert!(told || fault.code.happened() == Happened::Maybe, "{code:?}");
        }
    }

    #[test]
    fn a_stage_is_read_as_it_was_written() {
        for stage in [
            Flash::Begun,
            Flash::Asked { since: at(1), before: None },
            Flash::Asked { since: at(1), before: Some(vec!["/t/1".into()]) },
            Flash::Task { task: "/t/1".into() },
            Flash::Taken { since: at(1), ended: false },
            Flash::Done,
            Flash::Stopped,
        ] {
            let text = serde_json::to_string(&stage).unwrap();
            assert_eq!(serde_json::from_str::<Flash>(&text).unwrap(), stage);
        }
    }
}
