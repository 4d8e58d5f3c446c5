//! Requests to nodes and the gates that refuse them: in service, revoked, not cleaned.

use crate::node_scenarios::MACHINE;
use crate::nodes::{
    DAY, NodeFixture, agents, decommission_request, enrolling_agent, reactivate, refusal, requester,
};
use crate::test_env::simulate;
use engine::admission::StartRequest;
use engine::node::SessionPolicy;
use model::condition::ConditionType;
use model::effect::{DesiredPower, Effect};
use model::fault::FaultCode;
use model::gate::{Gate, Overrides};
use model::id::{MachineId, RunId};
use model::machine::admit::impact_of;
use model::machine::{Machine, Phase};
use model::node::enroll::EnrollmentRefusal;
use model::node::requests::NodeRequest;
use model::node::{DecommissionMode, Node, NodeStage, NodeState, Quarantine};
use model::plan::{Maintenance, Params, PowerChange, RunStep, RunType, default_plan, variants};
use model::run::actions::{Action, Requester, RestartMode};
use model::run::{Run, Workflow};
use providers::sim;
use secrecy::ExposeSecret;
use std::time::Duration;
use store::{Cause, NewEvent, Result, Tx};
use tokio::time::sleep;

fn start(run_type: RunType, request_id: &str) -> StartRequest {
    StartRequest {
        machine_id: MachineId::trusted(MACHINE),
        request_id: request_id.into(),
        run_type,
        plan_id: None,
        params: Params::new(),
        overrides: Overrides::default(),
        initiator: "somebody".into(),
    }
}

/// With an override of the gate in-service.
fn overriding(start: StartRequest) -> StartRequest {
    StartRequest { overrides: Overrides::of(&[Gate::InService], "a fire"), ..start }
}

impl NodeFixture {
    /// Starts a run with an override and waits for its end.
    async fn run_overriding(&self, start: StartRequest) -> Run {
        let started = self.process.engine.runs().start(overriding(start)).await.expect("accepted");
        self.client.wait_until_ended(&started.run.spec.id).await
    }
}

#[test]
fn a_machine_with_a_serving_node_refuses_a_reimage() {
    simulate(async {
        let fixture = NodeFixture::serving().await;
        let (engine, node) = (&fixture.process.engine, fixture.node().await);
        let reported = refusal(engine.runs().start(start(RunType::EnterMaintenance, "in")).await);
        assert_eq!(reported.reason.as_str(), "MACHINES_IN_SERVICE");
        let next = reported.next_command.unwrap_or_default();
        // The machine is in no cluster that could be drained.
        assert!(next.starts_with(&format!("farrier node drain {}", node.id())), "{next}");
        fixture.run_overriding(start(RunType::EnterMaintenance, "in")).await;
        let reported = refusal(engine.runs().start(start(RunType::Reimage, "wipe")).await);
        assert_eq!(reported.reason.as_str(), "MACHINES_IN_SERVICE");
        assert!(reported.message.contains(node.id().as_str()), "{reported}");
        let drained = engine
            .nodes()
            .decommission(decommission_request(&node, DecommissionMode::Drain, "drain"))
            .await
            .expect("accepted");
        fixture.client.wait_until_ended(&drained.run.spec.id).await;
        fixture.wait_for_state(NodeState::Retired).await;
        engine.runs().start(start(RunType::Reimage, "wipe")).await.expect("accepted");
        // While the machine is being reimaged the node cannot be reactivated.
        let reported = refusal(
            engine.nodes().apply_request(&node.id(), reactivate(), None, requester()).await,
        );
        assert_eq!(reported.reason.as_str(), "MACHINE_BUSY");
    });
}

/// Every built-in plan of a machine: while its node serves, one that takes something away is
/// refused when it starts and when it continues.
#[test]
fn every_plan_asks_before_it_takes_something_from_a_node() {
    simulate(async {
        let fixture = NodeFixture::serving().await;
        let engine = &fixture.process.engine;
        fixture.run_overriding(start(RunType::EnterMaintenance, "in")).await;
        let defaults =
            RunType::PLANNED.into_iter().filter_map(|one| Some((one, default_plan(one)?)));
        for (run_type, plan) in defaults.chain(variants()) {
            let steps = plan.steps.iter().map(|step| RunStep {
                name: step.name.clone(),
                timeout_seconds: 1,
                max_retries: 0,
                effect: step.effect.clone(),
            });
            // The machine of this fixture is in no cluster, so a join is refused before the gate.
            if run_type == RunType::Join
                || impact_of(run_type, &steps.collect::<Vec<_>>()).is_none()
            {
                continue;
            }
            let request = StartRequest {
                plan_id: Some(plan.id.clone()),
                params: crate::machine_scenarios::params(run_type),
                ..start(run_type, plan.id.as_str())
            };
            let reported = refusal(engine.runs().start(request).await);
            assert_eq!(reported.reason.as_str(), "MACHINES_IN_SERVICE", "{}", plan.id);
            assert_eq!(reported.gate, Some(Gate::InService), "{}", plan.id);
        }
        // A run that failed before the node came back asks again.
        let fault = crate::device_scenarios::fault("reboot", sim::Action::Fail, 0);
        fixture.env.sim.add_fault(fault).expect("a rule");
        fixture.power(MACHINE, DesiredPower::Off).await;
        fixture.wait_for_state(NodeState::Offline).await;
        let reboot = start(RunType::Reboot, "while offline");
        let failed = engine.runs().start(reboot).await.expect("accepted").run.spec.id;
        assert!(fixture.client.wait_until_ended(&failed).await.progress.workflow.failed());
        fixture.env.sim.clear_faults(None).expect("cleared");
        fixture.power(MACHINE, DesiredPower::On).await;
        fixture.wait_for_state(NodeState::Active).await;
        let retried = engine.runs().act(failed.clone(), Action::RetryStep, requester()).await;
        let rerun =
            engine.runs().restart(failed, RestartMode::Rerun, "anew".into(), requester()).await;
        for answer in [retried, rerun.map(|started| started.run)] {
            let reported = refusal(answer);
            assert_eq!(reported.reason.as_str(), "MACHINES_IN_SERVICE");
            let next = reported.next_command.unwrap_or_default();
            let again = "operation start m-1 --type REBOOT --plan plan-reboot-v1 --override";
            assert!(next.contains(again), "{next}");
        }
    });
}

/// The node follows its machine in the commit of the order, and comes back by a heartbeat after
/// the operation, although its agent goes on sending heartbeats during the shutdown.
#[test]
fn a_node_goes_offline_with_its_machine() {
    simulate(async {
        let fixture = NodeFixture::serving().await;
        fixture.run_overriding(start(RunType::EnterMaintenance, "in")).await;
        let slow = sim::FaultRule {
            effect: "power".into(),
            delay_ms: 300_000,
            ..sim::FaultRule::new(sim::Action::Slow)
        };
        fixture.env.sim.add_fault(slow).expect("a rule");
        let plan = |change: PowerChange| Some(change.plan_id());
        let off = StartRequest { plan_id: plan(PowerChange::Off), ..start(RunType::Power, "off") };
        let engine = &fixture.process.engine;
        let run = engine.runs().start(overriding(off)).await.expect("accepted").run.spec.id;
        let node = fixture.wait_for_state(NodeState::Offline).await;
        assert_eq!(node.down_by.as_ref(), Some(&run));
        // It needs no person while our own operation keeps it down.
        let needs_person = async || {
            let found = engine.attention(9, None).await.expect("the list");
            found.items.into_iter().find(|item| item.id == node.head.id)
        };
        assert!(needs_person().await.is_none());
        let told = engine.explain(&node.head.id).await.expect("explained").explanation;
        assert!(told.headline.contains(&format!("{run} takes its machine down")), "{told:?}");
        assert_eq!(told.next_commands[0], format!("farrier why {run}"));
        // The machine still answers for five minutes, and the node stays offline.
        for _ in 0..200 {
            sleep(Duration::from_secs(1)).await;
            assert_eq!(fixture.node().await.state, NodeState::Offline);
        }
        fixture.env.sim.clear_faults(None).expect("cleared");
        fixture.client.wait_until_ended(&run).await;
        sleep(Duration::from_secs(600)).await;
        assert_eq!(fixture.node().await.state, NodeState::Offline);
        // Afterwards it does, and the text is that of the end.
        let item = needs_person().await.expect("the machine is off");
        let told = &item.explained.explanation;
        let end = format!("{run} took its machine down, and SUCCEEDED");
        assert!(told.headline.contains(&end), "{told:?}");
        assert_eq!(
            told.next_command(),
            Some(format!("farrier machine power {MACHINE} on").as_str())
        );
        let on = StartRequest { plan_id: plan(PowerChange::On), ..start(RunType::Power, "on") };
        let on = engine.runs().start(on).await.expect("accepted: it takes nothing");
        fixture.client.wait_until_ended(&on.run.spec.id).await;
        let node = fixture.wait_for_state(NodeState::Active).await;
        assert_eq!(node.down_by, None);
        fixture.assert_no_violations();
    });
}

/// Entering maintenance looks at the cluster and never fails on it; a drain may fail.
#[test]
fn only_a_drain_can_fail_to_enter_maintenance() {
    simulate(async {
        let fixture = NodeFixture::new().await;
        fixture.change_machine(|machine| machine.spec.target_cluster_ref = "c".into()).await;
        let engine = &fixture.process.engine;
        for effect in ["verify", "drain"] {
            let fault = crate::device_scenarios::fault(effect, sim::Action::Fail, 0);
            fixture.env.sim.add_fault(fault).expect("a rule");
        }
        let drain = StartRequest {
            plan_id: Some(Maintenance::EnterDraining.plan_id()),
            ..start(RunType::EnterMaintenance, "drain")
        };
        let run = engine.runs().start(drain).await.expect("accepted").run.spec.id;
        let run = fixture.client.wait_until_ended(&run).await;
        assert!(run.progress.workflow.failed(), "{:?}", run.progress);
        let enter = engine.runs().start(start(RunType::EnterMaintenance, "in")).await;
        let run = enter.expect("accepted").run.spec.id;
        let run = fixture.client.wait_until_ended(&run).await;
        assert_eq!(run.progress.workflow, Workflow::Completed, "{:?}", run.progress);
        let machine = engine.machines().get(&MachineId::trusted(MACHINE)).await.expect("it");
        assert_eq!(machine.phase, Phase::Maintenance);
        let drained = machine.conditions.get(ConditionType::Drained).expect("a record");
        assert!(!drained.status && drained.reason.starts_with("Unknown:"), "{drained:?}");
    });
}

impl NodeFixture {
    /// With a node that serves in a Kubernetes cluster.
    async fn in_cluster() -> (Self, Node) {
        let fixture = Self::new().await;
        fixture.change_machine(|machine| machine.spec.target_cluster_ref = "c".into()).await;
        fixture.perform(crate::node_scenarios::NodeAction::Onboard, "onboard").await;
        let node = fixture.wait_for_state(NodeState::Active).await;
        (fixture, node)
    }

    async fn change_machine(&self, how: fn(&mut Machine)) {
        let amended = self
            .env
            .store
            .write("update_machine", how, |how, tx| Box::pin(update_machine(tx, *how)));
        amended.await.expect("amended");
    }
}

fn release() -> NodeRequest {
    let overrides = Overrides::of(&[Gate::NodeHealth], "all the same");
    NodeRequest::Release { why: "all the same".into(), overrides }
}

/// Runs may work on the machine of a node out of service. Until they end no request reactivates it.
#[test]
fn a_node_is_not_released_while_its_machine_is_busy() {
    simulate(async {
        let fixture = NodeFixture::serving().await;
        let (engine, node) = (&fixture.process.engine, fixture.node().await);
        fixture.run_overriding(start(RunType::EnterMaintenance, "in")).await;
        let request = NodeRequest::Quarantine { why: "it smells".into() };
        engine
            .nodes()
            .apply_request(&node.id(), request, None, requester())
            .await
            .expect("quarantined");
        let wiped = engine.runs().start(start(RunType::Reimage, "wipe")).await.expect("accepted");
        let reported =
            refusal(engine.nodes().apply_request(&node.id(), release(), None, requester()).await);
        assert_eq!(reported.reason.as_str(), "MACHINE_BUSY");
        assert!(reported.message.contains("release must wait"), "{reported}");
        fixture.client.wait_until_ended(&wiped.run.spec.id).await;
        let back = engine
            .nodes()
            .apply_request(&node.id(), release(), None, requester())
            .await
            .expect("released");
        assert_eq!(back.node.state, NodeState::Active);
        fixture.assert_no_violations();
    });
}

#[test]
fn a_quarantine_does_not_end_while_the_machine_is_busy() {
    simulate(async {
        let fixture = NodeFixture::serving().await;
        fixture.perform_in_maas(NodeStage::ReleaseMaasNode).await;
        fixture.wait_for_state(NodeState::Quarantined).await;
        fixture
            .change_machine(|machine| machine.active_run = Some(RunId::trusted("op-other")))
            .await;
        for stage in [
            NodeStage::DeployViaMaas,
            NodeStage::WaitForDeployed,
            NodeStage::WaitForAgentEnrollment,
        ] {
            fixture.perform_in_maas(stage).await;
        }
        sleep(Duration::from_secs(600)).await;
        assert_eq!(fixture.node().await.state, NodeState::Quarantined);
        fixture.change_machine(|machine| machine.active_run = None).await;
        fixture.wait_for_state(NodeState::Active).await;
        fixture.assert_no_violations();
    });
}

/// Closing an old failed run does not revoke the session of a node that was reinstalled since.
#[test]
fn closing_an_old_run_keeps_the_agent_session() {
    simulate(async {
        let fixture = NodeFixture::serving().await;
        let (engine, agents, node) =
            (&fixture.process.engine, agents(&fixture), fixture.node().await);
        let stuck = crate::device_scenarios::fault("configure_storage", sim::Action::Fail, 0);
        fixture.env.sim.add_fault(stuck).expect("a rule");
        let first = engine
            .nodes()
            .decommission(decommission_request(&node, DecommissionMode::Reimage, "anew"))
            .await
            .expect("accepted");
        let first = fixture.client.wait_until_ended(&first.run.spec.id).await;
        assert_eq!(first.progress.workflow, Workflow::FailedRetryable);
        fixture.env.sim.clear_faults(None).expect("cleared");
        let id = first.spec.id.clone();
        let second = engine
            .runs()
            .restart(id.clone(), RestartMode::Rerun, "again".into(), requester())
            .await;
        fixture.client.wait_until_ended(&second.expect("restarted").run.spec.id).await;
        fixture.wait_for_state(NodeState::Active).await;
        let bundle =
            agents.issue(&node.id(), DAY, SessionPolicy::End, requester()).await.expect("a token");
        let token = bundle.token.expose_secret().to_string();
        agents.enroll(&token, enrolling_agent("s1")).await.expect("an answer").expect("enrolled");
        let aside = Requester { reason: "put away".into(), ..requester() };
        engine.runs().act(id, Action::MarkManual, aside).await.expect("marked");
        agents.heartbeat("s1", String::new()).await.expect("an answer").expect("still known");
        fixture.assert_no_violations();
    });
}

/// A drain that failed has cordoned the Kubernetes node. Releasing the node uncordons it.
#[test]
fn a_released_node_is_uncordoned() {
    simulate(async {
        let (fixture, node) = NodeFixture::in_cluster().await;
        let engine = &fixture.process.engine;
        let stuck = crate::device_scenarios::fault("drain", sim::Action::Fail, 0);
        fixture.env.sim.add_fault(stuck).expect("a rule");
        let drain = engine
            .nodes()
            .decommission(decommission_request(&node, DecommissionMode::Drain, "drain"))
            .await
            .expect("accepted");
        let drain = fixture.client.wait_until_ended(&drain.run.spec.id).await.spec.id;
        fixture.env.sim.clear_faults(None).expect("cleared");
        let requested = Requester { reason: "look at it".into(), ..requester() };
        engine.runs().act(drain.clone(), Action::MarkManual, requested).await.expect("marked");
        fixture.wait_for_state(NodeState::Quarantined).await;
        let back = engine
            .nodes()
            .apply_request(&node.id(), release(), None, requester())
            .await
            .expect("released");
        assert_eq!(back.node.state, NodeState::Active);
        let run =
            fixture.client.wait_until_ended(&back.node.workflow.expect("an uncordon run")).await;
        assert!(matches!(run.spec.steps[0].effect, Effect::Uncordon { .. }), "{:?}", run.spec);
        assert_eq!(run.progress.workflow, Workflow::Completed, "{:?}", run.progress.failure);
        let drain = engine.runs().get(&drain).await.expect("the drain").progress.workflow;
        assert_eq!(drain, Workflow::Cancelled);
        fixture.assert_no_violations();
    });
}

#[test]
fn a_quarantined_bootstrap_cannot_enroll() {
    simulate(async {
        let fixture = NodeFixture::new().await;
        let (engine, agents) = (&fixture.process.engine, agents(&fixture));
        let bundle = agents.bootstrap(MachineId::trusted(MACHINE), DAY, requester()).await;
        let token = bundle.expect("a bundle").token.expose_secret().to_string();
        let node = fixture.node().await;
        let give_up = NodeRequest::Quarantine { why: "wrong rack".into() };
        let ended = engine
            .nodes()
            .apply_request(&node.id(), give_up, None, requester())
            .await
            .expect("canceled");
        assert_eq!(ended.node.state, NodeState::Quarantined);
        let late = agents.enroll(&token, enrolling_agent("s1")).await.expect("an answer");
        assert_eq!(late, Err(EnrollmentRefusal::TokenUnknown));
        let reported =
            refusal(engine.nodes().apply_request(&node.id(), release(), None, requester()).await);
        assert_eq!(reported.reason.as_str(), "NODE_STATE");
        let reported = refusal(
            engine
                .nodes()
                .decommission(decommission_request(&node, DecommissionMode::SoftReset, "soft"))
                .await,
        );
        assert_eq!(reported.reason.as_str(), "NODE_STATE");
        let away = engine
            .nodes()
            .decommission(decommission_request(&node, DecommissionMode::FullDecommission, "away"))
            .await;
        fixture.client.wait_until_ended(&away.expect("accepted").run.spec.id).await;
        fixture.wait_for_state(NodeState::Deleted).await;
        fixture.assert_no_violations();
    });
}

/// Only an agent can clean what stays installed: without one, a soft reset fails.
#[test]
fn a_node_that_was_not_cleaned_is_not_reactivated() {
    simulate(async {
        let fixture = NodeFixture::new().await;
        let (engine, agents) = (&fixture.process.engine, agents(&fixture));
        let bundle = agents.bootstrap(MachineId::trusted(MACHINE), DAY, requester()).await;
        let token = bundle.expect("a bundle").token.expose_secret().to_string();
        agents.enroll(&token, enrolling_agent("s1")).await.expect("an answer").expect("enrolled");
        agents.heartbeat("s1", String::new()).await.expect("an answer").expect("known");
        let node = fixture.wait_for_state(NodeState::Active).await;
        // Its session is revoked, as when a new token is issued.
        let revoked = fixture
            .env
            .store
            .write("revoke", node.id(), |node, tx| Box::pin(async move { tx.revoke_agent(node) }));
        revoked.await.expect("revoked");
        let started = engine
            .nodes()
            .decommission(decommission_request(&node, DecommissionMode::SoftReset, "soft"))
            .await
            .expect("accepted");
        let run = fixture.client.wait_until_ended(&started.run.spec.id).await;
        let failure = run.progress.failure.expect("a failure");
        assert_eq!(
            (failure.step.as_str(), failure.fault.code),
            ("cleanup_storage", FaultCode::AgentSilent)
        );
        assert_eq!(fixture.node().await.state, NodeState::Retired);
        let reported = refusal(
            engine.nodes().apply_request(&node.id(), reactivate(), None, requester()).await,
        );
        assert_eq!(reported.reason.as_str(), "NODE_UNPROVEN");
        let overrides = Overrides::of(&[Gate::Cleanup], "wiped by hand");
        let sure = NodeRequest::Reactivate { why: "wiped by hand".into(), overrides };
        let back = engine
            .nodes()
            .apply_request(&node.id(), sure, None, requester())
            .await
            .expect("reactivated");
        assert_eq!(back.node.state, NodeState::Offline);
        let events = engine.history(node.head.id.as_str(), 0, 100).await.expect("a history");
        let note = "; gate cleanup overridden by somebody: wiped by hand";
        assert!(events.iter().any(|event| event.message.ends_with(note)), "{events:?}");
        let closed = engine.runs().get(&run.spec.id).await.expect("the run").progress.workflow;
        assert_eq!(closed, Workflow::Cancelled, "the run cannot resume");
        fixture.assert_no_violations();
    });
}

#[test]
fn an_operator_quarantine_replaces_a_drift_quarantine() {
    simulate(async {
        let fixture = NodeFixture::serving().await;
        let (engine, node) = (&fixture.process.engine, fixture.node().await);
        fixture.perform_in_maas(NodeStage::ReleaseMaasNode).await;
        let claimed = fixture.wait_for_state(NodeState::Quarantined).await;
        assert_eq!(claimed.quarantine, Some(Quarantine::Drift));
        let request = NodeRequest::Quarantine { why: "GPU 3 burns".into() };
        let claimed = engine
            .nodes()
            .apply_request(&node.id(), request, None, requester())
            .await
            .expect("quarantined");
        assert_eq!(
            (claimed.node.quarantine, claimed.node.reason.as_str()),
            (Some(Quarantine::Operator), "GPU 3 burns")
        );
        fixture.assert_no_violations();
    });
}

/// Reactivating a drained node uncordons it.
#[test]
fn a_reactivated_node_is_uncordoned() {
    simulate(async {
        let (fixture, node) = NodeFixture::in_cluster().await;
        let engine = &fixture.process.engine;
        let drained = engine
            .nodes()
            .decommission(decommission_request(&node, DecommissionMode::Drain, "drain"))
            .await
            .expect("accepted");
        fixture.client.wait_until_ended(&drained.run.spec.id).await;
        fixture.wait_for_state(NodeState::Retired).await;
        let back = engine
            .nodes()
            .apply_request(&node.id(), reactivate(), Some("back".into()), requester())
            .await
            .expect("reactivated");
        assert_eq!((back.node.state, back.new), (NodeState::Offline, true));
        let run = back.run.expect("an uncordon run").spec.id;
        assert_ne!(run, drained.run.spec.id);
        let run = fixture.client.wait_until_ended(&run).await;
        assert_eq!(run.spec.request_id, "back");
        assert_eq!(run.progress.workflow, Workflow::Completed, "{:?}", run.progress.failure);
        let effects: Vec<_> = run.spec.steps.iter().map(|step| &step.effect).collect();
        assert!(matches!(effects[..], [Effect::Uncordon { .. }]), "{effects:?}");
        fixture.wait_for_state(NodeState::Active).await;
        // It is uncordoned already, so no new run is started.
        let same = engine
            .nodes()
            .apply_request(&node.id(), reactivate(), None, requester())
            .await
            .expect("reactivated");
        assert_eq!(same.node.workflow, Some(run.spec.id.clone()));
        assert!(same.run.is_none() && !same.new);
        // A repetition returns the run that the request started; another request is refused.
        let again = Some("back".to_string());
        let replayed = engine
            .nodes()
            .apply_request(&node.id(), reactivate(), again, requester())
            .await
            .expect("replayed");
        assert_eq!((replayed.run.map(|run| run.spec.id), replayed.new), (Some(run.spec.id), false));
        let (id, back) = (node.id(), Some("back".to_string()));
        let other = engine.nodes().apply_request(&id, release(), back, requester()).await;
        assert_eq!(refusal(other).reason.as_str(), "REQUEST_ID_REUSED");
        // A request that had nothing to do is recognised too: its repetition does nothing later.
        let idle = || Some("idle".to_string());
        let nodes = engine.nodes();
        nodes.apply_request(&id, release(), idle(), requester()).await.expect("nothing to do");
        let quarantine = NodeRequest::Quarantine { why: "fire".into() };
        nodes.apply_request(&id, quarantine, None, requester()).await.expect("quarantined");
        let again =
            nodes.apply_request(&id, release(), idle(), requester()).await.expect("replayed");
        assert_eq!((again.node.state, again.new), (NodeState::Quarantined, false));
        let used = Some("drain".to_string());
        let other = engine.nodes().apply_request(&node.id(), reactivate(), used, requester()).await;
        assert_eq!(refusal(other).reason.as_str(), "REQUEST_ID_REUSED");
        fixture.assert_no_violations();
    });
}

async fn update_machine(tx: &mut Tx, how: fn(&mut Machine)) -> Result<()> {
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
