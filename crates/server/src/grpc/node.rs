//! NodeService: onboards, decommissions, quarantines, bootstraps and shows nodes.
//!
//! A `Node` has the coarse state only; `NodeDetail` adds the newest operation on the node and the
//! observed state of its machine in MAAS. The three layers stay apart on the wire.

use super::convert::{
    AnsweredRun, initiator, overrides_from, planned_run, preview, request_id_from, run, time,
    watch_change, who, word_from,
};
use super::page::{List, Page, scope, unreadable_rows};
use super::status::OrStatus;
use super::stream::{self, Streaming};
use super::{Answer, Call, GrpcServices};
use engine::node::{
    AppliedNodeRequest, Bundle, Decommission, NodeRun, NodeRunPreview, NodeView, Onboard,
    PreviewedStage, SessionPolicy,
};
use engine::watch::{WatchChange, WatchUpdate};
use model::filter::{Filter, FilterSubject};
use model::gate::{Gate, ONBOARD_NODE, Overrides, REACTIVATE_NODE, RELEASE_NODE, decommission};
use model::id::{MachineId, NodeId, SiteId};
use model::node::enroll::TOKEN_LIFE;
use model::node::requests::NodeRequest;
use model::node::task::ResumeResult;
use model::node::{
    DecommissionMode, MODE, MaasObservation, MaasState, NODE, Node, NodeState,
    is_expected_maas_state,
};
use model::order::{ListOrder, Selection};
use model::plan::RunType;
use model::refusal::{Reason, Refusal};
use model::run::Run;
use model::run::actions::Requester;
use model::site::controllers;
use model::text;
use model::time::Timestamp;
use proto::v1;
use proto::words::{self, WireEnum};
use secrecy::ExposeSecret;
use std::time::Duration;
use store::NodeHeartbeat;
use tonic::{Request, Response, Status};

/// The part of an agent's configuration that only the machine's owner knows, as comments.
const STORAGE: &str = "# The folders that users of this machine can write to. They are emptied when it is cleaned; [] says that there are none.\n\
                       # Until this is written, or there is a hook cleanup_storage, cleaning it fails.\n\
                       # scratch_dirs = [\"/scratch\", \"/dev/shm\"]\n";

/// The line of an agent that reaches Farrier over TLS.
const CA_FILE: &str = "# The certificate of the authority that has signed Farrier's certificate; copy it there.\n\
                       ca_file = \"/etc/farrier/ca.pem\"\n";

#[tonic::async_trait]
impl v1::node_service_server::NodeService for GrpcServices {
    type WatchNodesStream = Streaming<v1::NodeEvent>;

    async fn onboard_node(
        &self,
        request: Request<v1::OnboardNodeRequest>,
    ) -> Answer<v1::NodeOperation> {
        let call = self.call(&request).await?;
        let by = initiator(request.metadata());
        let requested = request.into_inner();
        let desired = Onboard {
            machine: MachineId::parse(&requested.machine_id).or_status()?,
            site: SiteId::parse(&requested.site_id).or_status()?,
            overrides: overrides_from(requested.gate_override, ONBOARD_NODE).or_status()?,
            request_id: request_id_from(&requested.request_id, requested.dry_run).or_status()?,
            by,
        };
        if requested.dry_run {
            let observed = call.engine.nodes().preview_onboard(desired).await.or_status()?;
            return Ok(Response::new(previewed(observed)));
        }
        let done = call.engine.nodes().onboard(desired).await.or_status()?;
        Ok(Response::new(operation(&done)))
    }

    async fn decommission_node(
        &self,
        request: Request<v1::DecommissionNodeRequest>,
    ) -> Answer<v1::NodeOperation> {
        let call = self.call(&request).await?;
        let by = initiator(request.metadata());
        let requested = request.into_inner();
        let mode = mode_from(requested.mode).or_status()?;
        let v1::DecommissionNodeRequest { node_id, request_id, dry_run, gate_override, .. } =
            requested;
        let requested = DecommissionFields { node_id, mode, request_id, gate_override, dry_run };
        call.start_decommission(requested, by).await
    }

    async fn drain_node(
        &self,
        request: Request<v1::DrainNodeRequest>,
    ) -> Answer<v1::NodeOperation> {
        let call = self.call(&request).await?;
        let by = initiator(request.metadata());
        let v1::DrainNodeRequest { node_id, request_id, gate_override, dry_run } =
            request.into_inner();
        let mode = DecommissionMode::Drain;
        let requested = DecommissionFields { node_id, mode, request_id, gate_override, dry_run };
        call.start_decommission(requested, by).await
    }

    async fn retire_node(
        &self,
        request: Request<v1::RetireNodeRequest>,
    ) -> Answer<v1::NodeOperation> {
        let call = self.call(&request).await?;
        let by = initiator(request.metadata());
        let v1::RetireNodeRequest { node_id, request_id, gate_override, dry_run } =
            request.into_inner();
        let mode = DecommissionMode::Retire;
        let requested = DecommissionFields { node_id, mode, request_id, gate_override, dry_run };
        call.start_decommission(requested, by).await
    }

    async fn reactivate_node(
        &self,
        request: Request<v1::ReactivateNodeRequest>,
    ) -> Answer<v1::NodeOperation> {
        let call = self.call(&request).await?;
        let by = initiator(request.metadata());
        let v1::ReactivateNodeRequest { node_id, reason, gate_override, request_id, dry_run } =
            request.into_inner();
        let why = text::check_optional_reason("reason", &reason).or_status()?;
        let overrides = overrides_from(gate_override, REACTIVATE_NODE).or_status()?;
        let ask = NodeRequest::Reactivate { why, overrides: overrides.clone() };
        let done = call.with_dry_run(dry_run).apply_request(&node_id, ask, &request_id, by).await?;
        call.applied(&done, &overrides, dry_run).await
    }

    async fn quarantine_node(
        &self,
        request: Request<v1::QuarantineNodeRequest>,
    ) -> Answer<v1::Node> {
        let call = self.call(&request).await?;
        let by = initiator(request.metadata());
        let v1::QuarantineNodeRequest { node_id, reason, dry_run } = request.get_ref();
        let why = text::check_reason("reason", reason).or_status()?;
        let ask = NodeRequest::Quarantine { why };
        let done = call.with_dry_run(*dry_run).apply_request(node_id, ask, "", by).await?;
        Ok(Response::new(node(&done.node)))
    }

    async fn release_node(
        &self,
        request: Request<v1::ReleaseNodeRequest>,
    ) -> Answer<v1::NodeOperation> {
        let call = self.call(&request).await?;
        let by = initiator(request.metadata());
        let v1::ReleaseNodeRequest { node_id, reason, gate_override, request_id, dry_run } =
            request.into_inner();
        let why = text::check_reason("reason", &reason).or_status()?;
        let overrides = overrides_from(gate_override, RELEASE_NODE).or_status()?;
        let ask = NodeRequest::Release { why, overrides: overrides.clone() };
        let done = call.with_dry_run(dry_run).apply_request(&node_id, ask, &request_id, by).await?;
        call.applied(&done, &overrides, dry_run).await
    }

    async fn resume_node(
        &self,
        request: Request<v1::ResumeNodeRequest>,
    ) -> Answer<v1::ResumeNodeResponse> {
        let call = self.call(&request).await?;
        let requester = who(request.metadata(), "").or_status()?;
        let v1::ResumeNodeRequest { node_id, dry_run } = request.get_ref();
        let id = NodeId::parse(node_id).or_status()?;
        let engine = call.engine.with_dry_run(*dry_run);
        let done = engine.nodes().resume(&id, requester).await.or_status()?;
        let task = match done.task {
            ResumeResult::Fresh => "fresh",
            ResumeResult::Live => "live",
            ResumeResult::Requeued => "requeued",
            ResumeResult::None => "none",
        };
        let preview = match &done.reopened {
            Some(run) => call.run_preview(run, *dry_run).await?,
            None => None,
        };
        Ok(Response::new(v1::ResumeNodeResponse {
            node: Some(node(&done.node)),
            run_id: done.run.to_string(),
            task: words::value::<v1::ResumedTask>(task),
            reopened: done.reopened.is_some(),
            preview,
        }))
    }

    async fn bootstrap_node(
        &self,
        request: Request<v1::BootstrapNodeRequest>,
    ) -> Answer<v1::NodeBundle> {
        let call = self.call(&request).await?;
        let requester = who(request.metadata(), "").or_status()?;
        let requested = request.into_inner();
        let machine = MachineId::parse(&requested.machine_id).or_status()?;
        let scenario = lifetime_from(requested.expires_in_seconds).or_status()?;
        let url = call.agents_url_or_refuse().or_status()?;
        let agents = call.agents.with_dry_run(requested.dry_run);
        let made = agents.bootstrap(machine, scenario, requester).await.or_status()?;
        let mut made = bundle(&made, url, requested.dry_run);
        made.node = made.node.map(|node| if requested.dry_run { planned_node(node) } else { node });
        Ok(Response::new(made))
    }

    async fn reissue_bootstrap(
        &self,
        request: Request<v1::ReissueBootstrapRequest>,
    ) -> Answer<v1::NodeBundle> {
        let call = self.call(&request).await?;
        let requester = who(request.metadata(), "").or_status()?;
        let requested = request.into_inner();
        let id = NodeId::parse(&requested.node_id).or_status()?;
        let scenario = lifetime_from(requested.expires_in_seconds).or_status()?;
        let url = call.agents_url_or_refuse().or_status()?;
        let stored = if requested.keep_session { SessionPolicy::Keep } else { SessionPolicy::End };
        let agents = call.agents.with_dry_run(requested.dry_run);
        let made = agents.issue(&id, scenario, stored, requester).await.or_status()?;
        Ok(Response::new(bundle(&made, url, requested.dry_run)))
    }

    async fn get_node(&self, request: Request<v1::GetNodeRequest>) -> Answer<v1::NodeDetail> {
        let call = self.call(&request).await?;
        let id = NodeId::parse(&request.get_ref().node_id).or_status()?;
        let view = call.engine.nodes().get(&id).await.or_status()?;
        Ok(Response::new(detail(view)))
    }

    async fn list_nodes(
        &self,
        request: Request<v1::ListNodesRequest>,
    ) -> Answer<v1::ListNodesResponse> {
        let call = self.call(&request).await?;
        let requested = request.into_inner();
        let v1::ListNodesRequest { filter, page_size, page_token, order_by } = requested;
        let order = ListOrder::parse(&order_by, FilterSubject::Node).or_status()?;
        let page = Page::new(List::Nodes, &scope(&filter, order), page_size, &page_token);
        let page = page.or_status()?;
        let selected = Selection { filter: filter_from(&filter).or_status()?, order };
        let size = usize::try_from(page.size).unwrap_or_default();
        let found =
            call.engine.nodes().list(selected, page.from.clone(), size).await.or_status()?;
        let nodes = found.records.iter().map(node).collect();
        let next_page_token = found.next.map(|last| page.token(&last)).unwrap_or_default();
        let unreadable_rows = unreadable_rows(&found.unreadable);
        Ok(Response::new(v1::ListNodesResponse { nodes, next_page_token, unreadable_rows }))
    }

    async fn watch_nodes(
        &self,
        request: Request<v1::WatchNodesRequest>,
    ) -> Answer<Self::WatchNodesStream> {
        let call = self.call(&request).await?;
        let requested = request.into_inner();
        let watch = call.open_watch(&requested.filter, &requested.cursor).await?;
        Ok(stream::watching(watch, requested.bookmark, event))
    }
}

/// The unparsed fields of a request that takes a node out of service.
struct DecommissionFields {
    node_id: String,
    mode: DecommissionMode,
    request_id: String,
    gate_override: Option<v1::GateOverride>,
    dry_run: bool,
}

impl Call {
    async fn start_decommission(
        &self,
        requested: DecommissionFields,
        by: String,
    ) -> Answer<v1::NodeOperation> {
        let dry_run = requested.dry_run;
        let desired = Decommission {
            node: NodeId::parse(&requested.node_id).or_status()?,
            mode: requested.mode,
            overrides: overrides_from(requested.gate_override, decommission(requested.mode))
                .or_status()?,
            request_id: request_id_from(&requested.request_id, dry_run).or_status()?,
            by,
        };
        if dry_run {
            let observed = self.engine.nodes().preview_decommission(desired).await.or_status()?;
            return Ok(Response::new(previewed(observed)));
        }
        let done = self.engine.nodes().decommission(desired).await.or_status()?;
        Ok(Response::new(operation(&done)))
    }

    async fn apply_request(
        &self,
        id: &str,
        request: NodeRequest,
        request_id: &str,
        by: String,
    ) -> Result<AppliedNodeRequest, Status> {
        let id = NodeId::parse(id).or_status()?;
        let request_id = match request_id {
            "" => None,
            id => Some(text::check_request_id(id).or_status()?),
        };
        let requester = Requester { by, reason: String::new() };
        self.engine.nodes().apply_request(&id, request, request_id, requester).await.or_status()
    }

    /// The answer to a release or a reactivation.
    async fn applied(
        &self,
        done: &AppliedNodeRequest,
        overrides: &Overrides,
        dry_run: bool,
    ) -> Answer<v1::NodeOperation> {
        let answered = AnsweredRun { new: done.new, dry_run };
        let run = match &done.run {
            Some(run) => Some(self.run_answer(run, answered).await?.into_inner()),
            None => None,
        };
        let mut notes = if dry_run { overrides.describe(&done.refusing) } else { Vec::new() };
        // The preview of the run names the gates too, and knows of its own alone.
        let of_gates = [overrides.describe(&[]), overrides.describe(&Gate::ALL)].concat();
        let preview = run.iter().filter_map(|run| run.preview.as_ref());
        let others = preview.flat_map(|preview| &preview.notes);
        notes.extend(others.filter(|note| !of_gates.contains(note)).cloned());
        Ok(Response::new(v1::NodeOperation {
            node: Some(node(&done.node)),
            run: run.map(without_notes),
            new: done.new,
            notes,
            ..Default::default()
        }))
    }

    /// The URL that agents use. A bundle without it could not be used.
    fn agents_url_or_refuse(&self) -> Result<&str, Refusal> {
        if self.agents_url.is_empty() {
            let message = "this server has no address for agents: neither nodes.listen nor nodes.url is set in its configuration";
            return Err(Refusal::new(Reason::AgentsOff, message).next("set [nodes] listen and url in its configuration (farrier serve --print-config), and start it again"));
        }
        Ok(&self.agents_url)
    }
}

/// Draining and retiring have their own requests.
fn mode_from(value: i32) -> Result<DecommissionMode, Refusal> {
    let word = word_from::<v1::DecommissionMode>("mode", value)?;
    word.and_then(DecommissionMode::parse).ok_or_else(|| {
        let instead = format!("use one of {}", v1::DecommissionMode::WORDS.join(", "));
        Refusal::invalid("mode", "is not set", instead)
    })
}

/// The lifetime of a token. The engine checks the upper limit.
fn lifetime_from(seconds: Option<i64>) -> Result<Duration, Refusal> {
    let Some(seconds) = seconds else { return Ok(TOKEN_LIFE) };
    u64::try_from(seconds).map(Duration::from_secs).map_err(|_| {
        Refusal::invalid("expires_in_seconds", format!("is {seconds}"), "use 1 or more")
    })
}

/// Deleted nodes are left out unless the filter is about the state.
fn filter_from(text: &str) -> Result<Filter, Refusal> {
    let filter = Filter::parse(text, FilterSubject::Node)?;
    match filter.names_state() {
        true => Ok(filter),
        false => Ok(filter.and(Filter::not_in_states(&[NodeState::Deleted.as_str()]))),
    }
}

fn node(node: &Node) -> v1::Node {
    v1::Node {
        node_id: node.head.id.clone(),
        state: words::value::<v1::NodeState>(node.state.as_str()),
        machine_id: node.machine.to_string(),
        site_id: node.site.as_ref().map(ToString::to_string).unwrap_or_default(),
        labels: node.head.labels.clone().into_iter().collect(),
        reason: node.reason.clone(),
        moved_by: words::value::<v1::NodeTransitionOwner>(node.moved_by.as_str()),
        since: Some(time(node.head.since)),
        created_at: Some(time(node.head.created_at)),
        version: node.head.version,
    }
}

fn event(observed: WatchUpdate<Node>) -> v1::NodeEvent {
    v1::NodeEvent {
        ts: Some(time(observed.ts)),
        snapshot: Some(node(&observed.object)),
        message: observed.message,
        cursor: observed.position.to_cursor_text(),
        initial: observed.change == WatchChange::Snapshot,
        deleted: observed.change == WatchChange::Deleted,
        change: watch_change(observed.change).into(),
    }
}

fn operation(done: &NodeRun) -> v1::NodeOperation {
    v1::NodeOperation {
        node: Some(node(&done.node)),
        run: Some(run(&done.run)),
        new: done.new,
        ..Default::default()
    }
}

/// The notes of a dry run are those of the node's answer.
fn without_notes(mut run: v1::Run) -> v1::Run {
    if let Some(preview) = &mut run.preview {
        preview.notes.clear();
    }
    run
}

/// The plan of a run on a node that would be created.
fn without_node(mut run: v1::Run) -> v1::Run {
    run.params.remove(NODE);
    let previewed = run.preview.iter_mut().flat_map(|preview| &mut preview.steps);
    let previewed = previewed.filter_map(|one| one.step.as_mut());
    for step in run.plan_steps.iter_mut().chain(previewed) {
        if let Some(v1::step::Kind::Stage(stage)) = &mut step.kind {
            stage.node_id.clear();
        }
    }
    run
}

/// A node that would be created. It has no id: no later request finds it.
fn planned_node(node: v1::Node) -> v1::Node {
    v1::Node { node_id: String::new(), since: None, created_at: None, version: 0, ..node }
}

fn previewed(observation: NodeRunPreview) -> v1::NodeOperation {
    let NodeRunPreview { planned: would, stages, upstream, preview: found } = observation;
    let stages = stages.into_iter().map(|PreviewedStage { stage, adopted }| v1::StagePreview {
        stage,
        adopted: adopted.is_some(),
        why: adopted.unwrap_or_default(),
    });
    let observed = match upstream {
        Ok(_) if would.node.site.is_none() => "no MAAS manages it".to_string(),
        Ok(MaasState::Absent) => "MAAS has no such machine".into(),
        Ok(state) => format!("MAAS has the machine as {state}"),
        Err(message) => format!("its MAAS cannot be asked: {message}"),
    };
    let foreseen = Some(preview(&would.run, &found));
    let (planned, node) = match (would.new, would.run.spec.run_type) {
        (true, RunType::Onboard) => {
            let run = without_node(planned_run(&would.run, foreseen));
            (run, planned_node(node(&would.node)))
        }
        (true, _) => (planned_run(&would.run, foreseen), node(&would.node)),
        (false, _) => (v1::Run { preview: foreseen, ..run(&would.run) }, node(&would.node)),
    };
    v1::NodeOperation {
        node: Some(node),
        run: Some(without_notes(planned)),
        new: would.new,
        stages: stages.collect(),
        observed,
        notes: found.notes,
    }
}

fn detail(view: NodeView) -> v1::NodeDetail {
    let NodeView {
        node: one,
        run: latest,
        heartbeat: name,
        agent_silent,
        enrolled,
        site_answered,
        machine: _,
        explanation: reported,
    } = view;
    let failure = latest.as_ref().and_then(|run| run.progress.failure.as_ref());
    let fault = failure.map(|failure| &failure.fault);
    // Neither the machine in MAAS nor an agent is that of a deleted node.
    let exists = one.state != NodeState::Deleted;
    v1::NodeDetail {
        node: Some(node(&one)),
        workflow_kind: latest
            .as_ref()
            .map_or(0, |run| words::value::<v1::NodeWorkflow>(&workflow_kind(run))),
        stage: latest.as_ref().map(Run::current_step).unwrap_or_default(),
        attempts: latest.as_ref().map(attempts).unwrap_or_default(),
        failure_class: fault
            .map_or(0, |fault| words::value::<v1::FaultClass>(fault.class().as_str())),
        failure_code: fault.map(|fault| fault.code.as_str().to_string()).unwrap_or_default(),
        failure: fault.map(|fault| fault.message.clone()).unwrap_or_default(),
        observed: one
            .maas
            .as_ref()
            .filter(|_| exists)
            .map(|observation| observed(&one, observation, site_answered)),
        agent: agent(&one, &name, enrolled)
            .filter(|_| exists)
            .map(|agent| v1::AgentStatus { silent: agent_silent, ..agent }),
        recommended: reported.next_commands,
        quarantine_cause: one
            .quarantine
            .map_or(0, |cause| words::value::<v1::QuarantineCause>(cause.as_str())),
        workflow: latest.as_ref().map(run),
    }
}

/// `onboarding`, or the mode of the decommission.
pub(crate) fn workflow_kind(run: &Run) -> String {
    match (run.spec.run_type, run.spec.params.get(MODE)) {
        (RunType::Onboard, _) => "onboarding".into(),
        (_, Some(mode)) => mode.clone(),
        (kind, None) => kind.as_str().to_lowercase(),
    }
}

/// Attempts of the failed stage, or of the current one.
fn attempts(run: &Run) -> i32 {
    let count = match (&run.progress.failure, run.progress.current()) {
        (Some(failure), _) => failure.attempts,
        (None, Some(step)) if !run.ended() => step.attempt,
        (None, _) => 0,
    };
    i32::try_from(count).unwrap_or(i32::MAX)
}

fn observed(
    node: &Node,
    observation: &MaasObservation,
    asked_at: Option<Timestamp>,
) -> v1::ObservedMachine {
    v1::ObservedMachine {
        system_id: node.system_id.clone(),
        state: observation.state.as_str().into(),
        message: observation.message.clone(),
        powered_on: observation.powered_on,
        at: Some(time(observation.at)),
        expected: is_expected_maas_state(node.state, observation.state),
        asked_at: asked_at.map(time),
    }
}

/// The status of the node's agent; none before the first enrollment or heartbeat. `enrolled` is
/// false if the agent has lost its session since.
fn agent(node: &Node, name: &NodeHeartbeat, enrolled: bool) -> Option<v1::AgentStatus> {
    if node.agent.is_none() && name.at.is_none() {
        return None;
    }
    let known = node.agent.clone().unwrap_or_default();
    Some(v1::AgentStatus {
        enrolled,
        hostname: known.hostname,
        version: known.version,
        enrolled_at: node.agent.as_ref().map(|agent| time(agent.enrolled_at)),
        heard_at: name.at.map(time),
        problems: name.problems.clone(),
        silent: false,
    })
}

/// The bundle of a node. A dry run has no token: none was stored.
fn bundle(made: &Bundle, url: &str, dry_run: bool) -> v1::NodeBundle {
    let (token, agent_config) = match dry_run {
        true => Default::default(),
        false => {
            let token = made.token.expose_secret();
            let controllers = controllers(url);
            let ca_file = if url.contains("https://") { CA_FILE } else { "" };
            let config =
                format!("controllers = {controllers}\n{ca_file}token = {token:?}\n{STORAGE}");
            (token.into(), config)
        }
    };
    let (node, expires_at) = (Some(node(&made.node)), Some(time(made.expires_at)));
    v1::NodeBundle { node, token, expires_at, agent_config }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_modes_and_filters_are_refused() {
        for mode in DecommissionMode::DECOMMISSION {
            let value = words::value::<v1::DecommissionMode>(mode.as_str());
            assert_eq!(mode_from(value), Ok(mode));
        }
        assert!(mode_from(0).is_err());
        let refusal = mode_from(9).unwrap_err();
        assert_eq!(refusal.field.as_deref(), Some("mode"));
        assert!(refusal.message.contains("storage_cleanup"), "{}", refusal.message);
        for wrong in ["state=asleep", "site=site-1", "state"] {
            let refusal = filter_from(wrong).unwrap_err();
            assert_eq!(refusal.field.as_deref(), Some("filter"), "{wrong}");
        }
        assert_eq!(filter_from("site_id=site-1").unwrap().terms.len(), 2);
        assert_eq!(filter_from("state=Deleted").unwrap().terms[0].values, ["deleted"]);
    }

    #[test]
    fn token_lifetime_defaults_to_one_day() {
        assert_eq!(lifetime_from(None).unwrap(), TOKEN_LIFE);
        assert_eq!(lifetime_from(Some(60)).unwrap(), Duration::from_secs(60));
        let refusal = lifetime_from(Some(-1)).unwrap_err();
        assert_eq!(refusal.field.as_deref(), Some("expires_in_seconds"));
    }
}
