//! The commands of images and of firmware.

use super::{Terminal, hosts};
use std::path::Path;

pub fn images(person: &Terminal, dir: &Path) {
    let file = dir.join("disk.raw");
    std::fs::write(&file, "a disk").unwrap();
    let file = file.display().to_string();
    let message = person.run(&["image", "create", "Disk", "--file", &file], 2);
    assert!(message.contains("image.name"), "{message}");
    let wrong = "0".repeat(64);
    let message = person.run(&["image", "create", "disk", "--file", &file, "--sha256", &wrong], 2);
    assert!(message.contains("the file that arrived has"), "{message}");
    let message = person.run(&["image", "create", "disk", "--file", "/nowhere.raw"], 2);
    assert!(message.contains("/nowhere.raw: No such file"), "{message}");
    for _ in 0..2 {
        let message = person.run(&["image", "create", "disk", "--file", &file], 0);
        assert!(message.contains("6 B"), "{message}");
    }
    let kernel = ["image", "create", "own", "--kernel", &file, "--cmdline", "a={nope}"];
    let message = person.run(&kernel, 2);
    assert!(message.contains("image.cmdline") && message.contains("{token}"), "{message}");
    let message = person.run(&["image", "create", "disk", "--file", &file, "--kind", "tar"], 2);
    assert!(message.contains("an image never changes"), "{message}");
    person.formats("image list", "disk");
    person.formats("image get disk", "raw");
    person.line("image delete disk", 0);
    let message = person.line("image get disk", 2);
    assert!(message.contains("farrier image list"), "{message}");
    let message = person.line("netboot config", 2);
    assert!(message.contains("netboot.listen"), "{message}");
}

pub fn firmware(person: &Terminal, dir: &Path) {
    let sum = "ab".repeat(32);
    let component = |version: &str| {
        format!("machine:BMC={version},url=https://files.example/bmc.bin,sha256={sum}")
    };
    let create = |id: &str, component: &str, expected| {
        let line =
            format!("firmware create {id} --hardware-type nvl72 --default --component {component}");
        person.line(&line, expected)
    };
    let message = create("fw-1", "machine:BMC=1,url=ftp://x/y,sha256=ab", 2);
    assert!(message.contains("firmware.components[machine][0].url"), "{message}");
    let message = create("fw-1", "rack:BMC=1,url=http://x/y,sha256=ab", 2);
    assert!(message.contains("firmware.components[0].device_type"), "{message}");
    let dry =
        format!("firmware create fw-1 --hardware-type nvl72 --component {}", component("2.0"));
    person.check_dry_run(&dry, "firmware list", &["would create firmware fw-1", "bmc.bin"]);
    for _ in 0..2 {
        assert!(create("fw-1", &component("2.0"), 0).contains("fw-1 created"));
    }
    let other = component("2.1");
    for component in [&other, &format!("{other} --dry-run")] {
        let message = create("fw-1", component, 2);
        assert!(message.contains("a record never changes"), "{message}");
    }

    let file = dir.join("fw.yaml");
    let text = format!(
        "firmware_id: fw-2\nhardware_type: nvl72\ncomponents:\n\
         - {{device_type: machine, name: BMC, version: '2.1', url: 'http://h/x', sha256: {sum}}}\n"
    );
    std::fs::write(&file, text).unwrap();
    person.run(&["firmware", "create", "-f", file.to_str().unwrap()], 0);
    person.formats("firmware list --hardware-type nvl72", "fw-2");
    person.formats("firmware get fw-1", "https://files.example/bmc.bin");
    assert_eq!(person.json("firmware get fw-2")["available"], true);

    person.check_dry_run("firmware set-default fw-2", "firmware list", &["the default of nvl72"]);
    assert_eq!(person.json("firmware get fw-1")["is_default"], true);
    let stale = person.line("firmware set-default fw-2 --expected-version 9", 2);
    assert!(stale.contains("made from version 9"), "{stale}");
    person.line("firmware set-default fw-2 --expected-version 1", 0);
    assert_eq!(person.json("firmware get fw-1")["is_default"], false);
    assert_eq!(person.json("firmware get fw-2")["version"], 2);
    hosts(person);
    person.line("firmware set-available fw-1 false", 0);
    assert_eq!(person.json("firmware get fw-1")["available"], false);
    let message = person.line("firmware delete fw-2", 2);
    assert!(message.contains("is the default of hardware type nvl72"), "{message}");
    person.check_dry_run("firmware delete fw-1", "firmware get fw-1", &["would be deleted"]);
    person.line("firmware delete fw-1", 0);
    assert!(person.line("firmware get fw-1", 2).contains("farrier firmware list"));
    assert_eq!(person.json("firmware history --device machine-1"), serde_json::json!([]));
}
