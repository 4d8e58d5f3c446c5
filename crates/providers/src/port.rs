//! The port: what the engine sees of the world.

use crate::inspect::Inspector;
use crate::scout::Scout;
use async_trait::async_trait;
use model::condition::Evidence;
use model::effect::{Answer, Capability, Facts, Order};
use model::fault::{Code, Fault};
use model::id::{MachineId, NodeId};
use model::machine::MachineSpec;
use model::node::UpstreamSeen;
use model::refusal::Refusal;
use model::site::Site;
use model::target::TargetId;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::mpsc;

/// The machine or device an order is about.
#[derive(Debug, Clone)]
pub struct Target {
    pub id: TargetId,
    pub spec: MachineSpec,
}

impl Target {
    /// The name it goes by. Clusters and deployments know machines only; a simulator knows every device as one.
    pub fn machine_id(&self) -> MachineId {
        MachineId::trusted(self.id.as_str())
    }
}

/// A machine as the MAAS of its site has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sighting {
    pub system_id: String,
    /// The node that it is, where the provider knows.
    pub node: Option<NodeId>,
    pub seen: UpstreamSeen,
    /// Whether its agent is heard, where the provider knows.
    pub heard: Option<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

/// A piece of log as it came from the hardware.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    pub stream: Stream,
    pub data: Vec<u8>,
}

/// Where a provider writes the log of an order. It waits when the reader is behind, so that a
/// gigabyte of output costs time and not memory.
#[derive(Debug, Clone)]
pub struct Journal(mpsc::Sender<Line>);

impl Journal {
    /// How many lines may wait to be stored.
    pub const CAPACITY: usize = 256;

    pub fn new() -> (Self, mpsc::Receiver<Line>) {
        let (sender, receiver) = mpsc::channel(Self::CAPACITY);
        (Self(sender), receiver)
    }

    /// Writes one line. A log that nobody reads any more is no reason to fail.
    pub async fn line(&self, text: impl AsRef<str>) {
        let mut data = text.as_ref().as_bytes().to_vec();
        data.push(b'\n');
        self.write(Stream::Stdout, data).await;
    }

    pub async fn write(&self, stream: Stream, data: Vec<u8>) {
        let _ = self.0.send(Line { stream, data }).await;
    }
}

#[async_trait]
pub trait Provider: Send + Sync {
    fn name(&self) -> &'static str;

    fn capabilities(&self) -> &'static [Capability];

    /// Whether its devices, their agents and their clusters exist only inside the provider: it then
    /// acts for the agents itself, and reaches no cluster of another provider's machines.
    fn is_simulated(&self) -> bool {
        false
    }

    /// Whether a machine like this can be one of its own.
    fn check(&self, _spec: &MachineSpec) -> Result<(), Refusal> {
        Ok(())
    }

    /// Carries out one order. See [`model::effect::Verb`] for what each verb may answer.
    async fn ask(&self, target: &Target, order: &Order, journal: &Journal)
    -> Result<Answer, Fault>;

    /// Looks how the machine is, changing nothing.
    async fn probe(&self, target: &Target) -> Result<Vec<Evidence>, Fault>;

    /// Reads what a switch or a power shelf says of itself now, changing nothing. Cheap enough to be asked from time to time.
    async fn survey(&self, target: &Target) -> Result<Facts, Fault> {
        let said = format!("{} cannot look at {}", self.name(), target.id);
        Err(Fault::new(Code::NotSupported, said))
    }

    /// Looks at all machines of a site at once, changing nothing: one question for the whole site. `nodes` are those that Farrier has
    /// there.
    async fn observe_site(
        &self,
        site: &Site,
        _nodes: &[(NodeId, MachineId)],
    ) -> Result<Vec<Sighting>, Fault> {
        let said = format!("{} cannot look at {}", self.name(), site.head.id);
        Err(Fault::new(Code::NotSupported, said))
    }

    /// What the MAAS of a site has of one machine; none: it has no such machine.
    async fn find_at_site(
        &self,
        site: &Site,
        target: &Target,
    ) -> Result<Option<UpstreamSeen>, Fault> {
        let said = format!("{} cannot look for {} at {}", self.name(), target.id, site.head.id);
        Err(Fault::new(Code::NotSupported, said))
    }

    /// Whether images must be in the catalogue before it can install them.
    fn catalogued(&self) -> bool {
        false
    }

    /// Looks how the machine's parts are, changing nothing: a dear look, made rarely. The evidence is about `Degraded`; none
    /// where there is nobody to ask.
    async fn examine(&self, _target: &Target) -> Result<Option<Evidence>, Fault> {
        Ok(None)
    }

    /// What keeps it from talking to the machine as it would, in one sentence, as far as it knows without asking.
    fn hindrance(&self, _target: &Target) -> Option<String> {
        None
    }

    /// How a person looks at its machines, where it has [`Capability::Inspect`].
    fn inspector(&self) -> Option<&dyn Inspector> {
        None
    }

    /// How BMCs are found and tried out, where its machines have any.
    fn scout(&self) -> Option<&dyn Scout> {
        None
    }

    /// Numbers about itself, by the names of the metrics they are.
    fn gauges(&self) -> Vec<(&'static str, usize)> {
        Vec::new()
    }
}

/// The longest name of a host.
const MAX_HOSTNAME: usize = 63;

/// What the host on a machine is called where we name it: its id, as far as that may name a host.
pub(crate) fn hostname(machine: &str) -> String {
    let fit = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = machine.chars().take(MAX_HOSTNAME).map(fit).collect();
    name.trim_matches('-').to_owned()
}

/// The providers this process has, by name.
#[derive(Clone, Default)]
pub struct Providers {
    by_name: BTreeMap<&'static str, Arc<dyn Provider>>,
    /// For machines that name none: the one that came first.
    default: Option<&'static str>,
}

impl Providers {
    #[must_use]
    pub fn with(mut self, provider: Arc<dyn Provider>) -> Self {
        self.default.get_or_insert(provider.name());
        self.by_name.insert(provider.name(), provider);
        self
    }

    pub fn get(&self, name: &str) -> Option<&Arc<dyn Provider>> {
        self.by_name.get(name)
    }

    /// Who speaks to the cluster of a machine: its own provider where that can, or another one here that can. None: nobody.
    pub fn speaks_to_clusters(&self, own: &str) -> Option<&Arc<dyn Provider>> {
        let speaks =
            |one: &&Arc<dyn Provider>| one.capabilities().contains(&Capability::ClusterJoin);
        let real = self.by_name.values().filter(|one| !one.is_simulated());
        self.get(own).into_iter().chain(real).find(speaks)
    }

    /// Whether a provider of this name is here, and is simulated.
    pub fn is_simulated(&self, name: &str) -> bool {
        self.get(name).is_some_and(|provider| provider.is_simulated())
    }

    pub fn default_name(&self) -> Option<&'static str> {
        self.default
    }

    /// The numbers of all of them.
    pub fn gauges(&self) -> Vec<(&'static str, usize)> {
        self.by_name.values().flat_map(|provider| provider.gauges()).collect()
    }

    pub fn names(&self) -> Vec<&'static str> {
        self.by_name.keys().copied().collect()
    }
}
