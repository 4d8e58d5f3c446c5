//! The execution of a task, with crashes of the agent and of the server.

use crate::environment::{TestNode, is_alive, wait_until};
use crate::server::Fault;
use serde_json::json;
use std::fs;

/// Counts its executions, and ends once a renewal has been accepted.
const COUNTED: &str = "echo run >> DIR/runs
echo working
while [ ! -e DIR/gate ]; do sleep 0.02; done
echo worked";

/// More than the agent sends before the test has seen what it waits for.
const MANY: usize = 1_000;

fn runs(node_env: &TestNode) -> usize {
    node_env.read("runs").lines().count()
}

#[test]
fn crashes_at_any_request_neither_lose_nor_repeat_tasks() {
    use Fault::{KillAnswered, KillBefore, KillCounted};
    // The allowed hook runs: a reported task is never started again, a started one is.
    let table = [
        ("enroll", KillBefore, 1..=1),
        ("enroll", KillCounted, 1..=1),
        ("enroll", KillAnswered, 1..=1),
        ("take", KillBefore, 1..=1),
        ("take", KillCounted, 1..=1),
        ("take", KillAnswered, 1..=2),
        ("renew", KillBefore, 2..=2),
        ("renew", KillCounted, 2..=2),
        ("renew", KillAnswered, 2..=2),
        ("report", KillBefore, 1..=1),
        ("report", KillCounted, 1..=1),
        ("report", KillAnswered, 1..=1),
    ];
    for (path, fault, expected) in table {
        let node_env = TestNode::new();
        node_env.script("hooks/validate", COUNTED);
        node_env.server.state().gate = Some(node_env.path("gate"));
        node_env.server.give("t-1", "node.validate", json!({}));
        node_env.server.fault(path, fault);
        let mut agent = node_env.run();
        agent.ended();
        assert_eq!(node_env.server.state().pid, None, "{path} {fault:?}: it was struck");
        if node_env.read("state/task.json").contains("\"ok\":true") {
            let message = node_env.run_command("status").1;
            assert!(message.contains("t-1 node.validate, done, to be reported"), "{message}");
        }
        let _agent = node_env.run();
        let report = node_env.server.report("t-1");
        assert_eq!((&report["ok"], &report["said"]), (&json!(true), &json!("the node is clean")));
        assert!(expected.contains(&runs(&node_env)), "{path} {fault:?}: {} runs", runs(&node_env));
        let message = node_env.run_command("status").1;
        assert!(message.contains("Task:      none"), "{path} {fault:?}: {message}");
        let state = node_env.server.state();
        assert!(state.logs["t-1"].contains("working\nworked\n"), "{}", state.logs["t-1"]);
    }
}

#[test]
fn leftover_processes_are_killed_at_start() {
    let node_env = TestNode::new();
    node_env.script("hooks/drain", "setsid sleep 3600 & echo $$ $! >> DIR/pids; wait");
    node_env.server.give("t-1", "node.drain", json!({}));
    let mut agent = node_env.run();
    wait_until("the hook runs", || node_env.read("pids").contains('\n'));
    agent.kill();
    let before = node_env.read("pids");
    assert!(before.split_whitespace().all(is_alive), "the hook outlives its agent: {before}");
    let _agent = node_env.run();
    wait_until("the hook runs again", || node_env.read("pids").lines().count() == 2);
    assert!(!before.split_whitespace().any(is_alive), "{before} is still there");
}

#[test]
fn withdrawn_tasks_are_forgotten() {
    let node_env = TestNode::new();
    node_env.script("hooks/drain", COUNTED);
    node_env.server.give("t-1", "node.drain", json!({}));
    let mut agent = node_env.run();
    wait_until("it has begun", || runs(&node_env) == 1);
    agent.kill();
    node_env.server.state().open_task = None;
    node_env.server.give("t-2", "node.validate", json!({}));
    let _agent = node_env.run();
    assert_eq!(node_env.server.report("t-2")["ok"], true);
    assert_eq!(runs(&node_env), 1, "t-1 was withdrawn");

    node_env.server.give("t-3", "node.drain", json!({}));
    wait_until("it has begun", || runs(&node_env) == 2);
    // The lease is lost: the server answers its renewal with 409.
    node_env.server.state().open_task = None;
    node_env.server.give("t-4", "node.validate", json!({}));
    assert_eq!(node_env.server.report("t-4")["ok"], true);
    assert!(!node_env.server.state().reports.contains_key("t-3"));
}

#[test]
fn stopped_tasks_end_with_their_processes() {
    let node_env = TestNode::new();
    node_env.script(
        "hooks/drain",
        "sleep 3600 & setsid sleep 3600 & echo $$ > DIR/pids; echo $! >> DIR/pids; wait",
    );
    node_env.server.give("t-1", "node.drain", json!({}));
    let _agent = node_env.run();
    wait_until("the hook runs", || node_env.read("pids").lines().count() == 2);
    node_env.server.state().then = "stop";
    let report = node_env.server.report("t-1");
    assert_eq!((&report["ok"], &report["said"]), (&json!(false), &json!("told to stop")));
    assert!(!node_env.read("pids").split_whitespace().any(is_alive));
}

#[test]
fn late_tasks_end_with_their_processes() {
    let node_env = TestNode::new();
    node_env.script("hooks/scrub", "sleep 3600 & echo $! > DIR/pids; wait");
    node_env.server.give("t-1", "node.scrub", json!({"deadline_seconds": 1}));
    let _agent = node_env.run();
    let report = node_env.server.report("t-1");
    assert_eq!((&report["ok"], &report["said"]), (&json!(false), &json!("not done within 1 s")));
    assert!(!node_env.read("pids").split_whitespace().any(is_alive));
}

#[test]
fn long_logs_arrive_in_order() {
    let node_env = TestNode::new();
    node_env.script(
        "hooks/validate",
        "echo \"$FARRIER_TASK_ID $FARRIER_TASK_KIND $FARRIER_A_B\"
seq 1 10000
while [ ! -e DIR/gate ]; do sleep 0.02; done
seq 10001 20000; echo the end >&2",
    );
    node_env.server.give(
        "t-1",
        "node.validate",
        json!({"params": {"a-b": "x y", "task_id": "forged"}}),
    );
    let _agent = node_env.run();
    node_env.server.wait_until("three renewals and a heartbeat with the task", |state| {
        let renewals = state.heard.iter().filter(|(path, _)| path == "renew").count();
        let reported = state.heard.iter().any(|(_, body)| body["tasks"] == json!(["t-1"]));
        renewals >= 3 && reported
    });
    node_env.write("gate", "");
    assert_eq!(node_env.server.report("t-1")["ok"], true);
    let numbers: String = (1..=20_000).map(|number| format!("{number}\n")).collect();
    let state = node_env.server.state();
    let log = &state.logs["t-1"];
    assert!(log.contains(&format!("t-1 node.validate x y\n{numbers}the end\n")), "{}", log.len());
}

#[test]
fn huge_logs_keep_beginning_and_end() {
    let node_env = TestNode::new();
    node_env.script("hooks/validate", "echo the beginning; seq 1 1000000; echo the end");
    node_env.server.give("t-1", "node.validate", json!({}));
    let _agent = node_env.run();
    assert_eq!(node_env.server.report("t-1")["ok"], true);
    let state = node_env.server.state();
    // The number of renewals depends on the speed of the host, their size does not.
    for (path, body) in &state.heard {
        let length = body["log"].as_str().map_or(0, str::len);
        assert!(length <= 64 * 1024, "a {path} has {length} bytes of the log");
    }
    let log = &state.logs["t-1"];
    assert!(log.len() <= 3 * 64 * 1024, "{}", log.len());
    for words in ["the beginning\n1\n2\n", " bytes left out]\n", "\n1000000\nthe end\n"] {
        assert!(log.contains(words), "{words:?} is not in it");
    }
}

#[test]
fn unreachable_servers_are_retried() {
    let node_env = TestNode::new();
    node_env.script(
        "hooks/validate",
        "echo run >> DIR/runs; while [ ! -e DIR/gate ]; do sleep 0.02; done",
    );
    node_env.server.give("t-1", "node.validate", json!({}));
    let _agent = node_env.run();
    node_env
        .server
        .wait_until("a renewal", |state| state.heard.iter().any(|(path, _)| path == "renew"));
    node_env.server.kill();
    node_env.write("gate", "");
    wait_until("the result is written down", || {
        node_env.read("state/task.json").contains("\"ok\":true")
    });
    let beats = node_env.server.count("heartbeat");
    wait_until("the status reports trouble", || {
        node_env.run_command("status").1.contains("Trouble")
    });
    node_env.server.fault("heartbeat", Fault::Status(503));
    for _ in 0..MANY {
        node_env.server.fault("report", Fault::Status(503));
    }
    node_env.server.restart();
    node_env.server.wait_until("a heartbeat with what is to be reported", |state| {
        let beats = state.heard.iter().filter(|(path, _)| path == "heartbeat").skip(beats);
        beats.into_iter().any(|(_, body)| body["tasks"] == json!(["t-1"]))
    });
    node_env.server.state().faults.clear();
    assert_eq!(node_env.server.report("t-1")["ok"], true);
    assert_eq!(node_env.read("runs"), "run\n");
    node_env.server.give("t-2", "node.validate", json!({}));
    assert_eq!(node_env.server.report("t-2")["ok"], true);
}

/// The lease is not renewed: Farrier may have given the task up or to an operator, and the task may
/// be destructive.
#[test]
fn lost_leases_stop_the_task() {
    let node_env = TestNode::new();
    node_env.script(
        "hooks/cleanup_storage",
        "echo run >> DIR/runs; sleep 3600 & echo $$ $! > DIR/pids; [ -e DIR/gate ] || wait",
    );
    node_env.server.give("t-1", "node.cleanup_storage", json!({"lease_seconds": 2}));
    let _agent = node_env.run();
    node_env
        .server
        .wait_until("a renewal", |state| state.heard.iter().any(|(path, _)| path == "renew"));
    node_env.server.kill();
    let pids = node_env.read("pids");
    wait_until("it stops", || !pids.split_whitespace().any(is_alive));
    assert!(node_env.run_command("status").1.contains("t-1 node.cleanup_storage, begun"));
    assert_eq!(runs(&node_env), 1);
    node_env.write("gate", "");
    node_env.server.restart();
    assert_eq!(node_env.server.report("t-1")["ok"], true);
    assert_eq!(runs(&node_env), 2, "it was begun again, and only then");
}

#[test]
fn tasks_that_cannot_be_stored_are_not_started() {
    let node_env = TestNode::new();
    node_env.script("hooks/validate", "echo run >> DIR/runs");
    let _agent = node_env.run();
    node_env
        .server
        .wait_until("a take", |state| state.heard.iter().any(|(path, _)| path == "take"));
    // A directory in place of the new file.
    fs::create_dir(node_env.path("state/task.json.new")).unwrap();
    node_env.server.give("t-1", "node.validate", json!({}));
    node_env.server.wait_until("a heartbeat that says so", |state| {
        state.heard.iter().any(|(path, body)| {
            path == "heartbeat"
                && body["healthy"] == false
                && body["problems"].to_string().contains("task.json")
        })
    });
    assert_eq!(node_env.read("runs"), "");
    fs::remove_dir(node_env.path("state/task.json.new")).unwrap();
    assert_eq!(node_env.server.report("t-1")["ok"], true);
    assert_eq!(node_env.read("runs"), "run\n");
}
