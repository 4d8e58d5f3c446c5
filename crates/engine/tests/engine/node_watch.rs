//! Nodes that somebody looks after: the guard over what is on its way.

use crate::nodes::Scene;
use crate::rack_world::event;
use crate::world::simulate;
use model::node::{Node, NodeState, Owner};
use model::time::Timestamp;
use std::time::Duration;
use store::{Result, Tx, Work};
use tokio::time::sleep;

/// Moves a node as nobody does: on its way, and nobody is at work on it.
struct Lose {
    node: Node,
    ways: Vec<(NodeState, Owner)>,
    now: Timestamp,
}

impl Work for Lose {
    type Out = ();

    async fn run(&self, tx: &mut Tx) -> Result<()> {
        let mut node = self.node.clone();
        for (to, owner) in &self.ways {
            let version = node.head.version;
            node = node.become_(*to, *owner, "lost on the way")?;
            node.head.version = version;
            tx.tell_record(&mut node, &event(self.now, "lost"))?;
        }
        Ok(())
    }
}

struct NextDue;

impl Work for NextDue {
    type Out = Option<Timestamp>;

    async fn run(&self, tx: &mut Tx) -> Result<Option<Timestamp>> {
        tx.next_due().await
    }
}

impl Scene {
    async fn lose(&self, ways: &[(NodeState, Owner)]) {
        let (node, now) = (self.node().await, self.world.now());
        self.world.store.write(Lose { node, ways: ways.to_vec(), now }).await.expect("lost");
    }

    /// The states that the newest node has been through.
    async fn words(&self) -> Vec<String> {
        let all = self.world.everything().await;
        let node = all.nodes.last().expect("a node");
        let mut words: Vec<String> =
            all.histories[&node.head.id].iter().map(|event| event.word.clone()).collect();
        words.dedup();
        words
    }
}

#[test]
fn nobody_is_left_on_the_way_when_nothing_works_on_it() {
    use NodeState::{Active, Draining, Offline, Removing, Retired};
    simulate(async {
        let scene = Scene::serving().await;
        scene.lose(&[(Draining, Owner::Admin)]).await;
        // It is heard of, so it does not stay offline.
        scene.until(Offline).await;
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
        // Whoever rests costs nothing: no turn is due, for a node or for its site.
        assert_eq!(scene.world.store.read(NextDue).await, Ok(None));
    });
}
