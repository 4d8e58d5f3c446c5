//! Every message as literal JSON: one side writes it, the other side reads it.

#![allow(
    clippy::expect_used,
    clippy::too_many_lines,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a test fails by panicking, and its tables are long"
)]

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use wire::Refusal;
use wire::deploy::{self, Assignment, Claim, DeploymentFailure, Disk, Image, ImageKind, Stage};
use wire::node::{self, EnrollRequest, HeartbeatRequest, Task, TaskKind};

/// The message is written as this text, and read back from it, also with an unknown field of a
/// newer peer.
fn agree<T: Serialize + DeserializeOwned + PartialEq + Debug>(message: &T, text: &str) {
    assert_eq!(serde_json::to_string(message).unwrap(), text);
    assert_eq!(&read::<T>(text), message);
    assert_eq!(&read::<T>(&with_news(text)), message);
}

fn read<T: DeserializeOwned>(text: &str) -> T {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn with_news(text: &str) -> String {
    text.replacen('{', r#"{"news":[1],"#, 1).replace(",}", "}")
}

#[test]
fn a_claim() {
    let text = r#"{"token":"t","session":"s","mac":"aa:01","macs":["aa:01"],"disks":[{"path":"/dev/sda","size":7,"serial":"S","wwn":"w","model":"M"}]}"#;
    let claim: Claim = read(&with_news(text));
    assert_eq!(serde_json::to_string(&claim).unwrap(), text);
    assert_eq!((claim.token.as_str(), claim.session.as_str()), ("t", "s"));
    let disk = Disk {
        path: "/dev/sda".into(),
        size: 7,
        serial: "S".into(),
        wwn: "w".into(),
        model: "M".into(),
    };
    assert_eq!(claim.disks, [disk]);
    let least: Claim = read(r#"{"token":"t","session":"s","mac":"m"}"#);
    assert!(least.macs.is_empty() && least.disks.is_empty());
    for missing in [
        r#"{"session":"s","mac":"m"}"#,
        r#"{"token":"t","mac":"m"}"#,
        r#"{"token":"t","session":"s"}"#,
    ] {
        assert!(serde_json::from_str::<Claim>(missing).is_err(), "{missing}");
    }
}

#[test]
fn an_assignment() {
    let image = Image {
        name: "debian-12".into(),
        kind: ImageKind::Raw,
        url: deploy::IMAGE.into(),
        sha256: "00".into(),
        size: 9,
    };
    let assignment = Assignment {
        run: "op-1".into(),
        machine: "m-1".into(),
        hostname: "gpu-1".into(),
        user: "root".into(),
        authorized_keys: vec!["ssh-ed25519 AAAA x".into()],
        root_disk: "".into(),
        image: image.clone(),
        stamp: "s".into(),
    };
    let text = r#"{"run":"op-1","machine":"m-1","hostname":"gpu-1","user":"root","authorized_keys":["ssh-ed25519 AAAA x"],"root_disk":"","image":{"name":"debian-12","kind":"raw","url":"/deploy/image","sha256":"00","size":9},"stamp":"s"}"#;
    agree(&assignment, text);
    let none: Assignment<Option<Image>> = read(&text.replace(
        r#"{"name":"debian-12","kind":"raw","url":"/deploy/image","sha256":"00","size":9}"#,
        "null",
    ));
    let written = serde_json::to_string(&none).unwrap();
    assert!(written.contains(r#""image":null"#), "{written}");
    assert!(serde_json::from_str::<Assignment>(&written).is_err(), "an agent needs an image");
    assert_eq!(read::<Assignment<Option<Image>>>(text).image, Some(image));
    let least: Assignment = read(
        r#"{"run":"op-1","machine":"m-1","hostname":"h","user":"u","image":{"name":"n","kind":"ova","url":"u","sha256":"0","size":1}}"#,
    );
    assert_eq!(least.image.kind, ImageKind::Unknown);
    for kind in [ImageKind::Raw, ImageKind::Qcow2, ImageKind::Tar] {
        agree(&kind, &format!("{:?}", kind.as_str()));
    }
}

#[test]
fn a_report_of_the_deploy_environment() {
    let mut report = deploy::Report {
        stage: Stage::Writing,
        done: 1,
        total: 2,
        message: "writing".into(),
        code: None,
        host_keys: Vec::new(),
    };
    let text =
        r#"{"stage":"writing","done":1,"total":2,"said":"writing","code":"","host_keys":[]}"#;
    agree(&report, text);
    for code in DeploymentFailure::ALL {
        (report.stage, report.code) = (Stage::Failed, Some(code));
        let code = code.as_str();
        let text = format!(
            r#"{{"stage":"failed","done":1,"total":2,"said":"writing","code":"{code}","host_keys":[]}}"#
        );
        agree(&report, &text);
    }
    for (stage, name) in
        Stage::ALL.into_iter().zip(["writing", "installing", "installed", "failed"])
    {
        agree(&stage, &format!("{name:?}"));
        assert_eq!((stage.as_str(), Stage::parse(name)), (name, Some(stage)));
    }
    let least: deploy::Report<String> = read(r#"{"stage":"dancing","code":"new-code"}"#);
    assert_eq!((least.stage.as_str(), least.code, least.total), ("dancing", None, 0));
    assert_eq!(Stage::parse(&least.stage), None);
}

#[test]
fn the_codes_of_failures() {
    let words = [
        "checksum-wrong",
        "disk-too-small",
        "disk-missing",
        "disk-ambiguous",
        "image-broken",
        "install-failed",
    ];
    assert_eq!(DeploymentFailure::ALL.map(DeploymentFailure::as_str), words);
}

#[test]
fn replies_to_the_deploy_environment() {
    for (name, then) in [
        ("go-on", deploy::DeploymentInstruction::Continue),
        ("reboot", deploy::DeploymentInstruction::Reboot),
        ("stop", deploy::DeploymentInstruction::Stop),
    ] {
        agree(&deploy::ReportReply { next_action: then }, &format!(r#"{{"then":"{name}"}}"#));
    }
    let refusal = Refusal { code: "token-used".into(), message: "used".into() };
    agree(&refusal, r#"{"code":"token-used","said":"used"}"#);
    assert_eq!(read::<Refusal>("{}"), Refusal::default());
}

#[test]
fn enrolling() {
    let text = r#"{"token":"t","session":"s","hostname":"gpu-1","serial":"S1","macs":["aa:01"],"boot_id":"b","version":"0.1.0"}"#;
    let request: EnrollRequest = read(&with_news(text));
    assert_eq!(serde_json::to_string(&request).unwrap(), text);
    let reply = node::EnrollReply { heartbeat_seconds: 30, node: "node-1".into() };
    agree(&reply, r#"{"heartbeat_seconds":30,"node":"node-1"}"#);
    assert_eq!(read::<EnrollRequest>("{}").token, "");
}

#[test]
fn heartbeats() {
    let beat = HeartbeatRequest {
        boot_id: "b".into(),
        version: "0.1.0".into(),
        healthy: Some(false),
        problems: vec!["hot".into()],
        tasks: vec!["t-1".into()],
    };
    agree(
        &beat,
        r#"{"boot_id":"b","version":"0.1.0","healthy":false,"problems":["hot"],"tasks":["t-1"]}"#,
    );
    assert_eq!(read::<HeartbeatRequest>("{}").healthy, None);
    let reply = node::HeartbeatReply { heartbeat_seconds: 30, waiting: true };
    agree(&reply, r#"{"heartbeat_seconds":30,"waiting":true}"#);
    assert!(!read::<node::HeartbeatReply>(r#"{"heartbeat_seconds":30}"#).waiting);
}

#[test]
fn tasks() {
    agree(&node::TakeRequest { wait_seconds: 30 }, r#"{"wait_seconds":30}"#);
    let task = Task {
        deadline_seconds: 600,
        id: "t-1".into(),
        kind: "node.drain".into(),
        lease_seconds: 60,
        params: [("a".to_string(), "b".to_string())].into(),
    };
    agree(
        &node::TakeReply { task: Some(task) },
        r#"{"task":{"deadline_seconds":600,"id":"t-1","kind":"node.drain","lease_seconds":60,"params":{"a":"b"}}}"#,
    );
    agree(&node::TakeReply { task: None }, r#"{"task":null}"#);
    let renew = node::RenewRequest { id: "t-1".into(), log: "l".into() };
    agree(&renew, r#"{"id":"t-1","log":"l"}"#);
    for (name, then) in
        [("go-on", node::TaskInstruction::Continue), ("stop", node::TaskInstruction::Stop)]
    {
        agree(&node::RenewReply { next_action: then }, &format!(r#"{{"then":"{name}"}}"#));
    }
    let report = node::ReportRequest {
        id: "t-1".into(),
        ok: Some(true),
        message: "done".into(),
        log: "".into(),
    };
    agree(&report, r#"{"id":"t-1","ok":true,"said":"done","log":""}"#);
    agree(&node::ReportReply {}, "{}");
}

#[test]
fn kinds_of_tasks() {
    let words = [
        "node.drain",
        "node.release",
        "node.scrub",
        "node.validate",
        "node.cleanup_storage",
        "node.uninstall",
    ];
    for (kind, name) in TaskKind::ALL.into_iter().zip(words) {
        assert_eq!((kind.as_str(), TaskKind::parse(name)), (name, Some(kind)));
    }
    assert_eq!(TaskKind::parse("node.dance"), None);
}
