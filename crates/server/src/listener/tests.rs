//! A listener with real connections: what a request knows about its sender.

use super::limits::ListenerLimits;
use super::tls::ServerTls;
use super::{Listener, ListenerName, PeerAddress, PeerCertificates, StopSignal};
use crate::config::Tls;
use crate::private_files::create_whole;
use axum::Router;
use axum::extract::Request;
use axum::routing::get;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

const MINUTE: Duration = Duration::from_secs(60);
const LIMITS: ListenerLimits = ListenerLimits {
    connections: 8,
    per_peer: 8,
    streams: 8,
    first_byte: MINUTE,
    header: MINUTE,
    stall: MINUTE,
    idle: MINUTE,
    handshake: MINUTE,
};

async fn who(request: Request) -> String {
    let PeerAddress(address) = request.extensions().get().unwrap();
    let shown = request.extensions().get::<PeerCertificates>();
    let shown = shown.map_or(0, |shown| shown.chain()[0].len());
    format!("{address} with {shown} bytes")
}

async fn serve(tls: Option<ServerTls>) -> (SocketAddr, StopSignal) {
    let anywhere = SocketAddr::from(([127, 0, 0, 1], 0));
    let listener = Listener::bind(ListenerName::Api, anywhere, LIMITS, tls).await.unwrap();
    let (address, stop) = (listener.local_address().unwrap(), StopSignal::new());
    let stopping = stop.clone();
    let router = Router::new().route("/", get(who));
    tokio::spawn(async move { listener.serve(router, &stopping).await });
    (address, stop)
}

async fn ask(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> String {
    let request = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer.split_once("\r\n\r\n").unwrap().1.to_string()
}

struct Pki {
    authority: CertifiedIssuer<'static, KeyPair>,
}

impl Pki {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        Self { authority }
    }

    fn issue(&self, usage: ExtendedKeyUsagePurpose) -> (String, String) {
        let mut params = CertificateParams::new(["127.0.0.1".to_string()]).unwrap();
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.authority).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    fn files(&self, dir: &Path) -> Tls {
        let (certificate, key) = self.issue(ExtendedKeyUsagePurpose::ServerAuth);
        let write = |name: &str, text: &str| {
            create_whole(&dir.join(name), text.as_bytes()).unwrap();
            dir.join(name)
        };
        Tls {
            certificate: write("server.pem", &certificate),
            key: write("server.key", &key),
            client_ca: write("ca.pem", &self.authority.pem()),
            ..Tls::default()
        }
    }

    fn client(&self, identity: Option<(String, String)>) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let config = match identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
                builder.with_client_auth_cert(vec![certificate], key).unwrap()
            }
        };
        TlsConnector::from(Arc::new(config))
    }
}

#[tokio::test]
async fn a_request_knows_the_address_and_the_certificate_of_its_peer() {
    let (address, _stop) = serve(None).await;
    let stream = TcpStream::connect(address).await.unwrap();
    let own = stream.local_addr().unwrap();
    assert_eq!(ask(stream).await, format!("{own} with 0 bytes"));

    let (pki, dir) = (Pki::new(), tempfile::tempdir().unwrap());
    let tls = ServerTls::open("tls", pki.files(dir.path())).unwrap();
    let (address, _stop) = serve(Some(tls)).await;
    let identity = pki.issue(ExtendedKeyUsagePurpose::ClientAuth);
    let length = CertificateDer::from_pem_slice(identity.0.as_bytes()).unwrap().len();
    for (identity, length) in [(None, 0), (Some(identity), length)] {
        let stream = TcpStream::connect(address).await.unwrap();
        let own = stream.local_addr().unwrap();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let stream = pki.client(identity).connect(name, stream).await.unwrap();
        assert_eq!(ask(stream).await, format!("{own} with {length} bytes"));
    }
}

/// The client holds its last words back until its authority is no longer believed.
#[tokio::test]
async fn a_certificate_that_is_withdrawn_during_the_handshake_is_refused() {
    let (pki, dir) = (Pki::new(), tempfile::tempdir().unwrap());
    let files = pki.files(dir.path());
    let tls = ServerTls::open("tls", files.clone()).unwrap();
    let mut updates = tls.updates();
    let (address, _stop) = serve(Some(tls)).await;
    let identity = pki.issue(ExtendedKeyUsagePurpose::ClientAuth);
    let (near, mut far) = tokio::io::duplex(64 * 1024);
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let connecting = pki.client(Some(identity)).connect(name, near);
    let connecting = tokio::spawn(connecting.into_fallible());
    let mut stream = TcpStream::connect(address).await.unwrap();
    let mut bytes = vec![0; 64 * 1024];
    let hello = far.read(&mut bytes).await.unwrap();
    stream.write_all(&bytes[..hello]).await.unwrap();
    let mut answer = vec![0; 64 * 1024];
    let held = loop {
        tokio::select! {
            held = far.read(&mut bytes) => break held.unwrap(),
            read = stream.read(&mut answer) => {
                far.write_all(&answer[..read.unwrap()]).await.unwrap();
            }
        }
    };
    std::fs::write(&files.client_ca, Pki::new().authority.pem()).unwrap();
    updates.changed().await.unwrap();
    stream.write_all(&bytes[..held]).await.unwrap();
    let relay = async move { tokio::io::copy_bidirectional(&mut far, &mut stream).await };
    tokio::spawn(relay);
    let mut client = connecting.await.unwrap().ok().unwrap();
    client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut said = Vec::new();
    // Cut off without a word.
    let _ = client.read_to_end(&mut said).await;
    assert_eq!(String::from_utf8_lossy(&said), "");
}

#[tokio::test]
async fn files_that_cannot_be_used_are_named() {
    let (pki, dir) = (Pki::new(), tempfile::tempdir().unwrap());
    let files = pki.files(dir.path());
    let other = dir.path().join("other.key");
    let key = pki.issue(ExtendedKeyUsagePurpose::ServerAuth).1;
    create_whole(&other, key.as_bytes()).unwrap();
    let garbage = dir.path().join("garbage");
    create_whole(&garbage, b"nothing").unwrap();
    for (wrong, words) in [
        (Tls { certificate: "/no/file".into(), ..files.clone() }, "tls.certificate /no/file"),
        (Tls { certificate: garbage.clone(), ..files.clone() }, "tls.certificate"),
        (Tls { key: garbage.clone(), ..files.clone() }, "tls.key"),
        (Tls { key: other, ..files.clone() }, "cannot be used together"),
        (Tls { client_ca: garbage.clone(), ..files.clone() }, "tls.client_ca"),
        (Tls { crl: garbage, ..files.clone() }, "tls.crl"),
    ] {
        let message = ServerTls::open("tls", wrong).err().unwrap();
        assert!(message.contains(words), "{message}");
    }
    ServerTls::open("tls", files).unwrap();
}
