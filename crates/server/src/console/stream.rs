//! Server-Sent Events that keep open pages current: they report changes and deliver log lines.
//!
//! The connection pulls its stream: a slow browser delays only its own stream, and a closed
//! connection drops it. Every event carries the position at which a new connection resumes. Streams
//! end when the process stops; the browser then reconnects.

use super::error_page::{ErrorPage, PageResult};
use super::{Console, QueryParams, log, queries};
use axum::extract::{Path, Query, State};
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use engine::watch::{LogStream, Watch, WatchPosition};
use futures_util::stream::{self, Stream, StreamExt};
use maud::Markup;
use model::filter::{Filter, FilterSubject};
use model::id::RunId;
use model::refusal::Refusal;
use model::run::Run;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use store::LogLine;
use tokio::sync::OwnedSemaphorePermit;

/// The interval of keep-alive comments on a quiet stream.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// The time that a browser waits before it reconnects.
const RETRY: Duration = Duration::from_secs(2);

/// Changes of all runs, or of those that match a filter.
pub(super) async fn stream_changes(
    State(console): State<Console>,
    Query(requested): Query<QueryParams>,
    headers: HeaderMap,
) -> PageResult {
    let filter = requested.get("filter").map_or("", String::as_str);
    let filter = Filter::parse(filter, FilterSubject::Run)?;
    let at = console.resume_position(&requested, &headers).await?;
    let permit = console.acquire_permit()?;
    let watch = console.engine.runs().watch(filter, Some(at.cursor.clone())).await?;
    Ok(answer(changes(watch).boxed(), at, permit))
}

/// Changes of one operation, and its log.
pub(super) async fn stream_run(
    State(console): State<Console>,
    Path(id): Path<String>,
    Query(requested): Query<QueryParams>,
    headers: HeaderMap,
) -> PageResult {
    let id = RunId::parse_field(&id, "operation_id").map_err(ErrorPage::not_found)?;
    let filter = Filter::parse(&format!("run_id={id}"), FilterSubject::Run)?;
    let at = console.resume_position(&requested, &headers).await?;
    let permit = console.acquire_permit()?;
    let log = console.engine.runs().follow_log(&id, at.offset, true).await?;
    let watch = console.engine.runs().watch(filter, Some(at.cursor.clone())).await?;
    let both = stream::select(changes(watch), lines(log));
    Ok(answer(both.boxed(), at, permit))
}

/// The position of a page: in the events, and in a log.
#[derive(Debug, Clone, PartialEq, Eq)]
struct StreamPosition {
    cursor: WatchPosition,
    offset: i64,
}

impl StreamPosition {
    /// The event id, which the browser sends back when it reconnects.
    fn format(&self) -> String {
        format!("{}@{}", self.cursor.to_cursor_text(), self.offset)
    }

    fn parse(name: &str) -> Result<Self, Refusal> {
        let (position, offset) = name.split_once('@').unwrap_or((name, "0"));
        let offset = offset.parse().ok().filter(|offset| *offset >= 0).ok_or_else(|| {
            Refusal::invalid("offset", "is not a place in a log", "use 0 for its beginning")
        })?;
        Ok(Self { cursor: WatchPosition::parse(position)?, offset })
    }
}

impl Console {
    /// The position where the browser stopped, where the page was rendered, or now.
    async fn resume_position(
        &self,
        requested: &QueryParams,
        headers: &HeaderMap,
    ) -> Result<StreamPosition, ErrorPage> {
        if let Some(last) = headers.get("last-event-id").and_then(|last| last.to_str().ok())
            && !last.is_empty()
        {
            return Ok(StreamPosition::parse(last)?);
        }
        let after = match requested.get("after") {
            Some(after) => after.clone(),
            None => queries::read_horizon(&self.engine).await?.to_string(),
        };
        let offset = requested.get("offset").map_or("0", String::as_str);
        Ok(StreamPosition::parse(&format!("{after}@{offset}"))?)
    }

    fn acquire_permit(&self) -> Result<OwnedSemaphorePermit, ErrorPage> {
        Arc::clone(&self.streams).try_acquire_owned().map_err(|_| ErrorPage::too_many_streams())
    }
}

/// One message of a stream.
enum StreamMessage {
    Changed(WatchPosition),
    Log(Vec<LogLine>),
    /// The run has ended and its log is complete.
    End,
    /// The process stops or the database does not answer: the browser reconnects.
    Lost,
}

type MessageStream = Pin<Box<dyn Stream<Item = StreamMessage> + Send>>;

fn changes(watch: Watch<Run>) -> impl Stream<Item = StreamMessage> + Send {
    stream::unfold(Some(watch), |watch| async move {
        let mut watch = watch?;
        match watch.next().await {
            Ok(observed) => match observed.last() {
                Some(last) => Some((StreamMessage::Changed(last.position.clone()), Some(watch))),
                None => Some((StreamMessage::Lost, None)),
            },
            Err(error) => {
                tracing::debug!(%error, "change stream of a console page ended");
                Some((StreamMessage::Lost, None))
            }
        }
    })
}

fn lines(log: LogStream) -> impl Stream<Item = StreamMessage> + Send {
    stream::unfold(Some(log), |log| async move {
        let mut log = log?;
        match log.next().await {
            Ok(lines) if !lines.is_empty() => Some((StreamMessage::Log(lines), Some(log))),
            Ok(_) if log.is_complete() => Some((StreamMessage::End, None)),
            Ok(_) => Some((StreamMessage::Lost, None)),
            Err(error) => {
                tracing::debug!(%error, "log stream of a console page ended");
                Some((StreamMessage::Lost, None))
            }
        }
    })
}

fn answer(messages: MessageStream, at: StreamPosition, permit: OwnedSemaphorePermit) -> Response {
    let hello = Event::default().retry(RETRY).comment("open");
    // The stream owns the permit and releases it when either end drops the stream.
    let reported = stream::unfold(Some((messages, at, permit)), |state| async move {
        let (mut messages, mut at, permit) = state?;
        let message = messages.next().await?;
        let event = to_event(message, &mut at)?;
        Some(match event {
            SseEvent::More(event) => (event, Some((messages, at, permit))),
            SseEvent::Last(event) => (event, None),
        })
    });
    let events = stream::once(async { hello }).chain(reported).map(Ok::<_, Infallible>);
    let alive = KeepAlive::new().interval(KEEP_ALIVE).text("alive");
    Sse::new(events).keep_alive(alive).into_response()
}

enum SseEvent {
    More(Event),
    Last(Event),
}

/// The SSE event of a message; none when the stream ends without one.
fn to_event(message: StreamMessage, at: &mut StreamPosition) -> Option<SseEvent> {
    match message {
        StreamMessage::Changed(position) => {
            at.cursor = position;
            Some(SseEvent::More(Event::default().event("changed").id(at.format()).data("1")))
        }
        StreamMessage::Log(lines) => {
            if let Some(last) = lines.last() {
                at.offset = last.start + last.data.len() as i64;
            }
            let drawn: String = lines.iter().flat_map(log::rows).map(Markup::into_string).collect();
            Some(SseEvent::More(Event::default().event("log").id(at.format()).data(drawn)))
        }
        StreamMessage::End => {
            Some(SseEvent::Last(Event::default().event("end").id(at.format()).data("1")))
        }
        StreamMessage::Lost => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stream_positions_round_trip() {
        let at = StreamPosition::parse("12.34@567").unwrap();
        assert_eq!(at.offset, 567);
        assert_eq!(at.format(), "12.34@567");
        assert_eq!(StreamPosition::parse("12.34").unwrap().offset, 0);
        for bad in ["", "x", "12.34@-1", "12.34@x", "@1"] {
            assert!(StreamPosition::parse(bad).is_err(), "{bad:?}");
        }
    }
}
