//! Nodes in simulated time: onboarding, decommission, heartbeats, and drift from MAAS.

use crate::clients::Client;
use crate::device_records::{InServiceDevice, device};
use crate::fault_injector::CrashPoint;
use crate::node_scenarios::{self, MACHINE, NodeAction};
use crate::test_env::{Process, TestEnv, simulate};
use engine::admission::StartRequest;
use engine::node::{Agents, Decommission, NodeView, Onboard, TaskReport};
use engine::secret::{Cipher, SecretStore};
use model::condition::ConditionType;
use model::effect::{CallVerb, DesiredPower, Effect, EffectKey, PowerOffPolicy, ProviderCall};
use model::fault::FaultCode;
use model::gate::{Gate, Overrides};
use model::id::{MachineId, NodeId, RunId, SiteId};
use model::machine::view::EffectiveState;
use model::node::enroll::{EnrollingAgent, EnrollmentRefusal};
use model::node::requests::NodeRequest;
use model::node::task::ResumeResult;
use model::node::{
    DecommissionMode, MaasState, Node, NodeStage, NodeState, Quarantine, TransitionOwner,
};
use model::plan::{Params, RunType};
use model::refusal::Refusal;
use model::run::actions::{Action, Requester, RestartMode};
use model::run::{Run, RunPhase, Workflow};
use model::site::Site;
use model::target::TargetId;
use providers::{Journal, Provider, Target, sim};
use secrecy::ExposeSecret;
use std::time::Duration;
use store::{Result, StoreError};
use tokio::time::sleep;

/// A machine at a site, a process and a client.
pub struct NodeFixture {
    pub env: TestEnv,
    pub process: Process,
    pub client: Client,
}

impl NodeFixture {
    pub async fn new() -> Self {
        let fixture = Self::without_node_checks().await;
        fixture.env.enable_node_checks();
        fixture
    }

    /// As `new`, without the check of nodes after every commit.
    pub async fn without_node_checks() -> Self {
        let world = TestEnv::new(1).await;
        let process = world.boot("one").await;
        let api_client = Client::new(&process.engine);
        let stand = InServiceDevice { target: device(MACHINE), rack: None, now: world.now() };
        stand.write(&world.store).await;
        node_scenarios::make_site(&api_client, node_scenarios::SITE).await;
        Self { env: world, process, client: api_client }
    }

    pub async fn perform(&self, request: NodeAction, name: &str) {
        node_scenarios::perform_node_action(&self.client, &self.env, request, name).await;
    }

    pub async fn node(&self) -> Node {
        self.env.records().await.nodes.into_iter().next_back().expect("a node")
    }

    pub async fn view(&self) -> NodeView {
        self.process.engine.nodes().get(&self.node().await.id()).await.expect("its view")
    }

    /// Waits until the newest node is in this state.
    pub async fn wait_for_state(&self, state: NodeState) -> Node {
        for _ in 0..3_600 {
            let node = self.node().await;
            if node.state == state {
                return node;
            }
            sleep(Duration::from_secs(1)).await;
        }
        panic!("the node never became {state}: {:?}", self.view().await.explanation)
    }
}

pub fn reactivate() -> NodeRequest {
    NodeRequest::Reactivate { why: String::new(), overrides: Overrides::default() }
}

#[test]
fn a_node_is_onboarded_and_serves() {
    simulate(async {
        let fixture = NodeFixture::new().await;
        fixture.perform(NodeAction::Onboard, "onboard").await;
        fixture.wait_for_state(NodeState::Active).await;
        let view = fixture.view().await;
        let run = view.run.expect("its onboarding");
        assert_eq!(run.progress.workflow, Workflow::Completed);
        assert_eq!(view.node.system_id, "sim-m-1");
        let machine = fixture.env.machine(MACHINE).await;
        let known = machine.conditions.get(ConditionType::Provisioned).expect("it is known");
        assert_eq!((known.status, known.reason.as_str()), (true, "Image:ubuntu/jammy"));
        assert_eq!(machine.effective_state(), EffectiveState::Idle, "it is not new any more");
        assert_eq!(machine.open_disk_write, None);

        let node = fixture.node().await;
        let nodes = fixture.process.engine.nodes();
        let reimage = decommission_request(&node, DecommissionMode::Reimage, "reimage");
        let run = nodes.decommission(reimage).await.expect("accepted").run;
        assert_eq!(
            fixture.client.wait_until_ended(&run.spec.id).await.phase(),
            RunPhase::Succeeded
        );
        let history = fixture.env.machine_data(MACHINE).await.history;
        let written =
            history.iter().filter(|event| event.message.contains("deploy_via_maas started"));
        assert_eq!(written.count(), 2, "each intent to write the disk is in the machine's history");
        let machine = fixture.env.machine(MACHINE).await;
        assert!(machine.is(ConditionType::Provisioned) && machine.open_disk_write.is_none());
    });
}

pub fn refusal<T: std::fmt::Debug>(answer: Result<T>) -> Refusal {
    match answer {
        Err(StoreError::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}

pub fn requester() -> Requester {
    Requester { by: "somebody".into(), reason: String::new() }
}

pub fn decommission_request(node: &Node, mode: DecommissionMode, request_id: &str) -> Decommission {
    Decommission {
        node: node.id(),
        mode,
        overrides: Overrides::default(),
        request_id: request_id.into(),
        by: "somebody".into(),
    }
}

pub fn onboard_request(machine: &str, request_id: &str) -> Onboard {
    Onboard {
        machine: MachineId::trusted(machine),
        site: SiteId::trusted(node_scenarios::SITE),
        overrides: Overrides::default(),
        request_id: request_id.into(),
        by: "somebody".into(),
    }
}

impl NodeFixture {
    pub async fn serving() -> Self {
        let fixture = Self::new().await;
        fixture.perform(NodeAction::Onboard, "onboard").await;
        fixture.wait_for_state(NodeState::Active).await;
        fixture
    }

    /// Starts an onboarding that fails at a stage until the faults are cleared.
    pub async fn onboarding_fails_at(&self, stage: &str) -> Run {
        let fault = crate::device_scenarios::fault(stage, sim::Action::Fail, 0);
        self.env.sim.add_fault(fault).expect("a rule");
        let started = self
            .process
            .engine
            .nodes()
            .onboard(onboard_request(MACHINE, "on"))
            .await
            .expect("accepted");
        self.client.wait_until_ended(&started.run.spec.id).await
    }

    /// Changes the hardware of a machine without Farrier.
    async fn perform_outside_farrier(&self, machine: &str, effect: Effect) {
        let target = Target {
            id: TargetId::from(&MachineId::trusted(machine)),
            spec: model::machine::MachineSpec::default(),
        };
        let key = EffectKey::new(
            &RunId::trusted("op-byhand"),
            effect.name(),
            self.env.now().as_micros() as u32,
        );
        let call = ProviderCall { key, verb: CallVerb::Perform, effect, log_offset_bytes: 0 };
        let (journal, _lines) = Journal::new();
        self.env.sim.call(&target, &call, &journal).await.expect("done by hand");
    }

    pub async fn power(&self, machine: &str, to: DesiredPower) {
        self.perform_outside_farrier(
            machine,
            Effect::Power { to, power_off: PowerOffPolicy::PROVIDER_DEFAULT },
        )
        .await;
    }

    pub async fn perform_in_maas(&self, stage: NodeStage) {
        self.perform_in_maas_for(stage, &self.node().await.id()).await;
    }

    /// As `perform_in_maas`, for a given node.
    pub async fn perform_in_maas_for(&self, stage: NodeStage, node: &NodeId) {
        let node = node.clone();
        let (site, by) = (Some(SiteId::trusted(node_scenarios::SITE)), "sim".into());
        self.perform_outside_farrier(
            MACHINE,
            Effect::Stage { stage, node, site, provider: by, undo: false },
        )
        .await;
    }

    pub async fn site(&self) -> Site {
        self.process
            .engine
            .sites()
            .get(&SiteId::trusted(node_scenarios::SITE))
            .await
            .expect("the site")
    }

    pub fn assert_no_violations(&self) {
        let witnessed = self.env.violations.lock().expect("the lock is not poisoned").clone();
        assert_eq!(witnessed, Vec::<String>::new());
    }
}

#[test]
fn every_mode_ends_in_its_documented_state() {
    for (mode, end) in [
        (DecommissionMode::SoftReset, NodeState::Active),
        (DecommissionMode::StorageCleanup, NodeState::Active),
        (DecommissionMode::Reimage, NodeState::Active),
        (DecommissionMode::FullDecommission, NodeState::Deleted),
        (DecommissionMode::Drain, NodeState::Retired),
        (DecommissionMode::Retire, NodeState::Retired),
    ] {
        simulate(async {
            let fixture = NodeFixture::serving().await;
            let (engine, node) = (&fixture.process.engine, fixture.node().await);
            let run = engine
                .nodes()
                .decommission(decommission_request(&node, mode, "out"))
                .await
                .expect("accepted")
                .run;
            let run = fixture.client.wait_until_ended(&run.spec.id).await;
            let workflow = run.progress.workflow;
            assert_eq!(workflow, Workflow::Completed, "{mode}: {:?}", run.progress.failure);
            assert_eq!(fixture.wait_for_state(end).await.id(), node.id());
            fixture.assert_no_violations();
        });
    }
}

#[test]
fn a_deleted_node_stays_deleted_and_its_machine_gets_a_new_node() {
    simulate(async {
        let fixture = NodeFixture::serving().await;
        let (engine, first) = (&fixture.process.engine, fixture.node().await);
        let started = engine
            .nodes()
            .decommission(decommission_request(&first, DecommissionMode::FullDecommission, "out"))
            .await;
        let started = started.expect("accepted");
        let again = engine
            .nodes()
            .decommission(decommission_request(&first, DecommissionMode::FullDecommission, "out"))
            .await;
        assert_eq!(again.expect("the same").run.spec.id, started.run.spec.id);
        let other = refusal(
            engine
                .nodes()
                .decommission(decommission_request(&first, DecommissionMode::Reimage, "out"))
                .await,
        );
        assert_eq!(other.reason.as_str(), "REQUEST_ID_REUSED");
        fixture.wait_for_state(NodeState::Deleted).await;
        for requested in [reactivate(), NodeRequest::Quarantine { why: "x".into() }] {
            let reported = refusal(
                engine.nodes().apply_request(&first.id(), requested, None, requester()).await,
            );
            assert_eq!(reported.reason.as_str(), "NODE_DELETED");
        }
        let reported = refusal(
            engine
                .nodes()
                .decommission(decommission_request(&first, DecommissionMode::SoftReset, "more"))
                .await,
        );
        assert_eq!(reported.reason.as_str(), "NODE_DELETED");
        let second = engine
            .nodes()
            .onboard(onboard_request(MACHINE, "again"))
            .await
            .expect("another node")
            .node;
        assert_ne!(second.id(), first.id());
        fixture.wait_for_state(NodeState::Active).await;
        let first = engine.nodes().get(&first.id()).await.expect("the record is kept").node;
        assert_eq!(first.state, NodeState::Deleted);
        fixture.assert_no_violations();
    });
}

#[test]
fn a_refusal_names_the_operation_that_holds_the_machine() {
    simulate(async {
        let fixture = NodeFixture::new().await;
        let engine = &fixture.process.engine;
        let first =
            engine.nodes().onboard(onboard_request(MACHINE, "one")).await.expect("accepted");
        let reported = refusal(engine.nodes().onboard(onboard_request(MACHINE, "two")).await);
        assert_eq!(reported.reason.as_str(), "NODE_EXISTS");
        let start = StartRequest {
            machine_id: MachineId::trusted(MACHINE),
            request_id: "reboot".into(),
            run_type: RunType::EnterMaintenance,
            plan_id: None,
            params: Params::new(),
            overrides: Overrides::default(),
            initiator: "somebody".into(),
        };
        let reported = refusal(engine.runs().start(start).await);
        assert_eq!(reported.reason.as_str(), "MACHINE_BUSY");
        assert!(reported.message.contains(first.run.spec.id.as_str()), "{reported}");
        let reported = refusal(
            engine
                .nodes()
                .decommission(decommission_request(&first.node, DecommissionMode::Drain, "drain"))
                .await,
        );
        assert_eq!(reported.reason.as_str(), "NODE_BUSY");
        let other = refusal(engine.nodes().onboard(onboard_request("m-9", "nine")).await);
        assert_eq!(other.reason.as_str(), "NOT_FOUND");
    });
}

#[test]
fn a_silent_node_goes_offline_until_its_next_heartbeat() {
    simulate(async {
        let fixture = NodeFixture::serving().await;
        fixture.power(MACHINE, DesiredPower::Off).await;
        let node = fixture.wait_for_state(NodeState::Offline).await;
        assert_eq!(node.moved_by, TransitionOwner::Heartbeat);
        assert!(node.reason.contains("no heartbeat"), "{}", node.reason);
        fixture.power(MACHINE, DesiredPower::On).await;
        let node = fixture.wait_for_state(NodeState::Active).await;
        assert_eq!(node.moved_by, TransitionOwner::Heartbeat);
        fixture.assert_no_violations();
    });
}

#[test]
fn drift_from_maas_quarantines_a_node_until_it_is_resolved() {
    simulate(async {
        let fixture = NodeFixture::serving().await;
        fixture.perform_in_maas(NodeStage::ReleaseMaasNode).await;
        let node = fixture.wait_for_state(NodeState::Quarantined).await;
        assert_eq!(
            (node.quarantine, node.moved_by),
            (Some(Quarantine::Drift), TransitionOwner::Reconciler)
        );
        assert!(node.reason.contains("Ready"), "{}", node.reason);
        assert_eq!(node.maas.as_ref().map(|observed| observed.state), Some(MaasState::Ready));
        let reported = refusal(
            fixture
                .process
                .engine
                .nodes()
                .apply_request(
                    &node.id(),
                    NodeRequest::Release { why: "x".into(), overrides: Overrides::default() },
                    None,
                    requester(),
                )
                .await,
        );
        assert_eq!(reported.reason.as_str(), "NODE_UNPROVEN");
        for stage in [
            NodeStage::DeployViaMaas,
            NodeStage::WaitForDeployed,
            NodeStage::WaitForAgentEnrollment,
        ] {
            fixture.perform_in_maas(stage).await;
        }
        let node = fixture.wait_for_state(NodeState::Active).await;
        assert_eq!(node.moved_by, TransitionOwner::Reconciler);
        fixture.assert_no_violations();
    });
}

#[test]
fn a_dry_run_shows_what_would_run_and_what_would_be_adopted() {
    simulate(async {
        let fixture = NodeFixture::new().await;
        let engine = &fixture.process.engine;
        let shown = engine
            .nodes()
            .preview_onboard(onboard_request(MACHINE, "dry"))
            .await
            .expect("a preview");
        assert_eq!(shown.stages.len(), 16);
        assert!(shown.stages.iter().all(|stage| stage.adopted.is_none()), "{:?}", shown.stages);
        assert!(fixture.env.records().await.nodes.is_empty(), "nothing was written");
        engine.nodes().onboard(onboard_request(MACHINE, "on")).await.expect("accepted");
        let node = fixture.wait_for_state(NodeState::Active).await;
        // After the release nothing is adopted: every stage is executed.
        let restarted = engine
            .nodes()
            .preview_decommission(decommission_request(&node, DecommissionMode::Reimage, "dry"))
            .await;
        let restarted = restarted.expect("a preview").stages;
        let after = restarted.iter().skip_while(|one| one.stage != "release_maas_node");
        assert!(after.clone().count() > 10);
        assert!(after.clone().all(|one| one.adopted.is_none()), "{restarted:?}");
        let shown = engine
            .nodes()
            .preview_decommission(decommission_request(
                &node,
                DecommissionMode::FullDecommission,
                "dry",
            ))
            .await;
        let shown = shown.expect("a preview");
        assert_eq!(shown.stages.len(), 13);
        assert_eq!(shown.upstream, Ok(MaasState::Deployed));
        assert_eq!(fixture.node().await.workflow, node.workflow, "nothing was written");
    });
}

#[test]
fn a_canceled_onboarding_is_undone_and_can_be_rerun() {
    simulate(async {
        let fixture = NodeFixture::new().await;
        let engine = &fixture.process.engine;
        let hang = crate::device_scenarios::fault("wait_for_deployed", sim::Action::Hang, 0);
        fixture.env.sim.add_fault(hang).expect("a rule");
        let run = engine
            .nodes()
            .onboard(onboard_request(MACHINE, "on"))
            .await
            .expect("accepted")
            .run
            .spec
            .id;
        let step = || async { engine.runs().get(&run).await.expect("a run").current_step() };
        while step().await != "wait_for_deployed" {
            sleep(Duration::from_secs(1)).await;
        }
        engine.runs().act(run.clone(), Action::Cancel, requester()).await.expect("canceled");
        let ended = fixture.client.wait_until_ended(&run).await;
        assert_eq!(ended.progress.workflow, Workflow::Cancelled);
        let found =
            fixture.process.engine.nodes().preview_onboard(onboard_request(MACHINE, "look")).await;
        assert_eq!(refusal(found).reason.as_str(), "NODE_EXISTS");
        assert_eq!(
            fixture.node().await.maas.map(|observed| observed.state),
            Some(MaasState::Absent)
        );
        fixture.env.sim.clear_faults(None).expect("cleared");
        let restarted = engine
            .runs()
            .restart(run, RestartMode::Rerun, "anew".into(), requester())
            .await
            .expect("restarted");
        assert_eq!(
            fixture.client.wait_until_ended(&restarted.run.spec.id).await.progress.workflow,
            Workflow::Completed
        );
        fixture.wait_for_state(NodeState::Active).await;
        fixture.assert_no_violations();
    });
}

/// Canceling a failed onboarding undoes its changes in MAAS, and is idempotent.
#[test]
fn a_failed_onboarding_can_be_canceled() {
    simulate(async {
        let fixture = NodeFixture::new().await;
        let engine = &fixture.process.engine;
        let run = fixture.onboarding_fails_at("wait_for_hardware_sync_healthy").await.spec.id;
        assert_eq!(
            fixture.node().await.maas.map(|observed| observed.state),
            Some(MaasState::Deployed)
        );
        for _ in 0..2 {
            engine.runs().act(run.clone(), Action::Cancel, requester()).await.expect("canceled");
            let ended = fixture.client.wait_until_ended(&run).await;
            assert_eq!(ended.progress.workflow, Workflow::Cancelled, "{:?}", ended.progress);
        }
        assert_eq!(
            fixture.node().await.maas.map(|observed| observed.state),
            Some(MaasState::Absent)
        );
        fixture.assert_no_violations();
    });
}

/// A MAAS that is gone for ever is skipped, and the machine becomes free.
#[test]
fn a_node_can_be_decommissioned_without_maas() {
    simulate(async {
        let fixture = NodeFixture::serving().await;
        let (engine, node) = (&fixture.process.engine, fixture.node().await);
        for stage in ["load_site_config", "release_maas_node", "remove_maas_record"] {
            let dead = crate::device_scenarios::fault(stage, sim::Action::Fail, 0);
            fixture.env.sim.add_fault(dead).expect("a rule");
        }
        let mut away = decommission_request(&node, DecommissionMode::FullDecommission, "away");
        away.overrides = Overrides::of(&[Gate::Maas], "the site was given up");
        let run = engine.nodes().decommission(away.clone()).await.expect("accepted").run;
        let again = engine.nodes().decommission(away.clone()).await.expect("the same request");
        assert_eq!((again.run.spec.id, again.new), (run.spec.id.clone(), false));
        away.overrides = Overrides::default();
        let reported = refusal(engine.nodes().decommission(away).await);
        assert_eq!(reported.reason.as_str(), "REQUEST_ID_REUSED");
        for id in [node.head.id.as_str(), run.spec.id.as_str()] {
            let events = engine.history(id, 0, 100).await.expect("a history");
            let note = "; gate maas overridden by somebody: the site was given up";
            assert!(events.iter().any(|event| event.message.ends_with(note)), "{events:?}");
        }
        assert!(run.spec.steps.iter().all(|step| !step.name.contains("maas")), "{:?}", run.spec);
        let ended = fixture.client.wait_until_ended(&run.spec.id).await;
        assert_eq!(ended.progress.workflow, Workflow::Completed, "{:?}", ended.progress.failure);
        fixture.wait_for_state(NodeState::Deleted).await;
        fixture.assert_no_violations();
    });
}

/// The node's newest operation differs on the second call, but the request id is the same.
#[test]
fn a_repeated_rerun_request_is_replayed() {
    simulate(async {
        let fixture = NodeFixture::new().await;
        let engine = &fixture.process.engine;
        let run = fixture.onboarding_fails_at("wait_for_ready").await.spec.id;
        let runs = engine.runs();
        let because = || Requester { reason: "MAAS is back".into(), ..requester() };
        let rerun = |id: RunId| runs.restart(id, RestartMode::Rerun, "anew".into(), because());
        let first = rerun(run.clone()).await.expect("restarted");
        let named = fixture.node().await.workflow.expect("an operation");
        assert_eq!(named, first.run.spec.id);
        for id in [named.as_str(), fixture.node().await.head.id.as_str()] {
            let events = engine.history(id, 0, 100).await.expect("a history");
            let note = format!("ONBOARD accepted, rerun of {run} by somebody: MAAS is back");
            assert!(events.iter().any(|event| event.message == note), "{events:?}");
        }
        for id in [run, named] {
            let again = rerun(id).await.expect("the same");
            assert_eq!((again.new, &again.run.spec.id), (false, &first.run.spec.id));
        }
    });
}

#[test]
fn a_failed_onboarding_can_be_restarted_clean() {
    simulate(async {
        let fixture = NodeFixture::new().await;
        let engine = &fixture.process.engine;
        let failed = fixture.onboarding_fails_at("wait_for_hardware_sync_healthy").await;
        let run = failed.spec.id.clone();
        assert_eq!(failed.progress.workflow, Workflow::FailedRetryable);
        assert_eq!(fixture.node().await.state, NodeState::Enrolling);
        fixture.env.sim.clear_faults(None).expect("cleared");
        let clean = engine
            .runs()
            .restart(run, RestartMode::RestartClean, "clean".into(), requester())
            .await;
        let clean = clean.expect("restarted").run.spec.id;
        let done = fixture.client.wait_until_ended(&clean).await;
        assert_eq!(done.progress.workflow, Workflow::Completed, "{:?}", done.progress.failure);
        let undone = done.progress.steps.iter().filter(|step| step.undo).count();
        assert_eq!(undone, 3, "deployment, commissioning and record were undone first");
        let acted = fixture.env.sim.effects(clean.as_str()).expect("the effect counts");
        let deployed = |one: &&sim::EffectCount| one.key.contains("/deploy_via_maas/");
        assert_eq!(acted.iter().filter(deployed).map(|one| one.applied).sum::<u32>(), 1);
        fixture.wait_for_state(NodeState::Active).await;
        fixture.assert_no_violations();
    });
}

/// Rule: a canceled onboarding leaves its node in quarantine, and a rerun may still end in service.
#[test]
fn a_canceled_onboarding_can_be_rerun() {
    simulate(async {
        let fixture = NodeFixture::new().await;
        let engine = &fixture.process.engine;
        let failed = fixture.onboarding_fails_at("wait_for_hardware_sync_healthy").await;
        let run = failed.spec.id.clone();
        engine.runs().act(run.clone(), Action::Cancel, requester()).await.expect("canceled");
        fixture.wait_for_state(NodeState::Quarantined).await;
        fixture.env.sim.clear_faults(None).expect("cleared");
        let runs = engine.runs();
        let rerun = runs.restart(run, RestartMode::Rerun, "again".into(), requester()).await;
        let rerun = rerun.expect("restarted").run.spec.id;
        let done = fixture.client.wait_until_ended(&rerun).await;
        assert_eq!(done.progress.workflow, Workflow::Completed, "{:?}", done.progress.failure);
        fixture.wait_for_state(NodeState::Active).await;
        fixture.assert_no_violations();
    });
}

/// The agent service of a fixture.
pub fn agents(fixture: &NodeFixture) -> Agents {
    let env = &fixture.env;
    let clock = env.clock();
    let secrets = SecretStore::new(env.store.clone(), Cipher::new(&[7; 32]), clock);
    Agents::new(fixture.process.engine.clone(), secrets)
}

pub fn enrolling_agent(session: &str) -> EnrollingAgent {
    EnrollingAgent {
        session: session.into(),
        hostname: "gpu-1".into(),
        ..EnrollingAgent::default()
    }
}

pub const DAY: Duration = Duration::from_secs(24 * 3_600);

#[test]
fn a_bootstrapped_node_enrolls_once_and_is_drained_by_its_agent() {
    simulate(async {
        let fixture = NodeFixture::new().await;
        let (engine, agents) = (&fixture.process.engine, agents(&fixture));
        let machine = MachineId::trusted(MACHINE);
        let bundle = agents.bootstrap(machine, DAY, requester()).await.expect("a bundle");
        let token = bundle.token.expose_secret().to_string();
        assert_eq!(fixture.node().await.state, NodeState::BootstrapIssued);
        let wrong = agents.enroll("no", enrolling_agent("s1")).await.expect("an answer");
        assert_eq!(wrong, Err(EnrollmentRefusal::TokenUnknown));
        let id = agents
            .enroll(&token, enrolling_agent("s1"))
            .await
            .expect("an answer")
            .expect("enrolled");
        // The answer may have been lost, so the same session may retry; another one is denied.
        assert_eq!(
            agents.enroll(&token, enrolling_agent("s1")).await.expect("an answer"),
            Ok(id.clone())
        );
        let other = agents.enroll(&token, enrolling_agent("s2")).await.expect("an answer");
        assert_eq!(other, Err(EnrollmentRefusal::TokenUsed));
        agents.heartbeat("s1", String::new()).await.expect("an answer").expect("known");
        fixture.wait_for_state(NodeState::Active).await;
        // The machine of an active node is not shown as a new one.
        let enrolled = fixture.env.machine(MACHINE).await;
        assert_eq!(enrolled.effective_state(), EffectiveState::Idle, "{enrolled:?}");

        let node = fixture.node().await;
        engine
            .nodes()
            .decommission(decommission_request(&node, DecommissionMode::Drain, "drain"))
            .await
            .expect("accepted");
        fixture.wait_for_state(NodeState::Draining).await;
        let id = node.id();
        let resume =
            || async { engine.nodes().resume(&id, requester()).await.expect("resumed").task };
        assert_eq!(resume().await, ResumeResult::Fresh);
        let taken = agents.take("s1", Duration::from_secs(1)).await.expect("an answer");
        let task = taken.expect("known").expect("a task").task;
        assert_eq!(resume().await, ResumeResult::Live);
        sleep(Duration::from_secs(61)).await;
        // The lease has expired, and no component has noticed yet.
        assert_eq!(resume().await, ResumeResult::Requeued);
        assert_eq!(resume().await, ResumeResult::Fresh);
        let again = agents.take("s1", Duration::from_secs(1)).await.expect("an answer");
        let again = again.expect("known").expect("the same").task;
        assert_eq!((again.key.clone(), again.dispatched), (task.key, 2));
        let report = TaskReport {
            key: again.key.as_str().into(),
            ok: true,
            message: "nothing is left".into(),
            log: "draining\n".into(),
        };
        for _ in 0..2 {
            agents.report("s1", report.clone()).await.expect("an answer").expect("accepted");
        }
        let node = fixture.wait_for_state(NodeState::Retired).await;
        assert_eq!(node.moved_by, TransitionOwner::Decommission);
        engine
            .nodes()
            .apply_request(&node.id(), reactivate(), None, requester())
            .await
            .expect("reactivated");
        agents.heartbeat("s1", String::new()).await.expect("an answer").expect("known");
        fixture.wait_for_state(NodeState::Active).await;
        fixture.assert_no_violations();
    });
}

#[test]
fn an_unknown_token_or_session_writes_nothing() {
    simulate(async {
        let fixture = NodeFixture::new().await;
        let agents = agents(&fixture);
        let injector = &fixture.process.injector;
        injector.arm(None);
        let enrolled = agents.enroll("no", enrolling_agent("s1")).await.expect("an answer");
        assert_eq!(enrolled, Err(EnrollmentRefusal::TokenUnknown));
        let unknown = Some(EnrollmentRefusal::SessionUnknown);
        let beat = agents.heartbeat("no", String::new()).await.expect("an answer");
        assert_eq!(beat.err(), unknown);
        let taken = agents.take("no", Duration::from_secs(60)).await.expect("an answer");
        assert_eq!(taken.err(), unknown);
        let renewed = agents.renew("no", "key", String::new()).await.expect("an answer");
        assert_eq!(renewed.err(), unknown);
        let report =
            TaskReport { key: "key".into(), ok: true, message: String::new(), log: String::new() };
        assert_eq!(agents.report("no", report).await.expect("an answer").err(), unknown);
        let passed = injector.passed();
        let writes = ["enroll", "record_heartbeat", "take_task", "renew_task", "report_task"];
        let of_agents = passed.iter().find(|point| match point {
            CrashPoint::Commit(_, name) => writes.contains(name),
            CrashPoint::Effect(..) => false,
        });
        assert_eq!(of_agents, None);
    });
}

#[test]
fn a_silent_agent_fails_the_drain() {
    simulate(async {
        let fixture = NodeFixture::new().await;
        let (engine, agents) = (&fixture.process.engine, agents(&fixture));
        let machine = MachineId::trusted(MACHINE);
        let bundle = agents.bootstrap(machine, DAY, requester()).await.expect("a bundle");
        let token = bundle.token.expose_secret().to_string();
        agents.enroll(&token, enrolling_agent("s1")).await.expect("an answer").expect("enrolled");
        agents.heartbeat("s1", String::new()).await.expect("an answer").expect("known");
        let node = fixture.wait_for_state(NodeState::Active).await;
        let started = engine
            .nodes()
            .decommission(decommission_request(&node, DecommissionMode::Drain, "drain"))
            .await
            .expect("accepted");
        let run = fixture.client.wait_until_ended(&started.run.spec.id).await;
        assert_eq!(run.progress.workflow, Workflow::FailedRetryable);
        let failure = run.progress.failure.expect("a failure");
        assert_eq!(failure.fault.code, FaultCode::AgentSilent, "{failure:?}");
        assert_eq!(fixture.node().await.state, NodeState::Offline);
        let resumed = engine.nodes().resume(&node.id(), requester()).await.expect("resumed");
        assert!(resumed.reopened.is_some());
        fixture.wait_for_state(NodeState::Draining).await;
        fixture.assert_no_violations();
    });
}
