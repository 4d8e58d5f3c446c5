//! The address and the certificates of the sender of a request. Both are extensions of every
//! request.

use crate::auth::read_identity;
use engine::access::ForeignIdentity;
use rustls::pki_types::CertificateDer;
use std::net::SocketAddr;
use std::sync::Arc;

/// The address of the peer of the connection; behind a proxy, that of the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerAddress(pub SocketAddr);

/// The client certificate of the connection and the certificates that came with it, verified by
/// `client_ca` and `crl`. Absent: the peer has shown none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerCertificates {
    chain: Arc<[CertificateDer<'static>]>,
    /// The identity of the first one, or why it has none.
    identity: Arc<Result<ForeignIdentity, String>>,
}

impl PeerCertificates {
    pub fn new(chain: Arc<[CertificateDer<'static>]>) -> Self {
        let identity = match chain.first() {
            Some(own) => read_identity(own),
            None => Err("is missing".into()),
        };
        Self { chain, identity: Arc::new(identity) }
    }

    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.chain
    }

    /// The error continues a sentence about the certificate.
    pub fn identity(&self) -> Result<&ForeignIdentity, &str> {
        self.identity.as_ref().as_ref().map_err(String::as_str)
    }
}
