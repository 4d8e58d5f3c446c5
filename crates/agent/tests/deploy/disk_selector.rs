//! Tests of the module `disk_selector` alone.

use agent::disk_selector::*;
use agent::inventory::DiskInfo;
use wire::deploy::DeploymentFailure;

fn disk(name: &str, serial: &str, wwn: &str) -> DiskInfo {
    DiskInfo {
        name: name.into(),
        path: format!("/dev/{name}"),
        size: 8 << 30,
        serial: serial.into(),
        wwn: wwn.into(),
        ..DiskInfo::default()
    }
}

#[test]
fn exactly_one_disk_must_match() {
    let vda = disk("vda", "A", "naa.5000C500A1B2C3D4");
    let vdb = disk("vdb", "B", "");
    let twin = disk("vdc", "A", "");
    let stick = DiskInfo { removable: true, ..disk("sdx", "S", "") };
    let locked = DiskInfo { read_only: true, ..disk("sdy", "L", "") };
    use DeploymentFailure::{DiskAmbiguous, DiskMissing};
    type Case<'a> = (&'a [&'a DiskInfo], &'a str, Result<&'a str, (DeploymentFailure, &'a str)>);
    let table: [Case; 19] = [
        (&[&vda], "", Ok("vda")),
        (&[&vda, &stick, &locked], "", Ok("vda")),
        (&[], "", Err((DiskMissing, "seen: none"))),
        (&[&stick, &locked], "", Err((DiskMissing, "/dev/sdx (8.0 GiB, serial S, removable)"))),
        (&[&vda, &vdb], "", Err((DiskAmbiguous, "/dev/vdb (8.0 GiB, serial B)"))),
        (&[&vda, &vdb], "serial:B", Ok("vdb")),
        (&[&vda, &vdb], "serial:b", Err((DiskMissing, "no disk is serial:b"))),
        (&[&vda, &twin], "serial:A", Err((DiskAmbiguous, "2 disks are serial:A"))),
        (&[&vda, &vdb], "wwn:naa.5000c500a1b2c3d4", Ok("vda")),
        (&[&vda, &vdb], "wwn:0x5000c500a1b2c3d4", Ok("vda")),
        (&[&vda, &vdb], "wwn:5000", Err((DiskMissing, "no disk is wwn:5000"))),
        (&[&vda, &vdb], "path:/dev/vdb", Ok("vdb")),
        (&[&vda, &vdb], "path:/dev/vdz", Err((DiskMissing, "no disk is path:/dev/vdz"))),
        (&[&vda, &stick], "serial:S", Ok("sdx")),
        (&[&vda, &locked], "serial:L", Err((DiskMissing, "/dev/sdy is read-only"))),
        (&[&vda], "path:vda", Err((DiskMissing, "not understood"))),
        (&[&vda], "serial:", Err((DiskMissing, "not understood"))),
        (&[&vda], "wwn:", Err((DiskMissing, "not understood"))),
        (&[&vda], "vda", Err((DiskMissing, "not understood"))),
    ];
    for (disks, desired, expected) in table {
        let disks: Vec<DiskInfo> = disks.iter().map(|disk| (*disk).clone()).collect();
        match (select_disk(&disks, desired), expected) {
            (Ok(found), Ok(name)) => assert_eq!(found.name, name, "{desired}"),
            (Err(failure), Err((code, words))) => {
                assert_eq!(failure.code, code, "{desired}: {}", failure.message);
                assert!(failure.message.contains(words), "{desired}: {}", failure.message);
            }
            (found, _) => panic!("{desired}: {found:?}"),
        }
    }
}

#[test]
fn too_large_images_are_refused_with_both_sizes() {
    let vda = disk("vda", "", "");
    assert_eq!(check_disk_size(&vda, 8 << 30, "the image"), Ok(()));
    let failure = check_disk_size(&vda, (8 << 30) + 1, "the image").unwrap_err();
    assert_eq!(failure.code, DeploymentFailure::DiskTooSmall);
    for part in ["8589934593", "8589934592", "/dev/vda"] {
        assert!(failure.message.contains(part), "{}", failure.message);
    }
}
