//! Images of every shape, made here cluster by cluster, against the disk that they are images of.

use super::*;
use crate::disk::tests::used;
use crate::image::tests::{Flaky, hurried, sha256};
use flate2::{Compress, FlushCompress};
use proptest::prelude::*;
use std::cell::RefCell;
use std::fs;

/// How a cluster is kept.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kept {
    Absent,
    Zero,
    Data(u8),
    Compressed(u8),
}

#[derive(Debug, Clone)]
struct Shape {
    cluster_bits: u32,
    clusters: Vec<Kept>,
    /// How much the last cluster lacks.
    short: u64,
    /// In which order clusters come in the file.
    order: Vec<usize>,
    /// The file ends right after the last byte that matters.
    trimmed: bool,
}

impl Shape {
    fn size(&self) -> u64 {
        ((self.clusters.len() as u64) << self.cluster_bits) - self.short
    }

    fn content(&self, number: usize) -> Vec<u8> {
        let size = 1_usize << self.cluster_bits;
        match self.clusters[number] {
            Kept::Absent | Kept::Zero => vec![0; size],
            Kept::Data(seed) | Kept::Compressed(seed) => {
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
        // Header, first table, second tables, data.
        let mut file = vec![0; (1 + table_clusters + tables) * size];
        let mut packed_end = 0;
        let mut entries = vec![0_u64; tables * per_table];
        for number in self.order.iter().copied().filter(|number| *number < self.clusters.len()) {
            entries[number] = match self.clusters[number] {
                Kept::Absent => 0,
                Kept::Zero => 1,
                Kept::Data(_) => {
                    file.resize(file.len().next_multiple_of(size), 0);
                    let host = file.len() as u64;
                    file.extend(self.content(number));
                    packed_end = 0;
                    host | 1 << 63
                }
                Kept::Compressed(_) => {
                    // Packed clusters follow each other without a gap, so that their sectors overlap.
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

fn kept() -> impl Strategy<Value = Kept> {
    prop_oneof![
        Just(Kept::Absent),
        Just(Kept::Zero),
        any::<u8>().prop_map(Kept::Data),
        any::<u8>().prop_map(Kept::Compressed),
    ]
}

fn shape() -> impl Strategy<Value = Shape> {
    // Small clusters make for many tables.
    (
        prop_oneof![Just(9_u32), Just(10), Just(12), Just(16)],
        1..200_usize,
        any::<bool>(),
        0..500_u64,
    )
        .prop_flat_map(|(cluster_bits, most, trimmed, short)| {
            let count = if cluster_bits == 16 { most.div_ceil(8) } else { most };
            let order: Vec<usize> = (0..count).collect();
            (proptest::collection::vec(kept(), count), Just(order).prop_shuffle()).prop_map(
                move |(clusters, order)| Shape { cluster_bits, clusters, short, order, trimmed },
            )
        })
}

/// Writes an image to a disk that was full of something else, and answers what is on it.
fn poured(file: Vec<u8>, cuts: Vec<usize>, disk_size: u64) -> Result<Vec<u8>, Halt> {
    let source = Flaky { bytes: file.clone(), cuts: RefCell::new(cuts) };
    let (status, pace) = (Status::default(), hurried());
    let reading =
        Reading { source: &source, size: file.len() as u64, status: &status, pace: &pace };
    let folder = tempfile::tempdir().unwrap();
    let path = used(folder.path(), disk_size);
    let image = Qcow2::look(reading)?;
    let mut disk = Disk::open(&path, "/dev/vda", disk_size)?;
    let mut stream = Stream::new(reading);
    image.pour(&mut stream, &mut disk, &status)?;
    stream.finish(&sha256(&file))?;
    disk.finish()?;
    Ok(fs::read(&path).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn every_cluster_ends_where_it_belongs(shape in shape(), cuts in proptest::collection::vec(0..40_000_usize, 0..5)) {
        let expected = shape.disk();
        let found = poured(shape.file(), cuts, shape.size()).unwrap();
        prop_assert!(found == expected);
    }

    #[test]
    fn garbage_is_refused_and_never_a_panic(shape in shape(), noise in proptest::collection::vec((0..4_096_usize, any::<u8>()), 1..30)) {
        let mut file = shape.file();
        for (at, byte) in noise {
            let at = at % file.len();
            file[at] = byte;
        }
        // What it makes of it is its own affair, as long as it says so and stays within the disk.
        if let Ok(found) = poured(file, Vec::new(), shape.size().max(4 << 20)) {
            prop_assert!(found.len() as u64 == shape.size().max(4 << 20));
        }
    }
}

fn plain() -> Shape {
    let clusters =
        vec![Kept::Data(1), Kept::Absent, Kept::Compressed(2), Kept::Zero, Kept::Data(3)];
    Shape { cluster_bits: 12, clusters, short: 0, order: vec![4, 2, 0, 1, 3], trimmed: true }
}

#[test]
fn what_is_after_the_image_on_the_disk_is_left_alone() {
    let shape = plain();
    let found = poured(shape.file(), Vec::new(), 3 << 20).unwrap();
    assert!(found[..shape.size() as usize] == shape.disk()[..]);
    assert!(found[2 << 20..].iter().all(|byte| *byte == 0xAA));
}

#[test]
fn a_file_that_is_cut_is_refused_before_or_while_it_is_read() {
    let file = plain().file();
    let broken = |cut: usize| matches!(poured(file[..cut].to_vec(), Vec::new(), 3 << 20), Err(Halt::Failed(failure)) if failure.code == FailureCode::ImageBroken);
    for cut in [0, 3, 50, 100, 4096, 8191, 8192, 12_287] {
        assert!(broken(cut), "{cut}");
    }
}

/// Tables that are one thing when they are read and another when they pass.
#[test]
fn tables_that_change_under_way_are_noticed() {
    struct Changing(RefCell<u32>, Vec<u8>, Vec<u8>);
    impl crate::image::Source for Changing {
        fn open(&self, from: u64) -> Result<Box<dyn std::io::Read + '_>, crate::farrier::Missed> {
            *self.0.borrow_mut() += 1;
            let bytes = if *self.0.borrow() == 1 { &self.1 } else { &self.2 };
            Ok(Box::new(&bytes[from as usize..]))
        }
    }
    let (before, mut after) = (plain().file(), plain().file());
    // The second table's first two entries change places.
    let table = 2 * 4096;
    let (one, other) = after[table..table + 16].split_at_mut(8);
    one.swap_with_slice(other);
    assert_ne!(before, after);
    let source = Changing(RefCell::new(0), before.clone(), after);
    let (status, pace) = (Status::default(), hurried());
    let reading =
        Reading { source: &source, size: before.len() as u64, status: &status, pace: &pace };
    let folder = tempfile::tempdir().unwrap();
    let path = used(folder.path(), 3 << 20);
    let image = Qcow2::look(reading).unwrap();
    let mut disk = Disk::open(&path, "/dev/vda", 3 << 20).unwrap();
    let halt = image.pour(&mut Stream::new(reading), &mut disk, &status).unwrap_err();
    assert!(matches!(halt, Halt::Failed(failure) if failure.code == FailureCode::ChecksumWrong));
}
