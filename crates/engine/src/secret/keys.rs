//! The keys in the database: they are made at the first start, loaded by every replica, and
//! replaced by a rotation.
//!
//! A rotation is a sequence of short transactions, and its progress is in the database: the current
//! key, and the key of each value. So it continues after a crash, and any replica can continue it.
//! A value is sealed in the transaction that writes it, which locks the keys; therefore no value is
//! sealed with a key that a rotation has removed. A replica that meets an unknown key loads the
//! keys again.

use super::SecretStore;
use crate::FaultResult;
use model::here;
use model::refusal::{Reason, Refusal};
use model::run::actions::Requester;
use providers::state_store::Secret;
use secrecy::SecretString;
use store::{
    Cause, CredentialRow, KeyPurpose, NewEvent, Result, SealKeyRow, Store, StoreError, Tx,
};

/// Enough to tell the installations on one host apart.
const COOKIE_SUFFIX_DIGITS: usize = 8;
/// The credentials that one transaction seals again.
const BATCH: i64 = 50;
/// The transactions of one rotation: enough for a million credentials.
const MAX_BATCHES: u32 = 20_000;

/// The origin of the first key of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenKeys {
    /// An older farrier may have issued tokens with its only key.
    OfOlderFarrier,
    /// The installation is new.
    Random,
}

/// The result of a rotation.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rotation {
    /// The key that seals secrets now.
    pub key_id: String,
    /// The number of secrets that were sealed again, or would be.
    pub resealed: u64,
    /// The keys that were removed.
    pub removed: Vec<String>,
    /// Former keys that rows which were set aside still need.
    pub kept: Vec<String>,
    /// The master key that protects the keys.
    pub master_id: String,
    /// Master keys of this server that protect nothing any more.
    pub unused_masters: Vec<String>,
}

impl SecretStore {
    /// The key of the chain of the audit log. It is derived from a key that a rotation keeps.
    pub fn audit_key(&self) -> SecretString {
        self.cipher.enrollment_token("audit chain").into()
    }

    /// A text that tells the cookies of this installation from those of another one. It is no
    /// secret: nothing can be computed from it.
    pub fn cookie_suffix(&self) -> String {
        self.cipher.enrollment_token("cookies").chars().take(COOKIE_SUFFIX_DIGITS).collect()
    }

    /// Makes the keys that are missing and loads all. [`StoreError::Corrupt`]: no master key opens
    /// them; its text says what to do.
    pub async fn open_keys(&self, replica: &str, tokens: TokenKeys) -> Result<()> {
        let input = (self.clone(), replica.to_string(), tokens);
        let rows = self.store.retry_write("open_seal_keys", input, |(own, replica, tokens), tx| {
            Box::pin(own.make_missing_keys(tx, replica, *tokens))
        });
        self.cipher.load(&rows.await?).map_err(StoreError::Corrupt)
    }

    async fn make_missing_keys(
        &self,
        tx: &mut Tx,
        replica: &str,
        tokens: TokenKeys,
    ) -> Result<Vec<SealKeyRow>> {
        let mut rows = tx.seal_keys_locked().await?;
        let now = (self.clock)();
        for purpose in KeyPurpose::ALL {
            if rows.iter().any(|row| row.purpose == purpose && row.current) {
                continue;
            }
            let row = match (purpose, tokens) {
                (KeyPurpose::Seal, _) | (_, TokenKeys::Random) => self.cipher.new_key(purpose, now),
                (
                    KeyPurpose::DeploymentTokens | KeyPurpose::EnrollmentTokens,
                    TokenKeys::OfOlderFarrier,
                ) => self.cipher.old_token_key(purpose, now),
            }?;
            tx.insert_seal_key(&row)?;
            rows.push(row);
        }
        tx.record_masters(replica, &self.cipher.master_ids()).await?;
        Ok(rows)
    }

    /// Loads the keys of the database again.
    async fn reload_keys(&self) -> Result<()> {
        let rows = self.store.read((), |(), tx| Box::pin(tx.seal_keys())).await?;
        self.cipher.load(&rows).map_err(StoreError::Unavailable)
    }

    /// Loads the keys if one of these rows is sealed with an unknown one.
    pub(super) async fn load_keys_of(&self, rows: &[CredentialRow]) -> Result<()> {
        let known = |row: &CredentialRow| self.cipher.has_key(row.key_id.as_deref());
        if rows.iter().all(known) {
            return Ok(());
        }
        self.reload_keys().await
    }

    /// Opens a row, after loading its key if that is new.
    pub(super) async fn open_row(&self, row: &CredentialRow) -> FaultResult<Secret> {
        if !self.cipher.has_key(row.key_id.as_deref()) {
            self.reload_keys().await.map_err(super::database_fault)?;
        }
        self.cipher.open(&row.name, &row.sealed)
    }

    /// Seals a secret in the transaction that writes it.
    pub(super) async fn seal_in(
        &self,
        tx: &mut Tx,
        name: &str,
        secret: &Secret,
    ) -> Result<(String, Vec<u8>)> {
        let mut rows = tx.seal_keys_locked().await?;
        if !rows.iter().any(|row| row.purpose == KeyPurpose::Seal && row.current) {
            let row = self.cipher.new_key(KeyPurpose::Seal, (self.clock)())?;
            tx.insert_seal_key(&row)?;
            rows.push(row);
        }
        self.cipher.load(&rows).map_err(StoreError::Unavailable)?;
        self.cipher.seal(name, secret)
    }

    /// Makes a new key and seals every secret with it. An unfinished rotation is continued instead.
    pub async fn rotate_keys(&self, who: Requester) -> Result<Rotation> {
        if self.store.is_dry_run() {
            return self.preview_rotation().await;
        }
        let input = (self.clone(), who.clone());
        let rows = self.store.retry_write("begin_rotation", input, |(own, who), tx| {
            Box::pin(own.begin_rotation(tx, who))
        });
        self.cipher.load(&rows.await?).map_err(StoreError::Unavailable)?;
        self.finish_rotation(who).await
    }

    /// Continues a rotation that was interrupted. None: there is none.
    pub async fn resume_rotation(&self) -> Result<Option<Rotation>> {
        let rows = self.store.read((), |(), tx| Box::pin(tx.seal_keys())).await?;
        let unfinished = rows.iter().any(|row| row.purpose == KeyPurpose::Seal && !row.current);
        if !unfinished {
            return Ok(None);
        }
        let who = Requester { by: "farrier".into(), reason: String::new() };
        self.finish_rotation(who).await.map(Some)
    }

    async fn preview_rotation(&self) -> Result<Rotation> {
        let input = self.cipher.master_id().to_string();
        let missing =
            self.store.read(input, |master, tx| Box::pin(tx.replicas_without_master(master)));
        refuse_missing(&missing.await?, self.cipher.master_id())?;
        // No key has this id, so every credential counts.
        let count = self.store.read((), |(), tx| Box::pin(tx.count_sealed_otherwise(""))).await?;
        Ok(Rotation {
            resealed: u64::try_from(count).unwrap_or_default(),
            master_id: self.cipher.master_id().into(),
            ..Rotation::default()
        })
    }

    /// The first commit: the new key is current, and all keys are under the first master key.
    async fn begin_rotation(&self, tx: &mut Tx, who: &Requester) -> Result<Vec<SealKeyRow>> {
        let master = self.cipher.master_id();
        refuse_missing(&tx.replicas_without_master(master).await?, master)?;
        let mut rows = tx.seal_keys_locked().await?;
        for row in &mut rows {
            if let Some(rewrapped) = self.cipher.rewrapped(row)? {
                tx.rewrap_seal_key(&rewrapped)?;
                *row = rewrapped;
            }
        }
        let sealing = |row: &&mut SealKeyRow| row.purpose == KeyPurpose::Seal;
        if rows.iter_mut().filter(sealing).any(|row| !row.current) {
            return Ok(rows);
        }
        for row in rows.iter_mut().filter(sealing) {
            tx.retire_seal_key(&row.id)?;
            row.current = false;
        }
        let now = (self.clock)();
        let new = self.cipher.new_key(KeyPurpose::Seal, now)?;
        tx.insert_seal_key(&new)?;
        let message = format!("secrets are sealed with the key {} from now on", new.id);
        tx.append_seal_key_event("ROTATING", &event(who, message, here!(), now)).await?;
        rows.push(new);
        Ok(rows)
    }

    async fn finish_rotation(&self, who: Requester) -> Result<Rotation> {
        let mut resealed = 0;
        for _ in 0..MAX_BATCHES {
            let batch = self
                .store
                .retry_write("reseal", self.clone(), |own, tx| Box::pin(own.reseal_batch(tx)));
            let count = batch.await?;
            resealed += count;
            if count > 0 {
                continue;
            }
            let input = (self.clone(), who.clone());
            let done = self.store.retry_write("end_rotation", input, |(own, who), tx| {
                Box::pin(own.end_rotation(tx, who))
            });
            if let Some(done) = done.await? {
                self.reload_keys().await?;
                return Ok(Rotation { resealed, ..done });
            }
        }
        Err(StoreError::Conflict)
    }

    /// Seals some credentials with the current key. Returns how many.
    async fn reseal_batch(&self, tx: &mut Tx) -> Result<u64> {
        let rows = tx.seal_keys_locked().await?;
        self.cipher.load(&rows).map_err(StoreError::Unavailable)?;
        let Some(current) = current(&rows) else { return Ok(0) };
        let stale = tx.credentials_sealed_otherwise(current, BATCH).await?;
        let count = stale.len() as u64;
        for row in stale {
            let secret = self.cipher.open(&row.name, &row.sealed);
            let secret = secret.map_err(|fault| StoreError::Corrupt(fault.message))?;
            let (key_id, sealed) = self.cipher.seal(&row.name, &secret)?;
            tx.reseal_credential(&CredentialRow { key_id: Some(key_id), sealed, ..row })?;
        }
        Ok(count)
    }

    /// The last commit removes the former keys. None: a credential is still sealed with one.
    async fn end_rotation(&self, tx: &mut Tx, who: &Requester) -> Result<Option<Rotation>> {
        let rows = tx.seal_keys_locked().await?;
        let key_id = current(&rows).unwrap_or_default().to_string();
        let former: Vec<String> = rows
            .iter()
            .filter(|row| row.purpose == KeyPurpose::Seal && !row.current)
            .map(|row| row.id.clone())
            .collect();
        if tx.count_sealed_otherwise(&key_id).await? > 0 {
            return Ok(None);
        }
        let needed = tx.count_sealed_set_aside().await? > 0;
        let (kept, removed) = if needed { (former, Vec::new()) } else { (Vec::new(), former) };
        for id in &removed {
            tx.delete_seal_key(id)?;
        }
        let now = (self.clock)();
        if !removed.is_empty() {
            let message = format!("the key {} was removed", removed.join(", "));
            tx.append_seal_key_event("ROTATED", &event(who, message, here!(), now)).await?;
        }
        let master_id = self.cipher.master_id().to_string();
        let mut unused_masters = self.cipher.master_ids();
        unused_masters.retain(|id| *id != master_id && rows.iter().all(|row| row.master != *id));
        Ok(Some(Rotation { key_id, resealed: 0, removed, kept, master_id, unused_masters }))
    }
}

fn current(rows: &[SealKeyRow]) -> Option<&str> {
    let found = rows.iter().find(|row| row.purpose == KeyPurpose::Seal && row.current);
    found.map(|row| row.id.as_str())
}

/// Every replica must have the master key before a key is wrapped with it.
fn refuse_missing(replicas: &[String], master: &str) -> Result<()> {
    if replicas.is_empty() {
        return Ok(());
    }
    let message = format!(
        "these replicas do not have the master key {master}: {}; give it to them and start them \
         again, then rotate",
        replicas.join(", ")
    );
    let refusal = Refusal::new(Reason::SealKeyMissing, message).next("farrier admin replicas");
    Err(refusal.into())
}

fn event(
    who: &Requester,
    message: String,
    decided_by: &str,
    at: model::time::Timestamp,
) -> NewEvent {
    let actor = who.by.clone();
    NewEvent { cause: Cause::Request, actor, message, decided_by: decided_by.into(), at }
}

/// True if the database has values that only a master key opens.
pub async fn has_sealed_values(store: &Store) -> Result<bool> {
    Ok(store.read((), |(), tx| Box::pin(tx.count_sealed_values())).await? > 0)
}

#[cfg(test)]
#[path = "keys_tests.rs"]
mod tests;
