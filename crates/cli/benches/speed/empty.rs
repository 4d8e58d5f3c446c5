//! A gRPC server that does nothing, in its own process: the upper limit of the transport on these
//! cores.

use crate::wire::Event;
use crate::{Outcome, fleet, tally, wire};
use std::convert::Infallible;
use std::process::{Child, Command};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::codegen::{Body, BoxFuture, Service, StdError, http};
use tonic::server::{NamedService, ServerStreamingService, UnaryService};
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

/// The option that starts the benchmark program as this server.
pub const OPTION: &str = "--serve-empty";
const CALL: &str = "/bench.Empty/Call";
const WATCH: &str = "/bench.Empty/Watch";
/// About the size of a run event, in bytes.
const EVENT_BYTES: usize = 800;

#[derive(Clone)]
struct Empty;

impl NamedService for Empty {
    const NAME: &'static str = "bench.Empty";
}

impl<B> Service<http::Request<B>> for Empty
where
    B: Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let streamed = request.uri().path() == WATCH;
        Box::pin(async move {
            Ok(if streamed {
                let codec = ProstCodec::<Event, ()>::default();
                tonic::server::Grpc::new(codec).server_streaming(Empty, request).await
            } else {
                let codec = ProstCodec::<(), ()>::default();
                tonic::server::Grpc::new(codec).unary(Empty, request).await
            })
        })
    }
}

impl UnaryService<()> for Empty {
    type Response = ();
    type Future = BoxFuture<Response<()>, Status>;

    fn call(&mut self, _: Request<()>) -> Self::Future {
        Box::pin(async { Ok(Response::new(())) })
    }
}

impl ServerStreamingService<()> for Empty {
    type Response = Event;
    type ResponseStream =
        std::pin::Pin<Box<dyn tokio_stream::Stream<Item = Result<Event, Status>> + Send + 'static>>;
    type Future = BoxFuture<Response<Self::ResponseStream>, Status>;

    fn call(&mut self, _: Request<()>) -> Self::Future {
        let event = Event { message: "x".repeat(EVENT_BYTES), ..Event::default() };
        let endless = tokio_stream::iter(std::iter::repeat_with(move || Ok(event.clone())));
        Box::pin(async { Ok(Response::new(Box::pin(endless) as Self::ResponseStream)) })
    }
}

/// Serves until killed.
pub async fn serve() -> Outcome<()> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("http://{}", listener.local_addr()?);
    Server::builder()
        .tcp_nodelay(true)
        .add_service(Empty)
        .serve_with_incoming(TcpListenerStream::new(listener))
        .await?;
    Ok(())
}

/// The empty server as a child process.
pub struct EmptyServer {
    child: Child,
    url: String,
}

impl EmptyServer {
    pub fn start() -> Outcome<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(OPTION);
        let started = fleet::first_line(command)?;
        let (child, url) = started.ok_or("the empty server did not start")?;
        Ok(Self { child, url })
    }

    /// Measures empty calls with this many clients.
    pub async fn calls(&self, clients: usize, span: Duration) -> Outcome<tally::Tally> {
        let channels = fleet::channels(&self.url, clients, None).await?;
        let each = channels.into_iter().cycle().take(clients).map(|channel| {
            move |_turn| {
                let channel = channel.clone();
                async move { call(channel).await }
            }
        });
        Ok(tally::press_each(each, span).await)
    }

    /// Measures events per second over this many streams, as fast as they can be sent and read.
    pub async fn streamed_per_second(&self, streams: usize, span: Duration) -> Outcome<f64> {
        let channels = fleet::channels(&self.url, streams, None).await?;
        let begun = Instant::now();
        let mut readers = Vec::new();
        for channel in channels.into_iter().cycle().take(streams) {
            let mut stream = wire::stream(channel, WATCH, ()).await?;
            readers.push(tokio::spawn(async move {
                let mut observed = 0_u64;
                while begun.elapsed() < span && stream.message().await?.is_some() {
                    observed += 1;
                }
                Ok::<u64, Status>(observed)
            }));
        }
        let mut observed = 0;
        for reader in readers {
            observed += reader.await??;
        }
        Ok(observed as f64 / begun.elapsed().as_secs_f64())
    }
}

impl Drop for EmptyServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn call(channel: fleet::Channel) -> Outcome<()> {
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await?;
    let path = http::uri::PathAndQuery::from_static(CALL);
    let codec = ProstCodec::<(), ()>::default();
    grpc.unary(Request::new(()), path, codec).await?;
    Ok(())
}
