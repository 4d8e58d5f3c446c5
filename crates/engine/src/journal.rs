//! The log of a run while it is being worked on: pieces get their offsets here, wait a moment to be
//! written together, and go to disk with the next commit or after a short while, whichever is first.

use model::id::RunId;
use model::time::Timestamp;
use providers::{Line, Stream};
use std::time::Duration;
use store::{NewLog, Result, Store, Tx, Work};
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
            self.end = Some(store.read(LogEnd(self.run.clone())).await?);
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
        let (run, epoch) = (self.run.clone(), self.epoch);
        match store.write(Append { run, epoch, lines: self.waiting.clone() }).await {
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
    store.read(LoggedBy { run: run.clone(), step: step.to_string(), attempt }).await
}

struct LogEnd(RunId);

impl Work for LogEnd {
    type Out = i64;

    async fn run(&self, tx: &mut Tx) -> Result<i64> {
        tx.log_end(&self.0).await
    }
}

struct LoggedBy {
    run: RunId,
    step: String,
    attempt: u32,
}

impl Work for LoggedBy {
    type Out = u64;

    async fn run(&self, tx: &mut Tx) -> Result<u64> {
        tx.logged_by(&self.run, &self.step, self.attempt).await
    }
}

struct Append {
    run: RunId,
    epoch: i64,
    lines: Vec<NewLog>,
}

impl Work for Append {
    type Out = ();

    async fn run(&self, tx: &mut Tx) -> Result<()> {
        tx.append_log_held(&self.run, self.epoch, &self.lines).await
    }
}
