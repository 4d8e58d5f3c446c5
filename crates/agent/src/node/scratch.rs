//! Empties the scratch directories, and nothing else.
//!
//! The kernel opens every subdirectory relative to its open parent, follows no link, and enters no
//! other file system, including bind mounts; so a link leads nowhere, even one that appears
//! meanwhile. What cannot be removed is reported, and the rest is removed all the same.

use super::deadline::Deadline;
use super::log::TaskLog;
use super::task_execution::TaskError;
use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, open, openat2, statat, unlinkat,
};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::ffi::{CString, OsStr};
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A deeper tree is an error; each level holds a directory open.
const MAX_DEPTH: usize = 256;
/// The number of names that are read before they are removed.
const BATCH: usize = 4_096;
/// The number of failures after which the cleanup stops.
const MAX_PROBLEMS: usize = 20;
/// The most paths left behind that a message names.
const MAX_NAMED: usize = 5;
const FOLDER: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The content of a directory after its removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Remainder {
    Empty,
    NotEmpty,
}

/// Empties all directories.
pub fn empty_dirs(dirs: &[PathBuf], deadline: Deadline, log: &TaskLog) -> Result<(), TaskError> {
    let mut cleaner = ScratchCleaner { dirs, deadline, removed: 0, problems: Vec::new() };
    for dir in dirs {
        cleaner.removed = 0;
        match open_root(dir) {
            Ok(Some(folder)) => {
                cleaner.empty_dir(folder.as_fd(), dir, 0)?;
                log.line(&format!("{}: removed {}", dir.display(), cleaner.removed));
            }
            Ok(None) => cleaner.problems.push(missing_message(dir)),
            Err(message) => cleaner.problems.push(message),
        }
    }
    cleaner.problems.iter().for_each(|problem| log.line(problem));
    match cleaner.problems.is_empty() {
        true => Ok(()),
        false => Err(TaskError::Failed(cleaner.problems.join("; "))),
    }
}

/// The leftovers of each directory, as sentences.
pub fn find_leftovers(dirs: &[PathBuf]) -> Vec<String> {
    dirs.iter().filter_map(|dir| describe_leftovers(dir, dirs)).collect()
}

fn describe_leftovers(dir: &Path, dirs: &[PathBuf]) -> Option<String> {
    let found = match open_root(dir) {
        Ok(Some(_)) => list_content(dir, dirs, 0),
        Ok(None) => return Some(missing_message(dir)),
        Err(message) => return Some(message),
    };
    match found {
        Ok(names) if names.is_empty() => None,
        Ok(names) => {
            let named: Vec<String> = names.iter().take(MAX_NAMED).cloned().collect();
            let more = if names.len() > MAX_NAMED { " and more" } else { "" };
            Some(format!("{} is not empty: {}{more}", dir.display(), named.join(", ")))
        }
        Err(error) => Some(format!("{}: {error}", dir.display())),
    }
}

/// A directory whose disk is not mounted has not been emptied, although it has no content.
fn missing_message(dir: &Path) -> String {
    let dir = dir.display();
    format!("{dir} is not there: mount its disk, make it, or take it out of scratch_dirs")
}

/// The content of a directory, except the path to another scratch directory, which is checked
/// separately.
fn list_content(folder: &Path, dirs: &[PathBuf], depth: usize) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let on_the_way = dirs.iter().any(|dir| *dir != path && dir.starts_with(&path));
        if on_the_way && depth < MAX_DEPTH {
            names.extend(list_content(&path, dirs, depth + 1)?);
        } else if !dirs.contains(&path) {
            names.push(format!("{:?}", path.file_name().unwrap_or_default()));
        }
        if names.len() > MAX_NAMED {
            break;
        }
    }
    Ok(names)
}

/// Opens a directory whose path contains no link.
fn open_root(dir: &Path) -> Result<Option<OwnedFd>, String> {
    let wrong =
        |message: &dyn std::fmt::Display| format!("scratch_dirs: {}: {message}", dir.display());
    match fs::canonicalize(dir) {
        Ok(real) if real == dir => {}
        Ok(real) => {
            return Err(wrong(&format!("leads to {}; write that, if it is meant", real.display())));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(wrong(&error)),
    }
    open(dir, FOLDER, Mode::empty()).map(Some).map_err(|error| wrong(&error))
}

struct ScratchCleaner<'a> {
    dirs: &'a [PathBuf],
    deadline: Deadline<'a>,
    removed: u64,
    problems: Vec<String>,
}

impl ScratchCleaner<'_> {
    /// Empties an open directory.
    fn empty_dir(
        &mut self,
        folder: BorrowedFd,
        at: &Path,
        depth: usize,
    ) -> Result<Remainder, TaskError> {
        // Names that remain are collected, so that each iteration finds fewer.
        let mut stored = BTreeSet::new();
        loop {
            let names = match read_names(folder, &stored) {
                Ok(names) => names,
                Err(error) => {
                    self.add_problem(at, &error.to_string())?;
                    return Ok(Remainder::NotEmpty);
                }
            };
            if names.is_empty() {
                let left = if stored.is_empty() { Remainder::Empty } else { Remainder::NotEmpty };
                return Ok(left);
            }
            for name in names {
                self.deadline.check().map_err(TaskError::Interrupted)?;
                let path = at.join(OsStr::from_bytes(name.as_bytes()));
                if self.remove_entry(folder, &name, &path, depth)? == Remainder::NotEmpty {
                    stored.insert(name);
                }
            }
        }
    }

    fn remove_entry(
        &mut self,
        folder: BorrowedFd,
        name: &CString,
        path: &Path,
        depth: usize,
    ) -> Result<Remainder, TaskError> {
        if self.dirs.iter().any(|dir| dir == path) {
            return Ok(Remainder::NotEmpty);
        }
        let is_folder = statat(folder, name.as_c_str(), AtFlags::SYMLINK_NOFOLLOW)
            .map(|found| FileType::from_raw_mode(found.st_mode) == FileType::Directory);
        let unlinked = match is_folder {
            Ok(false) => unlinkat(folder, name.as_c_str(), AtFlags::empty()),
            Ok(true) => match self.remove_content(folder, name, path, depth)? {
                Remainder::Empty => unlinkat(folder, name.as_c_str(), AtFlags::REMOVEDIR),
                Remainder::NotEmpty => return Ok(Remainder::NotEmpty),
            },
            Err(error) => Err(error),
        };
        match unlinked {
            Ok(()) => {
                self.removed += 1;
                Ok(Remainder::Empty)
            }
            // Another process removed it.
            Err(Errno::NOENT) => Ok(Remainder::Empty),
            // Another process added something meanwhile: the next iteration finds it.
            Err(Errno::NOTEMPTY) => Ok(Remainder::Empty),
            Err(error) => {
                self.add_problem(path, &error.to_string())?;
                Ok(Remainder::NotEmpty)
            }
        }
    }

    fn remove_content(
        &mut self,
        folder: BorrowedFd,
        name: &CString,
        path: &Path,
        depth: usize,
    ) -> Result<Remainder, TaskError> {
        if depth >= MAX_DEPTH {
            self.add_problem(path, "is too deep; remove it by hand")?;
            return Ok(Remainder::NotEmpty);
        }
        let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        match openat2(folder, name.as_c_str(), FOLDER, Mode::empty(), within) {
            Ok(inner) => self.empty_dir(inner.as_fd(), path, depth + 1),
            Err(Errno::NOENT) => Ok(Remainder::Empty),
            Err(Errno::XDEV) => {
                self.add_problem(
                    path,
                    "is another file system; unmount it, or name it in scratch_dirs as well",
                )?;
                Ok(Remainder::NotEmpty)
            }
            Err(error) => {
                self.add_problem(path, &error.to_string())?;
                Ok(Remainder::NotEmpty)
            }
        }
    }

    fn add_problem(&mut self, path: &Path, message: &str) -> Result<(), TaskError> {
        self.problems.push(format!("{}: {message}", path.display()));
        if self.problems.len() > MAX_PROBLEMS {
            let all = self.problems.join("; ");
            return Err(TaskError::Failed(format!("too much cannot be removed: {all}")));
        }
        Ok(())
    }
}

/// A batch of the names in a directory, without those that remain.
fn read_names(folder: BorrowedFd, stored: &BTreeSet<CString>) -> io::Result<Vec<CString>> {
    let entries = Dir::read_from(folder)?;
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        if name != c"." && name != c".." && !stored.contains(name) {
            names.push(name.to_owned());
        }
        if names.len() == BATCH {
            break;
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    fn emptied(dirs: &[PathBuf]) -> Result<(), TaskError> {
        let stop = AtomicBool::new(false);
        empty_dirs(dirs, Deadline::new(Duration::MAX, &stop), &TaskLog::default())
    }

    #[test]
    fn directories_are_emptied_without_following_links() {
        let folder = tempfile::tempdir().unwrap();
        let base = fs::canonicalize(folder.path()).unwrap();
        let (scratch, outside) = (base.join("scratch"), base.join("outside"));
        fs::create_dir_all(scratch.join("a/b/.c")).unwrap();
        fs::create_dir_all(outside.join("d")).unwrap();
        fs::write(outside.join("d/precious"), "x").unwrap();
        fs::write(scratch.join("a/b/.c/file"), "x").unwrap();
        fs::write(scratch.join(OsStr::from_bytes(b"\xff odd")), "x").unwrap();
        symlink(&outside, scratch.join("a/out")).unwrap();
        symlink(outside.join("d/precious"), scratch.join("file-out")).unwrap();
        symlink("nowhere", scratch.join("dangling")).unwrap();
        for number in 0..BATCH + 10 {
            fs::write(scratch.join(format!("a/{number}")), "").unwrap();
        }
        let dirs = [scratch.clone()];
        let left = find_leftovers(&dirs);
        assert!(left.len() == 1 && left[0].contains("is not empty"), "{left:?}");
        for _ in 0..2 {
            emptied(&dirs).unwrap();
            assert!(find_leftovers(&dirs).is_empty());
            assert!(scratch.is_dir(), "the folder itself stays");
        }
        assert_eq!(fs::read(outside.join("d/precious")).unwrap(), b"x");
    }

    #[test]
    fn missing_directories_are_problems() {
        let folder = tempfile::tempdir().unwrap();
        let base = fs::canonicalize(folder.path()).unwrap();
        fs::create_dir(base.join("a")).unwrap();
        fs::write(base.join("a/file"), "x").unwrap();
        let dirs = [base.join("missing"), base.join("a")];
        let Err(TaskError::Failed(message)) = emptied(&dirs) else {
            panic!("the directory was emptied")
        };
        assert!(message.contains("missing is not there") && message.contains("mount"), "{message}");
        assert!(!base.join("a/file").exists(), "the others are emptied all the same");
        assert_eq!(find_leftovers(&dirs).len(), 1);
    }

    #[test]
    fn scratch_links_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let base = fs::canonicalize(folder.path()).unwrap();
        fs::create_dir(base.join("real")).unwrap();
        fs::write(base.join("real/precious"), "x").unwrap();
        symlink(base.join("real"), base.join("scratch")).unwrap();
        let dirs = [base.join("scratch")];
        let Err(TaskError::Failed(message)) = emptied(&dirs) else { panic!("a link was followed") };
        assert!(message.contains("leads to") && message.contains("scratch_dirs"), "{message}");
        assert_eq!(find_leftovers(&dirs).len(), 1);
        assert!(base.join("real/precious").exists());
    }

    #[test]
    fn nested_scratch_directories_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let base = fs::canonicalize(folder.path()).unwrap();
        let dirs = [base.join("s"), base.join("s/a/b")];
        fs::create_dir_all(base.join("s/a/b/c")).unwrap();
        fs::write(base.join("s/a/other"), "x").unwrap();
        assert_eq!(find_leftovers(&dirs).len(), 2);
        emptied(&dirs).unwrap();
        assert!(find_leftovers(&dirs).is_empty());
        assert!(base.join("s/a/b").is_dir() && !base.join("s/a/other").exists());
    }
}
