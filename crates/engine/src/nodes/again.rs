//! Doing anew what was done on a node, by a new run: from the top, adopting what holds, or after what was done is taken back.

use super::{no_node, node_of_run, write_run};
use crate::Engine;
use crate::submit::{Started, event, no_machine, no_run, reused};
use model::here;
use model::id::RunId;
use model::node::Node;
use model::node::door::may_go_on;
use model::run::act::{Again, Who, again};
use model::run::{ENGINE_VERSION, Run, RunSpec};
use model::time::Timestamp;
use store::{Cause, Held, Result, Tx};

impl Engine {
    pub(crate) async fn node_again(
        &self,
        parent: &RunId,
        how: Again,
        request_id: String,
        who: Who,
    ) -> Result<Started> {
        let id = RunId::new(self.now(), self.chance());
        let restart = NodeAnew {
            parent: parent.clone(),
            how,
            request_id,
            by: who.by,
            id: id.clone(),
            owner: self.eager_owner(),
            now: self.now(),
        };
        self.begin("restart_on_node", id, restart, |restart, tx| Box::pin(restart.run(tx))).await
    }
}

struct NodeAnew {
    parent: RunId,
    how: Again,
    request_id: String,
    by: String,
    id: RunId,
    owner: Option<String>,
    now: Timestamp,
}

impl NodeAnew {
    async fn run(&self, tx: &mut Tx) -> Result<(Started, Option<Held>)> {
        let parent = tx.run(&self.parent).await?.ok_or_else(|| no_run(&self.parent))?;
        if let Some(run) = tx.run_of_request(&parent.spec.target, &self.request_id).await? {
            // Whoever names the operation by its node names, the second time, the one that the first has made.
            let of = run.spec.parent.as_ref();
            let named = of == Some(&self.parent) || run.spec.id == self.parent;
            return match named && run.spec.again == Some(self.how) {
                true => Ok((Started { run, new: false }, None)),
                false => Err(reused(&run).into()),
            };
        }
        let progress = again(&parent, self.how)?;
        let known = node_of_run(tx, &parent).await?.ok_or_else(|| no_run(&self.parent))?;
        let locked = tx.record_locked::<Node>(&known.head.id).await?;
        let mut node = locked.ok_or_else(|| no_node(&known.id()))?;
        let machine = tx.machine_locked(&node.machine).await?;
        let machine = machine.ok_or_else(|| no_machine(&node.machine))?;
        let spec = RunSpec {
            id: self.id.clone(),
            request_id: self.request_id.clone(),
            initiator: self.by.clone(),
            parent: Some(self.parent.clone()),
            again: Some(self.how),
            engine: ENGINE_VERSION,
            created_at: self.now.max(parent.spec.created_at + Timestamp::TICK),
            ..parent.spec.clone()
        };
        let mut run = Run { spec, progress, version: 1 };
        // Asked of the one before it, which whoever is refused has named.
        may_go_on(&node, &Run { spec: parent.spec.clone(), ..run.clone() })?;
        node.workflow = Some(self.id.clone());
        let message = format!("{} accepted", run.spec.run_type.as_str());
        let event = event(Cause::Request, &self.by, message, here!(), self.now);
        let owner = self.owner.as_deref();
        let held = write_run(tx, &machine, &mut run, owner, &event).await?;
        tx.update_record(&mut node, &event)?;
        Ok((Started { run, new: true }, held))
    }
}
