//! Continues work on a node that may have been lost. Idempotent.

use super::no_node;
use crate::admission::event;
use crate::node::Nodes;
use model::here;
use model::id::{NodeId, ObjectId, RunId};
use model::lifecycle::Lifecycle;
use model::node::Node;
use model::node::task::ResumeResult;
use model::refusal::{Reason, Refusal};
use model::run::Run;
use model::run::actions::{Action, Requester};
use model::time::Timestamp;
use store::{Cause, Result, TaskRow, Tx};

/// The result of a resume.
#[derive(Debug, Clone)]
pub struct ResumedNode {
    pub node: Node,
    pub run: RunId,
    /// The result of resuming the open task of its agent, if there is one.
    pub task: ResumeResult,
    /// The run, if it had failed and was reopened.
    pub reopened: Option<Box<Run>>,
}

impl Nodes {
    /// Wakes the run of a node and enqueues a stale task of its agent again. A failed run is
    /// resumed.
    pub async fn resume(&self, id: &NodeId, who: Requester) -> Result<ResumedNode> {
        let input = (id.clone(), who.clone(), self.0.now());
        let found = self.0.store().retry_write("resume_node", input, |(id, who, now), tx| {
            Box::pin(resume(tx, id, who, *now))
        });
        match found.await? {
            Found::Going(resumed) => {
                self.poke_agent(id);
                Ok(*resumed)
            }
            Found::Ended(node, run) => {
                let reopened = self.0.runs().act(run.clone(), Action::Resume, who).await?;
                let (task, reopened) = (ResumeResult::None, Some(Box::new(reopened)));
                Ok(ResumedNode { node: *node, run, task, reopened })
            }
        }
    }
}

enum Found {
    Going(Box<ResumedNode>),
    Ended(Box<Node>, RunId),
}

async fn resume(tx: &mut Tx, node_id: &NodeId, who: &Requester, now: Timestamp) -> Result<Found> {
    let found = tx.record_locked::<Node>(node_id.as_str()).await?;
    let mut node = found.ok_or_else(|| no_node(node_id))?;
    let run = match &node.workflow {
        Some(id) => tx.run(id).await?,
        None => None,
    };
    let Some(run) = run else { return Err(nothing(&node).into()) };
    let id = run.spec.id.clone();
    if run.ended() {
        return match run.progress.workflow.failed() {
            true => Ok(Found::Ended(Box::new(node), id)),
            false => Err(nothing(&node).into()),
        };
    }
    let task = match tx.open_task(node_id).await? {
        None => ResumeResult::None,
        Some(TaskRow { task, version }) => {
            let (task, resumed) = task.resumed(now);
            if resumed == ResumeResult::Requeued {
                tx.update_task(&TaskRow { task, version })?;
                let message = "its task is in the queue again".to_string();
                let event = event(Cause::Request, &who.by, message, here!(), now);
                tx.update_record(&mut node, &event)?;
            }
            resumed
        }
    };
    tx.wake(&id.object(), now)?;
    tx.wake(&ObjectId::trusted(node.subject().key()), now)?;
    Ok(Found::Going(Box::new(ResumedNode { node, run: id, task, reopened: None })))
}

fn nothing(node: &Node) -> Refusal {
    let id = &node.head.id;
    let message = format!("{id} is {}: nothing on it has been left undone", node.state);
    Refusal::new(Reason::NothingToResume, message).next(format!("farrier why {id}"))
}
