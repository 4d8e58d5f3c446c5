//! The secret store: credentials encrypted at rest, and the state that providers store.
//!
//! A secret is encrypted with a key of this installation before it reaches the database. Its name
//! is authenticated with it, so that a copied or renamed row does not decrypt. It is decrypted only
//! for the provider that logs in with it. [`SecretStore`] is also the state store of the providers.

mod binding;
mod cipher;
mod deployment;
mod identity;
mod keys;

pub use binding::{BoundCredential, DefaultCredentials};
pub(crate) use cipher::checksum;
pub use cipher::{Cipher, KEY_BYTES, KeyBytes, random_key};
pub use deployment::BootOffer;
pub use keys::{Rotation, TokenKeys, has_sealed_values};

use crate::FaultResult;
use crate::clock::Clock;
use crate::node::agents::issue;
use async_trait::async_trait;
use model::credential::{
    BindingWrite, BoundHost, CredentialPolicy, CredentialWrite, Peer, PeerBinding,
    no_credential as unknown_credential,
};
use model::deploy::{Deployment, DeploymentCommand};
use model::effect::EffectKey;
use model::fault::{Fault, FaultCode};
use model::filter::Filter;
use model::here;
use model::id::{NodeId, SiteId};
use model::image::Image;
use model::node::Node;
use model::node::enroll::{EnrollmentToken, TOKEN_LIFE};
use model::refusal::Refusal;
use model::run::actions::Requester;
use model::site::Site;
use model::text;
use model::time::Timestamp;
use model::version::check_version;
use providers::state_store::{
    Checkpoint, Credential, CredentialFacts, Lockout, ProviderStateStore, Secret, StoredCredential,
    no_credential, no_image, no_node, no_site,
};
use providers::{kubernetes, maas};
use secrecy::SecretString;
use serde_json::Value;
use std::sync::Arc;
use store::{
    AuditDraft, Cause, CheckpointRow, CredentialRow, DeploymentLookup, IdentityRow, Listed,
    LockoutRow, NewEvent, Result, Store, StoreError, Tx,
};

#[derive(Clone)]
pub struct SecretStore {
    store: Store,
    cipher: Cipher,
    clock: Clock,
}

/// A credential without its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CredentialInfo {
    pub name: String,
    pub kind: String,
    pub login: String,
    pub version: i64,
    pub updated_at: Timestamp,
    /// The time when a kubeconfig expires, where it says so.
    pub expires_at: Option<Timestamp>,
    /// The peers that its secret may be sent to.
    pub policy: CredentialPolicy,
}

/// A request to write a credential.
#[derive(Debug, Clone)]
pub struct CredentialRequest {
    pub write: CredentialWrite,
    pub binding: BindingWrite,
    /// True if the credential must be bound to a peer.
    pub binding_required: bool,
}

impl SecretStore {
    pub fn new(store: Store, cipher: Cipher, clock: Clock) -> Self {
        Self { store, cipher, clock }
    }

    /// The same secret store for a request that may be a dry run.
    #[must_use]
    pub fn with_dry_run(&self, dry_run: bool) -> Self {
        Self { store: self.store.with_dry_run(dry_run), ..self.clone() }
    }

    /// The same secret store for a request whose first commit writes this entry of the audit log.
    #[must_use]
    pub fn with_audit(&self, audit: Option<Arc<AuditDraft>>) -> Self {
        Self { store: self.store.with_audit(audit), ..self.clone() }
    }

    /// A credential as it is shown. Its expiry is read from the secret itself.
    fn describe(&self, row: CredentialRow) -> CredentialInfo {
        let expires_at = match self.cipher.open(&row.name, &row.sealed) {
            Ok(Secret::Kubeconfig { text }) => kubernetes::expiry(&text),
            Ok(Secret::Password { .. } | Secret::Key { .. } | Secret::MaasKey { .. }) | Err(_) => {
                None
            }
        };
        let CredentialRow { name, kind, login, version, updated_at, policy, .. } = row;
        let policy = policy.unwrap_or_default();
        CredentialInfo { name, kind, login, version, updated_at, expires_at, policy }
    }

    /// The secret of an enrollment token; it is derived from the key of this installation.
    pub(crate) fn enrollment_secret(&self, ticket: &EnrollmentToken) -> SecretString {
        let (node, issued) = (&ticket.node, ticket.issued_at.as_micros());
        self.cipher.enrollment_token(&format!("enroll/{node}/{issued}")).into()
    }

    /// Stores a secret under a name.
    pub async fn write(
        &self,
        name: &str,
        secret: &Secret,
        request: CredentialRequest,
        who: Requester,
    ) -> Result<CredentialInfo> {
        text::check_name("name", name)?;
        let (kind, login) = kind_and_login(secret);
        let (name, kind, login) = (name.to_string(), kind.to_string(), login.to_string());
        let now = (self.clock)();
        let row = CredentialRow {
            name,
            kind,
            login,
            sealed: Vec::new(),
            version: 0,
            updated_at: now,
            policy: None,
            key_id: None,
        };
        let own_server = match secret {
            Secret::Kubeconfig { text } => Some(binding::kubeconfig_policy(text)),
            Secret::Password { .. } | Secret::Key { .. } | Secret::MaasKey { .. } => None,
        };
        let (secrets, secret) = (self.clone(), secret.clone());
        let written = NewCredential { secrets, secret, row, request, own_server, who };
        let written = self
            .store
            .retry_write("write_credential", written, |new, tx| Box::pin(new.write(tx)))
            .await?;
        Ok(self.describe(written))
    }

    pub async fn get(&self, name: &str) -> Result<CredentialInfo> {
        let found = self.store.read(name.to_string(), |name, tx| Box::pin(tx.credential(name)));
        let row = found.await?.ok_or_else(|| unknown_credential(name))?;
        self.load_keys_of(std::slice::from_ref(&row)).await?;
        Ok(self.describe(row))
    }

    /// A page of credentials in the order of their names, after the name `after`.
    pub async fn list(
        &self,
        filter: Filter,
        after: &str,
        limit: i64,
    ) -> Result<Listed<CredentialInfo>> {
        let input = (filter, after.to_string(), limit);
        let rows = self.store.scan(input, |(filter, after, limit), tx| {
            Box::pin(tx.credentials(filter, after, *limit))
        });
        let page = rows.await?;
        self.store.unreadable().record(&page.unreadable);
        self.load_keys_of(&page.items).await?;
        Ok(page.map(|row| self.describe(row)))
    }

    /// Deletes a credential, at this version if one is named.
    pub async fn delete(
        &self,
        name: &str,
        version: Option<i64>,
        who: Requester,
    ) -> Result<CredentialInfo> {
        let input = (name.to_string(), version, who, (self.clock)());
        let gone = self
            .store
            .retry_write("delete_credential", input, |(name, version, who, now), tx| {
                Box::pin(delete_credential(tx, name, *version, who, *now))
            })
            .await?;
        Ok(self.describe(gone))
    }

    /// A credential with its secret. Its policy decides which peer gets it.
    async fn stored(&self, name: &str) -> FaultResult<StoredCredential> {
        let row = self.store.read(name.to_string(), |name, tx| Box::pin(tx.credential(name)));
        let row = row.await.map_err(database_fault)?.ok_or_else(|| no_credential(name))?;
        let secret = self.open_row(&row).await?;
        let policy = row.policy.unwrap_or_default();
        Ok(StoredCredential { name: row.name, version: row.version, secret, policy })
    }

    /// Removes the lockout of a peer, so that a refused login is tried again.
    pub async fn unlock(&self, peer: &str) -> Result<bool> {
        self.store
            .write("unlock", peer.to_string(), |peer, tx| Box::pin(tx.delete_lockout(peer)))
            .await
    }
}

/// The kind and the login name of a secret.
fn kind_and_login(secret: &Secret) -> (&'static str, &str) {
    match secret {
        Secret::Password { user, .. } => ("password", user),
        Secret::Key { user, .. } => ("ssh-key", user),
        Secret::Kubeconfig { .. } => ("kubeconfig", ""),
        Secret::MaasKey { .. } => ("maas-key", ""),
    }
}

fn request_event(who: &Requester, message: String, decided_by: &str, at: Timestamp) -> NewEvent {
    let cause = Cause::Request;
    NewEvent { cause, actor: who.by.clone(), message, decided_by: decided_by.into(), at }
}

struct NewCredential {
    secrets: SecretStore,
    secret: Secret,
    /// Without the sealed secret.
    row: CredentialRow,
    request: CredentialRequest,
    /// The server of a kubeconfig, which is its binding.
    own_server: Option<CredentialPolicy>,
    who: Requester,
}

impl NewCredential {
    async fn write(&self, tx: &mut Tx) -> Result<CredentialRow> {
        let name = &self.row.name;
        let stored = tx.credential(name).await?;
        let known = stored.as_ref().map(|known| known.version);
        self.request.write.admit(name, known)?;
        let policy = self.policy(tx, stored.and_then(|stored| stored.policy)).await?;
        let bound: Vec<String> = policy.peers.iter().map(ToString::to_string).collect();
        let last = tx.last_credential_version(name).await?;
        let version = last.max(known.unwrap_or(0)) + 1;
        let (key_id, sealed) = self.secrets.seal_in(tx, name, &self.secret).await?;
        let (key_id, policy) = (Some(key_id), Some(policy));
        let row = CredentialRow { version, policy, key_id, sealed, ..self.row.clone() };
        let message = format!("{} of {:?} set for {}", row.kind, row.login, bound.join(", "));
        let event = request_event(&self.who, message, here!(), row.updated_at);
        tx.put_credential(&row, known, &event).await?;
        Ok(row)
    }

    /// The binding of the credential, with the present addresses of the sites that it names.
    async fn policy(
        &self,
        tx: &mut Tx,
        stored: Option<CredentialPolicy>,
    ) -> Result<CredentialPolicy> {
        let CredentialRequest { binding, binding_required, .. } = &self.request;
        match (&self.own_server, binding) {
            (Some(own), BindingWrite::Keep { .. }) => return Ok(own.clone()),
            (Some(_), BindingWrite::Replace(_)) => {
                let problem = "is given with a kubeconfig, which is bound to the server in it";
                return Err(Refusal::invalid("peers", problem, "leave it out").into());
            }
            (None, BindingWrite::Keep { .. } | BindingWrite::Replace(_)) => {}
        }
        let mut policy = binding.clone().apply(&self.row.name, stored, *binding_required)?;
        for binding in &mut policy.peers {
            if let PeerBinding::Site { id, at: at @ None } = binding {
                *at = Some(site_host(tx, id).await?);
            }
        }
        Ok(policy)
    }
}

/// The host and port of a site's MAAS.
async fn site_host(tx: &mut Tx, id: &SiteId) -> Result<BoundHost> {
    let site = tx.record::<Site>(id.as_str()).await?;
    let site = site.ok_or_else(|| Refusal::not_found("site", id, "farrier site list"))?;
    let address = maas::Address::parse(&site.spec.maas_url).ok();
    address.and_then(|address| BoundHost::of(&address.peer())).ok_or_else(|| {
        let problem = format!("names site:{id}, which has no usable maas_url");
        Refusal::invalid("peers", problem, "correct the site, or name the host of its MAAS").into()
    })
}

async fn delete_credential(
    tx: &mut Tx,
    name: &str,
    version: Option<i64>,
    who: &Requester,
    now: Timestamp,
) -> Result<CredentialRow> {
    let known = tx.credential(name).await?.ok_or_else(|| unknown_credential(name))?;
    let next = format!("farrier credential get {name}");
    check_version(format!("the credential {name}"), known.version, version, next)?;
    let event = request_event(who, "deleted".into(), here!(), now);
    tx.delete_credential(name, known.version, &event).await?;
    Ok(known)
}

/// The unused enrollment token of a node if at least half of its lifetime is left, or a new one.
async fn find_or_issue_token(
    tx: &mut Tx,
    secrets: &SecretStore,
    id: &NodeId,
    now: Timestamp,
) -> Result<EnrollmentToken> {
    // The lock on the node keeps two transactions from issuing two tokens.
    tx.record_locked::<Node>(id.as_str()).await?;
    let good = |ticket: &EnrollmentToken| {
        ticket.used_by.is_none() && ticket.expires_at.since(now) > TOKEN_LIFE / 2
    };
    match tx.last_enrollment_token(id).await?.filter(good) {
        Some(ticket) => Ok(ticket),
        None => issue(tx, secrets, id, now, TOKEN_LIFE),
    }
}

#[async_trait]
impl ProviderStateStore for SecretStore {
    async fn credential(&self, name: &str, peer: &Peer) -> FaultResult<Credential> {
        Credential::release(self.stored(name).await?, peer)
    }

    async fn kubeconfig(&self, name: &str) -> FaultResult<SecretString> {
        self.stored(name).await?.kubeconfig()
    }

    async fn credential_facts(&self, name: &str) -> FaultResult<CredentialFacts> {
        self.stored(name).await.map(CredentialFacts::new)
    }

    async fn identity(&self, peer: &str) -> FaultResult<Option<String>> {
        let found = self.store.read(peer.to_string(), |peer, tx| Box::pin(tx.identity(peer)));
        Ok(found.await.map_err(database_fault)?.map(|row| row.identity))
    }

    async fn trust_on_first_use(&self, peer: &str, identity: &str) -> FaultResult<String> {
        let (peer, identity) = (peer.to_string(), identity.to_string());
        let met = IdentityRow { peer, identity, first_seen: (self.clock)(), version: 0 };
        self.store
            .retry_write("pin_identity", met, |met, tx| {
                Box::pin(identity::trust_on_first_use(tx, met))
            })
            .await
            .map_err(database_fault)
    }

    async fn lockout(&self, peer: &str) -> FaultResult<Option<Lockout>> {
        let found = self.store.read(peer.to_string(), |peer, tx| Box::pin(tx.lockout(peer)));
        let reported = |LockoutRow { credential, version, message, .. }| Lockout {
            credential,
            version,
            message,
        };
        Ok(found.await.map_err(database_fault)?.map(reported))
    }

    async fn lock_out(&self, peer: &str, lockout: &Lockout) -> FaultResult<()> {
        let Lockout { credential, version, message } = lockout.clone();
        let row =
            LockoutRow { peer: peer.into(), credential, version, message, since: (self.clock)() };
        self.store
            .write("lock_out", row, |row, tx| Box::pin(tx.record_lockout(row)))
            .await
            .map_err(database_fault)
    }

    async fn checkpoint(&self, key: &EffectKey) -> FaultResult<Option<Checkpoint>> {
        let found = self.store.read(key.clone(), |key, tx| Box::pin(tx.checkpoint(key)));
        found.await.map_err(database_fault)?.map(|row| parse_checkpoint(key, &row)).transpose()
    }

    async fn begin(&self, key: &EffectKey, first: &Checkpoint) -> FaultResult<Option<Checkpoint>> {
        let first = match first {
            Checkpoint::Begun(body) => {
                CheckpointRow { stopped_before_start: false, body: body.to_string() }
            }
            Checkpoint::StoppedBeforeStart => {
                CheckpointRow { stopped_before_start: true, body: "null".into() }
            }
        };
        let input = (key.clone(), first, (self.clock)());
        let before = self.store.write("begin_note", input, |(key, first, now), tx| {
            Box::pin(tx.begin_checkpoint(key, first, *now))
        });
        before.await.map_err(database_fault)?.map(|row| parse_checkpoint(key, &row)).transpose()
    }

    async fn compare_and_swap(
        &self,
        key: &EffectKey,
        before: &Value,
        after: &Value,
    ) -> FaultResult<bool> {
        let input = (key.clone(), before.to_string(), after.to_string(), (self.clock)());
        let swapped =
            self.store.write("swap_checkpoint", input, |(key, before, after, now), tx| {
                Box::pin(tx.swap_checkpoint(key, before, after, *now))
            });
        swapped.await.map_err(database_fault)
    }

    async fn pin(&self, peer: &str, identity: Option<&str>) -> FaultResult<()> {
        let input = (peer.to_string(), identity.map(String::from), (self.clock)());
        let pinned =
            self.store.retry_write("replace_identity", input, |(peer, identity, now), tx| {
                Box::pin(identity::replace_identity(tx, peer, identity.as_deref(), *now))
            });
        pinned.await.map_err(database_fault)
    }

    async fn image(&self, name: &str) -> FaultResult<Image> {
        let found = self.store.read(name.to_string(), |name, tx| Box::pin(tx.image(name)));
        found.await.map_err(database_fault)?.ok_or_else(|| no_image(name))
    }

    async fn create_deployment(
        &self,
        one: &Deployment,
        note: &Value,
    ) -> FaultResult<Option<Deployment>> {
        self.open_deployment(one, note).await.map_err(|error| match error {
            // Another machine has the same MAC address.
            StoreError::Refused(refusal) => Fault::new(FaultCode::EffectFailed, refusal.message),
            other
            @ (StoreError::Unavailable(_) | StoreError::Conflict | StoreError::Corrupt(_)) => {
                database_fault(other)
            }
        })
    }

    async fn deployment(&self, key: &EffectKey) -> FaultResult<Option<Deployment>> {
        self.find_deployment(DeploymentLookup::Key(key.clone())).await.map_err(database_fault)
    }

    async fn command_deployment(
        &self,
        key: &EffectKey,
        to: DeploymentCommand,
    ) -> FaultResult<Option<Deployment>> {
        self.command_deployment(key, to).await.map_err(database_fault)
    }

    async fn deployment_token(&self, key: &EffectKey) -> FaultResult<SecretString> {
        Ok(self.deployment_token(key).into())
    }

    async fn site(&self, id: &SiteId) -> FaultResult<Site> {
        let found = self.store.read(id.clone(), |id, tx| Box::pin(tx.record::<Site>(id.as_str())));
        found.await.map_err(database_fault)?.ok_or_else(|| no_site(id))
    }

    async fn node(&self, id: &NodeId) -> FaultResult<Node> {
        let found = self.store.read(id.clone(), |id, tx| Box::pin(tx.record::<Node>(id.as_str())));
        found.await.map_err(database_fault)?.ok_or_else(|| no_node(id))
    }

    async fn enrollment_token(&self, id: &NodeId) -> FaultResult<SecretString> {
        let input = (self.clone(), id.clone(), (self.clock)());
        let ticket = self.store.retry_write("issue_enrollment", input, |(secrets, id, now), tx| {
            Box::pin(find_or_issue_token(tx, secrets, id, *now))
        });
        let ticket = ticket.await.map_err(database_fault)?;
        Ok(self.enrollment_secret(&ticket))
    }
}

fn parse_checkpoint(key: &EffectKey, row: &CheckpointRow) -> FaultResult<Checkpoint> {
    if row.stopped_before_start {
        return Ok(Checkpoint::StoppedBeforeStart);
    }
    let unreadable =
        |error| Fault::new(FaultCode::RecordUnreadable, format!("the note of {key}: {error}"));
    serde_json::from_str(&row.body).map(Checkpoint::Begun).map_err(unreadable)
}

/// Providers do nothing without their stored state.
fn database_fault(error: StoreError) -> Fault {
    Fault::new(FaultCode::DatabaseUnreachable, format!("Farrier's own database: {error}"))
}
