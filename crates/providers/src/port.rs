//! The interface between the engine and the providers.

use crate::bmc_discovery::BmcDiscovery;
use crate::cluster_check::{ClusterInspector, DrainPreview};
use crate::datacenter::Datacenter;
use crate::inspect::Inspector;
use crate::secret_mask::SecretMask;
use crate::sim::Sim;
use crate::webhook::WebhookSender;
use async_trait::async_trait;
use model::condition::ConditionObservation;
use model::effect::{CallResult, Capability, DeviceFacts, DrainOptions, ProviderCall};
use model::fault::{Fault, FaultCode, Result};
use model::id::{MachineId, NodeId};
use model::machine::{DiskReport, MachineSpec};
use model::node::MaasObservation;
use model::refusal::Refusal;
use model::site::Site;
use model::target::TargetId;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use tokio::sync::mpsc;

/// The machine or device of a provider call.
#[derive(Debug, Clone)]
pub struct Target {
    pub id: TargetId,
    pub spec: MachineSpec,
}

impl Target {
    /// Clusters and deployments know machines only; the simulator treats every device as one.
    pub fn machine_id(&self) -> MachineId {
        MachineId::trusted(self.id.as_str())
    }

    /// The name under which Farrier joins the machine to its cluster.
    pub(crate) fn node_name(&self) -> String {
        self.spec.node_name_of(self.id.as_str())
    }

    /// The names to look for in the cluster: the one above, and its host name if it was installed
    /// by other means and its id is a name with dots.
    pub(crate) fn node_names(&self) -> Vec<String> {
        let name = self.node_name();
        let host = hostname(self.id.as_str());
        let other = self.spec.node_name.is_empty() && host != name;
        [name].into_iter().chain(other.then_some(host)).collect()
    }
}

/// A node that a site is polled for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SiteNode {
    pub id: NodeId,
    pub machine: MachineId,
    /// The machine's id in MAAS; empty until it was found there.
    pub system_id: String,
}

/// The report of the MAAS of a site: the machines of its nodes at least, and how many it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SiteObservation {
    pub machines: Vec<UpstreamMachine>,
    pub total: usize,
}

/// A machine as the MAAS of its site reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamMachine {
    pub system_id: String,
    /// Its node, if the provider knows it.
    pub node: Option<NodeId>,
    pub upstream: MaasObservation,
    /// True if its agent sends heartbeats, if the provider knows it.
    pub agent_online: Option<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

/// A piece of log output of the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogOutput {
    pub stream: Stream,
    pub data: Vec<u8>,
}

/// The channel to which a provider writes the log of a call. Writing waits while the channel is
/// full, so a gigabyte of output costs time and not memory.
#[derive(Debug, Clone)]
pub struct Journal {
    lines: mpsc::Sender<LogOutput>,
    /// The last report of the call about the disk: a percentage, or one of the marks below.
    disk_report: Arc<AtomicU8>,
    mask: SecretMask,
}

/// Nothing has been reported about the disk.
const NO_REPORT: u8 = u8::MAX;
/// The call has written nothing, and nothing that it started will.
const UNTOUCHED: u8 = NO_REPORT - 1;

impl Journal {
    /// The number of chunks that may wait to be stored.
    pub const CAPACITY: usize = 256;

    pub fn new() -> (Self, mpsc::Receiver<LogOutput>) {
        let (sender, receiver) = mpsc::channel(Self::CAPACITY);
        let disk_report = Arc::new(AtomicU8::new(NO_REPORT));
        (Self { lines: sender, disk_report, mask: SecretMask::default() }, receiver)
    }

    /// The same log, in which the credentials of a call are masked.
    pub(crate) fn masked(&self, mask: SecretMask) -> Self {
        Self { mask, ..self.clone() }
    }

    /// The mask of the log, for other texts of the same call.
    pub(crate) fn mask(&self) -> &SecretMask {
        &self.mask
    }

    /// Writes one line. A closed log is not an error.
    pub async fn write_line(&self, text: impl AsRef<str>) {
        let mut data = text.as_ref().as_bytes().to_vec();
        data.push(b'\n');
        self.write(Stream::Stdout, data).await;
    }

    pub async fn write(&self, stream: Stream, data: Vec<u8>) {
        let data = match self.mask.bytes(&data) {
            Cow::Borrowed(_) => data,
            Cow::Owned(masked) => masked,
        };
        let _ = self.lines.send(LogOutput { stream, data }).await;
    }

    /// Reports how much of the disk is written. If the write does not finish, the record of the
    /// machine keeps the last report.
    pub fn report_written(&self, percent: u64) {
        let percent = u8::try_from(percent.min(100)).unwrap_or(NO_REPORT);
        self.disk_report.store(percent, Ordering::Relaxed);
    }

    /// Reports that nothing was written under the key of the call, and that nothing will be: its
    /// request was refused or not sent. The record of the machine then gets back what was true
    /// before. Never reported on hope.
    pub fn report_untouched(&self) {
        self.disk_report.store(UNTOUCHED, Ordering::Relaxed);
    }

    pub fn disk_report(&self) -> Option<DiskReport> {
        match self.disk_report.load(Ordering::Relaxed) {
            NO_REPORT => None,
            UNTOUCHED => Some(DiskReport::Untouched),
            percent => Some(DiskReport::Written(percent)),
        }
    }
}

#[async_trait]
pub trait Provider: Send + Sync {
    fn name(&self) -> &'static str;

    fn capabilities(&self) -> &'static [Capability];

    /// True if its devices, their agents and their clusters exist only inside the provider: it then
    /// acts for the agents itself, and reaches no cluster of another provider's machines.
    fn is_simulated(&self) -> bool {
        false
    }

    /// Refuses a machine with a spec that cannot belong to the provider.
    fn check(&self, _spec: &MachineSpec) -> Result<(), Refusal> {
        Ok(())
    }

    /// The names of the machine's BMC and host in pins and lockouts.
    fn peers(&self, _spec: &MachineSpec) -> Vec<String> {
        Vec::new()
    }

    /// Executes one provider call. [`model::effect::CallVerb`] says which answers each verb allows.
    async fn call(&self, target: &Target, call: &ProviderCall, journal: &Journal) -> CallResult;

    /// Probes the machine; changes nothing.
    async fn probe(&self, target: &Target) -> Result<Vec<ConditionObservation>>;

    /// Reads the state of a switch or power shelf; changes nothing. Cheap enough for polling.
    async fn poll_device(&self, target: &Target) -> Result<DeviceFacts> {
        let message = format!("{} cannot look at {}", self.name(), target.id);
        Err(Fault::new(FaultCode::NotSupported, message))
    }

    /// Reads the machines of a site's nodes; changes nothing. Sites with the same MAAS share what
    /// is read. `nodes`: those of the site.
    async fn observe_site(&self, site: &Site, _nodes: &[SiteNode]) -> Result<SiteObservation> {
        let message = format!("{} cannot look at {}", self.name(), site.head.id);
        Err(Fault::new(FaultCode::NotSupported, message))
    }

    /// One machine as the MAAS of a site reports it; None: MAAS has no such machine.
    async fn find_at_site(&self, site: &Site, target: &Target) -> Result<Option<MaasObservation>> {
        let message = format!("{} cannot look for {} at {}", self.name(), target.id, site.head.id);
        Err(Fault::new(FaultCode::NotSupported, message))
    }

    /// True if an image must be in the catalogue before it can be installed.
    fn requires_catalog(&self) -> bool {
        false
    }

    /// Checks an image where the provider has images of its own; changes nothing. The fault
    /// `image-unknown` says that there is no such image.
    async fn check_image(&self, _target: &Target, _image: &str) -> Result<()> {
        Ok(())
    }

    /// True if the next boot of the machine is from its disk; changes nothing. None: the provider
    /// does not know.
    async fn boots_from_disk(&self, _target: &Target) -> Result<Option<bool>> {
        Ok(None)
    }

    /// Probes the hardware components of the machine; changes nothing. Expensive, so it is rarely
    /// called. The evidence is about `Degraded`; None: there is no BMC to read.
    async fn probe_hardware(&self, _target: &Target) -> Result<Option<ConditionObservation>> {
        Ok(None)
    }

    /// The reason why calls to the machine do not work normally, in one sentence, without calling
    /// it.
    fn degraded_reason(&self, _target: &Target) -> Option<String> {
        None
    }

    /// Reads machines for operators, where it has [`Capability::Inspect`].
    fn inspector(&self) -> Option<&dyn Inspector> {
        None
    }

    /// Finds and tests BMCs, where its machines have any.
    fn bmc_discovery(&self) -> Option<&dyn BmcDiscovery> {
        None
    }

    /// Checks clusters, where it reaches them.
    fn cluster_inspector(&self) -> Option<&dyn ClusterInspector> {
        None
    }

    /// The preview of a drain of the machine's node; changes nothing. Empty: there is no cluster.
    async fn preview_drain(
        &self,
        _target: &Target,
        _options: &DrainOptions,
    ) -> Result<DrainPreview> {
        Ok(DrainPreview::default())
    }

    /// Gauges of the provider, by metric name.
    fn gauges(&self) -> Vec<(&'static str, usize)> {
        Vec::new()
    }
}

pub(crate) use model::text::hostname;

/// The providers of this process, by name.
#[derive(Clone, Default)]
pub struct Providers {
    by_name: BTreeMap<&'static str, Arc<dyn Provider>>,
    webhooks: Option<Arc<dyn WebhookSender>>,
}

impl Providers {
    #[must_use]
    pub fn with(mut self, provider: Arc<dyn Provider>) -> Self {
        self.by_name.insert(provider.name(), provider);
        self
    }

    #[must_use]
    pub fn with_webhooks(self, sender: Arc<dyn WebhookSender>) -> Self {
        Self { webhooks: Some(sender), ..self }
    }

    /// The sender of notices; None: this process sends none.
    pub fn webhooks(&self) -> Option<&Arc<dyn WebhookSender>> {
        self.webhooks.as_ref()
    }

    pub fn get(&self, name: &str) -> Option<&Arc<dyn Provider>> {
        self.by_name.get(name)
    }

    /// The provider that reaches the cluster of a machine: its own, or any real one that can.
    pub fn cluster_provider(&self, own: &str) -> Option<&Arc<dyn Provider>> {
        let speaks =
            |one: &&Arc<dyn Provider>| one.capabilities().contains(&Capability::ClusterJoin);
        let real = self.by_name.values().filter(|one| !one.is_simulated());
        self.get(own).into_iter().chain(real).find(speaks)
    }

    pub fn is_simulated(&self, name: &str) -> bool {
        self.get(name).is_some_and(|provider| provider.is_simulated())
    }

    /// The provider of a machine or device whose owner names none. The simulator is never the
    /// default: a real machine would show simulated health.
    pub fn default_for(&self, spec: &MachineSpec) -> Option<&'static str> {
        let has_bmc = !spec.bmc_endpoint.is_empty();
        let provider = self.get(Datacenter::NAME).filter(|_| has_bmc)?;
        Some(provider.name())
    }

    /// The refusal of a provider that this server does not have.
    pub fn refuse_unknown(&self, field: &str, name: &str) -> Refusal {
        let problem = format!("{name:?} is not a provider of this server");
        let names = self.names().join(", ");
        let instead = match name == Sim::NAME {
            true => format!("start it with --simulate or --demo, or use one of: {names}"),
            false => format!("use one of: {names}"),
        };
        Refusal::invalid(field, problem, instead)
    }

    pub fn gauges(&self) -> Vec<(&'static str, usize)> {
        self.by_name.values().flat_map(|provider| provider.gauges()).collect()
    }

    pub fn names(&self) -> Vec<&'static str> {
        self.by_name.keys().copied().collect()
    }
}
