//! A caller of the MAAS provider for tests. It keeps the state store, so that every call can go to
//! a process without memory, and stores what a stage learns of the machine in its node, as the
//! engine does.

use crate::crash_injector::{CountingStateStore, CrashInjector};
use crate::maas_api::{KEY, MaasApi, NodeStatus};
use model::credential::CredentialPolicy;
use model::effect::{
    CallOutcome, CallResult, CallVerb, Effect, EffectKey, ProviderAnswer, ProviderCall,
};
use model::fault::{Fault, FaultCode};
use model::id::{MachineId, NodeId, RunId, SiteId};
use model::lifecycle::Lifecycle;
use model::machine::{Labels, MachineSpec};
use model::node::{Node, NodeStage, NodeState};
use model::retry::Backoff;
use model::site::{Network, Site, SiteSpec};
use model::target::TargetId;
use model::time::Timestamp;
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

pub struct MaasFixture {
    pub api: MaasApi,
    pub store: Arc<InMemoryStateStore>,
    pub crash_injector: Arc<CrashInjector>,
    pub settings: Settings,
    pub target: Target,
    pub run: String,
    /// Reaches the hosts of machines, if set.
    pub hosts: Option<Arc<dyn Provider>>,
}

impl MaasFixture {
    pub async fn new() -> Self {
        Self::with(CrashInjector::new(None)).await
    }

    pub async fn with(injector: Arc<CrashInjector>) -> Self {
        let api = MaasApi::start().await.unwrap();
        let store = Arc::new(InMemoryStateStore::default());
        let password = |text: &str| Secret::Password {
            user: "root".into(),
            password: text.to_string().into(),
        };
        store.set_credential("maas-east", Secret::MaasKey { key: KEY.to_string().into() });
        store.bind_credential("bmc", password("calvin"), bound(&["0.0.0.0/0", "::/0"]));
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
        settings.poll_interval = Duration::from_millis(2);
        settings.in_flight_window = Duration::ZERO;
        settings.list_max_age = Duration::ZERO;
        settings.host_wait = Duration::ZERO;
        settings.client.backoff =
            Backoff { initial: Duration::from_millis(1), max: Duration::from_millis(5) };
        settings.power_timeouts = PowerTimeouts {
            graceful: Duration::ZERO,
            force: true,
            change: Duration::from_secs(20),
            repeat_after: Duration::from_secs(1),
        };
        let spec = MachineSpec {
            bmc_endpoint: "https://10.0.0.5".into(),
            bmc_credential: "bmc".into(),
            mac_addresses: vec![MAC.into(), "aa:bb:cc:00:00:02".into()],
            ..MachineSpec::default()
        };
        let target = Target { id: TargetId::from(&MachineId::trusted("m-1")), spec };
        let fixture = Self {
            api,
            store,
            crash_injector: injector,
            settings,
            target,
            run: RUN.into(),
            hosts: None,
        };
        fixture.put_node(NODE, "", NodeState::Enrolling);
        fixture
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
    pub fn add(&self, status: NodeStatus) -> String {
        let mut env = self.api.state();
        let id = env.add(MAC).system_id.clone();
        let card = env.interface(&id, "roce0", "aa:bb:cc:00:00:02");
        let disk = env.disk("nvme0n1", "MZQL2", 3_840);
        let machine = env.machines.get_mut(&id).unwrap();
        machine.interfaces.push(card);
        machine.disks.push(disk);
        machine.status = status;
        machine.power_type = "redfish".into();
        if !matches!(status, NodeStatus::New | NodeStatus::Ready | NodeStatus::Broken) {
            machine.owner = Some("admin".into());
        }
        drop(env);
        self.put_node(NODE, &id, NodeState::Enrolling);
        id
    }

    /// Marks a machine as installed by a run, for a node.
    pub fn mark(&self, id: &str, node: &str, key: &str) {
        let mut env = self.api.state();
        let marks = &mut env.machines.get_mut(id).unwrap().annotations;
        marks.insert("farrier-node".into(), node.into());
        marks.insert("farrier-key".into(), key.into());
    }

    pub fn status(&self, id: &str) -> NodeStatus {
        self.api.state().machines[id].status
    }

    pub fn count(&self, id: &str, name: &str) -> usize {
        self.api.state().count(id, name)
    }

    /// A process without memory.
    pub fn replica(&self) -> MaasProvider {
        let store = CountingStateStore {
            inner: Arc::clone(&self.store),
            crash_injector: Arc::clone(&self.crash_injector),
        };
        let provider = MaasProvider::new(Arc::new(store), self.settings.clone());
        match &self.hosts {
            Some(hosts) => provider.with_hosts(Arc::clone(hosts)),
            None => provider,
        }
    }

    pub async fn call_effect(
        &self,
        verb: CallVerb,
        effect: &Effect,
        attempt: u32,
    ) -> (CallResult, String) {
        let key = EffectKey::new(&RunId::trusted(&self.run), effect.name(), attempt);
        let call = ProviderCall { key, verb, effect: effect.clone(), log_offset_bytes: 0 };
        self.call(&call).await
    }

    /// Makes a call, and stores what it learns in the node. Returns the answer and the log.
    pub async fn call(&self, call: &ProviderCall) -> (CallResult, String) {
        let (journal, mut lines) = Journal::new();
        let reader = tokio::spawn(async move {
            let mut log = String::new();
            while let Some(line) = lines.recv().await {
                log.push_str(&String::from_utf8(line.data).unwrap());
            }
            log
        });
        let answer = self.replica().call(&self.target, call, &journal).await;
        drop(journal);
        if let Ok(ProviderAnswer::Done(CallOutcome { facts: Some(facts), .. })) = &answer {
            let mut node = self.node().await;
            node.merge_facts(facts);
            self.store.set_node(node);
        }
        (answer, reader.await.unwrap())
    }

    pub async fn call_stage(&self, stage: NodeStage, verb: CallVerb) -> CallResult {
        self.call_effect(verb, &effect(stage, false), 1).await.0
    }

    /// Performs a stage that must succeed. Returns its message.
    pub async fn perform(&self, stage: NodeStage) -> String {
        done_message(self.call_stage(stage, CallVerb::Perform).await, stage)
    }

    /// Performs a stage that must fail, in its own attempt.
    pub async fn perform_failing(&self, stage: NodeStage, attempt: u32) -> Fault {
        match self.call_effect(CallVerb::Perform, &effect(stage, false), attempt).await.0 {
            Err(fault) => fault,
            other => panic!("{stage}: {other:?}"),
        }
    }

    pub async fn assert_fails(&self, stage: NodeStage, code: FaultCode, words: &[&str]) {
        let fault = self.perform_failing(stage, 1).await;
        assert_eq!(fault.code, code, "{stage}: {fault}");
        assert!(words.iter().all(|name| fault.message.contains(name)), "{stage}: {fault}");
    }

    pub async fn undo(&self, stage: NodeStage) -> String {
        done_message(self.call_effect(CallVerb::Perform, &effect(stage, true), 1).await.0, stage)
    }
}

fn done_message(answer: CallResult, stage: NodeStage) -> String {
    match answer {
        Ok(ProviderAnswer::Done(outcome)) => outcome.message,
        other => panic!("{stage}: {other:?}"),
    }
}

pub fn effect(stage: NodeStage, undo: bool) -> Effect {
    let (node, site) = (NodeId::trusted(NODE), Some(SiteId::trusted(SITE)));
    Effect::Stage { stage, node, site, provider: "maas".into(), undo }
}

/// A binding to these peers, over plain HTTP too.
pub fn bound(peers: &[&str]) -> CredentialPolicy {
    let peers: Vec<String> = peers.iter().map(ToString::to_string).collect();
    CredentialPolicy::parse("peers", &peers, true).unwrap()
}
