//! Certificates for one test: valid, expired, for another name, without their key.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use rustls::crypto::ring::{default_provider, sign::any_supported_type};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ALL_VERSIONS, ServerConfig, SupportedProtocolVersion};
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;

pub struct Authority(CertifiedIssuer<'static, KeyPair>);

pub struct Identity {
    pub certificate: CertificateDer<'static>,
    pub pem: String,
    pub key: KeyPair,
}

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::<String>::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Self(CertifiedIssuer::self_signed(params, key).expect("an authority"))
    }

    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate for this name or address, valid until the end of this year.
    pub fn issue(&self, name: &str, until: i32) -> Identity {
        let mut params = CertificateParams::new([name.to_owned()]).expect("a name");
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(until, 12, 31);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.0).expect("a certificate");
        Identity { pem: certificate.pem(), certificate: certificate.der().clone(), key }
    }
}

impl Identity {
    pub fn acceptor(&self) -> TlsAcceptor {
        self.with_key_of(self, ALL_VERSIONS)
    }

    /// A server that shows this certificate and signs with the given key, which may belong to
    /// another.
    pub fn with_key_of(
        &self,
        other: &Self,
        versions: &[&'static SupportedProtocolVersion],
    ) -> TlsAcceptor {
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(other.key.serialize_der()));
        let key = any_supported_type(&key).expect("a usable key");
        let shown = CertifiedKey::new(vec![self.certificate.clone()], key);
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(versions)
            .expect("versions that there are")
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(Always(Arc::new(shown))));
        TlsAcceptor::from(Arc::new(config))
    }
}

#[derive(Debug)]
struct Always(Arc<CertifiedKey>);

impl ResolvesServerCert for Always {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }
}
