//! The transaction that claims due objects.

use model::id::ObjectId;
use model::time::Timestamp;
use std::collections::BTreeMap;
use store::{ClaimedKind, ClaimedObject, ClaimedRun, Result, StoreError, Tx};

/// Claims due objects and reads the runs among them. A record of another kind is read by its turn.
pub(super) async fn claim(
    tx: &mut Tx,
    owner: &str,
    now: Timestamp,
    limit: i64,
) -> Result<Vec<(ClaimedObject, Result<ClaimedRun>)>> {
    let claimed = tx.claim_due(owner, now, limit).await?;
    if claimed.is_empty() {
        return Ok(Vec::new());
    }
    let runs = claimed.iter().filter(|one| one.kind == ClaimedKind::Run);
    let ids: Vec<&str> = runs.map(|one| one.id.as_str()).collect();
    let mut held: BTreeMap<ObjectId, Result<ClaimedRun>> = match ids.is_empty() {
        true => BTreeMap::new(),
        false => {
            let held = tx.runs_with_claims(&ids).await?;
            held.into_iter().map(|(id, held)| (id.object(), held)).collect()
        }
    };
    let gone = || Err(StoreError::Corrupt("its record is missing".into()));
    let with_run = |one: ClaimedObject| {
        let held = held.remove(&one.id).unwrap_or_else(gone);
        (one, held)
    };
    Ok(claimed.into_iter().map(with_run).collect())
}
