//! Applies the commit of a run to its node, in the same transaction, so that both always agree.

use model::effect::DeviceFacts;
use model::lifecycle::{Lifecycle, SubjectKind};
use model::node::follow::revokes_sessions;
use model::node::{Node, NodeState, next_transition};
use model::run::Run;
use store::{NewEvent, Result, Tx};

/// The most transitions in one commit; more would be a loop in the rules.
const MAX_NODE_TRANSITIONS: usize = 8;

/// Locks the node of a run, before any other row that the commit changes.
pub(crate) async fn lock(tx: &mut Tx, run: &Run) -> Result<Option<Box<Node>>> {
    match &run.spec.reports_to {
        Some(subject) if subject.kind == SubjectKind::Node => {
            Ok(tx.record_locked::<Node>(&subject.id).await?.map(Box::new))
        }
        Some(_) | None => Ok(None),
    }
}

/// Stores the facts that the run has read, and makes the node's transitions.
pub(crate) fn write(
    tx: &mut Tx,
    mut node: Node,
    run: &Run,
    facts: Option<&DeviceFacts>,
    event: &NewEvent,
) -> Result<()> {
    if let Some(facts) = facts {
        let before = node.clone();
        node.merge_facts(facts);
        let change = match (&before.maas, &node.maas) {
            (Some(old), Some(new)) => !old.same(new) || before.system_id != node.system_id,
            (_, new) => new.is_some(),
        };
        if change {
            tx.update_record(&mut node, event)?;
        } else {
            node = before;
        }
    }
    // In the same commit: a worker that has lost its claim must not revoke a newer token. Only by
    // the node's current run: an old one may still be marked or closed after another run has
    // reinstalled the node.
    if node.workflow.as_ref() == Some(&run.spec.id) && revokes_sessions(run) {
        tx.revoke_agent(&node.id())?;
    }
    for _ in 0..MAX_NODE_TRANSITIONS {
        let Some(step) = next_transition(&node, run) else { break };
        let Some(mut moved) = step.apply(&node) else { break };
        moved.head.since = event.at;
        let event = NewEvent { message: step.why.clone(), ..event.clone() };
        tx.update_record(&mut moved, &event)?;
        if moved.state == NodeState::Deleted {
            tx.detach_node(&moved.id())?;
        }
        node = moved;
    }
    Ok(())
}
