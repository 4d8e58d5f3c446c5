//! The log of a run as it is written.

use super::OutageRetry;
use crate::Engine;
use model::id::RunId;
use std::sync::Arc;
use store::{LogLine, Result};
use tokio::sync::Notify;

/// The chunks of one read.
const LOG_PAGE: i64 = 256;

/// A stream of the chunks of a log.
pub struct LogStream {
    engine: Engine,
    id: RunId,
    offset: i64,
    follow: bool,
    /// Some until the stream is dropped.
    signal: Option<Arc<Notify>>,
}

impl Drop for LogStream {
    fn drop(&mut self) {
        self.signal = None;
        self.engine.hub().remove_log_signal(&self.id);
    }
}

impl LogStream {
    pub(super) fn open(engine: Engine, id: RunId, offset: i64, follow: bool) -> Self {
        let signal = Some(engine.hub().log_signal(&id));
        Self { engine, id, offset, follow, signal }
    }

    /// True unless the stream ended only because the process stops.
    pub fn is_complete(&self) -> bool {
        !self.engine.is_stopping() || !self.follow
    }

    /// The next chunks of the log; empty when it has ended or the process stops.
    pub async fn next(&mut self) -> Result<Vec<LogLine>> {
        let mut failure = OutageRetry::default();
        loop {
            let bell = self.signal.clone().unwrap_or_default();
            let rung = bell.notified();
            let page = self.engine.runs().log_page(&self.id, self.offset, LOG_PAGE).await;
            let (run, lines) = match page {
                Ok(page) => page,
                Err(error) => {
                    failure.wait_or_fail(error).await?;
                    continue;
                }
            };
            if let Some(last) = lines.last() {
                self.offset = last.start + last.data.len() as i64;
                return Ok(lines);
            }
            if run.ended() || !self.follow || self.engine.is_stopping() {
                return Ok(lines);
            }
            tokio::select! {
                biased;
                () = rung => {}
                () = tokio::time::sleep(self.engine.settings().poll_interval) => {}
                () = self.engine.stopped() => {}
            }
        }
    }
}
