//! Approvals: which requests need one, who decides, and which request an approval covers.

use model::access::{AuthMethod, Permission, PermissionSet, Principal};
use model::approval::{
    Approval, ApprovalPolicy, ApprovalState, ApprovalVerdict, Decision, MAX_PLAN_LINES, Proposal,
    describe_gate, digested_text, judge,
};
use model::gate::{Gate, Overrides};
use model::id::{ApprovalId, RunId};
use model::refusal::Reason;
use model::time::Timestamp;
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3_600);

fn at(minutes: i64) -> Timestamp {
    Timestamp::from_micros(minutes * 60_000_000)
}

pub fn proposal(request_id: &str, plan: &[&str]) -> Proposal {
    let plan: Vec<String> = plan.iter().map(|line| line.to_string()).collect();
    let targets = vec!["m-1".to_string()];
    Proposal {
        request: "REIMAGE".into(),
        request_id: request_id.into(),
        permissions: PermissionSet::of(&[Permission::Destroy, Permission::Operate]),
        digest: digested_text("REIMAGE", &targets, &plan),
        targets,
        plan,
        overrides: Overrides::default(),
        operations: vec![RunId::trusted("op-1")],
    }
}

pub fn pending(id: &str, proposal: &Proposal) -> Approval {
    Approval::new(ApprovalId::trusted(id), "ada", proposal, (at(0), HOUR))
}

fn person(user: &str, method: AuthMethod) -> Principal {
    Principal { user: user.into(), groups: Vec::new(), method, token_id: Some("tok-9".into()) }
}

fn decision(by: &Principal, granted: PermissionSet, minutes: i64) -> Decision<'_> {
    Decision { by, granted, comment: "fine", lifetime: HOUR, now: at(minutes) }
}

#[test]
fn only_the_classes_of_the_policy_need_a_second_person() {
    let destroy = PermissionSet::from(Permission::Destroy);
    let policy = ApprovalPolicy::parse(destroy, None).unwrap();
    assert_eq!(policy.lifetime, HOUR);
    let both = PermissionSet::of(&[Permission::Destroy, Permission::Operate]);
    assert_eq!(policy.needed(both), destroy);
    assert!(policy.needed(Permission::Operate.into()).is_empty());
    assert!(ApprovalPolicy::default().needed(PermissionSet::ALL).is_empty());
    for wrong in [Permission::View, Permission::Admin, Permission::Trust] {
        let refusal = ApprovalPolicy::parse(wrong.into(), None).unwrap_err();
        assert_eq!(refusal.field.as_deref(), Some("permissions"));
    }
    for seconds in [0, 59, 7 * 86_400 + 1] {
        let lifetime = Some(Duration::from_secs(seconds));
        let refusal = ApprovalPolicy::parse(destroy, lifetime).unwrap_err();
        assert_eq!(refusal.field.as_deref(), Some("lifetime_seconds"), "{seconds}");
    }
}

#[test]
fn states_are_read_back_and_time_ends_those_that_wait() {
    let proposal = proposal("r-1", &[]);
    for state in ApprovalState::ALL {
        assert_eq!(ApprovalState::parse(state.as_str()), Some(state));
        let record = Approval { stored: state, ..pending("apr-1", &proposal) };
        assert_eq!(record.state(at(59)), state);
        let waits = matches!(state, ApprovalState::Pending | ApprovalState::Approved);
        let later = if waits { ApprovalState::Expired } else { state };
        assert_eq!(record.state(at(60)), later);
    }
}

/// Rights to decide: every state by every kind of person.
#[test]
fn another_person_with_the_same_rights_decides() {
    use ApprovalState::{Approved, BreakGlass, Denied, Expired, Pending, Reviewed, Used};
    let proposal = proposal("r-1", &["step"]);
    let (all, some) = (proposal.permissions, PermissionSet::from(Permission::Destroy));
    let bob = person("bob", AuthMethod::Token);
    for stored in ApprovalState::ALL {
        let record = Approval { stored, ..pending("apr-1", &proposal) };
        let granted = record.grant(decision(&bob, all, 10));
        let denied = record.deny(decision(&bob, all, 10));
        let (grants, denies) = match stored {
            Pending => (Some(Approved), Some(Denied)),
            Approved => (None, Some(Denied)),
            BreakGlass => (Some(Reviewed), None),
            Denied | Used | Expired | Reviewed => (None, None),
        };
        for (decided, expected) in [(granted, grants), (denied, denies)] {
            match (decided, expected) {
                (Ok(decided), Some(state)) => {
                    assert_eq!(decided.stored, state);
                    assert_eq!(
                        (decided.decided_by.as_str(), decided.decided_at),
                        ("bob", Some(at(10)))
                    );
                    assert_eq!(decided.comment, "fine");
                }
                (Err(refusal), None) => assert_eq!(refusal.reason, Reason::ApprovalClosed),
                other => panic!("{stored:?}: {other:?}"),
            }
        }
        // Another token of the requester is the same person, and the server is none.
        for (who, granted, reason) in [
            (person("ada", AuthMethod::Token), all, Reason::SecondPersonRequired),
            (person("ada", AuthMethod::Oidc), all, Reason::SecondPersonRequired),
            (person("farrier", AuthMethod::Internal), all, Reason::SecondPersonRequired),
            (person("bob", AuthMethod::Certificate), some, Reason::PermissionDenied),
        ] {
            let refusal = record.grant(decision(&who, granted, 10)).unwrap_err();
            assert_eq!(refusal.reason, reason, "{stored:?} {who:?}");
        }
    }
    let record = pending("apr-1", &proposal);
    let approved = record.grant(decision(&bob, all, 59)).unwrap();
    assert_eq!(approved.expires_at, at(119), "valid for an hour from the approval on");
    assert_eq!(approved.grant(decision(&bob, all, 60)), Ok(approved.clone()), "a repetition");
    let carl = person("carl", AuthMethod::Token);
    assert_eq!(
        approved.grant(decision(&carl, all, 60)).unwrap_err().reason,
        Reason::ApprovalClosed
    );
    assert_eq!(record.grant(decision(&bob, all, 60)).unwrap_err().reason, Reason::ApprovalClosed);
    // The requester can withdraw it.
    let ada = person("ada", AuthMethod::Token);
    let withdrawn = record.deny(decision(&ada, PermissionSet::EMPTY, 10)).unwrap();
    assert_eq!(withdrawn.stored, ApprovalState::Denied);
    assert_eq!(withdrawn.deny(decision(&ada, all, 11)), Ok(withdrawn.clone()));
}

#[test]
fn an_approval_covers_the_same_request_and_no_other() {
    let asked = proposal("r-1", &["image a", "step"]);
    let stored = |state: ApprovalState| Approval {
        stored: state,
        decided_by: "bob".into(),
        comment: "not today".into(),
        ..pending("apr-1", &asked)
    };
    let other_id = Proposal { request_id: "r-2".into(), ..asked.clone() };
    let other_plan = proposal("r-1", &["image b", "step"]);
    let other_target =
        Proposal { targets: vec!["m-2".into()], digest: "other".into(), ..asked.clone() };
    let refused = |verdict: ApprovalVerdict| match verdict {
        ApprovalVerdict::Refuse(refusal) => refusal,
        other => panic!("{other:?}"),
    };
    let requested = |verdict: ApprovalVerdict| match verdict {
        ApprovalVerdict::Request(changed) => changed.unwrap_or_default(),
        other => panic!("{other:?}"),
    };
    let approved = [stored(ApprovalState::Approved)];
    assert_eq!(
        judge(&approved, &asked, at(10)),
        ApprovalVerdict::Use(Box::new(approved[0].clone()))
    );
    let refusal = refused(judge(&approved, &other_id, at(10)));
    assert_eq!(refusal.reason, Reason::ApprovalRequired);
    assert_eq!(refusal.approval.unwrap().request_id, "r-1");
    assert_eq!(
        requested(judge(&approved, &other_plan, at(10))),
        "apr-1 was for something else: it was [image a], and is [image b]"
    );
    assert_eq!(
        requested(judge(&approved, &other_target, at(10))),
        "apr-1 was for something else: it was REIMAGE on m-1, and is REIMAGE on m-2"
    );
    assert_eq!(requested(judge(&approved, &asked, at(70))), "apr-1 expired 10m 0s ago");

    let waiting = [stored(ApprovalState::Pending)];
    for again in [&asked, &other_id] {
        let refusal = refused(judge(&waiting, again, at(10)));
        assert_eq!(
            (refusal.reason, refusal.gate),
            (Reason::ApprovalRequired, Some(Gate::Approval))
        );
        assert_eq!(refusal.approval.unwrap().id, "apr-1");
        let next = refusal.next_command.unwrap();
        assert!(next.starts_with("farrier approve apr-1   # "), "{next}");
        assert!(next.ends_with("--request-id r-1"), "{next}");
    }
    let denied = [stored(ApprovalState::Denied)];
    let refusal = refused(judge(&denied, &asked, at(10)));
    assert_eq!(refusal.reason, Reason::ApprovalDenied);
    assert!(refusal.message.contains("bob denied REIMAGE on m-1 (apr-1): not today"), "{refusal}");
    assert_eq!(requested(judge(&denied, &other_id, at(10))), "");
    for over in [ApprovalState::Used, ApprovalState::BreakGlass, ApprovalState::Reviewed] {
        assert_eq!(requested(judge(&[stored(over)], &asked, at(10))), "", "{over:?}");
    }
    assert_eq!(requested(judge(&[], &asked, at(10))), "");
}

#[test]
fn a_request_without_a_request_id_is_covered_too() {
    let asked = proposal("", &["step"]);
    let approved = Approval { stored: ApprovalState::Approved, ..pending("apr-1", &asked) };
    assert!(matches!(judge(&[approved], &asked, at(1)), ApprovalVerdict::Use(_)));
    let refusal = pending("apr-1", &asked).required(None);
    assert!(refusal.next_command.unwrap().ends_with("then repeat the request"));
}

#[test]
fn a_long_plan_is_cut_for_people_and_not_in_the_digest() {
    let lines: Vec<String> = (0..MAX_PLAN_LINES + 7).map(|line| format!("step {line}")).collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let record = pending("apr-1", &proposal("r", &lines));
    assert_eq!(record.plan.len(), MAX_PLAN_LINES);
    assert_eq!(record.plan.last().unwrap(), "and 8 more lines, which the hash covers");
    let mut other = lines.clone();
    other[MAX_PLAN_LINES + 6] = "another step";
    assert_ne!(record.digest, proposal("r", &other).digest);
    // Parts cannot be moved between lines without a change of the digest.
    assert_ne!(proposal("r", &["a", "b"]).digest, proposal("r", &["a\n1:b"]).digest);
}

#[test]
fn an_override_of_the_gate_is_noted_by_itself() {
    let both = Overrides::of(&[Gate::Health, Gate::Approval], "fire");
    assert_eq!(both.history_note("ada", &[Gate::Health]), "; gate health overridden by ada: fire");
    assert_eq!(
        both.approval_note("ada", true),
        "gate approval overridden by ada (break-glass): fire"
    );
    assert!(both.approval_note("ada", false).contains("did not refuse"));
    assert_eq!(both.without_approval(), Overrides::of(&[Gate::Health], "fire"));
    let (none, destroy) = (Overrides::default(), PermissionSet::from(Permission::Destroy));
    assert_eq!(none.approval_note("ada", true), "");
    assert_eq!(describe_gate(PermissionSet::EMPTY, &none), None);
    assert!(describe_gate(destroy, &none).unwrap().contains("second person (destroy)"));
    assert!(describe_gate(destroy, &both).unwrap().contains("the override passes it"));
    assert!(describe_gate(PermissionSet::EMPTY, &both).unwrap().contains("does not refuse it"));
}
