//! Fetches a file from a server and verifies its checksum.
//!
//! The data goes into an unnamed temporary file, which the system deletes with the process. The
//! checksum is compared before the file is returned. Servers are verified with the CA certificates
//! of the system. Concurrent users of one checksum share one file.

use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::header::LOCATION;
use hyper::{Request, Response, StatusCode, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use model::fault::{Fault, FaultCode, Result};
use rustls::{ClientConfig, RootCertStore};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::fs::File;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

/// The largest file that is fetched.
const MAX_BYTES: u64 = 4 << 30;
const MAX_REDIRECTS: usize = 5;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest time that a server may send nothing.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// The number of checksums that are remembered before unused ones are dropped.
const MAX_SHARED: usize = 256;

/// A fetched file whose checksum matched.
#[derive(Debug)]
pub struct FetchedFile {
    /// Shared by several readers: read it at explicit offsets, never through the file position.
    pub file: Arc<std::fs::File>,
    pub size: u64,
    pub sha256: String,
}

type SharedFile = tokio::sync::Mutex<Weak<FetchedFile>>;

/// Fetches files. A file that is still in use is not fetched a second time.
#[derive(Default)]
pub struct Fetcher {
    shared: Mutex<BTreeMap<String, Arc<SharedFile>>>,
}

impl Fetcher {
    /// The file with this checksum, from this URL.
    pub async fn fetch(&self, url: &str, sha256: &str) -> Result<Arc<FetchedFile>> {
        let turn = self.shared_file(sha256);
        let mut known = turn.lock().await;
        if let Some(fetched) = known.upgrade() {
            return Ok(fetched);
        }
        let fetched = Arc::new(fetch(url, sha256).await?);
        *known = Arc::downgrade(&fetched);
        Ok(fetched)
    }

    fn shared_file(&self, sha256: &str) -> Arc<SharedFile> {
        let mut shared = self.shared();
        if shared.len() >= MAX_SHARED {
            // Keep the entries that have a waiter or a file in use.
            shared.retain(|_, turn| {
                Arc::strong_count(turn) > 1
                    || turn.try_lock().is_ok_and(|known| known.strong_count() > 0)
            });
        }
        Arc::clone(shared.entry(sha256.to_ascii_lowercase()).or_default())
    }

    fn shared(&self) -> MutexGuard<'_, BTreeMap<String, Arc<SharedFile>>> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn fetch(url: &str, sha256: &str) -> Result<FetchedFile> {
    let answer = open(url).await?;
    let (file, size, found) = receive(url, answer.into_body()).await?;
    if !found.eq_ignore_ascii_case(sha256) {
        let position = redact_url(url);
        let message =
            format!("{position} has the SHA-256 {found} and not {sha256}; nothing was installed");
        return Err(Fault::new(FaultCode::ChecksumWrong, message));
    }
    Ok(FetchedFile { file: Arc::new(file), size, sha256: found })
}

/// The response that contains the file, after redirects.
async fn open(url: &str) -> Result<Response<Incoming>> {
    let client = Client::builder(TokioExecutor::new()).build(connector()?);
    let mut position: Uri = url.parse().map_err(|error| fetch_failed(url, error))?;
    for _ in 0..=MAX_REDIRECTS {
        let request = Request::get(position.clone()).body(Empty::<Bytes>::new());
        let request = request.map_err(|error| fetch_failed(url, error))?;
        let answer = timeout(READ_TIMEOUT, client.request(request)).await;
        let answer = answer.map_err(|_| fetch_failed(url, "its server does not answer"))?;
        let answer = answer.map_err(|error| fetch_failed(url, error_chain(&error)))?;
        match (answer.status(), answer.headers().get(LOCATION)) {
            (StatusCode::OK, _) => return Ok(answer),
            (status, Some(next)) if status.is_redirection() => {
                position = resolve_redirect(&position, next.to_str().unwrap_or_default())
                    .ok_or_else(|| fetch_failed(url, "its server leads nowhere"))?;
            }
            (status, _) => return Err(fetch_failed(url, format!("its server answered {status}"))),
        }
    }
    Err(fetch_failed(url, "its server leads in a circle"))
}

/// The target of a redirect. A redirect from https to http is refused.
fn resolve_redirect(from: &Uri, to: &str) -> Option<Uri> {
    let next: Uri = to.parse().ok()?;
    let complete = match next.authority() {
        Some(_) => next,
        None => {
            let mut parts = from.clone().into_parts();
            parts.path_and_query = next.into_parts().path_and_query;
            Uri::from_parts(parts).ok()?
        }
    };
    let stored = complete.scheme_str() == Some("https") || from.scheme_str() == Some("http");
    stored.then_some(complete)
}

/// Receives the body into an unnamed file; returns its size and checksum too.
async fn receive(url: &str, mut body: Incoming) -> Result<(std::fs::File, u64, String)> {
    let stored = |error: std::io::Error| fetch_failed(url, format!("no room for it: {error}"));
    let opened = tokio::task::spawn_blocking(tempfile::tempfile).await;
    let opened = opened.map_err(|error| fetch_failed(url, error))?.map_err(stored)?;
    let mut file = File::from_std(opened);
    let (mut size, mut digest) = (0_u64, Sha256::new());
    loop {
        let next = timeout(READ_TIMEOUT, body.frame()).await;
        let next = next.map_err(|_| fetch_failed(url, "its server fell silent"))?;
        let Some(frame) =
            next.transpose().map_err(|error| fetch_failed(url, error_chain(&error)))?
        else {
            break;
        };
        let Ok(data) = frame.into_data() else { continue };
        size += data.len() as u64;
        if size > MAX_BYTES {
            return Err(fetch_failed(url, format!("it is larger than {MAX_BYTES} bytes")));
        }
        digest.update(&data);
        file.write_all(&data).await.map_err(stored)?;
    }
    file.flush().await.map_err(stored)?;
    let found = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok((file.into_std().await, size, found))
}

fn connector() -> Result<HttpsConnector<HttpConnector>> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Fault::new(FaultCode::FirmwareUnfetched, format!("TLS: {error}")))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_connect_timeout(Some(CONNECT_TIMEOUT));
    let https = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
    Ok(https.enable_http1().wrap_connector(http))
}

fn fetch_failed(url: &str, why: impl Display) -> Fault {
    Fault::new(
        FaultCode::FirmwareUnfetched,
        format!("{} could not be fetched: {why}", redact_url(url)),
    )
}

/// The URL for logs: without user information, query and fragment, which may contain secrets.
pub fn redact_url(url: &str) -> String {
    let bare = url.split(['?', '#']).next().unwrap_or_default();
    let Some((scheme, rest)) = bare.split_once("://") else { return bare.to_owned() };
    let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    let host = authority.rsplit('@').next().unwrap_or_default();
    format!("{scheme}://{host}{path}")
}

/// An error with its causes: hyper's outermost error seldom names the reason.
fn error_chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {}", error_chain(cause)),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_redacted() {
        for (url, expected) in [
            ("https://files/bmc.bin", "https://files/bmc.bin"),
            ("https://me:secret@files:8443/a/b.bin?sig=secret#x", "https://files:8443/a/b.bin"),
            ("tftp://10.0.0.1", "tftp://10.0.0.1"),
            ("bmc.bin?secret", "bmc.bin"),
        ] {
            assert_eq!(redact_url(url), expected);
        }
    }

    #[test]
    fn a_redirect_never_downgrades_to_http() {
        for (from, to, expected) in [
            ("http://a/x", "/y?z", Some("http://a/y?z")),
            ("https://a/x", "/y", Some("https://a/y")),
            ("http://a/x", "https://b/y", Some("https://b/y")),
            ("https://a/x", "http://b/y", None),
            ("http://a/x", "http://b/y", Some("http://b/y")),
            ("http://a/x", "\\ no", None),
        ] {
            let led = resolve_redirect(&from.parse().unwrap(), to).map(|uri| uri.to_string());
            assert_eq!(led.as_deref(), expected, "{from} → {to}");
        }
    }
}
