//! Connections to the BMCs of machines: the governor's admission, the credential, the pinned
//! identity, and a cached session for the next call.

use super::Settings;
use super::controller::Controller;
use super::session_cache::SessionCache;
use crate::governor::{BmcStatus, Governor, Priority};
use crate::http_client::{Fingerprint, Trust};
use crate::ipmi;
use crate::ipmi::is_ipmi;
use crate::peer_login::{Login, PeerLogin, login_peer};
use crate::port::Target;
use crate::redfish::{self, BmcAddress};
use crate::state_store::Credential;
use model::fault::{Fault, FaultCode, Result};
use model::machine::MachineSpec;
use model::target::TargetKind;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

pub struct Bmcs {
    pub governor: Governor,
    logins: PeerLogin,
    settings: Settings,
    sessions: Mutex<SessionCache<BmcSession>>,
}

struct BmcSession {
    controller: Arc<Controller>,
    credential: String,
    version: i64,
    opened_at: Instant,
}

impl Bmcs {
    pub fn new(logins: PeerLogin, settings: Settings) -> Self {
        let governor = Governor::new(settings.governor.clone());
        Self { governor, logins, settings, sessions: Mutex::default() }
    }

    /// Runs `work` at the machine's BMC when the governor admits it.
    pub async fn call<T>(
        &self,
        target: &Target,
        priority: Priority,
        limit: Duration,
        work: impl AsyncFnOnce(&Controller) -> Result<T>,
    ) -> Result<T> {
        let peer = bmc_peer(target)?;
        let call = async {
            let credential = self.credential(&peer, &target.spec).await?;
            let position = self.session_key(&peer, target);
            let current = |opened: &BmcSession| opened.version == credential.version;
            let opened = match self.take_session(&position).filter(current) {
                Some(opened) => opened,
                None => self.open_session(&peer, target, credential).await?,
            };
            let done = work(&opened.controller).await;
            self.finish_call(&peer, position, opened, done).await
        };
        let done = self.governor.call(&peer, priority, limit, call).await;
        done.map_err(|fault| fault.at_peer(&peer, None))
    }

    /// Probes the machine's BMC. None: not admitted in time. To be cheap, it uses a cached session
    /// without reading the credential again, and closes the connection afterwards.
    pub async fn poll<T>(
        &self,
        target: &Target,
        limit: Duration,
        work: impl AsyncFnOnce(&Controller) -> Result<T>,
    ) -> Result<Option<T>> {
        let peer = bmc_peer(target)?;
        let call = async {
            let position = self.session_key(&peer, target);
            let opened = match self.take_session(&position) {
                Some(opened) => opened,
                None => {
                    let credential = self.credential(&peer, &target.spec).await?;
                    self.open_session(&peer, target, credential).await?
                }
            };
            let done = work(&opened.controller).await;
            opened.controller.close_idle();
            self.finish_call(&peer, position, opened, done).await
        };
        let done = self.governor.poll(&peer, limit, call).await;
        done.map_err(|fault| fault.at_peer(&peer, None))
    }

    pub fn governor_status(&self, target: &Target) -> Option<BmcStatus> {
        self.governor.status(&bmc_peer(target).ok()?)
    }

    /// Caches a session that works, and records a refused login.
    async fn finish_call<T>(
        &self,
        peer: &str,
        position: String,
        opened: BmcSession,
        done: Result<T>,
    ) -> Result<T> {
        match &done {
            Err(fault) if fault.code == FaultCode::LoginRefused => {
                let BmcSession { credential, version, .. } = &opened;
                self.logins.record_refusal(peer, credential, *version, fault).await?;
                return done.map_err(|fault| fault.at_peer(peer, Some(credential)));
            }
            Err(fault) if invalidates_session(fault.code) => {}
            Ok(_) | Err(_) => {
                let since = opened.opened_at;
                self.sessions().put(position, opened, since, Instant::now());
            }
        }
        done
    }

    async fn credential(&self, peer: &str, spec: &MachineSpec) -> Result<Credential> {
        let at = login_peer(&spec.bmc_endpoint)?;
        self.logins.credential((peer, &at), self.credential_names(spec), "bmc_credential").await
    }

    fn credential_names<'a>(&'a self, spec: &'a MachineSpec) -> [&'a str; 2] {
        [spec.bmc_credential.as_str(), &self.settings.bmc_credential]
    }

    /// The cache key of a session. One BMC may serve several machines, each with its own System.
    fn session_key(&self, peer: &str, Target { id, spec }: &Target) -> String {
        let [own, usual] = self.credential_names(spec);
        let credential = if own.is_empty() { usual } else { own };
        let MachineSpec { bmc_endpoint, serial, mac_addresses, .. } = spec;
        format!("{peer} {:?}", (id.kind, bmc_endpoint, credential, serial, mac_addresses))
    }

    async fn open_session(
        &self,
        peer: &str,
        target: &Target,
        credential: Credential,
    ) -> Result<BmcSession> {
        let spec = &target.spec;
        let login = Login::of(&credential)?;
        let opened = if is_ipmi(&spec.bmc_endpoint) {
            ipmi::Bmc::new(&spec.bmc_endpoint, login, self.settings.ipmi.clone())
                .map(Controller::Ipmi)
        } else {
            self.log_in(peer, target, login).await
        };
        let opened = self.logins.after_login(peer, &credential, opened).await;
        let Credential { name, version, .. } = credential;
        let (controller, since) = (Arc::new(opened?), Instant::now());
        Ok(BmcSession { controller, credential: name, version, opened_at: since })
    }

    async fn log_in(
        &self,
        peer: &str,
        Target { id, spec }: &Target,
        login: Login,
    ) -> Result<Controller> {
        let bmc = self.connect(peer, &spec.bmc_endpoint, login, None).await?;
        let serial = Some(spec.serial.clone()).filter(|serial| !serial.is_empty());
        match id.kind {
            TargetKind::PowerShelf => {
                Ok(Controller::Shelf(Box::new(bmc.shelf(serial.as_deref()).await?)))
            }
            TargetKind::Machine | TargetKind::Switch | TargetKind::Rack => {
                let desired =
                    redfish::SystemSelector { id: None, serial, macs: spec.mac_addresses.clone() };
                Ok(Controller::Redfish(Box::new(bmc.system(&desired).await?)))
            }
        }
    }

    fn sessions(&self) -> MutexGuard<'_, SessionCache<BmcSession>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_session(&self, position: &str) -> Option<BmcSession> {
        self.sessions().take(position, Instant::now())
    }
}

/// True if the next call must log in again: the BMC did not answer, or it is another one.
fn invalidates_session(code: FaultCode) -> bool {
    let stranger = matches!(
        code,
        FaultCode::IdentityChanged
            | FaultCode::IdentityUntrusted
            | FaultCode::SystemAmbiguous
            | FaultCode::AnswerLost
    );
    stranger || code.peer_unreachable()
}

/// The name of a BMC in pins, lockouts and the governor: protocol and address.
pub fn bmc_peer(target: &Target) -> Result<String> {
    if target.spec.bmc_endpoint.is_empty() {
        return Err(missing_endpoint(target.id.kind, "bmc_endpoint"));
    }
    peer_of_endpoint(&target.spec.bmc_endpoint)
}

/// The fault of a device that was registered without this address.
pub fn missing_endpoint(kind: TargetKind, field: &str) -> Fault {
    let message = match kind {
        TargetKind::Machine => {
            format!("the machine has no {field}; add it with `farrier machine update`")
        }
        TargetKind::Switch | TargetKind::PowerShelf | TargetKind::Rack => {
            let noun = kind.noun();
            format!("the {noun} has no {field}; register it again, with one")
        }
    };
    Fault::new(FaultCode::NotSupported, message)
}

/// The same for an endpoint that may belong to no machine.
pub fn peer_of_endpoint(endpoint: &str) -> Result<String> {
    if is_ipmi(endpoint) {
        return Ok(endpoint.to_string());
    }
    Ok(BmcAddress::parse(endpoint)?.to_string())
}

/// A BMC after the login, before a System is chosen.
pub enum ConnectedBmc {
    Redfish(redfish::Bmc),
    Ipmi(ipmi::Bmc),
}

impl Bmcs {
    /// Logs in to a BMC once, with this credential or the configured one. With `trust` the caller
    /// decides which identity is accepted, and none is pinned.
    pub async fn connect_unregistered(
        &self,
        peer: &str,
        endpoint: &str,
        credential: &str,
        trust: Option<Trust>,
    ) -> Result<ConnectedBmc> {
        let named = [credential, &self.settings.bmc_credential];
        let at = login_peer(endpoint)?;
        let credential = self.logins.credential((peer, &at), named, "bmc_credential").await?;
        let login = Login::of(&credential)?;
        let opened = if is_ipmi(endpoint) {
            verify_ipmi_login(ipmi::Bmc::new(endpoint, login, self.settings.ipmi.clone())?).await
        } else {
            self.connect(peer, endpoint, login, trust).await.map(ConnectedBmc::Redfish)
        };
        self.logins.after_login(peer, &credential, opened).await
    }

    /// Logs in to a Redfish BMC. Without `trust` its identity is pinned on first use.
    async fn connect(
        &self,
        peer: &str,
        endpoint: &str,
        login: Login,
        trust: Option<Trust>,
    ) -> Result<redfish::Bmc> {
        let address = BmcAddress::parse(endpoint)?;
        let (trust, first) = match trust {
            Some(trust) => (trust, false),
            None => {
                let (trust, known) = self.trust(peer).await?;
                let first = known.is_none() && matches!(trust, Trust::FirstUse(_));
                (trust, first)
            }
        };
        let bmc = redfish::Bmc::connect(address, login, trust, self.settings.redfish).await?;
        if let (true, Some(shown)) = (first, bmc.fingerprint()) {
            self.logins.trust_on_first_use(peer, &shown.to_string()).await?;
        }
        Ok(bmc)
    }

    /// The configured trust policy of this BMC, and its pinned identity.
    pub async fn trust(&self, peer: &str) -> Result<(Trust, Option<Fingerprint>)> {
        self.logins.trust(&self.settings.trust, peer).await
    }
}

/// IPMI logs in with every request, so one request verifies the login.
async fn verify_ipmi_login(bmc: ipmi::Bmc) -> Result<ConnectedBmc> {
    bmc.identity().await?;
    Ok(ConnectedBmc::Ipmi(bmc))
}
