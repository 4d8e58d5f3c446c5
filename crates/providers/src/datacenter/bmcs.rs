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
struct Login {
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
            Ok(_) | Err(_) => self.keep(peer, controller),
        }
        done
    }

    async fn credential(&self, peer: &str, spec: &MachineSpec) -> Result<Credential, Fault> {
        let named = [spec.bmc_credential.as_str(), &self.settings.bmc_credential];
        self.admittance.credential(peer, named, "bmc_credential").await
    }

    async fn controller(&self, peer: &str, spec: &MachineSpec) -> Result<Arc<Controller>, Fault> {
        if let Some(kept) = self.take(peer) {
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
        let endpoint = redfish::Endpoint::parse(&spec.bmc_endpoint)?;
        let known = self.admittance.known(peer).await?;
        let trust = match &self.settings.trust {
            Trusting::Ca(trust) => trust.clone(),
            Trusting::FirstUse => Trust::FirstUse(known.as_deref().and_then(fingerprint)),
        };
        let login = redfish::Login { user: login.user, password: login.password };
        let bmc = redfish::Bmc::connect(endpoint, login, trust, self.settings.redfish).await?;
        if let (Trusting::FirstUse, None, Some(shown)) =
            (&self.settings.trust, &known, bmc.fingerprint())
        {
            self.admittance.meet(peer, &shown.to_string()).await?;
        }
        let serial = Some(spec.serial.clone()).filter(|serial| !serial.is_empty());
        let wanted = redfish::Wanted { id: None, serial, macs: spec.mac_addresses.clone() };
        Ok(Controller::Redfish(Box::new(bmc.system(&wanted).await?)))
    }

    fn kept(&self) -> MutexGuard<'_, VecDeque<(String, Arc<Controller>)>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, peer: &str) -> Option<Arc<Controller>> {
        let mut kept = self.kept();
        let at = kept.iter().position(|(known, _)| known == peer)?;
        kept.remove(at).map(|(_, controller)| controller)
    }

    fn keep(&self, peer: &str, controller: Arc<Controller>) {
        let mut kept = self.kept();
        kept.retain(|(known, _)| known != peer);
        if kept.len() >= MAX_KEPT {
            kept.pop_front();
        }
        kept.push_back((peer.to_string(), controller));
    }
}

/// What a BMC is called in trust, lockouts and the governor: how it is spoken to, and where.
pub fn peer_of(spec: &MachineSpec) -> Result<String, Fault> {
    if spec.bmc_endpoint.is_empty() {
        let said = "the machine has no bmc_endpoint; add it with `farrier machine update`";
        return Err(Fault::new(Code::NotSupported, said));
    }
    if spec.bmc_endpoint.starts_with(IPMI) {
        return Ok(spec.bmc_endpoint.clone());
    }
    Ok(redfish::Endpoint::parse(&spec.bmc_endpoint)?.to_string())
}

fn fingerprint(text: &str) -> Option<Fingerprint> {
    text.parse().ok()
}

fn login_of(credential: &Credential) -> Result<Login, Fault> {
    match &credential.secret {
        Secret::Password { user, password } => {
            Ok(Login { user: user.clone(), password: password.clone() })
        }
        Secret::Key { .. } | Secret::Kubeconfig { .. } => {
            Err(wrong_kind(credential, "a user and a password, which a BMC wants"))
        }
    }
}
