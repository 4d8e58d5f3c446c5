//! The effects of each kind of task on a node.

use crate::environment::{Job, TestNode, is_alive, skip, wait_until};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

/// Has the agent execute one task, and returns its report.
fn carried_out(node_env: &TestNode, kind: &str, more: Value) -> (bool, String) {
    let _agent = node_env.run();
    let id = format!("{kind}-{}", node_env.server.state().reports.len());
    node_env.server.give(&id, kind, more);
    let report = node_env.server.report(&id);
    (report["ok"].as_bool().unwrap(), report["said"].as_str().unwrap().to_owned())
}

fn log(node_env: &TestNode) -> String {
    node_env.server.state().logs.values().cloned().collect()
}

#[test]
fn drain_waits_for_gpu_processes() {
    let node_env = TestNode::new();
    node_env.gpus();
    let mut job = Job::start("exec sleep 3600");
    node_env.write("pids", &job.id().to_string());
    node_env.server.give("t-1", "node.drain", json!({}));
    let _agent = node_env.run();
    let waits = format!("waiting for work on the GPUs: process {}", job.id());
    node_env.server.wait_until("it waits", |state| {
        state.logs.get("t-1").is_some_and(|log| log.contains(&waits))
    });
    assert!(node_env.server.state().reports.is_empty());
    job.0.kill().unwrap();
    assert_eq!(node_env.server.report("t-1")["ok"], true);
    assert!(log(&node_env).contains("no hook drain"));
}

#[test]
fn late_drain_lists_gpu_processes() {
    let node_env = TestNode::new();
    node_env.gpus();
    let job = Job::start("exec sleep 3600");
    node_env.write("pids", &job.id().to_string());
    let (ok, message) = carried_out(&node_env, "node.drain", json!({"deadline_seconds": 2}));
    assert!(!ok && message.contains(&job.id().to_string()), "{message}");
    assert!(is_alive(&job.id().to_string()), "a drain kills no process");
}

#[test]
fn release_sends_sigterm_then_sigkill() {
    let node_env = TestNode::new();
    node_env.gpus();
    node_env.script("hooks/release", "echo released");
    let kind = Job::start("trap 'exit 0' TERM; while :; do sleep 0.05; done");
    let mut stubborn = Job::start("trap '' TERM; while :; do sleep 0.05; done");
    node_env.write("pids", &format!("{}\n{}\n", kind.id(), stubborn.id()));
    let (ok, message) =
        carried_out(&node_env, "node.release", json!({"params": {"grace_seconds": "1"}}));
    assert!(ok, "{message}");
    let log = log(&node_env);
    for words in [
        "released".to_string(),
        format!("SIGTERM to process {}", kind.id()),
        format!("SIGTERM to process {}", stubborn.id()),
        format!("SIGKILL to process {}", stubborn.id()),
    ] {
        assert!(log.contains(&words), "{words:?} is not in\n{log}");
    }
    assert!(!log.contains(&format!("SIGKILL to process {}", kind.id())), "{log}");
    assert!(!stubborn.0.wait().unwrap().success());
    let (ok, message) =
        carried_out(&node_env, "node.release", json!({"params": {"grace_seconds": "soon"}}));
    assert!(!ok && message.contains("grace_seconds"), "{message}");
}

#[test]
fn scrub_resets_idle_gpus() {
    let node_env = TestNode::new();
    let (ok, message) = carried_out(&node_env, "node.scrub", json!({}));
    assert!(ok && message.contains("no GPUs"), "{message}");
    assert!(log(&node_env).contains("no GPUs: there is no "), "{}", log(&node_env));

    node_env.gpus();
    let job = Job::start("exec sleep 3600");
    node_env.write("pids", &job.id().to_string());
    let (ok, message) = carried_out(&node_env, "node.scrub", json!({}));
    assert!(!ok && message.contains(&format!("process {}", job.id())), "{message}");
    assert!(!node_env.read("asked").contains("--gpu-reset"));
    drop(job);
    let (ok, message) = carried_out(&node_env, "node.scrub", json!({}));
    assert!(ok && node_env.read("asked").contains("--gpu-reset"), "{message}");
    node_env.write("stuck", "");
    let (ok, message) = carried_out(&node_env, "node.scrub", json!({}));
    assert!(!ok && message.contains("GPU is stuck"), "{message}");
}

#[test]
fn validation_lists_every_problem() {
    let node_env = TestNode::new();
    node_env.gpus();
    assert_eq!(
        carried_out(&node_env, "node.validate", json!({})),
        (true, "the node is clean".into())
    );
    let job = Job::start("exec sleep 3600");
    node_env.write("pids", &job.id().to_string());
    node_env.write("scratch/left", "x");
    node_env.script("hooks/validate", "echo a disk is missing; exit 4");
    let (ok, message) = carried_out(&node_env, "node.validate", json!({}));
    assert!(!ok);
    for words in [
        "the hook validate ended with exit status: 4: a disk is missing",
        &format!("process {}", job.id()),
        "scratch is not empty: \"left\"",
    ] {
        assert!(message.contains(words), "{words:?} is not in {message}");
    }
}

#[test]
fn cleanup_empties_scratch_only() {
    let node_env = TestNode::new();
    fs::create_dir_all(node_env.path("scratch/a/b")).unwrap();
    fs::create_dir(node_env.path("precious")).unwrap();
    node_env.write("precious/file", "x");
    node_env.write("scratch/a/b/file", "x");
    symlink(node_env.path("precious"), node_env.path("scratch/a/out")).unwrap();
    node_env.script("hooks/cleanup_storage", "exit 1");
    let (ok, message) = carried_out(&node_env, "node.cleanup_storage", json!({}));
    assert!(!ok && message.contains("cleanup_storage"), "{message}");
    assert!(node_env.path("scratch/a/b/file").exists(), "the hook comes first");
    fs::remove_file(node_env.path("hooks/cleanup_storage")).unwrap();
    let (ok, message) = carried_out(&node_env, "node.cleanup_storage", json!({}));
    assert!(ok, "{message}");
    assert_eq!(fs::read_dir(node_env.path("scratch")).unwrap().count(), 0);
    assert_eq!(node_env.read("precious/file"), "x");
    assert!(carried_out(&node_env, "node.validate", json!({})).0);
}

/// The configuration in Farrier's bundle does not mention storage.
#[test]
fn unconfigured_storage_is_never_clean() {
    let node_env = TestNode::new();
    let config = node_env.read("agent.toml");
    let line = format!("scratch_dirs = [\"{}/scratch\"]\n", node_env.at());
    node_env.write("agent.toml", &config.replace(&line, ""));
    node_env.write("scratch/left", "x");
    for kind in ["node.cleanup_storage", "node.validate"] {
        let (ok, message) = carried_out(&node_env, kind, json!({}));
        assert!(!ok, "{kind}: {message}");
        for words in ["scratch_dirs = [", "hooks/cleanup_storage", "systemctl restart"] {
            assert!(message.contains(words), "{kind}: {words:?} is not in {message}");
        }
    }
    node_env.script("hooks/cleanup_storage", "rm DIR/scratch/left");
    for (kind, words) in [("node.cleanup_storage", "the hook"), ("node.validate", "is clean")] {
        let (ok, message) = carried_out(&node_env, kind, json!({}));
        assert!(ok && message.contains(words), "{kind}: {message}");
    }
    fs::remove_file(node_env.path("hooks/cleanup_storage")).unwrap();
    node_env.write("agent.toml", &config.replace(&line, "scratch_dirs = []\n"));
    for (kind, words) in [("node.cleanup_storage", "nothing is stored"), ("node.validate", "clean")]
    {
        let (ok, message) = carried_out(&node_env, kind, json!({}));
        assert!(ok && message.contains(words), "{kind}: {message}");
    }
}

#[test]
fn gpus_without_a_driver_are_not_clean() {
    let node_env = TestNode::new();
    fs::create_dir_all(node_env.path("pci/0000:01:00.0")).unwrap();
    node_env.write("pci/0000:01:00.0/vendor", "0x10de\n");
    node_env.write("pci/0000:01:00.0/class", "0x030200\n");
    for (kind, clean) in [("node.drain", true), ("node.scrub", false), ("node.validate", false)] {
        let (ok, message) = carried_out(&node_env, kind, json!({}));
        assert_eq!(ok, clean, "{kind}: {message}");
        assert!(ok || message.contains("nvidia_smi"), "{kind}: {message}");
    }
    node_env.gpus();
    assert!(carried_out(&node_env, "node.validate", json!({})).0);
}

/// A mounted file system, unmounted at the end of the test.
struct Mount(PathBuf);

impl Mount {
    fn new(options: &[&str], at: PathBuf) -> Option<Self> {
        let status = Command::new("mount").args(options).arg(&at).status().ok()?;
        status.success().then_some(Self(at))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

/// Only root can mount.
#[test]
fn nested_file_systems_are_not_touched() {
    let node_env = TestNode::new();
    for name in ["precious", "scratch/tmpfs", "scratch/bound"] {
        fs::create_dir(node_env.path(name)).unwrap();
    }
    node_env.write("precious/file", "x");
    let precious = node_env.path("precious").display().to_string();
    let mounts = (
        Mount::new(&["-t", "tmpfs", "tmpfs"], node_env.path("scratch/tmpfs")),
        Mount::new(&["--bind", &precious], node_env.path("scratch/bound")),
    );
    let (Some(_tmpfs), Some(bound)) = mounts else {
        return skip("mounting takes root");
    };
    node_env.write("scratch/tmpfs/file", "x");
    node_env.write("scratch/file", "x");
    let (ok, message) = carried_out(&node_env, "node.cleanup_storage", json!({}));
    assert!(!ok && message.contains("scratch/tmpfs: is another file system"), "{message}");
    assert!(message.contains("scratch/bound: is another file system"), "{message}");
    assert!(!node_env.path("scratch/file").exists(), "the rest is removed all the same");
    assert_eq!(
        (node_env.read("scratch/tmpfs/file"), node_env.read("precious/file")),
        ("x".into(), "x".into())
    );

    drop(bound);
    let at = node_env.at();
    let text = node_env
        .read("agent.toml")
        .replace("/scratch\"", &format!("/scratch\", \"{at}/scratch/tmpfs\""));
    node_env.write("agent.toml", &text);
    let (ok, message) = carried_out(&node_env, "node.cleanup_storage", json!({}));
    assert!(ok, "{message}");
    assert!(
        !node_env.path("scratch/tmpfs/file").exists() && !node_env.path("scratch/bound").exists()
    );
    assert!(carried_out(&node_env, "node.validate", json!({})).0);
}

#[test]
fn unknown_task_kinds_fail() {
    let node_env = TestNode::new();
    let (ok, message) = carried_out(&node_env, "node.dance", json!({}));
    assert!(!ok && message.contains("node.dance") && message.contains("update it"), "{message}");
}

#[test]
fn heartbeats_report_health_problems() {
    let node_env = TestNode::new();
    node_env.gpus();
    node_env.script("hooks/health", "echo fan 3 stands still; exit 1");
    let _agent = node_env.run();
    node_env.server.wait_until("a heartbeat that says so", |state| {
        state.heard.iter().any(|(path, body)| {
            path == "heartbeat"
                && body["healthy"] == false
                && body["problems"].to_string().contains("fan 3 stands still")
        })
    });
    wait_until("status shows it", || {
        node_env.run_command("status").1.contains("Not well:  the hook health")
    });
}
