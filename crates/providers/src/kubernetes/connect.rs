//! The client: TLS with the cluster's own authority and a named crypto provider, HTTP/1.1, answers of bounded length.
//!
//! It is put together here and not by `kube`, whose own connector takes the process's default provider, and which
//! would read an answer of any length.

use super::config::Access;
use http::header::AUTHORIZATION;
use http::uri::PathAndQuery;
use http::{HeaderValue, Request, Uri};
use http_body_util::Limited;
use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::Body;
use model::fault::{Code, Fault};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use secrecy::ExposeSecret;
use std::sync::Arc;
use std::time::Duration;

/// A page of pods is a few megabytes at most.
const MAX_ANSWER_BYTES: usize = 32 * 1024 * 1024;
const MAX_IDLE_CONNECTIONS: usize = 4;
const IDLE_FOR: Duration = Duration::from_secs(30);
/// A part of the request's deadline, so that a second address of the same name gets its turn.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
const NAMESPACE: &str = "default";

pub fn client(access: Access) -> Result<kube::Client, Fault> {
    let base = access.uri.clone();
    let authorization = authorization(&access)?;
    let connector = connector(access)?;
    let pool = hyper_util::client::legacy::Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE_FOR)
        .pool_max_idle_per_host(MAX_IDLE_CONNECTIONS)
        .build::<_, Body>(connector);
    let service = tower::service_fn(move |mut request: Request<Body>| {
        let (pool, uri) = (pool.clone(), absolute(&base, request.uri()));
        if let Some(authorization) = &authorization {
            request.headers_mut().insert(AUTHORIZATION, authorization.clone());
        }
        async move {
            *request.uri_mut() = uri?;
            let answer = pool.request(request).await?;
            Ok::<_, tower::BoxError>(answer.map(|body| Limited::new(body, MAX_ANSWER_BYTES)))
        }
    });
    Ok(kube::Client::new(service, NAMESPACE))
}

fn connector(access: Access) -> Result<hyper_rustls::HttpsConnector<HttpConnector>, Fault> {
    let unusable = |error: rustls::Error| {
        let said = format!("the client certificate for {} cannot be used: {error}", access.address);
        Fault::new(Code::CredentialMissing, said)
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(unusable)?
        .with_root_certificates(access.roots);
    let tls = match access.identity {
        Some((chain, key)) => builder.with_client_auth_cert(chain, key).map_err(unusable)?,
        None => builder.with_no_client_auth(),
    };
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(Some(CONNECT_WITHIN));
    let https = HttpsConnectorBuilder::new().with_tls_config(tls).https_only();
    let https = match access.server_name {
        None => https,
        Some(name) => {
            let name = ServerName::try_from(name).map_err(|_| {
                let said = format!("the tls-server-name for {} is no name", access.address);
                Fault::new(Code::CredentialMissing, said)
            })?;
            https.with_server_name_resolver(FixedServerNameResolver::new(name))
        }
    };
    Ok(https.enable_http1().wrap_connector(http))
}

fn authorization(access: &Access) -> Result<Option<HeaderValue>, Fault> {
    let Some(token) = &access.token else { return Ok(None) };
    let mut value =
        HeaderValue::try_from(format!("Bearer {}", token.expose_secret())).map_err(|_| {
            let said = format!("the token for {} has characters that no token has", access.address);
            Fault::new(Code::CredentialMissing, said)
        })?;
    value.set_sensitive(true);
    Ok(Some(value))
}

/// The address of the cluster, which may have a path of its own, with the path of the request.
fn absolute(base: &Uri, request: &Uri) -> Result<Uri, http::Error> {
    let prefix = base.path().trim_end_matches('/');
    let path = request.path_and_query().map_or("/", PathAndQuery::as_str);
    let mut parts = base.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(format!("{prefix}{path}"))?);
    Ok(Uri::from_parts(parts)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_goes_below_the_address_of_the_cluster() {
        let cases = [
            ("https://k:6443", "/api/v1/nodes?limit=1", "https://k:6443/api/v1/nodes?limit=1"),
            ("https://k/", "/api", "https://k/api"),
            ("https://k/k8s/clusters/c-1/", "/api", "https://k/k8s/clusters/c-1/api"),
        ];
        for (base, request, wanted) in cases {
            let uri = absolute(&base.parse().unwrap(), &request.parse().unwrap()).unwrap();
            assert_eq!(uri.to_string(), wanted);
        }
    }
}
