//! The history of an object, with its last refused request.

use crate::Engine;
use crate::access::Caller;
use model::id::NodeId;
use model::refusal::{Refusal, RefusedRequest};
use store::{Cause, Cursor, Event, HistoryQuery, Result, Tx};

/// The state of the entry about a refused request in a history.
const REFUSED: &str = "refused";

impl Engine {
    /// The history of an object, oldest first, after a version.
    pub async fn history(&self, id: &str, after: i64, limit: i64) -> Result<Vec<Event>> {
        let after = Some(after).filter(|after| *after > 0);
        self.filtered_history(id, HistoryQuery { after, ..HistoryQuery::default() }, limit).await
    }

    /// The entries of an object's history that match.
    pub async fn filtered_history(
        &self,
        id: &str,
        query: HistoryQuery,
        limit: i64,
    ) -> Result<Vec<Event>> {
        let refused = (self.side_facts().refused(id), self.caller().clone());
        let input = (id.to_string(), query, limit, refused);
        let events = self.store().scan(input, |(id, query, limit, (waiting, caller)), tx| {
            Box::pin(history(tx, id, query, *limit, (waiting.clone(), caller)))
        });
        let (mut events, known) = events.await?;
        if !known {
            let (what, list) = match NodeId::parse(id) {
                Ok(_) => ("node", "farrier node list"),
                Err(_) => ("machine or operation", "farrier list"),
            };
            return Err(Refusal::not_found(what, id, list).into());
        }
        self.hide_foreign_ids(id, events.iter_mut().map(|event| &mut event.message)).await?;
        Ok(events)
    }
}

/// The last refused request on an object: `waiting` is not stored yet, and another replica may
/// have stored a later one.
pub(super) fn last_refused(
    stored: Option<RefusedRequest>,
    waiting: Option<RefusedRequest>,
) -> Option<RefusedRequest> {
    stored.into_iter().chain(waiting).max_by_key(|refused| refused.at)
}

/// A page of a history, and whether the object has any.
async fn history(
    tx: &mut Tx,
    id: &str,
    query: &HistoryQuery,
    limit: i64,
    (waiting, caller): (Option<RefusedRequest>, &Caller),
) -> Result<(Vec<Event>, bool)> {
    let mut events = tx.filtered_history(id, query, limit).await?;
    let known = !events.is_empty() || query.after.is_some() || tx.last_version(id).await? > 0;
    // The last refused request changed nothing, so it has no event: it is read beside them.
    let refused = last_refused(tx.refused_request(id).await?, waiting).filter(|_| known);
    let refused = refused.map(|refused| refused_event(id, caller.readable(refused)));
    let refused = refused.filter(|event| query.filter.matches_values(event));
    let is_last_page = (events.len() as i64) < limit;
    match refused {
        Some(event) if query.newest_first && query.after.is_none() => {
            let at = events.partition_point(|one| one.ts > event.ts);
            events.insert(at, event);
        }
        Some(event) if !query.newest_first && is_last_page => {
            let at = events.partition_point(|one| one.ts <= event.ts);
            events.insert(at, event);
        }
        Some(_) | None => {}
    }
    Ok((events, known))
}

/// A refused request as an entry of the object's history. The object kept its version.
fn refused_event(id: &str, refused: RefusedRequest) -> Event {
    let RefusedRequest { at, by, request, reason, message } = refused;
    Event {
        cursor: Cursor::default(),
        ts: at,
        kind: None,
        object_id: id.into(),
        version: 0,
        state: REFUSED.into(),
        cause: Cause::Request.as_str().into(),
        actor: by,
        message: format!("{request} refused: {message} ({reason})"),
        decided_by: String::new(),
        object: None,
    }
}
