//! The status for an operator who is logged in to the node: its identity, its task, and its
//! problems. It is read from the state directory, so it works whether the agent runs or not.

use super::config::Config;
use super::heartbeat::unix_seconds;
use super::journal::{Journal, StoredTask, TaskResult};
use serde::Serialize;
use std::fmt;

/// The advice for a node whose new token is refused.
pub const SERVED: &str = "the node goes on as what it is: take the token away, or replace it";

/// Contains no secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Status {
    pub node: Option<String>,
    /// An enrollment has been requested and not been answered.
    pub enrolling: bool,
    pub heard_seconds_ago: Option<u64>,
    pub trouble: String,
    pub problems: Vec<String>,
    /// The reason why the current token is refused, for a node that is already enrolled.
    pub refused: String,
    pub task: Option<TaskStatus>,
    /// The agent is uninstalling itself.
    pub leaving: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TaskStatus {
    pub id: String,
    pub kind: String,
    pub stage: TaskStage,
    #[serde(rename = "said")]
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TaskStage {
    /// Started, without a result yet.
    Begun,
    /// Succeeded, and not yet reported.
    Done,
    Failed,
}

impl TaskStage {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Begun => "begun",
            Self::Done => "done, to be reported",
            Self::Failed => "failed, to be reported",
        }
    }
}

pub fn status(config: &Config) -> Result<Status, String> {
    let journal = Journal::open_read_only(&config.state_dir);
    let contact = journal.contact()?.unwrap_or_default();
    Ok(Status {
        node: journal.node()?.map(|node| node.node),
        enrolling: journal.pending_enrollment()?.is_some(),
        heard_seconds_ago: contact
            .heard_unix_seconds
            .map(|then| unix_seconds().saturating_sub(then)),
        trouble: contact.trouble,
        problems: contact.problems,
        refused: contact.refused,
        task: journal.stored_task()?.map(task_status),
        leaving: journal.uninstall_marker()?.is_some(),
    })
}

fn task_status(claimed: StoredTask) -> TaskStatus {
    let (stage, text) = match claimed.result {
        None => (TaskStage::Begun, String::new()),
        Some(TaskResult { ok: true, message: text, .. }) => (TaskStage::Done, text),
        Some(TaskResult { ok: false, message: text, .. }) => (TaskStage::Failed, text),
    };
    TaskStatus { id: claimed.task.id, kind: claimed.task.kind, stage, message: text }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let node = match (&self.node, self.enrolling, self.leaving) {
            (_, _, true) => "it leaves this node",
            (Some(node), false, false) => node,
            (Some(_) | None, true, false) => "an enrollment has been asked for",
            (None, false, false) => "not enrolled; type farrier agent enroll",
        };
        writeln!(f, "Node:      {node}")?;
        match self.heard_seconds_ago {
            Some(seconds) => writeln!(f, "Heard:     {seconds} s ago")?,
            None => writeln!(f, "Heard:     never")?,
        }
        match &self.task {
            Some(TaskStatus { id, kind, stage, message: text }) => {
                let text = if text.is_empty() { String::new() } else { format!(": {text}") };
                writeln!(f, "Task:      {id} {kind}, {}{text}", stage.as_str())?;
            }
            None => writeln!(f, "Task:      none")?,
        }
        if !self.trouble.is_empty() {
            writeln!(f, "Trouble:   {}", self.trouble)?;
        }
        if !self.refused.is_empty() {
            writeln!(f, "Token:     {}; {SERVED}", self.refused)?;
        }
        self.problems.iter().try_for_each(|problem| writeln!(f, "Not well:  {problem}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::journal::{Contact, NodeIdentity, PendingEnrollment, UninstallMarker};
    use wire::node::Task;

    #[test]
    fn status_shows_the_state_without_secrets() {
        let folder = tempfile::tempdir().unwrap();
        let text = format!(
            "controllers = [\"http://10.0.0.1\"]\nstate_dir = {:?}",
            folder.path().display()
        );
        let config = Config::parse(&text).unwrap();
        let journal = Journal::open(folder.path()).unwrap();
        let shown = || status(&config).unwrap().to_string();
        assert!(shown().contains("farrier agent enroll") && shown().contains("never"));
        let (token_sha256, session) = ("sum".to_string(), "geheim".to_string());
        let enrolling =
            PendingEnrollment { token_sha256: token_sha256.clone(), session: session.clone() };
        journal.store_enrollment(&enrolling).unwrap();
        assert!(shown().contains("has been asked for"));
        let node =
            NodeIdentity { token_sha256, session, node: "node-1".into(), heartbeat_seconds: 1 };
        journal.store_node(&node).unwrap();
        let contact = Contact {
            heard_unix_seconds: Some(1),
            trouble: "away".into(),
            problems: vec!["hot".into()],
            refused: "the token is refused: no".into(),
        };
        journal.store_contact(&contact).unwrap();
        let task = Task {
            id: "t-1".into(),
            kind: "node.scrub".into(),
            lease_seconds: 1,
            deadline_seconds: 1,
            params: Default::default(),
        };
        for (result, words) in [
            (None, "t-1 node.scrub, begun"),
            (Some((true, "clean")), "done, to be reported: clean"),
            (Some((false, "broken")), "failed, to be reported: broken"),
        ] {
            let result = result.map(|(ok, said)| TaskResult {
                ok,
                message: said.into(),
                log: String::new(),
            });
            journal.store_task(&StoredTask { task: task.clone(), result }).unwrap();
            let shown = shown();
            for name in [
                words,
                "Node:      node-1",
                "Trouble:   away",
                "Not well:  hot",
                "Token:     the token",
            ] {
                assert!(shown.contains(name), "{name:?} is not in\n{shown}");
            }
            assert!(!shown.contains("geheim"));
        }
        journal.store_uninstall_marker(&UninstallMarker { task: "t-1".into() }).unwrap();
        assert!(shown().contains("leaves this node"));
    }
}
