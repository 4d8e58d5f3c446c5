//! What a commit of a run means for its node: written in that very commit, so that the two never
//! disagree.

use model::effect::Facts;
use model::lifecycle::{Lifecycle, SubjectKind};
use model::node::follow::revokes;
use model::node::{Node, NodeState, follow};
use model::run::Run;
use store::{NewEvent, Result, Tx};

/// More moves than this at once would be a loop in the rules.
const MAX_MOVES: usize = 8;

/// The node that a run works on, locked before anything else that it changes.
pub(crate) async fn lock(tx: &mut Tx, run: &Run) -> Result<Option<Box<Node>>> {
    match &run.spec.reports_to {
        Some(subject) if subject.kind == SubjectKind::Node => {
            Ok(tx.record_locked::<Node>(&subject.id).await?.map(Box::new))
        }
        Some(_) | None => Ok(None),
    }
}

/// Takes in what the run has read, and moves the node to where the run has brought it.
pub(crate) fn write(
    tx: &mut Tx,
    mut node: Node,
    run: &Run,
    facts: Option<&Facts>,
    event: &NewEvent,
) -> Result<()> {
    if let Some(facts) = facts {
        let before = node.clone();
        node.learn(facts);
        let news = match (&before.upstream, &node.upstream) {
            (Some(old), Some(new)) => !old.same(new) || before.system_id != node.system_id,
            (_, new) => new.is_some(),
        };
        if news {
            tx.update_record(&mut node, event)?;
        } else {
            node = before;
        }
    }
    // With the commit that says so, so that nobody who has lost his claim revokes what was issued
    // since; and not by an old run, which somebody may still mark or close when another one has
    // installed the node anew.
    if node.workflow.as_ref() == Some(&run.spec.id) && revokes(run) {
        tx.forget_agent(&node.id())?;
    }
    for _ in 0..MAX_MOVES {
        let Some(step) = follow(&node, run) else { break };
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
