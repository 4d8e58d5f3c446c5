//! Facts that inform people: the durations of steps, and refused requests.
//!
//! They are written in the background, after the commit or the refusal that they are about, and
//! may be lost: no transition waits for them, and none fails with them.

use crate::Engine;
use model::hidden::hides;
use model::refusal::{Refusal, RefusalKind, RefusedRequest};
use model::time::Timestamp;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use store::{Result, StepDuration, StoreError, Tx};
use tokio::sync::mpsc;

/// The most facts, and the most objects with a refused request, that wait to be written; more are
/// dropped.
const MAX_WAITING: usize = 4_096;
/// The most facts in one transaction.
const MAX_BATCH: usize = 256;
/// The pause after a write, so that a storm of refusals costs one write in this time.
const PAUSE: Duration = Duration::from_secs(1);
/// The age at which a refused request is forgotten.
const MAX_REFUSED_AGE: Duration = Duration::from_secs(90 * 86_400);

#[derive(Debug, Clone)]
pub(crate) enum SideFact {
    StepDuration(StepDuration),
    /// Refused requests wait in [`SideFacts`].
    Refused,
}

pub(crate) type SideFactReceiver = mpsc::Receiver<SideFact>;

/// The last refused request on each object.
type RefusedRequests = BTreeMap<String, RefusedRequest>;

/// The facts that wait to be written.
pub(crate) struct SideFacts {
    sender: mpsc::Sender<SideFact>,
    /// They can be read before they are stored.
    refused: Mutex<RefusedRequests>,
}

impl SideFacts {
    pub fn new() -> (Self, SideFactReceiver) {
        let (sender, receiver) = mpsc::channel(MAX_WAITING);
        (Self { sender, refused: Mutex::default() }, receiver)
    }

    /// Does not block. A full queue drops the fact.
    pub fn note(&self, fact: SideFact) {
        let _ = self.sender.try_send(fact);
    }

    fn note_refused(&self, object_id: &str, refused: RefusedRequest) {
        let mut waiting = self.waiting();
        if waiting.len() < MAX_WAITING || waiting.contains_key(object_id) {
            waiting.insert(object_id.into(), refused);
        }
        drop(waiting);
        self.note(SideFact::Refused);
    }

    /// The last refused request on an object, if it is not stored yet. To be read before the stored
    /// one: it is forgotten when it is stored.
    pub fn refused(&self, object_id: &str) -> Option<RefusedRequest> {
        self.waiting().get(object_id).cloned()
    }

    /// Forgets what was stored, unless a newer request was refused since.
    fn forget(&self, stored: &RefusedRequests) {
        self.waiting().retain(|object_id, refused| stored.get(object_id) != Some(refused));
    }

    fn waiting(&self) -> MutexGuard<'_, RefusedRequests> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine {
    /// Remembers a request that a gate has refused, for the people who ask about its object.
    /// Returns the same result, as its caller may see it.
    pub(crate) async fn trace_refusal<T>(
        &self,
        object_id: &str,
        request: (&str, &str),
        done: Result<T>,
    ) -> Result<T> {
        if let Err(StoreError::Refused(refusal)) = &done {
            self.note_refusal(object_id, request, refusal);
        }
        self.hide_in_refusal(object_id, done).await
    }

    /// The same result. A refusal for the state of the object names nothing that the caller may not
    /// see; another one names what the request has named.
    pub(crate) async fn hide_in_refusal<T>(&self, object_id: &str, done: Result<T>) -> Result<T> {
        let mut refusal = match done {
            Err(StoreError::Refused(refusal)) if refusal.kind() == RefusalKind::Precondition => {
                refusal
            }
            done => return done,
        };
        let texts = std::iter::once(&mut refusal.message).chain(&mut refusal.next_command);
        self.hide_foreign_ids(object_id, texts).await?;
        refusal.next_command = refusal.next_command.filter(|command| !hides(command));
        Err(refusal.into())
    }

    /// A refusal for the state of the object, or for something that the request names and that does
    /// not exist, such as an image. An unknown or malformed object has no history, and a dry run
    /// leaves no trace.
    pub(crate) fn note_refusal(
        &self,
        object_id: &str,
        (by, request): (&str, &str),
        refusal: &Refusal,
    ) {
        let tells = match refusal.kind() {
            RefusalKind::Precondition => true,
            RefusalKind::NotFound => refusal.field.is_some(),
            RefusalKind::Invalid
            | RefusalKind::Exists
            | RefusalKind::Gone
            | RefusalKind::Unauthenticated
            | RefusalKind::Denied
            | RefusalKind::Exhausted => false,
        };
        if !tells || self.store().is_dry_run() {
            return;
        }
        let refused = RefusedRequest {
            at: self.now(),
            by: by.into(),
            request: request.into(),
            reason: refusal.reason.to_string(),
            message: refusal.kept_message().into(),
        };
        self.side_facts().note_refused(object_id, refused);
    }

    /// Writes the facts in batches, until the process stops.
    pub(crate) async fn run_side_facts(self, mut receiver: SideFactReceiver) {
        let mut batch = Vec::new();
        loop {
            tokio::select! {
                biased;
                () = self.stopped() => return,
                count = receiver.recv_many(&mut batch, MAX_BATCH) => if count == 0 { return },
            }
            let refused = self.side_facts().waiting().clone();
            let input = (std::mem::take(&mut batch), refused.clone(), self.now());
            let written = self
                .store()
                .write("record_side_facts", input, |input, tx| Box::pin(record(tx, input)));
            if let Err(error) = written.await {
                tracing::debug!(%error, "durations and refused requests were not recorded");
            }
            self.side_facts().forget(&refused);
            tokio::select! {
                biased;
                () = self.stopped() => return,
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
    }
}

async fn record(
    tx: &mut Tx,
    (batch, refused, now): &(Vec<SideFact>, RefusedRequests, Timestamp),
) -> Result<()> {
    for fact in batch {
        match fact {
            SideFact::StepDuration(duration) => tx.record_step_duration(duration).await?,
            SideFact::Refused => {}
        }
    }
    for (object_id, refused) in refused {
        tx.record_refused_request(object_id, refused).await?;
    }
    if !refused.is_empty() {
        tx.expire_refused_requests(*now - MAX_REFUSED_AGE).await?;
    }
    Ok(())
}
