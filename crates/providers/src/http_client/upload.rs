//! A request body with a file that is too large to hold in memory.
//!
//! A server does not act on an incomplete request. So nothing has happened before the last chunk is
//! sent, and the caller can write its checkpoint at that point.

use http_body_util::channel::Sender;
use hyper::body::Bytes;
use model::fault::{Fault, FaultCode, Result};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

/// The bytes of a file that are read at once.
const PIECE_BYTES: u64 = 128 * 1024;
/// The slowest upload; a controller that reads less counts as hung.
const LEAST_BYTES_PER_SECOND: u64 = 128 * 1024;

/// A file with the bytes before and after it.
pub(crate) struct FileUpload {
    pub before: Bytes,
    /// Other uploads may share the file, so it is read by offset.
    pub file: Arc<File>,
    pub size: u64,
    pub after: Bytes,
}

pub(crate) enum UploadEnd {
    Complete,
    /// The server stopped reading; its response says why.
    Interrupted,
}

/// The time limit for sending so many bytes.
pub(crate) const fn sending_time(bytes: u64) -> Duration {
    Duration::from_secs(bytes / LEAST_BYTES_PER_SECOND)
}

impl FileUpload {
    /// The file without a form.
    pub const fn plain(file: Arc<File>, size: u64) -> Self {
        Self { before: Bytes::new(), file, size, after: Bytes::new() }
    }

    pub const fn length(&self) -> u64 {
        self.before.len() as u64 + self.size + self.after.len() as u64
    }

    pub const fn time(&self) -> Duration {
        sending_time(self.length())
    }

    /// Sends chunk by chunk, as fast as the server reads, and awaits `last` before the last one.
    /// The sender must live until the answer: when it is dropped right after a chunk, the channel
    /// can report the end of the body before that chunk.
    pub async fn send(
        &mut self,
        to: &mut Sender<Bytes>,
        last: impl AsyncFnOnce() -> Result<()>,
    ) -> Result<UploadEnd> {
        let mut pending = std::mem::take(&mut self.before);
        let mut at = 0;
        while at < self.size {
            if to.send_data(pending).await.is_err() {
                return Ok(UploadEnd::Interrupted);
            }
            pending = self.piece(at).await?;
            at += pending.len() as u64;
        }
        let pending = [pending, std::mem::take(&mut self.after)].concat();
        last().await?;
        match to.send_data(pending.into()).await {
            Ok(()) => Ok(UploadEnd::Complete),
            Err(_) => Ok(UploadEnd::Interrupted),
        }
    }

    async fn piece(&self, at: u64) -> Result<Bytes> {
        let file = Arc::clone(&self.file);
        let mut piece = vec![0; (self.size - at).min(PIECE_BYTES) as usize];
        let read = tokio::task::spawn_blocking(move || {
            file.read_exact_at(&mut piece, at)?;
            Ok::<_, std::io::Error>(Bytes::from(piece))
        });
        let read = read.await.unwrap_or_else(|error| Err(std::io::Error::other(error)));
        read.map_err(|error| {
            let message = format!("the fetched file cannot be read: {error}");
            Fault::new(FaultCode::FirmwareUnfetched, message)
        })
    }
}
