//! Live hardware queries through the machine's provider, within a timeout. A summary of an
//! inspection is stored; the other results are not.
//!
//! Only BMC discovery may write: it registers new machines on request. A machine's id is derived
//! from what was found, so concurrent discoveries register it once.

use super::Machines;
use crate::{DescribedMachine, Engine, FaultResult};
use futures_util::stream::{self, BoxStream, StreamExt};
use model::effect::Capability;
use model::fault::{Fault, FaultCode};
use model::filter::Filter;
use model::id::MachineId;
use model::machine::matcher::{MachineMatch, MachineMatcher, id_for, register_command, spec_for};
use model::machine::{Labels, Machine};
use model::refusal::{Reason, Refusal};
use model::target::TargetId;
use model::time::format_duration;
use providers::bmc_discovery::{
    BmcAccess, BmcDiscovery, BmcProbeResult, BmcTestReport, DiscoveredSystem,
};
use providers::inspect::{Inspection, Inspector};
use providers::power::PowerState;
use providers::redfish::LogEntry;
use providers::{Provider, Target};
use std::sync::Arc;
use std::time::Duration;
use store::{Result, StoreError};
use tokio::time::timeout;

/// The timeout of a query, whatever the provider allows.
const QUERY_TIMEOUT: Duration = Duration::from_secs(600);
/// The most entries read from an event log.
pub const MAX_LOG: usize = 500;
/// Machines per page.
const PAGE: i64 = 500;

/// The reason why a query failed.
#[derive(Debug)]
pub enum HardwareError {
    Store(StoreError),
    /// The device failed or cannot be reached.
    Fault(Fault),
}

impl From<StoreError> for HardwareError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<Refusal> for HardwareError {
    fn from(refusal: Refusal) -> Self {
        Self::Store(refusal.into())
    }
}

impl From<Fault> for HardwareError {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// A request to discover BMCs.
#[derive(Debug, Clone)]
pub struct DiscoveryRequest {
    pub endpoints: Vec<String>,
    /// Empty: the configured default.
    pub credential: String,
    /// Empty: the first provider that can discover BMCs.
    pub provider: String,
    /// Register new machines with these labels. None: register nothing.
    pub import: Option<Labels>,
    pub at_once: usize,
    pub actor: String,
}

/// The result for one address.
#[derive(Debug)]
pub struct DiscoveryResult {
    pub address: String,
    pub probed: usize,
    pub total: usize,
    pub outcome: DiscoveryOutcome,
}

#[derive(Debug)]
pub enum DiscoveryOutcome {
    NoAnswer(String),
    Failed(Fault),
    Found(Vec<(DiscoveredSystem, RegistrationStatus)>),
}

/// The registration of a discovered machine.
#[derive(Debug)]
pub enum RegistrationStatus {
    New,
    Known(MachineId, &'static str),
    Doubtful(MachineId, String),
    Registered(Box<Machine>),
    Refused(String),
}

impl Machines {
    /// Reads the machine's hardware, and records a summary of it.
    pub async fn inspect(&self, id: &MachineId) -> HardwareResult<Inspection> {
        let (provider, target) = self.provider_and_target(id).await?;
        let found = within(&target, inspector(&*provider, &target)?.inspect(&target)).await?;
        self.record_inspection(id, &found).await;
        Ok(found)
    }

    /// The newest entries of the BMC's event log, newest first.
    pub async fn event_log(&self, id: &MachineId) -> HardwareResult<Vec<LogEntry>> {
        let (provider, target) = self.provider_and_target(id).await?;
        within(&target, inspector(&*provider, &target)?.event_log(&target, MAX_LOG)).await
    }

    pub async fn power(&self, id: &MachineId) -> HardwareResult<PowerState> {
        let (provider, target) = self.provider_and_target(id).await?;
        within(&target, inspector(&*provider, &target)?.power_now(&target)).await
    }

    async fn provider_and_target(
        &self,
        id: &MachineId,
    ) -> HardwareResult<(Arc<dyn Provider>, Target)> {
        let machine = self.get(id).await?;
        let name = &machine.spec.provider;
        let provider =
            self.0.providers().get(name).ok_or_else(|| unknown_provider(&self.0, &machine))?;
        Ok((Arc::clone(provider), Target { id: TargetId::from(&machine.id), spec: machine.spec }))
    }

    /// The provider for BMC discovery: the named one, or the first that can.
    fn discovery_provider(&self, name: &str) -> HardwareResult<Arc<dyn Provider>> {
        let names = self.0.providers().names();
        let able =
            |name: &str| self.0.providers().get(name).filter(|one| one.bmc_discovery().is_some());
        let found = match name {
            "" => names.iter().find_map(|name| able(name)),
            name => able(name),
        };
        let found = found.cloned().ok_or_else(|| {
            let able: Vec<&str> = names.into_iter().filter(|name| able(name).is_some()).collect();
            let instead = format!("use one of: {}", able.join(", "));
            Refusal::invalid("provider", format!("{name:?} finds no BMCs"), instead)
        })?;
        Ok(found)
    }

    /// Tests the connection to a BMC. The result has its peer name and the registered machine, if
    /// any.
    pub async fn test_bmc(&self, approach: &BmcAccess) -> HardwareResult<BmcTestResult> {
        let provider = self.discovery_provider("")?;
        let discovery = able(&*provider)?;
        let peer = discovery.peer(&approach.endpoint).unwrap_or_else(|_| approach.endpoint.clone());
        let credential = discovery.credential(&approach.credential).await.unwrap_or_default();
        let report = timeout(QUERY_TIMEOUT, discovery.test_bmc(approach)).await;
        let report = report.map_err(|_| late(&peer))?;
        let status = match &report.chosen {
            Some(observed) => Some(self.load_matcher().await?.find_match(observed)),
            None => None,
        };
        Ok(BmcTestResult {
            peer,
            report,
            machine_match: status,
            provider: provider.name(),
            credential,
        })
    }

    /// The name of a BMC in pins and lockouts.
    pub fn bmc_peer(&self, endpoint: &str) -> HardwareResult<String> {
        let provider = self.discovery_provider("")?;
        Ok(able(&*provider)?.peer(endpoint).map_err(|fault| {
            let instead = "write 10.1.0.7, https://10.1.0.7 or ipmi://10.1.0.7";
            Refusal::invalid("endpoint", format!("cannot be used ({})", fault.message), instead)
        })?)
    }

    /// Probes every address, several at a time, and streams the results in order of completion.
    pub async fn discover(
        &self,
        search: DiscoveryRequest,
    ) -> HardwareResult<BoxStream<'static, Result<DiscoveryResult>>> {
        let provider = self.discovery_provider(&search.provider)?;
        let credential = able(&*provider)?.credential(&search.credential).await?;
        let clerk = DiscoveryRecorder {
            engine: self.0.clone(),
            matcher: self.load_matcher().await?,
            provider: provider.name(),
            credential: credential.clone(),
            import: search.import,
            actor: search.actor,
        };
        let (total, at_once) = (search.endpoints.len(), search.at_once.max(1));
        let surveys = stream::iter(search.endpoints).map(move |address| {
            let (provider, credential) = (Arc::clone(&provider), credential.clone());
            // In its own task: a slow reader of the results must not block the BMC governor.
            tokio::spawn(async move {
                let survey = survey(&*provider, &address, &credential).await;
                (address, survey)
            })
        });
        let surveys = surveys.buffer_unordered(at_once).enumerate();
        let reported = stream::unfold(
            (Box::pin(surveys), clerk),
            move |(mut surveys, mut clerk)| async move {
                let (index, survey) = surveys.next().await?;
                let reported = clerk.record(index + 1, total, survey).await;
                Some((reported, (surveys, clerk)))
            },
        );
        Ok(reported.boxed())
    }

    /// All registered machines, indexed by their identifying attributes; also those that the caller
    /// may not see, or they would be registered again.
    async fn load_matcher(&self) -> Result<MachineMatcher> {
        let all = Self(self.0.as_internal());
        let mut matcher = MachineMatcher::default();
        let mut after = None;
        loop {
            let page = all.list(Filter::default(), after, PAGE).await?;
            page.machines.iter().for_each(|machine| matcher.add(machine));
            for row in page.unreadable {
                let id = MachineId::trusted(row.id);
                let read = self
                    .0
                    .store()
                    .read_one(id.clone(), |id, tx| Box::pin(tx.spec_of_unreadable_machine(id)));
                matcher.add_unreadable(&id, &read.await?);
            }
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(matcher),
            }
        }
    }
}

/// The result of a BMC test.
#[derive(Debug)]
pub struct BmcTestResult {
    pub peer: String,
    pub report: BmcTestReport,
    /// The registered machine behind the BMC, if any.
    pub machine_match: Option<MachineMatch>,
    /// The provider that a registration would name.
    pub provider: &'static str,
    pub credential: String,
}

impl BmcTestResult {
    /// The next command for the operator.
    pub fn next(&self) -> String {
        let peer = &self.peer;
        if let Some(fault) = &self.report.ended_by {
            let (refused, changed) = (FaultCode::LoginRefused, FaultCode::IdentityChanged);
            return if fault.code == refused {
                format!("farrier bmc unlock {peer}   # once the credential is right")
            } else if fault.code == changed {
                format!("farrier trust forget {peer}   # if its certificate was changed on purpose")
            } else if fault.code == FaultCode::CredentialMissing {
                "farrier credential list".into()
            } else if let (FaultCode::CredentialNotAllowed, Some(name), Some(binding)) =
                (fault.code, &fault.facts().credential, &fault.facts().binding)
            {
                format!("farrier credential set {name} {binding} …")
            } else {
                format!("farrier fault {}", fault.code.as_str())
            };
        }
        match (&self.report.chosen, &self.machine_match) {
            (_, Some(MachineMatch::Known(id, _))) => format!("farrier machine inspect {id}"),
            (_, Some(MachineMatch::Doubtful(id, _))) => format!("farrier get {id}"),
            (Some(observed), Some(MachineMatch::New) | None) => {
                let spec = spec_for(observed, self.provider, &self.credential);
                register_command(observed, &spec, &Labels::new())
            }
            (None, Some(MachineMatch::New) | None) => format!("farrier bmc test {peer}"),
        }
    }
}

pub(crate) type HardwareResult<T> = std::result::Result<T, HardwareError>;
type Surveyed = std::result::Result<(String, BmcProbeResult), tokio::task::JoinError>;

async fn survey(provider: &dyn Provider, address: &str, credential: &str) -> BmcProbeResult {
    let Some(discovery) = provider.bmc_discovery() else {
        return BmcProbeResult::Failed(late(address));
    };
    let requested = timeout(QUERY_TIMEOUT, discovery.discover(address, credential)).await;
    requested.unwrap_or_else(|_| BmcProbeResult::Failed(late(address)))
}

/// Compares discovered machines with registered ones, sequentially, so that none is registered
/// twice.
struct DiscoveryRecorder {
    engine: Engine,
    matcher: MachineMatcher,
    provider: &'static str,
    credential: String,
    import: Option<Labels>,
    actor: String,
}

impl DiscoveryRecorder {
    async fn record(
        &mut self,
        requested: usize,
        total: usize,
        survey: Surveyed,
    ) -> Result<DiscoveryResult> {
        let (address, survey) =
            survey.map_err(|_| StoreError::Corrupt("the probe of an address panicked".into()))?;
        let outcome = match survey {
            BmcProbeResult::NoAnswer(message) => DiscoveryOutcome::NoAnswer(message),
            BmcProbeResult::Failed(fault) => DiscoveryOutcome::Failed(fault),
            BmcProbeResult::Found(all) => {
                let mut reported = Vec::new();
                for found in all {
                    let status = self.register_if_new(&found).await?;
                    reported.push((found, status));
                }
                DiscoveryOutcome::Found(reported)
            }
        };
        Ok(DiscoveryResult { address, probed: requested, total, outcome })
    }

    async fn register_if_new(&mut self, found: &DiscoveredSystem) -> Result<RegistrationStatus> {
        match self.matcher.find_match(&found.system) {
            MachineMatch::Known(id, mark) => Ok(RegistrationStatus::Known(id, mark.as_str())),
            MachineMatch::Doubtful(id, message) => Ok(RegistrationStatus::Doubtful(id, message)),
            MachineMatch::New => match self.import.clone() {
                None => Ok(RegistrationStatus::New),
                Some(labels) => self.register(found, labels).await,
            },
        }
    }

    async fn register(
        &mut self,
        found: &DiscoveredSystem,
        labels: Labels,
    ) -> Result<RegistrationStatus> {
        let spec = spec_for(&found.system, self.provider, &self.credential).checked();
        let spec = match spec {
            Ok(spec) => spec,
            Err(refusal) => return Ok(RegistrationStatus::Refused(refusal.message)),
        };
        let id = id_for(&found.system);
        // It may have been registered since the discovery began.
        if let Some(machine) = self.engine.store().machine(&id).await? {
            self.matcher.add(&machine);
            return Ok(match self.matcher.find_match(&found.system) {
                MachineMatch::Known(id, mark) => RegistrationStatus::Known(id, mark.as_str()),
                MachineMatch::Doubtful(id, message) => RegistrationStatus::Doubtful(id, message),
                MachineMatch::New => {
                    RegistrationStatus::Refused(format!("{id} was registered just now"))
                }
            });
        }
        let described = DescribedMachine { id: Some(id), spec: Some(spec), labels };
        match self.engine.machines().register(described, self.actor.clone()).await {
            Ok(machine) => {
                self.matcher.add(&machine);
                Ok(RegistrationStatus::Registered(Box::new(machine)))
            }
            Err(StoreError::Refused(refusal)) => Ok(RegistrationStatus::Refused(refusal.message)),
            Err(error) => Err(error),
        }
    }
}

async fn within<T>(
    target: &Target,
    probe: impl Future<Output = FaultResult<T>>,
) -> HardwareResult<T> {
    let looked = timeout(QUERY_TIMEOUT, probe).await;
    Ok(looked.map_err(|_| late(target.machine_id().as_str()))??)
}

fn inspector<'a>(provider: &'a dyn Provider, target: &Target) -> HardwareResult<&'a dyn Inspector> {
    let able = provider.capabilities().contains(&Capability::Inspect);
    let Target { id: machine_id, spec } = target;
    provider.inspector().filter(|_| able).ok_or_else(|| {
        let name = &spec.provider;
        let message =
            format!("{machine_id} cannot be looked at: its provider {name:?} has no Inspect");
        let refusal = Refusal::new(Reason::CapabilityMissing, message);
        refusal.next(format!("farrier get {machine_id}")).into()
    })
}

fn able(provider: &dyn Provider) -> HardwareResult<&dyn BmcDiscovery> {
    let none = || Refusal::new(Reason::NoBmcDiscovery, "no provider of this server finds BMCs");
    Ok(provider.bmc_discovery().ok_or_else(none)?)
}

fn unknown_provider(engine: &Engine, machine: &Machine) -> Refusal {
    let (id, name) = (&machine.id, &machine.spec.provider);
    let names = engine.providers().names().join(", ");
    let message = format!("{id} names the provider {name:?}, and this server has {names}");
    let next = format!("farrier machine update {id} --provider NAME");
    Refusal::new(Reason::ProviderMissing, message).next(next)
}

fn late(what: &str) -> Fault {
    let message = format!("{what} did not answer within {}", format_duration(QUERY_TIMEOUT));
    Fault::new(FaultCode::BmcUnreachable, message)
}
