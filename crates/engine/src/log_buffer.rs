//! The log buffer of a claimed run: lines get their offsets here and are written in batches, with
//! the next commit or after a short while, whichever is first.

use model::id::RunId;
use model::time::Timestamp;
use providers::{LogOutput, Stream};
use std::time::Duration;
use store::{NewLog, Result, Store};
use tokio::time::Instant;

/// The most bytes in one row; longer output is split.
const MAX_PIECE: usize = 32 * 1_024;
/// A buffer with this many pieces is flushed at once.
pub(crate) const FULL: usize = 256;

/// The delay before a failed write is repeated.
const REST: Duration = Duration::from_secs(5);

/// The pending lines of a log, and its end offset.
pub(crate) struct LogBuffer {
    run: RunId,
    epoch: i64,
    end: Option<i64>,
    waiting: Vec<NewLog>,
    /// Set after a failed write.
    rest_until: Option<Instant>,
}

impl LogBuffer {
    pub fn new(run: RunId, epoch: i64, fresh: bool) -> Self {
        let end = fresh.then_some(0);
        Self { run, epoch, end, waiting: Vec::new(), rest_until: None }
    }

    /// Reads the end offset of the log of a run that was begun earlier.
    pub async fn find_end(&mut self, store: &Store) -> Result<()> {
        if self.end.is_none() {
            self.end =
                Some(store.read(self.run.clone(), |run, tx| Box::pin(tx.log_end(run))).await?);
        }
        Ok(())
    }

    pub fn add(&mut self, step: &str, attempt: u32, line: &LogOutput, ts: Timestamp) {
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

    /// Writes the pending lines. After a failure they are kept and written later.
    pub async fn flush(&mut self, store: &Store) {
        let resting = self.rest_until.is_some_and(|until| Instant::now() < until);
        if self.waiting.is_empty() || resting {
            return;
        }
        let input = (self.run.clone(), self.epoch, self.waiting.clone());
        let written = store.write("append_log", input, |(run, epoch, lines), tx| {
            Box::pin(tx.append_log_claimed(run, *epoch, lines))
        });
        match written.await {
            Ok(()) => self.waiting.clear(),
            Err(error) => {
                tracing::warn!(run = %self.run, %error, "writing log lines failed; retried later");
                self.rest_until = Some(Instant::now() + REST);
                // Bounded: the oldest lines are dropped.
                let excess = self.waiting.len().saturating_sub(16 * FULL);
                self.waiting.drain(..excess);
            }
        }
    }
}

/// The bytes that one attempt has logged, so that following it continues from there.
pub(crate) async fn logged(store: &Store, run: &RunId, step: &str, attempt: u32) -> Result<u64> {
    let input = (run.clone(), step.to_string(), attempt);
    store
        .read(input, |(run, step, attempt), tx| Box::pin(tx.logged_bytes(run, step, *attempt)))
        .await
}
