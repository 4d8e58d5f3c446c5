//! The real binary against a scripted server, which can be killed and restarted in the middle.

use crate::stage::{Follower, ScriptEvent, ScriptedServer, farrier, finish};
use proto::v1::run::Phase;
use proto::v1::step_status::State::{Failed, Running, Succeeded, Waiting};
use std::io::Write;
use std::process::Stdio;

const LOST: &str = "connection lost; waiting for the server…";

#[test]
fn a_reimage_is_followed_across_a_killed_server() {
    let mut stage = ScriptedServer::open();
    let args = ["reimage", "machine-1", "--image", "ubuntu-2204", "--timeout", "600s"];
    let follower = Follower::start(&stage.url(), &args);
    // Events and log are two streams: each is awaited, so that the output has one order.
    follower.wait_for_output("EffectiveState: BUSY");
    stage.play(ScriptEvent::Steps(Phase::Running, [Running, Waiting]));
    follower.wait_for_output("→ Setting netboot...");
    stage.play(ScriptEvent::Log("set-netboot", "Configuring PXE for ubuntu-2204\nDHCP upd"));
    follower.wait_for_output("Configuring PXE");
    stage.kill();
    follower.wait_for_output(LOST);
    stage.play(ScriptEvent::Log("set-netboot", "ated\n"));
    stage.start();
    follower.wait_for_output("DHCP updated");
    stage.play(ScriptEvent::Steps(Phase::Running, [Succeeded, Running]));
    follower.wait_for_output("→ Repaving...");
    stage.play(ScriptEvent::Log("repave", "Progress: 45%\n\u{1b}[31mred\n"));
    follower.wait_for_output("31mred");
    stage.play(ScriptEvent::Steps(Phase::Succeeded, [Succeeded, Succeeded]));
    let (code, stdout, stderr) = follower.finish();
    assert_eq!(stderr, "");
    let (request_id, stdout) = stdout.split_once('\n').unwrap();
    assert!(request_id.starts_with("request-id: req-"), "{request_id}");
    assert!(request_id.ends_with("  (repeat with --request-id to retry safely)"), "{request_id}");
    assert_eq!(stdout, TRANSCRIPT);
    assert_eq!(code, 0);
    assert_eq!(stage.initiator(), "ada");
}

const TRANSCRIPT: &str = "\
┌─────────────────────────────────────────────────────────────
│ Operation: op-1
│ Machine: machine-1
│ Type: REIMAGE
│ Phase: MAINTENANCE → EffectiveState: BUSY
└─────────────────────────────────────────────────────────────

→ Setting netboot...
│ [set-netboot] Configuring PXE for ubuntu-2204
connection lost; waiting for the server…
connected again
│ [set-netboot] DHCP updated
✓ Netboot configured

→ Repaving...
│ [repave] Progress: 45%
│ [repave] \\x1b[31mred
✓ Repave complete

┌─────────────────────────────────────────────────────────────
│ ✓ SUCCEEDED
│ Duration: 4m 32s
└─────────────────────────────────────────────────────────────

Machine state after operation:
┌─────────────────────────────────────────────────────────────
│ Phase: MAINTENANCE (unchanged)
│ EffectiveState: MAINTENANCE (was BUSY)
│ Conditions: Provisioned=✓ (newly set)
│ ActiveOperationId: (cleared)
└─────────────────────────────────────────────────────────────

Operation: op-1 (PENDING → RUNNING → SUCCEEDED)
";

#[test]
fn a_repeated_request_does_no_new_work() {
    let stage = ScriptedServer::open();
    stage.submit("deploy-v2.1");
    stage.play(ScriptEvent::Steps(Phase::Succeeded, [Succeeded, Succeeded]));
    let args = ["reimage", "machine-1", "--image", "ubuntu-2204", "--request-id", "deploy-v2.1"];
    let (code, stdout, _) = finish(farrier(&stage.url(), &args));
    assert_eq!(stdout, "Operation: op-1 (SUCCEEDED)  same operation, no new work\n");
    assert_eq!(code, 0);
}

#[test]
fn a_failure_exits_with_one_and_says_what_to_type() {
    let stage = ScriptedServer::open();
    stage.submit("r");
    stage.play(ScriptEvent::Steps(Phase::Failed, [Failed, Waiting]));
    let (code, stdout, _) = finish(farrier(&stage.url(), &["operation", "watch", "op-1"]));
    assert!(
        stdout.contains("→ Setting netboot...\n✗ Setting netboot failed: no answer\n\n┌"),
        "{stdout}"
    );
    assert!(stdout.contains("│ ✗ FAILED\n"), "{stdout}");
    assert!(
        stdout.contains("│ Fault: bmc-unreachable  (farrier fault bmc-unreachable)\n"),
        "{stdout}"
    );
    assert!(stdout.contains("│ Next: farrier operation retry-step op-1\n"), "{stdout}");
    assert_eq!(code, 1);
}

#[test]
fn programs_get_one_record_and_nothing_else() {
    let stage = ScriptedServer::open();
    stage.submit("r");
    stage.play(ScriptEvent::Steps(Phase::Succeeded, [Succeeded, Succeeded]));
    let (code, stdout, _) =
        finish(farrier(&stage.url(), &["operation", "watch", "op-1", "-o", "json"]));
    let run: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(
        (run["operation_id"].as_str(), run["phase"].as_str()),
        (Some("op-1"), Some("SUCCEEDED"))
    );
    assert_eq!(code, 0);
}

#[test]
fn a_wait_that_is_too_long_exits_with_three() {
    let stage = ScriptedServer::open();
    let args = ["reimage", "machine-1", "--image", "x", "--request-id", "r", "--timeout", "500ms"];
    let (code, _, stderr) = finish(farrier(&stage.url(), &args));
    let expected = "error: op-1 has not ended after 500ms; the operation goes on\nnext: farrier operation watch op-1\n";
    assert_eq!(stderr, expected);
    assert_eq!(code, 3);
}

#[test]
fn refused_and_unreachable_have_codes_of_their_own() {
    let mut stage = ScriptedServer::open();
    let (code, stdout, stderr) = finish(farrier(&stage.url(), &["get", "nobody"]));
    assert_eq!(
        (code, stdout.as_str(), stderr.as_str()),
        (
            2,
            "",
            "error: there is no machine nobody\n  field machine_id: is unknown\nnext: farrier list\n"
        )
    );
    stage.kill();
    let (code, _, stderr) = finish(farrier(&stage.url(), &["list"]));
    assert!(
        stderr.starts_with("error: cannot reach the Farrier server at http://127.0.0.1:"),
        "{stderr}"
    );
    assert!(
        stderr.ends_with("start one with `farrier serve --demo` or pass --server\n"),
        "{stderr}"
    );
    assert_eq!(code, 4);
    let (code, _, _) = finish(farrier(&stage.url(), &["watch"]));
    assert_eq!(code, 4);
    let (code, _, _) = finish(farrier(&stage.url(), &["dance"]));
    assert_eq!(code, 2);
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let stage = ScriptedServer::open();
    let (code, stdout, _) = finish(farrier(&stage.url(), &["import", "2500"]));
    assert_eq!(
        (code, stdout.as_str()),
        (0, "2499 machines registered, 1 unchanged; see them with `farrier list`\n")
    );
    let (_, stdout, _) = finish(farrier(&stage.url(), &["list"]));
    // Three pages; machine-1 existed before.
    assert_eq!(stdout.lines().count(), 2501);
    let mut child = farrier(&stage.url(), &["list", "-o", "json"]);
    drop(child.stdout.take());
    let (code, _, stderr) = finish(child);
    assert_eq!((code, stderr.as_str()), (0, ""));
}

#[test]
fn a_file_with_a_mistake_registers_nothing() {
    let stage = ScriptedServer::open();
    let mut file = tempfile::Builder::new().suffix(".csv").tempfile().unwrap();
    file.write_all(b"machine_id,mac_addresses\nweb-1,\nweb-2,nonsense\n").unwrap();
    let path = file.path().to_str().unwrap();
    let (code, stdout, stderr) = finish(farrier(&stage.url(), &["import", path]));
    assert_eq!((code, stdout.as_str()), (2, ""));
    assert!(
        stderr.contains(", line 3, column 2 mac_addresses: \"nonsense\" is not a MAC address"),
        "{stderr}"
    );
    assert_eq!(stage.machines(), 1);
}

#[test]
fn logs_end_with_the_run() {
    let mut stage = ScriptedServer::open();
    stage.submit("r");
    stage.play(ScriptEvent::Log("repave", "one\ntwo\n"));
    let follower = Follower::start(&stage.url(), &["logs", "op-1"]);
    follower.wait_for_output("two");
    stage.kill();
    follower.wait_for_output(LOST);
    stage.play(ScriptEvent::Log("repave", "three"));
    stage.play(ScriptEvent::Steps(Phase::Succeeded, [Succeeded, Succeeded]));
    stage.start();
    let (code, stdout, _) = follower.finish();
    let expected = "│ [repave] one\n│ [repave] two\nconnection lost; waiting for the server…\nconnected again\n│ [repave] three\n";
    assert_eq!((code, stdout.as_str()), (0, expected));
    let (_, stdout, _) = finish(farrier(&stage.url(), &["logs", "op-1", "--offset", "4"]));
    assert_eq!(stdout, "│ [repave] two\n│ [repave] three\n");
}

#[test]
fn a_watch_goes_on_behind_its_cursor() {
    let mut stage = ScriptedServer::open();
    stage.submit("r");
    let mut follower = Follower::start(&stage.url(), &["operation", "watch", "-o", "json"]);
    follower.wait_for_output("\"cursor\":\"1\"");
    stage.kill();
    stage.play(ScriptEvent::Steps(Phase::Running, [Running, Waiting]));
    stage.start();
    follower.wait_for_output("\"cursor\":\"2\"");
    follower.kill();
    let (_, stdout, _) = follower.finish();
    let cursors: Vec<String> = stdout
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["cursor"].to_string())
        .collect();
    assert_eq!(cursors, ["\"1\"", "\"2\""]);
}

#[test]
fn the_first_screen_needs_no_server() {
    for args in [&["--help"][..], &["completions", "bash"]] {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_farrier"))
            .args(args)
            .env("FARRIER_SERVER", "nonsense://")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(output.status.success(), "{args:?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("enter-maintenance"), "{args:?}");
    }
}
