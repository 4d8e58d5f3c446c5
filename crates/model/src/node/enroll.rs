//! Enrollment: an agent becomes the agent of a node by a token that was issued for it, works once,
//! and expires.

use crate::id::NodeId;
use crate::machine::MachineSpec;
use crate::text::same_checksum;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The default lifetime of a token.
pub const TOKEN_LIFE: Duration = Duration::from_secs(24 * 3_600);
/// The longest lifetime that may be requested.
pub const MAX_TOKEN_LIFE: Duration = Duration::from_secs(30 * 24 * 3_600);

/// An issued enrollment token. Only its checksum is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnrollmentToken {
    pub node: NodeId,
    /// Distinguishes successive tokens of a node.
    pub issued_at: Timestamp,
    pub expires_at: Timestamp,
    /// The checksum of the session that used it.
    #[serde(default)]
    pub used_by: Option<String>,
}

/// An enrolling agent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EnrollingAgent {
    /// The checksum of the session it chose.
    pub session: String,
    pub hostname: String,
    pub serial: String,
    pub macs: Vec<String>,
    pub version: String,
}

/// The reason why an agent is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EnrollmentRefusal {
    TokenUnknown,
    TokenUsed,
    TokenExpired,
    IdentityDiffers,
    IdentityMissing,
    SessionUnknown,
    NodeDeleted,
    TaskOver,
}

impl EnrollmentRefusal {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TokenUnknown => "token-unknown",
            Self::TokenUsed => "token-used",
            Self::TokenExpired => "token-expired",
            Self::IdentityDiffers => "identity-differs",
            Self::IdentityMissing => "identity-missing",
            Self::SessionUnknown => "session-unknown",
            Self::NodeDeleted => "node-deleted",
            Self::TaskOver => "task-over",
        }
    }

    pub const fn message(self) -> &'static str {
        match self {
            Self::TokenUnknown => "no such token was issued, or another one was since",
            Self::TokenUsed => {
                "the token has been used; issue another: farrier node bootstrap --reissue NODE"
            }
            Self::TokenExpired => {
                "the token has run out; issue another: farrier node bootstrap --reissue NODE"
            }
            Self::IdentityDiffers => "the token was issued for another machine",
            Self::IdentityMissing => {
                "the machine's serial number or MAC addresses are known to Farrier, and the agent \
                 names none of them; run the agent as root, or correct the machine: \
                 farrier machine update MACHINE --serial SERIAL"
            }
            Self::SessionUnknown => "no agent has enrolled with this session",
            Self::NodeDeleted => "the node has been deleted; this identity never comes back",
            Self::TaskOver => "the task is no longer needed",
        }
    }
}

impl EnrollmentToken {
    /// Enrolls an agent. The same session may repeat the call, because the answer may have been
    /// lost.
    pub fn admit(
        &self,
        requester: &EnrollingAgent,
        machine: &MachineSpec,
        now: Timestamp,
    ) -> Result<Self, EnrollmentRefusal> {
        match &self.used_by {
            Some(session) if same_checksum(session, &requester.session) => return Ok(self.clone()),
            Some(_) => return Err(EnrollmentRefusal::TokenUsed),
            None => {}
        }
        if now >= self.expires_at {
            return Err(EnrollmentRefusal::TokenExpired);
        }
        check_machine(requester, machine)?;
        Ok(Self { used_by: Some(requester.session.clone()), ..self.clone() })
    }
}

/// Refuses an agent that cannot be on this machine. A value that one side does not know is not
/// compared; but where the machine's are known, the agent must name one of them.
fn check_machine(
    requester: &EnrollingAgent,
    machine: &MachineSpec,
) -> Result<(), EnrollmentRefusal> {
    let (named, known) = (requester.serial.trim(), machine.serial.trim());
    let serial =
        (!named.is_empty() && !known.is_empty()).then(|| named.eq_ignore_ascii_case(known));
    let has_mac =
        |mac: &String| machine.mac_addresses.iter().any(|one| one.eq_ignore_ascii_case(mac));
    let comparable = !requester.macs.is_empty() && !machine.mac_addresses.is_empty();
    let mac = comparable.then(|| requester.macs.iter().any(has_mac));
    let anonymous = known.is_empty() && machine.mac_addresses.is_empty();
    match (serial, mac) {
        (Some(false), _) | (_, Some(false)) => Err(EnrollmentRefusal::IdentityDiffers),
        (None, None) if !anonymous => Err(EnrollmentRefusal::IdentityMissing),
        (Some(true) | None, Some(true) | None) => Ok(()),
    }
}
