//! A request that went past the gate `approval`, until another person has reviewed it.

use super::{Explanation, Rank, Urgency};
use crate::approval::Approval;

pub fn rank_break_glass(record: &Approval) -> Rank {
    Rank::new(Urgency::Stopped, record.created_at)
}

pub fn explain_break_glass(record: &Approval) -> Explanation {
    let Approval { id, requester, reason, operations, .. } = record;
    let what = record.describe();
    let shown = operations.iter().map(|run| format!("farrier operation get {run}"));
    let mut next_commands = vec![format!("farrier approval get {id}")];
    next_commands.extend(shown.take(1));
    next_commands.push(format!("farrier approve {id}   # another person than {requester}"));
    Explanation {
        headline: format!("break-glass: {requester} started {what} without an approval: {reason}"),
        waiting_for: "another person, who reviews it".into(),
        since: Some(record.created_at),
        next_commands,
        ..Explanation::default()
    }
}
