//! Nodes and sites over gRPC, in the simulator: onboarding, every decommission mode, refusals, and
//! a server that is killed in the middle.

use crate::api::{field_of, refused};
use crate::fleet::{
    Channel, Clients, DatabaseKind, Server, Setup, TEST_TIMEOUT, channel, free_port,
};
use proto::v1;
use proto::v1::node_service_client::NodeServiceClient;
use proto::v1::site_service_client::SiteServiceClient;
use proto::words::{self, WireEnum};
use std::path::Path;
use std::time::{Duration, Instant};
use tonic::{Code, Response, Status};

/// Frequent site polls and short retry delays, so that no test waits for them.
const QUICK: &str = "[engine]\nbackoff_first_ms = 1\nbackoff_most_ms = 5\n\
                     [nodes]\nsweep_seconds = 1\nreconcile_seconds = 1\n";

/// The settings of a server with an agent listener, and the port of that listener.
pub fn with_agents(dir: &Path, home: DatabaseKind) -> (Setup, u16) {
    let port = free_port();
    let config = format!("{QUICK}listen = \"127.0.0.1:{port}\"\nheartbeat_seconds = 7\n");
    (Setup { home, config, ..Setup::new(dir, "zero") }, port)
}

/// Clients for nodes and sites in addition to the others.
#[derive(Clone)]
pub struct Api {
    pub all: Clients,
    pub nodes: NodeServiceClient<Channel>,
    pub sites: SiteServiceClient<Channel>,
}

impl Api {
    pub async fn of(server: &Server) -> Self {
        let channel = channel(&server.url()).await;
        Self {
            all: server.clients().await,
            nodes: NodeServiceClient::new(channel.clone()),
            sites: SiteServiceClient::new(channel),
        }
    }

    async fn create_site(&mut self, id: &str) -> v1::Site {
        let request = v1::CreateSiteRequest { site: Some(site(id)), ..Default::default() };
        self.sites.create_site(request).await.unwrap().into_inner()
    }

    pub async fn node(&mut self, id: &str) -> v1::NodeDetail {
        let request = v1::GetNodeRequest { node_id: id.into() };
        self.nodes.get_node(request).await.unwrap().into_inner()
    }

    /// Waits until a node is in a state.
    pub async fn until(&mut self, id: &str, state: &str) -> v1::NodeDetail {
        let started = Instant::now();
        loop {
            let detail = self.node(id).await;
            if detail.node.as_ref().is_some_and(|node| node.state().word() == state) {
                return detail;
            }
            assert!(started.elapsed() < TEST_TIMEOUT, "{id} never becomes {state}: {detail:#?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn onboard(&mut self, machine: &str, request: &str) -> v1::NodeOperation {
        self.nodes.onboard_node(onboard(machine, request)).await.unwrap().into_inner()
    }

    /// Registers a machine and onboards it at `site-1`. Returns the node's ID.
    async fn active(&mut self, machine: &str) -> String {
        self.all.register(machine).await;
        let done = self.onboard(machine, "on").await;
        let run = self.all.finished(&done.run.unwrap().run_id).await;
        assert_eq!(run.phase(), v1::run::Phase::Succeeded, "{run:#?}");
        done.node.unwrap().node_id
    }

    async fn listed(&mut self, states: &[&str]) -> Vec<String> {
        let filter = match states.is_empty() {
            true => String::new(),
            false => format!("state in ({})", states.join(", ")),
        };
        let request = v1::ListNodesRequest { filter, ..Default::default() };
        let found = self.nodes.list_nodes(request).await.unwrap().into_inner().nodes;
        found.into_iter().map(|node| node.node_id).collect()
    }
}

fn site(id: &str) -> v1::Site {
    let spec = v1::SiteSpec { provider: "sim".into(), ..Default::default() };
    v1::Site { site_id: id.into(), spec: Some(spec), ..Default::default() }
}

fn onboard(machine: &str, request: &str) -> v1::OnboardNodeRequest {
    v1::OnboardNodeRequest {
        machine_id: machine.into(),
        site_id: "site-1".into(),
        request_id: request.into(),
        ..Default::default()
    }
}

pub fn decommission(node: &str, mode: &str, request: &str) -> v1::DecommissionNodeRequest {
    v1::DecommissionNodeRequest {
        node_id: node.into(),
        mode: words::value::<v1::DecommissionMode>(mode),
        request_id: request.into(),
        ..Default::default()
    }
}

pub fn drain(node: &str, request: &str) -> v1::DrainNodeRequest {
    v1::DrainNodeRequest { node_id: node.into(), request_id: request.into(), ..Default::default() }
}

fn quarantine(node: &str, reason: &str) -> v1::QuarantineNodeRequest {
    v1::QuarantineNodeRequest { node_id: node.into(), reason: reason.into(), ..Default::default() }
}

pub fn state(node: &Option<v1::Node>) -> &str {
    node.as_ref().map_or("", |node| node.state().word())
}

/// Starts a server without an agent listener, with a site in its simulator.
async fn open() -> (Server, Api, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let setup = Setup { config: QUICK.into(), ..Setup::new(dir.path(), "zero") };
    let server = Server::start(setup);
    let mut api = Api::of(&server).await;
    api.create_site("site-1").await;
    (server, api, dir)
}

/// The sixteen stages, from the specification.
const ONBOARDING: [&str; 16] = [
    "load_site_config",
    "resolve_power_credentials",
    "create_or_find_in_maas",
    "commission_node",
    "wait_for_ready",
    "configure_storage",
    "apply_roce_phase2",
    "ensure_pxe_interface_auto",
    "render_cloud_init",
    "deploy_via_maas",
    "wait_for_deployed",
    "classify_deploy_failure",
    "recover_for_datasource_retry",
    "ensure_hardware_sync_configured",
    "wait_for_hardware_sync_healthy",
    "wait_for_agent_enrollment",
];

/// The decommission stages, from the specification: each mode has some of them, in this order.
const DECOMMISSION: [&str; 13] = [
    "disable_node",
    "force_release_allocations",
    "drain_node",
    "cleanup_storage",
    "scrub_gpu",
    "validate_clean_node",
    "load_site_config",
    "release_maas_node",
    "power_off_maas_node",
    "retire_gpuaas_node",
    "remove_gpuaas_node_record",
    "cleanup_secrets",
    "remove_maas_record",
];

/// The steps that the specification names. A machine in a cluster has additional steps.
fn documented<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    names.filter(|name| DECOMMISSION.contains(name) || ONBOARDING.contains(name)).collect()
}

/// The stages of a mode: all decommission stages except `left_out`, followed by `again`. The agent
/// uninstalls itself before the machine is released.
fn stages_of(left_out: &[&str], again: &[&'static str]) -> Vec<&'static str> {
    let of_agent = ["retire_gpuaas_node", "remove_gpuaas_node_record"];
    let early = DECOMMISSION.into_iter().take_while(|name| *name != "load_site_config");
    let late = DECOMMISSION.into_iter().skip_while(|name| *name != "load_site_config");
    let late = late.filter(|name| !of_agent.contains(name));
    let first = early.chain(of_agent).chain(late).filter(|name| !left_out.contains(name));
    first.chain(again.iter().copied()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_is_onboarded_and_its_layers_are_told_apart() {
    let (_server, mut api, _dir) = open().await;
    api.all.register("m-1").await;
    // A dry run lists the stages and changes nothing.
    let dry = v1::OnboardNodeRequest { dry_run: true, ..onboard("m-1", "") };
    let would = api.nodes.onboard_node(dry).await.unwrap().into_inner();
    let stages: Vec<&str> = would.stages.iter().map(|one| one.stage.as_str()).collect();
    assert_eq!(stages, ONBOARDING);
    assert_eq!(would.observed, "MAAS has no such machine");
    assert_eq!(api.listed(&[]).await, Vec::<String>::new());

    let done = api.onboard("m-1", "on").await;
    assert!(done.new && done.stages.is_empty(), "{done:#?}");
    assert_eq!(state(&done.node), "enrolling");
    let (node, run) = (done.node.unwrap(), done.run.unwrap());
    assert_eq!((node.machine_id.as_str(), node.site_id.as_str()), ("m-1", "site-1"));
    let ended = api.all.finished(&run.run_id).await;
    let names: Vec<&str> = ended.steps.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(names, ONBOARDING);
    let detail = api.node(&node.node_id).await;
    assert_eq!(state(&detail.node), "active");
    assert_eq!(detail.node.as_ref().unwrap().moved_by(), v1::NodeTransitionOwner::Onboarding);
    assert_eq!(detail.workflow_kind(), v1::NodeWorkflow::Onboarding);
    let workflow = detail.workflow.unwrap();
    assert_eq!(workflow.workflow_state(), v1::WorkflowState::Completed);
    let observed = detail.observed.unwrap();
    assert_eq!((observed.state.as_str(), observed.expected), ("Deployed", true));
    assert_eq!((detail.stage.as_str(), detail.failure_code.as_str()), ("", ""));
    assert_eq!(detail.recommended, [format!("farrier node get {}", node.node_id)]);

    // The same request ID returns the same node.
    let again = api.onboard("m-1", "on").await;
    assert!(!again.new);
    assert_eq!(again.node.unwrap().node_id, node.node_id);
    assert_eq!(again.run.unwrap().run_id, run.run_id);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_stage_reports_its_class_and_continues_after_repair() {
    let (_server, mut api, _dir) = open().await;
    api.all.register("m-1").await;
    let rule = v1::SimFault {
        effect: "configure_storage".into(),
        action: v1::SimAction::Fail.into(),
        message: "no disk answers".into(),
        ..Default::default()
    };
    api.all.fault(rule).await;
    let done = api.onboard("m-1", "on").await;
    let (node, run) = (done.node.unwrap().node_id, done.run.unwrap().run_id);
    api.all.finished(&run).await;
    let detail = api.node(&node).await;
    assert_eq!(state(&detail.node), "enrolling");
    assert_eq!(detail.stage, "configure_storage");
    assert_eq!(detail.attempts, 3, "{detail:#?}");
    assert!(detail.failure.contains("no disk answers"), "{detail:#?}");
    assert_eq!(
        (detail.failure_class().word(), detail.failure_code.is_empty()),
        ("retryable", false)
    );
    assert!(detail.recommended.iter().any(|one| one.contains(&run)), "{:?}", detail.recommended);
    api.all.sim.delete_faults(v1::DeleteFaultsRequest::default()).await.unwrap();
    let request = v1::ResumeNodeRequest { node_id: node.clone(), ..Default::default() };
    let resumed = api.nodes.resume_node(request).await.unwrap().into_inner();
    assert!(resumed.reopened, "{resumed:#?}");
    assert_eq!((resumed.run_id.as_str(), resumed.task().word()), (run.as_str(), "none"));
    let detail = api.until(&node, "active").await;
    assert_eq!((detail.attempts, detail.failure.as_str()), (0, ""));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_mode_ends_where_the_document_says() {
    let (_server, mut api, _dir) = open().await;
    let only_reset = &DECOMMISSION[6..];
    let stored = ["power_off_maas_node", "retire_gpuaas_node", "remove_gpuaas_node_record"];
    let reimaged = [&stored[..], &["remove_maas_record"]].concat();
    let unscrubbed = [only_reset, &["scrub_gpu"]].concat();
    for (mode, ends, stages) in [
        ("soft_reset", "active", stages_of(only_reset, &[])),
        ("reimage", "active", stages_of(&reimaged, &ONBOARDING[4..])),
        ("storage_cleanup", "active", stages_of(&unscrubbed, &[])),
        ("full_decommission", "deleted", stages_of(&[], &[])),
    ] {
        let machine = format!("m-{}", mode.replace('_', "-"));
        let node = api.active(&machine).await;
        let dry = v1::DecommissionNodeRequest { dry_run: true, ..decommission(&node, mode, "") };
        let would = api.nodes.decommission_node(dry).await.unwrap().into_inner();
        let named = documented(would.stages.iter().map(|one| one.stage.as_str()));
        assert_eq!(named, stages, "{mode}");
        assert_eq!(would.observed, "MAAS has the machine as Deployed");
        assert_eq!(state(&api.node(&node).await.node), "active");
        let done = api.nodes.decommission_node(decommission(&node, mode, "off")).await.unwrap();
        let run = api.all.finished(&done.into_inner().run.unwrap().run_id).await;
        assert_eq!(run.phase(), v1::run::Phase::Succeeded, "{mode}: {run:#?}");
        let done = documented(run.steps.iter().map(|step| step.name.as_str()));
        assert_eq!(done, stages, "{mode}");
        let detail = api.until(&node, ends).await;
        assert_eq!(detail.workflow_kind().word(), mode);
    }
    let gone = api.listed(&["deleted"]).await;
    assert_eq!(gone.len(), 1);
    assert_eq!(api.listed(&[]).await.len(), 3);
    // A deleted node does not come back: the same machine gets another node.
    let message = decommission(&gone[0], "soft_reset", "more");
    refused(
        api.nodes.decommission_node(message).await,
        Code::FailedPrecondition,
        &["never comes back"],
    );
    let again = api.onboard("m-full-decommission", "anew").await;
    assert_ne!(again.node.unwrap().node_id, gone[0]);
    api.all.finished(&again.run.unwrap().run_id).await;

    // Drained and retired nodes are kept, and return to service when their agent sends heartbeats.
    for mode in ["drain", "retire"] {
        let node = api.active(&format!("m-{mode}")).await;
        let done = match mode {
            "drain" => api.nodes.drain_node(drain(&node, "off")).await,
            _ => {
                let request = v1::RetireNodeRequest {
                    node_id: node.clone(),
                    request_id: "off".into(),
                    ..Default::default()
                };
                api.nodes.retire_node(request).await
            }
        };
        api.all.finished(&done.unwrap().into_inner().run.unwrap().run_id).await;
        let detail = api.node(&node).await;
        assert_eq!((state(&detail.node), detail.workflow_kind().word()), ("retired", mode));
        let request = v1::ReactivateNodeRequest { node_id: node.clone(), ..Default::default() };
        let back = api.nodes.reactivate_node(request).await.unwrap().into_inner();
        assert_eq!(back.node.unwrap().state(), v1::NodeState::Offline);
        api.until(&node, "active").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn quarantine_lasts_until_an_operator_releases_it() {
    let (_server, mut api, _dir) = open().await;
    let node = api.active("m-1").await;
    let stored = api.nodes.quarantine_node(quarantine(&node, "smells burnt")).await.unwrap();
    let stored = stored.into_inner();
    assert_eq!((stored.state().word(), stored.reason.as_str()), ("quarantined", "smells burnt"));
    assert_eq!(api.node(&node).await.quarantine_cause(), v1::QuarantineCause::Operator);
    // The reconciler never releases a node that an operator has quarantined.
    let check = v1::CheckSiteRequest { site_id: "site-1".into() };
    for _ in 0..5 {
        api.sites.check_site(check.clone()).await.unwrap();
    }
    assert_eq!(state(&api.node(&node).await.node), "quarantined");
    let release = v1::ReleaseNodeRequest {
        node_id: node.clone(),
        reason: "it was lunch".into(),
        ..Default::default()
    };
    let back = api.nodes.release_node(release).await.unwrap().into_inner().node.unwrap();
    assert_eq!((back.state().word(), back.moved_by().word()), ("active", "operator"));
}

type Refused<T> = Result<Response<T>, Status>;

#[track_caller]
fn invalid<T: std::fmt::Debug>(answer: Refused<T>, field: &str) {
    assert_eq!(field_of(&refused(answer, Code::InvalidArgument, &[])), field);
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_say_why_and_what_to_do() {
    let (_server, mut api, _dir) = open().await;
    let node = api.active("m-1").await;
    let unknown = v1::OnboardNodeRequest { site_id: "site-9".into(), ..onboard("m-1", "x") };
    refused(api.nodes.onboard_node(unknown).await, Code::NotFound, &["farrier site list"]);
    refused(api.nodes.onboard_node(onboard("m-9", "x")).await, Code::NotFound, &["m-9"]);
    refused(api.nodes.onboard_node(onboard("m-1", "x")).await, Code::AlreadyExists, &[&node]);
    invalid(api.nodes.onboard_node(onboard("m-1", "")).await, "request_id");
    let nowhere = v1::OnboardNodeRequest { site_id: String::new(), ..onboard("m-1", "x") };
    invalid(api.nodes.onboard_node(nowhere).await, "site_id");
    for (mode, field) in [("", "mode"), ("wipe", "mode"), ("drain", "mode")] {
        invalid(api.nodes.decommission_node(decommission(&node, mode, "x")).await, field);
    }
    let words = ["soft_reset", "reimage", "full_decommission", "storage_cleanup"];
    let wrong = api.nodes.decommission_node(decommission(&node, "wipe", "x")).await;
    refused(wrong, Code::InvalidArgument, &words);
    invalid(api.nodes.decommission_node(decommission("m-1", "reimage", "x")).await, "node_id");
    invalid(api.nodes.quarantine_node(quarantine(&node, "")).await, "reason");
    let release = v1::ReleaseNodeRequest { node_id: node.clone(), ..Default::default() };
    invalid(api.nodes.release_node(release).await, "reason");
    let nobody = v1::GetNodeRequest { node_id: "node-nobody".into() };
    refused(api.nodes.get_node(nobody).await, Code::NotFound, &["farrier node list"]);
    let resume = v1::ResumeNodeRequest { node_id: node.clone(), ..Default::default() };
    refused(api.nodes.resume_node(resume).await, Code::FailedPrecondition, &["left undone"]);
    let bootstrap = v1::BootstrapNodeRequest { machine_id: "m-1".into(), ..Default::default() };
    let off = api.nodes.bootstrap_node(bootstrap).await;
    refused(off, Code::FailedPrecondition, &["nodes.listen", "nodes.url"]);
    let list = |filter: &str, token: &str| v1::ListNodesRequest {
        filter: filter.into(),
        page_token: token.into(),
        page_size: 1,
        ..Default::default()
    };
    invalid(api.nodes.list_nodes(list("state=gone", "")).await, "filter");
    refused(
        api.nodes.list_nodes(list("state=gone", "")).await,
        Code::InvalidArgument,
        &["quarantined", "deleted"],
    );
    // A page token continues the list, only with its own filter.
    let other = api.active("m-2").await;
    let page = api.nodes.list_nodes(list("site_id=site-1", "")).await.unwrap().into_inner();
    assert_eq!(page.nodes.len(), 1);
    let next = list("site_id=site-1", &page.next_page_token);
    let next = api.nodes.list_nodes(next).await.unwrap().into_inner();
    let mut both = vec![page.nodes[0].node_id.clone(), next.nodes[0].node_id.clone()];
    both.sort();
    let mut made = vec![node.clone(), other.clone()];
    made.sort();
    assert_eq!((both, next.next_page_token.as_str()), (made, ""));
    invalid(api.nodes.list_nodes(list("", &page.next_page_token)).await, "page_token");
    let of_machine = list("machine_id=m-2", "");
    let found = api.nodes.list_nodes(of_machine).await.unwrap().into_inner().nodes;
    assert_eq!(found.iter().map(|one| &one.node_id).collect::<Vec<_>>(), [&other]);

    // One operation per node at a time: the refusal names the active one.
    let hang = v1::SimFault {
        effect: "cleanup_storage".into(),
        action: v1::SimAction::Hang.into(),
        ..Default::default()
    };
    api.all.fault(hang).await;
    let requested = decommission(&node, "soft_reset", "off");
    let run =
        api.nodes.decommission_node(requested.clone()).await.unwrap().into_inner().run.unwrap();
    let busy = api.nodes.decommission_node(decommission(&node, "reimage", "other")).await;
    refused(busy, Code::FailedPrecondition, &[&run.run_id]);
    let reused = api.nodes.decommission_node(decommission(&node, "reimage", "off")).await;
    refused(reused, Code::AlreadyExists, &[&run.run_id]);
    let again = api.nodes.decommission_node(requested).await.unwrap().into_inner();
    assert!(!again.new);
    refused(
        api.nodes.quarantine_node(quarantine(&node, "why")).await,
        Code::FailedPrecondition,
        &[&run.run_id],
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn sites_are_kept_checked_and_removed() {
    let (_server, mut api, _dir) = open().await;
    let mut known = api.create_site("site-2").await;
    let spec = known.spec.clone().unwrap();
    assert_eq!((spec.image.as_str(), spec.boot_disk_model.as_str()), ("ubuntu/jammy", "BOSS"));
    assert_eq!((spec.datasource_retries, spec.erase_on_release), (Some(2), Some(true)));
    // The returned site can be changed and written back.
    known.spec = Some(v1::SiteSpec { boot_disk_model: "-".into(), ..spec.clone() });
    let create =
        |site: &v1::Site| v1::CreateSiteRequest { site: Some(site.clone()), ..Default::default() };
    let update = |site: &v1::Site, expected_version| v1::UpdateSiteRequest {
        site: Some(site.clone()),
        expected_version,
        update_mask: None,
        ..Default::default()
    };
    let current = api.sites.get_site(v1::GetSiteRequest { site_id: "site-2".into() }).await;
    let version = current.unwrap().into_inner().version;
    // A repetition returns the stored site; another site of the same id is refused.
    let again = api.sites.create_site(create(&site("site-2"))).await.unwrap().into_inner();
    assert_eq!(again.spec, Some(spec.clone()));
    let other = api.sites.create_site(create(&known)).await;
    let words = ["site-2 exists already", "farrier site update site-2"];
    refused(other, Code::AlreadyExists, &words);
    let changed = api.sites.update_site(update(&known, 0)).await.unwrap().into_inner();
    assert!(changed.version > version);
    assert_eq!(changed.spec.as_ref().unwrap().boot_disk_model, "-");
    let stale = api.sites.update_site(update(&known, version)).await;
    refused(stale, Code::FailedPrecondition, &["version", "farrier site get site-2"]);
    let unknown = api.sites.update_site(update(&site("site-9"), 0)).await;
    refused(unknown, Code::NotFound, &["site-9", "farrier site list"]);

    let check = v1::CheckSiteRequest { site_id: "site-2".into() };
    let observed = api.sites.check_site(check).await.unwrap().into_inner().status.unwrap();
    assert_eq!((observed.state().word(), observed.machines), ("Connected", Some(0)));
    assert_eq!(observed.alarms, Vec::<String>::new());

    let list = |token: &str| v1::ListSitesRequest {
        page_size: 1,
        page_token: token.into(),
        ..Default::default()
    };
    let first = api.sites.list_sites(list("")).await.unwrap().into_inner();
    let second = api.sites.list_sites(list(&first.next_page_token)).await.unwrap().into_inner();
    assert_eq!(
        (first.sites[0].site_id.as_str(), second.sites[0].site_id.as_str()),
        ("site-1", "site-2")
    );
    invalid(api.sites.list_sites(list("garbage!")).await, "page_token");

    for (spec, field) in [
        (v1::SiteSpec { provider: "cloud".into(), ..Default::default() }, "site.spec.provider"),
        (v1::SiteSpec { image: "jammy".into(), ..site("x").spec.unwrap() }, "site.spec.image"),
        (
            v1::SiteSpec { calls_at_once: Some(0), ..site("x").spec.unwrap() },
            "site.spec.calls_at_once",
        ),
        (
            v1::SiteSpec { cloud_init: "{{who}}".into(), ..site("x").spec.unwrap() },
            "site.spec.cloud_init",
        ),
        (v1::SiteSpec::default(), "site.spec.maas_url"),
    ] {
        let wrong = v1::Site { spec: Some(spec), ..site("site-3") };
        invalid(api.sites.create_site(create(&wrong)).await, field);
        let wrong = v1::Site { site_id: "site-2".into(), ..wrong };
        let update_mask = Some(proto::FieldMask { paths: vec!["*".into()] });
        let wrong = v1::UpdateSiteRequest { update_mask, ..update(&wrong, 0) };
        invalid(api.sites.update_site(wrong).await, field);
    }
    invalid(api.sites.create_site(create(&site("here"))).await, "site.site_id");

    let node = api.active("m-1").await;
    let delete = |id: &str, expected_version| v1::DeleteSiteRequest {
        site_id: id.into(),
        expected_version,
        ..Default::default()
    };
    refused(api.sites.delete_site(delete("site-1", 0)).await, Code::FailedPrecondition, &[&node]);
    let stale = api.sites.delete_site(delete("site-2", version)).await;
    refused(stale, Code::FailedPrecondition, &["version", "farrier site get site-2"]);
    let current = api.sites.get_site(v1::GetSiteRequest { site_id: "site-2".into() }).await;
    let version = current.unwrap().into_inner().version;
    api.sites.delete_site(delete("site-2", version)).await.unwrap();
    let gone = api.sites.get_site(v1::GetSiteRequest { site_id: "site-2".into() }).await;
    refused(gone, Code::NotFound, &["farrier site list"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_onboarding_survives_kill_9_in_the_middle() {
    let dir = tempfile::tempdir().unwrap();
    let setup = Setup { config: QUICK.into(), ..Setup::new(dir.path(), "zero") };
    let server = Server::start(setup);
    let mut api = Api::of(&server).await;
    api.create_site("site-1").await;
    api.all.register("m-1").await;
    let slow = v1::SimFault {
        effect: "deploy_via_maas".into(),
        action: v1::SimAction::Slow.into(),
        delay_ms: 3_000,
        times: 1,
        ..Default::default()
    };
    api.all.fault(slow).await;
    let done = api.onboard("m-1", "on").await;
    let (node, run) = (done.node.unwrap().node_id, done.run.unwrap().run_id);
    api.all.at_step(&run, "deploy_via_maas").await;
    let server = Server::start(server.kill());
    let mut api = Api::of(&server).await;
    let ended = api.all.finished(&run).await;
    assert_eq!(ended.phase(), v1::run::Phase::Succeeded, "{ended:#?}");
    let detail = api.node(&node).await;
    assert_eq!(state(&detail.node), "active");
    let applied = api.all.applied(&format!("{run}/deploy_via_maas")).await;
    assert_eq!(applied.values().copied().collect::<Vec<_>>(), [1], "{applied:?}");
    let history = api.all.history(&run).await;
    assert!(history.iter().any(|entry| entry.message.contains("took over")), "{history:#?}");
    // The same request, from a client that lost the response, returns the same node.
    assert_eq!(api.onboard("m-1", "on").await.node.unwrap().node_id, node);
}
