//! The files of the server are its user's own: databases, keys and simulated hardware. New files
//! are made so by the umask; what an older farrier made is tightened at the start.

use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

/// Folders within folders; the images and the simulator need three.
const MAX_DEPTH: usize = 8;
/// The permissions of a group and of others.
const FOREIGN: u32 = 0o077;

/// Makes the folder if it is missing, and takes all rights of other users on what is in it. Returns
/// how many files and folders were changed.
pub fn make_private(dir: &Path) -> io::Result<usize> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    tighten(dir, 0)
}

fn tighten(path: &Path, depth: usize) -> io::Result<usize> {
    let metadata = path.symlink_metadata()?;
    // The target of a link is not ours to change.
    if metadata.is_symlink() {
        return Ok(0);
    }
    let mut changed = 0;
    let mode = metadata.permissions().mode();
    if mode & FOREIGN != 0 {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode & !FOREIGN))?;
        changed += 1;
    }
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
        std::fs::create_dir(&inner).unwrap();
        for path in [&file, &other] {
            std::fs::write(path, "x").unwrap();
        }
        std::os::unix::fs::symlink(&other, data.join("link")).unwrap();
        for (path, open) in [(&data, 0o755), (&inner, 0o775), (&file, 0o664), (&other, 0o644)] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(open)).unwrap();
        }
        assert_eq!(make_private(&data).unwrap(), 3);
        assert_eq!((mode(&data), mode(&inner), mode(&file)), (0o700, 0o700, 0o600));
        assert_eq!(mode(&other), 0o644, "the target of a link");
        assert_eq!(make_private(&data).unwrap(), 0);
    }
}
