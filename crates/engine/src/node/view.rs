//! Read-only views of nodes.

use super::no_node;
use crate::explain::{operation_down, peer_contacts};
use crate::node::Nodes;
use model::id::{MachineId, NodeId};
use model::machine::Machine;
use model::node::{Node, NodeContext};
use model::order::Selection;
use model::run::Run;
use model::time::Timestamp;
use model::why::Explanation;
use std::time::Duration;
use store::{NodeHeartbeat, RecordPage, Result, StoreError, Tx};

/// A node with its run, agent, site and explanation.
#[derive(Debug, Clone)]
pub struct NodeView {
    pub node: Node,
    /// The newest operation.
    pub run: Option<Run>,
    pub heartbeat: NodeHeartbeat,
    /// The last heartbeat is older than the limit of silence.
    pub agent_silent: bool,
    /// The node has an agent session.
    pub enrolled: bool,
    /// The time when the MAAS of its site last answered: the age of the upstream state.
    pub site_answered: Option<Timestamp>,
    /// Its machine, if that can be read.
    pub machine: Option<Machine>,
    pub explanation: Explanation,
}

impl Nodes {
    pub async fn get(&self, id: &NodeId) -> Result<NodeView> {
        let silence = self.0.settings().nodes.heartbeat_limits.silence;
        let input = (id.clone(), silence, self.0.now());
        let view = self
            .0
            .store()
            .read(input, |(id, silence, now), tx| Box::pin(show(tx, id, *silence, *now)));
        view.await
    }

    /// The node on a machine that is not deleted.
    pub async fn on_machine(&self, machine: &MachineId) -> Result<Option<NodeId>> {
        self.0
            .store()
            .read(machine.clone(), |machine, tx| Box::pin(tx.live_node_of_machine(machine)))
            .await
    }

    /// Nodes by id, after `after`.
    pub async fn list(
        &self,
        selection: impl Into<Selection>,
        after: Option<String>,
        limit: usize,
    ) -> Result<RecordPage<Node>> {
        let input = (self.0.caller().visible(selection), after, limit);
        let found = self.0.store().scan(input, |(selection, after, limit), tx| {
            Box::pin(tx.selected_records(selection, after.as_deref(), *limit))
        });
        let page = found.await?;
        self.0.store().unreadable().record(&page.unreadable);
        Ok(page)
    }
}

async fn show(tx: &mut Tx, id: &NodeId, silence: Duration, now: Timestamp) -> Result<NodeView> {
    let found = tx.record::<Node>(id.as_str()).await?;
    let node = found.ok_or_else(|| no_node(id))?;
    let run = match &node.workflow {
        Some(run) => tx.run(run).await?,
        None => None,
    };
    let name = tx.last_heartbeat(id).await?;
    let enrolled = tx.has_agent(id).await?;
    let contacts = peer_contacts(tx, run.as_ref(), Some(&node), silence).await?;
    let down_by = operation_down(tx, &node).await?;
    let machine = match tx.machine(&node.machine).await {
        Err(StoreError::Corrupt(_)) => None,
        found => found?,
    };
    let context = NodeContext {
        run: run.as_ref(),
        contacts: Some(&contacts),
        machine: machine.as_ref(),
        down_by: down_by.as_ref(),
    };
    let reported = node.explain(context, now);
    let site_answered = match &node.site {
        Some(site) => tx.last_site_answer(site).await?,
        None => None,
    };
    Ok(NodeView {
        agent_silent: name.at.is_some_and(|at| now.since(at) > silence),
        node,
        run,
        heartbeat: name,
        enrolled,
        site_answered,
        machine,
        explanation: reported,
    })
}
