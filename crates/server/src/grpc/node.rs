//! NodeService: onboards, decommissions, quarantines, bootstraps and shows nodes.
//!
//! A `Node` has the coarse state only; `NodeDetail` adds the newest operation on the node and the
//! observed state of its machine in MAAS. The three layers stay apart on the wire.

use super::GrpcServices;
use super::convert::{initiator, run, time, who};
use super::page::{List, Page};
use super::status::{refusal_status, store_error_status};
use engine::node::{Bundle, Decommission, NodeRun, NodeView, Onboard, Preview, Previewed, Session};
use model::id::{MachineId, NodeId, SiteId};
use model::node::door::Ask;
use model::node::enroll::TOKEN_LIFE;
use model::node::task::Resumed;
use model::node::{MODE, Mode, Node, NodeState, Quarantine, Upstream, UpstreamSeen, expected};
use model::plan::RunType;
use model::refusal::Refusal;
use model::run::Run;
use model::run::act::Who;
use model::site::controllers;
use model::text;
use model::time::Timestamp;
use proto::v1;
use secrecy::ExposeSecret;
use std::time::Duration;
use store::{NodeHeartbeat, RecordFilter};
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

/// The part of an agent's configuration that only the machine's owner knows, as comments.
const STORAGE: &str = "# The folders that users of this machine can write to. They are emptied when it is cleaned; [] says that there are none.\n\
                       # Until this is written, or there is a hook cleanup_storage, cleaning it fails.\n\
                       # scratch_dirs = [\"/scratch\", \"/dev/shm\"]\n";

type Answer<T> = Result<Response<T>, Status>;

/// The number of characters of an unknown word that a refusal repeats.
const MAX_SHOWN: usize = 64;

#[tonic::async_trait]
impl v1::node_service_server::NodeService for GrpcServices {
    async fn onboard_node(
        &self,
        request: Request<v1::OnboardNodeRequest>,
    ) -> Answer<v1::NodeOperation> {
        let by = initiator(request.metadata());
        let asked = request.into_inner();
        let wanted = Onboard {
            machine: MachineId::parse(&asked.machine_id).map_err(refusal_status)?,
            site: SiteId::parse(&asked.site_id).map_err(refusal_status)?,
            request_id: request_id(asked.request_id, asked.dry_run).map_err(refusal_status)?,
            by,
        };
        if asked.dry_run {
            let seen =
                self.engine.nodes().preview_onboard(wanted).await.map_err(store_error_status)?;
            return Ok(Response::new(previewed(seen)));
        }
        let done = self.engine.nodes().onboard(wanted).await.map_err(store_error_status)?;
        Ok(Response::new(operation(&done)))
    }

    async fn decommission_node(
        &self,
        request: Request<v1::DecommissionNodeRequest>,
    ) -> Answer<v1::NodeOperation> {
        let by = initiator(request.metadata());
        let asked = request.into_inner();
        let mode = mode_from(&asked.mode).map_err(refusal_status)?;
        let v1::DecommissionNodeRequest {
            node_id,
            request_id,
            without_agent,
            without_maas,
            dry_run,
            ..
        } = asked;
        let asked =
            DecommissionFields { node_id, mode, request_id, without_agent, without_maas, dry_run };
        self.start_decommission(asked, by).await
    }

    async fn drain_node(
        &self,
        request: Request<v1::DrainNodeRequest>,
    ) -> Answer<v1::NodeOperation> {
        let by = initiator(request.metadata());
        let v1::DrainNodeRequest { node_id, request_id, without_agent, dry_run } =
            request.into_inner();
        let mode = Mode::Drain;
        let without_maas = String::new();
        let asked =
            DecommissionFields { node_id, mode, request_id, without_agent, without_maas, dry_run };
        self.start_decommission(asked, by).await
    }

    async fn retire_node(
        &self,
        request: Request<v1::RetireNodeRequest>,
    ) -> Answer<v1::NodeOperation> {
        let by = initiator(request.metadata());
        let v1::RetireNodeRequest { node_id, request_id, without_agent, dry_run } =
            request.into_inner();
        let mode = Mode::Retire;
        let without_maas = String::new();
        let asked =
            DecommissionFields { node_id, mode, request_id, without_agent, without_maas, dry_run };
        self.start_decommission(asked, by).await
    }

    async fn reactivate_node(
        &self,
        request: Request<v1::ReactivateNodeRequest>,
    ) -> Answer<v1::Node> {
        let v1::ReactivateNodeRequest { node_id, reason, unproven } = request.get_ref();
        let why = match unproven {
            true => text::reason("reason", reason),
            false => text::optional_reason("reason", reason),
        };
        let ask = Ask::Reactivate { why: why.map_err(refusal_status)?, unproven: *unproven };
        self.change_node(request.metadata(), node_id, ask).await
    }

    async fn quarantine_node(
        &self,
        request: Request<v1::QuarantineNodeRequest>,
    ) -> Answer<v1::Node> {
        let why = text::reason("reason", &request.get_ref().reason).map_err(refusal_status)?;
        self.change_node(request.metadata(), &request.get_ref().node_id, Ask::Quarantine { why })
            .await
    }

    async fn release_node(&self, request: Request<v1::ReleaseNodeRequest>) -> Answer<v1::Node> {
        let why = text::reason("reason", &request.get_ref().reason).map_err(refusal_status)?;
        let ask = Ask::Release { why, unproven: request.get_ref().unproven };
        self.change_node(request.metadata(), &request.get_ref().node_id, ask).await
    }

    async fn resume_node(
        &self,
        request: Request<v1::ResumeNodeRequest>,
    ) -> Answer<v1::ResumeNodeResponse> {
        let who = who(request.metadata(), "").map_err(refusal_status)?;
        let id = NodeId::parse(&request.get_ref().node_id).map_err(refusal_status)?;
        let done = self.engine.nodes().resume(&id, who).await.map_err(store_error_status)?;
        let task = match done.task {
            Resumed::Fresh => "fresh",
            Resumed::Live => "live",
            Resumed::Requeued => "requeued",
            Resumed::None => "none",
        };
        Ok(Response::new(v1::ResumeNodeResponse {
            node: Some(node(&done.node)),
            run_id: done.run.to_string(),
            task: task.into(),
            reopened: done.reopened,
        }))
    }

    async fn bootstrap_node(
        &self,
        request: Request<v1::BootstrapNodeRequest>,
    ) -> Answer<v1::NodeBundle> {
        let who = who(request.metadata(), "").map_err(refusal_status)?;
        let asked = request.into_inner();
        let machine = MachineId::parse(&asked.machine_id).map_err(refusal_status)?;
        let life = lifetime_from(asked.expires_in_seconds).map_err(refusal_status)?;
        let url = self.agents_url_or_refuse().map_err(refusal_status)?;
        let made = self.agents.bootstrap(machine, life, who).await.map_err(store_error_status)?;
        Ok(Response::new(bundle(&made, url)))
    }

    async fn reissue_bootstrap(
        &self,
        request: Request<v1::ReissueBootstrapRequest>,
    ) -> Answer<v1::NodeBundle> {
        let who = who(request.metadata(), "").map_err(refusal_status)?;
        let asked = request.into_inner();
        let id = NodeId::parse(&asked.node_id).map_err(refusal_status)?;
        let life = lifetime_from(asked.expires_in_seconds).map_err(refusal_status)?;
        let url = self.agents_url_or_refuse().map_err(refusal_status)?;
        let kept = if asked.keep_session { Session::Kept } else { Session::Ended };
        let made = self.agents.issue(&id, life, kept, who).await.map_err(store_error_status)?;
        Ok(Response::new(bundle(&made, url)))
    }

    async fn get_node(&self, request: Request<v1::GetNodeRequest>) -> Answer<v1::NodeDetail> {
        let id = NodeId::parse(&request.get_ref().node_id).map_err(refusal_status)?;
        let view = self.engine.nodes().get(&id).await.map_err(store_error_status)?;
        Ok(Response::new(detail(view)))
    }

    async fn list_nodes(
        &self,
        request: Request<v1::ListNodesRequest>,
    ) -> Answer<v1::ListNodesResponse> {
        let asked = request.into_inner();
        let stamp = format!("{:?} {} {}", asked.states, asked.site_id, asked.machine_id);
        let page = Page::new(List::Nodes, &stamp, asked.page_size, &asked.page_token)
            .map_err(refusal_status)?;
        let filter = filter_from(&asked).map_err(refusal_status)?;
        let size = usize::try_from(page.size).unwrap_or_default();
        let found = self
            .engine
            .nodes()
            .list(filter, page.from.clone(), size)
            .await
            .map_err(store_error_status)?;
        let nodes = found.records.iter().map(node).collect();
        let next_page_token = found.next.map(|last| page.token(&last)).unwrap_or_default();
        Ok(Response::new(v1::ListNodesResponse { nodes, next_page_token }))
    }
}

/// The unparsed fields of a request that takes a node out of service.
struct DecommissionFields {
    node_id: String,
    mode: Mode,
    request_id: String,
    without_agent: String,
    without_maas: String,
    dry_run: bool,
}

impl GrpcServices {
    async fn start_decommission(
        &self,
        asked: DecommissionFields,
        by: String,
    ) -> Answer<v1::NodeOperation> {
        let dry_run = asked.dry_run;
        let wanted = Decommission {
            node: NodeId::parse(&asked.node_id).map_err(refusal_status)?,
            mode: asked.mode,
            without_agent: text::optional_reason("without_agent", &asked.without_agent)
                .map_err(refusal_status)?,
            without_maas: text::optional_reason("without_maas", &asked.without_maas)
                .map_err(refusal_status)?,
            request_id: request_id(asked.request_id, dry_run).map_err(refusal_status)?,
            by,
        };
        if dry_run {
            let seen = self
                .engine
                .nodes()
                .preview_decommission(wanted)
                .await
                .map_err(store_error_status)?;
            return Ok(Response::new(previewed(seen)));
        }
        let done = self.engine.nodes().decommission(wanted).await.map_err(store_error_status)?;
        Ok(Response::new(operation(&done)))
    }

    async fn change_node(&self, metadata: &MetadataMap, id: &str, ask: Ask) -> Answer<v1::Node> {
        let id = NodeId::parse(id).map_err(refusal_status)?;
        let who = Who { by: initiator(metadata), reason: String::new() };
        let done = self.engine.nodes().ask(&id, ask, who).await.map_err(store_error_status)?;
        Ok(Response::new(node(&done)))
    }

    /// The URL that agents use. A bundle without it could not be used.
    fn agents_url_or_refuse(&self) -> Result<&str, Refusal> {
        if self.agents_url.is_empty() {
            let said = "this server has no address for agents: neither nodes.listen nor nodes.url is set in its configuration";
            return Err(Refusal::precondition("AGENTS_OFF", said).next("set [nodes] listen and url in its configuration (farrier serve --print-config), and start it again"));
        }
        Ok(&self.agents_url)
    }
}

/// A dry run stores nothing that could be replayed, so it needs no request id.
fn request_id(id: String, dry_run: bool) -> Result<String, Refusal> {
    if dry_run { Ok(id) } else { text::request_id(&id) }
}

fn shown(word: &str) -> String {
    word.chars().take(MAX_SHOWN).collect()
}

fn mode_from(word: &str) -> Result<Mode, Refusal> {
    if word.is_empty() {
        return Err(Refusal::missing("mode"));
    }
    // Draining and retiring have their own requests.
    let known = Mode::parse(word).filter(|mode| Mode::DECOMMISSION.contains(mode));
    known.ok_or_else(|| {
        let words: Vec<_> = Mode::DECOMMISSION.iter().map(|mode| mode.as_str()).collect();
        let instead = format!("use one of: {}", words.join(", "));
        Refusal::invalid("mode", format!("is {:?}", shown(word)), instead)
    })
}

/// The lifetime of a token. The engine checks the upper limit.
fn lifetime_from(seconds: Option<i64>) -> Result<Duration, Refusal> {
    let Some(seconds) = seconds else { return Ok(TOKEN_LIFE) };
    u64::try_from(seconds).map(Duration::from_secs).map_err(|_| {
        Refusal::invalid("expires_in_seconds", format!("is {seconds}"), "use 1 or more")
    })
}

fn filter_from(asked: &v1::ListNodesRequest) -> Result<RecordFilter, Refusal> {
    let wanted = |word: &String| {
        NodeState::parse(word).map(|state| state.as_str().to_string()).ok_or_else(|| {
            let instead = format!("use one of: {}", NodeState::WORDS.join(", "));
            Refusal::invalid("states", format!("has {:?}", shown(word)), instead)
        })
    };
    let states = match asked.states.is_empty() {
        true => NodeState::ALL
            .into_iter()
            .filter(|state| *state != NodeState::Deleted)
            .map(|state| state.as_str().to_string())
            .collect(),
        false => asked.states.iter().map(wanted).collect::<Result<_, _>>()?,
    };
    let mut labels = Vec::new();
    if !asked.site_id.is_empty() {
        labels.push(("site".to_string(), SiteId::parse(&asked.site_id)?.to_string()));
    }
    if !asked.machine_id.is_empty() {
        labels.push(("machine".to_string(), MachineId::parse(&asked.machine_id)?.to_string()));
    }
    Ok(RecordFilter { states, labels, ..RecordFilter::default() })
}

fn node(node: &Node) -> v1::Node {
    v1::Node {
        node_id: node.head.id.clone(),
        state: node.state.as_str().into(),
        machine_id: node.machine.to_string(),
        site_id: node.site.as_ref().map(ToString::to_string).unwrap_or_default(),
        labels: node.head.labels.clone().into_iter().collect(),
        reason: node.reason.clone(),
        moved_by: node.moved_by.as_str().into(),
        since: Some(time(node.head.since)),
        created_at: Some(time(node.head.created_at)),
        version: node.head.version,
    }
}

fn operation(done: &NodeRun) -> v1::NodeOperation {
    v1::NodeOperation {
        node: Some(node(&done.node)),
        run: Some(run(&done.run)),
        new: done.new,
        stages: Vec::new(),
        observed: String::new(),
    }
}

fn previewed(seen: Preview) -> v1::NodeOperation {
    let Preview { would, stages, upstream } = seen;
    let stages = stages.into_iter().map(|Previewed { stage, adopted }| v1::StagePreview {
        stage,
        adopted: adopted.is_some(),
        why: adopted.unwrap_or_default(),
    });
    let observed = match upstream {
        Ok(_) if would.node.site.is_none() => "no MAAS manages it".to_string(),
        Ok(Upstream::Absent) => "MAAS has no such machine".into(),
        Ok(state) => format!("MAAS has the machine as {state}"),
        Err(said) => format!("its MAAS cannot be asked: {said}"),
    };
    v1::NodeOperation { stages: stages.collect(), observed, ..operation(&would) }
}

fn detail(view: NodeView) -> v1::NodeDetail {
    let NodeView { node: one, run: latest, word, enrolled, site_answered, told } = view;
    let failure = latest.as_ref().and_then(|run| run.progress.failure.as_ref());
    let fault = failure.map(|failure| &failure.fault);
    v1::NodeDetail {
        node: Some(node(&one)),
        workflow_kind: latest.as_ref().map(workflow_kind).unwrap_or_default(),
        stage: latest.as_ref().map(Run::current_step).unwrap_or_default(),
        attempts: latest.as_ref().map(attempts).unwrap_or_default(),
        failure_class: fault.map(|fault| fault.class().as_str().to_string()).unwrap_or_default(),
        failure_code: fault.map(|fault| fault.code.as_str().to_string()).unwrap_or_default(),
        failure: fault.map(|fault| fault.said.clone()).unwrap_or_default(),
        observed: one.upstream.as_ref().map(|seen| observed(&one, seen, site_answered)),
        agent: agent(&one, &word, enrolled),
        recommended: told.next_commands,
        quarantine_cause: one.quarantine.map(Quarantine::as_str).unwrap_or_default().into(),
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

fn observed(node: &Node, seen: &UpstreamSeen, asked_at: Option<Timestamp>) -> v1::ObservedMachine {
    v1::ObservedMachine {
        system_id: node.system_id.clone(),
        state: seen.state.as_str().into(),
        message: seen.said.clone(),
        powered_on: seen.on,
        at: Some(time(seen.at)),
        expected: expected(node.state, seen.state),
        asked_at: asked_at.map(time),
    }
}

/// The status of the node's agent; none before the first enrollment or heartbeat. `enrolled` is
/// false if the agent has lost its session since.
fn agent(node: &Node, word: &NodeHeartbeat, enrolled: bool) -> Option<v1::AgentStatus> {
    if node.agent.is_none() && word.at.is_none() {
        return None;
    }
    let known = node.agent.clone().unwrap_or_default();
    Some(v1::AgentStatus {
        enrolled,
        hostname: known.hostname,
        version: known.version,
        enrolled_at: node.agent.as_ref().map(|agent| time(agent.enrolled_at)),
        heard_at: word.at.map(time),
        problems: word.problems.clone(),
    })
}

fn bundle(made: &Bundle, url: &str) -> v1::NodeBundle {
    let token = made.token.expose_secret();
    v1::NodeBundle {
        node: Some(node(&made.node)),
        token: token.into(),
        expires_at: Some(time(made.expires_at)),
        agent_config: format!("controllers = {}\ntoken = {token:?}\n{STORAGE}", controllers(url)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_modes_and_states_are_refused() {
        for (word, known) in [("reimage", true), ("drain", false), ("retire", false), ("", false)] {
            assert_eq!(mode_from(word).is_ok(), known, "{word:?}");
        }
        let refusal = mode_from("wipe").unwrap_err();
        assert_eq!(refusal.field.as_deref(), Some("mode"));
        assert!(refusal.said.contains("storage_cleanup"), "{}", refusal.said);
        let asked = |states: &[&str], site: &str, machine: &str| v1::ListNodesRequest {
            states: states.iter().map(ToString::to_string).collect(),
            site_id: site.into(),
            machine_id: machine.into(),
            ..Default::default()
        };
        for (asked, field) in [
            (asked(&["active", "Active"], "", ""), "states"),
            (asked(&[], "nowhere", ""), "site_id"),
            (asked(&[], "", "m 1"), "machine_id"),
        ] {
            assert_eq!(filter_from(&asked).unwrap_err().field.as_deref(), Some(field));
        }
        let all = filter_from(&asked(&[], "site-1", "m-1")).unwrap();
        assert_eq!(all.states.len(), NodeState::ALL.len() - 1);
        assert!(!all.states.contains(&"deleted".to_string()));
        assert_eq!(all.labels.len(), 2);
        let gone = filter_from(&asked(&["deleted"], "", "")).unwrap();
        assert_eq!(gone.states, ["deleted"]);
    }

    #[test]
    fn token_lifetime_defaults_to_one_day() {
        assert_eq!(lifetime_from(None).unwrap(), TOKEN_LIFE);
        assert_eq!(lifetime_from(Some(60)).unwrap(), Duration::from_secs(60));
        let refusal = lifetime_from(Some(-1)).unwrap_err();
        assert_eq!(refusal.field.as_deref(), Some("expires_in_seconds"));
    }
}
