//! The effect of operations on the rank of their nodes, and the operation that took the machine of
//! a node down.

use super::contacts::agent_contact;
use super::readable;
use model::id::{MachineId, RunId};
use model::machine::Machine;
use model::node::{Node, NodeWork};
use model::run::Run;
use model::time::Timestamp;
use model::why::waits_for_agent;
use std::collections::BTreeMap;
use std::time::Duration;
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

/// The operations on nodes, and the machines of the nodes.
pub(super) struct WorkOnNodes {
    /// What they mean for the rank of a node, by its id.
    pub work: BTreeMap<String, NodeWork>,
    /// A machine that cannot be read is left out.
    pub machines: BTreeMap<MachineId, Machine>,
}

/// `silence` is the time without a heartbeat after which the lease of an agent is over.
pub(super) async fn work_on_nodes(
    tx: &mut Tx,
    nodes: &[Node],
    (silence, now): (Duration, Timestamp),
) -> Result<WorkOnNodes> {
    let ids: Vec<&str> = nodes.iter().map(|node| node.machine.as_str()).collect();
    let machines = tx.machines_by_ids(&ids).await?.into_iter();
    let machines: BTreeMap<MachineId, Machine> =
        machines.filter_map(|(id, machine)| Some((id, machine.ok()?))).collect();
    let is_held = |id| machines.get(id).is_some_and(|machine| machine.active_run.is_some());
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
        let mut work = NodeWork::of(node, is_down || is_held(&node.machine), newest);
        if let Some(run) = newest.filter(|run| waits_for_agent(run)) {
            let agent = agent_contact(tx, node, silence).await?;
            work = work.with_agent(run, &agent, now);
        }
        found.insert(node.head.id.clone(), work);
    }
    Ok(WorkOnNodes { work: found, machines })
}
