//! Tasks of agents: the status of each, and the result of every message.

use crate::support::at;
use model::effect::EffectKey;
use model::id::{NodeId, RunId};
use model::node::TaskKind;
use model::node::task::{
    LEASE, MAX_LOG, ResumeResult, Task, TaskInstruction, TaskState, TaskStatus,
};
use model::time::Timestamp;
use std::collections::BTreeMap;

const NOW: i64 = 1_000;

fn now() -> Timestamp {
    at(NOW)
}

fn task(state: TaskState, lease_until: Option<i64>) -> Task {
    Task {
        key: EffectKey::new(&RunId::trusted("op-1"), "drain_node", 1),
        node: NodeId::trusted("node-1"),
        run: RunId::trusted("op-1"),
        kind: TaskKind::Drain,
        params: BTreeMap::new(),
        state,
        lease_until: lease_until.map(at),
        dispatched: 1,
        deadline: at(9_000),
        message: String::new(),
        log: "before".into(),
        created_at: at(0),
    }
}

/// Every status of a task.
fn all() -> Vec<(Task, TaskStatus)> {
    vec![
        (task(TaskState::Queued, None), TaskStatus::Fresh),
        (task(TaskState::Dispatched, Some(NOW + 1)), TaskStatus::Live),
        // A lease expires at `lease_until` exactly.
        (task(TaskState::Dispatched, Some(NOW)), TaskStatus::Stale),
        (task(TaskState::Dispatched, Some(NOW - 1)), TaskStatus::Stale),
        (task(TaskState::Dispatched, None), TaskStatus::Stale),
        (task(TaskState::Done, None), TaskStatus::Over),
        (task(TaskState::Failed, None), TaskStatus::Over),
        (task(TaskState::Stopped, None), TaskStatus::Over),
    ]
}

#[test]
fn every_state_stands_somewhere() {
    for (task, status) in all() {
        assert_eq!(task.status(now()), status, "{task:?}");
    }
}

#[test]
fn an_agent_takes_what_is_not_over() {
    for (task, status) in all() {
        let taken = task.dispatch(now());
        match status {
            TaskStatus::Over => assert_eq!(taken, None),
            TaskStatus::Fresh | TaskStatus::Stale | TaskStatus::Live => {
                // A repeated request for a held task does not count as a dispatch.
                let given = task.dispatched + u32::from(status != TaskStatus::Live);
                let claimed = taken.expect("it is there to be taken");
                assert_eq!(claimed.status(now()), TaskStatus::Live);
                assert_eq!(claimed.lease_until, Some(now() + LEASE));
                assert_eq!((claimed.dispatched, &claimed.log), (given, &task.log));
            }
        }
    }
}

#[test]
fn an_agent_that_speaks_holds_on() {
    for (task, status) in all() {
        let (after, then) = task.renew_lease(" and more", now());
        match status {
            TaskStatus::Over => assert_eq!((after, then), (task, TaskInstruction::Stop)),
            TaskStatus::Fresh | TaskStatus::Stale | TaskStatus::Live => {
                assert_eq!((after.state, then), (TaskState::Dispatched, TaskInstruction::Continue));
                assert_eq!(after.lease_until, Some(now() + LEASE));
                assert_eq!(after.log, "before and more");
            }
        }
    }
}

#[test]
fn a_report_counts_once() {
    use TaskState::{Dispatched, Done, Failed, Queued, Stopped};
    // Columns: the state after a success report, and after a failure report; none if the report is
    // no longer expected.
    let table = [
        (Queued, Some(Done), Some(Failed)),
        (Dispatched, Some(Done), Some(Failed)),
        (Done, Some(Done), None),
        (Failed, None, Some(Failed)),
        (Stopped, None, None),
    ];
    for (state, good, bad) in table {
        for (ok, expected) in [(true, good), (false, bad)] {
            let before = task(state, None);
            let after = before.complete(ok, "that is it", " more");
            assert_eq!(after.as_ref().map(|one| one.state), expected, "{state:?}, {ok}");
            let Some(after) = after else { continue };
            match state {
                Queued | Dispatched => {
                    assert_eq!((after.message.as_str(), after.lease_until), ("that is it", None));
                    assert_eq!(after.log, "before more");
                }
                Done | Failed | Stopped => assert_eq!(after, before, "said twice is said once"),
            }
        }
    }
}

#[test]
fn what_is_stopped_stays_as_it_ended() {
    for (task, status) in all() {
        let after = task.stop();
        match status {
            TaskStatus::Over => assert_eq!(after, task),
            TaskStatus::Fresh | TaskStatus::Live | TaskStatus::Stale => {
                // Its agent has not learned of it yet.
                assert_eq!(
                    (after.state, after.lease_until),
                    (TaskState::Stopped, task.lease_until)
                );
            }
        }
        assert_eq!(after.stop(), after);
    }
}

/// Section 8 of maas-node-states.md: fresh and live succeed without duplication; stale is queued
/// again.
#[test]
fn resuming_is_idempotent() {
    for (task, status) in all() {
        let (after, resumed) = task.resumed(now());
        let expected = match status {
            TaskStatus::Fresh => ResumeResult::Fresh,
            TaskStatus::Live => ResumeResult::Live,
            TaskStatus::Stale => ResumeResult::Requeued,
            TaskStatus::Over => ResumeResult::None,
        };
        assert_eq!(resumed, expected, "{task:?}");
        match resumed {
            ResumeResult::Requeued => {
                assert_eq!((after.state, after.lease_until), (TaskState::Queued, None));
                assert_eq!((after.key.clone(), &after.log), (task.key, &task.log));
                assert_eq!(
                    after.resumed(now()),
                    (after.clone(), ResumeResult::Fresh),
                    "asked twice"
                );
            }
            ResumeResult::Fresh | ResumeResult::Live | ResumeResult::None => {
                assert_eq!(after, task)
            }
        }
    }
}

#[test]
fn of_a_log_that_is_too_long_the_beginning_and_the_end_are_kept() {
    let now = now();
    let mut task = Task { log: String::new(), ..task(TaskState::Dispatched, None) };
    let line = "ä line that says a little\n";
    let part = line.repeat(2_000);
    for _ in 0..20 {
        task = task.renew_lease(&part, now).0;
    }
    assert!(task.log.starts_with(line) && task.log.len() < MAX_LOG, "{}", task.log.len());
    let cuts = |log: &str| log.matches("the rest is left out").count();
    assert_eq!(cuts(&task.log), 1);
    let reported = task.log.clone();
    task = task.renew_lease(&part, now).0;
    assert_eq!(task.log, reported, "nothing is added that somebody would be woken for");
    // The last message has reserved space; if it is too long, its end is kept.
    let last = format!("{}the end\n", "é".repeat(30_000));
    let after = task.complete(true, "done", &last).unwrap();
    assert_eq!(after.log, format!("{reported}{last}"));
    let last = format!("{}the end\n", "é".repeat(MAX_LOG));
    let after = task.complete(true, "done", &last).unwrap();
    assert!(after.log.len() <= MAX_LOG && after.log.ends_with("ééthe end\n"));
    assert!(after.log.starts_with(&reported), "what was told stays where it was");
}
