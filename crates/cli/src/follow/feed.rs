//! A stream that reconnects.
//!
//! The server may restart during a watch. Each feed keeps its position (a cursor or a byte offset),
//! reconnects with growing pauses, and continues from that position. It runs in the background and
//! sends its messages through a small channel, so that one command can read two feeds.

use crate::client::{Client, is_transport_error};
use proto::v1::{
    GetRunRequest, LogChunk, OperationEvent, RunEvent, StreamRunLogsRequest,
    WatchOperationsRequest, WatchRunsRequest, run::Phase,
};
use std::time::Duration;
use tokio::sync::mpsc;
use tonic::{Code, Response, Status, Streaming};

const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Messages that are not read yet. A slow terminal slows down the feed, not the server.
const BACKLOG: usize = 64;

/// One message of a feed.
#[derive(Debug)]
pub enum News<T> {
    Item(T),
    /// The connection broke; the feed reconnects.
    Lost,
    /// The feed has reconnected.
    Back,
    /// The stream is complete.
    Ended,
    /// The server refused the stream. The feed has ended.
    Failed(Status),
}

/// When a feed waits for an unreachable server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// From the start: the server answered another call a moment ago.
    Always,
    /// Only after the server has answered once on this feed.
    OnceHeard,
}

/// A stream that can be reopened at the position where it stopped.
pub trait Source: Send + 'static {
    type Item: Send + 'static;
    fn open(&mut self) -> impl Future<Output = Result<Streaming<Self::Item>, Status>> + Send;
    /// Moves the position behind this item.
    fn advance(&mut self, item: &Self::Item);
    /// Resets the position after the server refused it. Returns false if there was none.
    fn forget(&mut self) -> bool;
    /// Called when a stream ends without an error: true if it is complete.
    fn finished(&mut self) -> impl Future<Output = Result<bool, Status>> + Send;
}

/// Starts a feed in the background.
pub fn spawn<S: Source>(source: S, patience: Patience) -> mpsc::Receiver<News<S::Item>> {
    let (news, reader) = mpsc::channel(BACKLOG);
    tokio::spawn(run(source, patience, news));
    reader
}

async fn run<S: Source>(mut source: S, patience: Patience, news: mpsc::Sender<News<S::Item>>) {
    let mut pause = FIRST_PAUSE;
    let mut patient = patience == Patience::Always;
    let mut again = false;
    // Returns when the feed has ended or its receiver is dropped.
    loop {
        let (heard, end) = session(&mut source, &news, again).await;
        patient |= heard;
        let last = match end {
            End::Unread => return,
            End::Ended => News::Ended,
            End::Failed(status) => News::Failed(status),
            End::Lost(status) if !patient => News::Failed(status),
            End::Lost(_) => News::Lost,
        };
        let over = !matches!(last, News::Lost);
        if news.send(last).await.is_err() || over {
            return;
        }
        again = true;
        pause = if heard { FIRST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
        tokio::time::sleep(pause).await;
    }
}

/// How one connection ended.
enum End {
    Ended,
    Unread,
    Lost(Status),
    Failed(Status),
}

/// Runs one connection. Returns whether the server answered, and how the connection ended.
async fn session<S: Source>(
    source: &mut S,
    news: &mpsc::Sender<News<S::Item>>,
    again: bool,
) -> (bool, End) {
    let stream = match source.open().await {
        Ok(stream) => stream,
        Err(status) => return (false, judge(source, status)),
    };
    if again && news.send(News::Back).await.is_err() {
        return (true, End::Unread);
    }
    (true, pour(source, stream, news).await)
}

async fn pour<S: Source>(
    source: &mut S,
    mut stream: Streaming<S::Item>,
    news: &mpsc::Sender<News<S::Item>>,
) -> End {
    loop {
        match stream.message().await {
            Ok(Some(item)) => {
                source.advance(&item);
                if news.send(News::Item(item)).await.is_err() {
                    return End::Unread;
                }
            }
            Ok(None) => {
                return match source.finished().await {
                    Ok(true) => End::Ended,
                    Ok(false) => End::Lost(Status::unavailable("the server ended the stream")),
                    Err(status) => judge(source, status),
                };
            }
            Err(status) => return judge(source, status),
        }
    }
}

fn judge<S: Source>(source: &mut S, status: Status) -> End {
    let position_refused = matches!(
        status.code(),
        Code::InvalidArgument | Code::OutOfRange | Code::FailedPrecondition
    );
    if is_passing(&status) || (position_refused && source.forget()) {
        End::Lost(status)
    } else {
        End::Failed(status)
    }
}

/// True for an error that a retry may resolve.
pub fn is_passing(status: &Status) -> bool {
    is_transport_error(status)
        || matches!(status.code(), Code::Unavailable | Code::Cancelled | Code::Aborted)
}

/// The response metadata with the cursor at which a watch starts.
const CURSOR: &str = "farrier-cursor";

/// Stores the start cursor, so that a watch that breaks before its first event loses nothing.
fn opened<T>(cursor: &mut String, answer: Response<Streaming<T>>) -> Streaming<T> {
    if cursor.is_empty()
        && let Some(begins) = answer.metadata().get(CURSOR)
    {
        *cursor = begins.to_str().unwrap_or_default().into();
    }
    answer.into_inner()
}

/// The events of runs.
pub struct RunEvents {
    pub client: Client,
    pub request: WatchRunsRequest,
}

impl Source for RunEvents {
    type Item = RunEvent;

    async fn open(&mut self) -> Result<Streaming<RunEvent>, Status> {
        let answer = self.client.runs().watch_runs(self.request.clone()).await?;
        Ok(opened(&mut self.request.cursor, answer))
    }

    fn advance(&mut self, event: &RunEvent) {
        self.request.cursor.clone_from(&event.cursor);
    }

    fn forget(&mut self) -> bool {
        // After a reset, also show the runs that ended while the client was disconnected.
        self.request.skip_ended = false;
        !std::mem::take(&mut self.request.cursor).is_empty()
    }

    async fn finished(&mut self) -> Result<bool, Status> {
        Ok(false)
    }
}

/// The events of operations.
pub struct OperationEvents {
    pub client: Client,
    pub request: WatchOperationsRequest,
}

impl Source for OperationEvents {
    type Item = OperationEvent;

    async fn open(&mut self) -> Result<Streaming<OperationEvent>, Status> {
        let answer = self.client.operations().watch_operations(self.request.clone()).await?;
        Ok(opened(&mut self.request.cursor, answer))
    }

    fn advance(&mut self, event: &OperationEvent) {
        self.request.cursor.clone_from(&event.cursor);
    }

    fn forget(&mut self) -> bool {
        // After a reset, also show the operations that ended while the client was disconnected.
        self.request.skip_ended = false;
        !std::mem::take(&mut self.request.cursor).is_empty()
    }

    async fn finished(&mut self) -> Result<bool, Status> {
        Ok(false)
    }
}

/// The log of one run.
pub struct RunLog {
    pub client: Client,
    pub run_id: String,
    pub offset: i64,
    pub follow: bool,
}

impl Source for RunLog {
    type Item = LogChunk;

    async fn open(&mut self) -> Result<Streaming<LogChunk>, Status> {
        let request = StreamRunLogsRequest {
            run_id: self.run_id.clone(),
            offset: self.offset,
            no_follow: !self.follow,
        };
        Ok(self.client.runs().stream_run_logs(request).await?.into_inner())
    }

    fn advance(&mut self, chunk: &LogChunk) {
        self.offset = chunk.offset.saturating_add(chunk.data.len() as i64);
    }

    fn forget(&mut self) -> bool {
        false
    }

    /// A server that stops also ends its streams without an error, so this reads the run's phase.
    async fn finished(&mut self) -> Result<bool, Status> {
        if !self.follow {
            return Ok(true);
        }
        let run = self
            .client
            .runs()
            .get_run(GetRunRequest { run_id: self.run_id.clone() })
            .await?
            .into_inner();
        Ok(is_over(run.phase()))
    }
}

/// True for a phase that a run does not leave by itself.
pub fn is_over(phase: Phase) -> bool {
    match phase {
        Phase::Succeeded | Phase::Failed | Phase::Canceled => true,
        Phase::Unspecified | Phase::Pending | Phase::Running => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(cursor: &str) -> RunEvents {
        let client = Client::new("127.0.0.1:1").unwrap();
        RunEvents {
            client,
            request: WatchRunsRequest { cursor: cursor.into(), ..Default::default() },
        }
    }

    #[tokio::test]
    async fn a_refused_cursor_starts_over_but_only_once() {
        let mut source = events("17");
        assert!(matches!(judge(&mut source, Status::out_of_range("too old")), End::Lost(_)));
        assert_eq!(source.request.cursor, "");
        assert!(matches!(judge(&mut source, Status::out_of_range("too old")), End::Failed(_)));
        assert!(matches!(judge(&mut source, Status::unavailable("stopping")), End::Lost(_)));
        assert!(matches!(judge(&mut source, Status::not_found("no such run")), End::Failed(_)));
    }

    #[tokio::test]
    async fn an_absent_server_is_waited_for_only_when_it_was_there() {
        let mut hasty = spawn(events(""), Patience::OnceHeard);
        assert!(matches!(hasty.recv().await, Some(News::Failed(_))));
        let mut patient = spawn(events(""), Patience::Always);
        assert!(matches!(patient.recv().await, Some(News::Lost)));
        assert!(matches!(patient.recv().await, Some(News::Lost)));
    }

    #[tokio::test]
    async fn a_log_remembers_the_byte_behind_its_last() {
        let client = Client::new("127.0.0.1:1").unwrap();
        let mut log = RunLog { client, run_id: "op-1".into(), offset: 0, follow: true };
        log.advance(&LogChunk { offset: 40, data: b"12345".to_vec(), ..Default::default() });
        assert_eq!(log.offset, 45);
    }
}
