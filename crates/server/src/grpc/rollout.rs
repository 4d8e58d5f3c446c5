//! RolloutService: one operation on many machines, in waves.

mod convert;

pub(super) use convert::spec_from;

use super::convert::{expected_version, initiator, request_id_from, who, word_from};
use super::page::{List, Page, scope, unreadable_rows};
use super::status::{OrStatus, refusal_status};
use super::stream::{self, Streaming};
use super::update;
use super::{Answer, GrpcServices};
use engine::rollout::NewRollout;
use model::filter::FilterSubject;
use model::id::{MachineId, RolloutId};
use model::order::Selection;
use model::refusal::Refusal;
use model::rollout::{RolloutRequest, RolloutSpec, TargetState};
use model::run::actions::Requester;
use model::text;
use proto::{Name, v1};
use tonic::{Request, Response};

/// The fields of a rollout that clients may change.
const WRITABLE: &[&str] = &["pace"];

/// A request to a rollout, as its message says it.
struct RolloutCall {
    id: String,
    request: RolloutRequest,
    dry_run: bool,
}

impl GrpcServices {
    async fn change_rollout<T: Name>(
        &self,
        request: &Request<T>,
        change: Result<RolloutCall, Refusal>,
    ) -> Answer<v1::Rollout> {
        let call = self.call(request).await?;
        let RolloutCall { id, request: wanted, dry_run } = change.or_status()?;
        let id = RolloutId::parse(&id).or_status()?;
        let who = Requester { by: initiator(request.metadata()), reason: String::new() };
        let engine = call.engine.with_dry_run(dry_run);
        let changed = engine.rollouts().request(&id, wanted, who).await.or_status()?;
        Ok(Response::new(convert::rollout(&changed)))
    }
}

#[tonic::async_trait]
impl v1::rollout_service_server::RolloutService for GrpcServices {
    type WatchRolloutsStream = Streaming<v1::RolloutEvent>;

    async fn create_rollout(
        &self,
        request: Request<v1::CreateRolloutRequest>,
    ) -> Answer<v1::CreateRolloutResponse> {
        let call = self.call(&request).await?;
        let by = initiator(request.metadata());
        let v1::CreateRolloutRequest { rollout, request_id, dry_run } = request.into_inner();
        let requested = rollout.ok_or_else(|| refusal_status(Refusal::missing("rollout")))?;
        let request_id = match request_id.is_empty() {
            true => call.engine.new_request_id(),
            false => request_id_from(&request_id, dry_run).or_status()?,
        };
        let pace = convert::pace_from(requested.pace.unwrap_or_default()).or_status()?;
        let spec = convert::spec_from(requested.spec.unwrap_or_default()).or_status()?;
        let spec = RolloutSpec { pace, ..spec };
        let new = NewRollout { spec, request_id, by };
        let engine = call.engine.with_dry_run(dry_run);
        let created = engine.rollouts().create(new).await.or_status()?;
        let mut answer = convert::created(&created);
        if let Some(planned) = answer.rollout.as_mut().filter(|_| dry_run) {
            planned.rollout_id.clear();
        }
        Ok(Response::new(answer))
    }

    async fn get_rollout(&self, request: Request<v1::GetRolloutRequest>) -> Answer<v1::Rollout> {
        let call = self.call(&request).await?;
        let id = RolloutId::parse(&request.get_ref().rollout_id).or_status()?;
        let found = call.engine.rollouts().get(&id).await.or_status()?;
        Ok(Response::new(convert::rollout(&found)))
    }

    async fn list_rollouts(
        &self,
        request: Request<v1::ListRolloutsRequest>,
    ) -> Answer<v1::ListRolloutsResponse> {
        let call = self.call(&request).await?;
        let requested = request.into_inner();
        let v1::ListRolloutsRequest { filter, page_size, page_token, order_by } = requested;
        let selected = Selection::parse(&filter, &order_by, FilterSubject::Rollout).or_status()?;
        let scope = scope(&filter, selected.order);
        let page = Page::new(List::Rollouts, &scope, page_size, &page_token).or_status()?;
        let size = usize::try_from(page.size).unwrap_or_default();
        let rollouts = call.engine.rollouts();
        let found = rollouts.list(selected, page.from.clone(), size).await.or_status()?;
        let next_page_token = found.next.map(|last| page.token(&last)).unwrap_or_default();
        let unreadable_rows = unreadable_rows(&found.unreadable);
        let rollouts = found.records.iter().map(convert::rollout).collect();
        Ok(Response::new(v1::ListRolloutsResponse { rollouts, next_page_token, unreadable_rows }))
    }

    async fn list_rollout_targets(
        &self,
        request: Request<v1::ListRolloutTargetsRequest>,
    ) -> Answer<v1::ListRolloutTargetsResponse> {
        let call = self.call(&request).await?;
        let v1::ListRolloutTargetsRequest { rollout_id, state, page_size, page_token } =
            request.into_inner();
        let id = RolloutId::parse(&rollout_id).or_status()?;
        let word = word_from::<v1::RolloutTargetState>("state", state).or_status()?;
        let scope = format!("{id} {}", word.unwrap_or_default());
        let page = Page::new(List::RolloutTargets, &scope, page_size, &page_token).or_status()?;
        let after = page.from.as_ref().and_then(|position| position.parse().ok());
        let state = word.and_then(TargetState::parse);
        let rollouts = call.engine.rollouts();
        let found = rollouts.targets(&id, state, after, page.size + 1).await.or_status()?;
        let found: Vec<_> = found.into_iter().map(|one| (one.position.to_string(), one)).collect();
        let (found, next_page_token) = page.split_page(found, |(position, _)| position);
        let targets = found.iter().map(|(_, one)| convert::target(one)).collect();
        Ok(Response::new(v1::ListRolloutTargetsResponse { targets, next_page_token }))
    }

    async fn update_rollout(
        &self,
        request: Request<v1::UpdateRolloutRequest>,
    ) -> Answer<v1::Rollout> {
        let call = self.call(&request).await?;
        let requester = who(request.metadata(), "").or_status()?;
        let v1::UpdateRolloutRequest { rollout, expected_version: version, update_mask, dry_run } =
            request.into_inner();
        let requested = rollout.ok_or_else(|| refusal_status(Refusal::missing("rollout")))?;
        let id = RolloutId::parse_field(&requested.rollout_id, "rollout.rollout_id").or_status()?;
        let change = update::change(
            requested,
            update_mask,
            WRITABLE,
            convert::rollout,
            |changed: Option<v1::Rollout>| {
                convert::pace_from(changed.and_then(|one| one.pace).unwrap_or_default())
            },
        );
        let version = expected_version(version);
        let engine = call.engine.with_dry_run(dry_run);
        let updated = engine.rollouts().update(&id, change, version, requester).await;
        Ok(Response::new(convert::rollout(&updated.or_status()?)))
    }

    async fn watch_rollouts(
        &self,
        request: Request<v1::WatchRolloutsRequest>,
    ) -> Answer<Self::WatchRolloutsStream> {
        let call = self.call(&request).await?;
        let requested = request.into_inner();
        let watch = call.open_watch(&requested.filter, &requested.cursor).await?;
        Ok(stream::watching(watch, requested.bookmark, convert::event))
    }

    async fn pause_rollout(
        &self,
        request: Request<v1::PauseRolloutRequest>,
    ) -> Answer<v1::Rollout> {
        let v1::PauseRolloutRequest { rollout_id: id, reason, dry_run } = request.get_ref().clone();
        let change = text::check_reason("reason", &reason).map(|reason| RolloutCall {
            id,
            request: RolloutRequest::Pause { reason },
            dry_run,
        });
        self.change_rollout(&request, change).await
    }

    async fn resume_rollout(
        &self,
        request: Request<v1::ResumeRolloutRequest>,
    ) -> Answer<v1::Rollout> {
        let v1::ResumeRolloutRequest { rollout_id: id, dry_run } = request.get_ref().clone();
        let change = RolloutCall { id, request: RolloutRequest::Resume, dry_run };
        self.change_rollout(&request, Ok(change)).await
    }

    async fn abort_rollout(
        &self,
        request: Request<v1::AbortRolloutRequest>,
    ) -> Answer<v1::Rollout> {
        let v1::AbortRolloutRequest { rollout_id: id, cancel_running, reason, dry_run } =
            request.get_ref().clone();
        let change = text::check_reason("reason", &reason).map(|reason| {
            let request = RolloutRequest::Abort { cancel_running, reason };
            RolloutCall { id, request, dry_run }
        });
        self.change_rollout(&request, change).await
    }

    async fn promote_rollout(
        &self,
        request: Request<v1::PromoteRolloutRequest>,
    ) -> Answer<v1::Rollout> {
        let v1::PromoteRolloutRequest { rollout_id: id, dry_run } = request.get_ref().clone();
        let change = RolloutCall { id, request: RolloutRequest::Promote, dry_run };
        self.change_rollout(&request, Ok(change)).await
    }

    async fn retry_rollout_targets(
        &self,
        request: Request<v1::RetryRolloutTargetsRequest>,
    ) -> Answer<v1::Rollout> {
        let v1::RetryRolloutTargetsRequest { rollout_id: id, dry_run } = request.get_ref().clone();
        let change = RolloutCall { id, request: RolloutRequest::RetryFailed, dry_run };
        self.change_rollout(&request, Ok(change)).await
    }

    async fn skip_rollout_target(
        &self,
        request: Request<v1::SkipRolloutTargetRequest>,
    ) -> Answer<v1::Rollout> {
        let call = self.call(&request).await?;
        let v1::SkipRolloutTargetRequest { rollout_id, machine_id, reason, dry_run } =
            request.get_ref().clone();
        let requester = who(request.metadata(), &reason).or_status()?;
        let id = RolloutId::parse(&rollout_id).or_status()?;
        let machine = MachineId::parse(&machine_id).or_status()?;
        let engine = call.engine.with_dry_run(dry_run);
        let changed = engine.rollouts().skip(&id, &machine, requester).await.or_status()?;
        Ok(Response::new(convert::rollout(&changed)))
    }
}
