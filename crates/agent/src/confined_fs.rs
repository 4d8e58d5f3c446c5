//! Access to files in a mounted system that is not trusted.
//!
//! In an image, `/etc` may be a link to `..`, a home may be called `/../../etc`, and
//! `authorized_keys` may be a link to anywhere. The kernel resolves every path as if the mount were
//! the root directory, so no link and no `..` leads out of it. A file is written under a temporary
//! name and then renamed, which replaces a link and never follows it.

use rustix::fs::{
    AtFlags, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Uid, fchmod, fchown, fstat, fsync,
    mkdirat, openat, openat2, renameat, unlinkat,
};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

/// The limit of the components of a path.
const MAX_DEPTH: usize = 32;
/// The limit of the entries of one directory.
const MAX_ENTRIES: usize = 10_000;
pub const TEMP_NAME: &str = ".farrier-new";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileOwner {
    pub user: u32,
    pub group: u32,
}

/// The root of a mounted system.
pub struct ConfinedRoot {
    root: OwnedFd,
}

/// A directory in the mounted system.
pub struct ConfinedDir(OwnedFd);

impl ConfinedRoot {
    pub fn open(root: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { root: rustix::fs::open(root, flags, Mode::empty())? })
    }

    fn resolve(&self, path: &str, flags: OFlags) -> io::Result<OwnedFd> {
        let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
        // `IN_ROOT` would resolve an absolute path inside the image too. A relative path stays
        // inside even if that ever failed; the mistake would otherwise hit the running system.
        let path = match path.trim_start_matches('/') {
            "" => ".",
            relative => relative,
        };
        Ok(openat2(&self.root, path, flags | OFlags::CLOEXEC, Mode::empty(), within)?)
    }

    /// The owner of the root directory, and so of the system's files.
    pub fn owner(&self) -> io::Result<FileOwner> {
        let found = fstat(&self.root)?;
        Ok(FileOwner { user: found.st_uid, group: found.st_gid })
    }

    /// The path is a regular file; links are followed.
    pub fn has_file(&self, path: &str) -> bool {
        self.resolve(path, OFlags::PATH).is_ok_and(|file| is_type(&file, FileType::RegularFile))
    }

    pub fn has_dir(&self, path: &str) -> bool {
        self.resolve(path, OFlags::PATH).is_ok_and(|file| is_type(&file, FileType::Directory))
    }

    /// Reads a file of at most `limit` bytes.
    pub fn read(&self, path: &str, limit: u64) -> io::Result<Vec<u8>> {
        // Without NONBLOCK, opening a pipe would block until it has a writer.
        let file = self.resolve(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
        if !is_type(&file, FileType::RegularFile) {
            return Err(io::Error::other("is no file"));
        }
        let mut bytes = Vec::new();
        File::from(file).take(limit + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > limit {
            return Err(io::Error::other(format!("is longer than {limit} bytes")));
        }
        Ok(bytes)
    }

    /// Opens a file of any length, such as a kernel.
    pub fn open_file(&self, path: &str) -> io::Result<File> {
        let file = self.resolve(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
        if is_type(&file, FileType::RegularFile) {
            Ok(file.into())
        } else {
            Err(io::Error::other("is no file"))
        }
    }

    pub fn open_dir(&self, path: &str) -> io::Result<ConfinedDir> {
        Ok(ConfinedDir(self.resolve(path, OFlags::RDONLY | OFlags::DIRECTORY)?))
    }

    /// The directory at a path; missing components are created.
    pub fn create_dir_all(
        &self,
        path: &str,
        mode: u32,
        owner: FileOwner,
    ) -> io::Result<ConfinedDir> {
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        if parts.len() > MAX_DEPTH {
            return Err(io::Error::other("has too many parts"));
        }
        let mut at = String::from("/");
        let mut folder = self.open_dir(&at)?;
        for part in parts {
            at = format!("{at}{part}/");
            folder = match self.open_dir(&at) {
                Err(error) if error.kind() == io::ErrorKind::NotFound && !is_dots(part) => {
                    folder.create_dir(part, mode, owner)?
                }
                found => found?,
            };
        }
        Ok(folder)
    }
}

impl ConfinedDir {
    /// Creates a directory in this one and opens it.
    fn create_dir(&self, name: &str, mode: u32, owner: FileOwner) -> io::Result<ConfinedDir> {
        mkdirat(&self.0, name, Mode::RWXU)?;
        let made = self.open_own_dir(name)?;
        made.set_owner(mode, owner)?;
        Ok(made)
    }

    /// A directory in this one that is not a link; created if it is missing. Mode and owner are set
    /// in any case.
    pub fn ensure_dir(&self, name: &str, mode: u32, owner: FileOwner) -> io::Result<ConfinedDir> {
        match self.open_own_dir(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.create_dir(name, mode, owner)
            }
            found => {
                let found = found?;
                found.set_owner(mode, owner)?;
                Ok(found)
            }
        }
    }

    fn open_own_dir(&self, name: &str) -> io::Result<ConfinedDir> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(ConfinedDir(openat(&self.0, name, flags, Mode::empty())?))
    }

    fn set_owner(&self, mode: u32, owner: FileOwner) -> io::Result<()> {
        fchown(&self.0, Some(Uid::from_raw(owner.user)), Some(Gid::from_raw(owner.group)))?;
        Ok(fchmod(&self.0, Mode::from_raw_mode(mode))?)
    }

    /// Writes a complete file, replacing whatever has the name.
    pub fn write(&self, name: &str, mode: u32, owner: FileOwner, content: &[u8]) -> io::Result<()> {
        self.write_from(name, mode, owner, &mut &*content)
    }

    /// Like `write`, from a reader.
    pub fn write_from(
        &self,
        name: &str,
        mode: u32,
        owner: FileOwner,
        content: &mut dyn Read,
    ) -> io::Result<()> {
        self.remove(TEMP_NAME)?;
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(openat(&self.0, TEMP_NAME, flags, Mode::RUSR | Mode::WUSR)?);
        io::copy(content, &mut file)?;
        file.flush()?;
        fchown(&file, Some(Uid::from_raw(owner.user)), Some(Gid::from_raw(owner.group)))?;
        fchmod(&file, Mode::from_raw_mode(mode))?;
        file.sync_all()?;
        renameat(&self.0, TEMP_NAME, &self.0, name)?;
        Ok(fsync(&self.0)?)
    }

    /// Removes a file or a link; succeeds if it does not exist.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        match unlinkat(&self.0, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    pub fn list_names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.0)?.take(MAX_ENTRIES) {
            names.extend(entry?.file_name().to_str().map(str::to_owned));
        }
        names.sort();
        Ok(names)
    }
}

fn is_type(file: &OwnedFd, kind: FileType) -> bool {
    fstat(file).is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == kind)
}

fn is_dots(part: &str) -> bool {
    part == "." || part == ".."
}
