//! Tar images. Partitions and file systems are only recorded here; the files are really unpacked.

use crate::environment::{MIB, TestMachine, sha256, skip, successful_script};
use crate::server::{Fault, Script, Server};
use agent::FinalAction;
use agent::platform::{FeedError, Platform, RealPlatform, Tool};
use agent::volume::FileSystem;
use serde_json::Value;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// Larger than any content; the file is sparse.
const DISK_BYTES: usize = 1024 * MIB;
const STARTER: &[u8] = b"code that a BIOS runs";

/// A machine whose partitions appear when `sfdisk` is called; each is a directory when mounted.
struct PartitionedMachine {
    machine: TestMachine,
    ran: Mutex<Vec<String>>,
    full: bool,
}

impl PartitionedMachine {
    fn new() -> Self {
        let machine = TestMachine::new(0);
        fs::File::options()
            .write(true)
            .open(machine.path("dev/vda"))
            .unwrap()
            .set_len(DISK_BYTES as u64)
            .unwrap();
        machine.describe_disk("vda", DISK_BYTES);
        machine.write("usr/lib/farrier/gptmbr.bin", STARTER);
        machine.write("usr/lib/farrier/systemd-bootx64.efi", "a program for UEFI");
        Self { machine, ran: Mutex::default(), full: false }
    }

    fn run(&self, script: Script) -> (FinalAction, Value) {
        let server = Server::start(script);
        let end = self.machine.run_at(server.address, self);
        (end, server.last_report())
    }

    fn firmware(&self, name: &str) -> PathBuf {
        self.machine.path("mounted/vda1").join(name)
    }

    fn root(&self, name: &str) -> PathBuf {
        self.machine.path("mounted/vda2").join(name)
    }
}

impl Platform for PartitionedMachine {
    fn mount(&self, device: &Path, _: FileSystem, _: &str, _: &str) -> io::Result<PathBuf> {
        let at = self.machine.path("mounted").join(device.file_name().unwrap());
        fs::create_dir_all(&at)?;
        Ok(at)
    }

    fn unmount(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn run(&self, tool: Tool, arguments: &[&str], input: &str) -> Result<(), String> {
        let shown = format!("{} {}\n{input}", tool.program(), arguments.join(" "));
        self.ran
            .lock()
            .unwrap()
            .push(shown.replace(self.machine.folder.path().to_str().unwrap(), ""));
        let marked = |name: &str, at: usize, mark: &[u8]| {
            let mut bytes = vec![0; 4096];
            bytes[at..at + mark.len()].copy_from_slice(mark);
            self.machine.write(name, bytes);
        };
        match tool {
            Tool::Sfdisk => {
                for number in ["1", "2"] {
                    self.machine.write(&format!("sys/block/vda/vda{number}/partition"), number);
                    self.machine.write(&format!("dev/vda{number}"), "");
                }
            }
            Tool::MkfsVfat => marked("dev/vda1", 82, b"FAT32   "),
            Tool::MkfsExt4 => marked("dev/vda2", 1080, &[0x53, 0xEF]),
            Tool::Blockdev | Tool::Extlinux | Tool::Tar => {}
        }
        Ok(())
    }

    fn run_with_source(
        &self,
        tool: Tool,
        arguments: &[&str],
        source: &mut dyn Read,
    ) -> Result<(), FeedError> {
        if self.full {
            return Err(FeedError::Tool("tar: write error: No space left on device".into()));
        }
        RealPlatform.run_with_source(tool, arguments, source)
    }
}

/// A tar of a small system that contains so many extra bytes.
fn tar(machine: &TestMachine, kernel: bool, bytes: usize) -> Vec<u8> {
    if kernel {
        machine.write("system/boot/vmlinuz-6.1.0-9-amd64", "an old kernel");
        machine.write("system/boot/vmlinuz-6.1.0-18-amd64", "the kernel");
        machine.write("system/boot/initrd.img-6.1.0-18-amd64", "its initrd");
    }
    machine.write("system/srv/data", vec![7; bytes]);
    let output = Command::new("tar")
        .args(["-c", "-C"])
        .arg(machine.path("system"))
        .arg(".")
        .output()
        .unwrap();
    assert!(output.status.success());
    output.stdout
}

fn packed(program: &str, machine: &TestMachine, bytes: &[u8]) -> Option<Vec<u8>> {
    machine.write("plain.tar", bytes);
    let output = Command::new(program).arg("-c").arg(machine.path("plain.tar")).output().ok()?;
    output.status.success().then_some(output.stdout)
}

#[test]
fn tar_images_boot_with_bios_and_uefi() {
    let partitioned = PartitionedMachine::new();
    let plain = tar(&partitioned.machine, true, 3 * MIB);
    let mut script = successful_script("tar", plain);
    script.image_faults = [Fault::Cut(MIB), Fault::Status(503)].into();
    let (end, report) = partitioned.run(script);
    assert_eq!(end, FinalAction::Reboot, "{report}");

    let ran = partitioned.ran.lock().unwrap().clone();
    let first_words: Vec<&str> = ran.iter().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(
        first_words,
        ["sfdisk", "blockdev", "mkfs.vfat", "mkfs.ext4", "extlinux", "blockdev"]
    );
    assert!(ran[0].starts_with(
        "sfdisk --quiet --wipe always --wipe-partitions always /dev/vda\nlabel: gpt\n"
    ));
    assert_eq!(ran[2].trim_end(), "mkfs.vfat -F 32 -n FIRMWARE /dev/vda1");
    assert_eq!(ran[3].trim_end(), "mkfs.ext4 -q -F -L root /dev/vda2");
    assert_eq!(ran[4].trim_end(), "extlinux --install /mounted/vda1");

    let text = |path: PathBuf| fs::read_to_string(path).unwrap();
    assert_eq!(text(partitioned.firmware("vmlinuz")), "the kernel");
    assert_eq!(text(partitioned.firmware("initrd.img")), "its initrd");
    assert_eq!(text(partitioned.firmware("EFI/BOOT/BOOTX64.EFI")), "a program for UEFI");
    let uuid = ran[0].split("uuid=").nth(2).unwrap().split(',').next().unwrap();
    for file in ["syslinux.cfg", "loader/entries/farrier.conf"] {
        assert!(
            text(partitioned.firmware(file)).contains(&format!("root=PARTUUID={uuid} rw")),
            "{file}"
        );
    }
    assert!(text(partitioned.root("etc/fstab")).contains(&format!("PARTUUID={uuid} / ext4")));
    assert_eq!(text(partitioned.root("etc/hostname")), "node-1\n");
    assert_eq!(fs::read(partitioned.root("srv/data")).unwrap(), vec![7; 3 * MIB]);
    let mut first = vec![0; 512];
    fs::File::open(partitioned.machine.path("dev/vda")).unwrap().read_exact(&mut first).unwrap();
    assert!(first.starts_with(STARTER));
}

#[test]
fn compressed_tars_are_unpacked() {
    for program in ["gzip", "zstd"] {
        let partitioned = PartitionedMachine::new();
        let plain = tar(&partitioned.machine, true, 3 * MIB);
        let Some(packed) = packed(program, &partitioned.machine, &plain) else {
            skip(&format!("there is no {program} here"));
            continue;
        };
        assert!(packed.len() < plain.len());
        let mut script = successful_script("tar", packed);
        script.image_faults = [Fault::Cut(1_000), Fault::Cut(2)].into();
        let (end, report) = partitioned.run(script);
        assert_eq!(end, FinalAction::Reboot, "{program}: {report}");
        assert_eq!(fs::read(partitioned.root("srv/data")).unwrap(), vec![7; 3 * MIB]);
    }
}

#[test]
fn failed_tar_images_do_not_boot() {
    type Spoil = fn(&mut PartitionedMachine, &mut Script);
    let table: [(bool, Spoil, &str, &str); 7] = [
        (
            true,
            |_, script| script.image_faults = [Fault::Garble].into(),
            "checksum-wrong",
            "SHA-256",
        ),
        (false, |_, _| (), "install-failed", "no /boot/vmlinuz*"),
        (true, |partitioned, _| partitioned.full = true, "disk-too-small", "no room for the files"),
        (
            true,
            |_, script| {
                script.image = [b"\xFD7zXZ\0", &[0; 5000][..]].concat();
                script.granted["image"]["size"] = script.image.len().into();
                script.granted["image"]["sha256"] = sha256(&script.image).into();
            },
            "image-broken",
            "packed with xz",
        ),
        (
            true,
            |_, script| {
                script.image = vec![b'x'; 100_000];
                script.granted["image"]["size"] = script.image.len().into();
                script.granted["image"]["sha256"] = sha256(&script.image).into();
            },
            "image-broken",
            "cannot be unpacked",
        ),
        (
            true,
            |partitioned, _| partitioned.machine.describe_disk("vda", 500 * MIB),
            "disk-too-small",
            "/dev/vda has 500.0 MiB",
        ),
        (
            true,
            |partitioned, _| {
                fs::remove_file(partitioned.machine.path("usr/lib/farrier/gptmbr.bin")).unwrap()
            },
            "install-failed",
            "bootable for a BIOS",
        ),
    ];
    for (kernel, spoil, code, words) in table {
        let mut partitioned = PartitionedMachine::new();
        let mut script = successful_script("tar", tar(&partitioned.machine, kernel, MIB));
        spoil(&mut partitioned, &mut script);
        let (end, report) = partitioned.run(script);
        assert_eq!(end, FinalAction::PowerOff);
        assert_eq!(report["code"], code, "{report}");
        assert!(report["said"].as_str().unwrap().contains(words), "{report}");
        let mut first = vec![0; 512];
        fs::File::open(partitioned.machine.path("dev/vda"))
            .unwrap()
            .read_exact(&mut first)
            .unwrap();
        assert!(first.iter().all(|byte| *byte == 0));
        if code != "install-failed" {
            assert!(!partitioned.firmware("vmlinuz").exists(), "{report}");
        }
    }
}

#[test]
fn stop_interrupts_the_download_of_a_tar() {
    let partitioned = PartitionedMachine::new();
    let mut script = successful_script("tar", tar(&partitioned.machine, true, 16 * MIB));
    script.slow = Some((64 * 1024, std::time::Duration::from_millis(10)));
    script.then = [("writing", "stop")].into();
    let (end, report) = partitioned.run(script);
    assert_eq!((end, report["stage"].as_str()), (FinalAction::PowerOff, Some("writing")));
    assert!(!partitioned.firmware("vmlinuz").exists());
}

/// Names with `..`, links that lead out, and files behind them: all content of a tar stays inside.
#[test]
fn tar_entries_cannot_leave_the_disk() {
    let partitioned = PartitionedMachine::new();
    let outside = partitioned.machine.path("outside");
    fs::create_dir_all(&outside).unwrap();
    let script = r#"
import io, sys, tarfile
outside, path = sys.argv[1], sys.argv[2]
out = tarfile.open(path, "a")
def link(name, target):
    entry = tarfile.TarInfo(name); entry.type = tarfile.SYMTYPE; entry.linkname = target; out.addfile(entry)
def file(name):
    entry = tarfile.TarInfo(name); entry.size = 4; out.addfile(entry, io.BytesIO(b"evil"))
link("out", outside); file("out/one")
file("../../outside/two"); file(outside + "/three")
out.close()
"#;
    partitioned.machine.write("evil.tar", tar(&partitioned.machine, true, 10));
    let Ok(made) = Command::new("python3")
        .args(["-c", script])
        .args([&outside, &partitioned.machine.path("evil.tar")])
        .output()
    else {
        return skip("there is no python3 here");
    };
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    partitioned
        .run(successful_script("tar", fs::read(partitioned.machine.path("evil.tar")).unwrap()));
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
}
