//! Operator requests to a node that are not operations: quarantine, release, reactivate. One
//! transaction changes the node, closes the run that the request ends, and creates the run that
//! uncordons the node in its cluster.

use super::{
    NewNodeRun, create_run, health_gate, load_node_context, load_stage_target, no_node, run_type,
    write_moves, write_serving,
};
use crate::admission::{Created, event, lock_machine, replay};
use crate::holds::apply_run;
use crate::node::Nodes;
use model::gate::{Gate, Overrides, gate_of};
use model::here;
use model::id::{NodeId, RunId};
use model::machine::Machine;
use model::node::requests::{self, NodeContext, NodeRequest};
use model::node::{
    AppliedRequest, DecommissionMode, MODE, NODE, NODE_REQUEST, Node, NodeState, StageTarget,
};
use model::plan::Params;
use model::refusal::{Reason, Refusal};
use model::run::Run;
use model::run::actions::{Requester, close};
use model::target::TargetId;
use model::time::Timestamp;
use providers::Providers;
use store::{Cause, NewEvent, Result, Tx};

impl Nodes {
    /// Quarantines, releases or reactivates a node. `request_id` is that of the run that uncordons
    /// the node, if one is needed; none: it is generated.
    pub async fn apply_request(
        &self,
        id: &NodeId,
        ask: NodeRequest,
        request_id: Option<String>,
        who: Requester,
    ) -> Result<AppliedNodeRequest> {
        let run = RunId::new(self.0.now(), self.0.random());
        let (by, request) = (who.by.clone(), ask.brings_back().unwrap_or("quarantine"));
        let ask = ApplyNodeRequest {
            id: id.clone(),
            request: ask,
            request_id,
            who,
            run,
            providers: self.0.providers().clone(),
            limits: self.0.settings().nodes.heartbeat_limits,
            now: self.0.now(),
        };
        let done = self.0.admit("admit_node_request", None, ask, |ask, tx| Box::pin(ask.run(tx)));
        self.0.trace_refusal(id.as_str(), (&by, request), done.await).await
    }
}

/// The node after a request.
#[derive(Debug)]
pub struct AppliedNodeRequest {
    pub node: Node,
    /// The run that uncordons the node. None: none was needed.
    pub run: Option<Run>,
    /// False: the request is a repetition, and this is the run that it started.
    pub new: bool,
    /// The gates that refuse the request without its override.
    pub refusing: Vec<Gate>,
}

struct ApplyNodeRequest {
    id: NodeId,
    request: NodeRequest,
    request_id: Option<String>,
    who: Requester,
    /// The id of the uncordon run, if one is needed.
    run: RunId,
    providers: Providers,
    limits: model::node::heartbeat::HeartbeatLimits,
    now: Timestamp,
}

impl ApplyNodeRequest {
    async fn run(&self, tx: &mut Tx) -> Result<(AppliedNodeRequest, Created)> {
        let mut created = Created::default();
        let found = tx.record_locked::<Node>(self.id.as_str()).await?;
        let mut node = found.ok_or_else(|| no_node(&self.id))?;
        if let Some(run) = self.replayed(tx, &node).await? {
            let refusing = Vec::new();
            return Ok((AppliedNodeRequest { node, run, new: false, refusing }, created));
        }
        let mut machine = lock_machine(tx, &node.machine, self.now).await?;
        let (run, known) = load_node_context(tx, &node, &self.limits, self.now).await?;
        let known = NodeContext { run: run.as_ref(), ..known };
        let moves = requests::apply_request(&node, &self.request, known)?;
        let plain = requests::apply_request(&node, &self.request.without_overrides(), known);
        let mut refusing: Vec<Gate> = gate_of(&plain).into_iter().collect();
        let owner = self.to_uncordon(tx, &node, &machine, known).await?;
        if moves.is_empty() && owner.is_none() {
            self.record_without_effect(tx, &mut node)?;
            return Ok((AppliedNodeRequest { node, run: None, new: false, refusing }, created));
        }
        if let (Some(what), Some(run)) = (self.request.brings_back(), &machine.active_run) {
            return Err(machine_busy(&node, what, run).into());
        }
        let event = event(Cause::Request, &self.who.by, String::new(), here!(), self.now);
        let end = run.as_ref().and_then(|run| {
            let end = requests::closing_workflow(&node, &self.request, run)?;
            let (progress, note) = close(run, end, &self.who)?;
            Some((Run { progress, ..run.clone() }, note))
        });
        // The enrollment token of a node that no MAAS installs is revoked.
        if node.state == NodeState::BootstrapIssued {
            tx.revoke_agent(&self.id)?;
        }
        let uncordon = owner.map(|owner| self.uncordon_run(&node, &owner));
        refusing.extend(uncordon.as_ref().and_then(|run| health_gate(&machine, run)));
        let note = self.request.overrides().history_note(&self.who.by, &refusing);
        let moved = !moves.is_empty();
        node.last_request = self.applied().or(node.last_request);
        write_moves(tx, &mut node, moves, (&event, &note))?;
        if moved && node.state == NodeState::Active {
            write_serving(tx, &mut machine, &event)?;
        }
        if let Some((mut run, note)) = end {
            run.version = tx.update_unclaimed(&run, self.now)?.version;
            let event = NewEvent {
                message: note.message,
                decided_by: note.code_line.into(),
                ..event.clone()
            };
            tx.append_run_event(&run, &event)?;
            apply_run(tx, &mut machine, &run, &[], self.now).await?;
            tx.update_machine(&mut machine, &event)?;
        }
        let mut started = None;
        if let Some(run) = uncordon {
            // A node that does not move has no other event for the note.
            let note = if moved { "" } else { &note };
            let message = format!("{} lets its cluster place work on it again{note}", run.spec.id);
            let event = NewEvent { message, ..event };
            let run = create_run(tx, &mut created, &machine, run, (None, &event)).await?;
            node.workflow = Some(run.spec.id.clone());
            tx.update_record(&mut node, &event)?;
            started = Some(run);
        }
        Ok((AppliedNodeRequest { node, run: started, new: true, refusing }, created))
    }
}

impl ApplyNodeRequest {
    /// The entry for `Node::last_request`, if this request has a request id.
    fn applied(&self) -> Option<AppliedRequest> {
        let kind = self.request.brings_back()?.to_string();
        Some(AppliedRequest { request_id: self.request_id.clone()?, kind })
    }

    /// The result of the same request, if this is a repetition: the run that it started, if any.
    async fn replayed(&self, tx: &mut Tx, node: &Node) -> Result<Option<Option<Run>>> {
        let Some(applied) = self.applied() else { return Ok(None) };
        let target = TargetId::from(&node.machine);
        if let Some(run) = tx.run_of_request(&target, &applied.request_id).await? {
            let params = &run.spec.params;
            let same = params.get(NODE).map(String::as_str) == Some(self.id.as_str())
                && params.get(NODE_REQUEST) == Some(&applied.kind)
                && Overrides::of_params(params) == self.request.overrides();
            return replay(run, same).map(|run| Some(Some(run)));
        }
        match &node.last_request {
            Some(last) if *last == applied => Ok(Some(None)),
            Some(last) if last.request_id == applied.request_id => {
                let AppliedRequest { request_id, kind } = last;
                let message =
                    format!("request_id {request_id:?} was used on {} to {kind} it", self.id);
                let next =
                    format!("farrier node get {}   # or repeat with a new --request-id", self.id);
                Err(Refusal::new(Reason::RequestIdReused, message).next(next).into())
            }
            Some(_) | None => Ok(None),
        }
    }

    /// A request that had nothing to do is remembered too: its repetition must not do something.
    fn record_without_effect(&self, tx: &mut Tx, node: &mut Node) -> Result<()> {
        let Some(applied) = self.applied() else { return Ok(()) };
        let message = format!("{} requested, and nothing was to do", applied.kind);
        node.last_request = Some(applied);
        let event = event(Cause::Request, &self.who.by, message, here!(), self.now);
        tx.update_record(node, &event)
    }

    /// The cluster in which the node may have to be uncordoned, if any.
    async fn to_uncordon(
        &self,
        tx: &mut Tx,
        node: &Node,
        machine: &Machine,
        known: NodeContext<'_>,
    ) -> Result<Option<StageTarget>> {
        let requested = match &self.request {
            NodeRequest::Reactivate { .. } => true,
            NodeRequest::Release { .. } => node.state == NodeState::Quarantined,
            NodeRequest::Quarantine { .. } => false,
        };
        if !requested || !requests::may_be_cordoned(node, known) {
            return Ok(None);
        }
        let owner = load_stage_target(tx, node, machine, &self.providers).await?;
        Ok(Some(owner).filter(|owner| !owner.cluster.is_empty()))
    }

    fn uncordon_run(&self, node: &Node, owner: &StageTarget) -> Run {
        let mode = DecommissionMode::Reactivate.as_str().to_string();
        let mut params = Params::from([(MODE.to_string(), mode)]);
        let kind = self.request.brings_back().unwrap_or_default();
        params.insert(NODE_REQUEST.to_string(), kind.to_string());
        self.request.overrides().store_in(&mut params);
        let work = NewNodeRun {
            id: self.run.clone(),
            run_type: run_type(DecommissionMode::Reactivate),
            stages: Vec::new(),
            uncordons: true,
            params,
            request_id: self.request_id.clone().unwrap_or_else(|| self.run.to_string()),
            by: self.who.by.clone(),
        };
        work.run(node, owner, self.now)
    }
}

/// A run that holds the machine may undo what the node needs for service.
fn machine_busy(node: &Node, what: &str, run: &RunId) -> Refusal {
    let (id, machine) = (&node.head.id, &node.machine);
    let message = format!("{machine}, which {id} is on, is held by {run}: {what} must wait for it");
    Refusal::new(Reason::MachineBusy, message).next(format!("farrier why {run}"))
}
