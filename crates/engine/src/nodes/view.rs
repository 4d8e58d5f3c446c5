//! Reading: what is known of nodes. Nothing here changes anything.

use super::no_node;
use crate::Engine;
use model::id::{MachineId, NodeId};
use model::node::Node;
use model::run::Run;
use model::time::Timestamp;
use model::why::Explanation;
use store::{RecordFilter, RecordPage, Result, Tx, Word, Work};

/// A node with everything that is known of it.
#[derive(Debug, Clone)]
pub struct NodeView {
    pub node: Node,
    /// Its newest operation.
    pub run: Option<Run>,
    pub word: Word,
    /// Somebody may speak for it.
    pub enrolled: bool,
    /// When the MAAS of its site last answered: that old is what is known of its machine.
    pub site_answered: Option<Timestamp>,
    pub told: Explanation,
}

impl Engine {
    pub async fn node(&self, id: &NodeId) -> Result<NodeView> {
        self.store().read(ShowNode { id: id.clone(), now: self.now() }).await
    }

    /// The living node on a machine.
    pub async fn node_on(&self, machine: &MachineId) -> Result<Option<NodeId>> {
        self.store().read(NodeOn { machine: machine.clone() }).await
    }

    /// Nodes by id, after one.
    pub async fn nodes(
        &self,
        filter: RecordFilter,
        after: Option<String>,
        limit: usize,
    ) -> Result<RecordPage<Node>> {
        self.store().scan(ListNodes { filter, after, limit }).await
    }
}

struct ShowNode {
    id: NodeId,
    now: Timestamp,
}

impl Work for ShowNode {
    type Out = NodeView;

    async fn run(&self, tx: &mut Tx) -> Result<NodeView> {
        let found = tx.record::<Node>(self.id.as_str()).await?;
        let node = found.ok_or_else(|| no_node(&self.id))?;
        let run = match &node.workflow {
            Some(id) => tx.run(id).await?,
            None => None,
        };
        let word = tx.word_of(&self.id).await?;
        let enrolled = tx.has_agent(&self.id).await?;
        let told = node.explain(run.as_ref(), word.at, self.now);
        let site_answered = match &node.site {
            Some(site) => tx.answer_of(site).await?,
            None => None,
        };
        Ok(NodeView { node, run, word, enrolled, site_answered, told })
    }
}

struct NodeOn {
    machine: MachineId,
}

impl Work for NodeOn {
    type Out = Option<NodeId>;

    async fn run(&self, tx: &mut Tx) -> Result<Option<NodeId>> {
        tx.node_on(&self.machine).await
    }
}

struct ListNodes {
    filter: RecordFilter,
    after: Option<String>,
    limit: usize,
}

impl Work for ListNodes {
    type Out = RecordPage<Node>;

    async fn run(&self, tx: &mut Tx) -> Result<RecordPage<Node>> {
        tx.records(&self.filter, self.after.as_deref(), self.limit).await
    }
}
