//! Commands after a failed or canceled operation: `get`, `list`, `why`, and the printed repairs.

use crate::api_cli::Terminal;
use crate::fleet::Server;
use crate::repairs::{ended, node_of, quick};

/// A failed reimage leaves a boot from the network: `get`, the dry run of the exit, the exit itself
/// and `why` say so, and the printed command disarms it.
#[test]
fn an_armed_network_boot_is_told_on_the_way_into_service() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(quick(dir.path()));
    let person = Terminal::new(server.url());
    person.line("machine register m-1 --provider sim", 0);
    person.line("enter-maintenance m-1", 0);
    person.line("sim fault create --machine m-1 --effect repave --action fail --times 0", 0);
    person.line("reimage m-1 --image rhel-9", 1);
    let words = "its next boot may be from the network";
    let disarm = "operation start m-1 --type POWER --plan plan-boot-from-disk-v1";
    let preview = person.line("exit-maintenance m-1 --dry-run", 0);
    assert!(preview.contains(words) && preview.contains(disarm), "{preview}");
    let left = person.line("exit-maintenance m-1", 0);
    assert!(left.contains(&format!("Problem: {words}")), "{left}");
    assert!(left.contains("(farrier why m-1)"), "{left}");
    for line in ["get m-1", "why m-1"] {
        let told = person.line(line, 0);
        assert!(told.contains(words), "{line}: {told}");
    }
    let listed = person.run(&["why"], 1);
    assert!(listed.contains(words) && listed.contains(disarm), "{listed}");
    person.line(disarm, 0);
    assert!(!person.line("get m-1", 0).contains(words));
    // The reimage that failed is told by both until it is repaired, or an operator decides.
    let told = person.line("why m-1", 0);
    let cause = told.lines().next().expect("a headline");
    assert!(cause.contains("but REIMAGE op-"), "{told}");
    let listed = person.run(&["why"], 1);
    assert!(listed.contains(cause) && listed.contains("farrier enter-maintenance m-1"), "{listed}");
    assert!(person.line("list", 0).contains("⚠IDLE"), "it is marked");
    person.line("admin clear-needs-intervention m-1 --reason decided", 0);
    person.line("why", 0);
    assert!(person.line("why m-1", 0).contains("nothing wrong"));
}

/// A failed upgrade is marked in the list and told by `why` and `get` until it is repeated, also
/// after another operation has succeeded.
#[test]
fn a_failed_upgrade_is_told_until_it_is_repeated() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(quick(dir.path()));
    let person = Terminal::new(server.url());
    person.line("machine register m-1 --provider sim", 0);
    person.line("enter-maintenance m-1", 0);
    person.line("sim fault create --machine m-1 --effect ssh --action fail --times 0", 0);
    person.line("operation start m-1 --type UPGRADE", 1);
    person.line("sim fault clear --all", 0);
    person.line("reboot m-1", 0);
    assert!(person.line("list", 0).contains("⚠MAINT"), "it is marked");
    assert!(person.line("get m-1", 0).contains("its last upgrade op-"), "get");
    let told = person.line("why m-1", 0);
    assert!(told.lines().next().is_some_and(|cause| cause.contains("UPGRADE op-")), "{told}");
    let listed = person.run(&["why"], 1);
    let rerun = listed.lines().find_map(|line| Some(line.split_once("operation rerun ")?.1));
    let id = rerun.and_then(|rest| rest.split_whitespace().next()).expect("the one command");
    person.line(&format!("operation rerun {id}"), 0);
    assert!(!person.line("list", 0).contains('⚠'));
    person.line("why", 0);
}

#[test]
fn a_canceled_operation_has_a_next_command() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(quick(dir.path()));
    let person = Terminal::new(server.url());
    person.line("machine register m-1 --provider sim", 0);
    person.line("enter-maintenance m-1", 0);
    person.line("sim fault create --machine m-1 --effect reboot --action hang --times 0", 0);
    let id = person.submit("reboot m-1");
    person.at_step(&id, "reboot");
    person.line(&format!("cancel {id}"), 0);
    ended(&person, &id);
    let shown = person.line(&format!("operation get {id}"), 0);
    assert!(shown.contains(&format!("Next: farrier why {id}")), "{shown}");
}

/// A drain of a machine in no cluster moves no work away from the node that is active on it.
#[test]
fn a_drain_without_a_cluster_does_not_pass_an_active_node() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(quick(dir.path()));
    let person = Terminal::new(server.url());
    person.line("site create site-lab --provider sim", 0);
    person.line("machine register m-1 --provider sim", 0);
    person.line("node onboard m-1 --site site-lab", 0);
    let node = node_of(&person, "m-1");
    for line in ["enter-maintenance m-1", "enter-maintenance m-1 --drain"] {
        let refusal = person.line(line, 2);
        assert!(refusal.contains(&format!("m-1 serves as {node}")), "{refusal}");
        assert!(refusal.contains(&format!("farrier node drain {node}")), "{refusal}");
    }
    person.line(&format!("node drain {node}"), 0);
    person.line("enter-maintenance m-1 --drain", 0);
}
