//! Uninstalling: the last report, and the cleanup after it, which needs no server.

use crate::environment::TestNode;
use crate::server::Fault;
use serde_json::json;

#[test]
fn uninstall_is_reported_and_removes_the_state() {
    let node_env = TestNode::new();
    node_env.script("systemctl", "ls DIR/state >> DIR/seen; echo \"$*\" >> DIR/disabled");
    node_env.script("hooks/uninstall", "echo goodbye");
    node_env.server.give("t-1", "node.uninstall", json!({}));
    let mut agent = node_env.run();
    assert!(agent.ended().success());
    let state = node_env.server.state();
    assert_eq!((&state.reports["t-1"].0["ok"], state.reports["t-1"].1), (&json!(true), 1));
    assert!(state.logs["t-1"].contains("goodbye"));
    assert_eq!(node_env.read("disabled"), "disable farrier-agent.service\n");
    assert_eq!(node_env.read("seen"), "leaving.json\n", "the secrets go before the unit does");
    assert!(!node_env.path("state").exists());
}

#[test]
fn killed_uninstalls_resume() {
    let node_env = TestNode::new();
    node_env.script(
        "systemctl",
        "echo \"$*\" >> DIR/disabled; [ $(wc -l < DIR/disabled) -gt 1 ] || kill -9 $PPID",
    );
    node_env.server.give("t-1", "node.uninstall", json!({}));
    let mut agent = node_env.run();
    assert!(!agent.ended().success());
    assert!(node_env.run_command("status").1.contains("leaves this node"));
    // The server is gone, and is not needed.
    node_env.server.kill();
    let mut agent = node_env.run();
    assert!(agent.ended().success());
    assert!(!node_env.path("state").exists());
    assert_eq!(node_env.read("disabled").lines().count(), 2);
}

#[test]
fn lost_answers_to_uninstalls_are_accepted() {
    for fault in [Fault::KillBefore, Fault::KillCounted, Fault::KillAnswered, Fault::Lose] {
        let node_env = TestNode::new();
        node_env.script("hooks/uninstall", "echo run >> DIR/runs");
        node_env.server.give("t-1", "node.uninstall", json!({}));
        node_env.server.fault("report", fault);
        let mut agent = node_env.run();
        match fault {
            Fault::KillBefore => {
                agent.ended();
                agent = node_env.run();
            }
            Fault::KillCounted | Fault::KillAnswered => {
                agent.ended();
                // Farrier deletes a node that is uninstalled.
                node_env.server.state().unknown = Some("node-deleted");
                agent = node_env.run();
            }
            Fault::Lose | Fault::Status(_) => {}
        }
        assert!(agent.ended().success(), "{fault:?}");
        assert!(!node_env.path("state").exists(), "{fault:?}");
        assert_eq!(node_env.read("runs"), "run\n", "{fault:?}");
    }
}

#[test]
fn failed_or_withdrawn_uninstalls_keep_the_agent() {
    let node_env = TestNode::new();
    node_env.script("hooks/uninstall", "echo not yet; exit 1");
    node_env.script("systemctl", "echo \"$*\" >> DIR/disabled");
    node_env.server.give("t-1", "node.uninstall", json!({}));
    let _agent = node_env.run();
    let report = node_env.server.report("t-1");
    assert!(report["said"].as_str().unwrap().contains("not yet"), "{report}");

    node_env.script("hooks/uninstall", "while [ ! -e DIR/gate ]; do sleep 0.02; done");
    node_env.server.give("t-2", "node.uninstall", json!({}));
    node_env.server.wait_until("t-2 is held", |state| state.open_task.is_some());
    node_env.server.state().open_task = None;
    node_env.write("gate", "");
    node_env.server.give("t-3", "node.validate", json!({}));
    assert_eq!(node_env.server.report("t-3")["ok"], true);
    assert_eq!(node_env.read("disabled"), "");
    assert!(node_env.path("state/node.json").exists());
}
