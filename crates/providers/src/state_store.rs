//! The state that a provider keeps outside its own process.
//!
//! A device stores nothing for us, so what a provider needs after a crash goes to its
//! [`ProviderStateStore`]: credentials, pinned certificates and host keys, refused logins, and one
//! checkpoint per effect key. The engine implements it on the database, which no provider sees.

use crate::peer_login::wrong_kind;
use crate::secret_mask::SecretMask;
use crate::ssh;
use async_trait::async_trait;
use model::credential::{AllowedAddresses, CredentialPolicy, Network, Peer, PeerBinding};
use model::deploy::{Deployment, DeploymentCommand};
use model::effect::EffectKey;
use model::fault::{Fault, FaultCode, Result};
use model::id::{NodeId, SiteId};
use model::image::Image;
use model::node::Node;
use model::site::Site;
use secrecy::SecretString;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

#[derive(Debug, Clone)]
pub enum Secret {
    Password {
        user: String,
        password: SecretString,
    },
    Key {
        user: String,
        pem: SecretString,
        passphrase: Option<SecretString>,
    },
    Kubeconfig {
        text: SecretString,
    },
    /// `consumer:token:secret`, as MAAS shows it.
    MaasKey {
        key: SecretString,
    },
}

#[derive(Debug, Clone)]
pub struct Credential {
    pub name: String,
    /// Raised by every change; a refused login is retried with a new version only.
    pub version: i64,
    pub secret: Secret,
    /// The addresses that the peer's name may resolve to.
    pub allowed: AllowedAddresses,
}

impl Credential {
    /// Hands a secret out for one peer, if its policy allows that. This is the only way by which a
    /// secret that logs in leaves a state store; a kubeconfig names its own peer.
    pub fn release(stored: StoredCredential, peer: &Peer) -> Result<Self> {
        let StoredCredential { name, version, secret, policy } = stored;
        let allowed = policy.allows(peer).map_err(|refusal| policy.fault(&name, peer, refusal))?;
        Ok(Self { name, version, secret, allowed })
    }
}

/// A credential as a state store has it.
#[derive(Debug, Clone)]
pub struct StoredCredential {
    pub name: String,
    pub version: i64,
    pub secret: Secret,
    pub policy: CredentialPolicy,
}

impl StoredCredential {
    /// The kubeconfig of a cluster, which names the server that it is sent to.
    pub fn kubeconfig(self) -> Result<SecretString> {
        match self.secret {
            Secret::Kubeconfig { text } => Ok(text),
            Secret::Password { .. } | Secret::Key { .. } | Secret::MaasKey { .. } => {
                Err(wrong_kind(&self.name, "a kubeconfig, which a cluster wants"))
            }
        }
    }
}

/// A credential for uses that send nothing: its kind, its public half, and a mask for its secret.
#[derive(Debug, Clone)]
pub struct CredentialFacts(StoredCredential);

impl CredentialFacts {
    pub fn new(stored: StoredCredential) -> Self {
        Self(stored)
    }

    pub fn is_password(&self) -> bool {
        matches!(self.0.secret, Secret::Password { .. })
    }

    /// Masks the password. A credential of another kind has none.
    pub(crate) fn password_mask(&self) -> SecretMask {
        match &self.0.secret {
            Secret::Password { password, .. } => SecretMask::of([password]),
            Secret::Key { .. } | Secret::Kubeconfig { .. } | Secret::MaasKey { .. } => {
                SecretMask::default()
            }
        }
    }

    /// The user of a login to hosts, and its public key if it is a key.
    pub fn host_user(&self) -> Result<(String, Option<String>)> {
        let name = &self.0.name;
        match &self.0.secret {
            Secret::Password { user, .. } => Ok((user.clone(), None)),
            Secret::Key { user, pem, passphrase } => {
                let key = ssh::public_key(pem, passphrase.as_ref()).map_err(|why| {
                    let message = format!("the credential {name:?} cannot be used: {why}");
                    Fault::new(FaultCode::CredentialMissing, message)
                })?;
                Ok((user.clone(), Some(key)))
            }
            Secret::Kubeconfig { .. } | Secret::MaasKey { .. } => {
                Err(wrong_kind(name, "a password or a key, which a host wants"))
            }
        }
    }
}

/// A login that was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lockout {
    pub credential: String,
    pub version: i64,
    pub message: String,
}

/// The stored progress of one effect key.
#[derive(Debug, Clone, PartialEq)]
pub enum Checkpoint {
    Begun(Value),
    /// Stopped before it began; it must never begin.
    StoppedBeforeStart,
}

#[async_trait]
pub trait ProviderStateStore: Send + Sync {
    /// The credential of this name, to be sent to this peer. The fault is `credential-missing`, or
    /// `credential-not-allowed` if the credential is not bound to the peer.
    async fn credential(&self, name: &str, peer: &Peer) -> Result<Credential>;
    /// The kubeconfig of this name.
    async fn kubeconfig(&self, name: &str) -> Result<SecretString>;
    /// The credential of this name, for uses that send nothing.
    async fn credential_facts(&self, name: &str) -> Result<CredentialFacts>;

    /// The pinned identity of an address.
    async fn identity(&self, peer: &str) -> Result<Option<String>>;
    /// Pins an identity unless one is pinned already. Returns the pinned one.
    async fn trust_on_first_use(&self, peer: &str, identity: &str) -> Result<String>;

    async fn lockout(&self, peer: &str) -> Result<Option<Lockout>>;
    async fn lock_out(&self, peer: &str, lockout: &Lockout) -> Result<()>;

    async fn checkpoint(&self, key: &EffectKey) -> Result<Option<Checkpoint>>;
    /// Creates the checkpoint of a key before a device is called. Some: the existing one.
    async fn begin(&self, key: &EffectKey, note: &Checkpoint) -> Result<Option<Checkpoint>>;
    /// Replaces the checkpoint of a key that has begun, if it still equals `before`. False: another
    /// worker has continued or stopped it, and the caller must not act on its copy.
    async fn compare_and_swap(
        &self,
        key: &EffectKey,
        before: &Value,
        after: &Value,
    ) -> Result<bool>;

    /// Pins another identity at an address, after a replacement; None: the next one is trusted on
    /// first use. Clears the lockout of the address.
    async fn pin(&self, peer: &str, identity: Option<&str>) -> Result<()>;

    /// The image of this name, or the fault `image-unknown`.
    async fn image(&self, name: &str) -> Result<Image>;
    /// Creates a deployment if the checkpoint of its key still equals `note`, and closes the open
    /// ones of the same machine under other keys. Returns the deployment of this key, which may
    /// have progressed. None: the checkpoint differs.
    async fn create_deployment(&self, one: &Deployment, note: &Value)
    -> Result<Option<Deployment>>;
    async fn deployment(&self, key: &EffectKey) -> Result<Option<Deployment>>;
    /// Sends a command to the deployment. Returns its state after it.
    async fn command_deployment(
        &self,
        key: &EffectKey,
        to: DeploymentCommand,
    ) -> Result<Option<Deployment>>;
    /// The token of a key's deployment, the same each time.
    async fn deployment_token(&self, key: &EffectKey) -> Result<SecretString>;

    /// The site with this id, or the fault `site-unfit`.
    async fn site(&self, id: &SiteId) -> Result<Site>;
    /// The node with this id, or the fault `machine-gone`.
    async fn node(&self, id: &NodeId) -> Result<Node>;
    /// A token with which an agent enrolls as this node: the last one while valid, or a new one.
    async fn enrollment_token(&self, id: &NodeId) -> Result<SecretString>;
}

/// A state store in memory, for tests and for BMCs without a registered machine.
#[derive(Default)]
pub struct InMemoryStateStore(Mutex<InMemoryState>);

#[derive(Default)]
struct InMemoryState {
    credentials: BTreeMap<String, StoredCredential>,
    identities: BTreeMap<String, String>,
    lockouts: BTreeMap<String, Lockout>,
    checkpoints: BTreeMap<EffectKey, Checkpoint>,
    images: BTreeMap<String, Image>,
    deployments: BTreeMap<EffectKey, Deployment>,
    sites: BTreeMap<SiteId, Site>,
    nodes: BTreeMap<NodeId, Node>,
}

impl InMemoryStateStore {
    fn state(&self) -> MutexGuard<'_, InMemoryState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores a secret that may be sent to this computer only; replaces the one of the same name.
    pub fn set_credential(&self, name: &str, secret: Secret) {
        self.bind_credential(name, secret, loopback_policy());
    }

    /// Stores a secret with its policy; replaces the one of the same name.
    pub fn bind_credential(&self, name: &str, secret: Secret, policy: CredentialPolicy) {
        let mut claimed = self.state();
        let version = claimed.credentials.get(name).map_or(1, |known| known.version + 1);
        let stored = StoredCredential { name: name.into(), version, secret, policy };
        claimed.credentials.insert(name.into(), stored);
    }

    fn stored_credential(&self, name: &str) -> Result<StoredCredential> {
        self.state().credentials.get(name).cloned().ok_or_else(|| no_credential(name))
    }

    pub fn add_image(&self, image: Image) {
        self.state().images.insert(image.name.clone(), image);
    }

    pub fn set_site(&self, site: Site) {
        self.state().sites.insert(site.id(), site);
    }

    pub fn set_node(&self, node: Node) {
        self.state().nodes.insert(node.id(), node);
    }

    /// Changes a deployment as the server does for the deploy environment.
    pub fn change_deployment<T>(
        &self,
        key: &EffectKey,
        change: impl FnOnce(&mut Deployment) -> T,
    ) -> Option<T> {
        self.state().deployments.get_mut(key).map(change)
    }
}

#[async_trait]
impl ProviderStateStore for InMemoryStateStore {
    async fn credential(&self, name: &str, peer: &Peer) -> Result<Credential> {
        Credential::release(self.stored_credential(name)?, peer)
    }

    async fn kubeconfig(&self, name: &str) -> Result<SecretString> {
        self.stored_credential(name)?.kubeconfig()
    }

    async fn credential_facts(&self, name: &str) -> Result<CredentialFacts> {
        self.stored_credential(name).map(CredentialFacts::new)
    }

    async fn identity(&self, peer: &str) -> Result<Option<String>> {
        Ok(self.state().identities.get(peer).cloned())
    }

    async fn trust_on_first_use(&self, peer: &str, identity: &str) -> Result<String> {
        let mut claimed = self.state();
        Ok(claimed.identities.entry(peer.into()).or_insert_with(|| identity.into()).clone())
    }

    async fn lockout(&self, peer: &str) -> Result<Option<Lockout>> {
        Ok(self.state().lockouts.get(peer).cloned())
    }

    async fn lock_out(&self, peer: &str, lockout: &Lockout) -> Result<()> {
        self.state().lockouts.insert(peer.into(), lockout.clone());
        Ok(())
    }

    async fn checkpoint(&self, key: &EffectKey) -> Result<Option<Checkpoint>> {
        Ok(self.state().checkpoints.get(key).cloned())
    }

    async fn begin(&self, key: &EffectKey, note: &Checkpoint) -> Result<Option<Checkpoint>> {
        let mut claimed = self.state();
        let before = claimed.checkpoints.get(key).cloned();
        if before.is_none() {
            claimed.checkpoints.insert(key.clone(), note.clone());
        }
        Ok(before)
    }

    async fn compare_and_swap(
        &self,
        key: &EffectKey,
        before: &Value,
        after: &Value,
    ) -> Result<bool> {
        Ok(match self.state().checkpoints.get_mut(key) {
            Some(Checkpoint::Begun(known)) if known == before => {
                *known = after.clone();
                true
            }
            Some(_) | None => false,
        })
    }

    async fn pin(&self, peer: &str, identity: Option<&str>) -> Result<()> {
        let mut claimed = self.state();
        claimed.lockouts.remove(peer);
        match identity {
            Some(identity) => claimed.identities.insert(peer.into(), identity.into()),
            None => claimed.identities.remove(peer),
        };
        Ok(())
    }

    async fn image(&self, name: &str) -> Result<Image> {
        self.state().images.get(name).cloned().ok_or_else(|| no_image(name))
    }

    async fn create_deployment(
        &self,
        one: &Deployment,
        note: &Value,
    ) -> Result<Option<Deployment>> {
        let mut claimed = self.state();
        if claimed.checkpoints.get(&one.key) != Some(&Checkpoint::Begun(note.clone())) {
            return Ok(None);
        }
        for other in claimed.deployments.values_mut() {
            if other.machine_id == one.machine_id && other.key != one.key {
                other.apply_command(DeploymentCommand::Close);
            }
        }
        Ok(Some(claimed.deployments.entry(one.key.clone()).or_insert_with(|| one.clone()).clone()))
    }

    async fn deployment(&self, key: &EffectKey) -> Result<Option<Deployment>> {
        Ok(self.state().deployments.get(key).cloned())
    }

    async fn command_deployment(
        &self,
        key: &EffectKey,
        to: DeploymentCommand,
    ) -> Result<Option<Deployment>> {
        Ok(self.state().deployments.get_mut(key).map(|one| {
            one.apply_command(to);
            one.clone()
        }))
    }

    async fn deployment_token(&self, key: &EffectKey) -> Result<SecretString> {
        Ok(format!("token-of-{key}").into())
    }

    async fn site(&self, id: &SiteId) -> Result<Site> {
        self.state().sites.get(id).cloned().ok_or_else(|| no_site(id))
    }

    async fn node(&self, id: &NodeId) -> Result<Node> {
        self.state().nodes.get(id).cloned().ok_or_else(|| no_node(id))
    }

    async fn enrollment_token(&self, id: &NodeId) -> Result<SecretString> {
        Ok(format!("token-of-{id}").into())
    }
}

fn loopback_policy() -> CredentialPolicy {
    let own = ["127.0.0.0/8", "::1/128"].map(Network::parse).into_iter().flatten();
    CredentialPolicy { peers: own.map(PeerBinding::Network).collect(), plain_http: true }
}

pub fn no_credential(name: &str) -> Fault {
    let message = format!("there is no credential {name:?}");
    let fault = Fault::new(FaultCode::CredentialMissing, message);
    fault.with(|facts| facts.credential = Some(name.into()))
}

pub fn no_site(id: &SiteId) -> Fault {
    Fault::new(FaultCode::SiteUnfit, format!("there is no site {id}"))
}

pub fn no_node(id: &NodeId) -> Fault {
    Fault::new(FaultCode::MachineGone, format!("there is no node {id}"))
}

pub fn no_image(name: &str) -> Fault {
    let message = format!("there is no image {name:?} in the catalogue");
    Fault::new(FaultCode::ImageUnknown, message).with(|facts| facts.image = Some(name.into()))
}
