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
use super::journal::{Enrolling, Node};
use super::wire::Enroll;
use crate::deploy_client::describe_refusal;
use crate::image::hex;
use crate::random;
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};

/// What to do about enrollment.
#[derive(PartialEq, Eq)]
pub enum Plan {
    /// The node is enrolled.
    Serve(Node),
    /// Send the stored enrollment, for the first time or again.
    Ask(Enrolling),
    /// Create a session for this token, store it and send it.
    Begin {
        token_sha256: String,
    },
    NoToken,
}

pub fn plan(node: Option<Node>, asked: Option<Enrolling>, token_sha256: Option<String>) -> Plan {
    match (node, asked, token_sha256) {
        (Some(node), _, None) => Plan::Serve(node),
        (Some(node), _, Some(sum)) if node.token_sha256 == sum => Plan::Serve(node),
        (_, Some(asked), Some(sum)) if asked.token_sha256 == sum => Plan::Ask(asked),
        (_, _, Some(token_sha256)) => Plan::Begin { token_sha256 },
        (None, _, None) => Plan::NoToken,
    }
}

/// An enrolled node.
pub struct Known {
    pub node: Node,
    /// Why the current token is refused; empty: it has been used, or there is none.
    pub refused: String,
}

/// Why the node is not enrolled yet.
#[derive(Debug, PartialEq, Eq)]
pub enum Outside {
    /// A retry may succeed.
    Again(String),
    /// An operator must act first.
    Refused(String),
}

impl Service<'_> {
    /// The node's identity; sends one request if it is not known.
    pub fn enroll_once(&self) -> Result<Known, Outside> {
        let known = self.journal.node().map_err(Outside::Refused)?;
        let asked = self.journal.enrolling().map_err(Outside::Refused)?;
        let token = match (self.config.token.read(), &known) {
            (Ok(token), _) => token,
            // An enrolled node needs no token, so a broken token file does not stop it.
            (Err(_), Some(_)) => None,
            (Err(said), None) => return Err(Outside::Refused(said)),
        };
        let (enrolling, token) = match (plan(known.clone(), asked, token.as_ref().map(sum)), token)
        {
            (Plan::Serve(node), _) => return Ok(Known { node, refused: String::new() }),
            (Plan::Ask(enrolling), Some(token)) => (enrolling, token),
            (Plan::Begin { token_sha256 }, Some(token)) => {
                let session = random::new_session().map_err(Outside::Again)?;
                let enrolling = Enrolling { token_sha256, session };
                self.journal.keep_enrolling(&enrolling).map_err(Outside::Again)?;
                (enrolling, token)
            }
            (Plan::NoToken | Plan::Ask(_) | Plan::Begin { .. }, _) => {
                return Err(Outside::Refused(
                    "there is no token: write the one you were given to token or token_file".into(),
                ));
            }
        };
        match (self.ask(enrolling, &token), known) {
            (Ok(node), _) => Ok(Known { node, refused: String::new() }),
            (Err(Outside::Refused(refused)), Some(node)) => {
                // The refused enrollment's session is not valid anywhere.
                self.journal.forget_enrolling().map_err(Outside::Again)?;
                Ok(Known { node, refused })
            }
            (Err(outside), _) => Err(outside),
        }
    }

    fn ask(&self, enrolling: Enrolling, token: &SecretString) -> Result<Node, Outside> {
        let identity = &self.identity;
        let request = Enroll {
            token: token.expose_secret(),
            session: &enrolling.session,
            hostname: &identity.hostname,
            serial: &identity.serial,
            macs: &identity.macs,
            boot_id: &identity.boot_id,
            version: VERSION,
        };
        match self.controller.enroll(&request) {
            Ok(enrolled) => {
                let Enrolling { token_sha256, session } = enrolling;
                let (node, heartbeat_seconds) = (enrolled.node, enrolled.heartbeat_seconds);
                let node = Node { token_sha256, session, node, heartbeat_seconds };
                self.journal.keep_node(&node).map_err(Outside::Again)?;
                Ok(node)
            }
            Err(RequestError::Refused(refusal)) => Err(Outside::Refused(format!(
                "the token is refused: {}",
                describe_refusal(&refusal)
            ))),
            Err(RequestError::Unknown(_, said) | RequestError::Retryable(said)) => {
                Err(Outside::Again(said))
            }
            Err(RequestError::Over) => {
                Err(Outside::Again("the controller speaks of a task".into()))
            }
        }
    }
}

/// The checksum of the token: enough to recognize it, useless to an attacker.
pub fn sum(token: &SecretString) -> String {
    hex(&Sha256::digest(token.expose_secret().as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_token_is_a_new_enrollment_and_an_old_one_is_none() {
        let node = || Node {
            token_sha256: "one".into(),
            session: "s1".into(),
            node: "node-1".into(),
            heartbeat_seconds: 30,
        };
        let asked = || Enrolling { token_sha256: "two".into(), session: "s2".into() };
        let some = |sum: &str| Some(sum.to_string());
        let begin = |sum: &str| Plan::Begin { token_sha256: sum.into() };
        let table = [
            (None, None, None, Plan::NoToken),
            (None, Some(asked()), None, Plan::NoToken),
            (None, None, some("two"), begin("two")),
            (None, Some(asked()), some("two"), Plan::Ask(asked())),
            (None, Some(asked()), some("three"), begin("three")),
            (Some(node()), None, None, Plan::Serve(node())),
            (Some(node()), Some(asked()), None, Plan::Serve(node())),
            (Some(node()), None, some("one"), Plan::Serve(node())),
            (Some(node()), None, some("two"), begin("two")),
            (Some(node()), Some(asked()), some("two"), Plan::Ask(asked())),
            (Some(node()), Some(asked()), some("one"), Plan::Serve(node())),
        ];
        for (row, (node, asked, token, expected)) in table.into_iter().enumerate() {
            assert!(plan(node, asked, token) == expected, "row {row}");
        }
    }
}
