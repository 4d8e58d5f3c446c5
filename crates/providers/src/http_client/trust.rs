//! Verification of a server's identity.
//!
//! The operator chooses a certificate authority, one pinned certificate, or trust on first use. In
//! each mode the server must prove that it has the certificate's key before a request is sent. The
//! certificate is kept, so that the caller can pin it and a fault can name it.

use super::certificate::Certificate;
use super::endpoint::Endpoint;
use model::fault::{Fault, FaultCode, Result};
use ring::digest::{SHA256, digest};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, ring as ring_provider, verify_tls12_signature,
    verify_tls13_signature,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};
use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

const PREFIX: &str = "sha256:";
const BYTES: usize = 32;
/// TLS session tickets that are kept, for the next two connections.
const MAX_SESSION_TICKETS: usize = 2;

/// The SHA-256 of a certificate, shown as `sha256:` and hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; BYTES]);

/// The text is not a fingerprint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidFingerprint;

#[derive(Debug, Clone)]
pub enum Trust {
    /// Its certificate is signed by one of these, is valid now, and is for its name or address.
    Ca(Vec<CertificateDer<'static>>),
    /// It has exactly this certificate, whatever its issuer and validity.
    Pinned(Fingerprint),
    /// It has the certificate that was pinned at the first connection; `None` before that.
    FirstUse(Option<Fingerprint>),
}

impl Fingerprint {
    pub(crate) fn of_bytes(certificate: &[u8]) -> Self {
        let mut bytes = [0; BYTES];
        bytes.copy_from_slice(digest(&SHA256, certificate).as_ref());
        Self(bytes)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Fingerprint {
    type Err = InvalidFingerprint;

    /// Accepts the `Display` form, capitals, and colons between the bytes.
    fn from_str(text: &str) -> Result<Self, InvalidFingerprint> {
        let text = text.trim().to_ascii_lowercase();
        let digits = text.strip_prefix(PREFIX).unwrap_or(&text).replace(':', "");
        let all_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        if digits.len() != 2 * BYTES || !all_hex {
            return Err(InvalidFingerprint);
        }
        let mut bytes = [0; BYTES];
        for (byte, at) in bytes.iter_mut().zip((0..).step_by(2)) {
            *byte = u8::from_str_radix(&digits[at..at + 2], 16).map_err(|_| InvalidFingerprint)?;
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for InvalidFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a fingerprint is {PREFIX} and {} hexadecimal digits", 2 * BYTES)
    }
}

impl std::error::Error for InvalidFingerprint {}

impl Trust {
    /// Trusts the certificate authorities in a PEM file.
    pub fn ca_from_pem(pem: &[u8]) -> Result<Self> {
        let unreadable = |why: &str| {
            let message = format!("The authority's certificates cannot be read as PEM: {why}");
            Fault::new(FaultCode::IdentityUntrusted, message)
        };
        let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem)
            .collect::<Result<_, _>>()
            .map_err(|error| unreadable(&error.to_string()))?;
        if certificates.is_empty() {
            return Err(unreadable("there is none in it"));
        }
        Ok(Self::Ca(certificates))
    }
}

/// The authorities of this host that can be read.
pub(crate) fn system_authorities() -> Vec<CertificateDer<'static>> {
    let found = rustls_native_certs::load_native_certs().certs;
    found.into_iter().filter(|one| RootCertStore::empty().add(one.clone()).is_ok()).collect()
}

#[derive(Debug)]
enum TrustRule {
    Authority(Arc<WebPkiServerVerifier>),
    Pinned(Fingerprint),
    FirstUse,
}

/// Verifies the certificates of one server.
#[derive(Debug)]
pub(crate) struct CertificateVerifier {
    rule: TrustRule,
    algorithms: WebPkiSupportedAlgorithms,
    /// The certificate for trust on first use: pinned before, or of the first completed handshake.
    known: OnceLock<Fingerprint>,
    shown: Mutex<Option<CertificateDer<'static>>>,
}

impl CertificateVerifier {
    /// The verifier, and a TLS configuration that uses it.
    pub fn new(trust: Trust) -> Result<(Arc<Self>, ClientConfig)> {
        let provider = Arc::new(ring_provider::default_provider());
        let known = OnceLock::new();
        let rule = match trust {
            Trust::Ca(certificates) => TrustRule::Authority(authority(certificates, &provider)?),
            Trust::Pinned(fingerprint) => TrustRule::Pinned(fingerprint),
            Trust::FirstUse(recorded) => {
                if let Some(fingerprint) = recorded {
                    known.get_or_init(|| fingerprint);
                }
                TrustRule::FirstUse
            }
        };
        let algorithms = provider.signature_verification_algorithms;
        let verifier = Arc::new(Self { rule, algorithms, known, shown: Mutex::new(None) });
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable(&error.to_string()))?
            .dangerous()
            .with_custom_certificate_verifier(verifier.clone())
            .with_no_client_auth();
        // A configuration is for one server, which was trusted when it issued the ticket.
        // More tickets would only cost memory.
        config.resumption = Resumption::in_memory_sessions(MAX_SESSION_TICKETS);
        Ok((verifier, config))
    }

    /// The fingerprint of the last certificate, trusted or not.
    pub fn shown(&self) -> Option<Fingerprint> {
        let shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        shown.as_ref().map(|certificate| Fingerprint::of_bytes(certificate))
    }

    /// The last certificate, parsed.
    pub fn certificate(&self) -> Option<Certificate> {
        let shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        shown.as_ref().map(|certificate| Certificate::read(certificate))
    }

    /// Pins the certificate of a completed handshake.
    pub fn pin_first_use(&self) {
        if let Some(fingerprint) = self.shown() {
            self.known.get_or_init(|| fingerprint);
        }
    }

    /// The fault for a failed handshake.
    pub fn explain(&self, endpoint: &Endpoint, error: &io::Error) -> Fault {
        let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
        let Some(Error::InvalidCertificate(reason)) = tls else {
            let message = format!("{endpoint} broke off while TLS was being agreed on: {error}");
            return Fault::new(FaultCode::BmcUnreachable, message);
        };
        let identity = self.shown().map(|shown| shown.to_string());
        let shown = identity.clone().unwrap_or_else(|| "none".to_owned());
        if *reason == CertificateError::BadSignature {
            let message =
                format!("{endpoint} shows the certificate {shown} and has not got its key");
            return Fault::new(FaultCode::IdentityUntrusted, message);
        }
        let fault = match (&self.rule, self.known.get()) {
            (TrustRule::Pinned(desired), _) => Fault::new(
                FaultCode::IdentityUntrusted,
                format!("{endpoint} shows the certificate {shown}, and {desired} is pinned"),
            ),
            (TrustRule::FirstUse, Some(known)) => Fault::new(
                FaultCode::IdentityChanged,
                format!("{endpoint} shows the certificate {shown}, and {known} was trusted before"),
            ),
            (TrustRule::FirstUse, None) | (TrustRule::Authority(_), _) => Fault::new(
                FaultCode::IdentityUntrusted,
                format!("The certificate {shown} of {endpoint} is not believed: {reason}"),
            ),
        };
        fault.with(|facts| facts.identity = identity)
    }
}

impl ServerCertVerifier for CertificateVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let shown = Fingerprint::of_bytes(end_entity);
        let stored = Some(end_entity.clone().into_owned());
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = stored;
        let believed = match &self.rule {
            TrustRule::Authority(verifier) => {
                return verifier.verify_server_cert(
                    end_entity,
                    intermediates,
                    server_name,
                    ocsp_response,
                    now,
                );
            }
            TrustRule::Pinned(fingerprint) => *fingerprint == shown,
            TrustRule::FirstUse => self.known.get().is_none_or(|known| *known == shown),
        };
        if believed {
            return Ok(ServerCertVerified::assertion());
        }
        Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

fn authority(
    certificates: Vec<CertificateDer<'static>>,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<WebPkiServerVerifier>> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots.add(certificate).map_err(|error| unusable(&error.to_string()))?;
    }
    WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .build()
        .map_err(|error| unusable(&error.to_string()))
}

fn unusable(why: &str) -> Fault {
    let message = format!("What is given to recognise the BMC by cannot be used: {why}");
    Fault::new(FaultCode::IdentityUntrusted, message)
}
