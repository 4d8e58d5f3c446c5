//! Which machines count in which budgets, and which of them do not serve.

use crate::driver::{ExpectedRows, Statement};
use crate::unreadable::RowKind;
use crate::value::{Row, values};
use crate::{Result, StoreError, Tx};
use model::budget::{
    BudgetRule, UnavailableMachine, same_for_budgets, same_membership, unavailability,
};
use model::id::{BudgetId, MachineId};
use model::lifecycle::{Lifecycle, SubjectKind};
use model::machine::Machine;
use model::node::NodeState;
use model::run::Run;
use std::collections::{BTreeMap, BTreeSet};

/// One machine in one domain of a budget.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct BudgetMember {
    pub machine: MachineId,
    pub budget: BudgetId,
    pub domain: String,
    pub unavailable: bool,
}

/// The members of one domain of a budget, counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DomainCount {
    pub budget: BudgetId,
    pub domain: String,
    pub total: i64,
    pub unavailable: i64,
}

/// The domains that one statement counts.
const DOMAINS_PER_QUERY: usize = 50;

/// What a transaction has changed about whether machines serve.
#[derive(Default)]
pub(crate) struct ServiceChanges {
    /// Machines as they were read, or written last.
    known: BTreeMap<MachineId, Machine>,
    machines: BTreeMap<MachineId, MembershipChange>,
    /// Operations and power shelves that take nothing any more.
    released: BTreeSet<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum MembershipChange {
    /// It counts in the same budgets; whether it serves may have changed.
    Same,
    /// It may count in others.
    Possible,
}

impl ServiceChanges {
    pub fn note_read(&mut self, found: &Result<Option<Machine>>) {
        if let Ok(Some(machine)) = found {
            self.known.insert(machine.id.clone(), machine.clone());
        }
    }

    fn note(&mut self, id: &MachineId, change: MembershipChange) {
        let known = self.machines.entry(id.clone()).or_insert(change);
        *known = change.max(*known);
    }

    /// A machine was inserted or deleted.
    pub fn change_membership(&mut self, id: &MachineId) {
        self.note(id, MembershipChange::Possible);
    }

    /// A machine was written that had the version `read_at`.
    pub fn change_machine(&mut self, machine: &Machine, read_at: i64) {
        let before = self.known.insert(machine.id.clone(), machine.clone());
        match before.filter(|before| before.version == read_at) {
            Some(before) if same_for_budgets(&before, machine) => {}
            Some(before) if same_membership(&before, machine) => {
                self.note(&machine.id, MembershipChange::Same);
            }
            Some(_) | None => self.note(&machine.id, MembershipChange::Possible),
        }
    }

    /// A record was written. The state of a node, and the power of a shelf, decide whether machines
    /// serve.
    pub fn change_record<R: Lifecycle>(&mut self, record: &R) {
        if R::KIND == SubjectKind::Node
            && let Some(machine) = record.seen_by_machine()
        {
            self.note(machine, MembershipChange::Same);
        }
        if record.releases_machines() {
            self.released.insert(record.subject().key());
        }
    }

    pub fn remove_record<R: Lifecycle>(&mut self, record: &R) {
        self.change_record(record);
        if R::KIND == SubjectKind::PowerShelf {
            self.released.insert(record.subject().key());
        }
    }

    /// A run was written. What it has taken is given back when it ends.
    pub fn change_run(&mut self, run: &Run) {
        if run.ended() && !run.spec.run_type.is_routine() {
            self.released.insert(run.spec.id.to_string());
        }
    }
}

impl Tx {
    /// Notes that a machine's row was moved without being decoded.
    pub(crate) fn change_membership_of_row(&mut self, kind: RowKind, id: &str) {
        if kind == RowKind::Machine {
            self.service.change_membership(&MachineId::trusted(id));
        }
    }

    /// The memberships of these machines, locked until the transaction ends.
    pub async fn budget_members_locked(
        &mut self,
        machines: &BTreeSet<MachineId>,
    ) -> Result<Vec<BudgetMember>> {
        self.find_members(machines, "{lock}").await
    }

    /// The memberships of these machines.
    pub async fn budget_members(
        &mut self,
        machines: &BTreeSet<MachineId>,
    ) -> Result<Vec<BudgetMember>> {
        self.find_members(machines, "").await
    }

    async fn find_members(
        &mut self,
        machines: &BTreeSet<MachineId>,
        lock: &str,
    ) -> Result<Vec<BudgetMember>> {
        let sql = format!(
            "SELECT budget_id, domain, machine_id, unavailable FROM budget_members \
             WHERE machine_id {{among $1}} ORDER BY machine_id, budget_id, domain {lock}"
        );
        let sql = self.dialect().fill_placeholders(&sql);
        let rows = self.query(&sql, values![serde_json::to_string(machines)?]).await?;
        rows.iter().map(member).collect()
    }

    /// Counts these domains.
    pub async fn count_domains(
        &mut self,
        domains: &BTreeSet<(BudgetId, String)>,
    ) -> Result<Vec<DomainCount>> {
        let domains: Vec<&(BudgetId, String)> = domains.iter().collect();
        let mut counts = Vec::with_capacity(domains.len());
        for some in domains.chunks(DOMAINS_PER_QUERY) {
            let (mut terms, mut values) = (Vec::new(), Vec::new());
            for (budget, domain) in some {
                let at = values.len();
                terms.push(format!("(d.budget_id = ${} AND d.domain = ${})", at + 1, at + 2));
                values.push(budget.as_str().into());
                values.push(domain.as_str().into());
            }
            let rows = self.query(&count_sql(&terms.join(" OR ")), &values).await?;
            counts.extend(rows.iter().map(count).collect::<Result<Vec<_>>>()?);
        }
        Ok(counts)
    }

    /// Counts all domains of a budget that have machines.
    pub async fn count_budget(&mut self, id: &BudgetId) -> Result<Vec<DomainCount>> {
        let sql = count_sql("d.budget_id = $1 AND d.total > 0");
        let rows = self.query(&sql, values![id.as_str()]).await?;
        rows.iter().map(count).collect()
    }

    /// The first machines of a domain that do not serve, with the reason.
    pub async fn unavailable_members(
        &mut self,
        (budget, domain): (&BudgetId, &str),
        limit: i64,
    ) -> Result<Vec<UnavailableMachine>> {
        let sql = "SELECT machine_id FROM budget_members WHERE budget_id = $1 AND domain = $2 \
                   AND unavailable = 1 ORDER BY machine_id LIMIT $3";
        let rows = self.query(sql, values![budget.as_str(), domain, limit]).await?;
        let ids: Vec<String> =
            rows.iter().map(|row| Ok(row.text(0)?.to_string())).collect::<Result<_>>()?;
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        let found = self.machines_by_ids(&ids).await?.into_iter();
        let machines: Vec<Machine> = found.filter_map(|(_, machine)| machine.ok()).collect();
        let (nodes, takers) = self.nodes_and_takers(&ids).await?;
        let mut unavailable = Vec::with_capacity(machines.len());
        for machine in machines {
            let (node, taker) = (nodes.get(&machine.id), takers.get(&machine.id));
            let why = unavailability(&machine, node.copied(), taker.map(String::as_str));
            let named = why.map(|why| UnavailableMachine { machine: machine.id, why });
            unavailable.extend(named);
        }
        unavailable.sort_by(|a, b| a.machine.cmp(&b.machine));
        Ok(unavailable)
    }

    /// Records that an operation or a power shelf takes machines out of service, until it is
    /// released. Taking a machine again changes nothing.
    pub fn take_machines(&mut self, taker: &str, machines: &BTreeSet<MachineId>) -> Result<()> {
        for machine in machines {
            let sql =
                "INSERT INTO takes (taker, machine_id) VALUES ($1, $2) ON CONFLICT DO NOTHING";
            let values = values![taker, machine.as_str()];
            self.queue_write(Statement::new(sql, values), ExpectedRows::Any)?;
        }
        let sql = "UPDATE budget_members SET unavailable = 1 \
                   WHERE machine_id {among $1} AND unavailable = 0";
        let sql = self.dialect().fill_placeholders(sql);
        let values = values![serde_json::to_string(machines)?];
        self.queue_write(Statement::new(sql, values), ExpectedRows::Any)
    }

    /// The machines, each with whether it is unavailable.
    pub(super) async fn service_of(
        &mut self,
        machines: Vec<Machine>,
    ) -> Result<Vec<(Machine, bool)>> {
        let ids: Vec<&str> = machines.iter().map(|one| one.id.as_str()).collect();
        let (nodes, takers) = self.nodes_and_takers(&ids).await?;
        let service = |machine: Machine| {
            let (node, taker) = (nodes.get(&machine.id), takers.get(&machine.id));
            let why = unavailability(&machine, node.copied(), taker.map(String::as_str));
            (machine, why.is_some())
        };
        Ok(machines.into_iter().map(service).collect())
    }

    /// The states of the live nodes on these machines, and what takes each of them.
    async fn nodes_and_takers(
        &mut self,
        ids: &[&str],
    ) -> Result<(BTreeMap<MachineId, NodeState>, BTreeMap<MachineId, String>)> {
        let ids = serde_json::to_string(ids)?;
        let sql = "SELECT n.machine_id, r.state FROM nodes n JOIN records r ON r.id = n.id \
                   WHERE n.live = 1 AND n.machine_id {among $1}";
        let sql = self.dialect().fill_placeholders(sql);
        let rows = self.query(&sql, values![ids.as_str()]).await?;
        let node = |row: &Row| {
            // A state that only a newer version knows: whether it serves is unknown.
            let state = NodeState::parse(row.text(1)?).unwrap_or(NodeState::Offline);
            Ok((MachineId::trusted(row.text(0)?), state))
        };
        let nodes = rows.iter().map(node).collect::<Result<_>>()?;
        let sql = "SELECT machine_id, MIN(taker) FROM takes WHERE machine_id {among $1} \
                   GROUP BY machine_id";
        let sql = self.dialect().fill_placeholders(sql);
        let rows = self.query(&sql, values![ids]).await?;
        let taker = |row: &Row| Ok((MachineId::trusted(row.text(0)?), row.text(1)?.to_string()));
        Ok((nodes, rows.iter().map(taker).collect::<Result<_>>()?))
    }

    /// Brings the members of the budgets up to date with what the transaction has changed.
    pub(crate) async fn keep_budget_members(&mut self) -> Result<()> {
        let ServiceChanges { mut machines, released, .. } = std::mem::take(&mut self.service);
        for machine in self.release_machines(&released).await? {
            machines.entry(machine).or_insert(MembershipChange::Same);
        }
        if machines.is_empty() {
            return Ok(());
        }
        // The rows are locked before anything is read that decides about them: of two transactions
        // that change the same machine, the second reads what the first has written.
        let changed: BTreeSet<MachineId> = machines.keys().cloned().collect();
        let members = self.budget_members_locked(&changed).await?;
        let rules = match machines.values().any(|change| *change == MembershipChange::Possible) {
            true => self.budget_rules().await?,
            false => Vec::new(),
        };
        if members.is_empty() && rules.is_empty() {
            return Ok(());
        }
        let desired = self.desired_members(&machines, &members, &rules).await?;
        self.write_members(&members, &desired)
    }

    /// Deletes what these take. Returns the machines.
    async fn release_machines(&mut self, takers: &BTreeSet<String>) -> Result<Vec<MachineId>> {
        if takers.is_empty() {
            return Ok(Vec::new());
        }
        let sql = "DELETE FROM takes WHERE taker {among $1} RETURNING machine_id";
        let sql = self.dialect().fill_placeholders(sql);
        let rows = self.query(&sql, values![serde_json::to_string(takers)?]).await?;
        rows.iter().map(|row| Ok(MachineId::trusted(row.text(0)?))).collect()
    }

    /// The memberships that the changed machines should have.
    async fn desired_members(
        &mut self,
        changes: &BTreeMap<MachineId, MembershipChange>,
        members: &[BudgetMember],
        rules: &[BudgetRule],
    ) -> Result<Vec<BudgetMember>> {
        let ids: Vec<&str> = changes.keys().map(MachineId::as_str).collect();
        let mut readable = Vec::new();
        let mut desired = Vec::new();
        for (id, machine) in self.machines_by_ids(&ids).await? {
            match machine {
                Ok(machine) => readable.push(machine),
                // It counts where it did, and whether it serves is unknown.
                Err(StoreError::Corrupt(_)) => {
                    let own = members.iter().filter(|one| one.machine == id);
                    desired
                        .extend(own.map(|one| BudgetMember { unavailable: true, ..one.clone() }));
                }
                Err(error) => return Err(error),
            }
        }
        for (machine, unavailable) in self.service_of(readable).await? {
            let member = |budget: &BudgetId, domain: String| BudgetMember {
                machine: machine.id.clone(),
                budget: budget.clone(),
                domain,
                unavailable,
            };
            if changes.get(&machine.id) == Some(&MembershipChange::Possible) {
                for rule in rules {
                    let domains = rule.domains(&machine).into_iter();
                    desired.extend(domains.map(|domain| member(&rule.id, domain)));
                }
            } else {
                let own = members.iter().filter(|one| one.machine == machine.id);
                desired.extend(own.map(|one| member(&one.budget, one.domain.clone())));
            }
        }
        Ok(desired)
    }

    fn write_members(&mut self, before: &[BudgetMember], after: &[BudgetMember]) -> Result<()> {
        let (before, after) = (by_key(before), by_key(after));
        let mut totals: BTreeMap<(&BudgetId, &str), i64> = BTreeMap::new();
        for ((budget, domain, machine), unavailable) in &after {
            let values =
                values![budget.as_str(), *domain, machine.as_str(), i64::from(*unavailable)];
            let sql = match before.get(&(*budget, *domain, *machine)) {
                Some(known) if known == unavailable => continue,
                Some(_) => {
                    "UPDATE budget_members SET unavailable = $4 \
                     WHERE budget_id = $1 AND domain = $2 AND machine_id = $3"
                }
                None => {
                    *totals.entry((*budget, *domain)).or_default() += 1;
                    "INSERT INTO budget_members (budget_id, domain, machine_id, unavailable) \
                     VALUES ($1, $2, $3, $4)"
                }
            };
            self.queue_write(Statement::new(sql, values), ExpectedRows::One)?;
        }
        for (budget, domain, machine) in before.keys().filter(|key| !after.contains_key(*key)) {
            *totals.entry((*budget, *domain)).or_default() -= 1;
            let sql = "DELETE FROM budget_members \
                       WHERE budget_id = $1 AND domain = $2 AND machine_id = $3";
            let values = values![budget.as_str(), *domain, machine.as_str()];
            self.queue_write(Statement::new(sql, values), ExpectedRows::One)?;
        }
        for ((budget, domain), change) in totals.iter().filter(|(_, change)| **change != 0) {
            let sql = "INSERT INTO budget_domains (budget_id, domain, total) VALUES ($1, $2, $3) \
                       ON CONFLICT (budget_id, domain) \
                       DO UPDATE SET total = budget_domains.total + excluded.total";
            let values = values![budget.as_str(), *domain, *change];
            self.queue_write(Statement::new(sql, values), ExpectedRows::One)?;
        }
        Ok(())
    }
}

/// Whether each member is unavailable, by budget, domain and machine.
fn by_key(all: &[BudgetMember]) -> BTreeMap<(&BudgetId, &str, &MachineId), bool> {
    let keyed = all.iter();
    keyed.map(|one| ((&one.budget, one.domain.as_str(), &one.machine), one.unavailable)).collect()
}

fn count_sql(condition: &str) -> String {
    format!(
        "SELECT d.budget_id, d.domain, d.total, (SELECT COUNT(*) FROM budget_members m \
         WHERE m.budget_id = d.budget_id AND m.domain = d.domain AND m.unavailable = 1) \
         FROM budget_domains d WHERE {condition} ORDER BY d.budget_id, d.domain"
    )
}

fn count(row: &Row) -> Result<DomainCount> {
    Ok(DomainCount {
        budget: BudgetId::trusted(row.text(0)?),
        domain: row.text(1)?.to_string(),
        total: row.int(2)?,
        unavailable: row.int(3)?,
    })
}

fn member(row: &Row) -> Result<BudgetMember> {
    Ok(BudgetMember {
        budget: BudgetId::trusted(row.text(0)?),
        domain: row.text(1)?.to_string(),
        machine: MachineId::trusted(row.text(2)?),
        unavailable: row.int(3)? == 1,
    })
}
