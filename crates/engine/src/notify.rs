//! Notifiers: receivers of notices about failed operations and objects that need a person.
//!
//! A notifier is a row of the queue. The replica that has claimed it follows the events and sends
//! its notices (`turn`), in order, for as long as it has the claim.

mod reader;
mod settlement;
mod turn;

pub(crate) use turn::NotifierTurn;

use crate::Engine;
use crate::admission::event;
use crate::change::Change;
use model::here;
use model::notify::{
    DeadLetter, Notice, Notifier, NotifierSpec, SendFailure, check_room, no_notifier,
    notifier_exists,
};
use model::refusal::{Reason, Refusal};
use model::run::actions::Requester;
use model::time::Timestamp;
use model::version::check_version;
use providers::webhook::check_url;
use store::{Cause, DeadLetterQuery, Result, StoredNotifier, Tx};

/// The notifiers that one read returns at most.
const PAGE: i64 = model::notify::MAX_NOTIFIERS;

/// The service for notifiers.
#[derive(Clone)]
pub struct Notifiers(pub(crate) Engine);

/// A notifier with the number of its dead letters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotifierStatus {
    pub notifier: Notifier,
    pub dead_letters: i64,
}

impl Notifiers {
    /// Adds a notifier, which gets the changes from now on. Idempotent.
    pub async fn create(
        &self,
        name: &str,
        spec: NotifierSpec,
        who: Requester,
    ) -> Result<NotifierStatus> {
        model::text::check_name("notifier.name", name)?;
        let new = Notifier::new(name, checked(spec)?, self.0.now());
        let written =
            self.0.store().retry_write("create_notifier", (new, who), |(new, who), tx| {
                Box::pin(create(tx, new, who))
            });
        written.await
    }

    pub async fn get(&self, name: &str) -> Result<NotifierStatus> {
        let found =
            self.0.store().read_one(name.to_string(), |name, tx| Box::pin(load(tx, name))).await?;
        Ok(found)
    }

    /// Notifiers by name, after `after`.
    pub async fn list(&self, after: &str, limit: i64) -> Result<Vec<NotifierStatus>> {
        let input = (after.to_string(), limit.min(PAGE + 1));
        let found = self.0.store().scan(input, |(after, limit), tx| {
            Box::pin(async move {
                let mut found = Vec::new();
                for StoredNotifier { notifier, .. } in tx.notifiers(after, *limit).await? {
                    found.push(with_letters(tx, notifier).await?);
                }
                Ok(found)
            })
        });
        found.await
    }

    /// Changes the description of a notifier, at this version if one is named. What it has not sent
    /// yet is sent as it is described then.
    pub async fn update(
        &self,
        name: &str,
        change: Change<NotifierSpec, NotifierSpec>,
        version: Option<i64>,
        who: Requester,
    ) -> Result<NotifierStatus> {
        self.write("update_notifier", name, NotifierChange::Spec(change), version, who).await
    }

    /// Stops sending, or goes on where it stopped.
    pub async fn set_paused(
        &self,
        name: &str,
        paused: bool,
        who: Requester,
    ) -> Result<NotifierStatus> {
        self.write("pause_notifier", name, NotifierChange::Paused(paused), None, who).await
    }

    /// Deletes a notifier with its dead letters.
    pub async fn delete(
        &self,
        name: &str,
        version: Option<i64>,
        who: Requester,
    ) -> Result<NotifierStatus> {
        self.write("delete_notifier", name, NotifierChange::Delete, version, who).await
    }

    async fn write(
        &self,
        label: &'static str,
        name: &str,
        change: NotifierChange,
        version: Option<i64>,
        who: Requester,
    ) -> Result<NotifierStatus> {
        let input = NotifierWrite { name: name.into(), change, version, who, now: self.0.now() };
        let written = self.0.store().retry_write(label, input, |input, tx| Box::pin(input.run(tx)));
        written.await
    }

    /// Sends a test notice at once. The outer error means that there is no such notifier.
    pub async fn test(&self, name: &str) -> Result<std::result::Result<(), SendFailure>> {
        let notifier = self.get(name).await?.notifier;
        let now = self.0.now();
        let id = format!("{name}:{:016x}", self.0.random()).replace('.', ":");
        let notice = Notice::test(name, &id, now);
        Ok(match self.0.providers().webhooks() {
            Some(sender) => sender.send(&notifier.spec, &notice, now).await,
            None => Err(turn::no_sender()),
        })
    }

    /// The dead letters of a notifier after an id, the oldest first.
    pub async fn dead_letters(
        &self,
        name: &str,
        after: i64,
        limit: i64,
    ) -> Result<Vec<DeadLetter>> {
        let input = (name.to_string(), after, limit);
        let found = self.0.store().scan(input, |(name, after, limit), tx| {
            Box::pin(async move {
                load(tx, name).await?;
                tx.dead_letters(name, *after, *limit).await
            })
        });
        found.await
    }

    /// Sends dead letters again: those with these ids, or all. Returns how many.
    pub async fn replay(&self, query: DeadLetterQuery) -> Result<u64> {
        self.write_letters("replay_dead_letters", query, LetterAction::Replay).await
    }

    /// Deletes dead letters: those with these ids, or all. Returns how many.
    pub async fn discard(&self, query: DeadLetterQuery) -> Result<u64> {
        self.write_letters("discard_dead_letters", query, LetterAction::Discard).await
    }

    async fn write_letters(
        &self,
        label: &'static str,
        query: DeadLetterQuery,
        action: LetterAction,
    ) -> Result<u64> {
        let input = (query, action, self.0.now());
        let done = self.0.store().retry_write(label, input, |(query, action, now), tx| {
            Box::pin(async move {
                load(tx, &query.notifier).await?;
                let count = match action {
                    LetterAction::Replay => tx.replay_dead_letters(query, *now).await?,
                    LetterAction::Discard => tx.discard_dead_letters(query).await?,
                };
                match query.ids.is_empty() || count == query.ids.len() as u64 {
                    true => Ok(count),
                    false => Err(unknown_letter(&query.notifier).into()),
                }
            })
        });
        done.await
    }
}

#[derive(Debug, Clone, Copy)]
enum LetterAction {
    Replay,
    Discard,
}

fn unknown_letter(name: &str) -> Refusal {
    Refusal::new(Reason::NotFound, format!("{name} has no dead letter with one of these ids"))
        .next(format!("farrier notify dead-letters {name}"))
}

fn checked(spec: NotifierSpec) -> std::result::Result<NotifierSpec, Refusal> {
    let spec = spec.checked()?;
    check_url(&spec.url)?;
    Ok(spec)
}

async fn create(tx: &mut Tx, new: &Notifier, who: &Requester) -> Result<NotifierStatus> {
    if let Some(StoredNotifier { notifier, .. }) = tx.notifier(&new.name).await? {
        return match notifier.spec == new.spec {
            true => with_letters(tx, notifier).await,
            false => Err(notifier_exists(&new.name).into()),
        };
    }
    check_room(tx.count_notifiers().await?)?;
    let message = format!("created for {}", new.spec.url);
    let event = event(Cause::Request, &who.by, message, here!(), new.created_at);
    let mut created = new.clone();
    tx.insert_notifier(&mut created, &event).await?;
    Ok(NotifierStatus { notifier: created, dead_letters: 0 })
}

async fn load(tx: &mut Tx, name: &str) -> Result<NotifierStatus> {
    let found = tx.notifier(name).await?.ok_or_else(|| no_notifier(name))?;
    with_letters(tx, found.notifier).await
}

async fn with_letters(tx: &mut Tx, notifier: Notifier) -> Result<NotifierStatus> {
    let dead_letters = tx.count_dead_letters(&notifier.name).await?;
    Ok(NotifierStatus { notifier, dead_letters })
}

enum NotifierChange {
    Spec(Change<NotifierSpec, NotifierSpec>),
    Paused(bool),
    Delete,
}

struct NotifierWrite {
    name: String,
    change: NotifierChange,
    version: Option<i64>,
    who: Requester,
    now: Timestamp,
}

impl NotifierWrite {
    async fn run(&self, tx: &mut Tx) -> Result<NotifierStatus> {
        let name = &self.name;
        let found = tx.notifier_locked(name).await?.ok_or_else(|| no_notifier(name))?.notifier;
        let next = format!("farrier notify get {name}");
        check_version(format!("the notifier {name}"), found.version, self.version, next)?;
        let mut after = found.clone();
        let (word, message) = match &self.change {
            NotifierChange::Spec(change) => {
                after.spec = checked(change(&found.spec)?)?;
                ("changed", format!("changed; it sends to {}", after.spec.url))
            }
            NotifierChange::Paused(paused) => {
                after.paused = *paused;
                let word = if *paused { "paused" } else { "resumed" };
                (word, word.to_string())
            }
            NotifierChange::Delete => ("removed", "deleted".to_string()),
        };
        let event = event(Cause::Request, &self.who.by, message, here!(), self.now);
        match &self.change {
            NotifierChange::Delete => {
                let status = with_letters(tx, found).await?;
                tx.delete_notifier(&status.notifier, &event)?;
                return Ok(status);
            }
            NotifierChange::Spec(_) | NotifierChange::Paused(_) if after == found => {}
            NotifierChange::Spec(_) | NotifierChange::Paused(_) => {
                tx.update_notifier(&mut after, word, &event)?;
            }
        }
        with_letters(tx, after).await
    }
}
