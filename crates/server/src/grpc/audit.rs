//! AuditService.

use super::convert::{time, time_from};
use super::page::{List, Page};
use super::status::OrStatus;
use super::{Answer, GrpcServices};
use model::audit::{AuditOutcome, AuditSeal, StoredAuditEntry};
use model::refusal::Refusal;
use proto::{v1, words};
use store::AuditQuery;
use tonic::{Request, Response};

#[tonic::async_trait]
impl v1::audit_service_server::AuditService for GrpcServices {
    async fn list_audit_entries(
        &self,
        request: Request<v1::ListAuditEntriesRequest>,
    ) -> Answer<v1::ListAuditEntriesResponse> {
        let call = self.call(&request).await?;
        let v1::ListAuditEntriesRequest {
            since,
            user,
            object_id,
            page_size,
            page_token,
            after_position,
        } = request.into_inner();
        if let Some(after) = after_position {
            let page = Page::new(List::Audit, "", page_size, "").or_status()?;
            check_chain_page(after, &page_token).or_status()?;
            let since = since.as_ref().map(time_from);
            let query = AuditQuery { since, user, object: object_id };
            let (found, head) =
                call.audit.sealed_after(query, after, page.size).await.or_status()?;
            let last = found.last().and_then(|one| one.sealed.as_ref());
            // A page that is not full has searched the whole chain.
            let last = last.filter(|_| found.len() as i64 == page.size);
            let position = last.map_or(head.position.max(after), |last| last.position);
            let entries = found.into_iter().map(audit_entry).collect();
            let next_page_token = String::new();
            let answer = v1::ListAuditEntriesResponse { entries, next_page_token, position };
            return Ok(Response::new(answer));
        }
        let scope = format!("{since:?} {user} {object_id}");
        let page = Page::new(List::Audit, &scope, page_size, &page_token).or_status()?;
        let since = since.as_ref().map(time_from);
        let query = AuditQuery { since, user, object: object_id };
        let before = page.from.as_ref().and_then(|seq| seq.parse().ok());
        let found = call.audit.list(query, before, page.size + 1).await.or_status()?;
        let mut entries: Vec<v1::AuditEntry> = found.into_iter().map(audit_entry).collect();
        let more = entries.len() as i64 > page.size;
        entries.truncate(usize::try_from(page.size).unwrap_or_default());
        let last = entries.last().filter(|_| more).map(|last| last.sequence.to_string());
        let next_page_token = last.map(|last| page.token(&last)).unwrap_or_default();
        let answer = v1::ListAuditEntriesResponse { entries, next_page_token, position: 0 };
        Ok(Response::new(answer))
    }

    async fn get_audit_status(
        &self,
        request: Request<v1::GetAuditStatusRequest>,
    ) -> Answer<v1::AuditStatus> {
        let call = self.call(&request).await?;
        let v1::GetAuditStatusRequest { checkpoint_position, checkpoint_seal, skip_check } =
            request.into_inner();
        let streams = call.audit_streams.report();
        let cut = call.audit_end.alarm().map(|alarm| alarm.problem);
        if skip_check {
            let (head, unsealed) = call.audit.end().await.or_status()?;
            let problems = cut.into_iter().collect();
            let (position, seal) = (head.position, head.seal);
            let status = v1::AuditStatus { position, seal, unsealed, problems, streams };
            return Ok(Response::new(status));
        }
        let checkpoint = match (checkpoint_position, checkpoint_seal.as_str()) {
            (0, "") => None,
            (1.., seal) if !seal.is_empty() => {
                Some(AuditSeal { position: checkpoint_position, seal: seal.to_string() })
            }
            (_, _) => {
                let instead = "give the position and the seal of an earlier check";
                let problem = "is no checkpoint";
                return Err(Refusal::invalid("checkpoint_position", problem, instead)).or_status();
            }
        };
        let check = call.audit.check(checkpoint).await.or_status()?;
        let head = check.head.unwrap_or(AuditSeal { position: 0, seal: String::new() });
        Ok(Response::new(v1::AuditStatus {
            position: head.position,
            seal: head.seal,
            unsealed: check.unsealed,
            problems: cut.into_iter().chain(check.problems).collect(),
            streams,
        }))
    }
}

fn check_chain_page(after: i64, page_token: &str) -> Result<(), Refusal> {
    if after < 0 {
        let instead = "use 0 for the beginning of the log";
        return Err(Refusal::invalid("after_position", "is negative", instead));
    }
    if !page_token.is_empty() {
        let instead = "leave it out, and set after_position to the position of the answer before";
        return Err(Refusal::invalid("page_token", "does not go with after_position", instead));
    }
    Ok(())
}

/// The entry as the API and the streams show it.
pub(crate) fn audit_entry(stored: StoredAuditEntry) -> v1::AuditEntry {
    let StoredAuditEntry { seq, entry, sealed } = stored;
    let (accepted, refusal_reason, count) = match entry.outcome {
        AuditOutcome::Accepted => (true, String::new(), 1),
        AuditOutcome::Refused { reason, count } => {
            (false, reason, i64::try_from(count).unwrap_or(i64::MAX))
        }
    };
    let (position, seal) = sealed.map(|one| (one.position, one.seal)).unwrap_or_default();
    v1::AuditEntry {
        sequence: seq,
        at: Some(time(entry.at)),
        user: entry.user,
        method: words::value::<v1::AuthMethod>(&entry.method),
        token_id: entry.token_id,
        peer: entry.peer,
        call: entry.call,
        object_ids: entry.objects,
        reference: entry.reference,
        remark: entry.remark,
        accepted,
        refusal_reason,
        count,
        operation_id: entry.operation_id,
        position,
        seal,
    }
}
