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
const TEMP_NAME: &str = ".farrier-new";

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

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    /// A name that does not exist at the root of any computer. Links out of the image point there,
    /// so that a bug does no harm to the computer that runs the test.
    const NOWHERE: &str = "farrier-agent-test-nowhere";

    /// A system in a directory, beside a directory that must not be touched.
    struct TestTree {
        top: tempfile::TempDir,
        inside: ConfinedRoot,
        me: FileOwner,
    }

    impl TestTree {
        fn new() -> Self {
            let top = tempfile::tempdir().unwrap();
            fs::create_dir_all(top.path().join("image/etc")).unwrap();
            fs::create_dir_all(top.path().join("image").join(NOWHERE)).unwrap();
            fs::create_dir_all(top.path().join("outside")).unwrap();
            fs::write(top.path().join("outside/secret"), "untouched").unwrap();
            let inside = ConfinedRoot::open(&top.path().join("image")).unwrap();
            let me = inside.owner().unwrap();
            Self { top, inside, me }
        }

        fn path(&self, name: &str) -> std::path::PathBuf {
            self.top.path().join("image").join(name)
        }

        fn outside_is_untouched(&self) {
            let outside = self.top.path().join("outside");
            let names: Vec<_> =
                fs::read_dir(&outside).unwrap().flatten().map(|e| e.file_name()).collect();
            assert_eq!(names, ["secret"]);
            assert_eq!(fs::read_to_string(outside.join("secret")).unwrap(), "untouched");
        }
    }

    #[test]
    fn links_cannot_leave_the_root() {
        let fixture = TestTree::new();
        let outside = fixture.top.path().join("outside");
        symlink(&outside, fixture.path("absolute")).unwrap();
        symlink("../outside", fixture.path("relative")).unwrap();
        symlink(format!("../../../../../../../../{NOWHERE}"), fixture.path("climbing")).unwrap();
        symlink("loop", fixture.path("loop")).unwrap();
        for path in ["absolute", "relative", "/../outside", "../outside", "loop"] {
            assert!(fixture.inside.open_dir(path).is_err(), "{path}");
            assert!(fixture.inside.read(&format!("{path}/secret"), 100).is_err(), "{path}");
            assert!(!fixture.inside.has_file(&format!("{path}/secret")), "{path}");
        }
        // A link that climbs with `..` ends at the root of the image.
        fixture
            .inside
            .create_dir_all("/climbing", 0o755, fixture.me)
            .unwrap()
            .write("a", 0o644, fixture.me, b"1")
            .unwrap();
        assert_eq!(fs::read_to_string(fixture.path(NOWHERE).join("a")).unwrap(), "1");
        assert!(!Path::new("/").join(NOWHERE).exists());
        fixture.outside_is_untouched();
    }

    #[test]
    fn directories_are_created_inside_only() {
        let fixture = TestTree::new();
        symlink(fixture.top.path().join("outside"), fixture.path("out")).unwrap();
        // The target of the link does not exist inside, so nothing can be created through it.
        assert!(fixture.inside.create_dir_all("/out/new", 0o755, fixture.me).is_err());
        fixture.inside.create_dir_all("/../../var/lib/x", 0o750, fixture.me).unwrap();
        assert_eq!(fs::metadata(fixture.path("var/lib/x")).unwrap().mode() & 0o7777, 0o750);
        assert!(fixture.inside.create_dir_all(&"/a".repeat(40), 0o755, fixture.me).is_err());
        fixture.outside_is_untouched();
    }

    #[test]
    fn a_file_replaces_a_link() {
        let fixture = TestTree::new();
        let secret = fixture.top.path().join("outside/secret");
        for name in ["hostname", TEMP_NAME] {
            symlink(&secret, fixture.path(&format!("etc/{name}"))).unwrap();
        }
        let etc = fixture.inside.open_dir("/etc").unwrap();
        etc.write("hostname", 0o640, fixture.me, b"node-1\n").unwrap();
        let found = fs::symlink_metadata(fixture.path("etc/hostname")).unwrap();
        assert!(found.is_file() && found.mode() & 0o7777 == 0o640);
        assert_eq!(fixture.inside.read("/etc/hostname", 100).unwrap(), b"node-1\n");
        assert_eq!(
            etc.list_names().unwrap().iter().filter(|name| name.starts_with(".farrier")).count(),
            0
        );
        fixture.outside_is_untouched();
    }

    #[test]
    fn links_are_not_own_directories() {
        let fixture = TestTree::new();
        let etc = fixture.inside.open_dir("/etc").unwrap();
        symlink(fixture.top.path().join("outside"), fixture.path("etc/.ssh")).unwrap();
        assert!(etc.ensure_dir(".ssh", 0o700, fixture.me).is_err());
        etc.remove(".ssh").unwrap();
        etc.ensure_dir(".ssh", 0o700, fixture.me)
            .unwrap()
            .write("a", 0o600, fixture.me, b"x")
            .unwrap();
        fs::set_permissions(fixture.path("etc/.ssh"), fs::Permissions::from_mode(0o777)).unwrap();
        etc.ensure_dir(".ssh", 0o700, fixture.me).unwrap();
        assert_eq!(fs::metadata(fixture.path("etc/.ssh")).unwrap().mode() & 0o7777, 0o700);
        fixture.outside_is_untouched();
    }

    #[test]
    fn only_short_regular_files_are_read() {
        let fixture = TestTree::new();
        fs::write(fixture.path("etc/long"), vec![b'x'; 101]).unwrap();
        assert!(fixture.inside.read("etc/long", 100).is_err());
        assert_eq!(fixture.inside.read("etc/long", 101).unwrap().len(), 101);
        assert!(fixture.inside.read("etc", 100).is_err());
        let fifo =
            std::process::Command::new("mkfifo").arg(fixture.path("etc/fifo")).status().unwrap();
        assert!(fifo.success());
        assert!(fixture.inside.read("etc/fifo", 100).is_err());
        assert!(fixture.inside.has_dir("etc") && !fixture.inside.has_file("etc"));
    }
}
