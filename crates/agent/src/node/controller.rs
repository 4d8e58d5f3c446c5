//! The way to Farrier's replicas: one function for each thing that is asked, and what an answer means.
//!
//! Replicas are tried in turn, and the one that answered is asked first the next time. A request whose answer was lost may have counted:
//! that is why each of them may be repeated, here and by whoever asked. Nothing is waited for here but an answer.

use super::pace::Pace;
use crate::http::{Client, Limits, Request, Url};
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

/// Answers are far shorter.
const MAX_ANSWER_BYTES: usize = 1024 * 1024;

/// Why this node is not known any more.
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

/// What did not come of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Missed {
    /// It may come yet.
    Again(String),
    /// The token was refused.
    Refused(Refusal),
    /// This node is not known, or not any more.
    Unknown(Unknown, String),
    /// Nobody wants this task any more.
    Over,
}

pub struct Controller {
    urls: Vec<Url>,
    /// Which of them answered last.
    at: AtomicUsize,
    client: Client,
    /// For a request that is answered when there is something to say.
    patient: Client,
    pace: Pace,
}

/// Whom a request comes from.
#[derive(Clone, Copy)]
enum From<'a> {
    /// Somebody with a token in the request.
    Stranger,
    Node(&'a SecretString),
}

impl Controller {
    pub fn new(urls: Vec<Url>, pace: &Pace, brake: &Arc<AtomicBool>) -> Self {
        let limits = pace.limits;
        let silence = limits.silence + pace.take_wait;
        Self {
            urls,
            at: AtomicUsize::new(0),
            client: Client::new(limits, brake.clone()),
            patient: Client::new(Limits { silence, ..limits }, brake.clone()),
            pace: *pace,
        }
    }

    pub fn enroll(&self, enroll: &EnrollRequest) -> Result<EnrollReply, Missed> {
        self.post(&self.client, node::ENROLL, From::Stranger, enroll)
    }

    pub fn heartbeat(
        &self,
        session: &SecretString,
        beat: &HeartbeatRequest,
    ) -> Result<HeartbeatReply, Missed> {
        self.post(&self.client, node::HEARTBEAT, From::Node(session), beat)
    }

    /// Waits for a task for a while.
    pub fn take(&self, session: &SecretString) -> Result<TakeReply, Missed> {
        let take = TakeRequest { wait_seconds: self.pace.take_wait.as_secs() };
        self.post(&self.patient, node::TAKE, From::Node(session), &take)
    }

    pub fn renew(
        &self,
        session: &SecretString,
        renew: &RenewRequest,
    ) -> Result<RenewReply, Missed> {
        self.post(&self.client, node::RENEW, From::Node(session), renew)
    }

    pub fn report(
        &self,
        session: &SecretString,
        report: &ReportRequest,
    ) -> Result<ReportReply, Missed> {
        self.post(&self.client, node::REPORT, From::Node(session), report)
    }

    /// Asks each replica once at most, and takes the first answer that means something.
    fn post<T: DeserializeOwned>(
        &self,
        client: &Client,
        path: &str,
        from: From,
        content: &impl Serialize,
    ) -> Result<T, Missed> {
        let json = serde_json::to_vec(content).map_err(|error| Missed::Again(error.to_string()))?;
        let first = self.at.load(Ordering::Relaxed);
        let mut missed = Missed::Again("there is no controller to ask".into());
        for turn in 0..self.urls.len() {
            let at = (first + turn) % self.urls.len();
            let answer = self.ask(client, &self.urls[at], path, from, &json);
            match answer {
                Err(Missed::Again(said)) => missed = Missed::Again(said),
                meant => {
                    self.at.store(at, Ordering::Relaxed);
                    return meant;
                }
            }
        }
        Err(missed)
    }

    fn ask<T: DeserializeOwned>(
        &self,
        client: &Client,
        base: &Url,
        path: &str,
        from: From,
        json: &[u8],
    ) -> Result<T, Missed> {
        let url = base.join(path).map_err(Missed::Again)?;
        let bearer = match from {
            From::Stranger => None,
            From::Node(session) => Some(session),
        };
        let request = Request { method: "POST", url: &url, bearer, from: None, json: Some(json) };
        let again = |error: io::Error| Missed::Again(format!("{url}: {error}"));
        let response = client.send(&request).map_err(again)?;
        let status = response.status;
        let body = response.body.read_all(MAX_ANSWER_BYTES, self.pace.answer).map_err(again)?;
        if status == 200 {
            return serde_json::from_slice(&body).map_err(|error| {
                Missed::Again(format!("{url} answered what cannot be read: {error}"))
            });
        }
        let refusal: Refusal = serde_json::from_slice(&body).unwrap_or_default();
        Err(meaning(status, from, refusal, &url))
    }
}

/// What an answer other than 200 means. A status without a code that is known may come from a proxy in between.
fn meaning(status: u16, from: From, refusal: Refusal, url: &Url) -> Missed {
    match (status, from) {
        (403, From::Stranger) if !refusal.code.is_empty() => Missed::Refused(refusal),
        (401, From::Node(_)) => {
            Missed::Unknown(Unknown::of(&refusal.code), crate::farrier::spoken(&refusal))
        }
        (409, From::Node(_)) if refusal.code == node::TASK_OVER => Missed::Over,
        (status, From::Stranger | From::Node(_)) => {
            Missed::Again(format!("{url} answered {status}: {}", crate::farrier::spoken(&refusal)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_agreed_is_final() {
        let url = Url::parse("http://10.0.0.1").unwrap();
        let session = SecretString::from("s");
        let node = From::Node(&session);
        let means = |status, from, code: &str| {
            let refusal = Refusal { code: code.into(), said: "why".into() };
            meaning(status, from, refusal, &url)
        };
        assert!(matches!(means(403, From::Stranger, "token-used"), Missed::Refused(_)));
        for (code, unknown) in [
            ("session-unknown", Unknown::Session),
            ("node-deleted", Unknown::Deleted),
            ("", Unknown::Other),
        ] {
            assert!(
                matches!(means(401, node, code), Missed::Unknown(found, _) if found == unknown)
            );
        }
        assert_eq!(means(409, node, "task-over"), Missed::Over);
        for (status, from, code) in [
            (403, From::Stranger, ""),
            (401, From::Stranger, "session-unknown"),
            (403, node, "token-used"),
            (409, node, ""),
            (409, From::Stranger, "task-over"),
            (404, node, ""),
            (429, node, ""),
            (500, node, ""),
            (503, node, "task-over"),
        ] {
            assert!(matches!(means(status, from, code), Missed::Again(_)), "{status} {code}");
        }
    }
}
