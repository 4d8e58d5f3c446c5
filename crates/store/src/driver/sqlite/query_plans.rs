//! Checks the query plans: no statement of normal operation scans a table, so a database with a
//! million runs is as fast as a new one. SQLite plans by the schema alone, so an empty database
//! suffices.

#![cfg(test)]

use super::*;
use crate::event::{Cause, Cursor, NewEvent, WatchedKind};
use crate::log::NewLog;
use crate::node::TaskRow;
use crate::replica::Replica;
use crate::retention::{EndedRunPosition, EventPosition};
use crate::subject::Enqueue;
use crate::subject::{ClaimOutcome, RunSettlement};
use model::effect::EffectKey;
use model::filter::{Filter, FilterSubject};
use model::id::{MachineId, NodeId, PlanId, RackId, RolloutId, RunId, SiteId};
use model::lifecycle::{SubjectId, SubjectKind};
use model::machine::{Labels, Machine, MachineSpec};
use model::node::enroll::EnrollmentToken;
use model::node::task::{Task, TaskState};
use model::node::{Node, NodeState, TaskKind};
use model::order::Selection;
use model::plan::{OnFailure, Params, RunType};
use model::rollout::{Rollout, RolloutStage, RolloutTarget, TargetState};
use model::run::{ENGINE_VERSION, Run, RunSpec, Workflow};
use model::target::TargetId;
use model::time::Timestamp;
use rusqlite::trace::{TraceEvent, TraceEventCodes};
use std::collections::BTreeSet;

/// The permitted scans: tables with a few rows; the index of due objects, which has no ended runs;
/// the lists of all runs and of all machines, which stop after a page; the index that is counted to
/// keep the newest events; and the list of ids in a parameter.
const PERMITTED_SCANS: [&str; 13] = [
    "SCAN replicas",
    "SCAN replicas USING INDEX sqlite_autoindex_replicas_1",
    "SCAN r LEFT-JOIN",
    "SCAN sqlite_sequence",
    "SCAN CONSTANT ROW",
    "SCAN subjects USING COVERING INDEX subjects_due",
    "SCAN s USING INDEX sqlite_autoindex_subjects_1",
    "SCAN s USING INDEX subjects_ended",
    "SCAN machines USING INDEX sqlite_autoindex_machines_1",
    "SCAN machines USING INDEX machines_created",
    "SCAN machines USING INDEX machines_updated",
    "SCAN e USING COVERING INDEX events_aged",
    "SCAN json_each VIRTUAL TABLE INDEX 1:",
];

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(seconds * 1_000)
}

fn run_on(machine: &Machine) -> Run {
    Run::new(RunSpec {
        id: RunId::trusted("op-1"),
        target: TargetId::from(&machine.id),
        parent_run: None,
        reports_to: None,
        held_targets: Vec::new(),
        request_id: "once".into(),
        run_type: RunType::Reboot,
        plan_id: PlanId::trusted("p"),
        steps: Vec::new(),
        params: Params::new(),
        initiator: "test".into(),
        rerun_of: None,
        restart: None,
        on_failure: OnFailure::KeepPhase,
        engine_version: ENGINE_VERSION,
        created_at: at(0),
    })
}

/// The statements of requests and of workers.
async fn worker_statements(tx: &mut Tx) -> Result<()> {
    let mut machine =
        Machine::new(MachineId::trusted("m"), MachineSpec::default(), Labels::new(), at(0));
    let (text, decided_by) = (String::new(), String::new());
    let event = NewEvent {
        cause: Cause::Engine,
        actor: text.clone(),
        message: text,
        decided_by,
        at: at(1),
    };
    tx.insert_machine(&machine, &event)?;
    tx.machine_locked(&machine.id).await?;
    let mut run = run_on(&machine);
    let id = run.spec.id.clone();
    tx.run_of_request(&TargetId::from(&machine.id), "once").await?;
    tx.insert_run(&run, Enqueue::Now, &event)?;
    tx.runs_with_claims(&[id.as_str()]).await?;
    tx.machines_by_ids(&[machine.id.as_str()]).await?;
    tx.update_machine(&mut machine, &event)?;
    let replica = Replica { name: "a".into(), incarnation: "a#1".into() };
    tx.register_replica(&replica, "1.0", at(1), at(9)).await?;
    tx.renew_lease(&replica, at(2), at(9)).await?;
    tx.replica_heartbeats().await?;
    tx.replicas(&Filter::default(), "", 9).await?;
    tx.next_due().await?;
    tx.claim_due(&replica.incarnation, at(1), 9).await?;
    tx.run_with_claim(&id).await?;
    tx.claimed_by(&replica.incarnation).await?;
    tx.unhandled_wakes(&replica.incarnation).await?;
    tx.claiming_replica(&id).await?;
    let lines = [NewLog {
        start: 0,
        ts: at(1),
        step: "s".into(),
        attempt: 1,
        stream: "stdout",
        data: b"x".to_vec(),
    }];
    tx.append_log_claimed(&id, 1, &lines).await?;
    tx.logged_bytes(&id, "s", 1).await?;
    run.progress.workflow = Workflow::Completed;
    let settle = RunSettlement {
        run,
        epoch: 1,
        wakes_handled: 1,
        claim: ClaimOutcome::Release(None),
        now: at(2),
    };
    tx.settle(&settle)?;
    let run = Run { version: 2, ..settle.run };
    tx.update_unclaimed(&run, at(3))?;
    tx.append_run_event(&run, &event)?;
    tx.wake(&id.object(), at(3))?;
    tx.release(&id.object(), 1, 1, None, at(3))?;
    tx.release_unhandled(&id.object(), 1, at(3))?;
    tx.last_event(machine.id.as_str()).await?;
    tx.delete_machine(&machine, &event)?;
    tx.deregister_replica(&replica, at(3)).await.map(drop)
}

fn task_of(node: &NodeId) -> Task {
    let run = RunId::trusted("op-1");
    Task {
        key: EffectKey::new(&run, "drain_node", 1),
        node: node.clone(),
        run,
        kind: TaskKind::Drain,
        params: std::collections::BTreeMap::new(),
        state: TaskState::Queued,
        lease_until: None,
        dispatched: 0,
        deadline: at(9),
        message: String::new(),
        log: String::new(),
        created_at: at(1),
    }
}

/// The statements about nodes and their agents.
async fn node_statements(tx: &mut Tx) -> Result<()> {
    let (id, machine) = (NodeId::trusted("node-1"), MachineId::trusted("m"));
    let site = SiteId::trusted("site-1");
    let event = NewEvent {
        cause: Cause::Engine,
        actor: String::new(),
        message: String::new(),
        decided_by: String::new(),
        at: at(1),
    };
    tx.attach_node(&id, &machine, Some(&site))?;
    let mut node = Node::new(&id, &machine, NodeState::Enrolling, at(1));
    tx.insert_record(&mut node, &event).await?;
    tx.record_locked::<Node>(id.as_str()).await?;
    tx.update_record(&mut node, &event)?;
    tx.live_node_of_machine(&machine).await?;
    tx.node_in_service(&machine).await?;
    tx.nodes_in_service(&RackId::trusted("rack-1")).await?;
    tx.live_node_of_site(&site).await?;
    tx.record_heartbeat(&id, at(2), "").await?;
    tx.last_heartbeat(&id).await?;
    tx.mark_offline(&id, at(2))?;
    tx.nodes_at(&site, "", 1).await?;
    tx.record_site_answer(&site, at(2))?;
    tx.last_site_answer(&site).await?;
    tx.delete_site_answer(&site)?;
    tx.agent_heartbeats(Some(&site)).await?;
    tx.agent_heartbeats(None).await?;
    let ticket =
        EnrollmentToken { node: id.clone(), issued_at: at(1), expires_at: at(9), used_by: None };
    tx.issue_enrollment_token(&ticket, "token")?;
    tx.enrollment_token("token").await?;
    tx.last_enrollment_token(&id).await?;
    tx.enroll(&ticket, "session")?;
    tx.node_of_session("session").await?;
    tx.has_agent(&id).await?;
    let task = task_of(&id);
    tx.insert_task(&task).await?;
    tx.task(&task.key).await?;
    tx.open_task(&id).await?;
    tx.update_task(&TaskRow { task, version: 1 })?;
    tx.revoke_agent(&id)?;
    tx.detach_node(&id)
}

/// The statements of queries and watches.
/// The statements of the turns of rollouts, and of the requests to them.
async fn rollout_statements(tx: &mut Tx) -> Result<()> {
    let (id, machine) = (RolloutId::trusted("ro-1"), MachineId::trusted("m"));
    let target = RolloutTarget::new(machine.clone(), 0, at(0));
    tx.insert_rollout_targets(&id, std::slice::from_ref(&target))?;
    tx.update_rollout_target(&id, &target)?;
    tx.rollout_target(&id, &machine).await?;
    tx.rollout_targets(&id, None, None, 5).await?;
    tx.rollout_targets(&id, Some(TargetState::Failed), Some(3), 5).await?;
    tx.due_rollout_targets(&id, at(1), 5).await?;
    let mut rollout: Rollout = serde_json::from_str(ROLLOUT)?;
    rollout.stage = RolloutStage::Running;
    tx.next_rollout_targets(&rollout, at(1), 5).await?;
    tx.rollout_work(&rollout, at(1)).await?;
    tx.other_rollout_on(&machine, &id).await?;
    tx.open_rollout_target(&[machine]).await?;
    tx.retry_failed_targets(&id, at(1)).await?;
    tx.skip_unbegun_targets(&id, "", at(1)).await?;
    tx.look_at_active_targets(&id, at(1)).await?;
    tx.insert_rollout_request("once", &id)?;
    tx.rollout_of_request("once").await?;
    tx.delete_rollout_rows(&SubjectId::new(SubjectKind::Rollout, id.as_str()))
}

/// A rollout as it is stored.
const ROLLOUT: &str = r#"{"head":{"id":"ro-1","since":0,"version":1,"created_at":0,"updated_at":0},
    "spec":{"operation":{"run_type":"REBOOT"},"filter":"","pace":{}},
    "requested":{"operation":{"run_type":"REBOOT"},"filter":"","pace":{}},
    "stage":"running","editor":{"user":"ada","is_user":true},"request_id":"once",
    "permissions":[],"total":1,"wave":1,"wave_end":1,"counts":{}}"#;

async fn query_statements(tx: &mut Tx) -> Result<()> {
    let (machine, id) = (MachineId::trusted("m"), RunId::trusted("op-1"));
    tx.machine(&machine).await?;
    tx.run(&id).await?;
    tx.latest_runs(&TargetId::from(&machine), 5).await?;
    tx.active_runs(5).await?;
    tx.phase_counts().await?;
    tx.history("m", 0, 5).await?;
    tx.read_log(&id, 0, 5).await?;
    tx.log_end(&id).await?;
    let here = tx.horizon().await?;
    tx.latest_cursor().await?;
    tx.events_after(Cursor::default(), 5).await?;
    tx.has_held_back_events().await?;
    tx.object_before("op-1", 2).await?;
    for filter in [
        "",
        "machine_id=m",
        "run_id=op-1",
        "phase=FAILED",
        "phase in (PENDING, RUNNING)",
        "workflow_state=running",
        "machine_id=m AND phase=SUCCEEDED",
    ] {
        let filter = Filter::parse(filter, FilterSubject::Run)?;
        tx.runs(&filter, None, 5).await?;
        tx.runs_as_of(&filter, Some("op-2"), 5, here).await?;
    }
    let rack = Filter::parse("labels.rack=r-1", FilterSubject::Machine)?;
    tx.machines(&rack, Some("m"), 5).await?;
    tx.machines_as_of(&rack, Some("m"), 5, here).await?;
    ordered_statements(tx).await
}

/// The statements of lists in an order that is not the usual one.
async fn ordered_statements(tx: &mut Tx) -> Result<()> {
    for order in ["machine_id desc", "created_at", "updated_at desc"] {
        let selected = Selection::parse("", order, FilterSubject::Machine)?;
        tx.selected_machines(&selected, None, 5).await?;
        tx.selected_machines(&selected, Some("7 m"), 5).await?;
    }
    for order in ["created_at", "finished_at", "finished_at desc"] {
        let selected = Selection::parse("phase=FAILED", order, FilterSubject::Run)?;
        tx.selected_runs(&selected, None, 5).await?;
        tx.selected_runs(&selected, Some("7 op-1"), 5).await?;
    }
    for order in ["node_id desc", "created_at desc", "updated_at"] {
        let selected = Selection::parse("", order, FilterSubject::Node)?;
        tx.selected_records::<Node>(&selected, None, 5).await?;
        tx.selected_records::<Node>(&selected, Some("7 node:node-1"), 5).await?;
    }
    Ok(())
}

async fn retention_statements(tx: &mut Tx) -> Result<()> {
    let runs = [RunId::trusted("op-1"), RunId::trusted("op-2")];
    let position = EndedRunPosition::default();
    tx.ended_runs(at(9), &position, 5).await?;
    tx.nth_newest_run_end(5).await?;
    tx.log_sizes(&position, 5).await?;
    tx.remove_logs(&runs).await?;
    let (first, last) = (EventPosition::default(), EventPosition { at: at(9), seq: 9 });
    tx.aged_events(at(9), first, 5).await?;
    tx.nth_newest_event_time(5).await?;
    tx.remove_events(first, last).await?;
    tx.newest_removed_event(&WatchedKind::ALL).await?;
    // The statements that run only if there is something to delete.
    tx.delete_run_logs(&runs, 5).await?;
    tx.delete_run_events(&runs, 5).await?;
    tx.delete_run_rows(&runs).await?;
    tx.remove_runs(&runs).await.map(drop)
}

#[test]
fn no_statement_scans_a_table() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("farrier.db");
    let mut conn = connect(&path).unwrap();
    migrate(&mut conn, SchemaPolicy::Migrate).unwrap();
    let (sender, message) = channel();
    let note = move |event: TraceEvent<'_>| {
        // Statements of triggers are traced as comments.
        if let TraceEvent::Stmt(_, sql) = event
            && !sql.starts_with("--")
        {
            // The receiver lives longer than the connection.
            let _ = sender.send(sql.to_string());
        }
    };
    conn.trace_v2(TraceEventCodes::SQLITE_TRACE_STMT, Some(note)).unwrap();
    let mut tx = Tx::new(Conn::Sqlite(conn));
    poll_once(worker_statements(&mut tx)).unwrap();
    poll_once(node_statements(&mut tx)).unwrap();
    poll_once(rollout_statements(&mut tx)).unwrap();
    poll_once(query_statements(&mut tx)).unwrap();
    poll_once(retention_statements(&mut tx)).unwrap();
    drop(tx);
    let statements: BTreeSet<String> = message.iter().collect();
    assert!(statements.len() > 50, "only {} statements were seen", statements.len());
    let conn = connect(&path).unwrap();
    let mut wrong = Vec::new();
    for sql in &statements {
        let mut explain = conn.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        // Unbound parameters are null, which does not change the plan.
        let mut rows = explain.raw_query();
        while let Some(row) = rows.next().unwrap() {
            let line: String = row.get(3).unwrap();
            if line.starts_with("SCAN") && !PERMITTED_SCANS.contains(&line.as_str()) {
                wrong.push(format!("{line}: {sql}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
