//! Server-Sent Events that keep open pages current: they report changes and deliver log lines.
//!
//! The connection pulls its stream: a slow browser delays only its own stream, and a closed
//! connection drops it. Every event carries the position at which a new connection resumes. Streams
//! end when the process stops; the browser then reconnects.

use super::wrong::{Page, Wrong};
use super::{Asked, Console, log, read};
use axum::extract::{Path, Query, State};
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use engine::watch::{LogStream, Place, Watch};
use futures_util::stream::{self, Stream, StreamExt};
use maud::Markup;
use model::filter::{Filter, Subject};
use model::id::RunId;
use model::refusal::Refusal;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use store::LogLine;
use tokio::sync::OwnedSemaphorePermit;

/// The interval of keep-alive comments on a quiet stream.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// How long a browser waits before it reconnects.
const RETRY: Duration = Duration::from_secs(2);

/// Changes of all runs, or of those that match a filter.
pub(super) async fn of_changes(
    State(console): State<Console>,
    Query(asked): Query<Asked>,
    headers: HeaderMap,
) -> Page {
    let filter = asked.get("filter").map_or("", String::as_str);
    let filter = Filter::parse(filter, Subject::Run)?;
    let at = console.place(&asked, &headers).await?;
    let permit = console.permit()?;
    let watch = console.engine.watch(filter, Some(at.place.clone())).await?;
    Ok(answer(changes(watch).boxed(), at, permit))
}

/// Changes of one operation, and its log.
pub(super) async fn of_operation(
    State(console): State<Console>,
    Path(id): Path<String>,
    Query(asked): Query<Asked>,
    headers: HeaderMap,
) -> Page {
    let id = RunId::parse_field(&id, "operation_id").map_err(Wrong::unknown)?;
    let filter = Filter::parse(&format!("run_id={id}"), Subject::Run)?;
    let at = console.place(&asked, &headers).await?;
    let permit = console.permit()?;
    let log = console.engine.follow_log(&id, at.offset, true).await?;
    let watch = console.engine.watch(filter, Some(at.place.clone())).await?;
    let both = stream::select(changes(watch), lines(log));
    Ok(answer(both.boxed(), at, permit))
}

/// The position of a page: in the events, and in a log.
#[derive(Debug, Clone, PartialEq, Eq)]
struct At {
    place: Place,
    offset: i64,
}

impl At {
    /// The event id, which the browser sends back when it reconnects.
    fn to_word(&self) -> String {
        format!("{}@{}", self.place.to_word(), self.offset)
    }

    fn parse(word: &str) -> Result<Self, Refusal> {
        let (place, offset) = word.split_once('@').unwrap_or((word, "0"));
        let offset = offset.parse().ok().filter(|offset| *offset >= 0).ok_or_else(|| {
            Refusal::invalid("offset", "is not a place in a log", "use 0 for its beginning")
        })?;
        Ok(Self { place: Place::parse(place)?, offset })
    }
}

impl Console {
    /// Where the browser stopped, where the page was rendered, or now.
    async fn place(&self, asked: &Asked, headers: &HeaderMap) -> Result<At, Wrong> {
        if let Some(last) = headers.get("last-event-id").and_then(|last| last.to_str().ok())
            && !last.is_empty()
        {
            return Ok(At::parse(last)?);
        }
        let after = match asked.get("after") {
            Some(after) => after.clone(),
            None => read::horizon(&self.engine).await?.to_string(),
        };
        let offset = asked.get("offset").map_or("0", String::as_str);
        Ok(At::parse(&format!("{after}@{offset}"))?)
    }

    fn permit(&self) -> Result<OwnedSemaphorePermit, Wrong> {
        Arc::clone(&self.streams).try_acquire_owned().map_err(|_| Wrong::crowded())
    }
}

/// One message of a stream.
enum Bit {
    Changed(Place),
    Log(Vec<LogLine>),
    /// The run has ended and its log is complete.
    End,
    /// The process stops or the database does not answer: the browser reconnects.
    Lost,
}

type Bits = Pin<Box<dyn Stream<Item = Bit> + Send>>;

fn changes(watch: Watch) -> impl Stream<Item = Bit> + Send {
    stream::unfold(Some(watch), |watch| async move {
        let mut watch = watch?;
        match watch.next().await {
            Ok(seen) => match seen.last() {
                Some(last) => Some((Bit::Changed(last.place.clone()), Some(watch))),
                None => Some((Bit::Lost, None)),
            },
            Err(error) => {
                tracing::debug!(%error, "change stream of a console page ended");
                Some((Bit::Lost, None))
            }
        }
    })
}

fn lines(log: LogStream) -> impl Stream<Item = Bit> + Send {
    stream::unfold(Some(log), |log| async move {
        let mut log = log?;
        match log.next().await {
            Ok(lines) if !lines.is_empty() => Some((Bit::Log(lines), Some(log))),
            Ok(_) if log.complete() => Some((Bit::End, None)),
            Ok(_) => Some((Bit::Lost, None)),
            Err(error) => {
                tracing::debug!(%error, "log stream of a console page ended");
                Some((Bit::Lost, None))
            }
        }
    })
}

fn answer(bits: Bits, at: At, permit: OwnedSemaphorePermit) -> Response {
    let hello = Event::default().retry(RETRY).comment("open");
    // The stream owns the permit and releases it when either end drops the stream.
    let told = stream::unfold(Some((bits, at, permit)), |state| async move {
        let (mut bits, mut at, permit) = state?;
        let bit = bits.next().await?;
        let event = tell(bit, &mut at)?;
        Some(match event {
            Told::More(event) => (event, Some((bits, at, permit))),
            Told::Last(event) => (event, None),
        })
    });
    let events = stream::once(async { hello }).chain(told).map(Ok::<_, Infallible>);
    let alive = KeepAlive::new().interval(KEEP_ALIVE).text("alive");
    Sse::new(events).keep_alive(alive).into_response()
}

enum Told {
    More(Event),
    Last(Event),
}

/// The SSE event of a message; none when the stream ends without one.
fn tell(bit: Bit, at: &mut At) -> Option<Told> {
    match bit {
        Bit::Changed(place) => {
            at.place = place;
            Some(Told::More(Event::default().event("changed").id(at.to_word()).data("1")))
        }
        Bit::Log(lines) => {
            if let Some(last) = lines.last() {
                at.offset = last.start + last.data.len() as i64;
            }
            let drawn: String = lines.iter().flat_map(log::rows).map(Markup::into_string).collect();
            Some(Told::More(Event::default().event("log").id(at.to_word()).data(drawn)))
        }
        Bit::End => Some(Told::Last(Event::default().event("end").id(at.to_word()).data("1"))),
        Bit::Lost => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_survives_the_browser() {
        let at = At::parse("12.34@567").unwrap();
        assert_eq!(at.offset, 567);
        assert_eq!(at.to_word(), "12.34@567");
        assert_eq!(At::parse("12.34").unwrap().offset, 0);
        for bad in ["", "x", "12.34@-1", "12.34@x", "@1"] {
            assert!(At::parse(bad).is_err(), "{bad:?}");
        }
    }
}
