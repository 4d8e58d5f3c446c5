//! Machines. Fields that filters select by have a column of their own; the rest is in the body.

use crate::driver::{ExpectedRows, Statement};
use crate::event::{Cursor, NewEvent, ObjectAsOf, readable_body};
use crate::filter::{Select, compile_filter};
use crate::signal::Signal;
use crate::unreadable::{Listed, RowKind, UnreadableRow, named};
use crate::value::{Row, Value, values};
use crate::{Result, StoreError, Tx};
use model::condition::Conditions;
use model::filter::Filter;
use model::health::HealthSummary;
use model::id::{MachineId, RackId, RunId};
use model::machine::{DiskWrite, FailedChanges, Labels, Machine, MachineSpec, NetworkBoot, Phase};
use model::target::TargetId;
use serde::{Deserialize, Serialize};

/// The fields that no filter uses.
#[derive(Serialize, Deserialize)]
struct MachineBody {
    spec: MachineSpec,
    conditions: Conditions,
    #[serde(default, skip_serializing_if = "HealthSummary::is_clear")]
    health: HealthSummary,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    open_disk_write: Option<DiskWrite>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    network_boot: Option<NetworkBoot>,
    #[serde(default, alias = "failed_imaging", skip_serializing_if = "FailedChanges::is_empty")]
    failed_changes: FailedChanges,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachinePage {
    pub machines: Vec<Machine>,
    /// The id after which the next page starts, if there is one.
    pub next: Option<String>,
    /// Rows that were left out.
    pub unreadable: Vec<UnreadableRow>,
}

pub(crate) const COLUMNS: &str =
    "id, version, phase, active_run, labels, body, created_at, updated_at";

impl Tx {
    pub async fn machine(&mut self, id: &MachineId) -> Result<Option<Machine>> {
        let sql = format!("SELECT {COLUMNS} FROM machines WHERE id = $1");
        let row = self.query_one(&sql, values![id.as_str()]).await?;
        let found = named(RowKind::Machine, id.as_str(), row.as_ref().map(machine).transpose());
        self.service.note_read(&found);
        found
    }

    /// Reads several machines. One that cannot be decoded does not hide the others.
    pub async fn machines_by_ids(
        &mut self,
        ids: &[&str],
    ) -> Result<Vec<(MachineId, Result<Machine>)>> {
        let sql = format!("SELECT {COLUMNS} FROM machines WHERE id {{among $1}}");
        let sql = self.dialect().fill_placeholders(&sql);
        let rows = self.query(&sql, values![serde_json::to_string(ids)?]).await?;
        rows.iter().map(machine_by_id).collect()
    }

    /// Reads a machine and locks it until the transaction ends.
    pub async fn machine_locked(&mut self, id: &MachineId) -> Result<Option<Machine>> {
        let sql = format!("SELECT {COLUMNS} FROM machines WHERE id = $1 {{lock}}");
        let sql = self.dialect().fill_placeholders(&sql);
        let row = self.query_one(&sql, values![id.as_str()]).await?;
        let found = named(RowKind::Machine, id.as_str(), row.as_ref().map(machine).transpose());
        self.service.note_read(&found);
        found
    }

    /// The machines that a run holds, ordered by id.
    pub async fn machines_of_active_run(&mut self, run: &RunId) -> Result<Vec<Machine>> {
        let sql = format!("SELECT {COLUMNS} FROM machines WHERE active_run = $1 ORDER BY id");
        let rows = self.query(&sql, values![run.as_str()]).await?;
        rows.iter().map(|row| machine_by_id(row)?.1).collect()
    }

    /// The readable part of the attributes that identify a machine whose row cannot be decoded.
    pub async fn spec_of_unreadable_machine(&mut self, id: &MachineId) -> Result<MachineSpec> {
        let sql = "SELECT body FROM machines WHERE id = $1";
        let row = self.query_one(sql, values![id.as_str()]).await?;
        let body = row.and_then(|row| row.json::<serde_json::Value>(0).ok()).unwrap_or_default();
        let spec = &body["spec"];
        let text = |name: &str| spec[name].as_str().unwrap_or_default().to_string();
        let macs = spec["mac_addresses"].as_array().into_iter().flatten();
        Ok(MachineSpec {
            serial: text("serial"),
            bmc_endpoint: text("bmc_endpoint"),
            mac_addresses: macs.filter_map(|mac| Some(mac.as_str()?.to_string())).collect(),
            ..MachineSpec::default()
        })
    }

    /// The target of a run that has not ended. The run itself need not be readable.
    pub async fn target_of_active_run(&mut self, run: &RunId) -> Result<Option<TargetId>> {
        let sql = "SELECT r.machine_id FROM runs r JOIN subjects s ON s.id = r.id \
                   WHERE r.id = $1 AND s.holds_machine IS NOT NULL";
        let row = self.query_one(sql, values![run.as_str()]).await?;
        row.map(|row| Ok(TargetId::from_key(row.text(0)?))).transpose()
    }

    /// Inserts a machine and its event. A conflict means that the id exists.
    pub fn insert_machine(&mut self, machine: &Machine, event: &NewEvent) -> Result<()> {
        let body = body(machine)?;
        let sql = "INSERT INTO machines (id, version, phase, holds, active_run, provider, labels, \
                   body, created_at, updated_at, rack_id) \
                   VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";
        let values = values![
            machine.id.as_str(),
            machine.version,
            machine.phase.as_str(),
            machine.conditions.bits(),
            machine.active_run.as_ref().map(RunId::as_str),
            machine.spec.provider.as_str(),
            serde_json::to_string(&machine.labels)?,
            body,
            machine.created_at,
            machine.updated_at,
            machine.spec.rack.as_ref().map(RackId::as_str),
        ];
        self.queue_write(Statement::new(sql, values), ExpectedRows::One)?;
        self.queue_write(self.machine_event(machine, event)?, ExpectedRows::One)?;
        self.service.change_membership(&machine.id);
        self.signal(Signal::Event);
        Ok(())
    }

    /// Writes a changed machine and its event. `machine.version` is the version that was read.
    pub fn update_machine(&mut self, machine: &mut Machine, event: &NewEvent) -> Result<()> {
        let read_at = machine.version;
        machine.version += 1;
        // The clocks of replicas differ; the times in a history never go back.
        machine.updated_at = event.at.max(machine.updated_at);
        let event = &NewEvent { at: machine.updated_at, ..event.clone() };
        let sql = "UPDATE machines SET version = $3, phase = $4, holds = $5, active_run = $6, \
                   provider = $7, labels = $8, body = $9, updated_at = $10, rack_id = $11 \
                   WHERE id = $1 AND version = $2";
        let values = values![
            machine.id.as_str(),
            read_at,
            machine.version,
            machine.phase.as_str(),
            machine.conditions.bits(),
            machine.active_run.as_ref().map(RunId::as_str),
            machine.spec.provider.as_str(),
            serde_json::to_string(&machine.labels)?,
            body(machine)?,
            machine.updated_at,
            machine.spec.rack.as_ref().map(RackId::as_str),
        ];
        self.queue_write(Statement::new(sql, values), ExpectedRows::One)?;
        self.queue_write(self.machine_event(machine, event)?, ExpectedRows::One)?;
        self.service.change_machine(machine, read_at);
        self.signal(Signal::Event);
        Ok(())
    }

    /// Deletes a machine and the health reports on it. Its history and its runs stay.
    /// `machine.version` is the version that was read.
    pub fn delete_machine(&mut self, machine: &Machine, event: &NewEvent) -> Result<()> {
        let (id, version) = (machine.id.as_str(), machine.version);
        let sql = "DELETE FROM machines WHERE id = $1 AND version = $2";
        self.queue_write(Statement::new(sql, values![id, version]), ExpectedRows::One)?;
        let target = TargetId::from(&machine.id);
        self.delete_reports(&target)?;
        self.delete_feeds_of(&target.key())?;
        self.delete_node_name(&machine.id)?;
        self.service.change_membership(&machine.id);
        // The clocks of replicas differ; the times in a history never go back.
        let event = &NewEvent { at: event.at.max(machine.updated_at), ..event.clone() };
        self.queue_write(self.machine_deletion(machine, event)?, ExpectedRows::One)?;
        self.signal(Signal::Event);
        Ok(())
    }

    /// One page of machines, ordered by id.
    pub async fn machines(
        &mut self,
        filter: &Filter,
        after: Option<&str>,
        limit: i64,
    ) -> Result<MachinePage> {
        let mut select = Select::new(self.dialect(), "machines.id");
        // The label index has the machines of a label ordered by id.
        let (from, id) = match filter.label() {
            Some((key, value)) => {
                select.compare("l.key", "=", Some(key));
                select.compare("l.value", "=", Some(value));
                select.require("machines.id = l.machine_id");
                ("machine_labels l CROSS JOIN machines", "l.machine_id")
            }
            None => ("machines", "machines.id"),
        };
        select.compare(id, ">", after);
        compile_filter(filter, &mut select);
        let clause = select.clause();
        let count = select.bind(limit + 1);
        let sql = format!("SELECT {COLUMNS} FROM {from} {clause} ORDER BY {id} LIMIT {count}");
        let rows = self.query(&sql, &select.values).await?;
        page(&rows, limit, |row| Ok(row.text(0)?.to_string()))
    }

    /// Like [`Tx::machines`], as of a cursor: later changes are undone, and machines that did not
    /// exist then are omitted. So a watch that continues from that cursor misses nothing.
    pub async fn machines_as_of(
        &mut self,
        filter: &Filter,
        after: Option<&str>,
        limit: i64,
        at: Cursor,
    ) -> Result<MachinePage> {
        let page = self.machines(filter, after, limit).await?;
        let mut machines = Vec::with_capacity(page.machines.len());
        for machine in page.machines {
            match self.object_as_of(machine.id.as_str(), machine.version, at).await? {
                ObjectAsOf::Unchanged => machines.push(machine),
                ObjectAsOf::Earlier(version, body) => {
                    let then = readable_body::<Machine>(machine.id.as_str(), &body);
                    machines.extend(then.map(|then| Machine { version, ..then }));
                }
                ObjectAsOf::Later => {}
            }
        }
        Ok(MachinePage { machines, ..page })
    }

    /// The machines of a rack, ordered by id. One that cannot be decoded does not hide the others.
    pub async fn machines_in_rack(
        &mut self,
        rack: &RackId,
    ) -> Result<Vec<(MachineId, Result<Machine>)>> {
        let sql = format!("SELECT {COLUMNS} FROM machines WHERE rack_id = $1 ORDER BY id");
        let rows = self.query(&sql, values![rack.as_str()]).await?;
        rows.iter().map(machine_by_id).collect()
    }

    pub async fn count_machines(&mut self) -> Result<i64> {
        let row = self.query_one("SELECT COUNT(*) FROM machines", &[]).await?;
        row.map_or(Ok(0), |row| row.int(0))
    }
}

fn body(machine: &Machine) -> Result<Value> {
    let body = MachineBody {
        spec: machine.spec.clone(),
        conditions: machine.conditions.clone(),
        health: machine.health.clone(),
        open_disk_write: machine.open_disk_write.clone(),
        network_boot: machine.network_boot.clone(),
        failed_changes: machine.failed_changes.clone(),
    };
    Ok(Value::Text(serde_json::to_string(&body)?))
}

/// One page of rows, of which one more than `limit` was read. `position` is that of a row.
pub(crate) fn page(
    rows: &[Row],
    limit: i64,
    position: impl Fn(&Row) -> Result<String>,
) -> Result<MachinePage> {
    let shown = &rows[..rows.len().min(limit as usize)];
    let mut listed = Listed::default();
    for row in shown {
        listed.push(RowKind::Machine, row.text(0)?, machine(row))?;
    }
    let last = shown.last().filter(|_| rows.len() > shown.len());
    let next = last.map(position).transpose()?;
    Ok(MachinePage { machines: listed.items, next, unreadable: listed.unreadable })
}

fn machine_by_id(row: &Row) -> Result<(MachineId, Result<Machine>)> {
    let id = row.text(0)?;
    Ok((MachineId::trusted(id), named(RowKind::Machine, id, machine(row))))
}

pub(crate) fn machine(row: &Row) -> Result<Machine> {
    let phase = row.text(2)?;
    let labels: Labels = row.json(4)?;
    let body = row.json(5)?;
    let MachineBody { spec, conditions, health, open_disk_write, network_boot, failed_changes } =
        body;
    Ok(Machine {
        id: MachineId::trusted(row.text(0)?),
        version: row.int(1)?,
        phase: Phase::parse(phase)
            .ok_or_else(|| StoreError::Corrupt(format!("phase {phase:?}")))?,
        active_run: row.opt_text(3)?.map(RunId::trusted),
        labels,
        spec,
        conditions,
        health,
        open_disk_write,
        network_boot,
        failed_changes,
        created_at: row.time(6)?,
        updated_at: row.time(7)?,
    })
}
