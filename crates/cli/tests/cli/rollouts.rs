//! Rollouts through the command line: every command, and a server that is killed in the middle.

use crate::api::TestServer;
use crate::api_cli::Terminal;
use crate::fleet::{Server, Setup};
use crate::stage::{farrier, finish};
use std::path::Path;
use std::time::Duration;

/// Brings machines into service, with a label of their own.
fn in_service(person: &Terminal, machines: &[&str], label: &str) {
    for machine in machines {
        person.line(&format!("machine register {machine} --provider sim --label {label}"), 0);
        person.line(&format!("enter-maintenance {machine}"), 0);
        person.line(&format!("exit-maintenance {machine}"), 0);
    }
}

fn id_of(answer: &serde_json::Value) -> String {
    let rollout = answer.get("rollout").unwrap_or(answer);
    rollout["rollout_id"].as_str().unwrap_or_else(|| panic!("{answer}")).to_string()
}

fn wait_for_state(person: &Terminal, id: &str, state: &str) {
    person.wait_for(&format!("rollout get {id}"), |one| one["status"]["state"] == state);
}

/// Types every command of rollouts.
pub fn typed(person: &Terminal, dir: &Path) {
    in_service(person, &["fleet-1", "fleet-2", "fleet-3"], "fleet=typed");
    person.line("machine register fleet-4 --provider sim --label fleet=typed", 0);
    let create = "rollout create reboot --filter labels.fleet=typed --canary 1 --batch 1";
    person.check_dry_run(
        create,
        "rollout list",
        &["REBOOT of 3 machines, in 3 waves", "Wave 1: 1 machines: fleet-1", "fleet-4: it is in"],
    );
    refused_requests(person);

    let id = id_of(&person.json(&format!("{create} --wave-approval --request-id typed-1")));
    assert_eq!(id_of(&person.json(&format!("{create} --wave-approval --request-id typed-1"))), id);
    let message = person.line(&format!("{create} --request-id typed-1"), 2);
    assert!(message.contains("was used for"), "{message}");
    wait_for_state(person, &id, "AwaitingApproval");
    person.formats("rollout list", &id);
    person.formats(&format!("rollout get {id}"), "AwaitingApproval");
    person.formats(&format!("rollout targets {id}"), "fleet-2");
    let message = person.line(&format!("rollout targets {id} --state failed"), 0);
    assert!(!message.contains("fleet-"), "{message}");
    let why = person.line(&format!("why {id}"), 0);
    assert!(why.contains(&format!("farrier rollout promote {id}")), "{why}");
    let history = person.line(&format!("history {id}"), 0);
    assert!(history.contains("wave 1 begins, with 1 of 3 targets"), "{history}");
    let update = format!("rollout update {id} --batch 2 --stop-after 2 --max-in-flight 5");
    person.check_dry_run(&update, &format!("rollout get {id}"), &["batch"]);
    person.line(&update, 0);
    assert_eq!(person.json(&format!("rollout get {id}"))["pace"]["batch"], "2");
    person.line(&format!("rollout update {id} --soak 1s --expected-version 1"), 2);
    let pause = format!("rollout pause {id} --reason lunch");
    person.check_dry_run(&pause, &format!("rollout get {id}"), &["would be paused"]);
    person.line(&pause, 0);
    person.line(&format!("rollout promote {id}"), 2);
    person.line(&format!("rollout resume {id}"), 0);
    person.line(&format!("rollout skip {id} fleet-3 --reason used"), 0);
    person.line(&format!("rollout skip {id} nobody"), 2);
    person.line(&format!("rollout promote {id}"), 0);
    // A skipped target is no success.
    let message = person.line(&format!("rollout watch {id}"), 1);
    assert!(message.contains("Done, wave 2 of 2, 2 done, 1 skipped"), "{message}");
    person.line(&format!("rollout retry-failed {id}"), 2);
    person.line(&format!("rollout abort {id} --reason late"), 2);
    from_a_file(person, dir);
}

fn refused_requests(person: &Terminal) {
    for (line, words) in [
        ("rollout create reboot --filter labels.fleet=none", "no machine matches"),
        ("rollout create reboot --filter machine_id=fleet-4", "FACTORY_READY"),
        ("rollout create reimage --filter labels.fleet=typed", "image_ref"),
        ("rollout create reboot --filter labels.fleet=typed --batch some", "linear:1+2"),
        ("rollout create reboot --filter labels.fleet=typed --stop-after 0", "write 3 or 2%"),
        (
            "rollout create reboot --filter labels.fleet=typed --gate condition.X=true",
            "InCustomerCluster",
        ),
        ("rollout create reboot --filter shoe=1", "shoe"),
        ("rollout create fly --filter labels.fleet=typed", "net-reconfig"),
        ("rollout get ro-00000000000000000000", "farrier rollout list"),
        ("rollout get op-1", "rollout_id"),
        ("rollout watch ro-00000000000000000000", "farrier rollout list"),
        ("rollout pause ro-00000000000000000000 --reason r", "farrier rollout list"),
        ("rollout list --filter state=Flying", "AwaitingApproval"),
    ] {
        let message = person.line(line, 2);
        assert!(message.contains(words), "{line}: {message}");
    }
}

fn from_a_file(person: &Terminal, dir: &Path) {
    let file = dir.join("rollout.yaml");
    let text = "spec:\n  type: REBOOT\n  filter: labels.fleet=typed\npace:\n  batch: 100%\n";
    std::fs::write(&file, text).unwrap();
    let file = file.display().to_string();
    let start = "2030-01-01T00:00:00Z";
    let created =
        person.run(&["rollout", "create", "-f", &file, "--start-at", start, "-o", "json"], 0);
    let id = id_of(&serde_json::from_str(&created).unwrap());
    wait_for_state(person, &id, "Waiting");
    let message = person.line(&format!("rollout watch {id} --timeout 1s"), 3);
    assert!(message.contains(&format!("farrier rollout watch {id}")), "{message}");
    person.line(&format!("rollout abort {id} --cancel-running --reason wrong"), 0);
    let message = person.line(&format!("rollout watch {id}"), 1);
    assert!(message.contains("Aborted"), "{message}");
    let refused = person.run(&["rollout", "create", "-f", "/nowhere.yaml"], 2);
    assert!(refused.contains("/nowhere.yaml"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_targets_pause_a_rollout_and_are_tried_again() {
    let (env, _) = TestServer::open("zero").await;
    let url = env.server.url();
    tokio::task::spawn_blocking(move || {
        let person = Terminal::new(url);
        in_service(&person, &["m-1", "m-2", "m-3"], "fleet=failing");
        person.line("sim fault create --machine m-1 --effect reboot --action fail --times 0", 0);
        let create = "rollout create reboot --filter labels.fleet=failing --batch 1";
        let id = id_of(&person.json(create));
        wait_for_state(&person, &id, "Paused");
        let why = person.line(&format!("why {id}"), 0);
        assert!(why.contains("1 of 3 targets failed"), "{why}");
        assert!(why.contains(&format!("farrier rollout resume {id}")), "{why}");
        let failed = person.json(&format!("rollout targets {id} --state failed"));
        assert_eq!(failed[0]["machine_id"], "m-1", "{failed}");
        assert_eq!(person.json("machine get m-1")["status"]["phase"], "MAINTENANCE");
        person.line("sim fault delete --all", 0);
        person.line(&format!("rollout retry-failed {id}"), 0);
        person.line(&format!("rollout resume {id}"), 0);
        let message = person.line(&format!("rollout watch {id}"), 0);
        assert!(message.contains("3 done"), "{message}");
        assert_eq!(person.json("machine get m-1")["status"]["phase"], "READY");
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_survives_kill_9_in_the_middle() {
    const MACHINES: [&str; 6] = ["m-1", "m-2", "m-3", "m-4", "m-5", "m-6"];
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(Setup::new(dir.path(), "fast"));
    let url = server.url();
    let id = tokio::task::spawn_blocking(move || {
        let person = Terminal::new(url);
        in_service(&person, &MACHINES, "fleet=killed");
        let create = "rollout create reboot --filter labels.fleet=killed --batch linear:1+1";
        id_of(&person.json(create))
    })
    .await
    .unwrap();
    let follower = farrier(&server.url(), &["rollout", "watch", &id]);
    for _ in 0..4 {
        tokio::time::sleep(Duration::from_millis(300)).await;
        server = Server::start(server.kill());
    }
    let (code, stdout, stderr) = finish(follower);
    assert_eq!(code, 0, "{stdout}{stderr}");
    assert!(stdout.contains("6 done"), "{stdout}");
    let url = server.url();
    tokio::task::spawn_blocking(move || {
        let person = Terminal::new(url);
        for machine in MACHINES {
            let filter = format!("machine_id={machine} AND initiator={id}");
            let line = ["operation", "list", "--filter", filter.as_str(), "-o", "json"];
            let found: serde_json::Value = serde_json::from_str(&person.run(&line, 0)).unwrap();
            let found = found.as_array().unwrap();
            let mut types: Vec<&str> =
                found.iter().map(|one| one["type"].as_str().unwrap()).collect();
            types.sort_unstable();
            assert_eq!(types, ["ENTER_MAINTENANCE", "EXIT_MAINTENANCE", "REBOOT"], "{found:?}");
            assert!(found.iter().all(|one| one["phase"] == "SUCCEEDED"), "{found:?}");
        }
    })
    .await
    .unwrap();
}
