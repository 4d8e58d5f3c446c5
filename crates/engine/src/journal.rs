//! The log of a run while it is being worked on: pieces get their offsets here, wait a moment to be
//! written together, and go to disk with the next commit or after a short while, whichever is
//! first.

use model::id::RunId;
use model::time::Timestamp;
use providers::{Line, Stream};
use std::time::Duration;
use store::{NewLog, Result, Store};
use tokio::time::Instant;

/// The largest piece that is stored as one row; longer output is cut into several.
const MAX_PIECE: usize = 32 * 1_024;
/// How many pieces may wait before they are written without waiting longer.
pub(crate) const FULL: usize = 256;

/// How long a log that could not be written is left alone.
const REST: Duration = Duration::from_secs(5);

/// What is waiting to be written, and where the log ends.
pub(crate) struct LogBook {
    run: RunId,
    epoch: i64,
    end: Option<i64>,
    waiting: Vec<NewLog>,
    /// After a failure, not tried again before then.
    rest_until: Option<Instant>,
}

impl LogBook {
    pub fn new(run: RunId, epoch: i64, fresh: bool) -> Self {
        let end = fresh.then_some(0);
        Self { run, epoch, end, waiting: Vec::new(), rest_until: None }
    }

    /// Finds out where the log of a run that was begun earlier ends.
    pub async fn find_end(&mut self, store: &Store) -> Result<()> {
        if self.end.is_none() {
            self.end =
                Some(store.read(self.run.clone(), |run, tx| Box::pin(tx.log_end(run))).await?);
        }
        Ok(())
    }

    pub fn add(&mut self, step: &str, attempt: u32, line: &Line, ts: Timestamp) {
        for piece in line.data.chunks(MAX_PIECE) {
            let start = self.end.unwrap_or_default();
            self.end = Some(start + piece.len() as i64);
            let stream = match line.stream {
                Stream::Stdout => "stdout",
                Stream::Stderr => "stderr",
            };
            let (step, data) = (step.to_string(), piece.to_vec());
            self.waiting.push(NewLog { start, ts, step, attempt, stream, data });
        }
    }

    pub fn is_full(&self) -> bool {
        self.waiting.len() >= FULL
    }

    pub fn waiting(&self) -> &[NewLog] {
        &self.waiting
    }

    pub fn written(&mut self, count: usize) {
        self.waiting.drain(..count.min(self.waiting.len()));
    }

    /// Writes what waits. A log that cannot be written now is kept and tried again later.
    pub async fn flush(&mut self, store: &Store) {
        let resting = self.rest_until.is_some_and(|until| Instant::now() < until);
        if self.waiting.is_empty() || resting {
            return;
        }
        let input = (self.run.clone(), self.epoch, self.waiting.clone());
        let written = store.write("append_log", input, |(run, epoch, lines), tx| {
            Box::pin(tx.append_log_held(run, *epoch, lines))
        });
        match written.await {
            Ok(()) => self.waiting.clear(),
            Err(error) => {
                tracing::warn!(run = %self.run, %error, "log lines wait to be written");
                self.rest_until = Some(Instant::now() + REST);
                // Better to lose the oldest lines than to grow without bound.
                let excess = self.waiting.len().saturating_sub(16 * FULL);
                self.waiting.drain(..excess);
            }
        }
    }
}

/// How much one attempt has logged already, so that following it goes on from there.
pub(crate) async fn logged(store: &Store, run: &RunId, step: &str, attempt: u32) -> Result<u64> {
    let input = (run.clone(), step.to_string(), attempt);
    store.read(input, |(run, step, attempt), tx| Box::pin(tx.logged_by(run, step, *attempt))).await
}
