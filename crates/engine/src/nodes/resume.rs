//! Going on with work on a node that may have been lost: idempotent, whoever asks how often.

use super::no_node;
use crate::Engine;
use crate::submit::event;
use model::here;
use model::id::{NodeId, ObjectId, RunId};
use model::lifecycle::Lifecycle;
use model::node::Node;
use model::node::task::Resumed;
use model::refusal::Refusal;
use model::run::act::{Action, Who};
use model::time::Timestamp;
use store::{Cause, Result, TaskRow, Tx, Work};

/// What came of it.
#[derive(Debug, Clone)]
pub struct ResumedNode {
    pub node: Node,
    pub run: RunId,
    /// What became of the task that its agent is to do, where there is one.
    pub task: Resumed,
    /// The run had ended, and goes on.
    pub reopened: bool,
}

impl Engine {
    /// Sees to it that somebody is at work on a node that is on its way, and that its agent has what it is to do.
    pub async fn resume_node(&self, id: &NodeId, who: Who) -> Result<ResumedNode> {
        let work = || Resume { id: id.clone(), who: who.clone(), now: self.now() };
        let found = self.racing(|| self.store().write(work())).await?;
        match found {
            Found::Going(resumed) => {
                self.poke_agent(id);
                Ok(*resumed)
            }
            Found::Ended(node, run) => {
                self.act(run.clone(), Action::Resume, who).await?;
                Ok(ResumedNode { node: *node, run, task: Resumed::None, reopened: true })
            }
        }
    }
}

enum Found {
    Going(Box<ResumedNode>),
    Ended(Box<Node>, RunId),
}

struct Resume {
    id: NodeId,
    who: Who,
    now: Timestamp,
}

impl Work for Resume {
    type Out = Found;

    async fn run(&self, tx: &mut Tx) -> Result<Found> {
        let found = tx.record_locked::<Node>(self.id.as_str()).await?;
        let mut node = found.ok_or_else(|| no_node(&self.id))?;
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
        let task = match tx.open_task(&self.id).await? {
            None => Resumed::None,
            Some(TaskRow { task, version }) => {
                let (task, resumed) = task.resumed(self.now);
                if resumed == Resumed::Requeued {
                    tx.update_task(&TaskRow { task, version })?;
                    let message = "its task is in the queue again".to_string();
                    let event = event(Cause::Request, &self.who.by, message, here!(), self.now);
                    tx.update_record(&mut node, &event)?;
                }
                resumed
            }
        };
        tx.wake(&id.object(), self.now)?;
        tx.wake(&ObjectId::trusted(node.subject().key()), self.now)?;
        Ok(Found::Going(Box::new(ResumedNode { node, run: id, task, reopened: false })))
    }
}

fn nothing(node: &Node) -> Refusal {
    let id = &node.head.id;
    let said = format!("{id} is {}: nothing on it has been left undone", node.state);
    Refusal::precondition("NOTHING_TO_RESUME", said).next(format!("farrier why {id}"))
}
