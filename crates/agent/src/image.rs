//! Reads an image over connections that may break at any byte.
//!
//! A [`ResumingReader`] continues where it stopped, with a new connection if necessary. An
//! [`ImageStream`] reads the whole image once through it, hashes it, and reports progress. Neither
//! buffers more than the caller's buffer.

use crate::console::print_line;
use crate::deploy_client::{RequestError, describe_refusal};
use crate::failure::{DeployError, Failure};
use crate::status::{DeployStatus, FinalAction};
use crate::timing::{Backoff, Timing};
use sha2::{Digest, Sha256};
use std::io::Read;
use wire::deploy::DeploymentFailure;

/// The origin of an image.
pub trait ImageSource {
    /// Begins to read at a byte. The reader may break anywhere; the caller then opens it again.
    fn open(&self, from: u64) -> Result<Box<dyn Read + '_>, RequestError>;
}

/// An image to read, and the context of the read.
#[derive(Clone, Copy)]
pub struct ReadContext<'a> {
    pub source: &'a dyn ImageSource,
    pub size: u64,
    pub status: &'a DeployStatus,
    pub timing: &'a Timing,
}

pub struct ResumingReader<'a> {
    reading: ReadContext<'a>,
    position: u64,
    open: Option<Box<dyn Read + 'a>>,
    backoff: Backoff,
}

impl<'a> ResumingReader<'a> {
    pub fn new(reading: ReadContext<'a>) -> Self {
        Self { reading, position: 0, open: None, backoff: Backoff::new(reading.timing) }
    }

    /// Seeks. A short distance forward is read and skipped, which costs less than a new connection.
    pub fn seek(&mut self, to: u64) -> Result<(), DeployError> {
        const SHORT_BYTES: u64 = 256 * 1024;
        if self.open.is_some() && to >= self.position && to - self.position <= SHORT_BYTES {
            let mut piece = [0; 16 * 1024];
            while self.position < to {
                let most = (to - self.position).min(piece.len() as u64) as usize;
                if self.read(&mut piece[..most])? == 0 {
                    break;
                }
            }
        }
        if self.position != to {
            self.open = None;
            self.position = to;
        }
        Ok(())
    }

    /// Reads some bytes. Zero: the image has ended.
    pub fn read(&mut self, into: &mut [u8]) -> Result<usize, DeployError> {
        let left = self.reading.size.saturating_sub(self.position);
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(into.len());
        if most == 0 {
            return Ok(0);
        }
        // Endless on purpose: Farrier may be unreachable for any time, and tells the agent when to
        // stop.
        loop {
            self.reading.status.check()?;
            let Some(open) = &mut self.open else {
                self.reopen()?;
                continue;
            };
            let cut = match open.read(&mut into[..most]) {
                Ok(0) => "the image ended too early".to_string(),
                Ok(count) => {
                    self.position += count as u64;
                    self.backoff.reset();
                    return Ok(count);
                }
                Err(error) => error.to_string(),
            };
            self.open = None;
            self.wait(&cut)?;
        }
    }

    /// Reads until the buffer is full or the image has ended.
    pub fn fill(&mut self, into: &mut [u8]) -> Result<usize, DeployError> {
        let mut full = 0;
        while full < into.len() {
            match self.read(&mut into[full..])? {
                0 => break,
                count => full += count,
            }
        }
        Ok(full)
    }

    fn reopen(&mut self) -> Result<(), DeployError> {
        match self.reading.source.open(self.position) {
            Ok(open) => {
                self.open = Some(open);
                Ok(())
            }
            Err(RequestError::Retryable(message)) => self.wait(&message),
            Err(RequestError::Invalid(message)) => {
                Err(Failure::image_broken(format!("image: {message}")).into())
            }
            Err(RequestError::Refused(refusal)) => {
                print_line(&format!("image refused: {}", describe_refusal(&refusal)));
                self.reading.status.finish_with(FinalAction::PowerOff);
                Err(DeployError::Stopped)
            }
        }
    }

    fn wait(&mut self, message: &str) -> Result<(), DeployError> {
        self.reading.status.check()?;
        print_line(&format!("image: {message}; going on from byte {}", self.position));
        self.backoff.pause(self.reading.status);
        self.reading.status.check()
    }
}

/// The whole image, once, from beginning to end.
pub struct ImageStream<'a> {
    reader: ResumingReader<'a>,
    hash: Sha256,
    read_error: Option<DeployError>,
}

impl<'a> ImageStream<'a> {
    pub fn new(reading: ReadContext<'a>) -> Self {
        Self { reader: ResumingReader::new(reading), hash: Sha256::new(), read_error: None }
    }

    pub fn position(&self) -> u64 {
        self.reader.position
    }

    /// The reason of a read error, for callers that only see an `io::Error`.
    pub fn read_error(&self) -> Option<DeployError> {
        self.read_error.clone()
    }

    /// Fills the buffer; reads less only at the end. The call implies that earlier bytes were
    /// processed, and reports that as progress.
    pub fn fill(&mut self, into: &mut [u8]) -> Result<usize, DeployError> {
        self.reader.reading.status.progress(self.reader.position);
        let count = self.reader.fill(into)?;
        self.hash.update(&into[..count]);
        Ok(count)
    }

    /// Reads the rest, and compares the hash of the whole image.
    pub fn finish(mut self, sha256: &str) -> Result<(), DeployError> {
        let mut piece = vec![0; 256 * 1024];
        while self.fill(&mut piece)? > 0 {}
        let found = hex(&self.hash.finalize());
        if found.eq_ignore_ascii_case(sha256) {
            return Ok(());
        }
        Err(checksum_failure(&found, sha256).into())
    }
}

pub fn checksum_failure(found: &str, sha256: &str) -> Failure {
    let message = format!(
        "the image that arrived has the SHA-256 {found} and should have {sha256}; \
         compare the file with its entry in the catalogue"
    );
    Failure::new(DeploymentFailure::ChecksumWrong, message)
}

/// For consumers that only need `Read`: decompressors, and pipes to other programs.
impl Read for ImageStream<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        self.reader.reading.status.progress(self.reader.position);
        match self.reader.read(into) {
            Ok(count) => {
                self.hash.update(&into[..count]);
                Ok(count)
            }
            Err(halt) => {
                let error = std::io::Error::other(halt.to_string());
                self.read_error = Some(halt);
                Err(error)
            }
        }
    }
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
