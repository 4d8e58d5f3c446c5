//! The effect of operations on the rank of their nodes, and the operation that took the machine of
//! a node down.

use super::readable;
use model::id::RunId;
use model::node::{Node, NodeWork};
use model::run::Run;
use std::collections::{BTreeMap, BTreeSet};
use store::{Result, Tx};

/// The operation that took the machine of a node down. A child run is part of its parent while
/// that goes on.
pub(crate) async fn operation_down(tx: &mut Tx, node: &Node) -> Result<Option<Run>> {
    let Some(id) = &node.down_by else { return Ok(None) };
    let Some(run) = readable(tx.run(id).await)? else { return Ok(None) };
    let parent = match run.spec.parent_run.as_ref().filter(|_| run.ended()) {
        Some(parent) => readable(tx.run(parent).await)?,
        None => None,
    };
    Ok(parent.filter(|parent| !parent.ended()).or(Some(run)))
}

/// The effect of the operations on the rank of each node, by the id of the node.
pub(super) async fn work_on_nodes(
    tx: &mut Tx,
    nodes: &[Node],
) -> Result<BTreeMap<String, NodeWork>> {
    let ids: Vec<&str> = nodes.iter().map(|node| node.machine.as_str()).collect();
    let machines = tx.machines_by_ids(&ids).await?.into_iter();
    let held: BTreeSet<_> = machines
        .filter(|(_, machine)| machine.as_ref().is_ok_and(|one| one.active_run.is_some()))
        .map(|(id, _)| id)
        .collect();
    let ids: Vec<&str> =
        nodes.iter().filter_map(|node| Some(node.workflow.as_ref()?.as_str())).collect();
    let runs = tx.runs_with_claims(&ids).await?.into_iter();
    let newest: BTreeMap<RunId, Run> =
        runs.filter_map(|(id, claimed)| Some((id, claimed.ok()?.run))).collect();
    // One power shelf takes many machines down.
    let mut going = BTreeMap::new();
    let mut found = BTreeMap::new();
    for node in nodes {
        let is_down = match &node.down_by {
            Some(run) if !going.contains_key(run) => {
                let at_work = operation_down(tx, node).await?.is_some_and(|run| !run.ended());
                *going.entry(run.clone()).or_insert(at_work)
            }
            Some(run) => going.get(run).copied().unwrap_or_default(),
            None => false,
        };
        let newest = node.workflow.as_ref().and_then(|run| newest.get(run));
        let work = NodeWork::of(node, is_down || held.contains(&node.machine), newest);
        found.insert(node.head.id.clone(), work);
    }
    Ok(found)
}
