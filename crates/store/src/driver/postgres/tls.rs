//! TLS towards PostgreSQL, as libpq has it: `sslmode`, `sslrootcert`, `sslcert` and `sslkey` in the
//! URL. What is not supported is refused by its name.

use percent_encoding::percent_decode_str;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};
use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::config::SslMode;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;

/// The protocol that PostgreSQL expects in a TLS handshake without a request for it.
const ALPN: &[u8] = b"postgresql";
/// The value of `sslrootcert` for the authorities of this host.
const SYSTEM: &str = "system";
/// Parameters of libpq that begin with `ssl` and are for the library that we use.
const PASSED_ON: [&str; 1] = ["sslnegotiation"];

/// The verification of the server's certificate, from weak to strong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verification {
    /// No TLS.
    Disable,
    /// TLS if the server has it; the certificate is not verified.
    Prefer,
    /// TLS; the certificate is not verified.
    Require,
    /// The certificate comes from an authority, for any name.
    Authority,
    /// The certificate is also for the name in the URL.
    Full,
}

/// The TLS parameters of a database URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TlsParameters {
    pub verification: Verification,
    root: Option<String>,
    /// The files of the client's certificate and of its key.
    identity: Option<(String, String)>,
}

impl TlsParameters {
    /// Splits a URL into its part for the database library and the TLS parameters.
    pub fn split(url: &str) -> Result<(String, Self), String> {
        if !url.contains("://") && url.split_whitespace().any(|word| word.starts_with("ssl")) {
            return Err(
                "the database has TLS parameters as key=value; write them in a URL, as in \
                        postgres://user@host:5432/name?sslmode=verify-full&sslrootcert=FILE"
                    .into(),
            );
        }
        let Some((base, query)) = url.split_once('?').filter(|_| url.contains("://")) else {
            return Ok((url.to_string(), Self::new(None, None, None, None)?));
        };
        let (mut mode, mut root, mut certificate, mut key) = (None, None, None, None);
        let mut rest = Vec::new();
        for parameter in query.split('&') {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let value = percent_decode_str(value).decode_utf8_lossy().to_string();
            match name {
                "sslmode" => mode = Some(value),
                "sslrootcert" => root = Some(value),
                "sslcert" => certificate = Some(value),
                "sslkey" => key = Some(value),
                name if PASSED_ON.contains(&name) => rest.push(parameter),
                name if name.starts_with("ssl") || name.starts_with("requiressl") => {
                    return Err(format!(
                        "{name} is not supported in the database URL; leave it out, or use sslmode, \
                         sslrootcert, sslcert and sslkey"
                    ));
                }
                "channel_binding" if value == "require" => {
                    return Err("channel_binding=require is not supported in the database URL; \
                                sslmode=verify-full proves the server's identity"
                        .into());
                }
                _ => rest.push(parameter),
            }
        }
        let base = match rest.is_empty() {
            true => base.to_string(),
            false => format!("{base}?{}", rest.join("&")),
        };
        Ok((base, Self::new(mode, root, certificate, key)?))
    }

    fn new(
        mode: Option<String>,
        root: Option<String>,
        certificate: Option<String>,
        key: Option<String>,
    ) -> Result<Self, String> {
        let verification = match mode.as_deref() {
            Some("disable") => Verification::Disable,
            None | Some("prefer") if root.is_none() => Verification::Prefer,
            // As in libpq: an authority that is named is used.
            None | Some("prefer" | "require") if root.is_some() => Verification::Authority,
            Some("require") => Verification::Require,
            Some("verify-ca") => Verification::Authority,
            Some("verify-full") => Verification::Full,
            Some(other) => {
                return Err(format!(
                    "sslmode={other} is not supported in the database URL; use disable, prefer, \
                     require, verify-ca or verify-full"
                ));
            }
            None => Verification::Prefer,
        };
        let verifies = matches!(verification, Verification::Authority | Verification::Full);
        if verifies && root.is_none() {
            let mode = mode.unwrap_or_default();
            return Err(format!(
                "sslmode={mode} needs sslrootcert in the database URL; add \
                 &sslrootcert=/path/to/ca.pem, or &sslrootcert=system for the authorities of this host"
            ));
        }
        if root.as_deref() == Some(SYSTEM) && verification != Verification::Full {
            return Err("sslrootcert=system needs sslmode=verify-full in the database URL: those \
                        authorities sign certificates for everybody"
                .into());
        }
        let identity = match (certificate, key) {
            (None, None) => None,
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (Some(_), None) => return Err("sslcert needs sslkey in the database URL".into()),
            (None, Some(_)) => return Err("sslkey needs sslcert in the database URL".into()),
        };
        Ok(Self { verification, root, identity })
    }

    pub fn mode(&self) -> SslMode {
        match self.verification {
            Verification::Disable => SslMode::Disable,
            Verification::Prefer => SslMode::Prefer,
            Verification::Require | Verification::Authority | Verification::Full => {
                SslMode::Require
            }
        }
    }

    /// Reads the files. The error names the parameter.
    pub fn connector(&self) -> Result<Connector, String> {
        let provider = Arc::new(ring::default_provider());
        let verifier = self.verifier(&provider)?;
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let mut config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let wrong = |error: &dyn std::fmt::Display| format!("sslkey {key}: {error}");
                let pem = std::fs::read(key).map_err(|error| wrong(&error))?;
                let private = PrivateKeyDer::from_pem_slice(&pem).map_err(|error| wrong(&error))?;
                builder
                    .with_client_auth_cert(
                        certificates("sslcert", Path::new(certificate))?,
                        private,
                    )
                    .map_err(|error| wrong(&error))?
            }
        };
        config.alpn_protocols = vec![ALPN.to_vec()];
        Ok(Connector(TlsConnector::from(Arc::new(config))))
    }

    fn verifier(&self, provider: &Arc<CryptoProvider>) -> Result<Arc<ServerVerifier>, String> {
        let algorithms = provider.signature_verification_algorithms;
        let rule = match self.verification {
            Verification::Disable | Verification::Prefer | Verification::Require => Rule::Any,
            Verification::Authority => Rule::Authority(self.authorities(provider)?),
            Verification::Full => Rule::Name(self.authorities(provider)?),
        };
        Ok(Arc::new(ServerVerifier { rule, algorithms }))
    }

    fn authorities(
        &self,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Arc<WebPkiServerVerifier>, String> {
        let root = self.root.as_deref().unwrap_or_default();
        let wrong = |error: &dyn std::fmt::Display| format!("sslrootcert {root}: {error}");
        let mut roots = RootCertStore::empty();
        if root == SYSTEM {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        } else {
            for authority in certificates("sslrootcert", Path::new(root))? {
                roots.add(authority).map_err(|error| wrong(&error))?;
            }
        }
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider))
            .build()
            .map_err(|error| wrong(&error))
    }
}

fn certificates(parameter: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let wrong = |why: &dyn std::fmt::Display| format!("{parameter} {}: {why}", path.display());
    let pem = std::fs::read(path).map_err(|error| wrong(&error))?;
    let found: Vec<_> = CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<_, _>>()
        .map_err(|error| wrong(&error))?;
    match found.is_empty() {
        true => Err(wrong(&"there is no certificate in it; write it as PEM")),
        false => Ok(found),
    }
}

#[derive(Debug)]
enum Rule {
    Any,
    Authority(Arc<WebPkiServerVerifier>),
    Name(Arc<WebPkiServerVerifier>),
}

/// Verifies the server's certificate by the rule of `sslmode`. In every mode the server must have
/// the key of its certificate.
#[derive(Debug)]
struct ServerVerifier {
    rule: Rule,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let (verifier, any_name) = match &self.rule {
            Rule::Any => return Ok(ServerCertVerified::assertion()),
            Rule::Authority(verifier) => (verifier, true),
            Rule::Name(verifier) => (verifier, false),
        };
        let verified =
            verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verified {
            // The name is compared last: everything else is in order.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if any_name => Ok(ServerCertVerified::assertion()),
            other => other,
        }
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

/// Makes TLS connections for every connection of the pool and the one that listens.
#[derive(Clone)]
pub(super) struct Connector(TlsConnector);

/// A connection to the server of this name.
pub(super) struct NamedConnector(TlsConnector, ServerName<'static>);

impl<S> MakeTlsConnect<S> for Connector
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = SecureStream<S>;
    type TlsConnect = NamedConnector;
    type Error = io::Error;

    fn make_tls_connect(&mut self, host: &str) -> Result<NamedConnector, io::Error> {
        // A socket file has no name; PostgreSQL has no TLS there.
        let host = if host.is_empty() { "localhost" } else { host };
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        Ok(NamedConnector(self.0.clone(), name))
    }
}

impl<S> TlsConnect<S> for NamedConnector
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = SecureStream<S>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<SecureStream<S>>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        let Self(connector, name) = self;
        Box::pin(async move { connector.connect(name, stream).await.map(SecureStream) })
    }
}

/// A TLS connection to PostgreSQL.
pub(super) struct SecureStream<S>(tokio_rustls::client::TlsStream<S>);

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for SecureStream<S> {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for SecureStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for SecureStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// The next step after a failed connection: the library has no type for the errors below it.
pub(super) fn advice(cause: &str) -> Option<&'static str> {
    let known = [
        (
            "does not support TLS",
            "turn TLS on there (ssl = on in postgresql.conf), or lower sslmode in the database URL",
        ),
        ("UnknownIssuer", "name the file of its authority as sslrootcert in the database URL"),
        (
            "not valid for name",
            "use a host name of its certificate in the database URL, or sslmode=verify-ca",
        ),
        ("certificate expired", "renew the certificate of PostgreSQL"),
        ("CertificateRequired", "name sslcert and sslkey in the database URL"),
        ("UnknownCA", "PostgreSQL does not know the authority of sslcert; see its ssl_ca_file"),
    ];
    known.into_iter().find(|(words, _)| cause.contains(words)).map(|(_, advice)| advice)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(query: &str) -> Result<(String, TlsParameters), String> {
        TlsParameters::split(&format!("postgres://ada@db:5432/f{query}"))
    }

    #[test]
    fn the_parameters_of_libpq_are_read() {
        use Verification::*;
        for (query, verification, rest) in [
            ("", Prefer, ""),
            ("?connect_timeout=3", Prefer, "?connect_timeout=3"),
            ("?sslmode=disable", Disable, ""),
            ("?sslmode=prefer&a=b", Prefer, "?a=b"),
            ("?a=b&sslmode=require&c=d", Require, "?a=b&c=d"),
            ("?sslmode=require&sslrootcert=/ca", Authority, ""),
            ("?sslrootcert=/ca", Authority, ""),
            ("?sslmode=verify-ca&sslrootcert=/ca", Authority, ""),
            ("?sslmode=verify-full&sslrootcert=system", Full, ""),
            (
                "?sslmode=verify-full&sslrootcert=/ca&sslnegotiation=direct",
                Full,
                "?sslnegotiation=direct",
            ),
        ] {
            let (url, found) = split(query).unwrap();
            assert_eq!(found.verification, verification, "{query}");
            assert_eq!(url, format!("postgres://ada@db:5432/f{rest}"), "{query}");
        }
        let (_, found) =
            split("?sslmode=verify-full&sslrootcert=/a%20b&sslcert=/c&sslkey=/k").unwrap();
        assert_eq!(found.root.as_deref(), Some("/a b"));
        assert_eq!(found.identity, Some(("/c".into(), "/k".into())));
    }

    #[test]
    fn what_is_not_supported_is_refused_by_name() {
        for (query, words) in [
            ("?sslmode=allow", "sslmode=allow is not supported"),
            ("?sslmode=verify-full", "sslmode=verify-full needs sslrootcert"),
            ("?sslmode=verify-ca", "sslmode=verify-ca needs sslrootcert"),
            ("?sslmode=require&sslrootcert=system", "sslrootcert=system needs sslmode=verify-full"),
            ("?sslcrl=/x", "sslcrl is not supported"),
            ("?sslpassword=x", "sslpassword is not supported"),
            ("?sslcert=/c", "sslcert needs sslkey"),
            ("?channel_binding=require", "channel_binding=require is not supported"),
        ] {
            let message = split(query).unwrap_err();
            assert!(message.contains(words), "{query}: {message}");
        }
        let message = TlsParameters::split("host=db sslmode=verify-full").unwrap_err();
        assert!(message.contains("write them in a URL"), "{message}");
        let (plain, _) = TlsParameters::split("host=db user=ada").unwrap();
        assert_eq!(plain, "host=db user=ada");
    }
}
