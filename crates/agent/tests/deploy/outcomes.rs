//! The handling of assignments and of Farrier's answers.

use crate::environment::{MAC, MIB, OLD, TOKEN, TestMachine, image, successful_script, wait_until};
use crate::server::{Fault, Script, Server};
use agent::FinalAction;
use serde_json::{Value, json};
use std::fs;
use std::time::Duration;

#[test]
fn raw_images_are_written_and_reboot() {
    // Not a multiple of the chunk size, and with zeros over old content.
    let mut raw = image(3 * MIB + 12_345);
    raw[MIB + 7..2 * MIB + 7].fill(0);
    let machine = TestMachine::new(6 * MIB);
    let server = Server::start(successful_script("raw", raw.clone()));
    assert_eq!(machine.run(&server), FinalAction::Reboot);

    let disk = machine.disk();
    assert!(disk[..raw.len()] == raw[..]);
    assert!(disk[raw.len()..5 * MIB].iter().all(|byte| *byte == OLD));
    assert!(disk[5 * MIB..].iter().all(|byte| *byte == 0), "the backup of an old partition table");

    assert_eq!(server.stages(), ["writing", "installing", "installed"]);
    let report = server.last_report();
    assert_eq!((&report["done"], &report["total"]), (&json!(raw.len()), &json!(raw.len())));
    assert_eq!(report["code"], "");
    let public =
        fs::read_to_string(machine.path("system/etc/ssh/ssh_host_ed25519_key.pub")).unwrap();
    assert_eq!(report["host_keys"], json!([public.trim_end()]));
    assert_eq!(fs::read_to_string(machine.path("system/etc/farrier/image")).unwrap(), "tiny 1\n");
    assert_eq!(*machine.tools.lock().unwrap(), ["blockdev"]);
}

#[test]
fn claims_describe_the_machine() {
    let machine = TestMachine::new(4 * MIB);
    let server = Server::start(successful_script("raw", image(MIB)));
    machine.run(&server);
    let heartbeat = server.heard.lock().unwrap();
    let claim = &heartbeat.claims[0];
    assert_eq!((&claim["token"], &claim["mac"]), (&json!(TOKEN), &json!(MAC)));
    assert_eq!(claim["macs"], json!([MAC]));
    let disk = json!({"path": "/dev/vda", "size": 4 * MIB, "serial": "serial-of-vda", "wwn": "", "model": ""});
    assert_eq!(claim["disks"], json!([disk]));
    let session = claim["session"].as_str().unwrap();
    assert!(session.len() == 64 && session.bytes().all(|byte| byte.is_ascii_hexdigit()));
    assert!(heartbeat.bearers.iter().all(|bearer| bearer == session));
}

/// Runs a deployment that must fail, and returns its last report.
fn failed(machine: &TestMachine, script: Script) -> Value {
    let server = Server::start(script);
    assert_eq!(machine.run(&server), FinalAction::PowerOff);
    let report = server.last_report();
    assert_eq!(report["stage"], "failed");
    report
}

fn untouched(machine: &TestMachine) -> bool {
    machine.disk().iter().all(|byte| *byte == OLD)
}

#[test]
fn an_image_that_does_not_fit_is_refused_before_anything_is_written() {
    let machine = TestMachine::new(2 * MIB);
    let report = failed(&machine, successful_script("raw", image(2 * MIB + 512)));
    assert_eq!(report["code"], "disk-too-small");
    assert!(report["said"].as_str().unwrap().contains("/dev/vda"), "{report}");
    assert!(untouched(&machine));
}

#[test]
fn a_wrong_checksum_is_found_before_anything_is_written() {
    let machine = TestMachine::new(4 * MIB);
    let mut script = successful_script("raw", image(2 * MIB));
    script.image_faults = [Fault::Garble].into();
    let report = failed(&machine, script);
    assert_eq!(report["code"], "checksum-wrong");
    assert_eq!(report["host_keys"], json!([]));
    assert!(untouched(&machine));
    assert!(!machine.path("system/etc/hostname").exists());
}

#[test]
fn failed_deployments_can_reboot() {
    let machine = TestMachine::new(MIB);
    let mut script = successful_script("raw", image(2 * MIB));
    script.then = [("failed", "reboot")].into();
    assert_eq!(machine.run(&Server::start(script)), FinalAction::Reboot);
}

#[test]
fn ambiguous_disks_are_refused() {
    let machine = TestMachine::new(4 * MIB);
    machine.add_disk("vdb", 4 * MIB);
    let report = failed(&machine, successful_script("raw", image(MIB)));
    assert_eq!(report["code"], "disk-ambiguous");
    for part in ["/dev/vda", "/dev/vdb", "serial-of-vda", "4.0 MiB"] {
        assert!(report["said"].as_str().unwrap().contains(part), "{report}");
    }
    let mut script = successful_script("raw", image(MIB));
    script.granted["root_disk"] = json!("serial:nobodys");
    assert_eq!(failed(&machine, script)["code"], "disk-missing");
    assert!(untouched(&machine));

    let mut script = successful_script("raw", image(MIB));
    script.granted["root_disk"] = json!("serial:serial-of-vdb");
    assert_eq!(machine.run(&Server::start(script)), FinalAction::Reboot);
    assert!(untouched(&machine));
    assert!(fs::read(machine.path("dev/vdb")).unwrap()[..MIB] == image(MIB)[..]);
}

#[test]
fn unknown_users_and_kinds_fail() {
    let machine = TestMachine::new(4 * MIB);
    let mut script = successful_script("raw", image(MIB));
    script.granted["user"] = json!("ubuntu");
    let report = failed(&machine, script);
    assert_eq!(report["code"], "install-failed");
    assert!(report["said"].as_str().unwrap().contains("no user \"ubuntu\"; it has: "), "{report}");

    let report = failed(&machine, successful_script("ova", image(MIB)));
    assert_eq!(report["code"], "image-broken");
}

#[test]
fn mount_errors_differ_from_missing_systems() {
    let machine = TestMachine::new(4 * MIB);
    let mut unknown = image(MIB);
    unknown[1080] = 0;
    let report = failed(&machine, successful_script("raw", unknown));
    assert_eq!(report["code"], "install-failed");
    assert!(
        report["said"].as_str().unwrap().contains("nothing on /dev/vda can be mounted"),
        "{report}"
    );

    fs::remove_dir_all(machine.path("system/etc")).unwrap();
    let report = failed(&machine, successful_script("raw", image(MIB)));
    assert_eq!(report["code"], "install-failed");
    assert!(
        report["said"].as_str().unwrap().contains("no partition of /dev/vda has a system"),
        "{report}"
    );
}

#[test]
fn a_refused_claim_powers_off_and_touches_nothing() {
    for code in ["token-used", "token-expired", "token-unknown", "mac-refused"] {
        let machine = TestMachine::new(4 * MIB);
        let mut script = successful_script("raw", image(MIB));
        script.claim_faults = [Fault::Status(403)].into();
        script.refusal = json!({"code": code, "said": "no"});
        let server = Server::start(script);
        assert_eq!(machine.run(&server), FinalAction::PowerOff);
        let heartbeat = server.heard.lock().unwrap();
        assert_eq!(
            (heartbeat.claims.len(), heartbeat.ranges.len(), heartbeat.reports.len()),
            (1, 0, 0)
        );
        assert!(untouched(&machine));
    }
}

#[test]
fn stop_interrupts_the_download() {
    let machine = TestMachine::new(20 * MIB);
    let mut script = successful_script("raw", image(16 * MIB));
    script.slow = Some((64 * 1024, Duration::from_millis(10)));
    script.then = [("writing", "stop")].into();
    let server = Server::start(script);
    assert_eq!(machine.run(&server), FinalAction::PowerOff);
    assert_eq!(server.stages(), ["writing"]);
    assert!(untouched(&machine));
}

#[test]
fn stop_interrupts_a_silent_download() {
    let machine = TestMachine::new(4 * MIB);
    let mut script = successful_script("raw", image(2 * MIB));
    script.image_faults = [Fault::Hang(Duration::from_secs(30)); 8].into();
    script.then = [("writing", "stop")].into();
    assert_eq!(machine.run(&Server::start(script)), FinalAction::PowerOff);
}

#[test]
fn refused_sessions_power_off() {
    for status in [401, 403] {
        let machine = TestMachine::new(20 * MIB);
        let mut script = successful_script("raw", image(16 * MIB));
        script.slow = Some((64 * 1024, Duration::from_millis(5)));
        script.report_faults = [Fault::Status(status)].into();
        assert_eq!(
            machine.run(&Server::start(script)),
            FinalAction::PowerOff,
            "a report, {status}"
        );

        let mut script = successful_script("raw", image(2 * MIB));
        script.image_faults = [Fault::Cut(MIB), Fault::Status(status)].into();
        let server = Server::start(script);
        assert_eq!(machine.run(&server), FinalAction::PowerOff, "the image, {status}");
        // The refusal may come before the first report.
        assert!(server.stages().iter().all(|stage| stage == "writing"), "{:?}", server.stages());
    }
}

#[test]
fn missing_or_replaced_images_fail() {
    let machine = TestMachine::new(4 * MIB);
    let mut script = successful_script("raw", image(2 * MIB));
    script.image_faults = [Fault::Status(404)].into();
    assert_eq!(failed(&machine, script)["code"], "image-broken");

    let mut script = successful_script("raw", image(2 * MIB));
    script.image = image(3 * MIB);
    let report = failed(&machine, script);
    assert_eq!(report["code"], "image-broken");
    assert!(report["said"].as_str().unwrap().contains("was the image replaced"), "{report}");
}

#[test]
fn early_reboots_are_ignored() {
    let machine = TestMachine::new(4 * MIB);
    let mut script = successful_script("raw", image(2 * MIB));
    script.then = [("writing", "reboot"), ("installing", "reboot"), ("installed", "go-on")].into();
    let server = Server::start(script);
    std::thread::scope(|scope| {
        let agent = scope.spawn(|| machine.run(&server));
        wait_until("waiting for the word", || {
            let heartbeat = server.heard.lock().unwrap();
            heartbeat.reports.iter().filter(|report| report["stage"] == "installed").count() >= 3
        });
        assert!(!agent.is_finished());
        server.script.lock().unwrap().then.insert("installed", "reboot");
        assert_eq!(agent.join().unwrap(), FinalAction::Reboot);
    });
}
