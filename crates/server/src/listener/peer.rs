//! What a listener knows about the sender of a request. Both are extensions of every request.

use rustls::pki_types::CertificateDer;
use std::net::SocketAddr;
use std::sync::Arc;

/// The address of the peer of the connection; behind a proxy, that of the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerAddress(pub SocketAddr);

/// The client certificate of the connection and the certificates that came with it, verified by
/// `client_ca` and `crl`. Absent: the peer has shown none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerCertificates(pub Arc<[CertificateDer<'static>]>);
