//! Tar images. Partitions and file systems are only recorded here; the files are really unpacked.

use crate::environment::{MIB, Stage, sha256, well};
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
struct Parted {
    stage: Stage,
    ran: Mutex<Vec<String>>,
    full: bool,
}

impl Parted {
    fn new() -> Self {
        let stage = Stage::new(0);
        fs::File::options()
            .write(true)
            .open(stage.path("dev/vda"))
            .unwrap()
            .set_len(DISK_BYTES as u64)
            .unwrap();
        stage.describe_disk("vda", DISK_BYTES);
        stage.write("usr/lib/farrier/gptmbr.bin", STARTER);
        stage.write("usr/lib/farrier/systemd-bootx64.efi", "a program for UEFI");
        Self { stage, ran: Mutex::default(), full: false }
    }

    fn run(&self, script: Script) -> (FinalAction, Value) {
        let server = Server::start(script);
        let end = self.stage.run_at(server.address, self);
        (end, server.last_report())
    }

    fn firmware(&self, name: &str) -> PathBuf {
        self.stage.path("mounted/vda1").join(name)
    }

    fn root(&self, name: &str) -> PathBuf {
        self.stage.path("mounted/vda2").join(name)
    }
}

impl Platform for Parted {
    fn mount(&self, device: &Path, _: FileSystem, _: &str, _: &str) -> io::Result<PathBuf> {
        let at = self.stage.path("mounted").join(device.file_name().unwrap());
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
            .push(shown.replace(self.stage.folder.path().to_str().unwrap(), ""));
        let marked = |name: &str, at: usize, mark: &[u8]| {
            let mut bytes = vec![0; 4096];
            bytes[at..at + mark.len()].copy_from_slice(mark);
            self.stage.write(name, bytes);
        };
        match tool {
            Tool::Sfdisk => {
                for number in ["1", "2"] {
                    self.stage.write(&format!("sys/block/vda/vda{number}/partition"), number);
                    self.stage.write(&format!("dev/vda{number}"), "");
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
fn tar(stage: &Stage, kernel: bool, bytes: usize) -> Vec<u8> {
    if kernel {
        stage.write("system/boot/vmlinuz-6.1.0-9-amd64", "an old kernel");
        stage.write("system/boot/vmlinuz-6.1.0-18-amd64", "the kernel");
        stage.write("system/boot/initrd.img-6.1.0-18-amd64", "its initrd");
    }
    stage.write("system/srv/data", vec![7; bytes]);
    let output =
        Command::new("tar").args(["-c", "-C"]).arg(stage.path("system")).arg(".").output().unwrap();
    assert!(output.status.success());
    output.stdout
}

fn packed(program: &str, stage: &Stage, bytes: &[u8]) -> Option<Vec<u8>> {
    stage.write("plain.tar", bytes);
    let output = Command::new(program).arg("-c").arg(stage.path("plain.tar")).output().ok()?;
    output.status.success().then_some(output.stdout)
}

#[test]
fn a_tar_becomes_a_disk_that_boots_either_way() {
    let parted = Parted::new();
    let plain = tar(&parted.stage, true, 3 * MIB);
    let mut script = well("tar", plain);
    script.image_faults = [Fault::Cut(MIB), Fault::Status(503)].into();
    let (end, report) = parted.run(script);
    assert_eq!(end, FinalAction::Reboot, "{report}");

    let ran = parted.ran.lock().unwrap().clone();
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
    assert_eq!(text(parted.firmware("vmlinuz")), "the kernel");
    assert_eq!(text(parted.firmware("initrd.img")), "its initrd");
    assert_eq!(text(parted.firmware("EFI/BOOT/BOOTX64.EFI")), "a program for UEFI");
    let uuid = ran[0].split("uuid=").nth(2).unwrap().split(',').next().unwrap();
    for file in ["syslinux.cfg", "loader/entries/farrier.conf"] {
        assert!(
            text(parted.firmware(file)).contains(&format!("root=PARTUUID={uuid} rw")),
            "{file}"
        );
    }
    assert!(text(parted.root("etc/fstab")).contains(&format!("PARTUUID={uuid} / ext4")));
    assert_eq!(text(parted.root("etc/hostname")), "node-1\n");
    assert_eq!(fs::read(parted.root("srv/data")).unwrap(), vec![7; 3 * MIB]);
    let mut first = vec![0; 512];
    fs::File::open(parted.stage.path("dev/vda")).unwrap().read_exact(&mut first).unwrap();
    assert!(first.starts_with(STARTER));
}

#[test]
fn a_tar_may_be_packed() {
    for program in ["gzip", "zstd"] {
        let parted = Parted::new();
        let plain = tar(&parted.stage, true, 3 * MIB);
        let Some(packed) = packed(program, &parted.stage, &plain) else {
            eprintln!("skipped: there is no {program} here");
            continue;
        };
        assert!(packed.len() < plain.len());
        let mut script = well("tar", packed);
        script.image_faults = [Fault::Cut(1_000), Fault::Cut(2)].into();
        let (end, report) = parted.run(script);
        assert_eq!(end, FinalAction::Reboot, "{program}: {report}");
        assert_eq!(fs::read(parted.root("srv/data")).unwrap(), vec![7; 3 * MIB]);
    }
}

#[test]
fn what_goes_wrong_with_a_tar_is_said_and_nothing_boots() {
    type Spoil = fn(&mut Parted, &mut Script);
    let table: [(bool, Spoil, &str, &str); 7] = [
        (
            true,
            |_, script| script.image_faults = [Fault::Garble].into(),
            "checksum-wrong",
            "SHA-256",
        ),
        (false, |_, _| (), "install-failed", "no /boot/vmlinuz*"),
        (true, |parted, _| parted.full = true, "disk-too-small", "no room for the files"),
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
            |parted, _| parted.stage.describe_disk("vda", 500 * MIB),
            "disk-too-small",
            "/dev/vda has 500.0 MiB",
        ),
        (
            true,
            |parted, _| fs::remove_file(parted.stage.path("usr/lib/farrier/gptmbr.bin")).unwrap(),
            "install-failed",
            "bootable for a BIOS",
        ),
    ];
    for (kernel, spoil, code, words) in table {
        let mut parted = Parted::new();
        let mut script = well("tar", tar(&parted.stage, kernel, MIB));
        spoil(&mut parted, &mut script);
        let (end, report) = parted.run(script);
        assert_eq!(end, FinalAction::PowerOff);
        assert_eq!(report["code"], code, "{report}");
        assert!(report["said"].as_str().unwrap().contains(words), "{report}");
        let mut first = vec![0; 512];
        fs::File::open(parted.stage.path("dev/vda")).unwrap().read_exact(&mut first).unwrap();
        assert!(first.iter().all(|byte| *byte == 0));
        if code != "install-failed" {
            assert!(!parted.firmware("vmlinuz").exists(), "{report}");
        }
    }
}

#[test]
fn told_to_stop_it_stops_unpacking() {
    let parted = Parted::new();
    let mut script = well("tar", tar(&parted.stage, true, 16 * MIB));
    script.slow = Some((64 * 1024, std::time::Duration::from_millis(10)));
    script.stop_after = Some(2 * MIB as u64);
    let (end, report) = parted.run(script);
    assert_eq!((end, report["stage"].as_str()), (FinalAction::PowerOff, Some("writing")));
    assert!(!parted.firmware("vmlinuz").exists());
}

/// Names with `..`, links that lead out, and files behind them: all content of a tar stays inside.
#[test]
fn nothing_in_a_tar_leads_out_of_the_disk() {
    let parted = Parted::new();
    let outside = parted.stage.path("outside");
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
    parted.stage.write("evil.tar", tar(&parted.stage, true, 10));
    let Ok(made) = Command::new("python3")
        .args(["-c", script])
        .args([&outside, &parted.stage.path("evil.tar")])
        .output()
    else {
        return eprintln!("skipped: there is no python3 here");
    };
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    parted.run(well("tar", fs::read(parted.stage.path("evil.tar")).unwrap()));
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
}
