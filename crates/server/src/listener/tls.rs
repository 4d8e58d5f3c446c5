//! The certificates of a listener, and those of its clients.
//!
//! The files are read again when they change. A change that cannot be used is logged, and the
//! listener keeps what it has. A connection whose client certificate the new files no longer accept
//! is closed.

use crate::config::Tls;
use rustls::RootCertStore;
use rustls::ServerConfig;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use zeroize::Zeroizing;

/// The interval at which the files are compared with those that were read.
const RELOAD_INTERVAL: Duration = Duration::from_secs(2);
/// The authority that `farrier tls init` makes, beside the server's certificate.
const CA_FILE: &str = "ca.pem";
const ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// The files of one moment.
pub(crate) struct TlsState {
    server: Arc<ServerConfig>,
    clients: Option<Arc<dyn ClientCertVerifier>>,
}

/// Reports every new state.
pub(crate) type TlsUpdates = watch::Receiver<Arc<TlsState>>;

/// The TLS of a listener. A clone shares it.
#[derive(Clone)]
pub(crate) struct ServerTls(TlsUpdates);

impl ServerTls {
    /// Reads the files, and reads them again whenever they change. `section` is that of the
    /// configuration, for messages.
    pub fn open(section: &'static str, files: Tls) -> Result<Self, String> {
        // Before the files are read: a change in between is noticed.
        let seen = fingerprint(&files);
        let state = TlsState::load(section, &files)?;
        let (sender, receiver) = watch::channel(Arc::new(state));
        tokio::spawn(watch_files(section, files, seen, sender));
        Ok(Self(receiver))
    }

    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.0.borrow().server))
    }

    pub fn updates(&self) -> TlsUpdates {
        let mut updates = self.0.clone();
        updates.mark_unchanged();
        updates
    }

    /// True if the present files accept a client certificate that was accepted before.
    pub fn accepts(&self, shown: &[CertificateDer<'_>]) -> bool {
        let clients = self.0.borrow().clients.clone();
        let (Some(clients), Some((own, others))) = (clients, shown.split_first()) else {
            return false;
        };
        clients.verify_client_cert(own, others, UnixTime::now()).is_ok()
    }
}

async fn watch_files(
    section: &'static str,
    files: Tls,
    mut seen: Vec<FileState>,
    sender: watch::Sender<Arc<TlsState>>,
) {
    while !sender.is_closed() {
        tokio::time::sleep(RELOAD_INTERVAL).await;
        let now = fingerprint(&files);
        if now == seen {
            continue;
        }
        seen = now;
        match TlsState::load(section, &files) {
            Ok(state) => {
                tracing::info!(section, "certificates reloaded");
                sender.send_replace(Arc::new(state));
            }
            Err(error) => {
                tracing::error!(error, "the new certificates are not used; the old ones stay");
            }
        }
    }
}

/// Device, inode, size and time of change of a file. None: it cannot be read.
type FileState = Option<(u64, u64, u64, i64, i64)>;

fn fingerprint(files: &Tls) -> Vec<FileState> {
    let all = [&files.certificate, &files.key, &files.client_ca, &files.crl];
    let state = |path: &Path| {
        let found = std::fs::metadata(path).ok()?;
        Some((found.dev(), found.ino(), found.len(), found.mtime(), found.mtime_nsec()))
    };
    all.into_iter().map(|path| state(path)).collect()
}

impl TlsState {
    pub fn load(section: &str, files: &Tls) -> Result<Self, String> {
        let provider = Arc::new(ring::default_provider());
        let certificates: Vec<CertificateDer<'static>> =
            read_all(section, "certificate", &files.certificate)?;
        let key = read_key(section, &files.key)?;
        let clients = client_verifier(section, files, &provider)?;
        let builder = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| format!("{section}: {error}"))?;
        let builder = match &clients {
            Some(clients) => builder.with_client_cert_verifier(Arc::clone(clients)),
            None => builder.with_no_client_auth(),
        };
        let mut server = builder.with_single_cert(certificates, key).map_err(|error| {
            format!(
                "{section}.certificate {} and {section}.key {} cannot be used together: {error}",
                files.certificate.display(),
                files.key.display()
            )
        })?;
        server.alpn_protocols = ALPN.iter().map(|name| name.to_vec()).collect();
        Ok(Self { server: Arc::new(server), clients })
    }
}

/// Reads arbitrary bytes as the files and certificates that this module reads: as an authority, as
/// its list of revoked certificates, and as what a client shows.
pub(crate) fn read_certificate(bytes: &[u8]) {
    let provider = Arc::new(ring::default_provider());
    let mut roots = RootCertStore::empty();
    let in_pem = CertificateDer::pem_slice_iter(bytes).filter_map(Result::ok);
    let raw = CertificateDer::from(bytes.to_vec());
    let shown: Vec<CertificateDer<'_>> = in_pem.chain([raw]).collect();
    for authority in &shown {
        // Most bytes are no certificate.
        let _ = roots.add(authority.clone());
    }
    let _ = PrivateKeyDer::from_pem_slice(bytes);
    let crls: Vec<_> =
        CertificateRevocationListDer::pem_slice_iter(bytes).filter_map(Result::ok).collect();
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    let Ok(verifier) = builder.with_crls(crls).only_check_end_entity_revocation().build() else {
        return;
    };
    let Some((own, others)) = shown.split_first() else { return };
    let _ = verifier.verify_client_cert(own, others, UnixTime::now());
}

/// Every PEM block of a kind in a file, at least one.
fn read_all<T: PemObject>(section: &str, field: &str, path: &Path) -> Result<Vec<T>, String> {
    let wrong = |why: String| format!("{section}.{field} {}: {why}", path.display());
    let pem = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
    let found: Vec<T> = T::pem_slice_iter(&pem)
        .collect::<Result<_, _>>()
        .map_err(|error| wrong(format!("it is not PEM: {error}")))?;
    match found.is_empty() {
        true => Err(wrong("there is nothing of that kind in it; write it as PEM".into())),
        false => Ok(found),
    }
}

fn read_key(section: &str, path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    let wrong = |why: String| format!("{section}.key {}: {why}", path.display());
    let mut pem = Zeroizing::new(Vec::new());
    let opened = File::open(path).and_then(|mut file| {
        let found = file.metadata()?;
        file.read_to_end(&mut pem)?;
        Ok(found)
    });
    let found = opened.map_err(|error| wrong(error.to_string()))?;
    check_key_mode(found.mode(), found.uid(), path).map_err(wrong)?;
    PrivateKeyDer::from_pem_slice(&pem)
        .map_err(|error| wrong(format!("there is no private key in it as PEM: {error}")))
}

/// The file with the authority of the server's certificate, if it is here: `farrier tls init`
/// writes it beside the certificate, and the authority of the clients may be the same.
pub(crate) fn authority_file(files: &Tls) -> Option<PathBuf> {
    let beside = files.certificate.with_file_name(CA_FILE);
    [beside, files.client_ca.clone()].into_iter().find(|file| is_authority_of(file, files))
}

fn is_authority_of(file: &Path, files: &Tls) -> bool {
    let read = |path: &Path| read_all::<CertificateDer<'static>>("tls", "certificate", path);
    let (Ok(authorities), Ok(shown)) = (read(file), read(&files.certificate)) else { return false };
    let Some((own, others)) = shown.split_first() else { return false };
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(authorities);
    let algorithms = ring::default_provider().signature_verification_algorithms.all;
    ParsedCertificate::try_from(own).is_ok_and(|own| {
        let now = UnixTime::now();
        verify_server_cert_signed_by_trust_anchor(&own, &roots, others, now, algorithms).is_ok()
    })
}

/// Refuses a key that other users can read. A group may read the key of root, as Debian's group
/// `ssl-cert` does: only root decides who is in it.
fn check_key_mode(mode: u32, owner: u32, path: &Path) -> Result<(), String> {
    const ROOT: u32 = 0;
    let foreign = if owner == ROOT { 0o037 } else { 0o077 };
    if mode & foreign == 0 {
        return Ok(());
    }
    let (mode, path) = (mode & 0o777, path.display());
    let instead = match owner {
        ROOT => format!("chmod 640 {path}"),
        _ => format!("chmod 600 {path}"),
    };
    Err(format!("it has the mode {mode:o}, so other users can read or change it; type {instead}"))
}

/// The verifier of client certificates; None: no authority is configured.
fn client_verifier(
    section: &str,
    files: &Tls,
    provider: &Arc<rustls::crypto::CryptoProvider>,
) -> Result<Option<Arc<dyn ClientCertVerifier>>, String> {
    if files.client_ca.as_os_str().is_empty() {
        return Ok(None);
    }
    let wrong = |field: &str, path: &Path, why: &dyn std::fmt::Display| {
        format!("{section}.{field} {}: {why}", path.display())
    };
    let mut roots = RootCertStore::empty();
    for authority in read_all(section, "client_ca", &files.client_ca)? {
        roots.add(authority).map_err(|error| wrong("client_ca", &files.client_ca, &error))?;
    }
    let crls: Vec<CertificateRevocationListDer<'static>> = match files.crl.as_os_str().is_empty() {
        true => Vec::new(),
        false => read_all(section, "crl", &files.crl)?,
    };
    let builder =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider))
            .with_crls(crls)
            .only_check_end_entity_revocation();
    let builder = match files.require_client_certificate {
        true => builder,
        false => builder.allow_unauthenticated(),
    };
    let verifier = builder.build().map_err(|error| {
        let (field, path) = match files.crl.as_os_str().is_empty() {
            true => ("client_ca", &files.client_ca),
            false => ("crl", &files.crl),
        };
        wrong(field, path, &error)
    })?;
    Ok(Some(verifier))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_group_of_root_may_read_a_key() {
        let path = Path::new("/etc/farrier/server.key");
        for (mode, owner, allowed) in [
            (0o100_600, 1000, true),
            (0o100_400, 1000, true),
            (0o100_640, 1000, false),
            (0o100_604, 1000, false),
            (0o100_644, 1000, false),
            (0o100_602, 1000, false),
            (0o100_640, 0, true),
            (0o100_600, 0, true),
            (0o100_660, 0, false),
            (0o100_644, 0, false),
        ] {
            let checked = check_key_mode(mode, owner, path);
            assert_eq!(checked.is_ok(), allowed, "{mode:o} of {owner}: {checked:?}");
            if let Err(message) = checked {
                assert!(message.contains("type chmod 6"), "{message}");
                assert!(message.ends_with("/etc/farrier/server.key"), "{message}");
            }
        }
    }
}
