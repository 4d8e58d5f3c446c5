//! TLS of the connection to the server: its files, and what to do when it fails.

use crate::args::ClientTlsArgs;
use crate::exit::{Failure, Result};
use std::error::Error;
use std::path::Path;
use tonic::codegen::http::Uri;
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

/// The settings for a server with `https://`; None: the server has no TLS.
pub fn settings(server: &str, uri: &Uri, args: &ClientTlsArgs) -> Result<Option<ClientTlsConfig>> {
    let given = [
        ("--server-ca", &args.server_ca),
        ("--client-certificate", &args.client_certificate),
        ("--client-key", &args.client_key),
    ];
    if uri.scheme_str() != Some("https") {
        // The files would be ignored, and everything would be sent in the clear.
        return match given.iter().find(|(_, file)| file.is_some()) {
            None => Ok(None),
            Some((option, _)) => Err(Failure::refused(format!(
                "{option} is given and --server is {server}, which is not encrypted; write https:// \
                 in place of http://"
            ))),
        };
    }
    // An IPv6 address has brackets in a URL, and none in a certificate.
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let mut settings = ClientTlsConfig::new().domain_name(host);
    settings = match &args.server_ca {
        Some(path) => settings.ca_certificate(Certificate::from_pem(read("--server-ca", path)?)),
        None => settings.with_native_roots(),
    };
    if let (Some(certificate), Some(key)) = (&args.client_certificate, &args.client_key) {
        let certificate = read("--client-certificate", certificate)?;
        settings = settings.identity(Identity::from_pem(certificate, read("--client-key", key)?));
    }
    Ok(Some(settings))
}

fn read(option: &str, path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path)
        .map_err(|error| Failure::refused(format!("{option} {}: {error}", path.display())))
}

/// The message for files that are no certificates or keys.
pub fn invalid_files(error: &tonic::transport::Error) -> String {
    let cause = error.source().map_or_else(|| error.to_string(), ToString::to_string);
    format!(
        "--server-ca, --client-certificate or --client-key cannot be used: {cause}; write them as PEM"
    )
}

/// The next step after a failed connection, by the text of its cause: the library has no type for
/// the errors below it.
pub fn advice(server: &str, cause: &str) -> Option<&'static str> {
    let known = [
        ("UnknownIssuer", "pass --server-ca FILE with the certificate of its authority"),
        ("not valid for name", "use a name that its certificate has, or make one for this name"),
        ("certificate expired", "renew the certificate of the server"),
        ("InvalidContentType", "it speaks no TLS: write http:// in place of https://"),
        (
            "CertificateRequired",
            "it asks for a client certificate: pass --client-certificate and --client-key",
        ),
        ("UnknownCA", "it does not know the authority of --client-certificate"),
        ("CertificateRevoked", "the certificate of --client-certificate was revoked"),
        ("CertificateExpired", "the certificate of --client-certificate has expired"),
    ];
    let found = known.into_iter().find(|(words, _)| cause.contains(words));
    // A listener with TLS answers a request without it in HTTP/1. The reason for a refused client
    // certificate comes after the handshake, and may be lost.
    let broken = ["frame with invalid size", "http2 error", "connection closed", "reset", "pipe"];
    let broken = broken.iter().any(|words| cause.contains(words));
    let guess = match server.starts_with("https://") {
        true => "if it asks for a client certificate, pass --client-certificate and --client-key",
        false => "if it speaks TLS, write https:// in place of http://",
    };
    found.map(|(_, advice)| advice).or(broken.then_some(guess))
}
