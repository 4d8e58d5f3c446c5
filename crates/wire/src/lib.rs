//! The JSON messages between Farrier and its agents, over HTTP. The server and the agent both use
//! these types, so that a field has one name and one type on both sides.
//!
//! [`deploy`] is spoken by the deploy environment, which writes an image to a disk. [`node`] is
//! spoken by the agent of a node in service. The two sides may have different versions: a reader
//! ignores fields that it does not know. Only serde is used, because the agent is a small static
//! binary.

pub mod deploy;
pub mod node;

use serde::{Deserialize, Serialize};

/// The reason of a refusal. A proxy may answer without one, so both fields may be empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Refusal {
    pub code: String,
    #[serde(rename = "said")]
    pub message: String,
}
