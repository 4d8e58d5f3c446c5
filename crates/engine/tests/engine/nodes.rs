//! Nodes in simulated time: onboarding, decommission, heartbeats, and drift from MAAS.

use crate::clients::Door;
use crate::node_scenarios::{self, MACHINE, NodeAsk};
use crate::rack_world::{Stand, device};
use crate::world::{Process, World, simulate};
use engine::admission::Start;
use engine::node::{Agents, Decommission, NodeView, Onboard, Report};
use engine::secret::{Cipher, SecretStore};
use model::effect::{Effect, Key, Order, PowerOffPolicy, PowerTo, Verb};
use model::fault::Code;
use model::id::{MachineId, NodeId, RunId, SiteId};
use model::node::door::Ask;
use model::node::enroll::{Applicant, Denied};
use model::node::task::Resumed;
use model::node::{Mode, Node, NodeState, Owner, Quarantine, Stage, Upstream};
use model::plan::{Params, RunType};
use model::refusal::Refusal;
use model::run::act::{Action, RestartMode, Who};
use model::run::{Run, Workflow};
use model::site::Site;
use model::target::TargetId;
use providers::{Journal, Provider, Target, sim};
use secrecy::ExposeSecret;
use std::time::Duration;
use store::{Result, StoreError};
use tokio::time::sleep;

/// A machine at a site, a process and a client.
pub struct Scene {
    pub world: World,
    pub process: Process,
    pub door: Door,
}

impl Scene {
    pub async fn new() -> Self {
        let scene = Self::unwatched().await;
        scene.world.nodes_are_watched();
        scene
    }

    /// As `new`, without the check of nodes after every commit.
    pub async fn unwatched() -> Self {
        let world = World::new(1).await;
        let process = world.boot("one").await;
        let door = Door::to(&process.engine);
        let stand = Stand { target: device(MACHINE), rack: None, now: world.now() };
        stand.write(&world.store).await;
        node_scenarios::make_site(&door, node_scenarios::SITE).await;
        Self { world, process, door }
    }

    pub async fn ask(&self, ask: NodeAsk, name: &str) {
        node_scenarios::ask(&self.door, &self.world, ask, name).await;
    }

    pub async fn node(&self) -> Node {
        self.world.records().await.nodes.into_iter().next_back().expect("a node")
    }

    pub async fn view(&self) -> NodeView {
        self.process.engine.nodes().get(&self.node().await.id()).await.expect("its view")
    }

    /// Waits until the newest node is in this state.
    pub async fn until(&self, state: NodeState) -> Node {
        for _ in 0..3_600 {
            let node = self.node().await;
            if node.state == state {
                return node;
            }
            sleep(Duration::from_secs(1)).await;
        }
        panic!("the node never became {state}: {:?}", self.view().await.told)
    }
}

pub fn reactivate() -> Ask {
    Ask::Reactivate { why: String::new(), unproven: false }
}

#[test]
fn a_node_is_onboarded_and_serves() {
    simulate(async {
        let scene = Scene::new().await;
        scene.ask(NodeAsk::Onboard, "onboard").await;
        scene.until(NodeState::Active).await;
        let view = scene.view().await;
        let run = view.run.expect("its onboarding");
        assert_eq!(run.progress.workflow, Workflow::Completed);
        assert_eq!(view.node.system_id, "sim-m-1");
    });
}

pub fn refusal<T: std::fmt::Debug>(answer: Result<T>) -> Refusal {
    match answer {
        Err(StoreError::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}

pub fn who() -> Who {
    Who { by: "somebody".into(), reason: String::new() }
}

pub fn out(node: &Node, mode: Mode, request_id: &str) -> Decommission {
    Decommission {
        node: node.id(),
        mode,
        without_agent: String::new(),
        without_maas: String::new(),
        request_id: request_id.into(),
        by: "somebody".into(),
    }
}

pub fn onboard(machine: &str, request_id: &str) -> Onboard {
    Onboard {
        machine: MachineId::trusted(machine),
        site: SiteId::trusted(node_scenarios::SITE),
        request_id: request_id.into(),
        by: "somebody".into(),
    }
}

impl Scene {
    pub async fn serving() -> Self {
        let scene = Self::new().await;
        scene.ask(NodeAsk::Onboard, "onboard").await;
        scene.until(NodeState::Active).await;
        scene
    }

    /// Starts an onboarding that fails at a stage until the faults are cleared.
    async fn onboarding_fails_at(&self, stage: &str) -> Run {
        let fault = crate::device_scenarios::fault(stage, sim::Action::Fail, 0);
        self.world.sim.add_fault(fault).expect("a rule");
        let started =
            self.process.engine.nodes().onboard(onboard(MACHINE, "on")).await.expect("accepted");
        self.door.ended(&started.run.spec.id).await
    }

    /// Changes the hardware of a machine without Farrier.
    async fn by_hand(&self, machine: &str, effect: Effect) {
        let target = Target {
            id: TargetId::from(&MachineId::trusted(machine)),
            spec: model::machine::MachineSpec::default(),
        };
        let key = Key::new(
            &RunId::trusted("op-byhand"),
            effect.word(),
            self.world.now().as_micros() as u32,
        );
        let order = Order { key, verb: Verb::Perform, effect, logged: 0 };
        let (journal, _lines) = Journal::new();
        self.world.sim.ask(&target, &order, &journal).await.expect("done by hand");
    }

    pub async fn power(&self, machine: &str, to: PowerTo) {
        self.by_hand(machine, Effect::Power { to, power_off: PowerOffPolicy::CONFIGURED }).await;
    }

    pub async fn in_maas(&self, stage: Stage) {
        self.by_maas(stage, &self.node().await.id()).await;
    }

    /// As `in_maas`, for a given node.
    pub async fn by_maas(&self, stage: Stage, node: &NodeId) {
        let node = node.clone();
        let (site, by) = (Some(SiteId::trusted(node_scenarios::SITE)), "sim".into());
        self.by_hand(MACHINE, Effect::Stage { stage, node, site, by, undo: false }).await;
    }

    pub async fn site(&self) -> Site {
        self.process
            .engine
            .sites()
            .get(&SiteId::trusted(node_scenarios::SITE))
            .await
            .expect("the site")
    }

    pub fn witnessed_nothing(&self) {
        let witnessed = self.world.witnessed.lock().expect("the lock is not poisoned").clone();
        assert_eq!(witnessed, Vec::<String>::new());
    }
}

#[test]
fn every_mode_ends_where_it_should() {
    for (mode, end) in [
        (Mode::SoftReset, NodeState::Active),
        (Mode::StorageCleanup, NodeState::Active),
        (Mode::Reimage, NodeState::Active),
        (Mode::FullDecommission, NodeState::Deleted),
        (Mode::Drain, NodeState::Retired),
        (Mode::Retire, NodeState::Retired),
    ] {
        simulate(async {
            let scene = Scene::serving().await;
            let (engine, node) = (&scene.process.engine, scene.node().await);
            let run =
                engine.nodes().decommission(out(&node, mode, "out")).await.expect("accepted").run;
            let run = scene.door.ended(&run.spec.id).await;
            let workflow = run.progress.workflow;
            assert_eq!(workflow, Workflow::Completed, "{mode}: {:?}", run.progress.failure);
            assert_eq!(scene.until(end).await.id(), node.id());
            scene.witnessed_nothing();
        });
    }
}

#[test]
fn a_deleted_node_never_comes_back_and_its_machine_becomes_another() {
    simulate(async {
        let scene = Scene::serving().await;
        let (engine, first) = (&scene.process.engine, scene.node().await);
        let started = engine.nodes().decommission(out(&first, Mode::FullDecommission, "out")).await;
        let started = started.expect("accepted");
        let again = engine.nodes().decommission(out(&first, Mode::FullDecommission, "out")).await;
        assert_eq!(again.expect("the same").run.spec.id, started.run.spec.id);
        let other = refusal(engine.nodes().decommission(out(&first, Mode::Reimage, "out")).await);
        assert_eq!(other.reason, "REQUEST_ID_REUSED");
        scene.until(NodeState::Deleted).await;
        for asked in [reactivate(), Ask::Quarantine { why: "x".into() }] {
            let told = refusal(engine.nodes().ask(&first.id(), asked, who()).await);
            assert_eq!(told.reason, "NODE_DELETED");
        }
        let told = refusal(engine.nodes().decommission(out(&first, Mode::SoftReset, "more")).await);
        assert_eq!(told.reason, "NODE_DELETED");
        let second =
            engine.nodes().onboard(onboard(MACHINE, "again")).await.expect("another node").node;
        assert_ne!(second.id(), first.id());
        scene.until(NodeState::Active).await;
        let first = engine.nodes().get(&first.id()).await.expect("the record is kept").node;
        assert_eq!(first.state, NodeState::Deleted);
        scene.witnessed_nothing();
    });
}

#[test]
fn whoever_holds_the_machine_is_named() {
    simulate(async {
        let scene = Scene::new().await;
        let engine = &scene.process.engine;
        let first = engine.nodes().onboard(onboard(MACHINE, "one")).await.expect("accepted");
        let told = refusal(engine.nodes().onboard(onboard(MACHINE, "two")).await);
        assert_eq!(told.reason, "NODE_EXISTS");
        let start = Start {
            machine_id: MachineId::trusted(MACHINE),
            request_id: "reboot".into(),
            run_type: RunType::EnterMaintenance,
            plan_id: None,
            params: Params::new(),
            initiator: "somebody".into(),
        };
        let told = refusal(engine.runs().start(start).await);
        assert_eq!(told.reason, "MACHINE_BUSY");
        assert!(told.said.contains(first.run.spec.id.as_str()), "{told}");
        let told =
            refusal(engine.nodes().decommission(out(&first.node, Mode::Drain, "drain")).await);
        assert_eq!(told.reason, "NODE_BUSY");
        let other = refusal(engine.nodes().onboard(onboard("m-9", "nine")).await);
        assert_eq!(other.reason, "NOT_FOUND");
    });
}

#[test]
fn who_falls_silent_is_offline_and_who_is_heard_is_active_again() {
    simulate(async {
        let scene = Scene::serving().await;
        scene.power(MACHINE, PowerTo::Off).await;
        let node = scene.until(NodeState::Offline).await;
        assert_eq!(node.moved_by, Owner::Heartbeat);
        assert!(node.reason.contains("not heard"), "{}", node.reason);
        scene.power(MACHINE, PowerTo::On).await;
        let node = scene.until(NodeState::Active).await;
        assert_eq!(node.moved_by, Owner::Heartbeat);
        scene.witnessed_nothing();
    });
}

#[test]
fn what_maas_has_otherwise_is_quarantined_and_healed_when_it_is_well_again() {
    simulate(async {
        let scene = Scene::serving().await;
        scene.in_maas(Stage::ReleaseMaasNode).await;
        let node = scene.until(NodeState::Quarantined).await;
        assert_eq!((node.quarantine, node.moved_by), (Some(Quarantine::Drift), Owner::Reconciler));
        assert!(node.reason.contains("Ready"), "{}", node.reason);
        assert_eq!(node.upstream.as_ref().map(|seen| seen.state), Some(Upstream::Ready));
        let told = refusal(
            scene
                .process
                .engine
                .nodes()
                .ask(&node.id(), Ask::Release { why: "x".into(), unproven: false }, who())
                .await,
        );
        assert_eq!(told.reason, "NODE_UNPROVEN");
        for stage in [Stage::DeployViaMaas, Stage::WaitForDeployed, Stage::WaitForAgentEnrollment] {
            scene.in_maas(stage).await;
        }
        let node = scene.until(NodeState::Active).await;
        assert_eq!(node.moved_by, Owner::Reconciler);
        scene.witnessed_nothing();
    });
}

#[test]
fn a_dry_run_shows_what_would_run_and_what_would_be_adopted() {
    simulate(async {
        let scene = Scene::new().await;
        let engine = &scene.process.engine;
        let shown =
            engine.nodes().preview_onboard(onboard(MACHINE, "dry")).await.expect("a preview");
        assert_eq!(shown.stages.len(), 16);
        assert!(shown.stages.iter().all(|stage| stage.adopted.is_none()), "{:?}", shown.stages);
        assert!(scene.world.records().await.nodes.is_empty(), "nothing was written");
        engine.nodes().onboard(onboard(MACHINE, "on")).await.expect("accepted");
        let node = scene.until(NodeState::Active).await;
        // After the release nothing is adopted: every stage is executed.
        let anew = engine.nodes().preview_decommission(out(&node, Mode::Reimage, "dry")).await;
        let anew = anew.expect("a preview").stages;
        let after = anew.iter().skip_while(|one| one.stage != "release_maas_node");
        assert!(after.clone().count() > 10);
        assert!(after.clone().all(|one| one.adopted.is_none()), "{anew:?}");
        let shown =
            engine.nodes().preview_decommission(out(&node, Mode::FullDecommission, "dry")).await;
        let shown = shown.expect("a preview");
        assert_eq!(shown.stages.len(), 13);
        assert_eq!(shown.upstream, Ok(Upstream::Deployed));
        assert_eq!(scene.node().await.workflow, node.workflow, "nothing was written");
    });
}

#[test]
fn a_canceled_onboarding_is_taken_back_and_can_be_made_anew() {
    simulate(async {
        let scene = Scene::new().await;
        let engine = &scene.process.engine;
        let hang = crate::device_scenarios::fault("wait_for_deployed", sim::Action::Hang, 0);
        scene.world.sim.add_fault(hang).expect("a rule");
        let run =
            engine.nodes().onboard(onboard(MACHINE, "on")).await.expect("accepted").run.spec.id;
        let step = || async { engine.runs().get(&run).await.expect("a run").current_step() };
        while step().await != "wait_for_deployed" {
            sleep(Duration::from_secs(1)).await;
        }
        engine.runs().act(run.clone(), Action::Cancel, who()).await.expect("canceled");
        let ended = scene.door.ended(&run).await;
        assert_eq!(ended.progress.workflow, Workflow::Cancelled);
        let found = scene.process.engine.nodes().preview_onboard(onboard(MACHINE, "look")).await;
        assert_eq!(refusal(found).reason, "NODE_EXISTS");
        assert_eq!(scene.node().await.upstream.map(|seen| seen.state), Some(Upstream::Absent));
        scene.world.sim.clear_faults(None).expect("cleared");
        let anew = engine
            .runs()
            .restart(run, RestartMode::Rerun, "anew".into(), who())
            .await
            .expect("restarted");
        assert_eq!(
            scene.door.ended(&anew.run.spec.id).await.progress.workflow,
            Workflow::Completed
        );
        scene.until(NodeState::Active).await;
        scene.witnessed_nothing();
    });
}

/// Canceling a failed onboarding undoes its changes in MAAS, and is idempotent.
#[test]
fn a_failed_onboarding_is_given_up() {
    simulate(async {
        let scene = Scene::new().await;
        let engine = &scene.process.engine;
        let run = scene.onboarding_fails_at("wait_for_hardware_sync_healthy").await.spec.id;
        assert_eq!(scene.node().await.upstream.map(|seen| seen.state), Some(Upstream::Deployed));
        for _ in 0..2 {
            engine.runs().act(run.clone(), Action::Cancel, who()).await.expect("canceled");
            let ended = scene.door.ended(&run).await;
            assert_eq!(ended.progress.workflow, Workflow::Cancelled, "{:?}", ended.progress);
        }
        assert_eq!(scene.node().await.upstream.map(|seen| seen.state), Some(Upstream::Absent));
        scene.witnessed_nothing();
    });
}

/// A MAAS that is gone for ever is skipped, and the machine becomes free.
#[test]
fn a_node_whose_maas_is_gone_is_taken_away_without_it() {
    simulate(async {
        let scene = Scene::serving().await;
        let (engine, node) = (&scene.process.engine, scene.node().await);
        for stage in ["load_site_config", "release_maas_node", "remove_maas_record"] {
            let dead = crate::device_scenarios::fault(stage, sim::Action::Fail, 0);
            scene.world.sim.add_fault(dead).expect("a rule");
        }
        let mut away = out(&node, Mode::SoftReset, "away");
        away.without_maas = "the site was given up".into();
        let told = refusal(engine.nodes().decommission(away.clone()).await);
        assert_eq!(told.field.as_deref(), Some("without_maas"));
        away.mode = Mode::FullDecommission;
        let run = engine.nodes().decommission(away).await.expect("accepted").run;
        assert!(run.spec.steps.iter().all(|step| !step.name.contains("maas")), "{:?}", run.spec);
        let ended = scene.door.ended(&run.spec.id).await;
        assert_eq!(ended.progress.workflow, Workflow::Completed, "{:?}", ended.progress.failure);
        scene.until(NodeState::Deleted).await;
        scene.witnessed_nothing();
    });
}

/// The node's newest operation differs on the second call, but the request id is the same.
#[test]
fn a_rerun_by_the_name_of_its_node_is_replayed() {
    simulate(async {
        let scene = Scene::new().await;
        let engine = &scene.process.engine;
        let run = scene.onboarding_fails_at("wait_for_ready").await.spec.id;
        let runs = engine.runs();
        let rerun = |id: RunId| runs.restart(id, RestartMode::Rerun, "anew".into(), who());
        let first = rerun(run.clone()).await.expect("restarted");
        let named = scene.node().await.workflow.expect("an operation");
        assert_eq!(named, first.run.spec.id);
        for id in [run, named] {
            let again = rerun(id).await.expect("the same");
            assert_eq!((again.new, &again.run.spec.id), (false, &first.run.spec.id));
        }
    });
}

#[test]
fn what_failed_can_be_taken_back_and_started_over() {
    simulate(async {
        let scene = Scene::new().await;
        let engine = &scene.process.engine;
        let failed = scene.onboarding_fails_at("wait_for_hardware_sync_healthy").await;
        let run = failed.spec.id.clone();
        assert_eq!(failed.progress.workflow, Workflow::FailedRetryable);
        assert_eq!(scene.node().await.state, NodeState::Enrolling);
        scene.world.sim.clear_faults(None).expect("cleared");
        let clean =
            engine.runs().restart(run, RestartMode::RestartClean, "clean".into(), who()).await;
        let clean = clean.expect("restarted").run.spec.id;
        let done = scene.door.ended(&clean).await;
        assert_eq!(done.progress.workflow, Workflow::Completed, "{:?}", done.progress.failure);
        let undone = done.progress.steps.iter().filter(|step| step.undo).count();
        assert_eq!(undone, 3, "deployment, commissioning and record were undone first");
        let acted = scene.world.sim.effects(clean.as_str()).expect("the effect counts");
        let deployed = |one: &&sim::EffectCount| one.key.contains("/deploy_via_maas/");
        assert_eq!(acted.iter().filter(deployed).map(|one| one.applied).sum::<u32>(), 1);
        scene.until(NodeState::Active).await;
        scene.witnessed_nothing();
    });
}

/// The agent service of a fixture.
pub fn agents(scene: &Scene) -> Agents {
    let world = &scene.world;
    let clock = world.clock();
    let secrets = SecretStore::new(world.store.clone(), Cipher::new(&[7; 32]), clock);
    Agents::new(scene.process.engine.clone(), secrets)
}

pub fn applicant(session: &str) -> Applicant {
    Applicant { session: session.into(), hostname: "gpu-1".into(), ..Applicant::default() }
}

pub const DAY: Duration = Duration::from_secs(24 * 3_600);

#[test]
fn a_node_by_hand_enrolls_once_and_is_drained_by_its_agent() {
    simulate(async {
        let scene = Scene::new().await;
        let (engine, agents) = (&scene.process.engine, agents(&scene));
        let machine = MachineId::trusted(MACHINE);
        let bundle = agents.bootstrap(machine, DAY, who()).await.expect("a bundle");
        let token = bundle.token.expose_secret().to_string();
        assert_eq!(scene.node().await.state, NodeState::BootstrapIssued);
        let wrong = agents.enroll("no", applicant("s1")).await.expect("an answer");
        assert_eq!(wrong, Err(Denied::TokenUnknown));
        let id =
            agents.enroll(&token, applicant("s1")).await.expect("an answer").expect("enrolled");
        // The answer may have been lost, so the same session may retry; another one is denied.
        assert_eq!(
            agents.enroll(&token, applicant("s1")).await.expect("an answer"),
            Ok(id.clone())
        );
        let other = agents.enroll(&token, applicant("s2")).await.expect("an answer");
        assert_eq!(other, Err(Denied::TokenUsed));
        agents.heartbeat("s1", String::new()).await.expect("an answer").expect("known");
        scene.until(NodeState::Active).await;

        let node = scene.node().await;
        engine.nodes().decommission(out(&node, Mode::Drain, "drain")).await.expect("accepted");
        scene.until(NodeState::Draining).await;
        let id = node.id();
        let resume = || async { engine.nodes().resume(&id, who()).await.expect("resumed").task };
        assert_eq!(resume().await, Resumed::Fresh);
        let taken = agents.take("s1", Duration::from_secs(1)).await.expect("an answer");
        let task = taken.expect("known").expect("a task").task;
        assert_eq!(resume().await, Resumed::Live);
        sleep(Duration::from_secs(61)).await;
        // The lease has expired, and no component has noticed yet.
        assert_eq!(resume().await, Resumed::Requeued);
        assert_eq!(resume().await, Resumed::Fresh);
        let again = agents.take("s1", Duration::from_secs(1)).await.expect("an answer");
        let again = again.expect("known").expect("the same").task;
        assert_eq!((again.key.clone(), again.dispatched), (task.key, 2));
        let report = Report {
            key: again.key.as_str().into(),
            ok: true,
            said: "nothing is left".into(),
            log: "draining\n".into(),
        };
        for _ in 0..2 {
            agents.report("s1", report.clone()).await.expect("an answer").expect("accepted");
        }
        let node = scene.until(NodeState::Retired).await;
        assert_eq!(node.moved_by, Owner::Decommission);
        engine.nodes().ask(&node.id(), reactivate(), who()).await.expect("reactivated");
        agents.heartbeat("s1", String::new()).await.expect("an answer").expect("known");
        scene.until(NodeState::Active).await;
        scene.witnessed_nothing();
    });
}

#[test]
fn an_agent_that_never_comes_leaves_no_node_on_its_way() {
    simulate(async {
        let scene = Scene::new().await;
        let (engine, agents) = (&scene.process.engine, agents(&scene));
        let machine = MachineId::trusted(MACHINE);
        let bundle = agents.bootstrap(machine, DAY, who()).await.expect("a bundle");
        let token = bundle.token.expose_secret().to_string();
        agents.enroll(&token, applicant("s1")).await.expect("an answer").expect("enrolled");
        agents.heartbeat("s1", String::new()).await.expect("an answer").expect("known");
        let node = scene.until(NodeState::Active).await;
        let started =
            engine.nodes().decommission(out(&node, Mode::Drain, "drain")).await.expect("accepted");
        let run = scene.door.ended(&started.run.spec.id).await;
        assert_eq!(run.progress.workflow, Workflow::FailedRetryable);
        let failure = run.progress.failure.expect("a failure");
        assert_eq!(failure.fault.code, Code::AgentSilent, "{failure:?}");
        assert_eq!(scene.node().await.state, NodeState::Offline);
        let resumed = engine.nodes().resume(&node.id(), who()).await.expect("resumed");
        assert!(resumed.reopened);
        scene.until(NodeState::Draining).await;
        scene.witnessed_nothing();
    });
}
