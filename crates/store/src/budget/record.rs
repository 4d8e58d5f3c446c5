//! The records of budgets. A change computes all members again, alone: no transaction that changes
//! a member runs meanwhile.

use super::members::DomainCount;
use crate::driver::{Dialect, ExpectedRows, Statement};
use crate::event::NewEvent;
use crate::keyset::KeysetQuery;
use crate::signal::Signal;
use crate::unreadable::Listed;
use crate::value::{Row, Value, values};
use crate::{Result, StoreError, Tx};
use model::budget::{Budget, BudgetRule, FailureDomain, MaxUnavailable};
use model::filter::Filter;
use model::id::BudgetId;
use std::collections::BTreeMap;

const COLUMNS: &str = "id, filter, max_unavailable, per, created_at, updated_at, version";
/// The machines that are read at once while the members are computed.
const PAGE: i64 = 1_000;
/// The members that one statement inserts.
const ROWS_PER_INSERT: usize = 500;

/// The event object id of a budget.
fn object(id: &BudgetId) -> String {
    format!("budget/{id}")
}

impl Tx {
    pub async fn budget(&mut self, id: &BudgetId) -> Result<Option<Budget>> {
        let sql = format!("SELECT {COLUMNS} FROM budgets WHERE id = $1");
        let row = self.query_one(&sql, values![id.as_str()]).await?;
        row.as_ref().map(budget).transpose()
    }

    /// Reads budgets and locks them, in the order of their ids: transactions that take from several
    /// budgets do not deadlock.
    pub async fn budgets_locked(&mut self, ids: &[BudgetId]) -> Result<Vec<Budget>> {
        self.find_budgets(ids, "{lock}").await
    }

    pub async fn budgets_by_ids(&mut self, ids: &[BudgetId]) -> Result<Vec<Budget>> {
        self.find_budgets(ids, "").await
    }

    async fn find_budgets(&mut self, ids: &[BudgetId], lock: &str) -> Result<Vec<Budget>> {
        let sql = format!("SELECT {COLUMNS} FROM budgets WHERE id {{among $1}} ORDER BY id {lock}");
        let sql = self.dialect().fill_placeholders(&sql);
        let rows = self.query(&sql, values![serde_json::to_string(ids)?]).await?;
        rows.iter().map(budget).collect()
    }

    /// One page of the budgets that match, ordered by id.
    pub async fn budgets(
        &mut self,
        filter: &Filter,
        after: &str,
        limit: i64,
    ) -> Result<Listed<Budget>> {
        let query = KeysetQuery {
            sql: format!("SELECT {COLUMNS} FROM budgets WHERE id > $1 ORDER BY id LIMIT $2"),
            after: vec![after.into()],
            fixed: Vec::new(),
            key: &[0],
            kind: None,
            decode: budget,
        };
        self.filtered_items(query, filter, limit).await
    }

    /// All budgets with their filters parsed.
    pub(super) async fn budget_rules(&mut self) -> Result<Vec<BudgetRule>> {
        let rows = self.query(&format!("SELECT {COLUMNS} FROM budgets ORDER BY id"), &[]).await?;
        rows.iter().map(|row| Ok(budget(row)?.rule()?)).collect()
    }

    pub async fn count_budgets(&mut self) -> Result<i64> {
        let row = self.query_one("SELECT COUNT(*) FROM budgets", &[]).await?;
        row.map_or(Ok(0), |row| row.int(0))
    }

    /// Waits for every transaction that changes members, and keeps others from beginning. A
    /// transaction that creates or changes a budget calls it first: it then reads every machine as
    /// it is, and whoever changes a machine later finds the budget.
    pub async fn lock_budgets(&mut self) -> Result<()> {
        match self.dialect() {
            // A write transaction is alone.
            Dialect::Sqlite => Ok(()),
            Dialect::Postgres => {
                self.execute("LOCK TABLE budget_members IN EXCLUSIVE MODE", &[]).await.map(drop)
            }
        }
    }

    /// Inserts a budget with its members and sets its version. The caller has called
    /// [`Tx::lock_budgets`].
    pub async fn insert_budget(
        &mut self,
        one: &mut Budget,
        event: &NewEvent,
    ) -> Result<Vec<DomainCount>> {
        // A deleted budget of the same id has a history that continues.
        one.version = self.last_version(&object(&one.id)).await? + 1;
        let sql = format!("INSERT INTO budgets ({COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6, $7)");
        let values = values![
            one.id.as_str(),
            one.filter.as_str(),
            one.max_unavailable.to_string(),
            one.per.to_string(),
            one.created_at,
            one.updated_at,
            one.version,
        ];
        self.queue_write(Statement::new(sql, values), ExpectedRows::One)?;
        self.append_budget_event(&one.id, one.version, "created", event)?;
        self.fill_budget(one).await
    }

    /// Writes a changed budget with its members and raises its version. A conflict means that
    /// another transaction wrote it first. The caller has called [`Tx::lock_budgets`].
    pub async fn update_budget(
        &mut self,
        one: &mut Budget,
        event: &NewEvent,
    ) -> Result<Vec<DomainCount>> {
        let read_at = one.version;
        one.version += 1;
        let sql = "UPDATE budgets SET filter = $3, max_unavailable = $4, per = $5, \
                   updated_at = $6, version = $7 WHERE id = $1 AND version = $2";
        let values = values![
            one.id.as_str(),
            read_at,
            one.filter.as_str(),
            one.max_unavailable.to_string(),
            one.per.to_string(),
            one.updated_at,
            one.version,
        ];
        self.queue_write(Statement::new(sql, values), ExpectedRows::One)?;
        self.append_budget_event(&one.id, one.version, "changed", event)?;
        self.fill_budget(one).await
    }

    /// Deletes a budget at its version. The caller has called [`Tx::lock_budgets`].
    pub fn delete_budget(&mut self, one: &Budget, event: &NewEvent) -> Result<()> {
        let sql = "DELETE FROM budgets WHERE id = $1 AND version = $2";
        let values = values![one.id.as_str(), one.version];
        self.queue_write(Statement::new(sql, values), ExpectedRows::One)?;
        self.empty_budget(&one.id)?;
        self.append_budget_event(&one.id, one.version + 1, "removed", event)
    }

    fn empty_budget(&mut self, id: &BudgetId) -> Result<()> {
        for table in ["budget_members", "budget_domains"] {
            let sql = format!("DELETE FROM {table} WHERE budget_id = $1");
            self.queue_write(Statement::new(sql, values![id.as_str()]), ExpectedRows::Any)?;
        }
        Ok(())
    }

    /// Computes the members of a budget from all machines.
    async fn fill_budget(&mut self, budget: &Budget) -> Result<Vec<DomainCount>> {
        let rule = budget.rule()?;
        self.empty_budget(&budget.id)?;
        let mut counts: BTreeMap<String, (i64, i64)> = BTreeMap::new();
        let mut after: Option<String> = None;
        loop {
            let page = self.machines(rule.filter(), after.as_deref(), PAGE).await?;
            let mut rows = Vec::new();
            for (machine, unavailable) in self.service_of(page.machines).await? {
                for domain in rule.domains(&machine) {
                    let count = counts.entry(domain.clone()).or_default();
                    *count = (count.0 + 1, count.1 + i64::from(unavailable));
                    rows.push((domain, machine.id.to_string(), unavailable));
                }
            }
            for rows in rows.chunks(ROWS_PER_INSERT) {
                self.insert_members(&budget.id, rows)?;
            }
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        for (domain, (total, _)) in &counts {
            let sql = "INSERT INTO budget_domains (budget_id, domain, total) VALUES ($1, $2, $3)";
            let values = values![budget.id.as_str(), domain.as_str(), *total];
            self.queue_write(Statement::new(sql, values), ExpectedRows::One)?;
        }
        let count = |(domain, (total, unavailable))| DomainCount {
            budget: budget.id.clone(),
            domain,
            total,
            unavailable,
        };
        Ok(counts.into_iter().map(count).collect())
    }

    fn insert_members(&mut self, id: &BudgetId, rows: &[(String, String, bool)]) -> Result<()> {
        let mut values: Vec<Value> = vec![id.as_str().into()];
        let mut places = Vec::with_capacity(rows.len());
        for (domain, machine, unavailable) in rows {
            let at = values.len();
            places.push(format!("($1, ${}, ${}, ${})", at + 1, at + 2, at + 3));
            values.push(domain.as_str().into());
            values.push(machine.as_str().into());
            values.push(i64::from(*unavailable).into());
        }
        let sql = format!(
            "INSERT INTO budget_members (budget_id, domain, machine_id, unavailable) VALUES {}",
            places.join(", ")
        );
        self.queue_write(Statement { sql, values }, ExpectedRows::Any)
    }

    fn append_budget_event(
        &mut self,
        id: &BudgetId,
        version: i64,
        name: &str,
        event: &NewEvent,
    ) -> Result<()> {
        let event = self.object_event("budget", &object(id), version, name, event);
        self.queue_write(event, ExpectedRows::One)?;
        self.signal(Signal::Event);
        Ok(())
    }
}

fn budget(row: &Row) -> Result<Budget> {
    let unknown = |what: &str, text: &str| {
        StoreError::Corrupt(format!("the {what} {text:?} of a budget is unknown"))
    };
    let (limit, per) = (row.text(2)?, row.text(3)?);
    Ok(Budget {
        id: BudgetId::trusted(row.text(0)?),
        filter: row.text(1)?.to_string(),
        max_unavailable: MaxUnavailable::parse("", limit).map_err(|_| unknown("limit", limit))?,
        per: FailureDomain::parse("", per).map_err(|_| unknown("domain", per))?,
        created_at: row.time(4)?,
        updated_at: row.time(5)?,
        version: row.int(6)?,
    })
}
