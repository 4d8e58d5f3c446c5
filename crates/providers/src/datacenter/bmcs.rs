//! The way to a machine's BMC: its turn with the governor, its credential, whom to trust, and a connection that is kept for the
//! next call.

use super::admittance::{Admittance, wrong_kind};
use super::controller::Controller;
use super::{Settings, Trusting};
use crate::governor::{Governor, Priority, Standing};
use crate::ipmi;
use crate::keeper::{Credential, Secret};
use crate::port::Target;
use crate::redfish::{self, Fingerprint, Trust};
use model::fault::{Code, Fault};
use model::machine::MachineSpec;
use secrecy::SecretString;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How many connections are kept for the next call.
const MAX_KEPT: usize = 256;
const IPMI: &str = "ipmi://";

pub struct Bmcs {
    pub governor: Governor,
    admittance: Admittance,
    settings: Settings,
    /// The one that was used longest ago first.
    kept: Mutex<VecDeque<(String, Arc<Controller>)>>,
}

/// A user's name and password.
pub struct Login {
    user: String,
    password: SecretString,
}

impl Bmcs {
    pub fn new(admittance: Admittance, settings: Settings) -> Self {
        let governor = Governor::new(settings.governor.clone());
        Self { governor, admittance, settings, kept: Mutex::default() }
    }

    /// Does something at the machine's BMC, when it is its turn.
    pub async fn call<T>(
        &self,
        target: &Target,
        priority: Priority,
        limit: Duration,
        work: impl AsyncFnOnce(&Controller) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let peer = peer_of(&target.spec)?;
        let call = async {
            let controller = self.controller(&peer, &target.spec).await?;
            let done = work(&controller).await;
            self.after(&peer, &target.spec, controller, done).await
        };
        self.governor.call(&peer, priority, limit, call).await
    }

    /// How the machine's BMC stands with the governor.
    pub fn standing(&self, spec: &MachineSpec) -> Option<Standing> {
        self.governor.standing(&peer_of(spec).ok()?)
    }

    /// Keeps a connection that works.
    async fn after<T>(
        &self,
        peer: &str,
        spec: &MachineSpec,
        controller: Arc<Controller>,
        done: Result<T, Fault>,
    ) -> Result<T, Fault> {
        match &done {
            Err(fault) if fault.code == Code::LoginRefused => {
                let credential = self.credential(peer, spec).await?;
                return self.admittance.after_login(peer, &credential, done).await;
            }
            Err(fault) if fault.code.unseen() => {}
            Ok(_) | Err(_) => self.keep(&slot_of(peer, spec), controller),
        }
        done
    }

    async fn credential(&self, peer: &str, spec: &MachineSpec) -> Result<Credential, Fault> {
        let named = [spec.bmc_credential.as_str(), &self.settings.bmc_credential];
        self.admittance.credential(peer, named, "bmc_credential").await
    }

    async fn controller(&self, peer: &str, spec: &MachineSpec) -> Result<Arc<Controller>, Fault> {
        if let Some(kept) = self.take(&slot_of(peer, spec)) {
            return Ok(kept);
        }
        let credential = self.credential(peer, spec).await?;
        let login = login_of(&credential)?;
        let opened = if spec.bmc_endpoint.starts_with(IPMI) {
            let login = ipmi::Login { user: login.user, password: login.password };
            ipmi::Bmc::new(&spec.bmc_endpoint, login, self.settings.ipmi.clone())
                .map(Controller::Ipmi)
        } else {
            self.log_in(peer, spec, login).await
        };
        let opened = self.admittance.after_login(peer, &credential, opened).await;
        opened.map(Arc::new)
    }

    async fn log_in(
        &self,
        peer: &str,
        spec: &MachineSpec,
        login: Login,
    ) -> Result<Controller, Fault> {
        let bmc = self.connect(peer, &spec.bmc_endpoint, login, None).await?;
        let serial = Some(spec.serial.clone()).filter(|serial| !serial.is_empty());
        let wanted = redfish::Wanted { id: None, serial, macs: spec.mac_addresses.clone() };
        Ok(Controller::Redfish(Box::new(bmc.system(&wanted).await?)))
    }

    fn kept(&self) -> MutexGuard<'_, VecDeque<(String, Arc<Controller>)>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, slot: &str) -> Option<Arc<Controller>> {
        let mut kept = self.kept();
        let at = kept.iter().position(|(known, _)| known == slot)?;
        kept.remove(at).map(|(_, controller)| controller)
    }

    fn keep(&self, slot: &str, controller: Arc<Controller>) {
        let mut kept = self.kept();
        kept.retain(|(known, _)| known != slot);
        if kept.len() >= MAX_KEPT {
            kept.pop_front();
        }
        kept.push_back((slot.to_string(), controller));
    }
}

/// What a kept connection is for: the BMC, and everything by which its System and its login were chosen. Two machines
/// behind one BMC must never be given each other's.
fn slot_of(peer: &str, spec: &MachineSpec) -> String {
    let MachineSpec { bmc_endpoint, serial, mac_addresses, bmc_credential, .. } = spec;
    format!("{peer} {:?}", (bmc_endpoint, serial, mac_addresses, bmc_credential))
}

/// What a machine's BMC is called in trust, lockouts and the governor: how it is spoken to, and where.
pub fn peer_of(spec: &MachineSpec) -> Result<String, Fault> {
    if spec.bmc_endpoint.is_empty() {
        let said = "the machine has no bmc_endpoint; add it with `farrier machine update`";
        return Err(Fault::new(Code::NotSupported, said));
    }
    peer_at(&spec.bmc_endpoint)
}

fn fingerprint(text: &str) -> Option<Fingerprint> {
    text.parse().ok()
}

pub fn login_of(credential: &Credential) -> Result<Login, Fault> {
    match &credential.secret {
        Secret::Password { user, password } => {
            Ok(Login { user: user.clone(), password: password.clone() })
        }
        Secret::Key { .. } | Secret::Kubeconfig { .. } => {
            Err(wrong_kind(credential, "a user and a password, which a BMC wants"))
        }
    }
}

/// The same for a BMC that no machine may be registered for.
pub fn peer_at(endpoint: &str) -> Result<String, Fault> {
    if is_ipmi(endpoint) {
        return Ok(endpoint.to_string());
    }
    Ok(redfish::Endpoint::parse(endpoint)?.to_string())
}

pub fn is_ipmi(endpoint: &str) -> bool {
    endpoint.starts_with(IPMI)
}

/// A BMC that one is logged in at, with no System chosen.
pub enum Visited {
    Redfish(redfish::Bmc),
    Ipmi(ipmi::Bmc),
}

impl Bmcs {
    /// Logs in at a BMC, once, with this credential or the configured one. With `trust` the caller says whom to
    /// believe, and nobody is remembered.
    pub async fn visit(
        &self,
        peer: &str,
        endpoint: &str,
        credential: &str,
        trust: Option<Trust>,
    ) -> Result<Visited, Fault> {
        let named = [credential, &self.settings.bmc_credential];
        let credential = self.admittance.credential(peer, named, "bmc_credential").await?;
        let login = login_of(&credential)?;
        let opened = if is_ipmi(endpoint) {
            let login = ipmi::Login { user: login.user, password: login.password };
            ask_who(ipmi::Bmc::new(endpoint, login, self.settings.ipmi.clone())?).await
        } else {
            self.connect(peer, endpoint, login, trust).await.map(Visited::Redfish)
        };
        self.admittance.after_login(peer, &credential, opened).await
    }

    /// Logs in at a Redfish BMC. Unless the caller says whom to believe, who is met for the first time is written down.
    async fn connect(
        &self,
        peer: &str,
        endpoint: &str,
        login: Login,
        trust: Option<Trust>,
    ) -> Result<redfish::Bmc, Fault> {
        let endpoint = redfish::Endpoint::parse(endpoint)?;
        let (trust, first) = match trust {
            Some(trust) => (trust, false),
            None => {
                let (trust, known) = self.trust(peer).await?;
                let first = known.is_none() && matches!(trust, Trust::FirstUse(_));
                (trust, first)
            }
        };
        let login = redfish::Login { user: login.user, password: login.password };
        let bmc = redfish::Bmc::connect(endpoint, login, trust, self.settings.redfish).await?;
        if let (true, Some(shown)) = (first, bmc.fingerprint()) {
            self.admittance.meet(peer, &shown.to_string()).await?;
        }
        Ok(bmc)
    }

    /// How the configuration says that this BMC is believed, and who was met there before.
    pub async fn trust(&self, peer: &str) -> Result<(Trust, Option<Fingerprint>), Fault> {
        let known = self.admittance.known(peer).await?.as_deref().and_then(fingerprint);
        Ok(match &self.settings.trust {
            Trusting::Ca(trust) => (trust.clone(), known),
            Trusting::FirstUse => (Trust::FirstUse(known), known),
        })
    }
}

/// IPMI logs in with every question, so one is asked to see whether the login is right.
async fn ask_who(bmc: ipmi::Bmc) -> Result<Visited, Fault> {
    bmc.identity().await?;
    Ok(Visited::Ipmi(bmc))
}
