//! The HTTP client that the providers share.
//!
//! `endpoint` is the address of a server, `trust` and `certificate` verify its identity,
//! `transport` sends one request, `upload` a request with a large file, `form` encodes parameters,
//! `text` shortens a server's message.

pub(crate) mod certificate;
pub(crate) mod endpoint;
pub(crate) mod form;
pub(crate) mod text;
pub(crate) mod transport;
pub(crate) mod trust;
pub(crate) mod upload;

pub use certificate::Certificate;
pub use endpoint::Endpoint;
pub use trust::{Fingerprint, InvalidFingerprint, Trust};

pub(crate) use endpoint::EndpointError;
pub(crate) use transport::{HttpClient, HttpClientSettings, HttpRequest, HttpResponse, SendError};
pub(crate) use trust::system_authorities;
pub(crate) use upload::FileUpload;

use std::time::Duration;

#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// The time limit until the connection is open, TLS included.
    pub connect: Duration,
    /// From sending a request to the last byte of its response.
    pub answer: Duration,
}

impl Default for Timeouts {
    /// BMCs are slow: some need ten seconds for a firmware inventory.
    fn default() -> Self {
        Self { connect: Duration::from_secs(10), answer: Duration::from_secs(60) }
    }
}
