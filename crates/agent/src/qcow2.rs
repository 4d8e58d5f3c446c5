//! A qcow2 image, written to a disk while it arrives.
//!
//! A qcow2 says for each cluster of the disk where in the file it lies, and the file's own order is any. There is no room to keep
//! the file, and fetching it cluster by cluster would be slow and could not be hashed. So its tables are read first and turned round, to
//! say for each place in the file where on the disk it belongs; then the file is streamed once, and each cluster is put where it belongs as it
//! passes. The tables are compared with themselves when they pass, so that what was hashed is what was acted upon.

mod header;
mod map;
mod unpack;

use crate::disk::{Disk, MIB};
use crate::failure::{Failure, Halt};
use crate::image::{Reading, Stream, Tap};
use crate::status::Status;
use header::Header;
use map::{Extent, Map, What};
use sha2::{Digest, Sha256};
use unpack::Unpacker;
use wire::deploy::FailureCode;

/// An image whose tables have been read.
pub struct Qcow2 {
    header: Header,
    map: Map,
}

impl Qcow2 {
    /// Reads what has to be known before anything is written.
    pub fn look(reading: Reading) -> Result<Self, Halt> {
        let mut tap = Tap::new(reading);
        let (header, head) = Header::read(&mut tap, reading.size)?;
        let map = Map::read(&mut tap, &header, head, reading.size)?;
        Ok(Self { header, map })
    }

    /// How large the disk is that it is an image of.
    pub fn disk_size(&self) -> u64 {
        self.header.size
    }

    pub fn pour(&self, stream: &mut Stream, disk: &mut Disk, status: &Status) -> Result<(), Halt> {
        for (at, length) in &self.map.holes {
            disk.zero(*at, *length, status)?;
        }
        let mut window = Window { held: Vec::new(), from: 0, keep: self.header.longest_extent() };
        let mut unpacker = Unpacker::new(&self.header);
        let mut left = self.map.extents.iter().peekable();
        while window.more(stream)? {
            while let Some(extent) = left.next_if(|extent| extent.end() <= window.end()) {
                let bytes = window.get(extent)?;
                match extent.what {
                    What::Table(digest) => self.check_table(digest, bytes)?,
                    What::Data(guest) => self.put(guest, bytes, disk, status)?,
                    What::Compressed(guest) => {
                        let bytes = unpacker.unpack(bytes).map_err(|said| {
                            Failure::broken(format!(
                                "the cluster at byte {} of the image: {said}",
                                extent.host
                            ))
                        })?;
                        self.put(guest, bytes, disk, status)?;
                    }
                }
            }
        }
        match left.next() {
            None => Ok(()),
            Some(extent) => {
                Err(Failure::broken(format!("the image has no byte {}", extent.host)).into())
            }
        }
    }

    /// A cluster at the end of the disk may be longer than the disk; one at the end of the file may be shorter than itself.
    fn put(&self, guest: u32, bytes: &[u8], disk: &mut Disk, status: &Status) -> Result<(), Halt> {
        let at = u64::from(guest) << self.header.cluster_bits;
        let length = self.header.cluster_size().min(self.header.size - at);
        let bytes = &bytes[..bytes.len().min(length as usize)];
        disk.write_at(at, bytes)?;
        let missing = length - bytes.len() as u64;
        if missing > 0 { disk.zero(at + bytes.len() as u64, missing, status) } else { Ok(()) }
    }

    fn check_table(&self, digest: u32, bytes: &[u8]) -> Result<(), Failure> {
        let known = self.map.digests.get(digest as usize);
        if known.is_some_and(|known| known[..] == Sha256::digest(bytes)[..]) {
            return Ok(());
        }
        let said = "the image's tables are not what they were a moment ago; was it replaced while it was read?";
        Err(Failure::new(FailureCode::ChecksumWrong, said))
    }
}

/// The newest part of the stream: as much as the longest thing in it may need.
struct Window {
    held: Vec<u8>,
    /// Where in the file it begins.
    from: u64,
    keep: usize,
}

impl Window {
    fn end(&self) -> u64 {
        self.from + self.held.len() as u64
    }

    /// Reads on. False: there is no more.
    fn more(&mut self, stream: &mut Stream) -> Result<bool, Halt> {
        let old = self.held.len().saturating_sub(self.keep);
        self.held.drain(..old);
        self.from += old as u64;
        let full = self.held.len();
        self.held.resize(full + MIB as usize, 0);
        let count = stream.fill(&mut self.held[full..])?;
        self.held.truncate(full + count);
        Ok(count > 0)
    }

    fn get(&self, extent: &Extent) -> Result<&[u8], Failure> {
        let place = extent.host.checked_sub(self.from).map(|at| at as usize);
        let bytes = place.and_then(|at| self.held.get(at..at + extent.length as usize));
        bytes.ok_or_else(|| {
            Failure::broken(format!("byte {} of the image has passed already", extent.host))
        })
    }
}

#[cfg(test)]
mod tests;
