//! Operations that need root on a real machine: mounting, and running the programs of the deploy
//! environment. They are behind a trait, so that everything else can be tested without root.

use crate::volume::FileSystem;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::ffi::CString;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The programs that the deploy environment must contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tool {
    /// Rereads a partition table. From busybox.
    Blockdev,
    Sfdisk,
    MkfsExt4,
    MkfsVfat,
    Extlinux,
    /// From busybox.
    Tar,
}

impl Tool {
    pub const fn program(self) -> &'static str {
        match self {
            Self::Blockdev => "blockdev",
            Self::Sfdisk => "sfdisk",
            Self::MkfsExt4 => "mkfs.ext4",
            Self::MkfsVfat => "mkfs.vfat",
            Self::Extlinux => "extlinux",
            Self::Tar => "tar",
        }
    }
}

/// The files that the deploy environment must contain: boot loaders for a disk with a tar image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BundledFile {
    /// The boot code of syslinux for the first sector of a GPT disk.
    BiosBootCode,
    SystemdBoot,
}

impl BundledFile {
    pub fn path(self, root: &Path) -> PathBuf {
        root.join("usr/lib/farrier").join(match self {
            Self::BiosBootCode => "gptmbr.bin",
            Self::SystemdBoot => "systemd-bootx64.efi",
        })
    }
}

/// The directories of programs, in search order.
const PROGRAM_DIRS: [&str; 4] = ["/sbin", "/bin", "/usr/sbin", "/usr/bin"];
/// The directory of mount points, in memory.
const MOUNT_DIR: &str = "/run/farrier-agent";
/// A program that takes longer hangs; creating a file system on a large disk takes a minute.
const TOOL_TIMEOUT: Duration = Duration::from_secs(600);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The limit of a program's stored stderr.
const MAX_STDERR_BYTES: u64 = 4 * 1024;
const PIPE_BYTES: usize = 64 * 1024;
const UNMOUNT_TRIES: u32 = 20;
const UNMOUNT_PAUSE: Duration = Duration::from_millis(250);

/// The reason why feeding a program failed.
#[derive(Debug)]
pub enum FeedError {
    /// The source could not be read.
    Source(io::Error),
    /// The program failed; the text is its error.
    Tool(String),
}

pub trait Platform: Sync {
    /// Mounts a file system and returns the mount point. The name distinguishes concurrent mounts.
    fn mount(
        &self,
        device: &Path,
        kind: FileSystem,
        options: &str,
        name: &str,
    ) -> io::Result<PathBuf>;

    fn unmount(&self, at: &Path) -> io::Result<()>;

    /// Runs a program to its end, with this text on its stdin.
    fn run(&self, tool: Tool, arguments: &[&str], input: &str) -> Result<(), String>;

    /// Runs a program with the whole source on its stdin.
    fn run_with_source(
        &self,
        tool: Tool,
        arguments: &[&str],
        source: &mut dyn Read,
    ) -> Result<(), FeedError>;
}

/// The implementation for a real machine.
pub struct RealPlatform;

impl Platform for RealPlatform {
    fn mount(
        &self,
        device: &Path,
        kind: FileSystem,
        options: &str,
        name: &str,
    ) -> io::Result<PathBuf> {
        let at = Path::new(MOUNT_DIR).join(name);
        fs::create_dir_all(&at)?;
        // No program of an image is run here, and no device node of it is opened.
        let flags = MountFlags::NODEV | MountFlags::NOSUID | MountFlags::NOEXEC;
        let options = CString::new(options)?;
        mount(device, &at, kind.as_str(), flags, options.as_c_str())?;
        Ok(at)
    }

    /// Unmounting flushes all writes. The mount may be busy for a moment, so it is retried.
    fn unmount(&self, at: &Path) -> io::Result<()> {
        let mut tries = 1;
        loop {
            match unmount(at, UnmountFlags::empty()) {
                Ok(()) => return Ok(()),
                Err(rustix::io::Errno::BUSY) if tries < UNMOUNT_TRIES => {
                    tries += 1;
                    thread::sleep(UNMOUNT_PAUSE);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn run(&self, tool: Tool, arguments: &[&str], input: &str) -> Result<(), String> {
        let mut running = RunningProgram::start(tool, arguments)?;
        let fed = running.feed(input.as_bytes());
        running.wait(Some(TOOL_TIMEOUT))?;
        fed.map_err(|error| format!("{} did not read its input: {error}", tool.program()))
    }

    fn run_with_source(
        &self,
        tool: Tool,
        arguments: &[&str],
        source: &mut dyn Read,
    ) -> Result<(), FeedError> {
        let mut running = RunningProgram::start(tool, arguments).map_err(FeedError::Tool)?;
        let mut piece = vec![0; PIPE_BYTES];
        // Bounded by the source, which its owner can end.
        loop {
            let count = match source.read(&mut piece) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    running.kill();
                    return Err(FeedError::Source(error));
                }
            };
            if running.feed(&piece[..count]).is_err() {
                // The program ended before its input. Its exit status tells whether it had read all
                // it needs.
                break;
            }
        }
        running.wait(None).map_err(FeedError::Tool)
    }
}

/// A program that was started.
struct RunningProgram {
    program: &'static str,
    child: Child,
    stderr: Option<thread::JoinHandle<String>>,
}

impl RunningProgram {
    fn start(tool: Tool, arguments: &[&str]) -> Result<Self, String> {
        let program = tool.program();
        let path = PROGRAM_DIRS
            .iter()
            .map(|folder| Path::new(folder).join(program))
            .find(|path| path.exists());
        let path = path.ok_or_else(|| format!("the deploy environment has no {program}"))?;
        let mut command = Command::new(path);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child =
            command.spawn().map_err(|error| format!("{program} does not start: {error}"))?;
        let message =
            child.stderr.take().map(|stderr| thread::spawn(move || read_beginning(stderr)));
        Ok(Self { program, child, stderr: message })
    }

    fn feed(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.child.stdin {
            Some(stdin) => stdin.write_all(bytes),
            None => Ok(()),
        }
    }

    /// Waits for the program's end; an error contains its stderr.
    fn wait(mut self, limit: Option<Duration>) -> Result<(), String> {
        drop(self.child.stdin.take());
        let since = Instant::now();
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if limit.is_some_and(|limit| since.elapsed() > limit) => {
                    self.kill();
                    return Err(format!(
                        "{} did not end within {} s",
                        self.program,
                        TOOL_TIMEOUT.as_secs()
                    ));
                }
                Ok(None) => thread::sleep(POLL_INTERVAL),
                Err(error) => return Err(format!("{} is lost: {error}", self.program)),
            }
        };
        if status.success() {
            return Ok(());
        }
        let message =
            self.stderr.take().and_then(|message| message.join().ok()).unwrap_or_default();
        let message: Vec<&str> =
            message.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        Err(format!("{} ended with {status}: {}", self.program, message.join("; ")))
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The beginning of the output. The rest is read and dropped, so that the program never blocks on a
/// full pipe.
fn read_beginning(mut from: impl Read) -> String {
    let mut message = Vec::new();
    let _ = Read::take(&mut from, MAX_STDERR_BYTES).read_to_end(&mut message);
    let _ = io::copy(&mut from, &mut io::sink());
    String::from_utf8_lossy(&message).into_owned()
}
