//! The commands for credentials and hardware.

use super::Terminal;
use std::path::Path;

/// Secrets can be set but never read.
pub fn credentials(person: &Terminal, dir: &Path) {
    person.line("credential list", 0);
    let file = dir.join("password");
    std::fs::write(&file, "s3cret\n").unwrap();
    let path = file.to_str().unwrap();
    let set = ["credential", "set", "bmc", "--user", "root", "--password-file", path];
    assert!(person.run(&set, 0).contains("credential bmc set, password"));
    person.run(&set, 0);
    written_credentials(person, path);
    person.formats("credential list", "password");
    assert!(person.line("secret rotate --dry-run", 0).contains("would be sealed again"));
    assert!(person.line("secret rotate", 0).contains("was removed"));
    let list = person.json("credential list");
    assert_eq!((&list[0]["user"], &list[0]["version"]), (&"root".into(), &3.into()), "{list}");
    assert!(!list.to_string().contains("s3cret"), "{list}");
    // A MAAS key has three parts; the error repeats no part of the key.
    let key = dir.join("maas.key");
    let set = ["credential", "set", "maas", "--maas-key", key.to_str().unwrap()];
    std::fs::write(&key, "c0nsumer:t0ken\n").unwrap();
    let refused = person.run(&set, 2);
    assert!(
        refused.contains("maas_key.key") && refused.contains("consumer:token:secret"),
        "{refused}"
    );
    assert!(!refused.contains("t0ken"), "{refused}");
    std::fs::write(&key, "c0nsumer:t0ken:s3cret\n").unwrap();
    assert!(person.run(&set, 0).contains("maas-key"));
    assert!(!person.json("credential list").to_string().contains("t0ken"));
    assert!(person.line("credential delete maas", 0).contains("maas deleted"));
    let refused = person.run(&["credential", "set", "Bad Name", "--kubeconfig", path], 2);
    assert!(refused.contains("lower-case letters"), "{refused}");
    // A kubeconfig is checked when it is set; the error repeats nothing of it.
    let refused = person.run(&["credential", "set", "cluster-a", "--kubeconfig", path], 2);
    assert!(refused.contains("secret.kubeconfig.text") && !refused.contains("s3cret"), "{refused}");
    for format in ["table", "wide", "json", "jsonl", "yaml"] {
        let checked = person.line(&format!("cluster check cluster-a -o {format}"), 1);
        assert!(checked.contains("no credential"), "{format}: {checked}");
    }
    let missing =
        person.run(&["credential", "set", "x", "--user", "u", "--ssh-key", "/no/file"], 2);
    assert!(missing.contains("/no/file"), "{missing}");
    assert!(person.line("credential delete bmc", 0).contains("bmc deleted"));
    assert!(person.line("credential delete bmc", 2).contains("farrier credential list"));
    let print = "ab".repeat(32);
    identities(person, &print);
    assert!(person.line("trust list", 0).contains(&print));
    // The pin of an address goes with the last machine that has the address.
    for id in ["pinned-1", "pinned-2"] {
        let register = format!("machine register {id} --provider datacenter");
        person.line(&format!("{register} --bmc-endpoint https://10.0.0.9"), 0);
    }
    for (id, kept) in [("pinned-1", true), ("pinned-2", false)] {
        person.line(&format!("machine delete {id}"), 0);
        assert_eq!(person.line("trust list", 0).contains(&print), kept, "after {id}");
    }
    assert!(person.line("trust delete https://10.0.0.1", 2).contains("farrier trust list"));
}

/// Creating refuses a known name, updating an unknown one; both take a version.
fn written_credentials(person: &Terminal, path: &str) {
    let write = |verb: &str, name: &str, more: &[&str], exit| {
        let line = ["credential", verb, name, "--user", "root", "--password-file", path];
        person.run(&[&line[..], more].concat(), exit)
    };
    let exists = write("create", "bmc", &[], 2);
    assert!(exists.contains("farrier credential update bmc"), "{exists}");
    assert!(write("update", "other", &[], 2).contains("farrier credential list"));
    let stale = write("update", "bmc", &["--expected-version", "1"], 2);
    assert!(stale.contains("farrier credential get bmc"), "{stale}");
    let updated = write("update", "bmc", &["--expected-version", "2"], 0);
    assert!(updated.contains("credential bmc updated, password"), "{updated}");
    assert!(write("create", "second", &[], 0).contains("credential second created, password"));
    person.formats("credential get bmc", "root");
    assert!(person.line("credential get none", 2).contains("farrier credential list"));
    let stale = person.line("credential delete second --expected-version 9", 2);
    assert!(stale.contains("farrier credential get second"), "{stale}");
    person.line("credential delete second --expected-version 1", 0);
}

/// Creating refuses a pinned peer, updating one without a pin; `set` takes both.
fn identities(person: &Terminal, print: &str) {
    let other = "cd".repeat(32);
    let write = |verb: &str, print: &str, exit| {
        person.line(&format!("trust {verb} https://10.0.0.9 {print}"), exit)
    };
    let trusted = |print: &str| format!("https://10.0.0.9 is trusted as sha256:{print}");
    assert!(write("update", print, 2).contains("farrier trust list"));
    for _ in 0..2 {
        assert!(write("create", &other, 0).contains(&trusted(&other)));
    }
    let exists = write("create", print, 2);
    assert!(exists.contains("farrier trust update https://10.0.0.9"), "{exists}");
    assert!(write("update", print, 0).contains(&trusted(print)));
    person.formats("trust get https://10.0.0.9", print);
    assert!(person.line("trust get https://10.0.0.8", 2).contains("farrier trust list"));
    assert!(person.line("trust forget https://10.0.0.9", 0).contains("10.0.0.9 deleted"));
    assert!(write("set", &other, 0).contains(&trusted(&other)));
    assert!(write("set", print, 0).contains(&trusted(print)));
    assert!(write("set", "abcd", 2).contains("identity"));
}

/// A simulated machine has a BMC that reports its hardware; an address without a BMC is an error.
pub fn hardware(person: &Terminal) {
    assert!(person.line("machine inspect machine-1 -o wide", 0).contains("02:fa:00:00:00:01"));
    let (one, again) =
        (person.json("machine inspect machine-1"), person.json("machine inspect machine-1"));
    assert_eq!((&one["serial"], &one["disks"]), (&again["serial"], &again["disks"]));
    assert_eq!(one["serial"], "SIM000001");
    recorded_hardware(person, &one);
    person.formats("machine console-log machine-1", "operating system started");
    assert!(person.line("machine power machine-1", 0).contains("machine-1 is on"));
    person.line("sim fault create --machine machine-1 --effect probe --action fail --times 0", 0);
    assert!(person.line("machine power machine-1", 4).contains("bmc-unreachable"));
    person.line("sim fault delete --all", 0);
    let reported = person.line("bmc test http://127.0.0.1:9", 1);
    assert!(reported.contains("✗ port") && reported.contains("- login"), "{reported}");
    assert!(person.line("bmc unlock 10.0.0.1", 0).contains("nothing to unlock"));
    assert!(person.line("discover 10.0.0.0/8", 2).contains("10.0.0.0/20"));
}

/// An inspection is recorded with the machine.
fn recorded_hardware(person: &Terminal, inspected: &serde_json::Value) {
    let never = person.json("machine get machine-2");
    assert_eq!(never["status"]["hardware"], serde_json::Value::Null, "{never}");
    let recorded = person.json("machine get machine-1")["status"]["hardware"].clone();
    for field in ["vendor", "model", "serial", "bios_version", "memory_mib"] {
        assert_eq!(recorded[field], inspected[field], "{field} {recorded}");
    }
    assert_eq!((&recorded["cpu_count"], &recorded["serial_differs"]), (&2.into(), &false.into()));
    let list = person.json("list");
    let mut listed = list.as_array().unwrap().iter();
    let listed = listed.find(|one| one["machine_id"] == "machine-1").unwrap();
    assert_eq!(listed["status"]["hardware"], recorded, "{list}");
    assert!(person.line("get machine-1", 0).contains("2 CPUs"));
    // Another serial number than the registered one is shown, and prevents nothing.
    person.line("machine update machine-1 --serial OTHER", 0);
    assert!(person.line("get machine-1", 0).contains("SIM000001 (registered as OTHER)"));
    let why = person.line("why machine-1", 0);
    assert!(why.contains("note") && why.contains("SIM000001; the spec says OTHER"), "{why}");
    person.line("machine update machine-1 --serial SIM000001", 0);
    assert!(!person.line("why machine-1", 0).contains("the spec says"));
}
