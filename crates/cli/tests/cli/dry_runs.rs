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
        ("machine update m-1 --serial s-1", &["m-1 updated"]),
        ("machine register m-2 --provider sim", &["m-2 registered"]),
        ("machine delete m-1", &["m-1 can be deleted"]),
        ("admin set-rma m-1 --reason fan", &["RMA set"]),
        ("import 3", &["machine-1"]),
    ] {
        let text = person.line(&format!("{line} --dry-run"), 0);
        for word in words.iter().chain(&["dry run: nothing was changed"]) {
            assert!(text.contains(word), "{line}: {word:?} is not in\n{text}");
        }
        assert!(!person.json(&format!("{line} --dry-run")).is_null(), "{line}");
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
    let (env, _) = TestServer::open("zero").await;
    let person = Terminal::new(env.server.url());
    tokio::task::spawn_blocking(move || try_actions(&person)).await.unwrap();
}

fn try_actions(person: &Terminal) {
    person.line("machine register m-1 --provider sim", 0);
    person.line("enter-maintenance m-1", 0);
    person.line("sim fault add --machine m-1 --effect repave --action hang --times 0", 0);
    let id = person.submit("reimage m-1 --image ubuntu-2204");
    person.at_step(&id, "repave-os");
    let cancel = person.line(&format!("cancel {id} --dry-run"), 0);
    assert!(cancel.contains("REIMAGE on m-1"), "{cancel}");
    let manual = person.line(&format!("operation mark-manual {id} --reason look --dry-run"), 0);
    assert!(manual.contains("no step"), "{manual}");
    let operation = person.json(&format!("operation get {id}"));
    assert_eq!(operation["phase"], "RUNNING", "{operation}");
}
