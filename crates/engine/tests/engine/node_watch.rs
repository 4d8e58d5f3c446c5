//! Supervision of nodes: stuck transitions, heartbeats, and the reconciliation of sites.

use crate::node_scenarios::{self, MACHINE, SITE};
use crate::nodes::{Scene, onboard};
use crate::rack_world::{Stand, device, event};
use crate::world::simulate;
use engine::node::Onboard;
use model::effect::PowerTo;
use model::id::{MachineId, NodeId, SiteId};
use model::lifecycle::{Head, Lifecycle, Next, SubjectKind, Why};
use model::machine::Labels;
use model::node::{Node, NodeState, Owner, Quarantine, Stage, Upstream};
use model::site::{Site, SiteState};
use model::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use store::{Result, Tx};
use tokio::time::sleep;

/// Moves a node into a transitional state without a run, as no component does.
struct Lose {
    node: Node,
    ways: Vec<(NodeState, Owner)>,
    now: Timestamp,
}

impl Lose {
    async fn run(&self, tx: &mut Tx) -> Result<()> {
        let mut node = self.node.clone();
        for (to, owner) in &self.ways {
            let version = node.head.version;
            node = node.become_(*to, *owner, "lost on the way")?;
            node.head.version = version;
            tx.update_and_enqueue(&mut node, &event(self.now, "lost"))?;
        }
        Ok(())
    }
}

impl Scene {
    async fn lose(&self, ways: &[(NodeState, Owner)]) {
        let (node, now) = (self.node().await, self.world.now());
        let lose = Lose { node, ways: ways.to_vec(), now };
        let lost = self.world.store.write("lose", lose, |lose, tx| Box::pin(lose.run(tx)));
        lost.await.expect("moved");
    }

    /// The states in the history of the newest node.
    async fn words(&self) -> Vec<String> {
        let all = self.world.everything().await;
        let node = all.records.nodes.last().expect("a node");
        let mut words: Vec<String> =
            all.histories[&node.head.id].iter().map(|event| event.word.clone()).collect();
        words.dedup();
        words
    }
}

#[test]
fn nobody_is_left_on_the_way_when_nothing_works_on_it() {
    use NodeState::{Active, Draining, Removing, Retired};
    simulate(async {
        let scene = Scene::serving().await;
        scene.lose(&[(Draining, Owner::Admin)]).await;
        // It goes offline, and the next heartbeat makes it active.
        sleep(Duration::from_secs(30)).await;
        let node = scene.until(Active).await;
        assert_eq!(node.moved_by, Owner::Heartbeat);
        let (admin, work) = (Owner::Admin, Owner::Decommission);
        let ways = [(Draining, admin), (Retired, work), (Removing, work)];
        scene.lose(&ways).await;
        let node = scene.until(Retired).await;
        assert_eq!(node.moved_by, Owner::Decommission);
        assert!(node.reason.contains("nothing works on it"), "{}", node.reason);
        sleep(Duration::from_secs(600)).await;
        let words = "enrolling active draining offline active draining retired removing retired";
        assert_eq!(scene.words().await.join(" "), words);
        // An idle node or site costs nothing: no turn is due.
        let due = scene.world.store.read((), |(), tx| Box::pin(tx.next_due())).await;
        assert_eq!(due, Ok(None));
    });
}

impl Scene {
    /// Onboards nodes on new machines at a site.
    async fn serve(&self, machines: &[String], site: &str) {
        for id in machines {
            let stand = Stand { target: device(id), rack: None, now: self.world.now() };
            stand.write(&self.world.store).await;
            let asked = Onboard { site: SiteId::trusted(site), ..onboard(id, "on") };
            self.process.engine.nodes().onboard(asked).await.expect("accepted");
        }
        self.all_become(NodeState::Active).await;
    }

    async fn states(&self) -> Vec<NodeState> {
        self.world.records().await.nodes.into_iter().map(|node| node.state).collect()
    }

    async fn all_become(&self, state: NodeState) {
        for _ in 0..3_600 {
            if self.states().await.iter().all(|one| *one == state) {
                return;
            }
            sleep(Duration::from_secs(1)).await;
        }
        panic!("the nodes never became {state}: {:?}", self.states().await);
    }

    async fn switch(&self, machines: &[String], to: PowerTo) {
        for id in machines {
            self.power(id, to).await;
        }
    }

    async fn site_becomes(&self, id: &str, state: SiteState) -> Site {
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
    async fn site_words(&self, id: &str) -> String {
        let history = self.process.engine.history(id, 0, 1_000).await.expect("its history");
        let mut words: Vec<String> = history.into_iter().map(|event| event.word).collect();
        words.dedup();
        words.join(" ")
    }
}

fn machines(from: usize, count: usize) -> Vec<String> {
    (from..from + count).map(|n| format!("m-{n}")).collect()
}

#[test]
fn a_site_that_is_cut_off_is_one_alarm_and_no_quarantine() {
    simulate(async {
        let scene = Scene::new().await;
        let machines = machines(2, 10);
        scene.serve(&machines, SITE).await;
        scene.switch(&machines, PowerTo::Off).await;
        let cut_off = scene.site_becomes(SITE, SiteState::CutOff).await;
        assert_eq!(cut_off.alarms().len(), 1, "{cut_off:?}");
        assert!(scene.states().await.iter().all(|state| *state == NodeState::Active), "held");
        // Nodes that are down go offline in the end, without quarantine, under the same alarm.
        sleep(Duration::from_secs(1_200)).await;
        assert!(scene.states().await.iter().all(|state| *state == NodeState::Offline));
        sleep(Duration::from_secs(3_600)).await;
        assert_eq!(scene.site().await.silence, cut_off.silence);
        scene.switch(&machines[..9], PowerTo::On).await;
        // One silent node is no mass outage.
        scene.site_becomes(SITE, SiteState::Connected).await;
        scene.switch(&machines[9..], PowerTo::On).await;
        scene.all_become(NodeState::Active).await;
        assert_eq!(scene.site_words(SITE).await, "New Connected CutOff Connected");
        scene.witnessed_nothing();
    });
}

#[test]
fn all_of_a_few_are_an_alarm_and_go_offline_at_once() {
    simulate(async {
        let scene = Scene::new().await;
        let machines = machines(2, 2);
        scene.serve(&machines, SITE).await;
        scene.switch(&machines, PowerTo::Off).await;
        scene.site_becomes(SITE, SiteState::CutOff).await;
        sleep(Duration::from_secs(240)).await;
        assert_eq!(scene.states().await, [NodeState::Offline; 2]);
        sleep(Duration::from_secs(1_200)).await;
        assert_eq!(scene.site().await.state(), SiteState::CutOff);
        scene.switch(&machines[..1], PowerTo::On).await;
        scene.site_becomes(SITE, SiteState::Connected).await;
        assert_eq!(scene.site_words(SITE).await, "New Connected CutOff Connected");
    });
}

/// Silence at all sites is reported as Farrier's own outage.
#[test]
fn silence_at_every_site_is_farriers_own() {
    simulate(async {
        let scene = Scene::new().await;
        node_scenarios::make_site(&scene.door, "site-2").await;
        let (here, there) = (machines(2, 3), machines(5, 6));
        scene.serve(&here, SITE).await;
        scene.serve(&there, "site-2").await;
        scene.switch(&[here, there].concat(), PowerTo::Off).await;
        for id in [SITE, "site-2"] {
            let site = scene.site_becomes(id, SiteState::CutOff).await;
            let said = site.silence.expect("an alarm").said;
            assert!(said.contains("everywhere"), "{said}");
        }
    });
}

/// Reading a site on demand does not count as a reconciler pass.
#[test]
fn a_look_counts_for_nothing() {
    simulate(async {
        let scene = Scene::serving().await;
        let (engine, site) = (&scene.process.engine, SiteId::trusted(SITE));
        let before = engine.sites().answered_at(&site).await.expect("read");
        scene.in_maas(Stage::ReleaseMaasNode).await;
        for _ in 0..5 {
            engine.nodes().probe_site(&site).await.expect("probed");
            let node = scene.node().await;
            assert_eq!(node.upstream.as_ref().map(|seen| seen.state), Some(Upstream::Ready));
            assert_eq!((node.state, node.passes), (NodeState::Active, 0));
        }
        let view = scene.view().await;
        assert_eq!(view.site_answered, engine.sites().answered_at(&site).await.expect("read"));
        assert!(before < view.site_answered, "{before:?}");
        let node = scene.until(NodeState::Quarantined).await;
        assert_eq!(node.quarantine, Some(Quarantine::Drift));
        scene.witnessed_nothing();
    });
}

/// The silence timeout of a new node begins when it comes into service.
#[test]
fn a_node_that_has_just_come_into_service_is_waited_for() {
    simulate(async {
        let scene = Scene::new().await;
        // At different times between two passes over its site.
        for seconds in 0..6 {
            sleep(Duration::from_secs(600 + seconds * 5)).await;
            let id = format!("m-{}", seconds + 2);
            scene.serve(&[id], SITE).await;
            sleep(Duration::from_secs(60)).await;
            assert_eq!(scene.words().await, ["enrolling", "active"]);
        }
    });
}

/// A pass without news writes nothing.
#[test]
fn what_stays_as_it_is_has_no_history() {
    simulate(async {
        let scene = Scene::serving().await;
        sleep(Duration::from_secs(60)).await;
        let lengths = || async {
            let site = scene.process.engine.history(SITE, 0, 1_000).await.expect("its history");
            (site.len(), scene.node().await.head.version)
        };
        let before = lengths().await;
        sleep(Duration::from_secs(3_600)).await;
        assert_eq!(lengths().await, before);
    });
}

/// A node record that cannot be decoded: its state is unknown and its fields are missing.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
struct Half {
    head: Head,
}

impl Lifecycle for Half {
    const KIND: SubjectKind = SubjectKind::Node;
    const STATES: &'static [&'static str] = &["abroad"];
    type Seen = ();

    fn head(&self) -> &Head {
        &self.head
    }

    fn head_mut(&mut self) -> &mut Head {
        &mut self.head
    }

    fn word(&self) -> &'static str {
        "abroad"
    }

    fn next(&self, _seen: &(), _now: Timestamp) -> Next<Self> {
        Next::Rest(Why::new("never claimed"))
    }
}

async fn add_half(tx: &mut Tx, now: Timestamp) -> Result<()> {
    let (id, site) = (NodeId::trusted("node-0"), SiteId::trusted(SITE));
    tx.place_node(&id, &MachineId::trusted("m-9"), Some(&site))?;
    let head = Head::new(id.as_str(), Labels::new(), now);
    tx.insert_record(&mut Half { head }, &event(now, "added")).await
}

/// The other nodes are still supervised and reconciled.
#[test]
fn a_node_that_cannot_be_read_keeps_nobody_from_its_neighbours() {
    simulate(async {
        let scene = Scene::unwatched().await;
        let engine = &scene.process.engine;
        let id = engine.nodes().onboard(onboard(MACHINE, "on")).await.expect("accepted").node.id();
        scene.until(NodeState::Active).await;
        let now = scene.world.now();
        let added =
            scene.world.store.write("add_half", now, |now, tx| Box::pin(add_half(tx, *now)));
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
        scene.power(MACHINE, PowerTo::Off).await;
        becomes(NodeState::Offline).await;
        scene.power(MACHINE, PowerTo::On).await;
        becomes(NodeState::Active).await;
        scene.by_maas(Stage::ReleaseMaasNode, &id).await;
        becomes(NodeState::Quarantined).await;
    });
}
