//! Becoming a node: the one-time token is traded for a name, under a session that is on disk before anybody hears of it.
//!
//! An answer that was lost is asked for again with the same token and session, which Farrier knows to be the same. Another token is
//! another enrollment: that is how a node whose session is not known any more comes back, without anybody removing files. One that is
//! refused changes nothing: a node that is enrolled goes on as what it is, and says what is wrong with the token.

use super::Service;
use super::controller::Missed;
use super::identity::VERSION;
use super::journal::{Enrolling, Node};
use crate::farrier::spoken;
use crate::image::hex;
use crate::random;
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};
use wire::node::EnrollRequest;

/// What is to be done about enrolling.
#[derive(PartialEq, Eq)]
pub enum Plan {
    /// This is who we are.
    Serve(Node),
    /// Ask with this session, for the first time or again.
    Ask(Enrolling),
    /// Make a session for this token, and ask.
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

/// Who this is.
pub struct Known {
    pub node: Node,
    /// Why the token that is there now is of no use; empty: it has been used, or there is none.
    pub refused: String,
}

/// Why there is no node yet.
#[derive(Debug, PartialEq, Eq)]
pub enum Outside {
    /// It may work the next time.
    Again(String),
    /// Somebody has to do something first.
    Refused(String),
}

impl Service<'_> {
    /// Who this node is; asks once where that is not known.
    pub fn enroll_once(&self) -> Result<Known, Outside> {
        let known = self.journal.node().map_err(Outside::Refused)?;
        let asked = self.journal.enrolling().map_err(Outside::Refused)?;
        let token = match (self.config.token.read(), &known) {
            (Ok(token), _) => token,
            // A node that is enrolled needs no token, so a broken one is no reason to be away.
            (Err(_), Some(_)) => None,
            (Err(said), None) => return Err(Outside::Refused(said)),
        };
        let (enrolling, token) = match (plan(known.clone(), asked, token.as_ref().map(sum)), token)
        {
            (Plan::Serve(node), _) => return Ok(Known { node, refused: String::new() }),
            (Plan::Ask(enrolling), Some(token)) => (enrolling, token),
            (Plan::Begin { token_sha256 }, Some(token)) => {
                let session = random::session().map_err(Outside::Again)?;
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
                // Nobody has been let in with its session.
                self.journal.forget_enrolling().map_err(Outside::Again)?;
                Ok(Known { node, refused })
            }
            (Err(outside), _) => Err(outside),
        }
    }

    fn ask(&self, enrolling: Enrolling, token: &SecretString) -> Result<Node, Outside> {
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
                let Enrolling { token_sha256, session } = enrolling;
                let (node, heartbeat_seconds) = (enrolled.node, enrolled.heartbeat_seconds);
                let node = Node { token_sha256, session, node, heartbeat_seconds };
                self.journal.keep_node(&node).map_err(Outside::Again)?;
                Ok(node)
            }
            Err(Missed::Refused(refusal)) => {
                Err(Outside::Refused(format!("the token is refused: {}", spoken(&refusal))))
            }
            Err(Missed::Unknown(_, said) | Missed::Again(said)) => Err(Outside::Again(said)),
            Err(Missed::Over) => Err(Outside::Again("the controller speaks of a task".into())),
        }
    }
}

/// The token's checksum: enough to know it again, and of no use to anybody else.
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
