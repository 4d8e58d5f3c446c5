//! What the agent of a node and Farrier say to each other: JSON over HTTP, in five requests, each of which may be repeated.
//!
//! Enrolling trades a one-time token for a node's name, under a session that the agent has made itself. Everything after it carries
//! the session. Heartbeats say that the node lives; tasks are taken, renewed while they go on, and reported when they end.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub const ENROLL: &str = "/agent/v1/enroll";
pub const HEARTBEAT: &str = "/agent/v1/heartbeat";
pub const TAKE: &str = "/agent/v1/tasks/take";
pub const RENEW: &str = "/agent/v1/tasks/renew";
pub const REPORT: &str = "/agent/v1/tasks/report";

/// The most of a log that goes with one request.
pub const MAX_LOG_BYTES: usize = 64 * 1024;
/// The most that is said in one sentence.
pub const MAX_SAID_BYTES: usize = 4 * 1024;

/// It holds secrets, so it can be sent and not be printed.
#[derive(Serialize)]
pub struct Enroll<'a> {
    pub token: &'a str,
    pub session: &'a str,
    pub hostname: &'a str,
    pub serial: &'a str,
    pub macs: &'a [String],
    pub boot_id: &'a str,
    pub version: &'a str,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Enrolled {
    pub node: String,
    pub heartbeat_seconds: u64,
}

#[derive(Debug, Serialize)]
pub struct Heartbeat<'a> {
    pub boot_id: &'a str,
    pub version: &'a str,
    pub healthy: bool,
    pub problems: &'a [String],
    /// What is being carried out.
    pub tasks: &'a [String],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Beaten {
    pub heartbeat_seconds: u64,
    /// There is a task for this node.
    #[serde(default)]
    pub waiting: bool,
}

#[derive(Debug, Serialize)]
pub struct Take {
    pub wait_seconds: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Taken {
    pub task: Option<Task>,
}

/// A task, as it is handed out and as it is kept on disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    pub id: String,
    /// A newer Farrier may know kinds that this agent does not, so it is a word until it is looked at.
    pub kind: String,
    pub lease_seconds: u64,
    /// How much time there is from now on.
    pub deadline_seconds: u64,
    #[serde(default)]
    pub params: BTreeMap<String, String>,
}

#[derive(Debug, Serialize)]
pub struct Renew<'a> {
    pub id: &'a str,
    pub log: &'a str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Renewed {
    pub then: Then,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Then {
    GoOn,
    Stop,
}

#[derive(Debug, Serialize)]
pub struct Report<'a> {
    pub id: &'a str,
    pub ok: bool,
    pub said: &'a str,
    pub log: &'a str,
}

/// An answer that says nothing but that it was heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Heard {}

/// Why this node is not known any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unknown {
    Session,
    Deleted,
    /// A reason that a newer Farrier knows.
    Other,
}

impl Unknown {
    pub fn of(code: &str) -> Self {
        match code {
            "session-unknown" => Self::Session,
            "node-deleted" => Self::Deleted,
            _ => Self::Other,
        }
    }
}

/// The beginning of a text, within so many bytes and without cutting a character.
pub fn beginning(text: &str, most: usize) -> &str {
    let most = most.min(text.len());
    let end = (0..=most).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn requests_are_spelled_as_agreed() {
        let macs = ["aa:bb:cc:dd:ee:01".to_string()];
        let enroll = Enroll {
            token: "t",
            session: "s",
            hostname: "gpu-1",
            serial: "S1",
            macs: &macs,
            boot_id: "b",
            version: "0.1.0",
        };
        assert_eq!(
            serde_json::to_value(&enroll).unwrap(),
            json!({"token": "t", "session": "s", "hostname": "gpu-1", "serial": "S1",
                   "macs": ["aa:bb:cc:dd:ee:01"], "boot_id": "b", "version": "0.1.0"})
        );
        let (problems, tasks) = (["hot".to_string()], ["t-1".to_string()]);
        let beat = Heartbeat {
            boot_id: "b",
            version: "0.1.0",
            healthy: false,
            problems: &problems,
            tasks: &tasks,
        };
        assert_eq!(
            serde_json::to_value(&beat).unwrap(),
            json!({"boot_id": "b", "version": "0.1.0", "healthy": false, "problems": ["hot"], "tasks": ["t-1"]})
        );
        assert_eq!(
            serde_json::to_value(Take { wait_seconds: 30 }).unwrap(),
            json!({"wait_seconds": 30})
        );
        assert_eq!(
            serde_json::to_value(Renew { id: "t-1", log: "l" }).unwrap(),
            json!({"id": "t-1", "log": "l"})
        );
        assert_eq!(
            serde_json::to_value(Report { id: "t-1", ok: true, said: "done", log: "" }).unwrap(),
            json!({"id": "t-1", "ok": true, "said": "done", "log": ""})
        );
    }

    #[test]
    fn answers_are_read_as_agreed() {
        let taken: Taken = serde_json::from_str(
            r#"{"task":{"id":"t-1","kind":"node.drain","lease_seconds":30,"deadline_seconds":600,"params":{"a":"b"},"later":1}}"#,
        )
        .unwrap();
        let task = taken.task.unwrap();
        assert_eq!((task.kind.as_str(), task.deadline_seconds), ("node.drain", 600));
        assert_eq!(task.params["a"], "b");
        assert_eq!(serde_json::from_str::<Taken>(r#"{"task":null}"#).unwrap().task, None);
        for (word, then) in [("go-on", Then::GoOn), ("stop", Then::Stop)] {
            let text = format!(r#"{{"then":"{word}"}}"#);
            assert_eq!(serde_json::from_str::<Renewed>(&text).unwrap().then, then);
        }
        for (code, unknown) in [
            ("session-unknown", Unknown::Session),
            ("node-deleted", Unknown::Deleted),
            ("", Unknown::Other),
        ] {
            assert_eq!(Unknown::of(code), unknown);
        }
        assert!(serde_json::from_str::<Heard>("{}").is_ok());
    }

    #[test]
    fn a_text_is_cut_between_characters() {
        for (most, cut) in [(0, ""), (1, "a"), (2, "a"), (3, "aé"), (9, "aé")] {
            assert_eq!(beginning("aé", most), cut);
        }
    }
}
