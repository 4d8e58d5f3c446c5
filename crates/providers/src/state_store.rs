//! What a provider may know and remember beyond its own process.
//!
//! A device remembers nothing of ours, so what a provider has to find again after a crash it gives to its [`ProviderStateStore`]: the
//! credentials it logs in with, the certificates and host keys it has met, the logins that were refused, and a note
//! under each key it works on. The engine keeps them in its store, which no provider ever sees.

use async_trait::async_trait;
use model::deploy::{Deployment, Steer};
use model::effect::Key;
use model::fault::{Code, Fault};
use model::id::{NodeId, SiteId};
use model::image::Image;
use model::node::Node;
use model::site::Site;
use secrecy::SecretString;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What somebody logs in with.
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

/// A credential as it is now.
#[derive(Debug, Clone)]
pub struct Credential {
    pub name: String,
    /// Moves with every change, so that a refused login is tried again once it has changed.
    pub version: i64,
    pub secret: Secret,
}

/// A login that was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lockout {
    pub credential: String,
    pub version: i64,
    pub said: String,
}

/// What is remembered of a key.
#[derive(Debug, Clone, PartialEq)]
pub enum Checkpoint {
    Begun(Value),
    /// It was stopped before it had begun, and never will begin.
    Barred,
}

#[async_trait]
pub trait ProviderStateStore: Send + Sync {
    /// The credential of this name, or the fault `credential-missing`.
    async fn credential(&self, name: &str) -> Result<Credential, Fault>;

    /// Who was met first at an address.
    async fn identity(&self, peer: &str) -> Result<Option<String>, Fault>;
    /// Remembers who was met, unless somebody is known there. Answers who is known.
    async fn trust_on_first_use(&self, peer: &str, identity: &str) -> Result<String, Fault>;

    async fn lockout(&self, peer: &str) -> Result<Option<Lockout>, Fault>;
    async fn lock_out(&self, peer: &str, lockout: &Lockout) -> Result<(), Fault>;

    async fn recall(&self, key: &Key) -> Result<Option<Checkpoint>, Fault>;
    /// Writes the first note of a key, before anything is touched. None: it is ours to do. Otherwise what was there.
    async fn begin(&self, key: &Key, note: &Checkpoint) -> Result<Option<Checkpoint>, Fault>;
    /// Replaces the note of a key that has begun, if it still says `before`. False: somebody else has gone on with it, or
    /// stopped it, and the caller must not act on what it believes.
    async fn compare_and_swap(
        &self,
        key: &Key,
        before: &Value,
        after: &Value,
    ) -> Result<bool, Fault>;

    /// Knows another one at an address from now on, as the one before is gone; with None, whoever is met there first. Logins that the one
    /// before refused may be tried again.
    async fn pin(&self, peer: &str, identity: Option<&str>) -> Result<(), Fault>;

    /// The image of this name, or the fault `image-unknown`.
    async fn image(&self, name: &str) -> Result<Image, Fault>;
    /// Wants a deployment, if the note of its key still says `note`, and closes what is open for the same machine under other
    /// keys. Answers the one of this key, which may have come further. None: the note says something else.
    async fn want(&self, one: &Deployment, note: &Value) -> Result<Option<Deployment>, Fault>;
    async fn deployment(&self, key: &Key) -> Result<Option<Deployment>, Fault>;
    /// Says how it goes on. Answers how it is now.
    async fn steer(&self, key: &Key, to: Steer) -> Result<Option<Deployment>, Fault>;
    /// The token of a key's deployment, the same each time.
    async fn token(&self, key: &Key) -> Result<SecretString, Fault>;

    /// The site of this name, or the fault `site-unfit`.
    async fn site(&self, id: &SiteId) -> Result<Site, Fault>;
    /// The node of this name, or the fault `machine-gone`.
    async fn node(&self, id: &NodeId) -> Result<Node, Fault>;
    /// A token that an agent can enroll with as this node: the one that was issued last while it is good, or a fresh one.
    async fn enrollment(&self, id: &NodeId) -> Result<SecretString, Fault>;
}

/// A keeper whose memory ends with it, for tests and for talking to a device that no machine is registered for.
#[derive(Default)]
pub struct InMemoryStateStore(Mutex<Held>);

#[derive(Default)]
struct Held {
    credentials: BTreeMap<String, Credential>,
    identities: BTreeMap<String, String>,
    lockouts: BTreeMap<String, Lockout>,
    notes: BTreeMap<Key, Checkpoint>,
    images: BTreeMap<String, Image>,
    deployments: BTreeMap<Key, Deployment>,
    sites: BTreeMap<SiteId, Site>,
    nodes: BTreeMap<NodeId, Node>,
}

impl InMemoryStateStore {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a secret in, over the one of the same name.
    pub fn set(&self, name: &str, secret: Secret) {
        let mut held = self.held();
        let version = held.credentials.get(name).map_or(1, |known| known.version + 1);
        held.credentials.insert(name.into(), Credential { name: name.into(), version, secret });
    }

    /// Takes an image in.
    pub fn add_image(&self, image: Image) {
        self.held().images.insert(image.name.clone(), image);
    }

    pub fn set_site(&self, site: Site) {
        self.held().sites.insert(site.id(), site);
    }

    pub fn set_node(&self, node: Node) {
        self.held().nodes.insert(node.id(), node);
    }

    /// Lets somebody at the machine change a deployment, as the server would for the deploy environment.
    pub fn change<T>(&self, key: &Key, change: impl FnOnce(&mut Deployment) -> T) -> Option<T> {
        self.held().deployments.get_mut(key).map(change)
    }
}

#[async_trait]
impl ProviderStateStore for InMemoryStateStore {
    async fn credential(&self, name: &str) -> Result<Credential, Fault> {
        self.held().credentials.get(name).cloned().ok_or_else(|| no_credential(name))
    }

    async fn identity(&self, peer: &str) -> Result<Option<String>, Fault> {
        Ok(self.held().identities.get(peer).cloned())
    }

    async fn trust_on_first_use(&self, peer: &str, identity: &str) -> Result<String, Fault> {
        let mut held = self.held();
        Ok(held.identities.entry(peer.into()).or_insert_with(|| identity.into()).clone())
    }

    async fn lockout(&self, peer: &str) -> Result<Option<Lockout>, Fault> {
        Ok(self.held().lockouts.get(peer).cloned())
    }

    async fn lock_out(&self, peer: &str, lockout: &Lockout) -> Result<(), Fault> {
        self.held().lockouts.insert(peer.into(), lockout.clone());
        Ok(())
    }

    async fn recall(&self, key: &Key) -> Result<Option<Checkpoint>, Fault> {
        Ok(self.held().notes.get(key).cloned())
    }

    async fn begin(&self, key: &Key, note: &Checkpoint) -> Result<Option<Checkpoint>, Fault> {
        let mut held = self.held();
        let before = held.notes.get(key).cloned();
        if before.is_none() {
            held.notes.insert(key.clone(), note.clone());
        }
        Ok(before)
    }

    async fn compare_and_swap(
        &self,
        key: &Key,
        before: &Value,
        after: &Value,
    ) -> Result<bool, Fault> {
        Ok(match self.held().notes.get_mut(key) {
            Some(Checkpoint::Begun(known)) if known == before => {
                *known = after.clone();
                true
            }
            Some(_) | None => false,
        })
    }

    async fn pin(&self, peer: &str, identity: Option<&str>) -> Result<(), Fault> {
        let mut held = self.held();
        held.lockouts.remove(peer);
        match identity {
            Some(identity) => held.identities.insert(peer.into(), identity.into()),
            None => held.identities.remove(peer),
        };
        Ok(())
    }

    async fn image(&self, name: &str) -> Result<Image, Fault> {
        self.held().images.get(name).cloned().ok_or_else(|| no_image(name))
    }

    async fn want(&self, one: &Deployment, note: &Value) -> Result<Option<Deployment>, Fault> {
        let mut held = self.held();
        if held.notes.get(&one.key) != Some(&Checkpoint::Begun(note.clone())) {
            return Ok(None);
        }
        for other in held.deployments.values_mut() {
            if other.machine_id == one.machine_id && other.key != one.key {
                other.steer(Steer::Close);
            }
        }
        Ok(Some(held.deployments.entry(one.key.clone()).or_insert_with(|| one.clone()).clone()))
    }

    async fn deployment(&self, key: &Key) -> Result<Option<Deployment>, Fault> {
        Ok(self.held().deployments.get(key).cloned())
    }

    async fn steer(&self, key: &Key, to: Steer) -> Result<Option<Deployment>, Fault> {
        Ok(self.held().deployments.get_mut(key).map(|one| {
            one.steer(to);
            one.clone()
        }))
    }

    async fn token(&self, key: &Key) -> Result<SecretString, Fault> {
        Ok(format!("token-of-{key}").into())
    }

    async fn site(&self, id: &SiteId) -> Result<Site, Fault> {
        self.held().sites.get(id).cloned().ok_or_else(|| no_site(id))
    }

    async fn node(&self, id: &NodeId) -> Result<Node, Fault> {
        self.held().nodes.get(id).cloned().ok_or_else(|| no_node(id))
    }

    async fn enrollment(&self, id: &NodeId) -> Result<SecretString, Fault> {
        Ok(format!("token-of-{id}").into())
    }
}

/// Nobody has a credential of this name.
pub fn no_credential(name: &str) -> Fault {
    let said = format!("there is no credential {name:?}");
    Fault::new(Code::CredentialMissing, said)
}

/// There is no such site any more.
pub fn no_site(id: &SiteId) -> Fault {
    Fault::new(Code::SiteUnfit, format!("there is no site {id}"))
}

/// There is no such node any more.
pub fn no_node(id: &NodeId) -> Fault {
    Fault::new(Code::MachineGone, format!("there is no node {id}"))
}

/// Nobody has an image of this name.
pub fn no_image(name: &str) -> Fault {
    let said = format!("there is no image {name:?} in the catalogue");
    Fault::new(Code::ImageUnknown, said)
}
