//! Writes to a disk.
//!
//! The first MiB, which makes a disk bootable, is kept in memory and written last, after the
//! checksum of the image has been verified. So a disk whose deployment stopped half-way, by a wrong
//! checksum or a power failure, does not boot half a system.

use crate::failure::{DeployError, Failure};
use crate::status::DeployStatus;
use rustix::fs::{Advice, FallocateFlags, OFlags, fadvise, fallocate};
use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

pub const MIB: u64 = 1024 * 1024;
/// Written bytes are synced at this interval, so that reported progress is real and the page cache
/// stays small.
const SYNC_EVERY_BYTES: u64 = 64 * MIB;
/// The bytes that are cleared between two checks for a stop.
const CLEAR_BYTES: u64 = 64 * MIB;

pub struct DiskWriter {
    file: File,
    path: String,
    size: u64,
    head: Vec<u8>,
    unsynced: u64,
}

impl DiskWriter {
    /// Opens a disk exclusively. `path` is its name in error texts.
    pub fn open(device: &Path, path: &str, size: u64) -> Result<Self, Failure> {
        // With O_EXCL the kernel gives a block device to one user only, and to none while it is
        // mounted.
        let exclusive = OFlags::EXCL.bits().cast_signed();
        let file = File::options().read(true).write(true).custom_flags(exclusive).open(device);
        let file = file.map_err(|error| {
            Failure::install_failed(format!("{path} cannot be opened for writing: {error}"))
        })?;
        let head = vec![0; size.min(MIB) as usize];
        Ok(Self { file, path: path.to_owned(), size, head, unsynced: 0 })
    }

    /// Clears old partition tables at both ends: the kernel would find a backup table at the end.
    pub fn clear_partition_tables(&mut self) -> Result<(), Failure> {
        let zeros = vec![0; self.head.len()];
        let length = zeros.len() as u64;
        for at in [0, self.size - length] {
            self.file.write_all_at(&zeros, at).map_err(|error| self.failed(at, &error))?;
        }
        self.sync()
    }

    pub fn write_at(&mut self, at: u64, bytes: &[u8]) -> Result<(), Failure> {
        let end = at.checked_add(bytes.len() as u64).filter(|end| *end <= self.size);
        if end.is_none() {
            return Err(
                self.failed(at, &io::Error::other("the image goes on after the end of the disk"))
            );
        }
        let (in_head, rest) = bytes.split_at(self.bytes_in_head(at, bytes.len() as u64));
        if !in_head.is_empty() {
            self.head[at as usize..at as usize + in_head.len()].copy_from_slice(in_head);
        }
        let from = at + in_head.len() as u64;
        self.file.write_all_at(rest, from).map_err(|error| self.failed(from, &error))?;
        self.unsynced += rest.len() as u64;
        if self.unsynced >= SYNC_EVERY_BYTES {
            self.unsynced = 0;
            self.file.sync_data().map_err(|error| self.failed(from, &error))?;
        }
        Ok(())
    }

    /// Makes a range read as zero, by the disk itself if it can do that.
    pub fn zero_range(
        &mut self,
        at: u64,
        length: u64,
        status: &DeployStatus,
    ) -> Result<(), DeployError> {
        let in_head = self.bytes_in_head(at, length);
        if in_head > 0 {
            self.head[at as usize..at as usize + in_head].fill(0);
        }
        let end = (at + length).min(self.size);
        let mut from = at + in_head as u64;
        while from < end {
            status.check()?;
            let piece = (end - from).min(CLEAR_BYTES);
            self.zero_chunk(from, piece)?;
            from += piece;
        }
        Ok(())
    }

    /// The kernel guarantees that ranges which it deallocates or zeroes in this way read as zero. A
    /// device that cannot deallocate zeroes the range, or the kernel writes zeros; a range that is
    /// not aligned to blocks is written here.
    fn zero_chunk(&self, at: u64, length: u64) -> Result<(), Failure> {
        let ways = [
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
        ];
        if ways.iter().any(|way| fallocate(&self.file, *way, at, length).is_ok()) {
            return Ok(());
        }
        let zeros = vec![0; length.min(MIB) as usize];
        let mut from = at;
        while from < at + length {
            let piece = &zeros[..(at + length - from).min(MIB) as usize];
            self.file.write_all_at(piece, from).map_err(|error| self.failed(from, &error))?;
            from += piece.len() as u64;
        }
        Ok(())
    }

    /// Writes the first MiB, syncs everything, and reads the MiB back from the disk.
    pub fn finish(self) -> Result<(), Failure> {
        self.sync()?;
        self.file.write_all_at(&self.head, 0).map_err(|error| self.failed(0, &error))?;
        self.sync()?;
        // Drops the page cache first, so that the read reaches the disk.
        let _ = fadvise(&self.file, 0, NonZeroU64::new(self.head.len() as u64), Advice::DontNeed);
        let mut found = vec![0; self.head.len()];
        self.file.read_exact_at(&mut found, 0).map_err(|error| self.failed(0, &error))?;
        if found == self.head {
            return Ok(());
        }
        Err(Failure::install_failed(format!(
            "{} does not give back what was written to its first MiB; replace the disk",
            self.path
        )))
    }

    fn sync(&self) -> Result<(), Failure> {
        self.file.sync_all().map_err(|error| self.failed(self.size, &error))
    }

    /// The number of bytes of a range that are in the first MiB.
    fn bytes_in_head(&self, at: u64, length: u64) -> usize {
        (self.head.len() as u64).saturating_sub(at).min(length) as usize
    }

    fn failed(&self, at: u64, error: &io::Error) -> Failure {
        Failure::install_failed(format!("writing to {} failed at byte {at}: {error}", self.path))
    }
}
