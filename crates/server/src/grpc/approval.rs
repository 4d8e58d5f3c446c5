//! ApprovalService.

use super::access::{permissions, permissions_from};
use super::convert::time;
use super::page::{List, Page};
use super::status::OrStatus;
use super::{Answer, GrpcServices};
use model::approval::{Approval, ApprovalPolicy};
use model::id::ApprovalId;
use model::time::Timestamp;
use proto::{v1, words};
use std::time::Duration;
use tonic::{Request, Response};

#[tonic::async_trait]
impl v1::approval_service_server::ApprovalService for GrpcServices {
    async fn list_approvals(
        &self,
        request: Request<v1::ListApprovalsRequest>,
    ) -> Answer<v1::ListApprovalsResponse> {
        let call = self.call(&request).await?;
        let v1::ListApprovalsRequest { include_closed, page_size, page_token } =
            request.into_inner();
        let scope = format!("{include_closed}");
        let page = Page::new(List::Approvals, &scope, page_size, &page_token).or_status()?;
        let open = !include_closed;
        let found = call.engine.approvals().list(open, page.from.clone(), page.size + 1).await;
        let (found, now) = (found.or_status()?, call.engine.now());
        let shown = found.iter().map(|one| v1::Approval { plan: Vec::new(), ..approval(one, now) });
        let (approvals, next_page_token) =
            page.split_page(shown.collect(), |one: &v1::Approval| &one.approval_id);
        Ok(Response::new(v1::ListApprovalsResponse { approvals, next_page_token }))
    }

    async fn get_approval(&self, request: Request<v1::GetApprovalRequest>) -> Answer<v1::Approval> {
        let call = self.call(&request).await?;
        let id = ApprovalId::parse(&request.get_ref().approval_id).or_status()?;
        let found = call.engine.approvals().get(&id).await.or_status()?;
        Ok(Response::new(approval(&found, call.engine.now())))
    }

    async fn grant_approval(
        &self,
        request: Request<v1::GrantApprovalRequest>,
    ) -> Answer<v1::Approval> {
        let call = self.call(&request).await?;
        let v1::GrantApprovalRequest { approval_id, comment, dry_run } = request.into_inner();
        let id = ApprovalId::parse(&approval_id).or_status()?;
        let engine = call.engine.with_dry_run(dry_run);
        let done = engine.approvals().grant(id, &comment).await.or_status()?;
        Ok(Response::new(approval(&done, engine.now())))
    }

    async fn deny_approval(
        &self,
        request: Request<v1::DenyApprovalRequest>,
    ) -> Answer<v1::Approval> {
        let call = self.call(&request).await?;
        let v1::DenyApprovalRequest { approval_id, comment, dry_run } = request.into_inner();
        let id = ApprovalId::parse(&approval_id).or_status()?;
        let engine = call.engine.with_dry_run(dry_run);
        let done = engine.approvals().deny(id, &comment).await.or_status()?;
        Ok(Response::new(approval(&done, engine.now())))
    }

    async fn get_approval_policy(
        &self,
        request: Request<v1::GetApprovalPolicyRequest>,
    ) -> Answer<v1::ApprovalPolicy> {
        let call = self.call(&request).await?;
        let found = call.engine.approvals().policy().await.or_status()?;
        Ok(Response::new(policy(found)))
    }

    async fn update_approval_policy(
        &self,
        request: Request<v1::UpdateApprovalPolicyRequest>,
    ) -> Answer<v1::ApprovalPolicy> {
        let call = self.call(&request).await?;
        let v1::UpdateApprovalPolicyRequest { permissions, lifetime_seconds, dry_run } =
            request.into_inner();
        let classes = permissions_from("permissions", &permissions).or_status()?;
        let lifetime = (lifetime_seconds > 0).then(|| Duration::from_secs(lifetime_seconds));
        let new = ApprovalPolicy::parse(classes, lifetime).or_status()?;
        let engine = call.engine.with_dry_run(dry_run);
        Ok(Response::new(policy(engine.approvals().set_policy(new).await.or_status()?)))
    }
}

fn policy(policy: ApprovalPolicy) -> v1::ApprovalPolicy {
    v1::ApprovalPolicy {
        permissions: permissions(policy.classes),
        lifetime_seconds: policy.lifetime.as_secs(),
    }
}

fn approval(approval: &Approval, now: Timestamp) -> v1::Approval {
    v1::Approval {
        approval_id: approval.id.to_string(),
        state: words::value::<v1::ApprovalState>(approval.state(now).as_str()),
        requester: approval.requester.clone(),
        request: approval.request.clone(),
        request_id: approval.request_id.clone(),
        target_ids: approval.targets.clone(),
        permissions: permissions(approval.permissions),
        plan: approval.plan.clone(),
        digest: approval.digest.clone(),
        created_at: Some(time(approval.created_at)),
        expires_at: Some(time(approval.expires_at)),
        decided_by: approval.decided_by.clone(),
        decided_at: approval.decided_at.map(time),
        comment: approval.comment.clone(),
        reason: approval.reason.clone(),
        operation_ids: approval.operations.clone(),
    }
}
