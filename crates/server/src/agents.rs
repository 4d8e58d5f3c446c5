//! The HTTP API for agents: JSON, on a separate port, because it faces the nodes' network and not
//! the operators'.
//!
//! An agent enrolls once with the token that was issued for its node, and then authenticates with
//! the session secret that it generated. A denied request is answered with a code and a sentence;
//! while the database does not answer, every request is answered with "try again". The crate `wire`
//! has the message formats; `convert` reads them.

pub(crate) mod convert;

use crate::config::Nodes;
use crate::netboot::{send, session};
use crate::rate_limit::{RequestLimits, limit_anonymous, limit_logins};
use crate::summed_log::SummedLog;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use engine::node::Agents;
use model::node::enroll::EnrollmentRefusal;
use model::refusal::Refusal;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use store::StoreError;
use wire::node::{self, EnrollReply, HeartbeatReply, RenewReply, ReportReply, TakeRequest};

/// The largest request: a chunk of log with every byte escaped, and a small margin.
const MAX_BODY: usize = 512 * 1024;

#[derive(Clone)]
struct AgentApi {
    agents: Agents,
    heartbeat_seconds: u32,
    binary: Arc<PathBuf>,
}

pub fn router(agents: Agents, settings: &Nodes) -> Router {
    let shared = AgentApi {
        agents,
        heartbeat_seconds: settings.heartbeat_seconds,
        binary: Arc::new(settings.agent_binary.clone()),
    };
    let limits = RequestLimits::new(SummedLog::new("agents"));
    let logins = Router::new()
        .route(node::ENROLL, post(enroll))
        .route(node::HEARTBEAT, post(heartbeat))
        .route(node::TAKE, post(take))
        .route(node::RENEW, post(renew))
        .route(node::REPORT, post(report))
        .layer(middleware::from_fn_with_state(limits.clone(), limit_logins));
    Router::new()
        .route("/agent/v1/binary", get(binary))
        .layer(middleware::from_fn_with_state(limits, limit_anonymous))
        .merge(logins)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(shared)
}

/// The reason why a request of an agent fails.
enum AgentError {
    /// A field of the request is missing or malformed.
    Malformed(Refusal),
    /// The enrollment token is refused.
    TokenDenied(EnrollmentRefusal),
    /// The session, or the task it names, is refused.
    SessionDenied(EnrollmentRefusal),
    Store(StoreError),
}

impl From<Refusal> for AgentError {
    fn from(refusal: Refusal) -> Self {
        Self::Malformed(refusal)
    }
}

impl From<StoreError> for AgentError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl IntoResponse for AgentError {
    fn into_response(self) -> Response {
        let denied = |status: StatusCode, denied: EnrollmentRefusal| {
            refusal(status, denied.as_str(), denied.message())
        };
        match self {
            Self::Malformed(wrong) => {
                refusal(StatusCode::BAD_REQUEST, "not-understood", &wrong.message)
            }
            Self::TokenDenied(why) => denied(StatusCode::FORBIDDEN, why),
            Self::SessionDenied(EnrollmentRefusal::TaskOver) => {
                denied(StatusCode::CONFLICT, EnrollmentRefusal::TaskOver)
            }
            Self::SessionDenied(why) => denied(StatusCode::UNAUTHORIZED, why),
            Self::Store(error) => unavailable(&error),
        }
    }
}

fn refusal(status: StatusCode, code: &str, text: &str) -> Response {
    let refusal = wire::Refusal { code: code.into(), message: text.into() };
    (status, Json(refusal)).into_response()
}

/// The agent retries until the database answers or the obstacle is gone.
fn unavailable(error: &StoreError) -> Response {
    tracing::warn!(%error, "request of an agent answered with 503");
    let message = match error {
        StoreError::Refused(refusal) => format!("try again: {}\n", refusal.message),
        StoreError::Unavailable(_) | StoreError::Conflict | StoreError::Corrupt(_) => {
            "try again\n".to_string()
        }
    };
    (StatusCode::SERVICE_UNAVAILABLE, message).into_response()
}

type Answer = Result<Response, AgentError>;

async fn enroll(State(shared): State<AgentApi>, body: Bytes) -> Answer {
    let (token, applicant) = convert::enrollment(convert::read(&body)?)?;
    let hostname = applicant.hostname.clone();
    match shared.agents.enroll(&token, applicant).await? {
        Ok(node) => {
            tracing::info!(%node, hostname, "agent enrolled");
            let heartbeat_seconds = shared.heartbeat_seconds.into();
            Ok(Json(EnrollReply { heartbeat_seconds, node: node.to_string() }).into_response())
        }
        Err(denied) => {
            tracing::debug!(hostname, why = denied.as_str(), "enrollment denied");
            Err(AgentError::TokenDenied(denied))
        }
    }
}

async fn heartbeat(State(shared): State<AgentApi>, headers: HeaderMap, body: Bytes) -> Answer {
    let problems = convert::problems(&convert::read(&body)?)?;
    let received = shared.agents.heartbeat(session(&headers), problems).await?;
    let beat = received.map_err(AgentError::SessionDenied)?;
    let heartbeat_seconds = shared.heartbeat_seconds.into();
    Ok(Json(HeartbeatReply { heartbeat_seconds, waiting: beat.waiting }).into_response())
}

async fn take(State(shared): State<AgentApi>, headers: HeaderMap, body: Bytes) -> Answer {
    let TakeRequest { wait_seconds } = convert::read(&body)?;
    let wait = Duration::from_secs(wait_seconds);
    let taken = shared.agents.take(session(&headers), wait).await?;
    let taken = taken.map_err(AgentError::SessionDenied)?;
    Ok(Json(convert::take_reply(taken)).into_response())
}

async fn renew(State(shared): State<AgentApi>, headers: HeaderMap, body: Bytes) -> Answer {
    let (key, log) = convert::renewal(convert::read(&body)?)?;
    let then = shared.agents.renew(session(&headers), &key, log).await?;
    let then = then.map_err(AgentError::SessionDenied)?;
    Ok(Json(RenewReply { next_action: then }).into_response())
}

async fn report(State(shared): State<AgentApi>, headers: HeaderMap, body: Bytes) -> Answer {
    let report = convert::report(convert::read(&body)?)?;
    let heartbeat = shared.agents.report(session(&headers), report).await?;
    heartbeat.map_err(AgentError::SessionDenied)?;
    Ok(Json(ReportReply {}).into_response())
}

/// The agent binary, for a node that has just been installed.
async fn binary(State(shared): State<AgentApi>, request: Request) -> Response {
    if shared.binary.as_os_str().is_empty() {
        let message =
            "this server gives out no agent: nodes.agent_binary is not set in its configuration\n";
        return (StatusCode::NOT_FOUND, message).into_response();
    }
    send(shared.binary.to_path_buf(), request).await
}
