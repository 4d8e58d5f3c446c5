//! SSH connections to hosts: through the jump hosts, with credential and pinned host key.

use super::Settings;
use super::bmcs::missing_endpoint;
use crate::peer_login::TrustPolicy;
use crate::peer_login::{PeerLogin, unpinned, wrong_kind};
use crate::port::Target;
use crate::ssh::{Endpoint, Hop, Host, HostKey, Login, LoginSecret, Route, Trust};
use crate::state_store::{Credential, Secret};
use model::fault::{Fault, FaultCode, Result};

pub struct Hosts {
    logins: PeerLogin,
    settings: Settings,
}

/// One server on the path and its credential.
struct HopLogin {
    peer: String,
    credential: Credential,
}

impl Hosts {
    pub fn new(logins: PeerLogin, settings: Settings) -> Self {
        Self { logins, settings }
    }

    pub async fn connect(&self, target: &Target) -> Result<Host> {
        ssh_endpoint(target)?;
        let mut hops = Vec::new();
        let mut stops = Vec::new();
        for jump in &self.settings.jump_hosts {
            let (hop, stop) =
                self.hop(jump, ["", &self.settings.jump_credential], "jump_credential").await?;
            hops.push(hop);
            stops.push(stop);
        }
        let named = [target.spec.ssh_credential.as_str(), &self.settings.ssh_credential];
        let (last, stop) = self.hop(&target.spec.ssh_endpoint, named, "ssh_credential").await?;
        stops.push(stop);
        match Host::try_connect(Route { hops, last }, self.settings.ssh.clone()).await {
            Ok(host) => self.pin_host_keys(&stops, host).await,
            Err((number, fault)) => match stops.get(number) {
                Some(HopLogin { peer, credential }) => {
                    self.logins.after_login(peer, credential, Err(fault)).await
                }
                None => Err(fault),
            },
        }
    }

    /// The user that logs in to the machine's host, and the public key, if the credential is a key.
    pub async fn login_user(&self, target: &Target) -> Result<(String, Option<String>)> {
        let endpoint = ssh_endpoint(target)?;
        let named = [target.spec.ssh_credential.as_str(), &self.settings.ssh_credential];
        let name = named.into_iter().find(|name| !name.is_empty()).unwrap_or_default();
        let (user, key) = self.logins.0.credential_facts(name).await?.host_user()?;
        Ok((endpoint.user.unwrap_or(user), key))
    }

    /// The pinned host key of the machine's host.
    pub async fn known_host_key(&self, target: &Target) -> Result<Option<String>> {
        self.logins.known_identity(&peer(&ssh_endpoint(target)?)).await
    }

    /// Pins this host key; None: the next one is trusted on first use.
    pub async fn pin(&self, target: &Target, key: Option<&str>) -> Result<()> {
        let key = key.map(str::parse::<HostKey>).transpose();
        let key = key.map_err(|message| Fault::new(FaultCode::AnswerGarbled, message))?;
        let key = key.map(|key| key.to_string());
        self.logins.0.pin(&peer(&ssh_endpoint(target)?), key.as_deref()).await
    }

    async fn hop(&self, text: &str, named: [&str; 2], field: &str) -> Result<(Hop, HopLogin)> {
        let endpoint = parsed(text)?;
        let peer = peer(&endpoint);
        let at = endpoint.peer();
        let credential = self.logins.credential((&peer, &at), named, field).await?;
        let login = login(&credential, &endpoint)?;
        let known = self.logins.known_identity(&peer).await?;
        let trust = match known.as_deref().map(str::parse::<HostKey>) {
            None if matches!(self.settings.trust, TrustPolicy::Pinned) => {
                return Err(unpinned(&peer));
            }
            None => Trust::FirstUse(None),
            Some(Ok(key)) => Trust::FirstUse(Some(key)),
            Some(Err(message)) => {
                let message = format!("what is remembered of {peer} cannot be read: {message}");
                return Err(Fault::new(FaultCode::RecordUnreadable, message));
            }
        };
        Ok((Hop { endpoint, login, trust }, HopLogin { peer, credential }))
    }

    /// Pins the host keys of all servers on the path.
    async fn pin_host_keys(&self, stops: &[HopLogin], host: Host) -> Result<Host> {
        for (stop, (_, key)) in stops.iter().zip(host.host_keys()) {
            self.logins.trust_on_first_use(&stop.peer, &key.to_string()).await?;
        }
        Ok(host)
    }
}

fn ssh_endpoint(target: &Target) -> Result<Endpoint> {
    if target.spec.ssh_endpoint.is_empty() {
        return Err(missing_endpoint(target.id.kind, "ssh_endpoint"));
    }
    parsed(&target.spec.ssh_endpoint)
}

fn parsed(text: &str) -> Result<Endpoint> {
    Endpoint::parse("ssh_endpoint", text)
        .map_err(|refusal| Fault::new(FaultCode::NotSupported, refusal.message))
}

/// The name of the host at an SSH address in pins and lockouts; none if the address is unusable.
pub fn peer_of_endpoint(text: &str) -> Option<String> {
    parsed(text).ok().map(|endpoint| peer(&endpoint))
}

/// The name of a host in pins and lockouts.
fn peer(endpoint: &Endpoint) -> String {
    format!("ssh://{}:{}", endpoint.host, endpoint.port)
}

/// A user in the endpoint (`user@host`) overrides the user of the credential.
fn login(credential: &Credential, endpoint: &Endpoint) -> Result<Login> {
    let (user, proof) = match &credential.secret {
        Secret::Password { user, password } => (user, LoginSecret::Password(password.clone())),
        Secret::Key { user, pem, passphrase } => {
            (user, LoginSecret::Key { pem: pem.clone(), passphrase: passphrase.clone() })
        }
        Secret::Kubeconfig { .. } | Secret::MaasKey { .. } => {
            return Err(wrong_kind(&credential.name, "a password or a key, which a host wants"));
        }
    };
    let user = endpoint.user.clone().unwrap_or_else(|| user.clone());
    Ok(Login { user, proof, allowed: credential.allowed.clone() })
}
