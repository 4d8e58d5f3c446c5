//! A file on its way to a BMC, too large to hold in memory.
//!
//! Firmware is sent in one request, either as it is or as a part of a form. A request that does not arrive whole is none, so the
//! moment before its last piece is the last one at which nothing has happened, whatever becomes of us; that moment is the
//! caller's to use.

use http_body_util::channel::Sender;
use hyper::body::Bytes;
use model::fault::{Code, Fault};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

/// How much of a file is read at once.
const PIECE_BYTES: u64 = 128 * 1024;
/// Slower than this nothing is sent: a controller that takes less has stopped taking.
const LEAST_BYTES_PER_SECOND: u64 = 128 * 1024;

/// A file with what goes before and after it.
pub(super) struct Parcel {
    pub before: Bytes,
    /// Others may be sending it too, so it is read by place.
    pub file: Arc<File>,
    pub size: u64,
    pub after: Bytes,
}

/// How sending ended.
pub(super) enum Fed {
    Whole,
    /// Whoever takes it has stopped taking; its answer says why.
    Cut,
}

/// How long so many bytes may take to be sent.
pub const fn sending_time(bytes: u64) -> Duration {
    Duration::from_secs(bytes / LEAST_BYTES_PER_SECOND)
}

impl Parcel {
    /// The file as it is.
    pub const fn plain(file: Arc<File>, size: u64) -> Self {
        Self { before: Bytes::new(), file, size, after: Bytes::new() }
    }

    /// The file as the second part of a form, behind what is said about it.
    pub fn form(file: Arc<File>, size: u64, said: &str, boundary: &str) -> Self {
        let part = "Content-Disposition: form-data; name=";
        let before = format!(
            "--{boundary}\r\n{part}\"UpdateParameters\"\r\nContent-Type: application/json\r\n\r\n{said}\r\n\
             --{boundary}\r\n{part}\"UpdateFile\"; filename=\"firmware.bin\"\r\n\
             Content-Type: application/octet-stream\r\n\r\n"
        );
        let after = format!("\r\n--{boundary}--\r\n");
        Self { before: before.into(), file, size, after: after.into() }
    }

    pub const fn length(&self) -> u64 {
        self.before.len() as u64 + self.size + self.after.len() as u64
    }

    pub const fn time(&self) -> Duration {
        sending_time(self.length())
    }

    /// Sends it piece by piece, as fast as it is taken, and waits for `last` before the last one.
    pub async fn feed(
        &mut self,
        mut to: Sender<Bytes>,
        last: impl AsyncFnOnce() -> Result<(), Fault>,
    ) -> Result<Fed, Fault> {
        let mut held = std::mem::take(&mut self.before);
        let mut at = 0;
        while at < self.size {
            if to.send_data(held).await.is_err() {
                return Ok(Fed::Cut);
            }
            held = self.piece(at).await?;
            at += held.len() as u64;
        }
        let held = [held, std::mem::take(&mut self.after)].concat();
        last().await?;
        match to.send_data(held.into()).await {
            Ok(()) => Ok(Fed::Whole),
            Err(_) => Ok(Fed::Cut),
        }
    }

    async fn piece(&self, at: u64) -> Result<Bytes, Fault> {
        let file = Arc::clone(&self.file);
        let mut piece = vec![0; (self.size - at).min(PIECE_BYTES) as usize];
        let read = tokio::task::spawn_blocking(move || {
            file.read_exact_at(&mut piece, at)?;
            Ok::<_, std::io::Error>(Bytes::from(piece))
        });
        let read = read.await.unwrap_or_else(|error| Err(std::io::Error::other(error)));
        read.map_err(|error| {
            let said = format!("the fetched file cannot be read: {error}");
            Fault::new(Code::FirmwareUnfetched, said)
        })
    }
}
