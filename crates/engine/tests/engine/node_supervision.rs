//! Supervision of nodes: stuck transitions, heartbeats, and the reconciliation of sites.

use crate::device_records::{InServiceDevice, device, event};
use crate::node_scenarios::{self, MACHINE, SITE};
use crate::nodes::{NodeFixture, onboard_request};
use crate::test_env::simulate;
use engine::node::Onboard;
use model::effect::DesiredPower;
use model::id::{MachineId, NodeId, SiteId};
use model::lifecycle::{IdleReason, Lifecycle, LifecycleDecision, RecordHeader, SubjectKind};
use model::machine::Labels;
use model::node::{MaasState, Node, NodeStage, NodeState, Quarantine, TransitionOwner};
use model::site::{Site, SiteState};
use model::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::sync::atomic::Ordering;
use std::time::Duration;
use store::{Result, Tx};
use tokio::time::sleep;

/// Moves a node into a transitional state without a run, as no component does.
struct MoveWithoutRun {
    node: Node,
    transitions: Vec<(NodeState, TransitionOwner)>,
    now: Timestamp,
}

impl MoveWithoutRun {
    async fn run(&self, tx: &mut Tx) -> Result<()> {
        let mut node = self.node.clone();
        for (to, owner) in &self.transitions {
            let version = node.head.version;
            node = node.become_(*to, *owner, "lost on the way")?;
            node.head.version = version;
            tx.update_and_enqueue(&mut node, &event(self.now, "lost"))?;
        }
        Ok(())
    }
}

impl NodeFixture {
    async fn move_without_run(&self, ways: &[(NodeState, TransitionOwner)]) {
        let (node, now) = (self.node().await, self.env.now());
        let lose = MoveWithoutRun { node, transitions: ways.to_vec(), now };
        let lost = self.env.store.write("lose", lose, |lose, tx| Box::pin(lose.run(tx)));
        lost.await.expect("moved");
    }

    /// The states in the history of the newest node.
    async fn state_history(&self) -> Vec<String> {
        let all = self.env.stored_state().await;
        let node = all.records.nodes.last().expect("a node");
        let mut words: Vec<String> =
            all.histories[&node.head.id].iter().map(|event| event.state.clone()).collect();
        words.dedup();
        words
    }
}

#[test]
fn a_transitional_state_without_a_run_ends() {
    use NodeState::{Active, Draining, Removing, Retired};
    simulate(async {
        let fixture = NodeFixture::serving().await;
        fixture.move_without_run(&[(Draining, TransitionOwner::Admin)]).await;
        // It goes offline, and the next heartbeat makes it active.
        sleep(Duration::from_secs(30)).await;
        let node = fixture.wait_for_state(Active).await;
        assert_eq!(node.moved_by, TransitionOwner::Heartbeat);
        let (admin, work) = (TransitionOwner::Admin, TransitionOwner::Decommission);
        let ways = [(Draining, admin), (Retired, work), (Removing, work)];
        fixture.move_without_run(&ways).await;
        let node = fixture.wait_for_state(Retired).await;
        assert_eq!(node.moved_by, TransitionOwner::Decommission);
        assert!(node.reason.contains("nothing works on it"), "{}", node.reason);
        sleep(Duration::from_secs(600)).await;
        let words = "enrolling active draining offline active draining retired removing retired";
        assert_eq!(fixture.state_history().await.join(" "), words);
        // An idle node or site costs nothing: no turn is due.
        let due = fixture.env.store.read((), |(), tx| Box::pin(tx.next_due())).await;
        assert_eq!(due, Ok(None));
    });
}

impl NodeFixture {
    /// Onboards nodes on new machines at a site.
    async fn onboard_all(&self, machines: &[String], site: &str) {
        for id in machines {
            let stand = InServiceDevice { target: device(id), rack: None, now: self.env.now() };
            stand.write(&self.env.store).await;
            let requested = Onboard { site: SiteId::trusted(site), ..onboard_request(id, "on") };
            self.process.engine.nodes().onboard(requested).await.expect("accepted");
        }
        self.wait_until_all(NodeState::Active).await;
    }

    async fn states(&self) -> Vec<NodeState> {
        self.env.records().await.nodes.into_iter().map(|node| node.state).collect()
    }

    async fn wait_until_all(&self, state: NodeState) {
        for _ in 0..3_600 {
            if self.states().await.iter().all(|one| *one == state) {
                return;
            }
            sleep(Duration::from_secs(1)).await;
        }
        panic!("the nodes never became {state}: {:?}", self.states().await);
    }

    async fn set_power_of_all(&self, machines: &[String], to: DesiredPower) {
        for id in machines {
            self.power(id, to).await;
        }
    }

    async fn wait_for_site_state(&self, id: &str, state: SiteState) -> Site {
        for _ in 0..3_600 {
            let site =
                self.process.engine.sites().get(&SiteId::trusted(id)).await.expect("the site");
            if site.state() == state {
                return site;
            }
            sleep(Duration::from_secs(1)).await;
        }
        panic!("{id} never became {state:?}");
    }

    /// The states in the history of a site.
    async fn site_state_history(&self, id: &str) -> String {
        let history = self.process.engine.history(id, 0, 1_000).await.expect("its history");
        let mut words: Vec<String> = history.into_iter().map(|event| event.state).collect();
        words.dedup();
        words.join(" ")
    }
}

fn machines(from: usize, count: usize) -> Vec<String> {
    (from..from + count).map(|n| format!("m-{n}")).collect()
}

#[test]
fn a_cut_off_site_raises_one_alarm_and_no_quarantine() {
    simulate(async {
        let fixture = NodeFixture::new().await;
        let machines = machines(2, 10);
        fixture.onboard_all(&machines, SITE).await;
        fixture.set_power_of_all(&machines, DesiredPower::Off).await;
        let cut_off = fixture.wait_for_site_state(SITE, SiteState::CutOff).await;
        assert_eq!(cut_off.alarms().len(), 1, "{cut_off:?}");
        assert!(fixture.states().await.iter().all(|state| *state == NodeState::Active), "held");
        // Nodes that are down go offline in the end, without quarantine, under the same alarm.
        sleep(Duration::from_secs(1_200)).await;
        assert!(fixture.states().await.iter().all(|state| *state == NodeState::Offline));
        sleep(Duration::from_secs(3_600)).await;
        assert_eq!(fixture.site().await.silence, cut_off.silence);
        fixture.set_power_of_all(&machines[..9], DesiredPower::On).await;
        // One silent node is no mass outage.
        fixture.wait_for_site_state(SITE, SiteState::Connected).await;
        fixture.set_power_of_all(&machines[9..], DesiredPower::On).await;
        fixture.wait_until_all(NodeState::Active).await;
        assert_eq!(fixture.site_state_history(SITE).await, "New Connected CutOff Connected");
        fixture.assert_no_violations();
    });
}

#[test]
fn a_small_cut_off_site_raises_an_alarm_and_its_nodes_go_offline() {
    simulate(async {
        let fixture = NodeFixture::new().await;
        let machines = machines(2, 2);
        fixture.onboard_all(&machines, SITE).await;
        fixture.set_power_of_all(&machines, DesiredPower::Off).await;
        fixture.wait_for_site_state(SITE, SiteState::CutOff).await;
        sleep(Duration::from_secs(240)).await;
        assert_eq!(fixture.states().await, [NodeState::Offline; 2]);
        sleep(Duration::from_secs(1_200)).await;
        assert_eq!(fixture.site().await.state(), SiteState::CutOff);
        fixture.set_power_of_all(&machines[..1], DesiredPower::On).await;
        fixture.wait_for_site_state(SITE, SiteState::Connected).await;
        assert_eq!(fixture.site_state_history(SITE).await, "New Connected CutOff Connected");
    });
}

/// Silence at all sites is reported as Farrier's own outage.
#[test]
fn silence_at_every_site_is_reported_as_farriers_outage() {
    simulate(async {
        let fixture = NodeFixture::new().await;
        node_scenarios::make_site(&fixture.client, "site-2").await;
        let (here, there) = (machines(2, 3), machines(5, 6));
        fixture.onboard_all(&here, SITE).await;
        fixture.onboard_all(&there, "site-2").await;
        fixture.set_power_of_all(&[here, there].concat(), DesiredPower::Off).await;
        for id in [SITE, "site-2"] {
            let site = fixture.wait_for_site_state(id, SiteState::CutOff).await;
            let message = site.silence.expect("an alarm").message;
            assert!(message.contains("at all others"), "{message}");
        }
    });
}

/// Reading a site on demand does not count as a reconciler pass.
#[test]
fn a_probe_on_demand_is_no_reconciler_pass() {
    simulate(async {
        let fixture = NodeFixture::serving().await;
        let (engine, site) = (&fixture.process.engine, SiteId::trusted(SITE));
        let before = engine.sites().answered_at(&site).await.expect("read");
        fixture.perform_in_maas(NodeStage::ReleaseMaasNode).await;
        for _ in 0..5 {
            engine.nodes().probe_site(&site).await.expect("probed");
            let node = fixture.node().await;
            assert_eq!(node.maas.as_ref().map(|observed| observed.state), Some(MaasState::Ready));
            assert_eq!((node.state, node.drift_passes), (NodeState::Active, 0));
        }
        let view = fixture.view().await;
        assert_eq!(view.site_answered, engine.sites().answered_at(&site).await.expect("read"));
        assert!(before < view.site_answered, "{before:?}");
        let node = fixture.wait_for_state(NodeState::Quarantined).await;
        assert_eq!(node.quarantine, Some(Quarantine::Drift));
        fixture.assert_no_violations();
    });
}

/// The silence timeout of a new node begins when it comes into service.
#[test]
fn a_new_node_gets_its_full_silence_timeout() {
    simulate(async {
        let fixture = NodeFixture::new().await;
        // At different times between two passes over its site.
        for seconds in 0..6 {
            sleep(Duration::from_secs(600 + seconds * 5)).await;
            let id = format!("m-{}", seconds + 2);
            fixture.onboard_all(&[id], SITE).await;
            sleep(Duration::from_secs(60)).await;
            assert_eq!(fixture.state_history().await, ["enrolling", "active"]);
        }
    });
}

/// A pass without news writes nothing.
#[test]
fn an_unchanged_site_is_not_written() {
    simulate(async {
        let fixture = NodeFixture::serving().await;
        sleep(Duration::from_secs(60)).await;
        let lengths = || async {
            let site = fixture.process.engine.history(SITE, 0, 1_000).await.expect("its history");
            (site.len(), fixture.node().await.head.version)
        };
        let before = lengths().await;
        sleep(Duration::from_secs(3_600)).await;
        assert_eq!(lengths().await, before);
    });
}

/// A MAAS that needs a minute for a list is read for a quarter of the time, and its nodes stay.
#[test]
fn a_slow_maas_is_read_less_often() {
    simulate(async {
        let fixture = NodeFixture::serving().await;
        let reads = fixture.process.injector.site_reads();
        let in_an_hour = || async {
            let before = reads.count.load(Ordering::Relaxed);
            sleep(Duration::from_secs(3_600)).await;
            reads.count.load(Ordering::Relaxed) - before
        };
        let usual = in_an_hour().await;
        assert!(usual > 60, "{usual} reads in an hour");
        reads.delay_seconds.store(60, Ordering::Relaxed);
        let slow = in_an_hour().await;
        assert!((12..=16).contains(&slow), "{slow} reads in an hour");
        assert_eq!(fixture.states().await, [NodeState::Active]);
        assert_eq!(fixture.site().await.state(), SiteState::Connected);
    });
}

/// A node record that cannot be decoded: its state is unknown and its fields are missing.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
struct UnreadableNode {
    head: RecordHeader,
}

impl Lifecycle for UnreadableNode {
    const KIND: SubjectKind = SubjectKind::Node;
    const STATES: &'static [&'static str] = &["abroad"];
    type TurnInput = ();

    fn head(&self) -> &RecordHeader {
        &self.head
    }

    fn head_mut(&mut self) -> &mut RecordHeader {
        &mut self.head
    }

    fn state_name(&self) -> &'static str {
        "abroad"
    }

    fn next(&self, _seen: &(), _now: Timestamp) -> LifecycleDecision<Self> {
        LifecycleDecision::Idle(IdleReason::new("never claimed"))
    }
}

async fn add_unreadable_node(tx: &mut Tx, now: Timestamp) -> Result<()> {
    let (id, site) = (NodeId::trusted("node-0"), SiteId::trusted(SITE));
    tx.attach_node(&id, &MachineId::trusted("m-9"), Some(&site))?;
    let head = RecordHeader::new(id.as_str(), Labels::new(), now);
    tx.insert_record(&mut UnreadableNode { head }, &event(now, "added")).await
}

/// The other nodes are still supervised and reconciled.
#[test]
fn an_unreadable_node_does_not_affect_others() {
    simulate(async {
        let fixture = NodeFixture::without_node_checks().await;
        let engine = &fixture.process.engine;
        let id = engine
            .nodes()
            .onboard(onboard_request(MACHINE, "on"))
            .await
            .expect("accepted")
            .node
            .id();
        fixture.wait_for_state(NodeState::Active).await;
        let now = fixture.env.now();
        let added = fixture
            .env
            .store
            .write("add_half", now, |now, tx| Box::pin(add_unreadable_node(tx, *now)));
        added.await.expect("added");
        let becomes = |state: NodeState| {
            let id = &id;
            async move {
                for _ in 0..3_600 {
                    if engine.nodes().get(id).await.expect("its view").node.state == state {
                        return;
                    }
                    sleep(Duration::from_secs(1)).await;
                }
                panic!("the node never became {state}");
            }
        };
        fixture.power(MACHINE, DesiredPower::Off).await;
        becomes(NodeState::Offline).await;
        fixture.power(MACHINE, DesiredPower::On).await;
        becomes(NodeState::Active).await;
        fixture.perform_in_maas_for(NodeStage::ReleaseMaasNode, &id).await;
        becomes(NodeState::Quarantined).await;
    });
}
