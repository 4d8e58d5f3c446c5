//! The fields of watch events that the benchmark reads.
//!
//! The client shares two cores with the server that it measures. These types name a few fields of
//! the real messages and skip the rest, so that decoding an event costs the client as little as
//! possible.

use crate::Outcome;
use crate::fleet::Channel;
use proto::{Timestamp, v1};
use std::time::Duration;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Request, Streaming};

#[derive(Clone, PartialEq, prost::Message)]
pub struct Event {
    #[prost(message, optional, tag = "1")]
    pub ts: Option<Timestamp>,
    #[prost(message, optional, tag = "2")]
    pub run: Option<Run>,
    #[prost(string, tag = "3")]
    pub message: String,
    #[prost(string, tag = "4")]
    pub cursor: String,
    #[prost(bool, tag = "5")]
    pub initial: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Run {
    #[prost(string, tag = "1")]
    pub run_id: String,
    #[prost(int32, tag = "6")]
    pub phase: i32,
    #[prost(message, repeated, tag = "7")]
    pub steps: Vec<Step>,
    #[prost(message, optional, tag = "9")]
    pub created_at: Option<Timestamp>,
    #[prost(message, optional, tag = "11")]
    pub finished_at: Option<Timestamp>,
    #[prost(int64, tag = "17")]
    pub version: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Step {
    #[prost(message, optional, tag = "4")]
    pub started_at: Option<Timestamp>,
}

impl Run {
    pub fn ended(&self) -> bool {
        self.finished_at.is_some()
    }

    pub fn succeeded(&self) -> bool {
        self.phase == v1::run::Phase::Succeeded as i32
    }

    /// From acceptance to the start of the first step, from the server's clock.
    pub fn reaction(&self) -> Option<Duration> {
        let started = self.steps.first()?.started_at.as_ref()?;
        Some(since_1970(started).saturating_sub(since_1970(self.created_at.as_ref()?)))
    }
}

pub fn since_1970(at: &Timestamp) -> Duration {
    let seconds = u64::try_from(at.seconds).unwrap_or_default();
    Duration::new(seconds, u32::try_from(at.nanos).unwrap_or_default())
}

/// Watches runs: the active runs and all later events, or only the events after a cursor.
pub async fn watch(channel: Channel, filter: &str, cursor: &str) -> Outcome<Streaming<Event>> {
    let (filter, cursor) = (filter.into(), cursor.into());
    let requested = v1::WatchRunsRequest { filter, cursor, skip_ended: true, bookmark: false };
    stream(channel, "/farrier.v1.RunService/WatchRuns", requested).await
}

/// Opens a stream of events from the method at `path`.
pub async fn stream<M: prost::Message + 'static>(
    channel: Channel,
    path: &'static str,
    requested: M,
) -> Outcome<Streaming<Event>> {
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await?;
    let codec = tonic_prost::ProstCodec::<M, Event>::default();
    let path = PathAndQuery::from_static(path);
    Ok(grpc.server_streaming(Request::new(requested), path, codec).await?.into_inner())
}
