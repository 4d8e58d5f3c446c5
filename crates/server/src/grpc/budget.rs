//! BudgetService: disruption budgets, and how much of them is used.

use super::convert::{expected_version, initiator, time};
use super::page::{List, Page};
use super::status::{OrStatus, refusal_status};
use super::{Answer, GrpcServices};
use engine::budget::{BudgetUpdate, BudgetView, DomainView};
use model::budget::{Budget, FailureDomain, MaxUnavailable, Unavailability, UnavailableMachine};
use model::filter::{Filter, FilterSubject};
use model::id::BudgetId;
use model::refusal::Refusal;
use model::time::Timestamp;
use proto::{FieldMask, v1};
use tonic::{Request, Response};

const LIMIT: &str = "budget.max_unavailable";
const PER: &str = "budget.per";
/// The number of characters of an unknown field that a refusal shows.
const MAX_SHOWN: usize = 63;

#[tonic::async_trait]
impl v1::budget_service_server::BudgetService for GrpcServices {
    async fn create_budget(&self, request: Request<v1::CreateBudgetRequest>) -> Answer<v1::Budget> {
        let call = self.call(&request).await?;
        let by = initiator(request.metadata());
        let v1::CreateBudgetRequest { budget: requested, dry_run } = request.into_inner();
        let requested = requested.ok_or_else(|| refusal_status(Refusal::missing("budget")))?;
        let desired = budget_from(requested).or_status()?;
        let engine = call.engine.with_dry_run(dry_run);
        let created = engine.budgets().create(desired, by).await.or_status()?;
        Ok(Response::new(budget(&created)))
    }

    async fn get_budget(&self, request: Request<v1::GetBudgetRequest>) -> Answer<v1::Budget> {
        let call = self.call(&request).await?;
        let id = BudgetId::parse(&request.get_ref().budget_id).or_status()?;
        let found = call.engine.budgets().get(&id).await.or_status()?;
        Ok(Response::new(budget(&found)))
    }

    async fn list_budgets(
        &self,
        request: Request<v1::ListBudgetsRequest>,
    ) -> Answer<v1::ListBudgetsResponse> {
        let call = self.call(&request).await?;
        let requested = request.into_inner();
        let filter = Filter::parse(&requested.filter, FilterSubject::Budget).or_status()?;
        let stamp = &requested.filter;
        let page = Page::new(List::Budgets, stamp, requested.page_size, &requested.page_token)
            .or_status()?;
        let found = call.engine.budgets().list(filter, page.after(), page.size + 1).await;
        let found = found.or_status()?.items.into_iter();
        let named: Vec<(String, BudgetView)> =
            found.map(|one| (one.budget.id.to_string(), one)).collect();
        let (found, next_page_token) = page.split_page(named, |(id, _)| id);
        let budgets = found.iter().map(|(_, one)| budget(one)).collect();
        Ok(Response::new(v1::ListBudgetsResponse { budgets, next_page_token }))
    }

    async fn update_budget(&self, request: Request<v1::UpdateBudgetRequest>) -> Answer<v1::Budget> {
        let call = self.call(&request).await?;
        let by = initiator(request.metadata());
        let requested = request.into_inner();
        let version = expected_version(requested.expected_version);
        let mask = requested.update_mask.unwrap_or_default();
        let (id, update) = update_from(requested.budget, &mask).or_status()?;
        let engine = call.engine.with_dry_run(requested.dry_run);
        let changed = engine.budgets().update(id, update, version, by).await.or_status()?;
        Ok(Response::new(budget(&changed)))
    }

    async fn delete_budget(&self, request: Request<v1::DeleteBudgetRequest>) -> Answer<v1::Budget> {
        let call = self.call(&request).await?;
        let by = initiator(request.metadata());
        let requested = request.into_inner();
        let id = BudgetId::parse(&requested.budget_id).or_status()?;
        let version = expected_version(requested.expected_version);
        let engine = call.engine.with_dry_run(requested.dry_run);
        let gone = engine.budgets().delete(id, version, by).await.or_status()?;
        Ok(Response::new(budget(&gone)))
    }
}

fn budget_from(requested: v1::Budget) -> Result<Budget, Refusal> {
    Ok(Budget {
        id: BudgetId::parse_field(&requested.budget_id, "budget.budget_id")?,
        max_unavailable: MaxUnavailable::parse(LIMIT, &requested.max_unavailable)?,
        per: FailureDomain::parse(PER, &requested.per)?,
        filter: requested.filter,
        created_at: Timestamp::default(),
        updated_at: Timestamp::default(),
        version: 0,
    })
}

fn update_from(
    requested: Option<v1::Budget>,
    mask: &FieldMask,
) -> Result<(BudgetId, BudgetUpdate), Refusal> {
    let requested = requested.ok_or_else(|| Refusal::missing("budget"))?;
    let id = BudgetId::parse_field(&requested.budget_id, "budget.budget_id")?;
    let v1::Budget { filter, max_unavailable, per, .. } = requested;
    let mut given: Vec<&str> = mask.paths.iter().map(String::as_str).collect();
    if given.is_empty() {
        let named = [("filter", &filter), ("max_unavailable", &max_unavailable), ("per", &per)];
        given = named.iter().filter(|(_, value)| !value.is_empty()).map(|one| one.0).collect();
    }
    if given.is_empty() {
        let instead = "set budget.filter, budget.max_unavailable or budget.per";
        return Err(Refusal::invalid("budget", "changes nothing", instead));
    }
    let mut update = BudgetUpdate::default();
    for name in given {
        match name {
            "filter" => update.filter = Some(filter.clone()),
            "max_unavailable" => {
                update.max_unavailable = Some(MaxUnavailable::parse(LIMIT, &max_unavailable)?);
            }
            "per" => update.per = Some(FailureDomain::parse(PER, &per)?),
            name => {
                let shown: String = name.chars().take(MAX_SHOWN).collect();
                let instead = "name filter, max_unavailable or per";
                return Err(Refusal::invalid("update_mask", format!("names {shown:?}"), instead));
            }
        }
    }
    Ok((id, update))
}

fn budget(view: &BudgetView) -> v1::Budget {
    let BudgetView { budget, domains, domain_count } = view;
    v1::Budget {
        budget_id: budget.id.to_string(),
        filter: budget.filter.clone(),
        max_unavailable: budget.max_unavailable.to_string(),
        per: budget.per.to_string(),
        created_at: Some(time(budget.created_at)),
        updated_at: Some(time(budget.updated_at)),
        version: budget.version,
        domains: domains.iter().map(domain).collect(),
        domain_count: i32::try_from(*domain_count).unwrap_or(i32::MAX),
    }
}

fn domain(one: &DomainView) -> v1::BudgetDomain {
    let count = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    v1::BudgetDomain {
        domain: one.domain.clone(),
        total: count(one.total),
        allowed: count(one.allowed),
        unavailable: count(one.unavailable),
        machines: one.machines.iter().map(unavailable).collect(),
    }
}

fn unavailable(one: &UnavailableMachine) -> v1::UnavailableMachine {
    let taken_by = match &one.why {
        Unavailability::TakenBy(taker) => taker.clone(),
        Unavailability::Phase(_) | Unavailability::Unreachable | Unavailability::Node(_) => {
            String::new()
        }
    };
    v1::UnavailableMachine {
        machine_id: one.machine.to_string(),
        taken_by,
        reason: one.why.to_string(),
    }
}
