//! Live hardware queries through the machine's provider, within a timeout. Results are not stored.
//!
//! Only BMC discovery may write: it registers new machines on request. A machine's id is derived
//! from what was found, so concurrent discoveries register it once.

use super::Machines;
use crate::{Described, Engine};
use futures_util::stream::{self, BoxStream, StreamExt};
use model::effect::Capability;
use model::fault::{Code, Fault};
use model::filter::Filter;
use model::id::MachineId;
use model::machine::roster::{Recognition, Roster, name_for, register_command, spec_for};
use model::machine::{Labels, Machine};
use model::refusal::Refusal;
use model::target::TargetId;
use model::time::spoken;
use providers::inspect::{Inspection, Inspector};
use providers::power::PowerState;
use providers::redfish::LogEntry;
use providers::scout::{Approach, Found, Report, Scout, Survey};
use providers::{Provider, Target};
use std::sync::Arc;
use std::time::Duration;
use store::{Result, StoreError};
use tokio::time::timeout;

/// The timeout of a query, whatever the provider allows.
const LOOK_WITHIN: Duration = Duration::from_secs(600);
/// The most entries read from an event log.
pub const MAX_LOG: usize = 500;
/// Machines per page.
const PAGE: i64 = 500;

/// Why a query failed.
#[derive(Debug)]
pub enum Missed {
    Store(StoreError),
    /// The device failed or cannot be reached.
    Fault(Fault),
}

impl From<StoreError> for Missed {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<Refusal> for Missed {
    fn from(refusal: Refusal) -> Self {
        Self::Store(refusal.into())
    }
}

impl From<Fault> for Missed {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// A request to discover BMCs.
#[derive(Debug, Clone)]
pub struct Search {
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
pub struct Discovered {
    pub address: String,
    pub asked: usize,
    pub total: usize,
    pub outcome: Outcome,
}

#[derive(Debug)]
pub enum Outcome {
    Nobody(String),
    Failed(Fault),
    Found(Vec<(Found, Standing)>),
}

/// The registration of a discovered machine.
#[derive(Debug)]
pub enum Standing {
    New,
    Known(MachineId, &'static str),
    Doubtful(MachineId, String),
    Registered(Box<Machine>),
    Refused(String),
}

impl Machines {
    pub async fn inspect(&self, id: &MachineId) -> std::result::Result<Inspection, Missed> {
        let (provider, target) = self.to_look_at(id).await?;
        within(&target, inspector(&*provider, &target)?.inspect(&target)).await
    }

    /// The newest entries of the BMC's event log, newest first.
    pub async fn event_log(&self, id: &MachineId) -> std::result::Result<Vec<LogEntry>, Missed> {
        let (provider, target) = self.to_look_at(id).await?;
        within(&target, inspector(&*provider, &target)?.event_log(&target, MAX_LOG)).await
    }

    pub async fn power(&self, id: &MachineId) -> std::result::Result<PowerState, Missed> {
        let (provider, target) = self.to_look_at(id).await?;
        within(&target, inspector(&*provider, &target)?.power_now(&target)).await
    }

    async fn to_look_at(
        &self,
        id: &MachineId,
    ) -> std::result::Result<(Arc<dyn Provider>, Target), Missed> {
        let machine = self.get(id).await?;
        let name = &machine.spec.provider;
        let provider =
            self.0.providers().get(name).ok_or_else(|| unknown_provider(&self.0, &machine))?;
        Ok((Arc::clone(provider), Target { id: TargetId::from(&machine.id), spec: machine.spec }))
    }

    /// The provider for BMC discovery: the named one, or the first that can.
    fn scouting(&self, name: &str) -> std::result::Result<Arc<dyn Provider>, Missed> {
        let names = self.0.providers().names();
        let able = |name: &str| self.0.providers().get(name).filter(|one| one.scout().is_some());
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
    pub async fn test_bmc(&self, approach: &Approach) -> std::result::Result<Tested, Missed> {
        let provider = self.scouting("")?;
        let scout = able(&*provider)?;
        let peer = scout.peer(&approach.endpoint).unwrap_or_else(|_| approach.endpoint.clone());
        let credential = scout.credential(&approach.credential).await.unwrap_or_default();
        let report = timeout(LOOK_WITHIN, scout.test(approach)).await;
        let report = report.map_err(|_| late(&peer))?;
        let standing = match &report.chosen {
            Some(seen) => Some(self.roster().await?.recognise(seen)),
            None => None,
        };
        Ok(Tested { peer, report, standing, provider: provider.name(), credential })
    }

    /// The name of a BMC in pins and lockouts.
    pub fn bmc_peer(&self, endpoint: &str) -> std::result::Result<String, Missed> {
        let provider = self.scouting("")?;
        Ok(able(&*provider)?.peer(endpoint).map_err(|fault| {
            let instead = "write 10.1.0.7, https://10.1.0.7 or ipmi://10.1.0.7";
            Refusal::invalid("endpoint", format!("cannot be used ({})", fault.said), instead)
        })?)
    }

    /// Probes every address, several at a time, and streams the results in order of completion.
    pub async fn discover(
        &self,
        search: Search,
    ) -> std::result::Result<BoxStream<'static, Result<Discovered>>, Missed> {
        let provider = self.scouting(&search.provider)?;
        let credential = able(&*provider)?.credential(&search.credential).await?;
        let clerk = Clerk {
            engine: self.0.clone(),
            roster: self.roster().await?,
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
        let told = stream::unfold(
            (Box::pin(surveys), clerk),
            move |(mut surveys, mut clerk)| async move {
                let (index, survey) = surveys.next().await?;
                let told = clerk.tell(index + 1, total, survey).await;
                Some((told, (surveys, clerk)))
            },
        );
        Ok(told.boxed())
    }

    /// All registered machines, indexed by their identifying attributes.
    async fn roster(&self) -> Result<Roster> {
        let mut roster = Roster::default();
        let mut after = None;
        loop {
            let page = self.list(Filter::default(), after, PAGE).await?;
            page.machines.iter().for_each(|machine| roster.add(machine));
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(roster),
            }
        }
    }
}

/// The result of a BMC test.
#[derive(Debug)]
pub struct Tested {
    pub peer: String,
    pub report: Report,
    /// The registered machine behind the BMC, if any.
    pub standing: Option<Recognition>,
    /// The provider that a registration would name.
    pub provider: &'static str,
    pub credential: String,
}

impl Tested {
    /// The next command for the operator.
    pub fn next(&self) -> String {
        let peer = &self.peer;
        if let Some(fault) = &self.report.ended_by {
            return match fault.code {
                Code::LoginRefused => {
                    format!("farrier bmc unlock {peer}   # once the credential is right")
                }
                Code::IdentityChanged => {
                    format!(
                        "farrier trust forget {peer}   # if its certificate was changed on purpose"
                    )
                }
                Code::CredentialMissing => "farrier credential list".into(),
                code => format!("farrier fault {}", code.as_str()),
            };
        }
        match (&self.report.chosen, &self.standing) {
            (_, Some(Recognition::Known(id, _))) => format!("farrier machine inspect {id}"),
            (_, Some(Recognition::Doubtful(id, _))) => format!("farrier get {id}"),
            (Some(seen), Some(Recognition::New) | None) => {
                let spec = spec_for(seen, self.provider, &self.credential);
                register_command(seen, &spec, &Labels::new())
            }
            (None, Some(Recognition::New) | None) => format!("farrier bmc test {peer}"),
        }
    }
}

type Surveyed = std::result::Result<(String, Survey), tokio::task::JoinError>;

async fn survey(provider: &dyn Provider, address: &str, credential: &str) -> Survey {
    let Some(scout) = provider.scout() else { return Survey::Failed(late(address)) };
    let asked = timeout(LOOK_WITHIN, scout.survey(address, credential)).await;
    asked.unwrap_or_else(|_| Survey::Failed(late(address)))
}

/// Compares discovered machines with registered ones, sequentially, so that none is registered
/// twice.
struct Clerk {
    engine: Engine,
    roster: Roster,
    provider: &'static str,
    credential: String,
    import: Option<Labels>,
    actor: String,
}

impl Clerk {
    async fn tell(&mut self, asked: usize, total: usize, survey: Surveyed) -> Result<Discovered> {
        let (address, survey) =
            survey.map_err(|_| StoreError::Corrupt("a panic while an address was asked".into()))?;
        let outcome = match survey {
            Survey::Nobody(said) => Outcome::Nobody(said),
            Survey::Failed(fault) => Outcome::Failed(fault),
            Survey::Found(all) => {
                let mut told = Vec::new();
                for found in all {
                    let standing = self.standing(&found).await?;
                    told.push((found, standing));
                }
                Outcome::Found(told)
            }
        };
        Ok(Discovered { address, asked, total, outcome })
    }

    async fn standing(&mut self, found: &Found) -> Result<Standing> {
        match self.roster.recognise(&found.sighting) {
            Recognition::Known(id, mark) => Ok(Standing::Known(id, mark.as_str())),
            Recognition::Doubtful(id, said) => Ok(Standing::Doubtful(id, said)),
            Recognition::New => match self.import.clone() {
                None => Ok(Standing::New),
                Some(labels) => self.register(found, labels).await,
            },
        }
    }

    async fn register(&mut self, found: &Found, labels: Labels) -> Result<Standing> {
        let spec = spec_for(&found.sighting, self.provider, &self.credential).checked();
        let spec = match spec {
            Ok(spec) => spec,
            Err(refusal) => return Ok(Standing::Refused(refusal.said)),
        };
        let id = name_for(&found.sighting);
        // It may have been registered since the discovery began.
        if let Some(machine) = self.engine.store().machine(&id).await? {
            self.roster.add(&machine);
            return Ok(match self.roster.recognise(&found.sighting) {
                Recognition::Known(id, mark) => Standing::Known(id, mark.as_str()),
                Recognition::Doubtful(id, said) => Standing::Doubtful(id, said),
                Recognition::New => Standing::Refused(format!("{id} was registered just now")),
            });
        }
        let described = Described { id: Some(id), spec: Some(spec), labels };
        match self.engine.machines().register(described, self.actor.clone()).await {
            Ok(machine) => {
                self.roster.add(&machine);
                Ok(Standing::Registered(Box::new(machine)))
            }
            Err(StoreError::Refused(refusal)) => Ok(Standing::Refused(refusal.said)),
            Err(error) => Err(error),
        }
    }
}

async fn within<T>(
    target: &Target,
    look: impl Future<Output = std::result::Result<T, Fault>>,
) -> std::result::Result<T, Missed> {
    let looked = timeout(LOOK_WITHIN, look).await;
    Ok(looked.map_err(|_| late(target.machine_id().as_str()))??)
}

fn inspector<'a>(
    provider: &'a dyn Provider,
    target: &Target,
) -> std::result::Result<&'a dyn Inspector, Missed> {
    let able = provider.capabilities().contains(&Capability::Inspect);
    let Target { id: machine_id, spec } = target;
    provider.inspector().filter(|_| able).ok_or_else(|| {
        let name = &spec.provider;
        let said =
            format!("{machine_id} cannot be looked at: its provider {name:?} has no Inspect");
        let refusal = Refusal::precondition("CAPABILITY_MISSING", said);
        refusal.next(format!("farrier get {machine_id}")).into()
    })
}

fn able(provider: &dyn Provider) -> std::result::Result<&dyn Scout, Missed> {
    let none = || Refusal::precondition("NO_SCOUT", "no provider of this server finds BMCs");
    Ok(provider.scout().ok_or_else(none)?)
}

fn unknown_provider(engine: &Engine, machine: &Machine) -> Refusal {
    let (id, name) = (&machine.id, &machine.spec.provider);
    let names = engine.providers().names().join(", ");
    let said = format!("{id} names the provider {name:?}, and this server has {names}");
    let next = format!("farrier machine update {id} --provider NAME");
    Refusal::precondition("PROVIDER_MISSING", said).next(next)
}

fn late(what: &str) -> Fault {
    let said = format!("{what} did not answer within {}", spoken(LOOK_WITHIN));
    Fault::new(Code::BmcUnreachable, said)
}
