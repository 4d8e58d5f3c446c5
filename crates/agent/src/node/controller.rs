//! The client of Farrier's agent API: one function for each request, and the meaning of each
//! answer.
//!
//! Controllers are tried in turn, starting with the one that answered last. A request whose answer
//! was lost may have taken effect: that is why every request can be repeated, here and by the
//! caller. Nothing here pauses between attempts.

use super::timing::Timing;
use crate::http::{Client, Request, Timeouts, Url};
use rustls::ClientConfig;
use secrecy::SecretString;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use wire::Refusal;
use wire::node::{
    self, EnrollReply, EnrollRequest, HeartbeatReply, HeartbeatRequest, RenewReply, RenewRequest,
    ReportReply, ReportRequest, TakeReply, TakeRequest,
};

/// The limit of an answer; all are far shorter.
const MAX_ANSWER_BYTES: usize = 1024 * 1024;

/// The reason why this node is not known any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unknown {
    Session,
    Deleted,
    /// A reason that a newer Farrier knows, or none.
    Other,
}

impl Unknown {
    fn of(code: &str) -> Self {
        match code {
            node::SESSION_UNKNOWN => Self::Session,
            node::NODE_DELETED => Self::Deleted,
            _ => Self::Other,
        }
    }
}

/// The reason why a request failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestError {
    /// A retry may succeed.
    Retryable(String),
    /// The token was refused.
    TokenRefused(Refusal),
    /// The session is unknown, or the node has been deleted.
    SessionUnknown(Unknown, String),
    /// The task is no longer wanted.
    TaskOver,
}

pub struct Controller {
    urls: Vec<Url>,
    /// The index of the controller that answered last.
    at: AtomicUsize,
    client: Client,
    /// For long polling: the server answers when there is a task.
    long_poll_client: Client,
    timing: Timing,
}

/// The sender of a request.
#[derive(Clone, Copy)]
enum Sender<'a> {
    /// An enrolling agent, with a token in the request.
    EnrollingAgent,
    Node(&'a SecretString),
}

impl Controller {
    pub fn new(
        urls: Vec<Url>,
        tls: Option<Arc<ClientConfig>>,
        timing: &Timing,
        stop_flag: &Arc<AtomicBool>,
    ) -> Self {
        let timeouts = timing.timeouts;
        let idle = timeouts.idle + timing.take_wait;
        Self {
            urls,
            at: AtomicUsize::new(0),
            client: Client::new(timeouts, stop_flag.clone()).with_tls(tls.clone()),
            long_poll_client: Client::new(Timeouts { idle, ..timeouts }, stop_flag.clone())
                .with_tls(tls),
            timing: *timing,
        }
    }

    pub fn enroll(&self, enroll: &EnrollRequest) -> Result<EnrollReply, RequestError> {
        self.post(&self.client, node::ENROLL, Sender::EnrollingAgent, enroll)
    }

    pub fn heartbeat(
        &self,
        session: &SecretString,
        beat: &HeartbeatRequest,
    ) -> Result<HeartbeatReply, RequestError> {
        self.post(&self.client, node::HEARTBEAT, Sender::Node(session), beat)
    }

    /// Long polling for a task.
    pub fn take(&self, session: &SecretString) -> Result<TakeReply, RequestError> {
        let take = TakeRequest { wait_seconds: self.timing.take_wait.as_secs() };
        self.post(&self.long_poll_client, node::TAKE, Sender::Node(session), &take)
    }

    pub fn renew(
        &self,
        session: &SecretString,
        renew: &RenewRequest,
    ) -> Result<RenewReply, RequestError> {
        self.post(&self.client, node::RENEW, Sender::Node(session), renew)
    }

    pub fn report(
        &self,
        session: &SecretString,
        report: &ReportRequest,
    ) -> Result<ReportReply, RequestError> {
        self.post(&self.client, node::REPORT, Sender::Node(session), report)
    }

    /// Asks each controller at most once and returns the first conclusive answer.
    fn post<T: DeserializeOwned>(
        &self,
        client: &Client,
        path: &str,
        from: Sender,
        content: &impl Serialize,
    ) -> Result<T, RequestError> {
        let json = serde_json::to_vec(content)
            .map_err(|error| RequestError::Retryable(error.to_string()))?;
        let first = self.at.load(Ordering::Relaxed);
        let mut missed = RequestError::Retryable("there is no controller to ask".into());
        for turn in 0..self.urls.len() {
            let at = (first + turn) % self.urls.len();
            let answer = self.post_to(client, &self.urls[at], path, from, &json);
            match answer {
                Err(RequestError::Retryable(message)) => missed = RequestError::Retryable(message),
                meant => {
                    self.at.store(at, Ordering::Relaxed);
                    return meant;
                }
            }
        }
        Err(missed)
    }

    fn post_to<T: DeserializeOwned>(
        &self,
        client: &Client,
        base: &Url,
        path: &str,
        from: Sender,
        json: &[u8],
    ) -> Result<T, RequestError> {
        let url = base.join(path).map_err(RequestError::Retryable)?;
        let bearer = match from {
            Sender::EnrollingAgent => None,
            Sender::Node(session) => Some(session),
        };
        let request = Request { method: "POST", url: &url, bearer, from: None, json: Some(json) };
        let again = |error: io::Error| RequestError::Retryable(format!("{url}: {error}"));
        let response = client.send(&request).map_err(again)?;
        let status = response.status;
        let body = response.body.read_all(MAX_ANSWER_BYTES, self.timing.answer).map_err(again)?;
        if status == 200 {
            return serde_json::from_slice(&body).map_err(|error| {
                RequestError::Retryable(format!("{url} answered what cannot be read: {error}"))
            });
        }
        let refusal: Refusal = serde_json::from_slice(&body).unwrap_or_default();
        Err(classify_answer(status, from, refusal, &url))
    }
}

/// The meaning of an answer other than 200. A status without a known code may come from a proxy.
fn classify_answer(status: u16, from: Sender, refusal: Refusal, url: &Url) -> RequestError {
    match (status, from) {
        (403, Sender::EnrollingAgent) if !refusal.code.is_empty() => {
            RequestError::TokenRefused(refusal)
        }
        (401, Sender::Node(_)) => RequestError::SessionUnknown(
            Unknown::of(&refusal.code),
            crate::deploy_client::describe_refusal(&refusal),
        ),
        (409, Sender::Node(_)) if refusal.code == node::TASK_OVER => RequestError::TaskOver,
        (status, Sender::EnrollingAgent | Sender::Node(_)) => RequestError::Retryable(format!(
            "{url} answered {status}: {}",
            crate::deploy_client::describe_refusal(&refusal)
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_codes_are_final() {
        let url = Url::parse("http://10.0.0.1").unwrap();
        let session = SecretString::from("s");
        let node = Sender::Node(&session);
        let means = |status, from, code: &str| {
            let refusal = Refusal { code: code.into(), message: "why".into() };
            classify_answer(status, from, refusal, &url)
        };
        assert!(matches!(
            means(403, Sender::EnrollingAgent, "token-used"),
            RequestError::TokenRefused(_)
        ));
        for (code, unknown) in [
            ("session-unknown", Unknown::Session),
            ("node-deleted", Unknown::Deleted),
            ("", Unknown::Other),
        ] {
            assert!(
                matches!(means(401, node, code), RequestError::SessionUnknown(found, _) if found == unknown)
            );
        }
        assert_eq!(means(409, node, "task-over"), RequestError::TaskOver);
        for (status, from, code) in [
            (403, Sender::EnrollingAgent, ""),
            (401, Sender::EnrollingAgent, "session-unknown"),
            (403, node, "token-used"),
            (409, node, ""),
            (409, Sender::EnrollingAgent, "task-over"),
            (404, node, ""),
            (429, node, ""),
            (500, node, ""),
            (503, node, "task-over"),
        ] {
            assert!(
                matches!(means(status, from, code), RequestError::Retryable(_)),
                "{status} {code}"
            );
        }
    }
}
