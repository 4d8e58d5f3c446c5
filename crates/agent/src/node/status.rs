//! What a person who is logged in to the node is shown: who it is, what it does, and what stands in the way. Read from the state folder,
//! so that it can be asked while the agent runs and when it does not.

use super::beat::now;
use super::config::Config;
use super::journal::{Ended, Held, Journal};
use serde::Serialize;
use std::fmt;

/// What becomes of a node whose new token is refused.
pub const SERVED: &str = "the node goes on as what it is: take the token away, or replace it";

/// There are no secrets in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Status {
    pub node: Option<String>,
    /// An enrollment has been asked for and not been answered.
    pub enrolling: bool,
    pub heard_seconds_ago: Option<u64>,
    pub trouble: String,
    pub problems: Vec<String>,
    /// Why the token that is there is of no use to a node that is enrolled.
    pub refused: String,
    pub task: Option<TaskStatus>,
    /// The agent has been told to uninstall itself, and is at it.
    pub leaving: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TaskStatus {
    pub id: String,
    pub kind: String,
    pub stage: Stage,
    pub said: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// It has begun.
    Begun,
    /// It has ended well, and that has not been reported.
    Done,
    Failed,
}

impl Stage {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Begun => "begun",
            Self::Done => "done, to be reported",
            Self::Failed => "failed, to be reported",
        }
    }
}

pub fn status(config: &Config) -> Result<Status, String> {
    let journal = Journal::look(&config.state_dir);
    let contact = journal.contact()?.unwrap_or_default();
    Ok(Status {
        node: journal.node()?.map(|node| node.node),
        enrolling: journal.enrolling()?.is_some(),
        heard_seconds_ago: contact.heard_unix_seconds.map(|then| now().saturating_sub(then)),
        trouble: contact.trouble,
        problems: contact.problems,
        refused: contact.refused,
        task: journal.held()?.map(shown),
        leaving: journal.leaving()?.is_some(),
    })
}

fn shown(held: Held) -> TaskStatus {
    let (stage, said) = match held.result {
        None => (Stage::Begun, String::new()),
        Some(Ended { ok: true, said, .. }) => (Stage::Done, said),
        Some(Ended { ok: false, said, .. }) => (Stage::Failed, said),
    };
    TaskStatus { id: held.task.id, kind: held.task.kind, stage, said }
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
            Some(TaskStatus { id, kind, stage, said }) => {
                let said = if said.is_empty() { String::new() } else { format!(": {said}") };
                writeln!(f, "Task:      {id} {kind}, {}{said}", stage.as_str())?;
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
    use crate::node::journal::{Contact, Enrolling, Leaving, Node};
    use wire::node::Task;

    #[test]
    fn what_is_in_the_folder_is_shown_without_secrets() {
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
        let enrolling = Enrolling { token_sha256: token_sha256.clone(), session: session.clone() };
        journal.keep_enrolling(&enrolling).unwrap();
        assert!(shown().contains("has been asked for"));
        let node = Node { token_sha256, session, node: "node-1".into(), heartbeat_seconds: 1 };
        journal.keep_node(&node).unwrap();
        let contact = Contact {
            heard_unix_seconds: Some(1),
            trouble: "away".into(),
            problems: vec!["hot".into()],
            refused: "the token is refused: no".into(),
        };
        journal.keep_contact(&contact).unwrap();
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
            let result =
                result.map(|(ok, said)| Ended { ok, said: said.into(), log: String::new() });
            journal.keep_held(&Held { task: task.clone(), result }).unwrap();
            let shown = shown();
            for word in [
                words,
                "Node:      node-1",
                "Trouble:   away",
                "Not well:  hot",
                "Token:     the token",
            ] {
                assert!(shown.contains(word), "{word:?} is not in\n{shown}");
            }
            assert!(!shown.contains("geheim"));
        }
        journal.keep_leaving(&Leaving { task: "t-1".into() }).unwrap();
        assert!(shown().contains("leaves this node"));
    }
}
