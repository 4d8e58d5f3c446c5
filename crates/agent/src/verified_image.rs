//! An image that is checked before any of it is written.
//!
//! The whole image is read first, and compared with the checksum of the manifest. What fits in
//! memory is kept. The rest is fetched again when it is written, and each chunk of it must be the
//! one that was checked: it may be altered between the two.

use crate::deploy_client::RequestError;
use crate::failure::{DeployError, Failure};
use crate::image::{ImageSource, ReadContext, ResumingReader, checksum_failure, hex};
use sha2::{Digest, Sha256};
use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

pub const CHUNK_BYTES: usize = 4 * 1024 * 1024;

enum Chunk {
    Kept(Arc<Vec<u8>>),
    Checked([u8; 32]),
}

pub struct VerifiedImage<'a> {
    reading: ReadContext<'a>,
    chunks: Vec<Chunk>,
    /// The last chunk that was fetched again, for reads that go back a little.
    last: Mutex<Option<(usize, Arc<Vec<u8>>)>>,
    /// The reason why the image cannot be read on.
    broken: Mutex<Option<String>>,
}

impl<'a> VerifiedImage<'a> {
    /// Reads the image to its end and compares its checksum. Keeps up to `memory_bytes` of it.
    pub fn check(
        reading: ReadContext<'a>,
        sha256: &str,
        memory_bytes: u64,
    ) -> Result<Self, DeployError> {
        let mut reader = ResumingReader::new(reading);
        let (mut whole, mut chunks, mut kept) = (Sha256::new(), Vec::new(), 0);
        loop {
            let mut data = vec![0; chunk_len(reading.size, chunks.len())];
            let count = reader.fill(&mut data)?;
            if count == 0 {
                break;
            }
            data.truncate(count);
            whole.update(&data);
            kept += count as u64;
            chunks.push(match kept <= memory_bytes {
                true => Chunk::Kept(Arc::new(data)),
                false => Chunk::Checked(Sha256::digest(&data).into()),
            });
        }
        let found = hex(&whole.finalize());
        if !found.eq_ignore_ascii_case(sha256) {
            return Err(checksum_failure(&found, sha256).into());
        }
        Ok(Self { reading, chunks, last: Mutex::default(), broken: Mutex::default() })
    }

    /// A chunk as it was checked; fetched again if it was not kept.
    fn chunk(&self, index: usize, reader: &mut ResumingReader) -> io::Result<Arc<Vec<u8>>> {
        let checked = match &self.chunks[index] {
            Chunk::Kept(data) => return Ok(Arc::clone(data)),
            Chunk::Checked(hash) => hash,
        };
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, data)) = &*last
            && *at == index
        {
            return Ok(Arc::clone(data));
        }
        let data = self.fetch(index, reader).map_err(|halt| self.give_up(halt))?;
        if <[u8; 32]>::from(Sha256::digest(&data)) != *checked {
            let message = "the image was altered after it was checked; nothing of it is used";
            return Err(self.give_up(Failure::image_broken(message).into()));
        }
        let data = Arc::new(data);
        *last = Some((index, Arc::clone(&data)));
        Ok(data)
    }

    fn fetch(&self, index: usize, reader: &mut ResumingReader) -> Result<Vec<u8>, DeployError> {
        reader.seek(index as u64 * CHUNK_BYTES as u64)?;
        let mut data = vec![0; chunk_len(self.reading.size, index)];
        let count = reader.fill(&mut data)?;
        data.truncate(count);
        Ok(data)
    }

    /// Remembers a failure, so that the reader does not try for ever.
    fn give_up(&self, halt: DeployError) -> io::Error {
        let message = halt.to_string();
        if let DeployError::Failed(failure) = halt {
            *self.broken.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure.message);
        }
        io::Error::other(message)
    }
}

fn chunk_len(size: u64, index: usize) -> usize {
    let left = size.saturating_sub(index as u64 * CHUNK_BYTES as u64);
    usize::try_from(left).unwrap_or(usize::MAX).min(CHUNK_BYTES)
}

impl ImageSource for VerifiedImage<'_> {
    fn open(&self, from: u64) -> Result<Box<dyn Read + '_>, RequestError> {
        let broken = self.broken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(message) = &*broken {
            return Err(RequestError::Invalid(message.clone()));
        }
        let reader = ResumingReader::new(self.reading);
        Ok(Box::new(VerifiedReader { image: self, position: from, reader }))
    }
}

struct VerifiedReader<'a> {
    image: &'a VerifiedImage<'a>,
    position: u64,
    reader: ResumingReader<'a>,
}

impl Read for VerifiedReader<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let chunk_bytes = CHUNK_BYTES as u64;
        let index = usize::try_from(self.position / chunk_bytes).unwrap_or(usize::MAX);
        if index >= self.image.chunks.len() {
            return Ok(0);
        }
        let chunk = self.image.chunk(index, &mut self.reader)?;
        let begin = (self.position % chunk_bytes) as usize;
        let data = chunk.get(begin..).unwrap_or_default();
        let count = data.len().min(into.len());
        into[..count].copy_from_slice(&data[..count]);
        self.position += count as u64;
        Ok(count)
    }
}

/// The bytes of the image that may be kept: half of the free memory, or none if that cannot be
/// read.
pub fn memory_budget(root: &Path) -> u64 {
    let text = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or_default() * 1024 / 2
}
