//! The audit log: sealing, searching and checking it, and counting refusals.
//!
//! An accepted request writes its entry in its own commit. Entries are chained within a second
//! after that, so that no commit waits for another: each seal is a keyed hash of the seal before it
//! and of the entry. Refusals are counted in memory and written together, so that many of them
//! are one entry with a count.

use crate::clock::Clock;
use model::audit::{
    AuditCheck, AuditEntry, AuditOutcome, AuditSeal, MAX_OBJECTS, SIGN_IN_CALLS, StoredAuditEntry,
};
use ring::hmac;
use secrecy::{ExposeSecret, SecretString};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use store::{AuditDraft, AuditQuery, Result, Store, StoreError, Tx};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// The longest time that an entry waits for its seal.
const SEAL_DELAY: Duration = Duration::from_millis(500);
/// The interval at which other replicas' entries are sealed when this one has none.
const POLL_INTERVAL: Duration = Duration::from_secs(10);
/// The number of entries that one transaction seals.
const MAX_SEALED_AT_ONCE: i64 = 200;
const PAGE: i64 = 1_000;
/// The number of different refusals that are counted apart between two writes.
const MAX_KINDS_OF_REFUSALS: usize = 256;
/// The intervals at which refusals are written: of users, and of clients without identity. The log
/// is kept for ever, so no client may fill it.
const USER_INTERVAL: Duration = Duration::from_secs(5);
const STRANGER_INTERVAL: Duration = Duration::from_secs(60);
/// The interval of the check for counted refusals that are due.
const DUE_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub struct AuditLog {
    store: Store,
    clock: Clock,
    key: hmac::Key,
    pending: Arc<Pending>,
}

#[derive(Default)]
struct Pending {
    changed: Notify,
    /// Changes when this replica has sealed entries.
    sealed: watch::Sender<()>,
    /// The position of the last entry that this replica has sealed or found sealed.
    highest: AtomicI64,
    of_users: Mutex<Refusals>,
    of_strangers: Mutex<Refusals>,
}

/// Refusals that are counted and not written yet.
#[derive(Default)]
struct Refusals {
    counted: BTreeMap<RefusalKey, AuditEntry>,
    written_at: Option<Instant>,
}

/// Refusals with the same key are one entry.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
struct RefusalKey {
    user: String,
    token: String,
    peer: String,
    call: String,
    reason: String,
}

impl Refusals {
    /// Takes what is counted if the last write is long enough ago.
    fn take_due(&mut self, interval: Duration) -> BTreeMap<RefusalKey, AuditEntry> {
        let due = self.written_at.is_none_or(|at| at.elapsed() >= interval);
        if !due || self.counted.is_empty() {
            return BTreeMap::new();
        }
        self.written_at = Some(Instant::now());
        std::mem::take(&mut self.counted)
    }
}

fn locked(refusals: &Mutex<Refusals>) -> MutexGuard<'_, Refusals> {
    refusals.lock().unwrap_or_else(PoisonError::into_inner)
}

impl AuditLog {
    pub fn new(store: Store, clock: Clock, key: &SecretString) -> Self {
        let key = hmac::Key::new(hmac::HMAC_SHA256, key.expose_secret().as_bytes());
        Self { store, clock, key, pending: Arc::default() }
    }

    /// Starts the entry of a request.
    pub fn draft(&self, entry: AuditEntry) -> Arc<AuditDraft> {
        Arc::new(AuditDraft::new(AuditEntry { at: (self.clock)(), ..entry }))
    }

    /// An accepted request has been answered. Writes its entry if it has not written anything
    /// itself.
    pub async fn finish(&self, draft: &AuditDraft) {
        if let Err(error) = self.record(draft).await {
            let call = draft.entry().call;
            tracing::error!(%error, call, "a request is missing in the audit log");
        }
    }

    /// Writes the entry of a request now, if it is not written.
    pub async fn record(&self, draft: &AuditDraft) -> Result<()> {
        if !draft.is_written() {
            let written = self.store.write("audit", draft.entry(), |entry, tx| {
                Box::pin(async move { tx.insert_audit_entry(entry) })
            });
            written.await?;
            draft.mark_written();
        }
        self.pending.changed.notify_one();
        Ok(())
    }

    /// Counts a refused request. Those of clients without an identity are counted by their reason
    /// alone, and sign-ins apart from calls.
    pub fn count_refusal(&self, entry: AuditEntry, reason: &str) {
        let outcome = AuditOutcome::Refused { reason: reason.to_string(), count: 1 };
        let entry = AuditEntry { at: (self.clock)(), outcome, ..entry };
        let reason = reason.to_string();
        if entry.user.is_empty() {
            let call = match entry.call.starts_with(SIGN_IN_CALLS) {
                true => entry.call.clone(),
                false => String::new(),
            };
            let key = RefusalKey { reason, call: call.clone(), ..RefusalKey::default() };
            let remark = String::new();
            let entry = AuditEntry { call, remark, objects: Vec::new(), ..entry };
            add_refusal(&mut locked(&self.pending.of_strangers).counted, key, entry);
        } else {
            let AuditEntry { user, token_id: token, peer, call, .. } = entry.clone();
            let key = RefusalKey { user, token, peer, call, reason };
            add_refusal(&mut locked(&self.pending.of_users).counted, key, entry);
        }
        self.pending.changed.notify_one();
    }

    /// Seals entries until the process ends, beginning with those of the process before.
    pub async fn run_sealing(self) {
        loop {
            if let Err(error) = self.write_refusals().await {
                tracing::warn!(%error, "refused requests are not in the audit log yet");
            }
            if let Err(error) = self.seal_all().await {
                tracing::warn!(%error, "entries of the audit log are not sealed yet");
            }
            let pause = if self.has_refusals() { DUE_INTERVAL } else { POLL_INTERVAL };
            tokio::select! {
                () = self.pending.changed.notified() => tokio::time::sleep(SEAL_DELAY).await,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    fn has_refusals(&self) -> bool {
        let Pending { of_users, of_strangers, .. } = &*self.pending;
        [of_users, of_strangers].into_iter().any(|one| !locked(one).counted.is_empty())
    }

    async fn write_refusals(&self) -> Result<()> {
        let Pending { of_users, of_strangers, .. } = &*self.pending;
        for (refusals, interval) in [(of_users, USER_INTERVAL), (of_strangers, STRANGER_INTERVAL)] {
            let counted = locked(refusals).take_due(interval);
            if counted.is_empty() {
                continue;
            }
            let entries: Vec<AuditEntry> = counted.values().cloned().collect();
            let written = self.store.write("audit_refusals", entries, |entries, tx| {
                Box::pin(async move {
                    entries.iter().try_for_each(|entry| tx.insert_audit_entry(entry))
                })
            });
            if let Err(error) = written.await {
                // They are counted on, and written when the database answers.
                let mut refusals = locked(refusals);
                refusals.written_at = None;
                for (key, entry) in counted {
                    add_refusal(&mut refusals.counted, key, entry);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Seals all entries that are committed now.
    pub async fn seal_all(&self) -> Result<()> {
        loop {
            let waits = self.store.read_one((), |(), tx| Box::pin(tx.has_unsealed_audit())).await?;
            if !waits {
                return Ok(());
            }
            let input = (self.key.clone(), self.pending.highest.load(Ordering::Acquire));
            let sealed = self
                .store
                .write("seal_audit", input, |(key, highest), tx| Box::pin(seal(tx, key, *highest)));
            let (sealed, head) = sealed.await?;
            self.pending.highest.fetch_max(head, Ordering::AcqRel);
            self.pending.sealed.send_replace(());
            if sealed < MAX_SEALED_AT_ONCE {
                return Ok(());
            }
        }
    }

    /// Changes when this replica has sealed entries. Other replicas seal too, so a reader also
    /// polls.
    pub fn sealed(&self) -> watch::Receiver<()> {
        self.pending.sealed.subscribe()
    }

    /// Sealed entries after a position, in the order of the chain, and the end of the chain at that
    /// time.
    pub async fn sealed_after(
        &self,
        query: AuditQuery,
        after: i64,
        limit: i64,
    ) -> Result<(Vec<StoredAuditEntry>, AuditSeal)> {
        let input = (query, after, limit);
        let found = self.store.scan(input, |(query, after, limit), tx| {
            Box::pin(async move {
                let head = tx.audit_head().await?;
                Ok((tx.sealed_audit_entries(query, *after, *limit).await?, head))
            })
        });
        found.await
    }

    /// True if the chain contains this seal at its position.
    pub async fn contains(&self, seal: &AuditSeal) -> Result<bool> {
        let position = seal.position;
        let found = self.store.scan(position, |at, tx| Box::pin(tx.audit_seal_at(*at)));
        Ok(found.await?.as_deref() == Some(seal.seal.as_str()))
    }

    /// The end of the chain. None: the chain does not contain this seal.
    pub async fn end_after(&self, known: Option<AuditSeal>) -> Result<Option<AuditSeal>> {
        let found = self.store.scan(known, |known, tx| {
            Box::pin(async move {
                let head = tx.audit_head().await?;
                let Some(known) = known else { return Ok(Some(head)) };
                let seal = tx.audit_seal_at(known.position).await?;
                Ok(Some(head).filter(|_| seal.as_deref() == Some(known.seal.as_str())))
            })
        });
        found.await
    }

    /// The number of entries up to a position of the chain that are gone.
    pub async fn count_missing(&self, position: i64) -> Result<i64> {
        let found = self.store.scan(position, |at, tx| Box::pin(tx.count_sealed_audit(*at)));
        Ok(position - found.await?)
    }

    /// A chain that ends before this position is not sealed on: it was longer when the process
    /// before this one ended.
    pub fn require_position(&self, position: i64) {
        self.pending.highest.fetch_max(position, Ordering::AcqRel);
    }

    /// Proves that a record of a seal was made by a holder of the key of the chain. No seal is made
    /// from such a text: the text of an entry follows a seal or nothing.
    pub fn sign_record(&self, seal: &AuditSeal) -> String {
        hash(&self.key, "recorded end", &format!("{}:{}", seal.position, seal.seal))
    }

    /// The end of the chain and the number of entries after it.
    pub async fn end(&self) -> Result<(AuditSeal, i64)> {
        let end = self.store.scan((), |(), tx| {
            Box::pin(async move { Ok((tx.audit_head().await?, tx.count_unsealed_audit().await?)) })
        });
        end.await
    }

    /// Entries before a sequence number, the newest first.
    pub async fn list(
        &self,
        query: AuditQuery,
        before: Option<i64>,
        limit: i64,
    ) -> Result<Vec<StoredAuditEntry>> {
        let input = (query, before, limit);
        let found = self.store.scan(input, |(query, before, limit), tx| {
            Box::pin(tx.audit_entries(query, *before, *limit))
        });
        found.await
    }

    /// Checks the whole chain, and that it contains a checkpoint which was kept elsewhere.
    pub async fn check(&self, checkpoint: Option<AuditSeal>) -> Result<AuditCheck> {
        let mut check = AuditCheck::default();
        // The recorded end may have been cut together with the entries since.
        let highest = self.pending.highest.load(Ordering::Acquire);
        let mut after = 0;
        let mut found = None;
        loop {
            let page = self.store.scan(after, |after, tx| Box::pin(tx.audit_chain(*after, PAGE)));
            let page = page.await?;
            check.extend(&page, |before, text| hash(&self.key, before, text));
            let seals = page.iter().filter_map(|one| one.sealed.as_ref());
            for seal in seals {
                after = seal.position;
                if checkpoint.as_ref().is_some_and(|kept| kept.position == seal.position) {
                    found = Some(seal.seal.clone());
                }
            }
            if (page.len() as i64) < PAGE {
                break;
            }
        }
        let (mut recorded, unsealed) = self.end().await?;
        recorded.position = recorded.position.max(highest);
        // Entries may have been sealed since the last page.
        if recorded.position <= after || self.chain_ends_at(after).await? {
            check.finish(Some(&recorded));
        }
        if let Some(checkpoint) = &checkpoint {
            check.compare(checkpoint, found.as_deref());
        }
        check.unsealed = unsealed;
        Ok(check)
    }

    /// True if no entry follows this position, although the recorded end is later.
    async fn chain_ends_at(&self, position: i64) -> Result<bool> {
        let next = self.store.scan(position, |after, tx| Box::pin(tx.audit_chain(*after, 1)));
        Ok(next.await?.is_empty())
    }
}

/// Adds an entry to those of its kind. Kinds beyond the limit are counted together.
fn add_refusal(
    refusals: &mut BTreeMap<RefusalKey, AuditEntry>,
    key: RefusalKey,
    entry: AuditEntry,
) {
    let is_full = refusals.len() >= MAX_KINDS_OF_REFUSALS && !refusals.contains_key(&key);
    let (key, entry) = match is_full {
        true => unnamed(key.reason, entry),
        false => (key, entry),
    };
    match refusals.entry(key) {
        Entry::Vacant(vacant) => drop(vacant.insert(entry)),
        Entry::Occupied(mut counted) => {
            let known = counted.get_mut();
            let new = entry.objects.into_iter().filter(|one| !known.objects.contains(one));
            let new: Vec<String> = new.collect();
            known.objects.extend(new);
            known.objects.truncate(MAX_OBJECTS);
            if let (
                AuditOutcome::Refused { count, .. },
                AuditOutcome::Refused { count: more, .. },
            ) = (&mut known.outcome, entry.outcome)
            {
                *count += more;
            }
        }
    }
}

/// The entry of refusals that are too many to be counted apart: it blames nobody.
fn unnamed(reason: String, entry: AuditEntry) -> (RefusalKey, AuditEntry) {
    let key = RefusalKey { reason, ..RefusalKey::default() };
    let AuditEntry { at, outcome, .. } = entry;
    (key, AuditEntry { outcome, ..AuditEntry::of(None, "", at) })
}

/// Returns how many entries were sealed, and the end of the chain. A chain that has become shorter
/// than `highest` is not sealed on: that would hide what was removed.
async fn seal(tx: &mut Tx, key: &hmac::Key, highest: i64) -> Result<(i64, i64)> {
    let mut head = tx.lock_audit_head().await?;
    if head.position < highest {
        let message = format!(
            "the audit log ended at entry {highest} and ends at {} now; see farrier audit verify",
            head.position
        );
        return Err(StoreError::Corrupt(message));
    }
    let entries = tx.unsealed_audit(MAX_SEALED_AT_ONCE).await?;
    for one in &entries {
        let seal = hash(key, &head.seal, &one.entry.sealed_text(one.seq));
        head = AuditSeal { position: head.position + 1, seal };
        tx.seal_audit_entry(one.seq, &head)?;
    }
    tx.set_audit_head(&head)?;
    Ok((entries.len() as i64, head.position))
}

fn hash(key: &hmac::Key, before: &str, text: &str) -> String {
    let mut context = hmac::Context::with_key(key);
    context.update(before.as_bytes());
    context.update(b"\n");
    context.update(text.as_bytes());
    context.sign().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::time::Timestamp;

    fn refused(user: &str, count: u64) -> (RefusalKey, AuditEntry) {
        let entry = AuditEntry::of(None, "farrier.v1.A/B", Timestamp::from_micros(7));
        let outcome = AuditOutcome::Refused { reason: "NO".into(), count };
        let (call, reason) = (entry.call.clone(), "NO".to_string());
        let key = RefusalKey { user: user.into(), call, reason, ..RefusalKey::default() };
        (key, AuditEntry { user: user.into(), outcome, ..entry })
    }

    fn total(refusals: &BTreeMap<RefusalKey, AuditEntry>) -> u64 {
        let counts = refusals.values().map(|entry| match entry.outcome {
            AuditOutcome::Refused { count, .. } => count,
            AuditOutcome::Accepted => 0,
        });
        counts.sum()
    }

    #[test]
    fn refusals_are_counted_by_kind_and_none_is_lost() {
        let mut refusals = BTreeMap::new();
        for (user, count) in [("ada", 1), ("ada", 1), ("bob", 1), ("ada", 40)] {
            let (key, entry) = refused(user, count);
            add_refusal(&mut refusals, key, entry);
        }
        assert_eq!((refusals.len(), total(&refusals)), (2, 43));
    }

    /// The log is kept for ever, so clients without an identity may not fill it.
    #[tokio::test]
    async fn refusals_of_strangers_are_one_entry_by_reason() {
        let store = Store::open(&store::Options::Memory).await.unwrap();
        let log = AuditLog::new(store, crate::clock::system(), &"key".to_string().into());
        for call in 0..500 {
            let entry = AuditEntry::of(None, &format!("call-{call}"), Timestamp::from_micros(7));
            log.count_refusal(AuditEntry { remark: "x".into(), ..entry }, "UNAUTHENTICATED");
        }
        for _ in 0..2 {
            log.write_refusals().await.unwrap();
            let found = log.list(AuditQuery::default(), None, 10).await.unwrap();
            assert_eq!(found.len(), 1, "{found:?}");
            let AuditEntry { call, remark, outcome, .. } = &found[0].entry;
            let counted = AuditOutcome::Refused { reason: "UNAUTHENTICATED".into(), count: 500 };
            assert_eq!((call.as_str(), remark.as_str(), outcome), ("", "", &counted));
            // The next ones wait for their minute.
            let entry = AuditEntry::of(None, "call", Timestamp::from_micros(7));
            log.count_refusal(entry, "UNAUTHENTICATED");
        }
    }

    /// The chain and its recorded end were cut together while this process ran.
    #[tokio::test]
    async fn a_check_misses_what_this_process_has_known() {
        let store = Store::open(&store::Options::Memory).await.unwrap();
        let log = AuditLog::new(store, crate::clock::system(), &"key".to_string().into());
        let entry = AuditEntry::of(None, "call", Timestamp::from_micros(7));
        log.record(&log.draft(entry)).await.unwrap();
        log.seal_all().await.unwrap();
        assert_eq!(log.check(None).await.unwrap().problems, Vec::<String>::new());
        log.require_position(3);
        assert_eq!(log.check(None).await.unwrap().problems, ["entries 2 to 3 are missing"]);
    }

    #[test]
    fn very_many_kinds_are_bounded_and_counted() {
        let mut refusals = BTreeMap::new();
        for user in 0..10 * MAX_KINDS_OF_REFUSALS {
            let (key, entry) = refused(&format!("user-{user}"), 1);
            add_refusal(&mut refusals, key, entry);
        }
        assert_eq!(refusals.len(), MAX_KINDS_OF_REFUSALS + 1);
        assert_eq!(total(&refusals), 10 * MAX_KINDS_OF_REFUSALS as u64);
        // A kind that is known is still counted by itself.
        let (key, entry) = refused("user-7", 5);
        add_refusal(&mut refusals, key.clone(), entry);
        assert_eq!(refusals[&key].outcome, AuditOutcome::Refused { reason: "NO".into(), count: 6 });
    }
}
