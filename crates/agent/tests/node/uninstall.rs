//! Uninstalling: the last report, and the cleanup after it, which needs no server.

use crate::environment::Stage;
use crate::server::Fault;
use serde_json::json;

#[test]
fn an_uninstall_is_reported_and_then_nothing_is_left() {
    let stage = Stage::new();
    stage.script("systemctl", "ls DIR/state >> DIR/seen; echo \"$*\" >> DIR/disabled");
    stage.script("hooks/uninstall", "echo goodbye");
    stage.server.give("t-1", "node.uninstall", json!({}));
    let mut agent = stage.run();
    assert!(agent.ended().success());
    let state = stage.server.state();
    assert_eq!((&state.reports["t-1"].0["ok"], state.reports["t-1"].1), (&json!(true), 1));
    assert!(state.logs["t-1"].contains("goodbye"));
    assert_eq!(stage.read("disabled"), "disable farrier-agent.service\n");
    assert_eq!(stage.read("seen"), "leaving.json\n", "the secrets go before the unit does");
    assert!(!stage.path("state").exists());
}

#[test]
fn killed_in_the_middle_of_leaving_it_goes_on() {
    let stage = Stage::new();
    stage.script(
        "systemctl",
        "echo \"$*\" >> DIR/disabled; [ $(wc -l < DIR/disabled) -gt 1 ] || kill -9 $PPID",
    );
    stage.server.give("t-1", "node.uninstall", json!({}));
    let mut agent = stage.run();
    assert!(!agent.ended().success());
    assert!(stage.typed("status").1.contains("leaves this node"));
    // The server is gone, and is not needed.
    stage.server.kill();
    let mut agent = stage.run();
    assert!(agent.ended().success());
    assert!(!stage.path("state").exists());
    assert_eq!(stage.read("disabled").lines().count(), 2);
}

#[test]
fn a_last_word_that_was_heard_and_not_answered_counts() {
    for fault in [Fault::KillBefore, Fault::KillCounted, Fault::KillAnswered, Fault::Lose] {
        let stage = Stage::new();
        stage.script("hooks/uninstall", "echo run >> DIR/runs");
        stage.server.give("t-1", "node.uninstall", json!({}));
        stage.server.fault("report", fault);
        let mut agent = stage.run();
        match fault {
            Fault::KillBefore => {
                agent.ended();
                agent = stage.run();
            }
            Fault::KillCounted | Fault::KillAnswered => {
                agent.ended();
                // Farrier deletes a node that is uninstalled.
                stage.server.state().unknown = Some("node-deleted");
                agent = stage.run();
            }
            Fault::Lose | Fault::Status(_) => {}
        }
        assert!(agent.ended().success(), "{fault:?}");
        assert!(!stage.path("state").exists(), "{fault:?}");
        assert_eq!(stage.read("runs"), "run\n", "{fault:?}");
    }
}

#[test]
fn an_uninstall_that_fails_or_that_nobody_wants_leaves_the_agent_where_it_is() {
    let stage = Stage::new();
    stage.script("hooks/uninstall", "echo not yet; exit 1");
    stage.script("systemctl", "echo \"$*\" >> DIR/disabled");
    stage.server.give("t-1", "node.uninstall", json!({}));
    let _agent = stage.run();
    let report = stage.server.report("t-1");
    assert!(report["said"].as_str().unwrap().contains("not yet"), "{report}");

    stage.script("hooks/uninstall", "while [ ! -e DIR/gate ]; do sleep 0.02; done");
    stage.server.give("t-2", "node.uninstall", json!({}));
    stage.server.until("t-2 is held", |state| state.held.is_some());
    stage.server.state().held = None;
    stage.write("gate", "");
    stage.server.give("t-3", "node.validate", json!({}));
    assert_eq!(stage.server.report("t-3")["ok"], true);
    assert_eq!(stage.read("disabled"), "");
    assert!(stage.path("state/node.json").exists());
}
