//! The reason why a deployment ends early: it failed, or Farrier told it to stop.

use std::fmt;
use wire::deploy::DeploymentFailure;

/// A code that Farrier knows, and one sentence for the operator: where it failed and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub code: DeploymentFailure,
    pub message: String,
}

impl Failure {
    pub fn new(code: DeploymentFailure, text: impl Into<String>) -> Self {
        Self { code, message: text.into() }
    }

    /// The image does not match its kind.
    pub fn image_broken(message: impl Into<String>) -> Self {
        Self::new(DeploymentFailure::ImageBroken, message)
    }

    /// The disk, or the system that was written to it, could not be used.
    pub fn install_failed(message: impl Into<String>) -> Self {
        Self::new(DeploymentFailure::InstallFailed, message)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeployError {
    /// Farrier told the agent to stop. This is not a failure, and nothing is reported.
    Stopped,
    Failed(Failure),
}

impl From<Failure> for DeployError {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl fmt::Display for DeployError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped => f.write_str("told to stop"),
            Self::Failed(failure) => write!(f, "{} ({})", failure.message, failure.code.as_str()),
        }
    }
}
