//! The space that the files of images may take: a quota for all of them, and a reserve of free disk
//! that no upload uses, because the database may be on the same disk.
//!
//! The folder itself is the account, so replicas that share it count each other's uploads, and a
//! process that was killed leaves no wrong number behind. An incomplete file has its full length
//! from the beginning, and its uploader locks it: one that is not locked was abandoned.

use super::PART;
use model::refusal::{Reason, Refusal};
use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// Locked while the folder is counted or changed, by every replica.
const LOCK: &str = ".lock";
/// The unit of `MetadataExt::blocks`.
const BLOCK: u64 = 512;
const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;
static PARTS: AtomicU64 = AtomicU64::new(0);

/// The limits of the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpaceLimits {
    /// For all files together.
    pub quota_bytes: u64,
    /// Free disk that uploads leave alone.
    pub reserve_bytes: u64,
}

impl SpaceLimits {
    pub fn gib(quota: u32, reserve: u32) -> Self {
        Self { quota_bytes: u64::from(quota) * GIB, reserve_bytes: u64::from(reserve) * GIB }
    }
}

/// The space that the files in the folder take.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Usage {
    /// The lengths of all files, with the full lengths of incomplete ones.
    bytes: u64,
    /// The part of the incomplete files that is not on the disk yet.
    unwritten_bytes: u64,
}

/// An incomplete file; dropped, it is removed unless it was renamed.
pub(super) struct IncompleteFile(pub(super) PathBuf);

impl Drop for IncompleteFile {
    fn drop(&mut self) {
        // Fails after a rename, which is fine.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Waits for the folder's lock. It is held until the file is dropped.
pub(super) fn lock(dir: &Path) -> io::Result<File> {
    let path = dir.join(LOCK);
    let file = File::options().create(true).truncate(false).write(true).open(path)?;
    file.lock()?;
    Ok(file)
}

/// Removes incomplete files whose uploader is gone.
pub(super) fn remove_abandoned(dir: &Path) -> io::Result<()> {
    let _lock = lock(dir)?;
    count(dir).map(drop)
}

/// Creates an incomplete file of `size` bytes, or refuses: `Ok(Err(_))`. Nothing is kept then.
pub(super) fn reserve(
    dir: &Path,
    limits: Option<SpaceLimits>,
    size: u64,
) -> io::Result<Result<(IncompleteFile, File), Refusal>> {
    let _lock = lock(dir)?;
    if let Some(limits) = limits {
        let usage = count(dir)?;
        let free_bytes = free(dir)?;
        if let Err(refusal) = limits.admit(usage, free_bytes, size) {
            return Ok(Err(refusal));
        }
    }
    create_part(dir, size).map(Ok)
}

/// Refuses if the disk has less than the reserve. Something else may fill it during an upload.
pub(super) fn check_reserve(dir: &Path, limits: SpaceLimits) -> io::Result<Result<(), Refusal>> {
    Ok(limits.admit_free(free(dir)?, 0))
}

/// Removes the complete files that `keep` does not name, if they were not touched for `age`.
pub(super) fn remove_unused(
    dir: &Path,
    keep: &dyn Fn(&str) -> bool,
    age: Duration,
) -> io::Result<()> {
    let _lock = lock(dir)?;
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let old = entry.metadata()?.modified()?.elapsed().is_ok_and(|since| since > age);
        if !name.starts_with('.') && old && !keep(&name) {
            tracing::info!(sha256 = name, "file removed that no image uses");
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// The length of a file. Its time is set to now, so that it does not count as unused before an
/// image names it.
pub(super) fn touch(dir: &Path, name: &str) -> io::Result<u64> {
    let _lock = lock(dir)?;
    let file = File::options().append(true).open(dir.join(name))?;
    file.set_modified(SystemTime::now())?;
    Ok(file.metadata()?.len())
}

/// Counts the files, and removes the abandoned ones. The caller has the lock.
fn count(dir: &Path) -> io::Result<Usage> {
    let mut usage = Usage::default();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let incomplete = entry.file_name().to_string_lossy().starts_with(PART);
        let found = match entry.metadata() {
            // An upload ends without the lock.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            found => found?,
        };
        if incomplete && remove_if_abandoned(&entry.path())? {
            continue;
        }
        usage.bytes += found.len();
        if incomplete {
            usage.unwritten_bytes += found.len().saturating_sub(found.blocks() * BLOCK);
        }
    }
    Ok(usage)
}

fn remove_if_abandoned(path: &Path) -> io::Result<bool> {
    let file = match File::options().append(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        file => file?,
    };
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(false),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(true),
    }
}

/// The name must be unique across replicas, which may all have the same process id in containers.
/// The caller holds the folder's lock, so that no other process removes the new file as abandoned.
fn create_part(dir: &Path, size: u64) -> io::Result<(IncompleteFile, File)> {
    loop {
        let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
        let count = PARTS.fetch_add(1, Ordering::Relaxed);
        let path = dir.join(format!("{PART}{}-{since:x}-{count}", std::process::id()));
        match File::create_new(&path) {
            Ok(file) => {
                let part = IncompleteFile(path);
                file.lock()?;
                file.set_len(size)?;
                return Ok((part, file));
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
}

fn free(dir: &Path) -> io::Result<u64> {
    let found = rustix::fs::statvfs(dir)?;
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}

impl SpaceLimits {
    fn admit(self, usage: Usage, free_bytes: u64, size: u64) -> Result<(), Refusal> {
        let left = self.quota_bytes.saturating_sub(usage.bytes);
        if size > left {
            let message = format!(
                "the file has {}, and {} are left of the {} that netboot.images_quota_gib allows \
                 for the files of all images; delete an image, or raise the quota",
                shown(size),
                shown(left),
                shown(self.quota_bytes)
            );
            return Err(no_room(message));
        }
        self.admit_free(free_bytes.saturating_sub(usage.unwritten_bytes), size)
    }

    fn admit_free(self, free_bytes: u64, size: u64) -> Result<(), Refusal> {
        let left = free_bytes.saturating_sub(self.reserve_bytes);
        if size > left || free_bytes < self.reserve_bytes {
            let message = format!(
                "the server's disk for images has {} free, and {} of it stay free \
                 (netboot.images_reserve_gib), so the file does not fit; delete an image, or make \
                 room on the disk",
                shown(free_bytes),
                shown(self.reserve_bytes)
            );
            return Err(no_room(message));
        }
        Ok(())
    }
}

fn no_room(message: String) -> Refusal {
    Refusal::new(Reason::NoRoom, message)
        .next("farrier image list   # then: farrier image delete NAME")
}

/// A size for a person: rounded down, so that "left" is never more than there is.
fn shown(bytes: u64) -> String {
    match bytes {
        GIB.. => format!("{}.{} GiB", bytes / GIB, bytes % GIB * 10 / GIB),
        MIB.. => format!("{}.{} MiB", bytes / MIB, bytes % MIB * 10 / MIB),
        _ => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quota_and_reserve_refuse_before_they_are_reached() {
        let limits = SpaceLimits { quota_bytes: 100, reserve_bytes: 50 };
        let usage = |bytes, unwritten_bytes| Usage { bytes, unwritten_bytes };
        for (usage, free_bytes, size, refused) in [
            (usage(0, 0), 1000, 100, None),
            (usage(0, 0), 1000, 101, Some("images_quota_gib")),
            (usage(60, 0), 1000, 41, Some("images_quota_gib")),
            (usage(200, 0), 1000, 1, Some("images_quota_gib")),
            (usage(0, 0), 100, 50, None),
            (usage(0, 0), 100, 51, Some("images_reserve_gib")),
            // The disk has promised space to another upload.
            (usage(40, 40), 140, 50, None),
            (usage(40, 40), 139, 50, Some("images_reserve_gib")),
            (usage(0, 0), 49, 1, Some("images_reserve_gib")),
        ] {
            let admitted = limits.admit(usage, free_bytes, size);
            let message = admitted.err().map(|refusal| refusal.message);
            assert_eq!(
                message.as_deref().map(|message| message.contains(refused.unwrap_or("?"))),
                refused.map(|_| true),
                "{usage:?} {free_bytes} {size}: {message:?}"
            );
        }
        assert!(limits.admit_free(49, 0).is_err() && limits.admit_free(50, 0).is_ok());
    }

    #[test]
    fn sizes_are_rounded_down() {
        assert_eq!(shown(1023), "1023 bytes");
        assert_eq!(shown(MIB * 3 / 2 - 1), "1.4 MiB");
        assert_eq!(shown(GIB * 2), "2.0 GiB");
    }
}
