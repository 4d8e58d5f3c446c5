//! Enrollment: exchanges the one-time token for a node's identity, with a session secret that is
//! stored before it is sent.
//!
//! After a lost answer the agent repeats the request with the same token and session, which Farrier
//! recognizes. Another token is another enrollment: this is how a node whose session is no longer
//! valid comes back, without removing files. A refused token changes nothing: an enrolled node
//! keeps its identity and reports the refusal.

use super::Service;
use super::controller::RequestError;
use super::identity::VERSION;
use super::journal::{NodeIdentity, PendingEnrollment};
use crate::deploy_client::describe_refusal;
use crate::image::hex;
use crate::random;
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};
use wire::node::EnrollRequest;

/// The next action of enrollment.
#[derive(PartialEq, Eq)]
pub enum EnrollmentPlan {
    /// The node is enrolled.
    Serve(NodeIdentity),
    /// Send the stored enrollment, for the first time or again.
    Send(PendingEnrollment),
    /// Create a session for this token, store it and send it.
    Begin {
        token_sha256: String,
    },
    NoToken,
}

pub fn plan(
    node: Option<NodeIdentity>,
    requested: Option<PendingEnrollment>,
    token_sha256: Option<String>,
) -> EnrollmentPlan {
    match (node, requested, token_sha256) {
        (Some(node), _, None) => EnrollmentPlan::Serve(node),
        (Some(node), _, Some(sum)) if node.token_sha256 == sum => EnrollmentPlan::Serve(node),
        (_, Some(requested), Some(sum)) if requested.token_sha256 == sum => {
            EnrollmentPlan::Send(requested)
        }
        (_, _, Some(token_sha256)) => EnrollmentPlan::Begin { token_sha256 },
        (None, _, None) => EnrollmentPlan::NoToken,
    }
}

/// An enrolled node.
pub struct EnrolledNode {
    pub node: NodeIdentity,
    /// The reason why the current token is refused; empty: it has been used, or there is none.
    pub refused: String,
}

/// The reason why the node is not enrolled yet.
#[derive(Debug, PartialEq, Eq)]
pub enum EnrollFailure {
    /// A retry may succeed.
    Retryable(String),
    /// An operator must act first.
    Refused(String),
}

impl Service<'_> {
    /// The node's identity; sends one request if it is not known.
    pub fn enroll_once(&self) -> Result<EnrolledNode, EnrollFailure> {
        let known = self.journal.node().map_err(EnrollFailure::Refused)?;
        let requested = self.journal.pending_enrollment().map_err(EnrollFailure::Refused)?;
        let token = match (self.config.token.read(), &known) {
            (Ok(token), _) => token,
            // An enrolled node needs no token, so a broken token file does not stop it.
            (Err(_), Some(_)) => None,
            (Err(message), None) => return Err(EnrollFailure::Refused(message)),
        };
        let (enrolling, token) =
            match (plan(known.clone(), requested, token.as_ref().map(token_checksum)), token) {
                (EnrollmentPlan::Serve(node), _) => {
                    return Ok(EnrolledNode { node, refused: String::new() });
                }
                (EnrollmentPlan::Send(enrolling), Some(token)) => (enrolling, token),
                (EnrollmentPlan::Begin { token_sha256 }, Some(token)) => {
                    let session = random::new_session().map_err(EnrollFailure::Retryable)?;
                    let enrolling = PendingEnrollment { token_sha256, session };
                    self.journal.store_enrollment(&enrolling).map_err(EnrollFailure::Retryable)?;
                    (enrolling, token)
                }
                (
                    EnrollmentPlan::NoToken
                    | EnrollmentPlan::Send(_)
                    | EnrollmentPlan::Begin { .. },
                    _,
                ) => {
                    return Err(EnrollFailure::Refused(
                        "there is no token: write the one you were given to token or token_file"
                            .into(),
                    ));
                }
            };
        match (self.send_enrollment(enrolling, &token), known) {
            (Ok(node), _) => Ok(EnrolledNode { node, refused: String::new() }),
            (Err(EnrollFailure::Refused(refused)), Some(node)) => {
                // The refused enrollment's session is not valid anywhere.
                self.journal.remove_enrollment().map_err(EnrollFailure::Retryable)?;
                Ok(EnrolledNode { node, refused })
            }
            (Err(outside), _) => Err(outside),
        }
    }

    fn send_enrollment(
        &self,
        enrolling: PendingEnrollment,
        token: &SecretString,
    ) -> Result<NodeIdentity, EnrollFailure> {
        let identity = &self.identity;
        let request = EnrollRequest {
            token: token.expose_secret().into(),
            session: enrolling.session.clone(),
            hostname: identity.hostname.clone(),
            serial: identity.serial.clone(),
            macs: identity.macs.clone(),
            boot_id: identity.boot_id.clone(),
            version: VERSION.into(),
        };
        match self.controller.enroll(&request) {
            Ok(enrolled) => {
                let PendingEnrollment { token_sha256, session } = enrolling;
                let (node, heartbeat_seconds) = (enrolled.node, enrolled.heartbeat_seconds);
                let node = NodeIdentity { token_sha256, session, node, heartbeat_seconds };
                self.journal.store_node(&node).map_err(EnrollFailure::Retryable)?;
                Ok(node)
            }
            Err(RequestError::TokenRefused(refusal)) => Err(EnrollFailure::Refused(format!(
                "the token is refused: {}",
                describe_refusal(&refusal)
            ))),
            Err(RequestError::SessionUnknown(_, message) | RequestError::Retryable(message)) => {
                Err(EnrollFailure::Retryable(message))
            }
            Err(RequestError::TaskOver) => {
                Err(EnrollFailure::Retryable("the controller speaks of a task".into()))
            }
        }
    }
}

/// The checksum of the token: enough to recognize it, useless to an attacker.
pub fn token_checksum(token: &SecretString) -> String {
    hex(&Sha256::digest(token.expose_secret().as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_new_token_starts_an_enrollment() {
        let node = || NodeIdentity {
            token_sha256: "one".into(),
            session: "s1".into(),
            node: "node-1".into(),
            heartbeat_seconds: 30,
        };
        let requested = || PendingEnrollment { token_sha256: "two".into(), session: "s2".into() };
        let some = |sum: &str| Some(sum.to_string());
        let begin = |sum: &str| EnrollmentPlan::Begin { token_sha256: sum.into() };
        let table = [
            (None, None, None, EnrollmentPlan::NoToken),
            (None, Some(requested()), None, EnrollmentPlan::NoToken),
            (None, None, some("two"), begin("two")),
            (None, Some(requested()), some("two"), EnrollmentPlan::Send(requested())),
            (None, Some(requested()), some("three"), begin("three")),
            (Some(node()), None, None, EnrollmentPlan::Serve(node())),
            (Some(node()), Some(requested()), None, EnrollmentPlan::Serve(node())),
            (Some(node()), None, some("one"), EnrollmentPlan::Serve(node())),
            (Some(node()), None, some("two"), begin("two")),
            (Some(node()), Some(requested()), some("two"), EnrollmentPlan::Send(requested())),
            (Some(node()), Some(requested()), some("one"), EnrollmentPlan::Serve(node())),
        ];
        for (row, (node, requested, token, expected)) in table.into_iter().enumerate() {
            assert!(plan(node, requested, token) == expected, "row {row}");
        }
    }
}
