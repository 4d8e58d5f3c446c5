//! Rotations that are interrupted at every commit, and replicas that work meanwhile.

use super::super::{BindingWrite, Cipher, CredentialRequest, CredentialWrite};
use super::*;
use crate::clock::Clock;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use model::credential::CredentialPolicy;
use model::effect::EffectKey;
use model::id::RunId;
use model::time::Timestamp;
use providers::state_store::StoredCredential;
use secrecy::ExposeSecret;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use store::{Options, Replica, TransactionHook, TransactionPoint};
use zeroize::Zeroizing;

/// More than two batches.
const CREDENTIALS: usize = 2 * BATCH as usize + 7;

fn clock() -> Clock {
    Arc::new(|| Timestamp::from_millis(1_000))
}

fn who() -> Requester {
    Requester { by: "ada".into(), reason: String::new() }
}

fn secrets(store: &Store, cipher: Cipher) -> SecretStore {
    SecretStore::new(store.clone(), cipher, clock())
}

async fn set(secrets: &SecretStore, name: &str, password: &str) {
    let secret = Secret::Password { user: "root".into(), password: password.into() };
    let binding = BindingWrite::Replace(CredentialPolicy::default());
    let write = CredentialWrite::Update { version: None, allow_missing: true };
    let request = CredentialRequest { write, binding, binding_required: false };
    secrets.write(name, &secret, request, who()).await.unwrap();
}

async fn password(secrets: &SecretStore, name: &str) -> String {
    let StoredCredential { secret, .. } = secrets.stored(name).await.unwrap();
    let Secret::Password { password, .. } = secret else { panic!("{secret:?}") };
    password.expose_secret().to_string()
}

async fn keys(store: &Store) -> Vec<SealKeyRow> {
    store.read((), |(), tx| Box::pin(tx.seal_keys())).await.unwrap()
}

fn sealing(rows: &[SealKeyRow]) -> Vec<&SealKeyRow> {
    rows.iter().filter(|row| row.purpose == KeyPurpose::Seal).collect()
}

async fn fixture() -> (Store, SecretStore, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("farrier.db");
    let store = Store::open(&Options::Sqlite { path }).await.unwrap();
    let secrets = secrets(&store, Cipher::new(&[7; 32]));
    secrets.open_keys("one", TokenKeys::Random).await.unwrap();
    (store, secrets, dir)
}

/// Ends the process at one of its commits: before it, or after it without the answer.
struct Crash {
    at: usize,
    passed: AtomicUsize,
}

impl TransactionHook for Crash {
    fn intercept(&self, passing: TransactionPoint) -> BoxFuture<'_, Result<()>> {
        let point = match passing {
            TransactionPoint::Read => return async { Ok(()) }.boxed(),
            TransactionPoint::BeforeCommit(_) | TransactionPoint::AfterCommit(_) => {
                self.passed.fetch_add(1, Ordering::SeqCst)
            }
        };
        let killed = point >= self.at;
        async move {
            if killed {
                return Err(StoreError::Unavailable("the process was killed".into()));
            }
            Ok(())
        }
        .boxed()
    }
}

/// Killed before and after every commit: the next start continues, no secret is lost, and exactly
/// one key is left.
#[tokio::test]
async fn a_rotation_survives_a_kill_at_every_commit() {
    let (store, secrets_of_one, _dir) = fixture().await;
    for index in 0..CREDENTIALS {
        set(&secrets_of_one, &format!("c-{index}"), &format!("p-{index}")).await;
    }
    let token = secrets_of_one.cipher.deployment_token("a");
    let mut crashes = 0;
    loop {
        let before = sealing(&keys(&store).await)[0].id.clone();
        let crash = Arc::new(Crash { at: crashes, passed: AtomicUsize::new(0) });
        let killed = store.with_hook(Arc::clone(&crash) as Arc<dyn TransactionHook>);
        let killed = secrets(&killed, Cipher::new(&[7; 32]));
        let ended = killed.rotate_keys(who()).await;

        // The next process, on the same database.
        let next = secrets(&store, Cipher::new(&[7; 32]));
        next.open_keys("one", TokenKeys::Random).await.unwrap();
        next.resume_rotation().await.unwrap();
        let rows = keys(&store).await;
        assert_eq!(sealing(&rows).len(), 1, "after crash {crashes}");
        let current = sealing(&rows)[0].id.clone();
        let begun = crashes > 0;
        assert_eq!(current != before, begun, "after crash {crashes}: the first commit decides");
        let stale = store.read(current, |key, tx| Box::pin(tx.count_sealed_otherwise(key)));
        assert_eq!(stale.await, Ok(0), "after crash {crashes}");
        for index in [0, 1, BATCH as usize, CREDENTIALS - 1] {
            let found = password(&next, &format!("c-{index}")).await;
            assert_eq!(found, format!("p-{index}"), "after crash {crashes}");
        }
        assert_eq!(next.cipher.deployment_token("a"), token, "after crash {crashes}");
        if ended.is_ok() {
            break;
        }
        crashes += 1;
    }
    // begin, three batches, an empty one, and the end; two points each.
    assert_eq!(crashes, 12, "every commit was a crash point");
}

/// Another replica opens what was sealed with a key that it has never seen, and seals with it.
#[tokio::test]
async fn replicas_work_while_the_key_changes() {
    let (store, one, _dir) = fixture().await;
    let two = secrets(&store, Cipher::new(&[7; 32]));
    two.open_keys("two", TokenKeys::Random).await.unwrap();
    set(&one, "a", "first").await;
    let done = one.rotate_keys(who()).await.unwrap();
    assert_eq!((done.resealed, done.removed.len()), (1, 1));
    assert_eq!(password(&two, "a").await, "first");
    set(&two, "b", "second").await;
    assert_eq!(password(&one, "b").await, "second");
    // A replica that sealed nothing since uses the current key too.
    let again = one.rotate_keys(who()).await.unwrap();
    set(&two, "c", "third").await;
    let row = store.read((), |(), tx| Box::pin(tx.credential("c"))).await.unwrap().unwrap();
    assert_eq!(row.key_id, Some(again.key_id));
    let dry = one.with_dry_run(true).rotate_keys(who()).await.unwrap();
    assert_eq!((dry.resealed, dry.key_id.as_str()), (3, ""));
    assert_eq!(row.key_id.as_deref(), Some(sealing(&keys(&store).await)[0].id.as_str()));
}

/// The tokens of deployments and enrollments do not depend on the key that seals, nor on the
/// master.
#[tokio::test]
async fn a_new_master_key_is_used_when_every_replica_has_it() {
    let (store, old, _dir) = fixture().await;
    set(&old, "a", "first").await;
    let run = EffectKey::new(&RunId::trusted("op-1"), "repave-os", 1);
    let tokens = |secrets: &SecretStore| {
        (secrets.deployment_token(&run), secrets.cipher.enrollment_token("n"))
    };
    let before = tokens(&old);
    let now = Timestamp::from_millis(1_000);
    for name in ["one", "two"] {
        let replica = Replica { name: name.into(), incarnation: name.into() };
        let register = store.write("register", replica, move |replica, tx| {
            Box::pin(tx.register_replica(replica, "1", now, now))
        });
        register.await.unwrap();
    }
    let key = |byte: u8| Zeroizing::new([byte; 32]);
    let both = || Cipher::with_masters(key(9), vec![key(7)]);
    let new = secrets(&store, both());
    new.open_keys("one", TokenKeys::OfOlderFarrier).await.unwrap();
    for dry_run in [true, false] {
        let refused = new.with_dry_run(dry_run).rotate_keys(who()).await.unwrap_err();
        assert!(refused.to_string().contains("two"), "{refused}");
    }
    assert_eq!(password(&old, "a").await, "first", "nothing has changed for the other");
    let two = secrets(&store, both());
    two.open_keys("two", TokenKeys::OfOlderFarrier).await.unwrap();
    let done = new.rotate_keys(who()).await.unwrap();
    assert_eq!(done.unused_masters, [Cipher::new(&[7; 32]).master_id()]);
    assert_eq!(done.master_id, Cipher::new(&[9; 32]).master_id());
    // The old master key can be removed.
    let alone = secrets(&store, Cipher::new(&[9; 32]));
    alone.open_keys("one", TokenKeys::OfOlderFarrier).await.unwrap();
    assert_eq!(password(&alone, "a").await, "first");
    assert_eq!(tokens(&alone), before);
    let gone = secrets(&store, Cipher::new(&[7; 32]));
    let problem = gone.open_keys("one", TokenKeys::OfOlderFarrier).await.unwrap_err();
    assert!(problem.to_string().contains("restore seal.key"), "{problem}");
}
