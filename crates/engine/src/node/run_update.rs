//! Applies the commit of a run to its node, in the same transaction, so that both always agree; and
//! the commit of any other run to the nodes whose machines it takes down.

use crate::power_shelf::machines_fed_by;
use model::blast_radius::Impact;
use model::effect::DeviceFacts;
use model::lifecycle::{Lifecycle, SubjectKind};
use model::node::follow::revokes_sessions;
use model::node::{Node, NodeState, next_transition};
use model::run::Run;
use model::target::TargetKind;
use std::collections::BTreeSet;
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

/// Locks the nodes in service whose machines the intended call takes down. The order with an
/// override reaches them before the call: a node never stays active while its machine is off by our
/// order.
pub(crate) async fn lock_taken_down(tx: &mut Tx, run: &Run) -> Result<Vec<Node>> {
    let Some(impact) = run.intended_impact().filter(|impact| impact.takes_down()) else {
        return Ok(Vec::new());
    };
    let target = &run.spec.target;
    let machines = match target.kind {
        TargetKind::Machine => target.machine().into_iter().collect(),
        // The firmware of a shelf keeps its outputs on.
        TargetKind::PowerShelf if impact == Impact::PowerLoss => {
            machines_fed_by(tx, target).await?
        }
        TargetKind::PowerShelf | TargetKind::Switch | TargetKind::Rack => Vec::new(),
    };
    // The same lock order everywhere, so no deadlock.
    let mut ids = BTreeSet::new();
    for machine in machines {
        let node = tx.node_in_service(&machine).await?;
        ids.extend(node.filter(|node| node.state.in_service()).map(|node| node.id));
    }
    let mut nodes = Vec::new();
    for id in ids {
        nodes.extend(tx.record_locked::<Node>(id.as_str()).await?);
    }
    Ok(nodes)
}

/// Moves a node whose machine goes down.
pub(crate) fn write_taken_down(
    tx: &mut Tx,
    node: &Node,
    run: &Run,
    event: &NewEvent,
) -> Result<()> {
    let Some(mut down) = node.taken_down(&run.spec.id) else { return Ok(()) };
    if down.state != node.state {
        down.head.since = event.at;
    }
    let message = format!("{} takes its machine down", run.spec.id);
    let event = NewEvent { message, ..event.clone() };
    tx.update_record(&mut down, &event)
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
        if node.revoke_session(event.at) {
            tx.update_record(&mut node, event)?;
        }
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
