//! Explanations of objects whose stored row cannot be read, or was set aside.

use super::Explanation;
use crate::fault::FaultCode;
use crate::time::Timestamp;

/// Explains an object that cannot be read. `row` names the row and the problem; `kind` is the kind
/// of the object's own row, if that is the one that cannot be read.
pub fn explain_unreadable(id: &str, row: &str, kind: Option<&str>) -> Explanation {
    let set_aside = kind.map(|kind| format!("farrier db set-aside {kind} {id} --reason …"));
    Explanation {
        headline: format!("{id} cannot be shown: a stored row cannot be read."),
        waiting_for: "a person".into(),
        failed: row.to_string(),
        fault: Some(FaultCode::RecordUnreadable),
        next_commands: std::iter::once("farrier db check".to_string()).chain(set_aside).collect(),
        ..Explanation::default()
    }
}

/// A row that was set aside, for its explanation.
pub struct SetAside<'a> {
    pub kind: &'a str,
    pub id: &'a str,
    pub problem: &'a str,
    pub actor: &'a str,
    pub reason: &'a str,
    pub at: Timestamp,
}

pub fn explain_set_aside(row: &SetAside<'_>) -> Explanation {
    let SetAside { kind, id, problem, actor, reason, at } = row;
    Explanation {
        headline: format!("The row of {kind} {id} was set aside by {actor}: {reason}."),
        waiting_for: "a person".into(),
        since: Some(*at),
        failed: (*problem).to_string(),
        fault: Some(FaultCode::RecordUnreadable),
        next_commands: vec![
            "farrier db check".into(),
            format!("farrier db put-back {kind} {id} --reason …"),
        ],
        ..Explanation::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_name_the_row_and_the_command() {
        let row = "machine m-1: expected value at line 1 column 1";
        let own = explain_unreadable("m-1", row, Some("machine"));
        assert_eq!(own.failed, row);
        assert_eq!(own.next_commands[1], "farrier db set-aside machine m-1 --reason …");
        let other = explain_unreadable("m-1", "run op-1: EOF", None);
        assert_eq!(other.next_commands, ["farrier db check"]);
        let aside = explain_set_aside(&SetAside {
            kind: "machine",
            id: "m-1",
            problem: "EOF",
            actor: "alice",
            reason: "damaged",
            at: Timestamp::from_millis(1),
        });
        assert_eq!(aside.headline, "The row of machine m-1 was set aside by alice: damaged.");
        assert!(aside.next_commands[1].starts_with("farrier db put-back machine m-1"));
    }
}
