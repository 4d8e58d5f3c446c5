//! OperationService: the customer's view of runs.

use super::convert::{log_chunk, operation, operation_event};
use super::page::{List, Page, scope, unreadable_rows};
use super::status::{OrStatus, refusal_status};
use super::stream::{self, Streaming};
use super::{Answer, Call, GrpcServices};
use engine::watch::{LogStream, Watch};
use model::filter::FilterSubject;
use model::id::RunId;
use model::order::Selection;
use model::refusal::Refusal;
use model::run::Run;
use proto::v1;
use store::RunPage;
use tonic::{Request, Response, Status};

impl Call {
    /// A page of runs, and the token of the next.
    pub(super) async fn run_page(
        &self,
        list: List,
        (filter, order_by): (&str, &str),
        size: i32,
        token: &str,
    ) -> Result<(RunPage, String), Status> {
        let selected = Selection::parse(filter, order_by, FilterSubject::Run).or_status()?;
        let page = Page::new(list, &scope(filter, selected.order), size, token).or_status()?;
        let found = self.engine.runs().list(selected, page.from.clone(), page.size).await;
        let found = found.or_status()?;
        let next = found.next.as_ref().map(|last| page.token(last)).unwrap_or_default();
        Ok((found, next))
    }

    pub(super) async fn open_run_watch(
        &self,
        filter: &str,
        cursor: &str,
        skip_ended: bool,
    ) -> Result<Watch<Run>, Status> {
        let watch = self.open_watch(filter, cursor).await?;
        Ok(if skip_ended { watch.without_ended() } else { watch })
    }

    pub(super) async fn open_log(
        &self,
        id: &RunId,
        offset: i64,
        no_follow: bool,
    ) -> Result<LogStream, Status> {
        if offset < 0 {
            let instead = "use 0 for the beginning, or the end of the last chunk you saw";
            return Err(refusal_status(Refusal::invalid(
                "offset",
                format!("is {offset}"),
                instead,
            )));
        }
        self.engine.runs().follow_log(id, offset, !no_follow).await.or_status()
    }
}

#[tonic::async_trait]
impl v1::operation_service_server::OperationService for GrpcServices {
    type WatchOperationsStream = Streaming<v1::OperationEvent>;
    type StreamOperationLogsStream = Streaming<v1::LogChunk>;

    async fn get_operation(
        &self,
        request: Request<v1::GetOperationRequest>,
    ) -> Answer<v1::Operation> {
        let call = self.call(&request).await?;
        let id = RunId::parse_field(&request.get_ref().operation_id, "operation_id");
        let found = call.engine.runs().get(&id.or_status()?).await.or_status()?;
        Ok(Response::new(operation(&found)))
    }

    async fn list_operations(
        &self,
        request: Request<v1::ListOperationsRequest>,
    ) -> Answer<v1::ListOperationsResponse> {
        let call = self.call(&request).await?;
        let requested = request.into_inner();
        let (found, next_page_token) = call
            .run_page(
                List::Operations,
                (&requested.filter, &requested.order_by),
                requested.page_size,
                &requested.page_token,
            )
            .await?;
        let operations = found.runs.iter().map(operation).collect();
        let unreadable_rows = unreadable_rows(&found.unreadable);
        Ok(Response::new(v1::ListOperationsResponse {
            operations,
            next_page_token,
            unreadable_rows,
        }))
    }

    async fn watch_operations(
        &self,
        request: Request<v1::WatchOperationsRequest>,
    ) -> Answer<Self::WatchOperationsStream> {
        let call = self.call(&request).await?;
        let requested = request.into_inner();
        let watch =
            call.open_run_watch(&requested.filter, &requested.cursor, requested.skip_ended).await?;
        Ok(stream::watching(watch, requested.bookmark, operation_event))
    }

    async fn stream_operation_logs(
        &self,
        request: Request<v1::StreamOperationLogsRequest>,
    ) -> Answer<Self::StreamOperationLogsStream> {
        let call = self.call(&request).await?;
        let requested = request.into_inner();
        let id = RunId::parse_field(&requested.operation_id, "operation_id").or_status()?;
        let log = call.open_log(&id, requested.offset, requested.no_follow).await?;
        Ok(Response::new(stream::logs(log, move |line| log_chunk(&id, line))))
    }
}
