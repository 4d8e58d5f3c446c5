//! The body of a stream that ends when its caller loses its rights.

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue};
use http_body::{Body as HttpBody, Frame};
use std::pin::Pin;
use std::task::{Context, Poll};

/// The gRPC code UNAUTHENTICATED.
const UNAUTHENTICATED: &str = "16";

pub(super) struct RevocableBody {
    inner: Body,
    revoked: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// A gRPC stream ends with a status in its trailers.
    grpc: bool,
    ended: bool,
}

impl RevocableBody {
    pub fn new(inner: Body, revoked: Pin<Box<dyn Future<Output = ()> + Send>>, grpc: bool) -> Self {
        Self { inner, revoked, grpc, ended: false }
    }
}

impl HttpBody for RevocableBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        if self.revoked.as_mut().poll(context).is_ready() {
            self.ended = true;
            if !self.grpc {
                return Poll::Ready(None);
            }
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", HeaderValue::from_static(UNAUTHENTICATED));
            let message =
                HeaderValue::from_static("the token or certificate was revoked or has expired");
            trailers.insert("grpc-message", message);
            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
        }
        Pin::new(&mut self.inner).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.ended || self.inner.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.inner.size_hint()
    }
}
