//! `--dry-run` on the commands that act: the answer says what would be done, and nothing changes.

use crate::api::TestServer;
use crate::api_cli::Terminal;

/// The histories and the record of a machine, and all operations: what a dry run must not change.
fn everything(person: &Terminal) -> String {
    let lines = ["history m-1", "operation list", "list", "credential list", "plan list"];
    lines.map(|line| person.line(&format!("{line} -o json"), 0)).join("\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_of_every_kind_of_command_changes_nothing() {
    let (env, _) = TestServer::open("zero").await;
    let person = Terminal::new(env.server.url());
    tokio::task::spawn_blocking(move || try_commands(&person)).await.unwrap();
}

fn try_commands(person: &Terminal) {
    person.line("machine register m-1 --provider sim", 0);
    person.line("enter-maintenance m-1", 0);
    let before = everything(person);
    for (line, words) in [
        (
            "reimage m-1 --image ubuntu-2204",
            &["REIMAGE on m-1", "repave", "ubuntu-2204", "time: "][..],
        ),
        ("reboot m-1", &["REBOOT on m-1", "reboot"]),
        ("exit-maintenance m-1", &["EXIT_MAINTENANCE on m-1"]),
        ("machine power m-1 off --force", &["POWER on m-1", "power"]),
        ("operation start m-1 --type UPGRADE", &["UPGRADE on m-1"]),
        ("machine update m-1 --serial s-1", &["m-1 would be updated"]),
        ("machine register m-2 --provider sim", &["m-2 would be registered"]),
        ("machine delete m-1", &["m-1 would be deleted"]),
        ("admin set-rma m-1 --reason fan", &["RMA would be set"]),
        ("import 3", &["machine-1"]),
    ] {
        let text = person.line(&format!("{line} --dry-run"), 0);
        for word in words.iter().chain(&["dry run: nothing was changed"]) {
            assert!(text.contains(word), "{line}: {word:?} is not in\n{text}");
        }
        let answer = person.json(&format!("{line} --dry-run"));
        assert!(!answer.is_null(), "{line}");
        // There is no operation, so it has no id and no phase.
        if text.contains("would execute") {
            assert_eq!(answer["run_id"].as_str().unwrap_or_default(), "", "{line}: {answer}");
            assert_eq!(answer["phase"].as_str().unwrap_or_default(), "", "{line}: {answer}");
        }
        assert_eq!(everything(person), before, "{line}");
    }
    // The gates are the real ones, and a command that has no dry run sends nothing.
    let refused = person.line("enter-maintenance m-1 --dry-run", 0);
    assert!(refused.contains("ENTER_MAINTENANCE"), "{refused}");
    person.line("machine delete m-9 --dry-run", 2);
    let refused =
        person.line("sim fault add --machine m-1 --effect reboot --action hang --dry-run", 2);
    assert!(refused.contains("CreateFault has no dry run"), "{refused}");
    assert_eq!(everything(person), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn actions_on_operations_can_be_tried() {
    let (env, _) = TestServer::open("human").await;
    let person = Terminal::new(env.server.url());
    tokio::task::spawn_blocking(move || try_actions(&person)).await.unwrap();
}

fn try_actions(person: &Terminal) {
    person.line("machine register m-1 --provider sim", 0);
    person.line("enter-maintenance m-1", 0);
    let id = person.submit("reimage m-1 --image ubuntu-2204");
    person.at_step(&id, "repave-os");
    let started = std::time::Instant::now();
    while !person.line(&format!("logs {id} --no-follow"), 0).contains("Progress: 10%") {
        assert!(started.elapsed() < crate::fleet::TEST_TIMEOUT);
    }
    let cancel = person.line(&format!("cancel {id} --dry-run"), 0);
    let heading = "REIMAGE on m-1 would be canceled, and these steps would undo its work:";
    assert!(cancel.contains(heading), "{cancel}");
    let manual = person.line(&format!("operation mark-manual {id} --reason look --dry-run"), 0);
    assert!(manual.contains("would stop and wait for an operator; no step"), "{manual}");
    for text in [&cancel, &manual] {
        assert!(text.contains("repave-os would be stopped at "), "{text}");
        assert!(text.contains(" %: the disk of m-1 would hold a part of ubuntu-2204"), "{text}");
    }
    // Nothing of an active operation is continued, and the refusal leaves its trace.
    for action in ["retry-step", "resume"] {
        for line in
            [format!("operation {action} {id} --dry-run"), format!("operation {action} {id}")]
        {
            let refused = person.line(&line, 2);
            assert!(refused.contains(&format!("{id} is still at work")), "{refused}");
        }
        let started = std::time::Instant::now();
        while !person.line(&format!("why {id}"), 0).contains(&format!("{action} of ")) {
            assert!(started.elapsed() < crate::fleet::TEST_TIMEOUT);
        }
    }
    let operation = person.json(&format!("operation get {id}"));
    assert_eq!(operation["phase"], "RUNNING", "{operation}");
    // The operation depends on the address of its machine.
    let refused = person.line("machine update m-1 --bmc-endpoint 10.0.0.9", 2);
    assert!(refused.contains(&id) && refused.contains("bmc_endpoint"), "{refused}");
    person.line("machine update m-1 --label a=b", 0);
    let refused = person.line("admin set-rma m-1 --reason fan", 2);
    assert!(refused.contains(&id), "{refused}");
    person.line(&format!("cancel {id}"), 0);

    // The disk is half written: the machine is not forgotten by accident.
    let refused = person.line("machine delete m-1", 2);
    assert!(refused.contains("--override unfinished-disk --reason …"), "{refused}");
    person.line("machine delete m-1 --override unfinished-disk --reason scrapped", 0);
    let history = person.line("history m-1", 0);
    assert!(history.contains("gate unfinished-disk overridden by"), "{history}");
}

/// The dry run of an adoption asks the device, as the operation would.
#[tokio::test(flavor = "multi_thread")]
async fn an_adoption_can_be_tried() {
    let (env, _) = TestServer::open("zero").await;
    let person = Terminal::new(env.server.url());
    tokio::task::spawn_blocking(move || try_adoption(&person)).await.unwrap();
}

fn try_adoption(person: &Terminal) {
    person.line("machine register m-1 --provider sim", 0);
    person.line("enter-maintenance m-1", 0);
    person.line("sim fault add --machine m-1 --effect power --action fail --times 0", 0);
    let failed = person.json("machine power m-1 off --no-wait");
    let id = failed["operation_id"].as_str().unwrap().to_string();
    person.line(&format!("operation watch {id}"), 1);
    let before = person.json(&format!("operation get {id}"));
    // The machine is on: the step does not hold, and the operation would fail again.
    let text = person.line(&format!("operation adopt {id} --reason done --dry-run"), 1);
    assert!(text.contains("would fail: step power-off cannot be adopted"), "{text}");
    assert_eq!(person.json(&format!("operation get {id}")), before);
    let text = person.line(&format!("operation adopt {id} --reason done"), 1);
    assert!(text.contains("cannot be adopted"), "{text}");

    // After another operation has switched it off, a new one of this kind holds.
    person.line("sim fault delete --all", 0);
    person.line(&format!("operation retry-step {id}"), 0);
    person.line("sim fault add --machine m-1 --effect power --action fail --times 0", 0);
    let failed = person.json("machine power m-1 off --no-wait");
    let id = failed["operation_id"].as_str().unwrap().to_string();
    person.line(&format!("operation watch {id}"), 1);
    let text = person.line(&format!("operation adopt {id} --reason done --dry-run"), 0);
    assert!(text.contains("power-off would be adopted"), "{text}");
    person.line(&format!("operation adopt {id} --reason done"), 0);
}

/// The usual time of a step is shown after ten durations on a hardware model.
#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_shows_the_usual_time() {
    let (env, _) = TestServer::open("zero").await;
    let person = Terminal::new(env.server.url());
    tokio::task::spawn_blocking(move || {
        person.line("machine register m-1 --provider sim", 0);
        person.line("enter-maintenance m-1", 0);
        let text = person.line("reboot m-1 --dry-run", 0);
        assert!(text.contains("time: at most") && !text.contains("usually"), "{text}");
        for _ in 0..10 {
            person.line("reboot m-1", 0);
        }
        // The durations are recorded shortly after the operations have ended.
        let started = std::time::Instant::now();
        loop {
            let text = person.line("reboot m-1 --dry-run", 0);
            if text.contains("time: usually ") && text.contains(", up to ") {
                break;
            }
            assert!(started.elapsed() < crate::fleet::TEST_TIMEOUT, "{text}");
        }
    })
    .await
    .unwrap();
}

/// Commands that only read, or that act on no server.
const READS: &[&str] = &[
    "serve",
    "agent run",
    "agent enroll",
    "agent status",
    "agent unit",
    "agent config",
    "list",
    "get",
    "ops",
    "watch",
    "logs",
    "plans",
    "why",
    "history",
    "fault",
    "machine get",
    "machine list",
    "machine watch",
    "machine console-log",
    "machine power machine-1 status",
    "operation list",
    "operation get",
    "operation watch",
    "operation logs",
    "plan get",
    "plan list",
    "credential get",
    "credential list",
    "trust get",
    "trust list",
    "health get",
    "health list",
    "image list",
    "image get",
    "component firmware status",
    "component firmware versions",
    "firmware list",
    "firmware get",
    "firmware history",
    "netboot config",
    "switch list",
    "switch get",
    "power-shelf list",
    "power-shelf get",
    "rack list",
    "rack get",
    "rack watch",
    "rack maintenance status",
    "rack maintenance watch",
    "node list",
    "node get",
    "node watch",
    "site list",
    "site get",
    "cluster check",
    "admin replicas",
    "db check",
    "sim fault list",
    "sim effects",
    "completions",
];

/// The exit codes of a dry run that says what would happen, of one whose operation would fail, and
/// of one that would be refused. The last prints no result.
const CODES: [i32; 3] = [0, 1, 2];

/// A dry run of every command that acts, and whether it must be accepted here.
const ACTS: &[(&str, bool)] = &[
    ("import 2", true),
    ("reboot m-1", true),
    ("reimage m-1 --image ubuntu-2204", true),
    ("enter-maintenance m-1", true),
    ("exit-maintenance m-1", true),
    ("cancel op-1", false),
    ("machine register m-9 --provider sim --rack rack-1", true),
    ("machine update m-1 --rack rack-1", true),
    ("machine delete m-1", true),
    ("machine reboot m-1", true),
    ("machine reimage m-1 --image ubuntu-2204", true),
    ("machine enter-maintenance m-1", true),
    ("machine exit-maintenance m-1", true),
    ("machine inspect m-1", false),
    ("machine power machine-1 on", false),
    ("machine power machine-1 off", false),
    ("machine power machine-1 cycle", false),
    ("machine reprovision m-1", false),
    ("machine rma m-1", true),
    ("machine exit-rma m-1", false),
    ("operation start m-1 --type UPGRADE", true),
    ("operation cancel op-1", false),
    ("operation retry-step op-1", false),
    ("operation resume op-1", false),
    ("operation rerun op-1", false),
    ("operation restart-clean op-1", false),
    ("operation adopt op-1", false),
    ("operation mark-manual op-1 --reason r", false),
    ("plan create --file none.yaml", false),
    ("credential create new --user u --password-file {file}", true),
    ("credential update cx --user u --password-file {file}", true),
    ("credential set cx --user u --password-file {file}", true),
    ("credential delete cx", true),
    ("trust create https://a --identity sha256:00", false),
    ("trust update https://a --identity sha256:00", false),
    ("trust set https://a --identity sha256:00", false),
    ("trust delete https://a", false),
    ("bmc test 127.0.0.1:1", false),
    ("bmc unlock 127.0.0.1:1", true),
    ("discover 127.0.0.1", false),
    ("health report m-1 --source s --alert id=nic,message=slow", true),
    ("health replace m-1 --source s --alert id=nic,message=slow", true),
    ("health delete m-1 --source s", false),
    ("image create none --file none", false),
    ("image delete ubuntu-2204", true),
    ("component firmware update --compute-trays m-1", false),
    ("firmware create fw-9 --hardware-type gb200 --component machine:BMC=2", false),
    ("firmware set-default fw-9", false),
    ("firmware set-available fw-9 true", false),
    ("firmware delete fw-9", false),
    ("switch register sw-9 --provider sim --rack rack-1", true),
    ("switch update sw-1 --rack rack-1", true),
    ("switch delete sw-1", true),
    ("switch retry sw-1", false),
    ("power-shelf register ps-9 --provider sim", true),
    ("power-shelf update ps-1 --rack rack-1", true),
    ("power-shelf delete ps-1", true),
    ("power-shelf retry ps-1", false),
    ("power-shelf maintenance power-on --id ps-1", false),
    ("power-shelf maintenance power-off --id ps-1", false),
    ("rack create rack-9", true),
    ("rack update rack-1 --room x", true),
    ("rack delete rack-1", true),
    ("rack reprovision rack-1", false),
    ("rack maintenance start rack-1", false),
    ("rack maintenance cancel rack-1", false),
    ("node onboard m-1 --site site-a", true),
    ("node decommission {node} --mode reimage", true),
    ("node drain {node}", true),
    ("node retire {node}", true),
    ("node reactivate {node}", false),
    ("node resume {node}", false),
    ("node quarantine {node} --reason r", true),
    ("node release {node} --reason r", true),
    ("node bootstrap m-1", false),
    ("site create site-c --provider sim", true),
    ("site update site-b --zone z", true),
    ("site check site-a", false),
    ("site delete site-b", true),
    ("admin set-rma m-1 --reason r", true),
    ("admin clear-rma m-1 --reason r", false),
    ("admin set-retired m-1 --reason r", true),
    ("admin clear-retired m-1 --reason r", false),
    ("admin clear-needs-intervention m-1 --reason r", false),
    ("db set-aside machine m-1 --reason r", false),
    ("db put-back machine m-1 --reason r", false),
    ("sim fault create --machine m-1 --effect reboot --action fail", false),
    ("sim fault delete --all", false),
];

/// Words that say that a thing was done.
const DONE: [&str; 12] = [
    "registered",
    "created",
    "updated",
    "deleted",
    "cleared",
    "unlocked",
    "trusted",
    "accepted",
    "canceled",
    "set",
    "marked",
    "changed",
];

#[tokio::test(flavor = "multi_thread")]
async fn no_dry_run_says_that_a_thing_was_done() {
    let (env, _) = TestServer::open("zero").await;
    let person = Terminal::new(env.server.url());
    tokio::task::spawn_blocking(move || try_all(&person)).await.unwrap();
}

fn try_all(person: &Terminal) {
    person.line("machine register m-1 --provider sim", 0);
    person.line("enter-maintenance m-1", 0);
    person.line("rack create rack-1 --expect-machines 3", 0);
    person.line("switch register sw-1 --provider sim", 0);
    person.line("power-shelf register ps-1 --provider sim", 0);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "secret\n").unwrap();
    let file = file.path().to_str().unwrap();
    person.line(&format!("credential create cx --user u --password-file {file}"), 0);
    for site in ["site-a", "site-b"] {
        person.line(&format!("site create {site} --provider sim"), 0);
    }
    person.line("machine register m-2 --provider sim", 0);
    person.line("node onboard m-2 --site site-a", 0);
    let nodes = person.json("node list");
    let node = nodes[0]["node_id"].as_str().unwrap_or_else(|| panic!("{nodes}"));
    for page in crate::api_cli::help_pages(&[]).into_iter().filter(|page| page.leaf) {
        let path = page.path.join(" ");
        let acts = ACTS.iter().any(|(line, _)| format!("{line} ").starts_with(&format!("{path} ")));
        let reads = READS.contains(&path.as_str());
        assert!(acts != reads, "{path}: give it a row in ACTS, or a name in READS");
    }
    for (line, accepted) in ACTS {
        let line = line.replace("{file}", file).replace("{node}", node);
        let line = format!("{line} --dry-run");
        let text = match accepted {
            true => person.line(&line, 0),
            false => person.output_with_codes(&line, &CODES),
        };
        for shown in text.lines().filter(|shown| !shown.contains("nothing was changed")) {
            let mut words = shown.split_whitespace();
            let done = words
                .find(|word| DONE.contains(&word.trim_matches(|c: char| !c.is_alphanumeric())));
            let conditional = shown.contains("would") || shown.starts_with("error: ");
            assert!(done.is_none() || conditional, "{line}: {shown}");
        }
    }
    // A change of the devices of a rack names what the rack does then.
    for line in [
        "machine register m-9 --provider sim --rack rack-1",
        "machine update m-1 --rack rack-1",
        "switch register sw-9 --provider sim --rack rack-1",
        "rack update rack-1 --expect-machines 1",
        "rack create rack-9",
    ] {
        let text = person.line(&format!("{line} --dry-run"), 0);
        let rack = if line.ends_with("rack-9") { "rack-9" } else { "rack-1" };
        let follows = format!("{rack} goes on to look for its devices; when all are there");
        assert!(text.contains(&follows), "{line}:\n{text}");
    }
}
