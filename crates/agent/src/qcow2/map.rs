//! The inverted tables of a qcow2: from "where in the file is this cluster of the disk" to "what is
//! this part of the file".

use super::header::{Header, be64};
use crate::failure::{DeployError, Failure};
use crate::image::ResumingReader;
use sha2::{Digest, Sha256};

/// 24 bytes each, so 96 MiB, which a machine with 512 MiB can spare. Enough for 256 GiB of data in
/// clusters of the usual size.
const MAX_EXTENTS: usize = 4 * 1024 * 1024;
const OFFSET_BITS: u64 = 0x00FF_FFFF_FFFF_FE00;
const COMPRESSED: u64 = 1 << 62;
const ZERO: u64 = 1;
const SECTOR_BYTES: u64 = 512;

/// The content of a part of the file. Clusters are numbered by their position on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExtentContent {
    Data(u32),
    Compressed(u32),
    /// Part of a table; the number is the index of its digest.
    Table(u32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    pub host: u64,
    pub length: u32,
    pub content: ExtentContent,
}

impl Extent {
    pub fn end(&self) -> u64 {
        self.host + u64::from(self.length)
    }
}

pub struct ClusterMap {
    /// Sorted by their ends.
    pub extents: Vec<Extent>,
    /// Ranges of the disk that must read as zero: offset and length, in order.
    pub holes: Vec<(u64, u64)>,
    pub digests: Vec<[u8; 32]>,
}

/// A decoded entry of a second-level table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TableEntry {
    Zero,
    Data { host: u64 },
    Compressed { host: u64, length: u64 },
}

fn parse_entry(header: &Header, raw: u64) -> Result<TableEntry, String> {
    if raw & COMPRESSED != 0 {
        let bits = 62 - (header.cluster_bits - 8);
        let host = raw & ((1 << bits) - 1);
        let sectors = ((raw & (COMPRESSED - 1)) >> bits) + 1;
        return Ok(TableEntry::Compressed {
            host,
            length: sectors * SECTOR_BYTES - host % SECTOR_BYTES,
        });
    }
    let host = raw & OFFSET_BITS;
    match (raw & ZERO != 0, header.version) {
        (true, 2) => Err("is marked as zero, which version 2 does not know".into()),
        (true, _) => Ok(TableEntry::Zero),
        (false, _) if host == 0 => Ok(TableEntry::Zero),
        (false, _) if !host.is_multiple_of(header.cluster_size()) => {
            Err(format!("lies at byte {host}, where no cluster begins"))
        }
        (false, _) => Ok(TableEntry::Data { host }),
    }
}

impl ClusterMap {
    pub fn read(
        reader: &mut ResumingReader,
        header: &Header,
        head: Vec<u8>,
        file_size: u64,
    ) -> Result<Self, DeployError> {
        let mut builder = MapBuilder {
            header,
            file_size,
            table_bytes: 0,
            map: ClusterMap { extents: Vec::new(), holes: Vec::new(), digests: Vec::new() },
        };
        builder.add_table(0, &head)?;
        let first = builder.read_table(reader, header.table_at, header.tables() * 8)?;
        let span = header.clusters_per_table();
        for (number, raw) in first.chunks_exact(8).map(be64).enumerate() {
            let begin = number as u64 * span;
            let host = raw & OFFSET_BITS;
            if host == 0 {
                builder.add_hole(begin, span);
                continue;
            }
            if !host.is_multiple_of(header.cluster_size()) {
                return Err(Failure::image_broken(format!(
                    "a table of the image lies at byte {host}, where no cluster begins"
                ))
                .into());
            }
            let second = builder.read_table(reader, host, header.cluster_size())?;
            builder.add_clusters(begin, &second)?;
        }
        let mut map = builder.map;
        map.extents.sort_unstable_by_key(|extent| (extent.end(), extent.host, extent.content));
        Ok(map)
    }
}

struct MapBuilder<'a> {
    header: &'a Header,
    file_size: u64,
    /// The bytes of all tables that were read.
    table_bytes: u64,
    map: ClusterMap,
}

impl MapBuilder<'_> {
    fn read_table(
        &mut self,
        reader: &mut ResumingReader,
        at: u64,
        length: u64,
    ) -> Result<Vec<u8>, DeployError> {
        if at.checked_add(length).is_none_or(|end| end > self.file_size) {
            return Err(Failure::image_broken(format!(
                "a table at byte {at} lies outside of the image; is the file whole?"
            ))
            .into());
        }
        // Tables that are used again and again would make a large map of a small file.
        self.table_bytes += length;
        if self.table_bytes > self.file_size {
            return Err(Failure::image_broken("the tables of the image overlap").into());
        }
        let mut bytes = vec![0; length as usize];
        reader.seek(at)?;
        reader.fill(&mut bytes)?;
        self.add_table(at, &bytes)?;
        Ok(bytes)
    }

    /// Records the digest of a table, in parts of at most a cluster.
    fn add_table(&mut self, at: u64, bytes: &[u8]) -> Result<(), Failure> {
        let size = self.header.cluster_size();
        for (number, piece) in bytes.chunks(size as usize).enumerate() {
            let digest = self.map.digests.len() as u32;
            self.map.digests.push(Sha256::digest(piece).into());
            self.add_extent(
                at + number as u64 * size,
                piece.len() as u64,
                ExtentContent::Table(digest),
            )?;
        }
        Ok(())
    }

    /// Adds the entries of one second-level table. `begin` is the number of its first cluster.
    fn add_clusters(&mut self, begin: u64, table: &[u8]) -> Result<(), Failure> {
        let end = self.header.size.div_ceil(self.header.cluster_size());
        for (raw, guest) in table.chunks_exact(8).map(be64).zip(begin..end) {
            let wrong = |message: String| {
                Failure::image_broken(format!("cluster {guest} of the image {message}"))
            };
            let number = guest as u32;
            match parse_entry(self.header, raw).map_err(wrong)? {
                TableEntry::Zero => self.add_hole(guest, 1),
                TableEntry::Data { host } => {
                    self.add_extent(host, self.header.cluster_size(), ExtentContent::Data(number))?
                }
                TableEntry::Compressed { host, length } => {
                    self.add_extent(host, length, ExtentContent::Compressed(number))?
                }
            }
        }
        Ok(())
    }

    /// The file may end inside the last extent, where only zeros or the rest of a sector would
    /// follow.
    fn add_extent(&mut self, host: u64, size: u64, content: ExtentContent) -> Result<(), Failure> {
        let size = self.file_size.saturating_sub(host).min(size);
        if size == 0 {
            return Err(Failure::image_broken(format!(
                "byte {host} lies outside of the image; is the file whole?"
            )));
        }
        if self.map.extents.len() >= MAX_EXTENTS {
            let message = format!(
                "the image has more than {MAX_EXTENTS} clusters; convert it with larger ones: `qemu-img convert -O qcow2 -o cluster_size=2M`"
            );
            return Err(Failure::image_broken(message));
        }
        self.map.extents.push(Extent { host, length: size as u32, content });
        Ok(())
    }

    fn add_hole(&mut self, begin: u64, clusters: u64) {
        let at = begin << self.header.cluster_bits;
        let end = ((begin + clusters) << self.header.cluster_bits).min(self.header.size);
        match self.map.holes.last_mut() {
            Some((last, length)) if *last + *length == at => *length = end - *last,
            Some(_) | None => self.map.holes.push((at, end - at)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::header::Compression;
    use super::*;

    fn header(version: u32, cluster_bits: u32) -> Header {
        Header {
            version,
            cluster_bits,
            size: 1 << 30,
            table_at: 1 << 16,
            compression: Compression::Zlib,
        }
    }

    #[test]
    fn entries_say_where_a_cluster_is() {
        let copied = 1 << 63;
        for (version, bits, raw, expected) in [
            (3, 16, 0, Ok(TableEntry::Zero)),
            (3, 16, copied | 0x50000, Ok(TableEntry::Data { host: 0x50000 })),
            (2, 16, 0x50000, Ok(TableEntry::Data { host: 0x50000 })),
            (3, 16, 0x50001, Ok(TableEntry::Zero)),
            (3, 16, 1, Ok(TableEntry::Zero)),
            (2, 16, 1, Err(())),
            (3, 16, 0x50200, Err(())),
            (3, 9, 0x50200, Ok(TableEntry::Data { host: 0x50200 })),
            // One sector more than the one it begins in; it begins 100 bytes into a sector.
            (
                3,
                16,
                COMPRESSED | 1 << 54 | 0x50064,
                Ok(TableEntry::Compressed { host: 0x50064, length: 1024 - 100 }),
            ),
            (
                3,
                16,
                COMPRESSED | 0x50064,
                Ok(TableEntry::Compressed { host: 0x50064, length: 412 }),
            ),
            (
                3,
                9,
                COMPRESSED | 1 << 61 | 0x200,
                Ok(TableEntry::Compressed { host: 0x200, length: 1024 }),
            ),
            (
                3,
                21,
                COMPRESSED | 0x1FFF << 49,
                Ok(TableEntry::Compressed { host: 0, length: 4 << 20 }),
            ),
        ] {
            let found = parse_entry(&header(version, bits), raw);
            assert_eq!(found.map_err(drop), expected, "{raw:#x}");
        }
    }

    #[test]
    fn extents_fit_the_window() {
        for bits in 9..=21 {
            let header = header(3, bits);
            let found = parse_entry(&header, COMPRESSED | (COMPRESSED - 1) & !0x1FF).unwrap();
            let TableEntry::Compressed { length, .. } = found else { panic!("{found:?}") };
            assert!(length <= header.longest_extent() as u64, "{bits}");
        }
    }

    #[test]
    fn an_extent_is_small() {
        assert_eq!(size_of::<Extent>(), 24);
    }
}
