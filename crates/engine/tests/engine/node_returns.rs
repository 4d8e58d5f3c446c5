//! A heartbeat brings a node back after the operation that has taken it out of service, never
//! during it. In simulated time.

use crate::node_scenarios::MACHINE;
use crate::nodes::{
    DAY, NodeFixture, agents, decommission_request, enrolling_agent, requester as somebody,
};
use crate::rack_fixture::{RackFixture, event, maintenance_request, power};
use crate::test_env::simulate;
use engine::node::TaskReport;
use engine::rack::MaintenanceStart;
use model::gate::{Gate, Overrides};
use model::id::{MachineId, NodeId};
use model::node::{DecommissionMode, Node, NodeState};
use model::rack::maintenance::{MaintenanceScope, PowerSequence};
use model::run::Workflow;
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

/// A drain that failed leaves its node offline. A heartbeat from the time of the drain proves
/// nothing; the next one does.
#[test]
fn a_node_returns_after_its_failed_drain() {
    simulate(async {
        let fixture = NodeFixture::new().await;
        let (engine, agents) = (&fixture.process.engine, agents(&fixture));
        let machine = MachineId::trusted(MACHINE);
        let bundle = agents.bootstrap(machine, DAY, somebody()).await.expect("a bundle");
        let token = bundle.token.expose_secret().to_string();
        agents.enroll(&token, enrolling_agent("s1")).await.expect("an answer").expect("enrolled");
        agents.heartbeat("s1", String::new()).await.expect("an answer").expect("known");
        let node = fixture.wait_for_state(NodeState::Active).await;
        let request = decommission_request(&node, DecommissionMode::Drain, "drain");
        let run = engine.nodes().decommission(request).await.expect("accepted").run.spec.id;
        loop {
            let taken = agents.take("s1", Duration::from_secs(1)).await.expect("an answer");
            if let Some(task) = taken.expect("known") {
                let report = TaskReport {
                    key: task.task.key.as_str().into(),
                    ok: false,
                    message: "a pod stays".into(),
                    log: String::new(),
                };
                agents.heartbeat("s1", String::new()).await.expect("an answer").expect("known");
                agents.report("s1", report).await.expect("an answer").expect("accepted");
            }
            let run = engine.runs().get(&run).await.expect("the run");
            if run.ended() {
                assert_eq!(run.progress.workflow, Workflow::FailedRetryable);
                break;
            }
        }
        for _ in 0..60 {
            assert_eq!(fixture.node().await.state, NodeState::Offline);
            sleep(Duration::from_secs(1)).await;
        }
        agents.heartbeat("s1", String::new()).await.expect("an answer").expect("known");
        fixture.wait_for_state(NodeState::Active).await;
        fixture.assert_no_violations();
    });
}
