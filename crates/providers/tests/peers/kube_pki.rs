//! Authorities and certificates for the fake API server and its users, new for each test.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use secrecy::SecretString;
use std::net::SocketAddr;
use std::sync::Arc;

/// An authority and the certificates that it signed.
pub struct Pki {
    issuer: Issuer<'static, KeyPair>,
    authority: rcgen::Certificate,
    /// The public key of the authority, as a SubjectPublicKeyInfo.
    pub authority_key: Vec<u8>,
}

/// The validity of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Validity {
    Holds,
    RanOut,
}

impl Pki {
    pub fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        params.distinguished_name.push(DnType::CommonName, "kubernetes");
        let authority = params.self_signed(&key).unwrap();
        let authority_key = rcgen::PublicKeyData::subject_public_key_info(&key);
        Self { issuer: Issuer::new(params, key), authority, authority_key }
    }

    /// A kubeconfig for a server at this address, with this user entry.
    pub fn kubeconfig(&self, address: SocketAddr, user: &str) -> SecretString {
        let authority = self.authority_data();
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             contexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
             clusters: [{{name: k, cluster: {{server: 'https://{address}', certificate-authority-data: {authority}}}}}]\n\
             users: [{{name: u, user: {{{user}}}}}]\n"
        )
        .into()
    }

    pub fn authority_data(&self) -> String {
        BASE64_STANDARD.encode(self.authority.pem())
    }

    /// The user entry with a certificate of this authority.
    pub fn user(&self, validity: Validity) -> String {
        let (certificate, key) =
            self.sign("farrier", ExtendedKeyUsagePurpose::ClientAuth, validity);
        let (certificate, key) = (
            BASE64_STANDARD.encode(certificate.pem()),
            BASE64_STANDARD.encode(key.serialize_pem()),
        );
        format!("client-certificate-data: {certificate}, client-key-data: {key}")
    }

    pub fn server(&self) -> Arc<ServerConfig> {
        self.server_config(Validity::Holds, false)
    }

    pub fn server_with_clients(&self) -> Arc<ServerConfig> {
        self.server_config(Validity::Holds, true)
    }

    pub fn expired_server(&self) -> Arc<ServerConfig> {
        self.server_config(Validity::RanOut, false)
    }

    fn server_config(&self, validity: Validity, clients: bool) -> Arc<ServerConfig> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let (certificate, key) =
            self.sign("127.0.0.1", ExtendedKeyUsagePurpose::ServerAuth, validity);
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap();
        let builder = if clients {
            let mut roots = RootCertStore::empty();
            roots.add(self.authority.der().clone()).unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().unwrap())
        } else {
            builder.with_no_client_auth()
        };
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        Arc::new(builder.with_single_cert(vec![certificate.der().clone()], key).unwrap())
    }

    fn sign(
        &self,
        name: &str,
        usage: ExtendedKeyUsagePurpose,
        validity: Validity,
    ) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.extended_key_usages = vec![usage];
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = match validity {
            Validity::Holds => rcgen::date_time_ymd(2100, 1, 1),
            Validity::RanOut => rcgen::date_time_ymd(2021, 1, 1),
        };
        (params.signed_by(&key, &self.issuer).unwrap(), key)
    }
}
