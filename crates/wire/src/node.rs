//! The messages of the agent of a node in service. Every request may be repeated.
//!
//! Enrollment trades a one-time token for a node's id, under a session that the agent chose. Every
//! later request carries the session. Heartbeats report that the node is alive. Tasks are taken,
//! renewed while they run, and reported when they end.
//!
//! Every field of a request may be absent, so that the server can name the missing one.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub const ENROLL: &str = "/agent/v1/enroll";
pub const HEARTBEAT: &str = "/agent/v1/heartbeat";
pub const TAKE: &str = "/agent/v1/tasks/take";
pub const RENEW: &str = "/agent/v1/tasks/renew";
pub const REPORT: &str = "/agent/v1/tasks/report";

/// The longest piece of a log in one request.
pub const MAX_LOG_BYTES: usize = 64 * 1024;
/// The longest message about the end of a task.
pub const MAX_MESSAGE_BYTES: usize = 4 * 1024;

/// Refusal codes that change what an agent does.
pub const SESSION_UNKNOWN: &str = "session-unknown";
pub const NODE_DELETED: &str = "node-deleted";
pub const TASK_OVER: &str = "task-over";

/// It holds secrets, so it has no `Debug`.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
pub struct EnrollRequest {
    pub token: String,
    pub session: String,
    pub hostname: String,
    pub serial: String,
    pub macs: Vec<String>,
    pub boot_id: String,
    pub version: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnrollReply {
    pub heartbeat_seconds: u64,
    pub node: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HeartbeatRequest {
    pub boot_id: String,
    pub version: String,
    /// Required.
    pub healthy: Option<bool>,
    pub problems: Vec<String>,
    /// The tasks that the agent executes.
    pub tasks: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeartbeatReply {
    pub heartbeat_seconds: u64,
    /// There is a task for this node.
    #[serde(default)]
    pub waiting: bool,
}

/// Requests a task, and waits this long for one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TakeRequest {
    pub wait_seconds: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakeReply {
    pub task: Option<Task>,
}

/// A task, as it is sent and as the agent keeps it on disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// The time left, counted from the reply.
    pub deadline_seconds: u64,
    pub id: String,
    /// A [`TaskKind`]. It is a string, because a newer Farrier may know kinds that this agent does
    /// not.
    pub kind: String,
    pub lease_seconds: u64,
    #[serde(default)]
    pub params: BTreeMap<String, String>,
}

/// A task of the agent on a node. The model stores it by these names too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum TaskKind {
    /// Waits until the work on the node has ended.
    #[serde(rename = "node.drain")]
    Drain,
    /// Ends the work on the node.
    #[serde(rename = "node.release")]
    Release,
    /// Clears the memory of the GPUs.
    #[serde(rename = "node.scrub")]
    Scrub,
    /// Checks that nothing of the last user is left.
    #[serde(rename = "node.validate")]
    Validate,
    /// Empties the scratch disks.
    #[serde(rename = "node.cleanup_storage")]
    CleanupStorage,
    /// Removes the agent.
    #[serde(rename = "node.uninstall")]
    Uninstall,
}

impl TaskKind {
    pub const ALL: [Self; 6] = [
        Self::Drain,
        Self::Release,
        Self::Scrub,
        Self::Validate,
        Self::CleanupStorage,
        Self::Uninstall,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Drain => "node.drain",
            Self::Release => "node.release",
            Self::Scrub => "node.scrub",
            Self::Validate => "node.validate",
            Self::CleanupStorage => "node.cleanup_storage",
            Self::Uninstall => "node.uninstall",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }
}

/// Renews the lease of a task, and sends the new part of its log.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RenewRequest {
    pub id: String,
    pub log: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenewReply {
    #[serde(rename = "then")]
    pub next_action: TaskInstruction,
}

/// The answer to an agent's progress message: its next action on the task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TaskInstruction {
    #[serde(rename = "go-on")]
    Continue,
    Stop,
}

/// The end of a task, with the end of its log.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReportRequest {
    pub id: String,
    /// Required.
    pub ok: Option<bool>,
    #[serde(rename = "said")]
    pub message: String,
    pub log: String,
}

/// The report was stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportReply {}
