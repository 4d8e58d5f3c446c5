//! Watches and logs as gRPC streams. A slow client delays only its own stream.

use super::Call;
use super::convert::WatchEvent;
use super::status::{OrStatus, retryable_status};
use engine::watch::{LogStream, Watch, WatchPosition, WatchUpdate, Watched};
use futures_util::stream::{self, Stream, StreamExt, TryStreamExt};
use std::pin::Pin;
use std::time::Duration;
use store::LogLine;
use tonic::{Code, Response, Status};

pub(super) type Streaming<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

fn stopping(resume: &str) -> Status {
    let message = format!("the server is stopping; connect again and resume {resume}");
    retryable_status(Code::Unavailable, STOPPING, message, RECONNECT)
}

/// The reason of a stream that ends because its server stops.
const STOPPING: &str = "SERVER_STOPPING";
/// The delay after which a client should connect again.
const RECONNECT: Duration = Duration::from_secs(1);

impl Call {
    /// Opens a watch after a cursor; empty: with a snapshot.
    pub(super) async fn open_watch<T: Watched>(
        &self,
        filter: &str,
        cursor: &str,
    ) -> Result<Watch<T>, Status> {
        let filter = T::parse_filter(filter).or_status()?;
        let position = match cursor {
            "" => None,
            name => Some(WatchPosition::parse(name).or_status()?),
        };
        self.engine.watch(filter, position).await.or_status()
    }
}

/// The response of a watch. With `bookmark` its first event has only the cursor at which the watch
/// begins.
pub(super) fn watching<T: Watched, M: WatchEvent>(
    begun: Watch<T>,
    bookmark: bool,
    convert: impl Fn(WatchUpdate<T>) -> M + Send + 'static,
) -> Response<Streaming<M>> {
    let cursor = bookmark.then(|| begun.position().to_cursor_text());
    let first = stream::iter(cursor.map(|cursor| Ok(M::bookmark(cursor))));
    Response::new(Box::pin(first.chain(watch(begun, convert))))
}

fn watch<T: Watched, M: Send + 'static>(
    watch: Watch<T>,
    convert: impl Fn(WatchUpdate<T>) -> M + Send + 'static,
) -> Streaming<M> {
    let batches = stream::try_unfold(watch, |mut watch| async move {
        let observed = watch.next().await.or_status()?;
        if observed.is_empty() {
            return Err(stopping("after your last cursor"));
        }
        Ok(Some((stream::iter(observed).map(Ok::<_, Status>), watch)))
    });
    Box::pin(batches.try_flatten().map_ok(convert))
}

pub(super) fn logs<T: Send + 'static>(
    log: LogStream,
    convert: impl Fn(LogLine) -> T + Send + 'static,
) -> Streaming<T> {
    let batches = stream::try_unfold(log, |mut log| async move {
        let lines = log.next().await.or_status()?;
        if lines.is_empty() {
            return if log.is_complete() {
                Ok(None)
            } else {
                Err(stopping("from your last offset"))
            };
        }
        Ok(Some((stream::iter(lines).map(Ok::<_, Status>), log)))
    });
    Box::pin(batches.try_flatten().map_ok(convert))
}
