//! ExplainService: why an object is in its state, and its history.

use super::convert::time;
use super::page::{List, Page, scope};
use super::status::{OrStatus, refusal_status};
use super::{Answer, GrpcServices};
use engine::AttentionItem;
use model::access::Permission;
use model::fault::FaultCode;
use model::filter::{Filter, FilterSubject};
use model::order::ListOrder;
use model::refusal::Refusal;
use model::text;
use proto::{v1, words};
use store::HistoryQuery;
use tonic::{Request, Response};

/// The most objects in ListAttention.
const MAX_ATTENTION: usize = 100;

#[tonic::async_trait]
impl v1::explain_service_server::ExplainService for GrpcServices {
    async fn explain(&self, request: Request<v1::ExplainRequest>) -> Answer<v1::Explanation> {
        let call = self.call(&request).await?;
        let text = &request.get_ref().id;
        let (id, found) = call.engine.explain_known_as(text).await.or_status()?;
        let reported = found.explanation;
        Ok(Response::new(v1::Explanation {
            id,
            may_be_damaged: reported.may_be_damaged,
            headline: reported.headline,
            waiting_for: reported.waiting_for,
            last_word: reported.last_word,
            requested_by: reported.requested_by,
            last_operation: reported.last_operation,
            refused: reported.refused,
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

    async fn list_attention(
        &self,
        request: Request<v1::ListAttentionRequest>,
    ) -> Answer<v1::ListAttentionResponse> {
        let call = self.call(&request).await?;
        let mut attention =
            call.engine.attention(MAX_ATTENTION, Some(&call.secrets)).await.or_status()?;
        // A caller with rights for a part of the fleet sees its objects and no others.
        if call.caller().grants().everywhere.contains(Permission::View) {
            call.audit_end.list_alarm(&mut attention);
        }
        let more = attention.more || !attention.rest.is_empty();
        let items = attention.items.into_iter().map(attention_item).collect();
        Ok(Response::new(v1::ListAttentionResponse { items, more }))
    }

    async fn list_history(
        &self,
        request: Request<v1::ListHistoryRequest>,
    ) -> Answer<v1::ListHistoryResponse> {
        let call = self.call(&request).await?;
        let requested = request.into_inner();
        let id = match text::check_history_id("id", &requested.id) {
            Ok(id) => id,
            Err(unknown) => {
                let found = call.engine.find_known_as(&requested.id, unknown.into()).await;
                found.or_status()?
            }
        };
        let filter = Filter::parse(&requested.filter, FilterSubject::History).or_status()?;
        let order = ListOrder::parse(&requested.order_by, FilterSubject::History).or_status()?;
        let stamp = format!("{id} {}", scope(&requested.filter, order));
        let page = Page::new(List::History, &stamp, requested.page_size, &requested.page_token)
            .or_status()?;
        let after = page.from.as_deref().and_then(|from| from.parse().ok());
        let query = HistoryQuery { filter, newest_first: order.is_some(), after };
        let events = call.engine.filtered_history(&id, query, page.size + 1).await;
        let mut events = events.or_status()?;
        let more = events.len() as i64 > page.size;
        events.truncate(usize::try_from(page.size).unwrap_or(usize::MAX));
        // The entry about a refused request has no version; the page ends at a stored event.
        let last = events.iter().rfind(|event| event.version > 0).filter(|_| more);
        let last = last.map(|event| event.version.to_string());
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
        self.call(&request).await?;
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

fn attention_item(item: AttentionItem) -> v1::AttentionItem {
    let next_command = item.explained.explanation.next_command().unwrap_or_default().to_string();
    let machine_id = item.explained.machine_id.map(|id| id.to_string()).unwrap_or_default();
    let reported = item.explained.explanation;
    v1::AttentionItem {
        machine_id,
        explains: item.explains.into_iter().map(|one| one.id).collect(),
        id: item.id,
        kind: words::value::<v1::ObjectKind>(item.kind),
        urgency: words::value::<v1::AttentionUrgency>(item.urgency.as_str()),
        headline: reported.headline,
        failed: reported.failed,
        fault: reported.fault.map(|code| code.as_str().to_string()).unwrap_or_default(),
        since: reported.since.map(time),
        next_command,
    }
}
