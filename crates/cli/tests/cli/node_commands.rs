//! Every command about nodes and sites, and the repair of operations on nodes, against a real
//! server and a simulated MAAS.

use crate::api_cli::Terminal;
use crate::fleet::{Server, Setup, TEST_TIMEOUT};
use crate::stage::{farrier, finish};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Instant;

#[track_caller]
fn says(text: &str, words: &[&str]) {
    for name in words {
        assert!(text.contains(name), "{name:?} is not in\n{text}");
    }
}

/// The ID of the current node on a machine.
#[track_caller]
fn node_on(person: &Terminal, machine: &str) -> String {
    let nodes = person.json(&format!("node list --machine {machine}"));
    nodes[0]["node_id"].as_str().unwrap_or_else(|| panic!("{nodes}")).to_string()
}

/// Waits until a node is in a state: heartbeats and site polls arrive in their own time.
#[track_caller]
fn until(person: &Terminal, node: &str, state: &str) {
    let started = Instant::now();
    loop {
        let observed = person.json(&format!("node get {node}"));
        if observed["node"]["state"] == state {
            return;
        }
        assert!(started.elapsed() < TEST_TIMEOUT, "{node} is never {state}: {observed}");
    }
}

/// Types every command about nodes and sites.
pub fn typed(person: &Terminal, dir: &Path) {
    sites(person, dir);
    onboarding(person);
    person.stream(&["node", "watch"], "node-");
    quarantine(person);
    out_and_back(person);
    repairs(person);
    removal(person);
    bundles_refused(person);
}

fn sites(person: &Terminal, dir: &Path) {
    says(&person.line("site create lab --provider sim", 2), &["site.site_id", "site-"]);
    says(&person.line("site create site-lab", 2), &["site.spec.maas_url"]);
    let create =
        "site create site-lab --provider sim --pool gpu --boot-disk-model - --label env=lab";
    for _ in 0..2 {
        says(&person.line(create, 0), &["site-lab created", "farrier site check site-lab"]);
    }
    let other = person.line("site create site-lab --provider sim", 2);
    says(&other, &["site-lab exists already", "farrier site update site-lab"]);
    let stale = person.line("site update site-lab --zone row-1 --expected-version 99", 2);
    says(&stale, &["made from version 99", "farrier site get site-lab"]);
    let stale = person.line("site delete site-lab --expected-version 99", 2);
    says(&stale, &["made from version 99", "farrier site get site-lab"]);
    let file = dir.join("node.yaml");
    std::fs::write(&file, "#cloud-config\n# {{node_id}}\n").unwrap();
    let file = file.to_str().unwrap();
    let update = ["site", "update", "site-lab", "--zone", "row-7", "--cloud-init", file];
    person.run(&update, 0);
    let site = person.json("site get site-lab");
    let spec = &site["spec"];
    assert_eq!((&spec["pool"], &spec["zone"]), (&"gpu".into(), &"row-7".into()), "{site}");
    assert_eq!(spec["boot_disk_model"], "-", "what is not given stays: {site}");
    assert_eq!(spec["cloud_init"], "#cloud-config\n# {{node_id}}\n", "{site}");
    person.line("site update site-lab --default-cloud-init --remove-label env", 0);
    let site = person.line("site get site-lab", 0);
    says(&site, &["the one that comes with Farrier", "as MAAS chooses"]);
    assert!(!site.contains("env=lab"), "{site}");
    std::fs::write(file, "{{nobody_knows}}").unwrap();
    says(&person.run(&update, 2), &["site.spec.cloud_init", "nobody_knows"]);
    let wrong = person.line("site update site-lab --calls-at-once 0", 2);
    says(&wrong, &["site.spec.calls_at_once", "use 1 to"]);
    person.formats("site get site-lab", "row-7");
    person.formats("site list", "site-lab");
    says(&person.line("site check site-lab", 0), &["site-lab is Connected; its MAAS has "]);
    person.formats("why site-lab", "site-lab is connected");
    person.formats("history site-lab", "changed");
    says(&person.line("site get site-none", 2), &["farrier site list"]);
}

/// A machine is onboarded, and every command shows the same state.
fn onboarding(person: &Terminal) {
    person.line("machine register gpu-1 --provider sim", 0);
    let onboard = "node onboard gpu-1 --site site-lab";
    let words = ["would onboard gpu-1 at site-lab", "commission_node", "would run", "MAAS has no"];
    person.check_dry_run(onboard, "node list --machine gpu-1", &words);
    let text = person.line(&format!("{onboard} --dry-run"), 0);
    for (stage, destructive) in [("deploy_via_maas", "yes"), ("load_site_config", "-")] {
        let row = text.lines().find(|line| line.starts_with(stage)).unwrap_or_default();
        let cells: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(cells.get(2), Some(&destructive), "{stage}:\n{text}");
    }
    says(&person.line("node onboard gpu-1 --site site-none", 2), &["farrier site list"]);
    says(&person.line("node onboard gpu-none --site site-lab --dry-run", 2), &["gpu-none"]);
    let reported = person.line(&format!("{onboard} --request-id first"), 0);
    says(&reported, &["(enrolling)", "Type: ONBOARD", "✓ wait_for_agent_enrollment complete"]);
    says(&reported, &["✓ SUCCEEDED", "(active)"]);
    let again = person.line(&format!("{onboard} --request-id first"), 0);
    says(&again, &["same operation, no new work"]);
    let node = node_on(person, "gpu-1");
    for taken in [onboard.to_string(), format!("{onboard} --dry-run")] {
        says(&person.line(&taken, 2), &["gpu-1 has the node", &format!("farrier why {node}")]);
    }
    person.formats("node list", &node);
    person.formats("node list --state active --site site-lab", "gpu-1");
    assert!(!person.line("node list --state offline", 0).contains(&node));
    says(&person.line("node list --state happy", 2), &["filter", "bootstrap_issued"]);
    // A heartbeat may arrive between two reads, so the formats are not compared with each other.
    let yaml = person.line(&format!("node get {node} -o yaml"), 0);
    says(&yaml, &["Deployed", "workflow_kind: onboarding"]);
    assert_eq!(person.json(&format!("node get {node}"))["observed"]["expected"], true);
    let got = person.line(&format!("node get {node}"), 0);
    says(&got, &["active", "onboarding completed"]);
    assert!(!got.contains("Type next:"), "one that serves wants nothing: {got}");
    person.formats(&format!("why {node}"), "is active");
    person.formats(&format!("history {node}"), "enrolling");
    person.formats("operation list", "ONBOARD");
    assert!(person.line("operation list -o wide", 0).contains(&node));
    person.formats(&format!("operation get {node}"), "wait_for_deployed");
    assert!(person.line(&format!("logs {node}"), 0).contains("wait_for_deployed"));
    let runs = person.json(&format!("operation list --node {node} --state completed"));
    assert_eq!(runs[0]["type"], "ONBOARD", "{runs}");
    let runs = person.json(&format!("operation list --node {node} --state cancelled"));
    assert_eq!(runs, serde_json::json!([]));
    person.stream(&["watch", "gpu-1", "--all"], "ONBOARD");
    assert!(person.line("ops --filter type=ONBOARD", 0).contains("gpu-1"));
    says(&person.line("site delete site-lab", 2), &[&node, "farrier node list"]);
}

fn quarantine(person: &Terminal) {
    let node = node_on(person, "gpu-1");
    let reason = ["node", "quarantine", &node, "--reason", "GPU 3 is hot"];
    for _ in 0..2 {
        says(&person.run(&reason, 0), &[&format!("{node} is quarantined: GPU 3 is hot")]);
    }
    says(&person.line(&format!("node get {node}"), 0), &["quarantined (operator)", "GPU 3 is hot"]);
    says(&person.line(&format!("node reactivate {node}"), 2), &["retired"]);
    let release = ["node", "release", &node, "--override", "node-health", "--reason", "cooled"];
    says(&person.run(&release, 0), &[&format!("{node} is active")]);
}

/// A node is drained and retired, and returns to service under the same identity.
fn out_and_back(person: &Terminal) {
    let node = node_on(person, "gpu-1");
    for verb in ["drain", "retire"] {
        let line = format!("node {verb} {node}");
        let would = format!("would {verb} {node}");
        person.check_dry_run(&line, "node list", &[&would, "drain_node", "would run"]);
        let reported = person.line(&line, 0);
        says(&reported, &["Type: NODE_DRAIN", "✓ SUCCEEDED", &format!("Node: {node} (retired)")]);
        says(&person.line(&format!("{line} --dry-run"), 2), &["nothing left to drain"]);
        says(&person.line(&format!("node resume {node}"), 2), &["left undone"]);
        person.line(&format!("node reactivate {node}"), 0);
        until(person, &node, "active");
    }
    for mode in ["soft_reset", "storage_cleanup", "reimage"] {
        let line = format!("node decommission {node} --mode {mode}");
        let would = format!("would decommission {node}: {mode}");
        person.check_dry_run(&line, "node list", &[&would, "cleanup_storage"]);
        let text = person.line(&format!("{line} --dry-run"), 0);
        for (stage, destructive) in [("cleanup_storage", "yes"), ("drain_node", "-")] {
            let row = text.lines().find(|line| line.starts_with(stage)).unwrap_or_default();
            assert!(row.split_whitespace().any(|cell| cell == destructive), "{stage}:\n{text}");
        }
        says(&person.line(&line, 0), &["Type: DECOMMISSION", "✓ SUCCEEDED"]);
        until(person, &node, "active");
    }
}

/// Makes a stage of a machine's onboarding fail.
fn broken(person: &Terminal, machine: &str, stage: &str, action: &str) {
    let fault = format!("sim fault create --machine {machine} --effect {stage} --action {action}");
    person.line(&format!("{fault} --times 0"), 0);
}

fn mended(person: &Terminal) {
    person.line("sim fault delete --all", 0);
}

/// A failed onboarding, and every repair command, addressed by the node's ID.
fn repairs(person: &Terminal) {
    person.line("machine register gpu-2 --provider sim", 0);
    broken(person, "gpu-2", "configure_storage", "fail");
    let reported = person.line("node onboard gpu-2 --site site-lab", 1);
    says(&reported, &["✗ configure_storage failed", "✗ FAILED", "(enrolling)"]);
    let node = node_on(person, "gpu-2");
    let got = person.line(&format!("node get {node}"), 0);
    says(&got, &["onboarding failed_retryable", "configure_storage", "Attempts:", "Failure:"]);
    let failed = person.line("operation list --state failed_retryable", 0);
    assert!(failed.contains("gpu-2") && !failed.contains("SUCCEEDED"), "{failed}");
    let run = person.json(&format!("operation get {node}"))["operation_id"].clone();
    says(&person.line(&format!("operation retry-step {node}"), 1), &["✗ FAILED"]);
    // The earlier names of the same actions.
    says(&person.line(&format!("workflow retry-stage {node}"), 1), &["✗ FAILED"]);
    person.run(&["operation", "mark-manual", &node, "--reason", "look first"], 0);
    says(&person.line(&format!("node get {node}"), 0), &["failed_manual_intervention"]);
    let manual = person.json(&format!("operation get {node}"));
    assert_eq!(manual["error"]["retryable"], false, "{manual}");
    says(&person.line(&format!("workflow adopt {node}"), 1), &["✗ FAILED"]);
    says(&person.line(&format!("workflow resume {node}"), 1), &["✗ FAILED"]);
    let resumed = person.line(&format!("node resume {node}"), 0);
    says(&resumed, &[run.as_str().unwrap(), "had ended, and goes on"]);
    let op = run.as_str().unwrap();
    says(&person.line(&format!("operation watch {op}"), 1), &["✗ FAILED"]);
    mended(person);
    says(&person.line(&format!("operation rerun {node}"), 0), &["✓ SUCCEEDED"]);
    until(person, &node, "active");

    person.line("machine register gpu-3 --provider sim", 0);
    broken(person, "gpu-3", "wait_for_ready", "hang");
    let op = person.submit("node onboard gpu-3 --site site-lab");
    let node = node_on(person, "gpu-3");
    person.at_step(&op, "wait_for_ready");
    says(&person.line(&format!("node resume {node}"), 0), &[&op, "is at work on it"]);
    let cancel = ["operation", "cancel", &node, "--reason", "not today"];
    says(&person.run(&cancel, 0), &["⊘ CANCELED"]);
    until(person, &node, "quarantined");
    let why = person.line(&format!("why {node}"), 0);
    says(&why, &["was canceled", &format!("farrier operation rerun {op}"), "full_decommission"]);
    assert!(!why.contains("serves") && !why.contains("its onboarding"), "{why}");
    mended(person);
    says(&person.line(&format!("operation restart-clean {node}"), 0), &["✓ SUCCEEDED"]);
    until(person, &node, "active");
    let here = person.json(&format!("operation list --node {node}"));
    assert_eq!(here.as_array().unwrap().len(), 2, "{here}");
}

/// A node is removed, and its machine becomes another node.
fn removal(person: &Terminal) {
    let node = node_on(person, "gpu-3");
    let line = format!("node decommission {node} --mode full_decommission");
    let reported = person.run(
        &[
            &line.split(' ').collect::<Vec<_>>()[..],
            &["--override", "agent", "--reason", "its disk is dead"],
        ]
        .concat(),
        0,
    );
    says(&reported, &["✓ SUCCEEDED", &format!("Node: {node} (deleted)")]);
    says(&person.line(&format!("node reactivate {node}"), 2), &["never comes back"]);
    assert!(!person.line("node list", 0).contains(&node));
    assert!(person.line("node list --state deleted", 0).contains(&node));
    person.line("node onboard gpu-3 --site site-lab", 0);
    let other = node_on(person, "gpu-3");
    assert_ne!(other, node);
    let here = person.json(&format!("workflow list --node {other}"));
    assert_eq!(here.as_array().unwrap().len(), 1, "only what was done on this node: {here}");
    person.line("site create site-empty --provider sim", 0);
    says(&person.line("site delete site-empty", 0), &["site-empty deleted"]);
}

/// A server without an agent listener issues no tokens, and the command leaves no empty file.
fn bundles_refused(person: &Terminal) {
    person.line("machine register bare-1 --provider sim", 0);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("agent.toml");
    let line = format!("node bootstrap bare-1 --to {}", file.display());
    says(&person.line(&line, 2), &["nodes.listen"]);
    assert!(!file.exists());
    says(&person.line("node bootstrap --reissue node-none", 2), &["nodes.listen"]);
}

/// The token is only in the owner's file, or on stdout.
#[test]
fn a_bundle_is_kept_by_its_owner_alone() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = "[nodes]\nlisten = \"127.0.0.1:0\"\nurl = \"http://10.0.0.1:7413\"";
    let setup = Setup { config: nodes.into(), ..Setup::new(dir.path(), "zero") };
    let server = Server::start(setup);
    let request = |line: &str| finish(farrier(&server.url(), &line.split(' ').collect::<Vec<_>>()));
    assert_eq!(request("machine register bare-1 --provider sim").0, 0);
    let file = dir.path().join("agent.toml");
    let (code, stdout, stderr) = request(&format!("node bootstrap bare-1 --to {}", file.display()));
    assert_eq!(code, 0, "{stderr}");
    let config = std::fs::read_to_string(&file).unwrap();
    says(&config, &["controllers = [\"http://10.0.0.1:7413\"]", "token = \""]);
    let token = config.split('"').nth(3).unwrap();
    assert!(!stdout.contains(token) && !stderr.contains(token), "{stdout}{stderr}");
    says(&stdout, &["works once", "--reissue node-"]);
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    // An existing file is not overwritten, and no token is issued for it.
    let line = format!("node bootstrap bare-1 --to {}", file.display());
    assert!(request(&line).2.contains("is there already"));

    let node = stdout.split(' ').next().unwrap().to_string();
    let (code, stdout, stderr) =
        request(&format!("node bootstrap --reissue {node} --expires-in 2h"));
    assert_eq!(code, 0, "{stderr}");
    let other = stdout.split('"').nth(3).unwrap();
    assert!(other != token && !stderr.contains(other), "{stdout}{stderr}");
    let known =
        |line: &str| ["controllers = ", "token = ", "# "].iter().any(|one| line.starts_with(one));
    assert!(stdout.lines().all(known), "only the configuration: {stdout}");
    says(&stderr, &["works once", &node]);
    let (_, json, _) = request(&format!("node bootstrap --reissue {node} -o json"));
    let bundle: serde_json::Value = serde_json::from_str(&json).unwrap();
    says(bundle["agent_config"].as_str().unwrap(), &[bundle["token"].as_str().unwrap()]);
    let (code, _, stderr) = request(&format!("node bootstrap --reissue {node} --expires-in 31d"));
    assert_eq!(code, 2, "{stderr}");
    let (code, _, stderr) = request("node bootstrap --reissue node-none");
    assert!(code == 2 && stderr.contains("farrier node list"), "{stderr}");
    assert!(request("node list").1.contains("bootstrap_issued"));
}
