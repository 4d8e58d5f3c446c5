//! Nodes: onboard, decommission, drain, quarantine, reactivate. Each request is one transaction
//! over the node, the run that works on it, and its machine.
//!
//! `node_request` changes a node without an operation, `run_update` applies a run's commit to its
//! node, `stage` executes the stages in Farrier's own record and by agents, `agents` is the API for
//! agents, `resume` continues work that may have been lost, `watch` tracks heartbeats, and
//! `reconcile` compares nodes with MAAS.

pub(crate) mod agents;
mod node_request;
mod preview;
mod reconcile;
mod restart;
mod resume;
pub(crate) mod run_update;
pub(crate) mod stage;
mod tasks;
mod view;
mod waiting_agents;
pub(crate) mod watch;

pub use agents::{Agents, Bundle, DispatchedTask, HeartbeatAck, SessionPolicy};
pub use node_request::AppliedNodeRequest;
pub use preview::{NodeRunPreview, PreviewedStage};
pub use resume::ResumedNode;
pub use tasks::TaskReport;
pub use view::NodeView;

use crate::Engine;
use crate::access::Caller;
use crate::admission::{
    Admission, Created, Holds, admit_taken_by, event, lock_machine, replay, reused,
};
use model::gate::{Gate, Overrides, gate_of};
use model::here;
use model::id::{MachineId, NodeId, RunId, SiteId};
use model::machine::Machine;
use model::machine::admit::{RunCase, admit_again};
use model::node::heartbeat::HeartbeatLimits;
use model::node::requests::{self, NodeContext};
use model::node::{
    DecommissionMode, MODE, NODE, Node, NodeStage, NodeState, StageTarget, steps, uncordon,
};
use model::plan::{OnFailure, Params, RunType, node_plan_id};
use model::refusal::{Reason, Refusal};
use model::run::{ENGINE_VERSION, Progress, Run, RunSpec};
use model::site::Site;
use model::target::TargetId;
use model::time::Timestamp;
use providers::Providers;
use store::{Cause, Enqueue, NewEvent, Result, Tx};

/// A request to bring a machine into service as a node.
#[derive(Debug, Clone)]
pub struct Onboard {
    pub machine: MachineId,
    pub site: SiteId,
    pub overrides: Overrides,
    pub request_id: String,
    pub by: String,
}

/// A request to take a node out of service.
#[derive(Debug, Clone)]
pub struct Decommission {
    pub node: NodeId,
    pub mode: DecommissionMode,
    pub overrides: Overrides,
    pub request_id: String,
    pub by: String,
}

/// A node and the run that a request has started on it.
#[derive(Debug, Clone)]
pub struct NodeRun {
    pub node: Node,
    pub run: Run,
    /// False: a repeated request.
    pub new: bool,
}

/// Nodes: onboarding, decommission, watching, and reconciliation with MAAS.
#[derive(Clone)]
pub struct Nodes(pub(crate) Engine);

impl Nodes {
    /// Brings a machine into service: creates the node and its onboarding run.
    pub async fn onboard(&self, request: Onboard) -> Result<NodeRun> {
        let (run, owner) =
            (RunId::new(self.0.now(), self.0.random()), self.0.scheduler().eager_owner());
        let claims = owner.is_some().then(|| run.clone());
        let start = StartOnboarding {
            request,
            node: NodeId::new(self.0.now(), self.0.random()),
            run,
            owner,
            providers: self.0.providers().clone(),
            record: None,
            now: self.0.now(),
        };
        let (machine, by) = (start.request.machine.clone(), start.request.by.clone());
        let done =
            self.0.admit("start_onboarding", claims, start, |start, tx| Box::pin(start.run(tx)));
        self.0.trace_refusal(machine.as_str(), (&by, "onboard"), done.await)
    }

    /// Takes a node out of service, or empties it.
    pub async fn decommission(&self, request: Decommission) -> Result<NodeRun> {
        let (run, owner) =
            (RunId::new(self.0.now(), self.0.random()), self.0.scheduler().eager_owner());
        let claims = owner.is_some().then(|| run.clone());
        let start = StartDecommission {
            request,
            run,
            owner,
            providers: self.0.providers().clone(),
            limits: self.0.settings().nodes.heartbeat_limits,
            record: None,
            now: self.0.now(),
        };
        let (node, by) = (start.request.node.clone(), start.request.by.clone());
        let done =
            self.0.admit("start_decommission", claims, start, |start, tx| Box::pin(start.run(tx)));
        self.0.trace_refusal(node.as_str(), (&by, "decommission"), done.await)
    }
}

pub(crate) fn no_node(id: &NodeId) -> Refusal {
    Refusal::not_found("node", id, "farrier node list")
}

pub(crate) fn no_site(id: &SiteId) -> Refusal {
    Refusal::not_found("site", id, "farrier site list")
}

/// The parameters of a new run on a node.
pub(crate) struct NewNodeRun {
    pub id: RunId,
    pub run_type: RunType,
    pub stages: Vec<NodeStage>,
    /// True if the run ends by uncordoning the node in its cluster.
    pub uncordons: bool,
    pub params: Params,
    pub request_id: String,
    pub by: String,
}

/// The MAAS provider and the cluster that the stages of a node use.
pub(crate) async fn load_stage_target(
    tx: &mut Tx,
    node: &Node,
    machine: &Machine,
    providers: &Providers,
) -> Result<StageTarget> {
    let by = match &node.site {
        Some(id) => tx.record::<Site>(id.as_str()).await?.ok_or_else(|| no_site(id))?.spec.provider,
        None => String::new(),
    };
    let cluster = machine.spec.target_cluster_ref.clone();
    if !cluster.is_empty() && providers.cluster_provider(&machine.spec.provider).is_none() {
        let (id, provider) = (&machine.id, &machine.spec.provider);
        let message = format!(
            "target_cluster_ref of {id} is {cluster:?}, and neither its provider {provider:?} nor another one here speaks to clusters"
        );
        let next = format!("farrier machine update {id} --cluster ''");
        return Err(Refusal::new(Reason::CapabilityMissing, message).next(next).into());
    }
    Ok(StageTarget { node: node.id(), site: node.site.clone(), provider: by, cluster })
}

impl NewNodeRun {
    pub fn run(self, node: &Node, owner: &StageTarget, at: Timestamp) -> Run {
        let mut steps = steps(&self.stages, owner);
        if self.uncordons && !owner.cluster.is_empty() {
            steps.push(uncordon(&owner.cluster));
        }
        let plan_id =
            node_plan_id(self.params.get(MODE).and_then(|name| DecommissionMode::parse(name)));
        let progress = Progress::fresh(&steps);
        let mut params = self.params;
        params.insert(NODE.into(), node.head.id.clone());
        let spec = RunSpec {
            id: self.id,
            target: TargetId::from(&node.machine),
            request_id: self.request_id,
            run_type: self.run_type,
            plan_id,
            steps,
            params,
            initiator: self.by,
            rerun_of: None,
            restart: None,
            on_failure: OnFailure::KeepPhase,
            parent_run: None,
            reports_to: Some(model::lifecycle::Lifecycle::subject(node)),
            held_targets: Vec::new(),
            engine_version: ENGINE_VERSION,
            created_at: at,
        };
        Run { spec, progress, version: 1 }
    }
}

/// Creates a run on a node: checks the machine's gates, inserts the run, takes its holds. The
/// caller writes the node with the run's id.
pub(crate) async fn create_run(
    tx: &mut Tx,
    created: &mut Created,
    machine: &Machine,
    run: Run,
    (owner, event): (Option<&str>, &NewEvent),
) -> Result<Run> {
    let overrides = Overrides::of_params(&run.spec.params);
    match &run.spec.rerun_of {
        None => run_case(machine, &run).admit(&overrides)?,
        Some(_) => admit_again(machine, None, &run)?,
    }
    let own = run.spec.reports_to.clone();
    let enqueue = owner.map_or(Enqueue::Now, Enqueue::Claimed);
    let holds = Holds::Targets { own: own.as_ref() };
    created.add(tx, Admission { run, enqueue, holds, event }).await
}

/// What a record asks before the first write of a start in its own transaction, so that it can go
/// on after a refusal. A request asks it at the end.
async fn admit_for_record(
    tx: &mut Tx,
    caller: &Caller,
    (machine, run): (&Machine, &Run),
) -> Result<()> {
    let overrides = Overrides::of_params(&run.spec.params);
    run_case(machine, run).admit(&overrides)?;
    let granted = caller.on_targets(tx, &run.spec).await?;
    caller.require_all(granted, run.spec.permissions(), run.spec.run_type.as_str())?;
    admit_taken_by(tx, run, &overrides, caller).await.map(drop)
}

pub(crate) struct StartOnboarding {
    pub request: Onboard,
    pub node: NodeId,
    pub run: RunId,
    pub owner: Option<String>,
    pub providers: Providers,
    /// The rights of the record that starts it in its own transaction.
    pub record: Option<Caller>,
    pub now: Timestamp,
}

impl StartOnboarding {
    /// The node and the run as they would be created now. Writes nothing.
    pub async fn plan(&self, tx: &mut Tx, machine: &Machine) -> Result<(Node, Run)> {
        let Onboard { machine: id, site, request_id, by, .. } = &self.request;
        let mut node = Node::new(&self.node, id, NodeState::Enrolling, self.now);
        node.site = Some(site.clone());
        node.head.labels = labels(&node);
        let owner = load_stage_target(tx, &node, machine, &self.providers).await?;
        let work = NewNodeRun {
            id: self.run.clone(),
            run_type: RunType::Onboard,
            stages: NodeStage::ONBOARDING.to_vec(),
            uncordons: false,
            params: self.params(),
            request_id: request_id.clone(),
            by: by.clone(),
        };
        let run = work.run(&node, &owner, self.now);
        node.workflow = Some(run.spec.id.clone());
        Ok((node, run))
    }

    pub async fn run(&self, tx: &mut Tx) -> Result<(NodeRun, Created)> {
        let mut created = Created::default();
        let Onboard { machine: id, site, overrides, request_id, by } = &self.request;
        let target = TargetId::from(id);
        if let Some(run) = tx.run_of_request(&target, request_id).await? {
            return Ok((self.replayed(tx, run).await?, created));
        }
        // Locked, so that the site is not deleted meanwhile.
        if tx.record_locked::<Site>(site.as_str()).await?.is_none() {
            return Err(no_site(site).into());
        }
        let machine = lock_machine(tx, id, self.now).await?;
        if let Some(node) = tx.live_node_of_machine(id).await? {
            return Err(taken(id, &node).into());
        }
        let (mut node, run) = self.plan(tx, &machine).await?;
        if let Some(caller) = &self.record {
            admit_for_record(tx, caller, (&machine, &run)).await?;
        }
        let note = overrides.history_note(by, health_gate(&machine, &run).as_slice());
        let message = format!("{} onboards {id} at {site}{note}", run.spec.id);
        let event = event(Cause::Request, by, message, here!(), self.now);
        tx.attach_node(&self.node, id, Some(site))?;
        tx.insert_record(&mut node, &event).await?;
        let how = (self.owner.as_deref(), &event);
        let run = create_run(tx, &mut created, &machine, run, how).await?;
        Ok((NodeRun { node, run, new: true }, created))
    }
}

impl StartOnboarding {
    fn params(&self) -> Params {
        let mut params = Params::new();
        self.request.overrides.store_in(&mut params);
        params
    }

    async fn replayed(&self, tx: &mut Tx, run: Run) -> Result<NodeRun> {
        let node = node_of_run(tx, &run).await?;
        let same = run.spec.run_type == RunType::Onboard
            && Overrides::of_params(&run.spec.params) == self.request.overrides
            && node.as_ref().is_some_and(|node| node.site.as_ref() == Some(&self.request.site));
        let run = replay(run, same)?;
        let node = node.ok_or_else(|| reused(&run))?;
        Ok(NodeRun { node, run, new: false })
    }
}

pub(crate) async fn node_of_run(tx: &mut Tx, run: &Run) -> Result<Option<Node>> {
    match run.spec.params.get(NODE) {
        Some(id) => tx.record::<Node>(id).await,
        None => Ok(None),
    }
}

fn taken(machine: &MachineId, node: &NodeId) -> Refusal {
    let message = format!("{machine} has the node {node} already");
    Refusal::new(Reason::NodeExists, message).next(format!("farrier why {node}"))
}

/// The labels by which nodes are listed.
pub(crate) fn labels(node: &Node) -> model::machine::Labels {
    let mut labels = model::machine::Labels::from([("machine".into(), node.machine.to_string())]);
    if let Some(site) = &node.site {
        labels.insert("site".into(), site.to_string());
    }
    labels
}

pub(crate) struct StartDecommission {
    pub request: Decommission,
    pub run: RunId,
    pub owner: Option<String>,
    pub providers: Providers,
    pub limits: HeartbeatLimits,
    /// The rights of the record that starts it in its own transaction.
    pub record: Option<Caller>,
    pub now: Timestamp,
}

impl StartDecommission {
    /// The run as it would be created now. Writes nothing.
    pub async fn plan(&self, tx: &mut Tx, (node, machine): (&Node, &Machine)) -> Result<Run> {
        let Decommission { node: id, mode, overrides, request_id, by } = &self.request;
        let owner = load_stage_target(tx, node, machine, &self.providers).await?;
        if *mode == DecommissionMode::Reimage && node.site.is_none() {
            let text = format!("{id} belongs to no site: no MAAS could install it anew");
            let next = format!("farrier node decommission {id} --mode soft_reset");
            return Err(Refusal::new(Reason::NodeUnmanaged, text).next(next).into());
        }
        let by_maas = !overrides.passes(Gate::Maas);
        let work = NewNodeRun {
            id: self.run.clone(),
            run_type: run_type(*mode),
            stages: mode.stages(by_maas && node.site.is_some()),
            uncordons: mode.ends_in() == NodeState::Offline,
            params: self.params(),
            request_id: request_id.clone(),
            by: by.clone(),
        };
        Ok(work.run(node, &owner, self.now))
    }

    pub async fn run(&self, tx: &mut Tx) -> Result<(NodeRun, Created)> {
        let mut created = Created::default();
        let Decommission { node: id, mode, overrides, request_id, by } = &self.request;
        let mut node = tx.record_locked::<Node>(id.as_str()).await?.ok_or_else(|| no_node(id))?;
        let target = TargetId::from(&node.machine);
        let params = self.params();
        if let Some(run) = tx.run_of_request(&target, request_id).await? {
            let same = run.spec.params.get(NODE).map(String::as_str) == Some(id.as_str())
                && run.spec.params.get(MODE) == params.get(MODE)
                && Overrides::of_params(&run.spec.params) == *overrides;
            let run = replay(run, same)?;
            return Ok((NodeRun { node, run, new: false }, created));
        }
        let (latest, known) = load_node_context(tx, &node, &self.limits, self.now).await?;
        let moved = requests::admit_decommission(
            &node,
            *mode,
            NodeContext { run: latest.as_ref(), ..known },
        )?;
        let machine = lock_machine(tx, &node.machine, self.now).await?;
        let run = self.plan(tx, (&node, &machine)).await?;
        if let Some(caller) = &self.record {
            admit_for_record(tx, caller, (&machine, &run)).await?;
        }
        let mut event = event(Cause::Request, by, String::new(), here!(), self.now);
        write_moves(tx, &mut node, moved, (&event, ""))?;
        event.message =
            format!("{} {mode}{}", self.run, override_note(overrides, by, (&machine, &run)));
        let how = (self.owner.as_deref(), &event);
        let run = create_run(tx, &mut created, &machine, run, how).await?;
        node.workflow = Some(run.spec.id.clone());
        tx.update_record(&mut node, &event)?;
        Ok((NodeRun { node, run, new: true }, created))
    }
}

impl StartDecommission {
    fn params(&self) -> Params {
        let Decommission { mode, overrides, .. } = &self.request;
        let mut params = Params::from([(MODE.to_string(), mode.as_str().to_string())]);
        overrides.store_in(&mut params);
        params
    }
}

/// The note in the history about the override of a run on a node. A named agent or MAAS is always
/// left out, so these two gates always count as overridden.
pub(crate) fn override_note(
    overrides: &Overrides,
    by: &str,
    (machine, run): (&Machine, &Run),
) -> String {
    overrides.history_note(by, &gates_of_node_run(machine, run))
}

/// The gates that change a run on a node when its override names them.
pub(crate) fn gates_of_node_run(machine: &Machine, run: &Run) -> Vec<Gate> {
    [Gate::Agent, Gate::Maas].into_iter().chain(health_gate(machine, run)).collect()
}

/// The health gate, if it would refuse a run on a node without an override.
pub(crate) fn health_gate(machine: &Machine, run: &Run) -> Option<Gate> {
    gate_of(&run_case(machine, run).admit(&Overrides::default()))
}

/// A run of a node as the gates see it: the node does not object to its own run.
fn run_case<'a>(machine: &'a Machine, run: &'a Run) -> RunCase<'a> {
    RunCase { machine, node: None, run_type: run.spec.run_type, steps: &run.spec.steps }
}

const fn run_type(mode: DecommissionMode) -> RunType {
    match mode {
        DecommissionMode::Drain | DecommissionMode::Retire | DecommissionMode::Reactivate => {
            RunType::NodeDrain
        }
        DecommissionMode::SoftReset
        | DecommissionMode::Reimage
        | DecommissionMode::FullDecommission
        | DecommissionMode::StorageCleanup => RunType::Decommission,
    }
}

/// The context that the gates need beside the node's record: its newest run, and whether its agent
/// sends heartbeats and reports no problems.
pub(crate) async fn load_node_context(
    tx: &mut Tx,
    node: &Node,
    limits: &HeartbeatLimits,
    now: Timestamp,
) -> Result<(Option<Run>, NodeContext<'static>)> {
    let run = match &node.workflow {
        Some(id) => tx.run(id).await?,
        None => None,
    };
    let name = tx.last_heartbeat(&node.id()).await?;
    let received = name.at.is_some_and(|at| now.since(at) <= limits.silence);
    Ok((run, NodeContext { run: None, healthy: received && name.problems.is_empty() }))
}

/// Writes the transitions of a node, each with its event. `note` is appended to the messages.
pub(crate) fn write_moves(
    tx: &mut Tx,
    node: &mut Node,
    moves: Vec<Node>,
    (event, note): (&NewEvent, &str),
) -> Result<()> {
    for moved in moves {
        let version = node.head.version;
        *node = moved;
        node.head.version = version;
        node.head.since = event.at;
        let message = format!("{}{note}", node.reason);
        tx.update_and_enqueue(node, &NewEvent { message, ..event.clone() })?;
    }
    Ok(())
}
