//! One client per site, cached while its configuration is the same, so that rate limits are shared.
//! The list of all machines is single-flight: concurrent callers share one request.

use super::Settings;
use super::find::Listed;
use super::watching::Watching;
use crate::http_client::Trust;
use crate::maas::{Address, ApiKey, Filter, Maas};
use crate::peer_login::{PeerLogin, wrong_kind};
use crate::state_store::{Credential, ProviderStateStore, Secret};
use model::fault::{Code, Fault};
use model::id::SiteId;
use model::site::Site;
use secrecy::{ExposeSecret, SecretString};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{Mutex as AsyncMutex, OnceCell};
use tokio::time::Instant;

/// How many clients are cached. When there are more, the cache is cleared.
const MAX_OPEN: usize = 1_024;

pub(super) struct Sites {
    logins: PeerLogin,
    settings: Settings,
    open: Mutex<BTreeMap<SiteId, Arc<Open>>>,
}

/// The configuration of a client. A change replaces the client.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Makings {
    url: String,
    credential: String,
    version: i64,
    at_once: u32,
    per_second: u32,
}

/// The client of one region.
pub(super) struct Open {
    pub maas: Maas,
    made_of: Makings,
    /// When the last list was requested, and its result.
    listed: AsyncMutex<Option<(Instant, Arc<Vec<Listed>>)>>,
    user: OnceCell<String>,
    pub watching: Watching,
}

impl Sites {
    pub fn new(store: Arc<dyn ProviderStateStore>, settings: Settings) -> Self {
        Self { logins: PeerLogin(store), settings, open: Mutex::default() }
    }

    pub async fn open(&self, site: &Site) -> Result<Arc<Open>, Fault> {
        let spec = &site.spec;
        let credential = self.logins.0.credential(&spec.maas_credential).await?;
        let made_of = Makings {
            url: spec.maas_url.clone(),
            credential: credential.name.clone(),
            version: credential.version,
            at_once: spec.calls_at_once,
            per_second: spec.calls_per_second,
        };
        if let Some(open) = self.kept(&site.id(), &made_of) {
            return Ok(open);
        }
        let maas = self.connect(&made_of, &credential).await?;
        let (listed, user) = (AsyncMutex::default(), OnceCell::new());
        let open = Open { maas, made_of, listed, user, watching: Watching::default() };
        Ok(self.keep(site.id(), open))
    }

    fn kept(&self, site: &SiteId, made_of: &Makings) -> Option<Arc<Open>> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.get(site).filter(|open| open.made_of == *made_of).map(Arc::clone)
    }

    /// Another caller may have opened it meanwhile: then both use that one.
    fn keep(&self, site: SiteId, new: Open) -> Arc<Open> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.len() >= MAX_OPEN {
            open.clear();
        }
        match open.get(&site).filter(|known| known.made_of == new.made_of) {
            Some(known) => Arc::clone(known),
            None => {
                let new = Arc::new(new);
                open.insert(site, Arc::clone(&new));
                new
            }
        }
    }

    async fn connect(&self, made_of: &Makings, credential: &Credential) -> Result<Maas, Fault> {
        let unfit = |said: String| Fault::new(Code::SiteUnfit, said);
        let address = Address::parse(&made_of.url)
            .map_err(|refusal| unfit(format!("site.spec.{}", refusal.said)))?;
        let key = ApiKey::parse(api_key(credential)?.expose_secret()).map_err(|refusal| {
            let said = format!("the credential {:?}: {}", credential.name, refusal.said);
            Fault::new(Code::CredentialMissing, said)
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
            at_once: made_of.at_once as usize,
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

fn api_key(credential: &Credential) -> Result<&SecretString, Fault> {
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

impl Open {
    /// All machines of the region. Waiting callers share the next request that starts after theirs.
    pub async fn list(&self) -> Result<Arc<Vec<Listed>>, Fault> {
        let wanted = Instant::now();
        let mut listed = self.listed.lock().await;
        if let Some((asked, machines)) = listed.as_ref()
            && *asked > wanted
        {
            return Ok(Arc::clone(machines));
        }
        let asked = Instant::now();
        let machines = self.maas.machines(&Filter::default()).await?;
        let machines = Arc::new(machines.iter().map(Listed::of).collect());
        *listed = Some((asked, Arc::clone(&machines)));
        Ok(machines)
    }

    /// The MAAS user of our API key.
    pub async fn user(&self) -> Result<&str, Fault> {
        let ask = || async { Ok(self.maas.whoami().await?.username) };
        self.user.get_or_try_init(ask).await.map(String::as_str)
    }
}
