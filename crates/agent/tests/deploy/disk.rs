//! Tests of the module `disk` alone.

use agent::disk::*;
use agent::failure::DeployError;
use agent::status::DeployStatus;
use proptest::prelude::*;
use std::fs;
use std::path::Path;

/// A disk full of old content.
pub fn disk_with_old_content(folder: &Path, size: u64) -> std::path::PathBuf {
    let path = folder.join("disk");
    fs::write(&path, vec![0xAA; size as usize]).unwrap();
    path
}

#[test]
fn disk_is_not_bootable_before_finish() {
    let folder = tempfile::tempdir().unwrap();
    let path = disk_with_old_content(folder.path(), 4 * MIB);
    let mut disk = DiskWriter::open(&path, "/dev/vda", 4 * MIB).unwrap();
    disk.clear_partition_tables().unwrap();
    disk.write_at(0, &vec![1; 2 * MIB as usize]).unwrap();
    let before = fs::read(&path).unwrap();
    assert!(before[..MIB as usize].iter().all(|byte| *byte == 0));
    assert!(before[MIB as usize..2 * MIB as usize].iter().all(|byte| *byte == 1));
    assert!(before[2 * MIB as usize..3 * MIB as usize].iter().all(|byte| *byte == 0xAA));
    assert!(before[3 * MIB as usize..].iter().all(|byte| *byte == 0));
    disk.finish().unwrap();
    assert!(fs::read(&path).unwrap()[..2 * MIB as usize].iter().all(|byte| *byte == 1));
}

#[test]
fn small_disks_can_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = disk_with_old_content(folder.path(), 4096);
    let mut disk = DiskWriter::open(&path, "/dev/vda", 4096).unwrap();
    disk.clear_partition_tables().unwrap();
    disk.write_at(4000, &[1; 96]).unwrap();
    assert!(disk.write_at(4000, &[1; 97]).is_err());
    assert!(disk.write_at(u64::MAX, &[1]).is_err());
    disk.finish().unwrap();
    assert_eq!(fs::read(&path).unwrap(), [vec![0; 4000], vec![1; 96]].concat());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn writes_and_zeros_reach_their_offsets(
        steps in proptest::collection::vec((0..3 * MIB, 1..700_000_u64, any::<Option<u8>>()), 1..12)
    ) {
        const SIZE: u64 = 3 * MIB;
        let folder = tempfile::tempdir().unwrap();
        let path = disk_with_old_content(folder.path(), SIZE);
        let mut disk = DiskWriter::open(&path, "/dev/vda", SIZE).unwrap();
        let status = DeployStatus::default();
        let mut expected = vec![0xAA; SIZE as usize];
        expected[..MIB as usize].fill(0);
        for (at, length, fill) in steps {
            let length = length.min(SIZE - at);
            match fill {
                Some(byte) => disk.write_at(at, &vec![byte; length as usize]).unwrap(),
                None => disk.zero_range(at, length, &status).unwrap(),
            }
            expected[at as usize..(at + length) as usize].fill(fill.unwrap_or(0));
        }
        disk.finish().unwrap();
        prop_assert!(fs::read(&path).unwrap() == expected);
    }
}

#[test]
fn zeroing_stops_on_request() {
    let folder = tempfile::tempdir().unwrap();
    let path = disk_with_old_content(folder.path(), 4 * MIB);
    let mut disk = DiskWriter::open(&path, "/dev/vda", 4 * MIB).unwrap();
    let status = DeployStatus::default();
    status.finish_with(agent::status::FinalAction::PowerOff);
    assert_eq!(disk.zero_range(0, 4 * MIB, &status), Err(DeployError::Stopped));
}
