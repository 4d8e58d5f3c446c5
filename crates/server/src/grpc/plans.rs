//! PlanService.

use super::Doors;
use super::convert::{plan, plan_from};
use super::page::{List, Page};
use super::status::{failed, refused};
use model::filter::{Filter, Subject};
use model::id::PlanId;
use model::refusal::Refusal;
use proto::v1;
use tonic::{Request, Response, Status};

#[tonic::async_trait]
impl v1::plan_service_server::PlanService for Doors {
    async fn get_plan(
        &self,
        request: Request<v1::GetPlanRequest>,
    ) -> Result<Response<v1::Plan>, Status> {
        let id = PlanId::parse(&request.get_ref().plan_id).map_err(refused)?;
        let found = self.engine.plan(&id).await.map_err(failed)?;
        Ok(Response::new(plan(&found)))
    }

    async fn list_plans(
        &self,
        request: Request<v1::ListPlansRequest>,
    ) -> Result<Response<v1::ListPlansResponse>, Status> {
        let asked = request.into_inner();
        let filter = Filter::parse(&asked.filter, Subject::Plan).map_err(refused)?;
        let page = Page::new(List::Plans, &asked.filter, asked.page_size, &asked.page_token)
            .map_err(refused)?;
        let after = page.from.as_deref().unwrap_or_default();
        let found = self.engine.plans(&filter, after, page.size).await.map_err(failed)?;
        Ok(Response::new(v1::ListPlansResponse {
            plans: found.plans.iter().map(plan).collect(),
            next_page_token: found.next.map(|last| page.token(&last)).unwrap_or_default(),
        }))
    }

    async fn create_plan(
        &self,
        request: Request<v1::CreatePlanRequest>,
    ) -> Result<Response<v1::Plan>, Status> {
        let asked = request.into_inner().plan;
        let asked = asked.ok_or_else(|| refused(Refusal::missing("plan")))?;
        let wanted = plan_from(asked).map_err(refused)?;
        let made = self.engine.create_plan(wanted).await.map_err(failed)?;
        Ok(Response::new(plan(&made)))
    }
}
