//! The service for plans.

use crate::Engine;
use model::filter::{Filter, FilterItem};
use model::id::PlanId;
use model::plan::{Plan, built_in};
use model::refusal::{Reason, Refusal};
use model::time::Timestamp;
use store::{Result, Tx, UnreadableRow};

/// Built-in and stored plans.
#[derive(Clone)]
pub struct Plans(pub(crate) Engine);

#[derive(Debug, Clone)]
pub struct PlanPage {
    pub plans: Vec<Plan>,
    pub next: Option<String>,
    /// Rows that were left out.
    pub unreadable: Vec<UnreadableRow>,
}

impl Plans {
    pub async fn get(&self, id: &PlanId) -> Result<Plan> {
        if let Some(plan) = built_in().into_iter().find(|plan| plan.id == *id) {
            return Ok(plan);
        }
        let found = self.0.store().read_one(id.clone(), |id, tx| Box::pin(tx.plan(id))).await?;
        Ok(found.ok_or_else(|| no_plan(id))?)
    }

    /// Built-in and stored plans, ordered by id.
    pub async fn list(&self, filter: &Filter, after: &str, limit: i64) -> Result<PlanPage> {
        let desired = |plan: &Plan| filter.matches(FilterItem::Plan(plan));
        let (mut found, mut unreadable) = (Vec::new(), Vec::new());
        let mut at = after.to_string();
        // The filter is applied here, so stored plans are read until they alone fill the page.
        loop {
            let input = (at.clone(), limit + 1);
            let page =
                self.0.store().scan(input, |(after, limit), tx| Box::pin(tx.plans(after, *limit)));
            let (page, next) = page.await?;
            self.0.store().unreadable().record(&page.unreadable);
            unreadable.extend(page.unreadable);
            found.extend(page.items.into_iter().filter(desired));
            match next {
                Some(next) if found.len() as i64 <= limit => at = next,
                Some(_) | None => break,
            }
        }
        let ours = built_in().into_iter().filter(|plan| plan.id.as_str() > after);
        found.extend(ours.filter(desired));
        found.sort_by(|a, b| a.id.cmp(&b.id));
        let more = found.len() as i64 > limit;
        found.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        let next = found.last().filter(|_| more).map(|plan| plan.id.to_string());
        Ok(PlanPage { plans: found, next, unreadable })
    }

    /// Creates a plan. Idempotent: the same plan returns the existing one.
    pub async fn create(&self, plan: Plan) -> Result<Plan> {
        let input = (plan, self.0.now());
        let written = self.0.store().retry_write("create_plan", input, |(plan, now), tx| {
            Box::pin(create_plan(tx, plan, *now))
        });
        written.await
    }
}

pub(crate) fn no_plan(id: &PlanId) -> Refusal {
    Refusal::not_found("plan", id, "farrier plans")
}

async fn create_plan(tx: &mut Tx, plan: &Plan, now: Timestamp) -> Result<Plan> {
    let built_in = model::plan::built_in().into_iter().find(|one| one.id == plan.id);
    let existing = match built_in {
        Some(built_in) => Some(built_in),
        None => tx.plan(&plan.id).await?,
    };
    match existing {
        None => {
            tx.insert_plan(plan, now).await?;
            Ok(plan.clone())
        }
        Some(existing) if existing.same_work(plan) => Ok(existing),
        Some(existing) => {
            let message =
                format!("plan {} exists and does something else; plans never change", existing.id);
            Err(Refusal::new(Reason::PlanExists, message)
                .next(format!("farrier plan get {}   # then choose a new plan_id", existing.id))
                .into())
        }
    }
}
