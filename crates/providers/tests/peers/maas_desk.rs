//! A caller of the MAAS provider for tests. It keeps the state store, so that every call can go to
//! a process without memory, and stores what a stage learns of the machine in its node, as the
//! engine does.

use crate::maas_api::{KEY, MaasApi};
use crate::reaper::{Reaper, Watched};
use model::effect::{Answer, Effect, Key, Order, Outcome, Verb};
use model::fault::{Code, Fault};
use model::id::{MachineId, NodeId, RunId, SiteId};
use model::lifecycle::Lifecycle;
use model::machine::{Labels, MachineSpec};
use model::node::{Node, NodeState, Stage};
use model::retry::Backoff;
use model::site::{Network, Site, SiteSpec};
use model::target::TargetId;
use model::time::Timestamp;
use providers::maas::Status;
use providers::maas::provider::{MaasProvider, Settings};
use providers::peer_login::TrustPolicy;
use providers::power::PowerTimeouts;
use providers::state_store::{InMemoryStateStore, ProviderStateStore, Secret};
use providers::{Journal, Provider, Target};
use std::sync::Arc;
use std::time::Duration;

pub const MAC: &str = "aa:bb:cc:00:00:01";
pub const SITE: &str = "site-east";
pub const NODE: &str = "node-1";
pub const RUN: &str = "op-1";
pub const SUBNET: &str = "192.168.50.0/24";

pub struct Desk {
    pub api: MaasApi,
    pub store: Arc<InMemoryStateStore>,
    pub reaper: Arc<Reaper>,
    pub settings: Settings,
    pub target: Target,
    pub run: String,
}

impl Desk {
    pub async fn new() -> Self {
        Self::with(Reaper::new(None)).await
    }

    pub async fn with(reaper: Arc<Reaper>) -> Self {
        let api = MaasApi::start().await.unwrap();
        let store = Arc::new(InMemoryStateStore::default());
        let password = |text: &str| Secret::Password {
            user: "root".into(),
            password: text.to_string().into(),
        };
        store.set("maas-east", Secret::MaasKey { key: KEY.to_string().into() });
        store.set("bmc", password("calvin"));
        let spec = SiteSpec {
            maas_url: api.url(),
            maas_credential: "maas-east".into(),
            zone: "east".into(),
            pool: "gpu".into(),
            network: Network {
                roce_interfaces: "roce".into(),
                roce_mtu: 9_000,
                roce_subnet: SUBNET.into(),
            },
            calls_per_second: 1_000,
            ..SiteSpec::default()
        };
        let now = Timestamp::default();
        store.set_site(Site::new(&SiteId::trusted(SITE), spec, Labels::new(), now));
        let mut settings = Settings::new("http://farrier:8440".into(), TrustPolicy::FirstUse);
        // Any file has a checksum.
        settings.agent_binary = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml").into();
        settings.look_every = Duration::from_millis(2);
        settings.in_flight = Duration::ZERO;
        settings.client.pauses =
            Backoff { first: Duration::from_millis(1), most: Duration::from_millis(5) };
        settings.power_timeouts = PowerTimeouts {
            graceful: Duration::ZERO,
            force: true,
            change: Duration::from_secs(20),
            again: Duration::from_secs(1),
        };
        let spec = MachineSpec {
            bmc_endpoint: "https://10.0.0.5".into(),
            bmc_credential: "bmc".into(),
            mac_addresses: vec![MAC.into(), "aa:bb:cc:00:00:02".into()],
            ..MachineSpec::default()
        };
        let target = Target { id: TargetId::from(&MachineId::trusted("m-1")), spec };
        let desk = Self { api, store, reaper, settings, target, run: RUN.into() };
        desk.put_node(NODE, "", NodeState::Enrolling);
        desk
    }

    pub fn put_node(&self, id: &str, system_id: &str, state: NodeState) {
        let now = Timestamp::default();
        let mut node = Node::new(&NodeId::trusted(id), &MachineId::trusted("m-1"), state, now);
        node.site = Some(SiteId::trusted(SITE));
        node.system_id = system_id.into();
        self.store.set_node(node);
    }

    pub async fn node(&self) -> Node {
        self.store.node(&NodeId::trusted(NODE)).await.unwrap()
    }

    pub async fn change_site(&self, change: impl FnOnce(&mut SiteSpec)) {
        let mut site = self.store.site(&SiteId::trusted(SITE)).await.unwrap();
        change(&mut site.spec);
        self.store.set_site(site);
    }

    /// Adds a machine with fabric cards to MAAS and links the node to it. Returns its system id.
    pub fn add(&self, status: Status) -> String {
        let mut world = self.api.world();
        let id = world.add(MAC).system_id.clone();
        let card = world.interface(&id, "roce0", "aa:bb:cc:00:00:02");
        let disk = world.disk("nvme0n1", "MZQL2", 3_840);
        let machine = world.machines.get_mut(&id).unwrap();
        machine.interfaces.push(card);
        machine.disks.push(disk);
        machine.status = status;
        machine.power_type = "redfish".into();
        if !matches!(status, Status::New | Status::Ready | Status::Broken) {
            machine.owner = Some("admin".into());
        }
        drop(world);
        self.put_node(NODE, &id, NodeState::Enrolling);
        id
    }

    /// Marks a machine as installed by a run, for a node.
    pub fn mark(&self, id: &str, node: &str, key: &str) {
        let mut world = self.api.world();
        let marks = &mut world.machines.get_mut(id).unwrap().annotations;
        marks.insert("farrier-node".into(), node.into());
        marks.insert("farrier-key".into(), key.into());
    }

    pub fn status(&self, id: &str) -> Status {
        self.api.world().machines[id].status
    }

    pub fn count(&self, id: &str, name: &str) -> usize {
        self.api.world().count(id, name)
    }

    /// A process without memory.
    pub fn replica(&self) -> MaasProvider {
        let store = Watched { kept: Arc::clone(&self.store), reaper: Arc::clone(&self.reaper) };
        MaasProvider::new(Arc::new(store), self.settings.clone())
    }

    pub async fn ask_effect(
        &self,
        verb: Verb,
        effect: &Effect,
        attempt: u32,
    ) -> (Result<Answer, Fault>, String) {
        let key = Key::new(&RunId::trusted(&self.run), effect.word(), attempt);
        let order = Order { key, verb, effect: effect.clone(), logged: 0 };
        let (journal, mut lines) = Journal::new();
        let reader = tokio::spawn(async move {
            let mut log = String::new();
            while let Some(line) = lines.recv().await {
                log.push_str(&String::from_utf8(line.data).unwrap());
            }
            log
        });
        let answer = self.replica().ask(&self.target, &order, &journal).await;
        drop(journal);
        if let Ok(Answer::Done(Outcome { facts: Some(facts), .. })) = &answer {
            let mut node = self.node().await;
            node.learn(facts);
            self.store.set_node(node);
        }
        (answer, reader.await.unwrap())
    }

    pub async fn ask(&self, stage: Stage, verb: Verb) -> Result<Answer, Fault> {
        self.ask_effect(verb, &effect(stage, false), 1).await.0
    }

    /// Performs a stage that must succeed. Returns its message.
    pub async fn done(&self, stage: Stage) -> String {
        said(self.ask(stage, Verb::Perform).await, stage)
    }

    /// Performs a stage that must fail, in its own attempt.
    pub async fn fails(&self, stage: Stage, attempt: u32) -> Fault {
        match self.ask_effect(Verb::Perform, &effect(stage, false), attempt).await.0 {
            Err(fault) => fault,
            other => panic!("{stage}: {other:?}"),
        }
    }

    pub async fn fails_as(&self, stage: Stage, code: Code, words: &[&str]) {
        let fault = self.fails(stage, 1).await;
        assert_eq!(fault.code, code, "{stage}: {fault}");
        assert!(words.iter().all(|word| fault.said.contains(word)), "{stage}: {fault}");
    }

    pub async fn undo(&self, stage: Stage) -> String {
        said(self.ask_effect(Verb::Perform, &effect(stage, true), 1).await.0, stage)
    }
}

fn said(answer: Result<Answer, Fault>, stage: Stage) -> String {
    match answer {
        Ok(Answer::Done(outcome)) => outcome.said,
        other => panic!("{stage}: {other:?}"),
    }
}

pub fn effect(stage: Stage, undo: bool) -> Effect {
    let (node, site) = (NodeId::trusted(NODE), Some(SiteId::trusted(SITE)));
    Effect::Stage { stage, node, site, by: "maas".into(), undo }
}
