//! What each kind of task does to a node.

use crate::environment::{Job, Stage, lives, until};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

/// Has the agent execute one task, and returns its report.
fn carried_out(stage: &Stage, kind: &str, more: Value) -> (bool, String) {
    let _agent = stage.run();
    let id = format!("{kind}-{}", stage.server.state().reports.len());
    stage.server.give(&id, kind, more);
    let report = stage.server.report(&id);
    (report["ok"].as_bool().unwrap(), report["said"].as_str().unwrap().to_owned())
}

fn log(stage: &Stage) -> String {
    stage.server.state().logs.values().cloned().collect()
}

#[test]
fn a_drain_waits_for_whoever_computes() {
    let stage = Stage::new();
    stage.gpus();
    let mut job = Job::start("exec sleep 3600");
    stage.write("pids", &job.id().to_string());
    stage.server.give("t-1", "node.drain", json!({}));
    let _agent = stage.run();
    let waits = format!("waiting for work on the GPUs: process {}", job.id());
    stage
        .server
        .until("it waits", |state| state.logs.get("t-1").is_some_and(|log| log.contains(&waits)));
    assert!(stage.server.state().reports.is_empty());
    job.0.kill().unwrap();
    assert_eq!(stage.server.report("t-1")["ok"], true);
    assert!(log(&stage).contains("no hook drain"));
}

#[test]
fn a_drain_that_is_late_names_who_is_still_there() {
    let stage = Stage::new();
    stage.gpus();
    let job = Job::start("exec sleep 3600");
    stage.write("pids", &job.id().to_string());
    let (ok, said) = carried_out(&stage, "node.drain", json!({"deadline_seconds": 2}));
    assert!(!ok && said.contains(&job.id().to_string()), "{said}");
    assert!(lives(&job.id().to_string()), "a drain ends nobody");
}

#[test]
fn a_release_asks_first_and_then_ends() {
    let stage = Stage::new();
    stage.gpus();
    stage.script("hooks/release", "echo released");
    let kind = Job::start("trap 'exit 0' TERM; while :; do sleep 0.05; done");
    let mut stubborn = Job::start("trap '' TERM; while :; do sleep 0.05; done");
    stage.write("pids", &format!("{}\n{}\n", kind.id(), stubborn.id()));
    let (ok, said) = carried_out(&stage, "node.release", json!({"params": {"grace_seconds": "1"}}));
    assert!(ok, "{said}");
    let log = log(&stage);
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
    let (ok, said) =
        carried_out(&stage, "node.release", json!({"params": {"grace_seconds": "soon"}}));
    assert!(!ok && said.contains("grace_seconds"), "{said}");
}

#[test]
fn a_scrub_resets_what_nobody_uses() {
    let stage = Stage::new();
    let (ok, said) = carried_out(&stage, "node.scrub", json!({}));
    assert!(ok && said.contains("no GPUs"), "{said}");
    assert!(log(&stage).contains("no GPUs: there is no "), "{}", log(&stage));

    stage.gpus();
    let job = Job::start("exec sleep 3600");
    stage.write("pids", &job.id().to_string());
    let (ok, said) = carried_out(&stage, "node.scrub", json!({}));
    assert!(!ok && said.contains(&format!("process {}", job.id())), "{said}");
    assert!(!stage.read("asked").contains("--gpu-reset"));
    drop(job);
    let (ok, said) = carried_out(&stage, "node.scrub", json!({}));
    assert!(ok && stage.read("asked").contains("--gpu-reset"), "{said}");
    stage.write("stuck", "");
    let (ok, said) = carried_out(&stage, "node.scrub", json!({}));
    assert!(!ok && said.contains("GPU is stuck"), "{said}");
}

#[test]
fn a_validation_names_every_problem() {
    let stage = Stage::new();
    stage.gpus();
    assert_eq!(carried_out(&stage, "node.validate", json!({})), (true, "the node is clean".into()));
    let job = Job::start("exec sleep 3600");
    stage.write("pids", &job.id().to_string());
    stage.write("scratch/left", "x");
    stage.script("hooks/validate", "echo a disk is missing; exit 4");
    let (ok, said) = carried_out(&stage, "node.validate", json!({}));
    assert!(!ok);
    for words in [
        "the hook validate ended with exit status: 4: a disk is missing",
        &format!("process {}", job.id()),
        "scratch is not empty: \"left\"",
    ] {
        assert!(said.contains(words), "{words:?} is not in {said}");
    }
}

#[test]
fn storage_is_cleaned_up_and_nothing_beside_it() {
    let stage = Stage::new();
    fs::create_dir_all(stage.path("scratch/a/b")).unwrap();
    fs::create_dir(stage.path("precious")).unwrap();
    stage.write("precious/file", "x");
    stage.write("scratch/a/b/file", "x");
    symlink(stage.path("precious"), stage.path("scratch/a/out")).unwrap();
    stage.script("hooks/cleanup_storage", "exit 1");
    let (ok, said) = carried_out(&stage, "node.cleanup_storage", json!({}));
    assert!(!ok && said.contains("cleanup_storage"), "{said}");
    assert!(stage.path("scratch/a/b/file").exists(), "the hook comes first");
    fs::remove_file(stage.path("hooks/cleanup_storage")).unwrap();
    let (ok, said) = carried_out(&stage, "node.cleanup_storage", json!({}));
    assert!(ok, "{said}");
    assert_eq!(fs::read_dir(stage.path("scratch")).unwrap().count(), 0);
    assert_eq!(stage.read("precious/file"), "x");
    assert!(carried_out(&stage, "node.validate", json!({})).0);
}

/// The configuration in Farrier's bundle does not mention storage.
#[test]
fn nothing_is_clean_that_nobody_has_cleaned() {
    let stage = Stage::new();
    let config = stage.read("agent.toml");
    let line = format!("scratch_dirs = [\"{}/scratch\"]\n", stage.at());
    stage.write("agent.toml", &config.replace(&line, ""));
    stage.write("scratch/left", "x");
    for kind in ["node.cleanup_storage", "node.validate"] {
        let (ok, said) = carried_out(&stage, kind, json!({}));
        assert!(!ok, "{kind}: {said}");
        for words in ["scratch_dirs = [", "hooks/cleanup_storage", "systemctl restart"] {
            assert!(said.contains(words), "{kind}: {words:?} is not in {said}");
        }
    }
    stage.script("hooks/cleanup_storage", "rm DIR/scratch/left");
    for (kind, words) in [("node.cleanup_storage", "the hook"), ("node.validate", "is clean")] {
        let (ok, said) = carried_out(&stage, kind, json!({}));
        assert!(ok && said.contains(words), "{kind}: {said}");
    }
    fs::remove_file(stage.path("hooks/cleanup_storage")).unwrap();
    stage.write("agent.toml", &config.replace(&line, "scratch_dirs = []\n"));
    for (kind, words) in [("node.cleanup_storage", "nothing is stored"), ("node.validate", "clean")]
    {
        let (ok, said) = carried_out(&stage, kind, json!({}));
        assert!(ok && said.contains(words), "{kind}: {said}");
    }
}

#[test]
fn gpus_that_nobody_can_ask_are_not_clean() {
    let stage = Stage::new();
    fs::create_dir_all(stage.path("pci/0000:01:00.0")).unwrap();
    stage.write("pci/0000:01:00.0/vendor", "0x10de\n");
    stage.write("pci/0000:01:00.0/class", "0x030200\n");
    for (kind, clean) in [("node.drain", true), ("node.scrub", false), ("node.validate", false)] {
        let (ok, said) = carried_out(&stage, kind, json!({}));
        assert_eq!(ok, clean, "{kind}: {said}");
        assert!(ok || said.contains("nvidia_smi"), "{kind}: {said}");
    }
    stage.gpus();
    assert!(carried_out(&stage, "node.validate", json!({})).0);
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

/// Only root can mount; otherwise the test is skipped with a message.
#[test]
fn another_file_system_is_left_alone_unless_it_is_named() {
    let stage = Stage::new();
    for name in ["precious", "scratch/tmpfs", "scratch/bound"] {
        fs::create_dir(stage.path(name)).unwrap();
    }
    stage.write("precious/file", "x");
    let precious = stage.path("precious").display().to_string();
    let mounts = (
        Mount::new(&["-t", "tmpfs", "tmpfs"], stage.path("scratch/tmpfs")),
        Mount::new(&["--bind", &precious], stage.path("scratch/bound")),
    );
    let (Some(_tmpfs), Some(bound)) = mounts else {
        return println!("left out: mounting takes root");
    };
    stage.write("scratch/tmpfs/file", "x");
    stage.write("scratch/file", "x");
    let (ok, said) = carried_out(&stage, "node.cleanup_storage", json!({}));
    assert!(!ok && said.contains("scratch/tmpfs: is another file system"), "{said}");
    assert!(said.contains("scratch/bound: is another file system"), "{said}");
    assert!(!stage.path("scratch/file").exists(), "the rest is removed all the same");
    assert_eq!(
        (stage.read("scratch/tmpfs/file"), stage.read("precious/file")),
        ("x".into(), "x".into())
    );

    drop(bound);
    let at = stage.at();
    let text = stage
        .read("agent.toml")
        .replace("/scratch\"", &format!("/scratch\", \"{at}/scratch/tmpfs\""));
    stage.write("agent.toml", &text);
    let (ok, said) = carried_out(&stage, "node.cleanup_storage", json!({}));
    assert!(ok, "{said}");
    assert!(!stage.path("scratch/tmpfs/file").exists() && !stage.path("scratch/bound").exists());
    assert!(carried_out(&stage, "node.validate", json!({})).0);
}

#[test]
fn a_kind_that_is_not_known_is_refused_in_words() {
    let stage = Stage::new();
    let (ok, said) = carried_out(&stage, "node.dance", json!({}));
    assert!(!ok && said.contains("node.dance") && said.contains("update it"), "{said}");
}

#[test]
fn a_node_that_is_not_well_says_so() {
    let stage = Stage::new();
    stage.gpus();
    stage.script("hooks/health", "echo fan 3 stands still; exit 1");
    let _agent = stage.run();
    stage.server.until("a heartbeat that says so", |state| {
        state.heard.iter().any(|(path, body)| {
            path == "heartbeat"
                && body["healthy"] == false
                && body["problems"].to_string().contains("fan 3 stands still")
        })
    });
    until("status shows it", || stage.typed("status").1.contains("Not well:  the hook health"));
}
