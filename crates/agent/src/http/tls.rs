//! TLS to a server whose certificate comes from an authority of the operator.
//!
//! The authorities of the system are not used: Farrier's certificate is for an IP address, which
//! none of them would sign.

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The files of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    pub ca_file: PathBuf,
    /// The certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl TlsFiles {
    /// Reads the files. The error names the key of the configuration.
    pub fn load(&self) -> Result<Arc<ClientConfig>, String> {
        let mut roots = RootCertStore::empty();
        for authority in certificates("ca_file", &self.ca_file)? {
            roots
                .add(authority)
                .map_err(|error| format!("ca_file: {}: {error}", self.ca_file.display()))?;
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| format!("ca_file: {error}"))?
            .with_root_certificates(roots);
        let Some((certificate, key)) = &self.identity else {
            return Ok(Arc::new(builder.with_no_client_auth()));
        };
        let wrong =
            |error: &dyn std::fmt::Display| format!("client_key: {}: {error}", key.display());
        let pem = fs::read(key).map_err(|error| wrong(&error))?;
        let private = PrivateKeyDer::from_pem_slice(&pem).map_err(|error| wrong(&error))?;
        let own = certificates("client_certificate", certificate)?;
        let config = builder.with_client_auth_cert(own, private).map_err(|error| wrong(&error))?;
        Ok(Arc::new(config))
    }
}

fn certificates(key: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let wrong = |why: &dyn std::fmt::Display| format!("{key}: {}: {why}", path.display());
    let pem = fs::read(path).map_err(|error| wrong(&error))?;
    let found: Vec<_> = CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<_, _>>()
        .map_err(|error| wrong(&error))?;
    match found.is_empty() {
        true => Err(wrong(&"there is no certificate in it; write it as PEM")),
        false => Ok(found),
    }
}
