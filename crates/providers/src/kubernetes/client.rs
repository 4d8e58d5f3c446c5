//! The HTTP client of one API server: TLS with the cluster's own authority and a named crypto
//! provider, HTTP/1.1, answers of bounded length. A refusal comes back as the server's [`Status`].

use super::config::{Access, Token, TokenError};
use super::object::Status;
use crate::fault::LocalShortage;
use crate::http_client::form::Form;
use crate::secret_mask::SecretMask;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, DATE};
use http::uri::PathAndQuery;
use http::{HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use model::fault::{Fault, FaultCode, Result};
use model::time::Timestamp;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

/// A page of pods is a few megabytes at most.
const MAX_ANSWER_BYTES: usize = 32 * 1024 * 1024;
const MAX_IDLE_CONNECTIONS: usize = 4;
const IDLE_FOR: Duration = Duration::from_secs(30);
/// A part of the request's deadline, so that a second address of the same name gets its turn.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
const JSON: &str = "application/json";
const STRATEGIC_MERGE_PATCH: &str = "application/strategic-merge-patch+json";
/// The API server records our fields under this name.
pub const FIELD_MANAGER: &str = "farrier";

type Pool = hyper_util::client::legacy::Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// One request to the API, below the address of the cluster.
#[derive(Clone)]
pub struct ApiRequest {
    method: Method,
    path: String,
    query: Form,
    body: Option<(&'static str, Vec<u8>)>,
}

impl ApiRequest {
    pub fn get(path: impl Into<String>) -> Self {
        Self { method: Method::GET, path: path.into(), query: Form::default(), body: None }
    }

    /// One page of a list.
    pub fn list(path: &str, select: &[(&str, &str)], limit: u32, next: Option<&str>) -> Self {
        let selected =
            select.iter().fold(Form::default(), |form, (key, value)| form.with(key, value));
        let query = selected.with("limit", limit).with_optional("continue", next);
        Self { query, ..Self::get(path) }
    }

    pub fn create(path: impl Into<String>, body: &Value) -> Self {
        Self::write(Method::POST, path.into(), JSON, body)
    }

    pub fn patch(path: impl Into<String>, patch: &Value) -> Self {
        Self::write(Method::PATCH, path.into(), STRATEGIC_MERGE_PATCH, patch)
    }

    /// With empty options, which leaves every choice to the server.
    pub fn delete(path: impl Into<String>) -> Self {
        let body = Some((JSON, b"{}".to_vec()));
        Self { method: Method::DELETE, body, ..Self::get(path) }
    }

    fn write(method: Method, path: String, content_type: &'static str, body: &Value) -> Self {
        let query = Form::default().with("fieldManager", FIELD_MANAGER);
        Self { method, path, query, body: Some((content_type, body.to_string().into_bytes())) }
    }
}

/// The reason why a request has no usable answer.
#[derive(Debug)]
pub enum RequestError {
    Refused(Status),
    NotJson(serde_json::Error),
    NotText,
    /// The request could not be built, and nothing was sent.
    Unbuildable(http::Error),
    /// The file with the token could not be read, and nothing was sent.
    NoToken(String),
    /// This host lacks what it needs to send it.
    NoResources(LocalShortage),
    /// Below HTTP: no connection, or one that broke.
    Broken(Box<dyn Error + Send + Sync>),
}

impl From<hyper_util::client::legacy::Error> for RequestError {
    fn from(error: hyper_util::client::legacy::Error) -> Self {
        Self::Broken(error.into())
    }
}

/// A clone shares the connections.
#[derive(Clone)]
pub struct Client {
    pool: Pool,
    base: Uri,
    token: Option<Token>,
}

impl Client {
    pub fn new(access: Access) -> Result<Self> {
        let base = access.uri.clone();
        let token = access.token.clone();
        if let Some(Token::Fixed(token)) = &token {
            authorization(token).map_err(|why| {
                let message = format!("the token for {} {why}", access.address);
                Fault::new(FaultCode::CredentialMissing, message)
            })?;
        }
        let pool = hyper_util::client::legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_FOR)
            .pool_max_idle_per_host(MAX_IDLE_CONNECTIONS)
            .build(connector(access)?);
        Ok(Self { pool, base, token })
    }

    /// Sends a request and returns the text of its answer.
    pub async fn send(&self, request: &ApiRequest) -> Result<String, RequestError> {
        self.send_dated(request).await.map(|(text, _)| text)
    }

    /// The same, with the time that the server shows.
    pub async fn send_dated(
        &self,
        request: &ApiRequest,
    ) -> Result<(String, Option<Timestamp>), RequestError> {
        // A token file may rotate: the token that is sent is the one that is masked.
        let token = self.token.as_ref().map(|token| token.read());
        let token = token.transpose().map_err(|error| match error {
            TokenError::Unusable(why) => RequestError::NoToken(why),
            TokenError::NoResources(shortage) => RequestError::NoResources(shortage),
        })?;
        let request = self.request(request.clone(), token.as_ref())?;
        let (head, body) = self.pool.request(request).await?.into_parts();
        let body = Limited::new(body, MAX_ANSWER_BYTES).collect().await;
        let bytes = body.map_err(RequestError::Broken)?.to_bytes();
        let text = String::from_utf8(bytes.into()).map_err(|_| RequestError::NotText)?;
        if head.status.is_client_error() || head.status.is_server_error() {
            // A proxy may quote the request.
            let text = SecretMask::of(&token).text(&text);
            return Err(RequestError::Refused(refusal(head.status, &text)));
        }
        let date = head.headers.get(DATE).and_then(|value| value.to_str().ok());
        Ok((text, date.and_then(parse_date)))
    }

    fn request(
        &self,
        request: ApiRequest,
        token: Option<&SecretString>,
    ) -> Result<Request<Full<Bytes>>, RequestError> {
        let uri = absolute(&self.base, &request.path, &request.query)
            .map_err(RequestError::Unbuildable)?;
        let mut head = Request::builder().method(request.method).uri(uri).header(ACCEPT, JSON);
        if let Some(token) = token {
            let header = authorization(token).map_err(RequestError::NoToken)?;
            head = head.header(AUTHORIZATION, header);
        }
        let request = match request.body {
            None => head.body(Full::default()),
            Some((kind, body)) => head.header(CONTENT_TYPE, kind).body(Full::new(body.into())),
        };
        request.map_err(RequestError::Unbuildable)
    }
}

/// The status in the server's answer. The page of a proxy has none, and so no reason.
fn refusal(code: StatusCode, text: &str) -> Status {
    let status = serde_json::from_str::<Status>(text);
    let mut status =
        status.unwrap_or_else(|_| Status { message: text.trim().to_owned(), ..Status::default() });
    if status.code == 0 {
        status.code = code.as_u16();
    }
    status
}

fn connector(access: Access) -> Result<HttpsConnector<HttpConnector>> {
    let unusable = |error: rustls::Error| {
        let message =
            format!("the client certificate for {} cannot be used: {error}", access.address);
        Fault::new(FaultCode::CredentialMissing, message)
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
                let message = format!("the tls-server-name for {} is no name", access.address);
                Fault::new(FaultCode::CredentialMissing, message)
            })?;
            https.with_server_name_resolver(FixedServerNameResolver::new(name))
        }
    };
    Ok(https.enable_http1().wrap_connector(http))
}

fn authorization(token: &SecretString) -> Result<HeaderValue, String> {
    let mut value = HeaderValue::try_from(format!("Bearer {}", token.expose_secret()))
        .map_err(|_| "has characters that no token has".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}

/// The time of a `Date` header.
fn parse_date(text: &str) -> Option<Timestamp> {
    let date = jiff::fmt::rfc2822::parse(text).ok()?;
    Some(Timestamp::from_micros(date.timestamp().as_microsecond()))
}

/// The address of the cluster, which may have a path of its own, with the path of the request.
fn absolute(base: &Uri, path: &str, query: &Form) -> Result<Uri, http::Error> {
    let prefix = base.path().trim_end_matches('/');
    let target = match query.is_empty() {
        true => format!("{prefix}{path}"),
        false => format!("{prefix}{path}?{}", query.encoded()),
    };
    let mut parts = base.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(target)?);
    Ok(Uri::from_parts(parts)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_goes_below_the_address_of_the_cluster() {
        let cases = [
            ("https://k:6443", "/api/v1/nodes", "https://k:6443/api/v1/nodes?limit=1"),
            ("https://k/", "/api", "https://k/api?limit=1"),
            ("https://k/k8s/clusters/c-1/", "/api", "https://k/k8s/clusters/c-1/api?limit=1"),
        ];
        for (base, path, desired) in cases {
            let query = Form::default().with("limit", 1);
            let uri = absolute(&base.parse().unwrap(), path, &query).unwrap();
            assert_eq!(uri.to_string(), desired);
        }
    }

    #[test]
    fn a_list_names_its_selector_its_limit_and_its_place() {
        let select = [("fieldSelector", "spec.nodeName=n")];
        let request = |next| ApiRequest::list("/p", &select, 200, next);
        assert_eq!(request(None).query.encoded(), "fieldSelector=spec.nodeName%3Dn&limit=200");
        let next = request(Some("a+/=")).query.encoded();
        assert_eq!(next, "fieldSelector=spec.nodeName%3Dn&limit=200&continue=a%2B%2F%3D");
    }

    #[test]
    fn the_date_of_an_answer_is_read() {
        let date = parse_date("Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(date, Some(Timestamp::from_micros(784_111_777_000_000)));
        assert_eq!(parse_date("yesterday"), None);
    }

    #[test]
    fn what_is_no_status_has_the_code_of_the_answer_and_no_reason() {
        for text in [" <html>no</html> ", "{}", "\"404 page not found\""] {
            let status = refusal(StatusCode::NOT_FOUND, text);
            assert_eq!((status.code, status.reason.as_str()), (404, ""), "{text}");
        }
        let message = r#"{"code":409,"reason":"Conflict","message":"m"}"#;
        let status = refusal(StatusCode::CONFLICT, message);
        assert_eq!((status.code, status.reason.as_str()), (409, "Conflict"));
    }
}
