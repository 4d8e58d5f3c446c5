//! The transactions on agent tasks: find, take, renew, report.

use super::agents::{AgentResult, DispatchedTask, node_of_session};
use model::node::TaskKind;
use model::node::enroll::EnrollmentRefusal;
use model::node::task::{LEASE, Task, TaskInstruction};
use model::time::Timestamp;
use store::{TaskRow, Tx};

/// The end of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskReport {
    pub key: String,
    pub ok: bool,
    pub message: String,
    pub log: String,
}

pub(super) async fn has_task(tx: &mut Tx, session: &str) -> AgentResult<bool> {
    match node_of_session(tx, session).await? {
        Ok(node) => Ok(Ok(tx.open_task(&node).await?.is_some())),
        Err(denied) => Ok(Err(denied)),
    }
}

pub(super) async fn take_task(
    tx: &mut Tx,
    session: &str,
    now: Timestamp,
) -> AgentResult<Option<DispatchedTask>> {
    let node = match node_of_session(tx, session).await? {
        Ok(node) => node,
        Err(denied) => return Ok(Err(denied)),
    };
    let Some(row) = tx.open_task(&node).await? else { return Ok(Ok(None)) };
    let left = row.task.deadline.since(now);
    if left.is_zero() {
        // Its deadline has passed; it must not block the next task.
        tx.update_task(&TaskRow { task: row.task.stop(), version: row.version })?;
        tx.wake(&row.task.run.object(), now)?;
        return Ok(Ok(None));
    }
    let Some(task) = row.task.dispatch(now) else { return Ok(Ok(None)) };
    let taken = DispatchedTask { task: task.clone(), lease: LEASE, left };
    tx.update_task(&TaskRow { task, version: row.version })?;
    Ok(Ok(Some(taken)))
}

/// The task with this key, if it belongs to the node of the session.
async fn own_task(tx: &mut Tx, session: &str, key: &str) -> AgentResult<TaskRow> {
    let node = match node_of_session(tx, session).await? {
        Ok(node) => node,
        Err(denied) => return Ok(Err(denied)),
    };
    let found = tx.task(&model::effect::EffectKey::trusted(key)).await?;
    Ok(found.filter(|row| row.task.node == node).ok_or(EnrollmentRefusal::TaskOver))
}

pub(super) async fn renew_task(
    tx: &mut Tx,
    session: &str,
    key: &str,
    log: &str,
    now: Timestamp,
) -> AgentResult<TaskInstruction> {
    let row = match own_task(tx, session, key).await? {
        Ok(row) => row,
        Err(denied) => return Ok(Err(denied)),
    };
    let (task, then) = row.task.renew_lease(log, now);
    let change = task.log != row.task.log;
    if task != row.task {
        tx.update_task(&TaskRow { task, version: row.version })?;
    }
    // Wake the run only if log lines were stored.
    if change {
        tx.wake(&row.task.run.object(), now)?;
    }
    tx.renew_heartbeat(&row.task.node, now).await?;
    Ok(Ok(then))
}

/// The kind of the ended task; none if it had been reported before.
pub(super) async fn report_task(
    tx: &mut Tx,
    session: &str,
    report: &TaskReport,
    now: Timestamp,
) -> AgentResult<Option<TaskKind>> {
    let TaskReport { key, ok, message: text, log } = report;
    let row = match own_task(tx, session, key).await? {
        Ok(row) => row,
        Err(denied) => return Ok(Err(denied)),
    };
    let Some(task) = row.task.complete(*ok, text, log) else {
        // The agent has released a stopped task: wake the run that waits for it.
        if row.task.may_still_run(now) {
            let task = Task { lease_until: None, ..row.task };
            tx.wake(&task.run.object(), now)?;
            tx.update_task(&TaskRow { task, version: row.version })?;
        }
        return Ok(Err(EnrollmentRefusal::TaskOver));
    };
    if task == row.task {
        return Ok(Ok(None));
    }
    let kind = task.kind;
    tx.update_task(&TaskRow { task, version: row.version })?;
    tx.wake(&row.task.run.object(), now)?;
    Ok(Ok(Some(kind)))
}
