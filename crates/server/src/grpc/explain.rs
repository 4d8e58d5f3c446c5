//! ExplainService: why an object is in its state, and its history.

use super::convert::time;
use super::page::{List, Page, scope};
use super::status::{OrStatus, refusal_status};
use super::{Answer, GrpcServices};
use model::fault::FaultCode;
use model::filter::{Filter, FilterSubject};
use model::id::ObjectId;
use model::order::ListOrder;
use model::refusal::Refusal;
use model::text;
use proto::{v1, words};
use store::HistoryQuery;
use tonic::{Request, Response};

#[tonic::async_trait]
impl v1::explain_service_server::ExplainService for GrpcServices {
    async fn explain(&self, request: Request<v1::ExplainRequest>) -> Answer<v1::Explanation> {
        let id = ObjectId::parse(&request.get_ref().id).or_status()?;
        let found = self.engine.explain(id.as_str()).await.or_status()?;
        let reported = found.explanation;
        Ok(Response::new(v1::Explanation {
            id: id.to_string(),
            headline: reported.headline,
            waiting_for: reported.waiting_for,
            since: reported.since.map(time),
            normal: reported.normal,
            overdue: reported.overdue,
            held_by: found.claimed_by.unwrap_or_default(),
            failed: reported.failed,
            fault: reported.fault.map(|code| code.as_str().to_string()).unwrap_or_default(),
            next_commands: reported.next_commands,
            run_id: found.run_id.map(|id| id.to_string()).unwrap_or_default(),
            health: reported.health,
            notes: reported.notes,
            degraded_reason: found.degraded_reason.unwrap_or_default(),
            machine_id: found.machine_id.map(|id| id.to_string()).unwrap_or_default(),
        }))
    }

    async fn list_history(
        &self,
        request: Request<v1::ListHistoryRequest>,
    ) -> Answer<v1::ListHistoryResponse> {
        let requested = request.into_inner();
        let id = text::check_history_id("id", &requested.id).or_status()?;
        let filter = Filter::parse(&requested.filter, FilterSubject::History).or_status()?;
        let order = ListOrder::parse(&requested.order_by, FilterSubject::History).or_status()?;
        let stamp = format!("{id} {}", scope(&requested.filter, order));
        let page = Page::new(List::History, &stamp, requested.page_size, &requested.page_token)
            .or_status()?;
        let after = page.from.as_deref().and_then(|from| from.parse().ok());
        let query = HistoryQuery { filter, newest_first: order.is_some(), after };
        let events = self.engine.filtered_history(&id, query, page.size + 1).await;
        let mut events = events.or_status()?;
        let more = events.len() as i64 > page.size;
        events.truncate(usize::try_from(page.size).unwrap_or(usize::MAX));
        let last = events.last().filter(|_| more).map(|event| event.version.to_string());
        let entries = events.into_iter().map(|event| v1::HistoryEntry {
            ts: Some(time(event.ts)),
            object_id: event.object_id,
            version: event.version,
            state: event.state,
            cause: words::value::<v1::HistoryCause>(&event.cause),
            actor: event.actor,
            message: event.message,
            decided_by: event.decided_by,
        });
        Ok(Response::new(v1::ListHistoryResponse {
            entries: entries.collect(),
            next_page_token: last.map(|last| page.token(&last)).unwrap_or_default(),
        }))
    }

    async fn get_fault_page(
        &self,
        request: Request<v1::GetFaultPageRequest>,
    ) -> Answer<v1::FaultPage> {
        let requested = request.into_inner().code;
        let Some(code) = FaultCode::parse(&requested) else {
            let codes: Vec<_> = FaultCode::ALL.iter().map(|code| code.as_str()).collect();
            let shown: String = requested.chars().take(64).collect();
            let problem = format!("{shown:?} is not a fault code");
            let instead = format!("the codes are {}", codes.join(", "));
            return Err(refusal_status(Refusal::invalid("code", problem, instead)));
        };
        Ok(Response::new(v1::FaultPage {
            code: code.as_str().into(),
            class: words::value::<v1::FaultClass>(code.class().as_str()),
            markdown: code.page().into(),
        }))
    }
}
