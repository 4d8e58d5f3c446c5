//! The header of a qcow2: its properties, and whether all of them are supported.

use crate::failure::{DeployError, Failure};
use crate::image::ResumingReader;

const MAGIC: &[u8] = b"QFI\xFB";
/// The header length of version 2; version 3 states its own.
const SHORT_BYTES: usize = 72;
const LONG_BYTES: usize = 104;
/// The bytes of the header that are read. Later fields are optional, or an incompatible feature
/// bit announces them.
pub const READ_BYTES: usize = 112;
const SMALLEST_CLUSTER_BITS: u32 = 9;
const LARGEST_CLUSTER_BITS: u32 = 21;
/// QEMU's limit for the first table: 2 TiB with the smallest usual clusters, far more with others.
const MAX_TABLE_BYTES: u64 = 32 * 1024 * 1024;

/// Incompatible features: a reader must understand them.
const DIRTY: u64 = 1;
const CORRUPT: u64 = 1 << 1;
const EXTERNAL_DATA: u64 = 1 << 2;
const COMPRESSION_TYPE: u64 = 1 << 3;
const EXTENDED_TABLES: u64 = 1 << 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    Zlib,
    Zstd,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    pub version: u32,
    pub cluster_bits: u32,
    /// The size of the virtual disk.
    pub size: u64,
    pub table_at: u64,
    pub compression: Compression,
}

impl Header {
    /// Reads the header. Returns it with its bytes.
    pub fn read(
        reader: &mut ResumingReader,
        file_size: u64,
    ) -> Result<(Self, Vec<u8>), DeployError> {
        let mut bytes = vec![0; READ_BYTES];
        reader.seek(0)?;
        let count = reader.fill(&mut bytes)?;
        bytes.truncate(count);
        Ok((Self::parse(&bytes, file_size)?, bytes))
    }

    fn parse(bytes: &[u8], file_size: u64) -> Result<Self, Failure> {
        let short = || Failure::image_broken("the image ends within its qcow2 header");
        let u32_at = |at: usize| bytes.get(at..at + 4).map(be32).ok_or_else(short);
        let u64_at = |at: usize| bytes.get(at..at + 8).map(be64).ok_or_else(short);
        if !bytes.starts_with(MAGIC) {
            return Err(Failure::image_broken(
                "the image does not begin as a qcow2 does; is its kind right?",
            ));
        }
        if bytes.len() < SHORT_BYTES {
            return Err(short());
        }
        let version = u32_at(4)?;
        let header = Self {
            version,
            cluster_bits: u32_at(20)?,
            size: u64_at(24)?,
            table_at: u64_at(40)?,
            compression: match version {
                2 => Compression::Zlib,
                3 => extensions(bytes).ok_or_else(short)??,
                other => {
                    return Err(Failure::image_broken(format!(
                        "the image is qcow2 version {other}; 2 and 3 are known"
                    )));
                }
            },
        };
        if u64_at(8)? != 0 {
            return Err(refused("has a backing file"));
        }
        if u32_at(32)? != 0 {
            return Err(refused("is encrypted"));
        }
        header.check(u64::from(u32_at(36)?), file_size)?;
        Ok(header)
    }

    fn check(&self, table_entries: u64, file_size: u64) -> Result<(), Failure> {
        if !(SMALLEST_CLUSTER_BITS..=LARGEST_CLUSTER_BITS).contains(&self.cluster_bits) {
            return Err(Failure::image_broken(format!(
                "clusters of 2^{} bytes are none of qcow2's",
                self.cluster_bits
            )));
        }
        let needed = self.tables();
        if self.size == 0 || needed > table_entries || needed * 8 > MAX_TABLE_BYTES {
            return Err(Failure::image_broken(format!(
                "a disk of {} bytes does not go with a table of {table_entries} entries",
                self.size
            )));
        }
        if self.size.div_ceil(self.cluster_size()) > u64::from(u32::MAX) {
            return Err(refused("has too many clusters"));
        }
        let end = self.table_at.checked_add(needed * 8);
        if !self.table_at.is_multiple_of(self.cluster_size())
            || self.table_at == 0
            || end.is_none_or(|end| end > file_size)
        {
            return Err(Failure::image_broken(
                "its first table lies outside of the image; is the file whole?",
            ));
        }
        Ok(())
    }

    pub fn cluster_size(&self) -> u64 {
        1 << self.cluster_bits
    }

    /// The number of clusters that one second-level table maps.
    pub fn clusters_per_table(&self) -> u64 {
        self.cluster_size() / 8
    }

    /// The number of second-level tables that the disk needs.
    pub fn tables(&self) -> u64 {
        self.size.div_ceil(self.cluster_size() * self.clusters_per_table())
    }

    /// The format limits a compressed cluster to the size of two plain ones.
    pub fn longest_extent(&self) -> usize {
        2 << self.cluster_bits
    }
}

/// The fields of version 3. None: the header is truncated.
fn extensions(bytes: &[u8]) -> Option<Result<Compression, Failure>> {
    let incompatible = be64(bytes.get(72..80)?);
    let length = be32(bytes.get(100..LONG_BYTES)?) as usize;
    let unknown =
        incompatible & !(DIRTY | CORRUPT | EXTERNAL_DATA | COMPRESSION_TYPE | EXTENDED_TABLES);
    // In a dirty image the reference counts may be wrong; the tables are right, and reference
    // counts are not used here.
    let refusal = if unknown != 0 {
        Some(refused(&format!(
            "needs something that is not known here (incompatible features {unknown:#x})"
        )))
    } else if incompatible & CORRUPT != 0 {
        Some(Failure::image_broken(
            "the image is marked as corrupt; repair it with `qemu-img check -r all`",
        ))
    } else if incompatible & EXTERNAL_DATA != 0 {
        Some(refused("has its data in another file"))
    } else if incompatible & EXTENDED_TABLES != 0 {
        Some(refused("has extended tables"))
    } else {
        None
    };
    if let Some(refusal) = refusal {
        return Some(Err(refusal));
    }
    let compression = if length > LONG_BYTES { *bytes.get(LONG_BYTES)? } else { 0 };
    Some(match compression {
        0 => Ok(Compression::Zlib),
        1 => Ok(Compression::Zstd),
        other => Err(refused(&format!("is compressed in a way that is not known here ({other})"))),
    })
}

fn refused(what: &str) -> Failure {
    Failure::image_broken(format!(
        "the image {what}; make a plain one with `qemu-img convert -O qcow2`"
    ))
}

pub fn be32(bytes: &[u8]) -> u32 {
    bytes.iter().take(4).fold(0, |number, byte| number << 8 | u32::from(*byte))
}

pub fn be64(bytes: &[u8]) -> u64 {
    bytes.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: u64 = 1 << 30;

    fn plain(version: u32) -> Vec<u8> {
        let mut bytes = vec![0; READ_BYTES];
        bytes[..4].copy_from_slice(MAGIC);
        set32(&mut bytes, 4, version);
        set32(&mut bytes, 20, 16);
        set64(&mut bytes, 24, 1 << 30);
        set32(&mut bytes, 36, 2);
        set64(&mut bytes, 40, 0x30000);
        set32(&mut bytes, 100, 104);
        bytes
    }

    fn set32(bytes: &mut [u8], at: usize, value: u32) {
        bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
    }

    fn set64(bytes: &mut [u8], at: usize, value: u64) {
        bytes[at..at + 8].copy_from_slice(&value.to_be_bytes());
    }

    #[test]
    fn plain_images_are_understood() {
        for version in [2, 3] {
            let header = Header::parse(&plain(version), FILE).unwrap();
            let expected = Header {
                version,
                cluster_bits: 16,
                size: 1 << 30,
                table_at: 0x30000,
                compression: Compression::Zlib,
            };
            assert_eq!(header, expected);
            assert_eq!((header.clusters_per_table(), header.tables()), (8192, 2));
        }
        assert!(Header::parse(&plain(2)[..72], FILE).is_ok());
        let mut dirty = plain(3);
        set64(&mut dirty, 72, DIRTY);
        assert!(Header::parse(&dirty, FILE).is_ok());
        let mut zstd = plain(3);
        set64(&mut zstd, 72, COMPRESSION_TYPE);
        set32(&mut zstd, 100, 112);
        zstd[104] = 1;
        assert_eq!(Header::parse(&zstd, FILE).unwrap().compression, Compression::Zstd);
    }

    #[test]
    fn unsupported_features_are_refused_by_name() {
        type Spoil = fn(&mut Vec<u8>);
        let table: [(Spoil, &str); 18] = [
            (|b| b[0] = 0, "does not begin as a qcow2"),
            (|b| b.truncate(71), "ends within"),
            (|b| b.truncate(80), "ends within"),
            (|b| set32(b, 4, 1), "version 1"),
            (|b| set32(b, 4, 4), "version 4"),
            (|b| set64(b, 8, 1), "backing file"),
            (|b| set32(b, 32, 2), "encrypted"),
            (|b| set64(b, 72, CORRUPT), "corrupt"),
            (|b| set64(b, 72, EXTERNAL_DATA), "another file"),
            (|b| set64(b, 72, EXTENDED_TABLES), "extended tables"),
            (|b| set64(b, 72, 1 << 5), "0x20"),
            (|b| set64(b, 72, 1 << 63), "0x8000000000000000"),
            (
                |b| {
                    set32(b, 100, 112);
                    b[104] = 2;
                },
                "(2)",
            ),
            (|b| set32(b, 20, 8), "2^8"),
            (|b| set32(b, 20, 22), "2^22"),
            (|b| set64(b, 24, 0), "0 bytes"),
            (|b| set32(b, 36, 1), "table of 1 entries"),
            (|b| set64(b, 40, FILE), "outside of the image"),
        ];
        for (spoil, words) in table {
            let mut bytes = plain(3);
            spoil(&mut bytes);
            let failure = Header::parse(&bytes, FILE).unwrap_err();
            assert!(failure.message.contains(words), "{words}: {}", failure.message);
        }
        for at in [0, 0x30001, !0xFFFF] {
            let mut bytes = plain(3);
            set64(&mut bytes, 40, at);
            assert!(Header::parse(&bytes, FILE).is_err(), "{at:#x}");
        }
        let mut huge = plain(3);
        set64(&mut huge, 24, u64::MAX);
        set32(&mut huge, 36, u32::MAX);
        assert!(Header::parse(&huge, FILE).is_err());
    }
}
