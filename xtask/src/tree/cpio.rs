//! The archive that a kernel unpacks as its first root: "newc" cpio. All files belong to root and
//! have no date, so the same files always give the same bytes.

use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const MAGIC: &str = "070701";
const END: &[u8] = b"TRAILER!!!";
const FOLDER: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;
const PERMISSIONS: u32 = 0o7777;
/// The maximum depth of directories; more is a loop or a mistake.
const MAX_DEPTH: usize = 64;

/// Writes the content of a directory, sorted by name.
pub fn write_archive(root: &Path, out: &mut impl Write) -> io::Result<()> {
    let mut number = 0;
    write_directory(root, &[], &mut number, out, MAX_DEPTH)?;
    write_entry(out, 0, 0, END, &[])?;
    out.flush()
}

fn write_directory(
    path: &Path,
    name: &[u8],
    number: &mut u32,
    out: &mut impl Write,
    depth: usize,
) -> io::Result<()> {
    let Some(depth) = depth.checked_sub(1) else {
        return Err(io::Error::other(format!("{} lies too deep", path.display())));
    };
    let mut inside = fs::read_dir(path)?.collect::<io::Result<Vec<_>>>()?;
    inside.sort_by_key(fs::DirEntry::file_name);
    for one in inside {
        let path = one.path();
        let mut full = name.to_vec();
        if !full.is_empty() {
            full.push(b'/');
        }
        full.extend(one.file_name().as_bytes());
        let metadata = fs::symlink_metadata(&path)?;
        let mode = metadata.permissions().mode() & PERMISSIONS;
        *number += 1;
        if metadata.is_dir() {
            write_entry(out, *number, FOLDER | mode, &full, &[])?;
            write_directory(&path, &full, number, out, depth)?;
        } else if metadata.is_symlink() {
            write_entry(
                out,
                *number,
                LINK | mode,
                &full,
                fs::read_link(&path)?.as_os_str().as_bytes(),
            )?;
        } else {
            write_entry(out, *number, FILE | mode, &full, &fs::read(&path)?)?;
        }
    }
    Ok(())
}

/// Writes a header of thirteen numbers in eight hexadecimal digits, the name and the content; both
/// padded to four bytes.
fn write_entry(
    out: &mut impl Write,
    number: u32,
    mode: u32,
    name: &[u8],
    data: &[u8],
) -> io::Result<()> {
    let too_large = |_| io::Error::other("a file is too large for this archive");
    let size = u32::try_from(data.len()).map_err(too_large)?;
    let name_size = u32::try_from(name.len() + 1).map_err(too_large)?;
    let numbers = [number, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0];
    let header: String = numbers.iter().map(|number| format!("{number:08x}")).collect();
    out.write_all(MAGIC.as_bytes())?;
    out.write_all(header.as_bytes())?;
    out.write_all(name)?;
    out.write_all(&[0])?;
    pad(out, MAGIC.len() + header.len() + name.len() + 1)?;
    out.write_all(data)?;
    pad(out, data.len())
}

fn pad(out: &mut impl Write, written: usize) -> io::Result<()> {
    out.write_all(&[0; 3][..written.next_multiple_of(4) - written])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::process::{Command, Stdio};

    fn sample(name: &str) -> std::path::PathBuf {
        let root = std::env::temp_dir().join(format!("xtask-cpio-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(root.join("etc/deep")).unwrap();
        fs::write(root.join("etc/deep/odd"), "12345").unwrap();
        fs::write(root.join("init"), "#!/bin/sh\n").unwrap();
        fs::set_permissions(root.join("init"), fs::Permissions::from_mode(0o755)).unwrap();
        symlink("../init", root.join("etc/link")).unwrap();
        root
    }

    #[test]
    fn every_entry_begins_at_a_multiple_of_four_and_the_end_is_marked() {
        let root = sample("aligned");
        let mut bytes = Vec::new();
        write_archive(&root, &mut bytes).unwrap();
        fs::remove_dir_all(root).unwrap();
        assert_eq!(bytes.len() % 4, 0);
        let found = |text: &[u8]| bytes.windows(text.len()).position(|window| window == text);
        assert_eq!(found(b"TRAILER!!!").unwrap() % 4, 2, "after a header of 110 bytes");
        assert_eq!(found(b"12345").unwrap() % 4, 0);
        assert!(bytes.starts_with(b"070701"));
    }

    /// Another program reads the archive back, if busybox is installed.
    #[test]
    fn cpio_reads_it_back() {
        let cpio = |arguments: &[&str]| {
            let mut command = Command::new("busybox");
            command.arg("cpio").args(arguments);
            command
        };
        if !crate::shell::succeeds(Command::new("busybox").arg("true")) {
            eprintln!("left out: there is no busybox");
            return;
        }
        let root = sample("read");
        let archive = root.with_extension("cpio");
        write_archive(&root, &mut fs::File::create(&archive).unwrap()).unwrap();
        let mut list = cpio(&["-tv"]);
        list.stdin(fs::File::open(&archive).unwrap()).stderr(Stdio::null());
        let reported = String::from_utf8(list.output().unwrap().stdout).unwrap();
        fs::remove_dir_all(root).unwrap();
        fs::remove_file(archive).unwrap();
        for line in
            ["drwx", "etc/deep/odd", "-rwxr-xr-x 0/0        10 1970-01-01", "etc/link -> ../init"]
        {
            assert!(reported.contains(line), "{line} is not in\n{reported}");
        }
    }
}
