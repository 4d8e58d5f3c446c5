//! RunService: the operator's view of runs, and the actions on them.

use super::convert::{
    AnsweredRun, initiator, log_chunk, overrides_from, request_id_from, run, run_event, who,
};
use super::page::{List, unreadable_rows};
use super::status::OrStatus;
use super::stream::{self, Streaming};
use super::{Answer, Call, GrpcServices};
use engine::admission::{RestartRequest, StartRequest};
use model::gate::{RESTART, machine_run};
use model::id::{MachineId, PlanId, RunId};
use model::plan::RunType;
use model::run::actions::{Action, RestartMode};
use model::text;
use proto::v1;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response};

impl Call {
    async fn act_on_run(
        &self,
        metadata: &MetadataMap,
        requested: ActionFields<'_>,
        action: Action,
    ) -> Answer<v1::Run> {
        let id = RunId::parse(requested.run_id).or_status()?;
        let requester = who(metadata, requested.reason).or_status()?;
        let engine = self.engine.with_dry_run(requested.dry_run);
        let done = engine.runs().act(id, action, requester).await.or_status()?;
        self.run_answer(&done, AnsweredRun { new: false, dry_run: requested.dry_run }).await
    }

    async fn restart_run(
        &self,
        metadata: &MetadataMap,
        requested: ActionFields<'_>,
        (request_id, gate_override): (&str, Option<v1::GateOverride>),
        mode: RestartMode,
    ) -> Answer<v1::Run> {
        let ActionFields { run_id, reason, dry_run } = requested;
        let id = RunId::parse(run_id).or_status()?;
        let request_id = request_id_from(request_id, dry_run).or_status()?;
        let requester = who(metadata, reason).or_status()?;
        let overrides = overrides_from(gate_override, RESTART).or_status()?;
        let restart = RestartRequest { original: id, mode, request_id, overrides };
        let engine = self.engine.with_dry_run(dry_run);
        let started = engine.runs().restart_with(restart, requester).await.or_status()?;
        self.run_answer(&started.run, AnsweredRun { new: started.new, dry_run }).await
    }
}

/// The fields that every action on a run has.
struct ActionFields<'a> {
    run_id: &'a str,
    reason: &'a str,
    dry_run: bool,
}

/// Takes the fields of an action from its request.
macro_rules! action_fields {
    ($requested:expr) => {
        ActionFields {
            run_id: &$requested.run_id,
            reason: &$requested.reason,
            dry_run: $requested.dry_run,
        }
    };
}

#[tonic::async_trait]
impl v1::run_service_server::RunService for GrpcServices {
    type WatchRunsStream = Streaming<v1::RunEvent>;
    type StreamRunLogsStream = Streaming<v1::LogChunk>;

    async fn start_run(&self, request: Request<v1::StartRunRequest>) -> Answer<v1::Run> {
        let call = self.call(&request).await?;
        let initiator = initiator(request.metadata());
        let requested = request.into_inner();
        let dry_run = requested.dry_run;
        let plan_id = match requested.plan_id.as_str() {
            "" => None,
            id => Some(PlanId::parse(id).or_status()?),
        };
        let run_type = RunType::parse_field("type", &requested.r#type).or_status()?;
        let start = StartRequest {
            machine_id: MachineId::parse(&requested.machine_id).or_status()?,
            request_id: request_id_from(&requested.request_id, dry_run).or_status()?,
            run_type,
            plan_id,
            params: requested.params.into_iter().collect(),
            overrides: overrides_from(requested.gate_override, machine_run(run_type))
                .or_status()?,
            initiator,
        };
        let engine = call.engine.with_dry_run(dry_run);
        let started = engine.runs().start(start).await.or_status()?;
        call.run_answer(&started.run, AnsweredRun { new: started.new, dry_run }).await
    }

    async fn get_run(&self, request: Request<v1::GetRunRequest>) -> Answer<v1::Run> {
        let call = self.call(&request).await?;
        let id = RunId::parse(&request.get_ref().run_id).or_status()?;
        let found = call.engine.runs().get(&id).await.or_status()?;
        Ok(Response::new(run(&found)))
    }

    async fn list_runs(
        &self,
        request: Request<v1::ListRunsRequest>,
    ) -> Answer<v1::ListRunsResponse> {
        let call = self.call(&request).await?;
        let requested = request.into_inner();
        let (found, next_page_token) = call
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
        let call = self.call(&request).await?;
        let requested = request.get_ref();
        call.act_on_run(request.metadata(), action_fields!(requested), Action::Cancel).await
    }

    async fn watch_runs(
        &self,
        request: Request<v1::WatchRunsRequest>,
    ) -> Answer<Self::WatchRunsStream> {
        let call = self.call(&request).await?;
        let requested = request.into_inner();
        let watch =
            call.open_run_watch(&requested.filter, &requested.cursor, requested.skip_ended).await?;
        Ok(stream::watching(watch, requested.bookmark, run_event))
    }

    async fn stream_run_logs(
        &self,
        request: Request<v1::StreamRunLogsRequest>,
    ) -> Answer<Self::StreamRunLogsStream> {
        let call = self.call(&request).await?;
        let requested = request.into_inner();
        let id = RunId::parse(&requested.run_id).or_status()?;
        let log = call.open_log(&id, requested.offset, requested.no_follow).await?;
        Ok(Response::new(stream::logs(log, move |line| log_chunk(&id, line))))
    }

    async fn retry_step(&self, request: Request<v1::RetryStepRequest>) -> Answer<v1::Run> {
        let call = self.call(&request).await?;
        let requested = request.get_ref();
        call.act_on_run(request.metadata(), action_fields!(requested), Action::RetryStep).await
    }

    async fn resume_run(&self, request: Request<v1::ResumeRunRequest>) -> Answer<v1::Run> {
        let call = self.call(&request).await?;
        let requested = request.get_ref();
        call.act_on_run(request.metadata(), action_fields!(requested), Action::Resume).await
    }

    async fn rerun(&self, request: Request<v1::RerunRequest>) -> Answer<v1::Run> {
        let call = self.call(&request).await?;
        let requested = request.get_ref();
        let fields = action_fields!(requested);
        let asked = (requested.request_id.as_str(), requested.gate_override.clone());
        call.restart_run(request.metadata(), fields, asked, RestartMode::Rerun).await
    }

    async fn restart_clean(&self, request: Request<v1::RestartCleanRequest>) -> Answer<v1::Run> {
        let call = self.call(&request).await?;
        let requested = request.get_ref();
        let fields = action_fields!(requested);
        let asked = (requested.request_id.as_str(), requested.gate_override.clone());
        call.restart_run(request.metadata(), fields, asked, RestartMode::RestartClean).await
    }

    async fn adopt_observed_state(
        &self,
        request: Request<v1::AdoptObservedStateRequest>,
    ) -> Answer<v1::Run> {
        let call = self.call(&request).await?;
        let requested = request.get_ref();
        call.act_on_run(request.metadata(), action_fields!(requested), Action::Adopt).await
    }

    async fn mark_manual(&self, request: Request<v1::MarkManualRequest>) -> Answer<v1::Run> {
        let call = self.call(&request).await?;
        let requested = request.get_ref();
        text::check_reason("reason", &requested.reason).or_status()?;
        call.act_on_run(request.metadata(), action_fields!(requested), Action::MarkManual).await
    }
}
