//! Enrollment, and sessions that become unknown.

use crate::environment::{TestNode, wait_until};
use crate::server::{Fault, NODE, TOKEN};
use agent::node::{self, AgentEnd, Config, Timing};
use serde_json::json;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

#[test]
fn lost_enrollments_are_retried_with_the_same_session() {
    let node_env = TestNode::new();
    for fault in [Fault::Lose, Fault::Status(503)] {
        node_env.server.fault("enroll", fault);
    }
    let (code, message) = node_env.run_command("enroll");
    assert_eq!((code, message.as_str()), (0, "this is node-1\n"));
    let sessions: Vec<_> =
        node_env.server.state().heard.iter().map(|(_, body)| body["session"].clone()).collect();
    assert_eq!(sessions.len(), 2, "the one that was refused with 503 does not count");
    assert!(sessions[0] == sessions[1] && sessions[0].as_str().unwrap().len() == 64);
    let mode = |name: &str| fs::metadata(node_env.path(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("state"), mode("state/node.json")), (0o700, 0o600));

    assert_eq!(node_env.run_command("enroll").0, 0);
    assert_eq!(node_env.server.count("enroll"), 2, "an enrolled agent does not enroll again");
    let (code, message) = node_env.run_command("status");
    assert!(code == 0 && message.contains("Node:      node-1"), "{message}");
    assert!(!message.contains(sessions[0].as_str().unwrap()));
}

#[test]
fn killed_enrollments_resume_with_the_same_session() {
    let node_env = TestNode::new();
    node_env.server.fault("enroll", Fault::KillCounted);
    let mut agent = node_env.run();
    agent.ended();
    let _agent = node_env.run();
    node_env.server.wait_until("a heartbeat", |state| {
        state.heard.iter().any(|(path, body)| path == "heartbeat" && body["healthy"] == true)
    });
    let state = node_env.server.state();
    let requested: Vec<_> = state.heard.iter().filter(|(path, _)| path == "enroll").collect();
    assert!(requested.len() == 2 && requested[0].1["session"] == requested[1].1["session"]);
    let beat = &state.heard.iter().find(|(path, _)| path == "heartbeat").unwrap().1;
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    assert_eq!(beat["boot_id"], boot.trim());
    assert_eq!((&beat["tasks"], &beat["problems"]), (&json!([]), &json!([])));
}

#[test]
fn refused_tokens_are_reported_and_replaced() {
    let node_env = TestNode::new();
    node_env.write("token", "other");
    let (code, message) = node_env.run_command("enroll");
    assert!(code == 2 && message.contains("token-unknown"), "{code} {message}");
    let (mut agent, stop_flag) = in_process(&node_env);
    node_env.server.wait_until("two tries", |state| state.heard.len() > 2);
    let message = node_env.run_command("status").1;
    assert!(message.contains("not enrolled: the token is refused"), "{message}");
    node_env.write("token", TOKEN);
    node_env
        .server
        .wait_until("a heartbeat", |state| state.heard.iter().any(|(path, _)| path == "heartbeat"));
    stop_flag.store(true, Ordering::Relaxed);
    assert_eq!(agent.take().unwrap().join().unwrap(), Ok(AgentEnd::Stopped));
}

#[test]
fn refused_tokens_do_not_affect_enrolled_nodes() {
    let node_env = TestNode::new();
    assert_eq!(node_env.run_command("enroll").0, 0);
    node_env.write("token", "other");
    let (code, message) = node_env.run_command("enroll");
    assert!(
        code == 2 && message.contains("token-unknown") && message.contains("still node-1"),
        "{message}"
    );
    let _agent = node_env.run();
    node_env.server.wait_until("a heartbeat", |state| {
        state.heard.iter().any(|(path, body)| path == "heartbeat" && body["healthy"] == true)
    });
    node_env.server.give("t-1", "node.validate", json!({}));
    assert_eq!(node_env.server.report("t-1")["ok"], true);
    let message = node_env.run_command("status").1;
    for words in ["Node:      node-1", "Token:     the token is refused", "replace it"] {
        assert!(message.contains(words), "{words:?} is not in\n{message}");
    }
    assert!(!message.contains("Trouble"), "{message}");
    // The refused token is sent twice only: by `enroll`, and at the start of the agent.
    assert_eq!(node_env.server.count("enroll"), 3);
}

#[test]
fn readable_tokens_cause_a_warning() {
    let node_env = TestNode::new();
    assert!(!node_env.run_command("enroll").1.contains("chmod"));
    fs::set_permissions(node_env.path("token"), fs::Permissions::from_mode(0o644)).unwrap();
    let (code, message) = node_env.run_command("enroll");
    assert!(code == 0 && message.contains("warning") && message.contains("chmod 600"), "{message}");
}

#[test]
fn missing_tokens_are_explained() {
    let node_env = TestNode::new();
    fs::remove_file(node_env.path("token")).unwrap();
    let (code, message) = node_env.run_command("enroll");
    assert!(code == 2 && message.contains("token_file"), "{code} {message}");
    assert_eq!(node_env.server.count("enroll"), 0);
    node_env
        .write("agent.toml", "controllers = [\"http://10.0.0.1\"]\nscratch_dirs = [\"/etc\"]\n");
    let (code, message) = node_env.run_command("run");
    assert!(
        code == 2 && message.contains("agent.toml") && message.contains("scratch_dirs: /etc"),
        "{message}"
    );
}

#[test]
fn unit_names_the_running_program() {
    let (code, unit) = TestNode::new().run_command("unit");
    let runs: Vec<&str> = unit.lines().filter(|line| line.starts_with("ExecStart=")).collect();
    let own = env!("CARGO_BIN_EXE_farrier-agent");
    let expected = format!("ExecStart={own} node run --config /etc/farrier/agent.toml");
    assert_eq!((code, runs), (0, vec![expected.as_str()]));
    assert!(unit.contains("Restart=always"), "{unit}");
}

type Running = Option<thread::JoinHandle<Result<AgentEnd, String>>>;

/// Runs the agent with short intervals, so that its rare actions can be observed.
fn in_process(node_env: &TestNode) -> (Running, Arc<AtomicBool>) {
    let config = Config::load(&node_env.path("agent.toml")).unwrap();
    let stop_flag = Arc::new(AtomicBool::new(false));
    let ours = stop_flag.clone();
    (Some(thread::spawn(move || node::run(&config, &Timing::for_tests(), &ours))), stop_flag)
}

#[test]
fn unknown_sessions_are_reported_and_recover() {
    for code in ["session-unknown", "node-deleted"] {
        let node_env = TestNode::new();
        node_env.server.state().unknown = Some(code);
        let (mut agent, stop_flag) = in_process(&node_env);
        node_env.server.wait_until("both ask again", |state| {
            let count = |name| state.heard.iter().filter(|(path, _)| path == name).count();
            count("take") > 1 && count("heartbeat") > 1
        });
        let message = node_env.run_command("status").1;
        assert!(message.contains("not known any more") && message.contains(code), "{message}");
        node_env.server.state().unknown = None;
        node_env.server.give("t-1", "node.validate", json!({}));
        assert_eq!(node_env.server.report("t-1")["ok"], true);
        wait_until("no trouble any more", || !node_env.run_command("status").1.contains("Trouble"));
        stop_flag.store(true, Ordering::Relaxed);
        assert_eq!(agent.take().unwrap().join().unwrap(), Ok(AgentEnd::Stopped));
    }
}

#[test]
fn new_tokens_reenroll_unknown_nodes() {
    let node_env = TestNode::new();
    let (mut agent, stop_flag) = in_process(&node_env);
    node_env
        .server
        .wait_until("a take", |state| state.heard.iter().any(|(path, _)| path == "take"));
    let first = node_env.server.state().session.take().unwrap();
    node_env.server.state().tokens.insert("token-2".into(), None);
    node_env.write("token", "token-2");
    node_env
        .server
        .wait_until("a new session", |state| state.session.as_ref().is_some_and(|s| *s != first));
    node_env.server.give("t-1", "node.validate", json!({}));
    assert_eq!(node_env.server.report("t-1")["ok"], true);
    stop_flag.store(true, Ordering::Relaxed);
    assert_eq!(agent.take().unwrap().join().unwrap(), Ok(AgentEnd::Stopped));
}

#[test]
fn state_is_locked_and_controllers_are_tried_in_turn() {
    let node_env = TestNode::new();
    // The first address has no listener.
    let dead = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
    let text =
        node_env.read("agent.toml").replace("[\"http", &format!("[\"http://{dead}\", \"http"));
    assert!(text.contains(&dead.to_string()), "{text}");
    node_env.write("agent.toml", &text);
    let _agent = node_env.run();
    node_env
        .server
        .wait_until("a take", |state| state.heard.iter().any(|(path, _)| path == "take"));
    let (code, message) = node_env.run_command("run");
    assert!(code == 2 && message.contains("another agent"), "{code} {message}");
    assert!(node_env.run_command("status").1.contains(NODE));
}
