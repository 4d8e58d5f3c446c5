//! Facts that inform people: the durations of steps, and refused requests.
//!
//! They are written in the background, after the commit or the refusal that they are about, and
//! may be lost: no transition waits for them, and none fails with them.

use crate::Engine;
use model::refusal::{Refusal, RefusalKind, RefusedRequest};
use model::time::Timestamp;
use std::time::Duration;
use store::{Result, StepDuration, StoreError, Tx};
use tokio::sync::mpsc;

/// The most facts that wait to be written; more are dropped.
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
    /// A refused request on this object.
    Refused(String, RefusedRequest),
}

pub(crate) type SideFactReceiver = mpsc::Receiver<SideFact>;

/// The facts that wait to be written.
pub(crate) struct SideFacts(mpsc::Sender<SideFact>);

impl SideFacts {
    pub fn new() -> (Self, SideFactReceiver) {
        let (sender, receiver) = mpsc::channel(MAX_WAITING);
        (Self(sender), receiver)
    }

    /// Does not block. A full queue drops the fact.
    pub fn note(&self, fact: SideFact) {
        let _ = self.0.try_send(fact);
    }
}

impl Engine {
    /// Remembers a request that a gate has refused, for the people who ask about its object.
    /// Returns the same result.
    pub(crate) fn trace_refusal<T>(
        &self,
        object_id: &str,
        request: (&str, &str),
        done: Result<T>,
    ) -> Result<T> {
        if let Err(StoreError::Refused(refusal)) = &done {
            self.note_refusal(object_id, request, refusal);
        }
        done
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
            message: refusal.message.clone(),
        };
        self.side_facts().note(SideFact::Refused(object_id.into(), refused));
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
            let input = (std::mem::take(&mut batch), self.now());
            let written = self.store().write("record_side_facts", input, |(batch, now), tx| {
                Box::pin(record(tx, batch, *now))
            });
            if let Err(error) = written.await {
                tracing::debug!(%error, "durations and refused requests were not recorded");
            }
            tokio::select! {
                biased;
                () = self.stopped() => return,
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
    }
}

async fn record(tx: &mut Tx, batch: &[SideFact], now: Timestamp) -> Result<()> {
    let mut any_refused = false;
    for fact in batch {
        match fact {
            SideFact::StepDuration(duration) => tx.record_step_duration(duration).await?,
            SideFact::Refused(object_id, refused) => {
                tx.record_refused_request(object_id, refused).await?;
                any_refused = true;
            }
        }
    }
    if any_refused {
        tx.expire_refused_requests(now - MAX_REFUSED_AGE).await?;
    }
    Ok(())
}
