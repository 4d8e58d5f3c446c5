//! Nodes beside their records: machine, heartbeats, enrollment tokens and sessions; and the tasks
//! of agents.

use crate::driver::{ExpectedRows, Statement};
use crate::record::record;
use crate::unreadable::{RowKind, named};
use crate::value::{Row, values};
use crate::{Result, StoreError, Tx};
use model::effect::EffectKey;
use model::id::{MachineId, NodeId, RackId, SiteId};
use model::node::enroll::EnrollmentToken;
use model::node::heartbeat::AgentHeartbeat;
use model::node::task::{Task, TaskState};
use model::node::{Node, NodeState};
use model::time::Timestamp;
use std::collections::BTreeMap;

/// Nodes joined with their states, and the condition for being in service. A test compares it with
/// `NodeState::in_service`.
const NODES_WITH_RECORDS: &str = "nodes n JOIN records r ON r.id = n.id";
const IN_SERVICE: &str = "n.live = 1 AND r.state IN ('active', 'offline')";

/// The last heartbeat of a node's agent, and the problems that it reported.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeHeartbeat {
    pub at: Option<Timestamp>,
    pub problems: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskRow {
    pub task: Task,
    pub version: i64,
}

impl Tx {
    /// Attaches a node to a machine. A conflict means that another live node has it.
    pub fn attach_node(
        &mut self,
        id: &NodeId,
        machine: &MachineId,
        site: Option<&SiteId>,
    ) -> Result<()> {
        let sql = "INSERT INTO nodes (id, machine_id, site_id, live, heard_at, lost_at, problems, token, \
                   ticket, session) VALUES ($1, $2, $3, 1, NULL, NULL, '', NULL, NULL, NULL)";
        let values = values![id.as_str(), machine.as_str(), site.map(SiteId::as_str)];
        self.queue_write(Statement::new(sql, values), ExpectedRows::One)
    }

    /// Detaches a deleted node: its machine can get another node, and its token and session end.
    pub fn detach_node(&mut self, id: &NodeId) -> Result<()> {
        let sql =
            "UPDATE nodes SET live = 0, token = NULL, ticket = NULL, session = NULL WHERE id = $1";
        self.queue_write(Statement::new(sql, values![id.as_str()]), ExpectedRows::One)
    }

    /// Revokes the token and the session of a node's agent.
    pub fn revoke_agent(&mut self, id: &NodeId) -> Result<()> {
        let sql = "UPDATE nodes SET token = NULL, ticket = NULL, session = NULL WHERE id = $1";
        self.queue_write(Statement::new(sql, values![id.as_str()]), ExpectedRows::One)
    }

    /// The live node of a machine.
    pub async fn live_node_of_machine(&mut self, machine: &MachineId) -> Result<Option<NodeId>> {
        let sql = "SELECT id FROM nodes WHERE machine_id = $1 AND live = 1";
        let row = self.query_one(sql, values![machine.as_str()]).await?;
        row.map(|row| Ok(NodeId::trusted(row.text(0)?))).transpose()
    }

    /// The node in service on a machine.
    pub async fn node_in_service(&mut self, machine: &MachineId) -> Result<Option<NodeId>> {
        let sql = format!(
            "SELECT n.id FROM {NODES_WITH_RECORDS} WHERE n.machine_id = $1 AND {IN_SERVICE}"
        );
        let row = self.query_one(&sql, values![machine.as_str()]).await?;
        row.map(|row| Ok(NodeId::trusted(row.text(0)?))).transpose()
    }

    /// The nodes in service on the machines of a rack.
    pub async fn nodes_in_service(&mut self, rack: &RackId) -> Result<BTreeMap<MachineId, NodeId>> {
        let sql = format!(
            "SELECT n.machine_id, n.id FROM {NODES_WITH_RECORDS} JOIN machines m ON m.id = n.machine_id \
             WHERE m.rack_id = $1 AND {IN_SERVICE}"
        );
        let rows = self.query(&sql, values![rack.as_str()]).await?;
        let pair =
            |row: &Row| Ok((MachineId::trusted(row.text(0)?), NodeId::trusted(row.text(1)?)));
        rows.iter().map(pair).collect()
    }

    /// One live node of a site, if there is any.
    pub async fn live_node_of_site(&mut self, site: &SiteId) -> Result<Option<NodeId>> {
        let sql = "SELECT id FROM nodes WHERE site_id = $1 AND live = 1 ORDER BY id LIMIT 1";
        let row = self.query_one(sql, values![site.as_str()]).await?;
        row.map(|row| Ok(NodeId::trusted(row.text(0)?))).transpose()
    }

    /// Records a heartbeat. It does not change the node's record, so it writes no event. False if
    /// the node is not live.
    pub async fn record_heartbeat(
        &mut self,
        id: &NodeId,
        at: Timestamp,
        problems: &str,
    ) -> Result<bool> {
        let sql = "UPDATE nodes SET heard_at = $2, lost_at = NULL, problems = $3 \
                   WHERE id = $1 AND live = 1";
        Ok(self.execute(sql, values![id.as_str(), at, problems]).await? == 1)
    }

    /// Records a heartbeat without a problem list: the last reported list still holds.
    pub async fn renew_heartbeat(&mut self, id: &NodeId, at: Timestamp) -> Result<bool> {
        let sql = "UPDATE nodes SET heard_at = $2, lost_at = NULL WHERE id = $1 AND live = 1";
        Ok(self.execute(sql, values![id.as_str(), at]).await? == 1)
    }

    /// Records that a node went offline because its agent is silent.
    pub fn mark_offline(&mut self, id: &NodeId, at: Timestamp) -> Result<()> {
        let sql = "UPDATE nodes SET lost_at = $2 WHERE id = $1 AND live = 1";
        self.queue_write(Statement::new(sql, values![id.as_str(), at]), ExpectedRows::Any)
    }

    pub async fn last_heartbeat(&mut self, id: &NodeId) -> Result<NodeHeartbeat> {
        let sql = "SELECT heard_at, problems FROM nodes WHERE id = $1";
        let row = self.query_one(sql, values![id.as_str()]).await?;
        row.map_or(Ok(NodeHeartbeat::default()), |row| heartbeat(&row, 0))
    }

    /// One page of the live nodes of a site, ordered by id. One that cannot be decoded does not
    /// hide the others.
    pub async fn nodes_at(
        &mut self,
        site: &SiteId,
        after: &str,
        limit: usize,
    ) -> Result<Vec<(NodeId, Result<Node>)>> {
        let sql = "SELECT r.body, r.version, n.id FROM nodes n JOIN records r ON r.id = n.id \
                   WHERE n.site_id = $1 AND n.live = 1 AND n.id > $2 ORDER BY n.id LIMIT $3";
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let rows = self.query(sql, values![site.as_str(), after, limit]).await?;
        let node = |row: &Row| {
            let id = row.text(2)?;
            Ok((NodeId::trusted(id), named(RowKind::Node, id, record(row))))
        };
        rows.iter().map(node).collect()
    }

    /// Records that the MAAS of a site answered.
    pub fn record_site_answer(&mut self, id: &SiteId, at: Timestamp) -> Result<()> {
        let sql = "INSERT INTO site_answers (id, answered_at) VALUES ($1, $2) \
                   ON CONFLICT (id) DO UPDATE SET answered_at = excluded.answered_at";
        self.queue_write(Statement::new(sql, values![id.as_str(), at]), ExpectedRows::One)
    }

    /// The time of a site's last answer; `None` if it never answered.
    pub async fn last_site_answer(&mut self, id: &SiteId) -> Result<Option<Timestamp>> {
        let sql = "SELECT answered_at FROM site_answers WHERE id = $1";
        self.query_one(sql, values![id.as_str()]).await?.map(|row| row.time(0)).transpose()
    }

    /// Deletes the time of the last answer: the site was deleted or has another MAAS now.
    pub fn delete_site_answer(&mut self, id: &SiteId) -> Result<()> {
        let sql = "DELETE FROM site_answers WHERE id = $1";
        self.queue_write(Statement::new(sql, values![id.as_str()]), ExpectedRows::Any)
    }

    /// The heartbeats of the live nodes of a site, or of the nodes without one. A node in a state
    /// that only a newer version knows does not hide the others.
    pub async fn agent_heartbeats(
        &mut self,
        site: Option<&SiteId>,
    ) -> Result<Vec<(NodeId, Result<AgentHeartbeat>)>> {
        let belongs = match site {
            Some(_) => "n.site_id = $1",
            None => "n.site_id IS NULL AND CAST($1 AS TEXT) IS NULL",
        };
        let sql = format!(
            "SELECT n.id, r.state, n.heard_at, n.problems, n.lost_at, r.updated_at FROM nodes n JOIN records r ON r.id = n.id \
             WHERE n.live = 1 AND {belongs} ORDER BY n.id"
        );
        let rows = self.query(&sql, values![site.map(SiteId::as_str)]).await?;
        rows.iter().map(|row| Ok((NodeId::trusted(row.text(0)?), agent_heartbeat(row)))).collect()
    }

    /// Replaces the enrollment token of a node.
    pub fn issue_enrollment_token(&mut self, ticket: &EnrollmentToken, token: &str) -> Result<()> {
        let sql = "UPDATE nodes SET token = $2, ticket = $3 WHERE id = $1 AND live = 1";
        let values = values![ticket.node.as_str(), token, serde_json::to_string(ticket)?];
        self.queue_write(Statement::new(sql, values), ExpectedRows::One)
    }

    /// The enrollment token with this checksum. A caller that changes it must lock the node.
    pub async fn enrollment_token(&mut self, token: &str) -> Result<Option<EnrollmentToken>> {
        let sql = "SELECT ticket FROM nodes WHERE token = $1";
        let row = self.query_one(sql, values![token]).await?;
        row.map(|row| row.json(0)).transpose()
    }

    /// The last enrollment token of a node.
    pub async fn last_enrollment_token(&mut self, id: &NodeId) -> Result<Option<EnrollmentToken>> {
        let sql = "SELECT ticket FROM nodes WHERE id = $1 AND ticket IS NOT NULL";
        let row = self.query_one(sql, values![id.as_str()]).await?;
        row.map(|row| row.json(0)).transpose()
    }

    /// Starts the session of an agent and ends the session before it.
    pub fn enroll(&mut self, ticket: &EnrollmentToken, session: &str) -> Result<()> {
        // The state of the agent is unknown until its first heartbeat.
        let sql = "UPDATE nodes SET ticket = $2, session = $3, heard_at = NULL, lost_at = NULL, \
                   problems = '' WHERE id = $1 AND live = 1";
        let values = values![ticket.node.as_str(), serde_json::to_string(ticket)?, session];
        self.queue_write(Statement::new(sql, values), ExpectedRows::One)
    }

    /// The node whose session has this checksum.
    pub async fn node_of_session(&mut self, session: &str) -> Result<Option<NodeId>> {
        let sql = "SELECT id FROM nodes WHERE session = $1";
        let row = self.query_one(sql, values![session]).await?;
        row.map(|row| Ok(NodeId::trusted(row.text(0)?))).transpose()
    }

    /// True if an agent is enrolled for the node.
    pub async fn has_agent(&mut self, id: &NodeId) -> Result<bool> {
        let sql = "SELECT id FROM nodes WHERE id = $1 AND session IS NOT NULL";
        Ok(self.query_one(sql, values![id.as_str()]).await?.is_some())
    }

    /// Inserts a task. False if its effect key exists already; that task is not changed.
    pub async fn insert_task(&mut self, task: &Task) -> Result<bool> {
        let sql = "INSERT INTO tasks (key, run_id, node_id, is_open, version, body, created_at) \
                   VALUES ($1, $2, $3, $4, 1, $5, $6) ON CONFLICT (key) DO NOTHING";
        let values = values![
            task.key.as_str(),
            task.run.as_str(),
            task.node.as_str(),
            i64::from(is_open(task)),
            serde_json::to_string(task)?,
            task.created_at,
        ];
        Ok(self.execute(sql, values).await? == 1)
    }

    pub async fn task(&mut self, key: &EffectKey) -> Result<Option<TaskRow>> {
        let sql = "SELECT body, version FROM tasks WHERE key = $1";
        let row = self.query_one(sql, values![key.as_str()]).await?;
        named(RowKind::Task, key.as_str(), row.as_ref().map(task).transpose())
    }

    /// The oldest unfinished task of a node.
    pub async fn open_task(&mut self, node: &NodeId) -> Result<Option<TaskRow>> {
        let sql = "SELECT body, version FROM tasks WHERE node_id = $1 AND is_open = 1 \
                   ORDER BY created_at, key LIMIT 1";
        let row = self.query_one(sql, values![node.as_str()]).await?;
        row.as_ref().map(task).transpose()
    }

    /// Replaces the version of a task that was read.
    pub fn update_task(&mut self, row: &TaskRow) -> Result<()> {
        let sql = "UPDATE tasks SET is_open = $2, version = $3 + 1, body = $4 \
                   WHERE key = $1 AND version = $3";
        let values = values![
            row.task.key.as_str(),
            i64::from(is_open(&row.task)),
            row.version,
            serde_json::to_string(&row.task)?,
        ];
        self.queue_write(Statement::new(sql, values), ExpectedRows::One)
    }
}

const fn is_open(task: &Task) -> bool {
    match task.state {
        TaskState::Queued | TaskState::Dispatched => true,
        TaskState::Done | TaskState::Failed | TaskState::Stopped => false,
    }
}

pub(crate) fn task(row: &Row) -> Result<TaskRow> {
    Ok(TaskRow { task: row.json(0)?, version: row.int(1)? })
}

fn heartbeat(row: &Row, from: usize) -> Result<NodeHeartbeat> {
    let at = row.opt_time(from)?;
    Ok(NodeHeartbeat { at, problems: row.text(from + 1)?.to_string() })
}

fn agent_heartbeat(row: &Row) -> Result<AgentHeartbeat> {
    let state = row.text(1)?;
    let unknown = || StoreError::Corrupt(format!("a node in state {state:?}"));
    let state = NodeState::parse(state).ok_or_else(unknown)?;
    let NodeHeartbeat { at, problems } = heartbeat(row, 2)?;
    let node = NodeId::trusted(row.text(0)?);
    let (lost_at, changed_at) = (row.opt_time(4)?, row.time(5)?);
    Ok(AgentHeartbeat { node, state, at, problems, lost_at, changed_at })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_service_is_what_the_model_says() {
        for state in NodeState::ALL {
            let named = IN_SERVICE.contains(&format!("'{state}'"));
            assert_eq!(named, state.in_service(), "{state}");
        }
    }
}
