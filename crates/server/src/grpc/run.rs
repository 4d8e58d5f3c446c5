//! RunService: the operator's view of runs, and the actions on them.

use super::convert::{initiator, log_chunk, overrides_from, run, run_event, who};
use super::page::{List, unreadable_rows};
use super::status::OrStatus;
use super::stream::{self, Streaming};
use super::{Answer, GrpcServices};
use engine::admission::StartRequest;
use model::gate::MACHINE_RUN;
use model::id::{MachineId, PlanId, RunId};
use model::plan::RunType;
use model::run::actions::{Action, Requester, RestartMode};
use model::text;
use proto::v1;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response};

impl GrpcServices {
    async fn act_on_run(
        &self,
        metadata: &MetadataMap,
        id: &str,
        reason: &str,
        action: Action,
    ) -> Answer<v1::Run> {
        let id = RunId::parse(id).or_status()?;
        let requester = who(metadata, reason).or_status()?;
        let done = self.engine.runs().act(id, action, requester).await.or_status()?;
        Ok(Response::new(run(&done)))
    }

    async fn restart_run(
        &self,
        id: &str,
        request_id: &str,
        requester: Requester,
        how: RestartMode,
    ) -> Answer<v1::Run> {
        let id = RunId::parse(id).or_status()?;
        let request_id = text::check_request_id(request_id).or_status()?;
        let started =
            self.engine.runs().restart(id, how, request_id, requester).await.or_status()?;
        Ok(Response::new(run(&started.run)))
    }
}

#[tonic::async_trait]
impl v1::run_service_server::RunService for GrpcServices {
    type WatchRunsStream = Streaming<v1::RunEvent>;
    type StreamRunLogsStream = Streaming<v1::LogChunk>;

    async fn start_run(&self, request: Request<v1::StartRunRequest>) -> Answer<v1::Run> {
        let initiator = initiator(request.metadata());
        let requested = request.into_inner();
        let plan_id = match requested.plan_id.as_str() {
            "" => None,
            id => Some(PlanId::parse(id).or_status()?),
        };
        let start = StartRequest {
            machine_id: MachineId::parse(&requested.machine_id).or_status()?,
            request_id: text::check_request_id(&requested.request_id).or_status()?,
            run_type: RunType::parse_field("type", &requested.r#type).or_status()?,
            plan_id,
            params: requested.params.into_iter().collect(),
            overrides: overrides_from(requested.gate_override, MACHINE_RUN).or_status()?,
            initiator,
        };
        let started = self.engine.runs().start(start).await.or_status()?;
        Ok(Response::new(run(&started.run)))
    }

    async fn get_run(&self, request: Request<v1::GetRunRequest>) -> Answer<v1::Run> {
        let id = RunId::parse(&request.get_ref().run_id).or_status()?;
        let found = self.engine.runs().get(&id).await.or_status()?;
        Ok(Response::new(run(&found)))
    }

    async fn list_runs(
        &self,
        request: Request<v1::ListRunsRequest>,
    ) -> Answer<v1::ListRunsResponse> {
        let requested = request.into_inner();
        let (found, next_page_token) = self
            .run_page(
                List::Runs,
                (&requested.filter, &requested.order_by),
                requested.page_size,
                &requested.page_token,
            )
            .await?;
        let runs = found.runs.iter().map(run).collect();
        let unreadable_rows = unreadable_rows(&found.unreadable);
        Ok(Response::new(v1::ListRunsResponse { runs, next_page_token, unreadable_rows }))
    }

    async fn cancel_run(&self, request: Request<v1::CancelRunRequest>) -> Answer<v1::Run> {
        let requested = request.get_ref();
        self.act_on_run(request.metadata(), &requested.run_id, &requested.reason, Action::Cancel)
            .await
    }

    async fn watch_runs(
        &self,
        request: Request<v1::WatchRunsRequest>,
    ) -> Answer<Self::WatchRunsStream> {
        let requested = request.into_inner();
        let watch =
            self.open_run_watch(&requested.filter, &requested.cursor, requested.skip_ended).await?;
        Ok(stream::watching(watch, requested.bookmark, run_event))
    }

    async fn stream_run_logs(
        &self,
        request: Request<v1::StreamRunLogsRequest>,
    ) -> Answer<Self::StreamRunLogsStream> {
        let requested = request.into_inner();
        let id = RunId::parse(&requested.run_id).or_status()?;
        let log = self.open_log(&id, requested.offset, requested.no_follow).await?;
        Ok(Response::new(stream::logs(log, move |line| log_chunk(&id, line))))
    }

    async fn retry_step(&self, request: Request<v1::RetryStepRequest>) -> Answer<v1::Run> {
        let requested = request.get_ref();
        self.act_on_run(request.metadata(), &requested.run_id, &requested.reason, Action::RetryStep)
            .await
    }

    async fn resume_run(&self, request: Request<v1::ResumeRunRequest>) -> Answer<v1::Run> {
        let requested = request.get_ref();
        self.act_on_run(request.metadata(), &requested.run_id, &requested.reason, Action::Resume)
            .await
    }

    async fn rerun(&self, request: Request<v1::RerunRequest>) -> Answer<v1::Run> {
        let requested = request.get_ref();
        let requester = who(request.metadata(), &requested.reason).or_status()?;
        self.restart_run(&requested.run_id, &requested.request_id, requester, RestartMode::Rerun)
            .await
    }

    async fn restart_clean(&self, request: Request<v1::RestartCleanRequest>) -> Answer<v1::Run> {
        let requested = request.get_ref();
        let requester = who(request.metadata(), &requested.reason).or_status()?;
        self.restart_run(
            &requested.run_id,
            &requested.request_id,
            requester,
            RestartMode::RestartClean,
        )
        .await
    }

    async fn adopt_observed_state(
        &self,
        request: Request<v1::AdoptObservedStateRequest>,
    ) -> Answer<v1::Run> {
        let requested = request.get_ref();
        self.act_on_run(request.metadata(), &requested.run_id, &requested.reason, Action::Adopt)
            .await
    }

    async fn mark_manual(&self, request: Request<v1::MarkManualRequest>) -> Answer<v1::Run> {
        let requested = request.get_ref();
        text::check_reason("reason", &requested.reason).or_status()?;
        self.act_on_run(
            request.metadata(),
            &requested.run_id,
            &requested.reason,
            Action::MarkManual,
        )
        .await
    }
}
