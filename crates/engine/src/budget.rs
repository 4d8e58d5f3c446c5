//! The records of disruption budgets. Admission asks them; see `admission::budget`.

use crate::Engine;
use crate::admission::event;
use model::budget::{Budget, MAX_BUDGETS, UnavailableMachine};
use model::filter::Filter;
use model::here;
use model::id::BudgetId;
use model::refusal::{Reason, Refusal};
use model::time::Timestamp;
use model::version::check_version;
use store::{Cause, DomainCount, Listed, Result, Tx};

/// The domains that the view of a budget shows, the fullest first. The others are counted.
const MAX_DOMAINS_SHOWN: usize = 200;
/// The unavailable machines that the view of a budget names.
const MAX_MACHINES_SHOWN: usize = 100;

/// A budget and how much of it is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetView {
    pub budget: Budget,
    /// The fullest first.
    pub domains: Vec<DomainView>,
    /// All domains, also those that are not shown.
    pub domain_count: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DomainView {
    pub domain: String,
    pub total: u64,
    pub allowed: u64,
    pub unavailable: u64,
    /// Some of the unavailable machines, with what makes them so.
    pub machines: Vec<UnavailableMachine>,
}

impl DomainView {
    /// How many more may become unavailable.
    pub const fn left(&self) -> u64 {
        self.allowed.saturating_sub(self.unavailable)
    }
}

/// The fields of a budget to change; a field without a value stays.
#[derive(Debug, Clone, Default)]
pub struct BudgetUpdate {
    pub filter: Option<String>,
    pub max_unavailable: Option<model::budget::MaxUnavailable>,
    pub per: Option<model::budget::FailureDomain>,
}

/// The service of the disruption budgets.
#[derive(Clone)]
pub struct Budgets(pub(crate) Engine);

impl Budgets {
    /// Creates a budget. Idempotent. One that allows nothing is refused.
    pub async fn create(&self, budget: Budget, by: String) -> Result<BudgetView> {
        let now = self.0.now();
        let budget = Budget { created_at: now, updated_at: now, ..budget };
        budget.rule()?;
        let input = (budget, by);
        let written = self.0.store().retry_write("create_budget", input, |(budget, by), tx| {
            Box::pin(create(tx, budget, by))
        });
        written.await
    }

    pub async fn get(&self, id: &BudgetId) -> Result<BudgetView> {
        let found = self.0.store().scan(id.clone(), |id, tx| {
            Box::pin(async move {
                let budget = tx.budget(id).await?.ok_or_else(|| no_budget(id))?;
                load_view(tx, budget).await
            })
        });
        found.await
    }

    /// One page of the budgets that match, by id. Each has its fullest domain only.
    pub async fn list(
        &self,
        filter: Filter,
        after: &str,
        limit: i64,
    ) -> Result<Listed<BudgetView>> {
        let input = (filter, after.to_string(), limit);
        let found = self.0.store().scan(input, |(filter, after, limit), tx| {
            Box::pin(async move {
                let found = tx.budgets(filter, after, *limit).await?;
                let mut items = Vec::with_capacity(found.items.len());
                for budget in found.items {
                    let counts = tx.count_budget(&budget.id).await?;
                    let mut view = view(budget, counts);
                    view.domains.truncate(1);
                    items.push(view);
                }
                Ok(Listed { items, unreadable: found.unreadable })
            })
        });
        found.await
    }

    /// The number of budgets, and of those with a domain in which nothing is left.
    pub async fn tally(&self) -> Result<(usize, usize)> {
        let all = self.list(Filter::default(), "", MAX_BUDGETS as i64).await?.items;
        let exhausted = |one: &&BudgetView| one.domains.first().is_some_and(|one| one.left() == 0);
        Ok((all.len(), all.iter().filter(exhausted).count()))
    }

    /// Changes a budget, at this version if one is named. Idempotent.
    pub async fn update(
        &self,
        id: BudgetId,
        update: BudgetUpdate,
        version: Option<i64>,
        by: String,
    ) -> Result<BudgetView> {
        let change = ChangeBudget { id, version, by, now: self.0.now() };
        let input = (change, update);
        let written = self.0.store().retry_write("update_budget", input, |(change, update), tx| {
            Box::pin(change.update(tx, update))
        });
        written.await
    }

    /// Deletes a budget, at this version if one is named.
    pub async fn delete(
        &self,
        id: BudgetId,
        version: Option<i64>,
        by: String,
    ) -> Result<BudgetView> {
        let change = ChangeBudget { id, version, by, now: self.0.now() };
        let written = self
            .0
            .store()
            .retry_write("delete_budget", change, |change, tx| Box::pin(change.delete(tx)));
        written.await
    }
}

fn no_budget(id: &BudgetId) -> Refusal {
    Refusal::not_found("budget", id, "farrier budget list")
}

async fn create(tx: &mut Tx, desired: &Budget, by: &str) -> Result<BudgetView> {
    tx.lock_budgets().await?;
    if let Some(known) = tx.budget(&desired.id).await? {
        if known.same_as(desired) {
            return load_view(tx, known).await;
        }
        return Err(desired.exists_already().into());
    }
    check_budget_count(tx).await?;
    let mut budget = desired.clone();
    let event = event(Cause::Request, by, budget.describe(), here!(), budget.created_at);
    let counts = tx.insert_budget(&mut budget, &event).await?;
    budget.check_allows(&totals(&counts))?;
    load_view(tx, budget).await
}

/// Refuses one budget more than [`MAX_BUDGETS`].
pub(crate) async fn check_budget_count(tx: &mut Tx) -> Result<()> {
    if tx.count_budgets().await? < MAX_BUDGETS as i64 {
        return Ok(());
    }
    let message = format!("there are {MAX_BUDGETS} budgets");
    let refusal = Refusal::new(Reason::TooManyBudgets, message);
    Err(refusal.next("farrier budget list   # delete one that is not needed").into())
}

struct ChangeBudget {
    id: BudgetId,
    version: Option<i64>,
    by: String,
    now: Timestamp,
}

impl ChangeBudget {
    async fn load(&self, tx: &mut Tx) -> Result<Budget> {
        let id = &self.id;
        tx.lock_budgets().await?;
        let found = tx.budget(id).await?.ok_or_else(|| no_budget(id))?;
        let next = format!("farrier budget get {id}");
        check_version(format!("the budget {id}"), found.version, self.version, next)?;
        Ok(found)
    }

    async fn update(&self, tx: &mut Tx, update: &BudgetUpdate) -> Result<BudgetView> {
        let found = self.load(tx).await?;
        let BudgetUpdate { filter, max_unavailable, per } = update.clone();
        let mut after = Budget {
            filter: filter.unwrap_or_else(|| found.filter.clone()),
            max_unavailable: max_unavailable.unwrap_or(found.max_unavailable),
            per: per.unwrap_or_else(|| found.per.clone()),
            updated_at: self.now.max(found.updated_at),
            ..found.clone()
        };
        if after.same_as(&found) {
            return load_view(tx, found).await;
        }
        after.rule()?;
        let message = found.describe_changes(&after);
        let event = event(Cause::Request, &self.by, message, here!(), after.updated_at);
        let counts = tx.update_budget(&mut after, &event).await?;
        after.check_allows(&totals(&counts))?;
        load_view(tx, after).await
    }

    async fn delete(&self, tx: &mut Tx) -> Result<BudgetView> {
        let found = self.load(tx).await?;
        let view = load_view(tx, found).await?;
        let event = event(Cause::Request, &self.by, "deleted".into(), here!(), self.now);
        tx.delete_budget(&view.budget, &event)?;
        Ok(view)
    }
}

pub(crate) fn totals(counts: &[DomainCount]) -> Vec<(String, u64)> {
    let total = |one: &DomainCount| (one.domain.clone(), one.total.try_into().unwrap_or_default());
    counts.iter().map(total).collect()
}

async fn load_view(tx: &mut Tx, budget: Budget) -> Result<BudgetView> {
    let counts = tx.count_budget(&budget.id).await?;
    let mut view = view(budget, counts);
    view.domains.truncate(MAX_DOMAINS_SHOWN);
    let mut room = MAX_MACHINES_SHOWN;
    for domain in view.domains.iter_mut().filter(|one| one.unavailable > 0) {
        if room == 0 {
            break;
        }
        let place = (&view.budget.id, domain.domain.as_str());
        domain.machines = tx.unavailable_members(place, room as i64).await?;
        room = room.saturating_sub(domain.machines.len());
    }
    Ok(view)
}

fn view(budget: Budget, counts: Vec<DomainCount>) -> BudgetView {
    let domain = |count: DomainCount| {
        let total = count.total.try_into().unwrap_or_default();
        DomainView {
            domain: count.domain,
            total,
            allowed: budget.max_unavailable.of(total),
            unavailable: count.unavailable.try_into().unwrap_or_default(),
            machines: Vec::new(),
        }
    };
    let mut domains: Vec<DomainView> = counts.into_iter().map(domain).collect();
    domains.sort_by(|a, b| (a.left(), &a.domain).cmp(&(b.left(), &b.domain)));
    BudgetView { domain_count: domains.len(), domains, budget }
}
