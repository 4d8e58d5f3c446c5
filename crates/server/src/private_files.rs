//! The files of the server are its user's own: databases, keys and simulated hardware. New files
//! are made so by the umask; what an older farrier made is tightened at the start.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Folders within folders; the images and the simulator need three.
const MAX_DEPTH: usize = 8;
/// The permissions of a group and of others.
const FOREIGN: u32 = 0o077;

/// The prefixes of the names of Farrier's own files and folders. Files of others in the same folder
/// are left alone.
const OWN_NAMES: [&str; 8] =
    ["farrier.db", "seal.key", "admin.token", "manifest.", "images", "sim", "audit-", "lock"];

/// Makes the folder if it is missing, and takes all rights of other users on it and on the files of
/// Farrier in it. Returns how many files and folders were changed.
pub fn make_private(dir: &Path) -> io::Result<usize> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    // The folder itself may be a link.
    let dir = dir.canonicalize()?;
    let mut changed = take_rights(&dir)?;
    for entry in std::fs::read_dir(&dir)? {
        let entry = entry?;
        if is_own(&entry.file_name()) {
            changed += tighten(&entry.path(), 1)?;
        }
    }
    Ok(changed)
}

fn is_own(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| OWN_NAMES.iter().any(|own| name.starts_with(own)))
}

/// Writes a private file complete or not at all. An error of the kind `AlreadyExists` means that
/// the file was there.
pub fn create_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let part = path.with_extension(format!("{}.new", std::process::id()));
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(&part)?;
    let written = file
        .write_all(bytes)
        .and_then(|()| file.sync_all())
        .and_then(|()| std::fs::hard_link(&part, path));
    std::fs::remove_file(&part)?;
    written
}

/// Takes the rights of other users; returns 1 if there were any.
fn take_rights(path: &Path) -> io::Result<usize> {
    let mode = path.metadata()?.permissions().mode();
    if mode & FOREIGN == 0 {
        return Ok(0);
    }
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode & !FOREIGN))?;
    Ok(1)
}

fn tighten(path: &Path, depth: usize) -> io::Result<usize> {
    let metadata = path.symlink_metadata()?;
    // The target of a link is not ours to change.
    if metadata.is_symlink() {
        return Ok(0);
    }
    let mut changed = take_rights(path)?;
    if metadata.is_dir() && depth < MAX_DEPTH {
        for entry in std::fs::read_dir(path)? {
            match tighten(&entry?.path(), depth + 1) {
                // A file that another replica has just removed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => changed += other?,
            }
        }
    }
    Ok(changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_and_its_files_are_made_private() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        make_private(&data).unwrap();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&data), 0o700);
        let (inner, file, other) = (data.join("sim"), data.join("sim/m-1"), dir.path().join("o"));
        let foreign = data.join("notes.txt");
        std::fs::create_dir(&inner).unwrap();
        for path in [&file, &other, &foreign] {
            std::fs::write(path, "x").unwrap();
        }
        std::os::unix::fs::symlink(&other, data.join("seal.key")).unwrap();
        let open = [(&data, 0o755), (&inner, 0o775), (&file, 0o664)];
        for (path, open) in open.into_iter().chain([(&other, 0o644), (&foreign, 0o644)]) {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(open)).unwrap();
        }
        // Through a link it is the same folder.
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&data, &link).unwrap();
        assert_eq!(make_private(&link).unwrap(), 3);
        assert_eq!((mode(&data), mode(&inner), mode(&file)), (0o700, 0o700, 0o600));
        assert_eq!(mode(&other), 0o644, "the target of a link");
        assert_eq!(mode(&foreign), 0o644, "a file of others");
        assert_eq!(make_private(&data).unwrap(), 0);
    }

    #[test]
    fn a_file_is_written_whole_and_never_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("admin.token");
        create_whole(&path, b"one").unwrap();
        let again = create_whole(&path, b"two").unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&path).unwrap(), b"one");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
