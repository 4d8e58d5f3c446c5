//! One client per region and API key, shared by the sites there, so that they share its rate limits
//! and its list of machines. It is cached while its configuration is the same.

use super::Settings;
use super::find::ListedMachine;
use super::listing::RegionList;
use super::shared_poll::SharedPoll;
use crate::http_client::Trust;
use crate::maas::{Address, ApiKey, Maas};
use crate::peer_login::{PeerLogin, wrong_kind};
use crate::state_store::{Credential, ProviderStateStore, Secret};
use model::fault::{Fault, FaultCode, Result};
use model::id::SiteId;
use model::machine::MachineSpec;
use model::site::{Site, SiteSpec};
use secrecy::{ExposeSecret, SecretString};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::OnceCell;

/// The number of sites that are remembered. When there are more, all are forgotten.
const MAX_OPEN: usize = 1_024;

pub(super) struct SiteClients {
    logins: PeerLogin,
    settings: Settings,
    open: Mutex<OpenSites>,
}

/// The sites that were opened, and the clients of their regions.
#[derive(Default)]
struct OpenSites {
    sites: BTreeMap<SiteId, (RegionKey, CallLimits)>,
    clients: BTreeMap<RegionKey, Arc<SiteClient>>,
}

/// A region and the API key that it is called with. A changed credential is another key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct RegionKey {
    address: String,
    credential: String,
    version: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CallLimits {
    at_once: u32,
    per_second: u32,
}

impl CallLimits {
    fn of(spec: &SiteSpec) -> Self {
        Self { at_once: spec.calls_at_once, per_second: spec.calls_per_second }
    }

    fn min(self, other: Self) -> Self {
        Self {
            at_once: self.at_once.min(other.at_once),
            per_second: self.per_second.min(other.per_second),
        }
    }
}

/// The client of one region.
pub(super) struct SiteClient {
    pub maas: Maas,
    limits: CallLimits,
    pub list: RegionList,
    user: OnceCell<String>,
    administrator: OnceCell<()>,
    pub shared_poll: SharedPoll,
}

impl OpenSites {
    /// The limits of a region: the smallest of its sites.
    fn limits_of(&self, key: &RegionKey, own: CallLimits) -> CallLimits {
        let there = self.sites.values().filter(|(region, _)| region == key);
        there.map(|(_, limits)| *limits).fold(own, CallLimits::min)
    }

    fn client(&self, key: &RegionKey, limits: CallLimits) -> Option<Arc<SiteClient>> {
        self.clients.get(key).filter(|client| client.limits == limits).map(Arc::clone)
    }
}

impl SiteClients {
    pub fn new(store: Arc<dyn ProviderStateStore>, settings: Settings) -> Self {
        Self { logins: PeerLogin(store), settings, open: Mutex::default() }
    }

    pub async fn open(&self, site: &Site) -> Result<Arc<SiteClient>> {
        let spec = &site.spec;
        let unfit = |message: String| Fault::new(FaultCode::SiteUnfit, message);
        let address = Address::parse(&spec.maas_url)
            .map_err(|refusal| unfit(format!("site.spec.{}", refusal.message)))?;
        let peer = address.peer();
        let credential = self.logins.0.credential(&spec.maas_credential, &peer).await?;
        let key = RegionKey {
            address: address.to_string(),
            credential: credential.name.clone(),
            version: credential.version,
        };
        let limits = {
            let mut open = self.lock();
            if open.sites.len() >= MAX_OPEN {
                *open = OpenSites::default();
            }
            open.sites.insert(site.id(), (key.clone(), CallLimits::of(spec)));
            let limits = open.limits_of(&key, CallLimits::of(spec));
            if let Some(client) = open.client(&key, limits) {
                return Ok(client);
            }
            limits
        };
        let maas = self.connect(address, limits, &credential).await?;
        let client = SiteClient {
            maas,
            limits,
            list: RegionList::default(),
            user: OnceCell::new(),
            administrator: OnceCell::new(),
            shared_poll: SharedPoll::default(),
        };
        Ok(self.insert_or_reuse(key, client))
    }

    fn lock(&self) -> MutexGuard<'_, OpenSites> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another caller may have opened it meanwhile: then both use that one.
    fn insert_or_reuse(&self, key: RegionKey, new: SiteClient) -> Arc<SiteClient> {
        let mut open = self.lock();
        match open.client(&key, new.limits) {
            Some(known) => known,
            None => {
                let new = Arc::new(new);
                open.clients.insert(key, Arc::clone(&new));
                new
            }
        }
    }

    async fn connect(
        &self,
        address: Address,
        limits: CallLimits,
        credential: &Credential,
    ) -> Result<Maas> {
        let key = ApiKey::parse(api_key(credential)?.expose_secret()).map_err(|refusal| {
            let message = format!("the credential {:?}: {}", credential.name, refusal.message);
            Fault::new(FaultCode::CredentialMissing, message)
        })?;
        let peer = address.endpoint().to_string();
        let (trust, known) = match address.endpoint().tls() {
            true => self.logins.trust(&self.settings.trust, &peer).await?,
            // Plain HTTP has no certificate.
            false => (Trust::FirstUse(None), None),
        };
        let first =
            known.is_none() && matches!(trust, Trust::FirstUse(_)) && address.endpoint().tls();
        let settings = crate::maas::Settings {
            trust,
            allowed: credential.allowed.clone(),
            max_in_flight: limits.at_once as usize,
            per_second: limits.per_second,
            ..self.settings.client.clone()
        };
        let maas = Maas::new(address, key, settings)?;
        if first {
            maas.version().await?;
            if let Some(shown) = maas.fingerprint() {
                self.logins.trust_on_first_use(&peer, &shown.to_string()).await?;
            }
        }
        Ok(maas)
    }
}

fn api_key(credential: &Credential) -> Result<&SecretString> {
    match &credential.secret {
        Secret::MaasKey { key } => Ok(key),
        Secret::Password { .. } | Secret::Key { .. } | Secret::Kubeconfig { .. } => {
            Err(wrong_kind(
                &credential.name,
                "an API key of MAAS: farrier credential set NAME --maas-key FILE",
            ))
        }
    }
}

impl SiteClient {
    /// The MAAS user of our API key.
    pub async fn user(&self) -> Result<&str> {
        let request = || async { Ok(self.maas.whoami().await?.username) };
        self.user.get_or_try_init(request).await.map(String::as_str)
    }

    /// The machines among which a machine of the inventory is looked for. MAAS selects by MAC
    /// address and system id, but not by serial number.
    pub async fn candidates(
        &self,
        spec: &MachineSpec,
        id: Option<&str>,
    ) -> Result<Arc<Vec<ListedMachine>>> {
        match spec.serial.trim().is_empty() {
            true => self.list.matching(&self.maas, &spec.mac_addresses, id).await,
            false => self.list.whole(&self.maas).await,
        }
    }

    /// Refuses the key of a user who is no administrator: MAAS hides from it the machines of other
    /// users, which would look as if they were gone.
    pub async fn check_administrator(&self) -> Result<()> {
        let request = || async {
            match self.maas.whoami().await?.administrator_problem() {
                None => Ok(()),
                Some(problem) => Err(Fault::new(FaultCode::MaasRefused, problem)),
            }
        };
        self.administrator.get_or_try_init(request).await.copied()
    }
}
