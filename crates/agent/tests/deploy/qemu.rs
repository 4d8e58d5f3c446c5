//! Images of QEMU's tools, with all their options, compared with the raw disk that they contain.

use crate::environment::{MIB, OLD, TestMachine, image, skip, successful_script};
use crate::server::{Fault, Server};
use agent::FinalAction;
use std::fs;
use std::path::Path;
use std::process::Command;

/// None: the tool is not installed.
fn qemu(tool: &str, arguments: &[&str]) -> Option<Result<(), String>> {
    let output = Command::new(tool).args(arguments).output().ok()?;
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    Some(if output.status.success() { Ok(()) } else { Err(message) })
}

/// A disk with data, zeros and data again, whose size is not a multiple of the cluster size.
fn raw_disk() -> Vec<u8> {
    let mut raw = image(9 * MIB + 512 * 3);
    raw[2 * MIB + 4096..5 * MIB].fill(0);
    // Compressible data.
    for (at, byte) in raw[6 * MIB..8 * MIB].iter_mut().enumerate() {
        *byte = (at / 1000) as u8;
    }
    raw
}

/// Deploys an image file and compares the disk with the output of `qemu-img convert`.
fn deploys(machine: &TestMachine, file: &Path) {
    let raw = machine.path("expected.raw");
    let arguments = ["convert", "-O", "raw", file.to_str().unwrap(), raw.to_str().unwrap()];
    qemu("qemu-img", &arguments).unwrap().unwrap();
    let raw = fs::read(raw).unwrap();
    fs::write(machine.path("dev/vda"), vec![OLD; 16 * MIB]).unwrap();
    let mut script = successful_script("qcow2", fs::read(file).unwrap());
    script.image_faults =
        [Fault::Cut(50), Fault::Cut(MIB / 3), Fault::Status(503), Fault::Cut(200_000)].into();
    let server = Server::start(script);
    assert_eq!(
        machine.run(&server),
        FinalAction::Reboot,
        "{}: {}",
        file.display(),
        server.last_report()
    );
    assert!(machine.disk()[..raw.len()] == raw[..], "{}", file.display());
}

#[test]
fn all_qemu_img_formats_are_written_correctly() {
    let machine = TestMachine::new(16 * MIB);
    machine.write("disk.raw", raw_disk());
    let raw = machine.path("disk.raw");
    let ways: [&[&str]; 11] = [
        &[],
        &["-c"],
        &["-o", "compat=0.10"],
        &["-c", "-o", "compat=0.10"],
        &["-c", "-o", "compression_type=zstd"],
        &["-o", "cluster_size=512"],
        &["-c", "-o", "cluster_size=4k"],
        &["-c", "-o", "cluster_size=2M"],
        &["-c", "-o", "cluster_size=2M,compression_type=zstd"],
        &["-S", "0"],
        &["-o", "preallocation=metadata,lazy_refcounts=on"],
    ];
    for (number, way) in ways.into_iter().enumerate() {
        let file = machine.path(&format!("{number}.qcow2"));
        let mut arguments = vec!["convert", "-f", "raw", "-O", "qcow2"];
        arguments.extend(way);
        arguments.extend([raw.to_str().unwrap(), file.to_str().unwrap()]);
        match qemu("qemu-img", &arguments) {
            None => return skip("there is no qemu-img here"),
            Some(made) => made.unwrap(),
        }
        deploys(&machine, &file);
    }
}

/// Written in random order, with zeros over data, compressed clusters among others, and a snapshot
/// of an earlier state.
#[test]
fn used_images_are_written_correctly() {
    let machine = TestMachine::new(16 * MIB);
    let file = machine.path("lived.qcow2");
    let path = file.to_str().unwrap();
    match qemu("qemu-img", &["create", "-f", "qcow2", path, "12M"]) {
        None => return skip("there is no qemu-img here"),
        Some(made) => made.unwrap(),
    }
    let write = |commands: &[&str]| {
        let mut arguments = vec!["-f", "qcow2"];
        commands.iter().for_each(|command| arguments.extend(["-c", command]));
        arguments.push(path);
        qemu("qemu-io", &arguments).unwrap().unwrap();
    };
    write(&[
        "write -P 7 8M 1M",
        "write -P 3 1M 300k",
        "write -c -P 9 4M 64k",
        "write -P 5 0 70k",
        "write -P 2 11M 1M",
    ]);
    // The signature by which the disk is recognized as a file system.
    write(&["write -P 0x53 1080 1", "write -P 0xEF 1081 1"]);
    qemu("qemu-img", &["snapshot", "-c", "before", path]).unwrap().unwrap();
    write(&[
        "write -P 8 8M 100k",
        "write -z 1M 128k",
        "write -c -P 4 5M 64k",
        "write -P 6 4M 10k",
        "discard 11M 512k",
    ]);
    deploys(&machine, &file);
}

#[test]
fn unsupported_images_are_refused_before_writing() {
    let machine = TestMachine::new(4 * MIB);
    machine.write("base.raw", image(MIB));
    let base = machine.path("base.raw");
    let base = base.to_str().unwrap();
    let file = machine.path("x.qcow2");
    let path = file.to_str().unwrap();
    let table: [(&[&str], &str, &str); 3] = [
        (&["create", "-q", "-f", "qcow2", path, "5M"], "disk-too-small", "needs 5.0 MiB"),
        (
            &["create", "-q", "-f", "qcow2", "-b", base, "-F", "raw", path],
            "image-broken",
            "backing file",
        ),
        (
            &["create", "-q", "-f", "qcow2", "-o", "extended_l2=on", path, "1M"],
            "image-broken",
            "extended tables",
        ),
    ];
    for (arguments, code, words) in table {
        match qemu("qemu-img", arguments) {
            None => return skip("there is no qemu-img here"),
            Some(made) => made.unwrap(),
        }
        let server = Server::start(successful_script("qcow2", fs::read(&file).unwrap()));
        assert_eq!(machine.run(&server), FinalAction::PowerOff);
        let report = server.last_report();
        assert_eq!(report["code"], code, "{report}");
        assert!(report["said"].as_str().unwrap().contains(words), "{report}");
        assert!(machine.disk().iter().all(|byte| *byte == OLD));
    }
    let server = Server::start(successful_script("qcow2", image(MIB)));
    assert_eq!(machine.run(&server), FinalAction::PowerOff);
    assert_eq!(server.last_report()["code"], "image-broken");
}

#[test]
fn a_compressed_image_with_one_wrong_byte_does_not_boot() {
    let machine = TestMachine::new(16 * MIB);
    machine.write("disk.raw", raw_disk());
    let (raw, file) = (machine.path("disk.raw"), machine.path("x.qcow2"));
    let arguments = [
        "convert",
        "-c",
        "-O",
        "qcow2",
        "-f",
        "raw",
        raw.to_str().unwrap(),
        file.to_str().unwrap(),
    ];
    match qemu("qemu-img", &arguments) {
        None => return skip("there is no qemu-img here"),
        Some(made) => made.unwrap(),
    }
    let good = fs::read(file).unwrap();
    for at in [good.len() / 2, good.len() - 3_000] {
        let mut script = successful_script("qcow2", good.clone());
        script.image[at] ^= 0x10;
        let server = Server::start(script);
        assert_eq!(machine.run(&server), FinalAction::PowerOff);
        assert_eq!(server.last_report()["code"], "checksum-wrong");
        assert!(machine.disk().iter().all(|byte| *byte == OLD), "nothing was written");
    }
}
