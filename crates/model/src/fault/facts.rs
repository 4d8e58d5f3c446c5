//! The facts of an incident that its repair takes as arguments.

use crate::effect::DrainOptions;
use crate::id::RunId;
use serde::{Deserialize, Serialize};

/// None: not known, or it does not concern the fault. Stored with the fault.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct FaultFacts {
    /// The credential that was refused, is missing, or is of the wrong kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credential: Option<String>,
    /// The options of `farrier credential set` with which the credential may be sent to the peer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub binding: Option<String>,
    /// The BMC, host or region, as `farrier trust` names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// The identity that the peer showed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    /// The right that the user of the credential lacks at a cluster that knows it: `patch nodes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing_right: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The firmware record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub firmware: Option<String>,
    /// The child run that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<RunId>,
    /// The options with which the drain would evict the pods that stopped it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<DrainOptions>,
}

impl FaultFacts {
    pub const UNKNOWN: &Self = &Self {
        credential: None,
        binding: None,
        peer: None,
        identity: None,
        missing_right: None,
        image: None,
        firmware: None,
        operation: None,
        drain: None,
    };
}
