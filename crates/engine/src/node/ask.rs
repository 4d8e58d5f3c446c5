//! Operator requests to a node that are not operations: quarantine, release, reactivate. One
//! transaction changes the node, closes the run that the request ends, and creates the run that
//! uncordons the node in its cluster.

use super::{NodeWork, create_run, known, no_node, run_type, whose, write_moves};
use crate::admission::{Created, event, no_machine};
use crate::node::Nodes;
use model::here;
use model::id::{NodeId, RunId};
use model::machine::Machine;
use model::node::door::{self, Ask, Known};
use model::node::{MODE, Mode, Node, NodeState, Whose};
use model::plan::Params;
use model::refusal::Refusal;
use model::run::act::{Who, close};
use model::run::{Run, apply_to_machine};
use model::time::Timestamp;
use providers::Providers;
use store::{Cause, NewEvent, Result, Tx};

impl Nodes {
    /// Quarantines, releases or reactivates a node.
    pub async fn ask(&self, id: &NodeId, ask: Ask, who: Who) -> Result<Node> {
        let ask = AskNode {
            id: id.clone(),
            ask,
            who,
            run: RunId::new(self.0.now(), self.0.random()),
            providers: self.0.providers().clone(),
            limits: self.0.settings().nodes.silence,
            now: self.0.now(),
        };
        self.0.admit("ask_node", None, ask, |ask, tx| Box::pin(ask.run(tx))).await
    }
}

struct AskNode {
    id: NodeId,
    ask: Ask,
    who: Who,
    /// The id of the uncordon run, if one is needed.
    run: RunId,
    providers: Providers,
    limits: model::node::silence::Limits,
    now: Timestamp,
}

impl AskNode {
    async fn run(&self, tx: &mut Tx) -> Result<(Node, Created)> {
        let mut created = Created::default();
        let found = tx.record_locked::<Node>(self.id.as_str()).await?;
        let mut node = found.ok_or_else(|| no_node(&self.id))?;
        let machine = tx.machine_locked(&node.machine).await?;
        let mut machine = machine.ok_or_else(|| no_machine(&node.machine))?;
        let (run, known) = known(tx, &node, &self.limits, self.now).await?;
        let known = Known { run: run.as_ref(), ..known };
        let moves = door::ask(&node, &self.ask, known)?;
        let whose = self.to_uncordon(tx, &node, &machine, known).await?;
        if moves.is_empty() && whose.is_none() {
            return Ok((node, created));
        }
        if let (Some(what), Some(run)) = (self.ask.brings_back(), &machine.active_run) {
            return Err(held(&node, what, run).into());
        }
        let event = event(Cause::Request, &self.who.by, String::new(), here!(), self.now);
        let end = run.as_ref().and_then(|run| {
            let end = door::closes(&node, &self.ask, run)?;
            let (progress, note) = close(run, end, &self.who)?;
            Some((Run { progress, ..run.clone() }, note))
        });
        // The token for bringing it into service by hand is revoked.
        if node.state == NodeState::BootstrapIssued {
            tx.forget_agent(&self.id)?;
        }
        write_moves(tx, &mut node, moves, &event)?;
        if let Some((mut run, note)) = end {
            run.version = tx.update_unclaimed(&run, self.now)?.version;
            let event =
                NewEvent { message: note.said, decided_by: note.line.into(), ..event.clone() };
            tx.append_run_event(&run, &event)?;
            apply_to_machine(&mut machine, &run, &[], self.now);
            tx.update_machine(&mut machine, &event)?;
        }
        if let Some(whose) = whose {
            let run = self.uncordon_run(&node, &whose);
            let message = format!("{} lets its cluster place work on it again", run.spec.id);
            let event = NewEvent { message, ..event };
            let run = create_run(tx, &mut created, &machine, run, (None, &event)).await?;
            node.workflow = Some(run.spec.id);
            tx.update_record(&mut node, &event)?;
        }
        Ok((node, created))
    }
}

impl AskNode {
    /// The cluster in which the node may have to be uncordoned, if any.
    async fn to_uncordon(
        &self,
        tx: &mut Tx,
        node: &Node,
        machine: &Machine,
        known: Known<'_>,
    ) -> Result<Option<Whose>> {
        let asked = match &self.ask {
            Ask::Reactivate { .. } => true,
            Ask::Release { .. } => node.state == NodeState::Quarantined,
            Ask::Quarantine { .. } => false,
        };
        if !asked || !door::may_be_cordoned(node, known) {
            return Ok(None);
        }
        let whose = whose(tx, node, machine, &self.providers).await?;
        Ok(Some(whose).filter(|whose| !whose.cluster.is_empty()))
    }

    fn uncordon_run(&self, node: &Node, whose: &Whose) -> Run {
        let work = NodeWork {
            id: self.run.clone(),
            run_type: run_type(Mode::Reactivate),
            stages: Vec::new(),
            uncordons: true,
            params: Params::from([(MODE.to_string(), Mode::Reactivate.as_str().to_string())]),
            request_id: self.run.to_string(),
            by: self.who.by.clone(),
        };
        work.run(node, whose, self.now)
    }
}

/// A run that holds the machine may undo what the node needs for service.
fn held(node: &Node, what: &str, run: &RunId) -> Refusal {
    let (id, machine) = (&node.head.id, &node.machine);
    let said = format!("{machine}, which {id} is on, is held by {run}: {what} must wait for it");
    Refusal::precondition("MACHINE_BUSY", said).next(format!("farrier why {run}"))
}
