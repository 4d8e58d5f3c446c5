//! Node scenarios: every stage of onboarding and of every mode of decommission.

use crate::agent_scenarios;
use crate::clients::Client;
use crate::device_fixture::DeviceAction;
use crate::device_records::MANY;
use crate::device_scenarios::{DeviceScenario, fault};
use crate::test_env::TestEnv;
use engine::SiteDescription;
use engine::admission::StartRequest;
use engine::node::{Decommission, Onboard};
use model::device::power_goal;
use model::effect::DesiredPower;
use model::filter::Filter;
use model::gate::{Gate, Overrides};
use model::id::{MachineId, NodeId, PlanId, RunId, SiteId};
use model::machine::Labels;
use model::node::follow::leaves_disabled;
use model::node::{DecommissionMode, Node, NodeStage, NodeState, is_consistent};
use model::plan::{Params, PowerChange, RunType};
use model::run::actions::{Action, Requester};
use model::run::{Run, RunPhase};
use model::site::SiteSpec;
use model::target::TargetId;
use providers::sim::{self, FaultRule};
use std::collections::BTreeSet;
use store::{Result, StoreError, Tx};

pub const MACHINE: &str = "m-1";
pub const SITE: &str = "site-1";

/// A request for the node on the machine.
#[derive(Debug, Clone)]
pub enum NodeAction {
    Onboard,
    Decommission(DecommissionMode),
    /// As `Decommission`, with resume requests in the middle.
    DecommissionAndResume(DecommissionMode),
    /// On its newest run, if that has failed.
    Act(Action),
    /// The machine is put into maintenance, switched off and on again, with overrides.
    TakeDown,
    /// Without a site, with an agent, which may fall silent during its first task.
    Bootstrap {
        falls_silent: bool,
    },
}

pub fn all() -> Vec<DeviceScenario> {
    let onboard = || DeviceAction::Node(NodeAction::Onboard);
    let out = |mode| DeviceAction::Node(NodeAction::Decommission(mode));
    let of = |name, before: Vec<DeviceAction>, faults: Vec<FaultRule>, script, steps, node| {
        DeviceScenario {
            name,
            devices: &[MACHINE],
            long: true,
            before,
            faults,
            script,
            commits: &[("commit", 3)],
            steps,
            node: Some(node),
        }
    };
    const ONBOARDED: &[&str] = &[
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
    const RESET: &[&str] = &[
        "force_release_allocations",
        "drain_node",
        "cleanup_storage",
        "scrub_gpu",
        "validate_clean_node",
    ];
    const REMOVED: &[&str] = &[
        "drain_node",
        "release_maas_node",
        "power_off_maas_node",
        "remove_gpuaas_node_record",
        "remove_maas_record",
    ];
    let deploy = |action, times| vec![fault("deploy_via_maas", action, times)];
    vec![
        of("a node is onboarded", vec![], vec![], vec![onboard()], ONBOARDED, "active"),
        of(
            "a deployment's answer is lost",
            vec![],
            deploy(sim::Action::Drop, 1),
            vec![onboard()],
            &["deploy_via_maas", "wait_for_deployed"],
            "active",
        ),
        of(
            "an onboarding fails, is mended and its stage tried again",
            vec![],
            deploy(sim::Action::Fail, 0),
            vec![
                onboard(),
                DeviceAction::ClearFaults,
                DeviceAction::Node(NodeAction::Act(Action::RetryStep)),
            ],
            &["deploy_via_maas", "wait_for_agent_enrollment"],
            "active",
        ),
        of(
            "an onboarding fails, is given up, and its node taken away",
            vec![],
            deploy(sim::Action::Fail, 0),
            vec![
                onboard(),
                DeviceAction::Node(NodeAction::Act(Action::Cancel)),
                out(DecommissionMode::FullDecommission),
            ],
            &["undo-commission_node", "undo-create_or_find_in_maas"],
            "deleted",
        ),
        of(
            "a node is reset",
            vec![onboard()],
            vec![],
            vec![out(DecommissionMode::SoftReset)],
            RESET,
            "active",
        ),
        of(
            "a node's storage is cleaned",
            vec![onboard()],
            vec![],
            vec![out(DecommissionMode::StorageCleanup)],
            &["drain_node", "cleanup_storage", "validate_clean_node"],
            "active",
        ),
        of(
            "a node is imaged anew",
            vec![onboard()],
            vec![],
            vec![out(DecommissionMode::Reimage)],
            &["release_maas_node", "deploy_via_maas", "wait_for_agent_enrollment"],
            "active",
        ),
        of(
            "a node is decommissioned",
            vec![onboard()],
            vec![],
            vec![out(DecommissionMode::FullDecommission)],
            REMOVED,
            "deleted",
        ),
        of(
            "a node is drained",
            vec![onboard()],
            vec![],
            vec![out(DecommissionMode::Drain)],
            &["drain_node"],
            "retired",
        ),
        of(
            "a drain fails, is mended and resumed",
            vec![onboard()],
            vec![fault("drain_node", sim::Action::Fail, 0)],
            vec![
                out(DecommissionMode::Retire),
                DeviceAction::ClearFaults,
                DeviceAction::Node(NodeAction::Act(Action::Resume)),
            ],
            &["drain_node"],
            "retired",
        ),
        of(
            "the machine of a node is switched off and on",
            vec![onboard()],
            vec![],
            vec![DeviceAction::Node(NodeAction::TakeDown)],
            &["power-off", "power-on"],
            "active",
        ),
        of(
            "a removal fails, is mended and resumed",
            vec![onboard()],
            vec![fault("remove_gpuaas_node_record", sim::Action::Fail, 0)],
            vec![
                out(DecommissionMode::FullDecommission),
                DeviceAction::ClearFaults,
                DeviceAction::Node(NodeAction::Act(Action::Resume)),
            ],
            &["remove_gpuaas_node_record", "remove_maas_record"],
            "deleted",
        ),
    ]
}

/// The names of the stages that these scenarios execute.
pub fn stages() -> Vec<&'static str> {
    all().iter().flat_map(|scenario| scenario.steps.iter().copied()).collect()
}

fn site() -> SiteId {
    SiteId::trusted(SITE)
}

pub fn requester() -> Requester {
    Requester { by: "client".into(), reason: String::new() }
}

pub async fn make_site(client: &Client, id: &str) {
    let spec = SiteSpec { provider: "sim".into(), ..SiteSpec::default() };
    let made = client.call(|engine| {
        let site =
            SiteDescription { id: SiteId::trusted(id), spec: spec.clone(), labels: Labels::new() };
        async move { engine.sites().create(site, requester()).await }
    });
    made.await.expect("a site");
}

pub async fn perform_node_action(client: &Client, env: &TestEnv, request: NodeAction, name: &str) {
    match request {
        NodeAction::Onboard => {
            let answer = client.call(|engine| {
                let requested = Onboard {
                    machine: MachineId::trusted(MACHINE),
                    site: site(),
                    overrides: model::gate::Overrides::default(),
                    request_id: name.into(),
                    by: "client".into(),
                };
                async move { engine.nodes().onboard(requested).await }
            });
            match answer.await {
                Ok(_) => {}
                // The previous run was canceled: its node still exists.
                Err(StoreError::Refused(refusal)) => {
                    assert_eq!(refusal.reason.as_str(), "NODE_EXISTS")
                }
                Err(error) => panic!("the request failed: {error}"),
            }
        }
        NodeAction::Decommission(mode) => decommission(client, env, mode, name).await,
        NodeAction::DecommissionAndResume(mode) => {
            decommission(client, env, mode, name).await;
            agent_scenarios::resume(client, env).await;
        }
        NodeAction::TakeDown => take_down(client, name).await,
        NodeAction::Bootstrap { falls_silent } => {
            agent_scenarios::bootstrap(client, env, falls_silent).await;
        }
        NodeAction::Act(action) => {
            let run = newest_node(env).await.and_then(|node| node.workflow).expect("an operation");
            if client.wait_until_ended(&run).await.progress.workflow.failed() {
                client.act(&run, action).await;
            }
        }
    }
}

async fn take_down(client: &Client, name: &str) {
    let (off, on) = (PowerChange::Off.plan_id(), PowerChange::On.plan_id());
    let entry = (RunType::EnterMaintenance, None);
    run_overriding(client, entry, format!("{name} enter")).await;
    run_overriding(client, (RunType::Power, Some(off)), format!("{name} off")).await;
    // A client may cancel one of them; the machine is on at the end.
    for attempt in ["on", "on again"] {
        let plan = (RunType::Power, Some(on.clone()));
        let run = run_overriding(client, plan, format!("{name} {attempt}")).await;
        if run.is_some_and(|run| run.phase() == RunPhase::Succeeded) {
            return;
        }
    }
    panic!("the machine is not switched on");
}

/// Starts a run with an override and waits for its end. None if the phase does not allow it,
/// because the run before it was canceled.
async fn run_overriding(
    client: &Client,
    (run_type, plan_id): (RunType, Option<PlanId>),
    request_id: String,
) -> Option<Run> {
    let start = StartRequest {
        machine_id: MachineId::trusted(MACHINE),
        request_id,
        run_type,
        plan_id,
        params: Params::new(),
        overrides: Overrides::of(&[Gate::InService], "a test"),
        initiator: "client".into(),
    };
    let started = client.call(|engine| {
        let start = start.clone();
        async move { engine.runs().start(start).await }
    });
    match started.await {
        Ok(started) => Some(client.wait_until_ended(&started.run.spec.id).await),
        Err(StoreError::Refused(refusal)) => {
            assert_eq!(refusal.reason.as_str(), "WRONG_PHASE");
            None
        }
        Err(error) => panic!("the request failed: {error}"),
    }
}

async fn decommission(client: &Client, env: &TestEnv, mode: DecommissionMode, name: &str) {
    let node = newest_node(env).await.expect("a node").id();
    let answer = client.call(|engine| {
        let requested = Decommission {
            node: node.clone(),
            mode,
            overrides: model::gate::Overrides::default(),
            request_id: name.into(),
            by: "client".into(),
        };
        async move { engine.nodes().decommission(requested).await }
    });
    answer.await.expect("accepted");
}

pub async fn newest_node(env: &TestEnv) -> Option<Node> {
    env.records().await.nodes.into_iter().next_back()
}

/// No node changes state by itself. One whose drain has failed stays offline.
pub async fn nodes_are_idle(env: &TestEnv, nodes: &[Node]) -> bool {
    let offline = nodes.iter().filter(|node| node.state == NodeState::Offline);
    let runs: Vec<RunId> = offline.filter_map(|node| node.workflow.clone()).collect();
    let read = env.store.read(runs, |runs, tx| {
        Box::pin(async move {
            let mut disabled = BTreeSet::new();
            for id in runs {
                disabled.extend(tx.run(id).await?.filter(leaves_disabled).map(|run| run.spec.id));
            }
            Ok(disabled)
        })
    });
    let disabled = read.await.expect("the in-memory database answers");
    nodes.iter().all(|node| match node.state {
        NodeState::Active
        | NodeState::Quarantined
        | NodeState::Retired
        | NodeState::Deleted
        | NodeState::Enrolling => true,
        // A heartbeat arrives soon, or the node is quarantined.
        NodeState::Offline => node.workflow.as_ref().is_some_and(|run| disabled.contains(run)),
        NodeState::Draining | NodeState::Removing | NodeState::BootstrapIssued => false,
    })
}

/// Checks that the state of each node fits its run, and that transitional states have a run.
pub async fn check_nodes(tx: &mut Tx) -> Result<Vec<String>> {
    let nodes = tx.records::<Node>(&Filter::default(), None, MANY as usize).await?.records;
    let mut wrong = Vec::new();
    for node in nodes {
        let Some(id) = &node.workflow else { continue };
        let Some(run) = tx.run(id).await? else { continue };
        let workflow = run.progress.workflow.as_str();
        if !is_consistent(node.state, &run) {
            wrong.push(format!(
                "{} is {} beside {id}, which is {workflow}",
                node.head.id, node.state
            ));
        }
        if node.state.in_progress() && run.ended() {
            wrong.push(format!("{} is {} without an active run", node.head.id, node.state));
        }
        let down = is_taken_down(tx, &node.machine).await?;
        if node.state == NodeState::Active && down {
            wrong.push(format!("{} is active, and its machine is off by our order", node.head.id));
        }
        let living = tx.live_node_of_machine(&node.machine).await?;
        let own = living == Some(NodeId::trusted(&node.head.id));
        if own == (node.state == NodeState::Deleted) {
            wrong.push(format!(
                "{} is {}, and its machine has {living:?}",
                node.head.id, node.state
            ));
        }
    }
    Ok(wrong)
}

/// True if the newest run on the machine takes it down now, or has switched it off.
async fn is_taken_down(tx: &mut Tx, id: &MachineId) -> Result<bool> {
    let runs = tx.latest_runs(&TargetId::from(id), 1).await?;
    let Some(run) = runs.first() else { return Ok(false) };
    let off = run.ended() && power_goal(run) == Some(DesiredPower::Off);
    let done = off && run.phase() == RunPhase::Succeeded;
    Ok(done || run.intended_impact().is_some_and(|impact| impact.takes_down()))
}

/// A stage without a scenario would be untested. Stages in Farrier's own record have no effect.
#[test]
fn every_stage_has_a_scenario() {
    let lived = stages();
    for stage in NodeStage::ALL {
        let written = matches!(stage.executor(), model::node::StageExecutor::Record(_));
        assert!(written || lived.contains(&stage.as_str()), "{stage}");
    }
}
