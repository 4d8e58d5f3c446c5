//! Attacks between Farrier and the machine: the reply to a claim and the image are altered on the
//! way. Nothing may be written to the disk.

use crate::environment::{KEY, MAC, MIB, OLD, TestMachine, image, successful_script};
use crate::server::{Fault, Server, sign};
use agent::FinalAction;
use agent::manifest::{KEY_FILE, ManifestKey};
use agent::verified_image::memory_budget;
use ed25519_dalek::{Signer, SigningKey};
use serde_json::{Value, json};

fn untouched(machine: &TestMachine) -> bool {
    machine.disk().iter().all(|byte| *byte == OLD)
}

/// Replaces a text in the manifest.
fn replace(reply: &mut Value, old: &str, new: &str) {
    let text = reply["manifest"].as_str().unwrap();
    assert!(text.contains(old), "{text}");
    reply["manifest"] = json!(text.replace(old, new));
}

/// Signs the manifest with a key of the attacker.
fn sign_with_other_key(reply: &mut Value) {
    let key = SigningKey::from_bytes(&[8; 32]);
    let context = wire::deploy::MANIFEST_CONTEXT;
    let message = format!("{context}{}", reply["manifest"].as_str().unwrap());
    let bytes = key.sign(message.as_bytes()).to_bytes();
    reply["signature"] = json!(bytes.map(|byte| format!("{byte:02x}")).concat());
}

#[test]
fn an_altered_manifest_is_refused_before_a_byte_is_written() {
    type Alter = fn(&mut Value);
    let attacks: [(Alter, &str); 8] = [
        (|reply| replace(reply, "\"user\":\"root\"", "\"user\":\"evil\""), "not signed"),
        (|reply| replace(reply, "ssh-ed25519 AAAA x", "ssh-ed25519 EVIL x"), "not signed"),
        (|reply| replace(reply, "/deploy/image", "http://10.6.6.6/evil"), "not signed"),
        (|reply| replace(reply, "\"root_disk\":\"\"", "\"root_disk\":\"a\""), "not signed"),
        (sign_with_other_key, "not signed"),
        (|reply| reply["signature"] = json!("00"), "cannot be read"),
        (|reply| reply["signature"] = json!(""), "no signed manifest"),
        // A manifest that was signed for another claim, earlier or of another machine.
        (
            |reply| {
                let other = json!({ "session": "another", "mac": MAC });
                let assignment: Value =
                    serde_json::from_str(reply["manifest"].as_str().unwrap()).unwrap();
                *reply = sign(&assignment["assignment"], &other);
            },
            "another claim",
        ),
    ];
    for (alter, why) in attacks {
        let machine = TestMachine::new(4 * MIB);
        let mut script = successful_script("raw", image(2 * MIB));
        script.alter = Some(alter);
        let server = Server::start(script);
        assert_eq!(machine.run(&server), FinalAction::PowerOff);
        let report = server.last_report();
        assert_eq!(report["code"], "checksum-wrong", "{report}");
        let message = report["said"].as_str().unwrap();
        assert!(message.contains(why) && message.contains("nothing was written"), "{message}");
        assert!(untouched(&machine) && server.heard.lock().unwrap().ranges.is_empty(), "{why}");
    }
}

/// The fields beside the manifest are for others: the agent believes only what is signed.
#[test]
fn what_is_not_signed_is_not_used() {
    let machine = TestMachine::new(4 * MIB);
    let mut script = successful_script("raw", image(2 * MIB));
    script.alter = Some(|reply| {
        reply["hostname"] = json!("evil");
        reply["image"]["sha256"] = json!("00");
    });
    assert_eq!(machine.run(&Server::start(script)), FinalAction::Reboot);
    let name = std::fs::read_to_string(machine.path("system/etc/hostname")).unwrap();
    assert_eq!(name.trim(), "node-1");
}

#[test]
fn a_manifest_of_another_machine_is_refused() {
    let claim = json!({ "session": "s", "mac": "aa:bb:cc:dd:ee:99" });
    let granted = crate::environment::granted("raw", &image(MIB));
    let signed = serde_json::from_value(sign(&granted, &claim)).unwrap();
    let key = ManifestKey::parse(KEY).unwrap();
    let own = [MAC.to_string()];
    assert!(key.verify(&signed, "s", &own).unwrap_err().contains("another machine"));
    let other = ["AA:BB:CC:DD:EE:99".to_string()];
    assert_eq!(key.verify(&signed, "s", &other).unwrap().machine, "m-1");
}

#[test]
fn the_key_of_the_environment_counts_more_than_the_command_line() {
    let machine = TestMachine::new(4 * MIB);
    let other = SigningKey::from_bytes(&[8; 32]).verifying_key().to_bytes();
    machine.write(KEY_FILE, other.map(|byte| format!("{byte:02x}")).concat());
    let server = Server::start(successful_script("raw", image(2 * MIB)));
    assert_eq!(machine.run(&server), FinalAction::PowerOff);
    assert!(untouched(&machine));
    machine.write(KEY_FILE, format!("{KEY}\n"));
    let server = Server::start(successful_script("raw", image(2 * MIB)));
    assert_eq!(machine.run(&server), FinalAction::Reboot);
    let none = ManifestKey::find(&machine.path("nowhere"), None).unwrap_err();
    assert!(none.contains("farrier.key="), "{none}");
    for bad in ["", "00", "zz"] {
        assert!(ManifestKey::parse(bad).is_err(), "{bad}");
    }
}

#[test]
fn an_altered_image_is_refused_before_a_byte_is_written() {
    for (kind, memory) in [("raw", "4000000"), ("raw", "0"), ("qcow2", "0")] {
        let machine = TestMachine::new(16 * MIB);
        machine.write("proc/meminfo", format!("MemAvailable: {memory} kB\n"));
        let mut script = successful_script(kind, image(10 * MIB));
        script.image_faults = [Fault::Cut(5 * MIB), Fault::Garble].into();
        let server = Server::start(script);
        assert_eq!(machine.run(&server), FinalAction::PowerOff);
        assert_eq!(server.last_report()["code"], "checksum-wrong", "{kind}");
        assert!(untouched(&machine), "{kind}");
    }
}

/// Without memory the image is fetched twice, and is altered the second time: what was altered is
/// not written, and the disk does not boot.
#[test]
fn an_image_that_is_altered_after_the_check_is_refused() {
    let machine = TestMachine::new(16 * MIB);
    machine.write("proc/meminfo", "MemAvailable: 0 kB\n");
    let raw = image(10 * MIB);
    let mut script = successful_script("raw", raw.clone());
    // The second download is cut inside the second chunk, and goes on with an altered byte.
    script.image_faults = [Fault::Cut(10 * MIB), Fault::Cut(5 * MIB), Fault::Garble].into();
    let server = Server::start(script);
    assert_eq!(machine.run(&server), FinalAction::PowerOff);
    let report = server.last_report();
    assert_eq!(report["code"], "image-broken", "{report}");
    assert!(report["said"].as_str().unwrap().contains("altered after it was checked"), "{report}");
    let disk = machine.disk();
    assert!(disk[..MIB].iter().all(|byte| *byte == 0), "it does not boot");
    assert!(disk[4 * MIB..8 * MIB].iter().all(|byte| *byte == OLD), "the altered chunk");
}

#[test]
fn without_memory_the_image_is_fetched_twice() {
    let raw = image(9 * MIB + 5);
    for (memory, downloads) in [("4000000", 1), ("0", 2), ("10240", 2)] {
        let machine = TestMachine::new(16 * MIB);
        machine.write("proc/meminfo", format!("MemAvailable: {memory} kB\n"));
        let server = Server::start(successful_script("raw", raw.clone()));
        assert_eq!(machine.run(&server), FinalAction::Reboot, "{memory}");
        assert!(machine.disk()[..raw.len()] == raw[..], "{memory}");
        assert_eq!(server.heard.lock().unwrap().ranges.len(), downloads, "{memory}");
        assert_eq!(memory_budget(machine.folder.path()), memory.parse::<u64>().unwrap() * 512);
    }
}
