//! With a kernel: loop devices as disks, and real mounts. Only root can do that.

use crate::environment::{MIB, TestMachine, skip, successful_script};
use crate::server::Server;
use agent::FinalAction;
use agent::platform::{FeedError, Platform, RealPlatform, Tool};
use agent::volume::FileSystem;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

const PARTITION_AT: usize = MIB;

/// A loop device, detached at the end of the test.
struct LoopDevice(String);

impl LoopDevice {
    fn new(file: &Path, offset: usize) -> Option<Self> {
        let output = Command::new("losetup")
            .args(["--find", "--show", "--partscan", "--offset", &offset.to_string()])
            .arg(file)
            .output()
            .ok()?;
        let path = String::from_utf8(output.stdout).ok()?.trim().to_owned();
        (output.status.success() && !path.is_empty()).then_some(Self(path))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

/// Like `RealPlatform`, with its own directory for mounts, because tests run in parallel.
struct SeparateMounts(PathBuf);

impl Platform for SeparateMounts {
    fn mount(
        &self,
        device: &Path,
        kind: FileSystem,
        options: &str,
        name: &str,
    ) -> io::Result<PathBuf> {
        let at = self.0.join(name);
        fs::create_dir_all(&at)?;
        let options = if options.is_empty() { "nodev" } else { options };
        let output = Command::new("mount")
            .args(["-t", kind.as_str(), "-o", options])
            .arg(device)
            .arg(&at)
            .output()?;
        if output.status.success() {
            Ok(at)
        } else {
            Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()))
        }
    }

    fn unmount(&self, at: &Path) -> io::Result<()> {
        RealPlatform.unmount(at)
    }

    fn run(&self, tool: Tool, arguments: &[&str], input: &str) -> Result<(), String> {
        RealPlatform.run(tool, arguments, input)
    }

    fn run_with_source(
        &self,
        tool: Tool,
        arguments: &[&str],
        source: &mut dyn Read,
    ) -> Result<(), FeedError> {
        RealPlatform.run_with_source(tool, arguments, source)
    }
}

/// Creates a file system with a small system in it, as the content of a partition.
fn file_system(machine: &TestMachine, make: &[&str], bytes: usize) -> Option<Vec<u8>> {
    let path = machine.path("partition");
    fs::File::create(&path).unwrap().set_len(bytes as u64).unwrap();
    let made = Command::new(make[0]).args(&make[1..]).arg(&path).output().ok()?;
    assert!(made.status.success(), "{make:?}: {}", String::from_utf8_lossy(&made.stderr));
    let device = LoopDevice::new(&path, 0)?;
    let at = machine.path("filled");
    fs::create_dir_all(&at).unwrap();
    let mounted = Command::new("mount").arg(&device.0).arg(&at).output().ok()?;
    if !mounted.status.success() {
        eprintln!("{}", String::from_utf8_lossy(&mounted.stderr));
        return None;
    }
    fs::create_dir_all(at.join("etc/ssh")).unwrap();
    fs::create_dir_all(at.join("srv/ann")).unwrap();
    fs::write(at.join("etc/os-release"), "ID=tiny\n").unwrap();
    fs::write(
        at.join("etc/passwd"),
        "root:x:0:0::/root:/bin/sh\nann:x:1234:1235::/srv/ann:/bin/sh\n",
    )
    .unwrap();
    fs::write(at.join("etc/ssh/ssh_host_rsa_key"), "everybody has it").unwrap();
    // Another mount namespace may keep the file system mounted, so unmounting may write nothing.
    assert!(Command::new("sync").arg("--file-system").arg(&at).status().unwrap().success());
    assert!(Command::new("umount").arg(&at).status().unwrap().success());
    drop(device);
    Some(fs::read(&path).unwrap())
}

/// A disk image with one partition in an MBR table.
fn partitioned(partition: &[u8]) -> Vec<u8> {
    let mut image = vec![0; PARTITION_AT + partition.len()];
    let sectors = |bytes: usize| u32::try_from(bytes / 512).unwrap().to_le_bytes();
    image[446] = 0x80;
    image[450] = 0x83;
    image[454..458].copy_from_slice(&sectors(PARTITION_AT));
    image[458..462].copy_from_slice(&sectors(partition.len()));
    image[510..512].copy_from_slice(&[0x55, 0xAA]);
    image[PARTITION_AT..].copy_from_slice(partition);
    image
}

/// Writes and installs an image, then checks the disk.
fn installs(make: &[&str], bytes: usize) {
    let machine = TestMachine::new(0);
    let disk_bytes = bytes + 4 * MIB;
    let backing = machine.path("backing");
    fs::File::create(&backing).unwrap().set_len(disk_bytes as u64).unwrap();
    // A CI kernel may not scan loop devices for partitions, so the partition has its own loop
    // device.
    let (Some(disk), Some(partition)) =
        (LoopDevice::new(&backing, 0), LoopDevice::new(&backing, PARTITION_AT))
    else {
        return skip("loop devices need root");
    };
    let Some(partition_bytes) = file_system(&machine, make, bytes) else {
        return skip(&format!("there is no {} here, or it cannot be mounted", make[0]));
    };
    fs::remove_file(machine.path("dev/vda")).unwrap();
    symlink(&disk.0, machine.path("dev/vda")).unwrap();
    symlink(&partition.0, machine.path("dev/vda1")).unwrap();
    machine.describe_disk("vda", disk_bytes);
    machine.write("sys/block/vda/vda1/partition", "1\n");

    let mut script = successful_script("raw", partitioned(&partition_bytes));
    script.granted["user"] = "ann".into();
    let server = Server::start(script);
    let platform = SeparateMounts(machine.path("mounts"));
    assert_eq!(
        machine.run_at(server.address, &platform),
        FinalAction::Reboot,
        "{}",
        server.last_report()
    );

    let at = platform.mount(Path::new(&partition.0), FileSystem::Ext4, "", "root");
    let at = at.or_else(|_| platform.mount(Path::new(&partition.0), FileSystem::Xfs, "", "root"));
    let at = at
        .or_else(|_| platform.mount(Path::new(&partition.0), FileSystem::Btrfs, "", "root"))
        .unwrap();
    let hostname = fs::read_to_string(at.join("etc/hostname"));
    let keys = fs::metadata(at.join("srv/ann/.ssh/authorized_keys"))
        .map(|keys| (keys.uid(), keys.gid(), keys.mode()));
    let old_key = at.join("etc/ssh/ssh_host_rsa_key").exists();
    let public = fs::read_to_string(at.join("etc/ssh/ssh_host_ed25519_key.pub"));
    platform.unmount(&at).unwrap();
    assert_eq!(hostname.unwrap(), "node-1\n");
    assert_eq!(keys.unwrap(), (1234, 1235, 0o100_600));
    assert!(!old_key);
    assert_eq!(server.last_report()["host_keys"][0], public.unwrap().trim_end());
}

#[test]
fn a_system_on_ext4_is_installed() {
    installs(&["mkfs.ext4", "-q"], 32 * MIB);
}

#[test]
fn a_system_on_xfs_is_installed() {
    installs(&["mkfs.xfs", "-q"], 320 * MIB);
}

#[test]
fn a_system_on_btrfs_is_installed() {
    installs(&["mkfs.btrfs", "-q"], 128 * MIB);
}
