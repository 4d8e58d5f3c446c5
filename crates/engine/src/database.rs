//! Checks of the database: rows that cannot be decoded are found, set aside and put back. These
//! are functions of the store, because a check also works without a running engine.

use crate::admission::event;
use model::condition::{ConditionObservation, ConditionType};
use model::here;
use model::id::RunId;
use model::refusal::{Reason, Refusal};
use model::run::actions::Requester;
use model::target::{TargetId, TargetKind};
use model::time::Timestamp;
use store::{Cause, Result, RowKind, SetAsideRow, Store, StoreError, Tx, UnreadableRow};

/// The most unreadable rows that a check names.
const MAX_NAMED: usize = 1_000;

/// The result of a check.
#[derive(Debug, Clone, Default)]
pub struct DatabaseCheck {
    pub checked: u64,
    pub unreadable: Vec<UnreadableRow>,
    /// There are more than `unreadable` names.
    pub more: bool,
    pub set_aside: Vec<SetAsideRow>,
}

/// Decodes every row, in batches.
pub async fn check(store: &Store) -> Result<DatabaseCheck> {
    let mut found = DatabaseCheck::default();
    for kind in RowKind::ALL {
        let mut after = String::new();
        loop {
            let batch = store
                .scan_one((kind, after), |(kind, after), tx| Box::pin(tx.check_rows(*kind, after)))
                .await?;
            found.checked += batch.checked;
            found.unreadable.extend(batch.unreadable);
            match batch.next {
                Some(next) => after = next,
                None => break,
            }
        }
    }
    found.more = found.unreadable.len() > MAX_NAMED;
    found.set_aside = store.scan_one((), |(), tx| Box::pin(tx.rows_set_aside())).await?;
    store.unreadable().replace(&found.unreadable);
    found.unreadable.truncate(MAX_NAMED);
    Ok(found)
}

/// A request about one row.
#[derive(Debug, Clone)]
pub struct RowRequest {
    pub kind: RowKind,
    pub id: String,
    pub who: Requester,
    pub now: Timestamp,
}

/// Moves a row that cannot be decoded into the side table.
pub async fn set_aside(store: &Store, request: RowRequest) -> Result<SetAsideRow> {
    store.retry_write("set_aside_row", request, |request, tx| Box::pin(request.set_aside(tx))).await
}

/// Moves a row back from the side table.
pub async fn put_back(store: &Store, request: RowRequest) -> Result<SetAsideRow> {
    let taken = Refusal::new(
        Reason::RowPlaceTaken,
        format!("{} {} cannot be put back: its place is taken", request.kind, request.id),
    );
    let taken = taken.next(format!("farrier why {}", request.id));
    let written =
        store.write("put_back_row", request, |request, tx| Box::pin(request.put_back(tx)));
    written.await.map_err(|error| match error {
        StoreError::Conflict => taken.into(),
        StoreError::Refused(_) | StoreError::Unavailable(_) | StoreError::Corrupt(_) => error,
    })
}

impl RowRequest {
    async fn set_aside(&self, tx: &mut Tx) -> Result<SetAsideRow> {
        let Some(row) = tx.unreadable_row(self.kind, &self.id).await? else {
            let message = format!("no {} {} is stored that cannot be read", self.kind, self.id);
            return Err(Refusal::new(Reason::RowReadable, message).next("farrier db check").into());
        };
        if self.kind == RowKind::Run {
            self.release_machine(tx).await?;
        }
        let message = format!("the row was set aside: {}", self.who.reason);
        let event = event(Cause::Admin, &self.who.by, message, here!(), self.now);
        tx.set_aside(&row, &self.who.reason, &event).await
    }

    /// The machine of an active run is free afterwards. Its hardware is in an unknown state, so it
    /// needs intervention.
    async fn release_machine(&self, tx: &mut Tx) -> Result<()> {
        let run = RunId::trusted(&*self.id);
        let held = tx.target_held_by(&run).await?.map(|key| TargetId::from_key(&key));
        if let Some(target) = held.filter(|target| target.kind != TargetKind::Machine) {
            let message = format!(
                "{run} is active on {target} and holds its devices: they would stay held by it"
            );
            return Err(Refusal::new(Reason::DeviceBusy, message)
                .next("start the farrier that wrote the row, or restore a backup")
                .into());
        }
        let Some(mut machine) = tx.machine_of_active_run(&run).await? else {
            return Ok(());
        };
        machine.active_run = None;
        let lost = ConditionObservation::new(
            ConditionType::NeedsIntervention,
            true,
            format!("{} was set aside, because its row cannot be read", self.id),
        );
        machine.learn(&[lost], self.now);
        let message = format!("{} was set aside: {}", self.id, self.who.reason);
        let event = event(Cause::Admin, &self.who.by, message, here!(), self.now);
        tx.update_machine(&mut machine, &event)
    }

    async fn put_back(&self, tx: &mut Tx) -> Result<SetAsideRow> {
        let Some(row) = tx.row_set_aside(Some(self.kind), &self.id).await? else {
            let noun = format!("row of a {} that was set aside,", self.kind);
            return Err(Refusal::not_found(&noun, &self.id, "farrier db check").into());
        };
        let message = format!("the row was put back: {}", self.who.reason);
        let event = event(Cause::Admin, &self.who.by, message, here!(), self.now);
        tx.put_back(&row, &event).await?;
        if self.kind == RowKind::Run {
            let run = RunId::trusted(&*self.id);
            if let Some(mut machine) = tx.machine_held_by(&run).await? {
                machine.active_run = Some(run);
                tx.update_machine(&mut machine, &event)?;
            }
        }
        Ok(row)
    }
}
