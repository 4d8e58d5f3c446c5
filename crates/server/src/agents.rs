//! The door for agents: JSON over HTTP, on a port of its own, as it faces the nodes' network and not the operators'.
//!
//! An agent enrolls once with the token that was issued for its node, and is known from then on by the session that it made for
//! itself. Who is not let in is told why by a code and a sentence; while we cannot look, everybody is asked to try again. The crate
//! `wire` is what is said; `convert` reads it.

mod convert;

use crate::config::Nodes;
use crate::netboot::{send, session};
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use engine::nodes::Agents;
use model::node::enroll::Denied;
use model::refusal::Refusal;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use store::StoreError;
use wire::node::{self, EnrollReply, HeartbeatReply, RenewReply, ReportReply, TakeRequest};

/// The most that an agent says at once: a piece of log, with every byte of it escaped, and a little more.
const MAX_BODY: usize = 512 * 1024;

#[derive(Clone)]
struct Shared {
    agents: Agents,
    heartbeat_seconds: u32,
    binary: Arc<PathBuf>,
}

pub fn router(agents: Agents, settings: &Nodes) -> Router {
    let shared = Shared {
        agents,
        heartbeat_seconds: settings.heartbeat_seconds,
        binary: Arc::new(settings.agent_binary.clone()),
    };
    Router::new()
        .route(node::ENROLL, post(enroll))
        .route(node::HEARTBEAT, post(heartbeat))
        .route(node::TAKE, post(take))
        .route(node::RENEW, post(renew))
        .route(node::REPORT, post(report))
        .route("/agent/v1/binary", get(binary))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(shared)
}

/// Why an agent gets no answer to its question.
enum Refused {
    /// It has not said what it had to.
    Said(Refusal),
    /// It may not, at the door where tokens are shown.
    Token(Denied),
    /// It may not, with the session that it shows.
    Session(Denied),
    Store(StoreError),
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self::Said(refusal)
    }
}

impl From<StoreError> for Refused {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let denied =
            |status: StatusCode, denied: Denied| refusal(status, denied.as_str(), denied.said());
        match self {
            Self::Said(wrong) => refusal(StatusCode::BAD_REQUEST, "not-understood", &wrong.said),
            Self::Token(why) => denied(StatusCode::FORBIDDEN, why),
            Self::Session(Denied::TaskOver) => denied(StatusCode::CONFLICT, Denied::TaskOver),
            Self::Session(why) => denied(StatusCode::UNAUTHORIZED, why),
            Self::Store(error) => unavailable(&error),
        }
    }
}

fn refusal(status: StatusCode, code: &str, said: &str) -> Response {
    let refusal = wire::Refusal { code: code.into(), said: said.into() };
    (status, Json(refusal)).into_response()
}

/// The agent tries again until we can look, or until what is in its way has ended.
fn unavailable(error: &StoreError) -> Response {
    tracing::warn!(%error, "an agent has to wait");
    let said = match error {
        StoreError::Refused(refusal) => format!("try again: {}\n", refusal.said),
        StoreError::Unavailable(_) | StoreError::Conflict | StoreError::Corrupt(_) => {
            "try again\n".to_string()
        }
    };
    (StatusCode::SERVICE_UNAVAILABLE, said).into_response()
}

type Answer = Result<Response, Refused>;

async fn enroll(State(shared): State<Shared>, body: Bytes) -> Answer {
    let (token, applicant) = convert::enrollment(convert::read(&body)?)?;
    let hostname = applicant.hostname.clone();
    match shared.agents.enroll(&token, applicant).await? {
        Ok(node) => {
            tracing::info!(%node, hostname, "an agent has enrolled");
            let heartbeat_seconds = shared.heartbeat_seconds.into();
            Ok(Json(EnrollReply { heartbeat_seconds, node: node.to_string() }).into_response())
        }
        Err(denied) => {
            tracing::warn!(hostname, why = denied.as_str(), "an agent was not let in");
            Err(Refused::Token(denied))
        }
    }
}

async fn heartbeat(State(shared): State<Shared>, headers: HeaderMap, body: Bytes) -> Answer {
    let problems = convert::problems(&convert::read(&body)?)?;
    let heard = shared.agents.heartbeat(session(&headers), problems).await?;
    let beat = heard.map_err(Refused::Session)?;
    let heartbeat_seconds = shared.heartbeat_seconds.into();
    Ok(Json(HeartbeatReply { heartbeat_seconds, waiting: beat.waiting }).into_response())
}

async fn take(State(shared): State<Shared>, headers: HeaderMap, body: Bytes) -> Answer {
    let TakeRequest { wait_seconds } = convert::read(&body)?;
    let wait = Duration::from_secs(wait_seconds);
    let taken = shared.agents.take(session(&headers), wait).await?;
    let taken = taken.map_err(Refused::Session)?;
    Ok(Json(convert::take_reply(taken)).into_response())
}

async fn renew(State(shared): State<Shared>, headers: HeaderMap, body: Bytes) -> Answer {
    let (key, log) = convert::renewal(convert::read(&body)?)?;
    let then = shared.agents.renew(session(&headers), &key, log).await?;
    let then = then.map_err(Refused::Session)?;
    Ok(Json(RenewReply { then: convert::then(then) }).into_response())
}

async fn report(State(shared): State<Shared>, headers: HeaderMap, body: Bytes) -> Answer {
    let report = convert::report(convert::read(&body)?)?;
    let heard = shared.agents.report(session(&headers), report).await?;
    heard.map_err(Refused::Session)?;
    Ok(Json(ReportReply {}).into_response())
}

/// The agent itself, for a node that has just been installed.
async fn binary(State(shared): State<Shared>, request: Request) -> Response {
    if shared.binary.as_os_str().is_empty() {
        let said =
            "this server gives out no agent: nodes.agent_binary is not set in its configuration\n";
        return (StatusCode::NOT_FOUND, said).into_response();
    }
    send(shared.binary.to_path_buf(), request).await
}
