//! Notices of changes, notifiers as they are described, and the course of a delivery.

use crate::support::{at, run, wipe};
use model::condition::{ConditionObservation, ConditionType};
use model::fault::{Fault, FaultCode};
use model::id::{MachineId, RunId};
use model::lifecycle::SubjectKind;
use model::machine::{Labels, Machine, MachineSpec, Phase};
use model::notify::{
    AfterFailure, Before, Change, Delivery, MAX_SUMMARY, NoticeEvent, NoticeKind, Notifier,
    NotifierSpec, NotifyFormat, ObjectFacts, SendFailure, Severity, Snapshot, after_failure,
    check_room, needs_before, notices,
};
use model::run::{Failure, Run, Workflow};
use model::why::{Urgency, explain_notifier, rank_notifier};
use std::collections::BTreeSet;
use std::time::Duration;

fn facts() -> ObjectFacts {
    let labels = Labels::from([("env".to_string(), "prod".to_string())]);
    ObjectFacts { rack: "rack-1".into(), labels }
}

fn change<'a>(object: &'a str, before: Before<'a>, after: Option<Snapshot<'a>>) -> Change<'a> {
    Change { object, version: 3, at: at(9), before, after }
}

fn failed(workflow: Workflow) -> Run {
    let mut failed = run(vec![wipe(0)]);
    failed.progress.workflow = workflow;
    let fault = Fault::new(FaultCode::EffectFailed, "the disk\nis gone");
    failed.progress.failure = Some(Failure { fault, step: "wipe".into(), attempts: 1 });
    failed
}

#[test]
fn an_operation_is_reported_when_it_fails_and_only_then() {
    for workflow in Workflow::ALL {
        let (before, after) = (failed(Workflow::Running), failed(workflow));
        let known = Before::Known(Snapshot::Run(&before));
        let told = notices(&change("op-1", known, Some(Snapshot::Run(&after))), &facts());
        assert_eq!(told.len(), usize::from(workflow.failed()), "{workflow:?}");
        assert_eq!(needs_before(Some(Snapshot::Run(&after))), workflow.failed());
        // It stays failed, or its event before has expired.
        let same = Before::Known(Snapshot::Run(&after));
        assert!(notices(&change("op-1", same, Some(Snapshot::Run(&after))), &facts()).is_empty());
        let unknown =
            notices(&change("op-1", Before::Unknown, Some(Snapshot::Run(&after))), &facts());
        assert_eq!(unknown.len(), usize::from(workflow.failed()), "{workflow:?}");
    }
    let after = failed(Workflow::FailedRetryable);
    let told = notices(&change("op-1", Before::Unknown, Some(Snapshot::Run(&after))), &facts());
    let (kind, notice) = &told[0];
    assert_eq!(*kind, NoticeKind::OperationFailed);
    assert_eq!(notice.id, "op-1:3:operation-failed");
    assert_eq!(notice.event, NoticeEvent::OperationFailed);
    assert!(notice.summary.ends_with("failed: wipe: the disk is gone"), "{}", notice.summary);
    assert_eq!((notice.fault.as_str(), notice.rack.as_str()), ("effect-failed", "rack-1"));
    assert_eq!(notice.command, "farrier why op-1");
    let mut child = after.clone();
    child.spec.parent_run = Some(RunId::trusted("op-0"));
    let part = change("op-1", Before::Unknown, Some(Snapshot::Run(&child)));
    assert!(notices(&part, &facts()).is_empty(), "a child run reports through its parent");
}

fn machine(observed: &[(ConditionType, bool, &str)]) -> Machine {
    let spec = MachineSpec::default();
    let mut machine = Machine::new(MachineId::trusted("m.1"), spec, Labels::new(), at(0));
    machine.phase = Phase::Ready;
    for (condition, status, reason) in observed {
        machine.learn(&[ConditionObservation::new(*condition, *status, *reason)], at(7));
    }
    machine
}

#[test]
fn the_begin_and_the_end_of_a_need_are_reported_and_a_worse_one() {
    use ConditionType::{BmcReachable, NeedsIntervention, Reachable};
    let well = machine(&[]);
    let reachable = (Reachable, true, "PingOK");
    let degraded = machine(&[reachable, (BmcReachable, false, "bmc-unreachable")]);
    let stopped = machine(&[(NeedsIntervention, true, "effect-failed:op-1")]);
    let damaged = machine(&[(NeedsIntervention, true, "outcome-unknown:op-1")]);
    let (needed, over) = (NoticeEvent::PersonNeeded, NoticeEvent::PersonNoLongerNeeded);
    for (before, after, expected) in [
        (Some(&well), Some(&well), None),
        (Some(&well), Some(&degraded), Some((needed, Severity::Warning))),
        (Some(&well), Some(&stopped), Some((needed, Severity::Error))),
        (Some(&degraded), Some(&stopped), Some((needed, Severity::Error))),
        (Some(&stopped), Some(&damaged), Some((needed, Severity::Critical))),
        (Some(&damaged), Some(&stopped), None),
        (Some(&stopped), Some(&stopped), None),
        (Some(&stopped), Some(&degraded), None),
        (Some(&degraded), Some(&well), Some((over, Severity::Info))),
        (Some(&stopped), None, Some((over, Severity::Info))),
        (Some(&well), None, None),
        (None, Some(&well), None),
        (None, Some(&stopped), Some((needed, Severity::Error))),
        (None, None, None),
    ] {
        for none in [Before::Absent, Before::Unknown] {
            let before = before.map_or(none, |one| Before::Known(Snapshot::Machine(one)));
            let told = change("m.1", before, after.map(Snapshot::Machine));
            let told = notices(&told, &facts());
            let found = told.first().map(|(_, one)| (one.event, one.severity));
            assert_eq!((found, told.len()), (expected, usize::from(expected.is_some())));
            for (kind, notice) in told {
                assert_eq!(kind, NoticeKind::NeedsPerson);
                assert!(notice.id.starts_with("m:1:3:person-"), "{}", notice.id);
                assert_eq!(notice.kind, "machine");
            }
        }
    }
}

#[test]
fn a_record_needs_a_person_in_these_states() {
    let needy = [
        (SubjectKind::Switch, "Error"),
        (SubjectKind::PowerShelf, "Error"),
        (SubjectKind::Site, "Unreachable"),
        (SubjectKind::Site, "CutOff"),
    ];
    for kind in SubjectKind::ALL {
        for &state in kind.states() {
            let told = notices(
                &change("x", Before::Absent, Some(Snapshot::Record(kind, state))),
                &ObjectFacts::default(),
            );
            assert_eq!(!told.is_empty(), needy.contains(&(kind, state)), "{kind:?} {state}");
        }
    }
}

#[test]
fn a_summary_is_one_line_of_bounded_length() {
    let mut long = failed(Workflow::FailedRetryable);
    let fault = Fault::new(FaultCode::EffectFailed, "é\n".repeat(MAX_SUMMARY));
    long.progress.failure = Some(Failure { fault, step: "wipe".into(), attempts: 1 });
    let told = notices(
        &change("op-1", Before::Unknown, Some(Snapshot::Run(&long))),
        &ObjectFacts::default(),
    );
    let summary = &told[0].1.summary;
    assert_eq!(summary.chars().count(), MAX_SUMMARY);
    assert!(!summary.contains('\n'));
}

#[test]
fn a_filter_selects_notices() {
    let after = failed(Workflow::FailedRetryable);
    let told = notices(&change("op-1", Before::Unknown, Some(Snapshot::Run(&after))), &facts());
    let notice = &told[0].1;
    for (text, matches) in [
        ("", true),
        ("type=farrier.operation.failed", true),
        ("type!=farrier.operation.failed", false),
        ("severity in (critical, error)", true),
        ("severity=warning", false),
        ("kind=operation AND labels.env=prod", true),
        ("labels.env=test", false),
        ("labels.env!=test", true),
        ("labels.zone", false),
        ("rack_id=rack-1 AND id=op-1 AND fault=effect-failed", true),
        ("target_id=m-9", false),
    ] {
        let filter = NotifierSpec::parse_filter(text).unwrap();
        assert_eq!(filter.matches_values(notice), matches, "{text}");
    }
    for wrong in ["phase=READY", "severity=loud", "labels.=x", "type=other", "kind=plan"] {
        assert!(NotifierSpec::parse_filter(wrong).is_err(), "{wrong}");
    }
}

fn spec(url: &str, format: NotifyFormat) -> NotifierSpec {
    NotifierSpec {
        url: url.into(),
        credential: "hook".into(),
        format,
        kinds: BTreeSet::from([NoticeKind::NeedsPerson]),
        filter: String::new(),
        source: String::new(),
        max_attempts: 0,
    }
}

#[test]
fn a_notifier_is_checked_and_gets_its_defaults() {
    use NotifyFormat::{CloudEvents, PagerDuty, Slack};
    let (plain, secret) = ("https://h/in", "https://h/services/{secret}");
    for (url, format, sound) in [
        (plain, CloudEvents, true),
        ("http://h:8080/in?x=1", PagerDuty, true),
        (secret, Slack, true),
        (plain, Slack, false),
        (secret, CloudEvents, false),
        (secret, PagerDuty, false),
        ("https://h/{secret}/{secret}", Slack, false),
        ("https://{secret}/in", Slack, false),
        ("https://h/in#part", CloudEvents, false),
        ("https://user:word@h/in", CloudEvents, false),
        ("ftp://h/in", CloudEvents, false),
        ("h/in", CloudEvents, false),
        ("", CloudEvents, false),
    ] {
        assert_eq!(spec(url, format).checked().is_ok(), sound, "{url} {format:?}");
    }
    let sound = spec(plain, CloudEvents);
    let checked = sound.clone().checked().unwrap();
    assert_eq!((checked.source.as_str(), checked.max_attempts), ("/farrier", 12));
    for (wrong, field) in [
        (NotifierSpec { credential: String::new(), ..sound.clone() }, "notifier.credential"),
        (NotifierSpec { kinds: BTreeSet::new(), ..sound.clone() }, "notifier.kinds"),
        (NotifierSpec { filter: "x".into(), ..sound.clone() }, "filter"),
        (NotifierSpec { source: "a b".into(), ..sound.clone() }, "notifier.source"),
        (NotifierSpec { max_attempts: 101, ..sound.clone() }, "notifier.max_attempts"),
    ] {
        assert_eq!(wrong.checked().unwrap_err().field.as_deref(), Some(field));
    }
    assert!(check_room(99).is_ok());
    assert!(check_room(100).is_err());
}

#[test]
fn waits_grow_with_the_failures_in_a_row_and_a_success_ends_them() {
    let failure = SendFailure { message: "500".into(), ..SendFailure::default() };
    let mut delivery = Delivery { done: 1, delivered: 7, ..Delivery::default() };
    let mut waits = Vec::new();
    for _ in 0..14 {
        delivery = delivery.failed(&failure, "ops", at(100));
        waits.push(delivery.not_before.unwrap().since(at(100)));
        assert!(!delivery.is_due(at(100)));
    }
    assert!(waits[..10].windows(2).all(|two| two[0] < two[1]), "{waits:?}");
    assert!(waits.iter().all(|wait| *wait <= Duration::from_secs(600)), "{waits:?}");
    assert!(waits[13] >= Duration::from_secs(300), "{waits:?}");
    assert_eq!((delivery.failures, delivery.failing_since), (14, Some(at(100))));
    assert!(delivery.retried_now().is_due(at(100)));
    let well = delivery.succeeded(at(900));
    let expected =
        Delivery { done: 1, delivered: 8, last_delivered_at: Some(at(900)), ..Delivery::default() };
    assert_eq!(well, expected);
    for (asked_for, least, most) in [(120, 120, 120), (999_999, 3_600, 3_600), (0, 0, 1)] {
        let retry_after = Some(Duration::from_secs(asked_for));
        let failure = SendFailure { retry_after, ..failure.clone() };
        let wait = well.failed(&failure, "ops", at(0)).not_before.unwrap().since(at(0));
        let range = Duration::from_secs(least)..=Duration::from_secs(most);
        assert!(range.contains(&wait), "{asked_for}: {wait:?}");
    }
}

#[test]
fn a_notice_is_given_up_after_its_attempts_if_there_is_room() {
    use AfterFailure::{GiveUp, Retry};
    for (attempts, letters, expected) in
        [(1, 0, Retry), (2, 0, Retry), (3, 0, GiveUp), (4, 9_999, GiveUp), (4, 10_000, Retry)]
    {
        assert_eq!(after_failure(attempts, 3, letters), expected, "{attempts} {letters}");
    }
}

#[test]
fn a_notifier_that_fails_is_explained_with_its_repair() {
    let new = || Notifier::new("ops", spec("https://h/in", NotifyFormat::CloudEvents), at(0));
    let failing = |paused| {
        let repair = Some("farrier credential set hook --for h …".to_string());
        let failure = SendFailure { message: "h answered 500".into(), repair, retry_after: None };
        let delivery = Delivery::default().failed(&failure, "ops", at(10));
        Notifier { delivery, paused, ..new() }
    };
    for (notifier, letters, now, since) in [
        (new(), 0, 100, None),
        (failing(false), 0, 60, None),
        (failing(false), 0, 70, Some(10)),
        (failing(true), 0, 70, None),
        (failing(true), 1, 70, Some(0)),
        (new(), 2, 70, Some(0)),
    ] {
        let rank = rank_notifier(&notifier, letters, at(now));
        assert_eq!(rank.map(|rank| rank.since), since.map(at), "{notifier:?} {letters} {now}");
        assert!(rank.is_none_or(|rank| rank.urgency == Urgency::Degraded));
    }
    let told = explain_notifier(&failing(false), 2, at(70));
    assert!(told.headline.contains("accepted nothing for 1m 0s; 2 notices are dead letters"));
    assert_eq!(told.failed, "h answered 500");
    assert_eq!(
        told.next_commands,
        [
            "farrier credential set hook --for h …",
            "farrier notify test ops",
            "farrier notify dead-letters ops",
            "farrier notify replay ops --all",
        ]
    );
}
