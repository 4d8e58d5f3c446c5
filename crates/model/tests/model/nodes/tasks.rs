//! Tasks of agents: the status of each, and the result of every message.

use crate::support::at;
use model::effect::Key;
use model::id::{NodeId, RunId};
use model::node::TaskKind;
use model::node::task::{LEASE, MAX_LOG, Resumed, Standing, Task, TaskState, Then};
use model::time::Timestamp;
use std::collections::BTreeMap;

const NOW: i64 = 1_000;

fn now() -> Timestamp {
    at(NOW)
}

fn task(state: TaskState, lease_until: Option<i64>) -> Task {
    Task {
        key: Key::new(&RunId::trusted("op-1"), "drain_node", 1),
        node: NodeId::trusted("node-1"),
        run: RunId::trusted("op-1"),
        kind: TaskKind::Drain,
        params: BTreeMap::new(),
        state,
        lease_until: lease_until.map(at),
        dispatched: 1,
        deadline: at(9_000),
        said: String::new(),
        log: "before".into(),
        created_at: at(0),
    }
}

/// Every status of a task.
fn all() -> Vec<(Task, Standing)> {
    vec![
        (task(TaskState::Queued, None), Standing::Fresh),
        (task(TaskState::Dispatched, Some(NOW + 1)), Standing::Live),
        // A lease expires at `lease_until` exactly.
        (task(TaskState::Dispatched, Some(NOW)), Standing::Stale),
        (task(TaskState::Dispatched, Some(NOW - 1)), Standing::Stale),
        (task(TaskState::Dispatched, None), Standing::Stale),
        (task(TaskState::Done, None), Standing::Over),
        (task(TaskState::Failed, None), Standing::Over),
        (task(TaskState::Stopped, None), Standing::Over),
    ]
}

#[test]
fn every_state_stands_somewhere() {
    for (task, standing) in all() {
        assert_eq!(task.standing(now()), standing, "{task:?}");
    }
}

#[test]
fn an_agent_takes_what_is_not_over() {
    for (task, standing) in all() {
        let taken = task.taken(now());
        match standing {
            Standing::Over => assert_eq!(taken, None),
            Standing::Fresh | Standing::Stale | Standing::Live => {
                // A repeated request for a held task does not count as a dispatch.
                let given = task.dispatched + u32::from(standing != Standing::Live);
                let held = taken.expect("it is there to be taken");
                assert_eq!(held.standing(now()), Standing::Live);
                assert_eq!(held.lease_until, Some(now() + LEASE));
                assert_eq!((held.dispatched, &held.log), (given, &task.log));
            }
        }
    }
}

#[test]
fn an_agent_that_speaks_holds_on() {
    for (task, standing) in all() {
        let (after, then) = task.renewed(" and more", now());
        match standing {
            Standing::Over => assert_eq!((after, then), (task, Then::Stop)),
            Standing::Fresh | Standing::Stale | Standing::Live => {
                assert_eq!((after.state, then), (TaskState::Dispatched, Then::GoOn));
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
            let after = before.reported(ok, "that is it", " more");
            assert_eq!(after.as_ref().map(|one| one.state), expected, "{state:?}, {ok}");
            let Some(after) = after else { continue };
            match state {
                Queued | Dispatched => {
                    assert_eq!((after.said.as_str(), after.lease_until), ("that is it", None));
                    assert_eq!(after.log, "before more");
                }
                Done | Failed | Stopped => assert_eq!(after, before, "said twice is said once"),
            }
        }
    }
}

#[test]
fn what_is_stopped_stays_as_it_ended() {
    for (task, standing) in all() {
        let after = task.stopped();
        match standing {
            Standing::Over => assert_eq!(after, task),
            Standing::Fresh | Standing::Live | Standing::Stale => {
                // Its agent has not learned of it yet.
                assert_eq!(
                    (after.state, after.lease_until),
                    (TaskState::Stopped, task.lease_until)
                );
            }
        }
        assert_eq!(after.stopped(), after);
    }
}

/// Section 8: fresh and live succeed without duplication; stale is queued again.
#[test]
fn resuming_is_idempotent() {
    for (task, standing) in all() {
        let (after, resumed) = task.resumed(now());
        let expected = match standing {
            Standing::Fresh => Resumed::Fresh,
            Standing::Live => Resumed::Live,
            Standing::Stale => Resumed::Requeued,
            Standing::Over => Resumed::None,
        };
        assert_eq!(resumed, expected, "{task:?}");
        match resumed {
            Resumed::Requeued => {
                assert_eq!((after.state, after.lease_until), (TaskState::Queued, None));
                assert_eq!((after.key.clone(), &after.log), (task.key, &task.log));
                assert_eq!(after.resumed(now()), (after.clone(), Resumed::Fresh), "asked twice");
            }
            Resumed::Fresh | Resumed::Live | Resumed::None => assert_eq!(after, task),
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
        task = task.renewed(&part, now).0;
    }
    assert!(task.log.starts_with(line) && task.log.len() < MAX_LOG, "{}", task.log.len());
    let cuts = |log: &str| log.matches("the rest is left out").count();
    assert_eq!(cuts(&task.log), 1);
    let told = task.log.clone();
    task = task.renewed(&part, now).0;
    assert_eq!(task.log, told, "nothing is added that somebody would be woken for");
    // The last message has reserved space; if it is too long, its end is kept.
    let last = format!("{}the end\n", "é".repeat(30_000));
    let after = task.reported(true, "done", &last).unwrap();
    assert_eq!(after.log, format!("{told}{last}"));
    let last = format!("{}the end\n", "é".repeat(MAX_LOG));
    let after = task.reported(true, "done", &last).unwrap();
    assert!(after.log.len() <= MAX_LOG && after.log.ends_with("ééthe end\n"));
    assert!(after.log.starts_with(&told), "what was told stays where it was");
}
