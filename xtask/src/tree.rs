//! Builds a root file system for a ramdisk or an image: a directory that is filled file by file,
//! each program with the libraries it needs, and packed at the end.

mod cpio;
mod libraries;
pub mod modules;

use crate::shell::{self, Failure};
use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const NEXT: &str = "make room in the target folder, or remove what is in it";
const BUSYBOX: &str = "bin/busybox";

/// The directory of the tree, and the unpacked packages that it is filled from.
pub struct RootTree {
    root: PathBuf,
    packages: PathBuf,
}

impl RootTree {
    /// Creates an empty tree; deletes what was there before.
    pub fn new(root: PathBuf, packages: PathBuf) -> Result<Self, Failure> {
        if root.exists() {
            fs::remove_dir_all(&root).map_err(|error| io_failure(&root, &error))?;
        }
        fs::create_dir_all(&root).map_err(|error| io_failure(&root, &error))?;
        Ok(Self { root, packages })
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn packages(&self) -> &Path {
        &self.packages
    }

    pub fn create_directory(&self, path: &str) -> Result<PathBuf, Failure> {
        let folder = self.root.join(path);
        fs::create_dir_all(&folder).map_err(|error| io_failure(&folder, &error))?;
        Ok(folder)
    }

    pub fn write_file(&self, path: &str, text: &str, mode: u32) -> Result<(), Failure> {
        let file = self.prepare_path(path)?;
        fs::write(&file, text)
            .and_then(|()| fs::set_permissions(&file, fs::Permissions::from_mode(mode)))
            .map_err(|error| io_failure(&file, &error))
    }

    /// Copies a file from anywhere.
    pub fn copy_file(&self, from: &Path, path: &str, mode: u32) -> Result<(), Failure> {
        let file = self.prepare_path(path)?;
        fs::copy(from, &file)
            .and_then(|_| fs::set_permissions(&file, fs::Permissions::from_mode(mode)))
            .map_err(|error| io_failure(from, &error))
    }

    pub fn add_link(&self, path: &str, target: &str) -> Result<(), Failure> {
        let link = self.prepare_path(path)?;
        symlink(target, &link).map_err(|error| io_failure(&link, &error))
    }

    /// Copies a program of the packages, with the libraries it needs.
    pub fn add_program(&self, from: &str, path: &str) -> Result<(), Failure> {
        let source = self.packages.join(from);
        self.copy_file(&source, path, 0o755)?;
        for (file, position) in libraries::libraries_of(&self.packages, &source)? {
            if !self.root.join(&position).exists() {
                self.copy_file(&file, &position, 0o755)?;
            }
        }
        Ok(())
    }

    /// Installs busybox and a link for each of its applets. Programs in /sbin take precedence over
    /// them.
    pub fn add_busybox(&self) -> Result<(), Failure> {
        self.add_program(BUSYBOX, BUSYBOX)?;
        let mut list = Command::new(self.root.join(BUSYBOX));
        let applets = shell::read_output(list.arg("--list"), "this must be an x86-64 computer")?;
        for applet in applets.lines().filter(|applet| *applet != "busybox") {
            self.add_link(&format!("bin/{applet}"), "busybox")?;
        }
        // The path where the kernel looks for it.
        self.add_link("sbin/modprobe", "../bin/busybox")
    }

    /// Copies a directory over the tree.
    pub fn copy_over(&self, folder: &Path) -> Result<(), Failure> {
        let mut from = folder.as_os_str().to_owned();
        from.push("/.");
        let mut copy = Command::new("cp");
        copy.arg("-a").arg(from).arg(&self.root);
        shell::run(&mut copy, "name a folder whose files stand as they shall stand in the ramdisk")
    }

    /// Packs the tree as a gzipped ramdisk. Returns its size in bytes.
    pub fn pack(&self, out: &Path) -> Result<u64, Failure> {
        let file = File::create(out).map_err(|error| io_failure(out, &error))?;
        let mut gzip = Command::new("gzip");
        let mut child =
            gzip.args(["-6", "-n"]).stdin(Stdio::piped()).stdout(file).spawn().map_err(
                |error| Failure::new(format!("gzip did not start: {error}"), "install gzip"),
            )?;
        let written = match child.stdin.take() {
            Some(pipe) => cpio::write_archive(&self.root, &mut BufWriter::new(pipe)),
            None => Err(io::Error::other("gzip takes no input")),
        };
        let ended = child.wait();
        written.map_err(|error| io_failure(out, &error))?;
        if !ended.is_ok_and(|status| status.success()) {
            return Err(Failure::new("gzip failed", NEXT));
        }
        fs::metadata(out).map(|metadata| metadata.len()).map_err(|error| io_failure(out, &error))
    }

    /// The path of a file, with its directory created.
    fn prepare_path(&self, path: &str) -> Result<PathBuf, Failure> {
        let file = self.root.join(path);
        match file.parent() {
            Some(folder) => {
                fs::create_dir_all(folder).map_err(|error| io_failure(folder, &error))?
            }
            None => return Err(Failure::new(format!("{path} is no place for a file"), NEXT)),
        }
        Ok(file)
    }
}

/// A command that runs a program of the unpacked packages on this host, with its own libraries.
pub fn packaged_command(packages: &Path, program: &str) -> Command {
    let folders = libraries::FOLDERS.map(|folder| packages.join(folder).display().to_string());
    let mut command = Command::new(packages.join(libraries::LOADER));
    command.arg("--library-path").arg(folders.join(":")).arg(packages.join(program));
    command
}

pub fn io_failure(path: &Path, error: &io::Error) -> Failure {
    Failure::new(format!("{}: {error}", path.display()), NEXT)
}
