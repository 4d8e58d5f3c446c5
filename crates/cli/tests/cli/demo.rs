//! The demo, as a newcomer tries it.

use crate::api_cli::Terminal;
use crate::fleet::{Server, Setup, TEST_TIMEOUT};
use serde_json::Value;
use std::time::Instant;

/// The triggers of a manual intervention (maas-node-states.md, section 7): the stage at which the
/// rule applies, and the fault. The sixth has two faults.
const TRIGGERS: [(&str, &str); 8] = [
    ("create_or_find_in_maas", "candidates-conflict"),
    ("configure_storage", "boot-disk-missing"),
    ("ensure_pxe_interface_auto", "pxe-interface-unfixable"),
    ("wait_for_ready", "maas-machine-gone"),
    ("recover_for_datasource_retry", "datasource-failed"),
    ("wait_for_hardware_sync_healthy", "hardware-sync-failed"),
    ("wait_for_hardware_sync_healthy", "seed-failed"),
    ("wait_for_deployed", "state-disagrees"),
];

#[track_caller]
fn until(person: &Terminal, line: &str, reached: impl Fn(&Value) -> bool) -> Value {
    let started = Instant::now();
    loop {
        let shown = person.json(line);
        if reached(&shown) {
            return shown;
        }
        assert!(started.elapsed() < TEST_TIMEOUT, "{line}: {shown}");
    }
}

#[test]
fn every_trigger_of_a_manual_intervention_can_be_rehearsed() {
    let dir = tempfile::tempdir().unwrap();
    let config = "[engine]\nbackoff_first_ms = 1\nbackoff_most_ms = 5".into();
    let server = Server::start(Setup { demo: true, config, ..Setup::new(dir.path(), "zero") });
    let person = Terminal::new(server.url());
    for rack in ["rack-r1", "rack-r2"] {
        until(&person, &format!("rack get {rack}"), |rack| rack["status"]["state"] == "Ready");
    }
    // The racks have installed the demo's firmware when they came into service.
    let status = person.json("rack maintenance status rack-r1").to_string();
    assert!(status.contains("fw-demo-2.0"), "{status}");
    for (number, (stage, code)) in (1..).zip(TRIGGERS) {
        let machine = format!("r2-m{number:02}");
        let rule = format!("--machine {machine} --effect {stage} --action fail --code {code}");
        person.line(&format!("sim fault create {rule} --times 0"), 0);
        person.line(&format!("node onboard {machine} --site site-demo"), 1);
        let runs = person.json(&format!("operation list --filter machine_id={machine}"));
        let run = &runs[0];
        assert_eq!(run["type"], "ONBOARD", "{run}");
        let id = run["operation_id"].as_str().unwrap();
        let shown = person.json(&format!("operation get {id}"));
        assert_eq!(shown["workflow_state"], "failed_manual_intervention", "{code}: {shown}");
        assert_eq!(shown["error"]["details"]["fault"], code, "{shown}");
        let nodes = person.json(&format!("node list --filter machine_id={machine}"));
        let state = nodes[0]["state"].as_str().unwrap();
        assert!(["enrolling", "quarantined"].contains(&state), "{code}: {state}");
    }
}
