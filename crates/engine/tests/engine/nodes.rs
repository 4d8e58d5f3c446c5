//! Nodes in simulated time: brought into service and out of it, heard and not heard, as MAAS has them and as it does not.

use crate::clients::Door;
use crate::node_lives::{self, MACHINE, NodeAsk};
use crate::rack_world::{Stand, device};
use crate::world::{Process, World, simulate};
use engine::nodes::NodeView;
use model::node::{Node, NodeState};
use model::run::Workflow;
use std::time::Duration;
use tokio::time::sleep;

/// A machine at a site, and whoever asks.
pub struct Scene {
    pub world: World,
    pub process: Process,
    pub door: Door,
}

impl Scene {
    pub async fn new() -> Self {
        let world = World::new(1).await;
        let process = world.boot("one").await;
        let door = Door::to(&process.engine);
        let stand = Stand { target: device(MACHINE), rack: None, now: world.now() };
        world.store.write(stand).await.expect("it stands");
        world.nodes_are_watched();
        node_lives::make_site(&door).await;
        Self { world, process, door }
    }

    pub async fn ask(&self, ask: NodeAsk, name: &str) {
        node_lives::ask(&self.door, &self.world, ask, name).await;
    }

    pub async fn node(&self) -> Node {
        self.world.everything().await.nodes.into_iter().next_back().expect("a node")
    }

    pub async fn view(&self) -> NodeView {
        self.process.engine.node(&self.node().await.id()).await.expect("its view")
    }

    /// Waits until the newest node is in a state.
    pub async fn until(&self, state: NodeState) -> Node {
        for _ in 0..3_600 {
            let node = self.node().await;
            if node.state == state {
                return node;
            }
            sleep(Duration::from_secs(1)).await;
        }
        panic!("it never became {state}: {:?}", self.view().await.told)
    }
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
