//! A fake MAAS over HTTP, because no package registry has one: the paths, status codes and texts of
//! MAAS 3.4, and stricter than it. It refuses a wrong content type, an unknown parameter and a
//! nonce used twice, so that no mistake of a client passes unnoticed. It shares no type with the
//! client under test.
//!
//! A behaviour that surprises has a note with its versions: *run* was seen at a region that ran,
//! *read* was read in the source of that version.
//!
//! `status` are the statuses, `state` is the state and how machines change, `ops` are the
//! operations on a machine, and `region` is the rest.

mod form;
mod ops;
mod region;
mod state;
mod status;

pub use state::{AnswerLoss, End, MaasState, OperationTime, PlannedOutcomes, Released, Trouble};
pub use status::NodeStatus;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use form::Form;
use serde_json::Value;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

const MAX_BODY_BYTES: usize = 4 * 1024 * 1024;
const API: &str = "/MAAS/api/2.0/";
/// The valid key, and its parts.
pub const KEY: &str = "consumer:token-of-admin:s3cret-of-admin";
const CONSUMER: &str = "consumer";
const TOKEN: &str = "token-of-admin";
const SIGNATURE: &str = "&s3cret-of-admin";
/// The tolerated difference of the clocks, in seconds.
const MAX_SKEW_S: u64 = 300;
/// The answers when MAAS asks for a retry: after a conflict, and when it is unavailable.
pub const CONFLICT_PAGE: &str =
    "<!DOCTYPE html><html><body>Conflict error. Try your request again.</body></html>";

/// A running MAAS. Dropping it stops it.
pub struct MaasApi {
    pub address: SocketAddr,
    state: Arc<Mutex<MaasState>>,
    server: JoinHandle<io::Result<()>>,
}

impl Drop for MaasApi {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl MaasApi {
    pub async fn start() -> io::Result<Self> {
        let env = Arc::new(Mutex::new(MaasState::default()));
        let tcp = TcpListener::bind("127.0.0.1:0").await?;
        let address = tcp.local_addr()?;
        let router = Router::new().fallback(answer).with_state(Arc::clone(&env));
        let serve = axum::serve(tcp, router);
        Ok(Self { address, state: env, server: tokio::spawn(async move { serve.await }) })
    }

    /// The URL, as a site has it.
    pub fn url(&self) -> String {
        format!("http://{}/MAAS", self.address)
    }

    /// The state, for reading and changing. Do not hold the lock during a request.
    pub fn state(&self) -> MutexGuard<'_, MaasState> {
        lock(&self.state)
    }
}

fn lock(env: &Mutex<MaasState>) -> MutexGuard<'_, MaasState> {
    env.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An answer of MAAS.
pub enum Reply {
    Json(Value),
    Text(u16, String),
    /// The errors by field.
    Wrong(Value),
    Gone,
    Deleted,
}

impl Reply {
    fn text(status: u16, words: impl Into<String>) -> Self {
        Self::Text(status, words.into())
    }

    /// An error in one field.
    fn field(name: &str, words: impl Into<String>) -> Self {
        Self::Wrong(serde_json::json!({name: [words.into()]}))
    }
}

impl IntoResponse for Reply {
    fn into_response(self) -> Response {
        let plain = [("content-type", "text/plain; charset=utf-8")];
        let json = [("content-type", "application/json; charset=utf-8")];
        match self {
            Self::Json(value) => (StatusCode::OK, json, value.to_string()).into_response(),
            Self::Text(status, words) => {
                let status = StatusCode::from_u16(status).unwrap_or(StatusCode::IM_A_TEAPOT);
                (status, plain, words).into_response()
            }
            Self::Wrong(fields) => {
                (StatusCode::BAD_REQUEST, json, fields.to_string()).into_response()
            }
            Self::Gone => {
                let words = "No Machine matches the given query.";
                (StatusCode::NOT_FOUND, plain, words).into_response()
            }
            Self::Deleted => StatusCode::NO_CONTENT.into_response(),
        }
    }
}

/// One parsed request.
pub struct Call {
    pub method: Method,
    /// The path below the API's root, without slashes.
    pub path: Vec<String>,
    pub query: Form,
    pub form: Form,
    pub op: Option<String>,
}

impl Call {
    /// The name in counts and troubles: the operation, or what the method does.
    pub fn name(&self) -> &str {
        match (&self.op, self.method.as_str()) {
            (Some(op), _) => op,
            (None, "GET") => "read",
            (None, "POST") => "create",
            (None, "PUT") => "update",
            (None, _) => "delete",
        }
    }

    pub fn changes(&self) -> bool {
        self.method != Method::GET
    }

    /// The system id of the machine in the path.
    pub fn machine(&self) -> &str {
        let named = self.path.get(1).map(String::as_str);
        match self.path.first().map(String::as_str) {
            Some("machines" | "nodes") => named.or(self.form.get("system_id")).unwrap_or_default(),
            _ => "",
        }
    }
}

async fn answer(State(env): State<Arc<Mutex<MaasState>>>, request: Request) -> Response {
    let _under_way = InFlight::begin(&env);
    match read_call(&env, request).await {
        Ok(call) => answer_with_trouble(&env, call).await,
        Err(message) => message.into_response(),
    }
}

/// Counts the concurrent requests, for tests of limits.
struct InFlight(Arc<Mutex<MaasState>>);

impl InFlight {
    fn begin(env: &Arc<Mutex<MaasState>>) -> Self {
        let mut inner = lock(env);
        inner.under_way += 1;
        inner.most_under_way = inner.most_under_way.max(inner.under_way);
        Self(Arc::clone(env))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        lock(&self.0).under_way -= 1;
    }
}

async fn answer_with_trouble(env: &Mutex<MaasState>, call: Call) -> Response {
    let falls = lock(env).answer_loss.clone();
    let fall = falls.and_then(|falls| falls());
    if let Some((AnswerLoss::Before, fallen)) = fall {
        fallen();
        return std::future::pending().await;
    }
    let failure = lock(env).take_trouble(&call);
    if let Some((AnswerLoss::Late, fallen)) = fall {
        lock(env).in_transit.push(call);
        fallen();
        return std::future::pending().await;
    }
    let act = || lock(env).execute(&call).into_response();
    if let Some((AnswerLoss::After, fallen)) = fall {
        let _made = act();
        fallen();
        return std::future::pending().await;
    }
    match failure {
        None => act(),
        Some(Trouble::Busy { retry_after }) => {
            let words = "Unable to connect to any rack controller; no connections available.";
            retry_later(503, retry_after, words)
        }
        Some(Trouble::Conflict { retry_after }) => retry_later(409, retry_after, CONFLICT_PAGE),
        Some(Trouble::Says(status, words)) => Reply::text(status, words).into_response(),
        Some(Trouble::BusyAfterActing { retry_after }) => {
            let _made = act();
            retry_later(503, retry_after, "Unable to connect to any rack controller")
        }
        Some(Trouble::BmcUnreachable) => lock(env).bmc_unreachable(&call).into_response(),
        Some(Trouble::CutAfterActing) => {
            let _made = act();
            let parts =
                [Ok("{\"system_id\":"), Err(io::Error::from(io::ErrorKind::ConnectionReset))];
            Response::new(Body::from_stream(futures_util::stream::iter(parts)))
        }
        Some(Trouble::HangAfterActing) => {
            let _made = act();
            std::future::pending().await
        }
        Some(Trouble::Second) => {
            let _made = act();
            act()
        }
        Some(Trouble::Slow(time)) => {
            tokio::time::sleep(time).await;
            act()
        }
    }
}

fn retry_later(status: u16, retry_after: Option<u64>, words: &str) -> Response {
    let mut response = Reply::text(status, words).into_response();
    if let Some(seconds) = retry_after {
        response.headers_mut().insert("retry-after", seconds.into());
    }
    response
}

async fn read_call(env: &Mutex<MaasState>, request: Request) -> Result<Call, Reply> {
    let (head, body) = request.into_parts();
    let body = to_bytes(body, MAX_BODY_BYTES).await.map_err(|e| Reply::text(400, e.to_string()))?;
    let path = head.uri.path().to_owned();
    let query = Form::parse(head.uri.query().unwrap_or_default());
    lock(env).record_request(format!("{} {}", head.method, head.uri));
    let Some(rest) = path.strip_prefix(API) else {
        return Err(Reply::text(404, "<!DOCTYPE html><title>404</title>"));
    };
    if rest != "version/" {
        authenticate(env, &head.headers)?;
    }
    let mut path: Vec<String> =
        rest.split('/').filter(|p| !p.is_empty()).map(form::decode).collect();
    let in_path = path.last().and_then(|last| last.strip_prefix("op-")).map(str::to_owned);
    if in_path.is_some() {
        path.pop();
    } else if !rest.ends_with('/') {
        return Err(Reply::text(404, "<!DOCTYPE html><title>404</title>"));
    }
    let form = read_form(&head.headers, &body)?;
    let op = query.get("op").map(str::to_owned).or(in_path);
    Ok(Call { method: head.method, path, query: query.without("op"), form, op })
}

fn read_form(headers: &HeaderMap, body: &Bytes) -> Result<Form, Reply> {
    if body.is_empty() {
        return Ok(Form::default());
    }
    let kind = headers.get("content-type").and_then(|value| value.to_str().ok());
    if kind != Some("application/x-www-form-urlencoded") {
        return Err(Reply::text(400, format!("a body of the kind {kind:?} is not read here")));
    }
    Ok(Form::parse(&String::from_utf8_lossy(body)))
}

/// OAuth 1.0a with PLAINTEXT, with all of its parts.
fn authenticate(env: &Mutex<MaasState>, headers: &HeaderMap) -> Result<(), Reply> {
    let no = |words: String| Reply::text(401, format!("Authorization Error: {words}"));
    let header = headers.get("authorization").and_then(|value| value.to_str().ok());
    let Some(given) = header.and_then(|value| value.strip_prefix("OAuth ")) else {
        return Err(Reply::text(401, "Authorization Required"));
    };
    let pairs: Vec<(&str, String)> = given
        .split(',')
        .filter_map(|pair| pair.trim().split_once('='))
        .map(|(name, value)| (name, form::decode(value.trim_matches('"'))))
        .collect();
    let part = |name: &str| {
        let found = pairs.iter().find(|(given, _)| *given == name);
        found.map(|(_, value)| value.as_str()).unwrap_or_default()
    };
    if part("oauth_version") != "1.0" || part("oauth_signature_method") != "PLAINTEXT" {
        return Err(no("'Signature method not supported.'".into()));
    }
    if part("oauth_consumer_key") != CONSUMER {
        return Err(no("Invalid API key.".into()));
    }
    if part("oauth_token") != TOKEN {
        return Err(no(format!("'Invalid access token: {}'", part("oauth_token"))));
    }
    if part("oauth_signature") != SIGNATURE {
        // With PLAINTEXT the base string is the secret (run: 3.4.8; read: 3.4.8 to 3.7.3).
        return Err(no(format!(
            "'Invalid signature. Expected signature base string: {SIGNATURE}'"
        )));
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let at: u64 = part("oauth_timestamp").parse().unwrap_or_default();
    if at.abs_diff(now) > MAX_SKEW_S {
        return Err(no(format!(
            "'Expired timestamp: given {at} and now {now} has a greater difference'"
        )));
    }
    match lock(env).use_nonce(part("oauth_nonce")) {
        true => Ok(()),
        false => Err(no(format!("'Nonce already used: {}'", part("oauth_nonce")))),
    }
}
