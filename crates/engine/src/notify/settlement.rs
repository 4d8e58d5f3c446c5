//! The transactions of the turn of a notifier: what it reads, and what it writes after an attempt.

use model::notify::{DeadLetter, Delivery};
use store::{Cursor, NotifierClaim, Result, StoreError, StoredNotifier, Tx};

/// The commit after an attempt.
#[derive(Clone)]
pub(super) struct Settlement {
    pub claim: NotifierClaim,
    pub position: Cursor,
    pub delivery: Delivery,
    pub letter: Option<LetterWrite>,
}

/// The write of a dead letter with it.
#[derive(Clone)]
pub(super) enum LetterWrite {
    Insert(DeadLetter),
    Update(DeadLetter),
    Delete(i64),
}

impl Settlement {
    pub fn write(&self, tx: &mut Tx) -> Result<()> {
        let Self { claim, position, delivery, letter } = self;
        tx.settle_delivery(claim, *position, delivery)?;
        match letter {
            None => Ok(()),
            Some(LetterWrite::Insert(letter)) => tx.insert_dead_letter(&claim.name, letter),
            Some(LetterWrite::Update(letter)) => tx.update_dead_letter(letter),
            Some(LetterWrite::Delete(id)) => tx.delete_dead_letter(*id),
        }
    }
}

/// The stored state of a notifier.
pub(super) struct Loaded {
    pub stored: StoredNotifier,
    pub replay: Option<DeadLetter>,
    pub wakes: i64,
    pub horizon: Cursor,
}

/// Reads a claimed notifier; none if it was deleted. Fails with a conflict if the claim was lost.
pub(super) async fn load(tx: &mut Tx, name: &str, epoch: i64) -> Result<Option<Loaded>> {
    let Some(stored) = tx.notifier(name).await? else { return Ok(None) };
    let wakes = tx.notifier_wakes(name, epoch).await?.ok_or(StoreError::Conflict)?;
    let replay = tx.next_replay(name).await?;
    Ok(Some(Loaded { stored, replay, wakes, horizon: tx.horizon().await? }))
}
