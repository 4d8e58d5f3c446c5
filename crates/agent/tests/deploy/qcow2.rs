//! Images of every shape, generated cluster by cluster, and compared with the disk that they
//! describe.

use crate::disk::disk_with_old_content;
use crate::image::{FlakySource, sha256, timing_without_pauses};
use agent::disk::DiskWriter;
use agent::failure::DeployError;
use agent::image::{ImageStream, ReadContext};
use agent::qcow2::*;
use agent::status::DeployStatus;
use flate2::{Compress, FlushCompress};
use proptest::prelude::*;
use std::cell::RefCell;
use std::fs;
use wire::deploy::DeploymentFailure;

#[derive(Debug, Clone, Copy, PartialEq)]
enum StoredCluster {
    Absent,
    Zero,
    Data(u8),
    Compressed(u8),
}

#[derive(Debug, Clone)]
struct ImageShape {
    cluster_bits: u32,
    clusters: Vec<StoredCluster>,
    /// The missing bytes of the last cluster of the disk.
    short: u64,
    /// The order of the clusters in the file.
    order: Vec<usize>,
    /// The file ends right after the last significant byte.
    trimmed: bool,
}

impl ImageShape {
    fn size(&self) -> u64 {
        ((self.clusters.len() as u64) << self.cluster_bits) - self.short
    }

    fn content(&self, number: usize) -> Vec<u8> {
        let size = 1_usize << self.cluster_bits;
        match self.clusters[number] {
            StoredCluster::Absent | StoredCluster::Zero => vec![0; size],
            StoredCluster::Data(seed) | StoredCluster::Compressed(seed) => {
                (0..size).map(|at| (at / 5) as u8 ^ seed ^ number as u8 | 1).collect()
            }
        }
    }

    fn disk(&self) -> Vec<u8> {
        let mut disk: Vec<u8> =
            (0..self.clusters.len()).flat_map(|number| self.content(number)).collect();
        disk.truncate(self.size() as usize);
        disk
    }

    fn file(&self) -> Vec<u8> {
        let size = 1_usize << self.cluster_bits;
        let per_table = size / 8;
        let tables = self.clusters.len().div_ceil(per_table);
        let table_clusters = (tables * 8).div_ceil(size);
        // Header, first-level table, second-level tables, data.
        let mut file = vec![0; (1 + table_clusters + tables) * size];
        let mut packed_end = 0;
        let mut entries = vec![0_u64; tables * per_table];
        for number in self.order.iter().copied().filter(|number| *number < self.clusters.len()) {
            entries[number] = match self.clusters[number] {
                StoredCluster::Absent => 0,
                StoredCluster::Zero => 1,
                StoredCluster::Data(_) => {
                    file.resize(file.len().next_multiple_of(size), 0);
                    let host = file.len() as u64;
                    file.extend(self.content(number));
                    packed_end = 0;
                    host | 1 << 63
                }
                StoredCluster::Compressed(_) => {
                    // Compressed clusters follow each other without a gap, so their sectors
                    // overlap.
                    if packed_end == 0 {
                        file.resize(file.len().next_multiple_of(size), 0);
                    } else {
                        file.truncate(packed_end);
                    }
                    let host = file.len() as u64;
                    let mut packed = Vec::with_capacity(size + 1024);
                    let mut deflate = Compress::new(flate2::Compression::fast(), false);
                    deflate
                        .compress_vec(&self.content(number), &mut packed, FlushCompress::Finish)
                        .unwrap();
                    file.extend(&packed);
                    packed_end = file.len();
                    let sectors = (host + packed.len() as u64 - 1) / 512 - host / 512;
                    host | sectors << (62 - (self.cluster_bits - 8)) | 1 << 62
                }
            };
        }
        if !self.trimmed {
            file.resize(file.len().next_multiple_of(size), 0);
        }
        for (number, entries) in entries.chunks(per_table).enumerate() {
            let host = (1 + table_clusters + number) * size;
            if entries.iter().all(|entry| *entry == 0) {
                continue;
            }
            file[size + number * 8..][..8].copy_from_slice(&(host as u64 | 1 << 63).to_be_bytes());
            for (at, entry) in entries.iter().enumerate() {
                file[host + at * 8..][..8].copy_from_slice(&entry.to_be_bytes());
            }
        }
        file[..4].copy_from_slice(b"QFI\xFB");
        file[4..8].copy_from_slice(&3_u32.to_be_bytes());
        file[20..24].copy_from_slice(&self.cluster_bits.to_be_bytes());
        file[24..32].copy_from_slice(&self.size().to_be_bytes());
        file[36..40].copy_from_slice(&(tables as u32).to_be_bytes());
        file[40..48].copy_from_slice(&(size as u64).to_be_bytes());
        file[100..104].copy_from_slice(&104_u32.to_be_bytes());
        file
    }
}

fn stored_cluster() -> impl Strategy<Value = StoredCluster> {
    prop_oneof![
        Just(StoredCluster::Absent),
        Just(StoredCluster::Zero),
        any::<u8>().prop_map(StoredCluster::Data),
        any::<u8>().prop_map(StoredCluster::Compressed),
    ]
}

fn shape() -> impl Strategy<Value = ImageShape> {
    // Small clusters need many tables.
    (
        prop_oneof![Just(9_u32), Just(10), Just(12), Just(16)],
        1..200_usize,
        any::<bool>(),
        0..500_u64,
    )
        .prop_flat_map(|(cluster_bits, most, trimmed, short)| {
            let count = if cluster_bits == 16 { most.div_ceil(8) } else { most };
            let call: Vec<usize> = (0..count).collect();
            (proptest::collection::vec(stored_cluster(), count), Just(call).prop_shuffle())
                .prop_map(move |(clusters, call)| ImageShape {
                    cluster_bits,
                    clusters,
                    short,
                    order: call,
                    trimmed,
                })
        })
}

/// Writes an image to a disk full of old content. Returns the content of the disk.
fn write_and_read_back(
    file: Vec<u8>,
    cuts: Vec<usize>,
    disk_size: u64,
) -> Result<Vec<u8>, DeployError> {
    let source = FlakySource { bytes: file.clone(), cuts: RefCell::new(cuts) };
    let (status, timing) = (DeployStatus::default(), timing_without_pauses());
    let reading =
        ReadContext { source: &source, size: file.len() as u64, status: &status, timing: &timing };
    let folder = tempfile::tempdir().unwrap();
    let path = disk_with_old_content(folder.path(), disk_size);
    let image = Qcow2::read_tables(reading)?;
    let mut disk = DiskWriter::open(&path, "/dev/vda", disk_size)?;
    let mut stream = ImageStream::new(reading);
    image.write_image(&mut stream, &mut disk, &status)?;
    stream.finish(&sha256(&file))?;
    disk.finish()?;
    Ok(fs::read(&path).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn clusters_reach_their_offsets(shape in shape(), cuts in proptest::collection::vec(0..40_000_usize, 0..5)) {
        let expected = shape.disk();
        let found = write_and_read_back(shape.file(), cuts, shape.size()).unwrap();
        prop_assert!(found == expected);
    }

    #[test]
    fn corrupt_images_never_panic(shape in shape(), noise in proptest::collection::vec((0..4_096_usize, any::<u8>()), 1..30)) {
        let mut file = shape.file();
        for (at, byte) in noise {
            let at = at % file.len();
            file[at] = byte;
        }
        // Any result is accepted, as long as it does not panic and stays within the disk.
        if let Ok(found) = write_and_read_back(file, Vec::new(), shape.size().max(4 << 20)) {
            prop_assert!(found.len() as u64 == shape.size().max(4 << 20));
        }
    }
}

fn plain() -> ImageShape {
    let clusters = vec![
        StoredCluster::Data(1),
        StoredCluster::Absent,
        StoredCluster::Compressed(2),
        StoredCluster::Zero,
        StoredCluster::Data(3),
    ];
    ImageShape { cluster_bits: 12, clusters, short: 0, order: vec![4, 2, 0, 1, 3], trimmed: true }
}

#[test]
fn disk_beyond_the_image_is_not_touched() {
    let shape = plain();
    let found = write_and_read_back(shape.file(), Vec::new(), 3 << 20).unwrap();
    assert!(found[..shape.size() as usize] == shape.disk()[..]);
    assert!(found[2 << 20..].iter().all(|byte| *byte == 0xAA));
}

#[test]
fn truncated_images_are_refused() {
    let file = plain().file();
    let broken = |cut: usize| matches!(write_and_read_back(file[..cut].to_vec(), Vec::new(), 3 << 20), Err(DeployError::Failed(failure)) if failure.code == DeploymentFailure::ImageBroken);
    for cut in [0, 3, 50, 100, 4096, 8191, 8192, 12_287] {
        assert!(broken(cut), "{cut}");
    }
}

/// A file of a megabyte whose first table names the same second table again and again. Its map
/// would have millions of entries.
#[test]
fn a_table_that_is_used_again_and_again_is_refused() {
    let cluster = 1_usize << 16;
    let tables = 8_000_u64;
    let mut file = plain().file();
    file.truncate(104);
    file.resize(16 * cluster, 0);
    file[20..24].copy_from_slice(&16_u32.to_be_bytes());
    file[24..32].copy_from_slice(&(tables * 8_192 * cluster as u64).to_be_bytes());
    file[36..40].copy_from_slice(&(tables as u32).to_be_bytes());
    file[40..48].copy_from_slice(&(cluster as u64).to_be_bytes());
    for at in 0..tables as usize {
        let entry = (2 * cluster as u64).to_be_bytes();
        file[cluster + at * 8..cluster + at * 8 + 8].copy_from_slice(&entry);
    }
    let refused = write_and_read_back(file, Vec::new(), 3 << 20).unwrap_err();
    assert!(
        matches!(&refused, DeployError::Failed(failure) if failure.message.contains("overlap")),
        "{refused:?}"
    );
}

/// Tables that differ between the first read and the stream.
#[test]
fn changed_tables_are_detected() {
    struct Changing(RefCell<u32>, Vec<u8>, Vec<u8>);
    impl agent::image::ImageSource for Changing {
        fn open(
            &self,
            from: u64,
        ) -> Result<Box<dyn std::io::Read + '_>, agent::deploy_client::RequestError> {
            *self.0.borrow_mut() += 1;
            let bytes = if *self.0.borrow() == 1 { &self.1 } else { &self.2 };
            Ok(Box::new(&bytes[from as usize..]))
        }
    }
    let (before, mut after) = (plain().file(), plain().file());
    // Swap the first two entries of the second-level table.
    let table = 2 * 4096;
    let (one, other) = after[table..table + 16].split_at_mut(8);
    one.swap_with_slice(other);
    assert_ne!(before, after);
    let source = Changing(RefCell::new(0), before.clone(), after);
    let (status, timing) = (DeployStatus::default(), timing_without_pauses());
    let reading = ReadContext {
        source: &source,
        size: before.len() as u64,
        status: &status,
        timing: &timing,
    };
    let folder = tempfile::tempdir().unwrap();
    let path = disk_with_old_content(folder.path(), 3 << 20);
    let image = Qcow2::read_tables(reading).unwrap();
    let mut disk = DiskWriter::open(&path, "/dev/vda", 3 << 20).unwrap();
    let halt = image.write_image(&mut ImageStream::new(reading), &mut disk, &status).unwrap_err();
    assert!(
        matches!(halt, DeployError::Failed(failure) if failure.code == DeploymentFailure::ChecksumWrong)
    );
}
