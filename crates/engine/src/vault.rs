//! The vault: secrets sealed at rest, and what providers remember.
//!
//! A secret is sealed with a key of this installation before the store sees it, together with its name, so that a row that was
//! copied or renamed does not open. It is opened only for the provider that logs in with it, and shown to nobody. The
//! rest of what a provider may remember goes through here too: it is the [`Keeper`] that every provider is given.

mod cipher;
mod desk;

pub use cipher::Cipher;
pub(crate) use cipher::checksum;
pub use desk::Boot;

use crate::clock::Clock;
use crate::nodes::agents::issue;
use async_trait::async_trait;
use model::deploy::{Deployment, Steer};
use model::effect::Key;
use model::fault::{Code, Fault};
use model::here;
use model::id::{NodeId, SiteId};
use model::image::Image;
use model::node::Node;
use model::node::enroll::{TOKEN_LIFE, Ticket};
use model::refusal::Refusal;
use model::run::act::Who;
use model::site::Site;
use model::text;
use model::time::Timestamp;
use providers::pin::Pin;
use providers::state_store::{
    Credential, Keeper, Lockout, Note, Secret, no_credential, no_image, no_node, no_site,
};
use secrecy::SecretString;
use serde_json::Value;
use store::{
    Cause, CredentialRow, IdentityRow, LockoutRow, NewEvent, NoteRow, Result, Shown, Store,
    StoreError, Tx, Work,
};

/// How often a change is tried again when another one wrote first.
const MAX_RACES: u32 = 10;

#[derive(Clone)]
pub struct Vault {
    store: Store,
    cipher: Cipher,
    clock: Clock,
}

/// What may be shown of a credential.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CredentialInfo {
    pub name: String,
    pub kind: String,
    pub login: String,
    pub version: i64,
    pub updated_at: Timestamp,
}

impl From<CredentialRow> for CredentialInfo {
    fn from(row: CredentialRow) -> Self {
        let CredentialRow { name, kind, login, version, updated_at, sealed: _ } = row;
        Self { name, kind, login, version, updated_at }
    }
}

impl Vault {
    pub fn new(store: Store, cipher: Cipher, clock: Clock) -> Self {
        Self { store, cipher, clock }
    }

    /// The token that a ticket stands for: only this installation can make it.
    pub(crate) fn token_of_ticket(&self, ticket: &Ticket) -> SecretString {
        let (node, issued) = (&ticket.node, ticket.issued_at.as_micros());
        self.cipher.token(&format!("enroll/{node}/{issued}")).into()
    }

    /// Takes in a secret, over the one of the same name.
    pub async fn set(&self, name: &str, secret: &Secret, who: Who) -> Result<CredentialInfo> {
        text::name("name", name)?;
        let (kind, login) = described(secret);
        let sealed = self.cipher.seal(name, secret)?;
        let (name, kind, login) = (name.to_string(), kind.to_string(), login.to_string());
        let now = (self.clock)();
        let row = CredentialRow { name, kind, login, sealed, version: 0, updated_at: now };
        self.racing(|| SetCredential { row: row.clone(), who: who.clone() }).await
    }

    /// By name, after one.
    pub async fn list(&self, after: &str, limit: i64) -> Result<Vec<CredentialInfo>> {
        let rows = self.store.scan(ListCredentials { after: after.into(), limit }).await?;
        Ok(rows.into_iter().map(CredentialInfo::from).collect())
    }

    pub async fn delete(&self, name: &str, who: Who) -> Result<CredentialInfo> {
        let now = (self.clock)();
        self.racing(|| DeleteCredential { name: name.into(), who: who.clone(), now }).await
    }

    pub async fn identities(&self, after: &str, limit: i64) -> Result<Vec<IdentityRow>> {
        self.store.scan(ListIdentities { after: after.into(), limit }).await
    }

    /// Says who is at an address, before anybody was met there or over who was. First use never replaces it.
    pub async fn set_identity(&self, peer: &str, identity: &str) -> Result<IdentityRow> {
        let Pin { peer, identity } = Pin::parse(peer, identity)?;
        let known = IdentityRow { peer, identity, first_seen: (self.clock)() };
        self.store.write(SetIdentity { known: known.clone() }).await?;
        Ok(known)
    }

    /// Lets the next one who is met at an address be trusted.
    pub async fn forget_identity(&self, peer: &str) -> Result<()> {
        match self.store.write(ForgetIdentity { peer: peer.into() }).await? {
            true => Ok(()),
            false => Err(Refusal::not_found("identity", peer, "farrier trust list").into()),
        }
    }

    /// Lets a login that was refused at an address be tried again.
    pub async fn unlock(&self, peer: &str) -> Result<bool> {
        self.store.write(Unlock { peer: peer.into() }).await
    }

    async fn racing<W: Work>(&self, work: impl Fn() -> W) -> Result<W::Out> {
        let mut races = 0;
        loop {
            races += 1;
            match self.store.write(work()).await {
                Err(StoreError::Conflict) if races < MAX_RACES => {}
                other => return other,
            }
        }
    }
}

/// The kind of a secret, and who logs in with it.
fn described(secret: &Secret) -> (&'static str, &str) {
    match secret {
        Secret::Password { user, .. } => ("password", user),
        Secret::Key { user, .. } => ("ssh-key", user),
        Secret::Kubeconfig { .. } => ("kubeconfig", ""),
        Secret::MaasKey { .. } => ("maas-key", ""),
    }
}

fn told(who: &Who, message: String, decided_by: &str, at: Timestamp) -> NewEvent {
    let cause = Cause::Request;
    NewEvent { cause, actor: who.by.clone(), message, decided_by: decided_by.into(), at }
}

struct SetCredential {
    row: CredentialRow,
    who: Who,
}

impl Work for SetCredential {
    type Out = CredentialInfo;

    async fn run(&self, tx: &mut Tx) -> Result<CredentialInfo> {
        let known = tx.credential(&self.row.name).await?.map(|known| known.version);
        let last = tx.last_credential_version(&self.row.name).await?;
        let row = CredentialRow { version: last.max(known.unwrap_or(0)) + 1, ..self.row.clone() };
        let message = format!("{} of {:?} set", row.kind, row.login);
        let event = told(&self.who, message, here!(), row.updated_at);
        tx.put_credential(&row, known, &event).await?;
        Ok(row.into())
    }
}

struct DeleteCredential {
    name: String,
    who: Who,
    now: Timestamp,
}

impl Work for DeleteCredential {
    type Out = CredentialInfo;

    async fn run(&self, tx: &mut Tx) -> Result<CredentialInfo> {
        let known = tx.credential(&self.name).await?;
        let unknown = || Refusal::not_found("credential", &self.name, "farrier credential list");
        let known = known.ok_or_else(unknown)?;
        let event = told(&self.who, "deleted".into(), here!(), self.now);
        tx.delete_credential(&self.name, known.version, &event).await?;
        Ok(known.into())
    }
}

/// Somebody else is at an address from now on.
struct Introduce {
    peer: String,
    identity: Option<String>,
    now: Timestamp,
}

impl Work for Introduce {
    type Out = ();

    async fn run(&self, tx: &mut Tx) -> Result<()> {
        tx.unlock(&self.peer).await?;
        tx.forget_identity(&self.peer).await?;
        if let Some(identity) = self.identity.clone() {
            let met = IdentityRow { peer: self.peer.clone(), identity, first_seen: self.now };
            tx.meet(&met).await?;
        }
        Ok(())
    }
}

/// The token of a node that an agent can still enroll with, or a fresh one.
struct Enrollment {
    vault: Vault,
    id: NodeId,
    now: Timestamp,
}

impl Work for Enrollment {
    type Out = Ticket;

    async fn run(&self, tx: &mut Tx) -> Result<Ticket> {
        // Whoever issues a token holds its node, so that two do not issue two.
        tx.record_locked::<Node>(self.id.as_str()).await?;
        let good = |ticket: &Ticket| {
            ticket.used_by.is_none() && ticket.expires_at.since(self.now) > TOKEN_LIFE / 2
        };
        match tx.ticket_of(&self.id).await?.filter(good) {
            Some(ticket) => Ok(ticket),
            None => issue(tx, &self.vault, &self.id, self.now, TOKEN_LIFE),
        }
    }
}

macro_rules! works {
    ($($name:ident { $($field:ident: $type:ty),* } -> $out:ty, |$this:ident, $tx:ident| $body:expr;)*) => {$(
        struct $name { $($field: $type),* }
        impl Work for $name {
            type Out = $out;
            async fn run(&self, $tx: &mut Tx) -> Result<$out> {
                let $this = self;
                $body.await
            }
        }
    )*};
}

works! {
    ListCredentials { after: String, limit: i64 } -> Vec<CredentialRow>,
        |q, tx| tx.credentials(&q.after, q.limit);
    GetCredential { name: String } -> Option<CredentialRow>, |q, tx| tx.credential(&q.name);
    ListIdentities { after: String, limit: i64 } -> Vec<IdentityRow>,
        |q, tx| tx.identities(&q.after, q.limit);
    GetIdentity { peer: String } -> Option<IdentityRow>, |q, tx| tx.identity(&q.peer);
    SetIdentity { known: IdentityRow } -> (), |q, tx| tx.set_identity(&q.known);
    ForgetIdentity { peer: String } -> bool, |q, tx| tx.forget_identity(&q.peer);
    GetSite { id: SiteId } -> Option<Site>, |q, tx| tx.record::<Site>(q.id.as_str());
    GetNode { id: NodeId } -> Option<Node>, |q, tx| tx.record::<Node>(q.id.as_str());
    GetImage { name: String } -> Option<Image>, |q, tx| tx.image(&q.name);
    Meet { met: IdentityRow } -> String, |q, tx| tx.meet(&q.met);
    GetLockout { peer: String } -> Option<LockoutRow>, |q, tx| tx.lockout(&q.peer);
    LockOut { row: LockoutRow } -> (), |q, tx| tx.lock_out(&q.row);
    Unlock { peer: String } -> bool, |q, tx| tx.unlock(&q.peer);
    GetNote { key: Key } -> Option<NoteRow>, |q, tx| tx.note(&q.key);
    BeginNote { key: Key, first: NoteRow, now: Timestamp } -> Option<NoteRow>,
        |q, tx| tx.begin_note(&q.key, &q.first, q.now);
    AmendNote { key: Key, before: String, after: String, now: Timestamp } -> bool,
        |q, tx| tx.amend_note(&q.key, &q.before, &q.after, q.now);
}

#[async_trait]
impl Keeper for Vault {
    async fn credential(&self, name: &str) -> std::result::Result<Credential, Fault> {
        let row = self.store.read(GetCredential { name: name.into() }).await.map_err(lost)?;
        let row = row.ok_or_else(|| no_credential(name))?;
        let secret = self.cipher.open(name, &row.sealed)?;
        Ok(Credential { name: row.name, version: row.version, secret })
    }

    async fn identity(&self, peer: &str) -> std::result::Result<Option<String>, Fault> {
        let found = self.store.read(GetIdentity { peer: peer.into() }).await.map_err(lost)?;
        Ok(found.map(|row| row.identity))
    }

    async fn meet(&self, peer: &str, identity: &str) -> std::result::Result<String, Fault> {
        let (peer, identity) = (peer.to_string(), identity.to_string());
        let met = IdentityRow { peer, identity, first_seen: (self.clock)() };
        self.store.write(Meet { met }).await.map_err(lost)
    }

    async fn lockout(&self, peer: &str) -> std::result::Result<Option<Lockout>, Fault> {
        let found = self.store.read(GetLockout { peer: peer.into() }).await.map_err(lost)?;
        let told =
            |LockoutRow { credential, version, said, .. }| Lockout { credential, version, said };
        Ok(found.map(told))
    }

    async fn lock_out(&self, peer: &str, lockout: &Lockout) -> std::result::Result<(), Fault> {
        let Lockout { credential, version, said } = lockout.clone();
        let row =
            LockoutRow { peer: peer.into(), credential, version, said, since: (self.clock)() };
        self.store.write(LockOut { row }).await.map_err(lost)
    }

    async fn recall(&self, key: &Key) -> std::result::Result<Option<Note>, Fault> {
        let found = self.store.read(GetNote { key: key.clone() }).await.map_err(lost)?;
        found.map(|row| note(key, &row)).transpose()
    }

    async fn begin(&self, key: &Key, first: &Note) -> std::result::Result<Option<Note>, Fault> {
        let first = match first {
            Note::Begun(body) => NoteRow { barred: false, body: body.to_string() },
            Note::Barred => NoteRow { barred: true, body: "null".into() },
        };
        let now = (self.clock)();
        let before = self.store.write(BeginNote { key: key.clone(), first, now }).await;
        before.map_err(lost)?.map(|row| note(key, &row)).transpose()
    }

    async fn amend(
        &self,
        key: &Key,
        before: &Value,
        after: &Value,
    ) -> std::result::Result<bool, Fault> {
        let (before, after) = (before.to_string(), after.to_string());
        let work = AmendNote { key: key.clone(), before, after, now: (self.clock)() };
        self.store.write(work).await.map_err(lost)
    }

    async fn introduce(
        &self,
        peer: &str,
        identity: Option<&str>,
    ) -> std::result::Result<(), Fault> {
        let (peer, identity) = (peer.to_string(), identity.map(String::from));
        self.store.write(Introduce { peer, identity, now: (self.clock)() }).await.map_err(lost)
    }

    async fn image(&self, name: &str) -> std::result::Result<Image, Fault> {
        let found = self.store.read(GetImage { name: name.into() }).await.map_err(lost)?;
        found.ok_or_else(|| no_image(name))
    }

    async fn want(
        &self,
        one: &Deployment,
        note: &Value,
    ) -> std::result::Result<Option<Deployment>, Fault> {
        self.open_deployment(one, note).await.map_err(|error| match error {
            // Its own network card, under another machine's name.
            StoreError::Refused(refusal) => Fault::new(Code::EffectFailed, refusal.said),
            other => lost(other),
        })
    }

    async fn deployment(&self, key: &Key) -> std::result::Result<Option<Deployment>, Fault> {
        self.shown(Shown::Key(key.clone())).await.map_err(lost)
    }

    async fn steer(&self, key: &Key, to: Steer) -> std::result::Result<Option<Deployment>, Fault> {
        self.steer_deployment(key, to).await.map_err(lost)
    }

    async fn token(&self, key: &Key) -> std::result::Result<SecretString, Fault> {
        Ok(self.token_of(key).into())
    }

    async fn site(&self, id: &SiteId) -> std::result::Result<Site, Fault> {
        let found = self.store.read(GetSite { id: id.clone() }).await.map_err(lost)?;
        found.ok_or_else(|| no_site(id))
    }

    async fn node(&self, id: &NodeId) -> std::result::Result<Node, Fault> {
        let found = self.store.read(GetNode { id: id.clone() }).await.map_err(lost)?;
        found.ok_or_else(|| no_node(id))
    }

    async fn enrollment(&self, id: &NodeId) -> std::result::Result<SecretString, Fault> {
        let now = (self.clock)();
        let work = || Enrollment { vault: self.clone(), id: id.clone(), now };
        let ticket = self.racing(work).await.map_err(lost)?;
        Ok(self.token_of_ticket(&ticket))
    }
}

fn note(key: &Key, row: &NoteRow) -> std::result::Result<Note, Fault> {
    if row.barred {
        return Ok(Note::Barred);
    }
    let unreadable =
        |error| Fault::new(Code::RecordUnreadable, format!("the note of {key}: {error}"));
    serde_json::from_str(&row.body).map(Note::Begun).map_err(unreadable)
}

/// Without our own memory nothing is tried.
fn lost(error: StoreError) -> Fault {
    Fault::new(Code::DatabaseUnreachable, format!("Farrier's own database: {error}"))
}
