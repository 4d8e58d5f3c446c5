//! SSH connections to hosts: through the jump hosts, with credential and pinned host key.

use super::Settings;
use super::bmcs::nowhere;
use crate::peer_login::TrustPolicy;
use crate::peer_login::{PeerLogin, unpinned, wrong_kind};
use crate::port::Target;
use crate::ssh::{self, Endpoint, Hop, Host, HostKey, Login, Proof, Route, Trust};
use crate::state_store::{Credential, Secret};
use model::fault::{Code, Fault};

pub struct Hosts {
    logins: PeerLogin,
    settings: Settings,
}

/// One server on the path and its credential.
struct Stop {
    peer: String,
    credential: Credential,
}

impl Hosts {
    pub fn new(logins: PeerLogin, settings: Settings) -> Self {
        Self { logins, settings }
    }

    pub async fn connect(&self, target: &Target) -> Result<Host, Fault> {
        place_of(target)?;
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
        match Host::reach(Route { hops, last }, self.settings.ssh.clone()).await {
            Ok(host) => self.met(&stops, host).await,
            Err((number, fault)) => match stops.get(number) {
                Some(Stop { peer, credential }) => {
                    self.logins.after_login(peer, credential, Err(fault)).await
                }
                None => Err(fault),
            },
        }
    }

    /// The user that logs in to the machine's host, and the public key, if the credential is a key.
    pub async fn owner(&self, target: &Target) -> Result<(String, Option<String>), Fault> {
        let endpoint = place_of(target)?;
        let named = [target.spec.ssh_credential.as_str(), &self.settings.ssh_credential];
        let name = named.into_iter().find(|name| !name.is_empty()).unwrap_or_default();
        let credential = self.logins.0.credential(name).await?;
        let Login { user, proof } = login(&credential, &endpoint)?;
        let key = match proof {
            Proof::Password(_) => None,
            Proof::Key { pem, passphrase } => {
                Some(ssh::public_key(&pem, passphrase.as_ref()).map_err(|why| {
                    let said =
                        format!("the credential {:?} cannot be used: {why}", credential.name);
                    Fault::new(Code::CredentialMissing, said)
                })?)
            }
        };
        Ok((user, key))
    }

    /// The pinned host key of the machine's host.
    pub async fn known(&self, target: &Target) -> Result<Option<String>, Fault> {
        self.logins.known(&peer(&place_of(target)?)).await
    }

    /// Pins this host key; None: the next one is trusted on first use.
    pub async fn pin(&self, target: &Target, key: Option<&str>) -> Result<(), Fault> {
        let key = key.map(str::parse::<HostKey>).transpose();
        let key = key.map_err(|said| Fault::new(Code::AnswerGarbled, said))?;
        let key = key.map(|key| key.to_string());
        self.logins.0.pin(&peer(&place_of(target)?), key.as_deref()).await
    }

    async fn hop(&self, text: &str, named: [&str; 2], field: &str) -> Result<(Hop, Stop), Fault> {
        let endpoint = parsed(text)?;
        let peer = peer(&endpoint);
        let credential = self.logins.credential(&peer, named, field).await?;
        let login = login(&credential, &endpoint)?;
        let known = self.logins.known(&peer).await?;
        let trust = match known.as_deref().map(str::parse::<HostKey>) {
            None if matches!(self.settings.trust, TrustPolicy::Pinned) => {
                return Err(unpinned(&peer));
            }
            None => Trust::FirstUse(None),
            Some(Ok(key)) => Trust::FirstUse(Some(key)),
            Some(Err(said)) => {
                let said = format!("what is remembered of {peer} cannot be read: {said}");
                return Err(Fault::new(Code::RecordUnreadable, said));
            }
        };
        Ok((Hop { endpoint, login, trust }, Stop { peer, credential }))
    }

    /// Pins the host keys of all servers on the path.
    async fn met(&self, stops: &[Stop], host: Host) -> Result<Host, Fault> {
        for (stop, (_, key)) in stops.iter().zip(host.host_keys()) {
            self.logins.trust_on_first_use(&stop.peer, &key.to_string()).await?;
        }
        Ok(host)
    }
}

fn place_of(target: &Target) -> Result<Endpoint, Fault> {
    if target.spec.ssh_endpoint.is_empty() {
        return Err(nowhere(target.id.kind, "ssh_endpoint"));
    }
    parsed(&target.spec.ssh_endpoint)
}

fn parsed(text: &str) -> Result<Endpoint, Fault> {
    Endpoint::parse("ssh_endpoint", text)
        .map_err(|refusal| Fault::new(Code::NotSupported, refusal.said))
}

/// The name of a host in pins and lockouts.
fn peer(endpoint: &Endpoint) -> String {
    format!("ssh://{}:{}", endpoint.host, endpoint.port)
}

/// A user in the endpoint (`user@host`) overrides the user of the credential.
fn login(credential: &Credential, endpoint: &Endpoint) -> Result<Login, Fault> {
    let (user, proof) = match &credential.secret {
        Secret::Password { user, password } => (user, Proof::Password(password.clone())),
        Secret::Key { user, pem, passphrase } => {
            (user, Proof::Key { pem: pem.clone(), passphrase: passphrase.clone() })
        }
        Secret::Kubeconfig { .. } | Secret::MaasKey { .. } => {
            return Err(wrong_kind(credential, "a password or a key, which a host wants"));
        }
    };
    Ok(Login { user: endpoint.user.clone().unwrap_or_else(|| user.clone()), proof })
}
