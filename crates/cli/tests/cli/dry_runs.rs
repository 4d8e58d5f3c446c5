//! `--dry-run` on the commands that act: the answer says what would be done, and nothing changes.

use crate::api::TestServer;
use crate::api_cli::Terminal;
use std::collections::BTreeSet;

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
        let untimed = "time: not enough such steps were timed yet; their deadlines add up to ";
        assert!(text.contains(untimed) && !text.contains("usually"), "{text}");
        for _ in 0..10 {
            person.line("reboot m-1", 0);
        }
        // The durations are recorded shortly after the operations have ended.
        let started = std::time::Instant::now();
        loop {
            let text = person.line("reboot m-1 --dry-run", 0);
            if text.contains("time: usually ") && text.contains(", up to ") {
                // The deadlines say nothing beside the usual time.
                assert!(!text.contains("deadlines"), "{text}");
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
    "login",
    "context list",
    "context use",
    "context delete",
    "whoami",
    "token list",
    "token recover",
    "role list",
    "role bindings",
    "approval list",
    "approval get",
    "approval policy get",
    "audit status",
    "audit list",
    "audit verify",
    "serve",
    "tls init",
    "tls renew",
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
    "notify list",
    "notify get",
    "notify dead-letters",
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

/// The expected answer to the dry run of a command.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// It would be accepted, and would start an operation, whose time it shows.
    Starts,
    Accepted,
    /// It may be refused, or would fail.
    Any,
}

use Answer::{Accepted, Any, Starts};

/// A dry run of every command that acts.
const ACTS: &[(&str, Answer)] = &[
    ("console", Accepted),
    ("token create --user ci --role viewer", Accepted),
    ("token revoke tok-00000000000000000000", Any),
    ("role create night --permission view", Accepted),
    ("role delete night", Any),
    ("role bind viewer user:ada", Accepted),
    ("role unbind rb-00000000000000000000", Any),
    ("approve apr-00000000000000000000", Any),
    ("approval approve apr-00000000000000000000", Any),
    ("approval deny apr-00000000000000000000", Any),
    ("approval policy set --permission destroy", Accepted),
    ("import 2", Accepted),
    ("reboot m-1", Starts),
    ("reimage m-1 --image ubuntu-2204", Starts),
    ("enter-maintenance m-1", Starts),
    ("exit-maintenance m-1", Starts),
    ("cancel op-1", Any),
    ("machine register m-9 --provider sim --rack rack-1", Accepted),
    ("machine update m-1 --rack rack-1", Accepted),
    ("machine delete m-1", Accepted),
    ("machine reboot m-1", Starts),
    ("machine reimage m-1 --image ubuntu-2204", Starts),
    ("machine enter-maintenance m-1", Starts),
    ("machine exit-maintenance m-1", Starts),
    ("machine inspect m-1", Any),
    ("machine power machine-1 on", Any),
    ("machine power machine-1 off", Any),
    ("machine power machine-1 cycle", Any),
    ("machine reprovision m-1", Any),
    ("machine rma m-1", Starts),
    ("machine exit-rma m-1", Any),
    ("operation start m-1 --type UPGRADE", Starts),
    ("operation cancel op-1", Any),
    ("operation retry-step op-1", Any),
    ("operation resume op-1", Any),
    ("operation rerun op-1", Any),
    ("operation restart-clean op-1", Any),
    ("operation adopt op-1", Any),
    ("operation mark-manual op-1 --reason r", Any),
    ("plan create --file none.yaml", Any),
    ("credential create new --user u --password-file {file}", Accepted),
    ("credential update cx --user u --password-file {file}", Accepted),
    ("credential set cx --user u --password-file {file}", Accepted),
    ("credential delete cx", Accepted),
    ("secret rotate", Accepted),
    ("trust create https://a --identity sha256:00", Any),
    ("trust update https://a --identity sha256:00", Any),
    ("trust set https://a --identity sha256:00", Any),
    ("trust delete https://a", Any),
    ("bmc test 127.0.0.1:1", Any),
    ("bmc unlock 127.0.0.1:1", Accepted),
    ("discover 127.0.0.1", Any),
    ("health report m-1 --source s --alert id=nic,message=slow", Accepted),
    ("health replace m-1 --source s --alert id=nic,message=slow", Accepted),
    ("health delete m-1 --source s", Any),
    ("image create none --file none", Any),
    ("image delete ubuntu-2204", Accepted),
    ("component firmware update --compute-trays m-1", Any),
    ("firmware create fw-9 --hardware-type gb200 --component machine:BMC=2", Any),
    ("firmware set-default fw-9", Any),
    ("firmware set-available fw-9 true", Any),
    ("firmware delete fw-9", Any),
    ("switch register sw-9 --provider sim --rack rack-1", Starts),
    ("switch update sw-1 --rack rack-1", Accepted),
    ("switch delete sw-1", Accepted),
    ("switch retry sw-1", Any),
    ("power-shelf register ps-9 --provider sim", Starts),
    ("power-shelf update ps-1 --rack rack-1", Accepted),
    ("power-shelf delete ps-1", Accepted),
    ("power-shelf retry ps-1", Any),
    ("power-shelf maintenance power-on --id ps-1", Any),
    ("power-shelf maintenance power-off --id ps-1", Any),
    ("rack create rack-9", Accepted),
    ("rack update rack-1 --room x", Accepted),
    ("rack delete rack-1", Accepted),
    ("rack reprovision rack-1", Any),
    ("rack maintenance start rack-1", Any),
    ("rack maintenance cancel rack-1", Any),
    ("node onboard m-1 --site site-a", Starts),
    ("node decommission {node} --mode reimage", Starts),
    ("node drain {node}", Starts),
    ("node retire {node}", Starts),
    ("node reactivate {node}", Any),
    ("node resume {node}", Any),
    ("node quarantine {node} --reason r", Accepted),
    ("node release {node} --reason r", Accepted),
    ("node bootstrap m-1", Any),
    (
        "notify create ops --url https://127.0.0.1:1/in --credential cx --kind needs-person",
        Accepted,
    ),
    ("notify update hook --source /b", Accepted),
    ("notify pause hook", Accepted),
    ("notify resume hook", Accepted),
    ("notify test hook", Any),
    ("notify replay hook --all", Accepted),
    ("notify discard hook --all", Accepted),
    ("notify delete hook", Accepted),
    ("site create site-c --provider sim", Accepted),
    ("site update site-b --zone z", Accepted),
    ("site check site-a", Any),
    ("site delete site-b", Accepted),
    ("admin set-rma m-1 --reason r", Accepted),
    ("admin clear-rma m-1 --reason r", Any),
    ("admin set-retired m-1 --reason r", Accepted),
    ("admin clear-retired m-1 --reason r", Any),
    ("admin clear-needs-intervention m-1 --reason r", Any),
    ("db set-aside machine m-1 --reason r", Any),
    ("db put-back machine m-1 --reason r", Any),
    // These rows start an operation only in this state of the fixture.
    ("machine power m-1 off", Starts),
    ("operation retry-step {failed}", Starts),
    ("operation resume {failed}", Starts),
    ("operation rerun {failed}", Starts),
    ("operation restart-clean {failed}", Starts),
    ("operation adopt {failed} --reason r", Any),
    ("operation mark-manual {failed} --reason r", Accepted),
    ("rack maintenance start rack-2", Starts),
    ("rack maintenance start rack-2 --power reset", Starts),
    ("rack reprovision rack-2", Starts),
    ("power-shelf maintenance power-on --id ps-1", Starts),
    ("power-shelf maintenance power-off --id ps-1", Starts),
    ("sim fault create --machine m-1 --effect reboot --action fail", Any),
    ("sim fault delete --all", Any),
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

/// The length of the part of an id that is generated.
const GENERATED: usize = 20;

/// The ids of operations and nodes in a text.
fn ids_in(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
    words.filter(|word| {
        let id = word.strip_prefix("op-").or_else(|| word.strip_prefix("node-"));
        id.is_some_and(|id| id.len() >= GENERATED && id.chars().all(char::is_alphanumeric))
    })
}

/// The ids of all operations and nodes.
fn known_ids(person: &Terminal) -> BTreeSet<String> {
    let all = ["operation list --all", "node list"].map(|line| person.json(line).to_string());
    all.iter().flat_map(|text| ids_in(text)).map(String::from).collect()
}

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
    let notifier = "--url https://127.0.0.1:1/in --credential cx --kind needs-person";
    person.line(&format!("notify create hook {notifier}"), 0);
    for site in ["site-a", "site-b"] {
        person.line(&format!("site create {site} --provider sim"), 0);
    }
    person.line("machine register m-2 --provider sim", 0);
    person.line("node onboard m-2 --site site-a", 0);
    // A rack in service, and an operation that has failed.
    person.line("rack create rack-2 --expect-machines 1", 0);
    person.line("machine register m-4 --provider sim --rack rack-2", 0);
    for object in ["rack get rack-2", "power-shelf get ps-1"] {
        person.wait_for(object, |one| one["status"]["state"] == "Ready");
    }
    person.line("machine register m-3 --provider sim", 0);
    person.line("enter-maintenance m-3", 0);
    person.line("sim fault add --machine m-3 --effect power --action fail --times 0", 0);
    let failed = person.submit("machine power m-3 off");
    person.line(&format!("operation watch {failed}"), 1);
    person.line("sim fault delete --all", 0);
    let nodes = person.json("node list");
    let node = nodes[0]["node_id"].as_str().unwrap_or_else(|| panic!("{nodes}"));
    for page in crate::api_cli::help_pages(&[]).into_iter().filter(|page| page.leaf) {
        let path = page.path.join(" ");
        let acts = ACTS.iter().any(|(line, _)| format!("{line} ").starts_with(&format!("{path} ")));
        let reads = READS.contains(&path.as_str());
        assert!(acts != reads, "{path}: give it a row in ACTS, or a name in READS");
    }
    let known = known_ids(person);
    for (line, answer) in ACTS {
        let line =
            line.replace("{file}", file).replace("{node}", node).replace("{failed}", &failed);
        let line = format!("{line} --dry-run");
        let text = match answer {
            Starts | Accepted => person.line(&line, 0),
            Any => person.output_with_codes(&line, &CODES),
        };
        let timed = text.contains("time: ") || text.contains("deadlines add up to ");
        assert!(timed || *answer != Starts, "{line} shows no time:\n{text}");
        // A later request finds every operation and every node that a dry run shows.
        let json = person.output_with_codes(&format!("{line} -o json"), &CODES);
        for id in ids_in(&text).chain(ids_in(&json)) {
            assert!(known.contains(id), "{line}: {id} does not exist:\n{text}");
        }
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
    // Both racks say what they wait for after a move.
    let text = person.line("machine update m-4 --rack rack-1 --dry-run", 0);
    for waits in [
        "rack-1 goes on to look for its devices",
        "until then it waits: 1 of 3 machines stand in it",
        "rack-2 looks for all its devices again",
        "until then it waits: 0 of 1 machines stand in it",
    ] {
        assert!(text.contains(waits), "{waits}:\n{text}");
    }
}

/// A resume asks the device what became of the last attempt: the dry run shows no disk write.
#[tokio::test(flavor = "multi_thread")]
async fn a_resume_shows_what_is_asked_first() {
    let (env, mut api) = TestServer::open("zero").await;
    let person = Terminal::new(env.server.url());
    let id = api.in_doubt("m-1", "REPAVE", "repave").await.run_id;
    tokio::task::spawn_blocking(move || {
        let line = format!("operation resume {id} --dry-run");
        let text = person.line(&line, 0);
        let first = "REIMAGE on m-1 would ask what became of repave-os; then execute these steps:";
        assert_eq!(text.lines().next(), Some(first), "{text}");
        for expected in [
            "m-1 would be asked what became of repave-os (attempt 1) before anything is executed",
            "if that is not known, the operation stops for an operator",
            "\njoin-cluster ",
            "their deadlines add up to ",
        ] {
            assert!(text.contains(expected), "{expected}:\n{text}");
        }
        assert!(!text.contains("\nrepave-os ") && !text.contains("ubuntu-2204"), "{text}");
        let preview = &person.json(&line)["preview"];
        assert_eq!(preview["asked_step"], "repave-os", "{preview}");
        // A retry writes the disk again.
        let text = person.line(&format!("operation retry-step {id} --dry-run"), 0);
        assert!(text.contains("\nrepave-os ") && text.contains("ubuntu-2204"), "{text}");
        // And that is what the resume does: the disk was written, and is not written again.
        person.line(&format!("operation resume {id}"), 0);
        let steps = person.json(&format!("operation get {id}"))["steps"].clone();
        let written = steps.as_array().unwrap().iter().find(|step| step["name"] == "repave-os");
        assert_eq!(written.unwrap()["state"], "SUCCEEDED", "{steps}");
    })
    .await
    .unwrap();
}

/// The dry run of an update names every field that changes, also those that no option names.
#[tokio::test(flavor = "multi_thread")]
async fn an_update_names_what_else_changes() {
    let (env, _) = TestServer::open("zero").await;
    let person = Terminal::new(env.server.url());
    tokio::task::spawn_blocking(move || {
        for rack in ["rack-1", "rack-2"] {
            person.line(&format!("rack create {rack} --expect-machines 3"), 0);
        }
        person.line("power-shelf register ps-1 --provider sim --rack rack-1 --slot 1", 0);
        person.line("machine register m-1 --provider sim --rack rack-1 --slot 7 --feeds ps-1", 0);
        person.line("switch register sw-1 --provider sim --rack rack-1 --slot 9", 0);
        for (line, fields) in [
            (
                "machine update m-1 --rack rack-2",
                &["rack_id: rack-1 → rack-2", "slot: 7 → none", "feeds: ps-1 → none"][..],
            ),
            ("machine update m-1 --slot 8", &["slot: 7 → 8"]),
            ("switch update sw-1 --rack rack-2", &["rack_id: rack-1 → rack-2", "slot: 9 → none"]),
            ("machine update m-1 --label a=b", &["labels.a: none → b"]),
        ] {
            let text = person.line(&format!("{line} --dry-run"), 0);
            let shown = text.lines().filter(|line| line.contains(" → "));
            let shown: BTreeSet<&str> = shown.map(str::trim).collect();
            assert_eq!(shown, fields.iter().copied().collect(), "{line}:\n{text}");
        }
        // The update does the same.
        person.line("machine update m-1 --rack rack-2", 0);
        let spec = person.json("machine get m-1")["spec"].clone();
        assert_eq!((&spec["rack_id"], &spec["slot"]), (&"rack-2".into(), &serde_json::Value::Null));
    })
    .await
    .unwrap();
}

/// A dry run with an override names each gate that it passes.
#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_names_the_gates_that_its_override_passes() {
    let (env, _) = TestServer::open("zero").await;
    let person = Terminal::new(env.server.url());
    tokio::task::spawn_blocking(move || {
        let serve = |id: &str| {
            person.line(&format!("enter-maintenance {id}"), 0);
            person.line(&format!("exit-maintenance {id}"), 0);
        };
        person.line("machine register m-1 --provider sim", 0);
        person.line("enter-maintenance m-1", 0);
        person.line(
            "health report m-1 --source s --alert id=nic,message=slow,class=prevent-state-changes",
            0,
        );
        person.line("rack create rack-1 --expect-machines 1 --expect-power-shelves 1", 0);
        person.line("power-shelf register ps-1 --provider sim --rack rack-1", 0);
        person.line("machine register m-2 --provider sim --rack rack-1", 0);
        person.wait_for("rack get rack-1", |one| one["status"]["state"] == "Ready");
        serve("m-2");
        person.line("site create site-a --provider sim", 0);
        person.line("machine register m-3 --provider sim", 0);
        person.line("node onboard m-3 --site site-a", 0);
        let nodes = person.json("node list");
        let node = nodes[0]["node_id"].as_str().unwrap_or_else(|| panic!("{nodes}"));
        let passes = "refuses it, and the override passes it";
        let needless = "is named by the override, and does not refuse it";
        for (line, gate, expected) in [
            ("reboot m-1", "health", passes),
            ("reboot m-1", "health,in-service", needless),
            ("node onboard m-1 --site site-a", "health", passes),
            ("node drain {node}", "agent", "the tasks of the agent would be left out"),
            ("rack maintenance start rack-1 --power off", "in-service", passes),
            ("rack maintenance start rack-1 --power on", "in-service", needless),
            ("power-shelf maintenance power-off --id ps-1", "in-service", passes),
            ("power-shelf maintenance power-off --id ps-1", "in-service,health", needless),
        ] {
            let line = line.replace("{node}", node);
            let line = format!("{line} --override {gate} --reason fire --dry-run");
            let gate = gate.rsplit(',').next().unwrap_or_default();
            let text = person.output_with_codes(&line, &CODES);
            // The gate `agent` refuses nothing: it leaves tasks out.
            let expected = match gate {
                "agent" => expected.to_string(),
                gate => format!("gate {gate} {expected}"),
            };
            assert!(text.contains(&expected), "{line}:\n{text}");
        }
    })
    .await
    .unwrap();
}
