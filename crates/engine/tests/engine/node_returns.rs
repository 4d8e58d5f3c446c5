//! A heartbeat brings a node back after the operation that has taken it out of service, never
//! during it. In simulated time.

use crate::node_scenarios::MACHINE;
use crate::nodes::{
    DAY, NodeFixture, agents, decommission_request, enrolling_agent, requester as somebody,
};
use crate::rack_fixture::{RackFixture, event, maintenance_request, power};
use crate::test_env::simulate;
use engine::Engine;
use engine::node::{Agents, TaskReport};
use engine::rack::MaintenanceStart;
use model::condition::ConditionType::Drained;
use model::condition::{ConditionObservation, IN_SERVICE, NOT_IN_CLUSTER};
use model::gate::{Gate, Overrides};
use model::id::{MachineId, NodeId, RunId};
use model::machine::Machine;
use model::node::requests::NodeRequest;
use model::node::{DecommissionMode, Node, NodeState};
use model::rack::maintenance::{MaintenanceScope, PowerSequence};
use model::run::actions::{Action, RestartMode};
use model::run::{Run, Workflow};
use model::time::Timestamp;
use providers::sim::{self, FaultRule};
use secrecy::ExposeSecret;
use std::time::Duration;
use tokio::time::sleep;

impl RackFixture {
    /// A node in service on a machine of the rack, without a site.
    async fn add_node(&self, id: &NodeId, machine: &str) {
        let input = (id.clone(), MachineId::trusted(machine), self.env.now());
        let added = self.env.store.write("add_node", input, |(id, machine, now), tx| {
            Box::pin(async move {
                let mut node = Node::new(id, machine, NodeState::Active, *now);
                tx.attach_node(id, machine, None)?;
                tx.insert_record(&mut node, &event(*now)).await?;
                tx.record_heartbeat(id, *now, "").await.map(drop)
            })
        });
        added.await.expect("added");
    }

    async fn beat(&self, id: &NodeId) {
        let input = (id.clone(), self.env.now());
        let beat = self.env.store.write("beat", input, |(id, now), tx| {
            Box::pin(async move { tx.record_heartbeat(id, *now, "").await.map(drop) })
        });
        beat.await.expect("recorded");
    }

    /// Changes the record of a machine without a run.
    async fn change_machine(&self, id: &str, change: fn(&mut Machine, Timestamp)) {
        let input = (MachineId::trusted(id), self.env.now());
        let written = self.env.store.write("change_machine", input, move |(id, now), tx| {
            Box::pin(async move {
                let mut machine = tx.machine_locked(id).await?.expect("the machine");
                change(&mut machine, *now);
                tx.update_machine(&mut machine, &event(*now))
            })
        });
        written.await.expect("written");
    }

    /// The machine counts as in service.
    async fn serves(&self, id: &str) {
        let machine = self.env.machine(id).await;
        let drained = machine.conditions.get(Drained).expect("known");
        assert_eq!((drained.status, drained.reason.as_str()), (false, IN_SERVICE));
    }

    /// Waits until the node is in this state; with heartbeats, if it is to serve.
    async fn wait_for_node(&self, id: &NodeId, state: NodeState) {
        for _ in 0..600 {
            if self.node_state(id).await == state {
                return;
            }
            if state == NodeState::Active {
                self.beat(id).await;
            }
            sleep(Duration::from_secs(1)).await;
        }
        panic!("the node is never {state}");
    }

    async fn node_state(&self, id: &NodeId) -> NodeState {
        self.engine().nodes().get(id).await.expect("the node").node.state
    }
}

/// The machine of the node is up again while the maintenance of its rack goes on with another
/// machine: the node returns only after the maintenance.
#[test]
fn a_node_returns_after_the_maintenance_of_its_rack() {
    simulate(async {
        let fixture = RackFixture::ready().await;
        let node = NodeId::trusted("node-1");
        fixture.add_node(&node, "m-1").await;
        let slow = FaultRule {
            machine: "m-2".into(),
            effect: "power".into(),
            delay_ms: 600_000,
            ..FaultRule::new(sim::Action::Slow)
        };
        fixture.env.sim.add_fault(slow).expect("a rule");
        let reset = power(MaintenanceScope::default(), PowerSequence::Reset);
        let start = MaintenanceStart {
            overrides: Overrides::of(&[Gate::InService], "a test"),
            ..maintenance_request(reset)
        };
        let started = fixture.engine().racks().maintain(start).await.expect("accepted");
        let run = started.run.expect("an operation").spec.id;
        let mut down = false;
        loop {
            sleep(Duration::from_secs(1)).await;
            fixture.beat(&node).await;
            let ended = fixture.engine().runs().get(&run).await.expect("the run").ended();
            let state = fixture.node_state(&node).await;
            down |= state == NodeState::Offline;
            if ended {
                break;
            }
            assert!(!down || state == NodeState::Offline, "it returned before the end: {state}");
        }
        assert!(down, "the maintenance has taken it down");
        for _ in 0..600 {
            if fixture.node_state(&node).await == NodeState::Active {
                return;
            }
            sleep(Duration::from_secs(1)).await;
            fixture.beat(&node).await;
        }
        panic!("it never returned");
    });
}

/// An operation of its rack holds the machine of a node that had fallen silent, and has not taken
/// it down: the node waits for its end, and says so. When it serves again, its machine is not
/// drained for being in no cluster.
#[test]
fn a_node_waits_for_the_operation_that_holds_its_machine() {
    simulate(async {
        let fixture = RackFixture::ready().await;
        let node = NodeId::trusted("node-1");
        fixture.add_node(&node, "m-1").await;
        fixture.wait_for_node(&node, NodeState::Offline).await;
        fixture
            .change_machine("m-1", |machine, now| {
                machine.active_run = Some(RunId::trusted("op-9"));
                let drained = ConditionObservation::new(Drained, true, NOT_IN_CLUSTER);
                machine.learn(&[drained], now);
            })
            .await;
        for _ in 0..60 {
            fixture.beat(&node).await;
            sleep(Duration::from_secs(1)).await;
            assert_eq!(fixture.node_state(&node).await, NodeState::Offline);
        }
        let told = fixture.engine().explain(node.as_str()).await.expect("explained").explanation;
        assert!(told.headline.contains("op-9 holds its machine m-1"), "{}", told.headline);
        assert!(told.waiting_for.starts_with("op-9 to end"), "{}", told.waiting_for);
        fixture.change_machine("m-1", |machine, _| machine.active_run = None).await;
        fixture.wait_for_node(&node, NodeState::Active).await;
        fixture.serves("m-1").await;

        // An operator brings it back.
        let why = || "a fan".to_string();
        let nodes = fixture.engine().nodes();
        let quarantine = NodeRequest::Quarantine { why: why() };
        nodes.apply_request(&node, quarantine, None, somebody()).await.expect("quarantined");
        fixture
            .change_machine("m-1", |machine, now| {
                let drained = ConditionObservation::new(Drained, true, NOT_IN_CLUSTER);
                machine.learn(&[drained], now);
            })
            .await;
        fixture.beat(&node).await;
        let release = NodeRequest::Release { why: why(), overrides: Overrides::default() };
        let released =
            nodes.apply_request(&node, release, None, somebody()).await.expect("released");
        assert_eq!(released.node.state, NodeState::Active);
        fixture.serves("m-1").await;
    });
}

/// A node whose drain has failed, as its agent has reported.
struct FailedDrain {
    fixture: NodeFixture,
    agents: Agents,
    run: RunId,
}

impl FailedDrain {
    async fn new() -> Self {
        let fixture = NodeFixture::new().await;
        let agents = agents(&fixture);
        let machine = MachineId::trusted(MACHINE);
        let bundle = agents.bootstrap(machine, DAY, somebody()).await.expect("a bundle");
        let token = bundle.token.expose_secret().to_string();
        agents.enroll(&token, enrolling_agent("s1")).await.expect("an answer").expect("enrolled");
        agents.heartbeat("s1", String::new()).await.expect("an answer").expect("known");
        let node = fixture.wait_for_state(NodeState::Active).await;
        let request = decommission_request(&node, DecommissionMode::Drain, "drain");
        let nodes = fixture.process.engine.nodes();
        let run = nodes.decommission(request).await.expect("accepted").run.spec.id;
        let drain = Self { fixture, agents, run };
        let ended = drain.answer_tasks(&drain.run, false).await;
        assert_eq!(ended.progress.workflow, Workflow::FailedRetryable);
        drain
    }

    async fn beat(&self) {
        self.agents.heartbeat("s1", String::new()).await.expect("an answer").expect("known");
    }

    /// The agent answers its tasks until the run has ended.
    async fn answer_tasks(&self, run: &RunId, ok: bool) -> Run {
        loop {
            let run = self.engine().runs().get(run).await.expect("the run");
            if run.ended() {
                return run;
            }
            let taken = self.agents.take("s1", Duration::from_secs(1)).await.expect("an answer");
            if let Some(task) = taken.expect("known") {
                let key = task.task.key.as_str().into();
                let (message, log) = ("a pod stays".into(), String::new());
                let report = TaskReport { key, ok, message, log };
                self.beat().await;
                self.agents.report("s1", report).await.expect("an answer").expect("accepted");
            }
        }
    }

    fn engine(&self) -> &Engine {
        &self.fixture.process.engine
    }

    async fn node(&self) -> NodeId {
        self.fixture.node().await.id()
    }

    /// The node stays as it is, whatever its agent says.
    async fn stays(&self, state: NodeState) {
        for _ in 0..60 {
            self.beat().await;
            sleep(Duration::from_secs(1)).await;
            assert_eq!(self.fixture.node().await.state, state);
        }
    }

    /// The next heartbeat returns the node.
    async fn returns(&self) {
        sleep(Duration::from_secs(1)).await;
        self.beat().await;
        self.fixture.wait_for_state(NodeState::Active).await;
        self.fixture.assert_no_violations();
    }
}

/// An active node is schedulable. One whose drain has failed takes no new work, so no heartbeat
/// makes it active; `why` and the list of what needs a person offer the ways out.
#[test]
fn a_node_stays_offline_after_its_failed_drain() {
    simulate(async {
        let drain = FailedDrain::new().await;
        drain.stays(NodeState::Offline).await;
        let (node, run) = (drain.node().await, &drain.run);
        let words = format!("operation {run} failed to drain it");
        assert_eq!(drain.fixture.node().await.reason, words);
        let words = format!("{words}; it takes no new work");
        let told = drain.engine().explain(node.as_str()).await.expect("explained").explanation;
        assert!(told.headline.contains(&words), "{}", told.headline);
        assert!(!told.waiting_for.contains("heartbeat"), "{}", told.waiting_for);
        let resume = format!("farrier node resume {node}");
        for command in [
            resume.clone(),
            format!("farrier operation rerun {run}"),
            format!("farrier cancel {run}"),
        ] {
            assert!(told.next_commands.contains(&command), "{command}: {told:#?}");
        }
        let listed = drain.engine().attention(9, None).await.expect("the list");
        let item = listed.items.iter().find(|item| item.id == node.as_str()).expect("the node");
        assert_eq!(item.explained.explanation.next_command(), Some(&*resume));
        drain.fixture.assert_no_violations();
    });
}

#[test]
fn the_resume_of_a_failed_drain_ends_it() {
    simulate(async {
        let drain = FailedDrain::new().await;
        let node = drain.node().await;
        let resumed = drain.engine().nodes().resume(&node, somebody()).await.expect("accepted");
        assert_eq!(resumed.run, drain.run);
        drain.answer_tasks(&drain.run, true).await;
        drain.stays(NodeState::Retired).await;
        drain.fixture.assert_no_violations();
    });
}

#[test]
fn the_rerun_of_a_failed_drain_ends_it() {
    simulate(async {
        let drain = FailedDrain::new().await;
        let (mode, request) = (RestartMode::Rerun, "rerun".to_string());
        let runs = drain.engine().runs();
        let rerun = runs.restart(drain.run.clone(), mode, request, somebody()).await;
        drain.answer_tasks(&rerun.expect("accepted").run.spec.id, true).await;
        drain.stays(NodeState::Retired).await;
        drain.fixture.assert_no_violations();
    });
}

/// A cancel undoes the disabling; a heartbeat from before it proves nothing, the next one does.
#[test]
fn a_node_returns_after_the_cancel_of_its_failed_drain() {
    simulate(async {
        let drain = FailedDrain::new().await;
        sleep(Duration::from_secs(1)).await;
        drain.beat().await;
        sleep(Duration::from_secs(1)).await;
        let (run, cancel) = (drain.run.clone(), Action::Cancel);
        drain.engine().runs().act(run, cancel, somebody()).await.expect("accepted");
        let ended = drain.answer_tasks(&drain.run, true).await;
        assert_eq!(ended.progress.workflow, Workflow::Cancelled);
        let node = drain.node().await;
        let told = drain.engine().explain(node.as_str()).await.expect("explained").explanation;
        assert!(!told.headline.contains("no new work"), "{}", told.headline);
        for _ in 0..60 {
            assert_eq!(drain.fixture.node().await.state, NodeState::Offline);
            sleep(Duration::from_secs(1)).await;
        }
        drain.returns().await;
    });
}

/// A reactivation closes the failed drain, also where no cluster has to uncordon the node.
#[test]
fn a_node_returns_after_its_reactivation() {
    simulate(async {
        let drain = FailedDrain::new().await;
        let why = "a pod that stays is fine".to_string();
        let request = NodeRequest::Reactivate { why, overrides: Overrides::default() };
        let node = drain.node().await;
        let nodes = drain.engine().nodes();
        nodes.apply_request(&node, request, None, somebody()).await.expect("accepted");
        let run = drain.engine().runs().get(&drain.run).await.expect("the run");
        assert_eq!(run.progress.workflow, Workflow::Cancelled);
        drain.returns().await;
    });
}
