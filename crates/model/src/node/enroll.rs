//! How an agent becomes that of a node: by a token that is issued for it, works once, and runs out.

use crate::id::NodeId;
use crate::machine::MachineSpec;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How long a token is good for, unless somebody says otherwise.
pub const TOKEN_LIFE: Duration = Duration::from_secs(24 * 3_600);
/// The longest that may be asked for.
pub const MAX_TOKEN_LIFE: Duration = Duration::from_secs(30 * 24 * 3_600);

/// A token that was issued. Only its checksum is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ticket {
    pub node: NodeId,
    /// Tells one token of a node from the next.
    pub issued_at: Timestamp,
    pub expires_at: Timestamp,
    /// The checksum of the session that has used it.
    #[serde(default)]
    pub used_by: Option<String>,
}

/// Who shows a token.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Applicant {
    /// The checksum of the session that it has made for itself.
    pub session: String,
    pub hostname: String,
    pub serial: String,
    pub macs: Vec<String>,
    pub version: String,
}

/// Why somebody is not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denied {
    TokenUnknown,
    TokenUsed,
    TokenExpired,
    IdentityDiffers,
    SessionUnknown,
    NodeDeleted,
    TaskOver,
}

impl Denied {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TokenUnknown => "token-unknown",
            Self::TokenUsed => "token-used",
            Self::TokenExpired => "token-expired",
            Self::IdentityDiffers => "identity-differs",
            Self::SessionUnknown => "session-unknown",
            Self::NodeDeleted => "node-deleted",
            Self::TaskOver => "task-over",
        }
    }

    pub const fn said(self) -> &'static str {
        match self {
            Self::TokenUnknown => "no such token was issued, or another one was since",
            Self::TokenUsed => {
                "the token has been used; issue another: farrier node bootstrap --reissue NODE"
            }
            Self::TokenExpired => {
                "the token has run out; issue another: farrier node bootstrap --reissue NODE"
            }
            Self::IdentityDiffers => "the token was issued for another machine",
            Self::SessionUnknown => "no agent has enrolled with this session",
            Self::NodeDeleted => "the node has been deleted; this identity never comes back",
            Self::TaskOver => "nobody waits for this task any more",
        }
    }
}

impl Ticket {
    /// Lets somebody in. The same session may ask again: its answer may have been lost.
    pub fn admit(
        &self,
        who: &Applicant,
        machine: &MachineSpec,
        now: Timestamp,
    ) -> Result<Self, Denied> {
        match &self.used_by {
            Some(session) if *session == who.session => return Ok(self.clone()),
            Some(_) => return Err(Denied::TokenUsed),
            None => {}
        }
        if now >= self.expires_at {
            return Err(Denied::TokenExpired);
        }
        if !same_machine(who, machine) {
            return Err(Denied::IdentityDiffers);
        }
        Ok(Self { used_by: Some(who.session.clone()), ..self.clone() })
    }
}

/// Whether who applies can be on this machine. What one of the two does not know speaks against nobody.
fn same_machine(who: &Applicant, machine: &MachineSpec) -> bool {
    let serials = (who.serial.trim(), machine.serial.trim());
    let other_serial = !serials.0.is_empty()
        && !serials.1.is_empty()
        && !serials.0.eq_ignore_ascii_case(serials.1);
    let known =
        |mac: &String| machine.mac_addresses.iter().any(|one| one.eq_ignore_ascii_case(mac));
    let other_macs =
        !who.macs.is_empty() && !machine.mac_addresses.is_empty() && !who.macs.iter().any(known);
    !other_serial && !other_macs
}
