//! Waits: whom a run waits for, since when, what that peer said last, and what is normal.

use crate::support::{RunDriver, at, done, drain, fault, netboot, note, spec, who, wipe};
use model::effect::{CallVerb, ChildRunGroup, Effect};
use model::fault::FaultCode;
use model::id::{NodeId, RunId, SiteId};
use model::node::{NodeStage, StageExecutor};
use model::plan::RunStep;
use model::run::actions::{Action, ActionResult, apply_action};
use model::run::{CallIntent, CallResult, Policy, Run, decide};
use model::target::TargetId;
use model::why::{
    AgentContact, ChildProgress, LastLine, PeerContacts, ReplicaContact, RunContext, UsualDuration,
    ended_waits, explain_run, overdue,
};
use std::time::Duration;

const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn stage(stage: NodeStage, site: Option<&str>) -> RunStep {
    let (node, site) = (NodeId::trusted("node-1"), site.map(SiteId::trusted));
    let effect = Effect::Stage { stage, node, site, provider: String::new(), undo: false };
    RunStep { name: stage.to_string(), timeout_seconds: 60, max_retries: 0, effect }
}

fn children() -> RunStep {
    let group =
        ChildRunGroup { child_runs: Vec::new(), max_concurrent: 2, skip_if_all_hold: Vec::new() };
    let effect = Effect::ChildRuns { group };
    RunStep { name: "firmware".into(), timeout_seconds: 3_600, max_retries: 0, effect }
}

fn child(target: &str, run: &str, since: i64) -> ChildProgress {
    let target = TargetId::parse(target).unwrap();
    ChildProgress { target, run: RunId::trusted(run), step: "flash".into(), since: at(since) }
}

fn explained(run: &Run, contacts: &PeerContacts, now: i64) -> model::why::Explanation {
    let context = RunContext { contacts: Some(contacts), ..RunContext::default() };
    explain_run(run, context, at(now))
}

/// Every wait of a step that is at work names the peer.
#[test]
fn a_wait_names_whom_it_is_for() {
    let none = PeerContacts::default;
    let known = |heard: Option<i64>| AgentContact {
        heartbeat_at: heard.map(at),
        silence: seconds(60),
        revoked_at: None,
    };
    let agent = |heard| PeerContacts { agent: Some(known(heard)), ..none() };
    let revoked = AgentContact { revoked_at: Some(at(70)), ..known(Some(69)) };
    let revoked = PeerContacts { agent: Some(revoked), ..none() };
    let revoked_words = "(its session was revoked 30s ago, and it has not enrolled again)";
    let task = *NodeStage::ALL.iter().find(|stage| stage.task().is_some()).unwrap();
    let slow = PeerContacts {
        children: vec![child("sw-2", "op-8", 50), child("sw-1", "op-7", 20)],
        ..none()
    };
    let dead = PeerContacts {
        replica: Some(ReplicaContact {
            name: "r-2".into(),
            heartbeat_at: Some(at(88)),
            expires_at: at(94),
        }),
        ..none()
    };
    for (step, contacts, words) in [
        (netboot(0), none(), "the BMC of m-1 to finish step netboot"),
        (note(0), none(), "the host of m-1 to finish step note"),
        (drain(0), none(), "the cluster cluster-a to finish step drain"),
        (wipe(0), none(), "the machine to finish step wipe"),
        (stage(task, None), agent(Some(80)), "(its last heartbeat was 20s ago)"),
        (stage(task, None), agent(Some(26)), "(silent for 1m 14s, its lease is over)"),
        (stage(task, None), revoked, revoked_words),
        (stage(task, None), agent(None), "(it has never sent a heartbeat)"),
        (stage(task, None), none(), "the agent of node-1 to finish step"),
        (stage(NodeStage::WaitForDeployed, Some("site-a")), none(), "the MAAS of site-a to finish"),
        (children(), slow, "sw-1 to finish flash (op-7, for 1m 20s), the slowest of 2 at work"),
        (netboot(0), dead, "replica r-2, which has claimed it: its last heartbeat was 12s ago"),
    ] {
        let driver = RunDriver::of(vec![step]);
        let reported = explained(&driver.run, &contacts, 100);
        assert!(reported.waiting_for.contains(words), "{}: {words}", reported.waiting_for);
        assert_eq!(reported.since, Some(at(1)), "{words}");
    }
}

/// The peer that performs an effect, in the words of a wait.
fn peer(effect: &Effect) -> &'static str {
    match effect {
        Effect::Ssh { .. } | Effect::Net { .. } => "the host of m-1",
        Effect::Reboot { .. }
        | Effect::Netboot { .. }
        | Effect::Rma { .. }
        | Effect::Power { .. }
        | Effect::Device { .. } => "the BMC of m-1",
        // Without a cluster there is only the machine.
        Effect::Join { .. }
        | Effect::Leave { .. }
        | Effect::Verify { .. }
        | Effect::Drain { .. }
        | Effect::Uncordon { .. }
        | Effect::Repave { .. }
        | Effect::ChildRuns { .. } => "the machine",
        Effect::Stage { stage, .. } => match stage.executor() {
            StageExecutor::Task(_) | StageExecutor::Enrollment => "the agent of node-1",
            StageExecutor::Maas => "the MAAS of site-a",
            StageExecutor::Record(_) => "a worker",
        },
    }
}

/// Every effect and every call: whom, since, what is normal, and what to type.
#[test]
fn every_wait_is_explained() {
    let stages = NodeStage::ALL.iter().map(|one| stage(*one, Some("site-a")).effect);
    for effect in crate::effect::one_of_each().into_iter().chain(stages) {
        let peer = peer(&effect);
        let step = RunStep { name: "look".into(), timeout_seconds: 60, max_retries: 0, effect };
        let begun = RunDriver::of(vec![step]).run;
        let verbs = CallVerb::ALL.into_iter().map(Some).chain([None]);
        for verb in verbs {
            let mut run = begun.clone();
            let intent = &mut run.progress.steps[0].intent;
            assert!(intent.is_some(), "{:?}", run.progress);
            *intent = verb.map(|verb| CallIntent { verb, epoch: 1, at: at(8) });
            let case = format!("{verb:?} of {:?}", run.spec.steps[0].effect);
            let reported = explained(&run, &PeerContacts::default(), 30);
            let words = match verb {
                Some(CallVerb::Perform | CallVerb::Follow) => format!("{peer} to finish step look"),
                Some(CallVerb::GetStatus) => format!("{peer} to report what became of step look"),
                Some(CallVerb::Observe) => {
                    format!("{peer} to report whether step look already holds")
                }
                Some(CallVerb::Stop) => format!("{peer} to stop step look"),
                None => "step look to start".into(),
            };
            assert_eq!(reported.waiting_for, words, "{case}");
            // A stop is a wait of its own.
            let since = if verb == Some(CallVerb::Stop) { at(8) } else { at(1) };
            assert_eq!(reported.since, Some(since), "{case}");
            assert!(reported.normal.starts_with("up to "), "{case}: {}", reported.normal);
            assert_eq!(reported.next_commands, ["farrier logs -f op-1", "farrier cancel op-1"]);
            assert_eq!(reported.requested_by, "alice, 30s ago");
        }
    }
}

#[test]
fn the_slowest_child_is_explained_first() {
    let contacts = PeerContacts {
        children: vec![child("sw-2", "op-8", 50), child("sw-1", "op-7", 20)],
        ..PeerContacts::default()
    };
    let driver = RunDriver::of(vec![children()]);
    let reported = explained(&driver.run, &contacts, 100);
    assert_eq!(reported.next_commands[0], "farrier why op-7");
}

#[test]
fn the_last_word_of_the_peer_is_shown_with_its_age() {
    let text = "drain: pod a/b may not be evicted: budget web allows none".to_string();
    let last_line = Some(LastLine { at: at(90), text: text.clone() });
    let contacts = PeerContacts { last_line, ..PeerContacts::default() };
    let driver = RunDriver::of(vec![drain(0)]);
    assert_eq!(explained(&driver.run, &contacts, 100).last_word, format!("10s ago: {text}"));
}

/// A backoff shows why the last attempt failed. The wait began with the first attempt.
#[test]
fn a_backoff_shows_the_reason_and_the_whole_wait() {
    let driver = RunDriver::of(vec![netboot(3)]);
    let answer = CallResult::Answered(CallVerb::Perform, fault(FaultCode::BmcUnreachable));
    let run = decide(&driver.run, 1, Some(&answer), Policy::default(), at(30)).run;
    let reported = explained(&run, &PeerContacts::default(), 31);
    assert!(reported.waiting_for.contains("the next attempt at step netboot (in "), "{reported:?}");
    assert!(reported.waiting_for.ends_with("; attempt 1 failed: as told)"), "{reported:?}");
    assert_eq!(reported.since, Some(at(1)));
}

/// An operator who continues a failed run begins the wait anew; a takeover does not.
#[test]
fn the_wait_begins_again_only_with_an_action() {
    let mut driver = RunDriver::of(vec![netboot(0)]);
    driver.now = at(30);
    driver.answer(fault(FaultCode::BmcUnreachable));
    assert!(driver.run.ended());
    let retried = apply_action(&driver.run, Action::RetryStep, &who(), at(500)).unwrap();
    let ActionResult::Reopened(progress, _) = retried else { panic!("{retried:?}") };
    let run = Run { progress, ..driver.run.clone() };
    assert_eq!(explained(&run, &PeerContacts::default(), 501).since, Some(at(500)));
    let taken = RunDriver::of(vec![netboot(0)]).run;
    let again = decide(&taken, 9, None, Policy::default(), at(700)).run;
    assert_eq!(explained(&again, &PeerContacts::default(), 701).since, Some(at(1)));
}

/// The normal duration is learned: from ten durations on, their median and 95th percentile count.
#[test]
fn the_normal_duration_is_learned() {
    let of = |count: u64| UsualDuration::of((1..=count).map(seconds).collect(), "DGX");
    assert_eq!(of(9), None);
    let usual = of(100).unwrap();
    assert_eq!((usual.median, usual.p95, usual.samples), (seconds(50), seconds(95), 100));
    assert_eq!(of(10).map(|usual| (usual.median, usual.p95)), Some((seconds(5), seconds(10))));
    let run = RunDriver::of(vec![netboot(0)]).run;
    let contacts = PeerContacts { usual: Some(usual.clone()), ..PeerContacts::default() };
    for (now, late) in [(90, false), (97, true)] {
        let reported = explained(&run, &contacts, now);
        assert_eq!(reported.normal, "50s, up to 1m 35s (the last 100 on DGX)");
        assert_eq!((reported.overdue, overdue(&run, Some(&usual), at(now))), (late, late));
    }
    assert!(!overdue(&run, None, at(97)), "the deadline is what is normal before that");
}

/// A duration is the whole wait, and only a step that was executed has one.
#[test]
fn a_successful_step_has_a_duration() {
    let mut driver = RunDriver::of(vec![netboot(3)]);
    let before = driver.run.clone();
    driver.now = at(42);
    driver.answer(done());
    let ended = ended_waits(&before, &driver.run);
    assert_eq!(ended, [("plan-x/netboot".to_string(), seconds(41))]);
    assert_eq!(ended_waits(&driver.run, &driver.run), []);
    let mut adopted = Run::new(spec(vec![netboot(3)]));
    adopted.progress.steps[0].state = model::run::StepPhase::Succeeded;
    assert_eq!(ended_waits(&before, &adopted), []);
}
