//! A stream that reconnects.
//!
//! The server may restart during a watch. Each feed keeps its position (a cursor or a byte offset),
//! reconnects with growing pauses, and continues from that position. It runs in the background and
//! sends its messages through a small channel, so that one command can read two feeds.

use crate::client::{Client, is_transport_error};
use proto::v1::{
    GetRunRequest, LogChunk, MachineEvent, NodeEvent, RackEvent, RolloutEvent, RunEvent,
    StreamRunLogsRequest, WatchChange, WatchMachinesRequest, WatchNodesRequest, WatchRacksRequest,
    WatchRolloutsRequest, WatchRunsRequest, run::Phase,
};
use std::time::Duration;
use tokio::sync::mpsc;
use tonic::{Code, Status, Streaming};

const FIRST_BACKOFF: Duration = Duration::from_millis(200);
const MAX_BACKOFF: Duration = Duration::from_secs(5);
/// Messages that are not read yet. A slow terminal slows down the feed, not the server.
const CHANNEL_CAPACITY: usize = 64;

/// One message of a feed.
#[derive(Debug)]
pub enum FeedMessage<T> {
    Item(T),
    /// The connection broke; the feed reconnects.
    Disconnected,
    /// The feed has reconnected.
    Reconnected,
    /// The stream is complete.
    Ended,
    /// The server refused the stream. The feed has ended.
    Failed(Status),
}

/// The rule by which a feed waits for an unreachable server instead of failing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReconnectPolicy {
    /// From the start: the server answered another call a moment ago.
    Always,
    /// Only after the server has answered once on this feed.
    AfterFirstResponse,
}

/// A stream that can be reopened at the position where it stopped.
pub trait FeedSource: Send + 'static {
    type Item: Send + 'static;
    fn open(&mut self) -> impl Future<Output = Result<Streaming<Self::Item>, Status>> + Send;
    /// Moves the position behind this item.
    fn advance(&mut self, item: &Self::Item);
    /// True for an item that has only a position.
    fn is_bookmark(_item: &Self::Item) -> bool {
        false
    }
    /// Resets the position after the server refused it. Returns false if there was none.
    fn reset_position(&mut self) -> bool;
    /// Called when a stream ends without an error: true if it is complete.
    fn is_complete(&mut self) -> impl Future<Output = Result<bool, Status>> + Send;
}

/// Starts a feed in the background.
pub fn spawn<S: FeedSource>(
    source: S,
    policy: ReconnectPolicy,
) -> mpsc::Receiver<FeedMessage<S::Item>> {
    let (messages, reader) = mpsc::channel(CHANNEL_CAPACITY);
    tokio::spawn(run(source, policy, messages));
    reader
}

async fn run<S: FeedSource>(
    mut source: S,
    policy: ReconnectPolicy,
    messages: mpsc::Sender<FeedMessage<S::Item>>,
) {
    let mut backoff = FIRST_BACKOFF;
    let mut reconnects = policy == ReconnectPolicy::Always;
    let mut reconnecting = false;
    // Returns when the feed has ended or its receiver is dropped.
    loop {
        let (answered, end) = run_session(&mut source, &messages, reconnecting).await;
        reconnects |= answered;
        let last = match end {
            SessionEnd::ReceiverDropped => return,
            SessionEnd::Ended => FeedMessage::Ended,
            SessionEnd::Failed(status) => FeedMessage::Failed(status),
            SessionEnd::Disconnected(status) if !reconnects => FeedMessage::Failed(status),
            SessionEnd::Disconnected(_) => FeedMessage::Disconnected,
        };
        let over = !matches!(last, FeedMessage::Disconnected);
        if messages.send(last).await.is_err() || over {
            return;
        }
        reconnecting = true;
        backoff = if answered { FIRST_BACKOFF } else { (backoff * 2).min(MAX_BACKOFF) };
        tokio::time::sleep(backoff).await;
    }
}

/// The reason why one connection ended.
enum SessionEnd {
    Ended,
    ReceiverDropped,
    Disconnected(Status),
    Failed(Status),
}

/// Runs one connection. Returns whether the server answered, and how the connection ended.
async fn run_session<S: FeedSource>(
    source: &mut S,
    messages: &mpsc::Sender<FeedMessage<S::Item>>,
    reconnecting: bool,
) -> (bool, SessionEnd) {
    let stream = match source.open().await {
        Ok(stream) => stream,
        Err(status) => return (false, classify_error(source, status)),
    };
    if reconnecting && messages.send(FeedMessage::Reconnected).await.is_err() {
        return (true, SessionEnd::ReceiverDropped);
    }
    (true, forward_items(source, stream, messages).await)
}

async fn forward_items<S: FeedSource>(
    source: &mut S,
    mut stream: Streaming<S::Item>,
    messages: &mpsc::Sender<FeedMessage<S::Item>>,
) -> SessionEnd {
    loop {
        match stream.message().await {
            Ok(Some(item)) => {
                source.advance(&item);
                if S::is_bookmark(&item) {
                    continue;
                }
                if messages.send(FeedMessage::Item(item)).await.is_err() {
                    return SessionEnd::ReceiverDropped;
                }
            }
            Ok(None) => {
                return match source.is_complete().await {
                    Ok(true) => SessionEnd::Ended,
                    Ok(false) => {
                        SessionEnd::Disconnected(Status::unavailable("the server ended the stream"))
                    }
                    Err(status) => classify_error(source, status),
                };
            }
            Err(status) => return classify_error(source, status),
        }
    }
}

fn classify_error<S: FeedSource>(source: &mut S, status: Status) -> SessionEnd {
    let position_refused = matches!(
        status.code(),
        Code::InvalidArgument | Code::OutOfRange | Code::FailedPrecondition
    );
    if is_transient(&status) || (position_refused && source.reset_position()) {
        SessionEnd::Disconnected(status)
    } else {
        SessionEnd::Failed(status)
    }
}

/// True for an error that a retry may resolve.
pub fn is_transient(status: &Status) -> bool {
    is_transport_error(status)
        || matches!(status.code(), Code::Unavailable | Code::Cancelled | Code::Aborted)
}

/// A feed of events that continues after the cursor of its request.
macro_rules! event_source {
    ($doc:literal, $name:ident, $request:ty, $event:ty, $service:ident, $watch:ident
     $(, after reset: $field:ident = $value:expr)?) => {
        #[doc = $doc]
        pub struct $name {
            pub client: Client,
            pub request: $request,
        }

        impl FeedSource for $name {
            type Item = $event;

            async fn open(&mut self) -> Result<Streaming<$event>, Status> {
                // A watch that breaks before its first event loses nothing.
                self.request.bookmark = true;
                Ok(self.client.$service().$watch(self.request.clone()).await?.into_inner())
            }

            fn advance(&mut self, event: &$event) {
                self.request.cursor.clone_from(&event.cursor);
            }

            fn is_bookmark(event: &$event) -> bool {
                event.change() == WatchChange::Bookmark
            }

            fn reset_position(&mut self) -> bool {
                $(self.request.$field = $value;)?
                !std::mem::take(&mut self.request.cursor).is_empty()
            }

            async fn is_complete(&mut self) -> Result<bool, Status> {
                Ok(false)
            }
        }
    };
}

// After a reset, also show what ended while the client was disconnected.
event_source!(
    "The events of runs.",
    RunEventSource,
    WatchRunsRequest,
    RunEvent,
    runs,
    watch_runs,
    after reset: skip_ended = false
);
event_source!(
    "The events of machines.",
    MachineEventSource,
    WatchMachinesRequest,
    MachineEvent,
    machines,
    watch_machines
);
event_source!(
    "The events of racks.",
    RackEventSource,
    WatchRacksRequest,
    RackEvent,
    racks,
    watch_racks
);
event_source!(
    "The events of nodes.",
    NodeEventSource,
    WatchNodesRequest,
    NodeEvent,
    nodes,
    watch_nodes
);

event_source!(
    "The events of rollouts.",
    RolloutEventSource,
    WatchRolloutsRequest,
    RolloutEvent,
    rollouts,
    watch_rollouts
);

/// The log of one run.
pub struct RunLogSource {
    pub client: Client,
    pub run_id: String,
    pub offset: i64,
    pub follow: bool,
}

impl FeedSource for RunLogSource {
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

    fn reset_position(&mut self) -> bool {
        false
    }

    /// A server that stops also ends its streams without an error, so this reads the run's phase.
    async fn is_complete(&mut self) -> Result<bool, Status> {
        if !self.follow {
            return Ok(true);
        }
        let run = self
            .client
            .runs()
            .get_run(GetRunRequest { run_id: self.run_id.clone() })
            .await?
            .into_inner();
        Ok(is_terminal(run.phase()))
    }
}

/// True for a phase that a run does not leave by itself.
pub fn is_terminal(phase: Phase) -> bool {
    match phase {
        Phase::Succeeded | Phase::Failed | Phase::Canceled => true,
        Phase::Unspecified | Phase::Pending | Phase::Running => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::ClientTlsArgs;

    fn events(cursor: &str) -> RunEventSource {
        let client = Client::new("127.0.0.1:1", &ClientTlsArgs::default()).unwrap();
        RunEventSource {
            client,
            request: WatchRunsRequest { cursor: cursor.into(), ..Default::default() },
        }
    }

    #[tokio::test]
    async fn a_refused_cursor_starts_over_but_only_once() {
        let mut source = events("17");
        assert!(matches!(
            classify_error(&mut source, Status::out_of_range("too old")),
            SessionEnd::Disconnected(_)
        ));
        assert_eq!(source.request.cursor, "");
        assert!(matches!(
            classify_error(&mut source, Status::out_of_range("too old")),
            SessionEnd::Failed(_)
        ));
        assert!(matches!(
            classify_error(&mut source, Status::unavailable("stopping")),
            SessionEnd::Disconnected(_)
        ));
        assert!(matches!(
            classify_error(&mut source, Status::not_found("no such run")),
            SessionEnd::Failed(_)
        ));
    }

    #[tokio::test]
    async fn an_absent_server_is_waited_for_only_when_it_was_there() {
        let mut hasty = spawn(events(""), ReconnectPolicy::AfterFirstResponse);
        assert!(matches!(hasty.recv().await, Some(FeedMessage::Failed(_))));
        let mut reconnects = spawn(events(""), ReconnectPolicy::Always);
        assert!(matches!(reconnects.recv().await, Some(FeedMessage::Disconnected)));
        assert!(matches!(reconnects.recv().await, Some(FeedMessage::Disconnected)));
    }

    #[tokio::test]
    async fn a_log_remembers_the_byte_behind_its_last() {
        let client = Client::new("127.0.0.1:1", &ClientTlsArgs::default()).unwrap();
        let mut log = RunLogSource { client, run_id: "op-1".into(), offset: 0, follow: true };
        log.advance(&LogChunk { offset: 40, data: b"12345".to_vec(), ..Default::default() });
        assert_eq!(log.offset, 45);
    }
}
