//! A test environment: a directory as the machine, with a file as its disk, a fake `/sys`, and a
//! system in place of a mount.

use crate::server::{Script, Server};
use agent::cmdline::BootParameters;
use agent::platform::{FeedError, Platform, Tool};
use agent::timing::Timing;
use agent::volume::FileSystem;
use agent::{DeployConfig, FinalAction};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::fs;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

pub const MIB: usize = 1024 * 1024;
pub const TOKEN: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
pub const MAC: &str = "aa:bb:cc:dd:ee:01";
/// The public half of the key that the test server signs with.
pub const KEY: &str = "ea4a6c63e29c520abef5507b132ec5f9954776aebebe7b92421eea691446d22c";
/// The old content of the disk.
pub const OLD: u8 = 0xAA;

pub struct TestMachine {
    pub folder: tempfile::TempDir,
    pub tools: Mutex<Vec<String>>,
}

impl TestMachine {
    /// A machine with one disk of this size.
    pub fn new(disk_bytes: usize) -> Self {
        let machine = Self { folder: tempfile::tempdir().unwrap(), tools: Mutex::default() };
        machine.write("sys/class/net/eth0/type", "1\n");
        machine.write("sys/class/net/eth0/address", format!("{MAC}\n"));
        // Enough memory for every image, so that it is fetched once.
        machine.write("proc/meminfo", "MemTotal: 9 kB\nMemAvailable:    4000000 kB\n");
        machine.add_disk("vda", disk_bytes);
        machine.add_system();
        machine
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    pub fn add_disk(&self, name: &str, bytes: usize) {
        self.write(&format!("dev/{name}"), vec![OLD; bytes]);
        self.describe_disk(name, bytes);
    }

    pub fn describe_disk(&self, name: &str, bytes: usize) {
        self.write(&format!("sys/block/{name}/size"), format!("{}\n", bytes / 512));
        self.write(&format!("sys/block/{name}/serial"), format!("serial-of-{name}\n"));
    }

    fn add_system(&self) {
        let me = fs::metadata(self.folder.path()).unwrap();
        self.write("system/etc/os-release", "ID=tiny\n");
        let passwd = format!("root:x:{}:{}::/root:/bin/sh\n", me.uid(), me.gid());
        self.write("system/etc/passwd", passwd);
    }

    pub fn disk(&self) -> Vec<u8> {
        fs::read(self.path("dev/vda")).unwrap()
    }

    /// Runs the agent to its end.
    pub fn run(&self, server: &Server) -> FinalAction {
        self.run_at(server.address, self)
    }

    pub fn run_at(&self, address: SocketAddr, platform: &dyn Platform) -> FinalAction {
        let cmdline = format!(
            "farrier.url=http://{address} farrier.token={TOKEN} farrier.mac={MAC} farrier.key={KEY}"
        );
        let boot = BootParameters::parse(&cmdline).unwrap();
        let config =
            DeployConfig { boot, root: self.folder.path().into(), timing: Timing::for_tests() };
        agent::run(&config, platform).unwrap()
    }
}

/// Mounts nothing: the system is a directory.
impl Platform for TestMachine {
    fn mount(&self, _: &Path, _: FileSystem, _: &str, _: &str) -> io::Result<PathBuf> {
        Ok(self.path("system"))
    }

    fn unmount(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn run(&self, tool: Tool, _: &[&str], _: &str) -> Result<(), String> {
        self.tools.lock().unwrap().push(tool.program().into());
        Ok(())
    }

    fn run_with_source(&self, tool: Tool, _: &[&str], _: &mut dyn Read) -> Result<(), FeedError> {
        Err(FeedError::Tool(format!("{} is not on this stage", tool.program())))
    }
}

/// Pseudo-random bytes with the signature of a file system, so that it is mounted.
pub fn image(bytes: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut image: Vec<u8> = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    })
    .take(bytes.div_ceil(8))
    .flatten()
    .take(bytes)
    .collect();
    image[1080..1082].copy_from_slice(&[0x53, 0xEF]);
    image
}

pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn granted(kind: &str, image: &[u8]) -> Value {
    json!({
        "run": "op-1", "machine": "m-1", "hostname": "node-1", "user": "root",
        "authorized_keys": ["ssh-ed25519 AAAA x"], "root_disk": "",
        "image": {
            "name": "tiny", "kind": kind, "url": "/deploy/image", "sha256": sha256(image), "size": image.len(),
        },
        "stamp": "tiny 1",
    })
}

/// A script without faults: the machine is told to reboot once installed, or to stop once failed.
pub fn successful_script(kind: &str, image: Vec<u8>) -> Script {
    Script {
        granted: granted(kind, &image),
        image,
        then: [("installed", "reboot"), ("failed", "stop")].into(),
        ..Script::default()
    }
}

/// Skips a test for what this computer lacks. On CI that is a failure: a test that is silently
/// never run there proves nothing.
pub fn skip(missing: &str) {
    assert!(std::env::var_os("CI").is_none(), "this is CI, and {missing}");
    eprintln!("skipped: {missing}");
}

/// Waits for a condition. The deadline is generous: it only ends a wait for what never happens.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let since = Instant::now();
    while !holds() {
        assert!(since.elapsed() < Duration::from_secs(120), "{what} did not come to be");
        std::thread::sleep(Duration::from_millis(5));
    }
}
