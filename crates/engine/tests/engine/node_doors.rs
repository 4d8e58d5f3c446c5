//! Requests to nodes and the gates that refuse them: in service, revoked, not cleaned.

use crate::node_scenarios::MACHINE;
use crate::nodes::{DAY, Scene, agents, applicant, out, reactivate, refusal, who};
use crate::world::simulate;
use engine::admission::Start;
use engine::node::Session;
use model::effect::Effect;
use model::fault::Code;
use model::id::{MachineId, RunId};
use model::machine::Machine;
use model::node::door::Ask;
use model::node::enroll::Denied;
use model::node::{Mode, Node, NodeState, Quarantine, Stage};
use model::plan::{Params, RunType};
use model::run::Workflow;
use model::run::act::{Action, RestartMode, Who};
use providers::sim;
use secrecy::ExposeSecret;
use std::time::Duration;
use store::{Cause, NewEvent, Result, Tx};
use tokio::time::sleep;

fn start(run_type: RunType, request_id: &str) -> Start {
    Start {
        machine_id: MachineId::trusted(MACHINE),
        request_id: request_id.into(),
        run_type,
        plan_id: None,
        params: Params::new(),
        initiator: "somebody".into(),
    }
}

#[test]
fn what_would_wipe_a_serving_node_is_refused_by_the_machine() {
    simulate(async {
        let scene = Scene::serving().await;
        let (engine, node) = (&scene.process.engine, scene.node().await);
        let entered =
            engine.runs().start(start(RunType::EnterMaintenance, "in")).await.expect("accepted");
        scene.door.ended(&entered.run.spec.id).await;
        let told = refusal(engine.runs().start(start(RunType::Reimage, "wipe")).await);
        assert_eq!(told.reason, "NODE_IN_SERVICE");
        assert!(told.said.contains(node.id().as_str()), "{told}");
        let drained =
            engine.nodes().decommission(out(&node, Mode::Drain, "drain")).await.expect("accepted");
        scene.door.ended(&drained.run.spec.id).await;
        scene.until(NodeState::Retired).await;
        engine.runs().start(start(RunType::Reimage, "wipe")).await.expect("accepted");
        // While the machine is being reimaged the node cannot be reactivated.
        let told = refusal(engine.nodes().ask(&node.id(), reactivate(), who()).await);
        assert_eq!(told.reason, "MACHINE_BUSY");
    });
}

impl Scene {
    /// With a node that serves in a Kubernetes cluster.
    async fn in_cluster() -> (Self, Node) {
        let scene = Self::new().await;
        scene.amend(|machine| machine.spec.target_cluster_ref = "c".into()).await;
        scene.ask(crate::node_scenarios::NodeAsk::Onboard, "onboard").await;
        let node = scene.until(NodeState::Active).await;
        (scene, node)
    }

    async fn amend(&self, how: fn(&mut Machine)) {
        let amended = self.world.store.write("amend", how, |how, tx| Box::pin(amend(tx, *how)));
        amended.await.expect("amended");
    }
}

fn release() -> Ask {
    Ask::Release { why: "all the same".into(), unproven: true }
}

/// Runs may work on the machine of a node out of service. Until they end no request reactivates it.
#[test]
fn what_is_worked_on_is_not_released() {
    simulate(async {
        let scene = Scene::serving().await;
        let (engine, node) = (&scene.process.engine, scene.node().await);
        let entered =
            engine.runs().start(start(RunType::EnterMaintenance, "in")).await.expect("accepted");
        scene.door.ended(&entered.run.spec.id).await;
        let ask = Ask::Quarantine { why: "it smells".into() };
        engine.nodes().ask(&node.id(), ask, who()).await.expect("quarantined");
        let wiped = engine.runs().start(start(RunType::Reimage, "wipe")).await.expect("accepted");
        let told = refusal(engine.nodes().ask(&node.id(), release(), who()).await);
        assert_eq!(told.reason, "MACHINE_BUSY");
        assert!(told.said.contains("release must wait"), "{told}");
        scene.door.ended(&wiped.run.spec.id).await;
        let back = engine.nodes().ask(&node.id(), release(), who()).await.expect("released");
        assert_eq!(back.state, NodeState::Active);
        scene.witnessed_nothing();
    });
}

#[test]
fn what_is_worked_on_is_not_healed() {
    simulate(async {
        let scene = Scene::serving().await;
        scene.in_maas(Stage::ReleaseMaasNode).await;
        scene.until(NodeState::Quarantined).await;
        scene.amend(|machine| machine.active_run = Some(RunId::trusted("op-other"))).await;
        for stage in [Stage::DeployViaMaas, Stage::WaitForDeployed, Stage::WaitForAgentEnrollment] {
            scene.in_maas(stage).await;
        }
        sleep(Duration::from_secs(600)).await;
        assert_eq!(scene.node().await.state, NodeState::Quarantined);
        scene.amend(|machine| machine.active_run = None).await;
        scene.until(NodeState::Active).await;
        scene.witnessed_nothing();
    });
}

/// Closing an old failed run does not revoke the session of a node that was reinstalled since.
#[test]
fn an_old_run_revokes_nothing() {
    simulate(async {
        let scene = Scene::serving().await;
        let (engine, agents, node) = (&scene.process.engine, agents(&scene), scene.node().await);
        let stuck = crate::device_scenarios::fault("configure_storage", sim::Action::Fail, 0);
        scene.world.sim.add_fault(stuck).expect("a rule");
        let first =
            engine.nodes().decommission(out(&node, Mode::Reimage, "anew")).await.expect("accepted");
        let first = scene.door.ended(&first.run.spec.id).await;
        assert_eq!(first.progress.workflow, Workflow::FailedRetryable);
        scene.world.sim.clear_faults(None).expect("cleared");
        let id = first.spec.id.clone();
        let second =
            engine.runs().restart(id.clone(), RestartMode::Rerun, "again".into(), who()).await;
        scene.door.ended(&second.expect("restarted").run.spec.id).await;
        scene.until(NodeState::Active).await;
        let bundle = agents.issue(&node.id(), DAY, Session::Ended, who()).await.expect("a token");
        let token = bundle.token.expose_secret().to_string();
        agents.enroll(&token, applicant("s1")).await.expect("an answer").expect("enrolled");
        let aside = Who { reason: "put away".into(), ..who() };
        engine.runs().act(id, Action::MarkManual, aside).await.expect("marked");
        agents.heartbeat("s1", String::new()).await.expect("an answer").expect("still known");
        scene.witnessed_nothing();
    });
}

/// A drain that failed has cordoned the Kubernetes node. Releasing the node uncordons it.
#[test]
fn a_node_that_is_released_is_let_back_into_its_cluster() {
    simulate(async {
        let (scene, node) = Scene::in_cluster().await;
        let engine = &scene.process.engine;
        let stuck = crate::device_scenarios::fault("drain", sim::Action::Fail, 0);
        scene.world.sim.add_fault(stuck).expect("a rule");
        let drain =
            engine.nodes().decommission(out(&node, Mode::Drain, "drain")).await.expect("accepted");
        let drain = scene.door.ended(&drain.run.spec.id).await.spec.id;
        scene.world.sim.clear_faults(None).expect("cleared");
        let asked = Who { reason: "look at it".into(), ..who() };
        engine.runs().act(drain.clone(), Action::MarkManual, asked).await.expect("marked");
        scene.until(NodeState::Quarantined).await;
        let back = engine.nodes().ask(&node.id(), release(), who()).await.expect("released");
        assert_eq!(back.state, NodeState::Active);
        let run = scene.door.ended(&back.workflow.expect("an uncordon run")).await;
        assert!(matches!(run.spec.steps[0].effect, Effect::Uncordon { .. }), "{:?}", run.spec);
        assert_eq!(run.progress.workflow, Workflow::Completed, "{:?}", run.progress.failure);
        let drain = engine.runs().get(&drain).await.expect("the drain").progress.workflow;
        assert_eq!(drain, Workflow::Cancelled);
        scene.witnessed_nothing();
    });
}

#[test]
fn who_was_given_up_is_not_let_in_any_more() {
    simulate(async {
        let scene = Scene::new().await;
        let (engine, agents) = (&scene.process.engine, agents(&scene));
        let bundle = agents.bootstrap(MachineId::trusted(MACHINE), DAY, who()).await;
        let token = bundle.expect("a bundle").token.expose_secret().to_string();
        let node = scene.node().await;
        let give_up = Ask::Quarantine { why: "wrong rack".into() };
        let ended = engine.nodes().ask(&node.id(), give_up, who()).await.expect("canceled");
        assert_eq!(ended.state, NodeState::Quarantined);
        let late = agents.enroll(&token, applicant("s1")).await.expect("an answer");
        assert_eq!(late, Err(Denied::TokenUnknown));
        let told = refusal(engine.nodes().ask(&node.id(), release(), who()).await);
        assert_eq!(told.reason, "NODE_STATE");
        let told = refusal(engine.nodes().decommission(out(&node, Mode::SoftReset, "soft")).await);
        assert_eq!(told.reason, "NODE_STATE");
        let away = engine.nodes().decommission(out(&node, Mode::FullDecommission, "away")).await;
        scene.door.ended(&away.expect("accepted").run.spec.id).await;
        scene.until(NodeState::Deleted).await;
        scene.witnessed_nothing();
    });
}

/// Only an agent can clean what stays installed: without one, a soft reset fails.
#[test]
fn what_nobody_has_cleaned_does_not_serve_again() {
    simulate(async {
        let scene = Scene::new().await;
        let (engine, agents) = (&scene.process.engine, agents(&scene));
        let bundle = agents.bootstrap(MachineId::trusted(MACHINE), DAY, who()).await;
        let token = bundle.expect("a bundle").token.expose_secret().to_string();
        agents.enroll(&token, applicant("s1")).await.expect("an answer").expect("enrolled");
        agents.heartbeat("s1", String::new()).await.expect("an answer").expect("known");
        let node = scene.until(NodeState::Active).await;
        let mut skipped = out(&node, Mode::SoftReset, "skip");
        skipped.without_agent = "in a hurry".into();
        assert_eq!(
            refusal(engine.nodes().decommission(skipped).await).field.as_deref(),
            Some("without_agent")
        );
        // Its session is revoked, as when a new token is issued.
        let revoked = scene
            .world
            .store
            .write("revoke", node.id(), |node, tx| Box::pin(async move { tx.forget_agent(node) }));
        revoked.await.expect("revoked");
        let started = engine
            .nodes()
            .decommission(out(&node, Mode::SoftReset, "soft"))
            .await
            .expect("accepted");
        let run = scene.door.ended(&started.run.spec.id).await;
        let failure = run.progress.failure.expect("a failure");
        assert_eq!(
            (failure.step.as_str(), failure.fault.code),
            ("cleanup_storage", Code::AgentSilent)
        );
        assert_eq!(scene.node().await.state, NodeState::Retired);
        let told = refusal(engine.nodes().ask(&node.id(), reactivate(), who()).await);
        assert_eq!(told.reason, "NODE_UNPROVEN");
        let sure = Ask::Reactivate { why: "wiped by hand".into(), unproven: true };
        let back = engine.nodes().ask(&node.id(), sure, who()).await.expect("reactivated");
        assert_eq!(back.state, NodeState::Offline);
        let closed = engine.runs().get(&run.spec.id).await.expect("the run").progress.workflow;
        assert_eq!(closed, Workflow::Cancelled, "the run cannot resume");
        scene.witnessed_nothing();
    });
}

#[test]
fn a_person_takes_a_quarantine_over_from_the_reconciler() {
    simulate(async {
        let scene = Scene::serving().await;
        let (engine, node) = (&scene.process.engine, scene.node().await);
        scene.in_maas(Stage::ReleaseMaasNode).await;
        let held = scene.until(NodeState::Quarantined).await;
        assert_eq!(held.quarantine, Some(Quarantine::Drift));
        let ask = Ask::Quarantine { why: "GPU 3 burns".into() };
        let held = engine.nodes().ask(&node.id(), ask, who()).await.expect("quarantined");
        assert_eq!(
            (held.quarantine, held.reason.as_str()),
            (Some(Quarantine::Operator), "GPU 3 burns")
        );
        scene.witnessed_nothing();
    });
}

/// Reactivating a drained node uncordons it.
#[test]
fn a_node_that_serves_again_is_let_back_into_its_cluster() {
    simulate(async {
        let (scene, node) = Scene::in_cluster().await;
        let engine = &scene.process.engine;
        let drained =
            engine.nodes().decommission(out(&node, Mode::Drain, "drain")).await.expect("accepted");
        scene.door.ended(&drained.run.spec.id).await;
        scene.until(NodeState::Retired).await;
        let back = engine.nodes().ask(&node.id(), reactivate(), who()).await.expect("reactivated");
        assert_eq!(back.state, NodeState::Offline);
        let run = back.workflow.expect("an uncordon run");
        assert_ne!(run, drained.run.spec.id);
        let run = scene.door.ended(&run).await;
        assert_eq!(run.progress.workflow, Workflow::Completed, "{:?}", run.progress.failure);
        let effects: Vec<_> = run.spec.steps.iter().map(|step| &step.effect).collect();
        assert!(matches!(effects[..], [Effect::Uncordon { .. }]), "{effects:?}");
        scene.until(NodeState::Active).await;
        // It is uncordoned already, so no new run is started.
        let same = engine.nodes().ask(&node.id(), reactivate(), who()).await.expect("reactivated");
        assert_eq!(same.workflow, Some(run.spec.id));
        scene.witnessed_nothing();
    });
}

async fn amend(tx: &mut Tx, how: fn(&mut Machine)) -> Result<()> {
    let found = tx.machine_locked(&MachineId::trusted(MACHINE)).await?;
    let mut machine = found.expect("the machine");
    how(&mut machine);
    let event = NewEvent {
        cause: Cause::Request,
        actor: "somebody".into(),
        message: "amended".into(),
        decided_by: String::new(),
        at: machine.updated_at,
    };
    tx.update_machine(&mut machine, &event)
}
