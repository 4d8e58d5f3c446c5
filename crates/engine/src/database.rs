//! Checks of the database: rows that cannot be decoded are found, set aside and put back. These
//! are functions of the store, because a check also works without a running engine.

use crate::admission::event;
use crate::holds::release_lost_run;
use model::here;
use model::id::RunId;
use model::machine::{Machine, NodeName};
use model::refusal::{Reason, Refusal};
use model::run::actions::Requester;
use model::time::Timestamp;
use std::fmt;
use store::{Cause, Result, RowKind, SetAsideRow, Store, StoreError, Tx, UnreadableRow};

/// The most unreadable rows that a check names.
const MAX_NAMED: usize = 1_000;

/// The result of a check.
#[derive(Debug, Clone, Default)]
pub struct DatabaseCheck {
    pub checked: u64,
    pub unreadable: Vec<UnreadableRow>,
    /// More rows are unreadable than `unreadable` lists.
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
            let run = RunId::trusted(&*self.id);
            let message = format!("{run} was set aside: {}", self.who.reason);
            let event = event(Cause::Admin, &self.who.by, message, here!(), self.now);
            release_lost_run(tx, &run, &event).await?;
        }
        let message = format!("the row was set aside: {}", self.who.reason);
        let event = event(Cause::Admin, &self.who.by, message, here!(), self.now);
        tx.set_aside(&row, &self.who.reason, &event).await
    }

    async fn put_back(&self, tx: &mut Tx) -> Result<SetAsideRow> {
        let Some(row) = tx.row_set_aside(Some(self.kind), &self.id).await? else {
            let noun = format!("row of a {} that was set aside,", self.kind);
            return Err(Refusal::not_found(&noun, &self.id, "farrier db check").into());
        };
        let mut held = None;
        if self.kind == RowKind::Machine {
            self.check_node_name(tx).await?;
        }
        if self.kind == RowKind::Run {
            held = self.check_hold(tx).await?;
        }
        let message = format!("the row was put back: {}", self.who.reason);
        let event = event(Cause::Admin, &self.who.by, message, here!(), self.now);
        tx.put_back(&row, &event).await?;
        if let Some(mut machine) = held {
            machine.active_run = Some(RunId::trusted(&*self.id));
            tx.update_machine(&mut machine, &event)?;
        }
        Ok(row)
    }

    /// Another machine may have the node name of the row since it was set aside.
    async fn check_node_name(&self, tx: &mut Tx) -> Result<()> {
        let Some(name) = tx.node_name_set_aside(&self.id).await? else { return Ok(()) };
        let Some(owner) = tx.machine_of_node_name(&name).await? else { return Ok(()) };
        let NodeName { cluster, name } = name;
        let message = format!(
            "machine {} cannot be put back: its node name {name:?} in {cluster} is that of {owner} now",
            self.id
        );
        let next = format!("farrier machine update {owner} --node-name …");
        Err(Refusal::new(Reason::RowPlaceTaken, message).next(next).into())
    }

    /// The machine that the run held when it was set aside. Another run may hold it since; and a
    /// run on a rack or device released its devices, and may not continue without them.
    async fn check_hold(&self, tx: &mut Tx) -> Result<Option<Machine>> {
        let run = RunId::trusted(&*self.id);
        let Some(target) = tx.hold_set_aside(&run).await? else { return Ok(None) };
        let taken = |why: String, next: &dyn fmt::Display| {
            let message = format!("run {run} cannot be put back: {why}");
            Refusal::new(Reason::RowPlaceTaken, message).next(format!("farrier why {next}"))
        };
        let Some(id) = target.machine() else {
            let why = format!(
                "it was active on {target}, and its devices were released when it was set aside"
            );
            return Err(taken(why, &target).into());
        };
        let machine = tx.machine(&id).await?;
        match machine.as_ref().and_then(|machine| machine.active_run.as_ref()) {
            Some(holder) if *holder != run => {
                Err(taken(format!("{holder} holds {target} now"), holder).into())
            }
            Some(_) | None => Ok(machine),
        }
    }
}
