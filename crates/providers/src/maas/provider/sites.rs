//! One client per site, cached while its configuration is the same, so that rate limits are shared.
//! The list of all machines is single-flight: concurrent callers share one request.

use super::Settings;
use super::find::ListedMachine;
use super::shared_poll::SharedPoll;
use crate::http_client::Trust;
use crate::maas::{Address, ApiKey, Maas, MachineFilter};
use crate::peer_login::{PeerLogin, wrong_kind};
use crate::state_store::{Credential, ProviderStateStore, Secret};
use model::fault::{Fault, FaultCode, Result};
use model::id::SiteId;
use model::site::Site;
use secrecy::{ExposeSecret, SecretString};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{Mutex as AsyncMutex, OnceCell};
use tokio::time::Instant;

/// How many clients are cached. When there are more, the cache is cleared.
const MAX_OPEN: usize = 1_024;

pub(super) struct SiteClients {
    logins: PeerLogin,
    settings: Settings,
    clients: Mutex<BTreeMap<SiteId, Arc<SiteClient>>>,
}

/// The configuration of a client. A change replaces the client.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ClientConfig {
    url: String,
    credential: String,
    version: i64,
    at_once: u32,
    per_second: u32,
}

/// The client of one region.
pub(super) struct SiteClient {
    pub maas: Maas,
    config: ClientConfig,
    /// When the last list was requested, and its result.
    listed: AsyncMutex<Option<(Instant, Arc<Vec<ListedMachine>>)>>,
    user: OnceCell<String>,
    pub shared_poll: SharedPoll,
}

impl SiteClients {
    pub fn new(store: Arc<dyn ProviderStateStore>, settings: Settings) -> Self {
        Self { logins: PeerLogin(store), settings, clients: Mutex::default() }
    }

    pub async fn open(&self, site: &Site) -> Result<Arc<SiteClient>> {
        let spec = &site.spec;
        let credential = self.logins.0.credential(&spec.maas_credential).await?;
        let made_of = ClientConfig {
            url: spec.maas_url.clone(),
            credential: credential.name.clone(),
            version: credential.version,
            at_once: spec.calls_at_once,
            per_second: spec.calls_per_second,
        };
        if let Some(open) = self.cached(&site.id(), &made_of) {
            return Ok(open);
        }
        let maas = self.connect(&made_of, &credential).await?;
        let (listed, user) = (AsyncMutex::default(), OnceCell::new());
        let open =
            SiteClient { maas, config: made_of, listed, user, shared_poll: SharedPoll::default() };
        Ok(self.insert_or_reuse(site.id(), open))
    }

    fn cached(&self, site: &SiteId, made_of: &ClientConfig) -> Option<Arc<SiteClient>> {
        let open = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        open.get(site).filter(|open| open.config == *made_of).map(Arc::clone)
    }

    /// Another caller may have opened it meanwhile: then both use that one.
    fn insert_or_reuse(&self, site: SiteId, new: SiteClient) -> Arc<SiteClient> {
        let mut open = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if open.len() >= MAX_OPEN {
            open.clear();
        }
        match open.get(&site).filter(|known| known.config == new.config) {
            Some(known) => Arc::clone(known),
            None => {
                let new = Arc::new(new);
                open.insert(site, Arc::clone(&new));
                new
            }
        }
    }

    async fn connect(&self, made_of: &ClientConfig, credential: &Credential) -> Result<Maas> {
        let unfit = |message: String| Fault::new(FaultCode::SiteUnfit, message);
        let address = Address::parse(&made_of.url)
            .map_err(|refusal| unfit(format!("site.spec.{}", refusal.message)))?;
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
            max_in_flight: made_of.at_once as usize,
            per_second: made_of.per_second,
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
                credential,
                "an API key of MAAS: farrier credential set NAME --maas-key FILE",
            ))
        }
    }
}

impl SiteClient {
    /// All machines of the region. Waiting callers share the next request that starts after theirs.
    pub async fn list(&self) -> Result<Arc<Vec<ListedMachine>>> {
        let called_at = Instant::now();
        let mut listed = self.listed.lock().await;
        if let Some((requested, machines)) = listed.as_ref()
            && *requested > called_at
        {
            return Ok(Arc::clone(machines));
        }
        let requested = Instant::now();
        let machines = self.maas.machines(&MachineFilter::default()).await?;
        let machines = Arc::new(machines.iter().map(ListedMachine::of).collect());
        *listed = Some((requested, Arc::clone(&machines)));
        Ok(machines)
    }

    /// The MAAS user of our API key.
    pub async fn user(&self) -> Result<&str> {
        let request = || async { Ok(self.maas.whoami().await?.username) };
        self.user.get_or_try_init(request).await.map(String::as_str)
    }
}
