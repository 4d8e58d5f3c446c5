//! Writes a qcow2 image to a disk while it arrives.
//!
//! A qcow2 maps each cluster of the disk to a place in the file, in any order. The file cannot be
//! stored here, and fetching it cluster by cluster would be slow and could not be hashed. So the
//! agent first reads the tables and inverts them, to map each place in the file to a place on the
//! disk; then it streams the file once and writes each cluster as it passes. When the tables pass
//! in the stream, they are compared with those read before, so the hash covers the tables that were
//! used.

mod decompress;
mod header;
mod map;

use crate::disk::{DiskWriter, MIB};
use crate::failure::{DeployError, Failure};
use crate::image::{ImageStream, ReadContext, ResumingReader};
use crate::status::DeployStatus;
use decompress::ClusterDecompressor;
use header::Header;
use map::{ClusterMap, Extent, ExtentContent};
use sha2::{Digest, Sha256};
use wire::deploy::DeploymentFailure;

/// An image whose tables have been read.
pub struct Qcow2 {
    header: Header,
    map: ClusterMap,
}

impl Qcow2 {
    /// Reads the tables, before anything is written.
    pub fn read_tables(reading: ReadContext) -> Result<Self, DeployError> {
        let mut reader = ResumingReader::new(reading);
        let (header, head) = Header::read(&mut reader, reading.size)?;
        let map = ClusterMap::read(&mut reader, &header, head, reading.size)?;
        Ok(Self { header, map })
    }

    /// The size of the virtual disk.
    pub fn disk_size(&self) -> u64 {
        self.header.size
    }

    pub fn write_image(
        &self,
        stream: &mut ImageStream,
        disk: &mut DiskWriter,
        status: &DeployStatus,
    ) -> Result<(), DeployError> {
        for (at, length) in &self.map.holes {
            disk.zero_range(*at, *length, status)?;
        }
        let mut window = Window { bytes: Vec::new(), from: 0, keep: self.header.longest_extent() };
        let mut decompressor = ClusterDecompressor::new(&self.header);
        let mut left = self.map.extents.iter().peekable();
        while window.read_more(stream)? {
            while let Some(extent) = left.next_if(|extent| extent.end() <= window.end()) {
                let bytes = window.get(extent)?;
                match extent.content {
                    ExtentContent::Table(digest) => self.check_table(digest, bytes)?,
                    ExtentContent::Data(guest) => self.write_cluster(guest, bytes, disk, status)?,
                    ExtentContent::Compressed(guest) => {
                        let bytes = decompressor.decompress(bytes).map_err(|message| {
                            Failure::image_broken(format!(
                                "the cluster at byte {} of the image: {message}",
                                extent.host
                            ))
                        })?;
                        self.write_cluster(guest, bytes, disk, status)?;
                    }
                }
            }
        }
        match left.next() {
            None => Ok(()),
            Some(extent) => {
                Err(Failure::image_broken(format!("the image has no byte {}", extent.host)).into())
            }
        }
    }

    /// The last cluster of the disk may exceed the disk; the last one of the file may be
    /// incomplete.
    fn write_cluster(
        &self,
        guest: u32,
        bytes: &[u8],
        disk: &mut DiskWriter,
        status: &DeployStatus,
    ) -> Result<(), DeployError> {
        let at = u64::from(guest) << self.header.cluster_bits;
        let length = self.header.cluster_size().min(self.header.size - at);
        let bytes = &bytes[..bytes.len().min(length as usize)];
        disk.write_at(at, bytes)?;
        let missing = length - bytes.len() as u64;
        if missing > 0 { disk.zero_range(at + bytes.len() as u64, missing, status) } else { Ok(()) }
    }

    fn check_table(&self, digest: u32, bytes: &[u8]) -> Result<(), Failure> {
        let known = self.map.digests.get(digest as usize);
        if known.is_some_and(|known| known[..] == Sha256::digest(bytes)[..]) {
            return Ok(());
        }
        let message = "the image's tables are not what they were a moment ago; was it replaced while it was read?";
        Err(Failure::new(DeploymentFailure::ChecksumWrong, message))
    }
}

/// The most recent part of the stream: as long as the longest extent, plus one read.
struct Window {
    bytes: Vec<u8>,
    /// Its offset in the file.
    from: u64,
    keep: usize,
}

impl Window {
    fn end(&self) -> u64 {
        self.from + self.bytes.len() as u64
    }

    /// Reads more. False: the stream has ended.
    fn read_more(&mut self, stream: &mut ImageStream) -> Result<bool, DeployError> {
        let old = self.bytes.len().saturating_sub(self.keep);
        self.bytes.drain(..old);
        self.from += old as u64;
        let full = self.bytes.len();
        self.bytes.resize(full + MIB as usize, 0);
        let count = stream.fill(&mut self.bytes[full..])?;
        self.bytes.truncate(full + count);
        Ok(count > 0)
    }

    fn get(&self, extent: &Extent) -> Result<&[u8], Failure> {
        let position = extent.host.checked_sub(self.from).map(|at| at as usize);
        let bytes = position.and_then(|at| self.bytes.get(at..at + extent.length as usize));
        bytes.ok_or_else(|| {
            Failure::image_broken(format!("byte {} of the image has passed already", extent.host))
        })
    }
}
