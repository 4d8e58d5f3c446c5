//! Nodes: one live node per machine, transitions that only their owners make, single-use tokens,
//! heartbeats, and the tasks of agents.

use crate::harness::{Db, at, ended, event, run, within_timeout};
use model::effect::EffectKey;
use model::filter::{Filter, FilterSubject};
use model::id::{MachineId, NodeId, RunId, SiteId};
use model::lifecycle::{Lifecycle, SubjectKind};
use model::machine::Labels;
use model::node::enroll::EnrollmentToken;
use model::node::heartbeat::AgentHeartbeat;
use model::node::task::{Task, TaskState};
use model::node::{Node, NodeState, Quarantine, TRANSITIONS, TaskKind, TransitionOwner};
use model::run::Workflow;
use model::site::{Site, SiteReport, SiteSpec};
use std::collections::BTreeMap;
use std::time::Duration;
use store::{
    ClaimedKind, EndedRunPosition, NodeHeartbeat, RecordClaim, Result, StoreError, TaskRow,
};

on_both!(
    a_machine_has_one_live_node,
    racing_nodes_do_not_share_a_machine,
    a_transition_belongs_to_its_owner,
    every_transition_is_written_only_by_its_owners,
    deleted_has_no_transitions,
    a_refused_transition_writes_nothing,
    a_node_changes_without_a_transition,
    a_token_works_for_its_node_until_another_is_issued,
    a_session_belongs_to_one_node,
    a_detached_node_has_no_agent,
    a_machine_gets_another_node_after_its_first,
    heartbeats_are_listed_by_site,
    a_lost_node_stays_lost_until_its_next_heartbeat,
    the_nodes_of_a_site_come_by_page,
    one_bad_node_leaves_the_others_readable,
    a_site_answer_writes_no_event,
    a_task_is_inserted_once,
    a_task_is_updated_at_its_version,
    tasks_are_given_out_oldest_first,
    tasks_are_deleted_with_their_runs,
    a_node_and_a_site_are_claimed_and_become_idle,
    runs_of_a_node_are_removable_after_its_turn,
    transitions_of_a_site_have_no_owner,
    nodes_are_found_by_state_and_label,
);

fn id(name: &str) -> NodeId {
    NodeId::trusted(name)
}

fn on(machine: &str) -> MachineId {
    MachineId::trusted(machine)
}

fn at_site(name: &str) -> SiteId {
    SiteId::trusted(name)
}

/// Adds a node in this state on a machine.
async fn add(db: &Db, name: &str, machine: &str, state: NodeState) -> Node {
    place(db, name, machine, None, state).await.unwrap()
}

async fn place(
    db: &Db,
    name: &str,
    machine: &str,
    site: Option<&'static str>,
    state: NodeState,
) -> Result<Node> {
    let (name, machine, site) = (id(name), on(machine), site.map(at_site));
    let insert = tx!([name, machine, site], |tx| {
        let mut node = Node::new(&name, &machine, state, at(0));
        node.site = site.clone();
        tx.attach_node(&name, &machine, site.as_ref())?;
        tx.insert_record(&mut node, &event()).await?;
        Ok(node)
    });
    db.write(insert).await
}

async fn get(db: &Db, name: &str) -> Node {
    let name = name.to_string();
    let found = db.read(tx!([name], |tx| tx.record::<Node>(&name).await)).await.unwrap();
    found.expect("the node exists")
}

async fn write(db: &Db, node: &Node) -> Result<Node> {
    let write = tx!([node], |tx| {
        let mut node = node;
        tx.update_record(&mut node, &event())?;
        Ok(node)
    });
    db.write(write).await
}

async fn events_of(db: &Db, name: &str) -> usize {
    let name = name.to_string();
    db.read(tx!([name], |tx| tx.history(&name, 0, 1_000).await)).await.unwrap().len()
}

async fn node_on(db: &Db, machine: &str) -> Option<NodeId> {
    let machine = on(machine);
    db.read(tx!([machine], |tx| tx.live_node_of_machine(&machine).await)).await.unwrap()
}

async fn detach(db: &Db, name: &str) {
    let name = id(name);
    db.write(tx!([name], |tx| tx.detach_node(&name))).await.unwrap();
}

async fn a_machine_has_one_live_node(db: Db) {
    let first = add(&db, "node-1", "m-1", NodeState::Enrolling).await;
    assert_eq!(node_on(&db, "m-1").await, Some(first.id()));
    assert_eq!(node_on(&db, "m-2").await, None);
    let second = place(&db, "node-2", "m-1", None, NodeState::Enrolling).await;
    assert_eq!(second.map(drop), Err(StoreError::Conflict), "the machine has another live node");
    let left = db.read(tx!([], |tx| tx.record::<Node>("node-2").await)).await;
    assert_eq!(left, Ok(None), "the refused node was not written");
    add(&db, "node-2", "m-2", NodeState::Enrolling).await;
    assert_eq!(node_on(&db, "m-2").await, Some(id("node-2")));
}

async fn racing_nodes_do_not_share_a_machine(db: Db) {
    let mut racing = Vec::new();
    for n in 0..10 {
        let db = db.clone();
        racing.push(tokio::spawn(async move {
            place(&db, &format!("node-{n}"), "m-1", None, NodeState::Enrolling).await
        }));
    }
    let mut placed = Vec::new();
    for one in racing {
        match one.await.unwrap() {
            Ok(node) => placed.push(node.id()),
            Err(error) => assert_eq!(error, StoreError::Conflict),
        }
    }
    assert_eq!(placed.len(), 1);
    assert_eq!(node_on(&db, "m-1").await, placed.pop());
}

/// Builds a record with a transition that the model did not check.
fn forced(node: &Node, to: NodeState, owner: TransitionOwner) -> Node {
    Node { state: to, moved_by: owner, ..node.clone() }
}

async fn a_transition_belongs_to_its_owner(db: Db) {
    let node = add(&db, "node-1", "m-1", NodeState::Active).await;
    // The owner of heartbeats may not drain or quarantine a node.
    for to in [NodeState::Draining, NodeState::Quarantined] {
        let moved = write(&db, &forced(&node, to, TransitionOwner::Heartbeat)).await;
        assert_eq!(moved.map(drop), Err(StoreError::Conflict), "{to}");
    }
    assert_eq!(get(&db, "node-1").await, node);
    assert_eq!(events_of(&db, "node-1").await, 1, "a refused transition writes no event");
    let moved = node.become_(NodeState::Offline, TransitionOwner::Heartbeat, "silent").unwrap();
    let moved = write(&db, &moved).await.unwrap();
    assert_eq!(get(&db, "node-1").await, moved);
    assert_eq!((moved.head.version, events_of(&db, "node-1").await), (2, 2));
}

/// For every transition and owner, the store accepts exactly what the model's table permits.
async fn every_transition_is_written_only_by_its_owners(db: Db) {
    let try_all = tx!([], |tx| {
        for from in NodeState::ALL {
            let mut node = Node::new(&id(from.as_str()), &on(from.as_str()), from, at(0));
            tx.insert_record(&mut node, &event()).await?;
        }
        Ok(())
    });
    db.write(try_all).await.unwrap();
    let mut written = 0;
    for from in NodeState::ALL {
        for to in NodeState::ALL.into_iter().filter(|to| *to != from) {
            for owner in TransitionOwner::ALL {
                let node = get(&db, from.as_str()).await;
                let way = TRANSITIONS.iter().find(|way| (way.0, way.1) == (from, to));
                let may = way.is_some_and(|way| way.2.contains(&owner));
                // Accepted transitions are rolled back; every attempt starts in the same state.
                let moved = forced(&node, to, owner);
                let tried = tx!([moved], |tx| {
                    let mut node = moved;
                    tx.update_record(&mut node, &event())?;
                    Ok(())
                });
                let done = db.dry_run(tried).await;
                let expected = if may { Ok(()) } else { Err(StoreError::Conflict) };
                assert_eq!(done, expected, "{from} to {to} by {owner}");
                written += usize::from(may);
            }
        }
    }
    assert_eq!(written, 27, "one for each transition and owner");
}

async fn deleted_has_no_transitions(db: Db) {
    let node = add(&db, "node-1", "m-1", NodeState::Deleted).await;
    for to in NodeState::ALL.into_iter().filter(|to| *to != NodeState::Deleted) {
        for owner in TransitionOwner::ALL {
            let moved = write(&db, &forced(&node, to, owner)).await;
            assert_eq!(moved.map(drop), Err(StoreError::Conflict), "{to} by {owner}");
        }
    }
    assert_eq!(get(&db, "node-1").await, node);
}

async fn a_refused_transition_writes_nothing(db: Db) {
    let node = add(&db, "node-1", "m-1", NodeState::Retired).await;
    let moved = forced(&node, NodeState::Active, TransitionOwner::Operator);
    let work = tx!([moved], |tx| {
        let mut node = moved;
        tx.record_heartbeat(&node.id(), at(7), "written before it").await?;
        tx.update_record(&mut node, &event())?;
        tx.detach_node(&node.id())?;
        Ok(())
    });
    assert_eq!(db.write(work).await, Err(StoreError::Conflict));
    assert_eq!(get(&db, "node-1").await, node);
    assert_eq!(last_heartbeat(&db, "node-1").await, NodeHeartbeat::default());
    assert_eq!(node_on(&db, "m-1").await, Some(node.id()));
}

/// A change of other fields is no transition and has no owner.
async fn a_node_changes_without_a_transition(db: Db) {
    let mut node = add(&db, "node-1", "m-1", NodeState::Active).await;
    node = node.quarantined(Quarantine::Drift, TransitionOwner::Reconciler, "drifts").unwrap();
    node = write(&db, &node).await.unwrap();
    node.system_id = "abc".into();
    node = write(&db, &node).await.unwrap();
    assert_eq!(get(&db, "node-1").await, node);
    assert_eq!((node.state, node.head.version), (NodeState::Quarantined, 3));
}

fn new_token(name: &str, issued: i64) -> EnrollmentToken {
    EnrollmentToken {
        node: id(name),
        issued_at: at(issued),
        expires_at: at(issued + 60),
        used_by: None,
    }
}

async fn issue(db: &Db, ticket: &EnrollmentToken, token: &'static str) -> Result<()> {
    db.write(tx!([ticket], |tx| tx.issue_enrollment_token(&ticket, token))).await
}

async fn enrollment_token(db: &Db, token: &'static str) -> Option<EnrollmentToken> {
    db.write(tx!([], |tx| tx.enrollment_token(token).await)).await.unwrap()
}

async fn a_token_works_for_its_node_until_another_is_issued(db: Db) {
    add(&db, "node-1", "m-1", NodeState::BootstrapIssued).await;
    add(&db, "node-2", "m-2", NodeState::BootstrapIssued).await;
    assert_eq!(
        issue(&db, &new_token("node-9", 1), "t9").await,
        Err(StoreError::Conflict),
        "no node"
    );
    issue(&db, &new_token("node-1", 1), "t1").await.unwrap();
    assert_eq!(enrollment_token(&db, "t1").await, Some(new_token("node-1", 1)));
    assert_eq!(enrollment_token(&db, "t2").await, None);
    let clash = issue(&db, &new_token("node-2", 2), "t1").await;
    assert_eq!(clash, Err(StoreError::Conflict), "a token belongs to one node");
    issue(&db, &new_token("node-1", 5), "t2").await.unwrap();
    assert_eq!(enrollment_token(&db, "t1").await, None, "a new token replaces the old one");
    assert_eq!(enrollment_token(&db, "t2").await, Some(new_token("node-1", 5)));
    let last = db.read(tx!([], |tx| tx.last_enrollment_token(&id("node-1")).await)).await;
    assert_eq!(last, Ok(Some(new_token("node-1", 5))));
    assert_eq!(
        db.read(tx!([], |tx| tx.last_enrollment_token(&id("node-2")).await)).await,
        Ok(None)
    );
}

async fn enroll(db: &Db, ticket: &EnrollmentToken, session: &'static str) -> Result<()> {
    let used = EnrollmentToken { used_by: Some(session.into()), ..ticket.clone() };
    db.write(tx!([used], |tx| tx.enroll(&used, session))).await
}

async fn node_of(db: &Db, session: &'static str) -> Option<NodeId> {
    db.read(tx!([], |tx| tx.node_of_session(session).await)).await.unwrap()
}

async fn has_agent(db: &Db, name: &'static str) -> bool {
    db.read(tx!([], |tx| tx.has_agent(&id(name)).await)).await.unwrap()
}

async fn a_session_belongs_to_one_node(db: Db) {
    add(&db, "node-1", "m-1", NodeState::Enrolling).await;
    add(&db, "node-2", "m-2", NodeState::Enrolling).await;
    issue(&db, &new_token("node-1", 1), "t1").await.unwrap();
    assert!(!has_agent(&db, "node-1").await);
    enroll(&db, &new_token("node-1", 1), "s1").await.unwrap();
    assert_eq!(node_of(&db, "s1").await, Some(id("node-1")));
    assert!(has_agent(&db, "node-1").await && !has_agent(&db, "node-2").await);
    assert_eq!(last_heartbeat(&db, "node-1").await.at, None, "enrolling is no heartbeat");
    let used = enrollment_token(&db, "t1").await.expect("a used token is kept");
    assert_eq!(used.used_by.as_deref(), Some("s1"));
    let clash = enroll(&db, &new_token("node-2", 1), "s1").await;
    assert_eq!(clash, Err(StoreError::Conflict), "a session belongs to one node");
    enroll(&db, &new_token("node-1", 2), "s2").await.unwrap();
    assert_eq!(node_of(&db, "s1").await, None, "a new session replaces the old one");
    assert_eq!(node_of(&db, "s2").await, Some(id("node-1")));
    db.write(tx!([], |tx| tx.revoke_agent(&id("node-1")))).await.unwrap();
    assert!(!has_agent(&db, "node-1").await);
    assert_eq!((node_of(&db, "s2").await, enrollment_token(&db, "t1").await), (None, None));
    assert_eq!(node_on(&db, "m-1").await, Some(id("node-1")), "the node is still live");
}

async fn record_heartbeat(
    db: &Db,
    name: &'static str,
    seconds: i64,
    problems: &'static str,
) -> bool {
    db.write(tx!([], |tx| tx.record_heartbeat(&id(name), at(seconds), problems).await))
        .await
        .unwrap()
}

async fn last_heartbeat(db: &Db, name: &'static str) -> NodeHeartbeat {
    db.read(tx!([], |tx| tx.last_heartbeat(&id(name)).await)).await.unwrap()
}

async fn a_detached_node_has_no_agent(db: Db) {
    add(&db, "node-1", "m-1", NodeState::Removing).await;
    issue(&db, &new_token("node-1", 1), "t1").await.unwrap();
    enroll(&db, &new_token("node-1", 1), "s1").await.unwrap();
    detach(&db, "node-1").await;
    assert_eq!((node_of(&db, "s1").await, enrollment_token(&db, "t1").await), (None, None));
    assert_eq!(node_on(&db, "m-1").await, None);
    assert!(!record_heartbeat(&db, "node-1", 20, "").await, "a detached node gets no heartbeats");
    assert_eq!(agent_heartbeats(&db, None).await, []);
    let late = issue(&db, &new_token("node-1", 30), "t2").await;
    assert_eq!(late, Err(StoreError::Conflict), "no token is issued for it");
    let late = enroll(&db, &new_token("node-1", 30), "s3").await;
    assert_eq!(late, Err(StoreError::Conflict), "no agent enrolls for it");
    let nobody = db.write(tx!([], |tx| tx.detach_node(&id("node-9")))).await;
    assert_eq!(nobody, Err(StoreError::Conflict));
}

async fn a_machine_gets_another_node_after_its_first(db: Db) {
    let first = add(&db, "node-1", "m-1", NodeState::Deleted).await;
    detach(&db, "node-1").await;
    let second = add(&db, "node-2", "m-1", NodeState::Enrolling).await;
    assert_eq!(node_on(&db, "m-1").await, Some(second.id()));
    assert_eq!(get(&db, "node-1").await, first, "the record of the first node is kept");
    detach(&db, "node-2").await;
    add(&db, "node-3", "m-1", NodeState::Enrolling).await;
    assert_eq!(node_on(&db, "m-1").await, Some(id("node-3")));
}

async fn agent_heartbeats(db: &Db, site: Option<&'static str>) -> Vec<AgentHeartbeat> {
    let site = site.map(at_site);
    let heartbeat =
        db.read(tx!([site], |tx| tx.agent_heartbeats(site.as_ref()).await)).await.unwrap();
    heartbeat.into_iter().map(|(_, one)| one.unwrap()).collect()
}

fn agent_heartbeat(
    name: &str,
    state: NodeState,
    seconds: Option<i64>,
    problems: &str,
) -> AgentHeartbeat {
    let (heard_at, changed_at) = (seconds.map(at), at(0));
    let (node, problems) = (id(name), problems.into());
    AgentHeartbeat { node, state, at: heard_at, problems, lost_at: None, changed_at }
}

async fn heartbeats_are_listed_by_site(db: Db) {
    use NodeState::{Active, Deleted, Enrolling, Offline};
    for (name, site, state) in [
        ("node-1", Some("site-a"), Active),
        ("node-2", Some("site-a"), Offline),
        ("node-3", Some("site-b"), Active),
        ("node-4", None, Enrolling),
        ("node-5", Some("site-a"), Deleted),
    ] {
        place(&db, name, &format!("m-{name}"), site, state).await.unwrap();
    }
    detach(&db, "node-5").await;
    assert!(record_heartbeat(&db, "node-1", 10, "").await);
    assert!(record_heartbeat(&db, "node-1", 20, "a GPU is lost").await);
    assert!(record_heartbeat(&db, "node-3", 30, "").await);
    let all = [
        agent_heartbeat("node-1", Active, Some(20), "a GPU is lost"),
        agent_heartbeat("node-2", Offline, None, ""),
    ];
    assert_eq!(agent_heartbeats(&db, Some("site-a")).await, all);
    assert_eq!(
        agent_heartbeats(&db, Some("site-b")).await,
        [agent_heartbeat("node-3", Active, Some(30), "")]
    );
    assert_eq!(agent_heartbeats(&db, None).await, [agent_heartbeat("node-4", Enrolling, None, "")]);
    assert_eq!(agent_heartbeats(&db, Some("site-c")).await, []);
    let label = NodeHeartbeat { at: Some(at(20)), problems: "a GPU is lost".into() };
    assert_eq!(last_heartbeat(&db, "node-1").await, label);
    assert_eq!(events_of(&db, "node-1").await, 1, "a heartbeat writes no event");
    let in_use = |site| db.read(tx!([], |tx| tx.live_node_of_site(&at_site(site)).await));
    assert_eq!(in_use("site-a").await, Ok(Some(id("node-1"))));
    assert_eq!(in_use("site-c").await, Ok(None));
    detach(&db, "node-3").await;
    assert_eq!(in_use("site-b").await, Ok(None), "a detached node does not use its site");
}

async fn a_lost_node_stays_lost_until_its_next_heartbeat(db: Db) {
    add(&db, "node-1", "m-1", NodeState::Offline).await;
    let lost_at = || async { agent_heartbeats(&db, None).await.remove(0).lost_at };
    let lose = || db.write(tx!([], |tx| tx.mark_offline(&id("node-1"), at(7))));
    assert_eq!(lost_at().await, None);
    lose().await.unwrap();
    assert_eq!(lost_at().await, Some(at(7)));
    record_heartbeat(&db, "node-1", 8, "").await;
    assert_eq!(lost_at().await, None);
    lose().await.unwrap();
    db.write(tx!([], |tx| tx.renew_heartbeat(&id("node-1"), at(9)).await)).await.unwrap();
    assert_eq!(lost_at().await, None);
    lose().await.unwrap();
    issue(&db, &new_token("node-1", 1), "t1").await.unwrap();
    enroll(&db, &new_token("node-1", 1), "s1").await.unwrap();
    assert_eq!(lost_at().await, None, "another agent is enrolled");
}

async fn nodes_at(db: &Db, after: &'static str, limit: usize) -> Vec<(NodeId, Result<Node>)> {
    db.read(tx!([], |tx| tx.nodes_at(&at_site("site-a"), after, limit).await)).await.unwrap()
}

async fn the_nodes_of_a_site_come_by_page(db: Db) {
    let mut all = Vec::new();
    for (name, site) in [
        ("node-1", Some("site-a")),
        ("node-2", Some("site-b")),
        ("node-3", Some("site-a")),
        ("node-4", None),
        ("node-5", Some("site-a")),
        ("node-6", Some("site-a")),
    ] {
        let node = place(&db, name, &format!("m-{name}"), site, NodeState::Active).await.unwrap();
        all.extend((site == Some("site-a")).then_some((node.id(), Ok(node))));
    }
    detach(&db, "node-6").await;
    all.pop();
    assert_eq!(nodes_at(&db, "", 9).await, all);
    assert_eq!(nodes_at(&db, "", 2).await, all[..2]);
    assert_eq!(nodes_at(&db, "node-3", 2).await, all[2..]);
    assert_eq!(nodes_at(&db, "node-5", 2).await, []);
}

async fn one_bad_node_leaves_the_others_readable(db: Db) {
    for name in ["node-1", "node-2"] {
        let site = Some("site-a");
        place(&db, name, &format!("m-{name}"), site, NodeState::Active).await.unwrap();
    }
    let damage = "UPDATE records SET body = '{', state = 'abroad' WHERE id = 'node-1'";
    db.execute_sql(damage, damage).await;
    let nodes = nodes_at(&db, "", 9).await;
    let readable: Vec<_> = nodes.iter().map(|(id, node)| (id.as_str(), node.is_ok())).collect();
    assert_eq!(readable, [("node-1", false), ("node-2", true)]);
    let heartbeat =
        db.read(tx!([], |tx| tx.agent_heartbeats(Some(&at_site("site-a"))).await)).await.unwrap();
    let readable: Vec<_> = heartbeat.iter().map(|(id, one)| (id.as_str(), one.is_ok())).collect();
    assert_eq!(readable, [("node-1", false), ("node-2", true)]);
}

async fn a_site_answer_writes_no_event(db: Db) {
    make_site(&db, "site-a").await;
    let site = || at_site("site-a");
    let answer = || db.read(tx!([], |tx| tx.last_site_answer(&site()).await));
    assert_eq!(answer().await, Ok(None));
    for seconds in [5, 6] {
        db.write(tx!([], |tx| tx.record_site_answer(&site(), at(seconds)))).await.unwrap();
        assert_eq!(answer().await, Ok(Some(at(seconds))));
    }
    assert_eq!(events_of(&db, "site-a").await, 1);
    db.write(tx!([], |tx| tx.delete_site_answer(&site()))).await.unwrap();
    assert_eq!(answer().await, Ok(None));
}

fn task(run: &str, step: &str, node: &str, seconds: i64) -> Task {
    Task {
        key: EffectKey::new(&RunId::trusted(run), step, 1),
        node: id(node),
        run: RunId::trusted(run),
        kind: TaskKind::Drain,
        params: BTreeMap::new(),
        state: TaskState::Queued,
        lease_until: None,
        dispatched: 0,
        deadline: at(seconds + 600),
        message: String::new(),
        log: String::new(),
        created_at: at(seconds),
    }
}

async fn insert_task(db: &Db, task: &Task) -> bool {
    db.write(tx!([task], |tx| tx.insert_task(&task).await)).await.unwrap()
}

async fn find(db: &Db, key: &EffectKey) -> Option<TaskRow> {
    db.read(tx!([key], |tx| tx.task(&key).await)).await.unwrap()
}

async fn open(db: &Db, node: &'static str) -> Option<EffectKey> {
    let found = db.read(tx!([], |tx| tx.open_task(&id(node)).await)).await.unwrap();
    found.map(|row| row.task.key)
}

async fn update(db: &Db, row: &TaskRow) -> Result<()> {
    db.write(tx!([row], |tx| tx.update_task(&row))).await
}

async fn a_task_is_inserted_once(db: Db) {
    let first = task("op-1", "drain_node", "node-1", 1);
    assert!(insert_task(&db, &first).await);
    let other = Task { kind: TaskKind::Uninstall, ..first.clone() };
    assert!(!insert_task(&db, &other).await, "the key exists");
    assert_eq!(find(&db, &first.key).await, Some(TaskRow { task: first.clone(), version: 1 }));
    let stopped = TaskRow { task: first.stop(), version: 1 };
    update(&db, &stopped).await.unwrap();
    assert!(!insert_task(&db, &first).await, "a stopped task does not restart");
    assert_eq!(find(&db, &first.key).await.unwrap().task.state, TaskState::Stopped);
    assert_eq!(find(&db, &EffectKey::trusted("op-9/x/1")).await, None);
}

async fn a_task_is_updated_at_its_version(db: Db) {
    let queued = task("op-1", "drain_node", "node-1", 1);
    insert_task(&db, &queued).await;
    let read = find(&db, &queued.key).await.unwrap();
    let taken = TaskRow { task: read.task.dispatch(at(5)).unwrap(), ..read.clone() };
    update(&db, &taken).await.unwrap();
    let late = TaskRow { task: read.task.stop(), ..read };
    assert_eq!(update(&db, &late).await, Err(StoreError::Conflict), "the version has moved");
    let now = find(&db, &queued.key).await.unwrap();
    assert_eq!((&now.task, now.version), (&taken.task, 2));
    assert_eq!(open(&db, "node-1").await, Some(queued.key.clone()), "a leased task is still open");
    let done = now.task.complete(true, "empty", "").unwrap();
    update(&db, &TaskRow { task: done.clone(), version: 2 }).await.unwrap();
    assert_eq!(open(&db, "node-1").await, None);
    assert_eq!(find(&db, &queued.key).await, Some(TaskRow { task: done, version: 3 }));
}

async fn tasks_are_given_out_oldest_first(db: Db) {
    let (late, early) =
        (task("op-2", "scrub_gpu", "node-1", 9), task("op-1", "drain_node", "node-1", 3));
    let elsewhere = task("op-3", "drain_node", "node-2", 1);
    for one in [&late, &early, &elsewhere] {
        assert!(insert_task(&db, one).await);
    }
    assert_eq!(open(&db, "node-1").await, Some(early.key.clone()));
    update(&db, &TaskRow { task: early.stop(), version: 1 }).await.unwrap();
    assert_eq!(open(&db, "node-1").await, Some(late.key));
    assert_eq!(open(&db, "node-2").await, Some(elsewhere.key));
    assert_eq!(open(&db, "node-3").await, None);
}

async fn tasks_are_deleted_with_their_runs(db: Db) {
    db.add_machine("m-1").await;
    let mut runs = Vec::new();
    for (n, name) in ["op-1", "op-2"].into_iter().enumerate() {
        let mut run = ended(run(name, "m-1"), Workflow::Completed);
        run.spec.created_at = at(n as i64);
        db.insert_run(&run, None).await.unwrap();
        insert_task(&db, &task(name, "drain_node", "node-1", 1)).await;
        runs.push(run.spec.id);
    }
    let key = |name: &str| task(name, "drain_node", "node-1", 1).key;
    // Other tests on the same server may hold back the horizon.
    let gone = async {
        loop {
            let removed = db.write(tx!([runs], |tx| tx.remove_runs(&runs).await)).await.unwrap();
            match removed.runs {
                0 => tokio::time::sleep(Duration::from_millis(10)).await,
                _ => break,
            }
        }
    };
    within_timeout("the end of the older run", gone).await;
    assert_eq!(find(&db, &key("op-1")).await, None);
    assert!(find(&db, &key("op-2")).await.is_some(), "its run still exists");
    assert_eq!(open(&db, "node-1").await, Some(key("op-2")));
}

async fn make_site(db: &Db, name: &str) -> Site {
    let name = at_site(name);
    let insert = tx!([name], |tx| {
        let mut site = Site::new(&name, SiteSpec::default(), Labels::new(), at(0));
        tx.insert_record(&mut site, &event()).await?;
        Ok(site)
    });
    db.write(insert).await.unwrap()
}

/// Claims and settles everything that is due, without changes. Returns the claimed kinds.
async fn settle_all_due(db: &Db) -> Vec<SubjectKind> {
    let claimed = db.claim("a", at(50), 99).await;
    for one in claimed.clone() {
        let settle = tx!([one], |tx| {
            let claim = RecordClaim { epoch: one.epoch, wakes_handled: one.wakes_requested };
            match one.kind {
                ClaimedKind::Record(SubjectKind::Node) => {
                    let node = tx.record::<Node>(one.id.as_str()).await?.expect("a node");
                    tx.settle_record(&node, claim, None, at(50))
                }
                ClaimedKind::Record(SubjectKind::Site) => {
                    let site = tx.record::<Site>(one.id.as_str()).await?.expect("a site");
                    tx.settle_record(&site, claim, None, at(50))
                }
                other @ (ClaimedKind::Record(_) | ClaimedKind::Notifier) => {
                    panic!("no {other:?} was made")
                }
                ClaimedKind::Run => {
                    tx.release(&one.id, one.epoch, one.wakes_requested, None, at(50))
                }
            }
        });
        db.write(settle).await.unwrap();
    }
    let kinds = claimed.into_iter().filter_map(|one| match one.kind {
        ClaimedKind::Record(kind) => Some(kind),
        ClaimedKind::Run | ClaimedKind::Notifier => None,
    });
    let mut kinds: Vec<_> = kinds.collect();
    kinds.sort_unstable();
    kinds
}

async fn a_node_and_a_site_are_claimed_and_become_idle(db: Db) {
    let node = add(&db, "node-1", "m-1", NodeState::Active).await;
    make_site(&db, "site-a").await;
    let next_due = || db.read(tx!([], |tx| tx.next_due().await));
    assert_eq!(next_due().await, Ok(Some(at(0))), "both are new");
    assert_eq!(settle_all_due(&db).await, [SubjectKind::Node, SubjectKind::Site]);
    assert_eq!(
        (settle_all_due(&db).await, next_due().await),
        (vec![], Ok(None)),
        "an idle object is not due"
    );
    // An update does not make it due; a wake-up does.
    let node = write(&db, &node).await.unwrap();
    assert_eq!(next_due().await, Ok(None));
    let tell = tx!([node], |tx| {
        let mut node = node;
        tx.update_and_enqueue(&mut node, &event())
    });
    db.write(tell).await.unwrap();
    assert_eq!(settle_all_due(&db).await, [SubjectKind::Node]);
    assert_eq!(settle_all_due(&db).await, []);
}

async fn runs_of_a_node_are_removable_after_its_turn(db: Db) {
    db.add_machine("m-1").await;
    let node = add(&db, "node-1", "m-1", NodeState::Active).await;
    let mut runs = Vec::new();
    for (n, name) in ["op-1", "op-2"].into_iter().enumerate() {
        let mut run = ended(run(name, "m-1"), Workflow::Completed);
        run.spec.created_at = at(n as i64);
        run.spec.reports_to = Some(node.subject());
        db.insert_run(&run, None).await.unwrap();
        runs.push(run.spec.id);
    }
    let superseded = || async {
        let ended = tx!([], |tx| tx.ended_runs(at(1_000), &EndedRunPosition::default(), 9).await);
        let ended = db.read(ended).await.unwrap();
        ended.into_iter().filter(|run| run.superseded).map(|run| run.id).collect::<Vec<_>>()
    };
    assert_eq!(superseded().await, [], "the node has not handled its wake-up");
    settle_all_due(&db).await;
    assert_eq!(superseded().await, runs[..1], "the newest stays");
}

/// The transitions of a site have no owners.
async fn transitions_of_a_site_have_no_owner(db: Db) {
    let mut site = make_site(&db, "site-a").await;
    for (report, name) in [
        (SiteReport::Answered(3), "Connected"),
        (SiteReport::Silence(Some("all of them".into())), "CutOff"),
        (SiteReport::Unreachable("no answer".into()), "Unreachable"),
        (SiteReport::Silence(None), "Unreachable"),
        (SiteReport::Answered(2), "Connected"),
    ] {
        let reported = site.apply_report(&report, at(5));
        let write = tx!([reported], |tx| {
            let mut site = reported;
            tx.update_record(&mut site, &event())?;
            Ok(site)
        });
        site = db.write(write).await.unwrap();
        assert_eq!(site.state().as_str(), name);
    }
    let found = db.read(tx!([], |tx| tx.record::<Site>("site-a").await)).await;
    assert_eq!(found, Ok(Some(site)));
}

async fn nodes_are_found_by_state_and_label(db: Db) {
    for (n, state) in NodeState::ALL.into_iter().enumerate() {
        let name = id(&format!("node-{n}"));
        let insert = tx!([name], |tx| {
            let mut node = Node::new(&name, &on(name.as_str()), state, at(0));
            let site = if n % 2 == 0 { "site-a" } else { "site-b" };
            node.head.labels.insert("site".into(), site.into());
            tx.insert_record(&mut node, &event()).await
        });
        db.write(insert).await.unwrap();
    }
    let text = "state in (active, offline, deleted) AND labels.site=site-a";
    let filter = Filter::parse(text, FilterSubject::Node).unwrap();
    let page = db.read(tx!([filter], |tx| tx.records::<Node>(&filter, None, 9).await)).await;
    let found: Vec<_> = page.unwrap().records.into_iter().map(|node| node.state).collect();
    assert_eq!(found, [NodeState::Active, NodeState::Deleted]);
}
