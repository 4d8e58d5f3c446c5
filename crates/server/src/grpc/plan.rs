//! PlanService.

use super::convert::{plan, plan_from};
use super::page::{List, Page, unreadable_rows};
use super::status::{OrStatus, refusal_status};
use super::{Answer, GrpcServices};
use model::filter::{Filter, FilterSubject};
use model::id::PlanId;
use model::refusal::Refusal;
use proto::v1;
use tonic::{Request, Response};

#[tonic::async_trait]
impl v1::plan_service_server::PlanService for GrpcServices {
    async fn get_plan(&self, request: Request<v1::GetPlanRequest>) -> Answer<v1::Plan> {
        let call = self.call(&request).await?;
        let id = PlanId::parse(&request.get_ref().plan_id).or_status()?;
        let found = call.engine.plans().get(&id).await.or_status()?;
        Ok(Response::new(plan(&found)))
    }

    async fn list_plans(
        &self,
        request: Request<v1::ListPlansRequest>,
    ) -> Answer<v1::ListPlansResponse> {
        let call = self.call(&request).await?;
        let requested = request.into_inner();
        let filter = Filter::parse(&requested.filter, FilterSubject::Plan).or_status()?;
        let page =
            Page::new(List::Plans, &requested.filter, requested.page_size, &requested.page_token)
                .or_status()?;
        let after = page.from.as_deref().unwrap_or_default();
        let found = call.engine.plans().list(&filter, after, page.size).await.or_status()?;
        Ok(Response::new(v1::ListPlansResponse {
            plans: found.plans.iter().map(plan).collect(),
            next_page_token: found.next.map(|last| page.token(&last)).unwrap_or_default(),
            unreadable_rows: unreadable_rows(&found.unreadable),
        }))
    }

    async fn create_plan(&self, request: Request<v1::CreatePlanRequest>) -> Answer<v1::Plan> {
        let call = self.call(&request).await?;
        let v1::CreatePlanRequest { plan: requested, dry_run } = request.into_inner();
        let requested = requested.ok_or_else(|| refusal_status(Refusal::missing("plan")))?;
        let desired = plan_from(requested).or_status()?;
        let made = call.engine.with_dry_run(dry_run).plans().create(desired).await.or_status()?;
        Ok(Response::new(plan(&made)))
    }
}
