//! Requests to one BMC.
//!
//! [`RedfishClient`] authenticates, follows redirects on the same device, renews an expired session
//! once, reads collections page by page, and changes a resource only if its ETag still matches.
//! Each method returns a decoded resource or a fault.

use super::address::ROOT;
use super::classification;
use super::decode::{Entry, JsonNode, Resource, entry, exact_path, local_path, shown};
use super::login::{AuthHeaders, AuthMethod, OpenedSession, Session, first_method};
use super::{Auth, Login, Settings};
use crate::http_client::Certificate;
use crate::http_client::Endpoint;
use crate::http_client::FileUpload;
use crate::http_client::{Fingerprint, Trust};
use crate::http_client::{HttpClient, HttpClientSettings, HttpRequest, HttpResponse, SendError};
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, ETAG, HeaderMap, HeaderName, HeaderValue, IF_MATCH, LOCATION};
use hyper::{Method, StatusCode};
use model::fault::{Fault, FaultCode, Result};
use serde_json::Value;
use std::sync::Arc;
use tokio::sync::Mutex;

/// The largest response that is read. Most are far smaller; an expanded log may come near.
const MAX_ANSWER_BYTES: usize = 4 * 1024 * 1024;
/// Redfish requires this header on every request.
const HEADERS: &[(&str, &str)] = &[("OData-Version", "4.0")];
const MAX_REDIRECTS: usize = 5;
const MAX_PAGES: usize = 64;
/// The most members of one collection that are read.
pub(super) const MAX_MEMBERS: usize = 2_000;
/// The number of times that a change is tried when the resource changed in between.
const MAX_PATCH_ATTEMPTS: usize = 3;

pub(super) struct RedfishClient {
    http: Arc<HttpClient>,
    login: Login,
    method: AuthMethod,
    sessions_path: String,
    session: Mutex<Option<Session>>,
}

/// A change that the BMC accepted.
#[derive(Debug)]
pub(super) struct Accepted {
    pub status: StatusCode,
    pub location: Option<String>,
    /// The body; null if it is not JSON.
    pub value: Value,
}

/// The resources that were left out of a report, each with the reason.
pub(super) type Skipped = Vec<String>;

impl RedfishClient {
    /// Reads the service root, selects the authentication method and logs in.
    pub async fn open(
        endpoint: Endpoint,
        login: Login,
        trust: Trust,
        settings: &Settings,
    ) -> Result<(Self, Resource)> {
        let mut link = Self::unopened(endpoint, login, trust, settings)?;
        let root = link.read_root(settings.auth).await?;
        let offered = root.root().get("Links").link("Sessions");
        link.method = first_method(settings.auth, offered.is_some());
        if let Some(path) = offered {
            link.sessions_path = path;
        }
        if link.method == AuthMethod::Session {
            match link.open_session(&link.sessions_path).await? {
                OpenedSession::Session(session) => *link.session.get_mut() = Some(session),
                OpenedSession::NotSupported(fault) => match settings.auth {
                    Auth::Session => return Err(fault),
                    Auth::Auto | Auth::Basic => link.method = AuthMethod::Basic,
                },
            }
        }
        link.verify_login(&root).await?;
        Ok((link, root))
    }

    /// A link without a connection.
    pub fn unopened(
        endpoint: Endpoint,
        login: Login,
        trust: Trust,
        settings: &Settings,
    ) -> Result<Self> {
        let settings = HttpClientSettings {
            timeouts: settings.timeouts,
            headers: HEADERS,
            max_answer_bytes: MAX_ANSWER_BYTES,
            keeps_connection: true,
        };
        let allowed = login.allowed.clone();
        let http = Arc::new(HttpClient::new(endpoint, allowed, trust, settings)?);
        let sessions_path = format!("{ROOT}/SessionService/Sessions");
        let (method, session) = (AuthMethod::Basic, Mutex::new(None));
        Ok(Self { http, login, method, sessions_path, session })
    }

    /// Checks the login. A session proves it; with basic authentication a protected resource is
    /// read, so that a wrong password fails here and not at the first change.
    async fn verify_login(&self, root: &Resource) -> Result<()> {
        // A power shelf may have no System.
        let closed = ["Systems", "Chassis"].iter().find_map(|name| root.root().link(name));
        match (self.method, closed) {
            (AuthMethod::Basic, Some(closed)) => self.get(&closed).await.map(|_| ()),
            (AuthMethod::Basic, None) | (AuthMethod::Session, _) => Ok(()),
        }
    }

    /// The standard says that the root needs no login, but some devices require one.
    async fn read_root(&self, auth: Auth) -> Result<Resource> {
        if auth != Auth::Basic
            && let Some(root) = self.open_root().await?
        {
            return Ok(root);
        }
        self.get(&format!("{ROOT}/")).await
    }

    /// The root without a login; None if the device requires one.
    pub async fn open_root(&self) -> Result<Option<Resource>> {
        let path = format!("{ROOT}/");
        let request = get_request(&path);
        let response = self.send_following(request.clone(), &AuthHeaders(Vec::new())).await?;
        if response.status == StatusCode::UNAUTHORIZED {
            return Ok(None);
        }
        let response = classification::check_response(self.endpoint(), &request, response)?;
        self.doc(&path, &response).map(Some)
    }

    /// Connects without sending a request.
    pub async fn open_connection(&self) -> Result<()> {
        self.http.open_connection().await
    }

    pub fn certificate(&self) -> Option<Certificate> {
        self.http.certificate()
    }

    pub fn endpoint(&self) -> &Endpoint {
        self.http.endpoint()
    }

    /// Closes the connection and keeps the session.
    pub fn close_idle(&self) {
        self.http.close_idle();
    }

    pub const fn login(&self) -> &Login {
        &self.login
    }

    pub fn fingerprint(&self) -> Option<Fingerprint> {
        self.http.fingerprint()
    }

    pub async fn close(&self) {
        let session = self.session.lock().await.take();
        if let Some(session) = session {
            session.end(&self.http).await;
        }
    }

    /// Reads a resource that must exist.
    pub async fn get(&self, path: &str) -> Result<Resource> {
        let request = get_request(path);
        let response = self.exchange(request.clone()).await?;
        let response = classification::check_response(self.endpoint(), &request, response)?;
        self.doc(path, &response)
    }

    /// Reads a resource that may be missing.
    pub async fn find(&self, path: &str) -> Result<Option<Resource>> {
        let request = get_request(path);
        let response = self.exchange(request.clone()).await?;
        if matches!(response.status, StatusCode::NOT_FOUND | StatusCode::GONE) {
            return Ok(None);
        }
        let response = classification::check_response(self.endpoint(), &request, response)?;
        self.doc(path, &response).map(Some)
    }

    /// Reads a resource that may be missing or broken; then it is added to `skipped`.
    pub async fn find_or_skip(
        &self,
        path: &str,
        skipped: &mut Skipped,
    ) -> Result<Option<Resource>> {
        match self.find(path).await {
            Ok(Some(doc)) => Ok(Some(doc)),
            Ok(None) => {
                skipped.push(format!("{path} is not there"));
                Ok(None)
            }
            Err(fault) if concerns_one_resource(fault.code) => {
                skipped.push(fault.message);
                Ok(None)
            }
            Err(fault) => Err(fault),
        }
    }

    /// Returns the raw response, for callers that read its status.
    pub async fn get_raw(&self, path: &str) -> Result<(HttpRequest, HttpResponse)> {
        let request = get_request(path);
        let response = self.exchange(request.clone()).await?;
        Ok((request, response))
    }

    pub async fn post(&self, path: &str, body: &Value) -> Result<Accepted> {
        let response = self.change(Method::POST, path, body, None).await?;
        Ok(accepted(&response))
    }

    /// Sends a file once, without renewing the session. `last` is awaited before the last chunk.
    pub async fn upload(
        &self,
        path: &str,
        content_type: &str,
        upload: FileUpload,
        last: impl AsyncFnOnce() -> Result<()>,
    ) -> Result<Accepted> {
        let kind = HeaderValue::from_str(content_type).map_err(|error| {
            Fault::new(
                FaultCode::NotSupported,
                format!("a file of the kind {content_type:?}: {error}"),
            )
        })?;
        let mut headers = vec![(CONTENT_TYPE, kind)];
        headers.extend(self.auth_headers(None).await?.0);
        let request =
            HttpRequest { method: Method::POST, path: path.to_owned(), headers, body: None };
        let sent = self.http.upload(&request, upload, last).await;
        let response = sent.map_err(|error| self.send_fault(&request, error))?;
        Ok(accepted(&classification::check_response(self.endpoint(), &request, response)?))
    }

    /// Changes a resource if it is as it was when `doc` was read. If it changed since, its ETag is
    /// read again: `body` does not depend on the earlier value.
    pub async fn patch(&self, doc: &Resource, body: &Value) -> Result<Accepted> {
        let mut etag = doc.etag.clone();
        for attempt in 1..=MAX_PATCH_ATTEMPTS {
            match self.change(Method::PATCH, &doc.path, body, etag.as_deref()).await {
                Ok(response) => return Ok(accepted(&response)),
                Err(Refused { status: Some(StatusCode::PRECONDITION_FAILED), .. })
                    if attempt < MAX_PATCH_ATTEMPTS && etag.is_some() =>
                {
                    let fresh = self.get(&doc.path).await?.etag;
                    // Some devices return a weak tag and accept it only as a strong one.
                    etag = match attempt {
                        1 => fresh,
                        _ => fresh.map(|tag| tag.trim_start_matches("W/").to_owned()),
                    };
                }
                Err(refused) => return Err(refused.fault),
            }
        }
        let message = format!("{} changed each time it was to be changed by us", doc.path);
        Err(Fault::new(FaultCode::EffectFailed, format!("{}: {message}", self.endpoint())))
    }

    async fn change(
        &self,
        method: Method,
        path: &str,
        body: &Value,
        etag: Option<&str>,
    ) -> Result<HttpResponse, Refused> {
        let tag = etag.and_then(|tag| HeaderValue::from_str(tag).ok());
        let headers = tag.map(|tag| (IF_MATCH, tag)).into_iter().collect();
        let body = Some(Bytes::from(body.to_string()));
        let request = HttpRequest { method, path: path.to_owned(), headers, body };
        let response = self.exchange(request.clone()).await?;
        let status = Some(response.status);
        classification::check_response(self.endpoint(), &request, response)
            .map_err(|fault| Refused { status, fault })
    }

    /// The members of a collection, at most `limit`; those that are only links are read.
    pub async fn members(
        &self,
        path: &str,
        limit: usize,
        skipped: &mut Skipped,
    ) -> Result<Vec<Resource>> {
        let mut members = Vec::new();
        for entry in self.entries(path, limit, skipped).await? {
            match entry {
                Entry::Expanded(doc) => members.push(doc),
                Entry::Link(link) => members.extend(self.find_or_skip(&link, skipped).await?),
            }
        }
        Ok(members)
    }

    /// The members of a collection as it lists them, from all its pages.
    pub async fn entries(
        &self,
        path: &str,
        limit: usize,
        skipped: &mut Skipped,
    ) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        let mut next = Some(path.to_owned());
        for _ in 0..MAX_PAGES {
            let Some(page) = next.take() else { return Ok(entries) };
            let Some(doc) = self.find_or_skip(&page, skipped).await? else { return Ok(entries) };
            entries.extend(doc.root().list("Members").filter_map(entry));
            if entries.len() >= limit {
                entries.truncate(limit);
                return Ok(entries);
            }
            next = doc.root().link("Members@odata.nextLink").filter(|next| *next != page);
        }
        skipped.push(format!("{path} has more than {MAX_PAGES} pages"));
        Ok(entries)
    }

    /// One request with the login; repeated once if the session has expired.
    async fn exchange(&self, request: HttpRequest) -> Result<HttpResponse> {
        let pass = self.auth_headers(None).await?;
        let response = self.send_following(request.clone(), &pass).await?;
        if response.status != StatusCode::UNAUTHORIZED || self.method == AuthMethod::Basic {
            return Ok(response);
        }
        let renewed = self.auth_headers(Some(&pass)).await?;
        self.send_following(request, &renewed).await
    }

    /// Authentication headers other than `stale`, which the device refused.
    async fn auth_headers(&self, stale: Option<&AuthHeaders>) -> Result<AuthHeaders> {
        if self.method == AuthMethod::Basic {
            return self.login.basic();
        }
        let mut session = self.session.lock().await;
        if let Some(current) = session.as_ref().map(Session::auth_headers)
            && stale.is_none_or(|stale| stale.0 != current.0)
        {
            return Ok(current);
        }
        match self.open_session(&self.sessions_path).await? {
            OpenedSession::Session(fresh) => Ok(session.insert(fresh).auth_headers()),
            OpenedSession::NotSupported(fault) => Err(fault),
        }
    }

    /// Follows redirects that stay on the device and repeat the same request.
    pub async fn send_following(
        &self,
        mut request: HttpRequest,
        pass: &AuthHeaders,
    ) -> Result<HttpResponse> {
        let requested = request.path.clone();
        request.headers.extend(pass.0.iter().cloned());
        for _ in 0..=MAX_REDIRECTS {
            let response = self.send(&request).await?;
            match self.redirected(&request, &response)? {
                Some(path) => request.path = path,
                None => return Ok(response),
            }
        }
        let message = format!("{} leads {requested} in a circle", self.endpoint());
        Err(Fault::new(FaultCode::AnswerGarbled, message))
    }

    fn redirected(&self, request: &HttpRequest, response: &HttpResponse) -> Result<Option<String>> {
        let follow = match response.status {
            StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT => true,
            StatusCode::MOVED_PERMANENTLY | StatusCode::FOUND | StatusCode::SEE_OTHER => {
                request.only_reads()
            }
            _ => false,
        };
        let Some(target) = header(&response.headers, &LOCATION).filter(|_| follow) else {
            return Ok(None);
        };
        let own = target.split_once("://").is_none_or(|(scheme, rest)| {
            let authority = rest.split('/').next().unwrap_or_default();
            let tls = scheme.eq_ignore_ascii_case("https");
            tls == self.endpoint().tls() && self.endpoint().is_at(authority)
        });
        match exact_path(&target).filter(|_| own) {
            Some(path) => Ok(Some(path)),
            None => {
                let message = format!(
                    "{} sends us elsewhere for {}, to {}: correct the address",
                    self.endpoint(),
                    request.path,
                    shown(&target)
                );
                Err(Fault::new(FaultCode::AnswerGarbled, message))
            }
        }
    }

    async fn send(&self, request: &HttpRequest) -> Result<HttpResponse> {
        self.http.send(request).await.map_err(|error| self.send_fault(request, error))
    }

    fn send_fault(&self, request: &HttpRequest, error: SendError) -> Fault {
        match error {
            SendError::Unsent(fault) => fault,
            SendError::Lost(why) => {
                let (code, end) = if request.only_reads() {
                    (FaultCode::BmcUnreachable, "")
                } else {
                    (FaultCode::AnswerLost, ", so it may have been done")
                };
                let HttpRequest { method, path, .. } = request;
                let message =
                    format!("{} was asked to {method} {path}: {why}{end}", self.endpoint());
                Fault::new(code, message)
            }
        }
    }

    fn doc(&self, path: &str, response: &HttpResponse) -> Result<Resource> {
        let garbled = |why: String| {
            let message = format!("{} sent no resource for {path}: {why}", self.endpoint());
            Fault::new(FaultCode::AnswerGarbled, message)
        };
        let body = response.body.as_ref().map_err(|why| garbled(why.clone()))?;
        let value: Value = serde_json::from_slice(body)
            .map_err(|error| garbled(format!("{error} in {:?}", shown(&beginning(body)))))?;
        if !value.is_object() {
            return Err(garbled("it is no JSON object".into()));
        }
        let etag =
            header(&response.headers, &ETAG).or_else(|| JsonNode(&value).text("@odata.etag"));
        Ok(Resource { path: path.to_owned(), etag, value })
    }
}

impl Drop for RedfishClient {
    /// BMCs allow few sessions, and most keep an unused one for half an hour.
    fn drop(&mut self) {
        if let Some(session) = self.session.get_mut().take() {
            session.end_later(self.http.clone());
        }
    }
}

/// A change that was refused, with the status of the response.
struct Refused {
    status: Option<StatusCode>,
    fault: Fault,
}

impl From<Fault> for Refused {
    fn from(fault: Fault) -> Self {
        Self { status: None, fault }
    }
}

impl From<Refused> for Fault {
    fn from(refused: Refused) -> Self {
        refused.fault
    }
}

/// True if a fault concerns one resource and not the whole BMC.
const fn concerns_one_resource(code: FaultCode) -> bool {
    matches!(code, FaultCode::NotSupported | FaultCode::EffectFailed | FaultCode::AnswerGarbled)
}

fn get_request(path: &str) -> HttpRequest {
    HttpRequest { method: Method::GET, path: path.to_owned(), headers: Vec::new(), body: None }
}

fn accepted(response: &HttpResponse) -> Accepted {
    let body = response.body.as_deref().unwrap_or_default();
    Accepted {
        status: response.status,
        location: header(&response.headers, &LOCATION).as_deref().and_then(local_path),
        value: serde_json::from_slice(body).unwrap_or_default(),
    }
}

fn header(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    Some(headers.get(name)?.to_str().ok()?.to_owned())
}

/// The beginning of an unreadable response, for the fault.
fn beginning(body: &Bytes) -> String {
    const SHOWN_BYTES: usize = 80;
    String::from_utf8_lossy(&body[..body.len().min(SHOWN_BYTES)]).into_owned()
}
