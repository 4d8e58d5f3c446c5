//! Read-only views of nodes.

use super::no_node;
use crate::node::Nodes;
use model::id::{MachineId, NodeId};
use model::node::Node;
use model::order::Selection;
use model::run::Run;
use model::time::Timestamp;
use model::why::Explanation;
use store::{NodeHeartbeat, RecordPage, Result, Tx};

/// A node with its run, agent, site and explanation.
#[derive(Debug, Clone)]
pub struct NodeView {
    pub node: Node,
    /// The newest operation.
    pub run: Option<Run>,
    pub heartbeat: NodeHeartbeat,
    /// The node has an agent session.
    pub enrolled: bool,
    /// When the MAAS of its site last answered: the age of the upstream state.
    pub site_answered: Option<Timestamp>,
    pub explanation: Explanation,
}

impl Nodes {
    pub async fn get(&self, id: &NodeId) -> Result<NodeView> {
        let input = (id.clone(), self.0.now());
        self.0.store().read(input, |(id, now), tx| Box::pin(show(tx, id, *now))).await
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
        let input = (selection.into(), after, limit);
        let found = self.0.store().scan(input, |(selection, after, limit), tx| {
            Box::pin(tx.selected_records(selection, after.as_deref(), *limit))
        });
        let page = found.await?;
        self.0.store().unreadable().record(&page.unreadable);
        Ok(page)
    }
}

async fn show(tx: &mut Tx, id: &NodeId, now: Timestamp) -> Result<NodeView> {
    let found = tx.record::<Node>(id.as_str()).await?;
    let node = found.ok_or_else(|| no_node(id))?;
    let run = match &node.workflow {
        Some(run) => tx.run(run).await?,
        None => None,
    };
    let name = tx.last_heartbeat(id).await?;
    let enrolled = tx.has_agent(id).await?;
    let reported = node.explain(run.as_ref(), name.at, now);
    let site_answered = match &node.site {
        Some(site) => tx.last_site_answer(site).await?,
        None => None,
    };
    Ok(NodeView { node, run, heartbeat: name, enrolled, site_answered, explanation: reported })
}
